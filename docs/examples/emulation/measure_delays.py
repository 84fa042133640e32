"""Measures how long collectives take on a real cluster, and writes what `crossflow emulate --delays` reads.

``torchrun --nnodes 2 ... measure_delays.py delays.yaml --backend nccl`` measures among all ranks that it runs on. Each collective comes
after a pause in which the ranks compute, as in training, and no barrier comes before it: one that every rank has just left finds the
ranks closer together, and the network emptier, than they are in a step.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("output", type=Path)
parser.add_argument("--ops", nargs="+", default=("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"))
parser.add_argument("--sizes", nargs="+", type=float, default=(4e3, 32e3, 128e3, 512e3, 1e6, 2e6, 4e6, 8e6), help="[B]")
parser.add_argument("--pause", type=float, default=4.0, help="[ms]")
parser.add_argument("--repeats", type=int, default=20)
parser.add_argument("--backend", default="gloo")
parser.add_argument("--host", action="store_true", help="also write processor time, for scripts whose computing it slows down")
given = parser.parse_args()

TOGETHER = {"all_reduce": 2}  # calls at once, which share the time: buckets of gradients follow one another, what is sharded comes alone

dist.init_process_group(given.backend)
torch.set_num_threads(1)
device = torch.device("cuda" if given.backend == "nccl" else "cpu")
ranks = dist.get_world_size()


def call(op, whole):
    """Start a collective whose larger buffer is `whole`."""
    part = whole[: whole.numel() // ranks].clone()
    if op == "all_gather":
        return dist.all_gather_into_tensor(whole, part, async_op=True)
    if op == "reduce_scatter":
        return dist.reduce_scatter_tensor(part, whole, async_op=True)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, async_op=True),
        "broadcast": lambda: dist.broadcast(whole, 0, async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
    }[op]()


def measured(op, size):
    """Median time of one collective, and of the processor in it. [s]"""
    buffers = [torch.ones(max(int(size) // 4 // ranks, 1) * ranks, device=device) for _ in range(TOGETHER.get(op, 1))]
    times, hosts = [], []
    for _ in range(given.repeats):
        time.sleep(given.pause * 1e-3)
        begin, used = time.perf_counter(), time.process_time()
        for work in [call(op, whole) for whole in buffers]:
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / TOGETHER.get(op, 1))
        hosts.append((time.process_time() - used) / TOGETHER.get(op, 1))
    return statistics.median(times[3:]), statistics.median(hosts[3:])


lines = ["kind: delays", f"title: {given.backend} among {ranks} ranks, measured in situ", "tables:"]
for op in given.ops:
    rows = []
    for size in (4,) if op == "barrier" else given.sizes:
        spent, host = measured(op, size)
        rows.append(f"[{size:.0f} B, {spent * 1e6:.1f} us{f', {min(spent, host) * 1e6:.1f} us' * given.host}]")
    lines.append(f"  - {{op: {op}, ranks: {ranks}, points: [{', '.join(rows)}]}}")
if dist.get_rank() == 0:
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
dist.destroy_process_group()
