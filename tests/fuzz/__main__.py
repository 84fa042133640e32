"""Mutated files through the commands that read them: ``python -m tests.fuzz --files 3000 --seed 7``.

Each runs in a process of its own, for 10 s of the processor and 1 GiB at most, and must end with exit status 0 or 2; an error names its
file. What does not is kept in the folder of `--keep`, with the command and what it wrote.
"""

import argparse
import itertools
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz import cases, outcomes


def main() -> int:
    """Run the files, print what became of them, and return 1 where something was bad."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300, metavar="N", help="files to mutate, 300 where not given")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--kinds", nargs="+", choices=cases.KINDS, default=list(cases.KINDS), metavar="KIND", help=", ".join(cases.KINDS))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for the bad ones")
    parser.add_argument("--errors", type=int, default=0, metavar="N", help="print every N-th error")
    arguments = parser.parse_args()
    found = fuzz(arguments.kinds, arguments.files, arguments.seed, arguments.keep, arguments.errors)
    width = max(map(len, cases.KINDS))
    for kind in sorted({kind for kind, _ in found}):
        ends = ", ".join(f"{what} {count}" for (of, what), count in sorted(found.items()) if of == kind)
        sys.stdout.write(f"{kind:{width}} {ends}\n")
    bad = sum(count for (_, what), count in found.items() if what in outcomes.BAD)
    sys.stdout.write(f"{arguments.files} files, seed {arguments.seed}: {bad} bad\n")
    return 1 if bad else 0


def fuzz(kinds: list[str], count: int, seed: int, keep: Path | None, shown: int = 0) -> Counter[tuple[str, str]]:
    """How often files of each kind end in each way."""
    outcomes.warm()
    found: Counter[tuple[str, str]] = Counter()
    errors = 0
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "work"
        folder.mkdir()
        for number, (kind, name, argv) in enumerate(itertools.islice(cases.cases(kinds, seed, folder), count)):
            named = {"set": ("--set",), "strategy": ("--set",), "what-if": ("what-if", "--what-if")}.get(
                kind, (name, "own.yaml", "nothing to fit")
            )
            outcome = outcomes.run(argv, folder, (*named, "scenario.yaml"))
            found[kind, outcome.kind] += 1
            errors += outcome.kind == "exit 2"
            if shown and outcome.kind == "exit 2" and errors % shown == 0:
                sys.stdout.write(f"{kind} {number}: {outcome.said}")
            if keep is not None and outcome.kind in outcomes.BAD:
                case = keep / f"{seed}-{number}-{kind}-{outcome.kind}"
                shutil.copytree(folder, case, dirs_exist_ok=True)
                (case / "command").write_text(shlex.join(argv) + f"\n{outcome.seconds:.1f} s {outcome.memory >> 20} MiB\n")
            shutil.rmtree(folder)
            folder.mkdir()
    return found


if __name__ == "__main__":
    sys.exit(main())
