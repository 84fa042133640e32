"""The model as a graph of kernels, before any parallelism: what is computed, on how much data, after what."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES
from crossflow.program.blocks import Block, CopyPlaces

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
    """One vertex of the compute graph: the operations of one layer at one time step, in order; in a block, at as many time steps."""

    name: str  # what it is
    layer: int  # index into the graph's layers
    phase: Phase
    step: Size = 0  # time step of a recurrent model, of its first copy; later ones are of the next steps, backward of those before
    first: bool = True  # whether it is the first of its layer to contribute to a gradient (later ones accumulate)
    after: tuple[int, ...] = ()  # indices of the nodes whose results it needs: those of a block for the same copy, outside it for the last
    # Pairs of a node whose result the first copy needs, and one of the block that the others need from the copy before.
    carried: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A model: its layers, its nodes in an order that respects dependencies, and the sizes that strategies divide.

    Sizes, and copies of blocks, may be arrays over design points whose nodes are the same.
    """

    model: str  # model family, ``lstm`` or ``gemm``
    batch: Size  # samples of one step over all devices
    layers: tuple[GraphLayer, ...]
    nodes: tuple[Node, ...]
    blocks: tuple[Block, ...] = ()  # nodes that repeat over time steps
    sizes: Mapping[str, Size] = field(default_factory=dict)  # further dimensions by name (hidden, vocabulary, sequence ...)
    dtype: str = "fp16"  # data type of weights, activations and gradients
    optimizer_states: int = 0  # values kept per parameter by the optimizer
    training: bool = True  # whether backward pass and update are part of a step
    tokens_per_sample: Size = 0  # tokens in one sample, 0 where the word has no meaning

    @property
    def parameters(self) -> Size:
        """Parameters of the whole model."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def element(self) -> float:
        """Size of one element. [B]"""
        return DTYPE_BYTES[self.dtype]

    @functools.cached_property
    def unrolled(self) -> Graph:
        """The same with every time step written out, where a backward node also needs the forward one of its layer and step.

        In-order streams see to the latter wherever they keep their order: the backward pass begins with the last step.
        """
        if "sequence" not in self.sizes:
            return self
        places, nodes, forward = CopyPlaces.of(len(self.nodes), self.blocks), list[Node](), dict[tuple[int, Size], int]()
        what = "timelines, and several kernels on a device, take every time step by itself"
        places.check(f"{self.model}: {what}", "choose a shorter sequence")
        for i, copy in places:
            node = self.nodes[i]
            back = node.phase == "backward"
            step = node.step - copy if back else node.step + copy
            after = [places.at(j, copy) if places.block[i] >= 0 else places.end(j) for j in node.after]
            after += [forward[node.layer, step]] if back else []
            after += [places.at(later, copy - 1) if copy else places.end(first) for first, later in node.carried]
            if node.phase == "forward":
                forward[node.layer, step] = len(nodes)
            name = f"{self.layers[node.layer].name}.{node.phase}[{step}]"
            nodes.append(replace(node, name=name, step=step, after=tuple(dict.fromkeys(after)), carried=()))
        return replace(self, nodes=tuple(nodes), blocks=())
