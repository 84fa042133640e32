"""How kernels run on a device beyond its peak rates: few physical parameters, in files, each with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from crossflow.arrays import points
from crossflow.files import FileModel
from crossflow.limits import Whole
from crossflow.units import Ratio, Share, Time

ONE = points(np.ones(1))
ProductLibraryName = Literal[
    "cublas", "cublas-trtllm", "cutlass-vllm", "cutlass-sglang", "deepgemm-sglang", "deepgemm-trtllm",
    "fp4-vllm", "fp4-sglang", "fp4-trtllm",
]  # fmt: skip
Library = TypeVar("Library")


class TileExecution(FileModel):
    """How a vendor's library maps a matrix product onto the units of a device."""

    shapes: tuple[tuple[Whole, Whole], ...] = Field(description="tiles of C that the library ships, rows by columns")
    splits: tuple[Whole, ...] = Field(description="numbers of blocks that may share the k loop of one tile")
    depth: Whole = Field(gt=0, description="elements of k that one step of the main loop handles")
    fill: Time = Field(description="time of a block outside its main loop: pipeline fill, epilogue, store")
    split: Time = Field(description="extra time of a split k loop: synchronisation and reduction")
    partial_rate: Ratio = Field(description="rate at which partial sums of a split move, over the main memory's")
    cache_bytes_per_clock: Ratio = Field(description="bytes per clock that the last cache gives one unit when all ask at once")


class Quantising(FileModel):
    """How a library scales A to the narrower type in which it multiplies, in kernels of their own."""

    start: Time = Field(description="gap before its kernels in a captured graph; outside of one `kernel_launch` stands in its place")
    rate: Ratio = Field(description="rate at which it reads A and writes the narrower copy, over the main memory's")


class ProductLibrary(TileExecution):
    """Kernels of matrix products of one library, for one or more data types, on one generation of devices."""

    start: Time = Field(description="gap before a kernel of a captured graph; outside of one `kernel_launch` stands in its place")
    matrix_utilisation: Share = Field(description="share of the matrix peak that the main loop of a block reaches")
    clock: Ratio = Field(description="clock that its long products sustain, over that at which the device keeps to its TDP by `chip_power`")
    memory_rate: Ratio = Field(description="rate at which operands cross main memory, over that of other kernels")
    rounding: Share = Field(
        description="how much of the time of a wave that fills only some units passes before these begin the next: 1 all, 0 none"
    )
    stored: Ratio = Field(description="bytes by which an element of C counts among those that the cache gives a block")
    kept: Share = Field(description="share of the last cache in which operands stay until a benchmark calls the kernel again")
    reread: Share = Field(description="share of the panels that blocks read from main memory where those of all units overflow the cache")
    span: Ratio = Field(description="size of the panels of all units at which half of that share is, over the last cache")
    rows_up_to: tuple[Whole, ...] = Field(
        default=(),
        description="for a library that takes its tile by the rows of C alone: the most rows for which each of `shapes` but the last is"
        " taken, ascending. The library takes the fastest tile where absent",
    )
    quantise: Quantising | None = Field(default=None, description="how A is scaled to a narrower type, for the types that need it")

    @model_validator(mode="after")
    def _check(self) -> ProductLibrary:
        limits = self.rows_up_to
        if limits and (len(limits) != len(self.shapes) - 1 or sorted(set(limits)) != list(limits)):
            raise ValueError(f"rows_up_to: expected {len(self.shapes) - 1} ascending numbers, one for each of shapes but the last")
        return self


class KernelLibraries(FileModel):
    """Code for one generation of devices that was measured there, by name; a software stack says which it uses (`KernelChoice`)."""

    products: Mapping[ProductLibraryName, ProductLibrary] = Field(default={}, description="of matrix products")


class Execution(FileModel):
    """What separates achieved from peak rates; `tiles` for devices whose libraries are known, absent for generated ones."""

    kernel_launch: Time = Field(description="time between kernels of one stream that no work fills")
    matrix_utilisation: Share = Field(description="highest share of the matrix peak that a long kernel reaches")
    vector_utilisation: Share = Field(description="highest share of the vector peak that a long kernel reaches")
    chip_power: Ratio | None = Field(
        default=None,
        description="power of the chip in long matrix products over that of its matrix units alone, as the library has them at its node;"
        " the clock falls until the chip keeps to its TDP, and holds where this is absent",
    )
    training_sensitivity: Ratio = Field(
        default=ONE,
        description="how many times larger the `product_slowdown` of a software stack is here than on the A100, for which stacks state it",
    )
    earlier_instructions: Share = Field(default=ONE, description="share of the matrix rate that instructions of earlier generations reach")
    graph_launch: Time | None = Field(
        default=None,
        description="the same between kernels of a captured graph, for software that launches its kernels so; `kernel_launch` where absent",
    )
    tiles: TileExecution | None = None
    libraries: KernelLibraries = Field(default=KernelLibraries(), description="kernel libraries, for software that names them")
    blocks: tuple[tuple[Whole, Whole], ...] = Field(
        default=(),
        description="for generated devices: tiles of C, rows by columns, that one unit works on at a time; a product runs in waves of the"
        " best of them, and its last wave takes as long as a full one. Units divide the work evenly where absent",
    )


def preferred(names: Sequence[str], known: Mapping[Any, Library]) -> Library | None:
    """The first of some libraries that is known, None where none is.

    >>> preferred(("cutlass", "cublas"), {"cublas": 1, "deepgemm": 2})
    1
    """
    return next((known[name] for name in names if name in known), None)
