"""Parallelism of a model by torch's own means: DistributedDataParallel, FSDP2, and tensor parallelism by DTensor."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, loss_parallel, parallelize_module

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.torch.replicas import Replicated

WORDS = ("ddp", "fsdp", "fsdp2", "hsdp", "tp", "pp")
# Names of the last matrix of an attention or an MLP, which is cut by rows.
_ROWS = frozenset({
    "o", "o_proj", "out_proj", "wo", "w_o", "proj", "c_proj", "dense", "out", "output", "out_lin", "lin2", "fc2", "linear2", "w2", "down",
    "down_proj", "dense_4h_to_h", "proj_out", "fc_out", "wo_proj",
})  # fmt: skip

# Attributes of attention: its heads, and those of keys and values.
_HEADS = (
    "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "num_key_value_heads", "num_kv_heads", "n_kv_heads",
    "kv_heads",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many ranks share what.

    Attributes
    ----------
    data : "", ddp or fsdp.
    shards, replicas : ranks among which weights are sharded, and groups of these; of ddp all are replicas. [1]
    tensor : ranks that share every layer. [1]
    stages : of a pipeline; the others are of one stage. [1]
    """

    data: str
    shards: int
    replicas: int
    tensor: int
    stages: int = 1

    @property
    def axes(self) -> Mapping[str, int]:
        """Ranks along each axis, nearest neighbours first; the stages of a pipeline lie outside of them."""
        return {"tp": self.tensor, "fsdp": self.shards, "dp": self.replicas}

    @property
    def whole(self) -> str:
        """Name of the axis of all ranks."""
        return "tp" if self.tensor > 1 else "dp" if self.data == "ddp" else "fsdp"


def read(text: str, ranks: int) -> Parallelism | None:
    """Parallelism of a text such as ``tp=8,fsdp``, on so many ranks; None where it is empty.

    Raises
    ------
    CrossflowError
        Where a word is unknown, or its numbers do not divide the ranks.
    """
    if not text.strip():
        return None
    given = [_word(one) for one in text.split(",")]
    words = dict(given)
    if len(words) < len(given):
        raise CrossflowError(f"--parallel {text}: a word is given twice")
    tensor, stages = words.get("tp") or 1, words.get("pp") or 1
    data = [word for word in words if word not in ("tp", "pp")]
    if len(data) > 1:
        raise CrossflowError(f"--parallel {text}: {' and '.join(data)} exclude each other; give one of them")
    for word, size in (("tp", tensor), ("pp", stages), ("tp x pp", tensor * stages)):
        if ranks % size:
            raise CrossflowError(f"--parallel {text}: {word} = {size} does not divide the world of {ranks} ranks")
    left, shards = ranks // (tensor * stages), 1
    if data and data[0] != "ddp":
        shards = words[data[0]] or (math.gcd(left, 8) if data[0] == "hsdp" else left)
        if left % shards or (data[0] == "fsdp" and shards != left):
            raise CrossflowError(
                f"--parallel {text}: {shards} shards do not fill the {left} ranks beside tp; `hsdp=K` shards over K of them"
            )
    if not data and left > 1:
        raise CrossflowError(
            f"--parallel {text}: it leaves {left} of {ranks} ranks without work; add ddp or fsdp, or take a world of {tensor * stages}"
        )
    return Parallelism(
        data="" if not data else "ddp" if data[0] == "ddp" else "fsdp", shards=shards, replicas=left // shards,
        tensor=tensor, stages=stages,
    )  # fmt: skip


def _word(text: str) -> tuple[str, int | None]:
    name, mark, number = text.strip().partition("=")
    if name not in WORDS:
        raise CrossflowError(f"--parallel: expected words among {', '.join(WORDS)}, got '{name}'{did_you_mean(name, WORDS)}")
    if (mark and (not number.isdecimal() or int(number) < 1)) or (name in ("tp", "pp")) > bool(mark) or (mark and name == "ddp"):
        expected = f"{name}=8" if name in ("tp", "pp") else "ddp" if name == "ddp" else f"{name} or {name}=8"
        raise CrossflowError(f"--parallel: expected {expected}, got '{text.strip()}'")
    return name.replace("fsdp2", "fsdp"), int(number) if mark else None


def parallelized(model: Any, plan: Parallelism, reduce: torch.dtype | None, outer: Mapping[str, int]) -> Any:
    """The model as a plan divides it, on the ranks of this world; gradients are reduced in a type of their own where one is given.

    `outer` has the stages of modules outside the blocks of a pipeline. Those of a stage are one group of shards, which stays gathered after
    a forward pass as the outermost one of every stage does.
    """
    if plan.tensor > 1:
        _divide(model, _mesh((plan.replicas * plan.shards, plan.tensor), ("data", "tp"))["tp"])
    if plan.data == "ddp" and plan.replicas > 1:
        mesh = _mesh((plan.replicas, plan.tensor), ("dp", "tp"))["dp"]
        # Replicas of a stage send no buffers: torch.distributed.pipelining runs their forward passes without synchronising.
        return Replicated(model, device_mesh=mesh, broadcast_buffers=plan.stages == 1, gradient_as_bucket_view=True, reduce_dtype=reduce)
    if plan.data == "fsdp" and plan.replicas * plan.shards > 1:
        sizes, names = (plan.replicas, plan.shards, plan.tensor), ("dp", "fsdp", "tp")
        mesh = _mesh(sizes, names)
        mesh = mesh["dp", "fsdp"] if plan.replicas > 1 else mesh["fsdp"]
        policy, cut = MixedPrecisionPolicy(reduce_dtype=reduce), functools.partial(_cut, ranks=plan.shards)
        whole = {one for one in model.parameters() if one.dim() == 0}  # scalars, which FSDP2 does not shard
        shard = functools.partial(fully_shard, mesh=mesh, mp_policy=policy, shard_placement_fn=cut, ignored_params=whole or None)
        for part in blocks(model):
            _shard_types(part, shard)
            shard(part)
        for part in _of_stages(model, outer) if outer else _around(model):
            _shard_types(nn.ModuleList(part), shard)
            shard(part, reshard_after_forward=not outer)
        _shard_types(model, shard)
        shard(model, reshard_after_forward=None if outer else True)
    return model


def _shard_types(part: Any, shard: Callable[[Any], Any]) -> None:
    """Shard modules of a part whose weights have another type than most of it, such as a router in fp32, each by itself: FSDP2 gathers
    weights of one type together.

    Raises
    ------
    CrossflowError
        For a module that has weights of several types itself.
    """
    own = list(_unsharded(part))
    sizes = Counter[torch.dtype]()
    for _, weight in own:
        sizes[weight.dtype] += weight.numel()
    if len(sizes) < 2:
        return
    usual = max(sizes, key=lambda dtype: sizes[dtype])
    for module in dict.fromkeys(module for module, weight in own if weight.dtype != usual):
        if len({weight.dtype for weight in module.parameters()}) > 1:
            types = " and ".join(sorted({str(weight.dtype).removeprefix("torch.") for weight in module.parameters()}))
            raise CrossflowError(
                f"--parallel fsdp2: {type(module).__name__} has weights of several types ({types}), which FSDP2 does not shard together; "
                "convert the model to one type, or put the others into a module of their own"
            )
        shard(module)


def _unsharded(part: Any) -> Iterator[tuple[Any, Any]]:
    """Weights of a part outside the modules that are sharded by themselves, each with its module."""
    for weight in part.parameters(recurse=False):
        if weight.dim():
            yield part, weight
    for one in part.children():
        if not isinstance(one, FSDPModule):
            yield from _unsharded(one)


def _of_stages(model: Any, outer: Mapping[str, int]) -> list[list[Any]]:
    """Modules of every stage of a pipeline outside its blocks, each sharded as one."""
    inside, found = {one for block in blocks(model) for one in block.modules()}, []
    for stage in sorted({*outer.values()}):
        own = [name for name, place in outer.items() if place == stage and not any(_inside(name, other) for other in outer)]
        found.append([one for name in own if (one := model.get_submodule(name)) not in inside])
    return found


def _inside(name: str, other: str) -> bool:
    return name.startswith(f"{other}.")


@contextlib.contextmanager
def microbatch(model: Any) -> Iterator[None]:
    """Have shards add up the gradients of a microbatch of a pipeline, and not reduce them."""
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_is_last_backward(False)
    model.set_requires_gradient_sync(False)
    yield
    fully_shard.state(model)._comm_ctx.post_forward_order.clear()  # the next one gathers nothing of this one ahead


def reduce_shards(model: Any) -> None:
    """Reduce the gradients of all shards at once, as `torch.distributed.pipelining` does after the last microbatch [1]_.

    References
    ----------
    .. [1] `perform_reduce_grad` in torch/distributed/pipelining/stage.py, torch 2.13.
    """
    if not isinstance(model, FSDPModule):
        return
    model.set_is_last_backward(True)
    model.set_requires_gradient_sync(True)
    state = fully_shard.state(model)
    for one in state._state_ctx.all_states:
        for group in one._fsdp_param_groups:
            group.post_backward()
    state._root_post_backward_final_callback()


def _around(model: Any) -> list[list[Any]]:
    """Modules before the layers of a model and those after them, each sharded as one; none where both share a table."""
    layers, found = set(blocks(model)), tuple[list[Any], list[Any]](([], []))

    def walk(module: Any, after: bool) -> bool:
        for one in module.children():
            if one in layers:
                after = True
            elif not layers.isdisjoint(one.modules()):
                after = walk(one, after)
            elif next(one.parameters(), None) is not None:
                found[after].append(one)
        return after

    walk(model, after=False)
    before, behind = ({id(weight) for one in part for weight in one.parameters()} for part in found)
    return [part for part in found if part] if layers and before.isdisjoint(behind) else []


def _cut(weight: Any, ranks: int) -> Shard | None:
    """The dimension along which a weight is sharded: the first, or where that is shorter than the ranks are many, as of a few experts, one
    that they divide.
    """
    if isinstance(weight, DTensor) or weight.dim() == 0 or weight.shape[0] >= ranks:
        return None
    return next((Shard(i) for i, size in enumerate(weight.shape) if size % ranks == 0), None)


def _mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return torch.distributed.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=names)


def blocks(model: Any) -> list[Any]:
    """Layers of a model that are sharded each by itself: those of its lists."""
    return [one for layers in lists(model) for one in layers]


def lists(model: Any) -> list[list[Any]]:
    """Lists of layers of a model: its outermost lists with several modules of one kind with weights, and these modules."""
    found = list[list[Any]]()
    for module in model.modules():
        inner = isinstance(module, nn.ModuleList | nn.Sequential)
        if inner and not any(module in set(one.modules()) for layers in found for one in layers):
            kinds = Counter(
                type(one) for one in module if next(one.parameters(), None) is not None and next(one.children(), None) is not None
            )
            found.append([one for one in module if kinds[type(one)] > 1])
    return found


# -------------------------------------------------------------------------------------------- tensor parallelism


class _Columns(ColwiseParallel):
    """A matrix cut by columns. Those that read one tensor share it as a distributed one, so that its gradient is summed once."""

    @staticmethod
    def _prepare_input_fn(_given: Any, _desired: Any, _module: Any, inputs: Any, device_mesh: Any) -> Any:
        given = inputs[0]
        if isinstance(given, DTensor):
            return given
        shared = getattr(given, "_crossflow_shared", None)
        if shared is None:
            shared = DTensor.from_local(given, device_mesh, (Replicate(),), run_check=False)
            given._crossflow_shared = shared
        return shared


def _divide(model: Any, mesh: Any) -> None:
    """Cut the layers of a model over a mesh: as its own plan says, or by names; and its table and head by the vocabulary."""
    tied, own = _tied(model), _own_plan(model)
    plan = dict(_plan_by_name(model) if own is None else own)
    columns = [name for name, style in plan.items() if isinstance(style, _Columns)]
    if not any(name in plan for name in tied):  # a table that is a matrix of the model's plan stays whole
        plan |= _vocabulary(model, mesh.size())
    if not any(isinstance(style, RowwiseParallel) for style in plan.values()):
        raise CrossflowError(
            f"--parallel tp: {type(model).__name__} has no layers with a known plan; call parallelize_module in the function instead"
        )
    ranks = mesh.size()
    for name, style in plan.items():
        module = model.get_submodule(name)
        whole = module.weight.shape[0 if isinstance(style, ColwiseParallel) else 1]
        if whole % ranks and not isinstance(module, nn.Embedding):
            raise CrossflowError(f"--parallel tp={ranks}: {name} has {whole} rows or columns to divide, which {ranks} does not divide")
        parallelize_module(module, mesh, style)
    if own is None:
        _share_heads(model, columns, ranks)
    for name in tied:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, model.get_parameter(tied[name]))


def _share_heads(model: Any, columns: Iterable[str], ranks: int) -> None:
    """Tell the modules of matrices that are cut by columns how many heads are left, by whichever name they know their number.

    Plans of models of transformers need it not: their code works out the heads from the width. Other code would cut its tokens instead.
    """
    for owner in dict.fromkeys(name.rpartition(".")[0] for name in columns):
        module = model.get_submodule(owner)
        for name in _HEADS:
            heads = vars(module).get(name)
            if type(heads) is int and heads % ranks == 0:
                setattr(module, name, heads // ranks)


def _vocabulary(model: Any, ranks: int) -> dict[str, ParallelStyle]:
    """The largest table of embeddings and the head of as many words, cut by the vocabulary where the ranks divide it."""
    inside = {id(one) for block in blocks(model) for one in block.modules()}
    outside = [(name, one) for name, one in model.named_modules() if id(one) not in inside]
    tables = [(one.num_embeddings, name) for name, one in outside if isinstance(one, nn.Embedding)]
    words, table = max(tables, default=(1, ""))
    same = [name for name, one in outside if isinstance(one, nn.Embedding) and one.weight is model.get_submodule(table).weight]
    heads = [name for name, one in outside if isinstance(one, nn.Linear) and one.out_features == words]
    if words % ranks or not heads:
        return {}
    found: dict[str, ParallelStyle] = {name: RowwiseParallel(input_layouts=Replicate()) for name in same}
    return {**found, heads[-1]: _Columns(output_layouts=Shard(-1), use_local_output=False)}


@contextlib.contextmanager
def divided_loss(plan: Parallelism | None) -> Iterator[None]:
    """What a step needs whose logits are divided by the vocabulary: their loss sums over the ranks."""
    if plan is None or plan.tensor == 1:
        yield
        return
    with loss_parallel(), implicit_replication():
        yield


def _tied(model: Any) -> Mapping[str, str]:
    """Names of parameters that are others by another name, with the first name of each."""
    first: dict[int, str] = {}
    found = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(one), name) != name:
            found[name] = first[id(one)]
    return found


def _own_plan(model: Any) -> Iterator[tuple[str, ParallelStyle]] | None:
    """The plan that a model of transformers or diffusers carries, for its matrices."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not plan:
        return None
    return ((name, style) for name, style in _named(model, plan))


def _named(model: Any, plan: Mapping[str, Any]) -> Iterator[tuple[str, ParallelStyle]]:
    inside = {id(one) for block in blocks(model) for one in block.modules()}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        style = _word_of(next((style for pattern, style in plan.items() if fnmatch.fnmatch(name, pattern) or name == pattern), ""))
        whole = "rep" in style or "gather" in style or "split" in style  # between the two the result is on every rank
        if isinstance(module, nn.Linear) and style.startswith("colwise") and (id(module) in inside or not whole):
            yield name, ColwiseParallel(output_layouts=Replicate()) if whole else _Columns()
        elif isinstance(module, nn.Linear) and style.startswith("rowwise"):
            yield name, RowwiseParallel(input_layouts=Replicate()) if whole else RowwiseParallel()


def _word_of(style: Any) -> str:
    """The word for a style of a plan. A style of several matrices in one, which is no word, cuts each of them as the word says."""
    kind = type(style).__name__.lower()
    return style if isinstance(style, str) else next((word for word in ("colwise", "rowwise") if word in kind), "")


def _plan_by_name(model: Any) -> Iterator[tuple[str, ParallelStyle]]:
    """Matrices of the blocks: by rows where they end an attention or an MLP, as they narrow or by their name, by columns elsewhere."""
    names = {id(module): name for name, module in model.named_modules()}
    for block in blocks(model):
        inside = [(f"{names[id(block)]}.{name}", one) for name, one in block.named_modules() if isinstance(one, nn.Linear)]
        for name, one in inside:
            ends = name.rpartition(".")[2] in _ROWS and one.out_features == one.in_features
            yield name, RowwiseParallel() if ends or one.out_features < one.in_features else _Columns()
