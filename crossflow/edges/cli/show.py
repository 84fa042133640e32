"""`crossflow show`: one name resolved, with the unit and the source of every number."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.catalogue.sheets import Figure, Sheet, look_up
from crossflow.edges.cli import device, page


def run(arguments: argparse.Namespace) -> None:
    """Show one name."""
    sheet = look_up(arguments.name)
    if arguments.json:
        page.emit_json(sheet.to_dict())
    else:
        page.emit(*sections(sheet))


# ------------------------------------------------------------------------------------------ the page


def sections(sheet: Sheet) -> list[RenderableType]:
    """The page of a sheet."""
    owned = {_split(figure.path)[0] for figure in sheet.figures} - {""}
    parts: list[RenderableType] = [head(sheet)]
    if free := {path: value for path, value in sheet.settings.items() if _split(path)[0] not in owned}:
        written = {path: _written(value) for path, value in free.items()}
        parts += [page.heading("Settings"), page.indented(page.pairs(written))]
    if sheet.figures:
        parts += figure_table(sheet)
    if sheet.device is not None:
        parts += [device.derived(sheet.device), device.budgets(sheet.device)]
    if sheet.sources:
        cited = {key: Text(text) for key, text in sheet.sources.items()}
        parts += [page.heading("Sources"), page.indented(page.pairs(cited, style="cyan"))]
    return parts


def head(sheet: Sheet) -> Group:
    """Name, kind, title and file."""
    lines = [page.first_line(sheet.name, f"  {sheet.kind}")]
    lines += [Text(text) for text in (sheet.title, sheet.notes) if text]
    lines += [Text(sheet.file, "dim")] if sheet.file is not None else []
    lines += [Text(f"also in {', '.join(sheet.also)}", "dim")] if sheet.also else []
    return Group(*lines)


def _written(value: Any) -> Text:
    if isinstance(value, list | tuple):
        return Text(", ".join(" x ".join(map(str, item)) if isinstance(item, list) else str(item) for item in value))
    return Text(str(value).lower() if isinstance(value, bool) or value is None else str(value).strip())


def _split(path: str) -> tuple[str, str]:
    """What a figure or setting belongs to, and its own name there."""
    owner, _, name = path.rpartition(".")
    return owner, name


def figure_table(sheet: Sheet) -> list[RenderableType]:
    """Figures in columns, grouped by what they belong to; those of files that the sheet builds on come last."""
    groups: dict[str, list[Figure]] = {"": []}
    for figure in sheet.figures:
        groups.setdefault(_split(figure.path)[0], []).append(figure)
    ordered = sorted(groups.items(), key=lambda group: bool(group[0]) and group[1][0].file != sheet.file)
    widths = _widths(sheet.figures)
    aside = "~ projected: not published as such" if any(figure.projected for figure in sheet.figures) else ""
    parts: list[RenderableType] = [page.heading("Figures", aside=aside)]
    for owner, figures in ordered:
        parts += [_owner(owner, figures[0], sheet)] if owner else []
        parts += [line for figure in figures for line in _lines(figure, widths, 4 if owner else 2)]
    return parts


def _owner(owner: str, first: Figure, sheet: Sheet) -> RenderableType:
    """Name of what figures belong to, with its title, its other settings, and its file if that is another one."""
    own = {_split(path)[1]: value for path, value in sheet.settings.items() if _split(path)[0] == owner}
    words = [str(own.pop("title", ""))] + [f"{name} {_written(value)}" for name, value in own.items()]
    if first.file not in (None, sheet.file):
        words.append(f"from {Path(str(first.file)).name}")
    aside = "; ".join(word for word in words if word)
    return page.indented(Text.assemble("\n", (owner, "bold"), "  ", (aside, "dim")))


def _widths(figures: Iterable[Figure]) -> tuple[int, int, int]:
    rows = [(_split(figure.path)[1], figure.value, figure.range) for figure in figures]
    names, values, ranges = (max(len(row[i]) for row in rows) for i in range(3))
    return names, values, ranges


def _lines(figure: Figure, widths: tuple[int, int, int], indent: int) -> Iterator[RenderableType]:
    """A figure and, below it, its note; on a narrow page its range and source too."""
    names, values, ranges = widths
    number = (f"{'~' if figure.projected else ' '} {figure.value}".ljust(values + 4), "bold")
    line = Text.assemble(_split(figure.path)[1].ljust(names + 6 - indent), number)
    origin = Text.assemble((figure.source or "", "cyan"), f"  {figure.status}" if figure.status else "")
    wide = Text.assemble(line, figure.range.ljust(ranges + 2) if ranges else "", origin)
    if wide.cell_len + indent <= page.columns():
        yield page.indented(wide, indent)
    else:  # what stands behind the number goes below it
        yield page.indented(line, indent)
        parts = [part for part in (Text(figure.range), origin) if part.plain]
        yield from [page.indented(page.Flow(parts), indent + 2)] if parts else []
    if figure.note:
        yield page.indented(Text(figure.note, "dim"), indent + 2)
