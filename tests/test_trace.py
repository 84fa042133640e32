"""Traces: every event of the timeline once, in Kineto's form, a rank a process, whole or not at all."""

import gzip
import itertools
import json
import re
import tracemalloc

import pytest
from timelines import pipeline

from crossflow.base.errors import CrossflowError
from crossflow.edges.trace import perfetto
from crossflow.edges.trace.perfetto import write_ranks, write_trace
from crossflow.engine.timeline.record import COMPUTE, PIPELINE, STREAMS, TENSOR, Timeline

KERNELS = ("kernel", "gpu_memcpy", "cpu_op")
NCCL = re.compile(r"^nccl.*Kernel")  # what Holistic Trace Analysis takes for communication


def read(path):
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
        return json.load(stream)


@pytest.fixture
def given():
    return pipeline(3, 4)


@pytest.fixture
def events(given, tmp_path):
    write_trace(given, tmp_path / "step.json")
    return read(tmp_path / "step.json")["traceEvents"]


def of(events, phase, **fields):
    return [event for event in events if event["ph"] == phase and all(event.get(key) == value for key, value in fields.items())]


def kernels(events, **fields):
    return [event for event in of(events, "X", **fields) if event["cat"] in KERNELS]


# ------------------------------------------------------------------------------------------ events


def test_a_rank_has_the_events_of_its_class(given, events):
    for device, one in enumerate(given.devices):
        mine, own = kernels(events, pid=one.ranks[0]), given.events(device)
        assert [event["tid"] for event in mine] == own.stream.tolist()
        assert [event["ts"] for event in mine] == pytest.approx((own.start * 1e6).tolist(), abs=1e-3)
        assert [event["dur"] for event in mine] == pytest.approx(((own.end - own.start) * 1e6).tolist(), abs=1e-3)
        assert [event["args"]["layer"] for event in mine] == own.layer.tolist()
        assert [event["args"]["microbatch"] for event in mine] == own.microbatch.tolist()


@pytest.mark.parametrize(("ranks", "written"), [(None, {0, 2, 4}), ("all", set(range(6))), ([1, 4], {1, 4})])
def test_chosen_ranks_are_processes(given, tmp_path, ranks, written):
    count = write_trace(given, tmp_path / "step.json", ranks=ranks)
    found = kernels(read(tmp_path / "step.json")["traceEvents"])
    assert {event["pid"] for event in found} == written
    assert len(found) == count


def test_all_ranks_have_all_events(given, tmp_path):
    assert write_trace(given, tmp_path / "step.json", ranks="all") == given.event_count


def test_events_of_a_thread_are_sorted_and_kernels_do_not_overlap(events):
    for pid, tid in {(event["pid"], event["tid"]) for event in kernels(events)}:
        mine = kernels(events, pid=pid, tid=tid)
        for before, after in itertools.pairwise(mine):
            assert before["ts"] <= after["ts"]
            assert tid != COMPUTE or round(1e3 * (before["ts"] + before["dur"])) <= round(1e3 * after["ts"])


def test_correlations_count_the_events_of_a_rank(given, events):
    for one in given.devices:
        args = [event["args"] for event in kernels(events, pid=one.ranks[0])]
        assert [arg["correlation"] for arg in args] == list(range(1, len(args) + 1)) == [arg["External id"] for arg in args]


def test_collectives_and_waits_are_communication_to_others(events):
    assert all(bool(NCCL.match(event["name"])) == (event["tid"] in (TENSOR, PIPELINE)) for event in kernels(events))


@pytest.mark.parametrize(
    ("name", "stream", "kind", "expected"),
    [
        ("all_to_all", "tensor", 1, "ncclDevKernel_AllToAll (tensor)"),
        ("send_recv", "pipeline", 1, "ncclDevKernel_SendRecv (pipeline)"),
        ("mlp, waiting for the slowest rank", "compute", 2, "ncclDevKernel_Wait (compute, mlp, waiting for the slowest rank)"),
        ("all_reduce", "data", 2, "ncclDevKernel_AllReduce (data, waiting)"),
        ("host_copy", "from_host", 1, "Memcpy (from_host)"),
        ("waiting for the host", "host", 0, "waiting for the host"),
    ],
)
def test_names_of_kernels(name, stream, kind, expected):
    assert perfetto.kernel_name(name, STREAMS.index(stream), kind) == expected


def test_pieces_of_any_size_make_the_same_trace(given, events, tmp_path, monkeypatch):
    chunks = type(given).chunks
    monkeypatch.setattr(type(given), "chunks", lambda self, device: chunks(self, device, 5))
    write_trace(given, tmp_path / "pieces.json")
    pieces = read(tmp_path / "pieces.json")["traceEvents"]
    both = [[(event["pid"], event["name"], event["ts"]) for event in kernels(some, tid=COMPUTE)] for some in (events, pieces)]
    assert both[0] == both[1]


# ------------------------------------------------------------------------------------------ what else a trace has


def test_every_arrow_has_two_ends_in_slices(given, events):
    starts, ends = ({event["id"]: event for event in of(events, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == (given.slots.source >= 0).sum() == len(of(events, "s"))
    for event in (*starts.values(), *ends.values()):
        around = [one for one in of(events, "X", pid=event["pid"], tid=event["tid"]) if one["name"] != "ProfilerStep#0"]
        assert [one for one in around if one["ts"] <= event["ts"] < one["ts"] + one["dur"]]


def test_results_arrive_after_they_left(events):
    ends = {event["id"]: event["ts"] for event in of(events, "f")}
    assert all(event["ts"] < ends[event["id"]] for event in of(events, "s"))


def test_arrows_need_both_ends(given, tmp_path):
    write_trace(given, tmp_path / "step.json", ranks=[0])
    assert not of(read(tmp_path / "step.json")["traceEvents"], "s")


def test_processes_and_threads_are_named(given, events):
    for one in given.devices:
        named = {(event["name"], event["tid"]): event["args"] for event in of(events, "M", pid=one.ranks[0])}
        assert named["process_name", 0] == {"name": one.name}
        assert named["process_sort_index", 0] == {"sort_index": one.stage}
        assert [named["thread_name", i]["name"] for i in range(len(STREAMS))] == list(STREAMS)


def test_the_step_spans_a_rank(given, events):
    steps = of(events, "X", name="ProfilerStep#0", cat="user_annotation")
    assert [event["pid"] for event in steps] == [one.ranks[0] for one in given.devices]
    assert all(event["ts"] == 0 and event["dur"] == pytest.approx(given.total * 1e6, abs=1e-3) for event in steps)


def test_counters_follow_memory(given, events):
    for device, one in enumerate(given.devices):
        held = [event["args"]["held"] * 2**30 for event in of(events, "C", pid=one.ranks[0])]
        assert held == pytest.approx(given.memory[device][1].tolist())


def test_top_level_keys_are_those_of_kineto(given, tmp_path):
    write_trace(given, tmp_path / "step.json.gz")
    top = read(tmp_path / "step.json.gz")
    assert set(top) == {"schemaVersion", "deviceProperties", "distributedInfo", "traceName", "displayTimeUnit", "traceEvents"}
    assert top["distributedInfo"] == {"rank": 0, "world_size": 6, "backend": "nccl"}
    assert isinstance(top["deviceProperties"], list)


# ------------------------------------------------------------------------------------------ files


def test_a_file_a_rank(given, tmp_path):
    paths = write_ranks(given, tmp_path, ranks="all")
    assert [path.name for path in paths] == [f"rank{rank}.json.gz" for rank in range(6)]
    for rank, path in enumerate(paths):
        trace = read(path)
        assert trace["distributedInfo"]["rank"] == rank
        assert {event["pid"] for event in trace["traceEvents"]} == {rank}


def test_the_same_timeline_makes_the_same_bytes(given, tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        write_trace(given, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_unknown_ranks_are_refused(given, tmp_path, exactly):
    with pytest.raises(ValueError, match=exactly("rank 9 is none of the 6 ranks of the timeline")):
        write_trace(given, tmp_path / "step.json", ranks=[0, 9])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_full_disk_leaves_nothing(given, tmp_path, monkeypatch, name):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / name).write_text("what was there")
    monkeypatch.setattr(perfetto, "_kernels", full)
    with pytest.raises(CrossflowError, match="No space left on device"):
        write_trace(given, tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_does_not_grow_with_the_step(tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto, "CHUNK", 2000)
    monkeypatch.setattr(Timeline.chunks, "__defaults__", (2000,))
    peaks = []
    for microbatches in (20, 60):  # more events than are held at once in both
        made = pipeline(1, microbatches, layers=100)
        tracemalloc.start()
        write_trace(made, tmp_path / "step.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_does_not_grow_with_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto, "CHUNK", 100)
    peaks = []
    for replicas in (20, 200):
        made = pipeline(3, 4, replicas=replicas)
        tracemalloc.start()
        write_trace(made, tmp_path / "step.json.gz", ranks="all")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_text_kept_for_the_next_rank_is_that_made_anew(given, tmp_path, monkeypatch):
    for name, chunk in (("kept.json", 50_000), ("anew.json", 1)):
        monkeypatch.setattr(perfetto, "CHUNK", chunk)
        write_trace(given, tmp_path / name, ranks="all")
    kept, anew = (read(tmp_path / name) for name in ("kept.json", "anew.json"))
    assert kept == anew
    own = [[{**event, "pid": 0} for event in of(kept["traceEvents"], "X", pid=rank)] for rank in given.devices[0].ranks]
    assert own[0] == own[1]


def test_progress_ends_at_all_events(given, tmp_path):
    for write in (
        lambda **way: write_trace(given, tmp_path / "step.json.gz", **way),
        lambda **way: write_ranks(given, tmp_path / "ranks", **way),
    ):
        seen = []
        write(ranks="all", progress=lambda *reported, seen=seen: seen.append(reported))
        assert seen == sorted(seen)
        assert seen[-1] == (given.event_count, given.event_count)


def test_an_interrupted_trace_leaves_nothing(given, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    for name in ("step.json", "step.json.gz"):
        with pytest.raises(KeyboardInterrupt):
            write_trace(given, tmp_path / name, progress=interrupt)
    assert not list(tmp_path.iterdir())
