"""Requests of a service as arrays: the one form of traces, of draws from distributions and of sessions."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, NumberLists
from crossflow.workload.requests.shared import named_in_order


@dataclass(frozen=True, kw_only=True)
class RequestClass:
    """Requests with targets of their own; a target that is absent is always met."""

    name: str
    priority: int = 0  # larger is served first where an engine has priorities. [1]
    ttft: float | None = None  # time to the first token that is still on target. [s]
    tpot: float | None = None  # mean time of a token after the first. [s]
    e2e: float | None = None  # time from the arrival to the last token. [s]

    @property
    def targeted(self) -> bool:
        """Whether it has any target."""
        return any(target is not None for target in (self.ttft, self.tpot, self.e2e))


def request_times(arrival: Array | float, first: Array, last: Array, output: Array | Index) -> dict[str, Array]:
    """What users wait for, by the names of targets: to the first token, for each further one (NaN where there is none), in all. [s]"""
    further = np.where(output > 1, output - 1.0, np.nan)
    return {"ttft": first - arrival, "tpot": (last - first) / further, "e2e": last - arrival}


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestTrace:
    """Requests in order of their arrival; arrays of shape (n,).

    A request that follows another one (the next turn of a session, an agent after its tool, the next request of a user in a closed loop)
    arrives `pause` seconds after that one's last token, and no sooner than `arrival`. Where requests are drawn, that is when it would come
    if the service took no time.
    """

    arrival: Array  # not falling. [s]
    prompt: Index  # tokens of the prompt, at least one. [1]
    output: Index  # tokens that are written, at least one. [1]
    kind: Index  # index of its class. [1]
    classes: tuple[RequestClass, ...]
    follows: Index  # index of an earlier request, -1 for none. [1]
    pause: Array  # between the last token of that one and the arrival of this. [s]
    blocks: NumberLists | None = None  # hashes of its prompt's full blocks from the first on; equal numbers are equal prefixes
    block: int = 0  # tokens of such a block. [1]
    history: Mask | None = None  # whether its prompt begins with prompt and answer of the one that it follows; None as its blocks say
    file: str = ""  # where they were read, "" where they were drawn
    lines: Index | None = None  # line of that file that each stands on, from 1

    def __len__(self) -> int:
        return len(self.arrival)

    @classmethod
    def of(cls, arrival: Array, prompt: Index, output: Index, **more: Any) -> RequestTrace:
        """Requests of one class that do not follow each other, unless `more` says otherwise.

        >>> RequestTrace.of(np.array([0.0, 0.5]), np.array([100, 20]), np.array([8, 1])).follows.tolist()
        [-1, -1]
        """
        n = len(arrival)
        plain = {
            "kind": np.zeros(n, dtype=np.intp), "classes": (RequestClass(name="all"),),
            "follows": np.full(n, -1, dtype=np.intp), "pause": np.zeros(n),
        }  # fmt: skip
        return cls(
            arrival=np.asarray(arrival, dtype=float), prompt=np.asarray(prompt, dtype=np.intp),
            output=np.asarray(output, dtype=np.intp), **{**plain, **more},
        )  # fmt: skip

    @property
    def first(self) -> Mask:
        """Whether each begins a session, or stands alone, shape (n,)."""
        return self.follows < 0

    def targets(self, name: str) -> Array:
        """A target of every class, infinite where it has none, shape (classes,). [s]"""
        return np.array([np.inf if (target := getattr(one, name)) is None else target for one in self.classes], dtype=float)

    def on_target(self, times: Mapping[str, Array], kind: Index) -> Mask:
        """Whether times of requests of such classes meet their targets; unknown ones do."""
        return np.asarray(np.all([~(values > self.targets(name)[kind]) for name, values in times.items()], axis=0))

    @functools.cached_property
    def continues(self) -> Mask:
        """Whether a prompt begins with the prompt and the answer of the request that it follows, shape (n,).

        Where nobody says so, it is long enough for both, and its blocks begin with those of that prompt, of which there are some.

        >>> trace = RequestTrace.of(np.zeros(2), np.array([4, 9]), np.array([3, 1]), follows=np.array([-1, 0]), block=2,
        ...     blocks=NumberLists.of([0, 0, 1, 1, 1, 1], [5, 6, 5, 6, 7, 8], 2))
        >>> trace.continues.tolist()
        [False, True]
        """
        if self.history is not None or self.blocks is None:
            return np.zeros(len(self), dtype=bool) if self.history is None else self.history
        found, follows = np.zeros(len(self), dtype=bool), self.follows
        both = self.prompt[follows] + self.output[follows]
        for i in np.flatnonzero((follows >= 0) & (self.prompt >= both) & (self.prompt[follows] >= self.block)):
            before = self.blocks[int(follows[i])]
            found[i] = self.blocks[int(i)][: len(before)] == before
        return found

    def place(self, request: int) -> str:
        """Where a request comes from, for messages about it.

        >>> RequestTrace.of(np.zeros(1), np.ones(1), np.ones(1), file="day.csv", lines=np.array([7])).place(0)
        'day.csv:7'
        """
        return f"{self.file}:{self.lines[request]}" if self.file and self.lines is not None else f"request {request + 1}"

    @property
    def digest(self) -> str:
        """A hash of all that decides what becomes of the requests: equal for equal requests."""
        order = sorted(set(self.kind.tolist()), key=lambda i: self.classes[i].name)  # whatever the order in which they are listed
        found = hashlib.sha256(repr(([self.classes[i] for i in order], self.block)).encode())
        kind = np.argsort(order)[np.searchsorted(np.sort(order), self.kind)] if order else self.kind
        for array in (self.arrival, self.prompt, self.output, kind, self.follows, self.pause, self.continues):
            found.update(np.ascontiguousarray(array).tobytes())
        for names, _, first in () if self.blocks is None else named_in_order(self.blocks):
            found.update(first.tobytes() + names.tobytes())
        return found.hexdigest()

    def at(self, chosen: Index) -> RequestTrace:
        """Some of the requests, in the order in which they are chosen; one whose predecessor is left out follows none."""
        place = np.full(len(self) + 1, -1, dtype=np.intp)
        place[chosen] = np.arange(len(chosen))
        follows = place[self.follows[chosen]]
        return replace(
            self, arrival=self.arrival[chosen], prompt=self.prompt[chosen], output=self.output[chosen], kind=self.kind[chosen],
            follows=follows, pause=np.where(follows < 0, 0.0, self.pause[chosen]),
            blocks=None if self.blocks is None else lists_at(self.blocks, chosen),
            history=None if self.history is None else self.history[chosen] & (follows >= 0),
            lines=None if self.lines is None else self.lines[chosen],
        )  # fmt: skip

    def in_order(self) -> RequestTrace:
        """The same in order of their arrival; requests of the same time stay in their order."""
        order = np.argsort(self.arrival, kind="stable")
        return self if np.array_equal(order, np.arange(len(self))) else self.at(order)


def lists_at(lists: NumberLists, chosen: Index) -> NumberLists:
    """The lists of some things.

    >>> held = lists_at(NumberLists.of([0, 0, 2], [5, 6, 7], 3), np.array([2, 0]))
    >>> held[0], held[1]
    ([7], [5, 6])
    """
    counts = lists.counts[chosen]
    first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(counts)])
    inside = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    return NumberLists(first=first, held=lists.held[np.repeat(lists.first[:-1][chosen], counts) + inside])


def joined(parts: Sequence[RequestTrace]) -> RequestTrace:
    """Several traces of the same classes as one, in order of arrival; their blocks are different ones."""
    if len(parts) == 1:
        return parts[0].in_order()
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    together = RequestTrace(
        arrival=np.concatenate([part.arrival for part in parts]),
        prompt=np.concatenate([part.prompt for part in parts]),
        output=np.concatenate([part.output for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        classes=parts[0].classes,
        follows=np.concatenate([np.where(part.first, -1, part.follows + start) for part, start in zip(parts, starts, strict=True)]),
        pause=np.concatenate([part.pause for part in parts]),
        blocks=_joined_blocks(parts),
        history=np.concatenate([part.continues for part in parts]),
        block=max(part.block for part in parts),
    )
    return together.in_order()


def _joined_blocks(parts: Sequence[RequestTrace]) -> NumberLists | None:
    """Blocks of several traces, of which those of each are its own; a trace without any has blocks that nothing shares."""
    if all(part.blocks is None for part in parts):
        return None
    block = max(part.block for part in parts)
    held, counts, free = [], [], 0
    for part in parts:
        own = alone(part.prompt, block) if part.blocks is None else part.blocks
        held.append(own.held + free)
        counts.append(own.counts)
        free += int(own.held.max(initial=-1)) + 1
    first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(np.concatenate(counts))])
    return NumberLists(first=first, held=np.concatenate(held))


def alone(prompt: Index, block: int) -> NumberLists:
    """Blocks of prompts that have nothing in common."""
    first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(prompt // block)])
    return NumberLists(first=first, held=np.arange(first[-1]))
