"""What a text of XLA runs, in order: passes, products, messages, and loops with their trips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from crossflow.evidence.jax.text import HloTensor
from crossflow.program.collectives import Collective
from crossflow.program.kernels import Kernel

# What a compiler may do with a step: `loop`, it joins those that read it; `root`, others may be joined to it, it itself stays a pass, as
# a reduction, whose result is there only once all of it was read; `alone`, a product or a call.
Joining = Literal["loop", "root", "alone"]


@dataclass(kw_only=True)
class HloStep:
    """One operation on the device.

    Attributes
    ----------
    name, layer, phase, scope, line : what it is and where it stands.
    reads, writes : bytes of each buffer that it moves. [B]
    kernels, flops : what it runs; of a pass, which its bytes give, its operations. [flop]
    joining, span : what a compiler may do with it, and the elements that it goes over. [1]
    narrows : whether it only converts to a type of fewer bits.
    reduced : buffers that it writes once all of it was read.
    collective, size, ranks : of a message, its kind, its buffer, and the ranks that take part. [B]
    dtype : type in which a product multiplies.
    matrix : whether it multiplies matrices or looks up rows, as no optimizer does with its state.
    """

    name: str
    layer: str = ""
    phase: str = ""
    scope: str = ""
    line: int = 0
    reads: dict[int, float] = field(default_factory=dict)
    writes: dict[int, float] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    flops: float = 0.0
    joining: Joining = "alone"
    span: float = 0.0
    narrows: bool = False
    reduced: frozenset[int] = frozenset()
    collective: Collective | None = None
    size: float = 0.0
    ranks: tuple[int, ...] = ()
    dtype: str = ""
    matrix: bool = False
    promoted: bool = False  # whether a compiler for CPUs has widened what it sends
    carries: dict[int, int] = field(default_factory=dict)  # buffers that it makes, and those of the loop that they become


@dataclass(kw_only=True)
class HloLoop:
    """Steps that run so many times, one after the other."""

    trips: int
    items: list[HloStep | HloLoop]
    line: int


Items = list[HloStep | HloLoop]


@dataclass(frozen=True, kw_only=True)
class TracedText:
    """All of a text.

    Attributes
    ----------
    items : what it runs.
    sizes : bytes of every buffer. [B]
    arguments : buffers of the parameters, with their tensors.
    outputs : buffers of the results, with their tensors.
    kept : buffers that are written whether passes read them alone or not: results, what loops carry.
    notes : sentences on what was taken for granted.
    """

    items: Items
    sizes: dict[int, float]
    arguments: Sequence[tuple[int, HloTensor]]
    outputs: Sequence[tuple[int, HloTensor]]
    kept: frozenset[int]
    notes: tuple[str, ...] = ()


def steps_in(items: Items) -> Iterator[HloStep]:
    """All steps, those of loops once."""
    for item in items:
        if isinstance(item, HloLoop):
            yield from steps_in(item.items)
        else:
            yield item


def weighted(items: Items, times: int = 1) -> Iterator[tuple[HloStep, int]]:
    """All steps, with how often each runs. [1]"""
    for item in items:
        if isinstance(item, HloLoop):
            yield from weighted(item.items, times * item.trips)
        else:
            yield item, times


def segments(items: Items) -> Iterator[Items]:
    """Lists of items, that of a loop before the one that holds the loop."""
    for item in items:
        if isinstance(item, HloLoop):
            yield from segments(item.items)
    yield items
