"""Microbenchmarks of the machine at hand: times of kernels, copies, host overheads and collectives as PyTorch runs them.

Only `kernels`, `host`, `clock` and `collectives` import torch, which is an extra (`pip install 'crossflow[measure]'`).
"""
