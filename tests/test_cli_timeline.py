# ruff: noqa: E501  (exact sentences)
"""The commands `timeline` and `events`: what they print and write, and how they fail."""

import gzip
import json

import pytest

from crossflow.__main__ import main

SCENARIO = """\
name: small
system: {template: dgx-a100, nodes: null}
workload: {model: gpt2-345m, global_batch: 16}
strategy: {tp: 2, pp: 2, dp: 2}
software: megatron-lm-2022
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return str(path)


def test_a_step_is_drawn_in_the_terminal(out, scenario):
    text = out("timeline", scenario)
    assert text.startswith("small: transformer on 8 devices of dgx-a100, tp2-dp2-pp2:")
    assert [line.split()[0:2] for line in text.splitlines() if line.startswith("stage")][:2] == [["stage", "0"], ["stage", "1"]]
    assert "mean of all" in text
    assert "does not fit" not in text


@pytest.mark.slow
def test_what_does_not_fit_is_told(out, scenario):
    many = out("timeline", scenario, "--set", "workload.layers=400", "--set", "workload.hidden=8192")
    assert "does not fit: stage 0 needs " in many
    both = out("timeline", scenario, "--compare", scenario, "--set", "workload.layers=400", "--set", "workload.hidden=8192")
    assert both.count("does not fit: stage 0 needs ") == 2


def test_its_time_is_the_predictions(out, scenario):
    found = json.loads(out("timeline", scenario, "--json"))
    assert found["step_time_s"] == pytest.approx(json.loads(out("predict", scenario, "--json"))["step_time_s"])
    assert [device["ranks"] for device in found["devices"]] == [4, 4]
    assert found["critical_path"]["ends"][-1]["end_s"] == pytest.approx(found["step_time_s"])
    parts = [value for key, value in found["devices"][0].items() if key.endswith("_s")]
    assert sum(parts) == pytest.approx(found["step_time_s"])


@pytest.mark.slow
def test_traces_and_pictures_are_written(out, capsys, scenario, tmp_path):
    files = [tmp_path / name for name in ("trace.json.gz", "step.png", "traces")]
    assert main(["timeline", scenario, *(word for path in files for word in ("-o", str(path)))]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert f"wrote {files[0]}: " in told.err
    assert json.loads(gzip.decompress(files[0].read_bytes()))["distributedInfo"]["world_size"] == 8
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "step.svg").is_file()
    assert len(list(files[2].iterdir())) == 2


def test_progress_of_a_trace_on_a_terminal_only(capsys, monkeypatch, scenario, tmp_path):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for words in (["all.json.gz", "--ranks", "all"], ["traces"]):
        assert main(["timeline", scenario, "-o", str(tmp_path / words[0]), *words[1:]]) == 0
        told = capsys.readouterr().err
        assert "events" in told.split("wrote")[0]
    assert len(list((tmp_path / "traces").iterdir())) == 2


def test_chosen_ranks_are_written(capsys, scenario, tmp_path):
    assert main(["timeline", scenario, "-o", str(tmp_path / "t.json"), "--ranks", "0,1,5"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 5}


def test_a_timeline_that_was_written_is_read_back_as_what_it_is(out, capsys, scenario, tmp_path):
    assert main(["timeline", scenario, "-o", str(tmp_path / "step.json.gz"), "-q"]) == 0
    predicted, drawn = (json.loads(out(command, scenario, "--json")) for command in ("predict", "timeline"))
    found = json.loads(out("trace", str(tmp_path / "step.json.gz"), "--json"))
    step = predicted["step_time_s"]
    assert found["step_time_s"] == pytest.approx(step, abs=1e-9)
    for part in ("exposed_communication", "bubble"):
        assert found["breakdown_s"][part] == pytest.approx(predicted["breakdown_s"][part], abs=1e-6 * step)
    for name, times in found["communication_s"].items():
        assert times["total"] == pytest.approx(predicted["communication_s"][name]["total"], abs=1e-6 * step)
    assert [(one["name"], one["steps_s"]) for one in found["ranks"]] == [
        (f"stage {i}, 1 of 4 alike", [found["step_time_s"]]) for i in range(2)
    ]
    for one, other in zip(found["ranks"], drawn["devices"], strict=True):
        idle = other["bubble_s"] + other["imbalance_s"]
        for part in ("busy_s", "exposed_communication_s", "waiting_s", "host_s"):
            assert one[part] == pytest.approx(other[part], abs=1e-6 * step)
        assert one["idle_s"] == pytest.approx(idle, abs=1e-6 * step)
    assert (found["trust"], found["replay"]) == ("unknown", None)


def test_who_waits_and_what_the_host_holds_up_are_read_back(out, tmp_path):
    (tmp_path / "slow.yaml").write_text("kind: uneven\nranks: {1: 0.5}\n")
    (tmp_path / "small.yaml").write_text(SCENARIO)
    words = [str(tmp_path / "small.yaml"), "--uneven", str(tmp_path / "slow.yaml")]
    assert main(["timeline", *words, "-o", str(tmp_path / "step.json"), "-q"]) == 0
    drawn = {one["first_rank"]: one for one in json.loads(out("timeline", *words, "--json"))["devices"]}
    found = json.loads(out("trace", str(tmp_path / "step.json"), "--json"))["ranks"]
    assert sum(one["waiting_s"] for one in found) > 0
    for one in found:
        assert one["waiting_s"] == pytest.approx(drawn[one["rank"]]["waiting_s"], abs=1e-7)
        assert one["host_s"] == pytest.approx(drawn[one["rank"]]["host_s"], abs=1e-7)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "words", [("--what-if", "compute*0.5"), ("--on", "dgx-h100"), ("--kernels", "model"), ("--write-overheads", "o.json")]
)
def test_a_step_that_crossflow_wrote_is_not_replayed(refused, scenario, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", scenario, "-o", "step.json", "-q"]) == 0
    assert "step.json was written by crossflow: its times are predicted" in refused("trace", "step.json", *words)
    assert "crossflow predict FILE --set PATH=VALUE" in refused("import", "step.json", "-o", "step.program.json")
    assert not (tmp_path / "o.json").exists()


def test_a_step_that_was_measured_stands_beside_one_that_was_written(refused, out, scenario, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", scenario, "-o", "step.json", "-q"]) == 0
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 5}
    (tmp_path / "real.json").write_text(json.dumps({"traceEvents": [event]}))
    assert "step.json was written by crossflow, and real.json was measured; to see both" in refused("trace", "step.json", "real.json")
    assert "real beside step" in out("trace", "real.json", "--compare", "step.json")


@pytest.mark.thorough
@pytest.mark.slow
def test_two_steps_are_compared(out, scenario, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.replace("pp: 2, dp: 2", "pp: 4"))
    assert "second is" in out("timeline", scenario, "--compare", str(other))
    found = json.loads(out("timeline", scenario, "--compare", str(other), "--json"))
    assert isinstance(found, dict)
    assert main(["timeline", scenario, "--compare", str(other), "-o", str(tmp_path / "both.png")]) == 0


def test_an_uneven_world_is_shown(out, scenario, tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text("kind: uneven\nranks: {1: 0.5}\n")
    text = out("timeline", scenario, "--uneven", str(path))
    assert "stage 0, replica 0, tp 1" in text or "tp 1" in text
    even, slow = (json.loads(out("timeline", scenario, *words, "--json")) for words in ((), ("--uneven", str(path))))
    assert slow["step_time_s"] > even["step_time_s"]
    assert sum(device["waiting_s"] for device in slow["devices"]) > 0


def test_settings_change_a_timeline(out, scenario):
    found = json.loads(out("timeline", scenario, "--set", "strategy=pp8", "--json"))
    assert len(found["devices"]) == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "step.pdf"), "step.pdf: a trace ends in .json or .json.gz, a picture in .png or .svg; a name without ending is a folder of traces"),
        (("--ranks", "0"), "--ranks chooses what a trace holds, and no trace is written; name one: -o step.json.gz"),
        (("-o", "t.png", "--ranks", "0"), "--ranks chooses what a trace holds, and no trace is written; name one: -o step.json.gz"),
        (("-o", "t.json", "--ranks", "one"), "--ranks: expected 'all' or whole numbers such as 0,8,16, got 'one'"),
        (("--uneven", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file or directory"),
        (("--compare", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file or directory"),
        (("--set", "strategy.pp=3"), "strategy"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(refused, scenario, words, sentence, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("timeline", scenario, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_ranks_that_are_not_there_are_told(refused, scenario, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "99" in refused("timeline", scenario, "-o", "t.json", "--ranks", "99")


@pytest.mark.slow
def test_events_are_listed_and_written(out, scenario, tmp_path):
    text = out("events", scenario)
    assert "different" in text
    assert "gemm" in text
    found = json.loads(out("events", scenario, "--json"))
    assert found["relative"] == pytest.approx(found["profiling_device_time_s"] / found["step_device_time_s"])
    path = tmp_path / "profile.csv"
    assert out("events", scenario, "-o", str(path)) == ""
    assert len(path.read_text().splitlines()) == len(found["events"]) + 1


@pytest.mark.slow
def test_a_profile_makes_a_prediction(out, scenario, tmp_path):
    path = tmp_path / "profile.csv"
    out("events", scenario, "-o", str(path))
    found = json.loads(out("predict", scenario, "--set", f"profile={path}", "--json"))
    assert 0.5 < found["measured_share"] <= 1.0
    assert f"{found['measured_share']:.1%}".replace("%", " %") + " of the time of kernels and collectives, by profile.csv" in out(
        "predict", scenario, "--set", f"profile={path}"
    )


def test_folders_that_are_made_are_told(scenario, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", scenario, "-o", "step"]) == 0
    assert "made the folder step, for its name has no ending, and wrote traces into it, a file a rank; one file is -o step.json.gz" in (
        capsys.readouterr().err
    )
    assert main(["timeline", scenario, "-o", "step"]) == 0
    assert "wrote traces into step, a file a rank" in (again := capsys.readouterr().err)
    assert "made" not in again
    assert main(["timeline", scenario, "-o", "new/there/step.json"]) == 0
    assert "making the folder new/there, which was not there\n" in capsys.readouterr().err


def test_a_token_on_stages_is_told_from_a_steady_step(capsys):
    words = ["timeline", "--model", "llama3-8b", "--on", "dgx-h100", "--task", "decode", "--strategy"]
    assert main([*words, "tp2-pp4"]) == 0
    assert "while tokens follow one another a step takes" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "tp8"]) == 0
    assert "follow one another" not in capsys.readouterr().err
