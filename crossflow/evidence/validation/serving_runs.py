"""How sources run services: lengths, what an engine waits for, how a run begins and ends, and what no row says of it.

What is known is in ``measurements.yaml``, by source and engine; all of it is a condition of the runs and no property of an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.base.units import parse
from crossflow.evidence.validation.serving_models import ServedModel
from crossflow.evidence.validation.tables import TableRow, measurements

GUESSED = "guessed tokens not marked"  # of models with layers that guess tokens: sources run them with and without, and do not say which
UNVERSIONED = "engine's version not stated"
APART = "workers for prompts"

RunFacts = Mapping[str, Any]


def run_facts(row: TableRow) -> RunFacts:
    """What is known of the runs of a row's source with its engine; what its version or its device has of its own is laid over it."""
    given = (given["service"] for source, given in measurements().items() if row["source"].startswith(source) and "service" in given)
    engines: Mapping[str, RunFacts] = next(given, {})
    names = (f"{row['engine']} {row.get('engine_version') or ''}", f"{row['engine']} {row['device']}")
    told = sorted((name for name in engines if any(name == row["engine"] or one.startswith(name) for one in names)), key=len)
    return {key: value for name in told for key, value in engines[name].items()}


def unknown_of(row: TableRow, model: ServedModel | None) -> str:
    """What no row of its kind says though it decides times; empty where all is told."""
    if model is not None and model.guesses:
        return GUESSED
    return UNVERSIONED if not row.get("engine_version") else ""


def mean_length(row: TableRow, column: str) -> int:
    """Mean of the lengths that requests of a row are drawn with. [1]"""
    return round(int(row[column]) * float(run_facts(row).get("lengths", 1.0)))


def first_token(score: Mapping[str, float], row: TableRow, users: float, replicas: int) -> float:
    """Mean time to the first token as a source measures it: with its front end, what the engine waits for, and how its runs begin. [s]

    All requests of a run come at once at first, `users` to a replica; where each user has few of them one after the other, that counts.
    """
    found = run_facts(row)
    burst = 0.5 * max(users - 1.0, 0.0) * score["prompt_time_s"] / float(found.get("requests_a_user", np.inf))
    steps = _unpolled(found, users * replicas) + _gathering(found, row, users, replicas)
    return score["ttft_s"] + parse(found.get("front_end", "0 s"), "s") + burst + steps * _writing(score)


def further_token(score: Mapping[str, float], row: TableRow) -> float:
    """Mean time for each further token as a source measures it, with the end of its runs. [s]

    A request is written while prompts of all others are read, once each. The last request of each user sees those alone that came after
    it in the burst: half of them in the mean.
    """
    mean = score["tpot_s"]
    if row["mode"] == "disagg":  # whose steps read nothing
        return mean
    return mean - 0.5 * (mean - _writing(score)) / float(run_facts(row).get("requests_a_user", np.inf))


def _writing(score: Mapping[str, float]) -> float:
    """Time of a step that only writes. [s]"""
    mean, longest, reading = score["tpot_s"], score["itl_p99_s"], score["prefill_share"]
    share = reading * mean / longest  # of steps that read; where they are less than a hundredth, the longest are those that only write
    return min(longest, mean) if longest <= mean or share >= 1.0 else (1.0 - reading) * mean / (1.0 - share)


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
