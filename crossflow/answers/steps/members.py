"""Points that are evaluated together though their dimensions and, of layered models, strategies and numbers of devices differ.

The specification of each different workload is read by itself, and so is its model. Models of one structure are stacked into one,
whose numbers are arrays over the points (`crossflow.workload.stacked`); the others are evaluated apart.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.points import chosen_of, groups, variant
from crossflow.answers.scenario import COUNTS, Scenario, Sized, check_strategy, resized
from crossflow.base.arrays import Array, Index, python
from crossflow.base.errors import CrossflowError
from crossflow.base.results import later
from crossflow.hardware.architecture.switching import of_their_number
from crossflow.hardware.technology.library import Choice
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.kinds import ANY
from crossflow.parallel.strategy.mesh import Mesh
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.blocks import COPIES
from crossflow.program.program import Program
from crossflow.workload.job import Job
from crossflow.workload.jobs import job_of, tokens_of
from crossflow.workload.kinds import Workload
from crossflow.workload.spec import GemmSpec, LstmSpec, TransformerSpec
from crossflow.workload.stacked import chosen, stacked, structures

if TYPE_CHECKING:
    from crossflow.workload.dlrm import DlrmJob
else:
    DlrmJob = later("crossflow.workload.dlrm", "DlrmJob")

Settings = Mapping[str, Any]
DIMENSIONS = ("hidden", "vocabulary", "projection", "global_batch", "sequence", "m", "n", "k")  # of graphs, which change no node
STEPS = 1 + COPIES  # of a sequence whose time steps repeat: the first, and as many copies of a block as are laid out
BESIDE = ("workload.global_batch", *COUNTS)  # settings that a model does not depend on
NO_CHOICES: Mapping[str, Choice] = MappingProxyType({})
APART = ("workload.model",)  # settings of a workload that make a model of another kind


class LegalStrategies(list[Any]):
    """Strategies of points that are known to divide the scenario's model and batch over its devices, as all that crossflow lists do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """What the points of one batch compute."""

    workloads: tuple[Workload, ...]  # different workloads, all of one kind and task
    nodes: tuple[tuple[int, int], ...]  # devices of a node and nodes of each
    which: Index  # the workload of every point, shape (n,)
    strategies: tuple[Any, ...]  # the strategy of every point
    job: Any  # what a step computes; numbers that differ are arrays of shape (n,)
    own: bool = False  # whether each of them is the scenario's own, so that what is known of them is worth keeping

    def at(self, points: Index) -> Members:
        """Some of the points."""
        strategies = tuple(self.strategies[i] for i in points)
        return replace(self, which=self.which[points], strategies=strategies, job=chosen(self.job, points))

    @functools.cached_property
    def batch(self) -> Array:
        """Samples of a step, or requests of a service, shape (n,). [1]"""
        return np.array([float(workload.global_batch) for workload in self.workloads])[self.which]

    @property
    def tokens(self) -> Array | int:
        """Tokens that a sample counts in a step, 0 where the word has no meaning. [1]"""
        return tokens_of(self.job) if isinstance(self.job, Job) else getattr(self.job, "tokens", 0)

    @property
    def parameters(self) -> Array | float:
        """Parameters of the model. [1]"""
        return getattr(self.job, "model", self.job).parameters  # type: ignore[no-any-return]

    @functools.cached_property
    def node_counts(self) -> Array:
        """Nodes of the system of every point, shape (n,). [1]"""
        return np.array([float(count) for _, count in self.nodes])[self.which]

    @functools.cached_property
    def reading(self) -> Members:
        """The points of a service while it reads the prompts of its requests."""
        return replace(self, job=self.job.reading)


@functools.lru_cache(maxsize=64)
def own_members(scenario: Scenario, n: int = 1) -> Members:
    """What n points compute that all are the scenario's own; StrategyError where its strategy does not divide its workload."""
    workload = scenario.workload
    if workload.layered:
        check_strategy(scenario)
        job: Job | DlrmJob | Program = _job(scenario, workload)
    else:
        job = scenario.program(unrolled=scenario.shares_devices)
    which, strategies = np.zeros(n, dtype=np.intp), (scenario.strategy,) * n
    return Members(workloads=(workload,), nodes=(scenario.nodes,), which=which, strategies=strategies, job=job, own=True)


Batch = tuple[Scenario, Members, Index]  # a scenario, what its points compute, and which points they are


def together(
    scenario: Scenario, discrete: Mapping[str, Sequence[Any]], n: int, choices: Mapping[str, Choice] = NO_CHOICES
) -> Iterator[Batch]:
    """Points that are evaluated in one batch each, for any settings but quantities and technology, of which the `choices` are."""
    alike = not of_their_number(scenario.system, scenario.library, chosen_of(scenario, choices)["system"])
    others = {path: values for path, values in discrete.items() if not _inside(scenario, path, alike=alike)}
    for settings, index in groups(others, n):
        ours = {path: _some(values, index) for path, values in discrete.items() if path not in others}
        base = _with(scenario, settings, ours, 0) if settings and ours else variant(scenario, settings)
        inner = _batches if base.workload.layered else _graphs
        if not ours or type(base.workload) is not type(scenario.workload):
            found = _alone(scenario, settings, ours, len(index))
        else:
            found = inner(base, ours, len(index))
        yield from ((made, members, index[points]) for made, members, points in found)


def _some(values: Sequence[Any], index: Index) -> list[Any]:
    """Some of the values of a path, legal strategies still known as such."""
    found = [python(values[i]) for i in index]
    return LegalStrategies(found) if isinstance(values, LegalStrategies) else found


def _inside(scenario: Scenario, path: str, *, alike: bool) -> bool:
    """Whether a setting may differ inside a batch: dimensions, and of layered models strategies and numbers of `alike` devices."""
    dimension = path.startswith("workload.") and path not in APART
    inside = path == "strategy" or (path in COUNTS and alike)
    return dimension or (scenario.workload.layered and inside)


def _with(scenario: Scenario, settings: Settings, ours: Mapping[str, Sequence[Any]], i: int) -> Scenario:
    """The scenario with settings, and with further ones of one of several points."""
    return variant(scenario, {**settings, **{path: values[i] for path, values in ours.items()}})


def _alone(scenario: Scenario, settings: Settings, ours: Mapping[str, Sequence[Any]], n: int) -> Iterator[Batch]:
    """Points apart that differ in anything, each with a scenario of its own."""
    for own, points in groups(ours, n):
        yield _as_it_stands(variant(scenario, {**settings, **own}), points)


def _as_it_stands(scenario: Scenario, points: Index) -> Batch:
    """Points that are all as a scenario stands."""
    return scenario, own_members(scenario, len(points)), points


def _graphs(base: Scenario, ours: Mapping[str, Sequence[Any]], n: int) -> Iterator[Batch]:
    """Batches of n points of graphs of kernels that differ in what `ours` says: those that have the same nodes are one."""
    found, which = list[LstmSpec | GemmSpec](), np.zeros(n, dtype=np.intp)
    try:
        for settings, points in groups(ours, n):
            workload = resized(base, settings).workload
            assert isinstance(workload, LstmSpec | GemmSpec)  # programs have no dimensions
            which[points] = len(found)
            found.append(workload)
        batches = list(_stacked_graphs(base, ours, found, which))
    except (CrossflowError, ValueError, AssertionError):  # which a scenario of its own tells
        batches = list(_alone(base, {}, ours, n))
    yield from batches


def _stacked_graphs(
    base: Scenario, ours: Mapping[str, Sequence[Any]], found: Sequence[LstmSpec | GemmSpec], which: Index
) -> Iterator[Batch]:
    """The same of workloads that are read; StrategyError where the strategy does not divide one of them."""
    strategy = base.strategy
    assert isinstance(strategy, Mesh)  # a graph's is
    sizes = [tuple(workload.sizes.values()) for workload in found]
    cuts = dict[str, tuple[int, ...]]()
    cut = [_cut(workload, strategy.degree("layers"), cuts) for workload in found]
    steps = [_steps(workload, unrolled=base.shares_devices) for workload in found]
    kept = [[(name, value) for name, value in workload if name not in DIMENSIONS] for workload in found]
    others = list(map(repr, zip(cut, steps, kept, strict=True)))
    from crossflow.parallel.transform import divided

    for places in structures(list(zip(others, sizes, strict=True))):
        points, first = np.flatnonzero(np.isin(which, places)), found[places[0]]
        if len(places) == 1 or base.document.data.get("strategy") == ANY:
            mine = {path: [values[i] for i in points.tolist()] for path, values in ours.items()}
            yield from ((made, members, points[some]) for made, members, some in _alone(base, {}, mine, len(points)))
            continue
        numbers = np.searchsorted(places, which[points])
        values = chosen(stacked([sizes[place] for place in places]), numbers)
        graph = first.graph(**dict(zip(first.sizes, values, strict=True)))
        program = divided(graph.unrolled if base.shares_devices else graph, strategy, cut[places[0]])
        workloads = tuple(found[place] for place in places)
        yield (
            _with(base, {}, ours, int(points[0])),
            Members(
                workloads=workloads, nodes=(base.nodes,) * len(places), which=numbers, strategies=(strategy,) * len(points), job=program
            ),
            points,
        )


def _cut(workload: LstmSpec | GemmSpec, stages: int, known: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Stage of every layer, from those `known` of workloads with the same layers; none where there is one stage."""
    layers = repr([(name, value) for name, value in workload if name not in ("global_batch", "sequence")])
    if layers not in known:
        from crossflow.parallel.transform import assign_stages

        known[layers] = assign_stages(workload.graph(), stages) if stages > 1 else ()
    return known[layers]


def _steps(workload: LstmSpec | GemmSpec, *, unrolled: bool) -> int:
    """Time steps, no more than change what repeats."""
    sequence = workload.sizes.get("sequence") or 1
    return sequence if unrolled else min(sequence, STEPS)


@dataclass(kw_only=True)
class _Read:
    """Points of a layered model as they are read."""

    which: Index  # dimensions of every point, -1 where only a scenario of its own can read them
    strategies: list[Any]  # strategy of every point
    sized: list[Sized] = field(default_factory=list)  # different dimensions
    jobs: list[Job | DlrmJob] = field(default_factory=list)  # what a step computes with each


def _batches(base: Scenario, ours: Mapping[str, Sequence[Any]], n: int) -> Iterator[Batch]:
    """Batches of n points of a layered model that differ in what `ours` says."""
    read = _read(base, ours, n)
    for i in np.flatnonzero(read.which < 0).tolist():
        yield _as_it_stands(_with(base, {}, ours, i), np.array([i]))
    nodes = [_nodes_of(sized.workload, sized.nodes, i) for i, sized in enumerate(read.sized)]
    for places in structures(list(zip(read.jobs, nodes, strict=True))):
        points = np.flatnonzero(np.isin(read.which, places))
        first, mine = read.sized[places[0]], tuple(read.strategies[i] for i in points)
        if len(places) == 1 and all(strategy is mine[0] for strategy in mine):
            yield _as_it_stands(_with(base, {}, ours, int(points[0])), points)
            continue
        numbers = np.searchsorted(places, read.which[points])
        made = base if set(first.settings) <= set(COUNTS) else _with(base, {}, ours, int(points[0]))
        yield (
            made,
            Members(
                workloads=tuple(read.sized[place].workload for place in places),
                nodes=tuple(read.sized[place].nodes for place in places),
                which=numbers,
                strategies=mine,
                job=chosen(stacked([read.jobs[place] for place in places]), numbers),
            ),
            points,
        )


def _nodes_of(workload: Any, nodes: tuple[int, int], place: int) -> str:
    """What of its nodes keeps a recommendation model apart: their devices; where tables are given to ranks, all, for each has its own."""
    if workload.model != "dlrm":
        return ""
    return str(nodes[0]) if workload.sharding is None else f"{nodes} {place}"


def _read(base: Scenario, ours: Mapping[str, Sequence[Any]], n: int) -> _Read:
    """What n points have in `ours`; an error is that of the first point that cannot be."""
    sizes = {path: values for path, values in ours.items() if path != "strategy"}
    read, jobs = _Read(which=np.full(n, -1), strategies=[None] * n), dict[str, Any]()
    for settings, points in groups(sizes, n):
        sized = _sized(base, settings, ours, points)
        if sized is None:
            continue
        model = repr({path: value for path, value in settings.items() if path not in BESIDE})
        if model not in jobs:
            jobs[model] = _job(base, sized.workload)
        read.which[points] = len(read.sized)
        read.sized.append(sized)
        read.jobs.append(jobs[model])
        if not sizes and isinstance(ours["strategy"], LegalStrategies):
            read.strategies = _serving(base, jobs[model], ours["strategy"])
            continue
        known = dict[Any, Plan | Hierarchy]()
        for i in points:
            written = ours["strategy"][i] if "strategy" in ours else sized.written
            key = written if isinstance(written, (str, Plan, Hierarchy)) else repr(written)
            if key not in known:
                known[key] = _divided(base, sized, jobs[model], written, ours, i)
            read.strategies[i] = known[key]
    return read


def _sized(base: Scenario, settings: Settings, ours: Mapping[str, Sequence[Any]], points: Index) -> Sized | None:
    """Dimensions of points, None where only a scenario of its own can read them; the error of the first that cannot be."""
    try:
        return resized(base, settings)
    except (CrossflowError, ValueError):
        for i in points:
            _with(base, {}, ours, i)
        return None


def _job(base: Scenario, workload: Workload) -> Job | DlrmJob:
    """What a step of a model computes; that of the scenario itself is kept."""
    if isinstance(workload, TransformerSpec):
        return job_of(workload) if workload is base.workload else job_of.__wrapped__(workload)
    assert workload.model == "dlrm"  # the caller has looked
    from crossflow.workload.jobs import dlrm_job

    return dlrm_job(workload)


def _divided(base: Scenario, sized: Sized, job: Job | DlrmJob, written: Any, ours: Mapping[str, Sequence[Any]], i: int) -> Plan | Hierarchy:
    """The strategy of a point, which divides its workload; an error, as its own scenario would have it, where it does not."""
    try:
        return _own(base, written) if isinstance(written, str) and not sized.settings else _checked(base, sized, job, written)
    except CrossflowError:
        _with(base, {}, ours, i)
        raise


@functools.lru_cache(maxsize=65536)
def _own(base: Scenario, written: str) -> Plan | Hierarchy:
    """What a text means for a scenario's workload, which it divides: searches and studies ask for the same over and over."""
    return _checked(base, resized(base, {}), None, written)


def _checked(base: Scenario, sized: Sized, job: Job | DlrmJob | None, written: Any) -> Plan | Hierarchy:
    """What a strategy means for dimensions of a scenario's workload, which it divides; an error where it does not."""
    strategy = sized.strategy(written)
    check_strategy(base, strategy, sized, None if job is None else job.model)
    return strategy


def _serving(base: Scenario, job: Any, legal: LegalStrategies) -> LegalStrategies:
    """The same strategies; StrategyError where one of them cannot serve beside the further parts of a service."""
    if base.workload.serves:
        for one in legal:
            check_strategy(base, one, None, job.model)
    return legal
