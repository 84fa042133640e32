"""What other ranks hold of layers that FSDP2 divides: what these had when they were divided, so that gathered weights are a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from crossflow.evidence.emulation.buffers import put


@dataclass(kw_only=True, eq=False)
class GatheredPart:
    """A parameter in the buffer of a gather.

    Attributes
    ----------
    param : of FSDP2, which knows its own part.
    count : elements of each rank. [1]
    """

    param: Any
    count: int


@dataclass(kw_only=True)
class GatheredShards:
    """Writes whole parameters: the own part as it is, the others as they were when the layer was divided.

    Where the layer had no data then, as on the device ``meta``, the others are the own part of the first gather, shifted by an element
    for each place: it has the spread of the own weights, and no two of its rows are alike.

    Attributes
    ----------
    whole, first : parameters as they were divided, and own parts as they were first gathered.
    """

    whole: WeakKeyDictionary[Any, torch.Tensor] = field(default_factory=WeakKeyDictionary)
    first: WeakKeyDictionary[Any, torch.Tensor] = field(default_factory=WeakKeyDictionary)

    def dividing(self, old: Callable[..., None]) -> Callable[..., None]:
        """Keeps what a layer has when it is divided."""

        def divide(param: Any, given: Any, *more: Any, **named: Any) -> None:
            data = getattr(given, "_local_tensor", given).detach()
            old(param, given, *more, **named)
            if not data.is_meta:
                self.whole[param] = data

        return divide

    def parts(self, params: Sequence[Any], numel: int) -> list[GatheredPart] | None:
        """Parameters of a gather of so many elements a rank; None where its buffer holds something else than them."""
        found = [GatheredPart(param=one, count=one._sharded_param_data.numel()) for one in params]
        return found if sum(one.count for one in found) == numel else None

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def write(self, output: torch.Tensor, source: torch.Tensor, parts: Sequence[GatheredPart], place: int) -> None:
        """Fill the output of a gather."""
        rows, mine, begin = output.detach().view(-1, source.numel()), source.detach().clone(), 0  # which lies in the output
        for part in parts:
            columns, own = rows[:, begin : begin + part.count], mine[begin : begin + part.count]
            whole, dim = self.whole.get(part.param), part.param.fsdp_placement.dim
            if part.count and whole is None:
                self._shifted(part, columns, own)
            elif part.count and whole is not None and dim == 0:
                _cut(columns, whole.reshape(-1), part.count)
            elif part.count and whole is not None:
                for row, chunk in zip(columns, whole.chunk(len(rows), dim), strict=False):
                    put(row, chunk)
            columns[place].copy_(own)
            begin += part.count

    def _shifted(self, part: GatheredPart, columns: torch.Tensor, own: torch.Tensor) -> None:
        first = self.first.get(part.param)
        if first is None:
            first = self.first[part.param] = own.clone()
        long = first.repeat(2 + len(columns) // part.count)
        columns.copy_(long.as_strided((len(columns), part.count), (1, 1)))


def _cut(columns: torch.Tensor, whole: torch.Tensor, count: int) -> None:
    """Write a parameter as rows of so many elements; what is left over is padding."""
    full = whole.numel() // count
    columns[:full].copy_(whole[: full * count].view(full, count))
    rest = whole[full * count :]
    columns[full:].zero_()
    if rest.numel():
        columns[full, : rest.numel()].copy_(rest)
