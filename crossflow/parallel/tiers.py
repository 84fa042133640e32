"""Tensors on a second memory: which share of each lies there, and what a step reads and writes of it.

Weights are read once by each pass, forward and for the gradients of inputs; of experts those that any token reaches. A decode step reads
the cache of its requests and writes that of new tokens. The optimizer reads and writes its states once an update.

Where a part of the experts lies there (`far_experts`), tokens go to them as often as to others. Where a part of the cache does
(`far_cache`), a step reads as much of that part as of the rest: attention sees all tokens. New tokens' cache is collected to whole
pages before it is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import PHASES, parameters, units
from crossflow.parallel.caches import attended_cache, cache_read, cache_written
from crossflow.parallel.offload import master_size, states_size
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import FARS, Far
from crossflow.parallel.weights import weight_sizes
from crossflow.workload.job import Job
from crossflow.workload.transformer import Part

FORWARD, INPUT = PHASES.index("forward"), PHASES.index("input")


SHARES = (25, 50, 75, 0)  # of experts and cache that are tried, 0 for all. [%]


def placements(job: Job) -> Iterator[dict[str, Any]]:
    """Values of plans that place tensors on the second memory, as far as a job has them: each kind alone, and kinds together."""
    whole: list[dict[Far, tuple[int, ...]]] = [{"weights": (0,)}]
    whole += [{"experts": SHARES}] if job.model.experts else []
    whole += [{"optimizer": (0,)}] if job.training else [{"cache": SHARES}] if job.cached else []
    kinds = [what for one in whole for what in one]
    options = [(None, *shares) for one in whole for shares in one.values()]
    for chosen in itertools.product(*options):
        far = tuple(what for what, share in zip(kinds, chosen, strict=True) if share is not None)
        shares = {f"far_{what}": share for what, share in zip(kinds, chosen, strict=True) if what in ("experts", "cache") and share}
        if far:
            yield {"far": tuple(what for what in FARS if what in far), **shares}


@dataclass(frozen=True, kw_only=True)
class FarTraffic:
    """What one microbatch reads and writes on the second memory, in each phase of each unit, shape (units, phases, n)."""

    read: Array  # [B]
    written: Array  # [B]
    sought: Array  # 1 where the address of what is read is known only once tokens are routed, 0 elsewhere. [1]


def far_share(layout: Layout, what: Far) -> Array:
    """Share of some tensors that lies on the second memory, shape (n,) or (1,). [1]"""
    if what not in layout.far:
        return np.zeros(1)
    percent = {"experts": layout.far_experts, "cache": layout.far_cache}.get(what, np.zeros(1))
    return np.where(layout.far[what], np.where(percent > 0, percent / 100.0, 1.0), 0.0)


def far_traffic(job: Job, layout: Layout, stack: SoftwareStack, page: Array) -> FarTraffic:
    """Traffic of all plans; what is read comes in whole pages. [B]

    page : bytes that are read together, shape (n,) or (1,). [B]
    """
    shape = (len(units(job.model)), len(PHASES), len(layout))
    read, written, sought = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    sizes = weight_sizes(job, layout, stack)[:, 0]
    for i, ((_, part), size) in enumerate(zip(units(job.model), sizes, strict=True)):
        dense, routed = _weights_read(job, layout, part, size, page)
        read[i, FORWARD] = dense + routed
        sought[i, FORWARD] = routed > 0
        if job.training and not part.table:  # gradients of inputs need the weights again, a look-up has none
            read[i, INPUT], sought[i, INPUT] = read[i, FORWARD], sought[i, FORWARD]
    cache = far_share(layout, "cache")
    if cache.any():
        request = attended_cache(job, layout, np.ones(len(layout)), np.maximum(job.context, 1.0))
        read[:, FORWARD] += cache * whole_pages(cache_read(job, layout), cache * request, page)
        written[:, FORWARD] += cache * cache_written(job, layout)
    return FarTraffic(read=read, written=written, sought=sought)


def _weights_read(job: Job, layout: Layout, part: Part, size: float, page: Array) -> tuple[Array, Array]:
    """Weights of a part that one pass reads on the second memory: those that all tokens pass, and those of experts. [B]"""
    dense, expert = (amount * size for amount in parameters(part, layout))
    tokens = layout.micro_batch * job.tokens(job.model.tokens) / layout.cp + job.read_beside
    if part.table:  # a row for each token
        dense = np.minimum(dense, tokens * whole_pages(part.width * size, part.width * size, page))
    matrices = [matrix for matrix in part.matrices if matrix.routed]
    near, far = far_share(layout, "weights"), far_share(layout, "experts")
    others = max(len(part.matrices) - len(matrices), 1)
    dense = near * (dense if part.table else whole_pages(dense, dense / others, page))
    if part.routing is None or not matrices:
        return dense, np.zeros(len(layout))
    held = part.routing.experts / layout.ep * len(matrices)  # matrices of all experts of a rank
    reached = 1.0 - (1.0 - part.routing.active / part.routing.slots) ** (tokens * layout.ep * part.routing.fed)
    return dense, far * reached * whole_pages(expert, expert / held, page)


def whole_pages(amount: Array | float, piece: Array | float, page: Array) -> Array:
    """Bytes that are read for an amount in pieces of a size, each of whole pages. [B]

    >>> whole_pages(np.array([6000.0, 8192.0]), np.array([3000.0, 4096.0]), np.array([4096.0])).tolist()
    [8192.0, 8192.0]
    """
    parts = np.maximum(piece, 1.0)
    return np.asarray(amount * np.ceil(parts / page - 1e-9) * page / parts)


def far_update(job: Job, layout: Layout, stack: SoftwareStack, owned: Array) -> tuple[Array, Array]:
    """Bytes that one update reads and writes on the second memory, of parameters that a rank updates, each of shape (units, n). [B]

    States and fp32 weights are read and written; weights that lie there are written where they are not updated on main memory alone.
    """
    states = far_share(layout, "optimizer") * owned * (states_size(job, stack) + master_size(job, stack))
    routed = np.array([[any(matrix.routed for matrix in part.matrices)] for _, part in units(job.model)])
    weights = np.where(routed, far_share(layout, "experts"), far_share(layout, "weights")) * owned * weight_sizes(job, layout, stack)
    return states, states + weights * float(job.training)
