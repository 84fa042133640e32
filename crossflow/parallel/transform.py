"""Graph transformation: a model's graph under a strategy becomes a super-graph [1]_.

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
from collections.abc import Mapping
from dataclasses import dataclass, field

from crossflow.errors import StrategyError
from crossflow.parallel.stages import assign_stages
from crossflow.parallel.strategy import Strategy
from crossflow.parallel.supergraph import Collective, Message, SuperGraph, Task, Work
from crossflow.workload import Gemm, Graph, Layer, Node, Operation, operations


@functools.lru_cache(maxsize=256)
def transform(graph: Graph, strategy: Strategy) -> SuperGraph:
    """Super-graph of a model under a strategy.

    Raises
    ------
    StrategyError
        When a dimension does not divide, or there are more stages than layers; the sentence names the numbers.
    """
    check_divides(graph, strategy)
    builder = _Builder(graph=graph, strategy=strategy, stage_of=assign_stages(graph, strategy.degree("layers")))
    for i, node in enumerate(graph.nodes):
        builder.add(i, node)
    return builder.supergraph()


def check_divides(graph: Graph, strategy: Strategy) -> None:
    """Raise StrategyError when a dimension of the model does not divide by the axes that cut it."""
    shards = strategy.degree("batch", "rows")
    if graph.batch % shards:
        names = " x ".join(strategy.names("rows", "batch"))
        what = "m" if graph.model == "gemm" else "global_batch"
        raise StrategyError(f"{what} = {graph.batch} does not divide by {names} = {shards} of strategy {strategy}")
    columns, inner = strategy.degree("columns"), strategy.degree("inner")
    for layer in graph.layers:
        if _width(graph, layer) % columns:
            raise StrategyError(f"{layer.name}: its {_width(graph, layer)} columns do not divide by kp2 = {columns} of strategy {strategy}")
        for what, size in (("inputs", _inputs(layer)), ("columns", _width(graph, layer))):
            if size % inner:
                raise StrategyError(f"{layer.name}: its {size} {what} do not divide by kp1 = {inner} of strategy {strategy}")


def _width(graph: Graph, layer: Layer) -> int:
    """Number of things that a cut of the columns must divide: units of a cell (its four gates stay together)."""
    return graph.sizes["hidden"] if layer.kind == "cell" else layer.columns


def _inputs(layer: Layer) -> int:
    """Inputs of a layer that a cut of the inner dimension must divide: a cell reads two vectors of one width."""
    return layer.columns if layer.kind == "embedding" else layer.rows // 2 if layer.kind == "cell" else layer.rows


@dataclass(kw_only=True)
class _Builder:
    """Collects works, messages and tasks while the nodes of a graph are walked in order."""

    graph: Graph
    strategy: Strategy
    stage_of: tuple[int, ...]
    works: dict[Work, int] = field(default_factory=dict)
    messages: dict[Message, int] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    result: dict[int, int] = field(default_factory=dict)  # node -> task that gives its output
    gradient: dict[int, int] = field(default_factory=dict)  # backward node -> task that gives the weight gradient

    def __post_init__(self) -> None:
        self.m = self.graph.batch / self.strategy.degree("batch", "rows")
        self.columns = self.strategy.degree("columns")
        self.inner = self.strategy.degree("inner")
        self.cut = self.columns * self.inner  # shards of a layer's weights

    # -------------------------------------------------------------------------------------- tasks

    def compute(self, name: str, layer: int, after: tuple[int, ...], *operation: Operation) -> int:
        """Append a compute task and return its index."""
        work = Work(operations=operation)
        index = self.works.setdefault(work, len(self.works))
        self.tasks.append(Task(name=name, stage=self.stage_of[layer], kind="compute", index=index, after=after))
        return len(self.tasks) - 1

    def send(self, name: str, stage: int, after: tuple[int, ...], collective: Collective, elements: float, axes: tuple[str, ...]) -> int:
        """Append a network task and return its index; where no axis has more than one device, the task it would follow."""
        if not axes:
            return after[-1]
        message = Message(collective=collective, size=elements * self.graph.element, axes=axes)
        index = self.messages.setdefault(message, len(self.messages))
        self.tasks.append(Task(name=f"{name}.{collective}", stage=stage, kind="network", index=index, after=after))
        return len(self.tasks) - 1

    def inputs(self, node: Node) -> tuple[int, ...]:
        """Tasks that a node waits for; results of other stages are sent first."""
        waits = []
        for source in node.after:
            ends = self.gradient if node.phase == "update" else self.result
            task = ends[source]
            here, there = self.stage_of[node.layer], self.stage_of[self.graph.nodes[source].layer]
            if here != there:
                task = self._transferred(source, task, there)
            waits.append(task)
        return tuple(dict.fromkeys(waits))

    def _transferred(self, source: int, task: int, stage: int) -> int:
        node = self.graph.nodes[source]
        layer = self.graph.layers[node.layer]
        width = layer.columns if node.phase == "forward" else _inputs(layer)
        width = self.graph.sizes["hidden"] if layer.kind == "cell" and node.phase == "forward" else width
        return self.send(node.name, stage, (task,), "send_recv", self.m * width / self.inner, self.strategy.names("layers"))

    # -------------------------------------------------------------------------------------- nodes

    def add(self, index: int, node: Node) -> None:
        """Append the tasks of one node."""
        layer = self.graph.layers[node.layer]
        after = self.inputs(node)
        if node.phase == "update":
            self._update(node, layer, after)
        elif layer.kind == "embedding":
            self._embedding(index, node, layer, after)
        elif node.phase == "forward":
            self._forward(index, node, layer, after)
        else:
            self._backward(index, node, layer, after)

    def _embedding(self, index: int, node: Node, layer: Layer, after: tuple[int, ...]) -> None:
        width = layer.columns / self.cut
        if node.phase == "forward":
            task = self.compute(node.name, node.layer, after, operations.embedding_forward(self.m, width))
            task = self.send(node.name, self._stage(node), (task,), "all_gather", self.m * layer.columns, self.strategy.names("columns"))
        else:
            stream = operations.embedding_backward(self.m, width, layer.rows, node.first)
            task = self.compute(node.name, node.layer, after, stream)
            self.gradient[index] = task
        self.result[index] = task

    def _forward(self, index: int, node: Node, layer: Layer, after: tuple[int, ...]) -> None:
        m, product = self.m, Gemm(m=self.m, n=layer.columns / self.columns, k=layer.rows / self.inner)
        tail = self._pointwise(layer, forward=True)
        if self.inner > 1:  # CR: partial sums of the whole width, reduced to a shard each
            task = self.compute(node.name, node.layer, after, product)
            task = self.send(node.name, self._stage(node), (task,), "reduce_scatter", m * layer.columns, self.strategy.names("inner"))
            task = self.compute(f"{node.name}.tail", node.layer, (task,), *tail) if tail else task
        else:
            task = self.compute(node.name, node.layer, after, product, *tail)
        if layer.kind == "softmax":  # maximum and sum of exponentials of every sample
            task = self.send(node.name, self._stage(node), (task,), "all_reduce", 2 * m, self.strategy.names("columns", "inner"))
        else:
            width = self.graph.sizes["hidden"] if layer.kind == "cell" else layer.columns
            task = self.send(node.name, self._stage(node), (task,), "all_gather", m * width, self.strategy.names("columns"))
        self.result[index] = task

    def _backward(self, index: int, node: Node, layer: Layer, after: tuple[int, ...]) -> None:
        m, n, k = self.m, layer.columns / self.columns, layer.rows / self.inner
        tail = self._pointwise(layer, forward=False)
        to_input, to_weight = Gemm(m=m, n=k, k=n), Gemm(m=k, n=n, k=m, accumulate=not node.first)
        if self.inner > 1:  # CR: every device needs the whole of dY
            task = self.compute(f"{node.name}.head", node.layer, after, *tail) if tail else after[-1]
            task = self.send(node.name, self._stage(node), (task,), "all_gather", m * layer.columns, self.strategy.names("inner"))
            self.result[index] = self.gradient[index] = self.compute(node.name, node.layer, (task,), to_input, to_weight)
            return
        task = self.compute(f"{node.name}.input", node.layer, after, *tail, to_input)
        self.result[index] = self.send(node.name, self._stage(node), (task,), "all_reduce", m * layer.rows, self.strategy.names("columns"))
        self.gradient[index] = self.compute(f"{node.name}.weight", node.layer, (task,), to_weight)

    def _update(self, node: Node, layer: Layer, after: tuple[int, ...]) -> None:
        parameters = layer.parameters / self.cut
        axes = self.strategy.names("rows", "batch")
        task = self.send(node.name, self._stage(node), after, "all_reduce", parameters, axes)
        stream = operations.update(parameters, self.graph.optimizer_states, self.graph.element)
        self.compute(node.name, node.layer, (task,), stream)

    def _pointwise(self, layer: Layer, forward: bool) -> tuple[Operation, ...]:
        if layer.kind == "cell":
            hidden = self.graph.sizes["hidden"] / self.cut
            return (operations.cell_forward(self.m, hidden) if forward else operations.cell_backward(self.m, hidden),)
        if layer.kind == "softmax":
            vocabulary = layer.columns / self.cut
            return (operations.softmax_forward(self.m, vocabulary) if forward else operations.softmax_backward(self.m, vocabulary),)
        return ()

    def _stage(self, node: Node) -> int:
        return self.stage_of[node.layer]

    # -------------------------------------------------------------------------------------- result

    def supergraph(self) -> SuperGraph:
        """Everything collected, frozen."""
        stages = self.strategy.degree("layers")
        names = tuple(
            tuple(layer.name for i, layer in enumerate(self.graph.layers) if self.stage_of[i] == stage) for stage in range(stages)
        )
        return SuperGraph(
            strategy=self.strategy,
            stages=stages,
            works=tuple(self.works),
            messages=tuple(self.messages),
            tasks=tuple(self.tasks),
            memory=tuple(self._memory(stage) for stage in range(stages)),
            volumes=self._volumes(),
            dtype=self.graph.dtype,
            element=self.graph.element,
            layers_of_stage=names,
        )

    def _memory(self, stage: int) -> Mapping[str, float]:
        """Bytes of one device of a stage by kind: what a training step keeps at its fullest moment."""
        layers = [layer for i, layer in enumerate(self.graph.layers) if self.stage_of[i] == stage]
        weights = sum(layer.parameters for layer in layers) / self.cut * self.graph.element
        inputs = sum(layer.rows for layer in layers if layer.kind == "gemm") / self.inner
        saved = self.m * self.graph.element * (inputs + sum(self._saved(layer) for layer in layers))
        training = self.graph.training
        return {
            "weights": weights,
            "gradients": weights if training else 0.0,
            "optimizer": weights / self.graph.element * 4.0 * self.graph.optimizer_states if training else 0.0,
            "activations": saved * (self.graph.sizes.get("sequence", 1) if training else 1),
        }

    def _saved(self, layer: Layer) -> float:
        """Elements per sample and time step that a layer's forward pass leaves in memory."""
        if layer.kind == "cell":
            hidden = self.graph.sizes["hidden"]
            return operations.saved_per_cell(hidden / self.cut, hidden / self.inner)
        return layer.columns / (self.cut if layer.kind == "softmax" else self.inner)

    def _volumes(self) -> dict[str, float]:
        """Bytes that one device sends along each axis in one step; along each further axis only the shard that is left moves."""
        sizes = {axis.name: axis.size for axis in self.strategy.axes}
        volumes = dict.fromkeys((name for message in self.messages for name in message.axes), 0.0)
        messages = tuple(self.messages)
        for message in (messages[task.index] for task in self.tasks if task.kind == "network"):
            size = message.size
            for axis in message.axes:
                share = 1.0 if message.collective == "send_recv" else (sizes[axis] - 1) / sizes[axis]
                volumes[axis] += (2.0 if message.collective == "all_reduce" else 1.0) * share * size
                size /= sizes[axis]
        return volumes
