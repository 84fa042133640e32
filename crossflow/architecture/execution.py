"""How kernels run on a device beyond its peak rates: few physical parameters, in files, each with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from crossflow.architecture.attention import AttentionLibrary, AttentionLibraryName
from crossflow.arrays import points
from crossflow.files import FileModel
from crossflow.limits import Whole
from crossflow.units import Ratio, Share, Time

ONE = points(np.ones(1))
ProductLibraryName = Literal["cublas", "cutlass", "deepgemm"]
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


class KernelLibraries(FileModel):
    """Code for one generation of devices that was measured there, by name; a software stack says which it uses (`KernelChoice`)."""

    products: Mapping[ProductLibraryName, TileExecution] = Field(default={}, description="of matrix products")
    attention: Mapping[AttentionLibraryName, AttentionLibrary] = Field(default={}, description="of fused attention in serving")


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
    libraries: KernelLibraries = KernelLibraries()
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
