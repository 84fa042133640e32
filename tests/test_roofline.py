"""The hierarchical roofline: the slowest resource sets the time, and traffic is timed where it goes."""

import dataclasses

import numpy as np
import pytest
from products import gemm_costs, stream_costs

from crossflow.answers.evaluation import evaluate
from crossflow.answers.prediction import predict
from crossflow.cost.roofline import _waves, resources
from crossflow.hardware.architecture.system import architecture
from crossflow.program.kernels import Pass, Product

GIGABYTE = Pass(flops=0.0, moved=1e9)


def streams(device, *work):
    return stream_costs(work, device, "fp16")


def test_a_gigabyte_of_pointwise_traffic_takes_memory_time(v100):
    """The public code times it at register bandwidth, 9.7 us instead of 1007 us (deepflow.md, headline 2a)."""
    costs = streams(v100, GIGABYTE)
    assert costs.time[0, 0] == pytest.approx(1e9 / 900e9 + 9e-6, rel=1e-3)
    assert resources(v100)[costs.resource_times[:, 0, 0].argmax()] == "memory"
    assert costs.traffic[:, 0, 0].tolist() == [1e9] * 4


def test_pointwise_traffic_pays_every_launch_and_the_latency_of_memory(v100):
    costs = streams(v100, Pass(flops=0.0, moved=2.0, launches=5))
    assert costs.launch[0, 0] == pytest.approx(5 * 9e-6)
    assert costs.time[0, 0] == pytest.approx(5 * 9e-6 + 100e-9 + 2 / 900e9, rel=1e-3)


def test_nothing_to_move_takes_no_memory_time(v100):
    costs = streams(v100, Pass(flops=1e12, moved=0.0))
    assert costs.resource_times[1:, 0, 0].tolist() == [0.0] * 4
    assert costs.time[0, 0] == pytest.approx(9e-6 + 1e12 / (0.85 * v100.vector_throughput["fp16"][0]), rel=1e-12)


def test_time_is_that_of_the_slowest_resource(v100):
    costs = gemm_costs([Product(m=m, n=512, k=512) for m in (8, 64, 512, 4096)], v100, "fp16", 2)
    slowest = costs.resource_times.max(axis=0)
    np.testing.assert_allclose(costs.time, slowest + 9e-6, rtol=1e-12)


def test_a_large_product_on_p4_is_bound_by_compute(p4):
    """deepflow.md 3.1, P4: 4096^3 30.148 ms, 16384^3 1929 ms, 2048 x 8192 x 4096 30.145 ms: all at 85 % of the peak.

    There 80 whole units, here the 80.4 that the area holds.
    """
    for (m, n, k), milliseconds in {
        (4096,) * 3: 30.148476,
        (16384,) * 3: 1929.112094,
        (2048, 8192, 4096): 30.144797,
    }.items():
        costs = gemm_costs([Product(m=m, n=n, k=k)], p4, "fp32", 2)
        assert costs.resource_times[:, 0, 0].argmax() == 0
        assert costs.time[0, 0] == pytest.approx(milliseconds * 1e-3, rel=3e-3)


@pytest.mark.parametrize(
    ("size", "milliseconds"),
    [(512, 0.011524), (1024, 0.029199), (2048, 0.170628), (4096, 1.302185), (8192, 10.355114), (16384, 82.780438)],
)
def test_square_products_on_v100_are_near_the_papers_code(v100, size, milliseconds):
    """deepflow.md 3.1; its traffic model is more lenient at L2, so ours may be up to a quarter slower, never faster by 5 %."""
    time = gemm_costs([Product(m=size, n=size, k=size)], v100, "fp16", 2).time[0, 0] * 1e3
    assert 0.95 * milliseconds <= time <= 1.25 * milliseconds


def test_flops_and_launches_are_counted(v100):
    costs = gemm_costs([Product(m=3, n=5, k=7)], v100, "fp16", 2)
    assert costs.flops[0, 0] == 2 * 3 * 5 * 7
    assert costs.launch[0, 0] == 9e-6


def test_half_the_rate_is_twice_the_time(v100):
    """fp32 runs at an eighth of fp16: a compute-bound product takes eight times as long."""
    big = [Product(m=8192, n=8192, k=8192)]
    fp32 = gemm_costs(big, v100, "fp32", 4)
    assert fp32.resource_times[0, 0, 0] == pytest.approx(8 * gemm_costs(big, v100, "fp16", 2).resource_times[0, 0, 0], rel=1e-12)
    assert fp32.resource_times[:, 0, 0].argmax() == 0


@pytest.mark.parametrize("field", ["throughput", "matrix_utilisation", "kernel_launch", "array_height", "bandwidth", "capacity", "latency"])
def test_any_single_figure_may_vary_between_points(v100, field):
    """Two points that differ in one figure alone, against each by itself."""

    def device(factor):
        factor = np.asarray(factor)
        if field == "throughput":
            return dataclasses.replace(v100, throughput={"fp16": v100.throughput["fp16"] * factor})
        if field == "array_height":
            return dataclasses.replace(v100, array_height=v100.array_height * factor)
        if field in ("bandwidth", "capacity", "latency"):
            l1 = dataclasses.replace(v100.levels[1], **{field: getattr(v100.levels[1], field) * factor})
            return dataclasses.replace(v100, levels=(v100.levels[0], l1, *v100.levels[2:]))
        return dataclasses.replace(v100, execution=v100.execution.model_copy(update={field: getattr(v100.execution, field) * factor}))

    gemms = [Product(m=4096, n=4096, k=4096), Product(m=32, n=4096, k=4096, adds=True)]
    both = np.broadcast_to(gemm_costs(gemms, device([1.0, 0.5]), "fp16", 2).time, (2, 2))
    for i, factor in enumerate((1.0, 0.5)):
        assert both[:, i].tolist() == pytest.approx(gemm_costs(gemms, device([factor]), "fp16", 2).time[:, 0].tolist(), rel=1e-12)


@pytest.mark.parametrize("stage", ["time", "traffic"])
def test_streams_scale_with_their_size(v100, stage):
    one, two = streams(v100, GIGABYTE), streams(v100, dataclasses.replace(GIGABYTE, moved=2e9))
    moving = (getattr(costs, stage) - (9e-6 + 100e-9 if stage == "time" else 0.0) for costs in (two, one))
    assert np.divide(*(value.ravel()[-1] for value in moving)) == pytest.approx(2.0, rel=1e-9)


def test_a_level_without_bandwidth_is_endless_and_not_a_warning(v100):
    none = dataclasses.replace(v100.levels[3], bandwidth=np.zeros(1))
    device = dataclasses.replace(v100, levels=(*v100.levels[:3], none))
    assert np.isinf(streams(device, GIGABYTE).time[0, 0])
    assert np.isinf(gemm_costs([Product(m=64, n=64, k=64)], device, "fp16", 2).time[0, 0])


def test_a_generated_gemm_scenario_is_its_kernel(gemm, v100):
    """One product on one device: the step is the kernel's time and nothing else."""
    time = gemm_costs([Product(m=4096, n=4096, k=4096)], v100, "fp16", 2).time[0, 0]
    assert evaluate(gemm("v100")).step_time[0] == pytest.approx(time, rel=1e-12)


def test_launch_is_what_small_kernels_take(gemm):
    score = evaluate(gemm("v100", m=16, n=16, k=16))
    assert score.bound_by == ["launch"]
    assert score.breakdown["other"][0] == pytest.approx(9e-6)


def test_architecture_of_a_scenario_is_what_is_evaluated(gemm):
    scenario = gemm("v100")
    assert evaluate(scenario).architecture["throughput.fp16"][0] == architecture(scenario.system).throughput["fp16"][0]


def test_waves_of_a_generated_device_are_smooth(v100):
    """Ever more units: no step of more than 2 %, each no slower; a known device has whole waves."""
    units = np.geomspace(50.0, 400.0, 400)
    time = _waves(np.array([[216.0]]), dataclasses.replace(v100, units=units)) / units
    steps = np.diff(np.log(time[0]))
    assert steps.max() <= 1e-12
    assert steps.min() > -0.02
    assert _waves(np.array([[216.0]]), dataclasses.replace(v100, units=np.array([200.0]), usage=()))[0, 0] == pytest.approx(400 / 216)


def test_tiles_that_are_wider_than_high_lie_as_the_product_does(gemm):
    """108 units and tiles of 64 x 256: 257 rows are 5 rows of tiles in 3 waves, 257 columns 2 columns of tiles in 5 waves."""
    tiles = {"execution": {"blocks": [[64, 256]]}}
    rows, columns = (predict(gemm("chip-a100", m=m, n=n, k=16384, system=tiles)) for m, n in ((257, 16384), (16384, 257)))
    assert rows.device.units == 108
    assert columns.step_time == pytest.approx(rows.step_time * 5 / 3, rel=0.02)
