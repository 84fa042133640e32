"""`crossflow bench`: the speed of crossflow on this machine."""

from __future__ import annotations

import argparse

from crossflow import bench
from crossflow.cli import page


def run(arguments: argparse.Namespace) -> None:
    """Measure, and show the figures."""
    figures = bench.run()
    if arguments.json:
        page.emit_json(figures)
        return
    rows = [
        [name.replace("_", " "), page.count(figure["value"]), figure["unit"], figure["meaning"]]
        for name, figure in figures.items()
    ]
    page.emit(page.grid(rows, right=(1,), wraps=3))
