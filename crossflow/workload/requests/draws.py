"""Requests drawn from laws: arrivals, lengths, sessions, calls of tools, users in a closed loop.

Every quantity has a generator of its own, seeded by the seed, the class and what is drawn: other arrivals leave the lengths as they were,
so that scenarios that differ in load are compared on the same requests.

References
----------
.. [1] Lewis and Shedler, "Simulation of Nonhomogeneous Poisson Processes by Thinning", Naval Research Logistics 26(3), 1979, Sec. 1
   (time-scale transformation).
.. [2] Iman and Conover, "A Distribution-Free Approach to Inducing Rank Correlation Among Input Variables", Communications in
   Statistics B11(3), 1982.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.laws import TOKENS, ArrivalLaw, CountLaw, LengthLaw, TimeLaw, normal_of
from crossflow.workload.requests.record import RequestClass, RequestTrace, joined
from crossflow.workload.requests.shared import shared_blocks
from crossflow.workload.requests.spec import BLOCK, CONTENTS, MOST, TIMES, RequestClassSpec, RequestSource, RequestsSpec, UsersSpec

HOUR = 3600.0  # of a curve whose rates are of hours. [s]
# What each generator draws; the numbers are part of the seed, so that they stay.
GAPS, SWITCHES, KINDS, PROMPTS, OUTPUTS, COUPLING, TURNS, THINKING, CALLS, TOOL_TIMES, TOOL_TOKENS, PREFIXES, USERS = range(13)
Lengths = Callable[[LengthLaw], Index]  # values of the file of an empirical law


class Dice(NamedTuple):
    """Generators of one class."""

    seed: int
    kind: int  # number of the class, 0 for what classes share

    def of(self, what: int) -> np.random.Generator:
        """The generator of a quantity."""
        return np.random.default_rng([self.seed, self.kind, what])


# ------------------------------------------------------------------------------------------ numbers


def lengths(law: LengthLaw, n: int, rng: np.random.Generator, values_of: Lengths) -> Index:
    """Tokens by a law, shape (n,). [1]"""
    if law.law == "fixed":
        found = np.full(n, law.tokens, dtype=np.intp)
    elif law.law == "uniform":
        assert law.low is not None  # the law's keys are checked
        assert law.high is not None
        found = rng.integers(law.low, law.high, n, dtype=np.intp, endpoint=True)
    elif law.law == "empirical":
        values = values_of(law) if law.values is None else np.array(law.values, dtype=np.intp)
        found = rng.choice(values, n)
    else:
        mean, deviation = normal_of(law.median, law.p95, law.mean, law.cv)
        found = np.rint(np.clip(np.exp(mean + deviation * rng.standard_normal(n)), 1.0, TOKENS)).astype(np.intp)
    return found if law.most is None else np.minimum(found, law.most)


def times(law: TimeLaw, n: int, rng: np.random.Generator) -> Array:
    """Times by a law, shape (n,). [s]"""
    if law.law == "fixed":
        return np.full(n, law.time, dtype=float)
    if law.law == "exponential":
        assert law.mean is not None  # the law's keys are checked
        return rng.exponential(law.mean, n)
    if law.law == "uniform":
        assert law.low is not None
        assert law.high is not None
        return rng.uniform(law.low, law.high, n)
    mean, deviation = normal_of(law.median, law.p95, law.mean, law.cv)
    return np.asarray(np.exp(mean + deviation * rng.standard_normal(n)))


def counts(law: CountLaw, n: int, rng: np.random.Generator, least: int) -> Index:
    """Whole numbers by a law, shape (n,); a geometric one begins at `least`. [1]"""
    if law.law == "fixed":
        return np.full(n, law.number, dtype=np.intp)
    if law.law == "uniform":
        assert law.low is not None  # the law's keys are checked
        assert law.high is not None
        return rng.integers(law.low, law.high, n, dtype=np.intp, endpoint=True)
    if law.law == "empirical":
        return rng.choice(np.array(law.values, dtype=np.intp), n)
    assert law.mean is not None
    return rng.geometric(1.0 / (law.mean - least + 1.0), n).astype(np.intp) - 1 + least


def coupled(first: Index, second: Index, correlation: float, rng: np.random.Generator) -> Index:
    """The second lengths in another order, so that both have the ranks of normal variables of a correlation [2]_; both keep their laws."""
    z = rng.standard_normal((2, len(first)))
    z[1] = correlation * z[0] + np.sqrt(1.0 - correlation**2) * z[1]
    # Ranks of the first lengths, ties in the order of z, are those of z[0]: the second take the places of z[1] in that order.
    place = np.empty(len(first), dtype=np.intp)
    place[np.lexsort((rng.random(len(first)), first))] = np.argsort(z[0])
    ranks = np.empty(len(first), dtype=np.intp)
    ranks[np.argsort(z[1])] = np.arange(len(first))
    return np.asarray(np.sort(second)[ranks[place]])


# ------------------------------------------------------------------------------------------ arrivals


def arrivals(law: ArrivalLaw, dice: Dice, *, count: int | None, duration: float | None, scale: float = 1.0) -> Array:
    """Times of arrival, of a count or within a duration, not falling. [s]

    Gaps have a mean of one arrival on a clock that runs at the rate of arrivals; that clock's times are mapped back [1]_.

    scale : of all rates. [1]
    """
    if count is None:
        assert duration is not None  # the section is checked
        expected = law.mean_rate * scale * duration
        if expected > MOST:
            raise CrossflowError(
                f"arrivals: about {expected:,.0f} requests would come, more than the {MOST:,} that are drawn; shorten duration"
            )
    clock = _clock(law, dice, count, duration, scale)
    ticks = _ticks(law, dice.of(GAPS), count, None if duration is None else clock.ticks[-1])
    found = np.interp(ticks, clock.ticks, clock.times) if count is None else _mapped(law, dice, scale, ticks)
    return np.maximum.accumulate(found)


class _Clock(NamedTuple):
    """Arrivals that are expected until some times, between which the rate is constant."""

    times: Array  # [s]
    ticks: Array  # [1]


def _ticks(law: ArrivalLaw, rng: np.random.Generator, count: int | None, end: float | None) -> Array:
    """Arrivals on a clock of one arrival a tick: so many, or until an end. [1]"""
    if count is not None:
        return np.asarray(np.cumsum(_gaps(law, count, rng)))
    assert end is not None  # one of both is there
    parts: list[Array] = []
    reached = 0.0
    while reached < end:
        part = reached + np.cumsum(_gaps(law, int(1.1 * (end - reached)) + 64, rng, began=bool(parts)))
        parts.append(part)
        reached = float(part[-1])
    together = np.concatenate(parts)
    return together[together < end]


def _gaps(law: ArrivalLaw, n: int, rng: np.random.Generator, *, began: bool = False) -> Array:
    """Gaps of mean one, shape (n,). [1]"""
    if law.law == "deterministic":
        return np.concatenate([np.full(1, float(began)), np.ones(n - 1)])
    if law.law == "uniform":
        return rng.uniform(0.0, 2.0, n)
    if law.cv is not None:
        shape = 1.0 / law.cv**2
        return rng.gamma(shape, 1.0 / shape, n)
    return rng.standard_exponential(n)


def _mapped(law: ArrivalLaw, dice: Dice, scale: float, ticks: Array) -> Array:
    """The times of so many arrivals, on a clock that runs long enough."""
    last = float(ticks[-1])
    duration = 1.05 * last / (law.mean_rate * scale) + 1e-9
    while (clock := _clock(law, dice, None, duration, scale)).ticks[-1] < last:
        duration *= 1.5
    return np.interp(ticks, clock.ticks, clock.times)


def _clock(law: ArrivalLaw, dice: Dice, count: int | None, duration: float | None, scale: float) -> _Clock:
    """Expected arrivals over time until a duration."""
    if count is not None or duration is None:
        return _Clock(times=np.zeros(1), ticks=np.zeros(1))
    if law.law == "diurnal":
        return _curve(law, duration, scale)
    if law.law == "bursts":
        return _switching(law, dice.of(SWITCHES), duration, scale)
    assert law.rate is not None  # the law's keys are checked
    return _Clock(times=np.array([0.0, duration]), ticks=np.array([0.0, law.rate * scale * duration]))


def _curve(law: ArrivalLaw, duration: float, scale: float) -> _Clock:
    assert law.rates is not None  # the law's keys are checked
    step = HOUR if law.period is None else law.period / len(law.rates)
    n = int(np.ceil(duration / step))
    times = np.minimum(np.arange(n + 1) * step, duration)
    rates = scale * np.resize(np.array(law.rates), n)
    return _Clock(times=times, ticks=np.concatenate([np.zeros(1), np.cumsum(rates * np.diff(times))]))


def _switching(law: ArrivalLaw, rng: np.random.Generator, duration: float, scale: float) -> _Clock:
    """Bursts that are on and off in turn; whether it begins with one is as likely as at any other time."""
    assert law.rate is not None  # the law's keys are checked
    assert law.on is not None
    assert law.off is not None
    on = bool(rng.random() < law.on / (law.on + law.off))
    means, rates = np.array([law.on, law.off]), scale * np.array([law.rate, law.idle_rate or 0.0])
    spans: list[Array] = []
    while sum(float(span.sum()) for span in spans) < duration:
        spans.append((rng.standard_exponential((256, 2)) * (means if on else means[::-1])).ravel())
    ends = np.cumsum(np.concatenate(spans))
    n = int(np.searchsorted(ends, duration)) + 1
    times = np.concatenate([np.zeros(1), np.minimum(ends[:n], duration)])
    here = np.resize(rates if on else rates[::-1], n)
    return _Clock(times=times, ticks=np.concatenate([np.zeros(1), np.cumsum(here * np.diff(times))]))


# ------------------------------------------------------------------------------------------ what requests are


@dataclass(frozen=True, kw_only=True, eq=False)
class Chains:
    """Requests of sessions, one session after another; arrays of shape (n,)."""

    session: Index  # [1]
    thread: Index  # requests of one begin with all that was said in it before. [1]
    opens: Index  # places of the first requests of the sessions, shape (sessions,). [1]
    turn: Mask  # whether a user, not a tool, says what is new. [1]
    prompt: Index  # [1]
    output: Index  # [1]
    pause: Array  # after the request before, 0 of the first. [s]
    prefix: Index  # number of what its prompt begins with, which others begin with too; -1 for none. [1]
    common: Index  # tokens of that. [1]
    kind: Index  # index of its class. [1]


def chains(spec: RequestSource, sessions: int, dice: Dice, values_of: Lengths, kind: int = 0) -> Chains:
    """So many sessions, or requests where there are no sessions, each with its calls of tools."""
    turns = np.ones(sessions, dtype=np.intp) if spec.sessions is None else counts(spec.sessions.turns, sessions, dice.of(TURNS), 1)
    calls = np.zeros(turns.sum(), dtype=np.intp) if spec.tools is None else counts(spec.tools.calls, int(turns.sum()), dice.of(CALLS), 0)
    n = int((calls + 1).sum())
    if n > MOST:
        raise CrossflowError(f"sessions: there would be {n:,} requests, more than the {MOST:,} that are drawn; ask for fewer sessions")
    turn_of = np.repeat(np.arange(len(calls)), calls + 1)
    session = np.repeat(np.arange(sessions), turns)[turn_of]
    turn, opening = _changes(turn_of), _changes(session)
    thread = session if spec.sessions is not None and spec.sessions.history else turn_of
    new, output = _said(spec, turn, dice, values_of)
    common = 0 if spec.shared_prefix is None else spec.shared_prefix.tokens
    prefix = np.full(sessions, -1) if spec.shared_prefix is None else dice.of(PREFIXES).integers(0, spec.shared_prefix.number, sessions)
    found = Chains(
        session=session, thread=thread, opens=np.flatnonzero(opening), turn=turn,
        prompt=common + _before(new, output, thread) + new, output=output, pause=_pauses(spec, turn, opening, dice), prefix=prefix[session],
        common=np.full(n, common), kind=np.full(n, kind),
    )  # fmt: skip
    if len(found.prompt) and (longest := int(found.prompt.max())) > TOKENS:
        raise CrossflowError(f"sessions: a prompt would have {longest:,} tokens, more than {TOKENS:,}; ask for fewer turns or shorter ones")
    return found


def _changes(of: Index) -> Mask:
    """Whether each is the first of its group, shape (n,)."""
    return np.concatenate([np.ones(min(len(of), 1), dtype=bool), of[1:] != of[:-1]])


def _said(spec: RequestSource, turn: Mask, dice: Dice, values_of: Lengths) -> tuple[Index, Index]:
    """Tokens that are new in each prompt, and those that are written."""
    assert spec.prompt is not None  # the section is checked
    assert spec.output is not None
    own = int(turn.sum())
    new = np.zeros(len(turn), dtype=np.intp)
    new[turn] = lengths(spec.prompt, own, dice.of(PROMPTS), values_of)
    output = lengths(spec.output, len(turn), dice.of(OUTPUTS), values_of)
    if spec.tools is not None:
        new[~turn] = lengths(spec.tools.tokens, len(turn) - own, dice.of(TOOL_TOKENS), values_of)
    if spec.correlation:
        output[turn] = coupled(new[turn], output[turn], spec.correlation, dice.of(COUPLING))
    return new, output


def _before(new: Index, output: Index, thread: Index) -> Index:
    """Tokens that were said in a thread before each of its requests."""
    total = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(new + output)])[:-1]
    start = np.maximum.accumulate(np.where(_changes(thread), np.arange(len(thread)), 0)) if len(thread) else thread
    return np.asarray(total - total[start])


def _pauses(spec: RequestSource, turn: Mask, opening: Mask, dice: Dice) -> Array:
    pause = np.zeros(len(turn))
    later = turn & ~opening
    if spec.sessions is not None:
        pause[later] = times(spec.sessions.think, int(later.sum()), dice.of(THINKING))
    if spec.tools is not None:
        pause[~turn] = times(spec.tools.time, int((~turn).sum()), dice.of(TOOL_TIMES))
    return pause


# ------------------------------------------------------------------------------------------ when they come


def started(pause: Array, opens: Index, start: Array) -> tuple[Array, Index]:
    """Arrivals of requests whose sessions begin at some times, if answers took no time, and the request that each follows."""
    waited = np.cumsum(pause)
    per = np.diff(np.append(opens, len(pause)))
    arrival = np.repeat(start - waited[opens], per) + waited
    follows = np.arange(-1, len(pause) - 1)
    follows[opens] = -1
    return arrival, follows


def looped(pause: Array, opens: Index, users: UsersSpec, rng: np.random.Generator) -> tuple[Array, Index, Array]:
    """The same of users of whom each begins a session when its last one has ended and it has thought; with the pauses of all requests."""
    sessions, number = len(opens), users.number
    think = times(users.think, sessions, rng)
    think[: min(number, sessions)] = 0.0  # a user begins at once
    pause = pause.copy()
    pause[opens] = think
    length = np.add.reduceat(pause, opens) if sessions else np.zeros(0)
    rounds = -(-sessions // number)
    table = np.zeros(rounds * number)
    table[:sessions] = length
    ends = np.cumsum(table.reshape(rounds, number), axis=0).ravel()[:sessions]
    begin = users.ramp * np.arange(number) / number
    start = np.resize(begin, sessions) + ends - length + think
    arrival, follows = started(np.where(np.isin(np.arange(len(pause)), opens), 0.0, pause), opens, start)
    last = np.append(opens[1:], len(pause)) - 1
    follows[opens[number:]] = last[: max(sessions - number, 0)]
    return arrival, follows, pause


def mixed(parts: Sequence[Chains], which: Index) -> Chains:
    """Sessions of several kinds in one order: `which` says the kind of each session, whose own come in their order; shape (sessions,)."""
    if len(parts) == 1:
        return parts[0]
    places = [np.flatnonzero(which == i) for i in range(len(parts))]
    session = np.concatenate([place[part.session] for place, part in zip(places, parts, strict=True)])
    threads = np.cumsum([0, *(int(part.thread.max(initial=-1)) + 1 for part in parts[:-1])])
    prefixes = np.cumsum([0, *(int(part.prefix.max(initial=-1)) + 1 for part in parts[:-1])])
    together = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("turn", "prompt", "output", "pause", "kind", "common")
    }
    together["thread"] = np.concatenate([part.thread + start for part, start in zip(parts, threads, strict=True)])
    together["prefix"] = np.concatenate([np.where(part.prefix < 0, -1, part.prefix + i) for part, i in zip(parts, prefixes, strict=True)])
    order = np.argsort(session, kind="stable")
    session = session[order]
    return Chains(session=session, opens=np.flatnonzero(_changes(session)), **{name: held[order] for name, held in together.items()})


def drawn(spec: RequestsSpec, values_of: Lengths) -> RequestTrace:
    """All requests of a section without a trace."""
    kinds: list[RequestSource] = [_filled(one, spec) for one in spec.classes] or [spec]
    classes = tuple(map(class_of, kinds))
    block = (spec.block or BLOCK) if any(one.sessions or one.tools or one.shared_prefix for one in kinds) else 0
    own = [i for i, one in enumerate(spec.classes) if one._said(TIMES)]
    shared = [i for i in range(len(kinds)) if i not in own]
    groups = [([i], kinds[i]) for i in own] + ([(shared, spec)] if shared else [])
    parts = [_group(source, members, kinds, spec, block, values_of) for members, source in groups]
    if sum(map(len, parts)) > MOST:
        raise CrossflowError(f"there would be {sum(map(len, parts)):,} requests, more than the {MOST:,} that are drawn; ask for fewer")
    return joined([replace(part, classes=classes) for part in parts])


def class_of(one: RequestSource, name: str = "all") -> RequestClass:
    """A class with its targets."""
    targets = {} if one.targets is None else {key: value for key, value in one.targets if value is not None}
    if isinstance(one, RequestClassSpec):
        return RequestClass(name=one.name, priority=one.priority, **targets)
    return RequestClass(name=name, **targets)


def _filled(one: RequestClassSpec, spec: RequestsSpec) -> RequestClassSpec:
    """A class with what it does not say itself as the section says it; that of times only where it has some of its own."""
    keys = (*CONTENTS, "targets", *(("duration",) if one.arrivals is not None and one.count is None else ()))
    return one.model_copy(update={key: getattr(spec, key) for key in keys if getattr(one, key) is None})


def _group(
    source: RequestSource, members: Sequence[int], kinds: Sequence[RequestSource], spec: RequestsSpec, block: int, values_of: Lengths
) -> RequestTrace:
    """Requests of the classes that come by the same arrivals, users or batch."""
    dice = Dice(seed=spec.seed, kind=members[0] + 1 if len(members) == 1 else 0)
    start = starts(source, dice, spec.rate_scale)
    weights = np.array([getattr(kinds[i], "weight", None) or 1.0 for i in members])
    which = dice.of(KINDS).choice(len(members), len(start), p=weights / weights.sum())
    parts = [chains(kinds[i], int((which == j).sum()), Dice(seed=spec.seed, kind=i + 1), values_of, kind=i) for j, i in enumerate(members)]
    found = mixed(parts, which)
    arrival, follows, pause = timed(source.users, found.pause, found.opens, start, dice)
    return RequestTrace(
        arrival=arrival, prompt=found.prompt, output=found.output, kind=found.kind, classes=(), follows=follows, pause=pause,
        blocks=shared_blocks(found.prompt, found.thread, found.prefix, found.common, block) if block else None, block=block,
    )  # fmt: skip


def starts(source: RequestSource, dice: Dice, scale: float) -> Array:
    """When sessions begin by a section's times, of users as if all began at once, shape (sessions,). [s]"""
    if source.arrivals is None:
        return np.zeros(source.batch or source.count or 0)
    return arrivals(source.arrivals, dice, count=source.count, duration=source.duration, scale=scale)


def timed(users: UsersSpec | None, pause: Array, opens: Index, start: Array, dice: Dice) -> tuple[Array, Index, Array]:
    """Arrivals of requests, the request that each follows, and the pause after it."""
    if users is not None:
        return looped(pause, opens, users, dice.of(USERS))
    return (*started(pause, opens, start), pause)
