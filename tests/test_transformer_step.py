"""Steps of transformers: parts that add up, limits, laws of every axis, overlaps against the event engine."""

import itertools
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from blocks import block_kernels
from hypothesis import given
from sampled import every

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base import files
from crossflow.base.files import Document
from crossflow.cost.machine import Machine
from crossflow.cost.passes import hidden_in_pieces
from crossflow.engine.events import run_tasks
from crossflow.engine.runs.sharded import UnitTimes, sharded_passes
from crossflow.engine.runs.transformer import FIGURES, transformer_step
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.parallel.blocks import block_program, unit_places, units
from crossflow.parallel.shapes import counts
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.legality import plan_problem
from crossflow.parallel.strategy.mesh import TYPES
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.stages import Division, stage_layers
from crossflow.workload.frozen import Frozen
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.transformer import Routing

GPT = {
    "model": "transformer", "layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "gated": False, "vocabulary": 32000, "sequence": 1024,
    "positions": "learned", "norm": "layernorm", "biases": True, "tied_embeddings": True, "global_batch": 64, "dtype": "bf16",
}  # fmt: skip
MOE = {"experts": {"count": 8, "active": 2}, "tied_embeddings": False}
NETWORK = {"intra": {"fabric": "nvswitch", "bandwidth": "450 GB/s"}, "inter": {"fabric": "infiniband", "bandwidth": "50 GB/s"}}
STACKS = sorted(name for name, file in files.catalogue("templates").items() if file.parent.name == "software")
PLANS = [
    Plan(),
    Plan(tp=8),
    Plan(tp=2, cp=2, dp=2),
    Plan(tp=4, dp=4, zero=1, sequence_parallel=True, recompute="selective"),
    Plan(dp=16, zero=2, micro_batch=4),
    Plan(dp=32, zero=3, recompute="full"),
    Plan(dp=16, zero=3, shard_group=8),
    Plan(tp=2, pp=2, dp=2, recompute="full", recompute_layers=1),
    Plan(pp=4, dp=2),
    Plan(tp=2, pp=4, dp=2, virtual_stages=2, recompute="full"),
    Plan(tp=2, pp=2, dp=4, schedule="gpipe", micro_batch=2),
    Plan(pp=3, first_stage=2, dp=8),
    Plan(pp=2, virtual_stages=2, first_stage=3, last_stage=1, dp=8),
    Plan(tp=2, pp=2, dp=4, zero=1, offload=("optimizer", "activations")),
    Plan(dp=8, zero=3, offload=("optimizer",)),
    Plan(dp=16, zero=3, offload=("optimizer", "weights", "activations")),
    Plan(tp=4, attention_tp=1, embedding_tp=2, dp=4, micro_batch=4, zero=1, sequence_parallel=True),
    Plan(tp=8, mlp_tp=1, dp=2, pp=2, micro_batch=2, sequence_parallel=True, recompute="full"),
    Plan(dp=16, zero=3, unsharded=("attention", "embedding")),
    Plan(dp=16, zero=3, shard_group=2, apart=TYPES),
    Plan(dp=16, zero=3, shard_group=8, attention_shard_group=2, apart=("mlp",)),
    Plan(pp=4, dp=4, zero=3, recompute="full"),
    Plan(tp=2, pp=2, dp=4, virtual_stages=2, zero=3, sequence_parallel=True),
    Plan(tp=8, attention_tp=2, micro_batch=4, sequence_parallel=True, distant=("attention",)),
    Plan(pp=2, virtual_stages=3, dp=4),
    Plan(pp=4, virtual_stages=2, dp=2, zero=3, stage_layers=(0, 3, 1, 1, 1, 2, 0, 0)),
]
HOST = {"capacity": "2 TB", "bandwidth": "400 GB/s", "utilisation": 0.7}


def job_of(task="training", frozen=None, context=0, **changes):
    spec = TransformerSpec.model_validate({**GPT, **changes})
    return Job(model=spec.transformer(), dtype=spec.dtype, task=task, frozen=frozen, context=context)


def layout_of(*plans, batch=64):
    return Layout.of(plans, np.full(len(plans), float(batch)), 8)


def stack_of(name="megatron-lm-2022", host=True, **changes):
    """A shipped stack with other habits; without host costs the device alone decides."""
    stack, _ = load_stack(name)
    overlap = stack.overlap.model_copy(update={key: changes.pop(key) for key in list(changes) if key in type(stack.overlap).model_fields})
    costs = stack.host if host else stack.host.model_copy(update=dict.fromkeys(type(stack.host).model_fields, np.zeros(1)))
    return stack.model_copy(update={**changes, "overlap": overlap, "host": costs})


def machine_of(stack="megatron-lm-2022", free=False, **system):
    """Nodes of 8 H100 on InfiniBand; `free` without any cost of communication."""
    network = system.pop("network", NETWORK)
    if free:
        network = {level: {**entry, "bandwidth": "1e12 GB/s"} for level, entry in network.items()}
    spec, _ = resolve(
        Document(file="test", data={"template": "h100-sxm", "devices_per_node": 8, "network": network, "host": HOST, **system})
    )
    found = spec.network
    if free:
        times = [name for name in type(found.parameters).model_fields if name.startswith("launch") or name.endswith(("_step", "_fill"))]
        parameters = found.parameters.model_copy(update=dict.fromkeys(times, np.zeros(1)))
        found = found.model_copy(update={"parameters": parameters})
    return Machine(
        architecture=architecture(spec),
        network=found,
        node=8,
        host=spec.host,
        stack=stack if not isinstance(stack, str) else load_stack(stack)[0],
    )


def step(*plans, job=None, machine=None, batch=64):
    return transformer_step(job or job_of(), layout_of(*plans, batch=batch), machine or machine_of())


def possible(stack="megatron-lm-2022", model=None):
    balanced = load_stack(stack)[0].stages == "balanced"
    return [plan for plan in PLANS if plan_problem(plan, model or job_of().model, 64, balanced=balanced) is None]


# -------------------------------------------------------------------------------------------- what adds up


@pytest.fixture(
    scope="module",
    params=[(stack, kind, turn // 2) for turn, stack in enumerate(STACKS) for kind in every(2, ("gpt", "moe"), turn)],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def found(request):
    """Steps of plans that a stack can run, of two models."""
    stack, kind, turn = request.param
    return step(*every(2, possible(stack), turn), job=job_of(**({} if kind == "gpt" else MOE)), machine=machine_of(stack))


@pytest.mark.cases(10)
@pytest.mark.slow
def test_parts_of_a_step_add_up(found):
    for parts in (found.breakdown, found.bound):
        np.testing.assert_allclose(sum(parts.values()), found.total, rtol=1e-12)
        assert all((part >= -1e-12 * found.total).all() for part in parts.values())


@pytest.mark.slow
def test_no_more_communication_is_exposed_than_there_is(found):
    for name, exposed in found.exposed.items():
        assert (exposed <= found.communication[name] * (1 + 1e-9)).all(), name
        assert (exposed >= 0).all()
    np.testing.assert_allclose(sum(found.exposed.values()), found.breakdown["exposed_communication"], rtol=1e-9, atol=1e-15)


@pytest.mark.slow
def test_layer_types_and_what_stages_hand_over_add_up_to_the_step(found):
    sums = {what: sum(values for name, values in found.by_layer.items() if name.endswith(what)) for what in FIGURES}
    kernels = sum(time for name, time in found.bound.items() if name not in ("host", "network", "bubble"))
    np.testing.assert_allclose(sums["compute"], kernels, rtol=1e-9)
    np.testing.assert_allclose(sums["communication"], sum(found.communication.values()), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(sums["exposed"], found.breakdown["exposed_communication"], rtol=1e-9, atol=1e-15)
    for kind in {name.partition(".")[0] for name in found.by_layer}:
        assert (found.by_layer[f"{kind}.exposed"] <= found.by_layer[f"{kind}.communication"] * (1 + 1e-9) + 1e-15).all(), kind


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_one_device_sends_nothing(stack):
    found = step(Plan(), Plan(micro_batch=4, recompute="full"), machine=machine_of(stack))
    assert found.communication == {}
    assert found.sent[0].tolist() == found.sent[1].tolist() == found.breakdown["exposed_communication"].tolist() == [0.0, 0.0]
    assert found.breakdown["bubble"].max() == pytest.approx(0.0, abs=1e-12 * found.total.max())


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(("turn", "stack"), [*enumerate(("megatron-lm-2022", "nanotron", "pytorch-fsdp", "ideal"))])
def test_mixed_plans_are_each_alone(stack, turn):
    plans, machine = possible(stack), machine_of(stack)
    many = step(*plans, machine=machine)
    for i, plan in every(2, list(enumerate(plans)), turn):
        one = step(plan, machine=machine)
        for name in ("total", "flops", "model_flops", "traffic"):
            assert getattr(many, name)[i] == pytest.approx(getattr(one, name)[0], rel=1e-12)
        for name in ("breakdown", "communication", "exposed", "memory", "bound", "by_layer"):
            there, alone = getattr(many, name), getattr(one, name)
            for key, values in there.items():
                assert values[i] == pytest.approx(alone[key][0] if key in alone else 0.0, rel=1e-12, abs=1e-15), (name, key)
        assert [part[i] for part in many.sent] == pytest.approx([part[0] for part in one.sent], rel=1e-12)


@pytest.mark.slow
def test_points_of_an_evaluation_are_each_alone():
    """Through the whole composition, plans beside other numbers of devices."""
    system = {"template": "h100-sxm", "devices_per_node": 8, "network": NETWORK, "host": HOST}
    scenario = crossflow.from_dict({"system": system, "workload": GPT, "strategy": "dp1"})
    together = evaluate(scenario, {"strategy": PLANS})
    for i, plan in every(2, list(enumerate(PLANS))):
        alone = evaluate(scenario, {"strategy": [plan]})
        assert together.step_time[i] == pytest.approx(alone.step_time[0], rel=1e-12)
        assert together.feasible[i] == alone.feasible[0]


# -------------------------------------------------------------------------------------------- faster is faster


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["throughput.bf16", "levels.memory.bandwidth", "levels.l2.bandwidth", "network.intra.bandwidth", "network.inter.bandwidth"]
)
@pytest.mark.parametrize(("turn", "stack"), [*enumerate(("megatron-lm-2022", "nanotron", "pytorch-fsdp"))])
def test_more_of_anything_never_slows(path, stack, turn):
    system = {"template": "h100-sxm", "devices_per_node": 8, "network": NETWORK}
    for plan in every(2, (Plan(tp=8, dp=2), Plan(tp=2, pp=4, dp=2), Plan(dp=16, zero=3), Plan(dp=16, zero=1)), turn):
        scenario = crossflow.from_dict({"system": system, "workload": GPT, "strategy": str(plan), "software": stack})
        there = scenario.system
        for part in path.split("."):
            there = there[part] if isinstance(there, dict) else getattr(there, part)
        times = evaluate(scenario, {f"system.{path}": there[0] * np.geomspace(0.25, 16.0, 13)}).step_time
        assert (np.diff(times) <= 1e-9 * times[:-1]).all()
        assert times[0] > 0


@pytest.mark.cases(1)
@pytest.mark.parametrize("fabric", ["ideal", "nvswitch", "infinity-fabric", "hybrid-cube-mesh"])
def test_links_of_every_fabric_carry_its_collectives(fabric):
    """Four times the rate inside a node, and a tensor group over all of it."""
    slow, fast = (
        step(Plan(tp=8), machine=machine_of(network={**NETWORK, "intra": {"fabric": fabric, "bandwidth": f"{rate} GB/s"}})).communication
        for rate in (50, 200)
    )
    assert fast["all_reduce"][0] < 0.5 * slow["all_reduce"][0]


def test_something_gets_faster_with_each():
    """No resource is left out of the model: each decides some plan."""
    scenario = crossflow.from_dict(
        {
            "system": {"template": "h100-sxm", "devices_per_node": 8, "network": NETWORK},
            "workload": GPT,
            "strategy": "tp8-dp2",
            "software": "ideal",
        }
    )
    spec = scenario.system
    for path, value in {
        "throughput.bf16": spec.throughput["bf16"][0],
        "levels.memory.bandwidth": spec.levels["memory"].bandwidth[0],
    }.items():
        slow, fast = evaluate(scenario, {f"system.{path}": value * np.array([1.0, 2.0])}).step_time
        assert fast < 0.99 * slow


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS)
def test_ideal_software_is_never_slower(stack):
    """With the stages divided alike, as balancing by parameters is not always better, in the same kernels, those of all-reduces too."""
    other = stack_of(stack, stages="even")
    ideal = stack_of("ideal", stages="even", kernels=other.kernels, peer_all_reduce=other.peer_all_reduce)
    plans = every(2, possible(), STACKS.index(stack))
    slower, bound = (step(*plans, machine=machine_of(each)).total for each in (other, ideal))
    assert (bound <= slower * (1 + 1e-12)).all()


# -------------------------------------------------------------------------------------------- data parallelism


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("stack", ["megatron-lm-2022", "pytorch-fsdp", "nanotron", "ideal"])
@pytest.mark.parametrize("plan", [Plan(), Plan(tp=4), Plan(pp=4), Plan(tp=2, recompute="full", micro_batch=2)], ids=str)
def test_replicas_multiply_throughput_where_the_network_costs_nothing(stack, plan):
    machine = machine_of(stack_of(stack), free=True)
    one, eight = step(plan, machine=machine), step(replace(plan, dp=8), machine=machine, batch=8 * 64)
    assert eight.total[0] == pytest.approx(one.total[0], rel=1e-6)
    assert eight.flops[0] == pytest.approx(8 * one.flops[0], rel=1e-12)


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("rate", [5, 50])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_reductions_hide_behind_no_more_than_a_backward_pass(zero, rate):
    """A backward pass is the training step's work less the forward pass, of one microbatch; with ZeRO 2 each of the four has its own."""
    plan, network = Plan(dp=16, zero=zero), {**NETWORK, "inter": {"fabric": "infiniband", "bandwidth": f"{rate} GB/s"}}
    plain, beside = (step(plan, machine=machine_of(stack_of(host=False, data=data), network=network)) for data in (False, True))
    once = step(Plan(), batch=1, machine=machine_of(stack_of(host=False)))
    forward = step(Plan(), batch=1, job=job_of("forward"), machine=machine_of(stack_of(host=False)))
    hidden = plain.total[0] - beside.total[0]
    assert 0 < hidden <= (once.total[0] - forward.total[0]) * (4 if zero == 2 else 1)
    reductions = sum(plain.communication[name][0] for name in (("all_reduce",) if zero == 0 else ("reduce_scatter",)))
    assert hidden < reductions


@pytest.mark.cases(1)
@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("gather", [False, True])
def test_gradients_that_are_shared_out_are_reduced_with_each_microbatch(gather, data):
    """They have no place to be summed in whole; with one microbatch ZeRO 2 does what ZeRO 1 does."""
    machine = machine_of(stack_of(gather=gather, data=data))
    for micro in (1, 4):
        late, early = (step(Plan(dp=16, zero=zero, micro_batch=micro), machine=machine) for zero in (1, 2))
        assert early.communication["reduce_scatter"][0] == pytest.approx(4 / micro * late.communication["reduce_scatter"][0])
        assert early.communication["all_gather"][0] == pytest.approx(late.communication["all_gather"][0])
        if micro == 4:
            assert early.total[0] == pytest.approx(late.total[0], rel=0.01)  # what hides differs by a unit at the end
        else:
            assert early.total[0] > late.total[0]


@pytest.mark.parametrize(
    ("gradient", "zero", "sent"),
    [("weight", 0, 4), ("weight", 1, 4), ("weight", 2, 4), ("weight", 3, 6), ("fp32", 0, 8), ("fp32", 1, 6), ("fp32", 3, 8)],
)
def test_bytes_of_sharded_states(gradient, zero, sent):
    """Rajbhandari 2020, Sec. 7, in bytes a parameter: a reduce-scatter and an all-gather for an all-reduce, with zero 3 one more."""
    found = step(Plan(dp=16, zero=zero), batch=16, machine=machine_of(stack_of(gradient=gradient)))
    assert sum(found.sent)[0] == pytest.approx(sent * 15 / 16 * job_of().model.parameters, rel=0.03)


def test_autocast_keeps_and_gathers_fp32():
    """12 bytes a parameter travel with zero 3; weights of 4 bytes are the optimizer's own, which had a copy beside those of 2."""
    stack = stack_of(weight="fp32", gradient="fp32")
    found = step(Plan(dp=16, zero=3), batch=16, machine=machine_of(stack))
    assert sum(found.sent)[0] == pytest.approx(12 * 15 / 16 * job_of().model.parameters, rel=0.03)
    plain, cast = (step(Plan(), machine=machine_of(stack)).memory for stack in (stack_of(), stack))
    assert cast["weights"][0] == 2 * plain["weights"][0]
    assert cast["optimizer"][0] == pytest.approx(8 / 12 * plain["optimizer"][0], rel=1e-12)


def test_autocast_casts_once_a_microbatch():
    """Casts are of weights, so that microbatches eight times as large need an eighth of their time."""
    plans = [Plan(micro_batch=1), Plan(micro_batch=8)]
    plain, cast = (step(*plans, machine=machine_of(stack_of(weight=kept, gradient="fp32", host=False))).total for kept in ("dtype", "fp32"))
    one, eight = cast - plain
    assert one > 0
    assert one == pytest.approx(8 * eight, rel=0.1)


@pytest.mark.parametrize(("gradient", "weight", "moved"), [("fp32", "dtype", 8), ("weight", "dtype", 4), ("weight", "fp32", 8)])
def test_a_product_adds_to_the_sum_that_is_kept(gradient, weight, moved):
    """Bytes of an element of the weights' gradient, read and written: those of the sum, in whatever precision it is kept."""
    stack = stack_of(gradient=gradient, weight=weight)
    assert "accumulation" in stack.fused
    sums = [kernel.result for kernel in block_program(job_of(), layout_of(Plan()), stack).kernels if getattr(kernel, "adds", False)]
    assert sums
    assert set(sums) == {moved}


def test_sharded_gradients_are_reduced_every_microbatch():
    one, four = (step(Plan(dp=16, zero=3), batch=batch) for batch in (16, 64))
    assert sum(four.sent)[0] == pytest.approx(4 * sum(one.sent)[0], rel=1e-12)
    for name in ("all_gather", "reduce_scatter"):
        assert four.communication[name][0] == pytest.approx(4 * one.communication[name][0], rel=1e-12)


@pytest.mark.parametrize("plan", [Plan(dp=16), Plan(dp=16, zero=1), Plan(tp=4, dp=2)], ids=str)
def test_replicated_gradients_are_reduced_once_a_step(plan):
    names = ("all_reduce", "all_gather", "reduce_scatter") if plan.tp == 1 else ("all_gather",)
    one, four = (step(plan, batch=batch) for batch in (16, 64))
    for name in names:
        assert four.communication.get(name, [0])[0] == pytest.approx(one.communication.get(name, [0])[0], rel=1e-12)


# -------------------------------------------------------------------------------------------- recomputation, tasks


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-lm-2021"])
def test_full_recomputation_costs_another_forward_pass_of_the_layers(stack):
    """Not of embedding and head, which are never computed again."""
    machine = machine_of(stack_of(stack, host=False, product_slowdown=np.zeros(1)))  # which forward steps alone do not have
    none, full = step(Plan(), Plan(recompute="full"), machine=machine).total
    forward = step(Plan(), job=job_of("forward"), machine=machine).total[0]
    bare = step(Plan(), job=job_of("forward", layers=1), machine=machine).total[0]
    layer = (forward - bare) / (GPT["layers"] - 1)
    assert full - none == pytest.approx(GPT["layers"] * layer, rel=1e-9)


def test_recomputed_operations_are_not_the_models():
    none, selective, full = (step(Plan(recompute=again)) for again in ("none", "selective", "full"))
    assert none.model_flops[0] == selective.model_flops[0] == full.model_flops[0]
    assert none.flops[0] < selective.flops[0] < full.flops[0]
    assert none.total[0] < selective.total[0] < full.total[0]


@pytest.mark.parametrize("task", ["forward", "prefill", "decode"])
def test_services_only_pass_forward(task):
    job = job_of(task, context=100)
    forward, inputs, weights = counts(job, 2, 1, Division(), False)
    assert forward.sum() > 0
    assert inputs.sum() == weights.sum() == 0
    alone, replicas = step(Plan(), job=job), step(Plan(dp=16), job=job, batch=16 * 64)
    assert replicas.total[0] == pytest.approx(alone.total[0], rel=1e-12)
    assert replicas.communication == {}


def test_a_token_that_is_written_costs_less_than_a_prompt_and_more_with_its_context():
    machine = machine_of(stack_of(host=False))
    short, long = (step(Plan(micro_batch=64), job=job_of("decode", context=context), machine=machine).total[0] for context in (128, 1024))
    assert short < long
    assert long < step(Plan(micro_batch=64), job=job_of("prefill"), machine=machine).total[0]


def test_latent_attention_reads_its_cache_as_it_is():
    """A written token of DeepSeek's attention reads weights and latents once, on every rank of a tensor group."""
    latent = {"layers": 4, "latent": {"query_rank": 384, "kv_rank": 512, "nope": 128, "rope": 64, "value": 128}, "vocabulary": 1024}
    for plan in (Plan(micro_batch=64), Plan(tp=4, micro_batch=64)):
        machine = machine_of(stack_of("megatron-core", host=False))
        found = step(plan, job=job_of("decode", context=4096, positions="rotary", **latent), machine=machine)
        cache = 64 * 4 * 4096 * (512 + 64) * 2
        held = plan.tp * (found.memory["weights"][0] + cache)
        assert held < found.traffic[0] < 1.25 * held


@pytest.mark.parametrize("every", [1, 2])
def test_all_wait_for_the_fullest_rank_and_do_no_more_for_it(every):
    plan = Plan(dp=8, ep=8, micro_batch=2)
    experts = {"count": 16, "active": 2, "every": every}
    even, uneven = (step(plan, job=job_of(experts={**experts, "uneven": factor})) for factor in (1.0, 1.5))
    assert uneven.total > even.total
    assert uneven.by_layer["experts.compute"] > 1.2 * even.by_layer["experts.compute"]
    assert uneven.by_layer["attention.compute"] == even.by_layer["attention.compute"]
    assert uneven.memory["activations"] > even.memory["activations"]
    assert uneven.memory["weights"] == even.memory["weights"]
    for amount in ("flops", "energy", "traffic", "sent"):
        assert np.array_equal(getattr(uneven, amount), getattr(even, amount)), amount


def test_tokens_that_travel_once_to_a_node():
    """A token leaves once for each node that has any of its experts, and inside a node once for each rank."""
    experts = {"count": 32, "active": 8, "ffn": 512}

    def both(plan):
        return (step(plan, job=job_of(experts=experts), machine=machine_of(stack_of(dispatch=way))) for way in ("copies", "nodes"))

    every, once = both(Plan(dp=8, ep=8))
    to_ranks = Routing(experts=32, active=8).reached(np.array([8.0]))[0]
    assert once.sent[0] == pytest.approx(every.sent[0] * to_ranks / 8.0, rel=0.05)  # the rest is gradients
    assert once.total < every.total
    every, once = both(Plan(dp=32, ep=32))
    assert once.total < every.total
    rows, nodes = 64 * GPT["sequence"] * 2 * 2 * GPT["layers"], 4.0  # tokens that go there and back, forward and backward
    reached = Routing(experts=32, active=8).reached(np.array([nodes]))[0]
    saved = (8 - reached) * (1 - 1 / nodes) * rows * GPT["hidden"] * 2
    assert 32 * (every.sent[1] - once.sent[1]) == pytest.approx(saved, rel=1e-9)


def test_a_written_token_reads_only_the_experts_it_is_sent_to():
    """One request of a sparse model costs about the memory traffic of its active weights, thousands that of all."""
    machine = machine_of(stack_of(host=False))
    sparse = {"experts": {"count": 64, "active": 2}}
    one, many = (
        step(Plan(micro_batch=batch), job=job_of("decode", context=128, **sparse), machine=machine, batch=batch).total[0]
        for batch in (1, 2048)
    )
    dense = step(Plan(), job=job_of("decode", context=128, ffn=2 * 8192), machine=machine, batch=1).total[0]
    assert dense < one < 2 * dense
    assert many > 10 * one


def test_tokens_written_over_a_pipeline_follow_each_other():
    """A microbatch comes round after all four stages, or when the slowest of them has passed all others."""
    job, machine = job_of("decode", context=100), machine_of(stack_of(host=False), free=True)
    times = {many: step(Plan(pp=4, micro_batch=4), job=job, machine=machine, batch=4 * many).total[0] for many in (1, 2, 8, 16)}
    slowest = (times[16] - times[8]) / 8
    assert times[1] == times[2] > 2 * slowest
    for many, time in times.items():
        assert time == pytest.approx(max(times[1], many * slowest), rel=1e-9)
    alone = step(Plan(pp=4, micro_batch=4), job=job, machine=machine, batch=4)
    assert alone.breakdown["bubble"][0] > 0.5 * alone.total[0]


def test_a_written_token_needs_its_decoders_operations_alone():
    """Two operations a weight of the decoder and its head, and the scores of its context and of the encoder's tokens."""
    longer = {"encoder": {"layers": 24, "sequence": 512}}
    found = step(Plan(), job=job_of("decode", context=100, **longer), machine=machine_of(), batch=1)
    assert (
        found.model_flops[0]
        == step(Plan(), job=job_of("decode", context=100, encoder={"layers": 2, "sequence": 512}), batch=1).model_flops[0]
    )
    assert found.model_flops[0] < 1.1 * found.flops[0]


def test_an_encoder_is_done_when_its_decoder_writes():
    job = job_of("decode", context=10, encoder={"layers": 24, "sequence": 512})
    longer = job_of("decode", context=10, encoder={"layers": 48, "sequence": 512})
    assert counts(job, 2, 1, Division(), False)[0].sum() > 0
    machine = machine_of(stack_of(host=False))
    one, two = (step(Plan(), job=j, machine=machine, batch=1).total[0] for j in (job, longer))
    assert two == pytest.approx(one, rel=1e-12)
    passed = step(Plan(), job=job_of("prefill", encoder={"layers": 24, "sequence": 512}), machine=machine, batch=1).total[0]
    assert one < passed


# -------------------------------------------------------------------------------------------- frozen layers

BODY = frozenset({"embedding", "attention", "mlp"})


@pytest.mark.parametrize(
    ("frozen", "inputs", "weights"),
    [
        (None, [1, 8, 8, 1], [1, 8, 8, 1]),
        (Frozen(types=BODY, layers=frozenset()), [0, 0, 0, 0], [0, 0, 0, 1]),
        (Frozen(types=frozenset({"embedding"}), layers=frozenset(range(6))), [0, 2, 2, 1], [0, 2, 2, 1]),
        (Frozen(types=frozenset({"mlp"}), layers=frozenset()), [1, 8, 8, 1], [1, 8, 0, 1]),
        (Frozen(types=frozenset({"head"}), layers=frozenset({7})), [1, 8, 8, 1], [1, 7, 7, 0]),
    ],
    ids=["nothing", "all but the head", "lower layers", "mlps", "the upper end"],
)
def test_which_gradients_frozen_layers_need(frozen, inputs, weights):
    """Columns: embedding, attention, MLP, head. The lowest part that trains needs no gradient of its input."""
    found = counts(job_of(frozen=frozen), 1, 1, Division(), False)
    assert found[0].sum(axis=0).tolist() == [1, 8, 8, 1]
    lowest = 1 if frozen == Frozen(types=frozenset({"embedding"}), layers=frozenset(range(6))) else 0
    assert found[1].sum(axis=0).tolist() == [inputs[0], inputs[1] - lowest, *inputs[2:]]
    assert found[2].sum(axis=0).tolist() == weights


def test_all_frozen_but_the_head_is_little_more_than_a_forward_pass():
    frozen = Frozen(types=BODY, layers=frozenset())
    job, whole, forward = (
        job_of(frozen=frozen, tied_embeddings=False),
        job_of(tied_embeddings=False),
        job_of("forward", tied_embeddings=False),
    )
    tuned, trained, passed = (step(Plan(dp=16), job=each) for each in (job, whole, forward))
    head = 2.0 * 64 * GPT["sequence"] * GPT["hidden"] * GPT["vocabulary"]
    assert tuned.model_flops[0] == pytest.approx(passed.model_flops[0] + head, rel=1e-12)
    assert tuned.total[0] < 0.6 * trained.total[0]
    share = job.model.head.parameters / whole.model.parameters
    assert sum(tuned.sent)[0] == pytest.approx(share * sum(trained.sent)[0], rel=1e-9)
    assert tuned.memory["optimizer"][0] == pytest.approx(share * trained.memory["optimizer"][0], rel=1e-9)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("plan", [Plan(dp=16, zero=zero) for zero in (0, 1, 3)], ids=["zero 0", "zero 1", "zero 3"])
def test_frozen_weights_are_neither_reduced_nor_updated(plan):
    frozen = Frozen(types=BODY | {"head"}, layers=frozenset())
    found = step(plan, job=job_of(frozen=frozen))
    forward = step(plan, job=job_of("forward"))
    assert "reduce_scatter" not in found.communication
    assert "all_reduce" not in found.communication
    assert found.memory["optimizer"][0] == found.memory["gradients"][0] == 0
    assert found.model_flops[0] == pytest.approx(forward.model_flops[0], rel=1e-12)
    assert found.total[0] == step(plan, job=replace(job_of(frozen=frozen), optimizer_states=20)).total[0]
    assert step(plan).total[0] < step(plan, job=replace(job_of(), optimizer_states=20)).total[0]


# -------------------------------------------------------------------------------------------- published counts


def test_operations_of_gpt3_are_six_n_d_and_attention():
    """6 N D (Kaplan 2020) and, of the scores that the causal mask leaves, 6 l h s D of attention."""
    scenario = crossflow.from_dict(
        {"system": {"template": "a100-ib-cluster", "nodes": 128}, "workload": "gpt3-175b", "strategy": "tp8-pp8-dp16"}
    )
    job, batch = scenario.job(), scenario.workload_batch
    found = step(Plan(tp=8, pp=8, dp=16), job=job, machine=machine_of("megatron-lm-2021"), batch=batch)
    tokens = batch * job.model.tokens
    attention = 6.0 * 96 * 12288 * job.model.tokens
    parameters = job.model.parameters - job.model.embedding.vectors  # a tied table is the head's product
    assert found.model_flops[0] == pytest.approx((6.0 * parameters + attention) * tokens, rel=1e-3)


def test_operations_do_not_depend_on_the_plan():
    found = step(*possible())
    np.testing.assert_allclose(found.model_flops, found.model_flops[0], rtol=1e-12)


@pytest.mark.cases(12)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "kind"), [(stack, kind) for turn, stack in enumerate(STACKS) for kind in every(3, ("causal", "window", "experts"), turn)]
)
def test_shares_of_the_peak(stack, kind):
    """What the model needs is done, and no more than the devices can do: mfu <= hfu <= 1."""
    changes = {"causal": {}, "window": {"window": 128}, "experts": {**MOE, "sequence": 16384}}[kind]
    machine, job = machine_of(stack), job_of(**changes)
    plans = every(2, possible(stack, job.model), STACKS.index(stack) // 3)
    found = step(*plans, job=job, machine=machine)
    peak = machine.architecture.throughput["bf16"] * np.array([plan.devices for plan in plans]) * found.total
    assert ((found.model_flops > 0) & (found.model_flops <= found.flops) & (found.flops <= peak)).all()


KINDS_OF_JOBS = [
    {}, {"window": 128}, {"window": {"size": 256, "chunked": True}}, {"experts": {"count": 8, "active": 2, "capacity": 0.5}},
    {"kv_heads": 2}, {"encoder": {"layers": 2, "sequence": 512}}, {"latent": {"kv_rank": 64, "nope": 64, "rope": 32, "value": 64}},
]  # fmt: skip


@pytest.mark.cases(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "stack", "changes"),
    [
        (task, stack, changes)
        for turn, (task, changes) in enumerate(itertools.product(("training", "forward", "prefill", "decode"), KINDS_OF_JOBS))
        for stack in every(2, ("megatron-lm-2021", "megatron-core"), turn)
    ],
    ids=str,
)
def test_what_is_needed_is_done(task, stack, changes):
    job = replace(job_of(task, context=600, **changes), cached=700 if task == "decode" else 0)
    plans = [Plan(dp=4), Plan(tp=4), Plan(tp=4, recompute="selective"), Plan(dp=4, recompute="full"), Plan(pp=2, dp=2)]
    found = step(*(plans if task == "training" else plans[:2]), job=job, machine=machine_of(stack))
    assert (found.flops >= found.model_flops * (1 - 1e-12)).all()


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"window": 128}, {"causal": False}], ids=str)
def test_fused_attention_does_what_the_model_needs_and_scores_once_more(changes):
    """Forward to the last digit; its backward pass computes the scores again, a fifth product (Dao 2022). Unfused kernels do all scores."""
    needs = {stack: [] for stack in ("megatron-core", "megatron-lm-2021")}
    for stack, found in needs.items():
        for task in ("forward", "training"):
            job, layout = job_of(task, **changes), layout_of(Plan())
            done, machine = step(Plan(), job=job, machine=machine_of(stack)), machine_of(stack)
            pointwise = 64 * pointwise_flops(job, layout, machine.stack)
            found.append(done.flops[0] - pointwise - done.model_flops[0])
    forward = 64 * 8 * 2 * 1024 * 2048 * float(job.seen(job.model.layers[0].parts[0].attention, 1024))
    assert needs["megatron-core"] == pytest.approx([0, forward], abs=1e-6 * forward)
    masked = 64 * 8 * 4 * 1024 * 2048 * 1024 - 2 * forward
    assert needs["megatron-lm-2021"] == pytest.approx([masked, 3 * masked], abs=1e-6 * forward)


def pointwise_flops(job, layout, stack):
    """Operations of a microbatch's kernels that are neither products nor attention."""
    kernels, occurs = block_kernels(job, layout, stack), {"0": 8.0}
    phases = ("forward", "end", "input", "weight") if job.training else ("forward", "end")
    return sum(occurs.get(unit[0], 1.0) * float(np.sum(flops)) for unit, phase, _, flops, _ in kernels.passes if phase in phases)


# -------------------------------------------------------------------------------------------- overlaps

STREAMS = st.tuples(st.integers(1, 40), *[st.floats(1e-6, 1e2)] * 3)


def passes(layers, c, g, r, *, ahead):
    """Passes forward and backward through layers that compute c, gather g and reduce r each."""
    zero, times = np.zeros((1, 1)), [np.array([[each]]) for each in (c, g, r)]
    units = tuple(UnitTimes(before=zero, compute=times[0], arrive=times[1], leave=leave, host=zero) for leave in (zero, times[2]))
    often = np.full((3, 1, 1), float(layers))
    forward, backward = sharded_passes(((0,),), often, (*units, zero, zero, zero), [layers * times[0]] * 2, zero, ahead=ahead, whole=False)
    return float(forward[0, 0]), float(backward[0, 0])


@given(STREAMS)
def test_gathering_ahead_is_two_streams(case):
    """g1 g2 ... on one stream, c1 c2 ... on the other, each c after its g."""
    layers, c, g, _ = case
    after = [()] * layers + [(i,) for i in range(layers)]
    _, ends = run_tasks([g] * layers + [c] * layers, after, ["network"] * layers + ["device"] * layers)
    assert passes(*case, ahead=True)[0] == pytest.approx(ends.max(), rel=1e-12)
    assert passes(*case, ahead=False)[0] == pytest.approx(layers * (c + g), rel=1e-12)


@given(STREAMS)
def test_reducing_behind_is_two_streams(case):
    """g1 g2 r1 g3 r2 ... on one stream, each c after its g, each r after its c."""
    layers, c, g, r = case
    sends = [("g", 0)] + [task for i in range(1, layers) for task in (("g", i), ("r", i - 1))] + [("r", layers - 1)]
    tasks = sends + [("c", i) for i in range(layers)]
    number = {task: i for i, task in enumerate(tasks)}
    after = [() if kind == "g" else (number["c" if kind == "r" else "g", i],) for kind, i in tasks]
    durations = [{"g": g, "r": r, "c": c}[kind] for kind, _ in tasks]
    _, ends = run_tasks(durations, after, ["device" if kind == "c" else "network" for kind, _ in tasks])
    assert passes(*case, ahead=True)[1] == pytest.approx(ends.max(), rel=1e-9)
    assert passes(*case, ahead=False)[1] == pytest.approx(layers * (c + g + r), rel=1e-12)


@given(st.integers(2, 16), *[st.floats(1e-6, 1e2)] * 2)
def test_a_gather_in_pieces_is_two_streams(ranks, piece, hop):
    """Pieces come one after the other while those that are there are multiplied; a scatter is the same backward in time."""
    sends, products = [("hop", i) for i in range(1, ranks)], [("product", i) for i in range(ranks)]
    number = {task: i for i, task in enumerate(sends + products)}
    after = [() for _ in sends] + [() if i == 0 else (number["hop", i],) for _, i in products]
    durations = [hop] * len(sends) + [piece] * len(products)
    _, ends = run_tasks(durations, after, ["network"] * len(sends) + ["device"] * len(products))
    sent, product = (np.array([value]) for value in ((ranks - 1) * hop, ranks * piece))
    hidden = hidden_in_pieces(sent, product, np.array([float(ranks)]))
    assert (product + sent - hidden)[0] == pytest.approx(ends.max(), rel=1e-9)


def test_pieces_travel_beside_products_with_sequence_parallelism_alone():
    for apart, together in ((Plan(tp=8, dp=2), False), (Plan(tp=8, dp=2, sequence_parallel=True), True)):
        backward, pipelined = (step(apart, machine=machine_of(stack_of(host=False, tensor=value))) for value in ("backward", "pipelined"))
        assert (pipelined.total < backward.total) == together
        assert pipelined.communication.keys() == backward.communication.keys()
        assert sum(pipelined.exposed.values()) <= sum(backward.exposed.values())


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize("what", ["data", "gather", "pipeline", "context", "optimizer", "tensor"])
def test_overlap_never_slows_and_sometimes_helps(what):
    plans = {
        "data": Plan(dp=16), "gather": Plan(dp=16, zero=3), "pipeline": Plan(pp=4, dp=8), "context": Plan(cp=8, dp=2),
        "optimizer": Plan(dp=16, zero=1), "tensor": Plan(tp=8, dp=2),
    }  # fmt: skip
    values = ("none", "backward") if what == "tensor" else (False, True)
    stack = "megatron-core" if what == "context" else "megatron-lm-2022"  # unfused attention has no ring
    apart, beside = (step(*possible(), plans[what], machine=machine_of(stack_of(stack, host=False, **{what: value}))) for value in values)
    assert (beside.total <= apart.total * (1 + 1e-12)).all()
    assert beside.total[-1] < apart.total[-1]
    np.testing.assert_allclose(sum(beside.communication.values()), sum(apart.communication.values()), rtol=1e-9)


def test_a_slow_host_decides_and_is_told():
    host = stack_of().host.model_copy(update={"kernel": np.array([1e-2])})
    fast, slow = (step(Plan(), machine=machine_of(stack)) for stack in (stack_of(), stack_of().model_copy(update={"host": host})))
    assert slow.total[0] > 5 * fast.total[0]
    assert slow.bound["host"][0] > 0.8 * slow.total[0]
    assert slow.breakdown["compute"][0] == fast.breakdown["compute"][0]


# -------------------------------------------------------------------------------------------- narrow types


def test_eight_bits_halve_the_time_of_products_with_weights_and_nothing_else():
    """No products of weights are bound by memory here: computing falls by half, but for attention and head."""
    plan, machine = Plan(micro_batch=16), machine_of("megatron-core")
    wide, narrow = (step(plan, job=job_of(dtype=dtype, vocabulary=2), machine=machine) for dtype in ("bf16", "fp8"))
    products, scores = 12 * GPT["hidden"], GPT["sequence"]  # of a layer's operations forward a token, over 2 h
    assert 0.5 < narrow.breakdown["compute"][0] / wide.breakdown["compute"][0] < 0.5 + scores / products
    assert narrow.flops[0] == wide.flops[0]


def test_a_service_keeps_narrow_weights_and_a_training_run_wide_ones_beside_narrow_copies():
    machine, plans = machine_of("vllm"), Plan()
    wide, narrow = (step(plans, job=job_of("decode", dtype=dtype, context=64), machine=machine) for dtype in ("bf16", "fp8"))
    table = GPT["vocabulary"] * GPT["hidden"]  # and positions, with the last norm, stay wide
    ends = 2 * (table + GPT["sequence"] * GPT["hidden"] + 2 * GPT["hidden"])
    assert narrow.memory["weights"][0] - ends == pytest.approx((wide.memory["weights"][0] - ends) / 2)
    wide, narrow = (step(plans, job=job_of(dtype=dtype)) for dtype in ("bf16", "fp8"))
    assert narrow.memory["weights"][0] == wide.memory["weights"][0]
    assert narrow.memory["buffers"][0] - wide.memory["buffers"][0] == pytest.approx(wide.memory["weights"][0] - ends)
    wide, narrow = (step(Plan(dp=8, zero=3), job=job_of(dtype=dtype)) for dtype in ("bf16", "fp8"))
    assert narrow.memory["buffers"][0] - wide.memory["buffers"][0] == pytest.approx((8 * wide.memory["weights"][0] - ends) / 8, rel=0.01)


# -------------------------------------------------------------------------------------------- layers of stages


@pytest.mark.cases(1)
@pytest.mark.parametrize("plan", [Plan(pp=4, dp=2), Plan(pp=3, dp=4), Plan(pp=2, virtual_stages=3, dp=4), Plan(pp=8, schedule="gpipe")])
def test_a_list_of_even_stages_is_the_default(plan):
    listed = replace(plan, stage_layers=stage_layers(8, plan.pp * plan.virtual_stages))
    even, other = step(plan), step(listed)
    assert (even.total[0], even.memory["activations"][0]) == (other.total[0], other.memory["activations"][0])


def added(*layers):
    """Time that a further microbatch adds to a full pipeline of four stages."""
    few, many = (step(Plan(pp=4, stage_layers=layers), batch=batch).total[0] for batch in (64, 128))
    return (many - few) / 64


@pytest.mark.slow
def test_a_further_microbatch_takes_what_the_busiest_stage_takes():
    assert added(1, 5, 1, 1) == pytest.approx(added(1, 5, 2, 0), rel=1e-9)
    assert added(1, 5, 1, 1) - added(1, 4, 2, 1) == pytest.approx(added(0, 7, 1, 0) - added(0, 6, 2, 0), rel=1e-9)


def test_plans_of_different_lists_are_each_alone():
    plans = [Plan(pp=4, stage_layers=layers) for layers in ((), (0, 4, 4, 0), (5, 1, 1, 1), (2, 2, 2, 2))]
    many = step(*plans)
    for i, plan in enumerate(plans):
        assert many.total[i] == pytest.approx(step(plan).total[0], rel=1e-12)


@pytest.mark.parametrize(("devices", "dp", "measured"), [(8192, 64, 430e12), (16384, 128, 400e12)])
def test_llama_405b_with_a_chunk_a_layer(devices, dp, measured):
    """The Llama 3 Herd of Models, arXiv:2407.21783, Table 4 and Sec. 3.3.2: 16 stages of 8 chunks, the first and the last without a layer.

    Nothing was fitted to these runs. Operations are counted as Megatron counts them, all scores masked or not.
    """
    workload = {"model": "llama3.1-405b", "global_batch": 2048}
    given = {"system": {"template": "dgx-h100", "devices": devices}, "workload": workload, "strategy": f"tp8-dp{dp}-pp16-v8-z1-sp"}
    scenario = crossflow.from_dict(given)
    model, step = scenario.job().model, float(crossflow.predict(scenario).score.step_time[0])
    operations = 6.0 * model.parameters + 12.0 * model.depth * model.embedding.width * model.tokens
    assert operations * 2048 * model.tokens / (step * devices) == pytest.approx(measured, rel=0.05)


# ------------------------------------------------------------------------------------------ kinds of layers

ALTERNATING = {"window": {"size": 128, "pattern": ["local", "local", "global"]}, "layers": 12}


def told_apart(job):
    """The job with layers of which no two are one kind."""
    layers = tuple(replace(layer, parts=tuple(map(replace, layer.parts))) for layer in job.model.layers)
    return replace(job, model=replace(job.model, layers=layers))


def test_layers_of_one_kind_are_one_set_of_units():
    job = job_of(**ALTERNATING)
    inner = [f"{i}.{j}" for i in "01" for j in ("0.attention", "1.mlp")]
    assert [name for name, _ in units(job.model)] == ["embedding", *inner, "head"]
    assert unit_places(job.model).tolist() == [0, *[1, 2, 3, 4] * 4, 5]
    assert len(units(told_apart(job).model)) == 18


@pytest.mark.slow
@pytest.mark.parametrize("plan", [Plan(dp=8), Plan(dp=8, zero=3, recompute="full"), Plan(pp=4, dp=2), Plan(pp=3, dp=2, first_stage=2)])
@pytest.mark.parametrize("frozen", [None, Frozen(layers=frozenset({0, 1, 4}), types=frozenset({"mlp"}))])
def test_a_step_is_the_same_whether_layers_of_one_kind_are_told_apart(plan, frozen):
    job = job_of(frozen=frozen, **ALTERNATING)
    one, other = (step(plan, job=each, machine=machine_of("pytorch-fsdp")) for each in (job, told_apart(job)))
    for name in ("total", "flops", "energy", "traffic"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12), name
    assert one.memory["activations"] == pytest.approx(other.memory["activations"], rel=1e-12)
