"""Bars of progress on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from crossflow.edges.cli import page
from crossflow.edges.cli.log import quiet

if TYPE_CHECKING:
    from crossflow.answers.study.searches import Reporter

SOON, LATER = 0.3, 2.0  # until waiting is told, on a terminal and elsewhere [s]


@contextlib.contextmanager
def progress(what: str, *, best: bool = False) -> Iterator[Reporter]:
    """A bar with rate, time left and perhaps the best so far on stderr; nothing where that is no terminal."""
    if not sys.stderr.isatty() or quiet():
        yield _silent
        return
    words: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()]
    words += [TextColumn("best {task.fields[best]}")] * best
    console = _Screen(stderr=True, force_terminal=True, highlight=False, markup=False)
    with Progress(*words, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None, best="-")
        yield lambda done, total, best: bars.update(task, completed=done, total=total, best=best)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on stderr what takes long: on a terminal with the time so far, which goes away again, elsewhere as one line."""
    if quiet():
        yield
    elif sys.stderr.isatty():
        console = _Screen(stderr=True, force_terminal=True, highlight=False, markup=False)
        bars = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True)
        bars.add_task(what, total=None)
        try:
            with _after(SOON, bars.start):
                yield
        finally:
            bars.stop()
    else:
        with _after(LATER, lambda: page.log(f"{what} ...")):
            yield


@contextlib.contextmanager
def _after(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Do something beside what is done here, if that takes longer than some seconds."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what has begun by now ends first


class _Screen(page.PlainConsole):
    """A terminal whose cursor stays where it can be seen, since a process that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        """Show the cursor."""
        return super().show_cursor() if show else False


def _silent(done: int, total: int | None, best: str) -> None:
    """Report nothing."""


class Rate(ProgressColumn):
    """What is done in a second."""

    def render(self, task: Task) -> Text:
        """Text of the column."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{page.count(speed)}/s", "dim")
