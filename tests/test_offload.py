"""Tensors on the host: what moves there, what it costs by hand, limits, and what is said where there is no host."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.errors import SpecError, StrategyError
from crossflow.engine.runs.slots import flow
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.transformers import plan_of

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
    each = PARAMETERS / 8 * 8  # all microbatches of a rank
    adding = 3 * 2 / (400e9 / 8 * 0.5)  # gradients to the sum on the host: read both, write one
    assert found.communication["host_copy"][0] == pytest.approx(each * (2 * 2 / (32e9 * 0.738) + adding), rel=1e-6)
    assert found.memory["weights"][0] == found.memory["gradients"][0] == 0.0


def test_activations_on_the_host_leave_two_units_on_the_device():
    device, host = score("dp8-z1"), score("dp8-z1-offload:activations")
    assert host.memory["activations"][0] < device.memory["activations"][0] / 4
    assert host.host_memory[0] > device.memory["activations"][0] * 0.8
    assert host.step_time[0] >= device.step_time[0]


@pytest.mark.cases(2)
@pytest.mark.slow
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
    assert found.why() == "needs 10.98 GiB of the host's memory per device, 6.326 GiB more than its share of 4.657 GiB"


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["capacity", "bandwidth"])
def test_points_of_a_host_are_each_alone(quantity):
    given = {
        "system": {"template": "dgx-a100", "host": HOST}, "workload": {"model": "llama2-7b", "global_batch": 64},
        "strategy": "dp8-z1-offload:optimizer", "software": "ideal",
    }  # fmt: skip
    scenario, values = crossflow.from_dict(given), np.array([1e10, 5e10, 2e11, 4e12])
    many = evaluate(scenario, {f"system.host.{quantity}": values})
    for i, value in enumerate(values):
        host = {**HOST, quantity: f"{value:g} {'B' if quantity == 'capacity' else 'B/s'}"}
        one = score("dp8-z1-offload:optimizer", host=host)
        assert (many.feasible[i], many.step_time[i]) == (one.feasible[0], pytest.approx(one.step_time[0]))


def test_weights_of_a_service_lie_whole_on_the_host():
    found = score("dp8-z3-offload:weights", task="decode", prompt=512, output=64)
    assert found.memory["weights"][0] == 0.0
    assert found.host_memory[0] == pytest.approx(2 * PARAMETERS / 8)


def test_frozen_weights_lie_on_the_host_without_states():
    found = score("dp8-z3-offload:optimizer+weights", frozen=["embedding", "head", "layers:0-30"])
    layer = (PARAMETERS - 2 * 32000 * 4096 - 4096) / 32
    assert found.host_memory[0] == pytest.approx((2 * PARAMETERS + (12 + 2) * layer) / 8)


def test_a_tied_table_lies_on_the_host_once():
    found = score("dp8-z1-offload:optimizer", model="gpt2-xl")
    device = score("dp8-z1", model="gpt2-xl")
    assert found.host_memory[0] == pytest.approx(device.memory["optimizer"][0] + device.memory["gradients"][0] / 8)


def test_one_device_has_the_whole_host():
    system = {"template": "dgx-a100", "host": HOST}
    given = {"workload": {"model": "gpt2-345m", "global_batch": 8}, "software": "ideal", "strategy": "dp1-offload:optimizer"}
    alone = evaluate(crossflow.from_dict({"system": {**system, "nodes": None, "devices": 1}, **given}))
    assert alone.host_capacity[0] == pytest.approx(2e12)


def test_gradients_that_ranks_share_out_are_summed_on_the_host():
    """ZeRO-Offload, Sec. 4: the device keeps its half-precision weights alone."""
    found = score("dp8-z2-offload:optimizer")
    assert found.memory["gradients"][0] == found.memory["optimizer"][0] == 0.0
    assert score("dp8-z1-offload:optimizer").memory["gradients"][0] > 0.0


@pytest.mark.parametrize("what", ["optimizer+activations", "optimizer+weights+activations"])
def test_no_direction_of_the_bus_carries_more_than_it_can(what):
    found = score(f"dp8-z3-offload:{what}", bus="1 GB/s", software="pytorch-fsdp")
    kept = score("dp8-z3", software="pytorch-fsdp").memory["activations"][0] * 0.8  # at least, without what passes back
    upwards = 8 * (kept + (PARAMETERS / 8 * 2 if "weights" in what else 0.0)) / 0.738e9
    assert found.step_time[0] > upwards


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (
            "dp8-mb8-offload:optimizer",
            "only training has an optimizer and keeps activations; otherwise only weights can lie on the host",
        ),
        ("dp8-mb8-offload:weights", "weights needs zero: 3, which shares them out"),
    ],
)
def test_what_a_service_cannot_keep_on_the_host_is_told(strategy, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(f"strategy {strategy}: offload: {sentence}")):
        score(strategy, task="decode", prompt=512, output=64)


def test_options_beside_layer_types_are_those_of_a_plan():
    scenario = {"system": {"template": "dgx-a100", "host": HOST}, "workload": {"model": "llama2-7b", "global_batch": 64}}
    made = crossflow.from_dict({**scenario, "strategy": {"transformer": ["fsdp"], "offload": ["weights", "optimizer"]}})
    assert made.strategy.offload == ("optimizer", "weights")
    with pytest.raises(SpecError, match="dp beside layer types, which say how devices are divided; write the one or the other"):
        crossflow.from_dict({**scenario, "strategy": {"transformer": ["fsdp"], "dp": 8}})


def test_a_host_that_is_too_small_is_cured_on_the_host():
    """Without the offload the plan fits: that is what is said, not what would free the device."""
    given = {
        "system": {"template": "dgx-a100", "host": {**HOST, "capacity": "40 GB"}},
        "workload": {"model": "llama2-7b", "global_batch": 64}, "strategy": "dp8-z1-offload:optimizer", "software": "megatron-core",
    }  # fmt: skip
    sentences = crossflow.predict(crossflow.from_dict(given)).remedies
    assert any(sentence.startswith("offload: none frees") and "of the host's memory" in sentence for sentence in sentences)


def test_a_system_without_a_host_says_so(exactly):
    system = {"template": "h100-sxm", "devices": 8, "devices_per_node": 8}
    scenario = crossflow.from_dict(
        {"system": system, "workload": {"model": "llama2-7b", "global_batch": 8}, "strategy": "dp8-offload:optimizer"}
    )
    sentence = (
        "strategy dp8-offload:optimizer: it keeps tensors on the host, of which the system says nothing; give system.host its capacity,"
        " bandwidth and utilisation, such as {capacity: 2 TiB, bandwidth: 400 GB/s, utilisation: 0.45}"
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
    assert plan_of(str(plan)) == plan


@pytest.mark.parametrize("times", [[3.0], [3.0, 5.0], [5.0, 3.0, 4.0]])
def test_pieces_flow_through_stages_as_the_recurrence_says(times):
    pieces = 6
    ends = np.zeros(len(times))
    for _ in range(pieces):
        before = 0.0
        for i, time in enumerate(times):
            before = ends[i] = max(ends[i], before) + time / pieces
    assert flow([np.array(time) for time in times], np.array(float(pieces))) == pytest.approx(ends[-1])
