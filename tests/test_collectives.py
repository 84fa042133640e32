"""Collectives in closed form: limits, identities, bytes, and message costs on ideal fabrics."""

import numpy as np
import pytest

from crossflow.cost import collectives
from crossflow.cost.network import message_costs
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.mapping.placement import place
from crossflow.hardware.mapping.topology import Network, Topology
from crossflow.program.collectives import COLLECTIVES, ring_volume, sent_bytes
from crossflow.program.program import Message

RANKS = [2, 3, 4, 5, 8, 16, 64, 512]
SIZE, BANDWIDTH, LATENCY, ZERO = np.array([1e6]), np.array([50e9]), np.array([2e-6]), np.zeros(1)
ALL_REDUCES = [
    collectives.tree_all_reduce,
    collectives.halving_doubling_all_reduce,
    lambda *given: collectives.ring("all_reduce", *given),
]


def ring(collective, size=SIZE, ranks=8, bandwidth=BANDWIDTH, latency=LATENCY):
    return float(collectives.ring(collective, size, ranks, bandwidth, latency)[0])


@pytest.mark.parametrize("ranks", RANKS)
def test_ring_all_reduce_is_reduce_scatter_and_all_gather(ranks):
    assert ring("all_reduce", ranks=ranks) == pytest.approx(
        ring("reduce_scatter", ranks=ranks) + ring("all_gather", ranks=ranks), rel=1e-12
    )


@pytest.mark.parametrize("ranks", RANKS)
def test_ring_all_reduce_by_hand(ranks):
    """2 (p-1) steps of S/p each, Thakur et al. 2005."""
    assert ring("all_reduce", ranks=ranks) == pytest.approx(2 * (ranks - 1) * (2e-6 + 1e6 / ranks / 50e9), rel=1e-12)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_latency_leaves_bytes_over_bandwidth(collective):
    assert ring(collective, latency=ZERO) == pytest.approx(ring_volume(collective, 8) * 1e6 / 50e9, rel=1e-12)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_to_send_takes_the_latency_of_the_steps(collective):
    steps = {"all_reduce": 14, "send_recv": 1, "sendrecv": 1}.get(collective, 7)
    assert ring(collective, size=ZERO) == pytest.approx(steps * 2e-6, rel=1e-12)
    assert ring(collective, size=ZERO, latency=ZERO, bandwidth=ZERO) == 0


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_alone_nothing_moves(collective):
    assert ring(collective, ranks=1) == 0


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_bytes_of_all_ranks_are_what_must_move(collective):
    """Sum over ranks: each of p shards passes p-1 links in a gather or scatter, twice in an all-reduce; a transfer moves once."""
    p, moved = 8, 8 * ring_volume(collective, 8)
    assert moved == pytest.approx(
        {"all_reduce": 2 * (p - 1), "broadcast": p, "reduce": p, "send_recv": p, "sendrecv": p}.get(collective, p - 1), rel=1e-12
    )


@pytest.mark.parametrize("algorithm", ALL_REDUCES, ids=["tree", "halving-doubling", "ring"])
def test_two_ranks_exchange_their_buffers(algorithm):
    assert algorithm(SIZE, 2, BANDWIDTH, LATENCY)[0] == pytest.approx(2 * 2e-6 + 1e6 / 50e9, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 1024])
def test_halving_doubling_has_the_rings_bytes_in_fewer_steps(ranks):
    long = collectives.halving_doubling_all_reduce(SIZE, ranks, BANDWIDTH, ZERO)[0]
    assert long == pytest.approx(ring("all_reduce", ranks=ranks, latency=ZERO), rel=1e-12)
    assert collectives.halving_doubling_all_reduce(ZERO, ranks, BANDWIDTH, LATENCY)[0] == pytest.approx(
        2 * np.log2(ranks) * 2e-6, rel=1e-12
    )


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 100])
def test_ranks_beyond_a_power_of_two_cost_extra_steps_and_bytes(ranks):
    power = 2 ** int(np.log2(ranks))
    assert (
        collectives.halving_doubling_all_reduce(SIZE, ranks, BANDWIDTH, LATENCY)[0]
        > collectives.halving_doubling_all_reduce(SIZE, power, BANDWIDTH, LATENCY)[0]
    )


@pytest.mark.parametrize("algorithm", ALL_REDUCES, ids=["tree", "halving-doubling", "ring"])
@pytest.mark.parametrize("ranks", RANKS)
def test_no_all_reduce_beats_the_bandwidth_bound(algorithm, ranks):
    """Each rank must send and receive 2 (p-1)/p of its buffer (Patarasuk and Yuan 2009)."""
    assert algorithm(SIZE, ranks, BANDWIDTH, ZERO)[0] >= 2 * (ranks - 1) / ranks * 1e6 / 50e9 * (1 - 1e-12)


@pytest.mark.parametrize("ranks", RANKS)
def test_the_best_algorithm_is_no_slower_than_any(ranks):
    size = np.geomspace(1, 1e10, 30)
    best = collectives.best("all_reduce", size, ranks, BANDWIDTH, LATENCY, any_to_any=True, post=ZERO)
    for algorithm in ALL_REDUCES:
        assert (best <= algorithm(size, ranks, BANDWIDTH, LATENCY) * (1 + 1e-12)).all()
    assert (best <= collectives.best("all_reduce", size, ranks, BANDWIDTH, LATENCY, any_to_any=False, post=ZERO)).all()


@pytest.mark.parametrize("ranks", RANKS)
def test_an_all_to_all_behind_a_switch_takes_no_latency_a_peer(ranks):
    """Sends are posted at once, or go in log2 p steps; never slower than pairwise, nor faster than the bytes over the port."""
    size, post = np.geomspace(1, 1e10, 30), np.full(1, 0.2e-6)
    found = collectives.best("all_to_all", size, ranks, BANDWIDTH, LATENCY, any_to_any=True, post=post)
    pairwise = collectives.best("all_to_all", size, ranks, BANDWIDTH, LATENCY, any_to_any=False, post=post)
    assert (found <= pairwise * (1 + 1e-12)).all()
    assert (found >= (ranks - 1) / ranks * size / BANDWIDTH + LATENCY).all()
    assert found[0] == pytest.approx(min(2e-6 + max(ranks - 2, 0) * 0.2e-6, np.ceil(np.log2(ranks)) * 2e-6), rel=1e-3)
    assert found[-1] == pytest.approx((ranks - 1) / ranks * 1e10 / 50e9, rel=5e-3)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_bytes_or_less_bandwidth_never_take_less_time(collective):
    size = np.geomspace(1, 1e10, 50)
    assert (np.diff(collectives.ring(collective, size, 8, BANDWIDTH, LATENCY)) > 0).all()
    assert (np.diff(collectives.ring(collective, SIZE, 8, np.geomspace(1e9, 1e12, 50), LATENCY)) < 0).all()


@pytest.mark.parametrize("ranks", [4, 8, 64, 512])
def test_scatter_and_all_gather_are_a_broadcast_of_long_messages(ranks):
    """Van de Geijn's: (log2 p + log2 p) latencies and twice (p-1)/p of the bytes; backwards reduce_scatter and gather are a reduce."""
    size, log = np.array([1e9]), np.log2(ranks)
    scatter = collectives.rooted_tree(size, ranks, BANDWIDTH, LATENCY)[0]
    doubling = log * 2e-6 + (ranks - 1) / ranks * 1e9 / 50e9
    assert scatter == pytest.approx(doubling, rel=1e-12)
    assert collectives.two_phases(size, ranks, BANDWIDTH, LATENCY)[0] == pytest.approx(scatter + doubling, rel=1e-12)


@pytest.mark.parametrize("ranks", [3, 4, 6, 16, 512])
def test_collectives_with_a_root_behind_a_switch(ranks):
    """By hand: a short message takes a tree's steps, a long one the root's bytes; what is backwards takes as long."""
    sizes, post = np.geomspace(1, 1e10, 30), np.full(1, 0.2e-6)
    found = {name: collectives.best(name, sizes, ranks, BANDWIDTH, LATENCY, any_to_any=True, post=post) for name in COLLECTIVES}
    np.testing.assert_array_equal(found["gather"], found["scatter"])
    np.testing.assert_array_equal(found["reduce"], found["broadcast"])
    steps = np.ceil(np.log2(ranks))
    assert found["reduce"][0] == pytest.approx(steps * 2e-6, rel=1e-3)
    assert found["gather"][0] == pytest.approx(min(steps * 2e-6, 2e-6 + (ranks - 2) * 0.2e-6), rel=1e-3)
    assert found["gather"][-1] == pytest.approx((ranks - 1) / ranks * 1e10 / 50e9, rel=1e-2)
    assert found["reduce"][-1] == pytest.approx(1e10 / 50e9, rel=1e-2)
    assert (found["gather"] <= found["all_gather"] * (1 + 1e-12)).all()
    assert (found["all_reduce"] <= (found["reduce"] + found["broadcast"]) * (1 + 1e-12)).all()


def test_the_root_of_a_gather_receives_the_parts_of_all_others():
    """Of 32 ranks, 8 in a node, 31/32 of the buffer, of which 24/32 come from other nodes: in the mean a rank sends 1/32 of that."""
    inside, outside = sent_bytes("gather", np.array([1e9]), 32, 8)[:, 0]
    assert (32 * inside, 32 * outside) == (pytest.approx(7 / 32 * 1e9), pytest.approx(24 / 32 * 1e9))
    assert 32 * (inside + outside) == pytest.approx(ring_volume("gather", 32) * 1e9)


def test_a_pipeline_of_chunks_has_its_best_chunk():
    """base + (sqrt(S V / B) + sqrt(k a))^2 is the minimum over chunks s of (k + S V / s)(a + s / B)."""
    steps, alpha, rate, size = 7, 2e-6, 50e9, 1e7
    chunks = np.geomspace(1e3, 1e8, 200001)
    searched = ((steps + size / chunks) * (alpha + chunks / rate)).min()
    made = collectives.pipelined(np.array([size]), np.array([1 / rate]), np.array([3e-6]), np.array([steps * alpha]))[0]
    assert made == pytest.approx(3e-6 + searched, rel=1e-6)


# ------------------------------------------------------------------------------------------ on a placed mesh


def costs(lstm, message, axes, network, per_node, **system):
    spec = lstm("d1", technology={"intra_link": "NVLink4", "inter_link": "NDR"}, **system).system
    budgets = spec.budgets.model_copy(
        update={
            "area": spec.budgets.area.model_copy(update={"intra_link": np.array([0.2])}),
            "power_shares": spec.budgets.power_shares.model_copy(update={"intra_link": np.array([0.2])}),
            "perimeter": spec.budgets.perimeter.model_copy(update={"intra_link": np.array([0.3])}),
        }
    )
    device = architecture(spec.model_copy(update={"budgets": budgets}))
    return message_costs((message,), place(axes, network), spec.network, device, per_node), device


PACKAGES = Network(package=Topology(kind="switch", nodes=8), cluster=Topology(kind="switch", nodes=4))
FLAT = Network(package=Topology(kind="single", nodes=1), cluster=Topology(kind="switch", nodes=32))


def reduction(size=1e9, collective="all_reduce", axes=("dp",)):
    return Message(collective=collective, size=size, axes=axes)


def test_flat_reduction_is_bytes_over_the_port(lstm):
    made, device = costs(lstm, reduction(), (("dp", 32),), FLAT, 1)
    assert made.time[0, 0] == pytest.approx(2 * 31 / 32 * 1e9 / device.inter.bandwidth[0], rel=1e-2)
    assert made.intra_bytes[0, 0] == 0
    assert made.inter_bytes[0, 0] == pytest.approx(2 * 31 / 32 * 1e9, rel=1e-12)


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_packages_with_fast_links_are_no_slower_than_none(lstm, collective, size):
    packed, device = costs(lstm, reduction(size, collective), (("dp", 32),), PACKAGES, 8)
    flat, _ = costs(lstm, reduction(size, collective), (("dp", 32),), FLAT, 1)
    assert device.intra.bandwidth[0] > device.inter.bandwidth[0]
    assert packed.time[0, 0] <= flat.time[0, 0] * (1 + 1e-9)


def test_reduction_over_packages_takes_both_levels_phases(lstm):
    """Scatter and gather inside packages of 8, an all-reduce of an eighth between four."""
    made, device = costs(lstm, reduction(), (("dp", 32),), PACKAGES, 8)
    inside, outside = 2 * 7 / 8 * 1e9 / device.intra.bandwidth[0], 2 * 3 / 4 * 1e9 / 8 / device.inter.bandwidth[0]
    assert made.time[0, 0] == pytest.approx(inside + outside, rel=2e-2)


def test_bytes_inside_and_outside_are_all_bytes(lstm):
    for collective in ("all_reduce", "all_gather", "reduce_scatter"):
        made, _ = costs(lstm, reduction(collective=collective), (("dp", 32),), PACKAGES, 8)
        assert (made.intra_bytes + made.inter_bytes)[0, 0] == pytest.approx(ring_volume(collective, 32) * 1e9, rel=1e-12)


def test_two_axes_reduce_one_after_the_other(lstm):
    """Along the second axis only the shard that the first left moves; together they are no slower than one long axis by much."""
    both, device = costs(lstm, reduction(axes=("kp1", "dp")), (("kp1", 4), ("dp", 8)), FLAT, 1)
    first, second = 2 * 3 / 4 * 1e9, 2 * 7 / 8 * 1e9 / 4
    assert both.inter_bytes[0, 0] == pytest.approx(first + second, rel=1e-12)
    assert both.inter_bytes[0, 0] == pytest.approx(2 * 31 / 32 * 1e9, rel=1e-12)
    assert both.time[0, 0] == pytest.approx((first + second) / device.inter.bandwidth[0], rel=1e-2)


def test_no_messages_cost_nothing(lstm):
    spec = lstm("d1").system
    none = message_costs((), place((("dp", 1),), Network()), spec.network, architecture(spec), 1)
    assert none.time.shape == none.intra_bytes.shape == (0, 1)
