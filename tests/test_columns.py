# ruff: noqa: E501  (exact sentences)
"""Every figure that `predict --json` prints is a column, an objective and a constraint; what has no value there is said so."""

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import every

import crossflow
from crossflow.answers.evaluation.figures import check_objective
from crossflow.answers.points import variant
from crossflow.answers.prediction import OTHER_UNITS
from crossflow.answers.score import larger_is_better, unit_of
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError, SpecError

PRICED = {"template": "dgx-h100", "nodes": 1, "operation": {"price": "2.5 USD/hour"}}
LLAMA = {"model": "llama3-8b", "task": "decode", "global_batch": 32, "prompt": 2048, "output": 256}
DECODE = {"system": PRICED, "workload": LLAMA, "strategy": "tp8", "run": {"tokens": 1e12}}
SERVED = {"ttft_s", "tpot_s", "e2el_s", "output_throughput_tokens_per_s", "request_throughput_per_s"}
GREEN = {"template": "dgx-h100", "nodes": 1, "operation": {"carbon_intensity": "400 g/kWh", "pue": 1.2}}
RUN = {
    f"run.{name}" for name in ("steps", "time_s", "device_hours", "normalised_device_hours", "cost_usd", "energy_j", "facility_energy_j")
}
BY_STRATEGY = sorted((SERVED | RUN | {"usd_per_million_tokens", "device_hours_per_million_tokens"}) - {"run.steps"})


def scenario(**sections):
    return crossflow.from_dict({**DECODE, **sections})


def columns(made, points=None):
    return crossflow.evaluate(made, points).columns()


@pytest.fixture
def study(tmp_path):
    """A finished study of the decode scenario with other sections."""

    def run(**sections):
        path = tmp_path / "s.yaml"
        path.write_text(yaml.safe_dump({"name": "s", "scenario": DECODE, **sections}, sort_keys=False))
        return run_study(path, out=tmp_path / "o")

    return run


def search(study, **sections):
    return study(space={"strategy": "legal"}, searches={"all": {"searcher": "exhaustive"}}, **sections)


@pytest.fixture
def refused(study):
    """The problems of a search that is not begun, without place and list of columns."""

    def of(**sections):
        with pytest.raises(SpecError) as caught:
            search(study, **sections)
        return [problem.message.splitlines()[0] for problem in caught.value.problems]

    return of


# -------------------------------------------------------------------------------------------- predict and evaluate


def column_of(key):
    """Column of a key of `predict --json`, by the words in which they differ."""
    head, _, rest = key.partition(".")
    if head == "communication_s":
        name, _, what = rest.rpartition(".")
        return f"communication_s.{name}" if what == "total" else f"exposed_communication_s.{name}"
    if key == "memory.margin" or head == "trust_of":  # follows from two columns; bands of single figures are the same for all points
        return None
    if head == "memory":
        own = {"total_bytes": "memory_needed_bytes", "capacity_bytes": "memory_capacity_bytes", "host_bytes": "host_memory_bytes"}
        return own.get(rest) or (rest if rest == "host_capacity_bytes" else f"memory_bytes.{rest.removesuffix('_bytes')}")
    if head == "throughput":
        return rest.replace("_per_s", "_per_second")
    if head == "run" and rest in OTHER_UNITS:  # once more in days and kilowatt-hours, as 0.7.0 named them
        return None
    return {"system.devices": "devices"}.get(key) or (rest if head in ("overlap", "serving", "cost_per_million") else key)


def numbers(data, path=""):
    """Paths and numbers of plain data, without lists, which are of stages and of resources in order."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{key}", value


CASES = {
    "decode": DECODE,
    "prefill": {**DECODE, "workload": {**LLAMA, "task": "prefill"}},
    "training": {**DECODE, "workload": {"model": "megatron-7.5b", "global_batch": 64}, "run": {"samples": 1e6}},
    "carbon": {**DECODE, "system": GREEN},
    "graph": {
        "system": {"template": "pathfinder", "devices": 8},
        "workload": {"model": "lstm-16k"},
        "strategy": "d8",
        "run": {"steps": 10},
    },
}


def test_a_run_keeps_its_older_names():
    run = crossflow.predict(crossflow.from_dict(CASES["training"])).to_dict()["run"]
    assert run["days"] * 86400 == pytest.approx(run["time_s"])
    assert run["price_usd"] == run["cost_usd"]
    assert run["device_energy_kwh"] * 3.6e6 == pytest.approx(run["energy_j"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_number_of_predict_is_a_column(case):
    made = crossflow.from_dict(CASES[case])
    found, told = columns(made), crossflow.predict(made).to_dict()
    del told["provenance"]  # which says what was asked, and of what schema the answer is
    printed = {column_of(key): value for key, value in numbers(told) if column_of(key)}
    assert {name: float(found[name][0]) for name in printed if name in found} == printed


def test_the_share_of_measured_events_is_a_column_where_there_is_a_profile(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("op,shape,dtype,device,time\ngemm,32x4096x4096,bf16,dgx-h100,10 us\n")
    found = columns(scenario(profile=str(path)))
    assert 0 <= found["measured_share"][0] < 1
    assert "measured_share" not in columns(scenario())


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["prefill", "decode"]), st.sampled_from([8, 16, 64]), st.sampled_from(["tp8", "tp4-dp2", "pp2-tp4", "dp8"])
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["llama3-8b", "mixtral-8x7b"]),
)
def test_a_batch_has_the_figures_of_its_predictions(points, model):
    made = scenario(workload={**LLAMA, "model": model})
    tasks, batches, plans = (list(values) for values in zip(*points, strict=True))
    found = columns(made, {"workload.task": tasks, "workload.global_batch": batches, "strategy": plans})
    for i, (task, batch, plan) in enumerate(points):
        alone = crossflow.predict(variant(made, {"workload.task": task, "workload.global_batch": batch, "strategy": plan}))
        told = {**alone.serving, **{f"run.{name}": value for name, value in alone.run.items()}}
        for name in (SERVED | RUN | {"input_throughput_tokens_per_s"}) & set(found):
            value = told.get(name)
            assert found[name][i] == pytest.approx(np.nan if value is None else value, rel=1e-12, nan_ok=True), name


def test_a_run_costs_its_steps():
    step, whole = columns(scenario(), {"strategy": ["tp8", "tp4-dp2"]}), crossflow.predict(scenario()).run
    np.testing.assert_allclose(step["run.time_s"], step["run.steps"] * step["step_time_s"])
    np.testing.assert_allclose(step["run.energy_j"], step["run.steps"] * step["energy_j"])
    np.testing.assert_allclose(step["run.cost_usd"], step["run.time_s"] / 3600 * 2.5 * 8)
    assert whole["cost_usd"] == pytest.approx(step["run.cost_usd"][0], rel=1e-12)


def test_rents_of_points_make_the_cost_of_their_runs():
    found = columns(scenario(), {"system.operation.price": ["1 USD/hour", "3 USD/hour"]})
    assert 3 * found["run.cost_usd"][0] == pytest.approx(found["run.cost_usd"][1])
    assert found["run.time_s"][0] == found["run.time_s"][1]


def test_points_of_tasks_without_a_figure_have_no_value():
    found = columns(scenario(), {"workload.task": ["training", "prefill", "decode"]})
    assert np.isnan(found["ttft_s"]).tolist() == [True, False, False]
    assert np.isnan(found["tpot_s"]).tolist() == [True, True, False]
    assert found["ttft_s"][1] == found["ttft_s"][2] == found["step_time_s"][1]


def test_what_nobody_asks_for_is_not_computed():
    made = scenario()
    assert set(crossflow.evaluate(made, columns=["tpot_s"]).serving) == {"tpot_s"}
    assert set(crossflow.evaluate(made, columns=["e2el_s"]).serving) == SERVED


@pytest.mark.parametrize(
    ("column", "unit", "larger"),
    [
        ("ttft_s", "s", False), ("tpot_s", "s", False), ("run.time_s", "s", False), ("run.cost_usd", "USD", False), ("run.energy_j", "J", False),
        ("run.device_hours", "1", False), ("usd_per_million_tokens", "USD", False), ("input_throughput_tokens_per_s", "1/s", True),
        ("carbon_kg", "kg", False), ("run.carbon_kg", "kg", False), ("carbon_kg_per_million_tokens", "kg", False),
        ("output_throughput_tokens_per_s", "1/s", True), ("request_throughput_per_s", "1/s", True), ("measured_share", "1", True),
    ],
)  # fmt: skip
def test_figures_have_units_and_directions(column, unit, larger):
    assert (unit_of(column), larger_is_better(column)) == (unit, larger)


# -------------------------------------------------------------------------------------------- carbon


@pytest.mark.parametrize(
    "given",
    [DECODE, {**DECODE, "workload": {"model": "megatron-1.7b", "global_batch": 32}}, {**CASES["graph"], "strategy": "d8"}],
    ids=["decode", "training", "graph"],
)
def test_carbon_is_the_energy_of_the_facility_times_the_intensity(given):
    found = columns(crossflow.from_dict({**given, "system": GREEN}))
    assert found["run.carbon_kg"] == pytest.approx(found["run.facility_energy_j"] * 0.4 / 3.6e6, rel=1e-12)
    assert found["run.carbon_kg"] == found["run.steps"] * found["carbon_kg"]
    million = found["carbon_kg"] / (found["samples_per_second"] * found["step_time_s"]) * 1e6
    assert found["carbon_kg_per_million_samples"] == pytest.approx(million, rel=1e-12)


def test_carbon_grows_with_the_intensity_and_with_the_power():
    made = scenario(system=GREEN)
    by_intensity = columns(made, {"system.operation.carbon_intensity": ["0 g/kWh", "200 g/kWh", "400 g/kWh"]})
    for name in ("carbon_kg", "run.carbon_kg", "carbon_kg_per_million_samples", "carbon_kg_per_million_tokens"):
        np.testing.assert_allclose(by_intensity[name], by_intensity[name][2] * np.array([0.0, 0.5, 1.0]))
    by_power = columns(made, {"system.operation.pue": [1.0, 1.5]})["carbon_kg"]
    assert by_power[1] == pytest.approx(1.5 * by_power[0])


def test_without_an_intensity_there_is_no_carbon():
    assert not [name for name in columns(scenario()) if "carbon" in name]


def test_a_step_that_never_ends_emits_without_end():
    made = crossflow.from_dict({**CASES["graph"], "system": {**GREEN, "template": "pathfinder", "nodes": 8}})
    found = columns(made, {"system.budgets.power_shares.inter_link": [0.0, 0.05]})
    for name in ("carbon_kg", "run.carbon_kg", "carbon_kg_per_million_samples"):
        assert np.isinf(found[name]).tolist() == [True, False]
    alone = crossflow.predict(variant(made, {"system.budgets.power_shares.inter_link": 0.0})).to_dict()
    assert alone["carbon_kg"] is alone["cost_per_million"]["carbon_kg_per_million_samples"] is None


@pytest.mark.thorough
@pytest.mark.slow
def test_the_numbers_of_operation_are_explained():
    found = crossflow.explain(scenario(system=GREEN), objective="carbon_kg")
    effects = {effect.parameter.path: effect.elasticity for effect in found.effects}
    for path, effect in {"system.operation.carbon_intensity": 1.0, "system.operation.pue": 1.0, "system.node_load.supply": -1.0}.items():
        assert effects[path] == pytest.approx(effect, rel=1e-3)


# -------------------------------------------------------------------------------------------- objectives and constraints


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("column", every(2, BY_STRATEGY))
def test_a_search_finds_the_best_of_every_figure(study, column):
    found = search(study, objectives=column, record=[column])
    values = np.array([row[column] for row in found.rows if row["feasible"]], dtype=float)
    assert found.results[0].best.row[column] == (values.max() if larger_is_better(column) else values.min())
    assert len(set(values)) > 1


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("column", every(2, BY_STRATEGY, 1))
def test_a_search_keeps_a_bound_of_every_figure(study, column):
    known = columns(scenario())
    sign, unit = (-1 if larger_is_better(column) else 1), ("" if unit_of(column) == "1" else unit_of(column))
    bound = float(known[column][0]) * (1 + sign * 1e-9)  # a batch adds up in another order than a single point
    found = search(study, objectives="mfu", constraints={column: f"{'>=' if sign < 0 else '<='} {bound!r} {unit}"})
    possible = [row for row in found.rows if row["reason"] is None]
    assert [row["feasible"] for row in possible] == [sign * row[column] <= sign * bound for row in possible]
    assert {row["feasible"] for row in possible} == {True, False}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "constraints", "objective"),
    [
        ("decode", {"tpot_s": "<= 8 ms", "ttft_s": "<= 0.02 min"}, "output_throughput_tokens_per_s"),
        ("prefill", {"ttft_s": "<= 500 ms"}, "input_throughput_tokens_per_s"),
        ("prefill", {"run.time_s": "<= 1_000 days", "run.energy_j": "<= 100 MWh"}, "run.cost_usd"),
        ("training", {"run.cost_usd": "<= 100 MUSD", "run.time_s": "<= 50_000 days"}, "run.cost_usd"),
    ],
)
def test_searches_under_objectives_of_a_service(study, task, constraints, objective):
    """Of all strategies and batches the best that keeps the bounds, as found by trying each by itself."""
    workload = {**({"model": "megatron-1.7b"} if task == "training" else LLAMA), "global_batch": 32, "task": task}
    found = study(
        scenario={**DECODE, "workload": workload},
        space={
            "strategy": "legal" if task != "training" else ["dp8", "tp2-dp4", "tp8", "tp4-dp2-z1", "pp2-dp4", "dp8-z3"],
            "workload.global_batch": [16, 32],
        },
        searches={"all": {"searcher": "exhaustive"}},
        objectives=objective,
        constraints=constraints,
    )
    row = found.results[0].best.row
    assert row["feasible"]
    feasible = [other[objective] for other in found.rows if other["feasible"]]
    assert row[objective] == (max if larger_is_better(objective) else min)(feasible)
    alone = columns(variant(found.study.scenario, {"strategy": row["strategy"], "workload.global_batch": row["workload.global_batch"]}))
    for name in constraints:
        assert row[name] == pytest.approx(alone[name][0], rel=1e-12)


def test_a_design_without_a_value_of_an_objective_is_infeasible(study):
    """Where the task is searched too, a training step keeps no bound of the time to first token."""
    found = study(
        space={"workload.task": ["training", "prefill"], "strategy": ["dp8", "tp8"]},
        searches={"all": {"searcher": "exhaustive"}},
        objectives="ttft_s",
    )
    assert found.results[0].best.row["workload.task"] == "prefill"
    training = [row for row in found.rows if row["workload.task"] == "training"]
    assert [(row["ttft_s"], row["feasible"]) for row in training] == [(None, False)] * 2


def test_prompts_that_do_not_fit_have_no_first_token(study):
    workload = {**LLAMA, "prompt": 16384, "global_batch": 128}
    found = study(
        scenario={**DECODE, "workload": workload},
        space={"strategy": ["tp8"]},
        searches={"all": {"searcher": "exhaustive"}},
        objectives="ttft_s",
    )
    (row,) = found.rows
    assert (row["feasible"], row["reason"]) == (False, "ttft_s has no value here")


def test_tasks_that_are_swept_share_a_table(study):
    found = study(sweep={"workload.task": ["training", "prefill", "decode"]}, columns=["ttft_s", "tpot_s"], record=["ttft_s", "tpot_s"])
    assert [[row[name] is None for name in ("ttft_s", "tpot_s")] for row in found.rows] == [[True, True], [False, True], [False, False]]
    assert found.table()[0] == ["task", "ttft_s", "tpot_s"]


def test_a_rent_that_is_searched_makes_the_cost_known(study):
    system = {"template": "dgx-h100", "nodes": 1}
    price = {"from": "1 USD/hour", "to": "3 USD/hour", "count": 2}
    found = study(
        scenario={**DECODE, "system": system},
        space={"system.operation.price": price},
        searches={"all": {"searcher": "exhaustive"}},
        objectives="run.cost_usd",
    )
    assert found.rows[1]["run.cost_usd"] == pytest.approx(3 * found.rows[0]["run.cost_usd"])


@pytest.mark.cases(1)
@pytest.mark.parametrize("operation", [{"pue": 1.1}, {}])
def test_an_intensity_that_is_searched_makes_the_carbon_known(study, operation):
    found = study(
        scenario={**DECODE, "system": {"template": "dgx-h100", "nodes": 1, "operation": operation}},
        space={"system.operation.carbon_intensity": {"from": "100 g/kWh", "to": "300 g/kWh", "count": 2}},
        searches={"all": {"searcher": "exhaustive"}},
        objectives="carbon_kg",
    )
    assert found.rows[1]["carbon_kg"] == pytest.approx(3 * found.rows[0]["carbon_kg"])
    assert found.results[0].best.row["system.operation.carbon_intensity"] == pytest.approx(0.1 / 3.6e6)


def test_a_search_keeps_to_a_limit_of_carbon(study):
    """Of the strategies whose run stays below the limit the one with the highest use of the peak."""
    found = search(study, scenario={**DECODE, "system": GREEN}, objectives="mfu", constraints={"run.carbon_kg": "<= 400 t"})
    possible = [row for row in found.rows if row["reason"] is None]
    assert {row["feasible"] for row in possible} == {True, False}
    assert all(row["feasible"] == (row["run.carbon_kg"] <= 400e3) for row in possible)
    assert found.results[0].best.row["mfu"] == max(row["mfu"] for row in possible if row["feasible"])


@pytest.mark.thorough
@pytest.mark.slow
def test_figures_are_explained(exactly):
    found = crossflow.explain(scenario(), objective="tpot_s")
    assert found.objective == "tpot_s"
    assert found.value == pytest.approx(columns(scenario())["step_time_s"][0], rel=1e-12)
    with pytest.raises(CrossflowError, match=exactly("tpot_s needs workload.task: decode or serving; here it is prefill")):
        crossflow.explain(scenario(workload={**LLAMA, "task": "prefill"}), objective="tpot_s")


# -------------------------------------------------------------------------------------------- what is told


TRAINING = {**DECODE, "workload": {"model": "llama3-8b", "global_batch": 32}}
NEEDS = [
    (TRAINING, "ttft_s", "ttft_s needs workload.task: prefill, decode or serving; here it is training"),
    (TRAINING, "tpot_s", "tpot_s needs workload.task: decode or serving; here it is training"),
    (DECODE, "input_throughput_tokens_per_s", "input_throughput_tokens_per_s needs workload.task: prefill or serving; here it is decode"),
    (CASES["graph"], "ttft_s", "ttft_s needs a transformer with workload.task: prefill, decode or serving; this is an lstm"),
    ({**DECODE, "run": None}, "run.time_s", "run.time_s needs a run: section, such as run: {tokens: 1.0e12}"),
    ({**DECODE, "system": "dgx-h100"}, "run.cost_usd", "run.cost_usd needs system.operation.price, such as 2 USD/hour; dgx-h100 gives none"),
    ({**DECODE, "system": "dgx-h100"}, "usd_per_million_tokens", "usd_per_million_tokens needs system.operation.price, such as 2 USD/hour; dgx-h100 gives none"),
    (DECODE, "carbon_kg", "carbon_kg needs system.operation.carbon_intensity, such as 400 g/kWh; dgx-h100 gives none"),
    (DECODE, "run.carbon_kg", "run.carbon_kg needs system.operation.carbon_intensity, such as 400 g/kWh; dgx-h100 gives none"),
    (DECODE, "carbon_kg_per_million_tokens", "carbon_kg_per_million_tokens needs system.operation.carbon_intensity, such as 400 g/kWh; dgx-h100 gives none"),
    ({**DECODE, "system": GREEN, "run": None}, "run.carbon_kg", "run.carbon_kg needs a run: section, such as run: {tokens: 1.0e12}"),
    (DECODE, "cost_usd", "cost_usd needs prices of parts; the cost of dgx-h100 is not known"),
    (DECODE, "measured_share", "measured_share needs a profile: of measured events"),
    ({**DECODE, "workload": {**LLAMA, "dtype": "fp8"}}, "run.normalised_device_hours", "run.normalised_device_hours needs a dtype that an A100 has; fp8 is none"),
    ({**DECODE, "workload": {"model": "vit-l", "global_batch": 32}, "run": None}, "usd_per_million_tokens", "usd_per_million_tokens needs a model with tokens; this transformer has none"),
]  # fmt: skip


@pytest.mark.cases(8)
@pytest.mark.slow
@pytest.mark.parametrize(("given", "column", "sentence"), NEEDS)
def test_what_a_scenario_lacks_is_told(refused, given, column, sentence):
    assert refused(scenario=given, objectives=column) == [sentence]
    unit = "" if unit_of(column) == "1" else unit_of(column)
    assert refused(scenario=given, objectives="mfu", constraints={column: f"<= 1 {unit}"}) == [sentence]


def test_all_names_that_are_no_columns_are_told_at_once(refused):
    found = refused(objectives=["stp_time_s", "serving.ttft_s"], constraints={"run.price_usd": "<= 1 USD", "measured_share": ">= 0.5"})
    assert found == [
        "no column 'stp_time_s'; did you mean 'step_time_s'?",
        "no column 'serving.ttft_s'; did you mean 'ttft_s'?",
        "no column 'run.price_usd'; did you mean 'run.cost_usd'?",
        "measured_share needs a profile: of measured events",
    ]


def test_known_columns_are_listed_once_the_close_ones_first(study):
    with pytest.raises(SpecError) as caught:
        search(study, objectives=["stp_time_s", "run.price_usd"])
    first, last = (problem.message.splitlines() for problem in caught.value.problems)
    assert len(first) == 1
    assert last[1].startswith("  close: step_time_s, ")
    assert {line.split(":")[0].strip() for line in last[2:]} >= {"times", "cost", "sizes", "breakdown_s.*", "run.*"}
    assert max(map(len, last)) < 600


def test_a_bound_without_its_unit_is_refused(refused):
    assert refused(constraints={"tpot_s": "<= 50"}) == ["expected a quantity in s, got the bare number 50; write the unit"]


# ------------------------------------------------------------------------------------------ energy of a million tokens


def test_the_energy_of_a_million_tokens_is_that_of_the_steps_that_make_them():
    """A step of 32 requests writes 32 tokens, a token each; it is power over rate, as the run of 1e12 tokens counts it."""
    found = columns(scenario())
    assert found["energy_j_per_million_tokens"] == pytest.approx(1e6 / 32 * found["energy_j"], rel=1e-12)
    assert found["energy_j_per_million_tokens"] == pytest.approx(1e6 * found["power_w"] / found["tokens_per_second"], rel=1e-12)
    assert found["run.energy_j"] == pytest.approx(1e6 * found["energy_j_per_million_tokens"], rel=1e-12)
    assert (unit_of("energy_j_per_million_tokens"), larger_is_better("energy_j_per_million_tokens")) == ("J", False)


def test_a_larger_batch_takes_less_energy_a_token():
    """Weights are read once for all of a batch."""
    spent = columns(scenario(), {"workload.global_batch": [8, 32, 128]})["energy_j_per_million_tokens"]
    assert (np.diff(spent) < 0).all()


def test_the_energy_of_tokens_is_an_objective_and_a_constraint(study):
    """Of all strategies the one with the least, and those beyond a bound are not feasible."""
    column = "energy_j_per_million_tokens"
    bound = 1.5 * float(columns(scenario())[column][0])
    found = search(study, objectives=column, record=[column], constraints={column: f"<= {bound!r} J"})
    possible = [row for row in found.rows if row["reason"] is None]
    assert [row["feasible"] for row in possible] == [row[column] <= bound for row in possible]
    assert {row["feasible"] for row in possible} == {True, False}
    assert found.results[0].best.row[column] == min(row[column] for row in possible)


def test_energy_of_tokens_that_a_model_does_not_have_is_refused():
    product = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "fp16", "task": "forward"}
    made = crossflow.from_dict({"system": "pathfinder", "workload": product, "strategy": "d1"})
    found = columns(made)
    assert "energy_j_per_million_tokens" not in found
    assert found["energy_j_per_million_samples"] == pytest.approx(1e6 * found["power_w"] / found["samples_per_second"])
    with pytest.raises(CrossflowError, match=r"^energy_j_per_million_tokens needs a model with tokens; this gemm has none$"):
        check_objective(made, found, "energy_j_per_million_tokens")


def test_a_comparison_tells_the_same_energy():
    row = crossflow.compare("llama3-8b", ["dgx-h100", "dgx-a100"], devices=8, task="decode").rows[0]
    known = row.prediction.score.per_million()["energy_j_per_million_tokens"][0]
    assert row.to_dict()["energy_j_per_million_tokens"] == pytest.approx(known, rel=1e-12)
