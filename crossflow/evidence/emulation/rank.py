"""The process of a real rank: runs the script as Python would, and leaves what it called where the parent looks for it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crossflow.base.files import write_text
from crossflow.evidence.emulation.processes import VARIABLE, RunSettings
from crossflow.evidence.torch.installed import require_torch

if TYPE_CHECKING:
    from crossflow.evidence.emulation.record import CallRecorder

OURS = (str(Path(__file__).parent), "<frozen runpy>")  # files whose frames are no part of a script's traceback


def main(words: Sequence[str]) -> None:
    """Run a script as the rank that the environment says; ends as the script does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the script runs there is nothing to tell
    settings = RunSettings.read(os.environ.pop(VARIABLE))
    if settings.watch >= 0:
        threading.Thread(target=_end_with_parent, args=(settings.watch,), name="crossflow-parent", daemon=True).start()
    require_torch("crossflow emulate")
    from crossflow.evidence.emulation.launch import emulated, observed

    around = emulated(settings) if settings.emulates else observed(settings)
    recorder = around.__enter__()
    atexit.register(_leave, around, recorder, settings, os.getpid())  # runs after what the script registers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _run_script(words)
    except KeyboardInterrupt:  # which the parent tells
        raise SystemExit(128 + signal.SIGINT) from None
    except Exception as error:
        if recorder.failure:  # which the parent tells
            raise SystemExit(2) from None
        own = _own(error)
        sys.excepthook(type(own), own, own.__traceback__)
        raise SystemExit(1) from None


def _run_script(words: Sequence[str]) -> None:
    """Run a file, a folder with __main__.py, or a module after -m, as the program of this process."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = module, list(words)
    if words[0] == "-m":
        sys.argv, sys.path[0] = list(words[1:]), os.getcwd()
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    path = Path(words[0])
    file = path / "__main__.py" if path.is_dir() else path
    module.__dict__.update(__file__=str(file), __builtins__=__builtins__)
    sys.path[0] = str(file.resolve().parent)
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)


def _own(error: BaseException) -> BaseException:
    """An error whose traceback, and those of its causes, have no frames of the emulator."""
    frames, found = [], error.__traceback__
    while found is not None:
        if not found.tb_frame.f_code.co_filename.startswith(OURS):
            frames.append(found)
        found = found.tb_next
    cut = None
    for frame in reversed(frames):
        cut = types.TracebackType(cut, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            _own(cause)
    return error.with_traceback(cut)


def _leave(around: contextlib.AbstractContextManager[CallRecorder], recorder: CallRecorder, settings: RunSettings, process: int) -> None:
    """Leave what the rank called where the parent looks for it; workers that were forked leave nothing."""
    if os.getpid() != process:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    record = recorder.record() if settings.keeps else None
    found = {"summary": recorder.summary(), "failure": recorder.failure, "record": record}
    write_text(Path(settings.result), json.dumps(found))
    around.__exit__(None, None, None)


def _end_with_parent(watched: int) -> None:
    """End this process and all that it started once the parent is gone, however it went."""
    os.read(watched, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
