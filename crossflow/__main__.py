"""The command line: ``crossflow`` and ``python -m crossflow``."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

BAD_INPUT, SIGNALLED, BROKEN_PIPE = 2, 128, 141  # exit statuses; the last two as a shell counts signals: 128 and their number


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
    from crossflow.base.signals import ending

    words = sys.argv[1:] if argv is None else list(argv)
    if argv is None:  # what a command imports and reads stays until it ends: looking for garbage in it takes a tenth of a short one
        gc.set_threshold(500_000)
        atexit.register(gc.freeze)  # nor is any looked for at the end
    _open_closed_streams()
    # Products of small matrices: threads would only wait for one another, and change last digits from machine to machine.
    for library in ("OPENBLAS", "OMP", "MKL") if words[:1] != ["emulate"] else ():  # whose script has its own
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if argv is None and words[:1] != ["emulate"]:  # no plug-in of pydantic is asked for; to look for some reads what every package says
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with ending() as end:
        try:
            return _status(words)
        except KeyboardInterrupt:
            return _interrupted(words, end.number or signal.SIGINT)
        except Exception:
            if not end.number:
                raise
            return _interrupted(words, end.number)  # the terminal may be gone, so that what is ended fails


def _status(words: Sequence[str]) -> int:
    """Exit status of a command that no signal ends."""
    try:
        _run(words)
    except BrokenPipeError:
        _leave_streams()  # without a word: the reader has what it wanted
        return BROKEN_PIPE
    except Exception as error:
        message = _explain(error)
        if message is None:
            _leave_report(error, words)
            raise
        sys.stderr.write(message + "\n")
        return BAD_INPUT
    return 0


def _run(words: Sequence[str]) -> None:
    from crossflow.edges.cli import parser

    _survive_narrow_encodings()
    try:
        arguments = parser.parse(words)
        from crossflow.edges.cli.log import at_level

        with at_level(arguments):
            try:
                parser.handler(arguments)(arguments)
            except Exception:
                if arguments.verbose and not isinstance(sys.exc_info()[1], BrokenPipeError):
                    traceback.print_exc()
                raise
    finally:
        sys.stdout.flush()


def _leave_report(error: Exception, words: Sequence[str]) -> None:
    """Say where a report of a mistake of crossflow's own lies; its traceback follows."""
    from crossflow.edges.cli.crash import report

    path = report(error, words)
    if path is not None:
        told = "has what a report of it needs, without names of your files, folders, user and machine"
        sys.stderr.write(f"crossflow: this is a mistake of crossflow, not of yours: {path} {told}\n")


def _explain(error: Exception) -> str | None:
    """What a person must mend, for errors that the input caused; None for all others, whose traceback is wanted."""
    from crossflow.base.errors import CrossflowError, SpecError
    from crossflow.base.names import visible
    from crossflow.base.packages import lacking

    if isinstance(error, ModuleNotFoundError):
        return None if (why := lacking(error)) is None else f"crossflow: {why}"
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


def _interrupted(words: Sequence[str], number: int) -> int:
    said = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    kept = {"study": "finished points", "measure": "measured rows"}.get("".join(words[:1]))
    cure = f"; {kept} are kept, and the same command with --resume goes on from them" if kept else ""
    with contextlib.suppress(OSError, ValueError):  # of a terminal that is gone
        sys.stderr.write(f"crossflow: {said}{cure}\n")
    _leave_streams()
    return SIGNALLED + number


def _leave_streams() -> None:
    """Write nothing more where nobody reads any more, so that Python does not complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def _open_closed_streams() -> None:
    """Read nothing from, and write nothing to, streams that were closed before the start (`>&-`), and keep files from their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  (for as long as the process runs)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _survive_narrow_encodings() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
