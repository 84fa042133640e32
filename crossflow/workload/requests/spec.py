"""The `requests` section of a scenario: a trace, or laws that requests are drawn from.

What requests are (lengths, sessions, calls of tools) and when they come (times of a trace, arrivals by a law, users in a closed loop, one
batch) are told apart: a trace may keep its own times or be given others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import Dimension, Finite, Flag, PositiveFloat, PositiveInt, Seed, Whole
from crossflow.workload.requests.laws import MOST_DRAWN, ArrivalLaw, CountLaw, LengthLaw, PositiveWaitTime, TimeLaw, TokenCount, WaitTime

MOST = 20_000_000  # requests that are read
BLOCK = 16  # tokens of a block of a prefix cache where nobody says
TIMES = ("arrivals", "users", "batch")  # keys that say when requests come
CONTENTS = ("prompt", "output", "correlation", "sessions", "tools", "shared_prefix", "answers")  # keys that say what they are
OF_TRACES = ("columns", "time_unit", "empty", "unsorted", "from", "until", "repeat", "limit")
Text = Annotated[str, Field(min_length=1)]


class ColumnsSpec(FileModel):
    """Names of a trace's columns, or of the keys of its lines, where they are not recognised."""

    arrival: Text | None = Field(None, description="when a request arrives: a number or a date")
    prompt: Text | None = Field(None, description="tokens of its prompt")
    output: Text | None = Field(None, description="tokens that are written for it")
    kind: Text | None = Field(None, alias="class", description="name of its class")
    session: Text | None = Field(None, description="name of its session, whose requests follow one another")
    elapsed: Text | None = Field(None, description="time from its arrival to its end, from which pauses in a session follow")
    blocks: Text | None = Field(None, description="list of hashes of its prompt's blocks, equal where prompts begin alike")

    @property
    def given(self) -> Mapping[str, str]:
        """Names by what they say."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in found.items() if value is not None}


class TargetsSpec(FileModel):
    """Times that a request should be answered in; one that is absent is always met."""

    ttft: PositiveWaitTime | None = Field(None, description="to its first token, such as 2 s")
    tpot: PositiveWaitTime | None = Field(None, description="mean time per token after the first, such as 50 ms")
    e2e: PositiveWaitTime | None = Field(None, description="from its arrival to its last token")


class UsersSpec(FileModel):
    """Users in a closed loop, each with one request or session at a time; a whole number alone is their number."""

    number: Annotated[Dimension, Field(le=1_000_000)] = Field(description="how many there are")
    think: TimeLaw = Field(TimeLaw(law="fixed", time="0 s"), description="time of a user between an answer and the next request")
    ramp: WaitTime = Field(0.0, description="time over which they begin, evenly; all at once where absent")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"number": given} if isinstance(given, int | float) and not isinstance(given, bool) else given


class SessionsSpec(FileModel):
    """Conversations: requests that follow one another."""

    turns: CountLaw = Field(description="requests of a session, at least 1")
    think: TimeLaw = Field(description="time from an answer to the next turn")
    history: Flag = Field(True, description="whether a prompt begins with all that was said before, `prompt` being what is new")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.turns.least < 1 or (self.turns.mean is not None and self.turns.mean < 1):
            raise ValueError("turns: a session has at least one")
        return self


class ToolsSpec(FileModel):
    """Calls of tools: a request stops at each, waits for the tool and goes on with what the tool gave."""

    calls: CountLaw = Field(description="calls for each request of a user")
    time: TimeLaw = Field(description="time of a call")
    tokens: LengthLaw = Field(description="tokens that the tool's answer adds to the prompt that goes on")


class SharedPrefixSpec(FileModel):
    """What prompts begin with, before their own tokens, as system prompts do."""

    tokens: TokenCount = Field(description="how long it is")
    number: PositiveInt = Field(1, le=1_000_000, description="different ones; each session, or request, has one of them at random")


class RequestSource(FileModel):
    """What requests are and when they come, of all of them or of a class."""

    arrivals: ArrivalLaw | None = Field(None, description="when requests arrive, or sessions where there are some")
    duration: PositiveWaitTime | None = Field(None, description="of `arrivals`: how long they come, such as 1 h")
    count: Annotated[PositiveInt, Field(le=MOST_DRAWN)] | None = Field(
        None, description="requests, or sessions, in all: of `users`, or of `arrivals` in the place of `duration`"
    )
    users: UsersSpec | None = Field(None, description="users in a closed loop, in the place of `arrivals`")
    batch: Annotated[PositiveInt, Field(le=MOST_DRAWN)] | None = Field(
        None, description="requests, or sessions, that are all there at the start, in the place of `arrivals`"
    )
    prompt: LengthLaw | None = Field(None, description="tokens of a prompt; with sessions those that a turn adds")
    output: LengthLaw | None = Field(None, description="tokens that are written for a request")
    correlation: Annotated[Finite, Field(ge=-1.0, le=1.0)] | None = Field(
        None, description="correlation of prompt and output, of the normal variables of a Gaussian copula; none where absent"
    )
    sessions: SessionsSpec | None = Field(None, description="conversations of several turns")
    tools: ToolsSpec | None = Field(None, description="calls of tools")
    shared_prefix: SharedPrefixSpec | None = Field(None, description="beginning that prompts have in common")
    answers: PositiveInt | None = Field(
        None,
        le=10_000,
        description="answers that are written for each prompt, as `n` of an API asks for: requests of one prompt that come together, so "
        "that `count` and `batch` are prompts; 1 where absent",
    )
    targets: TargetsSpec | None = Field(None, description="times that requests should be answered in")

    def _said(self, keys: tuple[str, ...]) -> list[str]:
        return [key for key in keys if getattr(self, key) is not None]

    @property
    def shares(self) -> bool:
        """Whether some of its prompts begin as others do."""
        return bool(self.sessions or self.tools or self.shared_prefix or (self.answers or 1) > 1)

    def clashes(self) -> Iterator[str]:
        """What is said of times and has no meaning together, each with its key."""
        times = self._said(TIMES)
        if len(times) > 1:
            yield f"{times[1]}: {times[0]} stands beside it and says when requests come; give one of them"
        if self.duration is not None and self.count is not None:
            yield "count: duration stands beside it and says how many requests there are; give one of them"
        if self.duration is not None and (self.users or self.batch):
            yield (
                f"duration: {times[0]} go on until all are answered; give count"
                if self.users
                else "duration: a batch has none; leave it out"
            )
        for key, law in (("prompt", self.prompt), ("output", self.output)):
            if law is not None and law.least < 1:
                yield f"{key}: a request has at least one token of it"
        fixed = [key for key, law in (("prompt", self.prompt), ("output", self.output)) if law is not None and law.law == "fixed"]
        if self.correlation is not None and fixed:
            yield f"correlation: {fixed[0]} is the same for all; leave it out"
        if (self.answers or 1) > 1 and (besides := self._said(("users", "sessions", "tools"))):
            yield f"answers: with {besides[0]} a prompt has one answer; leave it out"
        if self.count is not None and self.batch is not None:
            yield "count: batch stands beside it and says how many requests there are; leave it out"


class RequestClassSpec(RequestSource):
    """Requests of a kind; what it does not say is as `requests` says."""

    name: Text = Field(description="name, as in the trace's column of classes where there is a trace")
    priority: Whole = Field(0, ge=-1000, le=1000, description="larger is served first where the software's `engine.queue` is priority")
    weight: PositiveFloat | None = Field(None, description="how often it comes, over the sum of all weights; 1 where absent")


class RequestsSpec(RequestSource):
    """Requests of a service: the path of a trace, or a mapping."""

    trace: Text | None = Field(
        None, description="file of requests: CSV, JSONL, JSON or Parquet, also with .gz; plain text in place of the section is short for it"
    )
    columns: ColumnsSpec | None = Field(None, description="names of its columns where they are not recognised")
    time_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="unit of its times where neither format nor column says it")
    block: Dimension | None = Field(
        None, description=f"tokens of a block of which prompts have hashes; that of the format, or {BLOCK}, where absent"
    )
    empty: Literal["refuse", "drop"] | None = Field(
        None, description="what becomes of its requests without a token of prompt or output, as failed ones: refused where absent"
    )
    unsorted: Literal["refuse", "sort"] | None = Field(
        None, description="what becomes of it where times fall from one request to the next: refused where absent"
    )
    begin: WaitTime | None = Field(
        None, alias="from", description="leave out what arrives earlier after the trace's first request, such as 10 min"
    )
    until: PositiveWaitTime | None = Field(None, description="leave out what arrives later after the trace's first request")
    repeat: Annotated[PositiveInt, Field(le=10_000)] | None = Field(
        None, description="times that the trace is played in all, one after another, with prompts that are new each time; 1 where absent"
    )
    limit: Annotated[PositiveInt, Field(le=MOST)] | None = Field(None, description="requests at most")
    rate_scale: Annotated[PositiveFloat, Field(le=1e6)] = Field(
        1.0, description="arrivals a second, over those of the trace or the laws; pauses of sessions stay"
    )
    time_scale: Annotated[PositiveFloat, Field(le=1e6)] = Field(
        1.0, description="all times, pauses included, over those that were read or drawn"
    )
    classes: tuple[RequestClassSpec, ...] = Field(
        (), description="kinds of requests with lengths, times, targets and priorities of their own"
    )
    seed: Seed = Field(0, description="of all that is drawn")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"trace": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in problems(self):
            raise ValueError(problem)
        return self


def problems(spec: RequestsSpec) -> Iterator[str]:
    """What in a section has no meaning together, or is missing; each sentence begins with its key."""
    yield from spec.clashes()
    names = [one.name for one in spec.classes]
    if twice := [name for name in names if names.count(name) > 1]:
        yield f"classes: '{twice[0]}' is there twice"
    for i, one in enumerate(spec.classes):
        yield from (f"classes: '{one.name}': {clash}" for clash in one.clashes())
        yield from (f"classes: '{one.name}': {clash}" for clash in _of_class(spec, i))
    yield from _of_trace(spec) if spec.trace is not None else _of_laws(spec)


def _of_class(spec: RequestsSpec, i: int) -> Iterator[str]:
    one = spec.classes[i]
    own = one._said(TIMES)
    if spec.trace is not None:
        wrong = one._said((*TIMES, *CONTENTS, "duration", "count", "weight"))
        yield from (f"{key}: the trace says it; leave it out" for key in wrong[:1])
        return
    if own and one.weight is not None:
        yield f"weight: its requests come by its own {own[0]}; leave it out"
    if not own and one._said(("duration", "count")):
        yield f"{one._said(('duration', 'count'))[0]}: it has no arrivals of its own; leave it out"
    if own == ["arrivals"] and one.duration is None and one.count is None and spec.duration is None:
        yield "the key 'duration', or 'count', is missing: how long its requests come"
    if own == ["users"] and one.count is None:
        yield "the key 'count' is missing: how many requests its users send in all"
    for key in ("prompt", "output"):
        if getattr(one, key) is None and getattr(spec, key) is None:
            yield f"the key '{key}' is missing, here or in requests"
    if (one.answers or spec.answers or 1) > 1:
        besides = [*(["users"] if spec.users and not own else []), *(key for key in ("sessions", "tools") if getattr(spec, key))]
        besides += [] if one.answers else [key for key in ("users", "sessions", "tools") if getattr(one, key)]
        yield from (f"answers: with {key} a prompt has one answer; leave it out" for key in besides[:1])


def _of_trace(spec: RequestsSpec) -> Iterator[str]:
    """Of a section with a trace, whose requests have lengths, and times unless others are given."""
    for key in spec._said(CONTENTS):
        yield f"{key}: the trace says it; leave it out, or leave out trace"
    if spec.duration is not None:
        yield "duration: the trace says how many requests there are; give limit, or until, or leave it out"
    if spec.count is not None:
        yield "count: the trace says how many requests there are; give limit"
    if (times := spec._said(TIMES)) and (spec.begin is not None or spec.until is not None):
        yield f"{'from' if spec.begin is not None else 'until'}: {times[0]} says when they come, not the trace; give limit, or leave it out"
    if spec.users is not None and spec.rate_scale != 1.0:
        yield "rate_scale: users send their requests one after another; give another number of users"
    if spec.batch is not None and spec.limit is not None:
        yield "limit: batch says how many requests there are; leave it out"
    if spec.batch is not None and spec.rate_scale != 1.0:
        yield "rate_scale: a batch is there at once; leave it out"
    if "seed" in spec.model_fields_set and not draws(spec):
        yield "seed: nothing is drawn; leave it out"
    if spec.begin is not None and spec.until is not None and spec.until <= spec.begin:
        yield "until: expected more than from"


def _of_laws(spec: RequestsSpec) -> Iterator[str]:
    """Of a section without a trace, which must say when requests come and how long they are."""
    for key in OF_TRACES:
        if getattr(spec, "begin" if key == "from" else key) is not None:
            yield f"{key}: only a trace has it; {'give count' if key == 'limit' else 'leave it out'}"
    times = spec._said(TIMES)
    shared = not spec.classes or any(not one._said(TIMES) for one in spec.classes)
    if not times and shared:
        yield "expected trace, or one of arrivals, users and batch: when requests come"
    if times and not shared:
        yield f"{times[0]}: every class has its own; leave it out"
    if times == ["arrivals"] and spec.duration is None and spec.count is None:
        yield "the key 'duration', or 'count', is missing: how long requests come"
    if times == ["users"] and spec.count is None:
        yield "the key 'count' is missing: how many requests the users send in all"
    own = [one for one in spec.classes if one.arrivals is not None and one.duration is None and one.count is None]
    if not times and spec.duration is not None and not own:
        yield "duration: every class says how long its requests come; leave it out"
    if not times and spec.count is not None:
        yield "count: there are no arrivals here; give it in the classes"
    if spec.rate_scale != 1.0 and not any(one.arrivals is not None for one in (spec, *spec.classes)):
        yield "rate_scale: nothing arrives at a rate; leave it out"
    for key in ("prompt", "output"):
        if not spec.classes and getattr(spec, key) is None:
            yield f"the key '{key}' is missing: tokens of a request's {key}"
    if spec.block is not None and not _shares(spec):
        yield "block: no prompts have tokens in common (sessions, tools, shared_prefix, answers); leave it out"


def draws(spec: RequestsSpec) -> bool:
    """Whether something of it is drawn."""
    return spec.trace is None or spec.arrivals is not None or spec.users is not None


def _shares(spec: RequestsSpec) -> bool:
    """Whether some prompts begin as others do."""
    return any(one.shares for one in (spec, *spec.classes))
