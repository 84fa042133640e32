"""Models that divide themselves by torch's own means, as users write them: for the importer, and for real ranks."""

import functools

import torch
from models import Gpt, deep, gpt, half_frozen, tied
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

TOKENS = 32


def tokens():
    return torch.zeros(2, TOKENS, dtype=torch.long)


def replicated():
    return DistributedDataParallel(gpt()), tokens()


def replicated_in_half_the_bits():
    """Gradients travel in FP16; builds of torch for CPUs refuse the hook of BF16."""
    model = DistributedDataParallel(gpt())
    model.register_comm_hook(None, fp16_compress_hook)
    return model, tokens()


def replicated_with_buffers():
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 36, 10)
    return DistributedDataParallel(nn.Sequential(*layers)), torch.ones(4, 3, 8, 8)


def in_many_buckets():
    return DistributedDataParallel(Gpt(width=512, heads=8), bucket_cap_mb=4), tokens()


def replicated_and_tied():
    return DistributedDataParallel(tied()), tokens()


def replicated_in_part():
    return DistributedDataParallel(half_frozen()), tokens()


def sharded_in_part():
    return _sharded(half_frozen()), tokens()


def sharded_and_tied():
    return _sharded(tied()), tokens()


def sharded():
    return _sharded(gpt()), tokens()


def sharded_once():
    """Weights that stay gathered until the backward pass, as ZeRO 2 has them."""
    return _sharded(gpt(), reshard_after_forward=False), tokens()


def sharded_and_replicated():
    return _sharded(gpt(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))), tokens()


def _sharded(model, **given):
    for block in model.blocks:
        fully_shard(block, **given)
    return fully_shard(model, **given)


PLAN = {**dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()), **dict.fromkeys(("o", "down"), RowwiseParallel())}


def _over_tensor_ranks(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    return model


def over_tensor_ranks():
    return _over_tensor_ranks(gpt(), init_device_mesh("cpu", (torch.distributed.get_world_size(),))), tokens()


def with_shards():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    return _sharded(_over_tensor_ranks(deep(), mesh["tensor"]), mesh=mesh["data"]), tokens()


class Sequences(nn.Module):
    """A feed-forward block between norms that divide the sequence, as in torchtitan."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


def over_sequences():
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    plan = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))}
    return nn.Sequential(*(parallelize_module(Sequences(), mesh, plan) for _ in range(2))), torch.ones(2, TOKENS, 64)


MICROBATCHES = 4


class Stage(nn.Module):
    """Half of a model, by its layers."""

    def __init__(self, model, place):
        super().__init__()
        self.blocks, self.place = nn.Sequential(*model.blocks[2 * place : 2 * place + 2]), place
        self.table, self.norm, self.head = (None, model.norm, model.head) if place else (model.table, None, None)

    def forward(self, x):
        x = self.blocks(x if self.place else self.table(x))
        return self.head(self.norm(x)) if self.place else x


def in_stages():
    """A step of two stages by torch's own schedule; of real ranks only."""
    place, device = torch.distributed.get_rank(), torch.device("cpu")
    schedule = Schedule1F1B(PipelineStage(Stage(deep(), place), place, 2, device), MICROBATCHES, loss_fn=lambda y, _: y.sum())
    whole = torch.zeros(MICROBATCHES, TOKENS, dtype=torch.long)

    def step():
        schedule.step(target=whole) if place else schedule.step(whole)

    return step


def shared_and_replicated():
    """Replicas of tensor groups, by the function that torch has for them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _over_tensor_ranks(deep(), mesh["tensor"])
    _pre_dp_module_transform(model)
    return DistributedDataParallel(model, device_mesh=mesh["data"]), tokens()


def _biased(optimizer):
    """A layer whose last bias every tensor rank has, with the gradient of its own part of the tokens."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    layers = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)
    plan = {"0": ColwiseParallel(input_layouts=Shard(1)), "1": RowwiseParallel(output_layouts=Shard(1)), "2": SequenceParallel()}
    model = parallelize_module(nn.Sequential(*layers), mesh, plan)
    return {"model": model, "inputs": torch.ones(2, TOKENS, 64), "optimizer": optimizer(model.parameters())}


def biased_one_by_one():
    return _biased(functools.partial(torch.optim.AdamW, foreach=False))


def biased_together():
    return _biased(functools.partial(torch.optim.AdamW, foreach=True))


def biased_in_one_kernel():
    return _biased(functools.partial(torch.optim.AdamW, fused=True))


def biased_by_sgd():
    return _biased(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False))
