"""How kernels run on a device beyond its peak rates: few physical parameters, in files, each with its source."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from crossflow.base.arrays import Array, points
from crossflow.base.files import FileModel
from crossflow.base.limits import Flag, Whole
from crossflow.base.units import Bandwidth, PositiveCount, PositiveRatio, PositiveShare, Ratio, Share, Time

NONE, ONE = points(np.zeros(1)), points(np.ones(1))
ProductLibraryName = Literal[
    "cublas",
    "cublas-trtllm",
    "cutlass-vllm",
    "cutlass-sglang",
    "deepgemm-sglang",
    "deepgemm-trtllm",
    "fp4-vllm",
    "fp4-sglang",
    "fp4-trtllm",
]
# What multiplies, and whose code it is.
ExpertLibraryName = Literal[
    "triton-vllm", "triton-sglang", "cutlass-flashinfer", "trtllm-flashinfer", "cutlass-trtllm", "deepgemm-trtllm", "deepgemm-vllm",
    "cutlass-trtllm-rc15", "deepgemm-trtllm-rc15",
]  # fmt: skip
USUAL = 128  # elements of a head for which `by_width` is one
AttentionLibraryName = Literal[
    "flash-attention-2", "flash-attention-3", "flash-attention-4", "vllm-flash-attention-3", "flashinfer", "flashinfer-vllm", "triton",
    "vllm-triton", "trtllm-gen", "trtllm-gen-sglang", "trtllm-gen-native", "trtllm-fmha", "trtllm-xqa", "trtllm-xqa-fp8", "trtllm-mmha",
    "trtllm-mmha-fp8", "flash-mla",
]  # fmt: skip
ExchangeLibraryName = Literal["deepep", "nvlink-trtllm"]
WideningLibraryName = Literal["marlin", "triton-kernels"]
Library = TypeVar("Library")


class TileExecution(FileModel):
    """How a vendor's library maps a matrix product onto the units of a device."""

    shapes: tuple[tuple[Whole, Whole], ...] = Field(description="tiles of C that the library ships, rows by columns")
    splits: tuple[Whole, ...] = Field(description="numbers of blocks that may share the k loop of one tile")
    depth: Whole = Field(gt=0, description="elements of k that one step of the main loop handles")
    fill: Time = Field(description="time of a block outside its main loop: pipeline fill, epilogue, store")
    split: Time = Field(description="extra time of a split k loop: synchronisation and reduction")
    partial_rate: Ratio = Field(description="rate at which partial sums of a split move, over the main memory's")
    cache_bytes_per_flop: Ratio = Field(
        description="bytes that the last cache gives the units when all ask at once, an operation of 16 bits that their matrix units can do"
    )


class Quantising(FileModel):
    """How a library scales A to the narrower type in which it multiplies, in kernels of their own."""

    kernels: Whole = Field(
        default=1, gt=0, description="kernels that it launches one after the other, where memory that is set to zero is one"
    )
    start: Time = Field(description="gap before each of them in a captured graph; outside of one `kernel_launch` stands in its place")
    rate: Ratio = Field(description="rate at which it reads A, as often as it does, and writes the narrower copy, over the main memory's")
    reads_twice: Flag = Field(default=False, description="whether it reads A twice: one scale holds for the whole of A and is sought first")


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
    not_on: tuple[str, ...] = Field(
        default=(), description="generations of the family, as devices name theirs, on which an engine runs other code instead"
    )

    @model_validator(mode="after")
    def _check(self) -> ProductLibrary:
        limits = self.rows_up_to
        if limits and (len(limits) != len(self.shapes) - 1 or sorted(set(limits)) != list(limits)):
            raise ValueError(f"rows_up_to: expected {len(self.shapes) - 1} ascending numbers, one for each of shapes but the last")
        return self


class WideningLibrary(FileModel):
    """Kernels of matrix products that widen weights of few bits as they read them, on one generation of devices."""

    matrix: PositiveShare = Field(description="share of the matrix rate of other kernels that their main loops reach")
    memory: PositiveShare = Field(default=ONE, description="rate at which weights cross main memory, over that of other kernels")
    start: Time | None = Field(
        default=None, description="time of a product in a captured graph beside its work; that of the library that multiplies where absent"
    )
    rows: tuple[Whole, ...] = Field(
        default=(),
        description="rows of its tiles, ascending: the first that the rows of an expert fill less than nine tenths, or the last; the"
        " fastest tile where absent",
    )
    columns: Whole = Field(default=1, description="multiple to which weights are padded along the rows of what comes out")
    depth: Whole = Field(default=1, description="the same along the sum")


class ExpertLibrary(FileModel):
    """How a library runs a layer of experts in one data type on one generation of devices (see `crossflow.cost.experts`)."""

    start: Time = Field(description="time of a layer in a captured graph beside its work: the starts of its kernels")
    token: Time = Field(description="time per token to choose experts and to sort")
    expert: Time = Field(description="time per expert of the rank that has any row")
    matrix: PositiveShare = Field(description="share of the matrix peak that tiles reach")
    cache_bytes_per_clock: PositiveRatio = Field(description="bytes per clock that the last cache gives one unit when all ask at once")
    memory: PositiveRatio = Field(description="share of the usable memory bandwidth at which weights are read")
    group: PositiveRatio = Field(description="tiles, one below the other, that share what one of them has read of an expert's weights")
    passes: Ratio = Field(description="bytes that move between the products over one read and one write of each kernel")
    carried: Ratio = Field(description="the same for rows of experts on other ranks, which some kernels carry through")
    multiplied: Share = Field(description="share of the rows of other ranks that come with a token and are multiplied as well")
    padded: Literal[0, 16, 32, 64, 128] = Field(
        default=0,
        description="rows of the blocks for which a kernel has room, one at least for every expert of the rank whether it has rows or not; "
        "those without rows are read and written too. 0: each expert has as many tiles as its rows fill",
    )
    measured_as: str = Field(default="", description="which of several kernels of the library the measured rows are of, where that matters")


def width_rate(by_width: Mapping[int, Array], width: Array) -> Array:
    """Rate of a loop for heads of some elements, over that for the usual ones; a power law between those that are known. [1]

    Rates may differ between design points, which are the last axis.
    """
    if not by_width:
        return np.ones(1)
    known = dict(sorted({USUAL: np.ones(1), **by_width}.items()))
    places, rates, at = np.log(list(known)), [np.log(rate) for rate in known.values()], np.log(width)
    if all(rate.size == 1 for rate in rates):
        return np.asarray(np.exp(np.interp(at, places, np.concatenate(rates))))
    steps = zip(itertools.pairwise(places), itertools.pairwise(rates), strict=True)
    found = sum(((np.clip((at - low) / (high - low), 0.0, 1.0)) * (to - start) for (low, high), (start, to) in steps), rates[0])
    return np.asarray(np.exp(found))


class FusedKernel(FileModel):
    """What prefill and decode kernels of a library share."""

    start: Time = Field(description="time of a call in which no block works: its start and end, and further kernels that every call has")
    write: Time = Field(default=NONE, description="time of a further kernel that writes new keys and values to the cache")
    quantise: Time = Field(default=NONE, description="time of further kernels where the cache has 8 bits")
    block: Time = Field(description="time of a block outside its loop over keys")
    matrix: PositiveRatio = Field(description="share of the 16-bit matrix peak that products in the loop reach")
    memory: PositiveRatio = Field(description="rate at which operands stream, over that of matrix products")
    by_width: Mapping[int, PositiveRatio] = Field(
        default={}, description=f"rate of the loop by elements of a head, over that for {USUAL}; between those named it follows a power law"
    )
    # what the library serves; kernels of others go to the next library that a stack names
    groups: tuple[Whole, Whole] | None = Field(
        default=None, description="query heads a key-value head that it serves, from and to; all of them"
    )
    widths: tuple[Whole, ...] = Field(default=(), description="elements of a head that it serves; all of them where absent")
    cache: tuple[Literal["wide", "narrow"], ...] = Field(
        default=("wide", "narrow"), description="caches that it reads: wide, of 16 bits and more, or narrow"
    )


class PrefillKernel(FusedKernel):
    """Attention of many queries a sample: blocks of queries pass over their keys."""

    rows: Whole = Field(default=128, gt=0, description="rows of queries that one block works on")
    packs: Flag = Field(default=False, description="rows of a block are of all query heads of a key-value head, not of one")
    skips: Flag = Field(default=True, description="keys outside a window are skipped")
    narrow: PositiveRatio | None = Field(default=None, description="share of the 8-bit matrix peak; absent: products have 16 bits")
    narrow_by_width: Mapping[int, PositiveRatio] = Field(
        default={}, description="the same as `by_width` for 8 bits, which holds where absent"
    )
    narrow_from: Literal["cache", "products"] = Field(
        default="products", description="when products have 8 bits: whenever the cache has, or only where the model multiplies so too"
    )
    lone: Ratio = Field(default=ONE, description="time of a loop that no other block hides, over its time among others")
    writing: PositiveRatio = Field(description="rate at which further kernels copy keys, values and queries, over that of matrix products")
    throttled: Share = Field(default=NONE, description="share of the fall of the clock of long matrix products that long kernels meet too")


class DecodeKernel(FusedKernel):
    """Attention of one query a sample: blocks of keys, for all query heads of a key-value head."""

    row: Time = Field(default=NONE, description=f"time of a block for each query head of {USUAL} elements")
    cache_bytes_per_clock: PositiveRatio = Field(description="bytes of keys and values that one unit reads a clock")
    tile: Whole = Field(default=64, gt=0, description="keys that one pass of the loop handles")
    splits_up_to: Whole = Field(default=256, gt=0, description="blocks among which the keys of a head are divided at most")
    latent_heads: Whole | None = Field(
        default=None, gt=0, description="query heads of a block where all heads share latents; absent: the kernel is not for these"
    )
    split: Time = Field(description="extra time where several blocks share the keys of a head")
    regroup: Time = Field(default=NONE, description="time to copy queries together where a sample has several groups of heads")
    groups_heads: Literal["always", "never", "full"] = Field(
        default="always",
        description="query heads of a group share a block, and keys are split: always, never, or only groups of several that see all keys",
    )
    narrow_products: Flag = Field(default=False, description="products have 8 bits where the cache has")
    vector: Flag = Field(
        default=False,
        description="products run on the vector units, without padding of rows; `matrix` is a share of the peak of those in fp32 then",
    )


class LatentKernel(FileModel):
    """Attention of one query a sample to latents that all of its heads share (DeepSeek-V2), whose loads are balanced over all units."""

    rows: Whole = Field(default=64, gt=0, description="query heads that one block works on; fewer are padded")
    matrix: PositiveRatio = Field(description="share of the 16-bit matrix peak, at the clock that power sustains, that products reach")
    narrow: PositiveRatio = Field(default=ONE, description="rate of products where the cache has 8 bits, over that where it has 16")
    memory: PositiveRatio = Field(description="rate at which latents stream, over that of matrix products")


class AttentionLibrary(FileModel):
    """Kernels of one library on one generation of devices; absent where it has none, or none were measured."""

    known_as: tuple[str, ...] = Field(default=(), description="what tables of measurements call it")
    prefill: PrefillKernel | None = Field(default=None, description="attention of many queries a sample, forward")
    decode: DecodeKernel | None = Field(default=None, description="attention of one query a sample, of a cache")
    latent: LatentKernel | None = Field(default=None, description="the same of latents, of all the keys that lie in the cache")


class TokenCopies(FileModel):
    """How units of a device copy tokens that go once to each node, and from there once to each rank, that holds any of their experts."""

    start: Time = Field(description="time in which a unit begins the copy of a token")
    rate: Bandwidth = Field(description="rate at which a unit copies")
    forwarded: Ratio = Field(default=ONE, description="time of copies that a node takes in and hands on, over that of copies inside a node")


class HeldUnits(FileModel):
    """For how long kernels that send and receive with low latency keep all units of a device; while tokens travel, they keep none."""

    start: Time = Field(description="of both kernels, whatever they send")
    rate: Bandwidth = Field(description="at which they write and read what travels, all copies of a token counted")


class ExchangeKernel(FileModel):
    """How a library sends tokens to their experts, or back (see `crossflow.cost.exchange`)."""

    copies: TokenCopies | None = Field(
        default=None, description="how units copy tokens that go once; a copy goes to every expert where absent"
    )
    start: Time = Field(description="time of an exchange of nothing")
    expert: Time = Field(description="further time per expert of the layer: counts that every pair of ranks waits for")
    node_step: Time = Field(description="further time per doubling of the nodes")
    first_token: Bandwidth = Field(description="rate at which the first token passes the buffers")
    link: PositiveRatio = Field(description="share of the links' rate inside a node")
    network: PositiveRatio = Field(description="share of the rate of the network")
    crowd: PositiveRatio | None = Field(default=None, description="other nodes that halve the rate of the network when all send at once")
    fill: Time = Field(description="time in which the chain of steps fills")
    held: HeldUnits | None = Field(
        default=None, description="low latency: how long sending and receiving keep all units, beside which no kernel of another batch runs"
    )


class ExchangeLibrary(FileModel):
    """A library of expert exchanges on one generation of devices."""

    units: PositiveCount = Field(description="units that copy in the normal method")
    notify: Time = Field(description="time before a dispatch of the normal method in which ranks tell how many tokens they send")
    dispatch: ExchangeKernel = Field(description="normal method, for many tokens")
    combine: ExchangeKernel = Field(description="the way back")
    fast_dispatch: ExchangeKernel = Field(description="low latency, for few tokens")
    fast_combine: ExchangeKernel = Field(description="the way back")


class KernelLibraries(FileModel):
    """Code for one generation of devices that was measured there, by name; a software stack says which it uses (`KernelChoice`)."""

    products: Mapping[ProductLibraryName, ProductLibrary] = Field(default={}, description="of matrix products")
    attention: Mapping[AttentionLibraryName, AttentionLibrary] = Field(default={}, description="of fused attention in serving")
    experts: Mapping[ExpertLibraryName, Mapping[str, ExpertLibrary]] = Field(
        default={}, description="of fused layers of experts, each by the data type in which it multiplies"
    )
    exchange: Mapping[ExchangeLibraryName, ExchangeLibrary] = Field(default={}, description="of exchanges of tokens between experts' ranks")
    widening: Mapping[WideningLibraryName, WideningLibrary] = Field(
        default={}, description="of matrix products that widen weights of few bits as they read them"
    )


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
    working_share: Share | None = Field(
        default=None,
        description="share of that power which units draw while they work, whatever they compute: clocks, schedulers, registers;"
        " the rest is of operations. Needs `chip_power`; part of the operations where absent",
    )
    training_sensitivity: Ratio = Field(
        default=ONE,
        description="how many times larger the `product_slowdown` of a software stack is here than on the A100, for which stacks state it",
    )
    variation: Ratio = Field(
        default=np.array([0.0]),
        description="standard deviation over mean of the rates that devices of one kind keep under load; a training step waits for the"
        " slowest of all its devices. What those of a node of eight lose so is part of what software loses",
    )
    earlier_instructions: Share = Field(default=ONE, description="share of the matrix rate that instructions of earlier generations reach")
    scan_utilisation: Share | None = Field(
        default=None,
        description="share of the sustained matrix rate that the kernels of a scan of Mamba-2 reach (state-space duality, mamba_ssm), "
        "whose products are small and wait for decays of all pairs of tokens; that of fused attention where absent, as for other scans",
    )
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
