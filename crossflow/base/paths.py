"""Quantities of file models by their dotted path: what stands there, and a copy with another value in its place."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel

from crossflow.base.arrays import Array
from crossflow.base.files import FileModel
from crossflow.base.units import Quantity


def quantity_at(model: Any, path: Sequence[str]) -> Quantity | None:
    """The quantity that stands at a path of a model, or None where there is none."""
    if not path:
        return None
    head, rest = path[0], path[1:]
    if isinstance(model, Mapping):
        key = _key(model, head)
        return quantity_at(model[key], rest) if rest and key in model else None
    kind = type(model)
    if not issubclass(kind, FileModel) or head not in kind.model_fields:
        return None
    if not rest:
        return _measured(kind)[head]
    info = kind.model_fields[head]
    value = getattr(model, head)
    if value is None:
        inner = _model_in(info.annotation)
        return quantity_at(inner(), rest) if inner is not None else None
    if isinstance(value, Mapping) and len(rest) == 1 and _key(value, rest[0]) in value:
        held = get_args(info.annotation)
        return _quantity(_nested(held[-1])) if held else None
    if isinstance(value, Mapping) and _key(value, rest[0]) not in value:
        inner = _model_in(get_args(info.annotation)[-1])
        return quantity_at(inner(), rest[1:]) if inner is not None and not _required(inner) else None
    return quantity_at(value, rest)


def value_at(model: Any, path: Sequence[str]) -> Array | None:
    """The value of the quantity that stands at a path of a model; None where there is none."""
    for part in path:
        model = model.get(_key(model, part)) if isinstance(model, Mapping) else getattr(model, part, None)
    return model if isinstance(model, np.ndarray) else None


def alike(one: Any, other: Any) -> bool:
    """Whether two models, or parts of them, hold the same values throughout; what both share is not looked into."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, BaseModel):
        return all(alike(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    if is_dataclass(one):
        return all(alike(getattr(one, item.name), getattr(other, item.name)) for item in fields(one))
    return bool(one == other)


def _key(model: Mapping[Any, Any], name: str) -> Any:
    """The key of a mapping that a part of a path names: one that is a number stands there as text."""
    return int(name) if name not in model and name.isdecimal() else name


def quantities(model: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Quantity, Array]]:
    """Every quantity that a model holds a value of: its path, what it measures, and the value."""
    if isinstance(model, Mapping):
        for key, value in model.items():
            yield from quantities(value, (*path, str(key)))
        return
    if not isinstance(model, FileModel):
        return
    for name, quantity in _measured(type(model)).items():
        value = getattr(model, name)
        if quantity is not None and isinstance(value, Mapping):
            yield from (((*path, name, str(key)), quantity, held) for key, held in value.items())
        elif quantity is not None and value is not None:
            yield (*path, name), quantity, value
        else:
            yield from quantities(value, (*path, name))


@functools.cache
def _measured(model: type[FileModel]) -> Mapping[str, Quantity | None]:
    """Fields of a model with what each measures, None of one that holds no quantity itself."""
    return {name: _quantity((*info.metadata, *_nested(info.annotation))) for name, info in model.model_fields.items()}


def _quantity(annotations: Iterable[Any]) -> Quantity | None:
    return next((found for found in annotations if isinstance(found, Quantity)), None)


def _nested(annotation: Any) -> Iterator[Any]:
    """Everything that an annotation carries, at any depth."""
    yield from getattr(annotation, "__metadata__", ())
    for argument in get_args(annotation):
        yield from _nested(argument)


def _model_in(annotation: Any) -> type[FileModel] | None:
    options = [annotation, *get_args(annotation)]
    return next((option for option in options if isinstance(option, type) and issubclass(option, FileModel)), None)


def _required(model: type[FileModel]) -> bool:
    return any(info.is_required() for info in model.model_fields.values())


def with_quantity(model: Any, path: Sequence[str], value: Array) -> Any:
    """Copy of a model with the quantity at a path replaced by one value a design point."""
    return with_quantities(model, {tuple(path): value})


def with_quantities(model: Any, values: Mapping[tuple[str, ...], Array]) -> Any:
    """Copy of a model with the quantities at some paths replaced; what several paths share is copied once."""
    if () in values:
        return values[()]
    if not values:
        return model
    inside: dict[str, dict[tuple[str, ...], Array]] = {}
    for (head, *rest), value in values.items():
        inside.setdefault(head, {})[tuple(rest)] = value
    if isinstance(model, Mapping):
        return {**model, **{_key(model, head): with_quantities(model.get(_key(model, head)), held) for head, held in inside.items()}}
    return model.model_copy(update={head: with_quantities(_held(model, head, held), held) for head, held in inside.items()})


def _held(model: FileModel, head: str, values: Mapping[tuple[str, ...], Array]) -> Any:
    """What a field of a model holds, empty where it does not hold what the paths lead to."""
    current = getattr(model, head)
    if current is None and () not in values:
        empty = _model_in(type(model).model_fields[head].annotation)
        assert empty is not None  # quantity_at has found the path
        return empty()
    if isinstance(current, Mapping) and (lacking := {_key(current, path[0]) for path in values if len(path) > 1} - {*current}):
        empty = _model_in(get_args(type(model).model_fields[head].annotation)[-1])
        assert empty is not None
        return {**current, **{name: empty() for name in lacking}}
    return current
