"""A request on its way through an engine, what an engine has room for, and what it did."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.engine.service.runs import Chain

NEVER = math.inf
COLUMNS = 11  # of a jump in a trail
WAITING, FETCHING, READING, WRITING, ENDED, DROPPED = range(6)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an engine has room for."""

    chunk: int  # tokens that a microbatch of a step computes at most. [1]
    requests: int  # requests in work at most. [1]
    pages: int  # of the cache. [1]
    page: int  # tokens of a page. [1]
    written: int = 1  # tokens that a step computes for a request that writes: one, and those that are guessed. [1]
    reads: bool = True  # whether it reads prompts; else their keys and values arrive with the requests
    writes: bool = True  # whether it writes; else requests leave it when they are read
    microbatches: int = 1  # of a step, one for each pipeline stage; a piece of a prompt is in one of them. [1]
    pace: float = 1.0  # tokens that a step gives a request that writes in the mean, more than one with speculation. [1]
    # Time in which the keys and values of a token travel between the devices and the host, and tokens that this has room for, where
    # requests that are evicted leave them there; None where they are read anew. [s], [1]
    swap: float | None = None
    swap_tokens: float = NEVER
    fetch: tuple[float, ...] = ()  # time in which a page comes back from each further tier of the cache. [s]
    ahead: bool = False  # whether a step is scheduled while the one before runs

    @property
    def surplus(self) -> int:
        """Tokens that the last step of a request gives it at most beyond those that were asked for. [1]"""
        return math.ceil(self.pace) - 1


class Ticket:
    """A request on its way through an engine; what happened to it is -1 until it has."""

    __slots__ = (
        "answer", "arrival", "away", "begun", "blocks", "chain", "evicted", "first", "given", "hits", "index", "last", "moved", "need",
        "order", "output",
        "pages", "place", "priority", "prompt", "read", "shared", "start", "stopped", "waited", "wrote",
    )  # fmt: skip

    def __init__(self, index: int, arrival: float, prompt: int, output: int, priority: int = 0) -> None:
        self.index, self.arrival, self.prompt, self.output = index, arrival, prompt, output
        self.chain: Chain = ()  # blocks of its prompt, and what an eviction left of its answer
        self.blocks = 0  # of the chain. [1]
        self.answer: Chain | None = None  # blocks behind those that the next turn asks for; None where no blocks have hashes
        self.given: tuple[Chain, Chain] | None = None  # both as they came, where an eviction has changed them
        self.priority = priority  # larger is served first where the engine has priorities. [1]
        self.begun = self.first = self.last = (
            self.stopped
        ) = -1.0  # times of admission, of the first and the last token, of an eviction. [s]
        self.evicted = self.hits = 0  # times that it was evicted; tokens of its prompt that lay in the cache. [1]
        self.read = self.wrote = 0  # tokens that lie in the cache while it is read, and that are written. [1]
        self.need = prompt  # tokens that must be read before it writes, those written before an eviction included. [1]
        self.start = self.order = 0  # step at which it began to write, and number of its admission
        self.pages = self.shared = 0  # pages that it alone has, and those of its hashed blocks. [1]
        self.away = 0  # tokens whose keys and values lie on the host while it waits. [1]
        self.moved = 0  # times that its engine failed under it; each counts as an eviction too. [1]
        self.waited = 0.0  # for a place, with keys and values that came from another engine; its first token comes then. [s]
        self.place = WAITING


class Trail:
    """What an engine did, a row for each jump."""

    __slots__ = ("gaps", "packed", "rows")

    def __init__(self) -> None:
        # When it began and ended [s], its steps, the requests for which each writes, the tokens before those in the mean, tokens of
        # prompts that it reads and keys that each of these sees, pages that requests have, requests that wait, tokens that it gives,
        # and how many times between two steps that give a request tokens are as long as one of its steps in the mean. All rows lie one
        # behind the other, as a tuple for each of them takes twice as long to keep.
        self.rows: list[float] = []
        self.packed: list[Array] = []  # rows that were written down before, in a third of the memory
        # Other times between two steps that give a request tokens, and how many there are of each. [1], [s]
        self.gaps: list[tuple[int, float]] = []

    def pack(self) -> None:
        """Keep rows as an array."""
        if self.rows:
            self.packed.append(np.array(self.rows, dtype=float).reshape(-1, COLUMNS))
            self.rows.clear()

    def taken(self) -> tuple[Array, Array]:
        """What was written down, which is forgotten: jumps, and all times between two steps with how many there are of each."""
        self.pack()
        rows = np.concatenate([np.zeros((0, COLUMNS)), *self.packed])
        others = np.array(self.gaps, dtype=float).reshape(-1, 2)
        self.packed.clear()
        self.gaps.clear()
        begun, ended, steps, alike = rows.T[[0, 1, 2, -1]]
        often = alike > 0
        return rows[:, :-1], np.concatenate([np.stack([alike, (ended - begun) / steps], axis=1)[often], others])


ReadPiece = tuple[Ticket, int]  # of which prompt so many tokens are read. [1]
