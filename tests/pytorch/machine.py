"""Whether this machine can measure at the moment."""

import os
import threading
import time

import pytest

TRIES = 8  # of which the best counts: other processes only make a run longer
CALM = 3  # tries that a calm machine must have seen before they count against what is measured
LATE, SHARE = 0.02, 0.25  # what a busy machine is believed to add to the best try at most [s], or of what is expected


def disturbed(expected, within):
    """What keeps this machine from measuring: other processes, or sleeps that end late by half of what is allowed."""
    return next(filter(None, (beside(expected, within) for _ in range(10))), "")


def beside(expected, within):
    """The same of one sleep of that length, half of it in a thread that this one waits for."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > 0.8:
        return f"{load:.1f} processes a processor"
    sleeper = threading.Thread(target=time.sleep, args=(expected / 2,))
    begin = time.perf_counter()
    sleeper.start()
    sleeper.join()
    time.sleep(expected / 2)
    late = (time.perf_counter() - begin) / expected - 1
    return f"sleeps end {late:.1%} late" if late > within / 2 else ""


def best(measure, expected, within):
    """The measurement nearest to what is expected, of a few; those count against it before and after which the machine was calm.

    A machine that was calm before and after all of them may have been busy between, so that each try has its own sleeps beside it.
    """
    found, calm, before = [], 0, beside(expected, within)
    for _ in range(TRIES):
        found.append(measure() / expected - 1)
        if abs(found[-1]) <= within:
            return
        after = beside(expected, within)
        calm += not (before or after)
        before = after
    off = ", ".join(f"{one:+.2%}" for one in found)
    if calm < CALM and min(map(abs, found)) * expected < max(LATE, SHARE * expected):
        pytest.skip(f"this machine was calm in {calm} of {TRIES} tries only: off by {off}")
    raise AssertionError(f"off by {off}; expected at most {within:.0%}")


def assert_measured(found, expected, within):
    """A time is as expected; a machine that is disturbed skips the test instead."""
    if abs(found / expected - 1) > within and (late := disturbed(expected, within)):
        pytest.skip(f"this machine is too busy to measure: {late}")
    assert found == pytest.approx(expected, rel=within)
