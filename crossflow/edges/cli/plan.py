"""`crossflow plan`: the best strategies of a scenario, as JSON or as a page."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.explanation.tornado import in_words
from crossflow.answers.planning.opening import ScenarioSource, unplanned
from crossflow.answers.planning.planner import plan
from crossflow.answers.planning.plans import Plans, RankedPlan
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import larger_is_better, unit_of
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count, dollars, percent
from crossflow.edges.cli.source import source_of

if TYPE_CHECKING:
    from crossflow.edges.launch.launch import Launch

_MONEY = ("usd_per_million_tokens", "usd_per_million_samples", "cost_usd")  # the first that is known is shown
_REASONS = 5  # that a page shows


def run(arguments: argparse.Namespace) -> None:
    """Plan the scenario with its overrides, and write the flags of the best plan where they are asked for."""
    if arguments.export is not None and arguments.output is not None:
        from crossflow.edges.cli import export  # with the tables of flags, which few plans need

        export.check_ending(arguments.output, arguments.export)
        files.check_new(arguments.output, replace=arguments.force)
    opened = None if arguments.diff else source_of(_on_one(arguments))  # once: standard input is read only once
    if (asked := of_requests(arguments, opened)) is not None:
        from crossflow.edges.cli import fleets  # with replays, which few plans need

        fleets.run(arguments, *asked, launch=opened[2] if opened is not None else None)
        return
    if opened is not None and (phases := unplanned(opened[0], arguments.settings))[0].phased:
        from crossflow.edges.cli import phased  # which few runs need

        phased.plan(arguments, *phases, opened[1])
        return
    if arguments.diff:
        from crossflow.edges.cli import diff  # with the tables of flags, which few plans need

        diff.run(arguments)
        return
    if arguments.export is None and (arguments.output is not None or arguments.force):
        raise CrossflowError(
            f"{'-o' if arguments.output is not None else '--force'} goes with --export or --diff: say which framework's flags to write"
        )
    from crossflow.edges.cli import export  # with the tables of flags, which few plans need

    plans, assumed, launch = planned(arguments, opened)
    found = export.exported(plans, arguments.export) if arguments.export is not None else None
    if arguments.json:
        data = {**plans.to_dict(), **({"assumptions": list(assumed)} if assumed else {})}
        data |= {"launch": launch.to_dict()} if launch is not None else {}
        page.emit_json(data | ({} if found is None else {"export": found.to_dict()}))
    elif found is None:
        page.emit(*sections(plans, assumed))
    elif arguments.output is not None:
        page.emit(*sections(plans, assumed, written=(found.kind, found.plan.strategy, export.inexpressible(plans, found.kind))))
    else:  # the flags alone, which may go on into a pipe
        for sentence in (*(f"assumed: {one}" for one in assumed), *(f"note: {one}" for one in plans.notes)):
            page.log(f"crossflow: {sentence}")
    if found is not None:
        export.deliver(found, arguments, launch)


Opened = tuple[ScenarioSource, tuple[str, ...], "Launch | None"]  # what describes a scenario, what was assumed, and a launch file


def _on_one(arguments: argparse.Namespace) -> argparse.Namespace:
    """The words of a command on the first of its systems."""
    if "," not in (arguments.on or ""):
        return arguments
    if arguments.requests is None:
        raise CrossflowError(
            f"--on {arguments.on}: plan takes several systems with --requests alone; "
            "crossflow compare sets steady states on them side by side"
        )
    return argparse.Namespace(**{**vars(arguments), "on": arguments.on.split(",")[0].strip()})


def of_requests(arguments: argparse.Namespace, opened: Opened | None) -> tuple[Scenario, tuple[str, ...]] | None:
    """The scenario where it has requests, with sentences on what was assumed; None for a steady state, which has no fleets.

    That of a launch file has those that the command gives it.
    """
    if opened is not None:
        scenario, _ = unplanned(opened[0], arguments.settings)  # whose own strategy is a kind of fleet, whatever the devices
        if scenario.requests is not None:
            return scenario, opened[1]
    only = {"--on-target": arguments.on_target, "--vary": arguments.vary, "--price": arguments.price, "--jobs": arguments.jobs}
    if given := next((name for name, value in only.items() if value), None):
        raise CrossflowError(f"{given} is of fleets for requests: give the scenario the key requests, or --requests with --model and --on")
    return None


def planned(arguments: argparse.Namespace, opened: Opened | None = None) -> tuple[Plans, tuple[str, ...], Launch | None]:
    """The plans that a command asks for, sentences on what was assumed, and the launch file that describes the scenario."""
    source, assumed, launch = opened or source_of(arguments)
    scenario, notes = unplanned(source, arguments.settings)
    if arguments.export is not None:
        from crossflow.edges.launch.launch import stacks

        known, named = stacks(arguments.export), scenario.stack  # of the framework that will run it, and of the scenario
        stack = known[0]
        if named is None or named.name in known:
            pass
        elif scenario.document.data.get("software") is None:
            scenario, notes = unplanned(source, [*arguments.settings, f"software={stack}"])
            other = "software: NAME in the scenario says otherwise"
            notes = (*notes, f"predicted with the software stack {stack}, that of {arguments.export}; {other}")
        else:
            own = f"that of {arguments.export} ranks them with --set software={stack}"
            notes = (*notes, f"plans are ranked with the software stack {named.name}, which the scenario names; {own}")
    plans = plan(scenario, top=arguments.top, objective=arguments.objective, margin=arguments.margin)
    return replace(plans, notes=(*notes, *plans.notes)), assumed, launch


WrittenPlan = tuple[str, str, frozenset[str]]  # a framework, the strategy that is written for it, and those listed that it cannot express


def sections(plans: Plans, assumed: Sequence[str] = (), written: WrittenPlan | None = None) -> list[RenderableType]:
    """The page: what was asked, the plans, the scenario's own one, why others fail, what would help."""
    return [headline(plans), page.assumptions(assumed), listed(plans, written), own(plans), refusals(plans), remedies(plans)]


def headline(plans: Plans) -> Group:
    """What is planned, on what, and how many strategies fit."""
    scenario = plans.scenario
    title = page.first_line(scenario.name, f"  {scenario.workload.model} on {scenario.fleet}")
    rows: dict[str, RenderableType] = {"plans": Text(plans.counts, "bold" if plans.fitting else "bold red")}
    rows["memory"] = f"{show(plans[0].capacity, 'B')} per device"
    if plans.tight:
        rows["tight"] = f"leaves less than {percent(plans.margin)} of memory (--margin)"
    rows["trust"] = page.trusted(plans.trust)
    if plans.tied:
        rows["ties"] = Text(plans.tied, "dim")
    if not plans[0].money:
        rows["money"] = Text(page.UNPRICED, "dim")
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in plans.notes]
    return Group(title, Text(), page.indented(page.pairs(rows)), *notes)


def listed(plans: Plans, written: WrittenPlan | None = None) -> Group:
    """The plans, best first, the one to take marked, or the one that is written, and then those that the framework cannot express."""
    money = next((name for name in _MONEY if name in plans[0].money), None)
    timed = plans.objective == "step_time_s"
    parts = [one.part for one in plans if one.part is not None]
    writes = any(part.engines is not None for part in parts)
    header = ["", "strategy", *(["engines", "devices"] if writes else []), *([] if timed else [in_words(plans.objective)])]
    header += ["step time", "memory", "left", "MFU"]
    header += [] if money is None else [_title(money)]
    header += ["power", *([] if written is None else [written[0]])]
    rows: list[list[RenderableType]] = []
    for one in plans:
        row: list[RenderableType] = [_mark(plans, one, written), Text(one.strategy, "bold" if one is plans.chosen else "")]
        row += [one.part.engines or "-", one.part.shares] if writes and one.part is not None else []
        row += [] if timed else [_figure(one.value, plans.objective)]
        row += [_time(one), show(one.needed, "B"), _left(one), percent(one.mfu) if one.feasible else "-"]
        row += [] if money is None else [dollars(one.money[money]).removesuffix(" USD") if money in one.money else "-"]
        rows.append([*row, show(one.power, "W"), *([] if written is None else ["no" if one.strategy in written[2] else "yes"])])
    automatic = "that `strategy: auto` takes" if plans.as_usual and not parts else "to take"
    title, aside = "Best plans", f"{_fancy('>')} marks the plan {automatic}"
    if written is not None:
        named = f"{_fancy('>')} marks the plan" if written[1] in [one.strategy for one in plans] else f"{written[1]} is the plan"
        aside = f"{named} that is written; {written[0]} cannot express those with no"
    if not plans.fitting:
        short = not plans[0].fits
        title, aside = ("Nearest to fitting", "least memory too much first") if short else ("Plans", "none of them can run")
    right = tuple(range(3 if writes else 2, len(header)))
    return Group(page.heading(title, aside=aside), page.indented(page.grid(rows, right=right, header=header, wraps=1)))


def _mark(plans: Plans, one: RankedPlan, written: WrittenPlan | None) -> str:
    marked = one is plans.chosen if written is None else one.strategy == written[1]
    return _fancy(">") if marked else ""


def _fancy(mark: str) -> str:
    return "▸" if page.fancy() else mark


def _time(one: RankedPlan) -> str:
    return show(one.step_time, "s") if math.isfinite(one.step_time) else "never ends"


def _left(one: RankedPlan) -> Text:
    if not one.feasible:
        return Text(f"{show(one.needed - one.capacity, 'B')} over" if one.needed > one.capacity else "-", "red")
    return Text(f"{percent(one.left)} tight", "yellow") if one.tight else Text(percent(one.left))


def _title(money: str) -> str:
    return {"usd_per_million_tokens": "USD/M tokens", "usd_per_million_samples": "USD/M samples"}.get(money, "USD to make")


def _figure(value: float, objective: str) -> str:
    unit = unit_of(objective)
    if not math.isfinite(value):
        return "-"
    return count(value) if unit in ("1", "USD") else show(value, unit)


def own(plans: Plans) -> Group:
    """The scenario's own strategy beside the one to take."""
    mine, best = plans.own, plans.chosen
    if mine is None:
        return Group()
    job = "" if mine.part is None else f"{_figure(mine.value, plans.objective)} per iteration, a step "
    told = f"{mine.strategy}: {job}{_time(mine)}, {show(mine.needed, 'B')}"
    if not mine.feasible:
        told += f", infeasible: {mine.reason}"
    elif best is not None and mine.strategy == best.strategy and mine.part == best.part:
        told += ", the one to take"
    elif best is not None:
        sign = -1.0 if larger_is_better(plans.objective) else 1.0
        worse = sign * (mine.value / best.value - 1.0) if best.value else math.nan
        rank = f", place {mine.rank:,} of {plans.fitting:,}" if mine.rank is not None else ""
        told += f"{rank}, {percent(abs(worse))} {'worse' if worse > 0 else 'better'} than {_named(best)}"
    return Group(page.heading("The scenario's own strategy"), page.indented(Text(told)))


def _named(one: RankedPlan) -> str:
    return one.strategy if one.part is None or one.part.engines is None else f"{one.strategy} with engines {one.part.engines}"


def refusals(plans: Plans) -> Group:
    """Why other strategies fail."""
    rows: list[list[RenderableType]] = []
    for refusal in plans.refusals[:_REASONS]:
        which = f"{refusal.strategy}, the nearest, {refusal.reason}" if refusal.lacking is not None else refusal.reason
        rows.append([f"{refusal.count:,}", which])
    return page.section("Why others fail", rows, (0,), wraps=1)


def remedies(plans: Plans) -> Group:
    """What would make the nearest plan fit, where none does."""
    if not plans.remedies:
        return Group()
    cures = Text("\n").join(Text(sentence) for sentence in plans.remedies)
    return Group(page.heading("What would help", aside=f"with {plans[0].strategy}"), page.indented(cures))
