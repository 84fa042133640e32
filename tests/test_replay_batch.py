"""Traced steps at another batch."""

import json

import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.evidence.replay.batch import BatchSizes
from crossflow.evidence.replay.graph import graph_of
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.report import report_on
from crossflow.evidence.replay.tensors import tensors_of

BATCH, IN, OUT = 4096, 2048, 8192  # of one layer, forward and backward; a pass over its result; what its look-ups and its ranks exchange
OPS = (
    ("aten::mm", [[BATCH, IN], [IN, OUT]]),
    ("aten::relu", [[BATCH, OUT]]),
    ("aten::mm", [[OUT, BATCH], [BATCH, IN]]),
    ("torch::autograd::AccumulateGrad", [[OUT, IN]]),
    ("aten::_embedding_bag", [[10_000_000, 64], [BATCH * 20], [BATCH + 1]]),
    ("aten::mine", [[BATCH, 7]]),
)


def write(folder, *, shapes=True):
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 9000, "args": {}}]
    for i, (name, dims) in enumerate((*OPS, ("c10d::alltoall_", [[BATCH * 8]]))):
        kinds = ["long int" if len(one) == 1 and i == 4 else "float" for one in dims]
        args = {"Input Dims": dims, "Input type": kinds} if shapes else {}
        work = f"k{i}" if i < len(OPS) else "ncclDevKernel_SendRecv"
        host, device = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 0, "tid": 7}
        events += [
            {**host, "cat": "cpu_op", "name": name, "ts": 10 * i, "dur": 9, "args": args},
            {**host, "cat": "cuda_runtime", "name": "launch", "ts": 10 * i + 1, "dur": 2, "args": {"correlation": i}},
            {**device, "cat": "kernel", "name": work, "ts": 100 + 1100 * i, "dur": 1000, "args": {"correlation": i}},
        ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": events}))
    return path


def ratios(path, change):
    graph = graph_of(read_traces([path]))
    return report_on(graph, what_if=change, device="a100-80gb").given.work / 1e-3


def test_kernels_of_samples_grow_and_those_of_weights_do_not(tmp_path):
    forward, relu, backward, gradient, lookup, unknown, exchange = ratios(write(tmp_path), "batch*2")
    assert forward == pytest.approx(2.0, rel=0.02)
    assert backward == pytest.approx(2.0, rel=0.02)
    assert relu == pytest.approx(2.0, rel=0.02)
    assert 1.7 < lookup < 2.0  # its launch stays
    assert gradient == pytest.approx(1.0)
    assert unknown == pytest.approx(2.0)  # by its bytes
    assert exchange == pytest.approx(1.0)  # the shortest of all is latency


def test_a_batch_may_be_any_part_down_to_one_sample(tmp_path):
    path = write(tmp_path)
    half, one = ratios(path, "batch*0.5"), ratios(path, f"batch*{1 / BATCH}")
    assert half[:4] == pytest.approx([0.5, 0.5, 0.5, 1.0], rel=0.03)
    assert (one[:3] < half[:3]).all()
    with pytest.raises(CrossflowError, match="times the batch of 4096 that the trace has is no whole number"):
        ratios(path, f"batch*{1.5 / BATCH}")


def test_a_batch_that_stays_changes_nothing(tmp_path):
    assert ratios(write(tmp_path), "batch*1") == pytest.approx(1.0)
    assert ratios(write(tmp_path), f"batch[{BATCH}]*1") == pytest.approx(1.0)


def test_only_the_batch_of_a_tensor_grows(tmp_path):
    (trace,) = read_traces([write(tmp_path)])
    sizes = BatchSizes(trace, 0, 0.5)
    assert sizes.batch == BATCH
    assert [one.shape for one in tensors_of(sizes.operation(2).args)] == [(OUT, BATCH // 2), (BATCH // 2, IN)]
    assert [one.shape for one in tensors_of(sizes.operation(4).args)] == [(10_000_000, 64), (BATCH * 10,), (BATCH // 2 + 1,)]


WRONG = [
    ("batch+2ms", "what-if 'batch+2ms': write it as batch*2, or batch[1024]*2 where the trace has 1024 samples a rank"),
    ("batch[x]*2", "what-if 'batch[x]*2': write it as batch*2, or batch[1024]*2 where the trace has 1024 samples a rank"),
    ("batch*0.00003", "what-if 'batch*0.00003': 3e-05 times the batch of 4096 that the trace has is no whole number"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_batches_without_a_meaning_are_refused(tmp_path, change, message):
    with pytest.raises(CrossflowError) as raised:
        ratios(write(tmp_path), change)
    assert str(raised.value) == message


def test_a_trace_without_sizes_has_no_other_batch(capsys, tmp_path):
    assert main(["trace", str(write(tmp_path, shapes=False)), "--what-if", "batch*2", "--device", "a100-80gb"]) == 2
    cure = "record it with record_shapes=True, or give its execution trace with --execution"
    assert f"the trace says no sizes of tensors, so that nothing tells what a batch changes; {cure}" in capsys.readouterr().err


def test_a_trace_of_the_host_has_no_other_batch(tmp_path):
    path = write(tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"traceEvents": [one for one in data["traceEvents"] if one["cat"] != "kernel"]}))
    with pytest.raises(CrossflowError) as raised:
        ratios(path, "batch*2")
    assert str(raised.value) == "what-if 'batch*2': the trace has no work of a device, and the host stays at another batch"
