"""Launch files of SGLang, TensorRT-LLM and Dynamo: exact texts, rules that several flags decide, and what is refused."""

import re
from pathlib import Path

import pytest

import crossflow
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import catalogue
from crossflow.edges.launch.dynamo import table_of
from crossflow.edges.launch.launch import read, write
from crossflow.edges.launch.models import names_of

EXPORTED = Path(__file__).parent / "data" / "exported"
SERVED = {"task": "serving", "prompt": 2000, "output": 500}
TWO = {"template": "h100-ib-cluster", "nodes": 2}
GIVEN = ["workload.prompt=1000", "workload.output=200"]
CASES = {
    "sglang.sh": {
        "system": {"template": "h100-ib-cluster", "nodes": 9}, "software": {"like": "sglang", "overlap": {"experts": True}},
        "workload": {"model": "deepseek-v3", **SERVED, "global_batch": 18432, "kv_dtype": "fp8"}, "strategy": "dp72-ep72-re32",
    },
    "tensorrt-llm.sh": {
        "system": TWO, "software": "tensorrt-llm", "strategy": "dp16-ep16",
        "workload": {"model": "deepseek-v3", **SERVED, "global_batch": 512, "serving": {"speculation": {"tokens": 2, "acceptance": 0.7}}},
    },
    "dynamo.yaml": {
        "system": TWO, "software": "sglang", "strategy": "dp16-ep16",
        "workload": {"model": "deepseek-v3", **SERVED, "global_batch": 256, "serving": {"prefill": {"strategy": "tp8", "workers": 2}}},
    },
}  # fmt: skip


def service(strategy, software, system=TWO, batch=64, **workload):
    data = {"model": "deepseek-v3", **SERVED, "global_batch": batch, **workload}
    return crossflow.from_dict({"name": "chat", "system": system, "software": software, "workload": data, "strategy": strategy})


@pytest.mark.parametrize("name", CASES)
def test_exports_are_these_texts(name):
    text = write(crossflow.from_dict({"name": "chat", **CASES[name]}), name.rpartition(".")[0])
    assert re.sub(r"Written by crossflow \S+:", "Written by crossflow VERSION:", text) == (EXPORTED / name).read_text(encoding="utf-8")


def test_presets_of_released_models_are_served_by_their_names():
    """A preset that cites the config.json of a released model, OWNER/NAME, has that name in launch files."""
    cited = {}
    for name, path in catalogue("templates", "models").items():
        if found := re.search(r"released model, ([\w.-]+/[\w.-]+), 20", path.read_text(encoding="utf-8")):
            cited[name] = found[1]
    assert {"glm-5", "minimax-m2", "qwen3.5-397b-a17b"} <= set(cited)
    assert {name: model for name, model in cited.items() if model not in names_of(name).huggingface} == {}


@pytest.mark.parametrize("model", ["deepseek-v4-pro", "qwen3.5-27b"])
def test_a_model_with_types_for_some_layers_or_states_is_served_by_its_name(model):
    """Of its experts or of the states that a service keeps, which its training does not know."""
    data = {"model": model, "task": "serving", "prompt": 1000, "output": 200, "global_batch": 64}
    strategy = "tp8-dp4-ep32-etp1-sp" if model.startswith("deepseek") else "tp8-dp4"
    text = write(crossflow.from_dict({"system": {"template": "dgx-h200", "nodes": 4}, "workload": data, "strategy": strategy}), "vllm")
    assert f"vllm serve {names_of(model).huggingface[0]} " in text


# ---------------------------------------------------------------------------------------------- sglang


def sglang(flags, model="deepseek-ai/DeepSeek-V3"):
    return read(f"python3 -m sglang.launch_server \\\n --model-path {model} {flags}\n")


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm"])
def test_a_dense_model_in_fp8_is_read_back_as_itself(kind, tmp_path):
    """The name of the model stands in a comment of the file: the flag names a folder."""
    workload = {"model": "llama3-70b", "task": "decode", "dtype": "fp8", "prompt": 1000, "output": 200, "global_batch": 64}
    scenario = crossflow.from_dict({"system": "dgx-h200", "workload": workload, "strategy": "tp8", "software": kind})
    path = tmp_path / "serve.sh"
    path.write_text(text := crossflow.export(scenario, kind))
    assert ("# crossflow: workload.model: llama3-70b\n" in text) == (kind == "tensorrt-llm")  # the others make fp8 of the released weights
    again = read(path).scenario("dgx-h200")
    assert crossflow.predict(again).step_time == pytest.approx(crossflow.predict(scenario).step_time, rel=1e-9)


@pytest.mark.parametrize("command", ["vllm serve {}\n", "python3 -m sglang.launch_server --model-path {}\n", "trtllm-serve {}\n"])
def test_a_comment_names_no_other_model_than_the_flag(command):
    said = "#!/bin/sh\n# crossflow: workload.model: llama3-70b\n"
    with pytest.raises(SpecError, match=r"-8B' is llama3-8b, and the comment workload\.model says llama3-70b; remove one of both"):
        read(said + command.format("meta-llama/Llama-3.1-8B"))
    for agreed in ("meta-llama/Llama-3.1-70B", "./our-own"):
        assert read(said + command.format(agreed)).workload["model"] == "llama3-70b"


def test_limits_of_a_server_are_shared_by_groups_of_attention():
    launch = sglang(
        "--tp 8 --dp 8 --enable-dp-attention --ep 8 --moe-a2a-backend deepep --max-running-requests 100 --chunked-prefill-size 16384"
    )
    assert launch.workload["global_batch"] == 96  # twelve for each of eight
    assert launch.workload["serving"] == {"chunk": 2048}
    assert sglang("--tp 8 --max-running-requests 100 --chunked-prefill-size 16384").workload["serving"] == {"chunk": 16384}


def test_both_spellings_of_attention_data_parallelism_mean_the_same():
    old, new = sglang("--tp 16 --dp 4 --enable-dp-attention --ep-size 16"), sglang("--tp 16 --attn-dp-size 4 --ep-size 16")
    assert (old.strategy, old.devices) == (new.strategy, new.devices)
    assert old.strategy == {"tp": 4, "dp": 4, "pp": 1, "ep": 16, "etp": 1, "sequence_parallel": True}


def test_one_replica_has_all_tokens_on_each_rank_unless_they_are_exchanged():
    """Then experts add up what they give; only SGLang's exchanges divide the tokens of one group of attention."""
    assert "sequence_parallel" not in sglang("--tp 8 --ep 8").strategy
    assert sglang("--tp 8 --moe-a2a-backend deepep").strategy["sequence_parallel"]
    whole, divided = (service(f"tp8-ep8-etp1{own}", "sglang", "dgx-h200") for own in ("", "-sp"))
    assert "deepep" not in write(whole, "sglang")
    assert "--moe-a2a-backend deepep" in write(divided, "sglang")
    assert "--ep_size 8" in write(service("tp8-ep8-etp1", "tensorrt-llm", "dgx-h200"), "tensorrt-llm")
    with pytest.raises(CrossflowError, match="sequence_parallel: true: TensorRT-LLM has false here"):
        write(service("tp8-ep8-etp1-sp", "tensorrt-llm", "dgx-h200"), "tensorrt-llm")


def test_an_exchange_spans_all_ranks_and_a_gather_is_told_to_the_software():
    assert sglang("--tp 8 --moe-a2a-backend deepep").strategy["ep"] == 8
    assert sglang("--tp 8 --ep 8").software == {"like": "sglang", "kernels": {"gathers": "always"}}
    assert sglang("--tp 8 --ep 4").software == "sglang"  # ranks that share an expert gather in every stack


def test_balanced_experts_and_copies():
    assert sglang("--tp 8 --ep 8 --moe-a2a-backend deepep --enable-eplb").software == {"like": "sglang", "engine": {"balances": True}}
    both = sglang(
        "--tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep --moe-dense-tp-size 1 --ep-num-redundant-experts 8 --enable-eplb"
    )
    assert (both.software, both.strategy["redundant_experts"], both.unmodelled) == ("sglang", 8, ())
    alone = sglang("--tp 8 --moe-a2a-backend deepep --ep-num-redundant-experts 8")
    assert [str(one) for one in alone.unmodelled] == [
        "--ep-num-redundant-experts (line 2): copies are predicted so placed that ranks are alike full (--enable-eplb)"
    ]


def test_dense_layers_that_sglang_divides_otherwise_are_told():
    """Of DeepSeek-V3 under four groups of attention on two ranks each: three dense layers, which SGLang divides over all eight or none."""
    workload = {"model": "deepseek-v3", "task": "decode", "prompt": 1000, "output": 100, "global_batch": 64}
    scenario = crossflow.from_dict({"system": "dgx-h200", "workload": workload, "strategy": "tp2-dp4-ep8-etp1-sp", "software": "sglang"})
    assert "Dense layers are predicted divided over 2 ranks, as attention is; SGLang divides them over all" in crossflow.export(
        scenario, "sglang"
    )
    single = crossflow.from_dict({"system": "dgx-h200", "workload": workload, "strategy": "tp1-dp8-ep8", "software": "sglang"})
    assert "--moe-dense-tp-size 1" in crossflow.export(single, "sglang")


def test_steps_that_are_not_scheduled_ahead():
    """Of vLLM --async-scheduling is the default by now, and changes nothing."""

    def vllm(flag):
        return read(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flag}\n").software

    off = {"engine": {"asynchronous": False}}
    assert vllm("") == vllm("--async-scheduling") == "vllm"
    assert vllm("--no-async-scheduling") == {"like": "vllm", **off}
    assert sglang("--tp 8 --disable-overlap-schedule").software["engine"] == off["engine"]
    workload = {"model": "llama3-8b", **SERVED, "global_batch": 64}
    for kind, flag in (
        ("vllm", "--no-async-scheduling"), ("sglang", "--disable-overlap-schedule"), ("tensorrt-llm", "disable_overlap_scheduler: true"),
    ):  # fmt: skip
        software = {"like": kind, **off, "host": {"schedule": "1 ms"}}
        made = {"system": "dgx-h100", "workload": workload, "strategy": "tp8", "software": software}
        assert flag in write(crossflow.from_dict(made), kind)
        assert flag not in write(crossflow.from_dict({**made, "software": kind}), kind)


def test_priorities_of_vllm_are_read_and_written():
    engine = {"like": "vllm", "engine": {"queue": "priority"}}
    assert read("vllm serve meta-llama/Llama-3.1-8B --scheduling-policy priority\n").software == engine
    assert read("vllm serve meta-llama/Llama-3.1-8B --scheduling-policy fcfs\n").software == "vllm"
    made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", **SERVED, "global_batch": 64}, "strategy": "tp8"}
    assert "--scheduling-policy priority" in write(crossflow.from_dict({**made, "software": engine}), "vllm")
    assert "--scheduling-policy" not in write(crossflow.from_dict({**made, "software": "vllm"}), "vllm")


def test_priorities_of_sglang_are_read_and_written():
    engine = {"like": "sglang", "engine": {"queue": "priority"}}
    launch = sglang("--tp 8 --enable-priority-scheduling --disable-priority-preemption")
    assert (launch.software, launch.unmodelled) == (engine, ())
    made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", **SERVED, "global_batch": 64}, "strategy": "tp8"}
    written = write(crossflow.from_dict({**made, "software": engine}), "sglang")
    assert "--enable-priority-scheduling" in written
    assert "--disable-priority-preemption" in written
    assert "schedule-policy" not in written
    assert "priority" not in write(crossflow.from_dict({**made, "software": "sglang"}), "sglang")


@pytest.mark.parametrize(
    ("flags", "queue", "told"),
    [
        ("--enable-priority-scheduling", "priority", ["--enable-priority-scheduling (line 2): requests at work stay until they lose"]),
        ("--enable-priority-scheduling --schedule-low-priority-values-first --disable-priority-preemption", "priority",
         ["--schedule-low-priority-values-first (line 2): a larger `priority` of a class is first here; give classes of requests the"]),
        ("--enable-priority-scheduling --priority-scheduling-preemption-threshold 5", "priority", ["requests at work stay"]),
        ("--enable-priority-scheduling --schedule-policy lof", "priority", ["--schedule-policy (line 2): predicted in order of arrival within",
         "requests at work stay"]),
        ("--schedule-low-priority-values-first --schedule-policy lof", "output", ["does nothing without --enable-priority-scheduling"]),
    ],
)  # fmt: skip
def test_what_priorities_of_sglang_do_beside_is_told(flags, queue, told):
    launch = sglang(f"--tp 8 {flags}")
    assert launch.software == {"like": "sglang", "engine": {"queue": queue}}
    assert len(launch.unmodelled) == len(told)
    assert all(what in str(one) for what, one in zip(told, launch.unmodelled, strict=True))


def test_priorities_of_sglang_do_not_go_with_orders_by_prefix():
    with pytest.raises(SpecError, match=r"--schedule-policy: --enable-priority-scheduling takes fcfs or lof, got lpm"):
        sglang("--tp 8 --enable-priority-scheduling --schedule-policy lpm")


def test_orders_of_sglang_are_read_and_written():
    for word, order in {"lpm": "prefix", "lof": "output"}.items():
        launch = sglang(f"--tp 8 --schedule-policy {word}")
        assert (launch.software, launch.unmodelled) == ({"like": "sglang", "engine": {"queue": order}}, ())
        made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", **SERVED, "global_batch": 64}, "strategy": "tp8"}
        assert f"--schedule-policy {word}" in write(crossflow.from_dict({**made, "software": launch.software}), "sglang")
    assert sglang("--tp 8 --schedule-policy fcfs").software == sglang("--tp 8").software == "sglang"
    near = sglang("--tp 8 --schedule-policy dfs-weight")
    assert near.software == {"like": "sglang", "engine": {"queue": "prefix"}}
    assert [str(one) for one in near.unmodelled] == ["--schedule-policy (line 2): predicted as lpm, the longest prefix in the cache first"]
    with pytest.raises(SpecError, match=r"--schedule-policy: expected one of fcfs, lpm, lof, .*, got 'lmp'; did you mean 'lpm'\?"):
        sglang("--tp 8 --schedule-policy lmp")


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["sglang", "tensorrt-llm"])
def test_steps_that_are_prepared_in_an_unknown_time_are_no_gain(kind):
    """The host's time between two steps is 0 in the files of both engines, as nobody measured it."""
    made = {"system": "dgx-h100", "workload": {"model": "llama3-8b", **SERVED, "global_batch": 64}, "strategy": "tp8"}
    software = {"like": kind, "engine": {"asynchronous": False}}
    with pytest.raises(
        SpecError, match=r"software.engine.asynchronous: what the host of .* does between two steps was not measured"
    ) as error:
        crossflow.from_dict({**made, "software": software})
    assert "give that time too, such as host: {schedule: 1 ms}" in str(error.value)
    slower = crossflow.from_dict({**made, "software": {**software, "host": {"schedule": "1 ms"}}}).predict()
    assert slower.step_time > crossflow.from_dict({**made, "software": kind}).predict().step_time


def test_guesses_of_sglang():
    assert sglang("--tp 8 --speculative-algorithm EAGLE --speculative-num-steps 2").workload["serving"] == {"speculation": {"tokens": 2}}
    assert sglang("--tp 8 --speculative-algorithm ngram").workload["serving"] == {"speculation": {"tokens": 11}}
    launch = sglang("--tp 8 --speculative-algorithm EAGLE")
    assert sorted(launch.missing) == [
        "workload.output", "workload.prompt", "workload.serving.speculation.acceptance", "workload.serving.speculation.tokens",
    ]  # fmt: skip
    tree = sglang("--tp 8 --speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 4")
    assert [one.flag for one in tree.unmodelled] == ["--speculative-eagle-topk"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--tp 8 --dp 3 --enable-dp-attention", "--dp-size: tp-size = 8 is not divisible by 3: groups of attention lie within its ranks"),
        ("--tp 8 --ep 3", "--ep-size: tp-size = 8 is not divisible by 3"),
        ("--tp 8 --dp 2 --attn-dp-size 2", "--dp-size: 2 replicas do not go with attn-dp-size = 2"),
        ("--tp 8 --moe-a2a-backend depep", "--moe-a2a-backend: expected one of none, deepep,"),
        ("--tp 8 --quantization fp7", "--quantization: expected one of fp8, w8a8_fp8,"),
    ],
)
def test_what_sglang_refuses_is_refused(flags, sentence):
    with pytest.raises(SpecError, match=re.escape(sentence)):
        sglang(flags)


def test_experts_of_a_model_without_any_are_told():
    launch = sglang("--tp 8 --ep-size 8", "meta-llama/Llama-3.1-70B")
    assert launch.strategy == {"tp": 8, "dp": 1, "pp": 1}
    assert [str(one) for one in launch.unmodelled] == ["--ep-size (line 2): the model has no experts, and the flag does nothing"]


@pytest.mark.parametrize(
    ("strategy", "kind", "sentence"),
    [
        ("tp8-dp2", "sglang", "dp: 2: replicas of a server of SGLang lie in one node; export to dynamo, which starts several servers"),
        ("dp16-ep8", "sglang", "this plan 2 replicas with 8 groups; export to dynamo, which starts several servers"),
        ("tp8-pp2-placed:pp+tp+dp", "sglang", "placement: pp, tp, dp: SGLang lays ranks out as tp, dp, pp"),
        (
            "tp4-dp4-ep16-etp1-sp",
            "tensorrt-llm",
            "tp: 4 with dp: 4: attention of TensorRT-LLM is divided over all ranks of a stage (dp: 1) or over none (tp: 1)",
        ),
        ("tp8-dp2", "tensorrt-llm", "dp: 2: trtllm-serve has no replicas of 8 ranks; export to dynamo, which starts several servers"),
        ("tp16-sp", "dynamo", "sequence_parallel: true: SGLang has false here"),
    ],
)
def test_parts_that_an_engine_has_not_are_named(strategy, kind, sentence):
    with pytest.raises(CrossflowError) as caught:
        write(service(strategy, "tensorrt-llm" if kind == "tensorrt-llm" else "sglang"), kind)
    assert sentence in str(caught.value)


def test_servers_do_not_train_and_workers_of_their_own_need_dynamo():
    with pytest.raises(CrossflowError, match="sglang serves models, and task is training; export to megatron, torchtitan, deepspeed"):
        write(crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"}), "sglang")
    with pytest.raises(CrossflowError, match=r"serving\.prefill\.strategy: tp8: sglang has no flag for it"):
        write(service("dp16-ep16", "sglang", serving={"prefill": {"strategy": "tp8", "workers": 1}}), "sglang")


@pytest.mark.parametrize(
    ("software", "flags"),
    [
        ("sglang", ["--tp-size", "'8'", "--dp-size", "'8'", "--enable-dp-attention", "--ep-size", "'8'"]),
        ("vllm", ["--tensor-parallel-size", "'1'", "--data-parallel-size", "'8'", "--enable-expert-parallel"]),
        ("tensorrt-llm", ["--tensor-parallel-size", "'8'", "--expert-parallel-size", "'8'"]),
    ],
)
def test_workers_whose_ranks_read_prompts_of_their_own_come_back(software, flags):
    prefill = {"strategy": "ep8-dp8", "workers": 3}
    text = write(service("dp16-ep16", software, serving={"prefill": prefill}), "dynamo")
    reads = text[text.index("name: prefill") :]
    listed = re.findall(r"^ +- (\S+)$", reads, re.MULTILINE)
    assert " ".join(flags) in " ".join(listed)
    assert ("--enable-attention-dp" in listed) == (software == "tensorrt-llm")
    assert ("deepep_high_throughput" in listed) == (software == "vllm")
    assert "replicas: 3" in reads
    assert read(text).workload["serving"] == {"prefill": prefill}


def test_ranks_that_share_experts_are_each_a_worker_of_the_deployment():
    several = service("dp16-ep16", "tensorrt-llm", serving={"prefill": {"strategy": "dp8-ep4", "workers": 3}})
    with pytest.raises(
        CrossflowError, match="experts of ep4-dp8 lie over 4 of its 8 ranks, so that it is 2 workers; give ep4-dp4 and so many"
    ):
        write(several, "dynamo")
    told = {"prefill": {"strategy": "ep4-dp4", "workers": 6}}
    text = write(service("dp16-ep16", "tensorrt-llm", serving=told), "dynamo")
    assert "replicas: 6" in text
    assert read(text).workload["serving"] == told


@pytest.mark.parametrize("software", ["sglang", "tensorrt-llm"])
def test_ranks_with_prompts_of_their_own_and_a_part_of_each_expert_come_back(software):
    prefill = {"strategy": "etp8-dp8", "workers": 3}
    text = write(service("dp16-ep16", software, serving={"prefill": prefill}), "dynamo")
    assert "--e" not in text[text.index("name: prefill") :].replace("--enable-", "")  # no expert parallelism
    assert read(text).workload["serving"] == {"prefill": prefill}


def test_released_types_are_served_as_they_are():
    text = write(service("dp16-ep16", "sglang"), "sglang")
    assert "quantization" not in text
    assert "--dtype" not in text
    again = read(text).scenario()
    assert (again.workload.dtype, again.workload.weight_dtype) == ("fp8_block", None)


# ---------------------------------------------------------------------------------------------- tensorrt-llm


def trtllm(flags, config=""):
    return read(f"cat > c.yaml <<EOF\n{config}\nEOF\ntrtllm-serve deepseek-ai/DeepSeek-V3 {flags} --extra_llm_api_options c.yaml\n")


def test_the_file_counts_where_options_say_the_same():
    launch = trtllm(
        "--tp_size 4 --kv_cache_free_gpu_memory_fraction 0.9", "tensor_parallel_size: 8\nkv_cache_config: {free_gpu_memory_fraction: 0.7}"
    )
    assert (launch.devices, launch.software) == (8, {"like": "tensorrt-llm", "engine": {"cache": 0.7}})


def test_slots_beyond_the_experts_hold_copies():
    config = "enable_attention_dp: true\nmoe_config:\n  load_balancer:\n    num_slots: "
    assert trtllm("--tp_size 8 --ep_size 8", f"{config}288").strategy["redundant_experts"] == 32
    assert trtllm("--tp_size 8 --ep_size 8", f"{config}256").software == {"like": "tensorrt-llm", "engine": {"balances": True}}
    with pytest.raises(SpecError, match="200 slots are fewer than the 256 experts"):
        trtllm("--tp_size 8 --ep_size 8", f"{config}200")


def test_what_is_wrong_in_the_file_has_its_line():
    with pytest.raises(SpecError, match=r"<text>:3: kv_cache_config.dtype: expected one of auto, fp8"):
        trtllm("--tp_size 8", "kv_cache_config:\n  dtype: fp9")
    with pytest.raises(SpecError, match="8 ranks are not divisible by 3"):
        trtllm("--tp_size 8 --ep_size 3", "enable_attention_dp: false")


def test_replicas_without_experts_are_ranks_with_requests_of_their_own():
    scenario = service("dp8", "tensorrt-llm", system="dgx-h100", model="llama3-8b")
    text = write(scenario, "tensorrt-llm")
    assert "enable_attention_dp: true" in text
    assert "--tp_size 8" in text
    assert read(text).strategy == {"tp": 1, "dp": 8, "pp": 1}


# ---------------------------------------------------------------------------------------------- dynamo


def test_replicas_are_workers_and_a_worker_may_take_several_nodes():
    text = write(service("dp16-ep8", "sglang"), "dynamo")
    assert "replicas: 2" in text
    assert "nodeCount" not in text
    assert "nodeCount: 2" in write(service("dp16-ep16", "sglang"), "dynamo")
    assert "- dynamo.vllm" in write(service("dp16-ep16", "vllm"), "dynamo")
    assert "- dynamo.trtllm" in write(service("dp16-ep16", "tensorrt-llm"), "dynamo")


def test_no_flag_of_a_worker_is_told_twice():
    for backend in ("vllm", "sglang", "tensorrt-llm"):
        known = table_of(backend)
        assert len(known.spellings) == sum(1 + len(row.also) for row in known.flags.values())


def test_workers_that_differ_are_told():
    line = "python3 -m dynamo.vllm --model meta-llama/Llama-3.1-8B --tensor-parallel-size"
    launch = read(f"{line} 2 &\n{line} 2 &\n{line} 4 &\n")
    assert (launch.devices, launch.strategy["dp"]) == (4, 2)
    assert [str(note) for note in launch.notes] == ["dynamo.vllm (line 3): a worker unlike the first of its kind, not read"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: DynamoGraphDeployment\nspec: {}\n", "<text>:2: spec: expected components, or services of v1alpha1"),
        ("kind: DynamoGraphDeployment\nspec: 3\n", "<text>:2: spec: expected a mapping, got 3"),
        ("kind: DynamoGraphDeployment\nspec:\n  components: [3]\n", "<text>:3: spec.components[0]: expected a mapping, got 3"),
        (
            "kind: DynamoGraphDeployment\nspec:\n  services: {a: {extraPodSpec: 3}}\n",
            "spec.services.a.extraPodSpec: expected a mapping, got 3",
        ),
        (
            "kind: DynamoGraphDeployment\nspec:\n  components: [{podTemplate: {spec: {containers: [3]}}}]\n",
            "containers: expected a list of mappings",
        ),
        ("kind: ConfigMap\ndata: 3\n---\nkind: DynamoGraphDeployment\nspec: {}\n", "<text>:2: data: expected a mapping, got 3"),
        ("kind: DynamoGraphDeployment\nspec:\n  components: []\n", "the deployment starts no workers of vLLM, SGLang or TensorRT-LLM"),
        ("python3 -m dynamo.vllm --model llama3-8b \\\n --disaggregation-mode prefill\n", "all of them only read prompts (prefill)"),
        (
            "python3 -m dynamo.vllm --model llama3-8b \\\n --tensor-parallel-size x\n",
            "<text>:2: --tensor-parallel-size: expected a whole number",
        ),
    ],
)
def test_deployments_that_are_none_are_refused(text, sentence):
    with pytest.raises(SpecError, match=re.escape(sentence)):
        read(text)


def test_devices_of_a_worker_are_those_of_its_flags():
    text = write(service("dp16-ep16", "vllm"), "dynamo").replace("nodeCount: 2", "nodeCount: 3")
    with pytest.raises(SpecError, match=r"tp x pp x dp = 1 x 1 x 16 = 16, and there are 24 devices"):
        read(text)


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LENGTHS = ("workload.prompt=1000", "workload.output=100")


def test_adapters_that_an_engine_serves_are_read_from_its_flags():
    read_vllm = read(f"vllm serve {LLAMA} \\\n --enable-lora --max-loras 8 --max-lora-rank 16\n")
    assert read_vllm.workload["adapters"] == {"rank": 16}
    assert read_vllm.workload["serving"] == {"adapters": {"slots": 8}}
    assert not read_vllm.unmodelled
    with pytest.raises(
        CrossflowError, match=r"how many adapters there are .--lora-modules lists them.; give it, such as --set workload.serving.ad"
    ):
        read_vllm.scenario("h100-ib-cluster", LENGTHS)
    listed = read(f"vllm serve {LLAMA} \\\n --enable-lora --lora-modules a=x b=y\n")
    assert listed.workload["serving"] == {"adapters": {"count": 2, "slots": 1}}
    assert listed.scenario("h100-ib-cluster", LENGTHS).workload.adapters.rank == 16
    sglang = read(f"python -m sglang.launch_server \\\n --model-path {LLAMA} --lora-paths a=x b=y --max-lora-rank 64\n")
    assert (sglang.workload["adapters"], sglang.workload["serving"]) == ({"rank": 64}, {"adapters": {"count": 2}})
    off = read(f"vllm serve {LLAMA} \\\n --max-loras 8 --block-size 32\n")
    assert [(one.flag, "adapters" in off.workload) for one in off.ignored] == [("--max-loras", False), ("--block-size", False)]
    with pytest.raises(CrossflowError, match=r"--max-lora-rank: expected one of 1, 8, 16"):
        read(f"vllm serve {LLAMA} \\\n --enable-lora --max-lora-rank 17\n")


def test_the_room_of_a_cache_and_its_fate_are_read_from_flags():
    swaps = read(f"vllm serve {LLAMA} \\\n --preemption-mode swap --swap-space 8 --num-gpu-blocks-override 100 --block-size 32\n")
    assert swaps.workload["serving"] == {"preemption_mode": "swap", "swap_space": "8 GiB", "cache_tokens": 3200}
    alone = read(f"vllm serve {LLAMA} \\\n --swap-space 8\n")
    assert ("serving" in alone.workload, [one.flag for one in alone.ignored]) == (False, ["--swap-space"])
    assert read(f"python -m sglang.launch_server \\\n --model-path {LLAMA} --max-total-tokens 5000\n").workload["serving"] == {
        "cache_tokens": 5000
    }
    with pytest.raises(CrossflowError, match="needs room on the host; give more than 0 GiB"):
        read(f"vllm serve {LLAMA} \\\n --preemption-mode swap --swap-space 0\n")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_adapters_and_the_cache_come_back_from_what_is_written(kind):
    swap = {"preemption_mode": "swap", "swap_space": "2 GiB"} if kind == "vllm" else {}
    for slots in ({"slots": 4}, {}):
        serving = {"adapters": {"count": 8, **slots}, "cache_tokens": 16000, **swap}
        workload = {"model": "llama3-8b", "task": "serving", "prompt": 1000, "output": 100, "global_batch": 8, "adapters": {"rank": 16}}
        data = {"system": {"template": "h100-ib-cluster", "devices": 4}, "workload": {**workload, "serving": serving}, "strategy": "tp4"}
        mine = crossflow.load({**data, "software": kind})
        text = crossflow.export(mine, kind)
        assert read(text).scenario().workload == mine.workload
    odd = crossflow.load({**data, "software": kind}, ["workload.adapters.rank=17", "workload.serving.cache_tokens=16001"])
    if kind == "vllm":
        with pytest.raises(CrossflowError, match=r"(?s)kernels for ranks 1, 8, .* whole blocks of 16 tokens"):
            crossflow.export(odd, kind)
    else:
        assert "--max-total-tokens 16001" in crossflow.export(odd, kind)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm"])
def test_images_of_prompts_come_back_from_what_is_written(kind):
    images = {"model": "vit-h", "count": 2.0, "tokens": 256, "tp": 1}
    workload = {"model": "llama3-8b", "task": "serving", "prompt": 1000, "output": 100, "global_batch": 8, "serving": {"images": images}}
    data = {"system": {"template": "h100-ib-cluster", "devices": 4}, "workload": workload, "strategy": "tp4", "software": kind}
    mine = crossflow.load(data)
    assert read(crossflow.export(mine, kind)).scenario().workload == mine.workload


def test_adapters_of_other_tasks_are_pointed_to_a_service():
    data = {
        "system": {"template": "h100-ib-cluster", "nodes": 1},
        "workload": {"model": "llama3-8b", "task": "decode", "adapters": {"rank": 8}},
    }
    notes = crossflow.predict({**data, "strategy": "tp8"}).notes
    assert any(
        "only training has adapters beside weights, or task: serving with serving.adapters, and task is decode" in one for one in notes
    )


def test_degrees_that_miss_the_devices_are_told_with_the_cure():
    text = f"vllm serve {LLAMA} \\\n --tensor-parallel-size 4\n"
    with pytest.raises(
        SpecError, match=r"there are 8 devices; count 4 \(--devices 4\), or write --data-parallel-size 2 for replicas on all"
    ):
        read(text, devices=8)
    with pytest.raises(SpecError, match=r"there are 6 devices; count 4 \(--devices 4\)$"):
        read(text, devices=6)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("vllm serve {} \\\n --mm-encoder-only\n", "--mm-encoder-only"),
        ('vllm serve {} \\\n --ec-transfer-config \'{{"ec_role": "ec_producer"}}\'\n', "--ec-transfer-config"),
        ("python -m sglang.launch_server \\\n --model-path {} --encoder-only\n", "--encoder-only"),
    ],
)
def test_servers_that_only_encode_images_are_refused(command, flag):
    with pytest.raises(CrossflowError, match=f"{flag}: a server that only encodes images reads and writes no text"):
        read(command.format(LLAMA))


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ('vllm serve {} \\\n --ec-transfer-config \'{{"ec_role": "ec_consumer"}}\'\n', ["--ec-transfer-config"]),
        (
            "python -m sglang.launch_server \\\n --model-path {} --language-only --encoder-urls http://a:1\n",
            ["--language-only", "--encoder-urls"],
        ),
    ],
)
def test_servers_to_which_others_send_images_are_told_what_is_not_counted(command, flags):
    told = read(command.format(LLAMA)).unmodelled
    assert [one.flag for one in told] == flags
    assert {str(one).partition(": ")[2] for one in told} == {
        "predicted from the tokens of a prompt on: the time in which other servers encode its images, and send them, is not counted"
    }
