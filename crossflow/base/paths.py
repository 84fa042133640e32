"""Quantities of file models by their dotted path: what stands there, and a copy with another value in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

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
    if not isinstance(model, FileModel) or head not in type(model).model_fields:
        return None
    info = type(model).model_fields[head]
    if not rest:
        return _quantity((*info.metadata, *_nested(info.annotation)))
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
    for name, info in type(model).model_fields.items():
        value, quantity = getattr(model, name), _quantity((*info.metadata, *_nested(info.annotation)))
        if quantity is not None and isinstance(value, Mapping):
            yield from (((*path, name, str(key)), quantity, held) for key, held in value.items())
        elif quantity is not None and value is not None:
            yield (*path, name), quantity, value
        else:
            yield from quantities(value, (*path, name))


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
    head, rest = path[0], path[1:]
    if isinstance(model, Mapping):
        key = _key(model, head)
        inner = value if not rest else with_quantity(model[key], rest, value)
        return {**model, key: inner}
    if not rest:
        return model.model_copy(update={head: value})
    current = getattr(model, head)
    if current is None:
        empty = _model_in(type(model).model_fields[head].annotation)
        assert empty is not None  # quantity_at has found the path
        current = empty()
    elif isinstance(current, Mapping) and len(rest) > 1 and rest[0] not in current:
        empty = _model_in(get_args(type(model).model_fields[head].annotation)[-1])
        assert empty is not None
        current = {**current, rest[0]: empty()}
    return model.model_copy(update={head: with_quantity(current, rest, value)})
