"""Runs that fail and come back: from a scenario's `run`, the score of its step and its memory to a `LongRun`, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from crossflow.answers.evaluation.figures import cost_figures
from crossflow.answers.scenario import Scenario, check_one_phase
from crossflow.answers.scenario_file import RunLength
from crossflow.answers.score import Score
from crossflow.answers.steps.members import Members, own_members
from crossflow.base.arrays import Array, divide, points, share_of, wide
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.engine.lasting.events import RunHistory, history
from crossflow.engine.lasting.intervals import best_interval
from crossflow.engine.lasting.jitter import exceeded, slowest
from crossflow.engine.lasting.record import KINDS_OF_TIME, NEVER_FAILS, PLANNED, FailureCause, Jitter, LongRun, SlowCause, TimeShares
from crossflow.engine.lasting.renewal import best_spares, expected, first_of_bursts
from crossflow.engine.lasting.saving import written_beside
from crossflow.engine.lasting.spec import CheckpointSpec, JitterSpec, Reliability, RestartSpec, common, rates
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.run_cost import RunCost
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.parallel.offload import master_size, states_size
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Job

T = TypeVar("T")
NEVER = 1e-9  # goodput below which a run never ends
MOST_DRAWN = 200_000  # interruptions of a run that is drawn: those of some years of a million devices


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedState:
    """What a checkpoint holds and how long it takes; arrays of shape (n,) or (1,)."""

    size: Array  # all of it, one copy. [B]
    device: Array  # what a device copies to its host, or sends. [B]
    stall: Array  # [s]
    commit: Array  # [s]
    load: Array  # [s]
    slowing: Array  # what steps lose beside each that is written over their links. [s]

    @property
    def costs(self) -> Array:
        """Time of computing that each takes. [s]"""
        return self.stall + self.slowing


@dataclass(frozen=True, kw_only=True, eq=False)
class Interrupted:
    """A run of every point with its interruptions."""

    run: LongRun
    saved: SavedState
    shares: TimeShares


def interrupted(scenario: Scenario, system: SystemSpec, device: Architecture, score: Score, members: Members) -> Interrupted:
    """How the run of a scenario fails and comes back, shape (n,); spares and the interval of saves are provided for the rates expected."""
    length, spec = scenario.run, scenario.reliability
    assert length is not None
    assert spec is not None  # the caller has looked
    saved = saved_state(scenario, system, device, score, members)
    nodes = np.ceil(score.devices / system.devices_per_node)
    checkpoint = length.checkpoint or CheckpointSpec()
    restart = sum(restart_times(length, spec, saved.load).values(), np.zeros(1))
    middle = _causes(spec, score.devices, nodes, restart)
    failing = sum((one.rate for one in middle), np.zeros(1))
    maintenance = length.maintenance
    run = LongRun(
        causes=middle, nodes=nodes, interval=_interval(checkpoint, saved, failing, score.step_time), stall=saved.costs, commit=saved.commit,
        restart=restart, elastic=bool(length.elastic), replica=np.maximum(nodes / _replicas(members), 1.0),
        planned=points(0.0) if maintenance is None else 1.0 / maintenance.every,
        maintenance=points(0.0) if maintenance is None else maintenance.length, slow=_slow(spec, score.devices, nodes),
    )  # fmt: skip
    if length.jitter is not None:
        run = replace(run, jitter=_jitter(length.jitter, score, nodes))
    if length.elastic == "reroute":
        run = replace(run, idle=share_of(score.breakdown.get("bubble", np.zeros(1)), score.step_time))
    given = length.spares
    run = replace(run, spares=points(float(given)) if isinstance(given, int) else best_spares(run))
    return Interrupted(run=run, saved=saved, shares=expected(run))


def _causes(spec: Reliability, devices: Array, nodes: Array, restart: Array, end: str = "rate") -> tuple[FailureCause, ...]:
    """Interruptions of jobs of so many devices and nodes, at an end of the interval of their rates; restarts take so long. [s]"""
    stopping = {name: one for name, one in spec.causes.items() if one.slowdown is None}
    all_of_it = [getattr(rates(spec, name), end) * one.many(devices, nodes) for name, one in stopping.items()]
    first = first_of_bursts(all_of_it, [one.again for one in stopping.values()], restart)
    return tuple(
        FailureCause(name=name, rate=rate, detection=one.detection + one.diagnosis, repair=one.repair, silent=one.silent, again=one.again,
                     domain=one.domain)
        for (name, one), rate in zip(stopping.items(), first, strict=True)
    )  # fmt: skip


def _slow(spec: Reliability, devices: Array, nodes: Array, end: str = "rate") -> tuple[SlowCause, ...]:
    """What slows such jobs and does not stop them, likewise."""
    return tuple(
        SlowCause(name=name, rate=getattr(rates(spec, name), end) * one.many(devices, nodes), length=one.detection + one.diagnosis,
                  slowdown=one.slowdown)
        for name, one in spec.causes.items() if one.slowdown is not None
    )  # fmt: skip


def _jitter(spec: JitterSpec, score: Score, nodes: Array) -> Jitter:
    """How the steps of such jobs vary: their computing does, which is what a step neither waits nor sends for."""
    waits = sum((score.breakdown[part] for part in ("exposed_communication", "bubble") if part in score.breakdown), np.zeros(1))
    computing = 1.0 - share_of(np.where(np.isfinite(waits), waits, 0.0), score.step_time)
    units = {"device": score.devices, "node": nodes}[spec.per]
    step = np.where(np.isfinite(score.step_time), score.step_time, 1.0)
    return Jitter(spread=spec.spread * computing, units=units, step=step, law=spec.law)


def saved_state(scenario: Scenario, system: SystemSpec, device: Architecture, score: Score, members: Members) -> SavedState:
    """Size of a checkpoint, and times to save and to load it.

    It holds the weights and the optimizer's states with the fp32 weights, once: parameters x the bytes of each. Sharded, every device
    saves its part of that; consolidated, devices of one replica save all that they hold, as the memory model counts it.
    """
    job = members.job
    length, stack, reliability = scenario.run, scenario.stack, scenario.reliability
    assert isinstance(job, Job)
    assert stack is not None
    assert length is not None
    assert reliability is not None  # the scenario was checked
    spec = length.checkpoint or CheckpointSpec()
    each = stack.weight_size(job.element) + states_size(job, stack) + master_size(job, stack)
    size, nodes = score.parameters * each, np.ceil(score.devices / system.devices_per_node)
    held = score.memory.get("weights", np.zeros(1)) + score.memory.get("optimizer", np.zeros(1)) + score.host_memory
    own = size / score.devices if spec.layout == "sharded" else held
    writers = nodes if spec.layout == "sharded" else np.maximum(nodes / _replicas(members), 1.0)
    storage = np.inf if spec.storage_bandwidth is None else spec.storage_bandwidth
    a_node = next(rate for rate in (spec.bandwidth, reliability.storage, common().storage) if rate is not None)
    bus = system.network.host.bandwidth * system.network.parameters.pcie_efficiency
    if spec.to == "storage":
        written, load = size / np.minimum(a_node * writers, storage), size / np.minimum(a_node * nodes, storage)
    else:
        link = np.zeros(1) if device.inter is None else device.inter.bandwidth
        with np.errstate(divide="ignore"):
            written = np.where(nodes > 1, own / link, np.inf)
        load = written + own / bus
    copied = own / bus
    behind = spec.kind == "behind"
    commit, slowing = written if behind else points(0.0), points(0.0)
    if behind and (spec.links or ("shared" if spec.to == "neighbours" else "own")) == "shared" and device.inter is not None:
        rate = np.minimum(divide(own, written * device.inter.bandwidth), 1.0)
        commit, slowing = written_beside(written, np.where(np.isfinite(written), rate, 0.0), score.port_use)
    return SavedState(
        size=size, device=wide(own, len(score)), stall=copied if behind else np.maximum(copied, written), commit=commit, load=load,
        slowing=slowing,
    )  # fmt: skip


def _replicas(members: Members) -> Array:
    """Data-parallel replicas of every point. [1]"""
    return np.array([float(plan.dp) if isinstance(plan, Plan) else 1.0 for plan in members.strategies])


def restart_times(length: RunLength, spec: Reliability, load: Array) -> dict[str, Array]:
    """Parts of a restart: what the scenario says, else the file of its failures, else what is assumed. [s]"""
    said = (length.restart or RestartSpec(), spec.restart, common().restart.model_copy(update={"load": load}))
    return {part: next(time for one in said if (time := getattr(one, part)) is not None) for part in ("schedule", "load", "warm_up")}


def _interval(spec: CheckpointSpec, saved: SavedState, failures: Array, step_time: Array) -> Array:
    """Computing time between two saves, which begin no sooner than the one before can be read, at a step's end at the earliest. [s]"""
    step = np.where(np.isfinite(step_time), step_time, 1.0)
    least = np.maximum(step, np.where(np.isfinite(saved.commit), saved.commit, 1.0))
    if spec.steps is not None:
        return np.asarray(np.maximum(spec.steps * step, least))
    if isinstance(spec.interval, str):
        return best_interval(saved.costs, failures, least)
    return np.asarray(np.maximum(spec.interval, least))


def lasting_run(
    scenario: Scenario, system: SystemSpec, device: Architecture, score: Score, members: Members, undisturbed: RunCost,
    cost: Callable[..., RunCost],
) -> dict[str, Array]:  # fmt: skip
    """Figures of the whole run with its interruptions, by name; `cost` is `run_cost` but for times, devices and energy.

    Its time is that of its steps over the goodput. Spares are paid for and powered as the other nodes. Devices take the power of a step
    while they compute, in vain or not; beside that nothing but the facility's power is known of them.
    """
    assert scenario.reliability is not None  # the caller has looked
    found = interrupted(scenario, system, device, score, members)
    job = scenario.reliability, score.devices, found.run.nodes
    low, high = (
        expected(replace(found.run, causes=_causes(*job, found.run.restart, end), slow=_slow(*job, end))) for end in ("low", "high")
    )
    shares, n = found.shares.shares, len(score)
    good = _ending(found.shares.goodput)
    computing = (shares["useful"] + shares["shrunk"] + shares["slowed"] + shares["lost_work"]) / good
    devices = score.devices + found.run.spares * system.devices_per_node
    whole = cost(step_time=score.step_time / good, devices=devices, step_energy=score.energy * computing)
    figures = {**cost_figures(whole), **run_figures(found, low, high, undisturbed.time)}
    grown = {
        "carbon_kg": whole.facility_energy / undisturbed.facility_energy,
        "embodied_carbon_kg": whole.device_time / undisturbed.device_time,
    }
    figures |= {name: undisturbed.steps * amount * grown[name] for name, amount in score.operation.items()}
    for name, end in (("time_low_s", low), ("time_high_s", high)):
        figures[name] = undisturbed.time / _ending(end.goodput)
    return {name: wide(values, n) for name, values in figures.items()}


def _ending(goodput: Array) -> Array:
    """The goodput of runs that end, and what makes the time of others endless. [1]"""
    return np.where(goodput > NEVER, goodput, 1.0 / np.finfo(float).max)


def run_figures(found: Interrupted, low: TimeShares, high: TimeShares, duration: Array) -> dict[str, Array]:
    """Figures of a run that is interrupted, by name; `low` and `high` are those of the lowest and of the highest rates.

    duration : of the run without interruptions. [s]
    """
    shares, run = found.shares, found.run
    causes = {*(one.name for one in run.causes), *(one.name for one in run.slow)}
    figures = {
        "goodput": shares.goodput, "goodput_low": high.goodput, "goodput_high": low.goodput,
        "undisturbed_time_s": duration, "interruptions": shares.interruptions * duration / _ending(shares.goodput),
        "mean_time_between_interruptions_s": 1.0 / np.maximum(shares.interruptions, NEVER_FAILS),
        "spares": run.spares, "nodes_in_repair": shares.away,
        "checkpoint_interval_s": run.interval, "checkpoint_stall_s": found.saved.stall, "checkpoint_commit_s": run.commit,
        "checkpoint_slowing_s": found.saved.slowing,
        "checkpoint_bytes": found.saved.size, "restart_s": run.restart,
        **{f"{kind}_share": shares.shares[kind] for kind in KINDS_OF_TIME[1:]},
        **{f"cause.{name}_share": share for name, share in shares.by_cause.items() if name != PLANNED or name in causes},
    }  # fmt: skip
    if run.jitter is not None:
        figures["mean_step_s"] = run.jitter.step * slowest(run.jitter)
        figures["p99_step_s"] = run.jitter.step * exceeded(run.jitter, 0.01)
    return {name: wide(values, len(shares.goodput)) for name, values in figures.items()}


def levers(run: LongRun) -> Iterator[tuple[str, Array, LongRun]]:
    """What could be better in a run: a name, what it is now, and the run with a tenth less of it (of spares a tenth more)."""
    for i, cause in enumerate(run.causes):
        for name in ("rate", "detection", "repair"):
            value = getattr(cause, name)
            if np.any(value > 0):
                better = replace(cause, **{name: 0.9 * value})
                yield f"{cause.name}.{name}", value, replace(run, causes=_instead(run.causes, i, better))
    for i, slow in enumerate(run.slow):
        for name in ("rate", "length"):
            value = getattr(slow, name)
            less = replace(slow, **{name: 0.9 * value})
            yield f"{slow.name}.{'detection' if name == 'length' else name}", value, replace(run, slow=_instead(run.slow, i, less))
    for name in ("stall", "commit", "restart", "planned", "maintenance"):
        if np.any(getattr(run, name) > 0):
            yield name, getattr(run, name), replace(run, **{name: 0.9 * getattr(run, name)})
    if run.jitter is not None and np.any(run.jitter.spread > 0):
        spread = run.jitter.spread
        yield "jitter.spread", spread, replace(run, jitter=replace(run.jitter, spread=0.9 * spread))
    if np.any(run.spares > 0):
        yield "spares", run.spares, replace(run, spares=np.ceil(1.1 * run.spares))


def _instead(some: tuple[T, ...], i: int, better: T) -> tuple[T, ...]:
    """The same with another one in a place."""
    return (*some[:i], better, *some[i + 1 :])


def gains(run: LongRun) -> dict[str, float]:
    """What a tenth less of each part of a run gains of its time, largest first; the number of one point. [1]

    Rates of all causes, all times of detection, and all times of repair together come first as ``all.rate`` and so on. The interval
    between checkpoints stays as it is.
    """
    base = expected(run).goodput
    found = {name: float((1.0 - base / expected(better).goodput)[0]) for name, _, better in levers(run)}
    for name, of_slow in (("rate", "rate"), ("detection", "length"), ("repair", None)):
        slow = tuple(replace(one, **({of_slow: 0.9 * getattr(one, of_slow)} if of_slow else {})) for one in run.slow)
        all_better = replace(run, causes=tuple(replace(one, **{name: 0.9 * getattr(one, name)}) for one in run.causes), slow=slow)
        found[f"all.{name}"] = float((1.0 - base / expected(all_better).goodput)[0])
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def notes_of_run(scenario: Scenario, found: Mapping[str, float | None]) -> Iterator[str]:
    """What is assumed of a run that is interrupted, and a checkpoint that is saved less often than asked, as sentences."""
    length, spec = scenario.run, scenario.reliability
    assert length is not None
    assert spec is not None
    if not spec.causes:  # nothing to come back from
        return
    assumed = dict.fromkeys(spec.assumed)
    said, checkpoint = length.restart or RestartSpec(), length.checkpoint or CheckpointSpec()
    for part in ("schedule", "warm_up"):
        own = getattr(said, part)
        if own is not None:
            assumed.pop(f"restart.{part}", None)
        elif getattr(spec.restart, part) is None:
            assumed[f"restart.{part}"] = None
    if checkpoint.to == "storage" and checkpoint.bandwidth is None and spec.storage is None:
        assumed["checkpoint.bandwidth (1 GB/s a node)"] = None
    if assumed:
        yield f"run: assumed for lack of published figures: {', '.join(assumed)}; give your own cluster's"
    asked, used = checkpoint.interval, found.get("checkpoint_interval_s")
    if not isinstance(asked, str) and used is not None and used > float(asked[0]) * (1 + 1e-9):
        yield (
            f"run.checkpoint.interval: a checkpoint is saved every {show(used, 's')}, not every {show(float(asked[0]), 's')}: the one "
            "before can be read only then, or a step takes as long"
        )


def drawn(scenario: Scenario, score: Score, seed: int, draws: int = 1, *, spans: bool = False, first: int = 0) -> tuple[RunHistory, ...]:
    """Draws of the run of a scenario, whose score this is, by events; CrossflowError where nothing interrupts it, or it never ends.

    first : number of the first of them; draws of one seed are independent of each other.
    """
    check_one_phase(scenario, "a drawn run")
    if scenario.reliability is None:
        raise CrossflowError(
            f"{scenario.name}: nothing interrupts its run; give run.failures, such as run: {{tokens: 1.0e12, failures: llama3-h100}}"
        )
    found = interrupted(scenario, scenario.system, scenario.architecture, score, own_members(scenario))
    work = float(score.run["undisturbed_time_s"][0])
    if not np.isfinite(work) or float(found.shares.goodput[0]) <= NEVER:
        raise CrossflowError(f"{scenario.name}: the run never ends; save more often, or have fewer failures")
    often = float(score.run["interruptions"][0])
    if often > MOST_DRAWN:
        told = f"a draw has at most {MOST_DRAWN:,} interruptions, and this run about {often:,.3g}"
        raise CrossflowError(f"{scenario.name}: {told}; draw a shorter run (run.tokens), or have fewer failures")
    return tuple(history(found.run, work, seed, spans=spans, draw=draw) for draw in range(first, first + draws))


def reliability_gains(scenario: Scenario, score: Score) -> dict[str, float]:
    """What a tenth less of each part of a run gains of its time, largest first; none where nothing interrupts it. [1]"""
    if scenario.reliability is None or scenario.phased:
        return {}
    return gains(interrupted(scenario, scenario.system, scenario.architecture, score, own_members(scenario)).run)
