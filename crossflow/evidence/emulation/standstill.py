"""Whether a real rank stands still: no thread of its script goes on before another real rank comes to one of its calls.

It is proven, not guessed from a time: each thread of the process waits for a call that has not met yet, or for such a thread. Where
torch waits in C++, as for buckets of gradients, the kernel tells that no thread of the process has run between two looks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from crossflow.evidence.emulation.accounting import Standstill
from crossflow.evidence.emulation.meeting import Meets

OWN = "crossflow-"  # how the names of the emulator's threads begin
LOOKS = 0.1  # time between two looks [s]
WAITING = {"threading", "queue", "concurrent.futures"}  # modules in which threads wait for other threads of their process
TORCH_WAITS = {("torch.autograd.graph", "_engine_run_backward"), ("torch.futures", "wait")}  # functions that may wait in C++
Looks = Mapping[str, tuple[str, ...]]


@dataclass(kw_only=True)
class StandstillWatch:
    """Looks at the threads of a rank from time to time, and says where they stand still.

    Attributes
    ----------
    meets : the rank's side of the meeting.
    waits : the call for which each thread waits, by the thread.
    callers : threads that have called something.
    unmet : calls for which other real ranks have not come.
    taken : calls whose futures torch or the script has taken.
    moving : how many calls are on their links.
    """

    meets: Meets
    waits: dict[int, int] = field(default_factory=dict)
    callers: set[int] = field(default_factory=set)
    unmet: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    moving: int = 0
    _entries: int = 0
    _answers: int = 0
    _said: Standstill | None = None
    _looks: Looks = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"{OWN}standstill", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self.thread.join()

    def called(self, number: int | None) -> None:
        """A call that other real ranks must meet has been made, or one, None, that needs no other."""
        with self._lock:
            self.callers.add(threading.get_ident())
            if number is None:
                self.moving += 1
            else:
                self.unmet.add(number)
                self._entries += 1

    def met(self, number: int) -> None:
        """Its ranks have come, and it goes to its link."""
        with self._lock:
            self.unmet.discard(number)
            self.taken.discard(number)
            self.moving += 1
            self._answers += 1

    def ended(self) -> None:
        """A call has left its link."""
        with self._lock:
            self.moving -= 1

    @contextlib.contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """The thread waits for a call."""
        here = threading.get_ident()
        self.waits[here] = number
        try:
            yield
        finally:
            del self.waits[here]

    def _run(self) -> None:
        while not self._closed.wait(LOOKS):
            said = self._look()
            if said is not None and said != self._said:
                self.meets.stand_still(said)
            self._said = said

    def _look(self) -> Standstill | None:
        """What the rank waits for, None where one of its threads may go on."""
        with self._lock:
            unmet, entries, answers = set(self.unmet), self._entries, self._answers
            if self.moving or not unmet:
                return None
        waits, inside = set(), False
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for thread, frame in sys._current_frames().items():
            known = threads.get(thread)
            if known is not None and known.name.startswith(OWN):
                continue
            if thread in self.waits:
                waits.add(self.waits[thread])
            elif _in_torch(frame):
                inside = True
            elif not _idle(frame, helper=known is not None and known.daemon and thread not in self.callers):
                return None
        taken = unmet & self.taken  # what follows their end may call something, too
        if not waits <= unmet or not (waits or inside) or (inside and not (taken and self._nothing_ran())):
            return None
        return Standstill(rank=self.meets.rank, entries=entries, answers=answers, calls=frozenset(waits | taken))

    def _nothing_ran(self) -> bool:
        """Whether every thread of the process sleeps, and none has run since the last look; a thing of Linux."""
        before, self._looks = self._looks, _looks()
        return before == self._looks and {look[0] for look in self._looks.values()} == {"S"}


def _in_torch(frame: FrameType) -> bool:
    """Whether a thread is in C++, called by a function that may wait there for a collective."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in TORCH_WAITS


def _idle(frame: FrameType, helper: bool) -> bool:
    """Whether a thread waits for another one of its process; only a helper, such as that of a progress bar, may do so for a time."""
    name = str(frame.f_globals.get("__name__"))
    if not any(name == one or name.startswith(f"{one}.") for one in WAITING):
        return False
    timeout = frame.f_locals.get("timeout")
    return helper or timeout is None or timeout < 0


def _looks() -> Looks:
    """State of each thread of the process but this one, and how often it was stopped; empty where the kernel does not tell."""
    found = {}
    for task in Path("/proc/self/task").glob("[0-9]*"):
        if int(task.name) != threading.get_native_id():
            with contextlib.suppress(OSError):  # it has just ended
                said = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                keys = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
                found[task.name] = tuple(said[key].split()[0] for key in keys)
    return found
