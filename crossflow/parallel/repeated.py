"""What a backward pass computes again by itself: modules of a layer that a software stack never keeps, or that plans say.

Where whole layers are computed again their modules are not by themselves. A part that is computed again as a whole holds its modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import RepeatedModule
from crossflow.workload.transformer import Matrix, Part

if TYPE_CHECKING:
    from crossflow.hardware.architecture.software import Module, SoftwareStack

# norm: outputs of norms; latent: queries, keys and values made of latents; activation: what follows the activation of dense MLPs and
# shared experts, routed: of routed experts; product: every second product; attention: fused attention; output: its last product; shared:
# shared experts; mlp, experts: whole parts.
Repeat = Literal["norm", "latent", "activation", "routed", "product", "attention", "output", "shared", "mlp", "experts"]
# The modules of stacks and of plans that say so.
SAID: Mapping[Repeat, tuple[Module | None, RepeatedModule | None]] = {
    "norm": ("norm", "layernorm"), "latent": ("latent", "mla_up_proj"),
    "activation": ("activation", None), "routed": ("activation", "moe_act"),
    "product": ("product", None), "attention": ("attention", None), "output": ("output", None), "shared": (None, "shared_experts"),
    "mlp": ("mlp", "mlp"), "experts": ("experts", "moe"),
}  # fmt: skip
WHOLE: tuple[Repeat, ...] = ("mlp", "experts")  # parts that may be computed again as a whole


def repeats(what: Repeat, layout: Layout, stack: SoftwareStack) -> Array:
    """Whether something is computed again by itself, 1 or 0, shape (n,), or (1,) where no plan says so. [1]"""
    always, said = SAID[what]
    if always in stack.recomputed:
        return np.ones(1)
    return layout.repeated[said].astype(float) if said is not None and said in layout.repeated else np.zeros(1)


def whole_again(part: Part, layout: Layout, stack: SoftwareStack) -> Array:
    """Whether a part is computed again as a whole, shape (n,) or (1,). [1]"""
    return next((repeats(what, layout, stack) for what in WHOLE if what == part.type), np.zeros(1))


def shares_again(part: Part, matrix: Matrix, layout: Layout, stack: SoftwareStack) -> Array:
    """Share of a matrix whose product a backward pass does again by itself, shape (n,) or (1,). [1]

    With ``product`` it is every second product of a part; queries, keys, values and the two branches of a gated MLP count as products of
    their own. So it is the keys and the output of attention, and of an MLP its second branch, or its output where it has one branch
    (torchtitan, `selective_ac_option = "op"`).
    """
    if np.any(matrix.adapters):
        return np.zeros(1)
    alone = 1.0 - whole_again(part, layout, stack)
    if makes_heads(part, matrix):
        return repeats("latent", layout, stack)
    if matrix.name.startswith("shared_"):
        return repeats("shared", layout, stack) * alone
    if part.attention is not None and matrix.name == "output" and np.any(last := repeats("output", layout, stack)):
        return last
    if part.type not in ("attention", "mlp") or not np.any(every := repeats("product", layout, stack)):
        return np.zeros(1)
    return every * alone * _odd(part, matrix)


def makes_heads(part: Part, matrix: Matrix) -> bool:
    """Whether a product makes queries, or keys and values, of latent attention (Megatron-Core's `mla_up_proj`)."""
    latent = part.attention is not None and part.attention.shares_latent
    return latent and matrix.name in ("query", "query_up", "key_value_up")


def _odd(part: Part, matrix: Matrix) -> float:
    """Share of a matrix that is every second of its part's products. [1]"""
    attention, first = part.attention, 0
    for one in part.matrices:
        if np.any(one.adapters):
            continue
        widths: list[float] = [one.n]
        if one.name == "query_key_value" and attention is not None and attention.makes:
            widths = [attention.heads * attention.query, attention.kv_heads * attention.query, attention.kv_heads * attention.value]
        elif one.name == "up" and part.gated:
            widths = [one.n / 2, one.n / 2]
        if one is matrix:
            return sum(width for i, width in enumerate(widths, start=first) if i % 2) / sum(widths)
        first += len(widths)
    return 0.0
