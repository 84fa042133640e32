"""Rows of measured services: which model and layout they are of, what is known of their runs, and how a run of a benchmark goes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossflow.base.errors import SpecError
from crossflow.evidence.validation.closed_loop import LoopRun, loop_times
from crossflow.evidence.validation.serving import _case, _engines, _plan, _told, serving_table
from crossflow.evidence.validation.serving_models import names_of, served_model
from crossflow.evidence.validation.serving_runs import (
    APART,
    CACHED,
    DRAFTED,
    GUESSED,
    UNVERSIONED,
    _gathering,
    _room,
    _unpolled,
    _writing,
    guesses_of,
    likeliest,
    mean_length,
    measured_times,
    one_by_one,
    run_facts,
    software_of,
)

COLUMNS = (
    "id,source,engine,engine_version,model,device,mode,isl,osl,concurrency,batch,tp,pp,attention_dp,moe_tp,moe_ep,precision,ttft_ms,tpot_ms"
)
WORKERS = "prefill_num_workers,prefill_tp,prefill_attention_dp,prefill_moe_tp,prefill_moe_ep,decode_batch,decode_num_workers,decode_tp"
RUN = LoopRun(users=8, output=400, writing=0.01, reading=0.1, requests=10)


# ------------------------------------------------------------------------------------------ how a run goes


def slow_loop(run, lengths):
    """The same run step by step, with the state of every user in plain words."""
    state, left, asked, got = (["comes"] * run.users, [0] * run.users, [0.0] * run.users, [[] for _ in range(run.users)])
    turn, comes, order = [0] * run.users, [run.front + user * run.texts for user in range(run.users)], []
    now = before = 0.0
    texts = run.users * run.texts  # until when a server that makes tokens of one text after the other is busy
    while any(one != "gone" for one in state):
        writes = [user for user in range(run.users) if state[user] == "writes"]
        seen = before if writes and run.ahead else now
        for user in sorted(range(run.users), key=lambda user: (comes[user], user)):
            if state[user] == "comes" and comes[user] <= seen:
                state[user] = "waits"
                order.append(user)
        if not order and not writes:
            now = before = max(now, min(comes[user] for user in range(run.users) if state[user] == "comes"))
            continue
        before, read = now, [order.pop(0) for _ in range(min(run.room, len(order)))]
        took = len(read) * run.reading + (run.writing if writes and not (read and run.apart) else 0.0)
        now += max(took, run.issue) if read else took
        for first in read:
            got[first].append(now - asked[first])
            state[first], left[first] = "writes", lengths[first][turn[first]] - 1
        for user in writes if not (read and run.apart) else []:
            left[user] -= 1
            if left[user] == 0:
                turn[user] += 1
                state[user] = "comes" if turn[user] < len(lengths[user]) else "gone"
                texts = max(texts, now) + run.texts
                asked[user], comes[user] = now, texts + run.front - run.texts
    return float(np.mean(got))


@pytest.mark.parametrize(
    ("apart", "ahead", "room", "issue"),
    [(False, True, 1, 0), (True, True, 1, 0), (False, False, 1, 0), (False, True, 3, 0), (True, True, 3, 0), (False, True, 3, 0.25)],
)
@pytest.mark.parametrize(("users", "front"), [(1, 0.0), (3, 0.004), (8, 0.03), (20, 0.0)])
def test_a_run_is_that_of_a_loop_step_by_step(users, front, apart, ahead, room, issue):
    run = LoopRun(
        users=users, output=40, writing=0.01, reading=0.1, requests=4, front=front, apart=apart, ahead=ahead, room=room, issue=issue
    )
    assert loop_times(run)[0] == pytest.approx(slow_loop(run, [[40] * 4] * users))


def test_prompts_that_are_read_together_share_what_the_host_takes_to_launch_a_step():
    """Eight prompts that come at once: four steps of two, each of the device's 0.2 s or, if that is longer, of the host's."""
    run = LoopRun(users=8, output=101, writing=0.01, reading=0.1, requests=1, apart=True, room=2)
    assert [loop_times(replace(run, issue=one))[0] for one in (0.0, 0.2, 0.5)] == pytest.approx([0.2 * 2.5, 0.2 * 2.5, 0.5 * 2.5])


def test_a_server_makes_tokens_of_one_text_after_the_other():
    """Eight texts of 0.5 s come at once at first: in the mean a prompt waits for three and a half others, and each is read as it comes."""
    run = LoopRun(users=8, output=40, writing=0.01, reading=0.1, requests=4, front=0.6, texts=0.5)
    assert loop_times(run)[0] == pytest.approx(slow_loop(run, [[40] * 4] * 8))
    once = replace(run, requests=1)
    assert loop_times(once)[0] == pytest.approx(0.6 + 0.5 * 3.5 + 0.1 + 0.01, abs=0.02)


def test_one_user_waits_for_the_front_end_and_for_reading_alone():
    first, further = loop_times(LoopRun(users=1, output=101, writing=0.01, reading=0.1, requests=10, front=0.02))
    assert (first, further) == (pytest.approx(0.12), pytest.approx(0.01))


def test_where_steps_that_read_write_nothing_all_prompts_come_at_once_again():
    """The mean of c prompts, read one after the other, is (c + 1) / 2 of one in every round; the others' prompts delay the further ones."""
    first, further = loop_times(LoopRun(users=8, output=101, writing=0.01, reading=0.1, requests=10, apart=True))
    assert first == pytest.approx(4.5 * 0.1)
    assert further == pytest.approx(0.01 + 3.5 * 0.1 / 100)


def test_answers_of_equal_lengths_keep_users_in_order():
    """After the burst a prompt comes while the one before it is read, and the one after; answers of unequal lengths come apart."""
    late = loop_times(LoopRun(users=8, output=400, writing=0.01, reading=0.1, requests=np.inf, front=0.004))[0]
    spread = loop_times(LoopRun(users=8, output=400, writing=0.01, reading=0.1, requests=np.inf, front=0.004, spread=1.0))[0]
    assert late == pytest.approx(3 * 0.1, rel=0.05)
    assert 0.11 < spread < 0.2


def test_a_step_that_is_scheduled_as_it_begins_reads_a_prompt_one_step_sooner():
    """Where answers of two users end apart, a prompt that comes while the other is written waits for the end of a step, or of two."""
    run = LoopRun(users=2, output=400, writing=0.01, reading=0.1, requests=np.inf, front=0.025, spread=1.0)
    ahead, late = (loop_times(replace(run, ahead=one))[0] for one in (True, False))
    assert ahead - late == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(("version", "found"), [("0.12.0", True), ("0.14.0", False), ("0.9.2", True), ("", False), ("1.0", False)])
def test_vllm_schedules_ahead_since_a_release(version, found):
    assert one_by_one(facts(engine="vllm", engine_version=version)) == found
    assert not one_by_one(facts(engine="sglang", engine_version=version))


@pytest.mark.parametrize(
    ("version", "tensor", "found"),
    [
        ("0.11.0", 2, False), ("0.11.1", 2, True), ("0.12.0", 7, True), ("0.12.0", 8, False), ("0.14.2", 1, True), ("0.15.0", 2, False),
        ("", 2, False),
    ],
)  # fmt: skip
def test_vllm_multiplied_experts_in_contiguous_groups_between_two_releases(version, tensor, found):
    software = software_of(facts(engine="vllm", engine_version=version), tensor)
    experts = software.get("kernels", {}).get("experts", {}).get("fp8_block", [""])
    assert (experts[0] == "deepgemm-vllm") == found
    assert len(experts) > 1 or not found  # other families have their own
    assert "kernels" not in software_of(facts(engine="sglang", engine_version=version), tensor)


@pytest.mark.parametrize(
    ("source", "engine", "model", "found"),
    [
        ("nvidia-gap-analysis", "vllm", "Qwen/Qwen3-32B", True),
        ("nvidia-gap-analysis", "sglang", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("nvidia-gap-analysis", "trtllm", "Qwen/Qwen3-32B", False), ("inferencex-2026-04-06", "vllm", "Qwen/Qwen3-32B", False),
        ("nvidia-gap-analysis", "vllm", "openai/gpt-oss-120b", False),
    ],
)  # fmt: skip
def test_requests_that_name_no_sampling_take_that_of_their_model(source, engine, model, found):
    assert likeliest(facts(source=source, engine=engine, model=model, engine_version="0.12.0", device="h200")) == found


@pytest.mark.parametrize(("version", "found"), [("0.12.0", True), ("0.15.1", True), ("0.16.0", False), ("", False)])
def test_vllm_sorted_logits_up_to_a_release(version, found):
    engine = software_of(facts(engine="vllm", engine_version=version), 8).get("engine", {})
    assert ("selecting" in engine) == found
    assert "selecting" not in software_of(facts(engine="sglang", engine_version=version), 8).get("engine", {})


@pytest.mark.parametrize(
    ("source", "engine", "version", "found"),
    [
        ("inferencex-2025-11-15", "vllm", "", True), ("inferencex-2026-04-06", "vllm", "0.12.0", True),
        ("inferencex-2026-04-06", "vllm", "0.13.0", False), ("inferencex-2025-11-15", "trtllm", "", False),
        ("nvidia-gap-analysis", "vllm", "0.12.0", False),
    ],
)  # fmt: skip
def test_vllm_of_inferencex_widened_weights_with_triton_before_a_release(source, engine, version, found):
    told = software_of(facts(source=source, engine=engine, engine_version=version, device="h200"), 8)
    assert (told.get("kernels", {}).get("widening") == {"mxfp4": ["triton-kernels"]}) == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}, False), ({"engine": "trtllm", "engine_version": "1.2.0rc6.post3"}, True),
        ({"engine": "trtllm", "engine_version": "1.2.0rc9"}, None), ({"date": "2025-12-02"}, False),
        ({"source": "inferencex-2026-04-27"}, False), ({"precision": "fp4"}, False), ({"device": "b200"}, None),
        ({"device": "b200", "model": "zhipuai/GLM-5"}, False), ({"mode": "disagg"}, None), ({"source": "nvidia-gap-analysis"}, None),
    ],
)  # fmt: skip
def test_whether_a_run_guesses_tokens_is_told_by_the_changelog_of_its_source(changes, found):
    plain = {"source": "inferencex-2026-04-06", "engine": "sglang", "engine_version": "0.5.9", "date": "2026-03-05", "mode": "agg"}
    row = facts(**(plain | {"model": "deepseek-ai/DeepSeek-R1", "device": "h200", "precision": "fp8"} | changes))
    assert guesses_of(row) is found


def test_what_an_engine_did_otherwise_is_told_together():
    """Steps of vLLM 0.12 were prepared one after the other, each request for itself, and its experts were DeepGEMM's."""
    told = software_of(facts(engine="vllm", engine_version="0.12.0"), 2)
    assert ({*told}, {*told["engine"]}) == ({"engine", "host", "kernels"}, {"asynchronous", "selecting"})
    assert software_of(facts(engine="sglang", engine_version="0.5.9"), 2) == {"host": {"pieces": False}}
    assert software_of(facts(source="inferencex-2026-04-06", engine="trtllm", engine_version="1.0", device="b200"), 2) == {
        "engine": {"gathers": True}
    }


def test_a_step_reads_as_many_prompts_of_a_benchmark_as_it_has_room_for():
    """20,000 tokens less 100 that are written have room for 21 prompts of 922; one where all answers are equally long, but in an engine
    whose steps that read write nothing.
    """
    row = facts(source="inferencex-2026-04-06", engine="trtllm", isl="1024", device="b200")
    assert run_facts(row)["step_tokens"] == 20000
    assert _room(row, run_facts(row), 100.0) == 21
    assert _room(facts(engine="vllm", isl="1024"), {"lengths": 0.9}, 100.0) == (8192 - 100) // 922
    assert _room(facts(engine="vllm", isl="8192"), {"lengths": 0.9}, 1000.0) == 1
    assert _room(facts(engine="vllm", isl="1024"), {}, 100.0) == 1
    assert _room(facts(engine="sglang", isl="1024", source="anywhere"), {}, 0.0) == 8


@pytest.mark.parametrize("change", [{"reading": 0.2}, {"writing": 0.02}, {"users": 16}, {"front": 0.05}])
def test_first_tokens_come_no_sooner_where_anything_takes_longer(change):
    assert loop_times(LoopRun(**{**RUN.__dict__, **change}))[0] >= loop_times(RUN)[0]


# ------------------------------------------------------------------------------------------ models and layouts


def test_a_published_file_beside_a_table_is_a_model(tmp_path):
    data = json.loads((Path(__file__).parent / "data" / "huggingface" / "qwen3.5-35b-a3b.json").read_text())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Qwen--Qwen9-35B-A3B.json").write_text(json.dumps(data))
    model = served_model("someone/Qwen9-35B-A3B-FP8", tmp_path)
    assert (model.mixture, model.guesses) == (True, True)
    assert served_model("Qwen/Qwen9-35B-A3B", tmp_path / "models" / "none") is None
    assert served_model("zhipuai/GLM-5", tmp_path).named == "glm-5"


def test_words_of_a_name_are_left_out_from_its_end_alone():
    assert list(names_of("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")) == ["deepseek-r1-distill-llama-70b"]
    assert served_model("deepseek-ai/DeepSeek-V2").named == "deepseek-v2"


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"concurrency": "112", "batch": "28", "tp": "4", "attention_dp": ""}, (112, 1, 4)),  # each rank has requests of its own
        ({"concurrency": "112", "batch": "28", "tp": "4", "attention_dp": "1"}, (28, 4, 1)),  # four engines beside each other
        ({"concurrency": "416", "batch": "13", "tp": "2", "attention_dp": "1"}, (13, 2, 1)),
        ({"concurrency": "64", "batch": "16", "tp": "1", "attention_dp": "4"}, (64, 1, 4)),
        ({"concurrency": "", "batch": "16", "tp": "2", "attention_dp": "4"}, (64, 2, 4)),
    ],
)
def test_a_batch_is_that_of_one_replica(row, found):
    assert _engines({"mode": "agg", **row}) == found


def test_experts_that_are_divided_over_more_ranks_than_a_tensor_group_tell_how_many_replicas_there_are():
    """Of attention, where a row does not say so; a plan without a way to divide them deals them to the replicas."""
    row = {"mode": "agg", "concurrency": "16", "batch": "16", "tp": "1", "moe_tp": "2", "moe_ep": "1", "attention_dp": ""}
    assert _engines(row)[1:] == (1, 2)
    assert _engines({**row, "attention_dp": "1"})[1:] == (1, 1)
    assert _engines({**row, "tp": "2"})[1:] == (2, 1)
    assert _plan(1, 2, 2, 1) == (1, 2, "-ep1-etp2")
    assert _plan(2, 2, 4, 1) == (2, 2, "-ep2-etp2")
    assert _plan(1, 4, 1, 1) == (1, 4, "")


def test_degrees_of_the_same_ranks_are_not_multiplied():
    assert _plan(64, 1, 8, 8)[:2] == (8, 1)
    assert _plan(1, 64, 8, 8) == (1, 8, "-ep8-etp1")


def test_a_run_that_two_dumps_hold_has_one_layout(tmp_path):
    """One multiplies the ranks of a tensor group by themselves; workers that write may be that many."""
    kept = "x,inferencex-2026,vllm,0.17.0,moonshotai/Kimi-K2.5,b200,agg,8192,1024,16"
    found = table_of(tmp_path, *(f"{kept},{degrees},fp4,400,15" for degrees in ("16,4,1,1,1,4", "4,4,1,4,1,16")))
    assert found.predicted[0] == found.predicted[2]
    assert found.predicted[1] == found.predicted[3]


# ------------------------------------------------------------------------------------------ what is known of runs


def facts(**row):
    return {
        "source": "inferencex-2026-04-06",
        "engine": "sglang",
        "engine_version": "0.5.9",
        "device": "b200",
        "isl": "1024",
        "osl": "1000",
        **row,
    }


def test_facts_of_a_device_lie_over_those_of_its_engine():
    assert "polls" not in run_facts(facts(device="h200"))
    assert run_facts(facts()) == {**run_facts(facts(device="h200")), "polls": run_facts(facts())["polls"]}
    assert (mean_length(facts(), "isl"), mean_length(facts(source="anywhere"), "isl")) == (922, 1024)


def test_runs_that_a_source_has_from_another_are_told_by_that():
    assert (
        run_facts(facts(source="nvidia-gap-analysis", engine="vllm", engine_version="0.15.1"))
        == run_facts(facts(source="inferencex-2026-03-25", engine="vllm", engine_version="0.15.1"))
        != run_facts(facts(source="nvidia-gap-analysis", engine="vllm", engine_version="0.12.0"))
    )


@pytest.mark.parametrize(("engine", "most"), [("sglang", 1.7), ("trtllm", 3.0)])
def test_first_tokens_come_no_sooner_than_the_host_launches_a_step(tmp_path, engine, most):
    """Of short prompts, which SGLang reads together: then all of them wait for one step. vLLM captures such steps."""
    rows = [
        f"{users},nvidia-gap-analysis,{{}},0.5.1,Qwen/Qwen3-32B,h100-80gb,agg,16,200,{users},{users},8,1,1,8,1,fp8,40,8" for users in (1, 8)
    ]
    table = table_of(tmp_path, *(row.format(name) for name in (engine, "vllm") for row in rows))
    one, eight, captured, _ = (
        time for kind, time in zip(table.groups["figure"], table.predicted, strict=True) if kind.startswith("first token")
    )
    assert one > captured + 64 * 12 * 30e-6  # of 64 layers with more than a dozen launches
    assert one < eight < most * one


@pytest.mark.parametrize("waits", [0.1, 5.0])
def test_first_tokens_wait_until_their_text_is_tokens(waits):
    """A prompt eight times as long waits for eight times as many, where a source's servers are known to take time for each; also where
    requests wait for room, as steady state tells.
    """
    score = {"tpot_s": 0.01, "itl_p99_s": 0.01, "prefill_share": 0.0, "prompt_time_s": 0.1, "ttft_s": waits}
    short, long = (measured_times(score, facts(engine="vllm", mode="agg", isl=isl), users=1.0, replicas=1)[0] for isl in ("1000", "8000"))
    assert long - short == pytest.approx(0.9 * 7000 * 2.7e-6)


@pytest.mark.parametrize(("share", "writing"), [(0.0, 0.02), (0.5, 0.5 * 0.02 / (1 - 0.5 * 0.02 / 0.05)), (1.0 - 1e-12, 0.02), (1.0, 0.02)])
def test_a_step_that_only_writes_is_told_by_the_mean_one_and_the_longest(share, writing):
    """Steps of 50 ms that read, and 20 ms in the mean; where all the time goes to reading none tells it, and the mean is the most."""
    assert _writing({"tpot_s": 0.02, "itl_p99_s": 0.05, "prefill_share": share}) == pytest.approx(writing)


def test_an_engine_that_polls_lets_requests_wait_half_an_interval():
    found = run_facts(facts())
    assert [_unpolled(found, users) for users in (1, 4, 16)] == [0.0, 4.5, 14.5]


def test_prompts_gather_until_every_replica_has_one():
    """A round that ends by its time alone: its first prompt waits for all of it, others for half; no replicas, no rounds."""
    found, row = {"balanced": 50}, facts(source="anywhere")
    few = _gathering(found, row, users=1.0, replicas=4)
    assert few == pytest.approx(50 * (1 + 0.5 * 0.2) / 1.2)
    many = _gathering(found, row, users=1000.0, replicas=4)
    steps = (4 * (1 + 1 / 2 + 1 / 3 + 1 / 4) - 1) / 4
    assert many == pytest.approx(steps * (1 + 2 * steps) / (1 + 4 * steps))
    assert _gathering(found, row, users=64.0, replicas=1) == 0.0


def table_of(tmp_path, *rows, columns=COLUMNS):
    (tmp_path / "serving.csv").write_text("\n".join((columns, *rows)) + "\n")
    return serving_table(tmp_path)


def test_rows_of_which_something_is_not_known_are_groups_of_their_own(tmp_path):
    qwen = "Qwen/Qwen3-32B,h100-80gb,agg,1000,200,16,16,2,1,1,1,1,bf16"
    deepseek = "deepseek-ai/DeepSeek-R1,h200,agg,1000,200,4,4,8,1,1,8,1,fp8"
    versions = ("vllm,0.12.0", qwen, "200,20"), ("vllm,", qwen, "200,20"), ("sglang,0.5.9", deepseek, "300,15"), ("vllm,1.0", qwen, "9,1")
    found = table_of(tmp_path, *(f"a,x,{engine},{run},{times}" for engine, run, times in versions))
    firsts = found.groups["figure"][1::2]
    assert firsts == ["first token", f"first token, {UNVERSIONED}", f"first token, {GUESSED}", f"first token, {CACHED}"]
    assert [bool(kind) for kind in found.alike["kind"][1::2]] == [True, False, False, False]


def test_runs_that_are_known_to_guess_are_apart_from_those_that_are_known_not_to(tmp_path):
    deepseek = "deepseek-ai/DeepSeek-R1,h200,agg,1000,200,4,4,8,1,1,8,1,fp8,300,15"
    versions = "1.2.0rc6.post2", "1.2.0rc6.post3", "1.2.0rc9"
    found = table_of(tmp_path, *(f"a,inferencex-2026-04-06,trtllm,{version},{deepseek}" for version in versions))
    assert found.groups["figure"][1::2] == ["first token", f"first token, {DRAFTED}", f"first token, {GUESSED}"]
    assert [bool(kind) for kind in found.alike["kind"][1::2]] == [True, False, False]


def test_workers_for_prompts_are_read(tmp_path):
    row = "a,x,trtllm,1.0,Qwen/Qwen3-32B,b200,disagg,4000,500,,,,,,,,fp8,700,12"
    found = table_of(tmp_path, f"{row},4,1,1,1,1,16,1,4", columns=f"{COLUMNS},{WORKERS}")
    assert found.groups["figure"] == [f"time per token, {APART}", f"first token, {APART}"]
    assert found.items == ["Qwen/Qwen3-32B, 4000/500"] * 2
    more = table_of(tmp_path, f"{row},8,1,1,1,1,16,1,4", columns=f"{COLUMNS},{WORKERS}")
    assert more.predicted[1] < found.predicted[1]


def test_a_recipe_says_what_a_row_with_workers_for_prompts_does_not(tmp_path):
    """Two workers of eight ranks with one prompt each, and one writer of eight ranks with 80 requests each."""
    row = {
        "source": "inferencex-2026-03-25", "engine": "trtllm", "engine_version": "0.8.1.post2", "model": "deepseek-ai/DeepSeek-R1",
        "device": "b200", "mode": "disagg", "precision": "fp8", "isl": "8192", "osl": "1024", "concurrency": "640", "prefill_tp": "8",
        "prefill_moe_ep": "8", "decode_tp": "8", "decode_moe_ep": "8",
    }  # fmt: skip
    shared, own = _case(row, tmp_path)
    assert (own["workload.serving.prefill.strategy"], own["workload.serving.prefill.workers"]) == ("dp8-etp8", 2)
    short = _case({**row, "isl": "1024", "concurrency": "128"}, tmp_path)[1]
    assert short["workload.serving.prefill.strategy"] == "dp8-ep8"
    assert (own["strategy"], own["system.devices"]) == ("dp8-ep8", 8)
    engine = shared["software"]["engine"]
    assert (engine["requests"], engine["chunk"]) == (80, own["workload.prompt"])
    assert _told(row, tmp_path) == APART
    unknown = {**row, "concurrency": "641"}
    assert _told(unknown, tmp_path) == f"{APART}, {GUESSED}"
    assert "dp" not in _case(unknown, tmp_path)[1]["workload.serving.prefill.strategy"]


def test_a_model_without_preset_or_file_is_skipped(tmp_path):
    found = table_of(tmp_path, "a,x,vllm,1.0,someone/Unknown-9B,h100-80gb,agg,1000,200,16,16,2,1,1,1,1,bf16,200,20")
    assert dict(found.skipped) == {"no preset for model 'someone/Unknown-9B', and no config.json of it beside the table": 1}


def test_a_cell_that_is_no_number_is_told_with_its_row(tmp_path):
    row = "a,x,vllm,1.0,Qwen/Qwen3-32B,h100-80gb,agg,1000,200,16,16,two,1,1,1,1,bf16,200,20"
    with pytest.raises(SpecError, match=r"serving.csv: tp: expected a whole number, got 'two' in the row a,x,vllm"):
        table_of(tmp_path, row)
    with pytest.raises(SpecError, match=r"isl: expected a whole number, got '0'"):
        table_of(tmp_path, row.replace("1000,", "0,").replace("two", "2"))
