"""One step of a transformer: parts into layers, layers into chunks of a pipeline, passes into a step, for all points at once.

The pipeline is walked slot by slot (`crossflow.engine.timeline.pipeline`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from crossflow.base.arrays import Array, Index, divide
from crossflow.base.stages import stage
from crossflow.cost.handovers import handed_of
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps, between_measured, steps_of, weights_measured
from crossflow.engine.runs.busiest import Busiest, parts_of
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.slots import Closing, SlotTimes, by_stage, closing_of, slots_of, split_points
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.engine.timeline.pipeline import pipeline_ends
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.shapes import Shape
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL
from crossflow.parallel.tables import COLLECTIVES, StepTables, tables_of
from crossflow.workload.job import Job

STEADY = 4  # rounds of `stages` microbatches after which a pipeline without flush is full
FIGURES = ("compute", "communication", "exposed")  # of every layer type
BETWEEN = "pipeline"  # stands for a layer type where stages hand over


def transformer_step(job: Job, layout: Layout, machine: Machine, held: Memory | None = None) -> Outcome:
    """One step of every design point, from its program to its outcome.

    Parameters
    ----------
    job : model and task.
    layout : n plans.
    machine : device, network and software; its quantities may vary over the n points too.
    held : memory of the step, worked out here where it is not given.
    """
    tables = tables_of(job, layout, machine.stack)
    return run_layers(job, layout, machine, tables, memory(job, layout, machine) if held is None else held)


def run_layers(job: Job, layout: Layout, machine: Machine, tables: StepTables, held: Memory) -> Outcome:
    """One step of every design point, of which is known what it computes and holds; other parameters as of `transformer_step`."""
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        prices = steps_of(job, layout, machine, tables)
        return run_priced(job, layout, machine, prices, UnitSums.of(prices, split_points(prices.tables.shapes, len(layout))), held)


@stage("run")
def run_priced(job: Job, layout: Layout, machine: Machine, prices: Steps, sums: UnitSums, held: Memory) -> Outcome:
    """The same of steps whose parts are priced, and summed up by unit."""
    parts = [(shape.at, _pipeline(job, layout, machine, prices, sums.at(shape.at), shape)) for shape in prices.tables.shapes]
    found = parts_of(layout, machine, prices, sums, Busiest.together(parts, len(layout)))
    tell_endless(found)
    return outcome_of(layout, machine, prices, found, held)


def tell_endless(found: Mapping[str, Array]) -> None:
    """Say of steps without end that communication never ends, and nothing of what it would have left to other parts."""
    endless = ~np.isfinite(found["total"])
    if endless.any():
        for values in found.values():
            part = values[..., endless]
            values[..., endless] = np.where(np.isnan(part), 0.0, part)
        found["total"][endless] = found["exposed_communication"][endless] = np.inf


def _stage_ends(slots: SlotTimes, rounds: Array, microbatches: Array, shape: Shape, *, steady: bool) -> Array:
    """Time at which every stage has finished its last slot, shape (stages, n). [s]

    With `steady` of steps that follow each other: a microbatch begins the next when it leaves the last stage.
    """
    stages = shape.stages
    if stages == 1 and shape.schedule in NATURAL:
        return np.asarray((rounds * slots.busy.sum(axis=0))[None])
    rows = len(slots.forward_of)
    if steady:
        through = slots.busy.sum(axis=0) + slots.late[0].sum(axis=0)
        return np.tile(np.maximum(rounds * by_stage(slots.busy, stages).max(axis=0), through), (stages, 1))
    forward, *back = (slots.busy[i : i + rows] for i in range(0, len(slots.busy), rows))
    backward, weight = [*back, None, None][:2]
    ends = functools.partial(pipeline_ends, forward, backward, slots.late, weight, stages=stages, chunks=shape.chunks)
    if shape.schedule == "pipedream":  # what a microbatch adds once the pipeline is full, which cannot be less than the busiest stage takes
        added = (ends(microbatches=2 * STEADY * stages) - ends(microbatches=STEADY * stages)) / (STEADY * stages)
        busiest = by_stage(slots.busy.reshape(-1, rows, slots.busy.shape[-1]).sum(axis=0), stages).max(axis=0)
        return np.asarray(np.maximum(added, busiest) * microbatches)
    return ends(microbatches=microbatches.astype(int), schedule=shape.schedule)


def _pipeline(job: Job, layout: Layout, machine: Machine, steps: Steps, sums: UnitSums, shape: Shape) -> Busiest:
    """Busiest stage of points whose pipelines have one shape; `sums` are theirs, `steps` those of all points."""
    handed = handed_of(layout, machine, steps, shape, training=job.training)
    slots = slots_of(job, machine, sums, shape, handed)
    closing = closing_of(machine, sums, slots, shape)
    return timed(job, layout, machine.stack, slots, closing, steps.between.tied[shape.at], shape)


def timed(job: Job, layout: Layout, stack: SoftwareStack, slots: SlotTimes, closing: Closing, tied: Array, shape: Shape) -> Busiest:
    """The same from slots and what follows them, `tied` the sum of the gradients of a table that both ends hold. [s]"""
    microbatches = layout.microbatches[shape.at]
    rounds = microbatches / layout.directions[shape.at]  # slots of a kind that a row has
    finish = closing.update + closing.on_host + closing.renewed + closing.regather
    if shape.schedule == "pipedream":  # reductions and updates are in the slots, one after each microbatch
        nothing = np.zeros_like(finish)
        closing, finish = dataclasses.replace(closing, exposed=nothing, regather=microbatches * closing.regather), nothing
    after = _stage_ends(slots, rounds, microbatches, shape, steady=job.task == "decode") + closing.exposed
    total = after.max(axis=0) + tied + finish.max(axis=0) + float(stack.host.step[0])
    return _busiest(total, slots, closing, shape, rounds, _deciding(slots, shape.stages, after))


def _busiest(total: Array, slots: SlotTimes, closing: Closing, shape: Shape, rounds: Array, stage: Index) -> Busiest:
    """What a stage of every point, which runs `rounds` slots of a kind in each of its rows, has of a step that takes so long."""
    points, handed = np.arange(len(stage)), slots.handed
    crossed = handed.boundaries.often
    sent, gathered = crossed @ handed.sent, crossed @ handed.gathered
    both = (each.sum(axis=0) for each in (slots.waits, slots.behind, slots.met))  # forward and backward
    lines = by_stage(np.array([*both, slots.grown, sent, gathered]), shape.stages)
    waits, beside, met, grown, transfer, whole = rounds * lines[:, stage, points]
    counts = slots.on_stage
    if counts.ndim > 3:  # which differ between points
        often = np.take_along_axis(counts, stage[None, None, None], axis=1)[:, 0]
    else:
        often = counts.swapaxes(1, 2).take(stage, axis=2)
    late, renewed, regather = (each[stage, points] for each in (closing.exposed, closing.renewed, closing.regather))
    return Busiest(
        total=total, often=rounds * often, weights=often[2], waits=waits, beside=beside, met=met, grown=grown, transfer=transfer,
        whole=whole, late=late, renewed=renewed, regather=regather,
        handed=rounds * np.stack([*handed.scopes, handed.onwards.sum(axis=(0, 1))]),
    )  # fmt: skip


def _deciding(slots: SlotTimes, stages: int, after: Array) -> Index:
    """The busiest stage, for which others wait; of those that are as busy, the one that ends last, shape (n,)."""
    busy = by_stage(slots.busy.reshape(-1, len(slots.forward_of), after.shape[-1]).sum(axis=0), stages)
    as_busy = busy >= busy.max(axis=0) * (1.0 - 1e-9)
    return np.asarray(np.where(as_busy, after, -1.0).argmax(axis=0))


def outcome_of(layout: Layout, machine: Machine, steps: Steps, found: Mapping[str, Array], held: Memory) -> Outcome:
    """Totals over all devices, and the names that people read."""
    tables, times = steps.tables, steps.times
    passes_run = layout.microbatches * layout.tp * layout.cp * layout.dp
    done, updated = (functools.partial(work, layout, tables) for work in (_done, _updated))
    measured = np.zeros(1)
    if machine.profile is not None:
        forward, inputs, weights = tables.occurs
        passes, ranks = steps.passes, layout.tp * layout.cp * layout.dp
        sent = (forward * passes.sent[:, 0] + inputs * passes.sent[:, 1]).sum(axis=(0, 1)) * passes_run
        known = (forward * passes.measured[0] + inputs * passes.measured[1]).sum(axis=0) * passes_run
        holders = weights * layout.directions * ranks
        whole, of_weights = ((holders * part).sum(axis=0) for part in weights_measured(layout, machine, steps, machine.profile))
        handed, of_transfers = between_measured(layout, machine, steps, found["handed"] * ranks)
        measured = divide(done(times.measured) + known + of_weights + of_transfers, done(times.compute) + sent + whole + handed)
    host = found["waits"]
    sums = by_type(found["units"], times.layers)
    by_layer = {f"{name}.{what}": part for name, parts in sums.items() for what, part in zip(FIGURES, parts, strict=True)}
    if found["between"].any():
        by_layer |= {f"{BETWEEN}.{what}": values for what, values in zip(FIGURES[1:], found["between"], strict=True)}
    used = np.flatnonzero(found["sent"].any(axis=1))
    return Outcome(
        total=found["total"],
        breakdown={name: found[name] for name in BREAKDOWN},
        communication={COLLECTIVES[i]: found["sent"][i] for i in used},
        exposed={COLLECTIVES[i]: found["exposed"][i] for i in used},
        memory=held.kinds,
        flops=done(times.flops),
        energy=energy_of(layout, steps),
        model_flops=tables.model_flops,
        traffic=done(times.traffic) + updated(steps.state.optimizer.traffic[-1]),
        sent=(tables.moved[0], tables.moved[1]),
        bound={
            **dict(zip((*times.resources, "launch"), found["device"], strict=True)), "host": host,
            "network": found["exposed_communication"], "bubble": found["bubble"],
        },
        by_layer=by_layer,
        measured=measured,
        second_memory=held.far_total,
        second_capacity=held.far_capacity,
        second_moved=_moved_far(steps, done, updated),
        host_memory=held.host,
        host_capacity=held.host_capacity,
    )  # fmt: skip


def _done(layout: Layout, tables: StepTables, amount: Array) -> Array:
    """Sum over all units, passes and devices of what a unit does in a pass, shape (units, phases, n)."""
    return np.asarray((amount * tables.phases).sum(axis=(0, 1)) * (layout.microbatches * layout.tp * layout.cp * layout.dp))


def _updated(layout: Layout, tables: StepTables, amount: Array) -> Array:
    """Sum over all devices and updates of what the optimizer does for each unit, shape (units, n)."""
    return np.asarray((tables.occurs[2] * amount).sum(axis=0) * layout.directions * layout.tp * layout.cp * layout.dp * layout.updates)


def energy_of(layout: Layout, steps: Steps) -> Array:
    """Dynamic energy of all devices in a step, of operations and of traffic to memory, shape (n,). [J]"""
    optimizer = steps.state.optimizer.energy
    return _done(layout, steps.tables, steps.times.energy) + _updated(layout, steps.tables, optimizer)


def _moved_far(steps: Steps, done: Callable[[Array], Array], updated: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Bytes that all devices read and write on their second memories in a step, by what passes and what updates do. [B]"""
    if steps.far is None:
        return np.zeros(1), np.zeros(1)
    read, written = done(steps.far.read), done(steps.far.written)
    return (read, written) if steps.state.far is None else (read + updated(steps.state.far[0]), written + updated(steps.state.far[1]))


def by_type(values: Array, units: tuple[str, ...]) -> dict[str, Array]:
    """Sums over the units of each layer type, shape (..., n), of values of shape (..., units, n)."""
    names, members = _layer_types(units)
    return {name: values[..., mine, :].sum(axis=-2) for name, mine in zip(names, members, strict=True)}


@functools.lru_cache(maxsize=256)
def _layer_types(units: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[list[int], ...]]:
    """Layer types of units, and which units are of each."""
    kinds = [name if name in ("embedding", "head") else name.split(".")[2] for name in units]
    names = tuple(dict.fromkeys(kinds))
    return names, tuple([i for i, kind in enumerate(kinds) if kind == name] for name in names)
