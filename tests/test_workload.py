"""Models as graphs: their parameters, operations and dependencies against counts by hand."""

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.base.formats import DTYPE_BYTES
from crossflow.program.kernels import Product
from crossflow.workload import operations
from crossflow.workload.gemm import gemm
from crossflow.workload.lstm import lstm

SMALL = {"hidden": 8, "vocabulary": 40, "sequence": 3, "layers": 2, "batch": 4}


def nodes(graph, phase):
    return [node for node in graph.nodes if node.phase == phase]


def test_parameters_of_the_case_study():
    """Table of deepflow.md 3.3: 30.5439 G parameters, counting a projection of 2048 that is switched off."""
    graph = lstm(hidden=16384, vocabulary=800000, sequence=20, layers=2, batch=16384)
    d, v = 16384, 800000
    assert graph.parameters == v * d + 2 * (2 * d + 1) * 4 * d + (d + 1) * v
    assert graph.parameters + d * 2048 == pytest.approx(30.5439e9, rel=1e-5)


def test_parameters_with_a_projection():
    graph = lstm(**SMALL, projection=2)
    assert [layer.name for layer in graph.layers] == [
        "embedding",
        "cell1",
        "projection1",
        "cell2",
        "projection2",
        "softmax",
    ]
    assert graph.parameters == 40 * 2 + 2 * ((2 * 2 + 1) * 4 * 8 + 8 * 2) + (2 + 1) * 40


def test_every_layer_runs_once_a_step_and_phase():
    graph = lstm(**SMALL).unrolled
    assert len(nodes(graph, "forward")) == len(nodes(graph, "backward")) == 3 * 4
    assert sorted(node.layer for node in nodes(graph, "update")) == [0, 1, 2, 3]
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_time_steps_are_written_out_once(steps):
    """The same nodes from a graph that is written out already."""
    graph = lstm(**{**SMALL, "sequence": steps}, projection=2)
    assert len(graph.nodes) == min(steps, 2) * 12 + 6
    assert len(graph.unrolled.nodes) == steps * 12 + 6
    assert graph.unrolled.unrolled.nodes == graph.unrolled.nodes


def test_forward_alone_has_no_gradients():
    assert {node.phase for node in lstm(**SMALL, training=False).nodes} == {"forward"}


@pytest.mark.parametrize("projection", [None, 2])
def test_dependencies_point_back(projection):
    graph = lstm(**SMALL, projection=projection).unrolled
    assert all(before < i for i, node in enumerate(graph.nodes) for before in node.after)


def test_cells_wait_for_the_layer_below_and_the_step_before():
    graph = lstm(**SMALL).unrolled
    names = {i: node.name for i, node in enumerate(graph.nodes)}
    after = {node.name: {names[i] for i in node.after} for node in graph.nodes}
    assert after["cell2.forward[1]"] == {"cell1.forward[1]", "cell2.forward[0]"}
    assert after["cell1.backward[1]"] == {"cell2.backward[1]", "cell1.forward[1]", "cell1.backward[2]"}
    assert after["embedding.backward[0]"] == {"cell1.backward[0]", "embedding.forward[0]"}
    assert "softmax.forward[2]" in after["softmax.backward[2]"]


def test_recurrence_runs_through_the_projection():
    graph = lstm(**SMALL, projection=2).unrolled
    names = {i: node.name for i, node in enumerate(graph.nodes)}
    after = {node.name: {names[i] for i in node.after} for node in graph.nodes}
    assert after["cell1.forward[1]"] == {"embedding.forward[1]", "projection1.forward[0]"}
    assert "cell1.backward[2]" in after["projection1.backward[1]"]


def test_an_update_waits_for_every_gradient_of_its_layer():
    """Each layer's update comes, by way of its dependencies, after all of its backward nodes."""
    graph = lstm(**SMALL).unrolled
    before = [set() for _ in graph.nodes]
    stream = {}
    for i, node in enumerate(graph.nodes):
        for j in (*node.after, *([stream[node.phase]] if node.phase == "backward" and "backward" in stream else [])):
            before[i] |= {j} | before[j]
        stream[node.phase] = i
    for i, node in enumerate(graph.nodes):
        gradients = {j for j, other in enumerate(graph.nodes) if other.layer == node.layer and other.phase == "backward"}
        assert node.phase != "update" or gradients <= before[i]


def test_only_the_first_gradient_of_a_layer_does_not_accumulate():
    first = [node for node in nodes(lstm(**SMALL).unrolled, "backward") if node.first]
    assert sorted(node.layer for node in first) == [0, 1, 2, 3]
    assert {node.step for node in first} == {2}


def test_flops_of_a_product():
    assert Product(m=2, n=3, k=5).flops == 60
    graph = gemm(m=6, n=7, k=8, training=True)
    assert [node.phase for node in graph.nodes] == ["forward", "backward", "update"]
    assert (graph.parameters, graph.batch) == (56, 6)


@pytest.mark.parametrize(
    "work", [operations.cell_forward, operations.cell_backward, operations.softmax_forward, operations.softmax_backward]
)
def test_pointwise_work_is_proportional_to_its_shard(work):
    whole, half = work(64.0, 32.0, 1.0), work(64.0, 16.0, 1.0)
    assert (whole.flops, whole.moved) == (2 * half.flops, 2 * half.moved)
    assert whole.moved >= 2 * 64 * 32  # it reads and writes everything at least once


def test_optimizer_states_add_traffic():
    plain, adam = operations.update(1e6, 0, 2), operations.update(1e6, 2, 2)
    assert plain.moved == 12e6
    assert adam.moved - plain.moved == 2 * 1e6 * 8  # each of two fp32 states read and written


def test_embedding_gradient_is_cleared_once():
    first, later = (operations.embedding_backward(4.0, 8.0, 40.0, first, 1.0) for first in (True, False))
    assert first.moved - later.moved == 40 * 8


def test_bytes_of_data_types():
    sizes = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "int32": np.int32, "int8": np.int8}
    assert all(DTYPE_BYTES[name] == np.dtype(dtype).itemsize for name, dtype in sizes.items())


@pytest.mark.parametrize("key", ["heads", "ffn"])
def test_no_heads_or_width_is_refused_where_it_is_written(key):
    """And not as a key that the preset lacks."""
    workload = {"model": "llama2-7b", "global_batch": 8, key: 0}
    with pytest.raises(SpecError, match=f"scenario: workload.{key}: expected at least 1, got 0; only a model without"):
        crossflow.from_dict({"system": "dgx-h100", "workload": workload, "strategy": "dp8"})
