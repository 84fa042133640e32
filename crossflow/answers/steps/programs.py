"""Steps of programs, those of graphs of kernels and those that are given: placement, prices, outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.batch import Ran
from crossflow.answers.steps.step import ScenarioStep, Slowed, StepEvents
from crossflow.base.arrays import Array, Index, tally, wide
from crossflow.cost.network import CostRows, MessageCosts, message_costs, message_steps
from crossflow.cost.price import Prices, price, stacked
from crossflow.engine.runs.programs import launches, program_outcome, table
from crossflow.engine.runs.uneven import Uneven
from crossflow.engine.schedule import of_class, schedule
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import NetworkSpec
from crossflow.hardware.mapping.placement import Placement, layouts, place
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.program.program import HOST_TIMES, Program

if TYPE_CHECKING:
    from crossflow.engine.timeline.record import Timeline

TIMED = 3  # placements of a program whose steps are timed
REPLICAS = ("dp", "cp")  # axes of a given program along which ranks hold the same weights


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramStep(ScenarioStep):
    """Steps of points that share a program but for its sizes."""

    def run(self) -> Ran:
        """See `ScenarioStep.run`."""
        batch, scenario = self.batch, self.batch.scenario
        prices, _, total = _placed_prices(scenario, batch.members.job, batch.system.network, batch.device, least=batch.least)
        outcome = program_outcome(batch.members.job, prices, batch.n, devices=scenario.devices, slots=scenario.slots, total=total)
        return Ran(outcome=outcome, devices=np.full(batch.n, float(scenario.devices)))

    def program(self) -> Program:
        """The step of a scenario as it stands, as a program."""
        return self.batch.scenario.program()

    def unrolled(self) -> Program:
        """The same with every time step written out."""
        return self.batch.scenario.program(unrolled=True)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Axes of the mesh along which ranks hold the same weights."""
        mesh: Mesh = self.batch.scenario.strategy  # type: ignore[assignment] # a graph's and a program's is
        return *mesh.names("rows", "batch"), *REPLICAS

    def timeline(self, title: str, uneven: Uneven) -> Timeline:
        """See `ScenarioStep.timeline`."""
        from crossflow.answers.steps.program_timelines import program_timeline

        return program_timeline(self.batch.scenario, self.unrolled(), self.replicas, title, uneven)

    def events(self) -> StepEvents:
        """See `ScenarioStep.events`."""
        from crossflow.answers.steps.program_events import program_events

        program, total = self.program(), float(self.run().outcome.total[0])
        return program_events(self.batch.scenario, program, placed(self.batch.scenario, program), total)

    def slowed(self) -> Slowed:
        """See `ScenarioStep.slowed`."""
        from crossflow.answers.steps.program_events import wires_of

        program, wires = self.program(), replace(wires_of(self.batch.scenario), profile=None)
        placement = placed(self.batch.scenario, program)
        for message in program.messages:
            for size, route, model in message_steps(message, placement, wires):
                if size[0] > 0 and route.size > 1 and message.time is None:
                    model(size)
        return wires.slowed

    @property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """See `ScenarioStep.memory_by_stage`. [B]"""
        return tuple({kind: float(size) for kind, size in kinds.items()} for kinds in self.program().memory)


def placed(scenario: Scenario, program: Program) -> Placement:
    """Placement of the mesh at the first design point: in the scenario's order, or in that of all orders in which the step ends first."""
    tried = _tried(scenario, program)
    return tried[0] if len(tried) == 1 else _placed_prices(scenario, program, scenario.system.network, scenario.architecture)[1]


def _tried(scenario: Scenario, program: Program) -> tuple[Placement, ...]:
    """Placements to choose from, with the groups of a program beside its axes."""
    axes, network = tuple(program.axes), scenario.network()
    if scenario.order is not None:
        found: tuple[Placement, ...] = (place(axes, network, scenario.order),)
    else:
        found = layouts(axes, network, bridged=scenario.system.network.intra.fabric == "pairwise-nvlink")
    for name, group in program.groups:
        found = tuple(placement.with_group(name, group.ranks, group.stride) for placement in found)
    return found


def _placed_prices(
    scenario: Scenario, program: Program, network: NetworkSpec, device: Architecture, *, least: bool = False
) -> tuple[Prices, Placement, Array | None]:
    """Prices of a program with every design point in its best placement, the placement of the first point, and times of steps if known."""
    tried, runs_on = _tried(scenario, program), (network, device, scenario.nodes[0])
    rows: CostRows | None = {} if len(tried) > 1 else None
    prices = price(program, tried[0], *runs_on, stack=scenario.stack, profile=scenario.profile, least=least, rows=rows)
    if len(tried) == 1:
        return prices, tried[0], None
    others = (message_costs(program.messages, one, *runs_on, scenario.profile, rows, stack=scenario.stack) for one in tried[1:])
    costs = [prices.messages, *others]
    best, steps = _soonest(scenario, program, prices, costs)
    messages = costs[best[0]] if len(best) == 1 else _joined([(np.flatnonzero(best == i), costs[i]) for i in np.unique(best)], len(best))
    measured = stacked(prices.measured[: len(program.kernels)], messages.measured)
    return replace(prices, messages=messages, measured=measured), tried[best[0]], steps


def _soonest(scenario: Scenario, program: Program, prices: Prices, costs: Sequence[MessageCosts]) -> tuple[Index, Array | None]:
    """Which placement ends the step first, the earliest among equals, and when if that was worked out, shape (n,) or (1,). [1], [s]

    Those are timed that leave the class of ranks that sends longest the least to send. Bytes alone do not say: ranks of a group that share
    a node reduce there first, and then send a part each over a port of their own; and what hides behind kernels may take longer.
    """
    every = np.array(np.broadcast_arrays(*(one.time for one in costs)))  # shape (placements, messages, n)
    sent = of_class(program)[:, len(program.kernels) : -len(HOST_TIMES)]
    times = np.array([tally(sent, one).max(axis=0) for one in every])
    steps: Array | None = None
    rivals = [i for i in np.argsort(times.min(axis=1), kind="stable") if not _slower_throughout(every, i)]
    if not scenario.shares_devices and len(rivals) > 1:
        launched = launches(prices)
        plan, chosen = schedule(program, launched=launched), sorted(rivals[:TIMED])
        tables = (replace(prices, messages=costs[i]) for i in chosen)
        steps = np.array(np.broadcast_arrays(*(plan.makespan(table(one, one.times, launched=launched)) for one in tables)))
        times = np.full((len(costs), steps.shape[1]), np.inf)
        times[chosen] = steps
    best = np.asarray((times <= times.min(axis=0) * (1.0 + 1e-9)).argmax(axis=0))
    return best, None if steps is None else times[best, np.arange(len(best))]


def _slower_throughout(every: Array, which: int) -> bool:
    """Whether another placement takes no longer for any message at any point; of equal ones the first remains."""
    no_longer = (every <= every[which]).all(axis=(1, 2))
    same = (every == every[which]).all(axis=(1, 2))
    return bool((no_longer & ~same).any() or same[:which].any())


def _joined(costs: Sequence[tuple[Index, MessageCosts]], n: int) -> MessageCosts:
    """Costs of messages at all points, from those of some points each."""
    found = {field.name: np.empty((len(costs[0][1].time), n)) for field in fields(MessageCosts)}
    for points, one in costs:
        for name, whole in found.items():
            whole[:, points] = wide(getattr(one, name), n)[:, points]
    return MessageCosts(**found)
