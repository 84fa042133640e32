"""Signals that end a process, streams that are closed, and workers that end with their parent."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from crossflow.base import platforms
from crossflow.base.signals import Ended, ending, undisturbed


def test_the_first_signal_ends_and_those_after_it_do_not_disturb():
    before = [signal.getsignal(number) for number in platforms.ENDING]
    with ending() as state:
        with pytest.raises(Ended):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert state.number == signal.SIGTERM
    assert [signal.getsignal(number) for number in platforms.ENDING] == before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending() as state:
            signal.raise_signal(signal.SIGHUP)
            assert not state.number
    finally:
        signal.signal(signal.SIGHUP, before)


class Fragile:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def destroyed():
    Fragile()
    time.sleep(5)


def test_a_signal_within_a_destructor_is_not_lost(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with ending(), pytest.raises(Ended):
        destroyed()


def started():
    """What a process says that is started undisturbed, as a signal comes."""
    words = [sys.executable, "-c", "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"]
    with undisturbed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert subprocess.run(words, capture_output=True, text=True, check=False).stdout == "True\n"


def test_signals_wait_until_a_process_is_started():
    with ending():
        with pytest.raises(Ended):
            started()
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(closed):
    command = f"{sys.executable} -m crossflow list studies {closed}"
    made = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_command_without_a_word():
    command = f"{sys.executable} -m crossflow list studies 2>&1 | true; exit ${{PIPESTATUS[0]}}"
    made = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (141, "")


def test_a_terminal_that_closes_leaves_the_process_that_tidies_up():
    """SIGHUP reaches it too; without it the pool's locks would be told as unknown, with tracebacks."""
    code = """
from multiprocessing import resource_tracker
from crossflow.answers.workers import _Pool
pool = _Pool(1)
print(open(f"/proc/{resource_tracker._resource_tracker._pid}/status").read())
pool.end()
"""
    status = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    kept = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16) | int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16)
    assert kept >> (signal.SIGHUP - 1) & 1
