"""Signals that end a process come as an exception, so that what was begun is ended in order; worker processes end with their parent."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from crossflow.base.platforms import ENDING, kill_self, masked, signal_self, unmask

SOON = 0.01  # [s]


class Ended(KeyboardInterrupt):
    """A signal that ends the process, by its number."""


@dataclass(kw_only=True)
class SignalState:
    """Which signal has come, 0 while none has."""

    number: int = 0

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Raise Ended for the first signal; those after it are ignored, so that nothing disturbs what the first one ends."""
        if not self.number:
            self.number = number
            raise Ended(number)

    def again(self, unraisable: Any) -> None:
        """Raise Ended once more where Python could not pass it on, as in a destructor; other exceptions are told as ever."""
        if not isinstance(unraisable.exc_value, Ended):
            sys.__unraisablehook__(unraisable)
            return
        number, self.number = self.number, 0
        threading.Timer(SOON, signal_self, (number,)).start()


@contextlib.contextmanager
def ending() -> Iterator[SignalState]:
    """Raise Ended in the main thread where SIGINT, SIGTERM or SIGHUP comes; signals that are ignored, as by nohup, stay so."""
    state = SignalState()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return
    handled = {number: handler for number in ENDING if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = state.again if hook is sys.__unraisablehook__ else hook
        for number in handled:
            signal.signal(number, state)
        yield state
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals that end the process wait until this is done; a process that is started here begins with them blocked."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handled = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
    for number in handled:  # another thread may get the signal, and this one the call of its handler
        signal.signal(number, lambda number, _: came.append(number))
    try:
        with masked(ENDING):
            yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def end_with_parent() -> None:
    """Make a worker process end when its parent does, however that ends; Ctrl-C is the parent's, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unmask(ENDING)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End this process at once when its parent has ended."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        kill_self()
