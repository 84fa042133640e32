"""Fit what kernels lose that move rows of tokens to experts one by one (`permutation` of a stack) to published training rates.

    python docs/scripts/fit_published.py --data DIR

DIR holds ``published_training.csv``. Of each value the script prints the loss on the mixtures of experts, and the errors of rows that a
fit leaves out: those of the other device, and models that are no mixtures of attention alone. It writes nothing. The loss is that of
``fit_training.py``: the mean absolute logarithm of predicted over measured time, each row's bounded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation import published
from crossflow.evidence.validation.tables import read_rows

BOUND = 0.5
STACKS = ("nemo", "nemo-graphs")
VALUES = (1.0, 0.8, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2)


def main() -> None:
    """Print the losses, and the errors that a fit on some rows has on others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    runs = mixtures(parser.parse_args().data / "published_training.csv")
    ratios = {value: np.array([ratio(run, value) for run in runs]) for value in VALUES}
    hybrid, hopper = (
        np.array([test(run) for run in runs]) for test in (lambda run: "Nemotron" in run.model, lambda run: run.device == "h100")
    )
    choices = {"all mixtures": ~hybrid, "those on H100": ~hybrid & hopper, "those on GB200": ~hybrid & ~hopper}
    for value, logs in ratios.items():
        print(f"{value:5.2f}  " + "  ".join(f"{name} {loss(logs[mine]):.3f}" for name, mine in choices.items()))
    for name, mine in choices.items():
        found = min(VALUES, key=lambda value: loss(ratios[value][mine]))
        others = {"fitted": mine, "other mixtures": ~hybrid & ~mine, "Nemotron": hybrid}
        print(f"fitted on {name}: {found}; median errors " + ", ".join(told(what, ratios[found], rows) for what, rows in others.items()))


def mixtures(file: Path) -> Sequence[published.PublishedRun]:
    """Published runs of mixtures of experts that can be predicted."""
    found = []
    for row in read_rows(file, published.PUBLISHED):
        try:
            run = published.published_run(file, row)
        except CrossflowError:
            continue
        if "ep" in run.data["strategy"]:
            found.append(run)
    return found


def ratio(run: published.PublishedRun, value: float) -> float:
    """Logarithm of predicted over measured time with a share of the rate of memory that such kernels reach."""
    software = run.data["software"]
    given = {"like": software} if isinstance(software, str) else dict(software)
    if given["like"] in STACKS:
        given["permutation"] = value
    time, _, _ = published.predicted(json.dumps({**run.data, "software": given}, sort_keys=True))
    return float(np.log(time / run.time))


def loss(logs: Array) -> float:
    """Mean of the bounded logarithms."""
    return float(np.minimum(np.abs(logs), BOUND).mean())


def told(name: str, logs: Array, mine: Mask) -> str:
    """Median error of some rows in words."""
    return f"{name} {100 * np.median(np.abs(np.expm1(logs[mine]))):.1f} % (n = {mine.sum()})" if mine.any() else f"no {name}"


if __name__ == "__main__":
    main()
