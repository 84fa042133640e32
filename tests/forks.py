"""A command of crossflow in a child process, forked from one that has imported what it needs."""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


def command(argv: Sequence[str], folder: Path, out: int, err: int) -> int:
    """Exit status of a command in a folder, which reads nothing and writes to two descriptors; for a child alone, which then ends."""
    for number, to in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(to, number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))
    os.chdir(folder)
    from crossflow.__main__ import main

    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
