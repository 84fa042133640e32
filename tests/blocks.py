"""Kernels and messages of a transformer's blocks by kind, as tests look at them."""

from typing import Any, NamedTuple

import numpy as np

from crossflow.parallel.blocks import block_program
from crossflow.program.groups import ExpertGroup
from crossflow.program.kernels import Attention, Pass, Product, Scan


class ProductRow(NamedTuple):
    unit: str
    phase: str
    m: Any
    n: Any
    k: Any
    batch: Any
    sums: bool
    wide: bool
    stored: str


class PassRow(NamedTuple):
    unit: str
    phase: str
    moved: Any
    flops: Any
    launches: Any


class ScoreRow(NamedTuple):
    unit: str
    phase: str
    flops: Any
    moved: Any
    blocks: Any
    number: Any
    kernel: Attention


class MessageRow(NamedTuple):
    part: str
    phase: str
    collective: str
    size: Any
    group: str
    hides: bool
    number: Any


class Blocks(NamedTuple):
    products: list[ProductRow]
    passes: list[PassRow]
    scores: list[ScoreRow]
    messages: list[MessageRow]
    scans: list[tuple[str, str, Scan]]
    program: Any


def block_kernels(job, layout, stack):
    """Rows of the program of a model's blocks."""
    program, found = block_program(job, layout, stack), Blocks([], [], [], [], [], None)
    names = {id(getattr(layout, name)): name for name in ("tensor", "context", "expert", "expert_across", "expert_inside")}
    names = {**{id(group): f"{kind}_tensor" for kind, group in layout._sharing.items()}, **names}
    for op in program.ops:
        at = op.layer, op.phase
        for kernel in (program.kernels[row] for row in op.kernels):
            if isinstance(kernel, Product):
                n = [np.asarray(getattr(kernel, name), dtype=float) for name in ("m", "n", "k", "batch")]
                found.products.append(ProductRow(*at, *n, kernel.adds, kernel.wide, kernel.stored))
            elif isinstance(kernel, Pass):
                found.passes.append(PassRow(*at, kernel.moved, kernel.flops, kernel.launches))
            elif isinstance(kernel, Scan):
                found.scans.append((*at, kernel))
            elif isinstance(kernel, Attention):
                found.scores.append(ScoreRow(*at, *kernel.work, op.count, kernel))
        if op.message is not None:
            one = program.messages[op.message]
            group = "expert" if isinstance(one.group, ExpertGroup) else names[id(one.group)]
            found.messages.append(MessageRow(*at, one.collective, one.size, group, op.hiding == "weights", op.count))
    return found._replace(program=program)
