# ruff: noqa: E501  (exact sentences)
"""Studies: the technology study whole, equal bytes however run, sweeps of every kind, and files that say nothing wrong in silence."""

import itertools
import json
import re

import numpy as np
import pytest
import yaml

import crossflow
from crossflow.answers.study.findings import reach_of_ties
from crossflow.answers.study.reading import read_study
from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.errors import CrossflowError

NODES = ["N12", "N10", "N7", "N5", "N3", "N2", "N1"]
MEMORIES = ["HBM2", "HBM2e", "HBM3", "HBM4"]
LINKS = ["NDR-x8", "XDR-x8", "GDR-x8"]
PATHS = ["system.technology.inter_link", "system.technology.memory", "system.technology.logic"]
PRODUCT = {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 1024, "n": 1024, "k": 1024, "dtype": "fp16"}}
POWER = "system.budgets.power"


@pytest.fixture(scope="module")
def scaling(tmp_path_factory):
    """The shipped technology-scaling study, run once."""
    return run_study(files.find("studies", "technology-scaling"), out=tmp_path_factory.mktemp("scaling"))


@pytest.fixture(scope="module")
def times(scaling):
    """Step times by network, memory and logic node. [s]"""
    return np.array([row["step_time_s"] for row in scaling.rows]).reshape(3, 4, 7)


@pytest.fixture
def written(tmp_path):
    """Path of a study file with a small product's scenario and the given sections."""

    def write(sweep, **sections):
        path = tmp_path / "s.yaml"
        path.write_text(yaml.safe_dump({"name": "s", "scenario": PRODUCT, "sweep": sweep, "plots": [], **sections}, sort_keys=False))
        return path

    return write


@pytest.fixture
def refused(written, tmp_path):
    """Complaint about a study that is wrong; nothing may have been written."""

    def complaint(sweep=None, **sections):
        path = written({POWER: ["300 W"]} if sweep is None else sweep, **sections)
        with pytest.raises(CrossflowError) as caught:
            run_study(path, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return str(caught.value).replace(f"{path}:", "s.yaml:")

    return complaint


def alone(*settings):
    """Prediction of the small product with settings."""
    return crossflow.predict(crossflow.from_dict(files.override(files.Document(file="s", data=PRODUCT), settings).data))


# ------------------------------------------------------------------------------------------ the technology study


@pytest.mark.thorough
@pytest.mark.slow
def test_scaling_has_every_combination_in_order(scaling):
    assert [row["id"] for row in scaling.rows] == list(range(84))
    assert [tuple(row[path] for path in PATHS) for row in scaling.rows] == list(itertools.product(LINKS, MEMORIES, NODES))


@pytest.mark.slow
def test_scaling_writes_its_columns_plots_and_record(scaling):
    assert {path.name for path in scaling.out.iterdir()} == {
        "points.jsonl", "points.csv", "points.npz", "run.json", "technology-scaling.png", "technology-scaling.svg",
    }  # fmt: skip
    assert set(scaling.study.spec.columns) <= set(scaling.rows[0])
    lines = (scaling.out / "points.csv").read_text().splitlines()
    assert len(lines) == 85
    assert lines[0].split(",")[:5] == ["id", *PATHS, "step_time_s"]
    assert json.loads((scaling.out / "run.json").read_text())["finished"] is True


def test_swept_quantities_are_numbers_too_and_the_record_has_the_unit_of_every_column(tmp_path):
    scenario = {"system": "pathfinder", "workload": "lstm-16k", "strategy": "d8"}
    study = {"name": "s", "scenario": scenario, "sweep": {"system.budgets.power": ["0.3 kW", "250 W"], "system.technology.logic": ["N7"]}}
    result = run_study(study, out=tmp_path)
    assert [row["system.budgets.power [W]"] for row in result.rows] == [300.0, 250.0]
    assert [row["system.budgets.power"] for row in result.rows] == ["0.3 kW", "250 W"]
    units = json.loads((tmp_path / "run.json").read_text())["columns"]
    assert list(units) == list(result.rows[0])
    asked = ("system.budgets.power", "system.budgets.power [W]", "step_time_s", "mfu", "system.technology.logic", "bound_by")
    assert [units[name] for name in asked] == ["text", "W", "s", "1", "text", "text"]


def test_scaling_table_shows_what_the_study_asks_for(scaling):
    headers, rows = scaling.table()
    assert headers == ["network", "memory", "logic", "step time", "bound by", "l2 share", "memory share", "network share", "memory needed", "capacity", "fits"]  # fmt: skip
    assert len(rows) == 84
    assert rows[0][:3] == ["NDR-x8", "HBM2", "N12"]
    assert (rows[0][-3:], rows[-1][-1]) == (["114.9 GiB", "32 GiB", "no"], "yes")


CASES = [(network, memory) for network in range(3) for memory in (2, 3)]


@pytest.mark.parametrize(("network", "memory"), CASES)
def test_n12_to_n7_is_a_jump_whatever_the_memory(times, network, memory):
    """DeepFlow, Sec. 9.1: "Going from N12 to N7, we observe a jump in performance irrespective of memory technology.".

    Here with memories that are faster than the L2 of N12; with HBM2 and HBM2e the memory itself binds at every node.
    """
    assert times[network, memory, 0] / times[network, memory, 2] >= 1.10


def test_logic_saturates_beyond_n3(times):
    best = times[2, 3]
    assert best[4] - best[6] < (best[0] - best[4]) / 3


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["network", "memory", "logic"])
def test_a_better_technology_is_never_slower_in_the_study(times, axis):
    one, other = (np.delete(times, end, axis=axis) for end in (-1, 0))
    assert (other <= one * (1 + 1e-9)).all()


def test_data_parallel_weights_fit_hbm4_alone_and_the_row_says_why_not(scaling):
    for row in scaling.rows:
        assert row["feasible"] is (row["system.technology.memory"] == "HBM4")
        assert (row["reason"] is None) is row["feasible"]
    assert scaling.rows[0]["reason"] == "needs 114.9 GiB of memory per device, 82.91 GiB more than its 32 GiB"


def test_every_point_names_the_largest_share_as_its_bound(scaling):
    for row in scaling.rows:
        shares = {name.split(".")[1]: value for name, value in row.items() if name.startswith("bound_share.")}
        assert sum(shares.values()) == pytest.approx(1.0, rel=1e-9)
        assert shares[row["bound_by"]] == max(shares.values())


def test_the_summary_names_the_fastest_that_fits(scaling, times):
    fastest = times[2, 3, 6]
    assert scaling.summary == f"84 points, 21 feasible; fastest: {fastest:.4g} s at GDR-x8, HBM4, N1"
    assert repr(scaling) == f"StudyResult('technology-scaling': {scaling.summary})"
    assert fastest == times[:, 3].min()


@pytest.mark.slow
def test_the_same_study_twice_gives_the_same_bytes(scaling, tmp_path):
    again = run_study(files.find("studies", "technology-scaling"), out=tmp_path)
    for path in scaling.files:
        assert (again.out / path.name).read_bytes() == path.read_bytes(), path.name


# ------------------------------------------------------------------------------------------ sweeps


@pytest.mark.thorough
@pytest.mark.slow
def test_processes_do_not_change_a_byte(written, tmp_path):
    path = written({"workload.k": [1024, 4096], POWER: {"from": "150 W", "to": "400 W", "count": 600}})
    one, two = (run_study(path, out=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert len(one.rows) == 1200
    assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in two.files]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("strategy", ["d1", "d4", "RC-2-4", "CR-8"]),
        ("workload.m", [1024, 8, 4096]),
        (POWER, ["300 W", "0.2 kW", "251.5 W"]),
        ("system.technology.memory", ["HBM2", "HBM4"]),
        ("system.template", ["v100", "pathfinder"]),
        ("kernels_per_device", [1, 2]),
    ],
)
def test_a_sweep_is_its_predictions_one_by_one(written, tmp_path, path, values):
    rows = run_study(written({path: values}), out=tmp_path).rows
    for row, value in zip(rows, values, strict=True):
        found = alone(f"{path}={value}")
        assert row[path] == value
        assert row["step_time_s"] == pytest.approx(found.step_time, rel=1e-12)
        assert (row["feasible"], row["reason"]) == (found.feasible, found.reason)


def test_a_sweep_of_the_batch_is_its_predictions_one_by_one(lstm, tmp_path):
    workload = {"model": "lstm-16k", "hidden": 1024, "vocabulary": 32000, "sequence": 4}
    scenario = {"system": {"template": "pathfinder"}, "workload": workload, "strategy": "d8"}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"name": "s", "scenario": scenario, "sweep": {"workload.global_batch": [64, 512]}}))
    rows = run_study(path, out=tmp_path / "out").rows
    for row, batch in zip(rows, (64, 512), strict=True):
        alone = crossflow.predict(lstm("d8", workload={**workload, "global_batch": batch}))
        assert row["step_time_s"] == pytest.approx(alone.step_time, rel=1e-12)
        assert row["samples_per_second"] * row["step_time_s"] == pytest.approx(batch, rel=1e-12)


RANGES = [
    ({"from": "100 W", "to": "1 kW", "count": 4, "scale": "log"}, ["100 W", "215.443469003 W", "464.158883361 W", "1000 W"]),
    ({"from": "100 W", "to": "400 W", "count": 4}, ["100 W", "200 W", "300 W", "400 W"]),
    ({"from": "0.4 kW", "to": "100 W", "count": 2}, ["0.4 kW", "0.1 kW"]),
    ({"from": 0.1, "to": 0.3, "count": 3}, [0.1, 0.2, 0.3]),
    ({"from": 8, "to": 64, "count": 4, "scale": "log"}, [8.0, 16.0, 32.0, 64.0]),
    ({"from": "100 W", "to": "400 W", "count": 1}, ["100 W"]),
    ({"from": "10 %", "to": "30 %", "count": 3}, ["10 %", "20 %", "30 %"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("described", "values"), RANGES)
def test_a_range_is_its_values_written_out(written, described, values):
    path = POWER if "W" in str(described) else "workload.m" if described["from"] == 8 else "system.budgets.area.compute"
    assert read_study(written({path: described})).values == {path: values}


def test_settings_reach_the_scenario_and_the_sweep(written, tmp_path):
    settings = ["scenario.workload.m=64", "name=other", "sweep={strategy: [d1, d2]}"]
    made = run_study(written({POWER: ["300 W"]}), out=tmp_path / "o", settings=settings)
    assert (made.study.spec.name, [row["strategy"] for row in made.rows]) == ("other", ["d1", "d2"])
    assert made.rows[0]["step_time_s"] == pytest.approx(alone("workload.m=64").step_time, rel=1e-12)


def test_a_scenario_may_be_a_file_beside_the_study(written, tmp_path):
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(PRODUCT))
    made = run_study(written({POWER: ["300 W"]}, scenario="case.yaml"), out=tmp_path / "o")
    assert made.rows[0]["step_time_s"] == pytest.approx(alone().step_time, rel=1e-12)


def test_the_summary_rounds_quantities_and_sets_thousands_apart(written, tmp_path):
    made = run_study(written({POWER: {"from": "200 W", "to": "297.9549248748 W", "count": 1200}}), out=tmp_path / "o")
    assert made.summary.startswith("1,200 points, 1,200 feasible; fastest: ")
    assert made.summary.endswith(" at 297.95 W")


def test_a_point_without_end_is_null_in_json_and_empty_in_csv(written, tmp_path):
    path = written({"system.budgets.power_shares.inter_link": [0.0]}, scenario={**PRODUCT, "strategy": "CR-8"})
    made = run_study(path, out=tmp_path / "o")
    assert made.rows[0]["step_time_s"] is None
    assert made.summary == "1 point, 0 feasible"
    assert json.loads((tmp_path / "o" / "points.jsonl").read_text())["step_time_s"] is None
    assert "inf" not in (tmp_path / "o" / "points.csv").read_text().splitlines()[1]


# ------------------------------------------------------------------------------------------ wrong files

LIST = "expected a list of values, {from: ..., to: ..., count: ...}, or settings by name"
WRONG = [
    ({"sytem.budgets.power": ["300 W"]}, "s.yaml:12: sweep.sytem.budgets.power: 'sytem.budgets.power' is not a path of a scenario; did you mean 'system.budgets.power'?"),
    ({"title": ["a"]}, "s.yaml:12: sweep.title: 'title' is not a path of a scenario"),
    ({"technology.memory": ["HBM3"]}, "s.yaml:12: sweep.technology.memory: 'technology.memory' is not a path of a scenario; did you mean 'system.technology.memory'?"),
    ({POWER: ["300 W", "1 GB"]}, "s.yaml:12: sweep.system.budgets.power: expected a quantity in W, got '1 GB': 'GB' is not a unit of W"),
    ({POWER: [300]}, "s.yaml:12: sweep.system.budgets.power: expected a quantity in W, got the bare number 300; write the unit"),
    ({POWER: []}, f"s.yaml:12: sweep.system.budgets.power: {LIST}"),
    ({POWER: "300 W"}, f"s.yaml:12: sweep.system.budgets.power: {LIST}"),
    ({POWER: {"from": "0 W", "to": "1 W", "count": 3, "scale": "log"}}, "s.yaml:12: sweep.system.budgets.power: a logarithmic scale needs ends greater than zero"),
    ({POWER: {"from": "9 W", "to": "1 GB", "count": 3}}, "s.yaml:12: sweep.system.budgets.power: expected a quantity in W, got '1 GB': 'GB' is not a unit of W"),
    ({"system.technology.memroy": ["HBM2"]}, "s.yaml:12: sweep.system.technology.memroy: no such technology role; did you mean 'memory'?; known: logic, compute, memory, second_memory, intra_link, inter_link, intra_switch, inter_switch, intra_uplink, inter_uplink, die_link, stacked_logic, bond, substrate, delivery"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "sentence"), WRONG)
def test_wrong_sweeps_are_told_exactly_before_anything_is_written(refused, sweep, sentence):
    assert refused(sweep) == sentence


def test_an_empty_sweep_is_told(written, tmp_path):
    with pytest.raises(CrossflowError, match=r"s\.yaml:11: sweep: a study needs a sweep, searches with a space, redivide, or uncertainty$"):
        run_study(written({}), out=tmp_path / "out")


LATE_VALUES = [
    {"system.technology.memory": ["HBM2", "HBM5"]},
    {"system.budgets.powr": ["300 W"]},
    {"system.template": ["v100", "pathfindr"]},
    {"strategy": ["d1", "dx"]},
    {"strategy": ["d1", "d3"]},
    {"workload.m": [1024, "x"]},
]


@pytest.mark.slow
@pytest.mark.parametrize("sweep", LATE_VALUES, ids=str)
def test_every_wrong_value_is_told_before_anything_is_written(refused, sweep):
    refused(sweep)


def test_a_plot_over_what_is_not_swept_is_told(refused):
    sentence = refused(plots=[{"name": "p", "x": POWER}, {"name": "q", "x": POWER, "series": "strategy"}])
    assert sentence == "s.yaml:14: plots: q: series is 'strategy', which is not swept; swept: system.budgets.power"


@pytest.mark.parametrize(("where", "sentence"), [
    ({"strategy": "d1"}, "where has 'strategy', which is not swept; swept: system.budgets.power"),
    ({POWER: "31 W"}, "where has system.budgets.power at 31 W; swept: "),
])  # fmt: skip
def test_lines_at_a_value_that_is_not_swept_are_told(refused, where, sentence):
    assert sentence in refused(plots=[{"name": "p", "x": POWER, "where": where}])


def test_lines_lie_at_any_value_that_is_swept(written):
    """Each of the listed ones, and of a range one between its ends."""
    for where in ({POWER: "300 W"}, {POWER: "400 W"}):
        path = written({POWER: ["300 W", "400 W"], "workload.m": [1024, 2048]}, plots=[{"name": "p", "x": "workload.m", "where": where}])
        assert read_study(path).spec.plots[0].where == where


@pytest.mark.parametrize(("paths", "told"), [(("strategy",), True), (("strategy", "workload.m"), False), (("software",), False)])
def test_only_points_that_do_the_same_are_told_apart(paths, told):
    given = {"system": {"template": "dgx-a100", "nodes": 1}, "workload": {"model": "llama2-7b", "global_batch": 64}, "strategy": "tp8-dp1"}
    reach = reach_of_ties(crossflow.from_dict(given), paths, ["interpolated"])
    assert (reach is not None) == told
    assert not told or 0.0 < reach < 1.0


@pytest.mark.parametrize("section", [{"plots": [{"name": "p", "x": POWER, "y": "step_tmie_s"}]}, {"columns": ["step_tmie_s"]}], ids=str)
def test_a_column_that_no_score_has_is_told(refused, section):
    assert "step_time_s" in refused(**section)


def test_a_scenario_that_is_not_there_is_told(refused):
    assert refused(scenario="nowhere.yaml") == "s.yaml:2: scenario: there is no file nowhere.yaml"
    assert refused(scenario="/etc/passwd") == "s.yaml:2: scenario: expected a scenario, or the path of its YAML file, got /etc/passwd"
    assert refused(scenario=5) == "s.yaml:2: scenario: expected a scenario or the path of one, got 5"


def test_unknown_keys_of_a_study_are_told_with_what_was_meant(refused):
    assert refused(swep={}) == "s.yaml:15: swep: unknown key 'swep'; did you mean 'sweep'?"


def test_no_jobs_are_refused(written, tmp_path):
    with pytest.raises(CrossflowError, match=r"^--jobs must be at least 1, got 0$"):
        run_study(written({POWER: ["300 W"]}), out=tmp_path / "o", jobs=0)


LAYERED = {"system": {"template": "dgx-a100", "nodes": 4}, "workload": {"model": "llama2-7b", "global_batch": 96}, "strategy": "dp32"}


def test_every_wrong_strategy_of_a_sweep_is_told(refused):
    said = refused({"strategy": ["tp8-dp4", "tp3", "foo", {"zero": 4}]}, scenario=LAYERED)
    assert "'foo' is not understood" in said
    assert "zero must be one of 0, 1, 2, 3, got 4" in said


def test_a_strategy_that_divides_nothing_is_blamed_on_the_strategies(refused):
    said = refused({"workload.sequence": [2048, 4096], "strategy": ["tp8-dp4", "tp5-dp1"]}, scenario=LAYERED)
    assert "sweep.strategy: workload.sequence = 2048, strategy = tp5-dp1: " in said


def test_what_no_range_is_is_told_with_its_path(refused):
    assert "sweep.workload.sequence: the key 'from' is missing" in refused({"workload.sequence": {"space": 4}}, scenario=LAYERED)
    path, searches = "system.budgets.power", {"every": {"searcher": "exhaustive"}}
    said = refused({}, scenario=LAYERED, space={path: {"low": "1 W", "high": "6 W"}}, objectives="step_time_s", searches=searches)
    assert f"space.{path}.low: unknown key 'low'; known keys: count, from, note, scale, source, to, when" in said
    assert "'legal' belongs in the space of a search" in refused({"strategy": "legal"}, scenario=LAYERED)


SERVED = {"model": "llama2-7b", "task": "serving", "prompt": 512, "output": 64, "global_batch": 32}
USUAL = {
    "a step": (LAYERED, "step_time_s"),
    "a service": ({**LAYERED, "workload": SERVED, "strategy": "tp8-dp4"}, "e2el_s"),
    "a run of months": (
        {**LAYERED, "run": {"tokens": 1e12, "failures": {"device": {"rate": "1 1/year", "per": "node", "detection": "5 min"}}}},
        "run.time_s",
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", USUAL)
@pytest.mark.parametrize("given", [None, "energy_j", ["samples_per_second", "power_w"]])
def test_a_search_has_the_objectives_that_its_file_names_or_else_what_is_usual(written, kind, given):
    scenario, usual = USUAL[kind]
    named = {} if given is None else {"objectives": given}
    searches = {"every": {"searcher": "exhaustive"}}
    path = written({}, scenario=scenario, space={"strategy": ["tp8-dp4", "dp32-tp1"]}, searches=searches, **named)
    wanted = [usual] if given is None else [given] if isinstance(given, str) else given
    assert [objective.name for objective in read_study(path).runs[0].problem.objectives] == wanted


def test_one_objective_needs_no_list(written, tmp_path):
    searches = {"every": {"searcher": "exhaustive"}}
    path = written({}, scenario=LAYERED, space={"strategy": ["tp8-dp4", "dp32-z3"]}, objectives="step_time_s", searches=searches)
    assert [objective.name for objective in read_study(path).runs[0].problem.objectives] == ["step_time_s"]


@pytest.mark.parametrize(
    "sweep",
    [
        {"workload": [{"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}], "strategy": ["d1"]},
        {"workload.model": ["mixtral-8x7b"], "strategy": [{"transformer": "(tp, ddp)", "experts": "(ep, ddp)"}]},
    ],
    ids=["another kind of workload", "a model with experts"],
)
def test_strategies_are_those_of_the_swept_workload(written, sweep):
    scenario = {**LAYERED, "system": {"template": "v100"}, "strategy": "dp1"} if "workload" in sweep else LAYERED
    if "workload" in sweep:
        scenario["workload"] = {**scenario["workload"], "dtype": "fp16"}
    assert len(read_study(written(sweep, scenario=scenario)).grid) == 1


def test_a_wrong_name_in_a_space_is_told(refused):
    searches = {"every": {"searcher": "exhaustive"}}
    said = refused({}, scenario=LAYERED, space={"workload.model": ["llama2-7b", "foo"]}, searches=searches)
    assert "space.workload.model: unknown model 'foo'" in said
    assert said.count("s.yaml:") == 1


def test_a_wrong_searcher_is_told_with_those_that_there_are(refused):
    said = refused({}, scenario=LAYERED, space={"strategy": "legal"}, searches={"best": {"searcher": "evolutoin"}})
    assert re.search(r"searches\.best\.searcher: expected one of gradient, .*, got 'evolutoin'; did you mean 'evolution'\?", said)


DIVIDED = {
    "system": {"template": "reference-training", "devices": 64}, "strategy": "tp2-dp32-z1-sp",
    "workload": {"model": "llama3-8b", "global_batch": 128, "sequence": 4096},
}  # fmt: skip
UNEVEN = {"system.technology.logic": ["N5", "N3"], "system.technology.memory": ["HBM3", "HBM4", "HBM4E"]}


def test_nodes_and_memories_of_a_divided_design_may_differ_in_number():
    study = read_study({"name": "s", "scenario": DIVIDED, "sweep": UNEVEN})
    columns = dict(zip(UNEVEN, zip(*itertools.product(*UNEVEN.values()), strict=True), strict=True))
    together = crossflow.evaluate(study.scenario, columns).step_time
    alone = [crossflow.evaluate(study.scenario, {path: [values[i]] for path, values in columns.items()}).step_time[0] for i in range(6)]
    assert len(study.grid) == 6
    assert np.allclose(together, alone, rtol=1e-12)
    assert len(set(alone)) == 6


def test_what_draws_pictures_is_needed_where_they_are_asked_for_alone(tmp_path, monkeypatch):
    """Those of a file that names none are left out without it."""
    monkeypatch.setattr("crossflow.base.packages.there", lambda name: name != "matplotlib")
    study = {"name": "s", "scenario": PRODUCT, "sweep": {POWER: ["300 W", "200 W"]}}
    with pytest.raises(CrossflowError, match="pictures need matplotlib, which is not installed"):
        run_study({**study, "plots": [{"name": "p", "kind": "lines", "x": POWER}]}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(run_study(study, out=tmp_path / "out").rows) == 2
    assert not [*(tmp_path / "out").glob("*.png")]


def test_a_study_has_the_name_of_its_file(tmp_path):
    path = tmp_path / "small-products.yaml"
    path.write_text(yaml.safe_dump({"scenario": PRODUCT, "sweep": {POWER: ["300 W"]}}))
    assert read_study(path).spec.name == "small-products"
    assert read_study({"scenario": PRODUCT, "sweep": {POWER: ["300 W"]}}).spec.name == "study"


def test_studies_of_one_scenario_have_names_of_their_own(tmp_path):
    # They wrote over each other's results before, in the folder that was called as the scenario's file.
    (tmp_path / "chip.yaml").write_text(yaml.safe_dump(PRODUCT))
    for name in ("memories", "nodes"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"scenario": "chip.yaml", "sweep": {POWER: ["300 W"]}}))
        assert read_study(path).spec.name == name


ONE_NODE = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8"}
INSIDE = "system.network.intra.bandwidth"


def test_a_small_space_without_searches_is_looked_at_as_a_whole():
    run = read_study({"scenario": ONE_NODE, "space": {"strategy": "legal"}}).runs[0]
    assert (run.name, run.settings.searcher) == ("all", "exhaustive")


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({INSIDE: {"from": "1 GB/s", "to": "9 GB/s"}}, f"space.{INSIDE}: it has no end of values; give `count` or a list of values, or "),
        ({INSIDE: {"from": "1 GB/s", "to": "9 GB/s", "count": 20001}}, "space: it has 20,001 designs, and without searches 20,000 at most are all looked at; "),
    ],
)  # fmt: skip
def test_another_space_says_how_it_is_searched(space, sentence):
    with pytest.raises(CrossflowError) as caught:
        read_study({"scenario": ONE_NODE, "space": space})
    assert str(caught.value) == f"study: {sentence}say how it is searched, such as searches: {{evolution: {{searcher: evolution}}}}"


@pytest.mark.parametrize(
    ("sections", "plot"),
    [
        ({"sweep": {POWER: ["300 W"], "workload.m": [1, 2, 4]}}, {"kind": "lines", "x": "workload.m", "series": POWER, "y": "step_time_s"}),
        ({"space": {POWER: ["300 W", "200 W"]}, "objectives": ["step_time_s", "energy_j"]}, {"kind": "pareto", "x": "step_time_s", "y": "energy_j"}),
        ({"space": {POWER: ["300 W", "200 W"], "workload.m": [1, 2]}}, {"kind": "parallel"}),
        ({"sweep": {POWER: ["300 W"]}, "plots": []}, None),
    ],
)  # fmt: skip
def test_a_study_that_asks_for_no_plot_has_one_that_suits_it(sections, plot):
    plots = read_study({"scenario": PRODUCT, **sections}).spec.plots
    assert len(plots) == (plot is not None)
    assert all((plot or {}).items() <= drawn.model_dump().items() for drawn in plots)


PRICED = {"system": {"template": "v100", "operation": {"price": "2 USD/hour"}}, "workload": PRODUCT["workload"]}


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({"sweep": {POWER: ["300 W", "400 W"]}}, ["power", "step_time_s", "usd_per_million_samples", "bound_by", "reason"]),
        ({"space": {POWER: ["300 W", "400 W"]}}, ["search", "power", "step_time_s", "usd_per_million_samples", "feasible", "bound_by", "evaluations"]),
        ({"sweep": {POWER: ["300 W"]}, "columns": ["mfu"]}, ["power", "mfu"]),
        ({"sweep": {"system.operation.price": ["1 USD/hour", "3 USD/hour"]}, "scenario": PRODUCT}, ["price", "step_time_s", "usd_per_million_samples", "bound_by", "reason"]),
        ({"sweep": {POWER: ["300 W"]}, "scenario": PRODUCT}, ["power", "step_time_s", "bound_by", "reason"]),
    ],
)  # fmt: skip
def test_a_study_with_a_price_shows_what_its_points_cost(tmp_path, sections, names):
    made = run_study({"name": "s", "scenario": PRICED, "plots": [], **sections}, out=tmp_path / "out")
    assert made.listing.headers == names
    header = (tmp_path / "out" / "points.csv").read_text().partition("\n")[0].split(",")
    assert ("usd_per_million_samples" in header) == (sections.get("scenario") is not PRODUCT or "price" in names)


def test_the_price_of_a_point_is_rent_over_throughput(tmp_path):
    made = run_study({"name": "s", "scenario": PRICED, "sweep": {POWER: ["200 W", "300 W"]}, "plots": []}, out=tmp_path / "out")
    for row in made.rows:
        assert row["usd_per_million_samples"] == pytest.approx(1e6 / row["samples_per_second"] * row["devices"] * 2.0 / 3600.0)


def test_a_key_that_a_section_of_a_study_lacks_is_one_of_that_section(refused):
    assert refused(uncertainty={"draws": 10}).endswith("uncertainty.draws: unknown key 'draws'; did you mean 'samples'?")


def test_nodes_that_a_strategy_does_not_suit_are_told_what_suits_all(refused):
    """A strategy of so many devices, in a sweep of nodes: more nodes are no cure, and each point may take its own strategy."""
    system = {"template": "dgx-h100", "nodes": 4}
    workload = {"model": "llama3-8b", "global_batch": 64, "sequence": 4096}
    told = refused({"system.nodes": [4, 2]}, scenario={"system": system, "workload": workload, "strategy": "tp4-dp8"})
    assert told.endswith("; system.nodes=4 makes it 32; scenario.strategy: auto takes the fastest strategy of each point")
    each = refused({"system.nodes": [4, 2], "strategy": ["tp4-dp8"]}, scenario={"system": system, "workload": workload})
    assert "auto" not in each
