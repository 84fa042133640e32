"""Streams of one step that overlap on the same links: laws, sums by hand, a simulation of fluids, steps whose links keep their capacity."""

from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.answers.steps.machines import machine
from crossflow.cost.shared_links import (
    BESIDE_BUSY,
    INSIDE,
    INSIDE_BUSY,
    OUTSIDE,
    OUTSIDE_BUSY,
    USES,
    LinkStream,
    beside,
    longer,
    longest_busy,
)
from crossflow.engine.runs.transformer import transformer_step
from crossflow.hardware.mapping.flows import FlowPaths, max_min
from crossflow.parallel.batches import laid_out
from crossflow.program.groups import Group


def stream(time, **use):
    rows = {"inside": INSIDE, "outside": OUTSIDE, "inside_busy": INSIDE_BUSY, "outside_busy": OUTSIDE_BUSY, "beside": BESIDE_BUSY}
    found = np.zeros((USES, *np.shape(np.atleast_1d(time))))
    for name, value in use.items():
        found[rows[name]] = value
    return LinkStream(time=np.atleast_1d(np.asarray(time, dtype=float)), use=found)


def outside(time, sent, busy=None):
    return stream(time, outside=sent, outside_busy=sent if busy is None else busy)


# -------------------------------------------------------------------------------------------- by hand


def test_two_streams_on_one_port_by_hand():
    # 2 s of messages in 10 s, beside 4 s: they meet for 4 x 2 / 10 s, in which both take twice as long.
    assert longer(outside(10.0, 2.0), outside(4.0, 4.0), np.array([10.0])) == pytest.approx(0.8)
    # Messages that send in 70 % and 60 % of their time: where they meet, both send in 42 % of it.
    assert longer(outside(10.0, 10.0, 7.0), outside(4.0, 4.0, 2.4), np.array([10.0])) == pytest.approx(4 * 0.42)
    # A message that only waits for its latency is in nobody's way.
    assert longer(outside(10.0, 10.0, 0.0), outside(4.0, 4.0), np.array([10.0])) == 0
    # One after the other, nothing meets.
    assert longer(outside(10.0, 2.0), outside(4.0, 4.0), np.array([14.0])) == 0


def test_messages_that_hide_beside_kernels_give_way():
    # 4 s hide beside kernels that would hide 3 s more. The second stream is under way all the time: they are 4 s longer, 1 s of it shown.
    # The second one has goes on 10 - 3 s meanwhile, of 10 s.
    first = replace(outside(10.0, 4.0), spare=np.array([[0.0], [3.0]]))
    assert longer(first, outside(5.0, 5.0), np.array([10.0])) == pytest.approx(5 * (4 - 3) / (10 - 3))
    assert longer(replace(first, spare=np.array([[0.0], [4.0]])), outside(5.0, 5.0), np.array([10.0])) == 0
    # A device that waits for its host has time, but the network does not: it sends 8 s of a step of 10 s, and 5 s more.
    waiting = replace(outside(10.0, 8.0), idle=np.array([9.0]))
    assert longer(waiting, outside(5.0, 5.0), np.array([10.0])) == pytest.approx(3.0)


def test_a_ring_between_nodes_uses_the_links_inside_them_too():
    # 6 s of a ring between nodes keep the links inside busy for 3 s; beside them are 8 s there in 10 s.
    tensor, ring = stream(10.0, inside=8.0, inside_busy=8.0), stream(6.0, outside=6.0, outside_busy=6.0, beside=3.0)
    assert longer(tensor, ring, np.array([10.0])) == pytest.approx(6 * 0.8 * (1 * 0.5))


def test_three_streams_join_one_by_one():
    both = beside(outside(10.0, 4.0), outside(5.0, 5.0), np.array([10.0]))[1]
    assert both.time == pytest.approx(12.0)
    assert both.use[OUTSIDE] == pytest.approx(9.0)  # 4 s and 5 s, of which 2 s met and took 4 s: never both at once, at the rate of one
    assert longer(both, outside(3.0, 3.0), both.time) == pytest.approx(3 * 9 / 12)


# -------------------------------------------------------------------------------------------- laws


def drawn(rng, n):
    """Streams of n points with messages on both tiers, no tier of which has more to send than time."""
    time = rng.uniform(0.1, 10.0, n)
    inside, between = rng.dirichlet([1.0, 1.0, 1.0], n).T[:2] * time
    busy, beyond = inside * rng.uniform(0, 1, n), between * rng.uniform(0, 1, n)
    return stream(time, inside=inside, outside=between, inside_busy=busy, outside_busy=between * rng.uniform(0, 1, n), beside=beyond)


@pytest.mark.parametrize("seed", range(3))
def test_sharing_keeps_its_laws(seed):
    rng = np.random.default_rng(seed)
    one, other = drawn(rng, 2000), drawn(rng, 2000)
    spare = one.under_way * rng.uniform(0, 1, (2, 2000))
    for first in (one, replace(one, spare=spare), replace(one, spare=spare, idle=one.time * rng.uniform(0, 1, 2000))):
        alone = np.maximum(one.time, other.time)
        apart = alone + rng.uniform(0, 1, 2000) * (one.time + other.time - alone)
        added, both = beside(first, other, apart)
        assert (added >= 0).all()
        assert (apart + added <= (one.time + other.time) * (1 + 1e-12)).all()
        assert (longest_busy(one.use, other.use) <= both.time * (1 + 1e-9)).all()
        assert (both.use[OUTSIDE_BUSY] == one.use[OUTSIDE_BUSY] + other.use[OUTSIDE_BUSY]).all()
    assert longer(one, other, apart) == pytest.approx(longer(other, one, apart))
    few = longer(*(LinkStream(time=each.time[7:9], use=each.use[:, 7:9]) for each in (one, other)), apart[7:9])
    assert few == pytest.approx(longer(one, other, apart)[7:9], rel=1e-12)


def test_streams_on_different_links_take_what_they_did():
    rng = np.random.default_rng(3)
    time = rng.uniform(1, 10, 100)
    near, far = stream(time, inside=time, inside_busy=time), outside(time[::-1], time[::-1])
    assert (longer(near, far, np.maximum(near.time, far.time)) == 0).all()


# -------------------------------------------------------------------------------------------- a simulation of fluids


def simulated(layers, kernels, message, gather, reduction, *, shared, late=(0.0, 0.0)):
    """Time of in-order streams event by event: kernels and a message a layer, a gather before it and a reduction behind it.

    late : latency before a message of each stream sends anything.
    """
    work, stream_of, sends, after = [], [], [], []

    def add(which, time, before, *, net):
        work.append(time)
        stream_of.append(which)
        sends.append(net)
        after.append(before)
        return len(work) - 1

    def send(which, time, before):
        waited = [add(which, late[which], before, net=False)] if late[which] else before
        return add(which, time, waited, net=True)

    gathers = [send(1, gather, [])]
    for layer in range(layers):
        if layer + 1 < layers:
            gathers.append(send(1, gather, []))
        computed = add(0, kernels, [gathers[layer]], net=False)
        sent = send(0, message, [computed])
        if reduction:
            send(1, reduction, [sent])
    queues = [[task for task in range(len(work)) if stream_of[task] == which] for which in (0, 1)]
    left, done, now = list(work), set(), 0.0
    while any(queues):
        running = [queue[0] for queue in queues if queue and done.issuperset(after[queue[0]])]
        nets = [task for task in running if sends[task]]
        rates = dict.fromkeys(running, 1.0)
        if shared and len(nets) > 1:
            paths = FlowPaths.of(np.arange(len(nets)), np.zeros(len(nets), dtype=int), np.ones(len(nets)), flows=len(nets), links=1)
            rates.update(zip(nets, max_min(paths, np.ones((1, 1))).rate[:, 0].tolist(), strict=True))
        step = min(left[task] / rates[task] for task in running)
        now += step
        for task in running:
            left[task] -= step * rates[task]
            if left[task] <= 1e-9 * work[task]:
                done.add(task)
                queues[stream_of[task]].pop(0)
    return now


@pytest.mark.parametrize(("behind", "most", "mean"), [(False, 0.03, 0.01), (True, 0.2, 0.1)])
def test_a_simulation_of_fluids_agrees(behind, most, mean):
    """Gathers alone are as even as the closed form takes them; reductions wait for kernels, and may fall beside them every time."""
    rng, errors, before = np.random.default_rng(1), [], []
    for _ in range(8):
        layers = int(rng.choice([16, 32]))
        kernels, message, gather, reduction = rng.uniform(0.05, 1.0, 4) * [1, 1, 1, behind]
        apart, together = (simulated(layers, kernels, message, gather, reduction, shared=shared) for shared in (False, True))
        first = outside(layers * (kernels + message), layers * message)
        second = outside(layers * (gather + reduction), layers * (gather + reduction))
        found = apart + float(longer(first, second, np.array([apart]))[0])
        errors.append(found / together - 1)
        before.append(apart / together - 1)
    assert np.abs(errors).max() < most
    assert np.abs(errors).mean() < mean
    assert np.mean(before) < -0.12


def test_a_simulation_of_messages_with_latencies_agrees():
    """Messages meet where both send, after latencies of up to twice their times; spread over all of it, they would meet too little."""
    rng, errors, spread = np.random.default_rng(5), [], []
    for _ in range(40):
        layers = int(rng.choice([16, 32]))
        kernels, message, gather = rng.uniform(0.05, 1.0, 3)
        late = rng.uniform(0, 2, 2) * [message, gather]
        apart, together = (simulated(layers, kernels, message, gather, 0.0, shared=shared, late=late) for shared in (False, True))
        whole = np.array([message, gather]) + late
        first = outside(layers * (kernels + whole[0]), layers * whole[0], layers * message)
        second = outside(layers * whole[1], layers * whole[1], layers * gather)
        errors.append((apart + float(longer(first, second, np.array([apart]))[0])) / together - 1)
        overlap = first.time + second.time - apart
        fluid = overlap * (whole[0] / (kernels + whole[0])) * max(message / whole[0] + gather / whole[1] - 1, 0.0)
        spread.append((apart + float(fluid[0])) / together - 1)
    assert np.abs(errors).max() < 0.12
    assert np.abs(errors).mean() < 0.03 < np.abs(spread).mean()
    assert abs(np.mean(errors)) < 0.015 < -np.mean(spread)


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_latency_never_ends_both_sooner(seed):
    rng = np.random.default_rng(seed)
    n = 2000
    rest, sent, late, more = rng.uniform(0, 5, (2, n)), rng.uniform(0, 5, (2, n)), rng.uniform(0, 3, (2, n)), rng.uniform(0, 3, (2, n))
    for grown in ((1, 0), (0, 1), (1, 1)):
        ends = []
        for times in (late, late + more * np.array(grown)[:, None]):
            one, other = (outside(rest[i] + sent[i] + times[i], sent[i] + times[i], sent[i]) for i in (0, 1))
            apart = np.maximum(one.time, other.time)
            ends.append(apart + longer(one, other, apart))
        assert (ends[1] >= ends[0] * (1 - 1e-12)).all()


# -------------------------------------------------------------------------------------------- messages


def wires_of(**settings):
    scenario = crossflow.load(
        {"system": {"template": "dgx-h100", "nodes": 4}, "workload": {"model": "llama3-8b"}, "strategy": "dp32"}, settings
    )
    return machine(scenario, scenario.architecture).wires


def test_a_long_message_keeps_its_tier_busy_and_a_short_one_does_not():
    wires, n = wires_of(), 2
    sizes = np.array([1e3, 1e9])
    for group, time, busy in (
        (Group.alike(8, 8, n), INSIDE, INSIDE_BUSY), (Group.alike(4, 1, n), OUTSIDE, OUTSIDE_BUSY),
    ):  # fmt: skip
        alone = wires.time("all_gather", sizes, group)
        use = wires.used("all_gather", sizes, group, alone)
        assert use[time].tolist() == alone.tolist()
        assert (use[[row for row in range(USES) if row not in (time, busy)]] == 0).all()
        assert use[busy, 0] < 0.05 * alone[0]
        assert use[busy, 1] > 0.97 * alone[1]
    ring = wires.used("all_gather", sizes, Group.alike(32, 8, n), wires.time("all_gather", sizes, Group.alike(32, 8, n)))
    # 28 of 32 edges of the ring lie inside nodes; a device sends 31/32 of the buffer, over links of 450 GB/s at the rate that they reach.
    assert ring[BESIDE_BUSY, 1] == pytest.approx(1e9 * 31 / 32 * 28 / 32 / float(wires.fabric.switched[0]))


@pytest.mark.parametrize("topology", ["torus2d", "mesh2d"])
def test_direct_links_are_left_out(topology):
    scenario = {
        "system": {"template": "chip-h100", "devices": 16},
        "workload": {"model": "llama3-8b", "global_batch": 32},
        "strategy": "tp4-dp4",
    }
    given = crossflow.load(scenario, {"system.network.inter": {"topology": topology}, "system.devices_per_node": 1})
    on = machine(given, given.architecture)
    layout = laid_out(given.job(), [given.strategy], np.array([32.0]), on.node, on.stack)
    step, apart = (transformer_step(given.job(), layout, one).total for one in (on, replace(on, apart=True)))
    assert step == pytest.approx(apart, rel=1e-12)


# -------------------------------------------------------------------------------------------- steps

MIXTURE = {
    "system": {"template": "dgx-h100", "nodes": 8, "network": {"inter": {"bandwidth": "12.5 GB/s"}}},
    "workload": {"model": "mixtral-8x7b", "global_batch": 64, "sequence": 4096},
    "software": "ideal",
}


def steps(strategy, settings=None, **data):
    """A step, and one whose streams have links of their own; bytes that a device sends out of its node, and the rate of its port."""
    scenario = crossflow.load({**MIXTURE, "strategy": strategy, **data}, settings or {})
    on = machine(scenario, scenario.architecture)
    layout = laid_out(scenario.job(), [scenario.strategy], np.array([float(scenario.workload_batch)]), on.node, on.stack)
    found, apart = (transformer_step(scenario.job(), layout, one) for one in (on, replace(on, apart=True)))
    return found, apart, float(np.ravel(found.sent[1])[0]) / float(on.architecture.inter.bandwidth[0])


def test_a_step_sends_no_more_than_its_port_can():
    """Each stream priced alone, 17.8 GB leave a device in 1.33 s, which its port of 12.5 GB/s carries in 1.43 s."""
    found, apart, busy = steps("tp2-ep8-dp32-z1-mb2")
    assert float(apart.total[0]) < 0.95 * busy
    assert float(found.total[0]) > busy


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("strategy", "software"),
    [
        ("tp2-ep8-dp32-z1-mb2", "ideal"), ("tp2-ep8-dp32-z3-mb2", "ideal"), ("tp2-ep8-dp32-z2", "pytorch-fsdp"),
        ("tp2-ep8-pp2-dp16-z1-mb2", "megatron-core"), ("tp2-ep8-pp4-v2-dp8-z1", "nemo"), ("tp16-pp2-dp2-sp", "megatron-core"),
        ("tp2-ep8-pp2-dp16-z1-pipedream", "ideal"),
    ],
)  # fmt: skip
def test_sharing_costs_time_but_no_more_than_what_was_hidden(strategy, software):
    found, apart, busy = steps(strategy, software=software)
    total, alone = float(found.total[0]), float(apart.total[0])
    assert alone * (1 + 1e-5) < total
    assert total > busy
    hidden = sum(float((apart.communication[name] - apart.exposed[name])[0]) for name in apart.communication)
    assert total - alone <= hidden * (1 + 1e-9)
    for name, time in found.communication.items():  # what they take alone is what it was
        assert time == pytest.approx(apart.communication[name], rel=1e-12)
    assert sum(float(one[0]) for one in found.breakdown.values()) == pytest.approx(total)
    assert sum(float(one[0]) for one in found.exposed.values()) == pytest.approx(float(found.breakdown["exposed_communication"][0]))


def test_experts_beside_another_microbatch_meet_what_that_one_sends():
    mine = {"strategy": "tp2-ep8-pp2-dp16-z1-mb2", "software": {"like": "megatron-core", "overlap": {"experts": True}}}
    found, apart, _ = steps(mine.pop("strategy"), {"workload.global_batch": 256}, **mine)
    assert float(found.total[0]) > float(apart.total[0]) * 1.001


@pytest.mark.parametrize("strategy", ["tp8-dp8-z1", "tp8-dp8-z3", "dp64-z3", "tp8-dp8"])
def test_steps_whose_streams_have_different_links_are_what_they_were(strategy):
    dense = {"workload": {"model": "llama3-8b", "global_batch": 64, "sequence": 4096}}
    found, apart, _ = steps(strategy, **dense)
    assert found.total == pytest.approx(apart.total, rel=1e-12)


def test_a_quicker_network_is_never_slower():
    scenario = crossflow.load({**MIXTURE, "strategy": "tp2-ep8-pp2-dp16-z1-mb2"})
    rates = [f"{rate} GB/s" for rate in np.geomspace(1, 1000, 25)]
    times = crossflow.evaluate(scenario, {"system.network.inter.bandwidth": rates}).step_time
    assert (np.diff(times) < 0).all()
    one = crossflow.predict(scenario, {"system.network.inter.bandwidth": rates[7]}).step_time
    assert float(times[7]) == pytest.approx(float(one), rel=1e-12)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "strategy", ["tp2-ep8-dp32-z1-mb2", "tp2-ep8-dp32-z3-mb2", "tp2-ep8-pp4-v2-dp8-z1", "tp2-ep8-pp2-dp16-zbh1-z1-mb2"]
)
def test_timelines_end_when_steps_do(strategy):
    scenario = crossflow.load({**MIXTURE, "strategy": strategy, "software": "megatron-core"})
    assert crossflow.timeline(scenario).step_time == pytest.approx(float(crossflow.predict(scenario).step_time), rel=1e-9)
