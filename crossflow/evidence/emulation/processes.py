"""The processes of an emulation: one for each real rank, started together, heard through one mouth, and ended together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from crossflow.base.errors import CrossflowError
from crossflow.base.platforms import ENDING, WINDOWS
from crossflow.evidence.emulation.accounting import CallLedger
from crossflow.evidence.emulation.delays import Delays, LinkKind, delays_of
from crossflow.evidence.emulation.meeting import Meeting

VARIABLE = "CROSSFLOW_EMULATION"  # of a rank's environment, with its settings
GRACE = 5.0  # that processes have to end after they were asked to [s]
POLL = 0.02  # [s]
FORWARDED = ENDING


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a rank's process is told.

    Attributes
    ----------
    world_size, rank, real : ranks of the world, the own one, and all that run for real.
    system, delays, what_if, link : where delays come from; see `delays_of`.
    result : file for what the rank called; its rows are kept where `keeps`.
    meeting : address where real ranks meet, "" where there is one.
    watch : file descriptor that closes when the parent ends, -1 for none.
    emulates : whether other ranks are emulated; without that all run for real, and their network is noted.
    """

    world_size: int
    rank: int = 0
    real: tuple[int, ...] = (0,)
    system: str | None = None
    delays: str | None = None
    what_if: str = ""
    link: LinkKind | None = None
    result: str = ""
    keeps: bool = False
    meeting: str = ""
    watch: int = -1
    emulates: bool = True

    def delays_(self) -> Delays:
        """Delays of the world; CrossflowError for what is wrong with them."""
        found = delays_of(self.world_size, self.system, self.delays, self.what_if, self.link)
        found.what_if.check_ranks(self.world_size, self.real)
        return found

    @classmethod
    def read(cls, text: str) -> RunSettings:
        """Settings from the environment."""
        data = json.loads(text)
        return cls(**{**data, "real": tuple(data["real"])})


@dataclass(kw_only=True)
class RunOutcome:
    """How an emulation ended.

    Attributes
    ----------
    status : exit status.
    ranks : what every real rank called, as its process left it, None where it left nothing.
    failed : the first rank that failed, None where none did.
    stopped : ranks that were ended because of it.
    """

    status: int
    ranks: Mapping[int, dict[str, Any] | None]
    failed: int | None = None
    stopped: tuple[int, ...] = ()


def emulate(settings: RunSettings, words: Sequence[str], local: int = 1) -> RunOutcome:
    """Run a script on real ranks of a world; `local` is what it is told of devices in a node, 0 where its launcher has told it all. [1]

    Raises
    ------
    CrossflowError
        Where real ranks disagree, where a call has no delay, and on Windows. No process is left behind.
    """
    if WINDOWS:
        raise CrossflowError("crossflow emulate needs groups of processes, which Windows lacks: run it on Linux or macOS (not --replay)")
    with tempfile.TemporaryDirectory(prefix="crossflow-") as folder:
        run = _Run(settings=settings, words=tuple(words), folder=Path(folder), local=local)
        with run.forwarding():
            try:
                status = run.wait()
            finally:
                run.end()
        if run.ledger.failure is not None and run.interrupted is None:
            raise run.ledger.failure
        found = {rank: run.result(rank) for rank in settings.real}
        for one in found.values():
            if one is not None and one["failure"]:
                raise CrossflowError(one["failure"])
        return RunOutcome(status=status, ranks=found, failed=run.failed, stopped=run.stopped)


@dataclass(kw_only=True)
class _Run:
    settings: RunSettings
    words: tuple[str, ...]
    folder: Path
    local: int
    interrupted: int | None = None
    failed: int | None = None
    stopped: tuple[int, ...] = ()
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    readers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = CallLedger(real=self.settings.real)
        self.meeting = Meeting(ledger=self.ledger) if len(self.settings.real) > 1 and self.settings.emulates else None
        self.port = 29500 if self.settings.emulates else _free_port()
        self.watched, self.held = os.pipe()

    def start(self) -> None:
        """Start a process for each real rank."""
        for place, rank in enumerate(self.settings.real):
            told = asdict(self.settings) | {"rank": rank, "result": str(self._file(rank)), "watch": self.watched}
            told |= {"meeting": "" if self.meeting is None else self.meeting.address}
            several = len(self.settings.real) > 1
            process = subprocess.Popen(
                [sys.executable, "-m", "crossflow.evidence.emulation.rank", *self.words],
                env=os.environ | self._environment(rank, place) | {VARIABLE: json.dumps(told)},
                stdin=subprocess.DEVNULL if several or sys.stdin is None or sys.stdin.isatty() else None,
                stdout=subprocess.PIPE if several else None,
                stderr=subprocess.PIPE if several else None,
                process_group=0,
                pass_fds=(self.watched,),
            )
            self.processes[rank] = process
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                if source is not None:
                    thread = threading.Thread(target=_prefixed, args=(source, target, f"[rank {rank}] "), daemon=True)
                    thread.start()
                    self.readers.append(thread)

    def _environment(self, rank: int, place: int) -> dict[str, str]:
        """What a launcher tells a rank; on a real network as torchrun does, one thread for each of several ranks unless it is told."""
        if not self.local:
            return {}
        told = _variables(rank, self.settings.world_size, place, self.local, self.port)
        if self.settings.emulates:
            return told | {"TORCH_DIST_INIT_BARRIER": "0"}
        return told | ({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if self.local > 1 else {})

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Pass signals on to all ranks for as long as they run."""

        def forward(number: int, _: object) -> None:
            self.interrupted = self.interrupted or number
            self._signal(number)

        before = {number: signal.signal(number, forward) for number in FORWARDED} if _main_thread() else {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self) -> int:
        """Exit status of the first rank that fails, 0 where none does."""
        self.start()
        running, deadline = dict(self.processes), None
        while running:
            for rank, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[rank]
                if self.interrupted is not None:
                    continue
                if process.returncode:
                    self.failed, self.stopped = rank, tuple(one for one in running if self.processes[one].poll() is None)
                    return _status(process.returncode)
                if self.meeting is not None:
                    self.meeting.ended(rank)
            if self.interrupted is not None:
                deadline = deadline or time.monotonic() + GRACE
                if time.monotonic() > deadline:
                    break
            elif self._disagree():
                return 1
            time.sleep(POLL)
        return 0 if self.interrupted is None else 128 + self.interrupted

    def _disagree(self) -> bool:
        """Whether real ranks disagree, or have waited for one another for too long."""
        self.ledger.check_patience(time.perf_counter())
        return self.ledger.failure is not None

    def end(self) -> None:
        """End what still runs, with everything that it started, and read its last words."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < deadline:
            time.sleep(POLL)
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        for thread in self.readers:
            thread.join(timeout=GRACE)
        for descriptor in (self.watched, self.held):
            os.close(descriptor)
        if self.meeting is not None:
            self.meeting.close()

    def result(self, rank: int) -> dict[str, Any] | None:
        """What a rank called, None where its process left nothing."""
        try:
            found: dict[str, Any] = json.loads(self._file(rank).read_bytes())
        except (OSError, ValueError):
            return None
        return found

    def _file(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"

    def _signal(self, number: int) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _status(code: int) -> int:
    """Exit status as a shell counts it: 128 and its number for a signal."""
    return code if code >= 0 else 128 - code


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _variables(rank: int, world_size: int, place: int, local: int, port: int) -> dict[str, str]:
    """What launchers such as torchrun tell a rank; its local rank is its place among the real ones, whose devices are at hand."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def _prefixed(source: IO[bytes], target: IO[str], prefix: str) -> None:
    """Write lines of one stream to another, each with the rank that it comes from."""
    with source:
        for line in source:
            target.write(prefix + line.decode("utf-8", "replace").rstrip("\n") + "\n")
            target.flush()


def missing(outcome: RunOutcome) -> tuple[int, ...]:
    """Ranks whose processes left nothing, as after a signal or os._exit."""
    return tuple(rank for rank, found in outcome.ranks.items() if found is None)


def check_ranks(real: Sequence[int], world_size: int) -> None:
    """CrossflowError for real ranks that the world does not have."""
    if real[-1] >= world_size:
        raise CrossflowError(f"--ranks: there is no rank {real[-1]} in a world of {world_size}")
