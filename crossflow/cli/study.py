"""`crossflow study`: run a study, progress on stderr, its table on stdout."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from crossflow import files
from crossflow.cli import page
from crossflow.study.run import StudyResult, run_study
from crossflow.study.searches import Reporter


def run(arguments: argparse.Namespace) -> None:
    """Run the study and show its table."""
    with progress() as report:
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
        page.emit(*page.columns_of(*result.table()), *(Text(f"\n{note}", "dim") for note in result.notes), unbroken=True)
    _log(result)


def locate(name: str) -> Path:
    """Path of a study: a file of the user's before a shipped one of that name."""
    return Path(name) if Path(name).is_file() else files.find("studies", name)


def _log(result: StudyResult) -> None:
    page.log(result.summary)
    for path in result.files:
        page.log(f"wrote {path}")


@contextlib.contextmanager
def progress() -> Iterator[Reporter]:
    """A bar with rate, time left and the best point so far on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield _silent
        return
    best = TextColumn("best {task.fields[best]}")
    words = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(), best
    console = _Screen(stderr=True, force_terminal=True, highlight=False, markup=False)
    with Progress(*words, console=console, transient=True) as bars:
        task = bars.add_task("points", total=None, best="-")
        yield lambda done, total, best: bars.update(task, completed=done, total=total, best=best)


class _Screen(page.PlainConsole):
    """A terminal whose cursor stays where it can be seen, since a process that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        """Show the cursor."""
        return super().show_cursor() if show else False


def _silent(done: int, total: int | None, best: str) -> None:
    """Report nothing."""


class Rate(ProgressColumn):
    """Points a second."""

    def render(self, task: Task) -> Text:
        """Text of the column."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{page.count(speed)}/s", "dim")
