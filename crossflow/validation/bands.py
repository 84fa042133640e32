"""Bands of error from tables of predictions: the lines of ``data/validation/errors.csv``, and how many rows kept aside lie within them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from crossflow.bands import FEWEST, SHARED, Band, Likeness, candidates
from crossflow.validation.changes import BEFORE, earlier_families, instead
from crossflow.validation.comparison import validate
from crossflow.validation.likeness import likenesses
from crossflow.validation.report import Table
from crossflow.validation.tables import device_spec

PERCENTILE = 0.9
HEADER = (*Likeness.__dataclass_fields__, "n", "median", "p90", "bias", "tables")


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """A row of a table with its error, and what it is like."""

    table: str
    like: Likeness
    error: float  # relative to what was measured
    item: str  # what it is about: a model or a shape; rows of one are alike


def judged(tables: Iterable[Table]) -> Iterator[JudgedRow]:
    """Rows of tables that were measured and predicted."""
    for table in tables:
        likes = likenesses(table)
        for i in np.flatnonzero(np.isfinite(table.measured) & np.isfinite(table.predicted)).tolist():
            if likes[i].kind:
                item = table.items[i] if table.items else str(i)
                yield JudgedRow(table=table.name, like=likes[i], error=float(table.predicted[i] / table.measured[i] - 1.0), item=item)


def left_out(folder: Path | None) -> list[JudgedRow]:
    """Rows of devices whose generation is left out: they are predicted by their datasheet and the parameters of the generation before."""
    with instead(earlier_families()):
        rows = list(judged(validate(folder, whole=True).tables))
    late = [row for row in rows if row.like.device and getattr(device_spec(row.like.device), "family", "") in BEFORE]
    return [replace(row, like=replace(row.like, device="", stack="", scale="", seen="none")) for row in late]


def lines(rows: Sequence[JudgedRow], fewest: int = FEWEST) -> dict[Likeness, Band]:
    """Bands of all sets of rows that share something, of `fewest` rows and more; the likest stand before what they are part of."""
    found: dict[Likeness, list[JudgedRow]] = {}
    for row in rows:
        for names in SHARED:
            left = not row.like.device and row.like.seen == "none"  # a generation that is left out speaks for devices never seen alone
            if all(getattr(row.like, name) for name in names) and not (left and not names):
                found.setdefault(row.like.only(*names), []).append(row)
    kept = {like: band(members) for like, members in found.items() if len(members) >= fewest}
    return dict(sorted(kept.items(), key=lambda pair: tuple(asdict(pair[0]).values())))


def band(rows: Sequence[JudgedRow]) -> Band:
    """Band of rows: its edge is the error that one row in ten of others of the kind passes, as conformal prediction has it [1]_.

    References
    ----------
    .. [1] V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", 2005: of n exchangeable errors the one of rank
       0.9 (n + 1) holds nine of ten further ones.
    """
    errors = np.array([row.error for row in rows])
    sizes = np.sort(np.abs(errors))
    rank = min(int(np.ceil(PERCENTILE * (len(sizes) + 1))), len(sizes))
    tables = " ".join(sorted({row.table for row in rows}))
    return Band(median=float(np.median(sizes)), p90=float(sizes[rank - 1]), bias=float(errors.mean()), n=len(sizes), tables=tables)


def written(found: Mapping[Likeness, Band]) -> str:
    """The lines as the file has them."""
    rows = [",".join(HEADER)]
    for like, of in found.items():
        cells = [f'"{cell}"' if "," in cell else cell for cell in asdict(like).values()]
        rows.append(",".join((*cells, str(of.n), *(f"{value:.4g}" for value in (of.median, of.p90, of.bias)), of.tables)))
    return "\n".join(rows) + "\n"


def coverage(rows: Sequence[JudgedRow], fewest: int = FEWEST) -> dict[str, tuple[int, float]]:
    """By kind, how many rows of models and shapes that are kept aside there are, and what share of them lies within its band.

    Bands are those of the other models and shapes; each half is kept aside once.
    """
    aside = np.array([crc32(row.item.encode()) % 2 for row in rows], dtype=bool)
    within: dict[str, list[bool]] = {}
    for half in (aside, ~aside):
        known = lines([row for row, here in zip(rows, half, strict=True) if not here], fewest)
        for row, here in zip(rows, half, strict=True):
            found = next(candidates(row.like, known), None) if here else None
            if found is not None:
                within.setdefault(row.like.kind, []).append(abs(row.error) <= found[0].p90)
    return {kind: (len(told), float(np.mean(told))) for kind, told in within.items()}
