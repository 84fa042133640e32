"""What crossflow tells of itself: stages with `-v` and `--profile`, and the report of a mistake of its own."""

import getpass
import json
import re
import socket

import pytest

from crossflow import __main__
from crossflow.base.stages import StageWatch, stage
from crossflow.edges.cli import crash, predict

LLAMA = ["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "tp8"]


@stage("outer")
def outer(count):
    return sum(inner(i) for i in range(count))


@stage("inner")
def inner(i):
    if i < 0:
        raise ValueError(i)
    return i


def test_own_times_of_stages_add_up_to_the_whole():
    with StageWatch() as watch:
        assert outer(3) == 3
    (whole,) = [span for span in watch.spans if span.name == "outer"]
    assert sum(span.own for span in watch.spans) == pytest.approx(whole.end - whole.start, rel=1e-9)
    assert watch.totals()["inner"][0] == 3
    assert all(whole.start <= span.start <= span.end <= whole.end for span in watch.spans)


def test_a_stage_that_fails_is_told_and_closes():
    with StageWatch() as watch:
        with pytest.raises(ValueError, match="-1"):
            inner(-1)
        outer(1)
    assert [span.name for span in watch.spans] == ["inner", "inner", "outer"]


def test_nothing_is_kept_while_nobody_watches():
    watch = StageWatch()
    outer(2)
    assert watch.spans == []
    assert outer.__name__ == "outer"


def test_a_profile_is_a_trace_of_the_command(tmp_path, capsys):
    path = tmp_path / "profile.json"
    assert __main__.main([*LLAMA, "--set", "system.network.inter.bandwidth=41 GB/s", "-v", "--profile", str(path)]) == 0
    told = capsys.readouterr().err
    (stages,) = re.findall(r"crossflow: stages: (.*)", told)
    assert all(re.search(rf"\b{name} [\d.]+ m?u?s", stages) for name in ("price", "run", "score"))
    assert re.search(r"crossflow: kept results: [\d,]+ of [\d,]+ found again", told)
    events = [event for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if event["ph"] == "X"]
    whole, *stages = events
    assert whole["name"] == "crossflow predict"
    assert {"scenario", "device", "price", "run", "score", "trust"} <= {event["name"] for event in stages}
    assert all(event["ts"] >= 0 and event["ts"] + event["dur"] <= whole["dur"] for event in stages)


def test_a_profile_is_written_where_the_command_fails(tmp_path, capsys):
    assert __main__.main(["predict", str(tmp_path / "none.yaml"), "--profile", str(tmp_path / "p.json.gz")]) == 2
    assert (tmp_path / "p.json.gz").is_file()
    assert __main__.main([*LLAMA, "--profile", str(tmp_path / "p.txt")]) == 2
    assert "a trace is a .json or .json.gz file" in capsys.readouterr().err


def test_a_mistake_of_crossflow_leaves_a_report_without_private_names(tmp_path, monkeypatch, capsys):
    private = tmp_path / "ours" / "chip.yaml"

    def fail(arguments):
        raise KeyError(f"{private} of {getpass.getuser()} on {socket.gethostname()}")

    monkeypatch.setattr(crash.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(predict, "run", fail)
    with pytest.raises(KeyError):
        __main__.main(["predict", str(private), "--set", "workload.global_batch=8"])
    (file,) = tmp_path.glob("crossflow-crash-*.txt")
    assert str(file) in capsys.readouterr().err
    text = file.read_text(encoding="utf-8")
    assert "command: crossflow predict FILE.yaml --set workload.global_batch=8" in text
    assert re.search(r'File "crossflow/__main__.py", line \d+, in _status', text)
    assert "KeyError" in text
    for hidden in (str(tmp_path), "ours", socket.gethostname()):
        assert hidden not in text
    assert not re.search(rf"\b{getpass.getuser()}\b", text)


def test_a_report_hides_names_with_spaces_and_bare_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme").mkdir()
    error = KeyError(f"'{tmp_path}/top secret/next chip.yaml' and {tmp_path}/top secret/next chip.yaml need acme-b300.csv")
    text = "\n".join(crash._lines(error, ["predict", f"{tmp_path}/top secret/next chip.yaml", "-o", "acme"]))
    assert "command: crossflow predict FILE.yaml -o FILE\n" in text
    for hidden in ("secret", "chip", "acme", str(tmp_path)):
        assert hidden not in text
    assert "FILE.csv" in text


def test_a_report_hides_names_in_settings_and_hosts_and_keeps_units():
    error = KeyError("Zeppelin at node7: expected 'a quantity in B/s', got '3.35 TB/s'")
    words = [
        "study",
        "--set",
        "name=Zeppelin",
        "system.memory.bandwidth=3.35 TB/s",
        "-o",
        "lakehurst",
        "--dask",
        "tcp://node7.acme.com:8786",
    ]
    text = "\n".join(crash._lines(error, words))
    assert "crossflow study --set name=NAME system.memory.bandwidth=3.35 TB/s -o FILE --dask FILE\n" in text
    for hidden in ("Zeppelin", "lakehurst", "acme", "8786"):
        assert hidden not in text
    assert "expected 'a quantity in B/s', got '3.35 TB/s'" in text


def test_a_report_that_nobody_can_write_hides_nothing(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(crash.tempfile, "mkstemp", full)
    assert crash.report(ValueError("x"), ["predict"]) is None
