"""`crossflow init`: annotated files to begin with, and copies of the examples; each works as it is written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from crossflow.answers.catalogue.examples import TUTORIAL, command_of, example, examples, needed
from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean, known_name
from crossflow.edges.cli import page
from crossflow.workload.attended import FORMS

FOLDER = Path(__file__).parent / "init_files"
STDOUT = "-"
EXAMPLE = "example"  # the kind whose files are those of docs/examples
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
    "library": (
        "a technology library of your own: a memory beside those of the shipped one",
        "crossflow predict --model llama3-8b --on reference-serving --task decode --set system.techlib={file}"
        " system.technology.memory=MyHBM",
    ),
    "study": ("a sweep over networks and strategies, with its plot", "crossflow study {file}"),
}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Write the file of a kind or an example, or list them."""
    if arguments.kind is None:
        _list(json=arguments.json)
        return
    known = (*KINDS, EXAMPLE)
    kind = known_name(arguments.kind, known)
    if kind == EXAMPLE:
        _example(arguments)
        return
    if kind is None:
        raise CrossflowError(f"unknown kind '{arguments.kind}'{did_you_mean(arguments.kind, known)}; known: {', '.join(known)}")
    if arguments.name is not None:
        raise CrossflowError(f"init {kind} takes no name, and '{arguments.name}' was given; -o names the file")
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
    text = (FOLDER / f"{kind}.yaml").read_text(encoding="utf-8")
    return text.replace("OUTPUT_FORMS", ", ".join(FORMS))  # keys that a table of the workload has, in the comments


def _example(arguments: argparse.Namespace) -> None:
    """Write an example with the files that it names beside it, or list the examples."""
    if arguments.name is None:
        _examples(json=arguments.json)
        return
    source = example(arguments.name)
    name = source.parent.name if source.parent.name == TUTORIAL else source.stem
    if arguments.output == STDOUT:
        sys.stdout.write(source.read_text(encoding="utf-8"))
        return
    path = Path(arguments.output or (Path(name) / source.name if name == TUTORIAL else source.name))
    copies = {path if one == source else path.parent / one.name: one for one in needed(source)}
    for copy, one in copies.items():
        if not copy.is_file() or copy.read_bytes() != one.read_bytes():
            files.check_new(copy, replace=arguments.force)
    with files.named_by("-o"):
        for copy, one in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(copy, one.read_text(encoding="utf-8"))
    command = f"crossflow {command_of(source)} {path}"
    if arguments.json:
        page.emit_json({"example": name, "files": [str(copy) for copy in copies], "next": command})
    page.log(f"crossflow: wrote {', '.join(map(str, copies))}; next: {command}")


def _examples(*, json: bool) -> None:
    if json:
        page.emit_json({"examples": examples()})
        return
    page.emit(page.section("examples", [[name, about] for name, about in examples().items()], wraps=1))
    sys.stderr.write("crossflow: write one with: crossflow init example NAME [-o FILE]\n")


def _list(*, json: bool) -> None:
    if json:
        page.emit_json({"kinds": {kind: about for kind, (about, _) in KINDS.items()}})
        return
    rows = [[kind, about] for kind, (about, _) in KINDS.items()]
    rows.append([f"{EXAMPLE} NAME", "one of the examples of the documentation; without a name, lists them"])
    page.emit(page.section("kinds", rows, wraps=1))
    sys.stderr.write("crossflow: write one with: crossflow init KIND [-o FILE]\n")
