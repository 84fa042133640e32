"""What a command says beside its data, on stderr: with ``--verbose`` what it reads and takes, with ``--quiet`` errors alone."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from crossflow.base.contents import READ
from crossflow.base.names import visible
from crossflow.base.platforms import most_memory


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
    logger, handler = logging.getLogger("crossflow"), Once()
    before = logger.level
    logger.setLevel(logging.DEBUG if arguments.verbose else logging.WARNING if arguments.quiet else logging.INFO)
    if arguments.verbose:
        logging.getLogger(READ).addHandler(handler)
    begun, spent = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        if arguments.verbose:
            logging.getLogger(READ).removeHandler(handler)
            _sum_up(time.perf_counter() - begun, time.process_time() - spent)
        logger.setLevel(before)


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
