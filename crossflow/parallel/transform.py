"""Graph transformation: a model's graph under a strategy becomes a program [1]_.

A matrix product Y[m, n] = X[m, k] W[k, n] is distributed by the axes of its mesh:

* ``rows`` and ``batch`` divide m; the weights are replicated and their gradients all-reduced at the end of the step;
* ``columns`` divides n (RC, inner product): forward the consumer gathers what it needs of Y, backward the partial
  sums of dX are all-reduced;
* ``inner`` divides k (CR, outer product): forward partial sums of Y are reduce-scattered, backward dY is gathered.

Departure from the paper's code: it gathers every product in full, 4 x hidden gates and vocabulary-wide logits among
them, and the weights in the backward pass. Here a gate's units stay on the device that computed them and the softmax is
computed on vocabulary shards (two numbers a sample are reduced), as every framework does today; only what the next
operation reads is gathered.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 3.3 and 5.1.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from crossflow.base.errors import StrategyError
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.program.blocks import CopyPlaces
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import Collective
from crossflow.program.kernels import Kernel, Number, Pass, Product
from crossflow.program.program import Program
from crossflow.workload import operations
from crossflow.workload.graph import Graph, GraphLayer, Node, Size


@functools.lru_cache(maxsize=256)
def transform(graph: Graph, strategy: Mesh) -> Program:
    """As `divided`, worked out once for a graph and a strategy."""
    return divided(graph, strategy)


def divided(graph: Graph, strategy: Mesh, stage_of: tuple[int, ...] | None = None) -> Program:
    """Program of a model under a strategy; sizes of the graph may be arrays over design points that have the same stages.

    Parameters
    ----------
    stage_of : stage of every layer, where it is known.

    Raises
    ------
    StrategyError
        When a dimension does not divide, or there are more stages than layers; the sentence names the numbers.
    """
    check_divides(graph, strategy)
    builder = _GraphBuilder(graph=graph, strategy=strategy, stage_of=stage_of or assign_stages(graph, strategy.degree("layers")))
    begun = 0
    for block in graph.blocks:
        builder.add_all(range(begun, block.first))
        with builder.program.repeat(block.count):
            builder.add_all(range(block.first, block.last + 1))
        begun = block.last + 1
    builder.add_all(range(begun, len(graph.nodes)))
    return builder.build()


def check_divides(graph: Graph, strategy: Mesh) -> None:
    """Raise StrategyError when a dimension of the model is not divisible by the axes that cut it."""
    shards = strategy.degree("batch", "rows")
    if np.any(graph.batch % shards):
        names = " x ".join(strategy.names("rows", "batch"))
        what = "m" if graph.model == "gemm" else "global_batch"
        raise StrategyError(f"{what} = {graph.batch} is not divisible by {names} = {shards} of strategy {strategy}")
    columns, inner = strategy.degree("columns"), strategy.degree("inner")
    for layer in graph.layers:
        if np.any(_width(graph, layer) % columns):
            raise StrategyError(
                f"{layer.name}: its {_width(graph, layer)} columns are not divisible by kp2 = {columns} of strategy {strategy}"
            )
        for what, size in (("inputs", _inputs(layer)), ("columns", _width(graph, layer))):
            if np.any(size % inner):
                raise StrategyError(f"{layer.name}: its {size} {what} are not divisible by kp1 = {inner} of strategy {strategy}")


def _width(graph: Graph, layer: GraphLayer) -> Size:
    """Number of things that a cut of the columns must divide: units of a cell (its four gates stay together)."""
    return graph.sizes["hidden"] if layer.kind == "cell" else layer.columns


def _inputs(layer: GraphLayer) -> Size:
    """Inputs of a layer that a cut of the inner dimension must divide: a cell reads two vectors of one width."""
    return layer.columns if layer.kind == "embedding" else layer.rows // 2 if layer.kind == "cell" else layer.rows


def assign_stages(graph: Graph, stages: int) -> tuple[int, ...]:
    """Stage of every layer: contiguous, each stage at least one layer, the heaviest stage as light as can be.

    A layer weighs its multiplications per sample; exact by dynamic programming over cuts.
    """
    count = len(graph.layers)
    if stages > count:
        names = ", ".join(layer.name for layer in graph.layers)
        raise StrategyError(f"p = {stages} stages, but the model has {count} layers to divide ({names})")
    if stages == 1:
        return (0,) * count
    # A lookup does almost no arithmetic; its weight decides only between otherwise equal cuts.
    loads = [float(layer.rows * layer.columns) if layer.kind != "embedding" else float(layer.columns) for layer in graph.layers]
    prefix = [sum(loads[:i]) for i in range(count + 1)]
    best: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            options = [
                (max(best[stage - 1, start][0], prefix[end] - prefix[start]), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            ]
            if options:
                best[stage, end] = min(options)
    result = [0] * count
    end = count
    for stage in range(stages, 0, -1):
        start = best[stage, end][1]
        result[start:end] = [stage - 1] * (end - start)
        end = start
    return tuple(result)


@dataclass(frozen=True)
class _Waits:
    """What an operation waits for.

    Attributes
    ----------
    after, paired : operations, as in `crossflow.program.program.Op`.
    carried : nodes whose result in the copy before it waits for.
    """

    after: tuple[int, ...] = ()
    paired: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()


@dataclass(kw_only=True)
class _GraphBuilder:
    """Writes operations while the nodes of a graph are walked in order."""

    graph: Graph
    strategy: Mesh
    stage_of: tuple[int, ...]
    result: dict[int, int] = field(default_factory=dict)  # node -> operation that gives its output
    gradient: dict[int, int] = field(default_factory=dict)  # backward node -> operation that gives the weight gradient
    carried: list[tuple[int, int]] = field(default_factory=list)  # node, and operation that waits for its result in the copy before

    def __post_init__(self) -> None:
        self.block = CopyPlaces.of(len(self.graph.nodes), self.graph.blocks, 1).block
        self.element = self.graph.element
        self.m = self.graph.batch / self.strategy.degree("batch", "rows")
        self.columns = self.strategy.degree("columns")
        self.inner = self.strategy.degree("inner")
        self.cut = self.columns * self.inner  # shards of a layer's weights
        self.program = ProgramBuilder(
            name=self.graph.model,
            dtype=self.graph.dtype,
            axes={axis.name: axis.size for axis in self.strategy.axes},
            stages=next((axis.name for axis in self.strategy.axes if axis.role == "layers"), ""),
        )

    # -------------------------------------------------------------------------------------- operations

    def compute(self, name: str, node: Node, waits: _Waits, *kernels: Kernel) -> int:
        """Append kernels and return their place."""
        layer = self.graph.layers[node.layer].name
        rank, after, paired = self._stage(node), waits.after, waits.paired
        task = self.program.compute(name, *kernels, rank=rank, layer=layer, phase=node.phase, after=after, paired=paired)
        self.carried += [(source, task) for source in waits.carried]
        return task

    def send(
        self,
        name: str,
        node: Node,
        waits: _Waits,
        collective: Collective,
        elements: Number,
        axes: tuple[str, ...],
        stage: int = -1,
    ) -> int:
        """Append a message and return its place; where no axis has more than one device, the operation it would follow."""
        if not axes:
            return waits.after[-1]
        rank = self._stage(node) if stage < 0 else stage
        task = self.program.send(
            collective, elements * self.graph.element, axes, name=f"{name}.{collective}", rank=rank, phase=node.phase, after=waits.after,
            paired=waits.paired, layer=self.graph.layers[node.layer].name,
        )  # fmt: skip
        self.carried += [(source, task) for source in waits.carried]
        return task

    def inputs(self, index: int) -> _Waits:
        """What a node waits for; results of other stages are sent first."""
        node, found = self.graph.nodes[index], list[_Waits]()
        ends = self.gradient if node.phase == "update" else self.result
        for source in node.after:
            pairs = 0 <= self.block[source] < self.block[index]
            found.append(self._here(node, source, _Waits(paired=(ends[source],)) if pairs else _Waits(after=(ends[source],))))
        for source, later in node.carried:
            found.append(self._here(node, source, _Waits(after=(ends[source],), carried=(later,))))
        return _Waits(*(tuple(dict.fromkeys(i for one in found for i in getattr(one, kind))) for kind in ("after", "paired", "carried")))

    def _here(self, node: Node, source: int, waits: _Waits) -> _Waits:
        """Waits for a result of another node, or for its transfer from another stage."""
        sender = self.graph.nodes[source]
        here, there = self._stage(node), self._stage(sender)
        if here == there:
            return waits
        layer = self.graph.layers[sender.layer]
        width = layer.columns if sender.phase == "forward" else _inputs(layer)
        width = self.graph.sizes["hidden"] if layer.kind == "cell" and sender.phase == "forward" else width
        sent = self.send(sender.name, sender, waits, "send_recv", self.m * width / self.inner, self.strategy.names("layers"), there)
        return _Waits(after=(sent,))

    # -------------------------------------------------------------------------------------- nodes

    def add_all(self, places: Iterable[int]) -> None:
        """Append the operations of nodes, all of a block or none of any."""
        for index in places:
            self._add(index, self.graph.nodes[index])
        for source, task in self.carried:
            self.program.carry(self.result[source], task)
        self.carried.clear()

    def _add(self, index: int, node: Node) -> None:
        """Append the operations of one node."""
        layer = self.graph.layers[node.layer]
        waits = self.inputs(index)
        if node.phase == "update":
            self._update(node, layer, waits)
        elif layer.kind == "embedding":
            self._embedding(index, node, layer, waits)
        elif node.phase == "forward":
            self._forward(index, node, layer, waits)
        else:
            self._backward(index, node, layer, waits)

    def _embedding(self, index: int, node: Node, layer: GraphLayer, waits: _Waits) -> None:
        width = layer.columns / self.cut
        if node.phase == "forward":
            task = self.compute(node.name, node, waits, operations.embedding_forward(self.m, width, self.element))
            task = self.send(node.name, node, _Waits((task,)), "all_gather", self.m * layer.columns, self.strategy.names("columns"))
        else:
            stream = operations.embedding_backward(self.m, width, layer.rows, node.first, self.element)
            task = self.compute(node.name, node, waits, stream)
            self.gradient[index] = task
        self.result[index] = task

    def _forward(self, index: int, node: Node, layer: GraphLayer, waits: _Waits) -> None:
        m, product = self.m, Product(m=self.m, n=layer.columns / self.columns, k=layer.rows / self.inner)
        tail = self._pointwise(layer, forward=True)
        if self.inner > 1:  # CR: partial sums of the whole width, reduced to a shard each
            task = self.compute(node.name, node, waits, product)
            task = self.send(node.name, node, _Waits((task,)), "reduce_scatter", m * layer.columns, self.strategy.names("inner"))
            task = self.compute(f"{node.name}.tail", node, _Waits((task,)), *tail) if tail else task
        else:
            task = self.compute(node.name, node, waits, product, *tail)
        if layer.kind == "softmax":  # maximum and sum of exponentials of every sample
            task = self.send(node.name, node, _Waits((task,)), "all_reduce", 2 * m, self.strategy.names("columns", "inner"))
        else:
            width = self.graph.sizes["hidden"] if layer.kind == "cell" else layer.columns
            task = self.send(node.name, node, _Waits((task,)), "all_gather", m * width, self.strategy.names("columns"))
        self.result[index] = task

    def _backward(self, index: int, node: Node, layer: GraphLayer, waits: _Waits) -> None:
        m, n, k = self.m, layer.columns / self.columns, layer.rows / self.inner
        tail = self._pointwise(layer, forward=False)
        to_input, to_weight = Product(m=m, n=k, k=n), Product(m=k, n=n, k=m, adds=not node.first)
        if self.inner > 1:  # CR: every device needs the whole of dY
            ready = _Waits((self.compute(f"{node.name}.head", node, waits, *tail),)) if tail else waits
            task = self.send(node.name, node, ready, "all_gather", m * layer.columns, self.strategy.names("inner"))
            self.result[index] = self.gradient[index] = self.compute(node.name, node, _Waits((task,)), to_input, to_weight)
            return
        task = self.compute(f"{node.name}.input", node, waits, *tail, to_input)
        self.result[index] = self.send(node.name, node, _Waits((task,)), "all_reduce", m * layer.rows, self.strategy.names("columns"))
        self.gradient[index] = self.compute(f"{node.name}.weight", node, _Waits((task,)), to_weight)

    def _update(self, node: Node, layer: GraphLayer, waits: _Waits) -> None:
        parameters = layer.parameters / self.cut
        axes = self.strategy.names("rows", "batch")
        task = self.send(node.name, node, waits, "all_reduce", parameters, axes)
        stream = operations.update(parameters, self.graph.optimizer_states, self.element)
        self.compute(node.name, node, _Waits((task,)), stream)

    def _pointwise(self, layer: GraphLayer, forward: bool) -> tuple[Pass, ...]:
        if layer.kind == "cell":
            hidden = self.graph.sizes["hidden"] / self.cut
            return ((operations.cell_forward if forward else operations.cell_backward)(self.m, hidden, self.element),)
        if layer.kind == "softmax":
            vocabulary = layer.columns / self.cut
            return ((operations.softmax_forward if forward else operations.softmax_backward)(self.m, vocabulary, self.element),)
        return ()

    def _stage(self, node: Node) -> int:
        return self.stage_of[node.layer]

    # -------------------------------------------------------------------------------------- result

    def build(self) -> Program:
        """Everything written, with what devices hold."""
        for stage in range(self.strategy.degree("layers")):
            self._hold(stage)
        return self.program.build(samples=self.graph.batch, tokens=self.graph.tokens_per_sample, parameters=1.0 * self.graph.parameters)

    def _hold(self, stage: int) -> None:
        """Bytes of one device of a stage by kind: what a training step keeps at its fullest moment."""
        layers = [layer for i, layer in enumerate(self.graph.layers) if self.stage_of[i] == stage]
        weights = sum(layer.parameters for layer in layers) / self.cut * self.graph.element
        inputs = sum(layer.rows for layer in layers if layer.kind == "gemm") / self.inner
        saved = self.m * self.graph.element * (inputs + sum(self._saved(layer) for layer in layers))
        training = self.graph.training
        held = {
            "weights": weights,
            "gradients": weights if training else 0.0,
            "optimizer": weights / self.graph.element * 4.0 * self.graph.optimizer_states if training else 0.0,
            "activations": saved * (self.graph.sizes.get("sequence", 1) if training else 1),
        }
        for kind, size in held.items():
            self.program.hold(kind, size, rank=stage)

    def _saved(self, layer: GraphLayer) -> Number:
        """Elements per sample and time step that a layer's forward pass leaves in memory."""
        if layer.kind == "cell":
            hidden = self.graph.sizes["hidden"]
            return operations.saved_per_cell(hidden / self.cut, hidden / self.inner)
        return layer.columns / (self.cut if layer.kind == "softmax" else self.inner)
