"""`crossflow bench`: the speed of crossflow on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges import bench
from crossflow.edges.cli import page

WITHIN = 1.3  # times as slow as recorded that a figure may be, where nobody says otherwise


def run(arguments: argparse.Namespace) -> None:
    """Measure, and show the figures; CrossflowError where some are slower than recorded ones."""
    if arguments.against is None and arguments.within is not None:
        raise CrossflowError("--within says how much slower than --against FILE is allowed, which was not given")
    within = WITHIN if arguments.within is None else arguments.within
    recorded = None if arguments.against is None else bench.read(arguments.against)
    figures = bench.run()
    if arguments.json:
        page.emit_json(figures)
    else:
        rows = [[name.replace("_", " "), *_value(figure["value"], figure["unit"]), figure["meaning"]] for name, figure in figures.items()]
        page.emit(page.grid(rows, right=(1,), wraps=3))
    if recorded is None:
        return
    if slow := bench.slower(figures, recorded, within):
        raise CrossflowError(
            f"slower than in {arguments.against}, in multiples of a fixed loop: {_often(slow)}; the limit is {within:g} times"
        )
    if more := bench.busier(figures, recorded):
        raise CrossflowError(f"more function calls than in {arguments.against}: {_often(more)}; the limit is {bench.MORE_CALLS:g} times")


def _often(times: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {often:.2f} times" for name, often in times.items())


def _value(value: float, unit: str) -> list[str]:
    """A figure and its unit, in columns of their own."""
    number, _, written = show(value, unit).partition(" ") if unit in ("s", "B") else (page.count(value), "", unit)
    return [number, "" if written == "1" else written]
