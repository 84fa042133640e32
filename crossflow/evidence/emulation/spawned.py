"""Processes that a script starts for its ranks: that of the real rank runs here; what cannot be emulated is refused before it runs."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch.multiprocessing

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.process_group import STRANGE
from crossflow.evidence.emulation.record import CallRecorder

JOINS = "init_process_group"
BY_AGENT = "the script starts its ranks by an elastic agent; give crossflow emulate the script that the agent starts"


class SpawnedRanks:
    """Functions that start processes for ranks.

    Parameters
    ----------
    rank, world_size : of the real rank.
    recorder : is told what is refused, for which the script may have an answer of its own.
    """

    def __init__(self, rank: int, world_size: int, recorder: CallRecorder) -> None:
        self.rank, self.world_size, self.recorder, self.process = rank, world_size, recorder, os.getpid()
        self.local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))  # of the system's nodes

    def replacements(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        """Functions that are replaced, and what makes the new one of the old one."""
        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            for name in ("spawn", "start_processes"):
                yield module, name, lambda _: self._spawn
        yield multiprocessing.process.BaseProcess, "start", self._start

    def refused(self, message: str) -> CrossflowError:
        """An error that the parent tells, whatever the script makes of it."""
        self.recorder.failure = self.recorder.failure or message
        return CrossflowError(message)

    def _spawn(self, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        """Run the function of the real rank, in this process."""
        if str(getattr(fn, "__module__", "")).startswith("torch.distributed.elastic"):
            raise self.refused(BY_AGENT)
        if nprocs not in (1, self.world_size, self.local):
            raise self.refused(
                f"the script spawns {nprocs} processes, which are neither the {self.world_size} ranks of the emulated world nor the "
                f"{self.local} of one node; let it spawn one of these, or give --world-size {nprocs}"
            )
        index = self.rank if nprocs == self.world_size else self.rank % nprocs
        try:
            fn(index, *args)
        except SystemExit as end:
            if end.code:
                raise
        return None if join else _EndedProcesses()

    def _start(self, old: Any) -> Any:
        """Starts a process, unless its function joins a process group."""

        def start(process: Any) -> None:
            target = getattr(process, "_target", None)
            if os.getpid() == self.process and target is not None and joins(target):
                raise self.refused(
                    f"the script starts a process for {getattr(target, '__name__', 'a function')}, which calls {JOINS}; start ranks with "
                    "torch.multiprocessing.spawn, or let the script be one rank, as torchrun does"
                )
            old(process)

        return start


class _EndedProcesses:
    """Processes that have ended."""

    processes: tuple[Any, ...] = ()

    def join(self, *_: Any, **__: Any) -> bool:
        """All have ended."""
        return True


def joins(target: Any, depth: int = 4) -> bool:
    """Whether a function, or one of its module that it calls, joins a process group."""
    if not isinstance(target, FunctionType) or target.__module__.partition(".")[0] in STRANGE:
        return False
    names, known = set(_names(target.__code__)), target.__globals__
    called = [known[name] for name in names if name in known and known[name] is not target]
    return JOINS in names or (depth > 0 and any(joins(one, depth - 1) for one in called))


def _names(code: CodeType) -> Iterator[str]:
    """Names that code uses, with that of functions in it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)
