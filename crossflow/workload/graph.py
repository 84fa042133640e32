"""The model as a graph of kernels, before any parallelism: what is computed, on how much data, after what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from crossflow.arrays import Array
from crossflow.formats import DTYPE_BYTES

Phase = Literal["forward", "backward", "update"]


Size = int | Array  # one value, or one for each design point, shape (n,)


@dataclass(frozen=True, kw_only=True)
class GraphLayer:
    """A layer with weights: its matrix W[k, n] (0 x 0 without one) and further parameters such as biases.

    `kind` is the layer type that strategies address: ``embedding``, ``cell``, ``projection`` or ``softmax``.
    """

    name: str
    kind: str
    rows: Size
    columns: Size
    extra_parameters: Size = 0

    @property
    def parameters(self) -> Size:
        """Number of parameters."""
        return self.rows * self.columns + self.extra_parameters


@dataclass(frozen=True, kw_only=True)
class Node:
    """One vertex of the compute graph: the operations of one layer at one time step, in order."""

    name: str  # what it is
    layer: int  # index into the graph's layers
    phase: Phase
    step: int = 0  # time step of a recurrent model, 0 otherwise
    first: bool = True  # whether it is the first of its layer to contribute to a gradient (later ones accumulate)
    after: tuple[int, ...] = ()  # indices of the nodes whose results it needs


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A model: its layers, its nodes in an order that respects dependencies, and the sizes that strategies divide.

    Sizes may be arrays over design points whose nodes are the same.
    """

    model: str  # model family, ``lstm`` or ``gemm``
    batch: Size  # samples of one step over all devices
    layers: tuple[GraphLayer, ...]
    nodes: tuple[Node, ...]
    sizes: Mapping[str, Size] = field(default_factory=dict)  # further dimensions by name (hidden, vocabulary, sequence ...)
    dtype: str = "fp16"  # data type of weights, activations and gradients
    optimizer_states: int = 0  # values kept per parameter by the optimizer
    training: bool = True  # whether backward pass and update are part of a step
    tokens_per_sample: int = 0  # tokens in one sample, 0 where the word has no meaning

    @property
    def parameters(self) -> Size:
        """Parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def element(self) -> float:
        """Size of one element. [B]"""
        return DTYPE_BYTES[self.dtype]
