"""Layers of the stages of plans on devices of several kinds: by speed first, then by the step itself.

By speed (`crossflow.parallel.strategy.balance`) the slowest stage takes as little time as whole layers allow. The bubble, and reductions of
gradients that follow the pipeline, want something else: while a pipeline fills, all stages count, so that with few microbatches the faster
devices should have more; and the first stage ends last, so that it should have less to reduce. Divisions about the one by speed are timed,
all in one batch, and layers are then moved one by one as long as the step gets shorter. No division that is found is slower than the one
by speed; a faster one may be left where only several moves together would help.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, alike, distinct, numbered, wide
from crossflow.base.results import later
from crossflow.engine.runs.memory import held_by_stages
from crossflow.parallel.blocks import units
from crossflow.parallel.shapes import Shape
from crossflow.parallel.shapes import alike as pipelines
from crossflow.parallel.strategy.balance import StageLoads, balanced_by_time
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.schedules import NATURAL
from crossflow.parallel.strategy.stages import Division
from crossflow.workload.job import Job
from crossflow.workload.stacked import chosen

if TYPE_CHECKING:
    from crossflow.engine.runs.unit_sums import UnitSums
    from crossflow.engine.runs.unlike_prices import DeviceKind, PlanPrices
else:
    UnitSums = later("crossflow.engine.runs.unit_sums", "UnitSums")
    DeviceKind, PlanPrices = later("crossflow.engine.runs.unlike_prices", "DeviceKind", "PlanPrices")

ROUNDS = 24  # in which stages are relieved of layers that their devices have no memory for
WEIGHTS = (0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0)  # times as slow as it is, a kind of devices is taken for
MOVES = 16  # rounds in which a layer is moved
BETTER = 1e-9  # part by which a step has to be shorter


def free_plans(layout: Layout) -> Mask:
    """Plans that say nothing of how layers are divided over stages."""
    told = [layout.divisions[which] for which in layout.division]
    return np.array([not (one.listed or one.first or one.last) for one in told])


def with_divisions(layout: Layout, divisions: Sequence[Division]) -> Layout:
    """Plans with other divisions, one each."""
    different, which = numbered(divisions)
    return replace(layout, divisions=different, division=which)


def stage_capacities(layout: Layout, kinds: Sequence[DeviceKind]) -> Array:
    """Memory of a device of every stage, shape (stages, n), infinite where a pipeline has fewer stages. [B]"""
    known = np.stack([kind.capacity(len(layout)) for kind in kinds])
    found = np.full((int(layout.pp.max()), len(layout)), np.inf)
    for i, which in enumerate(layout.division):
        on = layout.divisions[which].kinds
        found[: len(on), i] = known[list(on), i]
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenPlans:
    """Plans of which those that are `free` are given layers."""

    job: Job
    layout: Layout
    free: Mask
    prices: PlanPrices
    time: Callable[[PlanPrices, Job, Layout, Shape], Array]  # of the steps of plans whose pipelines have one shape, shape (n,). [s]
    capacities: Array  # memory of a device of every stage, shape (stages, n). [B]

    @functools.cached_property
    def chunks(self) -> Index:
        """Chunks of all stages, shape (n,). [1]"""
        return np.asarray((self.layout.pp * self.layout.chunks).astype(np.intp))

    @functools.cached_property
    def units(self) -> Array:
        """Time of one microbatch in every unit, forward and backward, on each kind of devices, shape (kinds, units, n). [s]"""
        return np.array([wide(_unit_times(one), len(self.layout)) for one in self.prices.sums])

    @functools.cached_property
    def groups(self) -> Array:
        """Layers of every group of the model, shape (groups, n). [1]"""
        return np.stack([wide(np.atleast_1d(layer.count), len(self.layout)) for layer in self.job.model.layers]).astype(float)

    @functools.cached_property
    def alike(self) -> list[Index]:
        """Free plans that share the kinds of their stages, and the numbers of their chunks and layers."""
        table = np.concatenate([np.stack([self.free, self.layout.chunks, self.layout.division]), self.groups])
        return [at for column, at in alike(table) if column[0]]

    @functools.cached_property
    def pipelines(self) -> list[Shape]:
        """Shapes of the pipelines of plans whose layers are not divided yet."""
        return pipelines(self.layout, together=NATURAL)

    def divided(self) -> Layout:
        """The plans with the layers of every stage."""
        sizes, most = self._by_speed()
        return self._listed(self._by_step(sizes, most), np.arange(len(self.layout)))

    # ------------------------------------------------------------------------------------------------ by speed

    def _by_speed(self) -> tuple[Index, Index]:
        """Layers of every chunk by speed, as far as devices have memory for them, and layers that each has room for, shape (chunks, n)."""
        depth = self.groups[[not layer.predicts for layer in self.job.model.layers]].sum(axis=0)
        most = np.tile(depth.astype(np.intp), (int(self.chunks.max()), 1))
        found, left = self._balanced(most, np.arange(len(self.layout))), np.flatnonzero(self.free)
        for _ in range(ROUNDS):
            less = _relieved(self.layout.at(left), self._over(found[:, left], left), found[:, left], most[:, left])
            changed = (less != most[:, left]).any(axis=0)
            most[:, left] = less
            if not changed.any():
                break
            left = left[changed]
            found[:, left] = self._balanced(most, left, found)[:, left]
        return found, most

    def _over(self, sizes: Index, points: Index) -> tuple[Array, Array]:
        """What a device of every stage holds of some points with such layers, and what it lacks, shape (stages, points). [B]"""
        held = held_by_stages(chosen(self.job, points), self._listed(sizes, points), self.prices.kinds[0].machine.stack)
        return held, held - self.capacities[: len(held), points]

    def _listed(self, sizes: Index, points: Index) -> Layout:
        """Some of the plans, each as often as it is among the points, with so many layers on every chunk of those that are free."""
        told = [self.layout.divisions[which] for which in self.layout.division[points]]
        for i in np.flatnonzero(self.free[points]).tolist():
            told[i] = told[i]._replace(listed=tuple(sizes[: self.chunks[points[i]], i].tolist()))
        return with_divisions(self.layout.at(points), told)

    def _balanced(self, most: Index, points: Index, found: Index | None = None) -> Index:
        """Layers of every chunk of some points; those that were `found` stay where there is no room for all layers."""
        sizes, asked = np.zeros_like(most), np.zeros(len(self.layout), dtype=bool)
        asked[points] = True
        for together in self.alike:
            at = together[asked[together]]
            if not len(at):
                continue
            mine, roomy = balanced_by_time(self._loads(at, most))
            sizes[: len(mine), at] = mine if found is None else np.where(roomy, mine, found[: len(mine), at])
        return sizes

    def _loads(self, at: Index, most: Index, slower: Array | float = 1.0) -> StageLoads:
        """What layers take of plans that are alike, on kinds of devices that are taken for so many times as slow, shape (kinds, 1, at)."""
        order, each = self._order(at[0]), self.units[..., at] * slower
        names, model = [name for name, _ in units(self.job.model)], self.job.model
        of_kind = [each[:, [name.startswith(f"{i}.") for name in names]].sum(axis=1) for i in range(len(model.kinds))]
        layers, last = list[Array](), each[order[-1], -1]
        for layer, kind, count in zip(model.layers, model.kind_of, self.groups[:, at[0]].astype(int).tolist(), strict=True):
            if layer.predicts:
                last = last + of_kind[kind][order[-1]] * count
            else:
                layers += [of_kind[kind]] * count
        return StageLoads(layers=np.stack(layers, axis=1), first=each[order[0], 0], last=last, on=order, most=most[: len(order), at])

    def _order(self, point: int) -> tuple[int, ...]:
        """Kind of devices of every chunk of a plan, in the order of the model."""
        kinds: tuple[int, ...] = self.layout.divisions[self.layout.division[point]].kinds
        return kinds * int(self.layout.chunks[point])

    # ------------------------------------------------------------------------------------------------ by the step

    def _by_step(self, sizes: Index, most: Index) -> Index:
        """Layers of every chunk with which steps are shorter than by speed, where any are found, shape (chunks, n)."""
        points, best, merit = np.flatnonzero(self.free), sizes.copy(), np.full(len(self.layout), np.inf)
        self._better([(sizes[:, points], points), *(self._about(at, most) for at in self.alike)], best, merit)
        for _ in range(MOVES):
            points = self._better([one for at in self.alike for one in self._moves(np.intersect1d(at, points), best, most)], best, merit)
            if not len(points):
                break
        return best

    def _about(self, at: Index, most: Index) -> tuple[Index, Index]:
        """Layers of plans that are alike with one kind of devices taken for faster or slower than it is; and of which plans they are."""
        kinds = np.arange(len(self.prices.kinds))
        slower = [np.where(kinds == kind, weight, 1.0) for kind, weight in itertools.product(kinds[1:], WEIGHTS)]
        points, each = np.tile(at, len(slower)), np.repeat(np.stack(slower, axis=1), len(at), axis=1)
        mine, roomy = balanced_by_time(self._loads(points, most, each[:, None]))
        sizes = np.zeros((len(most), len(points)), dtype=np.intp)
        sizes[: len(mine)] = mine
        return sizes[:, roomy], points[roomy]

    def _moves(self, at: Index, sizes: Index, most: Index) -> Iterator[tuple[Index, Index]]:
        """Layers with one moved from a chunk to another, of plans that are alike, where both may have them; and of which plans they are."""
        if not len(at):
            return
        order, columns = self._order(at[0]), np.arange(len(at))
        ends = [_ends(sizes[:, at], np.flatnonzero(np.array(order) == kind)) for kind in sorted(set(order))]
        givers, takers = ([one for kind in ends for one in kind[which]] for which in (0, 1))
        for giver, taker in itertools.product(givers, takers):
            found = sizes[:, at].copy()
            found[giver, columns] -= 1
            found[taker, columns] += 1
            fine = (giver != taker) & (found[giver, columns] >= 1) & (found[taker, columns] <= most[taker, at])
            if fine.any():
                yield found[:, fine], at[fine]

    def _better(self, tried: Sequence[tuple[Index, Index]], best: Index, merit: Array) -> Index:
        """Take over the best divisions of those that fit and are better than the best of their plans, into these and their merit.

        Returns the plans that have one.
        """
        if not tried:
            return np.zeros(0, dtype=np.intp)
        sizes, points = (np.concatenate(parts, axis=-1) for parts in zip(*tried, strict=True))
        once = distinct(np.concatenate([sizes, points[None]]).astype(float))[0]
        order = once[np.argsort(points[once], kind="stable")]
        sizes, points = sizes[:, order], points[order]
        time = self._times(sizes, points)
        chosen_ = self._fastest(sizes, points, time, np.flatnonzero(time < merit[points] * (1.0 - BETTER)))
        better = points[chosen_]
        best[:, better], merit[better] = sizes[:, chosen_], time[chosen_]
        return better

    def _fastest(self, sizes: Index, points: Index, time: Array, among: Index) -> Index:
        """The fastest division of each plan that fits, `among` some of those that are tried."""
        left, found = among[np.lexsort((time[among], points[among]))], list[int]()
        while len(left):  # the fastest of each plan, or what comes after it where that does not fit
            first = left[np.unique(points[left], return_index=True)[1]]
            fits = (self._over(sizes[:, first], points[first])[1] <= 0).all(axis=0)
            found += first[fits].tolist()
            left = left[~(np.isin(left, first) | np.isin(points[left], points[first[fits]]))]
        return np.array(sorted(found), dtype=np.intp)

    def _times(self, sizes: Index, points: Index) -> Array:
        """Time of steps of some points, whose numbers rise, with such layers; infinite where they have no end. [s]"""
        job, layout, prices = chosen(self.job, points), self.layout.at(points), self.prices.repeated(points)
        found = np.full(len(points), np.inf)
        for shape in self.pipelines:
            at = np.flatnonzero(np.isin(points, shape.at))
            if len(at):
                listed = sizes[: shape.stages * shape.chunks].astype(float)
                found[at] = self.time(prices, job, layout, replace(shape, at=at, listed=listed))
        return np.where(np.isfinite(found), found, np.inf)


def _unit_times(sums: UnitSums) -> Array:
    """Time of one microbatch in every unit, forward and backward, shape (units, n): the longer of the device's and the host's. [s]"""
    forward, backward = sums.device[0] + sums.blocks[0], sums.device[1] + sums.blocks[1] + sums.device[2]
    return np.asarray(np.maximum(forward, sums.host[0]) + np.maximum(backward, sums.host[1] + sums.host[2]))


def _ends(sizes: Index, chunks: Index) -> tuple[list[Index], list[Index]]:
    """Of chunks that lie on one kind of devices, those that may give a layer, and those that may take one, each of shape (n,).

    They are the first and the last, and of the others, which are alike, the one with most and the one with fewest layers.
    """
    n, inner = sizes.shape[1], chunks[1:-1]
    outer = [np.full(n, chunk, dtype=np.intp) for chunk in dict.fromkeys((int(chunks[0]), int(chunks[-1])))]
    if not len(inner):
        return outer, outer
    return [*outer, inner[sizes[inner].argmax(axis=0)]], [*outer, inner[sizes[inner].argmin(axis=0)]]


def _relieved(layout: Layout, held: tuple[Array, Array], sizes: Index, most: Index) -> Index:
    """Layers that chunks have room for, once those of stages that hold too much have fewer than now, shape (chunks, n).

    A layer takes no more than its share of all that a stage holds, so that no more layers are taken away than have to be. `held` is what
    stages hold, and what they lack. [B]
    """
    (total, over), less = held, most.copy()
    for i, n in zip(*np.nonzero(over > 0), strict=True):
        own = np.arange(i, int(layout.pp[n] * layout.chunks[n]), int(layout.pp[n]))
        count = int(sizes[own, n].sum())
        if count <= len(own) or not np.isfinite(over[i, n]):
            continue
        fewer = max(int(over[i, n] / (total[i, n] / count)), 1)
        widest = own[sizes[own, n].argmax()]
        less[widest, n] = max(sizes[widest, n] - (fewer if len(own) == 1 else 1), 1)
    return less
