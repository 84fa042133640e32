"""`crossflow trace`: a real step, explained; replayed with changes; beside another trace or a prediction."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from crossflow.base import files
from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_writable, named_by
from crossflow.base.rules import listed as ranges
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count
from crossflow.edges.cli.timeline import check_output, write_output
from crossflow.evidence.replay.breakdown import PARTS
from crossflow.evidence.replay.kernels import plain_name
from crossflow.evidence.replay.overheads import overheads_of, read_overheads, write_overheads
from crossflow.evidence.replay.reach import KernelLoss
from crossflow.evidence.replay.report import LARGEST, TraceReport, accuracy, not_replayed, report_of
from crossflow.evidence.replay.timeline import traced_timeline
from crossflow.program.embedding.datasets import named
from crossflow.program.embedding.reuse import Reuse

if TYPE_CHECKING:
    from crossflow.edges.launch.mending import MendedLaunch

_SHOWN = 16  # ranks that a page lists
_GROUP = 24  # letters of a list of ranks
_NAME = 64  # letters of a name that it shows
_KERNEL, _OPERATION = 36, 20  # the same of a kernel beside its operation
_PROOFS = 3  # of a finding
_REASONS = 5  # kinds of kernels that are not modelled
_PART_NAMES = {"exposed_communication": "communication"}


def run(arguments: argparse.Namespace) -> None:
    """Read the traces, and show or write what is asked for."""
    rewritten = _of_launch(arguments)
    pictures = [path for path in arguments.output if path not in rewritten]
    for path in arguments.output:
        if path in rewritten:
            check_writable(path, "-o")
        else:
            check_output(path)
        page.check_apart(path, [*arguments.files, *([arguments.launch] if arguments.launch else [])])
    if arguments.write_overheads is not None:
        check_writable(arguments.write_overheads, "--write-overheads")
    elif arguments.host:
        raise CrossflowError("--host names the host of --write-overheads FILE, which was not given")
    if arguments.advise:
        _check_advised(arguments)
    overheads = None if arguments.overheads is None else read_overheads(arguments.overheads)
    found = report_of(
        arguments.files, execution=arguments.execution, what_if=arguments.what_if, overheads=overheads,
        contention=not arguments.no_contention, whole=arguments.whole, jobs=arguments.jobs,
        kernels=arguments.kernels, on=arguments.on, device=arguments.device,
        reuse=None if arguments.reuse is None else _reuse(arguments.reuse),
    )  # fmt: skip
    if arguments.write_overheads is not None:
        if found.modelled:
            raise CrossflowError(not_replayed(found.graph.traces[0]))
        with named_by("--write-overheads"):
            write_overheads(overheads_of([found.graph], arguments.host), arguments.write_overheads)
        page.log(f"wrote {arguments.write_overheads}")
    mended = None
    if arguments.advise:
        _ = found.advice  # what it refuses is refused before a file is written
        mended = None if arguments.launch is None else _mended(found, arguments.launch, rewritten)
    if pictures:
        shown = traced_timeline(found.graph, found.times, found.name)
        for path in pictures:
            write_output(shown, None, path, None)
    other = None if arguments.compare is None else _other(arguments.compare, judged=arguments.json)
    if arguments.json:
        told = found.advice.to_dict() | ({} if mended is None else {"launch": mended.to_dict()}) if arguments.advise else None
        first = {**found.to_dict(), **({} if told is None else {"advice": told})}
        page.emit_json(first if other is None else {"first": first, "second": other[1]})
    elif arguments.advise:
        flags = () if mended is None else launch_flags(mended)
        page.emit(headline(found), *phases(found), *(() if found.crowd is None else (ranks(found),)), *advice(found), *flags, notes(found))
    elif other is None:
        page.emit(*sections(found))
    else:
        page.emit(*comparison(found, *other))


def _of_launch(arguments: argparse.Namespace) -> list[Path]:
    """Outputs that are to hold the launch file with its flags changed."""
    if arguments.launch is None:
        return []
    if not arguments.advise:
        raise CrossflowError("--from FILE is compared with advice; give --advise with it")
    return [path for path in arguments.output if path.suffix == arguments.launch.suffix]


def _mended(found: TraceReport, file: Path, outputs: Sequence[Path]) -> MendedLaunch:
    """A launch file beside the advice, written with its flags changed where that is asked for."""
    from crossflow.edges.launch.mending import mended  # with the tables of flags, which few traces need

    result = mended(found, file)
    for path in outputs:
        if result.text is None:
            raise CrossflowError(f"-o {path}: flags of {file} cannot be changed in its lines; change them by the list, without this -o")
        files.write_text(path, result.text)
        page.log(f"wrote {path}")
    return result


def launch_flags(found: MendedLaunch) -> list[RenderableType]:
    """What to change in the launch file of the run."""
    rows = [
        [Text(f"{one.change.what} {one.change}"), Text(f"at most {show(one.gain, 's')}"),
         Text("" if one.change.line is None else f"line {one.change.line}"), Text(one.title)]
        for one in found.flags
    ]  # fmt: skip
    aside = f"{found.kind}; the most that each can bring is the gain of a replay in which all of what it is for is mended"
    shown: list[RenderableType] = [
        page.section(
            f"Flags of {found.file}", rows or [[Text("none is to be changed")]], (1,) if rows else (), aside=aside, wraps=3 if rows else 0
        )
    ]
    lines = [[Text(line)] for line in found.difference]
    shown += [page.section("The file", lines)] if lines else []
    return [*shown, *([page.section("What stays", [[Text(line)] for line in found.left], wraps=0)] if found.left else [])]


def _check_advised(arguments: argparse.Namespace) -> None:
    """CrossflowError where a changed step, or another one, is asked for beside advice."""
    changed = {
        "--what-if": arguments.what_if, "--compare": arguments.compare, "--on": arguments.on, "--overheads": arguments.overheads,
        "--kernels": arguments.kernels != "trace",
    }  # fmt: skip
    for option, given in changed.items():
        if given:
            raise CrossflowError(f"--advise says why the step is slow as it was measured; leave out {option}")


def _reuse(name: str) -> Reuse:
    """Reuse factors that are shipped, or those of a file."""
    from crossflow.workload.dlrm_spec import ReuseSpec

    if not name.endswith((".yaml", ".yml", ".json")):
        try:
            return named(name)
        except ValueError as error:
            raise CrossflowError(f"--reuse: {error}") from None
    return files.validate(ReuseSpec, files.read_yaml(Path(name))).reuse()


def _other(path: Path, *, judged: bool) -> tuple[str, dict[str, Any]]:
    """Name and figures of what a trace is compared with: another trace, or a prediction."""
    if path.suffix in (".yaml", ".yml"):
        from crossflow.answers.planning.opening import load
        from crossflow.answers.prediction import predict

        return f"prediction {path}", predict(load(path)).to_dict()
    found = report_of([path])
    return found.name, found.to_dict(judged=judged)


def comparison(found: TraceReport, name: str, other: Mapping[str, Any]) -> list[RenderableType]:
    """Both steps beside each other."""
    mine = found.to_dict(judged=False)
    rows = [["step", mine["step_time_s"], other["step_time_s"]]]
    for title, key in (("", "breakdown_s"), ("", "communication_s")):
        first, second = mine[key], other[key]
        for part in dict.fromkeys((*first, *second)):
            one, two = (_total(each.get(part, 0.0)) for each in (first, second))
            if one or two:
                rows.append([f"{title}{part.replace('_', ' ')}", one, two])
    table = [[Text(str(label)), Text(show(one, "s")), Text(show(two, "s")), Text(_change(one, two))] for label, one, two in rows]
    return [page.section(f"{found.name} beside {name}", table, (1, 2, 3), header=("", found.name[:_NAME], name[:_NAME], "change"))]


def _total(value: Any) -> float:
    return float(value["total"] if isinstance(value, Mapping) else value or 0.0)


def _change(one: float, two: float) -> str:
    return f"{two / one - 1.0:+.1%}" if one else ""


def sections(found: TraceReport) -> list[RenderableType]:
    """What the page has."""
    begin = [headline(found), *phases(found), ranks(found), waits(found), path(found), communication(found), kernels(found)]
    return [*begin, losses(found), kinds(found), unmodelled(found), replay(found), notes(found)]


def headline(found: TraceReport) -> RenderableType:
    """What the step takes."""
    traces = found.graph.traces
    windows = len(traces[0].windows)
    devices = f"{traces[0].device or 'an unnamed device'}, {found.read:,} of {found.world:,} ranks"
    steps = f"{count(windows)} step{'s' if windows > 1 else ''} of each"
    rows: dict[str, RenderableType] = {"trace": Text(f"{found.name}: {devices}, {steps}")}
    if found.replayed:
        change = found.step_time / found.unchanged - 1.0
        rows["what if"] = Text(found.changes)
        without = f"{show(found.unchanged, 's')} replayed without it ({change:+.1%}), {show(found.measured, 's')} measured"
        rows["step"] = Text(f"{show(found.step_time, 's')} of the slowest rank; {without}")
    elif found.modelled:
        rows["step"] = Text(f"{show(found.step_time, 's')}; below, rank {found.slowest.rank} stands for it, which idles least")
    else:
        rows["step"] = Text(f"{show(found.step_time, 's')} of the slowest rank, {found.slowest.rank}")
    largest = found.bound_by[:2]
    rows["made of" if found.modelled else "decided by"] = Text(
        ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in largest)
    )
    return page.pairs(rows)


def ranks(found: TraceReport) -> RenderableType:
    """Where the step of every rank goes."""
    header = ["rank", "step", *(_PART_NAMES.get(part, part) for part in PARTS)]
    most = _SHOWN if found.crowd is None else _SHOWN // 2
    listed = sorted(found.ranks, key=lambda one: -one.time)[:most]
    named = {trace.rank: f"{trace.rank} {trace.label}".strip() for trace in found.graph.traces}
    together = [(_short(ranges(one.numbers), _GROUP), one.mean) for one in found.alike]
    rows = [
        [name, show(one.time, "s"), *(f"{one.parts[part] / (one.time or 1.0):.1%}" for part in PARTS)]
        for name, one in (*together, *((named[one.rank], one) for one in listed))
    ]
    aside = f"the slowest {_SHOWN} of {len(found.ranks)}" if len(found.ranks) > _SHOWN else "mean step of each rank"
    if found.crowd is not None:
        above = ", below the mean of all that are alike" if together else ""
        aside = f"the slowest {len(listed)} of {len(found.ranks)} ranks that were read whole{above}"
    right = range(1 if found.modelled else 0, 8)
    return page.section("Where the time goes", [[Text(cell) for cell in row] for row in rows], right, aside=aside, header=header)


def phases(found: TraceReport) -> list[RenderableType]:
    """Where the steps of an inference engine go by phase, and what its host does in them."""
    header = ("", "steps", "step", "between", "requests", "rows", "graphs", "padded", "busy", "exposed", "host")
    rows, scopes = [], []
    for one in found.phases:
        whole = one.time or 1.0
        exposed = one.parts["exposed_communication"] + one.parts["waiting"]
        shares = (one.parts["busy"], exposed, one.parts["host"] + one.parts["idle"])
        rows.append([
            one.phase, count(one.steps), show(one.time, "s"), show(one.between, "s"), f"{one.requests:.0f}", _known(one.rows, ".0f"),
            f"{one.graphs:.0%}", _known(one.padded, ".0%"), *(f"{part / whole:.0%}" for part in shares),
        ])  # fmt: skip
        told = ", ".join(f"{name} {show(time, 's')}" for name, time in one.scopes.items())
        scopes += [[Text(one.phase), Text(told)]] if told else []
    aside = f"{found.engine}, mean of each phase; host and idle together" if rows else ""
    shown = page.section("Steps of the engine", [[Text(cell) for cell in row] for row in rows], range(1, 11), aside=aside, header=header)
    return [shown, page.section("What the host of the engine does in a step", scopes, wraps=1)]


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def waits(found: TraceReport) -> RenderableType:
    """Who keeps the other ranks waiting."""
    rows = [
        [Text(f"rank {one.rank}"), Text(f"last to come to {count(one.collectives)}"), Text(f"others waited {show(one.time, 's')}")]
        for one in found.late[:LARGEST]
    ]
    return page.section("Who the others wait for", rows, aside="in collectives, all ranks together")


def path(found: TraceReport) -> RenderableType:
    """What decides the length of the step."""
    whole, longest = sum(found.path.time.values()) or 1.0, [*found.path.names.items()][:LARGEST]
    rows = [[Text(_short(name)), Text(show(time, "s")), Text(f"{time / whole:.1%}")] for name, time in longest]
    kinds = ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in found.bound_by)
    return page.section("Critical path", rows, (1, 2), aside=kinds)


def _short(name: str, letters: int = _NAME) -> str:
    return name if len(name) <= letters else f"{name[: letters - 4]} ..."


def communication(found: TraceReport) -> RenderableType:
    """Collectives by kind."""
    rows = [
        [Text(name), Text(show(total, "s")), Text(f"exposed {show(exposed, 's')}")]
        for name, (total, exposed) in sorted(found.communication.items(), key=lambda item: -item[1][0])
    ]
    return page.section("Communication", rows, (1,), aside="a step of the slowest rank, waiting for others included")


def kernels(found: TraceReport) -> RenderableType:
    """Kernels that take most."""
    whole = sum(one.time for one in found.kernels) or 1.0
    rows = [
        [Text(_short(one.name)), Text(count(one.count)), Text(show(one.time, "s")), Text(f"{one.time / whole:.1%}")]
        for one in found.kernels[:LARGEST]
    ]
    return page.section("Largest kernels", rows, (1, 2, 3), aside="all steps of the slowest rank")


def losses(found: TraceReport) -> RenderableType:
    """Kernels that lose most against the model."""
    lost = [] if found.model is None else [one for one in found.model.losses[:LARGEST] if one.lost > 0]
    named = [(_short(one.kernel, _KERNEL), _short(plain_name(one.operation), _OPERATION)) for one in lost]
    rows = [[*map(Text, names), *_against(one), Text(show(one.lost, "s"))] for names, one in zip(named, lost, strict=True)]
    aside = "" if found.model is None else f"largest losses against {found.model.device}, all ranks and steps"
    return page.section(
        "Kernels by what they could reach", rows, (2, 3, 4, 5), aside=aside, header=("", "of", "", "measured", "modelled", "lost")
    )


def kinds(found: TraceReport) -> RenderableType:
    """What the model says of every kind of kernel."""
    listed = [] if found.model is None else found.model.kinds
    rows = [[Text(one.kind), *_against(one), Text(f"{one.error:+.0%}")] for one in listed]
    aside = "" if found.model is None else f"{found.model.share:.0%} of the time of kernels and copies is modelled"
    return page.section("Kernels by kind", rows, (1, 2, 3, 4), aside=aside, header=("", "", "measured", "modelled", "error"))


def _against(one: KernelLoss) -> list[Text]:
    return [Text(count(one.count)), Text(show(one.measured, "s")), Text(show(one.modelled, "s"))]


def unmodelled(found: TraceReport) -> RenderableType:
    """What the model says nothing of."""
    listed = [] if found.model is None else found.model.unmodelled[:_REASONS]
    rows = [
        [Text(_short(one.operation, _KERNEL)), Text(count(one.count)), Text(show(one.measured, "s")), Text(one.reason)] for one in listed
    ]
    return page.section("Not modelled", rows, (1, 2))


def advice(found: TraceReport) -> list[RenderableType]:
    """Why the step is slow: what mending each ill brings, and how it is mended."""
    given = found.advice
    shown = given.findings[:LARGEST]
    rows, cures = [], []
    for number, one in enumerate(shown, 1):
        figures = (show(one.gain, "s"), f"{one.gain / given.step_time:.1%}", show(one.time, "s"), one.trust)
        rows.append([Text(str(number)), *map(Text, figures), Text(one.title)])
        cures.append([Text(str(number)), Text(f"{one.cure.text}: {', '.join(one.cure.switches)}")])
        for proof in one.proofs[:_PROOFS]:
            cures.append([Text(""), Text(_proved(proof.name, proof.count, proof.time, proof.rank, proof.at, proof.said))])
    aside = f"a step takes {show(given.step_time, 's')} in a replay, {show(found.measured, 's')} measured"
    header = ("", "gain", "", "takes", "trust", "")
    listed = page.section("Why the step is slow", rows, (1, 2, 3), aside=aside, header=header, wraps=5)
    left = [f"{len(given.findings) - len(shown)} more bring less"] if len(given.findings) > len(shown) else []
    told = page.section("In all", [[Text(text)] for text in (given.sentence, *left)], wraps=0)
    return [listed, told, page.section("What mends it, and what shows it", cures, wraps=1)]


def _proved(name: str, number: int, time: float, rank: int, at: float, said: str) -> str:
    """A proof in a line: how much of it there is, where the longest is, and what else is said of it."""
    several = f" in {count(number)}" if number > 1 else ""
    where = f", {'the longest ' if number > 1 else ''}on rank {rank}, {show(at, 's')} after its begin" if at else ""
    return f"- {_short(name)}: {show(time, 's')}{several}{where}{f'; {said}' if said else ''}"


def replay(found: TraceReport) -> RenderableType:
    """How well a replay meets the trace."""
    texts = {
        "measured_times": "with the trace's own times (a reconstruction)",
        "mean_overheads": "with mean overheads of the other ranks or steps",
        "largest_stream_sum": "largest sum of a stream, the baseline",
    }
    rows = [
        [Text(texts[name]), Text(f"{figures['mean']:.1%}"), Text(f"at most {figures['largest']:.1%}")]
        for name, figures in ({} if found.modelled else accuracy(found.graph)).items()
        if figures["mean"] is not None
    ]
    return page.section("Replay", rows, (1, 2), aside="mean error of a step")


def notes(found: TraceReport) -> RenderableType:
    """What had to be assumed."""
    return page.section("Notes", [[Text(note)] for note in found.notes], wraps=0)
