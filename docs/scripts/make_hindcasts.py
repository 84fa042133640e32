"""Search the design of every chip that is predicted blind, and write what is found beside the files of their facts.

``python docs/scripts/make_hindcasts.py [NAME ...]`` runs the rule of ``crossflow.evidence.validation.hindcast_search`` for the files of
``templates/hindcasts``, or for those named, some ten seconds each, and writes ``designs.csv`` there. ``--tried`` writes ``tried.csv``
instead: how fast a product of each chip is predicted, over what was measured, under other rules. ``--factors`` writes ``factors.csv``: which
part of each prediction is how far off.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hindcast_factors import FILE, GROUPS, LEFT, WHOLE, factors

from crossflow.base import files
from crossflow.evidence.validation.hindcast_files import DESIGNS, TRIED, designs, folder, hindcasts, system_of, with_design
from crossflow.evidence.validation.hindcast_search import RULE, DesignRule, search, under
from crossflow.evidence.validation.hindcasts import answered, figures, unthrottled

RULES: Mapping[str, DesignRule | None] = {
    "the predecessor's division": None,
    "shortest step alone": DesignRule(memory=False, balance=False, explained=False, peaks=False),
    "memory fed (1)": DesignRule(balance=False, explained=False, peaks=False),
    "balance of the cache kept (1, 2)": DesignRule(explained=False, peaks=False),
    "known share of the die (1 to 3)": DesignRule(peaks=False),
    "known power at the peaks (1 to 4), the rule": RULE,
    "clock of the node as well": DesignRule(clock=True),
    "clock, without 3": DesignRule(explained=False, clock=True),
    "first-level memory of a bundle as well": DesignRule(first=True),
}
SHOWN = ("product", "memory bandwidth", "l2 bandwidth", "training, 7B", "training, 70B", "decoding, 7B", "decoding, 70B", "peak")


def main() -> None:
    """Write the table of designs, or that of rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="chips to search; all where absent")
    parser.add_argument("--tried", action="store_true", help="compare rules, and write tried.csv")
    parser.add_argument("--factors", action="store_true", help="divide errors among facts and choices, and write factors.csv")
    arguments = parser.parse_args()
    if arguments.factors:
        rows = [(chip, figure, *(f"{part:.4f}" for part in parts.values())) for chip, figure, parts in factors()]
        header = ("chip", "figure", *GROUPS, LEFT, WHOLE)
        files.write_text(folder() / FILE, table("Logarithm of predicted over later figures, and its parts", header, rows))
        return
    if arguments.tried:
        files.write_text(folder() / TRIED, tried())
        return
    found = dict(designs()) if (folder() / DESIGNS).is_file() else {}
    for name in arguments.names or list(hindcasts()):
        row = search(hindcasts()[name])
        sys.stdout.write(f"{name}: {row['step_time_s']:.6g} s, feasible: {row['feasible']}\n")
        if row["feasible"]:
            found[name] = designs_of(row)
    rows = [(name, path, repr(value)) for name in hindcasts() if name in found for path, value in found[name].items()]
    files.write_text(
        folder() / DESIGNS, table("Designs of the chips in this folder, found by their search", ("chip", "path", "value"), rows)
    )


def designs_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The design of a row of a search: values by path."""
    return {path: float(value) for path, value in row.items() if path.startswith("system.")}


def tried() -> str:
    """Ratios of figures under each rule, of the chips that have answers."""
    rows = []
    for title, rule in RULES.items():
        for name, file in hindcasts().items():
            if file.forecast:
                continue
            design = {} if rule is None else designs_of(search(file, rule))
            made = figures(with_design(system_of(file) if rule is None else under(rule, file), design), cold=unthrottled(file))
            known = answered(file)
            ratios = [f"{made[figure] / known[figure][0]:.3f}" if figure in known else "" for figure in SHOWN]
            rows.append((title, name, *ratios))
            sys.stdout.write(f"{', '.join(rows[-1])}\n")
    return table("Predicted over measured or published figures under other rules", ("rule", "chip", *SHOWN), rows)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as the files have them."""
    text = io.StringIO()
    text.write(f"# {title}; written by docs/scripts/make_hindcasts.py\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue()


if __name__ == "__main__":
    main()
