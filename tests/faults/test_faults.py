"""A few runs that are killed, and a few that are started together; the long form is ``python -m tests.faults``."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package of the installed program
from tests.faults.__main__ import main


@pytest.mark.slow
def test_killed_runs_go_on_to_the_same_bytes_and_one_of_several_writes(capsys):
    """By the seed the terminal of the first closes halfway; two begin together (in the long form some resume together too)."""
    assert main(["--kills", "1", "--together", "1", "--kinds", "draws", "--jobs", "2", "--seed", "48"]) == 0, capsys.readouterr().out
