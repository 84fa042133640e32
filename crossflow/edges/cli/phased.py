"""A run of several phases as a whole: what `crossflow plan` and `crossflow explain` show of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.explanation.phased import RunExplanation, explain_run
from crossflow.answers.explanation.tornado import in_words
from crossflow.answers.planning.phased import RunPlans, plan_run
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import unit_of
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import dollars, percent
from crossflow.edges.trace.months import DAY

_LEAST = 5e-5  # gain of a total from which on it is told


def plan(arguments: argparse.Namespace, scenario: Scenario, notes: Sequence[str], assumed: Sequence[str]) -> None:
    """The best plan of each phase, and the run with them."""
    if arguments.export is not None or arguments.output is not None:
        raise CrossflowError(
            "--export writes one plan, and each phase of the run has its own; give the settings of a phase with --set, "
            "and its length as run.tokens or run.steps"
        )
    plans = plan_run(scenario, top=arguments.top, objective=arguments.objective, margin=arguments.margin)
    if arguments.json:
        found = {**plans.to_dict(), "notes": [*notes, *plans.notes]}
        page.emit_json({**found, **({"assumptions": list(assumed)} if assumed else {})})
    else:
        page.emit(_planned(plans, notes), page.assumptions(assumed), _plans(plans))


def explain(arguments: argparse.Namespace, scenario: Scenario, assumed: Sequence[str]) -> None:
    """What brings most to the whole run."""
    if arguments.plot is not None:
        raise CrossflowError(
            "--plot draws the ranges of one phase; give its settings with --set, and its length as run.tokens or run.steps"
        )
    found = explain_run(scenario, arguments.objective)
    if arguments.json:
        page.emit_json({**found.to_dict(), **({"assumptions": list(assumed)} if assumed else {})})
    else:
        told = [_reliability(found, arguments.top), Group(Text(), *(Text(note, "dim") for note in found.notes))]
        page.emit(_explained(found), _effects(found, arguments.top, whole=arguments.all), *told, page.assumptions(assumed))


def _planned(plans: RunPlans, notes: Sequence[str]) -> Group:
    scenario = plans.scenario
    rows: dict[str, RenderableType] = {
        "run": Text(_total(plans.total) or "not every phase has a plan that fits", "bold" if plans.total else "bold red")
    }
    if plans.own:
        rows["with its own strategies"] = _total(plans.own)
    told = [page.indented(Text(f"note: {note}", "yellow")) for note in (*notes, *plans.notes)]
    return Group(page.first_line(scenario.name, f"  a run of {len(plans.phases)} phases"), Text(), page.indented(page.pairs(rows)), *told)


def _total(total: Mapping[str, float]) -> str:
    parts = [f"{total['time_s'] / DAY:,.4g} days"] if total else []
    return ", ".join([*parts, *([dollars(total["cost_usd"])] if "cost_usd" in total else [])])


def _plans(plans: RunPlans) -> Group:
    rows: list[list[RenderableType]] = []
    for name, found in plans.phases.items():
        one, own = found.chosen, "-" if found.own is None else found.own.strategy
        if one is None:
            rows.append([name, Text(f"none fits: {found[0].reason}", "red"), "-", "-", "-", "-", own])
            continue
        engines = "" if one.part is None or one.part.engines is None else f", engines {one.part.engines} on {one.part.shares}"
        step = one.step_time if one.part is None else one.part.iteration
        left = f"{percent(one.left)}{' tight' if one.tight else ''}"
        time = plans.times[name]
        share = percent(time / plans.total["time_s"]) if plans.total else "-"
        rows.append([name, f"{one.strategy}{engines}", f"{time / DAY:,.4g}", share, show(step, "s"), left, own])
    header = ("phase", "strategy", "days", "share", "step", "left", "its own")
    return page.section("Best plan of each phase", rows, (2, 3, 4, 5), header=header, aside="left: share of memory", wraps=1)


def _explained(found: RunExplanation) -> Group:
    value = dollars(found.value) if found.objective.endswith("usd") else show(found.value, unit_of(found.objective))
    rows: dict[str, RenderableType] = {in_words(found.objective): Text(value, "bold")}
    rows["phases"] = ", ".join(f"{name} {percent(share)}" for name, share in found.shares.items())
    for name, one in found.phases.items():
        rows[f"{name} is bound by"] = ", ".join(f"{resource} {percent(share)}" for resource, share in one.bound.items())
    title = page.first_line(found.scenario.name, f"  a run of {len(found.phases)} phases on {found.scenario.fleet}")
    return Group(title, Text(), page.indented(page.pairs(rows)))


def _effects(found: RunExplanation, top: int, *, whole: bool) -> Group:
    shown = [one for one in found.effects if abs(one.gain) >= _LEAST and (whole or one.group != "constant")]
    rows: list[list[RenderableType]] = [
        [one.path, *map(_signed, (one.gain, *one.phases.values())), f"{one.elasticity:+.3f}"] for one in shown[:top]
    ]
    header = ("parameter", "10 % gain", *found.phases, "elasticity")
    more = [f"{len(shown) - len(rows)} more in --json"] if len(shown) > len(rows) else []
    aside = "; ".join(["a gain is the sum of what it brings to the phases", *more])
    return page.section("What brings most to the run", rows, range(1, len(header)), aside=aside, header=header, wraps=0)


def _reliability(found: RunExplanation, top: int) -> Group:
    rows: list[list[RenderableType]] = [[name, _signed(gain)] for name, gain in [*_told(found.reliability)][:top]]
    return page.section("A tenth less of what interrupts the run", rows, (1,), header=("cause and part", "gain"))


def _told(gains: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, gain) for name, gain in gains.items() if gain >= _LEAST / 10)


def _signed(gain: float) -> str:
    return f"{100 * gain:+.2f} %" if gain else "-"
