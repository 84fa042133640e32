"""The `serving` section of a workload: how a service runs, and the models and devices that it has beside its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, Strict, model_validator

from crossflow.base.files import FileModel
from crossflow.base.limits import Dimension, Flag, NonNegativeFloat, PositiveInt
from crossflow.workload.fleet import AutoscaleSpec, EnginePoolSpec, FailuresSpec, PoolOfEngines, quantity_in
from crossflow.workload.shared_words import ProductType, listed

if TYPE_CHECKING:
    from crossflow.workload.spec import TransformerSpec

_ABOVE_ZERO = Field(gt=0.0, allow_inf_nan=False)
PerSecond = Annotated[float, Strict(), BeforeValidator(quantity_in("1/s", "2.5 1/s")), _ABOVE_ZERO]
MaskTime = Annotated[float, Strict(), BeforeValidator(quantity_in("s", "40 us")), _ABOVE_ZERO]
HostBytes = Annotated[float, Strict(), BeforeValidator(quantity_in("B", "256 GiB")), _ABOVE_ZERO]
HostBandwidth = Annotated[float, Strict(), BeforeValidator(quantity_in("B/s", "50 GB/s")), _ABOVE_ZERO]


Probability = Annotated[NonNegativeFloat, Field(le=1.0)]


class BesideSpec(FileModel):
    """A model that runs beside another one in a service, on the same devices."""

    model: str = Field(description="name of a model, or path of its file, as of a workload")
    _described: Any = PrivateAttr(None)  # the workload that the name stands for, found where a scenario is read

    def found(self, described: TransformerSpec) -> None:
        """Remember what the name stands for."""
        self._described = described

    @property
    def described(self) -> TransformerSpec:
        """The workload that the name stands for."""
        assert self._described is not None  # who reads a scenario has looked
        return self._described  # type: ignore[no-any-return]


class DraftSpec(BesideSpec):
    """A small model that guesses tokens, on the devices of the model that it guesses for."""

    tp: Dimension | None = Field(
        None, description="tensor-parallel devices of a replica that it runs on; as many as the model where absent"
    )
    dtype: ProductType | None = Field(
        None, description="type that its products compute in, and keep weights in; that of the model where absent"
    )


class EncodersSpec(FileModel):
    """Encoders of their own for the images of prompts (an encode pool), on devices beside those of `system`; in a replay."""

    strategy: str = Field("tp1", description="plan of one encoder, such as tp1")
    workers: PositiveInt = Field(description="how many there are")


class TowerSpec(FileModel):
    """A model of images as it stands beside a language model; a ``config.json`` of Hugging Face says all of it but the size of images."""

    size: Dimension = Field(description="pixels of a side of an image")
    patch: Dimension = Field(description="pixels of a side of a patch")
    merge: Dimension = Field(1, description="patches of a side that become one token")
    layers: Dimension = Field(description="layers")
    hidden: Dimension = Field(description="elements of the vector of a patch")
    heads: Dimension = Field(description="attention heads")
    head_dim: Dimension | None = Field(None, description="elements of a head; hidden / heads where absent")
    ffn: Dimension = Field(description="inner width of the MLP")
    gated: Flag = Field(False, description="whether the MLP multiplies two branches")
    biases: Flag = Field(True, description="whether linear layers have biases")
    window: Dimension | None = Field(None, description="patches that a patch attends to in local layers; all of an image where absent")
    pattern: Annotated[tuple[Literal["local", "global"], ...], BeforeValidator(listed)] = Field(
        ("local",), min_length=1, description="of a `window`: kinds of successive layers, repeated to the last; global sees the whole image"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is not a multiple of heads = {self.heads}; give others, or head_dim")
        if self.window is None and "local" in self.pattern and "pattern" in self.model_fields_set:
            raise ValueError("pattern: local layers need a window, such as window: 64")
        return self

    @property
    def tokens(self) -> int:
        """Tokens that an image becomes. [1]"""
        return (self.size // (self.patch * self.merge)) ** 2

    @property
    def workload(self) -> dict[str, Any]:
        """Keys of a workload that is this model, of an image whose sides are cut to whole tokens."""
        side = self.patch * self.merge
        return {
            "model": "transformer", "layers": self.layers, "hidden": self.hidden, "heads": self.heads, "head_dim": self.head_dim,
            "ffn": self.ffn, "gated": self.gated, "biases": self.biases, "norm": "layernorm", "positions": "learned", "causal": False,
            "head": "none", "image": {"size": self.size // side * side, "patch": self.patch, "class_token": False},
            "window": None if self.window is None else {"size": self.window, "pattern": self.pattern},
        }  # fmt: skip


class ImagesSpec(BesideSpec):
    """Images in the prompts of a service, which a model of images turns into tokens before they are read."""

    model: str | None = Field(  # type: ignore[assignment] # another model has a name
        None, description="name of a model of images, or path of its file, as of a workload; `tower` where absent"
    )
    tower: TowerSpec | None = Field(
        None, description="model of images in the place of a name; of a workload whose model is a config.json, `size` alone will do"
    )
    count: Annotated[float, Strict(), _ABOVE_ZERO] = Field(1.0, description="mean number of images in a prompt")
    tokens: Dimension | None = Field(
        None, description="tokens of the prompt that one image becomes, which `prompt` counts; those of `tower` where absent"
    )
    tp: Dimension | None = Field(
        None,
        description="tensor-parallel devices that work on one image together, the others of a replica on images of their own; all of "
        "them where absent",
    )
    dtype: ProductType = Field("bf16", description="type that products of the model of images compute in, and keep weights in")
    encode: EncodersSpec | None = Field(
        None, description="encoders of their own, in a replay; devices that read prompts encode their images where absent"
    )

    @property
    def each(self) -> int:
        """Tokens of the prompt that one image becomes. [1]"""
        return self.tokens or (self.tower.tokens if self.tower is not None else 0)

    @model_validator(mode="after")
    def _described_once(self) -> Self:
        if (self.model is None) == (self.tower is None):
            raise ValueError("model: give the name of a model of images, such as vit-l, or what it is as tower, one of the two")
        if not self.each:
            told = "an image is smaller than what becomes one token" if self.tower else "a model says nothing of it; give it"
            raise ValueError(f"tokens: {told}")
        return self

    @model_validator(mode="after")
    def _divided_once(self) -> Self:
        if self.encode is not None and self.tp is not None:
            raise ValueError("tp: the strategy of encode says how encoders divide the model of images; leave tp out")
        return self


class SpeculationSpec(FileModel):
    """Tokens that are guessed and checked together (speculative decoding)."""

    tokens: Annotated[Dimension, Field(le=64)] = Field(description="tokens that are guessed for a request in every step")
    acceptance: Probability | tuple[Probability, ...] = Field(
        description="probability that a guess is right where all before it are: one for all, or a list of one for each of the tokens"
    )
    cost: NonNegativeFloat = Field(0.0, description="time of one guess over that of a step, such as 1 / layers for one further layer")
    draft: DraftSpec | None = Field(
        None, description="a model of its own that guesses, with its steps, weights and cache; heads of the model itself where absent"
    )

    @model_validator(mode="after")
    def _each_with_its_own(self) -> Self:
        if isinstance(self.acceptance, tuple) and len(self.acceptance) != self.tokens:
            raise ValueError(f"acceptance: {len(self.acceptance)} probabilities for {self.tokens} tokens; give one for each, or a number")
        if self.draft is not None and self.cost:
            raise ValueError("cost: a draft model has steps of its own, which are priced; leave cost out")
        return self

    @property
    def positions(self) -> tuple[float, ...]:
        """Probability that each guess is right where all before it are."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.tokens


class GuidedSpec(FileModel):
    """Requests whose tokens follow a grammar or a schema: the host fills a mask of the tokens that may come next."""

    token: MaskTime = Field(description="time of the host for the mask of one token of one request, such as 40 us")
    share: Probability = Field(1.0, description="share of the requests that are guided, on average over steps")
    overlapped: Flag = Field(True, description="whether masks are filled beside the kernels of a step; else the step waits for them")


class PrefillSpec(FileModel):
    """Workers of their own that read prompts (disaggregated serving), on devices beside those of `system`."""

    strategy: str = Field(description="plan of one worker, such as tp4; each rank of dp8-ep8 reads prompts of its own")
    workers: PositiveInt = Field(description="how many there are")


class ExpertPoolSpec(FileModel):
    """Experts, and dense MLPs, on devices of their own beside those of `system`, which attend (attention-FFN disaggregation)."""

    strategy: str = Field(description="plan of all devices that hold the experts, such as dp8-ep8; tp divides each expert")
    micro_batches: PositiveInt = Field(
        2,
        le=64,
        description="micro-batches of a step: while experts work on one, attention works on another; 2 (1 + T_c / T_f) keep both sides "
        "busy, where T_c is the time of one way between them and T_f that of the slower side",
    )


class HostCacheSpec(FileModel):
    """A further tier of the cache, which keeps what a replica's devices, or the tier before it, give up: memory of the host, or a disk."""

    capacity: HostBytes = Field(description="of a replica, such as 256 GiB")
    bandwidth: HostBandwidth = Field(description="with which blocks come back to all devices of a replica, such as 50 GB/s")


class ServedAdaptersSpec(FileModel):
    """Low-rank adapters that requests of a service choose between; `adapters` of the workload says what one of them is."""

    count: Annotated[Dimension, Field(le=100_000)] = Field(description="how many there are")
    share: Annotated[Probability, Field(gt=0)] = Field(1.0, description="share of the requests that use one; others use none")
    skew: NonNegativeFloat = Field(
        0.0, description="exponent of Zipf's law by which requests choose: 0 of adapters that are all used alike, 1 where the second is "
        "used half as often as the first",
    )  # fmt: skip
    slots: Dimension | None = Field(
        None, description="adapters that the devices of a replica have room for at once (vLLM's max_loras); all of them where absent"
    )


class ServingSpec(FileModel):
    """How a service runs: what `task: serving` adds to `prompt`, `output` and `global_batch`, which is the number of requests in flight."""

    arrival_rate: PerSecond | None = Field(
        None, description="requests that arrive, over all replicas, such as 2.5 1/s; `global_batch` of them are in flight where absent"
    )
    chunk: Dimension | None = Field(None, description="tokens that a step computes at most; that of the software stack where absent")
    prefix_hits: NonNegativeFloat = Field(0.0, lt=1.0, description="share of a prompt's tokens that lie in the cache when it arrives")
    together: Flag = Field(
        False,
        description="whether the requests in flight all begin at once and are equally long, as those of benchmarks with fixed lengths: "
        "they are then read and end together for ever; requests of different lengths, or that begin at different times, mix",
    )
    speculation: SpeculationSpec | None = Field(None, description="speculative decoding")
    images: ImagesSpec | None = Field(None, description="images in prompts; prompts have words only where absent")
    router: Literal["round_robin", "least_loaded", "two_choices", "prefix", "length", "slices", "class"] = Field(
        "round_robin",
        description="which replica a request goes to in a replay (`crossflow serve`): one after the other; the one with fewest requests; "
        "of two drawn at random that one; the one that has most of its prompt, unless it is much fuller; by length of prompts; in a row, "
        "as a batch is cut among engines; by class",
    )
    host_cache: HostCacheSpec | tuple[HostCacheSpec, ...] | None = Field(
        None,
        description="where blocks of prompts stay in a replay that the cache has no room for: a tier, or a list of tiers, each of which "
        "keeps what the one before gives up, such as the host's memory and then a disk; they are lost where absent",
    )
    preemption_mode: Literal["recompute", "swap"] = Field(
        "recompute",
        description="what becomes in a replay of the keys and values of a request that loses its room in the cache: they are computed "
        "anew, or copied to the host and back, for which steps wait (vLLM's --preemption-mode)",
    )
    swap_space: HostBytes | None = Field(
        None,
        description="host memory of a device that `preemption_mode: swap` may fill, such as 4 GiB; what has no room there is computed "
        "anew; without an end where absent",
    )
    cache_tokens: Dimension | None = Field(
        None,
        description="tokens that the cache of a replica holds in a replay (`crossflow serve`), as the log of an engine says; what there "
        "is room for where absent",
    )
    adapters: ServedAdaptersSpec | None = Field(
        None, description="adapters that requests choose between; those of the workload are merged into the weights where absent"
    )
    likeliest: Flag = Field(
        False,
        description="whether requests draw among their likeliest tokens alone (top-k, or top-p below 1), as the generation_config.json of "
        "many models asks for; else among all, or take the likeliest",
    )
    guided: GuidedSpec | None = Field(None, description="guided decoding; no request is guided where absent")
    prefill: PrefillSpec | None = Field(
        None, description="workers of their own for prompts; without them, steps that write read prompts too"
    )
    experts: ExpertPoolSpec | None = Field(
        None, description="devices of their own for the experts, also with `task: decode`; attention's devices hold them where absent"
    )
    pools: Mapping[PoolOfEngines, EnginePoolSpec] = Field(
        {}, description="further engines by name, in a replay: each pool with a plan of its own, on the devices of `system.pools.NAME`"
    )

    failures: FailuresSpec | None = Field(None, description="engines that fail and come back, in a replay; none does where absent")
    autoscale: AutoscaleSpec | None = Field(
        None, description="replicas that start and stop with the load, in a replay; all run all the time where absent"
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.swap_space is not None and self.preemption_mode != "swap":
            raise ValueError("swap_space: only preemption_mode: swap uses it; give that, or leave it out")
        if "prefill" in self.pools:
            raise ValueError("pools: prefill is the pool of workers for prompts (serving.prefill); give these engines another name")
        if "encode" in self.pools and self.images is not None and self.images.encode is not None:
            raise ValueError("pools: encode is the pool of the encoders of serving.images; give these engines another name")
        if "experts" in self.pools and self.experts is not None:
            raise ValueError("pools: experts is the pool of the devices of serving.experts; give these engines another name")
        return self

    def __hash__(self) -> int:
        """A hash that leaves out the mapping, in which few services differ."""
        return hash(tuple(value for name, value in vars(self).items() if name != "pools"))

    @property
    def tiers(self) -> tuple[HostCacheSpec, ...]:
        """Further tiers of the cache, the nearest first."""
        held = self.host_cache
        return () if held is None else (held,) if isinstance(held, HostCacheSpec) else held
