"""Collectives on real fabrics: limits of small and large messages, order in size and ranks, batches, and bounds on whole systems."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sampled import every

import crossflow
from crossflow.cost.fabrics import Fabric, Path, delayed, fabric_of, path, path_time
from crossflow.cost.network import message_costs
from crossflow.evidence.calibration.pricing import PricedSystem
from crossflow.evidence.validation.tables import collective_conditions, fabric_parameters
from crossflow.hardware.architecture.software import PeerAllReduce, load_stack
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.mapping.placement import place
from crossflow.parallel.transform import transform
from crossflow.program.collectives import COLLECTIVES, ring_volume
from crossflow.program.program import Message

P = fabric_parameters()
NO_PEERS = {"peer_all_reduce": None}
SIZE = np.geomspace(1, 1e12, 400)[:, None]
INTRA = [
    "nvswitch",
    "nvswitch-sharp",
    "nvl72",
    "pairwise-nvlink",
    "hybrid-cube-mesh",
    "infinity-fabric",
    "pcie",
    "pcie-host",
    "ethernet-mesh",
    "neuronlink",
    "torus3d",
]
RDMA = ["infiniband", "infiniband-sharp", "roce", "efa", "gpudirect-tcpxo", "ici"]
SYSTEMS = ["dgx-1", "dgx-a100", "h100-superpod"]
STEPS = {"all_reduce": lambda p: 2 * (p - 1), "all_gather": lambda p: p - 1, "reduce_scatter": lambda p: p - 1}


def fabric(intra="nvswitch", network="infiniband", link=300e9, host=32e9, nic=25e9, per_node=8):
    rates = {name: np.atleast_1d(np.asarray(rate, dtype=float)) for name, rate in (("link", link), ("host", host), ("nic", nic))}
    return Fabric(intra=intra, network=network, devices_per_node=per_node, parameters=P, **rates)


def time(made, collective, ranks, per_node=None, size=SIZE):
    return path_time(size, path(made, collective, ranks, ranks if per_node is None else per_node))


def assert_no_faster(slow, fast):
    assert np.isfinite(slow).all()
    assert (slow >= fast * (1 - 1e-12)).all()


# ------------------------------------------------------------------------------------------ size


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("intra", INTRA)
def test_more_bytes_never_take_less_time_inside_a_node(intra, collective):
    for ranks, link in itertools.product(range(2, 9), (300e9, 450e9, 900e9)):
        made = time(fabric(intra, link=link), collective, ranks)
        assert_no_faster(made[1:], made[:-1])
        assert (made[-20:] > 10 * made[0]).all()


NETWORKS = [(name, 25e9) for name in RDMA] + [("ethernet", np.nan), ("none", np.nan), ("ethernet", 25e9)]


@pytest.mark.parametrize(("network", "nic"), NETWORKS)
@pytest.mark.parametrize("per_node", [2, 4, 8])
def test_more_bytes_never_take_less_time_between_nodes(network, nic, per_node):
    for collective, ranks in itertools.product(COLLECTIVES, (16, 64, 512)):
        made = time(fabric("nvswitch", network, nic=nic), collective, ranks, per_node)
        assert_no_faster(made[1:], made[:-1])


def test_one_card_a_node_first_fills_its_send_buffers():
    """25 Gb/s Ethernet: up to 4.5 MiB at the rate of the copy, beyond at the wire's."""
    small, large = (time(fabric(network="ethernet", nic=np.nan), "send_recv", 2, 1, np.array([[size]]))[0, 0] for size in (1e6, 1e10))
    assert small == pytest.approx(P.launch_transfer[0] + 1e6 / P.send_buffer_rate[0], rel=2e-2)
    assert large == pytest.approx(1e10 / (P.ethernet_efficiency[0] * 3.125e9), rel=1e-3)


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_parts_on_rails_first_go_to_the_device_on_the_rail_of_their_receiver(per_node):
    """What leaves a node of 16 ranks, (16 - n) / 16, is exchanged inside it first; over slow links inside, so that these count."""
    plain = fabric(link=1e8, host=1e13, nic=1e13, per_node=per_node)

    def each(made, ranks):  # seconds for a further gigabyte
        return np.diff(time(made, "all_to_all", ranks, per_node, np.array([[1e9, 2e9]]))[0])[0]

    exchanged = each(plain, per_node) if per_node > 1 else 0.0
    assert each(replace(plain, rails=True), 16) - each(plain, 16) == pytest.approx((16 - per_node) / 16 * exchanged, rel=1e-3)


def test_one_rank_of_a_ring_in_a_node_sends_over_the_share_of_all():
    alone, ring = (time(fabric(network="ethernet", nic=np.nan), "send_recv", 16, n, np.array([[1e10]]))[0, 0] for n in (1, 2))
    assert ring == pytest.approx(alone / 2, rel=1e-3)


SWITCH, PCIE, CUBE = (float(rate[0]) for rate in (P.switch_efficiency, P.pcie_efficiency, P.direct_efficiency))
SUM, GATHER, IN_SWITCH = (float(cost[0]) for cost in (P.reduction_copy, P.gather_copy, P.in_switch_efficiency))
LONG = [
    # intra, ranks, collective, volume on the tightest link over what that link achieves [s/B]
    ("pcie", 2, "all_reduce", 1 / (PCIE * 32e9)),
    ("pcie", 4, "all_gather", 3 / 4 / (0.69 * 32e9)),
    ("pcie", 8, "all_reduce", 2 * 7 / 8 / (0.66 * 32e9)),
    ("pcie", 8, "all_gather", 7 / 8 / (0.66 * 32e9)),
    ("pcie-host", 4, "all_reduce", 2 * 3 / 4 / (0.563 * 32e9)),
    ("pcie-host", 8, "all_reduce", 2 * 7 / 8 / (0.563 * 32e9)),
    ("pairwise-nvlink", 8, "all_reduce", 2 * 7 / 8 / (0.66 * 32e9)),
    ("pcie-host", 2, "send_recv", 1 / (0.563 * 32e9)),
    ("pairwise-nvlink", 4, "all_reduce", 2 * 3 / 4 / (PCIE * 32e9)),
    ("pairwise-nvlink", 2, "all_reduce", (1 + SUM / 2) / (SWITCH * 300e9)),
    ("nvswitch", 8, "all_reduce", (2 * 7 / 8 + SUM / 8) / (SWITCH * 300e9)),
    ("nvswitch", 8, "reduce_scatter", (7 / 8 + GATHER / 8) / (SWITCH * 300e9)),
    ("nvswitch", 2, "send_recv", 1 / (P.switch_transfer_efficiency[0] * 300e9)),
    ("nvswitch-sharp", 8, "all_reduce", (1 + 1 / 8) / (IN_SWITCH * 300e9)),
    ("hybrid-cube-mesh", 8, "all_reduce", 2 * 7 / 8 / (6 * CUBE * 50e9)),
    ("hybrid-cube-mesh", 4, "all_reduce", 2 * 3 / 4 / (4 * CUBE * 50e9)),
    ("hybrid-cube-mesh", 5, "all_reduce", 1 / (CUBE * 50e9)),
    ("hybrid-cube-mesh", 5, "all_gather", 1 / (CUBE * 50e9)),
    ("infinity-fabric", 8, "all_reduce", 2 * 7 / 8 / (7 * 0.707 * 300e9 / 7)),
    ("infinity-fabric", 2, "all_reduce", 1 / (0.707 * 300e9 / 7)),
    ("ethernet-mesh", 8, "all_reduce", 2 * 7 / 8 / (7 * 0.979 * 300e9 / 7)),
    ("ethernet-mesh", 2, "send_recv", 1 / (0.979 * 300e9 / 7)),
    ("neuronlink", 8, "all_reduce", 2 * 7 / 8 / (0.275 * 300e9)),
]


@pytest.mark.parametrize(("intra", "ranks", "collective", "per_byte"), LONG)
def test_long_messages_take_volume_over_rate(intra, ranks, collective, per_byte):
    assert time(fabric(intra), collective, ranks, size=np.array([[1e15]]))[0, 0] == pytest.approx(1e15 * per_byte, rel=1e-4)


@pytest.mark.parametrize(("bridged", "sockets", "rate"), [(8, 2, PCIE), (2, 1, 0.69), (4, 2, 0.66), (2, 2, 0.66)])
def test_devices_on_one_switch_or_one_socket_do_not_pass_what_is_behind(bridged, sockets, rate):
    made = replace(fabric("pcie"), bridged=bridged, sockets=sockets)
    assert time(made, "all_reduce", 8, size=np.array([[1e15]]))[0, 0] == pytest.approx(1e15 * 2 * 7 / 8 / (rate * 32e9), rel=1e-4)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_empty_messages_take_the_launch_and_the_steps(collective, ranks):
    steps = STEPS[collective](ranks)
    nothing = np.array([[0.0]])
    assert time(fabric(), collective, ranks, size=nothing)[0, 0] == pytest.approx(P.launch[0] + steps * P.switch_step[0], rel=1e-9)
    assert time(fabric("pcie"), collective, ranks, size=nothing)[0, 0] == pytest.approx(P.launch[0] + steps * P.direct_step[0], rel=1e-9)
    assert 4e-6 < P.launch[0] < 10e-6  # of a device, and none of its host's


@pytest.mark.parametrize("network", RDMA)
def test_two_nodes_add_up_in_rings_until_a_tree_is_rated_higher(network):
    """Over verbs a ring sends 2 (p - 1) / p bytes of each through a node's cards below the threshold, a tree one; others take trees."""
    rate = 8 * (P.efa_efficiency if network == "efa" else P.rdma_efficiency) * 12.5e9

    def passed(ranks, size):
        """Bytes through the cards of a node for one more byte."""
        sizes = np.array([[size], [1.001 * size]])
        return (
            float(np.diff(time(fabric(network=network, nic=12.5e9), "all_reduce", ranks, 8, size=sizes), axis=0)[0, 0])
            / (1e-3 * size)
            * rate
        )

    ring = 2 * 15 / 16 if network in ("infiniband", "roce", "efa") else 1.0
    assert network == "gpudirect-tcpxo" or passed(16, 2.0**26) == pytest.approx(ring, rel=0.2)  # whose steps take too long for a slope
    assert passed(16, 2.0**33) == pytest.approx(1.0, rel=0.1)
    assert network.endswith("-sharp") or passed(32, 2.0**33) == pytest.approx(2 * 31 / 32, rel=0.1)


@pytest.mark.parametrize("network", RDMA)
def test_more_bytes_never_take_less_time_between_two_nodes(network):
    made = time(fabric(network=network), "all_reduce", 16, 8, size=np.geomspace(1, 1e11, 2000)[:, None])
    assert_no_faster(made[1:], made[:-1])


@pytest.mark.parametrize("network", ["infiniband", "ethernet", "efa"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "send_recv"])
@pytest.mark.parametrize("varies", [False, True], ids=["one device", "other devices"])
def test_paths_of_points_together_are_each_alone(network, collective, varies):
    """Groups of other sizes, some with more ways than others, of which one device or as many as points are priced at once."""
    rng = np.random.default_rng(1)
    groups = [(1, 1), (2, 2), (8, 8), (16, 8), (64, 8), (16, 2), (4, 1)]
    which, n = rng.integers(0, len(groups), 50), 50
    made = fabric(network=network, nic=rng.uniform(10e9, 50e9, n) if varies else 25e9)
    paths, sizes = [path(made, collective, *group, whole_nodes=True) for group in groups], rng.uniform(1.0, 1e9, n)
    together = path_time(sizes, Path.each(paths, which))
    alone = [np.broadcast_to(path_time(sizes, one), n) for one in paths]
    np.testing.assert_allclose(together, [alone[kind][i] for i, kind in enumerate(which)], rtol=1e-14)


def test_one_rank_moves_nothing():
    assert (time(fabric(), "all_reduce", 1) == 0).all()


# ------------------------------------------------------------------------------------------ ranks and rates


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("intra", ["nvswitch", "pcie"])
def test_more_ranks_on_a_ring_never_take_less_time(intra, collective):
    times = [time(fabric(intra), collective, ranks) for ranks in range(2, 9)]
    for few, many in itertools.pairwise(times):
        assert_no_faster(many, few)


@pytest.mark.parametrize("network", [*RDMA, "ethernet"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_nodes_never_take_less_time(network, collective):
    times = [time(fabric(network=network), collective, 8 * nodes, 8) for nodes in (2, 3, 4, 8, 16, 64, 128)]
    for few, many in itertools.pairwise(times):
        assert_no_faster(many, few)


@pytest.mark.parametrize("intra", ["nvswitch-sharp", "nvl72"])
def test_reduction_in_the_switch_beats_the_ring_it_takes_over_from(intra):
    for ranks in (5, 6, 8):
        ring, in_switch = (time(fabric(kind), "all_reduce", ranks)[-1, 0] for kind in ("nvswitch", intra))
        assert 0.6 * ring < in_switch < 0.85 * ring
    four, five = (time(fabric(intra), "all_reduce", ranks)[:, 0] for ranks in (4, 5))
    assert (np.abs(five / four - 1) < 0.25).all()  # no cliff where it sets in, though it takes fewer steps than a ring


def test_switches_of_nvlink_4_on_reduce_and_older_ones_do_not():
    made = time(fabric(link=[399e9, 400e9, 450e9]), "all_reduce", 8)
    ring, in_switch = (time(fabric(kind, link=450e9), "all_reduce", 8) for kind in ("nvswitch", "nvswitch-sharp"))
    np.testing.assert_array_equal(ring, in_switch)
    around, summed = (2 * 7 / 8 + SUM / 8) / SWITCH, (1 + 1 / 8) / IN_SWITCH
    assert made[-1, 0] / made[-1, 1] == pytest.approx(around / summed * 400 / 399, rel=3e-3)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("intra", ["nvswitch", "nvswitch-sharp", "nvl72"])
def test_faster_links_of_a_switch_are_never_slower(intra, collective):
    rates = np.linspace(400e9, 1.2e12, 81)
    assert_no_faster(*(time(fabric(intra, link=some), collective, 8) for some in (rates[:-1], rates[1:])))


@pytest.mark.parametrize("rate", ["link", "host", "nic"])
@pytest.mark.parametrize(("ranks", "per_node"), [(2, 2), (5, 5), (8, 8), (2, 1), (16, 2), (64, 8)])
def test_faster_links_never_slow(rate, ranks, per_node):
    """Within one generation: where reduction sets in, and the software of the platform, depend on the rate."""
    rates = {"link": (100e9, 200e9, 300e9), "host": (8e9, 16e9, 32e9), "nic": (12.5e9, 25e9, 50e9)}[rate]
    for intra in INTRA:
        made = time(fabric(intra, **{rate: rates}), "all_reduce", ranks, per_node)
        if made.shape[1] > 1:
            assert_no_faster(made[:, :-1], made[:, 1:])


@pytest.mark.cases(20)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "intra"), [(one, other) for turn, one in enumerate((*RDMA, "ethernet")) for other in every(2, INTRA, turn)]
)
def test_an_array_of_fabrics_is_its_fabrics_one_by_one(intra, network):
    points = {"link": [100e9, 450e9, 900e9], "host": [16e9, 64e9, 64e9], "nic": [np.nan, 50e9, 25e9]}
    for collective, (ranks, per_node) in itertools.product(COLLECTIVES, [(2, 2), (5, 5), (8, 8), (8, 2), (2, 1), (64, 8)]):
        together = np.broadcast_to(time(fabric(intra, network, **points), collective, ranks, per_node), (len(SIZE), 3))
        for i in range(3):
            alone = time(fabric(intra, network, **{name: rates[i] for name, rates in points.items()}), collective, ranks, per_node)
            np.testing.assert_allclose(together[:, [i]], alone, rtol=1e-12)


@pytest.mark.parametrize("ranks", [2, 8, 16, 72])
def test_a_rack_of_switches_is_one_node(ranks):
    rack = fabric("nvl72", link=900e9, host=225e9, per_node=72)
    np.testing.assert_array_equal(time(rack, "all_reduce", ranks, min(ranks, 4)), time(rack, "all_reduce", ranks))


@pytest.mark.parametrize("network", [*RDMA, "ethernet"])
def test_what_is_backwards_takes_as_long(network):
    for ranks, per_node in ((8, 8), (16, 8), (64, 8), (8, 2), (4, 1)):
        np.testing.assert_array_equal(*(time(fabric(network=network), name, ranks, per_node) for name in ("gather", "scatter")))
        np.testing.assert_array_equal(*(time(fabric(network=network), name, ranks, per_node) for name in ("broadcast", "reduce")))


def test_a_gather_between_nodes_passes_the_one_card_of_its_root():
    """8 nodes of 8: 56 of 64 parts pass one card in the place of eight, so that long messages take eight times (p-8)/(p-1) as long."""
    size = np.array([[1e12]])
    rooted, every = (time(fabric(), name, 64, 8, size)[0, 0] for name in ("gather", "all_gather"))
    assert rooted == pytest.approx(56 / 64 * 1e12 / (P.rdma_efficiency[0] * 25e9), rel=1e-3)
    assert rooted / every == pytest.approx(8 * 56 / 63, rel=1e-2)
    inside, among = (time(fabric(), name, 8, 8, size)[0, 0] for name in ("gather", "all_to_all"))
    assert inside == among  # in a node the root has all of its links


# ------------------------------------------------------------------------------------------ whole systems


def system(template, strategy, model="gemm"):
    size = {"model": model, "m": 8192, "n": 8192, "k": 8192, "dtype": "fp16", "task": "training"}
    return crossflow.from_dict({"system": {"template": template, "nodes": None, "devices": None}, "workload": size, "strategy": strategy})


def least(message, ranks, device):
    """Time below which no collective can be: each rank gets from others what it lacks, over its fastest port. [s]"""
    ports = [port.bandwidth[0] for port in (device.intra, device.inter) if port is not None]
    return ring_volume(message.collective, ranks) / (2 if message.collective == "all_reduce" else 1) * message.size / max(ports)


@pytest.mark.cases(10)
@pytest.mark.slow
@pytest.mark.parametrize("template", SYSTEMS)
@pytest.mark.parametrize("strategy", ["RC-2-4", "RC-4-2", "CR-8", "CR-2-d4", "RC-2-2-d2", "d8"])
def test_predictions_on_real_systems_obey_their_bandwidth(template, strategy):
    scenario = system(template, strategy)
    device = architecture(scenario.system)
    graph = transform(scenario.graph(), scenario.strategy)
    sizes = {axis.name: axis.size for axis in scenario.strategy.axes}
    bound = sum(least(message, sizes[message.axes[0]], device) for message in graph.messages)
    made = crossflow.predict(scenario).to_dict()
    sent = sum(share["total"] for share in made["communication_s"].values())
    assert made["feasible"]
    assert graph.messages
    assert bound <= sent < 1.0
    taken = {name for name, share in made["communication_s"].items() if share["total"] > 0}
    assert taken == {message.collective for message in graph.messages}


@pytest.mark.cases(3)
@pytest.mark.parametrize("template", SYSTEMS)
@pytest.mark.parametrize("size", [1e4, 1e7, 1e10])
@pytest.mark.parametrize(("a", "b"), [(2, 4), (4, 2)])
def test_two_axes_take_no_less_than_the_first_alone(template, size, a, b):
    """Along the first axis the whole buffer moves; along the second only the shard that is left."""
    scenario = system(template, f"CR-{a}-d{b}")
    device, network = architecture(scenario.system), scenario.system.network
    placed = place(tuple((axis.name, axis.size) for axis in scenario.strategy.axes), scenario.network())
    names = [axis.name for axis in scenario.strategy.axes if axis.size > 1]
    costs = {
        axes: message_costs((Message(collective="all_reduce", size=size, axes=axes),), placed, network, device, 8).time[0, 0]
        for axes in (tuple(names), (names[0],), (names[1],))
    }
    assert costs[names[0],] * (1 - 1e-12) <= costs[tuple(names)] <= (costs[names[0],] + costs[names[1],]) * (1 + 1e-12)


def test_a_dgx_1_is_slower_than_its_successors():
    times = [crossflow.predict(system(template, "CR-8")).to_dict()["communication_s"] for template in SYSTEMS]
    totals = [sum(part["total"] for part in made.values()) for made in times]
    assert totals == sorted(totals, reverse=True)


# ------------------------------------------------------------------------------------------ software and sources


def test_kernels_of_a_serving_engine_take_one_shot_or_two_up_to_their_limit():
    """8 ranks: 7 buffers at once, or a shard of each and all shards, 2 x 7/8; beyond the limit the collective library adds up."""
    own = PeerAllReduce(limit=np.array([2.0**20]), start=np.array([1e-6]))
    engine = replace(fabric(), all_reduce=own)
    base, rate = P.peer_launch[0] + 1e-6 + 8 * P.peer_rank[0], 300e9
    once = base + 7 * SIZE / (P.peer_efficiency[0] * rate)
    twice = base + P.peer_phase[0] + 2 * 7 / 8 * SIZE / (P.peer_phase_efficiency[0] * rate)
    library = time(fabric(), "all_reduce", 8)
    expected = np.where(SIZE <= 2.0**20, np.minimum(np.minimum(once, twice), library), library)
    np.testing.assert_allclose(time(engine, "all_reduce", 8), expected, rtol=1e-12)
    np.testing.assert_array_equal(time(engine, "all_gather", 8), time(fabric(), "all_gather", 8))


def test_devices_that_are_fully_connected_read_each_others_buffers_over_a_link_each():
    """Of four of eight devices three links of seven are read over; where software does not run them there is the library alone."""
    own = PeerAllReduce(limit=np.array([2.0**20]), start=np.array([1e-6]))
    joined = fabric(intra="infinity-fabric")
    engine, library = replace(joined, all_reduce=own, connected=True), time(joined, "all_reduce", 4)
    base, links = P.peer_launch[0] + 1e-6 + 4 * P.peer_rank[0], P.peer_direct_efficiency[0] * 300e9 * 3 / 7
    byte = 1 / links + 1 / P.peer_direct_rate[0]
    once, twice = base + 3 * SIZE * byte, base + P.peer_direct_phase[0] + 2 * 3 / 4 * SIZE * byte
    expected = np.where(SIZE <= 2.0**20, np.minimum(np.minimum(once, twice), library), library)
    np.testing.assert_allclose(time(engine, "all_reduce", 4), expected, rtol=1e-12)
    for other in ("ethernet-mesh", "hybrid-cube-mesh", "infinity-fabric"):
        plain = fabric(intra=other)
        np.testing.assert_array_equal(time(replace(plain, all_reduce=own), "all_reduce", 4), time(plain, "all_reduce", 4))


def built(system, software=None):
    """The fabric of a node as its devices are built into it, with kernels of a stack."""
    strategy = {"dp": 16 if system.startswith("trn") else 8}
    spec = crossflow.from_dict({"system": system, "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": strategy}).system
    own = None if software is None else load_stack(software)[0].peer_all_reduce
    return fabric_of(spec.network, PricedSystem(spec).device, spec.devices_per_node, own)


@pytest.mark.parametrize(
    ("system", "ranks", "sizes", "measured", "within"),
    [
        # ROCm/aiter, pull request 801; vllm-project/vllm, pull request 19744: numbers follow from these two, and the third checks them.
        ("mi300x-node", 2, (2**20, 2**21, 2**22), (28.15, 49.67, 93.79), 0.02),
        ("mi300x-node", 4, (2**20, 2**21, 2**22), (22.91, 36.64, 63.86), 0.02),
        ("mi355x-node", 8, (192 * 2**10, 384 * 2**10, 768 * 2**10, 1.5 * 2**20), (10.0, 13.1, 16.0, 24.2), 0.2),  # pull request 39080
    ],
)
def test_engines_all_reduces_over_xgmi_take_what_amd_measured(system, ranks, sizes, measured, within):
    made = time(built(system, "vllm"), "all_reduce", ranks, size=np.array(sizes)[:, None])[:, 0]
    np.testing.assert_allclose(made, np.array(measured) * 1e-6, rtol=within)


def test_rccl_reaches_the_bus_bandwidth_that_azure_measured():
    """Its efficiency is that of 8 GiB; sizes below check the steps."""
    rates = {2**23: 131.57, 2**24: 171.46, 2**25: 230.35, 2**26: 266.34, 2**27: 290.81, 2**28: 302.80, 2**30: 313.92, 2**33: 316.82}
    size = np.array(list(rates), dtype=float)
    made = 1.75 * size / time(built("mi300x-node"), "all_reduce", 8, size=size[:, None])[:, 0]
    np.testing.assert_allclose(made, np.array(list(rates.values())) * 1e9, rtol=0.24)
    np.testing.assert_allclose(made[2:], np.array(list(rates.values()))[2:] * 1e9, rtol=0.11)


def test_hccl_takes_what_intel_measured_on_eight_gaudi_3():
    """In loops of a thousand calls, which hide the start of each."""
    reduce = time(built("gaudi3-node"), "all_reduce", 8, size=np.array([[2.0**28]]))[0, 0]
    gather = time(built("gaudi3-node"), "all_gather", 8, size=np.array([[8 * 2.0**24]]))[0, 0]
    assert (reduce, gather) == (pytest.approx(915.8e-6, rel=0.06), pytest.approx(230.6e-6, rel=0.13))


def test_devices_that_take_no_part_keep_their_links():
    """Two of eight fully connected devices have a link of 37.5 or 75 GB/s between them, however many the job has."""

    def sent(system, devices, strategy):
        given = {"system": {"template": system, "devices": devices}, "strategy": strategy}
        workload = {"model": "llama2-13b", "task": "prefill", "global_batch": devices, "prompt": 4096}
        return float(crossflow.predict(crossflow.from_dict({**given, "workload": workload})).communication.all_reduce)

    for system in ("gaudi3-node", "mi300x-node"):
        assert sent(system, 2, "tp2-dp1") == pytest.approx(sent(system, 8, "tp2-dp4"), rel=1e-6)


def test_collectives_over_neuronlink_start_as_aws_measured():
    """Two cores of a chip have two steps, an all-gather of 32 cores in a ring 31: 58 and 150 us, of which both numbers follow."""
    start, step = float(P.neuron_launch[0]), float(P.neuron_step[0])
    assert (start + 2 * step, start + 31 * step) == (pytest.approx(58e-6, rel=0.01), pytest.approx(150e-6, rel=0.01))
    short = [time(fabric("neuronlink"), name, 8, size=np.array([[1.0]]))[0, 0] for name in ("all_reduce", "all_gather", "send_recv")]
    np.testing.assert_allclose(short, [start + n * step for n in (4, 2, 1)], rtol=1e-6)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "send_recv", "all_to_all"])
@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), (32, 16)])
def test_no_collective_between_servers_of_trainium_starts_before_one_inside(name, ranks, per_node):
    """The ranks of a compiled graph meet for it, wherever they are."""
    made, short = built("trn1-node"), np.array([[1.0]])
    assert time(made, name, ranks, per_node, size=short) > time(made, name, 2, size=short)


def test_two_servers_of_trainium_reduce_as_fast_as_aws_measured():
    """64 cores, 1 GiB in 41.8 ms; nothing was taken from this row."""
    found = time(built("trn1-node"), "all_reduce", 32, 16, size=np.array([[2.0**30]]))[0, 0]
    assert found == pytest.approx(41.8e-3, rel=0.1)


@pytest.mark.parametrize("system", ["trn1-node", "trn2-node"])
def test_a_step_over_neuronlink_waits_for_every_collective(system):
    """One more pair of layers has four more all-reduces, each with its start; links twice as fast save none of it."""

    def sent(layers, **network):
        template = {"template": system, "network": {"intra": network}} if network else system
        workload = {"model": "transformer", "layers": layers, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000, "sequence": 64}
        workload |= {"task": "decode", "global_batch": 1, "prompt": 16, "output": 2}
        return float(
            crossflow.predict(crossflow.from_dict({"system": template, "workload": workload, "strategy": "tp16"})).communication.all_reduce
        )

    start = float(P.neuron_launch[0] + 4 * P.neuron_step[0])
    assert sent(4) - sent(2) == pytest.approx(4 * start, rel=0.02)
    assert sent(4) > sent(4, bandwidth="2 TB/s") > 9 * start


def test_an_engine_runs_its_own_all_reduce_on_generations_that_it_names():
    def step(system, **software):
        workload = {"model": "llama2-13b", "task": "decode", "global_batch": 8, "output": 16}
        given = {"system": system, "workload": workload, "strategy": "tp8", "software": {"like": "vllm", **software}}
        return crossflow.predict(crossflow.from_dict(given)).step_time

    older = {"peer_all_reduce": {"direct": ["cdna2"]}}
    assert step("mi300x-node") < step("mi300x-node", **older) == step("mi300x-node", **NO_PEERS)
    assert step("gaudi2-node") == step("gaudi2-node", **NO_PEERS)
    generated = {
        "template": "chip-mi300x",
        "devices_per_node": 8,
        "network": {"intra": {"fabric": "infinity-fabric", "topology": "fully-connected"}},
    }
    none = {"peer_all_reduce": {"direct": []}}
    assert step(generated) < step(generated, **none) == step(generated, **NO_PEERS)


def test_decoding_with_an_engine_of_its_own_all_reduce_is_faster():
    workload = {"model": "llama2-13b", "task": "decode", "global_batch": 8, "output": 16}
    given = {"system": "dgx-h100", "workload": workload, "strategy": "tp8"}
    step = [crossflow.predict(crossflow.from_dict({**given, "software": {"like": "vllm", **more}})).step_time for more in ({}, NO_PEERS)]
    assert step[0] < step[1]


@pytest.mark.parametrize("device", ["h100", "b200"])
def test_a_generation_of_gpus_has_its_own_times(device):
    own = fabric_parameters(device)
    assert own.launch[0] != P.launch[0]
    assert own.rdma_step[0] == P.rdma_step[0]


def test_host_time_is_a_condition_of_the_source_that_measured_it():
    """Eager calls of vLLM: 44 us at least on hosts before PCIe 5, and a copy of the buffer, read and written; graphs have neither."""
    device, size = np.array([5e-6, 1e-3]), np.array([1e3, 1e8])
    eager = collective_conditions("aic-vllm-eager").told(device, fabric(), "a100-80gb", 8, size)
    graph = collective_conditions("aic-vllm-graph").told(device, fabric(), "a100-80gb", 8, size)
    assert eager.tolist() == pytest.approx([44e-6, 1e-3 + 2e8 / (0.8 * 2.039e12)], rel=1e-3)
    assert graph.tolist() == device.tolist()


# ------------------------------------------------------------------------------------------ latency that a user gives


NODES = {"workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp4-dp8"}


def step_over(level, latency, system="dgx-h100"):
    own = {} if latency is None else {"network": {level: {"latency": latency}}}
    return crossflow.predict(crossflow.from_dict({**NODES, "system": {"template": system, "devices": 32, **own}})).step_time


@pytest.mark.parametrize("level", ["intra", "inter"])
def test_a_given_latency_moves_the_steps_of_a_measured_fabric(level):
    """The latency of the device's link technology, 2 us, is in the measured steps; another one is longer or shorter by the difference."""
    times = [step_over(level, latency) for latency in ("0 us", "1 us", "2 us", "3 us", "1 ms")]
    assert times == sorted(times)
    assert times[0] < times[2] < times[4]
    assert times[2] == pytest.approx(step_over(level, None), rel=1e-12)


def test_steps_take_the_difference_in_latency():
    scenario = crossflow.from_dict({**NODES, "system": {"template": "dgx-h100", "devices": 32}})
    built = architecture(scenario.system, scenario.library)
    there = [
        replace(built, intra=replace(built.intra, latency=np.array([given]), known=np.array([2e-6]))) for given in (0.0, 1e-6, 2e-6, 5e-6)
    ]
    fitted = scenario.system.network.parameters
    steps = [float(delayed(fitted, one).node_hop[0]) for one in there]
    assert np.allclose(np.subtract(steps, float(fitted.node_hop[0])), [-2e-6, -1e-6, 0.0, 3e-6])
    short = [float(delayed(fitted, one).switch_step[0]) / float(fitted.switch_step[0]) for one in there[:3]]
    assert float(fitted.switch_step[0]) < 2e-6
    assert np.allclose(short, [0.0, 0.5, 1.0])


def test_a_latency_of_links_that_no_message_takes_is_told():
    made = {**NODES, "strategy": "tp8", "system": {"template": "dgx-h100", "network": {"inter": {"latency": "9 us"}}}}
    assert any("system.network.inter.latency" in note for note in crossflow.predict(crossflow.from_dict(made)).notes)
