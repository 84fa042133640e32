"""A small transformer worked out by hand: parameters, gradients that travel, launches, energy, copies, remedies, activations."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from blocks import block_kernels

from crossflow.answers.evaluation.remedies import _changes
from crossflow.base.files import Document
from crossflow.cost.handovers import boundaries
from crossflow.cost.machine import Machine
from crossflow.cost.passes import host_copies, optimizer_costs, steps_of
from crossflow.engine.runs.memory import KINDS, in_flight, memory
from crossflow.engine.runs.sharded import UnitTimes, backward_pass, forward_pass
from crossflow.engine.runs.slot_events import Laid
from crossflow.engine.runs.slots import flow
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.runs.uneven import Uneven, World, in_step
from crossflow.engine.timeline.pipeline import walk_of
from crossflow.engine.timeline.record import TENSOR
from crossflow.hardware.architecture.software import load_stack
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.parallel.activations import _activation, _state_space, activations
from crossflow.parallel.blocks import PHASES, units
from crossflow.parallel.strategy.again import further_levels
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.schedules import pipeline_order
from crossflow.parallel.tables import tables_of
from crossflow.parallel.weights import weights_of
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

near = functools.partial(pytest.approx, rel=1e-12, abs=0.0)
GPT = {
    "model": "transformer", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "gated": False, "vocabulary": 1000, "sequence": 32,
    "positions": "rotary", "norm": "rmsnorm", "biases": False, "tied_embeddings": False, "global_batch": 8, "dtype": "bf16",
}  # fmt: skip
MOE = {"experts": {"count": 8, "active": 2}}
ATTENTION, MLP, NORM, TABLE = 64 * 192 + 64 * 64, 2 * 64 * 256, 64, 1000 * 64


def job_of(task="training", **changes):
    spec = TransformerSpec.model_validate({**GPT, **changes})
    return Job(model=spec.transformer(), dtype=spec.dtype, task=task)


def layout_of(*plans, batch=8):
    return Layout.of(plans, np.full(len(plans), float(batch)), 8)


def stack_of(name="megatron-lm-2022", **changes):
    return load_stack(name)[0].model_copy(update=changes)


@functools.cache
def machine_of(name="megatron-lm-2022"):
    spec, _ = resolve(Document(file="test", data={"template": "a100-80gb", "devices_per_node": 8}))
    return Machine(architecture=architecture(spec), network=spec.network, node=8, host=spec.host, stack=load_stack(name)[0])


def by_unit(job, values):
    return dict(zip([name for name, _ in units(job.model)], values[:, 0].tolist(), strict=True))


# ------------------------------------------------------------------------------------------ weights


def test_parameters_of_every_unit_by_hand():
    job = job_of()
    found = weights_of(job, layout_of(Plan()), stack_of())
    assert by_unit(job, found.parameters) == {
        "embedding": TABLE, "0.0.attention": ATTENTION + NORM, "0.1.mlp": MLP + NORM, "head": TABLE + NORM,
    }  # fmt: skip
    assert job.model.parameters == 2 * (ATTENTION + MLP + 2 * NORM) + 2 * TABLE + NORM


@pytest.mark.parametrize(("plan", "attention", "mlp"), [(Plan(tp=2), 2, 2), (Plan(tp=4, dp=2), 4, 4)])
def test_tensor_ranks_divide_matrices_and_keep_norms(plan, attention, mlp):
    job = job_of()
    found = by_unit(job, weights_of(job, layout_of(plan), stack_of()).parameters)
    assert (found["0.0.attention"], found["0.1.mlp"]) == (ATTENTION / attention + NORM, MLP / mlp + NORM)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_experts_and_what_all_tokens_pass_add_up(ep):
    """Eight experts of two matrices among the ranks that share them, a router and a norm on each rank."""
    job = job_of(**MOE)
    found = by_unit(job, weights_of(job, layout_of(Plan(dp=8, ep=ep)), stack_of()).parameters)
    (name,) = [name for name in found if name.startswith("0.1")]
    assert found[name] == 8 * MLP / ep + 64 * 8 + NORM


def test_tied_tables_are_held_once_on_one_stage_and_twice_on_two():
    job = job_of(tied_embeddings=True)
    one, two = (by_unit(job, weights_of(job, layout_of(plan), stack_of()).parameters) for plan in (Plan(), Plan(pp=2)))
    assert (one["embedding"], one["head"]) == (TABLE, NORM)
    assert (two["embedding"], two["head"]) == (TABLE, TABLE + NORM)


ZERO = [
    # ZeRO stage, share of the states that a rank keeps, collectives with their role and bytes a parameter, how often in 2 microbatches
    (0, 1, {("all_reduce", "reduce", "gradient", 1)}),
    (1, 4, {("reduce_scatter", "reduce", "gradient", 1), ("all_gather", "regather", "weight", 1)}),
    (2, 4, {("reduce_scatter", "reduce", "gradient", 2), ("all_gather", "regather", "weight", 1)}),
    (3, 4, {("reduce_scatter", "reduce", "gradient", 2), ("all_gather", "gather", "weight", 4)}),
]


@pytest.mark.parametrize(("zero", "share", "messages"), ZERO)
def test_gradients_and_weights_travel_as_zero_says(zero, share, messages):
    job, stack, layout = job_of(), stack_of(), layout_of(Plan(dp=4, zero=zero))
    found, sizes = weights_of(job, layout, stack), {"gradient": stack.gradient_size(2.0), "weight": stack.weight_size(2.0)}
    assert found.owned[1, 0] == (ATTENTION + NORM) / share
    sent = {
        (one.collective, one.role): (one.size[1, 0], one.rounds(layout)[0])
        for one in found.messages
        if one.size[1, 0] and one.group.several
    }
    assert sent == {(kind, role): ((ATTENTION + NORM) * sizes[of], often) for kind, role, of, often in messages}
    once = sum((2 if kind == "all_reduce" else 1) * 3 / 4 * (ATTENTION + NORM) * sizes[of] * often for kind, _, of, often in messages)
    assert found.moved[:, 1, 0].tolist() == [near(once), 0.0]


# ------------------------------------------------------------------------------------------ kernels, launches and energy


@pytest.mark.parametrize("changes", [{}, MOE], ids=["gpt", "moe"])
def test_the_host_issues_every_kernel_and_every_call(changes):
    """On one device: products, fused attention and passes, each with its launches, of the phases of a pass."""
    job, layout, on = job_of(**changes), layout_of(Plan()), machine_of()
    rows, names = block_kernels(job, layout, on.stack), [name for name, _ in units(job.model)]
    launches = np.zeros((len(names), len(PHASES)))
    for kernels in (rows.products, rows.passes, rows.scores):
        for one in kernels:
            launches[names.index(one.unit), PHASES.index(one.phase)] += float(np.max(getattr(one, "launches", getattr(one, "number", 1.0))))
    forward = launches[:, [PHASES.index("forward"), PHASES.index("end")]].sum(axis=1)
    steps = steps_of(job, layout, on, tables_of(job, layout, on.stack))
    kernel, layer = float(on.stack.host.kernel[0]), float(on.stack.host.layer[0])
    assert steps.passes.host[0, :, 0].tolist() == [near(count * kernel + layer) for count in forward]
    assert steps.passes.host[1, :, 0].tolist() == [near(count * kernel + layer) for count in launches[:, PHASES.index("input")]]
    assert steps.passes.host_weight[:, 0].tolist() == pytest.approx((launches[:, PHASES.index("weight")] * kernel).tolist(), rel=1e-12)


def test_a_layer_that_is_computed_again_stalls_the_device_once():
    """Not each of its parts, nor embedding and head."""
    job, layout, times = job_of(), layout_of(Plan(recompute="full")), []
    for stall in (0.0, 1.0):
        own = machine_of()
        on = replace(own, stack=own.stack.model_copy(update={"host": own.stack.host.model_copy(update={"stall": np.array([stall])})}))
        times.append(steps_of(job, layout, on, tables_of(job, layout, on.stack)).passes.device[-1, 1, :, 0])
    assert by_unit(job, (times[1] - times[0])[:, None]) == pytest.approx({"embedding": 0, "0.0.attention": 1, "0.1.mlp": 0, "head": 0})


@pytest.mark.parametrize("plan", [Plan(), Plan(dp=2, zero=1), Plan(tp=2, recompute="full"), Plan(pp=2)])
def test_the_energy_of_a_step_is_that_of_its_operations_and_its_traffic(plan):
    on = machine_of()
    on = replace(on, architecture=replace(on.architecture, working_power=None))
    flop, byte = on.architecture.energy_per_flop["bf16"][0], on.architecture.memory.energy[0]
    found = transformer_step(job_of(), layout_of(plan), on)
    assert found.energy[0] == near(found.flops[0] * flop + found.traffic[0] * byte)


def test_twice_the_devices_and_samples_take_twice_the_energy():
    one, two = (transformer_step(job_of(), layout_of(plan, batch=batch), machine_of()) for plan, batch in ((Plan(), 8), (Plan(dp=2), 16)))
    for figure in ("energy", "flops", "traffic", "model_flops"):
        assert getattr(two, figure)[0] == near(2 * getattr(one, figure)[0])


def test_operations_that_a_small_model_needs():
    """Narayanan 2021: 24 b s h^2 + 4 b s^2 h a layer, half of the scores under a mask, 2 b s h V; three times that with gradients."""
    forward = 2 * (24 * 8 * 32 * 64**2 + 4 * 8 * 32**2 * 64 / 2) + 2 * 8 * 32 * 64 * 1000
    assert transformer_step(job_of(), layout_of(Plan()), machine_of()).model_flops[0] == near(3 * forward)


@pytest.mark.parametrize("name", ["megatron-lm-2022", "pytorch-fsdp"])
def test_the_optimizer_reads_gradients_twice_and_rewrites_its_states(name):
    """Adam on 1000 parameters: two states and the fp32 weights, the copy in two bytes that some stacks keep; twice where it is unfused."""
    on = machine_of(name)
    copy = on.stack.weight_size(2.0) if on.stack.weight_size(2.0) < 4 else 0.0
    moved = 1000 * (2 * on.stack.gradient_size(2.0) + 8 + copy + 8 * 2) * (1 if on.stack.fuses("optimizer", 2.0) else 2)
    found = optimizer_costs(job_of(optimizer="adam"), np.array([[1000.0]]), on)
    assert (found.traffic[-1, 0, 0], found.launches[0, 0]) == (near(moved), 0.0)
    assert found.time[0, 0] == near(moved / on.architecture.memory.bandwidth[0])


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize(("kernel", "scores"), [("flash", 4 * 4), ("unfused", 2 * 4 * 32)])
def test_activations_of_a_layer_by_hand(kernel, scores):
    """A token of 64 elements in two bytes: norm and products' inputs, queries, keys and values; log-sum-exp in fp32, or probabilities."""
    own = stack_of()
    stack = own.model_copy(update={"attention": own.attention.model_copy(update={"kernel": kernel})})
    kept, working = activations(job_of(), layout_of(Plan()), stack)
    tokens = 32
    attention = 2 * (64 + 64 + 64) + 2 * 3 * 64 + scores  # the norm's input and result, the last product's input; vectors
    assert kept["0.0.attention"][0] == near(tokens * attention)
    assert kept["0.1.mlp"][0] == near(tokens * 2 * (64 + 64 + 256 + 256))
    passing = 2 * (2 * 64 + 192 + 64) + (scores if kernel == "unfused" else 0)
    assert working["0.0.attention"][0] == near(tokens * passing)
    assert kept["head"][0] == near(tokens * 2 * (64 + 64))
    assert working["head"][0] == near(tokens * 1000 * stack.memory.logit[0])


def test_recomputation_keeps_a_layers_input_alone():
    kept, working = activations(job_of(), layout_of(Plan(recompute="full")), stack_of())
    plain, passing = activations(job_of(), layout_of(Plan()), stack_of())
    assert (kept["0.0.attention"][0], kept["0.1.mlp"][0]) == (32 * 64 * 2, 0.0)
    whole = plain["0.0.attention"][0] + plain["0.1.mlp"][0]
    assert working["0.1.mlp"][0] == near(passing["0.1.mlp"][0] + whole)


def test_weights_gradients_and_states_by_hand():
    """Bytes a parameter as the stack keeps them; a quarter of states, gradients and weights from ZeRO 1, 2 and 3 on."""
    stack, job = machine_of().stack, job_of(optimizer="adam")
    each = [stack.weight_size(2.0), stack.gradient_size(2.0), 8.0 + (4.0 if stack.weight_size(2.0) < 4 else 0.0)]
    for zero in range(4):
        found = memory(job, layout_of(Plan(dp=4, zero=zero)), machine_of()).kinds
        shares = [4 if zero >= level else 1 for level in (3, 2, 1)]
        amounts = [found[kind][0] for kind in KINDS[:3]]
        assert amounts == [near(job.model.parameters * size / share) for size, share in zip(each, shares, strict=True)]


# ------------------------------------------------------------------------------------------ the host


def test_pieces_flow_through_stages():
    """Two pieces through stages of 4, 6 and 2 s: one through all, 6 s, and the slowest once more, 3 s."""
    assert float(flow([np.array(4.0), np.array(6.0), np.array(2.0)], np.array(2.0))) == 9.0


def test_copies_to_the_host_by_hand():
    """A bus of 10 B/s reached to a half, host memory of 64 B/s for 8 devices, an eighth of it used by updates and sums (r2 w1)."""
    job, layout = job_of(optimizer="adam"), layout_of(Plan(dp=8, zero=3, offload=("optimizer", "weights", "activations")))
    kept = layout_of(Plan(dp=8, zero=1, offload=("optimizer",)))
    stack = machine_of().stack
    network = SimpleNamespace(host=SimpleNamespace(bandwidth=np.array([10.0])), parameters=SimpleNamespace(pcie_efficiency=np.array([0.5])))
    on = SimpleNamespace(
        host=SimpleNamespace(bandwidth=np.array([64.0]), utilisation=np.array([0.125])), stack=stack, node=8, network=network
    )
    on.host_rate = functools.partial(Machine.host_rate, on)
    amounts = {"kept": np.array([[20.0]]), "owned": np.array([[40.0]]), "weights": np.array([[2.0]])}
    copies, later = (host_copies(job, plans, on, **amounts) for plans in (layout, kept))
    gradient, weight = stack.gradient_size(2.0), stack.weight_size(2.0)
    assert (copies.activations[0, 0], copies.fetched[0, 0]) == (near(20 / 5), near(40 * 2 / 5))
    assert (copies.stored[0, 0], copies.gradients[0, 0], copies.renewed[0, 0]) == (near(40 * gradient * 3), 0.0, 0.0)
    assert (later.activations[0, 0], later.fetched[0, 0], later.stored[0, 0]) == (0.0, 0.0, 0.0)
    assert (later.gradients[0, 0], later.renewed[0, 0]) == (near(40 * gradient / 5), near(40 * 2 / 5))
    assert copies.update[0, 0] == near(40 * (gradient + 2 * (4 + 4 * 2) + (weight if weight < 4 else 0)) / (8 * 0.125))


# ------------------------------------------------------------------------------------------ pipelines and remedies


def test_boundaries_that_passes_cross():
    """Three stages: 0 to 1 and 1 to 2, there and back; two chunks pass from the last stage to the first as well."""
    found = boundaries("1f1b", 3, 1, 4, training=True)
    assert (found.first[:, 0].tolist(), found.last[:, 0].tolist()) == ([0, 1], [1, 2])
    assert (found.onwards.tolist(), found.inwards.tolist()) == ([[0, 1, 2], [2, 0, 1]], [[2, 0, 1], [0, 1, 2]])
    assert found.often.tolist() == [[1, 0], [1, 1], [0, 1]]
    assert boundaries("1f1b", 3, 1, 4, training=False).often.tolist() == [[1, 0], [0, 1], [0, 0]]
    both = boundaries("1f1b", 3, 2, 6, training=False)
    assert list(zip(both.first[:, 0].tolist(), both.last[:, 0].tolist(), strict=True)) == [(0, 1), (0, 2), (1, 2)]
    assert both.onwards[0].tolist() == [0, 2, 1, 0, 2, 3]


def changes(plan, **options):
    told = {"hosted": False, "experts": False, "training": True, "tiered": False} | options
    again = further_levels(plan, job_of().model) if told["training"] else ()
    return [change.text for change in _changes(plan, again, **told)]


def test_changes_that_may_free_memory_the_mildest_first():
    assert changes(Plan(dp=4, micro_batch=4)) == [
        "micro_batch: 2", "micro_batch: 1", "recompute: selective", "recompute: selective (recompute_modules: core_attn+layernorm+mlp)",
        "recompute: full", "zero: 1", "zero: 2", "zero: 3",
        "tp: 2 (dp: 2, sequence_parallel: true)", "tp: 4 (dp: 1, sequence_parallel: true)", "pp: 2 (dp: 2)", "pp: 4 (dp: 1)",
    ]  # fmt: skip
    assert changes(Plan(tp=2, zero=3, recompute="full"), hosted=True) == [
        "offload: optimizer", "offload: weights", "offload: activations",
    ]  # fmt: skip
    assert changes(Plan(tp=4, mlp_tp=2, zero=2, recompute="selective")) == [
        "recompute: selective (recompute_modules: core_attn+layernorm+mlp)", "recompute: full", "zero: 3", "mlp_tp: 4",
    ]  # fmt: skip


def test_changes_of_a_service_and_of_experts():
    assert changes(Plan(dp=2, micro_batch=2), training=False) == [
        "micro_batch: 1", "zero: 3", "tp: 2 (dp: 1, sequence_parallel: true, micro_batch: 2)", "pp: 2 (dp: 1, micro_batch: 2)",
    ]  # fmt: skip
    assert changes(Plan(dp=4, ep=2, zero=3, recompute="full"), experts=True)[0] == "ep: 4"
    kept = changes(Plan(zero=3, recompute="full", offload=("optimizer", "weights")), hosted=True)
    assert kept == ["offload: optimizer+weights+activations", "offload: none"]


FLIGHTS = [
    # stages, chunks, microbatches, microbatches that each row of each stage keeps
    (4, 1, 8, [[4, 3, 2, 1]]), (4, 1, 2, [[2, 2, 2, 1]]), (2, 2, 8, [[3, 2], [2, 1]]), (2, 2, 2, [[2, 2], [2, 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("stages", "chunks", "microbatches", "kept"), FLIGHTS)
def test_microbatches_in_flight_by_hand(stages, chunks, microbatches, kept):
    """Interleaved, stage i runs 2 (p - i - 1) + (v - 1) p passes ahead and one more: five of four rows are three and two."""
    assert in_flight("1f1b", stages, chunks, microbatches)[0].tolist() == kept


# ------------------------------------------------------------------------------------------ sharded passes

GROUPS = ((0,), (1,), (2,))  # the second occurs twice


def unit_times(before=(0.0, 0.0, 0.0), leave=(0.0, 0.0, 0.0), host=(0.0, 0.0, 0.0), arrive=(1.0, 8.0, 1.0)):
    """Kernels of 2, two of 3, 1; gathers of 1, two of 4, 1; what waits for no weights, reductions and the host, of all occurrences."""
    columns = {"before": before, "compute": (2.0, 6.0, 1.0), "arrive": arrive, "leave": leave, "host": host}
    return UnitTimes(**{name: np.array(values)[:, None] for name, values in columns.items()})


@pytest.mark.parametrize(("before", "first", "end"), [((0, 0, 0), 0, 13), ((0, 0, 1), 0, 14), ((0, 0, 0), 2, 15), ((9, 0, 0), 0, 18)])
def test_gathers_run_ahead_of_kernels(before, first, end):
    """Gathers end at 1, 5, 9 and 10; kernels run from 1 to 3, 5 to 8, 9 to 12, 12 to 13."""
    assert forward_pass(GROUPS, np.array([1.0, 2.0, 1.0]), unit_times(before), np.full((3, 1), float(first))).tolist() == [end]


def test_reductions_follow_the_gather_of_what_comes_next():
    """Gathers and reductions: to 1, to 5, (2) to 7, to 11, (1) to 12, to 13, (1) to 15, (3) to 19; kernels end at 2, 8, 14, 16."""
    counts, none = np.array([1.0, 2.0, 1.0]), np.zeros((3, 1))
    assert backward_pass(GROUPS, counts, unit_times(leave=(3.0, 2.0, 2.0)), none).tolist() == [19.0]
    assert backward_pass(GROUPS, counts, unit_times(), none).tolist() == [14.0]  # gathers to 1, 5, 9, 10


def test_reductions_wait_for_a_host_that_is_slower():
    """The host is through at 4, 9, 14 and 15, the kernels at 1, 4, 7 and 9; reductions end at 5, 10, 15 and 18."""
    counts, none = np.array([1.0, 2.0, 1.0]), np.zeros((3, 1))
    slow = unit_times(leave=(3.0, 2.0, 1.0), host=(1.0, 10.0, 4.0), arrive=(0.0, 0.0, 0.0))
    assert backward_pass(GROUPS, counts, slow, none).tolist() == [18.0]


def test_units_gathered_together_wait_for_the_first_ones_collectives_only():
    found = UnitTimes(**{name: np.array([[[1.0], [2.0], [4.0]]]) for name in ("before", "compute", "arrive", "leave", "host")})
    whole = found.together([(0, 1), (2,)])
    assert (whole.before[0, :, 0].tolist(), whole.compute[0, :, 0].tolist()) == ([1, 4], [3 + 2, 4])
    assert (whole.arrive[0, :, 0].tolist(), whole.leave[0, :, 0].tolist()) == ([3, 4], [3, 4])


# ------------------------------------------------------------------------------------------ events of a pass


def test_events_of_a_pass_by_hand():
    """Two units at half speed of a group whose slowest runs at a quarter; a collective that waits, one beside."""
    made = Laid({"old": 0})
    assert made.work("mlp", 1.0, 3, 0.5, 0.25) == 0.0
    made.send("all_reduce", TENSOR, 2.0, 3)
    made.beside((("a", 1.0), ("b", 0.0), ("c", 2.0)), 4.0, 5)
    assert made.work("head", 1.0, -1, 1.0, 1.0, after=10.0) == 10.0
    found = made.made("F")
    names = {number: name for name, number in made.names.items()}
    assert [names[number] for number in found.name.tolist()] == ["mlp", "mlp, waiting for the slowest rank", "all_reduce", "a", "c", "head"]
    assert list(zip(found.start.tolist(), found.end.tolist(), strict=True)) == [(0, 2), (2, 4), (4, 6), (4, 5), (5, 7), (10, 11)]
    assert (found.time, found.layer.tolist()) == (11.0, [3, 3, 3, 5, 5, -1])
    made.data = 12.0
    assert made.made("F").time == 12.0


MIXERS = [
    # kind, elements that a token keeps: gate and output of 32, what is convolved of 100, 2 gates for each of 4 heads; and more
    ("mamba2", 64 + 100 + 8),
    ("mamba1", 64 + 100 + 8 + 32),  # time steps of every channel
    ("gated_delta", 64 + 100 + 8 + 100 + (100 - 32) + 4 * 16 + 4 / 2 * 4),  # what is convolved, norms, triangles of 16, and sums in fp32
]


@pytest.mark.parametrize(("kind", "elements"), MIXERS)
def test_a_state_space_mixer_keeps_by_hand(kind, elements):
    mixer = SimpleNamespace(kind=kind, delta=kind == "gated_delta", heads=4, width=8, gates=2, chunk=16, convolved=lambda ranks: 100.0)
    kept = _state_space(mixer, np.array([3.0]), SimpleNamespace(element=2.0), layout_of(Plan()))
    assert kept[0] == near(2 * 3 * elements)


# ------------------------------------------------------------------------------------------ uneven worlds


def world(plan, *, in_step=1, wraps=False, **uneven):
    stages = int(plan.pp)
    return World.of(Uneven(**uneven), layout_of(plan), walk_of(pipeline_order("1f1b", stages, 1, 2)), stages, in_step=in_step, wraps=wraps)


def test_speeds_of_ranks_stages_and_replicas_multiply():
    """Two tensor ranks, two replicas, two stages: ranks 0 to 3 are of the first stage, 2 and 3 of the second replica."""
    given = {"ranks": {0: 0.5}, "stages": {1: 0.75}, "replicas": {1: 0.25}}
    made, together = (world(Plan(tp=2, dp=2, pp=2), in_step=many, **given) for many in (1, 2))
    first, second = (next(i for i, mine in enumerate(made.members) if mine.tolist() == [replica]) for replica in (0, 1))
    assert made.speed[:, first].tolist() == [[0.5, 1.0], [0.75, 0.75]]
    assert made.speed[:, second].tolist() == [[0.25, 0.25], [0.1875, 0.1875]]
    assert (made.slowest[:, first].tolist(), made.slowest[:, second].tolist()) == ([0.5, 0.75], [0.25, 0.1875])
    assert made.ranks(1, np.array([0, 1]), np.array([1])) == [5, 7]
    assert together.slowest.tolist() == [[0.25, 0.25], [0.1875, 0.1875]]


def test_replicas_alike_are_one():
    made = world(Plan(dp=4, pp=2), replicas={2: 0.5})
    assert sorted(mine.tolist() for mine in made.members) == [[0, 1, 3], [2]]
    assert made.jitter.tolist() == np.ones((made.jitter.shape[0], 2)).tolist()


def test_links_between_stages_and_around():
    """Of three stages the link between 1 and 2, and the one from the last to the first."""
    made = world(Plan(pp=3), wraps=True, links={1: 0.5, 2: 0.25})
    assert made.rate(np.array([0, 1, 2, 2, 0]), np.array([1, 2, 1, 0, 2])).tolist() == [1.0, 0.5, 0.5, 0.25, 0.25]


STEPS = [
    # plan, whether weights wait for the step's end, replicas that run in step
    (Plan(dp=8), True, 1), (Plan(dp=4, cp=2), True, 2), (Plan(dp=8, zero=3), True, 8), (Plan(dp=8, zero=2), True, 8),
    (Plan(dp=8, zero=1), True, 1),
    (Plan(dp=8, ep=4), True, 4), (Plan(tp=2, dp=8, ep=4), True, 4), (Plan(dp=8), False, 8), (Plan(tp=4, etp=1, ep=8, dp=4), True, 2),
]  # fmt: skip


def test_replicas_in_step_by_hand():
    """Those that share samples or experts; all where weights are gathered or gradients reduced in each pass."""
    assert [in_step(layout_of(plan), flush=flush) for plan, flush, _ in STEPS] == [replicas for *_, replicas in STEPS]


@pytest.mark.parametrize(
    ("gated", "limited", "fuses", "again", "each"),
    [
        (False, False, "", False, 1), (True, False, "activation", False, 2), (True, False, "", False, 3),
        (True, True, "activation", False, 4),  # clamped branches beside what is clamped, whose gradient asks for it
        (True, True, "activation limit", False, 2), (True, True, "", False, 5), (True, True, "activation", True, 2),
    ],
)  # fmt: skip
def test_activations_of_experts_and_of_the_one_that_all_tokens_pass(gated, limited, fuses, again, each):
    """Two tensor ranks: 8 rows of 10 elements in experts, 3 tokens of 6 in the shared one; without experts 3 tokens of 10."""
    stack = SimpleNamespace(fuses=lambda what, _: what in fuses.split(), recomputed=("activation",) if again else ())
    part = SimpleNamespace(gated=gated, limited=limited, inner=10, shared=6, routing=object())
    given = np.array([3.0]), 8.0, layout_of(Plan(tp=2)), stack
    assert [inner.tolist() for inner in _activation(job_of(), part, *given)] == [[each * 8 * 10 / 2], [each * 3 * 6 / 2]]
    part.routing = None
    assert _activation(job_of(), part, *given)[0] == each * 3 * 10 / 2


def test_weights_that_are_updated_after_every_microbatch_take_the_optimizer_as_often():
    """PipeDream moves what 1F1B moves, and an update for each microbatch but the last: 15 for 16 where it is 7 for 8."""
    often, once = (
        [transformer_step(job_of(), layout_of(Plan(pp=2, schedule=name), batch=batch), machine_of()) for batch in (8, 16)]
        for name in ("pipedream", "1f1b")
    )
    for figure in ("traffic", "energy"):
        eight, sixteen = (getattr(a, figure)[0] - getattr(b, figure)[0] for a, b in zip(often, once, strict=True))
        assert eight > 0
        assert sixteen / eight == pytest.approx(15 / 7, rel=1e-9)


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize(("plan", "replicas"), [({}, 1), ({"dp": 2}, 2)])
def test_an_update_moves_thirty_bytes_a_parameter_of_every_layer(layers, plan, replicas):
    """Gradients twice 2 B, master weights 4 and states 8 read and written, weights 2 written: of each layer, replica and update."""
    job, each = job_of(layers=layers), 2 * 2 + 2 * 4 + 2 * 8 + 2
    for batch in (8, 16):
        often, once = (
            transformer_step(job, layout_of(Plan(pp=2, schedule=name, **plan), batch=batch), machine_of()).traffic[0]
            for name in ("pipedream", "1f1b")
        )
        assert often - once == near((batch / replicas - 1) * replicas * each * job.model.parameters)


def test_a_forward_pass_that_is_done_again_sends_its_messages_again():
    """A part of a layer sends once forward and once backward; recomputed, once more. What lies outside the layers is not done again."""
    plain, again = (transformer_step(job_of(), layout_of(Plan(tp=2, recompute=name)), machine_of()).by_layer for name in ("none", "full"))
    for part, times in (("attention", 1.5), ("mlp", 1.5), ("embedding", 1.0), ("head", 1.0)):
        assert again[f"{part}.communication"][0] == near(times * plain[f"{part}.communication"][0])
