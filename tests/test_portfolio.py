# ruff: noqa: E501  (exact sentences)
"""Portfolios and draws in searches: equal to brute force by single predictions, the law of regrets, limits, what wrong files are told."""

import copy
import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
import sampled

import crossflow
from crossflow.answers.points import variant
from crossflow.answers.search.exhaustive import every
from crossflow.answers.search.portfolio import ListedDesigns
from crossflow.answers.search.space import Designs
from crossflow.answers.study.plots.losses import loss_data
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
    """Step times of each design and member by themselves, infinite where it cannot run, shape (designs, members, draws)."""
    read = read_study(study())
    draws = read.runs[0].problem.draws
    times = np.full((len(DESIGNS), len(MEMBERS), 3), np.inf)
    for (d, design), (m, member) in itertools.product(enumerate(DESIGNS), enumerate(MEMBERS.values())):
        given = {path: [value] * 3 for path, value in {**member, **design}.items()} | {path: list(values) for path, values in draws.items()}
        score = crossflow.evaluate(read.scenario, given)
        times[d, m] = np.where(score.feasible, score.step_time, np.inf)
    return times


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the study with other sections, once where several tests ask for the same."""

    @functools.cache
    def once(text):
        return run_study(study(**json.loads(text)), out=tmp_path_factory.mktemp("p"))

    return lambda **sections: once(json.dumps(sections))  # the order of members and paths is that of files


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


@pytest.mark.cases(1)
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


def test_all_draws_come_to_the_mean_of_each_alone():
    """Of figures, of what is missed, and of how often; the weighted mean of members is one of logarithms, here of one draw by hand."""
    problem = read_study(study(columns=["power_w"])).runs[0].problem
    some = every(problem.space).take(np.array([0, 1, 3]))
    whole = problem.evaluate(some).rows
    each = [dataclasses.replace(problem, draws={path: values[[k]] for path, values in problem.draws.items()}) for k in range(problem.count)]
    alone = [one.evaluate(some).rows for one in each]
    for name in [name for name in whole if name.startswith(("step_time_s", "power_w", "violation"))]:
        assert list(whole[name]) == pytest.approx(np.mean([rows[name] for rows in alone], axis=0), rel=1e-9), name
    failed = sum(np.array([reason is not None for reason in rows["reason"]], dtype=int) for rows in alone)
    assert [None if reason is None else reason.partition("(in ")[2] for reason in whole["reason"]] == [
        f"{count} of 3 draws)" if count else None for count in failed
    ]
    assert 0 < failed[1] < 3
    train, decode = (alone[0][f"step_time_s.{member}"] for member in MEMBERS)
    assert list(alone[0]["step_time_s"]) == pytest.approx(np.exp(WEIGHTS @ np.log([train, decode])), rel=1e-9)


@pytest.mark.thorough
def test_columns_of_members_are_their_means_over_the_draws(run, brute):
    found = run(columns=["power_w"])
    for row in found.rows:
        place = DESIGNS.index({path: row[path] for path in SPACE})
        if row["feasible"]:
            for m, member in enumerate(MEMBERS):
                assert row[f"step_time_s.{member}"] == pytest.approx(brute[place, m].mean(), rel=1e-9)
            assert row["power_w"] == pytest.approx(WEIGHTS @ [row["power_w.train"], row["power_w.decode"]], rel=1e-12)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_losses_are_those_against_each_own_best(run, brute):
    found = run().results[0].losses
    draws = [i for i, case in enumerate(found.cases) if case.draw]
    j = np.where(np.isfinite(brute).all(axis=1), figures(np.where(np.isfinite(brute), brute, 1e9), GEOMETRIC), np.inf)
    assert found.own[draws] == pytest.approx(j.min(axis=0), rel=1e-9)
    assert (found.loss >= 0).all()
    assert [found.loss[1 + i, i] for i in range(len(found.cases))] == [0.0] * len(found.cases)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_the_least_regret_is_no_larger_than_that_of_any_own_best(run):
    found = run(uncertainty={"samples": 3, "seed": 5, "measure": "regret"}, portfolio={**STUDY["portfolio"], "mean": GEOMETRIC})
    loss = found.results[0].losses.loss[:, 2:]
    assert found.best["regret"] == pytest.approx(loss[0].max(), abs=1e-12)
    assert all(loss[0].max() <= other.max() + 1e-12 for other in loss[1:])


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_more_weight_makes_a_member_no_slower(run):
    def times(weight):
        members = {"train": {}, "decode": {"workload": DECODE, "weight": weight}}
        row = run(portfolio={"members": members}, uncertainty=None).best
        return row["step_time_s.train"], row["step_time_s.decode"]

    found = [times(weight) for weight in sampled.every(2, (0, 0.2, 1, 5, 50))]
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


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("measure", ["quantile", "worst", "regret"])
def test_a_column_that_is_made_large_has_its_bad_side_below(run, measure):
    told = {"samples": 3, "seed": 5, "measure": measure, **({"quantile": 0.7} if measure == "quantile" else {})}
    found = run(objectives=["samples_per_second"], portfolio=None, uncertainty=told, columns=["step_time_s"])
    times = run(portfolio=None, uncertainty=told)
    assert best(found) == best(times)  # a step has the same samples in every design
    if measure == "regret":
        assert found.best["regret"] == pytest.approx(times.best["regret"], rel=1e-9, abs=1e-12)
    elif measure == "worst":
        assert found.best["samples_per_second"] == pytest.approx(16 / times.best["step_time_s"], rel=1e-9)


# ------------------------------------------------------------------------------------------ constraints


@pytest.mark.thorough
def test_a_constraint_holds_for_all_members_or_for_the_one_that_it_names(run, brute):
    bound = float(np.sort(brute[np.isfinite(brute)].ravel())[-4])  # between step times of training
    train = brute[:, 0].max(axis=1)
    both = run(constraints={"step_time_s": f"<= {bound} s"})
    one = run(constraints={"step_time_s.decode": f"<= {bound} s"})
    kept = {tuple(row[path] for path in SPACE): row["feasible"] for row in both.rows}
    assert [kept[tuple(design.values())] for design in DESIGNS] == [bool(time <= bound) for time in train]
    assert sum(row["feasible"] for row in one.rows) == np.isfinite(train).sum() > sum(kept.values())
    worst = {tuple(row[path] for path in SPACE): row["step_time_s"] for row in both.rows}
    assert worst.keys() == kept.keys()


def test_a_member_without_weight_keeps_its_constraints_and_counts_for_nothing(run):
    members = {"train": {}, "decode": {"workload": DECODE, "weight": 0}}
    free = run(portfolio={"members": members}, uncertainty=None)
    least = min(row["step_time_s.decode"] for row in free.rows if row["feasible"])
    bound = run(portfolio={"members": members}, uncertainty=None, constraints={"step_time_s.decode": f"<= {least * 1.0001} s"})
    assert free.best["step_time_s"] == free.best["step_time_s.train"] == min(r["step_time_s.train"] for r in free.rows if r["feasible"])
    assert bound.best["step_time_s.decode"] == pytest.approx(least)
    assert bound.best["step_time_s.train"] > free.best["step_time_s.train"]


# ------------------------------------------------------------------------------------------ files


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


SEARCHED = {
    "space": {"system.budgets.power_shares": "shares", "system.technology.memory": ["HBM3", "HBM4"]},
    "searches": {"evolution": {"searcher": "evolution", "evaluations": 60}, "random": {"searcher": "random", "evaluations": 20}},
    "uncertainty": {"samples": 3, "measure": "regret", "draw_evaluations": 30},
    "portfolio": {"members": STUDY["portfolio"]["members"], "member_evaluations": 30},
}


@pytest.fixture(scope="module")
def searched(run):
    return run(**SEARCHED, plots=[{"kind": "losses", "name": "losses"}])


def test_files_name_draws_losses_and_the_best_design_of_each_member(searched):
    names = {path.as_posix() for path in contents(searched.out)}
    assert {"draws.csv", "losses.csv", "losses.png", "best/evolution.yaml", "best/evolution-train.yaml", "best/random-decode.yaml"} <= names
    for member in ("train", "decode"):
        nominal = crossflow.predict(str(searched.out / "best" / f"evolution-{member}.yaml"))
        losses = searched.results[0].losses
        place = [case.name for case in losses.cases].index(member)
        assert nominal.step_time == pytest.approx(losses.own[place] * (1 + losses.loss[0, place]), rel=1e-9)


def test_the_picture_has_the_losses_of_the_first_search(searched):
    losses = searched.results[0].losses
    shown = loss_data(searched.view, searched.study.spec.plots[0])
    members, draws = shown.panels
    assert [line.name for line in members.named] == ["best for all", "best for train", "best for decode"]
    assert members.named[0].times == (1 + losses.loss[0, :2]).tolist()
    assert draws.named[0].times == sorted((1 + losses.loss[0, 2:]).tolist())
    assert len(draws.others) == len(draws.cases) == 3


@pytest.mark.thorough
def test_more_workers_and_a_run_that_goes_on_give_the_same_bytes(searched, tmp_path):
    given = study(**SEARCHED, plots=[{"kind": "losses", "name": "losses"}])
    whole = contents(searched.out)
    assert contents(run_study(given, out=tmp_path / "jobs", jobs=2).out) == whole
    left = tmp_path / "left"

    def stop(done, total, best):
        if done >= 65:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(given, out=left, progress=stop)
    assert contents(left) != whole
    assert contents(run_study(given, out=left, resume=True).out) == whole
    again = run_study(given, out=left, resume=True)
    assert contents(again.out) == whole
    assert again.results[0].losses.loss == pytest.approx(searched.results[0].losses.loss, rel=1e-12)
    assert again.notes == searched.notes


def test_python_finds_the_design_of_the_study(run):
    told = {"samples": 3, "seed": 5, "measure": "regret"}
    found = crossflow.optimise(STUDY["scenario"], SPACE, portfolio=STUDY["portfolio"], uncertainty=told)
    wanted = run(uncertainty=told, portfolio={**STUDY["portfolio"], "mean": GEOMETRIC})
    assert found.row["regret"] == wanted.best["regret"]
    assert {path: found.row[path] for path in SPACE} == best(wanted)
    assert [row["loss"] for row in found.losses if row["design"] == "best for all"] == wanted.results[0].losses.loss[0].tolist()


@pytest.mark.thorough
def test_a_list_of_all_designs_answers_as_their_evaluation_does():
    problem = read_study(study()).runs[0].problem
    designs = every(problem.space)
    list_ = ListedDesigns.of_all(designs, [problem.in_draws(part) for part in problem.parts(designs)])
    some = designs.take(np.array([7, 3, 7]))
    plain, known = problem.evaluate(some), dataclasses.replace(problem, listed=list_).evaluate(some)
    assert known.objectives.tolist() == plain.objectives.tolist()
    assert {name: list(values) for name, values in known.rows.items()} == {name: list(values) for name, values in plain.rows.items()}
    elsewhere = Designs(continuous=some.continuous, discrete=some.discrete + 100)
    assert list_.of(elsewhere) is None


def test_draws_of_two_technologies_that_vary_are_drawn():
    scenario = {**STUDY["scenario"], "system": {"template": "reference-training", "devices": 8}}
    sweep = {"system.technology.logic": ["N5", "N3"], "system.technology.memory": ["HBM3", "HBM4", "HBM4E"]}
    data = study(scenario=scenario, space=None, portfolio=None, sweep=sweep)
    paths = {number.path.split(".")[2] for number in read_study(data).sampling.numbers}
    assert {"N5", "N3", "HBM3", "HBM4", "HBM4E"} <= paths


# ------------------------------------------------------------------------------------------ wrong files


def test_a_scenario_whose_members_all_have_strategies_needs_none():
    scenario = {name: given for name, given in STUDY["scenario"].items() if name != "strategy"}
    space = {"system.technology.memory": ["HBM3", "HBM4"]}
    given = {"train": {"strategy": "tp4-dp2"}, "decode": {"workload": DECODE, "strategy": "tp8"}}
    read = read_study(study(scenario=scenario, space=space, portfolio={"members": given}))
    assert [member.scenario.document.data["strategy"] for member in read.runs[0].problem.members] == ["tp4-dp2", "tp8"]
    assert [member.weight for member in read.runs[0].problem.members] == [1.0, 1.0]
    del given["train"]["strategy"]
    with pytest.raises(CrossflowError, match="strategy"):
        read_study(study(scenario=scenario, space=space, portfolio={"members": given}))


def members(**changed):
    return {"portfolio": {"members": {**STUDY["portfolio"]["members"], **changed}}}


WRONG = [
    (members(train={"weight": -1}), "portfolio.members.train.weight: expected a number from 0 on, got -1"),
    (members(train={"weight": 0}, decode={"workload": DECODE, "weight": 0}), "portfolio.members: all weights are 0; one at least must count"),
    (members(train={"strategy": "tp8"}), "train.strategy: the space changes 'strategy'; a member differs in what nothing else changes"),
    (members(train={"system": {"budgets": {"power_shares": {"memory": 0.2}}}}), "the space changes 'system.budgets.power_shares.memory'"),
    (members(train={"workload.tsak": "decode"}), "'tsak'"),
    (members(train={"wrkload.task": "decode"}), "'wrkload.task' is not a path of a scenario"),
    (members(**{"a.b": {}}), "cannot end the name of a column"),
    ({"portfolio": {"members": {}}}, "members"),
    ({"portfolio": {"members": {"train": {}}, "mean": "harmonic"}}, "portfolio.mean: expected one of geometric, arithmetic, worst, got 'harmonic'"),
    ({"constraints": {"step_time_s.serve": "<= 1 s"}}, "no column 'step_time_s.serve'"),
    ({"constraints": {"tpot_s": "<= 1 s"}}, "bound a member that has it: tpot_s.decode"),
    ({"objectives": ["step_time_s.decode"]}, "an objective is one of all members; give step_time_s, or bound the member"),
    ({"columns": ["power_w.serve"]}, "no column 'power_w.serve'"),
    ({"columns": ["regret"]}, "no column 'regret'"),
    ({"uncertainty": {"samples": 3, "measure": "median"}}, "measure"),
    ({"uncertainty": {"samples": 3, "quantile": 0.9}}, "`measure: mean` has none; give measure: quantile, or regret"),
    ({"uncertainty": {"samples": 3, "interval": 0.9}}, "interval: it is told of swept points"),
    ({"objectives": ["step_time_s", "energy_j"], "uncertainty": {"samples": 3, "measure": "regret"}}, "own bests are of one objective"),
    ({"objectives": ["step_time_s", "energy_j"], "portfolio": {**STUDY["portfolio"], "mean": "worst"}}, "own bests are of one objective"),
    ({"space": None, "sweep": {"system.devices": [8]}, "uncertainty": None}, "portfolio: only searches judge designs by it"),
    ({"space": None, "redivide": {}, "uncertainty": None}, "add `system.budgets.area: shares` to it in the place of `redivide`"),
    ({"space": None, "portfolio": None, "uncertainty": {"measure": "regret"}}, "measure: it is about searches, and this study has none"),
    ({"uncertainty": {"samples": 3, "parameters": ["techlib.nothing"]}}, "techlib.nothing: no number with low and high stands there"),
    ({"uncertainty": {"samples": 10**6}}, "designs to evaluate for members and draws"),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "message"), WRONG)
def test_wrong_studies_are_told_in_a_sentence(sections, message):
    with pytest.raises(CrossflowError) as caught:
        read_study(study(**sections))
    assert message in str(caught.value)


SERVE = {"workload": {"model": "llama3-8b", "task": "serving", "global_batch": 8, "prompt": 500, "output": 100}}


@pytest.mark.cases(1)
@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_members_without_a_named_objective_count_by_what_is_usual_for_each(run, mean):
    """A step of training and a whole request of a service; a service's step would be shorter where it reads slowly."""
    members = {"train": {}, "serve": SERVE}
    found = run(portfolio={"members": members, "mean": mean}, uncertainty=None).best
    design = {path: [found[path]] for path in SPACE}
    here = read_study(study()).scenario
    train, serve = (crossflow.evaluate(variant(here, settings), design) for settings in members.values())
    both = [train.step_time[0], serve.serving["e2el_s"][0]]
    assert [found["usual_s.train"], found["usual_s.serve"]] == pytest.approx(both)
    assert found["usual_s"] == pytest.approx(np.exp(np.mean(np.log(both))) if mean == "geometric" else np.mean(both))


def test_members_that_are_all_services_count_by_whole_requests():
    found = read_study(study(portfolio={"members": {"one": SERVE, "two": {"workload": {**SERVE["workload"], "global_batch": 16}}}}))
    assert found.spec.objectives == ("e2el_s",)
