"""Versions of the files that crossflow writes: which are read, and what becomes of the others.

A format's number grows when an older reader would misread a newer file: when a key changes its meaning, loses it, or becomes one that files
must have. New keys alone change nothing, since readers of JSON skip what they do not know (files that people write by hand are stricter).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossflow.base.errors import CrossflowError, shortened

KEY = "schema"  # of the number, in files that say `version` for that of crossflow
Migration = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A kind of file that crossflow writes and reads again."""

    version: int  # that is written
    again: str  # how one of a version that is not read is made anew
    key: str = KEY  # that holds the number
    since: str = ""  # crossflow that first wrote this version
    # For each older version that is read, how a file of it becomes one of the next.
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The oldest version that is read."""
        return min((self.version, *self.migrations))


def _numbered(data: dict[str, Any]) -> dict[str, Any]:
    """The record of a study of 0.12 to 0.18, which has no number: columns and their meaning are those of the first that has one."""
    return {**data, KEY: 1}


FILE_FORMATS: Mapping[str, FileFormat] = {
    "study": FileFormat(version=1, since="0.19.0", migrations={0: _numbered}, again="run the study again into another folder with --out"),
    "program": FileFormat(version=1, key="version", since="0.12.0", again="import the model again with crossflow import"),
    "collectives": FileFormat(version=1, key="version", since="0.12.0", again="emulate the script again with crossflow emulate"),
    "overheads": FileFormat(version=1, key="version", since="0.12.0", again="write it again with crossflow trace --write-overheads"),
    "output": FileFormat(version=1, since="0.19.0", again="run the command again with --json"),
}


def number(kind: str) -> dict[str, int]:
    """The entry of a file that says the version of its format.

    >>> number("study"), number("program")
    ({'schema': 1}, {'version': 1})
    """
    one = FILE_FORMATS[kind]
    return {one.key: one.version}


def refusal(kind: str, found: Any) -> str | None:
    """Why a file whose number is `found` is not read; None where it is.

    >>> refusal("program", 1)
    >>> refusal("collectives", 0)
    'its format is 0, of an earlier crossflow, and this one reads 1; emulate the script again with crossflow emulate'
    """
    one = FILE_FORMATS[kind]
    if type(found) is not int:
        return f"the number of its format: expected {one.version}, got {shortened(repr(found))}"
    reads = f"{one.oldest} to {one.version}" if one.oldest < one.version else f"{one.version}"
    if found > one.version:
        return f"its format is {found}, of a later crossflow, and this one reads {reads}; install a newer crossflow, or {one.again}"
    if found < one.oldest:
        return f"its format is {found}, of an earlier crossflow, and this one reads {reads}; {one.again}"
    return None


def check(kind: str) -> Callable[[Any], Any]:
    """A validator of the number in a file that people may write: ValueError for a version that is not read."""

    def checked(given: Any) -> Any:
        reason = refusal(kind, given)
        if reason is not None:
            raise ValueError(reason)
        return given

    return checked


def migrated(kind: str, data: Mapping[str, Any], where: str, found: int | None = None) -> dict[str, Any]:
    """A file's data as the present version has them.

    found : its number, where the file does not say it.

    Raises
    ------
    CrossflowError
        For a version that is not read, with how to make the file anew.
    """
    one, made = FILE_FORMATS[kind], dict(data)
    at = made.get(one.key, found)
    reason = refusal(kind, at)
    if reason is not None:
        raise CrossflowError(f"{where}: {reason}")
    assert isinstance(at, int)
    for version in range(at, one.version):
        made = one.migrations[version](made)
    return made
