"""JAX programs as programs of crossflow: texts of XLA, which say what each device computes, sends and keeps in a step.

Reading a text needs no JAX. `record` lowers a function, with the extra `jax` (`pip install 'crossflow[jax]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossflow.evidence.jax.importer import import_text
    from crossflow.evidence.jax.lowering import record

__all__ = ["import_text", "record"]


def __getattr__(name: str) -> Any:
    """`import_text` and `record`, when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module 'crossflow.evidence.jax' has no attribute '{name}'")
    from crossflow.evidence.jax import importer, lowering

    return importer.import_text if name == "import_text" else lowering.record
