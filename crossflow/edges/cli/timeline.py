"""`crossflow timeline`: a step as a trace for Perfetto, as a picture, in the terminal, beside another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.lasting import drawn
from crossflow.answers.evaluation.phases import drawn_phases
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.planning.opening import load
from crossflow.answers.scenario import Scenario
from crossflow.base.arrays import plain
from crossflow.base.drawing.words import quantity
from crossflow.base.errors import CrossflowError
from crossflow.base.files import check_writable, named_by
from crossflow.edges.cli import page
from crossflow.edges.cli.progress import progress
from crossflow.edges.cli.source import scenario_of
from crossflow.edges.trace.compare import compare, draw_comparison
from crossflow.edges.trace.files import ENDINGS, PICTURES, TRACES
from crossflow.edges.trace.gantt import draw_gantt, gantt_of
from crossflow.edges.trace.months import draw_months, months_summary, text_months, write_months
from crossflow.edges.trace.perfetto import write_ranks, write_trace
from crossflow.edges.trace.text import text_comparison, text_gantt
from crossflow.engine.runs.uneven import EVEN, Uneven, load_uneven
from crossflow.engine.timeline.record import Timeline

_PATH = 12  # slots of the critical path that JSON has, from each end


def run(arguments: argparse.Namespace) -> None:
    """Build the timeline of the scenario and show or write what is asked for."""
    if arguments.run:
        whole_run(arguments)
        return
    if arguments.seed is not None:
        raise CrossflowError("--seed is of the failures of a whole run; add --run, or leave it out")
    chosen = _ranks(arguments.ranks)
    if arguments.ranks is not None and all(path.suffix.lower() in PICTURES for path in arguments.output):
        raise CrossflowError("--ranks chooses what a trace holds, and no trace is written; name one: -o step.json.gz")
    for path in arguments.output:
        check_output(path, compared=arguments.compare is not None)
    uneven = EVEN if arguments.uneven is None else load_uneven(arguments.uneven)
    scenario, assumed = scenario_of(arguments)
    page.log_choices(scenario, assumed)
    first = simulate(scenario, uneven)
    _tell_steady(scenario, first, uneven)
    second = None if arguments.compare is None else simulate(load(arguments.compare, arguments.settings), uneven)
    for path in sorted(arguments.output, key=lambda path: path.suffix.lower() in PICTURES):  # ranks are checked as traces are written
        write_output(first, second, path, chosen)
    if arguments.json:
        page.emit_json(summary(first) if second is None else compare(first, second).to_dict())
    elif second is not None:
        page.emit(text_comparison(first, second, page.columns()))
    elif arguments.text or not arguments.output:
        page.emit(text_gantt(first, page.columns()))


def _tell_steady(scenario: Scenario, found: Timeline, uneven: Uneven) -> None:
    """Say how long a step takes while tokens follow one another, where a timeline begins and ends with empty pipeline stages."""
    if getattr(scenario.workload, "task", None) != "decode" or uneven is not EVEN:
        return
    steady = float(evaluate(scenario, columns=()).step_time[0])
    if steady < found.total * (1.0 - 1e-3):
        page.log(
            f"note: the timeline is that of one token of every request, from empty stages to empty stages; while tokens follow one another "
            f"a step takes {quantity(steady, 's')}, as `crossflow predict` says"
        )


def whole_run(arguments: argparse.Namespace) -> None:
    """Draw the whole run of the scenario from a seed, and show or write it."""
    for option in ("ranks", "compare", "uneven"):
        if getattr(arguments, option) is not None:
            raise CrossflowError(f"--{option} is of a step, and --run shows the whole run; leave one of them out")
    seed = arguments.seed or 0
    if not 0 <= seed < 2**32:
        raise CrossflowError(f"--seed: expected a whole number from 0 to {2**32 - 1}, got {seed}")
    for path in arguments.output:
        check_output(path)
        if not path.suffix:
            raise CrossflowError(f"{path}: a whole run is one file; {ENDINGS}")
    scenario, assumed = scenario_of(arguments)
    page.log_choices(scenario, assumed)
    found = drawn_phases(scenario, seed) if scenario.phased else drawn(scenario, evaluate(scenario), seed, spans=True)[0]
    for path in arguments.output:
        with named_by("-o"):
            _tell_new(path.parent)
            made = [path] if path.suffix.lower() not in PICTURES else draw_months(found, scenario.name, path)
            if path.suffix.lower() not in PICTURES:
                write_months(found, scenario.name, path)
            for one in made:
                page.log(f"wrote {one}")
    if arguments.json:
        page.emit_json(months_summary(found, seed))
    elif arguments.text or not arguments.output:
        page.emit(text_months(found, page.columns()))


def check_output(path: Path, *, compared: bool = False) -> None:
    """CrossflowError for a file that is none of those that can be written, or cannot be written, before anything is."""
    suffix = path.suffix.lower()
    if not suffix and path.exists() and not path.is_dir():
        raise CrossflowError(f"{path} is no folder; a name without ending is a folder of traces, a trace ends in .json or .json.gz")
    if suffix and suffix not in (*TRACES, *PICTURES):
        raise CrossflowError(f"{path}: {ENDINGS}")
    if compared and suffix not in PICTURES:
        raise CrossflowError(f"{path}: two steps are compared in a picture (.png, .svg); write a trace of each by itself")
    check_writable(path, "-o", folder=not suffix)


def write_output(first: Timeline, second: Timeline | None, path: Path, chosen: Any) -> None:
    """One file, by its ending, or a folder of traces."""
    with named_by("-o"):
        _write(first, second, path, chosen)


def _write(first: Timeline, second: Timeline | None, path: Path, chosen: Any) -> None:
    _tell_new(path.parent)
    if path.suffix.lower() in PICTURES:
        made = draw_gantt(gantt_of(first), path) if second is None else draw_comparison(first, second, path)
        for one in made:
            page.log(f"wrote {one}")
    elif path.suffix:
        with progress("events") as report:
            events = write_trace(first, path, ranks=chosen, progress=lambda done, total: report(done, total, ""))
        page.log(f"wrote {path}: {events:,} events; open it in ui.perfetto.dev")
    else:
        new = not path.exists()
        with progress("events") as report:
            write_ranks(first, path, ranks=chosen, progress=lambda done, total: report(done, total, ""))
        told = f"made the folder {path}, for its name has no ending, and wrote traces into it" if new else f"wrote traces into {path}"
        page.log(f"{told}, a file a rank; one file is -o {path}.json.gz")


def _tell_new(folder: Path) -> None:
    """Say of a folder that is not there that it will be made: a slip in a path would else go unseen."""
    if not folder.exists():
        page.log(f"making the folder {folder}, which was not there")


def _ranks(text: str | None) -> Any:
    """Ranks to write: all, some, or one of every class of devices where nothing is said."""
    if text is None or text == "all":
        return text
    if not all(part.isdecimal() for part in text.split(",")):
        raise CrossflowError(f"--ranks: expected 'all' or whole numbers such as 0,8,16, got '{text}'")
    return [int(part) for part in text.split(",")]


def summary(found: Timeline) -> dict[str, Any]:
    """Plain data: where the time of every class of devices goes, its memory, and the critical path; times in s, sizes in B."""
    activity, peaks = found.activity(), [float(held.max()) for _, held in found.memory]
    path = found.critical_path()
    return {
        "title": found.title,
        f"{found.of}_time_s": found.total,
        "events": found.event_count,
        "fits": found.overfull is None,
        "reason": found.overfull,
        "devices": [
            {
                "name": device.name,
                "stage": device.stage,
                "ranks": len(device.ranks),
                "first_rank": int(device.ranks[0]),
                "utilisation": float(activity["busy"][i] / found.total),
                **{f"{name}_s": plain(times[i]) for name, times in activity.items()},
                "peak_memory_bytes": peaks[i],
                "least_slack_s": float(found.slack[found.slots_of(i)].min()),
            }
            for i, device in enumerate(found.devices)
        ],
        "capacity_bytes": found.capacity,
        "critical_path": {
            "slots": len(path),
            "ends": [_slot(found, slot) for slot in (path if len(path) <= 2 * _PATH else [*path[:_PATH], *path[-_PATH:]])],
        },
    }


def _slot(found: Timeline, slot: int) -> dict[str, Any]:
    slots = found.slots
    return {
        "device": found.devices[int(slots.device[slot])].name, "pass": found.passes[int(slots.passed[slot])].label,
        "microbatch": int(slots.microbatch[slot]), "start_s": float(slots.start[slot]), "end_s": float(slots.end[slot]),
        "slack_s": float(found.slack[slot]),
    }  # fmt: skip
