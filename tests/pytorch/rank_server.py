"""Forks ranks of the emulator from a process that has imported what each of them imports, and nothing else; `ranks.py` starts it.

Most of what a rank takes is its start: Python, torch, crossflow and the units of delays. A fork of this process is where a rank is that
has just started.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import socket
import sys

APART = 200  # from this number on, descriptors are out of the way of those of a rank
MOST = 16  # descriptors of a rank


def next_rank(requests):
    """Words of a rank that is asked for, in a process of its own; the server ends when nobody is left who could ask."""
    while True:
        text, descriptors, *_ = socket.recv_fds(requests, 2**20, MOST)
        if not text:
            sys.exit()
        if not os.fork():
            requests.detach()
            return _settled(json.loads(text), descriptors)
        for one in descriptors:
            os.close(one)
        with contextlib.suppress(ChildProcessError):  # there is none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _settled(asked, descriptors):
    """Words of the rank, in its process; this one stays between, and tells the rank's number and how it ends."""
    *own, answers = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, APART) for one in descriptors)
    os.closerange(3, APART)
    rank = os.fork()
    if rank:
        for one in (0, 1, 2, *own):
            os.close(one)
        os.setpgid(rank, rank)
        os.write(answers, b"%d\n" % rank)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
        os._exit(0)
    os.setpgid(0, 0)
    for one, number in zip(own, (0, 1, 2, *asked["kept"]), strict=True):
        os.dup2(one, number)
    os.closerange(APART, APART + MOST)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    return asked["words"]


if __name__ == "__main__":
    importlib.import_module("crossflow.evidence.emulation.launch")
    importlib.import_module("crossflow.evidence.emulation.processes").RunSettings(world_size=8, system="dgx-h100").delays_()
    gc.freeze()  # a rank that ends would look at all that was imported, which takes longer than all that it does
    main = importlib.import_module("crossflow.evidence.emulation.rank").main
    main(next_rank(socket.socket(fileno=int(sys.argv[1]))))
