"""Numbers of file models by their path."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.points import varied
from crossflow.answers.scenario import from_dict
from crossflow.base.paths import value_at, with_quantities, with_quantity
from crossflow.hardware.architecture.execution import width_rate

GPU = {
    "system": {"template": "h100-sxm"}, "workload": {"model": "mpt-125m", "task": "prefill", "prompt": 512, "global_batch": 1},
}  # fmt: skip


def test_every_number_behind_a_device_varies_in_a_batch_also_where_its_key_is_a_number():
    scenario = from_dict(GPU)
    paths = [number.path for number in parameters(scenario)]
    assert any(path.endswith(".by_width.64") for path in paths)
    assert not [path for path in paths if varied(scenario, path) is None]


def test_rates_by_width_of_a_batch_are_those_of_each_point():
    scenario = from_dict(GPU)
    paths = [number.path for number in parameters(scenario) if number.path.endswith(".prefill.by_width.64")]
    values = [0.25, 0.5, 1.0]
    together = evaluate(scenario, dict.fromkeys(paths, values)).step_time
    alone = [evaluate(scenario, {path: [value] for path in paths}).step_time[0] for value in values]
    assert together == pytest.approx(alone, rel=1e-12)
    assert together[0] > together[2]


def test_rates_between_widths_follow_a_power_law():
    known = {64: np.array([0.8, 1.2]), 256: np.array([1.1])}
    assert width_rate(known, np.array([64.0])) == pytest.approx([0.8, 1.2])
    assert width_rate(known, np.array([64.0 * 2**0.5])) == pytest.approx([0.8**0.5, 1.2**0.5])
    assert width_rate(known, np.array([1024.0])) == pytest.approx([1.1, 1.1])


def test_several_quantities_of_one_part_are_replaced_at_once():
    system = crossflow.load(model="llama3-8b", on="dgx-h100", tp=8).system
    values = {("network", "inter", "bandwidth"): np.array([1e9, 2e9]), ("network", "inter", "latency"): np.array([1e-6])}
    at_once = with_quantities(system, values)
    one_by_one = system
    for path, value in values.items():
        one_by_one = with_quantity(one_by_one, path, value)
    for path, value in values.items():
        assert value_at(at_once, path) is value_at(one_by_one, path) is value
        assert value_at(system, path) is not value
    assert at_once.network.intra is system.network.intra
    assert with_quantities(system, {}) is system
