# ruff: noqa: E501  (tables of cases)
"""What every searcher keeps to: bounds, constraints, seeds, budgets, resuming; and that searching pays."""

import dataclasses
import itertools
import pickle
import time

import numpy as np
import pytest

import crossflow
from crossflow.answers.search import evolution, gradient
from crossflow.answers.search.deadline import Deadline
from crossflow.answers.search.driver import search
from crossflow.answers.search.evolution import evolve
from crossflow.answers.search.goals import Constraint, Objective
from crossflow.answers.search.pareto import non_dominated
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import (
    EvolutionSettings,
    ExhaustiveSettings,
    GradientSettings,
    OptunaSettings,
    RandomSettings,
    ScipySettings,
)
from crossflow.answers.search.space import Designs, Options, Range, Shares, Space
from crossflow.base.errors import CrossflowError

POWER = "system.budgets.power"
SHARES = tuple(f"system.budgets.power_shares.{name}" for name in ("compute", "memory", "on_chip.l2"))
MEMORY = Options(path="system.technology.memory", values=("HBM2", "HBM2e"))
LEFT = 1.0 - 0.125 - 0.075 - 0.05  # what registers, l1 and links leave of the power of the template
CONTINUOUS = Space(ranges=(Range(path=POWER, low=150.0, high=300.0),), shares=(Shares(paths=SHARES, total=LEFT),))
MIXED = dataclasses.replace(CONTINUOUS, options=(MEMORY,))
COUNTED = Space(
    ranges=(Range(path=POWER, low=150.0, high=300.0, count=4),),
    options=(MEMORY, Options(path="strategy", values=("d1", "d2", "d3", "RC-1-2", "CR-2"))),
)
SEARCHERS = {
    "gradient": (MIXED, GradientSettings(starts=2, steps=4)),
    "gradient, quantities alone": (CONTINUOUS, GradientSettings(starts=2, steps=4)),
    "slsqp": (CONTINUOUS, ScipySettings(searcher="slsqp", starts=2, steps=5)),
    "trust-constr": (CONTINUOUS, ScipySettings(searcher="trust-constr", starts=1, steps=8)),
    "tpe": (MIXED, OptunaSettings(searcher="tpe", evaluations=30)),
    "cma-es": (CONTINUOUS, OptunaSettings(searcher="cma-es", evaluations=40, population=10)),
    "nsga2": (MIXED, OptunaSettings(searcher="nsga2", evaluations=40, population=10)),
    "evolution": (MIXED, EvolutionSettings(searcher="evolution", evaluations=120)),
    "random": (MIXED, RandomSettings(searcher="random", evaluations=120)),
    "exhaustive": (COUNTED, ExhaustiveSettings(searcher="exhaustive", prune=False)),
    "exhaustive, pruned": (COUNTED, ExhaustiveSettings(searcher="exhaustive")),
}


@pytest.fixture(scope="module")
def product():
    """A product of matrices that two devices may share."""
    workload = {"model": "gemm", "m": 2048, "n": 2048, "k": 2048, "dtype": "fp16"}
    return crossflow.from_dict({"system": {"template": "pathfinder"}, "workload": workload})


@pytest.fixture(scope="module", params=SEARCHERS, ids=str)
def case(request, product):
    """A problem and the settings of a searcher."""
    space, settings = SEARCHERS[request.param]
    return SearchProblem(scenario=product, space=space, objectives=(Objective(name="step_time_s"),)), settings


@pytest.fixture(scope="module")
def whole(case):
    """What the searcher finds, and the rows that it records; the tests share them."""
    return recorded(*case)


def recorded(problem, settings, replay=()):
    """What a search finds, and the rows that it records."""
    rows = []

    def record(position, columns):
        assert position == len(replay_rows) + len(rows)
        rows.extend(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    replay_rows = list(replay)
    best = search(problem, settings, record=record, replay=replay_rows)
    return best, [{name: plain(value) for name, value in row.items()} for row in rows]


def plain(value):
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def used(rows, replay, best):
    """Rows of a search of which the first were replayed, as far as it used them."""
    return [*replay[: best.rows - len(rows)], *rows]


@pytest.mark.cases(4)
@pytest.mark.slow
def test_every_design_keeps_bounds_and_budgets(whole):
    for row in whole[1]:
        assert row.get(POWER) is None or 150.0 <= row[POWER] <= 300.0
        assert sum(row.get(path, 0.0) for path in SHARES) <= LEFT + 1e-9
        assert row.get(MEMORY.path, "HBM2") in MEMORY.values


@pytest.mark.cases(10)
@pytest.mark.slow
def test_the_best_is_the_best_of_the_record_and_its_figures_are_true(case, whole):
    problem, (best, rows) = case[0], whole
    feasible = [row["step_time_s"] for row in rows if row["feasible"]]
    assert best.row["step_time_s"] == min(feasible)
    options = [option.path for option in problem.space.options]
    point = {path: [best.row[path]] for path in problem.space.paths if best.row[path] is not None}
    score = crossflow.evaluate(problem.scenario, point)
    assert score.step_time[0] == pytest.approx(best.row["step_time_s"], rel=1e-9), options


@pytest.mark.cases(2)
@pytest.mark.slow
def test_the_same_seed_gives_the_same_record_and_another_does_not(case, whole):
    problem, settings = case
    assert recorded(problem, settings) == whole
    if settings.searcher != "exhaustive":
        assert recorded(problem, settings.model_copy(update={"seed": 5}))[1] != whole[1]


@pytest.mark.cases(12)
@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 37])
def test_no_more_designs_are_evaluated_than_the_budget_allows(case, budget):
    problem, settings = case
    best, rows = recorded(problem, settings.model_copy(update={"evaluations": budget}))
    assert best.evaluations == sum(row["evaluations"] for row in rows)
    assert 0 < best.evaluations <= budget


def test_a_search_that_has_no_time_ends_at_once(case):
    problem, settings = case
    best, _ = recorded(problem, settings.model_copy(update={"seconds": 1e-9}))
    assert best.row is not None
    assert best.evaluations <= 200


def test_a_clock_that_is_set_moves_no_end_of_a_search(monkeypatch):
    """In another process, where the time of day counts, an hour back gives the whole budget again and no more."""
    made, sent, now = Deadline.after(60.0), pickle.dumps(Deadline.after(60.0)), time.time()
    for moved, ends in ((-3600.0, False), (3600.0, True)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda moved=moved: now + moved)
            there = pickle.loads(sent)
            assert (made.passed, there.passed) == (False, ends)
            assert there.clock <= time.monotonic() + 60.0


@pytest.mark.cases(7)
@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.8, 1.0])
def test_a_search_that_was_cut_off_goes_on_to_the_same_end(case, whole, part):
    problem, settings = case
    best, rows = whole
    kept = rows[: round(part * len(rows))]
    again, fresh = recorded_again(problem, settings, kept)
    assert again == best
    assert used(fresh, kept, again) == rows


def recorded_again(problem, settings, replay):
    rows = []

    def record(position, columns):
        assert position >= len(rows)
        rows.extend(dict(zip(columns, map(plain, row), strict=True)) for row in zip(*columns.values(), strict=True))

    best = search(problem, settings, record=record, replay=replay)
    return best, rows


def test_a_record_of_another_search_is_refused(product):
    problem = SearchProblem(scenario=product, space=CONTINUOUS, objectives=(Objective(name="step_time_s"),))
    _, rows = recorded(problem, GradientSettings(starts=2, steps=2))
    with pytest.raises(CrossflowError, match="the record's points are not those of this search"):
        search(problem, GradientSettings(starts=2, steps=2, seed=1), replay=rows)


@pytest.mark.cases(1)
@pytest.mark.slow
def test_constraints_are_kept_where_they_can_be(case):
    problem, settings = case
    free = search(dataclasses.replace(problem, columns=("power_w",)), settings).row
    if settings.searcher.startswith("exhaustive"):
        settings = settings.model_copy(update={"prune": False})
    limit = 0.9 * free["power_w"]
    limited = dataclasses.replace(problem, constraints=(Constraint(name="power_w", bound=limit),), columns=("power_w",))
    best, rows = recorded(limited, settings)
    assert all(row["power_w"] <= limit for row in rows if row["feasible"])
    assert all(row["violation"] > 0 for row in rows if row["power_w"] is not None and row["power_w"] > limit)
    assert best.row["feasible"] is any(row["feasible"] for row in rows)


@pytest.mark.thorough
@pytest.mark.slow
def test_gradient_beats_as_many_random_designs(product):
    problem = SearchProblem(scenario=product, space=CONTINUOUS, objectives=(Objective(name="step_time_s"),))
    found = search(problem, GradientSettings(starts=4, steps=40))
    drawn = search(problem, RandomSettings(searcher="random", evaluations=found.evaluations))
    assert found.row["step_time_s"] <= drawn.row["step_time_s"]


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize(("starts", "steps"), [(1, 1), (2, 7), (3, 10), (5, 1)])
def test_a_gradient_search_evaluates_what_it_plans(product, starts, steps):
    problem = SearchProblem(scenario=product, space=CONTINUOUS, objectives=(Objective(name="step_time_s"),))
    settings = GradientSettings(starts=starts, steps=steps)
    left = gradient.planned(CONTINUOUS, settings) - search(problem, settings).evaluations
    assert 0 <= left < 3 * evolution.SMALLEST  # of each population less than a generation


@pytest.mark.slow
def test_every_searcher_improves_on_its_first_designs(whole):
    best, rows = whole
    feasible = [row["step_time_s"] for row in rows if row["feasible"]]
    assert best.row["step_time_s"] < np.median(feasible)
    kept = [value for _, value, feasible in best.improvements if feasible]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == best.row["step_time_s"]
    counts = [count for count, *_ in best.improvements]
    assert counts == sorted(counts)
    assert counts[-1] <= best.evaluations


# ------------------------------------------------------------------------------------------ exhaustive


def fronts(problem, settings):
    best = search(problem, settings)
    return best, sorted((row["step_time_s"], row["energy_j"]) for row in best.front)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize("names", [("step_time_s",), ("energy_j",), ("step_time_s", "energy_j")])
@pytest.mark.parametrize(
    "workload", [{"model": "gemm", "m": 4096, "n": 512, "k": 4096}, {"model": "lstm-16k", "hidden": 2048}], ids=["gemm", "lstm"]
)
def test_pruning_changes_neither_the_best_nor_the_front(names, workload):
    scenario = crossflow.from_dict({"system": {"template": "pathfinder", "devices": 16}, "workload": workload, "strategy": "d16"})
    strategies = ("d16", "RC-2-8", "RC-1-4-d4", "RC-4-4", "CR-16", "CR-4-d4", "CR-2-d8", "d8-p2", "RC-16-1", "d17", "RC-2-2-d4")
    space = Space(ranges=COUNTED.ranges, options=(MEMORY, Options(path="strategy", values=strategies)))
    problem = SearchProblem(
        scenario=scenario, space=space, objectives=tuple(Objective(name=name) for name in names), columns=("step_time_s", "energy_j")
    )
    whole, front = fronts(problem, ExhaustiveSettings(searcher="exhaustive", prune=False))
    pruned, same = fronts(problem, ExhaustiveSettings(searcher="exhaustive"))
    assert whole.evaluations == 4 * 2 * len(strategies)
    assert pruned.evaluations + pruned.pruned == whole.evaluations
    assert pruned.pruned > 0
    assert pruned.row[names[0]] == whole.row[names[0]]
    assert front == same


def test_where_nothing_fits_pruning_finds_what_misses_least():
    scenario = crossflow.from_dict({"system": {"template": "pathfinder", "devices": 8}, "workload": "lstm-16k", "strategy": "d8"})
    space = Space(options=(MEMORY, Options(path="strategy", values=("d8", "RC-1-8", "CR-8"))))
    problem = SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="step_time_s"),))
    one, other = (search(problem, ExhaustiveSettings(searcher="exhaustive", prune=prune)) for prune in (True, False))
    assert one.row == other.row
    assert one.row["feasible"] is False
    assert "of memory per device" in one.row["reason"]


def test_what_cannot_be_enumerated_is_told(product, exactly):
    problem = SearchProblem(scenario=product, space=CONTINUOUS, objectives=(Objective(name="step_time_s"),))
    sentence = "searcher exhaustive: the space holds quantities without an end; give ranges a count, and search shares with gradient"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        search(problem, ExhaustiveSettings(searcher="exhaustive"))


# ------------------------------------------------------------------------------------------ several objectives


@pytest.mark.cases(2)
@pytest.mark.parametrize("settings", [RandomSettings(searcher="random", evaluations=600), GradientSettings(starts=6, steps=10),
                                      OptunaSettings(searcher="nsga2", evaluations=120, population=20)], ids=["random", "gradient", "nsga2"])  # fmt: skip
def test_the_front_is_that_of_all_rows(product, settings):
    objectives = (Objective(name="step_time_s"), Objective(name="power_w"), Objective(name="mfu", maximise=True))
    problem = SearchProblem(scenario=product, space=CONTINUOUS, objectives=objectives)
    best, rows = recorded(problem, settings)
    feasible = [row for row in rows if row["feasible"]]
    losses = np.array([[row["step_time_s"], row["power_w"], -row["mfu"]] for row in feasible]).T
    kept = [feasible[i] for i in np.flatnonzero(non_dominated(losses))]
    assert sorted(row["step_time_s"] for row in best.front) == sorted(row["step_time_s"] for row in kept)


def test_cma_es_tells_that_it_moves_quantities_alone(product, exactly):
    problem = SearchProblem(scenario=product, space=MIXED, objectives=(Objective(name="step_time_s"),))
    sentence = "searcher cma-es: it searches quantities only; the space has options; use tpe, nsga2 or gradient, or `over`"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        search(problem, OptunaSettings(searcher="cma-es"))


def test_an_empty_space_and_one_without_quantities_are_told(product, exactly):
    problem = SearchProblem(scenario=product, space=Space(), objectives=(Objective(name="step_time_s"),))
    with pytest.raises(CrossflowError, match=exactly("the space is empty: there is nothing to search")):
        search(problem, GradientSettings())
    sentence = "searcher gradient: the space has options only; use exhaustive, random, tpe or nsga2"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        search(dataclasses.replace(problem, space=Space(options=(MEMORY,))), GradientSettings())


# ------------------------------------------------------------------------------------------ many combinations, odd objectives


MANY = Options(path="workload.k", values=tuple(range(512, 512 + 24 * 64, 64)))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("names", [("energy_j",), ("step_time_s",), ("step_time_s", "power_w")])
def test_every_combination_is_searched_where_no_bound_is_known(product, names):
    space = Space(ranges=CONTINUOUS.ranges, options=(MANY,))
    problem = SearchProblem(scenario=product, space=space, objectives=tuple(Objective(name=name) for name in names))
    best, rows = recorded(problem, GradientSettings(starts=1, steps=2, finalists=1))
    assert {row["workload.k"] for row in rows} == set(MANY.values)
    assert best.pruned == 0


def test_what_is_ruled_out_is_not_searched_after_all(product):
    """Strategies that make no scenario are no finalists."""
    options = Options(path="strategy", values=("d1", "d3", "d5", "d7"))
    problem = SearchProblem(
        scenario=product, space=dataclasses.replace(CONTINUOUS, options=(options,)), objectives=(Objective(name="step_time_s"),)
    )
    best, rows = recorded(problem, GradientSettings(starts=1, steps=2, finalists=3))
    assert {row["strategy"] for row in rows} == {"d1"}
    assert best.pruned == 3


def test_models_that_are_too_small_are_not_searched(lstm):
    """No hardware gives a model more parameters; all three were searched where the hardware has ranges, for which no bound is known."""
    space = dataclasses.replace(CONTINUOUS, options=(Options(path="workload.hidden", values=(512, 1024, 2048)),))
    scenario = lstm("d8", workload={"hidden": 1024, "vocabulary": 32000})
    least = Constraint(name="parameters", bound=0.9 * float(crossflow.evaluate(scenario).parameters[0]), at_most=False)
    problem = SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="step_time_s"),), constraints=(least,))
    best, rows = recorded(problem, GradientSettings(starts=1, steps=2, finalists=1))
    assert {row["workload.hidden"] for row in rows} == {1024, 2048}
    assert (best.pruned, best.row["workload.hidden"]) == (1, 1024)
    sizes = Space(ranges=(Range(path="workload.hidden", low=512.0, high=2048.0, whole=True),))  # a model that may still grow
    one = Designs(continuous=np.zeros((1, 1)), discrete=np.empty((0, 1), dtype=np.intp))
    assert dataclasses.replace(problem, space=sizes).possible(one).tolist() == [True]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("budget", [40, 300])
def test_a_budget_is_shared_by_all_combinations(product, budget):
    problem = SearchProblem(
        scenario=product, space=Space(ranges=CONTINUOUS.ranges, options=(MANY,)), objectives=(Objective(name="energy_j"),)
    )
    best, rows = recorded(problem, GradientSettings(evaluations=budget))
    assert best.evaluations <= budget
    assert len({row["workload.k"] for row in rows}) == len(MANY.values)


def test_zero_is_the_best_of_what_cannot_be_negative(lstm):
    scenario = lstm("d8", workload={"hidden": 1024, "vocabulary": 32000})
    space = Space(options=(Options(path="strategy", values=("d4-p2", "d8", "CR-8")),))
    problem = SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="breakdown_s.bubble"),))
    best = search(problem, ExhaustiveSettings(searcher="exhaustive"))
    assert (best.row["strategy"], best.row["breakdown_s.bubble"]) == ("d8", 0.0)


def test_several_kernels_at_once_are_not_pruned(lstm):
    scenario = lstm("d8", workload={"hidden": 1024, "vocabulary": 32000, "sequence": 2})
    options = (Options(path="kernels_per_device", values=(1, 2)), Options(path="strategy", values=("d8", "RC-2-2-p2", "RC-2-2-d2")))
    problem = SearchProblem(scenario=scenario, space=Space(options=options), objectives=(Objective(name="step_time_s"),))
    one, other = (search(problem, ExhaustiveSettings(searcher="exhaustive", prune=prune)) for prune in (True, False))
    assert one.row == other.row
    assert problem.bound(Designs(continuous=np.empty((0, 1)), discrete=np.zeros((2, 1), dtype=int))) is None


@pytest.mark.parametrize("fits", [True, False])
def test_what_cannot_be_built_is_never_feasible_nor_a_near_miss(lstm, fits):
    scenario = lstm("d8")  # needs more memory than there is
    space = Space(options=(Options(path="system.budgets.area.compute", values=(0.3, 0.9)),))
    problem = SearchProblem(scenario=scenario, space=space, objectives=(Objective(name="step_time_s"),), fits=fits)
    _, rows = recorded(problem, ExhaustiveSettings(searcher="exhaustive", prune=False))
    built, unbuilt = (next(row for row in rows if row["system.budgets.area.compute"] == share) for share in (0.3, 0.9))
    assert built["feasible"] is not fits
    assert unbuilt["feasible"] is False
    assert unbuilt["violation"] > built["violation"]


def test_what_misses_by_more_counts_as_worse(product):
    problem = SearchProblem(
        scenario=product, space=CONTINUOUS, objectives=(Objective(name="step_time_s"),),
        constraints=(Constraint(name="step_time_s", bound=1e-9),), columns=("step_time_s",),
    )  # fmt: skip
    _, rows = recorded(problem, RandomSettings(searcher="random", evaluations=50))
    timed = sorted((row for row in rows if row["violation"] < 1e3), key=lambda row: row["step_time_s"])
    assert all(one["violation"] <= other["violation"] for one, other in itertools.pairwise(timed))
    assert len({row["violation"] for row in timed}) > 20


# ------------------------------------------------------------------------------------------ what is known, and how far a search has come

SHORT = {
    "evolution": EvolutionSettings(searcher="evolution", evaluations=40),
    "gradient": GradientSettings(starts=2, steps=2),
    "slsqp": ScipySettings(searcher="slsqp", starts=1, steps=1),
    "nsga2": OptunaSettings(searcher="nsga2", evaluations=10, population=10),
}


def timed(product, space):
    return SearchProblem(scenario=product, space=space, objectives=(Objective(name="step_time_s"),))


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize("settings", SHORT.values(), ids=SHORT)
def test_no_search_ends_worse_than_the_scenario_or_what_is_known(product, settings):
    problem = timed(product, dataclasses.replace(CONTINUOUS, ranges=(Range(path=POWER, low=150.0, high=320.0),)))
    own = float(crossflow.predict(product).step_time)
    best = search(problem, settings)
    assert best.row["step_time_s"] <= own * (1 + 1e-6)
    known = search(problem, GradientSettings(starts=4, steps=15)).row
    assert search(problem, settings, known=[known]).row["step_time_s"] <= known["step_time_s"] * (1 + 1e-6)


def test_a_design_is_found_again_by_its_values(product):
    rng = np.random.default_rng(1)
    for space in (MIXED, CONTINUOUS):
        designs = space.sample(rng, 3)
        for i in range(3):
            values = {path: column[i] for path, column in space.values(designs).items()}
            found = space.located(values)
            assert np.allclose(found.continuous[:, 0], designs.continuous[:, i])
            assert found.discrete[:, 0].tolist() == designs.discrete[:, i].tolist()
    assert CONTINUOUS.located({POWER: 500.0, **dict.fromkeys(SHARES, 0.1)}) is None


def test_relaxed_coordinates_give_their_designs_again():
    designs = MIXED.sample(np.random.default_rng(2), 20)
    again = MIXED.unrelaxed(MIXED.coordinates(designs))
    assert (again.discrete == designs.discrete).all()
    assert np.allclose(again.continuous, designs.continuous)


def test_a_step_of_descent_goes_downhill():
    """Eq. 6 on a bowl: from any design a short step along the slope that probes found brings a start nearer to the bottom."""
    bottom, rng = np.full((4, 1), 0.2), np.random.default_rng(3)
    start = CONTINUOUS.sample(rng, 12).continuous
    probes = gradient.probed(CONTINUOUS, start, 1e-3, rng)

    def height(designs):
        return (CONTINUOUS.between(np.repeat(bottom, designs.shape[1], axis=1), designs) ** 2).sum(axis=0)

    merit = height(probes.reshape(4, -1)).reshape(probes.shape[1:])
    state = gradient.Descent(position=start, average=start, best=start, merit=merit[0])
    moved = gradient._stepped(state, CONTINUOUS, gradient.gradient(CONTINUOUS, probes, merit), 1e-2, 0.0, 0.0)
    assert (height(moved.position) < height(start)).all()


def test_a_trial_that_takes_nothing_over_takes_one_coordinate():
    """Without crossing a design differs from its parent in the one coordinate that is drawn; where all cross, in all."""
    designs = np.random.default_rng(4).uniform(0.05, 0.2, (4, 3, 40))
    factor = np.full((3, 40), 0.5)
    for crossing, changed in ((0.0, 1), (1.0, 4)):
        tried = evolution._trials(CONTINUOUS, designs, factor, np.full((3, 40), crossing), np.random.default_rng(5), np.arange(3)[:, None])
        differ = (np.abs(tried - designs) > 1e-12).sum(axis=0)
        assert differ.max() == changed
        assert (differ == changed).mean() > 0.9  # two draws of the same neighbour may leave it where it is


def test_differences_are_those_of_designs_of_the_population_or_of_a_neighbour():
    """A population whose designs are all alike moves along the differences of another where that is its neighbour, and else nowhere."""
    designs = np.random.default_rng(4).uniform(0.05, 0.2, (4, 2, 40))
    designs[:, 0] = designs[:, 0, :1]
    factor, crossing = np.full((2, 40), 0.5), np.ones((2, 40))
    for among, moved in (([[0, 0], [1, 1]], False), ([[1, 1], [1, 1]], True)):
        tried = evolution._trials(CONTINUOUS, designs, factor, crossing, np.random.default_rng(5), np.array(among))
        assert (np.abs(tried - designs)[:, 0] > 1e-9).any() == moved
        assert (np.abs(tried - designs)[:, 1] > 1e-9).any()


def evolved_bowl(evaluations, scale=1.0):
    """How many designs a search asks for and the end's distance from the best, of a bowl about one design of a space."""
    asked, (best, start) = [], CONTINUOUS.sample(np.random.default_rng(1), 2).continuous.T

    def merits(designs):
        asked.append(designs.shape[1] * designs.shape[2])
        return scale * (((designs - best[:, None, None]) / best[:, None, None]) ** 2).sum(axis=0)

    known = start[:, None, None]
    found = evolve(CONTINUOUS, merits, known, evaluations, np.random.default_rng(0), np.zeros((1, 1), dtype=np.intp))
    return sum(asked), found.merit[0]


@pytest.mark.parametrize(("first", "last"), [(40, evolution.LAST), (10, 10)])
def test_populations_shrink_to_their_last_size_and_keep_to_their_budget(first, last):
    sizes, noise = [], np.random.default_rng(2)

    def merits(designs):
        sizes.append(designs.shape[2])
        return noise.random(designs.shape[1:])  # so that a population never agrees

    start = CONTINUOUS.sample(np.random.default_rng(1), first).continuous[:, None]
    evolution.evolved(CONTINUOUS, merits, start, 1000, np.random.default_rng(0), np.zeros((1, 1), dtype=np.intp))
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert sizes[-2] == pytest.approx(last, abs=1)
    assert 1000 - evolution.SMALLEST < sum(sizes) <= 1000


def test_evolution_ends_when_its_designs_are_as_good_as_the_best():
    """A larger budget asks for hardly more designs; while all designs are alike, as where none can be built, it goes on."""
    for budget, asked in ((10_000, 8_000), (100_000, 20_000)):
        found, distance = evolved_bowl(budget)
        assert found < asked
        assert distance < 1e-5
    assert evolved_bowl(2_000, scale=0.0)[0] > 1_900


@pytest.mark.thorough
@pytest.mark.slow
def test_ends_of_halves_that_did_not_see_each_other_tell_how_far_a_search_has_come(product):
    problem = timed(product, CONTINUOUS)
    for settings in (EvolutionSettings(searcher="evolution", evaluations=2000), GradientSettings(starts=8, steps=30)):
        assert 0.0 <= search(problem, settings).spread < 0.05
    assert search(problem, GradientSettings(starts=4, steps=5)).spread is None
    assert search(problem, RandomSettings(searcher="random", evaluations=20)).spread is None


@pytest.mark.thorough
@pytest.mark.slow
def test_a_front_has_the_best_of_each_objective_at_its_ends(product):
    goals = (Objective(name="step_time_s"), Objective(name="energy_j"))
    settings = EvolutionSettings(searcher="evolution", evaluations=1500, population=40)
    front = search(SearchProblem(scenario=product, space=MIXED, objectives=goals), settings).front
    for goal in goals:
        alone = search(SearchProblem(scenario=product, space=MIXED, objectives=(goal,)), settings).row[goal.name]
        assert min(row[goal.name] for row in front) <= alone * 1.02
    assert len(front) > 5


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("settings", [EvolutionSettings(searcher="evolution", evaluations=500, population=30), GradientSettings(starts=2, steps=5)], ids=["evolution", "gradient"])  # fmt: skip
def test_a_front_that_was_cut_off_goes_on_to_the_same_end(product, settings):
    goals = (Objective(name="step_time_s"), Objective(name="energy_j"))
    problem = SearchProblem(scenario=product, space=MIXED, objectives=goals)
    best, rows = recorded(problem, settings)
    kept = rows[: len(rows) // 2]
    again, fresh = recorded_again(problem, settings, kept)
    assert again == best
    assert used(fresh, kept, again) == rows
