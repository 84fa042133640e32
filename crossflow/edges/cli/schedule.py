"""`crossflow schedule`: jobs of a cluster, as JSON, as a page, as a picture, as a table of all jobs, as a trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.cluster.schedule import ScheduledJobs, schedule
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.outputs import TRACE, check_outputs, write_answer
from crossflow.edges.cli.page import count, dollars, percent
from crossflow.workload.requests.words import lasting

SHOWN = ("mean", "p50", "p90", "p99")
KINDS = {
    "useful": "running", "loading": "loading", "lost_work": "work that is lost", "saving": "saving", "fragmented": "free, not together",
    "idle": "no job",
}  # fmt: skip
MOST_CLASSES = 20  # of a page


def run(arguments: argparse.Namespace) -> None:
    """Schedule the jobs of a cluster, and show or write what is asked for."""
    check_outputs(arguments.output, "jobs")
    found = schedule(arguments.cluster, arguments.settings)
    for path in arguments.output:
        if path.name.lower().endswith(TRACE):
            page.log(f"wrote {found.to_perfetto(path)}; open it in ui.perfetto.dev")
        else:
            write_answer(found, path)
    if arguments.json:
        page.emit_json(found.to_dict())
    elif not arguments.output:
        page.emit(*sections(found))


def sections(found: ScheduledJobs) -> list[RenderableType]:
    """The page: what it is and took, where devices went, how long jobs waited, by class."""
    what = f"{found.cluster.system.in_words(found.found.room.devices)}, {found.cluster.policy.kind}"
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in found.notes]
    head = Group(page.first_line(found.cluster.name, "  ", what), Text(), page.indented(page.pairs(dict(_answers(found)))), *notes)
    return [head, _devices(found), _waiting(found)]


def _answers(found: ScheduledJobs) -> Iterator[tuple[str, RenderableType]]:
    money, carbon, embodied = found.cost, found.carbon, found.embodied_carbon
    yield "jobs", f"{len(found.found.jobs):,} in {lasting(found.span)} from the first arrival to the last end"
    if found.trust is not None:
        yield "trust", page.trusted(found.trust)
    yield "queues", page.trusted(found.trusts["queues"])
    yield "in use", f"{percent(found.utilisation)} of the devices on average"
    yield "queue", f"{found.queue:.3g} jobs wait on average, each {lasting(float(found.waiting['mean'] or 0.0))}"
    if found.boxless is not None:
        yield "slices", f"on average a job waits {lasting(found.boxless)} while enough devices are free, but not together"
    if found.shared is not None:
        mean, tail = (f"{value:.3g}" for value in (found.shared.mean(), found.shared.max()))
        yield "shared links", f"jobs take {mean} times as long as without others on average, {tail} times at most"
        yield "links", page.trusted(found.trusts["links"])
    if found.cluster.policy.kind in ("gang", "preemptive"):
        yield "preemptions", f"{int(found.found.preemptions.sum()):,}"
    yield "power", f"{show(found.power, 'W')} on average, {show(found.account.peak_power, 'W')} at most"
    yield "energy", show(found.energy, "J")
    yield "money", Text(page.UNPRICED, "dim") if money is None else f"{dollars(money)} for all devices, idle ones included"
    yield (
        "carbon",
        Text("unknown: system.operation.carbon_intensity or carbon_by_hour gives it", "dim") if carbon is None else show(carbon, "kg"),
    )
    if embodied is not None:
        yield "embodied carbon", show(embodied, "kg")


def _devices(found: ScheduledJobs) -> RenderableType:
    """Where the time of all devices went."""
    times = found.account.device_time
    whole = sum(times.values())
    rows = [[KINDS[kind], count(time / 3600.0), percent(time / whole)] for kind, time in times.items() if time > 0]
    return page.section("Devices", rows, (1, 2), header=("", "device-hours", "share"))


def _waiting(found: ScheduledJobs) -> RenderableType:
    """How long jobs waited, all and by class, and how much longer they took than alone."""
    every: dict[str, Any] = {
        "name": "all",
        "jobs": len(found.found.jobs),
        "waiting_s": found.waiting,
        "slowdown": found.to_dict()["slowdown"],
    }
    shown = found.classes[:MOST_CLASSES]
    listed: list[Mapping[str, Any]] = [every, *(shown if len(found.classes) > 1 else ())]
    rows = [
        [str(one["name"]), f"{one['jobs']:,}", *(lasting(float(one["waiting_s"][tail] or 0.0)) for tail in SHOWN),
         *(f"{one['slowdown'][tail]:.3g}" for tail in ("mean", "p99"))]
        for one in listed
    ]  # fmt: skip
    left = len(found.classes) - len(shown)
    aside = f"{left:,} more classes are in --json" if left > 0 else "slowdown: time from arrival to end over running time"
    header = ("", "jobs", "mean", "p50", "p90", "p99", "slowdown", "p99")
    return page.section("Waiting", rows, range(1, 8), header=header, aside=aside)
