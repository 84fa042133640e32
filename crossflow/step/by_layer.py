"""A transformer's step by layer type: what a device of the busiest stage computes and sends for each unit, and what of that is exposed."""

from __future__ import annotations

import functools

from crossflow.arrays import Array

FIGURES = ("compute", "communication", "exposed")  # of every layer type
BETWEEN = "pipeline"  # stands for a layer type where stages hand over


def by_type(values: Array, units: tuple[str, ...]) -> dict[str, Array]:
    """Sums over the units of each layer type, shape (..., n), of values of shape (..., units, n)."""
    names, members = _layer_types(units)
    return {name: values[..., mine, :].sum(axis=-2) for name, mine in zip(names, members, strict=True)}


@functools.lru_cache(maxsize=256)
def _layer_types(units: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[list[int], ...]]:
    """Layer types of units, and which units are of each."""
    kinds = [name if name in ("embedding", "head") else name.split(".")[2] for name in units]
    names = tuple(dict.fromkeys(kinds))
    return names, tuple([i for i, kind in enumerate(kinds) if kind == name] for name in names)
