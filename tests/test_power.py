"""Watts: of kernels within the power limit, of steps at lower limits, of nodes, and those that were measured."""

from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.cost.roofline import pass_costs, powered, product_costs
from crossflow.evidence.validation import kernels_attention, kernels_products
from crossflow.evidence.validation.power import LANGUAGE, kernel_power_table, power_table, run_length, shown, shown_share, watts_of
from crossflow.evidence.validation.tables import device_architecture, shipped
from crossflow.hardware.architecture.run_cost import node_power

B200, H200 = device_architecture("b200"), device_architecture("h200")
ATTENTION = {
    "source": "aiconfigurator-2026", "device": "b200", "framework": "trtllm", "version": "1.3.0rc15", "kernel_source": "torch_flow",
    "phase": "prefill", "batch": "8", "heads": "32", "kv_heads": "8", "head_dim": "128", "window": "0", "dtype": "bf16",
    "kv_dtype": "bf16", "power_w": "900",
}  # fmt: skip


def step(template, tdp=None, **workload):
    system = {"template": template, "devices": 8, **({} if tdp is None else {"power": {"tdp": tdp}})}
    given = {"model": "llama2-7b", "global_batch": 64, "sequence": 4096, "dtype": "bf16", **workload}
    return crossflow.predict(crossflow.from_dict({"system": system, "workload": given, "strategy": "d8"}))


def test_no_kernel_draws_more_than_the_limit_and_long_products_draw_it():
    sizes = np.array([128.0, 2048.0, 8192.0, 16384.0]) * np.ones((3, 1))
    costs = product_costs(np.stack([*sizes, np.ones(4)])[:, None], np.full((1, 1), 2.0), B200, "bf16")
    watts = watts_of([powered(costs, B200)], B200)[0]
    assert (np.diff(watts) >= 0).all()
    assert watts[0] < 500
    assert watts[-1] <= 1000
    assert watts[-1] == pytest.approx(1000, rel=0.01)


def test_kernels_that_wait_for_memory_draw_their_units_as_well():
    costs = powered(pass_costs(np.full((1, 1), 1e10), np.zeros((1, 1)), np.ones((1, 1)), H200, "bf16"), H200)
    bytes_alone = costs.traffic[-1] * H200.memory.energy / costs.time
    watts = watts_of([costs], H200)
    assert (watts > H200.static_power + bytes_alone + 0.95 * H200.working_power).all()
    assert watts[0, 0] < 700


def test_a_stream_draws_what_was_read_of_devices_that_nothing_was_fitted_to():
    read = {"h200": (3.78e12, 578), "a100-40gb": (1.774e12, 278.2)}  # te42kyfo/gpu-benches; Antepara et al., SC25
    for name, (rate, watts) in read.items():
        device = device_architecture(name)
        predicted = device.static_power + device.working_power + rate * device.memory.energy
        assert predicted[0] == pytest.approx(watts, rel=0.12), name


def test_attention_takes_energy_for_masked_keys_too():
    rows = [{**ATTENTION, "length": str(128 * tiles), "context": str(128 * tiles)} for tiles in (1, 64)]
    sizes = np.array([[float(row[name]) for row in rows] for name in kernels_attention.SIZES])
    key = ("aiconfigurator-2026", "b200", "trtllm", "torch_flow", "prefill")
    costs = kernels_attention.attention_costs(key, rows, sizes)
    spent = costs.energy[:, 0] - costs.traffic[-1][:, 0] * B200.memory.energy
    assert spent / (costs.flops[:, 0] * B200.energy_per_flop["bf16"]) == pytest.approx([2.0, 65 / 64])


def test_scales_of_whole_operands_cost_a_second_read():
    sizes = np.array([[4096.0], [64.0], [65536.0]])
    once, twice = (
        kernels_products.graph_costs(reading(B200.in_graphs, twice), kernels_products.stack_of("trtllm"), "fp8", sizes)[1]
        for twice in (False, True)
    )
    assert (twice.time - twice.launch) == pytest.approx((once.time - once.launch) * 5.0 / 3.0)  # of two bytes read and one written
    assert (twice.traffic - once.traffic)[-1, 0] == pytest.approx(2.0 * sizes[0] * sizes[2])
    at_work = (twice.working - once.working)[0] * B200.working_power
    assert (twice.energy - once.energy)[0] == pytest.approx(2.0 * sizes[0] * sizes[2] * B200.memory.energy + at_work)


def reading(device, twice):
    """A device whose fp8 products of TensorRT-LLM read A once, or twice, to scale it."""
    libraries = device.execution.libraries
    library = libraries.products["cublas-trtllm"]
    library = library.model_copy(update={"quantise": library.quantise.model_copy(update={"reads_twice": twice})})
    products = libraries.model_copy(update={"products": {**libraries.products, "cublas-trtllm": library}})
    return replace(device, execution=device.execution.model_copy(update={"libraries": products}))


def test_readings_of_a_sensor_that_averages_a_second():
    run, pause = (np.array(times) for times in ([1.0, 1.0, 0.05, 20.0, 1.0], [2.0, 0.0, 2.0, 2.0, 0.5]))
    share = shown_share(run, pause, 1.0)
    # A ramp; all of what runs one after the other draw; nothing; nearly all of a long run; a ramp from what was before the pause.
    assert share == pytest.approx([0.5, 1.0, 0.0, 1 - 5.5 / 201, (0.5 * 6 + 0.6 + 0.7 + 0.8 + 0.9 + 1.0) / 11])
    assert (np.diff(shown_share(np.full(9, 0.7), np.linspace(0.0, 2.0, 9), 1.0)) <= 0).all()
    assert (shown_share(run, pause, 0.0) == 1.0).all()


def test_a_slow_host_makes_short_kernels_run_for_less_than_they_should():
    time, calls = np.array([2e-6, 20e-6, 1e-3, 10e-3, 1.0]), np.array([5.0, 5.0, 1.0, 1.0, 1.0])
    assert run_length(time, calls, 130e-6) == pytest.approx([1539 * 10e-6, 1539 * 100e-6, 1.001, 1.01, 6.0], rel=1e-3)
    assert run_length(np.array([2e-6]), np.ones(1), 5e-6) == pytest.approx([3000 * 2e-6])


def test_sources_without_a_sensor_of_their_own_read_what_is_drawn():
    row = {"source": "elsewhere", "framework": "vllm", "dtype": "bf16", "m": "8"}
    watts = np.array([500.0])
    assert shown(watts, B200, np.array([1e-4]), np.ones(1), "moe", [row]) == watts
    known = {**row, "source": "aiconfigurator-2026", "framework": "trtllm"}
    assert B200.static_power < shown(watts, B200, np.array([1e-4]), np.ones(1), "moe", [known]) < watts
    assert shown(watts, device_architecture("a100-80gb"), np.array([1e-4]), np.ones(1), "moe", [known]) == watts  # no mean of a second


@pytest.mark.slow
def test_a_lower_limit_is_never_faster_and_energy_falls_and_rises():
    limits = np.array([150.0, 250.0, 350.0, 450.0, 550.0, 700.0])
    found = [step("dgx-h100", f"{limit} W") for limit in limits]
    times, energy, watts = (
        np.array([getattr(one, name, None) or float(getattr(one.score, name)[0]) for one in found])
        for name in ("step_time", "energy", "power")
    )
    assert (np.diff(times) <= 0).all()
    assert (watts / 8 <= limits * (1 + 1e-9)).all()
    least = energy.argmin()
    assert 0 < least < len(limits) - 1
    assert (np.diff(energy[: least + 1]) < 0).all()
    assert (np.diff(energy[least:]) > 0).all()


def test_a_node_draws_its_base_fans_and_losses_beside_its_devices():
    found = step("dgx-h100")
    load, watts = found.scenario.system.node_load, found.score.power[0]
    assert found.to_dict()["node_power_w"] == pytest.approx((load.base[0] + (1 + load.fans[0]) * watts) / load.supply[0])
    assert node_power(load, np.zeros(1), 8) == load.base / load.supply
    assert found.score.node["node_power_w"][0] < 10.2e3  # the maximum that the maker states
    assert "node_power_w" not in step("dgx-a100").to_dict()


def test_a_run_counts_what_its_nodes_draw():
    data = {"system": "dgx-h100", "workload": {"model": "llama2-7b", "global_batch": 64}, "strategy": "d8", "run": {"steps": 10}}
    found = crossflow.predict(crossflow.from_dict(data)).to_dict()
    assert found["run"]["facility_energy_j"] == pytest.approx(found["node_power_w"] * found["run"]["time_s"])
    rated = crossflow.predict(crossflow.from_dict({**data, "system": {"template": "dgx-h100", "operation": {"device_power": "700 W"}}}))
    assert rated.run["facility_energy_j"] > found["run"]["facility_energy_j"]


@pytest.mark.slow
def test_measured_watts():
    kernels, nodes = kernel_power_table(shipped()), power_table(shipped())
    assert np.median(np.abs(kernels.predicted / kernels.measured - 1)) < 0.1
    off, language = np.abs(nodes.predicted / nodes.measured - 1), np.array(nodes.groups["trained"]) == LANGUAGE
    assert np.median(off[language]) < 0.08
    assert 0.2 < np.median(off[~language]) < 0.35  # too low: why is not known
    assert sum(nodes.skipped.values()) + len(nodes.measured) == 25
    assert kernels.predicted.max() <= 1000
