"""A script whose layers sleep: as much to send as a model has, and computing that takes the same time on any machine."""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=("ddp", "fsdp2"), default="ddp")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--size", type=float, default=1.0, help="of a layer's weights [MB]")
parser.add_argument("--forward", type=float, default=4.0, help="of a layer [ms]")
parser.add_argument("--backward", type=float, default=8.0, help="of a layer [ms]")
parser.add_argument("--bucket", type=float, default=2.0, help="of gradients [MB]")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--backend", default="gloo")
given = parser.parse_args()


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        time.sleep(given.forward * 1e-3)
        return x + weight[0]

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(given.backward * 1e-3)
        return gradient, torch.zeros_like(*ctx.saved_tensors)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(int(given.size * 1e6) // 4))

    def forward(self, x):
        return Sleep.apply(x, self.weight)


torch.set_num_threads(1)
dist.init_process_group(given.backend)
model = torch.nn.Sequential(*(Layer() for _ in range(given.layers)))
if given.mode == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=given.bucket)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
times = []
for _ in range(given.steps):
    begin = time.perf_counter()
    model(torch.zeros(1, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    print(json.dumps({"backend": dist.get_backend(), "ranks": dist.get_world_size(), "step_ms": statistics.median(times[3:]) * 1e3}))
dist.destroy_process_group()
