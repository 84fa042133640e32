"""A process beside the server for answers that take long, so that what a person drags meanwhile is answered at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from crossflow.base import platforms
from crossflow.base.errors import CrossflowError
from crossflow.base.platforms import ABANDON
from crossflow.base.signals import end_with_parent

HELD = 0.35  # time without a move after which the process goes on [s]
LOOK = 0.05  # how often it is looked whether somebody still waits for an answer [s]

#: Whether somebody waits for the answer to what this thread calls; whoever asked may have gone.
AWAITED: ContextVar[Callable[[], bool]] = ContextVar("whether an answer is awaited", default=lambda: True)


class _AbandonedError(BaseException):
    """Nobody waits for the answer to a call; no error that a function may take for one of its own."""


class Helper:
    """One process that calls functions one after another; it begins with the first call."""

    def __init__(self) -> None:
        self._lock, self._holding = threading.Lock(), threading.Lock()
        self._changing = threading.RLock()  # while the process begins or ends: whoever closes does not wait for a call
        self._closed = False
        self._timer: threading.Timer | None = None
        self._process: Any = None
        self._line: Any = None

    def call(self, function: Callable[..., Any], *words: Any) -> Any:
        """What a function of a module gives; its CrossflowError is raised here, and other errors as one.

        Waits for calls that were made before. A call whose answer nobody awaits any more (`AWAITED`) is not made, or left where it
        is, so that the next one need not wait for it: ConnectionAbortedError.
        """
        awaited = AWAITED.get()
        with self._lock:
            answer = self._asked(awaited, function, words) if awaited() else None
        if answer is None:
            raise ConnectionAbortedError("nobody waits for this answer")
        fine, found = answer
        if not fine:
            raise CrossflowError(found)
        return found

    def _asked(self, awaited: Callable[[], bool], function: Callable[..., Any], words: tuple[Any, ...]) -> tuple[bool, Any] | None:
        """What the process answers, None where it has left the call."""
        process, line = self._started()
        try:
            line.send((function, words))
            while not line.poll(LOOK):
                if ABANDON is not None and not awaited():
                    platforms.send(process.pid, ABANDON)
                    break
            answer: tuple[bool, Any] | None = line.recv()
        except (EOFError, OSError) as error:
            self._end()
            raise CrossflowError("the process that computes beside the page has ended; try again") from error
        return answer

    def hold(self, seconds: float = HELD) -> None:
        """Let the process stand still for some seconds from now, where the system can: somebody drags, and that comes first."""
        process = self._process
        if process is None:
            return
        with self._holding, contextlib.suppress(OSError, ValueError):  # of a process that has just ended
            if self._timer is not None:
                self._timer.cancel()
            if not platforms.hold(process.pid):
                return
            self._timer = threading.Timer(seconds, _go_on, (process.pid,))
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """End the process, whatever it does; no other one begins."""
        if self._timer is not None:
            self._timer.cancel()
        with self._changing:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.join()
            self._end()

    def _started(self) -> tuple[Any, Any]:
        with self._changing:
            if self._closed:
                raise CrossflowError("the server has ended")
            if self._line is None or not self._process.is_alive():
                context = multiprocessing.get_context("spawn")
                line, other = context.Pipe()
                process = context.Process(target=_work, args=(other,), daemon=True)
                process.start()
                other.close()
                self._line, self._process = line, process
            return self._process, self._line

    def _end(self) -> None:
        with self._changing:
            self._process = self._line = None  # whoever reads from the line meanwhile closes it, as the last who has it


def _go_on(number: int) -> None:
    with contextlib.suppress(OSError):
        platforms.go_on(number)


def _work(line: Any) -> None:
    """Answer calls until nobody asks any more."""
    working = False

    def abandon(*_: object) -> None:
        if working:  # else the answer is on its way
            raise _AbandonedError

    end_with_parent()
    if ABANDON is not None:
        signal.signal(ABANDON, abandon)
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, words = line.recv()
            answer = None
            with contextlib.suppress(_AbandonedError):
                working = True
                answer = _answered(function, words)
                working = False
            working = False
            line.send(answer)


def _answered(function: Callable[..., Any], words: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*words)
    except CrossflowError as error:
        return False, error.said
    except Exception as error:  # which the page tells: the process goes on
        return False, f"{type(error).__name__}: {error}"
