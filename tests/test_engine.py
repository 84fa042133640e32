"""One engine: blocks that repeat, meetings of classes, launches of the host, memory over time, uneven worlds."""

import itertools
import time
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sampled import fewer
from test_program import mlp, scenario_of

from crossflow import from_dict, predict, simulate
from crossflow.answers.points import variant
from crossflow.answers.steps.programs import placed
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.cost.price import price
from crossflow.engine.events import run_tasks
from crossflow.engine.kinds import kinds_of
from crossflow.engine.runs.uneven import Uneven, load_uneven
from crossflow.engine.schedule import durations, longest_path, schedule
from crossflow.engine.tasks import copies, tasks_of
from crossflow.program.blocks import Block
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import document_of, program_of
from crossflow.program.kernels import Pass, Product
from crossflow.program.program import HOST_TIMES, Message, Op, Program, Tensor

H100 = {"template": "dgx-h100", "nodes": 1}


@st.composite
def blocks_of_programs(draw):
    """Operations of two classes on two streams, some of which meet, with blocks that repeat up to 40 times and wait for their last copy.

    Two blocks of as many copies may also be paired.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = int(rng.integers(2, 25))
    cuts = np.sort(rng.choice(count + 1, 4, replace=count < 3))
    blocks = [
        Block(first=int(a), last=int(b) - 1, count=int(rng.integers(1, 41))) for a, b in ((cuts[0], cuts[1]), (cuts[2], cuts[3])) if a < b
    ]
    if len(blocks) == 2 and (paired := rng.integers(2)):
        blocks[1] = replace(blocks[1], count=blocks[0].count)
    ops = []
    for i in range(count):
        after = tuple(sorted({int(j) for j in rng.integers(0, i, rng.integers(3))})) if i else ()
        block = next((one for one in blocks if one.first <= i <= one.last), None)
        carried = tuple(sorted({int(j) for j in rng.integers(block.first, block.last + 1, rng.integers(3))})) if block else ()
        joined = len(blocks) == 2 and paired and block is blocks[1]
        twins = tuple(sorted({int(j) for j in rng.integers(blocks[0].first, blocks[0].last + 1, rng.integers(3))})) if joined else ()
        after = tuple(j for j in after if not twins or not blocks[0].first <= j <= blocks[0].last)
        sends = bool(rng.integers(2))
        own = {"message": i, "stream": "network"} if sends else {"kernels": (i,)}
        ops.append(Op(name=str(i), rank=int(rng.integers(2)), after=after, carried=carried, paired=twins, **own))
    for i in range(count - 1):  # neighbours of different classes in one block, or both outside, meet
        one, other = ops[i : i + 2]
        inside = [next((k for k, block in enumerate(blocks) if block.first <= j <= block.last), None) for j in (i, i + 1)]
        if one.message is not None and other.message is not None and one.rank != other.rank and inside[0] == inside[1] and not one.meets:
            if i in other.after:
                continue
            ops[i], ops[i + 1] = replace(one, meets=f"m{i}"), replace(other, meets=f"m{i}", message=i)
    rows = tuple(Pass(moved=float(i)) for i in range(count))
    sent = tuple(Message(collective="all_reduce", size=1.0 + i, axes=("lp",)) for i in range(count))
    program = Program(
        name="drawn", dtype="fp16", axes=(("lp", 2),), stages="lp", kernels=rows, messages=sent, ops=tuple(ops), tensors=(),
        blocks=tuple(blocks),
    )  # fmt: skip
    rows = 2 * count + len(HOST_TIMES)
    times = 10.0 ** rng.uniform(-6, 1, (rows, 2)) * (rng.random((rows, 1)) > 0.1)
    return program, times


def unrolled(program, times, *, launched=False):
    """Tasks of all copies, and the time of each."""
    tasks, _ = tasks_of(program, copies(program), launched=launched)
    return tasks, durations(tasks, times)


def heap(tasks, spans):
    """End of the last task in the event engine, for one point."""
    also = {i: task.streams[1:] for i, task in enumerate(tasks) if len(task.streams) > 1}
    return run_tasks(spans.tolist(), [task.after for task in tasks], [task.streams[0] for task in tasks], also=also)[1]


# ------------------------------------------------------------------------------------------ blocks


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@settings(max_examples=fewer(150, 60), deadline=None)
@given(blocks_of_programs())
def test_a_block_that_repeats_takes_as_long_as_its_copies(drawn):
    program, times = drawn
    tasks, spans = unrolled(program, times)
    whole = longest_path(spans, [task.edges for task in tasks]).max(axis=0)
    assert schedule(program).makespan(times) == pytest.approx(whole, rel=1e-12)


@pytest.mark.slow
@settings(max_examples=fewer(100, 50), deadline=None)
@given(blocks_of_programs())
def test_the_event_engine_agrees_on_copies_and_meetings_to_the_last_digit(drawn):
    program, times = drawn
    tasks, spans = unrolled(program, times)
    ends = longest_path(spans[:, :1], [task.edges for task in tasks])[:, 0]
    assert ends.tolist() == heap(tasks, spans[:, 0]).tolist()


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(blocks_of_programs())
def test_sums_count_every_copy(drawn):
    program, times = drawn
    _, spans = unrolled(program, times)
    tasks = sum(spans[i] for i in range(len(spans)))
    plan = schedule(program)
    met = [op for op in program.ops if op.meets]  # meetings are one task, and work of each class
    twice = sum(times[len(program.kernels) + op.message] * program.places.count[int(op.name)] for op in met) / 2
    assert plan.of_class.sum(axis=0) @ times == pytest.approx(tasks + twice, rel=1e-9)


def test_an_endless_message_in_a_block_makes_the_step_endless():
    program = layers(8)
    times = np.ones((len(program.kernels) + len(program.messages) + len(HOST_TIMES), 2))
    times[len(program.kernels)] = np.inf, 1.0
    made = schedule(program).makespan(times)
    assert np.isinf(made[0])
    assert np.isfinite(made[1])


def test_a_slow_stream_overtakes_late():
    """Where an increment repeats for a while, the next may differ: 100 s ahead, then 1 s of computing and 1.5 s of sending a layer."""
    built = ProgramBuilder(axes={"dp": 2})
    ahead = built.compute("ahead", Pass(moved=1.0))
    with built.repeat(300):
        one = built.send("all_reduce", 1.0, ["dp"])
        built.compute("layer", Pass(moved=2.0), after=[one])
    program = built.build()
    assert ahead == 0
    assert schedule(program).makespan(np.array([[100.0], [1.0], [1.5], [0.0]])).tolist() == [451.0]


def between_meetings(count):
    """A block that the second class runs before a meeting, and the first class, which meets it earlier in the program, behind it."""
    built = ProgramBuilder(axes={"pp": 2}, stages="pp")
    met = built.send("all_reduce", 1.0, ["pp"], rank=0, meets="both")
    with built.repeat(count):
        one = built.compute("one", Pass(moved=1.0), rank=0, after=[met])
        built.send("send_recv", 2.0, ["pp"], rank=0, after=[one])
        built.compute("two", Pass(moved=2.0), rank=1)
    two = built.compute("end", Pass(moved=3.0), rank=1)
    built.send("all_reduce", 1.0, ["pp"], rank=1, meets="both", after=[two])
    return built.build()


def test_classes_run_through_a_block_one_after_the_other():
    """Each as a loop of its own: 2 s of computing a copy, then, from the end of the meeting, 0.5 s of sending behind 1 s of computing."""
    times = np.array([[1.0], [2.0], [3.0], [10.0], [0.5], [0.0]])
    tasks, spans = unrolled(between_meetings(40), times)
    assert schedule(between_meetings(40)).makespan(times) == longest_path(spans, [task.edges for task in tasks]).max(axis=0)
    assert schedule(between_meetings(10**9)).makespan(times) == 2e9 + 3.0 + 10.0 + 1e9 + 0.5


def paired(count, *, between):
    """Two blocks, each copy of the second waits for that of the first; `between` them may stand what waits for the whole first."""
    built = ProgramBuilder(name="pairs", axes={"pp": 3}, stages="pp")
    with built.repeat(count):
        one = built.compute("one", Pass(moved=1.0), rank=0)
        two = built.compute("two", Pass(moved=2.0), rank=2)
    after = [built.compute("all", Pass(moved=3.0), rank=1, after=[two])] if between else []
    with built.repeat(count):
        built.compute("three", Pass(moved=4.0), rank=1, after=after, paired=[one])
    return built.build()


def test_paired_blocks_run_side_by_side():
    """Copy after copy, where the second need not wait for the whole first."""
    times = np.array([[1.0, 3.0], [0.5, 0.5], [7.0, 7.0], [2.0, 2.0], [0.0, 0.0]])
    short = times[[0, 1, 3, 4]]
    assert schedule(paired(1000, between=False)).makespan(short).tolist() == [2001.0, 3002.0]
    assert schedule(paired(1000, between=True)).makespan(times).tolist() == [2507.0, 3002.0]


def test_copies_that_are_no_loop_are_told():
    """What runs ahead holds up the second block from its beginning and each of its copies: all would have to be kept until then."""
    built = ProgramBuilder(name="ahead", axes={"dp": 2})
    with built.repeat(10**6):
        one = built.compute("one", Pass(moved=1.0), stream="first")
        ahead = built.compute("ahead", Pass(moved=2.0), after=[one])
        built.send("all_reduce", 1.0, ["dp"], after=[one])
    with built.repeat(10**6):
        built.send("all_gather", 1.0, ["dp"], paired=[ahead])
    said = "ahead: copies of its blocks wait for each other in such a way that each is timed by itself, here 4,000,000 operations"
    with pytest.raises(CrossflowError, match=f"{said}, and 100,000 at most; give blocks fewer copies"):
        schedule(built.build())


@pytest.mark.parametrize("asked", [lambda one: simulate(one), lambda one: predict(variant(one, {"kernels_per_device": 2}))])
def test_a_sequence_without_end_is_predicted_but_not_written_out(asked, exactly):
    sizes = {"hidden": 64, "vocabulary": 640, "global_batch": 8, "sequence": 10**9}
    scenario = from_dict(
        {"system": {"template": "pathfinder", "devices": 8}, "workload": {"model": "lstm", **sizes}, "strategy": "RC-1-4-p2"}
    )
    assert predict(scenario).step_time > 1e3
    said = "lstm: timelines, and several kernels on a device, take every time step by itself, here 8,000,000,004 operations, "
    with pytest.raises(CrossflowError, match=exactly(f"{said}and 100,000 at most; choose a shorter sequence")):
        asked(scenario)


def layers(count, *, held=True, repeat=True):
    """Layers that compute, gather behind computing and wait for the layer before, with weights and saved activations."""
    built = ProgramBuilder(name="layers", dtype="bf16", axes={"tp": 8})
    saved = []

    def forward(after):
        one = built.compute("up", Product(m=4096, n=1024, k=4096), phase="forward", after=after)
        sent = built.send("all_gather", 3e7, ["tp"], phase="forward", after=[one])
        two = built.compute("norm", Pass(moved=4e7), phase="forward", after=[one])
        return one, sent, two

    def backward(after):
        return built.compute("back", Product(m=4096, n=4096, k=1024), phase="backward", after=after)

    if repeat:
        with built.repeat(count):
            one, sent, two = forward([])
            built.carry(sent, one)
        saved.append((one, two))
        with built.repeat(count):
            backs = [backward([sent])]
    else:
        after, backs = [], []
        for _ in range(count):
            one, sent, two = forward(after)
            after = [sent]
            saved.append((one, two))
        backs = [backward([sent]) for _ in range(count)]
    if held:
        built.hold("weights", 1e9)
        for (one, two), back in zip(saved, reversed(backs), strict=True):
            built.hold("activations", 1e8, made=one, last=back)
            built.hold("buffers", 3e8, made=one, last=two)
    return built.build(samples=8, tokens=4096)


@pytest.mark.cases(6)
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 24])
@pytest.mark.parametrize("software", [None, "megatron-core"])
def test_a_program_with_blocks_is_its_copies(tmp_path, count, software):
    """Time, where it goes, energy, traffic and memory; through a file; in predictions and timelines."""
    more = {} if software is None else {"software": software}
    found = [scenario_of(layers(count, repeat=repeat), tmp_path, **more) for repeat in (True, False)]
    ours, theirs = (predict(one).score for one in found)
    for name in ("step_time", "energy", "flops", "power", "sent_intra", "sent_inter"):
        assert getattr(ours, name, 0.0) == pytest.approx(getattr(theirs, name, 0.0), rel=1e-12), name
    for name in ("breakdown", "exposed_communication", "memory", "bound"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert all(one[key] == pytest.approx(other[key], rel=1e-9, abs=1e-18) for key in other), name
    lines = [simulate(one) for one in found]
    assert lines[0].total == pytest.approx(ours.step_time[0], rel=1e-12)
    assert lines[0].memory[0][1] == pytest.approx(lines[1].memory[0][1])
    assert lines[0].memory[0][0] == pytest.approx(lines[1].memory[0][0], rel=1e-9, abs=1e-15)


def test_a_long_block_costs_far_less_than_its_copies():
    """24 operations, 96 times."""

    def cpu(made):
        best = np.inf
        for _ in range(5):
            begin = time.process_time()
            made()
            best = min(best, time.process_time() - begin)
        return best

    built = ProgramBuilder(axes={"tp": 8})
    with built.repeat(96):
        last = built.compute("first", Pass(moved=1.0))
        for i in range(22):
            kernel = i % 3
            last = (
                built.compute(str(i), Pass(moved=2.0 + i), after=[last])
                if kernel
                else built.send("all_reduce", 1.0 + i, ["tp"], after=[last])
            )
        built.carry(built.send("all_gather", 1.0, ["tp"], after=[last]), 0)
    program = built.build()
    assert len(program.ops) == 24
    times = np.random.default_rng(1).uniform(size=(len(program.kernels) + len(program.messages) + 1, 1))
    tasks, spans = unrolled(program, times)
    edges = [task.edges for task in tasks]
    assert schedule(program).makespan(times) == pytest.approx(longest_path(spans, edges).max(axis=0), rel=1e-12)
    assert cpu(lambda: schedule(program).makespan(times)) < 0.2 * cpu(lambda: longest_path(spans, edges).max(axis=0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks": (Block(first=0, last=9, count=2),)}, "blocks[0].last: expected a number from 0 to 5, got 9"),
        (
            {"blocks": (Block(first=0, last=2, count=2), Block(first=2, last=3, count=2))},
            "blocks[1].first: operation 2 belongs to the block before it, or stands before that",
        ),
        (
            {"blocks": (Block(first=0, last=1, count=3), Block(first=3, last=4, count=2))},
            "tensors[1].last: operation 0 makes 3 copies of it, and operation 3 frees 2",
        ),
    ],
)
def test_blocks_that_cannot_be_are_told(change, said):
    with pytest.raises(SpecError) as caught:
        program_of(document_of(replace(mlp(), **change)))
    assert str(caught.value.problems[0]).endswith(said)


def test_what_is_carried_stays_in_its_block():
    ops = mlp().ops
    with pytest.raises(SpecError, match="expected operations of the block that it belongs to"):
        program_of(document_of(mlp(ops=(*ops[:-1], replace(ops[-1], carried=(0,))))))


def test_what_is_paired_is_in_an_earlier_block_of_as_many_copies(exactly):
    program = paired(8, between=False)
    assert program_of(document_of(program)).ops == program.ops
    blocks = (program.blocks[0], replace(program.blocks[1], count=7))
    said = "program: ops[2].paired: expected operations of earlier blocks of as many copies as the block that it belongs to"
    with pytest.raises(SpecError, match=exactly(said)):
        program_of(document_of(replace(program, blocks=blocks)))


def test_blocks_are_written_one_by_one(exactly):
    built = ProgramBuilder()
    with pytest.raises(ValueError, match=exactly("a block repeats once or more, got 0")), built.repeat(0):
        pass
    with (
        pytest.raises(ValueError, match=exactly("a block does not hold another block; write the inner one out")),
        built.repeat(2),
        built.repeat(2),
    ):
        pass


# ------------------------------------------------------------------------------------------ meetings


def tied(meets="tied", **system):
    """Two stages that both sum the gradients of one table; the second has more to do before."""
    built = ProgramBuilder(name="tied", dtype="bf16", axes={"tp": 4, "pp": 2}, stages="pp")
    one = built.compute("first", Product(m=4096, n=4096, k=4096), rank=0)
    two = built.compute("second", Product(m=4096, n=4096, k=8192), rank=1)
    for rank, before in ((0, one), (1, two)):
        built.send("all_reduce", 1e9, ["pp"], name="table", rank=rank, after=[before], meets=meets)
    return built.build()


def test_a_meeting_starts_when_the_last_class_arrives_and_ends_for_all(tmp_path):
    scenario = scenario_of(tied(), tmp_path)
    found = simulate(scenario)
    assert found.total == pytest.approx(predict(scenario).step_time, rel=1e-12)
    ends = [found.events(device).end[-1] for device in range(2)]
    starts = [found.events(device).start[-1] for device in range(2)]
    assert ends[0] == ends[1] == found.total
    assert starts[0] == starts[1] == pytest.approx(found.events(1).end[0])
    waiting = found.activity()["waiting"]
    assert waiting[0] == pytest.approx(starts[0] - found.events(0).end[0])
    assert waiting[1] == 0
    apart = scenario_of(replace(tied(), ops=tuple(replace(op, meets="") for op in tied().ops)), tmp_path)
    assert simulate(apart).events(0).end[-1] < ends[0], "each class alone sends when it is there"


def test_what_follows_a_meeting_waits_for_it(tmp_path):
    program = tied()
    after = Op(name="update", rank=0, kernels=(0,), after=(2,))
    meets, alone = (scenario_of(replace(program, ops=(*ops, after)), tmp_path) for ops in (program.ops, tied("").ops))
    assert predict(meets).step_time > predict(alone).step_time


def test_meetings_hold_where_kernels_share_a_device(tmp_path):
    alone, shared = (scenario_of(tied(), tmp_path, kernels_per_device=slots) for slots in (1, 2))
    assert predict(shared).step_time == pytest.approx(predict(alone).step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({2: {"meets": "other"}}, "no operation of another class meets in 'other'"),
        ({0: {"meets": "tied"}}, "expected every operation that meets in 'tied' to send the same message"),
        (
            {0: {"meets": "both"}, 1: {"meets": "both"}, 2: {"meets": ""}, 3: {"meets": ""}},
            "expected every operation that meets in 'both' to send the same message",
        ),
        ({2: {"rank": 1}}, "expected one operation of each class in 'tied'; a meeting that repeats is one of a block, or has other names"),
    ],
)
def test_meetings_that_cannot_be_are_told(change, said):
    program = tied()
    ops = tuple(replace(op, **change.get(i, {})) for i, op in enumerate(program.ops))
    with pytest.raises(SpecError) as caught:
        program_of(document_of(replace(program, ops=ops)))
    assert said in str(caught.value)


def test_classes_that_wait_for_each_other_are_told():
    built = ProgramBuilder(dtype="bf16", axes={"pp": 2}, stages="pp")
    for rank, names in ((0, "ab"), (1, "ba")):
        for name in names:
            built.send("all_reduce", 1e6, ["pp"], rank=rank, meets=name)
    with pytest.raises(SpecError, match="the classes in 'a' wait for each other: one of them first has to get through another meeting"):
        program_of(document_of(built.build()))
    with pytest.raises(ValueError, match="these operations wait for each other: all_reduce"):
        schedule(built.build())


def test_a_message_of_a_meeting_goes_along_the_classes():
    program = tied()
    with pytest.raises(SpecError, match="the classes in 'tied' lie along 'pp', which is no axis of their message"):
        program_of(document_of(replace(program, messages=(replace(program.messages[0], axes=("tp",)),))))


# ------------------------------------------------------------------------------------------ launches of the host


def small(count=400, **kernel):
    """Kernels of a few microseconds, and a collective at the end."""
    built = ProgramBuilder(name="small", dtype="bf16", axes={"tp": 8})
    for i in range(count):
        last = built.compute(str(i), Pass(moved=1e4, **kernel), layer="layer")
    built.send("all_reduce", 1e6, ["tp"], after=[last])
    return built.build()


@pytest.mark.slow
def test_ideal_software_is_none(tmp_path):
    for program in (small(), mlp(), layers(24)):
        none, ideal = (predict(scenario_of(program, tmp_path, **more)).step_time for more in ({}, {"software": "ideal"}))
        assert ideal == pytest.approx(none, rel=1e-12)


def test_short_kernels_wait_for_the_host(tmp_path):
    """The host issues one after the other, collectives too; the step is its work and the last thing that it issued."""
    scenario = scenario_of(small(), tmp_path, software={"like": "megatron-core", "host": {"kernel": "30 us"}})
    free = predict(scenario_of(small(), tmp_path)).score
    score, call = predict(scenario).score, float(scenario.stack.host.kernel[0])
    sent = score.communication["all_reduce"][0]
    assert score.step_time[0] == pytest.approx(401 * call + sent, rel=1e-9)
    assert score.breakdown["exposed_communication"] == pytest.approx(free.breakdown["exposed_communication"], rel=0.05)
    assert max(score.bound, key=lambda name: score.bound[name][0]) == "host"
    assert sum(part[0] for part in score.breakdown.values()) == pytest.approx(score.step_time[0], rel=1e-12)
    found = simulate(scenario)
    assert found.total == pytest.approx(score.step_time[0], rel=1e-12)
    assert found.activity()["host"][0] > 0.5 * found.total
    assert sum(part[0] for part in found.activity().values()) == pytest.approx(found.total, rel=1e-9)


def test_a_long_kernel_hides_the_launches_behind_it(tmp_path):
    built = ProgramBuilder(dtype="bf16")
    built.compute("long", Product(m=16384, n=16384, k=16384))
    for i in range(100):
        built.compute(str(i), Pass(moved=1e3))
    scenario = scenario_of(built.build(), tmp_path, {"template": "h100-sxm"}, software="megatron-core")
    alone = predict(scenario_of(built.build(), tmp_path, {"template": "h100-sxm"})).step_time
    assert predict(scenario).step_time == pytest.approx(alone + float(scenario.stack.host.kernel[0]), rel=1e-9)


def test_launches_of_one_kernel_are_those_of_many(tmp_path):
    """A pass of 40 launches, and 40 passes of one; whether the host or the device is slower."""
    for moved in (1e4, 1e9):
        one, many = ProgramBuilder(dtype="bf16"), ProgramBuilder(dtype="bf16")
        one.compute("one", Pass(moved=40 * moved, launches=40))
        many.compute("many", *[Pass(moved=moved)] * 40)
        steps = [
            predict(
                scenario_of(built.build(), tmp_path, {"template": "h100-sxm"}, software={"like": "ideal", "host": {"kernel": "50 us"}})
            ).step_time
            for built in (one, many)
        ]
        assert steps[0] == pytest.approx(steps[1], rel=1e-3)


def test_the_host_is_another_stream_to_the_event_engine(tmp_path):
    program = layers(6)
    rows = 5 * len(program.kernels) + len(program.messages) + len(HOST_TIMES)
    times = np.random.default_rng(3).uniform(size=(rows, 2))
    tasks, spans = unrolled(program, times, launched=True)
    ends = longest_path(spans, [task.edges for task in tasks])
    assert ends[:, 0].tolist() == heap(tasks, spans[:, 0]).tolist()
    assert schedule(program, launched=True).makespan(times) == pytest.approx(ends.max(axis=0), rel=1e-12)


def test_several_kernels_at_once_wait_for_the_host_too(tmp_path):
    slow = {"like": "ideal", "host": {"kernel": "30 us"}}
    steps = [predict(scenario_of(small(50), tmp_path, software=slow, kernels_per_device=slots)).step_time for slots in (1, 4)]
    assert steps[0] == pytest.approx(steps[1], rel=0.05)
    assert steps[1] > 50 * 30e-6


def test_the_example_changes_with_its_software(tmp_path):
    program = from_dict({"system": H100, "workload": "docs/examples/mlp.program.json"}).program()
    none, some = (predict(scenario_of(program, tmp_path, **more)).step_time for more in ({}, {"software": "megatron-core"}))
    assert some > none


# ------------------------------------------------------------------------------------------ memory over time


def test_the_timeline_holds_what_the_prediction_needs(tmp_path):
    for program in (mlp(), layers(5), layers(5, repeat=False), tied()):
        scenario = scenario_of(program, tmp_path)
        found = simulate(scenario)
        needed = sum(held[0] for held in predict(scenario).score.memory.values())
        assert max(float(held.max()) for _, held in found.memory) == pytest.approx(needed, rel=1e-9)
        assert all((np.diff(times) >= 0).all() and times[0] == 0 and times[-1] <= found.total for times, _ in found.memory)


def test_memory_rises_and_falls_with_saved_activations(tmp_path):
    times, held = simulate(scenario_of(layers(8), tmp_path)).memory[0]
    assert held[0] == pytest.approx(1e9)
    assert held.max() == pytest.approx(1e9 + 8 * 1e8 + 3e8)
    assert held[-1] == pytest.approx(1e9)
    assert 0 < times[np.argmax(held)] < times[-1]


def test_what_does_not_fit_is_told(tmp_path):
    program = mlp(tensors=(Tensor(kind="weights", size=100e9), Tensor(kind="activations", size=2.0**30, made=0, last=3)))
    found = simulate(scenario_of(program, tmp_path))
    assert found.overfull == "does not fit: stage 0 needs 94.13 GiB, 14.13 GiB more than the 80 GiB of a device"
    assert not predict(scenario_of(program, tmp_path)).feasible


# ------------------------------------------------------------------------------------------ uneven worlds


def pipeline(stages=3):
    """A small pipeline: microbatches through stages of four ranks each, gradients summed over replicas, a table over the ends."""
    built = ProgramBuilder(name="pipeline", dtype="bf16", axes={"tp": 2, "dp": 2, "pp": stages}, stages="pp")
    lasts = [0] * stages
    for batch in range(3):
        sent = None
        for rank in range(stages):
            one = built.compute(f"f{batch}", Product(m=2048, n=2048 * (1 + rank), k=2048), rank=rank, after=[sent] if sent else [])
            summed = built.send("all_reduce", 2e7, ["tp"], rank=rank, after=[one])
            lasts[rank] = built.compute(f"n{batch}", Pass(moved=3e7), rank=rank, after=[summed])
            if rank + 1 < stages:
                sent = built.send("send_recv", 1e7, ["pp"], rank=rank, stream="pipeline", after=[lasts[rank]])
    for rank in range(stages):
        built.send("all_reduce", 1e8, ["dp"], name="gradients", rank=rank, after=[lasts[rank]])
    for rank in (0, stages - 1):
        built.send("all_reduce", 1e8, ["pp"], name="table", rank=rank, after=[lasts[rank]], meets="table")
    return built.build(samples=12)


TWELVE = {"template": "dgx-h100", "nodes": 1, "devices_per_node": 12, "devices": None}


def brute(scenario, uneven, program=None):
    """Step of every device by itself in the event engine: each a class of its own, collectives among those that they name."""
    program, device = program or scenario.program(unrolled=True), scenario.architecture
    placement, groups = placed(scenario, program), dict(program.groups)
    times = price(program, placement, scenario.system.network, device, scenario.nodes[0], stack=scenario.stack).times[:, 0]
    names, sizes, strides = [name for name, _ in program.axes], dict(program.axes), placement.strides
    places = list(itertools.product(*(range(sizes[name]) for name in names)))
    spans, resources, after, also, own, met = [], [], [], {}, {}, {}
    for i, (op, rows) in enumerate(zip(program.ops, program.rows, strict=True)):
        for place in places:
            at = dict(zip(names, place, strict=True))
            if at.get(program.stages, 0) != op.rank:
                continue
            waits = {own[j, tuple((at | {program.stages: program.ops[j].rank})[name] for name in names)] for j in op.after}
            span = sum(times[row] for row in rows)
            rank = sum(strides.get(name, 0) * at[name] for name in names)
            if op.message is None:
                span /= uneven.ranks.get(rank, 1.0) * uneven.stages.get(op.rank, 1.0) * uneven.replicas.get(at.get("dp", 0), 1.0)
            elif op.stream == "pipeline":
                span /= min(uneven.links.get(op.rank, 1.0), *(uneven.ports.get(rank + stages * strides["pp"], 1.0) for stages in (0, 1)))
            else:
                span /= uneven.ports.get(rank, 1.0)
            axes = () if op.message is None else program.messages[op.message].axes
            group = (op.meets or i, tuple(at[name] for name in names if name not in axes or (name == program.stages and not op.meets)))
            if axes and axes[0] in groups:
                one = groups[axes[0]]
                group = i, (rank // (one.ranks * one.stride), rank % one.stride)
            if axes and group in met:
                own[i, place] = met[group]
                spans[met[group]] = max(spans[met[group]], span)
                after[met[group]] |= waits
                also.setdefault(met[group], []).append((place, op.stream))
                continue
            own[i, place] = met[group] = len(spans)
            spans.append(span)
            resources.append((place, op.stream))
            after.append(waits)
    return run_tasks(spans, [tuple(waits) for waits in after], resources, also=also)[1].max()


WORLDS = [
    {"ranks": {5: 0.5}}, {"ranks": {0: 0.7, 3: 1.3, 11: 0.6}}, {"stages": {1: 0.4}}, {"replicas": {1: 0.5}}, {"links": {0: 0.01, 1: 0.02}},
    {"ports": {5: 0.3}}, {"ports": {0: 0.5, 6: 0.2}, "links": {0: 0.4}},
    {"ranks": {2: 0.9}, "stages": {2: 0.8}, "replicas": {0: 0.7}, "links": {1: 0.1}},
]  # fmt: skip


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("uneven", WORLDS)
def test_an_uneven_world_is_that_of_every_rank_by_itself(tmp_path, uneven):
    scenario = scenario_of(pipeline(), tmp_path, TWELVE)
    found = simulate(scenario, Uneven(**uneven))
    assert found.total == pytest.approx(brute(scenario, Uneven(**uneven)), rel=1e-12)
    assert sorted(rank for one in found.devices for rank in one.ranks) == list(range(12))
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)


@pytest.mark.cases(2)
@pytest.mark.parametrize("workload", ["lstm", "gemm"])
@pytest.mark.parametrize("uneven", [{"ranks": {5: 0.5}}, {"ranks": {1: 0.6, 6: 2.0}}, {"replicas": {1: 0.5}}])
def test_graphs_have_uneven_worlds_too(workload, uneven):
    sizes = {"lstm": {"hidden": 4096, "vocabulary": 16000, "sequence": 3, "global_batch": 64}, "gemm": {"m": 4096, "n": 4096, "k": 4096}}
    strategy = {"lstm": "RC-1-2-d2-p2", "gemm": "RC-1-4-d2"}[workload]
    system = {"template": "pathfinder", "devices": 8}
    scenario = from_dict({"system": system, "workload": {"model": workload, **sizes[workload]}, "strategy": strategy})
    assert simulate(scenario, Uneven(**uneven)).total == pytest.approx(brute(scenario, Uneven(**uneven)), rel=1e-12)
    assert simulate(scenario).total == pytest.approx(brute(scenario, Uneven()), rel=1e-12)


def test_ranks_that_are_alike_stay_one_class(tmp_path):
    scenario = scenario_of(pipeline(), tmp_path, TWELVE)
    even, same = simulate(scenario), simulate(scenario, Uneven(ranks={4: 1.0}))
    assert (len(even.devices), len(same.devices), even.total) == (3, 3, same.total)
    slow = simulate(scenario, Uneven(stages={1: 0.5}))
    assert len(slow.devices) == 3
    assert slow.total > even.total


def test_a_world_of_few_kinds_is_small():
    """One slow device of 512 data-parallel ones makes two kinds."""
    speed = np.ones((1, 64, 8))
    speed[0, 3, 2] = 0.5
    built = ProgramBuilder(axes={"dp": 64, "tp": 8})
    built.send("all_reduce", 1.0, ["tp"], after=[built.send("all_reduce", 1.0, ["dp"])])
    ranks = np.arange(512).reshape(1, 8, 64).swapaxes(1, 2)
    found = kinds_of(built.build(), [speed], ranks)
    assert len(found.classes) == 4  # itself, its row, its column, all others
    assert np.unique(kinds_of(built.build(), [speed], ranks, apart=True).of).size == 512


def test_one_slow_rank_slows_data_parallel_steps_by_what_it_takes_longer(tmp_path):
    built = ProgramBuilder(dtype="bf16", axes={"dp": 8})
    one = built.compute("one", Product(m=8192, n=8192, k=8192))
    built.send("all_reduce", 1e9, ["dp"], after=[one])
    scenario = scenario_of(built.build(), tmp_path)
    even, slow = simulate(scenario), simulate(scenario, Uneven(ranks={3: 0.8}))
    kernel = even.activity()["busy"][0]
    assert slow.total - even.total == pytest.approx(kernel / 0.8 - kernel, rel=1e-9)
    assert [device.name for device in slow.devices] == ["stage 0, rank 0 +6", "stage 0, rank 3"]
    assert slow.activity()["waiting"] == pytest.approx([kernel / 0.8 - kernel, 0.0], abs=1e-15)
    assert any(slow.devices[slow.slots.device[slot]].name == "stage 0, rank 3" for slot in slow.critical_path())


def test_a_slow_stage_is_the_pace_of_a_pipeline(tmp_path):
    def step(batches):
        built = ProgramBuilder(dtype="bf16", axes={"pp": 4}, stages="pp")
        for i in range(batches):
            sent = []
            for rank in range(4):
                one = built.compute(str(i), Product(m=4096, n=4096, k=4096), rank=rank, after=sent)
                sent = [built.send("send_recv", 1e5, ["pp"], rank=rank, after=[one])]
        scenario = scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 1, "devices_per_node": 4})
        return simulate(scenario, Uneven(stages={2: 0.5})), simulate(scenario)

    (slow, even), (longer, _) = step(8), step(16)
    kernel = even.events(0).end[0]
    assert longer.total - slow.total == pytest.approx(8 * kernel / 0.5, rel=1e-9)


def test_jitter_is_seeded_and_slows(tmp_path):
    scenario = scenario_of(pipeline(), tmp_path, TWELVE)
    one, same, another = (simulate(scenario, Uneven(jitter=0.2, seed=seed)) for seed in (1, 1, 2))
    assert one.total == same.total != another.total
    assert len(one.devices) == 12
    totals = [simulate(scenario, Uneven(jitter=0.2, seed=seed)).total for seed in range(8)]
    assert np.mean(totals) > simulate(scenario).total


@pytest.mark.parametrize(
    ("uneven", "sentence"),
    [
        ({"ranks": {12: 0.5}}, "uneven: ranks: 12 is not there, the plan has 12 (0 to 11)"),
        ({"stages": {3: 0.5}}, "uneven: stages: 3 is not there, the plan has 3 (0 to 2)"),
        ({"replicas": {2: 0.5}}, "uneven: replicas: 2 is not there, the plan has 2 (0 to 1)"),
        ({"links": {2: 0.5}}, "uneven: links: 2 is not there, the plan has 2 (0 to 1)"),
    ],
)
def test_places_that_are_not_there_are_told(tmp_path, uneven, sentence, exactly):
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        simulate(scenario_of(pipeline(), tmp_path, TWELVE), Uneven(**uneven))


def test_what_a_mesh_has_not_is_told(tmp_path, exactly):
    alone = scenario_of(tied(""), tmp_path)
    with pytest.raises(CrossflowError, match=exactly("uneven: replicas: this mesh has no axis of replicas (dp or cp); name ranks instead")):
        simulate(alone, Uneven(replicas={0: 0.5}))
    with pytest.raises(CrossflowError, match=exactly("uneven: links: 0: the program sends nothing over it")):
        simulate(alone, Uneven(links={0: 0.5}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: uneven\n", "kind: nothing differs; give ranks, stages, replicas, links, ports or jitter"),
        ("kind: uneven\nranks: {1: 0.5}\nseed: 3\n", "seed: it is of jitter, and there is none; give jitter, or leave it out"),
    ],
)
def test_files_that_change_nothing_are_told(tmp_path, text, said):
    path = tmp_path / "slow.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        load_uneven(path)


def test_launches_and_blocks_run_in_uneven_worlds(tmp_path):
    scenario = scenario_of(layers(6), tmp_path, software="megatron-core")
    even, slow = simulate(scenario), simulate(scenario, Uneven(ranks={3: 0.5}))
    assert slow.total > 1.2 * even.total
    np.testing.assert_allclose(sum(slow.activity().values()), slow.total, rtol=1e-9)
    assert slow.memory[0][1].max() == pytest.approx(even.memory[0][1].max())
