"""One writer to a folder: a lock that the kernel releases when its owner ends, however that ends."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from crossflow.base import platforms
from crossflow.base.errors import CrossflowError

LOCK = ".crossflow.lock"
CLAIM = ".crossflow.owner"  # instead, where the file system knows no locks
LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
PATIENCE, PAUSE = 1.0, 0.01  # of whoever asks for the owner, who may not have signed yet [s]


@contextlib.contextmanager
def owning(folder: Path, option: str = "--out") -> Iterator[None]:
    """Own a folder, which is made where it is not there; whoever only reads it is not disturbed.

    Parameters
    ----------
    option : of the command line, with which another folder is chosen.

    Raises
    ------
    CrossflowError
        Where another process, or another thread of this one, owns the folder, and where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = _locked(folder / LOCK, option)
    except OSError as error:
        raise CrossflowError(f"cannot write {folder}: {error.strerror}; choose another folder with {option}") from None
    try:
        yield
    finally:
        path, descriptor = held
        with contextlib.suppress(OSError):
            if not platforms.removes_open_files():
                os.close(descriptor)  # nor is one removed that another has opened since
                path.unlink()
            elif _is_at(path, descriptor):  # else the folder was removed, and may be another's by now
                path.unlink()  # before the lock goes, so that nobody locks a file without a name
        if platforms.removes_open_files():
            os.close(descriptor)


def _locked(path: Path, option: str) -> tuple[Path, int]:
    """The file that says who owns the folder, locked and signed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | platforms.OWN, 0o644)
        try:
            platforms.lock(descriptor)
            if _is_at(path, descriptor):
                return path, _signed(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in LOCKLESS:
                return _claimed(path, option)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            other = f"give another folder with {option}"
            raise CrossflowError(f"{path.parent} is being written by {_owner(path)}; wait until it has ended, or {other}") from None
        os.close(descriptor)  # its owner has removed it in between


def _claimed(path: Path, option: str) -> tuple[Path, int]:
    """The same without locks: whoever makes the file owns the folder, until the file is removed."""
    claim = path.with_name(CLAIM)
    with contextlib.suppress(OSError):
        path.unlink()
    try:
        return claim, _signed(os.open(claim, os.O_RDWR | os.O_CREAT | os.O_EXCL | platforms.OWN, 0o644))
    except FileExistsError:
        cure = f"wait until it has ended, remove {claim} if it was killed, or give another folder with {option}"
        raise CrossflowError(f"{path.parent} is being written by {_owner(claim)}; {cure}") from None


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _signed(descriptor: int) -> int:
    """Write into an open file whose it is."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
    return descriptor


def _owner(path: Path) -> str:
    """Who owns a folder, in words; what an owner that has ended left there is waited out."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            process, host = path.read_text(encoding="utf-8").split()
            if host != socket.gethostname() or platforms.runs(int(process)):
                return f"process {int(process)} on {host}"
        time.sleep(PAUSE)
    return "another process"
