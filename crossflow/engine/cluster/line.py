"""The queue of a cluster: numbers of jobs in their order, as an array that policies look at all at once."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, Index, Mask


class WaitingLine:
    """Jobs that wait, in order of their keys; most come at its end and leave at its front."""

    def __init__(self, keys: Array) -> None:
        self._keys = keys  # of every job; smaller ones stand in front
        self._held = np.zeros(64, dtype=np.intp)
        self._first = self._last = 0

    def __len__(self) -> int:
        return self._last - self._first

    @property
    def jobs(self) -> Index:
        """Their numbers in order."""
        return self._held[self._first : self._last]

    @property
    def front(self) -> int:
        """The number of the first."""
        return int(self._held[self._first])

    def add(self, job: int) -> None:
        """Let a job stand where its key says."""
        if self._last == len(self._held):
            self._grow()
        place = self._last
        if len(self) and self._keys[self._held[self._last - 1]] > self._keys[job]:
            place = self._first + int(np.searchsorted(self._keys[self.jobs], self._keys[job], side="right"))
            self._held[place + 1 : self._last + 1] = self._held[place : self._last].copy()
        self._held[place] = job
        self._last += 1

    def _grow(self) -> None:
        """More room at the end: what has left at the front, or twice as much."""
        jobs = self.jobs.copy()
        if 2 * len(jobs) > len(self._held):
            self._held = np.zeros(2 * len(self._held), dtype=np.intp)
        self._held[: len(jobs)] = jobs
        self._first, self._last = 0, len(jobs)

    def pop(self) -> int:
        """Take the first out."""
        self._first += 1
        return int(self._held[self._first - 1])

    def drop(self, gone: Mask) -> None:
        """Take several out, by their places."""
        left = self.jobs[~gone]
        self._last = self._first + len(left)
        self._held[self._first : self._last] = left
