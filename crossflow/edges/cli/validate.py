"""`crossflow validate`: predictions against measurements, for every table of measured data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.evidence.validation.changes import SHOWN, effects
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.dropping import droppable
from crossflow.evidence.validation.left_out import leave_out

# Statistics of a table, and the words above their columns; all errors are relative.
_ERRORS = {"median_abs_error": "median", "mean_abs_error": "mean", "p90_abs_error": "p90", "bias": "bias"}
_SHARES = {"memory_median_abs_error": "memory median", "oom_accuracy": "fits told right"}
_REASONS = 5  # reasons told on a page
GROUPS = {"chip": "device", "source": "source", "engine": "engine and figure"}  # groups that are shown of rows left out

# Figures of chips that are shown, and the words above their columns; JSON has all.
BLIND_FIGURES = {
    "product": "product", "memory bandwidth": "memory", "l2 bandwidth": "L2", "training, 7B": "train 7B", "training, 70B": "train 70B",
    "decoding, 7B": "decode 7B", "decoding, 70B": "decode 70B", "peak": "peak",
}  # fmt: skip
# Figures of a forecast that are shown, and their units; JSON has all.
FORECAST = {"product": "flop/s", "memory bandwidth": "B/s", "l2 bandwidth": "B/s", "training, 70B": "1/s", "decoding, 70B": "1/s"}

PageRow = tuple[str, Mapping[str, Any]]


def run(arguments: argparse.Namespace) -> None:
    """Compare, and show every table of the report, which rows a fitted number moves, or what is right without what was fitted."""
    if arguments.drop is not None and arguments.leave_out is not None:
        raise CrossflowError("--drop leaves out one number, --leave-out all that were fitted to a group; give one of them")
    if arguments.drop is not None:
        _drop(arguments)
        return
    if arguments.leave_out is not None:
        _leave_out(arguments)
        return
    report = validate(arguments.data).to_dict()
    if arguments.json:
        page.emit_json(report)
    else:
        page.emit(*sections(report["tables"]))


def _drop(arguments: argparse.Namespace) -> None:
    """Show the fitted numbers, or what one of them moves."""
    if not arguments.drop:
        known = {name: [path.name for path, _ in places] for name, places in droppable().items()}
        if arguments.json:
            page.emit_json(known)
        else:
            # not a grid: the longest of some eight hundred names would push the files of all others off the page
            page.emit(*(Text(f"{name}  {', '.join(paths)}") for name, paths in known.items()), unbroken=True)
        return
    found = effects(arguments.data, arguments.drop)
    if arguments.json:
        page.emit_json(found)
    else:
        page.emit(*(_effect(name, entry) for name, entry in found["tables"].items()))


def _leave_out(arguments: argparse.Namespace) -> None:
    """Show the errors of rows with what was fitted to their own group, and without it."""
    found = leave_out(arguments.leave_out, arguments.data).to_dict()
    if arguments.json:
        page.emit_json(found)
    else:
        page.emit(*(_both(name, entry, arguments.leave_out) for name, entry in found["tables"].items()))


def _both(name: str, entry: Mapping[str, Any], way: str) -> RenderableType:
    """Errors of a table and of its groups as fitted and left out; one line where nothing was fitted to a group."""
    title = name.replace("_", " ")
    if not entry["n"]:
        return page.heading(title, aside=f"nothing was fitted to the rows of one {way} alone")
    listed = [("all", entry), *entry["by"].get(GROUPS[way], {}).items()]
    body = [
        [label, page.count(row["n"]), *(_percent(held[key]) for key in SHOWN for held in (row["fitted"], row))] for label, row in listed
    ]
    header = ("", "n", *(f"{_ERRORS[key]}{end}" for key in SHOWN for end in ("", " left out")))
    return _section(title, f"{page.count(entry['n'])} rows without what was fitted to their own {way}", header, body)


def _effect(name: str, entry: Mapping[str, Any]) -> RenderableType:
    """Errors of a table with a number and without it, over all rows and by source; one line where no row moves."""
    title, moved = name.replace("_", " "), entry["moved"]
    if moved == 0:
        return page.heading(title, aside="no row moves")
    listed = [("all", entry), *((source, group) for source, group in entry["by_source"].items() if group["moved"])]
    keys = [f"{key}{end}" for key in SHOWN for end in ("", "_without")]
    body = [[label, page.count(row["n"]), _count(row["moved"]), *(_percent(row[key]) for key in keys)] for label, row in listed]
    header = ("", "n", "moved", *(f"{_ERRORS[key]}{end}" for key in SHOWN for end in ("", " without")))
    aside = "other rows can be predicted" if moved is None else f"{page.count(moved)} of {page.count(entry['n'])} rows move"
    return _section(title, aside, header, body)


def _section(title: str, aside: str, header: Sequence[str], body: Sequence[Sequence[RenderableType]]) -> Group:
    """A heading with a grid of numbers below it."""
    return Group(page.heading(title, aside=aside), page.indented(page.grid(body, right=range(1, len(header)), header=header, wraps=0)))


def _count(number: int | None) -> str:
    return "-" if number is None else page.count(number)


def sections(tables: Mapping[str, Any]) -> list[RenderableType]:
    """One table of errors for each table of data."""
    shown = [blind(entry) if "chips" in entry else table(name, entry) for name, entry in tables.items()]
    return [*shown] or [Text("no table of measured data to compare with")]


def blind(entry: Mapping[str, Any]) -> Group:
    """Chips that were predicted before they were announced: predicted over measured figures, which gates hold, and forecasts."""
    gates = entry["gates"]
    names = list(BLIND_FIGURES)
    body = [[chip, *(_ratio(found.get(name)) for name in names)] for chip, found in entry["chips"].items()]
    body.append(["gate", *(f"{100 * gates[name]['within']:.0f} %" if name in gates else "" for name in names)])
    body.append(["held by", *(f"{gates[name]['held']} of {gates[name]['chips']}" if name in gates else "" for name in names)])
    body.append(["mean |log|", *(_percent(gates[name]["mean_log"]) if name in gates else "" for name in names)])
    forecast = [Text(f"forecast {chip}: {_told(found)}") for chip, found in entry["forecasts"].items()]
    held = sum(gate["kept"] for gate in gates.values())
    title = page.heading("hindcasts", aside=f"predicted over measured or published figures; {held} of {len(gates)} gates are kept")
    marks = "! beyond its gate; ~ announced, no answer; steps are compared with those predicted from the chip's published figures"
    shown = page.grid(body, right=range(1, len(names) + 1), header=("", *BLIND_FIGURES.values()), wraps=0)
    return Group(
        title, page.indented(Group(shown, *(Text(line, "dim") for line in (marks, *_mean_gates(gates), *entry["notes"])), *forecast))
    )


def _ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    mark = "~" if found["kind"] == "announced" else "!" if found["holds"] is False else ""
    return f"{mark}{found['ratio']:.2f}"


def _mean_gates(gates: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What the mean of a figure must keep to, and does or does not."""
    for name, gate in gates.items():
        if (most := gate["mean_log_within"]) is not None:
            verb = "is" if gate["mean_log"] <= most else "is not"
            yield f"{name}: the mean size of the logarithm, {_percent(gate['mean_log'])}, {verb} within {_percent(most)}"


def _told(found: Mapping[str, float]) -> str:
    """Figures of a forecast in their units."""
    return ", ".join(f"{name} {show(found[name], unit)}" for name, unit in FORECAST.items() if name in found)


def table(name: str, entry: Mapping[str, Any]) -> Group:
    """Statistics of all rows and of each group, and below them why rows were skipped and what else is to be known."""
    found = list(rows(entry))
    extra = [key for key in ("rank_correlation", *_SHARES) if any(row.get(key) is not None for _, row in found)]
    header = ["", "n", *_ERRORS.values(), *(_SHARES.get(key, "rank correlation") for key in extra)]
    body = [[label, *_cells(row, extra)] for label, row in found]
    shown = page.grid(body, right=range(1, len(header)), header=header, wraps=0)
    remarks = [Text(remark, "dim") for remark in (*skipped(entry), *entry.get("notes", ()))]
    title = page.heading(name.replace("_", " "), aside=f"relative errors of {entry['n']} rows, {entry['skipped']} skipped")
    return Group(title, page.indented(Group(shown, *remarks)))


def rows(entry: Mapping[str, Any]) -> Iterator[PageRow]:
    """Every set of statistics of a table with its name: all rows, then the groups of each way of grouping."""
    yield "all", entry
    for way, groups in entry.get("by", {}).items():
        yield from ((f"{way} {name}", group) for name, group in groups.items())


def skipped(entry: Mapping[str, Any]) -> list[str]:
    """The commonest reasons why rows were skipped; JSON has all."""
    reasons = sorted(entry.get("skipped_reasons", {}).items(), key=lambda pair: -pair[1])
    told = [f"{count} skipped: {reason}" for reason, count in reasons[:_REASONS]]
    rest = reasons[_REASONS:]
    return told + ([f"{sum(count for _, count in rest)} skipped for {len(rest)} more reasons (--json)"] if rest else [])


def _cells(entry: Mapping[str, Any], extra: list[str]) -> Iterator[RenderableType]:
    yield page.count(entry["n"])
    for key in _ERRORS:
        yield _percent(entry.get(key))
    for key in extra:
        value = entry.get(key)
        yield _percent(value) if key in _SHARES or value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
