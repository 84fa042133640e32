"""`crossflow requests`: what a trace of requests holds, or requests that are drawn, as JSON or as a page; as a picture, or as a trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

import crossflow
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count, percent
from crossflow.workload.requests.describe import TARGETS, DescribedRequests, LengthSpread
from crossflow.workload.requests.picture import rate_line
from crossflow.workload.requests.tables import ending
from crossflow.workload.requests.words import lasting
from crossflow.workload.requests.writing import KINDS

PICTURES = (".png", ".svg")
_SPARKS = "▁▂▃▄▅▆▇█"
SPARKS = 56  # columns of the line of arrivals


def run(arguments: argparse.Namespace) -> None:
    """Describe the requests, and write what is asked for."""
    for path in arguments.output:
        _check_output(path, arguments.file)
    found = crossflow.requests(arguments.file, arguments.settings)
    if arguments.json:
        page.emit_json(found.to_dict())
    else:
        page.emit(*sections(found))
    for path in arguments.output:
        for written in _written(found, path):
            page.log(f"crossflow: wrote {written}")


def _check_output(path: Path, source: Path) -> None:
    """CrossflowError for a file that cannot be written, before anything is read."""
    if path.suffix.lower() not in PICTURES and ending(path) not in KINDS:
        raise CrossflowError(f"{path}: expected a picture (.png, .svg) or requests (.csv, .jsonl, also with .gz)")
    files.check_writable(path, "-o")
    page.check_apart(path, [source])


def _written(found: DescribedRequests, path: Path) -> list[Path]:
    with files.named_by("-o"):
        return found.plot().save(path) if path.suffix.lower() in PICTURES else [found.write(path)]


def sections(found: DescribedRequests) -> list[RenderableType]:
    """The page: how requests arrive, how long they are, what follows what, classes, notes."""
    parts = [headline(found), lengths(found)]
    if len(found.trace.classes) > 1 or any(getattr(found.trace.classes[0], key) is not None for key in TARGETS):
        parts.append(classes(found))
    return [*parts, *(page.indented(Text(f"note: {note}", "dim")) for note in found.notes)]


def headline(found: DescribedRequests) -> Group:
    """What there is, and how it arrives."""
    span = found.arrivals.span
    at_once = ", all at once" if found.sessions == len(found) else ", each after the last of its user"
    what = f"  {len(found):,} requests" + (f" in {lasting(span)}" if span else at_once)
    return Group(page.first_line(found.name, what), Text(), page.indented(page.pairs(dict(_rows(found)))))


def _rows(found: DescribedRequests) -> Iterator[tuple[str, RenderableType]]:
    arrivals, trace = found.arrivals, found.trace
    if arrivals.rate is not None and arrivals.peak is not None:
        aside = ", as if answers took no time" if (~trace.first).any() else ""
        yield "arrivals", f"{arrivals.rate:.3g} a second, {arrivals.peak:.3g} in the busiest {lasting(arrivals.window)}{aside}"
        if arrivals.cv is not None and arrivals.dispersion is not None:
            windows = f"counts of {lasting(arrivals.window)} with variance {arrivals.dispersion:.3g} times their mean"
            yield "burstiness", f"gaps with cv {arrivals.cv:.3g}, {windows} (1 and 1 for Poisson arrivals)"
        if page.fancy():
            yield "over time", sparks(found)
        yield "tokens", f"{count(arrivals.rate * found.prompt.mean)} a second in, {count(arrivals.rate * found.output.mean)} out"
    if (follow := int((~trace.first).sum())) > 0:
        pause = LengthSpread.of(trace.pause[~trace.first])
        sessions = f"{found.sessions:,} sessions or users of {len(found) / found.sessions:.3g} requests on average"
        yield "sessions", f"{sessions}; {follow:,} follow others, after a pause of {show(pause.mean, 's', 3)} on average"
    if found.seen is not None:
        yield "prefixes", f"{percent(found.seen)} of prompt tokens begin an earlier prompt too, in blocks of {trace.block} tokens"


def sparks(found: DescribedRequests) -> Text:
    """Arrivals over time as a line of bars, the highest at the largest rate."""
    line = rate_line(found.trace.arrival, SPARKS)
    top = float(line.rates.max())
    bars = "".join(_SPARKS[min(int(8 * rate / top), 7)] if rate else " " for rate in line.rates)
    return Text.assemble((bars, "cyan"), (f"  {lasting(line.window)} each", "dim"))


def lengths(found: DescribedRequests) -> Group:
    """Prompts and outputs."""
    header = ("", "mean", "p50", "p90", "p99", "longest")
    rows = [
        (name, *(f"{value:,.0f}" for value in spread.to_dict().values()))
        for name, spread in (("prompt", found.prompt), ("output", found.output))
    ]
    related = "" if found.correlation is None else f"rank correlation of prompt and output {round(found.correlation, 2) + 0.0:.2f}"
    return Group(page.heading("Tokens", aside=related), page.indented(page.grid(rows, right=range(1, 6), header=header)))


def classes(found: DescribedRequests) -> Group:
    """Classes with their targets."""
    named = [key for key in TARGETS if any(getattr(one, key) is not None for one in found.trace.classes)]
    header = ("class", "requests", "prompt", "output", "priority", *(key.upper() if key != "e2e" else "end to end" for key in named))
    rows = []
    for i, one in enumerate(found.trace.classes):
        data = found.of_class(i)
        means = ("-" if data[f"{key}_tokens"] is None else f"{data[f'{key}_tokens']:,.0f}" for key in ("prompt", "output"))
        targets = ("-" if getattr(one, key) is None else show(getattr(one, key), "s", 3) for key in named)
        rows.append((one.name, f"{data['requests']:,}", *means, str(one.priority), *targets))
    return Group(
        page.heading("Classes", aside="mean tokens; targets"),
        page.indented(page.grid(rows, right=range(1, len(header)), header=header, wraps=0)),
    )
