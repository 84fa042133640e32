"""Two real ranks train in every way that torch offers; each prints its losses."""

import os
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


def loss(model, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        found = (model(torch.full((2, 64), rank + step + 1.0)) ** 2).sum()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
    return found.item()


def hybrid():
    model, mesh = layers(), init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicas", "shards"))
    for part in (model[0], model):
        fully_shard(part, mesh=mesh)
    return loss(model)


def compressed():
    model = DistributedDataParallel(layers())
    model.register_comm_hook(None, fp16_compress_hook)
    return loss(model)


def redundant():
    model = DistributedDataParallel(layers())
    return loss(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1))


def pipeline():
    part, losses = layers()[2 * rank], []
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), 2, loss_fn=lambda out, right: ((out - right) ** 2).sum())
    schedule.step(target=torch.zeros(4, 64), losses=losses) if rank else schedule.step(torch.ones(4, 64))
    return part.weight.grad.sum().item(), [one.item() for one in losses]


def coalesced():
    with dist._coalescing_manager():
        dist.all_reduce(whole := torch.ones(3))
    future = dist.all_reduce(whole, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].sum().item()).wait()


found = {
    "ddp": loss(DistributedDataParallel(layers())), "compressed": compressed(), "zero": redundant(), "hsdp": hybrid(),
    "fsdp1": loss(FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))),
    "tp": loss(parallelize_module(layers(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})),
    "pipeline": pipeline(), "coalesced": coalesced(),
}  # fmt: skip
os.write(1, f"rank {rank}: {found}\n".encode())
dist.barrier()  # no rank ends while another still talks to it
dist.destroy_process_group()
