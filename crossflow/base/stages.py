"""What crossflow itself does, stage by stage, for ``-v`` and ``--profile``; nothing is kept while nobody watches."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, ParamSpec, TypeVar

StageArguments = ParamSpec("StageArguments")
StageResult = TypeVar("StageResult")


class StageSpan(NamedTuple):
    """One run of a stage."""

    name: str
    start: float  # [s]
    end: float  # [s]
    thread: int
    own: float  # of its time, what no stage within it takes. [s]


@dataclass
class StageWatch:
    """Collects the spans of all stages of this process while it is on."""

    spans: list[StageSpan] = field(default_factory=list)
    inside: dict[int, list[float]] = field(default_factory=dict)  # by thread, for each open stage the time of those within it. [s]

    def __enter__(self) -> StageWatch:
        _ON.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ON.remove(self)

    def totals(self) -> dict[str, tuple[int, float]]:
        """How often each stage ran, and its own time in all, the longest first. [1], [s]"""
        found: dict[str, tuple[int, float]] = {}
        for span in self.spans:
            count, time_ = found.get(span.name, (0, 0.0))
            found[span.name] = count + 1, time_ + span.own
        return dict(sorted(found.items(), key=lambda pair: -pair[1][1]))


_ON: list[StageWatch] = []  # who watches


def stage(name: str) -> Callable[[Callable[StageArguments, StageResult]], Callable[StageArguments, StageResult]]:
    """Make a function a stage: its runs are spans for whoever watches."""

    def of(function: Callable[StageArguments, StageResult]) -> Callable[StageArguments, StageResult]:
        @functools.wraps(function)
        def staged(*args: StageArguments.args, **kwargs: StageArguments.kwargs) -> StageResult:
            if not _ON:
                return function(*args, **kwargs)
            thread, watch = threading.get_ident(), _ON[-1]
            open_ = watch.inside.setdefault(thread, [])
            open_.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                end = time.perf_counter()
                within = open_.pop()
                if open_:
                    open_[-1] += end - start
                watch.spans.append(StageSpan(name, start, end, thread, end - start - within))

        return staged

    return of


def kept_results() -> dict[str, tuple[int, int]]:
    """Functions of crossflow that keep their results: how often one was found again, and how often it was worked out. [1]"""
    kept: dict[str, tuple[int, int]] = {}
    for name, module in sorted(sys.modules.items()):
        for key, value in list(vars(module).items()) if name.startswith("crossflow") and module is not None else ():
            asked = getattr(value, "cache_info", None)
            if asked is not None and getattr(value, "__module__", "") == name:
                found = asked()
                kept[f"{name.removeprefix('crossflow.')}.{key}"] = found.hits, found.misses
    return kept
