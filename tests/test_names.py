"""Names and other text of users is text wherever it is shown, and leads to no file but its own."""

import csv
import io
import json

import pytest
import yaml

from crossflow.__main__ import main
from crossflow.answers.study import run
from crossflow.answers.study.reading import read_study
from crossflow.answers.study.records import csv_text, write_csv
from crossflow.base.drawing.canvas import nothing, save
from crossflow.base.errors import SpecError
from crossflow.base.names import file_name, own_file

GEMM = {"system": "v100", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64}}
NASTY = "x\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nverdict: feasible"
SHOWN = r"x\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\nverdict: feasible"


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name="s", **sections):
        text = {"name": name, "scenario": GEMM, "sweep": {"workload.m": [64, 128]}, **sections}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
        return tmp_path / "study.yaml"

    return write


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a\\b", ".hidden", "", "a\nb", "n" * 200])
def test_a_plot_stays_in_the_folder_of_its_study(written, name):
    with pytest.raises(SpecError, match=r"plots\[0\]\.name: expected the name of a file, without folders"):
        read_study(written(plots=[{"name": name, "x": "workload.m"}]))
    assert own_file(file_name(name)) == file_name(name)


def test_two_plots_of_one_name_are_told(written, exactly):
    path = written(plots=[{"name": "A", "x": "workload.m"}, {"name": "a", "x": "workload.m"}])
    with pytest.raises(SpecError, match=exactly(f"{path}:2: plots: two are named 'a', and would be one file a.png")):
        read_study(path)


def test_a_study_without_a_folder_stays_in_results(written, tmp_path):
    assert run.run_study(written("../../evil")).out.resolve() == tmp_path / "results" / "evil"


def test_a_picture_that_fails_costs_no_table(written, tmp_path, monkeypatch):
    def failing(*_):
        raise RuntimeError

    monkeypatch.setattr(run, "draw", failing)
    with pytest.raises(RuntimeError):
        run.run_study(written(plots=[{"name": "p", "x": "workload.m"}]), out=tmp_path / "o")
    assert len((tmp_path / "o" / "points.csv").read_text().splitlines()) == 3


def test_pictures_show_dollars_as_they_are_written(tmp_path):
    save(nothing("$\\foo$ from $5 to $9", "\x1b[2J <b> & $x"), tmp_path, "p")
    svg = (tmp_path / "p.svg").read_text()
    assert "<!-- $\\foo$ from $5 to $9 -->" in svg
    assert "\x1b" not in svg


@pytest.mark.parametrize(
    ("name", "cell"), [("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("-a", "'-a"), ("@SUM(1)", "'@SUM(1)"), ("\t=1", "\\t=1"), ("a\r=1", "a\\r=1")]
)
def test_text_in_a_table_is_no_formula_and_numbers_are_numbers(tmp_path, name, cell):
    rows = [{"id": 0, "search": name, "value": -2.5, "=k": "-2.5"}]
    assert csv_text(rows).splitlines()[0] == "id,search,value,'=k"
    (tmp_path / "p.jsonl").write_text(json.dumps(rows[0], separators=(",", ":")) + "\n")
    write_csv(tmp_path / "p.jsonl", tmp_path / "p.csv")  # which takes a shorter way
    for text in (csv_text(rows), (tmp_path / "p.csv").read_bytes().decode()):
        assert list(csv.reader(io.StringIO(text, newline="")))[1] == ["0", cell, "-2.5", "-2.5"]


def test_a_terminal_gets_no_escape_codes_of_names(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"name": NASTY, **GEMM}))
    for command in ("predict", "events", "timeline"):
        assert main([command, str(path)]) == 0
        assert SHOWN in capsys.readouterr().out.splitlines()[0]


def test_a_terminal_gets_no_escape_codes_of_errors(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**GEMM, "system": NASTY}))
    assert main(["predict", str(path)]) == 2
    assert main(["predict", str(tmp_path / NASTY)]) == 2
    with pytest.raises(SystemExit):
        main(["explain", "s.yaml", "--top", NASTY])
    told = capsys.readouterr().err
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(told)
    assert not any(line.startswith("verdict") for line in told.splitlines())


COMMANDS = [(["timeline", "-o"], "t.svg", "-o"), (["events", "-o"], "e.csv", "-o")]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "name", "option"), COMMANDS)
def test_what_cannot_be_written_names_its_option(tmp_path, capsys, words, name, option):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(GEMM))
    assert main([words[0], str(tmp_path / "s.yaml"), words[1], str(tmp_path / "s.yaml" / name)]) == 2
    assert capsys.readouterr().err.endswith(f"; choose another folder with {option}\n")
