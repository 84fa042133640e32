"""Portfolios and draws in searches: equal to brute force by single predictions, the law of regrets, limits, what wrong files are told."""

import copy
import itertools

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.answers.study.reading import read_study
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError

DECODE = {"model": "llama3-8b", "task": "decode", "global_batch": 4, "prompt": 2000, "output": 500}
STUDY = {
    "name": "p",
    "scenario": {
        "system": {"template": "reference-training", "devices": 8, "technology": {"logic": "N3", "memory": "HBM4"}},
        "workload": {"model": "llama3-8b", "global_batch": 16, "sequence": 2048},
        "strategy": "tp8",
    },
    "space": {
        "system.budgets.power_shares.compute": [0.1, 0.25, 0.45],
        "system.budgets.power_shares.memory": [0.1, 0.19, 0.5],
        "strategy": ["tp8", "tp4-dp2"],
    },
    "portfolio": {"members": {"train": {"weight": 2}, "decode": {"workload": DECODE}}},
    "uncertainty": {"samples": 3, "seed": 5},
    "plots": [],
}


def study(**sections):
    """Plain data of the study with other sections; None leaves one out."""
    return {name: given for name, given in {**copy.deepcopy(STUDY), **sections}.items() if given is not None}


SPACE = STUDY["space"]
DESIGNS = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
MEMBERS = {"train": {}, "decode": {"workload": DECODE}}


def best(found):
    """The best design of a result, by path."""
    return {path: found.best[path] for path in SPACE}


@pytest.fixture(scope="module")
def brute():
    """Step times of predictions one by one, infinite where a design cannot run, shape (designs, members, draws)."""
    read = read_study(study())
    draws = read.runs[0].problem.draws
    times = np.full((len(DESIGNS), len(MEMBERS), 3), np.inf)
    for (d, design), (m, member), k in itertools.product(enumerate(DESIGNS), enumerate(MEMBERS.values()), range(3)):
        given = {path: [value] for path, value in {**member, **design}.items()} | {path: [values[k]] for path, values in draws.items()}
        score = crossflow.evaluate(read.scenario, given)
        times[d, m, k] = score.step_time[0] if score.feasible[0] else np.inf
    return times


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the study with other sections."""

    def made(**sections):
        return run_study(study(**sections), out=tmp_path_factory.mktemp("p"))

    return made


WEIGHTS = np.array([2.0, 1.0]) / 3.0
GEOMETRIC = "geometric"


def figures(times, mean):
    """J of every design in every draw, as the documentation has it."""
    if mean == "arithmetic":
        return np.tensordot(times, WEIGHTS, (1, 0))
    return np.exp(np.tensordot(np.log(times), WEIGHTS, (1, 0)))


MEASURES = {
    "mean": lambda j: j.mean(axis=1),
    "worst": lambda j: j.max(axis=1),
    "quantile": lambda j: np.quantile(j, 0.7, axis=1),
    "regret": lambda j: (j / j.min(axis=0) - 1.0).max(axis=1),
}


@pytest.mark.parametrize(("measure", "mean"), [*((measure, GEOMETRIC) for measure in MEASURES), ("regret", "arithmetic")])
def test_objectives_are_those_of_predictions_one_by_one(run, brute, measure, mean):
    settings = {"samples": 3, "seed": 5, "measure": measure, **({"quantile": 0.7} if measure == "quantile" else {})}
    found = run(uncertainty=settings, portfolio={**STUDY["portfolio"], "mean": mean})
    name = "regret" if measure == "regret" else "step_time_s"
    runs = np.isfinite(brute).all(axis=(1, 2))
    with np.errstate(invalid="ignore"):
        wanted = MEASURES[measure](figures(brute, mean))
    rows = {tuple(row[path] for path in SPACE): row for row in found.rows}
    assert len(rows) == len(DESIGNS)
    for design, value, feasible in zip(DESIGNS, wanted, runs, strict=True):
        row = rows[tuple(design.values())]
        assert row["feasible"] == feasible
        if feasible:
            assert row[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert best(found) == DESIGNS[int(np.where(runs, wanted, np.inf).argmin())]


def test_columns_of_members_are_their_means_over_the_draws(run, brute):
    found = run(columns=["power_w"])
    for row in found.rows:
        place = DESIGNS.index({path: row[path] for path in SPACE})
        if row["feasible"]:
            for m, member in enumerate(MEMBERS):
                assert row[f"step_time_s.{member}"] == pytest.approx(brute[place, m].mean(), rel=1e-9)
            assert row["power_w"] == pytest.approx(WEIGHTS @ [row["power_w.train"], row["power_w.decode"]], rel=1e-12)


def test_losses_are_those_against_each_own_best(run, brute):
    found = run().results[0].losses
    draws = [i for i, case in enumerate(found.cases) if case.draw]
    j = np.where(np.isfinite(brute).all(axis=1), figures(np.where(np.isfinite(brute), brute, 1e9), GEOMETRIC), np.inf)
    assert found.own[draws] == pytest.approx(j.min(axis=0), rel=1e-9)
    assert (found.loss >= 0).all()
    assert [found.loss[1 + i, i] for i in range(len(found.cases))] == [0.0] * len(found.cases)


def test_the_least_regret_is_no_larger_than_that_of_any_own_best(run):
    found = run(uncertainty={"samples": 3, "seed": 5, "measure": "regret"})
    loss = found.results[0].losses.loss[:, 2:]
    assert found.best["regret"] == pytest.approx(loss[0].max(), abs=1e-12)
    assert all(loss[0].max() <= other.max() + 1e-12 for other in loss[1:])


def test_own_bests_of_a_space_without_an_end_are_no_worse_than_the_design_for_all(run):
    space = {"system.budgets.power_shares": "shares", "system.budgets.area": "shares"}
    searches = {"all": {"searcher": "evolution", "evaluations": 300}}
    told = {"samples": 2, "measure": "regret", "draw_evaluations": 200}
    found = run(space=space, searches=searches, uncertainty=told, portfolio={**STUDY["portfolio"], "member_evaluations": 200})
    loss = found.results[0].losses.loss
    assert found.best["feasible"]
    assert (loss >= 0).all()
    draws = loss[:, 2:].max(axis=1)
    assert draws[0] <= draws[1:].min() + 1e-12


def test_one_member_without_draws_is_the_search_of_its_scenario(run):
    plain = run(portfolio=None, uncertainty=None)
    alone = run(portfolio={"members": {"train": {"weight": 3}}}, uncertainty=None)
    assert (alone.out / "best.yaml").read_bytes() == (plain.out / "best.yaml").read_bytes()
    assert {**alone.best, **plain.best} == alone.best
    assert alone.results[0].losses is None


@pytest.mark.parametrize("measure", ["mean", "regret"])
def test_equal_draws_are_one(run, measure):
    named = {"parameters": ["techlib.logic.N3.wafer_cost"]}  # which no time depends on
    plain = run(portfolio=None, uncertainty=None)
    drawn = run(portfolio=None, uncertainty={"samples": 2, "measure": measure, **named})
    assert drawn.best["step_time_s"] == pytest.approx(plain.best["step_time_s"], rel=1e-12)
    assert drawn.best.get("regret", 0.0) == pytest.approx(0.0, abs=1e-12)


def test_more_weight_makes_a_member_no_slower(run):
    def times(weight):
        members = {"train": {}, "decode": {"workload": DECODE, "weight": weight}}
        row = run(portfolio={"members": members}, uncertainty=None).best
        return row["step_time_s.train"], row["step_time_s.decode"]

    found = [times(weight) for weight in (0, 0.2, 1, 5, 50)]
    assert [decode for _, decode in found] == sorted((decode for _, decode in found), reverse=True)
    assert [train for train, _ in found] == sorted(train for train, _ in found)
    assert found[0] != found[-1]


def test_the_worst_loss_is_that_of_the_members_own_bests(run, brute):
    found = run(uncertainty=None, portfolio={**STUDY["portfolio"], "mean": "worst"})
    rows = [row for row in found.rows if row["feasible"]]
    own = [min(row[f"step_time_s.{member}"] for row in rows) for member in MEMBERS]
    for row in rows:
        losses = [row[f"step_time_s.{member}"] / least - 1 for member, least in zip(MEMBERS, own, strict=True)]
        assert row["loss"] == pytest.approx(max(2 * losses[0], losses[1]), abs=1e-12)
    assert found.best["loss"] == min(row["loss"] for row in rows)
