"""Measured services request by request: what an engine did with each (``NAME.requests.jsonl``), and how it was set (``NAME.meta.json``).

Every run is replayed as it was asked: the arrivals, prompts and outputs of its requests, its limits of requests and of tokens, and the
tokens of its cache where its settings say them. A row is a mean or a percentile of a time of its requests, or the length of the run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation.replay_figures import replayed_figures
from crossflow.answers.evaluation.replay_statistics import spread
from crossflow.answers.scenario import Scenario, from_dict
from crossflow.base import files
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import shipped
from crossflow.workload.requests.record import RequestTrace

REQUESTS, SETTINGS = ".requests.jsonl", ".meta.json"
KEYS = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
FIGURES = {"ttft": "first token", "tpot": "time per token", "e2e": "whole request"}
SHOWN = ("mean", "p50", "p99")
UNKNOWN = "no template of the device, or no preset of the model"
KIND = "services, request by request"
UNFIT = "the service does not fit as predicted"
DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


def services_table(folder: Path) -> Table:
    """Times of requests of all runs in a folder, as measured and as replayed."""
    measured, predicted, skipped = list[float](), list[float](), Counter[str]()
    groups: dict[str, list[str]] = {name: [] for name in ("figure", "device", "model")}
    kinds = list[str]()
    for path in sorted(folder.glob(f"*{REQUESTS}")):
        trace, times, device, scenario = _run(path)
        rows = _figures(times)
        found = None if scenario is None else replayed_figures(scenario, trace)
        if found is None or not found.feasible or found.found.dropped.any():
            skipped[UNKNOWN if found is None else UNFIT] += len(rows)
            continue
        ours = _figures({**found.times, "makespan": np.array([found.span])})
        for name, value in rows.items():
            measured.append(value)
            predicted.append(ours[name])
            kinds.append(KIND)
            for group, member in zip(groups, (name, device, str(found.scenario.document.data["workload"]["model"])), strict=True):
                groups[group].append(member)
    return Table(
        name="services", measured=np.array(measured), predicted=np.array(predicted), groups=groups, skipped=skipped,
        items=[f"{device}, {model}" for device, model in zip(groups["device"], groups["model"], strict=True)],
        notes=["services replayed request by request; figures of one run depend on each other"], alike={"kind": kinds},
    )  # fmt: skip


def _figures(times: Mapping[str, Array]) -> dict[str, float]:
    """Means and percentiles of times of requests, and the length of the run, by what they are. [s]"""
    found = {
        f"{words}, {name}": float(value) for key, words in FIGURES.items()
        for name, value in spread(times[key]).items() if name in SHOWN and value is not None
    }  # fmt: skip
    return {**found, "the run": float(times["makespan"][0])}


def _run(path: Path) -> tuple[RequestTrace, Mapping[str, Array], str, Scenario | None]:
    """Requests of a run, their times as measured, the device, and the scenario where crossflow knows what it ran on."""
    rows = [_row(path, i, line) for i, line in enumerate(files.read_text(path).splitlines(), 1) if line.strip()]
    queued, first, last, prompt, output = np.array(sorted(rows), dtype=float).T
    begin = queued[0]
    trace = RequestTrace.of(queued - begin, prompt, output)
    further = np.where(output > 1, output - 1.0, np.nan)
    times = {"ttft": first - queued, "tpot": (last - first) / further, "e2e": last - queued, "makespan": np.array([last.max() - begin])}
    settings = json.loads(files.read_text(path.with_name(path.name.removesuffix(REQUESTS) + SETTINGS)))
    word = path.name.removesuffix(REQUESTS).removeprefix("llmservingsim_").partition("_")[0]
    device = {_plain(name): name for name in files.catalogue("templates", "devices")}.get(_plain(word), word)
    return trace, times, device, _scenario(settings, device, trace)


def _row(path: Path, number: int, line: str) -> tuple[float, ...]:
    """Times and tokens of a request."""
    try:
        found = json.loads(line)
        return tuple(float(found[key]) for key in KEYS)
    except (ValueError, TypeError, KeyError) as error:
        raise CrossflowError(f"{path}:{number}: expected a JSON object with the numbers {', '.join(KEYS)}: {error}") from None


def _scenario(settings: Mapping[str, Any], device: str, trace: RequestTrace) -> Scenario | None:
    """The service as it was set; None where there is no template of its device or no preset of its model."""
    asked = settings["engine_kwargs"]
    tensor, data = int(asked["tensor_parallel_size"]), int(asked["data_parallel_size"])
    system, model = _system(device, tensor * data), _model(str(settings["model"]))
    if system is None or model is None:
        return None
    known = settings.get("kv_cache", {}).get("num_kv_tokens")
    experts = f"-ep{tensor * data}" if asked.get("enable_expert_parallel") else ""
    serving = {"chunk": int(asked["max_num_batched_tokens"]), "router": "least_loaded", **({"cache_tokens": known} if known else {})}
    workload = {
        "model": model, "task": "serving", "dtype": DTYPES.get(str(asked["dtype"]), "bf16"), "prompt": int(trace.prompt.mean()),
        "output": max(int(trace.output.mean()), 2), "global_batch": int(asked["max_num_seqs"]) * data, "serving": serving,
    }  # fmt: skip
    share = settings.get("kv_cache", {}).get("gpu_memory_utilization", 0.9)
    software = {"like": "vllm", "engine": {"requests": int(asked["max_num_seqs"]), "memory": float(share)}}
    strategy = f"tp{tensor}-dp{data}{experts}"
    return from_dict({"name": device, "system": system, "workload": workload, "strategy": strategy, "software": software})


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _system(device: str, devices: int) -> Mapping[str, Any] | None:
    """A device by itself, or several of a node of it."""
    kind = "devices" if devices == 1 else "systems"
    names = (device,) if devices == 1 else (f"{device}-node", f"dgx-{device}", device)
    there = {_plain(name): name for name in files.catalogue("templates", kind)}
    found = next((there[_plain(name)] for name in names if _plain(name) in there), None)
    return None if found is None else {"template": found, "devices": devices}


def _model(name: str) -> str | None:
    """Preset of a model by its name at Hugging Face, its tuning and the day of its release left out."""
    called = files.read_yaml(shipped() / "models.yaml").data
    words = name.rpartition("/")[2].lower().split("-")
    presets = files.catalogue("templates", "models")
    for count in range(len(words), 0, -1):
        stem = "-".join(words[:count])
        if (preset := called.get(stem, stem)) in presets:
            return str(preset)
    return None
