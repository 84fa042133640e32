"""What Linux, macOS and Windows do differently. No other module imports what only some of them have, or asks which one this is.

The emulation of ranks (`crossflow.evidence.emulation`) is apart: it starts groups of processes as only POSIX knows them, and needs Linux.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def _module(name: str) -> Any:
    """A module of the standard library that not every system has; None where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl: Any = _module("fcntl")  # POSIX
msvcrt: Any = _module("msvcrt")  # Windows
_posix: Any = signal  # with what only POSIX has in it

SYSTEM = sys.platform  # as reports name it
WINDOWS = sys.platform == "win32"
MOST_PROCESSES = 61 if WINDOWS else None  # that a pool can wait for: Windows waits for 63 objects at most, two are the pool's own
# Signals that ask a process to end: Ctrl-C, `kill`, a terminal that closes, Ctrl-Break of Windows.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
ABANDON = getattr(signal, "SIGUSR1", None)  # asks a process to leave what it does; where there is no such signal, it goes on to its end
MASKS = hasattr(signal, "pthread_sigmask")  # whether a thread can block signals, and a process inherits that
MIB = 1 << 20
PATIENCE, PAUSE = 2.0, 0.02  # of whoever replaces a file that another process has open for a moment [s]
# Of descriptors, where there is such a thing: no link is followed, and no process that is started inherits one.
OWN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BEYOND = 1 << 30  # a byte that msvcrt locks, which nobody could read then: far behind what the file holds
# Names that Windows keeps for devices, with any ending, and what no name may hold there (Microsoft: Naming Files, Paths, and Namespaces).
_DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{number}" for kind in ("com", "lpt") for number in range(1, 10))}
_FORBIDDEN = frozenset('<>:"|?*\\')


# ------------------------------------------------------------------------------------------ files


def lock(descriptor: int) -> None:
    """Lock an open file until it is closed; OSError where another process has, ENOSYS where the system knows no locks."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    if msvcrt is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    os.lseek(descriptor, _BEYOND, os.SEEK_SET)
    msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    os.lseek(descriptor, 0, os.SEEK_SET)


def removes_open_files() -> bool:
    """Whether a file can lose its name while it is open; not on Windows."""
    return fcntl is not None


def replace(source: str | Path, target: str | Path) -> None:
    """Give a file the name of another one, whose place it takes.

    Windows refuses that for as long as anyone reads the other one, or looks for viruses in it: a moment is waited for.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            os.replace(source, target)
        except PermissionError:
            if not WINDOWS or time.monotonic() > end:
                raise
            time.sleep(PAUSE)
        else:
            return


def is_device_name(name: str) -> bool:
    """Whether Windows takes a file's name for a device, whatever its ending and letter case.

    >>> is_device_name("aux.yaml"), is_device_name("NUL"), is_device_name("auxiliary.yaml")
    (True, True, False)
    """
    return name.partition(".")[0].rstrip().casefold() in _DEVICES


def can_name_a_file(name: str) -> bool:
    """Whether every system can have a file of this name.

    >>> can_name_a_file("area 2.png"), can_name_a_file("a:b.png"), can_name_a_file("con.png"), can_name_a_file("a.")
    (True, False, False, False)
    """
    return not (_FORBIDDEN & set(name) or name.endswith((".", " ")) or is_device_name(name))


# ------------------------------------------------------------------------------------------ signals


@contextlib.contextmanager
def masked(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Let signals of this thread wait, where the system can; a process that is started here begins with them blocked."""
    if not MASKS:
        yield
        return
    before = _posix.pthread_sigmask(_posix.SIG_BLOCK, signals)
    try:
        yield
    finally:
        _posix.pthread_sigmask(_posix.SIG_SETMASK, before)


def unmask(signals: tuple[signal.Signals, ...]) -> None:
    """Let signals through that a process began with blocked."""
    if MASKS:
        _posix.pthread_sigmask(_posix.SIG_UNBLOCK, signals)


def signal_self(number: int) -> None:
    """Send this process a signal that its handler gets, from any thread."""
    if WINDOWS:  # whose os.kill ends the process without a word
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)


def send(process: int, number: int) -> None:
    """Send a signal to another process; OSError where it has ended."""
    os.kill(process, number)


def kill_self() -> None:
    """End this process at once, whatever its threads do."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows each is the end of a process


# ------------------------------------------------------------------------------------------ processes


def runs(process: int) -> bool:
    """Whether a process of this machine runs; Windows is not asked, where os.kill would end it."""
    if WINDOWS:
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def hold(process: int) -> bool:
    """Let a process stand still, until `go_on`; False where the system cannot."""
    if not hasattr(signal, "SIGSTOP"):
        return False
    os.kill(process, signal.SIGSTOP)
    return True


def go_on(process: int) -> None:
    """Let a process go on that stands still."""
    if hasattr(signal, "SIGCONT"):
        os.kill(process, signal.SIGCONT)


def most_memory() -> float | None:
    """The most memory that this process has held [MiB]; None where the system does not say (Windows)."""
    resource: Any = _module("resource")
    if resource is None:
        return None
    scale = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, the others KiB
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale / MIB


def has_display(environment: Mapping[str, str]) -> bool:
    """Whether a browser has a window to open; one in this terminal would take it over."""
    return WINDOWS or sys.platform == "darwin" or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
