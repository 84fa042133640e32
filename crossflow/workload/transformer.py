"""Transformers and their kin: decoders, encoders, mixtures of experts, state-space and hybrid models, as layers of weight matrices.

One description serves everything that is asked of a model: how many parameters it has, what one token costs, what a
device keeps of it. A layer is a list of parts; a part is what lies between two residual additions: its matrices in
program order, how tensor parallelism cuts each, and its attention or state space, if it has one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.program.kernels import masked_pairs
from crossflow.program.loads import fullest
from crossflow.workload.attended import OutputForm
from crossflow.workload.statespace import StateSpace

# column: the outputs are divided among the ranks of a tensor group; row: the inputs, the sums are then reduced;
# none: every rank has the whole matrix.
Cut = Literal["column", "row", "none"]
# tokens: every token that its layer sees passes the matrix; sample: one of each sample (poolers, classifiers);
# memory: those of the encoder (keys and values of cross-attention), or of a text; picture: all but those of the text, where both are one
# sequence.
Over = Literal["tokens", "sample", "memory", "picture"]
# The layer types that strategies, frozen sets and reports address.
LayerType = Literal["embedding", "attention", "ssm", "mlp", "experts", "head"]
FEED_FORWARD = ("mlp", "experts")  # of them, those that pass each token by itself
# The devices that a part lies on where attention and experts have devices of their own: of one that lies on both, each has its side.
Side = Literal["whole", "attention", "experts"]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight matrix W[k, n] that multiplies token vectors."""

    name: str  # what it is
    k: int  # inputs. [1]
    n: int  # outputs. [1]
    cut: Cut = "none"  # how tensor parallelism divides it
    bias: bool = False  # whether it adds a bias
    experts: int = 1  # how many there are of it, one an expert; a token passes only some (1 for a matrix that every token passes)
    over: Over = "tokens"  # which tokens of a sample pass it
    shared: bool = False  # whether another part on the same device holds its weights
    # kv_heads, kv_head: of the outputs of a matrix cut by columns, heads of keys and values, of `kv_head` elements each: no rank has a part
    # of one, so that ranks repeat them where there are more ranks than heads. [1]
    kv_heads: int = 0
    kv_head: int = 0
    # whether each output has k weights of its own, as in a convolution over k tokens: W[k, n] counts, but there is no product
    depthwise: bool = False
    # elements of a token that the product takes, where they are neither those of the part's norm nor k: groups of outputs that take k each
    # of their own, or several streams. [1]
    inputs: int = 0
    adapted: bool = False  # whether a low-rank adapter works beside it
    adapters: int = 0  # adapters of which it has one factor each, side by side, 0 for a matrix that is no adapter's. [1]

    @functools.cached_property
    def routed(self) -> bool:
        """Whether it is one of an expert, which a token may not pass."""
        return bool(np.any(self.experts > 1))

    @property
    def parameters(self) -> int:
        """Parameters of all copies; none of a shared matrix."""
        return 0 if self.shared else self.experts * (self.k * self.n + (self.n if self.bias else 0))

    def columns(self, ranks: Array) -> Array:
        """Outputs of one of `ranks` ranks that share the matrix. [1]"""
        if self.cut != "column":
            return np.asarray(self.n, dtype=float)
        divided = (self.n - self.kv_heads * self.kv_head) / ranks
        return np.asarray(divided + np.ceil(self.kv_heads / ranks) * self.kv_head)

    def share(self, ranks: Array) -> Array:
        """Share of its parameters that one of `ranks` ranks holds. [1]"""
        return 1.0 / ranks if self.cut == "row" else self.columns(ranks) / self.n


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What sparse attention leaves to a query of the tokens before it [1]_, Sec. 2.1.

    Entries stand for `ratio` tokens each, one where nothing is compressed. An indexer weighs the scores of a few narrow heads, which share
    a key, and chooses the best entries; without one, entries are those that a layer before has chosen, or all of them.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", 2025, arXiv:2512.02556 (DeepSeek Sparse
       Attention, Eq. 1 and 2).
    """

    chosen: int = 0  # entries that a query attends to at most, 0 for all. [1]
    ratio: int = 1  # tokens that an entry stands for. [1]
    window: int = 0  # last tokens that a query attends to beside them, one by one. [1]
    heads: int = 0  # heads of the indexer, 0 without one. [1]
    width: int = 0  # elements of one of its queries, and of its key. [1]
    weighed: bool = True  # whether a number of each token weighs the scores of each head (those of MiniMax-M3 choose each by itself)

    @property
    def indexed(self) -> bool:
        """Whether an indexer of its own chooses."""
        return bool(np.any(self.heads))

    def pairs(self, tokens: Array | float) -> Array:
        """Pairs of query and key or entry that are left among the first tokens of a sample. [1]"""
        near = masked_pairs(tokens, self.window, False) * np.greater(self.window, 0)
        return np.asarray(masked_pairs(tokens, self.chosen * self.ratio, False) / self.ratio + near)

    def indexing(self, tokens: Array | float, before: Array | float) -> Array:
        """Operations of the indexer's scores, of so many tokens that have so many before them. [flop]"""
        return np.asarray(2.0 * tokens * before / self.ratio * self.heads * (self.width + float(self.weighed)))


@dataclass(frozen=True, kw_only=True)
class AttentionGeometry:
    """Geometry of attention: heads, width of queries and keys, width of values, and what a token leaves in the cache."""

    heads: int  # query heads
    kv_heads: int  # heads of keys and values (fewer in grouped-query attention)
    query: int  # elements of one head's query or key. [1]
    value: int  # of the value that it attends to. [1]
    cached: int  # elements that one token keeps for later ones, all heads together. [1]
    latent: int = 0  # of them, those from which keys and values of all heads are made (latent attention), 0 where heads have their own. [1]
    causal: bool = True  # whether a token sees only those before it
    cross: bool = False  # whether keys and values come from the encoder
    rotary: bool = False  # whether queries and keys are rotated by their positions
    window: int = 0  # tokens that a token sees at most, itself included; 0 for all before it. [1]
    # whether the window is a fixed block of the sample (chunked attention) rather than the last tokens (sliding window)
    chunked: bool = False
    form: OutputForm | None = None  # what becomes of the outputs of heads before the last product takes them
    selection: Selection | None = None  # what a query attends to of the tokens that it may see; all of them where absent

    @property
    def makes(self) -> bool:
        """Whether it makes keys and values, rather than attend to those of another layer."""
        return bool(np.any(self.cached))

    @property
    def together(self) -> int:
        """Heads that work together, and are divided over no ranks. [1]"""
        return 1 if self.form is None else self.form.together

    @property
    def pair(self) -> float:
        """Elements of one head's key and of its share of a value. [1]"""
        return self.query + self.value / self.together

    def kv_heads_on(self, ranks: Array) -> Array:
        """Heads of keys and values on one of `ranks` ranks: whole ones, which ranks repeat where there are fewer heads than ranks. [1]"""
        return np.ceil(self.kv_heads / self.together / ranks) * self.together

    def flops(self, tokens: Array | float, seen: Array | float) -> Array | float:
        """Operations of scores and of sums of values, where each of so many tokens sees so many. [flop]"""
        return 2.0 * tokens * seen * self.heads * (self.query + self.value)

    def seen(self, first: Array | float, last: Array | float) -> Array:
        """Mean number of keys that the mask leaves to the queries between two positions of a sample. [1]

        Positions are continuous, so that a causal mask leaves half of the keys (Dao et al. 2022); the exact sum has half a key more.
        A sliding window w leaves min(i, w) keys at position i, chunks of w leave i mod w; without a mask half of it lies on either side.
        """
        if not self.causal:
            half = np.minimum(self.window / 2.0, last) if self.windowed else last
            return np.asarray(2.0 * half - half * half / last if self.windowed else last, dtype=float)
        if self.selection is not None:
            return (self.selection.pairs(last) - self.selection.pairs(first)) / (np.asarray(last) - first)
        beyond, before = (masked_pairs(at, self.window, self.chunked) for at in (last, first))
        return (beyond - before) / (np.asarray(last) - first)

    @property
    def whole(self) -> AttentionGeometry:
        """The same where a query attends to all tokens that it may see."""
        return self if self.selection is None else replace(self, selection=None)

    def held(self, tokens: Array | float) -> Array:
        """Elements that a request keeps of so many tokens, all heads together, and keys of an indexer. [1]"""
        if self.selection is None:
            return np.asarray(np.minimum(tokens, self.reach) * self.cached)
        entries, near = np.asarray(tokens) / self.selection.ratio, np.minimum(tokens, self.selection.window)
        return np.asarray((entries + near) * self.cached + entries * self.selection.width * self.selection.indexed)

    @property
    def shares_latent(self) -> bool:
        """Whether keys and values of all heads are made from a latent, which the cache keeps."""
        return bool(np.any(self.latent))

    @property
    def reach(self) -> float:
        """Tokens that a token sees at most, infinite without a window. [1]"""
        return self.window if self.windowed else np.inf

    @property
    def windowed(self) -> bool:
        """Whether there is a window."""
        return bool(np.any(self.window))


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a mixture of experts routes: a token goes to `active` of `experts`, each at most `capacity` times its even share.

    `capacity` is None where no token is dropped. `uneven` is how many rows the fullest of the ranks that share experts out has, over
    the mean; a layer waits for it. With a `skew` a power law of that exponent deals the rows out instead, with a `variation` a lognormal
    distribution of that standard deviation over its mean (`crossflow.program.loads`).
    """

    experts: int
    active: int
    capacity: float | None = None
    uneven: float = 1.0
    skew: float = 0.0
    variation: float = 0.0
    groups: int = 1  # of experts in their order, from `active_groups` of which all experts of a token are
    active_groups: int = 1
    redundant: Array | float = 0.0  # copies of experts that ranks hold beside one of each. [1]
    placed: bool = False  # whether experts are placed by how full they are, as those with copies always are
    level: bool = False  # whether ranks count as used alike, whatever the places of experts and their copies
    fed: Array | float = 1.0  # of the ranks that share the experts out, the share that has tokens; the others only compute for those. [1]

    @property
    def slots(self) -> Array:
        """Places for experts and their copies on all ranks. [1]"""
        return np.asarray(self.experts + self.redundant, dtype=float)

    @property
    def balanced_slots(self) -> Array:
        """Those that a balancer fills, none where experts lie in their order. [1]"""
        return np.where(self.placed | (np.asarray(self.redundant) > 0), self.slots, 0.0)

    @property
    def kept(self) -> float:
        """Rows that experts compute over those that are sent to them; a capacity is filled up. [1]"""
        return 1.0 if self.capacity is None else self.capacity

    def rows(self, ranks: Array) -> Array:
        """Rows that the experts of the fullest of `ranks` ranks compute, over the tokens of one that has any. [1]"""
        return self.active * self.fed * self.kept * self.load(ranks)

    def reached(self, groups: Array) -> Array:
        """Of so many groups of ranks that share the experts out, those that have any of a token's, in the mean. [1]"""
        if np.any(np.less(self.active_groups, self.groups)):
            given = np.broadcast_arrays(self.slots, self.active, self.groups, self.active_groups, groups)
            distinct, which = np.unique(np.stack(given).reshape(len(given), -1), axis=1, return_inverse=True)
            chance = np.array([_chance(*map(float, column)) for column in distinct.T])
            return np.asarray(groups * chance[which.ravel()].reshape(given[0].shape))
        own, none = self.slots / groups, np.ones_like(groups * self.slots)
        for i in range(int(np.max(self.active))):  # the experts of a token are different ones
            none = none * np.where(i < self.active, np.maximum(self.slots - own - i, 0.0) / np.maximum(self.slots - i, 1), 1.0)
        return groups * (1.0 - none)

    def load(self, ranks: Array) -> Array:
        """Rows of the fullest of `ranks` ranks over the mean: at most all tokens, each with as many of its experts as lie there. [1]"""
        most = np.minimum(ranks, self.slots / self.active)
        if self.level or not (np.any(self.skew) or np.any(self.variation) or np.any(self.redundant)):
            return np.minimum(1.0 if self.level else self.uneven, most)
        found = fullest(self.active, self.experts, ranks, self.skew, self.balanced_slots, self.variation)
        return np.minimum(np.maximum(found, self.uneven), most)

    @property
    def balanced(self) -> bool:
        """Whether all ranks are used alike."""
        return bool(np.all(self.uneven == 1) and not np.any(self.skew) and not np.any(self.variation))

    @property
    def even(self) -> Routing:
        """The same where all ranks are used alike."""
        return replace(self, uneven=1.0, skew=0.0, variation=0.0, level=True)


def _chance(experts: float, active: float, groups: float, active_groups: float, ranks: float) -> float:
    """Probability that one of so many groups of ranks has any of a token's experts, which are in some `groups` of experts alone. [1]

    A group of ranks holds whole groups of experts, or a part of one; where neither is so, the choice of groups counts for nothing.
    """
    if groups % ranks and ranks % groups:
        groups = active_groups = 1
    held = int(max(groups // ranks, 1))
    own, pool = experts / (ranks * held), active_groups * experts / groups
    many, chosen = int(groups), int(active_groups)
    found = 0.0
    for some in range(1, min(held, chosen) + 1):
        none = math.prod(max(pool - some * own - i, 0.0) / (pool - i) for i in range(int(active)))
        found += math.comb(held, some) * math.comb(many - held, chosen - some) / math.comb(many, chosen) * (1.0 - none)
    return found


@dataclass(frozen=True, kw_only=True)
class Part:
    """What lies between two residual additions."""

    type: LayerType  # layer type
    width: int  # elements of a token's vector that enter and leave. [1]
    matrices: tuple[Matrix, ...] = ()  # weights in program order
    table: int = 0  # parameters of a lookup table, whose rows tensor parallelism divides. [1]
    # which devices hold the table: ``all`` with the part; those ``apart`` from the stage of the model's embedding, as a copy of its table;
    # ``none``, because another part on the same device holds it
    holder: Literal["all", "apart", "none"] = "all"
    further: int = 0  # elements that an embedding gives of a token beside its vector, for the layers. [1]
    vectors: int = 0  # parameters of norms and other vectors, which every rank has whole. [1]
    inner: int = 0  # elements a token has between the matrices of an MLP (of one expert). [1]
    gated: bool = False  # whether the MLP multiplies two branches (SwiGLU and kin)
    limited: bool = False  # whether both branches are clamped before that
    latent: int = 0  # elements that routed experts take of a token and give back, 0 for all of its vector. [1]
    # attention, ssm, routing: for parts that attend, keep a state, or route
    attention: AttentionGeometry | None = None
    ssm: StateSpace | None = None
    routing: Routing | None = None
    sources: float = 0.0  # vectors of earlier layers of which a sum is its input, beside its residual; 0 for a plain residual. [1]
    wide: bool = False  # whether its products stay in 16 bits where a job computes, or keeps its weights, in a narrower type
    stored: str = ""  # type in which a service keeps its weights, "" for that of the job
    streams: int = 0  # vectors that a token has between layers, which hyper-connections mix, 0 for a plain residual. [1]
    shifted: int = 0  # mixtures of a token with the one before it that its products take (RWKV). [1]
    adaptive: bool = False  # whether numbers of each sample shift and scale what its norm gives, and weigh what it adds
    side: Side = "whole"  # which side of the part it is, see `crossflow.workload.sides`

    @property
    def parameters(self) -> int:
        """Parameters, all experts counted; a copy of another part's table does not count."""
        table = self.table if self.holder == "all" else 0
        return sum(matrix.parameters for matrix in self.matrices) + table + self.vectors

    @property
    def adapters(self) -> int:
        """Parameters of its low-rank adapters. [1]"""
        return sum(matrix.parameters for matrix in self.matrices if np.any(matrix.adapters))

    @property
    def routed_width(self) -> int:
        """Elements of a row that travels to experts and back: those of a token, or of its latent. [1]"""
        return self.latent or self.width

    @property
    def shared(self) -> int:
        """Elements a token has between the matrices of the expert that all tokens pass, 0 where there is none. [1]"""
        return next((matrix.k for matrix in self.matrices if matrix.name == "shared_down"), 0)

    @property
    def active_parameters(self) -> float:
        """Parameters that one token passes."""
        idle = sum(matrix.parameters * (1.0 - self._share(matrix)) for matrix in self.matrices)
        return self.parameters - idle

    @property
    def even(self) -> Part:
        """The part with experts that all ranks use alike."""
        return self if self.routing is None else replace(self, routing=self.routing.even)

    def _share(self, matrix: Matrix) -> float:
        return self.routing.active / matrix.experts if self.routing and matrix.routed else 1.0


@dataclass(frozen=True, kw_only=True)
class Layer:
    """`count` layers alike, one after the other."""

    name: str  # for reports
    count: int
    tokens: int  # tokens of a sample that pass them
    parts: tuple[Part, ...]  # parts in program order
    # whether they are multi-token prediction layers (see `prediction_layers`). They run on the last stage, beside the head, and are not
    # among the layers that pipeline stages divide.
    predicts: bool = False
    encodes: bool = False  # whether they belong to the encoder of a model that has a decoder too

    @property
    def parameters(self) -> int:
        """Parameters of one of them."""
        return sum(part.parameters for part in self.parts)

    @property
    def carried(self) -> Array:
        """Elements of a token that it takes and gives: a vector, or several streams. [1]"""
        streams = functools.reduce(np.maximum, [part.streams for part in self.parts])
        return np.asarray(self.parts[-1].width * np.maximum(streams, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Transformer:
    """A whole model: embedding, layers in order, head."""

    name: str  # for reports
    # embedding, head: parts before the first and after the last layer; of a tied head only the use counts, its matrix is the embedding's
    embedding: Part
    layers: tuple[Layer, ...]  # groups of equal layers; those that predict further tokens come last
    head: Part
    tied: bool  # whether the head multiplies by the embedding's table
    vocabulary: int  # rows of the table, 0 for a model of images. [1]
    memory_tokens: int = 0  # tokens that cross-attention looks at, or of a text, 0 without an encoder and a text. [1]

    @functools.cached_property
    def adapted(self) -> bool:
        """Whether it has low-rank adapters, beside which nothing trains."""
        return any(matrix.adapted for part in self.parts for matrix in part.matrices)

    @functools.cached_property
    def main(self) -> tuple[Layer, ...]:
        """Groups of layers without those of multi-token prediction."""
        return tuple(layer for layer in self.layers if not layer.predicts)

    @functools.cached_property
    def _told_apart(self) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
        """Distinct layers, and which of them each group of layers consists of."""
        keys = [(id(layer.parts), np.asarray(layer.tokens).tobytes(), layer.predicts) for layer in self.layers]
        order = list(dict.fromkeys(keys))
        return tuple(self.layers[keys.index(key)] for key in order), tuple(map(order.index, keys))

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """One group of each kind of layers: those that share their parts and their number of tokens are one kind."""
        return self._told_apart[0]

    @property
    def kind_of(self) -> tuple[int, ...]:
        """Place among `kinds` of every group of layers."""
        return self._told_apart[1]

    @functools.cached_property
    def depth(self) -> int:
        """Layers of the main model."""
        return sum(layer.count for layer in self.main)

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the layers; one that several layers share is there once."""
        return tuple({id(part): part for layer in self.layers for part in layer.parts}.values())

    @functools.cached_property
    def heads(self) -> frozenset[int]:
        """Numbers of attention heads that layers have, of those that work together as one."""
        return frozenset(part.attention.heads // part.attention.together for part in self.parts if part.attention)

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """Different numbers of tokens that a sample has in its layers."""
        return tuple(dict.fromkeys(layer.tokens for layer in self.layers))

    @functools.cached_property
    def masked_lengths(self) -> tuple[int, ...]:
        """Those of layers with a causal mask."""
        masked = (layer for layer in self.layers if any(part.attention and part.attention.causal for part in layer.parts))
        return tuple(dict.fromkeys(layer.tokens for layer in masked))

    @functools.cached_property
    def ssm_heads(self) -> frozenset[int]:
        """Numbers of state-space heads that layers have; none without any."""
        return frozenset(part.ssm.heads for part in self.parts if part.ssm)

    @functools.cached_property
    def mlp_widths(self) -> frozenset[int]:
        """Inner elements of MLPs that all tokens pass, shared experts among them."""
        return frozenset(part.inner for part in self.parts if part.inner and not part.routing) | {part.shared for part in self.parts}

    @functools.cached_property
    def expert_widths(self) -> frozenset[int]:
        """Inner elements of routed experts; none without any."""
        return frozenset(part.inner for part in self.parts if part.routing)

    @functools.cached_property
    def experts(self) -> frozenset[int]:
        """Numbers of routed experts that layers have; none without any."""
        return frozenset(part.routing.experts for part in self.parts if part.routing)

    @property
    def carried(self) -> Array:
        """Elements of a token that one layer gives to the next. [1]"""
        return self.layers[-1].carried

    @property
    def tokens(self) -> int:
        """Tokens of one sample that the last layers see."""
        return self.layers[-1].tokens

    @functools.cached_property
    def parameters(self) -> int:
        """Parameters of the main model, as published counts are; a table that two parts share counts once."""
        own = self.embedding.parameters + self.head.parameters - (self._table if self.tied else 0)
        return own + sum(layer.count * layer.parameters for layer in self.main)

    @functools.cached_property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction layers, without the embedding and head that they share with the main model."""
        return sum(layer.count * layer.parameters for layer in self.layers if layer.predicts)

    @property
    def active_parameters(self) -> float:
        """Parameters of the main model that one token passes, the experts it is not sent to left out."""
        own = self.embedding.parameters + self.head.parameters - (self._table if self.tied else 0)
        return own + sum(layer.count * part.active_parameters for layer in self.main for part in layer.parts)

    @property
    def even(self) -> Transformer:
        """The model with experts that all ranks use alike, itself where they do."""
        return self if all(part.routing is None or part.routing.balanced for part in self.parts) else self.levelled

    @property
    def levelled(self) -> Transformer:
        """The model with experts that all ranks use alike, wherever a plan places them."""
        even = {id(layer.parts): tuple(part.even for part in layer.parts) for layer in self.layers}  # layers alike stay one kind
        return replace(self, layers=tuple(replace(layer, parts=even[id(layer.parts)]) for layer in self.layers))

    def meeting(self, ranks: Array | float) -> Transformer:
        """The model where one of so many ranks has tokens, and the others, which share its experts out, have none."""
        fewer = {
            id(layer.parts): tuple(
                part if part.routing is None
                else replace(part, routing=replace(part.routing, fed=1.0 / ranks))
                for part in layer.parts
            )
            for layer in self.layers
        }  # fmt: skip
        return replace(self, layers=tuple(replace(layer, parts=fewer[id(layer.parts)]) for layer in self.layers))

    @property
    def _table(self) -> int:
        return sum(matrix.k * matrix.n for matrix in self.head.matrices if matrix.name == "vocabulary")

    def forward_flops(self, tokens: int | None = None) -> Array | float:
        """Multiplications and additions of one sample's forward pass through the main model: all matrices, attention, states. [flop]

        Of scores those count that mask and window leave: half of them under a causal mask.
        """
        total = self.part_flops(self.embedding, self.layers[0].tokens if tokens is None else tokens)
        for layer in self.main:
            length = layer.tokens if tokens is None else tokens
            total = total + layer.count * sum(self.part_flops(part, length) for part in layer.parts)
        return total + self.part_flops(self.head, self.tokens if tokens is None else tokens)

    def part_flops(self, part: Part, tokens: int) -> Array | float:
        """Operations of one part on one sample of `tokens` tokens, forward. [flop]"""
        passing = {"tokens": tokens, "sample": 1, "memory": self.memory_tokens, "picture": tokens - self.memory_tokens}
        total: Array | float = 0.0
        for matrix in part.matrices:
            routed = part.routing.active * np.minimum(part.routing.kept, 1.0) if part.routing and matrix.routed else 1.0
            total = total + 2.0 * passing[matrix.over] * matrix.k * matrix.n * routed
        if part.attention:
            total = total + part.attention.flops(tokens, self.memory_tokens if part.attention.cross else part.attention.seen(0.0, tokens))
            if part.attention.selection is not None:
                total = total + part.attention.selection.indexing(tokens, part.attention.whole.seen(0.0, tokens))
        return total + (part.ssm.flops(tokens) if part.ssm else 0.0)


# -------------------------------------------------------------------------------------------- parts


@functools.lru_cache(maxsize=1024)
def self_attention(
    *,
    width: int,
    heads: int,
    kv_heads: int | None = None,
    head: int | None = None,
    causal: bool = True,
    cross: bool = False,
    rotary: bool = False,
    bias: bool = True,
    qkv_bias: bool | None = None,
    norm_vectors: int = 2,
    form: OutputForm | None = None,
    value: int | None = None,
    keys_as_values: bool = False,
    shared_cache: bool = False,
    query_rank: int | None = None,
    selection: Selection | None = None,
) -> Part:
    """Multi-head, grouped-query or multi-query attention: one product for queries, keys and values, one for the output.

    `norm_vectors` is the number of `width`-long vectors of its norm: 2 for layer norm, 1 for RMS norm. With a `form` queries come with the
    numbers that weigh outputs, and heads of keys may share values. A `value` of one head may be of other width than queries and keys.
    Where `keys_as_values`, one product gives both, which norms tell apart; with a `shared_cache` both are those of an earlier layer. With
    a `query_rank` queries pass a latent with a norm. A `selection` leaves a query some of the tokens.
    """
    kv, d = kv_heads or heads, head or width // heads
    v = value or d
    kept = 0 if shared_cache else d + (0 if keys_as_values else v)  # what a product gives of one head's key and value
    weighed, together = heads * _weighing(form, v), 1 if form is None else form.together
    queries = Matrix(name="query", k=width, n=heads * d, cut="column", bias=bias if qkv_bias is None else qkv_bias)
    both = replace(
        queries, name="query_key_value", n=heads * d + weighed + kv * kept, kv_heads=kv // together if kept else 0, kv_head=kept * together
    )
    keys = replace(both, name="key_value", n=kv * kept + weighed)
    first: tuple[Matrix, ...] = (queries, replace(keys, n=kv * kept, over="memory")) if cross else (both,)
    if query_rank:
        first = (Matrix(name="query_down", k=width, n=query_rank), replace(queries, name="query_up", k=query_rank), keys)
    return Part(
        type="attention",
        width=width,
        matrices=(*first, *indexer(selection, width, width), Matrix(name="output", k=heads * v, n=width, cut="row", bias=bias)),
        vectors=norm_vectors * width + (query_rank or 0) + _index_norm(selection) + (d * form.vectors if form else 0),
        attention=AttentionGeometry(
            heads=heads,
            kv_heads=kv,
            query=d,
            value=v * together,
            cached=0 if shared_cache else kv * (d + v),
            causal=causal,
            cross=cross,
            rotary=rotary,
            form=form,
            selection=selection,
        ),
    )


@functools.lru_cache(maxsize=1024)
def latent_attention(
    *, width: int, heads: int, query_rank: int | None, kv_rank: int, nope: int, rope: int, value: int, norm_vectors: int = 1,
    selection: Selection | None = None, rotary: bool = True, form: OutputForm | None = None,
) -> Part:  # fmt: skip
    """Multi-head latent attention of DeepSeek: queries, keys and values pass through low-rank latents; the cache keeps the latent.

    With a `form` a further product gives the numbers that weigh the output: as many as it has elements (Kimi K3), or heads (Ling 3.0).
    """
    weighed = heads * _weighing(form, value)
    queries = Matrix(name="query", k=width, n=heads * (nope + rope), cut="column")
    low = (Matrix(name="query_down", k=width, n=query_rank), replace(queries, name="query_up", k=query_rank)) if query_rank else (queries,)
    return Part(
        type="attention",
        width=width,
        matrices=(
            *low,
            Matrix(name="key_value_down", k=width, n=kv_rank + rope),
            Matrix(name="key_value_up", k=kv_rank, n=heads * (nope + value), cut="column"),
            *((Matrix(name="output_gate", k=width, n=weighed, cut="column"),) if weighed else ()),
            *indexer(selection, width, query_rank or width),
            Matrix(name="output", k=heads * value, n=width, cut="row"),
        ),
        vectors=norm_vectors * width + (query_rank or 0) + kv_rank + _index_norm(selection),
        attention=AttentionGeometry(
            heads=heads, kv_heads=heads, query=nope + rope, value=value, cached=kv_rank + rope, latent=kv_rank, rotary=rotary,
            form=form, selection=selection,
        ),
    )  # fmt: skip


def _weighing(form: OutputForm | None, value: int) -> int:
    """Numbers that weigh the output of a head with so many elements. [1]"""
    return 0 if form is None else {"none": 0, "head": 1, "element": value}[form.gates]


def indexer(selection: Selection | None, width: int, queries: int) -> tuple[Matrix, ...]:
    """Weights of the indexer of sparse attention: queries of its heads, made of `queries` elements, one key, and a weight for each head.

    Each rank of a tensor group has them whole, as in DeepSeek's inference code.
    """
    if selection is None or not selection.indexed:
        return ()
    return (
        Matrix(name="index_query", k=queries, n=selection.heads * selection.width),
        Matrix(name="index_key", k=width, n=selection.width),
        *((Matrix(name="index_weights", k=width, n=selection.heads),) if selection.weighed else ()),
    )


def _index_norm(selection: Selection | None) -> int:
    """Parameters of the layer norm of an indexer's keys, or of norms of queries and keys where heads are not weighed. [1]"""
    return 2 * selection.width if selection is not None and selection.indexed else 0


@functools.lru_cache(maxsize=1024)
def state_space(*, width: int, ssm: StateSpace, bias: bool = False, conv_bias: bool = True, norm_vectors: int = 1) -> Part:
    """A state-space mixer: projection in, short convolution, recurrence, norm, projection out (Dao and Gu 2024, Fig. 6).

    The first projection gives the gate z, x, B, C and the time steps (the delta rule makes its gates with a matrix of their own; kda its
    decays of a latent, and its gate too where that has one); of
    mamba1 it gives z and x, and a product with the convolved x gives B, C and a latent of the time steps. Heads are divided over a tensor
    group, and so are groups of heads, as far as there are as many (Megatron-Core, ssm/mamba_mixer.py).
    """
    inner, selected, first = ssm.heads * ssm.width, 2 * ssm.groups * ssm.state, ssm.kind in ("mamba1", "conv", "rglru")
    kv_heads, kv_head = (0, 0) if first else (ssm.groups, 2 * ssm.state)  # B and C of a group lie whole on each rank that needs them
    mixed = inner + kv_heads * kv_head
    convolution = Matrix(
        name="convolution", k=ssm.convolution, n=mixed, cut="column", bias=conv_bias, depthwise=True, kv_heads=kv_heads, kv_head=kv_head
    )
    inputs = (0 if ssm.gate_rank else inner) + mixed + {"mamba2": ssm.heads, "conv": inner}.get(ssm.kind, 0)
    return Part(
        type="ssm",
        width=width,
        matrices=(
            Matrix(name="input", k=width, n=inputs, cut="column", bias=bias, kv_heads=kv_heads, kv_head=kv_head),
            *_gates(width, ssm, inner),
            *((convolution,) if ssm.convolution else ()),
            *_recurrence(ssm, inner, selected),
            Matrix(name="output", k=inner, n=width, cut="row", bias=bias),
        ),
        vectors=norm_vectors * width + ssm.norm * (ssm.width if ssm.delta else ssm.step_rank + selected if ssm.kind == "mamba1" else 0),
        ssm=ssm,
    )


def _gates(width: int, ssm: StateSpace, inner: int) -> tuple[Matrix, ...]:
    """Products that make the gates of a delta rule or of mlstm, two numbers of each head; of kda decays of a latent, and steps."""
    if ssm.kind == "rglru":  # of each head's elements a decay and a gate
        return (Matrix(name="gates", k=ssm.width, n=2 * inner, cut="column", bias=True, inputs=inner),)
    if ssm.kind in ("gated_delta", "mlstm"):  # those of mlstm have biases
        return (Matrix(name="gates", k=width, n=2 * ssm.heads, cut="column", bias=ssm.kind == "mlstm"),)
    if not ssm.delta:
        return ()
    ranks = (("decay", ssm.step_rank, ssm.heads * ssm.state), ("gate", ssm.gate_rank, inner))
    whole = () if ssm.step_rank else (Matrix(name="decay", k=width, n=ssm.heads * ssm.state, cut="column"),)
    pairs = (
        (Matrix(name=f"{name}_down", k=width, n=rank), Matrix(name=f"{name}_up", k=rank, n=n, cut="column"))
        for name, rank, n in ranks
        if rank
    )
    return (Matrix(name="steps", k=width, n=ssm.heads, cut="column"), *whole, *(matrix for pair in pairs for matrix in pair))


def _recurrence(ssm: StateSpace, inner: int, selected: int) -> tuple[Matrix, ...]:
    """Weights of a recurrence: decays, skips and biases of the time steps of its heads, and mamba2's norm; of mamba1 also what makes
    B, C and the time steps.
    """
    if ssm.kind != "mamba1":
        none = ("lightning", "mlstm", "conv")
        each = 0 if ssm.kind in none else {"mamba2": 3, "rglru": ssm.width}.get(ssm.kind, 2 + ssm.decays)  # numbers of each head
        scales = each * ssm.heads + (inner if ssm.norm and ssm.kind in ("mamba2", "lightning", "mlstm") else 0)
        return (Matrix(name="scales", k=1, n=scales, cut="column", depthwise=True),) if scales else ()
    return (
        Matrix(name="selection", k=inner, n=ssm.step_rank + selected, cut="row"),
        Matrix(name="step", k=ssm.step_rank, n=inner, cut="column", bias=True),
        Matrix(name="decay", k=ssm.state, n=inner, cut="column", depthwise=True),
        Matrix(name="skip", k=1, n=inner, cut="column", depthwise=True),
    )


@functools.lru_cache(maxsize=1024)
def mlp(*, width: int, inner: int, gated: bool, limited: bool = False, bias: bool = True, norm_vectors: int = 2) -> Part:
    """Feed-forward part: up (two branches where gated), activation, down."""
    return Part(
        type="mlp",
        width=width,
        matrices=(
            Matrix(name="up", k=width, n=(2 if gated else 1) * inner, cut="column", bias=bias),
            Matrix(name="down", k=inner, n=width, cut="row", bias=bias),
        ),
        vectors=norm_vectors * width,
        inner=inner,
        gated=gated,
        limited=limited,
    )


@functools.lru_cache(maxsize=1024)
def experts(
    *,
    width: int,
    inner: int,
    gated: bool,
    limited: bool = False,
    routing: Routing,
    shared: int = 0,
    latent: int = 0,
    router_bias: bool = False,
    balance_bias: bool = False,
    bias: bool = False,
    norm_vectors: int = 1,
) -> Part:
    """Mixture of experts: a router, `routing.experts` MLPs of which a token passes some, and `shared` elements of one that all pass.

    A `balance_bias` is a number for each expert that decides with its score whether a token passes it. With a `latent` routed experts
    take and give vectors of as many elements, to which and from which two products project a token (Nemotron 3, LatentMoE).
    """
    own = mlp(width=latent or width, inner=inner, gated=gated, bias=bias).matrices
    common = mlp(width=width, inner=shared, gated=gated, bias=bias).matrices if shared else ()
    return Part(
        type="experts",
        width=width,
        matrices=(
            Matrix(name="router", k=width, n=routing.experts, bias=router_bias),
            *(replace(matrix, name=f"shared_{matrix.name}") for matrix in common),
            *((Matrix(name="latent_down", k=width, n=latent),) if latent else ()),
            *(replace(matrix, name=f"expert_{matrix.name}", experts=routing.experts) for matrix in own),
            *((Matrix(name="latent_up", k=latent, n=width),) if latent else ()),
        ),
        vectors=norm_vectors * width + balance_bias * routing.experts,
        inner=inner,
        gated=gated,
        limited=limited,
        latent=latent,
        routing=routing,
    )


def with_streams(part: Part, streams: int) -> Part:
    """A part between streams that hyper-connections mix [1]_.

    A product of all streams of a token gives weights of the part's input, of its output and of the streams among themselves, with a bias
    each and three scales.

    References
    ----------
    .. [1] Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2025, arXiv:2512.24880.
    """
    return _mixing(part, streams, (2 + streams) * streams, 3)


def joined(head: Part, streams: int) -> Part:
    """A head that takes a sum of streams, whose weights a product of all of them gives."""
    return _mixing(head, streams, streams, 1)


def _mixing(part: Part, streams: int, weights: int, scales: int) -> Part:
    mixes = Matrix(name="streams", k=streams * part.width, n=weights, inputs=streams * part.width)
    return replace(part, matrices=(mixes, *part.matrices), vectors=part.vectors + weights + scales, streams=streams)


def prediction_layers(
    *, count: int, tokens: int, embedding: Part, inner: tuple[Part, ...], head: Part, tied: bool, norm_vectors: int = 1,
    shared: bool = False,
) -> tuple[Layer, ...]:  # fmt: skip
    """Multi-token prediction layers [1]_, Sec. 2.2, Eq. 21-23.

    Each looks its token up in the model's embedding, norms it and what the layer before gives out, projects both to one vector
    (M_k[2 width, width]), passes it through a transformer layer of its own, and computes the logits of one further token with the
    model's head, after a norm of its own. On a pipeline they run where the head is; the first then has a copy of the embedding's
    table, if the head is not that table itself, as in Megatron-Core.

    Parameters
    ----------
    count : further tokens that are predicted, one by each layer.
    embedding, inner, head : parts of the main model: its embedding, those of its last layer, its head.
    shared : whether all of them have the weights of the first.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv:2412.19437.
    """
    if not count:
        return ()
    width = embedding.width
    projection = Matrix(name="projection", k=2 * width, n=width, cut="column")
    vocabulary = tuple(replace(matrix, shared=True) for matrix in head.matrices if matrix.name == "vocabulary")
    last = Part(type="head", width=width, matrices=vocabulary, vectors=norm_vectors * width)

    def layer(number: int, holder: Literal["apart", "none"]) -> Layer:
        entry = replace(embedding, matrices=(projection,), holder=holder, vectors=2 * norm_vectors * width)
        return Layer(name="mtp", count=number, tokens=tokens, parts=(entry, *inner, last), predicts=True)

    copies = 0 if tied else min(count, 1)
    groups = (layer(copies, "apart"), layer(count - copies, "none"))
    if shared:  # one that holds the weights, and others
        first = layer(1, "none" if tied else "apart")
        groups = (first, replace(layer(count - 1, "none"), parts=tuple(_without_weights(part) for part in layer(1, "none").parts)))
    return tuple(group for group in groups if group.count)


def _without_weights(part: Part) -> Part:
    """The same part where another on the same device holds its weights."""
    return replace(part, matrices=tuple(replace(matrix, shared=True) for matrix in part.matrices), vectors=0)
