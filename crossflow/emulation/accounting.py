"""What real ranks of one run owe each other: every collective by order, kind, size and type, ring messages by their dependencies [1]_.

Each operation has an identity, its group and its place in the order of the group's operations, and a bitmap of who has come. The
messages of a ring between the real ranks and the emulated rest are a graph of their own, of which a bitmap holds what was sent.

References
----------
.. [1] Liu et al., "Towards a Flexible and High-Fidelity Approach to Distributed DNN Training Emulation", APSys 2024, Sec. 2.2.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crossflow.cost.collectives import ring_steps
from crossflow.errors import CrossflowError

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
SEND, RECV = "send", "recv"


# -------------------------------------------------------------------------------------------- messages of a ring


@dataclass(frozen=True, kw_only=True)
class RingMessage:
    """A message of a ring: at `step` the rank `source` passes `chunk` on to its neighbour."""

    source: int
    step: int
    chunk: int


@dataclass(frozen=True, kw_only=True)
class RingGraph:
    """Messages between the real ranks of a ring and the emulated rest, merged into one, and what each waits for.

    What emulated ranks send each other is left out: the rest is left with the tasks of the real ranks' neighbours, a mirror of theirs.

    Attributes
    ----------
    ranks : of the ring. [1]
    messages : those that a real rank sends or receives; the step decides their order.
    needs : bits of the messages that each waits for.
    """

    ranks: int
    messages: tuple[RingMessage, ...]
    needs: tuple[int, ...]

    @functools.cached_property
    def places(self) -> Mapping[RingMessage, int]:
        """Bit of every message in bitmaps."""
        return {one: i for i, one in enumerate(self.messages)}

    @functools.cached_property
    def senders(self) -> Mapping[int, tuple[RingMessage, ...]]:
        """Messages of every rank that sends, in their order."""
        sources = dict.fromkeys(one.source for one in self.messages)
        return {source: tuple(one for one in self.messages if one.source == source) for source in sources}

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, collective: str, ranks: int, real: tuple[int, ...]) -> RingGraph:
        """Graph of a ring collective among `ranks`, some of which are real (by their place in the ring)."""
        mine = set(real)
        messages = tuple(
            RingMessage(source=source, step=step, chunk=(source - step) % ranks)
            for step in range(ring_steps(collective, ranks))
            for source in range(ranks)
            if {source, (source + 1) % ranks} & mine
        )
        bit = {(one.source, one.step): 1 << i for i, one in enumerate(messages)}
        # A chunk is passed on once it has come, and messages of one sender keep their order.
        needs = (((one.source - 1) % ranks, one.step - 1) for one in messages)
        before = ((one.source, one.step - 1) for one in messages)
        return cls(ranks=ranks, messages=messages, needs=tuple(bit.get(a, 0) | bit.get(b, 0) for a, b in zip(needs, before, strict=True)))


@dataclass(kw_only=True)
class RingRun:
    """A ring collective on its way: which messages were seen.

    Attributes
    ----------
    graph : its messages.
    seen : bitmap of those that were sent or received.
    sent : how many each sender has sent.
    """

    graph: RingGraph
    seen: int = 0
    sent: dict[int, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all messages were seen."""
        return self.seen == (1 << len(self.graph.messages)) - 1

    def ready(self) -> tuple[RingMessage, ...]:
        """Messages that may be sent: the next one of every sender where all that it waits for was seen."""
        following = (messages[count] for messages in self.graph.senders.values() if (count := self._sent(messages)) < len(messages))
        return tuple(one for one in following if self._lacks(one) == 0)

    def see(self, message: RingMessage) -> None:
        """Note a message that was sent or received; CrossflowError for one that could not be sent yet, or was already."""
        place = self.graph.places.get(message)
        if place is None:
            raise CrossflowError(f"unexpected message: {_named(message)} is none of this ring")
        if self.seen >> place & 1:
            raise CrossflowError(f"unexpected message: {_named(message)} was already sent")
        if lacks := self._lacks(message):
            first = self.graph.messages[(lacks & -lacks).bit_length() - 1]
            raise CrossflowError(f"unexpected message: {_named(message)} came before {_named(first)}")
        self.seen |= 1 << place
        self.sent[message.source] = self.sent.get(message.source, 0) + 1

    def _sent(self, messages: Sequence[RingMessage]) -> int:
        return self.sent.get(messages[0].source, 0)

    def _lacks(self, message: RingMessage) -> int:
        """Bits of what a message waits for and was not seen."""
        return self.graph.needs[self.graph.places[message]] & ~self.seen


def _named(message: RingMessage) -> str:
    return f"chunk {message.chunk} from rank {message.source} at step {message.step}"


# -------------------------------------------------------------------------------------------- operations


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A call of a real rank.

    Attributes
    ----------
    rank : that calls, a global one.
    group, ranks : name of the process group, and its global ranks.
    op, size, dtype : what is called. [B]
    how : its reduction and its root, such as "with SUM to rank 0"; "" where it has neither.
    arrival : when the rank is ready. [s]
    patience : how long the script lets it wait for others. [s]
    """

    rank: int
    group: str
    ranks: tuple[int, ...]
    op: str
    size: int
    dtype: str
    arrival: float
    patience: float = 1800.0
    how: str = ""

    @property
    def transfer(self) -> bool:
        """Whether it is one side of a transfer, from the first of its ranks to the last."""
        return self.op in (SEND, RECV)

    @property
    def calls(self) -> str:
        """What is called, for messages."""
        to = {SEND: f" to rank {self.ranks[-1]}", RECV: f" from rank {self.ranks[0]}"}.get(self.op, "")
        return " ".join(part for part in (f"{self.op}{to} of {self.size} B", self.dtype, self.how) if part)


@dataclass(kw_only=True)
class Operation:
    """One operation of a group: who takes part for real, and a bitmap of who has come."""

    group: str
    number: int
    parties: tuple[int, ...]
    entries: dict[int, Entry] = field(default_factory=dict)
    seen: int = 0

    @property
    def complete(self) -> bool:
        """Whether every real rank has come."""
        return self.seen == (1 << len(self.parties)) - 1

    @property
    def missing(self) -> tuple[int, ...]:
        """Real ranks that have not come."""
        return tuple(rank for i, rank in enumerate(self.parties) if not self.seen >> i & 1)

    @property
    def start(self) -> float:
        """When the last of them was ready. [s]"""
        return max(entry.arrival for entry in self.entries.values())

    @property
    def named(self) -> str:
        """What it is, for messages."""
        return f"operation {self.number} of group '{self.group}'"

    def enter(self, entry: Entry) -> None:
        """Note that a rank has come; CrossflowError with both sides where it calls something else than the first."""
        first = next(iter(self.entries.values()), entry)
        same = entry.op == first.op or (entry.transfer and first.transfer)
        if not same or (entry.size, entry.dtype, entry.how) != (first.size, first.dtype, first.how):
            said = f"rank {first.rank} calls {first.calls}, rank {entry.rank} calls {entry.calls}"
            raise CrossflowError(f"the real ranks disagree in {self.named}: {said}")
        self.entries[entry.rank] = entry
        self.seen |= 1 << self.parties.index(entry.rank)
        if self.complete and entry.op in RINGS:
            _check_ring(entry.op, len(entry.ranks), tuple(entry.ranks.index(rank) for rank in self.parties))


@functools.lru_cache(maxsize=64)
def _check_ring(collective: str, ranks: int, real: tuple[int, ...]) -> None:
    """Carry the messages of a ring to its end, those that may be sent one round after the other; CrossflowError where it stops short.

    Once for all operations of equal groups: their messages have the same order, and sizes and types agree by now.
    """
    run = RingRun(graph=RingGraph.of(collective, ranks, real))
    while ready := run.ready():
        for message in ready:
            run.see(message)
    if not run.complete:
        raise CrossflowError(f"the messages of {collective} among {ranks} ranks wait for each other")


@dataclass(kw_only=True)
class CallLedger:
    """The book of all operations that several real ranks share.

    Attributes
    ----------
    real : global ranks that run for real.
    failure : what they disagree in, None as long as they do not.
    """

    real: tuple[int, ...]
    failure: CrossflowError | None = None
    _counts: dict[tuple[int, str, tuple[int, ...], str], int] = field(default_factory=dict)
    _open: dict[tuple[str, tuple[int, ...], int], Operation] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _last: dict[int, Entry] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def meet(self, entry: Entry) -> float:
        """When an operation starts, as soon as all real ranks have come; CrossflowError where one never will. [s]"""
        with self._changed:
            operation = self._entered(entry)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: operation.complete or self.failure is not None, entry.patience):
                self._fail(
                    f"rank {entry.rank} has waited {entry.patience:g} s in {operation.named}, {entry.calls}; {self._about(operation)}"
                )
            if self.failure is not None and not operation.complete:
                raise self.failure
            return operation.start

    def ended(self, rank: int) -> None:
        """Note that a rank has ended; that others wait for it is a failure."""
        with self._changed:
            self._ended.add(rank)
            for operation in list(self._open.values()):
                self._check_ended(operation)

    def _entered(self, entry: Entry) -> Operation:
        key = (entry.rank, entry.group, entry.ranks, entry.op if entry.transfer else "")
        number = self._counts[key] = self._counts.get(key, 0) + 1
        parties = tuple(rank for rank in entry.ranks if rank in self.real)
        place = (f"{entry.group}{' transfers' if entry.transfer else ''}", entry.ranks, number)
        operation = self._open.setdefault(place, Operation(group=entry.group, number=number, parties=parties))
        self._last[entry.rank] = entry
        try:
            operation.enter(entry)
        except CrossflowError as error:
            self.failure = self.failure or error
        if operation.complete:
            del self._open[place]
        self._check_ended(operation)
        return operation

    def _check_ended(self, operation: Operation) -> None:
        if not operation.complete and self._ended & set(operation.missing):
            waits = next(iter(operation.entries.values()))
            self._fail(f"rank {waits.rank} waits in {_asks(operation, waits)}; {self._about(operation)}")

    def _about(self, operation: Operation) -> str:
        """What the ranks that are missing do instead."""
        said = []
        for rank in operation.missing:
            last, does = self._last.get(rank), "has ended" if rank in self._ended else "has not come"
            said.append(f"rank {rank} {does}; {'it called nothing' if last is None else f'its last call was {last.calls}'}")
        return ", ".join(said)

    def _fail(self, sentence: str) -> None:
        self.failure = self.failure or CrossflowError(sentence)
        self._changed.notify_all()


def _asks(operation: Operation, entry: Entry) -> str:
    return f"{operation.named}, {entry.calls}"


def transfers(ranks: Sequence[int], peer: int, rank: int, op: str) -> tuple[int, ...]:
    """Global ranks of a transfer between a rank and a peer of its group: the sender first."""
    other = ranks[peer]
    return (rank, other) if op == SEND else (other, rank)
