"""Run the studies that divide the budgets of the reference accelerator, and write what they find beside its templates.

``python docs/scripts/make_references.py [--out DIR]`` runs reference-training, reference-serving and reference-recommendation, some
minutes on one core, and writes templates/generated/reference-*.csv: the shares and the microarchitecture of each logic node and memory.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.files import Document
from crossflow.base.units import Quantity
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import GeneratedSystem

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
        files.write_text(table, divisions(name, free(), files.read_text(out / name / "points.csv")))


def free() -> dict[str, Quantity]:
    """Quantities of the reference's microarchitecture by the columns of a study."""
    system, _ = resolve(Document(file="reference", data={"template": "reference"}))
    assert isinstance(system, GeneratedSystem)
    return {f"system.{path}": system.free(path) for path in system.microarchitecture}


def divisions(name: str, others: Mapping[str, Quantity], points: str) -> str:
    """The table of a template from the points of its study."""
    text = io.StringIO()
    what = "Shares of the budgets, and the microarchitecture, by logic node and memory"
    text.write(f"# {what}, found by the study {name}; written by docs/scripts/make_references.py\n")
    rows = list(csv.DictReader(io.StringIO(points)))
    columns = [*ROLES, *(column for column in rows[0] if column.startswith(SHARES) or column in others)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([ROLES.get(column, column.removeprefix(SHARES).removeprefix("system.")) for column in columns])
    writer.writerows([_cell(column, row[column], others) for column in columns] for row in rows)
    return text.getvalue()


def _cell(column: str, value: str, others: Mapping[str, Quantity]) -> str:
    if column in ROLES:
        return value
    if column not in others:
        return rounded(value)
    return f"{float(value):.4g} {others[column].unit}".removesuffix(" 1")


def rounded(share: str) -> str:
    """A share to a few digits, never more than it was."""
    scale = 10**DIGITS
    return f"{int(float(share) * scale) / scale:g}"


if __name__ == "__main__":
    main()
