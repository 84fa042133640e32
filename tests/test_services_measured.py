"""Measured services, replayed request by request."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.services import services_table

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
