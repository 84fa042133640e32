"""Sizes of fused attention, whichever model it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossflow.arrays import Array
from crossflow.program.program import Attention

QUERIES, KEYS = 128.0, 256.0  # queries, and keys of a single query, that one block works on (FlashAttention-2; split keys in decoding)
BACKWARD = 2.5  # products of the backward pass over those of the forward pass, five to two


def attention_sizes(shapes: Array, element: float, rows: Sequence[Attention]) -> Array:
    """Operations, bytes of main memory and blocks of fused attention, shape (3, kernels, n). [flop], [B], [1]

    Two products forward and five backward. A causal mask leaves the keys before each query: of `length` queries that see as many keys or
    more at most, and of those that see fewer, a window. A single query is divided along the keys.

    Parameters
    ----------
    shapes : samples, heads, heads of keys and values, queries, keys, elements of a head, shape (6, kernels, n). [1]
    """
    samples, heads, kv_heads, length, seen, width = shapes
    causal, backward = (np.array([[getattr(row, flag)] for row in rows]) for flag in ("causal", "backward"))
    share = np.where(causal & (length > 1), 1.0 - 0.5 * np.minimum(length, seen) / np.maximum(length, seen), 1.0)
    flops = 4.0 * samples * heads * length * seen * width * share * np.where(backward, BACKWARD, 1.0)
    moved = 2.0 * samples * width * (heads * length + kv_heads * seen) * element * np.where(backward, 2.0, 1.0)
    blocks = np.where(length > 1, samples * heads * np.ceil(length / QUERIES), samples * kv_heads * np.ceil(seen / KEYS))
    return np.stack([flops, moved, blocks])
