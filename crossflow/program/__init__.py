"""Programs: what every class of ranks computes, sends and keeps in a step, in order, and nothing of how long it takes.

The language between those who say what a step is (models with a strategy, PyTorch modules, traces, files) and those who time it. A
`Program` has groups of devices, operations on in-order streams, kernels (products, attention, experts, look-ups, scans, passes),
messages, and tensors with their lives. `Block` is a part that repeats. `file` writes a program and reads it back; `ProgramBuilder` is
how importers make one; `operations` counts floating-point operations and bytes. `embedding` says how often look-ups hit the same rows.

Takes what importers and `parallel` write; gives frozen objects that `cost` prices and `engine` runs.
"""

from crossflow.program.blocks import Block
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import is_program, read_program, write_program
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Attention, Experts, Kernel, Lookup, Pass, Product, Scan, Timed
from crossflow.program.program import Message, Op, Program, Tensor

__all__ = [
    "Attention", "Block", "DeviceGroup", "Experts", "Kernel", "Lookup", "Message", "Op", "Pass", "Product", "Program", "ProgramBuilder",
    "Scan", "Tensor", "Timed", "is_program", "read_program", "write_program",
]  # fmt: skip

# What other wings may import, by module; all else is this wing's own.
DOORS = {
    "blocks": ("Block", "CopyPlaces", "MOST"),
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
