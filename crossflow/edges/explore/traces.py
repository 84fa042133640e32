"""The page of a traced step: where the time of every rank goes, kinds of kernels, why it is slow, and what changes would bring."""

from __future__ import annotations

import functools
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.scenario import strip
from crossflow.edges.explore.server import App
from crossflow.evidence.replay.breakdown import PARTS
from crossflow.evidence.replay.report import TraceReport, report_of, report_on
from crossflow.evidence.replay.timeline import traced_timeline

PERFETTO = "https://ui.perfetto.dev"  # which opens a trace that somebody gives it
LONGEST = 2000  # characters of changes
RANKS = 64  # that a page shows, the slowest
# What people try first: each with what it asks.
USUAL: Mapping[str, str] = {
    "compute*0": "if kernels took no time",
    "compute*0.5": "if kernels were twice as fast",
    "communication*0": "if collectives took no time",
    "host*0": "if the host took no time",
    "host*0.5": "if the host were twice as fast",
    "synchronisation*0": "if the host never waited for the device",
    "copies*0": "if copies took no time",
}


def traces_app(paths: Sequence[Path], *, on: str = "") -> App:
    """The page of the traces of a job, one of each rank; `on` is another device or system that they are replayed on.

    Raises
    ------
    CrossflowError
        For files that are no traces, or not those of one job.
    """
    report = report_of(paths, on=on)
    command = ["crossflow", "trace", *map(str, paths), *(["--on", on] if on else [])]
    page = _Page(report, command, on)
    calls: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "replay": page.replay,
        "usual": page.usual,
        "timeline": page.timeline,
        "advice": page.advice,
    }
    return App(title=report.name, page="trace.html", start=page.start, calls=calls, offline=page.offline)


class _Page:
    """What is kept of the traces; a replay takes some time and memory, so that there is one at once."""

    def __init__(self, report: TraceReport, command: Sequence[str], on: str) -> None:
        self._report, self._command, self._on = report, command, on
        self._lock = threading.Lock()
        self._kept = functools.lru_cache(maxsize=8)(self._replayed)

    def _replayed(self, what_if: str) -> TraceReport:
        return report_on(self._report.graph, what_if=what_if, name=self._report.name, on=self._on, crowd=self._report.crowd)

    def _changed(self, what_if: str) -> TraceReport:
        with self._lock:
            return self._kept(what_if) if what_if else self._report

    def start(self) -> dict[str, Any]:
        traces = self._report.graph.traces
        return {
            "first": shown(self._report),
            "device": traces[0].device or "",
            "modelled": self._report.modelled,
            "steps": len(traces[0].windows),
            "world": self._report.world,
            "read": self._report.read,
            "files": [str(trace.source) for trace in traces],
            "parts": list(PARTS),
            "command": shlex.join(self._command),
            "perfetto": PERFETTO,
        }

    def replay(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The step with the changes ``what_if``."""
        return shown(self._changed(_changes(body)))

    def timeline(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the device of every rank does when, as rectangles."""
        found = self._changed(_changes(body))
        return strip(traced_timeline(found.graph, found.times, found.name))

    def usual(self, _: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What the usual changes bring, those that shorten the step most first."""
        found = []
        for changes, words in USUAL.items():
            try:
                found.append({"what_if": changes, "words": words, "time": self._changed(changes).step_time})
            except CrossflowError:  # what it changes is not in this trace
                continue
        return sorted(found, key=lambda row: float(row["time"]))

    def advice(self, _: Mapping[str, Any]) -> dict[str, Any] | None:
        """Why the step is slow, what mending it brings and how it is mended; None of a step on another device, or that crossflow wrote."""
        with self._lock:
            return None if self._on or self._report.modelled else self._report.advice.to_dict()

    def offline(self) -> dict[str, Any]:
        """What the page needs where nothing can be replayed."""
        return {"usual": self.usual({}), "timeline": self.timeline({}), "advice": self.advice({})}


def shown(report: TraceReport) -> dict[str, Any]:
    """What a page shows of a step; of many ranks the slowest."""
    found = report.to_dict(judged=False)
    ranks = sorted(found["ranks"], key=lambda rank: -float(rank["step_time_s"]))
    kept = (
        "step_time_s", "measured_step_time_s", "replayed_step_time_s", "what_if", "communication_s", "bound_by", "waited_for", "kernels",
        "critical_path", "device_template", "modelled_share", "losses", "kernel_kinds", "not_modelled", "notes",
    )  # fmt: skip
    return {
        **{name: found[name] for name in kept},
        "changes": report.changes,
        "stands_for": report.slowest.rank,
        "ranks": ranks[:RANKS],
        "left": max(0, len(ranks) - RANKS),
    }


def _changes(body: Mapping[str, Any]) -> str:
    """The changes that a page asks for."""
    found = body.get("what_if", "")
    if not isinstance(found, str) or len(found) > LONGEST:
        raise CrossflowError(f"what_if: expected changes such as compute*0.5,all_reduce+2ms, of at most {LONGEST} characters")
    return found.strip()
