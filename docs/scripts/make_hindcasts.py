"""Search the design of every chip that is predicted blind, and write what is found beside the files of their facts.

``python docs/scripts/make_hindcasts.py [NAME ...]`` runs the rule of ``crossflow.evidence.validation.hindcast_search`` for the files of
``templates/hindcasts``, or for those named, some twenty seconds each, and writes ``designs.csv`` there.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys

from crossflow.base import files
from crossflow.evidence.validation.hindcast_files import DESIGNS, designs, folder, hindcasts
from crossflow.evidence.validation.hindcast_search import search

DIGITS = 5  # of a share; rounded down, so that no sum exceeds 1


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="chips to search; all where absent")
    names = parser.parse_args().names or list(hindcasts())
    found = dict(designs()) if (folder() / DESIGNS).is_file() else {}
    for name in names:
        best = search(hindcasts()[name])
        sys.stdout.write(f"{name}: {best}\n")
        if best.feasible:
            found[name] = {path: rounded(path, value) for path, value in best.row.items() if path.startswith("system.")}
    files.write_text(folder() / DESIGNS, table(found))


def rounded(path: str, value: float) -> float:
    """A share to a few digits, never more than it was; a count as it is."""
    return int(value * 10**DIGITS) / 10**DIGITS if ".budgets." in path else value


def table(found: dict[str, dict[str, float]]) -> str:
    """The designs as the file has them."""
    text = io.StringIO()
    text.write("# Designs of the chips in this folder, found by their search; written by docs/scripts/make_hindcasts.py\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("chip", "path", "value"))
    writer.writerows((name, path, f"{value:g}") for name in hindcasts() if name in found for path, value in found[name].items())
    return text.getvalue()


if __name__ == "__main__":
    main()
