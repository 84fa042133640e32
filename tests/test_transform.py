"""Programs of graphs: work is conserved, dimensions must divide, and only what must move moves."""

import itertools
import math

import numpy as np
import pytest

from crossflow.base.errors import StrategyError
from crossflow.engine.tasks import copies, tasks_of
from crossflow.parallel.strategy.graphs import graph_mesh
from crossflow.parallel.transform import transform
from crossflow.program.kernels import Pass, Product
from crossflow.workload.gemm import gemm
from crossflow.workload.lstm import lstm

SIZES = {"hidden": 240, "vocabulary": 4800, "sequence": 3, "layers": 2, "batch": 480}
MODEL = lstm(**SIZES)
PROJECTED = lstm(**SIZES, projection=120)
FORWARD = lstm(**SIZES, training=False)
PRODUCT = gemm(m=480, n=240, k=960, training=True)
GRAPHS = [MODEL, PROJECTED, FORWARD, PRODUCT]
STRATEGIES = ["d1", "d8", "RC-2-1", "RC-1-4", "RC-4-2", "CR-4", "RC-2-2-d3", "CR-2-d5"]
PIPELINES = ["p2", "p3", "p4", "d4-p2", "RC-2-4-d2-p2", "CR-4-d2-p3"]


def program(graph, strategy):
    return transform(graph.unrolled, graph_mesh(strategy))


def kernels(made, kind):
    """Every kernel of a kind that one device of each stage runs, with repeats."""
    found = [made.kernels[row] for op in made.ops for row in op.kernels]
    return [kernel for kernel in found if isinstance(kernel, kind)]


def sent(made):
    return [made.messages[op.message] for op in made.ops if op.message is not None]


def replicas(made):
    """Devices that do the same as the one that stands for their stage."""
    return made.devices // made.classes


def names(strategy, *roles):
    return graph_mesh(strategy).names(*roles)


def cut_of(strategy):
    """Shards of a layer's weights."""
    return graph_mesh(strategy).degree("columns", "inner")


@pytest.mark.cases(9)
@pytest.mark.parametrize(("graph", "strategy"), [*itertools.product(GRAPHS, STRATEGIES), *itertools.product(GRAPHS[:3], PIPELINES)])
def test_flops_of_all_devices_are_those_of_the_model(graph, strategy):
    whole, made = (sum(one.flops for one in kernels(program(graph, some), Product)) for some in ("d1", strategy))
    assert replicas(program(graph, strategy)) * made == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_pointwise_work_of_all_devices_is_that_of_the_model(strategy):
    """All but the optimizer, which every replica of the weights runs, and the clearing of replicated gradients."""
    whole, made = program(FORWARD, "d1"), program(FORWARD, strategy)
    moved, all_moved = (sum(one.moved for one in kernels(some, Pass)) for some in (made, whole))
    assert replicas(made) * moved == pytest.approx(all_moved, rel=1e-12)


@pytest.mark.parametrize("graph", GRAPHS[:3], ids=["lstm", "projection", "forward"])
def test_unsharded_flops_are_counted_by_hand(graph):
    """2 m n k a product: two a layer backward, one forward; the embedding has none."""
    weights = sum(layer.rows * layer.columns for layer in graph.layers if layer.kind != "embedding")
    passes = 3 if graph.training else 1
    assert sum(one.flops for one in kernels(program(graph, "d1"), Product)) == 2 * 480 * weights * 3 * passes


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_weights_of_one_replica_are_the_model(strategy):
    made = program(MODEL, strategy)
    assert cut_of(strategy) * sum(stage["weights"] for stage in made.memory) == pytest.approx(2 * MODEL.parameters, rel=1e-12)
    assert all(stage["gradients"] == stage["weights"] for stage in made.memory)


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_forward_memory_is_no_more_than_training_memory(strategy):
    forward, training = program(FORWARD, strategy), program(MODEL, strategy)
    for small, large in zip(forward.memory, training.memory, strict=True):
        assert small["gradients"] == small["optimizer"] == 0
        assert small["activations"] == pytest.approx(large["activations"] / 3, rel=1e-12)


def test_adam_keeps_two_fp32_values_a_parameter():
    made = program(lstm(**SIZES, optimizer_states=2), "CR-4")
    assert made.memory[0]["optimizer"] == pytest.approx(8 * MODEL.parameters / 4, rel=1e-12)


@pytest.mark.parametrize("strategy", ["d8", "RC-4-1", "RC-4-1-d2"])
def test_data_parallel_activations_are_divided_and_weights_are_not(strategy):
    whole, made = program(MODEL, "d1").memory[0], program(MODEL, strategy).memory[0]
    assert made["weights"] == whole["weights"]
    assert made["activations"] == pytest.approx(whole["activations"] / graph_mesh(strategy).devices, rel=1e-12)


@pytest.mark.parametrize("graph", GRAPHS, ids=["lstm", "projection", "forward", "gemm"])
def test_one_device_sends_nothing(graph):
    for strategy in ("d1", "RC-1-1-d1-p1", "CR-1"):
        assert not program(graph, strategy).messages


def test_strategies_of_one_device_are_the_same_work():
    plain = program(MODEL, "d1")
    for strategy in ("RC-1-1-d1-p1", "CR-1-d1"):
        assert program(MODEL, strategy).kernels == plain.kernels


def test_data_parallelism_reduces_every_gradient_once():
    made = program(MODEL, "d8")
    assert {message.collective for message in sent(made)} == {"all_reduce"}
    assert sum(message.size for message in sent(made)) == 2 * MODEL.parameters
    assert not sent(program(FORWARD, "d8"))


@pytest.mark.parametrize("strategy", ["RC-2-2-d3", "CR-2-d5", "RC-4-2", "d4-p2", "CR-4-d2-p3"])
def test_gradients_of_a_shard_are_reduced_over_its_replicas(strategy):
    made = program(MODEL, strategy)
    reduced = [made.messages[op.message] for op in made.ops if op.phase == "update" and op.message is not None]
    assert all(message.axes == names(strategy, "rows", "batch") for message in reduced)
    assert sum(message.size for message in reduced) * cut_of(strategy) == pytest.approx(2 * MODEL.parameters, rel=1e-12)


def test_outer_product_of_one_matrix():
    """CR-4 of C[m, n] = A[m, k] B[k, n]: products over k / 4, partial sums of the whole C reduced and scattered (paper 3.3)."""
    made = program(gemm(m=480, n=240, k=960), "CR-4")
    assert kernels(made, Product) == [Product(m=480, n=240, k=240)]
    assert [(m.collective, m.size) for m in made.messages] == [("reduce_scatter", 2 * 480 * 240)]


def test_inner_product_of_one_matrix():
    """RC-2-4: rows of A by 2, columns of B by 4; the device's rows of C are gathered from the four."""
    made = program(gemm(m=480, n=240, k=960), "RC-2-4")
    assert kernels(made, Product) == [Product(m=240, n=60, k=960)]
    assert [(m.collective, m.size, m.axes) for m in made.messages] == [("all_gather", 2 * 240 * 240, ("kp2",))]


def test_a_gradient_is_gathered_when_it_is_there():
    """CR of a projection: what is gathered before its backward products is the gradient of the layer above and of the step behind."""
    ops = program(PROJECTED, "CR-4").ops
    after = {op.name: {ops[j].name for j in op.after} for op in ops}
    assert "softmax.backward[2]" in after["projection2.backward[2].all_gather"]
    assert {"softmax.backward[1]", "cell2.backward[2]"} <= after["projection2.backward[1].all_gather"]


def test_rows_alone_move_nothing_forward():
    assert not program(gemm(m=480, n=240, k=960), "RC-4-1").messages


def test_pipeline_sends_activations_forward_and_their_gradients_back():
    made = program(MODEL, "p2")
    sizes = [message.size for message in sent(made) if message.collective == "send_recv"]
    assert len(sizes) == 2 * SIZES["sequence"] * 1
    assert set(sizes) == {2.0 * SIZES["batch"] * SIZES["hidden"]}
    assert {message.collective for message in sent(made)} == {"send_recv"}


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_tasks_are_in_an_order_that_respects_what_they_wait_for(strategy):
    made = program(MODEL, strategy)
    assert all(before < i for i, op in enumerate(made.ops) for before in op.after)
    tasks, _ = tasks_of(made, copies(made), launched=False)
    assert all(before < i for i, one in enumerate(tasks) for before in one.edges)


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_no_compute_task_of_another_stage_is_waited_for_directly(strategy):
    """What crosses stages goes through a message of the sending stage."""
    ops = program(MODEL, strategy).ops
    assert all(ops[j].rank == op.rank or ops[j].message is not None for op in ops for j in op.after)


def test_replicas_reduce_the_gradients_of_all_parameters():
    made = program(MODEL, "d8")
    reduced = [often * made.messages[op.message].size for op, often in zip(made.ops, made.often, strict=True) if op.message is not None]
    assert sum(reduced) == pytest.approx(2 * MODEL.parameters)


@pytest.mark.parametrize("strategy", [*STRATEGIES, *PIPELINES])
def test_sharding_never_adds_work_to_a_device(strategy):
    whole, made = program(MODEL, "d1"), program(MODEL, strategy)
    mine, all_ = ([one.flops for one in kernels(some, Product)] for some in (made, whole))
    assert sum(mine) <= sum(all_) / replicas(made) * (1 + 1e-12)
    assert max(mine) <= max(all_)


def test_devices_beyond_count_make_no_larger_graph():
    """65,536 devices are a program of the size of 8."""
    wide = lstm(**{**SIZES, "batch": 65536 * 480})
    few, many = program(wide, "d8"), program(wide, "d65536")
    assert (len(many.ops), len(many.messages)) == (len(few.ops), len(few.messages))
    assert len(many.kernels) <= len(few.kernels)


@pytest.mark.parametrize(
    ("graph", "strategy", "sentence"),
    [
        (MODEL, "d7", "global_batch = 480 is not divisible by dp = 7 of strategy d7"),
        (MODEL, "RC-7-1", "global_batch = 480 is not divisible by kp1 = 7 of strategy RC-7-1"),
        (MODEL, "RC-5-1-d9", "global_batch = 480 is not divisible by kp1 x dp = 45 of strategy RC-5-1-d9"),
        (PRODUCT, "d7", "m = 480 is not divisible by dp = 7 of strategy d7"),
        (MODEL, "RC-1-7", "embedding: its 240 columns are not divisible by kp2 = 7 of strategy RC-1-7"),
        (MODEL, "RC-1-480", "embedding: its 240 columns are not divisible by kp2 = 480 of strategy RC-1-480"),
        (MODEL, "CR-7", "embedding: its 240 inputs are not divisible by kp1 = 7 of strategy CR-7"),
        (PRODUCT, "RC-1-7", "gemm: its 240 columns are not divisible by kp2 = 7 of strategy RC-1-7"),
        (PRODUCT, "CR-7", "gemm: its 960 inputs are not divisible by kp1 = 7 of strategy CR-7"),
        (PRODUCT, "CR-320", "gemm: its 240 columns are not divisible by kp1 = 320 of strategy CR-320"),
        (MODEL, "p5", "p = 5 stages, but the model has 4 layers to divide (embedding, cell1, cell2, softmax)"),
    ],
)
def test_what_does_not_divide_is_told_with_its_numbers(graph, strategy, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(sentence)):
        program(graph, strategy)


def test_vocabulary_that_does_not_divide_is_told(exactly):
    graph = lstm(**{**SIZES, "vocabulary": 4801})
    with pytest.raises(StrategyError, match=exactly("softmax: its 4801 columns are not divisible by kp2 = 4 of strategy RC-1-4")):
        program(graph, "RC-1-4")


def test_memory_of_the_case_study_per_device():
    """DP-512: weights and gradients of 30.51 G parameters at 2 B, and what one step saves."""
    graph = lstm(hidden=16384, vocabulary=800000, sequence=20, layers=2, batch=16384)
    kinds = program(graph, "d512").memory[0]
    assert kinds["weights"] == kinds["gradients"] == 2 * graph.parameters
    assert kinds["activations"] == 2 * 20 * 32 * (16384 + 2 * 7 * 16384 + 800000)
    assert math.isclose(sum(kinds.values()), 114.9 * 2**30, rel_tol=1e-3)
    assert np.isfinite(list(kinds.values())).all()
