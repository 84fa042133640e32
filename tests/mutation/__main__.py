# ruff: noqa: T201  (a command)
"""Plant mistakes in crossflow and say which of them the tests of their package notice."""

import argparse
import random
import re
from collections.abc import Sequence
from typing import Any

from tests.mutation.mutants import Place, places_of
from tests.mutation.packages import PACKAGES, ROOT, SCRIPTS, every_file, files_of, modules_of
from tests.mutation.runner import Verdict, is_recorded, judged
from tests.mutation.scripts import ScriptPlace, judged_scripts, script_places

TOGETHER = "all packages"


def main(words: Sequence[str] | None = None) -> int:
    """Print every mutant that survived, and how many of each package were caught; 0 where at least 90 % were."""
    asked = _parsed(words)
    verdicts = []
    for package, mine in _together(_drawn(asked.package or PACKAGES, asked), asked).items():
        if mine:
            found = _judged(package, mine, asked)
            print(_counted(package, found), flush=True)
            verdicts += found
    print(_counted("all", verdicts))
    return int(sum(bool(verdict.caught) for verdict in verdicts) < 0.9 * len(verdicts))


def _judged(package: str, places: Sequence[Any], asked: argparse.Namespace) -> list[Verdict]:
    def told(verdict: Verdict) -> None:
        _tell(verdict, verbose=asked.verbose)

    if package == SCRIPTS:
        return judged_scripts(places, told)
    files = asked.tests or (every_file() if package == TOGETHER else files_of(package))
    files = [file for file in files if not (asked.laws and is_recorded(file))]
    return judged(package, places, files, told, thorough=asked.thorough)


def _together(drawn: dict[str, list[Any]], asked: argparse.Namespace) -> dict[str, list[Any]]:
    """The same with the places of all packages in one, where all tests are asked about each."""
    if not asked.all_tests:
        return drawn
    scripts = drawn.pop(SCRIPTS, [])
    return {TOGETHER: [place for mine in drawn.values() for place in mine], SCRIPTS: scripts}


def _drawn(packages: Sequence[str], asked: argparse.Namespace) -> dict[str, list[Place | ScriptPlace]]:
    """Places by package: of all together, or as many of each."""
    listed = {package: script_places if package == SCRIPTS else places_of for package in packages}
    places = {package: [place for module in modules_of(package) for place in listed[package](module)] for package in packages}
    if asked.at:
        places = {
            name: [place for place in mine if f"{place.path.relative_to(ROOT)}:{place.line}" in asked.at] for name, mine in places.items()
        }
    if asked.each:
        return {name: random.Random(f"{asked.seed} {name}").sample(mine, min(asked.each, len(mine))) for name, mine in places.items()}
    together = [place for mine in places.values() for place in mine]
    drawn = set(random.Random(asked.seed).sample(together, min(asked.mutants, len(together))))
    return {name: [place for place in mine if place in drawn] for name, mine in places.items()}


def _counted(package: str, verdicts: Sequence[Verdict]) -> str:
    caught = [verdict.caught for verdict in verdicts if verdict.caught]
    alone = sum(map(is_recorded, caught))
    return f"{package:22}{len(caught):5} of {len(verdicts)} caught" + (f", {alone} of them by recorded predictions alone" if alone else "")


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=200, metavar="N", help="how many mistakes to plant (200)")
    parser.add_argument("--each", type=int, metavar="N", help="plant as many in each package instead")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="of this package only; may be given again")
    parser.add_argument("--at", action="append", metavar="FILE:LINE", help="at this place only, as crossflow/cost/price.py:70")
    parser.add_argument("--tests", action="append", metavar="FILE", help="ask these tests instead of those of the package")
    parser.add_argument("--all-tests", action="store_true", help="ask all tests about each mistake; as they are they run for minutes")
    parser.add_argument("--laws", action="store_true", help="leave out recorded predictions: what only they notice survives, sooner")
    parser.add_argument("--thorough", action="store_true", help="ask the thorough tests too")
    parser.add_argument("--verbose", action="store_true", help="print those that were caught too, and by which test")
    return parser.parse_args(words)


def _tell(verdict: Verdict, *, verbose: bool) -> None:
    if verbose or not verdict.caught:
        place = verdict.place
        fate = f"caught by {verdict.caught}" if verdict.caught else f"SURVIVED {verdict.tests} tests"
        print(f"{place.path.relative_to(ROOT)}:{place.line}: {fate}\n{re.sub('^', '    ', verdict.diff, flags=re.M)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
