"""`crossflow plan --from FILE --diff`: what to change in a launch file so that it means the best plan, and what that gains."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.answers.bands import ties
from crossflow.answers.evaluation.likeness import likeness
from crossflow.answers.planning.plans import Plans, RankedPlan, follows_from_time
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import larger_is_better, unit_of, words
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import export, page
from crossflow.edges.cli.page import percent
from crossflow.edges.cli.plan import planned
from crossflow.edges.cli.source import STDIN
from crossflow.edges.launch.difference import FlagChange, changes, rewritten, shortfall
from crossflow.edges.launch.launch import Launch


@dataclass(frozen=True, kw_only=True)
class PlanDifference:
    """A file's own plan and the best one that its framework can express, and the flags between them.

    Attributes
    ----------
    own, best : the plans; the best is the own one where nothing is better.
    changes : flags to add, remove and change; none where the own plan is the best.
    gain : how much better the best is by the objective, as a share; None where the own plan has no end or does not fit. [1]
    tied : whether measured runs do not tell one from the other; None where none tell.
    skipped : why better plans are passed over: the framework cannot express them; empty where none is.
    shortfall : what the file still means otherwise with the changes, in a sentence; empty where nothing.
    """

    own: RankedPlan
    best: RankedPlan
    changes: tuple[FlagChange, ...]
    gain: float | None
    tied: bool | None
    skipped: str
    shortfall: str = ""

    def to_dict(self, launch: Launch, objective: str) -> dict[str, Any]:
        """Plain data of the command-line contract."""
        kept = {key: [vars(remark) for remark in getattr(launch, key)] for key in ("unmodelled", "ignored", "notes")}
        return {
            "file": launch.file, "kind": launch.kind, "own": self.own.to_dict(objective), "best": self.best.to_dict(objective),
            "changes": [change.to_dict() for change in self.changes], "gain": self.gain, "tied": self.tied, "skipped": self.skipped or None,
            "shortfall": self.shortfall or None, "kept": kept,
        }  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Compare a launch file with the best plan, and write the changed file where one is asked for."""
    if arguments.launch is None:
        raise CrossflowError("--diff compares the flags of a launch file with the best plan: name it with --from FILE")
    if arguments.export is not None:
        raise CrossflowError("--diff shows what to change in the file, --export writes another one; give one of them")
    if arguments.output is not None:
        files.check_new(arguments.output, replace=arguments.force)
    elif arguments.force:
        raise CrossflowError("--force goes with -o: say which file to write")
    plans, assumed, launch = planned(arguments)
    assert launch is not None  # as --from is given
    found = difference(plans, launch)
    text = None if arguments.output is None else _changed(arguments, launch, plans.scenario, found)
    if arguments.json:
        data = {**plans.to_dict(), **({"assumptions": list(assumed)} if assumed else {}), "launch": launch.to_dict()}
        page.emit_json({**data, "diff": found.to_dict(launch, plans.objective)})
    else:
        page.emit(*sections(plans, launch, found, assumed))
    if text is not None:
        with files.named_by("-o"):
            files.write_text(arguments.output, text)
        page.log(f"crossflow: wrote {arguments.output}")


def difference(plans: Plans, launch: Launch) -> PlanDifference:
    """The own plan of a launch file beside the best plan that its framework can express."""
    own = plans.own
    if own is None:
        raise CrossflowError(f"{launch.file}: its own plan is no plan for this model and these devices")
    if plans.chosen is None:
        raise CrossflowError(f"there is no better plan: {plans.counts}; the plan nearest to fitting is {plans[0].strategy}")
    found = export.exported(plans, launch.kind)
    best = found.plan
    if own.feasible and _better(own, best, plans.objective) >= 0.0:
        best = own
    other = variant(plans.scenario, {"strategy": best.strategy})
    edits = () if best.strategy == own.strategy else changes(launch, plans.scenario, other)
    told = found.skipped > 0 and best is found.plan
    return PlanDifference(
        own=own, best=best, changes=edits, gain=_better(best, own, plans.objective) if own.feasible else None,
        tied=_tied(plans, own, best),
        skipped=f"{launch.kind} cannot express {found.skipped:,} better: {found.reason}" if told else "",
        shortfall=shortfall(launch, edits, other) if edits else "",
    )  # fmt: skip


def _tied(plans: Plans, own: RankedPlan, best: RankedPlan) -> bool | None:
    """Whether measured runs like both plans do not tell one from the other; None where there are none, or one does not fit."""
    if not own.feasible or not follows_from_time(plans.objective):
        return None
    runs = [likeness(variant(plans.scenario, {"strategy": one.strategy})) for one in (own, best)]
    near = ties([own.value, best.value], runs, ["", ""])[0]
    return None if near is None else bool(near)


def _better(one: RankedPlan, other: RankedPlan, objective: str) -> float:
    """By which share a plan is better than another; of times less is better. [1]"""
    if not (math.isfinite(one.value) and math.isfinite(other.value)) or not other.value:
        return math.inf if math.isfinite(one.value) else -math.inf
    share = one.value / other.value - 1.0
    return share if larger_is_better(objective) else -share


def _changed(arguments: argparse.Namespace, launch: Launch, scenario: Scenario, found: PlanDifference) -> str:
    """The text of the file with the changes."""
    if arguments.launch == STDIN:
        raise CrossflowError("-o with --diff changes a file; write the script into one and name that with --from")
    text = files.read_text(Path(arguments.launch)).replace("\r\n", "\n")
    return rewritten(text, launch, found.changes, variant(scenario, {"strategy": found.best.strategy})) if found.changes else text


def sections(plans: Plans, launch: Launch, found: PlanDifference, assumed: Sequence[str] = ()) -> list[RenderableType]:
    """The page: what was asked, both plans, the flags between them, and what stays as it is."""
    listed = {remark.flag for remark in launch.unmodelled}
    said = [one for one in assumed if one.partition(" ")[0].rstrip(":") not in listed]
    return [_headline(plans, launch), page.assumptions(said), _both(plans, found), _flags(found), _kept(launch)]


def _headline(plans: Plans, launch: Launch) -> Group:
    scenario = plans.scenario
    title = page.first_line(launch.file, f"  {scenario.workload.model} on {scenario.own_fleet}")
    rows: dict[str, RenderableType] = {"plans": plans.counts, "trust": page.trusted(plans.trust)}
    notes = [page.indented(Text(f"note: {note}", "yellow")) for note in plans.notes]
    return Group(title, Text(), page.indented(page.pairs(rows)), *notes)


def _both(plans: Plans, found: PlanDifference) -> Group:
    """Both plans with time and memory, and a sentence on what the change gains."""
    timed = plans.objective == "step_time_s"
    header = ["", "strategy", *([] if timed else [words(plans.objective)]), "step time", "memory", "left", "trust"]
    rows: list[list[RenderableType]] = []
    for name, one in (("yours", found.own), ("best", found.best))[: 1 + bool(found.changes)]:
        row: list[RenderableType] = [name, Text(one.strategy, "bold"), *([] if timed else [show(one.value, unit_of(plans.objective))])]
        row += [show(one.step_time, "s") if math.isfinite(one.step_time) else "never ends", show(one.needed, "B")]
        rows.append([*row, percent(one.left) if one.feasible else Text("does not fit", "red"), one.trust])
    grid = page.grid(rows, right=tuple(range(2, len(header) - 1)), header=header, wraps=1)
    return Group(page.heading("Plans"), page.indented(grid), page.indented(Text(_verdict(found))))


def _verdict(found: PlanDifference) -> str:
    """What the change gains, in a sentence."""
    skipped = f"; {found.skipped}" if found.skipped else ""
    if not found.changes:
        return f"Your flags are those of the best plan{skipped}."
    if found.gain is None:
        return f"Yours cannot run: {found.own.reason}{skipped}."
    gain = f"The best plan is {percent(found.gain)} better"
    if found.tied:
        return f"{gain}, and measured runs do not tell one from the other (tied): nothing has to be changed{skipped}."
    unknown = "" if found.tied is not None else "; no measured runs tell whether plans like these are in the predicted order"
    beyond = f"; its figures are {found.best.trust}" if found.best.trust not in ("measured", found.own.trust) else ""
    return f"{gain}{unknown}{beyond}{skipped}."


def _flags(found: PlanDifference) -> Group:
    """Flags to change, a line each with the settings that they set."""
    rows: list[list[RenderableType]] = []
    for change in found.changes:
        place = "" if change.line is None else f"line {change.line}"
        rows.append([Text(change.what, "bold"), str(change), ", ".join(change.fields) or "with the others", place])
    if not rows:
        return Group()
    listed = page.section("Change", rows, aside="flags that are not listed stay as they are", wraps=1)
    return Group(listed, page.indented(Text(f"note: {found.shortfall}", "yellow"))) if found.shortfall else listed


def _kept(launch: Launch) -> Group:
    """Flags that matter and are not modelled, which no plan here says anything about."""
    rows: list[list[RenderableType]] = [[remark.flag, remark.why] for remark in launch.unmodelled]
    return page.section("Not modelled", rows, aside="they stay as they are", wraps=1) if rows else Group()
