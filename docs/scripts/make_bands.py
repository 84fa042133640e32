"""Write the errors behind the bands of predictions, from the full folder of measured data.

``python docs/scripts/make_bands.py --data DIR`` compares predictions with every table of DIR, once as they are and once with every
generation of devices predicted by the parameters of the one before, and writes ``errors.csv`` and ``pairs.csv`` in
``crossflow/answers``: bands of errors, and how far predictions must lie apart to be told apart. ``--keep FOLDER`` keeps the tables for
a later run of this script or of make_docs.py, and goes on where one was broken off. It prints what share of rows of other models and
shapes, and of chips that nobody fitted, lies within their 90 % band; ``--check`` writes nothing and fails where the file differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crossflow.answers.bands import FILE, PAIRS
from crossflow.evidence.validation.bands import coverage, judged, left_out, lines, pairs, unseen_coverage, written, written_pairs
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.post_training import post_training_table

ITERATIONS = Path(__file__).parents[2] / "tests" / "data"  # with all rows of post_training.csv


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", required=True, help="folder of measured data")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where tables are kept between runs")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file differs")
    arguments = parser.parse_args()
    kept = KeptTables.of(arguments.keep, arguments.data) if arguments.keep else None
    tables = [table for table in validate(arguments.data, whole=True, kept=kept).tables if table.name != "post_training"]
    rows, late = list(judged(tables)), left_out(arguments.data, kept)
    iterations = list(judged([post_training_table(ITERATIONS)]))  # of several versions of one trainer, which are no pairs
    for title, found in (("of other models and shapes", coverage(rows)), ("of a chip that nobody fitted", unseen_coverage(late))):
        for one in found:
            on = f" on {one.chip}" if one.chip else ""
            sys.stdout.write(f"{one.kind}{on}: {100 * one.share:.1f} % of {one.n:,} rows {title} lie within their 90 % band\n")
    texts = {FILE: written(lines([*rows, *iterations, *late])), PAIRS: written_pairs(pairs(rows, late))}
    if arguments.check:
        return int(any(file.read_text(encoding="utf-8") != text for file, text in texts.items()))
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
