"""Measured services: ``serving.csv`` (a fixed number of requests in flight), ``serving_latency.csv`` and
``accelerators_serving.csv`` (small published tables) and
``wide_experts.csv`` (rates of one phase, with experts shared out over many nodes).

Every row becomes a scenario of `task: serving`, of the last table of one phase; rows that differ in layout, lengths and requests are
evaluated together.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import experts_of, load_of, type_of
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.likeness import PROMPTS, TOKENS, featured
from crossflow.answers.scenario import Scenario, from_document
from crossflow.answers.score import Score
from crossflow.base import files
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.serving_models import ServedModel, names_of, served_model
from crossflow.evidence.validation.serving_recipes import Recipe, recipe_of
from crossflow.evidence.validation.serving_runs import (
    APART,
    CACHED,
    UNKNOWN,
    WAITED,
    LaunchedSteps,
    ReadersTimes,
    apart_times,
    guesses_of,
    likeliest,
    mean_length,
    measured_times,
    one_by_one,
    software_of,
    stack_of,
    too_fast,
    unknown_of,
)
from crossflow.evidence.validation.tables import (
    TableRow,
    above_zero,
    by_maker,
    device_architecture,
    device_words,
    measurements,
    notes_of,
    number,
    read_rows,
    template_of,
    wrong,
)
from crossflow.evidence.validation.training import check_whole
from crossflow.hardware.architecture.software import load_stack

SERVED = ("source", "engine", "model", "device", "mode", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")
LATENCY = ("source", "engine", "device", "gpus", "model", "tp", "precision", "input", "output", "batch_or_concurrency")
WIDE = (
    "source", "device", "system", "nodes", "engine", "model", "precision", "phase", "input", "requests_per_gpu", "ep", "redundant",
    "overlap", "load", "in_view", "tokens_per_s_node", "guessed", "left_out",
)  # fmt: skip
DEGREES = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
WHOLE = ("isl", "osl", "concurrency", "batch", *DEGREES)
IN_VIEW = ("found afterwards", "in view")  # of rows, when the model of such services took its present form
WRITTEN = 100  # tokens that are written for a request of `wide_experts.csv`, about
GUESSED = 1536  # the same of rows whose steps guess tokens
BATCH = "batch_or_concurrency"
FEW = 8  # requests in flight up to which a service is mostly alone [1]
# Data types of products and weights by what a row says of its checkpoint.
TYPES: Mapping[str, tuple[str, str]] = {
    "": ("bf16", ""), "bf16": ("bf16", ""), "16 bit": ("bf16", ""), "fp16": ("fp16", ""), "fp8": ("fp8", ""),
    "fp8_block": ("fp8_block", ""), "fp4": ("nvfp4", ""), "nvfp4": ("nvfp4", ""), "int4": ("bf16", "int4"), "int4_wo": ("bf16", "int4"),
    "mxfp4": ("bf16", "mxfp4"), "int8_wo": ("bf16", "int8"),
}  # fmt: skip
SKEW = 1.2  # exponent of the loads of experts, which no row states: the usual one of `moe.csv`
VARIATION = 1.28  # of the loads of experts as they were measured of DeepSeek-R1 (`crossflow.program.loads`), of rows over many nodes
READERS = {"workers": 64, "strategy": "tp8"}  # more than enough workers that read prompts, where guessed tokens make a row a service
# Models whose makers' checkpoints of 8 bits have scales of blocks of 128, say their model cards; NVIDIA's have one a tensor.
IN_BLOCKS = ("qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b", "qwen3.5-397b-a17b", "glm-5")
IN_GROUPS = ("kimi-k2.5", "kimi-k2-thinking")  # whose makers' integers of 4 bits have a scale for 32 of them, says their config.json
UNFIT = "the service does not fit as predicted"
NODES = ("dgx-{}", "{}-node", "{}-nvl72")  # what a node or a rack of one device is called, if it is not the only one
PREFILL = "workload.serving.prefill"
ALL_CACHED = 0.99999  # share of a prompt that lies in the cache where all but its last token does
ENDLESS = 2**16  # requests, more than any engine takes at once
Fields = dict[str, Any]
Case = tuple[Fields | str, Fields]  # what rows share of a scenario, or why there is none, and what is a row's own
ServedPart = tuple[TableRow, Case, str, float, float]  # a row, its scenario, the kind of a figure, and it as measured and as predicted


def serving_table(folder: Path) -> Table:
    """Times to the first token and for each further one of services with a fixed number of requests in flight."""
    file = folder / "serving.csv"
    rows = read_rows(file, SERVED)
    if problems := list(_not_whole(file, rows)):
        raise SpecError(problems)
    parts, skipped = list[ServedPart](), Counter[str]()
    cases = [_case(row, folder) for row in rows]
    scores = _scores(cases, skipped)
    fast = {
        _series(row) for row, case, score in zip(rows, cases, scores, strict=True)
        if score is not None and not isinstance(case, str) and too_fast(row, case[1], score)
    }  # fmt: skip
    launches, readings = _launched_steps(cases, scores), _readings(rows, cases, scores)
    for row, case, score, launched, readers in zip(rows, cases, scores, launches, readings, strict=True):
        if score is None or isinstance(case, str):
            continue
        users, told = case[1]["workload.global_batch"], CACHED if _series(row) in fast else _told(row, folder)
        if row["mode"] == "disagg":
            first, further = apart_times(score, row, users, readers)
        else:
            ranks = _replicas(case)
            first, further = measured_times(score, row, users / ranks, ranks, launched)
        load = told or (f"up to {FEW} requests" if users <= FEW else f"more than {FEW} requests")
        parts.append((row, case, f"time per token, {load}", above_zero(file, row, "tpot_ms") * 1e-3, further))
        parts.append((row, case, f"first token, {told}" if told else "first token", above_zero(file, row, "ttft_ms") * 1e-3, first))
    return _table("serving", parts, skipped, folder)


def _launched_steps(cases: Sequence[Case | str], scores: Sequence[dict[str, float] | None]) -> list[LaunchedSteps | None]:
    """What steps of services take whose host launches the kernels of those that read one by one; None of others."""
    mine = list[tuple[int, Fields, Fields]]()
    for i, (case, score) in enumerate(zip(cases, scores, strict=True)):
        shared, own = ("", {}) if isinstance(case, str) else case
        if score is not None and not isinstance(shared, str) and _launched(shared["software"]):
            mine.append((i, shared, own))
    device = _scores([({**shared, "software": _captured(shared["software"])}, own) for _, shared, own in mine], Counter())
    single = _scores([(shared, {**own, "workload.global_batch": _replicas((shared, own))}) for _, shared, own in mine], Counter())
    found: list[LaunchedSteps | None] = [None] * len(cases)
    for (i, *_), one, alone in zip(mine, device, single, strict=True):
        if one is not None and alone is not None:
            found[i] = LaunchedSteps(captured=one, step=alone["ttft_s"])
    return found


def _readings(rows: Sequence[TableRow], cases: Sequence[Case | str], scores: Sequence[dict[str, float] | None]) -> list[ReadersTimes]:
    """What workers for prompts take for one, of rows that have such workers: of one user, and of as many as keep all ranks full."""
    told = enumerate(zip(rows, cases, scores, strict=True))
    mine = [(i, case) for i, (row, case, score) in told if row["mode"] == "disagg" and score is not None and not isinstance(case, str)]
    found = [ReadersTimes()] * len(cases)
    alone = _scores([(shared, {**own, "workload.global_batch": 1}) for _, (shared, own) in mine], Counter())
    full = _scores([(shared, {**own, "workload.global_batch": ENDLESS, "workload.output": 2}) for _, (shared, own) in mine], Counter())
    for (i, case), one, many in zip(mine, alone, full, strict=True):
        if one is not None and many is not None:
            workers, strategy = case[1][f"{PREFILL}.workers"], case[1][f"{PREFILL}.strategy"]
            ranks = _replicas(("", {"strategy": strategy}))
            time = one["prompt_time_s"] * workers * ranks
            found[i] = ReadersTimes(
                workers=workers, ranks=ranks, alone=time, full=many["prompt_time_s"] * workers * ranks, sent=one["ttft_s"] - time,
                slots=_slots(case), room=_room(rows[i], case),
            )  # fmt: skip
    return found


def _engine(case: Case) -> Fields:
    """What the software of a case says of its engine; nothing where it is named alone."""
    software = case[0]["software"] if isinstance(case[0], dict) else ""
    return software.get("engine", {}) if isinstance(software, dict) else {}


def _slots(case: Case) -> float:
    """Requests that the writers of a case take at once, as its recipe has it; infinite where none is known. [1]"""
    requests = _engine(case).get("requests")
    return float(requests * _replicas(case)) if requests else np.inf


def _room(row: TableRow, case: Case) -> int:
    """Prompts that a rank of a worker reads in a step. [1]"""
    chunk = _engine(case).get("chunk")
    return int((chunk or load_stack(stack_of(row["engine"]))[0].engine.chunk) // case[1]["workload.prompt"])


def _launched(software: str | Fields) -> bool:
    """Whether the host of some software launches the kernels of steps that read one by one."""
    name = software if isinstance(software, str) else software["like"]
    return load_stack(name)[0].host.reading is not None


def _captured(software: str | Fields) -> Fields:
    """The same software with a host that takes no time for it."""
    given: Fields = {"like": software} if isinstance(software, str) else software
    return {**given, "host": {**given.get("host", {}), "reading": "0 us"}}


def _not_whole(file: Path, rows: Sequence[TableRow]) -> Iterator[Problem]:
    """Cells of lengths, degrees and counts that hold no whole number; they may be empty."""
    for row in rows:
        for column in (*WHOLE, *(f"{role}_{name}" for role in ("prefill", "decode") for name in (*DEGREES, "num_workers", "batch"))):
            cell = (row.get(column) or "0").strip()
            if not cell.isdigit() or (column in ("isl", "osl") and int(cell) < 1):
                yield wrong(file, row, column, "a whole number")


def _series(row: TableRow) -> tuple[str, ...]:
    """What rows of one series of runs share."""
    return tuple(row.get(name) or "" for name in ("source", "engine", "engine_version", "model", "device"))


def _told(row: TableRow, folder: Path) -> str:
    """What sets a row apart from those whose conditions are known: workers for prompts, and what decides times and is not said."""
    return ", ".join(filter(None, (APART if row["mode"] == "disagg" else "", unknown_of(row, served_model(row["model"], folder)))))


def _batch(cell: str) -> bool:
    """Whether a cell of requests at once is `max` or a positive whole number."""
    return cell == "max" or (cell.isdecimal() and int(cell) > 0)


def serving_latency_table(folder: Path) -> Table:
    """Whole requests, times per token, first tokens and throughputs of small published tables."""
    return _latency_table(folder, "serving_latency")


def accelerators_serving_table(folder: Path) -> Table:
    """The same of chips of other makers than NVIDIA."""
    return by_maker(_latency_table(folder, "accelerators_serving"))


def _latency_table(folder: Path, name: str) -> Table:
    """A published table whose rows are batches, requests in flight, or all requests of a run queued at once."""
    file = folder / f"{name}.csv"
    rows = read_rows(file, LATENCY)
    check_whole(file, rows, ("gpus", "input", "output"), ("tp", "pp", "requests"))
    if wrongs := [wrong(file, row, BATCH, "max or a positive whole number") for row in rows if not _batch(row[BATCH])]:
        raise SpecError(wrongs)
    parts, skipped = list[ServedPart](), Counter[str]()
    cases = [_published(row) for row in rows]
    scores = _scores(cases, skipped)
    for row, case, score, times in zip(rows, cases, scores, _offline(rows, cases, scores), strict=True):
        if score is None:
            continue
        doubtful = "suspicious" in (row.get("note") or "") or "doubled" in (row.get("note") or "")
        if row.get("e2e_s"):
            parts.append((row, case, "time per token and whole request", above_zero(file, row, "e2e_s"), score["e2el_s"]))
        elif row.get("itl_ms"):
            parts.append((row, case, "time per token and whole request", above_zero(file, row, "itl_ms") * 1e-3, score["tpot_s"]))
            if row[BATCH] == "1" and not doubtful:
                parts.append((row, case, "first token, one request", above_zero(file, row, "ttft_ms") * 1e-3, score["ttft_s"]))
        elif row.get("tokens_per_s"):
            parts.append((row, case, "offline throughput", 1.0 / above_zero(file, row, "tokens_per_s"), times))
    return _table(name, parts, skipped, folder)


def wide_experts_table(folder: Path) -> Table:
    """Time of a node for each token, of services that share experts out over many nodes. [s]"""
    file = folder / "wide_experts.csv"
    rows = read_rows(file, WIDE)
    skipped = Counter(row["left_out"] for row in rows if row["left_out"])
    kept = [row for row in rows if not row["left_out"]]
    scores = [evaluate(_scenario(*_of_phase(row))) for row in kept]
    return Table(
        name="wide_experts",
        measured=np.array([1.0 / number(file, row, "tokens_per_s_node") for row in kept]),
        predicted=np.array([float(row["nodes"]) / _rate(row, score) for row, score in zip(kept, scores, strict=True)]),
        groups={
            "kind": [PROMPTS if row["phase"] == "prefill" else TOKENS for row in kept],
            "source": [row["source"] for row in kept],
            "device": [row["device"] for row in kept],
            "load": [f"{row['phase']}, {row['load']}" for row in kept],
            "seen": [IN_VIEW[row["in_view"] == "yes"] for row in kept],
        },
        items=[f"{row['model']}, {row['phase']}" for row in kept],
        skipped=skipped,
        notes=["one phase alone; experts that are used as they come: with the variation that was measured of DeepSeek-R1"],
        alike={
            "stack": [row["engine"] for row in kept],
            "type": [type_of(TYPES[row["precision"]][0]) for row in kept],
            "load": [load_of(int(row["requests_per_gpu"])) for row in kept],
            "experts": [experts_of(int(row["ep"]), int(row["ep"]) / int(row["nodes"])) for row in kept],
        },
    )


def _rate(row: TableRow, score: Score) -> float:
    """Tokens a second of a step of one phase, or of all steps of a service whose guesses are not always right. [1/s]"""
    return float((score.serving["output_throughput_tokens_per_s"] if row["guessed"] else score.tokens_per_second)[0])


def _of_phase(row: TableRow) -> tuple[Fields, Fields]:
    """A row of one phase as a scenario."""
    ep, copies = int(row["ep"]), int(row["redundant"])
    lengths = {"prompt": int(row["input"])} if row["phase"] == "prefill" else {"prompt": int(row["input"]), "output": WRITTEN}
    shared = _shared(row["model"], row["device"], row["engine"], row["precision"])
    assert not isinstance(shared, str)  # models and devices that there are
    workload = {**shared["workload"], "task": row["phase"], **lengths, "global_batch": ep * int(row["requests_per_gpu"])}
    uneven = {} if row["load"] == "balanced" else {"variation": VARIATION}
    workload["experts"] = {**workload["experts"], "skew": 0.0, **uneven}
    workload.pop("wide_layers", None)  # attention is narrow too
    if row["guessed"]:
        tokens, right = row["guessed"].split(" x ")
        serving = {"speculation": {"tokens": int(tokens), "acceptance": float(right)}, "prefill": READERS}
        workload |= {"task": "serving", "output": GUESSED, "serving": serving}
    elif row["precision"] == "fp8":
        workload["kv_dtype"] = "bf16"  # as all of them kept it
    system = {"template": row["system"], "nodes": None, "devices": ep}
    software = {"like": shared["software"], "overlap": {"experts": row["overlap"] == "yes"}, "engine": {"balances": True}}
    return {"system": system, "workload": workload, "software": software}, {
        "strategy": f"dp{ep}-ep{ep}" + (f"-re{copies}" if copies else "")
    }


def _table(name: str, parts: Sequence[ServedPart], skipped: Mapping[str, int], folder: Path) -> Table:
    """A table of figures of several kinds; throughputs are compared as time for each token. [s]"""
    rows, cases, kinds = [row for row, *_ in parts], [case for _, case, *_ in parts], [kind for _, _, kind, *_ in parts]
    return Table(
        name=name,
        measured=np.array([measured for *_, measured, _ in parts]),
        predicted=np.array([predicted for *_, predicted in parts]),
        groups={
            "figure": kinds,
            "source": [row["source"] for row in rows],
            "device": [row["device"] for row in rows],
            "engine and figure": [f"{row['engine']}, {kind}" for row, kind in zip(rows, kinds, strict=True)],
            "model and figure": [f"{row['model']}, {kind}" for row, kind in zip(rows, kinds, strict=True)],
        },
        skipped=skipped,
        notes=notes_of(row["source"] for row in rows),
        items=[f"{row['model']}, {case[1]['workload.prompt']}/{case[1]['workload.output']}" for row, case in zip(rows, cases, strict=True)],
        alike={
            "kind": [_kind(figure, served_model(row["model"], folder)) for figure, row in zip(kinds, rows, strict=True)],
            "type": [type_of(case[0]["workload"]["dtype"]) for case in cases if not isinstance(case[0], str)],
            "load": [load_of(case[1]["workload.global_batch"] / _replicas(case)) for case in cases],
            "experts": [_experts(case) for case in cases],
        },
    )


def _kind(figure: str, model: ServedModel | None) -> str:
    """Kind of run that a figure is of, as predictions of it have it; none of rows of which something is not known that decides times."""
    if any(unknown in figure for unknown in UNKNOWN):
        return ""
    return (PROMPTS if figure.startswith("first token") else TOKENS) + featured({} if model is None else model.keys)


def _experts(case: Case) -> str:
    """How far apart the experts of a case lie; its devices are those of one node."""
    degree = re.search(r"\bep(\d+)", case[1]["strategy"])
    return experts_of(int(degree[1]) if degree else 1, case[1]["system.devices"])


def _replicas(case: Case) -> int:
    """Replicas of a case, which read prompts beside each other. [1]"""
    degree = re.search(r"\bdp(\d+)", case[1]["strategy"])
    return int(degree[1]) if degree else 1


def _offline(rows: Sequence[TableRow], cases: Sequence[Case], scores: Sequence[dict[str, float] | None]) -> list[float]:
    """Time for each token that all requests together are written, of runs in which all are queued at once. [s]

    As many as have room are written together and end together, for all are equally long; the last of these waves has what is left, and
    takes nearly as long. Where a source does not say how many requests its runs have, they have no end.
    """
    found = [np.nan if score is None else 1.0 / score["output_throughput_tokens_per_s"] for score in scores]
    known = [(i, _requests(row), score) for i, (row, score) in enumerate(zip(rows, scores, strict=True)) if score and _requests(row)]
    left = [(count - 1) % max(int(score["requests_decoding"]), 1) + 1 for _, count, score in known]
    ends = [
        (cases[i][0], {**cases[i][1], "workload.global_batch": _divided(few, rows[i])}) for (i, *_), few in zip(known, left, strict=True)
    ]
    for (i, count, _), few, end in zip(known, left, _scores(ends, Counter()), strict=True):
        assert end is not None  # fewer requests of a service that can run
        found[i] = ((count - few) * found[i] + end["e2el_s"] / int(rows[i]["output"])) / count
    return found


def _requests(row: TableRow) -> int:
    """Requests of a run in which all are queued at once, as its row or its source says; 0 where neither does."""
    if row.get("requests"):
        return int(row["requests"])
    known = measurements().get(row["source"], {}).get("requests", {})
    return int(known.get(f"{row['input']}/{row['output']}", 0)) if row[BATCH] == "max" else 0


def _divided(requests: int, row: TableRow) -> int:
    """So many requests, or a few more, that the replicas of a row of a published table divide."""
    ranks = replicas(row)
    return -(-requests // ranks) * ranks


def _mixture(model: str) -> bool:
    """Whether a model that has a preset is a mixture of experts."""
    served = served_model(model)
    return served is not None and served.mixture


def replicas(row: TableRow) -> int:
    """Replicas in a row of a published table: TensorRT-LLM's own has mixtures with attention data parallel over the GPUs that share
    the experts (its header).
    """
    return int(row["tp"]) if row[BATCH] == "max" and _mixture(row["model"]) else 1


# -------------------------------------------------------------------------------------------- rows as scenarios


def _count(row: TableRow, column: str) -> int:
    """A degree or a number of workers that a row states, 1 where it does not. [1]"""
    return int(row.get(column) or 1) or 1


def _engines(row: TableRow) -> tuple[int, int, int]:
    """Requests in flight of an engine, ranks of its tensor groups, and replicas of its attention. [1]

    A batch is that of one replica. Where requests are so many batches as an engine has ranks, and a row does not say how attention is
    divided, each rank has requests of its own; other multiples are engines beside each other. Requests are 0 where they are not stated.
    """
    apart = "decode_" if row["mode"] == "disagg" else ""
    tensor, data = _count(row, f"{apart}tp"), _count(row, f"{apart}attention_dp")
    experts = _count(row, f"{apart}moe_tp") * _count(row, f"{apart}moe_ep")
    if not apart and not row.get("attention_dp") and experts % tensor == 0:  # experts are divided over all ranks of an engine
        data = max(experts // tensor, 1)
    batch, users = int(row.get(f"{apart}batch") or 0), int(row["concurrency"] or 0)
    workers = _count(row, "decode_num_workers")
    if apart:
        return users or batch * data * workers, tensor, data
    times = users / (batch * data) if batch and users else 1.0
    if times == tensor > 1 and not row.get("attention_dp"):
        return users, 1, tensor
    return (users // int(times) if times.is_integer() else users) or batch * data, tensor, data


def _plan(tensor: int, data: int, of_experts: int, expert: int) -> tuple[int, int, str]:
    """Ranks of tensor groups, replicas of attention, and words of a plan for how its experts are divided.

    Experts that are divided over ranks of several replicas, each with tensor ranks, are dealt to the replicas: each rank has as much.
    """
    if of_experts == expert > 1 and tensor * data == expert**2:  # one dump multiplies degrees of the same ranks: runs that two dumps hold
        tensor, data, of_experts = (max(degree // expert, 1) for degree in (tensor, data, of_experts))
    if data == 1 or expert * of_experts == 1:
        return tensor, data, f"-ep{expert}-etp{of_experts}" if expert > 1 and expert * of_experts == tensor else ""
    whole = of_experts >= tensor and (expert > 1 or tensor == 1)
    return tensor, data, f"-ep{expert}-etp{of_experts}" if whole else f"-ep{data}-etp{tensor}"


def _case(row: TableRow, folder: Path) -> Case | str:
    """What rows share of a scenario, and what is this row's own; or why it cannot be predicted."""
    users, tensor, data = _engines(row)
    if not users:
        return "the number of requests in flight is not stated"
    apart = row["mode"] == "disagg"
    recipe = recipe_of(row, guesses_of(row)) if apart else None
    of_experts, expert = (_count(row, f"decode_{name}" if apart else name) for name in ("moe_tp", "moe_ep"))
    if not apart and of_experts == 1 and tensor == data > 1 and expert == tensor * data:  # of one node: a run that two dumps hold, as below
        data, expert = 1, tensor
    tensor, data, words = _plan(tensor, data, of_experts, expert)
    stages, engines = _count(row, "decode_pp" if apart else "pp"), _count(row, "decode_num_workers") if apart else 1
    if recipe is not None:
        engines, data = recipe.writers, recipe.writer_ranks
        tensor = recipe.writer_devices // data
        words = f"-ep{data}" if data > 1 else f"-ep{tensor}-etp1" if (recipe.writer_experts or expert) > 1 else ""
    degrees = (("tp", tensor), ("dp", data * engines), ("pp", stages))
    kept = row.get("moe_precision") or row.get("gemm_precision") or row.get("precision") or ""
    own = {
        "workload.prompt": mean_length(row, "isl"), "workload.output": mean_length(row, "osl"), "workload.global_batch": users,
        "strategy": ("-".join(f"{name}{size}" for name, size in degrees if size > 1) or "tp1") + words,
        "system.devices": tensor * data * engines * stages,
    }  # fmt: skip
    shared = _shared(row["model"], row["device"], row["engine"], kept, folder=folder, in_blocks=not row["model"].startswith("nvidia/"))
    if likeliest(row) and not isinstance(shared, str):
        shared |= {"workload": {**shared["workload"], "serving": {"likeliest": True}}}
    changed = dict(software_of(row, of_experts))
    if recipe is not None:
        chunk = recipe.room * mean_length(row, "isl")
        changed["engine"] = {**changed.get("engine", {}), "requests": recipe.slots, "chunk": chunk}
    if not isinstance(shared, str) and changed:
        shared |= {"software": {"like": shared["software"], **changed}}
    if apart:
        own |= {f"{PREFILL}.{name}": value for name, value in _readers(row, recipe).items()}
    return shared, own


def _readers(row: TableRow, recipe: Recipe | None) -> Fields:
    """Workers for prompts of a row: as its recipe has them, or as its own columns have them."""
    workers = _count(row, "prefill_num_workers") if recipe is None else recipe.readers
    if recipe is not None and recipe.reader_ranks > 1:
        ranks = recipe.reader_devices
        return {"workers": workers, "strategy": f"dp{ranks}-{'ep' if recipe.reader_experts > 1 else 'etp'}{ranks}"}
    degrees = (_count(row, f"prefill_{name}") for name in ("tp", "attention_dp", "moe_tp", "moe_ep"))
    tensor, data, of_experts, expert = degrees
    tensor, data, _ = _plan(tensor, data, of_experts, expert)
    if recipe is None and data > 1 and tensor == 1 and expert * of_experts > 1:
        return {"workers": workers, "strategy": f"dp{data}-{'ep' if expert > 1 else 'etp'}{data}"}
    _, _, words = _plan(tensor * data, 1, of_experts, expert)
    stages = f"-pp{row['prefill_pp']}" if _count(row, "prefill_pp") > 1 else ""
    return {"workers": workers, "strategy": f"tp{tensor * data}{words}{stages}"}


def _published(row: TableRow) -> Case:
    """The same of a row of a published table; `max` are all requests that the engine takes at once."""
    users, ranks = row[BATCH], replicas(row)
    engine = row["engine"] or "fastertransformer"  # those that are not named were published in 2023
    stages = f"-pp{row['pp']}" if int(row.get("pp") or 1) > 1 else ""
    known = measurements().get(row["source"], {})
    shared = _shared(row["model"], row["device"], engine, row["precision"], in_blocks=known.get("scales") != "tensor")
    if not isinstance(shared, str):
        shared |= {"system": {"template": known["system"]}} if "system" in known else {}
        own_software: Fields = {"host": known["host"]} if "host" in known else {}
        if one_by_one(row):
            own_software |= {"host": {"request": WAITED, **own_software.get("host", {})}, "engine": {"asynchronous": False}}
        if row.get("requests"):  # which the engine was told to take, all at once
            own_software["engine"] = {**own_software.get("engine", {}), "requests": int(row["requests"])}
        if own_software:
            shared |= {"software": {"like": shared["software"], **own_software}}
        if row.get("cache"):
            shared["workload"]["kv_dtype"] = row["cache"]
    own = {
        "workload.prompt": int(row["input"]), "workload.output": int(row["output"]),
        "workload.global_batch": ENDLESS if users == "max" else int(users),
        # All are queued at once, and equally long. With one stage pieces add up, and those that are read together save a percent.
        **({"workload.serving.together": True} if users == "max" and stages else {}),
        "strategy": (f"dp{ranks}-ep{ranks}" if ranks > 1 else f"tp{row['tp']}") + stages,
        "system.devices": int(row["gpus"]),
    }  # fmt: skip
    if row.get("e2e_s") and known.get("cached"):
        own["workload.serving.prefix_hits"] = ALL_CACHED
    return shared, own


def _shared(model: str, device: str, engine: str, kept: str, *, in_blocks: bool = True, folder: Path | None = None) -> Fields | str:
    """Model, device, software and data types; `in_blocks` says whether a checkpoint of 8 bits is the maker's own."""
    served, template = served_model(model, folder), system_of(device)
    if served is None:
        return f"no preset for model '{model}', and no config.json of it beside the table"
    if template is None:
        return f"no template for device '{device}'"
    try:
        stack = stack_of(engine)
    except CrossflowError as error:
        return str(error)
    if kept not in TYPES:
        return f"data type '{kept}' is not known"
    dtype, weight = TYPES[kept]
    if dtype == "fp8" and (served.blocks or served.named in IN_BLOCKS) and in_blocks:
        dtype = "fp8_block"
    if weight == "int4" and any(name in IN_GROUPS for name in names_of(model)):
        weight = "int4_32"
    known = device_architecture(device)
    if dtype == "nvfp4" and known is not None and dtype not in known.throughput:
        dtype, weight = "bf16", served.narrow or "nvfp4"
    workload: Fields = {"model": served.named, "task": "serving", "dtype": dtype}
    if weight:
        workload["weight_dtype"] = weight
    if dtype in ("fp8", "fp8_block", "nvfp4"):
        workload["kv_dtype"] = "fp8"
    if served.mixture:
        workload["experts"] = {**served.keys["experts"], "skew": SKEW}
        if weight or dtype == "nvfp4":  # checkpoints of 4 bits keep the attention of mixtures as it was
            workload["wide_layers"] = ["attention"]
    return {"system": {"template": template}, "workload": workload, "software": stack}


@functools.cache
def system_of(device: str) -> str | None:
    """System of a device as tables call it: a node or a rack of it where there is one, the device itself elsewhere; None for neither."""
    name = template_of(device)
    if name is None:
        return None
    systems = files.catalogue("templates", "systems")
    nodes = (node.format(word) for node in NODES for word in sorted(device_words(name)))
    theirs = [system for system, path in systems.items() if files.read_yaml(path).data.get("device") == name]
    alone = theirs if len(theirs) == 1 and theirs[0].endswith("-node") else []
    return next((node for node in nodes if node in theirs), next(iter(alone), name))


def _scores(cases: Sequence[Case | str], skipped: Counter[str]) -> list[dict[str, float] | None]:
    """Figures of every case, None where there are none; rows that share a scenario are evaluated together."""
    found: list[dict[str, float] | None] = [None] * len(cases)
    groups: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        problem = case if isinstance(case, str) else case[0] if isinstance(case[0], str) else None
        if problem is not None:
            skipped[problem] += 1
        else:
            groups.setdefault(repr((case[0], sorted(case[1]))), []).append(i)
    for places in groups.values():
        for i, figures in zip(places, _evaluated([cases[i] for i in places], skipped), strict=True):  # type: ignore[misc]
            found[i] = figures
    return found


def _evaluated(cases: Sequence[tuple[Fields, Fields]], skipped: Counter[str]) -> list[dict[str, float] | None]:
    """Figures of cases that share a scenario."""
    try:
        return _together(cases, skipped)
    except CrossflowError as error:
        if len(cases) == 1:
            skipped[error.said.splitlines()[0][:160]] += 1
            return [None]
    return [one for case in cases for one in _evaluated([case], skipped)]


def _together(cases: Sequence[tuple[Fields, Fields]], skipped: Counter[str]) -> list[dict[str, float] | None]:
    scenario = _scenario(*cases[0])
    score = evaluate(scenario, {path: [own[path] for _, own in cases] for path in cases[0][1]})
    if not score.feasible.all():
        skipped[UNFIT] += int((~score.feasible).sum())
    figures = {**score.serving, "mfu": score.mfu}
    return [{name: float(values[i]) for name, values in figures.items()} if score.feasible[i] else None for i in range(len(cases))]


def _scenario(shared: Fields, own: Fields) -> Scenario:
    data: Fields = copy.deepcopy(shared)
    for path, value in own.items():
        *places, last = path.split(".")
        place = data
        for name in places:
            place = place.setdefault(name, {})
        place[last] = value
    return from_document(Document(file="serving", data=data), None, "serving")
