"""Steps that wait for the slowest of many devices: order statistics by hand, laws, draws beside the closed form."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_lasting import a_run, drawn_run

from crossflow.base.arrays import points
from crossflow.engine.lasting.events import histories
from crossflow.engine.lasting.jitter import exceeded, slowest
from crossflow.engine.lasting.record import KINDS_OF_TIME, Jitter
from crossflow.engine.lasting.renewal import expected

LAWS = ("log-normal", "exponential")


def varying(spread, units, law="log-normal", step=1.0):
    return Jitter(spread=points(spread), units=points(units), step=points(step), law=law)


def times(law, spread, rng, *shape):
    """Times of units over their mean, drawn one by one."""
    if law == "exponential":
        return 1.0 + spread * (rng.exponential(size=shape) - 1.0)
    width = math.sqrt(math.log1p(spread**2))
    return rng.lognormal(-0.5 * width**2, width, shape)


@pytest.mark.parametrize("units", [1, 2, 3, 17, 1000, 100_000])
def test_the_slowest_of_exponential_delays_is_a_harmonic_number(units):
    harmonic = sum(1.0 / i for i in range(1, units + 1))
    assert slowest(varying(0.3, units, "exponential"))[0] == pytest.approx(1.0 + 0.3 * (harmonic - 1.0), rel=1e-9)


@pytest.mark.parametrize(("units", "largest"), [(2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi)), (10, 1.53875), (100, 2.50759)])
def test_a_small_spread_is_the_largest_of_normal_draws(units, largest):
    """Expected largest of n standard normal draws, by tables of order statistics."""
    assert (slowest(varying(1e-5, units))[0] - 1.0) / 1e-5 == pytest.approx(largest, rel=1e-4)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("units", "slowdown"), [(4, 1.0), (4, 1.1), (50, 1.3), (50, 1.0), (1, 1.4)])
def test_the_mean_is_that_of_draws(law, units, slowdown):
    drawn = times(law, 0.2, np.random.default_rng(1), 200_000, units)
    drawn[:, 0] *= slowdown
    longest = drawn.max(axis=1)
    assert slowest(varying(0.2, units, law), slowdown)[0] == pytest.approx(longest.mean(), abs=4 * longest.std() / math.sqrt(200_000))


@pytest.mark.parametrize("law", LAWS)
def test_a_hundredth_of_steps_is_longer(law):
    longest = times(law, 0.2, np.random.default_rng(2), 100_000, 20).max(axis=1)
    assert (longest > exceeded(varying(0.2, 20, law), 0.01)[0]).mean() == pytest.approx(0.01, abs=0.0013)


@pytest.mark.parametrize("law", LAWS)
def test_limits_and_order(law):
    """Nothing varies, or one unit waits for none: as long as the mean. More units and more spread take longer; a unit that is very slow is
    alone with its time, and a slow unit never leaves a step shorter."""
    assert slowest(None, 1.5)[0] == 1.5
    assert slowest(varying(0.0, 1000.0, law))[0] == pytest.approx(1.0, abs=1e-9)
    assert slowest(varying(0.4, 1.0, law), 1.7)[0] == pytest.approx(1.7)
    of_units = slowest(Jitter(spread=points(0.1), units=10.0 ** np.arange(7), step=points(1.0), law=law))
    assert (np.diff(of_units) > 0).all()
    assert (np.diff(of_units, 2)[1:] < 0.1 * 0.5).all()  # with the logarithm at most
    of_spread = slowest(Jitter(spread=np.array([0.0, 0.01, 0.1, 0.5, 1.0]), units=points(64.0), step=points(1.0), law=law))
    assert (np.diff(of_spread) > 0).all()
    slow = [float(slowest(varying(0.1, 64.0, law), one)[0]) for one in (1.0, 1.05, 1.2, 3.0, 30.0)]
    assert slow == sorted(slow)
    assert slow[-1] == pytest.approx(30.0, rel=1e-6)
    assert all(found > max(one, slow[0]) - 1e-9 for found, one in zip(slow, (1.0, 1.05, 1.2, 3.0, 30.0), strict=True))


def test_points_are_what_they_are_alone():
    spread, units = np.array([0.0, 0.1, 0.3]), np.array([1.0, 10.0, 1e6])
    both = slowest(Jitter(spread=spread, units=units, step=points(1.0)), 1.1)
    np.testing.assert_allclose(both, [slowest(varying(s, n), 1.1)[0] for s, n in zip(spread, units, strict=True)], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_whose_steps_vary_is_slower_and_its_shares_add_up(seed):
    run = drawn_run(np.random.default_rng(seed), slow=((1e-4, 3000.0, 1.2), (2e-5, 9000.0, 2.0)))
    found = [expected(run), *(expected(replace(run, jitter=varying(spread, 512.0))) for spread in (0.0, 0.02, 0.1))]
    assert found[1].goodput[0] == pytest.approx(found[0].goodput[0], rel=1e-9)
    assert found[1].goodput[0] > found[2].goodput[0] > found[3].goodput[0]
    for one in found:
        assert sum(share[0] for share in one.shares.values()) == pytest.approx(1.0)
        kept = sum(one.shares[kind][0] for kind in ("useful", "saving", "shrunk"))
        assert sum(share[0] for share in one.by_cause.values()) + kept == pytest.approx(1.0)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("step", "more"), [(30.0, {}), (0.2, {}), (30.0, {"slow": ((1e-4, 3000.0, 1.1),)})])
def test_events_agree_with_the_closed_form(law, step, more):
    """Steps of half a minute are drawn one by one; of many that are short as many as make the same mean and spread."""
    rng = np.random.default_rng(5)
    run = replace(drawn_run(rng, **more), jitter=varying(0.1, 256.0, law, step))
    found = histories(run, 800.0 / float(run.stops[0]), 7, draws=2)
    total, shares = sum(one.duration for one in found), expected(run).shares
    for kind in KINDS_OF_TIME:
        assert sum(one.times[kind] for one in found) / total == pytest.approx(shares[kind][0], abs=0.012), kind
    assert shares["slowed"][0] > 0.1


def test_the_spread_of_a_run_shrinks_with_its_steps():
    """Times of runs of 100 and of 10,000 steps: a tenth of the relative spread, whether their steps are all drawn or not."""
    run = replace(a_run(0.0, interval=1e9), jitter=varying(0.3, 8.0))
    spreads = []
    for steps in (100, 10_000):
        lengths = np.array([one.duration for one in histories(run, float(steps), 3, draws=300)])
        assert lengths.mean() == pytest.approx(steps * slowest(run.jitter)[0], rel=0.02)
        spreads.append(lengths.std() / lengths.mean())
    assert spreads[0] / spreads[1] == pytest.approx(10.0, rel=0.25)
