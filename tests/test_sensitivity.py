"""Explanations: elasticities against differences taken here, promises against re-evaluation, closed forms, what cannot be explained."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console
from sampled import every

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation import sensitivity, trials
from crossflow.answers.explanation.parameters import GROUPS, parameters
from crossflow.answers.explanation.sensitivity import FACTORS, NOTHING, OVERDRIVE, _of_idle_units, explain
from crossflow.answers.explanation.tornado import draw, tornado
from crossflow.base.errors import CrossflowError
from crossflow.base.units import parse, show
from crossflow.edges.cli.explain import elasticities

CASE = """\
name: case
system: {template: pathfinder, technology: {logic: N7, memory: HBM3, inter_link: NDR-x8}}
workload: lstm-16k
strategy: CR-8-d64
"""
H100 = {"system": {"template": "h100-sxm"}, "strategy": "d1"}
KEYS = {
    "name", "objective", "unit", "larger_is_better", "value", "feasible", "reason", "bound_by", "step", "fine_step", "limiting",
    "elasticities", "not_movable", "what_if", "pairs", "next_bottleneck", "swings", "strategies", "uses", "notes", "alternatives",
    "error_band", "error_band_reason", "lever", "trust", "trust_text", "trust_reason", "trust_of",
    "decisions", "step_time_s", "throughput_per_device", "throughput_counts",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("short_divisions")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("explain") / "case.yaml"
    file.write_text(CASE)
    return file


@pytest.fixture(scope="module")
def case(path):
    return crossflow.load(path)


@pytest.fixture(scope="module")
def explained(case):
    return explain(case)


@pytest.fixture(scope="module")
def compute_bound(gemm):
    return explain(gemm("p4", n=8192, m=8192, k=8192))


@pytest.fixture(scope="module")
def memory_bound():
    return explain(crossflow.from_dict({**H100, "workload": {"model": "gemm", "m": 32768, "n": 1, "k": 32768, "dtype": "fp16"}}))


def step_times(case, **points):
    return crossflow.evaluate(case, {path: np.array(values, dtype=float) for path, values in points.items()}).step_time


def difference(case, number, step, column="step_time_s"):
    """Central difference of the logarithms."""
    ends = number.value * np.array([1 - step, 1 + step])
    low, high = crossflow.evaluate(case, {number.path: ends}).columns()[column]
    return math.log(high / low) / math.log(ends[1] / ends[0])


# ------------------------------------------------------------------------------------------ elasticities


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize("step", [1e-4, 5e-3])
def test_smooth_elasticities_are_central_differences_of_any_step(case, explained, step):
    both = [e for e in explained.effects if e.smooth and e.sides == "both" and not e.parameter.quantity.whole]
    smooth = [e for e in both if abs(e.elasticity) > 1e-3]
    assert len(smooth) >= 8
    for effect in every(2, smooth):
        assert effect.elasticity == pytest.approx(difference(case, effect.parameter, step), rel=0.01), effect.parameter.path


@pytest.mark.slow
def test_all_elasticities_of_two_sides_are_differences_of_the_stated_step(case, explained):
    both = [e for e in explained.effects if e.sides == "both" and abs(e.elasticity) > 1e-3 and not e.parameter.quantity.whole]
    assert len(both) >= 20
    for effect in every(3, both):
        assert effect.elasticity == pytest.approx(difference(case, effect.parameter, sensitivity.STEP), rel=1e-6)


def test_effects_are_sorted_by_gain_what_the_reader_decides_first_and_constants_last(explained):
    groups = [GROUPS.index(effect.group) for effect in explained.effects]
    assert groups == sorted(groups)
    for group in GROUPS:
        gains = [max(effect.gain or 0.0, 0.0) for effect in explained.effects if effect.group == group]
        assert all(a >= b - NOTHING for a, b in itertools.pairwise(gains))


def test_voltages_of_a_fixed_rate_are_no_levers(explained):
    nominal, largest = (explained.effect(f"techlib.link.NDR-x8.{name}") for name in sensitivity.RATED)
    assert nominal.parameter.value == largest.parameter.value
    assert nominal.gain is largest.gain is None
    assert sensitivity.ONE_RATE in explained.notes
    moved = {change.path for what_if in explained.what_ifs for change in what_if.changes}
    assert not moved & {nominal.parameter.path, largest.parameter.path}


def test_the_node_that_components_are_given_at_is_no_lever_of_another(explained):
    given, own = (explained.effect(f"techlib.logic.{node}.power") for node in ("N12", "N7"))
    assert (given.gain, given.surprise) == (None, None)
    assert own.gain is not None
    assert own.elasticity == pytest.approx(-given.elasticity, rel=0.02)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize(("dtype", "idle"), [("bf16", {"fp16"}), ("fp16", {"bf16"}), ("fp8", {"bf16", "fp16"}), ("tf32", {"bf16", "fp16"})])
def test_units_of_types_that_nothing_computes_in_are_no_levers(dtype, idle):
    workload = {"model": "gemm", "m": 8192, "n": 8192, "k": 8192, "dtype": dtype}
    found = explain(crossflow.from_dict({**H100, "workload": workload}))
    of_16_bits = [found.effect(f"system.throughput.{one}") for one in ("bf16", "fp16")]
    assert {effect.parameter.path.rpartition(".")[2] for effect in of_16_bits if effect.gain is None} == idle
    assert all(effect.surprise is None for effect in of_16_bits)


@pytest.mark.cases(2)
@pytest.mark.parametrize("dtype", ["fp8", "fp16", "bf16", "tf32"])
@pytest.mark.parametrize(
    ("workload", "wide"),
    [
        ({"model": "gemm", "m": 512, "n": 512, "k": 512}, False),
        ({"model": "lstm", "hidden": 1024, "vocabulary": 1000, "sequence": 8, "global_batch": 64}, False),
        ({"model": "llama3-8b", "global_batch": 8}, True),
    ],
)
def test_a_rate_of_16_bits_is_idle_where_no_product_computes_in_its_type(workload, wide, dtype):
    """A product and an LSTM compute all in their own type; of a transformer below 16 bits attention stays in bf16."""
    case = crossflow.from_dict({**H100, "strategy": "d1" if not wide else "tp1", "workload": {**workload, "dtype": dtype}})
    used = {dtype} | ({"bf16"} if wide and dtype == "fp8" else set())
    idle = {number.path for number in parameters(case) if _of_idle_units(number, case)}
    assert idle == {f"system.throughput.{one}" for one in {"fp16", "bf16"} - used}


def test_decisions_divide_budgets_anew_and_keep_their_promise(case, explained):
    anew, *others = explained.alternatives
    assert (anew.path, anew.feasible) == ("system.budgets", True)
    assert anew.gain > 0.05
    memory = next(other for other in others if other.path == "system.technology.memory")
    kept = crossflow.evaluate(case, {memory.path: [memory.after]}).step_time[0]
    assert memory.kept == pytest.approx(1.0 - kept / explained.value)
    assert memory.gain >= memory.kept
    assert {other.after for other in others if other.path == "system.technology.inter_link"} >= {"GDR-x8"}


@pytest.mark.thorough
def test_budgets_divided_anew_are_never_worse_than_the_division_of_the_template():
    """It has tables of divisions by technology, so that a short search may end behind the row of another node."""
    workload = {"model": "gemm", "m": 8192, "n": 8192, "k": 8192}
    found = explain(crossflow.from_dict({"system": {"template": "reference-training"}, "workload": workload, "strategy": "d1"}))
    assert len(found.alternatives) > 10
    assert all(one.gain >= one.kept - 1e-9 for one in found.alternatives if one.feasible)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_it_says_why_what_should_help_does_not():
    data = {
        "system": {"template": "pathfinder", "technology": {"logic": "N3"}},
        "workload": {"model": "gemm", "m": 8192, "n": 8192, "k": 8192},
    }
    found = explain(crossflow.from_dict(data))
    for effect in found.effects:
        if effect.surprise is not None:
            assert effect.elasticity is not None
            assert "makes the step" in effect.surprise or "built" in effect.surprise


def test_kinks_are_told(explained):
    stacks = explained.effect("system.budgets.node_area")
    assert not stacks.smooth
    assert explained.effect("system.execution.kernel_launch").smooth


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_at_a_bound_the_other_side_counts_to_second_order(gemm):
    case = gemm("p4", system={"execution": {"matrix_utilisation": 1}})
    effect = explain(case).effect("system.execution.matrix_utilisation")
    launch = float(crossflow.evaluate(case).bound["launch"][0])
    assert effect.sides == "below"
    assert effect.elasticity == pytest.approx(launch - 1.0, rel=1e-4)


def test_whole_numbers_move_by_one(case, explained):
    effect = explained.effect("techlib.link.NDR-x8.maximum_links")
    seven, nine = step_times(case, **{"techlib.link.NDR-x8.maximum_links": [7, 9]})
    assert effect.elasticity == pytest.approx(math.log(nine / seven) / math.log(9 / 7))
    assert effect.gain is None  # 10 % of 8 is less than one


def test_what_is_zero_cannot_move(explained):
    assert "techlib.on_chip.registers.latency" in explained.fixed
    assert not set(explained.fixed) & {effect.parameter.path for effect in explained.effects}


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("rate", ["nominal_flop_rate", "nominal_frequency"])
def test_time_of_a_compute_bound_product_is_inverse_to_throughput(compute_bound, rate):
    effect = compute_bound.effect(f"techlib.compute.pascal-core.{rate}")
    assert effect.elasticity == pytest.approx(compute_bound.bound["launch"] - 1.0, rel=1e-4)
    assert (effect.smooth, effect.resource) == (True, "compute")


@pytest.mark.slow
def test_time_of_a_stream_is_inverse_to_bandwidth(gemm):
    found = explain(gemm("v100", m=32768, n=1, k=32768))
    effect = found.effect("system.components.memory.nominal_frequency")
    assert effect.elasticity == pytest.approx(-found.bound["memory"], rel=1e-3)
    assert (effect.smooth, effect.resource) == (True, "memory")


@pytest.mark.slow
def test_time_of_tiny_kernels_is_proportional_to_their_launch(gemm):
    found = explain(gemm("pathfinder", m=16, n=16, k=16))
    assert found.limiting.changes[0].path == "system.execution.kernel_launch"
    assert found.effect("system.execution.kernel_launch").elasticity == pytest.approx(found.bound["launch"], rel=1e-3)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_faster_rates_and_shorter_times_shorten_the_step_in_proportion():
    """Euler: T is homogeneous of degree -1 in all rates and inverse times of a device."""
    found = explain(crossflow.from_dict({**H100, "workload": {"model": "gemm", "m": 4096, "n": 300, "k": 5000, "dtype": "fp16"}}))
    sign = {"B/s": 1.0, "flop/s": 1.0, "Hz": 1.0, "s": -1.0}
    parts = [sign[e.parameter.quantity.unit] * e.elasticity for e in found.effects if e.parameter.quantity.unit in sign]
    assert sum(parts) == pytest.approx(-1.0, abs=2e-3)


@pytest.mark.thorough
@pytest.mark.slow
def test_elasticities_of_throughput_mirror_those_of_time(case, explained):
    throughput = explain(case, "samples_per_second")
    for effect in explained.effects[:30]:
        assert throughput.effect(effect.parameter.path).elasticity == pytest.approx(-effect.elasticity, abs=1e-9)
    assert throughput.limiting.changes[0].path == explained.limiting.changes[0].path
    assert throughput.limiting.gain == pytest.approx(1.0 / (1.0 - explained.limiting.gain) - 1.0)


# ------------------------------------------------------------------------------------------ what if


def test_the_limiting_parameter_keeps_its_promise(path, explained):
    promise = explained.limiting.to_dict()
    assert promise["factor"] == 1.1
    improved = crossflow.predict(crossflow.load(path, [promise["changes"][0]["set"]]))
    assert improved.step_time == pytest.approx(promise["objective"], rel=1e-12)
    assert 1.0 - improved.step_time / explained.value == pytest.approx(promise["gain"], rel=1e-9)
    assert improved.feasible


def test_no_parameter_gains_more_than_the_limiting_one_and_stays_feasible(case, explained):
    numbers = [effect.parameter for effect in explained.effects if not effect.parameter.quantity.whole and effect.gain is not None]
    points = {number.path: np.full(2 * len(numbers), number.value) for number in numbers}
    for i, number in enumerate(numbers):
        points[number.path][2 * i : 2 * i + 2] = min(number.value * 1.1, number.quantity.le or math.inf), number.value / 1.1
    score = crossflow.evaluate(case, points)
    assert score.step_time[score.feasible].min() == pytest.approx(explained.limiting.value, rel=1e-12)


@pytest.fixture(scope="module")
def launch_bound():
    return explain(crossflow.from_dict({**H100, "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}}))


@pytest.mark.parametrize("name", ["launch_bound", "memory_bound", "explained"])
def test_what_is_told_first_can_be_built_and_shares_are_those_of_a_whole(name, request):
    """The parameter that limits is no obstructed one, what to build is no constant of the model, and no share is nothing."""
    found = request.getfixturevalue(name)
    groups = {effect.parameter.path: effect.group for effect in found.effects}
    assert not found.limiting.obstructed
    assert groups[found.lever.changes[0].path] != "constant"
    assert min(found.bound.values()) > 0.0
    assert sum(found.bound.values()) == pytest.approx(1.0, rel=1e-9)
    assert list(found.bound.values()) == sorted(found.bound.values(), reverse=True)
    assert not {effect.parameter.path for effect in found.effects} & set(found.fixed)
    assert all(effect.surprise is None for effect in found.effects if effect.parameter.path.endswith(OVERDRIVE))


def test_every_answer_equals_its_evaluation_alone(case, explained):
    for answer in [*explained.what_ifs[::4], *explained.pairs[::3]]:
        score = crossflow.evaluate(case, {change.path: [change.after] for change in answer.changes})
        assert answer.value == pytest.approx(float(score.step_time[0]), rel=1e-12)
        assert (answer.bound_by, answer.feasible, answer.reason) == (score.bound_by[0], bool(score.feasible[0]), score.why(0))


def test_the_best_pair_gains_no_less_than_the_best_single(explained):
    for factor in FACTORS:
        single = max(answer.gain for answer in explained.what_ifs if answer.factor == factor)
        pairs = [answer.gain for answer in explained.pairs if answer.factor == factor]
        assert pairs == sorted(pairs, reverse=True)
        assert pairs[0] > single


@pytest.mark.thorough  # what it runs quicker tests run too
def test_improvements_stop_at_the_range_of_the_quantity(memory_bound):
    changes = [answer.changes[0] for answer in memory_bound.what_ifs if answer.changes[0].path == "system.memory_utilisation"]
    assert [(change.after, change.short) for change in changes] == [(1.0, True)] * 3


def test_a_share_is_raised_without_taking_from_the_others(case, explained):
    share = explained.effect("system.budgets.power_shares.compute")
    raised = crossflow.evaluate(case, {share.parameter.path: [share.parameter.value * 1.1]})
    assert raised.why(0) == "cannot be built: the power shares add up to more than 1"
    assert 0 < share.gain == pytest.approx(1.0 - raised.step_time[0] / explained.value)
    assert sensitivity.SHARES in explained.notes


def test_settings_hold_every_digit(explained):
    for effect in explained.effects:
        number = effect.parameter
        assert parse(show(number.value, number.quantity.unit, 15), number.quantity.unit) == pytest.approx(number.value, rel=1e-14)


# ------------------------------------------------------------------------------------------ next bottleneck


def test_another_resource_bounds_from_the_factor_on(case, explained):
    turns = [end for end in explained.next_bottlenecks if end.because == "another resource"]
    assert turns
    for end in turns:
        value = explained.effect(end.path).parameter.value
        factors = np.array([end.factor, end.factor / 1.06])
        values = value * factors if end.multiplied else value / factors
        after, before = crossflow.evaluate(case, {end.path: values}).bound_by
        assert (after, before) == (end.bound_by, next(iter(explained.bound)))


@pytest.mark.thorough  # what it runs quicker tests run too
def test_elasticity_halves_where_its_part_of_the_step_does():
    """T = a + b x: the gain of the next percent, b x / T, is half of the first where b x = a s / (2 - s), for s = b / (a + b)."""
    found = explain(crossflow.from_dict({**H100, "workload": {"model": "gemm", "m": 512, "n": 512, "k": 4096, "dtype": "fp16"}}))
    end = next(end for end in found.next_bottlenecks if end.path == "system.execution.kernel_launch")
    share = found.bound["launch"]
    expected = (2.0 - share) / (1.0 - share)
    assert end.because == "falling elasticity"
    assert end.factor == pytest.approx(expected, rel=0.1)


def test_a_parameter_at_the_end_of_its_range_leads_nowhere(memory_bound):
    end = next(end for end in memory_bound.next_bottlenecks if end.path == "system.memory_utilisation")
    assert (end.factor, end.because, end.bound_by) == (None, None, "memory")
    assert end.reach == pytest.approx(1.0 / 0.94)


# ------------------------------------------------------------------------------------------ the whole


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_four_evaluations_do(case, monkeypatch):
    calls = []
    for module in (sensitivity, trials):
        monkeypatch.setattr(module, "evaluate", lambda *given, **asked: calls.append(given) or crossflow.evaluate(*given, **asked))
    explain(case)
    assert len(calls) == 4


def test_plain_data_has_its_keys_and_no_infinity(explained):
    data = explained.to_dict()
    assert set(data) == KEYS
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["limiting"]["path"] == data["limiting"]["changes"][0]["path"]


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_explained_all_the_same(lstm):
    found = explain(lstm("d8"))
    assert not found.feasible
    assert found.notes[-1] == f"The scenario itself is infeasible and explained as if it were not: {found.reason}."
    assert found.limiting is not None


def test_it_says_what_limits(explained):
    gain = f"{100 * explained.limiting.gain:.3g} %"
    expected = (
        f"Explanation('case': step_time_s {show(explained.value, 's')}, limited by {explained.limiting.changes[0].path}: {gain} for 10 %)"
    )
    assert repr(explained) == expected


def test_an_unknown_objective_is_refused(case, exactly):
    sentence = "no objective 'step_time'; did you mean 'step_time_s'?; objectives are the numeric columns of a score"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        explain(case, "step_time")


def test_an_objective_that_is_zero_is_refused(case, exactly):
    sentence = "the breakdown_s.bubble of the scenario is 0; only a positive, finite objective can be explained"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        explain(case, "breakdown_s.bubble")


def test_a_step_that_never_ends_is_refused(gemm, exactly):
    case = gemm("pathfinder", system={"budgets": {"perimeter": {"memory": 0.0001}}})
    reason = crossflow.predict(case).reason
    with pytest.raises(CrossflowError, match=exactly(f"the step never ends, so that nothing can be explained: {reason}")):
        explain(case)


# ------------------------------------------------------------------------------------------ tornado


def test_bars_are_evaluations_at_the_ends_of_ranges(case, explained):
    for row in tornado(explained, top=6).rows:
        low, high = step_times(case, **{row.path: [row.low, row.high]})
        assert (row.at_low, row.at_high) == pytest.approx((low, high), rel=1e-12)


def test_ranges_are_the_files_or_a_tenth(explained):
    rows = {row.path: row for row in tornado(explained, top=99).rows}
    power, energy = rows["system.budgets.power"], rows["techlib.on_chip.l2.dynamic_energy_per_bit"]
    assert (power.low, power.high, power.given) == (pytest.approx(300 / 1.1), pytest.approx(330), False)
    assert (energy.low, energy.high, energy.given) == (pytest.approx(4e-12), pytest.approx(16e-12), True)


def test_the_widest_bars_come_first(explained):
    spans = [abs(row.at_high - row.at_low) for row in tornado(explained).rows]
    assert len(spans) == 15
    assert spans == sorted(spans, reverse=True)
    assert tornado(explained, top=3).rows == tornado(explained).rows[:3]


def test_fitted_numbers_and_those_that_restate_a_device_are_drawn_only_where_all_are_asked_for(memory_bound):
    """What feeds units that the maker holds back is none of its buyer's decisions; a lower share of a given rate made steps shorter."""
    shown = {row.path for row in tornado(memory_bound, top=99).rows}
    everything = {row.path for row in tornado(memory_bound, top=999, whole=True).rows}
    assert shown < everything
    assert {path for path in shown if memory_bound.constant(path)} == set()
    assert "system.levels.memory.bandwidth" in shown
    assert "system.execution.kernel_launch" in everything - shown
    assert memory_bound.constant("system.held_to")


def test_the_axis_has_a_unit(explained):
    data = tornado(explained)
    assert (data.title, data.label, data.scale) == ("case: what moves the step time", "Step time [ms]", pytest.approx(1e-3))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_tornado_is_drawn_twice_alike(explained, tmp_path):
    data = tornado(explained, top=3)
    one, other = draw(data, tmp_path / "one.png"), draw(data, tmp_path / "other")
    assert [file.name for file in (*one, *other)] == ["one.png", "one.svg", "other.png", "other.svg"]
    assert one[0].read_bytes().startswith(b"\x89PNG")
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


# ------------------------------------------------------------------------------------------ command line


@pytest.mark.thorough
@pytest.mark.slow
def test_json_is_the_explanation(path, explained, capsys):
    assert main(["explain", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == explained.to_dict()


@pytest.mark.slow
def test_the_page_says_what_limits_and_draws(path, tmp_path, capsys):
    assert main(["explain", str(path), "--set", "system.budgets.power=400 W", "--top", "3", "--plot", str(tmp_path / "t")]) == 0
    printed = capsys.readouterr()
    limit = explain(crossflow.load(path, ["system.budgets.power=400 W"])).lever
    assert limit.changes[0].path in printed.out
    assert "Next bottleneck" in printed.out
    assert printed.err == f"wrote {tmp_path / 't.png'}\nwrote {tmp_path / 't.svg'}\n"


@pytest.mark.slow
def test_another_objective_is_told_by_name(path, capsys):
    assert main(["explain", str(path), "--objective", "energy_j", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["objective"], data["unit"]) == ("energy_j", "J")
    assert main(["explain", str(path), "--objective", "enrgy_j"]) == 2
    assert capsys.readouterr().err.startswith("crossflow: no objective 'enrgy_j'; did you mean 'energy_j'?")


@pytest.mark.thorough
@pytest.mark.slow
def test_one_name_serves_both_files(tmp_path, path):
    assert main(["explain", str(path), "--plot", str(tmp_path / "a.b.svg"), "--json"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.b.png", "a.b.svg"]


# ------------------------------------------------------------------------------------------ other strategies


GPT = {
    "system": {"template": "a100-ib-cluster", "nodes": 64},
    "workload": {"model": "gpt3-175b", "global_batch": 1536},
    "strategy": "tp8-pp8-dp8-z1-sp-selective",
}
SERVICE = {
    "system": {"template": "dgx-h100", "nodes": 4},
    "workload": {"model": "mixtral-8x7b", "global_batch": 64, "task": "decode"},
    "strategy": "tp8-dp4",
}
DLRM = {"system": "zionex", "workload": "dlrm-a", "strategy": {"dense": "ddp", "embedding": "mp"}}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "objective"),
    [(GPT, "step_time_s"), (SERVICE, "step_time_s"), (DLRM, "step_time_s"), (DLRM, "samples_per_second")],
    ids=["training", "service", "recommendation", "throughput"],
)
def test_what_other_strategies_promise_is_what_they_predict(data, objective):
    scenario = crossflow.from_dict(data)
    explained = explain(scenario, objective)
    start = float(crossflow.evaluate(scenario).columns()[objective][0])
    better = 1 if objective == "samples_per_second" else -1
    assert len(explained.strategies) > 4
    for other in explained.strategies[:4]:
        alone = crossflow.predict(crossflow.from_dict({**data, "strategy": other.strategy}))
        value = float(alone.score.columns()[objective][0])
        assert (other.value, other.feasible, other.reason) == (pytest.approx(value, rel=1e-12), alone.feasible, alone.reason)
        assert other.gain == pytest.approx(better * (value / start - 1), abs=1e-12)
    order = [(not other.feasible, -other.gain) for other in explained.strategies]
    assert order == sorted(order)


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_microbatch_that_keeps_the_host_from_waiting_is_proposed(tmp_path, capsys):
    """Small pictures one at a time: the host issues kernels more slowly than the device runs them."""
    path = tmp_path / "vit.yaml"
    path.write_text("system: {template: dgx-a100, nodes: 1}\nworkload: {model: vit-l, global_batch: 1024}\nstrategy: d8-z3\n")
    assert main(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    assert "Other strategies" in said
    assert said[said.index("Other strategies") :].splitlines()[2].split()[:5] == ["dp8-mb2-z3", "micro_batch", "1", "to", "2"]


@pytest.mark.thorough
@pytest.mark.slow
def test_where_a_plan_does_not_fit_those_that_do_are_shown(tmp_path, capsys):
    path = tmp_path / "full.yaml"
    path.write_text("system: {template: dgx-a100, nodes: 2}\nworkload: {model: llama2-13b, global_batch: 32}\nstrategy: dp16-z1\n")
    explained = explain(crossflow.load(path))
    assert main(["explain", str(path)]) == 0
    said = capsys.readouterr().out
    fitting = [other.strategy for other in explained.strategies if other.feasible]
    assert not explained.feasible
    assert len(fitting) > 2
    assert all(strategy in said for strategy in fitting[:5])


def test_graphs_of_kernels_have_no_other_strategies_here(explained):
    assert explained.strategies == ()


@pytest.mark.thorough
@pytest.mark.slow
def test_constants_are_folded_away_until_all_are_asked_for(capsys):
    """Of an H100 power limits that a fit repeats, and how its kernels run, are nothing that a reader can change."""
    words = ["explain", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "tp8"]
    assert main(words) == 0
    page = capsys.readouterr().out
    assert "constants that were fitted or restate the device are left out; --all shows them" in page
    assert not re.findall(r"^  (?:techlib\.|system\.execution|system\.network\.parameters)", page, re.MULTILINE)
    assert re.search(r"^  system\.network\.intra\.bandwidth", page, re.MULTILINE)
    assert main([*words, "--all"]) == 0
    assert re.findall(r"^  (?:techlib\.|system\.execution)", capsys.readouterr().out, re.MULTILINE)
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["elasticities"]
    groups = {row["path"]: row["group"] for row in rows}
    assert groups["system.throughput.bf16"] == "device"
    assert groups["system.network.intra.bandwidth"] == "decision"
    assert {group for path, group in groups.items() if path.startswith(("techlib.", "system.execution."))} == {"constant"}


def test_parameters_that_do_the_same_are_told_once(explained):
    """Each is alike to one that stands before it, and has its gain."""
    order = [effect.parameter.path for effect in explained.effects]
    repeated = [(effect, path) for effect in explained.effects for path in effect.alike]
    assert repeated
    for effect, path in repeated:
        assert order.index(effect.parameter.path) < order.index(path)
        assert explained.effect(path).gain == pytest.approx(effect.gain, abs=2e-7)


def test_the_gain_of_a_decision_is_over_the_chip_that_is_divided_anew(explained):
    divided, *others = explained.alternatives
    for other in others:
        assert other.marginal == pytest.approx(1.0 - other.value / divided.value)


@pytest.mark.thorough
def test_a_memory_device_that_a_larger_chip_has_no_room_for_is_told():
    """A tenth more die leaves less of the package for memory: a stack of each goes, which no share of 10 % replaces."""
    budgets = {
        "area": {"memory": 0.12, "second_memory": 0.08, "compute": 0.5},
        "power_shares": {"memory": 0.2, "second_memory": 0.2, "compute": 0.15, "on_chip": {"l1": 0.1}},
        "perimeter": {"second_memory": 0.3},
    }
    technology = {"logic": "N3", "memory": "HBM4", "second_memory": "HBF"}
    system = {"template": "reference", "devices": 8, "technology": technology, "second_memory": {"room": 0.4}, "budgets": budgets}
    workload = {"model": "kimi-k2", "task": "decode", "global_batch": 64, "prompt": 4000, "output": 500, "dtype": "fp8"}
    found = explain(crossflow.from_dict({"system": system, "workload": workload, "strategy": "dp8-ep8-far:experts"}), tried=False)
    (effect,) = [effect for effect in found.effects if effect.parameter.path == "system.budgets.chip_area"]
    assert effect.gain < -0.3
    assert "main memory loses a device and has 72 GiB of 108 GiB" in effect.surprise
    console = Console(width=140)
    with console.capture() as told:
        console.print(elasticities(found, 60, whole=True)[0])
    row = next(line for line in told.get().splitlines() if "budgets.chip_area" in line)
    assert "loses" in row
    assert "%" not in row
