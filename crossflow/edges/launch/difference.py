"""What to change in a launch file so that it means another plan: flags to add, to remove and to change, and the file with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.edges.launch import megatron
from crossflow.edges.launch.launch import PLAIN, Launch, SaidScenario, flags_of, pools_of, read_parts
from crossflow.edges.launch.settings import differing, flat, plan_settings
from crossflow.edges.launch.sources import Source, taken_apart
from crossflow.edges.launch.table import FlagTable, GivenFlag
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.spec import TransformerSpec

REPLICAS, DEVICES = "replicas", "devices of each"  # of a deployment, which no flag says
DIVIDED = ("megatron", "deepspeed")  # whose replicas are what the devices leave, and no flag says
_ALONE = r"(?<![\w\"'=(-])"  # before a flag that is a word of its own command, not one of a quoted word or an assignment
_BY_HAND = "change it by the list, or write a new file with"
_GONE = "\0"  # a line that is left out
_VALUE = r"(\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\\]+)"


@dataclass(frozen=True, kw_only=True)
class FlagChange:
    """A flag to add, to remove or to change.

    Attributes
    ----------
    flag, line : as the file writes it and where, or as it is to be added.
    before, after : its value as text, empty for a switch, None where it is not there.
    fields : settings that it changes; none where it does so with others alone.
    """

    flag: str
    line: int | None
    before: str | None
    after: str | None
    fields: tuple[str, ...]

    @property
    def what(self) -> str:
        """What is to be done."""
        return "add" if self.before is None else "remove" if self.after is None else "change"

    @property
    def of_environment(self) -> bool:
        """Whether it is a variable of the environment, and no flag."""
        return self.flag == megatron.CONNECTIONS

    def __str__(self) -> str:
        if self.of_environment:
            change = f"{self.before} -> {self.after}" if self.what == "change" else self.after or self.before
            return f"export {self.flag}={change}"
        if self.what == "change":
            return f"{self.flag} {self.before} -> {self.after}"
        value = self.after if self.before is None else self.before
        return f"{self.flag} {value}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        held = {key: getattr(self, key) for key in ("what", "flag", "line", "before", "after")}
        return {**held, "fields": list(self.fields)}


def changes(launch: Launch, own: Scenario, best: Scenario) -> tuple[FlagChange, ...]:
    """What to change in a file that means `own` so that it means `best`, which has another strategy.

    Flags stay as they are where both plans need the same, and where the file leaves to the framework what it does.
    """
    assert launch.parts is not None  # of a file that was read
    mine, its = flags_of(own, launch.kind), flags_of(best, launch.kind)
    given = _given(launch.parts, its.known)
    names = [name for name in its.known.flags if _text(mine, name, launch.kind) != _text(its, name, launch.kind)]
    edits = {name: _text(its, name, launch.kind) for name in names}
    edits |= dict.fromkeys(_others(launch, best, edits, given, {*mine.values, *its.values}, its.known))
    plans = plan_of_file(own), plan_of_file(best)
    moved = {path for path in {**plans[0], **plans[1]} if plans[0].get(path) != plans[1].get(path)}
    sets = {name: _sets(launch, name, edits, its.known) for name in edits}
    every = {name: _change(launch, name, given.get(name), edits[name], sets[name] or (), moved) for name in edits}
    found = {name: one for name, one in every.items() if one is not None}
    told = {path for one in found.values() for path in one.fields}
    unsaid = {"strategy.dp"} if launch.kind in DIVIDED else set()
    rest = tuple(sorted(moved - told - unsaid))  # what flags say together
    told_all = [replace(one, fields=rest) if sets[name] is None else one for name, one in found.items()]
    return (*told_all, *_environment(launch, its), *_placed(own, best, mine, its, launch.kind))


def _environment(launch: Launch, its: SaidScenario) -> Iterator[FlagChange]:
    """Variables of the environment that the new flags want otherwise than the script has them."""
    if launch.kind != "megatron" or launch.parts is None:
        return
    for name, value in megatron.environment(its.values).items():
        held = launch.parts.variables.get(name)
        if (None if held is None else held.text) != value:
            before, line = (None, None) if held is None else (held.text, held.line)
            yield FlagChange(flag=name, line=line, before=before, after=value, fields=())


def _given(parts: Source, known: FlagTable) -> dict[str, GivenFlag]:
    """The flags of a file by their rows; of a deployment those of its first worker that writes."""
    flags: Sequence[GivenFlag] = parts.given
    if parts.workers:
        flags = next((one for one in parts.workers if not _reads(one.given, known)), parts.workers[0]).given
    return {name: one for one in flags if (name := known.found(one.flag)) is not None}


def _reads(flags: Sequence[GivenFlag], known: FlagTable) -> bool:
    return any(
        (name := known.found(one.flag)) == "is-prefill-worker" or (name == "disaggregation-mode" and one.values[:1] == ("prefill",))
        for one in flags
    )


def _text(found: SaidScenario, name: str, kind: str) -> str | None:
    """The value of a flag as text; empty for a switch, None where it is not given."""
    if name not in found.values:
        return None
    value = found.values[name]
    if kind in PLAIN and not name.startswith("--"):
        return str(value) if isinstance(value, str) else json.dumps(list(value) if isinstance(value, tuple) else value)
    if value is True:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, (dict, list)) else f"{value:g}" if isinstance(value, float) else str(value)


def _change(
    launch: Launch, name: str, given: GivenFlag | None, text: str | None, sets: tuple[str, ...], moved: set[str]
) -> FlagChange | None:  # fmt: skip
    """One change, None where the file says so already; of what it `sets` those that are `moved`, where it moves any."""
    before = None if given is None else " ".join(map(str, given.values))
    if before == text or (before in ("true", "True") and text == ""):
        return None
    prefix = "" if launch.kind in PLAIN else "--"
    flag = f"{prefix}{name}" if given is None else given.flag
    fields = tuple(path for path in sets if path in moved) or sets
    return FlagChange(flag=flag, line=None if given is None else given.line, before=before, after=text, fields=fields)


def _sets(launch: Launch, name: str, edits: Mapping[str, str | None], known: FlagTable) -> tuple[str, ...] | None:
    """Settings that one change makes otherwise, alone or as the last one of all; None where it makes sense in neither way."""
    if field := known.flags[name].field:
        return (field,)
    others = {other: text for other, text in edits.items() if other != name}
    alone = _differing(launch, {}, {name: edits[name]}, known)
    return alone or _differing(launch, others, edits, known)


def _differing(
    launch: Launch, before: Mapping[str, str | None], after: Mapping[str, str | None], known: FlagTable
) -> tuple[str, ...] | None:
    """Settings in which a file with some changes differs from one with others; None where one is refused."""
    assert launch.parts is not None
    try:
        both = [read_parts(_edited(launch.parts, edits, known), launch.asked) for edits in (before, after)]
    except CrossflowError:
        return None
    held = [dict(flat(one.strategy, "strategy.")) | dict(flat(one.workload, "workload.")) for one in both]
    return tuple(path for path in dict.fromkeys([*held[0], *held[1]]) if held[0].get(path) != held[1].get(path))


def _edited(parts: Source, edits: Mapping[str, str | None], known: FlagTable) -> Source:
    """A file's flags with changes, by the names of rows."""

    def changed(given: Sequence[GivenFlag]) -> tuple[GivenFlag, ...]:
        kept = [one for one in given if known.found(one.flag) not in edits]
        more = [GivenFlag(flag=name, values=() if text == "" else (text,), line=None) for name, text in edits.items() if text is not None]
        return (*kept, *more)

    workers = tuple(one if _reads(one.given, known) else replace(one, given=changed(one.given)) for one in parts.workers)
    return replace(parts, given=changed(parts.given), workers=workers)


def _others(
    launch: Launch, best: Scenario, edits: Mapping[str, str | None], given: Mapping[str, GivenFlag], written: set[str], known: FlagTable
) -> list[str]:  # fmt: skip
    """Flags that say in another way what the changes say: of all that neither plan needs, those that cannot stay."""
    wanted = plan_of_file(best)
    if _meant(launch, best, edits, known) == wanted:
        return []
    gone = {name: None for name in given if name not in written and name not in edits}
    for name in tuple(gone):
        fewer = {other: None for other in gone if other != name}
        if _meant(launch, best, {**edits, **fewer}, known) == _meant(launch, best, {**edits, **gone}, known):
            gone = fewer
    return list(gone)


def _meant(launch: Launch, best: Scenario, edits: Mapping[str, str | None], known: FlagTable) -> dict[str, Any] | None:
    """The plan of a file with changes, in normal form; None where they are refused."""
    assert launch.parts is not None  # of a file that was read
    try:
        return _strategy(read_parts(_edited(launch.parts, edits, known), launch.asked), best)
    except CrossflowError:
        return None


def shortfall(launch: Launch, found: Sequence[FlagChange], best: Scenario) -> str:
    """What a file with the changes still means otherwise than the best plan, in a sentence; empty where it means the plan."""
    known = flags_of(best, launch.kind).known
    edits = {name: change.after for change in found if (name := known.found(change.flag)) is not None}
    meant, wanted = _meant(launch, best, edits, known), plan_of_file(best)
    if launch.kind == "dynamo" or meant == wanted:  # whose workers are counted beside the flags
        return ""
    paths = sorted(path for path in {**(meant or {}), **wanted} if (meant or {}).get(path) != wanted.get(path))
    return f"these flags do not say all of it ({', '.join(paths)}): write the file anew with --export {launch.kind}"


def plan_of_file(scenario: Scenario) -> dict[str, Any]:
    """The plan of a scenario in normal form, without microbatches, which engines make by themselves."""
    spec, plan = scenario.workload, scenario.strategy
    assert isinstance(spec, TransformerSpec)
    assert isinstance(plan, Plan)
    found = plan_settings(plan, spec.transformer().depth)
    if spec.serves:
        del found["strategy.micro_batch"]
    return differing(found)


def _strategy(meant: Launch, best: Scenario) -> dict[str, Any]:
    """The plan that a file means, on the system and of the model of a scenario."""
    return plan_of_file(variant(best, {"strategy": dict(meant.strategy)}))


def _placed(own: Scenario, best: Scenario, mine: SaidScenario, its: SaidScenario, kind: str) -> list[FlagChange]:
    """Workers of a deployment, and devices of each, where these change."""
    if kind != "dynamo":
        return []
    before, after = pools_of(own, mine)[0], pools_of(best, its)[0]
    pairs = ((REPLICAS, before.replicas, after.replicas), (DEVICES, before.devices, after.devices))
    return [
        FlagChange(flag=flag, line=None, before=str(old), after=str(new), fields=("strategy.dp",)) for flag, old, new in pairs if old != new
    ]


# ---------------------------------------------------------------------------------------------- the file itself


def rewritten(text: str, launch: Launch, found: Sequence[FlagChange], best: Scenario) -> str:
    """A script with just those flags changed; CrossflowError where that cannot be done, or would not mean the plan."""
    assert launch.parts is not None
    if launch.parts.workers or any("another command of the framework" in note.why for note in launch.notes):
        raise CrossflowError(f"{launch.file}: starts several servers, whose flags go together; {_BY_HAND} --export {launch.kind}")
    changed = edited(text, launch.parts, found)
    meant = read_parts(taken_apart(changed, launch.file, launch.kind, None), launch.asked)
    if _strategy(meant, best) != plan_of_file(best):
        raise CrossflowError(f"{launch.file}: what else it says keeps it from {best.strategy_text}; {_BY_HAND} --export {launch.kind}")
    return changed


def edited(text: str, parts: Source, found: Sequence[FlagChange]) -> str:
    """A script with just those flags changed, whatever they mean; CrossflowError where a line does not take a change."""
    lines = text.split("\n")
    for change in found:
        _write(lines, change, parts)
    return "\n".join(line for line in lines if line is not _GONE)


def _write(lines: list[str], change: FlagChange, parts: Source) -> None:
    """One change in the lines of a script."""
    if change.of_environment:
        _write_variable(lines, change, parts)
        return
    if change.before is None:
        _insert(lines, change, parts)
        return
    at = (change.line or 0) - 1
    flag, has_value = re.escape(change.flag), change.before != ""
    more = rf"(?:\s+(?!-){_VALUE})" * (_values_of(change, parts) - 1)  # of a list, whose values are words of their own
    value = rf"(?:(=|\s+){_VALUE}{more}){'' if more else '?'}"
    pattern = rf"{_ALONE}{flag}{value}(?![\w-])" if has_value else rf"{_ALONE}{flag}(?![\w\"'-])"
    places = list(re.finditer(pattern, lines[at])) if 0 <= at < len(lines) else []
    if len(places) != 1 or not change.flag.startswith("-"):
        raise CrossflowError(f"{parts.file}:{change.line}: {change.flag} cannot be changed in its line; {_BY_HAND} --export {parts.kind}")
    found = places[0]
    value = "" if change.after in (None, "") else f"{found[1]}{change.after}"
    new = "" if change.after is None else f"{change.flag}{value}"
    line = lines[at][: found.start()] + new + lines[at][found.end() :]
    continued = at > 0 and lines[at - 1].endswith("\\")  # so that an empty line ends the command
    empty = re.fullmatch(r"\s*\\", line) or (not line.strip() and not continued)
    lines[at] = _GONE if empty else re.sub(r"(?<=\S) {2,}(?=\S)", " ", line) if change.after is None else line


def _values_of(change: FlagChange, parts: Source) -> int:
    """How many values the flag of a change has in the file."""
    return next((len(one.values) for one in parts.given if (one.flag, one.line) == (change.flag, change.line)), 1)


def _write_variable(lines: list[str], change: FlagChange, parts: Source) -> None:
    """One variable of the environment in the lines of a script, first of all where it was not there."""
    at = (change.line or 0) - 1
    if change.before is None:
        lines[0] = f"{lines[0]}\n{change}" if lines[0].startswith("#!") else f"{change}\n{lines[0]}"
    elif 0 <= at < len(lines) and re.fullmatch(rf"\s*(export\s+)?{change.flag}={_VALUE}\s*(#.*)?", lines[at]):
        lines[at] = _GONE if change.after is None else f"export {change.flag}={change.after}"
    else:
        raise CrossflowError(f"{parts.file}:{change.line}: {change.flag} cannot be changed in its line; {_BY_HAND} --export {parts.kind}")


def _insert(lines: list[str], change: FlagChange, parts: Source) -> None:
    """A flag before the first one that the table knows and that stands in a line of its own command."""
    if change.flag.startswith("-"):
        for one in parts.given:
            at = (one.line or 0) - 1
            place = re.search(rf"{_ALONE}{re.escape(one.flag)}(?![\w-])", lines[at]) if 0 <= at < len(lines) else None
            if place is not None and one.flag.startswith("-"):
                lines[at] = f"{lines[at][: place.start()]}{change} {lines[at][place.start() :]}"
                return
    raise CrossflowError(f"{parts.file}: {change} cannot be added by itself; {_BY_HAND} --export {parts.kind}")
