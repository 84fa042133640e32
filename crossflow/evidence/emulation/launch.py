"""Runs a training script with process groups that emulate the other ranks, or that note what real ones do; the script stays as it is."""

from __future__ import annotations

import contextlib
import functools
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.tensor import _api as tensor_api
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor.parallel import style
from torch.optim.optimizer import register_optimizer_step_post_hook

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.checkpoints import CheckpointPlans
from crossflow.evidence.emulation.meeting import Meets
from crossflow.evidence.emulation.process_group import EmulatedGroup, GradientWaits, Runtime
from crossflow.evidence.emulation.processes import RunSettings
from crossflow.evidence.emulation.real_group import NotedGroup, RealRuntime
from crossflow.evidence.emulation.record import CallRecorder
from crossflow.evidence.emulation.shards import DistributedTensors
from crossflow.evidence.emulation.spawned import BY_AGENT, SpawnedRanks
from crossflow.evidence.emulation.standstill import StandstillWatch
from crossflow.evidence.emulation.store import SharedStore

BACKEND = "crossflow"
PIPELINING = "torch.distributed.pipelining"
CONSOLIDATES = (
    "the script consolidates the state of a ZeroRedundancyOptimizer, of which emulated ranks have their parts; save the state of each rank "
    "(optimizer.optim.state_dict()), or leave it out"
)
UNKNOWN_SHAPES = (
    "a pipeline stage asks an emulated rank for shapes, which are not known; give PipelineStage input_args and output_args, tensors of a "
    "microbatch (with requires_grad where it trains), so that it need not ask, or let the first stage be the real one"
)


@contextlib.contextmanager
def emulated(settings: RunSettings) -> Iterator[CallRecorder]:
    """Emulate the other ranks in this process; all of torch is as before on exit.

    Parameters
    ----------
    settings : the world, its delays and the rank that this process is.

    Returns
    -------
    CallRecorder
        Which notes every collective.
    """
    recorder = CallRecorder(rank=settings.rank, keeps=settings.keeps)
    delays = settings.delays_()
    with contextlib.ExitStack() as undo:
        watch = None
        if settings.meeting:
            meets = Meets(rank=settings.rank, address=settings.meeting)
            undo.callback(meets.close)
            watch = StandstillWatch(meets=meets)
        runtime = Runtime(delays=delays, recorder=recorder, real=settings.real, watch=watch)
        undo.callback(runtime.close)
        _register(undo, runtime)
        for module, name, made in _replacements(settings, runtime):
            _replace(undo, module, name, made(getattr(module, name)))
        undo.callback(register_optimizer_step_post_hook(_Steps(recorder)).remove)
        undo.callback(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
        yield recorder


@contextlib.contextmanager
def observed(settings: RunSettings) -> Iterator[CallRecorder]:
    """Note what this process calls on its real network; on exit torch is as before, but for groups that the script has not destroyed.

    Parameters
    ----------
    settings : the rank that this process is.

    Returns
    -------
    CallRecorder
        Which notes every collective, and how long it took.
    """
    recorder = CallRecorder(rank=settings.rank, keeps=settings.keeps, host=platform.node() or "localhost")
    runtime = RealRuntime(recorder=recorder)
    with contextlib.ExitStack() as undo:
        _replace(undo, c10d, "ProcessGroup", type("ProcessGroup", (NotedGroup,), {"runtime": runtime}))
        for module, name, made in _engines(runtime):
            _replace(undo, module, name, made(getattr(module, name)))
        undo.callback(register_optimizer_step_post_hook(_Steps(recorder)).remove)
        yield recorder


class _Steps:
    """Notes every step of the first optimizer."""

    def __init__(self, recorder: CallRecorder) -> None:
        self.recorder, self.first = recorder, 0

    def __call__(self, optimizer: object, *_: Any) -> None:
        self.first = self.first or id(optimizer)
        if id(optimizer) == self.first:
            self.recorder.marked("optimizer", time.perf_counter())


def _replace(undo: contextlib.ExitStack, module: Any, name: str, value: Any) -> None:
    undo.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)


def _register(undo: contextlib.ExitStack, runtime: Runtime) -> None:
    """Make the backend known to torch, for as long as it is used."""

    def create(options: Any, _: Any) -> EmulatedGroup:
        members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        return EmulatedGroup(options.group_rank, members, runtime, options.group_id, options.timeout.total_seconds())

    lists = (dist.Backend.backend_type_map, dist.Backend.backend_capability, dist.Backend._plugins)
    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    for known, key in zip(lists, (BACKEND, BACKEND, BACKEND.upper()), strict=True):
        undo.callback(known.pop, key, None)
    undo.callback(dist.Backend.backend_list.remove, BACKEND)
    undo.callback(delattr, dist.Backend, BACKEND.upper())


Maker = Callable[[Any], Any]


def _replacements(settings: RunSettings, runtime: Runtime) -> Iterator[tuple[Any, str, Maker]]:
    """Functions of torch that are replaced, and what makes the new one of the old one."""
    yield c10d, "_new_process_group_helper", _groups
    spawned = SpawnedRanks(settings.rank, settings.world_size, runtime.recorder)

    stores: list[SharedStore] = []  # torch keeps stores in C++, which does not keep what they are in Python

    def store(*_: Any, **__: Any) -> SharedStore:
        if _of(sys._getframe(1), "torch.distributed.elastic"):
            raise spawned.refused(BY_AGENT)
        stores.append(SharedStore(settings.rank, settings.world_size, spawned.refused))
        return stores[-1]

    yield dist, "broadcast", lambda old: _broadcasting(old, settings, spawned.refused)
    yield c10d, "rendezvous", lambda _: _rendezvous(settings, store)
    for module in (c10d, dist):
        yield module, "init_process_group", lambda old: _initialised(old, settings)
        for name in ("all_gather_object", "gather_object", "send_object_list"):
            yield module, name, functools.partial(_exchanged, runtime)
        for name, place, instead in (("broadcast_object_list", 1, _barrier), ("scatter_object_list", 2, _barrier)):
            yield module, name, functools.partial(_objects_of, place, settings, runtime, instead)
        yield module, "recv_object_list", functools.partial(_objects_of, 1, settings, runtime, _message)
    for name in ("TCPStore", "FileStore"):
        yield dist, name, lambda _: store
    yield _fsdp_param.FSDPParam, "_init_sharded_param", runtime.shards.dividing
    tensors = DistributedTensors(shards=runtime.shards)
    for module in (torch.distributed.tensor, tensor_api, style):
        yield module, "distribute_tensor", tensors.distributing
    yield _redistribute, "redistribute_local_tensor", tensors.gathering
    yield _fsdp_param_group, "foreach_all_gather", lambda old: _gathering(old, runtime)
    yield from spawned.replacements()
    yield from CheckpointPlans(settings.real).replacements()
    yield from _StageVotes(settings.real).replacements()
    yield from _engines(runtime)


def _engines(runtime: GradientWaits) -> Iterator[tuple[Any, str, Maker]]:
    """The entries of backward passes."""
    for module in (torch.autograd, torch.autograd.graph):
        yield module, "_engine_run_backward", lambda old: _backward(old, runtime)


def _groups(old: Any) -> Any:
    """New process groups have our backend, and the name of the one that the script asked for."""

    def helper(size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, **given: Any) -> Any:
        given.update(device_id=None, backend_options=None)
        group, prefix = old(size, rank, ranks, dist.Backend(BACKEND), store, name, **given)
        if isinstance(group, EmulatedGroup):
            c10d._world.pg_map[group] = (backend, c10d._world.pg_map[group][1])
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend(backend)))
        return group, prefix

    return helper


def _gathering(old: Any, runtime: Runtime) -> Any:
    """Gathers of parameters of FSDP2 know what they gather."""

    def gather(params: Any, *given: Any, **named: Any) -> Any:
        with runtime.gathering(params):
            return old(params, *given, **named)

    return gather


def _rendezvous(settings: RunSettings, store: Callable[[], Any]) -> Any:
    """The others are always there."""

    def meet(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[Any]:  # noqa: ARG001
        yield store(), settings.rank if rank < 0 else rank, settings.world_size if world_size < 0 else world_size

    return meet


def _initialised(old: Any, settings: RunSettings) -> Any:
    """The script's world must be the emulated one."""

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        **given: Any,
    ) -> None:
        for name, asked, told in (("world_size", world_size, settings.world_size), ("rank", rank, settings.rank)):
            if asked not in (-1, told):
                there = f"crossflow emulate was told {told}; let the script read {name.upper()} from its environment, or tell both the same"
                raise CrossflowError(f"the script calls init_process_group with {name} = {asked}, but {there}")
        if timeout is not None and not isinstance(timeout, timedelta):
            raise TypeError(f"expected timeout to be of type datetime.timedelta, got {type(timeout)}")
        given.pop("device_id", None)
        backend = "undefined" if backend is None else backend
        old(backend, init_method=init_method, timeout=timeout, world_size=world_size, rank=rank, store=store, **given)

    return init_process_group


def _exchanged(runtime: Runtime, old: Any) -> Any:
    """Objects of real ranks are delivered to one another; those of emulated ranks are copies of the own one."""

    def call(*given: Any, **named: Any) -> Any:
        with runtime.exchanging():
            return old(*given, **named)

    return call


def _objects_of(place: int, settings: RunSettings, runtime: Runtime, instead: Callable[[Any, Any], Any], old: Any) -> Any:
    """Objects of a real rank are delivered; of those of an emulated one nothing is known, so the script keeps what it has.

    Parameters
    ----------
    place : of src among the arguments, after which comes the group.
    instead : what is called for an emulated rank, with the rank and the group.
    """
    exchanged = _exchanged(runtime, old)

    def call(*given: Any, **named: Any) -> Any:
        group = _given("group", place + 1, given, named) or dist.group.WORLD
        source, in_group = _given("src", place, given, named), named.get("group_src")
        if source is None and group is not dist.GroupMember.NON_GROUP_MEMBER and (in_group is not None or instead is _barrier):
            source = dist.get_global_rank(group, in_group or 0)
        if group is dist.GroupMember.NON_GROUP_MEMBER or source in settings.real:
            return exchanged(*given, **named)
        if instead is _message and _of(frame := sys._getframe(1), PIPELINING):
            shapes, objects = _shapes_behind(frame), _given("object_list", 0, given, named)
            if shapes is None:
                runtime.recorder.failure = runtime.recorder.failure or UNKNOWN_SHAPES
                raise CrossflowError(UNKNOWN_SHAPES)
            objects[0] = shapes
        return instead(source, group)

    return call


def _broadcasting(old: Any, settings: RunSettings, refused: Callable[[str], CrossflowError]) -> Any:
    """Broadcasts, but for those by which `ZeroRedundancyOptimizer` collects the states of all ranks: nobody has those of emulated ones."""

    def broadcast(tensor: Any, src: Any = None, *given: Any, **named: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "_broadcast_object" and src not in settings.real and _of(frame, "torch.distributed.optim"):
            raise refused(CONSOLIDATES)
        return old(tensor, src, *given, **named)

    return broadcast


def _shapes_behind(frame: FrameType) -> Any:
    """What the next stage of a pipeline says of its gradients: they are of the shapes that this stage gives; None of a stage before it."""
    stage, asked = frame.f_locals.get("self"), frame.f_locals.get("src_stage")
    made = getattr(getattr(stage, "_stage_meta", None), "outputs", None)
    if stage is None or made is None or asked is None or asked <= stage.stage_index:
        return None
    from torch.distributed.pipelining import _utils

    return _utils._StageBackwardMeta(backward_metas=_utils._derive_grad_metas(made))


class _StageVotes:
    """Before their first step the stages of a pipeline vote on whether all know their shapes [1]_; an emulated one votes as this one.

    References
    ----------
    .. [1] `_warmup_forward_vote` in torch/distributed/pipelining/stage.py, torch 2.13.
    """

    def __init__(self, real: tuple[int, ...]) -> None:
        self.real, self.vote = real, 1

    def replacements(self) -> Iterator[tuple[Any, str, Maker]]:
        """Functions of torch that are replaced, and what makes the new one of the old one."""
        yield dist, "send", self._sending
        yield dist, "recv", self._receiving

    def _sending(self, old: Any) -> Any:
        def send(tensor: Any, *given: Any, **named: Any) -> Any:
            if _of(sys._getframe(1), PIPELINING):
                self.vote = int(tensor)
            return old(tensor, *given, **named)

        return send

    def _receiving(self, old: Any) -> Any:
        def recv(tensor: Any, src: Any = None, *given: Any, **named: Any) -> Any:
            found = old(tensor, src, *given, **named)
            if _of(sys._getframe(1), PIPELINING) and src not in self.real:
                tensor.fill_(self.vote)
            return found

        return recv


def _of(frame: FrameType, package: str) -> bool:
    """Whether a frame is one of a package."""
    return str(frame.f_globals.get("__name__")).startswith(package)


def _given(word: str, place: int, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """An argument, by its name or its place; None where it is absent."""
    return named.get(word, given[place] if len(given) > place else None)


def _message(source: Any, group: Any) -> Any:
    """A message of an emulated rank, the first one where it may be any."""
    return dist.recv(torch.zeros(1), source, group)


def _barrier(_: Any, group: Any) -> None:
    """The time of a barrier."""
    dist.barrier(group)


def _backward(old: Any, runtime: GradientWaits) -> Any:
    """Notes the end of backward passes."""

    def run(*given: Any, **named: Any) -> Any:
        try:
            return old(*given, **named)
        finally:
            runtime.backward_ended()

    return run
