"""`crossflow study`: run a study, progress on stderr, its table on stdout."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from rich.text import Text

from crossflow import files
from crossflow.cli import page
from crossflow.cli.progress import progress
from crossflow.names import visible
from crossflow.study.run import StudyResult, run_study

SHOWN = 200  # rows of a table on a terminal


def run(arguments: argparse.Namespace) -> None:
    """Run the study and show its table."""
    with progress("points", best=True) as report:
        result = run_study(
            locate(arguments.study),
            out=arguments.out,
            jobs=arguments.jobs,
            dask=arguments.dask,
            resume=arguments.resume,
            settings=arguments.settings,
            yes=arguments.yes,
            progress=report,
        )
    if arguments.json:
        page.emit_json(result.to_dict())
    else:
        _show(result)
    _log(result)


def _show(result: StudyResult) -> None:
    """Write the table and its notes; a terminal gets the first rows of a long one."""
    found = result.listing
    if sys.stdout.isatty():
        rows = list(itertools.islice(found.rows, SHOWN))
        cut = [f"the first {SHOWN:,} of {found.total:,} rows; all are in {result.out / found.file}"] * (found.total > SHOWN)
        page.emit(*page.columns_of(found.headers, rows), *(Text(f"\n{note}", "dim") for note in [*cut, *result.notes]), unbroken=True)
    else:
        page.write_rows(found.headers, found.rows)
        sys.stdout.writelines(f"\n{visible(note)}\n" for note in result.notes)


def locate(name: str) -> Path:
    """Path of a study: a file of the user's before a shipped one of that name."""
    return Path(name) if Path(name).is_file() else files.find("studies", name)


def _log(result: StudyResult) -> None:
    page.log(result.summary)
    for path in result.files:
        page.log(f"wrote {path}")
