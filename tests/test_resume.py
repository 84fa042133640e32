"""Killed, interrupted or out of disk: a resumed study ends with the bytes of an undisturbed one."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from sampled import every

from crossflow.answers.study import records, sweeps
from crossflow.answers.study.run import run_study
from crossflow.answers.study.tables import COLUMNS
from crossflow.base.errors import CrossflowError

STUDY = """\
name: many
scenario: {system: {template: v100}, workload: {model: gemm, m: 1024, n: 1024, k: 1024, dtype: fp16}}
sweep:
  workload.k: [1024, 2048]
  system.budgets.power: {from: 150 W, to: 400 W, count: 12}
plots: []
"""
TASK = 8  # points a task in these tests, so that a short study has several
# The command line, whose tasks after the first take their time so that a signal finds it at work.
SLOW = f"""\
import sys, time
from crossflow.answers.study import sweeps
from crossflow.__main__ import main
quick, sweeps.TASK = sweeps.evaluated, {TASK}
sweeps.evaluated = lambda part: (time.sleep(0.5 if part.first else 0), quick(part))[1]
sys.exit(main(sys.argv[1:]))
"""
NAMES = ("points.jsonl", "points.csv", "points.npz", "run.json")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "many.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module", autouse=True)
def short_tasks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "TASK", TASK)
        yield


@pytest.fixture(scope="module")
def undisturbed(study, short_tasks):
    made = run_study(study, out=study.parent / "whole")
    assert len(made.rows) == 3 * TASK
    return {name: (made.out / name).read_bytes() for name in NAMES}


def contents(folder):
    return {name: (folder / name).read_bytes() for name in NAMES}


def disturbed(study, out, sent):
    """Exit status and log of a run that got a signal after its first task."""
    words = [sys.executable, "-c", SLOW, "study", str(study), "--out", str(out)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    points, limit = out / records.POINTS, time.monotonic() + 30
    while not (points.exists() and points.stat().st_size) and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    child.send_signal(sent)
    printed, log = child.communicate(timeout=30)
    assert printed == ""
    return child.returncode, log


def test_a_finished_run_whose_points_are_gone_is_computed_anew(study, undisturbed, tmp_path):
    """An empty file of points has no block that is wrong."""
    out = tmp_path / "emptied"
    out.mkdir()
    for name, held in undisturbed.items():
        (out / name).write_bytes(b"" if name == "points.jsonl" else held)
    assert len(run_study(study, out=out, resume=True)) == 3 * TASK
    assert contents(out) == undisturbed


def stopped(study, out, after=1):
    """A run that ends after some tasks, as a process does that is killed between two."""

    class Killed(BaseException):
        pass

    def kill(done, total, best):
        if done >= min(after * TASK, total):
            raise Killed

    with pytest.raises(Killed):
        run_study(study, out=out, progress=kill)


@pytest.mark.thorough
@pytest.mark.slow
def test_killed_in_the_middle_and_resumed(study, undisturbed, tmp_path):
    assert disturbed(study, tmp_path, signal.SIGKILL) == (-signal.SIGKILL, "")
    assert [row["id"] for row in records.rows(tmp_path / records.POINTS)] == list(range(TASK))
    run_study(study, out=tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


@pytest.mark.thorough
@pytest.mark.slow
def test_interrupted_in_the_middle_and_resumed(study, undisturbed, tmp_path):
    status, log = disturbed(study, tmp_path, signal.SIGINT)
    kept = "crossflow: interrupted; finished points are kept, and the same command with --resume goes on from them\n"
    assert (status, log) == (130, kept)
    run_study(study, out=tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("after", every(2, [0, 1, 2, 3], 1))
def test_resumed_tasks_are_not_done_again(study, undisturbed, tmp_path, monkeypatch, after):
    stopped(study, tmp_path, after)
    done = []
    real = sweeps.evaluated
    monkeypatch.setattr(sweeps, "evaluated", lambda part: (done.append(part.first), real(part))[1])
    run_study(study, out=tmp_path, resume=True)
    assert done == [0, 8, 16][after:]
    assert contents(tmp_path) == undisturbed


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("keep", every(2, [0.0001, 0.3, 0.7, 0.999999]))
def test_resumed_from_any_part_of_the_points(study, undisturbed, tmp_path, keep):
    stopped(study, tmp_path, 3)
    path = tmp_path / records.POINTS
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    run_study(study, out=tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


def test_progress_counts_what_was_already_there(study, tmp_path):
    stopped(study, tmp_path, 2)
    seen = []
    run_study(study, out=tmp_path, resume=True, progress=lambda done, total, best: seen.append((done, total)))
    assert seen == [(16, 24), (24, 24)]


def test_a_finished_study_is_told_again_from_its_files(study, tmp_path, monkeypatch):
    first = run_study(study, out=tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.setattr(sweeps, "evaluated", None)
    with monkeypatch.context() as unread:  # rows of a million points are many
        unread.setattr(records, "rows", None)
        again = run_study(study, out=tmp_path, resume=True)
        assert (again.table(), again.summary, again.files) == (first.table(), first.summary, first.files)
    assert again.to_dict() == first.to_dict()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


@pytest.mark.cases(1)
@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_columns_that_were_lost_are_made_again(study, undisturbed, tmp_path, change):
    run_study(study, out=tmp_path)
    record = json.loads((tmp_path / records.RUN).read_text())
    change(tmp_path / COLUMNS)
    if (tmp_path / COLUMNS).exists():  # and their digest changed with them
        record["files"][COLUMNS] = hashlib.sha256(b"").hexdigest()[:16]
        (tmp_path / records.RUN).write_text(json.dumps(record))
    run_study(study, out=tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


def test_resuming_nothing_starts_and_resuming_all_changes_nothing(study, undisturbed, tmp_path):
    for _ in range(2):
        run_study(study, out=tmp_path, resume=True)
        assert contents(tmp_path) == undisturbed


def test_an_unfinished_run_is_kept_until_it_is_resumed(study, tmp_path):
    stopped(study, tmp_path)
    before = (tmp_path / records.POINTS).read_bytes()
    with pytest.raises(CrossflowError, match="holds an unfinished run of many; continue it with --resume"):
        run_study(study, out=tmp_path)
    assert (tmp_path / records.POINTS).read_bytes() == before


@pytest.mark.cases(1)
@pytest.mark.parametrize("setting", ["scenario.workload.m=512", "sweep={workload.k: [1024, 2048]}", "scenario.system.budgets.power=290 W"])
def test_a_changed_study_does_not_go_on_from_old_points(study, tmp_path, setting):
    stopped(study, tmp_path)
    before = (tmp_path / records.POINTS).read_bytes()
    with pytest.raises(CrossflowError, match=r"holds a run of a different study \(.*, now .*\); its points would not fit\."):
        run_study(study, out=tmp_path, resume=True, settings=[setting])
    assert (tmp_path / records.POINTS).read_bytes() == before


def test_a_folder_that_is_removed_meanwhile_is_told(study, tmp_path, exactly):
    out = tmp_path / "o"
    with pytest.raises(CrossflowError, match=exactly(f"{out / records.POINTS} was removed while the run wrote to it; start it again")):
        run_study(study, out=out, progress=lambda done, *_: shutil.rmtree(out) if done == TASK else None)
    assert not out.exists()


def test_a_disk_that_fills_and_is_cleared(study, undisturbed, tmp_path, monkeypatch):
    calls = []

    def filling(_):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(CrossflowError, match=r"No space left on device; finished points are kept, make room and continue with --resume$"):
        run_study(study, out=tmp_path)
    assert len(list(records.rows(tmp_path / records.POINTS))) >= TASK
    run_study(study, out=tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed
