"""Times of calls: a low quantile of repeated samples, of the processor's time where one thread runs, of events on a GPU.

What a call makes is kept until its buffers are used again, so that its result lies in memory that no cache holds, as in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SAMPLE = 2e-3  # least that a sample takes, so that reading the clock does not count [s]
FEWEST, MOST, CALLS = 5, 25, 2000  # samples of a row, and calls of a sample
BUSY_SPREAD, BUSY_WALL = 0.1, 1.25  # spread over time, and wall time over processor time, above which a machine is busy
LOW = 0.2  # quantile of the samples that counts: other processes only ever lengthen a sample
NORMAL = 1.4826  # standard deviation over median absolute deviation of a normal distribution
TimedCall = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one call takes."""

    time: float  # 20 % quantile of the samples. [s]
    spread: float  # standard deviation of the samples, from their median absolute deviation. [s]
    count: int  # samples
    wall: float  # the same by the clock on the wall. [s]
    cpu: float  # the same of the time of the process on all processors. [s]
    busy: bool  # whether the samples show that other processes disturb

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How calls are timed on a device.

    One thread is timed by the time of the process, which other processes do not lengthen; several by the clock on the wall; a GPU by
    events on its stream.
    """

    device: str
    threads: int

    def timed(self, calls: Sequence[TimedCall], seconds: float) -> Timing:
        """Time of a call, the same work on different buffers in turn, within about so many seconds."""
        kept: list[Any] = [None] * len(calls)
        every = range(len(calls))
        self._sample(calls, every, kept)
        one = max(min(self._sample(calls, every[:1], kept)[0] for _ in range(3)), 1e-7)
        inner = max(1, min(CALLS, round(SAMPLE / one)))
        rounds = -(-inner // len(calls)) if inner > 1 else 0
        inner = max(1, rounds * len(calls))
        count = max(FEWEST, min(MOST, int(seconds / (one * inner))))
        places = [[*every] * rounds or [i % len(calls)] for i in range(count)]
        samples = [[part / inner for part in self._sample(calls, mine, kept)] for mine in places]
        shown, wall, cpu = (low(column) for column in zip(*samples, strict=True))
        middle = statistics.median(one[0] for one in samples)
        spread = NORMAL * statistics.median(abs(one[0] - middle) for one in samples)
        waits = self.device == "cpu" and wall > BUSY_WALL * cpu
        return Timing(time=shown, spread=spread, count=count, wall=wall, cpu=cpu, busy=waits or spread > BUSY_SPREAD * shown)

    def once(self, call: TimedCall) -> float:
        """About what a call takes. [s]"""
        return min(self._sample([call], [0], [None])[0] for _ in range(2))

    def _sample(self, calls: Sequence[TimedCall], places: Sequence[int], kept: list[Any]) -> tuple[float, float, float]:
        """What counts, wall time and processor time of some of the calls in turn; `kept` holds what each made last. [s]"""
        if self.device == "cuda":
            return self._on_gpu(calls, places, kept)
        wall, cpu = time.perf_counter(), time.process_time()
        for i in places:
            kept[i] = calls[i]()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return (cpu if self.threads == 1 else wall), wall, cpu

    def _on_gpu(self, calls: Sequence[TimedCall], places: Sequence[int], kept: list[Any]) -> tuple[float, float, float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wall, cpu = time.perf_counter(), time.process_time()
        start.record()
        for i in places:
            kept[i] = calls[i]()
        end.record()
        torch.cuda.synchronize()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return start.elapsed_time(end) * 1e-3, wall, cpu


def low(samples: Sequence[float]) -> float:
    """The 20 % quantile of samples."""
    return sorted(samples)[int(LOW * (len(samples) - 1))]
