"""Schedules: the longest path is what an event engine finds, merged or not, and no link sends two things at once."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sampled import fewer

from crossflow.answers.steps.programs import placed
from crossflow.cost.price import price
from crossflow.engine.events import run_tasks
from crossflow.engine.schedule import longest_path, schedule
from crossflow.hardware.architecture.system import architecture
from crossflow.parallel.strategy.graphs import graph_mesh
from crossflow.parallel.transform import assign_stages, divided, transform
from crossflow.program.kernels import Pass
from crossflow.program.program import HOST_TIMES, Message, Op, Program
from crossflow.workload.lstm import lstm as cells

STRATEGIES = ["d1", "d8", "p2", "p4", "CR-4", "RC-2-2", "RC-1-4", "RC-4-1-d2", "CR-8-d2-p3", "RC-2-2-d2-p4"]


@st.composite
def programs(draw):
    """Operations of three stages, each after some earlier ones, with durations of ten orders of magnitude and some of nothing."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = int(rng.integers(1, 31))
    tasks = tuple(
        task(
            str(i),
            int(rng.integers(3)),
            ("compute", "network")[rng.integers(2)],
            i,
            tuple(sorted({int(j) for j in rng.integers(0, i, size=rng.integers(4))})) if i else (),
        )
        for i in range(count)
    )
    return tasks, (10.0 ** rng.uniform(-9, 1, count) * (rng.random(count) > 0.1)).tolist()


def task(name, rank, stream, row, after=()):
    """An operation of one kernel, or of one message."""
    own = {"kernels": (row,)} if stream == "compute" else {"message": row}
    return Op(name=name, rank=rank, stream=stream, after=after, **own)


def program_of(tasks):
    """A program in which operation i is kernel i, or message i."""
    rows = range(1 + max(one.message if one.kernels == () else one.kernels[0] for one in tasks))
    return Program(
        name="drawn", dtype="fp16", axes=(("lp", 3),), stages="lp", kernels=tuple(Pass(moved=float(i)) for i in rows),
        messages=tuple(Message(collective="send_recv", size=float(i), axes=("lp",)) for i in rows), ops=tasks, tensors=(),
    )  # fmt: skip


def makespan(tasks, times):
    """Makespan where kernel i and message i take the time i."""
    rows = len(program_of(tasks).kernels)
    return schedule(program_of(tasks)).makespan(np.concatenate([times[:rows], times[:rows], np.zeros((1, times.shape[1]))]))


def stream_edges(tasks):
    """For every operation what it waits for, the one before it in its own stream included."""
    last, edges = {}, []
    for i, one in enumerate(tasks):
        before = {*one.after, *([last[one.rank, one.stream]] if (one.rank, one.stream) in last else [])}
        edges.append(tuple(sorted(before)))
        last[one.rank, one.stream] = i
    return edges


def streams(tasks):
    return [(task.rank, task.stream) for task in tasks]


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=fewer(400, 120))
@given(programs())
def test_longest_path_is_the_event_simulation_to_the_last_digit(program):
    tasks, durations = program
    ends = longest_path(np.array(durations)[:, None], stream_edges(tasks))[:, 0]
    assert ends.tolist() == run_tasks(durations, [task.after for task in tasks], streams(tasks))[1].tolist()


@pytest.mark.slow
@settings(max_examples=fewer(200, 60))
@given(programs())
def test_merged_segments_end_when_their_tasks_do(program):
    tasks, durations = program
    times = np.array(durations)[:, None]
    plain = longest_path(times, stream_edges(tasks)).max()
    assert makespan(tasks, times)[0] == pytest.approx(plain, rel=1e-12)


@given(programs())
def test_segments_hold_every_task_once_and_wait_for_earlier_ones_alone(program):
    tasks, _ = program
    plan = schedule(program_of(tasks))
    assert sorted(i for segment in plan.segments for i in segment.tasks) == list(range(len(tasks)))
    assert all(before < i for i, segment in enumerate(plan.segments) for before in segment.after)
    assert plan.loads.times(np.ones((2 * len(program_of(tasks).kernels) + 1, 1))).sum() == plan.busy.sum() + plan.sent.sum() == len(tasks)


@given(programs(), st.integers(2, 5))
def test_points_do_not_mix(program, n):
    tasks, durations = program
    times = np.array(durations)[:, None] * np.arange(1, n + 1)
    ends = longest_path(times, stream_edges(tasks))
    for i in range(n):
        assert ends[:, i].tolist() == longest_path(times[:, [i]], stream_edges(tasks))[:, 0].tolist()


@given(programs())
def test_no_stream_runs_two_tasks_at_once(program):
    tasks, durations = program
    start, end = run_tasks(durations, [task.after for task in tasks], streams(tasks))
    for stream in set(streams(tasks)):
        mine = [i for i, other in enumerate(streams(tasks)) if other == stream]
        assert all(start[later] >= end[earlier] for earlier, later in itertools.pairwise(mine))


@pytest.mark.cases(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_models_schedule_agrees_with_the_event_simulation(lstm, strategy):
    graph = transform(lstm(strategy).graph().unrolled, graph_mesh(strategy))
    rng = np.random.default_rng(7)
    times = rng.exponential(size=(len(graph.kernels) + len(graph.messages) + 1, 3))
    made = schedule(graph).makespan(times)
    for i in range(3):
        seconds = [sum(times[row, i] for row in rows) for rows in graph.rows]
        ends = run_tasks(seconds, [op.after for op in graph.ops], streams(graph.ops))[1]
        assert made[i] == pytest.approx(ends.max(), rel=1e-12)


SIZED = ["d8", "RC-2-1", "RC-1-4", "CR-4", "p2", "p3", "d4-p4", "p6", "RC-1-4-p2", "CR-4-p2", "CR-2-d2-p3", "RC-1-2-d2-p4", "CR-2-p5"]


@pytest.mark.cases(4)
@pytest.mark.slow
@settings(max_examples=fewer(30, 8), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("strategy", SIZED)
def test_time_steps_that_repeat_are_those_that_are_written_out(strategy, data):
    """Whatever takes how long: makespan, how often everything runs, and what devices hold."""
    mesh, width = graph_mesh(strategy), data.draw(st.sampled_from([None, 32, 64]))
    layers = data.draw(st.integers(max(1, mesh.degree("layers") - 2), 4))  # with embedding and softmax one a stage
    steps, training = data.draw(st.integers(1, 12)), data.draw(st.booleans())
    graph = cells(hidden=64, vocabulary=640, sequence=steps, layers=layers, batch=64, projection=width, training=training)
    made, written = transform(graph, mesh), transform(graph.unrolled, mesh)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    count = len(written.kernels) + len(written.messages) + len(HOST_TIMES)
    times = 10.0 ** rng.uniform(-4, 1, (count, 2)) * (rng.random((count, 1)) > 0.1)
    rows = [written.kernels.index(one) for one in made.kernels]
    rows += [len(written.kernels) + written.messages.index(one) for one in made.messages]
    rows += range(count - len(HOST_TIMES), count)
    ours, theirs = schedule(made), schedule(written)
    assert sum(len(one.tasks) for one in ours.segments) <= 3 * len(made.ops)
    assert ours.makespan(times[rows]) == pytest.approx(theirs.makespan(times), rel=1e-12)
    assert (ours.of_class == theirs.of_class[:, rows]).all()
    assert made.memory == written.memory


def test_steps_of_every_point_are_its_own():
    """Lengths from 4 to 4,000 in one schedule, of which each is that of the length alone."""
    mesh, steps = graph_mesh("RC-1-4-d2-p2"), np.array([4, 5, 7, 100, 101, 4000])
    sizes = {"hidden": 64, "vocabulary": 640, "layers": 2, "batch": 64}
    many = divided(cells(**sizes, sequence=steps), mesh, assign_stages(cells(**sizes, sequence=4), 2))
    times = np.random.default_rng(3).exponential(size=(len(many.kernels) + len(many.messages) + 1, 1))
    alone = [schedule(divided(cells(**sizes, sequence=int(count)), mesh)) for count in steps]
    assert schedule(many).makespan(times) == pytest.approx(np.concatenate([one.makespan(times) for one in alone]), rel=1e-12)
    assert schedule(many).of_class.shape[-1] == 6
    assert (schedule(many).of_class == np.stack([one.of_class for one in alone], axis=-1)).all()


def test_two_reductions_on_one_link_never_overlap():
    """The public code's event loop freed the link early: three reductions of 5 s ended after 5 s instead of 15."""
    compute = [task(f"g{i}", 0, "compute", i) for i in range(3)]
    network = [task(f"r{i}", 0, "network", i, (i,)) for i in range(3)]
    plan = schedule(program_of((*compute, *network)))
    assert plan.makespan(np.array([[0.1]] * 3 + [[5.0]] * 3 + [[0.0]]))[0] == pytest.approx(15.1, rel=1e-12)


def test_data_parallel_case_study_waits_for_all_of_its_reductions(lstm):
    """No gradient is whole before all softmax steps went back; then the link carries them all (deepflow.md 3.3, bug b)."""
    scenario = lstm("d512")
    graph = transform(scenario.graph().unrolled, scenario.strategy)
    device = architecture(scenario.system)
    prices = price(graph, placed(scenario, graph), scenario.system.network, device, 1)
    seconds = {op.name: prices.times[list(rows), 0].sum() for op, rows in zip(graph.ops, graph.rows, strict=True)}
    reductions = sum(time for name, time in seconds.items() if name.endswith("all_reduce"))
    softmax = sum(time for name, time in seconds.items() if name.startswith("softmax.backward"))
    step = schedule(graph).makespan(prices.times)[0]
    assert len([name for name in seconds if name.endswith("all_reduce")]) == 4
    assert step >= softmax + reductions
    assert step <= sum(seconds.values())


def test_a_step_is_never_shorter_than_the_work_of_any_stream(lstm):
    scenario = lstm("RC-2-2-d2-p4")
    graph = transform(scenario.graph(), scenario.strategy)
    plan, rng = schedule(graph), np.random.default_rng(1)
    kernels, messages = rng.random((len(graph.kernels), 5)), rng.random((len(graph.messages), 5))
    busiest = np.concatenate([plan.busy @ kernels, plan.sent @ messages]).max(axis=0)
    assert (plan.makespan(np.concatenate([kernels, messages, np.zeros((1, 5))])) >= busiest * (1 - 1e-12)).all()


def test_a_link_without_bandwidth_makes_the_step_endless():
    tasks = (task("a", 0, "compute", 0), task("b", 0, "network", 1, (0,)))
    assert makespan(tasks, np.array([[1.0], [np.inf]])).tolist() == [np.inf]
