"""What a command is about: a scenario file, standard input, a launch file of a framework, or a model and a system by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossflow.answers.planning.opening import ScenarioSource, load
from crossflow.answers.planning.question import INSTEAD, Question, names_program, of_template
from crossflow.answers.scenario import Scenario
from crossflow.answers.sections import model_name
from crossflow.base import files, limits
from crossflow.base.errors import CrossflowError, Problem, SpecError, either, meant
from crossflow.workload.idle import ONLY_REPLAYED
from crossflow.workload.released import CONFIG

if TYPE_CHECKING:
    from crossflow.edges.launch.launch import Launch

SUFFIXES = (".yaml", ".yml", ".json", ".gz", ".sh", ".toml", ".csv")  # of files that commands read
STDIN, _STDIN = Path("-"), "<stdin>"  # as it is asked for, and in messages
_REQUESTS_APART = (
    "--requests goes with --model and --on, or with --from; beside {other} write the key into a scenario, as in `requests: {asked}`, in "
    "which workload has task: serving and neither prompt, output nor global_batch"
)
_FLAGS = 6  # without meaning that a page names
_LENGTH = "a run is as long as"  # how tables of flags say that a flag is the length of a run


def scenario_of(arguments: argparse.Namespace) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario of a command with its overrides, and sentences on what was assumed."""
    source, assumed, _ = source_of(arguments)
    return load(source, arguments.settings), assumed


def source_of(arguments: argparse.Namespace) -> tuple[ScenarioSource, tuple[str, ...], Launch | None]:
    """What describes the scenario of a command, sentences on what was assumed, and the launch file where that describes it."""
    given = {name: getattr(arguments, name) for name in INSTEAD if getattr(arguments, name) is not None}
    asked = getattr(arguments, "requests", None)
    if asked is not None and arguments.scenario is not None:
        raise CrossflowError(_REQUESTS_APART.format(other=arguments.scenario, asked=asked))
    if arguments.scenario is None:  # options and launch files say how many devices there are, which the name of a system leaves
        arguments.settings = [of_template(setting) for setting in arguments.settings]
    if getattr(arguments, "launch", None) is not None:
        return _launched(arguments, given)
    file = arguments.scenario
    if file is not None and "on" in given and "model" not in given and _is_model(file):
        given["model"], file = str(file), None  # which lacks only a system
    if file is not None:
        if given:
            name, value = next(iter(given.items()))
            raise CrossflowError(f"--{name} is for questions without a file; with {file} write --set {INSTEAD[name]}={value}")
        if why := _named_amiss(file):
            raise CrossflowError(why)
        return (files.read_mapping(_standard_input(), _STDIN) if file == STDIN else file), (), None
    if not given:
        raise CrossflowError(
            f"give a SCENARIO.yaml,{' a launch file (--from),' if hasattr(arguments, 'launch') else ''} or a model and a system:"
            f" crossflow {arguments.command} --model llama3-70b --on dgx-h100"
        )
    for name, example in (("model", "llama3-70b"), ("on", "h100-ib-cluster")):
        if name not in given:
            there = ", ".join(f"--{other} {value}" for other, value in given.items())
            raise CrossflowError(f"--{name} is missing beside {there}; give it, such as --{name} {example}, or a SCENARIO.yaml")
    if (strategy := str(given.get("strategy", ""))).lstrip().startswith("{"):
        given["strategy"] = files.parse_yaml(strategy, "--strategy").data
    if arguments.command == "serve" and asked is None:
        given.setdefault("task", "serving")  # which is all that it replays
    system = given.pop("on")
    return *Question(system=system, requests=_requests(asked), **given).scenario(arguments.settings), None


def _requests(asked: Any) -> Mapping[str, Any] | None:
    """The section of a scenario for what `--requests` names; None where it names nothing."""
    if asked is None:
        return None
    from crossflow.answers.planning.requesting import section_of

    return section_of(asked)


def _is_model(file: Path) -> bool:
    """Whether what stands in the place of a scenario is a model: a shipped one, a program, or a file of Hugging Face or its folder."""
    if names_program(str(file)) or (file / CONFIG).is_file():
        return True
    config = file.suffix == ".json" and file.is_file() and "workload" not in files.read_yaml(file).data
    return config or (not file.exists() and model_name(str(file)) is not None)


def _named_amiss(file: Path) -> str:
    """What to write in the place of a word that is no file, and is like the name of a model or a system; "" where it is like none."""
    word = str(file)
    if file.suffix in SUFFIXES or len(file.parts) > 1 or file.exists() or files.shipped_name("templates", word) is not None:
        return ""
    found = {"--model": meant(word, files.catalogue("templates", "models")), "--on": meant(word, files.catalogue("templates", "systems"))}
    told = next(([f"{option} {name}" for name in names] for option, names in found.items() if names), [])
    return f"{word}: there is no such file; did you mean {either(told)}?" if told else ""


def _launched(arguments: argparse.Namespace, given: dict[str, object]) -> tuple[files.Document, tuple[str, ...], Launch]:
    """The scenario that a launch file means, sentences on how it was read, and the file."""
    if arguments.scenario is not None:
        raise CrossflowError(f"--from {arguments.launch} stands for a scenario; leave {arguments.scenario} out")
    if other := next((name for name in given if name not in ("model", "on", "nodes", "devices")), None):
        raise CrossflowError(f"--{other} is for questions without a file; with --from write --set {INSTEAD[other]}={given[other]}")
    settings = [*([f"workload.model={given['model']}"] if "model" in given else []), *arguments.settings]
    launch, asked = _launch(arguments), getattr(arguments, "requests", None)
    if arguments.command == "serve" and asked is None and not any(one.startswith("requests") for one in arguments.settings):
        raise CrossflowError(f"{launch.file}: flags do not say what the service is asked; give it with --requests FILE")
    document = launch.document(arguments.on, settings, _requests(asked))
    said = [*_read(launch, document), *([] if "requests" in document.data or arguments.command == "predict" else _replayed(launch))]
    return document, tuple(said), launch


def _launch(arguments: argparse.Namespace) -> Launch:
    """The launch file of a command, on as many devices as the command says."""
    from crossflow.edges.launch.launch import read

    written = partial(read, _standard_input(), stdin=True) if arguments.launch == STDIN else partial(read, arguments.launch)
    launch = written()
    if arguments.nodes is None and arguments.devices is None:
        return launch
    if arguments.nodes is not None and arguments.devices is not None:
        raise CrossflowError("--nodes and --devices both say how many devices there are; give one of them")
    node = 1
    if arguments.nodes is not None:
        system = arguments.on or launch.system
        if not system:
            raise CrossflowError("--nodes counts nodes of a system; name it, such as --on h100-ib-cluster")
        node = load({"system": {"template": system, "nodes": arguments.nodes}, "workload": "llama3-8b", "strategy": "any"}).nodes[0]
    return written(devices=(arguments.nodes or arguments.devices) * node)


def _read(launch: Launch, document: files.Document) -> Iterator[str]:
    """Sentences on how a launch file was read: what is not modelled, what is not known, and how much means nothing for a prediction."""
    software = launch.software if isinstance(launch.software, str) else f"{launch.software['like']} with changes by flags"
    yield f"{launch.file} read as {launch.kind}, run by {software}"
    yield from (f"not modelled: {remark}" for remark in launch.unmodelled)
    yield from map(str, launch.notes)
    lengths = [remark for remark in launch.ignored if remark.why.startswith(_LENGTH)]
    yield from map(str, lengths if document.data.get("run") is None else ())
    if idle := [remark.flag for remark in launch.ignored if remark not in lengths]:
        flags, more = "1 flag changes" if len(idle) == 1 else f"{len(idle)} flags change", " ..." if len(idle) > _FLAGS else ""
        yield f"{flags} nothing that a prediction says: {', '.join(idle[:_FLAGS])}{more}"


def _replayed(launch: Launch) -> Iterator[str]:
    """A sentence on what flags say that only a replay of requests takes; a prediction notes it itself."""
    own = [
        f"workload.serving.{key}" for key in launch.workload.get("serving", {}) if key in ("preemption_mode", "swap_space", "cache_tokens")
    ]
    if own:
        yield f"{' and '.join(own)}, which flags say, {'change' if own[1:] else 'changes'} nothing here: {ONLY_REPLAYED}"


def _standard_input() -> str:
    """The scenario, or the launch file, that is written to standard input."""
    content = sys.stdin.buffer.read(limits.YAML_BYTES + 1)
    if len(content) > limits.YAML_BYTES:
        raise SpecError([Problem(file=_STDIN, message=f"cannot be read: it has more than {limits.YAML_BYTES:,} bytes")])
    try:
        text = limits.text_of(content)
    except ValueError as error:
        raise SpecError([Problem(file=_STDIN, message=f"cannot be read: {error}")]) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
