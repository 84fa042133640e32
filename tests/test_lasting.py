"""Goodput of long runs: formulas in their limits, laws, and three ways to the same answer: closed form, events, a naive simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest

from crossflow.base.arrays import points
from crossflow.engine.lasting.events import histories, history
from crossflow.engine.lasting.intervals import best_interval, daly, young
from crossflow.engine.lasting.record import KINDS_OF_TIME, FailureCause, LongRun, SlowCause
from crossflow.engine.lasting.renewal import best_spares, expected, first_of_bursts
from crossflow.engine.lasting.sparing import Outage, _Law, lost_speed, missing_replicas, shortages, speed_without

DAY = 86400.0


SLOW = ((1e-4, 3000.0, 1.25), (2e-5, 9000.0, 2.0))


def a_run(rate, *, detection=60.0, repair=3600.0, silent=0.0, latency=3600.0, elastic=False, again=(0.0, 0.0), slow=(), **given):
    first, second = again
    causes = [FailureCause(name="node", rate=points(rate), detection=points(detection), repair=points(repair), again=first)]
    if silent:
        causes.append(FailureCause(name="silent", rate=points(silent), detection=points(latency), silent=True, again=second))
    slow = tuple(SlowCause(name=f"slow {i}", rate=points(r), length=points(t), slowdown=s) for i, (r, t, s) in enumerate(slow))
    given = {"nodes": points(64.0), **{key: points(value) for key, value in given.items()}}
    return LongRun(causes=tuple(causes), elastic=elastic, slow=slow, **given)


def drawn_run(rng, elastic=False, **more):
    """A run at random, but for what is given."""
    drawn = {
        "rate": 10 ** rng.uniform(-5.0, -3.7), "detection": rng.uniform(0, 300), "repair": 10 ** rng.uniform(2.5, 4),
        "silent": 10 ** rng.uniform(-6, -5), "interval": 10 ** rng.uniform(2, 3.5), "stall": rng.uniform(0, 60),
        "commit": rng.uniform(0, 100), "restart": rng.uniform(10, 900), "spares": float(rng.integers(0, 5)),
        "planned": 10 ** rng.uniform(-7, -5), "maintenance": rng.uniform(0, 7200), "replica": float(rng.choice([1, 4, 8])),
    }  # fmt: skip
    return a_run(**{**drawn, "elastic": elastic, **more})


def test_without_anything_else_it_is_dalys_complete_model():
    """Time of a run of Ts, Daly 2006, Eq. 20: M exp(R / M) (exp((t + d) / M) - 1) Ts / t."""
    mean, restart, interval, stall = 9e3, 700.0, 1800.0, 90.0
    found = expected(a_run(1 / mean, detection=0.0, repair=0.0, interval=interval, stall=stall, restart=restart)).goodput[0]
    assert found == pytest.approx(interval / (mean * math.exp(restart / mean) * (math.exp((interval + stall) / mean) - 1)), rel=1e-12)


def test_worked_by_hand():
    """One failure a 10,000 s, saved every 1,000 s at no cost: half an interval is lost, to first order, and 100 s of restart."""
    shares = expected(a_run(1e-4, detection=0.0, repair=0.0, interval=1000.0, restart=100.0)).shares
    cycle = 1e4 * math.exp(0.01)
    kept = 1000.0 / (math.exp(0.1) - 1.0)
    assert shares["useful"][0] == pytest.approx(kept / cycle)
    assert shares["lost_work"][0] == pytest.approx((1e4 - kept) / cycle)
    assert shares["lost_work"][0] == pytest.approx(0.05, rel=0.06)


@pytest.mark.parametrize("spares", [0.0, 1.0, 2.0])
def test_failures_that_find_no_spare_by_hand(spares):
    """Of the failures that take a node, Erlang's B of the nodes in repair while the job goes on; others take none, and no spare."""
    run = a_run(1e-4, repair=5000.0, silent=3e-4, interval=1000.0, spares=spares, elastic=True, nodes=1.0)
    found = expected(run)
    share = found.shares
    awake = 1.0 - share["waiting"][0]
    load = 5000.0 * found.interruptions[0] * 0.25 / awake  # a fourth of all failures take a node
    terms = [load**k / math.factorial(k) for k in range(int(spares) + 1)]
    assert found.missing[0] == pytest.approx(terms[-1] / sum(terms), rel=1e-6)


def test_planned_stops_by_hand():
    """Nothing fails: after 10,000 s in the mean a save of 50 + 200 s, 1,000 s of maintenance and a restart of 300 s."""
    given = {"interval": 2000.0, "stall": 50.0, "commit": 200.0, "restart": 300.0, "planned": 1e-4, "maintenance": 1000.0}
    found = expected(a_run(1e-30, detection=0.0, repair=0.0, **given))
    assert found.shares["maintenance"][0] == pytest.approx((50 + 200 + 1000 + 300) / (10_000 + 50 + 200 + 1000 + 300), rel=1e-9)
    assert found.by_cause["maintenance"][0] == found.shares["maintenance"][0]


@pytest.mark.parametrize("rate", [1e-30, 1e-13, 1e-6, 1e-3])
def test_a_restart_that_failures_begin_anew_by_hand(rate):
    """Until 900 s pass without a failure takes (exp(900 l) - 1) / l in the mean: 900 s, longer by half of 900 l to first order."""
    shares = expected(a_run(rate, detection=0.0, repair=0.0, interval=600.0, restart=900.0)).shares
    restarting = shares["restart"][0] / (shares["useful"][0] + shares["lost_work"][0])  # a second of running
    first = 900.0 * rate * (1.0 + 450.0 * rate + 900.0**2 / 6.0 * rate**2)
    assert restarting == pytest.approx(first, rel=max(1e-9, (900.0 * rate) ** 3))


def test_a_burst_by_hand():
    """Rare failures, each followed by a third of its kind: 1.5 in all, with 60 s of detection and 900 s of restart each."""
    found = expected(a_run(1e-12, again=(1 / 3, 0.0), repair=0.0, interval=600.0, restart=900.0))
    assert found.interruptions[0] == pytest.approx(1.5e-12, rel=1e-6)
    assert found.shares["detection"][0] == pytest.approx(1.5e-12 * 60, rel=1e-6)
    assert found.shares["restart"][0] == pytest.approx(1.5e-12 * 900, rel=1e-6)
    assert found.shares["lost_work"][0] == pytest.approx(1e-12 * 300, rel=1e-6)  # only the first one loses work


@pytest.mark.parametrize("seed", range(3))
def test_of_as_many_failures_those_in_bursts_lose_less(seed):
    """So do Tiwari et al. find (DSN 2014): what strikes right after a restart loses no work since a checkpoint."""
    run = drawn_run(np.random.default_rng(seed))

    def bursts(again):
        causes = tuple(replace(one, rate=one.rate * (1.0 - again), again=again) for one in run.causes)
        return expected(replace(run, causes=causes))

    even, some, many = (bursts(again) for again in (0.0, 0.3, 0.6))
    assert even.goodput[0] == expected(run).goodput[0]
    assert bursts(1e-12).goodput[0] == pytest.approx(even.goodput[0], rel=1e-9)
    assert many.shares["lost_work"][0] < some.shares["lost_work"][0] < even.shares["lost_work"][0]


def test_the_slowest_of_slow_devices_rules_by_hand():
    """0.1 of one kind are under way in the mean, which let steps take 1.5 times as long, and 0.2 of one that doubles them."""
    found = expected(a_run(0.0, interval=1e9, slow=((1e-4, 1000.0, 1.5), (1e-5, 20_000.0, 2.0))))
    twice, some = 1 - math.exp(-0.2), math.exp(-0.2) * (1 - math.exp(-0.1))
    assert found.by_cause["slow 1"][0] == pytest.approx(twice / 2)
    assert found.by_cause["slow 0"][0] == pytest.approx(some / 3)
    assert found.goodput[0] == pytest.approx(1 - twice / 2 - some / 3)
    assert found.shares["slowed"][0] == pytest.approx(twice / 2 + some / 3)


def test_what_slows_nothing_or_never_comes_leaves_a_run_as_it_is():
    rng = np.random.default_rng(4)
    for _ in range(10):
        run, base = (one := drawn_run(rng)), expected(one).goodput[0]
        for slow in ((0.0, 3600.0, 2.0), (1e-3, 3600.0, 1.0), (1e-3, 0.0, 3.0)):
            other = replace(run, slow=(SlowCause(name="slow", rate=points(slow[0]), length=points(slow[1]), slowdown=slow[2]),))
            assert expected(other).goodput[0] == base
            assert history(other, 1e5, 1).duration == history(run, 1e5, 1).duration
        worse = replace(run, slow=(SlowCause(name="slow", rate=points(1e-4), length=points(3600.0), slowdown=1.3),))
        assert expected(worse).goodput[0] < base


def test_a_draw_does_all_of_its_work_and_fills_its_time():
    run = drawn_run(np.random.default_rng(6), elastic=True, slow=SLOW)
    found = history(run, 1e6, 3, spans=True)
    assert found.times["useful"] == pytest.approx(1e6)
    assert sum(found.times.values()) == pytest.approx(found.duration)
    assert {round(one.speed, 3) for one in found.spans} >= {1.0, 0.8, 0.5}


def test_an_elastic_job_lacks_whole_replicas_by_hand():
    """Two nodes of sixteen are away in the mean, as Poisson has it; one spare, four nodes a replica: 2 to 5 away are one replica less."""
    run = a_run(1e-3, detection=0.0, repair=2000.0, interval=1e-3, nodes=16.0, replica=4.0, spares=1.0, elastic=True)
    away = [math.exp(-2.0) * 2.0**k / math.factorial(k) for k in range(18)]
    lacking = 1 * sum(away[2:6]) + 2 * sum(away[6:10]) + 3 * sum(away[10:14]) + 4 * sum(away[14:])
    found = expected(run)
    assert found.away[0] == pytest.approx(2.0)
    assert found.shares["shrunk"][0] / (found.shares["shrunk"][0] + found.shares["useful"][0]) == pytest.approx(lacking / 4, rel=1e-6)


def test_bubbles_take_the_work_of_broken_stages_by_hand():
    """Eight replicas whose stages idle for a fifth of a step: with one missing seven do all of it in 8 / 7 x 0.8 < 1 of the time, with two
    missing the others need 8 / 6 x 0.8 of it."""
    lost = [1 - float(speed_without(points(k), points(8.0), points(0.2))[0]) for k in (0.0, 1.0, 2.0, 8.0)]
    assert lost == pytest.approx([0, 0, 1 - 6 / 8 / 0.8, 1])
    given = {"detection": 0.0, "repair": 2000.0, "interval": 1e-3, "nodes": 32.0, "replica": 4.0, "spares": 1.0, "elastic": True}
    found = expected(a_run(1e-3, idle=0.2, **given)).shares
    away = [math.exp(-2.0) * 2.0**k / math.factorial(k) for k in range(40)]
    by_hand = sum(share * max(0.0, 1 - (1 - min(math.ceil(max(k - 1, 0) / 4), 8) / 8) / 0.8) for k, share in enumerate(away))
    assert found["shrunk"][0] / (found["shrunk"][0] + found["useful"][0]) == pytest.approx(by_hand, rel=1e-6)


def test_more_bubbles_are_never_worse_and_none_are_an_elastic_job():
    rng = np.random.default_rng(8)
    for _ in range(20):
        run = drawn_run(rng, elastic=True)
        found = [expected(replace(run, idle=points(idle))).goodput[0] for idle in (0.0, 0.1, 0.3, 0.8)]
        assert found == sorted(found)
        assert found[0] == expected(run).goodput[0]


def test_an_elastic_job_whose_nodes_are_all_away_does_nothing():
    shares = expected(a_run(1e-2, detection=0.0, repair=1e5, interval=10.0, nodes=16.0, replica=4.0, elastic=True)).shares
    assert shares["useful"][0] == 0.0
    assert shares["shrunk"][0] > 0.9
    assert sum(share[0] for share in shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("load", [1e-10, 1e-6, 1e-3])
def test_the_best_interval_is_youngs_where_failures_are_rare(load):
    stall = 30.0
    rate = points(load / stall)
    exact = best_interval(points(stall), rate, points(0.0))[0]
    assert exact == pytest.approx(young(points(stall), rate)[0], rel=2 * math.sqrt(load))
    assert exact == pytest.approx(daly(points(stall), rate)[0], rel=max(1e-6, load))


def test_no_other_interval_is_better():
    rng = np.random.default_rng(5)
    for _ in range(20):
        rate, stall = 10 ** rng.uniform(-6, -3), 10 ** rng.uniform(-1, 3)
        best = best_interval(points(stall), points(rate), points(0.0))
        tried = best * np.array([1.0, 0.98, 1.02, 0.5, 2.0])
        found = expected(a_run(rate, interval=tried, stall=stall, restart=500.0)).goodput
        assert (found[0] >= found[1:]).all()


def test_an_interval_is_no_shorter_than_its_least():
    assert best_interval(points(0.0), points(1e-4), points(120.0))[0] == 120.0


def lacks(spares, *outages):
    """How often each of some kinds of strikes lacks nodes; outages as (load, nodes, again), each mended in an hour."""
    some = [Outage(load=points(a), repair=points(3600.0), nodes=points(b), again=points(q)) for a, b, q in outages]
    return [float(one.missing[0]) for one in shortages(points(float(spares)), some)]


def test_erlangs_loss_is_his_table_and_his_sum():
    assert lacks(10, (5.0, 1, 0.0)) == pytest.approx([0.0184], abs=5e-5)  # B(10, 5 E) of the tables of Erlang B
    terms = [7.3**k / math.factorial(k) for k in range(5)]
    assert lacks(4, (7.3, 1, 0.0)) == pytest.approx([terms[-1] / sum(terms)])
    assert lacks(4, (3.3, 1, 0.0), (4.0, 1, 0.0)) == pytest.approx([terms[-1] / sum(terms)] * 2)


@pytest.mark.parametrize("outages", [((50.0, 1, 0.0),), ((3.0, 16, 0.0), (50.0, 1, 0.5))])
def test_a_hundred_million_spares_are_always_enough_and_take_no_time(outages):
    assert max(lacks(1e8, *outages)) == 0.0


def test_a_thousand_nodes_in_repair_keep_their_digits():
    """Erlang's B by its recursion, where the first terms of his sum are 1e-435 of the others."""
    lost = 1.0
    for number in range(1, 1001):
        lost = 1000.0 * lost / (number + 1000.0 * lost)
    assert lacks(1000, (1000.0, 1, 0.0)) == pytest.approx([lost])


def test_missing_replicas_is_a_mean_of_poisson():
    mean, spares, replica = 6.0, 3, 4
    weights = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(60)]
    by_hand = sum(weight * math.ceil(max(k - spares, 0) / replica) for k, weight in enumerate(weights))
    assert missing_replicas(points(spares), [Outage(load=points(mean), repair=points(1.0))], points(replica))[0] == pytest.approx(by_hand)


@pytest.mark.parametrize("elastic", [False, True])
def test_shares_add_up_and_points_are_what_they_are_alone(elastic):
    rng = np.random.default_rng(2)
    runs = [drawn_run(rng, elastic) for _ in range(40)]
    alone = [expected(run) for run in runs]
    names = [name for name in vars(runs[0]) if name not in ("causes", "elastic", "slow", "jitter")]
    causes = tuple(
        FailureCause(
            name=one.name, silent=one.silent,
            **{f: np.concatenate([getattr(r.causes[i], f) for r in runs]) for f in ("rate", "detection", "repair")},
        )
        for i, one in enumerate(runs[0].causes)
    )  # fmt: skip
    both = expected(LongRun(causes=causes, elastic=elastic, **{name: np.concatenate([getattr(r, name) for r in runs]) for name in names}))
    np.testing.assert_allclose(sum(both.shares.values()), 1.0, rtol=1e-12)
    np.testing.assert_allclose(sum(both.by_cause.values()) + sum(both.shares[k] for k in ("useful", "saving", "shrunk")), 1.0, rtol=1e-9)
    assert all((share >= 0).all() for share in both.shares.values())
    np.testing.assert_allclose(both.goodput, [one.goodput[0] for one in alone], rtol=1e-12)


BETTER = {"stall": 0.8, "commit": 0.8, "restart": 0.8, "planned": 0.5, "maintenance": 0.5, "spares": 2.0}


@pytest.mark.cases(1)
@pytest.mark.parametrize("elastic", [False, True])
def test_better_parts_are_never_worse(elastic):
    rng = np.random.default_rng(3)
    for _ in range(40):
        run = drawn_run(rng, elastic)
        base = expected(run).goodput[0]
        better = [replace(run, **{name: getattr(run, name) * factor}) for name, factor in BETTER.items()]
        better.append(replace(run, spares=run.spares + 1))
        for i, cause in enumerate(run.causes):
            for name in ("rate", "detection", "repair"):
                changed = replace(cause, **{name: getattr(cause, name) * 0.7})
                better.append(replace(run, causes=(*run.causes[:i], changed, *run.causes[i + 1 :])))
        assert all(expected(one).goodput[0] >= base * (1 - 1e-9) for one in better)


def test_limits():
    steady = a_run(0.0, interval=600.0, stall=60.0, restart=900.0)
    assert expected(steady).goodput[0] == pytest.approx(600 / 660)
    hopeless = a_run(1.0, interval=600.0, restart=900.0)
    assert expected(hopeless).goodput[0] < 1e-6
    none, many = (a_run(1e-4, interval=600.0, restart=60.0, spares=spares) for spares in (0.0, 50.0))
    assert expected(many).shares["waiting"][0] < 1e-12
    # Without spares every failure waits for its own repair.
    shares = expected(none).shares
    assert shares["waiting"][0] / shares["detection"][0] == pytest.approx(3600 / 60)


def test_the_number_of_spares_is_the_cheapest():
    run = a_run(2e-3, repair=2 * DAY, interval=300.0, stall=2.0, restart=60.0, nodes=2000.0)
    best = int(best_spares(run)[0])
    costs = [2000 + s for s in range(2 * best)] / expected(replace(run, spares=np.arange(2.0 * best))).goodput
    assert 300 < best < 500
    assert int(costs.argmin()) == best


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("elastic", "seed", "more"),
    [
        (False, 11, {}),
        (False, 12, {}),
        (True, 13, {}),
        (False, 14, {"again": (0.3, 0.7), "spares": 9.0}),
        (True, 15, {"again": (0.5, 0.0)}),
        (False, 16, {"slow": SLOW}),
        (True, 17, {"slow": SLOW, "again": (0.2, 0.2)}),
        (True, 18, {"idle": 0.08, "spares": 0.0, "replica": 4.0}),
    ],
)
def test_events_agree_with_the_closed_form(elastic, seed, more):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        run = drawn_run(rng, elastic, **more)
        found = histories(run, 1500.0 / float(run.stops[0]), seed, draws=2)
        total, shares = sum(one.duration for one in found), expected(run).shares
        assert total == pytest.approx(sum(sum(one.times.values()) for one in found))
        for kind in KINDS_OF_TIME:
            assert sum(one.times[kind] for one in found) / total == pytest.approx(shares[kind][0], abs=0.012), (kind, run)


@pytest.mark.parametrize("again", [(0.9, 0.0), (0.5, 0.95), (0.0, 0.0)])
@pytest.mark.parametrize("restart", [0.0, 90.0, 3600.0, 20_000.0])
def test_bursts_make_up_the_rates_of_all_strikes(again, restart):
    """While it runs and restarts a job is struck as often as the rates say, whatever strikes in its restarts: 0.7 % too seldom before."""
    rates = [points(1 / 10_800), points(1 / 40_000)]
    first, second = first_of_bursts(rates, again, points(restart))
    run = a_run(
        float(first[0]), silent=float(second[0]), again=again, detection=0.0, latency=0.0, repair=0.0, interval=600.0, restart=restart
    )
    assert expected(run).interruptions == pytest.approx(sum(rates), rel=1e-9)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("again", "spares"), [(0.5, 2.0), (0.8, 3.0), (0.8, 6.0)])
def test_bursts_use_up_spares(again, spares):
    """As many strikes together leave more jobs without a node than by themselves, in events as in closed form."""
    given = {"repair": 3600.0, "interval": 600.0, "restart": 300.0, "spares": spares}
    run = a_run(2e-4 * (1.0 - again), again=(again, 0.0), **given)
    found = histories(run, 8e6, 3, draws=3)
    total = sum(one.duration for one in found)
    waiting = expected(run).shares["waiting"][0]
    assert sum(one.times["waiting"] for one in found) / total == pytest.approx(waiting, abs=0.015)
    assert waiting > 1.5 * expected(a_run(2e-4, **given)).shares["waiting"][0]


def with_domains(run, rate, domain, repair=3600.0, again=0.0, detection=60.0):
    """The run whose racks break too, so many nodes at a time."""
    rack = FailureCause(
        name="rack", rate=points(rate), detection=points(detection), repair=points(repair), domain=float(domain), again=again
    )
    return replace(run, causes=(*run.causes, rack))


def with_nodes(run, i, domain):
    return replace(run, causes=tuple(replace(one, domain=domain) if j == i else one for j, one in enumerate(run.causes)))


def test_a_burst_at_one_moment_leaves_a_negative_binomial_number_of_nodes_away():
    """Of 4 nodes away in the mean and q = 1/2: P(K > k) of scipy's law, through what an elastic job lacks; restarts take no time."""
    from scipy.stats import nbinom

    outage = Outage(load=points(4.0), repair=points(1.0), again=points(0.5))
    by_hand = sum(float(nbinom.sf(2 + 3 * j, 4.0, 0.5)) for j in range(40))
    assert missing_replicas(points(2.0), [outage], points(3.0))[0] == pytest.approx(by_hand, rel=1e-9)


def test_racks_and_nodes_that_are_away_are_a_sum_of_two_laws_of_poisson():
    """0.7 racks of five nodes and 2 nodes in the mean: what an elastic job lacks, by every pair of numbers."""
    outages = [Outage(load=points(2.0), repair=points(1.0)), Outage(load=points(0.7), repair=points(9.0), nodes=points(5.0))]
    law = [(i + 5 * j, math.exp(-2.7) * 2.0**i / math.factorial(i) * 0.7**j / math.factorial(j)) for i in range(40) for j in range(20)]
    by_hand = sum(share * math.ceil(max(away - 3, 0) / 4) for away, share in law)
    assert missing_replicas(points(3.0), outages, points(4.0))[0] == pytest.approx(by_hand, rel=1e-9)


def test_bursts_of_racks_take_an_elastic_job_of_few_replicas_down_as_scipy_says():
    """Racks of ten nodes in bursts often exceed the 8 replicas of 4 nodes that there are: no speed is left then."""
    from scipy.stats import nbinom

    rack = Outage(load=points(2.0), repair=points(1.0), nodes=points(10.0), again=points(0.9))
    racks = np.arange(3000)
    lacking = np.clip(np.ceil((10 * racks - 5) / 4), 0, 8)
    by_hand = float((nbinom.pmf(racks, 2.0 / 9.0, 0.1) * lacking / 8).sum())
    assert lost_speed(points(5.0), [rack], points(4.0), points(8.0), points(0.0))[0] == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("elastic", [True, False])
def test_provided_spares_of_large_jobs_take_few_levels_of_the_law(monkeypatch, elastic):
    """Of 1,024 nodes with domains of 512 that break in bursts; an elastic job asked for a law of 80,000 levels, some twenty times."""
    levels, rise = [], _Law.rise
    monkeypatch.setattr(_Law, "rise", lambda law: (levels.append(1), rise(law))[1])
    run = with_domains(a_run(1e-5, nodes=1024.0, replica=8.0, interval=600.0, restart=60.0, elastic=elastic), 1e-7, 512, again=0.9)
    found = best_spares(run)
    assert len(levels) < 30_000
    cost = [float(((run.nodes + spares) / expected(replace(run, spares=spares)).goodput)[0]) for spares in (found, found + 1, found + 512)]
    assert cost[0] == min(cost)


def test_what_strikes_find_is_the_product_form_of_kaufman_and_roberts():
    """Nodes and racks of three, five spares: over all pairs of outages that fit, those to which one more of each kind does not."""
    held = {(i, j): 1.3**i / math.factorial(i) * 0.4**j / math.factorial(j) for i in range(6) for j in range(2) if i + 3 * j <= 5}
    over = [sum(share for (i, j), share in held.items() if i + 3 * j + more > 5) / sum(held.values()) for more in (1, 3)]
    assert lacks(5, (1.3, 1, 0.0), (0.4, 3, 0.0)) == pytest.approx(over)


def test_a_job_without_spares_waits_for_its_rack_and_one_with_too_few_for_the_first_that_is_enough():
    """No spares: a rack's own repair. Two spares that a rack of two has taken, and a node more: back with either, 1 / (1/9 + 1) h."""
    rack, node = Outage(load=points(0.3), repair=points(9.0), nodes=points(2.0)), Outage(load=points(0.1), repair=points(1.0))
    waits = [[float(one.wait[0]) for one in shortages(points(spares), [rack, node])] for spares in (0.0, 2.0)]
    assert waits[0] == pytest.approx([9.0, 1.0])
    full = {"rack": 0.3, "nodes": 0.1**2 / 2}  # how two spares are taken: by a rack, or by two nodes
    racks, nodes = (full[one] / sum(full.values()) for one in ("rack", "nodes"))
    assert waits[1][1] == pytest.approx(1.0 / (1.0 + racks / 9.0 + 2 * nodes))


@pytest.mark.parametrize("elastic", [False, True])
def test_a_domain_of_one_node_is_a_node_and_larger_ones_never_help(elastic):
    rng = np.random.default_rng(9)
    for _ in range(10):
        run = with_domains(drawn_run(rng, elastic), 10 ** rng.uniform(-6, -4.5), 1)
        found = [expected(with_nodes(run, 2, float(size))) for size in (1, 2, 4, 32)]
        goodput = [one.goodput[0] for one in found]
        assert goodput == sorted(goodput, reverse=True)
        single = replace(run, causes=(*run.causes[:2], replace(run.causes[2], domain=1.0)))
        assert goodput[0] == expected(single).goodput[0]
        # As many strikes, each of more nodes, so that more are away; all of one strike come back together.
        assert [one.interruptions[0] for one in found] == pytest.approx([found[0].interruptions[0]] * 4, rel=0.2)


def test_nodes_away_are_those_of_all_domains_whatever_part_of_the_last_one_is_in_use():
    """100 nodes in racks of 36: two racks of 36 and one of 28, each hit as often."""
    run = with_domains(a_run(0.0, detection=0.0, repair=0.0, interval=1e9, nodes=100.0, elastic=True, replica=1.0), 3e-6, 36, detection=0.0)
    taken = run.causes[1].taken(run.nodes)
    assert [float(part[0]) for pair in taken for part in pair] == pytest.approx([2 / 3, 36, 1 / 3, 28])
    assert expected(run).away[0] == pytest.approx(3e-6 * 3600 * 100 / 3, rel=1e-6)
    assert expected(replace(run, nodes=points(20.0))).away[0] == pytest.approx(3e-6 * 3600 * 20, rel=1e-6)


@pytest.mark.cases(2)
@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(("domain", "again"), [(4, 0.0), (24, 0.4), (100, 0.0)])
def test_events_agree_with_the_closed_form_where_nodes_break_together(elastic, domain, again):
    rng = np.random.default_rng(domain)
    for seed in range(3):
        run = drawn_run(rng, elastic, spares=float(rng.integers(0, 20)))
        run = with_domains(run, 10 ** rng.uniform(-5.3, -4.3), domain, 10 ** rng.uniform(3, 4.3), again)
        found = histories(run, 1500.0 / float(run.stops[0]), seed, draws=2)
        total, shares = sum(one.duration for one in found), expected(run).shares
        for kind in KINDS_OF_TIME:
            assert sum(one.times[kind] for one in found) / total == pytest.approx(shares[kind][0], abs=0.015), (kind, run)


def test_points_of_several_sizes_of_jobs_are_what_they_are_alone():
    run = with_domains(a_run(2e-4, interval=600.0, again=(0.3, 0.0)), 2e-5, 24)
    nodes, spares = np.array([10.0, 24.0, 60.0, 96.0]), np.array([0.0, 30.0, 3.0, 24.0])
    for elastic in (False, True):
        both = expected(replace(run, nodes=nodes, spares=spares, elastic=elastic)).goodput
        alone = [expected(replace(run, nodes=points(n), spares=points(s), elastic=elastic)) for n, s in zip(nodes, spares, strict=True)]
        np.testing.assert_allclose(both, [one.goodput[0] for one in alone], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_number_of_spares_is_the_cheapest_where_racks_break(seed):
    """Costs have a least value for each rack that is covered; the best of all is found."""
    rng = np.random.default_rng(seed)
    run = a_run(10 ** rng.uniform(-4, -2.7), repair=DAY, interval=300.0, stall=2.0, restart=60.0, nodes=2000.0)
    run = with_domains(run, 10 ** rng.uniform(-7, -5), rng.choice([4, 16, 36]), 4 * 3600.0)
    spares = np.arange(600.0)
    costs = (2000 + spares) / expected(replace(run, spares=spares)).goodput
    assert costs[int(best_spares(run)[0])] == pytest.approx(costs.min(), rel=1e-9)


@pytest.mark.parametrize(("again", "spares"), [(0.5, 2.0), (0.8, 3.0), (0.8, 6.0)])
@pytest.mark.parametrize("elastic", [False, True])
def test_bursts_at_one_moment_are_exact(again, spares, elastic):
    given = {"repair": 3600.0, "interval": 600.0, "detection": 0.0, "elastic": elastic, "replica": 4.0, "nodes": 16.0}
    run = a_run(4e-4 * (1.0 - again), again=(again, 0.0), spares=spares, **given)
    found = histories(run, 1.5e7, 3, draws=2)
    kind = "shrunk" if elastic else "waiting"
    share = expected(run).shares[kind][0]
    assert sum(one.times[kind] for one in found) / sum(one.duration for one in found) == pytest.approx(share, rel=0.12)
    assert share > 1.3 * expected(a_run(4e-4, spares=spares, **given)).shares[kind][0]


def naive(run, work, rng, dt=5.0):
    """The same run in steps of `dt`, node by node: a state machine that knows no formula."""
    rate, causes = [float(one.rate[0]) for one in run.causes], run.causes
    interval, stall, commit, restart = (float(getattr(run, name)[0]) for name in ("interval", "stall", "commit", "restart"))
    time = kept = fresh = since = left = 0.0
    state, pending, away, draws = "computing", [], [], iter(rng.random(2_000_000))
    while kept < work:
        time, left = time + dt, left - dt
        away = [one for one in away if next(draws) > dt / one]
        pending = [(due - dt, amount) for due, amount in pending]
        for due, amount in pending:
            kept, fresh = (amount, fresh) if due <= 0 and amount > kept else (kept, fresh)
        pending = [one for one in pending if one[0] > 0]
        strikes = state in ("computing", "saving", "restart")
        failed = next((one for one, often in zip(causes, rate, strict=True) if strikes and next(draws) < often * dt), None)
        if failed is not None:
            state, left, pending, fresh, since = "detection", float(failed.detection[0]), [], kept, 0.0
            mends = float(failed.repair[0])
        elif state == "computing":
            fresh, since = fresh + dt, since + dt
            if since >= interval:
                state, left, since = "saving", stall, 0.0
        if state == "saving" and left <= 0:
            pending.append((commit, fresh))
            state = "computing"
        elif state == "detection" and left <= 0:
            away += [mends] if mends else []
            state = "short"
        if state == "short" and len(away) <= run.spares[0]:
            state, left = "restart", restart
        elif state == "restart" and left <= 0:
            state = "computing"
    return kept / time


@pytest.mark.thorough
def test_a_naive_simulation_agrees():
    run = a_run(2e-4, detection=200.0, repair=4000.0, interval=900.0, stall=60.0, commit=160.0, restart=400.0, spares=1.0)
    assert naive(run, 8e6, np.random.default_rng(4), dt=20.0) == pytest.approx(expected(run).goodput[0], abs=0.02)


def test_spans_cover_the_run_and_seeds_repeat():
    run = drawn_run(np.random.default_rng(8))
    first, again, other = (history(run, 20 * DAY, seed, spans=True) for seed in (1, 1, 2))
    assert first.duration == again.duration != other.duration
    assert all(before.end == pytest.approx(after.begin) for before, after in zip(first.spans, first.spans[1:], strict=False))
    assert first.spans[-1].end == pytest.approx(first.duration)


def test_the_work_of_an_elastic_run_is_what_its_spans_compute():
    """Without saves a span computes its length times the share of replicas that are there; what counts of it is the work, no more."""
    run = a_run(2e-3, detection=30.0, repair=3000.0, interval=40.0, restart=20.0, nodes=16.0, replica=4.0, spares=1.0, elastic=True,
        planned=5e-4, maintenance=50.0)  # fmt: skip
    work, speeds = 3600.0, set()
    for seed in range(60):
        found = history(run, work, seed, spans=True)
        useful = [span for span in found.spans if span.kind == "useful"]
        speeds |= {span.speed for span in useful}
        assert sum((span.end - span.begin) * span.speed for span in useful) == pytest.approx(work)
        assert sum((span.end - span.begin) * (1.0 - span.speed) for span in useful) == pytest.approx(found.times["shrunk"])
        assert found.times["useful"] == pytest.approx(work)
        assert found.spans[-1].end == pytest.approx(found.duration)
        assert all(before.end <= after.begin + 1e-6 for before, after in zip(found.spans, found.spans[1:], strict=False))
    assert len(speeds) > 2


def test_a_run_that_does_not_fail_ends_on_time():
    run = a_run(0.0, interval=600.0, stall=60.0)
    found = history(run, 6000.0, 0)
    assert found.duration == pytest.approx(6000 + 9 * 60, abs=61)


def test_a_run_that_only_stops_as_planned_by_hand():
    """10,000 s between stops, of which four saves of 50 s leave 9,800; then a save of 50 + 200 s, 1,000 s and a restart of 300 s."""
    given = {"interval": 2000.0, "stall": 50.0, "commit": 200.0, "restart": 300.0, "planned": 1e-4, "maintenance": 1000.0}
    found = history(a_run(0.0, **given), 20_000.0, 0, spans=True)
    times = {"useful": 20_000.0, "saving": 2 * 200.0, "maintenance": 2 * (50 + 200 + 1000 + 300.0)}
    assert {kind: time for kind, time in found.times.items() if time} == pytest.approx(times)
    assert found.duration == pytest.approx(sum(times.values()))
    stops = [(span.begin, span.end) for span in found.spans if span.kind == "maintenance"]
    assert np.ravel(stops).tolist() == pytest.approx([10_000, 11_250, 11_250, 11_550, 21_550, 22_800, 22_800, 23_100])
    assert set(found.interruptions.values()) == {0}


def test_racks_far_beyond_the_mean_still_count():
    """25 racks of ten nodes away in the mean, one deviation of spares: Poisson's tail, where the variance of nodes has their square."""
    from scipy.stats import poisson

    outage = Outage(load=points(25.0), repair=points(1.0), nodes=points(10.0))
    racks = np.arange(150)
    by_hand = float((poisson.pmf(racks, 25.0) * np.maximum(np.ceil((10 * racks - 300) / 50), 0)).sum())
    assert missing_replicas(points(300.0), [outage], points(50.0))[0] == pytest.approx(by_hand, rel=1e-9)
