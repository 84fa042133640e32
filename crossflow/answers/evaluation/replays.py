"""Scores of scenarios with requests: what replays say, in the place of the steady state that the requests are in the mean.

Whether a device can be built, what it costs, and the memory of weights and activations come from the closed form; times, rates,
energy, the cache and the figures of the service come from the replay of each point. A step is the mean one of the engines that write.
What a replay does not know, such as the parts of a step and the use of the peak, has no value.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossflow.answers.evaluation.figures import REPLAYED, TARGETED
from crossflow.answers.evaluation.replay_figures import columns_of, replayed_figures
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.score import FAR, Score
from crossflow.base.arrays import Array
from crossflow.engine.runs.memory import CACHE, KINDS
from crossflow.engine.runs.service import NO_ROOM, OVERRUN

OF_THE_FLOW = (NO_ROOM, OVERRUN)  # causes that stand against the mean request of a steady state, not against every run


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayRow:
    """What the replay of one point gives its score; `problem` says why there is nothing where no request can be answered."""

    problem: str = ""
    step: float = np.inf  # time of the mean step of the engines that write. [s]
    requests: float = 0.0  # that are answered in a second. [1/s]
    tokens: float = 0.0  # that are written in a second. [1/s]
    power: float = np.nan  # mean of all devices over the run. [W]
    rent: float = np.nan  # of the devices that run, in the mean. [USD/s]
    busy: float = np.nan  # share of the run in which an engine works, in the mean. [1]
    cache: float = np.nan  # keys and values on the fullest device at most. [B]
    figures: Mapping[str, float] = field(default_factory=dict)  # of the service, by column
    notes: tuple[str, ...] = ()  # what a reader should know of the run, as sentences


def replayed_score(score: Score, scenarios: Sequence[Scenario]) -> Score:
    """The score of points in steady state with what comes of replaying each of their scenarios, shape (n,) as before."""
    cause = [score.reasons[code] if code >= 0 else "" for code in score.reason.tolist()]
    rows = [row_of(one) if why in ("", *OF_THE_FLOW) else ReplayRow(problem=why) for one, why in zip(scenarios, cause, strict=True)]
    reasons = tuple(dict.fromkeys((*score.reasons, *(row.problem for row in rows if row.problem))))
    step, requests, tokens, power, rent = (
        np.array([getattr(row, name) for row in rows], dtype=float) for name in ("step", "requests", "tokens", "power", "rent")
    )
    unknown, cache = np.full(len(rows), np.nan), np.array([row.cache for row in rows])
    memory = {kind: np.where(np.isnan(cache), size, cache) if kind == KINDS[CACHE] else size for kind, size in score.memory.items()}
    energy = np.where(np.isfinite(step), power * np.where(np.isfinite(step), step, 1.0), np.inf)
    classes = {f"attained.{one.name}" for one in requests_of(scenarios[0]).classes if one.targeted}
    return replace(
        score, step_time=step, feasible=np.array([not row.problem for row in rows]), reasons=reasons,
        reason=np.array([reasons.index(row.problem) if row.problem else -1 for row in rows]), samples_per_second=requests,
        tokens_per_second=tokens, rent=np.where(np.isnan(rent), score.rent, rent), power=power, energy=energy, memory=memory,
        serving=_table([row.figures for row in rows], classes),
        breakdown={}, communication={}, exposed_communication={}, by_layer={}, bound={}, flops=unknown, memory_traffic=unknown,
        mfu=unknown, hfu=unknown, measured_share=unknown,
        second={name: size for name, size in score.second.items() if name in FAR},
    )  # fmt: skip


def _table(rows: Sequence[Mapping[str, float]], classes: Collection[str]) -> dict[str, Array]:
    """Figures by column, NaN where a row has none; points of one study have the same columns, whether any can be served or not."""
    names = [*(name for name in REPLAYED if name not in TARGETED or classes), *sorted(classes)]
    return {name: np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in names}


@functools.lru_cache(maxsize=4096)  # rows are small, and a search asks for known designs again
def row_of(scenario: Scenario) -> ReplayRow:
    """Replay a scenario."""
    trace = requests_of(scenario)
    found = replayed_figures(scenario, trace)
    if found.reason is not None:
        return ReplayRow(problem=found.reason.replace("{", "{{").replace("}", "}}"))
    steps, busy = (sum(values) for values in zip(*((float(did.steps.sum()), did.busy) for _, did in found.run.writing), strict=True))
    return ReplayRow(
        step=busy / steps if steps else np.inf, requests=found.requests_per_second, tokens=found.output_tokens_per_second,
        busy=float(np.mean(found.utilisation)), power=found.power, rent=np.nan if found.rent is None else found.rent,
        cache=(found.cache["peak_use"] or 0.0) * (found.cache["tokens"] or 0.0) * found.run.writers.held,
        figures=columns_of(found), notes=found.notes,
    )  # fmt: skip
