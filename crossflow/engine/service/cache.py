"""Blocks that prompts share: a prefix is kept until its room is wanted, the one that was used longest ago first.

Paged blocks are those of vLLM (Kwon et al., SOSP 2023, Sec. 4), whose full blocks are found by a hash of all tokens up to their end; the
radix tree of SGLang (Zheng et al., NeurIPS 2024, Sec. 3) finds the same prefixes, and evicts its leaves in the same order.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence

FarBlock = tuple[int, int]  # place among the blocks of a prompt, and the tier in which it lies


class PrefixCache:
    """Full blocks of prompts by their hash: those that requests in the engine use, and those that lie idle.

    What was written of a request enters when it leaves: its next turn finds it, and what no turn asks for takes room all the same.
    Blocks are found from the moment at which a request that reads them is admitted, as in vLLM, which registers what a step computes
    when it is scheduled. Of a freed prompt the end is given up first, for its beginning may serve more.

    Parameters
    ----------
    size : pages of the cache that a block takes. [1]
    beyond : blocks that each further tier (the host's memory, a disk) keeps of those that the one before gives up. [1]
    """

    __slots__ = ("beyond", "idle", "nameless", "size", "tiers", "used")

    def __init__(self, size: int, beyond: Sequence[int] = ()) -> None:
        self.size, self.beyond = size, beyond
        self.used: dict[int, int] = {}  # requests that use a block
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.tiers: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in beyond)
        self.nameless = -1  # the next hash of a block that nobody asks for

    def __len__(self) -> int:
        return len(self.used) + len(self.idle)

    def found(self, hashes: Sequence[int]) -> tuple[int, list[FarBlock]]:
        """Leading blocks that are there, and which of those lie in a further tier. [1]"""
        used, idle, many = self.used, self.idle, 0
        far: list[FarBlock] = []
        for block in hashes:
            if block not in used and block not in idle:
                tier = self._tier(block)
                if tier < 0:
                    break
                far.append((many, tier))
            many += 1
        return many, far

    def _tier(self, block: int) -> int:
        """The further tier in which a block lies, -1 where it lies in none."""
        return next((i for i, tier in enumerate(self.tiers) if block in tier), -1)

    def _back(self, block: int) -> None:
        """A block is on the device again."""
        for tier in self.tiers:
            tier.pop(block, None)

    def pages(self, hashes: Sequence[int]) -> int:
        """Pages that using them takes of what is free or idle. [1]"""
        used = self.used
        return self.size * sum(block not in used for block in hashes)

    def take(self, hashes: Sequence[int]) -> int:
        """Use blocks: those that nobody used are idle no longer, or new; pages that they take. [1]"""
        taken = 0
        for block in hashes:
            others = self.used.get(block, 0)
            self.used[block] = others + 1
            if not others:
                taken += self.size
                self.idle.pop(block, None)
                self._back(block)
        return taken

    def free(self, hashes: Sequence[int]) -> int:
        """Use them no longer; pages that nobody uses now. [1]"""
        left = 0
        for block in reversed(hashes):
            self.used[block] -= 1
            if not self.used[block]:
                del self.used[block]
                self.idle[block] = None
                left += self.size
        return left

    def names(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        """Hashes of so many blocks of an answer: those that the next turn asks for, then new ones."""
        new = max(count - len(answer), 0)
        self.nameless -= new
        return (*answer[:count], *range(self.nameless + new, self.nameless, -1))

    def keep(self, hashes: Sequence[int]) -> None:
        """Blocks that a request leaves behind lie idle from now on; the last of them is given up first."""
        asked = bisect.bisect(hashes, False, key=lambda block: block < 0)
        self.idle.update(dict.fromkeys(reversed(hashes[asked:])))  # nobody asks for them, so that they lie nowhere yet
        for block in reversed(hashes[:asked]):
            if block not in self.used:
                self.idle[block] = None
                self.idle.move_to_end(block)
                self._back(block)

    def shrink(self, room: int) -> None:
        """Give up the oldest idle blocks until the others fit in so many pages."""
        while len(self.idle) * self.size > room:
            block, _ = self.idle.popitem(last=False)
            for tier, most in zip(self.tiers, self.beyond, strict=True):
                tier[block] = None
                if len(tier) <= most:
                    break
                block, _ = tier.popitem(last=False)
