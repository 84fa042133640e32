"""Legal strategies: each runs, none is missing, none twice."""

import itertools

import pytest

from crossflow.errors import CrossflowError, StrategyError
from crossflow.evaluation import evaluate
from crossflow.parallel import legal_strategies, parse_strategy, transform
from crossflow.scenario import from_dict


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
            transform(graph, parse_strategy(text))
        except StrategyError:
            continue
        found.add(text)
    return found


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12])
@pytest.mark.parametrize("hidden", [8, 12])
def test_legal_strategies_are_those_that_transform(lstm, devices, hidden):
    graph = lstm("d1", workload={"hidden": hidden, "vocabulary": 24, "sequence": 2, "global_batch": 12}).graph()
    found = legal_strategies(graph, devices)
    assert len(found) == len(set(found))
    assert set(found) == brute(graph, devices)
    assert all(parse_strategy(text).devices == devices for text in found)


# ---------------------------------------------------------------------------------- strategies of other workloads

CLUSTER = {"template": "a100-ib-cluster", "nodes": 2}
SMALL = {"model": "megatron-7.5b", "global_batch": 64}


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
