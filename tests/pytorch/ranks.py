"""Ranks of the emulator that are forked instead of started; their processes, their groups and what is written to them are as ever."""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

START = [sys.executable, "-m", "crossflow.evidence.emulation.rank"]


class RankServer:
    """The process that forks ranks."""

    def __init__(self):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, str(Path(__file__).with_name("rank_server.py")), str(theirs.fileno())]
        self.process = subprocess.Popen(words, pass_fds=(theirs.fileno(),), process_group=0)
        theirs.close()

    def close(self):
        self.requests.shutdown(socket.SHUT_WR)  # processes that were forked since then hold it open too
        self.requests.close()
        assert self.process.wait(60) == 0

    def start(self, words, *, env, stdin, stdout, stderr, process_group, pass_fds):
        """What `subprocess.Popen` starts for the emulator."""
        assert (words[:3], process_group) == (START, 0)
        (read_out, out), (read_err, err), (read_answers, answers) = _pipe(stdout, 1), _pipe(stderr, 2), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        request = {"words": words[3:], "environment": dict(env), "folder": os.getcwd(), "kept": pass_fds}
        descriptors = [0 if stdin is None else null, out, err, *pass_fds, answers]
        socket.send_fds(self.requests, [json.dumps(request).encode()], descriptors)
        for one in {null, out, err, answers} - {1, 2}:
            os.close(one)
        return ForkedRank(read_answers, *(one and os.fdopen(one, "rb") for one in (read_out, read_err)))


def _pipe(to, own):
    """Ends of a pipe for what a rank writes, or the own descriptor where it writes there."""
    return os.pipe() if to == subprocess.PIPE else (None, own)


class ForkedRank:
    """A rank as the emulator handles it."""

    def __init__(self, answers, stdout, stderr):
        self.answers, self.stdout, self.stderr, self.returncode = os.fdopen(answers, "rb", buffering=0), stdout, stderr, None
        self.pid = int(self.answers.readline())

    def poll(self):
        ended = self.returncode is None and select.select([self.answers], [], [], 0)[0]
        return self.wait() if ended else self.returncode

    def wait(self):
        if self.returncode is None:
            self.returncode = int(self.answers.readline())
        return self.returncode
