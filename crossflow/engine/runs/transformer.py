"""One step of a transformer: parts into layers, layers into chunks of a pipeline, passes into a step, for all points at once.

The pipeline is walked slot by slot (`crossflow.engine.timeline.pipeline`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, divide
from crossflow.base.stages import stage
from crossflow.cost.handovers import Handed, handed_of
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps, between_measured, steps_of, weights_measured
from crossflow.engine.runs.busiest import Busiest, parts_of
from crossflow.engine.runs.columns import KindColumns
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.slots import (
    Closing,
    RowColumns,
    ShapeSlots,
    StageTimes,
    by_stage,
    closing_of,
    is_split,
    is_updated_at_once,
    slots_of,
    split_points,
)
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.engine.timeline.pipeline import SlotPipeline, pipeline_ends
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
    kinds = dict[tuple[bool, bool], list[Shape]]()
    for shape in prices.tables.shapes:
        kinds.setdefault((is_split(shape), is_updated_at_once(shape)), []).append(shape)
    parts = [_pipelines(job, layout, machine, prices, sums, shapes) for shapes in kinds.values()]
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


def _pipelines(job: Job, layout: Layout, machine: Machine, steps: Steps, sums: UnitSums, shapes: Sequence[Shape]) -> tuple[Index, Busiest]:
    """Busiest stages of points whose slots are of the same kinds, and these points; `sums` and `steps` are those of all points."""
    handed = [handed_of(layout, machine, steps, shape, training=job.training) for shape in shapes]
    if len(layout) == 1:  # whose rows take less time than it takes to find those that are alike
        alone = ShapeSlots.of(job, machine, sums, shapes[0], handed[0])
        return timed(job, layout, machine.stack, Pipelines.of_shape(alone), steps.between.tied)
    found = RowColumns.of(job, machine, shapes, handed)
    columns, rows = found.columns, found.rows
    slots = slots_of(job, machine, sums.at(columns.points), rows, found.handed)
    stages = columns.stages()
    often, lines = (stages.of_stages(columns, values) for values in (slots.often[:, 0], slots.lines(found.handed)[:, 0]))
    times = StageTimes(often=often.swapaxes(1, 2), lines=lines)
    closing = closing_of(machine, sums.at(stages.points), rows, times)
    pipelines = Pipelines(rows=columns, stages=stages, busy=slots.busy, held=slots.held[:, 0], times=times, closing=closing, handed=handed)
    return timed(job, layout, machine.stack, pipelines, steps.between.tied)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipelines:
    """Pipelines of several shapes whose slots are of the same kinds: what their rows and stages take, as columns. [s]"""

    rows: KindColumns
    stages: KindColumns
    busy: Array  # as of `SlotTimes`, shape (kinds, columns of rows)
    held: Array  # as of `SlotTimes`, shape (2, columns of rows)
    times: StageTimes
    closing: Closing
    handed: Sequence[Handed]  # of every shape

    @classmethod
    def of_shape(cls, found: ShapeSlots) -> Pipelines:
        """Of one shape, each of whose rows and stages is by itself."""
        shape, slots, times = found.shape, found.slots, found.times
        rows, stages = (KindColumns.every(shape, many) for many in (slots.often.shape[1], shape.stages))
        often = np.array([stages.counted([each]) for each in times.often])
        busy, held = (rows.joined([each])[:, 0] for each in (slots.busy.reshape(-1, *slots.grown.shape), slots.held))
        return cls(
            rows=rows, stages=stages, busy=busy, held=held, handed=[found.handed],
            times=StageTimes(often=often, lines=stages.joined([times.lines])),
            closing=found.closing.each(lambda part: stages.joined([part])),
        )  # fmt: skip

    def ends(self, rounds: Sequence[Array], microbatches: Sequence[Array], stack: SoftwareStack, *, steady: bool) -> list[Array]:
        """Time at which every stage of each shape has finished its last slot, shape (stages, n). [s]

        With `steady` of steps that follow each other: a microbatch begins the next when it leaves the last stage.
        """
        walked, found = list[SlotPipeline](), dict[int, Array]()
        for number, shape in enumerate(self.rows.shapes):
            busy, held = (self.rows.spread(number, each) for each in (self.busy, self.held))
            late = self.handed[number].late(held, stack)
            if shape.stages == 1 and shape.schedule in NATURAL:
                found[number] = np.asarray((rounds[number] * busy.sum(axis=(0, 1)))[None])
            elif steady:
                through = busy.sum(axis=(0, 1)) + late[0].sum(axis=0)
                pace = rounds[number] * self._busy(number).max(axis=0)
                found[number] = np.tile(np.maximum(pace, through), (shape.stages, 1))
            else:
                walked.append(self._slots(shape, busy, late, microbatches[number].astype(int)))
        ends = iter(self._at_pace(walked) if self.at_once else pipeline_ends(walked))
        return [found[number] if number in found else next(ends) for number in range(len(microbatches))]

    def _slots(self, shape: Shape, busy: Array, late: Array, microbatches: Index) -> SlotPipeline:
        """Pipelines of a shape, with the time of slots of every kind and row, shape (kinds, rows, n). [s]"""
        forward, backward, weight = [*busy, None, None][:3]
        schedule = "1f1b" if self.at_once else shape.schedule
        return SlotPipeline(
            forward=forward, backward=backward, late=late, weight=weight, stages=shape.stages, microbatches=microbatches,
            chunks=shape.chunks, schedule=schedule,
        )  # fmt: skip

    def _at_pace(self, walked: Sequence[SlotPipeline]) -> list[Array]:
        """Time without flush: what a microbatch adds to a full pipeline, which cannot be less than the busiest stage takes, for all. [s]"""
        rounds = (STEADY, 2 * STEADY)
        full, fuller = (pipeline_ends([replace(one, microbatches=many * one.stages) for one in walked]) for many in rounds)
        found = list[Array]()
        for one, first, second in zip(walked, full, fuller, strict=True):
            kept = sum(by_stage(part, one.stages) for part in (one.forward, one.backward, one.weight) if part is not None)
            added = (second - first) / (STEADY * one.stages)
            found.append(np.maximum(added, np.max(kept, axis=0)) * one.microbatches)
        return found

    @property
    def at_once(self) -> bool:
        """Whether weights are updated after each pass (PipeDream)."""
        return is_updated_at_once(self.rows.shapes[0])

    def _busy(self, number: int) -> Array:
        """Time of one slot of every kind and row of stages of a shape that differ, shape (kinds of stages, n). [s]"""
        return np.asarray(self.stages.kinds(number, self.times.busy[:, 0]).sum(axis=0))

    def deciding(self, number: int, after: Array) -> Index:
        """The busiest stage, for which others wait; of those that are as busy, the one that ends last, shape (n,)."""
        busy = self._busy(number)
        as_busy = (busy >= busy.max(axis=0) * (1.0 - 1e-9)).take(self.stages.which[number], axis=0)
        return np.asarray(np.where(as_busy, after, -1.0).argmax(axis=0))


def timed(job: Job, layout: Layout, stack: SoftwareStack, pipelines: Pipelines, tied: Array) -> tuple[Index, Busiest]:
    """Busiest stages of pipelines, and the points that they are of, `tied` the sum of the gradients of a table that both ends hold. [s]"""
    stages, closing = pipelines.stages, pipelines.closing
    at = np.concatenate([shape.at for shape in stages.shapes])
    finish = closing.update + closing.on_host + closing.renewed + closing.regather
    if pipelines.at_once:  # reductions and updates are in the slots, one after each microbatch
        nothing = np.zeros_like(finish)
        regather = layout.microbatches[stages.points] * closing.regather
        closing, finish = replace(closing, exposed=nothing, regather=regather), nothing
    rounds = layout.microbatches / layout.directions  # slots of a kind that a row has
    each, many = ([values[shape.at] for shape in stages.shapes] for values in (rounds, layout.microbatches))
    total, deciding = list[Array](), list[Index]()
    for number, ends in enumerate(pipelines.ends(each, many, stack, steady=job.task == "decode")):
        after = ends + stages.spread(number, closing.exposed[0])
        total.append(after.max(axis=0) + stages.kinds(number, finish[0]).max(axis=0))
        deciding.append(stages.at(number, pipelines.deciding(number, after)))
    whole = np.concatenate(total) + tied[at] + float(stack.host.step[0])
    return at, _busiest(whole, pipelines, closing, rounds[at], np.concatenate(deciding))


def _busiest(total: Array, pipelines: Pipelines, closing: Closing, rounds: Array, column: Index) -> Busiest:
    """What of a step that takes so long the stage in a `column` has, which runs `rounds` slots of a kind in each of its rows."""
    waits, beside, met, grown, transfer, whole = rounds * pipelines.times.decided[:, 0].take(column, axis=-1)
    often = pipelines.times.often[:, 0].take(column, axis=-1)
    late, renewed, regather = (each[0].take(column) for each in (closing.exposed, closing.renewed, closing.regather))
    return Busiest(
        total=total, often=rounds * often, weights=often[2], waits=waits, beside=beside, met=met, grown=grown, transfer=transfer,
        whole=whole, late=late, renewed=renewed, regather=regather,
        handed=rounds * np.concatenate([one.whole for one in pipelines.handed], axis=-1),
    )  # fmt: skip


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
