"""What the rules of a framework give: settings that its flags mean, and flags that say settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossflow.base.errors import Problem
from crossflow.base.limits import LAYERS, shown
from crossflow.edges.launch.table import Found, Remark

MeantFields = Iterator[tuple[str, Any]]  # settings by path that one rule gives


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the flags of a file mean.

    Attributes
    ----------
    fields : settings by path, ``strategy.tp``, ``workload.layers``, ``software.overlap.data``.
    software : software stack that runs it; the table's where it is empty.
    ignored, unmodelled, notes : remarks for readers.
    problems : values that the framework would refuse.
    missing : settings that the file does not say, each with the reason, by path.
    """

    fields: Mapping[str, Any]
    software: str = ""
    ignored: tuple[Remark, ...] = ()
    unmodelled: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    problems: tuple[Problem, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags that say settings which rows of the table do not say by themselves.

    Attributes
    ----------
    values : by the name of the flag's row; None leaves a flag out.
    said : paths of the settings that they say.
    remarks : what readers of the file should know.
    unsaid : parts of the plan or the model that the framework cannot express, each as a sentence.
    """

    values: Mapping[str, Any]
    said: frozenset[str]
    remarks: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()


def data_degree(found: Found, devices: int, parts: Mapping[str, int], flag: str) -> tuple[int, tuple[Problem, ...]]:
    """Data-parallel degree that so many devices leave beside other degrees, and what is wrong where they do not divide."""
    cut = 1
    for size in parts.values():
        cut *= size
    if devices % cut:
        told = " x ".join(parts), " x ".join(map(str, parts.values()))
        cure = f"count a multiple of {cut} (--devices {-(-devices // cut) * cut}), or write other degrees"
        return 1, (found.problem(flag, f"{devices} devices are not divisible by {told[0]} = {told[1]} = {cut}; {cure}"),)
    return devices // cut, ()


def pattern(text: str, layers: int) -> tuple[int, ...] | None:
    """Marks of layers from a list as Megatron writes them, ``([0]*3+[1]*58)``; None for what is no such list.

    >>> pattern("([0]*2+[1]*3)", 5), pattern("[1,0]*2", 4), pattern("[1]*10**9", 5)
    ((0, 0, 1, 1, 1), (1, 0, 1, 0), None)
    """
    try:
        found = _marks(ast.parse(text.strip()[:500], mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return found if len(found) == layers else None


def _marks(node: ast.expr) -> tuple[int, ...]:
    if isinstance(node, ast.List):
        return tuple(int(one.value == 1) for one in node.elts if isinstance(one, ast.Constant) and one.value in (0, 1))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _marks(node.left) + _marks(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        items, times = (node.left, node.right) if isinstance(node.right, ast.Constant) else (node.right, node.left)
        if isinstance(times, ast.Constant) and type(times.value) is int and 0 <= times.value <= LAYERS:
            marks = _marks(items)
            if len(marks) * times.value <= LAYERS:
                return marks * times.value
    raise ValueError(f"not a list of marks: {shown(ast.dump(node))}")


def runs(values: tuple[int, ...]) -> list[tuple[int, int]]:
    """Values that follow themselves, each with how often.

    >>> runs((0, 0, 1))
    [(0, 2), (1, 1)]
    """
    import itertools

    return [(value, len(list(same))) for value, same in itertools.groupby(values)]
