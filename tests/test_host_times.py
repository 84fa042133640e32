"""What the host takes for a kernel, from reference steps."""

from dataclasses import dataclass, field

import pytest

from crossflow.cost.profile import gemm_shape, kernel_of, pass_shape
from crossflow.evidence.measurement.overheads import EagerHost, host_times

CACHE, RATE, CALL = 2.0**20, 1e-10, 1e-6
SIZES = (64, 4096, 2**20)
TRUE = EagerHost(forward=9e-6, backward=5e-6, update=4e-6, cold=20e-6, error=None)


@dataclass
class Row:
    op: str
    shape: str
    dtype: str
    time: float
    scope: str = ""
    kernels: list = field(default_factory=list)


def measured():
    """Passes of three operations, and products."""
    passes = [
        Row("pass", pass_shape(size, 1, what), "", CALL + RATE * size) for what in ("relu", "relu_backward", "add_") for size in SIZES
    ]
    return [*passes, *(Row("gemm", gemm_shape(m, m, m, 1), "fp32", CALL + RATE * m**3) for m in (8, 64, 512))]


def step(rows, numbers):
    """A step of some of the rows, so often each."""
    kernels = [(row.op, row.shape, row.dtype, often) for row, often in zip(rows, numbers, strict=True) if often]
    host = sum(often * TRUE.of(op, kernel_of(op, shape, dtype), CACHE) for op, shape, dtype, often in kernels)
    return Row("", "step", "", host + sum(often * (row.time - CALL) for row, often in zip(rows, numbers, strict=True)), kernels=kernels)


def test_host_times_are_found_again():
    rows = measured()
    steps = [
        step(rows, numbers) for numbers in ([1] * 12, [4, 0, 0, 1, 0, 0] + [0] * 6, [0, 3, 2, 0, 1, 1, 5, 5, 5, 0, 1, 0], [9] * 9 + [0] * 3)
    ]
    found = host_times([*rows, *steps], CALL, CACHE)
    for name in ("forward", "backward", "update", "cold"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)
    assert found.error < 1e-6
    assert found.least == found.update


def test_steps_faster_than_their_kernels_have_no_host():
    rows = measured()
    fast = Row("", "step", "", 1e-7, kernels=[(rows[0].op, rows[0].shape, rows[0].dtype, 2)])
    assert host_times([*rows, fast], 0.0, CACHE).forward == 0.0


def test_without_steps_a_kernel_takes_a_call():
    found = host_times(measured(), CALL, CACHE)
    assert (found.forward, found.cold, found.error) == (CALL, 0.0, None)
