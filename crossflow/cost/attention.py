"""Fused attention of serving engines, as the kernels of measured libraries run it (`crossflow.hardware.architecture.execution`).

A kernel cuts its work into blocks that pass over keys. In prefill a block has some rows of queries: of one head, or of all query heads of
a key-value head. In decode it has the one query of each head of a group, padded to the rows of a matrix instruction, and where there are
few heads several blocks share the keys [1]_, [2]_. Kernels that take each head by itself multiply on the vector units instead [4]_: 128
fused multiply-adds a clock and unit on Ada, Hopper and Blackwell alike, whose matrix units differ eightfold. A block takes as long as its
loop over tiles of keys, products and softmax, and a time of its own. Blocks share the units: the longest of them and the sum over the
units combine with exponent 1.5, and what memory takes joins with exponent 3 (exponents are fixed). Operands that fit the last cache need
not come from memory. Where an engine writes new keys and values in a kernel of its own, that takes at least the gap between two kernels
of a captured graph.

References
----------
.. [1] Dao, "FlashAttention-2", ICLR 2024, Sec. 3; Shah et al., "FlashAttention-3", arXiv:2407.08608, Sec. 3.1: softmax beside products.
.. [2] Dao et al., "Flash-Decoding for long-context inference", 2023 (crfm.stanford.edu/2023/10/12/flashdecoding.html).
.. [3] NVIDIA, CUDA C++ Programming Guide, "Arithmetic Instructions": 16 exponentials a clock and unit on compute capability 8.0 to 10.0;
   twice as many on 10.3 ("Making Softmax More Efficient with NVIDIA Blackwell Ultra", NVIDIA Technical Blog, February 2026).
.. [4] NVIDIA, TensorRT-LLM, decoderMaskedMultiheadAttentionTemplate.h: fused multiply-adds, sums in 32 bits (MMHA_USE_FP32_ACUM_FOR_FMA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.base.formats import DTYPE_BYTES, HALF
from crossflow.cost.roofline import KernelCosts, vector_rate, wide_type
from crossflow.hardware.architecture.execution import USUAL, DecodeKernel, FusedKernel, LatentKernel, PrefillKernel, width_rate
from crossflow.hardware.architecture.model import Architecture
from crossflow.program.kernels import Attention, KernelTable, masked_pairs, seen_pairs

TILE = 128.0  # keys that one pass of a loop over keys handles in prefill [1]
PADDED = 16.0  # rows of a matrix instruction: m16n8k16 of PTX [1]
WIDEST = 512.0  # elements of a head, the most that were measured: attention to latents has kernels of its own
LEAST = 1.25  # of the elements of a query and a value over those of a query: values have two thirds of a query's or as many
SPLITS = 2.0 ** np.arange(9)
SHARING, STREAMING = 1.5, 3.0  # exponents that combine the longest block with the sum of all, and both with memory


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls of fused attention; arrays that broadcast to (kernels, n)."""

    samples: Array
    heads: Array
    kv_heads: Array
    length: Array  # queries of a sample
    seen: Array  # keys of a sample
    width: Array  # elements of a query
    window: Array  # tokens that a query sees at most, 0 for no window
    causal: Mask
    chunked: Mask
    backward: Mask
    decode: Mask  # with one query a sample, of a cache
    narrow: Mask  # whether the cache has 8 bits
    narrow_products: Mask  # whether the model multiplies in 8 bits
    both: Array  # elements of a query and a value
    ends: Array  # queries and outputs. [B]
    kept: Array  # keys and values that are read. [B]
    # Conditions of a measurement.
    warm: bool = False  # keys and values of earlier tokens were just read
    # time of a call in which the clock of a device that was idle has come half of the way down to what power sustains; 0 for long runs [s]
    settling: Array | float = 0.0
    unwritten: Mask | bool = False  # calls that do not write to the cache
    chosen: Mask | bool = False  # calls in which each query has keys of its own

    @property
    def group(self) -> Array:
        """Query heads a head of keys and values. [1]"""
        return self.heads / self.kv_heads

    def alike(self, kernel: FusedKernel) -> Mask:
        """Which calls are of the kind that a kernel is for, prefill or decode of plain heads, whether it serves them or not.

        Scores without values, as those of an indexer, and queries that attend to few chosen keys have fewer operations than such heads.
        """
        mine = self.decode if isinstance(kernel, DecodeKernel) else ~self.decode
        return np.asarray(~self.backward & mine & (self.width <= WIDEST) & (self.both > LEAST * self.width))

    @property
    def latent(self) -> Mask:
        """Which calls are of queries whose heads share all the latents in the cache: one a sample, or those that are verified."""
        shared = (self.width > WIDEST) & (self.kv_heads <= 1) & (self.both > LEAST * self.width)
        return np.asarray(~self.backward & shared & (self.window <= 0) & ~np.asarray(self.chosen))

    def served(self, kernel: FusedKernel) -> Mask:
        """Which calls a kernel serves, shape (kernels, n)."""
        found = self.alike(kernel)
        if kernel.groups is not None:
            least, most = kernel.groups
            found = found & (self.group >= least) & (self.group <= most)
        if kernel.widths:
            found = found & np.isin(self.width, kernel.widths)
        kinds = np.where(self.narrow, "narrow" in kernel.cache, "wide" in kernel.cache)
        return np.asarray(found & kinds)


def calls_of(table: KernelTable, dtype: str) -> Calls:
    """Calls of a table of fused attention in a program of a data type; what rows state of their work holds."""
    rows = [row for row in table.rows if isinstance(row, Attention)]
    (flops, moved, _), (samples, heads, kv_heads, length, seen, width, window) = table.attention[0], table.sizes
    flags = ("causal", "chunked", "backward", "chosen")
    causal, chunked, backward, chosen = (np.array([[getattr(row, flag)] for row in rows]) for flag in flags)
    pairs = seen_pairs(length, seen, window, causal=causal, chunked=chunked)
    both = flops / (2.0 * samples * heads * pairs)
    ends = samples * heads * length * both * table.element
    narrow = np.array([[bool(row.stored) and DTYPE_BYTES[row.stored] < HALF] for row in rows])
    return Calls(
        samples=samples, heads=heads, kv_heads=kv_heads, length=length, seen=seen, width=width, window=window, causal=causal,
        chunked=chunked, backward=backward, decode=length <= 1, narrow=narrow, narrow_products=narrow & (DTYPE_BYTES[dtype] < HALF),
        both=both, ends=ends, kept=np.maximum(moved - ends, 0.0), chosen=chosen,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CallTimes:
    """What calls of a kernel take; arrays of shape (kernels, n). [s]"""

    blocks: Array  # of the units
    memory: Array
    around: Array  # further kernels
    start: Array  # in which nothing runs
    share: Array  # of the units that work. [1]
    flops: Array  # operations on whole tiles, with what is masked and padded. [flop]


def together(first: Array, second: Array, exponent: float) -> Array:
    """Time of two things of which neither hides the other entirely: the exponent-th root of the sum of their powers. [s]"""
    return np.asarray((first**exponent + second**exponent) ** (1.0 / exponent))


def missed(moved: Array, architecture: Architecture) -> Array:
    """Share of operands that comes from memory although they were just written or read: what the last cache does not hold. [1]"""
    if len(architecture.levels) < 2:
        return np.ones(1)
    cache = architecture.levels[-2]
    return np.asarray(1.0 / (1.0 + (cache.capacity * cache.instances / np.maximum(moved, 1.0)) ** 3))


def _rate(calls: Calls, kernel: FusedKernel, architecture: Architecture) -> Array:
    """Rate of one unit in the products of the loop. [flop/s]"""
    rates, type_ = architecture.throughput, wide_type(architecture, "fp8")
    if isinstance(kernel, DecodeKernel) and kernel.vector:
        units = architecture.vector_throughput.get("fp32", vector_rate(architecture, type_))
        return np.asarray(units * kernel.matrix * width_rate(kernel.by_width, calls.width) / architecture.units)
    wide = rates[type_]
    rate = wide * kernel.matrix * width_rate(kernel.by_width, calls.width)
    if isinstance(kernel, PrefillKernel) and kernel.narrow is not None:
        narrow = calls.narrow if kernel.narrow_from == "cache" else calls.narrow_products
        share = kernel.narrow * width_rate(kernel.narrow_by_width or kernel.by_width, calls.width)
        rate = np.where(narrow, rates.get("fp8", wide) * share, rate)
    if isinstance(kernel, DecodeKernel) and kernel.narrow_products:
        rate = np.where(calls.narrow, rate * rates.get("fp8", wide) / wide, rate)
    return np.asarray(rate / architecture.units)


def prefill_times(calls: Calls, kernel: PrefillKernel, architecture: Architecture) -> CallTimes:
    """What calls with many queries a sample take: blocks of rows of queries over their keys."""
    memory = architecture.memory.bandwidth
    packed = np.where(kernel.packs | (calls.length <= 1), calls.group, 1.0)
    queries = np.maximum(kernel.rows / packed, 1.0)
    many = calls.samples * calls.heads / packed * np.maximum(packed / kernel.rows, 1.0) * np.ceil(calls.length / queries)
    mean, most = _keys(calls, kernel, queries)
    products, softmax = 2.0 * calls.both / _rate(calls, kernel, architecture), 1.0 / (architecture.exponentials * architecture.frequency)
    key = kernel.rows * np.hypot(products, softmax)
    sum_of_all = many / architecture.units * (mean * key + kernel.block)
    moved = calls.ends + calls.kept
    fresh = missed(moved, architecture)
    stream = moved * fresh / (memory * kernel.memory)
    new = calls.samples * calls.kv_heads * calls.length * calls.both
    copied = np.where(calls.unwritten, 0.0, new * (HALF + np.where(calls.narrow, 1.0, HALF)))
    cast = calls.narrow | calls.narrow_products
    copied = copied + np.where(cast, 0.75 * calls.ends, 0.0)
    around = (
        copied * fresh / (memory * kernel.writing) + np.where(cast, kernel.quantise, 0.0) + np.where(calls.unwritten, 0.0, kernel.write)
    )
    found = CallTimes(
        blocks=together(most * key * kernel.lone, sum_of_all, SHARING),
        memory=stream,
        around=around,
        start=kernel.start,
        share=np.minimum(many / architecture.units, 1.0),
        flops=2.0 * calls.both * kernel.rows * mean * many,
    )
    return _throttled(found, kernel, calls, architecture)


def _keys(calls: Calls, kernel: PrefillKernel, queries: Array) -> tuple[Array, Array]:
    """Keys that blocks of so many queries pass over in the mean and at most, in whole tiles, shape (kernels, n). [1]"""
    new, before = (TILE * np.ceil(tokens / TILE) for tokens in (calls.length, np.maximum(calls.seen - calls.length, 0.0)))
    whole = before + new
    cut = (calls.window > 0) & (calls.window < calls.seen) & kernel.skips
    reach = np.where(cut, np.minimum(TILE * np.ceil((calls.window + queries) / TILE + 0.5), whole), whole)
    pairs = masked_pairs(whole, reach, calls.chunked) - masked_pairs(before, reach, calls.chunked)
    mean = np.minimum(pairs / new + TILE / 2.0, reach)
    every = TILE * np.ceil(calls.seen / TILE)
    return np.where(calls.causal, mean, every), np.where(calls.causal, reach, every)


def _throttled(parts: CallTimes, kernel: PrefillKernel, calls: Calls, architecture: Architecture) -> CallTimes:
    """The same at the clock that the kernels sustain, or that a device which was idle has left after them."""
    fall = kernel.throttled * (1.0 - architecture.sustained_clock)
    time = np.maximum(parts.blocks, parts.memory) + parts.around + parts.start
    slower = 1.0 - fall * time / (time + calls.settling)
    return replace(parts, blocks=parts.blocks / slower)


def decode_times(calls: Calls, kernel: DecodeKernel, architecture: Architecture) -> CallTimes:
    """What calls with one query a sample take: blocks of keys; the best number of blocks for the keys of a head is taken."""
    memory, tile = architecture.memory.bandwidth, float(kernel.tile)
    limit = np.where(calls.window > 0, np.minimum(calls.seen, calls.window), calls.seen)
    keys = np.maximum(limit, 1.0)
    alone = np.full(np.shape(keys), kernel.groups_heads == "never")
    if kernel.groups_heads == "full":
        alone = alone | (calls.window > 0) | (calls.group <= 1)
    rows, heads = np.where(alone, 1.0, calls.group), np.where(alone, calls.heads, calls.kv_heads)
    a_key = calls.kept / (calls.samples * calls.kv_heads * np.maximum(calls.seen, 1.0))  # of one head [B]
    reads = a_key / (kernel.cache_bytes_per_clock * architecture.frequency)
    multiplied = rows if kernel.vector else _padded(rows)
    multiplies = 2.0 * calls.both * multiplied / _rate(calls, kernel, architecture)
    key = np.hypot(reads / width_rate(kernel.by_width, calls.width), multiplies)
    block = kernel.block + kernel.row * rows * calls.both / (2.0 * USUAL)
    held = calls.kept * np.minimum(keys / np.maximum(calls.seen, 1.0), 1.0)
    stream = (held * (missed(held, architecture) if calls.warm else 1.0) + calls.ends) / (memory * kernel.memory)
    best, share = np.full(np.shape(stream), np.inf), np.zeros(np.shape(stream))
    for split in SPLITS[kernel.splits_up_to >= SPLITS]:
        some = tile * np.ceil(keys / (split * tile)) * key
        filled = calls.samples * heads * split / architecture.units
        through = filled * (some + block)
        time = together(some + block, through, SHARING) + (kernel.split if split > 1 else 0.0)
        time = np.where((split == 1) | ~alone, time, np.inf)
        share = np.where(time < best, np.minimum(filled, 1.0), share)
        best = np.minimum(best, time)
    several = (calls.samples > 1) & (calls.kv_heads > 1) & (calls.group > 1) & ~alone
    around = np.where(calls.narrow, kernel.quantise, 0.0) + np.where(several, kernel.regroup, 0.0)
    around = around + np.where(calls.unwritten, 0.0, kernel.write)
    flops = 2.0 * calls.both * calls.samples * heads * multiplied * tile * np.ceil(keys / tile)
    return CallTimes(blocks=best, memory=stream, around=around, start=kernel.start, share=share, flops=flops)


def _padded(rows: Array) -> Array:
    """Rows of the matrix instructions that multiply so many. [1]"""
    return np.asarray(PADDED * np.ceil(rows / PADDED))


def times_of(calls: Calls, kernel: PrefillKernel | DecodeKernel, architecture: Architecture) -> CallTimes:
    """What calls of a kernel take."""
    if isinstance(kernel, PrefillKernel):
        return prefill_times(calls, kernel, architecture)
    return decode_times(calls, kernel, architecture)


def library_attention_costs(
    calls: Calls, kernels: Sequence[PrefillKernel | DecodeKernel], otherwise: KernelCosts, architecture: Architecture,
    gap: Array | float = 0.0, others: Sequence[PrefillKernel | DecodeKernel] = (),
) -> KernelCosts:  # fmt: skip
    """Costs of attention by the first kernel that serves each call; where none does, by the fastest of others; else `otherwise`.

    Parameters
    ----------
    others : kernels that were measured on such devices, of which the fastest stands in for one that was not.
    otherwise : costs of the same kernels without libraries; operations and traffic of main memory are theirs.
    gap : time before each kernel beyond its library's own, where the host launches it. [s]
    """
    found, open_ = otherwise, np.ones(np.broadcast_shapes(otherwise.time.shape, calls.decode.shape), dtype=bool)
    for kernel in kernels:
        mine = open_ & calls.served(kernel)
        if mine.any():
            found = _where(mine, _costs(times_of(calls, kernel, architecture), otherwise, architecture, gap), found)
            open_ = open_ & ~mine
    best = np.full(open_.shape, np.inf)
    for kernel in others:
        if (open_ & calls.alike(kernel)).any():
            costs = _costs(times_of(calls, kernel, architecture), otherwise, architecture, gap)
            mine = open_ & calls.alike(kernel) & (costs.time < best)
            found, best = _where(mine, costs, found), np.where(mine, costs.time, best)
    return found


def latent_costs(calls: Calls, kernel: LatentKernel, otherwise: KernelCosts, architecture: Architecture) -> KernelCosts:
    """Costs of attention to latents by a kernel of its own [1]_, `otherwise` for all other calls.

    Blocks of 64 query heads, of one query or several, pass over the latents, which are keys and values at once, and a schedule shares
    their work evenly over the units. Products reach a share of the peak at the clock that power sustains, where memory keeps up.

    References
    ----------
    .. [1] J. Li, S. Liu, "A Deep-Dive Into the New Flash MLA Kernel", DeepSeek, 22 April 2025 (github.com/deepseek-ai/FlashMLA, docs).
    """
    rates = architecture.throughput
    rate = rates[wide_type(architecture, "fp8")] * architecture.sustained_clock * kernel.matrix * np.where(calls.narrow, kernel.narrow, 1.0)
    rows = calls.heads * calls.length
    padded = kernel.rows * np.ceil(rows / kernel.rows) / rows
    compute, memory = otherwise.flops * padded / rate, otherwise.traffic[-1] / (architecture.memory.bandwidth * kernel.memory)
    busy = np.maximum(compute, memory)
    times = np.zeros((len(otherwise.resource_times), *busy.shape))
    times[0], times[-1] = compute, memory
    beside = otherwise.flops * (padded - 1.0) * architecture.energy_per_flop[wide_type(architecture, "fp8")]
    found = replace(
        otherwise, time=busy + otherwise.launch, resource_times=times, energy=otherwise.energy + beside, working=np.asarray(busy)
    )
    return _where(calls.latent, found, otherwise)


def shared_decode_costs(
    calls: Calls, kernel: DecodeKernel, otherwise: KernelCosts, architecture: Architecture, gap: Array | float = 0.0
) -> KernelCosts:
    """Costs of attention to latents by a kernel that was measured with plain heads, `otherwise` for all other calls.

    It takes the query heads by some (`latent_heads`), and each such block reads the latents as keys; main memory gives them once, as these
    blocks follow each other closely (SGLang, `_fwd_grouped_kernel_stage1` of triton_ops/decode_attention.py, of which vLLM has a copy).
    """
    assert kernel.latent_heads is not None  # or it is no kernel of latents
    blocks = np.ceil(calls.heads / kernel.latent_heads)
    parts = decode_times(replace(calls, kv_heads=blocks, kept=calls.kept * blocks), kernel, architecture)
    memory = (calls.kept + calls.ends) / (architecture.memory.bandwidth * kernel.memory)
    found = _costs(replace(parts, memory=memory), otherwise, architecture, gap)
    return _where(calls.latent & calls.decode, found, otherwise)


def _costs(parts: CallTimes, otherwise: KernelCosts, architecture: Architecture, gap: Array | float) -> KernelCosts:
    """Costs of calls by what their parts take; all that is multiplied takes energy, masked and padded operands as well."""
    launch = np.asarray(parts.start + gap)
    busy = together(parts.blocks, parts.memory, STREAMING) + parts.around
    times = np.zeros((len(otherwise.resource_times), *busy.shape))
    times[0], times[-1] = parts.blocks, parts.memory + parts.around
    traffic = np.zeros_like(otherwise.traffic)
    traffic[-1] = otherwise.traffic[-1]
    beside = np.maximum(parts.flops - otherwise.flops, 0.0) * architecture.energy_per_flop[wide_type(architecture, "fp8")]
    return replace(
        otherwise, time=busy + launch, launch=launch, resource_times=times, traffic=traffic, energy=otherwise.energy + beside,
        working=busy * parts.share,
    )  # fmt: skip


def _where(mine: Mask, these: KernelCosts, others: KernelCosts) -> KernelCosts:
    """Some costs where a mask of shape (kernels, n) holds, others elsewhere."""
    names = [field.name for field in fields(KernelCosts)]
    return KernelCosts(**{name: np.where(mine, getattr(these, name), getattr(others, name)) for name in names})
