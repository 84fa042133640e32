"""Which share of flags is set that a routing makes, as tokens that go to one expert: what is chosen is spread evenly over what can be.

Code without grouped products takes the tokens of an expert by `nonzero`, or by a mask, so its shapes depend on data. What is known is from
how many places the largest values are taken: a comparison with one of them is true once among so many, and all of them are met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from crossflow.evidence.torch.kernels import name_of

# What gives places along a dimension, and where its schema has it: as an argument at a place, and what it is by default.
_CHOOSES = {"topk": (2, -1), "sort": (1, -1), "argsort": (1, -1), "argmax": (1, None), "argmin": (1, None), "max": (1, None),
            "min": (1, None), "multinomial": (9, -1)}  # fmt: skip
_KEEPS = frozenset({"_to_copy", "clone", "index", "index_select", "copy_", "gt", "ge", "ne", "gather", "alias", "cat", "mul"})
_GATHERS = frozenset({"sum", "any", "amax", "max", "count_nonzero"})
_MASKED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


@dataclass
class FlagSpread:
    """Of flags that were asked for, the mean and the whole number that are set; so also the remainder of a mean is given to some. [1]"""

    mean: float = 0.0
    given: int = 0

    def take(self, mean: float) -> int:
        """How many of some flags are set, in whole numbers whose sum is that of the means."""
        self.mean += mean
        number = math.floor(self.mean + 0.5) - self.given
        self.given += number
        return number


@dataclass(frozen=True, kw_only=True)
class RoutedFlags:
    """Flags that a routing has set.

    Attributes
    ----------
    share : mean of those that are set. [1]
    classes, met : places that they tell apart along a dimension, and how many of these can be chosen; none of a comparison with one. [1]
    spread : over which comparisons with the same choices their remainders are spread.
    """

    share: float
    classes: int = 0
    met: int = 0
    spread: FlagSpread = field(default_factory=FlagSpread)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Whole numbers of which each is one of `among` numbers. [1]"""

    among: int
    spread: FlagSpread = field(default_factory=FlagSpread)


class FlagRouting:
    """What is known of choices and of flags, by their storages, whose names `key` gives."""

    def __init__(self, key: Callable[[Any], int]) -> None:
        self._key = key
        self._chosen: dict[int, Choices] = {}
        self._flags: dict[int, RoutedFlags] = {}
        self._numbers: dict[Any, int] = {}  # how many are set of flags that were asked for [1]
        self.reads = 0  # whole numbers that the host has read, such as that of an expert: all look alike here [1]

    def flags(self, tensor: Any) -> RoutedFlags | None:
        """What is known of flags, None of others."""
        return self._flags.get(self._key(tensor)) if isinstance(tensor, torch.Tensor) else None

    def sized(self, func: Any, args: Any) -> tuple[Any, Any]:
        """Arguments of an operation with places instead of the masks that are known, and its result if that is what is known."""
        name = name_of(func)
        if name == "nonzero" and (found := self.flags(args[0])) is not None:
            return args, args[0].new_empty((self._number(args[0], found, self.reads), args[0].dim()), dtype=torch.int64)
        if name == "masked_select" and args[0].shape == args[1].shape and (found := self.flags(args[1])) is not None:
            return args, args[0].new_empty((self._number(args[1], found),))
        if name in _MASKED:
            return (args[0], self._places(args[1]), *args[2:]), None
        return args, None

    def _places(self, given: Sequence[Any]) -> list[Any]:
        places = list[Any]()
        for one in given:
            found = self.flags(one) if one is not None and one.dtype == torch.bool else None
            places += [one] if found is None else [one.new_empty((self._number(one, found),), dtype=torch.int64)] * one.dim()
        return places

    def _number(self, tensor: Any, flags: RoutedFlags, reads: int = -1) -> int:
        """How many flags of a tensor are set: the same number each time, but for the part of it that another number selects."""
        name = (self._key(tensor), tensor.storage_offset(), tensor.shape, reads)
        if name not in self._numbers:
            self._numbers[name] = flags.spread.take(tensor.numel() * flags.share)
        return self._numbers[name]

    def follow(self, func: Any, args: Any, out: Any) -> None:
        """Learn what an operation hands on."""
        name = name_of(func)
        if name in _CHOOSES:
            self._choose(name, args, out)
        if not args or not isinstance(out, torch.Tensor):
            return
        first = args[0][0] if isinstance(args[0], list | tuple) and args[0] else args[0]
        if name == "eq":
            self._compare(args, out)
        elif name in ("scatter", "scatter_") and _sets(args) and (chosen := self._chosen.get(self._key(args[2]))) is not None:
            share, classes = args[2].numel() / out.numel(), out.shape[args[1]]
            self._flags[self._key(out)] = RoutedFlags(share=share, classes=classes, met=classes, spread=chosen.spread)
        elif (found := self.flags(first)) is not None:
            if name in _GATHERS:
                self._flags[self._key(out)] = _gathered(found, first, out)
            elif name in ("logical_not", "bitwise_not"):
                self._flags[self._key(out)] = RoutedFlags(share=1.0 - found.share)
            elif name in _KEEPS and self._key(out) != self._key(first):
                self._flags[self._key(out)] = found
        elif name in _KEEPS and isinstance(first, torch.Tensor) and self._key(first) in self._chosen:
            self._chosen[self._key(out)] = self._chosen[self._key(first)]

    def _choose(self, name: str, args: Any, out: Any) -> None:
        place, default = _CHOOSES[name]
        dim = args[place] if len(args) > place else default
        places = [one for one in (out if isinstance(out, list | tuple) else [out]) if not one.dtype.is_floating_point]
        if isinstance(dim, int) and places and args[0].dim():
            known = self._chosen.get(self._key(args[0]))
            self._chosen[self._key(places[-1])] = Choices(among=args[0].shape[dim])
            if known is not None and len(places) > 1:  # sorted choices are choices
                self._chosen[self._key(places[0])] = known

    def _compare(self, args: Any, out: Any) -> None:
        """Whether choices are one number, or each of a row of numbers."""
        for one, other in (args[:2], args[1::-1]):
            if isinstance(one, torch.Tensor) and (found := self._chosen.get(self._key(one))) is not None:
                classes = out.numel() // one.numel() if isinstance(other, torch.Tensor) else 0
                met = min(found.among, classes)
                self._flags[self._key(out)] = RoutedFlags(share=1.0 / found.among, classes=classes, met=met, spread=found.spread)
                return


def _sets(args: Any) -> bool:
    """Whether a scatter sets what is chosen, and does not clear it or write other numbers."""
    return len(args) > 3 and isinstance(args[3], bool | int | float) and args[3] == 1


def _gathered(flags: RoutedFlags, whole: Any, out: Any) -> RoutedFlags:
    """Flags that say whether any of several is set, or how many: as many as differ of those that a row tells apart, which all are met."""
    if flags.classes > 1 and out.numel() == flags.classes:
        return RoutedFlags(share=flags.met / flags.classes)
    return RoutedFlags(share=min(1.0, flags.share * whole.numel() / max(out.numel(), 1)), spread=flags.spread)
