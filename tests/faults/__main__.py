"""Studies that are killed, or started several at once: ``python -m tests.faults --kills 200 --together 50 --seed 0``.

A run is ended by a signal (KILL, TERM, HUP, INT, to it or to all its processes) at a random moment, perhaps its resumption too, and then
resumed: no traceback, no process left after 5 s, the cursor shown, and the bytes of an undisturbed run in every file.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import runs
from tests.faults.studies import KINDS, LONG, write


def main(given: Sequence[str] | None = None) -> int:
    """Do all of it, print what is wrong, and return 1 where something is."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="runs to end and resume")
    parser.add_argument("--together", type=int, default=4, metavar="N", help="times to start or resume two or three runs at once")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--jobs", nargs="+", default=["1", "2"], metavar="N", help="processes, or dask for a cluster on this machine")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    asked = parser.parse_args(given)
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        places = {jobs: stack.enter_context(runs.cluster()) if jobs == "dask" else jobs for jobs in asked.jobs}
        wholes = {kind: _Whole(kind, Path(folder)) for kind in asked.kinds}
        bad = sum(_killed(wholes, places, draw, i) for i in range(asked.kills))
        bad += sum(_together(wholes, draw, i) for i in range(asked.together))
    sys.stdout.write(f"{asked.kills} ended and resumed, {asked.together} started together: {bad} wrong\n")
    return int(bad > 0)


class _Whole:
    """A study, its undisturbed run, and how long that takes. [s]"""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, begun = kind, folder, time.monotonic()
        self.study, self.out = write(kind, folder), folder / f"{kind}-whole"
        run = runs.Run(runs.words(self.study, self.out))
        assert run.wait() == 0, run.text
        self.length, self.files = time.monotonic() - begun, runs.contents(self.out)

    def cut(self, draw: random.Random) -> Path:
        """A folder with a part of its points, as a killed run leaves it."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        points = self.files["points.jsonl"]
        (out / "points.jsonl").write_bytes(points[: draw.randrange(len(points))])
        (out / "run.json").write_bytes(self.files["run.json"].replace(b'"finished": true', b'"finished": false'))
        return out


def _killed(wholes: dict[str, _Whole], places: dict[str, str], draw: random.Random, number: int) -> bool:
    whole, jobs = list(wholes.values())[number % len(wholes)], draw.choice(list(places))
    out = Path(tempfile.mkdtemp(dir=whole.folder))
    length = whole.length + (0.0 if jobs == "1" else 2.0)
    return _told(f"{whole.kind} --jobs {jobs}", runs.faulty(whole.study, out, places[jobs], whole.files, length, draw))


def _together(wholes: dict[str, _Whole], draw: random.Random, number: int) -> bool:
    asked = [whole for kind, whole in wholes.items() if kind in LONG] or list(wholes.values())
    whole, resume, count = draw.choice(asked), number % 2 == 1, draw.choice((2, 3))
    out = whole.cut(draw) if resume else Path(tempfile.mkdtemp(dir=whole.folder))
    what = f"{whole.kind}: {count} {'resumed' if resume else 'started'} together"
    return _told(what, runs.together(whole.study, out, count, whole.files, resume=resume))


def _told(what: str, problems: Sequence[str]) -> bool:
    for problem in problems:
        sys.stdout.write(f"{what}: {problem}\n")
        sys.stdout.flush()
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
