# ruff: noqa: E501  (rows of tables)
"""Rates that makers and submitters publish, as tables of `validate`: every row is predicted as `predict` does, or skipped with the reason."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation import published
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.published import accelerators_table, maxtext_table, mlperf_run, mlperf_table, torchtitan_table
from crossflow.evidence.validation.serving import accelerators_serving_table, system_of
from crossflow.evidence.validation.serving_models import preset_of
from crossflow.evidence.validation.tables import read_rows, shipped

MLPERF = "id,round,submitter,accelerator,gpus,gpus_per_node,benchmark,global_batch,micro_batch,seq,tp,pp,cp,vp,ep,dp,precision,lora,step_time_s\n"
BRIDGE = "id,release,task,model,system,gpus,precision,gbs,mbs,seq,tp,pp,cp,vp,ep,etp,fsdp,tokens_per_s_gpu\n"


@pytest.fixture
def read(tmp_path):
    def read(name, text):
        (tmp_path / f"{name}.csv").write_text(text)
        return {table.name: table for table in validate(tmp_path).tables}[name]

    return read


def test_a_row_of_mlperf_is_predicted_as_predict_does(read):
    table = read("mlperf_training", MLPERF + "a,4.1,NVIDIA,h100-80gb,256,8,gpt3,2048,2,2048,4,8,1,6,1,8,fp8,0,20.08\n")
    made = crossflow.from_dict(
        {
            "system": {"template": "h100-ib-cluster", "nodes": 32}, "strategy": "tp4-pp8-dp8-v6-mb2-z1-sp", "software": "nemo",
            "workload": {"model": "gpt3-175b", "global_batch": 2048, "sequence": 2048, "dtype": "fp8"},
        }
    )  # fmt: skip
    assert table.predicted.tolist() == [crossflow.predict(made).step_time]
    assert (table.groups["source"], table.groups["scale"]) == (["MLPerf 4.1"], ["129 to 1,024 devices"])


def test_a_row_of_a_recommendation_model_has_the_layout_of_its_software(read):
    table = read("mlperf_training", MLPERF + "a,4.0,X,h100-80gb,16,8,dlrm_dcnv2,55296,,,,,,,,,,0,0.004\n")
    made = crossflow.from_dict(
        {
            "system": {"template": "h100-ib-cluster", "nodes": 2}, "strategy": "dense ddp, embedding (mp-columns, mp)", "software": "hugectr",
            "workload": {
                "model": "dlrm-dcnv2", "global_batch": 55296, "dtype": "fp16",
                "exchange": {"forward": "fp16", "backward": "fp16", "indices": "int32"},
            },
        }
    )  # fmt: skip
    assert table.predicted.tolist() == [crossflow.predict(made).step_time]
    assert table.groups["kind"] == ["training of recommendation models"]


def test_gpus_that_nvlink_joins_are_a_node_of_a_recommendation_model(read, tmp_path):
    read("mlperf_training", MLPERF + "a,5.0,X,gb200,64,4,dlrm_dcnv2,135168,,,,,,,,,,0,0.004\n")
    (row,) = read_rows(tmp_path / "mlperf_training.csv", ())
    data = mlperf_run(tmp_path / "mlperf_training.csv", row).data
    assert (data["system"]["devices_per_node"], data["system"]["nodes"]) == (64, 1)
    assert data["strategy"] == "dense ddp, embedding mp"


def test_a_layout_of_a_recommendation_model_is_refused_in_a_row(read):
    table = read("mlperf_training", MLPERF + "a,4.0,X,h100-80gb,16,8,dlrm_dcnv2,55296,,,,,,,,,fp8,0,0.004\n")
    assert list(table.skipped) == ["precision of a recommendation model: its layout and number formats are those of published.yaml"]


def test_a_published_rate_is_a_time_of_a_step_in_domains_of_nvlink(read):
    """Racks of 72 hold 64 GPUs of a job of 256; the recipe's chunks and what it computes again are known."""
    table = read("published_training", BRIDGE + "a,25.11,Pre-Training,DeepSeekV3 (w/o MTP),gb200,256,BF16,4096,1,4096,1,4,1,4,64,,0,3139\n")
    made = crossflow.from_dict(
        {
            "system": {"template": "gb200-nvl72", "devices_per_node": 64, "nodes": 4},
            "software": {"like": "nemo", "recomputed": ["latent"], "memory": {"moments": "bf16"}},
            "strategy": "pp4-dp64-ep64-v4-z1-first4-last1",
            "workload": {"model": "deepseek-v3", "mtp_layers": 0, "global_batch": 4096, "sequence": 4096, "dtype": "bf16"},
        }
    )  # fmt: skip
    assert table.measured[0] == pytest.approx(4096 * 4096 / (256 * 3139))
    assert table.predicted.tolist() == [crossflow.predict(made).step_time]


@pytest.mark.parametrize(("task", "frozen"), [("SFT Performance", False), ("LoRA Performance", True)])
def test_samples_of_fine_tuning_are_packed_of_short_pairs(read, task, frozen):
    """Their attention is that of 200 tokens; another task has that of whole samples."""
    row = "LLAMA3_70B,gb200,8,FP8,32,1,4096,1,2,1,20,,,,6206\n"
    table = read("published_training", f"{BRIDGE}a,26.06,{task},{row}b,26.06,Pre-Training,{row}")
    workload = {"model": "llama3-70b", "global_batch": 32, "sequence": 4096, "dtype": "fp8"}
    packed = {**workload, "window": {"size": 200, "chunked": True}, **({"frozen": ["embedding", "head", "layers:1-79"]} if frozen else {})}
    made = [
        crossflow.from_dict(
            {
                "system": {"template": "gb200-nvl72", "devices_per_node": 8, "nodes": 1}, "software": "nemo",
                "strategy": "pp2-dp4-v20-z1", "workload": work,
            }
        )
        for work in (packed, workload)
    ]  # fmt: skip
    assert table.predicted.tolist() == [crossflow.predict(scenario).step_time for scenario in made]


def test_a_rate_of_torchtitan_has_its_mode_and_its_checkpoints(read):
    header = BRIDGE.replace("\n", ",mode,checkpoint\n")
    rows = "a,25.6,Pre-Training,LLAMA3_8B,grand-teton,64,FP8,96,12,8192,8,1,1,1,1,,8,5570.1,async,selective\n"
    rows += "b,24.12,Pre-Training,LLAMA3_8B,grand-teton,8,BF16,16,2,8192,1,1,1,1,1,,8,5762,eager,full\n"
    table = read("torchtitan_training", header + rows)
    system = {
        "template": "h100-ib-cluster", "technology": {"memory": "HBM2e"}, "power": {"tdp": "500 W"},
        "levels": {"memory": {"capacity": "94 GiB", "bandwidth": "2.4 TB/s"}},
    }  # fmt: skip
    found = []
    for nodes, dtype, batch, software, strategy in (
        (8, "fp8", 96, {"like": "torchtitan", "overlap": {"tensor": "compiled"}, "recomputed": ["norm", "activation", "product"]},
         "tp8-dp8-z3-sp-mb12"),
        (1, "bf16", 16, "torchtitan-eager", "dp8-z3-mb2-full"),
    ):  # fmt: skip
        workload = {"model": "llama3-8b", "global_batch": batch, "sequence": 8192, "dtype": dtype}
        document = {"system": {**system, "nodes": nodes}, "workload": workload, "strategy": strategy, "software": software}
        found.append(crossflow.predict(crossflow.from_dict(document)).step_time)
    assert table.predicted.tolist() == pytest.approx(found, rel=1e-12)
    assert table.measured.tolist() == pytest.approx([96 * 8192 / (64 * 5570.1), 16 * 8192 / (8 * 5762)])


@pytest.mark.thorough
@pytest.mark.slow
def test_rates_of_torchtitan():
    """Nothing was fitted to them."""
    table = torchtitan_table(shipped())
    off = np.abs(table.predicted / table.measured - 1)
    assert len(off) == 34
    assert np.median(off) < 0.10
    assert not table.skipped


def test_rows_that_cannot_be_predicted_are_skipped_with_the_reason(read):
    rows = (
        "b,4.0,X,z900,8,8,gpt3,8,1,2048,8,1,1,,1,1,fp8,0,1\n"
        "c,4.0,X,h100-80gb,8,8,gpt3,8,1,2048,3,1,1,,1,2,fp8,0,1\n"
        "d,4.0,X,h100-80gb,8,8,gpt3,7,1,2048,4,1,1,,1,2,fp8,0,1\n"
    )
    assert dict(read("mlperf_training", MLPERF + rows).skipped) == {
        "no system for 'z900'": 1,
        "tp x cp x pp = 3 does not divide gpus = 8": 1,
        "cannot be divided: strategy tp4-dp2-z1-sp: global_batch = 7 is not divisible by dp x micro_batch = 2 x 1": 1,
    }


def test_what_is_no_whole_number_is_told(tmp_path, exactly):
    row = "a,4.0,X,h100-80gb,8,8,gpt3,many,1,2048,4,1,1,,1,2,fp8,0,1"
    (tmp_path / "mlperf_training.csv").write_text(MLPERF + row + "\n")
    sentence = f"{tmp_path / 'mlperf_training.csv'}: global_batch: expected a positive whole number, got 'many' in the row {row}"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        mlperf_table(tmp_path)


SERVED = "source,engine,device,gpus,model,tp,pp,precision,input,output,batch_or_concurrency,ttft_ms,itl_ms,e2e_s,tokens_per_s,note\n"


def test_a_served_row_has_the_system_and_the_host_of_its_source(read):
    table = read("serving_latency", SERVED + "rapid-llm-uci,vllm,a100-80gb,4,opt-13b,4,1,16 bit,1024,128,1,,,3.0,,\n")
    made = {
        "system": {"template": "a100-pcie-pairwise", "devices": 4}, "strategy": "tp4",
        "software": {"like": "vllm", "host": {"layer": "0.25 ms"}},
        "workload": {"model": "opt-13b", "task": "serving", "dtype": "bf16", "prompt": 1024, "output": 128, "global_batch": 1},
    }  # fmt: skip
    served = crossflow.predict(crossflow.from_dict(made)).score.serving
    assert table.predicted.tolist() == pytest.approx([float(served["e2el_s"][0])])
    assert table.notes[0].startswith("rapid-llm-uci: system a100-pcie-pairwise")


def test_a_run_of_a_known_number_of_requests_is_waves_and_a_last_one(read):
    """Checkpoints have the scales that the source says; the last wave is smaller and takes nearly as long."""
    rows = [
        f"{source},trt-llm 1.0,h100-80gb,8,qwen3-235b-a22b,8,1,fp8,500,2000,max,,,,18351,\n" for source in ("trtllm-perf-overview", "any")
    ]
    run, endless = read("serving_latency", SERVED + "".join(rows)).predicted

    def served(requests, dtype="fp8"):
        workload = {
            "model": "qwen3-235b-a22b", "experts": {"skew": 1.2}, "task": "serving", "dtype": dtype, "kv_dtype": "fp8",
            "prompt": 500, "output": 2000, "global_batch": requests,
        }  # fmt: skip
        system = {"template": "dgx-h100", "devices": 8}
        made = {"system": system, "strategy": "dp8-ep8", "software": "tensorrt-llm", "workload": workload}
        return {name: float(found[0]) for name, found in crossflow.predict(crossflow.from_dict(made)).score.serving.items()}

    assert endless == pytest.approx(1 / served(65536, "fp8_block")["output_throughput_tokens_per_s"])
    steady = served(65536)
    left = 3000 % int(steady["requests_decoding"])
    last = served(left + -left % 8)
    assert left < 3000 / 2
    assert run == pytest.approx(((3000 - left) / steady["output_throughput_tokens_per_s"] + last["e2el_s"] / 2000) / 3000)
    assert run > 1 / steady["output_throughput_tokens_per_s"]


def test_a_served_row_has_its_stages(read):
    """They are about as fast as as many ranks: prompts of requests that begin and end together hide behind each other."""
    rows = [
        f"trtllm-perf-overview,trt-llm 1.0,h100-80gb,2,llama-3.3-70b,{tp},{pp},fp8,1000,1000,max,,,,4000,\n" for tp, pp in ((1, 2), (2, 1))
    ]
    stages, ranks = read("serving_latency", SERVED + "".join(rows)).predicted
    assert ranks < stages < 1.2 * ranks


RUNS = "id,source,engine,engine_version,model,device,mode,isl,osl,concurrency,batch,tp,pp,precision,ttft_ms,tpot_ms\n"


def test_the_last_requests_of_a_run_see_half_of_the_prompts(read):
    """Of one request a user all are the last, of ten a tenth; in between the prompts of all others are read once."""
    runs = [("anywhere", "9"), ("nvidia-gap-analysis", "1.0"), ("nvidia-gap-analysis", "0.5.6.post2")]
    rows = [
        f"a,{source},{engine},{version},meta-llama/Llama-2-13b-hf,h100-80gb,agg,1000,200,64,,2,1,bf16,500,20\n"
        for (source, version), engine in zip(runs, ("vllm", "vllm", "sglang"), strict=True)
    ]
    table = read("serving", RUNS + "".join(rows))
    steady, ten, mixed = (time for kind, time in zip(table.groups["figure"], table.predicted, strict=True) if kind != "first token")
    workload = {"model": "llama2-13b", "dtype": "bf16", "prompt": 1000, "output": 200}
    made = {"system": {"template": "dgx-h100", "devices": 2}, "strategy": "tp2"}
    for software, among, times in (("vllm", steady, (10, ten)), ("sglang", None, (10, mixed))):
        stack = {**made, "software": software}
        served = crossflow.predict(crossflow.from_dict({**stack, "workload": {**workload, "task": "serving", "global_batch": 64}}))
        mean, decoding = (float(served.score.serving[name][0]) for name in ("tpot_s", "requests_decoding"))
        assert among in (None, pytest.approx(mean))
        writing = {**workload, "task": "decode", "global_batch": round(decoding)}
        alone = crossflow.predict(crossflow.from_dict({**stack, "workload": writing})).step_time
        assert (mean - times[1]) * times[0] == pytest.approx((mean - alone) / 2, rel=0.03)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("a,{},h100-80gb,0,llama-3.1-8b,1,1,fp8,1000,100,8,,,,100,\n", "gpus: expected a positive whole number, got '0'"),
        ("a,{},h100-80gb,1,llama-3.1-8b,1,1,fp8,x,100,8,,,,100,\n", "input: expected a positive whole number, got 'x'"),
        ("a,{},h100-80gb,1,llama-3.1-8b,1,1,fp8,1000,100,many,,,,100,\n", "expected max or a positive whole number, got 'many'"),
        ("a,{},h100-80gb,1,llama-3.1-8b,1,1,fp8,1000,100,8,,,,0,\n", "tokens_per_s: expected a number above zero, got '0'"),
        ("a,{},h100-80gb,1,llama-3.1-8b,1,1,fp8,1000,100,8,,,nan,,\n", "e2e_s: expected a number above zero, got 'nan'"),
    ],
)
def test_a_cell_of_a_served_row_that_cannot_be_is_named(read, row, told):
    with pytest.raises(CrossflowError, match=re.escape(told)):
        read("serving_latency", SERVED + row.format("vllm"))


def test_a_row_of_an_unknown_engine_is_left_out(read):
    row = "a,zzz,h100-80gb,1,llama-3.1-8b,1,1,fp8,1000,100,8,,,,100,\n"
    assert read("serving_latency", SERVED + row).skipped == Counter({"no software for engine 'zzz'": 1})


def test_a_checkpoint_of_a_maker_has_scales_of_blocks_and_nvidias_one_a_tensor(read):
    rows = [f"a,anywhere,trtllm,1.0,{maker}/Qwen3-32B,h100-80gb,agg,2048,128,64,,2,1,fp8,500,20\n" for maker in ("Qwen", "nvidia")]
    times = read("serving", RUNS + "".join(rows)).predicted
    made = {"system": {"template": "dgx-h100", "devices": 2}, "software": "tensorrt-llm", "strategy": "tp2"}
    workload = {"model": "qwen3-32b", "task": "serving", "kv_dtype": "fp8", "prompt": 2048, "output": 128, "global_batch": 64}
    for dtype, found in (("fp8_block", times[0]), ("fp8", times[2])):
        served = crossflow.predict(crossflow.from_dict({**made, "workload": {**workload, "dtype": dtype}})).score.serving
        assert found == pytest.approx(float(served["tpot_s"][0])), dtype


@pytest.mark.parametrize("device", ["h100-80gb", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi210", "a100-80gb", "a40"])
def test_services_on_several_devices_of_any_maker_are_predicted(read, device):
    """On a node or a rack of theirs."""
    row = f"a,anywhere,vllm,1.0,meta-llama/Llama-3.1-8B,{device},agg,1024,128,4,,2,1,bf16,500,20\n"
    assert np.isfinite(read("serving", RUNS + row).predicted).all()


@pytest.mark.parametrize(
    ("model", "preset"),
    [("nvidia/Llama-3.3-70B-Instruct-FP4", "llama3-70b"), ("nvidia/DeepSeek-R1-0528-NVFP4", "deepseek-v3"), ("Qwen/Qwen3-32B-FP8", "qwen3-32b")],
)  # fmt: skip
def test_a_model_is_known_with_its_maker_tuning_and_type(model, preset):
    assert preset_of(model) == preset


def test_cards_are_no_node_of_other_devices(read):
    skipped = read("serving", RUNS + "a,anywhere,vllm,1.0,meta-llama/Llama-3.1-8B,a100-pcie-80gb,agg,1024,128,4,,2,1,bf16,500,20\n").skipped
    assert dict(skipped) == {"the service does not fit as predicted": 1}


def test_replicas_read_the_prompts_of_a_burst_beside_each_other(read):
    header = RUNS.replace("precision", "attention_dp,moe_tp,moe_ep,precision")
    rows = [
        f"a,inferencex,sglang,0.5.9,meta-llama/Llama-3.1-8B,h100-80gb,agg,1000,200,{users},,1,1,{replicas},,,bf16,500,20\n"
        for users, replicas in ((32, 1), (64, 2))
    ]
    one, two = read("serving", header + "".join(rows)).predicted[[1, 3]]
    assert two == pytest.approx(one)


RECIPES = Path(__file__).parent / "data" / "bridge_recipes.csv"


@pytest.mark.thorough
@pytest.mark.slow
def test_layouts_of_recipes_fit_in_memory():
    """What NVIDIA runs on its own machines fits there, also on systems of which the tables here have no rate."""
    told = []
    rest = {"id": "", "date": "", "task": "Pre-Training", "cp": "1", "etp": "", "fsdp": "0", "tokens_per_s_gpu": "1"}
    for row in read_rows(RECIPES, ()):
        run = published.published_run(RECIPES, {**rest, **row})
        time, fits, _ = published.predicted(json.dumps(run.data, sort_keys=True))
        told.append((fits, *row.values()))
        assert np.isfinite(time)
    assert len(told) > 45
    assert [row for row in told if not row[0]] == []


@pytest.mark.parametrize(
    ("accelerator", "benchmark", "stack", "again"),
    [
        ("mi300x", "llama2_70b_lora", "nemo", 21), ("mi325x", "llama2_70b_lora", "nemo", 0), ("b200", "llama2_70b_lora", "nemo-graphs", 0),
        ("h100-80gb", "llama31_405b", "nemo", 0), ("gb200", "llama31_405b", "nemo-graphs", 0),
    ],
)  # fmt: skip
def test_submissions_capture_and_compute_again_what_their_configurations_say(accelerator, benchmark, stack, again):
    row = {
        "round": "5.0", "accelerator": accelerator, "gpus": "512", "gpus_per_node": "8", "benchmark": benchmark, "global_batch": "64",
        "seq": "8192", "tp": "8", "pp": "8", "cp": "1", "precision": "fp8", "lora": "0", "step_time_s": "1",
    }  # fmt: skip
    run = mlperf_run(Path("mlperf_training.csv"), row)
    assert run.stack == stack
    assert run.data["strategy"].get("recompute_layers", 0) == again


@pytest.mark.thorough
def test_submissions_of_mlperf_fit():
    """All of the package that ran; the configurations of LoRA keep one copy of a frozen weight, and inputs of activations in 8 bits."""
    rows = read_rows(shipped() / "mlperf_training.csv", published.MLPERF)
    told = [
        published.predicted(json.dumps(mlperf_run(Path("mlperf_training.csv"), row).data, sort_keys=True))[1] or row["id"]
        for row in rows if row["benchmark"] == "llama2_70b_lora"
    ]  # fmt: skip
    assert len(told) >= 3
    assert set(told) == {True}


def test_a_rate_of_maxtext_is_of_slices_that_are_replicas(read):
    """Two slices of 64 v5p, whose four tensor ranks leave 16 ranks of each that share weights out; what it keeps is known."""
    header = BRIDGE.replace("\n", ",checkpoint\n")
    row = "a,24.1,Pre-Training,MaxText 32B,v5p-128,128,BF16,896,28,2048,4,1,1,1,1,,16,1487.3,minimal\n"
    table = read("maxtext_training", header + row)
    model = {"model": "transformer", "layers": 32, "hidden": 8192, "heads": 64, "head_dim": 128, "ffn": 28672, "vocabulary": 32000}
    made = crossflow.from_dict(
        {
            "system": {"template": "tpu-v5p-pod", "devices_per_node": 64, "nodes": 2},
            "workload": {**model, "global_batch": 896, "sequence": 2048, "dtype": "bf16"},
            "strategy": {"tp": 4, "dp": 32, "zero": 3, "shard_group": 16, "micro_batch": 28, "sequence_parallel": True},
            "software": {"like": "maxtext", "recomputed": ["norm", "activation", "attention"]},
        }
    )  # fmt: skip
    assert table.predicted.tolist() == [crossflow.predict(made).step_time]
    assert table.groups["device"] == ["tpu-v5p"]


def test_every_published_run_of_maxtext_fits():
    rows = read_rows(shipped() / "maxtext_training.csv", published.PUBLISHED)
    runs = {json.dumps(published.maxtext_run(shipped(), row).data, sort_keys=True): row["id"] for row in rows}
    assert [name for text, name in runs.items() if not published.predicted(text)[1]] == []


def test_operations_of_a_token_are_those_that_maxtext_counts():
    """Rates that are printed in Tflop/s are divided by the operations of the model as it is predicted, scores under the mask included."""
    found = [row for row in read_rows(shipped() / "maxtext_training.csv", published.PUBLISHED) if row["printed_tflops"]]
    assert len(found) == 46
    for row in found:
        data = published.maxtext_run(shipped(), row).data
        data["workload"]["causal"] = False
        model = crossflow.from_dict({**data, "system": "tpu-v4-pod", "strategy": "dp64", "software": "ideal"}).job().model
        operations = 3.0 * model.forward_flops() / int(row["seq"]) * float(row["tokens_per_s_gpu"])
        assert operations / 1e12 == pytest.approx(float(row["printed_tflops"]), rel=2e-3)


@pytest.mark.thorough
@pytest.mark.slow
def test_rates_of_maxtext():
    """Nothing was fitted to dense models."""
    table = maxtext_table(shipped())
    off = np.abs(table.predicted / table.measured - 1)
    dense = np.array(["dense" in kind for kind in table.groups["kind"]])
    assert (dense.sum(), (~dense).sum()) == (67, 8)
    assert np.median(off[dense]) < 0.13
    assert off.max() < 0.5
    assert not table.skipped


# ------------------------------------------------------------------------------------------ chips of other makers


def test_every_run_of_other_makers_chips_is_predicted_with_their_software():
    table = accelerators_table(shipped())
    assert table.skipped == Counter()
    told = dict(zip(table.groups["device"], table.groups["stack"], strict=True))
    assert (told["mi355x"], told["gaudi2"], told["trainium"]) == ("nemo", "optimum-habana", "neuron")
    assert set(table.groups["maker"]) == {"AMD", "Intel", "AWS"}
    assert {"MLPerf 5.1", "AWS Neuron 2.24"} <= set(table.groups["source"])
    assert table.fits.all()


def test_runs_of_intel_compute_again_what_their_scripts_say():
    file = shipped() / "accelerators_training.csv"
    runs = {row["id"]: mlperf_run(file, row).data["strategy"] for row in read_rows(file, ())}
    gpt3, lora = runs["mlperf3.1-intel-gaudi2-n48-gpt3"], runs["mlperf4.0-intel-gaudi2-lora"]
    assert (gpt3["recompute"], gpt3["tp"], gpt3["pp"], gpt3["dp"]) == ("selective", 8, 6, 8)
    assert (lora["recompute"], lora["zero"], lora["dp"]) == ("full", 3, 8)


LATENCY_HEADER = (
    "source,engine,device,gpus,model,tp,pp,precision,input,output,batch_or_concurrency,ttft_ms,itl_ms,e2e_s,tokens_per_s,{}note\n"
)


def served(tmp_path, rows, more=""):
    (tmp_path / "accelerators_serving.csv").write_text(LATENCY_HEADER.format(more) + rows)
    return accelerators_serving_table(tmp_path).predicted


def test_an_engine_takes_as_many_requests_as_a_row_says_and_ends_when_they_do(tmp_path):
    """Of so few requests that all are written together, the time is that of a batch over the tokens it writes."""
    many = "s,vllm,mi300x,8,llama-3.1-70b,8,1,fp8,128,256,max,,,,1,{},\n"
    batch = "s,vllm,mi300x,8,llama-3.1-70b,8,1,fp8,128,256,64,,,1,,{}\n"
    together = served(tmp_path, many.format("64,"), "requests,")
    alone = served(tmp_path, batch.format(",,"), "requests,")
    assert together[0] == pytest.approx(alone[0] / (64 * 256), rel=0.03)
    assert served(tmp_path, many.format("512,"), "requests,")[0] < 0.6 * together[0]


def test_a_cache_is_kept_in_the_type_that_a_row_says(tmp_path):
    row = "s,vllm,mi300x,8,llama-3.1-70b,8,1,fp8,4096,256,128,,,1,,{}\n"
    wide, narrow = (served(tmp_path, row.format(kept), "cache,")[0] for kept in ("fp16,", ","))
    assert wide > 1.02 * narrow


def test_a_vllm_that_schedules_between_steps_waits_for_each_request(tmp_path):
    """Versions before 0.14: 20 us a request and a step, with what scheduling takes; other engines name no version behind their name."""
    row = "s,{},mi300x,8,llama-3.1-70b,8,1,fp8,128,256,256,,,1,,\n"
    old, new, unnamed = (served(tmp_path, row.format(engine))[0] for engine in ("vllm 0.10.0", "vllm 0.14.0", "vllm"))
    assert new == unnamed
    assert 256 * 256 * 20e-6 < old - new < 1.3 * 256 * 256 * 20e-6


def test_prompts_of_a_source_that_asks_for_the_same_again_are_cached(tmp_path):
    """Of whole requests alone: a throughput is that of prompts of their own."""
    row = "{},vllm 0.10.0,mi300x,8,llama-3.1-405b,8,1,fp8,{},64,64,,,{},,\n"
    long, short = (served(tmp_path, row.format("rocm-vllm-0.10", prompt, 1))[0] for prompt in (2048, 128))
    apart = served(tmp_path, row.format("other", 2048, 1))[0]
    assert long < 1.1 * short
    assert apart > 2.0 * long
    rate = "{},vllm 0.10.0,mi300x,8,llama-3.1-405b,8,1,fp8,2048,64,max,,,,1,64,\n"
    again, other = (served(tmp_path, rate.format(source), "requests,")[0] for source in ("rocm-vllm-0.10", "other"))
    assert again == other


@pytest.mark.parametrize("requests", [1, 64, 1024, 4096])
def test_no_number_of_requests_passes_the_roofline_of_the_chips(tmp_path, requests):
    """Weights are read once a step, and each token multiplies with all of them: of eight MI300X, two Gaudi 3 and sixteen Trainium."""
    chips = (
        ("mi300x", 8, "fp8", 2614.9e12, 5.3e12, 1),
        ("gaudi3", 2, "fp8", 1835e12, 3.67e12, 1),
        ("trainium", 16, "bf16", 190e12, 0.82e12, 2),
    )
    for device, count, precision, peak, memory, width in chips:
        engine = {"mi300x": "vllm 0.10.0", "gaudi3": "optimum-habana", "trainium": "transformers-neuronx"}[device]
        row = f"s,{engine},{device},{count},llama2-70b,{count},1,{precision},16,64,{requests},,,1,,\n"
        whole = served(tmp_path, row)
        if whole.size:  # the cache of many requests may have no room
            assert whole[0] >= 64 * max(requests * 2 * 68e9 / peak, width * 68e9 / memory) / count


def test_servers_of_aws_are_named_after_their_instances():
    assert (system_of("trainium"), system_of("trainium2"), system_of("gaudi3")) == ("trn1-node", "trn2-node", "gaudi3-node")
