"""Take the pictures of pages in docs/figures: ``python docs/scripts/make_pictures.py [--study FOLDER]`` (Playwright and Chromium).

The page of the study shows what ``crossflow study pareto --out FOLDER`` wrote; without ``--study`` the study is run first, which
takes some two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pages
from playwright.sync_api import Browser, Page, sync_playwright

SCENARIO = """\
name: llm-chip
system: {template: reference-training, devices: 512}
workload: {model: llama3-70b, global_batch: 512, sequence: 8192}
strategy: tp8-dp16-pp4-z1-sp-selective
software: megatron-core
"""
MEMORY, POWER = {"system.technology.memory": "HBM4"}, {"system.budgets.power": 900.0}
WHOLE, LONGEST = (
    ".levers:not(.waiting) .lever",
    120_000,
)  # what is there when all that can be changed was tried, and how long that takes [ms]
SETTLED = 6000  # until timeline and what limits the design have followed [ms]


@contextlib.contextmanager
def served(source: Path) -> Iterator[str]:
    """Address of the page of a scenario or a study."""
    command = [sys.executable, "-m", "crossflow", "explore", str(source), "--json", "--no-browser"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert running.stdout is not None
        yield json.loads(running.stdout.readline())["url"]
    finally:
        running.terminate()
        running.wait()


def shown(browser: Browser, url: str, state: dict[str, Any], width: int, height: int, scheme: str = "light") -> Page:
    """A page in the state that its address holds."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(f"{url}#{quote(json.dumps(state))}" if state else url)
    page.wait_for_timeout(SETTLED)
    return page


def of_scenario(browser: Browser, folder: Path) -> None:
    """A changed memory; and two designs pinned beside it, on a narrow dark page."""
    path = folder / "llm-chip.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    with served(path) as url:
        page = shown(browser, url, {"s": MEMORY}, 1280, 860)
        page.wait_for_selector(WHOLE, timeout=LONGEST)
        page.screenshot(path=pages.DOCS / "figures" / "explore-scenario.png")
        pins = [{"n": "A", "s": POWER}]
        page = shown(browser, url, {"s": POWER | MEMORY, "p": pins, "r": 0}, 800, 860, "dark")
        page.wait_for_selector(WHOLE, timeout=LONGEST)
        page.get_by_text("Why faster").first.evaluate("e => e.scrollIntoView({block: 'center'})")
        page.wait_for_timeout(SETTLED)
        page.screenshot(path=pages.DOCS / "figures" / "explore-pins.png")


def of_study(browser: Browser, folder: Path) -> None:
    """What the page of a study begins with."""
    with served(folder) as url:
        page = shown(browser, url, {}, 1280, 1080)
        page.screenshot(path=pages.DOCS / "figures" / "explore-study.png")


def of_trace(browser: Browser) -> None:
    """What the page of a trace begins with."""
    with served(pages.DOCS.parent / "tests" / "data" / "traces" / "train_rank3_step_kineto.json.gz") as url:
        page = shown(browser, url, {}, 1280, 900)
        page.screenshot(path=pages.DOCS / "figures" / "explore-trace.png")


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, metavar="FOLDER", help="what `crossflow study pareto --out FOLDER` wrote")
    study = parser.parse_args().study
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        if study is None:
            study = folder / "pareto"
            subprocess.run(
                [sys.executable, "-m", "crossflow", "study", "pareto", "--out", str(study)], check=True, stdout=subprocess.DEVNULL
            )
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        of_scenario(browser, folder)
        of_study(browser, study)
        of_trace(browser)
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
