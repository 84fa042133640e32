"""Topologies: shapes, links, and routes that are made of existing links and are as short as they should be."""

import math
import re

import numpy as np
import pytest
from routing import hops, route

from crossflow.base.arrays import most_square
from crossflow.hardware.mapping.topology import _DIMENSIONS, GROUPED, Network, Topology

TOPOLOGIES = [
    Topology(kind="single", nodes=1),
    Topology(kind="ring", nodes=2),
    Topology(kind="ring", nodes=7),
    Topology(kind="mesh2d", nodes=20, shape=(5, 4)),
    Topology(kind="torus2d", nodes=20, shape=(4, 5)),
    Topology(kind="torus3d", nodes=24),
    Topology(kind="torus3d", nodes=12, shape=(3, 2, 2)),
    Topology(kind="torus3d", nodes=24, shape=(3, 2, 4), wrapped=(False, True, False)),
    Topology(kind="ring", nodes=5, wrapped=(False,)),
    Topology(kind="switch", nodes=5),
    Topology(kind="fully-connected", nodes=6),
    *(Topology(kind="hybrid-cube-mesh", nodes=nodes) for nodes in range(1, 9)),
]
CUBE_MESH = Topology(kind="hybrid-cube-mesh", nodes=8)


def exactly(sentence):
    return f"^{re.escape(sentence)}$"


def pairs(topology):
    return [(a, b) for a in range(topology.nodes) for b in range(topology.nodes)]


@pytest.mark.parametrize("kind", _DIMENSIONS)
def test_a_shape_has_the_dimensions_that_its_name_says_and_else_one(kind):
    sizes = int(kind[-2]) if kind.endswith("d") and kind[-2].isdecimal() else 1
    more = {"group": 1} if kind in GROUPED else {}
    assert len(Topology(kind=kind, nodes=1, **more).shape) == sizes
    with pytest.raises(ValueError, match=exactly(f"{kind} has {sizes} dimension(s), shape {'x'.join('1' * (sizes + 1))} has {sizes + 1}")):
        Topology(kind=kind, nodes=1, shape=(1,) * (sizes + 1), **more)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_routes_are_connected_chains_of_existing_links(topology):
    links = topology.links
    for source, target in pairs(topology):
        path = route(topology, source, target)
        assert set(path) <= set(links)
        assert [a for a, _ in path] + [target] == [source] + [b for _, b in path]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_links_run_both_ways_and_fit_the_ports_of_a_node(topology):
    links = topology.links
    assert all(links[b, a] == width for (a, b), width in links.items())
    for node in range(topology.nodes):
        assert sum(width for (a, _), width in links.items() if a == node) <= topology.degree


def test_mesh_routes_have_manhattan_length_and_go_along_x_first():
    mesh = Topology(kind="mesh2d", nodes=20, shape=(5, 4))
    for source, target in pairs(mesh):
        (x, y), (u, v) = mesh.coordinates(source), mesh.coordinates(target)
        assert hops(mesh, source, target) == abs(x - u) + abs(y - v)
    assert route(mesh, 0, 7) == ((0, 1), (1, 2), (2, 7))


@pytest.mark.parametrize("shape", [(4, 5), (6, 2)])
def test_torus_routes_take_the_shorter_way_round(shape):
    torus = Topology(kind="torus2d", nodes=math.prod(shape), shape=shape)
    for source, target in pairs(torus):
        ends = zip(torus.coordinates(source), torus.coordinates(target), shape, strict=True)
        assert hops(torus, source, target) == sum(min((b - a) % n, (a - b) % n) for a, b, n in ends)


def test_a_route_half_way_round_a_ring_goes_upwards():
    assert route(Topology(kind="ring", nodes=4), 3, 1) == ((3, 0), (0, 1))


def test_coordinates_count_along_x_first():
    torus = Topology(kind="torus3d", nodes=24, shape=(2, 3, 4))
    assert all(x + 2 * (y + 3 * z) == node for node in range(24) for x, y, z in [torus.coordinates(node)])


def test_every_gpu_of_a_dgx1_has_six_nvlinks_four_of_them_to_its_quad():
    links = CUBE_MESH.links
    for gpu in range(8):
        assert sum(width for (a, _), width in links.items() if a == gpu) == CUBE_MESH.degree == 6
        assert sum(a == gpu and a // 4 == b // 4 for a, b in links) == 3
        assert sum(a == gpu and a // 4 != b // 4 for a, b in links) == 1


def test_dgx1_links_are_those_nvidia_smi_prints():
    # GPU0 X NV1 NV1 NV2 NV2 SYS SYS SYS ; GPU6 SYS SYS NV1 SYS NV1 NV2 X NV2 (nvidia-smi topo -m, DGX-1 V100)
    links = CUBE_MESH.links
    assert [links.get((0, b), 0) for b in range(8)] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert [links.get((6, b), 0) for b in range(8)] == [0, 0, 1, 0, 1, 2, 0, 2]


def test_hybrid_cube_mesh_needs_at_most_one_gpu_between_and_takes_the_widest_way():
    assert max(hops(CUBE_MESH, a, b) for a, b in pairs(CUBE_MESH)) == 2
    assert route(CUBE_MESH, 0, 7) == ((0, 4), (4, 7))  # double links; through 3 the second link is single


def test_a_switch_is_one_hop_over_two_ports():
    switch = Topology(kind="crossbar", nodes=4)
    assert switch.kind == "switch"
    assert hops(switch, 0, 3) == 1
    assert route(switch, 0, 3) == ((0, switch.switch_node), (switch.switch_node, 3))


@pytest.mark.parametrize(
    ("kind", "nodes", "degree"),
    [("mesh2d", 16, 4), ("torus2d", 16, 4), ("ring", 8, 2), ("torus3d", 64, 6), ("switch", 8, 1), ("single", 1, 0)],
)
def test_degree_by_kind(kind, nodes, degree):
    assert Topology(kind=kind, nodes=nodes).degree == degree


def test_a_fully_connected_node_has_a_link_to_every_other():
    assert Topology(kind="fully-connected", nodes=9).degree == 8


def test_a_pair_on_a_ring_has_both_links_between_them():
    assert Topology(kind="ring", nodes=2).links == {(0, 1): 2, (1, 0): 2}


def test_most_square_shape_is_the_best_of_all_factorisations():
    for nodes in np.random.default_rng(0).integers(1, 300, 20):
        every = [(a, b, nodes // a // b) for a in range(1, nodes + 1) for b in range(1, nodes // a + 1)]
        best = min(sum(shape) for shape in every if math.prod(shape) == nodes)
        assert sum(most_square(int(nodes), 3)) == best
    assert most_square(48, 2) == (8, 6)
    assert most_square(65536, 2) == (256, 256)


def test_equal_topologies_are_equal_however_written():
    assert Topology(kind="mesh2d", nodes=12) == Topology(kind="mesh2d", nodes=12, shape=(4, 3))


@pytest.mark.parametrize(("torus", "mesh", "shape"), [("torus2d", "mesh2d", (4, 2)), ("torus3d", "mesh3d", (3, 2, 1))])
def test_a_torus_without_rings_has_the_links_of_a_mesh_and_one_with_all_is_itself(torus, mesh, shape):
    nodes, rows = math.prod(shape), len(shape)
    cut = Topology(kind=torus, nodes=nodes, shape=shape, wrapped=(False,) * rows)
    assert (cut.links, cut.degree) == ((whole := Topology(kind=mesh, nodes=nodes, shape=shape)).links, whole.degree)
    assert Topology(kind=torus, nodes=nodes, shape=shape, wrapped=(True,) * rows) == Topology(kind=torus, nodes=nodes, shape=shape)
    with pytest.raises(ValueError, match=f"{torus} has {rows} dimension"):
        Topology(kind=torus, nodes=nodes, shape=shape, wrapped=(True,) * (rows + 1))
    with pytest.raises(ValueError, match="rows that wrap are those of a ring or a torus"):
        Topology(kind=mesh, nodes=nodes, shape=shape, wrapped=(True,) * rows)


def test_a_network_has_a_device_for_each_node_of_each_package():
    assert Network(package=CUBE_MESH, cluster=Topology(kind="ring", nodes=3)).devices == 24


@pytest.mark.parametrize(
    ("kind", "nodes", "shape", "sentence"),
    [
        ("mesh2d", 16, (3, 5), "mesh2d shape 3x5 holds 15 nodes, the system has 16"),
        ("torus3d", 16, (4, 4), "torus3d has 3 dimension(s), shape 4x4 has 2"),
        ("mesh2d", 4, (-2, -2), "mesh2d shape -2x-2 has a size below 1"),
        ("hybrid-cube-mesh", 16, (), "hybrid-cube-mesh holds 8 nodes, the system has 16"),
        ("single", 2, (), "single holds 1 node, the system has 2"),
        ("ring", 0, (), "ring needs at least 1 node, got 0"),
    ],
)
def test_a_topology_that_cannot_be_says_so(kind, nodes, shape, sentence):
    with pytest.raises(ValueError, match=exactly(sentence)):
        Topology(kind=kind, nodes=nodes, shape=shape)


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"^unknown topology 'mesh', expected one of single, ring, mesh2d, mesh3d, torus2d"):
        Topology(kind="mesh", nodes=4)
