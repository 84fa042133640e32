"""Jobs of many ranks, of which some stand for the others: as if all had been read whole, in few lines, and with the same refusals."""

import json

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.base.rules import listed
from crossflow.evidence.replay.crowd import digest_of
from crossflow.evidence.replay.kineto import read_traces
from tests.test_advice import GAP, ROOT, Step

RANKS, NODE, LATE = 24, 4, 9  # ranks of the job, of a group that sums activations, and the one that is late
SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def job(folder, late=800.0, ranked=True, offset=None):
    """Ranks that sum within groups of four and, at the end of each of two rounds, over every fourth rank. [us]"""
    rng = np.random.default_rng(4)
    steps = [Step(rank, RANKS) for rank in range(RANKS)]
    for _ in range(2):
        for layer in range(3):
            computed(steps, rng, late if layer == 1 else 0.0)
            for node in range(RANKS // NODE):
                met([one for one in steps if one.rank // NODE == node], 80.0)
        for column in range(NODE):
            met([one for one in steps if one.rank % NODE == column], 200.0)
    folder.mkdir(exist_ok=True)
    for rank, path in enumerate([one.write(folder) for one in steps] if offset or not ranked else []):
        held = json.loads(path.read_text())
        for event in held["traceEvents"] if offset else ():
            event["ts"] += 1e7 + offset(rank)
        held["distributedInfo"] = {**({"rank": rank} if ranked else {}), "world_size": RANKS}
        path.write_text(json.dumps(held))
    for one in steps if ranked and not offset else ():
        one.write(folder)


def computed(steps, rng, late):
    for one in steps:
        for i in range(3):
            one.launch(300.0 + rng.uniform(0.0, 3.0) + (late if one.rank == LATE and i == 1 else 0.0))
        one.free[14] = one.free[7]


def met(steps, transfer):
    ends = max(one.free[14] for one in steps) + GAP + transfer
    members = str([one.rank for one in steps])
    for one in steps:
        start = one.free[14] + GAP
        said = {"Collective name": "allreduce", "Process Group Name": members, "Process Group Ranks": members}
        one.launch(ends - start, name=SUM, op="nccl", stream=14, after=start, **said)
        one.waits_for_streams()
        one.free[7] = ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("job")
    job(path)
    return path


@pytest.fixture(scope="module")
def both(folder):
    """The same job with all ranks whole, and with some that stand for the others."""
    return crossflow.trace(folder), crossflow.trace(folder, whole=6)


def test_some_ranks_stand_for_the_others(both):
    _, crowd = both
    assert (crowd.read, crowd.world) == (RANKS, RANKS)
    assert len(crowd.graph.traces) < RANKS / 2
    assert LATE in {trace.rank for trace in crowd.graph.traces}
    (alike,) = crowd.alike
    assert LATE not in alike.numbers
    assert len(alike.numbers) == RANKS - len(crowd.graph.traces) + 1


def test_the_step_of_every_rank_is_the_one_of_a_whole_job(both):
    whole, crowd = both
    assert crowd.step_time == whole.step_time
    for one, other in zip(whole.ranks, crowd.crowd.shares, strict=True):
        assert other.time == one.time
        for part, time in one.parts.items():
            assert other.parts[part] == pytest.approx(time, abs=1e-9), part


def test_the_ranks_that_others_wait_for_are_those_of_a_whole_job(both):
    whole, crowd = both
    assert crowd.late[0].rank == whole.late[0].rank == LATE
    assert [vars(one) for one in crowd.late] == [vars(one) | {"time": pytest.approx(one.time)} for one in whole.late]


def test_a_replay_without_changes_is_that_of_a_whole_job(both):
    whole, crowd = both
    assert crowd.unchanged == pytest.approx(whole.unchanged, rel=1e-3)
    assert crowd.unchanged == pytest.approx(crowd.measured, rel=1e-3)


def test_changes_reach_the_ranks_that_others_stand_for(folder, both):
    """Kernels that take half as long do so on all ranks, whether they are in the graph or not."""
    for what_if in ("compute*0.5", "all_reduce*2", f"rank[{LATE}]+2ms"):
        one, other = (crossflow.trace(folder, what_if=what_if, whole=whole) for whole in (RANKS, 6))
        assert other.step_time == pytest.approx(one.step_time, rel=0.01), what_if
        assert abs(one.step_time / both[0].step_time - 1.0) > 0.05, what_if


def test_advice_on_some_ranks_is_that_on_all(both):
    first, second = (one.advice.findings for one in both)
    assert first[0].kind == second[0].kind == "late_rank"
    assert second[0].title.startswith(f"rank {LATE} comes last")
    assert second[0].gain == pytest.approx(first[0].gain, rel=0.05)
    assert [one.kind for one in first] == [one.kind for one in second]


def test_clocks_of_all_ranks_are_aligned(tmp_path, both):
    job(tmp_path / "clocks", offset=lambda rank: 250.0 * rank)
    found = crossflow.trace(tmp_path / "clocks", whole=6)
    assert any(note.startswith(f"clocks of {RANKS - 1} of {RANKS} ranks differ by up to 5,750 us") for note in found.notes)
    assert found.late[0].rank == LATE
    for one, other in zip(both[1].crowd.shares, found.crowd.shares, strict=True):
        assert other.parts["waiting"] == pytest.approx(one.parts["waiting"], abs=3e-6)


def test_a_digest_is_small(folder):
    (trace,) = read_traces([folder / "rank0.json"])
    kept = digest_of(trace)
    assert kept.events == len(trace.ops) + len(trace.calls) + len(trace.works) + len(trace.marks)
    size = sum(getattr(kept.works, name).nbytes for name in ("starts", "ends", "kind", "collective", "late"))
    assert size == len(trace.works) * (8 + 8 + 1 + 1 + 1)


@pytest.mark.cases(1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_page_stays_short(capsys, folder, jobs):
    assert main(["trace", str(folder), "--whole", "6", "--jobs", str(jobs), "--advise"]) == 0
    page = capsys.readouterr().out
    assert f"{RANKS} of {RANKS} ranks" in page
    assert "rank 9 comes last" in page
    assert len(page.splitlines()) < 50


def test_plain_data_have_groups_of_ranks(capsys, folder):
    assert main(["trace", str(folder), "--whole", "6", "--jobs", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (alike,) = data["alike"]
    assert alike["fastest_s"] <= alike["step_time_s"] <= alike["slowest_s"]
    assert data["ranks_read"] == RANKS
    assert alike["count"] + len(data["ranks"]) - 1 == RANKS
    assert data["waited_for"][0]["rank"] == LATE
    assert any("stand for" in note for note in data["notes"])


def test_ranks_of_many_that_say_no_rank_count_in_order(tmp_path):
    job(tmp_path / "job", ranked=False)
    found = crossflow.trace(tmp_path / "job", whole=6)
    assert [one.rank for one in found.crowd.shares] == [*range(RANKS)]
    assert any(note.startswith("no trace says its rank") for note in found.notes)


def test_two_traces_of_a_rank_are_refused(folder, tmp_path):
    (tmp_path / "again.json").write_text((folder / "rank3.json").read_text())
    with pytest.raises(CrossflowError, match=r"again.json and .*rank3.json are both of rank 3|rank3.json and .*again.json are both of"):
        crossflow.trace([folder, tmp_path / "again.json"], whole=6)


def test_files_of_a_folder_without_a_trace_are_left_out(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "settings.json").write_text('{"a": 1}')
    assert "these files hold no trace and were left out: settings.json" in crossflow.trace(tmp_path, whole=6).notes


def test_a_rank_that_another_stands_for_is_not_changed_alone(folder, both):
    alone = next(number for number in both[1].alike[0].numbers if number != both[1].alike[0].rank)
    with pytest.raises(CrossflowError, match=rf"there is no trace of rank {alone}; those of .* were read whole, and stand for the others"):
        crossflow.trace(folder, whole=6, what_if=f"rank[{alone}]+1ms")


@pytest.mark.thorough
def test_many_predicted_ranks_are_read_whole(capsys, tmp_path):
    assert main(["timeline", str(ROOT / "docs" / "examples" / "pipeline.yaml"), "-o", str(tmp_path / "ranks"), "-q"]) == 0
    capsys.readouterr()
    one, other = (crossflow.trace(tmp_path / "ranks", whole=whole) for whole in (64, 1))
    assert other.modelled
    assert other.crowd is None
    assert [share.parts for share in one.ranks] == [share.parts for share in other.ranks]


def test_exports_of_nsight_are_read_whole(tmp_path):
    for place in range(3):
        (tmp_path / f"node{place}.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(CrossflowError, match=r"node0.sqlite: exports of Nsight Systems are read whole; give --whole 3, or fewer of them"):
        crossflow.trace(sorted(tmp_path.iterdir()), whole=2)


def test_execution_traces_need_whole_ranks(folder, capsys):
    assert main(["trace", str(folder), "--whole", "6", "--execution", str(folder / "rank0.json")]) == 2
    assert "--execution needs all ranks whole, and more than 6 traces are given" in capsys.readouterr().err


def test_lists_of_ranks_are_read_again():
    numbers = [0, 1, 2, 5, 7, 8, 11]
    parts = [part.split("-") for part in listed(numbers).split(", ")]
    assert [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)] == numbers


def test_the_rank_with_most_to_do_is_read_whole_where_collectives_do_not_meet(tmp_path):
    """Rank 4 runs one collective less, so none meet; rank 3 computes longest, and says how fast a step may become."""
    for rank in range(8):
        one = Step(rank, 8)
        for i in range(12):
            one.host(400.0)
            one.launch(60.0 + (200.0 if rank == 3 else 0.0))
            if rank != 4 or i:
                one.waits_for_streams()
                one.launch(300.0 if rank != 3 else 100.0, name=SUM, op="nccl", stream=14, after=one.free[7] + GAP)
        one.write(tmp_path)
    whole, some = (crossflow.trace(tmp_path, whole=number) for number in (8, 2))
    assert [trace.rank for trace in some.graph.traces if trace.rank in (3, 4)] == [3, 4]
    assert len(some.graph.traces) < 8
    assert whole.advice.findings[0].gain > 0
    assert some.advice.findings[0].gain == pytest.approx(whole.advice.findings[0].gain, rel=1e-6)


def test_ranks_that_stand_for_no_other_are_not_said_to(tmp_path):
    for rank in range(3):
        one = Step(rank, 3)
        for _ in range(rank + 1):
            one.launch(60.0, name=SUM, op="nccl", stream=14)
        one.write(tmp_path)
    (note,) = [note for note in crossflow.trace(tmp_path, whole=2).notes if "of them whole" in note]
    assert note.endswith("3 of them whole")


def test_a_rank_beyond_the_job_is_refused_with_those_that_there_are(folder):
    with pytest.raises(CrossflowError, match=r"there is no trace of rank 99; there are ranks 0-23$"):
        crossflow.trace(folder, whole=6, what_if="rank[99]+2ms")
