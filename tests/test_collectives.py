"""Collectives in closed form: limits, identities, bytes, and message costs on ideal fabrics."""

from dataclasses import replace

import numpy as np
import pytest

from crossflow.cost import collectives
from crossflow.cost.network import message_costs
from crossflow.cost.profile import Measured, Profile, message_shape
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
    spec, device = placed_on(lstm, **system)
    return message_costs((message,), place(axes, network), spec.network, device, per_node), device


def placed_on(lstm, **system):
    """A system with links inside packages and between them, and its device."""
    spec = lstm("d1", technology={"intra_link": "NVLink4", "inter_link": "NDR"}, **system).system
    budgets = spec.budgets.model_copy(
        update={
            "area": spec.budgets.area.model_copy(update={"intra_link": np.array([0.2])}),
            "power_shares": spec.budgets.power_shares.model_copy(update={"intra_link": np.array([0.2])}),
            "perimeter": spec.budgets.perimeter.model_copy(update={"intra_link": np.array([0.3])}),
        }
    )
    return spec, architecture(spec.model_copy(update={"budgets": budgets}))


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


def test_short_messages_take_the_steps_of_both_levels(lstm):
    """Rings of 7 steps inside packages of 8, for a reduction there and back, then 4 steps between 4 packages, 3 of a ring for a gather; of
    half a microsecond and of two. With two everywhere a reduction over all 32 at once takes less: 10 steps.
    """
    spec, device = placed_on(lstm)
    quick = replace(device, intra=replace(device.intra, latency=np.array([0.5e-6])))
    assert device.intra.latency[0] == device.inter.latency[0] == 2e-6
    for one, collective, time in (
        (quick, "all_reduce", 14 * 0.5e-6 + 4 * 2e-6), (device, "all_reduce", 10 * 2e-6),
        (quick, "all_gather", 7 * 0.5e-6 + 3 * 2e-6), (device, "all_gather", 10 * 2e-6),
    ):  # fmt: skip
        found = priced((reduction(1.0, collective),), place((("dp", 32),), PACKAGES), spec, one)
        assert found[0][0] == [pytest.approx(time, rel=1e-4)]


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


def priced(messages, placement, spec, device, **more):
    found = message_costs(messages, placement, spec.network, device, 8, **more)
    return [[getattr(found, name)[i].tolist() for name in ("time", "measured", "intra_bytes", "inter_bytes")] for i in range(len(messages))]


MIXED = (
    reduction(1e9), reduction(np.array([0.0, 5e8])), reduction(0.5), reduction(2e6, axes=("kp1", "dp")), reduction(4e6, axes=("dp", "kp1")),
    Message(collective="all_reduce", size=1e6, axes=("dp",), time=3e-3),
    Message(collective="all_reduce", size=0.0, axes=("dp",), time=2e-3),
    Message(collective="send_recv", size=1e6, axes=("dp",), between=(0, 1)),
    Message(collective="send_recv", size=1e6, axes=("dp",), between=(3, 4)),
)  # fmt: skip
AXES = (("kp1", 4), ("dp", 8))


def test_messages_priced_together_cost_what_each_costs_by_itself(lstm):
    """Also where what they cost is kept from one placement to the next; one of no bytes takes no time, one with a time its own."""
    spec, device = placed_on(lstm)
    kept, seen = {}, []
    for order in (("kp1", "dp"), ("dp", "kp1"), ("kp1", "dp")):
        placement = place(AXES, PACKAGES, order)
        together = priced(MIXED, placement, spec, device)
        for one, row in zip(MIXED, together, strict=True):
            (alone,) = priced((one,), placement, spec, device)
            assert [np.broadcast_to(values, 2).tolist() for values in alone] == row
        assert priced(MIXED, placement, spec, device, rows=kept) == together
        seen.append(together)
    assert seen[0] == seen[2] != seen[1]
    assert all(rows[1][0][0] == 0.0 < rows[1][0][1] and min(rows[2][0]) > 0.0 for rows in seen)
    assert [rows[i][:2] for rows in seen for i in (5, 6)] == [[[time, time]] * 2 for _ in seen for time in (3e-3, 2e-3)]
    assert all(not any(values) for rows in seen for i, row in enumerate(rows) if i not in (5, 6) for values in row[1:2])


def test_of_a_message_over_two_axes_what_was_measured_of_each_counts(lstm):
    """A reduction of a mebibyte over 4 and of a fourth of it over 8: measured times of 7 and 5 us. Of one whose second was not, 7."""
    spec, device = placed_on(lstm)
    message, placement = reduction(2.0**20, axes=("kp1", "dp")), place(AXES, FLAT)

    def measured(**times):
        events = {
            ("all_reduce", message_shape(size), "", ranks, "inter"): Measured(time=times[f"r{ranks}"], spread=0.0)
            for ranks, size in ((4, 2**20), (8, 2**18)) if f"r{ranks}" in times
        }  # fmt: skip
        profile = Profile(events=events, source="own.csv", rows=tuple((line, key) for line, key in enumerate(events, 2)))
        (found,) = priced((message,), placement, spec, device, profile=profile)
        return found[0][0], found[1][0]

    assert measured(r4=7e-6, r8=5e-6) == (pytest.approx(12e-6), pytest.approx(12e-6))
    time, known = measured(r4=7e-6)
    assert known == pytest.approx(7e-6)
    assert known < time
    time, known = measured(r8=5e-6)
    assert known == pytest.approx(5e-6)
    assert known < time


def test_no_messages_cost_nothing(lstm):
    spec = lstm("d1").system
    none = message_costs((), place((("dp", 1),), Network()), spec.network, architecture(spec), 1)
    assert none.time.shape == none.measured.shape == none.intra_bytes.shape == none.inter_bytes.shape == (0, 1)
