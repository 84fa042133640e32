"""What a command says beside its data, on stderr: with ``--verbose`` what it reads and takes, with ``--quiet`` errors alone."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossflow import __version__
from crossflow.base.contents import READ
from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_writable, named_by
from crossflow.base.names import visible
from crossflow.base.platforms import most_memory
from crossflow.base.stages import StageWatch, kept_results
from crossflow.base.units import show

MICRO = 1e6  # microseconds of a second
MOST_KEPT = 4  # functions whose kept results are told one by one


class Once(logging.Handler):
    """Writes every line to stderr, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line that was not written before."""
        line = record.getMessage()
        if line not in self._seen:
            self._seen.add(line)
            sys.stderr.write(f"crossflow: {visible(line)}\n")


@contextlib.contextmanager
def at_level(arguments: argparse.Namespace) -> Iterator[None]:
    """Say as much as the words of a command ask for, while it runs."""
    profile, loud = arguments.profile, arguments.verbose
    if profile is not None:
        _check(profile)
    logger, handler, watch = logging.getLogger("crossflow"), Once(), StageWatch()
    before, earlier = logger.level, kept_results() if loud else {}
    logger.setLevel(logging.DEBUG if arguments.verbose else logging.WARNING if arguments.quiet else logging.INFO)
    if loud:
        logging.getLogger(READ).addHandler(handler)
    begun, spent = time.perf_counter(), time.process_time()
    try:
        with watch if loud or profile is not None else contextlib.nullcontext():
            yield
    finally:
        if profile is not None:
            _write_profile(profile, arguments.command, watch, begun)
        if loud:
            _tell_stages(watch, earlier)
            logging.getLogger(READ).removeHandler(handler)
            _sum_up(time.perf_counter() - begun, time.process_time() - spent)
        logger.setLevel(before)


def _check(path: Path) -> None:
    """CrossflowError for a file of a profile that could not be written, or whose name is no trace's."""
    if not path.name.endswith((".json", ".json.gz")):
        raise CrossflowError(f"--profile {visible(path.name)}: a trace is a .json or .json.gz file, such as profile.json")
    check_writable(path, "--profile")


def _tell_stages(watch: StageWatch, before: Mapping[str, tuple[int, int]]) -> None:
    """Say the own time of each stage, and how often results were found again that had been worked out before."""
    told = [f"{name} {show(taken, 's')}" + (f" in {count:,}" if count > 1 else "") for name, (count, taken) in watch.totals().items()]
    if told:
        sys.stderr.write(f"crossflow: stages: {', '.join(told)}\n")
    asked = []
    for name, (found, made) in kept_results().items():
        earlier = before.get(name, (0, 0))
        asked.append((found - earlier[0], made - earlier[1], name))
    again, anew = sum(one[0] for one in asked), sum(one[1] for one in asked)
    most = ", ".join(f"{name} {found:,} of {found + made:,}" for found, made, name in sorted(asked, reverse=True)[:MOST_KEPT] if found)
    sys.stderr.write(f"crossflow: kept results: {again:,} of {again + anew:,} found again{'; ' if most else ''}{most}\n")


def _write_profile(path: Path, command: str, watch: StageWatch, begun: float) -> None:
    """Write the spans of a command as a trace; the threads of this process, not those of workers."""
    from crossflow.edges.trace.perfetto import write_events

    threads = {one: i for i, one in enumerate(dict.fromkeys([threading.main_thread().ident, *(span.thread for span in watch.spans)]))}
    lines = [("process_name", 0, f"crossflow {__version__}"), *(("thread_name", i, f"thread {i}") for i in threads.values())]
    names = [{"ph": "M", "name": name, "pid": 1, "tid": i, "args": {"name": told}} for name, i, told in lines]
    whole = _event(f"crossflow {command}", 0, 0.0, time.perf_counter() - begun)
    ordered = sorted(watch.spans, key=lambda span: (span.start, -span.end))
    events = [
        _event(one.name, threads[one.thread], one.start - begun, one.end - one.start) | {"args": {"own_us": MICRO * one.own}}
        for one in ordered
    ]
    with named_by("--profile"):
        write_events([*names, whole, *events], path, packed=path.suffix == ".gz")


def _event(name: str, thread: int, start: float, duration: float) -> dict[str, Any]:
    """A span as Perfetto reads it; times in seconds are written in microseconds."""
    return {"ph": "X", "name": name, "pid": 1, "tid": thread, "ts": MICRO * start, "dur": MICRO * duration}


def _sum_up(elapsed: float, processor: float) -> None:
    from crossflow import __version__

    most = most_memory()
    held = "; this system does not say how much memory" if most is None else f", and at most {most:,.0f} MiB"
    sys.stderr.write(f"crossflow: {__version__} took {elapsed:.2f} s, {processor:.2f} s of the processor{held}\n")


def quiet() -> bool:
    """Whether a command is to say nothing but errors."""
    return not logging.getLogger("crossflow").isEnabledFor(logging.INFO) and logging.getLogger("crossflow").level != logging.NOTSET


def verbose() -> bool:
    """Whether a command is to say all."""
    return logging.getLogger("crossflow").level == logging.DEBUG
