"""Collectives on every topology: against brute force on small graphs, bandwidth bounds on large ones, and sharing between groups."""

import itertools
import re

import numpy as np
import pytest
from scipy.optimize import linprog

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import CrossflowError
from crossflow.cost.network import Wires
from crossflow.cost.ranks import SystemDelays
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.mapping.placement import GROUP, place, place_group
from crossflow.hardware.mapping.spread import _partitions, among, around, ring_row
from crossflow.hardware.mapping.topology import Network, Topology
from crossflow.program.collectives import FLOWS
from crossflow.program.groups import Group

SMALL = [
    Topology(kind="ring", nodes=7),
    Topology(kind="mesh2d", nodes=5, shape=(5, 1)),
    Topology(kind="mesh2d", nodes=9, shape=(3, 3)),
    Topology(kind="mesh2d", nodes=12, shape=(4, 3)),
    Topology(kind="mesh3d", nodes=8, shape=(2, 2, 2)),
    Topology(kind="torus2d", nodes=12, shape=(4, 3)),
    Topology(kind="torus2d", nodes=8, shape=(4, 2)),
    Topology(kind="torus3d", nodes=12, shape=(3, 2, 2)),
    Topology(kind="torus2d", nodes=12, shape=(4, 3), wrapped=(False, True)),
    Topology(kind="torus3d", nodes=12, shape=(2, 2, 3), wrapped=(True, False, False)),
    Topology(kind="fully-connected", nodes=6),
    Topology(kind="hybrid-cube-mesh", nodes=8),
    Topology(kind="hybrid-cube-mesh", nodes=4),
]


PORT, BF16 = 300e9, {"model": "lstm-16k", "dtype": "bf16"}


def spread(topology):
    """Of one group of all nodes, over links of bandwidth 1 rather than ports of bandwidth 1."""
    return place({"all": topology.nodes}, Network(package=topology)).route("all").package_spread


def widths(topology):
    return np.array([[topology.links.get((a, b), 0) for b in range(topology.nodes)] for a in range(topology.nodes)])


def time(topology, collective):
    """Time of a buffer of one byte over links of one byte a second, without latency."""
    p = topology.nodes
    volume = {"all_reduce": 2 * (p - 1) / p, "broadcast": 1}.get(collective, (p - 1) / p)
    return volume * spread(topology).of(FLOWS[collective]) / topology.degree


def subsets(nodes):
    return (np.array(list(chosen), bool) for chosen in itertools.product((0, 1), repeat=nodes) if 0 < sum(chosen) < nodes)


# ------------------------------------------------------------------------------------------ brute force


@pytest.mark.cases(3)
@pytest.mark.parametrize("topology", SMALL, ids=str)
def test_an_all_to_all_takes_what_a_multi_commodity_flow_takes(topology):
    """Least load of the busiest link over all ways to route p - 1 parts of 1 / p from every node, by linear programming."""
    p, width = topology.nodes, widths(topology)
    arcs = np.argwhere(width)
    balance = np.array([(arcs[:, 0] == node).astype(float) - (arcs[:, 1] == node) for node in range(p)])
    flows = np.hstack([np.kron(np.eye(p), balance), np.zeros((p * p, 1))])
    sent = (np.eye(p) - 1 / p).ravel()  # of each source, at each node
    loads = np.hstack([np.tile(np.eye(len(arcs)), p), -width[tuple(arcs.T)][:, None].astype(float)])
    found = linprog(np.eye(len(loads[0]))[-1], A_ub=loads, b_ub=np.zeros(len(arcs)), A_eq=flows, b_eq=sent)
    assert time(topology, "all_to_all") == pytest.approx(found.fun, rel=0.05)


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("topology", SMALL, ids=str)
def test_a_gather_takes_what_the_tightest_cut_takes(topology):
    """What lies outside a set of nodes comes in over its links; trees that take no longer exist (Edmonds 1973)."""
    width, p = widths(topology), topology.nodes
    bound = max((p - inside.sum()) / p / width[~inside][:, inside].sum() for inside in subsets(p))
    assert time(topology, "all_gather") == time(topology, "reduce_scatter") == pytest.approx(bound, rel=1e-9)
    assert time(topology, "broadcast") == pytest.approx(1 / min(width[~inside][:, inside].sum() for inside in subsets(p)), rel=1e-9)


@pytest.mark.parametrize("topology", [one for one in SMALL if one.nodes <= 9], ids=str)
def test_an_all_reduce_takes_what_edge_disjoint_trees_take(topology):
    """As many spanning trees as the least of crossing edges over parts - 1 among all partitions (Tutte and Nash-Williams 1961)."""
    width = widths(topology) / 2
    parts = np.array(list(_partitions(topology.nodes)))[1:]
    crossing = ((parts[:, :, None] != parts[:, None, :]) * width).sum(axis=(1, 2))
    assert time(topology, "all_reduce") == pytest.approx(1 / (crossing / parts.max(axis=1)).min(), rel=1e-9)


# ------------------------------------------------------------------------------------------ whole systems


def delays(kind, devices, **level):
    """Time of collectives among the first devices of chips with 300 GB/s of links, wired otherwise."""
    system = SystemDelays.of("tpu-v4-pod", 8).wires.network
    intra = system.intra.model_copy(update={"topology": kind, "ports": None, **level})
    network = system.model_copy(update={"intra": intra})
    spec = crossflow.from_dict({"system": {"template": "tpu-v4-pod", "devices": 8}, "workload": BF16, "strategy": "d8"}).system
    device = architecture(spec.model_copy(update={"network": network}))
    wires = Wires(network=network, architecture=device, node=devices)
    return lambda op, size=1e12: float(wires.time(op, np.array([size]), Group.alike(devices, devices, 1))[0])


@pytest.mark.parametrize(
    ("kind", "nodes", "bound"),
    [
        ("ring", 64, 2 * 63 / 64),
        ("torus2d", 64, 2 * 63 / 64),
        ("torus3d", 64, 2 * 63 / 64),
        ("fully-connected", 64, 2 * 63 / 64),
        ("switch", 64, 2 * 63 / 64),
        ("hybrid-cube-mesh", 8, 2 * 7 / 8),
        ("mesh2d", 1024, 2),  # a corner sends its buffer over half of its links
        ("mesh3d", 4096, 2),
    ],
)
def test_a_long_all_reduce_meets_the_bound_of_the_links_of_a_device(kind, nodes, bound):
    assert bound * 1e12 / PORT * 0.999 <= delays(kind, nodes)("all_reduce") <= 1.1 * bound * 1e12 / PORT


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all", "broadcast"])
def test_a_richer_topology_of_the_same_port_is_never_slower(op, size):
    """From a line to all links; ports, devices and latency of a hop are kept."""
    kinds = [("mesh2d", (64, 1)), ("ring", None), ("torus2d", None), ("torus3d", None), ("fully-connected", None)]
    times = [delays(kind, 64, shape=shape)(op, size) for kind, shape in kinds]
    assert (np.diff(times) <= 1e-9 * np.array(times[1:])).all()


@pytest.mark.parametrize("kind", ["ring", "mesh2d", "torus3d", "fully-connected", "switch"])
def test_links_of_twice_the_bandwidth_never_slow(kind):
    slow, fast = delays(kind, 64), delays(kind, 64, bandwidth=np.array([2 * PORT]))
    for op in ("all_reduce", "all_to_all", "broadcast", "send_recv"):
        assert slow(op) / 2.01 < fast(op) < slow(op)


@pytest.mark.parametrize(("kind", "stride", "ratio"), [("torus2d", 8, 1.0), ("torus2d", 1, 1.0), ("ring", 1, 0.5), ("ring", 8, 1 / 8)])
def test_groups_share_the_links_that_they_have_in_common(kind, stride, ratio):
    """Rings of 8 among 64: rows or columns of a torus have links of their own; every eighth node of a ring shares them with seven others;
    neighbours on a ring have a line, of which each end has one link.
    """
    route = place_group(8, stride, Network(package=Topology(kind=kind, nodes=64))).route("group")
    alone = Topology(kind=kind, nodes=64).degree * 7 / 8 / (2 * 7 / 8)  # both ways round a ring of 8, of all links of a device
    assert alone / route.package_spread.of("gather") == pytest.approx(ratio)


def test_two_quads_of_a_dgx_1_do_not_slow_each_other():
    group = {"size": np.array([4.0]), "per_node": np.array([4.0]), "stride": np.ones(1), "extent": np.array([4.0])}
    wires = SystemDelays.of("dgx-1", 8).wires
    both, alone = (
        float(wires.time("all_reduce", np.array([1e9]), Group(**group, devices=np.array([devices])))[0]) for devices in (8.0, 4.0)
    )
    assert both == alone


def test_all_groups_of_a_dgx_1_that_placements_make_have_links_of_their_own():
    for stride, ranks in ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4)):
        assert place_group(ranks, stride, Network(package=Topology(kind="hybrid-cube-mesh", nodes=8))).route("group").package_spread.rings


def test_a_pod_of_tpus_reaches_its_published_bandwidth():
    """Google Cloud, TPU v4: 1.1 PB/s of all-reduce and 24 TB/s of bisection in a pod of 4,096 chips."""
    pod = SystemDelays.of("tpu-v4-pod", 4096)
    reduced, exchanged = (pod.time(op, 1e10, tuple(range(4096)))[0] for op in ("all_reduce", "all_to_all"))
    assert 2 * 4095 * 1e10 / reduced == pytest.approx(1.1e15, rel=0.15)
    assert 4096 * 1e10 / 4 / exchanged == pytest.approx(24e12, rel=0.1)


@pytest.mark.parametrize(("shape", "longest"), [(None, 16), ([1, 1, 8], 32), ([2, 1, 4], 16)])
def test_cubes_are_joined_to_a_torus_of_any_shape(shape, longest):
    system = {"template": "tpu-v4-pod", "devices": 512, "network": {"inter": {"shape": shape}} if shape else {}}
    scenario = crossflow.from_dict({"system": system, "workload": BF16, "strategy": "d512"})
    package = scenario.network().package
    assert (package.nodes, package.kind, max(package.shape)) == (512, "torus3d", longest if shape else 8)


# ------------------------------------------------------------------------------------------ behind switches


def tapered(op, **level):
    """Time of groups of 32 of the 64 devices of a cluster."""
    network = Network(package=Topology(kind="single", nodes=1), cluster=Topology(nodes=64, **level))
    return place({"dp": 32, "tp": 2}, network).route("dp").cluster_spread.of(FLOWS[op])


@pytest.mark.parametrize(
    ("level", "gather", "exchange"),
    [
        ({"kind": "switch"}, 1, 1),
        ({"kind": "rail-only"}, 1, 1),
        ({"kind": "fat-tree", "group": 8, "oversubscription": 4.0}, 1, 4 * 24 / 31),  # one edge of eight leaves a leaf
        ({"kind": "fat-tree", "group": 1, "oversubscription": 4.0}, 4, 4),
        ({"kind": "fat-tree", "group": 32, "oversubscription": 4.0}, 1, 1),  # groups stay on a leaf
        ({"kind": "dragonfly", "group": 8, "oversubscription": 1.0}, 1, 2 * 24 / 31),  # 3 of 7 links, less than through third groups
        ({"kind": "dragonfly", "group": 16, "oversubscription": 1.0}, 1, 2 * 16 / 31),
    ],
)
def test_what_leaves_a_group_of_nodes_passes_its_uplinks(level, gather, exchange):
    assert (tapered("all_reduce", **level), tapered("all_to_all", **level)) == pytest.approx((gather, exchange))


@pytest.mark.parametrize(
    ("nodes", "leaf", "size", "stride", "straddles"),
    [
        (24, 16, 24, 1, False), (24, 16, 3, 8, False), (24, 16, 8, 1, False), (20, 8, 20, 1, False),
        (20, 8, 5, 4, False), (5, 4, 5, 1, False),
        (24, 16, 12, 1, True), (24, 16, 8, 3, True), (40, 16, 10, 1, True),
    ],
)  # fmt: skip
def test_a_last_leaf_with_fewer_nodes_has_uplinks_in_proportion(nodes, leaf, size, stride, straddles):
    """Against a count of all that leaves each leaf; where groups straddle leaves it is a bound."""
    over = 4.0
    network = Network(
        package=Topology(kind="single", nodes=1), cluster=Topology(kind="fat-tree", nodes=nodes, group=leaf, oversubscription=over)
    )
    found = place_group(size, stride, network).route(GROUP).cluster_spread
    blocks = range(0, nodes, size * stride)
    groups = [[first + place + stride * i for i in range(size)] for first in blocks for place in range(stride)]
    for op in ("all_reduce", "all_to_all"):
        leaving = np.zeros(-(-nodes // leaf))
        for group in groups:
            for i, node in enumerate(group):
                others = group if op == "all_to_all" else [group[(i + 1) % size]]
                leaving[node // leaf] += np.mean([other // leaf != node // leaf for other in others if other != node])
        uplinks = np.array([min(leaf, nodes - first) / over for first in range(0, nodes, leaf)])
        counted = max(1.0, float((leaving / uplinks).max()))
        assert found.of(FLOWS[op]) >= counted * (1 - 1e-9) if straddles else found.of(FLOWS[op]) == pytest.approx(counted)


def predicted(inter, strategy="dp32"):
    system = {"template": "dgx-h100", "nodes": 4, "network": {"inter": inter}}
    workload = {"model": "llama2-7b", "global_batch": 64}
    return crossflow.predict(crossflow.from_dict({"system": system, "workload": workload, "strategy": strategy})).step_time


def test_measured_fabrics_feel_the_wiring_between_nodes():
    """A leaf switch of one server with 16 to 1 uplinks; a fat tree that is not oversubscribed is one switch."""
    plain, tree, thin = (
        predicted({"topology": kind, **more})
        for kind, more in (
            ("crossbar", {}),
            ("fat-tree", {"group": 1, "oversubscription": 1}),
            ("fat-tree", {"group": 1, "oversubscription": 16}),
        )
    )
    assert plain == predicted({}) == pytest.approx(tree, rel=1e-12)
    assert thin > 1.2 * plain


# ------------------------------------------------------------------------------------------ placement, messages


@pytest.mark.cases(1)
@pytest.mark.parametrize(("topology", "strategy"), [("switch", "RC-1-8-d8"), ("mesh2d", "RC-1-8-d8"), ("torus2d", "CR-4-d16")])
def test_the_placement_is_the_one_whose_step_ends_first(topology, strategy):
    given = {"system": {"template": "mcm", "devices": 64, "network": {"intra": {"topology": topology}}}, "workload": "lstm-16k"}
    chosen = crossflow.from_dict({**given, "strategy": strategy})
    axes = [axis.name for axis in chosen.strategy.axes if axis.size > 1]
    orders = [{**given, "strategy": strategy, "placement": list(order)} for order in itertools.permutations(axes)]
    times = [float(evaluate(crossflow.from_dict(order)).step_time[0]) for order in orders]
    assert float(evaluate(chosen).step_time[0]) == pytest.approx(min(times), rel=1e-9)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"inter": {"topology": "fat-tree"}}, "fat-tree needs a group, the number of nodes on one leaf switch"),
        (
            {"inter": {"topology": "dragonfly", "group": 3}},
            "dragonfly has groups of 3 nodes, which 4 nodes do not fill; take 3 or 6 nodes, or groups of 2, 1",
        ),
        (
            {"inter": {"topology": "torus2d", "group": 2}},
            "group and oversubscription are those of a dragonfly or a fat-tree, the topology is torus2d; give topology: fat-tree and the"
            " group too",
        ),
        ({"inter": {"topology": "torus2d", "ports": 3}}, "torus2d of 4 nodes uses 4 ports of a node, which has 3"),
        ({"inter": {"topology": "torus2d", "wraps": [True]}}, "torus2d has 2 dimension(s), wraps says 1"),
        (
            {"inter": {"topology": "mesh2d", "wraps": [False, False]}},
            "wraps is of the rows of a ring or a torus, and network.inter is wired as",
        ),
        (
            {"inter": {"topology": "switch", "ring_from": 4}},
            "ring_from is of the rows of a ring or a torus, and network.inter is wired as switch",
        ),
        ({"inter": {"topology": "switch", "ports": 2}}, "ports are those of direct topologies, the topology is switch"),
        ({"intra": {"topology": "torus2d"}}, "a node of fabric nvswitch-sharp is wired as switch; topology torus2d needs fabric: ideal"),
        (
            {"inter": {"topology": "optical-torus"}},
            "an optical-torus joins nodes that are tori each: it is a topology of inter, where that of intra is a torus",
        ),
    ],
)
def test_a_network_that_cannot_be_says_so(network, sentence):
    with pytest.raises(CrossflowError, match=re.escape(sentence)):
        crossflow.from_dict({"system": {"template": "dgx-h100", "nodes": 4, "network": network}, "workload": "lstm-16k", "strategy": "d32"})


@pytest.mark.parametrize(("devices", "rows"), [(16, [False, False]), (128, [True, False]), (256, [True, True])])
def test_rows_of_a_slice_are_rings_from_so_many_devices_on(devices, rows):
    """A TPU v6e closes rows of sixteen; what a scenario says itself counts."""
    inside = {"ring_from": 16, "topology": "torus2d", "fabric": "ici"}

    def step(**intra):
        network = {"intra": {"ring_from": None, **intra}}
        system = {"template": "tpu-v6e-pod", "devices_per_node": devices, "nodes": 1, "network": network}
        workload = {"model": "llama3-8b", "global_batch": devices}
        return evaluate(crossflow.from_dict({"system": system, "workload": workload, "strategy": f"dp{devices}-z3"})).step_time[0]

    assert step(**inside) == step(wraps=rows)
    assert (step(**inside) > step()) == (not all(rows))


def test_a_ring_row_of_two_has_both_links():
    assert (ring_row(2).receives, ring_row(2).exchange) == (2, 0.25)


def test_an_all_to_all_is_bound_by_all_hops_where_no_cut_is_narrower():
    """Three nodes linked to three others: 42 hops of a sixth of a buffer on 18 links; the tightest cut passes a third of one."""
    width = tuple(tuple(int((a < 3) != (b < 3)) for b in range(6)) for a in range(6))
    found = among(width, 3)
    assert found.exchange == pytest.approx(3 * (42 / 6 / 18) / (5 / 6), rel=1e-12)
    assert found.steps == 3


def test_groups_that_take_a_ring_by_hand():
    """Four ranks two hops apart, of two links each: three edges share a link one way, three halves both ways at once."""
    found = around(4, 2, 3.0, 1.5, 2)
    assert (found.gather, found.reduce, found.broadcast, found.transfer) == (3.0, 3.0, 3.0, 6.0)
    assert (found.exchange, found.steps) == (3.0 * 4 / 3, 4)
