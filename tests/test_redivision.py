"""Budgets divided anew at every point of a study."""

import numpy as np
import pytest
import yaml

from crossflow.__main__ import main
from crossflow.answers.explanation.uncertainty import technology_of
from crossflow.answers.search.division import SPREAD, beside
from crossflow.answers.study.headlines import headlines
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError

NODES = ["N12", "N7", "N5"]
SCENARIO = {
    "system": {"template": "pathfinder", "devices": 8, "technology": {"memory": "HBM4"}},
    "workload": {"model": "gemm", "m": 8192, "n": 8192, "k": 8192},
    "strategy": "d8",
}
STUDY = {"name": "s", "scenario": SCENARIO, "sweep": {"system.technology.logic": NODES}}
LITTLE = {"evaluations": 400}
L2 = "system.budgets.power_shares.on_chip.l2"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def made(**sections):
        path = tmp_path_factory.mktemp("anew") / "s.yaml"
        path.write_text(yaml.safe_dump({**STUDY, **sections}))
        return run_study(path, out=path.parent / "o")

    return made


@pytest.fixture(scope="module")
def kept(run):
    return run(plots=[{"name": "p", "x": "system.technology.logic"}])


@pytest.fixture(scope="module")
def anew(run):
    return run(redivide=LITTLE, columns=["step_time_s", L2], plots=[{"name": "p", "x": "system.technology.logic", "y": L2}])


@pytest.mark.thorough
@pytest.mark.slow
def test_no_division_is_worse_than_the_templates(kept, anew):
    for before, after in zip(kept.rows, anew.rows, strict=True):
        assert after["feasible"]
        assert after["step_time_s"] < before["step_time_s"]


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_rows_hold_the_shares_and_give_their_figures_again(anew, run):
    row = anew.rows[1]
    shares = {path: value for path, value in row.items() if path.startswith("system.budgets.")}
    assert len(shares) == 14
    shares |= {path: row[path] for path in ("system.bundles", "system.levels.l2.slices")}
    assert sum(value for path, value in shares.items() if path.startswith("system.budgets.area.")) <= 1.0 + 1e-9
    again = run(sweep={path: [value] for path, value in {"system.technology.logic": "N7", **shares}.items()})
    assert again.rows[0]["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-9)


def test_a_newer_node_is_not_slower_when_budgets_are_divided_for_it(anew):
    times = [row["step_time_s"] for row in anew.rows]
    assert times == sorted(times, reverse=True)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_table_plot_and_record_say_how_budgets_are_divided(kept, anew, capsys):
    assert (kept.view.caption, anew.view.caption) == ("one division of the budgets for all points", "budgets re-divided at each point")
    assert kept.notes[0].startswith("The budgets keep the division of pathfinder at every point.")
    assert kept.notes[0] not in anew.notes
    assert main(["study", str(kept.out.parent / "s.yaml"), "--out", str(kept.out.parent / "again")]) == 0
    assert kept.notes[0] in capsys.readouterr().out


def test_a_loose_division_is_marked_and_one_that_was_not_left_is_told(run):
    made = run(redivide={"evaluations": 60, "microarchitecture": False})
    spreads = [row[SPREAD] for row in made.rows]
    marked = [cells[1].startswith("~") for cells in made.table()[1]]
    assert marked == [spread is not None and spread > 0.01 for spread in spreads]
    assert any(marked)
    told = f"In {spreads.count(None)} of 3 rows neither end of the search left the division that it began with"
    assert spreads.count(None)
    assert any(note.startswith(f"{told} (`redivide: {{evaluations: 60}}`)") for note in made.notes)


def test_where_the_search_moved_nothing_is_told_of_its_ends(anew):
    assert all(row[SPREAD] is not None for row in anew.rows)
    assert not any("neither end" in note for note in anew.notes)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_only_the_shares_asked_for_change(run):
    made = run(redivide={"shares": ["power", "system.budgets.area.on_chip"], **LITTLE})
    shares = {path for path in made.rows[0] if path.startswith("system.budgets.area.")}
    assert shares == {f"system.budgets.area.on_chip.{level}" for level in ("registers", "l1", "l2")}


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("told", [{"each": "draw", "draw_evaluations": 60}, {"each": "point"}])
def test_draws_divide_anew_or_keep_what_was_decided_before(run, told):
    made = run(uncertainty={"samples": 6}, redivide={**told, **LITTLE}, record=["step_time_s"])
    shares = np.array([row[L2] for row in made.rows]).reshape(3, 6)
    assert (np.ptp(shares, axis=1) > 0).all() == (told["each"] == "draw")
    assert made.view.caption == f"budgets re-divided at each {told['each']}"


def test_only_technologies_in_use_at_a_point_are_told_to_matter(run):
    made = run(uncertainty={"samples": 4}, record=["step_time_s"])
    for drawn in made.view.drawn:
        nodes = {technology_of(path) for path in drawn.importance if path.startswith("techlib.logic.")}
        assert nodes <= {"techlib.logic.N12", f"techlib.logic.{drawn.point['system.technology.logic']}"}  # caches are given at N12
        assert "techlib.on_chip.l2" in drawn.importance


def test_a_table_of_divisions_is_no_division_kept_and_is_where_others_start(run):
    shares = {"power_shares": {"compute": 0.3, "memory": 0.2, "on_chip": {"l2": 0.2}}}
    budgets = {"divisions": [{"logic": node, "memory": "HBM4", **shares} for node in NODES]}
    system = {"scenario": {**SCENARIO, "system": {**SCENARIO["system"], "budgets": budgets}}}
    tabled, best = run(**system), run(**system, redivide={"evaluations": 8})
    assert tabled.notes == ["trust: extrapolated; figures of chips that were predicted blind were within 27 %"]
    assert all(b["step_time_s"] <= t["step_time_s"] for b, t in zip(best.rows, tabled.rows, strict=True))


@pytest.mark.thorough  # what it runs quicker tests run too
def test_constraints_bound_what_is_divided(run):
    made = run(redivide={"evaluations": 1500}, constraints={"power_w": "<= 1.5 kW"})  # 400 leave a row 0.03 % above, and say so
    assert all(row["power_w"] <= 1500.0 * (1 + 1e-9) for row in made.rows)


def test_constraints_that_no_division_keeps_are_told(run):
    made = run(redivide=LITTLE, constraints={"cost_usd": "<= 1 USD"})
    assert "No division was found that keeps the constraints (cost_usd) in 3 of 3 rows; these miss them." in made.notes


WRONG = [
    ({"redivide": {"shares": ["areas"]}}, "shares: 'areas' is no budget and no share of pathfinder; budgets: area, power, perimeter"),
    ({"redivide": {"goal": "mfu_x"}}, "no column 'mfu_x'; did you mean 'mfu'?"),
    ({"redivide": {}, "sweep": {L2: [0.1]}}, f"'{L2}' is swept, and the rest of its budget would be divided anew; leave this budget out"),
    ({"redivide": {}, "scenario": {**SCENARIO, "system": "dgx-h100"}}, "is known by its datasheet and has no budgets to divide"),
    ({"redivide": {}, "sweep": {"system.template": ["pathfinder", "chip-h100"]}}, "the templates that are swept have different shares"),
    ({"redivide": {"draw_evaluations": 9}}, "redivide: draw_evaluations: it is about the draws of `uncertainty`, and this study has none"),
    ({"redivide": {"each": "point", "draw_evaluations": 9}, "uncertainty": {}}, "with `each: point` no draw is divided anew"),
    ({"constraints": {"power_w": "<= 1 kW"}}, "constraints: they bound searches and `redivide`, and this study has neither"),
]  # fmt: skip


@pytest.mark.parametrize(("sections", "sentence"), WRONG)
def test_what_cannot_be_divided_is_told(run, sections, sentence):
    sections = {"sweep": {"system.devices": [8]}, **sections} if "scenario" in sections else sections
    with pytest.raises(CrossflowError) as told:
        run(**sections)
    assert sentence in str(told.value)


def test_neighbours_lie_beside_one_another_along_every_path():
    assert beside((2, 3), 6)[4].tolist() == [1, 4, 3, 5]  # row 1, column 1


def test_a_study_tells_the_nodes_that_its_template_has_no_division_for(run):
    budgets = {"divisions": [{"logic": node, "memory": "HBM4", "area": {"compute": 0.5}} for node in ("N7", "N3")]}
    scenario = {**SCENARIO, "system": {**SCENARIO["system"], "budgets": budgets}}
    notes = run(scenario=scenario, sweep={"system.technology.logic": ["N16", "N12", "N7", "N5", "N3", "N2"]}).notes
    lacks = "Pathfinder has no division of its budgets for"
    assert notes[:4] == [
        f"{lacks} N16 with HBM4; it takes that of N7, the nearest node.",
        f"{lacks} N12 with HBM4; it takes that of N7, the nearest node.",
        f"{lacks} N5 with HBM4; it takes what lies between those of N7 and N3.",
        "One further pair of a node and a memory has none either.",
    ]
    together = {"chip": {name: {"system.technology.logic": name} for name in ("N7", "N5")}}
    assert run(scenario=scenario, sweep=together).notes[0] == f"{lacks} N5 with HBM4; it takes what lies between those of N7 and N3."


FREE = {"levels.l2.slices": {"from": 8, "to": 800, "scale": "log"}, "bundles": {"from": 40, "to": 300}}


@pytest.mark.thorough
def test_the_microarchitecture_is_chosen_with_the_shares(run):
    scenario = {**SCENARIO, "system": {**SCENARIO["system"], "microarchitecture": FREE}}
    paths = [f"system.{path}" for path in FREE]
    held, free, swept = (
        run(scenario=scenario, redivide={"evaluations": 8000, **more}, **sweep).rows
        for more, sweep in (({"microarchitecture": False}, {}), ({}, {}), (LITTLE, {"sweep": {paths[1]: [132, 250]}}))
    )
    assert all(path not in row for row in held for path in paths)
    assert all(row[path] == round(row[path]) for row in free for path in paths)
    assert [row[paths[1]] for row in swept] == [132, 250]
    assert any(row[paths[0]] != swept[0][paths[0]] for row in free)
    better = [a["step_time_s"] / b["step_time_s"] for a, b in zip(free, held, strict=True)]
    assert max(better) < 1.005
    assert min(better) < 0.999


# ------------------------------------------------------------------------------------------ what an answer hangs on


MEMORIES = {"system.technology.logic": ["N7", "N3"], "system.technology.memory": ["HBM2", "HBM4"]}
THIN = {**SCENARIO, "workload": {"model": "gemm", "m": 64, "n": 16384, "k": 16384}}


def test_headlines_tell_who_wins_along_each_path_and_by_how_much():
    found = headlines({"a": ["x", "x", "y", "y"], "b": [1, 2, 1, 2], "c": [0] * 4}, np.array([4.0, 3.0, 2.5, 2.0]))
    assert [(one.path, one.winner, one.margin) for one in found] == [("a", "y", 0.5), ("b", 2, 0.25)]
    assert headlines({"a": ["x", "y"]}, np.array([np.inf, np.inf])) == ()


@pytest.mark.thorough
def test_what_an_answer_hangs_on_is_what_a_study_with_that_constant_finds(run):
    """A product that waits for memory: newer memory wins, unless little of its bandwidth is reached."""
    made = run(scenario=THIN, sweep=MEMORIES)
    found = made.hinges()
    assert {one.path: one.winner for one in found.headlines}["system.technology.memory"] == "HBM4"
    mine = next(one for one in found.hinges if one.constant == "levels.l2.utilisation" and one.factor == 0.5)
    level = {"levels": {"l2": {"utilisation": 0.45 * 0.5}}}
    again = run(scenario={**THIN, "system": {**THIN["system"], **level}}, sweep=MEMORIES).rows
    margin = next(one for one in mine.headlines if one.path == "system.technology.memory").margin
    times = {memory: min(row["step_time_s"] for row in again if row["system.technology.memory"] == memory) for memory in ("HBM2", "HBM4")}
    assert margin == pytest.approx(times["HBM2"] / times["HBM4"] - 1.0, rel=1e-9)
    assert not any(one.constant.startswith("budgets.area") for one in found.hinges)


def test_constants_are_judged_with_budgets_divided_anew(run):
    made = run(scenario=THIN, sweep=MEMORIES, redivide=LITTLE)
    own, found = run(scenario=THIN, sweep=MEMORIES).hinges(), made.hinges()
    assert found.constants == own.constants - len(made.study.scenario.system.microarchitecture)
    head, rows = found.table()
    assert [row[:2] for row in rows] == [[one.path.rpartition(".")[2], one.winner] for one in found.headlines]
    least, most = found.range(found.headlines[0])
    assert least <= found.headlines[0].margin <= most
    assert head[-1] == "another wins with"
