"""A command of crossflow in a fork of this process, which has imported what it needs; the ranks that it starts are processes as ever."""

import importlib
import os
import signal
import subprocess
import tempfile

from tests.forks import command

importlib.import_module("crossflow.cli.emulate")
LIMIT = 120  # [s]


def forked(*words, cwd=None, env=None):
    """What a command wrote, and its exit status; in a folder and with an environment of its own where they are given."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        child = os.fork()
        if not child:
            status = 70
            try:
                status = _status(words, out.fileno(), err.fileno(), cwd, env)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())


def _status(words, out, err, cwd, env):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    return command(words, cwd or ".", out, err)
