"""Writes a program operation by operation."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.base.errors import did_you_mean
from crossflow.program.blocks import Block
from crossflow.program.collectives import COLLECTIVES, Collective
from crossflow.program.groups import DeviceGroup, Group
from crossflow.program.kernels import Kernel, Number
from crossflow.program.program import COMPUTE, HOST, NETWORK, Message, Op, Program, Tensor

KERNELS: tuple[type, ...] = get_args(Kernel)
KERNEL_NAMES = f"kernels ({', '.join(kernel.__name__ for kernel in KERNELS)})"
WHOLE, NUMBERS = (int, np.integer), (int, float, np.number, np.ndarray)


@dataclass(kw_only=True)
class ProgramBuilder:
    """Collects kernels, messages and operations; every method returns the place of what it added, for others to wait for.

    A call that is wrong raises a TypeError or a ValueError that says what it expects.

    Attributes
    ----------
    name, dtype : as in `Program`.
    axes : mesh of the devices: sizes of its axes by name.
    groups : groups of devices beside the mesh by name, as in `Program`.
    stages : the axis along which ranks run different programs, "" where all run the same.
    shared : whether kernels and messages that are equal are one row; without it each has a row of its own, and none is compared.

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
    groups: Mapping[str, DeviceGroup] = field(default_factory=dict)
    stages: str = ""
    shared: bool = True

    def __post_init__(self) -> None:
        _expect(isinstance(self.axes, Mapping), "axes", "sizes of axes by name, such as {'tp': 8}", self.axes)
        _expect(isinstance(self.groups, Mapping), "groups", "groups by name, such as {'pairs': DeviceGroup(ranks=2)}", self.groups)
        for name, size in self.axes.items():
            _expect(_is_whole(size) and size > 0, f"axes '{name}'", "a whole number of 1 or more", size)
        for name, group in self.groups.items():
            _expect(isinstance(group, DeviceGroup), f"groups '{name}'", "a DeviceGroup", group)
        self._kernels: dict[Hashable, int] = {}
        self._messages: dict[Hashable, int] = {}
        self._distinct: tuple[list[Kernel], list[Message]] = ([], [])
        self._ops: list[Op] = []
        self._tensors: list[Tensor] = []
        self._blocks: list[Block] = []
        self._repeats = False

    def compute(
        self,
        name: str,
        *kernels: Kernel,
        after: Iterable[int] = (),
        paired: Iterable[int] = (),
        rank: int = 0,
        layer: str = "",
        phase: str = "",
        stream: str = "",
        **fields: Any,
    ) -> int:
        """Kernels that a class of ranks runs one after the other, or without them `calls` of its host; with further `fields` of `Op`."""
        for kernel in kernels:
            _expect(isinstance(kernel, KERNELS), name, KERNEL_NAMES, kernel)
        waits: dict[str, Any] = {"after": self._earlier("after", after), "paired": self._earlier("paired", paired)}
        rows = tuple(self._row(self._kernels, self._distinct[0], kernel) for kernel in kernels)
        stream = stream or (HOST if fields.get("calls") and not kernels else COMPUTE)
        return self._add(Op(name=name, rank=rank, layer=layer, phase=phase, stream=stream, kernels=rows, **waits, **fields))

    def send(
        self,
        collective: Collective,
        size: Number,
        among: Sequence[str] | Group,
        *,
        between: tuple[int, int] | None = None,
        name: str = "",
        after: Iterable[int] = (),
        paired: Iterable[int] = (),
        rank: int = 0,
        layer: str = "",
        phase: str = "",
        stream: str = NETWORK,
        time: Number | None = None,
        **fields: Any,
    ) -> int:
        """A collective of `size` bytes, with further `fields` of `Op`; of a measured `time` where it is given. [B], [s]

        It goes along some axes, `between` two places of one axis, in a named group, or among ranks that differ by design point.

        Classes of ranks that take part in one collective send it each, with one name of their meeting, `meets`.
        """
        if collective not in COLLECTIVES:
            raise ValueError(f"expected one of {', '.join(COLLECTIVES)}, got {collective!r}{did_you_mean(str(collective), COLLECTIVES)}")
        _expect(_is_number(size), "size", "bytes as a number", size)
        ranks: dict[str, Any] = {"group": among} if isinstance(among, Group) else {"axes": self._axes(among)}
        waits = {"after": self._earlier("after", after), "paired": self._earlier("paired", paired)}
        message = Message(collective=collective, size=size, between=between, time=time, **ranks)
        row = self._row(self._messages, self._distinct[1], message)
        fields |= waits
        return self._add(Op(name=name or collective, rank=rank, layer=layer, phase=phase, stream=stream, message=row, **fields))

    @contextlib.contextmanager
    def repeat(self, count: int | Index) -> Iterator[None]:
        """A block: what is added inside runs `count` times, one copy after the other. Operations behind it wait for its last copy.

        >>> from crossflow.program import Product
        >>> program = ProgramBuilder()
        >>> with program.repeat(96):
        ...     layer = program.compute("layer", Product(m=4096, n=4096, k=4096))
        """
        if self._repeats:
            raise ValueError("a block does not hold another block; write the inner one out")
        _expect(_is_whole(count) or isinstance(count, np.ndarray), "count", "a whole number of copies", count)
        if np.min(count) < 1:
            raise ValueError(f"a block repeats once or more, got {count}")
        first, self._repeats = len(self._ops), True
        yield
        self._repeats = False
        if len(self._ops) > first:
            self._blocks.append(Block(first=first, last=len(self._ops) - 1, count=count))

    def carry(self, last: int, first: int) -> None:
        """In all but the first copy of a block, the operation `first` waits for the operation `last` of the copy before."""
        last, first = self._place("last", last), self._place("first", first)
        op = self._ops[first]
        self._ops[first] = replace(op, carried=tuple(sorted({*op.carried, last})))

    def hold(self, kind: str, size: Number, *, rank: int = 0, made: int | None = None, last: int | None = None) -> None:
        """A tensor of `size` bytes that devices hold from an operation to another one, or all the time. [B]"""
        _expect(_is_number(size), "size", "bytes as a number", size)
        made = made if made is None else self._place("made", made)
        last = last if last is None else self._place("last", last)
        self._tensors.append(Tensor(kind=kind, size=size, rank=rank, made=made, last=last))

    @property
    def last_kernel(self) -> int:
        """Row of the kernel that was added last."""
        return len(self._distinct[0]) - 1

    def build(
        self, *, samples: int | Array = 1, tokens: int | Array = 0, parameters: Number = 0.0, training: bool | None = None
    ) -> Program:
        """The program; samples of a step, tokens of a sample, parameters of the model [1], and whether it trains."""
        return Program(
            name=self.name,
            dtype=self.dtype,
            axes=tuple(self.axes.items()),
            groups=tuple(self.groups.items()),
            stages=self.stages,
            kernels=tuple(self._distinct[0]),
            messages=tuple(self._distinct[1]),
            ops=tuple(self._ops),
            tensors=tuple(self._tensors),
            blocks=tuple(self._blocks),
            samples=samples,
            tokens=tokens,
            parameters=parameters,
            training=training,
        )

    def _row(self, places: dict[Hashable, int], rows: list[Any], one: Any) -> int:
        """Row of a kernel or message, that of an equal one where such rows are shared."""
        if self.shared:
            key = (type(one), *map(_hashed, vars(one).values()))
            if key in places:
                return places[key]
            places[key] = len(rows)
        rows.append(one)
        return len(rows) - 1

    def _place(self, name: str, given: int) -> int:
        """The place of an operation that is there."""
        _expect(_is_whole(given), name, "the place of an operation, as compute and send return it", given)
        if not 0 <= given < len(self._ops):
            raise ValueError(f"{name}: there is no operation {given}; {len(self._ops)} were added so far, counted from 0")
        return int(given)

    def _earlier(self, name: str, places: Iterable[int]) -> tuple[int, ...]:
        """Places of operations that are there, in their order."""
        _expect(isinstance(places, Iterable), name, "a list of places of operations, such as [0]", places)
        return tuple(sorted({self._place(name, place) for place in places}))

    def _axes(self, among: Sequence[str]) -> tuple[str, ...]:
        """Names of axes or groups that are there."""
        text = isinstance(among, str)
        _expect(not text and isinstance(among, Iterable), "among", "a list of axes, such as ['tp']", among)
        known = (*self.axes, *self.groups)
        for axis in among:
            if axis not in known:
                there = f"axes: {', '.join(known) or 'none'}"
                raise ValueError(f"{axis!r} is not an axis of the mesh{did_you_mean(str(axis), known)}; {there}")
        return tuple(among)

    def _add(self, op: Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1


def _hashed(value: Any) -> Hashable:
    """What makes two values of a field equal, arrays and tuples of them included."""
    return tuple(map(_hashed, value)) if isinstance(value, tuple) else value.tobytes() if hasattr(value, "tobytes") else value


def _expect(right: bool, name: str, what: str, given: object) -> None:
    """Raise a TypeError where an argument is not what it has to be."""
    if not right:
        raise TypeError(f"{name}: expected {what}, got {given!r}")


def _is_whole(given: object) -> bool:
    return isinstance(given, WHOLE) and not isinstance(given, bool)


def _is_number(given: object) -> bool:
    return isinstance(given, NUMBERS) and not isinstance(given, bool)
