"""Ranks of servers whose attention may lie in groups with requests of their own, and whose experts lie over all ranks of a stage.

SGLang and TensorRT-LLM count the ranks of a stage as their tensor degree. crossflow counts those that share a layer of attention as `tp`
and the groups of them as `dp`; whole replicas of a server are `dp` too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossflow.edges.launch.meaning import MeantFields
from crossflow.edges.launch.settings import FlatSettings
from crossflow.parallel.strategy.plan import Plan

EXCHANGING = ("SGLang",)  # engines that divide the tokens of one group of attention over its ranks where they exchange them


@dataclass(frozen=True, kw_only=True)
class ServerRanks:
    """Ranks of a server: `width` in every stage, of which `groups` have requests of their own, and whole `replicas` of it."""

    width: int = 1
    groups: int = 1
    replicas: int = 1
    ep: int = 1  # ranks over which experts are shared out, each of them cut over the others of `width`
    exchanged: bool = False  # whether tokens of one group of attention are exchanged too, rather than all be with each of its ranks

    @property
    def tp(self) -> int:
        """Ranks that share a layer of attention."""
        return self.width // self.groups

    @property
    def divides(self) -> bool:
        """Whether the tokens between attention and experts are divided over the ranks of attention."""
        return self.tp > 1 and (self.groups > 1 or (self.exchanged and self.ep > 1))


def meant_ranks(ranks: ServerRanks, *, mixture: bool) -> MeantFields:
    """Degrees of a plan that the ranks of a server mean, for a mixture of experts or another model."""
    yield "strategy.tp", ranks.tp
    yield "strategy.dp", ranks.groups * ranks.replicas
    if not mixture:
        return
    if ranks.divides:
        yield "strategy.sequence_parallel", True
    if ranks.ep > 1:
        yield "strategy.ep", ranks.ep
    if (cut := ranks.width // ranks.ep) != ranks.tp:
        yield "strategy.etp", cut


def ranks_of(settings: FlatSettings, plan: Plan, engine: str, unsaid: list[str]) -> ServerRanks:
    """Ranks of the servers of a plan: those that share experts are one server, others are replicas of it."""
    mixture, etp = is_mixture(settings), settings["strategy.etp"] or plan.tp
    span = plan.ep * etp if mixture else plan.tp
    if span % plan.tp or (plan.dp * plan.tp) % span:
        what = f"ep: {plan.ep}, etp: {etp}"
        unsaid.append(f"{what}: experts of {engine} lie over whole groups of attention's tp: {plan.tp} ranks, and these over {span}")
        return ServerRanks(width=plan.tp, replicas=plan.dp)
    if plan.ep > 1 and not mixture:
        unsaid.append(f"ep: {plan.ep}: the model has no experts")
    ranks = ServerRanks(
        width=span, groups=span // plan.tp, replicas=plan.tp * plan.dp // span, ep=plan.ep if mixture else 1,
        exchanged=mixture and plan.ep == span and plan.sequence_parallel and engine in EXCHANGING,
    )  # fmt: skip
    divided = mixture and ranks.divides
    if plan.tp > 1 and plan.sequence_parallel != divided:
        has = f"{engine} has {str(divided).lower()} here" if mixture else f"{engine} divides the tokens of mixtures of experts only"
        unsaid.append(f"sequence_parallel: {str(plan.sequence_parallel).lower()}: {has}")
    return ranks


def is_mixture(settings: FlatSettings) -> bool:
    """Whether a model has experts."""
    return settings.get("workload.experts.count") is not None


def arrives(settings: FlatSettings) -> bool:
    """Whether requests come at a rate, which then decides how many run at once."""
    return settings.get("workload.serving.arrival_rate") is not None


def own_batches(settings: FlatSettings, plan: Plan, engine: str) -> list[str]:
    """Why an engine cannot be told to make the batches of a plan, in a sentence; it makes them of all requests at hand."""
    batch = settings["workload.global_batch"]
    whole = plan.serving(batch).micro_batch
    if arrives(settings) or plan.micro_batch == whole:
        return []
    return [f"micro_batch: {plan.micro_batch}: {engine} makes its batches of all requests at hand, {whole} here"]


def limit(settings: FlatSettings, servers: int) -> int | None:
    """Requests that one of so many servers works on at once; None where a rate decides, and the engine's own limit stays."""
    batch: int = settings["workload.global_batch"]
    return None if arrives(settings) and batch == 1 else max(batch // servers, 1)


def longest(settings: FlatSettings) -> int:
    """Tokens of a request, prompt and answer."""
    prompt: Any = settings["workload.prompt"] or settings["workload.sequence"]
    return int(prompt) + int(settings["workload.output"] or 0)
