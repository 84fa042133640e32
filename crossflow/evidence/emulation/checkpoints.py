"""Plans of `torch.distributed.checkpoint` of ranks that are emulated: each saves its own parts of what the ranks divide."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard


class CheckpointPlans:
    """Plans of all ranks from that of the real one.

    What every rank has alike is saved by the real rank alone, so that it finds all that it loads.

    Parameters
    ----------
    real : ranks that run for real.
    """

    def __init__(self, real: tuple[int, ...]) -> None:
        self.real, self.saved = real, dict[str, Any]()

    def replacements(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        """Functions of torch that are replaced, and what makes the new one of the old one."""
        yield default_planner, "create_default_local_save_plan", self._planned
        yield _DistWrapper, "gather_object", self._gathered
        yield _DistWrapper, "__init__", self._coordinated

    def _coordinated(self, old: Any) -> Any:
        """A real rank coordinates: the first one, where the script asks for one that is emulated."""

        def create(wrapper: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
            if use_dist:
                members = _members(group)
                mine = [place for place, rank in enumerate(members) if rank in self.real]
                coordinator_rank = coordinator_rank if members[coordinator_rank] in self.real or not mine else mine[0]
            old(wrapper, group, use_dist, coordinator_rank)
            if use_dist and group is None:
                wrapper.global_coordinator_rank = coordinator_rank

        return create

    def _planned(self, old: Any) -> Any:
        """Keeps in mind what is saved."""

        def plan(state: Mapping[str, Any], *given: Any, **named: Any) -> Any:
            self.saved = {name: one for name, one in state.items() if isinstance(one, DTensor)}
            return old(state, *given, **named)

        return plan

    def _gathered(self, old: Any) -> Any:
        """Plans of emulated ranks beside those of real ones; what they say of a save is what this rank says.

        Objects travel as bytes, and those of emulated ranks are not read: they are copies, a thousand of which take longer than all else.
        """

        def gather(wrapper: Any, own: Any) -> Any:
            if not wrapper.use_dist:
                return old(wrapper, own)
            found = old(wrapper, pickle.dumps(own))
            if found is None:
                return None
            planned = isinstance(own, SavePlan)
            return [
                pickle.loads(one) if rank in self.real else self._of(rank, own) if planned else own
                for rank, one in zip(_members(wrapper.group), found, strict=True)
            ]

        return gather

    def _of(self, rank: int, own: SavePlan) -> SavePlan:
        """The plan of an emulated rank: its own parts."""
        items = [self._moved(item, self.saved[item.index.fqn], rank) for item in own.items if item.index.fqn in self.saved]
        return dataclasses.replace(own, items=[one for one in items if one is not None])

    def _moved(self, item: WriteItem, tensor: DTensor, rank: int) -> WriteItem | None:
        """What another rank saves of a tensor, None where it has nothing that the real one does not have."""
        part = _parts(tuple(tensor.shape), tensor.device_mesh, tensor.placements).get(rank)
        if part is None or item.tensor_data is None:
            return None
        sizes, offsets = part
        if offsets == item.index.offset:
            return None
        data = dataclasses.replace(item.tensor_data, chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        return dataclasses.replace(item, index=MetadataIndex(item.index.fqn, offsets), tensor_data=data)


TensorPart = tuple[torch.Size, torch.Size]  # sizes and offsets of what a rank has of a tensor [1]


@functools.lru_cache(maxsize=64)  # weights and their states in optimizers are divided alike
def _parts(shape: tuple[int, ...], mesh: Any, placements: Any) -> Mapping[int, TensorPart]:
    """The part of a tensor that each rank of a mesh has, by the rank.

    Placements cut one dimension after the other, and each cut is made once for all ranks: torch makes all of it for every rank [1]_.

    References
    ----------
    .. [1] `_compute_local_shape_and_global_offset` in torch/distributed/tensor/_utils.py, torch 2.13.
    """
    cuts = [_cuts(size, dim, tuple(mesh.shape), placements) for dim, size in enumerate(shape)]
    found: dict[int, TensorPart] = {}
    for place, rank in zip(itertools.product(*map(range, mesh.shape)), mesh.mesh.flatten().tolist(), strict=True):
        own = [cut[tuple(place[axis] for axis in axes)] for axes, cut in cuts]
        found[rank] = torch.Size(size for size, _ in own), torch.Size(offset for _, offset in own)
    return found


def _cuts(size: int, dim: int, ranks: Sequence[int], placements: Any) -> tuple[list[int], Mapping[tuple[int, ...], tuple[int, int]]]:
    """Axes of a mesh that cut a dimension, and the length and the begin of each part by the places along them. [1]

    A part without elements begins at the end.
    """
    axes = [axis for axis, one in enumerate(placements) if isinstance(one, Shard | _StridedShard) and one.dim == dim]
    parts: dict[tuple[int, ...], torch.Tensor] = {(): torch.arange(size).view(*(1,) * dim, -1)}
    for axis in axes:
        split = functools.partial(placements[axis]._split_tensor, num_chunks=ranks[axis], with_padding=False, contiguous=False)
        parts = {(*place, i): part for place, whole in parts.items() for i, part in enumerate(split(whole)[0])}
    return axes, {place: (one.numel(), int(one.flatten()[0]) if one.numel() else size) for place, one in parts.items()}


def _members(group: Any) -> list[int]:
    """Global ranks of a group, of the world where it is None."""
    return list(torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD))
