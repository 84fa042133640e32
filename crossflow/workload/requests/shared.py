"""Blocks of prompts: which prompts begin with the same tokens, as the prefix cache of an engine sees it.

There may be tens of millions of hashes, so all that goes through them takes a piece of the requests at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.base.arrays import Index, Mask, NumberLists
from crossflow.base.errors import CrossflowError

MOST_BLOCKS = 1 << 25  # hashes that are held
PIECE = 1 << 20  # of them that are worked on at once


def shared_blocks(prompt: Index, thread: Index, prefix: Index, common: Index, block: int) -> NumberLists:
    """Hashes of the full blocks of prompts.

    The prompts of a thread are beginnings of one text, that of its longest prompt; such texts begin with a prefix that may be that of other
    threads. So block j of a prompt is the j-th of its prefix where it lies inside it, else the j-th of its thread.

    prompt, thread, prefix, common : tokens, number of the thread, number of the prefix (-1 for none) and its tokens, shape (n,).
    """
    full = prompt // block
    first = _firsts(full)
    total = int(first[-1])
    if total > MOST_BLOCKS:
        cure = "give a larger block, or ask for fewer requests"
        raise CrossflowError(f"block: prompts have {total:,} blocks of {block} tokens, more than the {MOST_BLOCKS:,} that are held; {cure}")
    has = prefix >= 0
    inside = np.where(has, common // block, 0)
    of_prefix = _offsets(prefix[has], inside[has])
    begin = np.where(has, of_prefix[np.maximum(prefix, 0)], 0)
    own = of_prefix[-1] + _offsets(thread, full)[thread]
    held = np.empty(total, dtype=np.intp)
    for a, b in pieces(first):
        place = np.arange(first[a], first[b]) - np.repeat(first[a:b], full[a:b])
        shared = place < np.repeat(inside[a:b], full[a:b])
        held[first[a] : first[b]] = place + np.where(shared, np.repeat(begin[a:b], full[a:b]), np.repeat(own[a:b], full[a:b]))
    return NumberLists(first=first, held=held)


def _firsts(counts: Index) -> Index:
    """Where lists of so many numbers begin, and where the last ends."""
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(counts)])


def _offsets(group: Index, size: Index) -> Index:
    """Where the numbers of each group begin if each takes as many as its largest size, and the number of all at the end."""
    largest = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.intp)
    np.maximum.at(largest, group, size)
    return _firsts(largest)


def pieces(first: Index) -> Iterator[tuple[int, int]]:
    """Ranges of requests that have about `PIECE` hashes together, at least one request each.

    >>> [*pieces(np.array([0, PIECE, PIECE + 5, 2 * PIECE + 5]))]
    [(0, 1), (1, 2), (2, 3)]
    """
    begin, n = 0, len(first) - 1
    while begin < n:
        end = max(int(np.searchsorted(first, first[begin] + PIECE, side="right")) - 1, begin + 1)
        yield begin, end
        begin = end


def named_in_order(blocks: NumberLists) -> Iterator[tuple[Index, Mask, Index]]:
    """The hashes of each piece, numbered in the order in which they first come; whether each is new; where lists begin."""
    size = int(blocks.held.max(initial=-1)) + 1
    names, place = np.full(size, -1, dtype=np.intp), np.empty(size, dtype=np.intp)
    known = 0
    for a, b in pieces(blocks.first):
        held = blocks.held[blocks.first[a] : blocks.first[b]]
        here = np.arange(len(held))
        place[held[::-1]] = here[::-1]  # the last one that is written, which is the first, stays
        new = (names[held] < 0) & (place[held] == here)
        names[held[new]] = known + np.arange(int(new.sum()))
        known += int(new.sum())
        yield names[held], new, blocks.first[a : b + 1] - blocks.first[a]


def leading(blocks: NumberLists) -> Index:
    """Blocks at the beginning of each prompt that earlier prompts have too, shape (n,): what a prefix cache without end would hit. [1]

    Numbers are hashes, from 0 on.

    >>> leading(NumberLists.of([0, 0, 1, 1, 1], [7, 8, 7, 9, 8], 2)).tolist()
    [0, 1]
    """
    found = []
    for _, new, first in named_in_order(blocks):
        since = _firsts(new.astype(np.intp))  # new ones before each place
        known = since[1:] == np.repeat(since[first[:-1]], np.diff(first))
        found.append(np.diff(_firsts(known.astype(np.intp))[first]))
    return np.concatenate(found) if found else np.zeros(0, dtype=np.intp)
