"""Write the errors behind the bands of predictions, from the full folder of measured data.

``python docs/scripts/make_bands.py --data DIR`` compares predictions with every table of DIR, once as they are and once with every
generation of devices predicted by the parameters of the one before, and writes ``crossflow/data/validation/errors.csv``. It prints what
share of rows of other models and shapes lies within their 90 % band, by kind; ``--check`` writes nothing and fails where the file
differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from crossflow.bands import FILE
from crossflow.validation.bands import coverage, judged, left_out, lines, written
from crossflow.validation.comparison import validate


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", required=True, help="folder of measured data")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file differs")
    arguments = parser.parse_args()
    rows = list(judged(validate(arguments.data, whole=True).tables))
    for kind, (n, share) in coverage(rows).items():
        sys.stdout.write(f"{kind}: {100 * share:.1f} % of {n:,} rows kept aside lie within their 90 % band\n")
    text = written(lines([*rows, *left_out(arguments.data)]))
    if arguments.check:
        return int(FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
