"""Published times of iterations of GRPO and PPO (``post_training.csv``) against jobs as scenarios.

What a trainer takes beside its phases was fitted to the phases of the runs of version 0.3 of NeMo RL (`OverheadsSpec`), and nothing to
later ones or to other trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.likeness import iterations_of, likeness
from crossflow.answers.scenario import from_dict
from crossflow.base.errors import CrossflowError, Problem, SpecError, StrategyError
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import TableRow, read_rows
from crossflow.workload.requests.laws import normal_of

COLUMNS = (
    "release", "system", "model", "devices", "behind", "longest", "answer", "samples", "batch", "engine", "training", "recompute", "passes",
    "engine_devices", "rate", "time", "source",
)  # fmt: skip
FITTED = "0.3"  # release whose phases the overheads were fitted to
NEMO = "NeMo RL"  # trainer of files that do not name any
# Systems of other trainers that are those of the library but for their links: A800 are A100 with eight of twelve NVLinks.
SLOWER = {"a800": {"template": "dgx-a100", "network": {"intra": {"bandwidth": "200 GB/s"}}}}
CV = 1.0  # of the lengths of answers, of which a row says the mean
PROMPT = 110  # tokens of rows without a rate or a prompt, the mean of the others
LEAST_PROMPT = 32
ROUND = 16  # tokens to which samples are filled, a multiple of every layout's tp x cp
RACKS, RACK, DOMAIN = "gb200-nvl72", 72, 64  # devices of one node of racks, and those that jobs of a power of two use where they need more
ANSWERS = 32  # of a prompt
ENGINE = "vllm"  # which every trainer of the table runs
NOTE = (
    f"What a trainer takes beside its phases was fitted to release {FITTED}. Lengths of answers are lognormal with a cv of 1, cut at the "
    "longest sequence, with the published mean"
)


def post_training_table(folder: Path) -> Table:
    """Times of an iteration of every row."""
    file = folder / "post_training.csv"
    measured, predicted, kept = [], [], []
    skipped: dict[str, int] = {}
    for row in read_rows(file, COLUMNS):
        try:
            time, reason = _predicted(row)
            published = float(row["time"])
        except ValueError as error:
            raise SpecError([Problem(file=str(file), message=str(error))]) from None
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        kept.append(row)
        measured.append(published)
        predicted.append(time)
    fitted = ["fitted to its phases" if row["release"] == FITTED else "nothing fitted" for row in kept]
    ahead = ["engines beside" if row["engine_devices"] else "engines in turn" for row in kept]
    trainers = [row.get("trainer") or NEMO for row in kept]
    told = ["assumed lengths" if row.get("assumed") else "printed lengths" for row in kept]
    return Table(
        name="post_training", measured=np.array(measured), predicted=np.array(predicted), skipped=skipped, notes=(NOTE,),
        groups={
            "trainer": trainers, "lengths": told, "fitted": fitted, "release": [row["release"] for row in kept],
            "system": [row["system"] for row in kept],
            "model": [row["model"] for row in kept], "engines": ahead,
        },
        items=[row["model"] for row in kept], alike=_alike(kept),
    )  # fmt: skip


def _alike(rows: Sequence[TableRow]) -> dict[str, list[str]]:
    """What makes iterations alike: kind and device; those whose lengths of answers are assumed speak for none."""
    runs = [iterations_of(likeness(from_dict(scenario_of(row)))) for row in rows]
    kinds = ["" if row.get("assumed") else run.kind for row, run in zip(rows, runs, strict=True)]
    return {"kind": kinds, "device": [run.device for run in runs], "type": [run.type for run in runs]}


def _predicted(row: TableRow) -> tuple[float, str]:
    """Time of an iteration of a row, and why there is none. [s]"""
    try:
        score = evaluate(from_dict(scenario_of(row)))
    except CrossflowError as error:
        return np.nan, str(error)
    return (float(score.job["iteration_time_s"][0]), "") if score.feasible[0] else (np.nan, str(score.why(0)))


def scenario_of(row: TableRow) -> dict[str, Any]:
    """The scenario of a row."""
    longest, answer, samples, batch = (int(row[name]) for name in ("longest", "answer", "samples", "batch"))
    beside = int(row["engine_devices"] or 0)
    devices = int(row["devices"]) - beside
    whole = float(row["rate"]) * float(row["time"]) * int(row["devices"]) / samples if row["rate"] else answer + PROMPT
    prompt = int(row.get("prompt") or 0) or max(round(whole - answer), LEAST_PROMPT)
    sequence = -(-(answer + prompt) // ROUND) * ROUND
    passes = int(row["passes"])
    alike = answer == longest - prompt  # all as long as they may be
    law = answer if alike else {"law": "lognormal", "mean": _uncut_mean(answer, longest - prompt), "cv": CV, "most": longest - prompt}
    answers = int(row.get("answers") or ANSWERS)
    rollout: dict[str, Any] = {
        "prompts": samples // answers, "answers": answers, "prompt": prompt, "answer": law, "strategy": row["engine"],
    }  # fmt: skip
    if beside:
        rollout |= {"devices": beside, "staleness": int(row["behind"])}
    if row.get("partial"):
        rollout["partial"] = float(row["partial"])
    if row.get("memory"):
        rollout["software"] = {"like": ENGINE, "engine": {"memory": float(row["memory"])}}
    job: dict[str, Any] = {"kind": row.get("kind") or "grpo", "offload": True, "old_policy": passes > 1, "rollout": rollout}
    if not passes:
        job["reference"] = "none"
    domain = {"devices_per_node": DOMAIN} if row["system"] == RACKS and devices > RACK else {}
    return {
        "name": f"{row['model']}, {row.get('trainer') or NEMO} {row['release']}",
        "system": {**SLOWER.get(row["system"], {"template": row["system"]}), "devices": devices, **domain},
        "workload": {"model": row["model"], "sequence": sequence, "global_batch": batch},
        "strategy": plan_of(row, devices, batch, longest / sequence),
        "job": job,
    }  # fmt: skip


def _uncut_mean(mean: float, most: int) -> float:
    """Mean of the lognormal lengths that have some mean when longer ones are cut. [1]"""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    def excess(uncut: float) -> float:
        centre, spread = normal_of(None, None, uncut, CV)
        edge = (np.log(most) - centre) / spread
        return float(uncut * ndtr(edge - spread) + most * ndtr(-edge)) - mean

    return float(brentq(excess, 0.5 * mean, 1000.0 * most))


def plan_of(row: TableRow, devices: int, batch: int, packed: float) -> str:
    """The plan of training of a row, whose micro-batch has the samples that a packed sequence of the longest one holds."""
    degrees = {part.rstrip("0123456789"): int(part.lstrip("abcdefghijklmnopqrstuvwxyz")) for part in row["training"].split("-") if part}
    dp, left = divmod(devices, int(np.prod([degrees.get(name, 1) for name in ("tp", "cp", "pp")])))
    if left or batch % dp:
        raise StrategyError(f"{row['training']} does not divide {devices} devices and a batch of {batch}")
    micro = degrees.get("mb") or 2 ** round(float(np.log2(max(packed, 1.0))))
    while (batch // dp) % micro:
        micro //= 2
    single = "-etp1" if "ep" in degrees and "tp" in degrees else ""
    parallel = "-sp" if "tp" in degrees else ""
    full = "-full" if row["recompute"] == "full" else ""
    more = (f"dp{dp}", "" if "mb" in degrees else f"mb{micro}", "" if "z" in degrees else "z1")
    return "-".join(filter(None, (row["training"], *more))) + single + parallel + full
