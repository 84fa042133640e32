"""Every file of data has a source, a date and a licence in PROVENANCE.yaml, which agree with what stands in the file."""

import gzip
import re
from datetime import date
from pathlib import Path

import pytest

from crossflow.base import limits
from crossflow.base.files import read_yaml

ROOT = Path(__file__).parents[1]
FOLDERS = ("crossflow", "techlibs", "templates", "studies", "docs/examples", "tests/data")
CODE = (".py", ".pyc", ".typed")
LICENCES = {"Apache-2.0", "BSD-3-Clause", "CC-BY-4.0", "MIT"}  # of SPDX
NAMED = {  # how files call them
    "Apache-2.0": r"Apache[- ]2(?:\.0)?\b", "MIT": r"\bMIT\b", "BSD-3-Clause": r"BSD-3-Clause", "CC-BY-4.0": r"CC[- ]BY[- ]4\.0",
}  # fmt: skip
YEAR = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?")
DAY = r"\d{4}(?:-\d\d(?!\d))?(?:-\d\d(?!\d))?"

RECORD = read_yaml(ROOT / "PROVENANCE.yaml").data
ENTRIES = RECORD["files"]


def data_files():
    """Files of data, by their paths in the repository."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in CODE)
    return sorted(path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts and not path.name.startswith("."))


def pattern(path):
    """An expression for the files of a path, in which * stays in a folder and ** does not.

    >>> bool(pattern("a/*.csv").fullmatch("a/b/c.csv")), bool(pattern("a/**").fullmatch("a/b/c.csv"))
    (False, True)
    """
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", path)))


def owners(files, entries):
    """The entry that counts for each file, the last that fits it."""
    patterns = [(pattern(entry["path"]), entry) for entry in entries]
    return {name: next((entry for expression, entry in reversed(patterns) if expression.fullmatch(name)), None) for name in files}


def lacking(files, entries):
    return [name for name, entry in owners(files, entries).items() if entry is None]


def test_every_file_of_data_has_a_source_a_date_and_a_licence():
    files = data_files()
    assert len(files) > 500
    assert lacking(files, ENTRIES) == []
    assert lacking([*files, "techlibs/new.csv"], ENTRIES) == ["techlibs/new.csv"]


def test_every_entry_is_of_some_file():
    used = {id(entry) for entry in owners(data_files(), ENTRIES).values()}
    assert [entry["path"] for entry in ENTRIES if id(entry) not in used] == []
    assert len({entry["path"] for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["path"])
def test_an_entry_is_whole(entry):
    assert entry.keys() == {"path", "source", "date", "licence"}
    assert len(entry["source"]) > 5
    assert set(entry["licence"].split(" AND ")) <= LICENCES | RECORD["licences"].keys()
    found = re.fullmatch(rf"({DAY})(?:-({DAY}))?", entry["date"])
    assert found, entry["date"]
    days = [[int(part or 1) for part in YEAR.fullmatch(day).groups()] for day in found.groups() if day]
    assert sorted(days) == days
    assert all(date(1990, 1, 1) <= date(*day) <= date.today() for day in days)


def head(name):
    """What a file says of itself: comments at its begin, or all of a README."""
    path = ROOT / name
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else limits.read(path)
    lines = content[:20_000].decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines[:12] if line.startswith(("#", "/*", "source:")))


def test_licences_are_those_that_files_name_themselves():
    wrong, named = [], 0
    for name, entry in owners(data_files(), ENTRIES).items():
        if not name.endswith((".csv", ".yaml", ".jsonl")) or name.startswith("templates/"):
            continue
        said = {licence for licence, words in NAMED.items() if re.search(words, head(name))}
        named += bool(said)
        if not said <= set(entry["licence"].split(" AND ")):
            wrong.append((name, said, entry["licence"]))
    assert wrong == []
    assert named > 15


def test_the_licence_of_what_is_bundled_is_beside_it():
    assert "MIT License" in (ROOT / "crossflow/edges/explore/assets/vendor/uPlot.LICENSE").read_text(encoding="utf-8")
    assert {entry["licence"] for name, entry in owners(data_files(), ENTRIES).items() if "/vendor/" in name} == {"MIT"}
