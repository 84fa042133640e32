"""Placements: layouts, routes of each axis, and link sharing checked against routing every edge one by one."""

import itertools
import math
import re
from collections import Counter
from time import process_time

import numpy as np
import pytest
from routing import devices, effective_bandwidth, hops, route, routed_edges, to_networkx
from sampled import every, fewer

from crossflow.hardware.mapping import placement
from crossflow.hardware.mapping.placement import (
    layouts,
    level_bandwidths,
    orders,
    pair_route,
    place,
)
from crossflow.hardware.mapping.topology import Network, Topology

SWITCHED = Network(package=Topology(kind="switch", nodes=8), cluster=Topology(kind="switch", nodes=4))


def flat(kind, nodes, shape=()):
    return Network(package=Topology(kind=kind, nodes=nodes, shape=shape))


def exactly(sentence):
    return f"^{re.escape(sentence)}$"


def random_factors(rng, product, count):
    """`count` sizes with the given product, prime factors dealt at random."""
    sizes = [1] * count
    while product > 1:
        prime = next(p for p in range(2, product + 1) if product % p == 0)
        sizes[rng.integers(count)] *= prime
        product //= prime
    return sizes


# --- Fig. 5: P2, D3, RC-K4-K2 ----------------------------------------------------------------------------------------

FIGURE_5 = {"kp1": 4, "kp2": 2, "lp": 2, "dp": 3}  # the order of its caption: kernel(R), kernel(C), pipeline, data


@pytest.mark.parametrize("kind", ["mesh2d", "torus2d"])
def test_figure_5_maps_an_edge_onto_a_four_hop_path(kind):
    # 4 * 2 * 2 * 3 = 48 devices, most square 8 x 6: a kernel block (4 x 2) fills a row of eight, so the second kernel
    # dimension joins nodes four columns apart, and the pipeline stages of a shard lie on neighbouring rows.
    placed = place(FIGURE_5, flat(kind, 48))
    assert placed.network.package.shape == (8, 6)
    assert {len(links) for *_, links in routed_edges(placed, "kp2")} == {4}
    assert placed.route("kp2").hops == 4
    assert placed.route("lp").hops == 1


def test_figure_5_on_rows_of_four_has_the_four_hops_along_data():
    # The other reading: the first kernel dimension fills a row, the second one neighbours it, and data shards, four
    # rows apart, are joined by the 4-hop path. A torus closes their ring with four more.
    placed = place(FIGURE_5, flat("torus2d", 48, (4, 12)))
    assert [placed.route(name).hops for name in FIGURE_5] == [1, 1, 2, 4]
    assert {len(links) for *_, links in routed_edges(placed, "dp")} == {4}


# --- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_device_gets_one_shard(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 7, 3))
    cluster = Topology(kind="mesh2d", nodes=6)
    network = Network(package=Topology(kind="torus3d", nodes=math.prod(shape), shape=shape), cluster=cluster)
    placed = place(zip("abcd", random_factors(rng, network.devices, 4), strict=True), network)
    assert sorted(devices(placed)) == list(range(network.devices))


@pytest.mark.parametrize("seed", range(20))
def test_consecutive_shards_of_the_first_axis_are_neighbours(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 7, 2))
    mesh = flat("mesh2d", math.prod(shape), shape)
    placed = place(zip("abc", random_factors(rng, mesh.devices, 3), strict=True), mesh, chains="abc")
    first = placed.order[:1]
    assert all(placed.route(name).hops == 1 for name in first)


def test_axes_as_long_as_the_rows_become_rows_and_columns():
    placed = place({"tp": 4, "dp": 6}, flat("torus2d", 24, (4, 6)))
    assert devices(placed).tolist() == list(range(24))
    assert [route.hops for route in placed.routes] == [1, 1]


def test_axes_that_fill_packages_lie_on_the_cluster_as_on_a_mesh_of_packages():
    """Of 64 devices in packages of 8: rings of 4 packages next to each other, and of 2 four packages apart; rings of shards that are
    a package and a half each are left out, as is one that ends within a package, and one inside a package is none of the cluster."""
    spans = [
        placement._Span(name=str(stride), size=size, stride=stride, chain=False)
        for size, stride in ((4, 8), (2, 32), (3, 12), (4, 12), (4, 2), (6, 2))
    ]
    assert placement._cluster_spans(tuple(spans), 8) == ((1, 4), (4, 8))
    assert placement._package_spans(tuple(spans), 8) == ((2, 8), (2, 8))


def test_an_axis_longer_than_a_row_turns_round_at_its_end():
    placed = place({"tp": 8, "dp": 2}, flat("mesh2d", 16, (4, 4)))
    assert devices(placed).tolist() == [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12]
    assert placed.route("dp").hops == 2


def test_only_the_axis_that_turns_runs_backwards():
    # tp pairs lie left to right on every row; dp comes back on odd rows, so a dp edge to the next row is one hop.
    placed = place({"tp": 2, "dp": 8}, flat("mesh2d", 16, (4, 4)), chains=["dp"])
    assert devices(placed).tolist() == [0, 1, 2, 3, 6, 7, 4, 5, 8, 9, 10, 11, 14, 15, 12, 13]
    assert placed.route("dp").hops == 2


def test_packages_are_filled_one_after_the_other():
    placed = place({"tp": 4, "pp": 2, "dp": 4}, SWITCHED)
    assert [route.package_size for route in placed.routes] == [4, 2, 1]
    assert [route.crosses for route in placed.routes] == [False, False, True]


def test_an_axis_that_fills_more_than_a_package_is_split_by_its_border():
    route = place({"tp": 16, "dp": 2}, SWITCHED).route("tp")
    assert (route.package_size, route.crosses) == (8, True)
    assert (route.package_sharing, route.cluster_sharing) == (1, 1)


def test_an_axis_that_a_border_cuts_unevenly_counts_only_whole_groups():
    # Ranks 0-3 | 4 5 : 6 7 | 8-11 : groups of two are the largest that no package border of four cuts.
    network = Network(package=Topology(kind="ring", nodes=4), cluster=Topology(kind="switch", nodes=3))
    assert place({"tp": 6, "dp": 2}, network).route("tp").package_size == 2


# --- sharing against the oracle --------------------------------------------------------------------------------------

PACKAGES = [
    Topology(kind="single", nodes=1),
    Topology(kind="hybrid-cube-mesh", nodes=8),
    Topology(kind="hybrid-cube-mesh", nodes=6),
    Topology(kind="switch", nodes=6),
    Topology(kind="fully-connected", nodes=4),
    Topology(kind="ring", nodes=2),
    Topology(kind="mesh2d", nodes=6),
    Topology(kind="mesh2d", nodes=30),
    Topology(kind="torus2d", nodes=16),
]
CLUSTERS = [
    Topology(kind="single", nodes=1),
    Topology(kind="switch", nodes=6),
    Topology(kind="fully-connected", nodes=6),
    Topology(kind="ring", nodes=2),
    Topology(kind="ring", nodes=5),
    Topology(kind="mesh2d", nodes=12),
    Topology(kind="torus2d", nodes=24),
    Topology(kind="torus3d", nodes=12),
    Topology(kind="torus2d", nodes=24, wrapped=(False, True)),
]


def oracle_edges(placed, name):
    """Edges of an axis between devices, from the logical array of devices rolled along the axis."""
    sizes = dict(placed.axes)
    logical = devices(placed).reshape([sizes[axis] for axis in reversed(placed.order)])
    along = len(placed.order) - 1 - placed.order.index(name)
    ends = [logical, np.roll(logical, -1, axis=along)]
    if name in placed.chains:
        ends = [np.delete(end, -1, axis=along) for end in ends]
    return zip(*(end.ravel().tolist() for end in ends), strict=True)


def oracle_links(network, source, target):
    size = network.package.nodes
    if source // size == target // size:
        return [("package", source // size, *link) for link in route(network.package, source % size, target % size)]
    if network.cluster.kind == "switch":
        return [("cluster", "up", source), ("cluster", "down", target)]
    return [("cluster", None, *link) for link in route(network.cluster, source // size, target // size)]


def oracle_sharing(network, load, level):
    """Edges for each physical link; ports into a direct cluster network are pooled over the devices of a package."""
    topology = getattr(network, level)
    devices_each = network.package.nodes if level == "cluster" and topology.kind != "switch" else 1
    width = {} if topology.kind == "switch" else topology.links
    return max((max(n / devices_each, 1) / width.get(link[2:], 1) for link, n in load.items() if link[0] == level), default=0)


def oracle_hops(network, source, target):
    size = network.package.nodes
    if source // size == target // size:
        return hops(network.package, source % size, target % size)
    return hops(network.cluster, source // size, target // size)


@pytest.mark.cases(36)
@pytest.mark.slow
@pytest.mark.parametrize(("package", "cluster"), list(itertools.product(PACKAGES, CLUSTERS)), ids=str)
def test_sharing_and_hops_agree_with_routing_edge_by_edge(package, cluster):
    network = Network(package=package, cluster=cluster)
    rng = np.random.default_rng(network.devices)
    for _ in range(fewer(4, 2)):
        placed = place(zip(["tp", "pp", "dp", "ep"], random_factors(rng, network.devices, 4), strict=True), network)
        network = placed.network  # tori may have been turned
        total = Counter()
        for name in placed.order:
            edges, route = list(oracle_edges(placed, name)), placed.route(name)
            load = Counter(link for ends in edges for link in oracle_links(network, *ends))
            assert route.hops == max(oracle_hops(network, *ends) for ends in edges)
            assert route.package_sharing == oracle_sharing(network, load, "package")
            assert route.cluster_sharing == oracle_sharing(network, load, "cluster")
            assert route.crosses == any(a // package.nodes != b // package.nodes for a, b in edges)
            total += load
        shares = [oracle_sharing(network, total, level) for level in ("package", "cluster")]
        assert placed.total_sharing == max(shares)


@pytest.mark.parametrize("seed", range(10))
def test_groups_of_package_size_share_a_package_and_no_larger_ones_do(seed):
    rng = np.random.default_rng(seed)
    network = Network(package=Topology(kind="switch", nodes=12), cluster=Topology(kind="switch", nodes=10))
    placed = place(zip("abc", random_factors(rng, 120, 3), strict=True), network)

    def fits(name, group):
        stride, size = placed.strides[name], dict(placed.axes)[name]
        rings = (base for base in range(120) if base // stride % size == 0)
        ranks = [[base + stride * i for i in range(k, k + group)] for base in rings for k in range(0, size, group)]
        return all(len({rank // 12 for rank in group}) == 1 for group in ranks)

    for name in placed.order:
        size = dict(placed.axes)[name]
        expected = max(group for group in range(1, size + 1) if size % group == 0 and fits(name, group))
        assert placed.route(name).package_size == expected


@pytest.mark.parametrize("kind", ["mesh2d", "torus2d", "ring", "torus3d"])
def test_loads_of_links_add_up_to_the_hops_of_edges(kind):
    placed = place({"tp": 4, "pp": 3, "dp": 5}, flat(kind, 60))
    graph = to_networkx(placed)
    hops = sum(len(links) for name in placed.order for *_, links in routed_edges(placed, name))
    assert sum(load for *_, load in graph.edges(data="load")) == hops > 0


def test_a_chain_has_one_edge_less_than_a_ring():
    ring, chain = (place({"pp": 8}, flat("ring", 8), chains=chains) for chains in ((), ("pp",)))
    assert (len(list(routed_edges(ring, "pp"))), len(list(routed_edges(chain, "pp")))) == (8, 7)


def test_a_switch_port_carries_one_edge_of_each_axis():
    placed = place({"tp": 4, "cp": 2, "pp": 2, "dp": 2}, flat("switch", 32))
    assert [route.package_sharing for route in placed.routes] == [1, 1, 1, 1]
    assert placed.total_sharing == 4


def test_a_ring_of_eight_gpus_has_the_double_links_of_a_dgx1_to_itself():
    placed = place({"dp": 8}, flat("hybrid-cube-mesh", 8))
    assert placed.route("dp").package_sharing == 0.5
    assert {tuple(link[0] for link in links) for *_, links in routed_edges(placed, "dp")} == {(f"device {gpu}",) for gpu in range(8)}


def test_an_axis_of_size_one_is_never_routed():
    placed = place({"tp": 8, "dp": 1, "pp": 4}, SWITCHED, ["pp", "dp", "tp"])
    route = placed.route("dp")
    assert (route.hops, route.package_sharing, route.cluster_sharing, route.crosses) == (0, 0, 0, False)
    assert list(routed_edges(placed, "dp")) == []
    assert placed.order == ("pp", "tp")


def test_the_system_graph_holds_all_links_and_the_edges_on_them():
    graph = to_networkx(
        place(
            {"tp": 4, "dp": 6},
            Network(package=Topology(kind="mesh2d", nodes=4), cluster=Topology(kind="switch", nodes=6)),
        )
    )
    assert sum(level == "package" for *_, level in graph.edges(data="level")) == 6 * 8
    assert graph.edges["device 3", "cluster switch"] == {"level": "cluster", "width": 1, "load": 1}


# --- bandwidth -------------------------------------------------------------------------------------------------------


def test_bandwidth_is_that_of_a_link_divided_by_the_edges_on_it():
    route = place({"tp": 4, "dp": 12}, flat("mesh2d", 48, (8, 6)), ["tp", "dp"]).route("dp")
    assert route.package_sharing > 1
    package = np.array([4e9, 8e9])
    np.testing.assert_allclose(effective_bandwidth(route, package, 1.0), package / 4 / route.package_sharing)


def test_the_slower_level_sets_the_pace_and_unused_levels_are_infinite():
    placed = place({"tp": 16, "dp": 2}, SWITCHED)
    assert effective_bandwidth(placed.route("tp"), 900e9, [50e9, 100e9]).tolist() == [50e9, 100e9]
    inside, between = level_bandwidths(placed.route("dp"), 900e9, 50e9)
    assert (float(inside), float(between)) == (np.inf, 50e9)


def test_an_axis_of_size_one_has_no_slowest_link():
    route = place({"tp": 32, "dp": 1}, SWITCHED).route("dp")
    assert np.isinf(effective_bandwidth(route, [1.0, 2.0, 3.0], 1.0)).tolist() == [True] * 3


# --- orders and the best of them -------------------------------------------------------------------------------------


def test_four_axes_have_24_orders_the_given_one_first():
    every = orders({"kp1": 4, "kp2": 4, "dp": 4, "lp": 4})
    assert len(set(every)) == len(every) == 24
    assert every[0] == ("kp1", "kp2", "dp", "lp")


def test_axes_of_size_one_are_not_permuted():
    assert orders([("tp", 4), ("pp", 1), ("dp", 2)]) == (("tp", "dp"), ("dp", "tp"))


def test_axes_of_equal_size_keep_both_layouts():
    axes = {"tp": 8, "dp": 8}
    network = Network(package=Topology(kind="switch", nodes=8), cluster=Topology(kind="switch", nodes=8))
    first, second = (place(axes, network, order) for order in orders(axes))
    assert [route.crosses for route in first.routes] == [False, True]
    assert [route.crosses for route in second.routes] == [True, False]


def test_behind_one_switch_all_orders_are_one_layout():
    assert [one.order for one in layouts((("dp", 4), ("tp", 8)), flat("switch", 32))] == [("dp", "tp")]


def test_layouts_differ_where_an_axis_lies_on_other_links():
    axes = (("kp1", 4), ("kp2", 2), ("lp", 2), ("dp", 3))
    found = layouts(axes, flat("mesh2d", 48))
    assert found[0].order == ("kp1", "kp2", "lp", "dp")
    routes = {place(axes, flat("mesh2d", 48), order).routes for order in orders(axes)}
    assert {one.routes for one in found} == routes
    assert len(found) == len(routes) > 4


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "network", "sentence"),
    [
        (
            {"tp": 8, "dp": 2},
            Network(cluster=Topology(kind="ring", nodes=12)),
            "ring of 12 nodes cannot hold 16 devices",
        ),
        ({"tp": 8, "dp": 2}, flat("mesh2d", 15, (3, 5)), "mesh2d of 15 nodes cannot hold 16 devices"),
        ({"tp": 64}, SWITCHED, "switch of 4 packages, each a switch of 8 nodes, cannot hold 64 devices"),
        ({"tp": 8, "dp": 2}, SWITCHED, "tp*dp = 16 but the system has 32 devices"),
        ({"tp": 32, "dp": 0}, SWITCHED, "axis dp has size 0, expected at least 1"),
        ([("tp", 8), ("tp", 4)], SWITCHED, "axis tp is given 2 times"),
    ],
)
def test_axes_that_do_not_fit_say_so(axes, network, sentence):
    with pytest.raises(ValueError, match=exactly(sentence)):
        place(axes, network)


@pytest.mark.parametrize("order", [["tp"], ["tp", "pp"], ["tp", "dp", "pp"], ["tp", "dp", "dp"]])
def test_an_order_must_name_each_axis_once(order):
    with pytest.raises(ValueError, match=exactly(f"order {', '.join(order)} is not an order of the axes tp, dp")):
        place({"tp": 8, "dp": 4}, SWITCHED, order)


def test_the_route_of_an_unknown_axis_is_refused():
    with pytest.raises(ValueError, match=exactly("no axis 'dp', the axes are tp")):
        place({"tp": 32}, SWITCHED).route("dp")


# --- speed -----------------------------------------------------------------------------------------------------------


def test_a_switch_cluster_is_closed_form(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("edges were enumerated")

    monkeypatch.setattr(placement, "_edges", refuse)
    network = Network(package=Topology(kind="switch", nodes=8), cluster=Topology(kind="switch", nodes=8192))
    placed = place({"tp": 16, "cp": 2, "pp": 16, "dp": 128}, network)
    assert [route.cluster_sharing for route in placed.routes] == [1, 1, 1, 1]
    assert placed.total_sharing == 4


def test_packages_that_look_alike_are_counted_once(monkeypatch):
    asked = []
    count_edges = placement.count_edges
    monkeypatch.setattr(placement, "count_edges", lambda *args, copies: asked.append(copies) or count_edges(*args, copies=copies))
    network = Network(package=Topology(kind="mesh2d", nodes=16), cluster=Topology(kind="switch", nodes=4096))
    place({"tp": 32, "pp": 16, "dp": 128}, network)
    assert asked == [1]


def seconds(work):
    start = process_time()
    work()
    return process_time() - start


def test_counting_on_a_large_mesh_is_far_quicker_for_each_device_than_routing_edge_by_edge():
    small, large = flat("mesh2d", 576), flat("mesh2d", 65536)
    axes = {"kp1": 4, "kp2": 2, "lp": 8, "dp": 9}
    by_edge = seconds(lambda: to_networkx(place(axes, small))) / 576
    counted = seconds(lambda: place({"kp1": 16, "kp2": 16, "lp": 16, "dp": 16}, large)) / 65536
    assert counted < by_edge / 10


def test_placements_are_cached():
    axes = {"kp1": 16, "kp2": 16, "lp": 4, "dp": 4}
    assert place(axes, flat("torus2d", 4096)) is place(dict(axes), flat("torus2d", 4096), list(axes))


@pytest.mark.parametrize("shape", list(itertools.permutations((12, 16, 16))), ids=str)
def test_the_order_of_the_sides_of_a_torus_changes_nothing(shape):
    """PaLM's layout: 12 tensor ranks are a ring on two of six links, 256 shards of weights a torus of 16 x 16 on the other four."""
    tensor, data = place({"tp": 12, "dp": 256}, Network(package=Topology(kind="torus3d", nodes=3072, shape=shape))).routes
    assert (tensor.package_hops, data.package_hops) == (1, 1)
    assert (tensor.package_spread.gather, data.package_spread.gather) == (6 / 2, 6 / 4)


def test_meshes_stay_as_they_are_given():
    network = Network(package=Topology(kind="mesh2d", nodes=12, shape=(4, 3)))
    assert place({"tp": 3, "dp": 4}, network).network == network


# --- one shard to another --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", every(2, [one for one in CLUSTERS if one.nodes > 2], 1), ids=str)
@pytest.mark.parametrize("package", every(2, [one for one in PACKAGES if one.nodes in (4, 6, 8)]), ids=str)
def test_two_shards_that_are_no_neighbours_have_the_links_to_themselves(package, cluster):
    """Edges of all ranks from one shard of a chain to another, routed one by one; none of the rest of the chain is there."""
    network = Network(package=package, cluster=cluster)
    rng = np.random.default_rng(network.devices)
    for name, *others in itertools.permutations(["tp", "pp", "dp"]):
        placed = place(zip([name, *others], random_factors(rng, network.devices, 3), strict=True), network, chains=(name,))
        size = dict(placed.axes)[name]
        if size < 3:
            continue
        logical = devices(placed).reshape([dict(placed.axes)[axis] for axis in reversed(placed.order)])
        along = len(placed.order) - 1 - placed.order.index(name)
        for shards in [(0, size - 1), (2, 0)]:
            edges = list(zip(*(np.take(logical, one, axis=along).ravel().tolist() for one in shards), strict=True))
            both = {True: [], False: []}
            for ends in edges:
                both[ends[0] // package.nodes == ends[1] // package.nodes].append(ends)
            load = Counter(link for ends in edges for link in oracle_links(placed.network, *ends))
            for inside, alone in both.items():
                if not alone:
                    continue
                found = pair_route(placed, name, shards, inside=inside)
                level = "package" if inside else "cluster"
                hop, shared = max(oracle_hops(placed.network, *ends) for ends in alone), oracle_sharing(placed.network, load, level)
                assert (getattr(found, f"{level}_hops"), getattr(found, f"{level}_sharing")) == (hop, shared)
                topology = getattr(placed.network, level)
                links = 1 if topology.is_switched else topology.degree
                rates = level_bandwidths(found, 12.0, 12.0)
                assert float(rates[not inside]) == pytest.approx(12.0 / (links * shared))
                assert np.isinf(rates[inside])


@pytest.mark.parametrize(("group", "slowed"), [(2, 3.0), (4, 3.0), (8, 1.0)])
@pytest.mark.parametrize("inside", [True, False])
def test_two_shards_on_one_leaf_switch_pass_no_uplink(group, slowed, inside):
    """Four stages of two devices: where a leaf has all eight devices they have all of their bandwidth, elsewhere a third of it."""
    of_nodes = group if inside else group // 2
    tree = Topology(kind="fat-tree", nodes=8 if inside else 4, group=of_nodes, oversubscription=3.0)
    lone, pair = Topology(kind="single", nodes=1), Topology(kind="switch", nodes=2)
    placed = place({"tp": 2, "pp": 4}, Network(package=tree, cluster=lone) if inside else Network(package=pair, cluster=tree))
    rates = level_bandwidths(pair_route(placed, "pp", (0, 2), inside=inside), 12.0, 12.0)
    assert float(rates[not inside]) == pytest.approx(12.0 / slowed)
