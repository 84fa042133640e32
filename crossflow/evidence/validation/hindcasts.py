"""Chips that are predicted from what was public before they were announced, beside what was later measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from crossflow.answers.bands import GENERATED
from crossflow.answers.evaluation import evaluate
from crossflow.answers.scenario import from_dict
from crossflow.base.arrays import Array
from crossflow.base.units import parse
from crossflow.evidence.validation.hindcast_files import FIGURES, FOLDER, MEAN_GATE, HindcastFile, alone, designed, hindcasts
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import product_times
from crossflow.hardware.architecture.system import architecture

SIDE = 8192  # of the product that is compared


def predicted(file: HindcastFile) -> dict[str, float]:
    """Figures of a chip with the design that the search found, under the conditions of its answers."""
    return figures(designed(file), cold=unthrottled(file))


def unthrottled(file: HindcastFile) -> bool:
    """Whether the product of a chip was measured before power slowed it."""
    return any(answer.unthrottled for answer in file.answers.values())


def figures(system: Mapping[str, Any], *, cold: bool = False) -> dict[str, float]:
    """Figures of a generated chip, those of runs as steps a second; of a product without the limit of power where it is `cold`."""
    product = {"model": "gemm", "m": SIDE, "n": SIDE, "k": SIDE, "dtype": "fp16"}
    scenario = from_dict({"system": {**system, **alone(1)}, "workload": product, "strategy": "d1"})
    device = architecture(scenario.system)
    last = device.levels[-2]
    time = evaluate(scenario).step_time[0]
    if cold:
        time = product_times(replace(device, throttle=None), "fp16", np.array([[SIDE], [SIDE], [SIDE], [1.0]]))[0]
    found = {
        "product": 2.0 * SIDE**3 / time,
        "memory bandwidth": device.memory.bandwidth[0] / scenario.system.memory_utilisation[0],
        "l2 bandwidth": last.bandwidth[0],
        "l2 capacity": (last.capacity * last.instances)[0],
        "peak": device.throughput["fp16"][0],
        "units": device.units[0],
    }
    return {name: float(value) for name, value in {**found, **steps(system)}.items()}


def steps(system: Mapping[str, Any] | str) -> dict[str, float]:
    """Steps a second of the runs on eight devices, whether or not their memory holds the model. [1/s]"""
    runs = {name: figure.run for name, figure in FIGURES.items() if figure.run is not None}
    given = {name: from_dict({"system": system, "workload": work, "strategy": strategy}) for name, (work, strategy) in runs.items()}
    return {name: float(1.0 / evaluate(scenario, columns=("step_time_s",)).step_time[0]) for name, scenario in given.items()}


# ------------------------------------------------------------------------------------------ table


class KnownFigure(NamedTuple):
    """A figure as it came out."""

    answer: float
    kind: str  # measured, published, announced, or datasheet: predicted from the published figures of the chip
    source: str


@dataclass(frozen=True, kw_only=True)
class HindcastRow:
    """A figure of a chip: as predicted, as it came out, and what it came out by."""

    chip: str
    figure: str
    predicted: float
    answer: float
    kind: str  # as of `KnownFigure`
    source: str

    @property
    def ratio(self) -> float:
        """Predicted over what came out: above one where the chip was predicted too fast."""
        return self.predicted / self.answer

    @property
    def holds(self) -> bool | None:
        """Whether the figure keeps its gate; None where it has none, or nothing was published yet."""
        gate = FIGURES[self.figure].gate
        return None if gate is None or self.kind == "announced" else abs(self.ratio - 1.0) <= gate


@dataclass(frozen=True, kw_only=True)
class HindcastTable(Table):
    """The table, with the ratios of every chip and the forecasts that nothing is known of yet."""

    rows: Sequence[HindcastRow] = ()
    forecasts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Its statistics, and by chip the ratio of every figure, whether it holds, and what is forecast."""
        chips: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            told = {"ratio": row.ratio, "predicted": row.predicted, "answer": row.answer, "kind": row.kind, "holds": row.holds}
            chips.setdefault(row.chip, {})[row.figure] = told
        return {**super().to_dict(), "chips": chips, "gates": gates(self.rows), "forecasts": self.forecasts}


def gates(rows: Sequence[HindcastRow]) -> dict[str, dict[str, Any]]:
    """By figure: the gate, of how many chips it holds, the mean size of the logarithm of the ratios, and whether all of that is kept."""
    found: dict[str, dict[str, Any]] = {}
    for name, figure in FIGURES.items():
        mine = [row for row in rows if row.figure == name and row.holds is not None]
        if figure.gate is None or not mine:
            continue
        held, mean = sum(bool(row.holds) for row in mine), float(np.mean([abs(np.log(row.ratio)) for row in mine]))
        most = MEAN_GATE[1] if name == MEAN_GATE[0] else None
        kept = held == len(mine) and (most is None or mean <= most)
        found[name] = {"within": figure.gate, "chips": len(mine), "held": held, "mean_log": mean, "mean_log_within": most, "kept": kept}
    return found


def hindcast_table() -> HindcastTable:
    """Every chip that has a design: figures as times, so that all errors are of times, and forecasts apart."""
    rows: list[HindcastRow] = []
    forecasts: dict[str, Mapping[str, float]] = {}
    for name, file in hindcasts().items():
        made = predicted(file)
        if file.forecast:
            forecasts[name] = made
        rows += _rows(file, made)
    known = [row for row in rows if row.kind != "announced"]
    return HindcastTable(
        name=FOLDER,
        measured=_times(known, [row.answer for row in known]),
        predicted=_times(known, [row.predicted for row in known]),
        groups={"figure": [row.figure for row in known], "chip": [row.chip for row in known]},
        items=[row.chip for row in known],
        alike={"kind": [FIGURES[row.figure].kind for row in known], "seen": [GENERATED] * len(known)},
        skipped={},
        notes=["each chip from facts that were public before its announcement, divided by the search; nothing was fitted to it"],
        rows=rows,
        forecasts=forecasts,
    )


def _rows(file: HindcastFile, made: Mapping[str, float]) -> list[HindcastRow]:
    told = answered(file)
    return [HindcastRow(chip=file.name, figure=name, predicted=made[name], **told[name]._asdict()) for name in FIGURES if name in told]


def answered(file: HindcastFile) -> dict[str, KnownFigure]:
    """What is known of a chip by figure; steps that nobody measured are predicted from its published figures."""
    given = file.answers.items()
    told = {name: KnownFigure(parse(one.value, FIGURES[name].unit), one.kind, file.sources[one.source]) for name, one in given}
    if file.datasheet is None:
        return told
    return {
        name: KnownFigure(value, "datasheet", f"predicted for {file.datasheet}") for name, value in steps(file.datasheet).items()
    } | told


def _times(rows: Sequence[HindcastRow], values: Sequence[float]) -> Array:
    """Times of figures, all of which are rates or sizes: what is larger is faster."""
    return np.array([1.0 / value for value in values]).reshape(len(rows))
