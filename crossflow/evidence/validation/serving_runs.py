"""How sources run services: lengths, what an engine waits for, how a run begins and ends, and what no row says of it.

What is known is in ``measurements.yaml``, by source and engine; all of it is a condition of the runs and no property of an engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import parse
from crossflow.evidence.validation.closed_loop import LoopRun, loop_times
from crossflow.evidence.validation.loop_apart import ApartRun, first_tokens_apart
from crossflow.evidence.validation.serving_models import ServedModel, names_of
from crossflow.evidence.validation.serving_recipes import recipe_guesses
from crossflow.evidence.validation.tables import TableRow, measurements
from crossflow.hardware.architecture.software import load_stack

GUESSED = "guessed tokens not marked"  # of models with layers that guess tokens: sources run them with and without, and do not say which
DRAFTED = "guessed tokens"  # of runs that are known to guess; nobody says how many guesses were right
UNVERSIONED = "engine's version not stated"
CACHED = "prompts read faster than devices multiply"  # so that a part of them must have lain in the cache, which nobody says
APART = "workers for prompts"
UNKNOWN = (GUESSED, DRAFTED, UNVERSIONED, CACHED, APART)
AHEAD = (0, 14)  # first vLLM that schedules a step while the one before runs unless it is told otherwise: its release notes of 2026-01-20
# What a step of these older ones waits for on the host, for each request: of the 5 to 6 ms that lay between two steps of 256 requests
# (issue 10634 of November 2024, pull request 11133) what `schedule` leaves. Updates of 2025 made it less by an amount that was not found.
WAITED = "20 us"
CONTIGUOUS = ((0, 11, 1), (0, 15, 0))  # vLLM whose experts of 8 bits in blocks are DeepGEMM's in every step: pull requests 26197 and 32414
SORTING = (0, 16, 0)  # first vLLM that may not sort logits to find the likeliest: pull request 33538 of February 2026, after 0.15
# Of its table, with 512 and 1,024 rows of 32,768 logits; its author's earlier ones (25824) were of an H100. Fewer rows take twice as long.
SORTED = "150 ps"
MARLIN = (0, 13, 0)  # first vLLM of InferenceX with VLLM_MXFP4_USE_MARLIN on Hopper (its perf-changelog.yaml, 327); Triton's kernels before
WIDEST = 7  # ranks that divide each expert up to which they are: 29346
PIECES = (0, 5, 10)  # first SGLang that captures steps that read prompts in pieces: its release notes of 2026-04-06
ROUNDED = 1e-9  # share of the time that is nothing
DEEPGEMM = "deepgemm-vllm"
FASTEST = 0.9  # of the peak rate; no product of gemm_graph.csv comes so far on Hopper and Blackwell

RunFacts = Mapping[str, Any]


def run_facts(row: TableRow) -> RunFacts:
    """What is known of the runs of a row's source with its engine; what its version or its device has of its own is laid over it.

    Runs that a source has from another one (`as`) are told by that.
    """
    given = (given["service"] for source, given in measurements().items() if row["source"].startswith(source) and "service" in given)
    engines: Mapping[str, RunFacts] = next(given, {})
    names = (f"{row['engine']} {row.get('engine_version') or ''}", f"{row['engine']} {row['device']}")
    told = sorted((name for name in engines if any(name == row["engine"] or one.startswith(name) for one in names)), key=len)
    for source in (engines[name]["as"] for name in told if "as" in engines[name]):
        return run_facts({**row, "source": source})
    return {key: value for name in told for key, value in engines[name].items()}


def unknown_of(row: TableRow, model: ServedModel | None) -> str:
    """What no row of its kind says though it decides times; empty where all is told."""
    guessed = guesses_of(row) if model is not None and model.guesses else False
    if guessed is not False:
        return DRAFTED if guessed else GUESSED
    return UNVERSIONED if not row.get("engine_version") else ""


def guesses_of(row: TableRow) -> bool | None:
    """Whether a run of a model that can guess tokens did, by its engine, version and day, or by its recipe; None where neither tells."""
    rules: Sequence[Mapping[str, Any]] = next(
        (given["drafted"] for source, given in measurements().items() if row["source"].startswith(source) and "drafted" in given), ()
    )
    fitting = (rule for rule in rules if all((row.get(name) or "").startswith(text) for name, text in rule.items() if name != "guesses"))
    return next((bool(rule["guesses"]) for rule in fitting), recipe_guesses(row))


def stack_of(engine: str) -> str:
    """Software of an engine as tables call it; CrossflowError where there is none."""
    word = engine.lower().partition(" ")[0]
    known = {name: load_stack(name)[0].known_as for name in files.catalogue("templates", "software")}
    for name, others in known.items():
        if word == name or word in others:
            return name
    raise CrossflowError(f"no software for engine '{engine}'")


def _parsed(text: str) -> tuple[int, ...] | None:
    """Three numbers of a version, None where they are not stated."""
    version = re.match(r"\D*(\d+)\.(\d+)(?:\.(\d+))?", text)
    return None if version is None else tuple(int(number or 0) for number in version.groups())


def _version(row: TableRow) -> tuple[int, ...] | None:
    """Version of a row's engine, None where it is not stated; published tables write it behind the engine's name."""
    return _parsed(row.get("engine_version") or row["engine"].partition(" ")[2])


def before_pieces(row: TableRow) -> bool:
    """Whether a row's SGLang is older than the first that captures prompts in pieces; rows without a version are from before it too."""
    version = _version(row)
    return row["engine"] == "sglang" and (version is None or version < PIECES)


def one_by_one(row: TableRow) -> bool:
    """Whether a row's vLLM is known to be older than the first that schedules a step while the one before runs."""
    version = _version(row)
    return row["engine"].partition(" ")[0] == "vllm" and version is not None and version < AHEAD


def sorts(row: TableRow) -> bool:
    """Whether a row's vLLM is known to be older than the first that may find the likeliest tokens without sorting all."""
    version = _version(row)
    return row["engine"] == "vllm" and version is not None and version < SORTING


def likeliest(row: TableRow) -> bool:
    """Whether requests of a row draw among their likeliest tokens: those of a source that names no sampling, which an engine then takes
    from the `generation_config.json` of the model.
    """
    return any(name.startswith(tuple(run_facts(row).get("likeliest", ()))) for name in names_of(row["model"]))


def kernels_of(engine: str, version: str, tensor: int) -> dict[str, Any]:
    """Kernels that a version of an engine took rather than those of its stack, where so many ranks divide each expert.

    On Hopper vLLM gave experts of 8 bits in blocks scales of powers of two, and then DeepGEMM's products of contiguous groups in steps
    of any number of tokens.
    """
    known = _parsed(version)
    if engine != "vllm" or known is None or not CONTIGUOUS[0] <= known < CONTIGUOUS[1] or tensor > WIDEST:
        return {}
    return {"experts": {"fp8_block": [DEEPGEMM, *load_stack("vllm")[0].kernels.experts["fp8_block"]]}}


def software_of(row: TableRow, tensor: int) -> Mapping[str, Any]:
    """What a row's engine did otherwise than the stack says, by its version and its runs; `tensor` ranks divide each expert."""
    found: dict[str, Any] = {}
    if before_pieces(row):
        found["host"] = {"pieces": False}
    if one_by_one(row):
        found["host"] = {"request": WAITED}
    engine = {
        **({"asynchronous": False} if one_by_one(row) else {}),
        **({"selecting": SORTED} if sorts(row) else {}),
        **({"gathers": True} if "balanced" in run_facts(row) else {}),
    }
    if engine:
        found["engine"] = engine
    kernels = kernels_of(row["engine"], row.get("engine_version") or "", tensor)
    if row["engine"] == "vllm" and row["source"].startswith("inferencex") and (_version(row) or (0,)) < MARLIN:
        kernels["widening"] = {"mxfp4": ["triton-kernels"]}
    if kernels:
        found["kernels"] = kernels
    return found


def too_fast(row: TableRow, own: Mapping[str, Any], score: Mapping[str, float]) -> bool:
    """Whether requests of a row end so fast that devices would multiply at more than `FASTEST` of their peak rate, were all prompts read.

    Users who each have one request after the other end one in the time of one (Little's law).
    """
    output = float(own["workload.output"])
    taken = (float(row["ttft_ms"]) + (output - 1.0) * float(row["tpot_ms"])) * 1e-3
    rate = float(own["workload.global_batch"]) / taken
    return score["mfu"] * rate / score["request_throughput_per_s"] > FASTEST


def mean_length(row: TableRow, column: str) -> int:
    """Mean of the lengths that requests of a row are drawn with. [1]"""
    return round(int(row[column]) * float(run_facts(row).get("lengths", 1.0)))


@dataclass(frozen=True, kw_only=True)
class LaunchedSteps:
    """Of a service whose host launches the kernels of steps that read one by one: figures where that takes no time, and what a step with
    one prompt takes.
    """

    captured: Mapping[str, float]
    step: float  # [s]


def measured_times(
    score: Mapping[str, float], row: TableRow, users: float, replicas: int, launched: LaunchedSteps | None = None
) -> tuple[float, float]:
    """Mean time to the first token, and for each further one, as a source measures them: with its front end, how its runs go, and what the
    engine waits for. [s]

    All requests of a run come at once at first, `users` to a replica, and each user asks again when it has its answer (`closed_loop`).
    Where requests wait for room steady state tells for how long; where workers of their own read prompts, or nothing is known of a source,
    it tells all but the burst.

    launched : of software that launches the kernels of steps that read one by one.
    """
    found = run_facts(row)
    tokens = mean_length(row, "isl") * parse(found.get("front_token", "0 s"), "s")
    front, requests = parse(found.get("front_end", "0 s"), "s") + tokens, float(found.get("requests_a_user", np.inf))
    if not found:
        burst = 0.5 * max(users - 1.0, 0.0) * score["prompt_time_s"] / requests
        return score["ttft_s"] + front + burst, _without_end(score, requests)
    steps, issue = (score, 0.0) if launched is None else (launched.captured, launched.step)
    run = LoopRun(
        users=max(round(users), 1), output=mean_length(row, "osl"), writing=_writing(steps), reading=steps["prompt_time_s"], issue=issue,
        requests=requests, front=front, texts=tokens, spread=2.0 / float(found.get("lengths", 1.0)) - 2.0,
        apart=row["engine"] == "sglang" and not found.get("mixed"), ahead=not one_by_one(row), room=_room(row, found, users),
    )  # fmt: skip
    waits = _unpolled(found, users * replicas) + _gathering(found, row, users, replicas)
    first, further = loop_times(run)
    late = score["ttft_s"] + front > first  # requests wait for room, and fewer write than there are users
    if late or not run.apart:  # prompts of equal answers come together, and share what the host takes to launch the steps that read them
        further = _without_end(score if run.spread else steps, requests)
    return max(score["ttft_s"] + front, first) + waits * run.writing, further


@dataclass(frozen=True, kw_only=True)
class ReadersTimes:
    """What workers for prompts take for one, as `ApartRun` has it, and the slots of those that write."""

    workers: int = 1
    ranks: int = 1
    alone: float = 0.0
    full: float = 0.0
    sent: float = 0.0
    room: int = 1
    slots: float = np.inf


def apart_times(score: Mapping[str, float], row: TableRow, users: float, readers: ReadersTimes) -> tuple[float, float]:
    """The same where workers of their own read prompts (`loop_apart`); a token takes what it does in steady state, and so does all where
    nothing is known of a source. [s]
    """
    found = run_facts(row)
    if not found:
        return score["ttft_s"], score["tpot_s"]
    texts = mean_length(row, "isl") * parse(found.get("front_token", "0 s"), "s")
    run = ApartRun(
        users=max(round(users), 1), output=mean_length(row, "osl"), spread=2.0 / float(found.get("lengths", 1.0)) - 2.0,
        requests=float(found.get("requests_a_user", np.inf)), writing=score["tpot_s"], alone=readers.alone, full=readers.full,
        sent=readers.sent, workers=readers.workers, ranks=readers.ranks, slots=readers.slots, texts=texts,
        room=max(readers.room, 1), front=parse(found.get("front_end", "0 s"), "s") + texts,
    )  # fmt: skip
    return first_tokens_apart(run), score["tpot_s"]


def _room(row: TableRow, found: RunFacts, users: float) -> int:
    """Prompts that a step has room for beside the tokens that it writes. [1]

    Of answers of one length, prompts that are read together once would come and be read together for ever, which no measured run of vLLM or
    TensorRT-LLM shows: their users are followed one by one. SGLang's runs show it.
    """
    if float(found.get("lengths", 1.0)) == 1.0 and row["engine"] != "sglang":
        return 1
    chunk = int(found.get("step_tokens", load_stack(stack_of(row["engine"]))[0].engine.chunk))
    return max(int((chunk - users) // mean_length(row, "isl")), 1)


def _without_end(score: Mapping[str, float], requests: float) -> float:
    """Mean time for each further token in steady state, with the end of a run. [s]

    A request is written while prompts of all others are read, once each. The last request of each user sees those alone that came after
    it in the burst: half of them in the mean.
    """
    return score["tpot_s"] - 0.5 * (score["tpot_s"] - _writing(score)) / requests


def _writing(score: Mapping[str, float]) -> float:
    """Time of a step that only writes. [s]"""
    mean, longest, reading = score["tpot_s"], score["itl_p99_s"], score["prefill_share"]
    share = reading * mean / longest  # of steps that read; where they are less than a hundredth, the longest are those that only write
    alike = longest <= mean or share >= 1.0 or reading >= 1.0 - ROUNDED  # where each step reads, none tells what one without takes
    return min(longest, mean) if alike else (1.0 - reading) * mean / (1.0 - share)


def _unpolled(found: RunFacts, users: float) -> float:
    """Steps for which a request waits in the mean until an engine looks that polls once in so many steps that write. [1]

    An engine that has nothing to do looks at once (SGLang's scheduler-recv-interval).
    """
    given: Sequence[tuple[int, int]] = found.get("polls", ())  # least users, and steps
    interval = max((steps for least, steps in given if users >= least), default=1)
    return 0.5 * (interval - 1.0) if users > 1 else 0.0


def _gathering(found: RunFacts, row: TableRow, users: float, replicas: int) -> float:
    """Steps for which a prompt waits in the mean until each replica has one to read, or so many steps are over (TensorRT-LLM's
    attention_dp_config: enable_balance, timeout_iters). [1]

    Prompts come one by one, each to any replica. The first of a round waits for the end of it, the others for half of it in the mean. All
    of R replicas have one after R (1 + 1/2 + ... + 1/R) prompts (the coupon collector).
    """
    timeout = float(found.get("balanced", 0.0))
    if replicas < 2 or not timeout:
        return 0.0
    come = users * replicas / mean_length(row, "osl")  # prompts in a step
    needed = replicas * sum(1.0 / i for i in range(1, replicas + 1)) - 1.0
    steps = min(timeout, needed / come)
    return steps * (1.0 + 0.5 * come * steps) / (1.0 + come * steps)
