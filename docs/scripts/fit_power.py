"""Fit what Blackwell draws in kernels: `working_share`, the energy of a byte, and how little trtllm's bf16 and nvfp4 operands switch.

    python docs/scripts/fit_power.py --data DIR

DIR holds ``gemm_graph.csv``, ``attention.csv`` and ``moe.csv``. Readings of the B200 in kernels of 30 us and more; two thirds of them, by a
hash of the shape, are fitted, and the errors of the other third are printed beside theirs. What a device draws awake stays as its file has
it, the lowest reading. The loss is that of Cauchy over the logarithm of predicted over measured watts, by Nelder and Mead's method from
what the files hold. The model is the package's own. It prints values, and writes nothing.
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

from crossflow import files
from crossflow.arrays import Array
from crossflow.validation.changes import instead
from crossflow.validation.power import kernel_power_table
from crossflow.validation.tables import shipped

SCALE = 0.05  # of the loss: errors well above it count as outliers
NUMBERS = (r"(working_share: \{value: )([\d.]+)", r"(\n  memory: \{value: )([\d.]+)", r"((?:bf16|nvfp4): )(0\.[\d.]+)")


def main() -> None:
    """Print the values and their errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with gemm_graph.csv, attention.csv and moe.csv")
    folder = parser.parse_args().data
    texts = {path: path.read_text(encoding="utf-8") for path in _places()}
    table = kernel_power_table(folder)
    held = np.array([int(hashlib.sha1(item.encode()).hexdigest(), 16) % 3 == 0 for item in table.items])

    def off(values: Array) -> Array:
        with instead(_changed(texts, values)):
            return np.log(kernel_power_table(folder).predicted / table.measured)

    start = np.array([float(re.findall(number, "".join(texts.values()))[0][1]) for number in NUMBERS])
    found = minimize(
        lambda scales: np.log1p((off(start * scales)[~held] / SCALE) ** 2).sum(), np.ones(3), method="Nelder-Mead",
        options={"maxfev": 60, "xatol": 0.01, "fatol": 0.1},
    ).x * start  # fmt: skip
    errors = np.abs(np.expm1(off(found)))
    fitted, kept = np.median(errors[~held]), np.median(errors[held])
    sys.stdout.write(f"working_share {found[0]:.3f}, memory {found[1]:.2f} pJ/bit, activity {found[2]:.3f}\n")
    sys.stdout.write(f"median error {fitted:.1%} of {(~held).sum()} rows fitted, {kept:.1%} of {held.sum()} held out\n")


def _places() -> list[Path]:
    """Files of the numbers."""
    return [files.catalogue("templates", "families")["nvidia-blackwell"], shipped() / "measurements.yaml"]


def _changed(texts: Mapping[Path, str], values: Array) -> dict[Path, str]:
    """The same files with other numbers."""
    found = dict(texts)
    for number, value in zip(NUMBERS, values, strict=True):
        put = functools.partial(re.sub, number, rf"\g<1>{value:.5g}")
        found = {path: put(text) for path, text in found.items()}
    return found


if __name__ == "__main__":
    main()
