"""Blocks of work on in-order streams as max-plus matrices [1]_.

The state of a device is the time at which each of its streams is free. A block of operations takes one state to the next: each
stream is free after the longest path that leads to it, so that a block is a matrix in which sums are maxima and products are
sums. A block that repeats is a power of its matrix. Every entry is an array over design points.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat: "Synchronization and Linearity", Wiley 1992, Ch. 3.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, Index

NO_PATH = -np.inf  # entry of a matrix where a stream does not wait for another


def chained(first: Array, second: Array) -> Array:
    """Matrix of one block after another, each of shape (streams, streams, n); rows are streams after the block. [s]"""
    found = second[:, 0, None] + first[None, 0]
    for i in range(1, len(first)):
        np.fmax(found, second[:, i, None] + first[None, i], out=found)
    return np.asarray(found)


def applied(block: Array, state: Array) -> Array:
    """State after a block, shape (streams, n). [s]"""
    return _longest(block + state[None])


def repeated(block: Array, count: int | Index, state: Array) -> Array:
    """State after a block that repeats `count` times, one number or one for every point, shape (streams, n). [s]"""
    if len(state) == 1 and np.min(count) > 0:
        return np.asarray(state + count * block[0])
    if isinstance(count, np.ndarray):
        odd, half = count % 2 == 1, count // 2
        state = np.where(odd, applied(block, state), state) if odd.any() else state
        return repeated(chained(block, block), half, state) if half.any() else state
    while count:
        if count % 2:
            state = applied(block, state)
        count //= 2
        if count:
            block = chained(block, block)
    return state


def _longest(paths: Array) -> Array:
    """Longest of several paths along the second axis; a path over a missing edge and an endless one is none (NaN)."""
    return np.asarray(np.fmax.reduce(paths, axis=1))
