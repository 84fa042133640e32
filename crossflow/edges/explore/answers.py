"""What a page is told of designs: the figures of one, and curves through it for the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.likeness import AROUND
from crossflow.answers.evaluation.remedies import Remedy
from crossflow.answers.explanation.designs import Design
from crossflow.answers.prediction import Prediction
from crossflow.answers.score import Score, larger_is_better, unit_of, words
from crossflow.base.arrays import Array, plain
from crossflow.base.units import Quantity
from crossflow.edges.explore.controls import Control, controls, numbers
from crossflow.hardware.architecture.model import Architecture

OBJECTIVES = ("step_time_s", "energy_j", "power_w", "memory_needed_bytes", "mfu", "cost_usd")  # that curves may show
NEAR = 1.1  # factor by which gains are told
CURVE, FINE = 7, 41  # points of a small curve and of a large one
NO_PRICE = "no price is known; set system.operation.price, such as 2.5 USD/hour"
SERVED = ("ttft_s", "tpot_s", "e2el_s", "output_throughput_tokens_per_s")  # figures of a service on the page
CALLED = {
    "ttft_s": "first token (TTFT)", "tpot_s": "per output token (TPOT)", "e2el_s": "whole request",
    "output_throughput_tokens_per_s": "output tokens a second",
}  # fmt: skip


def answer(design: Design, score: Score, point: int = 0) -> dict[str, Any]:
    """Figures of one point of a score, in SI units; None for what is not known or never ends."""
    scenario = design.scenario
    return {
        "strategy": scenario.strategy_text,
        "devices": scenario.devices,
        "what": f"{scenario.workload.model} on {scenario.fleet}",
        "note": design.note,
        "step_time": _plain(score.step_time, point),
        "feasible": bool(score.feasible[point]),
        "reason": score.why(point),
        "breakdown": _parts(score.breakdown, point),
        "bound": _parts(score.bound, point),
        "memory": _parts(score.memory, point),
        "capacity": _plain(score.memory_capacity, point),
        "figures": [dict(zip(("name", "label", "value", "unit", "larger"), figure, strict=True)) for figure in _figures(score, point)],
        "trust": _trust(design, score, point),
        "money": "" if _priced(score, point) else NO_PRICE,
    }


def _plain(values: Any, point: int) -> float | None:
    array = np.ravel(values)
    found: float | None = plain(float(array[point if array.size > 1 else 0]))
    return found


def _parts(values: Mapping[str, Array], point: int) -> dict[str, float]:
    found = {name: _plain(value, point) for name, value in values.items()}
    return {name: value for name, value in found.items() if value}


def _figures(score: Score, point: int) -> Iterator[tuple[str, str, float | None, str, bool]]:
    """Name, label, value, unit of every figure that the scenario has, and whether more of it is better."""

    def figure(name: str, label: str, value: Any, unit: str | None = None) -> tuple[str, str, float | None, str, bool]:
        return name, label, _plain(value, point), unit_of(name) if unit is None else unit, larger_is_better(name)

    if score.tokens_per_second.any():
        yield figure("tokens_per_second", "tokens a second", score.tokens_per_second, "1/s")
    else:
        yield figure("samples_per_second", "samples a second", score.samples_per_second, "1/s")
    yield figure("mfu", "MFU", score.mfu)
    yield figure("energy_j", "energy a step", score.energy)
    yield figure("power_w", "power, all devices", score.power)
    for name in SERVED:
        if name in score.serving:
            yield figure(name, CALLED.get(name, words(name)), score.serving[name])
    if not np.isnan(score.cost[point]):
        yield figure("cost_usd", "price of all devices", score.cost)
    millions = {name: value for name, value in score.per_million().items() if name.startswith("usd")}
    yield from (figure(name, words(name).replace("usd", "USD"), value, "USD") for name, value in list(millions.items())[-1:])
    run = {name: value for name, value in score.run.items() if name in ("time_s", "cost_usd")}
    yield from (figure(f"run.{name}", f"whole run, {words(name)}", value, unit_of(name)) for name, value in run.items())


def _priced(score: Score, point: int) -> bool:
    return not (np.isnan(score.cost[point]) and np.isnan(score.rent[point]))


def _trust(design: Design, score: Score, point: int) -> dict[str, str]:
    """How far the step time of a point can be trusted: the level, and a sentence with the band and the reason."""
    from crossflow.answers.evaluation.post_training import whole_trust  # with iterations, which few designs need

    scenario, level = design.scenario, score.trusted[point]
    changed = any(path.split(".")[1] not in AROUND for path in design.quantities)
    found = whole_trust(scenario, changed=changed)
    found = found if found.level == level else whole_trust(design.whole())
    return {"level": found.level, "text": found.text, "basis": found.basis}


def further(design: Design) -> dict[str, Any]:
    """What costs more than the figures themselves: cures, notes, the error in words, the device."""
    whole = design.whole()
    prediction = Prediction(scenario=whole, score=design.score())
    trusts = [{"name": name, "text": one.text} for name, one in prediction.trusts.items()]
    return {
        "cures": told_remedies(prediction.remedies),
        "notes": list(prediction.notes),
        "trusts": trusts,
        "device": device_figures(design.device()),
    }


def told_remedies(remedies: Iterable[Remedy]) -> list[dict[str, Any]]:
    """Remedies for buttons: sentences with the settings that they stand for."""
    return [{"text": str(remedy), "settings": dict(remedy.settings)} for remedy in remedies]


def device_figures(device: Architecture) -> dict[str, Any]:
    """A device for drawing: what of each budget every component has and uses, what limits it, and its memory levels."""
    rows = [{**row, "limit": device.bound_by.get(row["component"])} for row in device.budget_rows()]
    levels = [
        {"name": level.name, "capacity": _plain(level.capacity * level.instances, 0), "bandwidth": _plain(level.bandwidth, 0)}
        for level in device.levels
    ]
    figures = {name: _plain(value, 0) for name, value in device.figures.items()}
    return {"budgets": rows, "levels": levels, "figures": figures}


# ------------------------------------------------------------------------------------------ curves


def columns_of(score: Score, name: str) -> Array:
    """One of `OBJECTIVES` of every point."""
    found = {
        "step_time_s": score.step_time, "energy_j": score.energy, "power_w": score.power, "memory_needed_bytes": score.memory_needed,
        "mfu": score.mfu, "cost_usd": score.cost,
    }  # fmt: skip
    return np.asarray(found[name])


def curve_values(control: Control, quantity: Quantity, value: float, count: int, *, near: bool = True) -> list[float]:
    """Values of a curve over a slider's range through the value itself, in order; those next to it tell the gain."""
    wanted = [value / NEAR, value, value * NEAR] if near else [value]
    if count and control.least is not None and control.most is not None:
        ends = (control.least, control.most)
        spread = np.geomspace(*ends, count) if control.log else np.linspace(*ends, count)
        wanted += spread.tolist()
    return sorted({found for one in wanted if (found := _allowed(quantity, one)) is not None})


def _allowed(quantity: Quantity, value: float) -> float | None:
    if quantity.whole:
        value = float(round(value))
    if quantity.le is not None:
        value = min(value, quantity.le)
    try:
        return quantity.checked(value)
    except ValueError:
        return None


def curves(
    design: Design, shown: Mapping[str, int], objective: str = "step_time_s", *, owners: Collection[str] = (), levers: Collection[str] = ()
) -> tuple[Score, dict[str, dict[str, Any]]]:
    """Score of a design, its first point, and of curves through it, all in one batch; the curves by path.

    Parameters
    ----------
    shown : points of the curve of each path that is drawn.
    objective : one of `OBJECTIVES`.
    owners, levers : also tell the gain of all numbers that these own or of these groups, from 10 % to both sides.
    """
    scenario = design.scenario
    known = {number.path: number for number in controls(scenario) if number.kind == "number" and number.least is not None}
    told_of = {path for path, number in known.items() if number.owner in owners or number.lever in levers}
    paths = [path for path in dict.fromkeys((*shown, *known)) if path in known and (path in shown or path in told_of)]
    quantities = {number.path: number.quantity for number in numbers(scenario)}
    values: dict[str, list[float]] = {}
    own: dict[str, float] = {}
    for path in paths:
        own[path] = design.quantities.get(path, float(known[path].value))
        values[path] = curve_values(known[path], quantities[path], own[path], shown.get(path, 0), near=bool(owners or levers))
    with np.errstate(divide="ignore"):  # a voltage at its threshold
        score = evaluate(scenario, _points(design, own, values), columns=("step_time_s",))
    found, place = columns_of(score, objective), 1
    told: dict[str, dict[str, Any]] = {}
    for path, curve in values.items():
        span = slice(place, place + len(curve))
        place += len(curve)
        told[path] = _curve(score, found, span, curve, own[path], objective, draw=path in shown)
    return score, told


def _points(design: Design, own: Mapping[str, float], values: Mapping[str, Sequence[float]]) -> dict[str, Any] | None:
    """The design itself, and every value of every curve with all else as it is."""
    n, place = 1 + sum(map(len, values.values())), 1
    points: dict[str, Any] = {**design.points(n), **{path: np.full(n, value) for path, value in own.items()}}
    for path, curve in values.items():
        points[path][place : place + len(curve)] = curve
        place += len(curve)
    return points or None


def _curve(score: Score, found: Array, span: slice, values: Sequence[float], own: float, objective: str, *, draw: bool) -> dict[str, Any]:
    """A curve, and the gain of 10 % to the better side: one that stays feasible where the design is."""
    names, sign = list(score.bound), 1.0 if larger_is_better(objective) else -1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        gains = sign * (found[span] / found[0] - 1.0)
    near = [
        (gain, value)
        for gain, value, fits in zip(gains.tolist(), values, score.feasible[span].tolist(), strict=True)
        if own / NEAR / 1.001 <= value <= own * NEAR * 1.001 and np.isfinite(gain) and (fits or not score.feasible[0])
    ]
    gain, to = max(near, default=(0.0, own))
    told: dict[str, Any] = {"gain": gain, "way": int(np.sign(to - own))}
    if draw:
        bound = np.stack([score.bound[name][span] for name in names]).argmax(axis=0)
        told |= {
            "x": list(values), "y": [plain(value) for value in found[span].tolist()], "fits": score.feasible[span].tolist(),
            "bound": [names[i] for i in bound.tolist()], "at": own,
        }  # fmt: skip
    return told
