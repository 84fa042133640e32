"""What to type in the place of words that a command does not take, tried before it is said."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crossflow.answers.planning.foreign import instead_of
from crossflow.answers.planning.opening import unplanned
from crossflow.answers.sections import model_name
from crossflow.base.errors import CrossflowError, either, meant
from crossflow.edges.cli.parser import FRAMEWORKS
from crossflow.edges.cli.source import source_of
from crossflow.edges.launch.table import table
from crossflow.hardware.architecture.system import asked_system

FILES = (".yaml", ".yml", ".json", ".sh")


def cure(
    left: Sequence[str],
    argv: Sequence[str],
    found: argparse.Namespace,
    options: Sequence[str],
    parse: Callable[[Sequence[str]], tuple[argparse.Namespace, list[str]]],
) -> str:
    """What to write in the place of words that are `left` of a command line, as the end of a sentence; empty where nothing is known.

    Parameters
    ----------
    found : what the command did take.
    options : its options.
    parse : how its words are read.
    """
    flags, kept = _flags(left, argv)
    if not flags and (names := _names(left, found)):
        return names
    if not flags or "--set" not in options:
        return _alike(flags[0][0], options) if flags else ""
    told = instead_of(flags, options, _beside(parse(kept)[0]))
    if found.command == "study":  # whose settings lie in its scenario
        told = told.replace("--set ", "--set scenario.")
    if not told:
        sought = "--strategy" not in options and instead_of(flags, ("--strategy",), {}).startswith("--strategy")
        return f"; {found.command} does not take a strategy: leave it out" if sought else _near(flags, options, argv)
    problem = _problem(parse([*kept, *shlex.split(told)])[0])
    return f"; write {told}" if not problem else f"; that is {told}, which does not work here: {problem}"


def _beside(words: argparse.Namespace) -> dict[str, Any]:
    """What a command was given; a launch file stands for the scenario that it means."""
    if getattr(words, "launch", None) is None:
        return vars(words)
    try:
        return {**vars(words), "scenario": source_of(words)[0]}
    except CrossflowError:
        return vars(words)


def _names(left: Sequence[str], found: argparse.Namespace) -> str:
    """A model and a system that stand where a file does, or what is to be varied without its option."""
    first = getattr(found, "scenario", None)
    if found.command == "sweep" and all("=" in word for word in left):
        return f"; write {' '.join(f'--vary {shlex.quote(word)}' for word in left)}"
    model, system = None if first is None else model_name(str(first)), asked_system(left[0])
    return f"; write {found.command} --model {model} --on {system}" if len(left) == 1 and model and system else ""


def _flags(left: Sequence[str], argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Words of other tools, without their dashes, with their values; and the words of a command without either."""
    flags, kept, passed = [], [], False
    for i, word in enumerate(argv):
        if passed:
            passed = False
        elif word in left and word.startswith("-"):
            option, equals, value = word.partition("=")
            after = argv[i + 1] if i + 1 < len(argv) else ""
            passed = not equals and after != "" and not after.startswith("-") and Path(after).suffix not in FILES
            flags += [(option.removeprefix("--").replace("-", "_"), after if passed else value)] if word.startswith("--") else []
        else:
            kept.append(word)
    return flags, kept


def _alike(word: str, options: Sequence[str]) -> str:
    """An option of a like name, as a question; its dashes, which all have, make none alike.

    >>> _alike("modle", ["--model", "--set"]), _alike("days", ["--task", "--devices"]), _alike("se", ["--set"])
    ("; did you mean '--model'?", '', '')
    """
    names = [name.removeprefix("--") for name in options]
    found = [f"'--{name}'" for name in meant(word.replace("_", "-"), [name for name in names if name != "set" or len(word) > len("set")])]
    return f"; did you mean {either(found)}?" if found else ""


def _problem(words: argparse.Namespace) -> str:
    """Why a command that was mended does not work, "" where it does or where only running it would tell."""
    if not all(hasattr(words, name) for name in ("scenario", "model", "on", "strategy")):
        return ""
    try:
        source, _, _ = source_of(words)
        _, notes = unplanned(source, words.settings)  # a strategy that is refused is a note there
    except CrossflowError as error:
        return error.said
    return notes[0].partition(": ")[2] if notes else ""


def _near(flags: Sequence[tuple[str, str]], options: Sequence[str], argv: Sequence[str]) -> str:
    """An option of a like name, or how the flags of a framework are read."""
    option = f"--{flags[0][0].replace('_', '-')}"
    if alike := _alike(flags[0][0], options):
        return alike
    for kind in FRAMEWORKS if "--from" in options else ():
        known = table(kind)
        if known.found(option) or known.listed(option, known.ignored) or known.listed(option, known.unmodelled):
            on = argv[argv.index("--on") + 1] if "--on" in argv[:-1] else "dgx-h100"
            return f", a flag of {known.title.partition(',')[0]}, whose scripts are read with --from SCRIPT --on {on}"
    return ""
