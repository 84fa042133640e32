"""Timelines as Chrome trace events, which Perfetto shows and Holistic Trace Analysis reads.

A trace has one process a rank, with a thread for each of its streams and one for its passes, between which arrows show what
waits for what. Events are written as they are expanded, so that a trace may be far larger than memory. Ranks that do the same
differ in their numbers only, so their text is made once, and packed once (`packed`).

References
----------
.. [1] Google, "Trace Event Format", 2016.
.. [2] PyTorch Kineto and Holistic Trace Analysis 0.5.0: top-level keys, categories and names of kernels (`hta/utils/utils.py`).
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array, plain
from crossflow.edges.trace.packed import GzipPieces, RepeatedText, mark
from crossflow.engine.timeline.record import CHUNK, HOST, MODELLED, STREAMS, WAIT, WORK, Events, Timeline
from crossflow.parallel.tables import COLLECTIVES

Ranks = Sequence[int] | Literal["all"] | None
Watcher = Callable[[int, int], None]  # told how many events are written, and of how many
EventTexts = Iterable[tuple[int, RepeatedText]]  # events as JSON in pieces, each with how many of them are the timeline's own
PASSES = len(STREAMS)  # thread of passes, below those of streams
ANY = -1  # the number of a rank in a text that is to be written for several
MANY = 16  # ranks of a class from which on packing their text once pays
COMPRESSION = 1  # events repeat so much that higher levels save little and take long
GIB = 2.0**30


# ------------------------------------------------------------------------------------------ files


def write_trace(timeline: Timeline, path: Path, *, ranks: Ranks = None, progress: Watcher | None = None) -> int:
    """Write a timeline as one trace, compressed where its path ends in ``.gz``, whole or not at all.

    Parameters
    ----------
    ranks : ranks that become processes: by default the first of every class of devices; ``"all"``, or some by number.
    progress : called with the events written so far and all that will be.

    Returns
    -------
    int
        Events of the timeline that were written, for all ranks.

    Raises
    ------
    CrossflowError
        When the folder does not take the file.
    ValueError
        When there is no such rank.
    """
    chosen = _chosen(timeline, ranks)
    written, total = 0, _events(timeline, chosen)
    with _stream(path) as out:
        for count in _write(timeline, chosen, _texts_of(timeline), out):
            written += count
            if progress is not None:
                progress(written, total)
    return written


def write_events(events: Sequence[Mapping[str, Any]], path: Path, *, packed: bool = True) -> int:
    """Write events as a trace; their number."""
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")).encode()
    files.write_bytes(path, gzip.compress(text, mtime=0) if packed else text)
    return len(events)


def write_ranks(timeline: Timeline, folder: Path, *, ranks: Ranks = None, progress: Watcher | None = None) -> list[Path]:
    """Write one compressed trace a rank, ``rank0.json.gz`` and so on, as Holistic Trace Analysis expects them.

    Parameters, errors
        As of `write_trace`.
    """
    chosen, texts, paths, written = _chosen(timeline, ranks), _texts_of(timeline), [], 0
    total = _events(timeline, chosen)
    for device, mine in chosen.items():
        for rank in mine:
            paths.append(folder / f"rank{rank}.json.gz")
            with _stream(paths[-1]) as out:
                written += sum(_write(timeline, {device: [rank]}, texts, out, alike=len(mine)))
            if progress is not None:
                progress(written, total)
    return paths


class _Plain:
    """A file into which texts are written as they are."""

    def __init__(self, out: IO[bytes]) -> None:
        self.write = out.write

    def repeat(self, text: RepeatedText, number: int) -> None:
        """Write a text with a number."""
        self.write(text.plain(number))


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[_Plain | GzipPieces]:
    """A stream into a file that appears when all is written; the same bytes for the same timeline."""
    with files.replacing(path, binary=True) as stream:
        if path.suffix != ".gz":
            yield _Plain(stream)
            return
        packed = GzipPieces(stream, COMPRESSION)
        yield packed
        packed.close()


def _chosen(timeline: Timeline, ranks: Ranks) -> dict[int, Sequence[int]]:
    """Ranks to write by class of devices, for the classes that have any."""
    if ranks is None:
        return {i: device.ranks[:1] for i, device in enumerate(timeline.devices)}
    if ranks == "all":
        return {i: device.ranks for i, device in enumerate(timeline.devices)}
    wanted = set(ranks)
    found = {i: [rank for rank in device.ranks if rank in wanted] for i, device in enumerate(timeline.devices)}
    if unknown := sorted(wanted - {rank for mine in found.values() for rank in mine}):
        raise ValueError(f"rank {unknown[0]} is none of the {timeline.world} ranks of the timeline")
    return {device: mine for device, mine in found.items() if mine}


def _events(timeline: Timeline, chosen: Mapping[int, Sequence[int]]) -> int:
    """Events of the timeline that some ranks have."""
    return sum(int(timeline.events_of_one[device]) * len(mine) for device, mine in chosen.items())


def _write(
    timeline: Timeline, chosen: Mapping[int, Sequence[int]], texts: Callable[[int], EventTexts], out: _Plain | GzipPieces, alike: int = 0
) -> Iterator[int]:
    """Write the trace of some ranks of every class piece by piece; yields the events of the timeline in each.

    alike : ranks of a class that are written in all, where they are more than those that are chosen here.
    """
    head = json.dumps(_top(timeline, chosen), indent=1).removesuffix("\n}")
    out.write(f'{head},\n "traceEvents": [\n'.encode())
    separator = b""
    for device, mine in chosen.items():
        kept = max(alike, len(mine)) >= MANY and timeline.events_of_one[device] <= CHUNK
        for rank in mine:
            for count, text in texts(device):
                out.write(separator)
                out.repeat(text, rank) if kept else out.write(text.plain(rank))
                del text  # the next piece is made beside nothing
                separator = b",\n"
                yield count
    # After all slices: where an arrow starts with a slice, readers bind it to the last one that they saw begin.
    for device in chosen:
        arrows = _flows(timeline, device, chosen)
        while piece := list(itertools.islice(arrows, CHUNK)):
            out.write(separator + _text(piece))
    out.write(b"\n]}\n")


def _top(timeline: Timeline, chosen: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    """What stands before the events [2]_."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": MODELLED, "totalGlobalMem": plain(timeline.capacity)}],
        "distributedInfo": {
            "rank": next((rank for mine in chosen.values() for rank in mine), 0),
            "world_size": timeline.world,
            "backend": "nccl",
        },
        "traceName": timeline.title,
        "displayTimeUnit": "ms",
    }


# ------------------------------------------------------------------------------------------ events


def _texts_of(timeline: Timeline) -> Callable[[int], EventTexts]:
    """Events of `ANY` rank of a class of devices; those of the last class are kept for its next rank where they are one piece."""

    @functools.lru_cache(maxsize=1)
    def kept(device: int) -> EventTexts:
        texts = _texts(timeline, device)
        whole = [(count, text.text) for count, text in texts]
        return ((sum(count for count, _ in whole), RepeatedText(b",\n".join(text for _, text in whole), _width(timeline))),)

    return lambda device: kept(device) if timeline.events_of_one[device] <= CHUNK else _texts(timeline, device)


def _texts(timeline: Timeline, device: int) -> Iterator[tuple[int, RepeatedText]]:
    """Names, passes, memory and events of `ANY` rank of a class of devices."""
    yield 0, _of_any((*_names(timeline, device), *_passes(timeline, device), *_memory(timeline, device)), timeline)
    for count, lines in _kernels(timeline, device):
        yield count, _of_any(lines, timeline)


def _width(timeline: Timeline) -> int:
    """Digits of the largest rank."""
    return len(str(timeline.world - 1))


def _of_any(lines: Iterable[str], timeline: Timeline) -> RepeatedText:
    """Lines of `ANY` rank; inside a string of JSON the quotes around the name of its number would be escaped."""
    width = _width(timeline)
    return RepeatedText(_text(lines).replace(b'"pid":%d,' % ANY, b'"pid":%s,' % mark(width)), width)


def _text(lines: Iterable[str]) -> bytes:
    return ",\n".join(lines).encode()


def _ticks(times: Array) -> Array:
    """Times in microseconds at whole nanoseconds, so that what touches in the timeline touches in the trace."""
    return np.asarray(np.rint(times * 1e9) / 1e3)


def _names(timeline: Timeline, device: int) -> Iterator[str]:
    """Names and places of the process of `ANY` rank and its threads."""
    one = timeline.devices[device]
    yield _meta("process_name", name=one.name)
    yield _meta("process_labels", labels=f"1 of {len(one.ranks)} alike")
    yield _meta("process_sort_index", sort_index=one.stage)
    for thread, name in enumerate((*STREAMS, "passes")):
        yield _meta("thread_name", thread, name=name)
        yield _meta("thread_sort_index", thread, sort_index=thread)


def _meta(name: str, thread: int = 0, /, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": ANY, "tid": thread, "ts": 0, "args": args}, separators=(",", ":"))


def _passes(timeline: Timeline, device: int) -> Iterator[str]:
    """The step, and in it the passes, as annotations."""
    head = f'{{"ph":"X","cat":"user_annotation","pid":{ANY},"tid":{PASSES},"name":'
    yield f'{head}"ProfilerStep#0","ts":0.000,"dur":{_ticks(np.array(timeline.total)):.3f}}}'
    labels = [json.dumps(one.label)[1:-1] for one in timeline.passes]
    mine, slots = timeline.slots_of(device), timeline.slots
    start, end = _ticks(slots.start[mine]), _ticks(slots.end[mine])
    rows = zip(*(column.tolist() for column in (slots.passed[mine], slots.microbatch[mine], start, end - start)), strict=True)
    for passed, batch, ts, dur in rows:
        yield f'{head}"{labels[passed]}{f" {batch}" if batch >= 0 else ""}","ts":{ts:.3f},"dur":{dur:.3f}}}'


def _memory(timeline: Timeline, device: int) -> Iterator[str]:
    """What the device holds, wherever that changes."""
    times, held = timeline.memory[device]
    for ts, value in zip(_ticks(times).tolist(), (held / GIB).tolist(), strict=True):
        yield f'{{"ph":"C","name":"memory [GiB]","pid":{ANY},"ts":{ts:.3f},"args":{{"held":{value:.6g}}}}}'


def _kernels(timeline: Timeline, device: int) -> Iterator[tuple[int, list[str]]]:
    """The events of `ANY` rank of a class, a piece at a time; correlations count them."""
    head, first = _heads(timeline, device), 1
    for events in timeline.chunks(device):
        yield len(events), _complete(timeline, events, head, first)
        first += len(events)


def _complete(timeline: Timeline, events: Events, head: Callable[..., str], first: int) -> list[str]:
    """Complete events: what they share with others, then what is their own."""
    passed = timeline.slots.passed[events.slot]
    heads = map(head, *(part.tolist() for part in (events.name, events.stream, events.kind, events.layer, passed)))
    start, end = _ticks(events.start), _ticks(events.end)
    # The difference of two multiples of a nanosecond is one again once it is written with three decimals.
    own = zip(heads, events.microbatch.tolist(), range(first, first + len(events)), start.tolist(), (end - start).tolist(), strict=True)
    return [f'{same}{batch},"correlation":{i},"External id":{i}}},"ts":{ts:.3f},"dur":{dur:.3f}}}' for same, batch, i, ts, dur in own]


def _heads(timeline: Timeline, device: int) -> Callable[..., str]:
    """Writer of what events of one name, stream, kind, layer and pass have in common."""

    @functools.cache
    def head(name: int, stream: int, kind: int, layer: int, passed: int) -> str:
        written = kernel_name(timeline.names[name], stream, kind)
        category = "cpu_op" if stream == HOST else "gpu_memcpy" if written.startswith("Memcpy") else "kernel"
        # What has a stream readers take for work of the device, which does nothing while it waits for its host.
        args: dict[str, Any] = {} if stream == HOST else {"stream": stream}
        args |= {"layer": layer, "stage": timeline.devices[device].stage, "pass": timeline.passes[passed].label}
        event = {"ph": "X", "name": written, "cat": category, "pid": ANY, "tid": stream, "args": args | {"microbatch": ""}}
        return json.dumps(event, separators=(",", ":")).removesuffix('""}}')

    return head


def kernel_name(name: str, stream: int, kind: int) -> str:
    """Name of an event as traces have it: collectives as kernels of NCCL, waits as one of them, copies to and from the host as such.

    >>> kernel_name("attention all_reduce", 1, 1), kernel_name("host_copy", 6, 1), kernel_name("attention", 0, 0)
    ('ncclDevKernel_AllReduce (tensor, attention)', 'Memcpy (to_host)', 'attention')
    """
    if kind == WORK:
        return name
    about = [STREAMS[stream]]
    collective = next((one for one in COLLECTIVES if name.endswith(one)), "")
    about += [name.removesuffix(collective).strip(" .:,/-"), *["waiting"] * (kind == WAIT and "waiting" not in name)]
    inside = ", ".join(dict.fromkeys(filter(None, about)))
    kernel = "ncclDevKernel_" + "".join(word.capitalize() for word in (collective or "wait").split("_"))
    return f"{'Memcpy' if collective == 'host_copy' else kernel} ({inside})"


def _flows(timeline: Timeline, device: int, chosen: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Arrows to the slots of a class of devices from what they wait for, where both ends are written.

    Ranks of two classes belong together by their places among those written. An arrow leaves a nanosecond before its slice
    ends: at its end the next slice has begun.
    """
    slots, mine = timeline.slots, timeline.slots_of(device)
    mine = mine[slots.source[mine] >= 0]
    mine = mine[np.isin(slots.device[slots.source[mine]], list(chosen))]
    source = slots.source[mine]
    leaves = np.maximum(_ticks(slots.end[source]) - 1e-3, _ticks(slots.start[source]))
    rows = zip(mine.tolist(), slots.device[source].tolist(), leaves.tolist(), _ticks(slots.start[mine]).tolist(), strict=True)
    for slot, other, ts, arrives in rows:
        for i, (there, here) in enumerate(zip(chosen[other], chosen[device], strict=False)):
            head = f'"cat":"pipeline","name":"result","id":{slot + i * len(slots.start)},"tid":{PASSES}'
            yield f'{{"ph":"s",{head},"pid":{there},"ts":{ts:.3f}}}'
            yield f'{{"ph":"f","bp":"e",{head},"pid":{here},"ts":{arrives:.3f}}}'
