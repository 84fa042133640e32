"""A model in two: what stays where requests attend, and what lies with the experts, where the two have devices of their own [1]_ [2]_.

Attention keeps embedding and head, attention and state spaces, and of what follows them norm, residual and router, which says where a
token goes. Experts, shared experts and dense MLPs lie with the others. Both halves have the units of the whole model in the same places,
some of them empty, so that each unit of the model is that of one half and of the other together.

References
----------
.. [1] Zhu et al., "MegaScale-Infer: Serving Mixture-of-Experts at Scale with Disaggregated Expert Parallelism", 2025, arXiv:2504.02263.
.. [2] StepFun, "Step-3 is Large yet Affordable: Model-system Co-design for Cost-effective Decoding", 2025, arXiv:2507.19427.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from crossflow.base.arrays import once
from crossflow.workload.transformer import FEED_FORWARD, Layer, Matrix, Part, Transformer


@once
def both_sides(model: Transformer) -> tuple[Transformer, Transformer]:
    """What attention keeps of a model, and what the experts' devices hold."""
    away = Part(type="embedding", width=model.embedding.width, side="experts")
    return (
        replace(model, layers=_layers(model, _attending)),
        replace(model, layers=_layers(model, _feeding), embedding=away, head=replace(away, type="head"), tied=False),
    )


def feeds(part: Part) -> bool:
    """Whether a part is one of those that lie with the experts."""
    return part.type in FEED_FORWARD


def _layers(model: Transformer, of: Callable[[Part], Part]) -> tuple[Layer, ...]:
    """Groups of layers with one half of each part; groups that share their parts still do."""
    halves = {id(layer.parts): tuple(map(of, layer.parts)) for layer in model.layers}
    return tuple(replace(layer, parts=halves[id(layer.parts)]) for layer in model.layers)


def _attending(part: Part) -> Part:
    if not feeds(part):
        return part
    kept = tuple(matrix for matrix in part.matrices if not _goes(matrix))
    return replace(part, matrices=kept, inner=0, gated=False, limited=False, latent=0, routing=None, side="attention")


def _feeding(part: Part) -> Part:
    if not feeds(part):
        return Part(type=part.type, width=part.width, side="experts")
    return replace(part, matrices=tuple(filter(_goes, part.matrices)), vectors=0, streams=0, sources=0.0, adaptive=False, side="experts")


def _goes(matrix: Matrix) -> bool:
    """Whether a matrix of a feed-forward part lies with the experts: all but the router, projections to a latent, and mixtures."""
    return matrix.routed or matrix.name.removeprefix("shared_") in ("up", "down")
