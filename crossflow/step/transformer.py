"""One step of a transformer: parts into layers, layers into chunks of a pipeline, passes into a step, for all points at once.

The pipeline is walked slot by slot (`crossflow.timeline.pipeline`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from crossflow.arrays import Array, divide
from crossflow.parallel.blocks import units
from crossflow.parallel.layout import Layout
from crossflow.parallel.schedules import NATURAL
from crossflow.step.by_layer import BETWEEN, FIGURES, Counts, Exposures, unit_times
from crossflow.step.memory import Memory, memory
from crossflow.step.outcome import BREAKDOWN, Job, Machine, Outcome
from crossflow.step.passes import COLLECTIVES, OF, Steps, Task, between_measured, recurrences, share_of, steps_of, task_of, weights_measured
from crossflow.step.slots import Slots, by_stage, closing_of, slots_of
from crossflow.step.stages import Shape, alike
from crossflow.timeline.pipeline import pipeline_ends

STEADY = 4  # rounds of `stages` microbatches after which a pipeline without flush is full


def transformer_step(job: Job, layout: Layout, machine: Machine, held: Memory | None = None, task: Task | None = None) -> Outcome:
    """One step of every design point.

    Parameters
    ----------
    job : model and task.
    layout : n plans.
    machine : device, network and software; its quantities may vary over the n points too.
    held, task : memory of the step and what it computes, worked out here where they are not given.
    """
    n, found = len(layout), dict[str, Array]()
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        steps = steps_of(job, layout, machine, task_of(job, layout, machine.stack) if task is None else task)
        for shape in alike(layout):
            for name, values in _pipeline(job, layout, machine, steps, shape).items():
                found.setdefault(name, np.zeros((*np.shape(values)[:-1], n)))[..., shape.at] = values
    _endless(found)
    return _outcome(job, layout, machine, steps, found, memory(job, layout, machine) if held is None else held)


def _endless(found: dict[str, Array]) -> None:
    """Say of steps without end that communication never ends, and nothing of what it would have left to other parts."""
    endless = ~np.isfinite(found["total"])
    if endless.any():
        for values in found.values():
            part = values[..., endless]
            values[..., endless] = np.where(np.isnan(part), 0.0, part)
        found["total"][endless] = found["exposed_communication"][endless] = np.inf


def _stage_ends(slots: Slots, rounds: Array, shape: Shape, *, steady: bool) -> Array:
    """Time at which every stage has finished its last slot, shape (stages, n). [s]

    With `steady` of steps that follow each other: a microbatch begins the next when it leaves the last stage.
    """
    stages, microbatches = shape.stages, shape.microbatches
    if stages == 1 and shape.schedule in NATURAL:
        return np.asarray((rounds * slots.busy.sum(axis=0))[None])
    rows = len(slots.hands[0])
    if steady:
        through = slots.busy.sum(axis=0) + (slots.hands[0] > 0).sum() * slots.flight
        return np.tile(np.maximum(rounds * by_stage(slots.busy, stages).max(axis=0), through), (stages, 1))
    forward, *back = (slots.busy[i : i + rows] for i in range(0, len(slots.busy), rows))
    backward, weight = [*back, None, None][:2]
    ends = functools.partial(pipeline_ends, forward, backward, slots.flight, weight, stages=stages, chunks=shape.chunks)
    if shape.schedule == "pipedream":  # what a microbatch adds once the pipeline is full, which cannot be less than the busiest stage takes
        added = (ends(microbatches=2 * STEADY * stages) - ends(microbatches=STEADY * stages)) / (STEADY * stages)
        busiest = by_stage(slots.busy.reshape(-1, rows, slots.busy.shape[-1]).sum(axis=0), stages).max(axis=0)
        return np.asarray(np.maximum(added, busiest) * microbatches)
    return ends(microbatches=microbatches, schedule=shape.schedule)


def _pipeline(job: Job, layout: Layout, machine: Machine, steps: Steps, shape: Shape) -> dict[str, Array]:
    """Step of points whose pipelines have one shape: its time, and its parts on the busiest stage."""
    at, stages, schedule = shape.at, shape.stages, shape.schedule
    stack, passes, state, between = machine.stack, steps.passes, steps.state, steps.between
    slots = slots_of(job, machine, steps, shape)
    forward_of, input_of, weight_of = slots.forward_of, slots.input_of, slots.weight_of
    microbatch = layout.microbatches[at]
    rounds = microbatch / layout.directions[at]  # slots of a kind that a row has
    gather, copied = state.gather[:, at], None if state.copies is None else state.copies.at(at)
    transfer, whole, tied = between.transfer[at], between.whole[at], between.tied[at]
    hop, extra = slots.hop, float(stack.host.microbatch[0])

    def staged(values: Array) -> Array:
        return by_stage(values, stages)

    closing, trained = closing_of(machine, steps, slots, shape), staged(weight_of)
    reductions, lowered, exposed, regather = closing.reductions, closing.lowered, closing.exposed, closing.regather
    update, on_host, renewed = closing.update, closing.on_host, closing.renewed
    ends = _stage_ends(slots, rounds, shape, steady=job.task == "decode")
    finish = update + on_host + renewed + regather
    if schedule == "pipedream":  # reductions and updates are in the slots, one after each microbatch
        reductions, update, regather = microbatch * reductions, microbatch * update, microbatch * regather
        exposed, finish = np.zeros_like(exposed), np.zeros_like(finish)
    after = ends + exposed
    step = float(stack.host.step[0])
    total = after.max(axis=0) + tied + finish.max(axis=0) + step
    rows = len(slots.hands[0])
    busy = staged(slots.busy.reshape(-1, rows, len(at)).sum(axis=0))
    # The busiest, for which others wait; of those that are as busy, the one that ends last.
    as_busy = busy >= busy.max(axis=0) * (1.0 - 1e-9)
    s, points = np.where(as_busy, after, -1.0).argmax(axis=0), np.arange(len(at))

    def of(values: Array) -> Array:
        """Values of that stage."""
        if values.shape[-2:] != (stages, len(at)):
            values = np.broadcast_to(values, (*values.shape[:-2], stages, len(at)))
        return np.asarray(values[..., s, points])

    device = rounds * of(staged(slots.device.sum(axis=1)))
    net = rounds * of(staged(slots.net.sum(axis=1)))
    waits = rounds * of(staged(slots.waits.sum(axis=0)))
    gathering = rounds * of(staged(slots.behind.sum(axis=0)))
    late = of(exposed * np.ones_like(ends))
    handed = rounds * of(staged(slots.hands.sum(axis=0)[:, None] * np.ones(len(at))))
    sending = np.zeros(len(at)) if stack.overlap.pipeline else handed * hop
    compute = device[0]
    memory_bound = device[1] + of(update)
    host = waits + microbatch * extra + step + of(on_host)
    other = device[2] + host
    grown = rounds * of(staged(slots.grown))
    outside = net.sum(axis=0) + gathering + late + grown + sending + tied + of(renewed) + of(regather)
    bubble = total - compute - memory_bound - other - outside
    bubble[bubble < 1e-12 * total] = 0.0
    sent = rounds * of(staged(forward_of @ passes.sent[:, 0][..., at] + input_of @ passes.sent[:, 1][..., at]))
    sent[OF["send_recv"]] += handed * transfer
    sent[OF["all_gather"]] += handed * whole
    gathers = rounds * of(staged(forward_of @ gather + input_of @ gather))
    sent[OF["all_gather"]] += of(trained @ state.regather[:, at]) * layout.updates[at]
    # Behind the passes of sharded weights run their gathers, reductions and copies; behind the last pass, reductions and copies.
    inner, final_ = np.zeros_like(sent), of(reductions)
    inner[OF["all_gather"]] = gathers
    inner += rounds * of(staged(weight_of @ state.scatter[..., at]))
    if copied is not None:
        through = copied.activations + copied.fetched
        inner[OF["host_copy"]] = rounds * of(staged(forward_of @ through + input_of @ through + weight_of @ copied.stored))
        final_[OF["host_copy"]] = of(lowered)
        sent[OF["host_copy"]] += of(trained @ copied.renewed)
    sent += inner + final_
    sent[OF["all_reduce"]] += tied
    of_units = unit_times(
        steps, slots, shape, Counts.of(slots, layout, shape, rounds, s),
        Exposures(beside=gathering, after=late + grown, renewed=of(renewed), regather=of(regather)),
    )  # fmt: skip
    of_units[1:, 0] += tied  # the first unit's is the table that the ends of a pipeline share
    shown = net.copy()
    if not stack.overlap.pipeline:
        shown[OF["send_recv"]] += handed * transfer
        shown[OF["all_gather"]] += handed * whole
    shown[OF["all_gather"]] += of(regather)
    shown[OF["host_copy"]] += of(renewed)
    shown += gathering * share_of(inner, inner.sum(axis=0)) + (late + grown) * share_of(final_, final_.sum(axis=0))
    shown[OF["all_reduce"]] += tied
    return {
        "total": total,
        "compute": compute,
        "memory_bound_compute": memory_bound,
        "exposed_communication": outside,
        "bubble": bubble,
        "other": other,
        "sent": sent,
        "exposed": shown,
        "waits": host,
        "handed": rounds * slots.hands.sum(),
        "units": of_units,
        "between": np.stack([handed * (transfer + whole), sending]),
        "occurs": np.stack([forward_of, input_of, weight_of]).sum(axis=1)[..., None] / layout.directions[at],
    }


def _outcome(job: Job, layout: Layout, machine: Machine, steps: Steps, found: Mapping[str, Array], held: Memory) -> Outcome:
    """Totals over all devices, and the names that people read."""
    times, passes, state = steps.times, steps.passes, steps.state
    forward, inputs, weights = found["occurs"]
    ranks = layout.tp * layout.cp * layout.dp
    often = recurrences(times.units, layout, machine.stack, forward=forward, backward=inputs, weight=weights)

    def done(amount: Array) -> Array:
        """Sum over all units, passes and devices of what a unit does in a pass, shape (units, phases, n)."""
        return np.asarray((amount * often).sum(axis=(0, 1)) * layout.microbatches * ranks)

    moved = layout.microbatches * (forward * passes.moved[:, 0] + inputs * passes.moved[:, 1]).sum(axis=1) / layout.pp
    moved = moved + (weights * layout.directions * state.weights.moved).sum(axis=1) / layout.pp
    sent = (forward * passes.sent[:, 0] + inputs * passes.sent[:, 1]).sum(axis=(0, 1)) * layout.microbatches * ranks
    known = (forward * passes.measured[0] + inputs * passes.measured[1]).sum(axis=0) * layout.microbatches * ranks
    measured = np.zeros(1)
    if machine.profile is not None:
        holders = weights * layout.directions * ranks
        whole, of_weights = ((holders * part).sum(axis=0) for part in weights_measured(layout, machine, state, machine.profile))
        handed, of_transfers = between_measured(job, layout, machine, steps, found["handed"] * ranks)
        measured = divide(done(times.measured) + known + of_weights + of_transfers, done(times.compute) + sent + whole + handed)
    host = found["waits"]
    types = {name: (name if name in ("embedding", "head") else name.split(".")[2]) for name in times.units}
    by_layer: dict[str, Array] = {}
    for unit, kind in enumerate(types.values()):
        for what, values in zip(FIGURES, found["units"], strict=True):
            key = f"{kind}.{what}"
            by_layer[key] = by_layer.get(key, np.zeros(len(layout))) + values[unit]
    if found["between"].any():
        by_layer |= {f"{BETWEEN}.{what}": values for what, values in zip(FIGURES[1:], found["between"], strict=True)}
    used = [i for i, _ in enumerate(COLLECTIVES) if found["sent"][i].any()]
    return Outcome(
        total=found["total"],
        breakdown={name: found[name] for name in BREAKDOWN},
        communication={COLLECTIVES[i]: found["sent"][i] for i in used},
        exposed={COLLECTIVES[i]: found["exposed"][i] for i in used},
        memory=held.kinds,
        flops=done(times.flops),
        energy=done(times.energy),
        model_flops=_model_flops(job, forward, inputs, weights) * layout.microbatches * layout.micro_batch * layout.dp,
        traffic=done(times.traffic),
        sent=(moved[0], moved[1]),
        bound={
            "compute": found["compute"], "memory": found["memory_bound_compute"], "launch": found["other"] - host, "host": host,
            "network": found["exposed_communication"], "bubble": found["bubble"],
        },
        by_layer=by_layer,
        measured=measured,
        host_memory=held.host,
        host_capacity=held.host_capacity,
    )  # fmt: skip


def _model_flops(job: Job, forward: Array, inputs: Array, weights: Array) -> Array:
    """Operations that one sample needs: forward, and as many again for each gradient; attention's backward pass takes twice. [flop]

    All scores are counted, masked or not, as published counts do.
    """
    products, backward, scores = _unit_flops(job)
    return np.asarray(products @ (forward + weights) + backward @ inputs + scores @ (forward + 2.0 * inputs))


@functools.lru_cache(maxsize=256)
def _unit_flops(job: Job) -> tuple[Array, Array, Array]:
    """Operations of one sample in each unit's products, forward and for their inputs' gradients, and in its scores. [flop]"""
    layers = [layer for layer in job.model.layers for _ in layer.parts]
    rows = []
    for unit, (_, part) in enumerate(units(job.model)):
        layer = layers[unit - 1] if 0 < unit <= len(layers) else None
        tokens = job.tokens(job.model.tokens if layer is None else layer.tokens)
        if layer is not None and not job.takes_part(layer):
            rows.append((0.0, 0.0, 0.0))
            continue
        # Keys and values of an encoder's tokens lie in the cache when a token is written.
        new = tuple(matrix for matrix in part.matrices if job.task != "decode" or matrix.over != "memory")
        products = job.model.part_flops(replace(part, attention=None, matrices=new), tokens)
        scores = 0.0
        if part.attention is not None:
            seen = job.model.memory_tokens if part.attention.cross else job.context if job.task == "decode" else tokens
            scores = part.attention.flops(tokens, seen)
        rows.append((products, products * (part.type != "embedding"), scores))
    products, backward, scores = np.array(rows).T
    return products, backward, scores
