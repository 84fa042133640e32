"""Attention to compressed entries (DeepSeek-V4): most layers see tokens through entries that stand for several of them [1]_.

One vector of a token, or of an entry, is key and value of all heads. Queries and outputs pass low-rank products, of outputs one for each
group of heads. Every layer sees the last tokens one by one; beside them layers see entries:

- of few tokens each, which overlap and of which an indexer chooses (compressed sparse attention);
- or of many tokens each, all of them (heavily compressed attention).

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V4: Towards Highly Efficient Million-Token Context Intelligence", 2026, Sec. 2.3; what each product takes and
   gives is as in transformers, models/deepseek_v4/modular_deepseek_v4.py.
"""

from __future__ import annotations

import functools

from crossflow.workload.transformer import AttentionGeometry, Matrix, Part, Selection


@functools.lru_cache(maxsize=1024)
def compressed_attention(
    *, width: int, heads: int, head: int, query_rank: int, groups: int, rank: int, window: int, selection: Selection | None,
    norm_vectors: int = 1, rotary: bool = True,
) -> Part:  # fmt: skip
    """A layer's attention.

    Parameters
    ----------
    head : elements of a head, and of the vector that is key and value of all heads.
    query_rank, rank : widths of the latents of queries and, for each of `groups` groups of heads, of outputs.
    window : tokens that a layer without a `selection` sees; with one its own window counts.
    """
    outputs = heads * head
    return Part(
        type="attention",
        width=width,
        matrices=(
            Matrix(name="query_down", k=width, n=query_rank),
            Matrix(name="query_up", k=query_rank, n=outputs, cut="column"),
            Matrix(name="key_value", k=width, n=head),
            *(_compression(width, head, query_rank, selection) if selection else ()),
            Matrix(name="output_down", k=outputs // groups, n=groups * rank, cut="column", inputs=outputs),
            Matrix(name="output", k=groups * rank, n=width, cut="row"),
        ),
        vectors=norm_vectors * width + query_rank + head + (_vectors(head, selection) if selection else 0),
        attention=AttentionGeometry(
            heads=heads, kv_heads=1, query=head, value=head, cached=head, latent=head, rotary=rotary,
            window=0 if selection else window, selection=selection,
        ),
    )  # fmt: skip


def _mixed(selection: Selection) -> int:
    """Vectors of a token that entries are made of: two where entries overlap, one for its own and one for the next. [1]"""
    return 2 if selection.indexed else 1


def _compression(width: int, head: int, query_rank: int, selection: Selection) -> tuple[Matrix, ...]:
    """Products that make entries: vectors and their weights; of an indexer its queries, its keys in the same way, and weights of heads."""
    many = 2 * _mixed(selection)
    entries = Matrix(name="entries", k=width, n=many * head)
    if not selection.indexed:
        return (entries,)
    return (
        entries,
        Matrix(name="index_query", k=query_rank, n=selection.heads * selection.width),
        Matrix(name="index_key", k=width, n=many * selection.width),
        Matrix(name="index_weights", k=width, n=selection.heads),
    )


def _vectors(head: int, selection: Selection) -> int:
    """A bias for every place in an entry and a norm of entries, and the same of an indexer's keys. [1]"""
    elements = head + (selection.width if selection.indexed else 0)
    return elements * (selection.ratio * _mixed(selection) + 1)
