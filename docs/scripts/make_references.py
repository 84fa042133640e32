"""Run the studies that divide the budgets of the reference accelerator, and write what they find beside its templates.

``python docs/scripts/make_references.py [--out DIR]`` runs reference-training, reference-serving and reference-recommendation, some
minutes on one core, and writes templates/generated/reference-*.csv: the shares of each logic node and memory.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from pathlib import Path

from crossflow.answers.study.run import run_study
from crossflow.base import files

PURPOSES = ("training", "serving", "recommendation")
ROLES = {"system.technology.logic": "logic", "system.technology.memory": "memory"}
SHARES = "system.budgets."
DIGITS = 4  # of a share; rounded down, so that no sum exceeds 1


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "references", metavar="DIR", help="folder of the studies' results"
    )
    out = parser.parse_args().out
    for purpose in PURPOSES:
        name = f"reference-{purpose}"
        run_study(files.find("studies", name), out=out / name)
        table = files.find("templates", name, None, "generated").with_suffix(".csv")
        files.write_text(table, divisions(name, files.read_text(out / name / "points.csv")))


def divisions(name: str, points: str) -> str:
    """The table of a template from the points of its study."""
    text = io.StringIO()
    text.write(f"# Shares of the budgets by logic node and memory, found by the study {name}; written by docs/scripts/make_references.py\n")
    rows = list(csv.DictReader(io.StringIO(points)))
    columns = [*ROLES, *(column for column in rows[0] if column.startswith(SHARES))]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([ROLES.get(column, column.removeprefix(SHARES)) for column in columns])
    writer.writerows([row[column] if column in ROLES else rounded(row[column]) for column in columns] for row in rows)
    return text.getvalue()


def rounded(share: str) -> str:
    """A share to a few digits, never more than it was."""
    scale = 10**DIGITS
    return f"{int(float(share) * scale) / scale:g}"


if __name__ == "__main__":
    main()
