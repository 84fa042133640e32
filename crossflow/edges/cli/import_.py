"""`crossflow import`: a PyTorch model, a text of XLA, or a recorded run, as the file of a program."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_writable, named_by
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count
from crossflow.evidence.emulation.record import CallRecord, record_in
from crossflow.evidence.jax.importer import is_xla_text
from crossflow.evidence.replay.events import is_traces
from crossflow.evidence.torch.installed import require_torch
from crossflow.program.file import check_name, write_program
from crossflow.program.program import Program, fullest

OPTIONS = (
    "world_size", "parallel", "batch", "microbatches", "sequence", "dtype", "optimizer", "gradients", "task", "kernels", "samples", "name",
)  # fmt: skip
TEXT_OPTIONS = ("samples", "kernels")  # of models that texts of XLA take, too
MEANT_FOR = {
    "collectives": "traces", "execution": "traces", "rank": "models and records of crossflow emulate", "trips": "texts of XLA",
    "cost": "texts of XLA",
}  # fmt: skip  # sources that take other options


def run(arguments: argparse.Namespace) -> None:
    """Write the program of a model or of a record, all of it or nothing."""
    check_name(arguments.output)
    check_writable(arguments.output, "-o")
    page.check_apart(arguments.output, map(Path, arguments.source))
    sources = [Path(source) for source in arguments.source]
    if all(is_traces(source) for source in sources):
        program = _of_traces(arguments, sources)
    elif len(sources) > 1:
        raise CrossflowError(
            "several sources are traces of the ranks of one job; give a model, a text of XLA or a record of emulate by itself"
        )
    elif is_xla_text(sources[0]):
        program = _of_text(arguments)
    else:
        found = record_in(sources[0])
        program = _of_model(arguments) if found is None else _of_record(arguments, found)
    with named_by("-o"):
        write_program(program, arguments.output)
    page.log(f"wrote {arguments.output}")
    if arguments.json:
        page.emit_json(summary(program))
    else:
        page.emit(*sections(program))


def _of_model(arguments: argparse.Namespace) -> Program:
    _refuse_options(arguments, "collectives", "execution", "trips", "cost")
    require_torch("crossflow import")
    from crossflow.evidence.torch.importer import record

    return record(arguments.source[0], rank=arguments.rank, **{name: getattr(arguments, name) for name in OPTIONS})


def _of_text(arguments: argparse.Namespace) -> Program:
    """The program of a text of XLA, which says all but what a step is."""
    from crossflow.evidence.jax.importer import import_text

    _refuse_options(arguments, "collectives", "execution", "rank")
    _refuse_those_of_models(arguments, "a text of XLA says it itself", *TEXT_OPTIONS)
    found = import_text(
        arguments.source[0], name=arguments.name, samples=arguments.samples, kernels=arguments.kernels, trips=arguments.trips,
        costs=arguments.cost,
    )  # fmt: skip
    for note in found.notes:
        page.log(note)
    return found.program


def _of_record(arguments: argparse.Namespace, found: CallRecord) -> Program:
    """The program of a recorded run, of which everything is known but its name and which of its ranks is meant."""
    from crossflow.evidence.emulation.program import recorded_program

    _refuse_options(arguments, "collectives", "execution", "trips", "cost")
    _refuse_those_of_models(arguments, "a record of crossflow emulate says it itself")
    return recorded_program(found, arguments.name or _name(arguments), arguments.rank)


def _of_traces(arguments: argparse.Namespace, sources: Sequence[Path]) -> Program:
    """The program of a step of a job from traces of its ranks."""
    from crossflow.evidence.replay.clocks import aligned
    from crossflow.evidence.replay.execution import joined, read_executions
    from crossflow.evidence.replay.graph import graph_of
    from crossflow.evidence.replay.kineto import read_traces
    from crossflow.evidence.replay.program import traced_program
    from crossflow.evidence.replay.report import not_replayed

    _refuse_options(arguments, "rank", "trips", "cost")
    _refuse_those_of_models(arguments, "a trace says it itself")
    graph = graph_of(aligned(joined(read_traces(sources), read_executions(arguments.execution))))
    if graph.traces[0].modelled:
        raise CrossflowError(not_replayed(graph.traces[0]))
    for note in (*(note for trace in graph.traces for note in trace.notes), *graph.notes):
        page.log(note)
    return traced_program(graph, arguments.name or _name(arguments), modelled=arguments.collectives == "modelled")


def _refuse_options(arguments: argparse.Namespace, *names: str) -> None:
    """CrossflowError for an option that belongs to sources of another kind."""
    for name in names:
        if getattr(arguments, name) not in (None, []):
            raise CrossflowError(f"--{name} is for {MEANT_FOR[name]}")


def _refuse_those_of_models(arguments: argparse.Namespace, why: str, *others: str) -> None:
    """CrossflowError for an option that only models take, and `others`."""
    from crossflow.edges.cli.parser import parse

    given = parse(["import", *arguments.source, "-o", str(arguments.output)])
    for option in OPTIONS:
        if option not in ("name", *others) and getattr(arguments, option) != getattr(given, option):
            raise CrossflowError(f"--{option.replace('_', '-')} is for models; {why}")


def _name(arguments: argparse.Namespace) -> str:
    return Path(arguments.source[0]).name.partition(".")[0]


def summary(program: Program) -> dict[str, Any]:
    """What the program holds, as plain data."""
    return {
        "name": program.name, "dtype": program.dtype, "mesh": dict(program.axes),
        "groups": {name: vars(one) for name, one in program.groups},
        "operations": len(program.ops), "kernels": len(program.kernels), "parameters": program.parameters, "samples": program.samples,
        "tokens": program.tokens, "host_synchronisations": sum(op.calls for op in program.ops if op.host == "kernel"),
        "messages": messages(program), "memory_bytes": held(program),
    }  # fmt: skip


def held(program: Program) -> dict[str, float]:
    """Memory by kind of a device of the stage that holds most, without kinds of which it holds nothing. [B]"""
    return {kind: float(size) for kind, size in fullest(program.memory).items() if size}


def messages(program: Program) -> list[dict[str, Any]]:
    """Messages of a step by collective, axes and phase: how many, and bytes of their buffers. [1], [B]"""
    often, size = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for op, copies in zip(program.ops, program.places.count.tolist(), strict=True):
        if op.message is not None:
            one = program.messages[op.message]
            key = one.collective, " x ".join(one.axes), op.phase
            often[key] += copies
            size[key] += copies * one.size  # of one design point
    names = ("collective", "axes", "phase")
    return [{**dict(zip(names, key, strict=True)), "count": number, "bytes": size[key]} for key, number in often.items()]


def sections(program: Program) -> list[RenderableType]:
    """The page: what was recorded, what it sends, what a device holds at most."""
    mesh = " x ".join(f"{name} {size}" for name, size in program.axes) or "one device"
    rows: dict[str, RenderableType] = {
        "mesh": mesh,
        "operations": f"{count(len(program.ops))}, products in {program.dtype}",
        "parameters": count(float(program.parameters)),
        "samples": f"{count(float(program.samples))} a step" + (f" of {count(float(program.tokens))} tokens" if program.tokens else ""),
        "memory": ", ".join(f"{kind} {show(size, 'B')}" for kind, size in held(program).items()),
    }
    calls = sum(op.calls for op in program.ops if op.host == "kernel")
    if calls:
        rows["host"] = f"waits for the device {'once' if calls == 1 else f'{calls} times'}"
    sent = [(one["collective"], one["axes"], one["phase"], count(one["count"]), show(one["bytes"], "B")) for one in messages(program)]
    table = [Text(), *page.columns_of(("messages", "axes", "phase", "count", "bytes"), sent)] if sent else []
    return [page.first_line(program.name), Text(), page.indented(page.pairs(rows)), *table]
