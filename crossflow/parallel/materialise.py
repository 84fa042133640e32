"""The graph of a model with every replica, as a networkx graph: for drawing, for tests and for looking at [1]_.

Every vertex of the model's graph is replaced by a ring of the data replicas and a torus of the kernel shards; an edge
between devices is a cross-edge. Timing never needs it: replicas that do the same work at the same time are one class.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 5.1 and Fig. 5.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.base import files
from crossflow.base.drawing.canvas import as_written
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.transform import assign_stages, check_divides
from crossflow.workload.graph import Graph

if TYPE_CHECKING:
    import networkx as nx

PHASES = ("forward", "backward", "update")


def materialise(graph: Graph, strategy: Mesh, phases: Collection[str] = PHASES) -> nx.DiGraph[Any]:
    """Super-graph of a model with every shard and replica.

    Parameters
    ----------
    graph, strategy : as for `transform`.
    phases : parts of the step to include.

    Returns
    -------
    DiGraph whose vertices are (name of the model's vertex, coordinates on the mesh); each has `layer`, `phase`, `stage`
    and `device`, its coordinates with the stage. Edges have `cross`, whether they join two devices, and `axis`, the mesh
    axis that they run along (None inside a device).
    """
    import networkx as nx

    check_divides(graph, strategy)
    graph = graph.unrolled
    stage_of = assign_stages(graph, strategy.degree("layers"))
    shards = [axis for axis in strategy.axes if axis.role != "layers" and axis.size > 1]
    places = list(itertools.product(*(range(axis.size) for axis in shards)))
    made: nx.DiGraph[Any] = nx.DiGraph(axes=tuple((axis.name, axis.size) for axis in shards), stages=strategy.degree("layers"))
    chosen = {i: node for i, node in enumerate(graph.nodes) if node.phase in phases}
    for node in chosen.values():
        stage = stage_of[node.layer]
        for place in places:
            made.add_node((node.name, place), layer=graph.layers[node.layer].name, phase=node.phase, stage=stage, device=(*place, stage))
    for node in chosen.values():
        for source in (chosen[i] for i in node.after if i in chosen):
            crosses = stage_of[source.layer] != stage_of[node.layer]
            for place in places:
                made.add_edge((source.name, place), (node.name, place), cross=crosses, axis="lp" if crosses else None)
        for position, axis in enumerate(shards):
            for place in places:
                following = (*place[:position], (place[position] + 1) % axis.size, *place[position + 1 :])
                made.add_edge((node.name, place), (node.name, following), cross=True, axis=axis.name)
    return made


def draw(made: nx.DiGraph[Any], path: str | Path) -> Path:
    """Draw a materialised graph: columns are depth, rows are devices, cross-edges red; PNG, SVG or PDF by the ending."""
    import io

    import networkx as nx
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inside = made.edge_subgraph([edge for edge in made.edges if made.edges[edge]["axis"] in (None, "lp")])
    depth = {vertex: i for i, layer in enumerate(nx.topological_generations(inside)) for vertex in layer}
    devices = sorted({data["device"] for _, data in made.nodes(data=True)})
    row = {device: i for i, device in enumerate(devices)}
    at = {vertex: (depth.get(vertex, 0), -row[data["device"]]) for vertex, data in made.nodes(data=True)}
    width, height = 2 + 1.1 * (1 + max(x for x, _ in at.values())), 1.5 + 0.55 * len(devices)
    figure = Figure(figsize=(min(width, 60), min(height, 60)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for cross, colour, bend in ((False, "#333333", "arc3"), (True, "#D55E00", "arc3,rad=0.15")):
        edges = [edge for edge in made.edges if made.edges[edge]["cross"] is cross]
        nx.draw_networkx_edges(made, at, edges, ax=axis, edge_color=colour, arrowsize=7, node_size=120, connectionstyle=bend)
    nx.draw_networkx_nodes(made, at, ax=axis, node_size=120, node_color="#56B4E9")
    columns: dict[int, str] = {}
    for vertex in made.nodes:
        columns.setdefault(int(at[vertex][0]), str(vertex[0]))
    axis.set_xticks(list(columns), list(columns.values()), rotation=60, ha="right", fontsize=7)
    axis.set_yticks([-i for i in range(len(devices))], [", ".join(map(str, device)) for device in devices], fontsize=7)
    axis.tick_params(bottom=True, left=True, labelbottom=True, labelleft=True)
    names = ", ".join([*(name for name, _ in made.graph["axes"]), "stage"])
    axis.set_ylabel(f"device ({names})")
    axis.set_title("Super-graph; edges between devices in red", fontsize=9)
    target, stream = Path(path), io.BytesIO()
    with as_written(figure):
        figure.savefig(stream, format=target.suffix.lstrip(".") or "png", dpi=150)
    files.write_bytes(target, stream.getvalue())
    return target
