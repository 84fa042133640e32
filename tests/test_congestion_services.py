"""Services on a network that others share: laws, counts by hand, and the closed form beside the replay."""

import itertools

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation.replaying import engines_of
from crossflow.answers.scenario import requests_of
from crossflow.answers.steps.services import handed_over as handed_over_bytes
from crossflow.base.errors import SpecError
from crossflow.hardware.architecture.network import Congestion, NeighbourJob
from crossflow.hardware.mapping.congestion import DevicePart, slowdown
from crossflow.hardware.mapping.topology import Network, Topology

SHARED = "system.network.inter.congestion"
SYSTEM = {"template": "dgx-h100", "nodes": 4, "network": {"inter": {"topology": "fat-tree", "group": 2, "oversubscription": 2}}}
SERVING = {"prefill": {"workers": 2, "strategy": "tp8"}}
STEADY = {
    "system": SYSTEM,
    "workload": {"model": "llama3-70b", "task": "serving", "prompt": 2000, "output": 200, "global_batch": 32, "serving": SERVING},
    "strategy": "tp16-dp2",
}
REPLAYED = {
    "system": SYSTEM,
    "workload": {"model": "llama3-70b", "task": "serving", "serving": SERVING},
    "requests": {"arrivals": {"law": "poisson", "rate": "4 1/s"}, "prompt": 2000, "output": 50, "count": 40},
    "strategy": "tp16-dp2",
}
MOE = {**STEADY["workload"], "model": "mixtral-8x7b", "serving": {**SERVING, "experts": {"strategy": "tp8"}}}
# Six nodes of the service, three leaves; spread, each leaf has a node of either job, and its uplinks carry what one node can send.
RING = {"devices": 48, "traffic": "ring"}
BUSY = {"routing": "adaptive", "placement": "spread", "jobs": [RING]}
BOTH = pytest.mark.parametrize("data", [STEADY, REPLAYED], ids=["closed form", "replay"])


def times(data, congestion, **settings):
    """The mean step, and what a request takes from its arrival to its last token."""
    found = crossflow.predict(crossflow.load(data, {SHARED: congestion, **settings}))
    return np.array([found.step_time, found.serving["e2el_s"]])


# -------------------------------------------------------------------------------------------- laws


@pytest.mark.cases(1)
@BOTH
def test_a_service_alone_takes_what_it_does_on_a_network_of_its_own(data):
    alone = times(data, None)
    for nobody in (
        {"routing": "adaptive"},
        {"routing": "adaptive", "jobs": [{**RING, "duty": 0.0}]},  # who sends nothing
        {"routing": "adaptive", "jobs": [RING]},  # on leaves of their own
        {**BUSY, "jobs": [{**RING, "priority": 1}]},  # who takes what the service leaves
    ):
        assert times(data, nobody) == pytest.approx(alone, rel=1e-12)


@pytest.mark.cases(1)
@BOTH
def test_more_of_others_never_makes_a_service_faster(data):
    found = [times(data, {**BUSY, "jobs": [{**RING, "devices": 48 * many, "weight": weight}]}) for many, weight in ((1, 1), (2, 1), (2, 3))]
    steps = [times(data, None), *found]
    for less, more in itertools.pairwise(steps):
        assert (more >= less * (1 - 1e-12)).all()
    assert (steps[-1] > steps[0] * 1.01).all()


def small(writing, reading, group, over, width=1):
    """The network of a service of so many nodes, and its part that hands over."""
    cluster = Topology(kind="fat-tree", nodes=writing + reading, group=group, oversubscription=over)
    package = Topology(kind="switch", nodes=width) if width > 1 else Topology(kind="single", nodes=1)
    part = DevicePart(before=writing * width, devices=reading * width, whole=(writing + reading) * width)
    return Network(package=package, cluster=cluster), part


def handed_over(congestion, net, part, stride=1):
    return slowdown(congestion, net, stride, 2, "handover", part=part)


@pytest.mark.cases(4)
@pytest.mark.parametrize("placement", ["packed", "spread", "by-rail"])
@pytest.mark.parametrize("routing", ["adaptive", "ecmp"])
@pytest.mark.parametrize("seed", range(3))
def test_handing_over_is_never_faster_than_alone_wherever_engines_are(seed, routing, placement):
    rng = np.random.default_rng(seed)
    writing, reading, group = rng.integers(1, 5, 3).tolist()
    net, part = small(writing, reading, group, over=float(rng.integers(1, 4)), width=4)
    devices = (writing + reading) * (2 if placement == "by-rail" else 4)
    jobs = tuple(NeighbourJob(devices=devices, traffic=traffic) for traffic in ("all-to-all", "ring"))

    def factors(*others, routing=routing):
        return np.array(handed_over(Congestion(placement=placement, routing=routing, jobs=others), net, part, stride=4).factors)

    silent = [job.model_copy(update={"duty": 0.0}) for job in jobs]
    assert (factors(*jobs) >= factors(*silent) - 1e-12).all()
    assert (factors(*silent) >= 1 - 1e-12).all()
    assert factors(*silent, routing="adaptive") == pytest.approx(1.0, rel=1e-12)


@pytest.mark.cases(1)
@BOTH
def test_keys_and_values_pass_the_links_of_their_leaves_also_alone(data):
    """Leaves of two nodes, the first two with the replica, the third with the workers: eight ports of one of them have 16 / o links out."""
    narrow = "system.network.inter.oversubscription"
    whole = {**data, "strategy": "tp16-dp2", "system": {**SYSTEM, "nodes": 4}}

    def to_first_token(over, congestion=None):
        found = crossflow.predict(crossflow.load(whole, {narrow: over, SHARED: congestion}))
        return float(found.serving["ttft_s"])

    wide = to_first_token(1)
    assert to_first_token(2) == pytest.approx(wide, rel=1e-12)
    four, eight = (to_first_token(over) - wide for over in (4, 8))
    assert four > 1e-3
    assert eight == pytest.approx(3 * four, rel=0.05)  # (16 / 8) and (16 / 4) links fewer than ports: 2 and 4 times as long
    for over in (4, 8):
        assert to_first_token(over, {"routing": "adaptive"}) == pytest.approx(to_first_token(over), rel=1e-12)


def flying(data, over, group=2, workers=2, nodes=4, congestion=None):
    """Time to the first token of a service on a dragonfly: nodes of replicas, then those of workers."""
    fly = {"topology": "dragonfly", "group": group, "oversubscription": over}
    serving = {"prefill": {**SERVING["prefill"], "workers": workers}}
    system = {**SYSTEM, "nodes": nodes, "network": {"inter": fly}}
    data = {**data, "workload": {**data["workload"], "serving": serving}, "system": system}
    return float(crossflow.predict(crossflow.load(data, {SHARED: congestion})).serving["ttft_s"])


@BOTH
def test_keys_and_values_pass_the_links_between_groups_of_a_dragonfly_also_alone(data):
    """Three groups of two nodes: each of the two links out of one is half of 16 / o ports, and eight ports send over one of them. A way
    through the third group is no wider."""
    wide = flying(data, 1)
    two, four, eight = (flying(data, over) - wide for over in (2, 4, 8))
    assert two > 1e-3
    assert [four, eight] == pytest.approx([3 * two, 7 * two], rel=0.05)  # 2, 4 and 8 times as long
    for over in (2, 8):
        assert flying(data, over, congestion={"routing": "adaptive"}) == pytest.approx(flying(data, over), rel=1e-12)


@BOTH
def test_a_dragonfly_that_no_service_fills_has_its_last_group_wholly(data):
    """Five nodes in groups of two: the sixth is there for others, and so are the links of its group, which carry as much as with it."""
    found = [flying(data, over, workers=1) for over in (1, 2, 4)]
    links = [one - found[0] for one in found]
    assert links[2] == pytest.approx(3 * links[1], rel=0.05)
    assert links[1] > 3e-4


@BOTH
def test_engines_in_one_group_of_a_dragonfly_use_none_of_its_links_to_others(data):
    one = {**data, "strategy": "tp8-dp2"}
    assert flying(one, 1, group=4, nodes=2) == flying(one, 64, group=4, nodes=2)


def test_each_token_takes_as_many_times_as_long_as_the_leaf_has_fewer_links():
    def sent(over):
        one = crossflow.load(REPLAYED, {"system.network.inter.oversubscription": over})
        return engines_of(one, requests_of(one)).sent

    (fixed, each), (later, slower) = sent(1), sent(8)
    assert slower == pytest.approx(4 * each, rel=1e-9)
    assert later == pytest.approx(fixed, rel=1e-6)


@pytest.mark.parametrize("draws", [64, 1000])
def test_moments_take_every_way_alike(draws):
    # Two leaves of four nodes of one device, oversubscription 4. Three of four receivers are on the leaf of five that is full.
    net, part = small(5, 3, group=4, over=4.0)
    found = np.array(handed_over(Congestion(routing="adaptive", draws=draws), net, part).ways)
    assert found.mean() == pytest.approx(1.0)  # one stream passes one link
    net, part = small(5, 3, group=4, over=8.0)
    found = np.array(handed_over(Congestion(routing="adaptive", draws=draws), net, part).ways)
    assert found.mean() == pytest.approx((4 * 2 + 1 * 1) / 5, abs=1.5 / draws)  # but to the node on the workers' own leaf


# -------------------------------------------------------------------------------------------- by hand


def test_a_handover_and_a_ring_halve_one_link_by_hand():
    # Leaves of two nodes with one device each, oversubscription 2: one link out. Spread, a leaf has the engine that writes and a node of
    # the neighbour, the other one the worker and the other node. Keys and values go up from the second leaf and down to the first one,
    # beside an edge of the ring each way: half of the link.
    net, part = small(1, 1, group=2, over=2.0)

    def factors(**other):
        shared = Congestion(routing="adaptive", placement="spread", jobs=(NeighbourJob(devices=2, **other),))
        return set(handed_over(shared, net, part).factors)

    assert factors() == {2.0}
    assert factors(weight=3.0) == {4.0}
    assert factors(priority=1) == {1.0}
    assert factors(duty=0.0) == {1.0}
    assert factors(weight=0.25) == {1.25}


def test_a_handover_meets_what_others_have_on_the_links_between_its_engines_by_hand():
    # Leaves of four nodes of one device, oversubscription 4: one link out. Spread, each of three leaves has two nodes of the service (two
    # that write; the third one and a worker; two workers) and two of the neighbour, each of which sends a fifth to each of the other five:
    # 2 * 4 / 5 of its rate leaves a leaf, and as much comes in. A prompt from the first worker to its own leaf leaves nothing and is as
    # fast as alone. Any other one shares links with these 1.6: alone at full rate, beside others at 1 / 2.6.
    net, part = small(3, 3, group=4, over=4.0)
    shared = Congestion(routing="adaptive", placement="spread", draws=2048, jobs=(NeighbourJob(devices=6, traffic="all-to-all"),))
    found = np.array(handed_over(shared, net, part).factors)
    near = found == 1.0
    assert found[~near] == pytest.approx(2.6, rel=1e-12)
    assert near.mean() == pytest.approx(1 / 9, abs=0.03)  # one of nine pairs
    # What the link carries is all that it can: the prompt and the neighbour, at the same rate for each transfer.
    assert (1 + 1.6) / found[~near] == pytest.approx(1.0)


def test_an_engine_of_two_nodes_sends_from_both_by_hand():
    # Two nodes that write, a worker of two nodes of two devices, a leaf each; two links out of a leaf. Both nodes of the worker send at
    # once, each over its own leaf, and the neighbour on the same leaves sends as much on each.
    net, part = small(2, 2, group=2, over=2.0, width=2)
    shared = Congestion(routing="adaptive", placement="spread", jobs=(NeighbourJob(devices=8),))
    assert set(handed_over(shared, net, part, stride=4).factors) == {2.0}


def test_keys_and_values_take_as_many_times_as_long_as_links_give_less():
    # Of the ring's and the service's transfers on a leaf's links each has half; only what the bytes take is longer.
    requests = {SHARED: None}, {SHARED: BUSY}
    engines = [engines_of(one, requests_of(one)) for one in (crossflow.load(REPLAYED, given) for given in requests)]
    (fixed, each), (later, slower) = (one.sent for one in engines)
    assert slower == pytest.approx(2 * each, rel=1e-9)
    assert later == pytest.approx(fixed, rel=1e-6)
    assert [one.received / two.received for one, two in zip(engines[1].writing, engines[0].writing, strict=True)] == pytest.approx([2.0])


@pytest.mark.cases(1)
@pytest.mark.parametrize("output", [2, 5000])
def test_what_is_handed_over_of_a_prompt_does_not_grow_with_what_is_written(output):
    scenario = crossflow.load({**STEADY, "workload": {**STEADY["workload"], "output": output}})
    assert handed_over_bytes(scenario) == 2000 * 2 * 80 * 8 * 128 * 2  # tokens, keys and values, layers, heads of 128 elements, 16 bits
    longer = crossflow.load({**REPLAYED, "requests": {**REPLAYED["requests"], "output": output}})
    usual = crossflow.load(REPLAYED)
    assert engines_of(longer, requests_of(longer)).sent == engines_of(usual, requests_of(usual)).sent


def test_workers_lie_behind_replicas_and_send_at_other_times():
    # Alone on leaves of their own, replicas lose nothing to the neighbour that stands beside the workers.
    net, part = small(4, 1, group=2, over=2.0, width=2)
    shared = Congestion(routing="adaptive", jobs=(NeighbourJob(devices=6, traffic="ring"),))  # one of three nodes on the worker's leaf
    replicas = DevicePart(before=0, devices=8, whole=10)
    assert set(slowdown(shared, net, 1, 4, "ring", part=replicas).factors) == {1.0}
    assert set(handed_over(shared, net, part, stride=2).factors) == {2.0}


# -------------------------------------------------------------------------------------------- scenarios


def rows(data, congestion):
    found = crossflow.predict(crossflow.load(data, {SHARED: congestion})).to_dict()["congestion"]["collectives"]
    return {row["collective"]: (row["ranks"], row["slowdown"]) for row in found}


def test_the_closed_form_and_the_replay_lose_the_same_to_others():
    busy = {**BUSY, "routing": "ecmp"}
    assert rows(STEADY, busy) == rows(REPLAYED, busy)
    assert rows(STEADY, busy).keys() == {"all_reduce", "handover"}


def test_a_service_tells_what_it_loses():
    steady, replayed = (crossflow.predict(crossflow.load(data, {SHARED: BUSY})) for data in (STEADY, REPLAYED))
    served = crossflow.serve(crossflow.load(REPLAYED, {SHARED: BUSY}))
    for one in (steady, replayed, served):
        assert any("handing over keys and values takes 2 times as long" in note for note in one.notes)
        assert one.trust.level == "extrapolated"
    told = steady.to_dict()["congestion"]
    assert told["alone_step_time_s"] == pytest.approx(times(STEADY, None)[0])
    assert served.to_dict()["congestion"] == replayed.to_dict()["congestion"]
    assert served.to_dict()["congestion"].keys() == {"collectives"}  # of many steps none is told by itself


def test_points_of_a_sweep_of_services_are_their_own_predictions():
    shared = crossflow.load(STEADY, {SHARED: {**BUSY, "routing": "ecmp", "jobs": [{"devices": 32}]}})
    workers = "workload.serving.prefill.workers"
    points = {"system.nodes": [4, 8, 8], "strategy": ["tp16-dp2", "tp16-dp4", "tp8-dp8"], workers: [2, 1, 3]}
    found = crossflow.evaluate(shared, points)
    for i, time in enumerate(found.step_time):
        one = shared.replace({path: values[i] for path, values in points.items()})
        assert float(time) == pytest.approx(float(crossflow.predict(one).step_time), rel=1e-12)


def test_replicas_of_a_batch_are_slowed_on_the_network_of_their_own_point():
    # Rings of equal groups on leaves of their own collide the more often the more of them there are.
    training = {"system": SYSTEM, "workload": {"model": "llama3-8b", "global_batch": 64, "sequence": 4096}, "strategy": "tp16-dp2-z1"}
    shared = crossflow.load(training, {"system.network.inter.group": 1, SHARED: {}})
    found = crossflow.evaluate(shared, {"system.nodes": [4, 32], "strategy": ["tp16-dp2-z1", "tp16-dp16-z1"]})
    for time, nodes in zip(found.step_time, (4, 32), strict=True):
        one = shared.replace({"system.nodes": nodes, "strategy": f"tp16-dp{nodes // 2}-z1"})
        assert float(time) == pytest.approx(float(crossflow.predict(one).step_time), rel=1e-12)


@pytest.mark.parametrize(
    ("congestion", "changes", "sentence"),
    [
        ({}, {"workload": MOE, "strategy": "tp8-dp4"}, "what experts on devices of their own lose to others is not known"),
        ({"jobs": [{"devices": 12}]}, {}, "jobs[0] has 12 devices; give a multiple of 8 devices"),
        ({"placement": "by-rail", "jobs": [{"devices": 8}]}, {}, "give a multiple of 6 devices, one in each of the step's nodes"),
    ],
)
def test_what_a_service_cannot_share_is_said(congestion, changes, sentence):
    with pytest.raises(SpecError) as error:
        crossflow.load({**STEADY, **changes}, {SHARED: congestion})
    assert sentence in str(error.value)


def test_phases_of_post_training_are_slowed_that_send_between_nodes():
    rollout = {"prompts": 16, "answers": 4, "prompt": 256, "answer": 200, "strategy": "tp2"}
    data = {
        "system": SYSTEM, "workload": {"model": "llama3-8b", "sequence": 600, "global_batch": 64}, "strategy": "tp4-dp8-z3",
        "job": {"kind": "grpo", "rollout": rollout},
    }  # fmt: skip
    alone, beside = (crossflow.predict(crossflow.load(data, {SHARED: one})).job["phases_s"] for one in (None, BUSY))
    assert alone.keys() == beside.keys()
    assert all(beside[phase] >= alone[phase] * (1 - 1e-12) for phase in alone)
    assert beside["training"] > 1.2 * alone["training"]
    assert beside["rollout"] == alone["rollout"]  # engines of two devices, and none sends to another


def test_fleets_of_other_sizes_are_refused():
    targets = {"requests": {**REPLAYED["requests"], "targets": {"ttft": "2 s"}}}
    with pytest.raises(crossflow.CrossflowError, match="a fleet of another size would lose something else to others"):
        crossflow.plan(crossflow.load({**REPLAYED, **targets}, {SHARED: {}}))
