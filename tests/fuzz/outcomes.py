"""One command in a forked process: what became of it, within limits of processor time and memory."""

import importlib
import json
import os
import re
import resource
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.forks import command

SECONDS, MEMORY, WALL = 10, 1 << 30, 900  # of the processor, bytes above those at the start, seconds of the clock (of a busy machine)
BAD = ("traceback", "signal", "hang", "memory", "warning", "numbers", "placeless", "long")


def warm() -> None:
    """Import what the commands need, and read shipped files, once for all children."""
    import contextlib
    import io

    from crossflow.__main__ import main

    example = str(Path(__file__).parents[2] / "docs" / "examples" / "gpt3.yaml")
    with contextlib.redirect_stdout(io.StringIO()):
        for words in (["predict", example], ["explain", example], ["timeline", example, "--text"], ["list"]):
            main(words)
    for name in ("calibrate", "events", "study", "trace"):
        importlib.import_module(f"crossflow.edges.cli.{name}")
    for name in (
        "matplotlib.pyplot",
        "scipy.optimize",
        "networkx",
        "crossflow.answers.search.gradient",
        "crossflow.answers.study.plots.lines",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a command: its class, and what it wrote."""

    kind: str
    said: str
    seconds: float
    memory: int


def run(argv: Sequence[str], folder: Path, named: Sequence[str]) -> Outcome:
    """Run a command of crossflow in a child; errors must name one of `named`."""
    out, err = folder / "stdout", folder / "stderr"
    base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        _child(argv, folder, out, err, base)
    _, status, usage = os.wait4(child, 0)
    said, data = (path.read_text(encoding="utf-8", errors="replace") for path in (err, out))
    memory = max(0, usage.ru_maxrss - before) << 10
    seconds = usage.ru_utime + usage.ru_stime
    return Outcome(kind=_kind(status, said, data, memory, named), said=said, seconds=seconds, memory=memory)


def _child(argv: Sequence[str], folder: Path, out: Path, err: Path, base: int) -> None:
    code = 70
    try:
        streams = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for path in (out, err)]
        resource.setrlimit(resource.RLIMIT_AS, (base + MEMORY, base + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WALL)
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        code = command(argv, folder, *streams)
    finally:
        os._exit(code)


def _kind(status: int, said: str, data: str, memory: int, named: Sequence[str]) -> str:
    if os.WIFSIGNALED(status):
        return "hang" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "signal"
    code = os.WEXITSTATUS(status)
    if memory > MEMORY or "MemoryError" in said:
        return "memory"
    if "Traceback" in said or code not in (0, 2):
        return "traceback"
    if "Warning" in said:
        return "warning"
    if any(len(line) > 5000 for line in said.splitlines()):
        return "long"
    if code == 0:
        return "exit 0" if _sane(data) else "numbers"
    return "exit 2" if any(name in said for name in named) else "placeless"


def _sane(data: str) -> bool:
    """Whether figures are finite and of this world."""
    if re.search(r"\b(NaN|Infinity)\b", data):
        return False
    try:
        found = json.loads(data)
    except ValueError:
        return True
    time = found.get("step_time_s") if isinstance(found, dict) else None
    return time is None or not found.get("feasible") or 0 <= time < 1e40
