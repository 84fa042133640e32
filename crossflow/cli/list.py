"""`crossflow list`: what there is to predict and to build on, by name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group

from crossflow import files
from crossflow.cli import page
from crossflow.cli.parser import KINDS
from crossflow.scenario import presets
from crossflow.workload.spec import MODELS

# Groups of templates by the folder that they are shipped in.
GROUPS = {"generated": "generated", "devices": "datasheet device", "systems": "system", "families": "family", "software": "software stack"}
_HEAD = re.compile(r"^title:[ ].*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One name, what group of its kind it belongs to, and the title that its file gives it."""

    name: str
    group: str
    title: str
    file: str | None


def run(arguments: argparse.Namespace) -> None:
    """List the names of one kind, or of all."""
    kinds = KINDS if arguments.kind is None else (arguments.kind,)
    found = {kind: entries(kind) for kind in kinds}
    if arguments.json:
        page.emit_json({kind: [asdict(entry) for entry in listed] for kind, listed in found.items()})
    else:
        page.emit(*(_table(kind, listed) for kind, listed in found.items()), unbroken=not sys.stdout.isatty())


def entries(kind: str) -> list[Listing]:
    """Names of a kind, those of one group together."""
    if kind == "models":
        return _models()
    paths = files.catalogue(kind)
    if kind == "templates":
        return _templates(paths)
    return [Listing(name=name, group=kind.removesuffix("s"), title=title(path), file=str(path)) for name, path in paths.items()]


def _models() -> list[Listing]:
    kinds = [Listing(name=name, group="kind", title=_summary(model), file=None) for name, model in MODELS.items()]
    return kinds + [Listing(name=name, group="preset", title=title(path), file=str(path)) for name, path in presets().items()]


def _templates(paths: Mapping[str, Path]) -> list[Listing]:
    groups = list(GROUPS.values())
    found = [
        Listing(name=name, group=GROUPS[path.parent.name], title=title(path), file=str(path))
        for name, path in paths.items()
        if path.parent.name in GROUPS
    ]
    return sorted(found, key=lambda entry: (groups.index(entry.group), entry.name))


def _summary(model: Any) -> str:
    return str(model.__doc__ or "").strip().splitlines()[0].rstrip(".")


def title(path: Path) -> str:
    """Title of a file, read without the rest of it, so that a list of many long files comes at once."""
    found = _HEAD.search(path.read_text(encoding="utf-8"))
    return "" if found is None else str(files.parse_yaml(found.group(), str(path)).data["title"])


def _table(kind: str, listed: Sequence[Listing]) -> Group:
    rows = [[entry.name, entry.group, entry.title] for entry in listed] or [["none", "", ""]]
    grouped = kind in ("templates", "models")
    shown = rows if grouped else [[name, text] for name, _, text in rows]
    return page.section(kind, shown, wraps=len(shown[0]) - 1)
