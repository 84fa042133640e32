"""Costs worked out by hand from small numbers: algorithms of collectives, paths of fabrics, bytes and energy of kernels."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from products import stream_costs

from crossflow.base.errors import CrossflowError
from crossflow.cost import collectives, halves, waves
from crossflow.cost.attention import _keys
from crossflow.cost.exchange import Exchange, exchange_time, group_time, held_time
from crossflow.cost.fabrics import Fabric, path, path_time
from crossflow.cost.network import LaidGroups, _level_time
from crossflow.cost.price import kernel_names, kernel_prices
from crossflow.cost.profile import Measured, Profile, message_shape
from crossflow.cost.ranks import SystemDelays
from crossflow.cost.roofline import product_costs
from crossflow.cost.shared_links import INSIDE, INSIDE_BUSY, USES
from crossflow.cost.tiling import _cooler, _costing, _frugal, _slowed
from crossflow.evidence.validation.tables import device_architecture, fabric_parameters
from crossflow.hardware.architecture.execution import ExchangeKernel, WideningLibrary
from crossflow.hardware.architecture.model import Port
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.mapping.spread import LinkSpread
from crossflow.parallel.blocks import units
from crossflow.program.builder import ProgramBuilder
from crossflow.program.groups import ExpertGroup, Group
from crossflow.program.kernels import ONCE, Attention, Lookup, Pass
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

# As in templates/families/fabrics.yaml, with round numbers. [s], [B/s]
P = fabric_parameters().model_copy(update={
    name: np.array([value]) for name, value in {
        "launch": 10.0, "bulk_launch": 5.0, "pcie5_step_ratio": 0.5, "launch_transfer": 4.0, "switch_efficiency": 1.0,
        "reduction_copy": 0.4, "gather_copy": 0.8, "exchange_copy": 1.6, "switch_step": 0.1, "switch_fill": 0.7, "direct_step": 0.2,
        "exchange_fill": 0.9, "post": 0.01, "rdma_hop": 11.0, "node_hop": 0.5, "tree_efficiency": 0.5, "in_switch_efficiency": 0.5,
        "rdma_efficiency": 0.8, "efa_efficiency": 0.5, "ethernet_efficiency": 0.25,
        "rdma_fill": 3.0, "rdma_step": 2.0, "software_step": 30.0, "software_fill": 70.0, "low_latency_share": 0.1,
        "staged_efficiency": 0.25, "staged_duplex": 0.5, "staged_step": 20.0, "flow_efficiency": 0.6,
        "send_buffer_rate": 20e9, "send_buffer_size": 1e6,
    }.items()
})  # fmt: skip
near = functools.partial(pytest.approx, rel=1e-12, abs=0.0)
OLD, NEW = 32e9, 64e9  # rates of the host bus of PCIe 4 and PCIe 5. [B/s]


def fabric(network="infiniband", *, intra="nvswitch", host=OLD, nic=25e9, link=300e9, **more):
    rates = {name: np.array([rate]) for name, rate in (("link", link), ("host", host), ("nic", nic))}
    return Fabric(intra=intra, network=network, devices_per_node=8, parameters=P, **rates, **more)


def parts(way):
    """A way without arrays."""
    return {field.name: float(getattr(way, field.name)[0]) for field in dataclasses.fields(way)}


@pytest.mark.parametrize(("ranks", "steps", "volume"), [(3, 4, 3.0), (6, 6, 3.5), (7, 6, 3.5), (8, 6, 1.75), (100, 14, 2 * 63 / 64 + 2)])
def test_ranks_beyond_a_power_of_two_fold_into_their_partners_first(ranks, steps, volume):
    """Thakur 2005: 2 log2 of the power, and one exchange of the whole buffer before and one after."""
    time = collectives.halving_doubling_all_reduce(np.array([1e6]), ranks, np.array([50e9]), np.array([2e-6]))[0]
    assert time == near(steps * 2e-6 + volume * 1e6 / 50e9)


def test_a_tree_of_three_ranks_is_two_levels_deep_and_sends_the_buffer_twice():
    assert collectives.tree_all_reduce(np.array([1e6]), 3, np.array([50e9]), np.array([2e-6]))[0] == near(4 * 2e-6 + 2e6 / 50e9)


LAW = (np.array([8e6]), np.array([50e9]), np.array([2e-6]))  # size, bandwidth, latency
ALGORITHMS = [
    # latencies, buffers over the link, of a number of ranks
    (collectives.in_network_all_reduce, 6, 2, 1 + 1 / 6),
    (collectives.tree_all_reduce, 6, 6, 2),
    (collectives.rooted_tree, 6, 3, 5 / 6),
    (collectives.one_tree, 6, 3, 3),
    (collectives.two_phases, 6, 3 + 5, 2 * 5 / 6),
    (collectives.two_phases, 8, 3 + 3, 2 * 7 / 8),
    (collectives.log_all_to_all, 6, 3, 3 / 2),
    (collectives.log_all_to_all, 8, 3, 3 / 2),
]


@pytest.mark.parametrize(("algorithm", "ranks", "steps", "volume"), ALGORITHMS)
def test_algorithms_of_collectives_by_hand(algorithm, ranks, steps, volume):
    size, bandwidth, latency = LAW
    assert algorithm(size, ranks, bandwidth, latency)[0] == near(steps * 2e-6 + volume * 8e6 / 50e9)


@pytest.mark.parametrize(("ranks", "post", "starts"), [(8, 1e-7, 2e-6 + 6e-7), (8, 9e-6, 7 * 2e-6), (2, 1e-7, 2e-6), (3, 1e-7, 2.1e-6)])
def test_sends_that_are_posted_at_once_by_hand(ranks, post, starts):
    """A latency, and for every further peer the time to post a send, no more than a latency."""
    size, bandwidth, latency = LAW
    found = collectives.all_at_once(size, ranks, bandwidth, latency, np.array([post]))[0]
    assert found == near(starts + (ranks - 1) / ranks * 8e6 / 50e9)


def test_trees_carry_all_reduces_only():
    """63 steps of a ring, though a tree of 64 ranks has 12. An all-to-all posts 62 further sends, 0.1 us each, or takes six steps."""
    given, post = (np.zeros(1), 64, np.array([50e9]), np.array([2e-6])), np.array([1e-7])
    assert collectives.best("all_gather", *given, any_to_any=True, post=post)[0] == near(63 * 2e-6)
    assert collectives.best("all_reduce", *given, any_to_any=True, post=post)[0] == near(12 * 2e-6)
    assert collectives.best("all_reduce", *given, any_to_any=False, post=post)[0] == near(126 * 2e-6)
    assert collectives.best("all_to_all", *given, any_to_any=True, post=post)[0] == near(2e-6 + 62 * 1e-7)
    assert collectives.best("all_to_all", *given, any_to_any=True, post=10 * post)[0] == near(6 * 2e-6)


def test_a_pipeline_of_steps_by_hand():
    """base 1, 4 bytes at 1 s, 9 s to fill: 1 + (2 + 3)^2."""
    given = (np.array([value]) for value in (4.0, 1.0, 1.0, 9.0))
    assert collectives.pipelined(*given)[0] == near(26.0)


@pytest.mark.parametrize(("host", "age", "rate"), [(OLD, 1.0, 0.25 * OLD * 0.5), (NEW, 0.5, 0.6 * 25e9)])
@pytest.mark.parametrize(("in_node", "share"), [(2, 1), (3, 3), (4, 4)])
def test_part_of_the_nodes_pays_a_staged_step_between_each_pair(host, age, rate, in_node, share):
    """All-gather of 8 ranks: 7 steps of 7/8 of the buffer in all."""
    long, short = map(parts, path(fabric(host=host), "all_gather", 8, in_node).ways)
    assert long["base"] == near(10.0 + 5.0 + 7 * 20.0 * age)
    assert long["per_byte"] == near(7 / 8 / (rate * share))
    assert short["base"] == near(10.0 + 7 * 2.0)
    assert short["per_byte"] == near(long["per_byte"] / 0.1)


@pytest.mark.parametrize(("host", "age"), [(OLD, 1.0), (NEW, 0.5)])
def test_a_transfer_between_nodes_takes_its_launch_and_a_staged_step(host, age):
    alone, among = (parts(*path(fabric(host=host), "send_recv", 16, in_node).ways) for in_node in (2, 8))
    assert alone["base"] == among["base"] == near(4.0 + 20.0 * age)
    assert alone["per_byte"] == near(1 / (0.25 * OLD) if host == OLD else 1 / (0.6 * 25e9))
    assert among["per_byte"] == near(1 / (0.6 * 25e9))


RINGS = [
    # network, collective, nodes of 8, volume between nodes, efficiency, turns, step to another node, low-latency step
    ("infiniband", "all_reduce", 5, 2 * 39 / 40, 0.8, 2, 11.0, 2.0),
    ("infiniband", "all_gather", 4, 31 / 32, 0.8, 1, 11.0, 2.0),
    ("infiniband-sharp", "all_gather", 4, 31 / 32, 0.8, 1, 11.0, 2.0),
    ("efa", "reduce_scatter", 4, 31 / 32, 0.5, 1, 11.0, 2.0),
    ("gpudirect-tcpxo", "all_gather", 4, 31 / 32, 0.8, 1, 70.0, 30.0),
]


@pytest.mark.parametrize(("network", "collective", "nodes", "volume", "efficiency", "turns", "hop", "step"), RINGS)
def test_rings_between_whole_nodes_by_hand(network, collective, nodes, volume, efficiency, turns, hop, step):
    """Every device sends its eighth of the volume; a ring passes 8 ranks of every node, one after the other."""
    long, *_, short = map(parts, path(fabric(network, link=1e15), collective, 8 * nodes, 8).ways)
    assert long["per_byte"] == near(volume / (8 * efficiency * 25e9))
    assert long["base"] == near(15.0 + turns * ((nodes - 1) * hop + 7 * nodes * 0.5))
    assert short["per_byte"] == near(long["per_byte"] / 0.1)
    chain = 7 * 0.1 * nodes + (nodes - 1) * step if turns == 1 else 2 * (7 * 0.1 + 3 * step)  # a tree of five nodes is three deep
    assert short["base"] == near(10.0 + chain)


TREES = [("infiniband", 2, 1.0, 2), ("infiniband", 5, 2 * 39 / 40 / 0.5, 6), ("infiniband-sharp", 4, 1.0, 2)]


@pytest.mark.parametrize(("network", "nodes", "volume", "steps"), TREES)
def test_trees_between_whole_nodes_by_hand(network, nodes, volume, steps):
    """Steps inside a node, then as many between nodes, which are piped; between two nodes a ring below the threshold."""
    tree = parts(path(fabric(network, link=1e15), "all_reduce", 8 * nodes, 8).ways[1])
    assert tree["per_byte"] == near(volume / (8 * 0.8 * 25e9))
    assert tree["base"] == near(15.0 + 14 * 0.1)
    assert tree["fill"] == near(0.7 + steps * 3.0)
    assert tree["threshold"] == (512 * 2**20 if nodes == 2 else 0.0)
    assert tree["below_per_byte"] == near(2 * (8 * nodes - 1) / (8 * nodes) / (8 * 0.8 * 25e9))


def test_an_exchange_between_nodes_posts_all_its_sends_at_once():
    found = parts(*path(fabric(link=1e15), "all_to_all", 32, 8).ways)
    assert (found["base"], found["fill"]) == (near(15.0 + 30 * 0.01), near(0.9 + 3.0))
    assert found["per_byte"] == near(8 * 24 / 32 / (8 * 0.8 * 25e9))


def test_slow_links_of_a_node_hold_up_the_network():
    """Links of 1 GB/s: a ring passes them, and each rank copies its own part; reduction in the network leaves the node its own ring."""
    gather = parts(path(fabric(link=1e9), "all_gather", 32, 8).ways[0])
    around, summed = (parts(path(fabric(name, link=1e9), "all_reduce", 32, 8).ways[1]) for name in ("infiniband", "infiniband-sharp"))
    assert gather["per_byte"] == near((31 / 32 + 0.8 / 32) / 1e9)
    assert around["per_byte"] == near((2 * 31 / 32 + 0.4 / 32) / 1e9)
    assert summed["per_byte"] == near((2 * 7 / 8 + 0.4 / 8) / 1e9)


def test_switches_that_reduce_do_so_beside_a_network():
    """Links of 400 GB/s on, more than four ranks a node: each sends the buffer and an eighth, at half the rate."""
    found = parts(path(fabric(link=400e9, nic=1e15), "all_reduce", 32, 8).ways[0])
    assert found["per_byte"] == near(min(2 * 31 / 32 + 0.4 / 32, (1 + 1 / 8) / 0.5) / 400e9)


@pytest.mark.parametrize(("in_node", "volume"), [(4, 2 * 15 / 16 + 0.4 / 16), (5, 1 + 1 / 5), (8, 1 + 1 / 8)])
def test_switches_reduce_for_more_than_four_ranks_of_a_node(in_node, volume):
    """At the full rate they would take less for four as well."""
    fast = P.model_copy(update={"in_switch_efficiency": np.ones(1)})
    whole = dataclasses.replace(fabric(link=400e9, nic=1e15), devices_per_node=in_node, parameters=fast)
    assert parts(path(whole, "all_reduce", 4 * in_node, in_node).ways[0])["per_byte"] == near(volume / 400e9)


def test_rails_take_what_leaves_a_node_to_the_right_device_first():
    """Of 32 ranks 24 are elsewhere; an all-to-all in the node passes 7/8 of the buffer and copies its own part."""
    plain, rails = (parts(*path(fabric(link=1e9, rails=rails), "all_to_all", 32, 8).ways)["per_byte"] for rails in (False, True))
    assert plain == near((31 / 32 + 1.6 / 32) / 1e9)
    assert rails - plain == near(24 / 32 * (7 / 8 + 1.6 / 8) / 1e9)


SOCKETS = [
    # collective, host, volume, rate
    ("all_reduce", OLD, 1.5, 0.25 * 25e9 * 2),
    ("all_to_all", OLD, 2 * 2 / 4, 0.25 * 25e9 * 2),
    ("send_recv", OLD, 1.0, 0.25 * OLD),
    ("all_gather", NEW, 0.75, 0.25 * 25e9 * 2),
]


@pytest.mark.parametrize(("collective", "host", "volume", "rate"), SOCKETS)
def test_sockets_by_hand(collective, host, volume, rate):
    """Two ranks in each of two nodes share the card; a transfer has the card to itself and passes host memory on older platforms."""
    found = parts(*path(fabric("ethernet", host=host), collective, 4, 2).ways)
    assert found["per_byte"] == near(volume / rate)
    assert found["below_per_byte"] == near(volume / 20e9)
    assert found["base"] == (4.0 if collective == "send_recv" else 15.0)
    assert found["threshold"] == 1e6


def test_a_message_at_the_threshold_is_half_of_each_kind():
    found = path(fabric("ethernet"), "send_recv", 4, 2)
    assert path_time(np.array([[1e6]]), found)[0, 0] == near(4.0 + 1e6 * (1 / 20e9 + 1 / (0.25 * OLD)) / 2)


# ------------------------------------------------------------------------------------------ kernels


def device(v100):
    """The generated V100 with round energies: 1 pJ an operation; 1, 2, 3, 4 pJ/B from registers to memory."""
    levels = tuple(dataclasses.replace(level, energy=np.array([(i + 1) * 1e-12])) for i, level in enumerate(v100.levels))
    return dataclasses.replace(v100, levels=levels, energy_per_flop={"fp16": np.array([1e-12])}, throttle=None)


def test_a_pass_takes_the_energy_of_its_operations_and_of_its_bytes_at_every_level(v100):
    costs = stream_costs([Pass(flops=5e6, moved=2e6)], device(v100), "fp16")
    assert costs.traffic[:, 0, 0].tolist() == [2e6] * 4
    assert costs.energy[0, 0] == near(5e6 * 1e-12 + 2e6 * (1 + 2 + 3 + 4) * 1e-12)


def test_a_product_takes_the_energy_of_its_operations_and_of_its_traffic(v100):
    costs = product_costs(np.array([512.0, 256.0, 128.0, 3.0])[:, None, None], np.array([[2.0]]), device(v100), "fp16")
    levels = np.array([1e-12, 2e-12, 3e-12, 4e-12])
    assert costs.flops[0, 0] == 2 * 3 * 512 * 256 * 128
    assert costs.traffic[-1, 0, 0] == 3 * 2 * (512 * 128 + 128 * 256 + 512 * 256)  # each operand once: all fit in L2
    assert costs.energy[0, 0] == near(2 * 3 * 512 * 256 * 128 * 1e-12 + (costs.traffic[:, 0, 0] * levels).sum())


@pytest.mark.parametrize(("backward", "products", "times"), [(False, 2, 1), (True, 5, 2)])
def test_fused_attention_reads_queries_keys_and_values_and_writes_its_result(v100, backward, products, times):
    """2 samples, 4 heads of 64, 2 of keys and values, 128 tokens: Q and O of 4 heads, K and V of 2, in two bytes; twice backward."""
    program = ProgramBuilder(name="one", dtype="fp16")
    program.compute(
        "one", Attention(samples=2.0, heads=4.0, kv_heads=2.0, length=128.0, seen=128.0, width=64.0, backward=backward, causal=False)
    )
    costs, _ = kernel_prices(program.build(training=True), v100, None)
    assert costs.traffic[-1, 0, 0] == times * 2 * 128 * 64 * 2 * (2 * 4 + 2 * 2)
    assert costs.flops[0, 0] == products * 2 * 2 * 4 * 128 * 128 * 64


@pytest.mark.parametrize(("window", "pairs"), [(0.0, 8 * 9 / 2 - 4), (4.0, 4 * (8 - 2))])
def test_a_mask_and_a_window_leave_pairs(v100, window, pairs):
    """8 tokens: half of the square with the diagonal cut in two, or 4 back from each, fewer from the first."""
    program = ProgramBuilder(name="one", dtype="fp16")
    program.compute("one", Attention(samples=1.0, heads=1.0, length=8.0, seen=8.0, width=16.0, window=window))
    costs, _ = kernel_prices(program.build(training=True), v100, None)
    assert costs.flops[0, 0] == 4 * 16 * pairs


PASSED = [
    # queries, keys, window, whether it is causal, whether tiles outside a window are skipped; keys in the mean, at most
    (512, 512, 0, True, True, 512 / 2 + 64, 512),  # half of them, and half a tile on the diagonal
    (500, 500, 0, True, True, 512 / 2 + 64, 512),  # whole tiles
    (512, 1024, 0, True, True, 512 + 512 / 2 + 64, 1024),  # and all those before
    (512, 512, 200, True, True, 384 * (512 - 192) / 512 + 64, 384),  # 264 for 64 queries: up to 2.6 tiles, 3
    (512, 1024, 200, True, True, 384, 384),
    (512, 512, 200, True, False, 512 / 2 + 64, 512),
    (512, 512, 512, True, True, 512 / 2 + 64, 512),  # a window of all keys
    (512, 1000, 0, False, True, 1024, 1024),
]


@pytest.mark.parametrize(("length", "seen", "window", "causal", "skips", "mean", "most"), PASSED)
def test_keys_that_blocks_of_queries_pass_over_by_hand(length, seen, window, causal, skips, mean, most):
    """Blocks of 64 queries over tiles of 128 keys."""
    sizes = {"length": np.array([float(length)]), "seen": np.array([float(seen)]), "window": np.array([float(window)])}
    calls = SimpleNamespace(**sizes, causal=causal, chunked=False)
    assert [found.item() for found in _keys(calls, SimpleNamespace(skips=skips), np.array([64.0]))] == [mean, most]


LOOKED = {"samples": 1000.0, "tables": 2.0, "rows": 1000.0, "width": 32.0, "pooling": 4.0, "element": 4.0, "output": 2.0, "gradient": 2.0}
LOOKUPS = [
    # part, what differs, bytes of main memory, launches: rows of 128 B, gradients of 64, 8000 looked up in 2000 rows; all fit in cache
    ("forward", {}, 8000 * (128 + 8) + 1000 * 2 * 32 * 2, 1),
    ("forward", {"distinct": 0.25, "load": 2.0}, 16000 * (128 * 0.25 + 8) + 2 * 1000 * 2 * 32 * 2, 1),
    ("forward", {"batched": True}, 8000 * (128 + 8) + 1000 * 2 * 32 * 2, 0),
    ("sort", {}, 8000 * (2 * 2 * (8 + 4) + 8), 8),  # keys of 11 bits in two passes
    ("sort", {"index": 4.0, "rows": 100.0}, 8000 * (2 * 1 * (4 + 4) + 4), 4),
    ("update", {}, 1000 * 2 * 32 * 2 + 2000 * 2 * 128, 4),
    ("update", {"distinct": 0.125, "replicas": 1.5}, 1000 * 2 * 32 * 2 + 1500 * 2 * 128, 4),
    ("update", {"optimizer": "rowwise_adagrad"}, 1000 * 2 * 32 * 2 + 2000 * (2 * 128 + 2 * 32), 4),
    ("update", {"optimizer": "adagrad"}, 1000 * 2 * 32 * 2 + 2000 * (2 * 128 + 2 * 128), 4),
    ("gradient", {}, 8000 * (64 + 2 * 128 + 8), 1),
]  # fmt: skip


@pytest.mark.parametrize(("part", "changes", "moved", "launches"), LOOKUPS)
def test_lookups_and_their_gradients_by_hand(part, changes, moved, launches):
    program = ProgramBuilder(name="one", dtype="fp32")
    program.compute("one", Lookup(**LOOKED | changes, part=part))
    costs, _ = kernel_prices(program.build(training=True), device_architecture("a100-80gb"), None)
    assert costs.traffic[-1, 0, 0] == near(moved)
    assert costs.launches[0, 0] == launches
    assert costs.flops[0, 0] == 0.0


def test_profiles_name_lookups_by_how_often_a_row_is_wanted():
    named = {}
    for part in ("forward", "update"):
        program = ProgramBuilder(name="one", dtype="fp32")
        program.compute("one", Lookup(**LOOKED | {"distinct": 0.25}, part=part))
        (table,) = program.build(training=True).kernel_tables
        ((_, _, shapes),) = kernel_names(table, "fp32", device_architecture("a100-80gb"))
        named[part] = shapes
    assert named == {"forward": ["1000 x 4 of 2 tables 1000x32 reuse 4"], "update": ["1000 x 4 of 2 tables 1000x32"]}


def test_a_lower_bound_moves_bytes_through_main_memory_alone(v100):
    costs = product_costs(np.array([64.0, 32.0, 16.0, 2.0])[:, None, None], np.array([[2.0]]), device(v100), "fp16", least=True)
    flops, moved = 2 * 2 * 64 * 32 * 16, 2 * 2 * (64 * 16 + 16 * 32 + 64 * 32)
    assert costs.traffic[:, 0, 0].tolist() == [0.0, 0.0, 0.0, moved]
    assert costs.resource_times[:, 0, 0].tolist() == [
        near(flops / v100.throughput["fp16"][0]),
        0.0,
        0.0,
        0.0,
        near(moved / v100.memory.bandwidth[0]),
    ]
    assert costs.energy[0, 0] == near(flops * 1e-12 + moved * 4e-12)
    assert costs.launches[0, 0] == 1.0


# ------------------------------------------------------------------------------------------ waves

UNITS = [
    # m, n, products at once, tiles that are tried, time over that of units that divide the work evenly, on ten of them
    (20, 128, 1, ((128, 128),), 10 * 32 * 128 / (20 * 128)),  # one tile of 32 rows on one of ten units
    (256, 128, 15, ((128, 128),), 3 * 10 * 128 * 128 / (15 * 256 * 128)),  # thirty tiles: three waves
    (256, 128, 8, ((128, 128), (64, 128)), 4 * 10 * 64 * 128 / (8 * 256 * 128)),  # 16 tiles in two waves, or 32 of half the size in four
]


@pytest.mark.parametrize(("m", "n", "often", "blocks", "factor"), UNITS)
def test_tiles_on_ten_units_by_hand(m, n, often, blocks, factor):
    chip = SimpleNamespace(execution=SimpleNamespace(blocks=blocks), units=np.array([10.0]))
    assert waves.quantised(*(np.array([[float(size)]]) for size in (m, n, often)), chip)[0, 0] == near(factor)


def chip(*, power_clock=np.inf, splits=(1,), fill=7.0):
    """Ten units of 2 Gflop/s and 1 GB/s of cache each, tiles of 64 x 32 of depth 16."""
    tiles = SimpleNamespace(
        shapes=((64, 32),), splits=splits, depth=16, fill=np.array([fill]), split=np.array([3.0]), partial_rate=0.5,
        cache_bytes_per_flop=np.array([0.25]),
    )  # fmt: skip
    return SimpleNamespace(
        execution=SimpleNamespace(tiles=tiles, matrix_utilisation=0.5), throughput={"fp16": np.array([40e9])}, units=np.array([10.0]),
        operand_rate=np.array([40e9]), power_clock=np.array([power_clock]), memory=SimpleNamespace(bandwidth=np.array([1e9])), repeats=None,
        reached=lambda utilisation: utilisation,  # of units that nothing holds back
    )  # fmt: skip


def of_waves(m, n, k, made, **more):
    *times, again = waves.wave_times(*(np.array([[float(size)]]) for size in (m, n, k)), made, "fp16", 2.0, **more)
    assert not again.any()
    return [found[0, 0] for found in times]


def test_a_product_in_waves_by_hand():
    """150 x 64 x 20, 6 at once: 3 x 2 tiles each, 36 in four waves; 20 elements of k are two steps of 16."""
    compute, cache, both = of_waves(150, 64, 20, chip(), batch=6.0)
    assert compute == near(4 * (32 * 2 * 64 * 32 / 2e9 + 7.0))
    assert cache == near(36 * 32 * (64 + 32) * 2 / 10e9)
    assert both**3 == near(((compute**4 + cache**4) ** 0.25) ** 3)


def test_products_split_along_k_pay_for_their_parts():
    """One tile, or two, in four parts of 16 of k on a unit each: 4 x (5 x 4 bytes at half the memory's rate) and the split itself."""
    for batch in (1, 2):
        compute, _, _ = of_waves(64, 32, 64, chip(splits=(4,)), batch=float(batch))
        assert compute == near(16 * 2 * 64 * 32 / 2e9 + 7.0 + 3.0 + 5 * 4 * batch * 64 * 32 / 0.5e9)


def test_a_power_limit_adds_to_a_product_as_a_sixth_power():
    _, cache, both = of_waves(64, 32, 16, chip(power_clock=0.05, fill=0.0))
    compute, drawn = 16 * 2 * 64 * 32 / 2e9, 2 * 64 * 32 * 16 / (40e9 * 0.05)
    assert both**6 == near((compute**4 + cache**4) ** 1.5 + drawn**6)


def widened(time, **library):
    """How B is widened."""
    return waves.Widening(element=np.array([[time]]), library=WideningLibrary(**library) if library else None)


def test_widening_takes_slots_of_the_units_and_half_the_bytes(monkeypatch):
    """B in one byte; the whole chip widens an element in 1 us, a unit in 10 us; a block has 16 x 32 of them."""
    monkeypatch.setattr(waves, "FEW_ROWS", ())
    compute, cache, _ = of_waves(64, 32, 16, chip(), second=np.array([[0.5]]), widening=widened(1e-6))
    assert compute == near(16 * 2 * 64 * 32 / 2e9 + 7.0 + 16 * 32 * 10e-6)
    assert cache == near(16 * (64 + 32 * 0.5) * 2 / 10e9)


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (16, 128), (16, 256), (32, 128), (32, 256)])
def test_products_of_few_rows_that_are_widened_have_tiles_of_their_own(rows, columns):
    """One unit, on which two smaller tiles would fill twice: one tile, 16 deep, and as many elements of B to widen."""
    made = chip()
    made.units = np.array([1.0])
    compute, _, _ = of_waves(rows, columns, 16, made, second=np.array([[0.5]]), widening=widened(1e-9))
    assert compute == near(16 * 2 * rows * columns / 20e9 + 7.0 + 16 * columns * 1e-9)


@pytest.mark.parametrize(("clock", "tile"), [(np.inf, 32), (1e-3, 96)])
def test_of_tiles_for_widened_products_power_takes_those_that_widen_least(monkeypatch, clock, tile):
    """128 rows on one unit: four tiles of 32 rows take fewer operations, two of 96 widen B half as often."""
    monkeypatch.setattr(waves, "FEW_ROWS", ())
    made = chip(power_clock=clock, fill=0.0)
    made.units, made.execution.tiles.shapes = np.array([1.0]), ((32, 32), (96, 32))
    blocks = -(-128 // tile)
    compute, cache, _ = of_waves(128, 32, 16, made, second=np.array([[0.5]]), widening=widened(1e-9))
    drawn = (2 * 128 * 32 * 16 / 40e9 + blocks * 16 * 32 * 1e-9) / clock
    assert compute == near(max(drawn, blocks * (16 * 2 * tile * 32 / 20e9 + 16 * 32 * 1e-9)))
    assert cache == near(blocks * 16 * (tile + 32 * 0.5) * 2 / 10e9)


def test_kernels_that_widen_multiply_at_their_share_in_tiles_of_their_rows(monkeypatch):
    """57 rows fill nine tenths of a tile of 64 but not of one of 80; a library of two sizes takes the last where none is so large."""
    monkeypatch.setattr(waves, "FEW_ROWS", ())
    monkeypatch.setattr(waves, "COLUMNS", (32,))
    made = chip(fill=0.0)
    made.execution.tiles.shapes = ((128, 32),)
    made.units = np.array([1.0])
    half = np.array([[0.5]])
    plain = of_waves(128, 32, 16, made, second=half, widening=widened(0.5e-9))[0]
    assert plain == near(16 * 2 * 128 * 32 / 20e9 + 16 * 32 * 0.5e-9)
    for rows, tile, often in ((57, 64, 1), (58, 80, 1), (128, 80, 2)):
        found = of_waves(rows, 32, 16, made, second=half, widening=widened(0.5e-9, matrix=0.5, rows=(64, 80)))[0]
        assert found == near(often * (16 * 2 * tile * 32 / (0.5 * 20e9) + 16 * 32 * 0.5e-9))


@pytest.mark.parametrize(("mean", "rows"), [(4, 8), (8, 8), (30, 48), (64, 64), (128, 64), (500, 64), (5000, 64)])
def test_experts_whose_rows_differ_by_chance_take_more_tiles_than_equal_ones(mean, rows):
    drawn = np.random.default_rng(0).poisson(mean, 20_000)
    assert waves.unequal_blocks(np.array([float(mean)]), np.array([float(rows)])) == pytest.approx(
        np.ceil(drawn[drawn > 0] / rows).mean(), rel=0.025
    )


# ------------------------------------------------------------------------------------------ measured events


def measured(**times):
    """A profile of all-reduces inside a node, by ranks and bytes, such as r8_1024."""
    rows = {tuple(map(int, name[1:].split("_"))): time for name, time in times.items()}
    events = {
        ("all_reduce", message_shape(size), "", ranks, "intra"): Measured(time=time, spread=0.0) for (ranks, size), time in rows.items()
    }
    return Profile(events=events, source="own.csv", rows=tuple((line, key) for line, key in enumerate(events, 2)))


def half(sizes):
    """A model: half a second for a KiB."""
    return np.asarray(sizes) / 2048.0


def test_collectives_between_measured_sizes_and_beyond_them():
    """1 s and 4 s at 1 and 4 KiB: 2 s at 2 KiB; beyond the model by as much as it is off at the ends, 2 and 2 times."""
    sizes, group = np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 0.0]), Group.alike(8, 8, 6)
    times, known = measured(r8_1024=1.0, r8_4096=4.0).messages("all_reduce", sizes, group, half)
    assert times.tolist() == [near(0.5), near(1.0), near(2.0), near(4.0), near(8.0), 0.0]
    assert known.tolist() == [False, True, True, True, False, False]


def test_an_all_reduce_of_more_ranks_is_scaled_by_what_a_rank_sends():
    group, sizes = Group.alike(16, 16, 1), np.array([1024.0])
    profile = measured(r8_1024=1.0)
    assert profile.messages("all_reduce", sizes, group, half)[0][0] == near((15 / 16) / (7 / 8))
    assert profile.event(("all_reduce", "1024 B", "", 16, "intra")).time == near((15 / 16) / (7 / 8))
    assert profile.event(("all_reduce", "1024 B", "", 4, "intra")) is None
    assert profile.messages("all_reduce", sizes, Group.alike(4, 4, 1), half)[0][0] == 0.5
    own = measured(r8_1024=1.0, r16_1024=7.0)
    assert own.messages("all_reduce", sizes, group, half)[0][0] == near(7.0)


def test_one_measured_size_says_nothing_of_others():
    times, known = measured(r8_1024=1.0).messages("all_reduce", np.array([1024.0, 2048.0]), Group.alike(8, 8, 2), half)
    assert (times.tolist(), known.tolist()) == ([1.0, 1.0], [True, False])  # the model's second is its own


def test_passes_of_any_operation_and_lookups_without_reuse_stand_for_others():
    one, two = Measured(time=1.0, spread=0.0), Measured(time=2.0, spread=0.0)
    events = {("pass", "1 kernel of 8 B", "", 1, ""): one, ("lookup", "4 x 1 of 1 tables 8x2", "", 1, ""): two}
    profile = Profile(events=events, source="own.csv")
    assert profile.event(("pass", "1 gelu of 8 B", "", 1, "")) is one
    assert profile.event(("pass", "2 kernels of 8 B", "", 1, "")) is None
    assert profile.event(("lookup", "4 x 1 of 1 tables 8x2 reuse 3", "", 1, "")) is two
    own = Profile(events={**events, ("lookup", "4 x 1 of 1 tables 8x2 reuse 3", "", 1, ""): one}, source="own.csv")
    assert own.event(("lookup", "4 x 1 of 1 tables 8x2 reuse 3", "", 1, "")) is one
    assert np.isnan(profile.kernels("pass", "", [["1 kernel of 9 B"]])[0, 0])


def test_a_profile_over_another_adds_what_it_does_not_have():
    """Kernels one by one; collectives of a kind and ranks together."""
    kernel = {("gemm", "8x8x8", "bf16", 1, ""): Measured(time=1.0, spread=0.0)}
    below = measured(r8_1024=1.0, r4_1024=3.0)
    both = measured(r8_4096=5.0).over(Profile(events={**below.events, **kernel}, source="below.csv", nearby=True))
    assert {key[:4] for key in both.events} == {
        ("all_reduce", "4096 B", "", 8), ("all_reduce", "1024 B", "", 4), ("gemm", "8x8x8", "bf16", 1),
    }  # fmt: skip
    assert both.nearby


def test_rows_that_give_no_event_its_time():
    """Of 8 ranks two sizes were measured, so that any size uses both; of 4 ranks one, which another size does not use."""
    profile = measured(r8_1024=1.0, r8_4096=4.0, r4_1024=3.0)
    asked = [("all_reduce", "2048 B", "", 16, "intra"), ("all_reduce", "2048 B", "", 4, "intra")]
    assert [line for line, _ in profile.unmatched(asked)] == [4]
    assert [line for line, _ in profile.unmatched([("all_reduce", "1024 B", "", 4, "intra")])] == [2, 3]


# ------------------------------------------------------------------------------------------ ideal links


def spread_of(**changes):
    return LinkSpread(**{"gather": 2.0, "reduce": 3.0, "exchange": 4.0, "broadcast": 5.0, "transfer": 6.0, "steps": 7} | changes)


LEVELS = [
    # collective, what changes, time of 60 B among 4 ranks on a port of 10 B/s and 1 s, two hops apart
    ("all_reduce", {}, 14 * 1 + 1.5 * 60 / (10 / 3)),
    ("all_gather", {}, 7 * 1 + 0.75 * 60 / (10 / 2)),
    ("all_to_all", {}, 7 * 1 + 0.75 * 60 / (10 / 4)),
    ("send_recv", {}, 2 * 1 + 60 / (10 / 6)),
    ("all_gather", {"steps": 0}, 3 * 2 * 1 + 0.75 * 60 / (10 / 2)),
    ("all_reduce", {"steps": 0}, 4 * 2 * 1 + 1.5 * 60 / (10 / 3)),  # halving and doubling: four steps
]


@pytest.mark.parametrize(("collective", "changes", "time"), LEVELS)
def test_collectives_on_one_level_by_hand(collective, changes, time):
    port = Port(bandwidth=np.array([10.0]), latency=np.array([1.0]), energy=np.zeros(1))
    assert _level_time(collective, np.array([60.0]), 4, spread_of(**changes), port, 2, post=np.zeros(1))[0] == near(time)
    assert _level_time(collective, np.array([60.0]), 4, None, port, 2, post=np.zeros(1))[0] == 0.0


# ------------------------------------------------------------------------------------------ tiles under a power limit


def single(*values):
    return np.array(values, np.float32)


def limit_of(power, switched=0.0, nearest=0.0, compute=1.0, least=0.25):
    """Energies over the limit of power, what energies of traffic are multiplied with to be that, and the last two fields of a limit."""
    return np.array([single(switched), single(nearest), single(power), single(compute), single(least)])


SLOWED = [
    # energy of traffic, that of memory, the limit; time
    ((4.0, 0.0), {}, 2.0),  # chip alone, four times the limit: c^2 = 1/4
    ((3.0, 2.0), {}, 1.0 + 2.0**0.5),  # chip 1, memory 2: (c + 2) c = 1
    ((0.5, 0.0), {}, 1.0),  # below the limit
    ((0.0, 0.0), {"switched": 1.0, "nearest": 3.0}, 2.0),
    ((1.0, 0.0), {"switched": 2.0, "compute": 0.5}, 2.0**0.5),  # units that wait half of the time take half of the energy
    ((1.0, 0.0), {"switched": 4.0, "compute": 0.1}, 2.0**0.5),  # and no less than at their least voltage
]


@pytest.mark.parametrize(("energy", "limit", "time"), SLOWED)
def test_power_above_a_limit_slows_as_the_energy_of_the_chip_falls_with_the_clock(energy, limit, time):
    assert _slowed(single(1), *(single(one) for one in energy), limit_of(1.0, **limit))[0] == pytest.approx(time, rel=1e-6)


COOLER = [
    # the limit on energy, share chosen between the fastest, 1/2 (1.5 s, 14 J), and the least energy, 0 (2 s, 4 J)
    (0.05, 0.5),  # 0.7 of 1.5 s: it does not bind
    (0.2, 0.24),  # 2.8 above 1.5 s, 0.8 below 2 s: where it stops binding, 5 s = 1.2, it takes 1.76 s rather than 2.05
    (1.0, 0.0),  # 14 and 4 above both: 2.83 s rather than 4.58
]


@pytest.mark.parametrize(("limit", "share"), COOLER)
def test_tiles_save_energy_as_far_as_that_is_faster_under_a_limit(limit, share):
    found = _cooler(single(0.5), single(0.0), lambda s: (2 - s, 4 + 20 * s), single(0.0), limit_of(limit))
    assert found[0] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(("share", "rest", "time", "energy"), [(0.5, 2.0, 3.0, 327.0), (1.0, 2.0, 3.0, 237.0), (0.75, 4.0, 4.0, 282.0)])
def test_a_share_in_thicker_tiles_slows_one_level_and_speeds_the_other_up_by_hand(share, rest, time, energy):
    """One level takes 1 + 2 share at 10 J/s, the other 4 - 2 share at 100 J/s, what is left `rest` and 7 J: the slowest of the three."""
    ends = (single(1), single(2), single(10)), (single(4), single(-2), single(100))
    assert [one[0] for one in _costing(*ends, single(rest), single(7), single(share))] == [time, energy]


FRUGAL = [
    # what the thicker tiles take more energy, the slowest resource, share chosen before; share
    (1, 3.0, 0.75, 0.5),  # 4 - 2 share are no more than 3 from a half on
    (-1, 3.0, 0.75, 1.0),  # 1 + 2 share, no more than 3 up to 1
    (1, 9.0, 0.75, 0.0),  # neither level takes so long: no thicker tiles than none, or none but these
    (-1, 9.0, 0.75, 1.0),
    (1, 2.5, 0.75, 0.75),  # both take as long: what was chosen
    (-1, 2.5, 0.75, 0.75),
    (0, 3.0, 0.75, 1.0),
]


@pytest.mark.parametrize(("dearer", "time", "before", "share"), FRUGAL)
def test_tiles_take_the_least_energy_that_is_hidden_by_the_slowest_resource(dearer, time, before, share):
    levels = single(1), single(2), single(4), single(2)  # slower by the share, and faster
    assert _frugal(single(before), single(time), *levels, single(dearer))[0] == pytest.approx(share, abs=5e-3)


@pytest.mark.parametrize(("dearer", "share"), [(1.0, 0.0), (-1.0, 1.0)])
def test_tiles_that_change_no_level_take_what_is_frugal(dearer, share):
    assert _frugal(single(0.5), single(3), single(1), single(0), single(1), single(0), single(dearer))[0] == share


OVERFLOW = [
    # rows of C, units; rows and columns of the tiles at work at once
    (640.0, 4.0, 4 * 64 + 1 * 16),  # four units below each other share one column
    (640.0, 30.0, 10 * 64 + 3 * 16),  # ten rows of tiles, in three columns
    (640.0, 80.0, 10 * 64 + 5 * 16),  # and no more columns than there are
    (64.0, 4.0, 64 + 4 * 16),
]


@pytest.mark.parametrize(("m", "units", "active"), OVERFLOW)
def test_panels_that_overflow_the_last_cache_are_read_once_more_by_hand(m, units, active):
    """Tiles of 64 x 32 of m x 160 x 100 in two bytes, B of half of that: half of all panels where a cache of two parts just holds them."""
    capacity = active * 100 * 2 / 2 / 4
    cache = SimpleNamespace(capacity=np.array([capacity]), instances=np.array([2.0]))
    made = SimpleNamespace(levels=(None, cache, None), units=np.array([units]))
    sizes = [np.array([size]) for size in (m, 160.0, 100.0, 64.0, 16.0, 32.0)]
    for span, share in ((4.0, 1 / (1 + 1)), (8.0, 1 / (1 + 8))):  # the cache counts for so many times its bytes
        found = waves.overflow(*sizes, 2.0, made, SimpleNamespace(span=span, reread=1.0))
        assert found.item() == near(np.ceil(m / 64) * 5 * (64 + 16) * 100 * 2 * share)


# ------------------------------------------------------------------------------------------ ranks of a system


@functools.cache
def delays(name, devices):
    return SystemDelays.of(name, devices)


def test_a_system_holds_what_its_nodes_can_be_wired_for(tmp_path, exactly):
    mine = tmp_path / "mine.yaml"
    mine.write_text("kind: system\nname: mine\ntemplate: dgx-a100\nnetwork: {inter: {fabric: ideal, topology: hybrid-cube-mesh}}\n")
    assert delays(str(mine), 64).devices == 64
    sentence = f"--system: {mine} does not hold 72 devices: hybrid-cube-mesh holds 8 nodes, the system has 9"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        delays(str(mine), 72)


GROUPS = [
    # ranks of 32 on four nodes of 8: how many, on the fullest node, apart
    ((0, 1, 2, 3), (4, 4, 1)), ((0, 8, 16, 24), (4, 1, 8)), ((2, 10), (2, 1, 8)), ((0, 2, 4, 6, 8, 10, 12, 14), (8, 4, 2)),
    ((0, 1, 2, 30), (4, 3, 8)),  # ten apart in the mean: the widest that fills 32 devices is eight
    ((4, 5), (2, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "found"), GROUPS)
def test_groups_of_ranks_by_hand(ranks, found):
    group = delays("dgx-a100", 32)._group(ranks)
    assert (group.size[0], group.per_node[0], group.stride[0]) == found
    assert (group.devices[0], group.extent[0]) == (32, len(ranks))


def test_pairs_of_ranks_share_a_node_or_not():
    made = delays("dgx-a100", 32)
    inside, across = made._pair((5, 2)), made._pair((5, 12))
    assert [float(values[0]) for values in (inside.size, inside.per_node, inside.first, inside.last, inside.extent)] == [2, 2, 2, 5, 32]
    assert [float(values[0]) for values in (across.size, across.per_node, across.first, across.last, across.stride)] == [2, 1, 5, 12, 1]
    assert (made.crosses((0, 7)), made.crosses((7, 8))) == (False, True)


def test_a_barrier_is_an_all_reduce_of_one_element():
    made, ranks = delays("dgx-a100", 32), (0, 1, 2, 3)
    assert made.time("barrier", 1e9, ranks) == made.time("all_reduce", 4.0, ranks)
    assert made.time("reduce", 1e6, ranks) == made.time("broadcast", 1e6, ranks)
    assert made.time("send", 1e6, (0, 1)) == made.time("recv", 1e6, (1, 0))


def test_nothing_to_send_takes_no_time_on_any_wiring():
    for name, devices in (("dgx-a100", 32), ("tpu-v4-pod", 64)):
        made, group = delays(name, devices), Group.alike(4, 4, 2)
        times = made.wires.time("all_gather", np.array([0.0, 1e6]), group)
        assert (times[0], times[1] > 0) == (0.0, True)


def test_an_exchange_tells_its_counts_on_the_way_there_alone(gemm):
    """A dispatch takes the time of its copies and that of the counts, a combine that of its copies; a lone rank sends nothing."""
    device, tokens, width = architecture(gemm("dgx-h100", "d8").system), 4096.0, 7168.0
    library, point = device.execution.libraries.exchange["deepep"], np.ones(2)
    group = {"size": np.array([8.0, 1.0]), "per_node": np.array([8.0, 1.0]), "stride": point, "devices": 8 * point, "extent": 8 * point}
    group |= {"libraries": ("deepep",), "active": 8 * point, "experts": 256 * point, "row": 2 * width * point, "token": 2 * width * point}
    sent = Exchange(
        tokens=np.array([tokens]), size=np.array([2 * width]), active=np.array([8.0]), experts=np.array([256.0]), ranks=np.array([8.0]),
        nodes=np.ones(1), units=library.units, link=device.intra.bandwidth, network=device.inter.bandwidth,
    )  # fmt: skip
    for back, kernel, counts in ((False, library.dispatch, library.notify), (True, library.combine, 0.0)):
        found = group_time(tokens * 8 * 2 * width * point, ExpertGroup(**group, back=back), device, "nvswitch", 8)
        assert found.tolist() == pytest.approx([(exchange_time(sent, kernel) + counts).item(), 0.0], rel=1e-12)


def test_tokens_are_written_with_low_latency_alone(gemm):
    """Of so many tokens the other method is faster, but rows that arrive by it have no shape that a graph of kernels could capture."""
    device, one, width = architecture(gemm("dgx-h100", "d8").system), np.ones(1), 7168.0
    group = {"size": 8 * one, "per_node": 8 * one, "stride": one, "devices": 8 * one, "extent": 8 * one, "libraries": ("deepep",)}
    group |= {"active": 8 * one, "experts": 256 * one, "row": 2 * width * one, "token": 2 * width * one, "back": True}
    read, written = (
        group_time(4096 * 8 * 2 * width * one, ExpertGroup(**group, fast=fast), device, "nvswitch", 8) for fast in (False, True)
    )
    assert written.item() > 1.5 * read.item()


def test_copies_straight_to_experts_by_hand():
    """Sixteen ranks on two nodes and eight experts a token: four of its copies stay on a node, of which an eighth on the rank itself."""
    kernel = ExchangeKernel.model_validate(
        {"start": "1 us", "expert": "0 us", "node_step": "2 us", "first_token": "1e9 GB/s", "link": 0.5, "network": 0.25, "fill": "0 us"}
    )
    one = np.ones(1)
    sent = Exchange(
        tokens=1000 * one, size=200 * one, active=8 * one, experts=64 * one, ranks=16 * one, nodes=2 * one, units=one, link=1e9 * one,
        network=1e9 * one,
    )  # fmt: skip
    inside, across = 1000 * 200 * 3.5 / 0.5e9, 1000 * 200 * 4 / 0.25e9
    assert exchange_time(sent, kernel).item() == near(3e-6 + (inside**4 + across**4) ** 0.25)


@pytest.mark.parametrize("nodes", [1, 2])
def test_copies_that_go_once_by_hand(nodes):
    """Two of four experts, each on a rank of its own. Over two nodes a token goes to 5/3 of them in the mean (both on one: 1/3).

    To two ranks, of which one in ranks / nodes is itself; across nodes units copy it for each node and for each rank, 1.5 times as long.
    """
    copies = {"start": "2 us", "rate": "1 GB/s", "forwarded": 1.5}
    kernel = ExchangeKernel.model_validate(
        {"copies": copies, "start": "1 us", "expert": "3 us", "node_step": "7 us", "first_token": "1 GB/s", "link": 0.5, "network": 0.25,
         "fill": "0 us", "crowd": 2.0}
    )  # fmt: skip
    one = np.ones(1)
    sent = Exchange(
        tokens=1000 * one, size=200 * one, active=2 * one, experts=4 * one, ranks=4 * one, nodes=nodes * one, units=20 * one,
        link=1e9 * one, network=1e9 * one,
    )  # fmt: skip
    made, each = 2 / 20 * 1000 * (2e-6 + 200e-9), 1000 * 200
    copied, inside, across = (made, each * 2 * 3 / 4 / 0.5e9, 0.0) if nodes == 1 else (
        made * 1.5 * (2 + 5 / 3) / 2, each * 2 / 2 / 0.5e9, each * 5 / 3 / 2 * (1 + (1 / 2) ** 4) / 0.25e9,
    )  # fmt: skip
    start = 1e-6 + 4 * 3e-6 + 7e-6 * (nodes - 1) + 200e-9
    assert exchange_time(sent, kernel).item() == near(start + (copied**4 + inside**4 + across**4) ** 0.25)


def test_units_are_held_by_the_bytes_as_they_travel(gemm):
    """Messages of 1,000 rows of 2 bytes an element, which travel with one: start and 1,000 tokens at the rate of the library."""
    device, one = architecture(gemm("dgx-h100", "d8").system), np.ones(2)
    library = device.execution.libraries.exchange["deepep"]
    group = {
        "size": np.array([8.0, 1.0]),
        "per_node": 8 * one,
        "stride": one,
        "devices": 8 * one,
        "extent": 8 * one,
        "libraries": ("deepep",),
    }
    group |= {"active": 8 * one, "experts": 64 * one, "row": 14336 * one, "token": 7168 * one}
    for back, kernel in ((False, library.fast_dispatch), (True, library.fast_combine)):
        held = kernel.held
        by_hand = float(held.start[0] + 1000 * 7168 / held.rate[0])
        assert held_time(1000 * 14336 * one, ExpertGroup(**group, back=back), device).tolist() == pytest.approx([by_hand, 0.0], rel=1e-12)
    assert held_time(0 * one, ExpertGroup(**group, back=True), device).tolist() == [0.0, 0.0]
    assert held_time(one, ExpertGroup(**{**group, "libraries": ()}, back=True), device).tolist() == [0.0, 0.0]


def test_exchanges_inside_a_node_need_no_network(gemm):
    device, one = architecture(gemm("dgx-h100", "d8").system), np.ones(1)
    group = {"size": 8 * one, "per_node": 8 * one, "stride": one, "devices": 8 * one, "extent": 8 * one}
    group |= {"libraries": ("deepep",), "active": 8 * one, "experts": 64 * one, "row": 1e4 * one, "token": 1e4 * one}
    alone = dataclasses.replace(device, inter=None)
    found, lone = (group_time(1e9 * one, ExpertGroup(**group, back=True), on, "nvswitch", 8) for on in (device, alone))
    assert found.item() == near(lone.item())
    spread = ExpertGroup(**{**group, "size": 16 * one, "extent": 16 * one}, back=True)
    assert group_time(1e9 * one, spread, alone, "nvswitch", 8) is None


@pytest.mark.parametrize(
    ("between", "chain", "only"),
    [(None, False, None), ((2, 3), True, None), ((3, 2), True, None), ((0, 2), True, (0, 2)), ((7, 0), True, (7, 0))],
)
def test_places_of_a_chain_that_are_no_neighbours_send_alone(between, chain, only):
    """Neighbours send at the same time as all others of the chain; a group without two places is a ring."""
    assert LaidGroups.of(2, 8, chain=False, between=between) == LaidGroups(stride=2, ranks=8, chain=chain, only=only)


# -------------------------------------------------------------------------------------------- halves of a step


EXPOSED = [
    # way, kernels beside, share of the units taken from them, what blocks
    (10.0, 6.0, 0.0, 4.0),  # beyond the kernels
    (4.0, 10.0, 0.0, 0.0),
    (4.0, 10.0, 0.25, 1.0),  # its share of the units for as long as it lasts
    (20.0, 6.0, 0.25, 14.0),
    (7.0, 6.0, 0.25, 1.75),  # kernels of 6 take 8 with three quarters of the units, and the way 7 of these
    (5.0, 0.0, 0.25, 5.0),  # nothing is beside it
]


@pytest.mark.parametrize(("way", "beside", "taken", "left"), EXPOSED)
def test_what_a_way_blocks_beside_kernels(way, beside, taken, left):
    assert halves.exposed(np.array([way]), np.array([beside]), np.array([taken])).tolist() == [left]


def half_step(task, *, microbatches=2.0, held=(0.0, 0.0), core=True):
    """What the ways to experts and back, of 5 s and 9 s, still block of a layer of attention (2 s before its core, 3 in it, 1 after) and of
    experts (two kernels of 1 s and 3 s), of which another collective blocks 1 s. [s]
    """
    spec = TransformerSpec.model_validate(
        {"model": "transformer", "layers": 1, "hidden": 64, "heads": 4, "ffn": 64, "vocabulary": 100, "sequence": 8, "global_batch": 8,
         "experts": {"count": 8, "active": 2}}
    )  # fmt: skip
    job = Job(model=spec.transformer(), dtype="bf16", task=task)
    names = tuple(name for name, _ in units(job.model))
    attention, experts = names.index("0.0.attention"), names.index("0.1.experts")
    kernels = [None, Attention(samples=1, heads=1, kv_heads=1, length=1, seen=1, width=1) if core else None, *[None] * 4]
    layers = [attention, attention, attention, experts, attention]
    rows = zip(((0,), (1,), (2,), (3, 4), (5,)), ("forward", "forward", "end", "forward", "input"), layers, strict=True)
    ops = [SimpleNamespace(kernels=which, count=ONCE, phase=phase, layer=names[unit]) for which, phase, unit in rows]
    ops[2].count = np.array([2.0])  # of half a second
    sends = SimpleNamespace(
        counts=np.ones((3, 1)), table=None, experts=np.array([0]), results=np.array([1]), backward=np.zeros(3, dtype=int),
        collective=np.array([0, 0, 1]), unit=np.array([experts, experts, attention]), ops=[SimpleNamespace(beside=(3, 4))] * 3,
    )  # fmt: skip
    busy, blocking = np.zeros((len(names), 1)), np.zeros((2, 2, len(names), 1))
    busy[[attention, experts], 0] = 6.0, 4.0
    blocking[0, 0, experts], blocking[1, 0, attention] = 14.0, 1.0
    machine = SimpleNamespace(
        wires=SimpleNamespace(held=lambda _: np.array([[held[0]], [held[1]], [0.0]])),
        stack=SimpleNamespace(overlap=SimpleNamespace(exchange_units=np.zeros(1)), kernels=SimpleNamespace(exchange=())),
        architecture=device_architecture("h100-80gb"),
    )
    found = halves.beside_half(
        job, SimpleNamespace(microbatches=np.array([microbatches])), machine,
        SimpleNamespace(sends=sends, program=SimpleNamespace(ops=ops, kernels=kernels), units=names),
        SimpleNamespace(each=np.array([[2.0], [3.0], [0.5], [1.0], [3.0], [7.0]])), blocking, np.array([[5.0], [9.0], [1.0]]), busy,
        np.zeros((2, 3, 1)),
    )  # fmt: skip
    assert found[1, 0, attention, 0] == 1.0
    assert found.sum() == near(found[0, 0, experts, 0] + 1.0)
    return found[0, 0, experts, 0]


def test_ways_to_experts_beside_the_other_half_of_a_step_that_reads():
    """Each is beside 4 s of experts for one half, and beside the 7 s of the rest of the layer for the other: 1 and 0, 5 and 2."""
    assert half_step("prefill") == near((1 + 0) / 2 + (5 + 2) / 2)
    assert half_step("prefill", microbatches=1.0) == near(14.0)


def test_ways_to_experts_beside_the_other_half_of_a_step_that_writes():
    """There beside the 3 s before attention's core, the other collective's included, and back beside the 4 s from it on: 2 and 5. What
    holds a link until it is over blocks in any case. Without a core the layer is cut in the middle.
    """
    assert half_step("decode") == near(2 + 5)
    assert half_step("decode", held=(3.0, 1.0)) == near(3 + 5)
    assert half_step("decode", held=(6.0, 1.0)) == near(5 + 5)
    assert half_step("decode", core=False) == near((5 - 3.5) + (9 - 3.5))


@pytest.mark.parametrize(
    ("parts", "longer"),
    [
        # a step that writes: 3/7 of the other's second is in the 3 s beside the way there, which sends all the time; 4/7 in the 4 s beside
        # the way back, which sends for half of its time
        ([3.0, 4.0], [3 / 7, 0.5 * 4 / 7]),
        # a step that reads: that second lies evenly in 7 s, of which the way there lasts 5 and the way back all
        ([7.0], [5 / 7, 0.5]),
    ],
)
def test_ways_to_experts_share_links_with_the_layers_other_collectives(parts, longer):
    """Of 5 s and 9 s, with one message of a second of the unit before; what is sent backward is not there."""
    sends = SimpleNamespace(
        experts=np.array([0]), results=np.array([1]), backward=np.array([0, 0, 0, 1]), unit=np.array([1, 1, 0, 0])
    )  # fmt: skip
    each = np.zeros((USES, 4, 1))
    each[INSIDE, :, 0] = 5.0, 9.0, 1.0, 50.0
    each[INSIDE_BUSY, :, 0] = 5.0, 4.5, 1.0, 50.0
    ways = np.array([[0.0, 5.0], [0.0, 9.0]])[..., None]
    found = halves._met(sends, np.array([0, 0]), each, ways, np.repeat(parts, 2).reshape(-1, 2, 1))
    assert found[..., 0].tolist() == [[0.0, near(one)] for one in longer]


@pytest.mark.parametrize(
    ("said", "library", "fast", "share"),
    [(0.0, True, False, 20 / 132), (0.25, True, False, 0.25), (0.25, True, True, 0.0), (0.25, False, True, 0.25), (0.0, False, False, 0.0)],
)
def test_units_that_an_exchange_takes_from_kernels(said, library, fast, share):
    """As the stack says, else as the library's kernels take of 132; those of low latency take none."""
    exchange = {"deepep": SimpleNamespace(units=np.array([20.0]))} if library else {}
    architecture = SimpleNamespace(units=np.array([132.0]), execution=SimpleNamespace(libraries=SimpleNamespace(exchange=exchange)))
    stack = SimpleNamespace(overlap=SimpleNamespace(exchange_units=np.array([said])), kernels=SimpleNamespace(exchange=("deepep",)))
    assert halves._taken(SimpleNamespace(stack=stack, architecture=architecture), fast=fast).tolist() == [near(share)]
