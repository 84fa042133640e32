"""Measured kernels of fused attention: a few physical parameters for each library and generation of devices, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from crossflow.arrays import Array, points
from crossflow.files import FileModel
from crossflow.limits import Flag, Whole
from crossflow.units import PositiveRatio, Ratio, Share, Time

NONE, ONE = points(np.zeros(1)), points(np.ones(1))
USUAL = 128  # elements of a head for which `by_width` is one
AttentionLibraryName = Literal[
    "flash-attention-2", "flash-attention-3", "flash-attention-4", "vllm-flash-attention-3", "flashinfer", "flashinfer-vllm", "triton",
    "vllm-triton",
    "trtllm-gen", "trtllm-gen-sglang", "trtllm-gen-native", "trtllm-fmha", "trtllm-xqa", "trtllm-xqa-fp8", "trtllm-mmha",
    "trtllm-mmha-fp8",
]  # fmt: skip


def width_rate(by_width: Mapping[int, Array], width: Array) -> Array:
    """Rate of a loop for heads of some elements, over that for the usual ones; a power law between those that are known. [1]"""
    if not by_width:
        return np.ones(1)
    known = dict(sorted({USUAL: 1.0, **{size: float(rate.item()) for size, rate in by_width.items()}}.items()))
    return np.asarray(np.exp(np.interp(np.log(width), np.log(list(known)), np.log(list(known.values())))))


class AttentionKernel(FileModel):
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


class PrefillKernel(AttentionKernel):
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
    softmax: PositiveRatio = Field(description="exponentials a clock of one unit, with what else the softmax of a score takes")
    writing: PositiveRatio = Field(description="rate at which further kernels copy keys, values and queries, over that of matrix products")
    throttled: Share = Field(default=NONE, description="share of the fall of the clock of long matrix products that long kernels meet too")


class DecodeKernel(AttentionKernel):
    """Attention of one query a sample: blocks of keys, for all query heads of a key-value head."""

    row: Time = Field(default=NONE, description=f"time of a block for each query head of {USUAL} elements")
    cache_bytes_per_clock: PositiveRatio = Field(description="bytes of keys and values that one unit reads a clock")
    splits_up_to: Whole = Field(default=256, gt=0, description="blocks among which the keys of a head are divided at most")
    split: Time = Field(description="extra time where several blocks share the keys of a head")
    regroup: Time = Field(default=NONE, description="time to copy queries together where a sample has several groups of heads")
    groups_heads: Literal["always", "never", "full"] = Field(
        default="always",
        description="query heads of a group share a block, and keys are split: always, never, or only groups of several that see all keys",
    )
    narrow_products: Flag = Field(default=False, description="products have 8 bits where the cache has")


class AttentionLibrary(FileModel):
    """Kernels of one library on one generation of devices; absent where it has none, or none were measured."""

    known_as: tuple[str, ...] = Field(default=(), description="what tables of measurements call it")
    prefill: PrefillKernel | None = None
    decode: DecodeKernel | None = None
