"""A world of many ranks in one process: tensors without memory, collectives that complete at once, and what torch needs for both.

All that is changed in torch is changed back when the world is left, also after an error.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.attention import flex_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

import crossflow
from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.constants import LARGEST
from crossflow.evidence.torch.flexible import flexible
from crossflow.evidence.torch.ops import FusedKernels
from crossflow.evidence.torch.replicas import Replicated

_PACKAGES = {"site-packages", "dist-packages"}  # folders of installed packages, the second one of Debian
_MESH = ("__init__", "__getitem__", "_flatten", "_unflatten", "get_coordinate", "get_local_rank", "size")


@contextlib.contextmanager
def fake_world(size: int, number: int = 0) -> Iterator[contextlib.ExitStack]:
    """The rank of a `number` of a world of `size` ranks, with a process group, in which every tensor is fake; what is left with it."""
    if dist.is_initialized():
        raise CrossflowError("torch.distributed is already initialised in this process; import the model in a process of its own")
    rank = {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        stack.callback(setattr, sys, "excepthook", sys.excepthook)  # which a process group changes
        stack.enter_context(_quiet())
        stack.enter_context(_environment(rank))
        stack.enter_context(_imports())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)  # its kernels hide the products of a whole LSTM
        dist.init_process_group("fake", store=FakeStore(), rank=number, world_size=size)
        stack.callback(_leave)
        stack.enter_context(_replaced_everywhere(list(_changes())))
        for owner, name, value in _methods():
            stack.enter_context(_replaced(owner, name, value))
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # what was compiled before runs as it was written
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(FusedKernels())
        yield stack


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Collect what is left behind, groups and meshes that only cycles hold, without a look at all that was there before."""
    frozen = gc.get_freeze_count() > 0  # by the user
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if not frozen:
            gc.unfreeze()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of libraries about what only runs here, and no log of errors, which come as one sentence."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(torch|transformers)\.")
            yield
    finally:
        log.disabled = before


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _changes() -> Iterator[tuple[Any, Any]]:
    """Functions and classes of torch that are replaced, with what stands there while a world is there."""
    yield torch.nn.parallel.DistributedDataParallel, Replicated
    yield device_mesh.init_device_mesh, _unfaked(device_mesh.init_device_mesh)
    yield dist.init_process_group, lambda *_args, **_kwargs: None  # it is there
    yield dist.destroy_process_group, lambda *_args, **_kwargs: None
    yield torch.compile, _uncompiled  # what a compiler fuses is worked out from the record
    yield torch.export.load, _unfaked(torch.export.load)


def _methods() -> Iterator[tuple[Any, str, Any]]:
    """Methods of torch that are replaced: class, name, and what stands there while a world is there."""
    yield fake_tensor, "CONSTANT_NUMEL_LIMIT", LARGEST
    yield torch.nn.Module, "_apply", _converted
    yield FakeTensor, "__deepcopy__", _copied
    yield torch.export.ExportedProgram, "module", _unpacked(torch.export.ExportedProgram.module)
    yield torch.autocast, "__init__", _autocast(torch.autocast.__init__)
    yield flex_attention, "flex_attention_hop", flexible
    yield flex_attention, "_validate_device", lambda *_: None  # torch has no backward pass of it on the CPU, where tensors are here
    # Distributed tensors work out the shapes of whole tensors; no rank runs that.
    yield ShardingPropagator, "_propagate_tensor_meta_non_cached", _unfaked(ShardingPropagator._propagate_tensor_meta_non_cached)
    yield FSDPParam, "_get_grad_inner_tensor", _whole_gradient(FSDPParam._get_grad_inner_tensor)
    for name in _MESH:  # they compute with real tensors
        if hasattr(device_mesh.DeviceMesh, name):
            yield device_mesh.DeviceMesh, name, _unfaked(getattr(device_mesh.DeviceMesh, name))


@contextlib.contextmanager
def _replaced_everywhere(changes: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Other functions and classes in all modules that hold these, by whichever name, and back in those that hold them then."""
    _exchange(changes)
    try:
        yield
    finally:
        _exchange([(new, old) for old, new in changes])


def _exchange(changes: Sequence[tuple[Any, Any]]) -> None:
    new = {id(old): value for old, value in changes}
    for name, module in list(sys.modules.items()):
        held = dict(getattr(module, "__dict__", {}))
        if name.startswith("crossflow.") or new.keys().isdisjoint(map(id, held.values())):
            continue
        for key, value in held.items():
            if id(value) in new:
                setattr(module, key, new[id(value)])


def _uncompiled(model: Any = None, **_: Any) -> Any:
    """What `torch.compile` is given, or a decorator that leaves a function as it is."""
    return model if model is not None else lambda function: function


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    """What `copy.deepcopy` makes of a fake tensor; torch's own copy of a fake parameter does not share its memory with its views."""
    if id(tensor) not in memo:
        with torch.no_grad():
            new = tensor.detach().clone()
        parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(new, tensor.requires_grad) if parameter else new.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _unpacked(own: Any) -> Any:
    """`ExportedProgram.module`, which checks real tensors; its weights are fake afterwards."""

    def module(program: Any, *given: Any, **named: Any) -> Any:
        return _converted(_unfaked(own)(program, *given, **named), lambda one: one.detach().clone())

    return module


def _autocast(own: Any) -> Any:
    """`torch.autocast` of a GPU, where the import has tensors of the CPU, in the type that it has on a GPU."""

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        cuda = device_type == "cuda"
        own(self, "cpu" if cuda else device_type, torch.float16 if cuda and dtype is None else dtype, *args, **kwargs)

    return init


def _whole_gradient(own: Any) -> Any:
    """What FSDP2 reduces of a gradient; one that is divided, of a weight that tensor ranks have whole, is gathered first."""

    def of(parameter: Any, gradient: Any) -> Any:
        divided = isinstance(gradient, DTensor) and not parameter.is_dtensor
        return own(parameter, gradient.full_tensor() if divided else gradient)

    return of


def _converted(module: Any, convert: Any, recurse: bool = True) -> Any:
    """What `Module.to` and its like do: torch's own way cannot exchange fake weights. Shared weights stay shared, and keep what code has
    written on them.
    """
    made: dict[int, Any] = {}
    for part in module.modules() if recurse else (module,):
        for name, one in part._parameters.items():
            if one is None:
                continue
            with torch.no_grad():
                new = convert(one)
            if new is not one and id(one) not in made:
                made[id(one)] = torch.nn.Parameter(new, one.requires_grad)
                made[id(one)].__dict__ = vars(one) | vars(made[id(one)])  # its device and the like are its own
            part._parameters[name] = made.get(id(one), one)
        for name, one in part._buffers.items():
            part._buffers[name] = one if one is None else convert(one)
    return module


def _unfaked(function: Any) -> Any:
    """A function that computes with real tensors while all others are fake."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a class with another value, for a while."""
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _imports() -> Iterator[None]:
    """Forget the user's modules, whose tensors are fake, and the search path to them; those of installed packages stay.

    These lie in the paths of this interpreter, or of the one below it that an environment shares its packages with.
    """
    path, known, own = list(sys.path), set(sys.modules), Path(crossflow.__file__).parent
    installed = tuple(str(Path(place)) for place in {*sysconfig.get_paths().values(), str(own)})
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and not file.startswith(installed) and _PACKAGES.isdisjoint(Path(file).parts):
                del sys.modules[name]
