"""Which contest a finished study is, and what its answer hangs on (`headlines`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.study.contests import DrawnContest, SweptContest
from crossflow.answers.study.contests_searched import contests
from crossflow.answers.study.headlines import Changed, Contest, Hinges, held
from crossflow.answers.study.reading import Study
from crossflow.base.errors import CrossflowError
from crossflow.base.files import dotted, leaves
from crossflow.base.paths import quantities
from crossflow.hardware.architecture.template import BUDGETS, GeneratedSystem

if TYPE_CHECKING:
    from crossflow.answers.study.searches import Reporter

FACTORS = (0.5, 2.0)
NO_CONSTANTS = (
    "its devices are known by their data sheets, and have no template whose constants could be halved and doubled; sweep"
    " a generated device, such as template: reference"
)
TEMPLATES = "templates are compared, and each has constants of its own; make a study of each"
NOTHING_COMPARED = "nothing is compared: give it a sweep, or a space with a choice among values"
NO_WINNER = "none of its points or designs runs, so nobody wins"
PLANNED = "strategy: auto plans each point anew; give one strategy, or search them"


def why_not(study: Study) -> str:
    """Why a study has no winner whose constants could be tried; "" where it may have one."""
    if not any(isinstance(one, GeneratedSystem) for one in study.scenario.system.places.values()):
        return NO_CONSTANTS
    if study.planned:
        return PLANNED
    if any(path.endswith(".template") for path in _chosen(study)):
        return TEMPLATES
    choices = any(run.problem.space.options for run in study.runs) or len({run.name for run in study.runs}) > 1
    return "" if study.values or choices else NOTHING_COMPARED


def hinges(study: Study, rows: Iterable[Mapping[str, Any]], report: Reporter | None = None) -> Hinges:
    """What the headlines of a finished study hang on.

    Parameters
    ----------
    study : the study.
    rows : all its rows, in order.
    report : is told constants that are done, those in all, and the last one; of several objectives one after the other.

    Raises
    ------
    CrossflowError
        For a study without generated devices, one that compares nothing, and one of which nothing runs.
    """
    if reason := why_not(study):
        raise CrossflowError(f"{study.spec.name}: {reason}")
    tried = list(constants(study))
    found = [held(contest, tried, report) for contest in _contests(study, rows)]
    if not any(one.headlines for one in found):
        raise CrossflowError(f"{study.spec.name}: {NO_WINNER}")
    return found[0] if len(found) == 1 else _together(found)


def _contests(study: Study, rows: Iterable[Mapping[str, Any]]) -> list[Contest]:
    if study.runs:
        return [*contests(study, rows)]
    return [(SweptContest if study.sampling is None else DrawnContest).of(study, list(rows))]


def _together(found: list[Hinges]) -> Hinges:
    """Those of several objectives as one: their headlines have other paths."""
    return Hinges(
        headlines=tuple(own for one in found for own in one.headlines),
        hinges=tuple(hinge for one in found for hinge in one.hinges),
        constants=max(one.constants for one in found),
        note=found[0].note,
    )


def constants(study: Study) -> Iterator[Changed]:
    """Quantities of generated devices that a study neither sweeps nor chooses, each with other values."""
    chosen = _chosen(study)
    for place, system in study.scenario.system.places.items():
        if isinstance(system, GeneratedSystem):
            yield from _of_device(place, system, chosen)


def _chosen(study: Study) -> set[str]:
    """Paths that a study sweeps, searches, draws or divides anew, and those in swept sections that differ between its points."""
    searched = (path for run in study.runs for path in (*run.problem.space.paths, *getattr(run.problem, "draws", ())))
    drawn = (number.path for number in (study.sampling.numbers if study.sampling else ()))
    inside = (path for above, values in study.every.items() for path in _differing(above, values))
    return {*study.every, *inside, *(study.redivision.paths if study.redivision else ()), *searched, *drawn}


def _differing(above: str, values: Sequence[Any]) -> Iterator[str]:
    """Paths in sections that are swept as a whole, of which not all that say something say the same."""
    said: dict[str, set[str]] = {}
    for value in values:
        for path, leaf in leaves(value, (above,)) if isinstance(value, Mapping) else ():
            said.setdefault(dotted(path), set()).add(str(leaf))
    yield from (path for path, found in said.items() if len(found) > 1)


def _of_device(place: str, system: GeneratedSystem, chosen: set[str]) -> Iterator[Changed]:
    """Those of one device; what its table of divisions has for each node and memory is chosen with these, as its shares are."""
    chosen = chosen | {f"{place}.{path}" for row in system.budgets.divisions for path in row.microarchitecture}
    for parts, quantity, value in quantities(system):
        path = ".".join((place, *parts))
        if path in chosen or parts[0] == "pools" or (parts[0] == "budgets" and parts[1] in (*BUDGETS, "divisions")) or value.size != 1:
            continue
        for factor in FACTORS:
            other = float(value[0]) * factor
            other = min(other, np.inf if quantity.le is None else quantity.le)
            other = max(round(other), 1.0) if quantity.whole else other
            if value[0] and abs(other / float(value[0]) - 1.0) > 1e-9:
                yield path, other / float(value[0]), other
