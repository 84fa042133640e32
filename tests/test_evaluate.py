# ruff: noqa: E501  (exact sentences and tables of cases)
"""Evaluation: a batch is its points one by one, sums are whole, and what cannot be built is an answer."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.points import variant
from crossflow.answers.scenario import from_document
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document

MIXED = {
    "system.technology.logic": ["N12", "N7", "N12", "N3", "N7", "N1"],
    "system.technology.memory": ["HBM2", "HBM3", "HBM4", "HBM2e", "HBM2", "HBM4"],
    "system.technology.inter_link": ["NDR-x8", "GDR-x8", "NDR-x8", "XDR-x8", "NDR-x8", "XDR-x8"],
    "system.budgets.power": ["300 W", "300 W", "200 W", "450 W", "300 W", "250 W"],
    "system.budgets.area.compute": [0.35, 0.2, 0.35, 0.3, 0.25, 0.35],
    "system.components.memory.dynamic_energy_per_bit": [
        "4.2 pJ/bit",
        "3 pJ/bit",
        "4 pJ/bit",
        "5 pJ/bit",
        "4 pJ/bit",
        "3 pJ/bit",
    ],
    "strategy": ["d8", "RC-2-4", "d8", "CR-8", "RC-2-2-d2", "d4-p2"],
}
# Every single figure that a study may sweep alone, at two values: each must broadcast through all stages.
ALONE = {
    "system.budgets.power": ["300 W", "250 W"],
    "system.budgets.chip_area": ["850 mm2", "600 mm2"],
    "system.budgets.node_area": ["1260 mm2", "1400 mm2"],
    "system.budgets.area.compute": [0.35, 0.2],
    "system.budgets.area.on_chip.l1": [0.08, 0.04],
    "system.budgets.area.on_chip.registers": [0.1, 0.05],
    "system.budgets.power_shares.compute": [0.28, 0.2],
    "system.budgets.power_shares.on_chip.l2": [0.125, 0.03],
    "system.budgets.power_shares.on_chip.registers": [0.125, 0.05],
    "system.budgets.power_shares.memory": [0.325, 0.02],
    "system.budgets.power_shares.inter_link": [0.05, 0.01],
    "system.budgets.perimeter.memory": [0.5, 0.2],
    "system.memory_utilisation": [1.0, 0.8],
    "system.bundles": [96, 48],
    "system.rates.fp16": [1.0, 2.0],
    "system.vector_rates.fp16": [0.25, 0.5],
    "system.levels.l1.utilisation": [1.0, 0.7],
    "system.execution.kernel_launch": ["9 us", "1 us"],
    "system.execution.matrix_utilisation": [0.85, 0.7],
    "system.components.compute.nominal_area": ["0.38 mm2", "0.3 mm2"],
    "system.components.on_chip.l2.area_per_bit": ["1.2 um2/bit", "0.5 um2/bit"],
    "system.components.memory.access_latency": ["100 ns", "500 ns"],
    "system.components.inter_link.latency": ["3 us", "1 us"],
    "system.technology.logic": ["N12", "N5"],
    "system.technology.compute": ["matrix-unit-8x8", "volta-tensor-core"],
    "system.technology.memory": ["HBM2", "HBM4"],
    "system.technology.inter_link": ["NDR-x8", "EDR"],
    "system.technology.substrate": ["silicon-interposer", "wafer"],
    "system.levels.l2.stacked_area": ["0 mm2", "100 mm2"],
}


@pytest.fixture(scope="module")
def small(lstm):
    return lstm("d8", workload={"hidden": 1024, "vocabulary": 32000, "global_batch": 512, "sequence": 6})


@pytest.fixture(scope="module")
def mixed(small):
    return evaluate(small, MIXED)


def point(points, i):
    return {path: [values[i]] for path, values in points.items()}


def figures(score, i=0):
    return {name: values[i] for name, values in score.columns().items()}


def assert_same_figures(some, other):
    """Equal columns, floats but for the order of sums; a collective that only one batch knows takes no time there."""
    for name in {*some, *other}:
        one, two = some.get(name, 0.0), other.get(name, 0.0)
        assert one == (pytest.approx(two, rel=1e-12, abs=1e-15) if isinstance(two, float) else two), name


def set_in(scenario, settings):
    document = files.override(Document(file="set", data=scenario.document.data), settings)
    return from_document(document, scenario.base, scenario.name)


@pytest.mark.cases(1)
@pytest.mark.parametrize("i", range(6))
def test_a_batch_is_its_points_one_by_one(small, mixed, i):
    assert_same_figures(figures(mixed, i), figures(evaluate(small, point(MIXED, i))))


@pytest.mark.cases(1)
@pytest.mark.parametrize("i", range(6))
def test_a_point_is_the_scenario_with_the_same_settings(small, mixed, i):
    scenario = set_in(small, [f"{path}={values[i]}" for path, values in MIXED.items()])
    assert_same_figures(figures(mixed, i), figures(evaluate(scenario)))


@pytest.mark.cases(19)
@pytest.mark.slow
@pytest.mark.parametrize("path", ALONE)
def test_every_figure_can_vary_alone(small, path):
    both = evaluate(small, {path: ALONE[path]})
    for i, value in enumerate(ALONE[path]):
        assert_same_figures(figures(both, i), figures(evaluate(set_in(small, [f"{path}={value}"]))))


def test_points_beyond_one_chunk_keep_their_places(small):
    power = np.linspace(150.0, 450.0, 1200)
    score = evaluate(small, {"system.budgets.power": power})
    for i in (0, 511, 512, 1023, 1199):
        assert score.step_time[i] == pytest.approx(evaluate(small, {"system.budgets.power": power[[i]]}).step_time[0], rel=1e-12)
    assert len(score) == 1200


def test_floats_are_si_and_equal_to_text_with_units(small):
    text = evaluate(small, {"system.budgets.chip_area": ["700 mm2"]})
    assert evaluate(small, {"system.budgets.chip_area": [700e-6]}).step_time[0] == pytest.approx(text.step_time[0], rel=1e-12)


@pytest.mark.parametrize("values", [np.array([4, 8]), [4, 8], [4.0, 8.0], (np.int64(4), np.int64(8))], ids=repr)
def test_whole_numbers_may_come_from_numpy(small, values):
    assert evaluate(small, {"system.bundles": values}).architecture["units"].tolist() == [4.0, 8.0]


def test_breakdown_adds_up_to_the_step(mixed):
    np.testing.assert_allclose(sum(mixed.breakdown.values()), mixed.step_time, rtol=1e-12)


def test_bound_shares_add_up_to_one(mixed):
    np.testing.assert_allclose(sum(mixed.bound.values()), 1.0, rtol=1e-12)
    assert all((share >= 0).all() for share in mixed.bound.values())


def test_exposed_communication_is_part_of_all_and_of_the_breakdown(mixed):
    exposed = sum(mixed.exposed_communication.values())
    np.testing.assert_allclose(exposed, mixed.breakdown["exposed_communication"], rtol=1e-12, atol=1e-15)
    assert (exposed <= sum(mixed.communication.values()) * (1 + 1e-12)).all()


def test_one_device_does_not_communicate(small):
    score = evaluate(small, {"strategy": ["d1"]})
    assert not any(time.any() for time in score.communication.values())
    assert score.breakdown["exposed_communication"] == score.breakdown["bubble"] == 0


def test_throughput_mfu_and_power_follow_from_time(small, mixed):
    np.testing.assert_allclose(mixed.samples_per_second * mixed.step_time, 512, rtol=1e-12)
    np.testing.assert_allclose(mixed.tokens_per_second, 6 * mixed.samples_per_second, rtol=1e-12)
    np.testing.assert_allclose(mixed.power * mixed.step_time, mixed.energy, rtol=1e-12)
    peak = 8 * mixed.architecture["throughput.fp16"]
    np.testing.assert_allclose(mixed.mfu, mixed.flops / (mixed.step_time * peak), rtol=1e-12)


def test_overfull_memory_is_infeasible_with_its_numbers_and_a_time(lstm):
    score = evaluate(lstm("d512"))
    assert not score.feasible[0]
    assert np.isfinite(score.step_time[0])
    assert score.why(0) == "needs 114.9 GiB of memory per device, 82.91 GiB more than its 32 GiB"
    whole = np.full(1, 180 * 2.0**30)
    barely = replace(score, memory={"weights": whole + 623.7 * 1024}, memory_capacity=whole)
    assert barely.why(0) == "needs 180.0006 GiB of memory per device, 623.7 KiB more than its 180 GiB"


UNBUILDABLE = [
    ("system.budgets.power", "0 W", "not one compute unit fits its area and power"),
    ("system.budgets.power", "1 mW", "not one compute unit fits its area and power"),
    ("system.budgets.chip_area", "0.1 mm2", "not one compute unit fits its area and power"),
    ("system.budgets.chip_area", "1300 mm2", "the chip leaves no package area for memory devices: raise budgets.node_area"),
    ("system.budgets.node_area", "5000 mm2", "the accelerators of a package exceed the area of its substrate: lower budgets.node_area"),
    ("system.budgets.area.compute", 0.9, "the area shares add up to more than 1"),
    ("system.budgets.power_shares.compute", 0.9, "the power shares add up to more than 1"),
    ("system.budgets.area.memory", 0.0, "not one memory device fits its package area, controller area, edge and power"),
    (
        "system.budgets.power_shares.memory",
        0.0,
        "not one memory device fits its package area, controller area, edge and power",
    ),
    ("system.budgets.area.on_chip.l2", 0.0, "l2 has no bandwidth: area or power are missing"),
    ("system.budgets.power_shares.on_chip.l1", 0.0, "l1 has no bandwidth: area or power are missing"),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("path", "value", "sentence"), UNBUILDABLE)
def test_a_design_that_cannot_be_built_is_an_answer(small, path, value, sentence):
    score = evaluate(small, {path: [value]})
    assert score.feasible.tolist() == [False]
    assert score.why(0) == f"cannot be built: {sentence}"


@pytest.mark.cases(2)
@pytest.mark.parametrize(("path", "value", "sentence"), UNBUILDABLE)
def test_a_bad_neighbour_changes_no_point(small, path, value, sentence):
    good = ALONE.get(path, [0.04])[0]
    both = evaluate(small, {path: [value, good]})
    assert_same_figures(figures(both, 1), figures(evaluate(small, {path: [good]})))
    assert both.feasible.tolist() == [False, True]


@pytest.mark.parametrize("share", ["area", "power_shares", "perimeter"])
def test_no_link_where_the_strategy_needs_one_is_infeasible(small, share):
    score = evaluate(small, {f"system.budgets.{share}.inter_link": [0.0, 0.05]})
    assert score.feasible.tolist() == [False, True]
    assert score.why(0) == "no network or memory bandwidth where the strategy needs it"


def test_no_link_is_no_obstacle_for_one_device(small):
    score = evaluate(small, {"system.budgets.power_shares.inter_link": [0.0, 0.05], "strategy": ["d1", "d1"]})
    assert score.feasible.all()
    assert score.step_time[0] == pytest.approx(score.step_time[1], rel=1e-12)


def test_results_of_a_design_without_a_link_say_so_in_every_figure(gemm):
    score = evaluate(gemm("p4", "d2", task="training"))
    assert np.isinf(score.step_time[0])
    assert score.samples_per_second[0] == score.mfu[0] == 0
    assert np.isinf(score.breakdown["exposed_communication"][0])
    assert not any(np.isnan(value).any() for value in score.breakdown.values())


def test_a_strategy_that_does_not_divide_names_its_numbers(small, exactly):
    with pytest.raises(CrossflowError, match=exactly("global_batch = 512 is not divisible by dp = 3 of strategy d3")):
        evaluate(small, {"strategy": ["d8", "d3"]}, errors="raise")


def test_reasons_in_a_table_are_those_asked_for_one_by_one():
    """Of points that cannot be built, of those that lack memory by different amounts, and of those that run."""
    job = {"system": {"template": "reference", "devices": 8}, "workload": "llama3-8b", "strategy": "tp2-dp4"}
    sizes = np.array([800.0, 30.0, 60.0, 30.0, 800.0, 1e5]) * 1e-6
    score = evaluate(crossflow.from_dict(job), {"system.budgets.chip_area": sizes})
    told = score.columns()["reason"]
    assert told == [score.why(i) for i in range(6)]
    assert len({told[0], told[1], told[5]}) == 3


def test_a_point_that_makes_no_scenario_is_a_row_with_the_reason(small):
    """The other points are those of a batch without it."""
    power = ["300 W", "300 W", "200 W"]
    score = evaluate(small, {"strategy": ["d8", "d3", "CR-8"], "system.budgets.power": power})
    alone = evaluate(small, {"strategy": ["d8", "CR-8"], "system.budgets.power": power[1:]})
    assert score.feasible.tolist() == [True, False, True]
    assert score.why(1) == "global_batch = 512 is not divisible by dp = 3 of strategy d3"
    assert score.bound_by[1] == score.bound_at(1) == "-"
    assert score.step_time[1] == np.inf
    assert score.step_time[[0, 2]].tolist() == alone.step_time.tolist()
    assert not evaluate(small, {"strategy": ["d3"]}).feasible.any()


def test_a_table_begins_with_the_values_of_its_points(small):
    """Quantities in SI units, names and strategies as they are given."""
    score = evaluate(small, {"system.budgets.power": ["0.3 kW", "250 W"], "strategy": ["d8", {"dp": 8}]})
    table = score.table()
    assert list(table)[:3] == ["system.budgets.power", "strategy", "step_time_s"]
    assert table["system.budgets.power"].tolist() == [300.0, 250.0]
    assert table["strategy"] == ["d8", "{'dp': 8}"]
    assert "strategy" not in score.columns()


def test_own_figures_are_columns(small):
    points = {"system.budgets.power": ["300 W", "250 W"]}
    score = evaluate(small, points, figures={"edp": lambda c: c["energy_j"] * c["step_time_s"], "twice": lambda c: 2 * c["edp"]})
    assert score.columns()["edp"].tolist() == (score.energy * score.step_time).tolist()
    assert score.columns()["twice"].tolist() == (2 * score.energy * score.step_time).tolist()


@pytest.mark.parametrize(
    ("name", "figure", "sentence"),
    [
        ("mfu", lambda c: c["mfu"], "mfu is a column of every score; give the figure another name"),
        ("mine", lambda c: c["enery_j"], "mine: no column 'enery_j'; did you mean 'energy_j'?"),
        ("mine", lambda c: np.zeros(5), "mine: its function gives an array of shape (5,); expected (1,), a value a point"),
    ],
)
def test_own_figures_that_are_wrong_are_told(small, exactly, name, figure, sentence):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        evaluate(small, figures={name: figure})


WRONG = [
    (
        "system.budgets.power",
        ["1 GB"],
        "system.budgets.power: expected a quantity in W, got '1 GB': 'GB' is not a unit of W",
    ),
    (
        "system.budgets.power",
        [300],
        "system.budgets.power: expected a quantity in W, got the bare number 300; write the unit",
    ),
    ("system.budgets.power", ["-5 W"], "system.budgets.power: expected at least 0 W, got '-5 W'"),
    ("system.budgets.power", [-5.0], "system.budgets.power: expected at least 0 W, got -5"),
    ("system.budgets.power", np.array([300.0, -5.0]), "system.budgets.power: expected at least 0 W, got -5"),
    (
        "system.budgets.power",
        np.array([300.0, np.nan, 200.0]),
        "system.budgets.power: expected a finite number, got nan",
    ),
    ("system.budgets.area.compute", [1.5], "system.budgets.area.compute: expected at most 1, got 1.5"),
    (
        "system.technology.memroy",
        ["HBM2"],
        "system.technology.memroy: no such technology role; did you mean 'memory'?; known: logic, compute, memory, second_memory, intra_link, inter_link, intra_switch, inter_switch, intra_uplink, inter_uplink, die_link, stacked_logic, bond, substrate, delivery",
    ),
]


@pytest.mark.parametrize(("path", "values", "sentence"), WRONG)
def test_wrong_points_are_told_exactly(small, exactly, path, values, sentence):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        evaluate(small, {path: values})


def test_unknown_paths_are_told_with_what_was_meant(small):
    with pytest.raises(CrossflowError, match=r"system\.budgets\.powr: unknown key 'powr'; did you mean 'power'\?$"):
        evaluate(small, {"system.budgets.powr": ["1 W"]})


def test_unknown_technology_is_told_with_what_was_meant(small):
    with pytest.raises(
        CrossflowError,
        match=r"^technology library 'deepflow-2024' has no memory 'HBM5'; did you mean 'HBM4'\?; known: ",
    ):
        evaluate(small, {"system.technology.memory": ["HBM2", "HBM5"]})


def test_paths_of_unequal_length_are_a_wrong_call(small, exactly):
    with pytest.raises(ValueError, match=exactly("all paths must have as many values: {'strategy': 2, 'system.budgets.power': 1}")):
        evaluate(small, {"strategy": ["d1", "d2"], "system.budgets.power": ["1 W"]})


@pytest.mark.parametrize(
    ("values", "got"),
    [(np.array([[1.0], [2.0]]), "an array of shape (2, 1)"), (np.array(3.0), "an array of shape ()"), (5.0, "5.0"), ("2 W", "'2 W'")],
)
def test_values_of_a_path_are_one_for_each_point(small, exactly, values, got):
    with pytest.raises(CrossflowError, match=exactly(f"system.budgets.power: give a list with a value for each point, got {got}")):
        evaluate(small, {"system.budgets.power": values})


def test_evaluation_changes_none_of_its_inputs(small):
    before, document = repr(small.system), repr(small.document)
    points = {"system.budgets.power": np.array([300.0, 200.0]), "strategy": ["d8", "RC-2-4"]}
    copies = {path: list(values) for path, values in points.items()}
    first, second = (evaluate(small, points).step_time.tolist() for _ in range(2))
    assert first == second
    assert {path: list(values) for path, values in points.items()} == copies
    assert (repr(small.system), repr(small.document)) == (before, document)


def test_several_kernels_at_once_share_the_device(small):
    """They hide one another's launches and waits, never more: work at peak rates, power within the budget."""
    one, two, many = (evaluate(set_in(small, [f"kernels_per_device={k}", "strategy=d8"])) for k in (1, 2, 64))
    busy = one.step_time[0] - one.breakdown["other"][0] - one.breakdown["exposed_communication"][0] - one.breakdown["bubble"][0]
    for score in (two, many):
        assert busy * (1 - 1e-9) <= score.step_time[0] <= one.step_time[0] * (1 + 1e-9)
        assert sum(value[0] for value in score.breakdown.values()) == pytest.approx(score.step_time[0], rel=1e-12)
        assert score.mfu[0] <= 1
        assert score.why(0) == one.why(0)


def test_score_tabulates_every_point(mixed):
    table = mixed.to_dict()
    assert {len(column) for column in table.values()} == {6}
    assert table["bound_by"] == mixed.bound_by == [mixed.bound_at(i) for i in range(len(mixed))]
    assert {"step_time_s", "feasible", "reason", "bound_by"} <= set(table)


def test_prediction_has_the_keys_of_the_contract(small):
    result = crossflow.predict(small).to_dict()
    wanted = (
        "step_time_s feasible reason breakdown_s communication_s memory throughput mfu energy_j power_w bound_by architecture provenance"
    )
    assert set(wanted.split()) <= set(result)
    assert list(result["breakdown_s"]) == [
        "compute",
        "memory_bound_compute",
        "exposed_communication",
        "bubble",
        "other",
    ]
    assert sum(result["breakdown_s"].values()) == pytest.approx(result["step_time_s"], rel=1e-12)
    assert result["memory"]["fits"] is (result["memory"]["total_bytes"] <= result["memory"]["capacity_bytes"])


def test_every_pair_of_names_can_be_combined(small):
    grid = list(itertools.product(["HBM2", "HBM4", "DDR5"], ["NDR", "NVLink4", "PCIe5"]))
    score = evaluate(small, {"system.technology.memory": [a for a, _ in grid], "system.technology.inter_link": [b for _, b in grid]})
    for i in (0, 4, 8):
        alone = evaluate(small, {"system.technology.memory": [grid[i][0]], "system.technology.inter_link": [grid[i][1]]})
        assert_same_figures(figures(score, i), figures(alone))


# ------------------------------------------------------------------------------------------ library and lower bounds


@pytest.mark.parametrize(
    "change", ["techlib.memory.HBM2.nominal_frequency", "techlib.link.NDR-x8.nominal_frequency", "techlib.logic.N7.area"]
)
def test_numbers_of_the_library_vary_between_points_as_between_scenarios(lstm, change):
    scenario = lstm("d8", technology={"logic": "N7"})
    _, *path = change.split(".")
    value = float(
        np.ravel(
            functools.reduce(lambda held, part: held[part] if isinstance(held, dict) else getattr(held, part), path, scenario.library)
        )[0]
    )
    score = evaluate(scenario, {change: [value, 0.8 * value]})
    section = functools.reduce(
        lambda held, part: {part: held},
        reversed(path[:-1]),
        {path[-1]: f"{0.8 * value!r} {scenario.library.quantity(path).unit}".removesuffix(" 1")},
    )
    other = crossflow.from_dict({**scenario.document.data, "techlib": section})
    assert score.step_time[0] == pytest.approx(evaluate(scenario).step_time[0], rel=1e-12)
    assert score.step_time[1] == pytest.approx(evaluate(other).step_time[0], rel=1e-12)
    assert score.step_time[1] != score.step_time[0]


@pytest.mark.parametrize(("path", "sentence"), [
    ("techlib.memory.HBM9.device_capacity", "technology library 'deepflow-2024' has no memory 'HBM9'; did you mean 'HBM"),
    ("techlib.memory.HBM2.device_capacty", "no quantity of the technology library stands here"),
])  # fmt: skip
def test_numbers_that_the_library_does_not_have_are_told(lstm, path, sentence):
    with pytest.raises(CrossflowError, match=sentence):
        evaluate(lstm("d8"), {path: ["1 GiB"]})


@pytest.mark.parametrize("strategy", ["d8", "RC-2-2-d2", "CR-4-d2", "d4-p2"])
def test_lower_bounds_are_below_and_take_the_same_shape(lstm, strategy):
    points = {"system.budgets.power": np.linspace(200.0, 400.0, 9), "system.budgets.area.compute": np.linspace(0.1, 0.4, 9)}
    full, least = (evaluate(lstm(strategy), points, least=which) for which in (False, True))
    assert (least.step_time <= full.step_time * (1 + 1e-9)).all()
    assert (least.energy <= full.energy * (1 + 1e-9)).all()
    assert (least.memory_needed == full.memory_needed).all()
    assert (least.step_time > 0.02 * full.step_time).all()


def test_intensity_is_operations_over_traffic(gemm):
    score = evaluate(gemm(m=4096, n=4096, k=4096))
    least = 2 * (4096**2 * 3)
    assert score.memory_traffic[0] >= least
    assert score.intensity[0] == pytest.approx(2 * 4096.0**3 / score.memory_traffic[0])


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("template", ["h100-sxm", "mi300x"])
def test_every_number_of_a_datasheet_can_vary_alone(template):
    """Widths of arrays must come from what varies, whichever number that is."""
    scenario = crossflow.from_dict({"system": template, "workload": {"model": "gemm", "m": 512, "n": 768, "k": 4096, "task": "training"}})
    own = evaluate(scenario).step_time[0]
    for number in parameters(scenario):
        score = evaluate(scenario, {number.path: np.full(3, number.value)})
        assert score.step_time == pytest.approx(np.full(3, own), rel=1e-12), number.path


def test_strategies_leave_open_what_the_workload_of_their_point_decides():
    """Without a micro-batch a service takes all requests at once, however many a point has."""
    made = crossflow.from_dict(
        {"system": "dgx-h100", "workload": {"model": "llama2-7b", "task": "prefill", "global_batch": 8}, "strategy": "tp8"}
    )
    batch = evaluate(made, {"workload.global_batch": [4, 32], "strategy": ["tp8", "tp8"]})
    alone = [evaluate(variant(made, {"workload.global_batch": size})).step_time[0] for size in (4, 32)]
    assert batch.step_time == pytest.approx(alone, rel=1e-12)


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("plan", ["tp2-dp4", "tp2-pp2-dp2-z1-mb2", "tp2-pp4-v2"])
def test_global_batches_vary_in_one_batch(plan):
    """As one by one, quantities and runs included; what does not divide and what is no number are refused as ever."""
    system = {"template": "dgx-h100", "nodes": 1}
    workload = {"model": "llama2-7b", "sequence": 1024, "global_batch": 16}
    scenario = crossflow.from_dict({"system": system, "workload": workload, "strategy": plan, "run": {"samples": 1e6}})
    batches = [8, 16, 24, 64, 512]
    alone = [crossflow.evaluate(scenario, {"workload.global_batch": [batch], "system.clock": ["1.2 GHz"]}).to_dict() for batch in batches]
    together = crossflow.evaluate(scenario, {"workload.global_batch": batches, "system.clock": ["1.2 GHz"] * len(batches)}).to_dict()
    fresh = [
        crossflow.evaluate(crossflow.from_dict({**scenario.to_dict(), "workload": {**workload, "global_batch": batch}})).to_dict()
        for batch in batches
    ]
    plain = crossflow.evaluate(scenario, {"workload.global_batch": np.array(batches)}).to_dict()
    for name, values in plain.items():
        for i in range(len(batches)):
            assert_alike(values[i], fresh[i][name][0], name)
            assert_alike(together[name][i], alone[i][name][0], name)
    with pytest.raises(crossflow.StrategyError, match="divisible"):
        crossflow.evaluate(scenario, {"workload.global_batch": [16, 17]}, errors="raise")
    with pytest.raises(crossflow.CrossflowError, match="global_batch"):
        crossflow.evaluate(scenario, {"workload.global_batch": [16, 0]})


def assert_alike(one, other, name):
    if isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-12, nan_ok=True), name
    else:
        assert one == other, name


def test_a_score_is_whole_whatever_became_of_one_before():
    scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    first = evaluate(scenario)
    expected = {**first.breakdown}
    first.breakdown.clear()
    again = evaluate(scenario)
    assert again.breakdown == expected
    assert again.error_band.keys() == first.error_band.keys()
