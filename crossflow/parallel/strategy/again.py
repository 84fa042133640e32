"""What a backward pass computes again: modules that a model has, levels that are worth it, and why a plan cannot say something.

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py (`recompute_modules`), commit 002526d81b81, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import once
from crossflow.parallel.strategy.mesh import REPEATED, Recompute, RepeatedModule
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.transformer import Transformer

# What a model must have for a module of it to be computed again.
MODULE_OF: Mapping[RepeatedModule, str] = {
    "core_attn": "attention", "mla_up_proj": "latent attention", "moe_act": "experts", "shared_experts": "shared experts",
    "mlp": "MLP beside experts", "moe": "experts",
}  # fmt: skip


def not_again(plan: Plan, model: Transformer) -> str | None:
    """Why nothing of so many layers, or of such modules, can be computed again."""
    if plan.recompute_layers and plan.recompute != "full":
        return "recompute_layers says how many layers are computed again as a whole; give recompute: full too, or leave it out"
    if plan.recompute_modules and plan.recompute != "selective":
        what = "whole layers" if plan.recompute == "full" else "nothing"
        return f"recompute_modules says what recompute: selective computes again, and {plan.recompute} is {what}; leave one of them out"
    if not plan.recompute_modules:
        return None
    lacks = {name: sentence for name, sentence in MODULE_OF.items() if name not in repeatable(model)}
    missing = [name for name in plan.recompute_modules if name in lacks]
    return f"recompute_modules: {missing[0]}, but the model has no {lacks[missing[0]]}; leave it out" if missing else None


@dataclass(frozen=True, kw_only=True)
class Again:
    """What a backward pass computes again: a level, and of the selective one its modules, as in `Plan`."""

    recompute: Recompute = "none"
    modules: tuple[RepeatedModule, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Options of a plan that say this."""
        return {"recompute": self.recompute, "recompute_modules": self.modules}

    def of(self, plan: Plan) -> Plan:
        """A plan with this, of all layers."""
        return replace(plan, **self.options, recompute_layers=0)

    @property
    def holds(self) -> frozenset[str]:
        """Modules that it computes again, those inside of others among them; of whole layers all."""
        if self.recompute == "full":
            return frozenset(("layers", *REPEATED))
        given = self.of(Plan()).repeated
        return frozenset((*given, *(("moe_act", "shared_experts") if "moe" in given else ())))


NOTHING = Again()


@once
def levels(model: Transformer, *, fused: bool = False) -> tuple[Again, ...]:
    """What is worth to be computed again, from nothing to whole layers, each with more than the one before it.

    Scores, where attention is not `fused` and keeps them; modules that take little time for what they free; MLPs and layers of experts
    too, without what attention keeps.
    """
    there = [name for name in repeatable(model) if not (fused and name == "core_attn")]
    little = tuple(name for name in there if name in ("core_attn", "layernorm", "mla_up_proj", "moe_act"))
    much = tuple(name for name in there if name in ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe"))
    found = list[tuple[RepeatedModule, ...]]()
    if "core_attn" in there:
        found.append(())
    found += [modules for modules, any_of in ((little, {"mla_up_proj", "moe_act"}), (much, {"mlp", "moe"})) if any_of & set(modules)]
    return (NOTHING, *(Again(recompute="selective", modules=modules) for modules in found), Again(recompute="full"))


def further_levels(plan: Plan, model: Transformer, *, fused: bool = False) -> tuple[Again, ...]:
    """Levels that compute all of what a plan does again, and more, the mildest first."""
    mine = Again(recompute=plan.recompute, modules=plan.recompute_modules).holds
    return tuple(level for level in levels(model, fused=fused) if level.holds > mine)


@once
def repeatable(model: Transformer) -> tuple[RepeatedModule, ...]:
    """Modules of a model that selective recomputation can repeat, in the order of `REPEATED`."""
    there = {
        "core_attn": any(part.attention is not None for part in model.parts), "layernorm": True,
        "mla_up_proj": any(part.attention is not None and part.attention.shares_latent for part in model.parts),
        "moe_act": any(part.routing is not None for part in model.parts), "moe": any(part.routing is not None for part in model.parts),
        "shared_experts": any(part.routing is not None and np.any(part.shared) for part in model.parts),
        "mlp": any(part.type == "mlp" for part in model.parts),
    }  # fmt: skip
    return tuple(name for name in REPEATED if there[name])
