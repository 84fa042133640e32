"""Fit the libraries of expert layers that the families in templates/families hold.

    python docs/scripts/fit_experts.py --data DIR [--all]

DIR holds ``moe.csv``. Every library, data type and family of devices is fitted by itself: robust least squares of log(time), from the
same starts for all, with the package's own model (`crossflow.cost.experts`). A third of the shapes (hidden, inner, experts,
ranks; by a hash, all rows of a shape or none) is left out, and the errors of those are printed beside the others; with --all nothing is
left out. The script prints the parameters as the files hold them. It writes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.cost.experts import grouped_costs
from crossflow.evidence.validation.kernels_experts import SEEN, Layers, held_out, libraries_of, read_layers
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.execution import ExpertLibrary
from crossflow.hardware.architecture.model import Architecture

# Lowest value, start and highest value of each parameter, and the unit in which files hold it.
US = 1e-6
PARAMETERS: Mapping[str, tuple[float, float, float, str, float]] = {
    "start": (1 * US, 20 * US, 100 * US, "us", US),
    "token": (0.01e-9, 5e-9, 100e-9, "ns", 1e-9),
    "expert": (0.1e-9, 100e-9, 2 * US, "us", US),
    "matrix": (0.2, 0.8, 1.0, "", 1.0),
    "cache_bytes_per_clock": (2, 45, 400, "", 1.0),
    "memory": (0.1, 0.85, 1.1, "", 1.0),
    "group": (1, 8, 64, "", 1.0),
    "passes": (0.2, 1, 5, "", 1.0),
    "carried": (0.01, 0.5, 4, "", 1.0),
    "multiplied": (0.0, 0.05, 1.0, "", 1.0),
}
LINEAR = ("multiplied",)
# Further starts of every fit, of which the best counts: with rows of other ranks multiplied, and bound by tiles rather than the cache.
STARTS: tuple[Mapping[str, float], ...] = (
    {}, {"multiplied": 0.9}, {"matrix": 0.3, "cache_bytes_per_clock": 150.0, "multiplied": 0.01}, {"group": 1.5, "carried": 2.0},
    {"matrix": 0.99, "cache_bytes_per_clock": 20.0, "expert": 500e-9}, {"token": 30e-9, "multiplied": 0.5},
)  # fmt: skip
FEWEST = 20  # rows that are fitted
SCALE = 0.05  # of the robust loss, in log(time)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows of one library and data type on one device."""

    device: Architecture
    dtype: str
    sizes: Array
    time: Array
    sustained: Mask

    def some(self, rows: Index) -> Case:
        """The same with some of the rows."""
        return Case(
            device=self.device, dtype=self.dtype, sizes=self.sizes[:, rows], time=self.time[rows], sustained=self.sustained[rows]
        )  # fmt: skip

    def predicted(self, values: Mapping[str, float]) -> Array:
        """Times of the rows, as `crossflow.evidence.validation.kernels_experts` has them. [s]"""
        library = ExpertLibrary.model_construct(**{name: np.array([value]) for name, value in values.items()})
        found = np.empty_like(self.time)
        for boosted in (False, True):
            rows = np.flatnonzero(self.sustained != boosted)
            if rows.size:
                costs = grouped_costs(self.sizes[:, rows, None], library, self.device, self.dtype, warm=True, boosted=boosted)
                found[rows] = costs.time[:, 0]
        return found


def fit(case: Case) -> dict[str, float]:
    """Parameters of least robust error in log(time)."""
    from scipy.optimize import least_squares

    def values(x: Array) -> dict[str, float]:
        ends = {name: (low, high) for name, (low, _, high, _, _) in PARAMETERS.items()}
        return {
            name: low + (high - low) * float(u) if name in LINEAR else low * float((high / low) ** u)
            for (name, (low, high)), u in zip(ends.items(), x, strict=True)
        }

    found = [
        least_squares(
            lambda x: np.log(case.predicted(values(x)) / case.time), _start(other), bounds=(0, 1), loss="cauchy", f_scale=SCALE,
            diff_step=1e-3, max_nfev=40,
        )
        for other in STARTS
    ]  # fmt: skip
    return values(min(found, key=lambda one: float(one.cost)).x)


def _start(other: Mapping[str, float]) -> list[float]:
    """Starting values between the ends of each parameter."""
    return [
        (other.get(name, begin) - low) / (high - low) if name in LINEAR else np.log(other.get(name, begin) / low) / np.log(high / low)
        for name, (low, begin, high, _, _) in PARAMETERS.items()
    ]


def words(error: Array) -> str:
    """Median and tail of some errors, in percent."""
    if not error.size:
        return "-"
    return f"{100 * np.median(np.abs(error)):5.1f} (p90 {100 * np.quantile(np.abs(error), 0.9):3.0f}, n {error.size})"


def shown(values: Mapping[str, float]) -> str:
    """Parameters as a file holds them."""
    lines = []
    for name, (_, _, _, unit, scale) in PARAMETERS.items():
        lines.append(f"          {name}: {{value: {values[name] / scale:.3g}{unit and ' ' + unit}, source: experts}}")
    return "\n".join(lines)


def main() -> None:
    """Fit every library of which the folder has rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with moe.csv")
    parser.add_argument("--all", action="store_true", help="leave no rows out")
    arguments = parser.parse_args()
    layers = read_layers(arguments.data)
    report(layers, np.zeros(0, dtype=np.intp) if arguments.all else held_out(layers))


def report(layers: Layers, held: Index) -> None:
    """Fit case by case and print what was found, then the errors of all."""
    error = np.full(len(layers.time), np.nan)
    keys = [(row["device"], libraries_of(row)[:1], row["dtype"]) for row in layers.rows]
    for key in sorted(key for key in set(keys) if key[0] in SEEN):
        mine = np.array([i for i, other in enumerate(keys) if other == key])
        fitted = np.setdiff1d(mine, held)
        device = device_architecture(key[0])
        if device is None or len(mine) < FEWEST:
            continue
        case = Case(device=device, dtype=key[2], sizes=layers.sizes, time=layers.time, sustained=layers.sustained)
        values = fit(case.some(fitted))
        error[mine] = case.some(mine).predicted(values) / layers.time[mine] - 1.0
        print(f"# {key[0]}: fitted {words(error[fitted])} %, left out {words(error[np.intersect1d(mine, held)])} %")
        print(f"      {key[1][0]}:\n        {key[2]}:\n{shown(values)}", flush=True)
    total(layers, error, held)


def total(layers: Layers, error: Array, held: Index) -> None:
    """Errors of all rows by distribution, and of those left out."""
    left = np.isin(np.arange(len(error)), held)
    even = layers.sizes[8] == 0
    parts: Sequence[tuple[str, Mask]] = (
        ("balanced, fitted", even & ~left), ("balanced, left out", even & left),
        ("power law, fitted", ~even & ~left), ("power law, left out", ~even & left),
    )  # fmt: skip
    for title, rows in parts:
        print(f"# {title:20s} {words(error[rows & np.isfinite(error)])} %")


if __name__ == "__main__":
    main()
