"""The command line: ``crossflow`` and ``python -m crossflow``."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # exit statuses; the last two as a shell counts SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    argv : words after the program's name; those of the process where absent.

    Raises
    ------
    SystemExit
        For ``--help``, ``--version`` and words that the command does not take.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    # Products of small matrices: threads would only wait for one another, and change last digits from machine to machine.
    for library in ("OPENBLAS", "OMP", "MKL") if words[:1] != ["emulate"] else ():  # whose script has its own
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        _run(words)
    except BrokenPipeError:
        return _leave_pipe()
    except KeyboardInterrupt:
        return _interrupted(words)
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        sys.stderr.write(message + "\n")
        return BAD_INPUT
    return 0


def _run(words: Sequence[str]) -> None:
    from crossflow.cli import parser

    _survive_narrow_encodings()
    try:
        arguments = parser.parse(words)
        parser.handler(arguments)(arguments)
    finally:
        sys.stdout.flush()


def _explain(error: Exception) -> str | None:
    """What a person must mend, for errors that the input caused; None for all others, whose traceback is wanted."""
    from crossflow.errors import CrossflowError, SpecError
    from crossflow.names import visible

    if isinstance(error, SpecError):
        lines = [visible(str(problem), "\n").replace("\n", "\n  ") for problem in error.problems]
        return "\n".join([*lines, f"crossflow: {len(lines)} problems"] if len(lines) > 1 else lines)
    if isinstance(error, CrossflowError) or _is_refusal(error):
        return "crossflow: " + visible(str(error), "\n").replace("\n", "\n  ")
    if isinstance(error, OSError):
        unwritten = "the output cannot be written: " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
        place = f"{error.filename}: " if error.filename is not None else unwritten
        return visible(f"crossflow: {place}{error.strerror or error}")
    return None


def _is_refusal(error: Exception) -> bool:
    """Whether this is a ValueError that crossflow itself raised to refuse a value, not one of a library below it."""
    if not isinstance(error, ValueError):
        return False
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return str(frame.f_globals.get("__name__", "")).startswith("crossflow.") and line.startswith("raise ")


def _interrupted(words: Sequence[str]) -> int:
    kept = "; finished points are kept, and the same command with --resume goes on from them"
    sys.stderr.write(f"crossflow: interrupted{kept if 'study' in words[:1] else ''}\n")
    return INTERRUPTED


def _leave_pipe() -> int:
    """Stop writing without a word: the reader has what it wanted, and Python must not complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    finally:
        os.close(nowhere)
    return BROKEN_PIPE


def _survive_narrow_encodings() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
