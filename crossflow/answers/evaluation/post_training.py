"""Post-training jobs: from a scenario with a `job` to the parts of its iteration, each a scenario of its own, and to its figures.

An iteration is made of phases, one after the other on the devices of training: a rollout, the transfer of weights to its engines, forward
passes of models that read the samples, training steps of the policy (and of a critic). Engines on devices of their own write while the
policy trains where answers may be older than it (AReaL [1]_, Sec. 4): an iteration then takes as long as the slower of both.

References
----------
.. [1] Fu et al., "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning", 2025, arXiv:2505.24298.
.. [2] Sheng et al., "HybridFlow: A Flexible and Efficient RLHF Framework", EuroSys 2025, arXiv:2409.19256, Sec. 5.3 and Table 2.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crossflow.answers.bands import FIGURES_OF_A_BAND, LEVELS, Trust
from crossflow.answers.evaluation.continued import Continued, continued
from crossflow.answers.evaluation.figures import operation, whole_run
from crossflow.answers.evaluation.job_trust import job_trust
from crossflow.answers.evaluation.likeness import told_trust, trust
from crossflow.answers.evaluation.replays import row_of
from crossflow.answers.evaluation.scoring import drawn_energy, rents
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.scenario import Scenario, check_strategy, from_document, requests_of, strategy_of
from crossflow.answers.score import Score
from crossflow.answers.steps.batch import Fleet
from crossflow.answers.steps.machines import machine
from crossflow.answers.steps.members import own_members
from crossflow.base.arrays import Array, points
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError
from crossflow.base.files import Document
from crossflow.base.units import show
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.groups import Group
from crossflow.workload.requests.post_training import FurtherModelSpec, JobPhase, PostTrainingSpec, RolloutSpec
from crossflow.workload.spec import TransformerSpec

OF_TRAINING = ("adapters", "frozen", "uneven")  # keys of a workload that neither forward passes nor engines have
OF_STEPS = ("sequence", "global_batch", "task")  # keys that say what a step computes
APART = ("job", "run", "requests", "workload", "strategy", "software", "placement", "name", "title", "notes")
PLACES = {"system": "devices", "requests.prompt": "prompt", "requests.output": "answer"}  # of a rollout, where its service is wrong
SHORT = "workload.sequence: {has:,} tokens per sample are fewer than prompt and answer have on average, {needs:,}; give at least that"
NOISE = 3.0  # standard errors of the mean of lengths that are drawn
CROWDED = "job: models that take turns on a device need {needed} of its memory, of {capacity}; give job.offload: true, or divide more"
ROLLOUT = "job.rollout"
SAME = 1e-9  # share of a part below which nothing of it is lacking [1]
FULL_HOST = "job.offload: models that wait need {needed} of the host's memory for each device, of {capacity}; divide them more"


@dataclass(frozen=True, kw_only=True, eq=False)
class JobParts:
    """Parts of an iteration, each a scenario of its own.

    Attributes
    ----------
    passes : forward passes over the samples of a training step by the name of the model.
    trained : training steps beside the policy's, by the name of the model.
    shared : models whose weights are the policy's, which needs no second copy of them.
    rollout : the service that writes the answers; None where none are written.
    steps : training steps of an iteration for each time that it trains on an answer. [1]
    phases : what the devices of training do, in order.
    """

    passes: Mapping[str, Scenario]
    trained: Mapping[str, Scenario] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    rollout: Scenario | None = None
    steps: float = 1.0
    phases: tuple[JobPhase, ...] = ()

    @property
    def named(self) -> Mapping[str, Scenario]:
        """All of them by what they do."""
        trained = {f"{name}_training": one for name, one in self.trained.items()}
        return {**self.passes, **trained, **({} if self.rollout is None else {"rollout": self.rollout})}


UNTRUSTED = Trust(level="unknown", band=None)  # of what does not run


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """What comes of a job at one point; `problem` says why it cannot run."""

    problem: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    trust: Trust = UNTRUSTED
    notes: tuple[str, ...] = ()


def job_score(score: Score, scenarios: Sequence[Scenario], *, strict: bool) -> Score:
    """The score of training steps with the figures of the jobs that they are part of; with `strict` what cannot be built is an error."""
    kept: dict[str, Scenario] = {}
    rows = [_row(one, score.take([i]), kept, strict=strict) for i, one in enumerate(scenarios)]
    reasons = tuple(dict.fromkeys((*score.reasons, *(row.problem for row in rows if row.problem))))
    names = dict.fromkeys(["iteration_time_s", *(name for row in rows for name in row.figures)])
    made = score.having(
        error_band=_bands([row.trust for row in rows]),
        job={name: np.array([row.figures.get(name, np.nan) for row in rows], dtype=float) for name in names},
        feasible=np.array([ok and not row.problem for ok, row in zip(score.feasible.tolist(), rows, strict=True)]),
        reasons=reasons, trust=np.array([LEVELS.index(row.trust.level) for row in rows]),
        reason=np.array([
            reasons.index(row.problem) if code < 0 and row.problem else code
            for code, row in zip(score.reason.tolist(), rows, strict=True)
        ]),
    )  # fmt: skip
    return made if scenarios[0].run is None or scenarios[0].phased else made.having(run=_runs(made, scenarios))


def _bands(found: Sequence[Trust]) -> dict[str, Array]:
    """Figures of the bands of iterations by name, shape (n,); nothing where none has one."""
    known = [one.figures or {} for one in found]
    return {name: np.array([one.get(name, np.nan) for one in known]) for name in FIGURES_OF_A_BAND} if any(known) else {}


def _runs(score: Score, scenarios: Sequence[Scenario]) -> dict[str, Array]:
    """What whole runs take and cost whose steps are iterations of the job, by name, shape (n,); NaN where there is none."""
    found, unknown = [], np.full(1, np.nan)  # of jobs that do not run
    for i, one in enumerate(scenarios):
        own = score.take([i])
        devices, energy = (own.job.get(name, unknown) for name in ("devices", "energy_j"))
        time = own.job["iteration_time_s"]
        iteration = own.having(step_time=time, energy=energy, power=energy / time, devices=devices)
        fleet = Fleet(system=one.system, device=one.architecture, devices=devices)
        iteration = iteration.having(operation=operation([fleet], iteration))
        found.append(whole_run(one, one.system, one.architecture, iteration, own_members(one)))
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _row(scenario: Scenario, score: Score, kept: dict[str, Scenario], *, strict: bool) -> JobRow:
    """What comes of the job of a scenario whose training step has a score; `kept` are services of other points, which it may share."""
    if not score.feasible[0]:
        return JobRow(problem="the training step of the job does not run")
    try:
        parts = parts_of(scenario)
        if parts.rollout is not None:  # points that differ in training alone have one service, which is replayed once
            parts = replace(parts, rollout=kept.setdefault(_said(parts.rollout), parts.rollout))
        return job_row(scenario, score, parts)
    except CrossflowError as error:
        if strict:
            raise
        return JobRow(problem=_plain(str(error)))


def _said(scenario: Scenario) -> str:
    """What a part of a job says, equal for those that differ in name alone."""
    return json.dumps(scenario.document.data, sort_keys=True, default=str)


def _plain(sentence: str) -> str:
    """A sentence as a reason of a score, whose braces are places of numbers."""
    return sentence.replace("{", "{{").replace("}", "}}")


# ------------------------------------------------------------------------------------------ parts


@functools.lru_cache(maxsize=1024)
def parts_of(scenario: Scenario) -> JobParts:
    """The parts of the job of a scenario; CrossflowError, which names the place, for one that cannot be built."""
    job, workload = scenario.post_training, scenario.workload
    assert job is not None  # the caller has looked
    assert isinstance(workload, TransformerSpec)  # the scenario was checked
    phases = job.on_training
    passes = {one.name: _reading(scenario, one.name, one.model) for one in phases if not one.trains}
    trained = {one.name: _learning(scenario, one.name, one.model) for one in phases if one.trains and not one.own}
    # Without its adapters, a policy is the model that it started from.
    base = {one.name for one in phases if one.name == "reference" and one.model == FurtherModelSpec() and workload.adapters is not None}
    found = JobParts(passes=passes, trained=trained, shared=frozenset({one.name for one in phases if one.own} | base), phases=phases)
    if job.rollout is None:
        return found
    return replace(found, rollout=_rollout(scenario, job.rollout), steps=job.samples / workload.global_batch)


def _own(scenario: Scenario) -> dict[str, Any]:
    return dict(scenario.document.data["workload"])


def _strategy(scenario: Scenario) -> Any:
    return scenario.document.data.get("strategy")


def _step(scenario: Scenario, spec: FurtherModelSpec, task: str) -> dict[str, Any]:
    """What a step of a model over the samples of a training step computes."""
    workload = scenario.workload
    assert isinstance(workload, TransformerSpec)
    named = {} if spec.model is None else {"model": spec.model, "dtype": workload.dtype}
    return {**named, "task": task, "sequence": workload.sequence, "global_batch": workload.global_batch}


def _reading(scenario: Scenario, name: str, spec: FurtherModelSpec) -> Scenario:
    """A forward pass of a model over the samples of a training step."""
    kept = {} if spec.model else {key: value for key, value in _own(scenario).items() if key not in (*OF_TRAINING, *OF_STEPS)}
    return _built(scenario, name, {**kept, **_step(scenario, spec, "forward")}, spec.strategy or _strategy(scenario))


def _learning(scenario: Scenario, name: str, spec: FurtherModelSpec) -> Scenario:
    """A training step of a model beside the policy."""
    kept = {} if spec.model else {key: value for key, value in _own(scenario).items() if key not in OF_STEPS}
    return _built(scenario, name, {**kept, **_step(scenario, spec, "training")}, spec.strategy or _strategy(scenario))


def _rollout(scenario: Scenario, spec: RolloutSpec) -> Scenario:
    """The service that writes the answers of an iteration."""
    devices = scenario.devices if spec.devices is None else spec.devices
    place = "job.rollout.strategy"
    plan = strategy_of(scenario, spec.strategy)
    if not isinstance(plan, Plan) or plan.dp > 1:
        raise StrategyError(f"{place}: expected the plan of one engine, such as tp2, got {spec.strategy}")
    if plan != Plan(tp=plan.tp, cp=plan.cp, pp=plan.pp, ep=plan.ep, etp=plan.etp):
        raise StrategyError(f"{place}: an engine is divided by tp, pp, cp and ep only, as in tp4-pp2; got {spec.strategy}")
    engines, left = divmod(devices, plan.devices)
    if left or not engines:
        raise StrategyError(f"{place}: engines of {plan.devices} devices do not fill {devices}; give job.rollout.devices, or another plan")
    own = scenario.document.data["job"]["rollout"]
    system = {key: value for key, value in scenario.document.data["system"].items() if key != "nodes"}
    left_out = (*OF_TRAINING, *OF_STEPS)
    kept = {key: value for key, value in _own(scenario).items() if key not in left_out}
    assert isinstance(scenario.workload, TransformerSpec)
    if _own(scenario)["model"] == scenario.workload.model:  # written out here: a preset has a length of its own
        kept["sequence"] = scenario.workload.sequence
    more: dict[str, Any] = {
        "system": {**system, "devices": devices},
        "requests": {
            "batch": spec.under_way, "answers": spec.answers, "prompt": own["prompt"], "output": own["answer"],
            "seed": spec.seed,
        },
    }  # fmt: skip
    workload = {**kept, "task": "serving", "dtype": scenario.workload.dtype}
    if spec.answers > 1:  # those of a prompt come to one engine
        workload["serving"] = {"router": "slices"}
    return _built(scenario, "rollout", workload, f"{spec.strategy}-dp{engines}", software=_engine_software(scenario, spec), **more)


def _engine_software(scenario: Scenario, spec: RolloutSpec) -> Any:
    """Software of the engines, with steps that take longer by what the trainer's process adds to them."""
    job, given = scenario.post_training, spec.software
    assert job is not None  # which has the rollout
    if job.taken is None or not job.taken.step:
        return given
    changes: dict[str, Any] = {"like": given} if isinstance(given, str) else dict(given)
    try:
        stack, _ = load_stack(Document(file=scenario.document.file, data=changes), scenario.base)
    except CrossflowError:  # reading the service says what is wrong, at its place
        return given
    step = show(float(stack.host.step[0]) + job.taken.step, "s", digits=12)
    return {**changes, "host": {**changes.get("host", {}), "step": step}}


def _built(scenario: Scenario, name: str, workload: Mapping[str, Any], strategy: Any, **more: Any) -> Scenario:
    """A part of a job as a scenario; CrossflowError that names the part where it is none."""
    assert scenario.post_training is not None  # whose part it is
    place = scenario.post_training.place(name)
    software = scenario.document.data.get("software") or (None if scenario.stack is None else scenario.stack.name)
    kept = {key: value for key, value in scenario.document.data.items() if key not in APART}
    data = {**kept, "software": software, **more, "workload": dict(workload), "strategy": strategy}
    try:
        made = from_document(Document(file=scenario.document.file, data=data), scenario.base, f"{scenario.name}: {name}", scenario)
        check_strategy(made)
    except SpecError as error:
        raise CrossflowError("; ".join(_placed(place, one) for one in error.problems)) from None
    except StrategyError as error:
        raise StrategyError(f"{place}: {error.clash}", error.resize, error.devices) from None
    return made


def _placed(place: str, problem: Problem) -> str:
    """A problem of a part as one of the job: with the key that the user wrote, where it is known."""
    own = next((key for of, key in PLACES.items() if place == ROLLOUT and problem.path.startswith(of)), None)
    if own is not None:
        return f"{place}.{own}: {problem.message}"
    return ": ".join(filter(None, (place, problem.path, problem.message)))


# ------------------------------------------------------------------------------------------ an iteration


@dataclass(frozen=True, kw_only=True)
class HeldModel:
    """A model on a device of training."""

    state: float  # what stays of it between its phases. [B]
    peak: float  # what the device holds while it works. [B]
    borrowed: float = 0.0  # of the peak, weights of a model that trains. [B]
    moved: float = 0.0  # what passes the bus in an iteration where it waits on the host. [B]


@dataclass(frozen=True, kw_only=True, eq=False)
class Iteration:
    """What devices of training and engines do in an iteration.

    Attributes
    ----------
    times : of the phases on the devices of training, by name. [s]
    rollout : answers as they were written.
    held : what every model holds on the fullest device of training, by name.
    steps : how often steps of each model are taken, and their score: passes first, then training. [1]
    """

    times: Mapping[str, float]
    rollout: Rollout
    held: Mapping[str, HeldModel]
    steps: Mapping[str, tuple[float, Score]]


def job_row(scenario: Scenario, score: Score, parts: JobParts | None = None) -> JobRow:
    """Figures of an iteration of a job, whose training step has a score; `parts` are its own where absent."""
    job, (found, problem) = scenario.post_training, iteration_of(scenario, score, parts)
    if found is None:
        return JobRow(problem=problem)
    assert job is not None
    figures = _figures(scenario, found.times, found.rollout)
    figures |= _drawn(scenario, found.rollout, figures["iteration_time_s"], list(found.steps.values()))
    if "cost_usd" in figures:
        figures["usd_per_million_tokens"] = 1e6 * figures["cost_usd"] / (figures["tokens_per_second"] * figures["iteration_time_s"])
    figures["memory_bytes"] = max(peaks_of(found.held, found.rollout, offload=job.offload).values())
    return JobRow(figures=figures, trust=whole_trust(scenario), notes=_notes(scenario, found.rollout))


def iteration_of(scenario: Scenario, score: Score, parts: JobParts | None = None) -> tuple[Iteration | None, str]:
    """The iteration of a job whose training step has a score; None where it cannot run, and why."""
    from crossflow.answers.evaluation import evaluate

    job, parts = scenario.post_training, parts or parts_of(scenario)
    assert job is not None
    different = {_said(one): one for one in parts.passes.values()}  # the policy before a step passes as its reference does
    known = {said: evaluate(one) for said, one in different.items()}
    scores = {name: known[_said(one)] for name, one in parts.passes.items()}
    trained = {name: evaluate(one) for name, one in parts.trained.items()}
    for name, one in (*scores.items(), *trained.items()):
        if not one.feasible[0]:
            return None, _plain(f"{job.place(name)}: {one.why(0)}")
    held = _models(scenario, score, scores, trained)
    found, problem = _written(scenario, parts, held)
    if problem:
        return None, problem
    made = {(False, name): one for name, one in scores.items()} | {(True, name): one for name, one in trained.items()}
    steps = {one.key: (parts.steps * one.times, made.get((one.trains, one.name), score)) for one in parts.phases}
    times = {name: often * float(one.step_time[0]) for name, (often, one) in steps.items()}
    if job.taken is not None:
        times["handling"] = job.taken.sample * job.samples
    if job.offload:
        bus = scenario.system.network.host.bandwidth * scenario.system.network.parameters.pcie_efficiency
        alone = sum(one.state > 0 for one in held.values()) == 1 and (job.rollout is None or job.rollout.devices is not None)
        times["moving"] = 0.0 if alone else sum(one.moved for one in held.values()) / float(bus[0])
    crowded = _crowded(scenario, score, held, found)
    return (None, crowded) if crowded else (Iteration(times=times, rollout=found, held=held, steps=steps), "")


def _models(scenario: Scenario, score: Score, scores: Mapping[str, Score], trained: Mapping[str, Score]) -> dict[str, HeldModel]:
    """What every model holds on the fullest device of training."""
    parts, workload = parts_of(scenario), scenario.workload
    learns = 1.0 if isinstance(workload, TransformerSpec) and workload.adapters is not None else 2.0  # weights that stay do not go back

    def learning(one: Score) -> HeldModel:
        weights, states = float(one.memory["weights"][0]), float(one.memory["optimizer"][0])
        kept = weights + states + float(one.memory["gradients"][0])
        return HeldModel(state=kept, peak=float(one.memory_needed[0]), moved=learns * weights + 2.0 * states)

    found = {"policy": learning(score), **{name: learning(one) for name, one in trained.items()}}
    for name, one in scores.items():
        weights, peak = float(one.memory["weights"][0]), float(one.memory_needed[0])
        if name in parts.shared or name in trained:  # whose weights are there for training
            found[f"{name} pass"] = HeldModel(state=0.0, peak=peak, borrowed=weights)
        else:
            found[name] = HeldModel(state=weights, peak=peak, moved=weights)
    return found


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Answers of an iteration as they were written."""

    time: float = 0.0  # of an iteration. [s]
    transfer: float = 0.0  # of weights to the engines. [s]
    refit: float = 0.0  # in which engines on the devices of training wake up and take them. [s]
    memory: float = 0.0  # that an engine takes of a device. [B]
    weights: float = 0.0  # of them, on a device. [B]
    power: float = 0.0  # of all engines meanwhile, in the mean. [W]
    busy: float = 0.0  # share of the time in which an engine works, in the mean. [1]
    tokens: float = 0.0  # of prompt and answer, in the mean. [1]
    answer: float = 0.0  # of the answer, in the mean. [1]
    longest: float = 0.0  # of the longest answer. [1]
    devices: int = 0  # beside those of training. [1]
    went: Continued | None = None  # where answers go on in the next iteration
    service: Scenario | None = None  # that wrote them


def _written(scenario: Scenario, parts: JobParts, held: Mapping[str, HeldModel]) -> tuple[Rollout, str]:
    """The rollout of an iteration, and why there is none; both empty for jobs without one."""
    from crossflow.answers.evaluation import evaluate

    job, made = scenario.post_training, parts.rollout
    assert job is not None
    if made is None or job.rollout is None:
        return Rollout(), ""
    spec, capacity = job.rollout, float(scenario.architecture.memory_capacity[0])
    if spec.devices is None and not job.offload:
        made = _in_what_is_left(made, 1.0 - sum(one.state for one in held.values()) / capacity)
    trace = requests_of(made)
    lengths = trace.prompt + trace.output
    tokens, drawn = float(np.mean(lengths)), NOISE * float(np.std(lengths)) / np.sqrt(len(lengths))
    assert isinstance(scenario.workload, TransformerSpec)
    if scenario.workload.sequence < tokens - drawn - 0.5:
        return Rollout(), SHORT.format(has=scenario.workload.sequence, needs=int(np.ceil(tokens)))
    row, steady = row_of(made), evaluate(made)
    if row.problem or not steady.feasible[0]:
        cure = "" if spec.devices is not None or job.offload else "; give job.offload: true, or job.rollout.devices"
        return Rollout(), f"job.rollout: {row.problem or steady.why(0)}{cure}"
    if row.figures["dropped"]:
        return Rollout(), f"job.rollout: {row.figures['dropped']:,.0f} answers have no room in the cache of an engine; divide it more"
    plan = made.strategy
    assert isinstance(plan, Plan)
    went = None if spec.partial is None else _continued(made, spec.at_once, spec.under_way, spec.answers)
    time = row.figures["replay_span_s"] if went is None else went.time
    weights, taken = float(steady.memory["weights"][0]), job.taken
    whole = weights * plan.devices / plan.dp
    return Rollout(
        time=time / max(spec.staleness, 1), transfer=_transfer(scenario, plan, weights, apart=bool(spec.devices)),
        refit=taken.refit + whole / taken.refit_rate if taken is not None and spec.devices is None else 0.0,
        memory=float(steady.memory_needed[0]), weights=weights,
        busy=row.busy if went is None else went.busy, power=row.power if went is None else went.power, went=went,
        tokens=tokens, answer=float(np.mean(trace.output)), longest=float(trace.output.max()), devices=spec.devices or 0,
        service=made,
    ), ""  # fmt: skip


_continued = functools.lru_cache(maxsize=256)(continued)


@functools.lru_cache(maxsize=1024)
def _in_what_is_left(rollout: Scenario, share: float) -> Scenario:
    """The service with engines that take no more than a share of a device's memory."""
    assert rollout.stack is not None
    share = min(float(rollout.stack.engine.memory[0]), share)
    if share <= 0:
        raise CrossflowError(
            "job.rollout: models that stay on the devices of training leave engines no memory; give job.offload: true, or rollout.devices"
        )
    given = rollout.document.data["software"]
    data = {**rollout.document.data, "software": {**given, "engine": {**given.get("engine", {}), "memory": share}}}
    return from_document(Document(file=rollout.document.file, data=data), rollout.base, rollout.name, rollout)


def _transfer(scenario: Scenario, engine: Plan, weights: float, *, apart: bool) -> float:
    """Time in which weights come from the layout of training to that of the engines. [s]

    On the same devices, a rank of an engine gathers what it lacks of its part. Of a model that training cuts into M parts and an engine
    into E, the same way, that is W/E - W/M bytes where M is a multiple of E (HybridFlow [2]_, Table 2); of one that is cut across, as in
    layers here and in columns there, a rank has a part of its part. To other devices every rank of training sends its part once, and each
    device of the engines takes its own: the larger of both passes the links between nodes.

    weights : of an engine, on a device. [B]
    """
    plan, runs_on, model = scenario.strategy, machine(scenario, scenario.architecture), scenario.job().model
    assert isinstance(plan, Plan)
    routed = sum(layer.count * m.parameters for layer in model.layers for part in layer.parts for m in part.matrices if m.routed)
    share = float(routed) / float(model.parameters + model.mtp_parameters)
    size = engine.devices // engine.dp
    (held, both), (experts, own) = _overlap(plan, engine, routed=False), _overlap(plan, engine, routed=True)
    part, kept = (1.0 - share) * held + share * experts, (1.0 - share) * both + share * own  # of the model: on a rank, of what it needs
    if apart:
        group = Group.across(np.full(1, float(scenario.nodes[0])))
        return float(runs_on.wires.time("send_recv", np.full(1, weights * max(1.0, part * size)), group)[0])
    lacking = max(1.0 - kept * size, 0.0)
    if lacking < SAME:
        return 0.0
    holders = max(int(np.ceil(1.0 / (1.0 - lacking) - SAME)), 2) if lacking < 1.0 else plan.devices
    apart_by = max(int(1.0 / part + SAME) // holders, 1)  # ranks of a copy of the model between those that a rank gathers from
    group = Group.alike(holders, max(min(holders, runs_on.node // min(apart_by, runs_on.node)), 1), 1)
    gathered = weights * lacking * holders / (holders - 1.0)  # of which a rank has one part
    return float(runs_on.wires.time("all_gather", np.full(1, gathered), group)[0])


def _overlap(plan: Plan, engine: Plan, *, routed: bool) -> tuple[float, float]:
    """Share of weights that lies on a rank of training, and share of them that it has of what its rank of an engine needs. [1]

    Parts that are cut the same way lie within each other: the finer cut says what both have. Experts are cut by themselves.
    """
    ends = [(one.tensor_of("experts"), one.ep) if routed else (one.tp, 1) for one in (plan, engine)]
    sharded = plan.devices / (plan.tp * plan.pp) if plan.zero == 3 else 1.0
    if routed and plan.zero == 3:
        sharded = plan.devices / (ends[0][0] * ends[0][1] * plan.pp)
    cuts = plan.pp, *ends[0]
    both = max(plan.pp, engine.pp), *(max(pair) for pair in zip(*ends, strict=True))
    return 1.0 / (np.prod(cuts) * sharded), 1.0 / (np.prod(both) * sharded)


def _others(held: Mapping[str, HeldModel], found: Rollout, name: str) -> float:
    """What stays of all models but one on a device. [B]"""
    engines = found.weights if not found.devices else 0.0
    return sum(one.state for key, one in held.items() if key != name) + engines


def peaks_of(held: Mapping[str, HeldModel], found: Rollout, *, offload: bool) -> dict[str, float]:
    """What the fullest device of training holds while each model works, and while engines write on it (`rollout`). [B]"""
    peaks = {name: one.peak + (0.0 if offload else _others(held, found, name) - one.borrowed) for name, one in held.items()}
    if found.memory and not found.devices:
        peaks["rollout"] = found.memory + (0.0 if offload else sum(one.state for one in held.values()))
    return peaks


def _crowded(scenario: Scenario, score: Score, held: Mapping[str, HeldModel], found: Rollout) -> str:
    """Why the models of a job have no room beside each other; nothing where they have."""
    job, capacity = scenario.post_training, float(score.memory_capacity[0])
    assert job is not None
    needed = max(peaks_of(held, found, offload=job.offload).values())
    if needed > capacity:
        return CROWDED.format(needed=show(needed, "B"), capacity=show(capacity, "B"))
    waiting, room = float(score.host_memory[0]) + sum(one.state for one in held.values()), float(score.host_capacity[0])
    if job.offload and waiting > room:
        return FULL_HOST.format(needed=show(waiting, "B"), capacity=show(room, "B"))
    return ""


def whole_of(job: PostTrainingSpec, training: Array, rollout: Array) -> Array:
    """What an iteration takes of phases of training and a rollout: the longer one where answers may be older than the policy. [s]"""
    beside = job.rollout is not None and job.rollout.beside
    return np.maximum(training, rollout) if beside else training + rollout


def step_of(scenario: Scenario) -> Scenario:
    """The training step of the policy of a job, as a scenario of its own."""
    document = scenario.document
    data = {key: value for key, value in document.data.items() if key not in ("job", "run")}
    return from_document(Document(file=document.file, data=data, lines=document.lines), scenario.base, scenario.name, scenario)


def _figures(scenario: Scenario, times: Mapping[str, float], found: Rollout) -> dict[str, float]:
    """Figures of an iteration by name; `times` are those of the phases on the devices of training. [s]"""
    job = scenario.post_training
    assert job is not None
    training, devices = sum(times.values()), scenario.devices + found.devices
    spec = job.rollout
    whole = float(whole_of(job, points(training), points(found.time))[0]) + found.transfer + found.refit
    samples = float(job.samples or scenario.workload_batch)
    tokens = found.tokens or float(scenario.tokens_per_sample)
    refitted = {"refit": found.refit} if found.refit else {}
    phases = {**({"rollout": found.time, "transfer": found.transfer, **refitted} if spec is not None else {}), **times}
    figures = {
        "iteration_time_s": whole, "samples_per_second": samples / whole, "tokens_per_second": samples * tokens / whole,
        "tokens_per_second_per_device": samples * tokens / whole / devices, "devices": float(devices),
        **{f"phase.{name}_s": time for name, time in phases.items()},
    }  # fmt: skip
    if spec is None:
        return figures
    working = found.time * found.busy
    figures["longest_answer"], figures["mean_answer"] = found.longest, found.answer
    figures["padding_share"] = (
        max(1.0 - tokens / scenario.workload.sequence, 0.0) if isinstance(scenario.workload, TransformerSpec) else 0.0
    )
    figures["engine_idle_share"] = 1.0 - found.busy
    if found.went is not None:
        ages = spec.staleness + max(spec.staleness, 1) * found.went.ages
        figures["staleness_mean"], figures["staleness_most"] = float(ages.mean()), float(ages.max())
        figures["stale_token_share"] = found.went.stale
    if spec.devices is None:
        figures["training_idle_share"] = (found.time - working) / whole
        figures["rollout_idle_share"] = figures["rollout_memory_bytes"] = np.nan  # there is one pool
    else:
        figures["training_idle_share"] = 1.0 - (training + found.transfer) / whole
        figures["rollout_idle_share"] = 1.0 - (working + found.transfer) / whole
        figures["rollout_memory_bytes"] = found.memory
    return figures


def _drawn(scenario: Scenario, found: Rollout, whole: float, steps: Sequence[tuple[float, Score]]) -> dict[str, float]:
    """Energy of an iteration, and its rent where the system has a price: devices that wait draw what they draw at rest.

    steps : how often steps of training and passes are taken in an iteration, and their scores.
    """
    fleet = Fleet(system=scenario.system, device=scenario.architecture, devices=np.full(1, float(scenario.devices)))
    resting = float(drawn_energy(fleet, np.ones(1))[0])
    worked = sum(often * float(one.step_time[0]) for often, one in steps) + (0.0 if found.devices else found.time)
    energy = sum(often * float(one.energy[0]) for often, one in steps) + resting * (whole - worked) + found.power * found.time
    energy += resting * found.devices / scenario.devices * (whole - found.time)
    every = replace(fleet, devices=fleet.devices + found.devices)
    spent = float(rents([every], scenario.workload.dtype, 1)[0][0]) * whole
    return {"energy_j": energy, **({} if np.isnan(spent) else {"cost_usd": spent})}


def _notes(scenario: Scenario, found: Rollout) -> tuple[str, ...]:
    """What is assumed of a job, as sentences."""
    job, workload = scenario.post_training, scenario.workload
    assert job is not None
    assert isinstance(workload, TransformerSpec)
    told = [*slips(scenario)]
    told.append("step time, its trust, parts, energy and money above are of the policy's training step; the job has its own figures")
    if scenario.run is not None:
        told.append("a step of the run is an iteration of the job")
    if job.rollout is None:
        return tuple(told)
    padding = 1.0 - found.tokens / workload.sequence
    if padding > 0.02:
        told.append(
            f"workload.sequence: {100 * padding:.0f} % of the tokens that training and passes compute are padding; without padding it is "
            f"{int(np.ceil(found.tokens))}, the mean of prompt and answer"
        )
    stack = None if (made := parts_of(scenario).rollout) is None else made.stack
    if job.rollout.answers > 1 and stack is not None and not stack.engine.prefixes:
        told.append("job.rollout.answers: each answer reads its prompt anew, for the engine keeps no prefixes (software.engine.prefixes)")
    return tuple(told)


def told_job(scenario: Scenario, score: Score) -> dict[str, Any]:
    """The job of a scenario as plain data; nothing where it does not run."""
    if not score.job or not np.isfinite(score.job["iteration_time_s"][0]):
        return {}
    figures = {name: float(values[0]) for name, values in score.job.items() if not np.isnan(values[0])}
    phases = {name.removeprefix("phase.").removesuffix("_s"): value for name, value in figures.items() if name.startswith("phase.")}
    rest = {name: value for name, value in figures.items() if not name.startswith("phase.")}
    assert scenario.post_training is not None
    return {
        "kind": scenario.post_training.kind, **rest, "phases_s": phases, "bound_by": _bound(scenario.post_training, phases),
        **told_trust(scenario, whole_trust(scenario)),
        "trust_of": {name: trust(one).to_dict() for name, one in parts_of(scenario).named.items()},
    }  # fmt: skip


def _bound(job: PostTrainingSpec, phases: Mapping[str, float]) -> str:
    """The longest phase; where engines write meanwhile, of the pool that takes longer."""
    training = {name: time for name, time in phases.items() if name not in ("rollout", "transfer", "refit")}
    beside = job.rollout is not None and job.rollout.beside
    if beside and sum(training.values()) < phases["rollout"]:
        return "rollout"
    of = training if beside else phases
    return max(of, key=lambda name: of[name])


def whole_trust(scenario: Scenario, *, changed: bool = False, farther: bool = False) -> Trust:
    """How far the figures of a scenario can be trusted: those of the iteration of a job, of another scenario those of its step.

    changed, farther : of a step, as `crossflow.answers.evaluation.likeness.trust` has them.
    """
    job = scenario.post_training
    if job is None:
        return trust(scenario, changed=changed, farther=farther)
    return job_trust(scenario, parts_of(scenario).named, writes=job.rolls_out)
