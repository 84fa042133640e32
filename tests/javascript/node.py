"""The tests of the scripts of pages, run by Node where it is installed."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from crossflow.base.drawing import palette
from crossflow.base.units import show
from crossflow.edges.explore.page import common
from crossflow.edges.explore.server import App

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parents[1] / "crossflow" / "edges" / "explore" / "assets"
NODE = shutil.which("node")
LIMIT = 300  # [s] of one run, which takes two on an idle machine
NUMBERS = (3.35e12, 2.5e-5, 80 * 2**30, 0.85, 1.0, 7.5, 1234.4, 999.96, 4096.0, 1e-13, 3.2e6, 0.0, -42e9, 1536.0, 0.0626)


def start() -> dict[str, Any]:
    """What the tests begin with: what every page does, and numbers as Python writes them."""
    app = cast(App, SimpleNamespace(title="test page"))
    cases = [(value, unit, show(value, unit)) for value in NUMBERS for unit in ("1", "s", "B", "B/s", "W", "J", "USD", "flop/s", "m2")]
    told = [case for case in cases if "e" not in case[2]]  # Python's exponents have a sign and two digits
    more = {"tints": list(palette.TINTS), "hatched": list(palette.WAITING), "told": told}
    return {
        **common(app),
        **more,
        "rounded": [(value, count, float(f"{value:.{count}g}")) for value in NUMBERS for count in (1, 2, 3, 4, 6)],
    }


def copied(folder: Path) -> Path:
    """A copy of the scripts that Node takes for modules."""
    for path in ASSETS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (folder / "start.json").write_text(json.dumps(start()), encoding="utf-8")
    return folder


def asked(folder: Path, before: Callable[[], None] | None = None) -> Mapping[str, str]:
    """What went wrong by test, with the scripts of a folder; CalledProcessError where they do not load. `before` is called there."""
    command = [str(NODE), str(HERE / "run.mjs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, preexec_fn=before)
    found: dict[str, str] = json.loads(done.stdout)
    return found
