"""Links and hosts that are far from all measured ones are extrapolated, in predictions and in sweeps alike."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation.distance import FAR, far_off
from crossflow.answers.evaluation.likeness import trust

START = {"system": {"template": "dgx-h100", "nodes": 2}, "workload": {"model": "llama3-8b", "global_batch": 64}, "strategy": "tp8-dp2"}


@pytest.fixture(scope="module")
def start():
    return crossflow.from_dict(START)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("path", "near", "far"),
    [
        ("network.inter.latency", None, "20 us"),
        ("network.intra.latency", None, "400 ns"),
        ("network.inter.bandwidth", "25 GB/s", "300 MB/s"),
        ("network.intra.bandwidth", "400 GB/s", "4 TB/s"),
        ("host.bandwidth", "500 GB/s", "100 GB/s"),
    ],
)
def test_what_lies_far_outside_is_extrapolated(start, path, near, far):
    told = start.replace({f"system.{path}": far}).predict().trust
    assert told.level == "extrapolated"
    assert told.band is not None
    assert f"system.{path} is far outside the " in told.reason
    known = start if near is None else start.replace({f"system.{path}": near})
    assert known.predict().trust.level == start.predict().trust.level == "interpolated"


@pytest.mark.parametrize(
    ("path", "value"), [("network.inter.latency", "5 s"), ("network.intra.bandwidth", "90 TB/s"), ("host.bandwidth", "1 MB/s")]
)
def test_nothing_is_known_of_errors_where_a_quantity_lies_ten_times_outside(start, path, value):
    told = start.replace({"system.network.inter.latency": "20 us", f"system.{path}": value}).predict().trust  # the farthest counts
    assert (told.level, told.band) == ("unknown", None)
    assert told.reason.startswith(f"the value of system.{path} is so far outside the ")


@pytest.mark.parametrize(
    ("path", "nodes", "told"),
    [("network.inter.bandwidth", 1, ""), ("network.inter.bandwidth", 2, "system.network.inter.bandwidth is so far outside")],
)
def test_a_link_that_carries_nothing_is_not_looked_at(path, nodes, told):
    found = crossflow.predict(model="llama3-8b", on="dgx-h100", nodes=nodes, tp=8, batch=16, settings={f"system.{path}": "1 MB/s"}).trust
    assert told in found.reason
    assert (found.level == "unknown") is bool(told)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("strategy", "path", "known"),
    [
        ("tp8-dp2", "network.inter.bandwidth", True), ("dp16", "network.intra.bandwidth", True),
        ("tp8-dp2", "network.intra.bandwidth", False), ("tp8-pp2", "network.inter.bandwidth", False),
        ("dp16-z3", "network.inter.bandwidth", False),
    ],
)  # fmt: skip
def test_links_between_replicas_of_a_service_carry_nothing(strategy, path, known):
    service = {"model": "llama3-8b", "task": "decode", "prompt": 512, "output": 32, "global_batch": 64}
    data = {"system": {"template": "dgx-h100", "nodes": 2}, "workload": service, "strategy": strategy}
    slow = crossflow.from_dict(data).replace({f"system.{path}": "1 MB/s"})
    assert (slow.predict().trust.level != "unknown") is known
    swept = crossflow.sweep(crossflow.from_dict(data), {f"system.{path}": ["1 MB/s", "50 GB/s"]})
    assert (swept.table()["trust"][0] != "unknown") is known


def test_of_points_that_lie_farther_nothing_is_known_unless_more_can_be_said(start):
    told, beyond = trust(start, farther=True), start.replace({"system.network.inter.latency": "5 s"})
    assert (told.level, told.band, told.reason) == ("unknown", None, "errors of measured runs say nothing of points so far away")
    assert trust(beyond, farther=True) == trust(beyond) == beyond.predict().trust


def test_points_of_a_sweep_have_the_trust_of_their_own_prediction(start):
    values = ["10 MB/s", "50 GB/s", "90 TB/s"]
    swept = crossflow.sweep(start, {"system.network.inter.bandwidth": values})
    alone = [start.replace({"system.network.inter.bandwidth": value}).predict().trust.level for value in values]
    assert list(swept.table()["trust"]) == alone == ["unknown", "interpolated", "unknown"]


def test_the_limit_is_a_factor_beyond_the_range(start):
    port = float(np.ravel(start.architecture.inter.latency)[0])
    path = "system.network.inter.latency"
    inside = np.array([port / FAR * 1.001, port, port * FAR * 0.999])
    assert far_off(start, {path: inside}, np.tile(start.nodes, (3, 1)))[1].tolist() == [0, 0, 0]
    outside = np.array([port / FAR * 0.999, port * FAR * 1.001])
    assert far_off(start, {path: outside}, np.tile(start.nodes, (2, 1)))[1].tolist() == [1, 1]
