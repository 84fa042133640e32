"""A decode step whose attention and experts run on devices of their own, between which tokens travel in every layer.

Requests are cut into micro-batches, and while the experts work on one of them, attention works on another (ping-pong pipeline [1]_). With
T_a the time of attention of one layer and one micro-batch, T_e that of its experts, T_f the longer of both, T_c that of one way between
them, and m micro-batches, both sides are busy all the time where

    T_a ~ T_e,    T_c < T_f,    m T_f >= 2 (T_f + T_c),  that is  m >= 2 (1 + T_c / T_f),

and the first token of L layers takes

    T_total = (T_a + T_e + 2 T_c) + T_f (m L - 1).

Steps follow each other here: a micro-batch begins its next token as soon as its last one is done, so that no step is filled or drained.
A layer of many equal ones then takes

    max(m T_a, m T_e, m T_c, T_a + T_e + 2 T_c),

the busiest of attention, experts and either way, or a micro-batch all by itself where m is too small. Layers that differ have no such
form, as one micro-batch may be in a layer with experts while another is in a dense one. `ping_pong` walks them instead: attention,
the way there, the experts and the way back take micro-batches in their order, one at a time, and what they take of a whole step once
that repeats is its time (an event graph, whose cycle time is an eigenvalue of a max-plus matrix [3]_). Step-3 [2]_ runs such a pipeline of
three stages, with m = 3.

References
----------
.. [1] Zhu et al., "MegaScale-Infer: Serving Mixture-of-Experts at Scale with Disaggregated Expert Parallelism", 2025, arXiv:2504.02263.
.. [2] StepFun, "Step-3 is Large yet Affordable: Model-system Co-design for Cost-effective Decoding", 2025, arXiv:2507.19427.
.. [3] Baccelli et al., "Synchronization and Linearity: An Algebra for Discrete Event Systems", 1992, Sec. 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, divide
from crossflow.cost.machine import Machine
from crossflow.cost.passes import steps_of
from crossflow.cost.pools import PoolEnd, PoolExchange, near_each_other, pool_exchange
from crossflow.engine.runs.memory import Memory, memory
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.slots import split_points
from crossflow.engine.runs.transformer import by_type, run_priced
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.tables import tables_of
from crossflow.workload.job import Job
from crossflow.workload.sides import feeds
from crossflow.workload.transformer import Transformer

UNHELD = (
    "the experts do not fit in their devices; give more of them (serving.experts.strategy, such as a larger ep), devices with more memory "
    "(system.pools.experts) or narrower weights (workload.weight_dtype)"
)
ROUNDS, SETTLED = 24, 1e-11  # steps after which a rhythm is taken as it is, and how alike two steps are that are the same. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertPool:
    """Devices on which the experts lie, with their plans; arrays of shape (n,)."""

    machine: Machine
    layout: Layout
    micro_batches: Array  # that a step is cut into at most. [1]

    def step(self, job: Job, layout: Layout, machine: Machine, held: Memory | None = None) -> PooledStep:
        """A step with these experts, as of `pooled_step`."""
        return pooled_step(job, layout, machine, self, held)

    def outcome(self, job: Job, layout: Layout, machine: Machine, held: Memory | None = None) -> Outcome:
        """What comes of it as a whole."""
        return self.step(job, layout, machine, held).outcome


@dataclass(frozen=True, kw_only=True, eq=False)
class PooledStep:
    """A step of both sides; arrays of shape (n,)."""

    outcome: Outcome  # of the whole step; its energy, what it sends and what it holds are of the devices that attend
    energy: Array  # of operations and traffic of the experts' devices. [J]
    sent: tuple[Array, Array]  # what each of these sends inside its node, and out of it. [B]
    figures: Mapping[str, Array]  # by column


@dataclass(frozen=True, kw_only=True, eq=False)
class _PoolSide:
    """What devices of one side do in a step."""

    outcome: Outcome
    units: tuple[str, ...]
    time: Array  # of one micro-batch on every unit, shape (units, n). [s]
    often: Array  # how often a micro-batch passes every unit, shape (units, n). [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hop:
    """Attention before a feed-forward part, the way there, the part, the way back; `count` of them in a row. Arrays of shape (n,). [s]"""

    attention: Array
    there: Array
    experts: Array
    back: Array
    count: Array  # [1]


def pooled_step(job: Job, layout: Layout, machine: Machine, pool: ExpertPool, held: Memory | None = None) -> PooledStep:
    """A decode step of n points.

    Parameters
    ----------
    job : writing of tokens, of the whole model.
    layout : plans of the devices that attend, with all requests.
    machine : these devices.
    held : what they hold, worked out here where it is not given.
    """
    requests = layout.micro_batch * layout.microbatches
    many = np.maximum(np.minimum(np.floor(requests), pool.micro_batches), 1.0)
    mine = replace(layout, micro_batch=requests / many, microbatches=many)
    job = _cut(job, layout.microbatches / many)
    its = replace(pool.layout, micro_batch=requests * layout.dp / (pool.layout.dp * many), microbatches=many)
    ends = PoolEnd(machine=machine, layout=mine), PoolEnd(machine=pool.machine, layout=its)
    attends, feeding = job.sides[0], _cut(job.sides[1], layout.dp / pool.layout.dp)
    theirs = memory(feeding, its, pool.machine)
    with np.errstate(invalid="ignore", divide="ignore"):  # of a step without end, no part is worth a number
        sides = (
            _side(attends, mine, machine, memory(attends, mine, machine) if held is None else held),
            _side(feeding, its, pool.machine, theirs),
        )
        each = pool_exchange(job, *ends)
        hops = hops_of(job.model, sides[0].time, sides[1].time, each.time)
        ways = PoolExchange(size=each.size * sides[0].often * many, time=each.time * sides[0].often * many)  # of the whole step
        period, without = ping_pong(hops, many), ping_pong([replace(hop, there=0.0 * hop.there, back=0.0 * hop.back) for hop in hops], many)
        outcome = _together(sides, period, without, many, ways, ends, ~theirs.fits)
    sent = _sent(sides[1].outcome, ways, ends, 1)
    return PooledStep(
        outcome=outcome, energy=sides[1].outcome.energy, sent=sent, figures=_figures(sides, outcome.total, ways, many, theirs)
    )


def _cut(job: Job, share: Array) -> Job:
    """A job whose microbatches read so many times the pieces of prompts beside what they write."""
    return job if job.chunk is None else replace(job, chunk=replace(job.chunk, pieces=job.chunk.pieces * share))


def _side(job: Job, layout: Layout, machine: Machine, held: Memory) -> _PoolSide:
    """One side by itself; where its host is slower than its devices, it holds up all units alike."""
    tables = tables_of(job, layout, machine.stack)
    prices = steps_of(job, layout, machine, tables)
    sums = UnitSums.of(prices, split_points(prices.tables.shapes, len(layout)))
    time, often = sums.device[0] + sums.blocks[0], prices.tables.occurs[0]
    slower = np.maximum(divide((often * sums.host[0]).sum(axis=0), (often * time).sum(axis=0)), 1.0)
    return _PoolSide(outcome=run_priced(job, layout, machine, prices, sums, held), units=tables.units, time=time * slower, often=often)


# -------------------------------------------------------------------------------------------- ping-pong


def hops_of(model: Transformer, attention: Array, experts: Array, ways: Array) -> list[Hop]:
    """What a micro-batch passes in a step, one hop after the other; the last has nothing but attention.

    Parameters
    ----------
    attention, experts : time of every unit on either side, shape (units, n). [s]
    ways : time of both ways of every unit, shape (2, units, n). [s]
    """
    starts = 1 + np.cumsum([0, *(len(layer.parts) for layer in model.kinds)])
    found, before, none = list[Hop](), attention[0], np.zeros(attention.shape[-1])
    for layer, kind in zip(model.layers, model.kind_of, strict=True):
        if layer.predicts or layer.encodes:
            continue
        inside, own = list[Hop](), none
        for unit, part in enumerate(layer.parts, int(starts[kind])):
            own = own + attention[unit]
            if feeds(part):
                inside.append(Hop(attention=own, there=ways[0, unit], experts=experts[unit], back=ways[1, unit], count=np.ones(1)))
                own = none
        found, before = _joined(found, inside, before, own, np.asarray(layer.count, dtype=float))
    return [*found, Hop(attention=before + attention[-1], there=none, experts=none, back=none, count=np.ones(1))]


def _joined(found: list[Hop], inside: list[Hop], before: Array, after: Array, count: Array) -> tuple[list[Hop], Array]:
    """Hops with those of a group of layers: what comes `before` them, and `after` the last part of each that leaves; and what is left."""
    if not inside:
        return found, before + after * count
    first = replace(inside[0], attention=inside[0].attention + before)
    again = replace(inside[0], attention=inside[0].attention + after)
    if len(inside) == 1:
        return [*found, first, *([replace(again, count=count - 1.0)] if np.any(count > 1.0) else [])], after
    rest = [replace(hop, count=np.where(count > layer, 1.0, 0.0)) for layer in range(1, int(np.max(count))) for hop in (again, *inside[1:])]
    return [*found, first, *inside[1:], *rest], after


def ping_pong(hops: Sequence[Hop], many: Array) -> Array:
    """Time of a step of so many micro-batches that follows others like it, shape (n,); endless where any hop is. [s]"""
    endless = np.logical_or.reduce([~np.isfinite(hop.attention + hop.there + hop.experts + hop.back) for hop in hops])
    hops = [_finite(hop, endless) for hop in hops]
    most, n = int(np.max(many)), endless.size
    state = np.zeros((most + 4, n))  # when each micro-batch is ready for attention, and when attention, ways and experts are free
    last = np.broadcast_to(np.asarray(many, dtype=int) - 1, (n,))
    passed = list[Array]()
    for _ in range(ROUNDS):
        before = state
        for hop in hops:
            state = _row(state, hop, last)
        passed.append(state[0] - before[0])
        if _alike(state - before, last):
            break
    else:
        passed[-1] = np.mean(passed[len(passed) // 2 :], axis=0)
    return np.asarray(np.where(endless, np.inf, passed[-1]))


def _finite(hop: Hop, endless: Mask) -> Hop:
    times = {name: np.where(endless, 0.0, getattr(hop, name)) for name in ("attention", "there", "experts", "back")}
    return replace(hop, **times)


def _row(state: Array, hop: Hop, last: Index) -> Array:
    """State after so many equal hops in a row; once one adds the same to all of it, so do the others."""
    most = int(np.max(hop.count))
    for done in range(most):
        following = _hop(state, hop, last)
        added = np.where(done < hop.count, following - state, 0.0)
        if done + 1 < most and _alike(added, last):
            return np.asarray(state + added[0] * np.maximum(hop.count - done, 0.0))
        state = state + added
    return np.asarray(state)


def _alike(added: Array, last: Index) -> bool:
    """Whether a state has grown by the same everywhere; of micro-batches that a point does not have nothing is asked."""
    many = len(added) - 4
    real = np.vstack([np.arange(many)[:, None] <= last, np.ones((4, len(last)), dtype=bool)])
    least, most = np.where(real, added, np.inf).min(axis=0), np.where(real, added, -np.inf).max(axis=0)
    return bool((most - least <= SETTLED * np.maximum(most, 1e-30)).all())


def _hop(state: Array, hop: Hop, last: Index) -> Array:
    """State after one hop."""
    ready, free = state[:-4], state[-4:]
    left = list[Array]()
    for station, time in zip(free, (hop.attention, hop.there, hop.experts, hop.back), strict=True):
        order = np.arange(len(ready))[:, None] * time
        ready = np.maximum.accumulate(np.maximum(ready, station) - order, axis=0) + order + time
        left.append(np.take_along_axis(ready, last[None], axis=0)[0])
    return np.vstack([ready, left])


# -------------------------------------------------------------------------------------------- both sides together


def _together(
    sides: tuple[_PoolSide, _PoolSide],
    period: Array,
    without: Array,
    many: Array,
    ways: PoolExchange,
    ends: tuple[PoolEnd, PoolEnd],
    full: Mask,
) -> Outcome:
    """The step as the busier side sees it: its own time, what exchanges add, and what it waits for the other."""
    one, other = (side.outcome for side in sides)
    stack = ends[0].machine.stack
    host = float(stack.host.step[0]) + many * float(stack.host.microbatch[0])
    total, later = period + host, other.total > one.total
    rest = np.where(np.isfinite(total), np.maximum(total - np.where(later, other.total, one.total), 0.0), 0.0)
    shown = np.where(np.isfinite(total), np.clip(period - without, 0.0, rest), np.inf)
    waits = {"exposed_communication": shown, "bubble": np.where(np.isfinite(shown), rest - shown, 0.0)}
    resources = {"network": shown, "bubble": waits["bubble"]}
    breakdown = _chosen(later, one.breakdown, other.breakdown)
    bound = _chosen(later, one.bound, other.bound)
    travelled = ways.time.sum(axis=0)
    exposed = travelled * divide(shown, travelled.sum(axis=0))
    layers = _added(one.by_layer, other.by_layer)
    more = dict[str, Array]()
    for what, values in (("communication", travelled), ("exposed", exposed)):
        more |= {f"{kind}.{what}": each for kind, each in by_type(values, sides[1].units).items() if np.any(each)}
    sent = travelled.sum(axis=0)
    return replace(
        one,
        total=total,
        breakdown=_added(breakdown, waits),
        communication=_added(_added(one.communication, other.communication), {"send_recv": sent}),
        exposed=_added(_chosen(later, one.exposed, other.exposed), {"send_recv": shown}),
        flops=one.flops + other.flops,
        model_flops=one.model_flops + other.model_flops,
        traffic=one.traffic + other.traffic,
        sent=_sent(one, ways, ends, 0),
        bound=_added(bound, resources),
        by_layer=_added(layers, more),
        problems=((full, UNHELD), *one.problems),
    )


def _added(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Sums by name; what one of both lacks is nothing there."""
    none = np.zeros(1)
    return {name: one.get(name, none) + other.get(name, none) for name in dict.fromkeys([*one, *other])}


def _chosen(later: Mask, one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Values of the side that is busier, by name."""
    none = np.zeros(1)
    return {name: np.where(later, other.get(name, none), one.get(name, none)) for name in dict.fromkeys([*one, *other])}


def _sent(outcome: Outcome, ways: PoolExchange, ends: tuple[PoolEnd, PoolEnd], way: int) -> tuple[Array, Array]:
    """What a device of a side sends inside its node and out of it, with its way of the exchange. [B]"""
    more = ways.size[way].sum(axis=0) / ends[way].devices
    near = near_each_other(*ends)
    return outcome.sent[0] + np.where(near, more, 0.0), outcome.sent[1] + np.where(near, 0.0, more)


def _figures(sides: tuple[_PoolSide, _PoolSide], total: Array, ways: PoolExchange, many: Array, theirs: Memory) -> dict[str, Array]:
    """Columns of a service whose experts lie apart."""
    return {
        "attention_busy": divide(sides[0].outcome.total, total),
        "experts_busy": divide(sides[1].outcome.total, total),
        "exchange_time_s": ways.time.sum(axis=(0, 1)),
        "exchange_bytes": ways.size.sum(axis=(0, 1)),
        "micro_batches": many,
        "experts_memory_bytes": theirs.total,
        "experts_memory_capacity_bytes": theirs.capacity,
    }
