"""Data types: how many bits of memory an element takes, its share of the scales among them, and what a multiplier sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

RateOf = TypeVar("RateOf")


@dataclass(frozen=True, kw_only=True)
class Format:
    """How elements of a data type lie in memory, and of what they consist."""

    bits: int  # of one element. [bit]
    # block, scale: elements that share a scale, and bits of what they share: the scale and, of integers, a zero point. Both are 0 where a
    # whole tensor shares one scale, which counts nothing.
    block: int = 0
    scale: int = 0
    two_level: bool = False  # whether blocks have a scale and the tensor has another one, which must be known before
    like: str = ""  # type at whose rate it multiplies, for one that devices do not list by itself
    # significand: bits that are multiplied, the hidden one among them, or all of an integer. exponent: bits of an element's own exponent,
    # 0 of integers. Of types with two layouts (fp8, fp6) the larger of each: units take both.
    significand: int = 0
    exponent: int = 0
    # scale_exponent, scale_significand: bits of a block's scale that units apply; both are 0 where software does.
    scale_exponent: int = 0
    scale_significand: int = 0

    @property
    def size(self) -> float:
        """Size of an element with its share of the scale. [B]"""
        return (self.bits + (self.scale / self.block if self.block else 0.0)) / 8.0


# MX types: OCP Microscaling Formats (MX) Specification v1.0, 2023, Sec. 5.2: 32 elements share 8 bits.
# nvfp4: arXiv:2509.25149, Sec. 2: 16 elements share an fp8 scale, a tensor an fp32 one.
# fp8_block: DeepSeek-V3 (arXiv:2412.19437, Sec. 3.3.2): blocks of 128 x 128 weights share an fp32 scale.
# int4: checkpoints of AWQ (arXiv:2306.00978) and GPTQ (arXiv:2210.17323): 128 elements share an fp16 scale and a zero point of 4 bits.
# int4_64: the same with `group_size: 64`.
# int4_32: compressed-tensors with `group_size: 32` and `symmetric: true`, as moonshotai publishes Kimi K2 Thinking and K2.5.
# mxfp6: E2M3 and E3M2. Significands and exponents: IEEE 754, the OCP specifications of 8-bit floating point (2023) and of MX.
FORMATS: Mapping[str, Format] = {
    "fp64": Format(bits=64, significand=53, exponent=11), "fp32": Format(bits=32, significand=24, exponent=8),
    "tf32": Format(bits=32, significand=11, exponent=8), "fp16": Format(bits=16, significand=11, exponent=5),
    "bf16": Format(bits=16, significand=8, exponent=8), "int32": Format(bits=32, significand=32), "int8": Format(bits=8, significand=8),
    "fp8": Format(bits=8, significand=4, exponent=5),
    "mxfp8": Format(bits=8, block=32, scale=8, significand=4, exponent=5, scale_exponent=8),
    "mxfp6": Format(bits=6, block=32, scale=8, significand=4, exponent=3, scale_exponent=8),
    "int4": Format(bits=4, block=128, scale=20, significand=4),
    "int4_64": Format(bits=4, block=64, scale=20, like="int4", significand=4),
    "int4_32": Format(bits=4, block=32, scale=16, like="int4", significand=4),
    "mxfp4": Format(bits=4, block=32, scale=8, significand=2, exponent=2, scale_exponent=8),
    "nvfp4": Format(bits=4, block=16, scale=8, two_level=True, significand=2, exponent=2, scale_exponent=4, scale_significand=4),
    "fp8_block": Format(bits=8, block=128 * 128, scale=32, like="fp8", significand=4, exponent=5),
}  # fmt: skip
DTYPE_BYTES: Mapping[str, float] = {name: one.size for name, one in FORMATS.items()}
HALF = 2.0  # size of an element in 16 bits [B]
STRUCTURED = " 2:4"  # ends the name of a type of weights of which two in every four are kept, each with the place that it had
PLACE = 2  # bits of the place of a weight that is kept among its four. [bit]


def structured(dtype: str) -> str:
    """Type of weights with 2:4 sparsity.

    >>> structured("bf16"), without_structure("bf16 2:4"), without_structure("bf16")
    ('bf16 2:4', 'bf16', 'bf16')
    """
    return dtype + STRUCTURED


def without_structure(stored: str) -> str:
    """Type of the weights that are kept."""
    return stored.removesuffix(STRUCTURED)


def _structured_size(form: Format) -> float:
    """Size of a weight with its share of places and scales, those that are not kept counted, too [1]_, Sec. 2. [B]

    Half of the weights are kept, each with two bits that say its place among four; pairs of two weights of 4 bits have one place [2]_, and
    so half of that. Scales that units apply are as many as of other weights that are kept; those that software applies are as before.

    References
    ----------
    .. [1] Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, 2021.
    .. [2] NVIDIA, "PTX ISA 8.8", Sec. 9.7.14.6, "Sparse matrix storage": 4:8 in pairs for types of 4 bits.
    """
    places = PLACE / 2.0 if form.bits > 4 else PLACE / 4.0
    scales = form.scale / form.block if form.block else 0.0
    return (form.bits / 2.0 + places + scales * (0.5 if form.scale_exponent else 1.0)) / 8.0


STORED_BYTES: Mapping[str, float] = {  # of elements in memory, weights with 2:4 sparsity among them
    **DTYPE_BYTES, **{structured(name): _structured_size(one) for name, one in FORMATS.items() if one.bits <= 16},
}  # fmt: skip


def with_like(rates: Mapping[str, RateOf]) -> dict[str, RateOf]:
    """Rates by data type with those of the types that multiply like a listed one and are not listed themselves.

    >>> with_like({"fp8": 2.0})
    {'fp8': 2.0, 'fp8_block': 2.0}
    """
    return {**rates, **{dtype: rates[form.like] for dtype, form in FORMATS.items() if form.like in rates and dtype not in rates}}


def kept_bytes(dtype: str) -> float:
    """Size of what products read and write besides weights: their own type, or 16 bits where that is narrower. [B]

    >>> kept_bytes("fp32"), kept_bytes("bf16"), kept_bytes("fp8")
    (4.0, 2.0, 2.0)
    """
    return max(DTYPE_BYTES[dtype], HALF)
