"""Pipeline stages: contiguous, none empty, the heaviest as light as any cut makes it."""

import itertools

import pytest

from crossflow.base.errors import StrategyError
from crossflow.parallel.transform import assign_stages
from crossflow.workload.graph import Graph, GraphLayer
from crossflow.workload.lstm import lstm


def model(*loads):
    layers = tuple(GraphLayer(name=f"l{i}", kind="cell", rows=load, columns=1) for i, load in enumerate(loads))
    return Graph(model="lstm", batch=1, layers=layers, nodes=())


def heaviest(loads, stages):
    return max(sum(load for load, stage in zip(loads, stages, strict=True) if stage == s) for s in set(stages))


@pytest.mark.parametrize("loads", [(1, 1, 1, 1), (5, 1, 1, 1, 5), (1, 2, 3, 4, 5, 6), (9, 1, 1), (1, 1, 9), (3, 1, 4, 1, 5, 9, 2, 6)])
def test_no_other_cut_is_lighter(loads):
    for stages in range(1, len(loads) + 1):
        made = assign_stages(model(*loads), stages)
        cuts = itertools.combinations(range(1, len(loads)), stages - 1)
        every = [tuple(sum(i >= cut for cut in chosen) for i in range(len(loads))) for chosen in cuts]
        assert made in every
        assert heaviest(loads, made) == min(heaviest(loads, stage) for stage in every)


def test_one_stage_and_one_layer_a_stage():
    assert assign_stages(model(3, 1, 2), 1) == (0, 0, 0)
    assert assign_stages(model(3, 1, 2), 3) == (0, 1, 2)


def test_an_embedding_weighs_almost_nothing():
    graph = lstm(hidden=64, vocabulary=64 * 40, sequence=2, layers=2, batch=4)
    assert assign_stages(graph, 2) == (0, 0, 0, 1)  # the softmax alone, though the embedding has as many parameters


def test_too_many_stages_name_the_layers(exactly):
    graph = lstm(hidden=64, vocabulary=128, sequence=2, layers=2, batch=4)
    with pytest.raises(
        StrategyError,
        match=exactly("p = 5 stages, but the model has 4 layers to divide (embedding, cell1, cell2, softmax)"),
    ):
        assign_stages(graph, 5)
