"""Traces of jobs in files -> `JobTrace`: columns by role, every cell checked, a wrong one told with its line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.errors import Problem, SpecError, among, did_you_mean
from crossflow.base.limits import shown
from crossflow.workload.cluster.formats import JOB_FORMATS, JOB_ROLES
from crossflow.workload.cluster.record import JobTrace
from crossflow.workload.cluster.spec import MOST_JOBS, JobsSpec, is_slice, sizes_of
from crossflow.workload.requests.cells import TraceTable, dates_of, is_date, moments_of, numbers_of, refuse
from crossflow.workload.requests.formats import UNITS, plain, recognised, unit_in
from crossflow.workload.requests.tables import ABSENT, TraceRows, chunks

EPOCH = 1e8  # times beyond are those of a clock of the day, which begin with the first job. [s]
_LONGEST = 1e10  # of a job. [s]
_NOTHING = ("", "None", "null", "nan", "NaN", "\\N")  # what stands for no number


@dataclass(kw_only=True)
class _ReadJobs:
    """What was read so far; of one reading alone."""

    columns: dict[str, list[Array]] = field(default_factory=lambda: {"arrival": [], "devices": [], "time": [], "kind": [], "slice": []})
    names: dict[str, int] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    begin: np.datetime64 | None = None
    rows: int = 0
    without: int = 0  # jobs without devices, or that never ran
    parts: int = 0  # jobs with a part of a device


def read_jobs(path: Path, spec: JobsSpec) -> JobTrace:
    """The jobs of a trace; SpecError with the line of the first row that is wrong."""
    found, table = _ReadJobs(), None
    for chunk in chunks(path):
        table = table or _table(path, list(chunk.columns), spec)
        if found.rows + len(chunk.lines) > MOST_JOBS:
            raise SpecError([Problem(file=str(path), message=f"it has more than the {MOST_JOBS:,} jobs that are read; split it")])
        found.rows += len(chunk.lines)
        if len(chunk.lines):
            _add(found, table, chunk)
    arrays = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in found.columns.items()}
    if not len(arrays["arrival"]):
        raise SpecError([Problem(file=str(path), message="it holds no jobs with devices")])
    if found.begin is not None or arrays["arrival"].min() > EPOCH:
        arrays["arrival"] = arrays["arrival"] - arrays["arrival"].min()
    trace = JobTrace(
        arrival=arrays["arrival"], devices=arrays["devices"].astype(np.intp), time=arrays["time"], kind=arrays["kind"].astype(np.intp),
        classes=tuple(name or "none" for name in found.names) or ("all",), notes=tuple(_notes(found, path)),
        slice=arrays["slice"].astype(np.intp), slices=tuple(found.slices) or ("",),
    )  # fmt: skip
    return trace.in_order().first(spec.limit)


def _notes(found: _ReadJobs, path: Path) -> Iterator[str]:
    if found.without:
        yield f"{path.name}: {found.without:,} of {found.rows:,} jobs have no devices or never ran, and are left out"
    if found.parts:
        yield f"{path.name}: {found.parts:,} jobs with a part of a device are counted with a whole one"


def _table(path: Path, names: Sequence[str], spec: JobsSpec) -> TraceTable:
    """What the columns of a file mean; SpecError where one that the user names is not there, or one is missing."""
    own = {} if spec.columns is None else {role: name for role in JOB_ROLES if (name := getattr(spec.columns, role)) is not None}
    for role, name in own.items():
        if name not in names:
            key = {"kind": "class"}.get(role, role)
            message = f"columns.{key}: there is no column {shown(name)}{did_you_mean(name, names)}; there are: {among(names)}"
            raise SpecError([Problem(file=str(path), message=message)])
    known, there = recognised(names, JOB_FORMATS), {plain(name): name for name in reversed(names)}
    roles = {} if known is None else {role: there[name] for role, name in {**known.needs, **known.may}.items() if name in there}
    roles |= own
    for role, words in (("arrival", "say when jobs come"), ("devices", "hold their devices"), ("time", "say how long they run")):
        others = {"devices": ("percent", "attempts"), "time": ("end", "hours", "attempts")}.get(role, ())
        if role not in roles and not any(one in roles for one in others):
            message = f"no column is known to {words}; there are: {among(map(shown, names))}; name it in columns.{role}"
            raise SpecError([Problem(file=str(path), message=message)])
    unit = spec.time_unit or (unit_in(own["arrival"]) if "arrival" in own else None if known is None else known.unit)
    return TraceTable(
        path=path, name="" if known is None else known.name, roles=roles, unit=unit, told_unit=spec.time_unit is not None, block=0,
        ordered=False,
    )  # fmt: skip


def _add(found: _ReadJobs, table: TraceTable, chunk: TraceRows) -> None:
    """Read a chunk of rows."""
    cells = {role: list(chunk.columns.get(name, [ABSENT] * len(chunk.lines))) for role, name in table.roles.items()}
    lines = np.array(chunk.lines, dtype=np.intp)
    there = np.ones(len(lines), dtype=bool)
    for role in ("devices", "percent", "time", "hours", "end", "attempts"):
        if role in cells:
            there &= np.array([_is_there(cell) for cell in cells[role]], dtype=bool)
    kept = np.flatnonzero(there)
    found.without += len(lines) - len(kept)
    if not len(kept):
        return
    cells, lines = {role: [column[i] for i in kept] for role, column in cells.items()}, lines[kept]
    arrival, found.begin = moments_of(table, "arrival", cells["arrival"], lines.tolist(), found.begin, "time_unit")
    devices, time = (
        _attempts(table, cells, lines)
        if "attempts" in cells
        else (_devices(table, cells, lines), _time(found, table, cells, lines, arrival))
    )
    found.parts += int((devices != np.ceil(devices)).sum())
    runs: Mask = devices > 0
    found.without += int((~runs).sum())
    kinds, slices = _numbered(cells.get("kind", []), found.names), _numbered(cells.get("slice", []), found.slices)
    if "slice" in cells:
        _check_slices(table, cells["slice"], np.ceil(devices), lines)
    columns = {"arrival": arrival, "devices": np.ceil(devices), "time": time, "kind": kinds, "slice": slices}
    for name, values in columns.items():
        found.columns[name].append(np.zeros(len(runs[runs])) if values is None else values[runs])


def _numbered(cells: Sequence[Any], names: dict[str, int]) -> Array | None:
    """Texts as numbers of their names, to which new ones are added; None where there is no such column."""
    texts = [str(cell).strip() if _is_there(cell) else "" for cell in cells]
    return np.array([names.setdefault(text, len(names)) for text in texts], dtype=float) if texts else None


def _check_slices(table: TraceTable, cells: Sequence[Any], devices: Array, lines: Index) -> None:
    """SpecError for the first cell that says no slice, or one of other devices than its job has."""
    texts = [str(cell).strip() if _is_there(cell) else "" for cell in cells]
    unlike = np.array([bool(text) and not is_slice(text) for text in texts], dtype=bool)
    refuse(table, "slice", unlike, cells, lines.tolist(), "expected the sizes of a slice, such as 4x4x8, or nothing")
    held = np.array([math.prod(sizes_of(text)) if text else many for text, many in zip(texts, devices.tolist(), strict=True)])
    refuse(table, "slice", held != devices, cells, lines.tolist(), "expected a slice of the devices of its job")


def _is_there(cell: Any) -> bool:
    return cell is not ABSENT and cell is not None and not (isinstance(cell, str) and cell.strip() in _NOTHING) and cell != []


def _devices(table: TraceTable, cells: Mapping[str, list[Any]], lines: Index) -> Array:
    """Devices of each job; of a share in per cent, or of several instances, their product. [1]"""
    role = "devices" if "devices" in cells else "percent"
    values = numbers_of(_as(table, role, "devices"), "devices", cells[role], lines.tolist())
    refuse(table, role, values < 0, cells[role], lines.tolist(), "expected a number of devices of at least 0")
    if "instances" in cells:
        values = values * numbers_of(table, "instances", cells["instances"], lines.tolist())
    return values / 100.0 if role == "percent" else values


def _as(table: TraceTable, role: str, name: str) -> TraceTable:
    """The table with the column of a role under the name of another one, whose cells are of its kind."""
    return replace(table, roles={**table.roles, name: table.roles[role]})


def _time(found: _ReadJobs, table: TraceTable, cells: Mapping[str, list[Any]], lines: Index, arrival: Array) -> Array:
    """How long each runs: by itself, or from its begin to its end. [s]"""
    if "time" in cells or "hours" in cells:
        role = "time" if "time" in cells else "hours"
        values = numbers_of(_as(table, role, "time"), "time", cells[role], lines.tolist())
        refuse(table, role, values < 0, cells[role], lines.tolist(), "expected a time of at least 0")
        unit = 3600.0 if role == "hours" else 1.0 if found.begin is not None else UNITS.get(table.unit or "s", 1.0)
        times = values * unit
    else:
        end, _ = moments_of(table, "end", cells["end"], lines.tolist(), found.begin, "time_unit")
        role, times = "end", end - arrival
        refuse(table, role, times < 0, cells[role], lines.tolist(), "expected an end after the begin")
    refuse(table, role, times > _LONGEST, cells[role], lines.tolist(), f"expected at most {_LONGEST:.0e} s")
    return times


def _attempts(table: TraceTable, cells: Mapping[str, list[Any]], lines: Index) -> tuple[Array, Array]:
    """Devices of the last attempt of each job, and the time of all attempts that have a begin and an end, as Philly has them."""
    devices, times = np.zeros(len(lines)), np.zeros(len(lines))
    for i, attempts in enumerate(cells["attempts"]):
        try:
            for one in attempts:
                devices[i] = sum(len(node["gpus"]) for node in one["detail"])
                if is_date(one["start_time"]) and is_date(one["end_time"]):
                    begin, end = dates_of([one["start_time"], one["end_time"]])
                    times[i] += float((end - begin) / np.timedelta64(1, "s"))
        except (TypeError, KeyError, AttributeError):
            message = "expected a list of attempts with start_time, end_time and detail with gpus"
            raise table.error("attempts", int(lines[i]), f"{message}, got {shown(attempts)}") from None
    refuse(table, "attempts", times < 0, cells["attempts"], lines.tolist(), "expected attempts that end after their begin")
    return np.where(times > 0, devices, 0.0), times
