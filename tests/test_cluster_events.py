"""Clusters by events: a naive second scheduler, Erlang's formula, and the laws of every policy."""

import dataclasses
import itertools

import numpy as np
import pytest

from crossflow.engine.cluster.events import scheduled
from crossflow.engine.cluster.record import KINDS_OF_STAY, ClusterJobs, ClusterRoom, SchedulerPolicy

KINDS = ("fifo", "backfill", "gang", "preemptive")


def jobs_of(n, seed=0, *, sizes=(1, 2, 4, 8, 16, 32), load=0.9, machine=64, **given):
    rng = np.random.default_rng(seed)
    size, time = rng.choice(sizes, n), rng.exponential(3600.0, n)
    arrival = np.cumsum(rng.exponential(np.mean(sizes) * 3600.0 / machine / load, n))
    plain = {
        "arrival": arrival, "devices": size, "time": time, "power": 500.0 * size, "expected": time * rng.uniform(1.0, 3.0, n),
        "priority": np.zeros(n, dtype=int), "save": np.full(n, 30.0), "load": np.full(n, 60.0), "interval": np.full(n, 600.0),
        "preemptible": np.ones(n, dtype=bool),
    }  # fmt: skip
    return ClusterJobs(**{**plain, **given})


def with_priorities(n, seed=0, **given):
    return jobs_of(n, seed, priority=np.random.default_rng(seed + 1).integers(0, 3, n), **given)


def run(jobs, kind, devices=64, **given):
    room = {name: given.pop(name) for name in ("idle_power", "power_cap") if name in given}
    return scheduled(jobs, ClusterRoom(devices=devices, **room), SchedulerPolicy(kind=kind, **{"quantum": 1800.0, **given}))


def in_use(found, weights):
    """What stays need together, just after each of their begins and ends."""
    stays = found.stays
    times = np.concatenate([stays.begin, stays.end])
    change = np.concatenate([weights[stays.job], -weights[stays.job]])
    order = np.lexsort((change, times))  # ends before begins
    return np.cumsum(change[order])


# ------------------------------------------------------------------------------------------ a second scheduler, and a formula


def naive_fifo(jobs, devices):
    """Start of each: no sooner than the one before, as soon as enough of the devices of earlier ones are back."""
    starts = []
    for i in range(len(jobs)):
        moments = sorted({max(jobs.arrival[i], starts[-1] if starts else 0.0), *(starts[j] + jobs.time[j] for j in range(i))})
        for now in moments:
            held = sum(jobs.devices[j] for j in range(i) if starts[j] <= now < starts[j] + jobs.time[j])
            if now >= moments[0] and now >= jobs.arrival[i] and (not starts or now >= starts[-1]) and held + jobs.devices[i] <= devices:
                starts.append(now)
                break
    return np.array(starts)


@pytest.mark.parametrize("seed", range(4))
def test_fifo_is_that_of_a_naive_scheduler(seed):
    jobs = jobs_of(60, seed)
    assert run(jobs, "fifo").start == pytest.approx(naive_fifo(jobs, 64))


def erlang_c(servers, offered):
    """Probability that an arrival waits (A. K. Erlang 1917), from the sums of the formula as they stand in textbooks."""
    terms = np.cumprod(np.concatenate([[1.0], offered / np.arange(1, servers + 1)]))
    last = terms[-1] * servers / (servers - offered)
    return last / (terms[:-1].sum() + last)


def test_jobs_of_one_device_wait_as_erlang_says():
    servers, load, mean, n = 4, 0.6, 3600.0, 20_000
    jobs = jobs_of(n, 3, sizes=(1,), load=load, machine=servers)
    found = run(jobs, "fifo", devices=servers)
    waits = erlang_c(servers, servers * load)
    expected = waits * mean / (servers * (1.0 - load))
    batches = found.waiting[: n // 40 * 40].reshape(40, -1).mean(axis=1)
    error = batches.std(ddof=1) / np.sqrt(40)
    assert found.waiting.mean() == pytest.approx(expected, abs=3.5 * error)
    assert error < 0.08 * expected  # else the test says nothing
    assert (found.waiting > 0).mean() == pytest.approx(waits, rel=0.06)


# ------------------------------------------------------------------------------------------ laws of all policies


@pytest.mark.cases(2)
@pytest.mark.parametrize("preemption", ["save", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_device_time_is_that_of_jobs_and_what_is_lost(kind, preemption):
    jobs = with_priorities(300)
    found = run(jobs, kind, preemption=preemption)
    times = found.stays.times
    assert all((times[name] >= -1e-9).all() for name in KINDS_OF_STAY)
    assert np.bincount(found.stays.job, times["useful"]) == pytest.approx(jobs.time)
    held = np.bincount(found.stays.job, found.stays.end - found.stays.begin)
    assert held == pytest.approx(sum(np.bincount(found.stays.job, one) for one in times.values()))
    assert found.end - jobs.arrival == pytest.approx(held + found.waiting)
    assert (found.start >= jobs.arrival).all()
    again = np.bincount(found.stays.job) - 1
    assert (again == found.preemptions).all()
    assert (again.sum() > 0) == (kind in ("gang", "preemptive"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_devices_and_power_are_taken_than_there_are(kind):
    jobs = with_priorities(300, seed=5)
    found = run(jobs, kind, idle_power=100.0, power_cap=22_000.0)
    assert in_use(found, jobs.devices).max() <= 64
    assert 64 * 100.0 + in_use(found, jobs.power - 100.0 * jobs.devices).max() <= 22_000.0 * (1 + 1e-9)
    assert in_use(run(jobs, kind), jobs.power).max() > 22_000.0  # the cap binds


@pytest.mark.parametrize("kind", KINDS)
def test_a_cap_that_never_binds_changes_nothing(kind):
    jobs = with_priorities(200, seed=6)
    free, capped = run(jobs, kind, idle_power=100.0), run(jobs, kind, idle_power=100.0, power_cap=64 * 500.0)
    assert (free.end == capped.end).all()
    assert (free.stays.begin == capped.stays.begin).all()


@pytest.mark.cases(2)
@pytest.mark.parametrize("preemption", ["save", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_power_is_shared_as_devices_are(kind, preemption):
    """Where every job draws 100 W a device, 6400 W on devices without number are what 64 devices without a cap are."""
    jobs = with_priorities(250, seed=11, load=1.1)
    jobs = dataclasses.replace(jobs, power=100.0 * jobs.devices)
    by_devices, by_power = (run(jobs, kind, preemption=preemption, **more) for more in ({}, {"devices": 10**6, "power_cap": 6400.0}))
    assert by_power.start.tolist() == by_devices.start.tolist()
    assert by_power.end.tolist() == by_devices.end.tolist()
    assert by_power.preemptions.tolist() == by_devices.preemptions.tolist()
    assert by_devices.waiting.sum() > 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_alone_a_job_takes_its_time(kind):
    jobs = jobs_of(5, arrival=np.arange(5) * 1e6)
    found = run(jobs, kind)
    assert found.end - jobs.arrival == pytest.approx(jobs.time)
    assert not found.waiting.any()


def test_more_devices_never_make_a_first_come_queue_wait_longer():
    for seed in range(6):
        jobs = jobs_of(150, seed)
        waits = [run(jobs, "fifo", devices=devices).waiting for devices in (32, 40, 48, 64, 100)]
        assert all((more <= less + 1e-6).all() for less, more in itertools.pairwise(waits))
        assert waits[0].sum() > waits[-1].sum()


def test_priorities_go_first():
    jobs = with_priorities(400, seed=2, load=1.2)
    found = run(jobs, "fifo")
    waits = [found.waiting[jobs.priority == one].mean() for one in range(3)]
    assert waits[0] > waits[1] > waits[2]


# ------------------------------------------------------------------------------------------ backfill


@pytest.mark.parametrize("seed", range(6))
def test_backfill_never_delays_what_it_promised_the_first_job(seed):
    jobs = jobs_of(300, seed, load=1.0)
    found = run(jobs, "backfill", **({"idle_power": 100.0, "power_cap": 26_000.0} if seed % 2 else {}))
    promised = np.isfinite(found.promised)
    assert promised.sum() > 20
    assert (found.start[promised] <= found.promised[promised] + 1e-6).all()


def test_backfill_by_hand():
    """8 devices: one job holds 6 for 10 s, the next wants 8, behind it wait 2 for 9 s, 2 for 11 s; the last would delay the second."""
    plain = {"arrival": np.zeros(4), "devices": np.array([6, 8, 2, 2]), "time": np.array([10.0, 5.0, 9.0, 11.0])}
    jobs = jobs_of(4, power=np.ones(4), expected=plain["time"], **plain)
    assert run(jobs, "backfill", devices=8).start.tolist() == [0.0, 10.0, 0.0, 15.0]
    assert run(jobs, "fifo", devices=8).start.tolist() == [0.0, 10.0, 15.0, 15.0]
    longer = jobs_of(4, power=np.ones(4), **{**plain, "expected": np.array([10.0, 5.0, 10.1, 11.0])})  # it would fit, but nobody knows
    assert run(longer, "backfill", devices=8).start.tolist() == [0.0, 10.0, 15.0, 15.0]


def test_backfill_fills_what_first_come_leaves_empty():
    jobs = jobs_of(400, 8, load=1.1)
    assert run(jobs, "backfill").waiting.mean() < 0.7 * run(jobs, "fifo").waiting.mean()
    assert (run(jobs, "backfill", depth=0).start == run(jobs, "fifo").start).all()
    some = run(jobs, "backfill", depth=1).waiting.mean()
    assert run(jobs, "backfill").waiting.mean() < some < run(jobs, "fifo").waiting.mean()


# ------------------------------------------------------------------------------------------ preemption and slices


def two(**given):
    plain = {"arrival": np.array([0.0, 1000.0]), "devices": np.array([8, 8]), "time": np.array([5000.0, 100.0]), "power": np.ones(2)}
    plain["expected"] = plain["time"]
    return jobs_of(2, **{**plain, "priority": np.array([0, 1]), **given})


def test_a_preemption_costs_its_checkpoint():
    found = run(two(), "preemptive", devices=8)
    assert found.start.tolist() == [0.0, 1030.0]  # once the other has saved
    assert found.end.tolist() == [5000.0 + 30.0 + 100.0 + 60.0, 1130.0]
    assert found.waiting.tolist() == [100.0, 30.0]


def test_a_kill_costs_the_work_since_the_last_checkpoint():
    found = run(two(), "preemptive", devices=8, preemption="kill")
    assert found.start.tolist() == [0.0, 1000.0]
    assert found.end.tolist() == [5000.0 + 400.0 + 100.0 + 60.0, 1100.0]  # 1000 s since its begin, saved at 600 s
    never = run(two(interval=np.full(2, np.inf)), "preemptive", devices=8, preemption="kill")
    assert never.end[0] == 5000.0 + 1000.0 + 100.0 + 60.0


def test_what_is_not_preemptible_or_as_important_keeps_its_devices():
    for jobs in (two(preemptible=np.zeros(2, dtype=bool)), two(priority=np.zeros(2, dtype=int))):
        found = run(jobs, "preemptive", devices=8)
        assert found.end.tolist() == [5000.0, 5100.0]
        assert not found.preemptions.any()


def test_no_more_jobs_are_preempted_than_need_be():
    """16 devices held by 2, 4, 8 and 2, of which the last began last; 9 wanted: 2 and 8 are enough, and of 8 and 4 the 4 goes free."""
    jobs = jobs_of(
        5, arrival=np.array([0.0, 1.0, 2.0, 3.0, 10.0]), devices=np.array([2, 8, 4, 2, 9]), time=np.full(5, 100.0), power=np.ones(5),
        expected=np.full(5, 100.0), priority=np.array([0, 0, 0, 0, 1]),
    )  # fmt: skip
    assert run(jobs, "preemptive", devices=16).preemptions.tolist() == [0, 1, 0, 1, 0]


def test_slices_by_hand():
    """Two jobs of all devices: slices of 1800 s, each change costs a save and, the second time, a load."""
    jobs = jobs_of(2, arrival=np.zeros(2), devices=np.array([8, 8]), time=np.full(2, 3000.0), power=np.ones(2))
    found = run(jobs, "gang", devices=8)
    assert found.stays.job.tolist() == [0, 1, 0, 1]
    assert found.stays.begin.tolist() == [0.0, 1830.0, 3630.0, 4890.0]
    assert found.stays.end.tolist() == [1830.0, 3630.0, 4890.0, 6180.0]
    assert found.preemptions.tolist() == [1, 1]


def test_jobs_of_one_priority_have_their_slices_in_turn():
    jobs = jobs_of(3, arrival=np.zeros(3), devices=np.full(3, 8), time=np.full(3, 6000.0), power=np.ones(3))
    assert run(jobs, "gang", devices=8).stays.job.tolist()[:9] == [0, 1, 2] * 3


def test_slices_let_short_jobs_pass_long_ones():
    jobs = jobs_of(300, 4, load=0.95, time=np.random.default_rng(1).lognormal(7.0, 1.8, 300))
    short = jobs.time < np.median(jobs.time)
    assert run(jobs, "gang").waiting[short].mean() < 0.5 * run(jobs, "fifo").waiting[short].mean()


def test_a_slice_that_nothing_is_done_in_and_a_job_without_room_are_refused():
    with pytest.raises(ValueError, match="no longer than the 90 s that jobs take to save and to load"):
        run(jobs_of(3), "gang", quantum=90.0)
    with pytest.raises(ValueError, match=r"needs .* devices"):
        run(jobs_of(30), "fifo", devices=8)


@pytest.mark.parametrize("kind", KINDS)
def test_no_jobs_at_all(kind):
    assert len(run(jobs_of(0), kind).stays.job) == 0


@pytest.mark.parametrize("quantum", [0.1, 0.3, 0.7, 0.9, 20.1, 33.3])
def test_slices_of_any_length_end(quantum):
    """The end of slice k, over the length of a slice, may be rounded below k."""
    two = jobs_of(2, arrival=np.zeros(2), devices=np.full(2, 8), time=np.full(2, 40 * quantum), save=np.zeros(2))
    found = run(dataclasses.replace(two, load=np.zeros(2)), "gang", devices=8, quantum=quantum)
    assert found.stays.end.max() == pytest.approx(80 * quantum)
    assert len(found.stays.end) >= 70  # in turn
