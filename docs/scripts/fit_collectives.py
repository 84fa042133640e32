"""Fit the parameters of collectives that templates/families/fabrics.yaml holds.

    python docs/scripts/fit_collectives.py --data DIR [--leave-out system|ranks|case]

DIR holds ``collectives.csv`` (columns source, system, collective, ranks, ranks_per_node, size_bytes, time_us) and
``systems.csv``. The script prints each fitted parameter beside that in the file, and the errors in sample and out of
sample: each system (or number of ranks, or system with ranks) left out in turn. It writes nothing.

The model is the package's own (`crossflow.cost.fabrics`). The fit is a robust least-squares fit of log(time) from
neutral starting values, to which a weak ridge ties every parameter: one whose rows are all left out falls back on its
starting value, so that errors out of sample of the only system with a kind of fabric are those of a guess. The
structure (which path a case takes) was chosen on all rows; leaving out refits numbers only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.arrays import Array, Index
from crossflow.cost.fabrics import Fabric, path, path_time
from crossflow.validation import tables
from crossflow.validation.report import errors

US, MIB = 1e-6, 2.0**20
SHORT, LARGE = 2.0**12, MIB  # messages below SHORT are not fitted, those below LARGE weigh a quarter
TYPICAL = 20  # rows of a case; a case of more weighs as if it had so many
SCALE, RIDGE = 0.02, 0.02  # of the robust loss, of the ridge: in log(time) and log(parameter)
PROTOCOL = (1.0, 0.4)  # starts for low_latency_share over its neutral value: the faster of two protocols has two optima


@dataclass(frozen=True)
class Parameter:
    """Neutral starting value and upper bound of a parameter, in units of `scale`."""

    start: float
    unit: str = "1"
    scale: float = 1.0
    bound: float = np.inf


def _share(start: float) -> Parameter:
    return Parameter(start, bound=0.99)


def _time(start: float) -> Parameter:
    return Parameter(start, "us", US)


PARAMETERS: Mapping[str, Parameter] = {
    "launch": _time(30), "launch_pcie5_ratio": Parameter(0.5), "launch_transfer": _time(10),
    "reduction_copy": Parameter(0.4), "switch_step": _time(1), "in_switch_fill": _time(1),
    "in_switch_efficiency_nvlink5": _share(0.989), "switch_transfer_efficiency": _share(0.9),
    "bridge_transfer_efficiency": Parameter(0.9),  # timed to the last hand-over, may exceed 1
    "direct_efficiency": _share(0.9), "direct_step": _time(3), "pcie_efficiency": _share(0.8),
    "ethernet_efficiency": _share(0.8), "rdma_step": _time(5), "software_step": _time(50),
    "low_latency_share": Parameter(0.25, bound=1.0), "software_fill": _time(50), "staged_efficiency": _share(0.3),
    "staged_duplex": Parameter(0.9), "staged_step": _time(15), "flow_efficiency": _share(0.9),
    "send_buffer_rate": Parameter(10, "GB/s", 1e9), "send_buffer_size": Parameter(4, "MiB", MIB),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """Measurements of one collective among the same ranks of one system; `rows` are theirs in the table."""

    system: str
    collective: str
    ranks: int
    ranks_per_node: int
    fabric: Fabric
    regime: str
    rows: Index
    size: Array
    time: Array

    def predict(self, values: Mapping[str, Array] | None = None) -> Array:
        """Times with these values of the parameters, with those in the file where None. [s]"""
        fabric = self.fabric
        if values is not None:
            fabric = replace(fabric, parameters=fabric.parameters.model_copy(update=dict(values)))
        return path_time(self.size, path(fabric, self.collective, self.ranks, self.ranks_per_node))


LEFT_OUT: Mapping[str, Callable[[Case], object]] = {
    "system": lambda case: case.system,
    "ranks": lambda case: case.ranks,
    "case": lambda case: (case.system, case.ranks, case.ranks_per_node),
}


def read(folder: Path) -> list[Case]:
    """Cases of collectives.csv on the systems of systems.csv."""
    file = folder / "collectives.csv"
    columns = ("source", "system", "collective", "ranks", "ranks_per_node", "size_bytes", "time_us")
    rows = tables.read_rows(file, columns)
    size, time = tables.numbers(file, rows, "size_bytes"), tables.numbers(file, rows, "time_us") * US
    systems = tables._fabrics(folder / "systems.csv")
    members: dict[tuple[str, str, int, int], list[int]] = {}
    for i, row in enumerate(rows):
        key = (row["system"], row["collective"], int(row["ranks"]), int(row["ranks_per_node"]))
        members.setdefault(key, []).append(i)
    return [
        Case(
            system=system, collective=collective, ranks=ranks, ranks_per_node=per_node, fabric=systems[system],
            regime=tables._regime(rows[mine[0]], systems[system]),
            rows=np.array(mine), size=size[mine], time=time[mine],
        )
        for (system, collective, ranks, per_node), mine in sorted(members.items())
    ]  # fmt: skip


def fit(cases: Sequence[Case]) -> dict[str, Array]:
    """Parameters that fit the cases, in SI units."""
    from scipy.optimize import least_squares

    scales = np.array([p.scale for p in PARAMETERS.values()])
    start = np.log([p.start for p in PARAMETERS.values()])
    bounds = np.log([p.bound for p in PARAMETERS.values()])
    fitted = [(case, case.size >= SHORT) for case in cases if (case.size >= SHORT).any()]
    weights = [_weights(case.size[rows]) for case, rows in fitted]

    def values(x: Array) -> dict[str, Array]:
        return {name: np.array([value]) for name, value in zip(PARAMETERS, np.exp(x) * scales, strict=True)}

    def residuals(x: Array) -> Array:
        now = values(x)
        logs = [np.log(case.predict(now)[rows] / case.time[rows]) for case, rows in fitted]
        weighted = [weight * log for weight, log in zip(weights, logs, strict=True)]
        return np.concatenate([*weighted, RIDGE * (x - start)])

    low = np.array([name == "low_latency_share" for name in PARAMETERS])
    options = {"bounds": (-12.0, bounds), "loss": "soft_l1", "f_scale": SCALE, "diff_step": 1e-3, "ftol": 1e-9}
    found = [least_squares(residuals, start + low * np.log(factor), **options) for factor in PROTOCOL]
    return values(min(found, key=lambda one: one.cost).x)


def _weights(size: Array) -> Array:
    return np.asarray(min(1.0, float(np.sqrt(TYPICAL / size.size))) * np.where(size >= LARGE, 1.0, 0.25))


def predictions(cases: Sequence[Case], values: Mapping[str, Array] | None, rows: int) -> Array:
    """Predicted times of the cases' rows in a table of so many; NaN elsewhere. [s]"""
    times = np.full(rows, np.nan)
    for case in cases:
        times[case.rows] = case.predict(values)
    return times


def left_out(cases: Sequence[Case], part: Callable[[Case], object], rows: int) -> Array:
    """Prediction of every row by parameters that were fitted without its part of the cases. [s]"""
    times = np.full(rows, np.nan)
    for one in dict.fromkeys(map(part, cases)):
        mine = [case for case in cases if part(case) == one]
        values = fit([case for case in cases if part(case) != one])
        found = predictions(mine, values, rows)
        times = np.where(np.isnan(found), times, found)
        size, time = (np.concatenate([getattr(case, name) for case in mine]) for name in ("size", "time"))
        predicted = np.concatenate([case.predict(values) for case in mine])
        print(f"  without {one!s:70.70s} {_figures(time[size >= LARGE], predicted[size >= LARGE])}", flush=True)
    return times


def summary(title: str, cases: Sequence[Case], predicted: Array) -> None:
    """Errors of rows of 1 MiB and more by regime, and of all shorter ones."""
    size, time = np.zeros_like(predicted), np.zeros_like(predicted)
    regime = np.empty(predicted.shape, dtype=object)
    for case in cases:
        size[case.rows], time[case.rows], regime[case.rows] = case.size, case.time, case.regime
    print(f"{title}: relative errors")
    for name in sorted(set(regime)):
        mine = (regime == name) & (size >= LARGE)
        print(f"  {name + ', >= 1 MiB':36s} {_figures(time[mine], predicted[mine])}")
    for name, mine in (("all, >= 1 MiB", size >= LARGE), ("all, < 1 MiB", size < LARGE)):
        print(f"  {name:36s} {_figures(time[mine], predicted[mine])}")


def _figures(measured: Array, predicted: Array) -> str:
    found = errors(measured, predicted)
    if not found["n"]:
        return "no rows"
    median, mean, p90 = (100 * found[f"{name}_abs_error"] for name in ("median", "mean", "p90"))
    bias = 100 * found["bias"]
    return f"n {found['n']:5d}  median {median:5.1f}  mean {mean:5.1f}  p90 {p90:5.1f}  bias {bias:+5.1f} %"


def main() -> None:
    """Fit all parameters, then leave parts of the data out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the two tables")
    parser.add_argument("--leave-out", choices=list(LEFT_OUT), default="system", help="what to leave out in turn")
    given = parser.parse_args()
    cases = read(given.data)
    rows = sum(case.rows.size for case in cases)
    values, file = fit(cases), tables.fabric_parameters()
    print(f"{rows} rows, {len(cases)} cases, {len({case.system for case in cases})} systems")
    for name, p in PARAMETERS.items():
        current = float(getattr(file, name).item()) / p.scale
        found = float(values[name].item()) / p.scale
        change = 100 * (found / current - 1)
        print(f"  {name:30s} fitted {found:8.4g}   in file {current:8.4g} {p.unit:5s} {change:+6.1f} %")
    summary("values in the file", cases, predictions(cases, None, rows))
    summary("fitted, in sample", cases, predictions(cases, values, rows))
    print(f"each {given.leave_out} left out in turn, rows of 1 MiB and more:")
    summary(f"{given.leave_out} left out", cases, left_out(cases, LEFT_OUT[given.leave_out], rows))


if __name__ == "__main__":
    main()
