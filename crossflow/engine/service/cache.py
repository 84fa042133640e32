"""Blocks that prompts share: a prefix is kept until its room is wanted, the one that was used longest ago first.

Paged blocks are those of vLLM (Kwon et al., SOSP 2023, Sec. 4), whose full blocks are found by a hash of all tokens up to their end; the
radix tree of SGLang (Zheng et al., NeurIPS 2024, Sec. 3) finds the same prefixes, and evicts its leaves in the same order. Here blocks
that all prompts have together, or not at all, are one entry as in that tree.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from crossflow.engine.service.runs import Chain, covered, divided, length

FarBlock = tuple[int, int]  # place among the blocks of a prompt, and the tier in which it lies


class PrefixCache:
    """Full blocks of prompts, in runs: those that requests in the engine use, and those that lie idle.

    What was written of a request enters when it leaves: its next turn finds it, and what no turn asks for takes room all the same.
    Blocks are found from the moment at which a request that reads them is admitted, as in vLLM, which registers what a step computes
    when it is scheduled. Of a freed prompt the end is given up first, for its beginning may serve more.

    Parameters
    ----------
    size : pages of the cache that a block takes. [1]
    beyond : blocks that each further tier (the host's memory, a disk) keeps of those that the one before gives up. [1]
    """

    __slots__ = ("beyond", "cuts", "idle", "lying", "nameless", "size", "tiers", "used", "using")

    def __init__(self, size: int, beyond: Sequence[int] = ()) -> None:
        self.size, self.beyond = size, beyond
        self.used: dict[int, int] = {}  # requests that use a run, by its first block
        self.idle: OrderedDict[int, int] = OrderedDict()  # leading blocks that are there of a run that nobody uses
        self.using = self.lying = 0  # blocks of these and of those. [1]
        self.tiers: tuple[_Tier, ...] = tuple(_Tier(most) for most in beyond)
        self.nameless = 0  # the first of the blocks that nobody asks for, which have numbers below 0
        self.cuts: list[int] = []  # blocks at which further runs begin, since only a part of one was kept; rising

    def __len__(self) -> int:
        return self.using + self.lying

    def parts(self, chain: Chain) -> Chain:
        """A chain in the runs that are counted here."""
        return covered(chain, self.cuts) if self.cuts else chain

    def begins(self, chain: Chain) -> bool:
        """Whether it may have anything of a chain."""
        run = chain[0][0]
        return run in self.used or run in self.idle or len(self.tiers) > 0

    def found(self, chain: Chain) -> tuple[int, list[FarBlock]]:
        """Leading blocks that are there, and which of those lie in a further tier. [1]"""
        used, idle, many = self.used, self.idle, 0
        far: list[FarBlock] = []
        for begin, end in self.parts(chain) if self.cuts else chain:
            if begin in used:
                many += end - begin
                continue
            here = idle.get(begin, 0)
            many += here
            if here < end - begin:
                if not self.tiers:
                    break
                while here < end - begin and (tier := self._tier(begin, here)) >= 0:
                    far.append((many, tier))
                    here += 1
                    many += 1
                if here < end - begin:
                    break
        return many, far

    def _tier(self, run: int, place: int) -> int:
        """The further tier in which a block of a run lies, -1 where it lies in none."""
        return next((i for i, tier in enumerate(self.tiers) if tier.has(run, place)), -1)

    def _back(self, run: int) -> None:
        """A run is on the device again."""
        for tier in self.tiers:
            tier.drop(run)

    def pages(self, chain: Chain) -> int:
        """Pages that using them takes of what is free or idle. [1]"""
        used, wanted = self.used, 0
        for begin, end in self.parts(chain) if self.cuts else chain:
            if begin not in used:
                wanted += end - begin
        return self.size * wanted

    def take(self, chain: Chain) -> int:
        """Use blocks: those that nobody used are idle no longer, or new; pages that they take. [1]"""
        used, idle, taken = self.used, self.idle, 0
        for begin, end in self.parts(chain) if self.cuts else chain:
            others = used.get(begin, 0)
            used[begin] = others + 1
            if not others:
                taken += end - begin
                if begin in idle:
                    self.lying -= idle.pop(begin)
                if self.tiers:
                    self._back(begin)
        self.using += taken
        return taken * self.size

    def free(self, chain: Chain) -> int:
        """Use them no longer; pages that nobody uses now. [1]"""
        used, idle, left = self.used, self.idle, 0
        for begin, end in reversed(self.parts(chain) if self.cuts else chain):
            others = used[begin] - 1
            if others:
                used[begin] = others
            else:
                del used[begin]
                idle[begin] = end - begin
                left += end - begin
        self.using -= left
        self.lying += left
        return left * self.size

    def names(self, answer: Chain, count: int) -> Chain:
        """So many blocks of an answer: those that the next turn asks for, then new ones."""
        known, _ = divided(answer, count)
        if known and known[-1] != answer[len(known) - 1]:
            self._cut(*known[-1])
        new = count - length(known)
        if new <= 0:
            return known
        self.nameless -= new
        return (*known, (self.nameless, self.nameless + new))

    def keep(self, chain: Chain) -> None:
        """Blocks that a request leaves behind lie idle from now on; the last of them is given up first."""
        used, idle = self.used, self.idle
        for begin, end in reversed(self.parts(chain) if self.cuts else chain):
            if begin not in used:
                self.lying += end - begin - idle.pop(begin, 0)
                idle[begin] = end - begin
                if self.tiers:
                    self._back(begin)

    def shrink(self, room: int) -> None:
        """Give up the oldest idle blocks until the others fit in so many pages."""
        idle, more = self.idle, self.lying - room // self.size
        if more <= 0:
            return
        self.lying -= more
        while more > 0:
            run, here = next(iter(idle.items()))
            left = here - more
            if left > 0:
                idle[run] = left
            else:
                left = 0
                del idle[run]
            more -= here - left
            for place in range(here - 1, left - 1, -1) if self.tiers else ():
                self._send(run, place)

    def _send(self, run: int, place: int) -> None:
        """A block goes to the first of the further tiers, whose oldest goes to the next one where it is full."""
        for tier in self.tiers:
            tier.put(run, place)
            if tier.held <= tier.most:
                break
            run, place = tier.give()

    def _cut(self, run: int, block: int) -> None:
        """Let a run begin at a block inside one that begins at `run`, which becomes two."""
        i = bisect.bisect_left(self.cuts, block)
        if i < len(self.cuts) and self.cuts[i] == block:
            return
        begin = max(run, self.cuts[i - 1]) if i else run
        self.cuts.insert(i, block)
        if begin in self.used:
            self.used[block] = self.used[begin]
        if self.idle.get(begin, 0) > block - begin:
            self.idle = OrderedDict(_split(self.idle.items(), begin, block))
        for tier in self.tiers:
            tier.cut(begin, block)


class _Tier:
    """What a further tier keeps of runs that nobody uses: of each the blocks between two places, which came from the last one on.

    Parameters
    ----------
    most : blocks that it has room for. [1]
    """

    __slots__ = ("held", "most", "runs")

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.runs: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def has(self, run: int, place: int) -> bool:
        """Whether a block of a run lies here."""
        first, behind = self.runs.get(run, (0, 0))
        return first <= place < behind

    def put(self, run: int, place: int) -> None:
        """Keep the block of a run before those that are here."""
        self.runs[run] = (place, self.runs[run][1] if run in self.runs else place + 1)
        self.held += 1

    def give(self) -> tuple[int, int]:
        """Give up the oldest block: its run, and its place there."""
        run, (first, behind) = next(iter(self.runs.items()))
        if behind - first > 1:
            self.runs[run] = (first, behind - 1)
        else:
            del self.runs[run]
        self.held -= 1
        return run, behind - 1

    def drop(self, run: int) -> None:
        """Keep nothing of a run."""
        first, behind = self.runs.pop(run, (0, 0))
        self.held -= behind - first

    def cut(self, run: int, block: int) -> None:
        """A run becomes two, the second of which begins with a block."""
        many = block - run
        found: OrderedDict[int, tuple[int, int]] = OrderedDict()
        for one, (first, behind) in self.runs.items():
            if one == run and behind > many:
                found[block] = (max(first - many, 0), behind - many)
                if first < many:
                    found[run] = (first, many)
            else:
                found[one] = (first, behind)
        self.runs = found


def _split(idle: Iterable[tuple[int, int]], run: int, block: int) -> Iterator[tuple[int, int]]:
    """The leading blocks of runs, of which one has become two: what is behind is given up first."""
    for begin, here in idle:
        if begin == run:
            yield block, here - (block - run)
            yield run, block - run
        else:
            yield begin, here
