"""The page of a scenario: what can be moved, and what every move is answered with."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import yaml
from sampled import every

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.likeness import trust
from crossflow.answers.explanation.designs import read_design, text_of, written
from crossflow.answers.explanation.dividing import legal, nearest
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.points import varied
from crossflow.answers.scenario import from_dict, load
from crossflow.base import files
from crossflow.base.drawing import palette
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.answers import answer, curves, further
from crossflow.edges.explore.compare import exchanges
from crossflow.edges.explore.controls import controls
from crossflow.edges.explore.offline import offline
from crossflow.edges.explore.repairs import changed
from crossflow.edges.explore.scenario import (
    best_strategy,
    compared,
    decisions,
    designs,
    evaluated,
    explained,
    neighbours,
    repaired,
    scenario_app,
    strategies,
    texts,
    timeline,
)
from crossflow.hardware.architecture.datasheet import OF_DATASHEETS, of_a_datasheet

CHIP = {
    "system": {"template": "reference-training", "devices": 64},
    "workload": {"model": "llama3-8b", "global_batch": 64},
    "strategy": "tp8-dp8",
}
CLUSTER = {
    "system": {"template": "h100-ib-cluster", "nodes": 2},
    "workload": {"model": "llama3-70b", "global_batch": 64},
    "strategy": "tp8-dp2",
}
LSTM = {
    "system": {"template": "pathfinder", "devices": 16},
    "workload": {"model": "lstm", "hidden": 1024, "vocabulary": 1000, "sequence": 8, "global_batch": 64},
    "strategy": "d16",
}
GEMM = {"system": {"template": "v100"}, "workload": {"model": "gemm", "m": 1024, "n": 1024, "k": 1024}}
DLRM = {"system": {"template": "zionex", "nodes": 2}, "workload": {"model": "dlrm-a"}, "strategy": "dense ddp, embedding mp"}
SERVING = {
    "system": {"template": "dgx-h100"},
    "workload": {
        "model": "llama3-8b", "task": "serving", "prompt": 512, "output": 64, "global_batch": 32, "serving": {"arrival_rate": "20 1/s"},
    },
    "strategy": "tp2-dp4",
}  # fmt: skip
FITTING = {**CLUSTER, "workload": {"model": "llama3-8b", "global_batch": 64}}
KINDS = {"chip": CHIP, "cluster": CLUSTER, "lstm": LSTM, "gemm": GEMM, "dlrm": DLRM, "serving": SERVING}


@pytest.fixture(scope="module")
def chip():
    return from_dict(CHIP)


@pytest.fixture(scope="module")
def cluster():
    return from_dict(CLUSTER)


def by_path(scenario):
    return {control.path: control for control in controls(scenario)}


# ------------------------------------------------------------------------------------------ controls


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_behind_a_prediction_is_a_control(kind):
    scenario = from_dict(KINDS[kind])
    found = by_path(scenario)
    for number in parameters(scenario):
        control = found[number.path]
        assert control.value == number.value
        assert (control.low, control.high, control.source) == (number.low, number.high, number.source)


@pytest.mark.parametrize("kind", KINDS)
def test_values_lie_on_their_sliders_and_names_among_their_options(kind):
    for control in controls(from_dict(KINDS[kind])):
        if control.kind == "name":
            assert control.value in control.options
        elif control.least is not None:
            assert control.least <= control.value <= control.most, control.path


@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_sliders_can_be_evaluated(kind):
    scenario = from_dict(KINDS[kind])
    for control in controls(scenario):
        if control.kind == "number" and control.least is not None:
            quantity = varied(scenario, control.path)
            quantity.checked(float(control.most))
            assert quantity.gt == control.least or quantity.checked(float(control.least)) is not None


def test_the_rate_of_requests_is_a_control_of_a_service():
    scenario = from_dict(SERVING)
    rate = by_path(scenario)["workload.serving.arrival_rate"]
    assert (rate.label, rate.value, rate.group) == ("requests a second", 20, "Workload")
    busier = read_design(scenario, {"workload.serving.arrival_rate": 40})
    assert busier.whole().workload.serving.arrival_rate == 40
    assert written(busier) == {"workload.serving.arrival_rate": "40 1/s"}
    steady = {**SERVING["workload"], "serving": {}}
    assert "workload.serving.arrival_rate" not in by_path(from_dict({**SERVING, "workload": steady}))


def test_shares_belong_to_the_stack_of_their_budget(chip):
    stacks = {control.stack for control in controls(chip)} - {None}
    assert stacks == {"system.budgets.area", "system.budgets.power_shares", "system.budgets.perimeter"}
    assert not {control.stack for control in controls(from_dict(CLUSTER))} - {None}


def test_what_has_no_meaning_has_no_control(chip, cluster):
    assert "system.technology.die_link" not in by_path(chip)
    two = read_design(chip, {"system.budgets.chiplets": 2}).whole()
    assert "system.technology.die_link" in by_path(two)
    assert "system.budgets.power" not in by_path(cluster)
    assert "software" not in by_path(from_dict(LSTM))
    assert "workload.sequence" not in by_path(from_dict(GEMM))


def test_sources_are_cited(chip):
    control = next(control for control in controls(chip) if control.path.startswith("techlib.memory.") and control.source)
    assert control.cited
    assert control.about


def test_the_count_of_devices_is_what_the_scenario_gives(chip, cluster):
    assert by_path(chip)["system.devices"].value == 64
    assert by_path(cluster)["system.nodes"].value == 2


# ------------------------------------------------------------------------------------------ designs


def test_a_design_scores_as_the_same_scenario(chip):
    settings = {"system.budgets.power": 600.0, "system.technology.memory": "HBM3e", "workload.global_batch": 128}
    design = read_design(chip, settings)
    given = {**CHIP, "workload": {**CHIP["workload"], "global_batch": 128}}
    system = {**CHIP["system"], "technology": {"memory": "HBM3e"}, "budgets": {"power": "600 W"}}
    assert design.score().step_time[0] == pytest.approx(evaluate(from_dict({**given, "system": system})).step_time[0], rel=1e-12)
    assert evaluate(design.whole()).step_time[0] == pytest.approx(design.score().step_time[0], rel=1e-12)


def test_the_device_of_a_design_is_that_of_its_scenario(chip):
    design = read_design(chip, {"system.budgets.power": 600.0, "system.budgets.area.compute": 0.3})
    for name, value in design.whole().architecture.figures.items():
        assert design.device().figures[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"system.budgets.power": -1}, "system.budgets.power: expected at least 0 W, got -1"),
        ({"system.budgets.power": "5 m"}, "system.budgets.power: expected a quantity in W, got '5 m': 'm' is not a unit of W"),
        ({"system.budgets.nothing": 1}, "system.budgets.nothing: no number stands there; it may be of another system or technology"),
        ({"techlib.memory.HBM9.capacity": 1}, "has no memory 'HBM9'; did you mean 'HBM4'?"),
        ({"system.budgets.power": [1]}, "system.budgets.power: expected a number or text"),
        ({"system.technology.memory": "HBM9"}, "HBM9"),
        ({"nothing": 1}, "nothing"),
        (["a"], "settings: expected values by path"),
    ],
)
def test_what_is_no_design_is_told(chip, settings, sentence):
    with pytest.raises(CrossflowError, match=re.escape(sentence)):
        read_design(chip, settings)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_strategy_that_does_not_divide_gives_way_to_the_fastest_and_says_so(chip):
    design = read_design(chip, {"system.devices": 16})
    assert design.note == "strategy tp8-dp8 does not divide this workload over 16 devices: the fastest that fits is taken"
    assert design.scenario.devices == 16
    found = evaluate(design.scenario, {"strategy": list(legal(design.scenario))})
    assert design.score().step_time[0] == pytest.approx(np.where(found.feasible, found.step_time, np.inf).min())


@pytest.mark.thorough
@pytest.mark.slow
def test_auto_is_the_fastest_that_fits_until_the_page_says_which(chip):
    best = best_strategy(chip, {"settings": {"strategy": "auto"}})["strategy"]
    listed = strategies(chip, {"settings": {}})["rows"]
    assert listed[0]["strategy"] == best
    assert listed[0]["time"] == min(row["time"] for row in listed if row["fits"])
    kept = evaluated(chip, {"settings": {"strategy": "auto"}, "chosen": listed[1]["strategy"]})
    assert kept["now"]["strategy"] == listed[1]["strategy"]


@pytest.mark.slow
def test_where_nothing_fits_auto_is_what_lacks_least(cluster):
    found = strategies(cluster, {"settings": {"system.nodes": 1, "system.levels.memory.capacity": 1e9}})
    assert not any(row["fits"] for row in found["rows"])
    best = best_strategy(cluster, {"settings": {"system.nodes": 1, "system.levels.memory.capacity": 1e9, "strategy": "auto"}})["strategy"]
    assert {row["strategy"]: row["memory"] for row in found["rows"]}[best] == min(row["memory"] for row in found["rows"])


def test_numbers_as_text_read_back_as_themselves(chip):
    for number in parameters(chip):
        for value in (number.value, number.value * 1.2345678901234567):
            text = text_of(chip, number.path, value)
            quantity = varied(chip, number.path)
            if not quantity.whole:
                assert float(quantity.read(text)[0] if quantity.le != 1 or value <= 1 else value) == pytest.approx(value, rel=1e-9)


# ------------------------------------------------------------------------------------------ curves


def test_curves_go_through_the_design_and_agree_with_evaluations_one_by_one(chip):
    design = read_design(chip, {"system.budgets.power": 650.0})
    paths = ("system.budgets.power", "system.budgets.chip_area", "techlib.logic.N5.power")
    score, found = curves(design, dict.fromkeys(paths, 7))
    assert score.step_time[0] == pytest.approx(design.score().step_time[0], rel=1e-12)
    for path in paths:
        curve = found[path]
        assert curve["x"] == sorted(curve["x"])
        assert curve["y"][curve["x"].index(curve["at"])] == pytest.approx(score.step_time[0], rel=1e-12)
        alone = read_design(chip, {**design.settings, path: curve["x"][-1]}).score()
        assert curve["fits"][-1] == alone.feasible[0]
        if np.isfinite(alone.step_time[0]):
            assert curve["y"][-1] == pytest.approx(alone.step_time[0], rel=1e-9)
            assert curve["bound"][-1] == alone.bound_by[0]


def test_gains_are_those_of_ten_percent(chip):
    design = read_design(chip, {})
    score, found = curves(design, {}, owners=("architect",))
    power = found["system.budgets.power"]
    better = read_design(chip, {"system.budgets.power": 700 * 1.1}).score()
    assert power["way"] == 1
    assert power["gain"] == pytest.approx(1 - better.step_time[0] / score.step_time[0], rel=1e-9)
    assert "x" not in power


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_answered_in_plain_data(kind):
    scenario = from_dict(KINDS[kind])
    found = evaluated(scenario, {"settings": {}, "every": True})
    json.dumps(found, allow_nan=False)
    now = found["now"]
    assert sum(now["breakdown"].values()) == pytest.approx(now["step_time"])
    assert sum(now["bound"].values()) == pytest.approx(1)
    json.dumps(further(read_design(scenario, {})), allow_nan=False)
    again = evaluated(scenario, {"settings": {}, "known": found["key"]})
    assert "controls" not in again


def test_objectives_are_those_of_the_page(chip):
    for item in scenario_app(chip).start()["objectives"]:
        found = evaluated(chip, {"settings": {}, "shown": ["system.budgets.power"], "objective": item["name"]})
        assert found["curves"]["system.budgets.power"]["y"]
    with pytest.raises(CrossflowError, match="no curves of 'speed'"):
        evaluated(chip, {"settings": {}, "objective": "speed"})


# ------------------------------------------------------------------------------------------ cures, comparisons, texts


def test_cures_of_a_plan_that_does_not_fit_make_it_fit(cluster):
    found = further(read_design(cluster, {}))
    cures = [cure for cure in found["cures"] if cure["settings"]]
    assert not answer(read_design(cluster, {}), evaluate(cluster))["feasible"]
    assert cures
    for cure in cures:
        design = read_design(cluster, cure["settings"])
        assert design.note == ""
        assert design.score().feasible[0], cure["text"]


def test_a_waterfall_adds_up_and_takes_the_largest_gain_first(chip):
    second = {"system.budgets.power": 900.0, "system.technology.memory": "HBM4", "system.devices": 128, "strategy": "tp4-dp32"}
    one, two, steps = exchanges(chip, {}, second)
    times = [one.score().step_time[0], *(step.time for step in steps)]
    assert times[-1] == pytest.approx(two.score().step_time[0], rel=1e-12)
    assert {path for step in steps for path in step.paths} == set(second)
    assert ("strategy", "system.devices") in [tuple(sorted(step.paths)) for step in steps]
    falls = np.diff(times)
    assert falls[0] == min(falls)


def test_a_waterfall_back_has_the_opposite_sum(chip):
    second = {"system.budgets.power": 900.0, "system.budgets.area.compute": 0.5, "system.budgets.area.memory": 0.1}
    there, back = (compared(chip, {"first": a, "second": b}) for a, b in (({}, second), (second, {})))
    assert there["first"] == back["second"]
    assert there["second"] == back["first"]
    assert "division of the area" in [step["text"] for step in there["steps"]]


def test_equal_designs_differ_in_nothing(chip):
    assert compared(chip, {"first": {}, "second": {"strategy": "tp8-dp8"}})["steps"] == []


@pytest.mark.thorough
@pytest.mark.slow
def test_texts_repeat_the_design(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(CHIP))
    scenario = load(file)
    settings = {"system.budgets.power": 613.7, "system.technology.memory": "HBM4", "strategy": "auto", "workload.global_batch": 128}
    design = read_design(scenario, settings)
    found = texts(scenario, {"settings": settings})
    again = tmp_path / "again.yaml"
    again.write_text(found["yaml"])
    assert evaluate(load(again)).step_time[0] == pytest.approx(design.score().step_time[0], rel=1e-9)
    told = {}
    exec(found["python"].replace("print(", "told['found'] = ("), {"told": told})
    assert told["found"].step_time == pytest.approx(design.score().step_time[0], rel=1e-9)
    assert found["set"].startswith(f"crossflow predict {file} --set 'system.budgets.power=613.7 W'")
    assert written(design)["strategy"] == design.scenario.strategy_text


def test_pins_that_cannot_be_read_are_told_in_their_place(chip):
    fine, wrong = designs(chip, {"designs": [{"system.budgets.power": 600.0}, {"nothing": 1}]})
    assert fine["written"] == {"system.budgets.power": "600 W"}
    assert "nothing" in wrong["error"]


def test_timelines_are_rectangles_within_the_step(chip):
    found = timeline(chip, {"settings": {"strategy": "tp8-pp2-dp4"}})
    rows, families, fills, starts, widths, bases, heights = map(np.array, found["pieces"])
    assert len(found["rows"]) == 2
    assert set(rows) <= {0, 1}
    assert families.max() < len(found["families"])
    assert fills.max() < len(found["fills"])
    assert (starts >= 0).all()
    assert (starts + widths <= 1.001).all()
    assert (bases + heights <= 1.001).all()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("short_divisions")
def test_what_explanations_offer_can_be_applied(chip):
    found = explained(chip, {"settings": {}})
    base = evaluate(chip).step_time[0]
    for row in every(8, found["numbers"]):
        time = read_design(chip, row["settings"]).score().step_time[0]
        assert 1 - time / base == pytest.approx(row["gain"], rel=1e-3)
    for row in every(2, found["decisions"]):
        assert read_design(chip, row["settings"]).score().step_time[0] == pytest.approx(row["step_time_s"], rel=1e-9)
    assert max(Counter(row["path"] for row in found["decisions"]).values()) <= 2


def test_no_constant_and_nothing_twice_is_offered_as_a_lever(cluster):
    found, groups = explained(cluster, {"settings": {}}), {path: control.lever for path, control in by_path(cluster).items()}
    offered = [row["path"] for row in found["numbers"]]
    assert {groups[path] for path in [*offered, *(row["path"] for row in found["bottlenecks"])]} <= {"decision", "device"}
    assert not set(offered) & {path for paths in found["alike"].values() for path in paths}
    assert sum(lever == "constant" for lever in groups.values()) > 300


# ------------------------------------------------------------------------------------------ levers, repairs, trust


@pytest.mark.cases(1)
@pytest.mark.parametrize("data", [FITTING, LSTM, SERVING])
def test_levers_bring_what_they_say(data):
    scenario = from_dict(data)
    base = evaluate(scenario)
    found = [*neighbours(scenario, {"settings": {}}), *decisions(scenario, {"settings": {}})]
    assert found
    for row in every(4, found):
        design = read_design(scenario, row["settings"])
        score = design.score()
        assert design.note == ""
        assert score.step_time[0] / base.step_time[0] - 1 == pytest.approx(row["time"], abs=1e-9)
        each = score.samples_per_second[0] / score.devices[0] * base.devices[0] / base.samples_per_second[0]
        assert each - 1 == pytest.approx(row["rate"], abs=1e-9)
        assert score.feasible[0]
        assert row["time"] < 0 or row["rate"] > 0


def test_a_lever_of_devices_keeps_the_strategy_but_for_a_degree():
    more = next(row for row in decisions(from_dict(FITTING), {"settings": {}}) if row["settings"].get("system.nodes") == 4)
    assert more["settings"]["strategy"] == "tp8-dp4"


def test_of_a_design_that_does_not_fit_only_what_fits_is_offered(cluster):
    found = [*neighbours(cluster, {"settings": {}}), *decisions(cluster, {"settings": {}})]
    assert all(read_design(cluster, row["settings"]).score().feasible[0] for row in found)


REPAIRS = [
    ({"system.template": "v100-ib-cluster"}, "use fp16", {"workload.dtype": "fp16"}),
    ({"workload.dtype": "mxfp4"}, "use fp8", {"workload.dtype": "fp8"}),
    ({"system.nothing": 1}, "put system.nothing back", {"system.nothing": None}),
    ({"system.nodes": 1}, "use tp8, the nearest strategy that divides it", {"strategy": "tp8"}),
    ({"strategy": "tp8-dp4"}, "take 4 nodes, which tp8-dp4 needs", {"system.nodes": 4, "strategy": "tp8-dp4"}),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("settings", "sentence", "changes"), REPAIRS)
def test_what_is_no_design_is_repaired_by_a_button(cluster, settings, sentence, changes):
    found = {row["text"]: row["settings"] for row in repaired(cluster, {"settings": settings})}
    assert found[sentence] == changes
    for one in found.values():
        design = read_design(cluster, changed(settings, one))
        assert not design.note or "strategy" not in one


def test_a_design_needs_no_repair(chip):
    assert repaired(chip, {"settings": {"system.budgets.power": 600.0}}) == []
    with pytest.raises(CrossflowError, match="settings: expected values by path"):
        repaired(chip, {"settings": [1]})


def test_the_nearest_strategy_keeps_all_but_the_degrees_that_must_go():
    scenario = from_dict({**CLUSTER, "system": {"template": "h100-ib-cluster", "nodes": 16}, "strategy": "tp8-dp4-pp4-z1-sp"})
    fewer = from_dict({**CLUSTER, "system": {"template": "h100-ib-cluster", "nodes": 8}, "strategy": "tp8-dp8"})
    assert nearest(scenario, scenario.strategy) == "tp8-dp4-pp4-z1-sp"
    assert nearest(fewer, scenario.strategy) == "tp8-dp2-pp4-z1-sp"


@pytest.mark.cases(3)
@pytest.mark.parametrize("settings", [{}, {"system.clock": 2e9}, {"system.nodes": 64}, {"system.network.inter.bandwidth": 1e11}])
def test_trust_is_that_of_the_score(cluster, settings):
    design = read_design(cluster, settings)
    score = design.score()
    found = answer(design, score)["trust"]
    assert found["level"] == score.trusted[0]
    assert found["text"].startswith(f"{found['level']}: ")
    assert found["text"] == trust(design.whole()).text


def test_another_technology_of_a_datasheet_says_what_it_leaves_as_it_is(chip, cluster):
    logic = by_path(cluster)["system.technology.logic"]
    assert logic.half == of_a_datasheet("system.technology.logic", OF_DATASHEETS)
    assert by_path(chip)["system.technology.logic"].half is None


def test_colours_of_a_timeline_are_those_of_no_resource(chip):
    found = timeline(chip, {"settings": {"strategy": "tp8-pp2-dp4"}})
    colours = [colour for _, colour in found["families"] if colour]
    assert len(colours) == len(set(colours)) > 1
    assert not set(colours) & {look.colour for look in palette.RESOURCES.values()}
    computing = {family for family, fill in zip(found["pieces"][1], found["pieces"][2], strict=True) if fill == 0}
    assert computing == {i for i, (_, colour) in enumerate(found["families"]) if colour}


# ------------------------------------------------------------------------------------------ without a server


@pytest.mark.thorough
@pytest.mark.slow
def test_the_grid_of_an_exported_page_holds_the_scenario_itself():
    chip = from_dict({**CHIP, "system": {**CHIP["system"], "devices": 16}, "strategy": "tp8-dp2"})
    found = offline(chip)
    sizes, own = [len(axis["values"]) for axis in found["axes"]], by_path(chip)
    assert [axis["path"] for axis in found["axes"]][:2] == ["system.devices", "strategy"]
    assert len(found["points"]) == np.prod(sizes)
    places = [axis["own"] for axis in found["axes"]]
    for axis, place in zip(found["axes"], places, strict=True):
        assert axis["kind"] == "strategy" or axis["values"][place] == own[axis["path"]].value
    held = [found["points"][int(np.ravel_multi_index([places[0], rank, *places[2:]], sizes))] for rank in range(sizes[1])]
    (point,) = [one for one in held if one and one["strategy"] == chip.strategy_text]
    assert point["step_time"] == pytest.approx(evaluate(chip).step_time[0])
    json.dumps(found, allow_nan=False)
    assert found["timeline"] == timeline(chip, {"settings": {}})


@pytest.mark.slow
def test_an_exported_page_without_a_timeline_says_why():
    service = from_dict(SERVING)
    with pytest.raises(CrossflowError) as error:
        timeline(service, {"settings": {}})
    assert offline(service)["timeline"] == {"error": error.value.said}


def test_shipped_files_alone_are_named_by_templates(chip):
    assert set(by_path(chip)["system.template"].options) <= set(files.catalogue("templates"))
