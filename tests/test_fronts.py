# ruff: noqa: E501  (exact sentences)
"""Fronts, ends of searches and starts: no search of the same effort, and no smaller space, does better."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rivals import behind, problem_of, rival, shipped
from sampled import fewer

import crossflow
from crossflow.answers.search.driver import search
from crossflow.answers.search.fronts import Front, spread
from crossflow.answers.search.goals import Objective
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import EvolutionSettings, GradientSettings
from crossflow.answers.search.space import Range, Space
from crossflow.answers.study.run import run_study
from crossflow.answers.study.spaces import read_space
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document

TIME = (Objective(name="step_time_s"),)
SHARES = {f"system.budgets.{name}": "shares" for name in ("area", "power_shares", "perimeter")}


def space_of(scenario, entries):
    return read_space(entries, scenario, Document(file="s", data={"space": entries}, lines={}))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_front_is_not_far_behind_another_search_of_the_same_effort():
    problem = problem_of("llama", ("step_time_s", "power_w"))
    gaps = behind(shipped(problem, count := fewer(3000, 1500)), rival(problem, count))
    assert gaps.mean() < 0.01
    assert gaps.max() < 0.06


@pytest.mark.thorough
@pytest.mark.slow
def test_a_gradient_search_of_few_designs_is_carried_to_its_end():
    problem = dataclasses.replace(problem_of("llama"), objectives=TIME, constraints=())
    problem = dataclasses.replace(problem, space=problem.space.only(SHARES))
    found = [search(problem, settings).row["step_time_s"] for settings in (
        GradientSettings(evaluations=2000), EvolutionSettings(searcher="evolution", evaluations=2000))]  # fmt: skip
    assert found[0] <= 1.05 * found[1]


def test_a_search_knows_the_divisions_of_its_template():
    scenario = crossflow.from_dict({"system": {"template": "reference-training", "devices": 8},
        "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}, "strategy": "d8"})  # fmt: skip
    space = space_of(scenario, {"system.technology.logic": ["N5", "N3"], **SHARES})
    known = SearchProblem(scenario=scenario, space=space, objectives=TIME).known()
    assert len(known) == 3  # the scenario's own, and the rows of two nodes with its memory
    assert np.unique(known.continuous, axis=1).shape[1] == 2


@pytest.mark.parametrize(
    ("designs", "parents", "asked"),
    [(3, 3, [8, 7, 6, 5, 4, 4]), (3, 2, [8, 9, 10, 11, 12, 13]), (40, 20, [8, 7, 6, 5, 4, 4]), (40, 19, [8, 9, 10, 11, 12, 13])],
)
def test_a_grid_becomes_finer_only_where_it_gives_fewer_parents_than_are_wanted(designs, parents, asked):
    """Twenty are wanted all along, or all designs where there are fewer; six batches of a hundred trials are judged."""
    line = np.linspace(0.1, 0.9, designs)
    front = Front(designs=line[None], losses=np.stack([line, -line]), violation=np.zeros(designs), gain=np.ones(designs))
    divisions, batches = [], []

    class Watched(Front):
        def parents(self, count):
            divisions.append(count)
            return front.take(np.arange(parents))

    problem = SimpleNamespace(space=Space(ranges=(Range(path="x", low=0.0, high=1.0),)))
    judge = SimpleNamespace(front=Watched(**vars(front)), oracle=SimpleNamespace(problem=problem), judged=batches.append)
    spread(judge, 550, 20, np.random.default_rng(1))
    assert divisions == asked
    assert [trials.shape for trials in batches] == [(1, 100)] * 5 + [(1, 50)]


@pytest.fixture
def write(tmp_path):
    def written(name, space, **settings):
        scenario = {
            "system": {"template": "pathfinder", "devices": 8},
            "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096},
            "strategy": "d8",
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "scenario": scenario, "space": space, "searches": {"one": settings}}))
        return path

    return written


def best(path):
    return run_study(path, out=path.parent / path.stem).results[0].best.row["step_time_s"]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"searcher": "gradient", "starts": 1, "steps": 1}, {"searcher": "evolution", "evaluations": 20}], ids=str
)
def test_a_larger_space_that_starts_from_the_best_of_a_smaller_one_is_never_worse(write, settings):
    small = best(write("small", {"system.budgets.power_shares": "shares"}, searcher="evolution", evaluations=300))
    large = {**SHARES, "system.technology.memory": ["HBM2", "HBM2e"]}
    assert best(write("large", large, **settings, start=["small/best.yaml"])) <= small * (1 + 1e-9)


@pytest.mark.parametrize(("space", "settings", "sentence"), [
    (SHARES, {"searcher": "random"}, "start: searcher random starts from no design; leave it out"),
    ({**SHARES, "system.technology.memory": ["HBM4"]}, {"searcher": "gradient"}, "start: small.yaml: its design is not in the space: a quantity outside its range, a value that is not listed, or another template"),
])  # fmt: skip
def test_a_start_that_cannot_be_one_is_told(write, exactly, space, settings, sentence):
    path = write("large", space, **settings, start=["small.yaml"])
    (path.parent / "small.yaml").write_text(yaml.safe_dump(yaml.safe_load(path.read_text())["scenario"]))
    with pytest.raises(CrossflowError) as caught:
        run_study(path)
    assert sentence in str(caught.value)


def test_a_front_has_more_designs_than_one_best_where_nobody_says_how_many():
    settings = EvolutionSettings(searcher="evolution")
    assert (settings.designs(1), settings.designs(2), EvolutionSettings(searcher="evolution", evaluations=7).designs(3)) == (
        20_000,
        100_000,
        7,
    )
