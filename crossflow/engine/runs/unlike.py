"""One step of a transformer whose pipeline stages lie on devices of several kinds: a system and its pools, such as two generations of GPUs.

Whole stages lie on devices of one kind; tensor, context, data and expert groups never mix them. Each stage has the prices, the memory and
the network of its own devices; what is handed over from one kind to the next passes both networks, of which the slower decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.stages import stage
from crossflow.cost.joined import joined
from crossflow.cost.passes import Steps
from crossflow.engine.runs.busiest import Busiest, parts_of
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.slots import ShapeSlots, split_points
from crossflow.engine.runs.transformer import Pipelines, energy_of, outcome_of, tell_endless, timed
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.engine.runs.unlike_divided import OpenPlans, free_plans, stage_capacities, with_divisions
from crossflow.engine.runs.unlike_prices import DeviceKind, PlanPrices, divided_prices, priced
from crossflow.parallel.shapes import Shape
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.job import Job
from crossflow.workload.stacked import chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class KindWork:
    """What devices of one kind take of a step, arrays of shape (n,)."""

    devices: Array  # [1]
    energy: Array  # of operations and traffic to memory. [J]
    sent: tuple[Array, Array]  # bytes that each sends in its node, and out of it. [B]


@dataclass(frozen=True, kw_only=True, eq=False)
class UnlikePlans:
    """Plans whose stages have their layers."""

    job: Job
    layout: Layout
    kinds: tuple[DeviceKind, ...]  # in the order of the stages
    held: Memory
    prices: tuple[Steps, ...] | None  # on each kind, where layers were divided by them

    def at(self, points: Index) -> UnlikePlans:
        """Some of the plans, where devices are the same at all."""
        kinds = tuple(kind.at(points) for kind in self.kinds)
        return UnlikePlans(job=chosen(self.job, points), layout=self.layout.at(points), kinds=kinds, held=self.held.at(points), prices=None)

    @property
    def steps(self) -> tuple[Steps, ...]:
        """Their steps on each kind."""
        return priced(self.job, self.layout, self.kinds) if self.prices is None else self.prices


def unlike_plans(job: Job, layout: Layout, kinds: Sequence[DeviceKind]) -> UnlikePlans:
    """Plans with the layers of every stage, and what its devices hold.

    Parameters
    ----------
    layout : n plans; where one does not say how its layers are divided over stages, the step decides (`unlike_divided`).
    kinds : kinds of devices in the order of the stages.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        layout, free, prices = _placed(layout, kinds), free_plans(layout), None
        capacities = stage_capacities(layout, kinds)
        if free.any():
            prices = priced(job, layout, kinds)
            each = PlanPrices.of(layout, kinds, prices)
            layout = OpenPlans(job=job, layout=layout, free=free, prices=each, capacities=capacities, time=_time).divided()
            prices = divided_prices(prices, job, layout, kinds)
        held = memory(job, layout.on_kind(kinds[0].machine.node, layout.pp), kinds[0].machine).on_unlike(capacities)
        return UnlikePlans(job=job, layout=layout, kinds=tuple(kinds), held=held, prices=prices)


def unlike_step(plans: UnlikePlans) -> tuple[Outcome, tuple[KindWork, ...]]:
    """One step of every design point, and what devices of each kind do in it; the outcome's energy, and what is sent, are of the first."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        return _run(plans)


def _placed(layout: Layout, kinds: Sequence[DeviceKind]) -> Layout:
    """Plans with the kind of devices of every stage."""
    stages = np.rint([kind.stages for kind in kinds]).astype(int)
    on = [tuple(int(kind) for kind in np.repeat(np.arange(len(kinds)), many)) for many in stages.T]
    return with_divisions(layout, [layout.divisions[which]._replace(kinds=on[i]) for i, which in enumerate(layout.division)])


def _busiest(prices: PlanPrices, job: Job, layout: Layout, shape: Shape) -> Busiest:
    """Busiest stage of points whose pipelines have one shape."""
    pipelines = Pipelines.of_shape(prices.slots(job, layout, shape))
    return timed(job, layout, prices.kinds[0].machine.stack, pipelines, prices.crossing.tied)[1]


def _time(prices: PlanPrices, job: Job, layout: Layout, shape: Shape) -> Array:
    """Time of their steps. [s]"""
    return _busiest(prices, job, layout, shape).total


@stage("run")
def _run(plans: UnlikePlans) -> tuple[Outcome, tuple[KindWork, ...]]:
    """The same, where steps may be without end."""
    job, layout, kinds, held = plans.job, plans.layout, plans.kinds, plans.held
    first, prices = kinds[0].machine, plans.steps
    each = PlanPrices.of(layout, kinds, prices)
    whole = joined(prices, each.crossing)
    sums = UnitSums.of(whole, split_points(whole.tables.shapes, len(layout)))
    parts = [(shape.at, _busiest(each, job, layout, shape)) for shape in whole.tables.shapes]
    found = parts_of(layout, first, whole, sums, Busiest.together(parts, len(layout)))
    tell_endless(found)
    outcome = replace(outcome_of(layout, first, whole, found, held), energy=energy_of(layout, prices[0]), capacity=(held.capacity,))
    ranks = layout.tp * layout.cp * layout.dp
    shares = tuple(
        KindWork(devices=ranks * kind.stages, energy=energy_of(layout, one), sent=(one.tables.moved[0], one.tables.moved[1]))
        for kind, one in zip(kinds, prices, strict=True)
    )
    return outcome, shares


def unlike_slots(plans: UnlikePlans, shape: Shape) -> tuple[Steps, ShapeSlots]:
    """Of one plan: steps with the units of all kinds, the first's first, and slots."""
    with np.errstate(invalid="ignore", divide="ignore"):
        prices = plans.steps
        each = PlanPrices.of(plans.layout, plans.kinds, prices)
        return joined(prices, each.crossing), each.slots(plans.job, plans.layout, shape)
