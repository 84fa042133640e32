"""What other ranks hold of tensors that are divided: what these had when they were divided, so that gathered weights are a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

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
    params : all that FSDP2 has divided.
    whole, first : parameters as they were divided, and own parts as they were first gathered.
    """

    params: WeakSet[Any] = field(default_factory=WeakSet)
    whole: WeakKeyDictionary[Any, torch.Tensor] = field(default_factory=WeakKeyDictionary)
    first: WeakKeyDictionary[Any, torch.Tensor] = field(default_factory=WeakKeyDictionary)

    def dividing(self, old: Callable[..., None]) -> Callable[..., None]:
        """Keeps what a layer has when it is divided."""

        def divide(param: Any, given: Any, *more: Any, **named: Any) -> None:
            data = getattr(given, "_local_tensor", given).detach()
            old(param, given, *more, **named)
            self.params.add(param)
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

    def assembled(self, local: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """The parameter of FSDP2 of which a tensor is the own part, and what was divided where that had data; None for another tensor."""
        place = local.untyped_storage().data_ptr()
        param = next((one for one in self.params if one._sharded_param_data.untyped_storage().data_ptr() == place), None)
        if param is None or not place:
            return None
        own, mesh, dim = param._sharded_param_data.detach(), param.mesh_info, param.fsdp_placement.dim
        rows = own.new_empty(getattr(mesh, "shard_mesh_size", 1), own.numel())
        self.write(rows, own, [GatheredPart(param=param, count=own.numel())], getattr(mesh, "shard_mesh_rank", 0))
        if dim == 0:
            found = rows.view(-1)[: param._orig_size.numel()].view(param._orig_size)
        else:
            found = torch.cat([row.view(param.padded_sharded_param_size) for row in rows], dim)
        return found, self.whole.get(param)

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


def _tiled(part: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A part as often along each dimension as a shape has it; None where it does not fill the shape."""
    if any(whole % one for one, whole in zip(part.shape, shape, strict=True)):
        return None
    return part.repeat([whole // one for one, whole in zip(part.shape, shape, strict=True)])


@dataclass(kw_only=True, eq=False)
class DistributedWhole:
    """A tensor that was divided by `distribute_tensor`, the storage of its own part, and where in it that part lies."""

    storage: StorageWeakRef
    whole: torch.Tensor
    own: tuple[slice, ...]


@dataclass(kw_only=True)
class DistributedTensors:
    """What tensors had that are divided by `distribute_tensor`, as tensor parallelism does, and what is gathered of them.

    Attributes
    ----------
    shards : of FSDP2.
    wholes : by the storages of own parts.
    """

    shards: GatheredShards
    wholes: dict[int, DistributedWhole] = field(default_factory=dict)

    def distributing(self, old: Callable[..., Any]) -> Callable[..., Any]:
        """The own part is that of the tensor that this rank gives, which is what all ranks give."""

        def distribute(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
            made = old(tensor, *given, **named)
            if isinstance(tensor, DTensor) or tensor.is_meta or not isinstance(made, DTensor):
                return made
            local = made._local_tensor.detach()
            shape, offsets = compute_local_shape_and_global_offset(made.shape, made.device_mesh, made.placements)
            own = tuple(slice(begin, begin + size) for begin, size in zip(offsets, shape, strict=True))
            with torch.no_grad():
                if tuple(local.shape) == tuple(shape) and local.shape != tensor.shape:
                    local.copy_(tensor.detach()[own])
                    kept = DistributedWhole(storage=StorageWeakRef(local.untyped_storage()), whole=tensor.detach(), own=own)
                    self.wholes = {key: one for key, one in self.wholes.items() if not one.storage.expired()}
                    self.wholes[local.untyped_storage().data_ptr()] = kept
            return made

        return distribute

    def gathering(self, old: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Whole tensors, as `full_tensor` and consolidated checkpoints gather them, have what other parts had when they were divided."""

        def redistribute(local: torch.Tensor, current: Any, target: Any, **named: Any) -> torch.Tensor:
            found = old(local, current, target, **named)
            summed = any(one.is_partial() for one in current.placements)
            passing = is_traceable_wrapper_subclass(local)  # of a collective that is under way: nothing that a rank keeps, and without data
            if summed or passing or not all(isinstance(one, Replicate) for one in target.placements):
                return found
            whole = self._whole(local, target.shape)
            return found if whole is None else whole.to(found.dtype)

        return redistribute

    def _whole(self, local: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """The whole tensor of which a tensor is the own part; None where nothing is known of it."""
        made = self.shards.assembled(local)
        part, divided = (local, local) if made is None else made
        if made is not None and part.shape == shape:
            return part
        kept = None if divided is None else self.wholes.get(divided.untyped_storage().data_ptr())
        if kept is not None and not kept.storage.expired() and kept.whole.shape == shape and kept.whole[kept.own].shape == part.shape:
            whole = kept.whole.clone()
            whole[kept.own] = part
            return whole
        return None if made is None else _tiled(part, shape)
