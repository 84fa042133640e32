"""Goodput of a long run in closed form: what a cycle from one restart to the next keeps, over how long it takes (renewal reward).

With failures of rate l (a Poisson process while the job runs and restarts), checkpoints every P = interval + stall that can be read
`commit` later, detection d, restarts R that a failure begins anew, and waiting w for a node:

    kept  = interval exp(-l commit) / (exp(l P) - 1)              from one restart to the next failure
    cycle = exp(l R) (1 / l + d + w)                               in the mean
    goodput = kept / cycle

which is Daly's complete model [1]_, Eq. 20, where d = w = commit = 0. Planned stops of rate m keep all work: then l + m
ends a cycle. They come at random here, and at equal distances in `events`.

Failures come in bursts [3]_: one of cause c strikes again with probability q as soon as the job has restarted. With s = exp(-l R), the
probability that nothing strikes in a restart, and p the part of each cause in l, a failure leads to p / (1 - s q) / (s B) strikes of each
cause in the mean, with B = sum p (1 - q) / (1 - s q); of those that begin with cause c a restart is tried
(1 + (1 - s) W) / (1 - s q) times, W the sum of all. Nodes of a burst break nearly together, and those of a domain (a rack, what is below a
switch) break and come back together, which the queue of repairs and an elastic job both know (`sparing`).

Slow devices are periods that come at random and end by themselves; as many of a cause are under way as customers in an M/G/oo queue [4]_,
Poisson of mean rate x length, and the slowest of all rules the job. They are independent of failures, so that in the mean all work of the
run takes E[1 / slowdown] of its time. Steps that vary by themselves wait for the slowest of all (`jitter`), beside a slow device or not.

Exact are all parts but two. The wait for nodes takes failures for Poisson in all time without waiting, as Erlang's formula does [2]_: of
nodes that break alone it is exact without spares, and where restarts are short beside the time between failures; `events` has no such
limit. An elastic job fails as often with fewer replicas as with all, and a repaired node joins it without a stop. An error that nobody
has noticed yet hides others.

References
----------
.. [1] J. T. Daly, FGCS 22(3), 2006.
.. [2] See `sparing`.
.. [3] D. Tiwari, S. Gupta, S. Vazhkudai, "Lazy Checkpointing: Exploiting Temporal Locality in Failures to Mitigate Checkpointing Overheads
   on Extreme-Scale Systems", DSN 2014 (failures follow soon on failures).
.. [4] L. Takacs, "Introduction to the Theory of Queues", Oxford 1962, Ch. 3 (whatever the law of lengths). T. Wu et al., "Falcon:
   Pinpointing and Mitigating Stragglers for Large-Scale Hybrid-Parallel Training", arXiv:2410.12588, 2024 (from seconds to ten hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array, points, share_of, wide
from crossflow.engine.lasting.jitter import slowest
from crossflow.engine.lasting.record import JITTER, KINDS_OF_TIME, NONE, PLANNED, LongRun, TimeShares
from crossflow.engine.lasting.sparing import MOST_SPARES, Outage, lost_speed, shortages

_MOST = 600.0  # exponent, beyond which a job never gets on
_ROUNDS = 3  # of the search for spares: a geometric grid, then two finer ones between its neighbours
_GRID = 16
_STEPS = 40  # of nodes and domains after it, at most
_BURSTS = 100  # steps to rates of first strikes


def _power(exponent: Array) -> Array:
    return np.exp(np.minimum(exponent, _MOST))


def _runs(run: LongRun) -> tuple[Array, Array, Array]:
    """Of a stretch from a restart to the next stop: time that computes, work that a failure leaves, and time at all. [s]"""
    stops = run.stops
    whole = -np.expm1(-stops * run.cycle)  # probability that a cycle is cut off
    computing = -np.expm1(-stops * run.interval) / (stops * whole)
    with np.errstate(under="ignore"):
        kept = run.interval * np.exp(-stops * (run.commit + run.cycle)) / whole
    return computing, np.minimum(kept, computing), 1.0 / stops


def _bursts(run: LongRun, struck: Array) -> tuple[list[Array], Array]:
    """Failures by cause that a failure of any cause leads to, itself among them, and those that strike in a restart before it ends. [1]

    struck : probability that something strikes in a restart.
    """
    whole = np.exp(-np.minimum(run.failures * run.restart, _MOST))
    parts = [one.rate / run.failures for one in run.causes]
    once = [1.0 / (1.0 - whole * one.again) for one in run.causes]  # strikes of a cause until it does not strike again at once
    over = sum((part * (1.0 - one.again) * many for part, one, many in zip(parts, run.causes, once, strict=True)), np.zeros(1))
    after = [part * many / np.maximum(whole * over, 1e-300) for part, many in zip(parts, once, strict=True)]
    return after, struck * sum(after, np.zeros(1))


def first_of_bursts(rates: Sequence[Array], again: Sequence[float], restart: Array) -> list[Array]:
    """Rates at which causes strike by themselves, where bursts among them make up rates of all strikes. [1/s]

    A restart in which another failure strikes ends the burst before it, so that a strike leads to 1 / (1 - s q) of its cause: the rate is
    l (1 - s q), where s = exp(-R x) and x is the sum of these rates. The sum rises with x and is concave, so that the iteration from
    below comes to the one x that there is.

    rates : of all strikes of each cause while the job runs and restarts. [1/s]
    """
    found = [rate * (1.0 - often) for rate, often in zip(rates, again, strict=True)]
    for _ in range(_BURSTS if any(again) else 0):
        whole = np.exp(-np.minimum(sum(found, np.zeros(1)) * restart, _MOST))
        found = [rate * (1.0 - whole * often) for rate, often in zip(rates, again, strict=True)]
    return found


def _slowed(run: LongRun) -> dict[str, Array]:
    """Share of the work that is not done because of each cause of slowness, whose slowest one rules, and because steps vary. [1]"""
    found, faster = dict[str, Array](), np.ones(1)  # the latter is the probability that nothing slower is under way
    steady = 1.0 / slowest(run.jitter)
    for one in sorted(run.slow, key=lambda one: -one.slowdown):
        present = -np.expm1(-one.rate * one.length)
        found[one.name] = faster * present * (steady - 1.0 / slowest(run.jitter, one.slowdown))
        faster = faster * (1.0 - present)
    return found if run.jitter is None else {**found, JITTER: 1.0 - steady}


def expected(run: LongRun) -> TimeShares:
    """Where the time of a run goes in the mean over a long time; arrays of shape (n,)."""
    n, failures, stops = len(run), run.failures, run.stops
    computing, kept, running = _runs(run)
    planned, failing = run.planned / stops, sum((one.rate for one in run.causes), np.zeros(1)) / stops
    struck = -np.expm1(-np.minimum(failures * run.restart, _MOST))  # probability that something strikes in a restart
    after, further = _bursts(run, struck)
    often = [each * (failing + planned * struck) for each in after]  # failures of a cycle by cause
    attempt = struck / failures  # mean time until a restart ends or something strikes in it
    restarting = [one.rate / stops * (1.0 + further) / (1.0 - (1.0 - struck) * one.again) * attempt for one in run.causes]
    restarted = planned * (1.0 + further) * attempt
    detection = [many * one.detection for many, one in zip(often, run.causes, strict=True)]
    upkeep = planned * (run.stall + run.commit + run.maintenance)
    awake = running + sum(restarting, restarted) + upkeep + sum(detection, np.zeros(1))  # of a cycle without waiting for nodes. [s]
    taken = [one.taken(run.nodes) for one in run.causes]
    broken = [
        many * one.repair * sum((share * size for share, size in sizes), np.zeros(1))
        for many, one, sizes in zip(often, run.causes, taken, strict=True)
    ]
    outages = [
        Outage(load=share * many * one.repair / awake, repair=repair, nodes=size,
               again=one.again * np.exp(-np.minimum((one.detection + run.restart) / repair, _MOST)))
        for many, one, sizes in zip(often, run.causes, taken, strict=True)
        for repair in (np.maximum(one.repair, 1e-300),)
        for share, size in sizes
    ]  # fmt: skip
    short_of = iter(shortages(run.spares, outages))
    missing, waiting = list[Array](), list[Array]()
    for many, one, sizes in zip(often, run.causes, taken, strict=True):
        found = [(share, next(short_of)) for share, _ in sizes]
        takes = many * (one.repair > 0)
        missing.append(takes * sum((share * each.missing for share, each in found), np.zeros(1)))
        waiting.append(~run.goes_on * takes * sum((share * each.missing * each.wait for share, each in found), np.zeros(1)))
    taking = sum((many * (one.repair > 0) for many, one in zip(often, run.causes, strict=True)), np.zeros(1))
    cycle = awake + sum(waiting, np.zeros(1))
    lost = failing * (computing - kept)
    vain = [spent if one.silent else NONE for spent, one in zip(detection, run.causes, strict=True)]
    done = computing - lost
    short = run.goes_on * lost_speed(run.spares, outages, run.replica, run.nodes / run.replica, run.idle) if run.elastic else NONE
    slowed = {name: done * (1.0 - short) * share for name, share in _slowed(run).items()}
    late = sum(slowed.values(), np.zeros(1))
    times = {
        "useful": done * (1.0 - short) - late, "slowed": late, "saving": running - computing, "lost_work": lost + sum(vain, np.zeros(1)),
        "detection": sum(detection, np.zeros(1)) - sum(vain, np.zeros(1)), "restart": sum(restarting, np.zeros(1)),
        "waiting": sum(waiting, np.zeros(1)), "maintenance": upkeep + restarted, "shrunk": done * short,
    }  # fmt: skip
    shares = {kind: wide(times[kind] / cycle, n) for kind in KINDS_OF_TIME}
    by_cause = {
        one.name: wide((one.rate / stops * (computing - kept) + comes_back + spent + waits) / cycle, n)
        for one, comes_back, spent, waits in zip(run.causes, restarting, detection, waiting, strict=True)
    }
    by_cause |= {name: wide(lost_by / cycle, n) for name, lost_by in slowed.items()}
    return TimeShares(
        shares=shares, by_cause={PLANNED: shares["maintenance"], **by_cause},
        interruptions=wide(sum(often, np.zeros(1)) / cycle, n), missing=wide(share_of(sum(missing, np.zeros(1)), taking), n),
        away=wide(sum(broken, np.zeros(1)) / cycle, n),
    )  # fmt: skip


def best_spares(run: LongRun) -> Array:
    """The number of spares at which a unit of work takes the least node-time, (nodes + spares) / goodput, shape (n,). [1]

    Costs fall and rise anew where spares are enough for one more domain, so that a search on finer and finer grids is followed by steps of
    a node and of whole domains.
    """
    n = len(run)
    low = np.zeros(n)
    load = wide(expected(replace(run, spares=points(0.0), elastic=True, replica=0.5 * run.nodes)).away, n)
    domains = {min(one.domain, MOST_SPARES) for one in run.causes if one.repair.any()} | {1.0}
    high = np.minimum(np.ceil(load + 10.0 * np.sqrt(load * max(domains)) + 10.0 * max(domains)), MOST_SPARES)
    if len(domains) > 1:
        high = np.minimum(high, _worthwhile(run, load, max(domains)))
    for _ in range(_ROUNDS):
        grid = np.unique(np.round(low + (high - low) * np.linspace(0.0, 1.0, _GRID)[:, None]), axis=0)
        costs = _work_costs(run, grid)
        least = costs.argmin(axis=0)
        low = np.take_along_axis(grid, np.maximum(least - 1, 0)[None], axis=0)[0]
        best = np.take_along_axis(grid, least[None], axis=0)[0]
        high = np.take_along_axis(grid, np.minimum(least + 1, len(grid) - 1)[None], axis=0)[0]
    for _ in range(_STEPS if len(domains) > 1 else 0):
        tried = np.stack([best, *(np.maximum(best + way, 0.0) for size in domains for way in (-size, size))])
        costs = _work_costs(run, tried)
        before, best = best, np.take_along_axis(tried, costs.argmin(axis=0)[None], axis=0)[0]
        if (before == best).all():
            break
    return np.asarray(best)


def _worthwhile(run: LongRun, load: Array, domain: float) -> Array:
    """Spares beyond which work costs more than with fewer ones, however good the rest: nodes are paid for that gain at most all waits. [1]

    load : nodes in repair.  domain : most nodes that break together. [1]
    """
    whole = expected(replace(run, causes=tuple(replace(one, repair=0.0 * one.repair) for one in run.causes))).goodput
    tried = np.round(load + np.array([[0.0], [4.0], [4.0 * np.sqrt(domain)]]) * np.sqrt(load))
    with np.errstate(invalid="ignore"):
        bound = np.ceil(_work_costs(run, np.minimum(tried, MOST_SPARES)).min(axis=0) * whole - run.nodes)
    return np.where(np.isnan(bound), np.inf, np.maximum(bound, 0.0))


def _work_costs(run: LongRun, grid: Array) -> Array:
    """Nodes that are paid for, over the share of time that counts, for numbers of spares of shape (numbers, n). [1]"""
    if grid.shape[1] == 1:  # all numbers at once
        return _work_cost(run, grid[:, 0])[:, np.newaxis]
    return np.stack([_work_cost(run, number) for number in grid])


def _work_cost(run: LongRun, spares: Array) -> Array:
    """Nodes that are paid for, over the share of time that counts. [1]"""
    with np.errstate(divide="ignore"):
        return np.asarray((run.nodes + spares) / expected(replace(run, spares=spares)).goodput)
