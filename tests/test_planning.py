"""Planning: laws of the best plans, why others fail, and what is chosen where a scenario says auto."""

import re
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow import evaluate
from crossflow.answers.planning import planner
from crossflow.answers.planning.foreign import instead_of
from crossflow.answers.planning.opening import as_settings
from crossflow.answers.planning.question import Question
from crossflow.answers.planning.requesting import _is_document
from crossflow.answers.score import MARGIN, Score, larger_is_better
from crossflow.answers.study.reading import read_study
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.units import show
from crossflow.parallel.strategy.reading import every_strategy, legal_strategies

TRAINING = {"system": {"template": "dgx-h100"}, "workload": {"model": "llama3-8b", "global_batch": 32}, "strategy": "auto"}
DECODE = {
    "system": "dgx-h100",
    "workload": {"model": "llama3-70b", "task": "decode", "global_batch": 16, "prompt": 512, "output": 64},
    "strategy": "auto",
}
SERVING = {"system": "dgx-h100", "workload": {**DECODE["workload"], "task": "serving"}, "strategy": "auto"}
PREFILL = {
    "system": "dgx-h100",
    "workload": {"model": "llama3-8b", "task": "prefill", "global_batch": 8, "prompt": 512},
    "strategy": "auto",
}
DLRM = {"system": {"template": "zionex", "nodes": 16}, "workload": "dlrm-a", "strategy": "auto"}
LSTM = {"system": {"template": "pathfinder", "devices": 4}, "workload": {"model": "lstm-16k", "global_batch": 2048}, "strategy": "auto"}
GEMM = {
    "system": {"template": "pathfinder", "devices": 4},
    "workload": {"model": "gemm", "m": 4096, "n": 4096, "k": 4096},
    "strategy": "auto",
}
KINDS = {"training": TRAINING, "decode": DECODE, "prefill": PREFILL, "serving": SERVING, "dlrm": DLRM, "lstm": LSTM, "gemm": GEMM}
EQUAL = 1e-12  # last digits may depend on how many points are evaluated together
LARGE = {"system": "dgx-h100", "workload": {"model": "llama3-70b", "global_batch": 32}}  # which no strategy fits


@pytest.fixture(scope="module", params=KINDS)
def data(request):
    return KINDS[request.param]


@pytest.mark.parametrize("data", [TRAINING, SERVING, LSTM, LARGE], ids=["training", "serving", "lstm", "large"])
def test_auto_is_the_plan_without_the_figures_of_any(data, monkeypatch):
    anything = crossflow.from_dict({**data, "strategy": "any"})
    plans = planner.plan(anything, top=1)
    for unused in ("_rows", "_refusals", "_remedies"):
        monkeypatch.setattr(planner, unused, lambda *_: pytest.fail("auto has no use for this"))
    made = crossflow.from_dict({**data, "strategy": "auto"})
    assert made.strategy_text == (plans.chosen or plans.plans[0]).strategy
    assert (made.auto.legal, made.auto.tried, made.auto.fitting) == (plans.legal, plans.tried, plans.fitting)


@pytest.fixture(scope="module")
def plans(data):
    return crossflow.plan(data)


def every_score(plans):
    strategies = every_strategy(plans.scenario.workload, plans.scenario.nodes, fused=plans.scenario.fused_attention)
    return strategies, evaluate(plans.scenario, {"strategy": list(strategies)})


# ------------------------------------------------------------------------------------------ laws of the list


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_the_best_plan_is_the_fastest_of_all_that_fit(plans):
    strategies, score = every_score(plans)
    fastest = score.step_time[score.feasible].min() if score.feasible.any() else score.step_time.min()
    assert (plans.legal, plans.tried, plans.fitting) == (len(strategies), len(strategies), int(score.feasible.sum()))
    assert plans.fitting == 0 or plans[0].step_time == pytest.approx(fastest, rel=EQUAL)


@pytest.mark.cases(6)
@pytest.mark.slow
def test_figures_of_a_plan_are_those_of_its_prediction(data, plans):
    for one in (plans[0], plans[-1]):
        told, made = one.to_dict(), crossflow.predict(data, strategy=one.strategy).to_dict()
        assert (told["feasible"], told["reason"]) == (made["feasible"], made["reason"])
        for key in ("step_time_s", "mfu", "hfu", "energy_j", "power_w", "throughput"):
            assert told[key] == pytest.approx(made[key], rel=EQUAL), key
        assert {key: made["memory"][key] for key in told["memory"]} == pytest.approx(told["memory"], rel=EQUAL)


@pytest.mark.slow
def test_the_list_is_trusted_as_the_plan_to_take(plans):
    if plans.chosen is not None:
        assert plans.trust == plans.chosen.predict().trust
        assert plans.to_dict()["trust"] == plans.chosen.predict().to_dict()["trust"]


@pytest.mark.cases(4)
@pytest.mark.slow
def test_auto_takes_the_chosen_plan(data, plans):
    scenario = crossflow.load(data)
    assert scenario.strategy_text == (plans.chosen or plans[0]).strategy
    assert (scenario.auto.legal, scenario.auto.tried, scenario.auto.fitting) == (plans.legal, plans.tried, plans.fitting)


@pytest.mark.slow
def test_plans_are_in_the_order_of_time_without_repetition(plans):
    times = np.array([one.step_time for one in plans if one.feasible])
    assert (np.diff(times) >= -EQUAL * times[1:]).all()
    assert len({one.strategy for one in plans}) == len(plans)


def test_all_strategies_that_were_tried_fit_or_are_refused(plans):
    assert plans.fitting + sum(refusal.count for refusal in plans.refusals) == plans.legal


def test_strategies_are_listed_as_text_that_reads_back(plans):
    made = plans.scenario
    texts = every_strategy(made.workload, made.nodes)
    assert len(set(texts)) == len(texts) == len(legal_strategies(made.workload, made.nodes))


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize("objective", ["tokens_per_second", "mfu", "energy_j", "memory_needed_bytes"])
def test_any_column_orders_the_plans(objective):
    plans = crossflow.plan(TRAINING, objective=objective, top=20, margin=0.0)
    _, score = every_score(plans)
    values = score.columns()[objective][score.feasible]
    assert plans[0].value == pytest.approx(values.max() if larger_is_better(objective) else values.min(), rel=EQUAL)
    listed = np.array([one.value for one in plans]) * (-1 if larger_is_better(objective) else 1)
    assert (np.diff(listed) >= -EQUAL * abs(listed[1:])).all()


@pytest.mark.thorough
@pytest.mark.slow
def test_more_memory_never_makes_the_best_plan_slower():
    def fastest(capacity):
        return crossflow.plan(TRAINING, {"system.levels.memory.capacity": capacity}, top=1, margin=0.0)[0].step_time

    times = [fastest(f"{size} GiB") for size in (24, 40, 80, 160)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_own_strategy_is_set_beside_the_best():
    plans = crossflow.plan(TRAINING, strategy="tp8-sp")
    made = crossflow.predict(TRAINING, strategy="tp8-sp")
    assert (plans.own.strategy, plans.own.step_time) == ("tp8-sp", made.step_time)
    _, score = every_score(plans)
    assert plans.own.rank == 1 + int((score.step_time[score.feasible] < made.step_time * (1 - 1e-9)).sum())


def test_own_strategy_for_other_devices_is_left_out_with_a_note():
    plans = crossflow.plan({**TRAINING, "strategy": "dp16"}, top=1)
    assert plans.own is None
    assert plans.notes == ("the scenario's own strategy is not compared: strategy dp16 needs 16 devices "
                           "(tp 1 x cp 1 x dp 16 x pp 1), but the system has 8; system.nodes=2 makes it 16",)  # fmt: skip


# ------------------------------------------------------------------------------------------ margin


def test_tight_plans_are_marked_and_not_chosen():
    plans = crossflow.plan(TRAINING, {"system.levels.memory.capacity": "61 GiB"}, top=200)
    assert any(one.tight for one in plans)
    for one in plans:
        assert one.tight == (one.feasible and one.needed > (1 - MARGIN) * one.capacity)
    assert not plans.chosen.tight
    assert plans.chosen is next(one for one in plans if not one.tight)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_chosen_plan_is_listed_however_short_the_list():
    wide = crossflow.plan(TRAINING, margin=0.6, top=500)
    short = crossflow.plan(TRAINING, margin=0.6, top=2)
    assert wide[0].tight
    assert wide[1].tight
    assert [one.strategy for one in short] == [wide[0].strategy, wide.chosen.strategy]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_larger_margin_never_chooses_a_faster_plan():
    times = [crossflow.plan(TRAINING, margin=margin).chosen.step_time for margin in (0.0, 0.05, 0.3, 0.6)]
    assert times == sorted(times)


def test_where_no_plan_leaves_the_margin_the_best_that_fits_is_chosen():
    plans = crossflow.plan(TRAINING, margin=0.99)
    assert plans.chosen is plans[0]
    assert plans.tight == plans.fitting


def test_a_prediction_says_whether_it_is_tight():
    made = crossflow.predict(TRAINING, strategy="dp8-full").to_dict()["memory"]
    needed = made["total_bytes"]
    for capacity, tight in ((needed / (1 - MARGIN) * 1.001, False), (needed / (1 - MARGIN) * 0.999, True), (needed * 0.9, False)):
        changed = crossflow.predict(TRAINING, {"system.levels.memory.capacity": f"{capacity:.0f} B"}, strategy="dp8-full").to_dict()[
            "memory"
        ]
        assert changed["tight"] is tight
        assert changed["margin"] == pytest.approx(1 - needed / capacity, abs=1e-6)


# ------------------------------------------------------------------------------------------ where nothing fits


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_where_nothing_fits_the_nearest_plan_is_told_with_cures():
    plans = crossflow.plan(LARGE)
    strategies, score = every_score(plans)
    assert plans.fitting == 0
    assert plans.chosen is None
    assert not plans[0].feasible
    assert plans[0].needed == score.memory_needed.min()
    (refusal,) = plans.refusals
    assert (refusal.count, refusal.strategy) == (len(strategies), plans[0].strategy)
    assert refusal.lacking == pytest.approx(plans[0].needed - plans[0].capacity)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("data", [LARGE, {"system": {"template": "zionex", "nodes": 1}, "workload": "dlrm-a"}])
def test_the_number_of_devices_that_is_told_is_enough(data):
    remedy = next(one for one in crossflow.plan(data).remedies if one.startswith("on "))
    devices, strategy = re.match(r"on ([\d,]+) devices (.+) fits with", remedy).groups()
    system = {"template": data["system"] if isinstance(data["system"], str) else data["system"]["template"], "devices": int(devices)}
    if system["template"] == "dgx-h100":
        system = {"template": "h100-ib-cluster", "nodes": int(devices) // 8, "devices_per_node": 8}
    assert crossflow.predict({**data, "system": system, "strategy": strategy}).feasible


@pytest.mark.parametrize("fewer", [1, 2])
def test_more_devices_are_told_with_the_fastest_of_the_plans_that_then_fit(fewer):
    """Those that keep least fit too, and are slower: they are asked first as they are few. On two devices none fits."""

    def on(count):
        model = {"model": "transformer", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 32000, "sequence": 2048}
        system = {"template": "h100-ib-cluster", "nodes": None, "devices": count, "levels": {"memory": {"capacity": "3 GB"}}}
        return crossflow.from_dict({"system": system, "workload": {**model, "global_batch": 8}, "strategy": "auto"})

    def scored(scenario):
        legal = every_strategy(scenario.workload, scenario.nodes, fused=scenario.fused_attention)
        return legal, evaluate(scenario, {"strategy": list(legal)})

    (told,) = planner._on_more_devices(on(fewer))
    legal, score = scored(on(4))
    best = np.where(score.feasible, score.step_time, np.inf).argmin()
    assert told == f"on 4 devices {legal[best]} fits with {show(3e9 - score.memory_needed[best], 'B')} to spare"
    assert not scored(on(2))[1].feasible.any()


@pytest.mark.slow
def test_auto_without_room_is_an_answer_not_an_error():
    made = crossflow.predict({**LARGE, "strategy": "auto"})
    assert not made.feasible
    assert str(made.scenario.auto) == f"the nearest to fitting: none fits (of {made.scenario.auto.tried:,} tried)"


def test_a_batch_of_which_nothing_fits_is_scored():
    scenario = crossflow.from_dict({**LARGE, "strategy": "tp8"})
    score = evaluate(scenario, {"strategy": ["tp8", "tp4-dp2"]}, fitting=True)
    assert isinstance(score, Score)
    assert not score.feasible.any()
    assert np.isinf(score.step_time).all()


# ------------------------------------------------------------------------------------------ too many to try


@pytest.mark.slow
def test_of_too_many_strategies_a_sample_and_its_best_degrees_are_tried(monkeypatch):
    whole = crossflow.plan(TRAINING)
    monkeypatch.setattr(planner, "MOST", whole.legal // 2)
    some = crossflow.plan(TRAINING)
    assert (some.legal, some.tried) == (whole.legal, whole.legal // 2)
    assert some[0].step_time == pytest.approx(whole[0].step_time, rel=EQUAL)
    assert some.notes == (f"{some.tried:,} of {some.legal:,} legal strategies were tried: a sample, and all with the degrees of its best",)


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        (
            {},
            {"objective": "speed"},
            "no objective 'speed'; did you mean 'tokens_per_second' or 'step_time_s'?; objectives are the numeric columns of a score",
        ),
        ({}, {"objective": "ttft_s"}, "ttft_s needs workload.task: prefill, decode or serving; here it is training"),
        ({}, {"top": 0}, "top: expected at least one plan, got 0"),
        ({}, {"margin": 1.0}, "margin: expected a share of memory from 0 to below 1, got 1"),
        (
            {"system.devices": 7, "workload.layers": 2},
            {},
            "scenario: strategy: no strategy divides this transformer over 7 devices with 2 layers, 32 heads and global_batch 1;"
            " give another number of devices, or a global_batch that is a multiple of 7"
            " (with system.devices=7, workload.layers=2)",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_sentence(changes, options, sentence, exactly):
    with pytest.raises((CrossflowError, ValueError), match=exactly(sentence)):
        crossflow.plan({**TRAINING, "workload": {**TRAINING["workload"], "global_batch": 1}}, changes, **options)


@pytest.mark.parametrize("strategy", ["auto", "any"])
def test_a_program_has_nothing_to_plan(strategy):
    data = {"system": "dgx-h100", "workload": {"model": "program", "file": "docs/examples/mlp.program.json"}, "strategy": strategy}
    with pytest.raises(CrossflowError, match="a program says by itself how it is divided; leave strategy out"):
        crossflow.plan(data) if strategy == "any" else crossflow.load(data)


# ------------------------------------------------------------------------------------------ auto in scenarios


def test_a_scenario_with_auto_holds_the_chosen_strategy_from_then_on():
    scenario = crossflow.load(TRAINING)
    again = crossflow.from_dict(scenario.to_dict())
    assert scenario.to_dict()["strategy"] == scenario.strategy_text == again.strategy_text
    assert again.auto is None


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_auto_is_chosen_for_the_settings():
    small, large = (crossflow.load(TRAINING, {"system.levels.memory.capacity": size}).strategy_text for size in ("24 GiB", "160 GiB"))
    assert small != large
    assert crossflow.predict(TRAINING, {"system.levels.memory.capacity": "24 GiB"}).feasible


def test_predictions_say_how_the_strategy_was_chosen():
    auto = crossflow.predict(TRAINING).to_dict()["auto"]
    assert auto["text"] == f"the fastest of {auto['fitting']:,} that fit (of {auto['tried']:,} tried)"
    assert "auto" not in crossflow.predict(TRAINING, strategy="tp8-sp").to_dict()


# ------------------------------------------------------------------------------------------ the Python interface


@pytest.mark.parametrize(
    "settings",
    ["system.nodes=2", ["system.nodes=2"], {"system.nodes": 2}, {"system.nodes": "2"}, {"system.nodes": np.int64(2)}],
)
def test_settings_are_taken_in_any_form(settings):
    assert crossflow.load({**DLRM, "strategy": "dense ddp, embedding mp"}, settings).devices == 16


@pytest.mark.parametrize(
    ("text", "scenario"),
    [
        ("[]", False), ("[1, 2]", False), ('{"rows": [1]}', False), ("7", False), ("{", False), ('{"requests": []}', True),
        ('{"system": "dgx-h100", "workload": "llama3-8b"}', True),
    ],
)  # fmt: skip
def test_a_json_file_of_requests_is_a_document_only_where_it_has_a_section_of_one(tmp_path, text, scenario):
    path = tmp_path / "requests.json"
    path.write_text(text)
    assert _is_document(path) == scenario
    assert not _is_document(path.rename(tmp_path / "requests.jsonl"))


@pytest.mark.parametrize("degrees", [{"tp": 4, "dp": 2}, {"tp": 2, "dp": 4}, {"tp": 8, "dp": 1}, {"tp": 1, "dp": 8}])
def test_experts_over_all_ranks_are_a_plan_that_can_be_run(degrees):
    """What is answered to an option of a server is a plan of those devices, on which it is legal."""
    words = [(name, str(value)) for name, value in degrees.items()] + [("enable_expert_parallel", "")]
    answer = instead_of(words, ["--strategy", "--set"], {"model": "mixtral-8x7b", "on": "dgx-h100"})
    strategy = answer.removeprefix("--strategy ")
    found = crossflow.load({"system": "dgx-h100", "workload": {"model": "mixtral-8x7b", "global_batch": 64}, "strategy": strategy})
    assert found.strategy.devices == 8
    assert found.strategy.ep == 8


def test_settings_may_be_keywords_and_scenarios():
    scenario = crossflow.load(TRAINING)
    assert crossflow.predict(scenario, workload__global_batch=64).scenario.workload.global_batch == 64
    assert crossflow.predict(scenario, **{"workload.global_batch": 64}).scenario.workload.global_batch == 64
    assert crossflow.predict(scenario).scenario is scenario


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_a_path_and_its_data_are_the_same_scenario(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text("system: {template: dgx-h100}\nworkload: {model: llama3-8b, global_batch: 32}\nstrategy: auto\n")
    assert crossflow.predict(str(path)).step_time == crossflow.predict(path).step_time == crossflow.predict(TRAINING).step_time


def test_values_of_settings_are_written_as_text():
    given = {"a": {"b": 1.5}, "c": True, "d": None, "e": "80 GiB", "f": [1, 2]}
    assert as_settings(given) == ('a={"b": 1.5}', "c=true", "d=null", "e=80 GiB", "f=[1, 2]")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (5, "settings: expected texts such as 'system.devices=512', or values by path, got 5"),
        ({"system.nodes": {1, 2}}, "settings: system.nodes: expected text, a number, a list or a mapping, got {1, 2}"),
    ],
)
def test_settings_that_are_none_are_refused(settings, sentence, exactly):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        crossflow.load(TRAINING, settings)


@pytest.mark.parametrize("source", [5, ["a"]])
def test_what_is_no_scenario_is_refused(source):
    with pytest.raises(CrossflowError, match="expected a scenario, the path of its file or its data as a mapping, got "):
        crossflow.load(source)


def test_a_model_in_the_place_of_a_scenario_is_refused_with_the_command(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(CrossflowError, match=f"{re.escape(str(path))} describes a model.* crossflow predict --model .*"):
            crossflow.load(path)
    with pytest.raises(SpecError, match="this is a model; say what it runs on: crossflow predict --model"):
        crossflow.load("templates/models/llama3-8b.yaml")


SYSTEM = (
    "this is a system; say what runs on it: crossflow predict --model llama3-8b --on PATH;"
    " a scenario names it: system: {template: part.yaml}"
)
PARTS = [
    (
        "kind: system\nname: c\ndevice: h100-sxm\n",
        f"1: kind: {SYSTEM}",
    ),
    ("template: dgx-h100\nnodes: 4\n", f"1: template: {SYSTEM}"),
    ("kind: software\nname: own\n", "1: kind: this is a software stack; name it in a scenario: software: part.yaml"),
    (
        "name: own\nextends: standard\nlogic: {N4: null}\n",
        "3: logic: this is a technology library; name it in a scenario: system: {template: reference-training, techlib: part.yaml}",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), PARTS, ids=["system", "over a template", "software", "library"])
def test_a_part_of_a_scenario_in_the_place_of_one_is_refused_with_its_place(tmp_path, text, sentence, exactly):
    path = tmp_path / "part.yaml"
    path.write_text(text)
    for read in (crossflow.load, read_study):
        with pytest.raises(SpecError, match=exactly(f"{path}:{sentence}".replace("PATH", str(path)))):
            read(path)


def test_a_scenario_in_the_place_of_a_study_is_refused_with_the_command(tmp_path, exactly):
    path = tmp_path / "s.yaml"
    path.write_text("system: dgx-h100\nworkload: llama3-8b\n")
    cure = f"predict it with: crossflow predict {path}; a study names it: scenario: s.yaml"
    with pytest.raises(SpecError, match=exactly(f"{path}:1: system: this is a scenario; {cure}")):
        read_study(path)


@pytest.mark.thorough
@pytest.mark.slow
def test_legal_strategies_are_those_that_are_planned():
    legal = crossflow.legal(LARGE)
    assert len(legal) == len(set(legal)) == crossflow.plan(LARGE).legal
    assert "tp8-sp" in legal


@pytest.mark.slow
def test_plans_are_plain_data_a_table_and_readable():
    plans = crossflow.plan(DLRM, top=3)
    assert repr(plans).splitlines()[0] == f"Plans('scenario': {plans.counts})"
    assert plans.chosen.strategy in repr(plans)
    pandas = pytest.importorskip("pandas")
    frame = plans.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["strategy"]) == [one.strategy for one in plans]
    assert list(frame["memory.total_bytes"]) == [one.needed for one in plans]


# ------------------------------------------------------------------------------------------ without a file


def asked(settings=(), **given):
    document, assumed = Question(**{"model": "llama3-70b", "system": "h100-ib-cluster", **given}).scenario(settings)
    return document.data, assumed


def test_a_question_is_the_scenario_that_it_stands_for():
    data, assumed = asked(nodes=4, strategy="tp8-dp4", batch=64)
    assert data["system"] == {"template": "h100-ib-cluster", "nodes": 4}
    assert data["workload"] == {"model": "llama3-70b", "global_batch": 64}
    assert data["strategy"] == "tp8-dp4"
    assert assumed == ()


@pytest.mark.parametrize(
    ("given", "batch", "sentence"),
    [
        ({"nodes": 16}, 1024, "global_batch 1,024 of 8,192 tokens each: the model's own; --batch changes it"),
        (
            {"nodes": 12},
            1056,
            "global_batch 1,056 of 8,192 tokens each: the model's own, rounded up to a multiple of 96 devices; --batch changes it",
        ),
        ({"nodes": 2, "task": "decode"}, 128, "global_batch 128: 8 requests at once for each device; --batch changes it"),
        ({"nodes": 2, "task": "prefill"}, 16, "global_batch 16: 1 request at once for each device; --batch changes it"),
    ],
)
def test_batches_that_nobody_gave_are_told(given, batch, sentence):
    data, assumed = asked(**given)
    assert data["workload"]["global_batch"] == batch
    assert assumed[-1] == sentence


HUGGINGFACE = Path(__file__).parent / "data" / "huggingface"


@pytest.mark.parametrize(
    ("model", "name"),
    [("llama3.1-405b", "llama3.1-405b"), ("mine-1.5.json", "mine-1.5"), ("config.json", "own"), ("../own/config.json", "own")],
)
def test_questions_have_the_whole_name_of_their_model(model, name, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    for file in ("config.json", "mine-1.5.json"):
        (tmp_path / "own" / file).write_text((HUGGINGFACE / "mistral-7b.json").read_text())
    assert asked(model=model, nodes=4)[0]["name"] == f"{name} on h100-ib-cluster"


def test_devices_that_nothing_connects_are_part_of_a_system_of_them():
    assert asked(system="h100-sxm", devices=8)[0]["system"] == {"template": "dgx-h100", "devices": 8}
    assert asked(system="h100-sxm", devices=8, task="decode")[0]["system"]["template"] == "dgx-h100"
    assert asked(system="h100-sxm", devices=1)[0]["system"]["template"] == "h100-sxm"
    assert asked(["system.devices_per_node=8"], system="h100-sxm", devices=8)[0]["system"]["template"] == "h100-sxm"
    with pytest.raises(CrossflowError, match="p4-datasheet is a device, and nothing connects 8 of them; name a system of it, or describe"):
        asked(system="p4-datasheet", devices=8)


def test_a_launch_file_in_the_place_of_a_scenario_is_told_apart(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers 2\n")
    with pytest.raises(CrossflowError, match=r"run\.sh is a launch file, not a scenario; read its flags with: crossflow predict --from"):
        crossflow.predict(script)


def test_plans_in_a_notebook_have_what_they_cost_where_devices_have_a_price():
    """Eight devices of 2 dollars an hour, a sample on each."""
    scenario = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": "llama2-7b", "task": "decode", "global_batch": 8}}
    free = crossflow.plan({**scenario, "strategy": "auto"}, top=2)
    priced = crossflow.plan({**scenario, "strategy": "auto"}, {"system.operation.price": "2 USD/hour"}, top=2)
    cells = [f'<td style="text-align: left">{2 / 3600 * one.step_time * 1e6:.4g}</td></tr>' for one in priced]
    assert [priced._repr_html_().count(cell) for cell in cells] == [1, 1]
    assert "<th>MFU</th><th>usd_per_million_samples</th></tr>" in priced._repr_html_()
    assert "<th>MFU</th></tr>" in free._repr_html_()


@pytest.mark.thorough
def test_one_plan_that_is_tied_is_told_in_the_singular():
    scenario = {"system": {"template": "dgx-h100", "nodes": 8}, "workload": {"model": "llama3-8b", "global_batch": 512}, "strategy": "auto"}
    found = {plans.tied[:25] for top in (2, 4) if (plans := crossflow.plan(scenario, top=top))}
    assert found == {"1 of the others below is ", "3 of the others below are"}


def test_what_settings_give_is_not_assumed():
    data, assumed = asked(["workload.global_batch=32", "workload.prompt=100", "system.nodes=1"], task="decode")
    assert assumed == ("256 tokens written for each request; --set workload.output=N changes that",)
    assert "global_batch" not in data["workload"]


def test_prompts_alone_write_no_tokens():
    data, assumed = asked(["system.nodes=1"], task="prefill", batch=8)
    assert assumed == ("prompts of 2,048 tokens; --set workload.prompt=N changes that",)
    assert "output" not in data["workload"]


@pytest.mark.parametrize(("on", "strategy"), [(None, "sp"), ("dgx-h100", "tp8-sp"), ("gb200-nvl72", "tp8-dp9-sp")])
def test_a_switch_that_needs_degrees_takes_eight_devices_of_a_node_at_most(on, strategy):
    assert instead_of([("sequence_parallel", "")], ["--strategy", "--set"], {"model": "llama2-7b", "on": on}) == f"--strategy {strategy}"


@pytest.mark.parametrize(("devices", "nodes"), [(16, 2), (24, 3), (20, 3)])
def test_other_devices_of_a_file_that_counts_nodes_are_whole_nodes(devices, nodes, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("system: {template: dgx-h100, nodes: 4}\nworkload: {model: llama2-7b}\nstrategy: tp8-dp4\n")
    told = instead_of([("gpus", str(devices))], ["--set"], {"scenario": path})
    assert told == f"--set strategy=tp8-dp{nodes} --set system.nodes={nodes}"


def test_devices_that_a_system_has_by_default_are_told():
    _, assumed = asked(batch=1024)
    assert assumed == ("128 devices, all that h100-ib-cluster has by default; --nodes or --devices changes that",)


@pytest.mark.slow
def test_plans_take_as_long_in_the_list_as_alone():
    """With PyTorch's stack too, where sharded weights alone are copied out of the buffers of their messages."""
    plans = crossflow.plan(TRAINING, {"software": "pytorch"}, top=40)
    zeros = {one.strategy.partition("-z")[2][:1] for one in plans}
    assert len(zeros) > 1
    for one in plans[:6]:
        assert crossflow.predict({**TRAINING, "software": "pytorch", "strategy": one.strategy}).step_time == pytest.approx(
            one.step_time, rel=1e-12
        )


def test_a_tight_plan_is_taken_where_all_that_leave_memory_are_many_times_as_slow():
    """Of GPT-3 175B on 16 H100 only ZeRO-3 left a tenth of the memory, and `auto` took it: a request took 449 s in the place of 29 s."""
    plans = crossflow.plan(model="gpt3-175b", on="dgx-h100", nodes=2, task="serving")
    roomy = min(one.value for one in crossflow.plan(model="gpt3-175b", on="dgx-h100", nodes=2, task="serving", top=200) if not one.tight)
    assert plans.chosen is plans[0]
    assert plans.chosen.tight
    assert roomy > 5.0 * plans.chosen.value
    assert any(note.startswith("a tight plan is the one to take") for note in plans.notes)
    asked = crossflow.predict(model="gpt3-175b", on="dgx-h100", nodes=2, task="serving")
    assert asked.scenario.strategy_text == plans.chosen.strategy


@pytest.mark.parametrize(("model", "prompt"), [("gpt3-175b", 1792), ("opt-66b", 1792), ("llama3-8b", 2048)])
def test_prompts_that_nobody_gives_leave_the_answer_its_positions(model, prompt):
    """A preset with 2,048 learned positions was refused with its own defaults, for 2,048 tokens of prompt and 256 of answer."""
    assert crossflow.predict(model=model, on="dgx-h100", nodes=2, task="decode", strategy="any").scenario.workload.prompt == prompt
