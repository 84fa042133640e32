"""Kernels of traces against the model of their device, and replays with the model's times."""

import json
from pathlib import Path

import numpy as np
import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.cost.price import kernel_prices
from crossflow.evidence.replay.execution import joined, read_executions
from crossflow.evidence.replay.graph import graph_of, times_of
from crossflow.evidence.replay.kernels import parts_of
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.modelled import device_architecture, device_of
from crossflow.evidence.replay.reach import kernel_model, replaced
from crossflow.evidence.replay.report import report_of, report_on
from crossflow.evidence.replay.tensors import UNSAID, TracedOperation, TracedTensor, profiled
from crossflow.evidence.validation.tables import gemm_table
from crossflow.program.builder import ProgramBuilder
from crossflow.program.embedding.reuse import Reuse
from crossflow.program.kernels import Attention, Lookup, Pass, Product

TRACES = Path(__file__).parent / "data" / "traces"
DLRM, ET, A100 = (TRACES / f"{name}.json.gz" for name in ("dlrm_rank0_kineto", "dlrm_rank0_et", "train_rank3_step_kineto"))


@pytest.fixture(scope="module")
def a100():
    return graph_of(read_traces([A100]))


@pytest.fixture(scope="module")
def dlrm():
    return graph_of(joined(read_traces([DLRM]), read_executions([ET])))


def fp32(*shape):
    return TracedTensor(shape, "float", 4)


def half(*shape):
    return TracedTensor(shape, "c10::half", 2)


def long(*shape):
    return TracedTensor(shape, "longint", 8)


def only(name, *args, out=None):
    """The one kernel of an operation, and what it is called."""
    (part,) = parts_of(name, TracedOperation(args, out))
    (kernel,) = part.kernels
    return part.kind, kernel


def moved(name, *args, out=None):
    return only(name, *args, out=out)[1].moved


# -------------------------------------------------------------------------------------------- what operations do


@pytest.mark.parametrize(
    ("name", "args", "sizes"),
    [
        ("aten::mm", (fp32(4, 8), fp32(8, 2)), (4, 2, 8, 1)),
        ("aten::addmm", (fp32(2), fp32(4, 8), fp32(8, 2)), (4, 2, 8, 1)),
        ("aten::bmm", (fp32(3, 4, 8), fp32(3, 8, 2)), (4, 2, 8, 3)),
        ("aten::linear", (half(5, 4, 8), half(2, 8)), (20, 2, 8, 1)),
    ],
)
def test_products_have_the_sizes_of_their_matrices(name, args, sizes):
    kind, kernel = only(name, *args)
    assert kind == "product"
    assert kernel == Product(**dict(zip("mnk", map(float, sizes), strict=False)), batch=float(sizes[3]))


def test_a_convolution_is_an_implicit_product():
    data, weight, result = fp32(2, 16, 10, 10), fp32(32, 16, 3, 3), fp32(2, 32, 8, 8)
    assert only("aten::cudnn_convolution", data, weight, out=(result,)) == ("convolution", Product(m=128.0, n=32.0, k=144.0))
    (part,) = parts_of("aten::convolution_backward", TracedOperation((result, data, weight)))
    assert part.kernels == (Product(m=128.0, n=144.0, k=32.0), Product(m=144.0, n=32.0, k=128.0))
    assert parts_of("aten::cudnn_convolution", TracedOperation((data, weight))) == "the size of its result was not recorded"


def test_fused_attention_counts_heads_before_or_behind_tokens():
    first = only("aten::_scaled_dot_product_flash_attention", *[half(2, 8, 512, 64)] * 3, 0.0, True)
    second = only("aten::_flash_attention_forward", *[half(2, 512, 8, 64)] * 3, None, None, 512, 512, 0.0, True)
    assert first == second == ("attention", Attention(samples=2.0, heads=8.0, kv_heads=8.0, length=512.0, seen=512.0, width=64.0))


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("aten::add", (fp32(6, 8), fp32(8)), 4 * (48 + 8 + 48)),
        ("aten::mul", (half(6, 8), TracedTensor((), "double", 8)), 2 * 48 + 8 + 2 * 48),
        ("aten::mul", (half(6, 8), long(6, 8)), (2 + 8 + 2) * 48),
        ("aten::add_", (fp32(6, 8), fp32(8)), 4 * (48 + 8 + 48)),
        ("aten::fill_", (fp32(6, 8),), 4 * 48),
        ("aten::copy_", (half(6, 8), fp32(6, 8)), 2 * 48 + 4 * 48),
        ("aten::gt", (fp32(6, 8), 0.0), 5 * 48),
        ("aten::threshold_backward", (fp32(6, 8), fp32(6, 8), 0), 12 * 48),
        ("aten::cat", ((fp32(6, 8), fp32(2, 8)), 0), 2 * 4 * 64),
        ("aten::sum", (fp32(6, 8), (0,)), 4 * 48),
        ("aten::_softmax", (half(6, 8), -1, False), 2 * 2 * 48),
        ("aten::native_batch_norm", (fp32(6, 8), fp32(8), fp32(8)), 3 * 4 * 48),
        ("aten::_foreach_add_", ((fp32(6, 8), fp32(4)), (fp32(6, 8), fp32(4))), 3 * 4 * 52),
        ("aten::_fused_adam_", ((fp32(10),), (fp32(10),), (fp32(10),), (fp32(10),)), (4 + 3) * 40),
        ("aten::embedding", (fp32(1000, 8), long(5)), 4 * 40 + 8 * 5 + 4 * 40),
        ("aten::index_add_", (fp32(1000, 8), 0, long(5), fp32(5, 8)), 2 * 2 * 160 + 40 + 160),
        ("triton_poi_fused_add_relu_3", (fp32(6, 8), fp32(8), half(6, 8), 48), 4 * (48 + 8) + 2 * 48),
        ("fbgemm::permute_pooled_embs_auto_grad", (fp32(6, 8), long(3)), 2 * 4 * 48),
    ],
)
def test_passes_move_what_they_read_and_write(name, args, expected):
    assert moved(name, *args) == expected


def test_results_that_were_recorded_count():
    assert moved("aten::sum", fp32(6, 8), (0,), out=(fp32(8),)) == 4 * (48 + 8)
    assert moved("aten::index", fp32(100, 8), (long(3),), out=(fp32(3, 8),)) == 4 * 24 + 24 + 4 * 24


def test_the_gradient_of_a_table_is_as_large_as_its_result_or_as_the_number_of_its_rows():
    """Five gradients of eight numbers fall into a table of a hundred rows; one of the two must be recorded."""
    name, given = "aten::embedding_dense_backward", (fp32(5, 8), long(5))
    (part,) = parts_of(name, TracedOperation((*given, 100)))
    assert (part,) == parts_of(name, TracedOperation(given, (fp32(100, 8),)))
    assert (part,) == parts_of(name, TracedOperation((*given, None), (fp32(100, 8),)))
    assert parts_of(name, TracedOperation(given)) == "the size of its result was not recorded"


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("aten::cat", (UNSAID, 0), "the sizes of its tensors were not recorded"),
        ("aten::mm", (), "the sizes of its tensors were not recorded"),
        ("aten::mm", (long(2, 3), long(3, 4)), "its tensors hold no numbers with a point"),
        ("aten::index", (fp32(10, 2), long(3)), "the size of its result was not recorded"),
        ("aten::_foreach_mul_", (UNSAID, 2.0), "the sizes of its lists of tensors were not recorded"),
        ("fbgemm::split_embedding_codegen_lookup_lamb_function", (), "the optimizer lamb of tables is not modelled"),
        ("aten::something_new", (fp32(3),), None),
    ],
)
def test_what_the_sizes_do_not_say_is_refused_with_a_reason(name, args, reason):
    assert parts_of(name, TracedOperation(args)) == reason


def test_lookups_of_several_tables_take_their_widths_from_the_pass_back():
    args = [None] * 21
    args[1], args[6], args[11], args[12] = fp32(64_000), TracedTensor((3,), "int", 4), long(80), long(21)
    look = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    (part,) = parts_of(look, TracedOperation(tuple(args)), fp32(10, 64))
    (found,) = part.kernels
    assert isinstance(found, Lookup)
    assert (found.samples, found.tables, found.rows, found.width, found.pooling) == (10.0, 2.0, 1000.0, 32.0, 4.0)
    assert found.distinct == pytest.approx(1000 * (1 - np.exp(-40 / 1000)) / 40)
    back = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    parts = parts_of(back, TracedOperation((fp32(10, 64),)), fp32(10, 64), TracedOperation(tuple(args)))
    assert [(one.kind, one.kernels[0].part) for one in parts] == [("look-up sort", "sort"), ("look-up update", "update")]
    assert parts_of(look, TracedOperation(tuple(args))) == "the width of its rows was not recorded"


def test_values_that_the_profiler_wrote_are_read_and_not_run():
    found = profiled([[4, 8], [], [], [[2], [3]]], ["float", "Scalar", "Bool", "TensorList"], ["", "2.5", "__import__('os')", ""])
    assert found.args == (fp32(4, 8), 2.5, "__import__('os')", (TracedTensor((2,), "", 4), TracedTensor((3,), "", 4)))


def test_sizes_that_are_no_shape_are_no_tensor():
    """Of a list of tensors where one is expected, of words, and of a list that holds what is no shape."""
    sizes = [[[2], [3]], [2, "a"], [[2], 3]]
    found = profiled(sizes, ["float", "float", "TensorList"], ["", "", ""])
    assert not any(isinstance(one, TracedTensor) for one in found.args)
    assert found.args[2] == UNSAID


# -------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("name", "memory", "template"),
    [
        ("Tesla V100-SXM2-32GB", 34079899648, "v100-sxm2-32gb"),
        ("NVIDIA A100-PG509-200", 42505273344, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 85174583296, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 84986691584, "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", 84942979072, "h100-sxm"),
        ("AMD Instinct MI300X", 206141652992, "mi300x"),
        ("Tesla V100-SXM2-16GB", float("nan"), "v100-sxm2-16gb"),
        ("NVIDIA A100-SXM-64GB", 68000000000, None),
        ("NVIDIA GeForce RTX 3070", 11554717696, None),
        ("", float("nan"), None),
    ],
)
def test_devices_are_known_by_the_names_that_drivers_give(a100, name, memory, template):
    from dataclasses import replace

    assert device_of([replace(a100.traces[0], device=name, memory=memory)]) == template


# -------------------------------------------------------------------------------------------- prices


def one_product(tmp_path, m, n, k, time, kernel="ampere_fp16_s16816gemm"):
    """A trace with one product on an A100."""
    shapes = {"Input Dims": [[m, k], [k, n]], "Input type": ["c10::Half", "c10::Half"]}
    head = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**head, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": time + 100},
        {**head, "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9, "args": shapes},
        {**head, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 5, "args": {"correlation": 1}},
        {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": kernel, "ts": 10, "dur": time, "args": {"correlation": 1}},
        {**head, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 12, "dur": time, "args": {"correlation": 2}},
    ]
    path = tmp_path / "trace.json"
    properties = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85174583296}]
    path.write_text(json.dumps({"deviceProperties": properties, "traceEvents": events}))
    return path


def test_a_product_of_a_trace_is_priced_as_validate_prices_it(tmp_path):
    path = one_product(tmp_path, 4096, 5120, 1024, 300)
    table = tmp_path / "gemm.csv"
    table.write_text("source,device,dtype,m,n,k,time_us\nhere,a100-80gb,fp16,4096,5120,1024,300\n")
    (unit,) = kernel_model(graph_of(read_traces([path]))).here
    assert unit == pytest.approx(gemm_table(tmp_path).predicted[0], rel=1e-12)


@pytest.mark.slow
def test_names_of_kernels_say_that_fp32_was_multiplied_in_tf32(a100):
    parts = [unit.part for unit in kernel_model(a100).units.units if unit.part.kind == "product"]
    assert {part.dtype for part in parts} == {"fp32", "tf32"}


def test_every_work_but_collectives_is_modelled_or_has_a_reason(dlrm):
    units = kernel_model(dlrm).units
    works = sorted([*(work for unit in units.units for work in unit.works), *units.reasons])
    assert works == np.flatnonzero(~dlrm.collective).tolist()


def test_a_pass_back_is_that_of_the_last_lookup(a100):
    units = kernel_model(a100).units.units
    widths = {kind: sorted(u.part.kernels[0].width for u in units if u.part.kind == kind) for kind in ("look-up", "look-up update")}
    assert widths["look-up"] == widths["look-up update"][-len(widths["look-up"]) :]


# -------------------------------------------------------------------------------------------- replays


def test_modelled_kernels_meet_the_steps_of_v100_and_a100(dlrm, a100):
    for graph in (dlrm, a100):
        found = report_on(graph, kernels="model")
        assert found.step_time == pytest.approx(found.measured, rel=0.15)
        assert found.model.share > 0.75


def test_a_kernel_that_loses_half_of_its_time_is_told(tmp_path):
    slow = report_of([one_product(tmp_path, 4096, 5120, 1024, 1000)])
    (lost,) = slow.model.losses
    assert (lost.operation, lost.kernel, lost.count) == ("aten::mm", "ampere_fp16_s16816gemm", 1)
    assert lost.lost == pytest.approx(1e-3 - slow.model.here[0])
    assert report_of([one_product(tmp_path, 4096, 5120, 1024, 1000)], kernels="model").step_time < 0.5 * slow.step_time


def test_a_trace_without_kernels_has_nothing_to_model(tmp_path):
    path = one_product(tmp_path, 64, 64, 64, 10)
    data = json.loads(path.read_text())
    data["traceEvents"] = [event for event in data["traceEvents"] if event["cat"] != "kernel"]
    path.write_text(json.dumps(data))
    found = report_of([path], on="h100-sxm")
    assert found.to_dict()["modelled_share"] == 0.0
    assert found.to_dict()["losses"] == []


def test_both_keeps_the_time_of_every_kind(dlrm):
    model = kernel_model(dlrm)
    times, _ = replaced(model, "both")
    for one in model.kinds:
        works = [work for unit in model.units.units if unit.part.kind == one.kind for work in unit.works]
        assert times[works].sum() == pytest.approx(one.measured, rel=1e-9)


@pytest.mark.parametrize("source", ["trace", "both"])
def test_the_device_of_the_trace_itself_changes_no_kernel(dlrm, source):
    model = kernel_model(dlrm)
    alone, _ = replaced(model, source)
    same, _ = replaced(model, source, "v100-sxm2-32gb")
    np.testing.assert_allclose(same, alone, rtol=1e-12)


def test_another_device_scales_measured_kernels_by_the_model(tmp_path):
    path = one_product(tmp_path, 8192, 8192, 8192, 6000)
    model = kernel_model(graph_of(read_traces([path])))
    ratio = model.modelled("h100-sxm")[0] / model.here[0]
    assert replaced(model, "trace", "h100-sxm")[0][0] == pytest.approx(6e-3 * ratio, rel=1e-9)
    assert 0.25 < ratio < 0.6


def test_collectives_take_the_network_of_another_system(dlrm):
    times, notes = replaced(kernel_model(dlrm), "trace", "dgx-h100")
    assert (times[dlrm.collective] < 100e-6).all()
    assert "8 collectives take the time of the network of dgx-h100, and wait for the ranks that were read" in notes
    alone, told = replaced(kernel_model(dlrm), "trace", "h100-sxm")
    np.testing.assert_array_equal(alone[dlrm.collective], dlrm.time[dlrm.collective])
    assert "8 collectives keep their times: the trace does not say their bytes and ranks, or h100-sxm has no network" in told


def test_copies_between_host_and_device_keep_their_times(a100):
    model = kernel_model(a100)
    works = [work for work, (name, _) in model.units.reasons.items() if "HtoD" in name]
    np.testing.assert_array_equal(replaced(model, "model", "h100-sxm")[0][works], model.measured[works])


def test_passes_take_as_many_launches_as_the_trace_has(dlrm):
    device = device_architecture("v100-sxm2-32gb")
    for unit in kernel_model(dlrm).units.units:
        if isinstance(unit.part.kernels[0], Pass):
            assert unit.part.kernels[0].launches == len(unit.works)
            break
    builder = ProgramBuilder(dtype="fp32")
    builder.compute("fill", Pass(moved=0.0, launches=2.0))
    assert kernel_prices(builder.build(), device, None)[0].time[0, 0] == pytest.approx(2 * device.execution.kernel_launch[0])


def test_a_change_comes_after_the_other_device(dlrm):
    found = report_on(dlrm, on="a100-40gb", what_if="compute*0")
    assert found.changes == "compute*0, on a100-40gb"
    times = times_of(dlrm, found.given)
    np.testing.assert_array_equal(times, found.times)


# -------------------------------------------------------------------------------------------- command line


@pytest.mark.slow
def test_the_command_says_what_kernels_lose(capsys):
    assert main(["trace", str(A100), "--kernels", "model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernel_times"] == "model"
    assert len(found["losses"]) == 10
    assert found["losses"][0]["kind"] == "look-up update"
    assert sum(one["measured_s"] for one in found["kernel_kinds"]) > 0
    assert {one["reason"] for one in found["not_modelled"]} >= {"a copy between host and device"}


def test_the_page_lists_losses_kinds_and_what_is_not_modelled(capsys):
    assert main(["trace", str(A100), "--on", "h100-sxm"]) == 0
    text = capsys.readouterr().out
    for title in ("Kernels by what they could reach", "Kernels by kind", "Not modelled", "on h100-sxm"):
        assert title in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "h900"], "--on: template: unknown template 'h900'; did you mean 'h200'?"),
        (["--device", "h900"], "--device: template: unknown template 'h900'; did you mean 'h200'?"),
        (["--kernels", "model"], "needs a model of the device of the trace, but no template is shipped of the device 'Foo 1'"),
    ],
)
def test_a_device_that_is_not_known_ends_with_status_2(tmp_path, capsys, words, message):
    path = one_product(tmp_path, 64, 64, 64, 10)
    if "--kernels" in words:
        path.write_text(path.read_text().replace("NVIDIA A100-SXM4-80GB", "Foo 1"))
    assert main(["trace", str(path), *words]) == 2
    assert message in capsys.readouterr().err


def test_kernel_times_have_three_sources(dlrm):
    with pytest.raises(CrossflowError, match="expected one of trace, model, both as kernel times, got 'modle'; did you mean 'model'"):
        replaced(kernel_model(dlrm), "modle")


def test_reuse_of_look_ups_is_given(capsys, tmp_path, a100):
    evenly, file = kernel_model(a100), tmp_path / "reuse.json"
    factors = [0.0] * 15 + [0.5, 0.5]  # rows that are hit so often are few
    file.write_text(json.dumps({"samples": 65536, "factors": factors}))
    hot = kernel_model(a100, reuse=Reuse(factors=tuple(factors), samples=65536))
    times = {one.kind: one.modelled for one in hot.kinds}
    assert times["look-up"] < 0.6 * {one.kind: one.modelled for one in evenly.kinds}["look-up"]
    assert main(["trace", str(A100), "--reuse", str(file)]) == 0
    assert "the reuse factors that were given hold for" in capsys.readouterr().out
    assert main(["trace", str(A100), "--reuse", "2099"]) == 2
    assert "crossflow: --reuse: there are no reuse factors '2099'" in capsys.readouterr().err


def test_tables_with_few_rows_are_drawn_from_evenly(a100):
    spread = Reuse(factors=(1.0, *[0.0] * 16), samples=65536)  # every look-up hits another row
    assert kernel_model(a100, reuse=spread).here == pytest.approx(kernel_model(a100).here)
    assert "hold for 0 of" in kernel_model(a100, reuse=spread).lookups
