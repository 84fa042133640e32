"""Systems of several kinds of devices: the prompts of a service are read by others than those that write."""

from __future__ import annotations

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.search.shares import choices_of, whole_device
from crossflow.base.errors import SpecError

SERVICE = {
    "system": {"template": "dgx-h100", "devices": 8},
    "workload": {
        "model": "llama3-70b", "task": "serving", "prompt": 2048, "output": 256, "global_batch": 32,
        "serving": {"prefill": {"workers": 2, "strategy": "tp4"}},
    },
    "strategy": "tp8",
}  # fmt: skip


def service(pool=None, **system):
    """The service above, with a pool that reads its prompts."""
    more = {} if pool is None else {"pools": {"prefill": pool}}
    return crossflow.from_dict({**SERVICE, "system": {**SERVICE["system"], **system, **more}})


def figures(scenario, points=None):
    """Numbers of its score, but for those that tell the devices of pools, of one node, and of trust."""
    left = (*(f"architecture.{name}." for name in scenario.system.pools), "node_power", "error_band", "trust")
    columns = crossflow.evaluate(scenario, points).columns()
    return {name: values for name, values in columns.items() if isinstance(values, np.ndarray) and not name.startswith(left)}


def together_as_alone(scenario, points):
    """Figures of points at once, which are those of each by itself."""
    together = figures(scenario, points)
    for i in range(len(next(iter(points.values())))):
        alone = figures(scenario.replace({path: values[i] for path, values in points.items()}))
        for name, values in alone.items():
            assert together[name][i] == pytest.approx(values[0], rel=1e-12, nan_ok=True), name
    return together


def test_a_pool_of_the_same_devices_changes_no_figure():
    one, other = figures(service()), figures(service("dgx-h100"))
    assert set(one) == set(other)
    for name, values in one.items():
        np.testing.assert_array_equal(other[name], values, err_msg=name)


def test_what_reads_the_prompts_decides_when_the_first_token_comes_and_not_how_fast_the_others_follow():
    slow, fast = (crossflow.predict(service(pool)) for pool in ("dgx-a100", "dgx-b200"))
    assert fast.serving["ttft_s"] < 0.5 * slow.serving["ttft_s"]
    alone = [crossflow.predict(service(pool).replace({"workload.global_batch": 1})) for pool in ("dgx-a100", "dgx-b200")]
    assert alone[0].serving["tpot_s"] == pytest.approx(alone[1].serving["tpot_s"], rel=5e-3)


def test_rent_cost_and_peak_add_up_over_both_kinds_of_devices():
    priced = service({"template": "dgx-b200", "operation": {"price": "5 USD/hour"}}, operation={"price": "2 USD/hour"})
    score = crossflow.evaluate(priced)
    assert score.devices[0] == 16
    assert score.rent[0] * 3600 == pytest.approx(8 * 2 + 8 * 5)
    tokens = score.columns()["output_throughput_tokens_per_s"][0]
    assert score.columns()["usd_per_million_tokens"][0] == pytest.approx(score.rent[0] / tokens * 1e6)
    h100, b200 = (crossflow.load({**SERVICE, "system": name}).architecture.throughput["bf16"][0] for name in ("dgx-h100", "dgx-b200"))
    assert score.mfu[0] <= score.hfu[0] == pytest.approx(score.flops[0] / score.step_time[0] / (8 * h100 + 8 * b200))


def test_generated_devices_of_both_kinds_are_paid_for():
    scenario = service({"template": "reference", "technology": {"memory": "HBM4"}}, template="reference")
    own, pool = ({**one.cost} for one in (scenario.architecture, scenario.pool_architectures["prefill"]))
    each = [sum(float(part[0]) for part in parts.values()) for parts in (own, pool)]
    assert each[0] != each[1]
    assert crossflow.evaluate(scenario).cost[0] == pytest.approx(8 * each[0] + 8 * each[1])


@pytest.mark.thorough  # what it runs quicker tests run too
def test_points_that_differ_in_the_pool_score_as_each_by_itself():
    scenario = service("reference", template="reference")
    points = {
        "system.pools.prefill.technology.memory": ["HBM3", "HBM2e", "HBM4"],
        "system.technology.logic": ["N5", "N3", "N5"],
        "system.pools.prefill.budgets.power": ["700 W", "500 W", "900 W"],
        "workload.serving.prefill.workers": [1, 2, 4],
    }
    assert len({*together_as_alone(scenario, points)["ttft_s"]}) == 3


def test_keys_and_values_travel_at_the_pace_of_the_slower_network():
    def travel(pool, **system):
        return crossflow.predict(service(pool, **system).replace({"workload.global_batch": 1})).serving["ttft_s"]

    slow = {"network": {"inter": {"bandwidth": "1 GB/s"}}}
    fast = travel("dgx-h100")
    leaving, arriving = travel({"template": "dgx-h100", **slow}), travel("dgx-h100", **slow)
    assert leaving > fast + 0.05
    assert arriving == pytest.approx(leaving, rel=1e-6)
    assert travel({"template": "dgx-h100", **slow}, **slow) == pytest.approx(leaving, rel=1e-6)


def test_a_pool_that_cannot_hold_the_model_or_be_built_is_told():
    assert "does not fit in a worker" in crossflow.evaluate(service("dgx-h100").replace({"workload.serving.prefill.strategy": "tp1"})).why(
        0
    )
    unbuilt = service({"template": "reference", "budgets": {"power": "20 W"}}, template="reference")
    assert crossflow.evaluate(unbuilt).why(0).startswith("prefill: cannot be built")


@pytest.mark.thorough
def test_searches_divide_the_budgets_of_both_devices():
    scenario = service("reference", template="reference")
    paths = whole_device(scenario).paths
    assert {"system.budgets.area.compute", "system.pools.prefill.budgets.area.compute", "system.pools.prefill.bundles"} <= set(paths)
    assert set(paths) == set(choices_of(scenario))
    space = {
        "system.budgets.area": "shares",
        "system.pools.prefill.budgets.area": "shares",
        "system.pools.prefill.microarchitecture": "all",
    }
    found = crossflow.optimise(scenario, space, objectives={"ttft_s": "minimise"}, evaluations=400)
    assert found.best["ttft_s"] < crossflow.predict(scenario).serving["ttft_s"]


def test_trust_says_that_no_such_service_was_measured():
    found = crossflow.predict(service("dgx-b200")).trust
    assert found.level == "extrapolated"
    assert "read by other devices" in found.reason
    assert "generated" in crossflow.predict(service("reference")).trust.reason


H100 = {"template": "dgx-h100"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"workload": {**SERVICE["workload"], "serving": {}}}, "system.pools.prefill: its devices read the prompts of a service"),
        ({"workload": {"model": "llama3-70b"}}, "system.pools.prefill: its devices read the prompts of a service"),
        ({"run": {"samples": 1e6}}, "run: a whole run is priced on devices of one kind only"),
        ({"system": {**H100, "pools": {"prefill": {**H100, "devices": 8}}}}, "the workers of serving.prefill say how many"),
        ({"system": {**H100, "pools": {"prefill": {**H100, "pools": {}}}}}, "a pool has none"),
        ({"system": {**H100, "pools": {"decode": "dgx-h100"}}}, "no engines run on it; give workload.serving.pools.decode"),
        ({"system": {**H100, "pools": {"prefill": "dgx-h10"}}}, "system.pools.prefill.template: unknown template 'dgx-h10'"),
        ({"system": {**H100, "pools": ["dgx-h100"]}}, "system.pools: expected systems by name"),
        ({"system": {**H100, "pools": {"prefill": {**H100, "devices_per_nod": 4}}}}, "unknown key 'devices_per_nod'"),
        ({"workload": {**SERVICE["workload"], "dtype": "fp8"}}, "dgx-a100 has no throughput for fp8"),
    ],
)
def test_pools_that_make_no_sense_are_refused(change, told):
    data = {**SERVICE, "system": {**SERVICE["system"], "pools": {"prefill": "dgx-a100"}}, **change}
    with pytest.raises(SpecError) as error:
        crossflow.from_dict(data)
    assert told in str(error.value)


@pytest.mark.cases(1)
@pytest.mark.parametrize("pool", ["dgx-a100", "dgx-b200"])
def test_no_more_prompts_are_answered_than_workers_read(pool):
    """Capacity of the readers, and Little's law: requests in flight are the rate times the time of a request."""
    for flight in (1, 16, 64, 256):
        found = crossflow.predict(service(pool).replace({"workload.global_batch": flight, "workload.prompt": 8192})).serving
        rate = found["request_throughput_per_s"]
        assert rate * found["prompt_time_s"] <= 1.0 + 1e-3
        assert rate * found["e2el_s"] == pytest.approx(flight, rel=1e-3)
        assert found["ttft_p99_s"] <= flight * found["prompt_time_s"] * 1.05 + found["ttft_s"] / flight


def test_the_price_that_is_missing_is_that_of_the_pool(tmp_path, capsys):
    path = service("dgx-b200", operation={"price": "2 USD/hour"}).save(tmp_path / "s.yaml")
    assert main(["predict", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--set 'system.pools.prefill.operation.price=2 USD/hour'" in told
    assert "changes nothing" not in told
