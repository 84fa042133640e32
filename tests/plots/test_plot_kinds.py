"""What each kind of plot shows, without drawing: values, their order, what is left out."""

from dataclasses import replace

import numpy as np
import pytest

from crossflow.answers.explanation.uncertainty import Interval
from crossflow.answers.study.plots.axes import numbers, shorten, title_of, unit_of
from crossflow.answers.study.plots.boxes import box_data
from crossflow.answers.study.plots.breakdown import breakdown_data
from crossflow.answers.study.plots.columns import distinct, places_of, rows_with
from crossflow.answers.study.plots.convergence import convergence_data
from crossflow.answers.study.plots.heatmap import heatmap_data
from crossflow.answers.study.plots.lines import line_data
from crossflow.answers.study.plots.losses import MEMBERS, LossData, LossLine, LossPanel, draw_losses
from crossflow.answers.study.plots.parallel import parallel_data
from crossflow.answers.study.plots.pareto import MOST, OTHERS, pareto_data
from crossflow.answers.study.plots.spec import (
    BoxPlot,
    BreakdownPlot,
    ConvergencePlot,
    HeatmapPlot,
    ImportancePlot,
    IntervalPlot,
    LinePlot,
    ParallelPlot,
    ParetoPlot,
)
from crossflow.answers.study.plots.uncertainty import IntervalData, IntervalSeries, draw_intervals, importance_data, interval_data
from crossflow.answers.study.plots.view import Convergence, Drawn, View
from crossflow.base.drawing.canvas import Scale, Ticks

LOGIC, DEVICES, STRATEGY = "system.technology.logic", "system.devices", "strategy"


def objects(values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def view(columns, values=None, **rest):
    held = {
        name: np.array(column) if all(isinstance(value, float | bool) for value in column) else objects(column)
        for name, column in columns.items()
    }
    held.setdefault("feasible", np.ones(len(next(iter(held.values()))), dtype=bool))
    return View(columns=held, values=values or {}, **rest)


# ------------------------------------------------------------------------------------------ losses


def losses_drawn(times, others=(), far=False):
    """Axis of a picture of designs, whose losses are given, and the heights of what is drawn in it."""
    named = [LossLine(f"design {i}", list(line)) for i, line in enumerate(times)]
    panel = LossPanel(MEMBERS, [f"case {i}" for i in range(len(times[0]))], named, [LossLine("draw", list(line)) for line in others])
    (axis,) = draw_losses(LossData("", "Loss", [panel], far)).axes
    return axis, [float(y) for line in axis.lines for y in line.get_ydata() if np.isfinite(y)]


@pytest.mark.cases(1)
@pytest.mark.parametrize("most", [1.02, 1.4, 1.9])
def test_losses_are_drawn_within_their_axis_whatever_their_size(most):
    """The least is no loss, which stands just above the lower end; the upper end is just above the mark of what cannot run."""
    axis, heights = losses_drawn([[1.0, most], [most, np.inf]], others=[[1.0, 1.0 + (most - 1.0) / 2]])
    bottom, top = axis.get_ylim()
    assert sorted(set(heights))[:2] == pytest.approx([0.0, 50 * (most - 1.0)])
    mark = max(heights)
    assert mark > max(100 * (most - 1.0), 1.0)
    assert 0.0 < (min(heights) - bottom) / (top - bottom) < 0.1
    assert 0.0 < (top - mark) / (top - bottom) < 0.1


@pytest.mark.parametrize("most", [2.5, 40.0])
def test_ratios_are_drawn_within_their_axis(most):
    """On a logarithmic one, from the own best that stands at 1."""
    axis, heights = losses_drawn([[1.0, most], [most, np.inf]], far=True)
    bottom, top = axis.get_ylim()
    assert min(heights) == 1.0
    assert most < max(heights)
    assert axis.get_yscale() == "log"
    assert 0.9 < bottom < 1.0 < max(heights) < top < 1.1 * max(heights)


# ------------------------------------------------------------------------------------------ columns and axes
# ------------------------------------------------------------------------------------------ columns and axes


def test_values_of_any_kind_find_their_rows():
    column = objects([["dp", "kp1"], {"dp": 8}, "N7", 8, None])
    for i, value in enumerate(column[:4]):
        assert np.flatnonzero(rows_with({"a": column}, {"a": value})).tolist() == [i]
    assert places_of({"a": column}, "a", [8, "N7"]).tolist() == [-1, -1, 1, 0, -1]
    assert rows_with({"a": np.array([0.5, np.nan])}, {"a": "N7"}).tolist() == [False, False]


def test_names_sort_by_the_numbers_in_them():
    assert distinct(objects(["N10", "N3", None, "N10", "N7"])) == ["N3", "N7", "N10"]
    assert distinct(objects([64, 8, 512])) == [8, 64, 512]
    assert distinct(np.array([0.5, np.nan, 0.25])) == [0.25, 0.5]


def test_quantities_are_numbers_only_in_one_unit():
    assert numbers(["85 %", "50 %"]) == ([85.0, 50.0], "%")
    assert numbers(["1 GB", "500 MB"]) is None
    assert numbers([True, False]) is None
    assert numbers(["2x", "4x"]) is None  # no such unit


@pytest.mark.parametrize(
    ("name", "title", "unit"),
    [
        ("cost_usd", "Cost", "USD"),
        ("breakdown_s.exposed_communication", "Step time: exposed communication", "s"),
        ("architecture.l1.capacity", "L1 capacity", "B"),
        ("architecture.cost.chip", "Cost of a device: chip", "USD"),
        ("system.budgets.power_shares.compute", "Compute", "1"),
        ("system.components.memory.access_latency", "Access latency", "s"),
        ("samples_per_second", "Samples per second", "1/s"),
        ("ttft_s", "Time to first token", "s"),
        ("output_throughput_tokens_per_s", "Output tokens per second", "1/s"),
        ("usd_per_million_tokens", "Rent of a million tokens", "USD"),
        ("run.cost_usd", "Whole run: cost", "USD"),
        ("run.facility_energy_j", "Whole run: facility energy", "J"),
        ("search", "Search", "1"),
    ],
)
def test_columns_and_paths_have_titles_and_units(name, title, unit):
    assert (title_of(name), unit_of(name, {"system.components.memory.access_latency": "s"})) == (title, unit)


def test_paths_are_short_but_never_the_same():
    paths = ["a.b.c", "a.d.c", "c", "a.b.e", "x.a.b.c"]
    assert len(set(shorten(paths))) == len(paths)
    assert shorten(["a.b.c"]) == ["c"]


# ------------------------------------------------------------------------------------------ boxes


def test_boxes_are_quartiles_in_the_order_of_numbers():
    rng = np.random.default_rng(1)
    devices = rng.choice([65536, 8, 512], 200)
    times = rng.exponential(size=200)
    data = box_data(
        view({DEVICES: devices.tolist(), "step_time_s": times.tolist()}), BoxPlot(name="b", kind="boxes", x=DEVICES, y="step_time_s")
    )
    assert [box.name for box in data.boxes] == ["8", "512", "65,536"]
    for box, count in zip(data.boxes, (8, 512, 65536), strict=True):
        mine = times[devices == count]
        assert box[1:] == pytest.approx((mine.min(), *np.quantile(mine, [0.25, 0.5, 0.75]), mine.max(), mine.size))


def test_boxes_hold_only_the_rows_asked_for_and_finite_values():
    columns = {LOGIC: ["N7", "N5"] * 3, "energy_j": [1.0, 2.0, np.inf, 4.0, 0.0, np.nan], "feasible": [True] * 4 + [True, False]}
    plot = {"name": "b", "kind": "boxes", "x": LOGIC, "y": "energy_j"}
    swept = {LOGIC: ["N7", "N5"]}
    points = [(box.name, box.low, box.high, box.points) for box in box_data(view(columns, swept), BoxPlot(**plot)).boxes]
    assert points == [("N7", 0.0, 1.0, 2), ("N5", 2.0, 4.0, 2)]
    log = box_data(view(columns, swept), BoxPlot(**plot, scale="log", where={"feasible": True, LOGIC: "N7"}))
    assert (log.y.log, [(box.name, box.points) for box in log.boxes]) == (True, [("N7", 1)])


def test_many_different_numbers_are_boxed_in_ranges():
    x = np.linspace(0.0, 1.0, 201)
    data = box_data(view({"mfu": x.tolist(), "step_time_s": x.tolist()}), BoxPlot(name="b", kind="boxes", x="mfu", y="step_time_s"))
    assert len(data.boxes) == 20
    assert sum(box.points for box in data.boxes) == 201
    assert (data.boxes[0].name, data.x_label) == ("0–5", "Model flop utilisation [%]")
    assert all(a.high <= b.low for a, b in zip(data.boxes, data.boxes[1:], strict=False))


# ------------------------------------------------------------------------------------------ convergence


def searched(*found, **objectives):
    return View(columns={"feasible": np.ones(1, bool)}, values={}, searches=("a", "b"), objectives=objectives, convergence=found)


def test_convergence_steps_go_on_to_the_last_evaluation():
    one = Convergence(search="a", point="N7", evaluations=(0, 5, 9), best=(np.inf, 0.25, 0.1254), total=100)
    other = Convergence(search="b", point="N7", evaluations=(), best=(), total=100)
    third = Convergence(search="a", point="N5", evaluations=(1,), best=(0.5,), total=1)
    data = convergence_data(searched(one, other, third, step_time_s=False), ConvergencePlot(name="c", kind="convergence"))
    assert [(panel.name, len(panel.steps)) for panel in data.panels] == [("N7", 2), ("N5", 1)]
    assert data.panels[0].steps[0] == ("a", [5, 9, 100], [0.25, 0.1254, 0.1254], "125.4 ms")
    assert data.panels[0].steps[1] == ("b", [], [], "nothing found")
    assert (data.x.log, data.y.label) == (True, "Step time [ms]")


def test_a_maximised_objective_over_tenfold_has_a_logarithmic_axis():
    one = Convergence(search="a", point="", evaluations=(1, 2), best=(0.01, 0.4), total=2)
    data = convergence_data(searched(one, mfu=True), ConvergencePlot(name="c", kind="convergence"))
    assert (data.y.log, data.panels[0].steps[0].final) == (True, "0.4")


# ------------------------------------------------------------------------------------------ pareto


def naive_front(x, y):
    """Points that no other one matches in both and beats in one, first of equals."""
    points = list(zip(x, y, strict=True))
    beaten = [any(a <= p and b <= q and (a, b) != (p, q) for a, b in points) for p, q in points]
    return sorted({point for point, lost in zip(points, beaten, strict=True) if not lost})


@pytest.mark.parametrize(("more_x", "more_y"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_front_is_what_no_feasible_design_beats(more_x, more_y):
    rng = np.random.default_rng(2)
    x, y, feasible = rng.integers(1, 30, 300) / 4, rng.integers(1, 30, 300) / 4, rng.random(300) < 0.7
    seen = view(
        {"step_time_s": x.tolist(), "cost_usd": y.tolist(), "feasible": feasible.tolist()},
        objectives={"step_time_s": more_x, "cost_usd": more_y},
    )
    data = pareto_data(seen, ParetoPlot(name="p", kind="pareto", x="step_time_s", y="cost_usd"))
    signs = (-1 if more_x else 1, -1 if more_y else 1)
    expected = naive_front(signs[0] * x[feasible], signs[1] * y[feasible])
    assert sorted((signs[0] * a, signs[1] * b) for a, b in data.front) == expected
    assert data.front == sorted(data.front)
    assert (len(data.points), len(data.infeasible), data.after) == (feasible.sum(), (~feasible).sum(), not more_x)


def test_columns_that_are_no_objectives_are_made_small():
    seen = view({"step_time_s": [1.0, 2.0, 3.0], "cost_usd": [3.0, 1.0, 2.0]})
    assert pareto_data(seen, ParetoPlot(name="p", kind="pareto", x="step_time_s", y="cost_usd")).front == [(1.0, 3.0), (2.0, 1.0)]


def test_each_name_has_a_front_of_its_own_among_the_rows_asked_for():
    seen = view(
        {
            "step_time_s": [1.0, 2.0, 1.5, 2.5, 0.5],
            "cost_usd": [4.0, 1.0, 5.0, 2.0, 0.5],
            STRATEGY: ["d8", "d8", "d4", "d4", "d8"],
            DEVICES: [8, 8, 8, 8, 4],
        }
    )
    plot = ParetoPlot(name="p", kind="pareto", x="step_time_s", y="cost_usd", colour=STRATEGY, each=True, where={DEVICES: 8})
    data = pareto_data(seen, plot)
    assert data.colours.names == ["d4", "d8"]
    assert data.fronts == [[(1.5, 5.0), (2.5, 2.0)], [(1.0, 4.0), (2.0, 1.0)]]
    assert data.front == [(1.0, 4.0), (2.0, 1.0)]
    assert pareto_data(seen, plot.model_copy(update={"each": False})).fronts == []


@pytest.mark.thorough
@pytest.mark.slow
def test_many_designs_are_thinned_but_the_front_is_kept():
    rng = np.random.default_rng(3)
    x = rng.uniform(1.0, 2.0, 12_000)
    seen = view({"step_time_s": x.tolist(), "cost_usd": (2.0 / x).tolist(), "feasible": [True, True, False] * 4000})
    plot = ParetoPlot(name="p", kind="pareto", x="step_time_s", y="cost_usd")
    noisy = view({**seen.columns, "cost_usd": (2.0 / x + rng.uniform(0.0, 1.0, x.size)).tolist()})
    data = pareto_data(noisy, plot)
    assert (len(data.points), len(data.infeasible), data.beyond) == (MOST, MOST, 0)
    assert set(data.front) <= set(data.points)
    assert data == pareto_data(noisy, plot)
    assert len(pareto_data(seen, plot).points) >= 8000  # all of them are on the front


def test_infeasible_designs_do_not_stretch_the_axes():
    seen = view({"step_time_s": [1.0, 2.0, 1.5, 900.0], "cost_usd": [2.0, 1.0, 1.5, 1.0], "feasible": [True, True, False, False]})
    data = pareto_data(seen, ParetoPlot(name="p", kind="pareto", x="step_time_s", y="cost_usd"))
    assert (data.infeasible, data.beyond, data.x.log) == ([(1.5, 1.5)], 1, False)


def test_colours_are_numbers_or_the_most_frequent_names():
    names = [f"d{i}" for i in range(12) for _ in range(12 - i)]
    n = len(names)
    columns = {"step_time_s": [1.0] * n, "cost_usd": [100.0] * (n - 1) + [1e6], STRATEGY: names, DEVICES: [8, 64] * (n // 2)}
    columns["system.budgets.power"] = ["300 W"] * n
    plot = {"name": "p", "kind": "pareto", "x": "step_time_s", "y": "cost_usd"}
    data = pareto_data(view(columns), ParetoPlot(**plot, colour=STRATEGY))
    assert data.colours.names == [f"d{i}" for i in range(10)] + [OTHERS]
    assert [data.colours.values.count(i) for i in range(11)] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 3]
    assert (data.x.log, data.y.log) == (False, True)
    numeric = pareto_data(view(columns), ParetoPlot(**plot, colour=DEVICES)).colours
    assert (numeric.names, numeric.values[:2], numeric.scale.label) == ([], [8.0, 64.0], "Devices")
    assert pareto_data(view(columns), ParetoPlot(**plot, colour="system.budgets.power")).colours.scale.label == "Power [W]"


# ------------------------------------------------------------------------------------------ parallel coordinates


def designs(**rest):
    columns = {
        "step_time_s": [0.3, 0.1, 0.2, 0.1, np.inf, 0.05],
        "feasible": [True, True, True, True, True, False],
        "a.latency": [1e-6, 3e-6, 2e-6, 3e-6, 1e-6, 1e-6],
        "b.latency": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        STRATEGY: ["d8", "d16", None, "d16", "d8", "d8"],
    }
    space = ("a.latency", "b.latency", STRATEGY)
    return view(columns, space=space, objectives={"step_time_s": False}, units={"a.latency": "s"}, **rest)


def test_the_best_designs_come_first_each_once_and_feasible_ones_before():
    data = parallel_data(designs(), ParallelPlot(name="p", kind="parallel"))
    assert data.values == [0.1, 0.2, 0.3, 0.05]
    assert data.feasible == [True, True, True, False]
    assert parallel_data(designs(), ParallelPlot(name="p", kind="parallel", best=2)).values == [0.1, 0.2]


def test_axes_run_between_their_own_ends():
    data = parallel_data(designs(), ParallelPlot(name="p", kind="parallel", labels={"d8": "all data"}))
    assert [axis.name for axis in data.coordinates] == ["a.latency", "strategy", "Step time"]
    assert data.alike == ["b.latency 0.5"]
    assert [(axis.low, axis.high) for axis in data.coordinates] == [("1 µs", "3 µs"), ("", ""), ("50 ms", "300 ms")]
    assert data.coordinates[1].names == [(0.0, "all data"), (1.0, "d16")]
    assert [line[0] for line in data.lines] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert [line[1] for line in data.lines] == pytest.approx([1.0, np.nan, 0.0, 0.0], nan_ok=True)


def test_axes_may_be_named():
    data = parallel_data(designs(), ParallelPlot(name="p", kind="parallel", axes=("step_time_s", "a.latency")))
    assert [axis.name for axis in data.coordinates] == ["Step time", "latency"]


# ------------------------------------------------------------------------------------------ heat maps


def test_cells_hold_the_best_feasible_value_of_their_pair():
    rng = np.random.default_rng(4)
    strategies = ["RC-2-4-d8-p2", "RC-2-4-d8", "CR-8-d64", "d512", "d8"]
    held, times, feasible = rng.choice(strategies, 100).tolist(), rng.uniform(1, 2, 100), rng.random(100) < 0.6
    feasible &= np.array(held) != "CR-8-d64"
    seen = view({STRATEGY: held, "step_time_s": times.tolist(), "feasible": feasible.tolist()})
    data = heatmap_data(seen, HeatmapPlot(name="h", kind="heatmap", x="dp", y="kernel"))
    assert (data.x.names, data.y.names) == (["8", "64", "512"], ["CR-8", "RC-2-4", "none"])
    assert (data.x.label, data.y.label) == ("Data parallel degree", "Kernel parallelism")

    def best(*names):
        return times[feasible & np.isin(held, names)].min()

    cells = [[np.nan] * 3, [best("RC-2-4-d8-p2", "RC-2-4-d8"), np.nan, np.nan], [best("d8"), np.nan, best("d512")]]
    assert np.array(data.values) == pytest.approx(np.array(cells), nan_ok=True)
    assert data.infeasible == [[False, True, False], [False] * 3, [False] * 3]
    row, place = data.best
    assert data.values[row][place] == times[feasible].min()


def test_cells_of_what_is_made_large_hold_the_largest():
    columns = {LOGIC: ["N7", "N7", "N5"], DEVICES: [8, 8, 64], "mfu": [0.2, 0.4, 0.3]}
    seen = view(columns, {LOGIC: ["N7", "N5"], DEVICES: [64, 8]}, objectives={"mfu": True})
    data = heatmap_data(seen, HeatmapPlot(name="h", kind="heatmap", x=LOGIC, y=DEVICES, value="mfu"))
    assert (data.x.names, data.y.names, data.best, data.falls) == (["N7", "N5"], ["8", "64"], (0, 0), False)
    assert np.array(data.values) == pytest.approx(np.array([[0.4, np.nan], [np.nan, 0.3]]), nan_ok=True)


def test_a_value_that_is_missing_leaves_a_cell_to_the_others():
    """A cell of nothing but missing values holds no best, and its points are shown as infeasible."""
    columns = {LOGIC: ["N7", "N7", "N5"], DEVICES: [8, 8, 64], "energy_j": [np.nan, 2.0, np.nan]}
    data = heatmap_data(view(columns), HeatmapPlot(name="h", kind="heatmap", x=LOGIC, y=DEVICES, value="energy_j"))
    at = data.x.names.index("N7")
    assert (data.values[0][at], data.best, data.infeasible[1][1 - at]) == (2.0, (0, at), True)
    columns["energy_j"] = [np.inf] * 3
    assert heatmap_data(view(columns), HeatmapPlot(name="h", kind="heatmap", x=LOGIC, y=DEVICES, value="energy_j")).best is None


def test_strategies_may_be_written_as_degrees():
    columns = {STRATEGY: [{"kernel": "CR", "kp1": 8, "dp": 2}, "d2", "no-strategy", None], "step_time_s": [1.0, 2.0, 3.0, 4.0]}
    data = heatmap_data(view(columns), HeatmapPlot(name="h", kind="heatmap", x="pp", y="kernel"))
    assert (data.x.names, data.y.names, data.values) == (["1"], ["CR-8", "none"], [[1.0], [2.0]])


# ------------------------------------------------------------------------------------------ breakdowns


def test_bars_are_the_parts_of_a_group_and_add_up():
    columns = {
        LOGIC: ["N5", "N7", "N7"], DEVICES: [8, 8, 64], "breakdown_s.compute": [1.0, 2.0, 3.0], "breakdown_s.bubble": [0.5, 0.0, 0.25],
        "breakdown_s.other": [0.0, 0.0, 0.0], "bound_share.l1": [1.0, 1.0, 1.0], "feasible": [True, False, True],
    }  # fmt: skip
    seen = view(columns, {LOGIC: ["N7", "N5"], DEVICES: [8, 64]})
    data = breakdown_data(seen, BreakdownPlot(name="b", kind="breakdown", x=LOGIC, panels=DEVICES))
    assert (data.parts, data.y.label, data.x.names) == (["compute", "bubble"], "Step time [s]", ["N7", "N5"])
    assert [panel.name for panel in data.panels] == ["Devices: 8", "Devices: 64"]
    assert data.panels[0].bars == [(0.0, [2.0, 0.0], 2.0, False, ""), (1.0, [1.0, 0.5], 1.5, True, "")]
    assert data.panels[1].bars == [(0.0, [3.0, 0.25], 3.25, True, "")]
    shares = breakdown_data(seen, BreakdownPlot(name="b", kind="breakdown", x=LOGIC, group="bound_share"))
    assert (shares.parts, shares.y.label, len(shares.panels[0].bars)) == (["l1"], "Share of the step [%]", 2)


def test_parts_of_a_step_are_stacked_in_one_order_in_all_studies():
    names = ["other", "exposed_communication", "compute", "memory_bound_compute"]
    seen = view({LOGIC: ["N7"], **{f"breakdown_s.{name}": [1.0] for name in names}}, {LOGIC: ["N7"]})
    parts = breakdown_data(seen, BreakdownPlot(name="b", kind="breakdown", x=LOGIC)).parts
    assert parts == ["compute", "memory bound compute", "exposed communication", "other"]


def test_bars_of_a_search_study_are_its_best_designs():
    best = ({"search": "b", "breakdown_s.compute": 0.5, "feasible": True}, {"search": "a", "breakdown_s.compute": None, "feasible": False})
    seen = view({"breakdown_s.compute": [9.0]}, searches=("a", "b"), best=best)
    data = breakdown_data(seen, BreakdownPlot(name="b", kind="breakdown", x="search"))
    assert (data.x.names, data.panels[0].bars) == (["a", "b"], [(1.0, [0.5], 0.5, True, "")])


# ------------------------------------------------------------------------------------------ uncertainty


def drawn(point, column="step_time_s", median=1.0, high=2.0, **importance):
    paths = {name.replace("__", "."): value for name, value in importance.items()}
    return Drawn(point=point, column=column, interval=Interval(low=0.5, median=median, mean=1.0, high=high), importance=paths)


def test_what_matters_most_anywhere_comes_first():
    first = drawn({LOGIC: "N7"}, a__memory__energy=0.1, a__link__energy=-0.9, latency=0.2)
    second = drawn({LOGIC: "N5"}, a__memory__energy=0.3, a__link__energy=-0.1, latency=0.25)
    seen = View(columns={}, values={LOGIC: ["N7", "N5"]}, drawn=(first, drawn({LOGIC: "N7"}, "energy_j", latency=1.0), second))
    data = importance_data(seen, ImportancePlot(name="i", kind="importance", top=2))
    assert data.parameters == ["link.energy", "memory.energy"]
    assert data.panels == [("N7", [-0.9, 0.1]), ("N5", [-0.1, 0.3])]
    assert (data.x_label, data.left_out) == ("Rank correlation with step time", 0)


def test_swept_points_beyond_nine_are_counted():
    seen = View(columns={}, values={DEVICES: list(range(12))}, drawn=tuple(drawn({DEVICES: i}, latency=0.1 * i) for i in range(12)))
    data = importance_data(seen, ImportancePlot(name="i", kind="importance"))
    assert ([panel.name for panel in data.panels], data.left_out) == ([f"Devices: {i}" for i in range(9)], 3)


def test_intervals_stand_at_their_values_in_order():
    points = [(logic, power, median) for median, (logic, power) in enumerate([("N7", "300 W"), ("N7", "200 W"), ("N5", "200 W")], start=1)]
    found = [drawn({LOGIC: logic, "power": power, "x": 1}, median=float(median)) for logic, power, median in points]
    found += [drawn({LOGIC: "N5", "power": "300 W", "x": 1}, median=np.inf), drawn({LOGIC: "N7", "power": "200 W", "x": 2}, median=9.0)]
    seen = View(columns={}, values={LOGIC: ["N7", "N5"], "power": ["300 W", "200 W"], "x": [1, 2]}, drawn=tuple(found))
    data = interval_data(seen, IntervalPlot(name="i", kind="intervals", x="power", series=LOGIC))
    assert (data.x.real, data.x.label, data.legend) == (True, "Power [W]", "Logic")
    assert data.series[0] == ("N7", [200.0, 300.0], [2.0, 1.0], [0.5, 0.5], [2.0, 2.0], [1.0, 1.0])
    assert data.series[1] == ("N5", [200.0], [3.0], [0.5], [2.0], [1.0])


def test_intervals_are_drawn_between_their_ends_and_those_without_one_above_all_others():
    """Two lines beside each other at each place; 4 is the highest end, and an arrow stands 8 % above it."""
    two = IntervalSeries("a", x=[0.0, 1.0], median=[2.0, 3.0], low=[1.0, 2.5], high=[4.0, np.inf], feasible=[1.0, 0.25])
    one = IntervalSeries("b", x=[1.0], median=[1.5], low=[1.0], high=[2.0], feasible=[1.0])
    (axis,) = draw_intervals(IntervalData("", Ticks("x", [0.0, 1.0], ["p", "q"]), Scale("y"), "", [two, one])).axes
    (_, _, (bars,)), (_, _, (other,)) = axis.containers
    assert [[tuple(end) for end in bar] for bar in bars.get_segments()] == [
        [(pytest.approx(-0.1), 1.0), (pytest.approx(-0.1), 4.0)], [(pytest.approx(0.9), 2.5), (pytest.approx(0.9), pytest.approx(4.32))],
    ]  # fmt: skip
    assert [end[0] for bar in other.get_segments() for end in bar] == pytest.approx([1.1, 1.1])
    (arrow,) = (line for line in axis.lines if line.get_marker() == "^" and len(line.get_xdata()))
    assert arrow.get_xydata().tolist() == [pytest.approx([0.9, 4.32])]
    assert [text.get_text() for text in axis.texts] == ["25 %"]
    assert axis.get_ylim() == pytest.approx((0.0, 1.12 * 4.32))


def test_convergence_over_time_is_that_of_the_time_taken():
    one = Convergence(search="a", point="", evaluations=(10, 50), best=(0.3, 0.2), total=90, seconds=(0.5, 2.0))
    data = convergence_data(searched(one, step_time_s=False), ConvergencePlot(name="c", kind="convergence", over="seconds"))
    assert data.panels[0].steps[0] == ("a", [0.5, 2.0, 2.0], [0.3, 0.2, 0.2], "200 ms")
    assert (data.x.label, data.y.log) == ("Time of the search [s]", True)


# ------------------------------------------------------------------------------------------ lines


def test_draws_of_a_point_are_their_median_and_an_interval():
    rng = np.random.default_rng(0)
    draws = rng.lognormal(size=(3, 40)) * np.array([[1.0], [2.0], [4.0]])
    fits = np.arange(120) % 40 >= np.repeat([0, 10, 30], 40)  # all, most and few of the draws
    held = {"batch": [8.0] * 40 + [16.0] * 40 + [32.0] * 40, "step_time_s": draws.ravel().tolist(), "bound_by": ["compute"] * 120}
    seen = view({**held, "feasible": fits.tolist()}, {"batch": [8.0, 16.0, 32.0]}, draws=40, interval=0.9)
    plot = LinePlot.model_validate({"kind": "lines", "name": "u", "x": "batch", "y": "step_time_s"})
    (panel,) = line_data(seen, plot).panels
    (line,) = panel.series
    assert line.y == pytest.approx(np.median(draws, axis=1))
    assert [*line.low] == pytest.approx(np.quantile(draws, 0.05, axis=1))
    assert [*line.high] == pytest.approx(np.quantile(draws, 0.95, axis=1))
    assert (len(line.x), line.feasible) == (3, [True, True, False])
    alone = line_data(replace(seen, draws=0), plot).panels[0].series[0]
    assert (len(alone.x), alone.low) == (120, ())
