"""`crossflow plan --export`: the flags of the best plan that a framework can express."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.answers.planning.planner import plan
from crossflow.answers.planning.plans import Plans, RankedPlan
from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.launch import tensorrt_llm
from crossflow.edges.launch.deepspeed import CONFIG
from crossflow.edges.launch.launch import Launch, write

FORMS = (".sh", ".toml", ".json", ".yaml", ".yml")  # endings that say what a file holds
OF_CONFIG = re.compile(r"--(deepspeed|zero)")  # flags of what DeepSpeed's own file says, which is written anew
FLAGS = 6  # without meaning for a prediction that are named
MOST = 3000  # plans that are looked through


@dataclass(frozen=True, kw_only=True)
class ExportedPlan:
    """A plan as a launch file, and why the plans before it are not written."""

    kind: str
    plan: RankedPlan
    text: str
    skipped: int
    reason: str  # why the best plan is not written; empty where it is

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kind": self.kind,
            "strategy": self.plan.strategy,
            "skipped": self.skipped,
            "reason": self.reason or None,
            "text": self.text,
        }


def check_ending(path: Path, kind: str) -> None:
    """CrossflowError for a file whose ending says another form than what is written."""
    ending, form = {
        "torchtitan": (".toml", "a TOML file"),
        "maxtext": (".yaml", "a YAML file"),
        "dynamo": (".yaml", "a DynamoGraphDeployment"),
    }.get(kind, (".sh", "a shell script"))
    if path.suffix in FORMS and path.suffix != ending and not (ending == ".yaml" and path.suffix == ".yml"):
        config = {"deepspeed": CONFIG, "tensorrt-llm": tensorrt_llm.CONFIG}.get(kind)
        beside = f", which writes {config} itself" if config else ""
        raise CrossflowError(f"-o {path}: for {kind} {form} is written{beside}; name it {path.with_suffix(ending)}")


def exported(plans: Plans, kind: str) -> ExportedPlan:
    """The flags of the best plan that a framework can express, those that leave the margin of memory first.

    Raises
    ------
    CrossflowError
        Where no plan fits, or the framework can express none; with why it cannot express the best.
    """
    if plans.chosen is None:
        raise CrossflowError(f"there is nothing to export: {plans.counts}; the plan nearest to fitting is {plans[0].strategy}")
    reason = ""
    for found in (plans, None):
        listed = found or plan(plans.scenario, top=min(plans.fitting, MOST), objective=plans.objective, margin=plans.margin)
        ranked = sorted(listed, key=lambda one: (one is not listed.chosen, one.tight))
        for skipped, one in enumerate(ranked):
            try:
                text = write(one.scenario, kind)
            except CrossflowError as error:
                reason = reason or str(error)
            else:
                return ExportedPlan(kind=kind, plan=one, text=text, skipped=skipped, reason=reason)
        if len(listed) >= plans.fitting:
            break
    raise CrossflowError(f"{kind} can express none of the plans that fit; of {plans.chosen.strategy}, the best one: {reason}")


def inexpressible(plans: Plans, kind: str) -> frozenset[str]:
    """Strategies among the listed plans that a framework cannot express."""

    def refused(one: RankedPlan) -> bool:
        try:
            write(one.scenario, kind)
        except CrossflowError:
            return True
        return False

    return frozenset(one.strategy for one in plans if refused(one))


def deliver(found: ExportedPlan, arguments: argparse.Namespace, launch: Launch | None = None) -> None:
    """Write the file, or print it where none is named, and say which plan it is, and what of the launch file it does not have."""
    if arguments.output is not None:
        with files.named_by("-o"):
            files.write_text(arguments.output, found.text)
    elif not arguments.json:
        sys.stdout.write(found.text)
    said = [f"wrote {arguments.output}"] if arguments.output is not None else []
    figures = f"{show(found.plan.step_time, 's')} per step, {show(found.plan.needed, 'B')} of {show(found.plan.capacity, 'B')} per device"
    if found.skipped:
        before = "the best plan" if found.skipped == 1 else f"the {found.skipped:,} best plans"
        why = "; ".join(line.removeprefix("- ") for line in found.reason.splitlines()[1:]) or found.reason
        said.append(f"{found.plan.strategy} is written, {figures}; {found.kind} cannot express {before}: {why}")
    elif not arguments.json and arguments.output is None:
        said.append(f"{found.plan.strategy} is written, the plan to take: {figures}")
    asked = getattr(arguments, "strategy", None)
    if asked not in (None, "auto") and _is_other(found, asked):
        said.append(f"--strategy {asked} is not written: an export writes the best plan; crossflow.export in Python writes one of your own")
    for line in (*said, *left_out(launch, found.kind, found.text)):
        page.log(f"crossflow: {line}")


def _is_other(found: ExportedPlan, asked: str) -> bool:
    """Whether the strategy that a command names is another than the one that is written, in whatever order it has its parts."""
    one, other = (sorted({*text.lower().split("-")} - {"mb1"}) for text in (asked, found.plan.strategy))
    return one != other


def left_out(launch: Launch | None, kind: str, text: str) -> list[str]:
    """A sentence on the flags of a launch file that are not in what is written for the same framework: they set nothing of a scenario."""
    if launch is None or launch.kind != kind:
        return []
    written = frozenset(re.split(r"[\s=]+", text))
    lacking = [[flag for flag in dict.fromkeys(one.flag for one in some) if flag not in written and not OF_CONFIG.match(flag)]
               for some in (launch.unmodelled, launch.ignored)]  # fmt: skip
    named = [*lacking[0], *lacking[1][:FLAGS]]
    more = len(lacking[0]) + len(lacking[1]) - len(named)
    cure = "add them to what is written, or let --diff -o change the file itself"
    return [f"of {launch.file} is not written: {', '.join(named)}{f' and {more} more' if more else ''}; {cure}"] if named else []
