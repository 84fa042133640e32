"""Records of emulations: their files, and replays in closed form."""

import json

import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base.errors import SpecError
from crossflow.evidence.emulation.delays import delays_of
from crossflow.evidence.emulation.record import Called, CallRecorder, read_record, step_figures, write_record
from crossflow.evidence.emulation.replay import replay
from crossflow.evidence.emulation.what_if import Delay

GAP, TIME, LATENCY = 10e-3, 4e-3, 1e-3


def recorded(tmp_path, steps=5, calls=3, what_if="", **head):
    """Steps of three collectives 10 ms apart, each of 4 ms, all waited for at the end."""
    recorder, now = CallRecorder(rank=0, keeps=True), 100.0
    for _ in range(steps):
        numbers, end = [], 0.0
        for _ in range(calls):
            now += GAP
            delay = Delay(time=TIME, latency=LATENCY)
            numbers.append(
                recorder.called(
                    Called(
                        at=now, op="all_reduce", size=1000, dtype="float32", group="0", members=(0, 1), pair=None, link="intra",
                        base=delay, changed=delay,
                    )
                )
            )  # fmt: skip
            end = max(now, end) + TIME
        recorder.waited(numbers, ("all_reduce", 2), now, end, 0.0)
        now = end
        recorder.marked("optimizer", now)
    path = tmp_path / "record.json.gz"
    write_record(path, [recorder.record()], world_size=8, what_if=what_if, **head)
    return read_record(path), recorder


def test_a_replay_without_changes_is_the_run(tmp_path):
    record, recorder = recorded(tmp_path)
    (found,) = replay(record)
    assert found.step_time == pytest.approx(recorder.summary()["step_time_s"])
    assert found.step_time == pytest.approx(3 * GAP + TIME)
    summary = recorder.summary()
    assert found.summary()["collectives"][0] == pytest.approx(summary["collectives"][0])


@pytest.mark.parametrize(
    ("what_if", "step"),
    [
        ("all_reduce+2ms", 3 * GAP + TIME + 2e-3),  # hidden but for the last
        ("all_reduce+10ms", GAP + 3 * (TIME + 10e-3)),  # the link is busy all the time
        ("bandwidth*0.5", 3 * GAP + LATENCY + 2 * (TIME - LATENCY)),
        ("all_gather+1s", 3 * GAP + TIME),
        ("rank[1]*1.5", 3 * 1.5 * GAP + TIME),  # the other rank comes later to each
        ("rank[5]*1.5", 3 * GAP + TIME),  # which is not in the group
        ("rank[1]+1ms", 3 * GAP + TIME + 1e-3),
    ],
)
def test_what_ifs_of_a_replay_in_closed_form(tmp_path, what_if, step):
    record, _ = recorded(tmp_path)
    (found,) = replay(record, what_if)
    assert found.step_time == pytest.approx(step)


def test_the_changes_of_a_record_hold_where_a_replay_has_none(tmp_path):
    record, _ = recorded(tmp_path, what_if="all_reduce+2ms")
    assert replay(record)[0].step_time == pytest.approx(3 * GAP + TIME + 2e-3)
    assert replay(record, "")[0].step_time == pytest.approx(3 * GAP + TIME)


def test_a_replay_takes_delays_of_another_system(tmp_path):
    from crossflow.evidence.emulation.delays import delays_of

    record, _ = recorded(tmp_path)
    delays = delays_of(8, "dgx-h100")
    (found,) = replay(record, delays=delays)
    assert found.step_time == pytest.approx(3 * GAP + delays.base("all_reduce", 1000, (0, 1)).time)


def test_backward_passes_count_where_no_optimizer_steps():
    assert step_figures({"backward": (0.0, 1.0, 2.0, 5.0, 8.0)}) == {"iterations": 5, "step_time_s": 3.0}
    assert step_figures({"optimizer": (0.0,), "backward": (0.0, 1.0)}) == {"iterations": 1, "step_time_s": None}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "version: its format is 2, of a later crossflow"),
        ({"kind": "program"}, "kind: expected one of collectives, got 'program'"),
        ({"wrold": 2}, "unknown key 'wrold'"),
        (
            {"ranks": [{"rank": 0, "groups": [], "rows": [{"act": "wait", "at": 0, "until": 1, "of": [3]}]}]},
            "expected calls before it, got 3",
        ),
    ],
)
def test_a_wrong_record_is_refused(tmp_path, change, sentence):
    record, _ = recorded(tmp_path)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**record.model_dump(mode="json"), **change}), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_record(path)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("place", "key", "value", "sentence"),
    [
        ("rows.0", "at", -1.0, "ranks[0].rows[0].at: expected at least 0, got -1"),
        ("rows.0", "time", -1.0, "ranks[0].rows[0].time: expected at least 0, got -1"),
        ("rows.0", "size", -4, "ranks[0].rows[0].size: expected at least 0, got -4"),
        ("rows.0", "op", "allreduce", "ranks[0].rows[0].op: unknown call 'allreduce'; did you mean 'all_reduce'?"),
        ("rows.0", "ranks", [0, 8], "ranks[0].rows[0].ranks: there is no rank 8 in a world of 8"),
        ("rows.3", "until", 0.01, "ranks[0].rows[3].until: expected a time that is not before at = 0.02, got 0.01"),
        ("rows.3", "of", [], "ranks[0].rows[3].of: expected one call or more"),
        ("groups.0", "ranks", [0, 9], "ranks[0].groups[0].ranks: there is no rank 9 in a world of 8"),
        ("groups.0", "ranks", [], "ranks[0].groups[0].ranks: expected one rank or more"),
    ],
)
def test_what_a_record_cannot_mean_is_refused_at_its_place(tmp_path, place, key, value, sentence):
    data = recorded(tmp_path)[0].model_dump(mode="json")
    name, number = place.split(".")
    data["ranks"][0][name][int(number)][key] = value
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_record(path)
    assert sentence in str(caught.value)


# ------------------------------------------------------------------------------------------ as a program


def emulated(system, world=16, size=40_000_000, groups=((0, "0", tuple(range(16))),), **head):
    """Steps of own time and collectives among process groups, with the delays of a system."""
    delays, recorder, now, queues = delays_of(world, system), CallRecorder(rank=0, keeps=True), 0.0, {}
    for _ in range(5):
        numbers, ends = [], []
        for i, name, members in groups:
            now += GAP * (i + 1)
            delay, link = delays.base("all_reduce", size, members), delays.wire("all_reduce", name, members)
            call = Called(
                at=now,
                op="all_reduce",
                size=size,
                dtype="float32",
                group=name,
                members=members,
                pair=None,
                link=link,
                base=delay,
                changed=delay,
            )
            numbers.append(recorder.called(call))
            queues[link] = max(queues.get(link, 0.0), now) + delay.time
            ends.append(queues[link])
        recorder.waited(numbers, ("all_reduce", len(groups[-1][2])), now, max(now, *ends), 0.0)
        now = max(now, *ends) + GAP / 2
        recorder.marked("optimizer", now)
    return {"rank": 0, **recorder.record()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups", [((0, "0", tuple(range(16))),), ((0, "0", tuple(range(16))), (1, "tp", tuple(range(8))), (2, "dp", (0, 8)))]
)
@pytest.mark.parametrize("system", ["dgx-h100", "h100-ib-cluster"])
def test_the_program_of_a_record_takes_what_its_replay_takes(tmp_path, system, groups):
    path = tmp_path / "run.json"
    write_record(path, [emulated(system, groups=groups)], world_size=16)
    program = tmp_path / "run.program.json.gz"
    assert main(["import", str(path), "-o", str(program)]) == 0
    given = {"system": {"template": system, "devices": 16}, "workload": str(program)}
    found = crossflow.predict(crossflow.from_dict(given))
    assert found.step_time == pytest.approx(replay(read_record(path))[0].step_time, rel=1e-6)
    assert found.score.exposed_communication["all_reduce"][0] > 0


def test_what_a_record_does_not_say_is_refused(tmp_path, capsys):
    path = tmp_path / "run.json"
    rank = emulated("dgx-h100")
    write_record(path, [rank, {**rank, "rank": 7}], world_size=16)
    assert main(["import", str(path), "-o", str(tmp_path / "run.program.json")]) == 2
    assert "a program is made of one rank, and the record has ranks 0, 7; say which with --rank" in capsys.readouterr().err
    assert main(["import", str(path), "-o", str(tmp_path / "run.program.json"), "--dtype", "bf16"]) == 2
    assert "--dtype is for models; a record of crossflow emulate says it itself" in capsys.readouterr().err
    write_record(path, [{**rank, "rows": rank["rows"][:4]}], world_size=16)
    assert main(["import", str(path), "-o", str(tmp_path / "run.program.json")]) == 2
    assert "the record has 1 steps; two or more are needed, between which one is whole" in capsys.readouterr().err
    assert not (tmp_path / "run.program.json").exists()
