"""The LSTM language model of the paper's case study: embedding, LSTM cells over time, softmax over the vocabulary [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 8 and 9.
"""

from __future__ import annotations

from crossflow.workload.graph import Graph, GraphLayer, Node, Phase, Size

GATES = 4  # input, forget, cell and output gate


def lstm(
    *,
    hidden: Size,
    vocabulary: Size,
    sequence: int,
    layers: int,
    batch: Size,
    projection: Size | None = None,
    dtype: str = "fp16",
    optimizer_states: int = 0,
    training: bool = True,
) -> Graph:
    """Graph of an LSTM language model, unrolled over its time steps.

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
    nodes = _forward(table, sequence)
    if training:
        nodes = _updates(table, _backward(table, nodes, sequence))
    return Graph(
        model="lstm",
        batch=batch,
        layers=tuple(table),
        nodes=tuple(nodes),
        sizes={"hidden": hidden, "vocabulary": vocabulary, "sequence": sequence, "width": width, "gates": GATES},
        dtype=dtype,
        optimizer_states=optimizer_states,
        training=training,
        tokens_per_sample=sequence,
    )


def _node(table: list[GraphLayer], layer: int, phase: Phase, step: int, after: list[int], first: bool = True) -> Node:
    return Node(name=f"{table[layer].name}.{phase}[{step}]", layer=layer, phase=phase, step=step, after=tuple(after), first=first)


def _forward(table: list[GraphLayer], sequence: int) -> list[Node]:
    """Forward nodes: at each step through the layers, each cell also after itself one step earlier."""
    nodes: list[Node] = []
    earlier: dict[int, int] = {}
    for step in range(sequence):
        below: list[int] = []
        for i, layer in enumerate(table):
            recurrent = i + 1 if i + 1 < len(table) and table[i + 1].kind == "projection" else i
            after = below + ([earlier[recurrent]] if layer.kind == "cell" and recurrent in earlier else [])
            nodes.append(_node(table, i, "forward", step, after))
            below = [len(nodes) - 1]
            earlier[i] = len(nodes) - 1
    return nodes


def _backward(table: list[GraphLayer], nodes: list[Node], sequence: int) -> list[Node]:
    """Backward nodes appended: the softmax of all steps first, so that its large gradient is complete early.

    A forward node of the softmax need not wait for other steps, and no cell can go back before the last step's softmax;
    computing all softmax gradients first lets their reduction overlap with the cells.
    """
    forward = {(node.layer, node.step): i for i, node in enumerate(nodes)}
    top = len(table) - 1
    back: dict[tuple[int, int], int] = {}
    nodes = list(nodes)
    last = sequence - 1
    for step in range(last, -1, -1):
        nodes.append(_node(table, top, "backward", step, [forward[top, step]], first=step == last))
        back[top, step] = len(nodes) - 1
    for step in range(last, -1, -1):
        for i in range(top - 1, -1, -1):
            after = [back[i + 1, step], forward[i, step]]
            if table[i].kind in ("cell", "projection"):
                cell_above = next((j for j in (i, i - 1) if table[j].kind == "cell"), i)
                recurrent = back.get((cell_above, step + 1))
                feeds = table[i].kind == "projection" or not (i + 1 <= top and table[i + 1].kind == "projection")
                after += [recurrent] if recurrent is not None and feeds else []
            nodes.append(_node(table, i, "backward", step, after, first=step == last))
            back[i, step] = len(nodes) - 1
    return nodes


def _updates(table: list[GraphLayer], nodes: list[Node]) -> list[Node]:
    """Update nodes appended: one a layer, from the softmax down, each after all its gradients."""
    for i in range(len(table) - 1, -1, -1):
        gradients = [j for j, node in enumerate(nodes) if node.layer == i and node.phase == "backward" and node.step == 0]
        nodes = [*nodes, _node(table, i, "update", 0, gradients)]
    return nodes
