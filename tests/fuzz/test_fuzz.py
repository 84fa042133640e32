"""A few mutated files of each kind; the long form is ``python -m tests.fuzz``."""

import random
import sys
from pathlib import Path

import pytest
from sampled import fewer

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package of the installed program
from tests.fuzz import cases, mutations
from tests.fuzz.__main__ import fuzz
from tests.fuzz.outcomes import BAD, run


@pytest.mark.slow
def test_mutated_files_end_with_a_result_or_an_error_at_its_place():
    count = fewer(25, 10)
    found = fuzz(list(cases.KINDS), count, 19, None)
    assert sum(found.values()) == count
    assert not {key: count for key, count in found.items() if key[1] in BAD}


def test_the_same_seed_gives_the_same_files(tmp_path):
    def mutated():
        return mutations.mutate(b"a: 1\nb: [2, 3]\n", random.Random(4), [b"c: 5\n"], is_json=False)

    assert mutated() == mutated()


@pytest.mark.slow
@pytest.mark.parametrize(("words", "kind"), [(["predict", "none.yaml"], "exit 2"), (["list"], "exit 0"), (["predict", "."], "placeless")])
def test_outcomes_are_told_apart(tmp_path, words, kind):
    assert run(words, tmp_path, ("none.yaml",)).kind == kind
