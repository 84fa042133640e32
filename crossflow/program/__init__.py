"""Programs: what every class of ranks computes, sends and keeps in a step, in order, and nothing of how long it takes.

The language between those who say what a step is (models with a strategy, PyTorch modules, traces, files) and those who time it. A
`Program` has groups of devices, operations on in-order streams, kernels (products, attention, experts, look-ups, scans, passes),
messages, and tensors with their lives. `Block` is a part that repeats. `file` writes a program and reads it back; `ProgramBuilder` is
how importers make one; `operations` counts floating-point operations and bytes. `embedding` says how often look-ups hit the same rows.

Takes what importers and `parallel` write; gives frozen objects that `cost` prices and `engine` runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossflow.program.blocks import Block as Block
    from crossflow.program.builder import ProgramBuilder as ProgramBuilder
    from crossflow.program.file import is_program as is_program
    from crossflow.program.file import read_program as read_program
    from crossflow.program.file import write_program as write_program
    from crossflow.program.groups import DeviceGroup as DeviceGroup
    from crossflow.program.kernels import Attention as Attention
    from crossflow.program.kernels import Experts as Experts
    from crossflow.program.kernels import Kernel as Kernel
    from crossflow.program.kernels import Lookup as Lookup
    from crossflow.program.kernels import Pass as Pass
    from crossflow.program.kernels import Product as Product
    from crossflow.program.kernels import Scan as Scan
    from crossflow.program.kernels import Timed as Timed
    from crossflow.program.program import Message as Message
    from crossflow.program.program import Op as Op
    from crossflow.program.program import Program as Program
    from crossflow.program.program import Tensor as Tensor

# Names for those who write programs, with the modules that hold them: imported when first used, for few who price programs need all.
_PUBLIC = {
    **dict.fromkeys(("Attention", "Experts", "Kernel", "Lookup", "Pass", "Product", "Scan", "Timed"), "kernels"),
    **dict.fromkeys(("Message", "Op", "Program", "Tensor"), "program"),
    **dict.fromkeys(("is_program", "read_program", "write_program"), "file"),
    "Block": "blocks", "DeviceGroup": "groups", "ProgramBuilder": "builder",
}  # fmt: skip

__all__ = [*_PUBLIC]

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "blocks": ("Block", "COPIES", "CopyPlaces", "MOST"),
    "builder": ("ProgramBuilder",),
    "collectives": ("COLLECTIVES", "Collective", "FLOWS", "GATHERED", "OF_LAYERS", "PRICED", "called", "ring_volume", "sent_bytes"),
    "embedding.caches": ("CachedLookups", "beyond"),
    "embedding.datasets": ("named",),
    "embedding.reuse": ("BINS", "Reuse", "distinct_share", "normalised"),
    "file": ("check_name", "is_named_program", "is_program", "read_program", "write_program"),
    "groups": ("DeviceGroup", "ExpertGroup", "Group", "HandoverGroup", "JobPart", "Pair"),
    "kernels": ("Attention", "BACKWARD", "Experts", "KEYS", "Kernel", "KernelTable", "Lookup", "LookupPart", "Number", "ONCE", "Pass",
        "Product", "QUERIES", "SIZES", "Scan", "TableOptimizer", "Timed", "filled", "kernel_tables", "masked_pairs", "repeated",
        "seen_pairs", "size_of"),
    "loads": ("RowLoads", "TILE_ROWS", "expert_loads", "fullest"),
    "mesh": ("RankMesh", "mesh_of"),
    "operations": ("*", "ADDS", "FREE", "KernelRows", "SETS", "TABLE_GRADIENT", "attention_of", "depthwise_flops", "implicit", "nbytes",
        "pooled_back",
        "scattered", "touched"),
    "order": ("in_order",),
    "program": ("COMPUTE", "HOST", "HOST_TIMES", "Hiding", "HostTime", "Message", "MessageTable", "NETWORK", "Op", "Program", "Tensor",
        "fullest"),
    "scans": ("SINGLE", "scan_sizes"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
