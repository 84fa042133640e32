"""Runs a training script with process groups that emulate the other ranks, or that note what real ones do; the script stays as it is."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import platform
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from crossflow.emulation.meeting import Meets
from crossflow.emulation.process_group import EmulatedGroup, GradientWaits, Runtime
from crossflow.emulation.processes import VARIABLE, RunSettings
from crossflow.emulation.real_group import NotedGroup, RealRuntime
from crossflow.emulation.record import CallRecorder
from crossflow.errors import CrossflowError
from crossflow.files import write_text
from crossflow.torch.installed import require_torch

BACKEND = "crossflow"


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
    meets = Meets(address=settings.meeting) if settings.meeting else None
    runtime = Runtime(delays=settings.delays_(), recorder=recorder, real=settings.real, meets=meets)
    with contextlib.ExitStack() as undo:
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
    yield c10d, "rendezvous", lambda _: _rendezvous(settings)
    for module in (c10d, dist):
        yield module, "init_process_group", lambda old: _initialised(old, settings)
        for name in ("broadcast_object_list", "scatter_object_list"):
            yield module, name, functools.partial(_unknown_objects, name, settings)
        yield module, "recv_object_list", _received_objects
        yield module, "send_object_list", functools.partial(_sent_objects, settings)
    yield dist, "TCPStore", lambda _: lambda *_, **__: dist.HashStore()
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


def _rendezvous(settings: RunSettings) -> Any:
    """The others are always there."""

    def meet(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[Any]:  # noqa: ARG001
        yield dist.HashStore(), settings.rank if rank < 0 else rank, settings.world_size if world_size < 0 else world_size

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


def _unknown_objects(name: str, settings: RunSettings, old: Any) -> Any:
    """Objects that another rank sends are not known: the script keeps what it has, after the time of a barrier.

    A real rank that sends to real ones calls the barrier, too, since they must all call the same.
    """
    place = 2 if name == "scatter_object_list" else 1  # of src among the arguments, after which comes the group

    def call(*given: Any, **named: Any) -> None:
        source, group = _peer("src", place, given, named)
        if source is None:
            source = dist.get_global_rank(group, named.get("group_src") or 0)
        mine = source == dist.get_rank()
        if mine and not (set(dist.get_process_group_ranks(group)) & set(settings.real)) - {source}:
            old(*given, **named)
            return
        dist.barrier(group)
        if mine and name == "scatter_object_list":
            output, parts = (_given(f"scatter_object_{word}_list", at, given, named) for at, word in enumerate(("output", "input")))
            output[0] = parts[dist.get_rank(group)]

    return call


def _peer(word: str, place: int, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, Any]:
    """The other rank of a call, as far as it is given as a global one, and the group, which comes after it."""
    return _given(word, place, given, named), _given("group", place + 1, given, named) or dist.group.WORLD


def _given(word: str, place: int, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """An argument, by its name or its place; None where it is absent."""
    return named.get(word, given[place] if len(given) > place else None)


def _received_objects(_: Any) -> Any:
    """Objects that another rank sends to this one are not known: the script keeps what it has, after one message."""

    def call(*given: Any, **named: Any) -> Any:
        source, group = _peer("src", 1, given, named)
        if source is None and named.get("group_src") is not None:
            source = dist.get_global_rank(group, named["group_src"])
        return dist.recv(torch.zeros(1), source, group)

    return call


def _sent_objects(settings: RunSettings, old: Any) -> Any:
    """Objects for a real rank are one message, since it does not know their sizes."""

    def call(*given: Any, **named: Any) -> None:
        target, group = _peer("dst", 1, given, named)
        if target is None and named.get("group_dst") is not None:
            target = dist.get_global_rank(group, named["group_dst"])
        if target in settings.real:
            dist.send(torch.zeros(1), target, group)
        else:
            old(*given, **named)

    return call


def _backward(old: Any, runtime: GradientWaits) -> Any:
    """Notes the end of backward passes."""

    def run(*given: Any, **named: Any) -> Any:
        try:
            return old(*given, **named)
        finally:
            runtime.backward_ended()

    return run


# -------------------------------------------------------------------------------------------- the process of a rank


def main(words: Sequence[str]) -> None:
    """Run a script as the rank that the environment says; ends as the script does."""
    settings = RunSettings.read(os.environ.pop(VARIABLE))
    if settings.watch >= 0:
        threading.Thread(target=_end_with_parent, args=(settings.watch,), daemon=True).start()
    require_torch("crossflow emulate")
    around = emulated(settings) if settings.emulates else observed(settings)
    recorder = around.__enter__()
    atexit.register(_leave, around, recorder, settings, os.getpid())  # runs after what the script registers
    try:
        _run_script(words, recorder)
    except Exception:
        if recorder.failure:  # which the parent tells
            raise SystemExit(2) from None
        raise


def _run_script(words: Sequence[str], recorder: CallRecorder) -> None:
    """Run a file, or a module after -m, as the program of this process; a traceback begins where the script does."""
    sys.argv = list(words)
    if words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    path = words[0]
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"], sys.path[0] = module, str(Path(path).resolve().parent)
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    except Exception as error:
        if recorder.failure:
            raise
        begun = error.__traceback__
        cut = error.with_traceback(begun.tb_next if begun is not None else None)
        sys.excepthook(type(cut), cut, cut.__traceback__)
        raise SystemExit(1) from None


def _leave(around: contextlib.AbstractContextManager[CallRecorder], recorder: CallRecorder, settings: RunSettings, process: int) -> None:
    """Leave what the rank called where the parent looks for it; workers that were forked leave nothing."""
    if os.getpid() == process:
        found = {"summary": recorder.summary(), "failure": recorder.failure, "torch": torch.__version__}
        found["record"] = recorder.record() if settings.keeps else None
        write_text(Path(settings.result), json.dumps(found))
        around.__exit__(None, None, None)


def _end_with_parent(watched: int) -> None:
    """End this process and all that it started once the parent is gone, however it went."""
    os.read(watched, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
