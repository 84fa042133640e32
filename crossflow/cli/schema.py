"""`crossflow schema`: the JSON schema of files, for editors."""

from __future__ import annotations

import argparse

from crossflow.cli import page
from crossflow.study.schema import schema


def run(arguments: argparse.Namespace) -> None:
    """Write the schema of a kind of file; it is JSON with and without ``--json``."""
    page.emit_json(schema(arguments.kind))
