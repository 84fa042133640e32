"""The documentation: links lead somewhere, sentences stay short, references are those of the program, notebooks run."""

import ast
import functools
import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

import crossflow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import pages

    return pages


def test_links_and_anchors_lead_somewhere(pages):
    assert list(pages.broken_links()) == []


def test_paths_in_messages_and_comments_lead_somewhere(pages):
    assert list(pages.broken_paths()) == []


def test_a_broken_link_is_found(pages, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A\n[ok](#a) [gone](b.md) `[code](c.md)` ![picture](d.png) [anchor](#b) [there](https://example.org/x)\n")
    assert [complaint.split(": ", 1)[1] for complaint in pages.broken_links([page])] == [
        "no such file: b.md", "no such file: d.png", "no such anchor: #b",
    ]  # fmt: skip


def test_sentences_are_short_where_people_read_through(pages):
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in pages.READ_THROUGH}
    assert {"README.md", "docs/tutorial.md", "docs/how-to/training.md"} <= {*texts}
    assert all(sum(1 for _ in pages.sentences(text)) > 4 for text in texts.values())
    assert [(name, *found) for name, text in texts.items() for found in pages.long_sentences(text)] == []


def test_sentences_leave_code_and_tables_out(pages):
    text = "# A heading\n\nOne two, i.e. three. Four `x. Y` five\nsix.\n\n| a. B | c |\n| --- | --- |\n\n```sh\nA. B\n```\n"
    text += "- Seven [eight. Nine](x.md).\n"
    found = list(pages.sentences(text))
    assert [sentence for _, sentence in found] == ["One two, i.e. three.", "Four `x. Y` five six.", "Seven eight.", "Nine."]
    assert [line for line, _ in found] == [3, 3, 12, 12]
    assert pages.words("Four `x. Y` five - six.") == 4
    assert list(pages.long_sentences("word " * 40 + "end."))
    assert not list(pages.long_sentences("word " * 39 + "end."))


@pytest.fixture
def make_docs(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import make_docs

    return make_docs


def test_examples_of_every_written_page_are_run(make_docs):
    places = make_docs.written_pages()
    assert places[ROOT / "README.md"] == ROOT
    assert {places[DOCS / name] for name in ("tutorial.md", "index.md", "how-to/training.md", "nomenclature.md")} == {DOCS / "examples"}
    assert not {DOCS / "files.md", DOCS / "cli.md", DOCS / "studies.md", DOCS / "scripts" / "sharding.md"} & {*places}


def test_outputs_of_examples_are_those_that_commands_print(make_docs):
    page = (
        "<!-- fails -->\n<!-- keep 1, 3-4 -->\n```console\n$ crossflow predict broken.yaml\nwrong\n```\n```console\n$ other\nstays\n```\n"
    )
    lines = make_docs.refresh(page, DOCS.relative_to(ROOT) / "examples").splitlines()
    assert [line.partition(" ")[0] for line in lines[4:9]] == ["broken.yaml:6:", "...", "broken.yaml:6:", "broken.yaml:5:", "..."]
    assert lines[:4] == page.splitlines()[:4]
    assert lines[-3:] == ["$ other", "stays", "```"]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("mark", "command"), [("", "predict broken.yaml"), ("<!-- fails -->\n", "list models")])
def test_an_exit_status_that_the_page_does_not_expect_is_refused(make_docs, mark, command):
    with pytest.raises(RuntimeError, match=f"crossflow {command}: exit status"):
        make_docs.refresh(f"{mark}```console\n$ crossflow {command}\n```\n", DOCS.relative_to(ROOT) / "examples")


def test_lines_that_are_not_kept_become_dots(make_docs):
    assert make_docs.shortened("a\nb\nc\nd\n", None) == "a\nb\nc\nd\n"
    assert make_docs.shortened("a\nb\nc\nd\n", "1, 3-4") == "a\n...\nc\nd\n"
    assert make_docs.shortened("a\nb\nc\nd\n", "2") == "...\nb\n...\n"


def test_lines_are_kept_by_the_text_in_them(make_docs):
    text = "head\n\nA\n  a\n  b\n\nB\n  a\n  c\n  d\n"
    assert make_docs.shortened(text, '1, "A"-') == "head\n\nA\n  a\n  b\n...\n"
    assert make_docs.shortened(text, '"B"+1, "d"') == "...\nB\n  a\n...\n  d\n"
    with pytest.raises(RuntimeError, match='no line "e"'):
        make_docs.shortened(text, '1, "e"')
    with pytest.raises(RuntimeError, match="no line 11"):
        make_docs.shortened(text, "3, 11-12")


def test_python_examples_of_pages_are_run(make_docs):
    right, wrong = (f"```python\n>>> 6 * 7\n{value}\n\n```\n" for value in (42, 43))
    assert list(make_docs.doctests(DOCS / "page.md", right, ROOT)) == []
    assert "Expected" in "".join(make_docs.doctests(DOCS / "page.md", wrong, ROOT))


def test_the_reference_of_commands_is_that_of_the_parser(make_docs):
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == make_docs.cli_page(), "run python docs/scripts/make_docs.py --only docs/cli.md"


@pytest.mark.thorough
@pytest.mark.slow
def test_the_matrix_of_what_was_measured_is_that_of_the_data(make_docs, monkeypatch):
    monkeypatch.setattr(make_docs.support, "level", functools.cache(make_docs.support.level))  # most cells stand in several tables
    page = (DOCS / "support.md").read_text(encoding="utf-8")
    assert page == make_docs.support.page(make_docs.GENERATED), "run python docs/scripts/make_docs.py --only docs/support.md README.md"
    assert make_docs.support.compact() in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\| `b200` \| measured", page)
    assert re.search(r"`mi300x`[^|]* \| extrapolated", page)


def test_fits_import_names_that_the_package_has():
    for path in sorted((DOCS / "scripts").glob("fit_*.py")):
        found = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom))
        taken = [(node.module, each.name) for node in found if (node.module or "").startswith("crossflow") for each in node.names]
        gone = [f"{module}.{name}" for module, name in taken if not hasattr(importlib.import_module(module), name)]
        assert [name for name in gone if importlib.util.find_spec(name) is None] == [], path.name


def test_the_page_of_studies_has_the_words_of_its_source(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import make_studies

    text = (DOCS / "studies.md").read_text(encoding="utf-8")
    present = make_studies.written(text)
    sections = {name: make_studies.reworded(present[name], words) for name, words in make_studies.studies().items()}
    assert text == make_studies.page(sections), "run python docs/scripts/make_studies.py --words"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_store_no_output(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_in_an_empty_folder(path, tmp_path, monkeypatch):
    """With the extra ``docs``: every cell runs, in a kernel of this Python, and something is shown."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(output.output_type == "stream" for cell in notebook.cells for output in cell.get("outputs", ()))


def test_every_public_name_has_a_docstring_for_the_reference():
    names = [name for name in crossflow.__all__ if name != "__version__"]
    assert [name for name in names if not (getattr(crossflow, name).__doc__ or "").strip()] == []


def test_the_citation_is_of_this_version_and_names_the_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == crossflow.__version__
    assert {work["authors"][0]["family-names"] for work in cited["references"]} == {"Ardalani", "Hsia", "Lu", "Liu", "Lin"}
    assert all(work["title"] and work["year"] and ("doi" in work or "identifiers" in work) for work in cited["references"])


CORE = ("hardware/mapping", "program", "parallel", "cost", "engine", "answers/steps", "answers/evaluation")


def test_each_public_class_of_the_core_has_one_row_among_the_words():
    """Rows of program files are left out: docs/files.md describes them."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for name in CORE for path in sorted((ROOT / "crossflow" / name).rglob("*.py")))
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    public = [name for name in classes if name[0] != "_" and not name.endswith(("BlockRow", "GroupRow"))]
    tables = (DOCS / "nomenclature.md").read_text(encoding="utf-8").split("| word | in the code |")[1:]
    rows = [row.split(" | ") for table in tables for row in table.split("\n\n")[0].splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[1])]
    assert {*public} - {*named} == set(), "give each a row in docs/nomenclature.md"
    assert {*named} - {*public} == set(), "no such class"
    assert len(named) == len({*named})
    words = [row[0] for row in rows]
    assert len(words) == len({*words}) > 90


def test_built_pages_that_ask_other_machines_or_lead_nowhere_are_found(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS / "scripts"))
    import build_site

    page = '<a href="b.html#x">b</a><a href="#z">z</a><a href="https://x.org">waits for a click</a><img src="https://x.org/y.png">'
    (tmp_path / "a.html").write_text(page + '<script src="//cdn/x.js"></script><a href="a.html?q">itself</a>')
    (tmp_path / "a.css").write_text("@import url(https://x.org/font.css); a { background: url(local.png) }")
    assert list(build_site.missing_files(tmp_path)) == ["a.html: no such file: b.html"]
    assert [complaint.split()[-1] for complaint in build_site.foreign_requests(tmp_path)] == [
        "https://x.org/y.png", "//cdn/x.js", "https://x.org/font.css",
    ]  # fmt: skip


def test_every_model_of_a_file_has_a_table(make_docs):
    text = (DOCS / "files.md").read_text(encoding="utf-8")
    tables = [table for _, models in make_docs.SECTIONS for table in (*models, *make_docs.found_below(models))]
    assert {"ServingSpec", "SpeculationSpec", "PrefillSpec", "EngineHabits"} <= {model.__name__ for _, model, _ in tables}
    assert [heading for heading, _, _ in tables if f"### {heading}\n" not in text] == []
