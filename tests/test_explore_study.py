"""The page of a study's folder, without a browser: what it is sent, what it may ask, and which folders are refused."""

import base64
import json
import shutil

import numpy as np
import orjson
import pytest
import yaml

import crossflow
from crossflow.__main__ import main
from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.contents import Contents
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.page import exported
from crossflow.edges.explore.study import study_app
from crossflow.edges.explore.study_rows import PointColumn, read_from, sent
from crossflow.edges.explore.study_source import study_at

SWEEP = """
name: two-nodes
scenario:
  system: {template: pathfinder, devices: 8}
  workload: {model: lstm-16k}
  strategy: d8
sweep:
  system.technology.logic: [N7, N5]
  system.budgets.power: [200 W, 300 W]
columns: [step_time_s]
headers: {step_time_s: "time of a step [s]"}
"""
SEARCH = """
name: power-or-speed
scenario:
  system: {template: pathfinder, devices: 8}
  workload: {model: lstm-16k}
  strategy: d8
space:
  system.budgets.power: {from: 100 W, to: 500 W}
  system.technology.logic: [N7, N5]
objectives: [step_time_s, power_w]
constraints: {power_w: <= 2 kW}
searches:
  drawn: {searcher: random, evaluations: 30}
  of-power: {searcher: random, evaluations: 10, over: [system.budgets.power]}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a sweep and of a search, each beside its study's file."""
    place = tmp_path_factory.mktemp("studies")
    for text in (SWEEP, SEARCH):
        name = yaml.safe_load(text)["name"]
        (place / f"{name}.yaml").write_text(text)
        run_study(place / f"{name}.yaml", out=place / name)
    return {"sweep": place / "two-nodes", "search": place / "power-or-speed"}


@pytest.fixture
def sweep(folders, tmp_path):
    """A folder of a sweep that a test may change."""
    shutil.copy(folders["sweep"].parent / "two-nodes.yaml", tmp_path)
    return shutil.copytree(folders["sweep"], tmp_path / "two-nodes")


def changed(folder, **fields):
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, **fields}))
    return folder


def recorded_before(folder):
    """The folder as versions left it whose records did not hold the study."""
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({name: value for name, value in record.items() if name not in ("document", "sources")}))
    return folder


def values(told, rows):
    """Values of a column as a page reads them."""
    if "numbers" in told:
        return np.frombuffer(base64.b64decode(told["numbers"]), "<f8").tolist()
    if "constant" in told:
        return [told["constant"]] * rows
    codes = np.frombuffer(base64.b64decode(told["codes"]), f"<u{told['width']}")
    return [told["levels"][code] for code in codes]


def rows_of(folder):
    return [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------------ what the page is sent


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("kind", ["sweep", "search"])
def test_columns_hold_what_the_rows_say(folders, kind):
    rows, start = rows_of(folders[kind]), study_app(folders[kind]).start()
    held = {told["name"]: values(told, start["rows"]) for told in start["columns"]}
    assert start["rows"] == len(rows)
    assert set(held) == {name for row in rows for name in row}
    for name, found in held.items():
        wanted = [row.get(name) for row in rows]
        assert [None if value != value else value for value in found] == wanted, name


def test_a_search_that_changes_less_leaves_the_rest_missing(folders):
    start = study_app(folders["search"]).start()
    logic = next(told for told in start["columns"] if told["name"] == "system.technology.logic")
    assert values(logic, start["rows"])[30:] == [None] * 10
    assert [search["words"] for search in start["searches"]] == ["drawn", "of-power"]


def test_the_page_knows_objectives_units_and_swept_paths(folders):
    search, sweep = (study_app(folders[kind]).start() for kind in ("search", "sweep"))
    assert search["objectives"] == [{"name": "step_time_s", "larger": False}, {"name": "power_w", "larger": False}]
    assert sweep["swept"] == ["system.technology.logic", "system.budgets.power"]
    power = next(told for told in sweep["columns"] if told["name"] == "system.budgets.power")
    assert power["unit"] == "W"
    assert power["amounts"] == {"200 W": 200.0, "300 W": 300.0}
    step = next(told for told in sweep["columns"] if told["name"] == "step_time_s")
    assert (step["words"], step["unit"], step["larger"]) == ("time of a step", "s", False)
    logic = next(told for told in sweep["columns"] if told["name"] == "system.technology.logic")
    assert logic["order"] == ["N7", "N5"]


def test_names_of_what_changes_together_are_settings_of_a_page(tmp_path):
    """Designs are told apart, and ranked, by them: nine rows of three engines were three."""
    data = yaml.safe_load(SWEEP)
    chips = {"old": {"system.technology.logic": "N7"}, "new": {"system.technology.logic": "N5"}}
    data |= {"name": "together", "sweep": {"chip": chips, "system.budgets.power": ["200 W", "300 W"]}}
    (tmp_path / "together.yaml").write_text(yaml.safe_dump(data))
    run_study(tmp_path / "together.yaml", out=tmp_path / "out")
    start = study_app(tmp_path / "out").start()
    roles = {column["name"]: column["role"] for column in start["columns"]}
    assert start["swept"] == ["chip", "system.budgets.power"]
    assert (roles["chip"], roles["system.budgets.power"], roles["step_time_s"]) == ("setting", "setting", "figure")


def test_columns_beyond_the_room_of_a_page_come_when_they_are_asked_for(folders, monkeypatch):
    whole = study_app(folders["sweep"])
    monkeypatch.setattr("crossflow.edges.explore.study.INLINE", 4000)
    app = study_app(folders["sweep"])
    start = app.start()
    late = [told["name"] for told in start["late"]]
    assert late
    answered = app.calls["columns"]({"names": late, "rows": 4})["columns"]
    monkeypatch.undo()
    known = {told["name"]: told for told in whole.start()["columns"]}
    assert all(values(answered[name], 4) == values(known[name], 4) for name in late)
    with pytest.raises(CrossflowError, match="how many rows"):
        app.calls["columns"]({"names": late, "rows": 5})


def test_a_page_begins_with_its_options_however_many_numbers_there_are(folders, monkeypatch):
    monkeypatch.setattr("crossflow.edges.explore.study.INLINE", 1200)
    start = study_app(folders["search"]).start()
    assert {"system.budgets.power", "id"} & {told["name"] for told in start["late"]}
    assert "system.technology.logic" in {told["name"] for told in start["columns"]}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([1.5, None, 1.5], [1.5, None, 1.5]),
        ([True, False, None], [True, False, None]),
        (["a", "b", None], ["a", "b", None]),
        ([1, "auto", 2.5], ["1", "auto", "2.5"]),
        ([{"dp": 8, "pp": 2}, "d8"], ["dp8 pp2", "d8"]),
        ([None, None], [None, None]),
        ([7.0, 7.0], [7.0, 7.0]),
    ],
)
def test_values_of_every_kind_survive_the_way(tmp_path, given, wanted):
    path = tmp_path / "points.jsonl"
    path.write_text("".join(json.dumps({"id": i, "a": value}) + "\n" for i, value in enumerate(given)))
    found = read_from(path, 0)
    told = orjson.loads(orjson.dumps(sent(found.columns["a"], found.rows)))
    assert values(told, found.rows) == wanted


def test_a_column_that_turns_from_numbers_to_names_is_of_names(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text('{"id":0,"a":1.5}\n{"id":1,"b":2,"a":null}\n{"id":2,"a":"x"}\n')
    found = read_from(path, 0)
    assert values(sent(found.columns["a"], 3), 3) == ["1.5", None, "x"]


@pytest.mark.parametrize("part", [1, 2, 3, 4096])
def test_rows_are_read_the_same_however_many_at_once(tmp_path, monkeypatch, part):
    monkeypatch.setattr("crossflow.edges.explore.study_rows.PART", part)
    columns = {
        "id": [0.0, 1.0, 2.0, 3.0, 4.0], "late": [None, None, 1.5, None, 2.5], "early": [1.5, 2.5, None, None, None],
        "flag": [None, True, False, None, True], "named": [None, 1, "auto", 2.5, None], "name": ["a", None, "b", "a", "b"],
    }  # fmt: skip
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path = tmp_path / "points.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_from(path, 0)
    assert (list(found.columns), found.rows, found.end) == (list(columns), 5, path.stat().st_size)
    told = {name: orjson.loads(orjson.dumps(sent(column, 5))) for name, column in found.columns.items()}
    read = {name: [None if value != value else value for value in values(one, 5)] for name, one in told.items()}
    assert read == {**columns, "named": [None, "1", "auto", "2.5", None]}


def test_sentences_of_their_own_lose_their_numbers():
    sentences = tuple(f"needs {i / 7:.3f} GiB of memory" for i in range(3000))
    told = sent(PointColumn(values=np.arange(3000.0), levels=sentences), 3000)
    assert told == {"constant": "needs … GiB of memory"}


def test_as_many_names_as_points_keep_their_numbers():
    names = tuple(f"tp{i}" for i in range(3000))
    told = sent(PointColumn(values=np.arange(3000.0), levels=names), 3000)
    assert values(told, 3000) == list(names)


# ------------------------------------------------------------------------------------------ designs


@pytest.mark.parametrize(("kind", "number"), [("sweep", 3), ("search", 5), ("search", 35)])
def test_a_design_is_the_row_that_it_comes_from(folders, kind, number, tmp_path):
    row = rows_of(folders[kind])[number]
    told = study_app(folders[kind]).calls["design"]({"id": number})
    assert told["row"] == row
    assert told["doubt"] is None
    assert told["prediction"]["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-12)
    assert sum(told["prediction"]["breakdown_s"].values()) == pytest.approx(row["step_time_s"])
    (tmp_path / "design.yaml").write_text(told["yaml"])
    assert crossflow.predict(crossflow.load(tmp_path / "design.yaml")).step_time == pytest.approx(row["step_time_s"], rel=1e-12)


def test_the_command_and_the_python_of_a_design_give_its_step_time(folders, tmp_path, monkeypatch, capsys):
    import shlex

    row = rows_of(folders["search"])[7]
    told = study_app(folders["search"]).calls["design"]({"id": 7})
    (tmp_path / "scenario.yaml").write_text(told["base"])
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "scenario.yaml", *shlex.split(told["settings"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-12)
    held = {}
    exec(told["python"].replace("print(", "found = ("), held)
    assert held["found"].step_time == pytest.approx(row["step_time_s"], rel=1e-12)


def test_a_design_of_another_scenario_is_told(sweep):
    text = (sweep / "points.jsonl").read_text()
    first = rows_of(sweep)[0]["step_time_s"]
    (sweep / "points.jsonl").write_text(text.replace(f'"step_time_s":{first}', '"step_time_s":123.0', 1))
    assert "the study says 123 s" in study_app(sweep).calls["design"]({"id": 0})["doubt"]


def test_a_folder_holds_all_that_its_designs_need(sweep, monkeypatch, tmp_path):
    (sweep.parent / "two-nodes.yaml").unlink()
    folder = shutil.copytree(sweep, tmp_path / "far" / "away" / "else")
    monkeypatch.chdir(folder)
    app = study_app(folder)
    start = app.start()
    assert start["source"] == str(folder / "run.json")
    assert next(told for told in start["columns"] if told["name"] == "step_time_s")["words"] == "time of a step"
    told = app.calls["design"]({"id": 3})
    assert told["doubt"] is None
    assert told["prediction"]["step_time_s"] == pytest.approx(rows_of(folder)[3]["step_time_s"], rel=1e-12)
    assert app.calls["sliders"]({"id": 3})["url"].startswith("http://127.0.0.1:")


@pytest.mark.cases(1)
@pytest.mark.parametrize("relative", [False, True])
def test_a_folder_holds_the_files_that_its_scenario_names(tmp_path, monkeypatch, relative):
    place = tmp_path / "here"
    (place / "parts").mkdir(parents=True)
    (place / "parts" / "chip.yaml").write_text("template: pathfinder\nbudgets: {power: 150 W}\n")
    (place / "two-nodes.yaml").write_text(SWEEP.replace("template: pathfinder", "template: parts/chip.yaml"))
    monkeypatch.chdir(place)
    run_study(
        "two-nodes.yaml" if relative else place / "two-nodes.yaml",
        out=place / "out",
        settings=["scenario.system.devices=4", "scenario.strategy=d4"],
    )
    folder = shutil.move(place / "out", tmp_path / "moved")
    shutil.rmtree(place / "parts")
    (place / "two-nodes.yaml").unlink()
    told = study_app(tmp_path / "moved").calls["design"]({"id": 2})
    assert told["doubt"] is None
    assert told["prediction"]["step_time_s"] == pytest.approx(rows_of(tmp_path / "moved")[2]["step_time_s"], rel=1e-12)
    record = json.loads((tmp_path / "moved" / "run.json").read_text())
    assert list(record["sources"]) == ["parts/chip.yaml"]
    assert study_app(folder).calls["sliders"]({"id": 2})["url"].startswith("http://127.0.0.1:")


def test_files_that_are_long_or_no_text_are_not_recorded(tmp_path):
    held = Contents({str(tmp_path / "long.yaml"): b"a" * 2**21, str(tmp_path / "no.gz"): b"\xff\xfe\x00", "named.yaml": b"b: 1",
                     str(tmp_path / "none.yaml"): None, "shipped:techlibs/standard.yaml": b"c: 1"})  # fmt: skip
    assert held.below(tmp_path) == {"named.yaml": "b: 1"}


def test_without_the_study_s_file_a_design_is_its_row(sweep, monkeypatch):
    monkeypatch.chdir(sweep)
    (sweep.parent / "two-nodes.yaml").unlink()
    app = study_app(recorded_before(sweep))
    assert app.start()["source"] is None
    assert list(app.calls["design"]({"id": 1})) == ["row"]
    with pytest.raises(CrossflowError, match="the study's file was not found"):
        app.calls["sliders"]({"id": 1})


def test_a_study_s_file_that_has_changed_is_not_taken_for_it(sweep):
    path = sweep.parent / "two-nodes.yaml"
    path.write_text(path.read_text().replace("devices: 8", "devices: 16").replace("d8", "d16"))
    assert study_app(recorded_before(sweep)).start()["source"] is None


def test_the_study_s_file_serves_where_the_record_does_not_hold_it(sweep):
    app = study_app(recorded_before(sweep))
    assert app.start()["source"] == str(sweep.parent.resolve() / "two-nodes.yaml")
    assert app.calls["design"]({"id": 3})["doubt"] is None


def test_a_best_design_stands_in_for_a_missing_study_file(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = recorded_before(shutil.copytree(folders["search"], tmp_path / "elsewhere"))
    told = study_app(folder).calls["design"]({"id": 9})
    assert told["doubt"] is None
    assert told["prediction"]["step_time_s"] == pytest.approx(rows_of(folder)[9]["step_time_s"], rel=1e-12)


def test_designs_open_as_sliders_at_addresses_of_their_own(folders):
    opened = study_app(folders["sweep"]).calls["sliders"]
    first, second = opened({"id": 0})["url"], opened({"id": 1})["url"]
    assert first.startswith("http://127.0.0.1:")
    assert first != second
    assert opened({"id": 0})["url"] == first


@pytest.mark.parametrize("number", [-1, 4, 1.5, True, "0", None])
def test_what_is_no_point_is_refused(folders, number):
    with pytest.raises(CrossflowError, match="point"):
        study_app(folders["sweep"]).calls["design"]({"id": number})


# ------------------------------------------------------------------------------------------ a study that runs


def test_rows_that_come_later_are_sent_once(sweep):
    lines = (sweep / "points.jsonl").read_text().splitlines(keepends=True)
    changed(sweep, finished=False)
    (sweep / "points.jsonl").write_text(lines[0] + lines[1][:30])
    app = study_app(sweep)
    start = app.start()
    assert (start["rows"], start["finished"], start["expected"]) == (1, False, 4)
    asked = {"offset": start["offset"], "file": start["file"], "names": ["step_time_s"]}
    assert app.calls["tail"](asked)["rows"] == 0
    with (sweep / "points.jsonl").open("a") as stream:
        stream.write(lines[1][30:] + lines[2])
    found = app.calls["tail"](asked)
    assert found["rows"] == 2
    assert values(found["columns"]["step_time_s"], 2) == [json.loads(line)["step_time_s"] for line in lines[1:3]]
    assert app.calls["tail"]({**asked, "offset": found["offset"]})["rows"] == 0


def test_a_file_that_was_written_anew_is_loaded_again(sweep):
    app = study_app(sweep)
    start = app.start()
    content = (sweep / "points.jsonl").read_bytes()
    other = sweep / "other"
    other.write_bytes(content)
    other.replace(sweep / "points.jsonl")
    assert app.calls["tail"]({"offset": start["offset"], "file": start["file"], "names": []}) == {"again": True}


def test_rows_that_were_replaced_in_place_are_loaded_again(sweep):
    app = study_app(sweep)
    start = app.start()
    with (sweep / "points.jsonl").open("ab") as stream:
        stream.write(b'"half": 1}\n')
    assert app.calls["tail"]({"offset": start["offset"], "file": start["file"], "names": []}) == {"again": True}


# ------------------------------------------------------------------------------------------ folders that are refused


def without_record(folder):
    (folder / "run.json").unlink()


def without_points(folder):
    (folder / "points.jsonl").unlink()


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def no_points(folder):
    (folder / "points.jsonl").write_text("")


def cut_short(folder):
    content = (folder / "points.jsonl").read_bytes()
    (folder / "points.jsonl").write_bytes(content[:-20])


def broken_row(folder):
    lines = (folder / "points.jsonl").read_text().splitlines(keepends=True)
    (folder / "points.jsonl").write_text(lines[0] + "[1]\n" + lines[2])


def broken_record(folder):
    (folder / "run.json").write_text("{")


def other_record(folder):
    (folder / "run.json").write_text("[]")


def other_version(folder):
    changed(folder, schema=9)


@pytest.mark.parametrize(
    ("spoil", "place", "cure"),
    [
        (empty, "two-nodes is an empty folder", "give a scenario"),
        (without_record, "two-nodes is no study", "crossflow study"),
        (without_points, "points.jsonl is missing (points.csv alone", "run the study again"),
        (no_points, "points.jsonl holds no point", ""),
        (cut_short, "points.jsonl:4: the line is cut short", "--resume"),
        (broken_row, "points.jsonl:2: not a point of a study", "run the study again"),
        (broken_record, "run.json cannot be read", "crossflow study"),
        (other_record, "run.json is not the record of a study", "crossflow study"),
        (other_version, "run.json: its format is 9, of a later crossflow", "run the study again"),
    ],
)
def test_what_is_no_study_is_one_error_with_its_place_and_cure(sweep, capsys, spoil, place, cure):
    spoil(sweep)
    assert main(["explore", str(sweep), "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert place in said
    assert cure in said
    assert "Traceback" not in said


def test_a_study_that_has_just_begun_says_to_wait(sweep):
    no_points(changed(sweep, finished=False))
    with pytest.raises(CrossflowError, match="wait until the study has written some"):
        study_app(sweep)


# ------------------------------------------------------------------------------------------ the page as one file


def test_the_exported_page_holds_every_column(folders, monkeypatch):
    monkeypatch.setattr("crossflow.edges.explore.study.INLINE", 4000)
    app = study_app(folders["sweep"])
    text = exported(app)
    block = text.split('<script type="application/json" id="start">')[1].split("</script>")[0]
    start = json.loads(block)
    assert start["offline"] is True
    assert set(start["answers"]["columns"]) == {told["name"] for told in start["late"]} != set()
    assert "import {" not in text


@pytest.mark.parametrize(
    ("scenario", "swept", "strategy"), [({}, ["tp8", "dp8"], "any"), ({"strategy": "tp4-dp2"}, ["tp8", "dp8"], "tp4-dp2")]
)
def test_a_study_opens_without_a_strategy_where_its_points_have_theirs(scenario, swept, strategy, tmp_path):
    data = {"name": "own", "scenario": {"system": "dgx-h100", "workload": "llama3-8b", **scenario}, "sweep": {"strategy": swept}}
    files.write_text(tmp_path / "own.yaml", files.yaml_text(data))
    assert study_at(tmp_path / "own.yaml").scenario.document.data["strategy"] == strategy
