"""A process group whose other ranks are emulated: every collective ends after its delay, with outputs made of the rank's own data."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from crossflow.emulation.accounting import RECV, SEND, Entry, transfers
from crossflow.emulation.delays import Delays
from crossflow.emulation.link import Call, LinkThread, Pace
from crossflow.emulation.meeting import Meets
from crossflow.emulation.record import Called, CallRecorder
from crossflow.emulation.what_if import Delay
from crossflow.errors import CrossflowError

TRIALS, TRIAL = 24, 1e-3  # calls with which the time of delivery is measured, and their delay [s]
LONGEST_EARLY = 500e-6  # of what may be taken for the time of delivery [s]
FOLLOW = 2e-6  # by which that time moves towards every delivery that is seen, so that it follows their median [s]
Tensors = Sequence[torch.Tensor]


@dataclass(kw_only=True)
class GradientWaits:
    """Notes the waits inside backward passes, where gradient buckets wait for futures of collectives.

    Attributes
    ----------
    recorder : notes calls and waits.
    futures : collectives whose futures were taken.
    """

    recorder: CallRecorder
    futures: list[Any] = field(default_factory=list)

    def waited(self, handles: Sequence[Any], began: float, now: float) -> None:
        """The script has waited for collectives."""
        raise NotImplementedError

    def backward_ended(self) -> None:
        """A backward pass is over; what took futures of collectives, as gradient buckets do, has waited for them since the last began."""
        handles = [handle for handle in self.futures if handle.delivered]
        self.futures = [handle for handle in self.futures if not handle.delivered]
        if handles:
            began = max(handle.taken for handle in handles)
            self.waited(handles, began, max(began, *(handle.delivered for handle in handles)))
        self.recorder.marked("backward", time.perf_counter())


@dataclass(kw_only=True)
class Runtime(GradientWaits):
    """What the process groups of one real rank share.

    Attributes
    ----------
    delays : of collectives, with what-ifs and slower ranks.
    real : global ranks that run for real, in this process or in others.
    meets : asks other real ranks when they are ready; None where there are none.
    early : median time from the end of a collective until a script that waits for it goes on: measured at first, then followed. [s]
    """

    delays: Delays
    real: tuple[int, ...]
    meets: Meets | None = None
    links: dict[str, LinkThread | StreamLink] = field(default_factory=dict)
    early: float = 0.0

    def __post_init__(self) -> None:
        self.pace, self.lock = Pace(slow=self.delays.what_if.slow), threading.Lock()
        self.early = self._delivery()

    def _delivery(self) -> float:
        """Median time from the end of a collective until a script that waits for it goes on. [s]"""
        link, late = LinkThread(name="trial"), []
        for _ in range(TRIALS):
            future: Future[None] = Future()
            now = time.perf_counter()
            link.put(Call(arrival=now, time=TRIAL, host=0.0, fill=lambda: None, done=lambda *_, future=future: future.set_result(None)))
            future.wait()
            late.append(time.perf_counter() - now - TRIAL)
        link.close()
        return min(statistics.median(late), LONGEST_EARLY)

    def close(self) -> None:
        """End the threads of all links."""
        for link in self.links.values():
            link.close()

    def issue(
        self,
        group: EmulatedGroup,
        op: str,
        tensors: Tensors,
        result: Any,
        fill: Callable[[], None],
        peer: int | None = None,
        how: str = "",
    ) -> Handle:
        """Call a collective of a group; `peer` is the other rank of a transfer, `how` the reduction and the root. [1]"""
        now = time.perf_counter()
        size, dtype, place = described(tensors)
        pair = None if peer is None else transfers(group.members, peer, self.recorder.rank, op)
        base = self._base(op, size, pair or group.members)
        called = Called(
            at=now, op=op, size=size, dtype=dtype, group=group.label, members=group.members, pair=pair,
            link=self.delays.wire(op, group.label, pair or group.members), base=base,
            changed=self.delays.what_if(op, base) if len(group.members) > 1 else base,
        )  # fmt: skip
        with self.lock:
            arrival = self.pace.arrival(now, called.ranks)
            number = self.recorder.called(called)
        device = place if place is not None and place.type == "cuda" else None
        handle = Handle(self, number, called, Future() if device is None else Future(devices=[device]), result)
        self._link(called.link, device).put(
            Call(
                arrival=arrival,
                time=called.changed.time,
                host=base.host,
                fill=fill,
                done=handle.deliver,
                meet=self._meeting(called, group.patience, how),
            )
        )
        return handle

    def _base(self, op: str, size: int, ranks: tuple[int, ...]) -> Delay:
        """Delay of a call; that none is known is noted, because the script may catch the error or wrap it."""
        try:
            return self.delays.base(op, size, ranks)
        except CrossflowError as error:
            self.recorder.failure = self.recorder.failure or str(error)
            raise

    def _link(self, name: str, device: torch.device | None) -> LinkThread | StreamLink:
        key = name if device is None else f"{device}.{name}"
        with self.lock:
            if key not in self.links:
                self.links[key] = LinkThread(name=name, early=lambda: self.early) if device is None else StreamLink(device=device)
            return self.links[key]

    def _meeting(self, called: Called, patience: float, how: str) -> Callable[[float], float] | None:
        """Asks the other real ranks of a call, None where there are none."""
        if self.meets is None or not set(called.ranks) & set(self.real) - {self.recorder.rank}:
            return None
        entry = Entry(
            rank=self.recorder.rank, group=called.group, ranks=called.ranks, op=called.op, size=called.size, dtype=called.dtype,
            arrival=called.at, patience=patience, how=how,
        )  # fmt: skip
        meets = self.meets
        return lambda arrival: meets(entry, arrival)

    def waited(self, handles: Sequence[Handle], began: float, now: float) -> None:
        """The script has waited for collectives."""
        with self.lock:
            end = max(handle.end for handle in handles)
            self.pace.reach(began)
            self.pace.waited(now, end)
            numbers, kind = [handle.number for handle in handles], handles[-1].kind
            self.recorder.waited(numbers, kind, began, now, now - max(end, began))

    def follow(self, late: float) -> None:
        """A waiting script went on so late; the next ones are delivered a little earlier, or later."""
        self.early = min(max(self.early + math.copysign(FOLLOW, late), 0.0), LONGEST_EARLY)


class Handle(dist.Work):
    """A collective that the script has called and may wait for."""

    def __init__(self, runtime: Runtime, number: int, called: Called, future: Future[Any], result: Any) -> None:
        super().__init__()
        self.runtime, self.number, self.future, self.outputs = runtime, number, future, result
        self.kind, self.lasts = called.kind, called.changed.time
        self.taken = self.end = self.delivered = 0.0
        self.source = -1  # place in the group of who sent it, where the script named nobody

    def _source_rank(self) -> int:
        return self.source

    def deliver(self, met: float, filled: float, end: float, error: Exception | None) -> None:
        """End it, or let those who wait know what went wrong."""
        self.end, self.delivered = end, time.perf_counter() + self.runtime.early
        if error is not None:
            self.future.set_exception(error)
            return
        self.runtime.recorder.delivered(self.number, met, filled, self.lasts)
        self.future.set_result(self.outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - the other ranks always come
        """Wait until it ends."""
        began = time.perf_counter()
        self.future.wait()
        self.runtime.waited([self], began, time.perf_counter())
        if began < self.end - self.runtime.early:
            self.runtime.follow(time.perf_counter() - self.end)
        return True

    def get_future(self) -> Future[Any]:
        """The future of its outputs, for which gradient buckets wait at the end of a backward pass."""
        self.taken = time.perf_counter()
        self.runtime.futures.append(self)
        return self.future

    def synchronize(self) -> None:
        """Wait until it ends."""
        self.wait()

    def block_current_stream(self) -> None:
        """Let the current stream wait; on a processor, the script."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return bool(self.future.done())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed()

    def result(self) -> Any:
        """Its outputs."""
        return self.outputs


@dataclass(kw_only=True)
class StreamLink:
    """A link on a GPU: its collectives follow one another on a stream of its own, which sleeps for their delays.

    Scripts wait with their stream, not with the host, so what is known of their waits is what the host sees.
    """

    device: torch.device

    def __post_init__(self) -> None:
        self.stream = torch.cuda.Stream(self.device)
        self.rate = self._cycles()

    def close(self) -> None:
        """Nothing runs on the host."""

    def put(self, call: Call) -> None:
        """Let the stream take the time of a collective."""
        if call.meet is not None:
            raise CrossflowError("several real ranks that meet in collectives are supported on processors only; give one rank on a GPU")
        now = time.perf_counter()
        late = max(call.arrival - now, 0.0)  # of slower ranks
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            call.fill()
            torch.cuda._sleep(int((late + call.time) * self.rate))
            call.done(0.0, 0.0, call.arrival + call.time, None)

    def _cycles(self) -> float:
        """Cycles of a second, as a sleeping kernel counts them. [1/s]"""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cycles = 10_000_000
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(cycles)
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
        end.synchronize()
        return float(cycles / (begin.elapsed_time(end) * 1e-3))


# -------------------------------------------------------------------------------------------- outputs


def _flat(given: Any) -> list[torch.Tensor]:
    """Tensors of nested lists, in order."""
    if given is None:
        return []
    return [given] if isinstance(given, torch.Tensor) else [one for part in given for one in _flat(part)]


def described(given: Any) -> tuple[int, str, torch.device | None]:
    """Size of tensors, type of their elements and their device; None where there are no tensors. [B]"""
    tensors = _flat(given)
    if not tensors:
        return 0, "", None
    size = sum(one.numel() * one.element_size() for one in tensors)
    return size, str(tensors[0].dtype).removeprefix("torch."), tensors[0].device


def _nothing() -> None:
    """Outputs stay as they are."""


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def _put(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write one buffer into another of any size; what is left over becomes zero."""
    target = target.detach()
    if target.numel() == source.numel():
        target.copy_(source.reshape(target.shape))
        return
    target.zero_()
    count = min(target.numel(), source.numel())
    if target.is_contiguous():
        target.view(-1)[:count].copy_(source.reshape(-1)[:count])


def _repeat(target: torch.Tensor, source: torch.Tensor, times: int) -> None:
    """Write a buffer as often as it fits."""
    _put(target, source.detach().reshape(1, -1).expand(times, -1))


def _pairs(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Writes sources into targets, one by one."""
    pairs = list(zip(targets, sources, strict=False))

    def fill() -> None:
        for target, source in pairs:
            _put(target, source.detach())

    return fill


# -------------------------------------------------------------------------------------------- the group


def _unsupported(name: str) -> Callable[..., Any]:
    """A method that is not emulated."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CrossflowError(f"crossflow emulate does not support ProcessGroup.{name}; docs/guide.md says what it supports")

    return refuse


class EmulatedGroup(dist.ProcessGroup):
    """A process group of one real rank; torch calls its methods by their names in C++."""

    def __init__(self, rank: int, members: tuple[int, ...], runtime: Runtime, name: str, patience: float) -> None:
        super().__init__(rank, len(members))
        self.place, self.members, self.runtime, self.label, self.patience = rank, members, runtime, name, patience

    # What a group is asked about itself.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def size(self) -> int:
        """Ranks of the group."""
        return len(self.members)

    def rank(self) -> int:
        """Place of this rank in the group."""
        return self.place

    def getBackendName(self) -> str:  # noqa: N802
        """Name of the backend."""
        return "crossflow"

    name = getBackendName

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self.label

    pg_name = group_name

    def _get_backend(self, device: torch.device) -> EmulatedGroup:  # noqa: ARG002
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: ARG002
        """Whether it has memory of its own."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """How long the script lets a collective wait for other real ranks."""
        self.patience = timeout.total_seconds()

    def shutdown(self) -> None:
        """Nothing to end."""

    abort = shutdown

    def _set_sequence_number_for_group(self) -> None:
        """The ledger counts."""

    def _get_sequence_number_for_group(self) -> int:
        return self.runtime.recorder.calls

    def _go(
        self, op: str, tensors: Any, result: Any, fill: Callable[[], None] = _nothing, peer: int | None = None, opts: Any = None
    ) -> Handle:
        return self.runtime.issue(self, op, _flat(tensors), result, fill, peer, self._how(op, opts))

    def _how(self, op: str, opts: Any) -> str:
        """Reduction and root of a call, as far as its options have them."""
        reduction, root = getattr(opts, "reduceOp", None), getattr(opts, "rootRank", None)
        said = [] if reduction is None else [f"with {reduction.op.name}"]
        if root is not None:
            said.append(f"{'from' if op in ('broadcast', 'scatter') else 'to'} rank {self.members[root]}")
        return " ".join(said)

    # Collectives.
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Sum over all ranks: what this one has."""
        return self._go("all_reduce", tensors, _flat(tensors), opts=opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Sum on one rank."""
        return self._go("reduce", tensors, _flat(tensors), opts=opts)

    def broadcast(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Copy of one rank: every rank keeps what it has."""
        return self._go("broadcast", tensors, _flat(tensors), opts=opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """All ranks' buffers: this one's, as often."""
        lists, inputs = ([outputs], [inputs]) if isinstance(inputs, torch.Tensor) else (outputs, inputs)
        sources = [source for row, source in zip(lists, inputs, strict=True) for _ in row]
        return self._go("all_gather", outputs, outputs, _pairs(_flat(outputs), sources))

    allgather_coalesced = allgather

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """The same in one buffer."""
        return self._go("all_gather", output, output, lambda: _repeat(output, source, len(self.members)))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """Several of them."""
        pairs = list(zip(outputs, inputs, strict=True))

        def fill() -> None:
            for output, source in pairs:
                _repeat(output, source, len(self.members))

        return self._go("all_gather", outputs, outputs, fill)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Sum of all ranks, of which each keeps a part: of its own data."""
        outs, lists = ([outputs], [inputs]) if isinstance(outputs, torch.Tensor) else (outputs, inputs)
        return self._go("reduce_scatter", inputs, outputs, _pairs(outs, [row[self.place] for row in lists]), opts=opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """The same in one buffer."""
        return self._go("reduce_scatter", source, output, _pairs([output], [self._own(source)]), opts=opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Several of them."""
        return self._go("reduce_scatter", inputs, outputs, _pairs(outputs, [self._own(one) for one in inputs]), opts=opts)

    def _own(self, source: torch.Tensor) -> torch.Tensor:
        return source.detach().reshape(len(self.members), -1)[self.place]

    def all_to_all_single(self, output: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> Handle:
        """Every rank sends a part to every other: its own data comes back."""
        return self._go("all_to_all", max(output, source, key=torch.Tensor.numel), output, _pairs([output], [source]))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """The same in lists."""
        larger = max(_flat(outputs), _flat(inputs), key=lambda listed: sum(one.numel() for one in listed))
        return self._go("all_to_all", larger, outputs, _pairs(_flat(outputs), _flat(inputs)))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """All ranks' buffers on one: this one's, as often."""
        mine, targets = _flat(inputs), _flat(outputs)
        return self._go("gather", mine * len(self.members), outputs, _pairs(targets, mine * len(targets)), opts=opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """A part of one rank's data for every rank."""
        mine, sources = _flat(outputs), _flat(inputs)
        return self._go("scatter", mine * len(self.members), outputs, _pairs(mine, sources[self.place : self.place + 1]), opts=opts)

    def send(self, tensors: Any, target: int, tag: int = 0) -> Handle:  # noqa: ARG002
        """Send to a rank of the group."""
        return self._go(SEND, tensors, tensors, peer=target)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Handle:  # noqa: ARG002
        """Receive from a rank of the group: zeros."""
        targets = _flat(tensors)
        return self._go(RECV, tensors, tensors, _pairs(targets, [one.new_zeros(()).expand(one.shape) for one in targets]), peer=source)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Handle:
        """Receive from any rank: from the first that is emulated."""
        real = {self.runtime.recorder.rank, *self.runtime.real}
        source = next((place for place, rank in enumerate(self.members) if rank not in real), None)
        if source is None:
            raise CrossflowError("recv from any rank: all ranks of the group run for real, and which comes first is not known; name one")
        handle = self.recv(tensors, source, tag)
        handle.source = source
        return handle

    def barrier(self, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """Wait for all ranks."""
        return self._go("barrier", [], [])

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Wait for all ranks."""
        self.barrier().wait()

    # Names of earlier versions, which torch still calls.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    split_group = _unsupported("split_group")
    merge_remote_group = _unsupported("merge_remote_group")
    get_group_store = _unsupported("get_group_store")
    _start_coalescing = _unsupported("_start_coalescing")
    _register_on_completion_hook = _unsupported("_register_on_completion_hook")
