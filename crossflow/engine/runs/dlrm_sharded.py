"""Recommendation models whose tables are given to ranks: which sharding, its step on all ranks, and what each rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, by_points, wide
from crossflow.cost.machine import Machine
from crossflow.cost.price import Prices
from crossflow.cost.sharding import Pricing, piece_bytes
from crossflow.engine.runs.dlrm import dlrm_prices, dlrm_step
from crossflow.engine.runs.dlrm_point import point_programs
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.programs import launches, program_outcome, table
from crossflow.engine.schedule import schedule
from crossflow.parallel.dlrm import DlrmStep, dlrm_memory, model_flops
from crossflow.parallel.sharding.pieces import Piece, Sharding, singles
from crossflow.parallel.sharding.sharders import PRICED, cut, parts_needed, share_out
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.program import Program
from crossflow.workload.dlrm import SHARDERS, SPLITS, DlrmJob, Sharder, ShardingRule, Tables

PartName = TypeVar("PartName", str, int)
TRIED: Mapping[str, tuple[Sharder, ...]] = {"auto": SHARDERS, "exact": ("exact", "cost")}  # among which some rules choose by the step


class ShardedSteps(NamedTuple):
    """The step of one sharding at some points."""

    points: Index  # of all, whose numbers rise
    step: DlrmStep
    prices: Prices
    memory: Sequence[Mapping[str, Array]]  # of every rank [B]

    @classmethod
    def of(cls, job: DlrmJob, plans: Hierarchies, machine: Machine, sharding: Sharding, points: Index) -> ShardedSteps:
        """The step on every rank, priced; the other arguments are of these points alone."""
        step = dlrm_step(job, plans, machine, sharding)
        memory = [dlrm_memory(job, step, machine.stack, rank) for rank in range(len(step.tables))]
        return cls(points, step, dlrm_prices(step.program, len(plans), machine), memory)

    def programs(self, points: Index) -> Iterator[tuple[Index, Program, Prices]]:
        """Programs of some of its points, with the points, and their prices."""
        for places, program, messages in point_programs(self.step, self.prices, self.memory, np.searchsorted(self.points, points)):
            yield self.points[places], program, self.prices.at(places, messages)

    def at(self, point: int) -> tuple[Program, Prices]:
        """The program of one point, and its prices."""
        ((_, program, prices),) = self.programs(np.array([point]))
        return program, prices


def step_time(program: Program, prices: Prices) -> Array:
    """Time of the step of a program, which runs one kernel at a time, shape (n,). [s]"""
    launched = launches(prices)
    return schedule(program, launched=launched).makespan(table(prices, prices.times, launched=launched))


def pricing(job: DlrmJob, plans: Hierarchies, machine: Machine) -> Pricing:
    """What look-ups of single tables are priced on."""
    return Pricing(
        job=job, tables=singles(job.model.tables), samples=plans.batch, group=plans.embedding.group("tables"),
        architecture=machine.architecture, wires=machine.wires,
    )  # fmt: skip


CutTables = tuple[tuple[Piece, ...], str]  # all tables or their parts, and how a name tells that they were cut


def candidates(job: DlrmJob, plans: Hierarchies, machine: Machine) -> list[list[Sharding]]:
    """Shardings of every point among which its rule chooses; equal ones are one object."""
    rule, priced, n = job.sharding, pricing(job, plans, machine), len(plans)
    assert rule is not None  # the caller has looked
    tables, ranks, at = priced.tables, int(plans.embedding.group("tables").size.max()), by_points((job, plans, machine))
    whole = tuple(Piece.whole(i, one) for i, one in enumerate(tables))
    rated = rule.by in ("auto", "cost", "exact") or rule.split != "none"  # whether anything depends on costs
    costs = priced(whole).phases if rated else np.zeros((1, len(whole), n))
    capacity = wide(rule.memory * machine.architecture.memory_capacity, n)
    cuts = _cuts(job, tables, costs.sum(axis=0), ranks, capacity.tolist())
    points_of: dict[CutTables, list[int]] = {}
    for point, mine in enumerate(cuts):
        for one in mine:
            points_of.setdefault(one, []).append(point)
    shared: dict[CutTables, dict[int, list[Sharding]]] = {}
    for (pieces, told), points in points_of.items():
        here = np.array(points)
        of_pieces = costs.take(here, axis=-1) if pieces == whole else pricing(*at(here))(pieces).phases
        found = _shared(rule, tables, (pieces, told), of_pieces, piece_bytes(job, tables, pieces), ranks, capacity[here].tolist())
        shared[pieces, told] = dict(zip(points, found, strict=True))
    return [[sharding for one in mine for sharding in shared[one][point]] for point, mine in enumerate(cuts)]


def _cuts(job: DlrmJob, tables: Sequence[Tables], costs: Array, ranks: int, capacity: Sequence[float]) -> list[tuple[CutTables, ...]]:
    """Ways in which the rule cuts the tables at every point; costs are those of whole tables, shape (tables, n). [s]"""
    rule, sizes = job.sharding, piece_bytes(job, tables, [Piece.whole(i, one) for i, one in enumerate(tables)])
    assert rule is not None  # the caller has looked
    needed, known = parts_needed(costs, ranks), dict[tuple[bytes, float], tuple[CutTables, ...]]()
    keys = [(needed[:, point].tobytes(), room) for point, room in enumerate(capacity)]
    for point, key in enumerate(keys):
        if key not in known:
            mine: dict[tuple[Piece, ...], str] = {}
            for split in SPLITS if rule.split == "auto" else (rule.split,):
                pieces = cut(split, tables, needed[:, point], sizes, ranks=ranks, capacity=key[1], element=job.table)
                mine.setdefault(tuple(pieces), "" if split == "none" else f", split by {split}")
            known[key] = tuple(mine.items())
    return [known[key] for key in keys]


def _shared(
    rule: ShardingRule, tables: Sequence[Tables], one: CutTables, costs: Array, sizes: Array, ranks: int, capacity: Sequence[float]
) -> list[list[Sharding]]:
    """Shardings of the pieces of a cut at every point by each rule that is tried; costs have the shape (phases, pieces, n). [s]"""
    (pieces, told), known, same = one, dict[tuple[Sharder, float, bytes], Sharding](), dict[Sharding, Sharding]()
    found: list[list[Sharding]] = []
    for point, room in enumerate(capacity):
        mine: list[Sharding] = []
        for by in TRIED.get(rule.by, (rule.by,)):
            own = np.ascontiguousarray(costs[:, :, point])
            key = by, room, own.tobytes() if ranks > 1 and by in PRICED else b""
            if key not in known:
                name = (by if rule.by == "auto" else rule.by) + told
                made = share_out(by, tables, pieces, own, sizes, ranks=ranks, capacity=room, rule=rule, name=name)
                known[key] = same.setdefault(made, made)
            mine.append(known[key])
        found.append(mine)
    return found


def chosen(job: DlrmJob, plans: Hierarchies, machine: Machine) -> Iterator[tuple[Sharding, Index, ShardedSteps]]:
    """The sharding of every point, those alike together, with the points and the step of each.

    Where there are several, the one that fits and has the shortest step; where none fits, the one whose fullest rank holds least.
    """
    at, offered = by_points((job, plans, machine)), candidates(job, plans, machine)
    works = [[one for one in several if not one.problem] or [min(several, key=lambda one: one.held)] for several in offered]
    one_by_id, points_of = dict[int, Sharding](), dict[int, list[int]]()
    for point, several in enumerate(works):
        for key, one in {id(one): one for one in several}.items():
            one_by_id[key] = one
            points_of.setdefault(key, []).append(point)
    steps = {}
    for key, points in points_of.items():
        here = np.array(points)
        some, theirs, its = at(here)
        steps[key] = ShardedSteps.of(some, theirs, its, one_by_id[key], here)
    times = np.full((max(map(len, works)), len(works)), np.inf)  # of every candidate
    if len(times) > 1:
        of_each = {key: dict(zip(points_of[key], _step_times(one), strict=True)) for key, one in steps.items()}
        for point, several in enumerate(works):
            times[: len(several), point] = [of_each[id(one)][point] for one in several]
    picked: dict[int, list[int]] = {}
    for point, best in enumerate(times.argmin(axis=0).tolist()):
        picked.setdefault(id(works[point][best]), []).append(point)
    for key, points in picked.items():
        yield one_by_id[key], np.array(points), steps[key]


def _step_times(steps: ShardedSteps) -> list[float]:
    """Time of the step at each of its points. [s]"""
    found = np.empty(len(steps.points))
    for points, program, prices in steps.programs(steps.points):
        found[np.searchsorted(steps.points, points)] = step_time(program, prices)
    return found.tolist()


def sharded_outcome(job: DlrmJob, plans: Hierarchies, machine: Machine, slots: int | None) -> Outcome:
    """What comes out of a step of every design point, on all ranks; `slots` as of `program_outcome`."""
    found, problems = list[tuple[Index, Outcome]](), dict[str, Mask]()
    for sharding, points, steps in chosen(job, plans, machine):
        for some, program, prices in steps.programs(points):
            found.append((some, program_outcome(program, prices, len(some), devices=int(plans.devices[some[0]]), slots=slots)))
        if sharding.problem:
            problems.setdefault(sharding.problem, np.zeros(len(plans), dtype=bool))[points] = True
    whole = joined_outcomes(found, len(plans))
    told = tuple((mask, sentence) for sentence, mask in problems.items())
    return replace(whole, model_flops=model_flops(job, plans), problems=(*whole.problems, *told))


def joined_outcomes(outcomes: Sequence[tuple[Index, Outcome]], n: int) -> Outcome:
    """One outcome of n points, from those of some of them each; what one has no part of is 0 there."""

    def each(name: str) -> Array:
        return joined_parts([(points, {name: getattr(one, name)}) for points, one in outcomes], n)[name]

    def parts(name: str) -> dict[str, Array]:
        return joined_parts([(points, getattr(one, name)) for points, one in outcomes], n)

    sent = joined_parts([(points, dict(enumerate(one.sent))) for points, one in outcomes], n)
    return Outcome(
        total=each("total"), breakdown=parts("breakdown"), communication=parts("communication"), exposed=parts("exposed"),
        memory=parts("memory"), flops=each("flops"), model_flops=each("model_flops"), energy=each("energy"), traffic=each("traffic"),
        sent=(sent[0], sent[1]), bound=parts("bound"), by_layer=parts("by_layer"), measured=each("measured"), least=each("least"),
    )  # fmt: skip


def joined_parts(parts: Sequence[tuple[Index, Mapping[PartName, Array]]], n: int) -> dict[PartName, Array]:
    """Values by name of n points, from those of some of them each; 0 where one has none."""
    found = {name: np.zeros(n) for _, one in parts for name in one}
    for points, one in parts:
        for name, values in one.items():
            found[name][points] = values
    return found


def rank_rows(job: DlrmJob, plans: Hierarchies, machine: Machine) -> tuple[str, list[dict[str, float]]]:
    """The sharding of the first point, and what every rank holds and takes: tables, bytes, and times of its look-ups. [1], [B], [s]"""
    sharding = next(one for one, points, _ in chosen(job, plans, machine) if 0 in points)
    tables, costs = singles(job.model.tables), pricing(job, plans, machine)(sharding.pieces)
    sizes, rows = piece_bytes(job, tables, sharding.pieces), []
    for rank in range(sharding.ranks):
        mine = [i for i, held in enumerate(sharding.where) if held == rank]
        parts = [sharding.pieces[i].of(tables) for i in mine]
        whole = sum(sharding.pieces[i] == Piece.whole(sharding.pieces[i].table, tables[sharding.pieces[i].table]) for i in mine)
        rows.append(
            {
                "tables": whole, "parts": len(mine) - whole, "table_bytes": float(sizes[mine].sum()),
                "lookups": float(sum(part.pooling for part in parts) * plans.batch[0]),
                "lookup_forward_s": float(costs.forward[mine, 0].sum()), "lookup_backward_s": float(costs.backward[mine, 0].sum()),
                "exchanged_bytes": float(sum(part.width for part in parts) * plans.batch[0] * job.forward * (sharding.ranks > 1)),
            }
        )  # fmt: skip
    return sharding.name, rows
