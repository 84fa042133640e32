"""`crossflow events`: the different events of a step, as JSON, as a page, or as a table to be filled with measured times."""

from __future__ import annotations

import argparse

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.evaluation.events import Event, EventList, events
from crossflow.answers.scenario import Scenario
from crossflow.base.files import check_writable, named_by, write_text
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.source import scenario_of

_SHOWN = 24  # events on a page


def run(arguments: argparse.Namespace) -> None:
    """List the events of the scenario with its overrides."""
    if arguments.output is not None:
        check_writable(arguments.output, "-o")
    scenario, assumed = scenario_of(arguments)
    page.log_choices(scenario, assumed)
    found = events(scenario)
    if arguments.output is not None:
        with named_by("-o"):
            write_text(arguments.output, found.to_csv())
        page.log(f"wrote {arguments.output}")
    if arguments.json:
        page.emit_json(found.to_dict())
    elif arguments.output is None:
        page.emit(headline(scenario, found), table(found))


def headline(scenario: Scenario, found: EventList) -> Group:
    """How many events there are, how often they recur, and what measuring them would cost."""
    title = page.first_line(scenario.name, f"  {scenario.own_fleet}, strategy {scenario.strategy_text}")
    rows: dict[str, RenderableType] = {
        "events": f"{len(found.events)} different, {page.count(found.recurrences)} in a step of all devices",
        "to measure": f"{show(found.profiling, 's')} of device-time on two nodes; a step takes {show(found.step, 's')}",
    }
    return Group(title, Text(), page.indented(page.pairs(rows)), Text())


def table(found: EventList) -> Group:
    """The events that take most time on all devices."""
    rows = [_row(event, found.step) for event in found.events[:_SHOWN]]
    more = len(found.events) - _SHOWN
    note = [Text(f"and {more} more; -o FILE.csv writes all of them, as a profile", "dim")] if more > 0 else []
    return Group(*page.columns_of(("event", "shape", "type", "ranks", "time", "recurs", "of a step"), rows), *note)


def _row(event: Event, step: float) -> tuple[str, ...]:
    ranks = f"{event.ranks} {event.scope}" if event.ranks > 1 else ""
    share = event.time * event.count * event.ranks / step
    return event.op, event.shape, event.dtype, ranks, show(event.time, "s"), page.count(event.count), f"{share:.1%}"
