"""Three ranks on a real network call what a recorded group must pass on, and look at every result."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([0, 2])
mine = torch.full((4,), float(rank))
for _ in range(2):
    sums = [mine.clone(), 2 * mine]
    for work in [dist.all_reduce(one, async_op=True) for one in sums]:
        work.wait()
    assert [one[0] for one in sums] == [3, 6]
    if rank != 1:
        dist.broadcast(got := mine.clone(), 2, group=pair)
        assert got[0] == 2
    whole = torch.empty(4 * ranks)
    dist.all_gather(list(whole.chunk(ranks)), mine)
    assert whole.sum() == 12
    sends, receives = ([rank + 2 * one + 1 for one in range(ranks)], [one + 2 * rank + 1 for one in range(ranks)])
    parts = torch.empty(sum(receives))
    dist.all_to_all_single(parts, torch.full((sum(sends),), float(rank)), receives, sends)
    assert parts.tolist() == [one for one in range(ranks) for _ in range(receives[one])]
    dist.gather(mine, rows := [torch.empty(4) for _ in range(ranks)] if rank == 0 else None)
    dist.scatter(got := torch.empty(4), rows)
    assert got[0] == rank
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": one} for one in range(ranks)]
    dist.broadcast_object_list(said := [rank], 1)
    assert said == [1]
    assert functional.all_reduce(mine, "sum", dist.group.WORLD)[0] == 3
    passed = torch.empty(4)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, (rank + 1) % ranks), dist.P2POp(dist.irecv, passed, (rank - 1) % ranks)]
    ):
        work.wait()
    assert passed[0] == (rank - 1) % ranks
    if rank == 2:
        dist.send(mine, 0)
    elif rank == 0:
        assert (dist.recv(passed), passed[0]) == (2, 2)
    dist.monitored_barrier()
    dist.barrier()
os.write(1, f"rank {rank} is done\n".encode())
dist.destroy_process_group()
