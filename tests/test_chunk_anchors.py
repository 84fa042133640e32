"""Pieces of prompts beside tokens that are written, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from blocks import block_kernels
from test_step_anchors import job_of, layout_of, stack_of

from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Chunk

# Four query heads and two of keys and values, of 16 elements in two bytes; requests have 100 tokens in the cache, 120 at most.
HEADS, KV, HEAD = 4, 2, 16


def of(value):
    return np.array([float(value)])


def decoding(chunk=None, written=1, kv_dtype=None, **changes):
    job = job_of(task="decode", **{"kv_heads": 2, "sequence": 120}, **changes)
    return replace(job, context=100, cached=120, written=written, chunk=chunk, kv_dtype=kv_dtype)


def piece(pieces=1, length=40, before=80):
    return Chunk(pieces=of(pieces), length=of(length), before=of(before))


@pytest.mark.parametrize("before", [0, 80])
def test_attention_through_memory_reads_the_keys_before_a_piece_too(before):
    """Two pieces of 40 queries, of which each head multiplies all keys, as neither mask nor window saves anything there."""
    found = block_kernels(decoding(piece(2, 40, before)), layout_of(Plan(micro_batch=8)), stack_of())
    products = [
        row for row in found.products if row.unit == "0.0.attention" and row.phase == "forward" and float(np.ravel(row.batch)[0]) > 1
    ]
    sizes = {tuple(float(np.ravel(size)[0]) for size in (row.m, row.n, row.k, row.batch)) for row in products}
    keys = before + 40
    assert {(40, keys, HEAD, 2 * HEADS), (40, HEAD, keys, 2 * HEADS)} <= sizes
