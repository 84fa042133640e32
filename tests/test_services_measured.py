# ruff: noqa: E501  (rows of benchmarks)
"""Measured services, replayed request by request."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossflow.answers.evaluation.replay_figures import replayed_figures
from crossflow.answers.evaluation.replaying import replayed_scenario
from crossflow.answers.scenario import from_dict
from crossflow.base.arrays import NumberLists
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.service_settings import device_of, scenario_of
from crossflow.evidence.validation.services import services_table
from crossflow.workload.requests.record import RequestTrace

DATA = Path(__file__).parent / "data" / "services"
NAME = "RTXPRO6000_Llama-3.1-8B"


@pytest.fixture(scope="module")
def runs():
    return services_table(DATA)


def figures_of(table, device):
    """Measured and predicted times of one run by figure. [s]"""
    rows = zip(table.groups["device"], table.groups["figure"], table.measured, table.predicted, strict=True)
    return {figure: (measured, predicted) for one, figure, measured, predicted in rows if one == device}


@pytest.mark.parametrize("device", ["rtx-pro-6000", "rtx-4090"])
def test_measured_runs_are_replayed_within_their_bands(runs, device):
    """Nothing was fitted to either, nor to other services; the cards' memory and products are those of benchmarks of theirs or their like."""
    told = runs.to_dict()
    assert (told["n"], told["skipped"]) == (20, 0)
    off = {name: predicted / measured - 1.0 for name, (measured, predicted) in figures_of(runs, device).items()}
    for name, error in off.items():
        assert abs(error) < (0.15 if name.startswith("first token") else 0.08), name


def test_measured_figures_are_those_of_the_rows(runs):
    rows = [json.loads(line) for line in (DATA / f"{NAME}.requests.jsonl").read_text().splitlines()]
    found = figures_of(runs, "rtx-pro-6000")
    first = np.mean([row["first_token_ts"] - row["queued_ts"] for row in rows])
    assert found["first token, mean"][0] == pytest.approx(first)
    assert found["the run"][0] == pytest.approx(max(row["last_token_ts"] for row in rows))


def test_validate_finds_runs_in_a_folder():
    (table,) = validate(DATA).tables
    assert table.name == "services"
    assert set(table.groups["fitted"]) == {"never seen"}


def test_unknown_devices_are_skipped_and_wrong_rows_named(tmp_path):
    for ending in (".requests.jsonl", ".meta.json"):
        shutil.copy(DATA / f"{NAME}{ending}", tmp_path / f"TPUX_{NAME}{ending}")
    assert services_table(tmp_path).to_dict()["skipped"] == 10
    (tmp_path / f"TPUX_{NAME}.requests.jsonl").write_text('{"queued_ts": 1}\n')
    with pytest.raises(CrossflowError, match=r"requests.jsonl:1: expected a JSON object with the numbers queued_ts"):
        services_table(tmp_path)


# Tokens of caches as logs of vLLM print them. Both were in view when the rule was written, and the widths were set by what it gives: a record, no check.
LOGGED = [
    ({"template": "rtx-4090", "devices": 1}, {"chunk": 2048}, 256, 41_408, 0.04),  # vLLM 0.19, data/services
    ({"template": "h100-sxm", "devices": 1}, {"chunk": 8192}, 256, 436_552, 0.06),  # vllm-project/vllm pull request 10511: 53.29 GiB
]


@pytest.mark.parametrize(("system", "serving", "requests", "tokens", "within"), LOGGED)
def test_an_engine_finds_the_room_that_its_log_has(system, serving, requests, tokens, within):
    workload = {"model": "llama3-8b", "task": "serving", "dtype": "bf16", "prompt": 1000, "output": 500, "serving": serving}
    software = {"like": "vllm", "engine": {"requests": requests}}
    scenario = from_dict({"name": "logged", "system": system, "workload": workload, "strategy": "tp1", "software": software})
    trace = RequestTrace.of(np.arange(4.0), np.full(4, 1000), np.full(4, 500))
    limits = replayed_scenario(scenario, trace).writers.limits
    assert limits.pages * limits.page == pytest.approx(tokens, rel=within)


# ------------------------------------------------------------------------------------------ results of benchmarks

META = {
    "model": "meta-llama/Llama-2-7b-hf", "device": "NVIDIA H100 80GB HBM3",
    "engine_kwargs": {"tensor_parallel_size": 1, "max_num_seqs": 32, "max_num_batched_tokens": 1024},
}  # fmt: skip


def replayed(trace, **engine):
    """What a replay says of requests on the engine of `META`, as a benchmark would have measured it."""
    settings = {**META, "engine_kwargs": {**META["engine_kwargs"], **engine}}
    found = replayed_figures(scenario_of(settings, device_of(settings, ""), trace), trace)
    return settings, found


def written(folder, settings, name, result):
    (folder / f"{name}.json").write_text(json.dumps(result))
    (folder / "meta.json").write_text(json.dumps(settings))
    return services_table(folder)


def detailed(found, trace, *, times=True, **more):
    """A result of vLLM's benchmark with what a replay says; each request writes in equal steps."""
    first, whole = found.times["ttft"], found.times["e2e"]
    steps = np.maximum(trace.output - 1, 1)
    itls = [[(b - a) / n] * n if m > 1 else [] for a, b, n, m in zip(first, whole, steps, trace.output, strict=True)]
    result = {"input_lens": trace.prompt.tolist(), "output_lens": trace.output.tolist(), "ttfts": first.tolist(), "itls": itls, **more}
    return {**result, **({"start_times": (found.found.arrival + 1e6).tolist()} if times else {})}


def crowd(n=60, rate=20.0, seed=3, **more):
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    return RequestTrace.of(arrival - arrival[0], rng.integers(50, 900, n), rng.integers(2, 200, n), **more)


def errors_of(table, *figures):
    return [
        abs(p / m - 1.0) for name, m, p in zip(table.groups["figure"], table.measured, table.predicted, strict=True)
        if name.partition(",")[0] in figures
    ]  # fmt: skip


KNOWN = ("first token", "time per token", "whole request", "the run")


def test_a_result_of_vllms_benchmark_is_replayed_as_it_was_asked(tmp_path):
    """A result that says what a replay says has no error."""
    trace = crowd()
    settings, found = replayed(trace)
    table = written(tmp_path, settings, "chat", detailed(found, trace, request_rate=20.0))
    assert len(errors_of(table, *KNOWN)) == 10
    assert max(errors_of(table, *KNOWN)) < 1e-6
    assert "between tokens, mean" in table.groups["figure"]
    assert set(table.groups["device"]) == {"h100-sxm"}


def test_a_loop_of_so_many_requests_is_replayed_as_a_loop(tmp_path):
    """The next request is sent when one has ended, not when it was sent in the measured run: a run that took twice as long is so."""
    n, most = 40, 8
    follows = np.where(np.arange(n) < most, -1, np.arange(n) - most)
    trace = RequestTrace.of(np.zeros(n), np.full(n, 300), np.full(n, 50), follows=follows)
    settings, found = replayed(trace)
    result = detailed(found, trace, request_rate="inf", max_concurrency=most)
    assert max(errors_of(written(tmp_path, settings, "loop", result), *KNOWN)) < 1e-6
    slow = {**result, "ttfts": [2 * one for one in result["ttfts"]], "itls": [[2 * gap for gap in one] for one in result["itls"]]}
    slow["start_times"] = [1e6 + 2 * (one - 1e6) for one in result["start_times"]]
    assert errors_of(written(tmp_path, settings, "loop", slow), "the run") == [pytest.approx(0.5, abs=1e-3)]


def test_arrivals_that_a_result_lacks_are_drawn_and_told(tmp_path):
    trace = crowd(400)
    settings, found = replayed(trace)
    table = written(tmp_path, settings, "chat", detailed(found, trace, times=False, request_rate=20.0, duration=found.span))
    assert max(errors_of(table, "whole request")) < 0.3
    assert any("arrivals are drawn" in note for note in table.notes)


def test_requests_that_failed_are_left_out(tmp_path):
    trace = crowd()
    settings, found = replayed(trace)
    result = detailed(found, trace)
    result = {**result, **{key: [*result[key], end] for key, end in (("input_lens", 99), ("output_lens", 0), ("ttfts", 0.0), ("itls", []))}}
    result["start_times"].append(1e6 + 0.5)
    assert max(errors_of(written(tmp_path, settings, "chat", result), *KNOWN)) < 1e-6


def test_every_benchmark_of_guidellm_is_a_run(tmp_path):
    trace = crowd()
    settings, found = replayed(trace)
    rows = [
        {"request_start_time": 5.0 + a, "time_to_first_token_ms": 1e3 * f, "request_latency": w, "prompt_tokens": int(p), "output_tokens": int(o)}
        for a, f, w, p, o in zip(found.found.arrival, found.times["ttft"], found.times["e2e"], trace.prompt, trace.output, strict=True)
    ]  # fmt: skip
    report = {"benchmarks": [{"requests": {"successful": rows, "errored": []}}, {"requests": {"successful": rows[:30]}}]}
    table = written(tmp_path, settings, "report", report)
    assert set(table.groups["run"]) == {"report, benchmark 1", "report, benchmark 2"}
    first = [i for i, run in enumerate(table.groups["run"]) if run == "report, benchmark 1"]
    assert table.predicted[first] == pytest.approx(table.measured[first], rel=1e-6)


@pytest.mark.parametrize("nested", [False, True])
def test_requests_of_inference_perf_are_read(tmp_path, nested):
    trace = crowd()
    settings, found = replayed(trace)

    def info(i):
        moments = 9.0 + found.found.arrival[i] + np.linspace(found.times["ttft"][i], found.times["e2e"][i], trace.output[i])
        asked, answered = (
            {"input_tokens": int(trace.prompt[i])},
            {"output_tokens": int(trace.output[i]), "output_token_times": moments.tolist()},
        )
        return {"request_metrics": {"text": asked}, "response_metrics": answered} if nested else {**asked, **answered}

    rows = [{"start_time": 9.0 + found.found.arrival[i], "end_time": 99.0, "info": info(i), "error": None} for i in range(len(trace))]
    rows.append({"start_time": 9.1, "end_time": 9.2, "info": {}, "error": {"error_type": "timeout"}})
    assert max(errors_of(written(tmp_path, settings, "stages", rows), *KNOWN)) < 1e-6


def test_what_is_wrong_in_a_result_is_named(tmp_path):
    (tmp_path / "bad.json").write_text('{"ttfts": [1], "input_lens": [1, 2], "output_lens": [1], "itls": [[]]}')
    with pytest.raises(CrossflowError, match=r"bad\.json: expected lists input_lens, output_lens, ttfts, itls of one length"):
        services_table(tmp_path)


SETTINGS = [
    ({"enable_chunked_prefill": False}, "chunked", False),
    ({"enable-prefix-caching": False}, "prefixes", False),
    ({"max_num_seqs": 7}, "requests", 7),
    ({"block_size": 32}, "block", 32),
    ({"async_scheduling": False}, "asynchronous", False),
]


@pytest.mark.parametrize(("given", "field", "value"), SETTINGS)
def test_settings_of_an_engine_reach_the_scenario(given, field, value):
    settings = {**META, "engine_kwargs": {**META["engine_kwargs"], **given}}
    assert getattr(scenario_of(settings, "h100-sxm", crowd()).stack.engine, field) == value


def test_older_engines_schedule_one_step_after_the_other():
    for version, asked, found in (
        ("0.12.0", {}, False),
        ("0.12.0", {"async_scheduling": True}, True),
        ("0.19.0", {}, True),
        (None, {}, True),
    ):
        settings = {**META, "vllm_version": version, "engine_kwargs": {**META["engine_kwargs"], **asked}}
        assert scenario_of(settings, "h100-sxm", crowd()).stack.engine.asynchronous is found


def test_types_and_ranks_of_an_engine_reach_the_scenario():
    asked = {"tp": 4, "quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}
    found = scenario_of({"model": "mistralai/Mixtral-8x7B-Instruct-v0.1", "engine_kwargs": asked}, "h100-sxm", crowd())
    assert (found.workload.dtype, found.workload.kv_dtype, found.strategy.tp, found.system.devices) == ("fp8", "fp8", 4, 4)


def test_settings_without_meaning_are_told(tmp_path):
    trace = crowd()
    settings, found = replayed(trace, speculative_config={"method": "ngram"})
    table = written(tmp_path, settings, "chat", detailed(found, trace))
    assert any("speculative_config of engine_kwargs have no meaning here" in note for note in table.notes)


def test_without_chunks_a_prompt_waits_until_a_step_has_room_for_all_of_it():
    """Two prompts of 600 in steps of 1024 tokens: in pieces the second has its first token after two steps like the third, whole also."""
    trace = RequestTrace.of(np.zeros(3), np.full(3, 600), np.full(3, 40))
    pieces, whole = (replayed(trace, enable_chunked_prefill=flag)[1] for flag in (True, False))
    assert len(set(np.round(pieces.times["ttft"], 9))) == 2  # 1024 of the first two tokens, then the rest
    assert len(set(np.round(whole.times["ttft"], 9))) == 3  # one prompt a step
    assert whole.times["ttft"][0] < pieces.times["ttft"][0]


def test_prompts_share_blocks_only_with_prefix_caching():
    blocks = NumberLists.of([i for i in range(4) for _ in range(30)], [*range(30)] * 4, 4)
    trace = RequestTrace.of(np.arange(4.0), np.full(4, 500), np.full(4, 8), blocks=blocks, block=16)
    shared, alone = (replayed(trace, enable_prefix_caching=flag)[1] for flag in (True, False))
    assert shared.times["ttft"][1] < alone.times["ttft"][1]
    assert alone.found.hits.sum() == 0 < shared.found.hits.sum()
