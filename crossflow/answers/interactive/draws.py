"""Draws of uncertain numbers from Python: intervals of figures, and which numbers matter most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from crossflow.answers.interactive.sweeps import listed
from crossflow.answers.planning.opening import ScenarioSource, load
from crossflow.answers.score import unit_of
from crossflow.answers.study import findings, sweeps
from crossflow.answers.study.plots.spec import IntervalPlot
from crossflow.answers.study.reading import Study, read_study
from crossflow.answers.study.tables import PointsTable
from crossflow.base.drawing.picture import Picture
from crossflow.base.results import PlainData, Tabular, later

if TYPE_CHECKING:
    from crossflow.answers.study.plots.view import View
else:
    View = later("crossflow.answers.study.plots.view", "View")


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws(PlainData, Tabular):
    """What draws of uncertain numbers say.

    Attributes
    ----------
    intervals : a row a swept point and column: low, median, mean and high in SI units, and the share of feasible draws.
    importance : a row a swept point, column and uncertain number: its rank correlation with the column, the strongest first.
    comparisons : a row a pair of swept points and column: the probability that the first is better, over the same draws.
    draws : columns of all draws.
    """

    intervals: tuple[Mapping[str, Any], ...]
    importance: tuple[Mapping[str, Any], ...]
    comparisons: tuple[Mapping[str, Any], ...]
    draws: Mapping[str, Any] = field(repr=False)
    study: Study = field(repr=False)
    view: View = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: intervals, importance, comparisons."""
        return {name: [dict(row) for row in getattr(self, name)] for name in ("intervals", "importance", "comparisons")}

    def table(self) -> dict[str, list[Any]]:
        """Columns of the intervals."""
        return {name: [row[name] for row in self.intervals] for name in self.intervals[0]}

    def plot(self, column: str | None = None, x: str | None = None, *, by: str | None = None) -> Picture:
        """Draw the medians and intervals of a column over a swept path; the first column and the first swept path where absent."""
        from crossflow.answers.study.plots.uncertainty import draw_intervals, interval_data
        from crossflow.base.drawing.canvas import nothing

        paths = list(self.study.values)
        if not paths:
            return Picture(figure=nothing("Intervals", "no path is swept; the intervals are in `intervals`"))
        across = x or paths[0]
        lines = by or next((path for path in paths if path != across), None)
        asked = column or str(self.intervals[0]["column"])
        plot = IntervalPlot(kind="intervals", name="intervals", x=across, y=asked, series=lines)
        return Picture(figure=draw_intervals(interval_data(self.view, plot)))

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html
        from crossflow.base.drawing.charts import written

        figures = ("low", "median", "mean", "high")
        units = [unit_of(str(row["column"])) for row in self.intervals]
        rows = [
            [written(value, unit if name in figures else "1") for name, value in row.items()]
            for row, unit in zip(self.intervals, units, strict=True)
        ]
        return html.text(repr(self)) + html.table(list(self.intervals[0]), rows, html.MOST)

    def __repr__(self) -> str:
        first = self.intervals[0]
        share = self.study.sampling.settings.interval if self.study.sampling is not None else 0.0
        low, high = (f"{first[end]:.4g}" for end in ("low", "high"))
        return f"Draws({len(self.view.columns['feasible']):,} draws, {100 * share:.0f} % of {first['column']} in {low} .. {high})"


def uncertainty(
    scenario: ScenarioSource,
    sweep: Mapping[str, Iterable[Any]] | None = None,
    columns: str | Sequence[str] = "step_time_s",
    *,
    samples: int = 1000,
    seed: int = 0,
    interval: float = 0.9,
    distribution: Literal["triangular", "uniform"] = "triangular",
    numbers: Literal["together", "independent"] = "together",
    parameters: Sequence[str] | None = None,
) -> Draws:
    """Draw all numbers that carry low and high, for each point of a sweep the same draws.

    Parameters
    ----------
    scenario : a scenario, its file or its plain data.
    sweep : values by path; every combination is a point. The scenario alone where absent.
    columns : columns of which intervals are told.
    samples, seed : number of draws, and the seed of them.
    interval : share of the draws that an interval holds.
    distribution : between low and high.
    numbers : whether numbers of one entry of the library move together.
    parameters : paths, or beginnings of paths, of the numbers to draw; all where absent.

    Raises
    ------
    CrossflowError
        Where no number is uncertain, and for paths and columns that do not exist.

    Examples
    --------
    >>> import crossflow
    >>> scenario = crossflow.from_dict({"system": "pathfinder", "workload": "lstm-16k", "strategy": "CR-8-d64"})
    >>> spread = crossflow.uncertainty(scenario, {"system.technology.memory": ["HBM3", "HBM4"]}, samples=50)
    >>> [row["low"] <= row["median"] <= row["high"] for row in spread.intervals]
    [True, True]
    """
    start, asked = load(scenario), [columns] if isinstance(columns, str) else list(columns)
    drawn = {"samples": samples, "seed": seed, "interval": interval, "distribution": distribution, "numbers": numbers}
    data = {
        "name": start.name,
        "scenario": dict(start.document.data),
        "sweep": {path: listed(path, given) for path, given in (sweep or {}).items()},
        "columns": asked,
        "record": asked,
        "uncertainty": {**drawn, **({} if parameters is None else {"parameters": list(parameters)})},
    }
    return _drawn(read_study(data, base=start.base), asked)


def _drawn(study: Study, asked: Sequence[str]) -> Draws:
    """What the draws of a study say of the columns asked for."""
    layout = study.grid
    table = PointsTable(names=study.needed)
    for part in sweeps.tasks(study.scenario, layout, study.sampling, None, None, study.recorded, table.names):
        block = sweeps.evaluated(part)
        table.add(part.first, block.columns, block.count)
    view = findings.view(study, table.columns(), [])
    return Draws(
        intervals=tuple(row for row in findings.interval_rows(view) if row["column"] in asked),
        importance=tuple(row for row in findings.importance_rows(view) if row["column"] in asked),
        comparisons=tuple(findings.comparisons(study, view)),
        draws=view.columns,
        study=study,
        view=view,
    )
