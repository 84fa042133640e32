"""Times of kernels from measured ones of other sizes: what the same work takes near there.

The logarithm of the time per unit of work (operations of products and attention, bytes of passes and look-ups) is a plane through the
measured kernels around a point, in the logarithms of the sizes: local linear regression with Gaussian weights [1]_. Beyond the measured
sizes the rate is that of the edge, so far and no further; kernels further off keep the time of the model.

References
----------
.. [1] Cleveland and Devlin, "Locally Weighted Regression", JASA 83(403), 1988.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.profile import Profile, kernel_of
from crossflow.program.kernels import SIZES, Attention, Kernel, KernelTable, Lookup, Pass, Product, filled, size_of

WIDTH = np.log(2.0)  # of the Gaussian, in the logarithm of a size
RIDGE = 0.02  # weight of a slope of zero, over that of a measured kernel at the point itself
BEYOND = np.log(8.0)  # factor beyond the measured sizes up to which the rate of the edge holds
FEWEST = 3  # measured kernels of a family
KernelFamily = tuple[Any, ...]  # what measured kernels that stand for one another share
ANY_PASS: KernelFamily = (Pass, None)  # all operations together, which stand for one that was not measured
Features = tuple[Array, Array]  # logarithms of sizes, shape (features, ...), and of the work, shape (...)


def near_times(table: KernelTable, dtypes: Sequence[str], profile: Profile) -> Array:
    """Times of kernels from measured ones nearby, NaN where there are none, shape (kernels, n). [s]

    Parameters
    ----------
    dtypes : of each kernel, as profiles name it.
    """
    n = table.sizes.shape[-1]
    found = np.full((len(table.rows), n), np.nan)
    if table.kind not in _FEATURES:
        return found
    where, work = _FEATURES[table.kind](table.sizes)
    rows: dict[KernelFamily, list[int]] = {}
    for i, (row, dtype) in enumerate(zip(table.rows, dtypes, strict=True)):
        rows.setdefault(_family(row, dtype), []).append(i)
    clouds = _clouds(profile, table.kind)
    for family, mine in rows.items():
        cloud = clouds.get(family, clouds.get(ANY_PASS) if table.kind is Pass and family[1] else None)
        if cloud is not None:
            at = where[:, mine].reshape(len(where), -1).T
            found[mine] = np.exp(work[mine] + along(*cloud, at).reshape(len(mine), -1))
    return found


def along(at: Array, rate: Array, points: Array) -> Array:
    """Rates at some points, NaN where they lie too far beyond the measured ones.

    Parameters
    ----------
    at, rate : logarithms of the sizes and of the times per work of measured kernels, shapes (measured, features) and (measured,).
    points : shape (points, features).
    """
    low, high = at.min(axis=0), at.max(axis=0)
    inside: Array = np.clip(points, low, high)
    apart = (at - inside[:, None]) / WIDTH  # shape (points, measured, features)
    far = (apart**2).sum(axis=-1)
    weight = np.exp((far.min(axis=1, keepdims=True) - far) / 2.0)
    design = np.concatenate([np.ones((*apart.shape[:2], 1)), apart], axis=-1)
    weighted = design * weight[..., None]
    normal = np.einsum("pmi,pmj->pij", weighted, design)
    slopes = np.arange(1, normal.shape[-1])
    normal[:, slopes, slopes] += RIDGE
    fitted = np.linalg.solve(normal, np.einsum("pmi,m->pi", weighted, rate)[..., None])[:, 0, 0]
    return np.asarray(np.where((np.abs(points - inside) > BEYOND).any(axis=1), np.nan, fitted))


def _clouds(profile: Profile, kind: type[Kernel]) -> Mapping[KernelFamily, tuple[Array, Array]]:
    """Measured kernels of a kind by family: logarithms of their sizes and of their times per work."""
    kernels: dict[KernelFamily, list[tuple[Kernel, float]]] = {}
    for (op, shape, dtype, _, scope), one in profile.events.items():
        kernel = None if scope else kernel_of(op, shape, dtype)
        if kernel is None or type(kernel) is not kind:
            continue
        for family in (_family(kernel, dtype), *([ANY_PASS] if isinstance(kernel, Pass) and kernel.what else [])):
            kernels.setdefault(family, []).append((kernel, one.time))
    return {family: _cloud(members) for family, members in kernels.items() if len(members) >= FEWEST}


def _cloud(members: Sequence[tuple[Kernel, float]]) -> tuple[Array, Array]:
    kind = type(members[0][0])
    sizes = filled([[size_of(kernel, name) for kernel, _ in members] for name in SIZES[kind]])[..., 0]
    where, work = _FEATURES[kind](sizes)
    return where.T, np.log([time for _, time in members]) - work


def _family(kernel: Kernel, dtype: str) -> KernelFamily:
    """What two kernels share of which one's rate says something of the other's."""
    if isinstance(kernel, Pass):
        return (Pass, kernel.what)
    if isinstance(kernel, Lookup):
        return (Lookup, kernel.part)
    if isinstance(kernel, Attention):
        return (Attention, dtype, kernel.causal, kernel.backward, bool(np.any(kernel.window)))
    return (type(kernel), dtype, isinstance(kernel, Product) and kernel.adds)


def _logs(*sizes: Array) -> Array:
    return np.asarray(np.log(np.stack(np.broadcast_arrays(*sizes))))


def _products(sizes: Array) -> Features:
    found = _logs(*sizes)
    return found, found.sum(axis=0)


def _passes(sizes: Array) -> Features:
    moved = np.log(np.maximum(sizes[0], 1.0))
    return moved[None], moved


def _attention(sizes: Array) -> Features:
    samples, heads, _, length, seen, width, _ = sizes
    found = _logs(samples * heads, length, seen, width)
    return found, found.sum(axis=0)


def _lookups(sizes: Array) -> Features:
    samples, tables, rows, width, pooling, distinct = sizes[:6]
    found = _logs(samples * tables * pooling, pooling, rows, width, 1.0 / distinct)
    return found, found[0] + found[3]


_FEATURES: Mapping[type[Kernel], Callable[[Array], Features]] = {
    Product: _products, Pass: _passes, Attention: _attention, Lookup: _lookups,
}  # fmt: skip
