"""Collectives and transfers: their names, and what a rank sends.

References
----------
.. [1] Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH. IJHPCA 19(1), 2005.
.. [2] Chan, Heimlich, Purkayastha, van de Geijn: Collective Communication: Theory, Practice, and Experience. CCPE 19(13), 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from crossflow.base.arrays import Array

# send_recv goes one way from one rank to another; in sendrecv every rank sends to the next and receives at once.
# In a reduce and a gather one rank has the result, in a scatter one has what all get a part of; the buffer of the last two is the whole.
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_recv", "sendrecv"
]  # fmt: skip
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
# How each is spread over links, as `LinkSpread` of `hardware.mapping.spread` has it.
FLOWS: Mapping[str, str] = {
    "all_gather": "gather", "reduce_scatter": "gather", "all_reduce": "reduce", "all_to_all": "exchange", "broadcast": "broadcast",
    "reduce": "broadcast", "gather": "gather", "scatter": "gather", "send_recv": "transfer", "sendrecv": "transfer",
}  # fmt: skip
# Those that layers of transformers send; those whose buffer is the parts of all ranks together, which each of them gives a part of.
OF_LAYERS: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
GATHERED = ("all_gather", "gather")
# Other calls of libraries, and the collective whose price they have; a barrier is an all_reduce of one element, as in NCCL.
PRICED = {"send": "send_recv", "recv": "send_recv", "barrier": "all_reduce"}


def called(text: str) -> str:
    """The longest name of a collective, or of a call that has its price, in a name of a library; "" for none.

    >>> called("_reduce_scatter_base_"), called("allgather_into_tensor"), called("allreduce_perf"), called("wait_tensor")
    ('reduce_scatter', 'all_gather', 'all_reduce', '')
    """
    plain = text.lower().replace("_", "")
    return max((name for name in (*COLLECTIVES, *PRICED) if name.replace("_", "") in plain), key=len, default="")


def ring_volume(collective: str, ranks: Array | int) -> Array | float:
    """Bytes that a rank sends per byte of its buffer in a ring or in pairwise exchange [1]_; of a gather and a scatter, those that the root
    receives or sends [2]_. [1]
    """
    share = (ranks - 1) / ranks
    volumes: Mapping[str, Array | float] = {
        "all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share,
        "gather": share, "scatter": share, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "sendrecv": 1.0,
    }  # fmt: skip
    return volumes[collective]


def sent_bytes(collective: str, size: Array, ranks: Array | int, per_node: Array | int) -> Array:
    """Bytes that a rank sends inside its node and out of it, shape (2, ..., n). [B]

    A ring's edges lie inside nodes but for one a node; of an all-to-all, each rank has a part for every other.
    """
    if collective in ("all_to_all", "gather", "scatter"):  # of the last two one rank's parts, in the mean of all ranks
        each = size if collective == "all_to_all" else size / ranks
        return np.stack([each * (per_node - 1.0) / ranks, each * (ranks - per_node) / ranks])
    total = np.where(np.asarray(ranks) > 1, ring_volume(collective, ranks) * size, 0.0)
    outside = np.where(np.asarray(per_node) < ranks, 1.0 / per_node, 0.0)
    return np.stack([total * (1.0 - outside), total * outside])
