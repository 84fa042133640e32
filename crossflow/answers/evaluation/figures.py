"""Figures that not every scenario has, of a service, of operation and of a whole run: their values, and what a scenario lacks for them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.evaluation.replay_statistics import PERCENTILES
from crossflow.answers.evaluation.scoring import energy_shares
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.score import ITERATION, Score
from crossflow.answers.steps.batch import Fleet
from crossflow.answers.steps.members import Members
from crossflow.base.arrays import Array, wide
from crossflow.base.errors import CrossflowError, did_you_mean, either, with_article
from crossflow.engine.runs.outcome import TAILS
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.run_cost import RunCost, load_of, node_power, operation_of, product, run_cost
from crossflow.hardware.architecture.system import reference_peak
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.workload.spec import TransformerSpec

# Figures of a service, named as serving tools name them, and the tasks that have them.
SERVING: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("prefill", "decode", "serving"),
    "tpot_s": ("decode", "serving"),
    "e2el_s": ("decode", "serving"),
    "input_throughput_tokens_per_s": ("prefill", "serving"),
    "output_throughput_tokens_per_s": ("decode", "serving"),
    "request_throughput_per_s": ("decode", "serving"),
    **dict.fromkeys((f"{figure}_{tail}_s" for figure in ("ttft", "tpot") for tail in TAILS), ("serving",)),
    "itl_p99_s": ("serving",),
    "requests_decoding": ("serving",),
    "requests_waiting": ("serving",),
    "prompt_time_s": ("serving",),
    "prefill_share": ("serving",),
}
# Those of a step whose experts lie on devices of their own.
POOLED = (
    "attention_busy", "experts_busy", "exchange_time_s", "exchange_bytes", "micro_batches", "experts_memory_bytes",
    "experts_memory_capacity_bytes",
)  # fmt: skip

# Figures of a service whose requests are replayed one by one; of these every class has ``attained.NAME`` beside them.
REPLAYED = (
    *(f"{time}{tail}_s" for time in ("ttft", "tpot", "itl", "e2el") for tail in ("", *(f"_{name}" for name in PERCENTILES))),
    "input_throughput_tokens_per_s", "output_throughput_tokens_per_s", "request_throughput_per_s", "requests_waiting", "attained",
    "goodput_per_s", "preemptions", "dropped", "queue_mean", "queue_peak", "cache_hit_rate", "cache_mean_use", "cache_peak_use",
    "replay_span_s", "replayed_requests",
)  # fmt: skip
TARGETED = ("attained", "goodput_per_s")  # of these, those that take targets
# Figures of a steady state that a replay does not have, and what the names of further ones begin with.
UNREPLAYED = (
    "requests_decoding", "prompt_time_s", "prefill_share", "mfu", "hfu", "flops", "memory_traffic_bytes", "intensity_flop_per_byte",
    "serialized_s", "hidden_communication_s", "exposed_share", *POOLED,
)  # fmt: skip
PARTS_OF_STEPS = ("breakdown_s", "communication_s", "exposed_communication_s", "by_layer_s", "bound_share")

# Columns that people most often ask for.
USUAL = ("step_time_s", "samples_per_second", "tokens_per_second", "mfu", "energy_j", "usd_per_million_tokens")

# Columns, by what they begin with, that take a field of the system's `operation`: its name, and an example.
OPERATION: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("run.cost_usd", "usd_per_million_", "job.cost_usd", "job.usd_"): ("price", "2 USD/hour"),
    ("carbon_kg", "run.carbon_kg"): ("carbon_intensity", "400 g/kWh"),
    ("embodied_carbon_kg", "run.embodied_carbon_kg"): ("lifetime", "5 years"),
}

SITE = ("host_power", "pue", "carbon_intensity")  # of an operation, what a pool takes from the system where its own leaves it open

# What columns of a run begin with that only an interrupted one has.
INTERRUPTED = tuple(f"run.{name}" for name in ("goodput", "undisturbed", "interruptions", "mean_time", "spares", "nodes_in", "checkpoint",
    "restart", "saving", "lost_work", "detection", "waiting", "maintenance", "shrunk", "slowed", "cause.", "time_low",
    "time_high", "mean_step", "p99_step"))  # fmt: skip

PROMPTS = frozenset(SERVING) - {"tpot_s", "input_throughput_tokens_per_s"}  # of decode, those that take the reading of prompts too


def task_of(scenario: Scenario) -> str:
    """Task of a transformer; nothing for other workloads, which serve no requests."""
    return scenario.workload.task if isinstance(scenario.workload, TransformerSpec) else ""


def usual_objective(scenario: Scenario) -> str:
    """Column to make small where nobody names one: the step; of a service the whole request, of a run that is interrupted all of it.

    The mean step of a service is shorter where fewer requests write at once, as where prompts are read slowly. A whole request takes
    shortest where the most are answered: of a fixed number in flight, by Little's law, one is the inverse of the other.
    """
    if scenario.post_training is not None:
        return ITERATION
    if scenario.reliability is not None:
        return "run.time_s"
    return "e2el_s" if task_of(scenario) == "serving" else "step_time_s"


def usual_figure(scenario: Scenario, score: Score) -> Array:
    """That column of a score of a scenario, without making all the others."""
    column = usual_objective(scenario)
    if column == ITERATION:
        return score.job.get("iteration_time_s", np.full(len(score), np.inf))
    return score.step_time if column == "step_time_s" else score.run["time_s"] if column == "run.time_s" else score.serving["e2el_s"]


def serving(scenario: Scenario, score: Score, reading: Score | None, members: Members) -> dict[str, Array]:
    """Figures of a service by column: time to first token, time per output token, throughput; none for other tasks.

    Requests of a batch are read, then written together: `ttft_s` is a step of prefill, `tpot_s` a step of decode, and `e2el_s` a
    whole request. `reading` is the score of reading the prompts of a decode step, with the same plans; where it is infeasible, what
    needs the prompts is NaN; without a score it is left out.
    """
    workload = scenario.workload
    if task_of(scenario) == "prefill":
        return {"ttft_s": score.step_time, "input_throughput_tokens_per_s": score.tokens_per_second}
    if task_of(scenario) == "serving":
        return dict(score.serving)
    if task_of(scenario) != "decode" or not isinstance(workload, TransformerSpec):
        return {}
    if reading is None:
        return {"tpot_s": score.step_time, **score.serving}
    first, output = np.where(reading.feasible, reading.step_time, np.nan), _output(members)
    requests = members.batch
    whole = first + np.where(output > 1, (output - 1) * score.step_time, 0.0)  # of a step without end no further one is asked
    return {
        "ttft_s": first,
        "tpot_s": score.step_time,
        "e2el_s": whole,
        "output_throughput_tokens_per_s": requests * output / whole,
        "request_throughput_per_s": requests / whole,
    }


def _output(members: Members) -> Array:
    """Tokens that are written for a request, shape (n,). [1]"""
    return np.array([float(getattr(one, "output", None) or 1) for one in members.workloads])[members.which]


def operation(fleets: Sequence[Fleet], score: Score) -> dict[str, Array]:
    """Figures of a step that the system's `operation` gives, by column; only those whose fields are given.

    `carbon_kg` is the operational carbon, as in LLaMA, Table 15 (arXiv:2302.13971): the energy that the facility takes during the
    step, as `facility_energy_j` of a run counts it, times the carbon intensity, summed over all `fleets`. [kg] `embodied_carbon_kg`
    is the step's share of the carbon of making the devices: its device-time over their lifetime, as in ACT (ISCA 2022, Eq. 1). [kg]
    """
    system, device = fleets[0].system, fleets[0].device
    given, made = operation_of(system, device), sum(device.carbon.values(), np.zeros(1))
    figures = {}
    if given.lifetime is not None and device.carbon:
        figures["embodied_carbon_kg"] = product(score.step_time * score.devices, made / given.lifetime)
    if given.carbon_intensity is None:
        return figures
    shares = [np.ones(1)] if len(fleets) == 1 else energy_shares(fleets, score.step_time)
    carbon = sum((_carbon(one, fleets[0], score, share) for one, share in zip(fleets, shares, strict=True)), np.zeros(1))
    return {"carbon_kg": wide(carbon, len(score)), **figures}


def _carbon(fleet: Fleet, main: Fleet, score: Score, share: Array) -> Array:
    """Operational carbon of a step's devices of one kind, with their `share` of its energy. [kg]

    What a pool's operation leaves open of the site is that of the `main` system, and so is the power of a host of which it says nothing.
    """
    operated, site = operation_of(fleet.system, fleet.device), operation_of(main.system, main.device)
    operated = operated.model_copy(update={name: getattr(site, name) for name in SITE if getattr(operated, name) is None})
    step = run_cost(
        amount=1, per_step=1, step_time=score.step_time, devices=fleet.devices, operation=operated,
        devices_per_node=fleet.system.devices_per_node, step_energy=product(score.energy, share), load=load_of(fleet.system),
    )  # fmt: skip
    assert operated.carbon_intensity is not None  # the main system has one
    return product(step.facility_energy, operated.carbon_intensity)


def with_figures(scenario: Scenario, fleets: Sequence[Fleet], score: Score, reading: Score | None, members: Members) -> Score:
    """The score with the figures that not every scenario has; see `serving` for `reading`, `whole_run` for the others.

    fleets : all devices of the points, those of the system itself first.
    """
    system, device = fleets[0].system, fleets[0].device
    served, operated = serving(scenario, score, reading, members), operation(fleets, score)
    score = score.having(serving=served, operation=operated) if served or operated else score
    if system.node_load is not None and not system.pools:
        each = node_power(system.node_load, score.power / score.devices, system.devices_per_node)
        score = score.having(node={"node_power_w": wide(each, len(score))})
    return score.having(run=whole_run(scenario, system, device, score, members)) if scenario.run else score


def whole_run(scenario: Scenario, system: SystemSpec, device: Architecture, score: Score, members: Members) -> dict[str, Array]:
    """What the whole run takes and costs, by name; none where the scenario does not say how long it is.

    `system`, `device` and `members` hold what varies between the points of the score.
    """
    length, dtype = scenario.run, scenario.workload.dtype
    if length is None or length.phases:  # whose own scenarios say what they take
        return {}
    per_step = _per_step(scenario, score, members, tokens=bool(length.tokens)) if length.samples or length.tokens else 1.0
    cost = functools.partial(
        run_cost, amount=float(length.samples or length.tokens or length.steps or 0.0), per_step=per_step,
        operation=operation_of(system, device), devices_per_node=system.devices_per_node, load=load_of(system),
        peak=device.throughput[dtype], reference=reference_peak(dtype),
    )  # fmt: skip
    found = cost(step_time=score.step_time, devices=score.devices, step_energy=score.energy)
    if scenario.reliability is not None:
        from crossflow.answers.evaluation.lasting import lasting_run

        return lasting_run(scenario, system, device, score, members, found, cost)
    figures = {**cost_figures(found), **{name: found.steps * amount for name, amount in score.operation.items()}}
    return {name: wide(values, len(score)) for name, values in figures.items()}


def cost_figures(found: RunCost) -> dict[str, Array]:
    """What a run takes and costs, by name."""
    return {
        "steps": found.steps,
        "time_s": found.time,
        "device_hours": found.device_hours,
        "normalised_device_hours": found.normalised_device_hours,
        "cost_usd": found.price,
        "energy_j": found.device_energy,
        "facility_energy_j": found.facility_energy,
    }


def _per_step(scenario: Scenario, score: Score, members: Members, *, tokens: bool) -> Array | float:
    """Samples, or tokens, of a step; of a service those that its rates say, whatever many requests are there at once. [1]

    Those of an iteration where the score is one of iterations of a job.
    """
    if score.job:
        return np.asarray(score.job["tokens_per_second" if tokens else "samples_per_second"] * score.job["iteration_time_s"])
    if task_of(scenario) == "serving":
        rate = score.tokens_per_second if tokens else score.samples_per_second
        return np.where(np.isfinite(score.step_time), rate, np.nan) * np.where(np.isfinite(score.step_time), score.step_time, 1.0)
    return members.batch * members.tokens if tokens else members.batch


def lacking(scenario: Scenario, column: str) -> str | None:
    """What a scenario lacks for a column that others have, in a sentence; None where it lacks nothing."""
    needs = next(_needs(scenario, column), None)
    return None if needs is None else f"{column} needs {needs}"


def check_objective(scenario: Scenario, columns: Mapping[str, Any], objective: str) -> None:
    """CrossflowError for an objective that is no numeric column of a scenario's score, with what the scenario lacks for it."""
    known = [name for name, values in columns.items() if isinstance(values, np.ndarray) and values.dtype.kind == "f"]
    lacks = lacking(scenario, objective)
    if lacks is not None:
        raise CrossflowError(lacks)
    if objective not in known:
        near = did_you_mean(objective, known)
        usual = "" if near else f", such as {', '.join(name for name in USUAL if name in known)}"
        raise CrossflowError(f"no objective '{objective}'{near}; objectives are the numeric columns of a score{usual}")


def _needs(scenario: Scenario, column: str) -> Iterator[str]:
    system, workload = scenario.system, scenario.workload
    places = {"system": system} | {place: one for place, one in system.places.items() if column.startswith("usd_per_million_")}
    tasks, task = SERVING.get(column), task_of(scenario)
    if tasks is not None and task not in tasks:
        wanted = f"workload.task: {either(tasks)}"
        yield f"{wanted}; here it is {task}" if task else f"a transformer with {wanted}; this is {with_article(workload.model)}"
    if column in POOLED and not (workload.decodes and workload.service.experts):
        yield "workload.serving.experts, of task: decode or serving, such as {strategy: dp8-ep8}"
    if tasks is not None and task == "decode" and column != "tpot_s" and workload.service.experts:
        yield "workload.task: serving, whose workers of serving.prefill read prompts; with serving.experts, a decode step has none"
    yield from _needs_requests(scenario, column)
    if column.startswith("job.") and scenario.post_training is None:
        yield "a job: section, such as job: {kind: dpo}"
    if column.startswith("run.") and scenario.run is None:
        yield "a run: section, such as run: {tokens: 1.0e12}"
    elif column.startswith("run.") and scenario.reliability is None and column.startswith(INTERRUPTED):
        yield "run.failures, such as run: {tokens: 1.0e12, failures: llama3-h100}"
    if column.endswith("_per_million_tokens") and not scenario.tokens_per_sample:
        yield f"a model with tokens; this {workload.model} has none"
    for names, (given, example) in OPERATION.items():
        lacks = [place for place, one in places.items() if getattr(one.operation, given, None) is None]
        if column.startswith(names) and lacks:
            yield f"{lacks[0]}.operation.{given}, such as {example}; {places[lacks[0]].name} gives none"
    if column == "node_power_w" and system.pools:
        yield "devices of one kind; leave system.pools out"
    elif column == "node_power_w" and system.node_load is None:
        yield f"system.node_load; {system.name} gives none"
    if column == "cost_usd":
        built = (scenario.architecture, *scenario.pool_architectures.values())
        unpriced = [one.name for one, device in zip(system.places.values(), built, strict=True) if not device.cost]
        yield from (f"prices of parts; the cost of {name} is not known" for name in unpriced[:1])
    if "normalised_device_hours" in column and np.isnan(reference_peak(workload.dtype)).all():
        yield f"a dtype that an A100 has; {workload.dtype} is none"
    if column == "measured_share" and scenario.profile is None:
        yield "a profile: of measured events"


def _needs_requests(scenario: Scenario, column: str) -> Iterator[str]:
    """What figures of replays need, and those that a replay does not have."""
    head, _, name = column.partition(".")
    if scenario.requests is None:
        if (column in REPLAYED and column not in SERVING) or (head == "attained" and name):
            yield "requests to replay, such as requests: {arrivals: {law: poisson, rate: 2 1/s}, count: 1000, prompt: 1000, output: 200}"
        return
    if column in UNREPLAYED or head in PARTS_OF_STEPS:
        yield "a steady state; leave out requests, which are replayed"
    targets = {one.name: one.targeted for one in requests_of(scenario).classes}
    if (column in TARGETED and not any(targets.values())) or (head == "attained" and not targets.get(name, True)):
        yield "targets: requests.targets, or those of a class, such as {ttft: 500 ms}"
