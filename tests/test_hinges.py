"""What the answers of searches and of studies with draws hang on: the same as a study with that constant, and the command's flag."""

import csv
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from sampled import every

import crossflow
from crossflow.__main__ import main
from crossflow.answers.study.contests_searched import contests
from crossflow.answers.study.headlines import Headline, Hinge, Hinges, own_value
from crossflow.answers.study.hinges import constants
from crossflow.answers.study.run import StudyResult, run_study
from crossflow.base import files
from crossflow.base.errors import CrossflowError

LOGIC, MEMORY = "system.technology.logic", "system.technology.memory"
SYSTEM = {"template": "reference-training", "devices": 8, "technology": {"logic": "N5", "memory": "HBM3"}}
SCENARIO = {"system": SYSTEM, "workload": {"model": "llama3-8b", "global_batch": 16, "sequence": 2048}, "strategy": "tp8"}
DECODE = {"workload": {"model": "llama3-8b", "task": "decode", "global_batch": 4, "prompt": 2000, "output": 500}}
SPACE = {LOGIC: ["N7", "N3"], MEMORY: ["HBM2e", "HBM4"]}
BATCHES = {"workload.global_batch": [8, 16]}
CONSTANT = "levels.l2.utilisation"


@pytest.fixture
def run(tmp_path_factory):
    """Run a study of the scenario with some sections."""

    def made(**sections):
        return run_study({"name": "h", "scenario": SCENARIO, "plots": [], **sections}, out=tmp_path_factory.mktemp("h"))

    return made


@pytest.fixture
def few(monkeypatch):
    """A sixth of the constants, where it does not matter what all of them do; `CONSTANT` is among them."""

    def tried(study):
        found = list(constants(study))
        return [*every(6, [one for one in found if not one[0].endswith(CONSTANT)]), *(one for one in found if one[0].endswith(CONSTANT))]

    monkeypatch.setattr(sys.modules[constants.__module__], "constants", tried)


def of(hinges, constant, factor, path):
    (hinge,) = [one for one in hinges.hinges if (one.constant, one.factor) == (constant, factor)]
    return next(one for one in hinge.headlines if one.path == path)


def halved():
    own = float(crossflow.from_dict(SCENARIO).system.levels["l2"].utilisation[0])
    return {**SCENARIO, "system": {**SYSTEM, "levels": {"l2": {"utilisation": own / 2}}}}


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_search_among_choices_hangs_on_what_the_search_with_that_constant_finds(run):
    found = run(space=SPACE).hinges()
    assert {one.path: one.winner for one in found.headlines} == {LOGIC: "N3", MEMORY: "HBM4"}
    again = {(row[LOGIC], row[MEMORY]): row["step_time_s"] for row in run(space=SPACE, scenario=halved()).rows}
    mine = of(found, CONSTANT, 0.5, LOGIC)
    assert mine.winner == "N3"
    other = min(time for (logic, _), time in again.items() if logic == "N7")
    assert mine.margin == pytest.approx(other / min(again.values()) - 1.0, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("few")
def test_designs_of_a_search_are_refined_for_each_constant(run):
    """No candidate ends worse than it began, and the constant that the space chooses is none."""
    made = run(
        space={MEMORY: ["HBM3", "HBM4"], "system.budgets.power_shares": "shares"},
        searches={"e": {"searcher": "evolution", "evaluations": 100}},
    )
    found = made.hinges()
    assert "numbers and shares are refined" in found.note
    assert not any("budgets.power_shares" in path for path, _, _ in constants(made.study))
    (own,) = found.headlines
    assert own.winner == "HBM4"
    least, most = found.range(own)
    assert least <= own.margin <= most


def test_candidates_are_refined_as_a_study_with_that_constant_refines_them(run, monkeypatch):
    """Case by case: the same designs, from the same draws, and the losses that each has under its own constant."""
    sections = {
        "space": {MEMORY: ["HBM3", "HBM4"], "system.budgets.power_shares": "shares"},
        "searches": {"r": {"searcher": "random", "evaluations": 12}},
    }
    monkeypatch.setattr(sys.modules[contests.__module__], "FIRST", 0)
    (mine,), (changed,) = (contests(made.study, made.rows) for made in (run(**sections), run(**sections, scenario=halved())))
    (corner,), (again,) = mine.corners, changed.corners
    path = f"system.{CONSTANT}"
    own = float(crossflow.from_dict(SCENARIO).system.levels["l2"].utilisation[0])
    case, same = (path, 0.5, own / 2), (path, 1.0, own)
    again = replace(again, designs=corner.designs)
    refined, expected = corner.refined((case,), 40, 5), again.refined((), 40, 5)
    np.testing.assert_allclose(refined.continuous, expected.continuous, rtol=1e-9)
    assert not np.allclose(refined.continuous, corner.designs.continuous)
    assert not np.allclose(refined.continuous, corner.refined((), 40, 5).continuous)
    losses = corner.losses(corner.times(2), (case, same)).reshape(2, -1)
    np.testing.assert_allclose(losses[0], again.losses(again.designs, ()), rtol=1e-9)
    np.testing.assert_allclose(losses[1], corner.losses(corner.designs, ()), rtol=1e-9)
    assert (losses[0] >= losses[1]).all()
    assert (losses[0] > losses[1]).any()


@pytest.mark.usefixtures("few")
def test_members_count_by_their_mean(run):
    made = run(
        space=SPACE, portfolio={"members": {"train": {}, "decode": DECODE}}, uncertainty={"samples": 2, "seed": 1, "measure": "regret"}
    )
    found = made.hinges()
    assert "Members and draws count by the mean" in found.note
    best = {row[MEMORY]: min(other["step_time_s"] for other in made.rows if other[MEMORY] == row[MEMORY]) for row in made.rows}
    own = next(one for one in found.headlines if one.path == MEMORY)
    assert own.winner == min(best, key=best.get)
    assert own.margin == pytest.approx(max(best.values()) / min(best.values()) - 1.0)
    changed = run(
        space=SPACE, portfolio={"members": {"train": {}, "decode": DECODE}}, uncertainty={"samples": 2, "seed": 1}, scenario=halved()
    )
    times = {row[LOGIC]: min(other["step_time_s"] for other in changed.rows if other[LOGIC] == row[LOGIC]) for row in changed.rows}
    assert of(found, CONSTANT, 0.5, LOGIC).margin == pytest.approx(times["N7"] / times["N3"] - 1.0)


def test_draws_tell_who_wins_in_the_mean_and_most_often(run):
    drawn = {"sweep": {LOGIC: ["N12", "N10", "N7"]}, "uncertainty": {"samples": 12, "seed": 3}}  # at denser ones all wait for the host
    made = run(**drawn)
    found = made.hinges()
    times = np.array([row["step_time_s"] for row in made.rows]).reshape(3, 12)
    mean, often = found.headlines
    assert (mean.path, often.path) == (LOGIC, f"most often: {LOGIC}")
    assert mean.winner == often.winner == "N7"
    order = np.sort(times.mean(axis=1))
    assert mean.margin == pytest.approx(order[1] / order[0] - 1.0, rel=1e-6)
    counts = sorted(np.bincount(times.argmin(axis=0), minlength=3))
    assert often.margin == pytest.approx((counts[-1] - counts[-2] * (counts[-2] > 0)) / 12)
    again = run(**drawn, scenario=halved())
    halves = np.sort(np.array([row["step_time_s"] for row in again.rows]).reshape(3, 12).mean(axis=1))
    assert of(found, CONSTANT, 0.5, LOGIC).margin == pytest.approx(halves[1] / halves[0] - 1.0, rel=1e-6)


def test_each_objective_of_a_front_has_its_own_winners(run):
    made = run(space=SPACE, objectives=["step_time_s", "cost_usd"], searches={"all": {"searcher": "exhaustive"}})
    winners = {one.path: one.winner for one in made.hinges().headlines}
    assert winners[f"step_time_s: {MEMORY}"] == "HBM4"
    assert winners[f"cost_usd: {MEMORY}"] == "HBM2e"


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"scenario": {**SCENARIO, "system": "dgx-h100"}, "sweep": BATCHES}, "known by their data sheets"),
        ({"uncertainty": {"samples": 4}}, "nothing is compared: give it a sweep"),
        ({"sweep": {"system.template": ["reference-training", "reference-serving"]}}, "templates are compared"),
        ({"sweep": BATCHES, "scenario": {**SCENARIO, "strategy": "auto"}}, "strategy: auto plans each point anew"),
        ({"sweep": BATCHES, "scenario": {**SCENARIO, "workload": {"model": "llama3.1-405b"}}}, "none of its points or designs runs"),
    ],
)  # fmt: skip
def test_studies_without_a_winner_are_told_why(run, sections, reason):
    with pytest.raises(CrossflowError, match=reason):
        run(**sections).hinges()


def test_what_differs_in_a_swept_section_is_no_constant(run):
    """Of a level that is swept as a whole what both values give alike is one, and what neither gives."""
    levels = {"component": "l2", "scope": "global", "static_share": 0.05}
    made = run(sweep={"system.levels.l2": [{**levels, "utilisation": share} for share in (0.45, 0.3)]})
    found = {path.removeprefix("system.levels.l2.") for path, _, _ in constants(made.study)}
    assert "utilisation" not in found
    assert "static_share" in found


def test_the_own_value_of_a_changed_constant():
    assert own_value(("system.bundles", 0.5, 66.0)) == 132.0


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def study(tmp_path):
    """A study file, and the folder of its results."""
    path = tmp_path / "h.yaml"
    path.write_text(files.yaml_text({"name": "h", "scenario": SCENARIO, "sweep": SPACE, "plots": []}), encoding="utf-8")
    return path, tmp_path / "out"


def test_the_flag_writes_the_table_and_its_file(study, capsys):
    path, out = study
    assert main(["study", str(path), "--out", str(out), "--hinges"]) == 0
    said = capsys.readouterr()
    assert "Who wins, again with each of" in said.out
    assert f"wrote {out / 'hinges.csv'}" in said.err
    rows = list(csv.DictReader((out / "hinges.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["along"], row["best"]) for row in rows[:2]] == [(LOGIC, "N3"), (MEMORY, "HBM4")]
    assert {row["factor"] for row in rows[2:]} >= {"0.5", "2.0"}
    assert main(["study", str(path), "--out", str(out), "--hinges", "--resume", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    margin = pytest.approx(float(rows[0]["better_by"]))
    assert told["hinges"]["headlines"][0] == {"along": LOGIC, "constant": "", "factor": 1.0, "best": "N3", "better_by": margin}
    assert len(told["points"]) == 4


@pytest.mark.thorough
def test_a_run_anew_leaves_no_old_table(study):
    path, out = study
    assert main(["study", str(path), "--out", str(out), "--hinges"]) == 0
    assert main(["study", str(path), "--out", str(out), "--set", "scenario.workload.global_batch=32"]) == 0
    assert not (out / "hinges.csv").exists()


def test_what_has_no_winner_is_refused_before_anything_is_computed(study, capsys):
    path, out = study
    settings = ["--set", "scenario.system=dgx-h100", "--set", 'sweep={"workload.global_batch": [8, 16]}']
    assert main(["study", str(path), "--out", str(out), "--hinges", *settings]) == 2
    assert "--hinges: its devices are known by their data sheets" in capsys.readouterr().err
    assert not out.exists()


def test_an_interrupt_keeps_the_finished_study(study, capsys, monkeypatch):
    def interrupted(self, report=None):
        raise KeyboardInterrupt

    path, out = study
    monkeypatch.setattr(StudyResult, "hinges", interrupted)
    assert main(["study", str(path), "--out", str(out), "--hinges"]) == 130
    assert "the study itself is finished" in capsys.readouterr().err
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["finished"]
    assert not (out / "hinges.csv").exists()


@pytest.mark.thorough
def test_the_table_names_the_objective_before_the_path(run):
    made = run(space=SPACE, objectives=["step_time_s", "cost_usd"], searches={"all": {"searcher": "exhaustive"}})
    _, rows = made.hinges().table()
    assert rows[0][0] == "step_time_s: logic"


def test_a_rival_that_cannot_run_is_told_in_words():
    own = Headline(path="memory", winner="HBM4", margin=np.inf)
    other = Hinge(constant="room", factor=0.5, headlines=(Headline(path="memory", winner="HBM3", margin=np.inf),))
    row = Hinges(headlines=(own,), hinges=(other,), constants=1).table()[1][0]
    assert row[2:] == ["no other runs", "it cannot run to no other runs", "room x 0.5 (HBM3)"]
