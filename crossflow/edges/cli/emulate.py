"""`crossflow emulate`: a training script on a few real ranks of many, and what a recorded one would have taken under other conditions."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from crossflow.base.errors import CrossflowError
from crossflow.base.files import Document, check_writable, json_text, write_text
from crossflow.base.rules import ranks_of
from crossflow.base.units import show
from crossflow.edges.cli import page
from crossflow.edges.cli.log import quiet
from crossflow.evidence.emulation.delays import delays_of
from crossflow.evidence.emulation.processes import RunOutcome, RunSettings, check_ranks, emulate, missing
from crossflow.evidence.emulation.record import part_of, read_record, write_record
from crossflow.evidence.emulation.replay import replay
from crossflow.evidence.emulation.what_if import read_what_if
from crossflow.evidence.torch.installed import require_torch
from crossflow.hardware.architecture.system import resolve

_SHOWN = 8  # kinds of collectives on a page


def run(arguments: argparse.Namespace) -> None:
    """Run the script, or replay a record; ends with the script's exit status."""
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if arguments.replay is not None:
        _replay(arguments, words)
        return
    _check_script(words)
    settings, local, part = _real(arguments) if arguments.real else _settings(arguments)
    head = _head(settings)
    _check_target("--json", _named(arguments.json, part), ".json")
    _check_target("--record", _named(arguments.record, part), ".json", ".json.gz")
    if part is not None and arguments.record is not None and arguments.record.exists():
        raise CrossflowError(f"--record: {arguments.record} would be read in place of the parts that launched ranks write; remove it")
    require_torch("crossflow emulate")
    outcome = emulate(settings, words, local)
    _report(arguments, head, outcome, part)
    if outcome.status:
        raise SystemExit(outcome.status)


def _check_script(words: Sequence[str]) -> None:
    """CrossflowError where there is nothing to run; Python itself says that there is no module."""
    if not words:
        raise CrossflowError("which script? write it after the options: crossflow emulate --world-size 1024 --system dgx-h100 -- train.py")
    path = Path(words[0])
    if words[0] == "-m":
        if len(words) < 2:
            raise CrossflowError("-m: which module?")
    elif not path.exists():
        raise CrossflowError(f"there is no script {path}")
    elif path.is_dir() and not (path / "__main__.py").is_file():
        raise CrossflowError(f"{path} is a folder without __main__.py; give a script")


def _settings(arguments: argparse.Namespace) -> tuple[RunSettings, int, int | None]:
    """What ranks are told, devices of a node, and the rank whose part of all files this is, None where there are no parts."""
    world_size, local = _world(arguments)
    real = ranks_of(arguments.ranks, "--ranks")
    check_ranks(real, world_size)
    part = None
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started a process for each of them
        place = int(os.environ["LOCAL_RANK"])
        if place >= len(real):
            raise CrossflowError(f"torchrun has started more processes than --ranks {arguments.ranks} names; give a rank for each")
        part = real[place] if len(real) > 1 else None
        real = real[place : place + 1]
    settings = RunSettings(
        world_size=world_size, rank=real[0], real=real, system=arguments.system, delays=arguments.delays, what_if=arguments.what_if,
        link=arguments.link, keeps=arguments.record is not None,
    )  # fmt: skip
    return settings, local, part


def _real(arguments: argparse.Namespace) -> tuple[RunSettings, int, int | None]:
    """The same where nothing is emulated: all ranks of a world on this machine, or the one that a launcher such as torchrun has started."""
    given = {"--system": arguments.system, "--delays": arguments.delays, "--what-if": arguments.what_if, "--link": arguments.link}
    given |= {"--nodes": arguments.nodes, "--ranks": arguments.ranks != "0"}
    for name, value in given.items():
        if value:
            raise CrossflowError(f"--real: all ranks run, on the network that they have, and nothing is emulated; leave out {name}")
    launched = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if os.environ.get(name, "").isdecimal()}
    keeps = arguments.record is not None
    if len(launched) < 2:
        if arguments.world_size is None:
            raise CrossflowError("--real: how many ranks? give --world-size N to run them on this machine, or start it with torchrun")
        real = tuple(range(arguments.world_size))
        return RunSettings(world_size=len(real), real=real, keeps=keeps, emulates=False), len(real), None
    if arguments.world_size is not None:
        raise CrossflowError(f"--real: the launcher has started {launched['WORLD_SIZE']} ranks (WORLD_SIZE); leave out --world-size")
    rank, world_size = int(launched["RANK"]), int(launched["WORLD_SIZE"])
    settings = RunSettings(world_size=world_size, rank=rank, real=(rank,), keeps=keeps, emulates=False)
    return settings, 0, rank if world_size > 1 else None


def _head(settings: RunSettings) -> dict[str, Any]:
    """What holds for all ranks of a run: their number, and where delays come from; CrossflowError for what is wrong with those."""
    if not settings.emulates:
        return {"world_size": settings.world_size, "real": True, "what_if": "", "delays": "the real network"}
    delays = settings.delays_()
    return {"world_size": settings.world_size, "what_if": delays.what_if.text, "delays": delays.source}


def _world(arguments: argparse.Namespace) -> tuple[int, int]:
    """Ranks of the world, and devices of a node."""
    if arguments.world_size is not None and arguments.nodes is not None:
        raise CrossflowError("--world-size and --nodes both say how many ranks there are; one of them is enough")
    if arguments.world_size is None and arguments.nodes is None:
        raise CrossflowError("how many ranks? give --world-size N, or --nodes N of the system")
    if arguments.system is None:
        if arguments.nodes is not None:
            raise CrossflowError("--nodes: nodes of which system? give --system NAME, or --world-size N")
        return arguments.world_size, 1
    size = {"devices": arguments.world_size} if arguments.nodes is None else {"nodes": arguments.nodes}
    spec, _ = resolve(Document(file="--system", data={"template": arguments.system, **size}))
    return spec.device_count, min(spec.devices_per_node, spec.device_count)


def _check_target(option: str, path: Path | None, *endings: str) -> None:
    """CrossflowError for a file that could not be written once the script has run."""
    if path is None:
        return
    if path.is_dir():
        raise CrossflowError(f"{option}: {path} is a folder; give a file")
    if not path.name.endswith(endings):
        raise CrossflowError(f"{option}: expected a file that ends in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise CrossflowError(f"{option}: there is no folder {path.parent}")
    check_writable(path, option)


def _report(arguments: argparse.Namespace, head: Mapping[str, Any], outcome: RunOutcome, part: int | None) -> None:
    """Write what was called: a page to stderr or JSON to a file, and the record."""
    found = [one for one in outcome.ranks.values() if one is not None]
    for rank in missing(outcome):
        if rank in outcome.stopped:
            page.log(f"crossflow: rank {rank} was ended because rank {outcome.failed} failed", error=True)
        else:
            page.log(f"crossflow: rank {rank} left no account of its collectives; it was ended by a signal or by os._exit")
    _show(head, [one["summary"] for one in found], _named(arguments.json, part))
    target = _named(arguments.record, part)
    if target is not None and not found:
        page.log(f"crossflow: {target} was not written, because no rank left what it called")
    elif target is not None:
        write_record(target, [one["record"] for one in found], **head)
        page.log(f"wrote {target}")


def _named(path: Path | None, part: int | None) -> Any:
    """A file, or a rank's part of it."""
    return path if path is None or part is None else part_of(path, part)


def _replay(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Replay a record with other delays or what-ifs."""
    given = {"a script": words, "--record": arguments.record, "--ranks": arguments.ranks != "0", "--nodes": arguments.nodes}
    given |= {"--world-size": arguments.world_size, "--real": arguments.real}
    for name, value in given.items():
        if value:
            raise CrossflowError(f"--replay replays a record, which says the rest; leave out {name}")
    _check_target("--json", arguments.json, ".json")
    record = read_record(arguments.replay)
    delays = None
    if arguments.system is not None or arguments.delays is not None:
        delays = delays_of(record.world_size, arguments.system, arguments.delays, arguments.what_if, arguments.link)
    elif arguments.link is not None:
        raise CrossflowError("--link: the record says what each collective queued for; give --system or --delays with it")
    what_if = read_what_if(arguments.what_if) if arguments.what_if and delays is None else None
    replayed = replay(record, what_if, delays)
    said = delays.what_if.text if delays is not None else record.what_if if what_if is None else what_if.text
    head = {"world_size": record.world_size, "what_if": said, "delays": record.delays if delays is None else delays.source}
    head |= {"real": True} if record.real else {}
    _show({**head, "replay": str(arguments.replay)}, [one.summary() for one in replayed], arguments.json)


def _show(head: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], target: Path | None) -> None:
    """The summary, to a file as JSON or to stderr as a page."""
    if target is not None:
        write_text(target, json_text({**head, "ranks": list(ranks)}))
        return
    if quiet():
        return
    console = page.PlainConsole(stderr=True, highlight=False, markup=False, emoji=False, force_jupyter=False)
    if not console.is_terminal:
        console.width = page.WIDTH
    changes = f", what if {head['what_if']}" if head["what_if"] else ""
    for one in ranks:
        console.print(Text.assemble((f"rank {one['rank']} of {head['world_size']}", "bold"), f", delays of {head['delays']}{changes}"))
        for line in _lines(one, head.get("real", False)):
            console.print(f"  {line}", soft_wrap=True)


def _lines(one: Mapping[str, Any], real: bool) -> list[str]:
    """A rank's summary."""
    if not one["collectives"]:
        return [f"no collective was called in this process, so nothing was {'noted' if real else 'emulated'}"]
    step = one["step_time_s"]
    lines = [f"{one['iterations']} iterations" + (f", {show(step, 's')} each (median)" if step is not None else "")]
    for row in one["collectives"][:_SHOWN]:
        counted = f"{row['count']} x {row['op']} among {row['ranks']}, {show(row['bytes'], 'B')}"
        lines.append(f"{counted}: {show(row['time_s'], 's')}, of which the script waited {show(row['exposed_s'], 's')}")
    if len(one["collectives"]) > _SHOWN:
        lines.append(f"and {len(one['collectives']) - _SHOWN} more kinds; --json FILE has all of them")
    if one.get("late"):
        lines.append(
            f"{one['late']} of them came late, by up to {show(one['latest_s'], 's')}: this machine is too slow or too busy for them"
        )
    return lines
