"""Fit the parameters of collectives that templates/families and templates/software hold.

    python docs/scripts/fit_collectives.py --data DIR [--leave-out system|ranks|case]

DIR holds ``collectives.csv`` (columns source, system, collective, ranks, ranks_per_node, size_bytes, time_us) and
``systems.csv``. The fit takes every second size of a case; the script prints each parameter beside that in the file, and the errors
on the rows of the fit and on the others. With --leave-out each system (or number of ranks, or system with ranks) is left out in turn.
It writes nothing.

The model is the package's own (`crossflow.cost.fabrics`), with how each source called its collectives
(crossflow/evidence/validation/data/measurements.yaml). The fit is a robust least-squares fit of log(time) from neutral starting values, to
which a weak ridge ties every parameter: one whose rows are all left out falls back on its starting value. The structure (which ways a
case has) was chosen on all rows; holding out refits numbers only. Rows of one generation of GPU decide its own numbers; those of a
software stack's kernels, and how long ranks of eager calls wait for one another, have names of their own.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array, Index, Mask
from crossflow.cost.fabrics import Fabric, path, path_time
from crossflow.evidence.validation import tables
from crossflow.evidence.validation.report import errors

US, MIB = 1e-6, 2.0**20
LARGE = MIB  # messages below it weigh a quarter
LATENCY = 2.0**15  # of devices whose paths through their host are not known, messages among more than two below it alone are fitted
TYPICAL = 200  # rows of a case; a case of more weighs as if it had so many
SCALE, RIDGE = 0.02, 0.01  # of the robust loss, of the ridge: in log(time) and log(parameter)


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


SWITCHED: Mapping[str, Parameter] = {
    "launch": _time(7), "bulk_launch": _time(6), "switch_efficiency": _share(0.8), "switch_step": _time(0.9), "switch_fill": _time(3),
    "switch_low_latency_share": _share(0.05), "switch_line_step": _time(1.2), "switch_line_share": _share(0.6), "exchange_fill": _time(3.5), "peer_launch": _time(3.5), "peer_rank": _time(0.1),
    "peer_efficiency": _share(0.6), "peer_phase": _time(3), "peer_phase_efficiency": _share(0.6),
}  # fmt: skip
IN_SWITCH: Mapping[str, Parameter] = {"in_switch_efficiency": _share(0.7), "in_switch_fill": _time(1)}
HOST: Mapping[str, Parameter] = {
    "launch": _time(7), "bulk_launch": _time(12), "direct_step": _time(1.5), "direct_low_latency_share": Parameter(0.4, bound=1.0),
    "pcie_efficiency": _share(0.7), "peer_launch": _time(3.5), "peer_efficiency": _share(0.6),
}  # fmt: skip
PARAMETERS: Mapping[str, Parameter] = {
    **SWITCHED, "launch_transfer": _time(7), "reduction_copy": Parameter(0.4), "gather_copy": Parameter(0.4),
    "exchange_copy": Parameter(0.4), "switch_transfer_efficiency": _share(0.9),
    "bridge_transfer_efficiency": Parameter(0.9),  # timed to the last hand-over, may exceed 1
    "direct_efficiency": _share(0.9), "direct_step": _time(1.5), "direct_low_latency_share": Parameter(0.4, bound=1.0),
    "pcie_efficiency": _share(0.8), "pcie5_step_ratio": Parameter(0.5), "ethernet_efficiency": _share(0.8), "rdma_step": _time(5),
    "software_step": _time(50), "low_latency_share": Parameter(0.25, bound=1.0), "software_fill": _time(50),
    "staged_efficiency": _share(0.3), "staged_duplex": Parameter(0.9), "staged_step": _time(15), "flow_efficiency": _share(0.9),
    "send_buffer_rate": Parameter(10, "GB/s", 1e9), "send_buffer_size": Parameter(4, "MiB", MIB),
    **{f"nvidia-hopper.{name}": one for name, one in {**SWITCHED, **IN_SWITCH}.items()},
    **{f"nvidia-blackwell.{name}": one for name, one in {**SWITCHED, **IN_SWITCH}.items()},
    **{f"l40s.{name}": one for name, one in HOST.items()},
    "vllm.start": _time(1), "sglang.start": _time(0.3), "tensorrt-llm.start": _time(0.3),
    "vidur-2024.wait.0": _time(5), "vidur-2024.wait.1": _time(5), "vtrain-2024.floor_per_rank": _time(10),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """Measurements of one source of one collective among the same ranks of one system; `rows` are theirs in the table."""

    source: str
    system: str
    device: str
    family: str  # of its device, or the device where it has numbers of its own
    collective: str
    ranks: int
    ranks_per_node: int
    fabric: Fabric
    regime: str
    rows: Index
    size: Array
    time: Array

    @functools.cached_property
    def fitted(self) -> Mask:
        """Every second size; of devices whose paths through their host are not known, what latency decides."""
        first = np.argsort(np.argsort(self.size)) % 2 == 0
        return np.asarray(first & ((self.size < LATENCY) | (self.family != "l40s") | (self.ranks == 2)))

    def predict(self, values: Mapping[str, Array] | None = None) -> Array:
        """Times with these values of the parameters, with those in the files where None. [s]"""
        fabric, calls = self.fabric, tables.collective_conditions(self.source)
        own = calls.all_reduce
        if values is not None:
            names = type(fabric.parameters).model_fields
            here = {name: values[key] for name in names for key in (name, f"{self.family}.{name}") if key in values}
            fabric = replace(fabric, parameters=fabric.parameters.model_copy(update=here))
            stack = tables.measurements().get(self.source, {}).get("collectives", {}).get("software")
            own = own.model_copy(update={"start": values[f"{stack}.start"]}) if own is not None else None
            if self.source == "vidur-2024":
                calls = replace(calls, wait=tuple(float(values[f"vidur-2024.wait.{i}"][0]) for i in range(2)))
            if self.source == "vtrain-2024":
                calls = replace(calls, floor_per_rank=float(values["vtrain-2024.floor_per_rank"][0]))
        fabric = replace(fabric, all_reduce=own)
        times = path_time(self.size[:, None], path(fabric, self.collective, self.ranks, self.ranks_per_node))[:, 0]
        return times if self.collective == "send_recv" else calls.told(times, fabric, self.device, self.ranks, self.size)


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
    systems, devices = tables.fabrics(folder / "systems.csv")
    members: dict[tuple[str, str, str, int, int], list[int]] = {}
    for i, row in enumerate(rows):
        key = (row["source"], row["system"], row["collective"], int(row["ranks"]), int(row["ranks_per_node"]))
        members.setdefault(key, []).append(i)
    return [
        Case(
            source=source, system=system, device=devices[system], family=family(devices[system]), collective=collective, ranks=ranks,
            ranks_per_node=per_node, fabric=systems[system], regime=tables._regime(rows[mine[0]], systems[system]),
            rows=np.array(mine), size=size[mine], time=time[mine],
        )
        for (source, system, collective, ranks, per_node), mine in sorted(members.items())
    ]  # fmt: skip


def family(device: str) -> str:
    """Whose numbers a device has: its own, its family's or everyone's."""
    name = tables.template_of(device)
    if name is None or any(key.startswith(f"{name}.") for key in PARAMETERS):
        return name or ""
    return str(files.read_yaml(files.find("templates", name, None, "devices")).data.get("family", ""))


def fit(cases: Sequence[Case]) -> dict[str, Array]:
    """Parameters that fit the cases, in SI units."""
    from scipy.optimize import least_squares

    scales = np.array([p.scale for p in PARAMETERS.values()])
    start = np.log([p.start for p in PARAMETERS.values()])
    bounds = np.log([p.bound for p in PARAMETERS.values()])
    fitted = [(case, case.fitted) for case in cases]
    weights = [_weights(case.size[rows]) for case, rows in fitted]

    def values(x: Array) -> dict[str, Array]:
        return {name: np.array([value]) for name, value in zip(PARAMETERS, np.exp(x) * scales, strict=True)}

    def residuals(x: Array) -> Array:
        now = values(x)
        logs = [np.log(case.predict(now)[rows] / case.time[rows]) for case, rows in fitted]
        weighted = [weight * log for weight, log in zip(weights, logs, strict=True)]
        return np.concatenate([*weighted, RIDGE * (x - start)])

    options = {"bounds": (-12.0, bounds), "loss": "soft_l1", "f_scale": SCALE, "diff_step": 1e-3, "ftol": 1e-6}
    return values(least_squares(residuals, start, **options).x)


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
    """Errors of rows of 1 MiB and more and of shorter ones by regime and by source, on the sizes of the fit and on the others."""
    size, time = np.zeros_like(predicted), np.zeros_like(predicted)
    regime, source = (np.empty(predicted.shape, dtype=object) for _ in range(2))
    mine = np.zeros(predicted.shape, dtype=bool)
    for case in cases:
        size[case.rows], time[case.rows], mine[case.rows] = case.size, case.time, case.fitted
        regime[case.rows], source[case.rows] = case.regime, case.source
    print(f"{title}: relative errors")
    for groups in (regime, source):
        for name in sorted(set(groups)):
            for length, long in ((">= 1 MiB", size >= LARGE), ("< 1 MiB", size < LARGE)):
                for part, rows in (("fitted", mine), ("others", ~mine)):
                    here = (groups == name) & long & rows
                    if here.any():
                        print(f"  {name:40.40s} {length:8s} {part} {_figures(time[here], predicted[here])}")


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
    parser.add_argument("--leave-out", choices=list(LEFT_OUT), help="what to leave out in turn")
    given = parser.parse_args()
    cases = read(given.data)
    rows = sum(case.rows.size for case in cases)
    values = fit(cases)
    print(f"{rows} rows, {len(cases)} cases, {len({case.system for case in cases})} systems")
    for name, p in PARAMETERS.items():
        print(f"  {name:42s} fitted {float(values[name].item()) / p.scale:8.4g} {p.unit}")
    summary("values in the files", cases, predictions(cases, None, rows))
    summary("fitted to every second size", cases, predictions(cases, values, rows))
    if given.leave_out:
        print(f"each {given.leave_out} left out in turn, rows of 1 MiB and more:")
        summary(f"{given.leave_out} left out", cases, left_out(cases, LEFT_OUT[given.leave_out], rows))


if __name__ == "__main__":
    main()
