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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crossflow.base.errors import CrossflowError
from crossflow.cost.collectives import ring_steps

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
SEND, RECV, ALL_TO_ALL = "send", "recv", "all_to_all"
LISTED = 8  # ranks that messages give by their numbers


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
    number : of the call among those of the rank.
    tag : of a transfer.
    sent, received : of an all_to_all, what goes to and comes from each rank of the group. [B]
    payload : data for the other real ranks, where they need them, as for objects.
    where : file and line of the script, "" where they are not known.
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
    number: int = 0
    tag: int = 0
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    payload: bytes | None = None
    where: str = ""

    @property
    def transfer(self) -> bool:
        """Whether it is one side of a transfer, from the first of its ranks to the last."""
        return self.op in (SEND, RECV)

    @property
    def calls(self) -> str:
        """What is called and where, for messages."""
        to = {SEND: f" to rank {self.ranks[-1]}", RECV: f" from rank {self.ranks[0]}"}.get(self.op, "")
        tag, place = f"with tag {self.tag}" if self.tag else "", f"at {self.where}" if self.where else ""
        return " ".join(part for part in (f"{self.op}{to} of {self.size} B", self.dtype, self.how, tag, place) if part)

    def agrees(self, other: Entry) -> bool:
        """Whether both ranks call the same. What one sends in an all_to_all may have another size than what another one does."""
        same = self.op == other.op or (self.transfer and other.transfer)
        return same and (self.dtype, self.how) == (other.dtype, other.how) and (self.size == other.size or self.op == ALL_TO_ALL)

    def sends(self, other: Entry) -> tuple[int, int]:
        """What it sends to another rank in an all_to_all, and what that one expects. [B]"""
        return self.sent[self.ranks.index(other.rank)], other.received[self.ranks.index(self.rank)]


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
    def payloads(self) -> dict[int, bytes]:
        """What ranks have given for the others."""
        return {rank: entry.payload for rank, entry in self.entries.items() if entry.payload is not None}

    @property
    def named(self) -> str:
        """What it is, for messages."""
        return f"operation {self.number} of group '{self.group}'"

    def enter(self, entry: Entry) -> None:
        """Note that a rank has come; CrossflowError with both sides where it calls something else than one before."""
        for other in self.entries.values():
            if not entry.agrees(other):
                raise self._disagreement(f"rank {other.rank} calls {other.calls}, rank {entry.rank} calls {entry.calls}")
            for source, target in ((other, entry), (entry, other)) if entry.sent and other.sent else ():
                sent, expected = source.sends(target)
                if sent != expected:
                    said = f"rank {source.rank} sends {sent} B to rank {target.rank} in {source.calls}, which expects {expected} B"
                    raise self._disagreement(f"{said} in {target.calls}")
        self.entries[entry.rank] = entry
        self.seen |= 1 << self.parties.index(entry.rank)
        if self.complete and entry.op in RINGS:
            _check_ring(entry.op, len(entry.ranks), tuple(entry.ranks.index(rank) for rank in self.parties))

    def _disagreement(self, said: str) -> CrossflowError:
        return CrossflowError(f"the real ranks disagree in {self.named}: {said}")


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


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """That no thread of a rank goes on before one of some calls has met.

    Attributes
    ----------
    rank : a global one.
    entries, answers : how many calls it had said, and how many of them had met; it is over once there are more. [1]
    calls : numbers of the calls for which its threads wait.
    """

    rank: int
    entries: int
    answers: int
    calls: frozenset[int]


@dataclass(kw_only=True)
class CallLedger:
    """The book of all operations that several real ranks share.

    Attributes
    ----------
    real : global ranks that run for real.
    failure : what they disagree in, None as long as they do not; the book is closed from then on.
    lock : to be held by those who read it while ranks call.
    """

    real: tuple[int, ...]
    failure: CrossflowError | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _open: dict[tuple[object, ...], Operation] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _last: dict[int, Entry] = field(default_factory=dict)
    _entries: Counter[int] = field(default_factory=Counter)
    _answers: Counter[int] = field(default_factory=Counter)
    _still: dict[int, Standstill] = field(default_factory=dict)

    def enter(self, entry: Entry) -> Operation | None:
        """Note a call; its operation, once all its real ranks have come."""
        with self.lock:
            if self.failure is not None:
                return None
            self._last[entry.rank] = entry
            self._entries[entry.rank] += 1
            self._still.pop(entry.rank, None)
            place, operation = self._operation(entry)
            try:
                operation.enter(entry)
            except CrossflowError as error:
                self.failure = error
                return None
            if not operation.complete:
                self._check_ended(operation)
                return None
            del self._open[place]
            self._answers.update(operation.parties)
            for rank in operation.parties:
                self._still.pop(rank, None)
            return operation

    def stand_still(self, said: Standstill) -> None:
        """Note that a rank waits; a failure where it and others wait for each other."""
        with self.lock:
            if (said.entries, said.answers) == (self._entries[said.rank], self._answers[said.rank]):
                self._still[said.rank] = said
                self._check_standstill()

    def ended(self, rank: int) -> None:
        """Note that a rank has ended; that others wait for it is a failure."""
        with self.lock:
            self._ended.add(rank)
            for operation in self._open.values():
                self._check_ended(operation)

    def check_patience(self, now: float) -> None:
        """A failure where a rank has waited longer than its script allows. [s]"""
        with self.lock:
            waiting = ((entry, operation) for operation in self._open.values() for entry in operation.entries.values())
            for entry, operation in waiting:
                if now - entry.arrival > entry.patience:
                    waited = f"rank {entry.rank} has waited {entry.patience:g} s"
                    self._fail(f"{waited} in {_asks(operation, entry)}; {self._about(operation)}")

    def _operation(self, entry: Entry) -> tuple[tuple[object, ...], Operation]:
        """The operation of a call, by the place of the call in the order of its group; transfers have an order for each tag."""
        kind = f"{entry.group}{' transfers' if entry.transfer else ''}", entry.ranks, entry.tag
        by = (*kind, entry.rank, entry.op if entry.transfer else "")
        self._counts[by] += 1
        place, parties = (*kind, self._counts[by]), tuple(rank for rank in entry.ranks if rank in self.real)
        return place, self._open.setdefault(place, Operation(group=entry.group, number=self._counts[by], parties=parties))

    def _check_ended(self, operation: Operation) -> None:
        if self._ended & set(operation.missing):
            waits = next(iter(operation.entries.values()))
            self._fail(f"rank {waits.rank} waits in {_asks(operation, waits)}; {self._about(operation)}")

    def _check_standstill(self) -> None:
        """A failure where ranks wait for each other: the largest set of which none goes on before another one of it does."""
        waits = {rank: self._waits(said) for rank, said in self._still.items()}
        among = set(waits)
        while free := {rank for rank in among if _may_go_on(waits[rank], among)}:
            among -= free
        if among:
            said = "; ".join(_waiting(rank, waits[rank][0]) for rank in sorted(among))
            self._fail(f"the real ranks wait for each other, and none can go on: {said}")

    def _waits(self, said: Standstill) -> list[Operation]:
        """Operations for which a rank waits, in the order of its calls."""
        entered = ((operation.entries[said.rank], operation) for operation in self._open.values() if said.rank in operation.entries)
        return [operation for entry, operation in sorted(entered, key=lambda pair: pair[0].number) if entry.number in said.calls]

    def _about(self, operation: Operation) -> str:
        """What the ranks that are missing do instead."""
        said = []
        for rank in operation.missing:
            last, does = self._last.get(rank), "has ended" if rank in self._ended else "has not come"
            said.append(f"rank {rank} {does}; {'it called nothing' if last is None else f'its last call was {last.calls}'}")
        return ", ".join(said)

    def _fail(self, sentence: str) -> None:
        self.failure = self.failure or CrossflowError(sentence)


def _may_go_on(waits: Sequence[Operation], among: set[int]) -> bool:
    """Whether a rank waits for an operation of which no rank is missing among those that wait."""
    return not waits or any(not among.intersection(operation.missing) for operation in waits)


def _asks(operation: Operation, entry: Entry) -> str:
    return f"{operation.named}, {entry.calls}"


def _waiting(rank: int, operation: Operation) -> str:
    """What a rank waits in, and for whom."""
    entry = operation.entries[rank]
    group = "" if entry.transfer else f", among {listed(entry.ranks)}"
    return f"rank {rank} waits in {_asks(operation, entry)}{group}, for {listed(operation.missing)}"


def listed(ranks: Sequence[int]) -> str:
    """Ranks for messages: a few by their numbers, many by how many they are."""
    if len(ranks) > LISTED:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def transfers(ranks: Sequence[int], peer: int, rank: int, op: str) -> tuple[int, ...]:
    """Global ranks of a transfer between a rank and a peer of its group: the sender first."""
    other = ranks[peer]
    return (rank, other) if op == SEND else (other, rank)
