"""`crossflow plan` of a scenario with requests: the cheapest fleets, as JSON, as a page, as a picture, and the launch files of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.fleets.ranking import Fleets, RankedFleet, check_of_fleets, plan_fleets
from crossflow.answers.planning.comparing import prices_of
from crossflow.answers.scenario import Scenario
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count, percent, percent_beside
from crossflow.edges.cli.progress import progress
from crossflow.edges.cli.varying import varied

if TYPE_CHECKING:
    from crossflow.edges.launch.launch import Launch

PICTURES = (".png", ".svg")
_REASONS = 5  # that a page shows


def run(arguments: argparse.Namespace, scenario: Scenario, assumed: Sequence[str], launch: Launch | None = None) -> None:
    """Plan fleets for the requests of a scenario, of a launch file where one describes it, and write what is asked for."""
    check_of_fleets(arguments.objective, arguments.margin)
    if arguments.diff:
        raise CrossflowError("--diff sets the flags of one service beside those of its best plan; without --diff fleets are planned")
    drawn = arguments.output is not None and arguments.export is None
    if drawn and arguments.output.suffix.lower() not in PICTURES:
        raise CrossflowError(
            f"-o {arguments.output}: without --export a picture is written; name it {arguments.output.with_suffix('.png')}"
        )
    if drawn:
        files.check_new(arguments.output, replace=arguments.force)
    with progress("kinds of fleets") as report:
        found = plan_fleets(
            scenario, top=arguments.top, share=arguments.on_target, space=space_of(arguments), jobs=arguments.jobs,
            told=lambda done, of: report(done, of, ""),
        )  # fmt: skip
    text = None if arguments.export is None else exported(found, arguments.export)
    if arguments.json:
        data = found.to_dict() | ({"assumptions": list(assumed)} if assumed else {})
        page.emit_json(data | ({} if text is None else {"export": {"kind": arguments.export, "text": text}}))
    elif text is None or arguments.output is not None:
        page.emit(*sections(found, assumed))
    else:
        page.emit(Text(text), unbroken=True)
    if text is not None and arguments.output is not None:
        files.write_text(arguments.output, text)
    elif drawn:
        for path in found.plot().save(arguments.output):
            page.log(f"crossflow: wrote {path}")
    if text is not None:
        for note in other_engine(found[0].scenario, arguments.export):
            page.log(f"crossflow: note: {note}")
        page.log(f"crossflow: {'wrote ' + str(arguments.output) + ': ' if arguments.output else ''}{found[0].name} is written")
        from crossflow.edges.cli.export import left_out  # with the tables of flags, which few plans need

        for sentence in left_out(launch, arguments.export, text):
            page.log(f"crossflow: {sentence}")
    if found.run.interrupted:
        raise KeyboardInterrupt  # with the status of a command that was interrupted; what was found stands above


def other_engine(scenario: Scenario, kind: str) -> Iterator[str]:
    """What to say where a fleet was sized with the order of work of another engine than its launch file starts."""
    works = None if scenario.stack is None else scenario.stack.engine.scheduler
    if works not in (None, kind) and kind != "dynamo":
        yield f"the fleet was sized with the order of work of {works}, and the file starts {kind}; size it with --set software={kind}"


def exported(found: Fleets, kind: str) -> str:
    """The launch file of the cheapest fleet; CrossflowError where the framework cannot express it."""
    if found.best is None:
        raise CrossflowError(f"there is nothing to export: {found.notes[-1]}")
    return found.best.export(kind)


def space_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What fleets may differ in: systems with their prices, and values of any path."""
    space: dict[str, Any] = {}
    systems = [name.strip() for name in (arguments.on or "").split(",") if name.strip()]
    known = prices_of(arguments.price, systems) if arguments.price else {}
    if len(systems) > 1:
        space["on"] = {name: {"system.template": name} | _price(known.get(name)) for name in systems}
        if 0 < len(known) < len(systems):
            lacking = ", ".join(name for name in systems if name not in known)
            raise CrossflowError(f"--price has none for {lacking}; give every system one, or none: fleets are then in order of devices")
    for text in arguments.vary:
        path, values = varied(text, "workload.serving.chunk=2048,8192")
        space[path] = values
    return space


def _price(price: float | None) -> dict[str, str]:
    return {} if price is None else {"system.operation.price": f"{price * 3600.0:.10g} USD/hour"}


def sections(found: Fleets, assumed: Sequence[str] = ()) -> list[RenderableType]:
    """The page: what was asked, the fleets, why others are not listed."""
    return [headline(found), page.assumptions(assumed), listed(found), refusals(found)]


def headline(found: Fleets) -> Group:
    """What is planned, for which requests, and how many kinds were searched."""
    scenario, first = found.scenario, found.fleets[0]
    title = page.first_line(scenario.name, f"  {scenario.workload.model}, {first.figures['replayed_requests']:,.0f} requests")
    rows: dict[str, RenderableType] = {"fleets": Text(found.counts, "bold" if found.best is not None else "bold red")}
    rows["targets"] = f"met by at least {percent(found.share)} of the requests"
    rows["trust"] = page.trusted(found.trust)
    if found.tied:
        rows["ties"] = Text(found.tied, "dim")
    if not found.priced:
        rows["money"] = Text(page.UNPRICED, "dim")
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in found.notes]
    return Group(title, Text(), page.indented(page.pairs(rows)), *notes)


def listed(found: Fleets) -> Group:
    """The fleets, cheapest first."""
    money = ["USD/hour", "USD/M tokens"] if found.priced else []
    header = ["", "fleet", "devices", *money, "on target", "TTFT p99", "TPOT p99", "goodput", "tok/s/device", "tok/s/user"]
    rows = [_row(one, found) for one in found]
    aside = "each the smallest of its kind" if found.best is not None else "none meets the targets"
    return Group(
        page.heading("Cheapest fleets", aside=aside),
        page.indented(page.grid(rows, right=tuple(range(2, len(header))), header=header, wraps=1)),
    )


def _row(one: RankedFleet, found: Fleets) -> list[RenderableType]:
    told = one.figures
    money: list[RenderableType] = [f"{one.usd_per_hour:,.2f}", f"{one.usd_per_million_tokens:.3g}"] if found.priced else []
    tied = found.best is not None and one.name in (found.best.tied_with or ())
    return [
        Text("▸" if one is found.best else "=" if tied else ""), Text(one.name, "bold" if one is found.best else ""), f"{one.devices:,}",
        *money, percent_beside(told["attained"], found.share), show(told["ttft_p99_s"], "s"), show(told["tpot_p99_s"], "s"),
        f"{count(told['goodput_per_s'])}/s", count(one.device_rate), count(one.user_rate),
    ]  # fmt: skip


def refusals(found: Fleets) -> Group:
    """Why other kinds are not listed, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for kind, reason in found.refused:
        reasons.setdefault(reason, []).append(kind.name)
    rows: list[list[RenderableType]] = [
        [f"{len(names):,}", f"{reason} ({names[0]}{', ...' if len(names) > 1 else ''})"]
        for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))[:_REASONS]
    ]
    return page.section("Why others are not listed", rows, (0,), wraps=1)
