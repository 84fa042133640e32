"""Tables of flags: what each flag of a framework means here, in one file a framework, and one engine that reads and writes by them.

A row says the type of a flag's value and the field that it sets (``strategy.tp``, ``workload.layers``, ``software.overlap.data``). Flags
that several fields decide have rows without a field; the rules of the framework read and write them.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from crossflow.base import files, limits
from crossflow.base.errors import Problem, did_you_mean
from crossflow.base.files import FileModel

Scalar = limits.Flag | limits.Whole | limits.Finite | str | None
ValueForm = Literal["switch", "integer", "number", "text", "texts", "optional", "boolean", "json"]
MISSING = object()


class FlagRow(FileModel):
    """One flag of a framework."""

    type: ValueForm = Field("text", description="form of its value; a switch has none")
    field: str = Field("", description="what it sets, such as strategy.tp; the framework's rules decide where it is empty")
    default: Scalar = Field(None, description="its value, in the framework's words, where it is not given")
    values: Mapping[str, Any] = Field({}, description="the framework's words, each with what it means here; others are errors")
    unmodelled: Mapping[str, str] = Field({}, description="the framework's words that are predicted as another, each with how")
    given: Any = Field(True, description="of a switch: what it means where it is given")
    absent: Any = Field(None, description="of a switch: what it means where it is not given")
    also: tuple[str, ...] = Field((), description="other spellings")
    least: limits.Whole = Field(1, description="smallest whole number")
    most: limits.Whole = Field(limits.COUNT, description="largest whole number")
    written: limits.Flag = Field(True, description="whether it is written; a flag of another command is only read")
    always: limits.Flag = Field(False, description="written at its default too")
    note: str = Field("", description="what to know of it where it is given")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.type == "switch" and self.default is not None:
            raise ValueError("default: a switch has `absent` in its place")
        return self


class FlagTable(FileModel):
    """The flags of a framework."""

    kind: Literal["launch"]
    framework: str
    title: str
    sources: Mapping[str, str]
    software: str = Field(description="software stack that predicts its runs where a file does not say")
    vendors: tuple[str, ...] = Field((), description="makers of devices that it runs on, as `vendor` of devices names them; empty for all")
    comments: tuple[str, ...] = Field((), description="settings that no flag says; crossflow writes them as comments, and reads them back")
    flags: Mapping[str, FlagRow]
    ignored: Mapping[str, tuple[str, ...]] = Field({}, description="by reason: flags without meaning for a prediction; * stands for any")
    unmodelled: Mapping[str, tuple[str, ...]] = Field({}, description="by what is missing: flags that matter and are not modelled")
    switches: tuple[str, ...] = Field((), description="flags of the last two that have no value")

    @functools.cached_property
    def spellings(self) -> Mapping[str, str]:
        """Names of flags by each way to write them, in one form."""
        return {same(spelling): name for spelling, name in self.written.items()}

    @functools.cached_property
    def written(self) -> Mapping[str, str]:
        """Names of flags by each way to write them, as the framework writes it."""
        return {spelling: name for name, row in self.flags.items() for spelling in (name, *row.also)}

    def found(self, flag: str) -> str | None:
        """The row of a flag as it is written, None where there is none."""
        return self.spellings.get(same(flag))

    def listed(self, flag: str, lists: Mapping[str, tuple[str, ...]]) -> str | None:
        """Under which sentence of a list a flag is, None where it is not there."""
        plain = same(flag)
        return next((why for why, names in lists.items() for name in names if fnmatch.fnmatchcase(plain, same(name))), None)

    def has_value(self, flag: str) -> bool:
        """Whether a flag takes a value, as far as the table knows."""
        name = self.found(flag)
        if name is not None:
            return self.flags[name].type != "switch"
        return not any(fnmatch.fnmatchcase(same(flag), same(switch)) for switch in self.switches)


def same(flag: str) -> str:
    """A flag in one spelling: underscores and hyphens are alike to the frameworks."""
    return flag.lstrip("-").replace("_", "-")


@functools.cache
def table(kind: str) -> FlagTable:
    """The shipped table of a framework."""
    return files.validate(FlagTable, files.read_yaml(Path(__file__).parent / "tables" / f"{kind}.yaml"))


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class GivenFlag:
    """A flag as a file has it: its values as text, or as data of a structured file, and its line."""

    flag: str
    values: tuple[Any, ...]
    line: int | None


@dataclass(frozen=True, kw_only=True)
class Remark:
    """What became of a flag that set nothing, or not all that it says."""

    flag: str
    line: int | None
    why: str

    def __str__(self) -> str:
        return f"{self.flag}{'' if self.line is None else f' (line {self.line})'}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the flags of a file say.

    Attributes
    ----------
    prefix : what stands before the name of a flag in messages.
    values : of every flag that is given, in the framework's words, by the name of its row.
    fields : what they mean here, with the framework's defaults.
    given : fields that a flag of the file sets.
    lines : of every flag that is given.
    """

    file: str
    prefix: str
    values: Mapping[str, Any]
    fields: Mapping[str, Any]
    given: frozenset[str]
    lines: Mapping[str, int | None]
    ignored: tuple[Remark, ...]
    unmodelled: tuple[Remark, ...]
    notes: tuple[Remark, ...]
    problems: tuple[Problem, ...]

    def problem(self, flag: str, message: str) -> Problem:
        """What is wrong with a flag, at its line."""
        return Problem(file=self.file, line=self.lines.get(flag), path=f"{self.prefix}{flag}", message=message)

    def remark(self, flag: str, why: str) -> Remark:
        """What became of a flag."""
        return Remark(flag=f"{self.prefix}{flag}", line=self.lines.get(flag), why=why)


def read_flags(known: FlagTable, given: Sequence[GivenFlag], file: str, prefix: str = "--") -> Found:
    """What flags mean by a table; the last of two alike counts, as the frameworks' parsers have it."""
    values: dict[str, Any] = {}
    lines: dict[str, int | None] = {}
    ignored, unmodelled, notes, problems = [], [], [], []
    for one in given:
        flag, name = f"{prefix}{one.flag.lstrip('-')}" if prefix else one.flag, known.found(one.flag)
        if name is None:
            if why := known.listed(one.flag, known.unmodelled):
                unmodelled.append(Remark(flag=flag, line=one.line, why=why))
            elif why := known.listed(one.flag, known.ignored):
                ignored.append(Remark(flag=flag, line=one.line, why=why))
            else:
                near = did_you_mean(one.flag.lstrip("-"), known.written)
                notes.append(Remark(flag=flag, line=one.line, why=f"unknown flag of {known.framework}, not read{near}"))
            continue
        row = known.flags[name]
        try:
            values[name] = _value(row, one.values)
            lines[name] = one.line
            if row.note:
                notes.append(Remark(flag=flag, line=one.line, why=row.note))
            if why := row.unmodelled.get(str(values[name])):
                unmodelled.append(Remark(flag=flag, line=one.line, why=why))
        except ValueError as error:
            problems.append(Problem(file=file, line=one.line, path=flag, message=str(error)))
    fields = {row.field: _meaning(row, values.get(name, MISSING)) for name, row in known.flags.items() if row.field}
    return Found(
        file=file, prefix=prefix, values=values, fields={key: value for key, value in fields.items() if value is not None},
        given=frozenset(known.flags[name].field for name in values) - {""}, lines=lines, ignored=tuple(ignored),
        unmodelled=tuple(unmodelled), notes=tuple(notes), problems=tuple(problems),
    )  # fmt: skip


def _meaning(row: FlagRow, value: Any) -> Any:
    """What a flag means here; None where it says nothing."""
    if row.type == "switch":
        return row.absent if value is MISSING or value is False else row.given
    said = row.default if value is MISSING else value
    return row.values.get(str(said), said) if row.values and said is not None else said


def _value(row: FlagRow, given: tuple[Any, ...]) -> Any:
    """The value of a flag in the form of its row; ValueError for others."""
    unset = next((text for text in given if isinstance(text, str) and ("${" in text or "$(" in text)), None)
    if unset is not None:
        raise ValueError(f"the value {limits.shown(unset)} is known only where the script runs; write it out, or set the variable above")
    if row.type == "switch":
        return _switched(given)
    if row.type == "texts":
        return tuple(str(one) for value in given for one in (value if isinstance(value, (list, tuple)) else (value,)))
    if row.type == "optional" and not given:
        return ""
    if len(given) != 1:
        what = {"integer": "a whole number", "number": "a number"}.get(row.type, "one value")
        raise ValueError(f"expected {what}, got {'nothing' if not given else limits.shown(' '.join(map(str, given)))}")
    value = _read(row, given[0])
    if row.values and str(value) not in row.values:
        known = ", ".join(one or '""' for one in row.values)
        raise ValueError(f"expected one of {known}, got {limits.shown(value)}{did_you_mean(str(value), row.values)}")
    return value


def _switched(given: tuple[Any, ...]) -> bool:
    """Whether a switch is on: it has no value, or that of a structured file."""
    if not given or given[0] in (True, False):
        return bool(given[0]) if given else True
    if str(given[0]).lower() in ("true", "false", "1", "0"):
        return str(given[0]).lower() in ("true", "1")
    raise ValueError(f"expected no value, got {limits.shown(given[0])}")


def _read(row: FlagRow, given: Any) -> Any:
    if row.type == "integer":
        value = int(given) if isinstance(given, str) and given.lstrip("-").isdecimal() and len(given) < limits.DIGITS else given
        if isinstance(value, bool) or not isinstance(value, int) or not row.least <= value <= row.most:
            upto = f" to {row.most}" if row.most < limits.COUNT else ""
            raise ValueError(f"expected a whole number from {row.least}{upto}, got {limits.shown(given)}")
        return value
    if row.type == "number":
        value = files.scalar(given) if isinstance(given, str) else given
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"expected a number, got {limits.shown(given)}")
        return float(value)
    if row.type == "boolean":
        value = files.scalar(given.lower()) if isinstance(given, str) else given
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {limits.shown(given)}")
        return value
    if row.type == "json" and isinstance(given, str):
        try:
            return files.from_json(given)
        except ValueError as error:
            raise ValueError(f"expected JSON: {error}") from None
    return given if row.type == "json" else str(given)


# ---------------------------------------------------------------------------------------------- writing


def written_flags(
    known: FlagTable, settings: Mapping[str, Any], ruled: Mapping[str, Any], decided: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Flags that say settings, in the order of the table: those of rows with a field, and those that the rules give.

    Parameters
    ----------
    settings : every setting by its field.
    ruled : values of flags that the framework's rules decide; None leaves a flag out.
    decided : fields that the rules say, for which rows write nothing.
    """
    for name, row in known.flags.items():
        if name in ruled:
            if ruled[name] is not None:
                yield name, ruled[name]
        elif row.written and row.field in settings and row.field not in decided:
            value = _said(row, settings[row.field])
            if value is not MISSING and (value != row.default or row.always):
                yield name, value


def said_by(known: FlagTable, field: str, value: Any) -> bool:
    """Whether a flag of its own can say the value of a field."""
    rows = [row for row in known.flags.values() if row.field == field and row.written]
    return any(_meaning(row, MISSING) == value if (said := _said(row, value)) is MISSING else _meaning(row, said) == value for row in rows)


def _said(row: FlagRow, value: Any) -> Any:
    """The value of a flag for ours; MISSING where the flag is not given for it."""
    if row.type == "switch":
        return True if value == row.given and value != row.absent else MISSING
    if row.values:
        return next((theirs for theirs, ours in row.values.items() if ours == value), MISSING)
    return MISSING if value is None else value


def shell_words(name: str, value: Any) -> str:
    """A flag with its value as words of a shell.

    >>> shell_words("--bf16", True), shell_words("--num-layers", 32)
    ('--bf16', '--num-layers 32')
    >>> print(shell_words("--config", {"a": 1}))
    --config '{"a": 1}'
    """
    import shlex

    if value is True:
        return name
    if isinstance(value, (dict, list)):
        return f"{name} {shlex.quote(json.dumps(value))}"
    if isinstance(value, tuple):
        return " ".join([name, *(shlex.quote(str(one)) for one in value)])
    return f"{name} {shlex.quote(f'{value:g}' if isinstance(value, float) else str(value))}"
