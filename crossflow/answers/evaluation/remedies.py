"""What would make a plan fit that does not: the mildest changes of it that need less memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.evaluation.larger import fewer_requests, more_devices, possible
from crossflow.base.arrays import Array
from crossflow.base.units import show
from crossflow.cost.machine import Machine
from crossflow.engine.runs.memory import Memory, memory
from crossflow.parallel.batches import laid_out
from crossflow.parallel.strategy.again import Again, further_levels
from crossflow.parallel.strategy.mesh import FARS, OFFLOADS, divisors
from crossflow.parallel.strategy.plan import OWN_TENSOR, Plan
from crossflow.workload.job import Job

# From those that cost little to those that lay the plan out anew.
CHANGES = ("micro_batch", "recompute", "zero", "unsharded", "offload", "far", "stage_layers", "ep", *OWN_TENSOR.values(), "tp", "pp")
_SHARED_OUT = frozenset(("zero", "ep", *OWN_TENSOR.values(), "tp", "pp"))  # changes that make devices send each other something


class Remedy(str):
    """A sentence that says what would make a plan fit, with the settings of a scenario that do it."""

    __slots__ = ("settings",)
    settings: Mapping[str, Any]

    def __new__(cls, sentence: str, settings: Mapping[str, Any] | None = None) -> Remedy:
        """Remedy of a sentence, and of no settings where it only says what lacks."""
        made = super().__new__(cls, sentence)
        made.settings = settings or {}
        return made


@dataclass(frozen=True, kw_only=True)
class _Change:
    """A plan that needs less memory than another: which keys differ, and how a sentence says so."""

    keys: tuple[str, ...]
    text: str
    plan: Plan


def remedies(job: Job, plan: Plan, batch: int, machine: Machine, *, whole: bool = False) -> tuple[Remedy, ...]:
    """What would make a plan fit that does not, on as many devices: of each kind of change the mildest that is enough.

    A smaller microbatch, recomputation, a higher ZeRO stage, the host's memory, a second memory, experts on more ranks, layer types cut
    over more ranks of a tensor group, more tensor or pipeline parallelism in place of data parallelism. Where no change alone is enough,
    the three mildest pairs; where no pair is either, how much is lacking, and on how many more devices it would fit. Of a service
    also how many requests at once would fit. With `whole` each says the whole plan too, as text, for strategies that were not
    written as plans.

    Returns
    -------
    tuple of Remedy
        Sentences, each with the settings that it stands for, such as ``recompute: full frees 21.3 GiB and fits with 4.1 GiB to spare``.
    """

    def dividing(changes: Iterable[_Change]) -> list[_Change]:
        able = [change for change in changes if possible(job, change.plan, batch, machine)]
        return able if _connected(machine) else [change for change in able if not _SHARED_OUT.intersection(change.keys)]

    hosted, tiered = machine.host is not None, machine.architecture.second is not None
    routed = bool(job.model.experts)
    fused, training = machine.stack.attention.kernel == "flash", job.training

    def changed(one: Plan) -> Iterator[_Change]:
        again = further_levels(one, job.model, fused=fused) if training else ()
        return _changes(one, again, hosted=hosted, tiered=tiered, experts=routed, training=training)

    singles = dividing(changed(plan))
    pairs = (
        _Change(keys=(*one.keys, *two.keys), text=f"{one.text} and {two.text}", plan=two.plan)
        for one in singles
        for two in changed(one.plan)
        if CHANGES.index(two.keys[0]) > CHANGES.index(one.keys[0])
    )
    beside = _of_a_service(job, plan, batch, machine) if not job.training else ()
    lacks = None
    for changes in (singles, dividing(pairs)):
        tried = [plan, *(change.plan for change in changes)]
        found = memory(job, laid_out(job, tried, np.full(len(tried), float(batch)), machine.node, machine.stack), machine)
        needed, room, of = _what_lacks(found)
        spare, saved, fits = (room - needed)[1:], (needed[0] - needed)[1:], found.fits[1:]
        mildest: dict[tuple[str, ...], int] = {}
        for i in map(int, np.flatnonzero(fits)):
            mildest.setdefault(changes[i].keys, i)
        if mildest:
            chosen = list(mildest.values()) if changes is singles else sorted(mildest.values(), key=saved.__getitem__)[:3]
            plans = [f" ({changes[i].plan})" if whole else "" for i in chosen]
            told = [
                Remedy(f"{changes[i].text}{text} frees {_gib(saved[i])}{of} and fits{_spare(spare[i])}", _written(changes[i].plan, job))
                for i, text in zip(chosen, plans, strict=True)
            ]
            return (*told, *beside, *(() if job.training or changes is singles else _on_more(job, plan, batch, machine)))
        if len(spare) and saved.max() > 0:
            most, lacking = int(found.lacking[1:].argmin()), _gib(found.lacking[1:].min())
            lacks = f"no two changes are enough: {changes[most].text} frees {_gib(saved[most])}{of}, but {lacking} are lacking"
    return (
        Remedy(lacks or f"no change of the plan frees memory: {_gib(found.lacking[0])} are lacking"),
        *beside,
        *_on_more(job, plan, batch, machine),
    )


def _connected(machine: Machine) -> bool:
    """Whether anything connects its devices, which nothing does where it is a device by itself."""
    return machine.node > 1 or machine.architecture.inter is not None


def _what_lacks(found: Memory) -> tuple[Array, Array, str]:
    """What the first plan has too little of: devices' memory, the host's or the second; needs and room of all plans [B], and its name."""
    if found.spare[0] < 0:
        return found.total, found.capacity, ""
    if found.host[0] > found.host_capacity[0]:
        return found.host, found.host_capacity, " of the host's memory"
    return found.far_total, found.far_capacity, " of the second memory"


def _of_a_service(job: Job, plan: Plan, batch: int, machine: Machine) -> tuple[Remedy, ...]:
    """How many requests at once would fit, where fewer do."""
    fewer = fewer_requests(job, plan, batch, machine)
    if fewer is None:
        return ()
    requests, serving, spare = fewer
    settings = {"workload.global_batch": requests, **_written(serving, job)}
    return (Remedy(f"workload.global_batch: {requests} (micro_batch: {serving.micro_batch}) fits{_spare(spare)}", settings),)


def _on_more(job: Job, plan: Plan, batch: int, machine: Machine) -> tuple[Remedy, ...]:
    """On how many more devices it would fit, where it would."""
    larger = more_devices(job, plan, batch, machine)
    if larger is None:
        return ()
    plan, spare = larger
    if not _connected(machine):
        return (Remedy(f"on {plan.devices} devices of a system that connects them {plan} fits{_spare(spare)}"),)
    return (Remedy(f"on {plan.devices} devices {plan} fits{_spare(spare)}", {"system.devices": plan.devices, **_written(plan, job)}),)


def _written(plan: Plan, job: Job) -> dict[str, Any]:
    """The setting of a scenario that is this plan; of a service with its microbatch, for what its plans mean by default is another."""
    return {"strategy": str(plan) if job.training else plan.text(always=("micro_batch",))}


def _said(value: Any) -> str:
    """A value of a plan in a sentence."""
    return ("+".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value).lower()


def _spare(size: float) -> str:
    return f" with {_gib(size)} to spare"


def _gib(size: float) -> str:
    """A size in GiB, one that has not a tenth of it in smaller units.

    >>> _gib(4.06 * 2**30), _gib(2.5 * 2**20)
    ('4.1 GiB', '2.5 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 0.1 * 2**30 else show(size, "B")


def _changes(plan: Plan, again: Sequence[Again], *, hosted: bool, tiered: bool, experts: bool, training: bool) -> Iterator[_Change]:
    """Single changes of a plan that need less memory, of each kind the mildest first.

    With what more could be computed `again`, with the host's memory where it is known (`hosted`), with the second memory where there is
    one (`tiered`), and with other degrees of experts where the model has any. A service has nothing to compute again, nor gradients; its
    microbatch is told with its ranks, for without it they would mean another.
    """

    def change(key: str, value: Any, **others: Any) -> _Change:
        told = {name: other for name, other in others.items() if other != getattr(plan, name)}
        told |= {} if training or "dp" not in others else {"micro_batch": plan.micro_batch}
        asides = [f"{name}: {_said(other)}" for name, other in told.items()]
        aside = f" ({', '.join(asides)})" if asides else ""
        said = _said(value) if isinstance(value, tuple) else value
        return _Change(keys=(key,), text=f"{key}: {said}{aside}", plan=replace(plan, **{key: value}, **others))

    for micro in reversed(divisors(plan.micro_batch)[:-1]):
        yield change("micro_batch", micro)
    for level in again:
        yield change("recompute", level.recompute, recompute_modules=level.modules, recompute_layers=0)
    owns = [getattr(plan, name) or plan.tp for name in OWN_TENSOR.values()]
    several = plan.dp * plan.cp > 1 or min(owns) < plan.tp  # ranks hold the same weights, if only those of some layers
    for zero in () if not several else range(plan.zero + 1, 4) if training else (3,) if plan.zero < 3 else ():
        yield change("zero", zero)
    if plan.unsharded:
        yield change("unsharded", ())
    if hosted:
        for what in OFFLOADS:
            if what not in plan.offload:
                yield change("offload", tuple(kept for kept in OFFLOADS if kept in (*plan.offload, what)))
        if plan.offload:
            yield change("offload", ())
    for tensors in FARS if tiered else ():
        if tensors not in plan.far:
            yield change("far", tuple(kept for kept in FARS if kept in (*plan.far, tensors)))
    if plan.far:
        yield change("far", (), far_experts=0, far_cache=0)
    if plan.stage_layers:
        yield change("stage_layers", ())
    copies = plan.tp * plan.dp * plan.cp // (plan.tensor_of("experts") * plan.ep)
    for factor in divisors(copies)[1:] if experts else ():
        yield change("ep", plan.ep * factor)
    for kind, key in OWN_TENSOR.items():
        for factor in divisors(plan.tp // plan.tensor_of(kind))[1:]:
            yield change(key, plan.tensor_of(kind) * factor)
    factors = [factor for factor in divisors(plan.dp) if factor > 1]
    for factor in factors:
        yield change("tp", plan.tp * factor, dp=plan.dp // factor, sequence_parallel=plan.sequence_parallel or plan.tp == 1)
    for factor in factors:
        yield change("pp", plan.pp * factor, dp=plan.dp // factor, stage_layers=())
