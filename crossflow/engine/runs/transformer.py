"""One step of a transformer: parts into layers, layers into chunks of a pipeline, passes into a step, for all points at once.

The pipeline is walked slot by slot (`crossflow.engine.timeline.pipeline`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Index, divide, share_of, summed
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps, between_measured, steps_of, weights_measured
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome
from crossflow.engine.runs.slots import Closing, Counts, Exposures, SlotTimes, by_stage, closing_of, slots_of, unit_times
from crossflow.engine.timeline.pipeline import pipeline_ends
from crossflow.parallel.shapes import Shape
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL
from crossflow.parallel.tables import COLLECTIVES, OF, StepTables, tables_of
from crossflow.workload.job import Job

LINES = ("waits", "behind", "grown", "sent", "gathered")  # of `SlotTimes` and what they hand over, forward and backward together
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
        parts = [(shape.at, _pipeline(job, layout, machine, prices.of(shape), shape)) for shape in prices.tables.shapes]
        found = parts[0][1] if len(parts) == 1 else _scattered(parts, len(layout))
        _endless(found)
        return _outcome(layout, machine, prices, found, held)


def _scattered(parts: Sequence[tuple[Index, Mapping[str, Array]]], n: int) -> dict[str, Array]:
    """Values of some points each, as values of all n."""
    found = {name: np.zeros((*values.shape[:-1], n)) for name, values in parts[0][1].items()}
    for at, values in parts:
        for name, whole in found.items():
            whole[..., at] = values[name]
    return found


def _endless(found: Mapping[str, Array]) -> None:
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


@dataclass(frozen=True, kw_only=True)
class _Busiest:
    """What the stage that decides the step takes in it, each of shape (n,), collectives of shape (collectives, n). [s]"""

    device: Array  # of kernels by what binds them, and between them, shape (kinds, n)
    net: Array  # collectives that block in passes
    sent: Array  # all of passes
    behind: Array  # those behind passes of sharded weights
    final: Array  # those after the last pass, copies to the host among them
    # waits, gathering, grown, transfer, whole: as `LINES`
    waits: Array
    gathering: Array
    grown: Array
    transfer: Array
    whole: Array
    # late, update, on_host, renewed, regather: what follows the last pass, as `Closing` names it
    late: Array
    update: Array
    on_host: Array
    renewed: Array
    regather: Array
    gathered: Array  # gathers of updated weights, hidden or not
    copied: Array  # their copies to the device, hidden or not

    @classmethod
    def of(cls, layout: Layout, steps: Steps, slots: SlotTimes, closing: Closing, shape: Shape, rounds: Array, stage: Index) -> _Busiest:
        """Of one stage at every point, which runs `rounds` slots of a kind in each of its rows."""
        at, points, state, trained = shape.at, np.arange(len(shape.at)), steps.state, slots.on_stage[2]
        in_slots = rounds * by_stage(_in_slots(steps, slots), shape.stages)[:, stage, points]
        kinds, lines = len(slots.device), -len(LINES)
        net, sent, behind = in_slots[kinds:lines].reshape(3, len(COLLECTIVES), -1)
        final, copied = closing.reductions[:, stage, points], np.zeros(len(at))
        if state.copies is not None:
            final[OF["host_copy"]] = closing.lowered[stage, points]
            copied = summed(trained, state.copies.renewed)[stage, points]
        names = ("late", "update", "on_host", "renewed", "regather", "gathered")
        ends = (
            closing.exposed, closing.update, closing.on_host, closing.renewed, closing.regather,
            summed(trained, state.regather) * layout.updates[at],
        )  # fmt: skip
        return cls(
            device=in_slots[:kinds], net=net, sent=sent, behind=behind, final=final, copied=copied,
            **dict(zip(("waits", "gathering", "grown", "transfer", "whole"), in_slots[lines:], strict=True)),
            **dict(zip(names, np.array(ends)[:, stage, points], strict=True)),
        )  # fmt: skip

    def all_sent(self, tied: Array) -> Array:
        """Time of all collectives, with the sum of a tied table."""
        found = self.sent + self.behind + self.final
        for name, more in (("send_recv", self.transfer), ("all_gather", self.whole + self.gathered), ("all_reduce", tied)):
            found[OF[name]] += more
        found[OF["host_copy"]] += self.copied
        return np.asarray(found)

    def exposed(self, tied: Array, *, blocks: bool) -> Array:
        """Of them, what lengthens the step; transfers between stages where each `blocks` its stage."""
        after = self.late + self.grown
        found = (
            self.net
            + self.gathering * share_of(self.behind, self.behind.sum(axis=0))
            + after * share_of(self.final, self.final.sum(axis=0))
        )
        if blocks:
            found[OF["send_recv"]] += self.transfer
            found[OF["all_gather"]] += self.whole
        for name, more in (("all_gather", self.regather), ("host_copy", self.renewed), ("all_reduce", tied)):
            found[OF[name]] += more
        return np.asarray(found)


def _pipeline(job: Job, layout: Layout, machine: Machine, steps: Steps, shape: Shape) -> dict[str, Array]:
    """Step of points whose pipelines have one shape: its time, and its parts on the busiest stage."""
    at, stack, tied = shape.at, machine.stack, steps.between.tied[shape.at]
    slots = slots_of(job, layout, machine, steps, shape)
    microbatch = layout.microbatches[at]
    rounds = microbatch / layout.directions[at]  # slots of a kind that a row has
    ends, step = _stage_ends(slots, rounds, microbatch, shape, steady=job.task == "decode"), float(stack.host.step[0])
    closing, finish = _closing(machine, steps, slots, shape, microbatch)
    after = ends + closing.exposed
    total = after.max(axis=0) + tied + finish.max(axis=0) + step
    stage = _deciding(slots, shape.stages, after)
    busiest = _Busiest.of(layout, steps, slots, closing, shape, rounds, stage)
    handing = busiest.transfer + busiest.whole
    sending = np.zeros(len(at)) if stack.overlap.pipeline else handing
    device = busiest.device
    device[-2] += busiest.update  # which main memory binds
    host = busiest.waits + microbatch * float(stack.host.microbatch[0]) + step + busiest.on_host
    compute, memory_bound, other = device[0], device[1:-1].sum(axis=0), device[-1] + host
    behind = busiest.late + busiest.grown
    outside = busiest.net.sum(axis=0) + busiest.gathering + behind + sending + tied + busiest.renewed + busiest.regather
    bubble = total - compute - memory_bound - other - outside
    bubble[bubble < 1e-12 * total] = 0.0
    shown = Exposures(beside=busiest.gathering, after=behind, renewed=busiest.renewed, regather=busiest.regather)
    handed = np.zeros((3, len(at)))  # transfers between all stages inside nodes and between nodes, and the time of all of them
    if machine.profile is not None:
        handed[:] = rounds * np.stack([*slots.handed.scopes, slots.handed.onwards.sum(axis=(0, 1))])
    of_units = unit_times(steps, slots, Counts.of(slots, layout, shape, rounds, stage), shown)
    of_units[1:, 0] += tied  # the first unit's is the table that the ends of a pipeline share
    return {
        "total": total, "compute": compute, "memory_bound_compute": memory_bound, "exposed_communication": outside, "bubble": bubble,
        "other": other, "sent": busiest.all_sent(tied), "exposed": busiest.exposed(tied, blocks=not stack.overlap.pipeline),
        "device": device, "waits": host, "units": of_units, "between": np.array([handing, sending]),
        "handed": handed,
    }  # fmt: skip


def _closing(machine: Machine, steps: Steps, slots: SlotTimes, shape: Shape, microbatches: Array) -> tuple[Closing, Array]:
    """What follows the last pass of every stage, and the time of it that no stage can hide, shape (stages, n). [s]"""
    found = closing_of(machine, steps, slots, shape)
    finish = found.update + found.on_host + found.renewed + found.regather
    if shape.schedule != "pipedream":
        return found, finish
    # Reductions and updates are in the slots, one after each microbatch.
    often = {name: microbatches * getattr(found, name) for name in ("reductions", "update", "regather")}
    return dataclasses.replace(found, exposed=np.zeros_like(found.exposed), **often), np.zeros_like(finish)


def _deciding(slots: SlotTimes, stages: int, after: Array) -> Index:
    """The busiest stage, for which others wait; of those that are as busy, the one that ends last, shape (n,)."""
    busy = by_stage(slots.busy.reshape(-1, len(slots.forward_of), after.shape[-1]).sum(axis=0), stages)
    as_busy = busy >= busy.max(axis=0) * (1.0 - 1e-9)
    return np.asarray(np.where(as_busy, after, -1.0).argmax(axis=0))


def _in_slots(steps: Steps, slots: SlotTimes) -> Array:
    """What the rows of a pipeline take in a slot of each kind, shape (kinds, three times `COLLECTIVES` and `LINES`, rows, n).

    Collectives are those that block; all of passes; and behind the passes of sharded weights their gathers, reductions and copies.
    """
    passes, state = steps.passes, steps.state
    forward_of, input_of, weight_of = slots.forward_of, slots.input_of, slots.weight_of
    behind = summed(weight_of, state.scatter)
    behind[OF["all_gather"]] += summed(forward_of + input_of, state.gather)
    if state.copies is not None:
        copied = state.copies
        through = copied.activations + copied.fetched
        behind[OF["host_copy"]] = summed(forward_of, through) + summed(input_of, through) + summed(weight_of, copied.stored)
    sent = summed(forward_of, passes.sent[:, 0]) + summed(input_of, passes.sent[:, 1])
    handed = slots.handed
    gathered = handed.boundaries.often.sum(axis=1)[:, None] * handed.gathered
    lines = np.array([slots.waits.sum(axis=0), slots.behind.sum(axis=0), slots.grown, handed.boundaries.often @ handed.sent, gathered])
    return np.concatenate([slots.device.sum(axis=1), slots.net.sum(axis=1), sent, behind, lines])


def _outcome(layout: Layout, machine: Machine, steps: Steps, found: Mapping[str, Array], held: Memory) -> Outcome:
    """Totals over all devices, and the names that people read."""
    tables, times = steps.tables, steps.times
    passes_run = layout.microbatches * layout.tp * layout.cp * layout.dp

    def done(amount: Array) -> Array:
        """Sum over all units, passes and devices of what a unit does in a pass, shape (units, phases, n)."""
        return np.asarray((amount * tables.phases).sum(axis=(0, 1)) * passes_run)

    def updated(amount: Array) -> Array:
        """Sum over all devices and updates of what the optimizer does for each unit, shape (units, n)."""
        return np.asarray((tables.occurs[2] * amount).sum(axis=0) * layout.directions * layout.tp * layout.cp * layout.dp * layout.updates)

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
        energy=done(times.energy) + updated(steps.state.optimizer.energy),
        model_flops=tables.model_flops,
        traffic=done(times.traffic) + updated(steps.state.optimizer.traffic[-1]),
        sent=(tables.moved[0], tables.moved[1]),
        bound={
            **dict(zip((*times.resources, "launch"), found["device"], strict=True)), "host": host,
            "network": found["exposed_communication"], "bubble": found["bubble"],
        },
        by_layer=by_layer,
        measured=measured,
        host_memory=held.host,
        host_capacity=held.host_capacity,
    )  # fmt: skip


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
