"""Tensors on the host: what moves there, what it costs by hand, limits, and what is said where there is no host."""

import numpy as np
import pytest

import crossflow
from crossflow.errors import StrategyError
from crossflow.evaluation import evaluate
from crossflow.parallel.plan import Plan, parse_plan
from crossflow.step.offload import flow

HOST = {"capacity": "2 TB", "bandwidth": "400 GB/s", "utilisation": 0.5}
PARAMETERS = 6_738_415_616  # of Llama 2 7B


def score(strategy, host=HOST, bus="32 GB/s", software="ideal", **workload):
    system = {"template": "dgx-a100", "host": host, "network": {"host": {"bandwidth": bus}}}
    given = {
        "system": system,
        "workload": {"model": "llama2-7b", "global_batch": 64, **workload},
        "strategy": strategy,
        "software": software,
    }
    return evaluate(crossflow.from_dict(given))


def test_the_optimizers_states_move_to_the_host():
    """Two states and master weights in fp32, 12 bytes a parameter over 8 ranks; a copy of its gradients comes with them."""
    device, host = score("dp8-z1"), score("dp8-z1-offload:optimizer")
    assert device.memory["optimizer"][0] == pytest.approx(12 * PARAMETERS / 8)
    assert host.memory["optimizer"][0] == device.host_memory[0] == 0.0
    gradient = device.memory["gradients"][0] / PARAMETERS
    assert host.host_memory[0] == pytest.approx((12 + gradient) * PARAMETERS / 8)
    for kind in ("weights", "gradients", "activations"):
        assert host.memory[kind] == device.memory[kind]


def test_the_host_updates_at_the_rate_of_its_memory():
    """Each rank has an eighth of half of 400 GB/s: 12 bytes read and written a parameter, gradients and weights beside."""
    device, host = score("dp8-z1"), score("dp8-z1-offload:optimizer")
    gradient = device.memory["gradients"][0] / PARAMETERS
    update = PARAMETERS / 8 * (24 + gradient + 2) / (400e9 / 8 * 0.5)
    assert host.breakdown["other"][0] - device.breakdown["other"][0] == pytest.approx(update, rel=1e-9)
    assert host.breakdown["memory_bound_compute"][0] < device.breakdown["memory_bound_compute"][0]


def test_copies_take_the_time_of_the_bus():
    """Gradients down, weights up; the bus of a PCIe 4 device at the rate that its fabric reaches, 0.738."""
    found = score("dp8-z1-offload:optimizer", software="pytorch-fsdp")
    size = PARAMETERS / 8 * (2 + 2)
    assert found.communication["host_copy"][0] == pytest.approx(size / (32e9 * 0.738), rel=1e-6)


def test_shards_of_weights_on_the_host_are_fetched_once_a_pass():
    """Forward and backward of each of 8 microbatches, gradients after each; nothing more at the step's end."""
    found = score("dp8-z3-offload:optimizer+weights", software="pytorch-fsdp")
    size = PARAMETERS / 8 * 8 * (2 * 2 + 2)
    assert found.communication["host_copy"][0] == pytest.approx(size / (32e9 * 0.738), rel=1e-6)
    assert found.memory["weights"][0] == found.memory["gradients"][0] == 0.0


def test_activations_on_the_host_leave_two_units_on_the_device():
    device, host = score("dp8-z1"), score("dp8-z1-offload:activations")
    assert host.memory["activations"][0] < device.memory["activations"][0] / 4
    assert host.host_memory[0] > device.memory["activations"][0] * 0.8
    assert host.step_time[0] >= device.step_time[0]


@pytest.mark.parametrize("what", ["optimizer", "activations", "optimizer+weights", "optimizer+weights+activations"])
def test_a_faster_bus_and_a_faster_host_never_slow_a_step(what):
    plan = f"dp8-z3-offload:{what}"
    times = [score(plan, bus=bus, software="pytorch-fsdp").step_time[0] for bus in ("8 GB/s", "16 GB/s", "32 GB/s", "64 GB/s")]
    assert (np.diff(times) <= 0).all()
    hosts = [score(plan, host={**HOST, "bandwidth": rate}).step_time[0] for rate in ("50 GB/s", "200 GB/s", "800 GB/s")]
    assert (np.diff(hosts) <= 0).all()


def test_a_host_without_limits_costs_nothing():
    """Not even the device's own optimizer step, which it does not do."""
    free = {**HOST, "bandwidth": "1e12 GB/s"}
    device = score("dp8-z3", bus="1e12 GB/s", software="pytorch-fsdp")
    host = score("dp8-z3-offload:optimizer+weights+activations", host=free, bus="1e12 GB/s", software="pytorch-fsdp")
    rest = {name: part[0] for name, part in device.breakdown.items() if name != "memory_bound_compute"}
    assert {name: host.breakdown[name][0] for name in rest} == pytest.approx(rest, abs=1e-9)
    assert host.step_time[0] < device.step_time[0]


def test_more_than_the_host_holds_is_not_feasible():
    found = score("dp8-z1-offload:optimizer", host={**HOST, "capacity": "40 GB"})
    assert not found.feasible[0]
    assert found.buildable[0]
    assert found.why() == "needs 10.98 GiB of the host's memory per device but has 4.657 GiB"


def test_a_system_without_a_host_says_so(exactly):
    system = {"template": "h100-sxm", "devices": 8, "devices_per_node": 8}
    scenario = crossflow.from_dict(
        {"system": system, "workload": {"model": "llama2-7b", "global_batch": 8}, "strategy": "dp8-offload:optimizer"}
    )
    sentence = (
        "strategy dp8-offload:optimizer: it keeps tensors on the host, of which the system says nothing; give system.host its capacity,"
        " bandwidth and utilisation, such as {capacity: 2 TiB, bandwidth: 400 GB/s, utilisation: 0.7}"
    )
    with pytest.raises(StrategyError, match=exactly(sentence)):
        evaluate(scenario)


def test_the_host_is_among_what_would_make_a_plan_fit():
    given = {"system": "dgx-a100", "workload": {"model": "llama2-7b", "global_batch": 64}, "strategy": "dp8", "software": "megatron-core"}
    sentences = crossflow.predict(crossflow.from_dict(given)).remedies
    assert any(sentence.startswith("offload: optimizer frees") for sentence in sentences)


def test_plans_with_a_host_read_back_as_they_are_written():
    plan = Plan(dp=8, zero=3, offload=("optimizer", "weights", "activations"))
    assert str(plan) == "dp8-z3-offload:optimizer+weights+activations"
    assert parse_plan(str(plan)) == plan


@pytest.mark.parametrize("times", [[3.0], [3.0, 5.0], [5.0, 3.0, 4.0]])
def test_pieces_flow_through_stages_as_the_recurrence_says(times):
    pieces = 6
    ends = np.zeros(len(times))
    for _ in range(pieces):
        before = 0.0
        for i, time in enumerate(times):
            before = ends[i] = max(ends[i], before) + time / pieces
    assert flow([np.array(time) for time in times], np.array(float(pieces))) == pytest.approx(ends[-1])
