"""PyTorch models as programs: what a model computes, sends and keeps at any world size, recorded without running it.

Modules of this package import torch, which is an extra (`pip install 'crossflow[torch]'`); the rest of crossflow never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossflow.evidence.torch.importer import record

__all__ = ["record"]


def __getattr__(name: str) -> Any:
    """`record`, which needs torch, when it is first used."""
    if name != "record":
        raise AttributeError(f"module 'crossflow.evidence.torch' has no attribute '{name}'")
    from crossflow.evidence.torch.installed import require_torch

    require_torch("importing a model")
    from crossflow.evidence.torch.importer import record

    return record
