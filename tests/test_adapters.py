"""Low-rank adapters: parameters, operations, memory and messages of LoRA and QLoRA, worked out by hand."""

import collections
import copy

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.base.errors import SpecError
from crossflow.parallel.blocks import block_program, parameters, trained_parameters, units
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.weights import weights_of
from crossflow.program.kernels import Product
from crossflow.workload.jobs import job_of
from crossflow.workload.spec import TransformerSpec
from tests.test_memory import layout_of, stack_of

BASE = {
    "system": {"template": "h100-ib-cluster", "nodes": 1},
    "workload": {"model": "llama3-8b", "global_batch": 8, "sequence": 1024, "dtype": "bf16", "adapters": {"rank": 16}},
    "strategy": {"dp": 8, "micro_batch": 1},
    "software": "pytorch",
}
H, KV, INNER = 4096, 1024, 14336  # of Llama 3 8B


def data(adapters=None, **changes):
    found = copy.deepcopy(BASE)
    for path, value in {"workload.adapters": adapters or {"rank": 16}, **changes}.items():
        section, _, key = path.partition(".")
        found[section] = {**found[section], key: value} if key else value
    return found


def predicted(adapters=None, **changes):
    return crossflow.predict(data(adapters, **changes)).to_dict()


def spec_of(model="llama3-8b", **adapters):
    return crossflow.load(data({"rank": 16, **adapters}, **{"workload.model": model})).workload


def trained(spec):
    return sum(layer.count * part.adapters for layer in spec.transformer().layers for part in layer.parts)


@pytest.mark.parametrize(("model", "count"), [("llama3-8b", 41_943_040), ("llama3-70b", 207_093_760)])
def test_adapters_of_all_linear_layers_have_the_parameters_that_peft_prints(model, count):
    """41,943,040 and 207,093,760 trainable parameters at rank 16 (logs of fine-tuning with PEFT; also by hand below)."""
    assert trained(spec_of(model)) == count


@pytest.mark.parametrize(
    ("adapters", "each"),
    [
        ({"targets": ["query", "value"]}, 16 * (2 * H + H + KV)),
        ({"targets": ["key"]}, 16 * (H + KV)),
        ({"targets": ["output"]}, 16 * 2 * H),
        ({"targets": ["attention"]}, 16 * (3 * H + H + 2 * KV + 2 * H)),
        ({"targets": ["attention"], "joined": True}, 16 * (H + H + 2 * KV + 2 * H)),
        ({"targets": ["mlp"]}, 16 * (2 * (H + INNER) + INNER + H)),
        ({"targets": ["mlp"], "joined": True}, 16 * (H + 2 * INNER + INNER + H)),
    ],
)
def test_parameters_of_a_layer_by_hand(adapters, each):
    assert trained(spec_of(**adapters)) == 32 * each


def test_adapters_of_experts_are_one_for_each_expert_and_matrix():
    """Mixtral: 8 experts with three matrices of 4096 and 14336; the router has none."""
    assert trained(spec_of("mixtral-8x7b", targets=["experts"])) == 32 * 8 * 16 * 3 * (H + INNER)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_tensor_ranks_hold_one_factor_whole_and_a_part_of_the_other(tp):
    job, layout = job_of(spec_of()), layout_of(Plan(tp=tp))
    parts = dict(units(job.model))
    attention, _ = trained_parameters(parts["0.0.attention"], layout, job.model)
    assert attention[0] == 16 * (3 * H + (H + 2 * KV) / tp + H / tp + H)
    for part in parts.values():  # what trains is a part of all
        assert sum(trained_parameters(part, layout, job.model))[0] < sum(parameters(part, layout))[0]


def test_a_step_needs_two_thirds_of_the_products_of_full_training_and_those_of_the_adapters():
    """Forward and input gradients, 2 of 3, of 2 x weights; three products of 2 x adapters' parameters each; scores as before."""
    full = crossflow.load({**data(), "workload": {k: v for k, v in BASE["workload"].items() if k != "adapters"}}).workload
    flops = []
    for spec in (full, spec_of()):
        program = block_program(job_of(spec), layout_of(Plan()), stack_of("pytorch"))
        flops.append(
            {
                phase: sum(2.0 * float(np.ravel(k.m * k.n * k.k * k.batch * op.count)[0]) for op, k in products(program, phase))
                for phase in ("forward", "input", "weight")
            }
        )
    whole, low = flops
    own, head = 1024 * 2.0 * trained(spec_of()) / 32, 1024 * 2.0 * H * 128256
    assert low["forward"] == pytest.approx(whole["forward"] + own, rel=1e-12)
    assert low["input"] == pytest.approx(whole["input"] + own, rel=1e-12)
    assert whole["weight"] == pytest.approx(whole["forward"], rel=1e-12)
    assert whole["weight"] > head
    assert low["weight"] == pytest.approx(own, rel=1e-12)


def products(program, phase):
    """Products of a phase with their operations."""
    for op in program.ops:
        if (op.phase if op.phase != "end" else "forward") == phase:
            yield from ((op, program.kernels[row]) for row in op.kernels if isinstance(program.kernels[row], Product))


def test_gradients_of_adapters_alone_are_reduced():
    job, layout = job_of(spec_of()), layout_of(Plan(dp=8))
    stack = stack_of("pytorch")
    found = weights_of(job, layout, stack)
    reduced = [message.size[:, 0].sum() for message in found.messages if message.role == "reduce" and message.size.any()]
    assert reduced == [trained(spec_of()) / 32 * stack.gradient_size(job.element)]


@pytest.mark.parametrize(("divided", "collective"), [(False, "all_reduce"), (True, "reduce_scatter")])
def test_adapters_reduce_what_a_matrix_cut_by_rows_gives_in_parts(divided, collective):
    """1,024 tokens of 16 elements in bf16, after attention and after the MLP; with sequence parallelism divided by tokens, not twice."""
    layout = layout_of(Plan(tp=8, sequence_parallel=divided))
    messages = block_kernels(job_of(spec_of()), layout, stack_of("pytorch")).messages
    sent = [one for one in messages if one.phase == "forward" and np.ravel(one.size)[0] == 1024 * 16 * 2]
    sums = [one.collective for one in sent if one.collective in ("all_reduce", "reduce_scatter")]
    assert sums == [collective] * 2
    assert min(np.ravel(one.size)[0] for one in messages if np.ravel(one.size)[0]) >= 1024


def test_sharded_base_is_gathered_in_its_type():
    """FSDP gathers what lies there: a layer in NF4 is 4.127 of 16 bits, adapters are in 16."""
    sizes = {}
    for base in (None, "nf4"):
        found = weights_of(job_of(spec_of(**({"base": base} if base else {}))), layout_of(Plan(dp=8, zero=3)), stack_of("nemo"))
        sizes[base] = sum(message.size[1:-1, 0].sum() for message in found.messages if message.role == "gather")
    layer = H * (2 * H + 2 * KV) + 3 * H * INNER
    kept = 2.0 * (trained(spec_of()) / 32 + 2 * H)
    assert sizes[None] == pytest.approx(2.0 * layer + kept, rel=1e-12)
    assert sizes["nf4"] == pytest.approx((4 + 8 / 64 + 32 / (64 * 256)) / 8 * layer + kept, rel=1e-12)


def test_a_quantised_base_is_read_and_written_wider_before_each_product():
    """A weight in NF4 has 4.127 bits, and 16 where a product reads it, forward and backward; no other pass changes."""
    found = []
    for base in ({}, {"base": "nf4"}):
        passes = block_kernels(job_of(spec_of(**base)), layout_of(Plan()), stack_of("pytorch")).passes
        found.append(collections.Counter((one.unit, round(float(np.sum(one.moved)))) for one in passes if np.any(one.moved)))
    plain, widened = found
    each = (4 + 8 / 64 + 32 / (64 * 256)) / 8 + 2.0
    matrices = [("0.0.attention", H * (H + 2 * KV)), ("0.0.attention", H * H), ("0.1.mlp", 2 * H * INNER), ("0.1.mlp", INNER * H)]
    assert widened - plain == {(unit, round(weights * each)): 2 for unit, weights in matrices}
    assert not plain - widened


def test_weights_gradients_and_states_of_memory_by_hand():
    """NF4 with scales quantised once more; embedding, head and norms in 16 bits; adapters with gradients and states alone."""
    found = predicted({"rank": 16, "base": "nf4"}, software={"like": "nemo", "gradient": "weight"})["memory"]
    layers, ends, norms, own = 32 * (H * (2 * H + 2 * KV) + 3 * H * INNER), 2 * 128256 * H, 65 * H, 41_943_040
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    assert found["weights_bytes"] == pytest.approx(layers * bits / 8 + 2 * (ends + norms + own), rel=1e-9)
    assert found["gradients_bytes"] == 2 * own


def test_qlora_of_65b_is_within_what_its_paper_says():
    """Less than 48 GB for a model of 65 billion parameters (QLoRA, abstract); 70 billion fit into 80 GB and not into 40 GB."""
    one = {"system": {"template": "h100-ib-cluster", "devices": 1}, "strategy": {"micro_batch": 1, "recompute": "full"}}
    found = predicted(
        {"rank": 16, "base": "nf4"}, **one, **{"workload.model": "llama3-70b", "workload.global_batch": 1, "workload.sequence": 512}
    )
    assert found["feasible"]
    assert 40e9 < found["memory"]["total_bytes"] < 52e9
    plain = predicted({"rank": 16}, **one, **{"workload.model": "llama3-70b", "workload.global_batch": 1, "workload.sequence": 512})
    assert not plain["feasible"]


def test_each_field_of_a_base_acts_as_it_should():
    plain, nf4, single, fp8 = (
        predicted({"rank": 16, **more}) for more in ({}, {"base": "nf4"}, {"base": "nf4", "double": False}, {"base": "fp8"})
    )
    weights = [one["memory"]["weights_bytes"] for one in (nf4, single, fp8, plain)]
    assert weights == sorted(weights)
    assert len(set(weights)) == 4
    assert nf4["step_time_s"] > plain["step_time_s"]  # each product widens its weights first


def test_more_rank_is_never_faster_and_a_full_step_takes_longer_than_a_small_rank():
    times = [predicted({"rank": rank, "targets": ["attention"], "joined": True})["step_time_s"] for rank in (8, 64, 512)]
    full = data()
    del full["workload"]["adapters"]
    assert times == sorted(times)
    assert times[0] < crossflow.predict(full).to_dict()["step_time_s"]


def test_activations_of_products_without_adapters_are_not_kept():
    kept = [predicted({"rank": 16, "targets": targets})["memory"]["activations_bytes"] for targets in (["query"], ["attention"], ["all"])]
    assert kept[0] <= kept[1] < kept[2]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "strategy", [{"tp": 2, "dp": 4, "sequence_parallel": True}, {"tp": 2, "dp": 4}, {"pp": 2, "dp": 4}, {"cp": 2, "dp": 4},
     {"dp": 8, "zero": 3},
     {"dp": 8, "zero": 1}],
)  # fmt: skip
def test_adapters_work_under_every_kind_of_parallelism(strategy):
    full = data(strategy=strategy)
    low = crossflow.predict(full).to_dict()
    del full["workload"]["adapters"]
    high = crossflow.predict(full).to_dict()
    assert low["memory"]["total_bytes"] < high["memory"]["total_bytes"]
    assert low["memory"]["optimizer_bytes"] < 0.02 * high["memory"]["optimizer_bytes"]


def test_adapters_of_experts_under_expert_parallelism():
    found = predicted(
        {"rank": 8, "targets": ["experts"]},
        strategy={"dp": 8, "ep": 8, "zero": 1},
        software={"like": "nemo", "gradient": "weight"},
        **{"workload.model": "mixtral-8x7b"},
    )
    own = 32 * 8 * 8 * 3 * (H + INNER) / 8
    assert found["memory"]["gradients_bytes"] == 2 * own


@pytest.mark.parametrize(
    ("adapters", "changes", "sentence"),
    [
        ({"rank": 0}, {}, "adapters.rank"),
        ({"rank": 8, "targets": ["experts"]}, {}, "the model has no matrices of 'experts' that take adapters"),
        ({"rank": 8, "targets": ["all", "mlp"]}, {}, "all names every matrix that takes one"),
        ({"rank": 8, "targets": ["query"], "joined": True}, {}, "give attention as target, or leave out joined"),
        ({"rank": 8, "double": False}, {}, "only nf4 has scales that can be quantised once more"),
        ({"rank": 8, "base": "nf4"}, {"workload.dtype": "fp8"}, "give dtype: bf16, or base: fp8"),
        ({"rank": 8}, {"workload.frozen": ["embedding"]}, "adapters leave all other weights as they are; leave it out"),
        ({"rank": 8}, {"strategy.offload": ["optimizer"]}, "beside adapters are modelled on the device only; leave it out"),
    ],
)
def test_what_adapters_do_not_go_with_is_refused_in_a_sentence(adapters, changes, sentence):
    with pytest.raises((SpecError, ValueError), match=sentence.replace("(", r"\(")):
        crossflow.predict(data(adapters, **changes))


def test_other_tasks_have_adapters_merged():
    found = data(**{"workload.task": "forward"})
    merged = crossflow.predict(found).to_dict()
    del found["workload"]["adapters"]
    assert merged["step_time_s"] == crossflow.predict(found).to_dict()["step_time_s"]


def test_models_without_adapters_are_not_adapted():
    spec = TransformerSpec.model_validate({**spec_of().model_dump(exclude_unset=True), "adapters": None})
    assert not spec.transformer().adapted
    assert spec_of().transformer().adapted
