"""Plans of checkpoints for ranks that are emulated: all of them at once, and as torch makes them one by one."""

import pickle
import sys
import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from crossflow.evidence.emulation import checkpoints
from crossflow.evidence.emulation.launch import emulated
from crossflow.evidence.emulation.processes import RunSettings

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about a checkpoint without a group
CASES = {
    "even": ((16, 8), (4, 2), (Shard(0), Shard(1))),
    "uneven": ((7, 5), (4, 2), (Shard(0), Shard(1))),
    "one dimension twice": ((11, 3), (2, 3), (Shard(0), Shard(0))),
    "strided": ((24, 4), (3, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "strided and uneven": ((21, 4), (3, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "replicated": ((6, 4), (2, 3), (Replicate(), Shard(1))),
    "of one number": ((), (2, 2), (Replicate(), Replicate())),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_of_all_ranks_are_those_that_torch_makes_for_each(name):
    shape, ranks, placements = CASES[name]
    with emulated(RunSettings(world_size=24, rank=0, real=(0,), system="dgx-h100")):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (24 // (ranks[0] * ranks[1]), *ranks), mesh_dim_names=("other", "first", "second"))
        found = checkpoints._parts(shape, mesh["first", "second"], placements)
        places = [[i, j] for i in range(ranks[0]) for j in range(ranks[1])]
        assert list(found.values()) == [_compute_local_shape_and_global_offset(shape, ranks, place, placements) for place in places]
        assert list(found) == [*range(ranks[0] * ranks[1])]


def saved(ranks, folder):
    """Calls that it takes to save a model over `ranks` ranks, half of them of FSDP2; all of the model is in the file."""
    calls = 0

    def count(_frame, event, _given):
        nonlocal calls
        calls += event in ("call", "c_call")

    with emulated(RunSettings(world_size=ranks, rank=0, real=(0,), system="dgx-h100")):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Linear(256, 128))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        state = get_model_state_dict(model)
        checkpoints._parts.cache_clear()
        sys.setprofile(count)
        try:
            dcp.save(state, checkpoint_id=folder)
        finally:
            sys.setprofile(None)
    written = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    for name, one in state.items():
        assert written[name].size == one.shape
        assert sum(chunk.sizes.numel() for chunk in written[name].chunks) == one.numel()
    return calls


def test_a_plan_takes_as_many_calls_more_for_each_rank_more(tmp_path):
    """Torch divides a tensor anew among all ranks to know the part of one, so plans of 1,024 ranks took a million of cuts a tensor."""
    _, few, more, many = (saved(ranks, tmp_path / str(ranks)) for ranks in (8, 16, 64, 112))  # the first one imports what it needs
    assert many - more < 1.1 * (more - few)


def test_objects_of_emulated_ranks_are_not_read(monkeypatch):
    """They are copies of the own one, and as many bytes travel; those of real ranks are theirs."""
    read, sizes = [], []
    monkeypatch.setattr(checkpoints.pickle, "loads", lambda text: read.append(text) or "theirs")
    with emulated(RunSettings(world_size=8, rank=0, real=(0, 3), system="dgx-h100")):
        plans = checkpoints.CheckpointPlans((0, 3))
        gather = plans._gathered(lambda _wrapper, own: sizes.append(len(own)) or [own] * 8)
        dist.init_process_group("gloo")
        wrapper = types.SimpleNamespace(use_dist=True, group=None)
        found = gather(wrapper, "own")
    assert found == ["theirs", "own", "own", "theirs", *["own"] * 4]
    assert sizes == [len(pickle.dumps("own"))]
    assert len(read) == 2
