"""`crossflow list`: what there is to predict and to build on, by name."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group

from crossflow.answers.catalogue.listing import Listing, entries
from crossflow.edges.cli import page
from crossflow.edges.cli.parser import KINDS

GROUPED = ("templates", "models", "families")  # kinds of which the group of a name is told
TITLES = 44  # columns of a terminal that titles need beside names and groups


def run(arguments: argparse.Namespace) -> None:
    """List the names of one kind, or of all."""
    kinds = KINDS if arguments.kind is None else (arguments.kind,)
    found = {kind: entries(kind) for kind in kinds}
    if arguments.json:
        page.emit_json({kind: [asdict(entry) for entry in listed] for kind, listed in found.items()})
    else:
        width = page.columns() if sys.stdout.isatty() else None
        page.emit(*(_table(kind, listed, width) for kind, listed in found.items()), unbroken=width is None)


def _table(kind: str, listed: Sequence[Listing], width: int | None) -> Group:
    """Names of a kind with their groups and titles; on a terminal that leaves titles little room each group has a heading of its own."""
    if not listed:
        return page.section(kind, [["none"]])
    if kind not in GROUPED:
        return page.section(kind, [[entry.name, entry.title] for entry in listed], wraps=1)
    taken = sum(max(len(getattr(entry, part)) for entry in listed) + page.GAP for part in ("name", "group"))
    if width is None or width - taken >= TITLES:
        return page.section(kind, [[entry.name, entry.group, entry.title] for entry in listed], wraps=2)
    groups = itertools.groupby(listed, key=lambda entry: entry.group)
    return Group(*(page.section(kind, [[one.name, one.title] for one in some], wraps=1, aside=group) for group, some in groups))
