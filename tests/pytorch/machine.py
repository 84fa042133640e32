"""Whether this machine can measure at the moment."""

import os
import time

import pytest


def disturbed(expected, within):
    """What keeps this machine from measuring: other processes, or sleeps that end late by half of what is allowed."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > 0.8:
        return f"{load:.1f} processes a processor"
    late = []
    for _ in range(10):
        begin = time.perf_counter()
        time.sleep(expected)
        late.append((time.perf_counter() - begin) / expected - 1)
    return f"sleeps end {max(late):.1%} late" if max(late) > within / 2 else ""


def assert_measured(found, expected, within):
    """A time is as expected; a machine that is disturbed skips the test instead."""
    if abs(found / expected - 1) > within and (late := disturbed(expected, within)):
        pytest.skip(f"this machine is too busy to measure: {late}")
    assert found == pytest.approx(expected, rel=within)
