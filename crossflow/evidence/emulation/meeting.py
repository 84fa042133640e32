"""Where the real ranks of one run meet: a socket of the parent process, behind which stands the ledger."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener

from crossflow.evidence.emulation.accounting import CallLedger, Entry, Operation, Standstill

CLOSING = 1.0  # that a connection has to end [s]
Met = Callable[[float, Mapping[int, bytes]], None]  # takes when an operation starts, and what other ranks give [s]


@dataclass(kw_only=True)
class Meeting:
    """Answers the real ranks, each on a connection of its own.

    Attributes
    ----------
    ledger : the book of what they call.
    key : that connections prove to know.
    """

    ledger: CallLedger
    key: bytes = field(default_factory=lambda: os.urandom(16))
    _ranks: dict[int, tuple[threading.Thread, Connection]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listener = Listener(authkey=self.key)
        threading.Thread(target=self._listen, name="crossflow-meeting", daemon=True).start()

    @property
    def address(self) -> str:
        """Where ranks connect to, with the key."""
        return f"{self.key.hex()}@{self.listener.address}"

    def ended(self, rank: int) -> None:
        """Note that a rank has ended, once all that it said was heard."""
        if rank in self._ranks:
            self._ranks[rank][0].join(CLOSING)
        self.ledger.ended(rank)

    def close(self) -> None:
        """Answer no more."""
        self.listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection = self.listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: Connection) -> None:
        """Listen to a rank, which says who it is at first, and None at its end; both are answered."""
        with connection, contextlib.suppress(EOFError, OSError):  # the rank has gone
            self._ranks[connection.recv()] = threading.current_thread(), connection
            connection.send(None)
            while (said := connection.recv()) is not None:
                self._note(said)
            connection.send(None)

    def _note(self, said: Entry | Standstill) -> None:
        if isinstance(said, Standstill):
            self.ledger.stand_still(said)
            return
        with self.ledger.lock:  # so that all ranks hear of operations in the same order
            operation = self.ledger.enter(said)
            if operation is not None:
                self._answer(operation)

    def _answer(self, operation: Operation) -> None:
        for rank, entry in operation.entries.items():
            payloads = {other: payload for other, payload in operation.payloads.items() if other != rank}
            with contextlib.suppress(OSError):
                self._ranks[rank][1].send((entry.number, operation.start, payloads))


@dataclass(kw_only=True)
class Meets:
    """The side of a rank: says what it calls, and is told when that starts, in the order in which operations are complete.

    Attributes
    ----------
    rank, address : of the rank, and where the ranks meet.
    """

    rank: int
    address: str
    _met: dict[int, Met] = field(default_factory=dict)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        key, _, place = self.address.partition("@")
        self._connection = Client(place, authkey=bytes.fromhex(key))
        self._connection.send(self.rank)
        self._connection.recv()
        self._thread = threading.Thread(target=self._hear, name="crossflow-meets", daemon=True)
        self._thread.start()

    def call(self, entry: Entry, met: Met) -> None:
        """Say that the rank calls; `met` is called from another thread as soon as all real ranks have come."""
        with self._sending:
            self._met[entry.number] = met
            self._say(entry)

    def stand_still(self, said: Standstill) -> None:
        """Say that no thread of the rank goes on by itself."""
        with self._sending:
            self._say(said)

    def close(self) -> None:
        """Say that the rank calls no more."""
        with self._sending:
            self._say(None)
        self._thread.join(CLOSING)

    def _say(self, said: object) -> None:
        with contextlib.suppress(OSError):  # the parent has gone, and this process ends, too
            self._connection.send(said)

    def _hear(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while (answer := self._connection.recv()) is not None:
                number, start, payloads = answer
                self._met.pop(number)(start, payloads)
