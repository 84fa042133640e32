"""Collectives among processes of this machine: gloo between processes, NCCL where there are several GPUs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from crossflow.base.files import from_json, json_text
from crossflow.base.signals import end_with_parent
from crossflow.cost.profile import message_shape

SIZES = tuple(2**exponent for exponent in range(10, 25, 2))  # of buffers [B]
REPEATS, WARM = 11, 2
RowData = dict[str, Any]


def collective_rows(device: str, ranks: int, seconds: float) -> list[RowData]:
    """Times of collectives by size, the median of the slowest rank; fewer sizes where the time is short.

    Parameters
    ----------
    seconds : after which no further size is measured, and processes that still run are ended. [s]
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        context = processes.get_context("spawn")
        workers = [context.Process(target=_worker, args=(rank, ranks, device, folder, str(out), seconds / 2.0)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds + 60.0  # processes take long to start on a busy machine
        try:
            for worker in workers:
                worker.join(max(0.0, end - time.monotonic()))
        finally:
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()
        rows: list[RowData] = from_json(out.read_text(encoding="utf-8")) if out.is_file() else []
        return rows


def _worker(rank: int, ranks: int, device: str, folder: str, out: str, seconds: float) -> None:
    """One rank."""
    end_with_parent()
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        rows = list(_measured(ranks, device, seconds))
    finally:
        dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(json_text(rows), encoding="utf-8")


def _measured(ranks: int, device: str, seconds: float) -> Iterator[RowData]:
    start, late = time.monotonic(), torch.zeros(1, device=device)
    for size in SIZES:
        for name, run in _calls(size, ranks, device).items():
            times = torch.tensor(_times(run, device), device=device)
            dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a collective ends when its last rank does
            found = times.tolist()
            spread = statistics.median(abs(one - statistics.median(found)) for one in found)
            yield {
                "op": name, "shape": message_shape(size), "ranks": ranks, "scope": "intra", "time": statistics.median(found),
                "spread": spread, "count": len(found), "busy": spread > 0.1 * statistics.median(found),
            }  # fmt: skip
        late.fill_(float(time.monotonic() - start > seconds))
        dist.all_reduce(late)
        if float(late) > 0:
            return


def _calls(size: int, ranks: int, device: str) -> Mapping[str, Callable[[], Any]]:
    """Collectives on whole buffers of some bytes."""
    whole = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // ranks, device=device)
    parts = [torch.empty_like(part) for _ in range(ranks)]
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather(parts, part),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def _times(run: Callable[[], Any], device: str) -> Sequence[float]:
    found = []
    for _ in range(WARM + REPEATS):
        dist.barrier()
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found[WARM:]
