"""How large a study is, from its file alone: asked for before anything of it is written out."""

from __future__ import annotations

import math

from crossflow.answers.search.settings import Local, SearchSettings
from crossflow.answers.study.spec import MOST_POINTS, StudyFile, values_of
from crossflow.base.files import Document

MOST_BYTES = 1 << 30
# Measured with a million points of a sweep, with as many random designs, and with a thousand searches. [B]
ROW, DESIGN, SEARCH = 400, 100, 20_000
FASTEST = 100_000  # designs a second, more than any search evaluates


def check_size(spec: StudyFile, document: Document) -> None:
    """SpecError for a study of more points or memory than one begins without being asked, with the figures."""
    points = math.prod(values_of(given) for given in spec.sweep.values())
    place, rows, memory = (("sweep",) if spec.sweep else ("searches",) if spec.searches else ("uncertainty",)), points, points * ROW
    if spec.searches:
        designs = sum(_designs(settings, len(spec.objectives)) for settings in spec.searches.values())
        rows, memory = max(points, points * designs), points * (designs * DESIGN + len(spec.searches) * SEARCH)
    if spec.uncertainty is not None:
        rows, memory = rows * spec.uncertainty.samples, memory * spec.uncertainty.samples
    if spec.redivide is not None:
        again = spec.redivide.draw_evaluations if spec.uncertainty is not None and spec.redivide.each == "draw" else 0
        rows = rows * max(again, 1) + points * spec.redivide.evaluations
    if rows > MOST_POINTS or memory > MOST_BYTES:
        has = f"the study has {rows:,} designs to evaluate and takes about {memory / (1 << 30):,.1f} GiB of memory"
        limit = f"more than the {MOST_POINTS:,} or {MOST_BYTES >> 30} GiB that a study begins with unasked"
        raise document.error(place, f"{has}, {limit}; make it smaller, or give --yes")


def _designs(settings: SearchSettings, objectives: int) -> int:
    """Designs that a search evaluates at most; an exhaustive one counts its own."""
    asked = settings.designs(objectives) or (settings.starts * settings.steps if isinstance(settings, Local) else 0)
    return asked if settings.seconds is None else min(asked, int(settings.seconds * FASTEST))
