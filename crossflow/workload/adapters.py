"""Low-rank adapters beside weights that do not train (LoRA [1]_), which may be kept in a narrow type (QLoRA [2]_).

A service has many adapters beside one model: requests of a step that use different ones are grouped, and one kernel multiplies each group
by its own factors (SGMV [3]_).

A product x W becomes x W + s (x A) B: W[k, n] stays as it is, A[k, r] and B[r, n] train. What a model joins in one matrix, queries, keys
and values or both branches of a gated MLP, has adapters of its own for each, as in Hugging Face's PEFT, or one for all of them, as in NeMo.
Adapters are matrices of their parts, so that all that is known of matrices holds for them too. One of a matrix that tensor ranks cut by
columns has A whole on every rank and B cut by columns; of one cut by rows A is cut by rows, and B whole.

References
----------
.. [1] Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, arXiv:2106.09685, Eq. 3.
.. [2] Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023, arXiv:2305.14314, Sec. 3.
.. [3] Chen et al., "Punica: Multi-Tenant LoRA Serving", MLSys 2024, arXiv:2310.18547, Sec. 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.workload.transformer import AttentionGeometry, Layer, Matrix, Part, Transformer

AdapterTarget = Literal["all", "attention", "query", "key", "value", "output", "mlp", "experts"]
BaseType = Literal["nf4", "fp8"]
# Bits of a weight that does not train. NF4: 64 weights share a scale in fp32; quantised once more, the scales have 8 bits, and 256 of them
# share one in fp32 (QLoRA, Sec. 3, "Double Quantization": 0.127 bits a parameter in the place of 0.5). fp8: a tensor has one scale.
BASE_BITS: Mapping[tuple[BaseType, bool], float] = {
    ("nf4", False): 4.0 + 32.0 / 64.0, ("nf4", True): 4.0 + 8.0 / 64.0 + 32.0 / (64.0 * 256.0), ("fp8", False): 8.0, ("fp8", True): 8.0,
}  # fmt: skip
JOINED = ("query_key_value", "key_value")  # matrices that give several of queries, keys and values
PIECES: tuple[AdapterTarget, ...] = ("query", "key", "value")
# Matrices that have adapters, by the words that name them; routers, indexers and gates have none.
MATRICES: Mapping[AdapterTarget, tuple[str, ...]] = {
    "attention": ("query", *JOINED, "query_down", "query_up", "key_value_down", "key_value_up", "output"),
    "query": ("query", "query_key_value"), "key": JOINED, "value": JOINED, "output": ("output",),
    "mlp": ("up", "down"), "experts": ("shared_up", "shared_down", "expert_up", "expert_down"),
}  # fmt: skip
MOST_IN_WORK, NEWTON = 40.0, 60  # requests of an adapter in work beyond which it never ends, and steps of Newton's method. [1]


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What low-rank adapters a model has: their rank, which matrices have one, and whether joined matrices have one together."""

    rank: int
    targets: tuple[AdapterTarget, ...]
    joined: bool = False


@dataclass(frozen=True, kw_only=True)
class AdapterMix:
    """Adapters of a service, and how requests use them; numbers, or arrays over design points, shape (n,)."""

    count: float  # [1]
    share: float  # of requests that use one. [1]
    skew: float  # exponent of Zipf's law: the i-th adapter is used by a share in proportion to i^-skew of these. [1]
    slots: float  # adapters that the memory of an engine has room for. [1]

    def distinct(self, requests: Array) -> Array:
        """Mean number of different adapters among so many requests, shape of the argument. [1]

        Of requests that choose by themselves adapter i is missing with probability (1 - p_i)^n; no more are there than have a slot.

        >>> AdapterMix(count=2, share=1.0, skew=0.0, slots=2).distinct(np.array([1.0, 2.0])).tolist()
        [1.0, 1.5]
        """
        columns = np.broadcast_arrays(*map(np.asarray, (self.count, self.share, self.skew, self.slots, requests)))
        rows, place = np.unique(np.stack([column.ravel() for column in columns], axis=-1).astype(float), axis=0, return_inverse=True)
        found = [
            min(float(-np.expm1(many * np.log1p(-used_by(count, share, skew))).sum()), slots) for count, share, skew, slots, many in rows
        ]
        return np.array(found)[place.ravel()].reshape(columns[0].shape)

    def wait(self, rate: Array, stay: Array) -> Array:
        """Mean time that requests of an engine wait for a slot of their adapter, shape of the arguments. [s]

        Parameters
        ----------
        rate : requests that come in a second, at random. [1/s]
        stay : time for which a request needs the slot, T. [s]

        >>> one = np.ones(1)
        >>> few, all_ = (AdapterMix(count=4, share=1.0, skew=0.0, slots=slots).wait(4.0 * one, one) for slots in (1, 4))
        >>> round(float(few[0]), 2), float(all_[0])
        (1.86, 0.0)
        """
        columns = np.broadcast_arrays(*map(np.asarray, (self.count, self.share, self.skew, self.slots, rate, stay)))
        found = [_wait(*map(float, row)) for row in zip(*(column.ravel() for column in columns), strict=True)]
        return np.array(found).reshape(columns[0].shape)


def _wait(count: float, share: float, skew: float, slots: float, rate: float, stay: float) -> float:
    """Mean time for a slot, of all requests. [s]

    Requests for adapter i come at random, l_i a second. Its first one waits W; those that come meanwhile go on with it, those that come
    later at once, until nobody uses it: a busy period B_i = (exp(l_i T) - 1) / l_i of a service with any number of servers (Takacs,
    Introduction to the Theory of Queues, 1962). It has a slot for a share B_i / (1 / l_i + W + B_i) of the time. Where these add up to more
    than the slots with W = 0, that W is found with which they are all used (Newton's method, from the left of a convex function). Without
    W the sum is the mean number of different adapters in work. Waits by mere chance, while a slot is free in the mean, are left out.
    """
    used = used_by(count, share, skew)
    if slots >= count or rate <= 0.0:
        return 0.0
    each = rate * used
    busy, wait = np.expm1(np.minimum(each * stay, MOST_IN_WORK)), 0.0
    for _ in range(NEWTON):
        whole = 1.0 + each * wait + busy
        more = float((busy / whole).sum()) - slots
        if more <= 1e-9 * slots:
            break
        wait += more / float((busy * each / whole**2).sum())
    waiting = (each * wait + (each * wait) ** 2 / 2.0) / (1.0 + each * wait + busy)  # of each adapter, in the mean
    return float(waiting.sum()) / rate


def used_by(count: float, share: float, skew: float) -> Array:
    """Share of all requests that use each adapter, the most used one first, shape (count,); rounding keeps them below 1. [1]"""
    weights = np.arange(1.0, count + 1.0) ** -skew
    return np.asarray(np.minimum(share * weights / weights.sum(), 1.0 - 1e-12))


def with_adapters(model: Transformer, adapters: Adapters) -> Transformer:
    """A model with adapters, beside which nothing else trains.

    Raises
    ------
    ValueError
        If a target names nothing of the model.
    """
    mixers = {part.type for layer in model.layers for part in layer.parts}
    if "ssm" in mixers and "all" in adapters.targets:
        raise ValueError("targets: adapters of state-space layers are not modelled; name others, such as [attention, mlp]")
    made: dict[int, tuple[Part, ...]] = {}  # layers alike share their parts
    for layer in model.layers:
        made.setdefault(id(layer.parts), tuple(_adapted(part, adapters) for part in layer.parts))
    new = [part for parts in made.values() for part in parts]
    for target in adapters.targets:
        if not any(matrix.adapted and matrix.name in _names(target) for part in new for matrix in part.matrices):
            raise ValueError(f"targets: the model has no matrices of '{target}' that take adapters; name others, or all")
    return replace(model, layers=tuple(_with_parts(layer, made[id(layer.parts)]) for layer in model.layers))


def _with_parts(layer: Layer, parts: tuple[Part, ...]) -> Layer:
    return replace(layer, parts=parts)


def _names(target: AdapterTarget) -> tuple[str, ...]:
    """Matrices that a word names."""
    return tuple(name for names in MATRICES.values() for name in names) if target == "all" else MATRICES[target]


def _adapted(part: Part, adapters: Adapters) -> Part:
    """A part whose matrices have adapters, each after its own; embedding and head have none."""
    if part.type not in ("attention", "mlp", "experts"):
        return part
    return replace(part, matrices=tuple(one for matrix in part.matrices for one in _with_own(part, matrix, adapters)))


def _with_own(part: Part, matrix: Matrix, adapters: Adapters) -> Iterator[Matrix]:
    """A matrix, and both of its adapter where it has one."""
    words = [target for target in adapters.targets if matrix.name in _names(target)]
    if not words:
        yield matrix
        return
    pieces, outputs, kv_head = _pieces(part, matrix, words, joined=adapters.joined)
    yield replace(matrix, adapted=True)
    common = Matrix(name="", k=matrix.k, n=matrix.n, experts=matrix.experts, over=matrix.over, adapters=pieces)
    yield replace(common, name=f"{matrix.name}_a", n=pieces * adapters.rank, cut="row" if matrix.cut == "row" else "none")
    yield replace(
        common, name=f"{matrix.name}_b", k=adapters.rank, n=outputs, cut="column" if matrix.cut == "column" else "none",
        kv_heads=matrix.kv_heads if kv_head else 0, kv_head=kv_head,
    )  # fmt: skip


def _pieces(part: Part, matrix: Matrix, words: Sequence[AdapterTarget], *, joined: bool) -> tuple[int, int, int]:
    """Adapters of a matrix, the outputs that they have together, and of these those of a head of keys and values. [1]"""
    if part.attention is None or matrix.name not in JOINED:
        branches = 2 if part.gated and matrix.name.endswith("up") else 1
        return (1 if joined else branches), matrix.n, matrix.kv_head
    shares = _heads(part.attention, matrix)
    chosen = list(shares) if {"all", "attention"} & set(words) else [piece for piece in shares if piece in words]
    kv_head = sum(shares[piece] for piece in chosen if piece != "query")
    queries = matrix.n - matrix.kv_heads * matrix.kv_head if "query" in chosen else 0
    return (1 if joined else len(chosen)), queries + matrix.kv_heads * kv_head, kv_head


def _heads(attention: AttentionGeometry, matrix: Matrix) -> dict[AdapterTarget, int]:
    """What a matrix gives, with the elements of a head of keys or values; gates come with the queries. [1]"""
    found: dict[AdapterTarget, int] = {"query": 0} if matrix.name == "query_key_value" else {}
    keys = attention.query * attention.together
    if matrix.kv_head == keys + attention.value:
        return found | {"key": keys, "value": attention.value}
    return found | ({"key": matrix.kv_head} if matrix.kv_head else {})
