"""Exports of Nsight Systems (``nsys export --type sqlite``), read as the events of Kineto traces, one file of events for each process.

Tables and columns are those of the SQLite Export Schema Reference of Nsight Systems [1]_. Which of them are there depends on what was
recorded. Ranges of NVTX that PyTorch writes (``torch.autograd.profiler.emit_nvtx``) are operations, others annotations; those that are
numbered as steps or iterations mark the steps.

References
----------
.. [1] NVIDIA, "Nsight Systems, SQLite Export Schema Reference", docs.nvidia.com/nsight-systems.
"""

from __future__ import annotations

import contextlib
import io
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.evidence.replay.events import EventFile

REPORTS = (".nsys-rep", ".qdrep")  # what Nsight Systems itself reads
KERNELS, CALLS, COPIES, FILLS, RANGES, DEVICES, SESSION = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "NVTX_EVENTS", "TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME",
)  # fmt: skip
NEEDED: Mapping[str, tuple[str, ...]] = {
    KERNELS: ("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
    CALLS: ("start", "end", "globalTid", "correlationId", "nameId"),
}
PUSHED, STARTED = 59, 60  # types of events of NVTX that are ranges
WARP = 32  # threads
# Kinds of copies and of memory by their numbers in CUPTI, as Kineto names them.
_WAYS: Mapping[int, str] = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MEMORY: Mapping[int, str] = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device"}
_OPERATION = re.compile(r"^(?P<name>.+?), (?:seq|op_id) = \d+")
_STEP = re.compile(r"^(?:train(?:ing)?[ _]?)?(?:step|iter|iteration)[ _#:]*\d+$", re.IGNORECASE)
_VERSION = re.compile(r"_v\d+$")  # of a call, behind its name


def nsight_files(path: Path) -> Iterator[EventFile]:
    """The events of every process of an export that used a device, by the number of the process.

    Raises
    ------
    SpecError
        For a file that is no such export, or one without kernels.
    """
    try:
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            export = _Export(path, database)
            processes = export.processes()
            for process in processes:
                name = f"{path}:{process}" if len(processes) > 1 else str(path)
                yield NsightFile(name=name, stream=io.BytesIO(), head=export.head(process), export=export, process=process)
    except sqlite3.Error as error:
        raise SpecError([Problem(file=str(path), message=f"this is no export of Nsight Systems that can be read: {error}")]) from None


def refuse_clocks_apart(files: Sequence[EventFile]) -> None:
    """CrossflowError for several exports that do not say when their times began."""
    mine = [file for file in files if isinstance(file, NsightFile)]
    if len({file.export.path for file in mine}) > 1 and not all("baseTimeNanoseconds" in file.head for file in mine):
        apart = "these exports of Nsight Systems count time from their own begins, and do not say when that was"
        raise CrossflowError(f"{apart} (table {SESSION}); give one of them")


@dataclass(kw_only=True)
class NsightFile(EventFile):
    """One process of an export, as a file of events."""

    export: _Export
    process: int
    head: dict[str, Any] = field(default_factory=dict)

    def events(self) -> Iterator[dict[str, Any]]:
        """The events, as a Kineto trace would list them."""
        export, process = self.export, self.process
        yield from export.kernels(process)
        yield from export.moved(COPIES, process)
        yield from export.moved(FILLS, process)
        yield from export.calls(process)
        yield from export.ranges(process)


class _Export:
    """The tables of an export."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        self.columns = {
            table: {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}
            for table in (KERNELS, CALLS, COPIES, FILLS, RANGES, DEVICES, SESSION, "StringIds")
        }
        for table, needed in NEEDED.items():
            missing = [name for name in needed if name not in self.columns[table]]
            if missing:
                what = f"the table {table} has no {', '.join(missing)}" if self.columns[table] else f"it has no table {table}"
                cure = "record with nsys profile --trace=cuda,nvtx, and export with nsys export --type sqlite"
                raise SpecError([Problem(file=str(path), message=f"{what}: no work of a device was recorded; {cure}")])
        texts = database.execute("SELECT id, value FROM StringIds") if self.columns["StringIds"] else ()
        self.texts: dict[int, str] = {int(number): str(value) for number, value in texts}

    def _rows(self, table: str, *names: str, where: str = "") -> Iterator[Sequence[Any]]:
        """Rows of a table; a column that is not there is empty."""
        there = self.columns[table]
        listed = ", ".join(f'"{name}"' if name in there else "NULL" for name in names)
        return iter(self.database.execute(f"SELECT {listed} FROM {table} {where}")) if there else iter(())

    def processes(self) -> list[int]:
        """Numbers of the processes that ran kernels."""
        return sorted({_process(row[0]) for row in self._rows(KERNELS, "globalPid", where="GROUP BY globalPid")})

    def head(self, process: int) -> dict[str, Any]:
        """What a Kineto trace says beside its events."""
        listed = self._rows(DEVICES, "id", "name", "totalMemory")
        found = [{"id": number, "name": str(name or ""), "totalGlobalMem": memory} for number, name, memory in listed]
        used = {row[0] for row in self._rows(KERNELS, "deviceId", where=f"{_where('globalPid', process)} GROUP BY deviceId")}
        moments = [moment for (moment,) in self._rows(SESSION, "utcEpochNs") if moment is not None]
        begun = {"baseTimeNanoseconds": moments[0]} if moments else {}
        return {"deviceProperties": [one for one in found if one["id"] in used] or found, **begun}

    def _text(self, *numbers: int | None) -> str:
        return next((self.texts[number] for number in numbers if number in self.texts), "unnamed")

    def kernels(self, process: int) -> Iterator[dict[str, Any]]:
        """Kernels of a process, with the warps that they ask of every multiprocessor."""
        units = {row[0]: row[1] for row in self._rows(DEVICES, "id", "smCount")}
        sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        names = ("start", "end", "deviceId", "streamId", "correlationId", "demangledName", "shortName")
        rows = self._rows(KERNELS, *names, *sizes, where=_where("globalPid", process))
        for start, end, device, stream, number, name, short, *shape in rows:
            args = {"correlation": number}
            if all(isinstance(one, int) for one in shape) and units.get(device):
                x, y, z, *block = shape
                args["warps per SM"] = x * y * z * -(-block[0] * block[1] * block[2] // WARP) / units[device]
            yield _event("kernel", self._text(name, short), device, stream, start, end, args)

    def moved(self, table: str, process: int) -> Iterator[dict[str, Any]]:
        """Copies, or fills, of a process."""
        names = ("start", "end", "deviceId", "streamId", "correlationId", "bytes", "copyKind", "srcKind", "dstKind")
        for start, end, device, stream, number, size, way, source, target in self._rows(table, *names, where=_where("globalPid", process)):
            ends = f" ({_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')})" if table == COPIES else ""
            name = f"Memcpy {_WAYS.get(way, 'Unknown')}{ends}" if table == COPIES else "Memset (Device)"
            args = {"correlation": number, **({"bytes": size} if size is not None else {})}
            yield _event("gpu_memcpy" if table == COPIES else "gpu_memset", name, device, stream, start, end, args)

    def calls(self, process: int) -> Iterator[dict[str, Any]]:
        """Calls of the runtime and the driver in a process."""
        names = ("start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, number, name in self._rows(CALLS, *names, where=_where("globalTid", process)):
            yield _event("cuda_runtime", _VERSION.sub("", self._text(name)), process, _thread(thread), start, end, {"correlation": number})

    def ranges(self, process: int) -> Iterator[dict[str, Any]]:
        """Ranges of NVTX in a process: operations of PyTorch, steps, and other annotations."""
        for start, end, sort, text, number, thread in self._rows(
            RANGES, "start", "end", "eventType", "text", "textId", "globalTid", where=_where("globalTid", process)
        ):
            if sort not in (PUSHED, STARTED) or end is None:
                continue
            name = str(text) if text else self._text(number)
            operation = _OPERATION.match(name)
            category = "cpu_op" if operation is not None else "user_annotation"
            named = operation["name"] if operation is not None else f"ProfilerStep#{name}" if _STEP.match(name) else name
            yield _event(category, named, process, _thread(thread), start, end, {})


def _where(column: str, process: int) -> str:
    """What holds for the rows of a process, whose number is in the middle of those of its threads."""
    return f"WHERE {column} >> 24 & 16777215 = {process}"


def _process(number: int) -> int:
    return number >> 24 & 0xFFFFFF


def _thread(number: int) -> int:
    return number & 0xFFFFFF


def _event(category: str, name: str, pid: int, tid: int, start: int, end: int, args: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a Kineto trace, whose times are in us; those of an export are in ns."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start / 1e3, "dur": (end - start) / 1e3, "args": dict(args),
    }  # fmt: skip
