"""`crossflow bench`: the speed of crossflow on this machine."""

from __future__ import annotations

import argparse

from crossflow.base.units import show
from crossflow.edges import bench
from crossflow.edges.cli import page


def run(arguments: argparse.Namespace) -> None:
    """Measure, and show the figures."""
    figures = bench.run()
    if arguments.json:
        page.emit_json(figures)
        return
    rows = [[name.replace("_", " "), *_value(figure["value"], figure["unit"]), figure["meaning"]] for name, figure in figures.items()]
    page.emit(page.grid(rows, right=(1,), wraps=3))


def _value(value: float, unit: str) -> list[str]:
    """A figure and its unit, in columns of their own."""
    number, _, written = show(value, unit).partition(" ") if unit in ("s", "B") else (page.count(value), "", unit)
    return [number, "" if written == "1" else written]
