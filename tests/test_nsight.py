"""Exports of Nsight Systems: the same step as in a Kineto trace has the same graph, the same replay and the same advice."""

import json
import re
import sqlite3

import numpy as np
import pytest
from test_advice import GAP, Step

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.explore.opening import kind_of
from crossflow.evidence.replay.kineto import read_traces

# As the exporter creates them (SQLite Export Schema Reference), without the columns that nobody reads.
TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
  blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
"""
HOST = 3 << 48  # a number of the machine above those of process and thread


def exported(path, *processes, tables=TABLES):
    """Events of processes, as `Step` writes them, as an export."""
    database, texts = sqlite3.connect(path), {}
    database.executescript(tables)

    def text(value):
        return texts.setdefault(value, len(texts) + 1)

    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB', 85899345920, 108)")
    for process, events in enumerate(processes, 100):
        of_process, of_thread = HOST | process << 24, HOST | process << 24 | 7
        for one in events:
            start, end, number = round(1e3 * one["ts"]), round(1e3 * (one["ts"] + one["dur"])), one["args"].get("correlation")
            if one["cat"] == "kernel":
                row = (start, end, 0, 1, one["tid"], number, of_process, text(one["name"]), text("short"), 108, 2, 1, 128, 1, 1)
                database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 15)})", row)
            elif one["cat"] == "cuda_runtime":
                row = (start, end, 0, of_thread, number, text(f"{one['name']}_v3020"), 0)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            elif one["cat"] == "gpu_memcpy":
                row = (start, end, 0, one["tid"], number, of_process, 4096, 1, 0, 2)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            else:
                name = (
                    f"{one['name']}, seq = 5, op_id = 3" if one["cat"] == "cpu_op" else one["name"].replace("ProfilerStep#", "iteration ")
                )
                written = (name, None) if len(name) % 2 else (None, text(name))
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)", (start, end, *written, of_thread))
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, value) for value, number in texts.items()])
    database.commit()
    database.close()
    return path


def mixed():
    """A step with copies, a wait in its middle, and launches that the device waits for."""
    step = Step()
    step.launch(500.0, name="Memcpy HtoD (Pageable -> Device)", op="aten::to", call="cudaMemcpyAsync", kind="gpu_memcpy", blocks=True)
    for _ in range(10):
        step.launch(100.0)
    step.wait("cudaStreamSynchronize")
    for _ in range(30):
        step.launch(10.0, spent=50.0)
    ready = step.launch(200.0)
    step.launch(800.0, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", op="nccl", stream=14, after=ready + GAP)
    return step


def test_an_export_says_what_the_kineto_trace_of_the_same_step_says(tmp_path):
    step = mixed()
    kineto = crossflow.trace(step.write(tmp_path, "NVIDIA A100-SXM4-80GB"))
    export = crossflow.trace(exported(tmp_path / "report.sqlite", step.events))
    assert len(export.graph.source) == len(kineto.graph.source)
    np.testing.assert_allclose(export.graph.moments, kineto.graph.moments, atol=1e-9)
    assert export.step_time == pytest.approx(kineto.step_time)
    one, two = kineto.advice, export.advice
    assert [found.kind for found in one.findings] == [found.kind for found in two.findings]
    assert len(one.findings) >= 3
    np.testing.assert_allclose([found.gain for found in one.findings], [found.gain for found in two.findings], rtol=1e-6)
    assert export.graph.traces[0].device == "NVIDIA A100-SXM4-80GB"
    assert export.model is not None


def test_what_kernels_ask_for_and_copies_move_is_read(tmp_path):
    (trace,) = read_traces([exported(tmp_path / "report.sqlite", (step := mixed(), step.write(tmp_path))[0].events)])
    kernels = trace.works.kind == 0
    assert set(trace.works.warps[kernels].tolist()) == {2 * 4}  # two blocks of four warps on each of 108 multiprocessors
    assert trace.works.moved[~kernels].tolist() == [4096.0]
    assert "Memcpy HtoD (Pageable -> Device)" in trace.names
    assert "cudaLaunchKernel" in trace.names
    assert trace.windows[0].name == "ProfilerStep#iteration 1"


def test_processes_of_an_export_are_ranks(tmp_path):
    steps = [mixed(), mixed()]
    for step in steps:
        step.write(tmp_path)
    path = exported(tmp_path / "node.sqlite", *(step.events for step in steps))
    traces = read_traces([path])
    assert [(trace.rank, trace.source) for trace in traces] == [(0, f"{path}:100"), (1, f"{path}:101")]
    assert len(crossflow.trace(path).graph.meetings) == 1


def test_an_export_without_ranges_is_one_step(tmp_path):
    step = mixed()
    step.write(tmp_path)
    tables = re.sub("CREATE TABLE NVTX_EVENTS.*?;", "", TABLES, flags=re.DOTALL)
    events = [one for one in step.events if one["cat"] not in ("cpu_op", "user_annotation")]
    (trace,) = read_traces([exported(tmp_path / "report.sqlite", events, tables=tables)])
    assert "marks no steps (ProfilerStep); all of it is one step" in trace.notes[0]
    assert crossflow.trace(tmp_path / "report.sqlite").advice.step_time > 0


WRONG = [
    ("CREATE TABLE StringIds (id INTEGER, value TEXT);", "it has no table CUPTI_ACTIVITY_KIND_KERNEL: no work of a device was recorded; "),
    (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER);",
        "the table CUPTI_ACTIVITY_KIND_KERNEL has no deviceId, streamId, correlationId, globalPid: no work of a device was recorded; ",
    ),
]


@pytest.mark.parametrize(("tables", "said"), WRONG)
def test_an_export_without_kernels_is_refused_with_the_cure(capsys, tmp_path, tables, said):
    database = sqlite3.connect(tmp_path / "report.sqlite")
    database.executescript(tables)
    database.close()
    assert main(["trace", str(tmp_path / "report.sqlite"), "--advise"]) == 2
    cure = "record with nsys profile --trace=cuda,nvtx, and export with nsys export --type sqlite"
    assert capsys.readouterr().err == f"{tmp_path / 'report.sqlite'}: {said}{cure}\n"


def test_reports_and_broken_files_are_refused(tmp_path):
    report, broken = tmp_path / "report.nsys-rep", tmp_path / "report.sqlite"
    report.write_bytes(b"anything")
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 4000)
    for path, said in (
        (report, "a report of Nsight Systems is read from its export; run nsys export --type sqlite report.nsys-rep, and give "),
        (broken, "this is no export of Nsight Systems that can be read: "),
    ):
        with pytest.raises(SpecError) as raised:
            read_traces([path])
        assert str(raised.value).startswith(f"{path}: {said}")


def test_exports_of_several_nodes_need_a_common_clock(tmp_path):
    paths = []
    for node in range(2):
        step = mixed()
        step.write(tmp_path)
        paths.append(exported(tmp_path / f"node{node}.sqlite", step.events))
    with pytest.raises(CrossflowError, match="count time from their own begins, and do not say when that was"):
        read_traces(paths)
    for node, path in enumerate(paths):
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT)")
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (1_700_000_000_000_000_000 + node * 2_000_000,))
        database.commit()
        database.close()
    first, second = read_traces(paths)
    assert second.works.start[0] - first.works.start[0] == pytest.approx(2e-3, abs=1e-6)
    report = crossflow.trace(paths)  # their collectives end 2 ms apart by these clocks, which cannot be
    assert any(note.startswith("clocks of 1 of 2 ranks differ by up to 2,000 us") for note in report.notes)
    assert all(one.kind != "apart" for one in report.advice.findings)


def test_commands_read_exports(capsys, tmp_path):
    step = mixed()
    step.write(tmp_path)
    path = exported(tmp_path / "report.sqlite", step.events)
    assert main(["trace", str(path), "--advise", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["advice"]["findings"]
    assert main(["import", str(path), "-o", str(tmp_path / "step.program.json.gz")]) == 0
    assert kind_of(path) == "traces"
