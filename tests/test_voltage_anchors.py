"""Clocks under a limit of power, by hand."""

import functools

import numpy as np
import pytest
from test_architecture_anchors import of

from crossflow.hardware.architecture.model import Throttle
from crossflow.hardware.architecture.voltage import _drawn, throttled

near = functools.partial(pytest.approx, rel=1e-9, abs=0.0)
ONE = np.ones(1)


# ------------------------------------------------------------------------------------------ clocks under a limit


def limit(power, *, leakage=0.0, voltage=1.0, minimum=0.25, nominal=1.0):
    """Without a threshold a clock and its voltage are in proportion."""
    values = {"power": power, "leakage": leakage, "voltage": voltage, "threshold": 0.0, "minimum": minimum, "nominal": nominal}
    return Throttle(**{name: of(value) for name, value in values.items()})


CLOCKS = [
    # time of the operations alone, energy switched, of caches and of memory, leakage, least and full voltage, clock, power at that clock
    ("units follow their own clock", 1.0, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.8**2),
    ("and that of what they wait for", 0.5, 1.0, 0.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.4**2),
    ("caches that of the chip", 0.5, 0.0, 1.0, 0.0, 0.0, 0.25, 1.0, 0.8, 0.8 * 0.8**2),
    ("memory keeps its voltage", 0.5, 0.0, 0.0, 1.0, 0.0, 0.25, 1.0, 0.8, 0.8),
    ("each its own", 0.5, 1.0, 2.0, 3.0, 0.0, 0.25, 1.0, 0.8, 0.8 * (0.4**2 + 2 * 0.8**2 + 3)),
    ("leakage falls with the voltage", 1.0, 1.0, 0.0, 0.0, 0.5, 0.25, 1.0, 0.8, 0.8**3 + 0.5 * 0.8),
    ("below the least one units are dark", 1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 1.0, 0.25, 0.25 * 0.5**2 + 0.5 * 0.5 * 0.5),
    ("caches stay at the least one", 1.0, 0.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.25, 0.25 * 0.5**2),
    ("units have a voltage of their own", 1.0, 1.0, 1.0, 0.0, 0.0, 0.3, 0.5, 0.4, 0.4 * (0.6**2 + 0.4**2)),
]  # fmt: skip


@pytest.mark.parametrize("case", CLOCKS, ids=[case[0] for case in CLOCKS])
def test_clocks_under_a_limit_by_hand(case):
    """The clock draws the limit; energy beside leakage is that power, less the leakage that is static, over the longer time."""
    _, compute, switched, cached, moved, leakage, minimum, voltage, clock, power = case
    work = (of(part) for part in (1.0, compute, switched, cached, moved))
    found, energy = throttled(*work, limit(power, leakage=leakage, minimum=minimum, voltage=voltage))
    assert found[0] == pytest.approx(clock, rel=1e-6)
    assert energy[0] == pytest.approx((power - leakage) / clock, rel=1e-6)


def test_any_work_over_its_limit_draws_it():
    """And not a watt more, whatever part of it switches, moves or leaks; some limits are met by a clock that is tried first."""
    rng = np.random.default_rng(0)
    compute, switched, cached, moved = rng.uniform(0.02, 1.0, (4, 20_000))
    threshold, nominal, leakage = rng.uniform(0.1, 0.35, 20_000), rng.uniform(0.7, 1.0, 20_000), rng.uniform(0.0, 0.3, 20_000) * switched
    minimum = threshold + rng.uniform(0.05, 0.3, 20_000)
    power = rng.uniform(0.05, 1.0, 20_000) * (switched + cached + moved)
    voltage = np.maximum(minimum, rng.uniform(0.6, 1.1, 20_000))
    last = (power, leakage, voltage, threshold, np.minimum(minimum, voltage), nominal)
    work = np.stack([np.ones(20_000), compute, switched, cached, moved, *last])
    names = ("power", "leakage", "voltage", "threshold", "minimum", "nominal")
    clock, _ = throttled(*work[:5], Throttle(**dict(zip(names, work[5:], strict=True))))
    drawn, over = _drawn(clock, work), _drawn(np.ones(20_000), work) > power * (1 + 1e-9)
    assert (drawn <= power * (1 + 1e-9)).all()
    assert (clock[~over] == 1.0).all()
    assert over.sum() > 10_000
    np.testing.assert_allclose(drawn[over], power[over], rtol=1e-5)


def test_work_within_the_limit_keeps_the_full_clock_and_its_energy():
    """Units that wait run at half the clock and a quarter of the energy: 0.25 + 0.3 W, of 0.8 J that is told as long as 0.7 W allow it."""
    for power, told in ((2.0, 1.3), (0.8, 0.8)):
        clock, energy = throttled(ONE, 0.5 * ONE, ONE, 0.0 * ONE, 0.3 * ONE, limit(power))
        assert (clock[0], energy[0]) == (1.0, near(told))
