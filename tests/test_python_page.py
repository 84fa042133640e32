"""The page on Python: every example prints what it says."""

import doctest
from pathlib import Path

import pytest

import crossflow

PAGE = Path(crossflow.__file__).parents[1] / "docs" / "python.md"


@pytest.mark.thorough
@pytest.mark.slow
def test_examples_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.attempted > 30
    assert not found.failed
