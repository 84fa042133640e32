"""`crossflow measure`: microbenchmarks of the machine at hand, as tables that profiles and `crossflow calibrate` read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from crossflow.base.files import named_by
from crossflow.base.names import visible
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.log import quiet
from crossflow.evidence.measurement.measure import MeasureOptions, MeasureProgress, measure
from crossflow.evidence.measurement.results import DERIVED, ROWS, summary


def run(arguments: argparse.Namespace) -> None:
    """Measure, and say what was measured."""
    options = MeasureOptions(
        folder=arguments.output, only=[kind for kind in arguments.only.split(",") if kind], device=arguments.device,
        dtype=arguments.dtype, threads=arguments.threads, minutes=arguments.minutes, resume=arguments.resume,
    )  # fmt: skip
    try:
        with named_by("-o"):
            found = measure(options, _teller())
    finally:
        if sys.stderr.isatty() and not quiet():
            sys.stderr.write("\n")
    written = [str(path) for name in (ROWS, *DERIVED) if (path := options.folder / name).is_file()]
    for name in written:
        page.log(f"wrote {name}")
    data = {**summary(found), "written": written}
    if arguments.json:
        page.emit_json(data)
    else:
        page.emit(*sections(data))


def _teller() -> Callable[[MeasureProgress], None]:
    """Progress on a terminal, one line that is written over; nothing elsewhere."""
    if not sys.stderr.isatty() or quiet():
        return lambda _: None

    def tell(at: MeasureProgress) -> None:
        line = f"{at.rows} rows, {60.0 * at.rows / max(at.elapsed, 1e-3):.0f} a minute, at most {at.left:.0f} s left: {at.kind} {at.label}"
        sys.stderr.write(f"\r\x1b[K{visible(line)[: page.columns() - 1]}")
        sys.stderr.flush()

    return tell


def sections(data: Mapping[str, Any]) -> list[RenderableType]:
    """The page: rows by kind, and what a kernel costs the host."""
    rows = [[one["kind"], str(one["rows"]), f"{one['spread']:.1%}", str(one["busy"])] for one in data["kinds"]]
    threads = f"{data['threads']} thread{'s' * (data['threads'] != 1)}"
    host = {name: show(data["host_s"][name], "s") for name in ("forward", "backward", "update", "cold")}
    cold = f"{host['cold']} more where kernels empty its caches"
    remarks = [f"a kernel takes the host {host['forward']} forward, {host['backward']} backward, {host['update']} in an update, {cold}"]
    if data["host_s"]["error"] is not None:
        remarks.append(f"reference steps come out {data['host_s']['error']:.1%} off on average")
    if data["busy_rows"]:
        disturbed = f"{data['busy_rows']} of {data['rows']} rows were disturbed by other processes"
        remarks.append(f"{disturbed}: measure again when the machine is idle")
    return [
        Text.assemble((data["device"], "bold"), f"  {data['machine']['cpu']}, {threads}, torch {data['torch']}"),
        page.section("Measured", rows, (1, 2, 3), header=["", "rows", "spread", "disturbed"]),
        *(Text(remark, "dim") for remark in remarks),
    ]
