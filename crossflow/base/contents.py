"""Contents of files as they were when a scenario was read.

A scenario names files that it builds on, and it is read again where a setting changes one of its sections, in other processes and on
other machines too. What it read once is kept beside it and stands for the file from then on, whatever becomes of the file.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

SHIPPED = ("techlibs", "templates", "studies")  # folders that are installed with the package, wherever that is
LONG = 2**20  # bytes of a file up to which records of runs hold it
_SHIPPED = "shipped:"
_WING = Path(__file__).parent  # with the shipped files where the package is installed; in a checkout they are beside the package
Packed = tuple[tuple[str, bytes | None], ...]
Kept = TypeVar("Kept", bytes, None)


class Contents:
    """Bytes of files by the paths that name them, None where there was no file."""

    def __init__(self, held: Mapping[str, bytes | None] | None = None) -> None:
        self._held = dict(held or {})
        self._packed: Packed = ()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Read files from here as far as they are, and keep what else is read."""
        token = _USED.set(self)
        try:
            yield
        finally:
            _USED.reset(token)

    def read(self, path: Path, reader: Callable[[Path], bytes]) -> bytes:
        """Bytes of a file; OSError as its reader has it."""
        key = key_of(path)
        found = self._held.get(key)
        return self._keep(key, _read(key, path, reader)) if found is None else found

    def has(self, path: Path) -> bool:
        """Whether there is, or was, such a file."""
        key = key_of(path)
        if key not in self._held and not _there(path):
            self._keep(key, None)
        return self._held.get(key, b"") is not None

    def _keep(self, key: str, content: Kept) -> Kept:
        self._held[key], self._packed = content, ()
        return content

    def below(self, base: Path | None) -> dict[str, str]:
        """Texts of the files that are not shipped, by their paths from a folder; what is long or no text is left out."""
        own = {key: found for key, found in self._held.items() if found is not None and not key.startswith(_SHIPPED)}
        texts = {_from(base, key, self._held): _text(found) for key, found in sorted(own.items())}
        return {path: text for path, text in texts.items() if text is not None}

    @classmethod
    def at(cls, base: Path, texts: Mapping[str, str]) -> Contents:
        """What `below` gave, as files of another folder."""
        return cls({key_of(base / path): text.encode() for path, text in texts.items()})

    @property
    def packed(self) -> Packed:
        """All of it, compressed, to be sent elsewhere; the same until more is read."""
        if not self._packed:
            self._packed = tuple((key, None if found is None else zlib.compress(found, 1)) for key, found in self._held.items())
        return self._packed

    @classmethod
    def unpacked(cls, packed: Packed) -> Contents:
        """What was packed."""
        return cls({key: None if found is None else zlib.decompress(found) for key, found in packed})


READ = "crossflow.base.files"  # logger of files that are read
_LOGGER = logging.getLogger(READ)
_READ: dict[str, tuple[tuple[int, int, int], bytes]] = {}  # shipped files by key, as they were when they were read last
_USED: contextvars.ContextVar[Contents | None] = contextvars.ContextVar("contents in use", default=None)


def in_use() -> Contents:
    """The contents in use; where there are none, new ones."""
    return _USED.get() or Contents()


def of_file(path: Path, reader: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
    """Bytes of a file, from the contents in use where they have it; OSError as its reader has it."""
    used = _USED.get()
    _LOGGER.debug("read %s", path)
    return reader(path) if used is None else used.read(path, reader)


def _read(key: str, path: Path, reader: Callable[[Path], bytes]) -> bytes:
    """Bytes of a file by its reader; a shipped one is read again only when it has changed, for every scenario stands on some of them."""
    if not key.startswith(_SHIPPED):
        return reader(path)
    there = path.stat()
    state = (there.st_ino, there.st_mtime_ns, there.st_size)
    held = _READ.get(key)
    if held is None or held[0] != state:
        held = _READ[key] = (state, reader(path))
    return held[1]


def is_file(path: Path) -> bool:
    """Whether there is such a file, or was one for the contents in use."""
    used = _USED.get()
    return _there(path) if used is None else used.has(path)


def _there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


@functools.lru_cache(maxsize=1024)
def key_of(path: Path) -> str:
    """A path as the scenario names it; of a shipped file its place in the package, which lies elsewhere on another machine."""
    for root in (_WING / "data", _WING.parent.parent):
        if path.is_relative_to(root) and (inside := path.relative_to(root)).parts[:1] and inside.parts[0] in SHIPPED:
            return f"{_SHIPPED}{inside.as_posix()}"
    return str(path)


def _from(base: Path | None, key: str, held: Mapping[str, bytes | None]) -> str:
    """A file's path from a folder; as it is named where it lies elsewhere, or was looked for there first and not found."""
    if base is None or not Path(key).is_relative_to(base) or held.get(str(base / key), b"") is None:
        return key
    return Path(key).relative_to(base).as_posix()


def _text(content: bytes) -> str | None:
    """A text of moderate length, else None."""
    try:
        return content.decode() if len(content) <= LONG else None
    except UnicodeDecodeError:
        return None
