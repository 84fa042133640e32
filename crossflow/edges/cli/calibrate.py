"""`crossflow calibrate`: parameters of a system from measured tables and logs, with errors before and after."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_new, named_by, write_text
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.evidence.calibration.calibrate import calibrate, reasons
from crossflow.evidence.calibration.learned import fill, learn
from crossflow.evidence.calibration.logs import LogOptions
from crossflow.evidence.calibration.writing import check_system, learned_text, write_system

# Laws of a table of errors, and the words above their columns.
LAWS = {"before": "before", "fitted": "fitted", "paper_curve": "Lin et al.", "measured_curve": "between sizes", "written": "written"}


def run(arguments: argparse.Namespace) -> None:
    """Fit or learn, write what is asked for, and show the errors."""
    _check(arguments)
    options = LogOptions(collective=arguments.op, ranks=arguments.ranks, nodes=arguments.nodes)
    with named_by("-o"):
        (_learn if arguments.learn else _fit)(arguments, options)


def _check(arguments: argparse.Namespace) -> None:
    """CrossflowError for options that do not apply."""
    refused = (
        (arguments.events is not None and not arguments.learn, "--events is for --learn: the list whose times are to be filled"),
        (arguments.learn and arguments.output is not None and arguments.events is None, "--learn -o needs --events, the list to fill"),
        (arguments.learn and arguments.events is not None and arguments.output is None, "--learn --events needs -o, the profile to write"),
        (arguments.learn and arguments.no_curves, "--no-curves is for fits; --learn writes no curves"),
        (arguments.force and arguments.output is None, "--force is for -o, and nothing is written"),
        (arguments.nodes is not None and arguments.ranks is None, "--nodes needs --ranks"),
    )
    for wrong, sentence in refused:
        if wrong:
            raise CrossflowError(sentence)
    if arguments.ranks is not None and arguments.ranks % (arguments.nodes or 1):
        raise CrossflowError(f"--ranks {arguments.ranks} do not fill --nodes {arguments.nodes}")
    if arguments.learn and arguments.output is not None:
        check_new(arguments.output, replace=arguments.force)
    elif arguments.output is not None:
        check_system(arguments.system, arguments.output, replace=arguments.force)


def _fit(arguments: argparse.Namespace, options: LogOptions) -> None:
    found = calibrate(arguments.files, arguments.system, options=options, rows=arguments.rows, curves=not arguments.no_curves)
    written = [] if arguments.output is None else write_system(found, arguments.output, replace=arguments.force)
    for path in written:
        page.log(f"wrote {path}")
    data = {**found.to_dict(), "written": [str(path) for path in written]}
    if arguments.json:
        page.emit_json(data)
    else:
        page.emit(*sections(data))


def _learn(arguments: argparse.Namespace, options: LogOptions) -> None:
    found = learn(arguments.files, arguments.system, options=options, rows=arguments.rows)
    data = found.to_dict()
    if arguments.events is not None:
        events, counts, left = fill(found, arguments.events)
        write_text(arguments.output, learned_text(found, events, counts))
        page.log(f"wrote {arguments.output}")
        data |= {"filled": len(events), "left_reasons": dict(left), "written": [str(arguments.output)]}
    if arguments.json:
        page.emit_json(data)
    else:
        page.emit(*learned_sections(data))


# -------------------------------------------------------------------------------------------- pages


def sections(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The page of a fit: errors of every set of rows, parameters, and what is to be known of both."""
    sets = data["sets"]
    yield page.first_line(data["system"], f"  {data['fitted']} rows fitted, {data['held_out']} of every other size held out")
    laws = [law for law in LAWS if any(law in one["errors"] for one in sets)]
    rows = [[_named(one), str(one["rows"]), *(_median(one["errors"].get(law)) for law in laws)] for one in sets]
    if len(sets) > 1:
        total = [_median(data["errors"].get(law)) for law in laws]
        rows.append(["all", str(data["rows"]), *total])
    header = ["", "rows", *(LAWS[law] for law in laws)]
    yield page.section("Errors", rows, range(1, len(header)), aside="median, of the rows held out", header=header)
    fitted = [_parameter(one) for one in data["parameters"]]
    yield page.section("Parameters", fitted, (1, 2, 3), header=["", "before", "fitted", "known to"], wraps=4)
    left = [[name, reason] for name, reason in data["left"].items()]
    yield page.section("Left as they are", left, wraps=1)
    yield _remarks(data)


def _named(one: Mapping[str, Any]) -> str:
    return str(one["name"]) + (" (curve)" if one["measured_curve_written"] else "")


def _median(entry: Mapping[str, Any] | None) -> str:
    value = None if entry is None or entry["held_out"] is None else entry["held_out"]["median_abs_error"]
    return "-" if value is None else f"{100 * value:.1f} %"


def _parameter(one: Mapping[str, Any]) -> list[RenderableType]:
    error = f"{100 * one['relative_error']:.0f} %" if one["relative_error"] < 1 else "> 100 %"
    bound = Text("at its bound", "yellow") if one["at_bound"] else ""
    return [one["name"], show(one["before"], one["unit"]), show(one["value"], one["unit"]), error, bound]


def learned_sections(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The page of what was learned: errors of the analytical and the learned model, kind by kind."""
    yield page.first_line(data["system"], f"  {data['rows']} rows, every other size held out")
    rows = []
    for one in data["kinds"]:
        laws = [one["errors"].get(law) for law in ("before", "fitted", "learned")]
        cells = [_percent(entry, key) for entry in laws for key in ("geometric_mean_abs_error", "mean_abs_error")]
        rows.append([one["name"], str(one["rows"]), *cells, one["method"]])
    header = ["", "rows", "before", "", "fitted", "", "learned", "", ""]
    aside = "of the rows held out, geometric and arithmetic mean"
    yield page.section("Errors", rows, range(1, 8), aside=aside, header=header)
    if "filled" in data:
        left = [Text(f"{count} left to the model: {reason}", "dim") for reason, count in data["left_reasons"].items()]
        yield Group(Text(), Text(f"{data['filled']} events have learned times"), *left)
    yield _remarks(data)


def _percent(entry: Mapping[str, Any] | None, key: str) -> str:
    return "-" if entry is None or entry[key] is None else f"{100 * entry[key]:.1f} %"


def _remarks(data: Mapping[str, Any]) -> Group:
    return Group(Text(), *(Text(remark, "dim") for remark in (*reasons(data["skipped_reasons"]), *data["notes"])))
