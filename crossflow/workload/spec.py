"""The `workload` section of a scenario."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from crossflow.base.errors import did_you_mean, other_task
from crossflow.base.files import FileModel
from crossflow.base.limits import (
    LAYERS,
    Dimension,
    DimensionOrZero,
    Finite,
    Flag,
    LayerCount,
    PositiveFloat,
    PositiveInt,
    Whole,
)
from crossflow.workload.adapters import BASE_BITS, AdapterTarget, BaseType
from crossflow.workload.contradictions import contradictions
from crossflow.workload.diffusion import DiffusionSpec
from crossflow.workload.frozen import RANGE, check_entries, frozen_layers
from crossflow.workload.job import JobTask
from crossflow.workload.serving_spec import ServingSpec
from crossflow.workload.shared_words import (
    OPTIMIZER_STATES,
    CacheType,
    DType,
    Optimizer,
    ProductType,
    SourcedSpec,
    Sparsity,
    StateType,
    WeightType,
    listed,
)
from crossflow.workload.statespace import SHIFTS, UNCONVOLVED, Recurrence, StateSpace
from crossflow.workload.traits import WorkloadSpec
from crossflow.workload.transformer import LayerType, Selection, Transformer

if TYPE_CHECKING:
    from crossflow.program.program import Program
    from crossflow.workload.graph import Graph


class LstmSpec(WorkloadSpec):
    """LSTM language model: embedding, `layers` cells over `sequence` steps, softmax over the vocabulary."""

    model: Literal["lstm"]
    title: str = ""
    hidden: Dimension
    vocabulary: Dimension
    sequence: Dimension
    layers: LayerCount = 2
    projection: Dimension | None = None
    global_batch: PositiveInt
    dtype: DType = "fp16"
    optimizer: Optimizer = "sgd"
    task: Literal["training", "forward"] = "training"

    @property
    def in_tokens(self) -> bool:
        """Its samples are sequences of words."""
        return True

    @property
    def sizes(self) -> dict[str, int | None]:
        """Numbers that change no node of the graph, but for a sequence of few steps."""
        beside = {"projection": self.projection, "batch": self.global_batch, "sequence": self.sequence}
        return {"hidden": self.hidden, "vocabulary": self.vocabulary, **beside}

    def graph(self, **sizes: Any) -> Graph:
        """Compute graph of one step; `sizes` stand for its own, as arrays over design points."""
        from crossflow.workload.lstm import lstm

        return lstm(
            **{**self.sizes, **sizes},
            layers=self.layers,
            dtype=self.dtype,
            optimizer_states=OPTIMIZER_STATES[self.optimizer],
            training=self.task == "training",
        )


class GemmSpec(WorkloadSpec):
    """A matrix product C[m, n] = A[m, k] B[k, n]."""

    model: Literal["gemm"]
    title: str = ""
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    dtype: DType = "fp16"
    task: Literal["training", "forward"] = "forward"

    @property
    def global_batch(self) -> int:
        """Rows of the product, which play the part of the batch."""
        return self.m

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers that change no node of the graph."""
        return {"m": self.m, "n": self.n, "k": self.k}

    def graph(self, **sizes: Any) -> Graph:
        """Compute graph of one step; `sizes` stand for its own, as arrays over design points."""
        from crossflow.workload.gemm import gemm

        return gemm(**{**self.sizes, **sizes}, dtype=self.dtype, training=self.task == "training")


# ---------------------------------------------------------------------------------------------- transformers

LAYER_TYPES: tuple[str, ...] = get_args(LayerType)


def _layer_entry(entry: str) -> str:
    if entry not in LAYER_TYPES and not RANGE.fullmatch(entry):
        raise ValueError(f"expected one of {', '.join(LAYER_TYPES)}, or layers:first-last; got '{entry}'{did_you_mean(entry, LAYER_TYPES)}")
    return entry


LayerEntries = Annotated[tuple[Annotated[str, AfterValidator(_layer_entry)], ...], BeforeValidator(listed)]


class LatentSpec(FileModel):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, Sec. 2.1)."""

    query_rank: Dimension | None = Field(None, description="width of the queries' latent; queries have none where absent")
    kv_rank: Dimension = Field(description="width of the latent of keys and values, which the cache keeps")
    nope: Dimension = Field(description="elements of a head's query and key that carry no position")
    rope: Dimension = Field(description="elements of a head's query and key that are rotated")
    value: Dimension = Field(description="elements of a head's value")


class AdaptersSpec(FileModel):
    """Low-rank adapters that train beside weights that do not (LoRA, arXiv:2106.09685; QLoRA, arXiv:2305.14314)."""

    rank: Dimension = Field(description="rank of every adapter")
    targets: Annotated[tuple[AdapterTarget, ...], BeforeValidator(listed)] = Field(
        ("all",), min_length=1,
        description="matrices that have one: all of layers (no router), attention, query, key, value, output, mlp, experts",
    )  # fmt: skip
    joined: Flag = Field(
        False,
        description="whether queries, keys and values, and both branches of a gated MLP, have one adapter together, as in NeMo",
    )
    base: BaseType | None = Field(
        None, description="type in which layers keep the weights that do not train; as the software keeps all weights where absent"
    )
    double: Flag = Field(True, description="whether scales of nf4 are quantised once more (4.127 bits a weight in the place of 4.5)")

    @property
    def bits(self) -> float:
        """Bits of a weight that does not train, 0 where it is kept like all others. [bit]"""
        return BASE_BITS[self.base, self.double] if self.base else 0.0


class SparseSpec(FileModel):
    """Sparse attention: an indexer chooses what each query attends to (DeepSeek-V3.2, arXiv:2512.02556)."""

    top_k: Dimension = Field(description="tokens that a query attends to at most")
    heads: Dimension = Field(description="heads of the indexer")
    head_dim: Dimension = Field(description="elements of a query of one of its heads, and of its key")
    weighed: Flag = Field(True, description="whether numbers of each token weigh the heads' scores; if not, each head chooses by itself")
    pattern: Annotated[tuple[Literal["full", "shared", "dense"], ...], BeforeValidator(listed)] = Field(
        ("full",), min_length=1,
        description="kinds of successive layers, repeated to the last: full have an indexer, shared take its choice (GLM-5.2), dense attend"
        " to all tokens",
    )  # fmt: skip

    @model_validator(mode="after")
    def _possible(self) -> Self:
        first = next((kind for kind in self.pattern if kind != "dense"), "")
        if first != "full":
            what = "no layer has an indexer" if not first else "the first layer has no indexer before it"
            raise ValueError(f"pattern: {what}; begin with full, or with dense and full")
        return self

    def selection(self, kind: str) -> Selection | None:
        """What is left to a query in a layer of a kind."""
        if kind == "dense":
            return None
        own: dict[str, Any] = {} if kind == "shared" else {"heads": self.heads, "width": self.head_dim, "weighed": self.weighed}
        return Selection(chosen=self.top_k, **own)


class CompressedSpec(FileModel):
    """Attention to compressed entries, one vector of which is key and value of all heads (DeepSeek-V4)."""

    output_groups: Dimension = Field(description="groups of heads whose outputs are projected to a latent each")
    output_rank: Dimension = Field(description="width of such a latent")
    window: Dimension = Field(description="last tokens that every layer sees one by one")
    ratios: tuple[Annotated[Whole, Field(ge=0)], ...] = Field(
        min_length=1, description="tokens that an entry stands for in successive layers, repeated to the last; 0 where a layer has none"
    )
    indexed: Dimension = Field(4, description="ratio of the layers in which an indexer chooses entries, which overlap; others see all")
    top_k: Dimension = Field(description="entries that a query attends to at most where an indexer chooses")
    heads: Dimension = Field(description="heads of the indexer")
    head_dim: Dimension = Field(description="elements of a query of one of its heads, and of its key")

    @property
    def pattern(self) -> tuple[str, ...]:
        """Kinds of successive layers."""
        return tuple(map(str, self.ratios))

    def selection(self, kind: str) -> Selection | None:
        """What is left to a query in a layer of a kind: entries and a window, or the window alone."""
        ratio = int(kind)
        if not ratio:
            return None
        own: dict[str, Any] = {"chosen": self.top_k, "heads": self.heads, "width": self.head_dim} if ratio == self.indexed else {}
        return Selection(ratio=ratio, window=self.window, **own)


class ExpertsSpec(FileModel):
    """Mixture of experts in the place of the MLP."""

    count: Dimension = Field(description="routed experts of a layer")
    active: Dimension = Field(description="experts that a token passes")
    ffn: Dimension | None = Field(None, description="inner width of one expert; `ffn` of the model where absent")
    shared: DimensionOrZero = Field(0, description="inner width of the shared experts together, which every token passes")
    shared_gate: Flag = Field(False, description="whether a gate weighs the shared experts (Qwen2-MoE)")
    latent: Dimension | None = Field(
        None, description="elements of the vectors that routed experts take and give (Nemotron 3); `hidden` of the model where absent"
    )
    dense_layers: DimensionOrZero = Field(0, description="first layers that keep their MLP")
    every: Dimension = Field(1, description="of the layers after those, each `every`-th of the model has experts")
    capacity: PositiveFloat | None = Field(None, description="largest share of an expert, in even shares; no token is dropped where absent")
    uneven: Finite = Field(1.0, ge=1, description="rows of the fullest rank over the mean, where experts are shared out over ranks")
    skew: Finite = Field(
        0.0, ge=0, le=4, description="exponent of the power law that deals rows out to experts, such as 1.2; 0 where they are used alike"
    )
    variation: Finite = Field(
        0.0,
        ge=0,
        le=10,
        description="standard deviation of the rows of experts over their mean, lognormal as measured in services, such as 1.28 of"
        " DeepSeek-R1; 0 where they are used alike",
    )
    router_bias: Flag = Field(False, description="whether the router's product has a bias (gpt-oss)")
    balance_bias: Flag = Field(
        False, description="whether each expert has a bias that keeps loads even as experts are chosen (DeepSeek-V3, arXiv:2408.15664)"
    )
    score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = Field(
        "softmax", description="function that makes scores of the router's products; all cost alike, launch files name it"
    )
    scaling: PositiveFloat = Field(1.0, description="factor on the sum of the routed experts; it costs nothing, launch files name it")
    groups: Dimension = Field(1, description="groups of experts, in their order, among which the router chooses first (DeepSeek-V3)")
    active_groups: Dimension | None = Field(None, description="groups that have all experts of a token; needed with several groups")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.count % self.groups:
            raise ValueError(f"{self.count} experts do not make {self.groups} groups")
        if self.groups > 1 and self.active_groups is None:
            raise ValueError(f"with {self.groups} groups give active_groups, how many have all experts of a token")
        if self.active_groups is not None and not self.active * self.groups <= self.active_groups * self.count <= self.groups * self.count:
            raise ValueError(f"a token cannot pass {self.active} experts of {self.active_groups} of {self.groups} groups")
        if self.active > self.count:
            raise ValueError(f"a token cannot pass {self.active} of {self.count} experts")
        if self.capacity is not None and self.uneven > 1:
            raise ValueError("a capacity fills all experts up alike; leave out `uneven` or `capacity`")
        if self.skew and (self.capacity is not None or self.uneven > 1):
            raise ValueError("a power law says how unevenly experts are used; leave out `skew`, or `uneven` and `capacity`")
        if self.variation and (self.capacity is not None or self.uneven > 1 or self.skew):
            raise ValueError("a variation says how unevenly experts are used; leave it out, or `skew`, `uneven` and `capacity`")
        return self


class WindowSpec(FileModel):
    """Window of attention: each token sees the last ones (sliding window), or those of its chunk; the size alone will do."""

    size: Dimension = Field(description="tokens that a token sees at most, itself included")
    pattern: Annotated[tuple[Literal["local", "global"], ...], BeforeValidator(listed)] = Field(
        ("local",), min_length=1, description="kinds of successive layers, repeated to the last: local sees the window, global all tokens"
    )
    chunked: Flag = Field(False, description="whether windows are consecutive chunks of a sample (Llama 4) instead of sliding")
    global_rotary: Flag = Field(True, description="whether global layers rotate queries and keys; those of Llama 4 do not (NoPE)")

    @model_validator(mode="before")
    @classmethod
    def _number(cls, data: Any) -> Any:
        return {"size": data} if isinstance(data, int) else data


PLACES = re.compile(r"(\d+)(?:-(\d+))?")
WHERE = ("local", "global")


def _place(entry: Any) -> Any:
    """Layers that a variant names, as text: a number, a range, or the kind of their window."""
    text = str(entry) if type(entry) is int else entry
    if not isinstance(text, str) or (text not in WHERE and not PLACES.fullmatch(text)):
        raise ValueError(f"expected a layer such as 3, a range such as 3-7, local or global; got {entry!r}")
    return text


class VariantSpec(FileModel):
    """Layers with dimensions of their own; what is left out is as in all layers."""

    layers: Annotated[tuple[Annotated[str, BeforeValidator(_place)], ...], BeforeValidator(listed)] = Field(
        min_length=1, description="which they are: numbers from 0, ranges such as 3-7, or all that are local or global (`window.pattern`)"
    )
    heads: Dimension | None = Field(None, description="attention heads")
    kv_heads: Dimension | None = Field(None, description="heads of keys and values")
    head_dim: Dimension | None = Field(None, description="elements of a head's query and key, and of its value where `value_dim` is absent")
    value_dim: Dimension | None = Field(None, description="elements of a head's value")
    ffn: Dimension | None = Field(None, description="inner width of the MLP")
    attention: Flag = Field(True, description="whether they mix tokens at all; otherwise they have only an MLP or experts (Nemotron-NAS)")
    mlp: Flag = Field(True, description="whether they have an MLP or experts")
    experts: Flag = Field(True, description="whether they have the experts of the model; without, they keep its MLP")
    keys_as_values: Flag | None = Field(None, description="whether one product gives keys and values (Gemma 4)")
    shared_cache: Flag | None = Field(
        None, description="whether they attend to the keys and values of an earlier layer and make none (Gemma 3n and 4)"
    )
    attention_sinks: Flag | None = Field(None, description="whether each head learns a sink")
    cross: Flag | None = Field(None, description="whether they attend only to `cross_tokens` of an image (Llama 3.2 Vision)")

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and type(data.get("layers")) is int:
            return {**data, "layers": [data["layers"]]}
        return data

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for entry in self.layers:
            if (found := PLACES.fullmatch(entry)) and int(found[2] or found[1]) < int(found[1]):
                raise ValueError(f"layers: {entry} is no range; give the first layer first")
        if not set(self.own) and self.attention and self.mlp and self.experts:
            raise ValueError("layers that differ in nothing are no variant; give a dimension of theirs, or leave it out")
        return self

    @functools.cached_property
    def own(self) -> dict[str, Any]:
        """Keys of the model that have other values in these layers."""
        keys = set(type(self).model_fields) - {"layers", "attention", "mlp", "experts"}
        return {key: value for key in sorted(keys) if (value := getattr(self, key)) is not None}

    @property
    def cuts(self) -> VariantCuts:
        """Where the variant applies, and what its layers do without."""
        found = [PLACES.fullmatch(entry) for entry in self.layers]
        numbers = frozenset(i for one in found if one for i in range(int(one[1]), int(one[2] or one[1]) + 1))
        return numbers, frozenset(WHERE) & frozenset(self.layers), self.attention, self.mlp, self.experts


# Layers by their numbers and by their windows, and whether they mix tokens, have an MLP or experts, and experts.
VariantCuts = tuple[frozenset[int], frozenset[str], bool, bool, bool]


class StateSpaceSpec(FileModel):
    """State-space layers, alone or in turn with attention (hybrid models)."""

    kind: Recurrence = Field(
        "mamba2",
        description="mamba2 (arXiv:2405.21060), gated_delta (Qwen3-Next, arXiv:2412.06464), kda (Kimi Linear, arXiv:2510.26692), mamba1"
        " (Jamba, arXiv:2312.00752), lightning (lightning attention of MiniMax-01, arXiv:2501.08313), mlstm (the matrix memory of"
        " xLSTM, arXiv:2503.13427), conv (the gated short convolution of LFM2, arXiv:2511.23404), rglru (the gated recurrence of"
        " Griffin, arXiv:2402.19427), or"
        " rwkv5, rwkv6, rwkv7 (arXiv:2404.05892, arXiv:2503.14456), whose layers mix channels in the place of an MLP",
    )
    pattern: Annotated[tuple[Literal["ssm", "attention", "both", "mlp", "experts", "shared"], ...], BeforeValidator(listed)] = Field(
        ("ssm",),
        min_length=1,
        description="kinds of successive layers, repeated to the last: ssm and attention mix tokens, both do so side by side (Falcon-H1);"
        " mlp and experts are layers of their own, where `mlp` is false; shared is a `shared_block` before a state space, there too",
    )
    mlp: Flag = Field(True, description="whether each layer that mixes tokens ends with an MLP or experts; if not, a layer has one part")
    heads: Dimension = Field(description="heads; of the delta rule those of values, of mamba1 its channels")
    head_dim: Dimension = Field(1, description="elements of a head; of the delta rule those of a value, of mamba1 always 1")
    groups: Dimension = Field(1, description="groups of heads that share B and C; of the delta rule heads of keys and queries")
    state: Dimension | None = Field(
        None, description="elements of the state for each element of a head; of the delta rule those of a key; only conv has none"
    )
    chunk: Dimension | None = Field(
        None,
        description="tokens of a chunk, whose pairs are computed as products; where absent 256, and 64 for the delta rule, mlstm and rwkv",
    )
    conv: DimensionOrZero = Field(4, description="tokens that the short convolution sees; 0 for lightning, mlstm and rwkv, which have none")
    conv_bias: Flag = Field(True, description="whether the convolution has a bias")
    bias: Flag = Field(False, description="whether the projections in and out have biases")
    norm: Flag = Field(True, description="whether a norm follows the recurrence; of mamba1, norms of B, C and the time step (Jamba)")
    step_rank: Dimension | None = Field(
        None,
        description="width of the latent of the time steps of mamba1, which needs it, or of decays of kda, rwkv6 and rwkv7; of these alone",
    )
    gate_rank: Dimension | None = Field(
        None, description="width of the latent of kda's output gate, which has none where absent, or of rwkv7's, which needs it"
    )
    mix_rank: Dimension | None = Field(
        None, description="width of the latents of the mixtures with the token before of rwkv6, which needs it"
    )
    rate_rank: Dimension | None = Field(None, description="width of the latent of the rates of rwkv7, which needs it")
    value_rank: Dimension | None = Field(None, description="width of the latent of the shares of values of rwkv7, which needs it")
    state_dtype: StateType | None = Field(None, description="type of a service's states; that of activations where absent")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        first = self.kind == "mamba1"
        if self.heads % self.groups:
            yield f"heads = {self.heads} is not a multiple of groups = {self.groups}"
        if first and (self.head_dim, self.groups) != (1, 1):
            yield "head_dim and groups: heads of mamba1 are channels of one element in one group; leave them out"
        if first and self.chunk:
            yield "chunk: mamba1 has no chunks; leave it out"
        if self.kind == "mamba1" and not self.step_rank:
            yield "step_rank: mamba1 makes its time steps of a latent; give its width"
        if self.step_rank and self.kind not in ("mamba1", "kda", "rwkv6", "rwkv7"):
            yield "step_rank: only mamba1, kda, rwkv6 and rwkv7 have it; leave it out"
        yield from self._contradictions_of_kind()
        if self.gate_rank and self.kind not in ("kda", "rwkv7"):
            yield "gate_rank: only kda and rwkv7 have it; leave it out"
        yield from self._contradictions_of_shifts()
        if not any(kind in ("ssm", "both", "shared") for kind in self.pattern):
            yield "pattern: no layer has a state space; give some as ssm or both"
        alone = [kind for kind in self.pattern if kind in ("mlp", "experts", "shared")]
        if alone and self.mlp:
            lacks = "the MLP of its block" if alone[0] == "shared" else "no mixer"
            yield f"pattern: a layer of kind {alone[0]} has {lacks}, which needs mlp: false"

    def _contradictions_of_kind(self) -> Iterator[str]:
        """What lightning attention and gated convolutions do not have, and all others do."""
        if self.kind == "rglru" and (self.groups, self.state, self.chunk) != (1, 1, None):
            yield "groups, state and chunk: each channel of rglru keeps one number; give state: 1 and leave out the others"
        if (self.state is None) != (self.kind == "conv"):
            yield "state: a gated convolution keeps none; leave it out" if self.state else "the key 'state' is missing"
        if (self.conv == 0) != (self.kind in UNCONVOLVED):
            none = "lightning attention" if self.kind == "lightning" else self.kind
            yield f"conv: {none} has none; give 0" if self.conv else "conv: only lightning, mlstm and rwkv have none; give its tokens"
        if self.kind == "conv" and (self.head_dim, self.groups) != (1, 1):
            yield "head_dim and groups: heads of a gated convolution are channels of one element in one group; leave them out"
        if self.kind == "conv" and (self.chunk or self.state_dtype):
            yield f"{'chunk' if self.chunk else 'state_dtype'}: a gated convolution has no states; leave it out"

    def _contradictions_of_shifts(self) -> Iterator[str]:
        """Latents that kinds of rwkv need, and no others have."""
        needed = {"rwkv6": ("step_rank", "mix_rank"), "rwkv7": ("step_rank", "gate_rank", "rate_rank", "value_rank")}.get(self.kind, ())
        yield from (f"{key}: {self.kind} needs it; give its width" for key in needed if not getattr(self, key))
        odd = [key for key in ("mix_rank", "rate_rank", "value_rank") if getattr(self, key) and key not in needed]
        yield from (f"{key}: {self.kind} has none; leave it out" for key in odd)
        if self.kind in SHIFTS and not (self.groups == self.heads and self.state == self.head_dim):
            yield f"groups and state: each head of {self.kind} has a square state; give groups = heads and state = head_dim"
        if self.kind in SHIFTS and not self.mlp:
            yield f"mlp: layers of {self.kind} end with channel mixing; leave it out"

    def mixer(self) -> StateSpace:
        """Its geometry."""
        usual = {"mamba2": 256, "gated_delta": 64, "kda": 64, "lightning": 256, "mlstm": 64, **dict.fromkeys(SHIFTS, 64)}
        chunk = usual.get(self.kind, 0) if self.chunk is None else self.chunk
        return StateSpace(
            kind=self.kind, heads=self.heads, groups=self.groups, width=self.head_dim, state=self.state or 0, chunk=chunk,
            convolution=self.conv, norm=self.norm, step_rank=self.step_rank or 0,
            gate_rank=self.gate_rank or 0, mix_rank=self.mix_rank or 0, rate_rank=self.rate_rank or 0, value_rank=self.value_rank or 0,
            stored=self.state_dtype or "",
        )  # fmt: skip


class SharedBlockSpec(FileModel):
    """A block of attention and MLP that several layers of a hybrid share (Zamba, arXiv:2405.16712; Zamba2, arXiv:2411.15242)."""

    blocks: Dimension = Field(
        1, description="blocks with weights of their own, which successive layers of `ssm.pattern` shared take in turn"
    )
    mlp_rank: Dimension | None = Field(None, description="rank of the adapter that each use has beside the MLP's first product")
    attention_rank: Dimension | None = Field(None, description="the same beside queries, keys and values each")


class PerLayerSpec(FileModel):
    """Embeddings of each layer's own: a vector of each token's word that a small MLP adds to the layer's output."""

    width: Dimension = Field(description="elements of such a vector")
    vocabulary: Dimension | None = Field(None, description="words that have one; those of the model where absent")


class EncoderSpec(FileModel):
    """Encoder whose outputs every layer of the decoder attends to."""

    layers: LayerCount = Field(description="layers of the encoder")
    sequence: Dimension = Field(description="tokens of a sample in the encoder")
    vectors: DimensionOrZero = Field(0, description="vectors that it learns before its first layer, such as positions and a norm")
    frame: Dimension | None = Field(
        None,
        description="values of a frame of sound, of which two convolutions over three frames make its tokens (Whisper); words where absent",
    )


class ImageSpec(FileModel):
    """Images, or videos, cut into patches, each of them a token."""

    size: Dimension = Field(description="pixels of a side, of a picture that is not square its width")
    height: Dimension | None = Field(None, description="pixels of the other side; `size` where absent")
    frames: Dimension = Field(1, description="frames of a video")
    patch: Dimension = Field(description="values of a patch's side: pixels, or latents where there is a `compression`")
    frame_patch: Dimension = Field(1, description="frames (of latents) of a patch")
    compression: Dimension = Field(1, description="pixels of a side that an autoencoder makes one latent of; 8 of most")
    frame_compression: Dimension = Field(1, description="frames that it makes one of latents of, after the first frame")
    channels: Dimension = Field(3, description="values of a pixel, or of a latent")
    classes: Dimension | None = Field(None, description="classes of the classifier")
    class_token: Flag = Field(True, description="whether a token that stands for the image goes before the patches")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        side = self.patch * self.compression
        for key, value in (("size", self.size), ("height", self.height)):
            if value and value % side:
                of = f"patch x compression = {side}" if self.compression > 1 else f"patch = {self.patch}"
                raise ValueError(f"{key} = {value} is not a multiple of {of}")
        if (self.frames - 1) % self.frame_compression:
            near = (self.frames - 1) // self.frame_compression * self.frame_compression + 1
            every = self.frame_compression
            raise ValueError(f"frames = {self.frames}: after the first, frames come in {every}s; give {near} or {near + every}")
        return self

    @property
    def tokens(self) -> int:
        """Tokens of one image or video, whose last frames are padded to a whole patch."""
        side, latents = self.patch * self.compression, (self.frames - 1) // self.frame_compression + 1
        return (self.size // side) * ((self.height or self.size) // side) * -(-latents // self.frame_patch) + self.class_token

    def values(self, channels: int) -> int:
        """Values of a patch with so many of each pixel. [1]"""
        return channels * self.patch**2 * self.frame_patch


class ServedSpec(FileModel):
    """Types of the checkpoint that a model's maker released, which services take where a workload names no type."""

    weight_dtype: WeightType | None = Field(
        None, description="type of its weights; products compute in it too where engines and devices do; 16 bits where absent"
    )
    weight_dtypes: Mapping[LayerType, WeightType] = Field(
        {}, description="types of layer types that have their own, as the workload's `weight_dtypes` lists them"
    )
    state_dtype: StateType | None = Field(None, description="type of the states of state-space layers, as `ssm.state_dtype`")
    wide_layers: LayerEntries = Field((), description="what stays in 16 bits, as the workload's `wide_layers` lists it")


class TransformerSpec(SourcedSpec, WorkloadSpec):
    """Transformer: decoder, encoder, both, mixture of experts, vision transformer, or a model with state-space layers; where a file does
    not say, as Llama is.
    """

    layered: ClassVar[bool] = True

    model: Literal["transformer"]
    title: str = ""
    notes: str = ""
    sources: Mapping[str, str] = {}
    served: ServedSpec | None = Field(None, description="types of the released checkpoint; only the file of a model has it")
    layers: LayerCount = Field(description="layers; with `encoder` those of the decoder")
    hidden: Dimension = Field(description="elements of a token's vector between layers")
    heads: DimensionOrZero = Field(0, description="attention heads; only a model without attention has none")
    kv_heads: Dimension | None = Field(None, description="heads of keys and values; `heads` where absent")
    head_dim: Dimension | None = Field(None, description="elements of a head; hidden / heads where absent")
    value_dim: Dimension | None = Field(None, description="elements of a head's value; `head_dim` where absent")
    ffn: DimensionOrZero = Field(0, description="inner width of the MLP; only a model without MLPs has none")
    gated: Flag = Field(True, description="whether the MLP multiplies two branches (SwiGLU, GeGLU)")
    gate_limit: PositiveFloat | None = Field(
        None, description="value at which both branches are clamped before they are multiplied (`swiglu_limit` of gpt-oss)"
    )
    vocabulary: Dimension | None = Field(None, description="rows of the embedding; none for a model of images")
    tied_embeddings: Flag = Field(False, description="whether the head multiplies by the embedding's table")
    sequence: Dimension = Field(description="tokens of a sample; follows from `image` for a model of images")
    positions: Literal["rotary", "learned", "alibi", "relative", "none"] = Field("rotary", description="how a token knows its place")
    max_positions: Dimension | None = Field(None, description="rows of the learned positions; `sequence` where absent")
    relative_buckets: Dimension = Field(32, description="distances that relative positions tell apart (T5)")
    norm: Literal["layernorm", "rmsnorm"] = Field("rmsnorm", description="normalisation")
    norm_vectors: Whole | None = Field(
        None, ge=0, le=2, description="vectors that a norm learns; 2 of a layernorm and 1 of an rmsnorm where absent"
    )
    norms: Whole = Field(2, ge=1, le=4, description="norms of a layer: 1 that attention and MLP share, 2 one each, 4 before and after each")
    qk_norm: Literal["shared", "per-head"] | None = Field(None, description="norm of queries and keys: one for all heads, or one each")
    biases: Flag = Field(False, description="whether linear layers have biases")
    qkv_bias: Flag | None = Field(None, description="the same for queries, keys and values only; `biases` where absent")
    mlp_bias: Flag | None = Field(None, description="the same for the MLP only; `biases` where absent")
    head_bias: Flag | None = Field(None, description="the same of the product with the vocabulary; only a masked head's where absent")
    causal: Flag = Field(True, description="whether a token sees only those before it")
    window: WindowSpec | None = Field(None, description="sliding window or chunks of attention; all tokens are seen where absent")
    attention_gate: Flag = Field(False, description="whether a gate, as wide as the queries, weighs attention's output (Qwen3-Next)")
    attention_sinks: Flag = Field(False, description="whether each head learns a sink, a further logit of its softmax (gpt-oss)")
    keys_as_values: Flag = Field(False, description="whether one product gives keys and values, which differ by their norms (Gemma 4)")
    cross: Flag = Field(False, description="whether layers attend only to tokens of an image; set it on a variant for some layers only")
    cross_tokens: Dimension | None = Field(
        None, description="tokens of a sample's image, to which layers with `cross` attend; the tower that makes them does not run"
    )
    shared_cache: Flag = Field(
        False, description="whether layers attend to keys and values of other layers; for some layers, set it on a variant"
    )
    head_gate: Flag = Field(False, description="whether one number of each head weighs attention's output (Step-3.5)")
    differential: Flag = Field(
        False, description="whether pairs of heads share a value and give the difference of what they attend to (arXiv:2410.05258);"
        " `heads`, `kv_heads` and `head_dim` count each of a pair, as files of DiffLlama do",
    )  # fmt: skip
    variants: tuple[VariantSpec, ...] = Field((), description="layers with dimensions of their own; later ones win over earlier ones")
    residual_block: Dimension | None = Field(
        None, description="layers whose sum later ones attend to in the place of a residual (attention residuals of Kimi K3)"
    )
    residual_streams: Dimension | None = Field(
        None, description="vectors of a token between layers that hyper-connections mix, in the place of one residual (DeepSeek-V4)"
    )
    per_layer: PerLayerSpec | None = Field(None, description="embeddings that every layer has of its own (Gemma 3n and 4)")
    final_norm: Flag = Field(True, description="whether a norm follows the last layer")
    embedding_norm: Flag = Field(False, description="whether a norm follows the embedding (BLOOM, BERT)")
    sparse: SparseSpec | None = Field(None, description="sparse attention to what an indexer chooses")
    compressed: CompressedSpec | None = Field(None, description="attention to compressed entries; needs `query_rank`")
    query_rank: Dimension | None = Field(
        None, description="width of a latent, with a norm, that queries pass (Step-3); of latent attention it is `latent.query_rank`"
    )
    latent: LatentSpec | None = Field(None, description="latent attention in the place of `kv_heads` and `head_dim`")
    experts: ExpertsSpec | None = Field(None, description="experts in the place of MLPs")
    ssm: StateSpaceSpec | None = Field(None, description="state-space layers in the place of all or some layers of attention")
    shared_block: SharedBlockSpec | None = Field(
        None, description="block of attention and MLP that layers share, which `ssm.pattern` calls shared (Zamba)"
    )
    encoder: EncoderSpec | None = Field(None, description="encoder before the layers, which then attend to it")
    mtp_layers: Annotated[DimensionOrZero, Field(le=LAYERS)] = Field(
        0, description="multi-token prediction layers (DeepSeek-V3), each of one further token; only training runs them"
    )
    mtp_shared: Flag = Field(False, description="all multi-token prediction layers have the same weights (Nemotron 3 Super and Ultra)")
    mtp_wide: Flag = Field(False, description="multi-token prediction layers stay in 16 bits where `dtype` is narrower")
    image: ImageSpec | None = Field(None, description="images in the place of words")
    diffusion: DiffusionSpec | None = Field(
        None, description="what makes a model of images one of diffusion, of which a step is one denoising step"
    )
    head: Literal["language", "masked", "classifier", "latents", "none"] = Field("language", description="what follows the last layer")
    pooler: Flag = Field(False, description="whether BERT's pooler is there, and with a masked head its next-sentence classifier")
    token_types: DimensionOrZero = Field(0, description="kinds of tokens with an embedding of their own (BERT)")
    parallel: Flag = Field(False, description="whether attention and MLP work side by side (GPT-J, Falcon); priced one after the other")
    dropout: Flag = Field(False, description="whether training drops activations at random; no other task does")
    global_batch: PositiveInt = Field(description="samples of one step over all devices; requests served at once for decode")
    dtype: ProductType = Field("bf16", description="type that products with weights compute in; below 16 bits the rest stays in bf16")
    weight_dtype: WeightType | None = Field(
        None,
        description="type in which a service keeps its layers' weights, `dtype` where absent; products widen narrower ones as they read",
    )
    weight_dtypes: Mapping[LayerType, WeightType] = Field(
        {}, description="the same of layer types whose weights a checkpoint keeps in a type of their own, such as {experts: mxfp4}"
    )
    weight_sparsity: Sparsity | None = Field(
        None,
        description="2:4: two in every four weights of the layers of a trained model are kept; what stays in 16 bits by `wide_layers`,"
        " embedding and head has all",
    )
    kv_dtype: CacheType | None = Field(None, description="type of a service's cached keys and values; that of activations where absent")
    wide_layers: LayerEntries = Field(
        (),
        description="what stays in 16 bits where `dtype` or `weight_dtype` is narrower, as `frozen` lists it; embedding and head always do",
    )
    optimizer: Optimizer = Field("adam", description="decides the states kept per parameter: 0, 1, 2")
    task: Literal["training", "forward", "prefill", "decode", "serving"] = Field(
        "training",
        description="training step, forward pass, or of a service: reading the prompts, writing token by token, or both in steady state",
    )
    frozen: LayerEntries = Field(
        (), description="what fine-tuning leaves as it is: layer types, or layers such as layers:0-30; text lists them with commas"
    )
    adapters: AdaptersSpec | None = Field(
        None, description="low-rank adapters (LoRA, QLoRA): only they train; other tasks have them merged into the weights"
    )
    prompt: Dimension | None = Field(
        None,
        description="tokens of a service's request before the first that is written, `sequence` where absent; of an encoder-decoder"
        " those of the decoder, the encoder reads its own sequence",
    )
    output: Dimension | None = Field(None, description="tokens written for a request")
    serving: ServingSpec = Field(ServingSpec(), description="how a service runs that is in steady state")

    @field_validator("task", mode="before")
    @classmethod
    def _no_other_task(cls, task: Any) -> Any:
        if told := other_task(task):
            raise ValueError(told)
        return task

    @model_validator(mode="before")
    @classmethod
    def _arriving(cls, data: Any) -> Any:
        """Requests that arrive have no number in flight that a scenario could give."""
        serving = data.get("serving") if isinstance(data, Mapping) else None
        arrives = isinstance(serving, Mapping) and serving.get("arrival_rate") is not None and data.get("task") == "serving"
        return {"global_batch": 1, **data} if arrives else data

    @model_validator(mode="before")
    @classmethod
    def _sequence_of_image(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("image") is None or "sequence" in data:
            return data
        try:
            tokens = ImageSpec.model_validate(data["image"]).tokens
        except ValidationError:
            tokens = 1  # what is wrong is told at `image`; a missing sequence is not
        return {**data, "sequence": tokens}

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in contradictions(self):
            raise ValueError(problem)
        checks: tuple[tuple[str, Callable[..., Any]], ...] = (("frozen", frozen_layers), ("wide_layers", check_entries))
        if self.adapters and (self.task == "training" or self.serving.adapters):
            try:
                self.transformer()
            except ValueError as error:
                raise ValueError(f"adapters.{error}") from None
        for key, check in checks:
            try:
                if entries := getattr(self, key):
                    check(entries, self.transformer())
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        if self.wide_layers and all(part.wide for layer in self.transformer().layers for part in layer.parts):
            raise ValueError("wide_layers: all layers stay in 16 bits; leave out the narrow type")
        return self

    @property
    def serves(self) -> bool:
        """Whether the task is one of a service, which keeps keys and values."""
        return self.task in ("prefill", "decode", "serving")

    @property
    def is_service(self) -> bool:
        """Whether it is a whole service, which reads prompts and writes tokens."""
        return self.task == "serving"

    @property
    def decodes(self) -> bool:
        """Whether its step writes tokens one by one, as that of a whole service does."""
        return self.step == "decode"

    @property
    def arrives(self) -> bool:
        """Whether requests arrive at a rate; else `global_batch` of them are in flight."""
        return self.is_service and self.serving.arrival_rate is not None

    @property
    def service(self) -> ServingSpec:
        """How it runs as a service."""
        return self.serving

    @property
    def trains_transformer(self) -> bool:
        """Whether it is trained."""
        return self.task == "training"

    @property
    def in_tokens(self) -> bool:
        """Whether its samples are words, not images."""
        return self.vocabulary is not None

    @property
    def step(self) -> JobTask:
        """What one step does: a service in steady state writes tokens."""
        return "decode" if self.task == "serving" else self.task

    @property
    def tokens(self) -> int:
        """Tokens of a sample that pass the layers (the decoder's of two): of a service the prompt's, where it says them.

        Those of a text that passes with a picture are among them.
        """
        service = self.serves and self.image is None
        return self.prompt if service and self.prompt else self.sequence + (self.diffusion.joint if self.diffusion else 0)

    def kinds(self, layers: int) -> tuple[LayerKind, ...]:
        """What each of so many layers is made of."""
        kinds = _kinds(layers, *self._patterns)
        return _shared_out(kinds, self.shared_block.blocks) if self.shared_block else kinds

    def has(self, part: LayerType) -> bool:
        """Whether any layer has a part of a type."""
        return part in _types(self.layers, *self._patterns)

    @property
    def _patterns(self) -> Patterns:
        """What decides of each layer what it is made of."""
        ssm, mixture, window = self.ssm, self.experts, self.window
        return (
            ssm.pattern if ssm else ("attention",),
            ssm is None or ssm.mlp,
            (mixture.dense_layers, mixture.every) if mixture else None,
            window.pattern if window else ("global",),
            self._chosen,
            tuple(variant.cuts for variant in self.variants),
        )

    @property
    def _chosen(self) -> tuple[str, ...]:
        """Kinds of layers by what sparse attention chooses, or by how a text comes beside a picture."""
        if self.diffusion:
            return self.diffusion.pattern(self.layers)
        return self.sparse.pattern if self.sparse else self.compressed.pattern if self.compressed else ("full",)

    @property
    def writes(self) -> bool:
        """Whether it writes tokens one after the other, so that it keeps keys and values."""
        return self.image is None and self.causal and self.head == "language"

    def varied(self, variants: Sequence[int]) -> TransformerSpec:
        """The model as layers of some variants see it."""
        changes = {key: value for i in variants for key, value in self.variants[i].own.items()}
        return self.model_copy(update=changes) if changes else self

    def transformer(self) -> Transformer:
        """The model as layers of weight matrices."""
        from crossflow.workload.described import described

        return described(self)


class LayerKind(NamedTuple):
    """What a layer is made of: what mixes its tokens, what it has beside, whether its attention sees the window only, its variants."""

    mixers: tuple[LayerType, ...]
    beside: LayerType | None
    local: bool
    chosen: str  # what sparse attention chooses: the kind of its layer, or the ratio of its entries; or how a text comes beside a picture
    variants: tuple[int, ...] = ()
    block: Literal["none", "holds", "uses"] = "none"  # whether it has a shared block, and the weights of it


# Kinds of layers by their mixers, whether each has an MLP or experts beside, dense layers and `every` of experts, kinds of windows, and of
# sparse attention, variants.
Patterns = tuple[tuple[str, ...], bool, tuple[int, int] | None, tuple[str, ...], tuple[str, ...], tuple[VariantCuts, ...]]
_MIXERS: Mapping[str, tuple[LayerType, ...]] = {
    "ssm": ("ssm",),
    "attention": ("attention",),
    "both": ("ssm", "attention"),
    "shared": ("attention", "ssm"),
}
_ALONE: Mapping[str, LayerType] = {"mlp": "mlp", "experts": "experts", "shared": "mlp"}


@functools.lru_cache(maxsize=256)
def _kinds(
    layers: int, mixed: tuple[str, ...], fed: bool, routed: tuple[int, int] | None, seen: tuple[str, ...], chosen: tuple[str, ...],
    variants: tuple[VariantCuts, ...] = (),
) -> tuple[LayerKind, ...]:  # fmt: skip
    """What each of so many layers is made of; patterns are repeated to the last."""
    dense, every = routed or (layers, 1)

    def kind(i: int) -> LayerKind:
        own, window = mixed[i % len(mixed)], seen[i % len(seen)]
        here = [j for j, (places, windows, *_) in enumerate(variants) if i in places or window in windows]
        mixing, feeding, routing = (all(variants[j][cut] for j in here) for cut in (2, 3, 4))
        mixers = _MIXERS.get(own, ()) if mixing else ()
        beside: LayerType = "experts" if routing and i >= dense and (i + 1) % every == 0 else "mlp"
        return LayerKind(
            mixers=mixers, beside=None if not feeding else beside if fed else _ALONE.get(own),
            local=window == "local" and "attention" in mixers, chosen=chosen[i % len(chosen)] if "attention" in mixers else "",
            variants=tuple(here), block="uses" if own == "shared" else "none",
        )  # fmt: skip

    return tuple(map(kind, range(layers)))


@functools.lru_cache(maxsize=256)
def _shared_out(kinds: tuple[LayerKind, ...], blocks: int) -> tuple[LayerKind, ...]:
    """Layers of which the first uses of so many shared blocks have their weights; later ones take these in turn."""
    holders = [i for i, kind in enumerate(kinds) if kind.block == "uses"][:blocks]
    return tuple(kind._replace(block="holds") if i in holders else kind for i, kind in enumerate(kinds))


@functools.lru_cache(maxsize=256)
def _types(layers: int, *patterns: Any) -> frozenset[LayerType | None]:
    """Types of the parts that layers have."""
    return frozenset(part for kind in _kinds(layers, *patterns) for part in (*kind.mixers, kind.beside))


class ProgramSpec(WorkloadSpec):
    """A program in a file: operations, memory and the mesh of devices as an importer, or a person, wrote them."""

    divisible: ClassVar[bool] = False

    model: Literal["program"]
    title: str = ""
    file: str = Field(description="program of version 1, in JSON or compressed JSON; from the scenario's folder")

    @functools.cached_property
    def program(self) -> Program:
        """What the file holds; SpecError with every problem of it."""
        from crossflow.program.file import read_program

        return read_program(self.file)

    @property
    def in_tokens(self) -> bool:
        """Whether the program says how many tokens a sample has."""
        return bool(self.program.tokens)

    @property
    def dtype(self) -> str:
        """Data type of its products."""
        return self.program.dtype

    @property
    def global_batch(self) -> int:
        """Samples of its step."""
        return int(self.program.samples)
