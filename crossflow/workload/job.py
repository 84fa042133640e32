"""What one step of a transformer computes: the model, the task, data types, what trains."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES, STORED_BYTES, kept_bytes, structured
from crossflow.workload.adapters import AdapterMix, BaseType
from crossflow.workload.frozen import Frozen
from crossflow.workload.sides import both_sides
from crossflow.workload.transformer import AttentionGeometry, Layer, LayerType, Transformer

JobTask = Literal["training", "forward", "prefill", "decode"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """Pieces of prompts that a decode step reads beside the tokens that it writes (chunked prefill) [1]_, shape (n,) each. [1]

    References
    ----------
    .. [1] Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, Sec. 4.
    """

    pieces: Array  # of different prompts
    length: Array  # tokens of each
    before: Array  # tokens of its prompt that lie in the cache already

    @property
    def tokens(self) -> Array:
        """Tokens of all pieces. [1]"""
        return np.asarray(self.pieces * self.length)


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A model that guesses tokens for another one, on devices of it."""

    job: Job  # writing of one token
    tp: int = 0  # devices of a replica that it runs on, as many as the other where 0. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTower:
    """A model of images whose tokens the prompts of another one hold, on devices of it."""

    job: Job  # forward pass of one image
    often: float  # images for each token of a prompt that is read, in the mean. [1]
    tokens: int  # of a prompt that one image becomes. [1]
    tp: int = 0  # devices of a replica that work on one image together, all of them where 0. [1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What a step of a transformer computes; numbers of the model may be arrays over design points (`crossflow.workload.stacked`)."""

    # model, task: training step, forward pass, or of a service: reading prompts (prefill), writing one token each (decode)
    model: Transformer
    # type that products with weights compute in; where it has fewer than 16 bits, activations, attention and the head stay in bf16
    dtype: str
    weight_dtype: str | None = None  # type in which a service keeps the weights of its layers; None for that of the products
    structured: bool = False  # whether the weights of its layers have 2:4 sparsity; those that stay in 16 bits have none
    kv_dtype: str | None = None  # type in which a service keeps keys and values; None for that of the activations
    task: JobTask = "training"
    optimizer_states: int = 2  # values in fp32 that the optimizer keeps for each parameter
    dropout: bool = False  # whether activations are dropped at random
    frozen: Frozen | None = None  # what does not train
    # type in which layers with or without adapters keep the weights that these leave as they are, "" for that of all others; bits of one
    base: BaseType | Literal[""] = ""
    base_bits: float = 0.0
    context: int = 0  # tokens that a request has in its cache in the mean of a decode step. [1]
    cached: int = 0  # tokens that its cache holds at most; 0 for tasks that keep none. [1]
    written: int = 1  # tokens that a decode step computes for a request: one, and those that are guessed. [1]
    chunk: Chunk | None = None  # of each replica's microbatch, what a decode step reads beside
    apart: bool = False  # whether workers of their own read the prompts of a service
    pooled: bool = False  # whether the experts lie on devices of their own
    # Time of the host for the mask of a token of one request that writes, in the mean of all, and whether it passes beside the kernels. [s]
    mask: float = 0.0
    masks_beside: bool = True
    likeliest: bool = False  # whether requests of a service draw among their likeliest tokens alone
    adapters: AdapterMix | None = None  # of a service, those of which every one has the adapters of `model`
    draft: Draft | None = None  # a model that guesses tokens for this one
    tower: ImageTower | None = None  # a model of images whose tokens prompts hold
    staggered: bool = False  # whether requests are at all stages of their output, rather than together at its end

    @functools.cached_property
    def sides(self) -> tuple[Job, Job]:
        """What devices that attend do of it, and what those do that hold the experts, where these are others."""
        attending, feeding = both_sides(self.model)
        return replace(self, model=attending, pooled=False), replace(self, model=feeding, pooled=False)

    @property
    def own(self) -> Job:
        """What the system's own devices do of it: all, but where others hold the experts."""
        return self.sides[0] if self.pooled else self

    @property
    def read_beside(self) -> Array | float:
        """Tokens of prompts that a decode step reads beside those that it writes, of a replica's microbatch. [1]"""
        return 0.0 if self.chunk is None else self.chunk.tokens

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.task == "training"

    @property
    def element(self) -> float:
        """Size of an activation or weight as kernels move it; with narrow types they stay in bf16 outside the products. [B]"""
        return kept_bytes(self.dtype)

    @property
    def operand(self) -> float:
        """Size of an element as products with weights read it; those of narrow types write what they find in `element`. [B]"""
        return DTYPE_BYTES[self.dtype]

    @property
    def weight(self) -> float:
        """Size of a weight of a layer as it is kept: in a service by `weight_dtype` or the products' type, in training `element`. [B]"""
        return self.element if self.training else STORED_BYTES[self._stored(self.weight_dtype or self.dtype)]

    @property
    def widened(self) -> str:
        """Type of weights in memory where it is not that of a product, whose kernel widens it; empty where it is."""
        return self.widened_of(self.weight_dtype or self.dtype)

    def widened_of(self, stored: str) -> str:
        """The same of a part whose weights are kept in a type of their own, or like all others where `stored` is empty."""
        if not stored:
            return self.widened
        return self._stored(stored) if self.structured or stored != self.dtype else ""

    def weight_of(self, stored: str) -> float:
        """Size of a weight of such a part as it is kept. [B]"""
        return STORED_BYTES[self._stored(stored)] if stored and not self.training else self.weight

    def _stored(self, dtype: str) -> str:
        """How weights of a type lie in memory."""
        return structured(dtype) if self.structured else dtype

    @property
    def cache(self) -> float:
        """Size of an element of keys and values in the cache. [B]"""
        return DTYPE_BYTES[self.kv_dtype] if self.kv_dtype else self.element

    def at(self, **changes: Any) -> Job:
        """The same with other fields, which its draft model has too."""
        draft = None if self.draft is None else replace(self.draft, job=replace(self.draft.job, **changes))
        return replace(self, draft=draft, **changes)

    @functools.cached_property
    def reading(self) -> Job:
        """The job of reading the prompts of a service's requests."""
        return replace(self, task="prefill")

    @functools.cached_property
    def handed(self) -> Job:
        """The same of workers of their own, which keep keys and values of the prompt alone, and hand these over."""
        prompt: Any = self.model.tokens
        return replace(self.reading, context=prompt, cached=prompt, staggered=False)

    def tokens(self, tokens: int) -> int:
        """Tokens of a sample that pass a layer in one step: all, or those that are written."""
        return self.written if self.task == "decode" else tokens

    def seen(self, attention: AttentionGeometry, tokens: Array | float) -> Array:
        """Mean number of keys that a query sees: of a sample's `tokens`, of the encoder's, or of those before a written token. [1]

        A token that is written sees itself and its context, which grows to `cached` tokens while the requests are served.
        """
        if attention.cross:
            return np.asarray(self.model.memory_tokens, dtype=float)
        if self.task != "decode":
            return attention.seen(0.0, tokens)
        middle, half = self.context + 1.0, np.maximum(self.cached - self.context, 0.5)
        return attention.seen(middle - half, middle + half)

    def takes_part(self, layer: Layer) -> bool:
        """Whether a step passes a group of layers: an encoder is done when a decoder writes."""
        return self.task != "decode" or not layer.encodes

    def is_frozen(self, kind: LayerType, layer: int | None) -> bool:
        """Whether a part of a layer (None for embedding and head) does not train."""
        if self.model.adapted and kind in ("embedding", "head"):
            return True
        return self.frozen is not None and self.frozen.covers(kind, layer)

    def base_size(self, *, wide: bool) -> float:
        """Size of a weight that adapters leave as it is, in 16 bits where its part is `wide`. [B]"""
        return self.base_bits / 8.0 if self.base and not wide else 0.0

    @property
    def widens_base(self) -> bool:
        """Whether each product widens the weights that adapters leave as they are, by a kernel of its own."""
        return bool(self.base) and self.operand >= self.element
