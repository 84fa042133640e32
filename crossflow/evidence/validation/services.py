"""Measured services request by request, replayed as they were asked (`service_runs` reads them, `service_settings` their engine).

A row is a mean or a percentile of a time of a run's requests, or the length of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from crossflow.answers.evaluation.replay_figures import replayed_figures
from crossflow.answers.evaluation.replay_statistics import spread
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.service_runs import MeasuredRun, measured_runs
from crossflow.evidence.validation.service_settings import device_of, not_replayed, scenario_of

FIGURES = {"ttft": "first token", "tpot": "time per token", "itl": "between tokens", "e2e": "whole request"}
SHOWN = ("mean", "p50", "p99")
UNKNOWN = "no template of device {}, or no preset of model {} (`config` of its settings may name a config.json)"
DROPPED = "the cache has no room for {} of the requests"
UNFIT = "the service does not fit as predicted"
KIND = "services, request by request"
LEFT = "{}: {} of engine_kwargs have no meaning here"


def services_table(folder: Path) -> Table:
    """Times of requests of all runs in a folder, as measured and as replayed."""
    measured, predicted, skipped = list[float](), list[float](), Counter[str]()
    groups: dict[str, list[str]] = {name: [] for name in ("figure", "device", "model", "run")}
    notes = {"services replayed request by request; figures of one run depend on each other": None}
    for run in measured_runs(folder):
        rows, device, model = _figures(run.times), device_of(run.settings, run.name), str(run.settings.get("model", ""))
        ours = _replayed(run, device)
        if isinstance(ours, str):
            skipped[ours] += len(rows)
            continue
        notes |= dict.fromkeys(_notes(run))
        for name, value in rows.items():
            measured.append(value)
            predicted.append(ours[name])
            for group, member in zip(groups, (name, device, model, run.name), strict=True):
                groups[group].append(member)
    return Table(
        name="services", measured=np.array(measured), predicted=np.array(predicted), groups=groups, skipped=skipped,
        items=[f"{device}, {model}" for device, model in zip(groups["device"], groups["model"], strict=True)],
        notes=list(notes), alike={"kind": [KIND] * len(measured)},
    )  # fmt: skip


def _replayed(run: MeasuredRun, device: str) -> dict[str, float] | str:
    """Figures of a run as replayed, or why it is not. [s]"""
    try:
        scenario = scenario_of(run.settings, device, run.trace)
        if scenario is None:
            return UNKNOWN.format(device, run.settings.get("model", "(not named)"))
        found = replayed_figures(scenario, run.trace)
    except CrossflowError as error:
        return f"{run.name}: {str(error).splitlines()[0][:200]}"
    if not found.feasible:
        return UNFIT
    dropped = int(found.found.dropped.sum())
    if dropped:
        return DROPPED.format(dropped)
    return _figures({**found.times, "makespan": np.array([found.span])}, gaps=(found.found.gap, found.found.gaps))


def _notes(run: MeasuredRun) -> tuple[str, ...]:
    """What a reader must know of a run."""
    left = not_replayed(run.settings)
    return (*(f"{run.name}: {note}" for note in run.notes), *((LEFT.format(run.name, ", ".join(left)),) if left else ()))


def _figures(times: Mapping[str, Array], gaps: tuple[Array, Array] | None = None) -> dict[str, float]:
    """Means and percentiles of times of requests, and the length of the run, by what they are. [s]

    gaps : times between two tokens, and how often each is there. [s], [1]
    """
    spreads = {key: spread(times[key]) for key in FIGURES if key in times} | ({} if gaps is None else {"itl": spread(*gaps)})
    found = {
        f"{FIGURES[key]}, {name}": float(value) for key, each in spreads.items() for name, value in each.items()
        if name in SHOWN and value is not None
    }  # fmt: skip
    return {**found, "the run": float(times["makespan"][0])} if "makespan" in times else found
