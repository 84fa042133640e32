"""Runs of blocks that all prompts of a trace have together, or not at all: what a cache counts in the place of single blocks.

Prompts that share a beginning share its blocks, and go apart at few places. Where hashes are numbers in the order in which they first come,
blocks between two such places have numbers in a row, so that a prompt of a thousand blocks is a handful of runs (the edges of a radix
tree; Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024, Sec. 3).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from crossflow.base.arrays import Index, Mask, NumberLists

BlockRun = tuple[int, int]  # number of its first block, and the one behind its last
Chain = tuple[BlockRun, ...]  # blocks of a text, in order
SPARSE = 4  # times as large as there are many, from which on numbers of blocks are named anew in their order


def length(chain: Chain) -> int:
    """Blocks of a chain. [1]

    >>> length(((3, 5), (8, 9)))
    3
    """
    return sum(end - begin for begin, end in chain)


def divided(chain: Chain, blocks: int) -> tuple[Chain, Chain]:
    """So many leading blocks of a chain, or all of them, and the others.

    >>> divided(((3, 5), (8, 12)), 3)
    (((3, 5), (8, 9)), ((9, 12),))
    """
    for i, (begin, end) in enumerate(chain):
        if end - begin > blocks:
            inside = ((begin, begin + blocks),) if blocks else ()
            return chain[:i] + inside, ((begin + blocks, end), *chain[i + 1 :])
        blocks -= end - begin
    return chain, ()


class TraceRuns:
    """The blocks of every prompt of a trace as runs, and of the answer that the next turn begins with.

    Parameters
    ----------
    blocks : hashes of each prompt.
    asked : blocks of each prompt that are there, shape (n,). [1]
    whole : those of the prompt and its answer. [1]
    heirs : request that goes on from another, by that one.
    """

    def __init__(self, blocks: NumberLists, asked: Index, whole: Index, heirs: Mapping[int, int]) -> None:
        if int(blocks.held.max(initial=0)) > SPARSE * (len(blocks.held) + 1):
            blocks = NumberLists(first=blocks.first, held=np.unique(blocks.held, return_inverse=True)[1])
        held, first, size = blocks.held, blocks.first, int(blocks.held.max(initial=-1)) + 1
        begins = np.ones(len(held), dtype=bool)  # of runs, block by block
        begins[1:] = held[1:] != held[:-1] + 1
        begins[first[first < len(held)]] = True
        apart = np.zeros(size + 1, dtype=bool)  # whether the runs of all prompts that have a block begin there
        apart[held[begins]] = True
        apart[held[np.append(begins[1:], True)] + 1] = True  # behind the end of one
        self.own = np.minimum(asked, blocks.counts)
        before, after = np.fromiter(heirs, np.intp, len(heirs)), np.fromiter(heirs.values(), np.intp, len(heirs))
        answer = np.stack([self.own[before], np.maximum(whole, self.own)[before]])  # places in the prompt of the heir
        answer = np.minimum(answer, blocks.counts[after])
        _part(apart, blocks, np.arange(len(blocks)), self.own)
        for place in answer:
            _part(apart, blocks, after, place)
        begins |= apart[held]
        runs = np.flatnonzero(begins)
        self.begin = held[runs]
        self.end = self.begin + np.diff(np.append(runs, len(held)))
        # Numbers of runs: of each prompt the first and the one behind the last, and the same of answers.
        self.prompts = np.searchsorted(runs, np.stack([first[:-1], first[:-1] + self.own])).T
        self.answers = dict(zip(before.tolist(), np.searchsorted(runs, first[after] + answer).T.tolist(), strict=True))

    def prompt(self, index: int) -> tuple[Chain, int]:
        """The blocks of a prompt, and how many these are. [1]"""
        first, behind = self.prompts[index].tolist()
        return self._chain(first, behind), int(self.own[index])

    def answer(self, index: int) -> Chain:
        """Those of the answer behind them, as far as the next turn has them; nothing where there is none."""
        found = self.answers.get(index)
        return () if found is None else self._chain(*found)

    def _chain(self, first: int, behind: int) -> Chain:
        return tuple(zip(self.begin[first:behind].tolist(), self.end[first:behind].tolist(), strict=True))


def _part(apart: Mask, blocks: NumberLists, index: Index, place: Index) -> None:
    """Let runs begin at a place of some prompts, where they have so many blocks."""
    inside = place < blocks.counts[index]
    apart[blocks.held[blocks.first[index[inside]] + place[inside]]] = True


def covered(chain: Chain, cuts: list[int]) -> Chain:
    """The same chain in runs none of which goes on over a cut.

    >>> covered(((3, 9), (12, 14)), [5, 9, 13])
    ((3, 5), (5, 9), (12, 13), (13, 14))
    """
    found: list[BlockRun] = []
    for begin, end in chain:
        inside = [begin, *(cut for cut in cuts if begin < cut < end), end]
        found += itertools.pairwise(inside)
    return tuple(found)
