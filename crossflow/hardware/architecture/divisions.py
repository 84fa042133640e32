"""Divisions of a template's budgets: the shares of each logic node and memory, in a table beside the template.

A row may hold values of the template's `microarchitecture` too, such as the slices of a cache. What a system or a scenario gives itself
stands in every row, so that it holds whatever node and memory are chosen. A node without a row takes what lies between those of the
next coarser and the next finer one, by the logarithm of the area of logic; one beyond all rows takes the nearest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import contents, files
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document, Path_, Place
from crossflow.base.limits import shown
from crossflow.base.paths import quantities
from crossflow.hardware.architecture.template import BUDGETS, MEMORY_FIELDS, Budgets, BudgetShares, GeneratedSystem, TechnologyDivision
from crossflow.hardware.technology.library import TechLibrary

ROLES = ("logic", "memory")  # roles of the technology that name a row
MICROARCHITECTURE = "microarchitecture"
ANY = "any"


def read_divisions(document: Document, folder: Path) -> Document:
    """The template with the rows of the table that its `budgets.divisions` names.

    The table is CSV with the columns `logic`, `memory` and in each further one a share, such as `area.on_chip.l2`, or a path of the
    template's `microarchitecture`.

    Raises
    ------
    SpecError
        For a table that is missing, holds no row, or is none.
    """
    named = files.held(document.data, ("budgets", "divisions"))
    if not isinstance(named, Mapping) or "file" not in named:
        return document
    path = folder / str(named["file"])
    if not contents.is_file(path):
        raise document.error(("budgets", "divisions", "file"), f"no such table: {path}")
    source = named.get("source")
    rows = (_kept_rows if isinstance(source, str | None) else _rows)(path, files.read_text(path), source)
    if not rows:
        raise document.error(("budgets", "divisions", "file"), f"{path} holds no row: a logic node, a memory and their shares in each")
    places: dict[Path_, Place] = {("budgets", "divisions", i): (str(path), line) for i, (line, _) in enumerate(rows)}
    return files.merge(document, Document(file=str(path), data={"budgets": {"divisions": [row for _, row in rows]}}, lines=places))


def _rows(path: Path, text: str, source: Any) -> list[tuple[int, dict[str, Any]]]:
    """Lines of a table of divisions and its rows as a template has them, each number with a source where there is one."""
    return [(line, _row(cells, source)) for line, cells in files.rows_of(text, path)]


_kept_rows = functools.lru_cache(maxsize=16)(_rows)  # of which nothing is changed in place


def _named(document: Document) -> tuple[str, ...]:
    """Paths of a template's `microarchitecture`, as far as it is one."""
    held = files.held(document.data, (MICROARCHITECTURE,))
    return tuple(held) if isinstance(held, Mapping) else ()


def _row(cells: Mapping[str, str], source: Any) -> dict[str, Any]:
    row: dict[str, Any] = {role: cells[role] for role in ROLES if role in cells}
    for column, text in cells.items():
        if column not in ROLES:
            path = tuple(column.split(".")) if column.split(".")[0] in BUDGETS else (MICROARCHITECTURE, column)
            value = files.scalar(text)
            row = files.replace(row, path, value if source is None else {"value": value, "source": source}, column)
    return row


def without_levels(document: Document, names: Sequence[str]) -> Document:
    """A template without some of its cache levels: their shares, in every row, their changes and their microarchitecture."""

    def left(data: Any, above: Path_ = ()) -> Any:
        if isinstance(data, list):
            return [left(one, above) for one in data]
        if not isinstance(data, Mapping):
            return data
        if above[-1:] in (("on_chip",), ("levels",)):
            return {key: held for key, held in data.items() if key not in names}
        if above[-1:] == (MICROARCHITECTURE,):
            return {path: held for path, held in data.items() if not (path.startswith("levels.") and path.split(".")[1] in names)}
        return {key: held if (*above, key) == ("pools",) else left(held, (*above, key)) for key, held in data.items()}

    return Document(file=document.file, data=left(document.data), lines=document.lines) if names else document


def without_memory(document: Document) -> Document:
    """A template without main memory: its shares, also those of every row, its figures, its changes and its microarchitecture."""

    def left(data: Any, above: Path_ = ()) -> Any:
        if isinstance(data, list):
            return [left(one, above) for one in data]
        if not isinstance(data, Mapping):
            return data
        if above[-1:] == (MICROARCHITECTURE,):
            return {path: held for path, held in data.items() if not {*path.split(".")} & {"memory", *MEMORY_FIELDS}}
        gone = ("memory",) if above[-1:] and above[-1] in (*BUDGETS, "components") else MEMORY_FIELDS if not above else ()
        return {key: left(held, (*above, key)) for key, held in data.items() if key not in gone}

    return Document(file=document.file, data=left(document.data), lines=document.lines)


def _are_rows(rows: Any) -> bool:
    """Whether these are divisions; what is wrong with others is told where the system is read."""
    return isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows)


def over(below: Document, own: Document) -> Document:
    """A template with the changes of a system or scenario over it; shares that these give stand in every row of its divisions."""
    merged = files.merge(below, own)
    rows, given = files.held(below.data, ("budgets", "divisions")), files.held(own.data, ("budgets",)) or {}
    if not _are_rows(rows) or not isinstance(given, Mapping) or "divisions" in given:
        return merged
    _check_shares(own, [name for name in BUDGETS if name in given])
    rows = _left(rows, own.data)
    shares = Document(file=own.file, data={name: given[name] for name in BUDGETS if name in given})
    return _with(merged, {"divisions": [files.merge(Document(file=below.file, data=row), shares).data for row in rows]})


def _check_shares(own: Document, names: Sequence[str]) -> None:
    """SpecError for shares of a system or scenario that are none, before they stand in every row, each of which would say so again."""
    problems: list[Problem] = []
    for name in names:
        try:
            files.validate_at(BudgetShares, own, "budgets", name)
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)


def _left(rows: Sequence[Mapping[str, Any]], own: Any) -> list[Mapping[str, Any]]:
    """The rows without those values of the microarchitecture that a system gives itself."""
    free = [{path: value for path, value in _free_values(row).items() if files.held(own, _path(path)) is None} for row in rows]
    return [{**row, MICROARCHITECTURE: kept} if MICROARCHITECTURE in row else row for row, kept in zip(rows, free, strict=True)]


def _path(name: str) -> Path_:
    return tuple(name.split("."))


def chosen(document: Document) -> Document:
    """The system with the division of its own node and memory, and its divisions completed by what the template has itself.

    That fills what a row leaves out and holds for memories that no row names: a last row, `ANY`.
    """
    rows = files.held(document.data, ("budgets", "divisions"))
    if not _are_rows(rows):
        return document
    free = {name: value for name in _named(document) if (value := files.held(document.data, _path(name))) is not None}
    own = Document(file=document.file, data={**{name: document.data["budgets"].get(name, {}) for name in BUDGETS}, MICROARCHITECTURE: free})
    complete = [files.merge(own, Document(file=document.file, data=row)).data for row in rows]
    complete.append({**own.data, "logic": ANY, "memory": ANY})
    _check_columns(document, rows)
    wanted = [files.held(document.data, ("technology", role)) for role in ROLES]
    here = next((i for i, row in enumerate(rows) if [row.get(role) for role in ROLES] == wanted), len(rows))
    budgets = {**{name: complete[here][name] for name in BUDGETS}, "divisions": complete}
    if here == len(rows):
        return _with(document, budgets)
    return _placed(_with(document, budgets, lambda: _places(document, rows[here], here)), rows[here], here)


def _free_values(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values of a row on paths of the microarchitecture, as far as it has them."""
    held = row.get(MICROARCHITECTURE)
    return held if isinstance(held, Mapping) else {}


def _check_columns(document: Document, rows: Sequence[Mapping[str, Any]]) -> None:
    """SpecError for a value of a row that is neither a share nor on a path of the template's microarchitecture."""
    named = _named(document)
    for i, row in enumerate(rows):
        lost = next((path for path in _free_values(row) if path not in named), None)
        if lost is not None:
            shares = (
                f"logic, memory, shares that begin with {', '.join(BUDGETS)}, such as area.on_chip.l2, and paths of `microarchitecture`"
            )
            raise document.error(("budgets", "divisions", i), f"unknown column {shown(lost)}; expected {shares}")


def _placed(document: Document, row: Mapping[str, Any], number: int) -> Document:
    """A system with the microarchitecture of a row of its divisions, each value at the place of the row."""
    values = {_path(name): value for name, value in _free_values(row).items()}
    found = files.replaced(document, values)

    def places() -> Mapping[Path_, Place]:
        place = document.lines.get(("budgets", "divisions", number))
        return document.lines if place is None else {**document.lines, **dict.fromkeys(values, place)}

    return Document(file=found.file, data=found.data, lines=files.LatePlaces(places))


def _places(document: Document, row: Mapping[str, Any], number: int) -> Mapping[Path_, Place]:
    """Where the shares of a row stand: in its table, but for those that the document's own file changes."""
    place = document.lines.get(("budgets", "divisions", number))
    if place is None:
        return {}
    paths = (("budgets", name) for name in BUDGETS if name in row)
    return {path: place for path in paths if document.lines.get(path, place)[0] != document.file}


def _with(document: Document, budgets: Mapping[str, Any], places: Callable[[], Mapping[Path_, Place]] = dict) -> Document:
    """A system with other shares or divisions, each at its old place or at that of `places`."""
    lines = files.LatePlaces(lambda: {**document.lines, **places()})
    return files.merge(document, Document(file=document.file, data={"budgets": budgets}, lines=lines))


def tables(system: GeneratedSystem, nodes: Sequence[str], memories: Sequence[str], library: TechLibrary) -> dict[str, Array]:
    """What a template's table of divisions has for each node and memory, by path below the system, shape (nodes, memories)."""
    rows = system.budgets.divisions
    origins = [[origin(system, node, memory, library) for memory in memories] for node in nodes]
    weights = np.zeros((len(nodes), len(memories), len(rows)))
    for i, held in enumerate(origins):
        for j, one in enumerate(held):
            weights[i, j, list(one.rows)] = one.weights
    shared, none = [shares(row) for row in rows], np.zeros(1)
    divided = {path: weights @ np.concatenate([row.get(path, none) for row in shared]) for path in {p: None for row in shared for p in row}}
    found = {f"budgets.{path}": table for path, table in divided.items()}
    for path in {path: None for row in rows for path in row.microarchitecture}:
        quantity = system.free(path)
        values = np.concatenate([_value(system, library, row, path) for row in rows])
        table = np.exp(weights @ np.log(np.maximum(values, np.finfo(float).tiny)))
        found[path] = np.rint(table) if quantity.whole else table
    return found


def _value(system: GeneratedSystem, library: TechLibrary, row: TechnologyDivision, path: str) -> Array:
    """What a row has at a path of the microarchitecture: its own value or the template's, which it was completed by, or the library's."""
    if path in row.microarchitecture:
        return system.free(path).read(row.microarchitecture[path])
    from crossflow.hardware.architecture.shaping import library_value

    found = library_value(system, library, path)
    if found is None:
        raise CrossflowError(
            f"{system.name}: the division for {row.logic} with {row.memory} lacks {path}, of which the template has no value"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class DivisionOrigin:
    """Where the division for a node and a memory comes from: rows of the table and their weights."""

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    note: str | None  # what there is to say where no row names both


def origin(system: GeneratedSystem, node: str, memory: str, library: TechLibrary) -> DivisionOrigin:
    """Where a system has the division for a node and a memory from, of a table that its template has."""
    rows = system.budgets.divisions
    exact = next((i for i, row in enumerate(rows) if (row.logic, row.memory) == (node, memory)), None)
    if exact is not None:
        return DivisionOrigin(rows=(exact,), weights=(1.0,), note=None)
    area = {name: float(np.log(entry.area[0])) for name, entry in library.logic.items()}
    known = sorted((area[row.logic], i) for i, row in enumerate(rows) if row.memory == memory and row.logic in area)
    lacks = f"{system.name} has no division of its budgets for {node} with {memory}"
    if not known:
        kept = "it keeps the shares of its template, and may rank below those that have one: redivide: {} in a study finds its own"
        return DivisionOrigin(rows=(len(rows) - 1,), weights=(1.0,), note=f"{lacks}, nor for that memory; {kept}")
    finer, coarser = ([(at, i) for at, i in known if sign * (at - area[node]) <= 0.0] for sign in (1.0, -1.0))
    if not finer or not coarser:
        nearest = known[0] if not finer else known[-1]
        return DivisionOrigin(
            rows=(nearest[1],), weights=(1.0,), note=f"{lacks}; it takes that of {rows[nearest[1]].logic}, the nearest node"
        )
    (low, one), (high, other) = finer[-1], coarser[0]
    part = 0.0 if high == low else (area[node] - low) / (high - low)
    names = f"{rows[other].logic} and {rows[one].logic}"
    return DivisionOrigin(rows=(one, other), weights=(1.0 - part, part), note=f"{lacks}; it takes what lies between those of {names}")


def between(system: GeneratedSystem, library: TechLibrary) -> dict[Path_, str]:
    """Values of a system whose node has no row for its memory, as a file gives them, by path; empty where nothing is to be taken."""
    rows, technology = system.budgets.divisions, system.technology
    found = origin(system, technology.logic, technology.memory, library) if rows else None
    if found is None or found.note is None or found.rows == (len(rows) - 1,):
        return {}
    units = {path: system.free(path).unit for path in system.microarchitecture}
    return {
        _path(path): f"{float(table[0, 0])!r} {units.get(path, '')}".removesuffix(" 1").rstrip()
        for path, table in tables(system, [technology.logic], [technology.memory], library).items()
    }


def shares(division: Budgets | TechnologyDivision) -> dict[str, Array]:
    """Shares of the budgets that have a value, by path, such as `area.on_chip.l2`."""
    return {".".join((name, *path)): value for name in BUDGETS for path, _, value in quantities(getattr(division, name))}
