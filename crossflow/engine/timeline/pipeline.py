"""Pipelines of slots: when each ends, as longest paths over all design points.

A slot (`crossflow.parallel.strategy.schedules`) starts when its stage is free and its input has arrived. Slots are sorted once by depth
of dependence; then one pass over the depths, each a single array operation over slots and design points, gives every
finishing time.

A long 1F1B schedule repeats: a slot needs only what is at most one slot back on its own or a neighbouring stage, so that once
a whole slice of the pipeline ends later than the slice some microbatches before it by one time everywhere, all later ones add that
time too. The period is a round of `stages` microbatches or less: stages that wait for each other in a circle have so many in flight,
and a system of maxima and sums repeats after the length of its slowest circle [1]_. Long schedules are walked to that point, longer
and longer ones until it is found, and continued.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat: "Synchronization and Linearity", Wiley 1992, Sec. 3.7.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, distinct
from crossflow.parallel.strategy.schedules import NATURAL, PipelineOrder, ahead, pipeline_order

ROUNDS = 3  # rounds of `stages` microbatches after which the repetition is looked for: warm-up, and two to compare
PLAIN = 45  # slots times points of one depth up to which plain numbers are faster than arrays


@dataclass(frozen=True, eq=False)
class Walk:
    """Slots of an order in a sequence that respects dependence."""

    # before, source: place in the sequence of the slot before each on its stage, and of the one whose result it needs; one past the end
    # where there is none
    before: Index
    source: Index
    kind_row: Index  # kind x rows + row of each, into a table of durations
    crosses: Mask  # whether what it needs comes from another stage, shape (slots,)
    stages: tuple[Index, ...]  # places of the slots of every stage in its order, shape (stages, slots of a stage)
    depths: tuple[slice, ...]  # places by depth: slots of one depth do not wait for each other

    @functools.cached_property
    def plain(self) -> list[tuple[int, int, int]]:
        """The sequence slot by slot, with places from 1; 0 stands for nothing to wait for."""
        before, source = ((part + 1) % (len(self.before) + 1) for part in (self.before, self.source))
        return list(zip(*(part.tolist() for part in (before, source, self.kind_row)), strict=True))

    @functools.cached_property
    def layers(self) -> tuple[tuple[slice, Index, Index, Index], ...]:
        """For each depth its slots, with what each comes after and takes."""
        return tuple((at, self.before[at], self.source[at], self.kind_row[at]) for at in self.depths)


@functools.lru_cache(maxsize=512)
def walk_of(order: PipelineOrder) -> Walk:
    """The slots of an order as a walk."""
    count, lengths = 3 * order.rows * order.microbatches, [len(ids) for ids in order.ids]
    # Two slots beyond all others: `count` stands for nothing to wait for, `never` for the end of a stage's slots.
    never, unknown = count + 1, sum(lengths) + 1
    source, depth = np.append(order.sources, never), np.full(count + 2, unknown)
    depth[count] = -1
    todo = np.full((order.stages, max(lengths) + 1), never)
    for stage, ids in enumerate(order.ids):
        todo[stage, : len(ids)] = ids
    position, waves = np.arange(order.stages) * todo.shape[1], list[Index]()
    left = sum(lengths)
    while left:  # at each depth the next slot of every stage for which what it needs is there
        following = todo.take(position)
        ready = depth.take(source.take(following)) < len(waves)
        slots = following[ready]
        assert slots.size, "the schedule waits for itself"
        depth[slots] = len(waves)
        position += ready
        waves.append(slots)
        left -= slots.size
    made = np.concatenate(waves)
    total, places = len(made), np.full(count + 1, -1)
    places[made], places[count] = np.arange(total), len(made)
    kind_row = made // order.microbatches
    stage_of, needed = kind_row % order.rows % order.stages, order.sources[made]
    stages = tuple(places[ids] for ids in order.ids)
    before = np.full(total, total)
    for mine in stages:
        before[mine[1:]] = mine[:-1]
    crosses = (needed < count) & (needed // order.microbatches % order.rows % order.stages != stage_of)
    ends = np.cumsum([slots.size for slots in waves]).tolist()
    return Walk(
        before=before, source=places[needed], kind_row=kind_row, crosses=crosses, stages=stages,
        depths=tuple(map(slice, [0, *ends[:-1]], ends)),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotPipeline:
    """Pipelines of one shape at n points.

    Attributes
    ----------
    forward, backward : time of a pass through every row, shape (rows, n); None where nothing comes back. [s]
    late : time that what each row receives travels from another stage while no stage is held up, forward and backward, shape
        (2, rows, n); 0 where nothing comes from another stage. [s]
    weight : time of the weight gradients of every row where the schedule has them apart. [s]
    microbatches : one number, or one for every point.
    """

    forward: Array
    backward: Array | None
    late: Array
    weight: Array | None = None
    stages: int
    microbatches: int | Index
    chunks: int = 1
    schedule: str = "1f1b"

    def walk(self, count: int) -> Walk:
        """The slots of so many microbatches."""
        order = pipeline_order(self.schedule, self.stages, self.chunks, count)
        return walk_of(order if self.backward is not None else order.forward_only)

    @property
    def flows(self) -> bool:
        """Whether stages pass microbatches on, and wait for nothing to come back."""
        return self.backward is None and self.chunks == 1 and self.schedule in NATURAL

    @property
    def durations(self) -> Array:
        """Time of slots by kind and row, shape (kinds x rows, n). [s]"""
        return np.concatenate([part for part in (self.forward, self.backward, self.weight) if part is not None])

    @property
    def lags(self) -> Array:
        """Time that what slots need travels, shape (kinds x rows, n): what weight gradients need is on their own stage. [s]"""
        travelling = self.late.reshape(-1, self.forward.shape[1])
        kinds = len([part for part in (self.forward, self.backward, self.weight) if part is not None])
        return np.concatenate([travelling, np.zeros_like(self.forward)])[: kinds * len(self.forward)]


def pipeline_ends(pipelines: Sequence[SlotPipeline]) -> list[Array]:
    """Time at which every stage has finished its last slot, shape (stages, n) of the pipelines of each shape. [s]

    Points with other numbers of microbatches share what a long schedule repeats, and all pipelines are walked together.
    """
    walking = {i: _Walking(one) for i, one in enumerate(pipelines) if not one.flows}
    todo = [part for one in walking.values() for part in one.begin()]
    while todo:
        ends = many_ends([(part.walk, part.durations, part.lags) for part in todo])
        todo = [more for part, found in zip(todo, ends, strict=True) for more in part.of.further(part, found)]
    return [walking[i].all_points if i in walking else _flow_line(one) for i, one in enumerate(pipelines)]


class _WalkedPart(NamedTuple):
    """Points of pipelines that are walked for as many microbatches."""

    of: _Walking
    microbatches: int
    here: Index
    pace: Array  # what each further microbatch adds where that is known, NaN elsewhere, shape (points,). [s]

    @property
    def walk(self) -> Walk:
        """Its slots."""
        return self.of.pipeline.walk(self.microbatches)

    @property
    def durations(self) -> Array:
        """Time of slots, shape (kinds x rows, points). [s]"""
        return at_points(self.of.durations, self.here)

    @property
    def lags(self) -> Array:
        """Time that what slots need travels, shape (kinds x rows, points). [s]"""
        return at_points(self.of.lags, self.here)


class _Walking:
    """Pipelines of one shape while they are walked, of points that differ only in what no slot has one."""

    def __init__(self, pipeline: SlotPipeline) -> None:
        durations, lags = pipeline.durations, pipeline.lags
        many = np.broadcast_to(pipeline.microbatches, pipeline.forward.shape[1:])
        one_each, self.which = distinct(np.concatenate([durations, lags, many[None]]))  # plans may differ in what no slot has
        self.pipeline, self.many = pipeline, many[one_each].astype(int)
        self.durations, self.lags = at_points(durations, one_each), at_points(lags, one_each)
        self.ends = np.zeros((pipeline.stages, len(one_each)))

    @property
    def all_points(self) -> Array:
        """Ends of all stages at all points, shape (stages, n). [s]"""
        return self.ends.take(self.which, axis=1)

    def begin(self) -> list[_WalkedPart]:
        """What is walked at first."""
        stages, many = self.pipeline.stages, self.many
        short = ROUNDS * stages + many % stages
        first = np.where((short + stages < many) & (self.pipeline.schedule == "1f1b"), short, many)
        return self._parts(first, np.arange(len(many)), np.full(len(many), np.nan))

    def further(self, part: _WalkedPart, ends: SlotEnds) -> list[_WalkedPart]:
        """What is to be walked once a part is, with the ends of its slots."""
        one, count, here, pace = self.pipeline, part.microbatches, part.here, part.pace
        further, period = self.many[here] - count, np.ones(len(here), dtype=int)
        if further.any() and np.isnan(pace).any():
            pace, period = _repetition(ends, part.walk, one.stages, one.chunks, kinds=1 if one.backward is None else 2)
        unknown, rest = np.isnan(pace), further % period
        last = np.array([mine[-1] for mine in part.walk.stages])
        self.ends[:, here] = ends(last) + np.where((further == 0) | unknown, 0.0, pace * further)
        if not (unknown.any() or rest.any()):
            return []
        longer = 2 * count - count % one.stages
        following = np.where(unknown, np.where(longer + one.stages < self.many[here], longer, self.many[here]), count + rest)
        left = np.flatnonzero(following != count)
        return self._parts(following[left], here[left], pace[left])

    def _parts(self, lengths: Index, points: Index, pace: Array) -> list[_WalkedPart]:
        """Points by the microbatches that are walked."""
        return [_WalkedPart(self, length, points[lengths == length], pace[lengths == length]) for length in set(lengths.tolist())]


def _flow_line(pipeline: SlotPipeline) -> Array:
    """Ends of stages that pass microbatches on and wait for nothing to come back, shape (stages, n). [s]

    All microbatches take the same: the first goes through all stages, the others follow at the pace of the slowest one so far.
    """
    forward, late = pipeline.forward, pipeline.late[0]
    arrived = np.cumsum(forward, axis=0) + np.cumsum(late, axis=0)
    further = np.asarray(pipeline.microbatches) - 1
    return np.asarray(arrived + further * np.maximum.accumulate(forward, axis=0) if further.any() else arrived)


def _repetition(ends: SlotEnds, walk: Walk, stages: int, chunks: int, kinds: int) -> tuple[Array, Index]:
    """What a microbatch adds from here on, NaN where nothing repeats yet [s], and after how many that repeats, of shape (n,).

    The last pair of a forward and a backward pass on each stage, before it has no more forward passes, is compared with that a period
    before. A slot needs one of the same pair, or of the pair before, on its own or a neighbouring stage: all later slots come after this
    slice through all stages. Where chunks are interleaved, results come from `stages` pairs before, and so many are compared. With one of
    the `kinds` of slots alone, the last forward passes are, of the last chunk, through which a round ends on every stage.
    """
    slots, *before = _slices(walk, stages, chunks, kinds)
    last = ends(slots)
    pace, period = np.full(last.shape[1], np.nan), np.ones(last.shape[1], dtype=int)
    few = slice(None, None, stages if chunks > 1 else 1)  # slots that tell most periods from one that repeats
    with np.errstate(invalid="ignore"):  # a stage that never ends repeats nothing
        for shorter, earlier in enumerate(before):
            here = np.flatnonzero(np.isnan(pace) & ~np.isnan(_added(last[few] - ends(earlier[few]))))
            if not here.size:
                continue
            pace[here] = _added(at_points(last - ends(earlier), here)) / (stages - shorter)
            period[here] = stages - shorter
            if not np.isnan(pace).any():
                break
    return pace, np.where(np.isnan(pace), 1, period)


def _added(later: Array) -> Array:
    """What slots end later by, shape (n,), NaN where they do not end later by one time everywhere. [s]"""
    most = later.max(axis=0)
    return np.where(most - later.min(axis=0) <= 1e-9 * most, most, np.nan)


@functools.lru_cache(maxsize=512)
def _slices(walk: Walk, stages: int, chunks: int, kinds: int) -> tuple[Index, ...]:
    """The slots that `_repetition` compares, and those of each period before: a round of microbatches, and less where nothing is
    interleaved.
    """
    found, total = np.stack(walk.stages), len(walk.stages[0])
    stop = np.array([total - (ahead(stages, chunks, stage) if kinds > 1 else 0) for stage in range(stages)])
    window = stop[:, None] - np.arange(1, kinds * (stages if chunks > 1 else 1) + 1)
    backs = [kinds * stages * chunks] if chunks > 1 else range(kinds * stages, 0, -kinds)
    return tuple(np.take_along_axis(found, window - back, axis=1).ravel() for back in (0, *backs))


SlotEnds = Callable[[Index], Array]  # finishing time of slots of a walk, by their places, shape (places, n). [s]


def many_ends(walks: Sequence[tuple[Walk, Array, Array]]) -> list[SlotEnds]:
    """Ends of the slots of walks with their durations and lags, as of `slot_ends`; those of about as many points are walked together."""
    found, widths = dict[int, SlotEnds](), dict[int, list[int]]()
    for i, (_, durations, _) in enumerate(walks):
        widths.setdefault(_width(durations.shape[1]), []).append(i)
    for width, members in widths.items():
        mine = [walks[i] for i in members]
        together = walks_together(tuple(walk for walk, _, _ in mine), tuple(len(own) for _, own, _ in mine))
        ends = slot_ends(together.walk, *(_widened(parts, width) for parts in ([own for _, own, _ in mine], [lags for *_, lags in mine])))
        for i, places, (_, own, _) in zip(members, together.places, mine, strict=True):
            found[i] = functools.partial(_ends_at, ends, places, own.shape[1])
    return [found[i] for i in range(len(walks))]


def _widened(tables: Sequence[Array], width: int) -> Array:
    """Tables one after the other, each with its last point again up to a width."""
    return np.concatenate([table.take(np.arange(width), axis=1, mode="clip") for table in tables])


def _ends_at(ends: Array, places: Index, points: int, slots: Index) -> Array:
    return ends.take(places.take(slots), axis=0)[:, :points]


def _width(points: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, ... that so many points fit into."""
    power = 1 << (points - 1).bit_length()
    return power * 3 // 4 if power >= 4 and points <= power * 3 // 4 else power


class WalksTogether(NamedTuple):
    """Several walks as one, depth by depth; slots of each come in its order."""

    walk: Walk
    places: tuple[Index, ...]  # place of the slots of each in it, and of what stands for nothing to wait for


@functools.lru_cache(maxsize=64)
def walks_together(walks: tuple[Walk, ...], durations: tuple[int, ...]) -> WalksTogether:
    """Walks as one, from so many durations of each, which follow each other in its table."""
    if len(walks) == 1:
        return WalksTogether(walks[0], (np.arange(len(walks[0].before) + 1),))
    sizes = [[at.stop - at.start for at in walk.depths] for walk in walks]
    depth = np.concatenate([np.repeat(np.arange(len(each)), each) for each in sizes])
    order = np.argsort(depth, kind="stable")
    total, at, begins = len(order), np.empty_like(order), np.cumsum([0, *(len(walk.before) for walk in walks)])
    at[order] = np.arange(total)
    places = tuple(np.append(at[begin:end], total) for begin, end in itertools.pairwise(begins.tolist()))
    firsts = np.cumsum([0, *durations[:-1]]).tolist()

    def of_all(parts: Iterable[Index]) -> Index:
        return np.concatenate([*parts])[order]

    ends = np.cumsum(np.bincount(depth)).tolist()
    return WalksTogether(
        Walk(
            before=of_all(mine[walk.before] for mine, walk in zip(places, walks, strict=True)),
            source=of_all(mine[walk.source] for mine, walk in zip(places, walks, strict=True)),
            kind_row=of_all(first + walk.kind_row for first, walk in zip(firsts, walks, strict=True)),
            crosses=np.concatenate([walk.crosses for walk in walks])[order],
            stages=tuple(mine[slots] for mine, walk in zip(places, walks, strict=True) for slots in walk.stages),
            depths=tuple(map(slice, [0, *ends[:-1]], ends)),
        ),
        places,
    )  # fmt: skip


def slot_ends(walk: Walk, durations: Array, lags: Array) -> Array:
    """Finishing time of every slot, and a row of zeros, shape (slots + 1, n). [s]

    durations, lags : time that slots take, and that what they need travels from another stage, by kind and row, shape
        (kinds x rows, n). [s]
    """
    n, total = durations.shape[1], len(walk.before)
    if total * n <= PLAIN * len(walk.depths):
        return np.stack([_walked(walk, durations[:, i].tolist(), lags[:, i].tolist()) for i in range(n)], axis=1)
    ends = np.empty((total + 1, n))
    durations.take(walk.kind_row, axis=0, out=ends[:-1], mode="clip")
    ends[-1] = 0.0
    late = bool(lags.any())
    for slots, before, source, row in walk.layers:
        arrived = ends.take(source, axis=0)
        if late:
            arrived += lags.take(row, axis=0)
        ends[slots] += np.maximum(arrived, ends.take(before, axis=0), out=arrived)
    return ends


def uneven_times(walk: Walk, durations: Array, lags: Array) -> tuple[Array, Array]:
    """Start and end of every slot where each takes a time of its own, and each result travels for one, all of shape (slots, n). [s]"""
    lags = np.where(walk.crosses[:, None], lags, 0.0)
    starts, ends = np.zeros(durations.shape), np.zeros((len(walk.before) + 1, durations.shape[1]))
    for slots, before, source, _ in walk.layers:
        arrived = ends.take(source, axis=0) + lags[slots]
        np.maximum(arrived, ends.take(before, axis=0), out=starts[slots])
        np.add(starts[slots], durations[slots], out=ends[slots])
    return starts, ends[:-1]


def _walked(walk: Walk, durations: list[float], lags: list[float]) -> Array:
    """The same for one point, slot by slot in plain numbers."""
    ends = [0.0]
    add = ends.append
    if not any(lags):
        for before, source, row in walk.plain:
            free, arrived = ends[before], ends[source]
            add((free if free > arrived else arrived) + durations[row])
        return np.array([*ends[1:], 0.0])
    for before, source, row in walk.plain:
        free, arrived = ends[before], ends[source] + lags[row]
        add((free if free > arrived else arrived) + durations[row])
    add(0.0)
    return np.array(ends)[1:]
