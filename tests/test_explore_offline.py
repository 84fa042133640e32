"""What a page as a file holds: which controls can be moved on it, and a grid whose every design is what the model says."""

import math

import numpy as np
import pytest

from crossflow.answers.explanation.designs import read_design
from crossflow.answers.planning.opening import from_dict
from crossflow.answers.planning.planner import plan
from crossflow.answers.points import variant
from crossflow.base.errors import CrossflowError
from crossflow.edges.explore import axes
from crossflow.edges.explore.axes import BEST, grid_axes
from crossflow.edges.explore.offline import offline

CLUSTER = {
    "system": {"template": "h100-ib-cluster", "nodes": 2}, "workload": {"model": "llama3-8b", "global_batch": 32}, "strategy": "auto",
}  # fmt: skip
CHIP = {
    "system": {"template": "reference-training", "devices": 8}, "workload": {"model": "llama3-8b", "global_batch": 8}, "strategy": "tp8",
}  # fmt: skip
LINK = "system.network.inter.bandwidth"


@pytest.fixture(scope="module")
def cluster():
    return from_dict(CLUSTER)


@pytest.fixture(scope="module")
def held(cluster):
    return offline(cluster, ["system.nodes=1:4", f"{LINK}=25 GB/s:100 GB/s", "strategy=3"])


def test_a_user_moves_nodes_strategies_and_the_network_at_first(cluster):
    found = grid_axes(cluster, (), {LINK: 2.0, "system.network.intra.bandwidth": 3.0, "system.throughput.bf16": 9.0})
    assert [(axis.path, axis.kind, len(axis.values)) for axis in found] == [
        ("system.nodes", "whole", 4), ("strategy", "strategy", BEST), (LINK, "number", 9),
    ]  # fmt: skip
    assert found[0].values == (1, 2, 4, 8)
    assert [axis.values[axis.own] for axis in (found[0], found[2])] == [2, 50e9]


def test_what_does_not_move_the_step_gives_way(cluster):
    found = grid_axes(cluster, (), {LINK: 1.0, "system.throughput.bf16": 9.0})
    assert [axis.path for axis in found] == ["system.nodes", "strategy", "system.throughput.bf16"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("system.node", "did you mean 'system.nodes'?"),
        ("bandwidth", "did you mean"),
        ("strategies", "did you mean 'strategy'?"),
        ("system.template", "it has"),
        ("system.template=dgx-h10", "there is no 'dgx-h10'; did you mean 'dgx-h100'"),
        ("system.nodes=8:x", "expected positive whole numbers such as 8:16:32, got 'x'"),
        ("strategy=none", "expected how many of the best strategies"),
        (f"{LINK}=100 W", "expected a quantity in B/s, got '100 W'"),
        ("workload.optimiser", "did you mean 'workload.optimizer'?"),
    ],
)
def test_what_cannot_be_moved_is_refused_with_what_is_meant(cluster, asked, sentence):
    with pytest.raises(CrossflowError, match=r"^--with ") as error:
        grid_axes(cluster, [asked], {})
    assert sentence in str(error.value)


def test_shares_of_a_budget_are_not_moved_alone():
    chip = from_dict(CHIP)
    with pytest.raises(CrossflowError, match="is a share of a budget, which others would have to give"):
        grid_axes(chip, ["system.budgets.power_shares.compute"], {})


def test_grids_are_bounded(cluster, monkeypatch):
    numbers = ["system.throughput.bf16", "system.power.tdp", LINK]
    assert math.prod(len(axis.values) for axis in grid_axes(cluster, numbers, {})) == 9**3
    monkeypatch.setattr(axes, "MOST", 100)
    found = grid_axes(cluster, numbers, {})
    assert math.prod(len(axis.values) for axis in found) <= 100
    for axis in found:
        assert axis.values[axis.own] == axes._own(axes.movable(cluster)[axis.path])
    with pytest.raises(CrossflowError, match=r"system.nodes \(4\), strategy \(50\) make 200 designs, and a page holds 100"):
        grid_axes(cluster, ["system.nodes", "strategy=50"], {})


@pytest.mark.thorough
def test_every_design_of_a_grid_is_what_the_model_says(cluster, held):
    sizes = [len(axis["values"]) for axis in held["axes"]]
    assert [axis["path"] for axis in held["axes"]] == ["system.nodes", "strategy", LINK]
    assert sizes == [3, 3, 3]  # the scenario's own nodes and bandwidth stand among those that were named
    for place, point in enumerate(held["points"]):
        nodes, _, link = np.unravel_index(place, sizes)
        settings = {"system.nodes": held["axes"][0]["values"][nodes], LINK: held["axes"][2]["values"][link], "strategy": point["strategy"]}
        design = read_design(cluster, settings)
        assert point["step_time"] == pytest.approx(design.score().step_time[0], rel=1e-9)
        assert point["devices"] == 8 * settings["system.nodes"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_grid_holds_the_strategy_that_auto_takes_on_each_number_of_nodes(cluster, held, nodes):
    best = plan(variant(cluster, {"system.nodes": nodes, "strategy": "any"})).chosen.strategy
    sizes = [len(axis["values"]) for axis in held["axes"]]
    own = held["axes"][2]["own"]
    place = held["axes"][0]["values"].index(nodes)
    strategies = [held["points"][np.ravel_multi_index((place, rank, own), sizes)]["strategy"] for rank in range(3)]
    assert best in strategies
    assert len(set(strategies)) == 3


def test_a_scenario_that_cannot_be_has_its_reason_in_the_place_of_figures(cluster):
    found = offline(cluster, ["workload.dtype=mxfp8:bf16", "strategy=2"])
    assert found["axes"][0]["values"] == ["mxfp8", "bf16"]
    assert found["points"][:2] == (None, None)
    assert all(found["points"][2:])
    assert "mxfp8" in found["missing"][0]
    assert found["told"].startswith(": 2 designs of workload.dtype (2), strategy (the best 2); 1 combination cannot be: ")


@pytest.mark.thorough
def test_names_are_axes_of_scenarios_of_their_own(cluster):
    found = offline(cluster, ["workload.dtype=fp8", "strategy=1"])
    assert found["axes"][0]["values"] == ["fp8", "bf16"]
    fp8, bf16 = found["points"]
    assert fp8["step_time"] < bf16["step_time"]
    assert bf16["step_time"] == pytest.approx(read_design(cluster, {}).score().step_time[0])
