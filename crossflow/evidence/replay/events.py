"""Large JSON files of events, read piece by piece: the events of a Kineto trace, the nodes of an execution trace.

Only the event in hand is held, so that a file may be far larger than memory. Nothing in a file is executed.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import itertools
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from crossflow.base.errors import Problem, SpecError
from crossflow.base.limits import EVENT_BYTES, opened

PIECE = 1 << 20  # bytes that are read at once
LARGEST = EVENT_BYTES  # characters that one event, or one value beside the events, may have
SQLITE = b"SQLite format 3\0"  # how every SQLite file begins
LISTS = ("traceEvents", "nodes")  # what the list of events is called
_DECODER = json.JSONDecoder(strict=False)  # names of kernels may hold control characters
_BLANKS = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*\Z")  # an event has ended, and another one follows
BLANKS = 64  # characters between two events
TRIED = 16  # braces that are tried as the begin of an event, from the last one back


@dataclass(kw_only=True)
class EventFile:
    """One file of events, open for reading.

    Attributes
    ----------
    name : for messages; of a member of an archive, its name there.
    stream : its bytes.
    head : what stands beside the events, complete once all are read.
    truncated : whether the file ends in the middle, so that its last event is lost.
    beside : files of its folder that hold no events, where it is the first of them.
    """

    name: str
    stream: IO[bytes]
    head: dict[str, Any] = field(default_factory=dict)
    truncated: bool = False
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._text, self._at, self._ended, self._apart = "", 0, False, False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode

    def events(self) -> Iterator[dict[str, Any]]:
        """The events, one after the other; SpecError where the file is no JSON, or holds no list of events."""
        begin = self._next()
        if begin == "[":
            yield from self._list()
            return
        if begin != "{":
            nothing = "cannot be decompressed" if self.truncated else "the file is empty"
            raise self._wrong("expected a trace in JSON, which begins with { or [" if begin else nothing)
        self._at += 1
        found = False
        while (mark := self._next()) not in ("}", ""):
            if mark == ",":
                self._at += 1
                continue
            key = self._value()
            if self._next() != ":":
                break
            self._at += 1
            if key in LISTS and self._next() == "[":
                found = True
                yield from self._list()
            elif isinstance(value := self._value(), _Missing):
                break
            elif isinstance(key, str):
                self.head[key] = value
        self.truncated |= self._next() != "}"
        if not found:
            raise self._wrong(f"expected a trace with a list of {' or '.join(LISTS)}")

    def _list(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while (mark := self._next()) != "]":
            if mark == ",":
                self._at += 1
                continue
            if mark == "{" and not self._apart:
                yield from (one for one in self._several() if isinstance(one, dict))
            value = self._value() if self._next() else _MISSING
            if isinstance(value, _Missing):
                self.truncated = True
                return
            if isinstance(value, dict):
                yield value
        self._at += 1

    def _several(self) -> list[Any]:
        """All events of what was read but the last one, decoded at once, which takes a third less time than one by one.

        Where the last one begins is guessed; a wrong guess leaves brackets or quotes open, so that nothing is decoded. The events up to
        the next piece of the file are then decoded one by one, and an error in one is told as ever.
        """
        end, self._apart = len(self._text), True
        for _ in range(TRIED):
            end = self._text.rfind("{", self._at + 1, end)
            if end < 0:
                return []
            if (between := _BETWEEN.search(self._text, max(self._at, end - BLANKS), end)) is not None:
                try:
                    found: list[Any] = _DECODER.decode(f"[{self._text[self._at : between.start() + 1]}]")
                except (ValueError, RecursionError):
                    return []
                self._at = end
                return found
        return []

    def _next(self) -> str:
        """The next character that is no blank, "" at the end."""
        while True:
            text = self._text
            self._at = _BLANKS.match(text, self._at).end()  # type: ignore[union-attr]  # which matches nothing too
            if self._at < len(text):
                return text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The next value; `_MISSING` where the file ends before it does."""
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number may go on
                    self._at = end
                    return value
            except RecursionError:
                raise self._wrong("the JSON is nested too deeply") from None
            except ValueError as error:
                if not isinstance(error, json.JSONDecodeError):
                    raise self._wrong("the JSON holds a number of more than 4,300 digits") from None
                if len(self._text) - self._at > LARGEST:
                    raise self._wrong(f"the JSON is broken, or an event has more than {LARGEST >> 20} MiB: {error.msg}") from None
            if not self._more():
                return _MISSING

    def _more(self) -> bool:
        """Read on; whether there was anything."""
        if self._ended:
            return False
        try:
            piece = self.stream.read1(PIECE)  # type: ignore[attr-defined]  # what a broken archive still gives
        except (EOFError, zlib.error, gzip.BadGzipFile):
            piece, self.truncated = b"", True
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror or error}") from None
        self._ended = not piece
        self._text = self._text[self._at :] + self._decode(piece, self._ended)
        self._apart = False
        self._at = 0
        return not self._ended or bool(self._text)

    def _wrong(self, message: str) -> SpecError:
        return SpecError([Problem(file=self.name, message=message)])


class _Missing:
    """What the file does not hold."""


_MISSING = _Missing()


def event_files(path: Path) -> Iterator[EventFile]:
    """Files of events at a path: a file, plain or compressed, the members of an archive, or the files of a folder, by name.

    Raises
    ------
    SpecError
        Where nothing is there, or it cannot be read.
    """
    if path.is_dir():
        found, others = traces_in(path)
        beside = tuple(one.name for one in others)
        for file in itertools.chain.from_iterable(map(event_files, found)):
            file.beside, beside = beside, ()
            yield file
        return
    try:
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            yield from _members(path)
            return
        with opened(path) as stream, _plain(stream) as text:
            yield EventFile(name=str(path), stream=text)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise SpecError([Problem(file=str(path), message=f"cannot be read: {getattr(error, 'strerror', None) or error}")]) from None


def traces_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of a folder that hold traces, by name, and those that might and do not.

    Raises
    ------
    SpecError
        Where none does.
    """
    files = sorted(one for one in folder.iterdir() if one.name.endswith((".json", ".json.gz", ".tar.gz", ".tgz")))
    found = [one for one in files if is_traces(one)]
    if not found:
        raise SpecError([Problem(file=str(folder), message="the folder holds no trace (.json, .json.gz, .tar.gz)")])
    known = {*found}
    return found, [one for one in files if one not in known]


def _members(path: Path) -> Iterator[EventFile]:
    with tarfile.open(path) as archive:
        for member in sorted((one for one in archive if one.isfile()), key=lambda one: one.name):
            if member.name.endswith((".json", ".json.gz")) and (stream := archive.extractfile(member)) is not None:
                with stream, _plain(stream) as text:
                    yield EventFile(name=f"{path}:{member.name}", stream=text)


def is_traces(path: Path) -> bool:
    """Whether a file holds a trace, or a folder or an archive may: one that lists events or nodes."""
    if path.is_dir():
        return any(one.name.endswith((".json", ".json.gz", ".tar.gz")) for one in path.iterdir()) and not (path / "config.json").exists()
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return True
    if not path.is_file() or not path.name.endswith((".json", ".json.gz")):
        return is_nsight(path)
    try:
        with opened(path) as stream, _plain(stream) as text:
            begin = text.read(PIECE)
    except (OSError, EOFError, zlib.error):
        return False
    return any(f'"{name}"'.encode() in begin for name in LISTS) or (begin.lstrip()[:1] == b"[" and b'"ph"' in begin)


def is_nsight(path: Path) -> bool:
    """Whether a file is of SQLite, as exports are."""
    if not path.is_file():
        return False
    try:
        with opened(path) as stream:
            return stream.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


@contextlib.contextmanager
def _plain(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """The bytes of a stream, decompressed where they begin as those of gzip do, whatever its name."""
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    if not packed:
        yield stream
        return
    with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
        yield unpacked  # type: ignore[misc]
