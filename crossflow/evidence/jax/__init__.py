"""JAX programs as programs of crossflow: texts of XLA, which say what each device computes, sends and keeps in a step.

Reading a text needs no JAX. `lowering` writes one from a function, with the extra `jax` (`pip install 'crossflow[jax]'`).
"""
