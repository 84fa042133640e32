"""A scenario is what was read: files that change, go, or cannot be reached later change nothing."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import variant
from crossflow.answers.scenario import load
from crossflow.answers.study import run
from crossflow.answers.study.reading import read_study
from crossflow.base import contents
from crossflow.base.errors import CrossflowError

FILES = {
    "own-device.yaml": "template: v100-sxm2-16gb\nname: own\n",
    "own-lib.yaml": "name: own-lib\nextends: deepflow-2024\nsources: {}\n",
    "own-model.yaml": "model: gemm\nm: 64\nn: 64\nk: 64\n",
    "own-software.yaml": "kind: software\nname: own\nattention: {kernel: flash, forward_utilisation: 0.5, backward_utilisation: 0.5}\n",
    "own-profile.csv": "op,shape,dtype,time\ngemm,64x64x64,fp16,1 ms\n",
}
STEP = """
import pickle, sys
from crossflow.answers.evaluation import evaluate
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
scenario = pickle.load(sys.stdin.buffer)
print(repr(float(evaluate(scenario).step_time[0])), [name for name in opened if "mine" in name])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A scenario of files of the user's, named from a folder that the current one holds."""
    home = tmp_path / "home" / "mine"
    home.mkdir(parents=True)
    for name, text in FILES.items():
        (home / name).write_text(text)
    own = {"system": "own-device.yaml", "workload": {"model": "own-model.yaml"}, "profile": "own-profile.csv"}
    (home / "s.yaml").write_text(yaml.safe_dump(own))
    monkeypatch.chdir(tmp_path / "home")
    return home


def step(scenario):
    return float(evaluate(scenario).step_time[0])


@pytest.mark.thorough
@pytest.mark.slow
def test_a_scenario_in_another_process_is_what_was_read(folder, tmp_path, monkeypatch):
    """A file that is changed, removed, or has another path from there."""
    scenario = load("mine/s.yaml")
    before, sent = step(scenario), pickle.dumps(scenario)
    (folder / "own-profile.csv").write_text("op,shape,dtype,time\ngemm,64x64x64,fp16,9 ms\n")
    assert step(pickle.loads(sent)) == before >= 1e-3
    shutil.rmtree(folder)
    monkeypatch.chdir(tmp_path)
    here = {**os.environ, "PYTHONPATH": str(Path(crossflow.__file__).parent.parent)}
    there = subprocess.run([sys.executable, "-c", STEP], input=sent, stdout=subprocess.PIPE, check=True, env=here)
    time, opened = there.stdout.decode().split(maxsplit=1)
    assert (float(time), opened.strip()) == (before, "[]")
    assert step(variant(scenario, {"kernels_per_device": 2, "workload.m": 64})) >= 1e-3


ORDER = "kind: schedule\nname: v\norder:\n  - F0 F1 B0 B1\n  - F0 B0 F1 B1\n"
BERT = {"system": {"template": "dgx-h100", "devices": 2}, "workload": {"model": "bert-base", "global_batch": 4}, "strategy": "pp2-mb2"}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("path", "value"),
    [("system.template", "own-device.yaml"), ("system.profile", "own-profile.csv"), ("strategy", "pp2-mb2-order:order.yaml")],
)
def test_files_that_a_study_names_are_read_with_it(folder, monkeypatch, tmp_path, path, value):
    """Of values of a space too, which were read late: a file that had gone made all of its designs infeasible."""
    (folder / "order.yaml").write_text(ORDER)
    scenario = BERT if path == "strategy" else {"system": {"template": "own-device.yaml"}, "workload": {"model": "own-model.yaml"}}
    text = {"name": "s", "scenario": scenario, "space": {path: [value]}, "searches": {"all": {"searcher": "exhaustive"}}}
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    study = read_study("mine/study.yaml")
    shutil.rmtree(folder)
    monkeypatch.setattr(run, "read_study", lambda *given, **_: study)
    assert [row["feasible"] for row in run.run_study("mine/study.yaml", out=tmp_path / "o").rows] == [True]


def test_a_scenario_of_another_version_is_refused(folder, monkeypatch, exactly):
    with monkeypatch.context() as there:
        there.setattr(crossflow, "__version__", "0.0.1")
        sent = pickle.dumps(load("mine/s.yaml"))
    sentence = f"s was sent by crossflow 0.0.1, and this is {crossflow.__version__}; install one version everywhere"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        pickle.loads(sent)


def test_a_shipped_file_is_read_again_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "_WING", tmp_path)
    path, read = tmp_path / "data" / "templates" / "own.yaml", []

    def reader(path):
        read.append(path)
        return path.read_bytes()

    path.parent.mkdir(parents=True)
    path.write_bytes(b"one")
    assert [contents.Contents().read(path, reader) for _ in range(2)] == [b"one", b"one"]
    path.write_bytes(b"another")
    assert contents.Contents().read(path, reader) == b"another"
    assert len(read) == 2
    path.unlink()
    with pytest.raises(FileNotFoundError):
        contents.Contents().read(path, reader)
