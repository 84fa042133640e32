"""Adapters in the memory of an engine: those that requests use, and those that lie idle, the one that was used longest ago first.

An engine has so many slots. One whose adapter has none waits while others that find theirs go on, until a request leaves its own (vLLM,
vllm/v1/core/sched/scheduler.py, `max_loras`); an adapter that comes takes the slot of the idle one that was used longest ago, and the next
step waits until its weights have come from the host (vllm/lora/worker_manager.py, `LRUCacheWorkerLoRAManager`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class AdapterSlots:
    """Slots of one engine; at first the most used adapters are there, of which 0 is used most.

    Parameters
    ----------
    chosen : adapter of every request of a trace, -1 where it uses none.
    load : time in which the weights of one come from the host. [s]
    """

    __slots__ = ("chosen", "idle", "load", "loads", "slots", "used")

    def __init__(self, chosen: Sequence[int], slots: int, load: float) -> None:
        self.chosen, self.slots, self.load = chosen, slots, load
        self.used: dict[int, int] = {}  # requests that use each
        self.idle = OrderedDict[int, None]()
        self.loads = 0  # adapters that came from the host. [1]
        self.fill()

    def fill(self) -> None:
        """Have the most used adapters there, with no requests."""
        self.used.clear()
        self.idle = OrderedDict.fromkeys(reversed(range(self.slots)))

    def room(self, request: int) -> bool:
        """Whether the adapter of a request is there, or has a slot that nobody uses."""
        adapter = self.chosen[request]
        return adapter < 0 or adapter in self.used or len(self.used) < self.slots

    def take(self, request: int) -> float:
        """Use the adapter of a request; the time in which it comes. [s]"""
        adapter = self.chosen[request]
        if adapter < 0:
            return 0.0
        there = adapter in self.used or adapter in self.idle
        self.used[adapter] = self.used.get(adapter, 0) + 1
        self.idle.pop(adapter, None)
        if there:
            return 0.0
        if len(self.used) + len(self.idle) > self.slots:
            self.idle.popitem(last=False)
        self.loads += 1
        return self.load

    def free(self, request: int) -> None:
        """A request uses its adapter no longer."""
        adapter = self.chosen[request]
        if adapter < 0:
            return
        self.used[adapter] -= 1
        if not self.used[adapter]:
            del self.used[adapter]
            self.idle[adapter] = None
