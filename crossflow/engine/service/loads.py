"""What the engines of a pool have to do, and which of them has least: found without looking at all of them."""

from __future__ import annotations

import heapq


class PoolLoads:
    """Requests at every engine of a pool, and on their way there.

    >>> loads = PoolLoads(3)
    >>> loads.change(0, 1), loads.change(1, 1), loads.fewest(), loads.change(2, 1), loads.fewest(), loads.counts
    (None, None, 2, None, 0, [1, 1, 1])
    """

    __slots__ = ("counts", "few", "levels", "within")

    def __init__(self, engines: int) -> None:
        self.counts = [0] * engines
        # From the first question on, by numbers of requests: heaps of the engines that have had so many, each once, of which some have
        # others by now, and the same engines as sets. None has fewer requests than `few`.
        self.levels: list[list[int]] = []
        self.within: list[set[int]] = []
        self.few = 0

    def change(self, engine: int, by: int) -> None:
        """An engine has so many more."""
        count = self.counts[engine] = self.counts[engine] + by
        if self.levels:
            self._enter(engine, count)

    def fewest(self) -> int:
        """The engine with the fewest requests, of equal ones the first."""
        if not self.levels:
            for engine, count in enumerate(self.counts):
                self._enter(engine, count)
        counts, few = self.counts, self.few
        while True:
            heap = self.levels[few]
            while heap:
                if counts[heap[0]] == few:
                    self.few = few
                    return heap[0]
                self.within[few].remove(heapq.heappop(heap))
            few += 1

    def _enter(self, engine: int, count: int) -> None:
        while count >= len(self.levels):
            self.levels.append([])
            self.within.append(set())
        if count < self.few:
            self.few = count
        within = self.within[count]
        if engine not in within:
            within.add(engine)
            heapq.heappush(self.levels[count], engine)
