"""Records of real runs: what of a call was waiting for other ranks, and replays in closed form."""

from pathlib import Path

import pytest

from crossflow.__main__ import main
from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.delays import delays_of
from crossflow.evidence.emulation.measured import settled
from crossflow.evidence.emulation.record import read_record, write_record
from crossflow.evidence.emulation.replay import replay

GAP, TIME, LATE = 10e-3, 4e-3, 3e-3
STEPS = 5


def call(at, time, **more):
    return {"act": "call", "at": at, "op": "all_reduce", "size": 1000, "group": 0, "link": "0", "time": time, "latency": 0.0, **more}


def wait(at, until, of):
    return {"act": "wait", "at": at, "until": until, "of": [of]}


def rank(number, rows, **more):
    return {"rank": number, "host": "a", "began": 100.0, "groups": [{"name": "0", "ranks": [0, 1]}], "rows": rows, **more}


def together(ahead=0.0, host="a"):
    """Two ranks whose steps have one call: the second comes `LATE` to it; its clock may run ahead, and its rows begin there."""
    rows = [[], []]
    for step in range(STEPS):
        for number, late in enumerate((0.0, LATE)):
            at, end = step * (GAP + LATE + TIME) + late, step * (GAP + LATE + TIME) + LATE + TIME
            begun = LATE * number
            rows[number] += [call(at - begun, end - at), wait(at - begun, end - begun, step), {"act": "step", "at": end - begun}]
    return rank(0, rows[0]), rank(1, rows[1], began=100.0 + LATE + ahead, host=host)


def written(tmp_path, *ranks, name="run.json", **head):
    write_record(tmp_path / name, ranks, **{"world_size": 2, "real": True, **head})
    return tmp_path / name


def calls(record, number):
    return [row for row in settled(record).ranks[number].rows if row.act == "call"]


@pytest.mark.parametrize(("ahead", "host"), [(0.0, "a"), (55.0, "b"), (-3.0, "b")])
def test_a_call_is_split_into_waiting_for_the_last_rank_and_its_own_time(tmp_path, ahead, host):
    """Clocks of two machines are compared by the calls themselves: to half the time of a call, where ranks come in any order."""
    record = read_record(written(tmp_path, *together(ahead, host)))
    early, late = calls(record, 0), calls(record, 1)
    slack = 1e-9 if host == "a" else TIME / 2
    assert [row.met for row in early] == pytest.approx([LATE] * STEPS, abs=slack)
    assert [row.time for row in early] == pytest.approx([TIME] * STEPS, abs=slack)
    assert all(row.met + row.time == pytest.approx(LATE + TIME) for row in early)
    assert [row.met for row in late] == pytest.approx([0.0] * STEPS, abs=slack)


def test_a_replay_of_a_real_run_is_the_run(tmp_path):
    for found in replay(read_record(written(tmp_path, *together()))):
        assert found.step_time == pytest.approx(GAP + LATE + TIME)


@pytest.mark.parametrize(("what_if", "step"), [("all_reduce+5ms", TIME + 5e-3), ("bandwidth*0.5", 2 * TIME), ("all_gather+1s", TIME)])
def test_changes_leave_the_wait_for_the_other_rank(tmp_path, what_if, step):
    (first, _) = replay(read_record(written(tmp_path, *together())), what_if)
    assert first.step_time == pytest.approx(GAP + LATE + step)


def test_another_network_leaves_the_wait_for_the_other_rank(tmp_path):
    delays = delays_of(2, "dgx-h100")
    (first, _) = replay(read_record(written(tmp_path, *together())), delays=delays)
    assert first.step_time == pytest.approx(GAP + LATE + delays.base("all_reduce", 1000, (0, 1)).time)


def test_calls_that_ran_at_once_end_when_they_did(tmp_path):
    """The second call ends before the first, in a lane of its own; the third follows the first."""
    rows = [call(0.0, 0.010), call(0.001, 0.002), wait(0.002, 0.003, 1), call(0.004, 0.016), wait(0.005, 0.020, 2), wait(0.02, 0.021, 0)]
    record = read_record(written(tmp_path, rank(0, rows)))
    assert [(row.link, row.time) for row in calls(record, 0)] == [("0", 0.01), ("0#2", pytest.approx(0.002)), ("0", pytest.approx(0.01))]
    assert replay(record)[0].end == pytest.approx(0.020)


def test_what_a_real_run_does_not_tell_is_refused(tmp_path):
    record = read_record(written(tmp_path, *together()))
    with pytest.raises(CrossflowError) as caught:
        replay(record, "latency*2")
    sentence = "what-if latency*2: a real run does not tell what of a call is latency; give --system or --delays"
    assert str(caught.value) == sentence
    assert replay(record, "", delays_of(2, "dgx-h100", what_if="latency*2"))


def test_parts_of_a_run_are_read_as_one(tmp_path, refused, capsys):
    first, last = together()
    written(tmp_path, first, name="run.rank0.json")
    written(tmp_path, last, name="run.rank1.json")
    whole = written(tmp_path, first, last, name="whole.json")
    assert read_record(tmp_path / "run.json") == read_record(whole)
    assert main(["import", str(tmp_path / "run.json"), "--rank", "1", "-o", str(tmp_path / "run.program.json")]) == 0
    capsys.readouterr()
    written(tmp_path, last, name="run.rank1.json", world_size=4)
    sentence = f"crossflow: {tmp_path}/run.json: its parts run.rank0.json, run.rank1.json are not of one run; remove the older ones\n"
    assert refused("emulate", "--replay", str(tmp_path / "run.json")) == sentence


def test_files_beside_the_parts_of_a_run_are_no_parts(tmp_path):
    """Those whose names begin or end as theirs do."""
    first, last = together()
    written(tmp_path, first, name="run.rank0.json")
    written(tmp_path, last, name="run.rank1.json")
    for name in ("run.rank2", "3.json", "run.rank4.csv", "run.rankx.json", "other.rank5.json"):
        (tmp_path / name).write_text("no record\n")
    assert [one.rank for one in read_record(tmp_path / "run.json").ranks] == [0, 1]


def test_ranks_that_call_different_things_are_not_of_one_run(tmp_path):
    first, last = together()
    last["rows"][0]["op"] = "barrier"
    with pytest.raises(CrossflowError) as caught:
        replay(read_record(written(tmp_path, first, last)))
    said = "rank 0 calls all_reduce of 1000 B, rank 1 calls barrier of 1000 B; these ranks are not of one run"
    assert str(caught.value) == f"call 1 of group '0': {said}"


def test_a_rank_of_several_is_chosen_for_a_program(tmp_path, refused):
    path, target = written(tmp_path, *together()), str(tmp_path / "run.program.json")
    said = "the record has ranks 0, 1"
    assert refused("import", str(path), "-o", target) == f"crossflow: a program is made of one rank, and {said}; say which with --rank\n"
    assert refused("import", str(path), "--rank", "7", "-o", target) == f"crossflow: --rank 7: {said}\n"
    sentence = "crossflow: --rank is for models and records of crossflow emulate\n"
    traces = str(Path(__file__).parents[1] / "docs" / "examples" / "traces" / "dlrm_8xv100.tar.gz")
    assert refused("import", traces, "--rank", "0", "-o", target) == sentence
    assert refused("import", str(path), "--collectives", "modelled", "-o", target) == "crossflow: --collectives is for traces\n"
