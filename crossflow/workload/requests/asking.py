"""From a section, or a file, to requests: what all that replays or describes them calls."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossflow.base import contents
from crossflow.base.arrays import Index
from crossflow.base.errors import CrossflowError
from crossflow.workload.requests.draws import drawn
from crossflow.workload.requests.laws import LengthLaw
from crossflow.workload.requests.reading import Reading, read_lengths, read_trace, timed
from crossflow.workload.requests.record import RequestTrace
from crossflow.workload.requests.scaling import asked_of, slowed
from crossflow.workload.requests.spec import TIMES, RequestsSpec

KEPT = 4  # sections whose requests are kept: a scenario asks for them again and again
Stamp = tuple[str, int, int]  # path, time of its last change, bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedRequests:
    """Requests, and sentences on what was done to the file that they come from."""

    trace: RequestTrace
    notes: tuple[str, ...] = ()


def requests_in(spec: RequestsSpec, base: Path | None = None) -> AskedRequests:
    """The requests of a section whose files lie in a folder.

    Raises
    ------
    SpecError
        For a file that is wrong, with the line.
    CrossflowError
        For a section that asks for what its trace does not have; the sentence begins with the key.
    """
    return _kept(spec, tuple(_stamp(found_file(name, key, base)) for key, name in files_of(spec)))


def files_of(spec: RequestsSpec) -> list[tuple[str, str]]:
    """Files that a section names, each with its key."""
    named = [] if spec.trace is None else [("trace", spec.trace)]
    places = [("", spec), *((f"classes[{i}].", one) for i, one in enumerate(spec.classes))]
    for place, one in places:
        laws = {"prompt": one.prompt, "output": one.output, "tools.tokens": None if one.tools is None else one.tools.tokens}
        named += [(f"{place}{key}.file", law.file) for key, law in laws.items() if law is not None and law.file is not None]
    return list(dict.fromkeys(named))


def found_file(name: str, key: str, base: Path | None) -> Path:
    """The path of a file, from the folder of what names it, then from the current one; CrossflowError where there is none."""
    for path in (Path(name) if base is None else base / name, Path(name)):
        if contents.is_file(path):
            return path
    raise CrossflowError(f"{key}: there is no file {name}")


def _stamp(path: Path) -> Stamp:
    state = path.stat()
    return str(path), state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=KEPT)
def _kept(spec: RequestsSpec, stamps: tuple[Stamp, ...]) -> AskedRequests:
    """Requests of a section whose files are known by their stamps: read or drawn once."""
    paths = {name: Path(stamp[0]) for (_, name), stamp in zip(files_of(spec), stamps, strict=True)}
    if spec.trace is None:
        return AskedRequests(trace=slowed(drawn(spec, lambda law: _values(law, paths)), spec.time_scale))
    path, reading = paths[spec.trace], Reading.of(spec)
    trace, notes = read_trace(path, reading)
    if not spec._said(TIMES) and not timed(path, reading):
        raise CrossflowError(
            "trace: it does not say when requests arrive; name the column in columns.arrival, or give arrivals, users or batch"
        )
    return AskedRequests(trace=slowed(asked_of(trace, spec), spec.time_scale), notes=notes)


def _values(law: LengthLaw, paths: dict[str, Path]) -> Index:
    assert law.file is not None  # else its values stand there
    return read_lengths(paths[law.file], law.column)


def means(trace: RequestTrace) -> tuple[int, int]:
    """Mean tokens of prompts and of outputs, whole and at least one."""
    return max(round(float(np.mean(trace.prompt))), 1), max(round(float(np.mean(trace.output))), 1)


def mean_rate(trace: RequestTrace) -> float:
    """Requests a second over the span of a trace, 0 where all come at once. [1/s]"""
    span = float(trace.arrival[-1] - trace.arrival[0])
    return (len(trace) - 1) / span if span > 0 else 0.0
