"""Parallel strategies: a device mesh with named axes, and what each axis divides [1]_.

The paper writes ``RC-{KP1}-{KP2}-d{DP}-p{LP}`` and ``CR-{KP1}-d{DP}-p{LP}``; any part may be left out.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 3.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from crossflow.errors import StrategyError, did_you_mean
from crossflow.program.program import Program

# rows: rows of the first factor; columns: columns of the second; inner: the dimension that is summed over;
# batch: samples, with a replica of the weights each; layers: pipeline stages; given: what a program says by itself.
Role = Literal["rows", "columns", "inner", "batch", "layers", "given"]
_NOTATION = re.compile(
    r"^(?!-)(?:RC-(?P<rows>\d+)-(?P<columns>\d+)|CR-(?P<inner>\d+))?(?:(?:^|-)d(?P<dp>\d+))?(?:(?:^|-)p(?P<lp>\d+))?$", re.ASCII
)
_DEGREES = ("kernel", "kp1", "kp2", "dp", "pp", "lp")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of the device mesh."""

    name: str
    size: int
    role: Role


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A device mesh: its axes in the order kernel (1, 2), data, layers."""

    axes: tuple[Axis, ...]

    def degree(self, *roles: Role) -> int:
        """Number of parts into which the axes of these roles divide what they divide."""
        return math.prod(axis.size for axis in self.axes if axis.role in roles)

    @property
    def devices(self) -> int:
        """Devices that the mesh holds."""
        return math.prod(axis.size for axis in self.axes)

    def names(self, *roles: Role) -> tuple[str, ...]:
        """Names of the axes of these roles that have more than one device."""
        return tuple(axis.name for axis in self.axes if axis.role in roles and axis.size > 1)

    def __str__(self) -> str:
        given = [f"{axis.name}{axis.size}" for axis in self.axes if axis.role == "given"]
        if given:
            return "-".join(given)
        degrees = {axis.role: axis.size for axis in self.axes}
        parts = []
        if "inner" in degrees:
            parts.append(f"CR-{degrees['inner']}")
        elif "rows" in degrees or "columns" in degrees:
            parts.append(f"RC-{degrees.get('rows', 1)}-{degrees.get('columns', 1)}")
        parts += [f"d{degrees['batch']}"] if "batch" in degrees else []
        parts += [f"p{degrees['layers']}"] if "layers" in degrees else []
        return "-".join(parts) or "d1"


def mesh_of(program: Program) -> Strategy:
    """The mesh that a program is written for."""
    return Strategy(axes=tuple(Axis(name=name, size=size, role="given") for name, size in program.axes))


def parse_strategy(given: str | Mapping[str, Any]) -> Strategy:
    """Read a strategy in the paper's notation or as named degrees.

    Named degrees: ``{kernel: RC|CR, kp1: 16, kp2: 4, dp: 8, pp: 2}``, any subset.

    Raises
    ------
    StrategyError
        When the text is not in the notation, or a degree is not a positive whole number.

    >>> str(parse_strategy("RC-16-4-d8-p2")), parse_strategy("CR-8-d64").devices, str(parse_strategy({"dp": 512}))
    ('RC-16-4-d8-p2', 512, 'd512')
    """
    if isinstance(given, Mapping):
        return _from_degrees(given)
    found = _NOTATION.match(str(given).strip())
    if found is None or not str(given).strip():
        raise StrategyError(f"strategy '{given}' is not of the form RC-KP1-KP2-dDP-pLP, CR-KP1-dDP-pLP, or a part of these such as d512")
    degrees = {name: int(value) for name, value in found.groupdict().items() if value is not None}
    return _mesh(str(given), **degrees)


def _from_degrees(given: Mapping[str, Any]) -> Strategy:
    for key in given:
        if key not in _DEGREES:
            raise StrategyError(f"strategy: unknown degree '{key}'{did_you_mean(key, _DEGREES)}; known: {', '.join(_DEGREES)}")
    if "pp" in given and "lp" in given:
        raise StrategyError("strategy: pp and lp name the same degree; give one of them")
    for key, value in given.items():
        if key != "kernel" and (isinstance(value, bool) or not isinstance(value, int)):
            raise StrategyError(f"strategy: {key} must be a positive whole number, got {value!r}")
    kernel, kp1, kp2 = given.get("kernel", "RC"), given.get("kp1"), given.get("kp2")
    if kernel not in ("RC", "CR"):
        raise StrategyError(f"strategy: kernel must be RC or CR, got {kernel!r}")
    if kernel == "CR" and kp2 not in (None, 1):
        raise StrategyError(f"strategy: CR cuts one dimension, kp1; kp2 = {kp2} has no meaning with it")
    if kernel == "CR" and kp1 is None:
        raise StrategyError("strategy: kernel: CR cuts one dimension into kp1 parts; give kp1, or leave kernel out")
    degrees = {"dp": given.get("dp"), "lp": given.get("pp", given.get("lp"))}
    degrees |= {"inner": kp1} if kernel == "CR" else {"rows": kp1, "columns": kp2}
    return _mesh(str(dict(given)), **{name: size for name, size in degrees.items() if size is not None})


def _mesh(
    text: str,
    *,
    rows: int | None = None,
    columns: int | None = None,
    inner: int | None = None,
    dp: int | None = None,
    lp: int | None = None,
) -> Strategy:
    wanted: tuple[tuple[str, int | None, Role], ...] = (
        ("kp1", rows, "rows"), ("kp2", columns, "columns"), ("kp1", inner, "inner"), ("dp", dp, "batch"), ("lp", lp, "layers"),
    )  # fmt: skip
    for _, size, _ in wanted:
        if size is not None and size < 1:
            raise StrategyError(f"strategy '{text}': every degree must be at least 1")
    return Strategy(axes=tuple(Axis(name=name, size=size, role=role) for name, size, role in wanted if size is not None))
