"""Recommendation models (DLRM): embedding tables, bottom and top MLP, and how features interact between them [1]_.

References
----------
.. [1] Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", arXiv:1906.00091.
.. [2] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. II and Table II.
.. [3] Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems", WWW 2021,
   arXiv:2008.13535, Eq. (1) and (2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES
from crossflow.program.embedding.reuse import Reuse
from crossflow.program.kernels import Lookup, Number, TableOptimizer
from crossflow.workload.transformer import Part, Routing

# The layers that fine-tuning may freeze and that reports name; `top` is experts where the model has some.
DlrmLayer = Literal["embedding", "bottom", "interaction", "top"]
DLRM_LAYERS: tuple[DlrmLayer, ...] = ("embedding", "bottom", "interaction", "top")
# What lies between a layer and the inputs.
BELOW: Mapping[DlrmLayer, tuple[DlrmLayer, ...]] = {
    "embedding": (), "bottom": (), "interaction": ("embedding", "bottom"), "top": ("embedding", "bottom", "interaction"),
}  # fmt: skip
Interaction = Literal["concatenation", "dot", "transformer", "cross"]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """`count` embedding tables alike."""

    count: int
    rows: int  # rows of one table. [1]
    width: int  # elements of a row. [1]
    pooling: float  # rows of one table that a sample looks up and adds up, in the mean. [1]
    # distinct rows over looked-up rows of a batch: what is left of the traffic where a row is found in cache when it is wanted again. [1]
    distinct: float = 1.0
    reuse: Reuse | None = None  # how often rows are hit, from which what caches hold follows, and not from `distinct`

    @property
    def parameters(self) -> int:
        """Parameters of all of them."""
        return self.count * self.rows * self.width

    def distinct_of(self, samples: Array) -> Array | float:
        """Distinct rows over looked-up rows of so many samples, shape (n,). [1]"""
        return self.distinct if self.reuse is None else self.reuse.distinct(samples)

    @property
    def lookups(self) -> float:
        """Rows that one sample looks up in all of them. [1]"""
        return self.count * self.pooling

    @property
    def pooled(self) -> int:
        """Elements that one sample gets from all of them. [1]"""
        return self.count * self.width


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A fully connected layer W[k, n] with bias and activation."""

    k: int
    n: int

    @property
    def weights(self) -> int:
        """Elements of its matrix."""
        return self.k * self.n

    @property
    def parameters(self) -> int:
        """Elements of its matrix and its bias."""
        return self.weights + self.n


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A transformer that relates features: `layers` times attention and MLP, on `sequence` tokens of a sample."""

    layers: int
    sequence: int
    attention: Part
    mlp: Part

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return self.layers * (self.attention.parameters + self.mlp.parameters)

    @property
    def matrix_flops(self) -> float:
        """Operations of one sample in products with weights. [flop]"""
        matrices = (*self.attention.matrices, *self.mlp.matrices)
        return self.layers * sum(2.0 * matrix.k * matrix.n for matrix in matrices) * self.sequence

    @property
    def score_flops(self) -> float:
        """Operations of one sample in products of queries with keys and of probabilities with values. [flop]"""
        found = self.attention.attention
        assert found is not None
        return float(self.layers * found.flops(self.sequence, self.sequence))


@dataclass(frozen=True, kw_only=True)
class Cross:
    """Cross layers of low rank: x' = x0 * (U (V x) + b) + x, where x0 are all features and x the layer's input ([3]_, Eq. 2)."""

    layers: int
    width: int  # elements of x, all features concatenated. [1]
    rank: int  # columns of U and rows of V. [1]

    @property
    def weights(self) -> int:
        """Elements of the matrices of all layers."""
        return 2 * self.layers * self.width * self.rank

    @property
    def parameters(self) -> int:
        """The same with their biases."""
        return self.weights + self.layers * self.width


@dataclass(frozen=True, kw_only=True)
class Dlrm:
    """A whole recommendation model."""

    name: str
    tables: tuple[Tables, ...]  # groups of equal tables
    dense_features: int  # numbers of a sample that the bottom MLP reads. [1]
    bottom: tuple[Linear, ...]  # layers of the bottom MLP in order
    top: tuple[Linear, ...]  # layers of the top MLP; with `routing` those of one expert
    interaction: Interaction = "concatenation"  # how pooled embeddings and the bottom MLP's output meet
    encoder: Encoder | None = None  # the transformer, where they meet in one
    cross: Cross | None = None  # the cross layers, where they meet in these
    routing: Routing | None = None  # experts in the place of the top MLP, of which a sample passes some

    @property
    def table_parameters(self) -> int:
        """Parameters of all tables."""
        return sum(group.parameters for group in self.tables)

    @property
    def dense_parameters(self) -> int:
        """Parameters of all else, all experts counted."""
        return sum(self.layer_parameters(layer) for layer in ("bottom", "interaction", "top"))

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.table_parameters + self.dense_parameters

    def layer_parameters(self, layer: str) -> int:
        """Parameters of one kind of layer."""
        if layer == "embedding":
            return self.table_parameters
        if layer == "interaction":
            return self.encoder.parameters if self.encoder else self.cross.parameters if self.cross else 0
        copies = self.routing.experts if self.routing and layer == "top" else 1
        return copies * sum(linear.parameters for linear in (self.bottom if layer == "bottom" else self.top))

    @property
    def lookups(self) -> float:
        """Rows that one sample looks up. [1]"""
        return sum(group.lookups for group in self.tables)

    @property
    def pooled(self) -> int:
        """Elements of a sample's pooled embeddings. [1]"""
        return sum(group.pooled for group in self.tables)

    @property
    def count(self) -> int:
        """Tables in all."""
        return sum(group.count for group in self.tables)

    @property
    def matrix_flops(self) -> float:
        """Operations of one sample's forward pass in products with weights, as papers count them. [flop]"""
        active = self.routing.active if self.routing else 1
        dense = sum(linear.weights for linear in self.bottom) + active * sum(linear.weights for linear in self.top)
        return 2.0 * dense + self.interaction_flops

    @property
    def interaction_flops(self) -> float:
        """The same of the interaction alone. [flop]"""
        return self.encoder.matrix_flops if self.encoder else 2.0 * self.cross.weights if self.cross else 0.0

    def forward_flops(self) -> float:
        """Operations of one sample's forward pass: products with weights, scores of attention, dot products of features. [flop]"""
        inner = self.encoder.score_flops if self.encoder else 0.0
        if self.interaction == "dot":
            inner += 2.0 * self.features**2 * self.tables[0].width
        return self.matrix_flops + inner

    @property
    def features(self) -> int:
        """Vectors that a dot interaction multiplies with each other: one a table and the bottom MLP's output. [1]"""
        return self.count + 1


def linears(widths: tuple[int, ...], inputs: int) -> tuple[Linear, ...]:
    """Layers of an MLP of these widths.

    >>> [(layer.k, layer.n) for layer in linears((8, 4), 13)]
    [(13, 8), (8, 4)]
    """
    return tuple(Linear(k=k, n=n) for k, n in zip((inputs, *widths[:-1]), widths, strict=True))


def interaction_width(kind: Interaction, tables: tuple[Tables, ...], bottom: int, encoder: Encoder | None) -> int:
    """Elements that the top MLP reads of a sample: all of them, each pair's product and the bottom's output, or the encoder's mean.

    Cross layers give as many as they take.
    """
    if kind == "transformer" and encoder is not None:
        return encoder.attention.width + bottom
    if kind == "dot":
        features = sum(group.count for group in tables) + 1
        return features * (features - 1) // 2 + bottom
    return sum(group.pooled for group in tables) + bottom


Sharder = Literal["auto", "naive", "random", "size", "lookup", "norm-lookup", "size-lookup", "cost", "exact"]
TableSplit = Literal["auto", "none", "rows", "columns"]
SHARDERS: tuple[Sharder, ...] = get_args(Sharder)[1:]
SPLITS: tuple[TableSplit, ...] = get_args(TableSplit)[1:]


@dataclass(frozen=True, kw_only=True)
class ShardingRule:
    """How tables, each by itself, are given to ranks (`crossflow.parallel.sharding`)."""

    by: Sharder = "auto"  # who gives them; auto is the one with the shortest predicted step
    split: TableSplit = "auto"  # how tables that are too large, or load a rank too much, are cut; auto is the fastest way
    memory: float = 0.8  # share of a device's memory that tables and their states may take. [1]
    seed: int = 0  # of the random one


@dataclass(frozen=True, kw_only=True)
class DlrmJob:
    """What a step of a recommendation model computes."""

    model: Dlrm  # the model
    dtype: str  # type of the dense part's products; weights and activations are kept in `element` bytes
    training: bool = True  # whether there is a backward pass
    optimizer_states: int = 0  # values in fp32 that the optimizer keeps for each parameter of the dense part
    table_optimizer: TableOptimizer = "rowwise_adagrad"  # the tables' optimizer
    table: float = 2.0  # size of an element of a table. [B]
    forward: float = 2.0  # size on the wire of a pooled element. [B]
    backward: float = 2.0  # of its gradient. [B]
    index: float = 8.0  # of an index. [B]
    ahead: bool = True  # whether indices of the next batch travel during this one
    bucket: float = 25.0 * 2**20  # gradients that are reduced in one collective, at least. [B]
    uneven: float = 1.0  # lookups of the fullest device over the mean, where whole tables are shared out. [1]
    sharding: ShardingRule | None = None  # how each table is given to a rank; all ranks have the mean otherwise
    frozen: frozenset[str] = frozenset()  # layers that do not train

    @property
    def element(self) -> float:
        """Size of an activation or weight of the dense part. [B]"""
        return DTYPE_BYTES[self.dtype]

    def lookup(self, group: Tables, samples: Number, **sizes: Any) -> Lookup:
        """Lookups of tables like those of a group; `sizes` are those of the kernel that differ from the group's."""
        reuse = {} if group.reuse is None else {"reuse": group.reuse.factors, "counted": group.reuse.samples}
        own: dict[str, Any] = {"tables": group.count, "rows": group.rows, "width": group.width, "pooling": group.pooling}
        return Lookup(
            samples=samples, distinct=group.distinct, element=self.table, output=self.forward, gradient=self.backward, index=self.index,
            optimizer=self.table_optimizer, **{**own, **reuse, **sizes},
        )  # fmt: skip

    def trains(self, layer: DlrmLayer) -> bool:
        """Whether a layer's weights change."""
        return self.training and layer not in self.frozen and bool(np.any(self.model.layer_parameters(layer)))

    def passes_back(self, layer: DlrmLayer) -> bool:
        """Whether gradients pass through a layer to something that trains below it."""
        return any(self.trains(lower) for lower in BELOW[layer])
