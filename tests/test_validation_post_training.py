"""Published iterations of post-training against jobs: how rows become scenarios, and how far off they are."""

from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.evidence.validation.post_training import COLUMNS, _predicted, post_training_table, scenario_of
from crossflow.evidence.validation.tables import read_rows, shipped

WHOLE = Path(__file__).parent / "data" / "post_training.csv"


def rows_of(**wanted):
    return [row for row in read_rows(WHOLE, COLUMNS) if all(row[name] == value for name, value in wanted.items())]


def test_a_row_is_the_job_of_its_recipe():
    (row,) = rows_of(release="0.4", model="qwen3-32b", behind="1")
    made = crossflow.from_dict(scenario_of(row))
    assert (made.devices, made.post_training.rollout.devices, made.post_training.rollout.staleness) == (32, 32, 1)
    assert str(made.strategy) == "tp4-dp2-pp4-z1-sp"
    rate = float(row["rate"]) * 64 * float(row["time"]) / 2048  # tokens of a sample
    assert made.workload.sequence == pytest.approx(rate, abs=16)


def test_a_row_of_another_trainer_says_more():
    (row,) = rows_of(trainer="OpenRLHF", model="llama2-7b")
    made = crossflow.from_dict(scenario_of(row))
    rollout = made.post_training.rollout
    assert (made.post_training.kind, made.devices, rollout.devices, rollout.prompts, rollout.answers) == ("ppo", 4, 2, 1024, 1)
    assert (rollout.prompt.tokens, rollout.answer.tokens, made.workload.sequence) == (1024, 1024, 2048)
    assert str(made.strategy) == "dp4-mb8-z3-full"
    assert float(made.system.network.intra.bandwidth[0]) == 200e9
    (row,) = rows_of(trainer="verl", devices="32", behind="0")
    made = crossflow.from_dict(scenario_of(row))
    assert (made.post_training.rollout.answers, made.post_training.samples) == (16, 8192)
    assert str(made.strategy) == "cp4-dp8-mb16-z3-full"


def test_inputs_of_a_row_move_its_time():
    (row,) = rows_of(trainer="OpenRLHF", model="llama2-7b")
    row = {**row, "samples": "128"}  # one step, for speed
    time = _predicted(row)[0]
    assert 0.05 * float(row["time"]) < time < 0.25 * float(row["time"])  # an eighth of the answers
    for name, value in {"answer": "512", "system": "dgx-a100", "passes": "0", "kind": "grpo"}.items():  # links are mostly hidden
        assert _predicted({**row, name: value})[0] != pytest.approx(time, rel=1e-4), name


@pytest.mark.thorough  # what it runs quicker tests run too
def test_the_mean_of_answers_is_the_published_one():
    for row in rows_of(release="0.5", system="dgx-h100", behind="0"):
        found = crossflow.predict(crossflow.from_dict(scenario_of(row))).job
        assert found["mean_answer"] == pytest.approx(float(row["answer"]), rel=0.03)  # of 512 or 2,048 that are drawn


def test_dense_runs_are_near_and_mixtures_are_told_as_too_fast():
    table = post_training_table(shipped())
    off = table.predicted / table.measured - 1
    dense = np.array([name in ("llama3-8b", "qwen3-32b") for name in table.groups["model"]])
    assert np.median(abs(off[dense])) < 0.1
    assert np.median(abs(off[~dense])) < 0.35
    assert table.groups["fitted"].count("fitted to its phases") == 1


def test_the_excerpt_is_a_part_of_the_whole():
    whole = {tuple(row.values()) for row in read_rows(WHOLE, COLUMNS)}
    assert {tuple(row.values()) for row in read_rows(shipped() / "post_training.csv", COLUMNS)} < whole


def test_wrong_rows_are_told_or_skipped_with_their_reason(tmp_path):
    text = (shipped() / "post_training.csv").read_text(encoding="utf-8").splitlines()
    head, row = next(line for line in text if line.startswith("release")), text[-1]
    (tmp_path / "post_training.csv").write_text(f"{head}\n{row.replace(',64,1,', ',60,1,')}\n", encoding="utf-8")
    assert list(post_training_table(tmp_path).skipped) == ["tp4-pp4 does not divide 28 devices and a batch of 512"]
    (tmp_path / "post_training.csv").write_text(f"{head}\n{row.replace(',200,', ',long,')}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="could not convert string to float: 'long'"):
        post_training_table(tmp_path)
