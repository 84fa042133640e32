"""`crossflow requests`: the page, the data, the picture, the trace that it writes, and `crossflow.requests` in Python."""

import json

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.picture import rate_line

DRAWN = """
arrivals: {law: poisson, rate: 2 1/s}
duration: 20 min
prompt: {law: lognormal, median: 300, p95: 2000}
output: 100
shared_prefix: {tokens: 256}
classes:
  - {name: chat, weight: 2, sessions: {turns: 3, think: 10 s}, targets: {ttft: 1 s}, priority: 1}
  - {name: code, output: 40}
"""


@pytest.fixture
def section(tmp_path):
    (tmp_path / "drawn.yaml").write_text(DRAWN)
    return tmp_path / "drawn.yaml"


def run(capsys, *words):
    status = main(["requests", *map(str, words)])
    return status, *capsys.readouterr()


def test_the_page_says_how_they_arrive_how_long_they_are_and_who_they_are(section, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    status, page, log = run(capsys, section)
    found = crossflow.requests(section)
    assert (status, log) == (0, "")
    assert page.startswith(f"drawn.yaml  {len(found):,} requests in 20.3 min\n")
    for words in (
        "a second",
        "over time",
        "follow others, after a pause of 10 s",
        "begin an earlier prompt too, in blocks of 16 tokens",
        "TTFT",
    ):
        assert words in " ".join(page.split())
    assert [line.split()[0] for line in page.split("Classes")[1].splitlines()[2:4]] == ["chat", "code"]


def test_the_data_say_the_same_as_python(section, capsys):
    _, text, _ = run(capsys, section, "--json")
    data, found = json.loads(text), crossflow.requests(section)
    assert data == json.loads(found.to_json())
    assert data["requests"] == len(found) == len(found.table()["prompt"])
    assert data["prompt_tokens"]["mean"] == pytest.approx(found.trace.prompt.mean())
    assert data["classes"][0]["targets"] == {"ttft_s": 1.0, "tpot_s": None, "e2e_s": None}
    assert data["provenance"]["seed"] == 0
    assert data["sessions"] == found.trace.first.sum()


def test_a_scenario_may_be_json(tmp_path, capsys):
    (tmp_path / "s.json").write_text(json.dumps({"system": "x", "workload": "y", "requests": {"batch": 3, "prompt": 4, "output": 5}}))
    status, text, _ = run(capsys, tmp_path / "s.json", "--json")
    assert (status, json.loads(text)["requests"]) == (0, 3)


def test_settings_change_what_is_drawn(section, capsys):
    _, text, _ = run(capsys, section, "--json", "--set", "requests.seed=7", "requests.duration=1 min")
    assert json.loads(text)["provenance"]["seed"] == 7
    assert json.loads(text)["requests"] < 500


def test_a_scenario_is_read_for_its_requests_alone(tmp_path, capsys):
    (tmp_path / "day.csv").write_text("arrival_s,prompt,output\n0,5,2\n3,6,2\n")
    (tmp_path / "s.yaml").write_text("system: nothing\nworkload: nothing\nrequests: day.csv\n")
    status, text, _ = run(capsys, tmp_path / "s.yaml", "--json")
    assert (status, json.loads(text)["requests"], json.loads(text)["provenance"]["seed"]) == (0, 2, None)


def test_requests_are_written_as_a_trace_and_as_a_picture(section, tmp_path, capsys):
    status, _, log = run(capsys, section, "-o", tmp_path / "out.jsonl.gz", "-o", tmp_path / "out.png")
    assert status == 0
    assert [line.rpartition("/")[2] for line in log.splitlines()] == ["out.jsonl.gz", "out.png", "out.svg"]
    again = crossflow.requests(tmp_path / "out.jsonl.gz")
    assert (again.trace.arrival == crossflow.requests(section).trace.arrival).all()
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv"], "none.csv: there is no such file"),
        (
            ["day.txt"],
            "day.txt: expected a trace, which ends in .csv, .jsonl, .ndjson, .json, .parquet, .pq, perhaps with .gz",
        ),
        (["empty.yaml"], "empty.yaml:1: empty.yaml has no requests; give the key requests: a trace, or how they are drawn"),
        (["drawn.yaml", "-o", "x.pdf"], "x.pdf: expected a picture (.png, .svg) or requests (.csv, .jsonl, also with .gz)"),
        (["day.csv", "-o", "day.csv"], "day.csv is read; write to another file"),
        (["drawn.yaml", "--set", "system.devices=8"], "--set system.devices=8: it changes no requests; settings begin with requests"),
        (["day.csv", "--set", "requests.limt=8"], "--set requests.limt=8: requests.limt: unknown key 'limt'; did you mean 'limit'?"),
    ],
)
def test_what_cannot_be_described_is_one_sentence(section, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.csv").write_text("arrival_s,prompt,output\n0,5,2\n")
    (tmp_path / "day.txt").write_text("x")
    (tmp_path / "empty.yaml").write_text("system: dgx-h100\nworkload: llama3-8b\n")
    status, out, error = run(capsys, *words)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.removeprefix("crossflow: ").startswith(message)


def test_python_takes_a_scenario_too():
    one = crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 8}, "workload": {"model": "llama3-8b", "task": "serving"},
        "strategy": "tp8", "requests": {"batch": 4, "prompt": 5, "output": 6}})  # fmt: skip
    assert repr(crossflow.requests(one)) == "DescribedRequests('scenario': 4 at once, 5 tokens in and 6 out on average)"
    with pytest.raises(CrossflowError, match="expected the path of a trace or of a scenario, its data, or a scenario; got 5"):
        crossflow.requests(5)


def test_a_closed_loop_is_told_as_one(tmp_path, capsys):
    (tmp_path / "loop.yaml").write_text("{users: 2, count: 6, prompt: 5, output: 6}")
    assert "in a closed loop" in repr(crossflow.requests(tmp_path / "loop.yaml"))
    assert run(capsys, tmp_path / "loop.yaml")[1].startswith("loop.yaml  6 requests, each after the last of its user\n")


def test_requests_are_a_table():
    found = crossflow.requests({"users": 2, "count": 3, "prompt": 5, "output": 6})
    frame = pytest.importorskip("pandas") and found.to_frame()
    assert frame["follows"].tolist() == [-1, -1, 0]
    assert found.to_csv().splitlines()[0] == "arrival_s,prompt,output,class,follows,pause_s"


def test_a_line_of_arrivals_holds_them_all():
    trace = crossflow.requests({"arrivals": {"law": "poisson", "rate": "2 1/s"}, "duration": "2 h", "prompt": 5, "output": 6}).trace
    for most in (10, 56, 120):
        line = rate_line(trace.arrival, most)
        assert (line.rates * line.window).sum() == pytest.approx(len(trace))
        assert len(line.rates) <= most + 1


def test_figures_of_arrivals_follow_from_their_gaps():
    found = crossflow.requests({"arrivals": {"law": "deterministic", "rate": "2 1/s"}, "count": 2001, "prompt": 5, "output": 6}).arrivals
    assert (found.span, found.rate, found.peak, found.cv, found.burstiness) == (1000.0, 2.0, 2.0, 0.0, -1.0)
