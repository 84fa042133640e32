"""Blocks of operations that repeat, and where operations stand once blocks are written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError

MOST = 100_000  # operations of all copies of blocks that are laid out one by one, some 20 s
COPIES = 3  # of a block that are laid out where all are alike: the first, the last, and one that stands for all between


@dataclass(frozen=True, kw_only=True)
class Block:
    """Operations that stand together and run `count` times, one copy after the other, such as the layers of a model.

    Attributes
    ----------
    first, last : places of its first and last operation.
    count : copies, one number or one for every design point, shape (n,). [1]
    """

    first: int
    last: int
    count: int | Index


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyPlaces:
    """Where operations stand once blocks are written out, copy after copy; arrays of shape (ops,).

    Attributes
    ----------
    block : index of the block that an operation belongs to, -1 outside.
    first : place of its first copy.
    stride : operations of one copy of its block, 0 outside. [1]
    count : copies. [1]
    """

    block: Index
    first: Index
    stride: Index
    count: Index

    @classmethod
    def of(cls, ops: int, blocks: Sequence[Block], most: int | None = None) -> CopyPlaces:
        """Places of a number of operations; `most` limits the copies of every block."""
        block = np.full(ops, -1, dtype=np.intp)
        stride, count, width = np.zeros(ops, dtype=np.intp), np.ones(ops, dtype=np.intp), np.ones(ops, dtype=np.intp)
        for i, one in enumerate(blocks):
            # Copies that differ between points have no places; a limit makes them equal.
            inside, copies = slice(one.first, one.last + 1), np.unique(one.count if most is None else np.minimum(one.count, most)).item()
            block[inside], stride[inside], count[inside] = i, one.last + 1 - one.first, copies
            # All further copies come behind the last operation of the first.
            width[one.last] += (copies - 1) * stride[one.last]
        return cls(block=block, first=np.cumsum(width) - width, stride=stride, count=count)

    def check(self, what: str, cure: str = "give blocks fewer copies") -> None:
        """CrossflowError where there are too many copies for what takes each by itself."""
        laid_out = int(self.count.sum())
        if laid_out > max(MOST, len(self.count)):
            raise CrossflowError(f"{what}, here {laid_out:,} operations, and {MOST:,} at most; {cure}")

    def at(self, op: int, copy: int) -> int:
        """Place of an operation in a copy of its block; in the only one of those outside."""
        return int(self.first[op] + self.stride[op] * min(copy, self.count[op] - 1))

    def end(self, op: int) -> int:
        """Place of the last copy of an operation."""
        return self.at(op, int(self.count[op]) - 1)

    def together(self, one: int, other: int) -> bool:
        """Whether two operations belong to one block."""
        return bool(self.block[one] >= 0 and self.block[one] == self.block[other])

    def pairs(self, one: int, other: int) -> bool:
        """Whether an operation belongs to an earlier block of as many copies as that of another."""
        return bool(0 <= self.block[one] < self.block[other] and self.count[one] == self.count[other])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Operations in order, each with its copy."""
        op = 0
        while op < len(self.block):
            length = max(int(self.stride[op]), 1)
            for copy in range(int(self.count[op])):
                yield from ((place, copy) for place in range(op, op + length))
            op += length

    def spans(self, made: int | None, last: int | None) -> tuple[Index, Index]:
        """First and last place at which the copies of a tensor live, which an operation makes and another is the last to need.

        Made and last needed in one block, it lives within each copy; made in one and last needed in another of as many copies, each
        copy of the one makes what a copy of the other frees. Without `made` it is there from the beginning, without `last` to the end.
        """
        total = int(self.end(len(self.block) - 1)) + 1 if len(self.block) else 0
        copies = 1 if made is None else int(self.count[made])
        runs = np.arange(copies)
        begin = np.full(1, -1) if made is None else self.first[made] + self.stride[made] * runs
        if last is None:
            return begin, np.full(copies, total)
        paired = made is not None and self.block[made] >= 0 and self.block[last] >= 0
        return begin, self.first[last] + self.stride[last] * runs if paired else np.full(copies, self.end(last))
