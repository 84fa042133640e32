"""Traces of real steps: what waits for what, replays, and what they react to."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.engine.timeline.record import COMMUNICATION, DATA, WAIT
from crossflow.evidence.replay.breakdown import PARTS, _host, device_span, length, mean_shares, shares_of, union
from crossflow.evidence.replay.changes import changed, read_trace_changes
from crossflow.evidence.replay.collectives import traced_collectives
from crossflow.evidence.replay.events import event_files
from crossflow.evidence.replay.graph import GraphTimes, graph_of, taken, times_of
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.overheads import overheads_of, read_overheads, write_overheads
from crossflow.evidence.replay.program import traced_program
from crossflow.evidence.replay.report import accuracy, report_of, report_on
from crossflow.evidence.replay.timeline import traced_timeline
from crossflow.program import read_program

DLRM = Path(__file__).parents[1] / "docs" / "examples" / "traces" / "dlrm_8xv100.tar.gz"  # see `source` in its files


@pytest.fixture(scope="module")
def dlrm():
    return read_traces([DLRM])


def event(category, name, thread, start, length, pid=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "ts": start, "dur": length, "args": args}


def kernel(name, stream, start, length, correlation, **args):
    return event("kernel", name, stream, start, length, pid=0, correlation=correlation, **args)


def launch(start, correlation, length=5, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, 1, start, length, correlation=correlation)


def step(start, length):
    return event("user_annotation", "ProfilerStep#1", 1, start, length)


def chain(scale=1.0, kernels=20, each=100):
    """A step that its device decides: kernels launched early, and a wait for the last of them."""
    events, at = [step(0, 0)], 20.0
    for i in range(kernels):
        events += [
            event("cpu_op", "aten::mm", 1, 10 * i, 9),
            launch(10 * i + 2, i),
            kernel("gemm", 7, at, each * scale, i),
        ]
        at += each * scale + 1
    wait = 10 * kernels
    events += [event("cuda_runtime", "cudaDeviceSynchronize", 1, wait, at - wait, correlation=99)]
    events[0] = step(0, at + 5)
    return events


def write(folder, events, name="trace.json", **head):
    path = folder / name
    text = json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, **head, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def steps(graph, times=None):
    times = times_of(graph) if times is None else times
    return np.array([times[one.end] - times[one.begin] for one in graph.steps])


def measured(graph):
    return np.array([one.measured for one in graph.steps])


# ------------------------------------------------------------------------------------------ replay


def test_every_rank_replays_within_one_percent(dlrm):
    graph = graph_of(dlrm)
    np.testing.assert_allclose(steps(graph), measured(graph), rtol=0.01)


def test_a_replay_that_does_not_meet_loses_what_ranks_wait_for(dlrm):
    graph = graph_of(dlrm, meet=False)
    lost = 1.0 - steps(graph) / measured(graph)
    assert (lost[[1, 3, 4, 5]] > 0.2).all()
    assert lost[7] < 0.01  # the others wait for it


def test_a_replay_reacts_to_the_host(dlrm):
    graph = graph_of(dlrm)
    change = steps(graph, times_of(graph, changed(graph, read_trace_changes("host*0.5")))) / measured(graph) - 1.0
    assert (change < -0.25).all()
    assert (change > -0.51).all()


def test_mean_overheads_of_other_ranks_predict_a_rank(dlrm):
    figures = accuracy(graph_of(dlrm))
    assert figures["mean_overheads"]["mean"] < 0.05
    assert figures["mean_overheads"]["largest"] < 0.10
    assert figures["largest_stream_sum"]["mean"] > 5 * figures["mean_overheads"]["mean"]


def test_a_late_rank_delays_those_that_meet_it(dlrm):
    graph = graph_of(dlrm)
    later = steps(graph, times_of(graph, changed(graph, read_trace_changes("rank[7]+5ms")))) - steps(graph)
    np.testing.assert_allclose(later[:7], 5e-3, rtol=0.02)
    assert abs(later[7]) < 1e-4


def test_compute_decides_a_step_that_waits_for_its_device(tmp_path):
    graph = graph_of(read_traces([write(tmp_path, chain())]))
    half = times_of(graph, changed(graph, read_trace_changes("compute*0.5")))
    assert steps(graph, half)[0] / steps(graph)[0] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_a_what_if_equals_the_trace_that_was_changed(tmp_path, scale):
    graph = graph_of(read_traces([write(tmp_path, chain())]))
    other = graph_of(read_traces([write(tmp_path, chain(scale), "changed.json")]))
    found = steps(graph, times_of(graph, changed(graph, read_trace_changes(f"kernel[gemm]*{scale}"))))
    np.testing.assert_allclose(found, steps(other), rtol=0.01)


def test_many_points_at_once_are_what_each_is_by_itself(dlrm):
    graph, base = graph_of(dlrm), taken(graph_of(dlrm))
    factors = np.array([0.5, 1.0, 3.0])
    together = times_of(graph, GraphTimes(work=base.work[:, None] * factors, host=base.host, begin=base.begin, kept=base.kept))
    for i, factor in enumerate(factors):
        alone = times_of(graph, GraphTimes(work=base.work * factor, host=base.host, begin=base.begin, kept=base.kept))
        np.testing.assert_array_equal(together[:, i], alone)


def test_a_wait_that_is_taken_away_lets_the_host_go_on(tmp_path):
    graph = graph_of(read_traces([write(tmp_path, chain())]))
    freed = steps(graph, times_of(graph, changed(graph, read_trace_changes("synchronisation*0"))))
    assert freed[0] < 0.2 * steps(graph)[0]


def test_an_operation_that_is_fused_takes_its_kernels_along(tmp_path):
    graph = graph_of(read_traces([write(tmp_path, chain())]))
    gone = steps(graph, times_of(graph, changed(graph, read_trace_changes("op[aten::mm]*0"))))
    assert gone[0] < 0.1 * steps(graph)[0]


def test_waits_of_streams_are_read_where_the_trace_has_them(tmp_path):
    def events(*further):
        return [
            step(0, 400),
            launch(0, 1),
            kernel("first", 7, 10, 300, 1),
            event("cuda_runtime", "cudaEventRecord", 1, 6, 1, correlation=2),
            launch(20, 4),
            kernel("second", 20, 311, 50, 4),
            *further,
        ]

    sync = event("cuda_sync", "Stream Wait Event", 7, 8, 1, stream=20, wait_on_stream=7, correlation=3, wait_on_cuda_event_record_corr_id=2)
    sync["args"]["stream"], sync["args"]["wait_on_stream"] = 20, 7
    told = event("cuda_runtime", "cudaStreamWaitEvent", 1, 8, 1, correlation=3)
    graph = graph_of(read_traces([write(tmp_path, events(told, sync))]))
    assert graph.edges[0].read
    assert [*graph.edges[0].waits] == [[], [0]]
    assert [*graph_of(read_traces([write(tmp_path, events())])).edges[0].waits] == [[], []]


# ------------------------------------------------------------------------------------------ where the time goes


def test_parts_of_a_step_add_up_to_it(dlrm):
    graph = graph_of(dlrm)
    for times in (graph.moments, times_of(graph)):
        for share in shares_of(graph, times):
            assert sum(share.parts.values()) == pytest.approx(share.time, rel=1e-9)
            assert set(share.parts) == set(PARTS)
            assert min(share.parts.values()) >= 0


def test_ranks_that_wait_say_for_whom(dlrm):
    report = report_of([DLRM])
    assert report.late[0].rank == 7
    waiting = {share.rank: share.parts["waiting"] for share in report.ranks}
    assert waiting[1] > 0.5 * 19.9e-3
    assert min(waiting, key=waiting.get) == 7


def test_the_critical_path_is_as_long_as_the_step(dlrm):
    report = report_on(graph_of(dlrm), what_if="host*1.0")
    assert sum(report.path.time.values()) == pytest.approx(max(steps(report.graph, report.times)), rel=1e-6)


def test_the_device_span_counts_kernels_once(tmp_path):
    events = [step(0, 100), launch(0, 1), launch(6, 2), kernel("a", 7, 10, 40, 1), kernel("b", 20, 30, 40, 2)]
    (trace,) = read_traces([write(tmp_path, [*events, launch(70, 3), kernel("ncclKernel_AllReduce", 14, 80, 15, 3)])])
    span = device_span(trace)
    assert [span.time, span.idle, span.compute, span.other] == pytest.approx([85e-6, 10e-6, 60e-6, 15e-6])


def test_joined_spans_cover_each_moment_once():
    rng = np.random.default_rng(1)
    spans = np.sort(rng.uniform(0, 1, (50, 2)), axis=1) * 1000
    grid = np.arange(0, 1000, 0.05)
    covered = ((grid[:, None] >= spans[:, 0]) & (grid[:, None] < spans[:, 1])).any(axis=1).mean() * 1000
    assert length(union(spans)) == pytest.approx(covered, rel=1e-2)


# ------------------------------------------------------------------------------------------ programs


@pytest.mark.thorough
@pytest.mark.slow
def test_the_program_of_a_trace_takes_as_long_as_its_replay(dlrm, tmp_path):
    graph = graph_of(dlrm)
    times = times_of(graph)
    whole = max(times[one.end] for one in graph.steps) - min(times[one.begin] for one in graph.steps)
    assert predicted(graph, tmp_path) == pytest.approx(whole, rel=0.01)


def test_the_program_of_a_step_of_its_host_takes_as_long_as_the_host(tmp_path):
    """Kernels of a microsecond, launched every 100: what lies between two calls is the host's too."""
    events = [step(0, 2100)]
    for i in range(20):
        events += [launch(100 * i + 50, i), kernel("gemm", 7, 100 * i + 60, 1, i)]
    graph = graph_of(read_traces([write(tmp_path, events)]))
    assert predicted(graph, tmp_path) == pytest.approx(2.1e-3, rel=0.01)


def predicted(graph, tmp_path, *settings, **given):
    from crossflow import load, predict
    from crossflow.program import write_program

    program = traced_program(graph, "step", **given)
    write_program(program, tmp_path / "step.program.json.gz")
    assert len(read_program(tmp_path / "step.program.json.gz").ops) == len(program.ops)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(f"system: {{template: dgx-h100, devices: {program.devices}}}\nworkload: step.program.json.gz\n")
    return predict(load(scenario, settings)).step_time


def collective_step(world=8):
    nccl = {
        "Collective name": "allreduce",
        "In msg nelems": 25_000_000,
        "Out msg nelems": 25_000_000,
        "dtype": "Float",
        "Group size": world,
    }
    waits = event("cuda_runtime", "cudaDeviceSynchronize", 1, 30, 4000, correlation=9)
    return [step(0, 4040), launch(10, 1), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 14, 20, 4000, 1, **nccl), waits]


def test_collectives_of_a_program_take_their_measured_time_or_the_networks(tmp_path):
    graph = graph_of(read_traces([write(tmp_path, collective_step(), distributedInfo={"rank": 0, "world_size": 8})]))
    slow = ["system.network.intra.bandwidth=1 GB/s"]
    assert predicted(graph, tmp_path) == pytest.approx(4.04e-3, rel=0.01)
    assert predicted(graph, tmp_path, *slow) == pytest.approx(4.04e-3, rel=0.01)
    assert predicted(graph, tmp_path, modelled=True) < 0.002


def test_a_collective_is_what_the_annotation_around_its_launch_says(tmp_path):
    """Though its kernel says nothing, and though nothing was called before; outside of the annotation nothing is known."""
    for begin, op in ((5, "all_reduce"), (12, "collective")):
        said = event("user_annotation", "nccl:all_reduce", 1, begin, 20)
        sent = kernel("ncclDevKernel_Generic", 14, 20, 4000, 1)
        graph = graph_of(read_traces([write(tmp_path, [step(0, 4040), said, launch(10, 1, length=1), sent], f"{op}.json")]))
        assert [one.op for one in traced_collectives(graph.edges[0]).values()] == [op]


# ------------------------------------------------------------------------------------------ files


@pytest.mark.thorough
@pytest.mark.slow
def test_events_are_read_in_bounded_memory(tmp_path):
    events = [event("cpu_op", f"aten::op{i % 50}", 1, 10 * i, 9, note="x" * 1000) for i in range(20_000)]
    path = write(tmp_path, events)
    assert path.stat().st_size > 15e6
    del events
    tracemalloc.start()
    count = sum(1 for file in event_files(path) for _ in file.events())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 12e6


@pytest.mark.thorough
@pytest.mark.slow
def test_a_graph_takes_little_memory_for_each_event(tmp_path):
    path = write(tmp_path, chain(kernels=3_000))
    read_traces([write(tmp_path, chain(kernels=2), "small.json")])  # what is imported and kept once
    tracemalloc.start()
    graph_of(read_traces([path]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / 9_000 < 800  # bytes


def test_many_steps_are_held_out_a_few_at_once(tmp_path):
    many = [one | {"ts": one["ts"] + 3e3 * i} for i in range(20) for one in chain()]
    for i, one in enumerate(many):
        if "correlation" in one["args"]:
            one["args"] = {"correlation": one["args"]["correlation"] + 100 * (i // 62)}
    figures = accuracy(graph_of(read_traces([write(tmp_path, many)])))
    assert figures["measured_times"]["largest"] < 0.01
    assert figures["mean_overheads"]["largest"] < 0.01


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_truncated_trace_is_read_as_far_as_it_goes(tmp_path, name):
    path = write(tmp_path, chain(), name)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(0.8 * len(whole))])
    (trace,) = read_traces([path])
    assert 0 < len(trace.works) < 20
    assert f"{path} ends in the middle; what stands before was read" in trace.notes


def test_a_trace_of_the_cpu_has_a_host_only(tmp_path):
    path = write(tmp_path, [step(0, 100), event("cpu_op", "aten::mm", 1, 10, 80)])
    (share,) = mean_shares(report_of([path]).steps)
    assert share.parts["host"] == pytest.approx(100e-6)
    assert report_of([path]).notes == (f"{path} has no work of a device: the host is all that it holds",)


def test_calls_of_amd_devices_are_known(tmp_path):
    events = json.loads(json.dumps(chain()).replace("cudaLaunchKernel", "hipLaunchKernel").replace("cudaDeviceSync", "hipDeviceSync"))
    graph = graph_of(read_traces([write(tmp_path, events)]))
    np.testing.assert_allclose(steps(graph), measured(graph), rtol=0.01)
    assert graph.edges[0].inferred["host_wait"] == 1


WRONG = [
    ("", "the file is empty"),
    ("hello", "expected a trace in JSON, which begins with { or ["),
    ('{"a": 1}', "expected a trace with a list of traceEvents or nodes"),
    ('{"traceEvents": []}', "the trace has neither operations (cpu_op) nor work of a device (kernel); record it with torch.profiler"),
    (
        '{"schema": "1.0.1", "nodes": [{"id": 1}]}',
        "this is an execution trace, which has no times of a device; give it as --execution beside the Kineto trace of its rank",
    ),
    (
        json.dumps([event("mtia_ccp_events", "x", 1, 0, 1)]),
        "the trace is of MTIA, which is not supported; NVIDIA and AMD devices and the CPU are",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_no_trace_is_refused_with_a_reason(tmp_path, text, message):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(SpecError) as raised:
        read_traces([path])
    assert str(raised.value) == f"{path}: {message}"


def test_two_traces_of_one_rank_are_refused(tmp_path):
    first, second = write(tmp_path, chain(), "a.json"), write(tmp_path, chain(), "b.json")
    with pytest.raises(CrossflowError) as raised:
        read_traces([first, second])
    assert str(raised.value) == f"{first} and {second} are both of rank 0; give one trace of each rank of one job"


def test_traces_of_two_jobs_are_refused(tmp_path):
    first = write(tmp_path, chain(), "a.json")
    second = write(tmp_path, chain(), "b.json", distributedInfo={"rank": 1, "world_size": 8})
    with pytest.raises(CrossflowError, match="the traces are of worlds of 1 and 8 ranks; give those of one job"):
        read_traces([first, second])


def test_cycles_of_one_process_are_no_ranks(tmp_path):
    first, second = (
        write(tmp_path, [one | {"ts": one["ts"] + later} for one in chain()], name, distributedInfo={})
        for name, later in (("a.json", 0), ("b.json", 1e5))
    )
    both = f"{first} and {second} are both of process 1, one after the other, and say no rank"
    with pytest.raises(CrossflowError, match=both):
        read_traces([first, second])
    beside = write(tmp_path, chain(), "c.json", distributedInfo={})  # a process of the same number on another host
    assert len(read_traces([first, beside])) == 2


@pytest.mark.parametrize(
    "changes", [{"dur": float("nan")}, {"dur": -50}, {"ts": 1e300}, {"dur": float("inf")}, {"args": {"correlation": 1 << 70}}]
)
def test_events_with_times_that_are_none_are_left_out(tmp_path, changes):
    events = chain()
    next(one for one in events if one["cat"] == "kernel").update(changes)
    path = write(tmp_path, events)
    (trace,) = read_traces([path])
    assert len(trace.works) == 19
    left_out = "1 events without a name, a time or a thread, or with times that are none, were left out"
    assert trace.notes == (f"{path}: {left_out}",)


def test_names_hold_nothing_that_a_terminal_obeys(tmp_path):
    text = json.loads(json.dumps(chain()).replace("gemm", "\\u001b[31mgemm"))
    (trace,) = read_traces([write(tmp_path, text)])
    assert "?[31mgemm" in trace.names


def test_steps_that_are_not_marked_are_told(tmp_path):
    path = write(tmp_path, chain()[1:])
    assert read_traces([path])[0].notes == (f"{path} marks no steps (ProfilerStep); all of it is one step",)


def test_the_host_of_a_critical_path_is_divided_by_operation(tmp_path):
    events = [step(0, 100), event("cpu_op", "aten::mm", 1, 10, 60), event("cpu_op", "aten::add", 1, 70, 20)]
    names = report_of([write(tmp_path, events)]).path.names
    assert names["aten::mm"] == pytest.approx(60e-6)
    assert names["aten::add"] == pytest.approx(20e-6)


def test_a_trace_is_not_written_over(capsys, tmp_path):
    path = write(tmp_path, chain())
    before = path.read_bytes()
    assert main(["trace", str(path), "-o", str(path)]) == 2
    assert f"{path} is read; write to another file" in capsys.readouterr().err
    assert main(["import", str(path), "-o", str(path)]) == 2
    assert path.read_bytes() == before


def test_other_files_of_a_folder_are_left_out_and_told(tmp_path):
    write(tmp_path, chain())
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    (trace,) = read_traces([tmp_path])
    assert trace.notes == ("of its folder these hold no trace and were left out: package.json",)


def test_a_page_without_compute_is_shown(capsys, tmp_path):
    assert main(["trace", str(write(tmp_path, chain())), "--what-if", "compute*0, host*0"]) == 0
    assert "Largest kernels" in capsys.readouterr().out


def test_outputs_that_are_none_are_refused(capsys, tmp_path):
    path, taken = write(tmp_path, chain()), tmp_path / "taken"
    taken.write_text("")
    assert main(["trace", str(path), "-o", str(taken)]) == 2
    said = "is no folder; a name without ending is a folder of traces, a trace ends in .json or .json.gz"
    assert f"crossflow: {taken} {said}\n" == capsys.readouterr().err
    assert main(["import", str(path), "-o", str(tmp_path / "step.json")]) == 2
    assert "step.json: a program is JSON; give its file a name that ends in .program.json.gz or .program.json" in capsys.readouterr().err


def test_a_comparison_does_not_judge_replays(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("crossflow.evidence.replay.report.accuracy", lambda graph: pytest.fail("it was not asked for"))
    path = write(tmp_path, chain())
    assert main(["trace", str(path), "--compare", str(path)]) == 0
    assert "beside" in capsys.readouterr().out


def test_the_wait_of_a_collective_in_a_timeline_ends_when_the_last_rank_comes(tmp_path):
    """Rank 1 comes 1 ms after rank 0; both end at 4.02 ms: rank 0 waits 1 ms and sends 3, rank 1 sends 3."""
    nccl = {"Collective name": "allreduce", "In msg nelems": 25_000_000, "Out msg nelems": 25_000_000, "dtype": "Float", "Group size": 2}
    for rank, begin in ((0, 20), (1, 1020)):
        sent = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 14, begin, 4020 - begin, 1, **nccl)
        waits = event("cuda_runtime", "cudaDeviceSynchronize", 1, begin, 4020 - begin, correlation=9)
        events = [step(0, 4040), launch(1, 7, length=1), kernel("gemm", 7, 3, 2, 7), launch(begin - 10, 1), sent, waits]
        write(tmp_path, events, f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
    graph = graph_of(read_traces(sorted(tmp_path.glob("rank*.json"))))
    found = traced_timeline(graph, times_of(graph), "both")
    spans = [[], []]
    for rank, mine in enumerate(spans):
        events = found.events(rank)
        of_links = events.stream == DATA
        columns = (events.kind[of_links], events.start[of_links], events.end[of_links])
        mine += [(kind, round(start * 1e6), round(end * 1e6)) for kind, start, end in zip(*columns, strict=True)]
    assert spans == [[(WAIT, 20, 1020), (COMMUNICATION, 1020, 4020)], [(COMMUNICATION, 1020, 4020)]]


def test_the_timeline_of_a_trace_is_a_trace(tmp_path):
    path, out = write(tmp_path, chain()), tmp_path / "out.json"
    assert main(["trace", str(path), "-o", str(out)]) == 0
    assert len(read_traces([out])[0].works) > 0


# ------------------------------------------------------------------------------------------ changes


WRONG_CHANGES = [
    ("compute", "what-if 'compute': expected a word, + or *, and a value, such as compute*0.5 or all_reduce+2ms"),
    ("komputer*2", "what-if 'komputer*2': unknown word 'komputer'; did you mean 'compute'?; known words: all_reduce, all_gather, "),
    ("bandwidth*2", "what-if 'bandwidth*2': a trace does not say what of a collective is bandwidth; "),
    ("kernel*2", "what-if 'kernel*2': say which, such as kernel[*gemm*]*0.8, op[aten::copy_]*0 or rank[3]+1ms"),
    ("compute[x]*2", "what-if 'compute[x]*2': 'compute' takes no brackets"),
    ("host+1ms", "what-if 'host+1ms': write it as host*0.5"),
    ("rank[1]*2", "what-if 'rank[1]*2': write it as rank[3]+1ms"),
    ("synchronisation*2", "what-if 'synchronisation*2': a wait is there or not; write synchronisation*0 or "),
    ("compute*-1", "what-if 'compute*-1': expected a value above zero, got -1"),
    ("compute*1e29", "what-if 'compute*1e29': expected a factor of at most 1,000,000, got 1e29"),
    ("all_reduce+1e9s", "what-if 'all_reduce+1e9s': expected a time of at most 100,000 s, got 1e9s"),
    ("kernel[nothing]*2", "what-if 'kernel[nothing]*2': the trace has no kernel[nothing]"),
    ("all_gather*2", "what-if 'all_gather*2': the trace has no all_gather"),
    ("rank[3]+1ms", "what-if 'rank[3]+1ms': there is no trace of rank 3; those of 0 were read"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_CHANGES)
def test_changes_without_a_meaning_are_refused(tmp_path, text, message):
    graph = graph_of(read_traces([write(tmp_path, chain(kernels=2))]))
    with pytest.raises(CrossflowError) as raised:
        changed(graph, read_trace_changes(text))
    assert str(raised.value).startswith(message)


# ------------------------------------------------------------------------------------------ overheads and the command line


def test_overheads_come_back_from_their_file(dlrm, tmp_path):
    graph = graph_of(dlrm)
    found = overheads_of([graph], "node 7")
    write_overheads(found, tmp_path / "host.json")
    assert read_overheads(tmp_path / "host.json") == found
    assert found.seen(graph) == 1.0


def test_overheads_of_an_operation_are_its_mean(tmp_path):
    graph = graph_of(read_traces([write(tmp_path, chain())]))
    found = overheads_of([graph])
    assert found.rows["T2", "aten::mm"] == pytest.approx((2e-6, 0.0, 20), abs=1e-9)
    assert found.rows["T4", "cudaLaunchKernel"] == pytest.approx((5e-6, 0.0, 20), abs=1e-9)
    assert found.mean("T2", "aten::unknown") == pytest.approx(2e-6)


def test_the_command_prints_what_a_prediction_has(capsys, tmp_path):
    path = write(tmp_path, chain())
    assert main(["trace", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {"step_time_s", "feasible", "reason", "breakdown_s", "communication_s", "memory", "throughput", "mfu", "bound_by"} <= set(data)
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"])
    (rank,) = data["ranks"]
    assert {"step_time_s", "busy_s", "exposed_communication_s", "waiting_s", "host_s", "idle_s"} <= set(rank)


def test_the_command_writes_timelines_and_overheads(capsys, tmp_path):
    path, trace, host = write(tmp_path, chain()), tmp_path / "out.json.gz", tmp_path / "host.json"
    assert main(["trace", str(path), "-o", str(trace), "--write-overheads", str(host), "--host", "here"]) == 0
    assert "gemm" in gzip.decompress(trace.read_bytes()).decode()
    assert main(["trace", str(path), "--overheads", str(host), "--what-if", "compute*0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]) or "{}")["step_time_s"] < 0.0012


def test_a_trace_that_is_not_there_ends_with_status_2(capsys, tmp_path):
    assert main(["trace", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read: No such file or directory" in capsys.readouterr().err


def test_time_of_the_host_is_what_lies_before_late_works_and_after_all():
    """Works of 1 to 2, 3 to 5 and 6 to 7 in a step of 0 to 9, the second launched late: 1 before it, and 2 after the last."""
    starts, late = np.array([1.0, 3.0, 6.0]), np.array([False, True, False])
    assert _host([(1.0, 2.0), (3.0, 5.0), (6.0, 7.0)], 0.0, 9.0, starts, late) == 3.0
    assert _host([], 0.0, 9.0, starts, late) == 9.0
