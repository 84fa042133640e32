"""Blocks of prompts: which prompts begin with the same tokens, as the prefix cache of an engine sees it."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Index, Mask, NumberLists
from crossflow.base.errors import CrossflowError

MOST_BLOCKS = 100_000_000  # hashes that are held


def shared_blocks(prompt: Index, thread: Index, prefix: Index, common: Index, block: int) -> NumberLists:
    """Hashes of the full blocks of prompts.

    The prompts of a thread are beginnings of one text, that of its longest prompt; such texts begin with a prefix that may be that of other
    threads. So block j of a prompt is the j-th of its prefix where it lies inside it, else the j-th of its thread.

    prompt, thread, prefix, common : tokens, number of the thread, number of the prefix (-1 for none) and its tokens, shape (n,).
    """
    full = prompt // block
    if (total := int(full.sum())) > MOST_BLOCKS:
        raise CrossflowError(
            f"block: prompts have {total:,} blocks of {block} tokens, more than the {MOST_BLOCKS:,} that are held; give larger ones"
        )
    first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(full)])
    place = np.arange(total) - np.repeat(first[:-1], full)
    inside = np.where(prefix >= 0, common // block, 0)
    of_prefix = _offsets(prefix[prefix >= 0], inside[prefix >= 0])
    free = int(of_prefix[-1]) if len(of_prefix) else 0
    of_thread = free + _offsets(thread, full)
    begin = np.where(prefix >= 0, of_prefix[np.maximum(prefix, 0)] if len(of_prefix) > 1 else 0, 0)
    held = np.where(place < np.repeat(inside, full), np.repeat(begin, full), np.repeat(of_thread[thread], full)) + place
    return NumberLists(first=first, held=held)


def _offsets(group: Index, size: Index) -> Index:
    """Where the numbers of each group begin if each takes as many as its largest size, and the number of all at the end."""
    largest = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.intp)
    np.maximum.at(largest, group, size)
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(largest)])


def seen_before(blocks: NumberLists) -> Mask:
    """Whether each block stood in an earlier prompt, or earlier in its own, shape (hashes,): what a cache without end would have."""
    _, first = np.unique(blocks.held, return_index=True)
    seen = np.ones(len(blocks.held), dtype=bool)
    seen[first] = False
    return seen
