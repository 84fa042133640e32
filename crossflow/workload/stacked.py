"""Models that differ in numbers only as one model, whose numbers are arrays over the design points.

Such models have one structure: the same parts, matrices, flags and types. A number that is 0 or 1 in some of them and not in others
makes another structure, for 0 often means that something is not there, and 1 that there is no choice of it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from crossflow.base.arrays import Index

Stackable = TypeVar("Stackable")
Ids = tuple[int, ...]  # of objects that live as long as what is known of them
# By the names of classes, so that a model of one kind does not import those of the others.
NAMED = ("Layer", "Transformer", "Dlrm")  # whose names are for people, and may differ
EXACT = (("Encoder", "layers"), ("Cross", "layers"))  # numbers that count units: points share them


def structures(models: Sequence[Any]) -> list[list[int]]:
    """Places of the models that have one structure, in the order of their first."""
    todo, found, alike = [list(range(len(models)))] if models else [], [], set[Ids]()
    while todo:
        group = todo.pop()
        told = _told([models[i] for i in group], alike)
        if told is None:
            found.append(group)
            continue
        parts: dict[Hashable, list[int]] = {}
        for word, i in zip(told, group, strict=True):
            parts.setdefault(word, []).append(i)
        todo += parts.values()
    return sorted(found)


def stacked(models: Sequence[Stackable]) -> Stackable:
    """One model of several that have one structure: what differs is an array of shape (models,)."""
    return _stacked(list(models), {})  # type: ignore[no-any-return]


def _stacked(models: list[Any], made: dict[Ids, Any]) -> Any:
    """The same, with the tuples that are `made`: layers alike share their parts."""
    first = models[0]
    if models.count(first) == len(models) if isinstance(first, (int, float)) else all(model is first for model in models):
        return first
    if is_dataclass(first):
        return _changed(first, {name: _stacked(list(map(attrgetter(name), models)), made) for name in _names(first)})
    if isinstance(first, tuple):
        ids = tuple(map(id, models))
        if ids not in made:
            made[ids] = _kept(first, tuple(_stacked(list(column), made) for column in zip(*models, strict=True)))
        return made[ids]
    return np.array(models, dtype=float) if isinstance(first, (int, float)) else first


def chosen(model: Stackable, points: Index) -> Stackable:
    """A stacked model at some of its points; itself where nothing differs."""
    return _chosen(model, points, {})  # type: ignore[no-any-return]


def _chosen(model: Any, points: Index, made: dict[Ids, Any]) -> Any:
    """The same, with the tuples that are `made`."""
    if isinstance(model, np.ndarray):
        return model[points]
    if is_dataclass(model):
        return _changed(model, {name: _chosen(getattr(model, name), points, made) for name in _names(model)})
    if not isinstance(model, tuple):
        return model
    if (id(model),) not in made:
        made[(id(model),)] = _kept(model, tuple(_chosen(part, points, made) for part in model))
    return made[(id(model),)]


def _changed(model: Any, values: dict[str, Any]) -> Any:
    """A model with other values, itself where they are its own."""
    other = {name: value for name, value in values.items() if value is not getattr(model, name)}
    return replace(model, **other) if other else model


def _kept(whole: tuple[Any, ...], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parts, as the tuple that they come from where they are its own."""
    return whole if all(one is other for one, other in zip(whole, parts, strict=True)) else parts


def _told(values: list[Any], alike: set[Ids]) -> list[Hashable] | None:
    """What tells some values from others beside their numbers, a word each; None where nothing does, as of tuples known to be `alike`."""
    first = values[0]
    if all(value is first for value in values):
        return None
    if len(set(map(type, values))) == 1 and is_dataclass(first):
        columns = ((list(map(attrgetter(name), values)), (type(first).__name__, name) in EXACT) for name in _names(first))
        return next((told for told in (_exactly(column) if exact else _told(column, alike) for column, exact in columns) if told), None)
    lengths = [len(value) if isinstance(value, tuple) else -1 for value in values] if isinstance(first, tuple) else []
    if lengths and lengths.count(lengths[0]) == len(lengths):
        ids = tuple(map(id, values))
        told = None if ids in alike else next((told for column in zip(*values, strict=True) if (told := _told(list(column), alike))), None)
        if told is None:
            alike.add(ids)
        return told
    return _exactly(lengths or list(map(_word, values)))


def _word(value: Any) -> Hashable:
    """A value as it tells points apart: numbers do not, but for 0 and 1, nor what a model or a tuple holds."""
    kind: Any = type(value)
    if kind in (int, float):
        return "#" if value not in (0, 1) else int(value)
    found: Any = kind if is_dataclass(kind) or kind is tuple else value
    word: Hashable = found
    return word


def _exactly(values: list[Any]) -> list[Hashable] | None:
    """Values that tell points apart, None where all are equal."""
    return values if values.count(values[0]) < len(values) else None


def _names(model: Any) -> tuple[str, ...]:
    """Fields of a model that say something of it."""
    kind: Any = type(model)
    return _names_of(kind)


@functools.cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if not (kind.__name__ in NAMED and field.name == "name"))
