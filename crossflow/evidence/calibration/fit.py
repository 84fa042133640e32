"""Least squares of the logarithms of predicted over measured times, for the parameters that the rows can decide.

Which these are is found from the sensitivities at the solution: a parameter is fitted where the rows fix it, beside the others, to a
quarter of its value, or fit clearly worse without it [1]_. The others stay as the template has them, and are named with the reason.

References
----------
.. [1] Schwarz, "Estimating the dimension of a model", Annals of Statistics 6(2), 1978: n ln(cost without / cost with) against ln n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.evidence.calibration.measurements import MeasuredCollective, MeasuredRows
from crossflow.evidence.calibration.parameters import FABRIC, FitParameter, parameters, with_values
from crossflow.evidence.calibration.pricing import PricedSystem, over_points, predicted
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.hardware.technology.library import load_library

LEAST = 8  # rows that a fit needs
ROWS_EACH = 3  # rows that each parameter needs
SCALE = 0.05  # of the robust loss, in log(time)
RIDGE = 0.002  # that ties parameters to their templates, in log(parameter)
KNOWN = 0.25  # standard error of log(parameter) up to which a parameter is fitted
WORTH = 2.0  # times the Bayesian information criterion: what a parameter must save to be fitted however little it is known
NOISE = 0.01  # least scatter of log(time) that is reckoned with
MOVES = 1e-9  # of all rows together, what a parameter moves that they depend on
STEP = 0.02  # of log(parameter) in a sensitivity
DIFFERENCE = 1e-4  # of log(parameter), relative, in the derivatives of the search
STARTS = ((1.0, 1.0), (0.2, 1.0), (1.0, 0.4), (0.2, 0.4))  # factors of times and of low_latency_share, which has two optima
DIGITS = 4  # that values are written with, and scored with

ValuePath = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A parameter that the rows decide."""

    parameter: FitParameter
    value: float
    error: float  # standard error of its logarithm. [1]

    @property
    def at_bound(self) -> bool:
        """Whether it would go further if physics let it."""
        return not self.parameter.low * 1.001 < self.value < self.parameter.high * 0.999


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What became of the parameters of a fabric or a device."""

    fitted: tuple[Fitted, ...]
    left: Mapping[str, str]  # parameters that stay as they are, of those that rows depend on at all, and why
    untouched: tuple[str, ...]  # parameters that no row depends on

    @property
    def values(self) -> Mapping[ValuePath, float]:
        """Fitted values by path."""
        return {one.parameter.path: one.value for one in self.fitted}


def held_out(order: Array) -> Mask:
    """Rows that are not fitted: those of every other size, the second, the fourth and so on."""
    return np.asarray(np.unique(order, return_inverse=True)[1].ravel() % 2 == 1)


def fit(spec: SystemSpec, part: str, sets: Sequence[MeasuredRows]) -> Fit:
    """Fit the parameters of a part of a system to the rows that are not held out."""
    known = list(parameters(spec, part))
    kept = [~held_out(one.order) for one in sets]
    measured = np.log(np.concatenate([one.time[mask] for one, mask in zip(sets, kept, strict=True)]))

    library, own = load_library(spec.techlib), np.log([one.value for one in known])
    device = architecture(spec, library) if part == FABRIC else None  # which no parameter of a fabric changes

    def logs(x: Array) -> Array:
        if part != FABRIC and x.shape[1] > 1:  # whose rows are points themselves
            return np.concatenate([logs(x[:, [i]]) for i in range(x.shape[1])], axis=1)
        moved = x != own[:, None]
        changed = {known[i].path: np.where(moved[i], np.exp(x[i]), known[i].value) for i in np.flatnonzero(moved.any(axis=1)).tolist()}
        system = PricedSystem(with_values(spec, changed), library, device)
        times = (_times(system, one)[mask] for one, mask in zip(sets, kept, strict=True))
        return np.asarray(np.log(np.concatenate([np.broadcast_to(one, (len(one), x.shape[1])) for one in times])))

    start = np.log([np.clip(one.value, one.low, one.high) for one in known])
    search = _Search(logs=logs, measured=measured, start=start, bounds=np.log([[one.low, one.high] for one in known]).T, known=known)
    everything, free, x = np.ones(len(known), dtype=bool), np.zeros(len(known), dtype=bool), start
    for _ in range(3):  # what hides behind something at the start may not at the solution
        moves = free | (np.linalg.norm(search.jacobian(x, everything), axis=0) > MOVES)
        if (moves == free).all():
            break
        free = moves
        x, _ = search.best(free, x)
    chosen, x, left = _decided(search, free, x)
    errors = search.errors(x, chosen)
    fitted = tuple(
        Fitted(parameter=known[i], value=float(f"{np.exp(x[i]):.{DIGITS}g}"), error=float(errors[i]))
        for i in np.flatnonzero(chosen).tolist()
    )
    untouched = tuple(one.name for one, moved in zip(known, free, strict=True) if not moved)
    return Fit(fitted=fitted, left=left, untouched=untouched)


def _times(system: PricedSystem, rows: MeasuredRows) -> Array:
    """Predicted times of rows, shape (rows, points), or (rows, 1) where they hold for all points. [s]"""
    return over_points(system, rows, rows.size) if isinstance(rows, MeasuredCollective) else predicted(system, rows)[:, None]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Least squares over the logarithms of some parameters, the others being those of the template."""

    # logarithms of predicted times of all rows, shape (rows, points), by those of the parameters, shape (parameters, points)
    logs: Callable[[Array], Array]
    measured: Array  # logarithms of measured times
    start: Array  # logarithms of the parameters in the template
    bounds: Array  # least and most, shape (2, parameters)
    known: Sequence[FitParameter]

    def at(self, x: Array) -> Array:
        """Logarithms of predicted times of all rows at one point."""
        return self.logs(x[:, None])[:, 0]

    def best(self, free: Mask, near: Array) -> tuple[Array, float]:
        """The best optimum of searches from several starts, and its cost."""
        times = np.array([one.unit == "s" for one in self.known])
        shares = np.array([one.name.endswith("low_latency_share") for one in self.known])
        firsts = [near, *(self.start + times * np.log(time) + shares * np.log(share) for time, share in STARTS)]
        distinct = {tuple(np.where(free, first, self.start).tolist()) for first in firsts}
        return min((self.from_(free, np.array(first)) for first in sorted(distinct)), key=lambda pair: pair[1])

    def from_(self, free: Mask, near: Array) -> tuple[Array, float]:
        """The nearest optimum of the free parameters, and its cost."""
        from scipy.optimize import least_squares

        whole = self.start.copy()

        def residuals(part: Array) -> Array:
            whole[free] = part
            return np.concatenate([self.at(whole) - self.measured, RIDGE * (part - self.start[free])])

        def derivatives(part: Array) -> Array:  # forward differences of all parameters at once, backward ones at a bound
            step = np.where(part == 0.0, DIFFERENCE, DIFFERENCE * part)
            step = np.where((part + step < low) | (part + step > high), -step, step)
            points = np.repeat(whole[:, None], len(part) + 1, axis=1)
            points[free] = part[:, None] + np.diag([0.0, *step])[1:]
            logs, ridge = self.logs(points), RIDGE * (points[free] - self.start[free, None])
            moved = np.concatenate([logs, ridge])
            return np.asarray((moved[:, 1:] - moved[:, :1]) / (points[free][:, 1:] - part[:, None]).diagonal())

        noise = self.measured.size * NOISE**2 / 2.0
        if not free.any():
            return whole, float(SCALE**2 * (np.sqrt(1.0 + (residuals(whole[free]) / SCALE) ** 2) - 1.0).sum()) + noise
        low, high = self.bounds[:, free]
        options = {"bounds": (low, high), "loss": "soft_l1", "f_scale": SCALE}
        found = least_squares(residuals, np.clip(near[free], low + 1e-6, high - 1e-6), derivatives, **options)
        whole[free] = found.x
        return whole, float(found.cost) + noise

    def without(self, free: Mask, i: int, near: Array, enough: float) -> tuple[Array, float]:
        """The optimum without one of the free parameters, and its cost; from all starts where the nearest costs more than `enough`."""
        fewer = free.copy()
        fewer[i] = False
        found = self.from_(fewer, near)
        return found if found[1] <= enough else min(found, self.best(fewer, near), key=lambda pair: pair[1])

    def jacobian(self, x: Array, free: Mask) -> Array:
        """Sensitivities of the logarithms of times to those of the parameters, shape (rows, parameters), zero of those not free. [1]"""
        found, moved = np.zeros((self.measured.size, x.size)), np.flatnonzero(free)
        step = np.zeros((x.size, moved.size))
        step[moved, np.arange(moved.size)] = STEP
        up, down = np.minimum(x[:, None] + step, self.bounds[1][:, None]), np.maximum(x[:, None] - step, self.bounds[0][:, None])
        logs = self.logs(np.concatenate([up, down], axis=1))
        found[:, moved] = (logs[:, : moved.size] - logs[:, moved.size :]) / (up - down)[moved, np.arange(moved.size)]
        return found

    def errors(self, x: Array, free: Mask) -> Array:
        """Standard errors of the logarithms of the free parameters: the scatter over what only this parameter can do. [1]"""
        found, jacobian = np.zeros_like(x), self.jacobian(x, free)
        for i in np.flatnonzero(free).tolist():
            others = jacobian[:, free & (np.arange(x.size) != i)]
            alone = jacobian[:, i] - (others @ np.linalg.lstsq(others, jacobian[:, i], rcond=None)[0] if others.size else 0.0)
            found[i] = self.scatter(x) / max(float(np.linalg.norm(alone)), 1e-12)
        return found

    def scatter(self, x: Array) -> float:
        """Scatter of the logarithms of times about the model, by their median. [1]"""
        return max(NOISE, 1.4826 * float(np.median(np.abs(self.at(x) - self.measured))))


def _decided(search: _Search, free: Mask, x: Array) -> tuple[Mask, Array, Mapping[str, str]]:
    """Parameters that the rows fix, their values, and why the others are left.

    Those that are known least are left one by one, unless the rows fit worse without. Of the two known least, which may do the same, that
    one goes without which the others fit better.
    """
    free, left, settled, most = free.copy(), {}, np.zeros_like(free), len(search.measured) // ROWS_EACH
    x, cost = search.from_(free, x)
    worth = len(search.measured) ** (WORTH / len(search.measured))  # cost without a parameter over that with it
    while free.any():
        errors, few = search.errors(x, free), bool(free.sum() > most)
        worst = [i for i in np.argsort(-errors).tolist() if free[i] and (few or (errors[i] > KNOWN and not settled[i]))][:2]
        if not worst:
            break
        without = {i: search.without(free, i, x, worth * cost) for i in worst}
        gone = min(worst, key=lambda i: without[i][1])
        if without[gone][1] > worth * cost and not few:
            settled[worst] = True
            continue
        left[search.known[gone].name] = _reason(search, free, x, gone, few=few)
        free[gone] = False
        x, cost = without[gone]
    return free, x, left


def _reason(search: _Search, free: Mask, x: Array, gone: int, *, few: bool) -> str:
    """Why a parameter is left as the template has it."""
    jacobian = search.jacobian(x, free)
    length = np.linalg.norm(jacobian, axis=0)
    if few:
        return f"{len(jacobian)} rows are too few for another parameter"
    others = [i for i in np.flatnonzero(free & (length > 0)).tolist() if i != gone]
    if search.scatter(x) > KNOWN * length[gone] or not others:
        return "the rows hardly depend on it"
    alike = max(others, key=lambda i: abs(jacobian[:, gone] @ jacobian[:, i]) / length[i])
    return f"the rows cannot tell it from {search.known[alike].name}"
