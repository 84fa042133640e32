"""Divisions of a template's budgets: the shares of each logic node and memory, in a table beside the template.

A share that a system or a scenario gives itself stands in every row, so that it holds whatever node and memory are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from crossflow.base import contents, files
from crossflow.base.arrays import Array
from crossflow.base.errors import Problem, SpecError
from crossflow.base.files import Document, Path_, Place
from crossflow.base.limits import shown
from crossflow.base.paths import quantities
from crossflow.hardware.architecture.template import BUDGETS, Budgets, GeneratedSystem, TechnologyDivision
from crossflow.hardware.technology.library import Choice

ROLES = ("logic", "memory")  # roles of the technology that name a row
ANY = "any"


def read_divisions(document: Document, folder: Path) -> Document:
    """The template with the rows of the table that its `budgets.divisions` names.

    The table is CSV with the columns `logic`, `memory` and a share in each further one, such as `area.on_chip.l2`.

    Raises
    ------
    SpecError
        For a table that is missing, holds no row, has other columns, or is none.
    """
    named = files.held(document.data, ("budgets", "divisions"))
    if not isinstance(named, Mapping) or "file" not in named:
        return document
    path = folder / str(named["file"])
    if not contents.is_file(path):
        raise document.error(("budgets", "divisions", "file"), f"no such table: {path}")
    found = list(files.table_rows(path))
    if not found:
        raise document.error(("budgets", "divisions", "file"), f"{path} holds no row: a logic node, a memory and their shares in each")
    columns = (name for _, cells in found for name in cells)
    if (wrong := next((name for name in columns if name not in ROLES and name.split(".")[0] not in BUDGETS), None)) is not None:
        expected = f"logic, memory and shares that begin with {', '.join(BUDGETS)}, such as area.on_chip.l2"
        raise SpecError([Problem(file=str(path), message=f"unknown column {shown(wrong)}; expected {expected}")])
    rows = [_row(cells, named.get("source")) for _, cells in found]
    places: dict[Path_, Place] = {("budgets", "divisions", i): (str(path), line) for i, (line, _) in enumerate(found)}
    return files.merge(document, Document(file=str(path), data={"budgets": {"divisions": rows}}, lines=places))


def _row(cells: Mapping[str, str], source: Any) -> dict[str, Any]:
    row: dict[str, Any] = {role: cells[role] for role in ROLES if role in cells}
    for column, text in cells.items():
        if column not in ROLES:
            share = files.scalar(text)
            row = files.replace(row, tuple(column.split(".")), share if source is None else {"value": share, "source": source}, column)
    return row


def _are_rows(rows: Any) -> bool:
    """Whether these are divisions; what is wrong with others is told where the system is read."""
    return isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows)


def over(below: Document, own: Document) -> Document:
    """A template with the changes of a system or scenario over it; shares that these give stand in every row of its divisions."""
    merged = files.merge(below, own)
    rows, given = files.held(below.data, ("budgets", "divisions")), files.held(own.data, ("budgets",))
    if not _are_rows(rows) or not isinstance(given, Mapping) or "divisions" in given:
        return merged
    shares = Document(file=own.file, data={name: given[name] for name in BUDGETS if name in given})
    return _with(merged, {"divisions": [files.merge(Document(file=below.file, data=row), shares).data for row in rows]})


def chosen(document: Document) -> Document:
    """The system with the shares of its own node and memory, and its divisions completed by the template's own shares.

    The shares of the template fill what a row leaves out and hold for nodes and memories that no row names: a last row, `ANY`.
    """
    rows = files.held(document.data, ("budgets", "divisions"))
    if not _are_rows(rows):
        return document
    own = Document(file=document.file, data={name: document.data["budgets"].get(name, {}) for name in BUDGETS})
    complete = [files.merge(own, Document(file=document.file, data=row)).data for row in rows]
    complete.append({**own.data, "logic": ANY, "memory": ANY})
    wanted = [files.held(document.data, ("technology", role)) for role in ROLES]
    here = next((i for i, row in enumerate(rows) if [row.get(role) for role in ROLES] == wanted), len(rows))
    budgets = {**{name: complete[here][name] for name in BUDGETS}, "divisions": complete}
    return _with(document, budgets, _places(document, rows[here], here) if here < len(rows) else {})


def _places(document: Document, row: Mapping[str, Any], number: int) -> Mapping[Path_, Place]:
    """Where the shares of a row stand: in its table, but for those that the document's own file changes."""
    place = document.lines.get(("budgets", "divisions", number))
    if place is None:
        return {}
    paths = (("budgets", name) for name in BUDGETS if name in row)
    return {path: place for path in paths if document.lines.get(path, place)[0] != document.file}


def _with(document: Document, budgets: Mapping[str, Any], places: Mapping[Path_, Place] = MappingProxyType({})) -> Document:
    """A system with other shares or divisions, each at its old place or at that of `places`."""
    lines = files.LatePlaces(lambda: {**document.lines, **places})
    return files.merge(document, Document(file=document.file, data={"budgets": budgets}, lines=lines))


def varied(system: GeneratedSystem, choices: Mapping[str, Choice]) -> dict[str, Array]:
    """Shares of the points that choose among nodes or memories, by path; shape (n,) each. Empty where nothing is divided."""
    rows = system.budgets.divisions
    if not rows or not set(choices) & set(ROLES):
        return {}
    logic, memory = (choices.get(role, Choice.of((getattr(system.technology, role),))) for role in ROLES)
    place = {(row.logic, row.memory): number for number, row in enumerate(rows)}
    rest = place[ANY, ANY]
    index = np.array([[place.get((node, stack), rest) for stack in memory.names] for node in logic.names])[logic.index, memory.index]
    tables = [shares(row) for row in rows]
    none = np.zeros(1)
    return {
        f"system.budgets.{path}": np.concatenate([table.get(path, none) for table in tables])[index]
        for path in {path: None for table in tables for path in table}
    }


def shares(division: Budgets | TechnologyDivision) -> dict[str, Array]:
    """Shares of the budgets that have a value, by path, such as `area.on_chip.l2`."""
    return {".".join((name, *path)): value for name in BUDGETS for path, _, value in quantities(getattr(division, name))}
