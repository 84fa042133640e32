"""Bars of progress on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from crossflow.cli import page
from crossflow.cli.log import quiet

if TYPE_CHECKING:
    from crossflow.study.searches import Reporter


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
