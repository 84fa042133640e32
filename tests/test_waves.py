"""Tiles in waves over the units: counts by hand, limits, bounds, and that better hardware never loses."""

import dataclasses

import numpy as np
import pytest
from products import half_costs

import crossflow
from crossflow.base.paths import quantities
from crossflow.cost import waves
from crossflow.cost.roofline import product_costs
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.execution import WideningLibrary

DEVICES = ["a100-80gb", "h100-80gb", "mi210", "a40-48gb", "h200"]
RNG = np.random.default_rng(7)
SHAPES = np.concatenate([RNG.integers(1, 9000, (300, 3)), 2 ** RNG.integers(0, 14, (200, 3))]).astype(float)
M, N, K = SHAPES[:, :1], SHAPES[:, 1:2], SHAPES[:, 2:]


def time(device, m=M, n=N, k=K):
    """Times of products in fp16, launch included. [s]"""
    m, n, k = (np.atleast_2d(np.asarray(size, dtype=float)) for size in (m, n, k))
    return half_costs(m, n, k, device).time


def test_caches_feed_the_rate_that_matrix_units_are_made_for():
    """A device held to a quarter of its rate multiplies four times as long, and its cache gives as many bytes a second as before."""
    whole = device_architecture("h100-sxm")
    slow = {dtype: rate / 4.0 for dtype, rate in whole.throughput.items()}
    held = dataclasses.replace(whole, throughput=slow, held_to=np.array([0.25]))
    sides = tuple(np.array([[4096.0]]) for _ in range(3))
    devices = (whole, held, dataclasses.replace(whole, throughput=slow))
    (fast, fed), (limited, still), (_, starved) = (waves.wave_times(*sides, one, "bf16", 2.0)[:2] for one in devices)
    assert limited > 3.5 * fast
    assert still == pytest.approx(fed)
    assert starved == pytest.approx(4.0 * fed)


@pytest.mark.parametrize("device", ["a100-80gb", "h100-sxm", "l40s"])
def test_units_of_three_generations_draw_alike_for_an_operation(device):
    library = device_architecture(device).execution.libraries.products["cublas"]
    assert library.cache_bytes_per_flop.item() == pytest.approx(0.0167, rel=0.04)


@pytest.fixture(params=DEVICES)
def device(request):
    return device_architecture(request.param)


@pytest.fixture
def a100():
    return device_architecture("a100-80gb")


def changed(device, *, units=1.0, memory=1.0, rate=1.0, tiles=None):
    """The device with as many more units, a faster memory or matrix rate, or other tiles."""
    level = dataclasses.replace(device.levels[-1], bandwidth=device.memory.bandwidth * memory)
    execution = device.execution
    if tiles is not None:
        execution = execution.model_copy(update={"tiles": execution.tiles.model_copy(update=tiles)})
    return dataclasses.replace(
        device,
        units=device.units * units,
        throughput={dtype: peak * rate for dtype, peak in device.throughput.items()},
        levels=(*device.levels[:-1], level),
        execution=execution,
    )


def waves_of(device, m, n, k):
    sizes = (np.array([[float(size)]]) for size in (m, n, k))
    return float(waves.wave_times(*sizes, unlimited(device), "fp16", 2.0)[0][0, 0])


def unlimited(device):
    """The device without a power limit."""
    return dataclasses.replace(device, power_clock=np.array([np.inf]))


# ------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    ("m", "n", "k", "count", "depth"),
    [
        (1, 1, 1, 1, 32),
        (128, 128 * 108, 32, 1, 32),
        (129, 128 * 108, 33, 2, 64),
        (1, 128 * 108 + 1, 4096, 2, 4096),
        (1280, 13824, 64, 10, 64),
    ],
)
def test_time_of_one_tile_shape_by_hand(a100, m, n, k, count, depth):
    """ceil(tiles / units) waves of k rounded up to the step, at one unit's share of the rate, and the fill of each."""
    only = changed(a100, tiles={"shapes": ((128, 128),), "splits": (1,)})
    rate = a100.throughput["fp16"][0] * 0.92 / 108
    assert waves_of(only, m, n, k) == pytest.approx(count * (depth * 2 * 128 * 128 / rate + 1.1e-6), rel=1e-12)


def test_a_split_divides_k_and_costs_its_reduction(a100):
    whole, split = (changed(a100, tiles={"shapes": ((128, 128),), "splits": (s,)}) for s in (1, 4))
    rate, moved = a100.throughput["fp16"][0] * 0.92 / 108, 4 * 128 * 128 / (2.5 * a100.memory.bandwidth[0])
    long = 1 << 20
    assert waves_of(split, 128, 128, long) == pytest.approx(long / 4 * 2 * 128**2 / rate + 1.1e-6 + 7e-6 + 5 * moved, rel=1e-12)
    assert waves_of(split, 128, 128, long) < waves_of(whole, 128, 128, long) / 3.5
    assert waves_of(split, 128, 128, 256) > waves_of(whole, 128, 128, 256)


def test_one_more_tile_than_units_is_one_more_wave(a100):
    only = changed(a100, tiles={"shapes": ((128, 128),), "splits": (1,)})
    full, over = waves_of(only, 128, 128 * 108, 4096), waves_of(only, 128, 128 * 108 + 1, 4096)
    assert over == pytest.approx(2 * full, rel=1e-12)


def test_more_shapes_to_choose_from_never_slow(a100):
    for shape in a100.execution.tiles.shapes:
        few = changed(a100, tiles={"shapes": (shape,), "splits": (1,)})
        assert (time(a100) <= time(few) * (1 + 1e-12)).all()


# ------------------------------------------------------------------------------------------ limits and bounds


@pytest.mark.parametrize("name", [*DEVICES, "b200"])
def test_a_huge_product_comes_near_the_utilisation_or_the_power_limit(name):
    device = device_architecture(name)
    share = 2 * 16384**3 / time(device, 16384, 16384, 16384)[0, 0] / device.throughput["fp16"][0]
    assert 0.75 <= share / min(device.execution.matrix_utilisation[0], device.sustained_clock[0]) <= 1.0


def test_no_product_draws_more_than_the_power_limit(device):
    """At most the clock at the limit, of which `test_datasheet` says that it draws the TDP."""
    rate = 2 * M * N * K / time(device)
    assert (rate <= device.throughput["fp16"] * device.power_clock * (1 + 1e-12)).all()


@pytest.mark.parametrize(("name", "least", "most"), [("a100-80gb", 225, 260), ("h100-80gb", 650, 760), ("b200", 1300, 1500)])
def test_long_products_run_as_measured(name, least, most):
    """Tflop/s of products of a few ms: Vidur's on A100 and H100, those of aiconfigurator at the B200's power limit."""
    assert least < 2e-12 * 8192**3 / time(device_architecture(name), 8192, 8192, 8192)[0, 0] < most


def test_a_tiny_product_takes_the_launch_and_the_fill_of_one_block(device):
    launch = device.execution.kernel_launch[0] + device.execution.tiles.fill[0]
    assert time(device, 1, 1, 1)[0, 0] == pytest.approx(launch, rel=0.05)


def test_no_product_beats_its_operations_or_its_bytes(device):
    for here in (device, unlimited(device)):
        compute = 2 * M * N * K / device.throughput["fp16"]
        memory = 2 * (M * K + K * N + M * N) / device.memory.bandwidth
        launch = device.execution.kernel_launch
        assert (time(here) >= np.maximum(compute, memory) * (1 - 1e-12) + launch).all()


def test_a_long_thin_product_is_bound_by_memory(a100):
    costs = half_costs(*(np.array([[size]]) for size in (1.0, 65536.0, 8192.0)), a100)
    bytes_ = 2 * (8192 + 65536 * 8192 + 65536)
    assert costs.traffic[-1, 0, 0] == bytes_
    assert costs.resource_times[:, 0, 0].argmax() == len(a100.levels)
    assert costs.time[0, 0] == pytest.approx(bytes_ / a100.memory.bandwidth[0], rel=0.1)


@pytest.mark.parametrize("name", ["a100-80gb", "h100-80gb", "a40-48gb"])
def test_constant_operands_never_meet_the_power_limit(name):
    constant, random = device_architecture(name, 0.0), device_architecture(name)
    assert (time(constant) <= time(random)).all()
    assert time(constant, 16384, 16384, 16384)[0, 0] < 0.95 * time(random, 16384, 16384, 16384)[0, 0]
    np.testing.assert_allclose(time(constant), time(unlimited(random)), rtol=1e-12)


# ------------------------------------------------------------------------------------------ monotone


@pytest.mark.parametrize("better", [{"units": 2.0, "rate": 2.0}, {"memory": 2.0}, {"rate": 2.0}], ids=str)
def test_better_hardware_never_slows(device, better):
    assert (time(changed(device, **better)) <= time(device) * (1 + 1e-12)).all()


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_a_product_of_twice_the_size_is_never_faster(device, dimension):
    larger = SHAPES.copy()
    larger[:, dimension] *= 2
    assert (time(device, *(larger[:, [i]] for i in range(3))) >= time(device) * (1 - 1e-9)).all()


def test_chunks_do_not_change_results(a100, monkeypatch):
    whole = waves.wave_times(M, N, K, a100, "fp16", 2.0)
    monkeypatch.setattr(waves, "CHUNK", 7)
    for part, parts in zip(whole, waves.wave_times(M, N, K, a100, "fp16", 2.0), strict=True):
        np.testing.assert_array_equal(part, parts)


def test_products_alike_take_the_same_time(a100):
    """Of many points those that are alike at every point are timed once."""
    m, n, k = (np.broadcast_to(size, (len(SHAPES), 2)) * [1, 2] for size in (M, N, K))
    rows = np.arange(2 * len(SHAPES)) % len(SHAPES)
    for once, twice in zip(
        waves.wave_times(m, n, k, a100, "fp16", 2.0), waves.wave_times(m[rows], n[rows], k[rows], a100, "fp16", 2.0), strict=True
    ):
        np.testing.assert_array_equal(once[rows], twice)


def test_design_points_are_their_devices_one_by_one(a100):
    factors = np.array([1.0, 2.0, 0.5])
    together = time(changed(a100, units=factors, rate=factors, memory=factors[::-1]))
    for i, factor in enumerate(factors):
        alone = time(changed(a100, units=factor, rate=factor, memory=factors[::-1][i]))
        np.testing.assert_allclose(together[:, [i]], alone, rtol=1e-12)


def test_sides_are_alike_where_the_library_has_a_tile_for_both(a100):
    np.testing.assert_allclose(time(a100), time(a100, N, M, K), rtol=1e-12)


@pytest.mark.parametrize(
    "path", ["system.levels.memory.bandwidth", "system.memory_utilisation", "system.execution.tiles.fill", "system.execution.tiles.split"]
)
def test_every_figure_of_a_datasheet_can_vary_alone(path):
    """One number varies between points and all others do not: widths of arrays must not be taken from the wrong one."""
    scenario = crossflow.from_dict({"system": "h100-sxm", "workload": {"model": "gemm", "m": 512, "n": 512, "k": 65536}})
    value = next(held for parts, _, held in quantities(scenario.system, ("system",)) if ".".join(parts) == path)
    times = crossflow.evaluate(scenario, {path: np.array([1.0, 0.5]) * value}).step_time
    assert times[0] == pytest.approx(crossflow.evaluate(scenario).step_time[0], rel=1e-12)
    assert times[1] != times[0]


def test_points_alike_on_one_device_are_timed_once(a100, monkeypatch):
    """Points may differ in what no product sees; where the device differs too, each is timed by itself."""
    sizes = np.array([[128.0, 512.0, 128.0, 4096.0, 512.0], [1024.0, 64.0, 1024.0, 64.0, 64.0]])
    alone = [waves.wave_times(sizes[:, [i]], sizes[:, [i]], sizes[:, [i]], a100, "fp16", 2.0) for i in range(sizes.shape[1])]
    timed, plain = [], waves._wave_times
    monkeypatch.setattr(waves, "_wave_times", lambda m, *given, **more: timed.append(m.shape[-1]) or plain(m, *given, **more))
    for part, parts in zip(waves.wave_times(sizes, sizes, sizes, a100, "fp16", 2.0), zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(part, np.concatenate(parts, axis=1))
    assert timed == [3]
    faster = dataclasses.replace(a100, throughput={dtype: rate * np.linspace(1.0, 2.0, 5) for dtype, rate in a100.throughput.items()})
    assert a100.single
    assert not faster.single
    cache = waves.wave_times(sizes, sizes, sizes, faster, "fp16", 2.0)[1]
    assert timed[-1] == 5
    assert cache[0, 2] < cache[0, 0]


def test_weights_that_are_widened_are_padded_and_read_at_a_kernel_s_share():
    """20,100 columns and a sum of 9,900 as 20,224 and 9,984; other products are neither slower nor padded."""
    device = device_architecture("h100-sxm")
    library = WideningLibrary(matrix=1.0, memory=0.5, columns=256, depth=128)

    def memory(columns, depth, second, **more):
        sides = (np.array([[float(side)]]) for side in (1, columns, depth))
        return half_costs(*sides, device, second=second, **more).resource_times[-1].item()

    assert memory(20100, 9900, 0.25, widening=library) == pytest.approx(2.0 * memory(20224, 9984, 0.25), rel=1e-4)
    assert memory(20100, 9900, 1.0, widening=library) == memory(20100, 9900, 1.0)


def test_products_of_widened_weights_start_as_their_own_kernels_do():
    """In a captured graph; products whose weights are not widened start as those of the library that multiplies."""
    device = device_architecture("h100-sxm").in_graphs
    own = device.execution.libraries.products["cublas"]

    def time(second, start):
        library = WideningLibrary(matrix=1.0, start=start)
        sides = (np.array([[float(side)]]) for side in (8, 4096, 4096))
        return half_costs(*sides, device, second=second, library=own, widening=library).time.item()

    assert time(0.25, "22 us") - time(0.25, "2 us") == pytest.approx(20e-6)
    assert time(0.25, None) - time(0.25, "2 us") == pytest.approx(own.start - 2e-6)
    assert time(1.0, "22 us") == time(1.0, None)


# Whole layers of 8 experts of 4,096 x 14,336, two a token, by vLLM's fused_marlin_moe on a device that is not named, by its rates an H100:
# tokens and ms (flagos-ai/FlagGems, pull request 4350, 2026). The share of the matrix rate was chosen with the row of 16,384.
MARLIN = {16: 0.2823, 32: 0.2972, 64: 0.3812, 128: 0.4935, 256: 0.9215, 512: 1.4593, 1024: 2.7203, 4096: 9.9097, 16384: 38.999}


@pytest.mark.parametrize("tokens", list(MARLIN))
def test_layers_of_experts_whose_weights_marlin_widens_take_as_long_as_measured(tokens):
    """Its three other kernels, some percent of the layer, are left out."""
    device = device_architecture("h100-sxm")
    library = device.execution.libraries.widening["marlin"]
    own = device.execution.libraries.products["cublas"]
    touched = 8.0 * (1.0 - 0.75**tokens)
    sizes = np.array([[[2.0 * tokens / touched] * 1] * 2, [[28672.0], [4096.0]], [[4096.0], [14336.0]], [[touched]] * 2])
    costs = product_costs(sizes, np.full((2, 1), 2.0), device, "bf16", second=0.26, library=own, widening=library)
    assert -0.09 < 1e3 * costs.time.sum() / MARLIN[tokens] - 1.0 < 0.05
