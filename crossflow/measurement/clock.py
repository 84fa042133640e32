"""Times of calls: the median of repeated samples, of the processor's time where one thread runs, of events on a GPU."""

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
NORMAL = 1.4826  # standard deviation over median absolute deviation of a normal distribution
TimedCall = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one call takes."""

    time: float  # median of the samples. [s]
    spread: float  # standard deviation of the samples, from their median absolute deviation. [s]
    count: int  # samples
    wall: float  # median by the clock on the wall. [s]
    cpu: float  # median of the time of the process on all processors. [s]
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
        for call in calls:
            call()
        first = self._sample(calls, len(calls))
        one = max(first[0] / len(calls), 1e-7)
        inner = max(1, min(CALLS, round(SAMPLE / one)))
        inner = -(-inner // len(calls)) * len(calls) if inner > 1 else 1
        count = max(FEWEST, min(MOST, int(seconds / (one * inner))))
        samples = [[part / inner for part in self._sample([calls[i % len(calls)]] if inner == 1 else calls, inner)] for i in range(count)]
        shown, wall, cpu = (statistics.median(column) for column in zip(*samples, strict=True))
        spread = NORMAL * statistics.median(abs(one[0] - shown) for one in samples)
        waits = self.device == "cpu" and wall > BUSY_WALL * cpu
        return Timing(time=shown, spread=spread, count=count, wall=wall, cpu=cpu, busy=waits or spread > BUSY_SPREAD * shown)

    def _sample(self, calls: Sequence[TimedCall], count: int) -> tuple[float, float, float]:
        """What counts, wall time and processor time of so many calls. [s]"""
        rounds = count // len(calls)
        if self.device == "cuda":
            return self._on_gpu(calls, rounds)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            for call in calls:
                call()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return (cpu if self.threads == 1 else wall), wall, cpu

    def _on_gpu(self, calls: Sequence[TimedCall], rounds: int) -> tuple[float, float, float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wall, cpu = time.perf_counter(), time.process_time()
        start.record()
        for _ in range(rounds):
            for call in calls:
                call()
        end.record()
        torch.cuda.synchronize()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return start.elapsed_time(end) * 1e-3, wall, cpu
