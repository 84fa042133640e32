"""Measured services, replayed request by request."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossflow.answers.evaluation.replaying import replayed_scenario
from crossflow.answers.scenario import from_dict
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.services import services_table
from crossflow.workload.requests.record import RequestTrace

DATA = Path(__file__).parent / "data" / "services"
NAME = "RTXPRO6000_Llama-3.1-8B"


def test_a_measured_run_is_replayed_within_its_band():
    table = services_table(DATA)
    told = table.to_dict()
    assert (told["n"], told["skipped"]) == (10, 0)
    assert set(table.groups["device"]) == {"rtx-pro-6000"}
    figures = told["by"]["figure"]
    assert abs(figures["time per token, mean"]["bias"]) < 0.15  # nothing was fitted to it, nor to its device
    assert abs(figures["the run"]["bias"]) < 0.15
    assert abs(figures["first token, mean"]["bias"]) < 0.35


def test_measured_figures_are_those_of_the_rows():
    rows = [json.loads(line) for line in (DATA / f"{NAME}.requests.jsonl").read_text().splitlines()]
    table = services_table(DATA)
    first = np.mean([row["first_token_ts"] - row["queued_ts"] for row in rows])
    assert table.measured[table.groups["figure"].index("first token, mean")] == pytest.approx(first)
    assert table.measured[table.groups["figure"].index("the run")] == pytest.approx(max(row["last_token_ts"] for row in rows))


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


# Tokens of caches as logs of vLLM print them. The first was in view when the rule was written, the second was not.
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
