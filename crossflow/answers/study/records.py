"""Finished points on disk: appended block by block as they come, read back on resume, put in order at the end.

Neither writing nor reading holds more than a block in memory, so that a study of millions of points is as easy as a small one.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import functools
import hashlib
import io
import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import orjson

from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError
from crossflow.base.names import cell

POINTS, TABLE, RUN = "points.jsonl", "points.csv", "run.json"
PARQUET = "points.parquet"  # instead of the points and their table where a run says so
BLOCKS = "points.blocks"  # of which it is made, while the run goes on
FORMATS = {"jsonl": POINTS, "parquet": PARQUET}
SUMS = "points.sums"  # while a run goes on: length and digest of every block of points, a line each, as soon as it is on disk
REORDERED = "=\n"  # in it, before sums of the points in another order
BLOCK = 4096  # rows held in memory at once
PART, PARTS = 65536, 256  # least bytes of a part of a finished run's points that has a sum, and about the most parts
DIGITS = 16  # of a digest
READERS = 4  # parts of a file that are read at once
_SUM = re.compile(rf"[0-9]{{1,15}} [0-9a-f]{{{DIGITS}}}")
_NUMBERS = re.compile(rb'\{"id":([0-9]{1,18})(?:,"run":([0-9]{1,9}))?[,}]')

# ------------------------------------------------------------------------------------------ rows as text


def to_lines(columns: Mapping[str, Sequence[Any]]) -> str:
    """Rows as lines of JSON, from columns; numbers that are not finite are null."""
    names = ",".join(f"{json.dumps(name)}:%s".replace("%", "%%").replace("%%s", "%s") for name in columns)
    line = f"{{{names}}}\n"
    return "".join([line % row for row in zip(*map(texts, columns.values()), strict=True)])


def texts(values: Sequence[Any]) -> list[str]:
    """Each value as JSON; null for a number that is not finite."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiu":
        return (
            orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",") if values.size else []
        )
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if set(map(type, listed)) <= {str, bool, type(None)}:  # few distinct ones
        known = {value: _text(value) for value in set(listed)}
        return list(map(known.__getitem__, listed))
    return list(map(_text, listed))


def _text(value: Any) -> str:
    return json.dumps(plain(value), separators=(",", ":"))


def in_si(path: str, unit: str) -> str:
    """Column of the numbers of a path whose values are written with their units.

    >>> in_si("system.budgets.power", "W")
    'system.budgets.power [W]'
    """
    return f"{path} [{unit}]"


# ------------------------------------------------------------------------------------------ the folder of a run


def start(out: Path, run: Mapping[str, Any], resume: bool, beside: Collection[str] = ()) -> bool:
    """Prepare the folder of a run, which this process must own; whether it holds points to go on from.

    Parameters
    ----------
    beside : names of all files that the run will write beside its points, their table and its record.

    Raises
    ------
    CrossflowError
        When the folder cannot be written, holds an unfinished run that is not to be resumed, one of another study, points or other files
        that are not as their run wrote them, or files that no run wrote.
    """
    earlier = _read_run(out)
    ours = _ours(out, earlier or {}, beside)
    goes_on = resume and earlier is not None
    if earlier is None:
        _refuse_strangers(out, (*OWN, *beside), f"without the record of its run ({RUN})")
    elif goes_on:
        _same_study(out, earlier, run)
    elif not earlier.get("finished") and (out / written_by(earlier)).exists():
        raise CrossflowError(
            f"{out} holds an unfinished run of {earlier.get('name')}; continue it with --resume, or give another folder with --out"
        )
    elif (name := earlier.get("name")) != run["name"]:
        raise CrossflowError(f"{out} holds a run of {name}, not of {run['name']}; give another folder with --out, or delete this one")
    else:
        _refuse_strangers(out, [name for name in beside if name not in ours], f"and not of the run that {RUN} records")
    _refuse_changed(out, earlier or {}, (TABLE, *beside), points=not goes_on)
    whole = goes_on and earlier is not None and joined(out, earlier)
    sums = _verified(out, earlier) if goes_on and earlier is not None and not whole else []
    _remove(out, (*_strays(out, (*OWN, RUN, *beside)), *(() if goes_on else (*OWN, *ours))))
    if goes_on and not whole:
        PointsFile(path=out / written_by(run)).hold(sums)
    kept = {"sums": earlier["sums"]} if whole and earlier is not None else {}  # by which the joined file is known, should this be killed
    files.write_text(out / RUN, json.dumps({**run, **kept, "finished": False}, indent=2) + "\n")
    if not goes_on:
        PointsFile(path=out / written_by(run)).hold([])
    return goes_on


OWN = (POINTS, PARQUET, BLOCKS, SUMS, TABLE)


def format_of(out: Path, asked: str | None, *, resume: bool) -> str:
    """The format of the points of a run: what is asked for, else that of the run that goes on; JSON lines for a new one.

    Raises
    ------
    CrossflowError
        Where a run goes on whose points have another one.
    """
    earlier = _read_run(out) if resume else None
    held = None if earlier is None else str(earlier.get("format", "jsonl"))
    if held is not None and held not in FORMATS:
        raise CrossflowError(f"{out / RUN}: format: expected {' or '.join(FORMATS)}, got '{held}'; give another folder with --out")
    if asked is not None and asked not in FORMATS:
        raise CrossflowError(f"--format: expected {' or '.join(FORMATS)}, got '{asked}'")
    if held is not None and asked not in (None, held):
        raise CrossflowError(
            f"{out} holds points as {held}, not as {asked}; leave --format out to go on, or give another folder with --out"
        )
    return asked or held or "jsonl"


def held_in(run: Mapping[str, Any]) -> str:
    """The file that holds the points of a finished run."""
    return FORMATS[str(run.get("format", "jsonl"))]


def written_by(run: Mapping[str, Any]) -> str:
    """The file that a run writes its points to as they come."""
    return BLOCKS if run.get("format") == "parquet" else POINTS


def joined(out: Path, earlier: Mapping[str, Any]) -> bool:
    """Whether a folder has no blocks to go on from, for their run has joined them; CrossflowError where the joined file is another one."""
    if earlier.get("format") != "parquet" or (out / BLOCKS).exists() or not (out / PARQUET).exists():
        return False
    recorded = earlier.get("sums")
    sums = list(map(str, recorded)) if isinstance(recorded, list) else []
    same, bad = _as_written(out / PARQUET, sums)
    if bad or not sums or sum(map(_length, same)) != (out / PARQUET).stat().st_size or len(same) != len(sums):
        raise CrossflowError(
            f"{out / PARQUET} is not as its run wrote it; delete it and continue with --resume, or start again in another folder with --out"
        )
    return True


def unchanged(out: Path, run: Mapping[str, Any]) -> list[Path]:
    """Files of a finished run of the same study, where all of them are as it wrote them; else none.

    Raises
    ------
    CrossflowError
        As `start` does of a run that goes on.
    """
    earlier = _read_run(out)
    if earlier is None or not earlier.get("finished") or not (out / held_in(earlier)).exists() or (out / SUMS).exists():
        return []
    _same_study(out, earlier, run)
    listed = earlier.get("files")
    names = list(listed) if isinstance(listed, dict) else []
    if earlier.get("format") == "parquet":
        _remove(out, [BLOCKS])  # of a run that was killed as it removed them
        whole, first = joined(out, earlier), [PARQUET, RUN]
    else:
        size = (out / POINTS).stat().st_size
        whole = 0 < size == sum(map(_length, _verified(out, earlier)))  # a file that was emptied holds no blocks, all of them whole
        whole, first = whole and TABLE in names, [POINTS, TABLE, RUN]
    if not whole or _ours(out, earlier, ()) != set(names):
        return []
    return [out / name for name in (*first, *(name for name in names if name != TABLE))]


def _read_run(out: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((out / RUN).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CrossflowError(f"{out / RUN} cannot be read ({error}); give another folder with --out") from None
    if not (isinstance(found, dict) and isinstance(found.get("study"), str) and isinstance(found.get("finished"), bool)):
        raise CrossflowError(f"{out / RUN} is not the record of a run; move it away, or give another folder with --out")
    return found


def _same_study(out: Path, earlier: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    for what in ("version", "study"):  # another version may read the same study otherwise; of the format `format_of` asks
        if earlier.get(what) != run.get(what):
            raise CrossflowError(
                f"{out} holds a run of a different {what} ({earlier.get(what)}, now {run.get(what)}); its points would not fit."
                " Run without --resume into another folder with --out"
            )


def _ours(out: Path, earlier: Mapping[str, Any], beside: Collection[str]) -> set[str]:
    """Files that a run has written, by its record; a record could name others, so these are as it wrote them or will be written anew."""
    listed = earlier.get("files")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, dict | list) else []
    digests = listed if isinstance(listed, dict) else {}
    return {name for name in names if name in beside or (digests.get(name) or 0) == _digest(out, name)}


def _inside(out: Path, name: str) -> bool:
    """Whether a name is that of a file in a folder, or in one folder in it."""
    path = Path(name)
    return len(path.parts) <= 2 and ".." not in path.parts and not path.is_absolute() and not (out / path.parent).is_symlink()


def _digest(out: Path, name: str) -> str | None:
    """Digest of a file in a folder, None where there is none."""
    try:
        with (out / name).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:DIGITS] if _inside(out, name) else None
    except (OSError, ValueError):
        return None


def _refuse_strangers(out: Path, names: Iterable[str], what: str) -> None:
    for name in names:
        if os.path.lexists(out / name):
            raise CrossflowError(f"{out / name} is there {what}; move it away, or give another folder with --out")


def _refuse_changed(out: Path, earlier: Mapping[str, Any], names: Iterable[str], *, points: bool) -> None:
    """CrossflowError for a file of a finished run that was changed since; with `points`, these too, which else are looked at later."""
    listed, sums = earlier.get("files"), earlier.get("sums")
    digests = listed if isinstance(listed, dict) and earlier.get("finished") else {}
    changed = [name for name in names if digests.get(name) is not None and _digest(out, name) not in (None, digests[name])]
    held = held_in(earlier) if digests else POINTS
    if digests and isinstance(sums, list) and all(map(_SUM.fullmatch, sums)) and (out / held).exists():
        longer = (out / held).stat().st_size > sum(map(_length, sums))
        changed += [held] * (longer or (points and _as_written(out / held, sums)[1] > 0))
    for name in changed:
        raise CrossflowError(f"{out / name} was changed after its run wrote it; move it away, or give another folder with --out")


def _strays(out: Path, names: Iterable[str]) -> list[str]:
    """Temporary neighbours of files of a run, which one that was killed has left."""
    held: dict[Path, list[str]] = {}
    for path in map(Path, names):
        held.setdefault(path.parent, []).append(path.name)
    found = []
    for folder, own in held.items():
        mine = re.compile(rf"\.({'|'.join(map(re.escape, own))})\.[a-z0-9_]{{8}}")
        there = (out / folder).iterdir() if (out / folder).is_dir() else ()
        found += [str(folder / path.name) for path in there if mine.fullmatch(path.name)]
    return found


def _remove(out: Path, names: Iterable[str]) -> None:
    """Remove files of a run."""
    for name in names:
        try:
            (out / name).unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise CrossflowError(f"{out / name} cannot be replaced ({error.strerror}); give another folder with --out") from None


def finish(out: Path, run: Mapping[str, Any], written: Sequence[Path] = ()) -> list[Path]:
    """Write points that are lines as CSV, and mark the run as finished, with sums of the files `written` beside and of its points."""
    held = held_in(run)
    tables = [TABLE] if held == POINTS else []
    if tables:
        write_csv(out / POINTS, out / TABLE)
    digests = {name: _digest(out, name) for name in (*tables, *(path.relative_to(out).as_posix() for path in written))}
    record = {**run, "finished": True, "files": digests, "sums": list(_parts(out / held))}
    files.write_text(out / RUN, json.dumps(record, indent=2) + "\n")
    _remove(out, [SUMS, BLOCKS])
    return [out / name for name in (held, *tables, RUN)]


# ------------------------------------------------------------------------------------------ whether points are as they were written


def _sum(content: bytes) -> str:
    """Length and digest of some rows."""
    return f"{len(content)} {hashlib.sha256(content).hexdigest()[:DIGITS]}"


def _length(entry: str) -> int:
    return int(entry.split()[0])


def _parts(path: Path) -> Iterator[str]:
    """Sums of a file in parts of whole lines, no more than some hundreds."""
    size = max(PART, path.stat().st_size // PARTS)
    with path.open("rb") as stream:
        while part := stream.read(size):
            yield _sum(part + stream.readline())


def _verified(out: Path, earlier: Mapping[str, Any]) -> list[str]:
    """Sums of the points that are as their run wrote them, up to where the file was cut short.

    The file of sums holds several lists where the points were put in another order, one of which is that of the file: the last, or where
    the run was killed meanwhile the one before.
    """
    points = out / written_by(earlier)
    if not points.exists():
        return []
    recorded = earlier.get("sums")
    found: list[list[str]] = [[]]
    if (out / SUMS).exists():
        found = [text.split("\n")[:-1] for text in (out / SUMS).read_text(encoding="utf-8", errors="replace").split(REORDERED)]
    elif isinstance(recorded, list):
        found = [[str(entry) for entry in recorded]]
    elif points.stat().st_size:
        raise CrossflowError(
            f"{out} has neither {SUMS} nor 'sums' in {RUN} to check its points by; start again in another folder with --out"
        )
    seen = [_as_written(points, sums) for sums in found]
    if all(bad for _, bad in seen):
        raise CrossflowError(
            f"{points}:{seen[-1][1]}: the points from this line on are not as the run wrote them; delete them and continue with"
            " --resume, or start again in another folder with --out"
            if points.name == POINTS
            else f"{points}: its blocks are not as the run wrote them; delete it and continue with --resume, or start again in another"
            " folder with --out"
        )
    return max((sums for sums, bad in seen if not bad), key=lambda sums: sum(map(_length, sums)))


def _as_written(path: Path, sums: Sequence[str]) -> tuple[list[str], int]:
    """Those of the sums that a file begins with, and the line from which on it has others, 0 for none; a part cut short is left out."""
    whole = list(itertools.takewhile(_SUM.fullmatch, sums))
    ends = np.cumsum([_length(entry) for entry in whole], dtype=np.int64)
    count = int(np.searchsorted(ends, path.stat().st_size, side="right"))
    with ThreadPoolExecutor(READERS) as readers:  # digests of large parts are computed without the interpreter
        found = readers.map(functools.partial(_sum_at, path), (ends[:count] - [_length(entry) for entry in whole[:count]]).tolist(), whole)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(found, whole, strict=False)))
        if same < count:
            readers.shutdown(cancel_futures=True)
            return whole[:same], _lines_before(path, int(ends[same - 1]) if same else 0) + 1
    return whole[:count], 0


def _sum_at(path: Path, offset: int, like: str) -> str:
    """Sum of the part of a file at an offset that is as long as that of another sum."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return _sum(stream.read(_length(like)))


def _lines_before(path: Path, end: int) -> int:
    """Lines of a file that end before an offset."""
    count = 0
    with path.open("rb") as stream:
        while part := stream.read(min(PART, end - stream.tell())):
            count += part.count(b"\n")
    return count


# ------------------------------------------------------------------------------------------ rows read back


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Offset and text of every row of a file; a last line that was cut short is left out."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield offset, line
            offset += len(line)


def numbers_of(line: bytes) -> tuple[int, int]:
    """Number of a row, and of its search; -1 for none."""
    found = _NUMBERS.match(line)
    return (-1, -1) if found is None else (int(found[1]), int(found[2] or -1))


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a file in its order."""
    for number, (_, line) in enumerate(lines(path), start=1):
        try:
            yield orjson.loads(line)
        except ValueError:
            raise CrossflowError(f"{path}:{number}: not a point of a study; start again in another folder with --out") from None


# ------------------------------------------------------------------------------------------ CSV


def write_csv(points: Path, table: Path) -> None:
    """Rows of a JSON-lines file as CSV with one header line, holding one row at a time."""
    with files.replacing(table) as stream:
        if not _rewritten(points, stream):
            _write_table(stream, lambda: rows(points))


def _rewritten(points: Path, stream: IO[str]) -> bool:
    """Write rows that all have the same columns from their text, ten times as fast as through their values; else False.

    Quotes inside a JSON string are escaped, so that a comma before a quote always ends a value, but for those inside lists
    and mappings: these give more parts than there are columns.
    """
    first = next(rows(points), None)
    if first is None:
        return True
    starts = [f"{json.dumps(name)[1:]}:" for name in first]
    cuts = [slice(len(start), None) for start in starts]
    known: dict[str, str] = {"null": ""}
    stream.write(csv_text([dict.fromkeys(first)]).splitlines()[0] + "\n")
    with points.open(encoding="utf-8") as lines:
        for line in lines:
            parts = line[2:-2].split(',"')
            if len(parts) != len(starts) or not all(map(str.startswith, parts, starts)):
                stream.seek(0)
                stream.truncate()
                return False
            texts: Iterator[Any] = map(operator.getitem, parts, cuts)
            cells = [text if text[0] in _NUMBER else known[text] if text in known else _written(text, known) for text in texts]
            stream.write(",".join(cells) + "\n")
    return True


_NUMBER = frozenset("-0123456789")


def _written(text: str, known: dict[str, str]) -> str:
    """A JSON value that is no number as a CSV cell; `known` remembers those that recur."""
    cell = csv_text([{"a": json.loads(text), "b": 0}]).split("\n", 1)[1].removesuffix(",0\n")
    if len(known) < 10_000:
        known[text] = cell
    return cell


def csv_text(found: Iterable[Mapping[str, Any]]) -> str:
    """A few rows as CSV with one header line."""
    listed, stream = list(found), io.StringIO()
    _write_table(stream, lambda: listed)
    return stream.getvalue()


def _write_table(stream: IO[str], found: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Write rows, which are gone through twice, under a header of all their columns."""
    names = list(dict.fromkeys(name for row in found() for name in row))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in found())


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else cell(value) if isinstance(value, str) else value


# ------------------------------------------------------------------------------------------ the file of points


Places = Sequence[tuple[int, tuple[int, int]]]  # numbers of blocks, each with offset and length of its rows


@dataclass(kw_only=True)
class PointsFile:
    """The file of points while a run writes to it, in blocks of rows that belong together, with their sums beside it."""

    path: Path  # the file
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # place of each block: offset and length, by its number

    @property
    def sums(self) -> Path:
        """The file of sums."""
        return self.path.with_name(SUMS)

    def hold(self, sums: Sequence[str]) -> None:
        """Keep the rows of some sums, with which the file begins, and make both files where they are not there."""
        with self._writing(), self.path.open("ab") as stream:
            stream.truncate(sum(map(_length, sums)))
        files.write_text(self.sums, "".join(f"{entry}\n" for entry in sums))

    def append(self, block: int, text: str | bytes) -> None:
        """Append a block and see it onto the disk."""
        content = text.encode("utf-8") if isinstance(text, str) else text
        with self._writing():
            with self.path.open("r+b") as stream:
                offset = stream.seek(0, os.SEEK_END)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            with self.sums.open("r+b") as stream:
                stream.seek(0, os.SEEK_END)
                stream.write(f"{_sum(content)}\n".encode())
        self.blocks[block] = (offset, len(content))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise CrossflowError(f"{error.filename} was removed while the run wrote to it; start it again") from None
            raise CrossflowError(
                f"cannot write {self.path}: {error.strerror}; finished points are kept, make room and continue with --resume"
            ) from None

    def read(self, place: tuple[int, int]) -> list[dict[str, Any]]:
        """Rows of a block."""
        with self.path.open("rb") as stream:
            stream.seek(place[0])
            return [orjson.loads(line) for line in stream.read(place[1]).splitlines()]

    def keep(self, blocks: Places) -> None:
        """Keep some blocks, as they stand where nothing else is in the file."""
        if sum(length for _, (_, length) in blocks) == self.path.stat().st_size:
            self.blocks = dict(blocks)
        else:
            self._rewrite(blocks)

    def _rewrite(self, blocks: Places) -> None:
        """Rewrite the file with some of its blocks; their sums are on disk before it, for whoever resumes in between."""
        self.blocks, sums, offset = {}, [REORDERED], 0
        with files.replacing(self.path, binary=True) as stream, self.path.open("rb") as source:
            for number, (start, length) in blocks:
                source.seek(start)
                content = source.read(length)
                stream.write(content)
                sums.append(f"{_sum(content)}\n")
                self.blocks[number] = (offset, length)
                offset += length
            with self.sums.open("ab") as beside:
                beside.write("".join(sums).encode())

    def cut(self, offset: int) -> None:
        """Drop everything from an offset on."""
        if offset < self.path.stat().st_size:
            with self.path.open("r+b") as stream:
                stream.truncate(offset)
            self.hold(list(_parts(self.path)))

    def put_in_order(self) -> None:
        """Rewrite the file with its blocks in the order of their numbers, if they are not."""
        starts = [self.blocks[number][0] for number in sorted(self.blocks)]
        if starts != sorted(starts):
            self._rewrite([(number, self.blocks[number]) for number in sorted(self.blocks)])


class Rows(Sequence[dict[str, Any]]):
    """Some rows of a file of points, read when asked for."""

    def __init__(self, path: Path, places: Any) -> None:
        self._path = path
        self._places = np.array(places, dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Rows:
        """One row, or some of the rows."""
        if isinstance(index, slice):
            return Rows(self._path, self._places[index])
        return next(iter(Rows(self._path, self._places[index])))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as stream:
            for start in range(0, len(self), BLOCK):
                places = self._places[start : start + BLOCK]
                first = places[0, 0]
                stream.seek(first)
                content = stream.read(places[-1].sum() - first)
                yield from (orjson.loads(content[at : at + size]) for at, size in (places - [first, 0]).tolist())

    def offset(self, index: int) -> int:
        """Where a row begins."""
        return int(self._places[index, 0])
