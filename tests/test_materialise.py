"""The full super-graph: every replica, rings and tori of cross-edges, as in Fig. 5 of the paper."""

import networkx as nx
import pytest

from crossflow.parallel.materialise import draw, materialise
from crossflow.parallel.strategy.graphs import graph_mesh
from crossflow.workload.lstm import lstm

MODEL = lstm(hidden=64, vocabulary=96, sequence=2, layers=1, batch=24).unrolled


def made(strategy, *phases):
    return materialise(MODEL, graph_mesh(strategy), phases or ("forward", "backward", "update"))


def test_every_vertex_has_a_replica_on_every_shard():
    """Fig. 5's composition: two stages of three replicas of a 4 x 2 torus are 48 devices."""
    graph = made("RC-4-2-d3-p2", "forward")
    assert graph.number_of_nodes() == 24 * sum(node.phase == "forward" for node in MODEL.nodes)
    assert len({data["device"] for _, data in graph.nodes(data=True)}) == 48


@pytest.mark.parametrize(("strategy", "rings"), [("d3", {"dp": 3}), ("RC-4-2", {"kp1": 4, "kp2": 2}), ("CR-4-d3", {"kp1": 4, "dp": 3})])
def test_shards_of_a_vertex_are_joined_in_a_ring_an_axis(strategy, rings):
    graph = made(strategy, "forward")
    name = MODEL.nodes[0].name
    for axis, size in rings.items():
        along = nx.DiGraph([edge for edge in graph.edges if graph.edges[edge]["axis"] == axis and edge[0][0] == name])
        cycles = list(nx.strongly_connected_components(along))
        assert {len(cycle) for cycle in cycles} == {size}


def test_an_edge_is_a_cross_edge_just_where_it_joins_two_devices():
    graph = made("RC-2-2-d2-p2")
    for source, target, data in graph.edges(data=True):
        assert data["cross"] == (graph.nodes[source]["device"] != graph.nodes[target]["device"])


def test_on_one_device_it_is_the_model():
    graph = made("d1")
    edges = {(MODEL.nodes[j].name, node.name) for node in MODEL.nodes for j in node.after}
    assert {(source[0], target[0]) for source, target in graph.edges} == edges
    assert not any(data["cross"] for _, _, data in graph.edges(data=True))


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_it_can_be_drawn(tmp_path, ending):
    path = draw(made("RC-2-1-d2-p2", "forward"), tmp_path / f"graph.{ending}")
    assert path.read_bytes()[:5] == {"png": b"\x89PNG\r", "svg": b"<?xml"}[ending]
