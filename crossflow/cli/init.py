"""`crossflow init`: annotated files to begin with, each of which works as it is written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from crossflow import files
from crossflow.cli import page
from crossflow.errors import CrossflowError, did_you_mean, known_name

FOLDER = Path(files.__file__).parent / "data" / "init"
STDOUT = "-"
# What each kind is, and the command to type next.
KINDS: Mapping[str, tuple[str, str]] = {
    "training": ("a training step of a language model on a cluster", "crossflow predict {file}"),
    "serving": ("a service of a language model in steady state", "crossflow predict {file}"),
    "recommendation": ("a training step of a recommendation model", "crossflow predict {file}"),
    "design": ("a device generated from technology and budgets, under a workload", "crossflow explain {file}"),
    "device": (
        "a device by its data sheet, as a template of scenarios",
        "crossflow predict --model llama3-8b --on {file} --devices 1 --task decode",
    ),
    "cluster": ("nodes of devices and their network, as a template of scenarios", "crossflow plan --model llama3-8b --on {file} --nodes 4"),
    "study": ("a sweep over networks and strategies, with its plot", "crossflow study {file}"),
}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write the file of a kind, or list the kinds."""
    if arguments.kind is None:
        _list(json=arguments.json)
        return
    kind = known_name(arguments.kind, KINDS)
    if kind is None:
        raise CrossflowError(f"unknown kind '{arguments.kind}'{did_you_mean(arguments.kind, KINDS)}; known: {', '.join(KINDS)}")
    text = template(kind)
    if arguments.output == STDOUT:
        sys.stdout.write(text)
        return
    path = Path(arguments.output or f"{kind}.yaml")
    files.check_new(path, replace=arguments.force)
    with files.named_by("-o"):
        files.write_text(path, text)
    command = KINDS[kind][1].format(file=path)
    if arguments.json:
        page.emit_json({"kind": kind, "file": str(path), "next": command})
    page.log(f"crossflow: wrote {path}; next: {command}")


def template(kind: str) -> str:
    """Text of the annotated file of a kind."""
    return (FOLDER / f"{kind}.yaml").read_text(encoding="utf-8")


def _list(*, json: bool) -> None:
    if json:
        page.emit_json({"kinds": {kind: about for kind, (about, _) in KINDS.items()}})
        return
    rows = [[kind, about] for kind, (about, _) in KINDS.items()]
    page.emit(page.section("kinds", rows, wraps=1))
    sys.stderr.write("crossflow: write one with: crossflow init KIND [-o FILE]\n")
