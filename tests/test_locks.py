"""One writer to a folder: the second is refused with the first one's process and host, and nothing outlives its owner."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crossflow.base import locks, platforms
from crossflow.base.errors import CrossflowError

HERE = f"process {os.getpid()} on {socket.gethostname()}"
HOLD = """
import sys, time, pathlib
from crossflow.base.locks import owning
with owning(pathlib.Path(sys.argv[1])):
    print('held', flush=True)
    time.sleep(60)
"""


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path, exactly):
    with locks.owning(tmp_path):
        sentence = f"{tmp_path} is being written by {HERE}; wait until it has ended, or give another folder with -o"
        with pytest.raises(CrossflowError, match=exactly(sentence)), locks.owning(tmp_path, "-o"):
            pass
    with locks.owning(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_owner_holds_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(CrossflowError, match=f"is being written by process {child.pid} on "), locks.owning(tmp_path):
        pass
    child.kill()
    child.communicate()
    with locks.owning(tmp_path):
        assert locks._owner(tmp_path / locks.LOCK) == HERE


def test_without_locks_whoever_makes_the_file_owns_the_folder(tmp_path, monkeypatch, exactly):
    def lockless(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", lockless)
    cure = f"wait until it has ended, remove {tmp_path / locks.CLAIM} if it was killed, or give another folder with --out"
    with locks.owning(tmp_path):
        with pytest.raises(CrossflowError, match=exactly(f"{tmp_path} is being written by {HERE}; {cure}")), locks.owning(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [locks.CLAIM]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_points_elsewhere_is_refused_and_left_alone(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / locks.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(CrossflowError, match=r"^cannot write .*; choose another folder with --out$"), locks.owning(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null/x"])
def test_a_folder_that_cannot_be_written_is_told(folder):
    told = pytest.raises(CrossflowError, match=f"^cannot write {folder}: .*; choose another folder with --out$")
    with told, locks.owning(Path(folder)):
        pass


class Msvcrt:
    """Locks of bytes as Windows has them: of one process, by the file, refused with EACCES where they are held."""

    LK_NBLCK = 2

    def __init__(self):
        self.held = {}

    def locking(self, descriptor, mode, count):
        held = self.held.get(os.fstat(descriptor).st_ino)
        assert (mode, count, os.lseek(descriptor, 0, os.SEEK_CUR)) == (self.LK_NBLCK, 1, platforms._BEYOND)
        if held not in (None, descriptor) and os.path.exists(f"/proc/self/fd/{held}"):
            raise PermissionError(errno.EACCES, "Permission denied")
        self.held[os.fstat(descriptor).st_ino] = descriptor


@pytest.mark.parametrize("module", [None, Msvcrt()], ids=["neither", "msvcrt"])
def test_a_folder_has_one_owner_where_there_is_no_fcntl(tmp_path, monkeypatch, module):
    monkeypatch.setattr(platforms, "fcntl", None)
    monkeypatch.setattr(platforms, "msvcrt", module)
    with locks.owning(tmp_path):
        with pytest.raises(CrossflowError, match=f"is being written by {HERE}"), locks.owning(tmp_path):
            pass
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with locks.owning(tmp_path):
        pass
