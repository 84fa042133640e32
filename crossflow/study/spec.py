"""Study files: a scenario, what varies, and what is shown of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from crossflow.errors import SpecError
from crossflow.files import Document, FileModel
from crossflow.units import parse, show


class Range(FileModel):
    """Evenly spaced values between two quantities, on a linear or a logarithmic scale."""

    start: str | float = Field(alias="from")
    stop: str | float = Field(alias="to")
    count: PositiveInt
    scale: Literal["linear", "log"] = "linear"


class LinePlot(FileModel):
    """Lines over a swept path: one line a value of `series`, one panel a value of `panels`."""

    kind: Literal["lines"] = "lines"
    name: str
    title: str = ""
    x: str
    y: str = "step_time_s"
    series: str | None = None
    panels: str | None = None
    x_label: str = ""
    y_label: str = ""
    labels: Mapping[str, str] = Field(default={}, description="how values are written in the plot")


class StudyFile(FileModel):
    """A sweep over a scenario: every combination of the values listed for each path."""

    name: str
    title: str = ""
    notes: str = ""
    scenario: Any
    sweep: Mapping[str, Any] = Field(min_length=1)
    columns: tuple[str, ...] = ("step_time_s", "bound_by", "reason")
    headers: Mapping[str, str] = {}
    plots: tuple[LinePlot, ...] = ()

    @model_validator(mode="after")
    def _plots_use_the_sweep(self) -> StudyFile:
        for plot in self.plots:
            for field in ("x", "series", "panels"):
                path = getattr(plot, field)
                if path is not None and path not in self.sweep:
                    raise ValueError(f"plots: {plot.name}: {field} is '{path}', which is not swept; swept: {', '.join(self.sweep)}")
        return self


def sweep_values(path: str, values: Any, document: Document) -> list[Any]:
    """Values of one swept path: a list as it stands, or a range worked out in its unit."""
    place = ("sweep", path)
    if isinstance(values, list) and values:
        return values
    if not isinstance(values, Mapping):
        raise SpecError([document.problem(place, "expected a list of values, or {from: ..., to: ..., count: ...}")])
    from crossflow import files

    described = files.validate(Range, Document(file=document.file, data=values, lines=document.under(*place).lines))
    return _spaced(described, document, place)


def _spaced(described: Range, document: Document, place: tuple[str, str]) -> list[Any]:
    """Numbers where both ends are numbers, quantities in the unit of the first end otherwise."""
    unit = str(described.start).lstrip("+-.0123456789eE_").strip() if isinstance(described.start, str) else ""
    plain = unit in ("", "%")
    try:
        ends = [parse(end, "1" if plain else unit) for end in (described.start, described.stop)]
    except ValueError as error:
        raise SpecError([document.problem(place, str(error))]) from None
    if described.scale == "log" and min(ends) <= 0:
        raise SpecError([document.problem(place, "a logarithmic scale needs ends greater than zero")])
    space = np.geomspace if described.scale == "log" else np.linspace
    numbers = [float(f"{value:.12g}") for value in space(ends[0], ends[1], described.count)]
    if unit == "%":
        return [f"{100 * number:.12g} %" for number in numbers]
    return numbers if plain else [f"{number:.12g} {unit}" for number in numbers]


def grid(values: Mapping[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Every combination of the values, the last path changing fastest."""
    return list(itertools.product(*values.values()))


def label(value: Any) -> str:
    """How a swept value is written in tables and plots."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}{part}" for key, part in value.items())
    return show(value, "1") if isinstance(value, float) else str(value)
