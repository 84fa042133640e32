"""Writes a program operation by operation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossflow.arrays import Array
from crossflow.program.collectives import Collective
from crossflow.program.program import COMPUTE, NETWORK, Kernel, Message, Number, Op, Program, Tensor


@dataclass(kw_only=True)
class ProgramBuilder:
    """Collects kernels, messages and operations; every method returns the place of what it added, for others to wait for.

    Attributes
    ----------
    name, dtype : as in `Program`.
    axes : mesh of the devices: sizes of its axes by name.
    stages : the axis along which ranks run different programs, "" where all run the same.

    Examples
    --------
    >>> from crossflow.program import Product
    >>> program = ProgramBuilder(name="two layers", axes={"dp": 8})
    >>> first = program.compute("up", Product(m=4096, n=4096, k=1024))
    >>> second = program.compute("down", Product(m=4096, n=1024, k=4096), after=[first])
    >>> sent = program.send("all_reduce", 8.4e6, ["dp"], after=[second])
    >>> len(program.build(samples=4096).ops)
    3
    """

    name: str = "program"
    dtype: str = "fp16"
    axes: Mapping[str, int] = field(default_factory=dict)
    stages: str = ""

    def __post_init__(self) -> None:
        self._kernels: dict[Hashable, int] = {}
        self._messages: dict[Hashable, int] = {}
        self._distinct: tuple[list[Kernel], list[Message]] = ([], [])
        self._ops: list[Op] = []
        self._tensors: list[Tensor] = []

    def compute(
        self,
        name: str,
        *kernels: Kernel,
        after: Iterable[int] = (),
        rank: int = 0,
        layer: str = "",
        phase: str = "",
        stream: str = COMPUTE,
    ) -> int:
        """Kernels that a class of ranks runs one after the other."""
        rows = tuple(_place(self._kernels, self._distinct[0], kernel) for kernel in kernels)
        return self._add(Op(name=name, rank=rank, layer=layer, phase=phase, stream=stream, kernels=rows, after=_sorted(after)))

    def send(
        self,
        collective: Collective,
        size: Number,
        axes: Sequence[str],
        *,
        name: str = "",
        after: Iterable[int] = (),
        rank: int = 0,
        layer: str = "",
        phase: str = "",
        stream: str = NETWORK,
    ) -> int:
        """A collective of `size` bytes among the devices along some axes. [B]"""
        row = _place(self._messages, self._distinct[1], Message(collective=collective, size=size, axes=tuple(axes)))
        return self._add(Op(name=name or collective, rank=rank, layer=layer, phase=phase, stream=stream, message=row, after=_sorted(after)))

    def hold(self, kind: str, size: Number, *, rank: int = 0, made: int | None = None, last: int | None = None) -> None:
        """A tensor of `size` bytes that devices hold from an operation to another one, or all the time. [B]"""
        self._tensors.append(Tensor(kind=kind, size=size, rank=rank, made=made, last=last))

    def build(self, *, samples: int | Array = 1, tokens: int = 0, parameters: Number = 0.0) -> Program:
        """The program; samples of a step, tokens of a sample, parameters of the model. [1]"""
        return Program(
            name=self.name,
            dtype=self.dtype,
            axes=tuple(self.axes.items()),
            stages=self.stages,
            kernels=tuple(self._distinct[0]),
            messages=tuple(self._distinct[1]),
            ops=tuple(self._ops),
            tensors=tuple(self._tensors),
            samples=samples,
            tokens=tokens,
            parameters=parameters,
        )

    def _add(self, op: Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1


def _place(places: dict[Hashable, int], rows: list[Any], one: Any) -> int:
    """Place of a kernel or message among the distinct ones, to which it is added."""
    key = (type(one), *((value.tobytes() if hasattr(value, "tobytes") else value) for value in vars(one).values()))
    if key not in places:
        places[key] = len(rows)
        rows.append(one)
    return places[key]


def _sorted(after: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(after)))
