# ruff: noqa: E501  (exact sentences)
"""Events of a step and profiles: counts, what a profile replaces, rules of measuring, files, and a step rebuilt from measured events."""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate as timeline
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.profile import gemm_shape, message_shape, read_profile
from crossflow.engine.events import run_tasks
from crossflow.engine.timeline.record import COMMUNICATION
from crossflow.parallel.strategy.layout import Layout
from crossflow.program.groups import Group

GPT = {
    "model": "transformer", "layers": 8, "hidden": 2048, "heads": 16, "ffn": 8192, "gated": False, "vocabulary": 32000, "sequence": 1024,
    "positions": "learned", "norm": "layernorm", "biases": True, "tied_embeddings": False, "global_batch": 32, "dtype": "bf16",
}  # fmt: skip
HEADER = "op,shape,dtype,device,ranks,scope,time,spread,count\n"


def scenario(strategy, software="megatron-lm-2022", profile=None, launch="3.5 us", **workload):
    system = {"template": "dgx-a100", "nodes": None, "execution": {"kernel_launch": launch}}
    given = {"system": system, "workload": {**GPT, **workload}, "strategy": strategy, "software": software}
    return crossflow.from_dict({**given, **({"profile": str(profile)} if profile else {})})


@pytest.fixture
def written(tmp_path):
    def write(text, name="profile.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


# ------------------------------------------------------------------------------------------ events


@pytest.mark.cases(1)
@pytest.mark.parametrize("strategy", ["dp1", "tp2-pp2-dp2", "pp4-dp2-full", "dp8-z3", "tp4-sp-dp2-z1", "tp4-atp1-embtp1-dp2-mb4-sp"])
def test_events_are_all_operations_of_the_step(strategy):
    """Products of all events on all devices are the operations done, but for pointwise ones and fused attention."""
    given = scenario(strategy, "megatron-lm-2022")
    sums = 0.0
    for event in events(given).events:
        if event.op.startswith("gemm"):
            batch, _, each = event.shape.rpartition(" x ")
            sums += event.count * 2.0 * float(batch or 1) * np.prod([float(part) for part in each.split("x")])
    assert sums == pytest.approx(float(crossflow.predict(given).score.flops[0]), rel=0.02)


def test_equal_events_are_found_once():
    found = events(scenario("pp4-dp2")).events
    identities = [(event.op, event.shape, event.dtype, event.ranks, event.scope) for event in found]
    assert len(set(identities)) == len(identities)
    more = events(scenario("pp4-dp2", layers=16, global_batch=64)).events
    assert len(more) == len(found)
    assert sum(event.count for event in more) == pytest.approx(4 * sum(event.count for event in found), rel=0.1)


def test_a_gemm_of_a_layer_recurs_once_a_layer_microbatch_and_rank():
    found = {(event.op, event.shape): event for event in events(scenario("tp2-pp2-dp2")).events}
    up = found["gemm", gemm_shape(1024, 4096, 2048, 1)]
    # Layers, microbatches of a replica, replicas, ranks of a tensor group; the input's gradient of the way down has the same shape.
    assert up.count == 8 * 16 * 2 * 2 * 2


def test_a_collective_recurs_once_for_all_of_its_ranks():
    found = [event for event in events(scenario("tp4-dp2")).events if event.op == "all_reduce" and event.ranks == 4]
    # Forward and backward, attention and MLP, layers, then the ends; microbatches, replicas.
    assert sum(event.count for event in found if event.shape == message_shape(1024 * 2048 * 2)) == (2 * 2 * 8 + 2) * 16 * 2


@pytest.mark.cases(18)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "software", "workload"),
    [
        ("tp4-dp2", "megatron-lm-2022", {}), ("tp2-sp-cp2-pp2-dp4", "megatron-lm-2022", {}), ("tp2-sp-cp4-pp2-dp1", "megatron-core", {}), ("dp8-z3-full", "pytorch-fsdp", {}),
        ("dp8-z3-g4", "pytorch-fsdp", {}), ("dp8-z3-g4", "pytorch", {}), ("dp8", "pytorch", {}), ("dp8-z1", "megatron-lm-2022", {}), ("tp2-pp4-dp2-full", "megatron-core", {}),
        ("tp2-pp2-dp2-selective", "megatron-lm-2022", {}), ("pp4-dp2-chimera", "megatron-lm-2022", {}), ("pp4-dp2-z1-dualpipe", "megatron-lm-2022", {}),
        ("tp2-pp2-dp4-pipedream", "megatron-lm-2022", {"tied_embeddings": True}), ("pp2-dp4-pipedream-z1", "megatron-lm-2022", {}),
        ("tp2-pp2-dp2", "pytorch-fsdp", {}), ("pp2-dp2-v2", "megatron-lm-2022", {}), ("pp4-dp2-zbh1", "ideal", {}),
        ("tp2-pp2-dp2", "megatron-lm-2022", {"tied_embeddings": True}), ("pp2-dp2", "megatron-lm-2022", {"task": "prefill"}),
        ("ep4-dp8", "megatron-lm-2022", {"experts": {"count": 8, "active": 2}}),
        ("ep16-dp16", {"like": "megatron-core", "dispatch": "nodes"}, {"experts": {"count": 32, "active": 4}}),
        ("tp4-atp1-mlptp2-dp4-mb4-sp-z1", "megatron-lm-2022", {}), ("dp8-z3-unsharded:attention-full", "pytorch-fsdp", {}),
        ("tp4-etp1-mlptp2-ep8-dp4-sp", "megatron-lm-2022", {"experts": {"count": 8, "active": 2, "shared": 2048}}),
    ],
)  # fmt: skip
def test_collectives_are_those_of_the_timeline(strategy, software, workload):
    """Time of every collective on all devices is that of the timeline, which is laid out from elsewhere."""
    given = scenario(strategy, software, launch="0 us", **workload)
    listed, passed, counted = {}, {}, Counter()
    for event in events(given).events:
        if event.ranks > 1:  # a transfer keeps its sender busy alone
            on = 1 if event.op == "send_recv" else event.ranks
            listed[event.op] = listed.get(event.op, 0.0) + event.time * event.count * on
            counted[event.op] += event.count * on
    line = timeline(given)
    for i, device in enumerate(line.devices):
        found = line.events(i)
        for name, index in ((name, index) for index, name in enumerate(line.names)):
            mine = (found.name == index) & (found.kind == COMMUNICATION)
            if mine.any():
                collective = name.split()[-1]
                passed[collective] = passed.get(collective, 0.0) + float((found.end - found.start)[mine].sum()) * len(device.ranks)
                counted[collective] -= int(mine.sum()) * len(device.ranks)
    assert listed == pytest.approx(passed, rel=1e-9)
    assert listed
    assert "z3" not in strategy or not (counted["all_gather"] or counted["reduce_scatter"])


@pytest.mark.parametrize(("strategy", "often"), [("pp2-dp2", 1), ("pp2-dp2-z1", 1), ("pp2-dp2-pipedream", 16)])
def test_every_parameter_meets_an_optimizer_once_an_update(strategy, often):
    given = scenario(strategy)
    updated = sum(float(e.shape.split()[0]) * e.count for e in events(given).events if e.op == "optimizer")
    replicas = 1 if "z1" in strategy else 2
    assert updated == pytest.approx(replicas * often * given.job().model.parameters, rel=1e-9)


def test_the_spread_of_what_was_measured_is_in_the_list(written):
    plain = scenario("tp2-dp16")
    rows = "".join(f"{e.op},{e.shape},{e.dtype},,{min(e.ranks, 8)},{e.scope},10 us,2 us,\n" for e in events(plain).events)
    found = events(scenario("tp2-dp16", profile=written(HEADER + rows))).events
    assert {e.spread for e in found if e.ranks <= 8} == {2e-6}
    (reduced,) = [e for e in found if e.op == "all_reduce" and e.ranks == 16 and e.shape == max(found, key=lambda e: e.time).shape]
    assert reduced.spread == pytest.approx(2e-6 * (15 / 16) / (7 / 8))


def test_measuring_takes_a_small_part_of_a_step():
    found = events(scenario("tp8-pp4-dp4", layers=16, global_batch=512))
    assert 0 < found.relative < 0.01
    assert found.recurrences > 1e5


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_lists_are_profiles(written):
    """The predicted times, read back, give the predicted step; launches alone are not in them."""
    for strategy, software in (
        ("tp2-pp2-dp2", "megatron-lm-2022"), ("dp8-z3", "pytorch-fsdp"), ("tp4-sp-dp4-z1", "megatron-core"), ("cp4-dp2", "nanotron"),
    ):  # fmt: skip
        plain = scenario(strategy, software)
        given = scenario(strategy, software, profile=written(events(plain).to_csv()))
        before, after = crossflow.predict(plain), crossflow.predict(given)
        assert after.step_time == pytest.approx(before.step_time, rel=1e-6)
        given_none = scenario(
            strategy, software, profile=written(events(scenario(strategy, software, launch="0 us")).to_csv()), launch="0 us"
        )
        assert after.to_dict()["measured_share"] < crossflow.predict(given_none).to_dict()["measured_share"] == pytest.approx(1.0, rel=1e-6)
        assert timeline(given).total == pytest.approx(after.step_time, rel=1e-9)


OTHERS = {
    "lstm": {"system": {"template": "pathfinder", "devices": 16}, "workload": "lstm-16k", "strategy": "RC-2-2-d4"},
    "gemm": {"system": {"template": "v100", "devices": 8}, "workload": {"model": "gemm", "m": 8192, "n": 8192, "k": 8192}, "strategy": "CR-8"},
    "dlrm": {"system": {"template": "zionex", "nodes": 2}, "workload": "dlrm-a", "strategy": {"dense": ["tp", "ddp"], "embedding": "mp"}},
    "program": {"system": {"template": "dgx-h100", "nodes": 1}, "workload": str(Path("docs/examples/mlp.program.json").resolve())},
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_events_of_every_workload_take_the_time_of_its_kernels_and_collectives(kind):
    given = crossflow.from_dict(OTHERS[kind])
    found, score = events(given), crossflow.evaluate(given)
    kernels = sum(e.time * e.count for e in found.events if e.ranks == 1)
    names = ("host", "network", "bubble", "launch")
    assert kernels == pytest.approx(
        sum(t[0] for n, t in score.bound.items() if n not in names) * score.step_time[0] * given.devices, rel=1e-6
    )
    sent = sum(e.time * e.count * (e.ranks if e.op != "send_recv" else 1) for e in found.events if e.ranks > 1)
    assert sent == pytest.approx(sum(score.communication.values())[0] * given.devices, rel=1e-6)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_profile_of_predicted_times_changes_no_prediction(kind, written):
    """Each event measured at its predicted time; halved, the step is shorter, and all but launches was measured."""
    given, found = crossflow.from_dict(OTHERS[kind]), events(crossflow.from_dict(OTHERS[kind]))
    plain = crossflow.evaluate(given).step_time[0]
    same, half = (
        crossflow.evaluate(crossflow.from_dict({**OTHERS[kind], "profile": str(written(text))}))
        for text in (found.to_csv(), replace(found, events=tuple(replace(e, time=e.time / 2) for e in found.events)).to_csv())
    )
    assert same.step_time[0] == pytest.approx(plain, rel=1e-6)
    assert 0.45 * plain < half.step_time[0] < 0.95 * plain
    assert 0.5 < same.measured_share[0] <= 1.0


# ------------------------------------------------------------------------------------------ profiles


def test_a_measured_event_takes_its_time_and_others_the_models(written):
    plain = scenario("dp1")
    event = max((e for e in events(plain).events if e.op == "gemm"), key=lambda e: e.time * e.count)
    row = f"gemm,{event.shape},{event.dtype},,1,,{2 * event.time},0,\n"
    given = scenario("dp1", profile=written(HEADER + row))
    found = crossflow.predict(given)
    assert found.step_time - crossflow.predict(plain).step_time == pytest.approx(event.time * event.count, rel=1e-3)
    assert 0.1 < found.to_dict()["measured_share"] < 0.9


def test_the_share_that_was_measured_is_that_of_its_events(written):
    """Collectives alone are measured: their share of the time of all events, each on all of its ranks; with all events measured, 1."""
    found = events(scenario("tp2-dp16", launch="0 us", layers=2))
    kernels = sum(e.time * e.count for e in found.events if e.ranks == 1)
    sent = sum(e.time * e.count * e.ranks for e in found.events if e.ranks > 1)
    for kept, share in ((tuple(e for e in found.events if e.ranks > 1), sent / (kernels + sent)), (found.events, 1.0)):
        given = scenario("tp2-dp16", profile=written(replace(found, events=kept).to_csv()), launch="0 us", layers=2)
        assert crossflow.predict(given).to_dict()["measured_share"] == pytest.approx(share, rel=1e-6)


def test_what_was_measured_of_transfers_counts(written):
    plain = scenario("pp4-dp8", "pytorch-fsdp", tied_embeddings=True)
    sent = [e for e in events(plain).events if e.op == "send_recv"]
    rows = "".join(f"{e.op},{e.shape},,,{e.ranks},{e.scope},{10 * e.time},0,\n" for e in sent)
    found = crossflow.predict(scenario("pp4-dp8", "pytorch-fsdp", profile=written(HEADER + rows), tied_embeddings=True))
    assert found.step_time > crossflow.predict(plain).step_time
    assert 0.0 < found.to_dict()["measured_share"] < 0.5


def test_a_step_that_never_ends_has_no_list(exactly):
    given = crossflow.from_dict(
        {"system": {"template": "dgx-a100", "nodes": None, "power": {"tdp": "10 W"}}, "workload": GPT, "strategy": "dp8"}
    )
    sentence = "scenario never ends: something that it needs has no rate; `crossflow predict` says what"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        events(given)


def test_the_shorter_side_of_a_transfer_is_the_transfer(written):
    """Sec. 4.2: the other side waited."""
    rows = "send,1024 B,,,2,inter,5 us,0,\nrecv,1024 B,,,2,inter,3 us,0,\n"
    found = read_profile(written(HEADER + rows), "dgx-a100")
    assert found.event(("send_recv", "1024 B", "", 2, "inter")).time == pytest.approx(3e-6)


def test_all_reduces_beyond_eight_ranks_are_scaled(written):
    """Sec. 4.2: each rank sends 2 (N - 1) / N of the buffer."""
    found = read_profile(written(HEADER + "all_reduce,1024 B,,,8,inter,7 us,1 us,\n"), "dgx-a100")
    assert found.event(("all_reduce", "1024 B", "", 8, "inter")).time == pytest.approx(7e-6)
    assert found.event(("all_reduce", "1024 B", "", 64, "inter")).time == pytest.approx(7e-6 * (63 / 64) / (7 / 8))
    assert found.event(("all_reduce", "1024 B", "", 4, "inter")) is None
    assert found.event(("all_gather", "1024 B", "", 64, "inter")) is None


def test_rows_of_other_devices_are_left_out(written):
    text = HEADER + "gemm,8x8x8,fp16,dgx-h100,1,,1 us,0,\ngemm,9x9x9,fp16,dgx-a100,1,,1 us,0,\ngemm,7x7x7,fp16,,1,,1 us,0,\n"
    found = read_profile(written(text), "dgx-a100")
    assert found.event(("gemm", "8x8x8", "fp16", 1, "")) is None
    assert found.event(("gemm", "9x9x9", "fp16", 1, "")).time == found.event(("gemm", "7x7x7", "fp16", 1, "")).time == 1e-6


def test_lines_of_json_are_rows_too(written):
    rows = [
        {"op": "gemm", "shape": "8x8x8", "dtype": "fp16", "time": 2e-6},
        {"op": "all_gather", "shape": "64 B", "ranks": 4, "scope": "intra", "time": "3 us"},
    ]
    found = read_profile(written("\n".join(map(json.dumps, rows)), "profile.jsonl"), "any")
    assert found.event(("gemm", "8x8x8", "fp16", 1, "")).time == 2e-6
    assert found.event(("all_gather", "64 B", "", 4, "intra")).time == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("gemn,8x8x8,fp16,,1,,1 us,0,", "op must be one of gemm, gemm_accumulate, attention_forward, attention_backward, scan_forward, scan_backward, experts, pass, optimizer, lookup, lookup_sort, lookup_update, lookup_gradient, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send_recv, sendrecv, send, recv, got 'gemn'; did you mean 'gemm'?"),
        ("gemm,8x8x8,fp16,,1,,1 m,0,", "time: expected a quantity in s"),
        ("gemm,8x8x8,fp16,,1,,-1,0,", "time must be above zero and at most a day, got '-1'"),
        ("gemm,8x8x8,fp16,,1,,inf,0,", "time must be above zero and at most a day, got 'inf'"),
        ("gemm,8x8x8,fp16,,1,,1 us,nan,", "spread must be zero or more and at most a day, got 'nan'"),
        ("all_reduce,8 B,,,4,near,1 us,0,", "scope of all_reduce must be intra or inter, got 'near'"),
        ("all_reduce,8 B,,,1,intra,1 us,0,", "all_reduce needs at least 2 ranks, got 1"),
        ("all_reduce,8x8,,,2,intra,1 us,0,", "shape: expected the bytes of a buffer, such as 1048576 B, got '8x8'"),
        ("gemm,8x8x8,,,1,,1 us,0,", "dtype of gemm is missing"),
        ("gemm,,fp16,,1,,1 us,0,", "shape is missing; columns are op, shape, dtype, device, ranks, scope, time, spread, count"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_row_is_told(written, row, sentence):
    with pytest.raises(SpecError) as found:
        read_profile(written("# measured on a Tuesday\n" + HEADER + row + "\n"), "any")
    assert "profile.csv:3: row 3: " + sentence in str(found.value)


def test_of_several_measurements_of_one_event_the_mean_counts(written):
    found = read_profile(written("\ufeff" + HEADER + "gemm,8x8x8,fp16,,1,,1 us,0,\ngemm,8x8x8,fp16,,1,,3 us,0,\n"), "any")
    measured = found.event(("gemm", "8x8x8", "fp16", 1, ""))
    assert (measured.time, measured.spread) == (pytest.approx(2e-6), pytest.approx(1e-6))


def test_files_that_cannot_be_read_are_told(tmp_path, written):
    with pytest.raises(SpecError, match=r"profile.csv:2: expected 9 cells as its header, got 3"):
        read_profile(written(HEADER + "gemm,8x8x8,fp16\n"), "any")
    with pytest.raises(SpecError, match=r"profile.csv: is not a table: "):
        read_profile(written(HEADER + 'gemm,"8x8x8,fp16,,1,,1 us,0,\n'), "any")
    quoted = 'gemm,8x8x8,"fp\n16",,1,,1 us,0,\n' + "gemm,8x8x8\n"
    with pytest.raises(SpecError, match=r"profile.csv:4: expected 9 cells as its header, got 2"):
        read_profile(written(HEADER + quoted), "any")
    with pytest.raises(SpecError, match=r"p.jsonl:1: expected an object a line: it cannot be read"):
        read_profile(written("[" * 100_000, "p.jsonl"), "any")
    for empty in ("", HEADER, "# nothing\n"):
        with pytest.raises(SpecError, match=r"profile.csv: holds no event; it has a row for each"):
            read_profile(written(empty), "any")
    with pytest.raises(SpecError, match=r"profile.csv:1: column 'time' is there twice"):
        read_profile(written("op,shape,time,time\n"), "any")
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_profile(tmp_path / "nowhere.csv", "any")
    with pytest.raises(SpecError, match="expected an object a line"):
        read_profile(written("[1, 2]\n", "p.jsonl"), "any")


# ------------------------------------------------------------------------------------------ a step rebuilt


def truth_of(given, rng, times, noise):
    """An independent simulation: every kernel and collective of every pass takes its true time with noise, slots run on the heap.

    Returns the time of the step's pipeline, the busy time of every stage, and the mean of what was measured of each event.
    """
    layout = Layout.of([given.strategy], np.array([32.0]), 8)
    kernels = block_kernels(given.job(), layout, given.stack)
    seen = {}

    def run(stage, phases):
        total = busy = 0.0
        for part, _, m, n, k, batch, sums, *_ in (p for p in kernels.products if p[1] in phases):
            layers = {"embedding": stage == 0, "head": stage == 3}.get(part, 2)
            key = ("gemm_accumulate" if sums else "gemm", gemm_shape(*(float(np.broadcast_to(x, (1,))[0]) for x in (m, n, k, batch))))
            for _ in range(int(layers)):
                time = times[key] * rng.normal(1.0, noise)
                seen.setdefault(key, []).append(time)
                total, busy = total + time, busy + time
        return total, busy

    order = {s: ["F"] * (3 - s) + ["F", "B"] * (32 - 3 + s) + ["B"] * (3 - s) for s in range(4)}  # 1F1B by hand
    tasks, after, where, place, busy = [], [], [], {}, np.zeros(4)
    for stage, kinds in order.items():
        counts = {"F": 0, "B": 0}
        for kind in kinds:
            total, work = run(stage, ("forward", "end") if kind == "F" else ("input", "weight"))
            place[kind, stage, counts[kind]] = len(tasks)
            tasks.append(total)
            where.append(stage)
            after.append((kind, stage, counts[kind]))
            busy[stage] += work
            counts[kind] += 1
    needs = {"F": lambda s, b: ("F", s - 1, b) if s else None, "B": lambda s, b: ("B", s + 1, b) if s < 3 else ("F", s, b)}
    edges = [(place[need],) if (need := needs[kind](stage, batch)) else () for kind, stage, batch in after]
    _, ends = run_tasks(tasks, edges, where)
    return float(ends.max()), busy, {key: float(np.mean(values)) for key, values in seen.items()}


def test_a_step_is_rebuilt_from_measured_events(written):
    """Products with true times far from the model's; what remains is the model's, and set to almost nothing on both sides."""
    rng = np.random.default_rng(7)
    plain = scenario("pp4-dp1", "ideal", launch="0 us")
    found = events(plain).events
    times = {(e.op, e.shape): e.time * rng.uniform(0.5, 2.0) for e in found if e.op.startswith("gemm")}
    total, busy, measured = truth_of(plain, rng, times, noise=0.05)
    rows = [[op, shape, "bf16", "", 1, "", time, 0, ""] for (op, shape), time in measured.items()]
    rows += [[e.op, e.shape, e.dtype, "", e.ranks, e.scope, 1e-15, 0, ""] for e in found if not e.op.startswith("gemm")]
    text = HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows)
    given = scenario("pp4-dp1", "ideal", profile=written(text), launch="0 us")
    rebuilt = timeline(given)
    mine = rebuilt.activity()["busy"]
    optimizer = np.array(
        [
            sum(np.diff(np.stack([e.start, e.end]), axis=0)[0][e.name == rebuilt.names.index("optimizer")])
            for e in map(rebuilt.events, range(4))
        ]
    )
    assert rebuilt.total - optimizer.max() == pytest.approx(total, rel=0.01)
    np.testing.assert_allclose(mine - optimizer, busy, rtol=0.02)


def test_lists_have_the_columns_of_profiles():
    text = events(scenario("tp2-dp2")).to_csv()
    assert next(csv.reader(text.splitlines())) == HEADER.strip().split(",")


# ------------------------------------------------------------------------------------------ sizes between those measured

CURVE = HEADER + "all_gather,1024 B,,,8,intra,10 us,0,\nall_gather,1048576 B,,,8,intra,40 us,0,\n"


def gathered(profile, sizes, model=lambda size: 1e-6 + size / 1e11):
    group = Group.alike(8, 8, len(sizes))
    return profile.messages("all_gather", np.array(sizes, dtype=float), group, model)


def test_collectives_between_measured_sizes_are_interpolated(written):
    time, known = gathered(read_profile(written(CURVE), "any"), [1024, 32768, 1048576])
    assert time == pytest.approx([10e-6, 20e-6, 40e-6])  # the mean size of a geometric row takes the mean time
    assert known.all()


def test_beyond_the_measured_sizes_the_model_is_scaled(written):
    """By as much as it is off at the nearest measured size, so that the curve does not jump there."""
    time, known = gathered(read_profile(written(CURVE), "any"), [512, 2**22, 0])
    first, last = 10e-6 / (1e-6 + 1024 / 1e11), 40e-6 / (1e-6 + 2**20 / 1e11)
    assert time[:2] == pytest.approx([first * (1e-6 + 512 / 1e11), last * (1e-6 + 2**22 / 1e11)])
    assert not known.any()


def test_one_measured_size_says_nothing_of_others(written):
    time, known = gathered(read_profile(written(CURVE.rpartition("all_gather")[0]), "any"), [1024, 2048])
    assert time == pytest.approx([10e-6, 1e-6 + 2048 / 1e11])
    assert known.tolist() == [True, False]


def test_a_profile_of_other_sizes_makes_a_step_longer(written):
    plain = scenario("dp8", "pytorch-fsdp")
    size, time = max((float(e.shape.split()[0]), e.time) for e in events(plain).events if e.op == "all_reduce")
    rows = "".join(f"all_reduce,{factor * size:.10g} B,,,8,intra,{10 * factor * time},0,\n" for factor in (0.001, 2))
    found = crossflow.predict(scenario("dp8", "pytorch-fsdp", profile=written(HEADER + rows)))
    assert found.step_time > 1.1 * crossflow.predict(plain).step_time


def test_rows_that_match_nothing_are_told(written):
    rows = (
        "all_reduce,1000000 B,,,8,inter,1 us,0,\ngemm,2048x2048x2000,bf16,,,,1 us,0,\n"
        "lookup,1 x 1 of 1 tables 1x1,,,,,1 us,0,\ngemm,8x8x8,bf16,dgx-h100,,,1 us,0,\n"
    )
    found = crossflow.predict(scenario("dp8", "pytorch-fsdp", profile=written(HEADER + rows))).notes
    assert [note for note in found if note.startswith("profile")] == [
        "profile: row 2 all_reduce 1000000 B, 8 ranks, inter matches no event; nearest: all_reduce 33579008 B, 8 ranks, intra",
        "profile: row 3 gemm 2048x2048x2000, bf16 matches no event; nearest: gemm 2048x2048x1024, bf16",
        "profile: row 4 lookup 1 x 1 of 1 tables 1x1 matches no event; the step has no lookup",
        "profile: 1 row is of dgx-h100, not of dgx-a100, and left out",
    ]


def test_a_list_of_events_matches_itself(written):
    given = scenario("dp8", "pytorch-fsdp")
    found = crossflow.predict(scenario("dp8", "pytorch-fsdp", profile=written(events(given).to_csv()))).notes
    assert not [note for note in found if note.startswith("profile")]


# ------------------------------------------------------------------------------------------ profiles of systems


def test_a_system_brings_its_own_profile(written, tmp_path):
    """Its path starts from the file of the system; what the scenario measured itself comes first."""
    plain = scenario("dp8", "pytorch-fsdp")
    event = next(e for e in events(plain).events if e.op == "all_reduce")
    row = "all_reduce,{},,,8,intra,{},0,\n"
    written(HEADER + row.format(event.shape, 100 * event.time), "slow.csv")
    written("kind: system\ntemplate: dgx-a100\nname: mine\nprofile: slow.csv\n", "mine.yaml")
    given = {"workload": GPT, "strategy": "dp8", "software": "pytorch-fsdp", "system": str(tmp_path / "mine.yaml")}
    slow = crossflow.predict(crossflow.from_dict(given))
    own = written(HEADER + row.format(event.shape, event.time), "own.csv")
    fast = crossflow.predict(crossflow.from_dict({**given, "profile": str(own)}))
    assert slow.step_time > 1.5 * fast.step_time
    assert fast.step_time == pytest.approx(crossflow.predict(plain).step_time, rel=1e-6)
    assert not [note for note in slow.notes if note.startswith("profile")]
