"""Calls everything that torch.distributed offers, on any number of ranks; says what failed."""

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("nccl" if "--nccl" in sys.argv else "gloo")
rank, ranks, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
part, whole = torch.ones(4), torch.ones(4 * ranks)
root = rank == 0


def parts():
    return [torch.ones(4) for _ in range(ranks)]


def coalesced():
    with dist._coalescing_manager():
        dist.all_reduce(whole)
        dist.all_reduce(part)


def transfers():
    for work in (dist.isend(part, 1), dist.irecv(part, 1)):
        work.wait()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, part, 1), dist.P2POp(dist.irecv, part, 1)]):
        work.wait()


def trained(model, sample):
    model(sample).sum().backward()
    return model


def layers():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))


def sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained(model, torch.ones(2, 64))


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = layers()
    mesh = init_device_mesh("cpu", (ranks // 8, 8), mesh_dim_names=("dp", "tp"))["tp"]
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    trained(model, torch.ones(2, 64))


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    trained(FullyShardedDataParallel(torch.nn.Linear(64, 64), device_id=torch.device("cpu")), torch.ones(2, 64))


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    trained(model, torch.ones(2, 8))
    optimizer.step()


def pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(
        torch.nn.Linear(8, 8), 0, ranks, torch.device("cpu"), input_args=(torch.ones(1, 8),), output_args=(torch.ones(1, 8),)
    )
    ScheduleGPipe(stage, n_microbatches=4).step(torch.ones(4, 8))


CALLS = {
    "all_reduce": lambda: dist.all_reduce(whole),
    "all_reduce async": lambda: dist.all_reduce(whole, async_op=True).wait(),
    "broadcast": lambda: dist.broadcast(whole, 0),
    "reduce": lambda: dist.reduce(whole, 0),
    "all_gather": lambda: dist.all_gather(parts(), part),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
    "reduce_scatter": lambda: dist.reduce_scatter(part, parts()),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
    "all_to_all": lambda: dist.all_to_all(parts(), parts()),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(4 * ranks), whole),
    "gather": lambda: dist.gather(part, parts() if root else None, 0),
    "scatter": lambda: dist.scatter(part, parts() if root else None, 0),
    "send": lambda: dist.send(part, 1),
    "recv": lambda: dist.recv(part, 1),
    "isend, irecv, batch": transfers,
    "barrier": dist.barrier,
    "monitored_barrier": lambda: dist.monitored_barrier() if dist.get_backend() == "gloo" else None,
    "all_gather_object": lambda: dist.all_gather_object([None] * ranks, {"a": rank}),
    "broadcast_object_list": lambda: dist.broadcast_object_list([1, 2], 0),
    "gather_object": lambda: dist.gather_object({"a": 1}, [None] * ranks if root else None),
    "scatter_object_list": lambda: dist.scatter_object_list([None], list(range(ranks)) if root else None),
    "new_group": lambda: dist.all_reduce(part, group=dist.new_group(list(range(ranks // 2)))),
    "new_subgroups": lambda: dist.new_subgroups(2),
    "coalescing": coalesced,
    "functional all_reduce": lambda: functional.all_reduce(part, "sum", world).sum().item(),
    "functional all_gather": lambda: functional.all_gather_tensor(part, 0, world).sum().item(),
    "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(whole, "sum", 0, world).sum().item(),
    "functional all_to_all": lambda: functional.all_to_all_single(whole, None, None, world).sum().item(),
    "functional broadcast": lambda: functional.broadcast(part, 0, world).sum().item(),
    "functional coalesced": lambda: [one.sum().item() for one in functional.all_reduce_coalesced([part, whole], "sum", world)],
    "ddp": lambda: trained(torch.nn.parallel.DistributedDataParallel(layers()), torch.ones(2, 64)),
    "fsdp1": fsdp1,
    "fsdp2": lambda: sharded(init_device_mesh("cpu", (ranks,))),
    "hsdp": lambda: sharded(init_device_mesh("cpu", (ranks // 4, 4), mesh_dim_names=("replica", "shard"))),
    "zero": zero,
    "tensor parallel": tensor_parallel,
    "pipeline": pipeline,
}
for name, call in CALLS.items():
    try:
        call()
    except Exception as error:
        print(f"FAILED {name}: {type(error).__name__}: {error}"[:300])
print(f"{len(CALLS)} calls on rank {rank} of {ranks}, backend {dist.get_backend()}")
dist.destroy_process_group()
