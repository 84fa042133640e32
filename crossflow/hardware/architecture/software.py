"""Software stacks: what a training or serving framework fuses, overlaps and keeps, as files like any other.

A stack says what its code does (which attention, which fusions, what runs beside what, in which precision gradients are
kept) and what its host side costs. It never says how long a model takes: that follows from the kernels and their order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from crossflow.base import files
from crossflow.base.files import Document, FileModel, NamedFileModel
from crossflow.base.formats import HALF
from crossflow.base.limits import Flag, Whole
from crossflow.base.units import Information, PositiveShare, Ratio, Share, Time
from crossflow.hardware.architecture.execution import (
    AttentionLibraryName,
    ExchangeLibraryName,
    ExpertLibraryName,
    ProductLibraryName,
    WideningLibraryName,
)
from crossflow.hardware.technology.components import TypeName

Module = Literal["norm", "activation", "latent", "product", "attention", "output", "mlp", "experts"]
RowPass = Literal["sorted", "padded"]
Captured = Literal["attention", "mlp", "experts", "ssm"]
QueueOrder = Literal["arrival", "priority", "prefix", "output"]
Turn = Literal["stages", "speculation", "draft", "guided"]
Fusion = Literal["softmax", "activation", "limit", "residual", "norm", "rotary", "loss", "optimizer", "accumulation", "scaling"]


class AttentionKernel(FileModel):
    """How scores, softmax and values are computed."""

    kernel: Literal["unfused", "flash"] = Field(description="flash: tile by tile on chip; unfused: scores go through memory")
    forward_utilisation: Share = Field(description="flash: share of the sustained matrix rate that a long forward kernel reaches")
    backward_utilisation: Share = Field(description="the same of the backward kernel")
    native: Flag = Field(
        default=True,
        description="written for the matrix instructions of the newest devices; if not, it reaches their `earlier_instructions`",
    )
    repeated: Flag = Field(
        default=False, description="keys and values are copied for every head of queries before attention, where several share them"
    )


class Ring(FileModel):
    """How context ranks bring each other keys and values, and put together what they find."""

    gathered: Flag = Field(
        default=False,
        description="one message brings a rank the keys and values of all others, in each pass; gradients go from rank to rank in any case",
    )
    merges: Literal["fused", "eager"] = Field(
        default="fused",
        description="fused: a kernel adds a step's results, and gradients, to those before it; eager: PyTorch's kernels, one an operation, "
        "add them up in fp32, in which gradients of keys and values also travel",
    )


class Overlap(FileModel):
    """What runs beside computing, each on a stream of its own."""

    tensor: Literal["none", "backward", "pipelined", "compiled"] = Field(
        default="none",
        description="backward: collectives of input gradients run beside the weight gradient's product; pipelined: with sequence "
        "parallelism gathers and scatters also go in pieces, a rank's at a time, beside the products that take or make them; compiled: "
        "pieces alone, where products take what is gathered, or a single one makes what is scattered, and nothing beside a weight gradient "
        "(PyTorch's asynchronous tensor parallelism)",
    )
    data: Flag = Field(
        default=False, description="gradients are reduced in buckets while the last backward pass runs, with zero 2 while each does"
    )
    gather: Flag = Field(
        default=False,
        description="weights of the next layer are gathered and gradients of the last one reduced while this one computes (FSDP prefetch)",
    )
    pipeline: Flag = Field(default=False, description="activations travel between stages while the next microbatch computes")
    context: Flag = Field(
        default=False,
        description="keys and values of the next step of ring attention travel while this step computes; needs attention.kernel: flash, "
        "for unfused attention gathers all keys and values first",
    )
    optimizer: Flag = Field(default=False, description="updated weights are gathered while the next forward pass runs")
    experts: Flag = Field(
        default=False,
        description="tokens travel to experts and back while another microbatch computes: the exchange of a forward pass beside the "
        "backward pass of an earlier microbatch, and the other way round (Megatron-Core's overlap_moe_expert_parallel_comm, DualPipe); a "
        "service does each step in two halves, the exchange of one beside the kernels of the other (SGLang's enable-two-batch-overlap)",
    )
    exchange_units: Share = Field(
        default=np.array([0.0]),
        description="share of a device's units that such an exchange takes from the kernels beside it; in a service where it is 0 those "
        "that the library of the exchange copies with, none while tokens are written",
    )


class AttentionChoice(FileModel):
    """Libraries of fused attention, in order of preference: the first of the device's family that serves a kernel.

    They write new keys and values to the cache in its type, and read all keys and values there. Those that products make out of latents
    for a prompt never lie in the cache (`expanded`).
    """

    prefill: tuple[AttentionLibraryName, ...] = Field(default=(), description="for many queries a sample, forward")
    decode: tuple[AttentionLibraryName, ...] = Field(default=(), description="for one query a sample")
    latent: tuple[AttentionLibraryName, ...] = Field(default=(), description="the same where all heads attend to latents in the cache")
    expanded: Literal["products", "cache"] = Field(
        default="products",
        description="the type in which a prompt attends to keys and values of all heads that were made out of latents: that of the products"
        " which made them, or that of the cache, to which they are cast",
    )


class KernelChoice(FileModel):
    """Which kernel libraries a stack calls, in order of preference: the first that the family of a device has.

    What no named library covers is priced as for a stack that names none.
    """

    launch: Literal["eager", "graph"] = Field(
        default="eager", description="eager: the host launches each kernel; graph: a captured graph launches them, see `graph_launch`"
    )
    products: Mapping[TypeName, tuple[ProductLibraryName, ...]] = Field(
        default={}, description="libraries of matrix products, by the data type in which they multiply"
    )
    attention: AttentionChoice = Field(default=AttentionChoice(), description="libraries of fused attention in serving")
    widening: Mapping[TypeName, tuple[WideningLibraryName, ...]] = Field(
        default={},
        description="libraries of products that widen weights as they read them, by the type of the weights; products as usual, which widen"
        " beside, for types without any",
    )
    experts: Mapping[str, tuple[ExpertLibraryName, ...]] = Field(
        default={}, description="libraries of fused layers of experts, by the data type in which they multiply"
    )
    exchange: tuple[ExchangeLibraryName, ...] = Field(
        default=(), description="libraries that send tokens to the ranks of their experts and back, in a service; all_to_all without any"
    )
    gathers: Literal["never", "node", "always"] = Field(
        default="never",
        description="when a service gathers all tokens on every rank that shares experts out, whose kernels skip what lies elsewhere and"
        " whose results are then added up and scattered, rather than exchange them: where these ranks share a node, or always",
    )
    exchanged: Mapping[str, tuple[ExpertLibraryName, ...]] = Field(
        default={},
        description="libraries of fused layers of experts after an exchange, which brings a rank the rows of its own experts alone;"
        " `experts` for types without any",
    )

    def experts_of(self, dtype: str, *, exchanged: bool) -> tuple[ExpertLibraryName, ...]:
        """Libraries of fused layers of experts in a type, in order of preference, after an exchange or where all tokens are gathered."""
        return (self.exchanged.get(dtype, ()) if exchanged else ()) or self.experts.get(dtype, ())


class PeerAllReduce(FileModel):
    """Kernels of a serving engine for all-reduces inside a node, in which each rank reads the buffers of the others."""

    limit: Information = Field(description="longest message that they take, where they are faster than the collective library")
    start: Time = Field(default=np.array([0.0]), description="time of such a kernel beside what the fabric needs")
    direct: tuple[str, ...] = Field(
        default=(),
        description="generations of devices that it runs them on over direct links between all devices of a node, too; where it runs "
        "them on any, it does so on devices without a generation, such as generated ones",
    )


class WeightSharing(FileModel):
    """How ranks that hold the same weights send them and their gradients."""

    unit: Literal["matrix", "part", "layer"] = Field(
        default="part",
        description="sharded weights that are gathered, and reduced, at once: those of a layer, those of attention or of an MLP, or each "
        "matrix by itself, embedding and head no longer than they are used, as a compiler of whole steps does (its messages are as those "
        "of a part)",
    )
    copies: Flag = Field(
        default=False,
        description="gathered weights are copied out of the buffer of their message, and gradients into the one that is reduced, for each "
        "matrix has memory of its own",
    )
    bucket: Information | None = Field(
        default=None, description="gradients that replicas reduce in one message, at least; without it, those of attention or of an MLP"
    )
    first_bucket: Information | None = Field(default=None, description="the same of the first message, `bucket` where absent")

    @model_validator(mode="after")
    def _buckets(self) -> WeightSharing:
        if self.first_bucket is not None and self.bucket is None:
            raise ValueError("first_bucket is the first of several; give bucket too, or leave it out")
        return self


class HostCosts(FileModel):
    """What the host needs to keep a device busy."""

    kernel: Time = Field(description="time to issue one kernel; the device waits where its kernels are shorter")
    rank: Time = Field(description="further time per collective of a tensor group and rank in it: lists of tensors, a piece a rank")
    layer: Time = Field(description="further time per layer and pass: module hooks, autograd, checkpointing")
    stall: Time = Field(description="time per recomputed layer in which the device waits: saving and restoring random states")
    microbatch: Time = Field(description="time per microbatch and stage that no kernel fills: data loading, schedule, synchronisation")
    step: Time = Field(description="time per step that no kernel fills: logging, loss scaling, schedules")
    schedule: Time = Field(
        default=np.array([0.0]),
        description="time in which a serving engine prepares a microbatch, and deals with what came of it: scheduler, inputs, sampled "
        "tokens; beside the step before where `engine.asynchronous`, else between two steps",
    )
    request: Time = Field(default=np.array([0.0]), description="further time of that for each request that the microbatch writes for")
    graph: Time = Field(default=np.array([1e-5]), description="time to launch the captured graph of a part of a layer, see `graphs`")
    reading: Time | None = Field(
        default=None,
        description="time to issue one kernel of a step that reads prompts, where captured graphs launch only steps that write; `kernel` "
        "where absent",
    )
    experts: Literal["kernels", "call"] = Field(
        default="kernels",
        description="what the host issues for a fused layer of experts. kernels: each of its kernels; call: one operator of compiled code, "
        "which launches them",
    )
    pieces: Flag = Field(
        default=False,
        description="whether steps that read prompts are captured too, a graph for each piece between two calls of attention, so that "
        "`kernel` holds for them. Not where tokens are guessed, on pipeline stages, on workers for prompts (`task: prefill`), where "
        "replicas share experts, and of models that select the tokens to which a query attends",
    )
    latent_pieces: Whole = Field(default=0, description="tokens of a step up to which `pieces` holds with latent attention")


class MemoryHabits(FileModel):
    """What a process holds beside the model's own tensors."""

    context: Information = Field(description="driver's share, context, libraries and communication buffers of one process")
    fragmentation: Ratio = Field(description="memory that the allocator holds over what is allocated, less one")
    library: Information = Field(
        default=np.array([64.0 * 2**20]), description="work space of matrix libraries, which the framework's allocator counts"
    )
    logit: Information = Field(
        default=np.array([6.0]),
        description="most that one logit takes while the loss is computed and differentiated, all its copies together",
    )
    workspaces: Ratio = Field(
        default=np.array([0.0]), description="tensors as large as a layer's whole input that collectives of a tensor group keep"
    )
    buckets: Flag = Field(default=False, description="a copy of all gradients, as large as the weights, from which data ranks reduce them")
    moments: Literal["fp32", "bf16"] = Field(default="fp32", description="precision of the optimizer's states")
    master: Flag = Field(
        default=True,
        description="weights that products read in 16 bits are kept in fp32 as well, which the optimizer updates; if not, it updates them "
        "in 16 bits",
    )
    remainders: Flag = Field(
        default=False,
        description="where products are in 16 bits, of the fp32 weights that the optimizer updates only the bits are kept that the weights "
        "lack (Megatron-Core's store_param_remainders)",
    )
    narrow_activation: Flag = Field(
        default=False,
        description="inputs of activations between narrow products are kept in the type of these (Megatron-Core's "
        "activation_func_fp8_input_store)",
    )
    fused_activation: Flag = Field(
        default=False,
        description="what an activation of a dense MLP gives the next product, where it is computed again, and its gradient are made "
        "inside the kernels of products and never lie in memory",
    )
    late_gradients: Flag = Field(
        default=False, description="gradients of a microbatch are summed when its backward pass has ended; until then all are there"
    )
    narrow_frozen: Flag = Field(
        default=False,
        description="weights that fine-tuning leaves as they are, and whose products are narrower than 16 bits, are kept in the copies of "
        "those products alone (Transformer Engine's fp8_model_init)",
    )
    narrow_weights: tuple[TypeName, ...] = Field(
        default=(),
        description="types of products in which weights that train are kept in the copies of those products alone, beside the optimizer's "
        "in fp32 (fp8_param_gather)",
    )
    transposed_weights: Flag = Field(
        default=True,
        description="copies of weights in fp8 with one scale a tensor are kept transposed as well, as backward passes read them; else they "
        "are transposed then, whose time is not counted (Megatron-Core's disable_parameter_transpose_cache). Other narrow types need both",
    )
    gathered_copy: Flag = Field(default=False, description="updated weights of a sharded optimizer are gathered into a copy")


class EngineHabits(FileModel):
    """What a serving engine does unless it is told otherwise."""

    chunk: Whole = Field(8192, gt=0, description="tokens that a step computes at most: those that it writes, and pieces of prompts")
    requests: Whole = Field(1024, gt=0, description="requests that a replica works on at most")
    memory: PositiveShare = Field(
        default=np.array([1.0]), description="share of the device's memory that weights, activations and the cache may take together"
    )
    cache: PositiveShare = Field(
        default=np.array([1.0]), description="share of what weights and activations leave of it that the cache takes"
    )
    counted: Information | None = Field(
        default=None,
        description="what an engine counts of the framework's own memory into that share, where the rest of it (`memory.context`) lies "
        "outside, as of vLLM; without it all of it is inside",
    )
    sampling: Information = Field(
        default=np.array([0.0]),
        description="what each logit takes while tokens are sampled, all its copies together, for as many requests as the engine takes at "
        "once (`requests`): room that an engine finds by trying, and keeps free",
    )
    selecting: Time = Field(
        default=np.array([0.0]),
        description="time of the device for each logit of a request that draws among its likeliest tokens (`serving.likeliest`): sorting "
        "all logits, or a search for the least of those that count",
    )
    balances: Flag = Field(
        default=False,
        description="experts lie on the ranks that share them out so that these are alike full (EPLB) rather than in their order; with "
        "`redundant_experts` they always do",
    )
    scheduler: Literal["vllm", "sglang", "tensorrt-llm"] = Field(
        default="vllm",
        description="order of work in a replay (`crossflow serve`). vllm: steps that write also read pieces of prompts. sglang: prompts "
        "are read first, in steps of their own. tensorrt-llm: steps that write also read prompts, whole ones",
    )
    chunked: Flag | None = Field(
        default=None,
        description="whether a prompt is read in pieces where it does not fit in a step, in a replay; as `scheduler` does where absent",
    )
    prefixes: Flag = Field(default=True, description="whether prompts that begin alike share blocks of the cache, in a replay")
    queue: QueueOrder = Field(
        default="arrival",
        description="order in which requests wait in a replay. arrival: the one that came first is next. priority: the one of the largest "
        "`priority` of its class is next, and one of the smallest gives its room up where the cache is full (the one with the fewest "
        "tokens with `scheduler: sglang`); nobody gives way to a request that arrives. prefix: before each step that reads, the one of "
        "whose prompt the cache has most is next, and those whose prefix another brings that waits are put off; as they are where more "
        "than 128 wait (SGLang's lpm). output: the one of the longest answer is next (SGLang's lof)",
    )
    asynchronous: Flag = Field(
        default=False,
        description="whether the host prepares a step while the one before runs (`host.schedule`, `host.request`), so that a step takes "
        "the longer of both. A request that comes meanwhile is then in the step after that one, and in a replay one that has ended is "
        "computed once more, and keeps its room until then",
    )
    synchronous_with: tuple[Turn, ...] = Field(
        default=(),
        description="what an asynchronous engine prepares one step after the other with. stages: pipeline stages; speculation: guessed "
        "tokens; draft: tokens that a draft model guesses; guided: masks of guided tokens (`serving.guided`)",
    )
    gathers: Flag = Field(
        default=False,
        description="whether replicas that share experts out, and so make every step together, wait with prompts until each has one to"
        " read, rather than read one beside the others' tokens (TensorRT-LLM's attention_dp_config.enable_balance); in steady state",
    )
    block: Whole = Field(16, gt=0, description="tokens of a page of the cache, in a replay")
    admits: Literal["written", "whole"] = Field(
        default="written",
        description="requests that a replica works on at once. written: as many as have room with what is written of them in the mean; one "
        "that finds none later is evicted. whole: as many as have room with all that will be written of them, so that none is evicted",
    )


def maker(vendor: str) -> str:
    """A maker of devices as people write it.

    >>> maker("aws"), maker("google")
    ('AWS', 'Google')
    """
    return vendor.upper() if vendor in ("nvidia", "amd", "aws") else vendor.capitalize()


UNSCHEDULED = "what the host of {} does between two steps was not measured"


class SoftwareStack(NamedFileModel):
    """A framework as a file."""

    kind: Literal["software"]
    name: str
    title: str = ""
    notes: str = ""
    sources: Mapping[str, str] = {}
    known_as: tuple[str, ...] = Field(default=(), description="what tables of measurements call it")
    vendors: tuple[str, ...] = Field(
        default=(), description="makers of devices that it runs on, as `vendor` of devices names them; empty for all. Others have a note"
    )
    trains: Flag = Field(default=True, description="whether it trains models; a serving engine does not, and is refused for training")
    attention: AttentionKernel
    fused: tuple[Fusion, ...] = Field(
        default=(),
        description="groups of pointwise operations that are one kernel; `limit`: the kernel of a gated activation also clamps its "
        "branches, where the model has a `gate_limit`",
    )
    fused_half: tuple[Fusion, ...] = Field(default=(), description="groups that are one kernel only where elements have 16 bits")
    weight: Literal["dtype", "fp32"] = Field(
        default="dtype",
        description="precision in which weights are kept and, where sharded, gathered; fp32 is autocast: each product casts its own",
    )
    gradient: Literal["weight", "fp32"] = Field(
        default="weight", description="precision in which gradients are summed over microbatches and reduced"
    )
    stages: Literal["even", "balanced"] = Field(
        default="even", description="layers of a stage: as many in each, or by their parameters, the head's among them"
    )
    residual: Literal["tokens", "elements"] = Field(
        default="tokens",
        description="what tensor ranks divide between attention and MLPs with `sequence_parallel`: the tokens (Megatron-LM), or the "
        "elements of each token (GSPMD), which need not divide the tokens",
    )
    dispatch: Literal["copies", "nodes"] = Field(
        default="copies",
        description="what travels to experts: every copy of a token, or one to each node, and inside it one to each rank, that has any "
        "of its experts (DeepEP, HybridEP)",
    )
    weighing: Literal["returned", "inside"] = Field(
        default="returned",
        description="where what experts give is weighed. returned: the rows that have come back, which are kept for the backward pass; "
        "inside: between the products of experts, so that rows are only summed on their way back, as DeepEP does, and not kept",
    )
    expert_products: Literal["one", "each", "fused"] = Field(
        default="one",
        description="kernels of the products of a rank's experts, and of the casts of their operands, in training: one for all; one for "
        "each expert (Transformer Engine's GroupedLinear), whose last bias further kernels add; fused: one for all that also does the "
        "activation and the casts of what it makes",
    )
    narrow_dispatch: Flag = Field(
        default=False,
        description="tokens, and in the backward pass gradients, travel to experts in the type of narrow products; they return in 16 bits",
    )
    token_counts: Literal["device", "host"] = Field(
        default="device",
        description="where the number of tokens of each expert is needed. host: in every forward pass of a layer with experts the host "
        "waits for it before it launches their kernels, and cannot run ahead of the device",
    )
    routed_rows: tuple[RowPass, ...] = Field(
        default=(),
        description="passes over rows of tokens on their way to experts and back, beside the permutation and its return: sorted (by "
        "expert, after an exchange of copies), padded (to the alignment of narrow products, and back)",
    )
    expert_biases: Literal["products", "rows"] = Field(
        default="products",
        description="how biases of experts are added in training. products: by the kernels of their products, or as `expert_products` "
        "says; rows: a row of them is gathered for every row of tokens, whose gradients are added up row by row",
    )
    permutation: PositiveShare = Field(
        default=np.array([1.0]),
        description="share of the rate of main memory that kernels reach that move such rows, or those of biases, one by one",
    )
    graphs: tuple[Captured, ...] = Field(
        default=(),
        description="layer types whose kernels a captured graph launches in training, one a part and pass (CUDA graphs of modules)",
    )
    product_slowdown: Ratio = Field(
        default=np.array([0.0]),
        description="further time of every matrix product inside a training step on an A100, as a share of the time that it takes alone "
        "and warm; other families multiply it by their `training_sensitivity`",
    )
    recomputed: tuple[Module, ...] = Field(
        default=(),
        description="modules whose outputs this software never keeps but always computes again, beside those that a strategy lists in "
        "`recompute_modules`: norm, activation (between the products of MLPs and experts), latent (queries, keys and values that are "
        "made of latents), product (every second product of attention and dense MLPs, as torchtitan's selective checkpoints), attention "
        "(fused attention, whose output is not kept), output (attention's last product, so that the input of what follows is not kept), "
        "mlp, experts (whole layers of them, with their exchange)",
    )
    joined: Flag = Field(
        default=True,
        description="one product makes queries, keys and values of a layer, and one both branches of a gated MLP; if not, each has its own",
    )
    scales: Literal["delayed", "current"] = Field(
        default="delayed",
        description="scales of whole tensors of narrow types in training. delayed: from the largest values of steps before; current: from "
        "the tensor's own, which a pass before the cast finds",
    )
    narrow_gathers: Flag = Field(
        default=False,
        description="what a tensor group with sequence parallelism gathers for products of a narrower type travels in that type, rows of "
        "experts aside",
    )
    early_stop: Flag = Field(default=False, description="full recomputation leaves out what only the next layer needed")
    gathered_inputs: Literal["again", "kept"] = Field(
        default="again",
        description="what a tensor group with sequence parallelism has gathered for a layer's products. again: each rank keeps its own "
        "part, and gathers once more for the gradients of weights; kept: all of it stays, or is made again with what is computed again",
    )
    kernels: KernelChoice = Field(default=KernelChoice(), description="kernel libraries that it calls, and how it launches kernels")
    engine: EngineHabits = Field(default=EngineHabits(), description="what a serving engine does unless a scenario says otherwise")
    overlap: Overlap = Overlap()
    peer_all_reduce: PeerAllReduce | None = Field(
        default=None, description="kernels in which each rank reads the buffers of the others; without them the collective library adds up"
    )
    sharing: WeightSharing = WeightSharing()
    ring: Ring = Ring()
    host: HostCosts
    memory: MemoryHabits

    @model_validator(mode="after")
    def _ring(self) -> SoftwareStack:
        if self.overlap.context and self.attention.kernel == "unfused":
            raise ValueError(
                "overlap.context: unfused attention waits for all keys and values; use attention.kernel: flash, or context: false"
            )
        if "attention" in self.recomputed and self.attention.kernel == "unfused":
            raise ValueError(
                "recomputed: attention is fused attention; of unfused attention a strategy says recompute: selective, or use "
                "attention.kernel: flash"
            )
        return self

    def runs_on(self, vendor: str) -> bool:
        """Whether it runs on devices of a maker, as far as that is known."""
        return not (vendor and self.vendors) or vendor in self.vendors

    @property
    def schedules(self) -> bool:
        """Whether what the host does between two steps of a service is known."""
        return bool(self.host.schedule.any() or self.host.request.any())

    @property
    def on_host(self) -> SoftwareStack:
        """The same software where its context and the work space of its libraries lie on the host."""
        nothing = np.zeros(1)
        return self.model_copy(update={"memory": self.memory.model_copy(update={"context": nothing, "library": nothing})})

    def fuses(self, what: Fusion, element: float) -> bool:
        """Whether a group of pointwise operations is one kernel where elements have so many bytes."""
        return what in self.fused or (element <= HALF and what in self.fused_half)

    def weight_size(self, element: float) -> float:
        """Size of a weight as it is kept and gathered, where kernels move elements of so many bytes. [B]"""
        return max(element, 4) if self.weight == "fp32" else element

    def gradient_size(self, element: float) -> float:
        """Size of a gradient as it is summed and reduced. [B]"""
        return max(element, 4) if self.gradient == "fp32" else self.weight_size(element)


def load_stack(named: str | Document, base: Path | None = None) -> tuple[SoftwareStack, Document]:
    """A stack by name or path, or one written out in a scenario, over the stack that its `like` names."""
    if isinstance(named, str):
        path = files.find("templates", named, base, "software")
        return _whole(str(path), files.read_text(path))
    document = named
    if isinstance(document.data, Mapping) and "like" in document.data:
        with document.telling("like"):
            path = files.find("templates", str(document.data["like"]), base, "software")
        _check_kind(below := files.read_yaml(path))
        document = files.merge(below, document.without("like"))
        _check_prepared(stack := _validated(document), below, document)
        return stack, document
    return _validated(document), document


def _check_prepared(stack: SoftwareStack, below: Document, document: Document) -> None:
    """SpecError for steps that are prepared one after the other in a time that nobody knows, which would look like a gain."""
    asked = files.held(below.data, ("engine", "asynchronous")) is True and not stack.engine.asynchronous
    if asked and not stack.schedules:
        raise document.error(
            ("engine", "asynchronous"),
            f"{UNSCHEDULED.format(stack.name)}, so that steps without it beside them would look "
            "faster; give that time too, such as host: {schedule: 1 ms} (software.host.schedule), or leave asynchronous out",
        )


@functools.lru_cache(maxsize=64)
def _whole(file: str, text: str) -> tuple[SoftwareStack, Document]:
    document = files.read_mapping(text, file)
    return _validated(document), document


def _validated(document: Document) -> SoftwareStack:
    if not isinstance(document.data, Mapping):
        raise document.error((), f"expected the name of a software stack or a mapping, got {document.data!r}")
    _check_kind(document)
    spec: Any = files.validate(SoftwareStack, document)
    stack: SoftwareStack = spec
    return stack


def _check_kind(document: Document) -> None:
    kind = document.data.get("kind")
    if kind != "software":
        known = "see `crossflow list templates`, and name the one to change with `like`"
        raise document.error(("kind",), f"expected a software stack (kind: software), got kind {kind!r}; {known}")
