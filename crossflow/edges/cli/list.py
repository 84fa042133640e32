"""`crossflow list`: what there is to predict and to build on, by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group

from crossflow.answers.catalogue.listing import Listing, entries
from crossflow.edges.cli import page
from crossflow.edges.cli.parser import KINDS


def run(arguments: argparse.Namespace) -> None:
    """List the names of one kind, or of all."""
    kinds = KINDS if arguments.kind is None else (arguments.kind,)
    found = {kind: entries(kind) for kind in kinds}
    if arguments.json:
        page.emit_json({kind: [asdict(entry) for entry in listed] for kind, listed in found.items()})
    else:
        page.emit(*(_table(kind, listed) for kind, listed in found.items()), unbroken=not sys.stdout.isatty())


def _table(kind: str, listed: Sequence[Listing]) -> Group:
    rows = [[entry.name, entry.group, entry.title] for entry in listed] or [["none", "", ""]]
    grouped = kind in ("templates", "models")
    shown = rows if grouped else [[name, text] for name, _, text in rows]
    return page.section(kind, shown, wraps=len(shown[0]) - 1)
