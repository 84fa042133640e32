"""Timelines of programs, those of graphs of kernels and those that are given, on devices that are alike or not."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.programs import REPLICAS, placed
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.cost.price import Prices, price
from crossflow.engine.kinds import Kinds, kinds_of, split
from crossflow.engine.runs.programs import launches, table
from crossflow.engine.runs.uneven import EVEN, Uneven, check_places
from crossflow.engine.schedule import durations, longest_path
from crossflow.engine.tasks import Copy, PriceRows, Task, copies, tasks_of
from crossflow.engine.timeline.flat import Run, timeline_of
from crossflow.engine.timeline.record import COMPUTE, DATA, HOST, PIPELINE, TENSOR, Device, Timeline
from crossflow.hardware.mapping.placement import Placement
from crossflow.program.blocks import MOST
from crossflow.program.program import NETWORK, Op, Program

WAITING = "waiting for the last rank"


def program_timeline(scenario: Scenario, program: Program, replicas: Collection[str], title: str, uneven: Uneven) -> Timeline:
    """Timeline of a program: its tasks as longest path, every kind of ranks by itself.

    Parameters
    ----------
    program : what a scenario computes at its one design point.
    replicas : axes of its mesh along which ranks hold the same weights.

    Raises
    ------
    CrossflowError
        Where kernels share a device, where blocks have too many copies, and where `uneven` means a device or a link that is not there.
    """
    if scenario.kernels_per_device > 1:
        raise CrossflowError(
            f"{scenario.name}: kernels_per_device = {scenario.kernels_per_device}: kernels that share a device have no timeline"
        )
    if scenario.shares_devices:
        raise CrossflowError(f"{scenario.name}: kernels on several streams share a device and have no timeline")
    device = scenario.architecture
    program.places.check(f"{scenario.name}: a timeline shows every copy of a block")
    placement = placed(scenario, program)
    prices = price(program, placement, scenario.system.network, device, scenario.nodes[0], stack=scenario.stack, profile=scenario.profile)
    ranks = _mesh(program, placement)
    even = _laid(program, prices, ranks, [np.ones(ranks.shape)] * 2, EVEN).timeline(scenario, title)
    if uneven.even or not np.isfinite(even.total):
        return even
    rates = [_speeds(program, ranks, replicas, uneven), _scaled(np.ones(ranks.shape), ranks, uneven.ports)]
    return _laid(program, prices, ranks, rates, uneven).timeline(scenario, title, bubble=float(even.even_idle[0]))


def _mesh(program: Program, placement: Placement) -> Index:
    """Rank of every device, shape (classes, sizes of the other axes in the order of the program)."""
    strides, ranks = placement.strides, np.zeros((), dtype=np.intp)
    axes = [axis for axis in program.axes if axis[0] == program.stages] or [("", 1)]
    for name, size in [*axes, *(axis for axis in program.axes if axis[0] != program.stages)]:
        ranks = ranks[..., None] + strides.get(name, 0) * np.arange(size)
    return np.asarray(ranks)


def _speeds(program: Program, ranks: Index, own: Collection[str], uneven: Uneven) -> Array:
    """Speed of every device over that of the others, in the shape of `ranks`; those that lie apart along `own` axes are replicas. [1]"""
    names = ["", *(name for name, _ in program.axes if name != program.stages)]
    along = [i for i, name in enumerate(names) if name in own]
    replica = np.zeros(ranks.shape, dtype=np.intp)
    replicas = 1
    for i in along:
        replica = replica + replicas * np.arange(ranks.shape[i]).reshape([-1 if i == j else 1 for j in range(ranks.ndim)])
        replicas *= ranks.shape[i]
    if uneven.replicas and replicas == 1:
        raise CrossflowError(f"uneven: replicas: this mesh has no axis of replicas ({' or '.join(REPLICAS)}); name ranks instead")
    check_places(uneven, {"ranks": ranks.size, "stages": len(ranks), "replicas": replicas, "ports": ranks.size})
    speed = np.ones(ranks.shape)
    for stage, factor in uneven.stages.items():
        speed[stage] *= factor
    return _scaled(_scaled(speed, replica, uneven.replicas), ranks, uneven.ranks)


def _scaled(rates: Array, places: Index, factors: Mapping[int, float]) -> Array:
    """Rates of devices, those at some places times a factor. [1]"""
    for place, factor in factors.items():
        rates = np.where(places == place, rates * factor, rates)
    return rates


def _rates(program: Program, uneven: Uneven) -> dict[int, float]:
    """Rate of the slowest link between stages that messages of operations cross, by the place of the operation. [1]"""
    if not uneven.links:
        return {}
    last = program.classes - 1
    crossed = {place: _links(between, last) for place, between in _between(program).items()}
    used = {link for links in crossed.values() for link in links}
    check_places(uneven, {"links": max(last, *(link + 1 for link in used), 0)})
    for link in uneven.links:
        if link not in used:
            raise CrossflowError(f"uneven: links: {link}: the program sends nothing over it")
    return {place: min((uneven.links.get(link, 1.0) for link in links), default=1.0) for place, links in crossed.items()}


def _links(ranks: set[int], last: int) -> set[int]:
    """Links that lie between classes: from one to the next, or from the last to the first where only these two are meant."""
    if ranks == {0, last} and last > 1:
        return {last}
    return set(range(min(ranks), max(ranks)))


def _between(program: Program) -> dict[int, set[int]]:
    """Classes that every transfer along the axis of the classes goes between: those that list it, wait for it, or that it waits for."""
    sends = {
        place: {op.rank}
        for place, op in enumerate(program.ops)
        if op.message is not None and program.stages in program.messages[op.message].axes and not op.meets
    }
    for place, op in enumerate(program.ops):
        for j in (*op.after, *op.carried, *op.paired):
            for one, other in ((place, j), (j, place)):
                if one in sends:
                    sends[one].add(program.ops[other].rank)
    return sends


def _laid(program: Program, prices: Prices, mesh: Index, rates: Sequence[Array], uneven: Uneven) -> _Laid:
    """A program as it runs on devices that are alike or not, with the speed and the rate of the links of each."""
    launched, runs = launches(prices), copies(program)
    kinds = kinds_of(program, rates, mesh, apart=uneven.jitter > 0)
    of_class = Counter(kinds.classes)
    events = sum(of_class[run.rank] for run in runs)
    if events > MOST:
        message = f"here {events:,} operations of {len(kinds.classes):,} kinds of devices, and {MOST:,} at most"
        raise CrossflowError(f"uneven: a timeline shows every device that has times of its own, {message}; take fewer devices or no jitter")
    own = split(program, runs, kinds)
    tasks, last = tasks_of(program, own, launched=launched)
    rows = PriceRows(kernels=len(program.kernels), messages=len(program.messages))
    times = durations(tasks, table(prices, prices.times, launched=launched)[:, :1])[:, 0]
    if not uneven.even:
        times = times * _slower(program, own, tasks, rows, uneven, kinds, rates)
    end = longest_path(times[:, None], [task.edges for task in tasks])[:, 0]
    start = np.array([max((end[j] for j in task.edges), default=0.0) for task in tasks])
    return _Laid(
        program=program, rows=rows, kinds=kinds, mesh=mesh, runs=runs, own=own, tasks=tasks, last=last, start=start, end=end
    )  # fmt: skip


def _slower(
    program: Program, own: Sequence[Copy], tasks: Sequence[Task], rows: PriceRows, uneven: Uneven, kinds: Kinds, rates: Sequence[Array]
) -> Array:
    """Time of every task over that in an even world, shape (tasks,). [1]"""
    jitter, links, between = uneven.drawn(len(own)), _rates(program, uneven), _between(program)
    speed, port = map(kinds.value, rates)
    found = np.ones(len(tasks))
    for i, task in enumerate(tasks):
        copy = task.copies[0]
        if rows.computes(task.rows):
            found[i] = jitter[copy] / speed[own[copy].rank]
        elif task.rows:
            mine, place = [kind for kind, _ in task.streams], own[copy].place
            others = [kinds.beside(kind, rank) for kind in mine for rank in between.get(place, ()) if rank != kinds.classes[kind]]
            found[i] = 1.0 / min(links.get(place, 1.0), *port[mine + others])
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Laid:
    """A program as it runs: every copy of an operation on every kind of ranks."""

    program: Program  # what runs
    kinds: Kinds  # kinds of ranks
    mesh: Index  # rank of every device
    rows: PriceRows  # rows of times
    runs: Sequence[Copy]  # copies of operations
    own: Sequence[Copy]  # those of every kind
    tasks: Sequence[Task]  # tasks of `own`
    last: Sequence[int]  # last task of every copy of it
    # start, end: of every task, shape (tasks,). [s]
    start: Array
    end: Array

    def timeline(self, scenario: Scenario, title: str, bubble: float | None = None) -> Timeline:
        """The timeline; `bubble` is what an even world leaves idle, where this is none. [s]"""
        return timeline_of(
            self._events(), list(self._devices()), title=title, total=float(self.end.max()), node=scenario.nodes[0],
            memory=[self._memory(kind) for kind in range(len(self.kinds.classes))],
            capacity=float(scenario.architecture.memory_capacity[0]), bubble=bubble,
        )  # fmt: skip

    def _devices(self) -> Iterator[Device]:
        """Classes of devices of the timeline: kinds of ranks."""
        ranks = self.mesh.ravel()
        for kind, stage in enumerate(self.kinds.classes):
            mine = sorted(ranks[self.kinds.members(kind)].tolist())
            several = f", rank {mine[0]}" + (f" +{len(mine) - 1}" if len(mine) > 1 else "")
            yield Device(name=f"stage {stage}{several if self.kinds.classes.count(stage) > 1 else ''}", stage=stage, ranks=mine)

    def _events(self) -> list[Run]:
        """Events: one for every task and kind that takes part in it, behind its wait for the last of a meeting."""
        found: list[Run] = []
        of: list[dict[int, int]] = []  # event of every task on every kind
        kernels = {(run.rank, self.program.ops[run.place].stream) for run in self.own if self.program.ops[run.place].kernels}
        for i, task in enumerate(self.tasks):
            of.append({})
            start, last = float(self.start[i]), sorted(task.edges, key=lambda j: float(self.end[j]))[-1:]
            for number, (kind, stream) in zip(task.copies, task.streams, strict=True):
                before = self._before(task, number, kind)
                arrived = max((float(self.end[j]) for j in before), default=0.0)
                if len(task.copies) > 1 and arrived < start:
                    found.append(Run(device=kind, stream=TENSOR, name=WAITING, start=arrived, end=start, waits=True, beside=True))
                # The last to arrive could not begin later without all others; that holds the rest of a meeting together.
                together = len(task.copies) > 1 and all(kind not in of[j] for j in last)
                waits = before | set(last) if together else set(task.edges)
                after = tuple(sorted({of[j].get(kind, event) for j in waits for event in of[j].values()}))
                of[i][kind] = len(found)
                found.append(self._event(i, self.program.ops[self.own[number].place], kind, after, beside=(kind, stream) not in kernels))
        return found

    def _event(self, task: int, op: Op, kind: int, after: tuple[int, ...], *, beside: bool) -> Run:
        """A task on one kind of ranks."""
        name, stream = op.name, COMPUTE
        if self._launches(self.tasks[task], op):
            name, stream = f"launch {name}", HOST
        elif op.message is not None:
            name = self.program.messages[op.message].collective
            stream = PIPELINE if name == "send_recv" else TENSOR if op.stream == NETWORK else DATA
        elif op.calls and not op.kernels:
            stream = HOST
        return Run(
            device=kind, stream=stream, name=name, start=float(self.start[task]), end=float(self.end[task]), after=after, beside=beside,
            label=f"{op.phase} {name}" if op.phase and stream == COMPUTE else "",
        )  # fmt: skip

    def _launches(self, task: Task, op: Op) -> bool:
        """Whether a task is the host's launch of an operation, not the operation."""
        return self.rows.issues(task.rows) or (task.calls > 0 and (op.message is not None or bool(op.kernels)))

    def _before(self, task: Task, number: int, kind: int) -> set[int]:
        """Tasks that one kind waits for itself, whoever else takes part."""
        return {j for j in task.edges if any(rank == kind for rank, _ in self.tasks[j].streams)} | {
            self.last[j] for j in self.own[number].after
        }

    def _memory(self, kind: int) -> tuple[Array, Array]:
        """Times at which a kind comes to hold other tensors, and bytes from then on, shape (changes,). [s], [B]

        Tensors come and go in the order of the program, as an allocator counts them: what an operation makes as it starts, what it was
        the last to need as it ends, or as the next is made where that is sooner.
        """
        places, amounts = self.program.held(self.kinds.classes[kind])
        held = amounts[:, 0]
        there = places < 2 * len(self.runs)
        places, held = places[there], held[there]
        begin, end = self._spans(kind)
        go = places % 2 == 1
        times = np.where(places < 0, 0.0, np.where(go, end[places // 2], begin[places // 2]))
        next_made = np.minimum.accumulate(np.where(go, np.inf, times)[::-1])[::-1]
        return np.maximum.accumulate(np.where(go, np.minimum(times, next_made), times)), held

    def _spans(self, kind: int) -> tuple[Array, Array]:
        """Start and end of every copy of an operation, those of other classes on the devices beside a kind, shape (copies,). [s]"""
        begin, end = np.full((2, len(self.runs)), np.inf)
        at = -1
        for number, (one, last) in enumerate(zip(self.own, self.last, strict=True)):
            rank = self.kinds.classes[one.rank]
            at += one.rank == self.kinds.classes.index(rank)
            if one.rank == (kind if rank == self.kinds.classes[kind] else self.kinds.beside(kind, rank)):
                begin[at], end[at] = self._started[number], self.end[last]
        return begin, end

    @functools.cached_property
    def _started(self) -> Array:
        """Start of every copy of an operation on every kind, launches apart, shape (copies,). [s]"""
        found = np.full(len(self.own), np.inf)
        for i, task in enumerate(self.tasks):
            if not self._launches(task, self.program.ops[self.own[task.copies[0]].place]):
                for number in task.copies:
                    found[number] = min(found[number], self.start[i])
        return found
