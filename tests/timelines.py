"""Small timelines made by hand: pipelines of two kinds of passes and an update, with some ranks alike."""

import numpy as np

from crossflow.engine.timeline.record import COMMUNICATION, COMPUTE, PIPELINE, TENSOR, WAIT, WORK, Device, PassEvents, Slots, Timeline
from crossflow.parallel.strategy.schedules import one_f_one_b

NAMES = ("attention", "feed forward", "optimiser", "attention all_reduce", "send_recv", "straggler all_reduce")
MS = 1e-3
LAG = 0.1 * MS


def passed(label, events, time=None):
    """A pass of events (name, stream, kind, start, end, layer), in milliseconds."""
    name, stream, kind, start, end, layer = (np.array(column) for column in zip(*events, strict=True))
    time = (end.max() if time is None else time) * MS
    return PassEvents(label=label, time=time, name=name, stream=stream, kind=kind, start=start * MS, end=end * MS, layer=layer)


def layered(label, layers, work, exposed, wait=0.0):
    """A pass of layers, each of two kernels, then a collective that nothing hides and the wait for its last rank."""
    events, at = [], 0.0
    for layer in range(layers):
        half, done = at + work / 2, at + work
        events += [(0, COMPUTE, WORK, at, half, layer), (1, COMPUTE, WORK, half, done, layer)]
        events += [(3, TENSOR, COMMUNICATION, done, done + exposed, layer)]
        at = done + exposed
        if wait:
            events.append((5, TENSOR, WAIT, at, at + wait, layer))
            at += wait
    # Sent while the next pass computes.
    events.append((4, PIPELINE, COMMUNICATION, at - work / 2, at, -1))
    return passed(label, events, at)


def pipeline(stages=2, microbatches=3, *, layers=2, work=2.0, exposed=0.5, wait=0.25, replicas=2, title="toy"):
    """A 1F1B pipeline whose stages end with an update."""
    passes = (
        layered("F", layers, work, exposed),
        layered("B", layers, 2 * work, exposed, wait),
        passed("update", [(2, COMPUTE, WORK, 0.0, 1.0, -1)]),
    )
    slots = _slots(one_f_one_b(stages, 1, microbatches), passes)
    total = float(slots.end.max())
    busy = microbatches * layers * 3 * work * MS
    return Timeline(
        title=title, names=NAMES, passes=passes, slots=slots, total=total, node=2, capacity=4 * 2.0**30,
        devices=tuple(Device(name=f"stage {i}", stage=i, ranks=range(i * replicas, (i + 1) * replicas)) for i in range(stages)),
        memory=tuple(_memory(slots, i) for i in range(stages)), even_idle=np.full(stages, (total - busy) / 2),
    )  # fmt: skip


def _slots(order, passes):
    """Slots of an order and the updates behind them, each as early as its device and its source allow."""
    ends, made, todo = {}, [], [mine.tolist() for mine in order.slots]
    free, at = [0.0] * order.stages, [0] * order.stages
    while any(at[i] < len(todo[i]) for i in range(order.stages)):
        for stage in range(order.stages):
            while at[stage] < len(todo[stage]):
                kind, _, batch = todo[stage][at[stage]]
                needs = (kind, stage - 1 if kind == 0 else stage + 1, batch)
                outside = 0 <= needs[1] < order.stages
                if outside and needs not in ends:
                    break
                source = ends[needs] if outside else -1
                start = max(free[stage], made[source][3] + LAG if outside else 0.0)
                free[stage] = start + passes[kind].time
                ends[kind, stage, batch] = len(made)
                made.append((stage, kind, start, free[stage], batch, source, LAG if outside else 0.0))
                at[stage] += 1
    made += [(stage, 2, free[stage], free[stage] + passes[2].time, -1, -1, 0.0) for stage in range(order.stages)]
    device, passed_, start, end, batch, source, lag = (np.array(column) for column in zip(*made, strict=True))
    joins = np.zeros((2, 0), dtype=np.intp)
    return Slots(device=device, passed=passed_, start=start, end=end, microbatch=batch, source=source, lag=lag, joins=joins)


def _memory(slots, stage):
    """A gibibyte of weights, and half a one of activations from each forward pass until its backward pass is through."""
    mine = np.flatnonzero((slots.device == stage) & (slots.passed < 2))
    forward = slots.passed[mine] == 0
    times = np.where(forward, slots.start[mine], slots.end[mine])
    order = np.argsort(times, kind="stable")
    return np.append(0.0, times[order]), 2.0**30 * (1 + 0.5 * np.append(0.0, np.cumsum(np.where(forward, 1, -1)[order])))
