"""`crossflow schema`: the JSON schema of files, for editors."""

from __future__ import annotations

import argparse

from crossflow.answers.study.schema import schema
from crossflow.edges.cli import page


def run(arguments: argparse.Namespace) -> None:
    """Write the schema of a kind of file; it is JSON with and without ``--json``."""
    page.emit_json(schema(arguments.kind))
