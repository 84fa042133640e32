"""Calibration of a system: measured rows read, parameters fitted, every row scored before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow import files
from crossflow.architecture.system import resolve
from crossflow.architecture.template import SystemSpec
from crossflow.arrays import Array, Mask
from crossflow.calibration.curve import fit_curve
from crossflow.calibration.fit import LEAST, Fit, fit, held_out
from crossflow.calibration.logs import LogOptions
from crossflow.calibration.measurements import MeasuredCollective, MeasuredRows, Measurements, read_measurements
from crossflow.calibration.parameters import DEVICE, FABRIC, with_values
from crossflow.calibration.pricing import modelled, predicted, problem
from crossflow.cost.profile import SCOPES, Key, Measured, Profile, message_shape
from crossflow.errors import CrossflowError
from crossflow.files import Document
from crossflow.program.groups import Group
from crossflow.validation.report import errors

GOOD = 0.06  # median error on held-out rows above which a measured curve is written beside the parameters
LEAST_SIZES = 4  # of a measured curve
BEFORE, FITTED, PAPER, MEASURED, WRITTEN = "before", "fitted", "paper_curve", "measured_curve", "written"


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Rows that are priced together, with what each law makes of them."""

    rows: MeasuredRows
    held_out: Mask  # rows that nothing was fitted to
    predicted: Mapping[str, Array]  # times by law; a measured curve is that of the fitted rows. [s]
    curve: Mapping[str, float] | None  # the eight parameters of the paper's curve
    curved: bool  # whether its measured curve is written, for the parameters are not enough

    def errors(self, law: str, mask: Mask) -> dict[str, float | int | None] | None:
        """Errors of a law on some of the rows; None where there is no such law."""
        return errors(self.rows.time[mask], self.predicted[law][mask]) if law in self.predicted else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        masks = {"fitted": ~self.held_out, "held_out": self.held_out}
        return {
            "name": self.rows.name,
            "rows": int(self.rows.time.size),
            "errors": {law: {part: self.errors(law, mask) for part, mask in masks.items()} for law in self.predicted},
            **({"paper_curve": dict(self.curve)} if self.curve else {}),
            "measured_curve_written": self.curved,
        }


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a calibration has found."""

    base: str  # the system that it starts from, a name or a file
    spec: SystemSpec  # this system as it was
    fits: tuple[Fit, ...]
    scored: tuple[ScoredRows, ...]
    measurements: Measurements
    skipped: Mapping[str, int]  # why rows were left out, and how many each

    def errors(self, law: str, *, held_out: bool) -> dict[str, float | int | None]:
        """Errors of a law over all rows that are held out, or all that are fitted."""
        masks = [one.held_out == held_out for one in self.scored]
        measured = [one.rows.time[mask] for one, mask in zip(self.scored, masks, strict=True)]
        return errors(
            np.concatenate(measured), np.concatenate([one.predicted[law][mask] for one, mask in zip(self.scored, masks, strict=True)])
        )

    @property
    def profile(self) -> Mapping[Key, Measured]:
        """Measured collectives that are to be written, all of their rows."""
        return {key: one for scored in self.scored if scored.curved for key, one in _events(scored.rows, scored.held_out | True).items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; values of parameters in SI units."""
        parts = {"fitted": False, "held_out": True}
        return {
            "system": self.base,
            "files": list(self.measurements.files),
            "rows": sum(one.rows.time.size for one in self.scored),
            "fitted": int(sum((~one.held_out).sum() for one in self.scored)),
            "held_out": int(sum(one.held_out.sum() for one in self.scored)),
            "skipped": sum(self.skipped.values()),
            "skipped_reasons": dict(self.skipped),
            "notes": list(self.measurements.notes),
            "parameters": [
                {
                    "name": one.parameter.name, "unit": one.parameter.unit, "before": one.parameter.value, "value": one.value,
                    "relative_error": one.error, "at_bound": one.at_bound,
                }
                for found in self.fits for one in found.fitted
            ],
            "left": {name: reason for found in self.fits for name, reason in found.left.items()},
            "untouched": [name for found in self.fits for name in found.untouched],
            "errors": {law: {part: self.errors(law, held_out=held) for part, held in parts.items()} for law in (BEFORE, FITTED, WRITTEN)},
            "sets": [one.to_dict() for one in self.scored],
        }  # fmt: skip


def calibrate(
    paths: Sequence[Path], system: str, *, options: LogOptions | None = None, rows: Sequence[str] = (), curves: bool = True
) -> Calibration:
    """Fit the parameters of a system to measured tables and logs.

    Every other size is held out: no parameter and no curve that is scored has seen it.

    Parameters
    ----------
    paths : tables as `crossflow validate` and profiles have them, and logs of nccl-tests.
    system : name or file of the system, or of a device.
    options : what logs do not say themselves.
    rows : values of the columns system, device or source that rows of tables must have.
    curves : whether collectives that the parameters do not describe are to be written as measured curves.

    Raises
    ------
    SpecError, CrossflowError
        For files that cannot be read, and where too few rows are left to fit anything.
    """
    spec, _ = resolve(Document(file="--system", data={"template": system}))
    found = read_measurements(paths, lineage(system), spec.devices_per_node, options or LogOptions(), rows)
    sets, skipped = priceable(spec, found)
    fits, few = fitted_parts(spec, sets)
    sets = [one for one in sets if one not in few]
    skipped.update(_few(few))
    if not fits:
        reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise CrossflowError(f"nothing to fit {system} to: {reasons or 'no rows'}")
    fitted = with_fits(spec, fits)
    scored = tuple(_score(spec, fitted, one, curves=curves) for one in sets)
    return Calibration(base=system, spec=spec, fits=tuple(fits), scored=_one_curve_each(scored), measurements=found, skipped=skipped)


def lineage(system: str) -> tuple[str, ...]:
    """Names of a system, of its device and of all templates that it builds on, itself first."""
    names, base = [system], None
    while True:
        path = files.find("templates", names[-1], base, "systems", "devices", "generated")
        data, base = files.read_yaml(path).data, path.parent
        below = data.get("template", data.get("device")) if isinstance(data, Mapping) else None
        if not isinstance(below, str) or below in names:
            return (*names, *(Path(name).stem for name in names if Path(name).suffix in (".yaml", ".yml")))
        names.append(below)


def fitted_parts(spec: SystemSpec, sets: Sequence[MeasuredRows]) -> tuple[list[Fit], list[MeasuredRows]]:
    """Fits of the fabric and of the device to rows that can be priced, and the rows that are too few for a fit."""
    fits, few = [], []
    for part in (FABRIC, DEVICE):
        mine = [one for one in sets if isinstance(one, MeasuredCollective) == (part == FABRIC)]
        if sum(int((~held_out(one.order)).sum()) for one in mine) >= LEAST:
            fits.append(fit(spec, part, mine))
        else:
            few += mine
    return fits, few


def with_fits(spec: SystemSpec, fits: Sequence[Fit]) -> SystemSpec:
    """The system with fitted values."""
    return with_values(spec, {path: value for one in fits for path, value in one.values.items()})


def _few(sets: Sequence[MeasuredRows]) -> Mapping[str, int]:
    """Why rows that are too few for a fit are left out."""
    return Counter({f"too few {one.name}: a fit needs {LEAST} rows beside those held out": one.time.size for one in sets})


def priceable(spec: SystemSpec, found: Measurements) -> tuple[list[MeasuredRows], Counter[str]]:
    """Sets of rows that a system has a model of, and why rows were left out."""
    skipped, kept = Counter(found.skipped), []
    for one in found.sets:
        reason = problem(spec, one)
        if reason is None:
            kept.append(one)
        else:
            skipped[reason] += one.time.size
    return kept, skipped


# -------------------------------------------------------------------------------------------- scores


def _score(spec: SystemSpec, fitted: SystemSpec, rows: MeasuredRows, *, curves: bool) -> ScoredRows:
    """What every law makes of rows that it has not seen."""
    held = held_out(rows.order)
    found = {BEFORE: predicted(spec, rows), FITTED: predicted(fitted, rows)}
    curve, curved = None, False
    if isinstance(rows, MeasuredCollective):
        paper = fit_curve(rows.size[~held], rows.time[~held])
        if paper is not None:
            found[PAPER], curve = paper.time(rows.size), paper.to_dict()
        if np.unique(rows.size[~held]).size >= LEAST_SIZES:
            found[MEASURED] = _interpolated(fitted, rows, held)
            law, measured = (float(np.median(np.abs(found[name] / rows.time - 1.0)[held])) for name in (FITTED, MEASURED))
            curved = curves and law > GOOD and measured < law
    found[WRITTEN] = found[MEASURED if curved else FITTED]
    return ScoredRows(rows=rows, held_out=held, predicted=found, curve=curve, curved=curved)


def _interpolated(fitted: SystemSpec, rows: MeasuredCollective, held: Mask) -> Array:
    """Times by a profile of the rows that are not held out. [s]"""
    profile = Profile(events=_events(rows, ~held), source="")
    group = Group.alike(rows.ranks, rows.ranks_per_node, 1)
    return profile.messages(rows.collective, rows.size[:, None], group, lambda size: modelled(fitted, rows, size[:, 0])[:, None])[0][:, 0]


def _events(rows: MeasuredRows, mask: Mask) -> Mapping[Key, Measured]:
    """Rows of a collective as events: of each size the median time, and the standard deviation."""
    assert isinstance(rows, MeasuredCollective)
    scope = SCOPES[int(rows.ranks_per_node < rows.ranks)]
    by_size: dict[float, list[float]] = {}
    for size, time in zip(rows.size[mask].tolist(), rows.time[mask].tolist(), strict=True):
        by_size.setdefault(size, []).append(time)
    return {
        (rows.collective, message_shape(size), "", rows.ranks, scope): Measured(time=float(np.median(times)), spread=float(np.std(times)))
        for size, times in by_size.items()
    }


def _one_curve_each(scored: Sequence[ScoredRows]) -> tuple[ScoredRows, ...]:
    """The same with one curve for ranks between nodes, that of the fullest nodes: profiles do not say how many ranks share a node."""
    return tuple(_without_curve(one) if one.curved and _hidden(one, scored) else one for one in scored)


def _hidden(one: ScoredRows, scored: Sequence[ScoredRows]) -> bool:
    return any(_among(other) == _among(one) and _per_node(other) > _per_node(one) for other in scored if other.curved)


def _among(one: ScoredRows) -> tuple[str, int, bool] | None:
    rows = one.rows
    return (rows.collective, rows.ranks, rows.ranks_per_node < rows.ranks) if isinstance(rows, MeasuredCollective) else None


def _per_node(one: ScoredRows) -> int:
    return one.rows.ranks_per_node if isinstance(one.rows, MeasuredCollective) else 0


def _without_curve(one: ScoredRows) -> ScoredRows:
    law = {**one.predicted, WRITTEN: one.predicted[FITTED]}
    return ScoredRows(rows=one.rows, held_out=one.held_out, predicted=law, curve=one.curve, curved=False)


def reasons(skipped: Mapping[str, int]) -> Iterator[str]:
    """Why rows were left out, as sentences."""
    return (f"{count} left out: {reason}" for reason, count in sorted(skipped.items(), key=lambda pair: -pair[1]))
