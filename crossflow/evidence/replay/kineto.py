"""Kineto traces, as the PyTorch profiler writes them, read into columns.

What the events mean is written down in the profiler's source only; what was found in traces of several versions:

- An event's `tid` is a thread of the host, or a stream of the device, whose number is `pid`.
- A runtime call and the work that it launched share a `correlation`; `External id` equals it there, and is no operation's.
- An operation owns a call by time: the call lies inside of it on its thread.
"""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, rows_of
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.engine.timeline.record import MODELLED
from crossflow.evidence.replay.engines import engine_step
from crossflow.evidence.replay.events import EventFile, event_files, is_nsight
from crossflow.evidence.replay.nsight import REPORTS, nsight_files, refuse_clocks_apart
from crossflow.evidence.replay.tensors import TracedOperation

KERNEL, COPY, SET = range(3)  # what a device does
WORKS: Mapping[str, int] = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": SET, "memset": SET}
OPS = ("cpu_op", "operator")
CALLS = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver")
MARKS = ("user_annotation",)
STEP, UPDATE = "ProfilerStep", "Optimizer.step"  # how annotations begin that mark steps
SYNCS = ("cuda_sync",)
ABOUT = ("process_name", "process_labels")  # metadata that say what a process is
FOREIGN: Mapping[str, str] = {"mtia": "MTIA", "xpu": "Intel", "hpu": "Gaudi", "privateuse1": "a custom device"}
COLLECTIVE_KERNELS = ("ncclKernel", "ncclDevKernel", "rcclKernel", "ncclKernel_", "mscclKernel")
# What names of collectives hold that engines bring themselves.
OWN_COLLECTIVES = ("cross_device_reduce", "allreduce_fusion", "one_shot_all_reduce", "two_shot_all_reduce", "multimem_all_reduce")
UNIT = 1e-6  # of times in a trace [s]
MOST = 1 << 53  # numbers beyond name nothing
LATEST = 1e17  # times beyond are no times: the year 5138 [us]
InputShapes = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]  # sizes of every input, its type, and its value where recorded


@dataclass(frozen=True, kw_only=True, eq=False)
class HostSpans:
    """What threads of the host do, in the order of their starts, longer ones first; arrays of shape (spans,)."""

    name: Index  # in the names of the trace
    thread: Index
    start: Array  # [s]
    end: Array  # [s]
    correlation: Index  # of a call with the work that it launched, of an operation its `External id`; -1 for none
    shape: Index  # of an operation in the shapes of the trace, -1 where none were recorded

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceWorks:
    """What the device does, in the order of starts; arrays of shape (works,)."""

    name: Index
    kind: Index  # `KERNEL`, `COPY` or `SET`
    stream: Index
    start: Array  # [s]
    end: Array  # [s]
    correlation: Index
    warps: Array  # warps per multiprocessor that a kernel asks for, nan where not recorded. [1]
    moved: Array  # bytes of a copy, nan where not recorded. [B]
    collective: Mask  # whether it is a kernel of a collective
    args: tuple[Mapping[str, Any] | None, ...]  # of collectives, what the profiler wrote beside

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamSyncs:
    """Waits of the device as newer profilers record them, in the order of their starts; arrays of shape (syncs,), -1 for what is not said.

    Attributes
    ----------
    stream, source : stream that waits, and stream that it waits for.
    record : correlation of the call that recorded the event which is waited for.
    correlation : of the call that asked for the wait.
    """

    stream: Index
    source: Index
    record: Index
    correlation: Index

    def __len__(self) -> int:
        return len(self.stream)


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """A step as the trace marks it."""

    name: str
    start: float  # [s]
    end: float  # [s]
    thread: int  # of the host, where it is marked

    @property
    def time(self) -> float:
        """How long it takes. [s]"""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTrace:
    """The trace of one rank; times from the first event of all ranks that are read together.

    Attributes
    ----------
    source : its file.
    rank, world : as the trace says, else by its place among the files.
    device : name of its device, "" where it is not recorded.
    names : texts that the columns point to.
    label : what it stands for, of traces that crossflow wrote: "stage 3, 1 of 8 alike".
    process : number of its process, "" where no operation was recorded.
    ranked : whether it says its rank.
    memory : of its device, nan where it is not recorded. [B]
    shapes : sizes, types and values of the inputs of operations, as the profiler wrote them.
    streams : numbers of the device's streams, as the trace has them.
    ops, calls, marks : operations, calls of the device's runtime, and annotations of the host.
    works : what the device did.
    syncs : waits as newer profilers record them.
    windows : its steps.
    origin : when its time began. [s]
    details : of operations, by their places among `ops`, what an execution trace says beside.
    notes : what the reader found, as sentences.
    """

    source: str
    rank: int
    world: int
    device: str
    names: tuple[str, ...]
    shapes: tuple[InputShapes, ...]
    streams: tuple[str, ...]
    ops: HostSpans
    calls: HostSpans
    marks: HostSpans
    works: DeviceWorks
    syncs: StreamSyncs
    windows: tuple[Window, ...]
    origin: float
    label: str = ""
    process: str = ""
    ranked: bool = False
    memory: float = math.nan
    details: Mapping[int, TracedOperation] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def name(self, place: int) -> str:
        """A name of the trace."""
        return self.names[place]

    @property
    def head(self) -> TraceHead:
        """What it says of its rank."""
        return TraceHead(
            source=self.source, rank=self.rank, world=self.world, ranked=self.ranked, process=self.process, modelled=self.modelled,
            span=_span(self),
        )  # fmt: skip

    @property
    def modelled(self) -> bool:
        """Whether crossflow wrote it: a prediction, in which nothing was measured and no host launches anything."""
        return self.device == MODELLED


# Numbers of events as they are collected, in eight bytes each, row after row: a trace has millions of them.
SPAN = 6  # start, end, name, thread, correlation, shape
WORK = 9  # start, end, name, stream, correlation, kind, warps, bytes, whether it is a collective
SYNC = 5  # start, stream, stream that it waits for, correlations of the record and of the wait
# Of collectives, what the profiler says beside that is used.
SAID = (
    "Collective name", "In msg nelems", "Out msg nelems", "In split size", "Out split size", "dtype", "Group size", "Process Group Name",
    "Process Group Ranks",
)  # fmt: skip


def _numbers() -> array[float]:
    return array("d")


@dataclass(kw_only=True)
class _TraceColumns:
    """What is collected of a file while it is read."""

    names: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, InputShapes]] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    streams: dict[tuple[Any, Any], int] = field(default_factory=dict)
    ops: array[float] = field(default_factory=_numbers)  # rows of `SPAN` numbers, those of works of `WORK`
    calls: array[float] = field(default_factory=_numbers)
    marks: array[float] = field(default_factory=_numbers)
    works: array[float] = field(default_factory=_numbers)
    said: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # of collectives, by their rows among works
    syncs: array[float] = field(default_factory=_numbers)
    texts: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # what is said of collectives, once each
    waited: dict[str, int] = field(default_factory=dict)  # streams that waits name
    rank: int | None = None  # that all of it is of, where the file holds several
    foreign: set[str] = field(default_factory=set)
    passes: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # begins and ends of annotations, by name [us]
    called: dict[str, str] = field(default_factory=dict)  # the process, by the names of its metadata
    odd: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Keep an event that matters."""
        if event.get("ph") != "X":
            self._meta(event)
            return
        category = event.get("cat", "")
        try:
            if category in MARKS or (category in OPS and str(event.get("name", "")).startswith(STEP)):  # older profilers mark steps as ops
                self.marks.extend(self._span(event, "External id"))
                self.passes.setdefault(str(event["name"]), []).append(_times(event))
            elif category in OPS:
                self.ops.extend(self._span(event if self.rank is None else self._held(event), "External id"))
            elif category in CALLS:
                self.calls.extend(self._span(event, "correlation"))
            elif category in WORKS:
                self.works.extend(self._work(event, WORKS[category]))
            elif category in SYNCS:
                self.syncs.extend(self._sync(event))
            elif isinstance(category, str) and (word := category.partition("_")[0]) in FOREIGN:
                self.foreign.add(FOREIGN[word])
        except (KeyError, TypeError, ValueError, AttributeError):
            self.odd += 1

    def _meta(self, event: Mapping[str, Any]) -> None:
        """Keep what a process is called."""
        said, args = event.get("name"), event.get("args")
        if event.get("ph") == "M" and said in ABOUT and isinstance(args, Mapping):
            self.called[str(said)] = _shown(", ".join(map(str, args.values())))

    def _held(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """An event of the host as long as it holds up its pass: what it began beside an earlier one kept nobody waiting there."""
        (start, end), args = _times(event), event["args"]
        mine = self.passes.get(f"{args['pass']} {args['microbatch']}", self.passes.get(args["pass"], ()))
        inside = ((max(start, begin), min(end, done)) for begin, done in mine)
        first, last = max(inside, key=lambda span: span[1] - span[0], default=(start, end))
        return {**event, "ts": first, "dur": max(last - first, 0.0)}

    def _span(self, event: Mapping[str, Any], number: str) -> tuple[Any, ...]:
        (start, end), args = _times(event), event.get("args") or {}
        name = self.names.setdefault(_shown(str(event["name"])), len(self.names))
        thread = self.threads.setdefault((event["pid"], event["tid"]), len(self.threads))
        sizes = args.get("Input Dims")
        types = args.get("Input type", args.get("Input Types", ()))
        shape = self._shape(sizes, types, args.get("Concrete Inputs", ())) if sizes else -1
        return start, end, name, thread, _number(args.get(number, -1)), shape

    def _shape(self, *parts: Any) -> int:
        text = f"{parts}"
        if text not in self.shapes:
            sizes, types, values = map(tuple, parts)
            self.shapes[text] = len(self.shapes), (sizes, types, values)
        return self.shapes[text][0]

    def _work(self, event: Mapping[str, Any], kind: int) -> tuple[Any, ...]:
        args = event.get("args") or {}
        (start, end), text = _times(event), _shown(str(event["name"]))
        collective = kind == KERNEL and is_collective(text)
        name = self.names.setdefault(text, len(self.names))
        stream = self.streams.setdefault((event["pid"], event["tid"]), len(self.streams))
        if collective:
            said = {name: args[name] for name in SAID if name in args}
            self.said[len(self.works) // WORK] = self.texts.setdefault(f"{said}", said)
        numbers = (float(args.get("warps per SM", math.nan)), float(args.get("bytes", math.nan)))
        return start, end, name, stream, _number(args.get("correlation", -1)), kind, *numbers, collective

    def _sync(self, event: Mapping[str, Any]) -> tuple[float, ...]:
        args = event.get("args") or {}
        streams = (self.waited.setdefault(str(args.get(name)), len(self.waited)) for name in ("stream", "wait_on_stream"))
        numbers = (args.get(name) for name in ("wait_on_cuda_event_record_corr_id", "correlation"))
        return _times(event)[0], *streams, *(_number(one) if isinstance(one, int) else -1 for one in numbers)


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    """Start and end of an event; ValueError where they are no times. [us]"""
    start, length = float(event["ts"]), float(event["dur"])
    if not (abs(start) < LATEST and 0.0 <= length < LATEST):
        raise ValueError(event)
    return start, start + length


def _number(written: Any) -> int:
    """A number by which events name each other; ValueError where it is none."""
    found = int(written)
    if abs(found) > MOST:
        raise ValueError(written)
    return found


@functools.lru_cache(maxsize=4096)
def is_collective(kernel: str) -> bool:
    """Whether a kernel is one of a collective, by its name."""
    return kernel.startswith(COLLECTIVE_KERNELS) or any(name in kernel for name in OWN_COLLECTIVES)


@functools.lru_cache(maxsize=1 << 16)
def _shown(text: str) -> str:
    """A name without characters that a terminal would obey."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _table(numbers: array[float], width: int) -> tuple[Array, Index]:
    """Rows of numbers, shape (rows, width), and their order by start, longer ones first."""
    table = np.frombuffer(numbers, dtype=float).reshape(-1, width)
    return table, np.lexsort((-table[:, 1], table[:, 0]))


def _host_spans(numbers: array[float], origin: float) -> HostSpans:
    table, order = _table(numbers, SPAN)
    start, end = (UNIT * (table[order, i] - origin) for i in range(2))
    name, thread, correlation, shape = (table[order, i].astype(np.intp) for i in range(2, SPAN))
    return HostSpans(start=start, end=end, name=name, thread=thread, correlation=correlation, shape=shape)


def _device_works(columns: _TraceColumns, origin: float) -> DeviceWorks:
    table, order = _table(columns.works, WORK)
    start, end = (UNIT * (table[order, i] - origin) for i in range(2))
    name, stream, correlation, kind = (table[order, i].astype(np.intp) for i in range(2, 6))
    return DeviceWorks(
        start=start, end=end, name=name, stream=stream, correlation=correlation, kind=kind, warps=table[order, 6], moved=table[order, 7],
        collective=table[order, 8] > 0, args=tuple(columns.said.get(row) for row in order.tolist()),
    )  # fmt: skip


def _stream_syncs(columns: _TraceColumns) -> StreamSyncs:
    table = np.frombuffer(columns.syncs, dtype=float).reshape(-1, SYNC)
    table = table[np.argsort(table[:, 0], kind="stable"), 1:].astype(np.intp)
    place = {str(stream): i for i, (_, stream) in enumerate(columns.streams)}
    known = np.array([*(place.get(text, -1) for text in columns.waited), -1])
    return StreamSyncs(stream=known[table[:, 0]], source=known[table[:, 1]], record=table[:, 2], correlation=table[:, 3])


def read_traces(paths: Iterable[str | Path], only: Container[str] | None = None) -> tuple[RankTrace, ...]:
    """Traces of the ranks of one job, by rank.

    Parameters
    ----------
    paths : files (.json, .json.gz), archives (.tar.gz) or folders with a trace a rank; or exports of Nsight Systems (.sqlite).
    only : names of files, of which the others are left out; all of them where absent.

    Raises
    ------
    SpecError
        For a file that is no Kineto trace, or one of a device that is not supported.
    CrossflowError
        Where two files are of one rank.
    """
    found: list[tuple[EventFile, _TraceColumns]] = []
    for file in itertools.chain.from_iterable(_files(Path(path)) for path in paths):
        if only is not None and file.name not in only:
            continue
        for columns in _collected(file):
            _check(file, columns)
            found.append((file, columns))
    refuse_clocks_apart([file for file, _ in found])
    origins = [_origin(file, columns) for file, columns in found]
    zero = min(origins, default=0.0)
    traces = []
    for place, (file, _) in enumerate(tuple(found)):
        traces.append(_rank_trace(file, found.pop(0)[1], place, zero))  # one after the other goes, for the sake of memory
    order, told = one_job([trace.head for trace in traces])
    if told:
        traces[0] = replace(traces[0], notes=(*traces[0].notes, *told))
    return tuple(traces[place] for place in order)


def one_by_one(path: Path) -> Iterator[RankTrace]:
    """The traces at a path, one after the other, each with times from its own first event.

    Raises
    ------
    SpecError
        As `read_traces`.
    """
    for file in _files(path):
        for columns in _collected(file):
            _check(file, columns)
            yield _rank_trace(file, columns, 0, _origin(file, columns))


def count_traces(paths: Iterable[str | Path], most: int) -> int:
    """How many files of traces there are, counted up to some number; an export of Nsight Systems is one.

    Raises
    ------
    SpecError
        Where nothing is there.
    """
    files = itertools.chain.from_iterable(_files(Path(path)) if not is_nsight(Path(path)) else (None,) for path in paths)
    return sum(1 for _ in itertools.islice(files, most))


@dataclass(frozen=True, kw_only=True)
class TraceHead:
    """What a trace says of its rank.

    Attributes
    ----------
    source, rank, world, ranked, process, modelled : as `RankTrace` has them.
    span : begin and end of what it holds, by the clocks of all traces. [s]
    """

    source: str
    rank: int
    world: int
    ranked: bool
    process: str
    modelled: bool
    span: tuple[float, float]


def one_job(heads: Sequence[TraceHead]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Places of the traces of a job by rank, and what had to be assumed, as sentences.

    Raises
    ------
    CrossflowError
        Where they are not of one job.
    """
    _refuse_mixtures(heads)
    worlds, told = sorted({head.world for head in heads}), tuple[str, ...]()
    if len(worlds) > 1:
        raise CrossflowError(f"the traces are of worlds of {' and '.join(map(str, worlds))} ranks; give those of one job")
    if len(heads) > 1 and not any(head.ranked for head in heads):
        _refuse_cycles(heads)
        told = ("no trace says its rank; they count as ranks 0, 1 and so on in the order of the files",)
    by_rank = {head.rank: place for place, head in enumerate(heads)}
    if len(by_rank) < len(heads):
        last = next(head for place, head in enumerate(heads) if by_rank[head.rank] != place)
        both = f"{last.source} and {heads[by_rank[last.rank]].source}"
        raise CrossflowError(f"{both} are both of rank {last.rank}; give one trace of each rank of one job")
    return tuple(by_rank[rank] for rank in sorted(by_rank)), told


def _files(path: Path) -> Iterator[EventFile]:
    """Files of events at a path, or the processes of an export of Nsight Systems."""
    if path.name.endswith(REPORTS) and path.is_file():
        cure = f"nsys export --type sqlite {path.name}, and give the file that it writes"
        raise SpecError([Problem(file=str(path), message=f"a report of Nsight Systems is read from its export; run {cure}")])
    return nsight_files(path) if is_nsight(path) else event_files(path)


def _collected(file: EventFile) -> Sequence[_TraceColumns]:
    """The events of a file: those of one rank, or of a rank a process where crossflow wrote it."""
    events = file.events()
    first = next(events, {})
    modelled = any(isinstance(one, Mapping) and one.get("name") == MODELLED for one in _listed(file.head.get("deviceProperties")))
    of_rank: dict[int | None, _TraceColumns] = {}
    for event in itertools.chain([first], events):
        rank = _whole(event.get("pid"), 0) if modelled else None
        if rank not in of_rank:
            of_rank[rank] = _TraceColumns(rank=rank)
        of_rank[rank].take(event)
    return tuple(of_rank.values())


def _refuse_mixtures(heads: Sequence[TraceHead]) -> None:
    """CrossflowError for a step that was measured on some ranks, and written by crossflow for others."""
    made = {head.modelled: head.source for head in heads}
    if len(made) > 1:
        apart = f"{made[True]} was written by crossflow, and {made[False]} was measured"
        raise CrossflowError(f"{apart}; to see both steps beside each other: crossflow trace MEASURED --compare WRITTEN")


def _refuse_cycles(heads: Sequence[TraceHead]) -> None:
    """CrossflowError where traces that say no rank are of one process, one after the other: cycles of its profiler, not ranks."""
    by_process: dict[str, list[TraceHead]] = {}
    for head in heads:
        by_process.setdefault(head.process, []).append(head)
    for process, mine in by_process.items():
        for first, second in itertools.combinations(mine if process else (), 2):
            (begin, end), (other, last) = first.span, second.span
            if end <= other or last <= begin:
                both = f"{first.source} and {second.source} are both of process {process}, one after the other, and say no rank"
                raise CrossflowError(f"{both}; give one trace of each rank of one job")


def _span(trace: RankTrace) -> tuple[float, float]:
    """Begin and end of what a trace holds. [s]"""
    kinds = [one for one in (trace.ops, trace.calls, trace.works) if len(one)]
    return min(float(one.start[0]) for one in kinds), max(float(one.end.max()) for one in kinds)


def _base(file: EventFile) -> float:
    """What newer traces count their times from, 0 for those whose times are absolute. [us]"""
    base = file.head.get("baseTimeNanoseconds", 0)
    return float(base) / 1000.0 if isinstance(base, int | float) else 0.0


def _origin(file: EventFile, columns: _TraceColumns) -> float:
    """Time of the first event. [us]"""
    kinds = ((columns.ops, SPAN), (columns.calls, SPAN), (columns.works, WORK), (columns.marks, SPAN))
    return _base(file) + min((float(np.frombuffer(rows, dtype=float)[::width].min()) for rows, width in kinds if rows), default=0.0)


def _check(file: EventFile, columns: _TraceColumns) -> None:
    if columns.works or columns.ops:
        return
    if columns.foreign:
        message = f"the trace is of {', '.join(sorted(columns.foreign))}, which is not supported; NVIDIA and AMD devices and the CPU are"
    elif "schema" in file.head:
        message = "this is an execution trace, which has no times of a device; give it as --execution beside the Kineto trace of its rank"
    else:
        message = "the trace has neither operations (cpu_op) nor work of a device (kernel); record it with torch.profiler"
    raise SpecError([Problem(file=file.name, message=message)])


def _rank_trace(file: EventFile, columns: _TraceColumns, place: int, zero: float) -> RankTrace:
    origin = zero - _base(file)
    known = file.head.get("distributedInfo")
    info: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    properties = _properties(file, columns)
    memory = properties.get("totalGlobalMem")
    trace = RankTrace(
        source=file.name, rank=_whole(info.get("rank") if columns.rank is None else columns.rank, place),
        world=_whole(info.get("world_size"), 1),
        device=_shown(str(properties.get("name", ""))), label=_label(columns),
        process=_process(columns), ranked="rank" in info,
        memory=float(memory) if isinstance(memory, int | float) else math.nan,
        names=tuple(columns.names), shapes=tuple(shapes for _, shapes in columns.shapes.values()),
        streams=tuple(str(stream) for _, stream in columns.streams), ops=_host_spans(columns.ops, origin),
        calls=_host_spans(columns.calls, origin), marks=_host_spans(columns.marks, origin), works=_device_works(columns, origin),
        syncs=_stream_syncs(columns), windows=(), origin=zero * UNIT, notes=tuple(_notes(file, columns)),
    )  # fmt: skip
    windows = windows_of(trace)
    if windows[0].name.startswith(STEP) or engine_step(windows[0].name) is not None:
        return replace(trace, windows=windows)
    how = "all of it is one step" if len(windows) == 1 else f"a step goes from one {UPDATE} to the next"
    return replace(trace, windows=windows, notes=(*trace.notes, f"{file.name} marks no steps ({STEP}); {how}"))


def _whole(given: Any, otherwise: int) -> int:
    return given if isinstance(given, int) and given >= 0 else otherwise


def _notes(file: EventFile, columns: _TraceColumns) -> Iterable[str]:
    if file.beside:
        yield f"of its folder these hold no trace and were left out: {', '.join(file.beside)}"
    if file.truncated:
        yield f"{file.name} ends in the middle; what stands before was read"
    if columns.odd:
        yield f"{file.name}: {columns.odd} events without a name, a time or a thread, or with times that are none, were left out"
    if columns.foreign:
        yield f"{file.name}: events of {', '.join(sorted(columns.foreign))} were left out"
    if not columns.works:
        yield f"{file.name} has no work of a device: the host is all that it holds"


def _properties(file: EventFile, columns: _TraceColumns) -> Mapping[str, Any]:
    """Properties of the device that it used."""
    listed = _listed(file.head.get("deviceProperties"))
    if not listed or not all(isinstance(one, Mapping) for one in listed):
        return {}
    used = {device for device, _ in columns.streams}
    mine = [one for one in listed if one.get("id") in used] or listed
    return dict(mine[0])


def _listed(written: Any) -> Sequence[Any]:
    return written if isinstance(written, list) else ()


def _label(columns: _TraceColumns) -> str:
    """What the process of a rank says that it is, where the file holds several."""
    return "" if columns.rank is None else ", ".join(filter(None, map(columns.called.get, ABOUT)))


def _process(columns: _TraceColumns) -> str:
    """Process of the first operation."""
    places = {place: process for (process, _), place in columns.threads.items()}
    return str(places[int(columns.ops[3])]) if columns.ops else ""


def windows_of(trace: RankTrace) -> tuple[Window, ...]:
    """Steps of a trace: of an engine, else as the profiler marks them, else from one optimizer step to the next, else all of it."""
    marks = trace.marks
    rows = [(trace.names[name], *row) for name, *row in rows_of(marks.name, marks.start, marks.end, marks.thread)]
    if engine := _engine_windows(trace, [row for row in rows if engine_step(row[0]) is not None]):
        return engine
    steps = [Window(name=text, start=start, end=end, thread=thread) for text, start, end, thread in rows if text.startswith(STEP)]
    if steps:
        return tuple(steps)
    begins = [(start, thread) for text, start, _, thread in rows if text.startswith(UPDATE)]
    if len(begins) > 1:
        return tuple(
            Window(name=f"step {i}", start=first, end=second, thread=thread)
            for i, ((first, thread), (second, _)) in enumerate(itertools.pairwise(begins))
        )
    ends = np.concatenate([trace.ops.end, trace.calls.end, trace.works.end])
    starts = np.concatenate([trace.ops.start, trace.calls.start, trace.works.start])
    thread = int(np.bincount(trace.ops.thread).argmax()) if len(trace.ops) else 0
    return (Window(name="trace", start=float(starts.min()), end=float(ends.max()), thread=thread),)


def _engine_windows(trace: RankTrace, rows: Sequence[tuple[str, float, float, int]]) -> tuple[Window, ...]:
    """Steps of an engine, each from its begin to that of the next, the last until its annotation and the device have ended."""
    apart: list[tuple[str, float, float, int]] = []
    for row in rows:
        if not apart or row[1] >= apart[-1][2]:  # one inside of another is part of it
            apart.append(row)
    if not apart:
        return ()
    last = max(apart[-1][2], float(trace.works.end.max(initial=-np.inf)))
    ends = [*(start for _, start, _, _ in apart[1:]), last]
    return tuple(Window(name=text, start=start, end=end, thread=thread) for (text, start, _, thread), end in zip(apart, ends, strict=True))


@functools.lru_cache(maxsize=4096)
def short_name(kernel: str) -> str:
    """A kernel's name without its arguments and template, for people.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)")
    'vectorized_elementwise_kernel'
    """
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    if text.startswith("cutlass::Kernel"):  # all of it is in the template
        text = text.partition("<")[2].partition(">")[0]
    for mark in ("<", "("):
        text = text.partition(mark)[0] or text
    return text.rpartition("::")[2] or text
