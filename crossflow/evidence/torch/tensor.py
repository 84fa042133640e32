"""Layers over tensor ranks by DTensor: which matrices are cut, and how."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, loss_parallel, parallelize_module

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.lists import blocks

# Names of the last matrix of an attention or an MLP, which is cut by rows.
_ROWS = frozenset({
    "o", "o_proj", "out_proj", "wo", "w_o", "proj", "c_proj", "dense", "out", "output", "out_lin", "lin2", "fc2", "linear2", "w2", "down",
    "down_proj", "dense_4h_to_h", "proj_out", "fc_out", "wo_proj", "to_out", "to_add_out",
})  # fmt: skip

# Names of the matrices of keys and values, which are cut by columns also where groups of heads share them, so that they narrow.
_KEYS = frozenset({"k", "v", "k_proj", "v_proj", "wk", "wv", "w_k", "w_v", "key", "value", "k_lin", "v_lin", "to_k", "to_v"})

# Attributes of attention: its heads, and those of keys and values.
_HEADS = (
    "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "num_key_value_heads", "num_kv_heads", "n_kv_heads",
    "kv_heads",
)  # fmt: skip


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


class _OwnTensor(torch.autograd.Function):
    """What a divided matrix gives, as a tensor of its own: DTensor's is a view, which code that changes it in place may not change."""

    @staticmethod
    def forward(_ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.data

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@dataclass(frozen=True, kw_only=True)
class TensorCuts:
    """Which groups of matrices are divided.

    Attributes
    ----------
    groups : kinds of groups that are; the others stay whole on all ranks.
    widths : those of them whose code also knows widths by number, which are divided with its heads.
    gathered : those of them whose matrices each give and take whole tensors, so that the code between them sees no division.
    """

    groups: frozenset[str]
    widths: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()


class IndivisibleError(CrossflowError):
    """Sizes that the ranks do not divide."""


VOCABULARY = "vocabulary"  # kind of the table and the head
LIBRARY = "experts and norms"  # kind of what the library divides that a model comes from
# Styles of transformers for what is no matrix of its own, such as weights of experts and norms of the heads of a rank [1]_.
#
# .. [1] transformers/distributed/tensor_parallel.py, transformers 5.24.
_OTHERS = frozenset({
    "packed_colwise", "packed_rowwise", "moe_tp_experts", "moe_identity_expert", "replicated_with_grad_allreduce", "mla_kv_a_proj",
    "local_params", "all_reduce",
})  # fmt: skip


def groups(model: Any, ranks: int) -> list[str]:
    """Kinds of groups of matrices that ranks may divide each without the others: the same matrices of all layers, and the vocabulary."""
    others = [LIBRARY] if _by_library(model) else []
    return [*_grouped(model, _styles(model)), *others, *([VOCABULARY] if _vocabulary(model, ranks) else [])]


def _grouped(model: Any, plan: Mapping[str, ParallelStyle]) -> Mapping[str, list[tuple[str, ParallelStyle]]]:
    """Matrices of a plan by the kind of their group: those cut by columns and the one by rows that ends them, as they stand in a layer."""
    found: dict[str, list[tuple[str, ParallelStyle]]] = {}
    own, where = list[tuple[str, ParallelStyle]](), ""
    names = {id(one): name for name, one in model.named_modules()}
    layer = {f"{names[id(block)]}.{name}": names[id(block)] for block in blocks(model) for name, _ in block.named_modules()}
    for name, style in _rows_last(plan):
        if layer.get(name, "") != where:
            own, where = [], layer.get(name, "")
        own.append((name, style))
        if isinstance(style, RowwiseParallel):
            found.setdefault(_kind(own), []).extend(own)
            own = []
    return found


def _rows_last(plan: Mapping[str, ParallelStyle]) -> Iterator[tuple[str, ParallelStyle]]:
    """A plan with the one matrix of a module that is cut by rows behind the others: an MLP of Llama has w1, w2 and w3, and w2 ends it."""
    for _, run in itertools.groupby(plan.items(), key=lambda one: one[0].rpartition(".")[0]):
        own = list(run)
        rows = [isinstance(style, RowwiseParallel) for _, style in own]
        yield from sorted(own, key=lambda one: isinstance(one[1], RowwiseParallel)) if sum(rows) == 1 else own


def _kind(own: Iterable[tuple[str, ParallelStyle]]) -> str:
    """Names of the matrices of a group without numbers of layers."""
    return " ".join(".".join("*" if word.isdecimal() else word for word in name.split(".")) for name, _ in own)


def _whole(style: ParallelStyle) -> ParallelStyle:
    """The same cut of a matrix that takes a whole tensor and gives one."""
    if isinstance(style, ColwiseParallel):
        return ColwiseParallel(output_layouts=Replicate())
    return RowwiseParallel(input_layouts=Replicate())


def _divided_size(module: Any, style: ParallelStyle) -> int:
    return int(module.weight.shape[0 if isinstance(style, ColwiseParallel) else 1])


def _styles(model: Any) -> dict[str, ParallelStyle]:
    own = _own_plan(model)
    return dict(_plan_by_name(model) if own is None else own)


def divide(model: Any, mesh: Any, cuts: TensorCuts | None = None) -> None:
    """Cut the layers of a model over a mesh: as its own plan says, or by names; and its table and head by the vocabulary."""
    tied, plan, ranks, by_name = _tied(model), _styles(model), mesh.size(), _own_plan(model) is None
    wide, seen_whole = set[str](), set[str]()  # the latter are modules whose code sees whole tensors of some of its matrices
    if cuts is not None:
        kept = {kind: own for kind, own in _grouped(model, plan).items() if kind in cuts.groups}
        plan = {name: style for own in kept.values() for name, style in own}
        wide = {name for kind, own in kept.items() if kind in cuts.widths for name, _ in own}
        gathered = {name: _whole(style) for kind, own in kept.items() if kind in cuts.gathered for name, style in own}
        seen_whole = {name.rpartition(".")[0] for name in gathered}
        plan |= gathered
    columns = {name: _divided_size(model.get_submodule(name), style) for name, style in plan.items() if isinstance(style, _Columns)}
    # A table that is a matrix of the model's plan stays whole.
    if not any(name in plan for names in tied for name in names[1:]) and (cuts is None or VOCABULARY in cuts.groups):
        plan |= _vocabulary(model, ranks)
    if not any(isinstance(style, RowwiseParallel) for style in plan.values()):
        raise CrossflowError(
            f"--parallel tp: {type(model).__name__} has no layers with a known plan; call parallelize_module in the function instead"
        )
    for name, style in plan.items():
        module = model.get_submodule(name)
        whole = _divided_size(module, style)
        if whole % ranks and not isinstance(module, nn.Embedding):
            raise IndivisibleError(f"--parallel tp={ranks}: {name} has {whole} rows or columns to divide, which {ranks} does not divide")
        parallelize_module(module, mesh, style)
        if cuts is not None:
            module.register_forward_hook(lambda _module, _given, out: out if isinstance(out, DTensor) else _OwnTensor.apply(out))
    if cuts is None or LIBRARY in cuts.groups:
        _divide_by_library(model, mesh)
    if by_name or cuts is not None:
        columns = {name: size for name, size in columns.items() if name.rpartition(".")[0] not in seen_whole}
        _share_heads(model, columns, ranks)
        _share_widths(model, {name: size for name, size in columns.items() if name in wide}, ranks)
    for names in tied:
        own = [model.get_parameter(name) for name in names]
        kept_ = next((one for one in own if isinstance(one, DTensor)), own[0])
        for name in names:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, kept_)


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


def _share_widths(model: Any, columns: Mapping[str, int], ranks: int) -> None:
    """Tell the modules of matrices that are cut by columns, and the modules around them in a layer, the widths that are left: numbers
    that are the columns of a matrix, or of one of the two or three that stand in one, such as those of queries, keys and values.
    """
    found: dict[int, tuple[Any, set[int]]] = {}
    for name, whole in columns.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        found.setdefault(id(owner), (owner, set()))[1].update(whole // parts for parts in (1, 2, 3) if whole % parts == 0)
    for owner, widths in found.values():
        for name, value in list(vars(owner).items()):
            if type(value) is int and value in widths and value % ranks == 0 and name not in _HEADS:
                setattr(owner, name, value // ranks)


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
def divided_loss(ranks: int) -> Iterator[None]:
    """What a step needs whose logits are divided by the vocabulary: their loss sums over the ranks."""
    if ranks == 1:
        yield
        return
    with loss_parallel(), implicit_replication():
        yield


def _tied(model: Any) -> list[list[str]]:
    """Names of each parameter that has several."""
    found: dict[int, list[str]] = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(one), []).append(name)
    return [names for names in found.values() if len(names) > 1]


def _own_plan(model: Any) -> Iterator[tuple[str, ParallelStyle]] | None:
    """The plan that a model of transformers or diffusers carries, for its matrices."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None)
    if not plan:
        return None
    return ((name, style) for name, style in _named(model, plan))


def _by_library(model: Any) -> Mapping[str, str]:
    """What a model of transformers divides over tensor ranks beside its matrices, by its style: weights of experts, and what they and the
    heads of a rank need so that gradients are whole.
    """
    if not hasattr(model, "_expand_parallel_plan") or not getattr(model, "tp_plan", None):
        return {}
    weights = {name for name, _ in model.named_parameters()}
    matrices = {name for name, one in model.named_modules() if isinstance(one, nn.Linear | nn.Embedding)}
    found = model._expand_parallel_plan(model.tp_plan).items()
    return {
        name: style
        for name, style in found
        if style in _OTHERS or (isinstance(style, str) and name in weights and name.rpartition(".")[0] not in matrices)
    }


def _divide_by_library(model: Any, mesh: Any) -> None:
    """Have transformers divide what it has a style of its own for."""
    styles = _by_library(model)
    if styles:
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism

        apply_tensor_parallelism(model, mesh, styles)


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


def _own_name(path: str) -> str:
    """The last word of a path that is no number: a matrix that stands in a list of its own has the name of the list."""
    return next((word for word in reversed(path.split(".")) if not word.isdecimal()), "")


def _plan_by_name(model: Any) -> Iterator[tuple[str, ParallelStyle]]:
    """Matrices of the blocks: by rows where they end an attention or an MLP, as they narrow or by their name, by columns elsewhere.

    Those of keys and values that groups of heads share narrow, and end nothing.
    """
    names = {id(module): name for name, module in model.named_modules()}
    for block in blocks(model):
        inside = [(f"{names[id(block)]}.{name}", one) for name, one in block.named_modules() if isinstance(one, nn.Linear)]
        for name, one in inside:
            own = _own_name(name)
            ends = own in _ROWS and one.out_features == one.in_features
            narrows = one.out_features < one.in_features and own not in _KEYS
            yield name, RowwiseParallel() if ends or narrows else _Columns()
