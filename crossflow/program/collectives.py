"""Collectives and transfers: their names, and what a rank sends.

References
----------
.. [1] Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH. IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from crossflow.base.arrays import Array

# send_recv goes one way from one rank to another; in sendrecv every rank sends to the next and receives at once.
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "sendrecv"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
# How each is spread over links, as `LinkSpread` of `hardware.mapping.spread` has it.
FLOWS: Mapping[str, str] = {
    "all_gather": "gather", "reduce_scatter": "gather", "all_reduce": "reduce", "all_to_all": "exchange", "broadcast": "broadcast",
    "send_recv": "transfer", "sendrecv": "transfer",
}  # fmt: skip
# Those that layers of transformers send; those whose buffer is the parts of all ranks together, which each of them gives a part of.
OF_LAYERS: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
GATHERED = ("all_gather", "gather")
# Other calls of libraries, and the collective whose price they have: a reduction runs a broadcast's tree backwards; the root of a gather or
# a scatter receives or sends as many bytes as each rank of an all_gather does; a barrier is an all_reduce of one element, as in NCCL.
PRICED = {
    "reduce": "broadcast", "gather": "all_gather", "scatter": "all_gather", "send": "send_recv", "recv": "send_recv",
    "barrier": "all_reduce",
}  # fmt: skip


def called(text: str) -> str:
    """The longest name of a collective, or of a call that has its price, in a name of a library; "" for none.

    >>> called("_reduce_scatter_base_"), called("allgather_into_tensor"), called("allreduce_perf"), called("wait_tensor")
    ('reduce_scatter', 'all_gather', 'all_reduce', '')
    """
    plain = text.lower().replace("_", "")
    return max((name for name in (*COLLECTIVES, *PRICED) if name.replace("_", "") in plain), key=len, default="")


def ring_volume(collective: str, ranks: Array | int) -> Array | float:
    """Bytes that a rank sends per byte of its buffer in a ring or in pairwise exchange [1]_. [1]"""
    share = (ranks - 1) / ranks
    volumes: Mapping[str, Array | float] = {
        "all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share,
        "broadcast": 1.0, "send_recv": 1.0, "sendrecv": 1.0,
    }  # fmt: skip
    return volumes[collective]


def sent_bytes(collective: str, size: Array, ranks: Array | int, per_node: Array | int) -> Array:
    """Bytes that a rank sends inside its node and out of it, shape (2, ..., n). [B]

    A ring's edges lie inside nodes but for one a node; of an all-to-all, each rank has a part for every other.
    """
    if collective == "all_to_all":
        return np.stack([size * (per_node - 1.0) / ranks, size * (ranks - per_node) / ranks])
    total = np.where(np.asarray(ranks) > 1, ring_volume(collective, ranks) * size, 0.0)
    outside = np.where(np.asarray(per_node) < ranks, 1.0 / per_node, 0.0)
    return np.stack([total * (1.0 - outside), total * outside])
