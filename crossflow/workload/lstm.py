"""The LSTM language model of the paper's case study: embedding, LSTM cells over time, softmax over the vocabulary [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 8 and 9.
"""

from __future__ import annotations

import numpy as np

from crossflow.program.blocks import Block
from crossflow.workload.graph import Graph, GraphLayer, Node, Size

GATES = 4  # input, forget, cell and output gate


def lstm(
    *,
    hidden: Size,
    vocabulary: Size,
    sequence: Size,
    layers: int,
    batch: Size,
    projection: Size | None = None,
    dtype: str = "fp16",
    optimizer_states: int = 0,
    training: bool = True,
) -> Graph:
    """Graph of an LSTM language model: of each pass the first time step, and a block of all others.

    Parameters
    ----------
    hidden, vocabulary, sequence, layers, batch : dimensions; a cell multiplies [x, h] by W[2 hidden, 4 hidden].
    projection : width to which each cell's output is projected; None for no projection.
    optimizer_states : values kept per parameter by the optimizer (0 for plain SGD).
    training : with backward pass and update, or the forward pass alone.
    """
    width = hidden if projection is None else projection
    table = [GraphLayer(name="embedding", kind="embedding", rows=vocabulary, columns=width)]
    for i in range(1, layers + 1):
        table.append(GraphLayer(name=f"cell{i}", kind="cell", rows=2 * width, columns=GATES * hidden, extra_parameters=GATES * hidden))
        if projection is not None:
            table.append(GraphLayer(name=f"projection{i}", kind="projection", rows=hidden, columns=projection))
    table.append(GraphLayer(name="softmax", kind="softmax", rows=width, columns=vocabulary, extra_parameters=vocabulary))
    others = np.asarray(sequence, dtype=np.intp) - 1 if isinstance(sequence, np.ndarray) else sequence - 1
    several = bool(np.min(others) > 0)
    nodes = _forward(table, several)
    starts = [(len(table), len(table))]
    if training:
        starts += [(len(nodes) + 1, 1), (len(nodes) + 1 + len(table), len(table) - 1)]
        nodes += _backward(table, len(nodes), sequence, several)
        nodes += _updates(table, nodes)
    return Graph(
        model="lstm",
        batch=batch,
        layers=tuple(table),
        nodes=tuple(nodes),
        blocks=tuple(Block(first=first, last=first + length - 1, count=others) for first, length in starts) if several else (),
        sizes={"hidden": hidden, "vocabulary": vocabulary, "sequence": sequence, "width": width, "gates": GATES},
        dtype=dtype,
        optimizer_states=optimizer_states,
        training=training,
        tokens_per_sample=sequence,
    )


def _forward(table: list[GraphLayer], several: bool) -> list[Node]:
    """Forward nodes: at each step through the layers, each cell also after itself one step earlier."""
    nodes: list[Node] = []
    width = len(table)
    for later in range(1 + several):
        for i, layer in enumerate(table):
            recurrent = i + 1 if i + 1 < width and table[i + 1].kind == "projection" else i
            carried = ((recurrent, width + recurrent),) if later and layer.kind == "cell" else ()
            after = (len(nodes) - 1,) if i else ()
            nodes.append(Node(name=f"{layer.name}.forward", layer=i, phase="forward", step=later, after=after, carried=carried))
    return nodes


def _backward(table: list[GraphLayer], begin: int, sequence: Size, several: bool) -> list[Node]:
    """Backward nodes behind `begin` others: the softmax of all steps first, so that its large gradient is complete early.

    A forward node of the softmax need not wait for other steps, and no cell can go back before the last step's softmax;
    computing all softmax gradients first lets their reduction overlap with the cells.
    """
    top, kinds = len(table) - 1, [layer.kind for layer in table]
    nodes: list[Node] = []
    # Places of the softmax, and of the layer below it, in the last time step and in those before.
    softmax, below = (begin, begin + 1), (begin + 1 + several, begin + 1 + several + top)

    def add(layer: int, later: int, after: int | None, cell: int | None = None) -> None:
        carried = ((below[0] + top - 1 - cell, below[1] + top - 1 - cell),) if later and cell is not None else ()
        waits, step = () if after is None else (after,), sequence - 1 - later
        name = f"{table[layer].name}.backward"
        nodes.append(Node(name=name, layer=layer, phase="backward", step=step, first=not later, after=waits, carried=carried))

    for later in range(1 + several):
        add(top, later, None if later else begin - 1)
    for later in range(1 + several):
        for i in range(top - 1, -1, -1):
            # The gradient of a step comes from the cell of the next one, into the projection of the cell where it has one.
            cell = i - 1 if kinds[i] == "projection" else i if kinds[i] == "cell" and kinds[i + 1] != "projection" else None
            add(i, later, softmax[later] if i == top - 1 else begin + len(nodes) - 1, cell)
    return nodes


def _updates(table: list[GraphLayer], nodes: list[Node]) -> list[Node]:
    """Update nodes: one a layer, from the softmax down, each after all its gradients."""
    last = {node.layer: j for j, node in enumerate(nodes) if node.phase == "backward"}
    return [Node(name=f"{table[i].name}.update", layer=i, phase="update", after=(last[i],)) for i in range(len(table) - 1, -1, -1)]
