"""Plans of `torch.distributed.checkpoint` of ranks that are emulated: each saves its own parts of what the ranks divide."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset


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
        """Plans of emulated ranks beside those of real ones."""

        def gather(wrapper: Any, own: Any) -> Any:
            found = old(wrapper, own)
            if found is None or not isinstance(own, SavePlan) or not wrapper.use_dist:
                return found
            members = _members(wrapper.group)
            return [one if rank in self.real else self._of(rank, own) for rank, one in zip(members, found, strict=True)]

        return gather

    def _of(self, rank: int, own: SavePlan) -> SavePlan:
        """The plan of an emulated rank: its own parts."""
        items = [self._moved(item, self.saved[item.index.fqn], rank) for item in own.items if item.index.fqn in self.saved]
        return dataclasses.replace(own, items=[one for one in items if one is not None])

    def _moved(self, item: WriteItem, tensor: DTensor, rank: int) -> WriteItem | None:
        """What another rank saves of a tensor, None where it has nothing that the real one does not have."""
        part = _part(tuple(tensor.shape), tensor.device_mesh, tensor.placements, rank)
        if part is None or item.tensor_data is None:
            return None
        sizes, offsets = part
        if offsets == item.index.offset:
            return None
        data = dataclasses.replace(item.tensor_data, chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes))
        return dataclasses.replace(item, index=MetadataIndex(item.index.fqn, offsets), tensor_data=data)


@functools.lru_cache(maxsize=1 << 16)  # weights and their states in optimizers are divided alike
def _part(shape: tuple[int, ...], mesh: Any, placements: Any, rank: int) -> tuple[torch.Size, torch.Size] | None:
    """Sizes and offsets of the part of a tensor that a rank has, None where it has none. [1]"""
    places = (mesh.mesh == rank).nonzero().tolist()
    if not places:
        return None
    sizes, offsets = _compute_local_shape_and_global_offset(shape, tuple(mesh.shape), places[0], placements)
    return torch.Size(sizes), torch.Size(offsets)


def _members(group: Any) -> list[int]:
    """Global ranks of a group, of the world where it is None."""
    return list(torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD))
