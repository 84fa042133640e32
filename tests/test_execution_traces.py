"""Execution traces: what they say of operations, and how they are joined with the traces of the profiler."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.execution import _groups, joined, read_executions
from crossflow.evidence.replay.graph import graph_of
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.tensors import TracedTensor, recorded, tensors_of

TRACES = Path(__file__).parent / "data" / "traces"
KINETO, ET = TRACES / "dlrm_rank0_kineto.json.gz", TRACES / "dlrm_rank0_et.json.gz"


@pytest.fixture(scope="module")
def dlrm():
    return joined(read_traces([KINETO]), read_executions([ET]))


def tensor(number, *shape, kind="float", element=4):
    """A tensor of an execution trace: value, shape, type."""
    return [number, 1, 0, int(np.prod(shape)), element, "cuda:0"], list(shape), f"Tensor({kind})"


def node(order, name, inputs=(), outputs=(), thread=1, **attributes):
    """A node as Chakra schemas write it."""
    sides = {
        side: dict(zip(("values", "shapes", "types"), map(list, zip(*rows, strict=True)), strict=True)) if rows else {}
        for side, rows in (("inputs", inputs), ("outputs", outputs))
    }
    said = {"rf_id": order, "tid": thread, **attributes}
    attrs = [{"name": key, "type": "uint64", "value": value} for key, value in said.items()]
    empty = {"values": [], "shapes": [], "types": []}
    return {"id": order + 2, "name": name, "ctrl_deps": 1, **{side: {**empty, **held} for side, held in sides.items()}, "attrs": attrs}


def execution(folder, *nodes, name="et.json", schema="1.1.0-chakra.0.0.4", pid=1):
    path = folder / name
    path.write_text(json.dumps({"schema": schema, "pid": pid, "nodes": nodes, "finish_ts": 1}))
    return path


def kineto(folder, *names, pid=1, rank=0, name="kineto.json"):
    """A trace whose operations launch a kernel of a collective each where they are `record_param_comms`."""
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": pid, "tid": 1, "ts": 0, "dur": 1000, "args": {}}]
    for i, text in enumerate(names):
        span = {"ph": "X", "pid": pid, "tid": 1, "ts": 10 * i + 1, "dur": 9}
        events.append({**span, "cat": "cpu_op", "name": text, "args": {"External id": i + 2}})
        if text == "record_param_comms":
            call = {**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10 * i + 2, "dur": 2, "args": {"correlation": i}}
            work = {**span, "cat": "kernel", "name": "ncclKernel_SendRecv_RING", "pid": 0, "tid": 7, "ts": 10 * i + 20}
            events += [call, {**work, "args": {"correlation": i}}]
    path = folder / name
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}))
    return path


# -------------------------------------------------------------------------------------------- real traces


def test_all_operations_of_a_real_trace_are_joined(dlrm):
    (trace,) = dlrm
    assert len(trace.details) == len(trace.ops) == 1633
    assert dlrm[0].notes[-1] == "execution traces were joined by process: the names of all 1,672 operations agree"


def test_inputs_and_results_of_an_operation_are_known(dlrm):
    (trace,) = dlrm
    op = next(op for op, name in enumerate(trace.ops.name.tolist()) if trace.names[name] == "aten::addmm")
    args, made = trace.details[op].args, trace.details[op].out
    assert [one.shape for one in tensors_of(args)] == [(256,), (16, 13), (13, 256)]
    assert [(one.shape, one.type, one.element) for one in tensors_of(made)] == [((16, 256), "float", 4)]


def test_collectives_have_the_bytes_and_ranks_of_their_calls(dlrm):
    found = list(traced_collectives(graph_of(dlrm).edges[0]).values())
    expected = ["all_to_all", *["all_to_all"] * 3, "all_reduce", "all_to_all", "all_reduce", "all_reduce"]
    assert [one.op for one in found] == expected
    assert [one.size for one in found] == [24576.0, 192.0, 1536.0, 13568.0, 1576964.0, 24576.0, 448.0, 907840.0]
    assert {one.ranks for one in found} == {8}
    splits = [args.get("In split size") for args in dlrm[0].works.args if args]
    assert [96, 224, 288, 1664, 592, 96, 192, 240] in splits


def test_producers_are_the_last_to_make_a_tensor(dlrm):
    (one,) = read_executions([ET])
    found = one.producers()
    takes = [place for place, node in enumerate(one.nodes) if next(tensors_of(node.operation.args), None)]
    assert len(takes) == 1441
    assert sum(bool(found[place]) for place in takes) == 1327
    assert all(before < place for place, before in ((i, j) for i, each in enumerate(found) for j in each))


# -------------------------------------------------------------------------------------------- both schemas


def test_chakra_schemas_say_the_same(tmp_path):
    one, two = tensor(5, 4, 8), tensor(6, 8, 2)
    path = execution(tmp_path, node(3, "aten::mm", [one, two], [tensor(7, 4, 2)]), node(4, "aten::relu", [tensor(7, 4, 2)]))
    (found,) = read_executions([path])
    assert found.producers() == ((), (0,))
    assert found.nodes[0].operation.args == (TracedTensor((4, 8), "float", 4, 5), TracedTensor((8, 2), "float", 4, 6))


def test_lists_and_values_are_read_by_their_types():
    values = [[tensor(1, 3)[0], tensor(2, 5)[0]], [1, 2], "<None>", True]
    found = recorded(
        values, [[[3], [5]], [[], []], [], []], ["GenericList[Tensor(float),Tensor(long int)]", "GenericList[Int,Int]", "None", "Bool"]
    )
    assert found == ((TracedTensor((3,), "float", 4, 1), TracedTensor((5,), "longint", 4, 2)), (1, 2), None, True)


def test_process_groups_say_the_ranks_of_a_collective(tmp_path):
    groups = node(1, "## process_group:init ##", [('[{"pg_name": "7", "ranks": [0, 2], "group_size": 2}]', [], "String")])
    rows = [
        ([tensor(9, 100)[0]], [[100]], "GenericList[Tensor(float)]"),
        (47, [], "Int"),
        (["7", "pairs"], [[], []], "Tuple[String,String]"),
    ]
    rows += [(2, [], "Int"), ("allreduce", [], "String")]
    call = node(3, "record_param_comms", rows)
    (found,) = read_executions([execution(tmp_path, groups, node(2, "ProfilerStep#1"), call)])
    assert (found.rank, found.groups) == (2, {"7": (0, 2)})
    traces = joined(read_traces([kineto(tmp_path, "record_param_comms")]), [found])
    (one,) = traced_collectives(graph_of(traces).edges[0]).values()
    assert (one.op, one.size, one.ranks) == ("all_reduce", 400.0, 2)


def test_the_annotation_around_its_launch_says_which_collective_a_kernel_is(tmp_path):
    """Two launches within annotations, one after them, and a kernel from before the trace; all have one name that says nothing."""
    span = {"ph": "X", "pid": 1, "tid": 1, "dur": 9}
    events = [{**span, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000}]
    events += [
        {**span, "cat": "user_annotation", "name": f"nccl:{name}", "ts": ts} for name, ts in [("all_reduce", 10), ("all_gather", 30)]
    ]
    for number, launch in enumerate([-1, 12, 32, 52]):
        linked = {**span, "args": {"correlation": number}}
        if launch >= 0:
            events.append({**linked, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch, "dur": 2})
        events.append({**linked, "cat": "kernel", "name": "ncclDevKernel_Generic", "pid": 0, "tid": 7, "ts": 100 + 10 * number})
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}))
    found = traced_collectives(graph_of(read_traces([path])).edges[0])
    assert [found[work].op for work in sorted(found)] == ["collective", "all_reduce", "all_gather", "collective"]


def varint(number):
    number &= (1 << 64) - 1
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number, value):
    """A field of protobuf: a number, a text or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def chakra(folder, *nodes):
    """The same as the converter of Chakra writes it: messages of `et_def.proto` behind their lengths."""
    messages = [field(1, "0.0.4")]
    for one in nodes:
        sides = [
            field(8 + i, b"".join(field(j + 1, str(part)) for j, part in enumerate(one[side].values())))
            for i, side in enumerate(("inputs", "outputs"))
        ]
        attrs = [field(10, field(1, attr["name"]) + field(9, attr["value"])) for attr in one["attrs"]]
        messages.append(field(1, one["id"]) + field(2, one["name"]) + b"".join(sides + attrs))
    path = folder / "chakra.0.et"
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
    return path


def test_chakra_in_protobuf_says_what_json_says(tmp_path):
    nodes = node(3, "aten::mm", [tensor(5, 4, 8), tensor(6, 8, 2)], [tensor(7, 4, 2)]), node(4, "aten::relu", [tensor(7, 4, 2)])
    (text,), (binary,) = (
        read_executions([execution(tmp_path, *nodes)]),
        read_executions([chakra(tmp_path, *nodes, node(5, "gpu", is_cpu_op=0))]),
    )
    assert binary.nodes == text.nodes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x05ab", "expected a Chakra trace in protobuf, but a message ends in the middle"),
        (b"\x01a\x01\x0b", "expected a Chakra trace in protobuf, but a field is written in the way 3, which protobuf does not have"),
        (b"", "the Chakra trace has no operations of PyTorch (no attribute rf_id); write it with the converter of Chakra from PyTorch"),
    ],
)
def test_what_is_no_chakra_trace_is_refused(tmp_path, content, message):
    path = tmp_path / "trace.et"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_executions([path])
    assert str(caught.value) == f"{path}: {message}"


# -------------------------------------------------------------------------------------------- which belong together


def test_a_trace_goes_with_its_process_then_its_rank_then_its_place(tmp_path):
    traces = read_traces([kineto(tmp_path, "aten::mm", pid=pid, rank=rank, name=f"{pid}.json") for rank, pid in enumerate((11, 12))])
    call = node(2, "aten::mm")
    by_process = read_executions([execution(tmp_path, call, pid=pid, name=f"et{pid}.json") for pid in (12, 11)])
    assert joined(traces, by_process)[0].notes[-1] == "execution traces were joined by process: the names of all 2 operations agree"
    by_place = read_executions([execution(tmp_path, call, pid=pid, name=f"et{pid}.json") for pid in (5, 6)])
    told = joined(traces, by_place)[0].notes[-1]
    assert told == "execution traces were joined by the order of the files: the names of all 2 operations agree"
    with pytest.raises(CrossflowError, match="neither its process nor its rank is that of one Kineto trace"):
        joined(traces, by_place[:1])


def test_one_step_says_the_sizes_of_all_that_run_the_same_operations(tmp_path):
    one = execution(tmp_path, node(2, "aten::mm", [tensor(1, 3, 4), tensor(2, 4, 5)]), node(3, "aten::relu"))
    (trace,) = joined(read_traces([kineto(tmp_path, *["aten::mm", "aten::relu"] * 3, "aten::add")]), read_executions([one]))
    assert sorted(trace.details) == [0, 1, 2, 3, 4, 5]
    assert trace.notes[-1] == "the execution trace of one step says the sizes of 3 steps that run the same operations"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["aten::mm"], " (process 2, not 1): a thread has 2 operations in the first, 1 in the second"),
        (["aten::mm", "aten::add"], " (process 2, not 1): operation 2 of a thread is aten::relu in the first, aten::add in the second"),
    ],
)
def test_a_trace_of_another_run_is_refused_with_what_differs(tmp_path, names, message):
    other = execution(tmp_path, node(1, "aten::mm"), node(2, "aten::relu"), pid=2)
    own = kineto(tmp_path, *names)
    with pytest.raises(CrossflowError) as caught:
        joined(read_traces([own]), read_executions([other]))
    assert str(caught.value) == f"{other} is of another run or step than {own}{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": []}', "it names no schema; execution traces of PyTorch with schemas 1.0 and 1.1 are supported"),
        ('{"schema": "2.0", "nodes": []}', "its schema is '2.0'; execution traces of PyTorch with schemas 1.0 and 1.1 are supported"),
        ('{"schema": "1.0.1", "nodes": [{"id', "the execution trace ends in the middle, so that it joins no Kineto trace"),
    ],
)
def test_what_is_no_execution_trace_is_refused(tmp_path, text, message):
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_executions([path])
    assert str(caught.value) == f"{path}: {message}"


def test_the_command_joins_traces(capsys):
    assert main(["trace", str(KINETO), "--execution", str(ET), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["modelled_share"] > 0.95
    assert found["device_template"] == "v100-sxm2-32gb"
    assert any("joined by process" in note for note in found["notes"])


@pytest.mark.slow
def test_a_program_has_the_collectives_that_execution_traces_tell(capsys, tmp_path):
    out = tmp_path / "step.program.json"
    assert main(["import", str(KINETO), "--execution", str(ET), "--collectives", "modelled", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["messages"]
    assert sum(one["bytes"] for one in found if one["collective"] == "all_reduce") == 1576964 + 448 + 907840
    assert main(["import", "model.py:step", "--execution", str(ET), "-o", str(out)]) == 2
    assert "--execution is for traces" in capsys.readouterr().err


def test_an_execution_trace_alone_is_told_where_it_belongs(capsys):
    assert main(["trace", str(ET)]) == 2
    assert "give it as --execution beside the Kineto trace of its rank" in capsys.readouterr().err


def test_an_execution_trace_of_another_rank_is_refused():
    (trace,), (execution,) = read_traces([KINETO]), read_executions([ET])
    other = replace(execution, process="1", rank=5)
    with pytest.raises(CrossflowError, match=r"is of rank 5, and .* of rank 0; give the execution traces of the same ranks"):
        joined([trace], [other])
    assert joined([trace], [replace(other, rank=-1)])[0].details


def test_the_excerpts_name_their_source():
    for path in TRACES.glob("*.json.gz"):
        assert "MIT License" in gzip.decompress(path.read_bytes())[:2000].decode()
        assert path.stat().st_size < 60_000


def test_groups_of_a_job_name_their_ranks_or_are_all():
    told = [{"pg_name": "0", "ranks": [], "group_size": 3}, {"pg_name": "1", "ranks": [0, 2], "group_size": 2}, "else"]
    assert list(_groups([json.dumps(told)])) == [("0", (0, 1, 2)), ("1", (0, 2))]
    assert list(_groups(["no JSON"])) == list(_groups([])) == []
