"""When collectives run: the law of queues and of slower ranks, which emulation and replay share, and the thread that delivers.

Collectives of one link follow one another in the order in which they are called, as on a communication stream. Two that share a wire
together take as long as one after the other, so a queue for each wire says when the last of them ends.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from crossflow.evidence.emulation.what_if import Slow

CHUNK = 1 << 18  # bytes that the host's share of a collective copies at once, without the interpreter's lock
SLACK = 29  # prctl: how late the kernel may wake this thread up
CLOSING = 1.0  # that a thread has to end [s]
SPIN = 50e-6  # before its end a sleep becomes a loop that yields [s]


@dataclass(kw_only=True)
class Fifo:
    """Queues of links: a collective starts when its link is free.

    Attributes
    ----------
    free : when each link is free again. [s]
    """

    free: dict[str, float] = field(default_factory=dict)

    def place(self, link: str, arrival: float, lasts: float) -> tuple[float, float]:
        """Start and end of a collective that is ready at `arrival`. [s]"""
        start = max(arrival, self.free.get(link, arrival))
        self.free[link] = start + lasts
        return start, start + lasts


@dataclass(kw_only=True)
class Pace:
    """When slower ranks get where the real one is [1]_, Sec. 2.3: they run its program, and wait for what it waits for.

    Between two waits such a rank computes `factor` times as long as the real one, so it falls behind. A collective with it starts when
    it arrives. Once both have waited for the end, they go on together.

    Attributes
    ----------
    slow : the slower ranks.
    here : when the real rank was last seen. [s]
    clocks : when each of `slow` has done what the real rank has. [s]

    References
    ----------
    .. [1] Liu et al., "Towards a Flexible and High-Fidelity Approach to Distributed DNN Training Emulation", APSys 2024.
    """

    slow: tuple[Slow, ...] = ()
    here: float | None = None
    clocks: list[float] = field(default_factory=list)

    def reach(self, now: float) -> None:
        """The real rank has computed until now."""
        if self.here is None:
            self.here, self.clocks = now, [now] * len(self.slow)
        self.clocks = [clock + (now - self.here) * one.factor for clock, one in zip(self.clocks, self.slow, strict=True)]
        self.here = now

    def arrival(self, now: float, ranks: Iterable[int]) -> float:
        """When the last of some ranks arrives at what the real one has reached now. [s]"""
        self.reach(now)
        if not self.slow:
            return now
        among = set(ranks)
        late = [clock + one.extra for clock, one in zip(self.clocks, self.slow, strict=True) if one.ranks & among]
        return max([now, *late])

    def waited(self, now: float, end: float) -> None:
        """The real rank goes on now, after something that ended at `end`, for which the others waited too."""
        self.clocks = [max(clock, end) for clock in self.clocks]
        self.here = now


@dataclass(kw_only=True)
class Call:
    """A collective on its way.

    Attributes
    ----------
    arrival : when it is ready to start, with all other ranks. [s]
    time, host : its delay, and processor time of the host in it. [s]
    fill : writes the outputs.
    done : is told how long its outputs took, when it ends, and what went wrong.
    """

    arrival: float
    time: float
    host: float
    fill: Callable[[], None]
    done: Callable[[float, float, Exception | None], None]


@dataclass(kw_only=True)
class LinkThread:
    """A thread that ends the collectives of one link, each at its time.

    Attributes
    ----------
    name : of the link.
    early : how long it takes at present until a waiting script goes on, by which collectives are delivered earlier. [s]
    """

    name: str
    early: Callable[[], float] = float
    calls: queue.SimpleQueue[Call | None] = field(default_factory=queue.SimpleQueue)
    queues: Fifo = field(default_factory=Fifo)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"crossflow-{self.name}", daemon=True)
        self.thread.start()

    def put(self, call: Call) -> None:
        """Let a collective follow those that were put before."""
        self.calls.put(call)

    def close(self) -> None:
        """End what was put, then the thread; what lasts longer ends with the process."""
        self.calls.put(None)
        self.thread.join(CLOSING)

    def _run(self) -> None:
        _wake_up_in_time()
        while (call := self.calls.get()) is not None:
            try:
                told = self._carry(call)
            except Exception as error:  # goes on in the script, where it waits
                call.done(0.0, time.perf_counter(), error)
            else:
                call.done(*told, None)

    def _carry(self, call: Call) -> tuple[float, float]:
        """Take the time of a collective; how long its outputs took, and its end. [s]"""
        start, end = self.queues.place(self.name, call.arrival, call.time)
        began, used = time.perf_counter(), time.thread_time()
        call.fill()
        filled = time.perf_counter()
        if call.host > 0:
            sleep_until(start)
            burn(used + call.host - time.thread_time())
            end = max(end, time.perf_counter() + call.time - call.host)  # the rest goes over the wire once the host has done its share
        end = self.queues.free[self.name] = max(end, filled)  # outputs that take longer than the delay keep the link
        sleep_until(end - self.early())
        return filled - began, end


def burn(seconds: float) -> None:
    """Use processor time of this thread, without the interpreter's lock, as a communication library does that copies and adds."""
    source, target = (ctypes.c_char * CHUNK)(), (ctypes.c_char * CHUNK)()
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        ctypes.memmove(target, source, CHUNK)


def sleep_until(moment: float) -> None:
    """Return at a moment of `time.perf_counter`, at once where it is over."""
    left = moment - time.perf_counter()
    if left > SPIN:
        time.sleep(left - SPIN)
    while time.perf_counter() < moment:
        time.sleep(0)


def _wake_up_in_time() -> None:
    """Ask the kernel to wake this thread up at once, not some 50 us later; a thing of Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SLACK, 1, 0, 0, 0)
