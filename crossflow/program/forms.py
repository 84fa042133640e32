"""How program files write what kernels, messages, operations and tensors say: the form of each field, which stands beside the field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict


def _in(unit: str) -> BeforeValidator:
    """Text with a unit as a number of that unit; all else as it is."""

    def read(given: Any) -> Any:
        from crossflow.units import parse

        return parse(given, unit) if isinstance(given, str) else given

    return BeforeValidator(read)


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
Bytes, Seconds = Annotated[NonNegative, _in("B")], Annotated[NonNegative, _in("s")]
OpPlaces = tuple[NonNegativeInt, ...]
