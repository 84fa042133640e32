"""Files that answers by events are written to: a picture, a table of rows, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.edges.cli import page

if TYPE_CHECKING:
    from crossflow.answers.cluster.schedule import ScheduledJobs
    from crossflow.answers.service.served import ServedRequests

PICTURES, TABLE, ANSWER, TRACE = (".png", ".svg"), ".csv", ".json", ".json.gz"


def check_outputs(paths: Sequence[Path], rows: str) -> None:
    """CrossflowError for a file that cannot be written, or whose ending says nothing; `rows` are those of the table."""
    for path in paths:
        if not path.name.lower().endswith((*PICTURES, TABLE, ANSWER, TRACE)):
            raise CrossflowError(
                f"{path}: a picture ends in .png or .svg, the table of all {rows} in .csv, the answer in .json, a trace in .json.gz"
            )
        files.check_writable(path, "-o")


def write_answer(found: ServedRequests | ScheduledJobs, path: Path) -> None:
    """The answer, its table or its picture."""
    if path.suffix.lower() == ANSWER:
        written = [found.save(path)]
    elif path.suffix.lower() == TABLE:
        found.to_csv(path)
        written = [path]
    else:
        written = found.plot().save(path)
    for one in written:
        page.log(f"wrote {one}")
