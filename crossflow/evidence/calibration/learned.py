"""Small learned models of kernels and collectives, which learn what the analytical model leaves over.

The parameters of the system are fitted first. Each kind then has a regressor of log(measured / predicted) over the logarithms of its
sizes and of the predicted time itself: gradient boosting, a multilayer perceptron [1]_ or a Gaussian process [2]_, whichever does best in
cross-validation of the fitted rows. Every other size is held out, and the errors of all models on these rows are told. What is learned
is written as the times of events: nothing is loaded later but a table.

References
----------
.. [1] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. III-E: learned models of
   embedding look-ups; scikit-learn, Pedregosa et al., JMLR 12, 2011.
.. [2] Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press, 2006, Sec. 5.1: a length for each feature, found by
   the marginal likelihood, and noise.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array, Mask
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document
from crossflow.cost.profile import Key, Measured, Profile, kernel_of, message_size, profile_event, system_profile
from crossflow.evidence.calibration.calibrate import fitted_parts, lineage, priceable, profiled, with_fits
from crossflow.evidence.calibration.fit import held_out
from crossflow.evidence.calibration.logs import LogOptions
from crossflow.evidence.calibration.measurements import (
    MeasuredCollective,
    MeasuredKernels,
    MeasuredProducts,
    MeasuredRows,
    Measurements,
    read_measurements,
)
from crossflow.evidence.calibration.pricing import predicted, problem
from crossflow.evidence.validation.report import errors
from crossflow.hardware.architecture.system import architecture, resolve, template_name
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.program.kernels import Product

LEAST = 30  # rows that a learned model needs
FOLDS = 4  # of the cross-validation that chooses among them
MOST = 600  # rows that a Gaussian process is fitted to, whose time grows with their cube
BEYOND = 2.0  # factor beyond the measured sizes up to which a learned model is asked
SEED = 0
_NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")
RowKind = tuple[str, str]  # op and data type


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Rows of one kind as a regressor sees them."""

    features: Array  # logarithms of sizes and of the predicted time, shape (rows, features)
    base: Array  # predicted times, 1 s where there is no model. [s]
    time: Array  # [s]
    held_out: Mask

    def ratio(self, mask: Mask) -> tuple[Array, Array]:
        """Features and logarithms of measured over predicted times of some rows."""
        return self.features[mask], np.log(self.time[mask] / self.base[mask])


@dataclass(frozen=True, kw_only=True)
class LearnedKind:
    """A learned model of one kind, and how well it does on rows that it has not seen."""

    kind: RowKind
    regressor: Any  # fitted to all rows, after it was scored
    method: str
    samples: Samples
    times: Array  # of the held-out rows, by a regressor that has not seen them. [s]
    before: Array | None  # of all rows by the system that learning starts from; None where it has no model of the kind. [s]

    @property
    def name(self) -> str:
        """What it is, in words."""
        return ", ".join(part for part in self.kind if part)

    def errors(self, law: str) -> dict[str, float | int | None]:
        """Errors of the learned or the analytical model on the held-out rows, with their geometric mean as [1]_ has it."""
        held = self.samples.held_out
        laws = {"fitted": self.samples.base[held], "learned": self.times}
        measured, times = self.samples.time[held], laws[law] if law in laws or self.before is None else self.before[held]
        relative = np.maximum(np.abs(times / measured - 1.0), 1e-6)
        return {**errors(measured, times), "geometric_mean_abs_error": float(np.exp(np.log(relative).mean()))}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        laws = ("learned",) if self.before is None else ("before", "fitted", "learned")
        return {
            "name": self.name,
            "method": self.method,
            "rows": int(self.samples.time.size),
            "held_out": int(self.samples.held_out.sum()),
            "errors": {law: self.errors(law) for law in laws},
        }


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What was learned of a system."""

    base: str
    spec: SystemSpec  # with its parameters fitted
    kinds: tuple[LearnedKind, ...]
    measurements: Measurements
    skipped: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "system": self.base,
            "files": list(self.measurements.files),
            "rows": sum(one.samples.time.size for one in self.kinds),
            "skipped": sum(self.skipped.values()),
            "skipped_reasons": dict(self.skipped),
            "notes": list(self.measurements.notes),
            "kinds": [one.to_dict() for one in self.kinds],
        }


def require_sklearn() -> None:
    """CrossflowError where scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise CrossflowError(
            "crossflow calibrate --learn needs scikit-learn, which is not installed; run: pip install 'crossflow[calibrate]'"
        )


def learn(paths: Sequence[Path], system: str, *, options: LogOptions | None = None, rows: Sequence[str] = ()) -> Learning:
    """Learn the kinds of kernels and collectives that have enough measured rows; parameters as in `calibrate`."""
    require_sklearn()
    system = template_name(system) or system
    spec, document = resolve(Document(file="--system", data={"template": system}))
    below = system_profile(spec, document)
    found = read_measurements(paths, lineage(system), spec.devices_per_node, options or LogOptions(), rows)
    by_kind: dict[RowKind, list[MeasuredRows]] = {}
    for one in found.sets:
        by_kind.setdefault(_kind(one), []).append(one)
    kinds, skipped = [], Counter(found.skipped)
    fits, _ = fitted_parts(spec, priceable(spec, found)[0])
    fitted = with_fits(spec, fits)
    for kind, sets in by_kind.items():
        count = sum(one.time.size for one in sets)
        if count < LEAST:
            skipped[f"too few of {', '.join(part for part in kind if part)}: a learned model needs {LEAST}"] += count
        else:
            kinds.append(_learned(kind, spec, fitted, sets, below))
    if not kinds:
        raise CrossflowError(f"nothing to learn: {'; '.join(f'{count} {reason}' for reason, count in skipped.items()) or 'no rows'}")
    notes = (*found.notes, *profiled(system, below))
    return Learning(base=system, spec=fitted, kinds=tuple(kinds), measurements=replace(found, notes=notes), skipped=skipped)


def _kind(rows: MeasuredRows) -> RowKind:
    if isinstance(rows, MeasuredCollective):
        return rows.collective, ""
    return ("gemm", rows.dtype) if isinstance(rows, MeasuredProducts) else (rows.op, rows.dtype)


def _learned(kind: RowKind, spec: SystemSpec, fitted: SystemSpec, sets: Sequence[MeasuredRows], below: Profile | None) -> LearnedKind:
    """The best of three regressors, scored on rows that it has not seen, then fitted to all."""
    modelled = all(problem(spec, one) is None for one in sets)
    parts = [_samples(fitted, one, modelled=modelled) for one in sets]
    breadth = max(part.features.shape[1] for part in parts)
    if any(part.features.shape[1] != breadth for part in parts):
        raise CrossflowError(f"rows of {kind[0]} have shapes of several forms; learn them from files of one form")
    samples = Samples(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Samples.__dataclass_fields__})
    seen = samples.ratio(~samples.held_out)
    tried = [name for name in _METHODS if name != PROCESS or len(seen[1]) * 2 <= MOST]  # it is fitted to all rows in the end
    method = min(tried, key=lambda name: _crossed(name, *seen))
    unseen, _ = samples.ratio(samples.held_out)
    times = samples.base[samples.held_out] * np.exp(_fitted(method, *seen).predict(unseen))
    regressor = _fitted(method, *samples.ratio(np.ones_like(samples.held_out)))
    before = np.concatenate([predicted(spec, one, below) for one in sets]) if modelled else None
    return LearnedKind(kind=kind, regressor=regressor, method=method, samples=samples, times=times, before=before)


def _samples(spec: SystemSpec, rows: MeasuredRows, *, modelled: bool) -> Samples:
    base = predicted(spec, rows) if modelled else np.ones_like(rows.time)
    if isinstance(rows, MeasuredCollective):
        among = np.full(rows.size.size, float(rows.ranks)), np.full(rows.size.size, float(rows.ranks_per_node))
        sizes = np.stack([rows.size, *among])
    elif isinstance(rows, MeasuredProducts):
        sizes = rows.sizes
    else:
        sizes = _numbers(rows)
    features = np.log(np.concatenate([sizes, base[None]])).T
    return Samples(features=features, base=base, time=rows.time, held_out=held_out(rows.order))


def _numbers(rows: MeasuredKernels) -> Array:
    """Numbers of the shapes of kernels, shape (numbers, rows); what a shape lacks is 1."""
    found = [[float(part) for part in _NUMBER.findall(shape)] for shape in rows.shapes]
    most = max(map(len, found))
    return np.array([[*one, *[1.0] * (most - len(one))] for one in found]).T


# -------------------------------------------------------------------------------------------- regressors


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        loss="huber", alpha=0.95, n_estimators=200, learning_rate=0.1, max_depth=4, min_samples_leaf=2, subsample=0.7, random_state=SEED
    )


def _perceptron() -> Any:
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(hidden_layer_sizes=(48, 48), activation="tanh", solver="lbfgs", alpha=1e-3, max_iter=500, random_state=SEED)
    return make_pipeline(StandardScaler(), network)


def _process(features: int) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel(1.0) * RBF(np.full(features, 3.0)) + WhiteKernel(0.01)
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=SEED))


PROCESS = "Gaussian process"
_METHODS = {"gradient boosting": lambda _: _boosting(), "multilayer perceptron": lambda _: _perceptron(), PROCESS: _process}


def _fitted(method: str, features: Array, ratio: Array) -> Any:
    from threadpoolctl import threadpool_limits  # which scikit-learn needs

    regressor = _METHODS[method](features.shape[1])
    # Matrices of some hundred rows: threads would wait for each other longer than they multiply.
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        warnings.simplefilter("ignore")  # a search that ends at its limit is scored like any other
        regressor.fit(features, ratio)
    return regressor


def _crossed(method: str, features: Array, ratio: Array) -> float:
    """Median absolute error of a method in cross-validation. [1]"""
    fold = np.arange(len(ratio)) % FOLDS
    off = [
        np.abs(_fitted(method, features[fold != i], ratio[fold != i]).predict(features[fold == i]) - ratio[fold == i]) for i in range(FOLDS)
    ]
    return float(np.median(np.concatenate(off)))


# -------------------------------------------------------------------------------------------- events


def fill(found: Learning, path: Path) -> tuple[dict[Key, Measured], dict[Key, float], Counter[str]]:
    """Events of a list with learned times and their counts, and why the others are left to the model.

    Raises
    ------
    SpecError
        Where the list cannot be read.
    CrossflowError
        Where nothing was learned of any of its events.
    """
    by_kind = {one.kind: one for one in found.kinds}
    events: dict[Key, Measured] = {}
    counts: dict[Key, float] = {}
    left: Counter[str] = Counter()
    problems = []
    for line, row in files.table_rows(path):
        try:
            key, _ = profile_event(row)
        except (KeyError, ValueError) as error:
            said = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(Problem(file=str(path), line=line, message=f"{said}; write the list with crossflow events -o"))
            continue
        kind = by_kind.get((key[0], key[2]))
        time = "nothing was learned of " + ", ".join(part for part in (key[0], key[2]) if part) if kind is None else _time(found, kind, key)
        if isinstance(time, str):
            left[time] += 1
        else:
            events[key], counts[key] = Measured(time=time, spread=0.0), float(row.get("count") or 0)
    if problems:
        raise SpecError(problems)
    if not events:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in left.items())
        raise CrossflowError(f"{path}: none of its events has a learned time ({reasons or 'it holds no event'})")
    return events, counts, left


def _time(found: Learning, kind: LearnedKind, key: Key) -> float | str:
    """Learned time of an event without its launch, or why there is none. [s]"""
    rows = _row_of(key, found.spec.devices_per_node)
    if rows is None or (kind.before is not None and problem(found.spec, rows) is not None):
        return f"{key[0]} has a shape that cannot be priced by itself"
    one = _samples(found.spec, rows, modelled=kind.before is not None)
    seen = kind.samples.features
    if one.features.shape[1] != seen.shape[1]:
        return f"{key[0]} has a shape of another form than those measured"
    low, high = seen.min(axis=0) - np.log(BEYOND), seen.max(axis=0) + np.log(BEYOND)
    if (one.features < low).any() or (one.features > high).any():
        return f"{key[0]} lies beyond the measured sizes"
    time = float((one.base * np.exp(kind.regressor.predict(one.features)))[0])
    launch = float(architecture(found.spec).execution.kernel_launch[0]) if isinstance(rows, MeasuredProducts) else 0.0
    return max(time - launch, 0.05 * time)


def _row_of(key: Key, node: int) -> MeasuredRows | None:
    """An event as a row that was measured; its time does not matter."""
    op, shape, dtype, ranks, scope = key
    time = np.ones(1)
    if scope:
        alone = scope == "inter" and ranks <= node
        per_node = ranks if scope == "intra" else node
        return None if alone else MeasuredCollective(
            collective=op, ranks=ranks, ranks_per_node=per_node, size=np.array([message_size(shape)]), time=time
        )  # fmt: skip
    kernel = kernel_of(op, shape, dtype)
    if op == "gemm" and isinstance(kernel, Product):
        sizes = np.array([[float(size)] for size in (kernel.m, kernel.n, kernel.k, kernel.batch)])
        return MeasuredProducts(dtype=dtype, source="", sizes=sizes, time=time)
    return MeasuredKernels(op=op, dtype=dtype, shapes=(shape,), time=time, order=time)
