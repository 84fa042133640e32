"""Jobs of a cluster that share links: laws, cases by hand, events beside a naive second way, and what files may say."""

import dataclasses
import itertools

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import SpecError
from crossflow.base.files import yaml_text
from crossflow.engine.cluster.events import _Stay, scheduled
from crossflow.engine.cluster.record import ClusterJobs, ClusterRoom, SchedulerPolicy

# Leaves of four nodes with one link out for four ports: of 16 nodes each leaf has one of a job of four, where jobs stand in turn, and can
# send just what that node does.
SYSTEM = {"template": "dgx-h100", "nodes": 16, "network": {"inter": {"topology": "fat-tree", "group": 4, "oversubscription": 4}}}
TRAINING = {"workload": {"model": "llama3-8b", "global_batch": 32, "sequence": 4096}, "strategy": "tp8-dp4-z1", "run": {"steps": 1000}}
SERVING = {
    "workload": {
        "model": "llama3-70b", "task": "serving", "prompt": 2000, "output": 200, "global_batch": 16,
        "serving": {"prefill": {"workers": 2, "strategy": "tp8"}},
    },
    "strategy": "tp16-dp1",
}  # fmt: skip
TRAINS, SERVES = {"scenario": TRAINING, "devices": 32}, {"scenario": SERVING, "devices": 16, "time": "2 h"}
LAWS = {"arrivals": {"law": "poisson", "rate": "1 1/s"}, "prompt": 100, "output": 10, "count": 5}
SERVED = {key: value for key, value in SERVING["workload"].items() if key not in ("prompt", "output", "global_batch")}
REPLAYS = {**SERVES, "scenario": {**SERVING, "workload": SERVED, "requests": LAWS}}
FACT = {"devices": 32, "time": "1 h", "power": "1 kW"}


def cluster(*jobs, **given):
    return crossflow.schedule({"system": SYSTEM, "links": "shared", "jobs": list(jobs), "idle_power": "500 W", **given})


def sending(duty, traffic="ring", **more):
    return {**FACT, "sends": {"traffic": traffic, "duty": duty}, **more}


# -------------------------------------------------------------------------------------------- by hand


def test_two_jobs_on_one_link_by_hand():
    # The first job sends half of its time, the second one always. Beside it, what the first sends has half of every link and takes twice as
    # long: 0.5 + 0.5 * 2 = 1.5. It runs half an hour alone, and its other half takes 45 min: it ends after 75 min.
    found = cluster(sending(0.5), sending(1.0, arrival="30 min"))
    assert found.found.end[0] == pytest.approx(75 * 60)
    # The second one takes twice as long in the moments in which the first one sends, 1.5 times in the mean (64 are drawn): of its first 45
    # min there are 30 of work, and then it is alone.
    assert found.found.end[1] == pytest.approx((30 + 45 + 60 - 45 / 1.5) * 60, rel=0.01)
    assert found.shared[0] == pytest.approx(75 / 60)
    assert found.found.alone == pytest.approx([3600, 3600])


def test_weights_and_classes_of_jobs_are_those_of_their_flows():
    heavy = cluster(sending(1.0), sending(1.0, sends={"duty": 1.0, "weight": 3.0}))
    # The light one has a quarter, so that it takes four times as long, until the heavy one (4 / 3) ends: of 80 min 20 are work.
    assert heavy.found.end == pytest.approx([(80 + 40) * 60, 80 * 60])
    behind = cluster(sending(1.0), sending(1.0, sends={"duty": 1.0, "priority": -1}))
    assert behind.found.end[1] == pytest.approx(3600)


def test_a_service_of_given_facts_hands_over_beside_a_ring():
    # One of four nodes reads prompts. The ring has half of the link that keys and values take, of the leaf of the worker and of the one
    # that they go to, and as much on the others, where it could not send more.
    found = cluster(sending(1.0), sending(0.25, "handover", sends={"traffic": "handover", "senders": 0.25, "duty": 1.0}))
    assert found.shared[1] == pytest.approx(2.0, rel=0.3)
    assert (found.shared > 1.2).all()


# -------------------------------------------------------------------------------------------- laws


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "jobs", [(TRAINS,), (SERVES,), (sending(0.7),), (TRAINS, FACT), (SERVES, sending(0.0)), (TRAINS, {**TRAINS, "arrival": "2 h"})]
)
def test_who_meets_nobody_that_sends_takes_what_it_takes_on_links_of_its_own(jobs):
    shared, own = cluster(*jobs), cluster(*({k: v for k, v in job.items() if k != "sends"} for job in jobs), links="own")
    assert shared.found.end == pytest.approx(own.found.end, rel=1e-12)
    assert shared.shared == pytest.approx(1.0, rel=1e-12)
    assert own.shared is None


def test_jobs_on_leaves_of_their_own_do_not_slow_each_other():
    packed = {**SYSTEM, "network": {"inter": {**SYSTEM["network"]["inter"], "congestion": {"placement": "packed", "routing": "adaptive"}}}}
    assert cluster(TRAINS, sending(1.0), system=packed).shared == pytest.approx([1.0, 1.0], rel=1e-12)
    assert cluster(TRAINS, sending(1.0)).shared[0] > 1.05


@pytest.mark.cases(1)
@pytest.mark.parametrize("congestion", [{"placement": "spread"}, {"placement": "packed", "routing": "adaptive"}])
def test_it_does_not_matter_which_entry_of_a_file_stands_first(congestion):
    system = inter(oversubscription=4, congestion=congestion)["system"]
    entries = [sending(0.5), sending(0.3, "all-to-all", devices=16), sending(0.9, devices=48), TRAINS]
    found = set()
    for order in itertools.permutations(range(4)):
        shared = cluster(*(entries[one] for one in order), system=system).shared
        found.add(tuple(shared[np.argsort(order)]))
    assert len(found) == 1


def test_jobs_share_a_dragonfly_whose_groups_none_of_them_fills():
    fly = {**SYSTEM, "nodes": 15, "network": {"inter": {"topology": "dragonfly", "group": 5}}}
    found = cluster(TRAINS, SERVES, sending(1.0, "all-to-all"), system=fly)
    assert (found.shared >= 1.0).all()
    assert found.shared.max() > 1.0


def test_services_and_training_slow_each_other():
    both, busy = cluster(TRAINS, SERVES), cluster(TRAINS, SERVES, sending(1.0, time="9 h"))
    trained, served = both.shared
    assert trained > 1.0
    assert served > 1.0
    assert (busy.shared[:2] > both.shared).all()
    assert busy.found.end[1] == both.found.end[1] == 7200.0  # a service runs as long as it is asked to, and does less
    assert both.found.alone[1] < 7200.0
    assert busy.found.end[0] > both.found.end[0] > cluster(TRAINS).found.end[0]


def test_a_job_beside_others_is_its_own_prediction_beside_them():
    other = {"devices": 64, "traffic": "all-to-all", "duty": 0.5}
    found = cluster(TRAINS, {**FACT, "devices": 64, "time": "9 h", "sends": {"traffic": "all-to-all", "duty": 0.5}})
    network = {"placement": "spread", "routing": "adaptive"}
    silent = {"devices": 32, "duty": 0.0}

    def step(*jobs):
        scenario = {**TRAINING, "system": {**SYSTEM, "nodes": 4}}
        return crossflow.predict(crossflow.load(scenario, {"system.network.inter.congestion": {**network, "jobs": list(jobs)}})).step_time

    assert found.shared[0] == pytest.approx(step(other, silent) / step({"devices": 96, "duty": 0.0}), rel=1e-9)


def test_what_a_service_sends_is_what_its_prompts_need():
    # Its engines' steps between nodes and what its workers hand over: the busier one is what others meet.
    (kind,) = cluster({**SERVES, "scenario": {**SERVING, "strategy": "tp8-dp2"}}).cluster.kinds
    assert kind.sends.traffic == "handover"
    assert kind.sends.senders == 0.5
    rate = crossflow.predict({**SERVING, "strategy": "tp8-dp2", "system": {**SYSTEM, "nodes": 2}}).serving["request_throughput_per_s"]
    sent = rate * 2000 * 2 * 80 * 8 * 128 * 2  # bytes of keys and values: layers, heads of 128 elements, 16 bits
    assert kind.sends.duty == pytest.approx(sent / (2 * 8 * 50e9), rel=1e-6)  # over eight ports of two nodes


# -------------------------------------------------------------------------------------------- events


def naive(arrival, time, devices, room, slower):
    """Ends of jobs in order of arrival that slow each other, by looking at every moment at which anything can change."""
    left, start, ends, now = time.astype(float), {}, np.full(len(time), np.nan), 0.0
    while np.isnan(ends).any():
        running = [i for i in start if np.isnan(ends[i])]
        for i in range(len(time)):
            if i in start:
                continue
            if arrival[i] > now or devices[i] + sum(devices[j] for j in running) > room:
                break
            start[i] = now
            running.append(i)
        rate = {i: 1.0 / slower(running)[place] for place, i in enumerate(running)}
        coming = [one - now for one in arrival if one > now]
        step = min([*coming, *(left[i] / rate[i] for i in running)])
        now += step
        for i in running:
            left[i] -= step * rate[i]
            if left[i] <= 1e-9:
                ends[i] = now
    return ends


@pytest.mark.parametrize("seed", range(16))
def test_events_are_those_of_a_naive_second_way(seed):
    rng = np.random.default_rng(seed)
    n, room = 12, 10
    arrival, time, devices = np.sort(rng.uniform(0, 20, n)), rng.uniform(1, 10, n), rng.integers(1, 6, n)
    heavy, none = rng.uniform(0, 1, n), np.zeros(n)

    def slower(running):
        return [1.0 + sum(heavy[j] for j in running if j != i) for i in running]

    jobs = ClusterJobs(
        arrival=arrival, devices=devices, time=time, power=none, expected=time, priority=none.astype(int), save=none, load=none,
        interval=none + np.inf, preemptible=none > 0,
    )  # fmt: skip
    found = scheduled(jobs, ClusterRoom(devices=room), SchedulerPolicy(), slower)
    assert found.end == pytest.approx(naive(arrival, time, devices, room, slower), abs=1e-6)
    assert found.alone == pytest.approx(time)  # all work is done, and none twice
    alone = scheduled(jobs, ClusterRoom(devices=room), SchedulerPolicy(), lambda running: [1.0] * len(running))
    assert (alone.end == scheduled(jobs, ClusterRoom(devices=room), SchedulerPolicy()).end).all()
    filled = scheduled(jobs, ClusterRoom(devices=room), SchedulerPolicy(kind="backfill"), slower)
    assert filled.alone == pytest.approx(time)


def meeting(n, seed, room=10, **given):
    """Jobs of which each slows the others by what it weighs, and how much longer running ones then take."""
    rng, none = np.random.default_rng(seed), np.zeros(n)
    heavy, time = rng.uniform(0, 1, n) * (rng.uniform(size=n) < 0.6), rng.uniform(1, 10, n)
    plain = {
        "arrival": np.sort(rng.uniform(0, 3.5 * n / room, n)), "devices": rng.integers(1, 9, n), "time": time,
        "expected": time * rng.uniform(1, 2, n), "power": none, "priority": none.astype(int), "save": none, "load": none,
        "interval": none + np.inf, "preemptible": none > 0, "lasting": rng.uniform(size=n) < 0.2,
    }  # fmt: skip
    jobs = ClusterJobs(**{**plain, **given})
    return jobs, lambda running: [1.0 + heavy[j] * (sum(heavy[i] for i in running) - heavy[j]) for j in running]


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(12))
def test_backfill_keeps_its_promises_to_jobs_that_slow_each_other(seed):
    jobs, slower = meeting(150, seed)
    found = scheduled(jobs, ClusterRoom(devices=10), SchedulerPolicy(kind="backfill"), slower)
    promised = np.isfinite(found.promised)
    assert promised.sum() > 20
    assert (found.start[promised] <= found.promised[promised] + 1e-6).all()
    in_order = scheduled(jobs, ClusterRoom(devices=10), SchedulerPolicy(), slower)
    assert found.waiting.mean() < in_order.waiting.mean()  # and some jobs do slip in


@pytest.mark.parametrize("seed", range(4))
def test_backfill_of_jobs_that_slow_nobody_is_that_of_links_of_their_own(seed):
    jobs, _ = meeting(150, seed)
    policy, room = SchedulerPolicy(kind="backfill"), ClusterRoom(devices=10)
    shared = scheduled(jobs, room, policy, lambda running: [1.0] * len(running))
    assert (shared.start == scheduled(jobs, room, policy).start).all()


def test_backfill_by_hand_of_jobs_that_slow_each_other():
    """8 devices: the first job holds 4 for 10 s and the second 2 for 20 s, each half as fast beside the other.

    The third wants 6: at 20 s the first has done its work, and the promise is of then. The fourth (2 for 9 s) would slow both further, the
    fifth, which sends nothing, slips in.
    """
    given = {"arrival": np.zeros(5), "devices": np.array([4, 2, 6, 2, 2]), "time": np.array([10.0, 20.0, 5.0, 9.0, 9.0])}
    jobs, _ = meeting(5, 0, **given, expected=given["time"], lasting=None)

    def slower(running):
        many = sum(job != 4 for job in running)
        return [1.0 if job == 4 else float(many) for job in running]

    found = scheduled(jobs, ClusterRoom(devices=8), SchedulerPolicy(kind="backfill"), slower)
    assert found.promised[2] == 20.0
    assert found.start.tolist() == [0.0, 0.0, 20.0, 30.0, 0.0]


TAKES = [
    SchedulerPolicy(kind="gang", quantum=2.0), SchedulerPolicy(kind="preemptive"), SchedulerPolicy(kind="preemptive", preemption="kill"),
]  # fmt: skip


def taken_from(seed, slower=1.0):
    """Jobs of several priorities that save and load, and whose work takes so many times as long."""
    rng, n = np.random.default_rng(seed), 60
    given = {"priority": rng.integers(0, 3, n), "preemptible": rng.uniform(size=n) < 0.9, "arrival": np.sort(rng.uniform(0, 4.5 * n, n))}
    jobs, slows = meeting(n, seed, **given, lasting=None)
    given = {"save": np.full(n, 0.1), "load": np.full(n, 0.2), "time": slower * jobs.time, "expected": slower * jobs.expected}
    return dataclasses.replace(jobs, **given, interval=np.full(n, 0.7 * slower)), slows


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", TAKES, ids=lambda one: f"{one.kind} {one.preemption}")
@pytest.mark.parametrize("seed", range(3))
def test_where_all_are_as_slow_as_each_other_devices_are_taken_as_from_longer_jobs(policy, seed):
    (plain, _), (longer, _), room = taken_from(seed), taken_from(seed, 2.0), ClusterRoom(devices=10)
    found = scheduled(plain, room, policy, lambda running: [2.0] * len(running))
    alone = scheduled(longer, room, policy)
    assert found.preemptions.sum() > 4
    assert found.preemptions.tolist() == alone.preemptions.tolist()
    assert found.end == pytest.approx(alone.end)
    for kind, times in found.stays.times.items():
        assert times.sum() == pytest.approx(alone.stays.times[kind].sum(), abs=1e-6)
    assert scheduled(plain, room, policy, lambda running: [1.0] * len(running)).end == pytest.approx(scheduled(plain, room, policy).end)


@pytest.mark.parametrize("policy", TAKES, ids=lambda one: f"{one.kind} {one.preemption}")
@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_slow_each_other_and_lose_devices_do_all_of_their_work(policy, seed):
    jobs, slower = taken_from(seed)
    found = scheduled(jobs, ClusterRoom(devices=10), policy, slower)
    assert found.preemptions.sum() > 4
    times = found.stays.times
    assert all((one >= -1e-9).all() for one in times.values())
    ran = np.bincount(found.stays.job, times["useful"])
    assert (ran >= jobs.time - 1e-9).all()
    if policy.preemption == "save":
        assert found.alone == pytest.approx(jobs.time)  # and none twice
    else:
        assert (found.alone >= jobs.time - 1e-9).all()
        assert found.alone.sum() > jobs.time.sum() + 0.5


def test_work_since_the_last_checkpoint_is_lost_by_hand():
    """A job of 10 s is half as fast beside the first 4 s of another one, and alone for 2 s: of 4 s of work it has saved 3. At 6 s an
    important one takes its devices for 5 s; what was done in its last second is done again, in the 7 s that are left."""
    given = {
        "arrival": np.array([0.0, 0.0, 6.0]), "devices": np.array([4, 4, 8]), "time": np.array([10.0, 2.0, 5.0]),
        "expected": np.array([10.0, 2.0, 5.0]), "priority": np.array([0, 0, 1]), "preemptible": np.array([True, False, False]),
        "interval": np.full(3, 3.0), "lasting": None,
    }  # fmt: skip
    jobs, _ = meeting(3, 0, **given)
    policy = SchedulerPolicy(kind="preemptive", preemption="kill")
    found = scheduled(jobs, ClusterRoom(devices=8), policy, lambda running: [float(len(running))] * len(running))
    assert found.end.tolist() == [18.0, 4.0, 11.0]
    assert found.stays.times["lost_work"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("interval", [0.3, 2.0, 50.0, np.inf])
def test_a_stay_knows_its_last_checkpoint_and_holds_as_much_after_any_number_of_events(interval):
    """The moment is that of a list of all moments, which it kept before."""
    rng, stay = np.random.default_rng(4), _Stay(begin=0.0, loaded=1.0, finish=9.0, expected=9.0, saved=1.0)
    moments, done = [1.0], [0.0]
    for _ in range(60):
        runs, slower = rng.uniform(0.01, 1), rng.uniform(1, 3)
        moments, done = [*moments, moments[-1] + runs], [*done, done[-1] + runs / slower]
        stay.work(moments[-1], runs, runs / slower, interval)
        kept = done[-1] // interval * interval if np.isfinite(interval) else 0.0
        assert stay.done == pytest.approx(done[-1])
        assert stay.saved == pytest.approx(np.interp(kept, done, moments))
    assert all(isinstance(held, float) for held in vars(stay).values())


def test_a_promise_is_an_estimate_where_a_job_is_faster_beside_another_by_hand():
    """8 devices: the first job holds 4 for 10 s, the second 2 for 4 s, and the first is half as fast alone as beside it, as where hashes
    of flows change with who runs. The third wants all at 10 s, as is promised; at 4 s the second is gone, and 12 s more are left."""
    given = {"arrival": np.zeros(3), "devices": np.array([4, 2, 8]), "time": np.array([10.0, 4.0, 1.0])}
    jobs, _ = meeting(3, 0, **given, expected=given["time"], lasting=None)

    def slower(running):
        return [2.0 if job == 0 and len(running) == 1 else 1.0 for job in running]

    found = scheduled(jobs, ClusterRoom(devices=8), SchedulerPolicy(kind="backfill"), slower)
    assert (found.promised[2], found.start[2]) == (10.0, 16.0)


# -------------------------------------------------------------------------------------------- files


def inter(**given):
    return {"system": {**SYSTEM, "network": {"inter": {**SYSTEM["network"]["inter"], **given}}}}


@pytest.mark.parametrize(
    ("jobs", "given", "sentence"),
    [
        ((sending(0.5),), {"links": "own"}, "jobs[0].sends: only links: shared looks at it"),
        ((TRAINS,), inter(topology="switch", group=None, oversubscription=None), "on a switch nothing is shared"),
        ((TRAINS,), inter(congestion={"jobs": [{"devices": 8}]}), "the jobs of the cluster are the others; leave it out"),
        ((TRAINS,), inter(congestion={"placement": "by-rail"}), "jobs of a cluster have whole nodes; take packed or spread"),
        ((REPLAYS,), {}, "jobs[0].sends: what requests that are replayed sends is not known"),
        ((sending(0.5, "handover"),), {}, "a handover goes from some nodes of a job to the others"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(jobs, given, sentence):
    with pytest.raises(SpecError) as error:
        cluster(*jobs, **given)
    assert sentence in str(error.value)


def test_an_important_job_takes_devices_from_one_that_others_slow():
    jobs = (sending(0.5, devices=64), sending(1.0, devices=64), {**FACT, "devices": 64, "arrival": "30 min", "priority": 1})
    found = cluster(*jobs, scheduler="preemptive")
    assert found.found.preemptions.tolist() == [0, 1, 0]
    assert found.shared[0] > 1.0
    assert found.shared[2] == 1.0
    hours = {one["name"]: one["device_hours"] for one in found.to_dict()["classes"]}
    assert sum(hours.values()) == pytest.approx(found.to_dict()["device_hours"]["useful"])


def test_what_links_cost_is_told():
    found = cluster(TRAINS, sending(1.0, name="other"), FACT)
    told = found.to_dict()
    assert told["shared_links"]["mean"] == pytest.approx(found.shared.mean())
    assert [one["shared_links"]["mean"] for one in told["classes"]] == pytest.approx([found.shared[0], found.shared[1], 1.0])
    assert told["trust_of"]["links"]["trust"] == "unknown"
    assert found.table()["shared_links"].tolist() == found.shared.tolist()
    assert "jobs of given facts that do not say what they send slow no others, and are not slowed" in found.notes
    hours = {one["name"]: one["device_hours"] for one in told["classes"]}
    assert sum(hours.values()) == pytest.approx(told["device_hours"]["useful"])
    assert "links" not in cluster(FACT, links="own").to_dict()["trust_of"]


def test_the_page_tells_what_links_cost(tmp_path, capsys):
    path = tmp_path / "meeting.yaml"
    path.write_text(yaml_text({"system": SYSTEM, "links": "shared", "jobs": [sending(1.0), sending(1.0)], "idle_power": "500 W"}))
    assert main(["schedule", str(path)]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "shared links jobs take 2 times as long as without others on average, 2 times at most" in page
    assert "links unknown: what jobs lose to each other on shared links was never compared with a measurement" in page
    assert main(["schedule", str(path), "--set", "links=own", "jobs.0.sends=null", "jobs.1.sends=null"]) == 0
    assert "shared links" not in capsys.readouterr().out
    assert main(["schedule", str(path), "--set", "jobs.0.sends.duty=0.5", "system.network.inter.topology=switch"]) == 2
