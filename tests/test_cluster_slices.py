"""Clusters that are cut into slices: places by brute force, laws of random lists of jobs, and cases by hand."""

import dataclasses
import itertools

import numpy as np
import pytest
from test_cluster_events import jobs_of

from crossflow.engine.cluster.boxes import SliceMap, cells
from crossflow.engine.cluster.events import scheduled
from crossflow.engine.cluster.record import ClusterRoom, SchedulerPolicy
from crossflow.hardware.mapping.slices import SliceGround

POD = SliceGround(box=(4, 4, 4), wrapped=(True,) * 3, cubes=4, optical=True, kind="torus3d", level="intra", ports=6)
FLAT = SliceGround(box=(8, 8), wrapped=(True, True), cubes=1, optical=False, kind="torus2d", level="inter", ports=4)
MESH = SliceGround(box=(6, 4, 2), wrapped=(False,) * 3, cubes=1, optical=False, kind="mesh3d", level="inter", ports=6)
GROUNDS = {"optical": POD, "torus": FLAT, "mesh": MESH}
SIZES = {"optical": (1, 4, 8, 16, 32, 64, 128, 192), "torus": (1, 2, 4, 6, 12, 16, 32, 64), "mesh": (1, 2, 3, 4, 6, 8, 12, 24, 48)}


def devices_of(ground):
    return ground.cubes * int(np.prod(ground.box))


def drawn(name, seed, n=60):
    """Jobs with slices of some sizes, a few of them as they are written by people rather than most like a cube."""
    ground, rng = GROUNDS[name], np.random.default_rng(seed)
    jobs = jobs_of(n, seed, sizes=SIZES[name], load=1.1, machine=devices_of(ground))
    long = {"optical": {16: (1, 4, 4), 128: (4, 4, 8)}, "torus": {4: (1, 4), 16: (2, 8)}, "mesh": {6: (6, 1, 1), 8: (2, 2, 2)}}[name]
    slices = tuple(long.get(size, ground.shape_of(size)) if rng.random() < 0.5 else ground.shape_of(size) for size in jobs.devices.tolist())
    return ground, dataclasses.replace(jobs, slices=slices)


def run(ground, jobs, kind="fifo", **given):
    room = ClusterRoom(devices=devices_of(ground), idle_power=100.0, ground=ground, **given)
    return scheduled(jobs, room, SchedulerPolicy(kind=kind))


def held(found, moment):
    """How many jobs have each device at a moment."""
    count = np.zeros((found.room.ground.cubes, *found.room.ground.box), dtype=int)
    for job in np.flatnonzero((found.start <= moment) & (moment < found.end)).tolist():
        count[cells(found.room.ground, found.places[job])] += 1
    return count


# ------------------------------------------------------------------------------------------ places


def places_slowly(ground, shape, taken):
    """All places of a slice, by looking at every device of every box, in the order of turns, cubes and corners."""
    if ground.whole(shape):
        free = [cube for cube in range(ground.cubes) if not taken[cube].any()]
        many = int(np.prod(shape) // np.prod(ground.box))
        return [(tuple(free[:many]), (0,) * len(shape), ground.box)] if len(free) >= many else []
    found = []
    for turned in ground.turns(shape):
        for cube, *corner in itertools.product(range(ground.cubes), *map(range, ground.box)):
            over = [
                at + size > side and not (wraps and not ground.optical)
                for at, size, side, wraps in zip(corner, turned, ground.box, ground.wrapped, strict=True)
            ]
            spanned = [at and size == side for at, size, side in zip(corner, turned, ground.box, strict=True)]
            inside = itertools.product(
                *([(at + i) % side for i in range(size)] for at, size, side in zip(corner, turned, ground.box, strict=True))
            )
            if not any(over) and not any(spanned) and not any(taken[(cube, *one)] for one in inside):
                found.append(((cube,), tuple(corner), turned))
    return found


@pytest.mark.parametrize("name", GROUNDS)
def test_the_first_place_is_that_of_a_search_over_all(name):
    ground, rng = GROUNDS[name], np.random.default_rng(0)
    shapes, some = [ground.shape_of(size) for size in SIZES[name]], 0
    for density in (0.0, 0.02, 0.1, 0.4):
        there = SliceMap(ground)
        there.taken = rng.random(there.taken.shape) < density
        for shape in shapes:
            place, every = there.find(shape), places_slowly(ground, shape, there.taken)
            assert (place is None) == (not every)
            if place is not None:
                assert (place.cubes, place.corner, place.shape) == every[0]
                some += 1
            beyond = rng.random(there.taken.shape) < 0.05
            other = SliceMap(ground)
            other.taken = there.taken | beyond
            assert there.find(shape, beyond) == other.find(shape)
    assert some > 10


# ------------------------------------------------------------------------------------------ laws of random lists


@pytest.mark.cases(8)
@pytest.mark.parametrize("kind", ["fifo", "backfill"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", GROUNDS)
def test_every_device_and_link_has_one_job_at_most(name, seed, kind):
    ground, jobs = drawn(name, seed)
    found = run(ground, jobs, kind)
    taken = [len(np.unique(np.ravel_multi_index(cells(ground, place), (ground.cubes, *ground.box)))) for place in found.places]
    assert taken == jobs.devices.tolist()
    for moment in np.unique(found.start):
        count = held(found, moment)
        assert count.max() <= 1  # links lie between devices of one job, so that none is shared
        running = (found.start <= moment) & (moment < found.end)
        assert count.sum() == jobs.devices[running].sum()
        assert (count == 0).sum() + count.sum() == devices_of(ground)
    # The order of arrival, and what is promised, are kept.
    if kind == "fifo":
        assert (np.diff(found.start) >= 0).all()
    promised = np.isfinite(found.promised)
    assert (found.start[promised] <= found.promised[promised] + 1e-6).all()
    assert (found.boxless <= found.waiting + 1e-6).all()
    any_will_do = scheduled(jobs, ClusterRoom(devices=devices_of(ground)), SchedulerPolicy(kind="fifo"))
    if kind == "fifo":
        assert (found.start >= any_will_do.start - 1e-6).all()  # a slice is never free sooner than its devices


@pytest.mark.parametrize("kind", ["fifo", "backfill"])
def test_whole_cubes_wait_as_devices_of_any_place_do(kind):
    """Optical switches join any cubes, so that jobs of whole cubes are never kept waiting by where others are."""
    jobs = jobs_of(200, 3, sizes=(64, 128, 192), load=1.0, machine=256)
    sliced = dataclasses.replace(jobs, slices=tuple(POD.shape_of(size) for size in jobs.devices.tolist()))
    found, plain = run(POD, sliced, kind), scheduled(jobs, ClusterRoom(devices=256, idle_power=100.0), SchedulerPolicy(kind=kind))
    assert found.start.tolist() == plain.start.tolist()
    assert not found.boxless.any()
    assert found.fragmented == 0.0
    assert plain.waiting.sum() > 0


def test_a_slice_waits_where_free_devices_are_apart_by_hand():
    """4x4 devices: two rows of 1x4 for 1 h and 5 h, a third of 2 h; 2x4 then lies beside neither until the first hour is over."""
    ground = SliceGround(box=(4, 4), wrapped=(False, False), cubes=1, optical=False, kind="mesh2d", level="inter", ports=4)
    hours = np.array([1.0, 5.0, 2.0, 1.0, 1.0]) * 3600
    jobs = jobs_of(
        5, arrival=np.array([0.0, 0.0, 0.0, 0.0, 60.0]), devices=np.array([4, 4, 4, 4, 8]), time=hours, expected=hours, power=np.ones(5),
        slices=((1, 4),) * 4 + ((2, 4),),
    )  # fmt: skip
    found = run(ground, jobs)
    assert [place.corner for place in found.places[:4]] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    # Rows 0 and 3 are free from 1 h on, which are apart; rows 2 and 3 from 2 h on.
    assert found.start[4] == 7200.0
    assert found.places[4].corner == (2, 0)
    assert found.boxless.tolist() == [0, 0, 0, 0, 3600.0]
    assert found.fragmented == 8 * 3600.0
    torus = dataclasses.replace(ground, wrapped=(True, True), kind="torus2d")
    assert run(torus, jobs).start[4] == 3600.0  # rows 3 and 0 are neighbours there


def test_backfill_keeps_the_slice_that_it_promised_free_by_hand():
    """4x4 devices: 2x4 for 2 h, then 4x4 waits; 2x2 of 3 h would delay it, and 2x2 of 1 h does not."""
    ground = SliceGround(box=(4, 4), wrapped=(False, False), cubes=1, optical=False, kind="mesh2d", level="inter", ports=4)
    hours = np.array([2.0, 1.0, 3.0, 1.0]) * 3600
    jobs = jobs_of(
        4, arrival=np.zeros(4), devices=np.array([8, 16, 4, 4]), time=hours, expected=hours, power=np.ones(4),
        slices=((2, 4), (4, 4), (2, 2), (2, 2)),
    )  # fmt: skip
    assert run(ground, jobs, "backfill").start.tolist() == [0.0, 7200.0, 10800.0, 0.0]
    # Where the first of the queue wants 2x4 rather than all, what runs longer may lie outside of it.
    less = dataclasses.replace(jobs, devices=np.array([12, 8, 4, 4]), slices=((3, 4), (2, 4), (1, 4), (1, 4)))
    found = run(ground, less, "backfill")
    assert found.start.tolist() == [0.0, 7200.0, 0.0, 7200.0]
    assert [place.corner for place in found.places] == [(0, 0), (0, 0), (3, 0), (2, 0)]


@pytest.mark.parametrize("kind", ["gang", "preemptive"])
def test_schedulers_that_take_devices_away_are_refused(kind):
    ground, jobs = drawn("torus", 0, n=3)
    with pytest.raises(ValueError, match=f"{kind} takes devices away from jobs, and slices stay until their jobs end"):
        scheduled(jobs, ClusterRoom(devices=64, ground=ground), SchedulerPolicy(kind=kind, quantum=1800.0))
