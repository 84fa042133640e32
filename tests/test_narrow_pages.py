"""Pages of 60 columns: no line is longer, no cell is cut, and pieces that belong together stay on one line."""

import re
import sys

import pytest
from rich.cells import cell_len
from rich.text import Text

from crossflow.__main__ import main
from crossflow.edges.cli import page

WIDTH = 60
STEP = ("--model", "llama3-70b", "--on", "h100-ib-cluster", "--nodes", "4", "--strategy", "tp8-pp4-full")
DESIGN = ("--model", "lstm-16k", "--on", "pathfinder", "--devices", "8", "--strategy", "d8")


@pytest.fixture(scope="module")
def pages():
    """Pages by the words of their commands, which several tests look at."""
    return {}


@pytest.fixture
def shown(pages, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def run(*words):
        key = *words, sys.stdout.isatty()
        if key not in pages:
            assert main(list(words)) == 0
            pages[key] = capsys.readouterr().out
        return pages[key]

    return run


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.usefixtures("short_divisions")
@pytest.mark.parametrize(
    "words",
    [
        ("predict", *STEP), ("predict", *DESIGN), ("explain", *DESIGN), ("timeline", *STEP), ("events", *STEP), ("init",),
        ("show", "HBM3"), ("show", "dgx-h100"), ("show", "pathfinder"), ("show", "llama3-70b"),
        ("plan", "--model", "llama3-8b", "--on", "dgx-h100", "--top", "3"),
    ],
)  # fmt: skip
def test_a_narrow_page_cuts_nothing(shown, words):
    text = shown(*words)
    assert max(map(cell_len, text.splitlines())) <= WIDTH
    assert "…" not in text
    assert not re.search(r"left out, because the page is narrow:.*,\s*\n\s*\n", text)


@pytest.mark.slow
@pytest.mark.usefixtures("short_divisions")
def test_labels_and_names_are_whole_on_a_narrow_page(shown):
    text = shown("predict", *STEP)
    assert re.search(r"▒ optimizer [\d.]+ GiB", text)
    assert "fp16, bf16 989.4 Tflop/s" in text
    assert "link to nodes" in text
    text = shown("predict", *DESIGN)
    assert re.search(r"^  inter link  +\S+ +[\d.]+  of [\d.]+ mm2$", text, re.MULTILINE)
    text = shown("show", "HBM3")
    assert "\n    0.293 .. 0.403 V   deepflow-code  assumed\n" in text
    text = shown("timeline", *STEP)
    assert re.search(r"^% of the step +busy +communication ", text, re.MULTILINE)
    assert "left out, because the page is narrow: imbalance" in text
    text = shown("explain", *DESIGN)
    assert re.search(r"biggest lever  [\w.-]+(?:\n +[\w.-]+)?: ", text)


def test_pieces_flow_between_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "12")
    page.emit(page.Flow([Text("one 1"), Text("two 2"), Text("three 3")]))
    assert capsys.readouterr().out == "one 1\ntwo 2\nthree 3\n"
    monkeypatch.setenv("COLUMNS", "13")
    page.emit(page.Flow([Text("one 1"), Text("two 2"), Text("three 3")]))
    assert capsys.readouterr().out == "one 1   two 2\nthree 3\n"


def test_columns_without_a_title_are_left_out_in_silence():
    assert page.left_out(["", " "], "") == []
    assert page.left_out(["gain  ", ""], "")[0].plain == "left out, because the page is narrow: gain"


def test_a_narrow_list_has_a_heading_for_each_group(shown, monkeypatch):
    wide = shown("list", "templates").splitlines()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown("list", "templates")).splitlines()
    assert max(map(cell_len, lines)) <= WIDTH
    headings = [line.split("  ")[1] for line in lines if line.startswith("templates  ")]
    kinds = ["generated", "datasheet device", "system", "family", "software stack", "reliability of clusters"]
    assert headings == [*kinds, "chip before its announcement"]
    assert [line.split()[0] for line in lines if re.match(r"  \S", line)] == [line.split()[0] for line in wide[1:]]
    assert len(lines) < 3 * len(wide)
