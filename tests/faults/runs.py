"""Runs of a study that are ended from outside, or started several at once, and what is wrong with them afterwards."""

import contextlib
import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
MARK = "CROSSFLOW_FAULTS"  # in the environment of all processes of a run
GONE = 5.0  # until when all of them must have ended [s]
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
STARTUP = """
import sys
import crossflow.edges.cli.study
from crossflow.__main__ import main
print(flush=True)  # ready
sys.stdin.readline()
sys.exit(main())
"""
BUSY = re.compile(r"crossflow: .* is being written by process (\d+) on \S+; wait until it has ended, or give another folder with --out\n")


def words(study: Path, out: Path, *, jobs: str = "1", resume: bool = False) -> list[str]:
    """The command, with so many jobs or on the Dask cluster of an address."""
    where = ["--dask", jobs] if ":" in jobs else ["--jobs", jobs]
    return ["study", str(study), "--out", str(out), *where, *(["--resume"] if resume else [])]


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a run."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass
class Run:
    """A run whose log goes to a terminal."""

    command: Sequence[str]
    text: str = ""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        master, slave = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark, "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crossflow", *self.command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self.reader.start()

    def _read(self, master: int) -> None:
        with os.fdopen(master, "rb", buffering=0) as stream, contextlib.suppress(OSError):  # which says that the terminal is closed
            while content := stream.read(65536):
                self.text += content.decode("utf-8", "replace")

    def wait(self) -> int:
        """Exit status."""
        status = self.process.wait(timeout=600)
        self.reader.join(timeout=GONE)
        return status

    def end(self, number: int, *, group: bool) -> int:
        """Exit status after a signal, to the process or as a terminal sends it to all processes."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, number)
        return self.wait()

    def left(self) -> list[str]:
        """Processes that are still there after a while, which are killed."""
        limit = time.monotonic() + GONE
        while (found := dict(self._processes())) and time.monotonic() < limit:
            time.sleep(0.05)
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return list(found.values())

    def _processes(self) -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def problems(self, statuses: Sequence[int], status: int) -> list[str]:
        """What is wrong after its end."""
        found = [] if status in statuses else [f"exit status {status}, not {' or '.join(map(str, statuses))}"]
        found += [f"{word} in the log" for word in ("Traceback", "Exception ignored", "Error in") if word in self.text]
        if self.text.rfind(HIDDEN) > self.text.rfind(SHOWN):
            found.append("the cursor is hidden")
        found += [f"left behind: {command}" for command in self.left()]
        return [f"{problem}\n{self.text}" if "log" in problem or "status" in problem else problem for problem in found]


def ended(study: Path, out: Path, jobs: str, number: int, moment: float, *, group: bool, resume: bool = False) -> list[str]:
    """Problems of a run that gets a signal after so many seconds."""
    run = Run(words(study, out, jobs=jobs, resume=resume))
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(timeout=moment)
    status = run.end(number, group=group)
    if "KeyboardInterrupt" in run.text and "crossflow" not in run.text:
        return run.left()  # Python itself was starting, and it is not our turn yet
    return run.problems((0, 128 + number, -number), status)


def resumed(study: Path, out: Path, jobs: str, expected: dict[str, bytes]) -> list[str]:
    """Problems of a run that goes on to its end: above all other bytes than those of an undisturbed one."""
    run = Run(words(study, out, jobs=jobs, resume=True))
    found = run.problems((0,), run.wait())
    return found + differences(contents(out), expected)


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Names of files that are missing, too many, or not the same."""
    return [f"{name} differs" for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]


def faulty(study: Path, out: Path, jobs: str, expected: dict[str, bytes], length: float, draw: random.Random) -> list[str]:
    """Problems of a run that is ended at a random moment, perhaps its resumption too, and then resumed."""
    found = []
    for attempt in range(draw.choice((1, 1, 2))):
        number, group = draw.choice(SIGNALS), draw.random() < 0.5
        moment = draw.uniform(0.0, 1.1) * length
        told = ended(study, out, jobs, number, moment, group=group, resume=attempt > 0)
        found += [f"{signal.Signals(number).name}{' to all' if group else ''} after {moment:.2f} s: {problem}" for problem in told]
    return found + resumed(study, out, jobs, expected)


def together(study: Path, out: Path, count: int, expected: dict[str, bytes], *, resume: bool) -> list[str]:
    """Problems of several runs into one folder that begin at the same moment: one writes, the others are refused and told who it is."""
    command = [sys.executable, "-c", STARTUP, *words(study, out, resume=resume)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    processes = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(count)]
    for process in processes:
        process.stdout.readline()  # it is ready
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    logs = [process.communicate(timeout=600)[1] for process in processes]
    first = [process.pid for process in processes if process.returncode == 0]
    found = [] if len(first) == 1 else [f"{len(first)} of {count} ran: {logs}"]
    for process, log in zip(processes, logs, strict=True):
        if process.returncode and (process.returncode != 2 or not (told := BUSY.fullmatch(log)) or int(told[1]) not in first):
            found.append(f"exit status {process.returncode}, {first} ran: {log}")
    return found + differences(contents(out), expected)


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Address of a Dask cluster of two processes."""
    made = "import sys, distributed\nif __name__ == '__main__':\n    made = distributed.LocalCluster(n_workers=2, threads_per_worker=1, "
    made += "processes=True, dashboard_address=':0')\n    print(made.scheduler_address, flush=True)\n    sys.stdin.read()\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", made], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)
