"""Timeline of a step whose stages lie on devices of several kinds.

A unit of the model is another one on each kind (`crossflow.cost.joined`), so the stages of a kind are laid out of its own units, and all
else is as on one kind.
"""

from __future__ import annotations

from dataclasses import replace

from crossflow.engine.runs.slot_events import StepPasses
from crossflow.engine.runs.timeline import filled
from crossflow.engine.runs.uneven import EVEN, Uneven
from crossflow.engine.runs.unlike import UnlikePlans, unlike_slots
from crossflow.engine.timeline.record import Timeline
from crossflow.parallel.blocks import units
from crossflow.parallel.shapes import Occurrence, Shape, alike, sequence
from crossflow.parallel.strategy.schedules import PipelineOrder
from crossflow.workload.job import Job


def unlike_timeline(plans: UnlikePlans, title: str, uneven: Uneven = EVEN) -> Timeline:
    """Timeline of a step of a single plan, with its stages on their devices; other parameters as of `transformer_timeline`."""
    job, layout, held = plans.job, plans.layout, plans.held
    shape = replace(alike(layout)[0], microbatches=int(layout.microbatches[0]))
    steps, slots = unlike_slots(plans, shape)
    machine = plans.kinds[0].machine
    step = StepPasses(
        job=job, layout=layout.on_kind(1, layout.pp),  # first and last stage are never in one node
        machine=machine, steps=steps, slots=slots.slots, crossings=slots.handed, order=shape.order, closing=slots.closing,
        reductions=slots.reductions(steps), rows=_rows(job, shape, shape.order, balanced=machine.stack.stages == "balanced"), names={},
    )  # fmt: skip
    assert held.capacities is not None  # of several kinds of devices
    return filled(step, shape, title, uneven, float(held.capacities.max()))


def _rows(job: Job, shape: Shape, order: PipelineOrder, *, balanced: bool) -> tuple[tuple[Occurrence, ...], ...]:
    """Units of every row of a schedule, those of the kind of devices that its stage lies on."""
    in_order = sequence(job, shape.stages, shape.chunks, shape.division, balanced)
    begins, found = len(units(job.model)), list[tuple[Occurrence, ...]]()
    for row, chunk in enumerate(order.chunk):
        kind = shape.division.kinds[row % shape.stages]
        found.append(tuple(one._replace(unit=one.unit + kind * begins) for one in in_order[chunk]))
    return tuple(found)
