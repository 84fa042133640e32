"""Measured rows predicted without the numbers that were fitted to rows of their own kind: chip, source or engine.

A number of a chip gives way to that of the generation before it, one of an engine to that of another engine, and what was fitted of how
a source ran services to that of another source; what was fitted of how it measured otherwise gives way to nothing. Numbers that many kinds
share were not fitted again, as that takes the scripts in ``docs/scripts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossflow.answers.bands import Likeness
from crossflow.base import files
from crossflow.base.arrays import Mask
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.files import Path_
from crossflow.base.units import parse
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.dropping import changed, droppable, instead, neutral, plain_of
from crossflow.evidence.validation.earlier import earlier_families, has_earlier
from crossflow.evidence.validation.hindcasts import HindcastTable
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.likeness import likenesses
from crossflow.evidence.validation.report import ERRORS, Report, Table
from crossflow.evidence.validation.tables import measurements

# Conditions of sources that were fitted to their rows; all others are facts that their publications tell.
FITTED_CONDITIONS = (
    "host_time", "floor", "floor_per_rank", "wait", "rank", "layer", "clock", "settling", "pauses", "call", "front_end", "front_token",
)  # fmt: skip
BORROWED = (("nvidia-gap-analysis", "front_token"),)  # what a source has from another one, to whose rows it was fitted
# Engines by the one whose numbers stand in for theirs; for all others those of `GENERAL` do.
SIMILAR = {
    "vllm": "sglang", "sglang": "vllm", "tensorrt-llm": "vllm", "tensorrt-llm-2024": "vllm", "pytorch-fsdp": "megatron-core",
}  # fmt: skip
GENERAL = "pytorch-fsdp"
NO_MODEL = (
    "no number in the package belongs to one model: errors of a model left out are those of `crossflow validate`, but for three times of "
    "services that were fitted to rows of one model each (docs/validation.md)"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class LeftOut:
    """Errors of rows with what was fitted to their own group, and without it."""

    way: str  # what was left out
    fitted: Report  # the rows as `validate` predicts them
    left_out: Report  # the same rows without it; fewer where another generation has no number to give

    def to_dict(self) -> dict[str, Any]:
        """Plain data: of each table what `Report.to_dict` says of the rows left out, and their errors as `fitted`."""
        tables = self.left_out.to_dict()["tables"]
        for table in self.fitted.tables:
            found = table.to_dict()
            tables[table.name]["fitted"] = {name: found[name] for name in ERRORS}
            for way, groups in tables[table.name]["by"].items():
                for name, group in groups.items():
                    held = found["by"][way].get(name, {})  # none of "not seen", which rows of a chip are without its generation
                    group["fitted"] = {key: held.get(key) for key in ERRORS}
        return {"data": str(self.fitted.data), "leave_out": self.way, "tables": tables}

    def __repr__(self) -> str:
        return f"LeftOut({self.way}): {self.left_out!r}"


def leave_out(
    way: str, data: str | Path | None = None, *, whole: bool = False, fitted: Report | None = None, kept: KeptTables | None = None
) -> LeftOut:
    """Predict measured rows without what was fitted to their own chip, source or engine, and as they are predicted otherwise.

    Rows to whose group nothing was fitted are skipped.

    Parameters
    ----------
    way : what is left out, one of `WAYS`.
    data, whole, kept : folder of measured tables, what else to compare with, and where tables are kept, as `validate` has them.
    fitted : what `validate` says of these, where that is known.

    Raises
    ------
    CrossflowError
        For a way that is none of `WAYS`, a model, of which no number is kept, and as `validate` does.
    """
    if way == "model":
        raise CrossflowError(NO_MODEL)
    if way not in WAYS:
        raise CrossflowError(f"rows are left out by {', '.join(WAYS)}; got '{way}'{did_you_mean(way, WAYS)}")
    contents, reaches = WAYS[way]()
    own = validate(data, whole=whole, kept=kept) if fitted is None else fitted
    left = validate_instead(contents, data, whole=whole, kept=kept)
    pairs = [_compared(*pair, reaches, way) for pair in zip(own.tables, left.tables, strict=True) if not isinstance(pair[0], HindcastTable)]
    both = [replace(report, tables=tables) for report, tables in zip((own, left), zip(*pairs, strict=True), strict=True)]
    return LeftOut(way=way, fitted=both[0], left_out=both[1])


def validate_instead(contents: Mapping[Path, str], data: str | Path | None, *, whole: bool, kept: KeptTables | None = None) -> Report:
    """What `validate` says with other contents of files."""
    with instead(contents):
        return validate(data, whole=whole, kept=None if kept is None else kept.instead(contents))


@dataclass(frozen=True)
class _Row:
    """What a row of a table belongs to."""

    source: str
    like: Likeness

    @property
    def engine(self) -> str:
        """Its stack of software; of collectives that whose kernels its source timed."""
        return self.like.stack or str(measurements().get(self.source, {}).get("collectives", {}).get("software", ""))


Reaches = Callable[[_Row], str]  # the chip, source or engine of a row, where something was fitted to it; else ""


def _chips() -> tuple[dict[Path, str], Reaches]:
    return earlier_families(), lambda row: row.like.device if has_earlier(row.like.device) else ""


def _sources() -> tuple[dict[Path, str], Reaches]:
    found = changed((place for place in _places("measurements") if _fitted_condition(place[1])), _without)
    names = tuple(name for name, conditions in measurements().items() if any(_fitted_condition((name, key)) for key in _keys(conditions)))
    return found, lambda row: row.source if row.source.startswith(names) else ""


def _without(data: dict[Any, Any], keys: Path_) -> None:
    """Take a condition of a source away; times of the host then are those of its software, and those of a service's front end the mean of
    other sources with its engine.
    """
    if keys[-2] == "host":
        del files.held(data, keys[:-1])[keys[-1]]
    elif keys[1] == "service" and (others := _elsewhere(keys)):
        files.held(data, keys[:-1])[keys[-1]] = f"{sum(others) / len(others):.6g} s"
    else:
        neutral(data, keys)


def _elsewhere(keys: Path_) -> list[float]:
    """A time of a service as other sources have it with the same engine. [s]"""
    source, _, engine, name = keys
    held = [(other, files.held(given, ("service", engine)) or {}) for other, given in measurements().items() if other != source]
    return [parse(given[name], "s") for other, given in held if name in given and (other, name) not in BORROWED]


def _engines() -> tuple[dict[Path, str], Reaches]:
    found = changed(_places("software"), _as_similar)
    stacks = {path.stem for path in found}
    return found, lambda row: row.engine if row.engine in stacks else ""


WAYS: Mapping[str, Callable[[], tuple[dict[Path, str], Reaches]]] = {"chip": _chips, "source": _sources, "engine": _engines}


def _keys(data: Any) -> list[str]:
    """All keys of nested mappings."""
    return [found for key, value in data.items() for found in (str(key), *_keys(value))] if isinstance(data, Mapping) else []


def _fitted_condition(keys: Path_) -> bool:
    """Whether a condition of a source, the first of the keys, was fitted to its rows."""
    return any(key in FITTED_CONDITIONS for key in keys) and not any(keys[0] == source and key in keys for source, key in BORROWED)


def _places(section: str) -> list[tuple[Path, Path_]]:
    """Places of the fitted numbers below a section of `droppable`."""
    return [place for name, held in droppable().items() if name.startswith(f"{section}.") for place in held]


def _as_similar(data: dict[Any, Any], keys: Path_) -> None:
    """Give an engine the number of a similar one; none where that has none."""
    held = files.held(plain_of(files.catalogue("templates", "software")[SIMILAR.get(data["name"], GENERAL)]), keys)
    own = files.held(data, keys[:-1])
    if held is None:
        del own[keys[-1]]
    else:
        own[keys[-1]] = held.get("value") if isinstance(held, Mapping) else held


def _compared(kept: Table, left: Table, reaches: Reaches, way: str) -> tuple[Table, Table]:
    """A table with what was fitted to the group of each row and without it; of both the rows of groups to which something was."""
    groups, others = _groups(kept, reaches), _groups(left, reaches)
    if np.array_equal(kept.measured, left.measured, equal_nan=True):  # a group none of whose rows moves has nothing of its own
        moved = set(groups[~np.isclose(kept.predicted, left.predicted, rtol=1e-9, atol=0.0, equal_nan=True)].tolist()) - {""}
        groups = others = np.where(np.isin(groups, sorted(moved)), groups, "")
    return _part(kept, groups != "", way), _part(left, others != "", way)


def _groups(table: Table, reaches: Reaches) -> NDArray[np.str_]:
    likes = likenesses(table)
    sources = table.groups.get("source", [""] * len(likes))
    return np.array([reaches(_Row(*row)) for row in zip(sources, likes, strict=True)], dtype=np.str_)


def _part(table: Table, mine: Mask, way: str) -> Table:
    timed = np.isfinite(table.measured) & np.isfinite(table.predicted)
    rest, mine = int((timed & ~mine).sum()), timed & mine
    return Table(
        name=table.name, measured=table.measured[mine], predicted=table.predicted[mine],
        groups={name: list(compress(members, mine)) for name, members in table.groups.items()},
        skipped={**table.skipped, **({f"nothing was fitted to the rows of its {way} alone": rest} if rest else {})},
    )  # fmt: skip
