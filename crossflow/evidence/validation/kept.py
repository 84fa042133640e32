"""Tables of predictions that are kept in a folder, so that the pages and the bands that rest on them take them from one run.

A table is taken from there while nothing has changed that it could depend on: the package and its files, the measured data, and what
stands in the place of files (`crossflow.evidence.validation.dropping`). A run that was broken off goes on where it was.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from crossflow.base import files
from crossflow.evidence.validation.report import Table

ENDINGS = {".py", ".yaml", ".csv", ".json", ".jsonl"}  # of files that predictions are made of
AFTERWARDS = ("errors.csv", "pairs.csv")  # which are drawn from the tables


@dataclass(frozen=True)
class KeptTables:
    """Tables in a folder, of one state of the package and of the data. Only folders of one's own are safe to read: tables are pickled."""

    folder: Path
    state: str  # digest of what they depend on

    @classmethod
    def of(cls, folder: Path, data: Path) -> KeptTables:
        """Tables of the package and of a folder of data as they are now."""
        folder.mkdir(parents=True, exist_ok=True)
        package = Path(__file__).parents[2]
        shipped = {path.parent for section in ("techlibs", "templates") for path in files.catalogue(section).values()}
        places = [package, *sorted(shipped), data]
        return cls(folder, _digest(file for place in places for file in sorted(place.rglob("*")) if _counts(file)))

    def instead(self, contents: Mapping[Path, str]) -> KeptTables:
        """Tables that are predicted with other contents of files."""
        told = "".join(f"{path}\n{text}\n" for path, text in sorted(contents.items()))
        return replace(self, state=hashlib.sha256(f"{self.state}\n{told}".encode()).hexdigest())

    def table(self, name: str, read: Callable[[], Table]) -> Table:
        """The table of a name, predicted now where it is not kept."""
        file = self.folder / f"{name}-{self.state[:24]}.pickle"
        if file.is_file():
            found: Table = pickle.loads(file.read_bytes())
            return found
        made = read()
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps(made))
        part.replace(file)  # so that a run that is broken off leaves no half of a table
        return made


def _counts(file: Path) -> bool:
    return file.is_file() and file.suffix in ENDINGS and file.name not in AFTERWARDS


def _digest(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(f"{path.name}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
