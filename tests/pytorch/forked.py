"""A command of crossflow in a fork of this process, which has imported what it needs; the ranks that it starts are processes as ever."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback

from crossflow.__main__ import main

importlib.import_module("crossflow.cli.emulate")
LIMIT = 120  # [s]


def forked(*words, cwd=None, env=None):
    """What a command wrote, and its exit status; in a folder and with an environment of its own where they are given."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        child = os.fork()
        if not child:
            os._exit(_status(words, out.fileno(), err.fileno(), cwd, env))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), err.read())


def _status(words, out, err, cwd, env):
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)
        for number, to in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(to, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))
        os.chdir(cwd or ".")
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        return main(words)
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
