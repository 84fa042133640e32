"""`crossflow serve`: requests replayed through a service, as JSON, as a page, as a picture, as a table of all requests."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.planning.asking import serve
from crossflow.answers.service.served import ServedRequests
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.outputs import ANSWER, TRACE, check_outputs, write_answer
from crossflow.edges.cli.page import count, dollars, percent
from crossflow.edges.cli.predict import provenance_of
from crossflow.edges.cli.source import scenario_of
from crossflow.edges.trace.requests import write_requests

TIMES = {"ttft_s": "first token", "tpot_s": "per output token", "itl_s": "between tokens", "e2e_s": "whole request"}
SHOWN = ("mean", "p50", "p90", "p95", "p99")


def run(arguments: argparse.Namespace) -> None:
    """Replay the requests of the scenario, and show or write what is asked for."""
    check_outputs(arguments.output, "requests")
    scenario, assumed = scenario_of(arguments)
    page.log_choices(scenario, assumed)
    found = serve(scenario, stream=arguments.stream)
    for path in arguments.output:
        write(found, path)
    if arguments.json:
        page.emit_json({**found.to_dict(), **({"assumptions": list(assumed)} if assumed else {})})
    elif not arguments.output:
        page.emit(*sections(found, assumed))


def write(found: ServedRequests, path: Path) -> None:
    """One file, by its ending."""
    if path.suffix.lower() != ANSWER and not found.feasible:
        raise CrossflowError(f"{path} is not written: {found.reason}")
    if path.name.lower().endswith(TRACE):
        events = write_requests(found, path)
        page.log(f"wrote {path}: {events:,} events; open it in ui.perfetto.dev")
        return
    write_answer(found, path)


def sections(found: ServedRequests, assumed: Sequence[str] = ()) -> list[RenderableType]:
    """The page: verdict and trust, times with their tails, classes, what engines did, where it comes from."""
    head = [_headline(found), page.assumptions(assumed)]
    if not found.feasible:
        return [*head, provenance_of(found.scenario)]
    return [*head, _times(found), _classes(found), _engines(found), provenance_of(found.scenario)]


def _headline(found: ServedRequests) -> Group:
    """Scenario, verdict, and the figures asked for first."""
    scenario = found.scenario
    what = f"{scenario.workload.model} on {scenario.fleet}, strategy {scenario.strategy_text}"
    rows: dict[str, RenderableType] = {"verdict": _verdict(found)}
    if found.feasible:
        rows |= {"trust": page.trusted(found.trust), "tails": page.trusted(found.trusts["tails"]), **_answers(found)}
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in found.notes]
    return Group(page.first_line(scenario.name, "  ", what), Text(), page.indented(page.pairs(rows)), *notes)


def _verdict(found: ServedRequests) -> Text:
    """Whether it works, and how many requests were served as they should."""
    if not found.feasible:
        return Text.assemble(("infeasible: ", "bold red"), (str(found.reason), "red"))
    many = f"{len(found.trace):,} requests in {show(found.span, 's')}"
    if found.attained is None:
        return Text.assemble(("served", "bold green"), f": {many}; no targets are set (requests.targets)")
    style = "bold green" if found.attained >= 0.99 else "bold yellow" if found.attained >= 0.9 else "bold red"
    share = "over 99.9 %" if 0.9995 <= found.attained < 1.0 else percent(found.attained)
    return Text.assemble((f"{share} within targets", style), f": {many}")


def _answers(found: ServedRequests) -> dict[str, RenderableType]:
    cache, queue = found.cache, found.queue
    good = "" if found.goodput is None else f", {count(found.goodput)} within targets"
    hits = "" if cache["hit_rate"] is None else f"; {percent(float(cache['hit_rate']))} of prompt tokens hit the prefix cache"
    spent = found.cost["usd_per_million_output_tokens"]
    money: RenderableType = Text(page.UNPRICED, "dim")
    if spent is not None:
        money = f"{dollars(spent)} per million output tokens, {dollars(float(found.cost['usd_per_request'] or 0.0))} per request"
    begins = "" if math.isnan(found.phases.filled) else f"{show(found.phases.filled, 's')} until the load is steady; "
    return {
        "requests a second": f"{count(found.requests_per_second)}{good}",
        "output": f"{count(found.output_tokens_per_second)} tokens/s",
        "queue": f"{queue['mean']:.3g} requests on average, {queue['peak']:,.0f} at most; each waits {show(queue['mean_wait_s'], 's')}",
        "cache": f"{percent(float(cache['mean_use'] or 0.0))} in use, {percent(float(cache['peak_use'] or 0.0))} at most, of "
        f"{cache['tokens']:,.0f} tokens per engine{hits}",
        "preemptions": f"{found.preemptions:,}",
        **({} if found.adapter_loads is None else {"adapters": f"{found.adapter_loads:,} fetched from the host"}),
        **_comings(found),
        "energy": f"{show(found.energy / found.written, 'J')} per output token, {show(found.power, 'W')} in total",
        "money": money,
        "warm-up": f"{begins}{show(found.phases.emptied, 's')} from the last arrival to the end",
    }  # fmt: skip


def _comings(found: ServedRequests) -> dict[str, RenderableType]:
    """What became of engines that fail, start and stop."""
    told: dict[str, RenderableType] = {}
    if (failed := found.availability) is not None:
        told["failures"] = (
            f"{failed['failures']:,.0f} of engines, which served {percent(failed['available'])} of their time; "
            f"{percent(failed['lost_work'])} of computed tokens were lost, of {failed['moved_requests']:,.0f} requests that went elsewhere"
        )
    if (running := found.running) is not None:
        told["replicas"] = f"{running['mean']:.3g} run on average, {running['most']:,.0f} at most; {running['started']:,.0f} were started"
    return told


def _times(found: ServedRequests) -> Group:
    """Times with their tails; below each the half of its 95 % interval where the run is long enough."""
    rows: list[list[RenderableType]] = []
    for name, label in TIMES.items():
        rows.append([label, *(_time(found.latency[name][one]) for one in SHOWN)])
        if name in found.confidence and any(found.confidence[name].values()):
            rows.append([Text("  ±", "dim"), *(Text(_time(found.confidence[name][one]), "dim") for one in SHOWN)])
    return page.section("Times", rows, range(1, 6), header=("", *SHOWN), aside="± half of the 95 % interval, from the autocorrelation")


def _time(value: float | None) -> str:
    return "" if value is None else show(value, "s")


def _classes(found: ServedRequests) -> Group:
    """Figures by class, where there are several."""
    if len(found.classes) < 2:
        return Group()
    rows: list[list[RenderableType]] = [
        [str(one["name"]), f"{one['requests']:,}", "" if one["attained"] is None else percent(one["attained"]),
         *(_time(one[name][tail]) for name in ("ttft_s", "tpot_s") for tail in ("p50", "p99"))]
        for one in found.classes
    ]  # fmt: skip
    header = ("class", "requests", "on target", "TTFT p50", "p99", "TPOT p50", "p99")
    return page.section("By class", rows, range(1, 7), header=header)


def _engines(found: ServedRequests) -> Group:
    """What the engines of each kind did, in the mean."""
    rows: list[list[RenderableType]] = []
    busy = iter(found.utilisation)
    for kind, (steps, written) in zip(found.run.kinds, found.steps, strict=True):
        share = sum(next(busy) for _ in range(kind.count)) / kind.count
        name = "read and write" if kind.limits.reads and kind.limits.writes else "write" if kind.limits.writes else "read prompts"
        name += f" ({kind.pool})" if kind.pool else ""
        rows.append([name, f"{kind.count:,}", percent(share), f"{steps:,.0f}", f"{written / max(steps, 1.0):,.1f}"])
    if (encoders := found.encoders) is not None:
        rows.append(["encode images", f"{encoders['count']:,.0f}", percent(encoders["utilisation"]), f"{encoders['requests']:,.0f}", "1.0"])
    return page.section("Engines", rows, range(1, 5), header=("", "engines", "busy", "steps", "requests a step"))
