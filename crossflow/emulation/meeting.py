"""Where the real ranks of one run meet: a socket of the parent process, behind which stands the ledger."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener

from crossflow.emulation.accounting import CallLedger, Entry
from crossflow.errors import CrossflowError


@dataclass(kw_only=True)
class Meeting:
    """Answers the real ranks, each link of a rank on a connection of its own.

    Attributes
    ----------
    ledger : the book of what they call.
    key : that connections prove to know.
    """

    ledger: CallLedger
    key: bytes = field(default_factory=lambda: os.urandom(16))

    def __post_init__(self) -> None:
        self.listener = Listener(authkey=self.key)
        threading.Thread(target=self._listen, name="crossflow-meeting", daemon=True).start()

    @property
    def address(self) -> str:
        """Where ranks connect to, with the key."""
        return f"{self.key.hex()}@{self.listener.address}"

    def close(self) -> None:
        """Answer no more."""
        self.listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection = self.listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    entry = Entry(**connection.recv())
                    connection.send(self.ledger.meet(entry))
                except CrossflowError as error:
                    connection.send(str(error))
                except (EOFError, OSError):  # the rank has gone
                    return


@dataclass(kw_only=True)
class Meets:
    """The side of a rank: asks the parent when an operation starts, each thread over a connection of its own."""

    address: str
    _local: threading.local = field(default_factory=threading.local)

    def __call__(self, entry: Entry, arrival: float) -> float:
        """When an operation starts that is ready here at `arrival`; CrossflowError where the ranks disagree. [s]"""
        if not hasattr(self._local, "connection"):
            key, _, place = self.address.partition("@")
            self._local.connection = Client(place, authkey=bytes.fromhex(key))
        self._local.connection.send(asdict(replace(entry, arrival=arrival)))
        answer = self._local.connection.recv()
        if isinstance(answer, str):
            raise CrossflowError(answer)
        return float(answer)
