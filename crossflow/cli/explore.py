"""`crossflow explore`: a page on which a scenario or the results of a study answer at once."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from crossflow.cli import page
from crossflow.errors import CrossflowError
from crossflow.explore.server import App, serve
from crossflow.files import check_writable, named_by

PAGES = (".html", ".htm")  # endings of a page's file


def run(arguments: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, or write it as one file."""
    if arguments.export is not None:
        check_writable(arguments.export, "--export")
        if arguments.export.suffix.lower() not in PAGES:
            raise CrossflowError(f"--export writes a page: give it a name that ends in .html, not {arguments.export}")
    app = _app(arguments.source, arguments.settings)
    if arguments.export is not None:
        _export(app, arguments.source, arguments.export)
        return

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


def _app(source: Path, settings: list[str]) -> App:
    if source.is_dir():
        if settings:
            raise CrossflowError("--set changes a scenario; the results of a study are what they are")
        from crossflow.explore.study import study_app

        return study_app(source)
    from crossflow.explore.scenario import scenario_app
    from crossflow.scenario import load

    return scenario_app(load(source, settings))


def _export(app: App, source: Path, target: Path) -> None:
    from crossflow.explore.page import exported
    from crossflow.files import write_bytes

    if source.is_file():
        page.check_apart(target, [source])
    with named_by("--export"):
        write_bytes(target, exported(app).encode())
    page.log(f"wrote {target}")
