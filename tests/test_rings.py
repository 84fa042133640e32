"""Rings over direct links: the counts that NVIDIA's and AMD's wirings carry, and that the packing uses each link once."""

import sys

import pytest

from crossflow.hardware.mapping.rings import _cycles, _packed, has_chain, multiplicities, rings
from crossflow.hardware.mapping.topology import Topology

RANKS = range(2, 9)
# All but the kinds whose nodes meet in a switch.
DIRECT = [
    *(Topology(kind="hybrid-cube-mesh", nodes=p) for p in RANKS),
    *(Topology(kind="fully-connected", nodes=p) for p in RANKS),
    *(Topology(kind="ring", nodes=p) for p in RANKS),
    Topology(kind="mesh2d", nodes=6, shape=(3, 2)),
    Topology(kind="mesh2d", nodes=9, shape=(3, 3)),
    Topology(kind="torus2d", nodes=9, shape=(3, 3)),
    Topology(kind="torus3d", nodes=8, shape=(2, 2, 2)),
]


def searched(topology):
    width = multiplicities(topology)
    return width[0][1] if topology.nodes == 2 else _packed(width, _cycles(width))


def test_rings_of_a_hybrid_cube_mesh():
    """GPUs 0 .. p-1 of a DGX-1: five of them are joined by no ring (GPU 4 has one neighbour among 0 to 3)."""
    assert [rings(Topology(kind="hybrid-cube-mesh", nodes=p)) for p in RANKS] == [1, 2, 4, 0, 2, 4, 6]


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_the_closed_form_of_full_wiring_is_what_a_search_finds(nodes):
    topology = Topology(kind="fully-connected", nodes=nodes)
    assert rings(topology) == searched(topology) == nodes - 1


def test_four_fully_connected_nodes_lose_one_ring():
    """The complete digraphs on 4 and 6 nodes have no decomposition into Hamiltonian cycles (Bermond and Faber 1976)."""
    assert searched(Topology(kind="fully-connected", nodes=4)) == rings(Topology(kind="fully-connected", nodes=4)) == 2
    assert [rings(Topology(kind="fully-connected", nodes=p)) for p in (6, 7, 8)] == [4, 6, 7]


@pytest.mark.parametrize("topology", DIRECT, ids=str)
def test_no_more_rings_than_links_at_any_node(topology):
    assert 0 <= rings(topology) <= min(sum(row) for row in multiplicities(topology))


@pytest.mark.parametrize("nodes", RANKS)
def test_a_ring_is_two_rings_one_each_way(nodes):
    assert rings(Topology(kind="ring", nodes=nodes)) == 2


def test_a_grid_of_odd_nodes_has_no_ring():
    """A cycle through a bipartite graph has as many nodes on one side as on the other."""
    assert rings(Topology(kind="mesh2d", nodes=9, shape=(3, 3))) == 0
    assert rings(Topology(kind="mesh2d", nodes=6, shape=(3, 2))) == 2


@pytest.mark.parametrize("topology", DIRECT, ids=str)
def test_links_run_alike_both_ways_and_join_no_node_to_itself(topology):
    width = multiplicities(topology)
    assert width == tuple(zip(*width, strict=True))
    assert all(width[i][i] == 0 for i in range(topology.nodes))


@pytest.mark.parametrize("topology", DIRECT, ids=str)
def test_where_there_is_a_ring_there_is_a_chain(topology):
    assert has_chain(topology) or not rings(topology)


def test_a_chain_where_no_ring_is():
    assert has_chain(Topology(kind="hybrid-cube-mesh", nodes=5))
    assert has_chain(Topology(kind="mesh2d", nodes=9, shape=(3, 3)))


def test_no_chain_and_no_ring_over_a_switch():
    switch = Topology(kind="switch", nodes=4)
    assert (rings(switch), has_chain(switch)) == (0, False)


def test_one_node_has_no_ring():
    assert rings(Topology(kind="single", nodes=1)) == 0


def test_cycles_are_all_orders_of_the_other_nodes():
    cycles = _cycles(multiplicities(Topology(kind="fully-connected", nodes=5)))
    assert len(set(cycles)) == len(cycles) == 24
    assert all(sorted(cycle) == [0, 1, 2, 3, 4] and cycle[0] == 0 for cycle in cycles)


def test_the_search_gives_up_with_what_it_has(monkeypatch):
    monkeypatch.setattr(sys.modules["crossflow.hardware.mapping.rings"], "SEARCH_NODES", 2)
    assert 1 <= searched(Topology(kind="torus2d", nodes=9, shape=(3, 3))) <= 2
