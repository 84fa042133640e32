"""What a service keeps of its requests on one device: keys and values, their latents, or states."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.parallel.blocks import units
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.job import Job
from crossflow.workload.transformer import AttentionGeometry


def kv_cache(job: Job, layout: Layout) -> Array:
    """Keys and values, or their latents, or states, that one layer keeps of all requests of a replica, of every unit, shape (units, n). [B]

    Heads of keys and values are divided over the tensor group as far as there are as many; a latent is held whole by each rank.
    A layer with a window keeps the tokens of the window, one of sparse attention all, a state-space layer as much for few tokens as for
    many. Nothing looks back at what an encoder's attention saw.
    """
    requests = layout.micro_batch * layout.microbatches
    rows = attended_cache(job, layout, requests, job.context if job.staggered else job.cached)
    for i, (_, part) in enumerate(units(job.model)):
        if part.ssm is not None:
            ranks, share = layout.tensor_of("attention") * layout.cp, layout.tensor_share("attention")
            rows[i] = requests * (job.cached > 0) * part.ssm.held(ranks, job.element) * share
    return rows


def attended_cache(job: Job, layout: Layout, requests: Array, tokens: Array | float) -> Array:
    """Keys and values, or latents, that one layer keeps of so many requests of so many tokens, of every unit, shape (units, n). [B]"""
    found = np.zeros((len(units(job.model)), len(layout)))
    for i, attention in _attending(job):
        latent = attention.cached < attention.kv_heads * attention.pair
        share = np.where(latent, 1.0, attention.kv_heads_on(layout.tensor_of("attention")) / attention.kv_heads)
        share = share * layout.tensor_share("attention")
        own = job.model.memory_tokens * np.greater(job.cached, 0) if attention.cross else tokens
        found[i] = requests * attention.held(own) / layout.cp * job.cache * share
    return found


def cache_units(job: Job) -> Mask:
    """Which units keep a cache that grows with the tokens of a request, shape (units, 1)."""
    found = np.zeros((len(units(job.model)), 1), dtype=bool)
    found[[i for i, _ in _attending(job)]] = True
    return found


def cache_read(job: Job, layout: Layout) -> Array:
    """Cache of one layer that a pass of a microbatch reads in a decode step: all of its requests, and of pieces of prompts that are read
    beside what lies before them, of every unit, shape (units, n). [B]
    """
    if job.task != "decode":
        return np.zeros((len(units(job.model)), len(layout)))
    found = attended_cache(job, layout, layout.micro_batch, job.context)
    return found if job.chunk is None else found + attended_cache(job, layout, job.chunk.pieces, job.chunk.before)


def cache_written(job: Job, layout: Layout) -> Array:
    """Cache of one layer that a pass of a microbatch writes: of the tokens that it computes, of every unit, shape (units, n). [B]

    An encoder's tokens are written once, where prompts are read.
    """
    if job.task not in ("prefill", "decode"):
        return np.zeros((len(units(job.model)), len(layout)))
    whole = np.maximum(job.cached, 1.0)
    each = attended_cache(job, layout, np.ones(len(layout)), whole) / whole  # of a token, in the mean
    crossing = np.array([[part.attention is not None and part.attention.cross] for _, part in units(job.model)])
    each = np.where(crossing & (job.task == "decode"), 0.0, each)
    tokens = layout.micro_batch * job.tokens(job.model.tokens) + job.read_beside
    return np.asarray(each * tokens)


def _attending(job: Job) -> Iterator[tuple[int, AttentionGeometry]]:
    """Units that keep keys and values, with how they attend; those of an encoder keep none."""
    encoding = {f"{i}" for i, layer in enumerate(job.model.kinds) if layer.encodes}
    for i, (name, part) in enumerate(units(job.model)):
        if part.attention is not None and part.ssm is None and name.split(".")[0] not in encoding:
            yield i, part.attention
