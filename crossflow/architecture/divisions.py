"""Divisions of a template's budgets: the shares of each logic node and memory, in a table beside the template.

A share that a system or a scenario gives itself stands in every row, so that it holds whatever node and memory are chosen.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossflow import files
from crossflow.architecture.template import GeneratedSystem, TechnologyDivision
from crossflow.arrays import Array
from crossflow.files import Document
from crossflow.technology.library import Choice

BUDGETS = ("area", "power_shares", "perimeter")
PARTS = ("compute", "memory", "intra_link", "inter_link")
ROLES = ("logic", "memory")  # roles of the technology that name a row
ANY = "any"


def read_divisions(document: Document, folder: Path) -> Document:
    """The template with the rows of the table that its `budgets.divisions` names.

    The table is CSV with the columns `logic`, `memory` and a share in each further one, such as `area.on_chip.l2`.
    """
    named = files.held(document.data, ("budgets", "divisions"))
    if not isinstance(named, Mapping) or "file" not in named:
        return document
    path = folder / str(named["file"])
    if not path.is_file():
        raise document.error(("budgets", "divisions", "file"), f"no such table: {path}")
    lines = [line for line in files.read_text(path).splitlines() if line and not line.startswith("#")]
    rows = [_row(found, named.get("source")) for found in csv.DictReader(lines)]
    return files.merge(document, Document(file=str(path), data={"budgets": {"divisions": rows}}))


def _row(cells: Mapping[str, str], source: Any) -> dict[str, Any]:
    row: dict[str, Any] = {role: cells[role] for role in ROLES if role in cells}
    for column, text in cells.items():
        if column in ROLES:
            continue
        *above, last = column.split(".")
        place = row
        for part in above:
            place = place.setdefault(part, {})
        value = files.scalar(text)
        place[last] = value if source is None else {"value": value, "source": source}
    return row


def over(below: Document, own: Document) -> Document:
    """A template with the changes of a system or scenario over it; shares that these give stand in every row of its divisions."""
    merged = files.merge(below, own)
    rows, given = files.held(below.data, ("budgets", "divisions")), files.held(own.data, ("budgets",))
    if not isinstance(rows, Sequence) or not isinstance(given, Mapping) or "divisions" in given:
        return merged
    shares = Document(file=own.file, data={name: given[name] for name in BUDGETS if name in given})
    changed = [files.merge(Document(file=below.file, data=row), shares).data for row in rows]
    return files.merge(merged, Document(file=below.file, data={"budgets": {"divisions": changed}}))


def chosen(document: Document) -> Document:
    """The system with the shares of its own node and memory, and its divisions completed by the template's own shares.

    The shares of the template fill what a row leaves out and hold for nodes and memories that no row names: a last row, `ANY`.
    """
    rows = files.held(document.data, ("budgets", "divisions"))
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        return document
    own = Document(file=document.file, data={name: document.data["budgets"].get(name, {}) for name in BUDGETS})
    complete = [files.merge(own, Document(file=document.file, data=row)).data for row in rows if row.get("logic") != ANY]
    complete.append({**own.data, "logic": ANY, "memory": ANY})
    wanted = [files.held(document.data, ("technology", role)) for role in ROLES]
    here = next((row for row in complete if [row.get(role) for role in ROLES] == wanted), complete[-1])
    budgets = {**{name: here[name] for name in BUDGETS}, "divisions": complete}
    return files.merge(document, Document(file=document.file, data={"budgets": budgets}))


def varied(system: GeneratedSystem, choices: Mapping[str, Choice]) -> dict[str, Array]:
    """Shares of the points that choose among nodes or memories, by path; shape (n,) each. Empty where nothing is divided."""
    rows = system.budgets.divisions
    if not rows or not set(choices) & set(ROLES):
        return {}
    own = system.technology.model_dump()
    n = next(choice.index.size for choice in choices.values())
    names = [_names(choices.get(role), own[role], n) for role in ROLES]
    place = {(row.logic, row.memory): number for number, row in enumerate(rows)}
    index = np.array([place.get(pair, place[ANY, ANY]) for pair in zip(*names, strict=True)])
    tables = [dict(_shares(row)) for row in rows]
    paths = {path: None for table in tables for path in table}
    none = np.zeros(1)
    return {path: np.concatenate([table.get(path, none) for table in tables])[index] for path in paths}


def _names(choice: Choice | None, own: str, n: int) -> list[str]:
    return [own] * n if choice is None else [choice.names[i] for i in choice.index]


def _shares(division: TechnologyDivision) -> Iterator[tuple[str, Array]]:
    """Shares of a division by path."""
    for name in BUDGETS:
        shares = getattr(division, name)
        parts = {part: getattr(shares, part) for part in PARTS} | {f"on_chip.{level}": value for level, value in shares.on_chip.items()}
        yield from ((f"system.budgets.{name}.{part}", value) for part, value in parts.items() if value is not None)
