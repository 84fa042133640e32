"""Where the tasks of a study run: in this process, in a pool of processes, or on a Dask cluster.

A task is a function of plain objects and gives a plain object; which of them run where changes no byte of a result. Worker
processes that die are replaced and their tasks done again; what cannot be mended ends the study with an error, and its
finished points are on disk by then.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pkgutil
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from crossflow import __version__
from crossflow.base.errors import CrossflowError
from crossflow.base.platforms import MASKS, MOST_PROCESSES
from crossflow.base.signals import end_with_parent, undisturbed

Given = TypeVar("Given")
Made = TypeVar("Made")
LOSSES = 3  # times in a row that workers may die before a task is given up
PULSE = 5.0  # how often a pool is looked at from which nothing comes [s]
PATIENCE = 20.0  # how long a cluster may be out of reach [s]
VERSION = "crossflow:__version__"
UNLIKE = "{} has crossflow {}, and this is " + f"{__version__}, whose figures may be others; install the same on all"
KEPT = "finished points are kept, continue with --resume"


class Workers(Protocol):
    """Somewhere to run tasks."""

    def completed(self, function: Callable[[Given], Made], tasks: Iterable[Given]) -> Iterator[tuple[int, Made]]:
        """Results with the numbers of their tasks, in the order in which they are done."""


def in_order(results: Iterable[tuple[int, Made]]) -> Iterator[Made]:
    """Results in the order of their tasks."""
    early: dict[int, Made] = {}
    wanted = 0
    for number, result in results:
        early[number] = result
        while wanted in early:
            yield early.pop(wanted)
            wanted += 1


@contextlib.contextmanager
def workers(jobs: int = 1, dask: str | None = None) -> Iterator[Workers]:
    """Workers for a study: `jobs` processes, or the cluster whose scheduler is at an address such as tcp://10.0.0.1:8786."""
    if jobs < 1:
        raise CrossflowError(f"--jobs must be at least 1, got {jobs}")
    if dask is None and MOST_PROCESSES is not None and jobs > MOST_PROCESSES:
        raise CrossflowError(f"--jobs must be at most {MOST_PROCESSES} on this system, got {jobs}; a cluster (--dask) takes more")
    if dask is not None:
        with _cluster(dask) as cluster:
            yield cluster
    elif jobs == 1:
        yield Here()
    else:
        pool = Processes(jobs=jobs)
        try:
            yield pool
        finally:
            pool.close()


class Here:
    """In this process, one task after the other."""

    def completed(self, function: Callable[[Given], Made], tasks: Iterable[Given]) -> Iterator[tuple[int, Made]]:
        """Results, one after the other."""
        yield from ((number, function(task)) for number, task in enumerate(tasks))


@dataclass(kw_only=True)
class Processes:
    """A pool of processes, started when the first task comes."""

    jobs: int
    _pool: _Pool | None = None

    def completed(self, function: Callable[[Given], Made], tasks: Iterable[Given]) -> Iterator[tuple[int, Made]]:
        """Results as they are done; a pool whose process was killed is replaced."""
        flight = Flight(function=function, waiting=enumerate(tasks), window=2 * self.jobs + 2)
        losses = 0
        while True:
            try:
                if not flight.launch(pool := self._open()):
                    return
                for number, result in flight.land(PULSE):
                    losses = 0
                    yield number, result
                pool.check(flight)
            except BrokenProcessPool:
                losses += 1
                self.close()
                if losses == LOSSES:
                    raise CrossflowError(
                        f"worker processes died {LOSSES} times in a row (out of memory?); {KEPT} and fewer --jobs"
                    ) from None

    def _open(self) -> _Pool:
        if self._pool is None:
            self._pool = _Pool(self.jobs)
        return self._pool

    def close(self) -> None:
        """End the processes at once; tasks that are not done are dropped."""
        if self._pool is not None:
            self._pool.end()
        self._pool = None


class _Pool(ProcessPoolExecutor):
    """Processes that leave signals to their parent and end with it."""

    def __init__(self, jobs: int) -> None:
        import multiprocessing

        # Started with a worker it would unblock signals; started here it begins with them blocked, so that a terminal that closes leaves it
        # the time to tidy up after the others.
        if MASKS:
            from multiprocessing import resource_tracker

            with undisturbed():
                resource_tracker.ensure_running()
        super().__init__(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Submit a task, and start a process for it where none is idle."""
        with undisturbed():
            return super().submit(function, *given, **named)

    def check(self, flight: Flight) -> None:
        """BrokenProcessPool where a process has died unseen: in the middle of its result, of which the pool waits for the rest."""
        if flight.stuck and any(process.exitcode is not None for process in (self._processes or {}).values()):
            flight.lose()
            raise BrokenProcessPool("a process died while it sent its result")

    def end(self) -> None:
        """Kill the processes, which hold nothing that is not on disk, and wait for them."""
        with undisturbed():
            for process in list((self._processes or {}).values()):
                process.kill()
            # Of a result that one of them has sent in part, the pool would wait for the rest as long as anyone can write it.
            if (results := self._result_queue) is not None:
                results._writer.close()  # type: ignore[attr-defined] # which has no other way to be closed
            self.shutdown(wait=True, cancel_futures=True)


@dataclass(kw_only=True)
class Flight:
    """Tasks on their way: no more than `window` at once, so that neither tasks nor results pile up."""

    function: Callable[[Any], Any]
    waiting: Iterator[tuple[int, Any]]
    window: int
    stuck: bool = False  # whether nothing had come when it last landed
    running: dict[Future[Any], tuple[int, Any]] = field(default_factory=dict)
    again: list[tuple[int, Any]] = field(default_factory=list)

    def launch(self, pool: Executor) -> bool:
        """Send tasks as far as the window allows, those that were lost first; False when none is on its way."""
        try:
            while len(self.running) < self.window and (task := self.again.pop(0) if self.again else next(self.waiting, None)) is not None:
                self.running[pool.submit(self.function, task[1])] = task
        except BrokenProcessPool:
            self.again.insert(0, task)  # type: ignore[arg-type]
            self.lose()
            raise
        return bool(self.running)

    def land(self, timeout: float | None = None) -> Iterator[tuple[int, Any]]:
        """Results that are there; a task that failed because its worker was lost is put back with all others on their way."""
        done, _ = wait(self.running, timeout=timeout, return_when=FIRST_COMPLETED)
        self.stuck = not done
        for future in done:
            number, task = self.running.pop(future)
            try:
                result = future.result()
            except (BrokenProcessPool, CancelledError):
                self.again.append((number, task))
                self.lose()
                raise
            yield number, result

    def lose(self) -> None:
        """Put every task that is on its way back, in their order."""
        self.again = sorted([*self.again, *self.running.values()], key=lambda task: task[0])
        self.running = {}


# ------------------------------------------------------------------------------------------ Dask


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Cluster]:
    try:
        from distributed import Client
    except ImportError:
        raise CrossflowError("--dask needs the package distributed: pip install 'crossflow[dask]'") from None
    _check_address(address)
    try:
        client: Any = Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise CrossflowError(f"--dask {address}: no scheduler answers there ({str(error).splitlines()[0]})") from None
    try:
        _check_versions(client, address)
        yield Cluster(client=client, address=address)
    finally:
        before = logging.root.manager.disable
        logging.disable()  # tasks that are dropped would be told with tracebacks
        with contextlib.suppress(Exception):
            client.close(timeout=2)
        logging.disable(before)


def _check_versions(client: Any, address: str) -> None:
    """CrossflowError for workers of another crossflow, whose figures may be others, before any task is sent.

    They are asked by a function of the standard library, which every one of them has. One that is lost meanwhile is the scheduler's care.
    """
    for worker, found in sorted(client.run(pkgutil.resolve_name, VERSION, on_error="return").items()):
        if isinstance(found, ImportError):
            raise CrossflowError(f"--dask {address}: the worker {worker} has no crossflow; install {__version__} there")
        if isinstance(found, str) and found != __version__:
            raise CrossflowError(UNLIKE.format(f"--dask {address}: the worker {worker}", found))


def _alike(version: str, function: Callable[[Given], Made], task: Given) -> Made:
    """A task on a worker that may have joined since the others were asked."""
    if version != __version__:
        raise CrossflowError(f"a worker that joined has crossflow {__version__}, and the study that of {version}; install the same on all")
    return function(task)


def _check_address(address: str) -> None:
    """CrossflowError for what can be no scheduler's address, before anyone waits for an answer from there."""
    found = re.fullmatch(r"(?:[a-z]+://)?(?:\[([0-9a-fA-F:.]+)\]|([^\s/:\[\]]+)):(\d{1,5})", address)
    if found is None:
        raise CrossflowError(f"--dask {address}: expected the address of a scheduler, such as tcp://10.0.0.1:8786")
    try:
        socket.getaddrinfo(found[1] or found[2], int(found[3]))
    except (OSError, UnicodeError, OverflowError) as error:
        raise CrossflowError(f"--dask {address}: there is no such host ({getattr(error, 'strerror', None) or error})") from None


@dataclass(kw_only=True)
class Cluster:
    """A Dask cluster, through the executor interface of its client."""

    client: Any
    address: str

    def completed(self, function: Callable[[Given], Made], tasks: Iterable[Given]) -> Iterator[tuple[int, Made]]:
        """Results as they are done. The scheduler gives the tasks of a lost worker to the others."""
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        reached = time.monotonic()
        try:
            pool = self.client.get_executor(pure=False)
            alike, most = functools.partial(_alike, __version__, function), max(4 * len(self.client.nthreads()), 8)
            flight = Flight(function=alike, waiting=enumerate(tasks), window=most)
            while flight.launch(pool):
                yield from flight.land(timeout=1.0)
                reached = time.monotonic() if self.client.status == "running" else reached
                if time.monotonic() - reached > PATIENCE:
                    raise CrossflowError(f"lost the scheduler at {self.address}; {KEPT}")
        except KilledWorker as error:
            raise CrossflowError(f"a task killed one worker after the other ({error}); {KEPT}") from None
        except (CancelledError, FutureCancelledError, CommClosedError, OSError, RuntimeError) as error:
            raise CrossflowError(f"lost the scheduler at {self.address} ({type(error).__name__}); {KEPT}") from None
