"""`crossflow bench`: the speed of crossflow on this machine."""

from __future__ import annotations

import argparse

from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges import bench
from crossflow.edges.cli import page


def run(arguments: argparse.Namespace) -> None:
    """Measure, and show the figures; CrossflowError where some are slower than recorded ones."""
    recorded = None if arguments.against is None else bench.read(arguments.against)
    figures = bench.run()
    if arguments.json:
        page.emit_json(figures)
    else:
        rows = [[name.replace("_", " "), *_value(figure["value"], figure["unit"]), figure["meaning"]] for name, figure in figures.items()]
        page.emit(page.grid(rows, right=(1,), wraps=3))
    if recorded is not None and (slow := bench.slower(figures, recorded, arguments.within)):
        told = ", ".join(f"{name.replace('_', ' ')} {times:.2f} times" for name, times in slow.items())
        raise CrossflowError(
            f"slower than in {arguments.against}, as multiples of the same loop: {told}; {arguments.within:g} times is allowed"
        )


def _value(value: float, unit: str) -> list[str]:
    """A figure and its unit, in columns of their own."""
    number, _, written = show(value, unit).partition(" ") if unit in ("s", "B") else (page.count(value), "", unit)
    return [number, "" if written == "1" else written]
