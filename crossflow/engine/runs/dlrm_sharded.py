"""Recommendation models whose tables are given to ranks: which sharding, its step on all ranks, and what each rank holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, wide
from crossflow.cost.machine import Machine
from crossflow.cost.price import Prices
from crossflow.cost.sharding import Pricing, piece_bytes
from crossflow.engine.runs.dlrm import dlrm_prices, dlrm_step
from crossflow.engine.runs.dlrm_point import point_program
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.runs.programs import launches, program_outcome, table
from crossflow.engine.schedule import schedule
from crossflow.parallel.dlrm import DlrmStep, dlrm_memory, model_flops
from crossflow.parallel.sharding.pieces import Piece, Sharding, singles
from crossflow.parallel.sharding.sharders import cut, share_out
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.program import Program
from crossflow.workload.dlrm import SHARDERS, SPLITS, DlrmJob, Sharder

TRIED: Mapping[str, tuple[Sharder, ...]] = {"auto": SHARDERS, "exact": ("exact", "cost")}  # among which some rules choose by the step


class ShardedSteps(NamedTuple):
    """The step of one sharding at all points."""

    step: DlrmStep
    prices: Prices
    memory: Sequence[Mapping[str, Array]]  # of every rank [B]

    @classmethod
    def of(cls, job: DlrmJob, plans: Hierarchies, machine: Machine, sharding: Sharding) -> ShardedSteps:
        """The step on every rank, priced."""
        step = dlrm_step(job, plans, machine, sharding)
        memory = [dlrm_memory(job, step, machine.stack, rank) for rank in range(len(step.tables))]
        return cls(step, dlrm_prices(step.program, len(plans), machine), memory)

    def at(self, point: int) -> tuple[Program, Prices]:
        """The program of one point, and its prices."""
        program, messages = point_program(self.step, self.prices, self.memory, point)
        return program, self.prices.at(point, messages)


def step_time(program: Program, prices: Prices) -> float:
    """Time of the step of a program at one point, which runs one kernel at a time. [s]"""
    launched = launches(prices)
    return float(schedule(program, launched=launched).makespan(table(prices, prices.times, launched=launched))[0])


def pricing(job: DlrmJob, plans: Hierarchies, machine: Machine) -> Pricing:
    """What look-ups of single tables are priced on."""
    return Pricing(
        job=job, tables=singles(job.model.tables), samples=plans.batch, group=plans.embedding.group("tables"),
        architecture=machine.architecture, wires=machine.wires,
    )  # fmt: skip


def candidates(job: DlrmJob, plans: Hierarchies, machine: Machine) -> list[list[Sharding]]:
    """Shardings of every point among which its rule chooses."""
    rule, priced = job.sharding, pricing(job, plans, machine)
    assert rule is not None  # the caller has looked
    tables, ranks = priced.tables, int(plans.embedding.group("tables").size.max())
    whole = tuple(Piece.whole(i, one) for i, one in enumerate(tables))
    rated = rule.by in ("auto", "cost", "exact") or rule.split != "none"  # whether anything depends on costs
    known = {whole: (priced(whole).phases if rated else np.zeros((1, len(whole), len(plans))), piece_bytes(job, tables, whole))}
    costs, sizes = known[whole]
    capacity = wide(rule.memory * machine.architecture.memory_capacity, len(plans))
    found = list[list[Sharding]]()
    for point in range(len(plans)):
        mine: dict[tuple[Piece, ...], str] = {}
        for split in SPLITS if rule.split == "auto" else (rule.split,):
            cuts = cut(
                split, tables, costs[:, :, point].sum(axis=0), sizes, ranks=ranks, capacity=float(capacity[point]), element=job.table
            )
            mine.setdefault(tuple(cuts), "" if split == "none" else f", split by {split}")
        for pieces in mine.keys() - known.keys():
            known[pieces] = (priced(pieces).phases, piece_bytes(job, tables, pieces))
        found.append(
            [
                share_out(
                    by, tables, pieces, known[pieces][0][:, :, point], known[pieces][1], ranks=ranks, capacity=float(capacity[point]),
                    rule=rule, name=(by if rule.by == "auto" else rule.by) + told,
                )
                for (pieces, told), by in itertools.product(mine.items(), TRIED.get(rule.by, (rule.by,)))
            ]
        )  # fmt: skip
    return found


def chosen(job: DlrmJob, plans: Hierarchies, machine: Machine) -> Iterator[tuple[Sharding, Index, ShardedSteps]]:
    """The sharding of every point, those alike together, with the points and the step of each.

    Where there are several, the one that fits and has the shortest step; where none fits, the one whose fullest rank holds least.
    """
    offered, steps = candidates(job, plans, machine), dict[Sharding, ShardedSteps]()
    picked: dict[Sharding, list[int]] = {}
    for point, several in enumerate(offered):
        works = [one for one in several if not one.problem] or [min(several, key=lambda one: one.held)]
        for one in works:
            if one not in steps:
                steps[one] = ShardedSteps.of(job, plans, machine, one)
        best = works[0] if len(works) == 1 else min(works, key=lambda one: step_time(*steps[one].at(point)))
        picked.setdefault(best, []).append(point)
    for one, points in picked.items():
        yield one, np.array(points), steps[one]


def sharded_outcome(job: DlrmJob, plans: Hierarchies, machine: Machine, slots: int | None) -> Outcome:
    """What comes out of a step of every design point, on all ranks; `slots` as of `program_outcome`."""
    found, problems = dict[int, Outcome](), dict[str, Mask]()
    for sharding, points, steps in chosen(job, plans, machine):
        for point in points.tolist():
            found[point] = program_outcome(*steps.at(point), 1, devices=int(plans.devices[point]), slots=slots)
        if sharding.problem:
            problems.setdefault(sharding.problem, np.zeros(len(plans), dtype=bool))[points] = True
    whole = joined_outcomes([found[i] for i in range(len(plans))])
    told = tuple((mask, sentence) for sentence, mask in problems.items())
    return replace(whole, model_flops=model_flops(job, plans), problems=(*whole.problems, *told))


def joined_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome of the points of several; what one has no part of is 0 there."""

    def each(name: str) -> Array:
        return np.concatenate([wide(getattr(one, name), 1) for one in outcomes])

    def parts(name: str) -> dict[str, Array]:
        return joined_parts([getattr(one, name) for one in outcomes])

    return Outcome(
        total=each("total"), breakdown=parts("breakdown"), communication=parts("communication"), exposed=parts("exposed"),
        memory=parts("memory"), flops=each("flops"), model_flops=each("model_flops"), energy=each("energy"), traffic=each("traffic"),
        sent=(np.concatenate([one.sent[0] for one in outcomes]), np.concatenate([one.sent[1] for one in outcomes])),
        bound=parts("bound"), by_layer=parts("by_layer"), measured=each("measured"), least=each("least"),
    )  # fmt: skip


def joined_parts(points: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Values by name of all points, from those of each; 0 where one has none."""
    names = dict.fromkeys(name for one in points for name in one)
    return {name: np.concatenate([one.get(name, np.zeros(1)) for one in points]) for name in names}


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
