"""Calibration of a system: measured rows read, parameters fitted, every row scored before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document
from crossflow.cost.profile import SCOPES, Key, Measured, Profile, message_shape, system_profile
from crossflow.evidence.calibration.curve import fit_curve
from crossflow.evidence.calibration.fit import LEAST, Fit, fit, held_out
from crossflow.evidence.calibration.logs import LogOptions
from crossflow.evidence.calibration.measurements import MeasuredCollective, MeasuredRows, Measurements, read_measurements
from crossflow.evidence.calibration.parameters import DEVICE, FABRIC, with_values
from crossflow.evidence.calibration.pricing import predicted, problem
from crossflow.evidence.validation.report import errors
from crossflow.hardware.architecture.system import resolve, template_name
from crossflow.hardware.architecture.template import SystemSpec

GOOD = 0.04  # median error of fitted parameters above which a measured curve is written beside them
WORSE = 0.01  # of the median error of held-out rows, from which a set of rows is said to be worse than before
FAR = 0.5  # median error of held-out rows, from which nothing that was fitted describes them
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
    below: Profile | None = None  # measured events that the system names already

    def errors(self, law: str, *, held_out: bool) -> dict[str, float | int | None]:
        """Errors of a law over all rows that are held out, or all that are fitted."""
        masks = [one.held_out == held_out for one in self.scored]
        measured = [one.rows.time[mask] for one, mask in zip(self.scored, masks, strict=True)]
        return errors(
            np.concatenate(measured), np.concatenate([one.predicted[law][mask] for one, mask in zip(self.scored, masks, strict=True)])
        )

    def worse(self) -> Iterator[str]:
        """Sets of rows that were predicted better before, as sentences."""
        for one in self.scored:
            before, after = (float((one.errors(law, one.held_out) or {}).get("median_abs_error") or 0.0) for law in (BEFORE, WRITTEN))
            if min(before, after) > FAR:
                what = f"{one.rows.name}: {100 * after:.0f} % off on the rows held out"
                yield f"{what}; no parameter describes them, check their unit and the system"
            elif after > before + WORSE:
                what = f"{one.rows.name}: worse than before on the rows held out, {100 * before:.1f} % to {100 * after:.1f} %"
                yield f"{what}; these rows need other values than the rest; calibrate to them separately"

    @property
    def profile(self) -> Mapping[Key, Measured]:
        """Measured events that are to be written: collectives, all of their rows, and what the system has that was not measured again."""
        curves = {key: one for scored in self.scored if scored.curved for key, one in _events(scored.rows, scored.held_out | True).items()}
        return {**_kept(self.below, [one.rows for one in self.scored]), **curves}

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
            "notes": [*self.measurements.notes, *profiled(self.base, self.below), *self.worse()],
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
    system = template_name(system) or system
    spec, document = resolve(Document(file="--system", data={"template": system}))
    below = system_profile(spec, document)
    found = read_measurements(paths, lineage(system), spec.devices_per_node, options or LogOptions(), rows)
    sets, skipped = priceable(spec, found)
    fits, few = fitted_parts(spec, sets)
    sets = [one for one in sets if one not in few]
    skipped.update(_few(few))
    if not fits:
        reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise CrossflowError(f"nothing to fit {system} to: {reasons or 'no rows'}")
    fitted = with_fits(spec, fits)
    scored = _one_curve_each(tuple(_score(spec, fitted, one, below, curves=curves) for one in sets))
    return Calibration(base=system, spec=spec, fits=tuple(fits), scored=scored, measurements=found, skipped=skipped, below=below)


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
    for given in found.sets:
        one = given
        if (
            isinstance(given, MeasuredCollective) and spec.network.intra.fabric == "nvl72"
        ):  # ranks fill rack after rack, whatever their hosts
            one = replace(given, ranks_per_node=min(given.ranks, spec.devices_per_node))
        reason = problem(spec, one)
        if reason is None:
            kept.append(one)
        else:
            skipped[reason] += one.time.size
    return kept, skipped


# -------------------------------------------------------------------------------------------- scores


def _score(spec: SystemSpec, fitted: SystemSpec, rows: MeasuredRows, below: Profile | None, *, curves: bool) -> ScoredRows:
    """What every law makes of rows that it has not seen."""
    held = held_out(rows.order)
    found = {BEFORE: predicted(spec, rows, below), FITTED: predicted(fitted, rows)}
    curve, curved = None, False
    if isinstance(rows, MeasuredCollective):
        paper = fit_curve(rows.size[~held], rows.time[~held])
        if paper is not None:
            found[PAPER], curve = paper.time(rows.size), paper.to_dict()
        if np.unique(rows.size[~held]).size >= LEAST_SIZES:
            found[MEASURED] = predicted(fitted, rows, Profile(events=_events(rows, ~held), source=""))
            law = float(np.median(np.abs(found[FITTED] / rows.time - 1.0)[~held]))
            curved = curves and law > GOOD and _left_out(rows.size[~held], rows.time[~held]) < law
    found[WRITTEN] = found[MEASURED if curved else FITTED]
    if below is not None and not isinstance(rows, MeasuredCollective):
        found[WRITTEN] = predicted(fitted, rows, below)
    return ScoredRows(rows=rows, held_out=held, predicted=found, curve=curve, curved=curved)


def profiled(system: str, below: Profile | None) -> Iterator[str]:
    """That the system names measured events already, as a sentence."""
    if below is not None and below.events:
        yield f"before is with the profile that {system} names, {Path(below.source).name}, which may hold these very rows"


def _kept(below: Profile | None, sets: Sequence[MeasuredRows]) -> Mapping[Key, Measured]:
    """Events of a profile but for collectives that were measured again."""
    again = {
        (one.collective, one.ranks, SCOPES[int(one.ranks_per_node < one.ranks)]) for one in sets if isinstance(one, MeasuredCollective)
    }
    return {} if below is None else {key: one for key, one in below.events.items() if (key[0], *key[3:]) not in again}


def _left_out(size: Array, time: Array) -> float:
    """Median error of a measured curve at its own sizes, each left out in turn, halved, for this makes the gaps twice as wide.

    What decides whether a curve is written has not seen the held-out rows.
    """
    at = np.unique(size)
    log = np.log([np.median(time[size == one]) for one in at])
    middle = np.log(at[1:-1])
    share = (middle - np.log(at[:-2])) / np.log(at[2:] / at[:-2])
    return float(np.median(np.abs(np.exp(log[:-2] + share * (log[2:] - log[:-2]) - log[1:-1]) - 1.0))) / 2.0


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
