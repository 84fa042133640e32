"""Predictions are what they were when they were recorded. That proves nothing about them: it shows every change, wanted or not.

After a change that is meant to move predictions, `python -m tests.recorded` lists what moved, and `--write` records it.
"""

import pytest

from tests.recorded.figures import cases, figures, moved, recorded

CASES, RECORD = cases(), recorded()


def test_every_case_is_recorded():
    assert list(RECORD) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    assert not moved(RECORD[name], figures(CASES[name])), "run python -m tests.recorded --write where it is meant to move"
