"""Times of kernels from measured ones of other sizes."""

import dataclasses

import numpy as np
import pytest

from crossflow.cost.nearby import along, near_times
from crossflow.cost.price import kernel_prices
from crossflow.cost.profile import Measured, Profile, gemm_shape, kernel_of, lookup_shape, pass_shape
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Lookup, Pass, Product, kernel_tables

GRID = (16, 64, 256, 1024)
RATE = 1e-10


def times(kernels, events, dtypes=None):
    profile = Profile(events={key: Measured(time=time, spread=0.0) for key, time in events.items()}, source="", nearby=True)
    (table,) = kernel_tables(tuple(kernels), 4.0, narrow=False)
    return near_times(table, dtypes or ["fp32"] * len(kernels), profile)[:, 0]


def products():
    return {("gemm", gemm_shape(m, n, k, 1), "fp32", 1, ""): 2 * RATE * m * n * k for m in GRID for n in GRID for k in GRID}


def test_a_constant_rate_is_found_between_and_beyond_measured_sizes():
    found = times([Product(m=100, n=200, k=300), Product(m=4000, n=16, k=16)], products())
    assert found == pytest.approx([2 * RATE * 100 * 200 * 300, 2 * RATE * 4000 * 256], rel=1e-6)


def test_kernels_far_from_measured_ones_are_left_to_the_model():
    assert np.isnan(times([Product(m=1e5, n=16, k=16)], products())).all()
    assert np.isnan(times([Product(m=64, n=64, k=64)], products(), ["bf16"])).all()


def test_a_program_takes_what_was_measured_and_else_what_was_measured_nearby(v100):
    """One size was measured half as fast as the others, which is that kernel's time; one far from all has the model's."""
    program = ProgramBuilder(name="three", dtype="fp32")
    for name, rows in (("measured", 64.0), ("near", 100.0), ("far", 1e5)):
        program.compute(name, Product(m=rows, n=64.0, k=64.0))
    built = program.build(training=False)
    events = {**products(), ("gemm", gemm_shape(64, 64, 64, 1), "fp32", 1, ""): 4 * RATE * 64**3}
    profile = Profile(events={key: Measured(time=time, spread=0.0) for key, time in events.items()}, source="")
    alone, beside = (kernel_prices(built, v100, None, dataclasses.replace(profile, nearby=nearby)) for nearby in (False, True))
    assert [costs.time[0, 0] - costs.launch[0, 0] for costs, _ in (alone, beside)] == pytest.approx([4 * RATE * 64**3] * 2)
    assert beside[0].time[1, 0] - beside[0].launch[1, 0] == pytest.approx(times([Product(m=100, n=64, k=64)], events)[0])
    assert [(known[:, 0] > 0).tolist() for _, known in (alone, beside)] == [[True, False, False], [True, True, False]]
    assert alone[0].time[[0, 2], 0].tolist() == beside[0].time[[0, 2], 0].tolist()


def test_passes_are_those_of_their_operation():
    events = {("pass", pass_shape(size, 1, what), "", 1, ""): size * rate for size in GRID for what, rate in (("gelu", 3.0), ("add", 1.0))}
    assert times([Pass(moved=100.0, what="gelu"), Pass(moved=100.0, what="add")], events) == pytest.approx([300.0, 100.0])
    assert np.isnan(times([Pass(moved=100.0)], events)).all()


def test_an_operation_that_was_not_measured_takes_what_others_take_in_the_mean():
    events = {("pass", pass_shape(size, 1, what), "", 1, ""): size * rate for size in GRID for what, rate in (("gelu", 3.0), ("add", 1.0))}
    assert times([Pass(moved=100.0, what="tanh")], events) == pytest.approx([np.sqrt(3.0) * 100.0])


def test_lookups_take_their_reuse_from_measured_ones():
    shapes = {(count, reuse): lookup_shape(count, 1, 1000, 32, 4, reuse=reuse) for count in GRID for reuse in (1.0, 4.0, 16.0)}
    events = {("lookup", shape, "", 1, ""): 1e-9 * count * 4 * 32 / reuse for (count, reuse), shape in shapes.items()}
    kernels = [Lookup(samples=128.0, tables=1.0, rows=1000.0, width=32.0, pooling=4.0, distinct=distinct) for distinct in (1.0, 1 / 8)]
    assert times(kernels, events) == pytest.approx([1e-9 * 128 * 4 * 32, 1e-9 * 128 * 4 * 32 / 8], rel=0.02)
    assert kernel_of("lookup", shapes[16, 4.0], "").distinct == 0.25


def test_a_plane_in_the_logarithms_is_followed():
    at = np.log([[x, y] for x in GRID for y in GRID])
    rate = 0.3 * at[:, 0] - 0.2 * at[:, 1]
    point = np.log([[128.0, 128.0]])
    assert along(at, rate, point) == pytest.approx(0.1 * point[:, 0], abs=0.02)


def test_points_do_not_depend_on_one_another():
    at = np.random.default_rng(0).normal(size=(20, 3))
    points = np.random.default_rng(1).normal(size=(5, 3)) * 0.3
    rate = at.sum(axis=1)
    assert along(at, rate, points) == pytest.approx(np.concatenate([along(at, rate, one[None]) for one in points]))


def test_gradients_of_bags_add_rows_one_by_one():
    found = kernel_of("lookup_gradient", "64 x 4 of 1 tables 1000x32", "")
    assert found == Lookup(samples=64, pooling=4, tables=1, rows=1000, width=32, part="gradient")
