"""Requests drawn from laws: arrivals, lengths, sessions, calls of tools, users in a closed loop.

Every quantity has a generator of its own, seeded by the seed, the class and what is drawn: other arrivals leave the lengths as they were,
so that scenarios that differ in load are compared on the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.arriving import arrivals
from crossflow.workload.requests.dice import (
    CALLS,
    COUPLING,
    KINDS,
    OUTPUTS,
    PREFIXES,
    PROMPTS,
    THINKING,
    TOOL_TIMES,
    TOOL_TOKENS,
    TURNS,
    USERS,
    Dice,
)
from crossflow.workload.requests.laws import MOST_DRAWN, TOKENS
from crossflow.workload.requests.numbers import Lengths, counts, coupled, lengths, times
from crossflow.workload.requests.record import RequestClass, RequestTrace, joined
from crossflow.workload.requests.shared import shared_blocks
from crossflow.workload.requests.spec import (
    BLOCK,
    CONTENTS,
    TIMES,
    RequestClassSpec,
    RequestSource,
    RequestsSpec,
    TargetsSpec,
    UsersSpec,
)

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
    """So many sessions, or requests where there are no sessions, each with its calls of tools.

    Requests of one prompt stand beside each other, and are of one thread.
    """
    turns = np.ones(sessions, dtype=np.intp) if spec.sessions is None else counts(spec.sessions.turns, sessions, dice.of(TURNS), 1)
    _check_number(int(turns.sum()), "sessions")
    calls = np.zeros(turns.sum(), dtype=np.intp) if spec.tools is None else counts(spec.tools.calls, int(turns.sum()), dice.of(CALLS), 0)
    n = int((calls + 1).sum())
    _check_number(n, "tools")
    turn_of = np.repeat(np.arange(len(calls)), calls + 1)
    session = np.repeat(np.arange(sessions), turns)[turn_of]
    turn, opening = _changes(turn_of), _changes(session)
    thread = session if spec.sessions is not None and spec.sessions.history else turn_of
    new, output = _said(spec, turn, dice, values_of)
    before, answers = _before(new, output, thread), spec.answers or 1
    thread = thread // answers
    common = 0 if spec.shared_prefix is None else spec.shared_prefix.tokens
    prefix = np.full(sessions, -1) if spec.shared_prefix is None else dice.of(PREFIXES).integers(0, spec.shared_prefix.number, sessions)
    found = Chains(
        session=session, thread=thread, opens=np.flatnonzero(opening), turn=turn,
        prompt=common + before + new, output=output, pause=_pauses(spec, turn, opening, dice), prefix=prefix[session - session % answers],
        common=np.full(n, common), kind=np.full(n, kind),
    )  # fmt: skip
    if len(found.prompt) and (longest := int(found.prompt.max())) > TOKENS:
        raise CrossflowError(f"sessions: a prompt would have {longest:,} tokens, more than {TOKENS:,}; ask for fewer turns or shorter ones")
    return found


def _check_number(requests: int, key: str) -> None:
    """CrossflowError for more requests than are drawn."""
    if requests > MOST_DRAWN:
        raise CrossflowError(f"{key}: there would be {requests:,} requests, more than the {MOST_DRAWN:,} that are drawn; ask for fewer")


def _changes(of: Index) -> Mask:
    """Whether each is the first of its group, shape (n,)."""
    return np.concatenate([np.ones(min(len(of), 1), dtype=bool), of[1:] != of[:-1]])


def _said(spec: RequestSource, turn: Mask, dice: Dice, values_of: Lengths) -> tuple[Index, Index]:
    """Tokens that are new in each prompt, and those that are written."""
    assert spec.prompt is not None  # the section is checked
    assert spec.output is not None
    own, answers = int(turn.sum()), spec.answers or 1
    new = np.zeros(len(turn), dtype=np.intp)
    new[turn] = np.repeat(lengths(spec.prompt, own // answers, dice.of(PROMPTS), values_of), answers)
    output = lengths(spec.output, len(turn), dice.of(OUTPUTS), values_of)
    if spec.tools is not None:
        new[~turn] = lengths(spec.tools.tokens, len(turn) - own, dice.of(TOOL_TOKENS), values_of, 0)
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
    block = (spec.block or BLOCK) if any(one.shares for one in kinds) else 0
    own = [i for i, one in enumerate(spec.classes) if one._said(TIMES)]
    shared = [i for i in range(len(kinds)) if i not in own]
    groups = [([i], kinds[i]) for i in own] + ([(shared, spec)] if shared else [])
    parts = [_group(source, members, kinds, spec, block, values_of) for members, source in groups]
    _check_number(sum(map(len, parts)), "classes")
    if not any(map(len, parts)):
        raise CrossflowError("duration: no request comes in this time; give a longer one, or a larger rate")
    return joined([replace(part, classes=classes) for part in parts])


def class_of(one: RequestSource, name: str = "all") -> RequestClass:
    """A class with its targets."""
    targets = {} if one.targets is None else {key: value for key, value in one.targets if value is not None}
    if isinstance(one, RequestClassSpec):
        return RequestClass(name=one.name, priority=one.priority, **targets)
    return RequestClass(name=name, **targets)


def _filled(one: RequestClassSpec, spec: RequestsSpec) -> RequestClassSpec:
    """A class with what it does not say itself as the section says it; that of times only where it has some of its own."""
    keys = (*CONTENTS, *(("duration",) if one.arrivals is not None and one.count is None else ()))
    own = {key: getattr(spec, key) for key in keys if getattr(one, key) is None}
    return one.model_copy(update={**own, "targets": both_targets(one.targets, spec.targets)})


def both_targets(own: TargetsSpec | None, shared: TargetsSpec | None) -> TargetsSpec | None:
    """Targets of a class: its own, and those of all requests where it has none."""
    if own is None or shared is None:
        return own or shared
    return own.model_copy(update={key: value for key, value in shared if getattr(own, key) is None})


def _group(
    source: RequestSource, members: Sequence[int], kinds: Sequence[RequestSource], spec: RequestsSpec, block: int, values_of: Lengths
) -> RequestTrace:
    """Requests of the classes that come by the same arrivals, users or batch."""
    dice = Dice(seed=spec.seed, kind=members[0] + 1 if len(members) == 1 else 0)
    start = starts(source, dice, spec.rate_scale)
    weights = np.array([getattr(kinds[i], "weight", None) or 1.0 for i in members])
    which = dice.of(KINDS).choice(len(members), len(start), p=weights / weights.sum())
    answers = np.array([kinds[i].answers or 1 for i in members])[which]
    _check_number(int(answers.sum()), "answers")
    which, start = np.repeat(which, answers), np.repeat(start, answers)
    parts = [chains(kinds[i], int((which == j).sum()), Dice(seed=spec.seed, kind=i + 1), values_of, kind=i) for j, i in enumerate(members)]
    found = mixed(parts, which)
    arrival, follows, pause = timed(source.users, found.pause, found.opens, start, dice)
    return RequestTrace(
        arrival=arrival, prompt=found.prompt, output=found.output, kind=found.kind, classes=(), follows=follows, pause=pause,
        blocks=shared_blocks(found.prompt, found.thread, found.prefix, found.common, block) if block else None, block=block,
        history=(follows >= 0) & ~_changes(found.thread),
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
