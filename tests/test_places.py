"""Errors stand at the line or the word that is wrong, and say nothing of what files hold that are not crossflow's."""

import pytest
import yaml

from crossflow.answers.scenario import load
from crossflow.answers.study.reading import read_study
from crossflow.base.errors import SpecError

SECRET = "password: hunter2\ntoken: abc\n"
GEMM = {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}}
BERT = {
    "system": {"template": "dgx-h100"},
    "workload": {"model": "bert-base", "global_batch": 64},
    "strategy": {"dp": 8},
    "software": {"like": "nemo"},
}


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """What is wrong with a scenario, or with a study of it."""
    monkeypatch.chdir(tmp_path)

    def told(scenario, *settings, study=False):
        given = {"name": "s", "scenario": scenario, "sweep": {"workload.m": [64]}} if study else scenario
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
        with pytest.raises(SpecError) as caught:
            (read_study if study else load)("s.yaml", settings)
        return str(caught.value)

    return told


@pytest.mark.parametrize(
    ("scenario", "sentence"),
    [
        ("no.yaml", "s.yaml:2: scenario: there is no file no.yaml"),
        ({**GEMM, "profile": "no.csv"}, "s.yaml:10: profile: there is no file no.csv"),
        ({**GEMM, "workload": {"model": "program", "file": "no.json"}}, "s.yaml:7: workload.file: there is no file no.json"),
        ({**BERT, "strategy": "pp8-order:no.yaml"}, "s.yaml:8: strategy: schedule: there is no file no.yaml"),
        ({**BERT, "strategy": None}, "s.yaml:8: scenario.strategy: missing, and the system has 8 devices; write strategy: auto for"),
    ],
)
def test_what_a_study_names_and_is_not_there_is_told_at_its_line(refused, scenario, sentence):
    assert refused(scenario, study=True).startswith(sentence)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("strategy.dp=fp8", "strategy.dp: dp must be a positive whole number, got 'fp8'"),
        ("strategy.dpp=8", "strategy.dpp: unknown key 'dpp'"),
        ("strategy.tp=3", "strategy.tp: strategy tp3-dp8 needs 24 devices"),
        ("software.like=nan", "software.like: unknown software stack 'nan'"),
    ],
)
def test_an_override_below_a_section_is_blamed(refused, setting, sentence):
    assert refused(BERT, setting).startswith(f"--set {setting}: {sentence}")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "- 1\n", "just text\n", SECRET])
@pytest.mark.parametrize(
    "scenario",
    [
        {**GEMM, "workload": {"model": "other.yaml"}}, {**GEMM, "system": {"template": "other.yaml"}},
        {**GEMM, "system": {"template": "v100", "techlib": "other.yaml"}}, {**BERT, "software": "other.yaml"},
        {**BERT, "software": {"like": "other.yaml"}}, {**BERT, "strategy": {"pp": 8, "schedule": "other.yaml"}},
    ],
    ids=["model", "template", "techlib", "software", "like", "schedule"],
)  # fmt: skip
def test_a_file_that_is_wrong_as_a_whole_is_blamed_and_not_quoted(refused, tmp_path, scenario, text):
    (tmp_path / "other.yaml").write_text(text)
    told = refused(scenario)
    assert told.startswith("other.yaml:")
    assert "\n" not in told
    assert not any(word in told for word in ("password", "hunter2", "token", "just text"))


@pytest.mark.parametrize(
    "scenario",
    [
        {**GEMM, "workload": {"model": "secret.conf"}}, {**GEMM, "system": {"template": "secret.conf"}}, {**GEMM, "profile": "secret.conf"},
        {**GEMM, "system": {"template": "v100", "techlib": "secret.conf"}}, {**GEMM, "profile": "secret.csv"},
        {**GEMM, "workload": {"model": "program", "file": "secret.json"}}, {**BERT, "software": "secret.conf"},
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_not_quoted(refused, tmp_path, scenario):
    (tmp_path / "secret.conf").write_text(SECRET)
    (tmp_path / "secret.csv").write_text("password,hunter2\ntoken,abc\n")
    (tmp_path / "secret.json").write_text('{"password": "hunter2", "token": "abc"}')
    told = refused(scenario)
    assert "\n" not in told
    assert not any(word in told for word in ("password", "hunter2", "token"))
