"""Weights in shards, as FSDP2 keeps them: which modules are gathered together, and along which dimension weights are cut."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.lists import blocks


@dataclass(frozen=True, kw_only=True)
class ShardUnits:
    """What else than the layers of a model is gathered by itself, or with the whole model, because of how its code uses weights.

    Attributes
    ----------
    apart : modules that are called while the layer that has them is not.
    whole : layers and modules, weights of which are used while they are not called; these are gathered with the whole model.
    outright : modules that would change the input of what is gathered in place, which torch refuses; they make a result of their own.
    """

    apart: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    outright: tuple[str, ...] = ()


def sharded(model: Any, mesh: Any, ranks: int, reduce: torch.dtype | None, outer: Mapping[str, int], units: ShardUnits) -> Any:
    """The model with its weights in shards over so many ranks of a mesh; gradients are reduced in a type of their own where one is given.

    `outer` has the stages of modules outside the blocks of a pipeline.
    """
    policy, cut = MixedPrecisionPolicy(reduce_dtype=reduce), functools.partial(_cut, ranks=ranks)
    scalars = {one for one in model.parameters() if one.dim() == 0}  # which FSDP2 does not shard
    shard = functools.partial(fully_shard, mesh=mesh, mp_policy=policy, shard_placement_fn=cut, ignored_params=scalars or None)
    whole = {model.get_submodule(name) for name in units.whole} | _tied(model)
    for name in units.outright:
        model.get_submodule(name).inplace = False
    for name in units.apart:
        _shard_types(model.get_submodule(name), shard)
        shard(model.get_submodule(name))
    for part in blocks(model):
        if part not in whole:
            _shard_types(part, shard)
            shard(_callable(part))
    for part in _of_stages(model, outer) if outer else _around(model):
        own = [one for one in part if one not in whole and not isinstance(one, FSDPModule)]
        if own:
            _shard_types(nn.ModuleList(own), shard)
            shard(own, reshard_after_forward=not outer)
    _shard_types(model, shard)
    shard(model, reshard_after_forward=None if outer else True)
    return model


def _callable(part: Any) -> Any:
    """A layer, or of one that is a dictionary or a list, which nobody calls, the modules in it: FSDP2 gathers these together too."""
    found, left = list[Any](), [part]
    while left:
        one = left.pop()
        left += reversed([*one.children()]) if isinstance(one, nn.ModuleDict | nn.ModuleList) else []
        found += [] if isinstance(one, nn.ModuleDict | nn.ModuleList | FSDPModule) else [one]
    return found if isinstance(part, nn.ModuleDict | nn.ModuleList) else part


class _Uses(TorchFunctionMode):
    """Sees which weights are used while the unit that has them is not called, and which modules are called so."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.names = {one: name for name, one in model.named_modules()}
        self._unit = {one: block for block in blocks(model) for one in block.modules()}
        self._unit |= {one: part for parts in _around(model) for part in parts for one in part.modules()}
        self._owner = {id(one): module for module in model.modules() for one in module.parameters(recurse=False)}
        self._stack: list[tuple[Any, set[int]]] = []  # modules that are being called, with their inputs
        self.apart, self.whole, self.outright = (dict[str, None]() for _ in range(3))
        self._hooks = [hook for one in model.modules() for hook in (
            one.register_forward_pre_hook(self._open, with_kwargs=True), one.register_forward_hook(self._close, always_call=True),
        )]  # fmt: skip

    def __exit__(self, *error: Any) -> Any:
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*error)

    def _called(self, module: Any) -> bool:
        return any(one is module for one, _ in self._stack)

    def _open(self, module: Any, args: Any, kwargs: Any) -> None:
        unit = self._unit.get(module)
        inputs = {id(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        inside = any(self._unit.get(one) is unit for one, _ in self._stack)
        if unit is not None and module is not unit and not inside and next(module.parameters(), None) is not None:
            self.apart[self.names[module]] = None
        gathered = [given for one, given in self._stack if one is self._unit.get(one)] + [given for _, given in self._stack[:1]]
        if getattr(module, "inplace", False) and (module is unit or any(not inputs.isdisjoint(given) for given in gathered)):
            self.outright[self.names[module]] = None
        self._stack.append((module, inputs))

    def _close(self, *_: Any) -> None:
        self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch calls it; what gives no tensor asks for sizes and the like."""
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__" and any(isinstance(one, torch.Tensor) for one in tree_leaves(out)):
            for one in tree_leaves((args, kwargs)):
                unit = self._unit.get(self._owner.get(id(one)))
                if unit is not None and not any(self._unit.get(module) is unit for module, _ in self._stack):
                    self.whole[self.names[unit]] = None
        return out


def units_of(model: Any, args: Any, kwargs: Any) -> ShardUnits:
    """How the code of a model uses its weights, from a forward pass."""
    with _Uses(model) as uses:
        model(*args, **kwargs)
    apart = tuple(name for name in uses.apart if name not in uses.whole)
    return ShardUnits(apart=apart, whole=tuple(uses.whole), outright=tuple(uses.outright))


def _tied(model: Any) -> set[Any]:
    """Layers of which other layers, or modules outside of them, have weights too, as heads behind each layer of a detector: FSDP2 shards
    weights once, so the whole model gathers these.
    """

    def holders(part: Any) -> Counter[int]:
        return Counter(id(weight) for one in part.modules() for weight in one.parameters(recurse=False))

    every = holders(model)
    return {part for part in blocks(model) if any(every[weight] > many for weight, many in holders(part).items())}


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
            elif not layers.isdisjoint(one.modules()) or isinstance(one, nn.ModuleList | nn.ModuleDict):  # which nobody calls
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
