"""Pipelines: published closed forms, the event engine on the same slots, what is continued against what is walked."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from lags import by_slot, pipeline_ends, travelling
from sampled import fewer

from crossflow.engine.events import run_tasks
from crossflow.engine.timeline import pipeline
from crossflow.engine.timeline.pipeline import SlotPipeline
from crossflow.parallel.strategy.schedules import pipeline_order

SHAPES = [(1, 1, 4), (2, 1, 2), (4, 1, 2), (4, 1, 8), (3, 1, 7), (8, 1, 16), (2, 2, 4), (4, 2, 8), (3, 4, 6), (4, 3, 4)]


def order(schedule, stages, chunks, microbatches, stage):
    """Slots of a stage as (letter, chunk of the stage, microbatch)."""
    made = pipeline_order(schedule, stages, chunks, microbatches)
    return [("FBW"[kind], row // stages, batch) for kind, row, batch in made.slots[stage].tolist()]


def slots(schedule, stages, chunks, microbatches):
    return [(stage, slot) for stage in range(stages) for slot in order(schedule, stages, chunks, microbatches, stage)]


def ends_of(forward, backward, transfer=0.0, **shape):
    """One point, from numbers a chunk, and of a boundary or of all; the times at which stages end."""
    f, b, late = (np.broadcast_to(np.array(times, dtype=float), len(forward))[:, None] for times in (forward, backward, transfer))
    shape = {"chunks": len(forward) // shape["stages"], "schedule": "1f1b", **shape}
    return pipeline_ends(f, b, travelling(made(**shape), late), **shape)[:, 0]


def made(stages, microbatches, chunks=1, schedule="1f1b"):
    return pipeline_order(schedule, stages, chunks, microbatches)


def by_events(forward, backward, transfer, stages, microbatches, schedule):
    """The same by the event engine: slots are tasks of their stages, transfers tasks of a resource each."""
    chunks, transfer = len(forward) // stages, np.broadcast_to(transfer, len(forward)).tolist()
    names = [(kind, chunk * stages + stage, batch) for stage, (kind, chunk, batch) in slots(schedule, stages, chunks, microbatches)]
    task = {name: i for i, name in enumerate(names)}
    durations = [(forward if kind == "F" else backward)[virtual] for kind, virtual, _ in names]
    resources, after = [virtual % stages for _, virtual, _ in names], []
    for kind, virtual, batch in names:
        if kind == "F":
            source = ("F", virtual - 1, batch) if virtual else None
        else:
            source = ("B", virtual + 1, batch) if virtual < len(forward) - 1 else ("F", virtual, batch)
        if source is None or source[1] == virtual or stages == 1:
            after.append(() if source is None else (task[source],))
            continue
        durations.append(transfer[max(virtual, source[1])])
        resources.append(("wire", len(durations)))
        after.append((len(durations) - 1,))
    moving = [(kind, virtual, batch) for kind, virtual, batch in names if virtual != (0 if kind == "F" else len(forward) - 1)]
    waits = [(task["F", v - 1, b] if kind == "F" else task["B", v + 1, b],) for kind, v, b in moving] if stages > 1 else []
    _, end = run_tasks(durations, [*after, *waits], resources)
    return np.array([max(end[i] for i, (_, v, _) in enumerate(names) if v % stages == stage) for stage in range(stages)])


@st.composite
def pipelines(draw, longest=60):
    """Stages, chunks, microbatches; durations alike, nearly alike, whole numbers, or anything; transfers alike, none, or each another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages, chunks = int(rng.integers(1, 7)), int(rng.choice([1, 1, 2, 3]))
    microbatches = int(rng.integers(1, max(longest // stages, 2))) * stages if chunks > 1 else int(rng.integers(1, longest))
    kind, count = rng.integers(5), stages * chunks
    f, b = np.ones(count), np.full(count, 2.0)
    if kind == 1:
        f, b = f + 1e-3 * rng.random(count), b + 1e-3 * rng.random(count)
    elif kind == 2:
        f, b = rng.integers(1, 4, count).astype(float), rng.integers(1, 6, count).astype(float)
    elif kind == 3:
        f, b = rng.uniform(0.1, 3, count), rng.uniform(0.1, 3, count)
    elif kind == 4:
        f[[0, -1]] += rng.random(2) * rng.choice([1e-6, 1e-3, 1.0])
    transfer = rng.choice([0.0, 1e-3, 0.1, 2.0]) * (rng.random(count) if rng.random() < 0.5 else rng.random())
    return f, b, transfer, {"stages": stages, "microbatches": microbatches}


# -------------------------------------------------------------------------------------------- orders


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_every_stage_runs_every_slot_once_and_forward_first(schedule, shape):
    stages, chunks, microbatches = shape
    everything = Counter((kind, chunk, batch) for kind in "FB" for chunk in range(chunks) for batch in range(microbatches))
    for stage in range(stages):
        mine = order(schedule, stages, chunks, microbatches, stage)
        assert Counter(mine) == everything
        place = {slot: i for i, slot in enumerate(mine)}
        assert all(place["F", chunk, batch] < place["B", chunk, batch] for _, chunk, batch in mine)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] == 1], ids=str)
def test_in_flight_never_above_the_stages_that_follow(shape):
    """1F1B keeps at most `stages - stage` microbatches (Narayanan 2021, Sec. 2.2); GPipe keeps them all."""
    stages, _, microbatches = shape
    for stage in range(stages):
        kept = {
            schedule: np.cumsum([1 if kind == "F" else -1 for kind, _, _ in order(schedule, stages, 1, microbatches, stage)]).max()
            for schedule in ("1f1b", "gpipe")
        }
        assert kept == {"1f1b": min(stages - stage, microbatches), "gpipe": microbatches}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] > 1], ids=str)
def test_interleaved_stages_keep_what_megatron_keeps(shape):
    """Passes before the first backward pass: 2 (p - s - 1) + (v - 1) p and one more, as in Megatron-LM's schedules.py."""
    stages, chunks, microbatches = shape
    for stage in range(stages):
        kept = np.cumsum([1 if kind == "F" else -1 for kind, _, _ in order("1f1b", stages, chunks, microbatches, stage)]).max()
        assert kept == min(2 * (stages - stage - 1) + (chunks - 1) * stages + 1, chunks * microbatches)


# -------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (4, 7), (4, 64), (8, 16), (16, 200), (3, 1), (1, 5)])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_bubble_is_p_less_one_over_m(schedule, p, m):
    """Narayanan 2021, Sec. 2.2.1; GPipe, Sec. 2.3."""
    total = ends_of([1.0] * p, [2.0] * p, stages=p, microbatches=m, schedule=schedule).max()
    assert total / (3.0 * m) - 1.0 == pytest.approx((p - 1) / m, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 8), (4, 3, 64), (8, 4, 16), (2, 6, 10)])
def test_the_interleaved_bubble_is_smaller_by_the_chunks(p, v, m):
    """Narayanan 2021, Sec. 2.2.2: (p - 1) / (v m)."""
    total = ends_of([1.0 / v] * p * v, [2.0 / v] * p * v, stages=p, microbatches=m).max()
    assert total / (3.0 * m) - 1.0 == pytest.approx((p - 1) / (v * m), rel=1e-12)


@pytest.mark.slow
@given(pipelines(longest=20))
def test_no_stage_ends_before_its_work_is_done(case):
    f, b, transfer, shape = case
    work = (f + b).reshape(-1, shape["stages"]).sum(axis=0) * shape["microbatches"]
    for schedule in ("1f1b", "gpipe"):
        assert (ends_of(f, b, transfer, schedule=schedule, **shape) >= work * (1 - 1e-12)).all()


# -------------------------------------------------------------------------------------------- other ways to the same


@pytest.mark.slow
@settings(max_examples=fewer(150, 60))
@given(pipelines(longest=16), st.sampled_from(["1f1b", "gpipe"]))
def test_ends_are_those_of_the_event_engine(case, schedule):
    f, b, transfer, shape = case
    found = ends_of(f, b, transfer, schedule=schedule, **shape)
    np.testing.assert_allclose(found, by_events(f.tolist(), b.tolist(), transfer, **shape, schedule=schedule), rtol=2e-9)


def walked(f, b, transfer, stages, microbatches):
    """Every slot walked."""
    order, durations = pipeline_order("1f1b", stages, len(f) // stages, microbatches), np.concatenate([f, b])[:, None]
    walk = pipeline.walk_of(order)
    ends = pipeline.slot_ends(walk, durations, by_slot(order, np.broadcast_to(transfer, len(f))[:, None], durations))
    return ends[[mine[-1] for mine in walk.stages], 0]


@pytest.mark.slow
@settings(max_examples=fewer(400, 120))
@given(pipelines(longest=120))
def test_long_schedules_end_as_if_every_slot_was_walked(case):
    f, b, transfer, shape = case
    np.testing.assert_allclose(ends_of(f, b, transfer, **shape), walked(f, b, transfer, **shape), rtol=2e-9)


LATE = [  # stages' forward and backward passes, transfer, microbatches: one round adds what the slowest circuit takes, the next one more
    (
        [1.0009005, 1.00055862, 1.00002105, 1.00084253, 1.00060351],
        [2.00026663, 2.00023211, 2.00028929, 2.00031592, 2.00005164],
        (0.15121756, 37),
    ),
    ([1, 1, 1, 1.7308946, 1], [2.21110493, 2, 2, 2, 2], (1.79563913, 42)),
    (
        [1.0007101, 1.00079376, 1.00016875, 1.000924, 1.00012428],
        [2.0008429, 2.00068038, 2.00041354, 2.00064771, 2.00093543],
        (0.49107897, 52),
    ),
]


@pytest.mark.parametrize("case", LATE, ids=["near-uniform", "one slow stage", "other transfer"])
def test_a_repetition_that_begins_late_is_not_missed(case):
    f, b = np.array(case[0], dtype=float), np.array(case[1], dtype=float)
    (transfer, microbatches), stages = case[2], len(f)
    np.testing.assert_allclose(
        ends_of(f, b, transfer, stages=stages, microbatches=microbatches), walked(f, b, transfer, stages, microbatches), rtol=1e-9
    )


def test_long_schedules_are_not_walked_whole():
    """And each microbatch takes what the circuit through all stages takes for as many: (4 x 3 s + 6 transfers) / 4."""
    pipeline.walk_of.cache_clear()
    ends = ends_of([1.0] * 4, [2.0] * 4, 0.25, stages=4, microbatches=100_000)
    assert pipeline.walk_of.cache_info().misses == 1
    assert ends.max() == pytest.approx(1e5 * (4 * 3.0 + 6 * 0.25) / 4, rel=1e-3)


def test_a_period_may_be_shorter_than_a_round():
    """Slow stages wait for each other in a circle of other than eight microbatches, which a round of eight does not show."""
    f, pipeline_of = np.array([1.0, 1, 1, 3, 3, 3, 1, 1]), {"stages": 8, "microbatches": 1003}
    expected = walked(f, 2 * f, 0.25, **pipeline_of)
    pipeline.walk_of.cache_clear()
    np.testing.assert_allclose(ends_of(f, 2 * f, 0.25, **pipeline_of), expected, rtol=1e-9)
    assert pipeline.walk_of.cache_info().misses <= 2


@pytest.mark.slow
@settings(max_examples=60)
@given(pipelines(), st.lists(st.integers(1, 40), min_size=2, max_size=6))
def test_points_with_other_numbers_of_microbatches_are_as_one_by_one(case, many):
    f, b, transfer, shape = case
    counts = np.array(many) * (shape["stages"] if len(f) > shape["stages"] else 1)
    shape = {**shape, "chunks": len(f) // shape["stages"], "schedule": "1f1b"}
    late = travelling(made(**shape), np.broadcast_to(transfer, len(f))[:, None])
    times = (np.repeat(one, len(many), axis=-1) for one in (f[:, None], b[:, None], late))
    together = pipeline_ends(*times, **{**shape, "microbatches": counts})
    for i, count in enumerate(counts.tolist()):
        np.testing.assert_allclose(together[:, i], ends_of(f, b, transfer, **{**shape, "microbatches": count}), rtol=2e-9)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] > 1], ids=str)
@pytest.mark.parametrize("transfer", [0.0, 0.3])
def test_arrays_and_plain_numbers_agree(shape, transfer, monkeypatch):
    stages, chunks, microbatches = shape
    rng = np.random.default_rng(3)
    f, b = rng.uniform(0.1, 2.0, (2, stages * chunks, 5))
    given = {"stages": stages, "chunks": chunks, "microbatches": microbatches, "schedule": "1f1b"}
    late = travelling(made(**given), transfer * rng.random((len(f), 5)))
    plain = pipeline_ends(f, b, late, **given)
    monkeypatch.setattr(pipeline, "PLAIN", 0)
    np.testing.assert_array_equal(pipeline_ends(f, b, late, **given), plain)


@settings(max_examples=30)
@given(pipelines(), st.integers(2, 5))
def test_points_do_not_mix(case, n):
    f, b, transfer, shape = case
    rng = np.random.default_rng(n)
    stretch, apart = rng.uniform(0.5, 2.0, (2, len(f), n))
    shape = {**shape, "chunks": len(f) // shape["stages"]}
    late = travelling(made(**shape), np.broadcast_to(transfer, len(f))[:, None] * apart)
    many = pipeline_ends(f[:, None] * stretch, b[:, None] * stretch, late, **shape)
    for i in range(n):
        np.testing.assert_allclose(many[:, i], ends_of(f * stretch[:, i], b * stretch[:, i], transfer * apart[:, i], **shape), rtol=2e-9)


@pytest.mark.parametrize("points", [1, 2000])
@pytest.mark.parametrize(("time", "transfer"), [(np.inf, 0.0), (1.0, np.inf)])
def test_without_bandwidth_a_pipeline_never_ends(points, time, transfer):
    late = travelling(made(stages=4, microbatches=32), np.full(points, transfer))
    found = pipeline_ends(np.full((4, points), time), np.ones((4, points)), late, stages=4, microbatches=32)
    assert np.isposinf(found).all()


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("1f1b", 2)])
def test_a_service_waits_for_nothing_to_come_back(schedule, chunks):
    """Only forward passes: one after the other once the first has arrived, however long transfers take."""
    p, m, time, transfer = 4, 24, 1.0, 0.7
    late = travelling(made(p, m, chunks, schedule), np.array([transfer]))
    ends = pipeline_ends(np.full((p * chunks, 1), time), None, late, stages=p, microbatches=m, chunks=chunks, schedule=schedule)
    first = np.arange(p) * (time + transfer)
    if chunks == 1:
        np.testing.assert_allclose(ends[:, 0], first + m * time)
    else:  # a round of the first chunk is shorter than the way to the second
        back = pipeline_ends(np.full((p * chunks, 1), time), np.zeros((p * chunks, 1)), late, stages=p, microbatches=m, chunks=chunks)
        assert (ends < back).all()


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-h1", 2), ("1f1b", 2), ("1f1b", 3)])
@pytest.mark.parametrize("microbatches", [4, 36, 400])
def test_long_services_are_walked_ones(schedule, chunks, microbatches):
    """Closed form and repetition, of uneven stages and boundaries and one that takes no time, are the walk through every slot."""
    p, n = 4, 5
    rng = np.random.default_rng(chunks)
    forward, transfer = rng.uniform(0.0, 2.0, (p * chunks, n)), rng.uniform(0.0, 1.0, (p * chunks, n))
    forward[:, 1], forward[2, 2], transfer[:, 0] = 1.0, 0.0, 0.0
    order = pipeline_order("gpipe", p, chunks, microbatches).forward_only
    found = pipeline_ends(forward, None, travelling(order, transfer), stages=p, microbatches=microbatches, chunks=chunks, schedule=schedule)
    walk = pipeline.walk_of(order)
    ends = pipeline.slot_ends(walk, forward, by_slot(order, transfer, forward))
    np.testing.assert_allclose(found, ends[[slots[-1] for slots in walk.stages]], rtol=1e-9)


def test_pipelines_are_walked_together_as_alone():
    """Of any shapes, schedules and numbers of points, those that wait for nothing to come back among them: to the last digit."""
    rng, drawn = np.random.default_rng(5), list[SlotPipeline]()
    for stages, chunks, microbatches in SHAPES * 3:
        n, rows = int(rng.integers(1, 40)), stages * chunks
        schedule = "1f1b" if chunks > 1 else str(rng.choice(["1f1b", "gpipe", "zb-h1"]))
        times, late = rng.uniform(0.1, 2.0, (3, rows, n)), rng.uniform(0.0, 0.5, (2, rows, n)) * rng.integers(0, 2)
        weight = times[2] if schedule == "zb-h1" else None
        backward = times[1] if weight is not None or rng.random() < 0.8 else None
        many = microbatches * int(rng.integers(1, 20)) if schedule == "1f1b" else microbatches
        shape = {"stages": stages, "microbatches": many, "chunks": chunks, "schedule": schedule}
        drawn.append(SlotPipeline(forward=times[0], backward=backward, late=late, weight=weight, **shape))
    together = pipeline.pipeline_ends(drawn)
    for one, ends in zip(drawn, together, strict=True):
        np.testing.assert_array_equal(ends, pipeline.pipeline_ends([one])[0])


@pytest.mark.parametrize("points", range(1, 200))
def test_walks_of_about_as_many_points_have_one_width(points):
    width = pipeline._width(points)
    assert points <= width <= max(points, 1.5 * points - 0.5)


def test_points_alike_are_walked_once(monkeypatch):
    """Columns that are equal share a walk, and each still has its own ends."""
    draw, walked = np.random.default_rng(7), []
    f, b, late = draw.random((4, 3)), draw.random((4, 3)), 0.1 * draw.random((2, 4, 3))
    many, which = np.array([6, 40, 6]), np.array([0, 1, 0, 2, 2, 1, 0])
    alone = [pipeline_ends(f[:, [i]], b[:, [i]], late[..., [i]], stages=4, microbatches=many[[i]])[:, 0] for i in which]
    slots = pipeline.slot_ends
    monkeypatch.setattr(pipeline, "slot_ends", lambda walk, times, lags: walked.append(times.shape[1]) or slots(walk, times, lags))
    found = pipeline_ends(f[:, which], b[:, which], late[..., which], stages=4, microbatches=many[which])
    np.testing.assert_allclose(found.T, alone, rtol=1e-14)
    assert max(walked) <= 3
