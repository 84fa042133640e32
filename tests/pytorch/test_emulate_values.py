"""Values of an emulated rank: those of a run on as many gloo ranks that all have its data."""

import os
import sys
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from crossflow.evidence.emulation.launch import emulated
from crossflow.evidence.emulation.processes import RunSettings

RANKS = (2, 3, 4)
GATHER_WHOLE = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER_WHOLE = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
pytestmark = pytest.mark.filterwarnings("ignore")  # of gloo, about names of earlier versions


def data(count, dtype=torch.float32):
    """Numbers whose sums over four ranks are exact."""
    whole = (torch.arange(count) % 7 + 1).to(dtype)
    return whole / 8 if dtype.is_floating_point else whole


def all_reduced(op, dtype=torch.float32):
    def call(ranks):
        one = data(5, dtype)
        dist.all_reduce(one, getattr(dist.ReduceOp, op))
        return one

    return call


def reduced(ranks):
    one = data(5)
    dist.reduce(one, 1)
    return one if dist.get_rank() == 1 else None  # gloo leaves parts of sums on the other ranks


def gathered(ranks):
    parts = [torch.zeros(5) for _ in range(ranks)]
    dist.all_gather(parts, data(5))
    return parts


def gathered_whole(ranks):
    whole = torch.zeros(5 * ranks)
    GATHER_WHOLE(whole, data(5), async_op=True).wait()
    return whole


def gathered_together(ranks):
    wholes = [torch.zeros(3 * ranks), torch.zeros(5 * ranks)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for whole in wholes:
            GATHER_WHOLE(whole, data(len(whole) // ranks))
    manager.wait()
    return wholes


def gathered_on_one(ranks):
    parts = [torch.zeros(5) for _ in range(ranks)] if dist.get_rank() == 1 else None
    dist.gather(data(5), parts, 1)
    return parts


def scattered_sum(op):
    def call(ranks):
        listed, whole = torch.zeros(3), torch.zeros(3)
        dist.reduce_scatter(listed, list(data(3 * ranks).split(3)), getattr(dist.ReduceOp, op))
        SCATTER_WHOLE(whole, data(3 * ranks), getattr(dist.ReduceOp, op))
        return listed, whole

    return call


def scattered(ranks):
    mine = data(3 * ranks).split(3)[dist.get_rank()].clone()  # which a rank that is not the root has already
    dist.scatter(mine, list(data(3 * ranks).split(3)) if dist.get_rank() == 0 else None, 0)
    return mine


def exchanged(ranks):
    listed, whole = [torch.zeros(3) for _ in range(ranks)], torch.zeros(ranks, 2)
    dist.all_to_all(listed, list(data(3 * ranks).split(3)))
    dist.all_to_all_single(whole, data(2 * ranks).reshape(ranks, 2))
    return listed, whole


def routed(ranks):
    """As tokens of experts are: first how many rows, then the rows."""
    sizes, theirs = torch.arange(1, ranks + 1), torch.zeros(ranks, dtype=torch.int64)
    dist.all_to_all_single(theirs, sizes)
    rows = data(2 * int(sizes.sum())).reshape(-1, 2)
    out = torch.zeros(int(theirs.sum()), 2)
    dist.all_to_all_single(out, rows, theirs.tolist(), sizes.tolist())
    return theirs, out


def broadcast(ranks):
    one, objects = data(5), [3, {"b": 1}]
    dist.broadcast(one, 1)
    dist.broadcast_object_list(objects, 1)
    return one, objects


def objects(ranks):
    every, some, mine = [None] * ranks, [None] * ranks if dist.get_rank() == 0 else None, [None]
    dist.all_gather_object(every, {"loss": 1.5})
    dist.gather_object((1, 2.5), some, 0)
    dist.scatter_object_list(mine, list(range(ranks)) if dist.get_rank() == 1 else None, 1)
    return every, some, mine if dist.get_rank() == 1 else None  # what another rank would have scattered is not known


def ring(ranks):
    """To the right, then two steps to the left, with receives first; each message arrives in its order."""
    found, rank = [], dist.get_rank()
    for step, places in enumerate((1, 1, -2)):
        sent, received = data(4) * (step + 1), torch.zeros(4)
        works = [dist.irecv(received, (rank - places) % ranks), dist.isend(sent, (rank + places) % ranks)] if places % ranks else []
        for work in works:
            work.wait()
        sent.zero_()
        found.append(received)
    return found


def crossing(ranks):
    """Groups that cross: pairs of neighbours among the four, and those that are two apart."""
    if ranks != 4:
        return None
    one = data(5)
    for groups in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]):
        mine, _ = dist.new_subgroups_by_enumeration(groups)
        dist.all_reduce(one, group=mine)
    return one


def functions(ranks):
    group = dist.group.WORLD
    found = (
        functional.all_reduce(data(4), "sum", group),
        functional.all_reduce_coalesced([data(4), data(2)], "avg", group),
        functional.all_gather_tensor(data(4), 0, group),
        functional.reduce_scatter_tensor(data(4 * ranks), "sum", 0, group),
        functional.all_to_all_single(data(ranks), None, None, group),
    )
    return [[part + 0 for part in one] if isinstance(one, list) else one + 0 for one in found]


def trained(ranks):
    """Losses, and the norm of gradients, of a model that learns."""
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=0.1), []
    for _ in range(4):
        loss = (model(data(16).reshape(2, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found += [mean / ranks, norm]
    return found


def sharded(ranks):
    """The first loss of a model that FSDP2 divides, unevenly too, and its own part of the gradients."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 4))
    fully_shard(model[0])
    fully_shard(model)
    loss = (model(data(16).reshape(2, 8)) - 1).square().mean()
    loss.backward()
    return loss.detach(), [one.grad.to_local() for one in model.parameters()]


def consolidated(ranks):
    """Whole tensors of FSDP2, cut along rows that do not divide evenly and along columns, and of what distribute_tensor divides."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.Linear(7, 12, bias=False), torch.nn.Linear(12, 5))
    fully_shard(model[0])
    fully_shard(model[2], shard_placement_fn=lambda one: Shard(1) if one.dim() == 2 else None)
    fully_shard(model)
    table = torch.distributed.tensor.distribute_tensor(data(7 * 5).reshape(7, 5), init_device_mesh("cpu", (ranks,)), [Shard(0)])
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # of the first rank alone
    return [one.full_tensor().detach() for one in model.parameters()], list(state.values()), table.to_local(), table.full_tensor()


CALLS = {
    **{f"all_reduce {op}": all_reduced(op) for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")},
    **{f"all_reduce {op} of integers": all_reduced(op, torch.int64) for op in ("SUM", "PRODUCT", "BAND", "BOR", "BXOR")},
    "all_reduce of half a float": all_reduced("SUM", torch.bfloat16),
    "all_reduce of truth values": all_reduced("SUM", torch.bool),
    "reduce_scatter SUM": scattered_sum("SUM"),
    "reduce_scatter MAX": scattered_sum("MAX"),
    **{
        call.__name__: call
        for call in (
            reduced, gathered, gathered_whole, gathered_together, gathered_on_one, scattered, exchanged, routed, broadcast, objects, ring,
            crossing, functions, trained, sharded, consolidated,
        )
    },
}  # fmt: skip


def every_call(ranks):
    torch.manual_seed(0)
    return {name: call(ranks) for name, call in CALLS.items()}


@pytest.fixture(scope="module")
def emulating():
    """What the same calls give where one rank is real."""
    found = {}
    for ranks in RANKS:
        for rank in range(ranks):
            with emulated(RunSettings(world_size=ranks, rank=rank, real=(rank,), system="dgx-h100")):
                dist.init_process_group("gloo")
                found[ranks, rank] = every_call(ranks)
    return found


@pytest.fixture(scope="module")
def real(emulating, tmp_path_factory):
    """What each of some gloo ranks gets, by their number; forks, so that they have what is imported."""
    folder = tmp_path_factory.mktemp("gloo")
    children = [_forked(folder, ranks, rank) for ranks in RANKS for rank in range(ranks)]
    assert not any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    return {(ranks, rank): torch.load(folder / f"{ranks}.{rank}", weights_only=False) for ranks in RANKS for rank in range(ranks)}


def _forked(folder, ranks, rank, calls=every_call):
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks)
            torch.save(calls(ranks), folder / f"{ranks}.{rank}")
            dist.barrier()
            os._exit(0)
        except BaseException:  # the parent must not go on twice
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(1)
    return child


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ranks", RANKS)
def test_an_emulated_rank_has_what_real_ranks_with_equal_data_have(real, emulating, ranks, name):
    for rank in range(ranks):
        torch.testing.assert_close(
            emulating[ranks, rank][name], real[ranks, rank][name], rtol=1e-6, atol=0, msg=lambda text, rank=rank: f"rank {rank}: {text}"
        )


MOST = 8  # ranks, of which sums that are rounded once differ from those that are added rank by rank


def rounded(ranks):
    """Sums of numbers that are not exact, by each way to add, and losses of a model in BF16 that DDP trains."""
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        torch.manual_seed(3)
        whole, numbers, own = torch.randn(3001).to(dtype), torch.randn(ranks * 37).to(dtype), torch.zeros(37, dtype=dtype)
        dist.all_reduce(whole)
        SCATTER_WHOLE(own, numbers)
        found += [whole, own]
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).bfloat16()
    model, given = torch.nn.parallel.DistributedDataParallel(layers), torch.randn(8, 16).bfloat16()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(10):
        loss = (model(given).float() - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*found, losses]


def test_sums_round_rank_by_rank(tmp_path):
    """Eight gloo ranks with equal data have the digits of the emulated one, and its losses in BF16."""
    children = [_forked(tmp_path, MOST, rank, rounded) for rank in range(MOST)]
    with emulated(RunSettings(world_size=MOST, rank=0, real=(0,), system="dgx-h100")):
        dist.init_process_group("gloo")
        *mine, losses = rounded(MOST)
    assert not any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    *theirs, real_losses = torch.load(tmp_path / f"{MOST}.0", weights_only=False)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert losses == real_losses
    once = torch.randn(3001, generator=torch.Generator().manual_seed(3)).bfloat16() * MOST
    assert (once != mine[0]).float().mean() > 0.3  # of numbers that would have another last digit


def test_whole_weights_are_the_given_ones_but_for_what_this_rank_has_learnt():
    """Four ranks, 2 x 2 of FSDP2 and tensor parallelism: a quarter of the rows has moved, and the rest is the model that was divided."""
    with emulated(RunSettings(world_size=4, rank=3, real=(3,), system="dgx-h100")):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = torch.nn.Linear(4, 8, bias=False)
        given = model.weight.detach().clone()
        parallelize_module(model, mesh["tp"], ColwiseParallel())
        fully_shard(model, mesh=mesh["dp"])
        assert torch.equal(model.weight.full_tensor(), given)
        model(torch.ones(1, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        moved = (model.weight.full_tensor() != given).all(1)
        assert moved.nonzero().flatten().tolist() == [6, 7]


def test_sequence_parallel_layers_have_the_gradients_of_whole_ones():
    """Rows and tokens are alike, so each rank's parts are; what is gathered in the backward pass is still under way when it is used."""

    def layer():
        model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
        for one in model[1:]:
            torch.nn.init.constant_(one.weight, 0.5)
        return model

    given = torch.arange(4.0).expand(1, 2, 4)
    plain = layer()
    plain(given).square().sum().backward()
    with emulated(RunSettings(world_size=2, rank=1, real=(1,), system="dgx-h100")):
        dist.init_process_group("gloo")
        tp, model = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), layer()
        cuts = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel(output_layouts=Shard(1))}
        parallelize_module(model, tp, cuts)
        out = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.eye_(out.weight)
        parallelize_module(out, tp, ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False))
        out(model(given)).redistribute(placements=[Replicate()]).to_local().square().sum().backward()
        for name, one in model.named_parameters():
            torch.testing.assert_close(one.grad.full_tensor(), plain.get_parameter(name).grad, msg=name)
