"""A process group on the real network that notes what the script calls; a group of torch's own does the work, and its results stay."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.accounting import ALL_TO_ALL, RECV, SEND, transfers
from crossflow.evidence.emulation.buffers import described, flat
from crossflow.evidence.emulation.process_group import GradientWaits
from crossflow.evidence.emulation.record import Called
from crossflow.evidence.emulation.what_if import Delay

NO_TIMEOUT = timedelta()  # torch's word for the timeout of the group
NOT_YET = Delay(time=0.0, latency=0.0)  # what a call takes is known once it has ended
# Methods of a group that start a collective, by their names in this and in earlier versions of torch.
NOTED = {
    "all_reduce": ("allreduce", "allreduce_coalesced"),
    "reduce": ("reduce",),
    "broadcast": ("broadcast",),
    "all_gather": (
        "allgather", "allgather_coalesced", "all_gather_single", "all_gather_single_coalesced", "_allgather_base",
        "allgather_into_tensor_coalesced",
    ),
    "reduce_scatter": (
        "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced", "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    ),
    ALL_TO_ALL: ("all_to_all_single", "alltoall", "alltoall_base"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    SEND: ("send",),
    RECV: ("recv",),
    "barrier": ("barrier",),
}  # fmt: skip
PASSED = (
    "is_completed", "is_success", "exception", "result", "synchronize", "source_rank", "get_future_result", "_get_duration", "_get_op_type",
    "block_current_stream",
)  # fmt: skip


class Said(NamedTuple):
    """What a call of torch says: a collective, its tensors, and of a transfer the other rank, by its place in the group."""

    op: str
    tensors: Any
    peer: int | None = None


class NotedCall(NamedTuple):
    """A call, and its place among all calls."""

    number: int
    call: Called


@dataclass(kw_only=True)
class RealRuntime(GradientWaits):
    """What the process groups of a rank on the real network share."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def called(self, group: NotedGroup, said: Said) -> NotedCall:
        """Note a call; calls have the order of their times. CrossflowError where only a stream of a GPU knows these."""
        size, dtype, device = described(said.tensors)
        if device is not None and device.type != "cpu":
            there = f"{said.op} has tensors on {device}, whose times only its streams know"
            self.recorder.failure = f"--real records collectives on processors, and {there}; run the script on cpu, with gloo"
            raise CrossflowError(self.recorder.failure)
        pair = None if said.peer is None else transfers(group.members, said.peer, self.recorder.rank, said.op)
        link = group.group_name if pair is None else f"{group.group_name}.{said.op}"
        with self.lock:
            call = Called(
                at=time.perf_counter(), op=said.op, size=size, dtype=dtype, group=group.group_name, members=group.members, pair=pair,
                link=link, base=NOT_YET, changed=NOT_YET,
            )  # fmt: skip
            return NotedCall(self.recorder.called(call), call)

    def waited(self, handles: Sequence[RealWork], began: float, now: float) -> None:
        """The script has waited for collectives."""
        calls = [one for handle in handles for one in handle.calls]
        self.recorder.waited([one.number for one in calls], calls[-1].call.kind, began, now, 0.0)


class RealWork(dist.Work):
    """Work of torch's own group, which it stands for; its end is noted when a waiting script sees it, or else by its future."""

    def __init__(self, runtime: RealRuntime, calls: Sequence[NotedCall], work: Any, future: Any) -> None:
        super().__init__()
        self.runtime, self.calls, self.work, self.future = runtime, calls, work, future
        self.taken = self.end = 0.0
        self.waiting = False
        if future is not None:
            future.add_done_callback(self._done)

    @property
    def delivered(self) -> float:
        """When it ended, 0 as long as it has not. [s]"""
        if not self.end and self.future is not None and self.future.done():
            self._ended(time.perf_counter())
        return self.end

    def _done(self, _: object) -> None:
        if not self.waiting:  # a script that waits sees the end when it goes on
            self._ended(time.perf_counter())

    def _ended(self, now: float) -> None:
        if not self.end:
            self.end = now
            for number, call in self.calls:
                self.runtime.recorder.measured(number, call.kind, now - call.at)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it ends."""
        self.waiting, began = True, time.perf_counter()
        done = self.work.wait(timeout)
        now = time.perf_counter()
        self._ended(now)
        self.runtime.waited([self], began, now)
        return bool(done)

    def get_future(self) -> Any:
        """The future of its outputs, for which gradient buckets wait at the end of a backward pass."""
        self.taken = time.perf_counter()
        self.runtime.futures.append(self)
        return self.work.get_future()

    def _source_rank(self) -> int:
        """Place in the group of the rank that sent, where the script named none."""
        source: int = self.work._source_rank()
        for number, call in self.calls:
            self.runtime.recorder.sent_by(number, call.members[source])
        return source


def _future(work: Any) -> Any:
    """The future of some work, None where its backend has none, as for transfers of gloo."""
    try:
        return work.get_future()
    except RuntimeError:
        return None


def _passed(name: str) -> Callable[..., Any]:
    """A method that torch's own work carries out."""

    def call(self: RealWork, *given: Any, **named: Any) -> Any:
        return getattr(self.work, name)(*given, **named)

    return call


for _name in PASSED:
    setattr(RealWork, _name, _passed(_name))


class NotedGroup(dist.ProcessGroup):
    """A process group that hands its calls to one of torch's own, with the same backends, and notes them."""

    runtime: RealRuntime

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.inner, self.held = dist.ProcessGroup(store, rank, size), list[NotedCall]()

    @functools.cached_property
    def members(self) -> tuple[int, ...]:
        """Its global ranks."""
        return tuple(dist.get_process_group_ranks(self))

    # Both groups have the same name and backends.
    def _register_backend(self, *given: Any) -> None:
        super()._register_backend(*given)
        self.inner._register_backend(*given)

    def _set_default_backend(self, backend: Any) -> None:
        super()._set_default_backend(backend)
        self.inner._set_default_backend(backend)

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self.inner._set_group_name(name)

    def _set_group_desc(self, text: str) -> None:
        super()._set_group_desc(text)
        self.inner._set_group_desc(text)

    def get_group_store(self) -> dist.Store:
        """The store through which its ranks met."""
        return self.inner.get_group_store()

    def _carried(self, said: Said, start: Callable[[], Any], waits: bool) -> RealWork | None:
        """Work of a call, for which the script waits at once or later; None where it is one of several that start together."""
        noted = self.runtime.called(self, said)
        work = start()
        if work is None:
            self.held.append(noted)
            return None
        return RealWork(self.runtime, [noted], work, None if waits else _future(work))

    def _start_coalescing(self, device: torch.device) -> None:
        self.held = []
        super()._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> RealWork:
        work = super()._end_coalescing(device)
        return RealWork(self.runtime, self.held, work, _future(work))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> RealWork | None:
        """Receive from any rank; which one is known when it has sent."""
        return self._carried(Said(RECV, tensors, self.rank()), lambda: self.inner.recv_anysource(tensors, tag), waits=True)

    def monitored_barrier(self, *given: Any, **named: Any) -> None:
        """Wait for all ranks."""
        number, call = self.runtime.called(self, Said("barrier", []))
        self.inner.monitored_barrier(*given, **named)
        now, recorder = time.perf_counter(), self.runtime.recorder
        recorder.measured(number, call.kind, now - call.at)
        recorder.waited([number], call.kind, call.at, now, 0.0)

    def split_group(self, *given: Any, **named: Any) -> Any:
        """A part of the group, as a group that notes its calls."""
        part = self.inner.split_group(*given, **named)
        return None if part is None else self.around(part)

    @classmethod
    def around(cls, group: dist.ProcessGroup) -> NotedGroup:
        """A group with the name and the backends of another."""
        types, made = dist.Backend.backend_type_map, cls(group.get_group_store(), group.rank(), group.size())
        for device in group._device_types:
            backend = group._get_backend(device)
            made._register_backend(device, types.get(backend.name(), dist.ProcessGroup.BackendType.CUSTOM), backend)
        made._set_default_backend(types.get(group.name(), dist.ProcessGroup.BackendType.CUSTOM))
        made._set_group_name(group.group_name)
        made._set_group_desc(group.group_desc)
        return made


def meaning(op: str, ranks: int, given: Sequence[Any]) -> Said:
    """What a method of a group is asked, with the buffers whose size counts: those of all ranks, where they differ. [1]

    Nothing of it is checked; the group that carries it out does that.
    """
    if op == "barrier":
        return Said(op, [])
    first, second = given[0], given[1] if len(given) > 1 else None
    if op in (SEND, RECV):
        return Said(op, first, second)
    if op == ALL_TO_ALL:
        return Said(op, max(first, second, key=lambda buffers: described(buffers)[0]))
    if op in ("gather", "scatter"):
        return Said(op, flat(second if op == "gather" else first) * ranks)
    return Said(op, second if op == "reduce_scatter" else first)


def _noted(op: str, name: str) -> Callable[..., Any]:
    """A method that notes its call and hands it on."""

    def call(self: NotedGroup, *given: Any, **named: Any) -> RealWork | None:
        all_given = (*given, *named.values())
        waits = any(getattr(options, "asyncOp", True) is False for options in all_given)
        return self._carried(meaning(op, self.size(), all_given), lambda: getattr(self.inner, name)(*given, **named), waits)

    return call


for _op, _names in NOTED.items():
    for _name in _names:
        setattr(NotedGroup, _name, _noted(_op, _name))
