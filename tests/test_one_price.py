"""The same work on the same device takes the same time and energy, whichever workload asks."""

import numpy as np
import pytest

import crossflow
from crossflow.cost.price import kernel_prices, layer_costs
from crossflow.hardware.architecture.software import load_stack
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Attention, Pass, Product

SIZES = [(8192, 8192, 8192), (128, 50000, 1024), (7, 333, 4096)]
DEVICES = ["pathfinder", "v100", "h100-sxm", "mi300x"]


def alone(device):
    system = {"template": device, "devices": 1} if device in ("pathfinder", "v100") else {"template": device}
    return crossflow.from_dict({"system": system, "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}})


def program_costs(device, kernel, software=None):
    """Time, launch, energy and time by resource of one kernel of a program."""
    builder = ProgramBuilder(dtype="fp16")
    builder.compute("one", kernel)
    found, _ = kernel_prices(builder.build(), alone(device).architecture, software)
    return found.time[0, 0], found.launch[0, 0], found.energy[0, 0], found.bound_times[:, 0, 0]


def block_costs(device, kernel):
    """The same of one kernel of a layered model."""
    builder = ProgramBuilder(dtype="fp16", shared=False)
    builder.compute("one", kernel, layer="one", phase="forward")
    found = layer_costs(builder.build(), ("one",), ("forward",), 1, alone(device).architecture, load_stack("ideal")[0])
    return found.compute.sum(), found.launch.sum(), found.energy.sum(), found.bound.sum(axis=(1, 2, 3))


def same(one, other):
    for mine, its in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-30)


@pytest.mark.cases(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", SIZES)
def test_a_product_costs_the_same(device, size):
    product = Product(m=size[0], n=size[1], k=size[2])
    same(program_costs(device, product), block_costs(device, product))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("elements", [1e3, 1e6, 1e9])
def test_a_pass_over_memory_costs_the_same(device, elements):
    passed = Pass(moved=2 * elements, flops=3 * elements, launches=2)
    same(program_costs(device, passed), block_costs(device, passed))


def test_a_generated_device_spends_energy_at_every_level():
    """A product on the pathfinder took 0.953 J in a layered model, which knew main memory only, and 1.290 J in a graph."""
    energy = block_costs("pathfinder", Product(m=8192, n=8192, k=8192))[2]
    device = alone("pathfinder").architecture
    assert energy > 2.0 * 8192.0**3 * device.energy_per_flop["fp16"][0] * 1.1


def test_attention_crosses_the_caches_of_a_generated_device():
    """Every block of queries reads the keys and values that it sees."""
    heads, length, width = 64.0, 8192.0, 128.0
    flops, scores = (
        4.0 * heads * length**2 * width,
        Attention(samples=1, heads=heads, length=length, seen=length, width=width, causal=False),
    )
    assert block_costs("pathfinder", scores)[0] > flops / 128 * 1.0 / alone("pathfinder").architecture.level("l2").bandwidth[0]


@pytest.mark.parametrize("path", ["system.technology.memory=HBM3", "system.technology.logic=N7"])
def test_the_level_that_binds_a_transformer_has_its_name(path):
    given = {"system": {"template": "pathfinder", "devices": 8}, "strategy": "tp8", "software": "ideal"}
    given["workload"] = {"model": "llama-7b", "dtype": "fp16", "global_batch": 8}
    technology = dict([path.removeprefix("system.technology.").split("=")])
    given["system"]["technology"] = technology
    score = crossflow.evaluate(crossflow.from_dict(given))
    assert {"registers", "l1", "l2", "memory"} <= set(score.bound)
    assert score.bound["memory"][0] + score.bound["l2"][0] > 0.01


LAYERED = [
    {"system": {"template": "dgx-h100", "nodes": 2}, "workload": {"model": "llama2-7b", "global_batch": 64}, "strategy": "tp4-pp2-dp2-z1"},
    {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama2-7b", "task": "decode", "output": 64}, "strategy": "tp8"},
    {"system": {"template": "zionex", "nodes": 2}, "workload": "dlrm-a", "strategy": {"dense": "ddp", "embedding": "mp"}},
    {"system": {"template": "pathfinder", "devices": 8}, "workload": {"model": "llama2-7b", "global_batch": 8}, "strategy": "tp8"},
]


@pytest.mark.parametrize("data", LAYERED)
def test_lower_bounds_of_layered_models(data):
    """With its kernels at their lower bound, a step takes less time and no more energy, and sends and computes as much."""
    scenario = crossflow.from_dict(data)
    bound, whole = crossflow.evaluate(scenario, least=True), crossflow.evaluate(scenario)
    assert 0.2 < bound.step_time[0] / whole.step_time[0] < 1.0
    assert bound.energy[0] <= whole.energy[0] * (1 + 1e-12)
    assert bound.flops == pytest.approx(whole.flops)
    assert sum(bound.communication.values())[0] == pytest.approx(sum(whole.communication.values())[0])
