"""`crossflow explore`: a page on which a scenario, the results of a study or a trace answer at once."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from crossflow.answers.planning.opening import ScenarioSource, load
from crossflow.answers.planning.question import INSTEAD
from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document, check_writable, named_by
from crossflow.edges.cli import page
from crossflow.edges.cli.progress import waiting
from crossflow.edges.cli.source import STDIN, source_of
from crossflow.edges.explore.origin import Origin
from crossflow.edges.explore.server import App, serve

PAGES = (".html", ".htm")  # endings of a page's file
RESULTS = "the results of a study are what they are"
TRACE = "a trace is what was measured, and changes are written on its page"


def run(arguments: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or write it as one file."""
    target: Path | None = arguments.export
    if target is not None:
        check_writable(target, "--export")
        if target.suffix.lower() not in PAGES:
            raise CrossflowError(f"--export writes a page: give it a name that ends in .html, not {target}")
        page.check_apart(target, [one for one in arguments.sources if one.is_file()])
    elif arguments.moved:
        raise CrossflowError("--with says what can be moved on the page that --export writes; give --export PAGE.html too")
    app = _app(arguments)
    if target is not None:
        _export(app, target, as_json=arguments.json)
    else:
        _serve(app, arguments)


def _serve(app: App, arguments: argparse.Namespace) -> None:
    def announce(url: str) -> None:
        sys.stdout.write(json.dumps({"url": url}) + "\n" if arguments.json else f"{app.title}: {url}\n")
        sys.stdout.flush()
        page.log("Ctrl-C ends it")

    try:
        serve(app, port=arguments.port, announce=announce, open_browser=not arguments.no_browser, log=page.log)
    except KeyboardInterrupt as end:
        if end.args not in ((), (signal.SIGINT,)):  # another signal than Ctrl-C, which is how this command ends
            raise
        page.log("ended")


# ------------------------------------------------------------------------------------------ what is opened


def _app(arguments: argparse.Namespace) -> App:
    """The page of what a command names."""
    sources: Sequence[Path] = arguments.sources
    kind = "scenario"
    if sources and sources[0] != STDIN:
        from crossflow.edges.explore.opening import kind_of, unplaced

        kind = kind_of(sources[0])
        if kind == "program" and arguments.on is None:
            raise CrossflowError(unplaced(sources[0]))
    if len(sources) > 1 and kind != "traces":
        raise CrossflowError(f"one page shows one thing; leave {sources[1]} out (only traces, one of each rank, are given together)")
    opened: dict[str, Callable[[argparse.Namespace], App]] = {"study": _study, "results": _results, "traces": _traces}
    return opened.get(kind, _scenario)(arguments)


def _scenario(arguments: argparse.Namespace) -> App:
    from crossflow.edges.explore.scenario import scenario_app

    asked = argparse.Namespace(**vars(arguments), scenario=arguments.sources[0] if arguments.sources else None)
    source, assumed, _ = source_of(asked)
    with waiting("choosing the strategy"):
        scenario = load(source, arguments.settings)
    page.log_choices(scenario, assumed)
    with waiting("evaluating what the page begins with"):
        return scenario_app(scenario, _origin(asked, source, assumed), arguments.moved)


def _origin(arguments: argparse.Namespace, source: ScenarioSource, assumed: Sequence[str]) -> Origin:
    """How the scenario was given, for other commands."""
    named = {name: value for name in INSTEAD if (value := getattr(arguments, name)) is not None}
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    if arguments.launch is not None:
        words = ["--from", str(arguments.launch), *words]
    elif arguments.scenario is not None:
        words = [str(arguments.scenario), *words]
    file = str(arguments.scenario) if isinstance(source, Path) else ""
    settled: tuple[str, ...] = ()
    if isinstance(source, Document) and arguments.launch is None and arguments.scenario is None:
        held = {f"workload.{key}": value for key, value in source.data["workload"].items()}
        given = {INSTEAD[name] for name in named}
        settled = tuple(f"{path}={value}" for path, value in held.items() if path not in given)
    settings = tuple(arguments.settings)
    return Origin(words=tuple(words), settings=settings, settled=settled, file=file, assumed=tuple(assumed))


def _study(arguments: argparse.Namespace) -> App:
    from crossflow.edges.explore.study_finding import results_of_study

    folder, changed = results_of_study(arguments.sources[0])
    if changed:
        page.log(changed)
    return _results(arguments, folder)


def _results(arguments: argparse.Namespace, folder: Path | None = None) -> App:
    from crossflow.edges.explore.opening import results_of
    from crossflow.edges.explore.study import study_app

    _refuse(arguments, RESULTS, "--with chooses what can be moved of a scenario; the page of a study holds all of its points")
    with waiting("reading the points"):
        return study_app(folder or results_of(arguments.sources[0]))


def _traces(arguments: argparse.Namespace) -> App:
    from crossflow.edges.explore.traces import traces_app

    on, arguments.on = arguments.on, None
    _refuse(arguments, TRACE, "--with chooses what can be moved of a scenario; the page of a trace holds the trace as it is")
    with waiting("reading the traces"):
        return traces_app(arguments.sources, on=on or "")


def _refuse(arguments: argparse.Namespace, why: str, moved: str) -> None:
    """CrossflowError for words that mean nothing for what is opened."""
    if arguments.settings:
        raise CrossflowError(f"--set changes a scenario; {why}")
    names = [name for name in INSTEAD if getattr(arguments, name) is not None]
    option = f"--{names[0]}" if names else "--from" if arguments.launch is not None else ""
    if option:
        raise CrossflowError(f"{option} describes a scenario; {why}: leave it out, or leave {arguments.sources[0]} out")
    if arguments.moved:
        raise CrossflowError(moved)


# ------------------------------------------------------------------------------------------ as a file


def _export(app: App, target: Path, *, as_json: bool) -> None:
    from crossflow.base.files import write_bytes
    from crossflow.edges.explore.page import exported

    with waiting("evaluating what the page holds"):
        answers = dict(app.offline())
        content = exported(app, answers).encode()
    with named_by("--export"):
        write_bytes(target, content)
    if as_json:
        axes = {axis["path"]: len(axis["values"]) for axis in answers.get("axes", ())}
        page.emit_json({"page": str(target), "bytes": len(content), "designs": len(answers.get("points", ())), "moved": axes})
    page.log(f"wrote {target} ({len(content) / 1e6:.1f} MB){answers.get('told', '')}")
    app.close()
