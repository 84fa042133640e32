"""Modules that a strategy computes again: bytes of a layer by hand, the operations of their own kernels, laws, and what is refused."""

import itertools

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.activations import activations
from crossflow.parallel.blocks import block_program
from crossflow.parallel.strategy.again import Again, further_levels, levels, repeatable
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import REPEATED
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

S, H, FFN = 512, 1024, 4096  # tokens of a sample, elements of a token, of an MLP
DENSE = {
    "model": "transformer", "layers": 1, "hidden": H, "heads": 8, "kv_heads": 2, "ffn": FFN, "gated": True, "vocabulary": 32000,
    "sequence": S, "positions": "rotary", "norm": "rmsnorm", "global_batch": 8, "dtype": "bf16",
}  # fmt: skip
EXPERTS = {"count": 8, "active": 2, "ffn": 512, "shared": 256}
MIXTURE = {**DENSE, "ffn": 512, "experts": EXPERTS}
LATENT = {"query_rank": 384, "kv_rank": 256, "nope": 64, "rope": 32, "value": 64}
MLA = {**{key: value for key, value in DENSE.items() if key != "kv_heads"}, "latent": LATENT}
ALL = {**MLA, "layers": 3, "ffn": FFN, "experts": {**EXPERTS, "dense_layers": 1}}


def job_of(workload):
    spec = TransformerSpec.model_validate(workload)
    return Job(model=spec.transformer(), dtype="bf16", dropout=False, task="training", frozen=None)


def plan_of(*modules, **options):
    return Plan(recompute="selective", recompute_modules=modules, **options) if modules else Plan(**options)


def kept(workload, *modules, stack="megatron-core"):
    """Bytes that one sample leaves on each part of a layer."""
    found, _ = activations(job_of(workload), Layout.of([plan_of(*modules)], np.array([8.0]), 8), load_stack(stack)[0])
    return {name.split(".")[-1]: float(size[0]) for name, size in found.items() if name not in ("embedding", "head")}


NORM = 2 * S * H  # a token's vector in 16 bits, before or after its norm [B]
HEADS = 2 * S * (8 + 2 * 2) * 128  # queries, keys and values [B]
SCORES = 4 * S * 8  # log-sum-exp [B]
ATTENTION = 2 * NORM + HEADS + SCORES + 2 * S * 8 * 128  # and the input of the output product
INNER = 2 * S * FFN


@pytest.mark.parametrize(
    ("modules", "attention", "mlp"),
    [
        ((), ATTENTION, 2 * NORM + 3 * INNER),
        (("layernorm",), ATTENTION - NORM, NORM + 3 * INNER),
        (("mlp",), ATTENTION, 2 * NORM),
        (("layernorm", "mlp"), ATTENTION - NORM, NORM),
        (("core_attn",), ATTENTION, 2 * NORM + 3 * INNER),  # fused attention keeps no scores
    ],
)
def test_bytes_of_a_dense_layer(modules, attention, mlp):
    """Inputs of norms and products; two branches before the activation, and what comes after it."""
    assert kept(DENSE, *modules) == {"attention": attention, "mlp": mlp}


def test_scores_that_attention_keeps_are_left_out_by_core_attn_alone():
    """A softmax in 16 bits of 8 heads, 512 queries and keys."""
    stack = "megatron-lm-2022"
    plain, scores, norms = (kept(DENSE, *modules, stack=stack)["attention"] for modules in ((), ("core_attn",), ("layernorm",)))
    assert (plain - scores, plain - norms) == (2 * 8 * S * S, NORM)


VECTORS = 2 * S * 8 * (96 + 96 + 64)  # of latent attention: queries and keys of 96 elements, values of 64
LATENTS = 2 * 2 * S * (384 + 256)  # before and after their norms


@pytest.mark.parametrize("modules", [(), ("mla_up_proj",), ("layernorm", "mla_up_proj")])
def test_bytes_of_a_layer_of_latent_attention(modules):
    """Latents stay, all that is made of them goes."""
    plain = 2 * NORM + LATENTS + VECTORS + SCORES + 2 * S * 8 * 64
    freed = VECTORS * ("mla_up_proj" in modules) + NORM * ("layernorm" in modules)
    assert kept(MLA, *modules)["attention"] == plain - freed


ROWS = 2 * S  # of two experts a token
ROUTER = 8 * S * 8
SHARED = 2 * S * 3 * 256  # two branches and what comes after them


@pytest.mark.parametrize(
    ("modules", "left"),
    [
        ((), 2 * NORM + 2 * ROWS * (H + 3 * 512) + SHARED),
        (("moe_act",), 2 * NORM + 2 * ROWS * (H + 2 * 512) + SHARED),
        (("shared_experts",), 2 * NORM + 2 * ROWS * (H + 3 * 512)),
        (("moe_act", "shared_experts"), 2 * NORM + 2 * ROWS * (H + 2 * 512)),
    ],
)
def test_bytes_of_a_layer_of_experts(modules, left):
    """Of a token two rows that go to experts; what follows an activation is the third of three."""
    assert kept(MIXTURE, *modules)["experts"] == left + ROUTER


@pytest.mark.parametrize(
    ("modules", "left"), [(("moe",), 2 * NORM), (("layernorm", "moe"), NORM), (("moe_act", "shared_experts", "moe"), 2 * NORM)]
)
def test_a_whole_layer_of_experts_leaves_its_input(modules, left):
    assert kept(MIXTURE, *modules)["experts"] == left


# -------------------------------------------------------------------------------------------- time


def flops(workload, *modules):
    """Operations of a step of one device."""
    given = {"system": {"template": "dgx-h100", "devices": 1}, "workload": workload, "strategy": str(plan_of(*modules, micro_batch=8))}
    return float(crossflow.predict(crossflow.from_dict({**given, "software": "megatron-core"})).score.flops[0])


TOKENS = 8 * S


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("workload", "modules", "parameters"),
    [
        (MLA, ("mla_up_proj",), 384 * 8 * 96 + 256 * 8 * (64 + 64)),
        (DENSE, ("mlp",), 3 * H * FFN),
        (MIXTURE, ("shared_experts",), 3 * H * 256),
        (MIXTURE, ("moe",), H * 8 + 3 * H * 256 + 2 * 3 * H * 512),
        (MIXTURE, ("moe", "shared_experts", "moe_act"), H * 8 + 3 * H * 256 + 2 * 3 * H * 512),
    ],
)
def test_products_of_modules_are_done_once_more(workload, modules, parameters):
    """Two operations a token and parameter; passes over memory add less than a hundredth."""
    again = flops(workload, *modules) - flops(workload)
    assert 1.0 <= again / (2.0 * TOKENS * parameters) < 1.01


@pytest.mark.parametrize(
    ("workload", "module", "kernels"),
    [(DENSE, "layernorm", 2), (MLA, "mla_up_proj", 3), (MIXTURE, "moe_act", 1), (MIXTURE, "shared_experts", 3), (DENSE, "mlp", 0)],
)
def test_kernels_of_modules_are_their_own(workload, module, kernels):
    """A norm in each part; two products and the rotation; the activation; two products and theirs. Whole parts run forward again."""
    job, stack = job_of(workload), load_stack("megatron-core")[0]
    found = []
    for plan in (plan_of(), plan_of(module)):
        program = block_program(job, Layout.of([plan], np.array([8.0]), 8), stack)
        found.append(sum(op.phase == "input" for op in program.ops if op.kernels))
    assert found[1] - found[0] == kernels


# -------------------------------------------------------------------------------------------- laws

LAWS = [
    ("llama3-8b", "dgx-h100", "dp8-mb2", "megatron-core"),
    ("llama3-8b", "dgx-h100", "tp4-pp2-sp", "megatron-lm-2022"),
    ("mixtral-8x7b", "dgx-h100", "tp2-dp4-ep4-z1-sp", "megatron-core"),
    ("mixtral-8x7b", "dgx-h100", "tp8-sp-etp1-ep8-dp1", "nemo"),
    ("deepseek-v2", "dgx-h100", "dp8-ep8-z1", "megatron-core"),
    ("deepseek-v2", "dgx-h100", "tp2-dp4-ep8-etp1-sp-z3", "pytorch-fsdp"),
    ("deepseek-v3", "dgx-h200", "pp4-dp2-ep2-mb1", "hai-llm"),
]


def scored(model, system, strategy, software, sets):
    """Step times and activations where modules are computed again, of one batch of strategies."""
    given = {
        "system": system,
        "workload": {"model": model, "global_batch": 64, "sequence": 2048},
        "strategy": strategy,
        "software": software,
    }
    made = crossflow.from_dict(given)
    plans = [level.of(made.strategy) for level in sets]
    score = evaluate(made, {"strategy": plans})
    return score.step_time, score.memory["activations"], made


def random_chain(rng, names):
    """Sets of modules, each with one more than the set before."""
    order = list(rng.permutation(names))
    return [tuple(name for name in REPEATED if name in order[:count]) for count in range(len(order) + 1)]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("model", "system", "strategy", "software"), LAWS, ids=["-".join(law[:1] + law[2:]) for law in LAWS])
def test_more_that_is_computed_again_keeps_no_more_and_takes_no_less_time(model, system, strategy, software):
    names = repeatable(crossflow.from_dict({"system": system, "workload": model, "strategy": strategy}).job().model)
    rng = np.random.default_rng(3)
    for _ in range(3):
        chain = [Again(recompute="selective" if modules else "none", modules=modules) for modules in random_chain(rng, names)]
        times, held, _ = scored(model, system, strategy, software, [*chain, Again(recompute="full")])
        for less, more in itertools.pairwise(range(len(times))):
            assert times[more] >= times[less] * (1 - 1e-9), chain[less]
            assert held[more] <= held[less] * (1 + 1e-9), chain[less]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("model", "system", "strategy", "software"), LAWS[::2], ids=["-".join(law[:1] + law[2:]) for law in LAWS[::2]])
def test_modules_of_a_batch_are_those_of_each_plan_alone(model, system, strategy, software):
    made = crossflow.from_dict({"system": system, "workload": model, "strategy": strategy})
    sets = [*levels(made.job().model), Again(recompute="selective", modules=("layernorm",))]
    times, held, _ = scored(model, system, strategy, software, sets)
    for i, level in enumerate(sets):
        alone = scored(model, system, strategy, software, [level])
        assert alone[0][0] == pytest.approx(times[i], rel=1e-12)
        assert alone[1][0] == pytest.approx(held[i], rel=1e-12)


def test_a_stack_and_a_plan_may_say_the_same_modules():
    """Of norms, latents and whole parts; an activation of a stack is that of all MLPs and experts."""
    given = {"system": "dgx-h200", "workload": {"model": "deepseek-v2", "global_batch": 64}}
    by_plan = crossflow.from_dict({**given, "strategy": "dp8-ep8-sel:norm+up+mlp+moe", "software": "nemo"})
    by_stack = crossflow.from_dict(
        {**given, "strategy": "dp8-ep8", "software": {"like": "nemo", "recomputed": ["norm", "latent", "mlp", "experts"]}}
    )
    both = crossflow.from_dict({**given, "strategy": "dp8-ep8-sel:norm+up", "software": {"like": "nemo", "recomputed": ["norm", "latent"]}})
    alone = crossflow.from_dict({**given, "strategy": "dp8-ep8-sel:norm+up", "software": "nemo"})
    for one, other in ((by_plan, by_stack), (both, alone)):
        found, expected = evaluate(one), evaluate(other)
        assert found.step_time[0] == pytest.approx(expected.step_time[0], rel=1e-12)
        assert found.memory_needed[0] == pytest.approx(expected.memory_needed[0], rel=1e-12)


# -------------------------------------------------------------------------------------------- what can be said


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (
            {"dp": 8, "recompute_modules": ["mla_up_proj"]},
            "recompute_modules: mla_up_proj, but the model has no latent attention; leave it out",
        ),
        ({"dp": 8, "recompute_modules": "layernorm+moe"}, "recompute_modules: moe, but the model has no experts; leave it out"),
        ("dp8-sel:shared", "recompute_modules: shared_experts, but the model has no shared experts; leave it out"),
        (
            "dp8-full-sel:norm",
            "recompute_modules says what recompute: selective computes again, and full is whole layers; leave one of them out",
        ),
        (
            {"dp": 8, "recompute": "none", "recompute_modules": ["mlp"]},
            "recompute_modules says what recompute: selective computes again, and none is nothing; leave one of them out",
        ),
    ],
)
def test_what_cannot_be_computed_again_is_told(strategy, sentence):
    with pytest.raises(crossflow.CrossflowError) as told:
        crossflow.predict(crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": strategy}))
    assert str(told.value).endswith(sentence)


def test_a_list_of_modules_makes_recomputation_selective():
    made = crossflow.from_dict(
        {"system": "dgx-h100", "workload": "llama3-8b", "strategy": {"dp": 8, "recompute_modules": ["mlp", "layernorm"]}}
    )
    assert made.strategy == Plan(dp=8, recompute="selective", recompute_modules=("layernorm", "mlp"))
    assert str(made.strategy) == "dp8-sel:norm+mlp"


def test_a_module_that_changes_nothing_is_told():
    made = crossflow.from_dict({"system": "dgx-h100", "workload": "mixtral-8x7b", "strategy": "dp8-ep8-sel:attn+act+moe"})
    notes = " ".join(crossflow.predict(made).notes)
    for module in ("core_attn", "moe_act"):
        assert f"strategy.recompute_modules: {module} changes nothing here: what it writes is not kept without it either" in notes
    assert "recompute_modules: moe changes" not in notes


def test_levels_are_what_models_have():
    """Without scores where attention is fused; what takes little time, what frees the most, whole layers."""
    dense, mixture, both = (job_of(workload).model for workload in (DENSE, MIXTURE, ALL))
    assert [level.modules for level in levels(dense, fused=True)] == [(), ("layernorm", "mlp"), ()]
    assert [level.modules for level in levels(mixture, fused=True)] == [(), ("layernorm", "moe_act"), ("layernorm", "moe"), ()]
    assert [level.modules for level in levels(both)] == [
        (), (), ("core_attn", "layernorm", "mla_up_proj", "moe_act"), ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe"), (),
    ]  # fmt: skip
    assert further_levels(Plan(recompute="full"), both) == ()
    assert [level.recompute for level in further_levels(plan_of("layernorm", "moe_act"), mixture, fused=True)] == ["selective", "full"]
