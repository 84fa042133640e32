"""How large a study is, from its file alone: asked for before anything of it is written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from crossflow.answers.search.settings import BEST, ExhaustiveSettings, Local, SearchSettings
from crossflow.answers.study.spec import MOST_POINTS, StudyFile, values_of
from crossflow.base.files import Document

MOST_BYTES = 1 << 30
# Measured with a million points of a sweep, with as many random designs, and with a thousand searches. [B]
ROW, DESIGN, SEARCH = 400, 100, 20_000
KEPT = 16  # of a listed design for a member in a draw [B]
FASTEST = 100_000  # designs a second, more than any search evaluates


def check_size(spec: StudyFile, document: Document) -> None:
    """SpecError for a study of more points or memory than one begins without being asked, with the figures."""
    points = math.prod(values_of(given) for given in spec.sweep.values())
    place, rows, memory = (("sweep",) if spec.sweep else ("searches",) if spec.searches else ("uncertainty",)), points, points * ROW
    if spec.searches:
        designs = sum(_designs(settings, len(spec.objectives)) for settings in spec.searches.values())
        rows = max(points, points * (designs if _cases(spec) == 1 else _judged(spec, designs)))
        listed = _listed(spec.space) if _cases(spec) > 1 else None
        memory = points * (designs * DESIGN + len(spec.searches) * SEARCH) + (
            0 if listed is None else KEPT * min(listed, BEST) * _cases(spec)
        )
    elif spec.uncertainty is not None:
        rows, memory = rows * spec.uncertainty.samples, memory * spec.uncertainty.samples
    if spec.redivide is not None:
        again = spec.redivide.draw_evaluations if spec.uncertainty is not None and spec.redivide.each == "draw" else 0
        rows = rows * max(again, 1) + points * spec.redivide.evaluations
    if rows > MOST_POINTS or memory > MOST_BYTES:
        each = " for members and draws" if _cases(spec) > 1 else ""
        has = f"the study has {rows:,} designs to evaluate{each} and takes about {memory / (1 << 30):,.1f} GiB of memory"
        limit = f"more than the {MOST_POINTS:,} or {MOST_BYTES >> 30} GiB that a study begins with unasked"
        raise document.error(place, f"{has}, {limit}; make it smaller, or give --yes")


def _cases(spec: StudyFile) -> int:
    """Points, of a member in a draw, that are evaluated for each design of a search."""
    members = 1 if spec.portfolio is None else len(spec.portfolio.members)
    return members * (1 if spec.uncertainty is None or not spec.searches else spec.uncertainty.samples)


def _judged(spec: StudyFile, designs: int) -> int:
    """Points that searches evaluate of so many designs and for own bests; a listed space is evaluated once for all draws."""
    listed, (members, drawn) = _listed(spec.space), (spec.portfolio, spec.uncertainty)
    again = 0 if drawn is not None and (listed or 0) <= BEST else (listed or 0)
    every = designs + again * sum(isinstance(settings, ExhaustiveSettings) for settings in spec.searches.values())
    count = 1 if members is None else len(members.members)
    if listed is not None and listed <= BEST:
        return every * _cases(spec) + listed * (_cases(spec) + count)
    own = 0 if members is None or count == 1 else count * members.member_evaluations
    return every * _cases(spec) + own + (0 if drawn is None else count * drawn.samples * drawn.draw_evaluations)


def _listed(space: Mapping[str, Any]) -> int | None:
    """Designs of a space of lists and counted ranges, None for one that has other entries."""
    sizes = [values_of(given.get("values", given) if isinstance(given, Mapping) else given) for given in space.values()]
    ended = [
        isinstance(given, list) or (isinstance(given, Mapping) and not {"count", "values"}.isdisjoint(given)) for given in space.values()
    ]
    return math.prod(sizes) if all(ended) else None


def _designs(settings: SearchSettings, objectives: int) -> int:
    """Designs that a search evaluates at most; an exhaustive one counts its own."""
    asked = settings.designs(objectives) or (settings.starts * settings.steps if isinstance(settings, Local) else 0)
    return asked if settings.seconds is None else min(asked, int(settings.seconds * FASTEST))
