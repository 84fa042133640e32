"""Fit what Blackwell draws in kernels, `working_share`, and how its watts were read: the host's time of a call, and pauses before runs.

    python docs/scripts/fit_power.py --data DIR

DIR holds ``gemm_graph.csv``, ``attention.csv`` and ``moe.csv``. Readings of the B200 in kernels of 30 us and more; two thirds of them, by a
hash of the shape, are fitted, and the errors of the other third are printed beside theirs. What a device draws awake stays as its file has
it, the lowest reading, and a byte takes the energy that the library has. The loss is that of Cauchy over the logarithm of predicted over
measured watts, by Nelder and Mead's method from what the files hold. With --without KIND rows of that kind are left out of the fit, and
their errors are printed. The model is the package's own. It prints values, and writes nothing.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from crossflow.base import files
from crossflow.base.arrays import Array
from crossflow.evidence.validation.dropping import instead
from crossflow.evidence.validation.power import kernel_power_table
from crossflow.evidence.validation.tables import shipped

SCALE = 0.05  # of the loss: errors well above it count as outliers
NUMBERS = {
    "working_share": r"(working_share: \{value: )([\d.]+)",
    **{f"{name} [{unit}]": rf"(\b{name}: )([\d.]+)(?= {unit}\b)" for name, unit in (
        ("call", "us"), ("prefill", "ms"), ("decode", "ms"), ("gemm_graph", "ms"), ("moe", "ms")
    )},
}  # fmt: skip


def main() -> None:
    """Print the values and their errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with gemm_graph.csv, attention.csv and moe.csv")
    parser.add_argument("--without", default="", metavar="KIND", help="leave out rows of gemm_graph, moe, prefill or decode")
    given = parser.parse_args()
    texts = {path: path.read_text(encoding="utf-8") for path in _places()}
    table = kernel_power_table(given.data)
    held = np.array([int(hashlib.sha1(item.encode()).hexdigest(), 16) % 3 == 0 for item in table.items])
    kept = held | (np.array(table.groups["what"]) == given.without)

    def off(values: Array) -> Array:
        with instead(_changed(texts, values)):
            return np.log(kernel_power_table(given.data).predicted / table.measured)

    start = np.array([float(re.findall(number, "".join(texts.values()))[0][1]) for number in NUMBERS.values()])
    found = minimize(
        lambda scales: np.log1p((off(start * np.abs(scales))[~kept] / SCALE) ** 2).sum(), np.ones(len(start)), method="Nelder-Mead",
        options={"maxfev": 200, "xatol": 0.01, "fatol": 0.1, "initial_simplex": 1.0 + 0.2 * np.eye(len(start) + 1, len(start), -1)},
    ).x  # fmt: skip
    values = start * np.abs(found)
    sys.stdout.write("".join(f"{name} {value:.3g}\n" for name, value in zip(NUMBERS, values, strict=True)))
    errors = np.abs(np.expm1(off(values)))
    for name, rows in (("fitted", ~kept), ("held out by shape", held), (f"of {given.without}", kept & ~held)):
        if rows.any():
            sys.stdout.write(f"median error {np.median(errors[rows]):.1%} of {rows.sum()} rows {name}\n")


def _places() -> list[Path]:
    """Files of the numbers."""
    return [files.catalogue("templates", "families")["nvidia-blackwell"], shipped() / "measurements.yaml"]


def _changed(texts: Mapping[Path, str], values: Array) -> dict[Path, str]:
    """The same files with other numbers."""
    found = dict(texts)
    for number, value in zip(NUMBERS.values(), values, strict=True):
        put = functools.partial(re.sub, number, rf"\g<1>{value:.5g}")
        found = {path: put(text) for path, text in found.items()}
    return found


if __name__ == "__main__":
    main()
