"""Blocks of attention and MLP whose weights several layers of a hybrid share (Zamba [1]_, Zamba2 [2]_).

A layer with such a block gives it the token's vector and its embedding side by side, and adds what it makes, after a product of its own, to
the input of the layer's state space. Of Zamba2 each use has low-rank adapters of its own beside the first products.

References
----------
.. [1] Glorioso et al., "Zamba: A Compact 7B SSM Hybrid Model", 2024, arXiv:2405.16712, Sec. 2 and Fig. 2.
.. [2] Glorioso et al., "The Zamba2 Suite", 2024, arXiv:2411.15242, Sec. 2 and Fig. 2; what each product takes and gives is as in
   transformers, models/zamba2/modular_zamba2.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from crossflow.workload.transformer import Matrix, Part, mlp, self_attention


@functools.lru_cache(maxsize=1024)
def shared_block(
    *, width: int, heads: int, kv_heads: int | None, head: int, inner: int, gated: bool, rotary: bool, norm_vectors: int, mlp_rank: int,
    attention_rank: int, holds: bool,
) -> tuple[Part, Part]:  # fmt: skip
    """Attention and MLP of one layer.

    Parameters
    ----------
    width : elements of a token's vector, of which attention takes two. [1]
    mlp_rank, attention_rank : ranks of the adapters of this use beside the MLP's first product, and beside queries, keys and values; 0
        without. [1]
    holds : whether the layer has the weights of the block, which others share.
    """
    wide = self_attention(width=2 * width, heads=heads, kv_heads=kv_heads, head=head, rotary=rotary, bias=False, norm_vectors=norm_vectors)
    first, last = wide.matrices
    attention = replace(wide, width=width, matrices=_used(first, last=replace(last, n=width), rank=attention_rank, of=3, holds=holds))
    plain = mlp(width=width, inner=inner, gated=gated, bias=False, norm_vectors=norm_vectors)
    up, down = plain.matrices
    joining = Matrix(name="joining", k=width, n=width, inputs=width)
    feeding = replace(plain, matrices=(*_used(up, last=down, rank=mlp_rank, of=1, holds=holds), joining))
    return (attention, feeding) if holds else (replace(attention, vectors=0), replace(feeding, vectors=0))


def _used(first: Matrix, *, last: Matrix, rank: int, of: int, holds: bool) -> tuple[Matrix, ...]:
    """Products of a use: the first and the last, which may lie elsewhere, and `of` adapters of the first, each of one share of it."""
    low = Matrix(name="low", k=first.k, n=of * rank)
    high = Matrix(name="high", k=rank, n=first.n, cut="column", inputs=of * rank, kv_heads=first.kv_heads, kv_head=first.kv_head)
    return (replace(first, shared=not holds), *((low, high) if rank else ()), replace(last, shared=not holds))
