"""Files of a calibration: a system over the one that it starts from, and the profile of what parameters do not describe."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.names import cell, file_name, visible
from crossflow.base.units import show
from crossflow.cost.profile import COLUMNS, Key, Measured
from crossflow.evidence.calibration.calibrate import BEFORE, WRITTEN, Calibration
from crossflow.evidence.calibration.fit import Fitted
from crossflow.evidence.calibration.learned import Learning

CHANGED = 0.005  # of a parameter, from which it is written
DIGITS = 6  # of quantities in files; a value that was scored has fewer
WIDEST = 100.0  # of a standard error of a logarithm, which no range of a parameter is beyond
SHOWN = 8  # files that a source names


def profile_of(path: Path) -> Path:
    """The profile beside a system file."""
    return path.with_name(f"{path.stem}.profile.csv")


def check_system(base: str, path: Path, *others: Path, replace: bool = False) -> None:
    """CrossflowError where a system, and the other files beside it, could not be written; `base` is the one that it inherits."""
    if path.suffix not in (".yaml", ".yml"):
        raise CrossflowError(f"{path} is no name of a system file; end it in .yaml")
    if Path(base).is_file() and path.exists() and path.samefile(base):
        raise CrossflowError(f"{path} is the system that the calibration starts from; give another name with -o")
    files.check_new(path, *others, replace=replace)


def write_system(found: Calibration, path: Path, *, replace: bool = False) -> list[Path]:
    """Write a system that inherits the one it starts from, and its profile if it has one: both or neither.

    Raises
    ------
    CrossflowError
        Where a file exists and may not be replaced, or is what the system builds on.
    """
    curves = found.profile
    written = [path, *([profile_of(path)] if curves else [])]
    check_system(found.base, *written, replace=replace)
    text = system_text(found, path)
    with contextlib.ExitStack() as undone:
        if curves:
            files.write_text(written[1], profile_text(curves, path.stem, f"Measured events, all rows; {_source(found, _today())}"))
            if not replace:
                undone.callback(written[1].unlink)  # where the system is not written
        files.write_text(path, text)
        undone.pop_all()
    return written


def system_text(found: Calibration, path: Path, today: datetime.date | None = None) -> str:
    """The file of the system: what it inherits, and the values that changed, each with its source."""
    date, source = today or _today(), f"calibrated-{file_name(path.stem)}"
    changed = [one for fit in found.fits for one in fit.fitted if abs(np.log(one.value / max(one.parameter.value, 1e-30))) > CHANGED]
    lines = [
        f"# Written by crossflow calibrate on {date}; what is not here is inherited from {visible(found.base)}.",
        "kind: system",
        f"name: {path.stem if path.stem == file_name(path.stem) else _quoted(path.stem)}",
        f"title: {_quoted(f'{found.spec.title or found.spec.name}, calibrated')}",
        f"template: {_quoted(_reference(found.base, path))}",
        "sources:",
        f"  {source}: {_quoted(_source(found, date))}",
    ]
    if found.profile or found.below is not None:  # or none of what the base names is left
        lines.append(f"profile: {_quoted(profile_of(path).name) if found.profile else 'null'}")
    return "\n".join([*lines, *_tree({one.parameter.path: _value(one, source) for one in changed}), ""])


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()


def learned_text(found: Learning, events: Mapping[Key, Measured], counts: Mapping[Key, float]) -> str:
    """A profile of learned events."""
    errors = (f"{one.name} {100 * float(one.errors('learned')['geometric_mean_abs_error'] or 0):.1f} %" for one in found.kinds)
    origin = (
        f"Learned by crossflow calibrate, {_today()}, from {_listed(found.measurements.files)}; errors of held-out rows, geometric mean"
    )
    return profile_text(events, found.spec.name, f"{origin}: {', '.join(errors)}", counts)


def _listed(paths: Sequence[str]) -> str:
    names = [Path(name).name for name in paths]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _source(found: Calibration, date: datetime.date) -> str:
    """Where the values come from: files, date, rows, errors."""
    listed = _listed(found.measurements.files)
    before, after = (found.errors(law, held_out=True) for law in (BEFORE, WRITTEN))
    fitted = found.errors(WRITTEN, held_out=False)["n"]
    errors = [f"{100 * float(one['median_abs_error'] or 0):.1f} %" for one in (before, after)]
    return (
        f"crossflow calibrate, {date}, from {listed}: {fitted} rows fitted; median error on {after['n']} held-out rows "
        f"{errors[1]}, {errors[0]} before"
    )


def _value(one: Fitted, source: str) -> str:
    """A fitted value with its standard error as bounds."""
    parameter = one.parameter
    wide = min(one.error, WIDEST)
    low, high = (np.clip(one.value * np.exp(sign * wide), parameter.low, parameter.high) for sign in (-1, 1))
    texts = {
        name: show(value, parameter.unit, DIGITS)
        for name, value in (("value", one.value), ("low", min(low, one.value)), ("high", max(high, one.value)))
    }
    return f"{{value: {texts['value']}, source: {source}, low: {texts['low']}, high: {texts['high']}}}"


def _tree(values: Mapping[tuple[str, ...], str], depth: int = 0) -> Iterator[str]:
    """Lines of nested mappings in YAML."""
    for head in dict.fromkeys(path[0] for path in values):
        below = {path[1:]: text for path, text in values.items() if path[0] == head}
        if () in below:
            yield f"{'  ' * depth}{head}: {below[()]}"
        else:
            yield f"{'  ' * depth}{head}:"
            yield from _tree(below, depth + 1)


def _reference(base: str, path: Path) -> str:
    """The base as the file of the system names it: shipped ones by name, files by their path from its folder."""
    if base in files.catalogue("templates"):
        return base
    return Path(os.path.relpath(Path(base).absolute(), path.absolute().parent)).as_posix()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # which YAML reads alike


def profile_text(events: Mapping[Key, Measured], device: str, origin: str, counts: Mapping[Key, float] | None = None) -> str:
    """A profile of measured or learned events; `origin` says where they come from."""
    text = io.StringIO()
    text.write(f"# {visible(origin)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, one in events.items():
        op, shape, dtype, ranks, scope = key
        count = "" if counts is None else f"{counts[key]:.9g}"
        writer.writerow([op, shape, dtype, cell(device), ranks, scope, f"{one.time:.9g}", f"{one.spread:.9g}", count])
    return text.getvalue()
