"""Launch files of frameworks: what they mean, and that plans come back from them unchanged."""

import random
from pathlib import Path

import pytest
import yaml
from sampled import fewer

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.launch.launch import KINDS, TRAINING, read, write
from crossflow.edges.launch.megatron import layout_layers
from crossflow.edges.launch.settings import defaults, differing, plan_settings, workload_settings
from crossflow.edges.launch.shell import read_script
from crossflow.edges.launch.sources import KINDS as SOURCES
from crossflow.edges.launch.table import read_flags, table
from crossflow.parallel.strategy.legality import legal_plans, plan_problem
from crossflow.parallel.strategy.stages import stage_layers
from crossflow.parallel.strategy.transformers import plan_of

FOLDER = Path(__file__).parent / "data" / "launch"
EXPECTED = yaml.safe_load((FOLDER / "expected.yaml").read_text(encoding="utf-8"))
# Files that say more than crossflow writes for their framework.
UNWRITTEN = {"deepspeed-megatron-gpt.sh": "pp: 2", "deepspeed-mics.sh": "shard_group: 8"}
SERVED = {"task": "serving", "prompt": 512, "output": 128, "global_batch": 64}
# Settings that a file leaves open, as a user would give them.
GIVEN = {
    "workload.model": "llama3-8b", "workload.prompt": "1000", "workload.output": "200", "strategy.micro_batch": "2",
    "workload.global_batch": "64", "workload.dtype": "bf16", "workload.serving.speculation.acceptance": "0.8",
    "software.host.schedule": "1ms",
}  # fmt: skip
MODELS = {
    "megatron": ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "qwen3-30b-a3b"), "torchtitan": ("llama3-8b", "qwen3-30b-a3b"),
    "deepspeed": ("llama3-8b", "gpt3-20b"), "vllm": ("llama3-70b", "deepseek-v3"), "sglang": ("llama3-70b", "deepseek-v3"),
    "tensorrt-llm": ("llama3-70b", "deepseek-v3"), "dynamo": ("llama3-70b", "deepseek-v3"),
}  # fmt: skip
# Which plans to draw for each framework; others are refused, which has tests of its own.
REACH = {
    "megatron": lambda plan, batch: True,
    "torchtitan": lambda plan, batch: (
        plan.zero != 1
        and plan.recompute != "selective"
        and (plan.tp == 1 or plan.sequence_parallel)
        and (plan.zero > 0 or plan.tp * plan.pp == 1)
    ),
    "deepspeed": lambda plan, batch: (
        plan.pp == 1 and plan.recompute != "selective" and not plan.sequence_parallel and plan.zero * (plan.tp > 1) < 3
    ),
    **{kind: lambda plan, batch: plan.micro_batch == plan.serving(batch).micro_batch for kind in ("sglang", "tensorrt-llm", "dynamo")},
    "vllm": lambda plan, batch: (
        plan.zero == 0
        and (plan.ep == 1 or (plan.ep, plan.etp or plan.tp) == (plan.tp * plan.dp, 1))
        and plan.micro_batch == plan.serving(batch).micro_batch
        and plan.placement != ("tp", "dp", "pp")
        and (plan.tp == 1 or plan.etp == 0 or plan.sequence_parallel == (plan.dp > 1))
    ),
}


def settings(scenario):
    return {**plan_settings(scenario.strategy, scenario.workload.transformer().depth), **workload_settings(scenario.workload)}


def body(text):
    """A file without what names the scenario."""
    named = ("# Written by", "# The scenario names no software", "  name: ")
    return [line for line in text.splitlines() if not line.startswith(named)]


def llama(strategy="tp8-dp2-pp4-z1-sp", system="h100-ib-cluster", **workload):
    data = {"model": "llama3-70b", "global_batch": 128, **workload}
    return crossflow.from_dict({"system": {"template": system, "devices": 64}, "workload": data, "strategy": strategy})


def scenarios(kind, model):
    """A seeded sample of a model's legal plans on 16 devices, in the framework's reach."""
    workload = {"model": model, **({"global_batch": 128} if kind in TRAINING else SERVED)}
    workload |= {"mtp_layers": 0} if kind == "torchtitan" and model == "deepseek-v3" else {}
    data = {"system": {"template": "h100-ib-cluster", "devices": 16}, "workload": workload}
    spec = crossflow.from_dict({**data, "strategy": "any"}).workload
    plans = legal_plans(
        spec.transformer(),
        16,
        spec.global_batch,
        node=8,
        task=spec.step,
        micro_batches=(1, 4),
        virtual_stages=(1, 2),
        placed=kind not in TRAINING,
    )
    plans = [plan for plan in plans if REACH[kind](plan, spec.global_batch)]
    plans = [plan for plan in plans if plan_problem(plan, spec.transformer(), spec.global_batch, task=spec.step) is None]
    for plan in random.Random(f"{kind} {model}").sample(plans, min(len(plans), 40)):
        yield crossflow.from_dict({**data, "strategy": plan.text(always=("micro_batch",))})


# ---------------------------------------------------------------------------------------------- round trips


@pytest.mark.cases(5)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "model"), [(kind, model) for kind, models in MODELS.items() for model in models])
def test_plans_come_back_from_what_is_written(kind, model):
    came = 0
    for scenario in scenarios(kind, model):
        try:
            text = write(scenario, kind)
        except CrossflowError:
            continue
        launch = read(text)
        again = launch.scenario()
        assert (launch.kind, launch.devices) == (kind, 16)
        assert settings(again) == settings(scenario), text
        assert body(write(again, kind)) == body(text)
        came += 1
        if came == fewer(4, 2):
            return
    assert came >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "tp2-dp2-pp4-v2-layers:9+10x6+11-sp", "tp4-pp4-first18-last18", "tp2-cp2-dp2-pp2-z1-sp", "dp16-z3-g4", "tp4-dp2-pp2-z1-selective-sp",
        "tp4-dp2-pp2-z1-placed:tp+pp+dp", "dp16-z1-offload:optimizer",
    ],
)  # fmt: skip
def test_options_of_plans_come_back_from_megatron(strategy):
    scenario = crossflow.from_dict(
        {
            "system": {"template": "h100-ib-cluster", "devices": 16},
            "workload": {"model": "llama3-70b", "global_batch": 128},
            "strategy": strategy,
        }
    )
    assert settings(read(write(scenario, "megatron")).scenario()) == settings(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [
        {"dtype": "fp16", "dropout": True}, {"dtype": "fp8", "wide_layers": ["layers:0", "layers:79"]}, {"dtype": "mxfp8"}, {"dtype": "nvfp4"},
        {"optimizer": "sgd"}, {"optimizer": "momentum"}, {"qk_norm": "shared", "qkv_bias": True}, {"window": {"size": 512, "pattern": "local, local, global"}},
        {"experts": {"count": 8, "active": 2, "dense_layers": 2, "every": 2, "capacity": 1.25, "ffn": 4096}}, {"positions": "learned", "max_positions": 16384},
        {"experts": {"count": 8, "active": 2, "skew": 1.2}}, {"attention_sinks": True, "head_dim": 96}, {"gate_limit": 7.0},
    ],
)  # fmt: skip
def test_models_come_back_from_megatron(workload):
    scenario = llama(system="dgx-b200", **workload)
    assert settings(read(write(scenario, "megatron")).scenario()) == settings(scenario)


@pytest.mark.parametrize("switches", [{"overlap": {"data": False, "tensor": "pipelined"}}, {"gradient": "weight"}])
def test_switches_of_the_software_come_back_from_megatron(switches):
    data = {**llama().to_dict(), "software": {"like": "megatron-core", **switches}}
    launch = read(write(crossflow.from_dict(data), "megatron"))
    assert launch.software == {"like": "megatron-core", **switches}


def test_layers_that_are_done_again_come_back_from_megatron():
    text = write(llama("tp8-dp2-pp4-v2-full-rl6"), "megatron")
    assert all(flag in text for flag in ("--recompute-granularity full", "--recompute-method block", "--recompute-num-layers 3"))
    assert read(text).scenario().strategy.recompute_layers == 6


MIXTURE = {"latent": {"kv_rank": 512, "nope": 128, "rope": 64, "value": 128}, "kv_heads": None}
MIXTURE |= {"experts": {"count": 8, "active": 2, "shared": 1024, "dense_layers": 1}}


@pytest.mark.parametrize(
    ("modules", "flags"),
    [
        ("norm+up+act", "--recompute-modules layernorm mla_up_proj moe_act"),
        ("attn+shared+mlp+moe", "--recompute-modules core_attn shared_experts mlp moe"),
        ("attn", "--recompute-granularity selective"),
    ],
)
def test_modules_that_are_done_again_come_back_from_megatron(modules, flags):
    scenario = llama(f"tp8-dp8-sp-sel:{modules}", **MIXTURE)
    text = write(scenario, "megatron")
    assert flags in text
    assert ("--recompute-modules" in text) == ("modules" in flags)
    assert read(text).scenario().strategy == scenario.strategy


def test_modules_of_a_stack_are_written_as_flags_and_read_as_a_plans():
    data = {**llama().to_dict(), "software": {"like": "megatron-core", "recomputed": ["norm"]}}
    launch = read(write(crossflow.from_dict(data), "megatron"))
    assert launch.software == "megatron-core"
    assert launch.scenario().strategy.recompute_modules == ("layernorm",)


def test_narrow_scales_of_modules_that_are_done_again_are_those_of_the_tensor():
    """Megatron refuses norms and activations with delayed scaling."""
    for modules, recipe in (("norm", True), ("mlp", False)):
        text = write(llama(f"tp8-dp8-sel:{modules}", "dgx-h100", dtype="fp8"), "megatron")
        assert ("--fp8-recipe tensorwise" in text) == recipe
        assert read(text).workload["dtype"] == "fp8"


def test_modules_that_a_script_names_and_its_model_lacks_are_told():
    """Megatron passes over them, and over what is not modelled a prediction does."""
    text = write(llama("tp8-dp8-sel:norm+mlp"), "megatron").replace("layernorm mlp", "layernorm mlp moe gdn")
    launch = read(text)
    assert launch.scenario().strategy.recompute_modules == ("layernorm", "mlp")
    told = [remark.why for remark in launch.unmodelled if remark.flag == "--recompute-modules"]
    assert told == ["gdn: predicted as kept", "moe: nothing of the model is that"]


@pytest.mark.parametrize(("experts", "dense"), [({"every": 1}, False), ({"every": 2}, True), ({"dense_layers": 1}, True)])
def test_layers_without_experts_are_done_again_where_there_are_some(experts, dense):
    mixture = {"experts": {"count": 8, "active": 2, **experts}}
    launch = read(
        write(llama("tp8-dp8-sp-sel:norm", **mixture), "megatron").replace(
            "--recompute-modules layernorm", "--recompute-modules layernorm mlp"
        )
    )
    assert ("mlp" in launch.scenario().strategy.recompute_modules) == dense
    assert any("mlp: nothing of the model is that" in remark.why for remark in launch.unmodelled) != dense


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize(("embedding", "loss"), [(True, True), (True, False), (False, True)])
def test_the_embedding_and_the_loss_count_as_layers_of_their_stages(embedding, loss, virtual):
    """All stages have as much where each of both counts as a layer; layers are conserved."""
    ends = {"embedding": embedding, "loss": loss}
    flags = "".join(f"--account-for-{name}-in-pipeline-split " for name, counts in ends.items() if counts)
    text = write(llama(f"tp8-dp2-pp4{'-v2' if virtual > 1 else ''}-z1-sp"), "megatron")
    layers = 80 - embedding - loss
    plan = read(text.replace("--num-layers 80", f"{flags}--num-layers {layers}")).scenario().strategy
    sizes = plan.stage_layers or stage_layers(layers, 4 * virtual)  # those that a plan has by itself are not said
    assert sum(sizes) == layers
    counted = [size + embedding * (i == 0) + loss * (i == len(sizes) - 1) for i, size in enumerate(sizes)]
    assert counted == [80 // (4 * virtual)] * 4 * virtual


def test_what_no_flag_says_comes_back_from_comments():
    workload = {
        "model": "llama3-70b",
        **SERVED,
        "serving": {"arrival_rate": "2.5 1/s", "prefix_hits": 0.5, "speculation": {"tokens": 2, "acceptance": 0.7}},
    }
    scenario = crossflow.from_dict({"system": "dgx-h100", "workload": workload, "strategy": "tp8"})
    again = read(write(scenario, "vllm")).scenario()
    assert settings(again) == settings(scenario)
    assert again.system.name == "dgx-h100"


# ---------------------------------------------------------------------------------------------- files of others


@pytest.mark.parametrize("name", EXPECTED)
def test_files_in_the_style_of_public_ones_are_read(name):
    told, launch = EXPECTED[name], read(FOLDER / name, devices=EXPECTED[name].get("with"))
    assert (launch.kind, launch.devices, launch.system) == (told["kind"], told["devices"], told.get("system", ""))
    assert launch.nodes == told.get("nodes")
    assert plan_of(launch.strategy) == plan_of(told["strategy"])
    assert launch.workload == told["workload"]
    assert launch.software == told["software"]
    assert sorted(remark.flag for remark in launch.unmodelled) == sorted(told.get("unmodelled", []))
    assert sorted(launch.missing) == sorted(told.get("missing", []))
    assert [remark.flag for remark in launch.notes] == told.get("notes", [])
    assert len(launch.ignored) == told.get("ignored", len(launch.ignored))


@pytest.mark.cases(34)
@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_such_files_are_written_again_and_read_without_change(name):
    told = EXPECTED[name]
    launch = read(FOLDER / name, devices=told.get("with"))
    system = "tpu-v5p-pod" if launch.kind == "maxtext" else "h100-ib-cluster"
    scenario = launch.scenario({"template": system}, [f"{path}={GIVEN[path]}" for path in launch.missing])
    if name in UNWRITTEN:
        with pytest.raises(CrossflowError, match=UNWRITTEN[name]):
            write(scenario, launch.kind)
        return
    text = write(scenario, launch.kind)
    assert settings(read(text).scenario()) == settings(scenario)


def test_there_are_at_least_five_files_of_each_kind():
    assert {kind: sum(told["kind"] == kind for told in EXPECTED.values()) for kind in KINDS} == dict.fromkeys(KINDS, 6)
    assert {path.name for path in FOLDER.iterdir()} - {"expected.yaml"} == set(EXPECTED)


def served(model="llama3-70b", strategy="tp8", nodes=1, **workload):
    data = {"template": "dgx-h100", "nodes": nodes}
    return crossflow.from_dict({"system": data, "workload": {"model": model, **SERVED, **workload}, "strategy": strategy})


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (served(), "meta-llama/Meta-Llama-3-70B"), (served(dtype="fp8"), "meta-llama/Meta-Llama-3-70B"),  # made as it is loaded
        (served("gpt-oss-120b"), "openai/gpt-oss-120b"), (served("deepseek-v3", "tp8-ep8-etp1"), "deepseek-ai/DeepSeek-V3"),
        (served(weight_dtype="int4"), "./llama3-70b-int4"), (served("gpt-oss-120b", weight_dtype="bf16"), "./gpt-oss-120b-bf16"),
        (served("deepseek-v3", "tp8-ep8-etp1", dtype="bf16", weight_dtype="bf16"), "./deepseek-v3-bf16"), (served("megatron-22b"), "./megatron-22b"),
    ],
)  # fmt: skip
def test_a_checkpoint_has_the_types_that_were_predicted(scenario, name):
    """One that nobody released is a folder to fill, whose model comes back from a comment."""
    text = write(scenario, "vllm")
    assert f"vllm serve {name} " in text
    assert (f"into {name}, or its name" in text) == name.startswith("./")
    assert settings(read(text).scenario()) == settings(scenario)


def test_code_of_a_checkpoint_is_trusted_where_it_has_some():
    assert "--trust-remote-code" in write(served("kimi-k2", "tp8-ep8-etp1"), "vllm")
    assert "--trust-remote-code" not in write(served(), "vllm")


@pytest.mark.parametrize(
    ("strategy", "nodes", "flags"),
    [
        ("tp8", 1, ""), ("tp2-dp4", 1, ""), ("tp8-pp2", 2, "--distributed-executor-backend ray"),
        ("tp4-dp4", 2, "--data-parallel-backend ray --data-parallel-size-local 2"),
        ("tp8-dp2-pp2-placed:tp+pp+dp", 4, "--distributed-executor-backend ray --data-parallel-backend ray --data-parallel-size-local 1"),
    ],
)  # fmt: skip
def test_a_service_on_several_nodes_is_started_by_ray(strategy, nodes, flags):
    """vLLM looks for all devices in its own node, and does not start where there are less."""
    scenario = served(strategy=strategy, nodes=nodes)
    text = write(scenario, "vllm")
    assert " ".join(flags.split()) in " ".join(text.replace("\\\n", " ").split())
    assert ("Install Ray" in text, "ray" in text) == (bool(flags), bool(flags))
    assert ("VLLM_RAY_DP_PACK_STRATEGY=span" in text) == (nodes == 4)
    assert settings(read(text).scenario()) == settings(scenario)


def test_files_of_torchtitan_that_shard_no_weights_are_told_to_train_in_fp32():
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 8\ndata_parallel_shard_degree = 1\n'
    (remark,) = read(text, devices=8).unmodelled
    assert remark.flag == "parallelism.data_parallel_shard_degree"
    assert remark.why.startswith("torchtitan trains in fp32")
    assert not read(text.replace("shard_degree = 1", "shard_degree = 2"), devices=16).unmodelled


def test_arguments_of_the_trainer_repeat_what_the_configuration_of_deepspeed_says():
    text = write(llama("dp64-mb2-z3-full", global_batch=512), "deepspeed")
    assert '"train_micro_batch_size_per_gpu": 2' in text
    words = text.split()
    for argument, value in (("per_device_train_batch_size", "2"), ("gradient_accumulation_steps", "4"), ("bf16", "true")):
        assert words[words.index(f"--{argument}") + 1] == value
    assert "--bf16" not in write(llama("dp64-z3", dtype="fp32"), "deepspeed")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("megatron", "torchrun --nnodes 36 --nproc-per-node 4"), ("torchtitan", "--nnodes 36 --nproc-per-node 4"),
        ("deepspeed", "--num_nodes 36 --num_gpus 4"), ("sglang", "--nnodes 36"), ("tensorrt-llm", "srun --nodes 36 --ntasks-per-node 4"),
        ("vllm", "--data-parallel-size-local 1"), ("dynamo", "nvidia.com/gpu: '4'"),
    ],
)  # fmt: skip
def test_processes_start_on_hosts_where_a_node_has_several(kind, line):
    data = {"model": "llama3-70b", "global_batch": 288} | ({} if kind in TRAINING else {**SERVED, "global_batch": 288})
    strategy = {"sglang": "tp8-pp18", "tensorrt-llm": "tp8-pp18", "vllm": "tp4-dp36", "dynamo": "tp8-dp18"}.get(kind, "dp144-z3")
    scenario = crossflow.from_dict({"system": {"template": "gb200-nvl72", "nodes": 2}, "workload": data, "strategy": strategy})
    text = write(scenario, kind)
    assert line in text
    assert settings(read(text).scenario()) == settings(scenario)


def test_hosts_divide_a_node():
    with pytest.raises(CrossflowError, match="devices_per_host = 5 does not divide devices_per_node = 72"):
        crossflow.from_dict({
            "system": {"template": "gb200-nvl72", "devices_per_host": 5}, "workload": {"model": "llama3-8b", "global_batch": 72},
            "strategy": "dp72",
        })  # fmt: skip


HUGGINGFACE = Path(__file__).parent / "data" / "huggingface"


def own_model(folder, name, file="config.json"):
    """The file of a model in a folder of its own, as checkpoints have it."""
    folder.mkdir(exist_ok=True)
    (folder / file).write_text((HUGGINGFACE / f"{name}.json").read_text(encoding="utf-8"), encoding="utf-8")
    return str(folder / file)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm"])
def test_engines_take_a_config_with_layers_that_guess_tokens(tmp_path, kind):
    data = {**SERVED, "model": own_model(tmp_path / "glm", "glm-4.5")}
    scenario = crossflow.from_dict({"system": {"template": "dgx-h200", "devices": 8}, "workload": data, "strategy": "tp8"})
    text = write(scenario, kind)
    assert str(tmp_path / "glm") in text
    assert settings(read(text).scenario()) == settings(scenario)


def test_a_checkpoint_of_other_types_than_its_config_says_is_asked_for(tmp_path):
    data = {**SERVED, "model": own_model(tmp_path / "own", "olmo2-7b")}
    system = {"template": "dgx-h100", "devices": 1}
    scenario = crossflow.from_dict({"system": system, "workload": {**data, "weight_dtype": "int4"}, "strategy": "tp1"})
    assert f"# Put a checkpoint with weights in int4 into {tmp_path / 'own'}, in which" in write(scenario, "vllm")
    assert "# Put a checkpoint" not in write(crossflow.from_dict({"system": system, "workload": data, "strategy": "tp1"}), "vllm")


def test_the_file_of_a_model_must_have_the_name_that_engines_read(tmp_path):
    data = {**SERVED, "model": own_model(tmp_path / "own", "olmo2-7b", "mine.json")}
    scenario = crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 1}, "workload": data, "strategy": "tp1"})
    with pytest.raises(CrossflowError, match=r"vLLM reads a model's config\.json; give mine\.json that name in a folder of its own"):
        write(scenario, "vllm")


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.5-air"])
def test_megatron_takes_models_of_glm_from_their_configs(tmp_path, name):
    data = {"model": own_model(tmp_path / "glm", name), "sequence": 4096, "global_batch": 256}
    scenario = crossflow.from_dict({"system": {"template": "dgx-b200", "nodes": 16}, "workload": data, "strategy": "ep8-dp128-z1"})
    assert "--moe-router-score-function sigmoid" in write(scenario, "megatron")


@pytest.mark.parametrize("own", [False, True])
def test_sglang_does_not_exchange_tokens_of_experts_with_biases(tmp_path, own):
    model = own_model(tmp_path / "own", "gpt-oss-20b") if own else "gpt-oss-120b"
    data = {"system": {"template": "dgx-h100", "devices": 8}, "workload": {**SERVED, "model": model}, "strategy": "dp8-ep8"}
    with pytest.raises(CrossflowError, match="SGLang does not exchange tokens of experts that have biases"):
        write(crossflow.from_dict({**data, "software": "sglang"}), "sglang")
    gathered = crossflow.from_dict({**data, "software": {"like": "sglang", "kernels": {"gathers": "always"}}})
    assert "--ep-size 8" in write(gathered, "sglang")
    assert "--moe-a2a-backend" not in write(gathered, "sglang")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_exchanges_that_devices_of_another_maker_lack_are_told(kind):
    data = {"workload": {**SERVED, "model": "qwen3-235b-a22b"}, "strategy": "dp8-ep8", "software": kind}
    told = {
        system: "# DeepEP, which exchanges" in write(crossflow.from_dict({**data, "system": {"template": system, "devices": 8}}), kind)
        for system in ("mi300x-node", "dgx-h200")
    }
    assert told == {"mi300x-node": True, "dgx-h200": False}


@pytest.mark.parametrize(
    ("kind", "system", "cure"),
    [
        ("tensorrt-llm", "mi300x-node", "tensorrt-llm does not run on devices of AMD, only on those of NVIDIA; export to vllm, sglang"),
        ("dynamo", "mi300x-node", "dynamo does not run on devices of AMD, only on those of NVIDIA; export to vllm, sglang"),
        ("megatron", "tpu-v4-pod", "megatron does not run on devices of Google, only on those of NVIDIA, AMD and Intel; export to maxtext"),
    ],
)
def test_frameworks_that_do_not_run_on_the_devices_are_refused(kind, system, cure):
    data = {"model": "llama3-8b", **({"global_batch": 8} if kind in TRAINING else SERVED)}
    scenario = crossflow.from_dict({"system": {"template": system, "devices": 8}, "workload": data, "strategy": "dp8"})
    with pytest.raises(CrossflowError) as caught:
        write(scenario, kind)
    assert f"- system: {system}: {cure}" in str(caught.value).splitlines()


def test_types_of_torchtitan_come_back():
    for dtype in ("bf16", "fp32", "fp8", "mxfp8"):
        scenario = llama("dp64-z3", system="dgx-b200", dtype=dtype)
        text = write(scenario, "torchtitan")
        assert ("[quantize.linear.float8]" in text) == (dtype == "fp8")
        old = '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n[float8]\nrecipe_name = "rowwise"\n'  # of 2025
    assert read(f"# torchrun --nnodes 1 --nproc-per-node 8\n{old}").workload["dtype"] == "fp8"


@pytest.mark.parametrize(("ours", "theirs"), [("zb-v", "ZBVZeroBubble"), ("dualpipev", "DualPipeV"), ("zb-h1", "InterleavedZeroBubble")])
def test_schedules_of_several_stages_of_torchtitan_come_back(ours, theirs):
    text = write(llama(f"tp2-sp-dp8-pp4-v2-mb1-z2-full-{ours.replace('-', '')}", global_batch=128), "torchtitan")
    assert f'pipeline_parallel_schedule = "{theirs}"' in text
    found = read(text).strategy
    assert (found["schedule"], found["virtual_stages"]) == (ours, 2)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("strategy", "kind", "sentence"),
    [
        ("tp8-dp2-pp4-zbh1", "megatron", "schedule: zb-h1: Megatron-Core has only 1f1b, with or without virtual_stages"),
        ("tp8-dp2-pp4-v2-full-rl3", "megatron", "recompute_layers: 3: Megatron computes as many layers of every chunk again, 2"),
        ("tp8-dp2-pp4-placed:pp+tp+dp", "megatron", "placement: pp, tp, dp: Megatron lays ranks out as tp, dp, pp, or without cp and ep as tp, pp, dp"),
        ("dp64-z3-unsharded:embedding", "megatron", "unsharded: embedding: megatron has no flag for it"),
        ("dp64-z3-offload:optimizer+weights", "megatron", "offload: weights: Megatron's flags send only the optimizer's states to the host"),
        ("dp64-z1", "torchtitan", "zero: 1: torchtitan shards weights too (zero: 3), keeps them gathered (zero: 2), or shards nothing (zero: 0, without cp)"),
        ("tp8-dp2-pp4-z2", "torchtitan", "sequence_parallel: false: torchtitan's tensor parallelism always divides the sequence; add sequence_parallel: true"),
        ("tp8-dp2-pp4-sp", "torchtitan", "zero: 0 with tp: 8 and pp: 4: torchtitan trains unsharded replicas only where neither tp nor pp divides them; set zero: 2 or 3"),
        ("tp8-pp8-sp", "torchtitan", "zero: 0 with tp: 8 and pp: 8: torchtitan trains in fp32 where it shards no weights; use dp of 2 or more with zero: 2 or 3, or megatron"),
        ("tp8-dp2-pp4", "deepspeed", "pp: 4: the stages of DeepSpeed's pipelines are made in the training script; export to megatron"),
        ("dp64-sel:norm+mlp", "deepspeed", "recompute_modules: layernorm, mlp: the trainer computes whole layers again, or nothing"),
        ("dp64-z3-sel:mlp", "torchtitan", "recompute_modules: mlp: torchtitan checkpoints operations or whole layers; write recompute: none or full"),
        ("dp64-z3-g8", "deepspeed", "shard_group: 8: DeepSpeed shares out over all replicas since it removed MiCS; leave shard_group out"),
        ("dp64-selective", "deepspeed", "recompute: selective: the trainer computes whole layers again, or nothing"),
    ],
)  # fmt: skip
def test_parts_that_a_framework_has_not_are_named(strategy, kind, sentence):
    with pytest.raises(CrossflowError) as caught:
        write(llama(strategy), kind)
    assert f"- {sentence}" in str(caught.value).splitlines()


def test_routers_are_written_as_megatron_takes_them():
    """Its expert bias needs scores of sigmoid or sqrtsoftplus, and its router has a bias with all other linear layers."""
    mixture = {"count": 8, "active": 2, "balance_bias": True}
    text = write(llama(experts={**mixture, "score": "sigmoid", "scaling": 2.5}), "megatron")
    assert "--moe-router-enable-expert-bias" in text
    assert "--moe-router-score-function sigmoid" in text
    assert "--moe-router-topk-scaling-factor 2.5" in text
    with pytest.raises(CrossflowError, match=r"Megatron adds it to scores of sigmoid or sqrtsoftplus; give experts\.score"):
        write(llama(experts=mixture), "megatron")
    with pytest.raises(CrossflowError, match="Megatron's router has a bias where all linear layers have one, and only there"):
        write(llama(experts={"count": 8, "active": 2, "router_bias": True}), "megatron")
    with pytest.raises(CrossflowError, match="Megatron's experts have biases only where they are not cut; add etp: 1"):
        write(llama(experts={"count": 8, "active": 2, "router_bias": True}, biases=True), "megatron")
    biased = write(llama("tp8-dp2-pp4-etp1-z1-sp", experts={"count": 8, "active": 2, "router_bias": True}, biases=True), "megatron")
    assert "--disable-bias-linear" not in biased
    assert "--moe-router-enable-expert-bias" not in biased


def test_megatron_s_environment_follows_its_ranks():
    """It refuses to start with tensor or context ranks and another number of connections, and FSDP with that one."""
    for strategy in ("tp8-dp8-z1", "tp2-cp2-dp16-z1-sp", "dp16-cp4-z1"):
        assert "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n" in write(llama(strategy), "megatron")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in write(llama("dp64-z1"), "megatron")
    assert "\nunset CUDA_DEVICE_MAX_CONNECTIONS\n" in write(llama("tp8-dp8-z3-sp"), "megatron")


def test_delayed_scales_are_not_written_with_layers_in_16_bits():
    text = write(llama(dtype="fp8", wide_layers=["layers:0"]), "megatron")
    assert "--fp8-recipe tensorwise" in text
    assert "--fp8-recipe" not in write(llama(dtype="fp8"), "megatron")


def test_one_expert_a_token_needs_its_softmax_before():
    assert "--moe-router-pre-softmax" in write(llama(experts={"count": 8, "active": 1}), "megatron")
    assert "--moe-router-pre-softmax" not in write(llama(experts={"count": 8, "active": 2}), "megatron")


@pytest.mark.parametrize(
    ("module", "sentence"),
    [(module, f"{module}: of this model Megatron computes core_attn, layernorm, mlp again") for module in ("latent", "activation")],
)
def test_modules_that_a_model_has_not_are_not_computed_again(module, sentence):
    data = {**llama().to_dict(), "software": {"like": "megatron-core", "recomputed": [module]}}
    with pytest.raises(CrossflowError, match=sentence):
        write(crossflow.from_dict(data), "megatron")


def test_plans_that_divide_nothing_are_not_written():
    with pytest.raises(CrossflowError, match="25 attention heads are not divisible by tp = 8"):
        write(llama("tp8-dp8-z1", model="gpt2-xl"), "megatron")
    with pytest.raises(CrossflowError, match="ep = 8, but the model has no experts"):
        write(llama("dp64-ep8-z1"), "megatron")


def test_experts_need_what_megatron_asks_of_them():
    mixture = {"experts": {"count": 8, "active": 2}}
    with pytest.raises(CrossflowError, match="Megatron trains experts with tp only together with sequence_parallel: true"):
        write(llama("tp8-dp8-ep8-z1", **mixture), "megatron")
    text = write(llama("tp8-dp8-ep8-z1-sp", **mixture), "megatron")
    assert "--moe-token-dispatcher-type alltoall" in text
    assert "--moe-router-topk 2" in text  # at its default too
    assert "--moe-grouped-gemm" not in text  # one expert a rank
    several = write(llama("tp8-dp8-ep4-z1-sp", **mixture), "megatron")
    assert "--moe-grouped-gemm" in several
    assert "--moe-router-topk" not in write(llama(), "megatron")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text


@pytest.mark.slow
def test_models_that_a_framework_has_not_are_named():
    with pytest.raises(CrossflowError, match=r"parallel: true: megatron has no flag for it"):
        write(llama(parallel=True), "megatron")
    with pytest.raises(CrossflowError, match="torchtitan has no flavour of it"):
        write(llama(layers=60, model="llama2-13b", strategy="dp64"), "torchtitan")


@pytest.mark.parametrize(
    ("model", "strategy", "sentence"),
    [
        ("qwen3-32b", "dp16-pp4-z2", "pp: 4: torchtitan has no pipelines for its models of qwen3"),
        ("gpt-oss-120b", "dp16-cp4-z3", "cp: 4: torchtitan does not divide the attention of its models of gpt_oss over context ranks"),
    ],
)
def test_models_of_torchtitan_that_are_not_divided_so_are_named(model, strategy, sentence):
    with pytest.raises(CrossflowError) as caught:
        write(llama(strategy, model=model), "torchtitan")
    assert f"- {sentence}" in str(caught.value).splitlines()


def test_tasks_go_to_their_frameworks():
    with pytest.raises(CrossflowError, match="vllm serves models, and task is training"):
        write(llama(), "vllm")
    with pytest.raises(CrossflowError, match="which no launch file describes"):
        write(crossflow.from_dict({"system": "dgx-h100", "workload": "dlrm-a", "strategy": "dense (tp, ddp), embedding mp"}), "megatron")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--num-layers 3x", "<text>:2: --num-layers: expected a whole number from 1, got '3x'"),
        ("--num-layers", "<text>:2: --num-layers: expected a whole number, got nothing"),
        ("--normalization RmsNorm", "<text>:2: --normalization: expected one of LayerNorm, RMSNorm, got 'RmsNorm'; did you mean 'RMSNorm'?"),
        ("--hidden-size $H", "<text>:2: --hidden-size: the value '${H}' is known only where the script runs; write it out, or set the variable above"),
        ("--swiglu=3", "<text>:2: --swiglu: expected no value, got '3'"),
        ("--num-layers 4 --pipeline-model-parallel-size 3", "<text>:2: --pipeline-model-parallel-size: 4 layers do not divide over pp x chunks = 3 x 1; give --pipeline-model-parallel-layout"),
        ("--num-layers 4 --pipeline-model-parallel-layout 'Et|tL'", "<text>:2: --pipeline-model-parallel-layout: the layout has 2 stages and 2 layers; expected a multiple of 1 stages, 4 layers"),
    ],
)  # fmt: skip
def test_wrong_values_are_told_with_their_lines(line, problem):
    with pytest.raises(SpecError) as caught:
        read(f"python pretrain_gpt.py --bf16 \\\n  {line}\n")
    assert problem in str(caught.value).splitlines()


def test_all_problems_are_told_at_once():
    with pytest.raises(SpecError) as caught:
        read(
            "[model]\nflavor = '8B'\n[training]\nseq_len = 'x'\n[parallelism]\ntensor_parallel_degree = 0\npipeline_parallel_schedule = 'None'\n"
        )
    assert [problem.line for problem in caught.value.problems] == [4, 6]


def test_devices_must_divide():
    with pytest.raises(
        SpecError, match=r"12 devices are not divisible by tp x cp x pp = 8 x 1 x 1 = 8; count a multiple of 8 \(--devices 16\), or "
    ):
        read("torchrun --nproc-per-node 12 pretrain_gpt.py --num-layers 2\\\n --tensor-model-parallel-size 8\n")


def test_what_is_missing_is_told_with_its_cure():
    with pytest.raises(SpecError) as caught:
        read("vllm serve meta-llama/Llama-3.1-8B\n\n").scenario("dgx-h100")
    assert "workload.prompt: flags of vllm serve do not say how long prompts are; give it, such as --set workload.prompt=2000" in str(
        caught.value
    )


def test_a_comment_does_not_contradict_a_flag():
    with pytest.raises(SpecError, match=r"<text>:1: workload.kv_dtype|cannot say this"):
        read("# crossflow: workload.kv_dtype: bf16\nvllm serve llama3-8b --kv-cache-dtype fp8\n")
    with pytest.raises(SpecError, match="a flag says it too; remove the comment"):
        read("# crossflow: workload.sequence: 8\n{}\n".replace("{}", "deepspeed --deepspeed_config c train.py --max_seq_length 4"))


@pytest.mark.parametrize(
    "before", ["", "\n", "\n\n# mine\n", "# crossflow: system: dgx-h100\n", "#!/bin/bash\n# crossflow: system: dgx-h100\n\n"]
)
def test_what_is_wrong_in_a_comment_is_told_at_its_line_wherever_it_stands(before):
    for comment in ("workload.kv_dtype: bf16", "strategy.tp: 4", "system:"):
        with pytest.raises(SpecError) as caught:
            read(f"{before}# crossflow: {comment}\nvllm serve llama3-8b --kv-cache-dtype fp8\n")
        told = [(problem.line, problem.path) for problem in caught.value.problems]
        assert told == [(before.count("\n") + 1, comment.partition(":")[0])]


def test_unknown_flags_and_other_kinds_are_told():
    launch = read("vllm serve llama3-8b --tensor-paralel-size 4\n\n")
    assert [str(note) for note in launch.notes] == [
        "--tensor-paralel-size (line 1): unknown flag of vllm, not read; did you mean 'tensor-parallel-size'?"
    ]
    with pytest.raises(SpecError, match="expected a launch file of megatron, this is one of vllm"):
        read("vllm serve llama3-8b\n\n", kind="megatron")
    with pytest.raises(SpecError, match="expected a launch file: "):
        read("echo hello\n\n")


# ---------------------------------------------------------------------------------------------- tables and texts


@pytest.mark.parametrize("kind", SOURCES)
def test_fields_of_tables_are_settings(kind):
    known = {*defaults(), "workload.global_batch", "workload.hidden", "workload.layers", "workload.sequence", "workload.heads"}
    known |= {"workload.vocabulary", "workload.experts.count", "workload.experts.active", "workload.serving.chunk"}
    known |= {f"workload.latent.{key}" for key in ("query_rank", "kv_rank", "nope", "rope", "value")}
    named = {row.field for row in table(kind).flags.values() if row.field and not row.field.startswith("software.")}
    assert named <= known


@pytest.mark.parametrize("kind", SOURCES)
def test_no_flag_is_told_twice(kind):
    known = table(kind)
    assert len(known.spellings) == sum(1 + len(row.also) for row in known.flags.values())
    for flag in known.spellings:
        assert known.flags[known.found(flag)] is not None


def test_defaults_of_megatron_are_its_own():
    fields = read_flags(table("megatron"), [], "x.sh").fields
    assert (fields["strategy.tp"], fields["workload.norm"], fields["workload.gated"], fields["workload.positions"]) == (
        1, "layernorm", False, "learned",
    )  # fmt: skip


def test_layouts_are_of_megatron_s_documentation():
    assert layout_layers("Et*3|(tt|)*29,m|L") == (3, *[2] * 29, 0, 0)
    assert layout_layers("E" + "(t|)*9999" * 9) is None


def test_scripts_are_read_and_not_run(tmp_path):
    mark = tmp_path / "ran"
    script = read_script(
        f"A=$(touch {mark})\nB=`touch {mark}`\nC=$((2*(3+1)))\npython x.py $A $C ${{D:-4}} \"${{E}}\" 'a b' c\\ d # end\n", "x.sh"
    )
    assert [word.text for word in script.commands[0][2:]] == ["$(touch...)", "8", "4", "${E}", "a b", "c d"]
    assert not mark.exists()


def test_elements_of_arrays_part_at_spaces_without_quotes_alone():
    words = read_script("A=('--fp8-format hybrid' c)\nx ${A[@]} \"${A[@]}\"\n", "x.sh").commands[0][1:]
    assert [word.text for word in words] == ["--fp8-format", "hybrid", "c", "--fp8-format hybrid", "c"]


def test_a_server_without_a_model_asks_for_it():
    text = "vllm serve ./of-mine \\\n  --tensor-parallel-size 2\n"
    with pytest.raises(SpecError, match=r"no preset is known as '\./of-mine'; give it, as a name or its config\.json: --model llama3-8b"):
        read(text).scenario("dgx-h100", ["workload.prompt=1000", "workload.output=200"])


def test_a_launcher_without_nodes_or_hosts_starts_one_node():
    own = "--deepspeed --model_name_or_path meta-llama/Meta-Llama-3-8B --per_device_train_batch_size 1\n"
    assert read(f"deepspeed --num_gpus=4 x.py {own}").devices == 4
    assert read(f"deepspeed --hostfile=hosts --num_gpus=4 x.py {own}").devices is None


def test_a_script_that_is_tested_for_is_not_started():
    text = (
        "if [ ! -f pretrain_gpt.py ]; then echo pretrain_gpt.py not found; fi\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2\n"
    )
    assert [remark.flag for remark in read(text).notes] == ["condition"]


@pytest.mark.parametrize("text", ["x 'a", 'x "a', "A=(1 2", "cat <<E\nabc\n", "x ${A", "x `a"])
def test_scripts_that_do_not_end_are_refused(text):
    with pytest.raises(SpecError, match="does not end"):
        read_script(text, "x.sh")


def test_variables_that_grow_are_refused():
    with pytest.raises(SpecError, match="variables stand for more than"):
        read_script("A=aaaaaaaaaa\n" + 'A="$A$A$A$A"\n' * 20 + "x $A\n", "x.sh")


def test_settings_at_their_defaults_differ_in_nothing():
    assert differing(defaults()) == {}


FLOAT8 = """[model]
name = "qwen3"
flavor = "32B"
{converters}
[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_paralel_degree = 4
[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
filter_fqns = ["output"{kept}]
"""


def test_narrow_types_of_torchtitan_that_nothing_turns_on_are_told():
    on, off = (read(FLOAT8.format(converters=text, kept="")) for text in ('converters = ["quantize.linear.float8"]', ""))
    assert [launch.workload.get("dtype", "bf16") for launch in (on, off)] == ["fp8", "bf16"]
    gathered = "quantize.linear.float8.enable_fsdp_float8_all_gather (line 13): weights are predicted as gathered in 16 bits"
    assert [str(one) for one in on.unmodelled] == [gathered]
    assert any("model.converters names no quantize.linear.float8" in str(one) for one in off.unmodelled)
    assert "did you mean 'parallelism.tensor_parallel_degree'?" in str(on.notes[0])


def test_products_that_torchtitan_leaves_wide_are_told():
    kept = read(FLOAT8.format(converters='converters = ["quantize.linear.float8"]', kept=', "attention.wk"'))
    assert any("attention.wk: predicted in fp8, as all products but those of the head" in str(one) for one in kept.unmodelled)


@pytest.mark.parametrize(("method", "gathered"), [("allgather", True), ("alltoall", False)])
def test_how_keys_travel_comes_back_from_torchtitan(method, gathered):
    software = "torchtitan" if gathered else {"like": "torchtitan", "ring": {"gathered": False}}
    given = {
        "system": {"template": "dgx-h100", "nodes": 2},
        "workload": {"model": "llama3-8b", "global_batch": 16},
        "strategy": "cp4-dp4-z3",
    }
    text = write(crossflow.from_dict({**given, "software": software}), "torchtitan")
    assert ('context_parallel_rotate_method = "alltoall"' in text) is not gathered
    assert read(text).software == software
    told = text if not gathered else text.replace("[parallelism]", f'[parallelism]\ncontext_parallel_rotate_method = "{method}"')
    assert read(told).software == software
