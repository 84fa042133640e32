"""RWKV: time mixing by a linear recurrence with a matrix for each head, and channel mixing in the place of an MLP [1]_ [2]_.

Products take mixtures of a token with the one before it (token shift). Of each head a state S of head x head elements is kept:

``rwkv5``
    S = S Diag(w) + v k^T, o = (S + Diag(u) v k^T) r, with decays w that no token changes ([1]_, Eagle);
``rwkv6``
    the same with decays, and mixtures, that a token makes of latents ([1]_, Finch);
``rwkv7``
    S = S (Diag(w) - a b^T) + v k^T, o = S r: a generalised delta rule, whose keys to remove and to write differ; decays, rates, a share of
    the first layer's values and the gate are made of latents ([2]_, Goose).

References
----------
.. [1] Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", 2024, arXiv:2404.05892, Sec. 4.
.. [2] Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution", 2025, arXiv:2503.14456, Sec. 4 and Appendix F.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from crossflow.workload.statespace import StateSpace
from crossflow.workload.transformer import Matrix, Part

# Mixtures of a token with the one before it that products of time mixing and channel mixing take. [1]
MIXTURES = {"rwkv5": (4, 2), "rwkv6": (5, 2), "rwkv7": (6, 1)}
# Vectors of time mixing, as wide as a token: mixtures, decays and bonus; of rwkv7 also rates, shares of values, and scales of keys. [1]
VECTORS = {"rwkv5": 4 + 2, "rwkv6": 6 + 2, "rwkv7": 6 + 3 + 3}


@functools.lru_cache(maxsize=1024)
def time_mixing(*, width: int, ssm: StateSpace, bias: bool = False, norm_vectors: int = 2) -> Part:
    """Receptance, keys and values (before rwkv7 also the gate) of shifted tokens, the recurrence, a norm of each head, the output."""
    inner = ssm.heads * ssm.width
    many = 3 if ssm.kind == "rwkv7" else 4
    return Part(
        type="ssm",
        width=width,
        matrices=(
            Matrix(name="input", k=width, n=many * inner, cut="column", bias=bias, inputs=many * width),
            *_latents(width, ssm, inner),
            Matrix(name="output", k=inner, n=width, cut="row", bias=bias),
        ),
        vectors=(norm_vectors + VECTORS[ssm.kind]) * width + 2 * ssm.norm * inner,
        ssm=ssm,
        shifted=MIXTURES[ssm.kind][0],
    )


def _latents(width: int, ssm: StateSpace, inner: int) -> Iterator[Matrix]:
    """Pairs of products through latents; that of mixtures gives the five of a token from a latent each."""
    if ssm.mix_rank:
        yield Matrix(name="mix_down", k=width, n=5 * ssm.mix_rank)
        yield Matrix(name="mix_up", k=ssm.mix_rank, n=5 * width, inputs=5 * ssm.mix_rank)
    for name, rank in (("decay", ssm.step_rank), ("rate", ssm.rate_rank), ("value", ssm.value_rank), ("gate", ssm.gate_rank)):
        if rank:
            yield Matrix(name=f"{name}_down", k=width, n=rank, inputs=width)
            yield Matrix(name=f"{name}_up", k=rank, n=inner, cut="column", inputs=rank)


@functools.lru_cache(maxsize=1024)
def channel_mixing(*, width: int, inner: int, kind: str, norm_vectors: int = 2) -> Part:
    """Two products with a squared ReLU between them; before rwkv7 a further product, through a sigmoid, weighs what they give."""
    receptance = () if kind == "rwkv7" else (Matrix(name="receptance", k=width, n=width, inputs=width),)
    mixtures = MIXTURES[kind][1]
    return Part(
        type="mlp",
        width=width,
        matrices=(
            *receptance,
            Matrix(name="up", k=width, n=inner, cut="column"),
            Matrix(name="down", k=inner, n=width, cut="row"),
        ),
        vectors=(norm_vectors + mixtures) * width,
        inner=inner,
        shifted=mixtures,
    )
