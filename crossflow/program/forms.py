"""How program files write what kernels, messages, operations and tensors say: the form of each field, which stands beside the field."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict


def _in(unit: str) -> BeforeValidator:
    """Text with a unit as a number of that unit; all else as it is."""

    def read(given: Any) -> Any:
        from crossflow.base.units import parse

        return parse(given, unit) if isinstance(given, str) else given

    return BeforeValidator(read)


LARGEST = 1e24  # of any number, so that products of them can be computed
Positive = Annotated[float, Strict(), Field(gt=0.0, le=LARGEST)]
NonNegative = Annotated[float, Strict(), Field(ge=0.0, le=LARGEST)]
Bytes, Seconds = Annotated[NonNegative, _in("B")], Annotated[NonNegative, _in("s")]
