"""Errors: places, suggestions, and all problems at once."""

import pytest

from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError, did_you_mean, meant


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (
            Problem(file="a.yaml", line=3, path="system.devices", message="too many"),
            "a.yaml:3: system.devices: too many",
        ),
        (Problem(file="a.yaml", path="system", message="too many"), "a.yaml: system: too many"),
        (Problem(file="a.yaml", line=3, message="too many"), "a.yaml:3: too many"),
        (Problem(file="--set", message="too many"), "--set: too many"),
    ],
)
def test_a_problem_says_where_it_is(problem, text):
    assert str(problem) == text


def test_a_file_error_lists_all_its_problems_in_order():
    error = SpecError(Problem(file="a.yaml", line=i, message=f"m{i}") for i in (3, 1, 2))
    assert str(error) == "a.yaml:3: m3\na.yaml:1: m1\na.yaml:2: m2"
    assert len(error.problems) == 3


@pytest.mark.parametrize(
    ("word", "hint"),
    [("memroy", "; did you mean 'memory'?"), ("zzz", ""), ("", ""), ("logic", "; did you mean 'logic'?")],
)
def test_only_close_words_are_suggested(word, hint):
    assert did_you_mean(word, ["memory", "logic"]) == hint


@pytest.mark.parametrize(
    ("word", "names", "found"),
    [
        ("top_k", ["count", "active", "ffn"], ["active"]),
        ("n_routed_experts", ["count", "active"], ["count"]),
        ("fleets", ["events", "plan"], ["plan"]),
        ("genetic", ["tpe", "evolution", "nsga2"], ["evolution", "nsga2"]),
    ],
)
def test_words_of_other_tools_are_answered_by_ours(word, names, found):
    assert meant(word, names) == found


def test_what_a_user_can_cause_is_one_family():
    assert issubclass(SpecError, CrossflowError)
    assert issubclass(StrategyError, CrossflowError)
    assert issubclass(StrategyError, ValueError)
