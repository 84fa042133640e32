"""What a script called and waited for, and the time between: sums for a summary, all of it for a file that replays."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from crossflow.base import files, versions
from crossflow.base.errors import CrossflowError, SpecError, did_you_mean
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, Flag, NonNegativeInt, Whole
from crossflow.evidence.emulation.what_if import OPS, Delay

StepMark = TypeVar("StepMark")
WARM_UP = 2  # steps that do not count: frameworks lay out their buckets in the first
# A script goes on late that does so that much, and that share of a mean time, after the end of what it waits for. [s], [1]
LATE, LATE_SHARE = 200e-6, 0.04


class RecordedGroup(FileModel):
    """A process group."""

    name: str = Field(description="its name in torch")
    ranks: tuple[Whole, ...] = Field(description="its global ranks")


class CallRow(FileModel):
    """A collective that the script called."""

    act: Literal["call"] = Field(description="what the row is")
    at: Finite = Field(ge=0, description="when it was called [s]")
    op: str = Field(description="what was called")
    size: Whole = Field(ge=0, description="buffer of one rank [B]")
    dtype: str = Field("", description="of its elements")
    group: Whole = Field(ge=0, description="row of `groups`; of a transfer that of the whole group")
    ranks: tuple[Whole, ...] | None = Field(None, description="of a transfer, the rank that sends and the one that receives")
    link: str = Field(description="what it queued for; of a real run its group, and for transfers the direction")
    time: Finite = Field(
        ge=0, description="its delay, without what-ifs; of a real run the time from its call until its end, as measured [s]"
    )
    latency: Finite = Field(ge=0, description="of it, what a message of one byte takes; 0 where that is not known, as of a real run [s]")
    met: Finite = Field(0.0, ge=0, description="time that it waited for other real ranks [s]")
    fill: Finite = Field(0.0, ge=0, description="time that writing its outputs took on this machine, which it takes at least [s]")


class WaitRow(FileModel):
    """The script waited."""

    act: Literal["wait"] = Field(description="what the row is")
    at: Finite = Field(ge=0, description="when it began to wait [s]")
    until: Finite = Field(ge=0, description="when it went on [s]")
    of: tuple[NonNegativeInt, ...] = Field(description="calls that it waited for, by their place among the calls")


StepKind = Literal["optimizer", "backward"]


class StepRow(FileModel):
    """A step has ended: the first optimizer has stepped, or a backward pass is over."""

    act: Literal["step"] = Field(description="what the row is")
    at: Finite = Field(ge=0, description="when [s]")
    of: StepKind = Field("optimizer", description="optimizer or backward; backward passes count where no optimizer steps")


RecordRow = Annotated[CallRow | WaitRow | StepRow, Field(discriminator="act")]


class RankRecord(FileModel):
    """What one real rank did, in the order of time."""

    rank: Whole = Field(ge=0, description="its global rank")
    host: str = Field("", description="of a real run, the machine on which it ran")
    began: Finite = Field(0.0, description="of a real run, when its first row was, on the clock of that machine [s]")
    groups: tuple[RecordedGroup, ...] = Field(description="process groups")
    rows: tuple[RecordRow, ...] = Field(description="calls, waits and steps, times in seconds from the first")


class CallRecord(FileModel):
    """A recorded run."""

    kind: Literal["collectives"] = Field(description="what the file is")
    version: Annotated[Literal[1], BeforeValidator(versions.check("collectives"))] = Field(description="of the format")
    world_size: Whole = Field(gt=0, description="ranks of the world")
    real: Flag = Field(False, description="whether all ranks ran for real and met on their own network, so that times are measured")
    delays: str = Field("", description="where the delays came from")
    what_if: str = Field("", description="changes under which it ran; `time` and `latency` are without them")
    ranks: tuple[RankRecord, ...] = Field(description="what every real rank did")


@dataclass(kw_only=True)
class Sums:
    """Collectives of one kind and number of ranks: how many, their bytes, their time, and what of it the script waited. [1], [B], [s]"""

    count: int = 0
    size: int = 0
    time: float = 0.0
    exposed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Called:
    """A call: when, what, in which group; of a transfer its two ranks; what it queues for, its delay without what-ifs and with them."""

    at: float
    op: str
    size: int
    dtype: str
    group: str
    members: tuple[int, ...]
    pair: tuple[int, ...] | None
    link: str
    base: Delay
    changed: Delay

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that take part."""
        return self.pair or self.members

    @property
    def kind(self) -> tuple[str, int]:
        """What is called, and among how many ranks."""
        return self.op, len(self.ranks)

    def row(self, group: int) -> dict[str, Any]:
        """Plain data of a record."""
        own: dict[str, Any] = {"act": "call", "at": self.at, "op": self.op, "size": self.size, "dtype": self.dtype, "group": group}
        own |= {"link": self.link, "time": self.base.time, "latency": self.base.latency}
        return own if self.pair is None else {**own, "ranks": self.pair}


@dataclass(kw_only=True)
class CallRecorder:
    """Notes what a rank does, from several threads.

    Attributes
    ----------
    rank : its global rank.
    keeps : whether all rows are kept, for a file.
    host : the machine, for the file of a real run.
    failure : why a call has no delay, "" where all have one.
    """

    rank: int
    keeps: bool = False
    host: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    sums: dict[tuple[str, int], Sums] = field(default_factory=dict)
    marks: dict[StepKind, list[float]] = field(default_factory=dict)
    late: int = 0
    latest: float = 0.0
    calls: int = 0
    failure: str = ""
    _places: dict[int, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def called(self, call: Called) -> int:
        """Note a call; its place among all calls."""
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
            sums = self.sums.setdefault(call.kind, Sums())
            sums.count, sums.size, sums.time = sums.count + 1, sums.size + call.size, sums.time + call.changed.time
            if self.keeps:
                self._places[number] = call.row(self.groups.setdefault((call.group, call.members), len(self.groups)))
                self.rows.append(self._places[number])
            return number

    def delivered(self, number: int, met: float, filled: float, lasts: float) -> None:
        """Note how long a call waited for other real ranks before it started, and how long its outputs took beside its delay. [s]"""
        with self._lock:
            self._behind(filled - lasts, lasts)
            row = self._places.pop(number, None)
            if row is not None:
                row.update({key: value for key, value in (("met", met), ("fill", filled)) if value > 0})

    def measured(self, number: int, kind: tuple[str, int], time: float) -> None:
        """Note how long a call took on a real network. [s]"""
        with self._lock:
            self.sums[kind].time += time
            if number in self._places:
                self._places[number]["time"] = round(time, 9)

    def sent_by(self, number: int, source: int) -> None:
        """Note who sent what a call received from any rank."""
        with self._lock:
            if number in self._places:
                self._places[number]["ranks"] = (source, self.rank)

    def waited(self, numbers: Sequence[int], kind: tuple[str, int], at: float, until: float, behind: float) -> None:
        """Note that the script waited for calls, the last of a kind, and how long after their end it went on."""
        with self._lock:
            sums = self.sums[kind]
            sums.exposed += until - at
            self._behind(behind, sums.time / sums.count)
            if self.keeps:
                self.rows.append({"act": "wait", "at": at, "until": until, "of": tuple(numbers)})

    def _behind(self, behind: float, lasts: float) -> None:
        self.late += behind > max(LATE, LATE_SHARE * lasts)
        self.latest = max(self.latest, behind)

    def marked(self, of: StepKind, at: float) -> None:
        """Note the end of an optimizer's step or of a backward pass."""
        with self._lock:
            self.marks.setdefault(of, []).append(at)
            if self.keeps:
                self.rows.append({"act": "step", "at": at, "of": of})

    def record(self) -> dict[str, Any]:
        """The rank's part of a record, as plain data."""
        with self._lock:
            rows = sorted(self.rows, key=lambda row: row["at"])
            first = rows[0]["at"] if rows else 0.0
            shifted = [{**row, **{key: round(row[key] - first, 9) for key in ("at", "until") if key in row}} for row in rows]
            groups = [{"name": name, "ranks": ranks} for name, ranks in self.groups]
            where = {"host": self.host, "began": first} if self.host else {}
            return {"rank": self.rank, **where, "groups": groups, "rows": shifted}

    def summary(self) -> dict[str, Any]:
        """Sums of the rank, as plain data; times in s."""
        with self._lock:
            found = {
                "rank": self.rank,
                **step_figures(self.marks),
                "collectives": collectives(self.sums),
                "exposed_s": sum(one.exposed for one in self.sums.values()),
                "late": self.late,
                "latest_s": self.latest,
            }
        return found


def collectives(sums: Mapping[tuple[str, int], Sums]) -> list[dict[str, Any]]:
    """Sums by kind as plain data, those that take most time first."""
    rows = [
        {"op": op, "ranks": ranks, "count": one.count, "bytes": one.size, "time_s": one.time, "exposed_s": one.exposed}
        for (op, ranks), one in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["time_s"]))


def step_figures(marks: Mapping[StepKind, Sequence[float]]) -> dict[str, Any]:
    """Iterations and the median time of one, None where fewer than two have ended; of backward passes where no optimizer steps. [1], [s]"""
    ends = step_ends(marks)
    times = warm([later - earlier for earlier, later in pairwise(ends)])
    return {"iterations": len(ends), "step_time_s": statistics.median(times) if times else None}


def step_ends(marks: Mapping[StepKind, Sequence[StepMark]]) -> Sequence[StepMark]:
    """Where steps end: those of the optimizer, or backward passes where none steps."""
    return marks.get("optimizer") or marks.get("backward") or ()


def warm(steps: Sequence[StepMark]) -> Sequence[StepMark]:
    """Steps without the first ones, all where there are no more."""
    return steps[WARM_UP:] or steps


# -------------------------------------------------------------------------------------------- files


def write_record(path: Path, ranks: Iterable[Mapping[str, Any]], **head: Any) -> None:
    """Write a record to a file whose name ends in ``.json``, or in ``.json.gz`` to be compressed."""
    files.write_json(path, {"kind": "collectives", **versions.number("collectives"), **head, "ranks": list(ranks)})


def read_record(path: Path) -> CallRecord:
    """Read a record; where there is no such file, its parts ``FILE.rank0.json`` and so on as one. SpecError with all their problems."""
    return _joined(path, [_checked(files.read_json(part, "a record"), part) for part in _parts(path)])


def record_in(path: Path) -> CallRecord | None:
    """The record that a file or its parts hold, as `read_record`; None where the file is not meant for one."""
    first = _parts(path)[0]
    try:
        data = files.json_data(first) if first.name.endswith((".json", ".json.gz")) else None
    except (OSError, ValueError):
        return None
    return read_record(path) if isinstance(data, Mapping) and data.get("kind") == "collectives" else None


def part_of(path: Path, rank: int | str) -> Path:
    """Where a rank that was launched on its own leaves its part of a file."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.rank{rank}{dot}{rest}")


def _parts(path: Path) -> list[Path]:
    """The files that hold a record: the one that is named, or where there is none its parts, if there are any."""
    before, after = part_of(path, " ").name.split(" ")
    near = [] if path.exists() or not path.parent.is_dir() else [one.name for one in path.parent.iterdir()]
    numbers = (name.removeprefix(before).removesuffix(after) for name in near if name.startswith(before) and name.endswith(after))
    return [part_of(path, rank) for rank in sorted(int(number) for number in numbers if number.isdecimal())] or [path]


def _joined(path: Path, parts: Sequence[CallRecord]) -> CallRecord:
    """Parts of one run as one record; CrossflowError where they are of several."""
    ranks = sorted((rank for part in parts for rank in part.ranks), key=lambda rank: rank.rank)
    alike = all(part.model_copy(update={"ranks": ()}) == parts[0].model_copy(update={"ranks": ()}) for part in parts)
    if not alike or len({rank.rank for rank in ranks}) < len(ranks):
        raise CrossflowError(f"{path}: its parts {', '.join(part.name for part in _parts(path))} are not of one run; remove the older ones")
    return parts[0].model_copy(update={"ranks": tuple(ranks)})


def _checked(data: Any, path: Path) -> CallRecord:
    document = Document(file=str(path), data=data)
    found = files.validate(CallRecord, document)
    problems = [document.problem(path_, message) for path_, message in _wrong(found)]
    if problems:
        raise SpecError(problems)
    return found


WrongRows = Iterable[tuple[tuple[str | int, ...], str]]


def _wrong(found: CallRecord) -> WrongRows:
    """Empty lists, places in lists that are shorter, times that run backwards, and ranks and calls that there are not."""
    if not found.ranks:
        yield ("ranks",), "expected one rank or more"
    for i, rank in enumerate(found.ranks):
        calls, before = 0, 0.0
        yield from _strange(("ranks", i, "rank"), (rank.rank,), found.world_size)
        for j, group in enumerate(rank.groups):
            place = ("ranks", i, "groups", j, "ranks")
            if not group.ranks:
                yield place, "expected one rank or more"
            yield from _strange(place, group.ranks, found.world_size)
        for j, row in enumerate(rank.rows):
            if row.at < before:
                yield ("ranks", i, "rows", j, "at"), "expected rows in the order of time"
            before, calls = row.at, calls + isinstance(row, CallRow)
            for key, message in _wrong_row(row, calls, len(rank.groups), found.world_size):
                yield ("ranks", i, "rows", j, *key), message


def _wrong_row(row: RecordRow, calls: int, groups: int, world_size: int) -> WrongRows:
    """What is wrong with a row that so many calls come before, itself among them."""
    if isinstance(row, CallRow):
        yield from _strange(("ranks",), row.ranks or (), world_size)
        if row.op not in OPS:
            yield ("op",), f"unknown call '{row.op}'{did_you_mean(row.op, OPS)}; known calls: {', '.join(OPS)}"
        if row.group >= groups:
            yield ("group",), f"expected a number from 0 to {groups - 1}, got {row.group}"
    if isinstance(row, WaitRow):
        if row.until < row.at:
            yield ("until",), f"expected a time that is not before at = {row.at:g}, got {row.until:g}"
        if not row.of:
            yield ("of",), "expected one call or more"
        if max(row.of, default=-1) >= calls:
            yield ("of",), f"expected calls before it, got {max(row.of)}"


def _strange(place: tuple[str | int, ...], ranks: Iterable[int], world_size: int) -> WrongRows:
    """Ranks that the world does not have."""
    for rank in ranks:
        if not 0 <= rank < world_size:
            yield place, f"there is no rank {rank} in a world of {world_size}"
