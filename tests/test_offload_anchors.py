"""What the host keeps and copies, worked out by hand: shares of activations, states and weights, buses of few and of many devices."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_step_anchors import job_of, layout_of, machine_of, near

from crossflow.cost.machine import Machine
from crossflow.cost.passes import host_copies
from crossflow.engine.runs.memory import ACTIVATIONS, ledger, memory
from crossflow.parallel.activations import activations
from crossflow.parallel.offload import activations_on_host, master_size, states_size
from crossflow.parallel.shapes import alike
from crossflow.parallel.strategy.plan import Plan

ALL = ("optimizer", "weights", "activations")


def stack_with(**habits):
    """Software that keeps gradients in two bytes, without what an allocator holds unused."""
    stack = machine_of().stack
    return stack.model_copy(update={"memory": stack.memory.model_copy(update={"fragmentation": np.zeros(1), **habits})})


def machine_with(**habits):
    return replace(machine_of(), stack=stack_with(**habits))


SHARES = [
    # stages, layers of a stage that the host keeps, share of all eight layers
    (1, 0, 1.0), (1, 1, 1 / 8), (1, 3, 3 / 8), (1, 8, 1.0), (1, 9, 1.0), (2, 1, 2 / 8), (4, 1, 4 / 8), (4, 2, 1.0), (4, 5, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("stages", "layers", "share"), SHARES)
def test_share_of_activations_on_the_host(stages, layers, share):
    """Of the layers of a stage, not of the model; none said are all, and more than there are no more than all."""
    plan = Plan(pp=stages, offload=("activations",), offload_layers=layers)
    found = activations_on_host(layout_of(plan, Plan(pp=stages, offload=("optimizer",)), Plan()), 8)
    assert found.tolist() == [share, 0.0, 0.0]


@pytest.mark.parametrize(
    ("habits", "weight", "dtype", "master", "states"),
    [
        ({"remainders": False}, "own", "bf16", 4.0, 8.0),
        ({"remainders": True}, "own", "bf16", 2.0, 8.0),  # the 16 bits that a weight lacks
        ({"remainders": True}, "own", "fp8", 4.0, 8.0),  # weights of narrow products keep none
        ({"remainders": True}, "fp32", "bf16", 0.0, 8.0),  # a weight is its own
        ({"remainders": False, "moments": "bf16"}, "own", "bf16", 4.0, 4.0),
    ],
)
def test_bytes_of_an_optimizer_beside_each_weight(habits, weight, dtype, master, states):
    stack = stack_with(**{"moments": "fp32", **habits}).model_copy(update={"weight": weight})
    job = job_of(dtype=dtype)
    assert (master_size(job, stack), states_size(job, stack)) == (master, states)
    assert states_size(replace(job, optimizer_states=1), stack) == states / 2


@pytest.mark.parametrize("layers", [0, 1, 3, 6])
def test_activations_on_the_host_and_on_the_device_by_hand(layers):
    """Eight layers in one stage. The host has its share; a device what is left, and two units, if these are less than that share."""
    job, plan = job_of(layers=8), Plan(offload=("activations",), offload_layers=layers)
    found, layout = memory(job, layout_of(plan), machine_with()), layout_of(Plan())
    kept, working = activations(job, layout, stack_with())
    whole = 8 * (kept["0.0.attention"][0] + kept["0.1.mlp"][0]) + kept["head"][0]
    share, units, most = (layers or 8) / 8, 2 * max(kept.values())[0], max(working.values())[0]
    assert found.host[0] == near(share * whole)
    assert found.kinds["activations"][0] == near((1 - share) * whole + min(units, share * whole) + most)


def test_the_host_has_every_microbatch_in_flight():
    """GPipe keeps four microbatches of each stage; the fuller stage, with the head, sets what the host must hold."""
    job, plan = job_of(layers=4), Plan(pp=2, schedule="gpipe", offload=("activations",))
    found = memory(job, layout_of(plan, batch=4), machine_with())
    kept, _ = activations(job, layout_of(Plan()), stack_with())
    assert found.host[0] == near(4 * (2 * (kept["0.0.attention"][0] + kept["0.1.mlp"][0]) + kept["head"][0]))


@pytest.mark.parametrize("layers", [None, 0, 1])
def test_a_microbatch_leaves_when_its_backward_pass_ends(layers):
    """Gradients that appear only then meet three of four microbatches of GPipe; of a host's quarter two units, at once less one."""
    job, hosted = job_of(layers=8, vocabulary=8), {} if layers is None else {"offload": ("activations",), "offload_layers": layers}
    found = memory(job, layout_of(Plan(pp=2, schedule="gpipe", **hosted), batch=4), machine_with(late_gradients=True))
    kept, _ = activations(job, layout_of(Plan()), stack_with())
    one, units = 4 * (kept["0.0.attention"][0] + kept["0.1.mlp"][0]), 2 * kept["0.1.mlp"][0]
    assert found.moment[0, 0] == 1
    assert found.stages[ACTIVATIONS, 0, 0] == near({None: 3 * one, 0: 0.0, 1: (4 - 1) * one + units - one}[layers])


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("weight", [2.0, 4.0])
def test_states_on_the_host_by_hand(zero, weight):
    """Adam: two states and the weights in fp32, which the host needs even where the device's weights are fp32 too, and gradients."""
    job, stack = job_of(optimizer="adam"), stack_with()
    stack = stack if weight == stack.weight_size(2.0) else stack.model_copy(update={"weight": "fp32", "gradient": "fp32"})
    assert stack.weight_size(2.0) == weight
    on, gradient = replace(machine_of(), stack=stack), stack.gradient_size(2.0)
    device, host = (memory(job, layout_of(Plan(dp=4, zero=zero, offload=what)), on) for what in ((), ("optimizer",)))
    ranks, size = 4 if zero else 1, job.model.parameters
    assert host.host[0] == near(size / ranks * (4 + 4 + 4 + gradient))
    assert device.host[0] == host.kinds["optimizer"][0] == 0.0
    assert device.kinds["optimizer"][0] == near(size / ranks * (8 + (4 if weight < 4 else 0)))
    assert host.kinds["gradients"][0] == (0.0 if zero >= 2 else near(device.kinds["gradients"][0]))


def test_weights_on_the_host_leave_a_device_neither_weights_nor_gradients():
    """ZeRO-Infinity: shards of two bytes beside twelve of states and two of gradients. All ranks together have each parameter once."""
    job = job_of(optimizer="adam")
    layout = layout_of(*(Plan(dp=dp, zero=3, offload=("optimizer", "weights")) for dp in (1, 2, 4, 8)))
    found = memory(job, layout, machine_with())
    assert (found.host * [1, 2, 4, 8]).tolist() == [near(job.model.parameters * (2 + 12 + 2))] * 4
    for kind in ("weights", "gradients", "optimizer"):
        assert found.kinds[kind].tolist() == [0.0] * 4


@pytest.mark.parametrize("layers", [0, 1, 2, 5])
def test_a_timeline_holds_at_most_what_memory_says_with_a_host(layers):
    """One stage: what stays, what a microbatch keeps, and the fullest backward pass are the memory of the step."""
    job, layout = job_of(layers=8), layout_of(Plan(offload=("activations",), offload_layers=layers))
    book = ledger(job, layout, machine_of(), alike(layout)[0])
    assert book.still[0] + book.kept.sum() + book.working.max() == near(memory(job, layout, machine_of()).total[0])


# ------------------------------------------------------------------------------------------ copies

AMOUNTS = {"kept": np.array([[20.0]]), "owned": np.array([[40.0]]), "weights": np.array([[2.0]])}


def copies_of(plan, *, job=None, bandwidth=64.0, bus=10.0, stack=None, batch=16):
    """Copies of a job on hosts of eight devices, whose bus reaches a half of its rate, and whose updates use an eighth of theirs."""
    network = SimpleNamespace(host=SimpleNamespace(bandwidth=np.array([bus])), parameters=SimpleNamespace(pcie_efficiency=np.array([0.5])))
    host = SimpleNamespace(bandwidth=np.array([bandwidth]), utilisation=np.array([0.125]))
    on = SimpleNamespace(host=host, stack=stack or stack_with(), node=8, network=network)
    on.host_rate = functools.partial(Machine.host_rate, on)
    found = host_copies(job or job_of(optimizer="adam"), layout_of(plan, batch=batch), on, **AMOUNTS)
    return {name: float(np.ravel(getattr(found, name))[0]) for name in vars(found)}


@pytest.mark.parametrize(("devices", "share"), [(1, 64.0), (2, 32.0), (8, 8.0), (16, 8.0)])
def test_devices_of_a_node_share_the_memory_of_its_host(devices, share):
    """40 parameters, each with 2 bytes of gradient, 2 of its weight and twice 12 of states, at an eighth of a device's share."""
    found = copies_of(Plan(dp=devices, zero=1, offload=("optimizer",)))
    assert found["update"] == near(40 * (2 + 2 * 12 + 2) / (share / 8))
    assert found["gradients"] == found["renewed"] == near(40 * 2 / 5)


def test_a_bus_is_no_faster_than_its_share_of_the_memory_behind_it():
    """Eight devices have 8 B/s of the host's memory each, less than half of a bus of 1000 B/s."""
    found = copies_of(Plan(dp=8, zero=3, offload=ALL), bus=1000.0)
    assert (found["activations"], found["fetched"]) == (near(20 / 8), near(40 * 2 / 8))


def test_layers_on_the_host_alone_are_copied():
    """Half of a model of two layers."""
    whole, half = (copies_of(Plan(dp=8, offload=("activations",), offload_layers=layers))["activations"] for layers in (2, 1))
    assert (whole, half) == (near(20 / 5), near(10 / 5))


def test_weights_that_are_the_masters_are_written_once():
    stack = stack_with().model_copy(update={"weight": "fp32", "gradient": "fp32"})
    found = copies_of(Plan(dp=8, zero=1, offload=("optimizer",)), stack=stack)
    assert found["update"] == near(40 * (4 + 2 * 12))


def test_a_service_fetches_weights_and_has_no_gradients():
    found = copies_of(Plan(dp=8, zero=3, offload=("weights",)), job=job_of(task="prefill"))
    assert (found["fetched"], found["stored"], found["activations"], found["update"]) == (near(40 * 2 / 5), 0.0, 0.0, 0.0)
