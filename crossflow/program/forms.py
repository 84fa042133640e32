"""How program files write what kernels, messages, operations and tensors say: the form of each field, which stands beside the field."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, Field, Strict, create_model

from crossflow.files import FileModel
from crossflow.units import parse


def _bytes(given: Any) -> Any:
    return parse(given, "B") if isinstance(given, str) else given


def _whole(given: Any) -> Any:
    """A whole number that JSON writes with a point, as an int; all else as it is."""
    return int(given) if type(given) is float and given.is_integer() else given


LARGEST = 1e24  # of any number, so that products of them can be computed
# Numbers are numbers: neither text nor true and false.
Positive = Annotated[float, Strict(), Field(gt=0.0, le=LARGEST)]
NonNegative = Annotated[float, Strict(), Field(ge=0.0, le=LARGEST)]
PositiveInt = Annotated[int, Strict(), Field(ge=1), BeforeValidator(_whole)]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0), BeforeValidator(_whole)]
Flag = Annotated[bool, Strict()]
Bytes = Annotated[NonNegative, BeforeValidator(_bytes)]
OpPlaces = tuple[NonNegativeInt, ...]


def row_of(kind: type, /, **others: Any) -> Any:
    """File model of a dataclass: its fields with a form and a description, ``Annotated[type, form, description]``.

    `others` are further fields, as form and default, or those whose form or default in a file is another.
    """
    hints, rows = get_type_hints(kind, include_extras=True), dict[str, Any]()
    for one in dataclasses.fields(kind):
        if metadata := getattr(hints[one.name], "__metadata__", ()):
            form, default = others.pop(one.name, (metadata[0], ... if one.default is dataclasses.MISSING else one.default))
            rows[one.name] = (form, Field(default, description=metadata[1]))
    return create_model(f"{kind.__name__}Row", __base__=FileModel, __doc__=kind.__doc__, **others, **rows)
