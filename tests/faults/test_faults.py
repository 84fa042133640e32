"""A few runs that are killed, and a few that are started together; the long form is ``python -m tests.faults``."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package of the installed program
from tests.faults.__main__ import main


@pytest.mark.slow
def test_killed_runs_go_on_to_the_same_bytes(capsys):
    """By the seed the terminal closes halfway."""
    assert main(["--kills", "1", "--together", "0", "--kinds", "draws", "--jobs", "2", "--seed", "48"]) == 0, capsys.readouterr().out


@pytest.mark.thorough  # locks have quicker tests
@pytest.mark.slow
def test_of_several_runs_that_begin_together_one_writes(capsys):
    assert main(["--kills", "0", "--together", "1", "--kinds", "draws", "--seed", "48"]) == 0, capsys.readouterr().out
