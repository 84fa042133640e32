"""`crossflow compare`: the best plan of a model on each of several systems, as JSON, as a page of the terminal or as one of a browser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.planning.comparing import ComparedSystem, ComparedSystems, compared
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import percent

PAGES = (".html", ".htm")


def run(arguments: argparse.Namespace) -> None:
    """Compare the systems, and write the page where one is asked for."""
    if arguments.page is None and arguments.force:
        raise CrossflowError("--force goes with --page: say which page to write")
    if arguments.page is not None:
        if arguments.page.suffix.lower() not in PAGES:
            raise CrossflowError(f"--page writes a page: give it a name that ends in .html, not {arguments.page}")
        files.check_new(arguments.page, replace=arguments.force)
    found = compared(
        arguments.model,
        ",".join(arguments.on),
        devices=arguments.devices,
        budget=arguments.budget,
        prices=arguments.price,
        task=arguments.task,
        batch=arguments.batch,
        settings=arguments.settings,
    )
    if arguments.json:
        page.emit_json(found.to_dict())
    else:
        page.emit(*sections(found))
    if arguments.page is not None:
        from crossflow.edges.explore.comparison import written

        files.write_text(arguments.page, written(found))
        page.log(f"crossflow: wrote {arguments.page}")


def sections(found: ComparedSystems) -> list[RenderableType]:
    """The page: the verdict, the systems in order, what runs on each, how to read it."""
    return [headline(found), listed(found), plans(found), page.assumptions(found.assumptions), *_notes(found)]


def headline(found: ComparedSystems) -> Group:
    """What is compared, and which system comes first."""
    rows: dict[str, RenderableType] = {"verdict": Text(found.verdict, "bold")}
    rows |= {} if found.best is None else {"order": f"by {found.order}"}
    return Group(page.first_line(found.model, f"  {found.task} on {len(found)} systems"), Text(), page.indented(page.pairs(rows)))


def listed(found: ComparedSystems) -> Group:
    """The systems, best first; those that cannot be told from the first are marked."""
    headers, lines = found.table()
    kept = [i for i in range(len(headers) - 1) if i < 3 or any(line[i] != "-" for line in lines)]  # trust is told below, with its reason
    short = [headers[i].partition("/M ")[0] + "/M" * ("/M " in headers[i]) for i in kept]
    rows: list[list[RenderableType]] = [[line[i] for i in kept] for line in lines]
    what = headers[-2].partition("/M ")[2]
    tied = "; = cannot be told from the first" if any(line[0].startswith("=") for line in lines) else ""
    right = tuple(range(2, len(kept)))
    aside = f"M: a million {what}; within: 9 of 10 similar runs{tied}"
    return Group(page.heading("Systems", aside=aside), page.indented(page.grid(rows, right=right, header=short, wraps=1)))


def plans(found: ComparedSystems) -> Group:
    """The best plan on each, and how far its figures can be trusted; why a system cannot run."""
    return Group(page.heading("Best plan on each"), *(page.indented(page.pairs(dict(_told(row)))) for row in found))


def _told(row: ComparedSystem) -> Iterator[tuple[str, RenderableType]]:
    if row.prediction is None or not row.feasible:
        yield row.system, Text(f"cannot run: {row.reason}", "red")
        return
    memory = f"{show(row.figure('memory_bytes'), 'B')} of {show(row.figure('memory_capacity_bytes'), 'B')}"
    what = f"{row.strategy}, {memory} per device, MFU {percent(row.figure('mfu'))}, bound by {row.prediction.score.bound_by[0]}\n"
    yield row.system, Text.assemble(what, page.trusted(row.prediction.trust))


def _notes(found: ComparedSystems) -> Iterator[RenderableType]:
    for note in found.notes:
        yield page.indented(Text(f"note: {note}", "dim"))
