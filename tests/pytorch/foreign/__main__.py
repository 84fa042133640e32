"""Import foreign models at six layouts each, and hold parameters and operations against torch's own counts.

``python -m tests.pytorch.foreign`` runs all, a process each; with names, those that contain one of them. A row says for each layout
whether the model is imported, refused with a cure, left out because the layout has no meaning for it, or ends in torch's words.
Operations of scans are not compared: torch counts the products of one that is written out.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import torch

from tests.pytorch.foreign.further import FURTHER
from tests.pytorch.foreign.models import MODELS

LAYOUTS = {
    "one": {}, "ddp": {"world_size": 4, "parallel": "ddp"}, "fsdp2": {"world_size": 4, "parallel": "fsdp2"},
    "tp": {"world_size": 2, "parallel": "tp=2"}, "pp": {"world_size": 2, "parallel": "pp=2"},
    "tp+fsdp2": {"world_size": 4, "parallel": "tp=2,fsdp2"},
}  # fmt: skip
# What a layout needs and a model does not have: equal layers for stages, matrices of layers for tensor ranks.
NO_MEANING = ("the longest list of equal layers", "has no layers with a known plan", "equal layers")
LIMIT = 600  # of a model [s]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of models; all where there are none")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", help="file of rows, one JSON a line")
    parser.add_argument("--layouts", default="", help="of these, by comma")
    given = parser.parse_args()
    layouts = given.layouts.split(",") if given.layouts else [*LAYOUTS]
    torch.set_num_threads(1)
    for package in ("transformers", "timm", "torchvision", "diffusers"):
        importlib.import_module(package)
    wanted = [name for name in MODELS | FURTHER if not given.names or any(part in name for part in given.names)]
    rows, say = [], sys.stdout.write
    with ThreadPoolExecutor(given.jobs) as pool:
        for found in pool.map(lambda name: _run(name, layouts), wanted):
            rows.append(found)
            say(_line(found) + "\n")
            if given.out:
                with open(given.out, "a") as file:
                    file.write(json.dumps(found) + "\n")
    totals = Counter(state(one) for found in rows for one in found["layouts"].values())
    counted = sum(totals.values()) - totals["left out"]
    say(f"{len(rows)} models: {dict(totals)}; imported {totals['imported'] / max(counted, 1):.1%} of {counted}\n")
    return 0


def _run(name: str, layouts: list[str]) -> dict[str, Any]:
    """A row by a process of its own, which has imported all packages already."""
    begun = time.monotonic()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(LIMIT)
        _child(write, name, layouts)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    found = json.loads(said) if said else {"layouts": {one: {"error": f"ended with status {status}"} for one in layouts}}
    return {"name": name, "time": round(time.monotonic() - begun, 1), **found}


def _child(write: int, name: str, layouts: list[str]) -> NoReturn:
    from tests.pytorch.foreign.counted import row

    try:
        found = row(name, {one: LAYOUTS[one] for one in layouts})
    except Exception:
        found = {"layouts": {one: {"error": traceback.format_exc()[-2000:]} for one in layouts}}
    with os.fdopen(write, "w") as pipe:
        pipe.write(json.dumps(found))
    os._exit(0)


def state(one: dict[str, Any]) -> str:
    """What became of a layout."""
    if "refused" in one:
        reason = one["refused"]
        return "left out" if any(words in reason for words in NO_MEANING) else "torch's words" if " raised " in reason else "refused"
    if "error" in one:
        return "error"
    if one["parameters"] != one["own_parameters"]:
        return "wrong parameters"
    wrong = one["flops"] < one["least"] * 0.99 or one["flops"] > one["most"] * 1.01
    return "wrong operations" if wrong else "imported"


def _line(found: dict[str, Any]) -> str:
    parts = []
    for layout, one in found["layouts"].items():
        what = state(one)
        detail = "" if what == "imported" else f": {one.get('refused') or one.get('error', '')[-300:]}"
        if what.startswith("wrong"):
            detail = (
                f": {one['parameters']:.0f} of {one['own_parameters']:.0f} parameters, {one['flops']:.4g} of {one['least']:.4g} operations"
            )
        parts.append(f"  {layout:6}{what}{detail}")
    return "\n".join([f"{found['name']} ({found['time']} s)", *parts])


if __name__ == "__main__":
    sys.exit(main())
