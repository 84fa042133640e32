"""A command of crossflow in a fork of this process, which has imported what it needs; the ranks that it starts are processes as ever."""

import importlib
import os
import signal
import subprocess
import tempfile

from crossflow.evidence.emulation.processes import RunSettings
from tests.forks import command

importlib.import_module("crossflow.edges.cli.emulate")
RunSettings(world_size=8, system="dgx-h100").delays_()  # which imports the rest
LIMIT = 120  # [s]


def forked(*words, cwd=None, env=None, server=None):
    """What a command wrote, and its exit status; in a folder and with an environment of its own where they are given.

    Its ranks are forked too where there is a server for that.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        child = os.fork()
        if not child:
            status = 70
            try:
                if server is not None:
                    subprocess.Popen = server.start
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
