"""Legal strategies: each runs, none is missing, none twice."""

import itertools
import re

import numpy as np
import pytest
import yaml

from crossflow.answers.evaluation import evaluate
from crossflow.answers.prediction import predict
from crossflow.answers.scenario import check_strategy, divides, from_dict
from crossflow.answers.study.run import run_study
from crossflow.base.errors import CrossflowError, SpecError, StrategyError
from crossflow.parallel.strategy.graphs import graph_mesh, legal_meshes
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.parallel.transform import transform


def brute(graph, devices):
    """Every degree tried."""
    found = set()
    for rows, columns, inner, data, stages in itertools.product(range(1, devices + 1), repeat=5):
        if rows * columns * inner * data * stages != devices or (inner > 1 and rows * columns > 1):
            continue
        kernel = f"CR-{inner}" if inner > 1 else f"RC-{rows}-{columns}" if rows * columns > 1 else ""
        parts = [kernel, f"d{data}" if data > 1 else "", f"p{stages}" if stages > 1 else ""]
        text = "-".join(part for part in parts if part) or "d1"
        try:
            transform(graph, graph_mesh(text))
        except StrategyError:
            continue
        found.add(text)
    return found


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12])
@pytest.mark.parametrize("hidden", [8, 12])
def test_legal_strategies_are_those_that_transform(lstm, devices, hidden):
    graph = lstm("d1", workload={"hidden": hidden, "vocabulary": 24, "sequence": 2, "global_batch": 12}).graph()
    found = [str(mesh) for mesh in legal_meshes(graph, devices)]
    assert len(found) == len(set(found))
    assert set(found) == brute(graph, devices)
    assert all(graph_mesh(text).devices == devices for text in found)


# ---------------------------------------------------------------------------------- strategies of other workloads

CLUSTER = {"template": "a100-ib-cluster", "nodes": 2}
SMALL = {"model": "megatron-7.5b", "global_batch": 64}
LLAMA = {"model": "llama2-7b", "global_batch": 64}


def scenario_of(**parts):
    return from_dict({"system": CLUSTER, "workload": SMALL, **parts})


def test_a_strategy_by_layer_types_may_be_text():
    """As a mapping and as text, hierarchical strategies of a transformer are the same plan."""
    text = scenario_of(strategy="transformer (tp, ddp)").strategy
    mapping = scenario_of(strategy={"transformer": "(tp, ddp)"}).strategy
    assert text == mapping == scenario_of(strategy="tp8-dp2-mb32").strategy


def test_a_service_takes_all_requests_of_a_replica_at_once():
    decode = {**SMALL, "task": "decode", "prompt": 100, "output": 10}
    assert scenario_of(workload=decode, strategy="tp8-dp2").strategy.micro_batch == 32
    assert scenario_of(workload=decode, strategy="tp8-dp2-mb4").strategy.micro_batch == 4
    assert scenario_of(workload=SMALL, strategy="tp8-dp2").strategy.micro_batch == 1


@pytest.mark.slow
def test_strategies_of_services_read_back_as_themselves():
    """Text without a microbatch means all requests at once, so that one request at a time is written out."""
    decode = {**LLAMA, "task": "decode", "prompt": 2048, "output": 128}
    one = scenario_of(workload=decode, strategy={"tp": 8, "dp": 2, "micro_batch": 1})
    assert one.strategy_text == "tp8-dp2-mb1"
    score = evaluate(one, {"strategy": [one.strategy_text, "tp8-dp2"]})
    assert score.step_time[0] == pytest.approx(predict(one).score.step_time[0], rel=1e-12)
    assert score.step_time[0] > 5 * score.step_time[1]
    texts = every_strategy(one.workload, one.nodes)
    assert "tp8-dp2-mb1" in texts
    assert all(scenario_of(workload=decode, strategy=text).strategy_text == text for text in texts)


def test_a_service_reads_its_prompts_whatever_the_models_sequence():
    def reading(**changes):
        return predict(scenario_of(workload={**LLAMA, "task": "prefill", "output": 8, **changes}, strategy="tp8-dp2"))

    short, long, plain = reading(prompt=256), reading(prompt=1024), reading(sequence=1024)
    assert 3.5 < long.step_time / short.step_time < 5.0
    assert long.step_time == plain.step_time == reading(prompt=1024, sequence=512).step_time
    assert long.serving["input_throughput_tokens_per_s"] == pytest.approx(64 * 1024 / long.step_time)
    writing = predict(scenario_of(workload={**LLAMA, "task": "decode", "prompt": 1024, "output": 8}, strategy="tp8-dp2"))
    assert writing.serving["ttft_s"] == long.step_time


def test_figures_of_a_service_agree():
    served = predict(scenario_of(workload={**LLAMA, "task": "decode", "prompt": 1024, "output": 32}, strategy="tp8-dp2")).serving
    assert served["e2el_s"] == pytest.approx(served["ttft_s"] + 31 * served["tpot_s"])
    assert served["request_throughput_per_s"] == pytest.approx(64 / served["e2el_s"])
    assert served["output_throughput_tokens_per_s"] == pytest.approx(32 * served["request_throughput_per_s"])


def test_prompts_that_do_not_fit_are_told_where_tokens_are_written():
    writing = {"model": "llama3-8b", "task": "decode", "global_batch": 128, "prompt": 16384, "output": 256}
    found = predict(from_dict({"system": "dgx-h100", "workload": writing, "strategy": "tp8"}))
    assert found.feasible
    assert (
        found.reading_problem
        == predict(from_dict({"system": "dgx-h100", "workload": {**writing, "task": "prefill"}, "strategy": "tp8"})).reason
    )
    assert found.serving["ttft_s"] is found.serving["request_throughput_per_s"] is None
    assert found.serving["tpot_s"] == found.step_time


def test_remedies_of_services_fit_as_they_are_written():
    given = {
        "system": "dgx-h100", "strategy": {"dp": 8},
        "workload": {"model": "mixtral-8x7b", "task": "prefill", "prompt": 4096, "output": 256, "global_batch": 256},
    }  # fmt: skip
    sentences = predict(from_dict(given)).remedies
    assert sentences
    for sentence in sentences:
        assert "recompute" not in sentence
        changes = re.split(" and |, ", sentence.split(" frees ")[0].replace(" (", ", ").replace(")", ""))
        spare = re.search("fits with (.*) to spare", sentence)[1]
        settings = yaml.safe_load("\n".join(changes))
        own = {key.removeprefix("workload."): settings.pop(key) for key in [*settings] if key.startswith("workload.")}
        found = predict(from_dict({**given, "workload": {**given["workload"], **own}, "strategy": {"dp": 8, **settings}}))
        assert found.feasible
        left = found.score.memory_capacity[0] - found.score.memory_needed[0]
        assert f"{left / 2**30:.1f} GiB" == spare


def test_nothing_is_written_across_ranks_that_share_a_sample():
    writing = {**LLAMA, "task": "decode", "prompt": 1024, "output": 32}
    with pytest.raises(CrossflowError, match="cp = 2 divides the tokens of a sample, and decoding writes one at a time"):
        check_strategy(scenario_of(workload=writing, strategy="tp8-cp2"))
    with pytest.raises(CrossflowError, match="the 4 tokens that a microbatch writes are not divisible by tp = 8"):
        check_strategy(scenario_of(workload=writing, strategy="tp8-dp2-mb4-sp"))


@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_prompts_that_ranks_do_not_divide_are_told_with_their_place(task):
    workload = {**LLAMA, "task": task, "prompt": 1023, "output": 8}
    with pytest.raises(CrossflowError, match="the 1023 tokens of a sample are not divisible by cp x tp = 8"):
        check_strategy(scenario_of(workload=workload, strategy="tp8-dp2-sp"))
    assert predict(scenario_of(workload={**workload, "prompt": 1024, "sequence": 1023}, strategy="tp8-dp2-sp")).serving["ttft_s"] > 0


def test_what_is_wrong_beside_layer_types():
    with pytest.raises(CrossflowError, match=r"'MLP'; did you mean 'mlp'\?; layer types: transformer, dense, attention, mlp") as told:
        scenario_of(strategy={"attention": ["ddp"], "MLP": ["tp", "ddp"]})
    assert "attention_tp" not in str(told.value)
    with pytest.raises(CrossflowError) as told:
        scenario_of(system={**CLUSTER, "nodes": None, "devices": 12}, strategy={"attention": ["ddp"], "mlp": ["tp", "ddp"]})
    assert "strategy" not in str(told.value)


def test_models_that_write_no_tokens_do_not_decode():
    with pytest.raises(CrossflowError, match="writes no tokens"):
        scenario_of(workload={"model": "vit-l", "task": "decode", "global_batch": 64}, strategy="dp16")


def test_numbers_of_a_stack_vary_over_every_plan():
    """One evaluation of plans and of habits of the software: groups of the product, each as it is alone."""
    case = scenario_of(strategy="tp8-dp2", software="megatron-lm-2022")
    plans, hosts = ["tp8-dp2", "dp16-z1", "tp8-dp2"], ["10 us", "10 us", "1 ms"]
    score = evaluate(case, {"strategy": plans, "software.host.kernel": hosts})
    for i, (plan, host) in enumerate(zip(plans, hosts, strict=True)):
        alone = evaluate(scenario_of(strategy=plan, software="megatron-lm-2022"), {"software.host.kernel": [host]})
        assert score.step_time[i] == pytest.approx(alone.step_time[0], rel=1e-12)
    assert score.step_time[2] > score.step_time[0]


@pytest.mark.parametrize(("model", "listed"), [("llama2-7b", ["embedding", "layers:0-3"]), ("dlrm-a", ["embedding", "top"])])
def test_frozen_layers_may_be_text(model, listed):
    read = [
        from_dict({"system": "zionex", "workload": {"model": model, "frozen": given}, "strategy": ANY})
        for given in (listed, ", ".join(listed))
    ]
    assert read[0].workload.frozen == read[1].workload.frozen == tuple(listed)


def test_a_strategy_divides_where_its_scenario_is_possible(tmp_path):
    """What studies ask of thousands of strategies without a scenario for each."""
    plain = {"system": {"template": "a100-ib-cluster", "nodes": 6}, "workload": {"model": "gpt3-175b", "global_batch": 96}}
    base = from_dict({**plain, "strategy": "d48"}, base=tmp_path)
    (tmp_path / "bad.yaml").write_text("kind: schedule\nname: bad\norder: [F0 F1 B0, F0 F1 B0 B1]\n")
    strategies = [
        "tp8-dp6-sp",
        "d48",
        "tp7-dp6",
        "tp8-dp5",
        "nonsense",
        "tp8-pp2-dp3-mb16-order:bad.yaml",
        "tp8-pp2-dp3-order:none.yaml",
        5,
    ]
    found = []
    for strategy in strategies:
        try:
            check_strategy(from_dict({**plain, "strategy": strategy}, base=tmp_path))
        except CrossflowError:
            found.append(False)
        else:
            found.append(True)
    assert [divides(base, strategy) for strategy in strategies] == found
    assert any(found)


@pytest.mark.parametrize("workload", ["llama2-7b", "dlrm-a", "lstm-16k"])
def test_a_strategy_of_a_space_that_is_none_is_told(workload, tmp_path):
    scenario = {"system": {"template": "a100-ib-cluster", "nodes": 2}, "workload": workload}
    study = {"name": "x", "scenario": scenario, "space": {"strategy": [5]}, "objectives": ["step_time_s"]}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**study, "searches": {"every": {"searcher": "exhaustive"}}}))
    with pytest.raises(SpecError, match="strategy: expected text or a mapping, got 5"):
        run_study(tmp_path / "x.yaml", out=tmp_path / "out")


def test_columns_of_plans_are_what_each_says():
    plans = [
        Plan(tp=4, pp=2, dp=3, micro_batch=2, zero=1, sequence_parallel=True, recompute="full", recompute_layers=2),
        Plan(pp=4, virtual_stages=2, recompute="selective", offload=("optimizer",), placement=("pp", "tp", "dp")),
        Plan(tp=4, attention_tp=2, dp=8, zero=3, unsharded=("mlp",), shard_group=4, sequence_parallel=True),
        Plan(pp=2, schedule="gpipe", stage_layers=(3, 5)),
    ]
    found = Layout.of([*plans, plans[0]], np.array([24.0, 8.0, 16.0, 4.0, 48.0]), 8)
    for i, plan in enumerate([*plans, plans[0]]):
        numbers = (found.tp, found.pp, found.dp, found.chunks, found.micro_batch, found.zero, found.shard_group, found.recompute_layers)
        said = (plan.tp, plan.pp, plan.dp, plan.virtual_stages, plan.micro_batch, plan.zero, plan.shard_group, plan.recompute_layers)
        assert tuple(part[i] for part in numbers) == said
        assert found.schedules[found.schedule[i]] == plan.schedule
        assert found.placements[found.placement[i]] == plan.placement
        assert found.divisions[found.division[i]] == plan.division
        assert found.full[i] == (plan.recompute == "full")
        assert found.sequence_parallel[i] == plan.sequence_parallel
        assert found.tensor_of("attention")[i] == plan.tensor_of("attention")
        assert {name for name, points in found.repeated.items() if points[i]} == set(plan.repeated)
        assert {name for name, points in found.offload.items() if points[i]} == set(plan.offload)
        assert {name for name, points in found.unsharded.items() if points[i]} == set(plan.unsharded)
    assert found.microbatches.tolist() == [4.0, 8.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("model", ["llama3-8b", "lstm-16k", "dlrm-a"])
def test_any_strategy_is_the_first_that_is_listed(model):
    made = from_dict({"system": {"template": "dgx-h100", "nodes": 2}, "workload": model, "strategy": "any"})
    assert made.strategy_text == every_strategy(made.workload, made.nodes)[0]
