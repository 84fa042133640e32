"""A process group whose other ranks are emulated: every collective ends after its delay, with outputs as if all ranks had the same data."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from crossflow.base.errors import CrossflowError
from crossflow.evidence.emulation.accounting import ALL_TO_ALL, RECV, SEND, Entry, transfers
from crossflow.evidence.emulation.buffers import (
    check_contiguous,
    check_like,
    check_own_part,
    check_parts,
    check_reduction,
    check_sums,
    check_whole,
    data_of,
    described,
    flat,
    pairs,
    parts_of,
    put_data,
    repeat,
    tile,
)  # fmt: skip
from crossflow.evidence.emulation.delays import Delays
from crossflow.evidence.emulation.link import Call, LinkThread, Pace
from crossflow.evidence.emulation.record import Called, CallRecorder
from crossflow.evidence.emulation.shards import GatheredShards
from crossflow.evidence.emulation.standstill import StandstillWatch
from crossflow.evidence.emulation.values import MessageAwaited, MessageWay, Neighbours, reducing
from crossflow.evidence.emulation.what_if import Delay

TRIALS, TRIAL = 24, 1e-3  # calls with which the time of delivery is measured, and their delay [s]
LONGEST_EARLY = 500e-6  # of what may be taken for the time of delivery [s]
FOLLOW = 2e-6  # by which that time moves towards every delivery that is seen, so that it follows their median [s]
Tensors = Sequence[torch.Tensor]
STRANGE = sys.stdlib_module_names | {"torch", "crossflow"}  # packages in which a script does not call collectives itself


def _nothing(*_: Any) -> None:
    """Outputs stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a script asks of a process group.

    Attributes
    ----------
    op, tensors, result : what is called, with buffers whose size counts, and its outputs.
    fill : writes the outputs.
    peer, tag : of a transfer, the place in the group of the other rank, and what tells it from others.
    how : its reduction and its root, for messages.
    sent, received : of an all_to_all, what goes to and comes from each rank of the group. [B]
    gives, takes : data for other real ranks, and what writes those of the rank at a place; of object collectives alone.
    """

    op: str
    tensors: Tensors
    result: Any
    fill: Callable[[], None] = _nothing
    peer: int | None = None
    tag: int = 0
    how: str = ""
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    gives: Tensors = ()
    takes: Callable[[int, bytes], None] = _nothing


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
    watch : meets other real ranks, and tells them where this one stands still; None where there are none.
    early : median time from the end of a collective until a script that waits for it goes on: measured at first, then followed. [s]
    """

    delays: Delays
    real: tuple[int, ...]
    watch: StandstillWatch | None = None
    links: dict[str, LinkThread | StreamLink] = field(default_factory=dict)
    early: float = 0.0

    def __post_init__(self) -> None:
        self.pace, self.lock, self.local = Pace(slow=self.delays.what_if.slow), threading.Lock(), threading.local()
        self.others = frozenset(self.real) - {self.recorder.rank} if self.watch is not None else frozenset()
        self.neighbours, self.shards = Neighbours(), GatheredShards()
        self.early = self._delivery()

    def _delivery(self) -> float:
        """Median time from the end of a collective until a script that waits for it goes on. [s]"""
        link, late = LinkThread(name="trial"), []
        for _ in range(TRIALS):
            gate = threading.Lock()
            gate.acquire()
            now = time.perf_counter()
            link.put(Call(arrival=now, time=TRIAL, host=0.0, fill=_nothing, done=lambda *_, gate=gate: gate.release()))
            with gate:
                pass
            late.append(time.perf_counter() - now - TRIAL)
        link.close()
        return min(statistics.median(late), LONGEST_EARLY)

    def close(self) -> None:
        """End the threads of all links."""
        for link in self.links.values():
            link.close()
        if self.watch is not None:
            self.watch.close()

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """What this thread calls delivers the data of real ranks to one another."""
        self.local.exchanges = True
        try:
            yield
        finally:
            self.local.exchanges = False

    @contextlib.contextmanager
    def gathering(self, params: Sequence[Any]) -> Iterator[None]:
        """What this thread gathers are parameters of FSDP2."""
        self.local.gathers = params
        try:
            yield
        finally:
            self.local.gathers = ()

    def issue(self, group: EmulatedGroup, asked: Request) -> Handle:
        """Call a collective of a group."""
        called = self._called(group, asked)
        first = next(iter(asked.tensors), None)
        device = first.device if first is not None and first.is_cuda else None
        with self.lock:
            arrival = self.pace.arrival(called.at, called.ranks)
            number = self.recorder.called(called)
        handle = Handle(self, number, called, OutputFuture(device), asked.result)
        link = self._link(called.link, device)
        call = Call(arrival=arrival, time=called.changed.time, host=called.base.host, fill=asked.fill, done=handle.deliver)
        if self.watch is not None and self.others.intersection(called.ranks):
            self._meet(self.watch, self._entry(group, asked, called, number, arrival), handle, call, link, asked)
            return handle
        if self.watch is not None:
            self.watch.called(None)
        link.put(call)
        return handle

    def _called(self, group: EmulatedGroup, asked: Request) -> Called:
        """A call that begins now, with its delays."""
        now = time.perf_counter()
        size, dtype, _ = described(asked.tensors)
        pair = None if asked.peer is None else transfers(group.members, asked.peer, self.recorder.rank, asked.op)
        ranks = pair or group.members
        base = self._base(asked.op, size, ranks)
        return Called(
            at=now, op=asked.op, size=size, dtype=dtype, group=group.label, members=group.members, pair=pair,
            link=self.delays.wire(asked.op, group.label, ranks), base=base,
            changed=self.delays.what_if(asked.op, base) if len(group.members) > 1 else base,
        )  # fmt: skip

    def _entry(self, group: EmulatedGroup, asked: Request, called: Called, number: int, arrival: float) -> Entry:
        """What other real ranks are told of a call."""
        payload = data_of(asked.gives) if getattr(self.local, "exchanges", False) and asked.gives else None
        return Entry(
            rank=self.recorder.rank, group=called.group, ranks=called.ranks, op=called.op, size=called.size, dtype=called.dtype,
            arrival=arrival, patience=group.patience, how=asked.how, number=number, tag=asked.tag, sent=asked.sent, received=asked.received,
            payload=payload, where=_script_line(),
        )  # fmt: skip

    def _meet(
        self, watch: StandstillWatch, entry: Entry, handle: Handle, call: Call, link: LinkThread | StreamLink, asked: Request
    ) -> None:
        """Let a call go to its link once other real ranks have come; until then it keeps no other from the link."""
        if isinstance(link, StreamLink):
            raise CrossflowError("several real ranks that meet in collectives are supported on processors only; give one rank on a GPU")

        def met(start: float, payloads: Mapping[int, bytes]) -> None:
            def fill() -> None:
                asked.fill()
                for rank, data in payloads.items():
                    asked.takes(handle.members.index(rank), data)

            watch.met(entry.number)
            handle.met = start - entry.arrival
            link.put(replace(call, arrival=start, fill=fill))

        watch.called(entry.number)
        watch.meets.call(entry, met)

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


class OutputFuture(Future[Any]):
    """Outputs that are to come. What follows them may call and wait for collectives, so it runs in a thread of its own, not the link's."""

    def __init__(self, device: torch.device | None) -> None:
        super().__init__(devices=None if device is None else [device])
        self.lock, self.followed, self.decided = threading.Lock(), False, False

    def then(self, callback: Callable[[Any], Any]) -> Future[Any]:
        """What `callback` makes of them."""
        self._follow()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back once they are there."""
        self._follow()
        super().add_done_callback(callback)

    def _follow(self) -> None:
        with self.lock:
            self.followed = True
            decided = self.decided
        while decided and not self.done():  # they come from the link's thread now
            time.sleep(0)

    def decide(self) -> bool:
        """Whether something follows; from now on it waits for the outputs."""
        with self.lock:
            self.decided = True
            return self.followed


class Handle(dist.Work):
    """A collective that the script has called and may wait for."""

    def __init__(self, runtime: Runtime, number: int, called: Called, future: OutputFuture, result: Any) -> None:
        super().__init__()
        self.runtime, self.number, self.future, self.outputs = runtime, number, future, result
        self.kind, self.lasts, self.members = called.kind, called.changed.time, called.members
        self.taken = self.end = self.delivered = self.met = 0.0
        self.gate = threading.Lock()  # that those who wait can be interrupted at, unlike at a future
        self.gate.acquire()
        self.source = -1  # place in the group of who sent it, where the script named nobody
        self.awaited: MessageAwaited | None = None  # of a transfer to this rank

    def _source_rank(self) -> int:
        return self.source

    def deliver(self, filled: float, end: float, error: Exception | None) -> None:
        """End it, or let those who wait know what went wrong."""
        self.end, self.delivered = end, time.perf_counter() + self.runtime.early
        if error is None:
            self.runtime.recorder.delivered(self.number, self.met, filled, self.lasts)
        give, what = (self.future.set_exception, error) if error is not None else (self.future.set_result, self.outputs)
        if self.future.decide():
            threading.Thread(target=give, args=(what,), name="outputs").start()
        else:
            give(what)
        if self.runtime.watch is not None:
            self.runtime.watch.ended()
        self.gate.release()

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - the other ranks always come
        """Wait until it ends."""
        watch, began = self.runtime.watch, time.perf_counter()
        with contextlib.nullcontext() if watch is None else watch.waiting(self.number), self.gate:
            pass
        self.future.wait()
        if self.awaited is not None:
            self.awaited.open = False
        self.runtime.waited([self], began, time.perf_counter())
        if began < self.end - self.runtime.early:
            self.runtime.follow(time.perf_counter() - self.end)
        return True

    def get_future(self) -> Future[Any]:
        """The future of its outputs, for which gradient buckets wait at the end of a backward pass."""
        self.taken = time.perf_counter()
        if self.runtime.watch is not None:
            self.runtime.watch.taken.add(self.number)
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
        self.stream = torch.cuda.CachedLookups(self.device)
        self.rate = self._cycles()

    def close(self) -> None:
        """Nothing runs on the host."""

    def put(self, call: Call) -> None:
        """Let the stream take the time of a collective."""
        now = time.perf_counter()
        late = max(call.arrival - now, 0.0)  # of slower ranks
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            call.fill()
            torch.cuda._sleep(int((late + call.time) * self.rate))
            call.done(0.0, call.arrival + call.time, None)

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


def _script_line() -> str:
    """File and line of the script's own frame that calls, "" where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in STRANGE:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


# -------------------------------------------------------------------------------------------- the group


def _unsupported(name: str) -> Callable[..., Any]:
    """A method that is not emulated."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CrossflowError(f"crossflow emulate does not support ProcessGroup.{name}; docs/how-to/emulation.md says what it supports")

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

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]]

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

    def _go(self, op: str, tensors: Any, result: Any, fill: Callable[[], None] = _nothing, opts: Any = None, **more: Any) -> Handle:
        tensors = flat(tensors)
        check_reduction(getattr(opts, "reduceOp", None), tensors)
        return self.runtime.issue(self, Request(op=op, tensors=tensors, result=result, fill=fill, how=self._how(op, opts), **more))

    def _how(self, op: str, opts: Any) -> str:
        """Reduction and root of a call, as far as its options have them."""
        reduction, root = getattr(opts, "reduceOp", None), getattr(opts, "rootRank", None)
        said = [] if reduction is None else [f"with {reduction.op.name}"]
        if root is not None:
            said.append(f"{'from' if op in ('broadcast', 'scatter') else 'to'} rank {self._member(op, root)}")
        return " ".join(said)

    def _member(self, op: str, place: int) -> int:
        """Global rank of a place; RuntimeError where the group does not have it."""
        if not 0 <= place < len(self.members):
            raise RuntimeError(f"{op}: invalid rank {place} in a group of {len(self.members)}")
        return self.members[place]

    # Collectives.
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Reduction over all ranks, of what this one has."""
        return self._go("all_reduce", tensors, flat(tensors), self._reduced(flat(tensors), opts), opts=opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Reduction on one rank; the others keep what they have."""
        fill = self._reduced(flat(tensors), opts) if opts.rootRank == self.place else _nothing
        return self._go("reduce", tensors, flat(tensors), fill, opts=opts)

    def _reduced(self, tensors: Tensors, opts: Any, first: Callable[[], None] | None = None) -> Callable[[], None]:
        """Reduces buffers that all ranks have alike."""
        return reducing(tensors, getattr(opts, "reduceOp", None), len(self.members), first)

    def broadcast(self, tensors: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Copy of one rank: every rank keeps what it has."""
        (tensor,), root = flat(tensors), opts.rootRank
        return self._go(
            "broadcast", tensors, flat(tensors), opts=opts,
            gives=[tensor] if root == self.place else [], takes=lambda _, data: put_data(tensor, data),
        )  # fmt: skip

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """All ranks' buffers: this one's, as often."""
        lists, inputs = ([outputs], [inputs]) if isinstance(inputs, torch.Tensor) else (outputs, inputs)
        for row, source in zip(lists, inputs, strict=True):
            check_parts("all_gather", "output", row, len(self.members))
            check_like("all_gather", row, source, self.place)
        sources = [source for row, source in zip(lists, inputs, strict=True) for _ in row]
        return self._go(
            "all_gather", outputs, outputs, pairs(flat(outputs), sources),
            gives=inputs[:1], takes=lambda place, data: put_data(lists[0][place], data),
        )  # fmt: skip

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Several of them; outputs are lists of each rank."""
        check_parts("all_gather", "output", outputs, len(self.members))
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """The same in one buffer."""
        return self.all_gather_single_coalesced([output], [source], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """Several of them."""
        both = list(zip(outputs, inputs, strict=True))
        for output, source in both:
            check_whole("all_gather", output, source, len(self.members))
        params = getattr(self.runtime.local, "gathers", ())
        parts = self.runtime.shards.parts(params, inputs[0].numel()) if params and len(both) == 1 else None

        def fill() -> None:
            for output, source in both:
                if parts is None:
                    repeat(output, source, len(self.members))
                else:
                    self.runtime.shards.write(output, source, parts, self.place)

        return self._go("all_gather", outputs, outputs, fill)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Reduction over all ranks, of which each keeps a part."""
        outs, lists = ([outputs], [inputs]) if isinstance(outputs, torch.Tensor) else (outputs, inputs)
        for output, row in zip(outs, lists, strict=True):
            check_parts("reduce_scatter", "input", row, len(self.members))
            check_like("reduce_scatter", row, output, self.place)
        fill = self._reduced(outs, opts, pairs(outs, [row[self.place] for row in lists]))
        return self._go("reduce_scatter", inputs, outputs, fill, opts=opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """The same in one buffer."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """Several of them."""
        for output, source in zip(outputs, inputs, strict=True):
            check_whole("reduce_scatter", source, output, len(self.members))
        own = [one.detach().reshape(len(self.members), -1)[self.place] for one in inputs]
        return self._go("reduce_scatter", inputs, outputs, self._reduced(outputs, opts, pairs(outputs, own)), opts=opts)

    def all_to_all_single(
        self, output: torch.Tensor, source: torch.Tensor, out_splits: Any = None, in_splits: Any = None, *_: Any, **__: Any
    ) -> Handle:
        """Every rank sends a part to every other: from each comes what this one sends to its own place."""
        sizes, parts = list[tuple[int, ...]](), list[Tensors]()
        for tensor, splits in ((source, in_splits or ()), (output, out_splits or ())):
            check_sums("all_to_all", tensor, splits, len(self.members))
            sizes.append(parts_of(tensor, splits, len(self.members)))
            rows = torch.atleast_1d(tensor.detach())
            parts.append(rows.split([*splits] if splits else max(rows.shape[0] // len(self.members), 1)))
        return self._exchange(output, [source], [output], sizes[0], sizes[1], parts[0][self.place : self.place + 1], parts[1])

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:  # noqa: ARG002
        """The same in lists."""
        for word, listed in (("input", inputs), ("output", outputs)):
            check_parts("all_to_all", word, listed, len(self.members))
        sent, received = (tuple(one.numel() * one.element_size() for one in listed) for listed in (inputs, outputs))
        return self._exchange(outputs, inputs, outputs, sent, received, inputs[self.place : self.place + 1], outputs)

    def _exchange(
        self, result: Any, inputs: Tensors, outputs: Tensors, sent: tuple[int, ...], received: tuple[int, ...], own: Tensors, parts: Tensors
    ) -> Handle:
        """Every part of the output is the part of the input that belongs to this place, as often as it takes where sizes differ."""
        check_own_part("all_to_all", sent[self.place], received[self.place])

        def fill() -> None:
            for part, source in itertools.product(parts, own):
                tile(part, source)

        larger = max(outputs, inputs, key=lambda listed: sum(one.numel() for one in listed))
        return self._go(ALL_TO_ALL, larger, result, fill, sent=sent, received=received)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """All ranks' buffers on one: this one's, as often."""
        mine, targets = flat(inputs), flat(outputs)
        self._check_root("gather", "output", targets, mine[0], opts)
        return self._go(
            "gather", mine * len(self.members), outputs, pairs(targets, mine * len(targets)), opts=opts,
            gives=mine, takes=lambda place, data: put_data(targets[place], data) if targets else None,
        )  # fmt: skip

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any, **__: Any) -> Handle:
        """A part of one rank's data for every rank."""
        mine, sources = flat(outputs), flat(inputs)
        self._check_root("scatter", "input", sources, mine[0], opts)
        size = mine[0].numel() * mine[0].element_size()
        return self._go(
            "scatter", mine * len(self.members), outputs, pairs(mine, sources[self.place : self.place + 1]), opts=opts,
            gives=sources, takes=lambda _, data: put_data(mine[0], data[self.place * size : (self.place + 1) * size]),
        )  # fmt: skip

    def _check_root(self, op: str, word: str, parts: Tensors, mine: torch.Tensor, opts: Any) -> None:
        """RuntimeError where the list of the root does not suit its buffer."""
        if opts.rootRank == self.place:
            check_parts(op, word, parts, len(self.members))
            check_like(op, parts, mine, self.place)

    def send(self, tensors: Any, target: int, tag: int = 0) -> Handle:
        """Send to a rank of the group."""
        check_contiguous(tensors)
        self._member(SEND, target)
        (source,) = flat(tensors)
        message = self.runtime.neighbours.send(self._way(target - self.place, tag), source)
        return self._go(SEND, tensors, tensors, message.over, peer=target, tag=tag, gives=tensors)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Handle:
        """Receive from a rank of the group: what this one sends as far on."""
        (target,) = flat(tensors)
        check_contiguous([target])
        self._member(RECV, source)
        asked = self.runtime.neighbours.receive(self._way(self.place - source, tag), target)
        handle = self._go(
            RECV, tensors, tensors, lambda: self.runtime.neighbours.write(asked),
            peer=source, tag=tag, takes=lambda _, data: put_data(target, data),
        )  # fmt: skip
        handle.awaited = asked
        return handle

    def _way(self, places: int, tag: int) -> MessageWay:
        return MessageWay(group=self.label, places=places % len(self.members), tag=tag)

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
