"""Run the studies that divide the budgets of the reference accelerator, and write what they find beside its templates.

``python docs/scripts/make_references.py [--out DIR]`` runs reference-training, reference-serving and reference-recommendation, some
minutes on one core, and writes templates/generated/reference-*.csv: the shares and the microarchitecture of each logic node and memory.
``--found`` takes the results that are in DIR instead.

A study looks for what is best at its own work, and may leave another node better at other work: a division for training that is right for
N5 decoded slower than that for N7. So each row lies between that of the next coarser node and what was found, where the study's work is
fastest of all rows that slow no work of `WORKS`. At worst it is that of the coarser node: the same division is never slower at a denser
one. Rows in which some components keep the power that they had are tried as well; the units give it, as the limit of power holds them.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.scenario import from_dict
from crossflow.answers.study.run import run_study
from crossflow.base import files
from crossflow.base.arrays import Array
from crossflow.base.files import Document
from crossflow.base.units import Quantity
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import GeneratedSystem

PURPOSES = ("training", "serving", "recommendation")
ROLES = {"system.technology.logic": "logic", "system.technology.memory": "memory"}
LOGIC, MEMORY = ROLES
SHARES = "system.budgets."
DIGITS = 4  # of a share; rounded down, so that no sum exceeds 1
STEPS = 24  # from the row of the coarser node to what was found
KEPT = ((), ("memory",), ("memory", "on_chip.l2"), ("memory", "on_chip.l1", "on_chip.l2"))  # components that keep their power
SLOWER = 1.0002  # that much longer counts as rounding
SMALLER = ((16384, 16384, 256), (512, 8192, 256), (128, 8192, 32), (128, 512, 16384), (4096, 512, 512), (1024, 1024, 1024))
DENSE, PRODUCT = {"model": "llama3-8b"}, {"model": "gemm", "dtype": "bf16"}
WORKS: tuple[tuple[Mapping[str, Any], str, int], ...] = (  # workload, strategy and devices that a denser node may not slow
    ({**DENSE, "global_batch": 64}, "tp4-dp2-z1-sp", 8),
    ({"model": "llama3-70b", "global_batch": 512}, "tp8-pp4-dp16-z1-sp", 512),
    ({**DENSE, "task": "prefill", "global_batch": 8, "sequence": 4096}, "tp8", 8),
    ({**DENSE, "task": "prefill", "global_batch": 4, "sequence": 4096}, "tp4", 4),
    ({"model": "llama3-70b", "task": "prefill", "global_batch": 8, "sequence": 2048}, "tp8", 8),
    *(({**DENSE, "task": "decode", "global_batch": users, "sequence": 4096}, "tp8", 8) for users in (1, 8, 64, 512)),
    ({"model": "llama3-70b", "task": "decode", "global_batch": 64, "sequence": 4096}, "tp8", 8),
    ({"model": "mixtral-8x7b", "task": "decode", "global_batch": 32, "sequence": 2048}, "tp8", 8),
    ({"model": "dlrm-a", "dtype": "bf16"}, "dense (fsdp, ddp), embedding mp", 128),
    *(({**PRODUCT, "m": m, "n": 8192, "k": 8192}, "d1", 1) for m in (16, 64, 512, 8192)),
    *(({**PRODUCT, "m": m, "n": n, "k": k}, "d1", 1) for m, n, k in SMALLER),
)
Row = Mapping[str, str | float]


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(tempfile.gettempdir()) / "references", metavar="DIR", help="folder of the studies' results"
    )
    parser.add_argument("--found", action="store_true", help="run no study, and take what is in DIR")
    arguments = parser.parse_args()
    for purpose in PURPOSES:
        name = f"reference-{purpose}"
        if not arguments.found:
            run_study(files.find("studies", name), out=arguments.out / name)
        table = files.find("templates", name, None, "generated").with_suffix(".csv")
        others = free()
        found = read(files.read_text(arguments.out / name / "points.csv"), others)
        own = dict(files.read_yaml(files.find("studies", name)).data["scenario"])
        files.write_text(table, divisions(name, others, levelled(found, own, others)))


def free() -> dict[str, Quantity]:
    """Quantities of the reference's microarchitecture by the columns of a study."""
    system, _ = resolve(Document(file="reference", data={"template": "reference"}))
    assert isinstance(system, GeneratedSystem)
    return {f"system.{path}": system.free(path) for path in system.microarchitecture}


def read(points: str, others: Mapping[str, Quantity]) -> list[Row]:
    """Nodes, memories, shares and microarchitecture of the points of a study."""
    rows = list(csv.DictReader(io.StringIO(points)))
    values = [column for column in rows[0] if column.startswith(SHARES) or column in others]
    return [{**{role: row[role] for role in ROLES}, **{column: float(row[column]) for column in values}} for row in rows]


def levelled(found: Sequence[Row], own: Mapping[str, Any], others: Mapping[str, Quantity]) -> list[Row]:
    """Rows in which no denser node is slower at any work, in the order of the study's; see the head of this file.

    `own` is the scenario of the study.
    """
    cases = [from_dict(dict(own))] + [
        from_dict({"system": {"template": "reference", "devices": devices}, "workload": dict(work), "strategy": strategy})
        for work, strategy, devices in WORKS
    ]
    size = {name: float(node.area[0]) for name, node in cases[0].library.logic.items()}
    nodes = sorted({str(row[LOGIC]) for row in found}, key=lambda node: -size[node])
    best = {(row[LOGIC], row[MEMORY]): row for row in found}
    last = [_rounded(best[nodes[0], memory], others) for memory in dict.fromkeys(row[MEMORY] for row in found)]
    rows = {(row[LOGIC], row[MEMORY]): row for row in last}
    for node in nodes[1:]:
        tried = [list(_between(row, best[node, row[MEMORY]], others)) for row in last]
        bound, times = (_times(cases, rows) for rows in (last, [one for each in tried for one in each]))
        times = times.reshape(len(cases), len(last), -1)
        ranked = np.where((times <= SLOWER * bound[:, :, None]).all(axis=0), times[0], np.inf).argmin(axis=1)
        last = [each[i] for each, i in zip(tried, ranked, strict=True)]
        rows |= {(node, row[MEMORY]): row for row in last}
    return [rows[row[LOGIC], row[MEMORY]] for row in found]


def _times(cases: Sequence[Any], rows: Sequence[Row]) -> Array:
    """Time of each work with each row, endless where it cannot run, shape (works, rows). [s]"""
    points = {column: [row[column] for row in rows] for column in rows[0]}
    scores = [evaluate(case, points) for case in cases]
    return np.array([np.where(score.feasible, score.step_time, np.inf) for score in scores])


def _between(start: Row, end: Row, others: Mapping[str, Quantity]) -> Iterator[Row]:
    """Rows between two, the first of them first, at the node of the second: shares in proportion, all else by its logarithm."""
    numbers = [column for column in start if column not in ROLES]
    units = f"{SHARES}power_shares.compute"
    for part in np.linspace(0.0, 1.0, STEPS + 1):
        for kept in KEPT if part else KEPT[:1]:
            row = dict(end)
            for column in numbers:
                low, high = float(start[column]), float(end[column])
                row[column] = low ** (1.0 - part) * high**part if column in others else low + part * (high - low)
            for column in (f"{SHARES}power_shares.{name}" for name in kept):
                more = min(max(float(start[column]) - float(row[column]), 0.0), float(row[units]))
                row |= {column: float(row[column]) + more, units: float(row[units]) - more}
            yield _rounded(row, others)


def _rounded(row: Row, others: Mapping[str, Quantity]) -> Row:
    """A row with the digits of the table; shares never more than they were."""

    def value(column: str, given: str | float) -> str | float:
        if isinstance(given, str):
            return given
        if column in others:
            return float(f"{np.rint(given) if others[column].whole else given:.4g}")
        return float(np.floor(given * 10**DIGITS + 1e-6)) / 10**DIGITS

    return {column: value(column, given) for column, given in row.items()}


def divisions(name: str, others: Mapping[str, Quantity], rows: Sequence[Row]) -> str:
    """The table of a template."""
    text = io.StringIO()
    what = "Shares of the budgets, and the microarchitecture, by logic node and memory"
    text.write(f"# {what}, found by the study {name}; written by docs/scripts/make_references.py\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([ROLES.get(column, column.removeprefix(SHARES).removeprefix("system.")) for column in rows[0]])
    writer.writerows([_cell(column, value, others) for column, value in row.items()] for row in rows)
    return text.getvalue()


def _cell(column: str, value: str | float, others: Mapping[str, Quantity]) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.4g} {others[column].unit}".removesuffix(" 1") if column in others else f"{value:g}"


if __name__ == "__main__":
    main()
