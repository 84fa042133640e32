"""Collective algorithms in closed form: time from size, ranks, bandwidth and latency, never message by message.

`size` is the buffer of one rank, shape (e, 1) or (n,) [B]: the whole output of an all-gather, the whole input otherwise.
Bandwidth [B/s] is that of one direction of a rank's link after sharing, latency [s] the time of one step; shape (n,).

References
----------
.. [1] Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH. IJHPCA 19(1), 2005.
.. [5] Chan, Heimlich, Purkayastha, van de Geijn: Collective Communication: Theory, Practice, and Experience. CCPE 19(13), 2007.
.. [2] Lin et al.: Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms. 2024, Eq. 2-4.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array, divide
from crossflow.program.collectives import ring_volume

ROOTED = ("gather", "scatter")  # those in which one rank receives a part of every other, or sends one


def ring_steps(collective: str, ranks: int) -> int:
    """Steps of a ring that follow one another; a transfer is one step [1]_."""
    return {"all_reduce": 2 * (ranks - 1), "send_recv": 1, "sendrecv": 1}.get(collective, ranks - 1)


def ring(collective: str, size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """Ring of equal steps, and pairwise exchange for all_to_all: steps x latency + volume / bandwidth [1]_. [s]"""
    return np.asarray(ring_steps(collective, ranks) * latency + divide(ring_volume(collective, ranks) * size, bandwidth))


def tree_all_reduce(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """All-reduce by two complementary binary trees: 2 ceil(log2 p) latency + 2 S / bandwidth, S between two ranks. [s]"""
    volume = 1.0 if ranks == 2 else 2.0
    return np.asarray(2 * np.ceil(np.log2(ranks)) * latency + divide(volume * size, bandwidth))


def halving_doubling_all_reduce(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """All-reduce by recursive halving, then doubling: 2 ceil(log2 p) latency + 2 (p-1)/p S / bandwidth [1]_. [s]

    Ranks beyond the largest power of two first fold their buffer into a partner and get the result from it at the end.
    """
    power = 2 ** int(np.log2(ranks))
    fold = 0.0 if power == ranks else 2.0
    steps = 2 * np.log2(power) + fold
    return np.asarray(steps * latency + divide((2 * (power - 1) / power + fold) * size, bandwidth))


def in_network_all_reduce(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """All-reduce in switches that reduce on the way up and copy on the way down: 2 latency + (1 + 1/p) S / bandwidth [4]_. [s]

    Each rank sends its buffer to the switches, which reduce a part of it for each rank, and each part is sent once to all. So a link
    carries the buffer once and a part once more.

    References
    ----------
    .. [4] Klenk et al.: An In-Network Architecture for Accelerating Shared-Memory Multiprocessor Collectives. ISCA 2020.
    """
    return np.asarray(2.0 * latency + divide((1.0 + 1.0 / ranks) * size, bandwidth))


def rooted_tree(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """Gather or scatter by a binomial tree: ceil(log2 p) latency + (p-1)/p S / bandwidth, the root's share of the bytes [1]_ [5]_. [s]"""
    return np.asarray(np.ceil(np.log2(ranks)) * latency + divide(ring_volume("gather", ranks) * size, bandwidth))


def one_tree(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """Broadcast or reduce of short messages by a binomial tree: ceil(log2 p) (latency + S / bandwidth) [1]_ [5]_. [s]"""
    return np.asarray(np.ceil(np.log2(ranks)) * (latency + divide(size, bandwidth)))


def two_phases(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """Broadcast of long messages as scatter and all_gather (van de Geijn), reduce as reduce_scatter and gather (Rabenseifner). [s]

    The part by a tree, and the other by recursive doubling, of all ranks where they are a power of two and else in a ring:
    2 log2 p latency + 2 (p-1)/p S / bandwidth [1]_ [5]_.
    """
    power = ranks == 2 ** int(np.log2(ranks))
    steps = np.log2(ranks) if power else ranks - 1
    return rooted_tree(size, ranks, bandwidth, latency) + steps * latency + divide(ring_volume("all_gather", ranks) * size, bandwidth)


def all_at_once(size: Array, ranks: int, bandwidth: Array, latency: Array, post: Array) -> Array:
    """All-to-all, gather or scatter whose sends are all posted before the first arrives: latency + (p - 2) post + (p-1)/p S / bandwidth
    [1]_. [s]

    Sends of one rank share its link, and their latencies overlap, as NCCL groups its sends and receives. What is left for each
    further peer is the time to post a send [3]_; that is no more than a latency, which a pairwise exchange takes.

    References
    ----------
    .. [3] Culler et al.: LogP: Towards a Realistic Model of Parallel Computation. PPoPP 1993 (latency, overhead, gap).
    """
    starts = latency + max(ranks - 2, 0) * np.minimum(post, latency)
    return np.asarray(starts + divide(ring_volume("all_to_all", ranks) * size, bandwidth))


def log_all_to_all(size: Array, ranks: int, bandwidth: Array, latency: Array) -> Array:
    """All-to-all in ceil(log2 p) steps that each send half of the buffer (Bruck), for short messages [1]_. [s]"""
    steps = np.ceil(np.log2(ranks))
    return np.asarray(steps * (latency + divide(size / 2.0, bandwidth)))


def best(collective: str, size: Array, ranks: int, bandwidth: Array, latency: Array, any_to_any: bool, post: Array) -> Array:
    """Fastest of the algorithms that a wiring carries: rings on any; more where all reach all. [s]

    All-reduce: halving-doubling and trees; all-to-all, gather and scatter: sends posted all at once, and in log2 p steps; broadcast and
    reduce: trees, and two phases. `post` : time to post a send. [s]
    """
    time = ring(collective, size, ranks, bandwidth, latency)
    if not any_to_any or ranks < 3:
        return time
    if collective == "all_to_all":
        return np.minimum(all_at_once(size, ranks, bandwidth, latency, post), log_all_to_all(size, ranks, bandwidth, latency))
    if collective in ROOTED:
        return np.minimum(all_at_once(size, ranks, bandwidth, latency, post), rooted_tree(size, ranks, bandwidth, latency))
    if collective in ("broadcast", "reduce"):
        own = np.minimum(one_tree(size, ranks, bandwidth, latency), two_phases(size, ranks, bandwidth, latency))
        return np.asarray(np.minimum(time, own))
    if collective != "all_reduce":
        return time
    other = np.minimum(halving_doubling_all_reduce(size, ranks, bandwidth, latency), tree_all_reduce(size, ranks, bandwidth, latency))
    return np.asarray(np.minimum(time, other))


def pipelined(size: Array, per_byte: Array, base: Array, fill: Array) -> Array:
    """Time of a pipeline of steps with the best chunk: base + (sqrt(S V/B) + sqrt(fill))^2. [s]

    A message cut into chunks of s bytes passes k steps in (k + S V / s)(a + s / B); the minimum over s is this, with
    fill = k a. It has the shape of measured bandwidth curves (latency, rise, saturation) that [2]_ fits with a sigmoid,
    without its free parameters.

    Parameters
    ----------
    size : shape (e, 1). [B]
    per_byte : time per byte of long messages, V / B. [s/B]
    base, fill : fixed time, and time to fill the chain of steps. [s]
    """
    return np.asarray(base + (np.sqrt(size * per_byte) + np.sqrt(fill)) ** 2)
