"""Runs microbenchmarks within a budget of time, and keeps every row as soon as it is measured."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.locks import owning
from crossflow.evidence.measurement import results
from crossflow.evidence.measurement.machine import MachineFacts, load, machine_facts

# Share of the time that each kind of row may take; what one leaves over goes to those behind it.
SHARES: Mapping[str, float] = {
    "host": 0.06, "copies": 0.04, "gemm": 0.32, "pointwise": 0.21, "normalisation": 0.07, "softmax": 0.06, "reductions": 0.04,
    "attention": 0.09, "embedding": 0.08, "collectives": 0.03,
}  # fmt: skip
ROW, STEP = 0.06, 0.6  # time that the samples of a row may take, and of a row that is a whole step [s]
FEWEST = 3  # rows of a kind, however short the time
ROOM = 2.0**29  # bytes of all sets of buffers of a row, at most [B]
SEED = 0


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is to be measured.

    Attributes
    ----------
    folder : where rows go.
    only : kinds, all where empty.
    device, dtype : cpu or cuda, and type of the numbers.
    threads : of torch; its own number where absent.
    minutes : budget of time. [min]
    resume : whether the rows of an earlier run are kept.
    """

    folder: Path
    only: Sequence[str] = ()
    device: str = "cpu"
    dtype: str = "fp32"
    threads: int | None = None
    minutes: float = 5.0
    resume: bool = False

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds that are measured."""
        return [kind for kind in SHARES if kind in self.only or not self.only]


@dataclass(frozen=True, kw_only=True)
class MeasureProgress:
    """Where a run stands."""

    kind: str
    label: str
    rows: int
    elapsed: float  # [s]
    left: float  # most that is left. [s]


def check(options: MeasureOptions) -> None:
    """CrossflowError for options that cannot be."""
    for kind in options.only:
        if kind not in SHARES:
            raise CrossflowError(f"--only: expected some of {', '.join(SHARES)}, got '{kind}'{did_you_mean(kind, SHARES)}")
    if not 0 < options.minutes <= 24 * 60:
        raise CrossflowError(f"--minutes: expected more than 0 and at most a day, got {options.minutes:g}")
    if options.folder.exists() and not options.folder.is_dir():
        raise CrossflowError(f"{options.folder} is no folder; give another one with -o")
    for name in () if (options.folder / results.ROWS).exists() else results.DERIVED:
        if (options.folder / name).exists():
            raise CrossflowError(
                f"{options.folder / name} exists without the {results.ROWS} that it follows from; give another folder with -o"
            )
    if (options.folder / results.ROWS).exists() and not options.resume:
        raise CrossflowError(f"{options.folder / results.ROWS} exists; give --resume to go on with it, or another folder with -o")


def measure(options: MeasureOptions, tell: Callable[[MeasureProgress], None] = lambda _: None) -> results.MeasuredMachine:
    """Measure, and write the profile and the template of what was measured, also where the run is interrupted.

    Raises
    ------
    CrossflowError
        For options that cannot be, a device that is not there, and a folder of another machine.
    """
    from crossflow.evidence.torch.installed import require_torch

    check(options)
    require_torch("crossflow measure")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise CrossflowError("--device cuda: torch finds no GPU here; measure with --device cpu")
    with owning(options.folder, "-o"):
        check(options)  # another run may have begun and ended meanwhile
        before = torch.get_num_threads()
        torch.set_num_threads(options.threads or before)
        torch.manual_seed(SEED)
        try:
            header, facts = _header(options, torch)
            known = _begin(options, header)
            try:
                _run(options, facts, known, tell)
            finally:
                results.write_derived(options.folder)
        finally:
            torch.set_num_threads(before)
        return results.read_rows(options.folder)


def _header(options: MeasureOptions, torch: Any) -> tuple[dict[str, Any], MachineFacts]:
    """Provenance of the rows."""
    facts = machine_facts()
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{facts.host}-cpu"
    return {
        "device": "".join(letter if letter.isalnum() else "-" for letter in name.lower()), "on": options.device, "dtype": options.dtype,
        "threads": torch.get_num_threads(), "torch": torch.__version__, "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "command": " ".join(["crossflow", *sys.argv[1:]]), "rates": dict(facts.rates), "machine": facts.to_dict(),
    }, facts  # fmt: skip


AGREE = ("device", "on", "dtype", "threads", "torch")  # of the header, in which two runs into one folder agree


def _begin(options: MeasureOptions, header: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Begin the file of rows, or go on with it; the rows that it has."""
    if not (options.folder / results.ROWS).exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        results.append(options.folder, {"header": header})
        return set()
    found = results.read_rows(options.folder)
    for name in AGREE:
        if (there := getattr(found.header, name)) != header[name]:
            both = f"{there}, this run of {header[name]}"
            raise CrossflowError(f"{options.folder} has rows of {name} {both}; measure into another folder")
    results.append(options.folder, {"resumed": {"date": header["date"], "command": header["command"], "load": round(load(), 2)}})
    return {(row.kind, row.label) for row in found.rows}


def _run(options: MeasureOptions, facts: MachineFacts, known: set[tuple[str, str]], tell: Callable[[MeasureProgress], None]) -> None:
    """Measure kind after kind, each within its share of the time that is left."""
    start, budget, rows, kinds = time.monotonic(), 60.0 * options.minutes, 0, list(options.kinds)
    for i, kind in enumerate(kinds):
        elapsed = time.monotonic() - start
        share = SHARES[kind] / sum(SHARES[one] for one in kinds[i:])
        end = start + elapsed + share * max(0.0, budget - elapsed)
        for row in _rows(kind, options, facts, known, end):
            results.append(options.folder, {"kind": kind, "dtype": "", "ranks": 1, "scope": "", **row})
            rows, elapsed = rows + 1, time.monotonic() - start
            tell(MeasureProgress(kind=kind, label=row["label"], rows=rows, elapsed=elapsed, left=max(0.0, budget - elapsed)))


def _rows(kind: str, options: MeasureOptions, facts: MachineFacts, known: set[tuple[str, str]], end: float) -> Iterator[dict[str, Any]]:
    """Rows of a kind that are not known yet, until time is up."""
    if kind == "collectives":
        yield from _collectives(options, facts, known, end)
        return
    import torch

    from crossflow.evidence.measurement.clock import Clock
    from crossflow.evidence.measurement.host import host_benchmarks, kernels_of_step
    from crossflow.evidence.measurement.kernels import BenchmarkSettings, benchmarks, event_of

    settings = BenchmarkSettings(device=options.device, dtype=options.dtype)
    clock = Clock(device=options.device, threads=torch.get_num_threads())
    rows = host_benchmarks(settings) if kind == "host" else benchmarks(kind, settings)
    for i, one in enumerate(one for one in rows if (kind, one.label) not in known):
        if i >= FEWEST and time.monotonic() >= end:
            return
        first = one.make()
        op, shape, dtype = one.event or event_of(first, options.dtype)
        sets = max(1, min(one.sets, int(ROOM / max(one.held, 1.0)), int(ROW / max(clock.once(first), 1e-6))))
        calls = [first, *(one.make() for _ in range(sets - 1))]
        found = clock.timed(calls, STEP if kind == "host" else ROW).to_dict()
        if one.less is not None:
            less = clock.timed([one.less() for _ in range(sets)], ROW).to_dict()
            found |= {name: max(found[name] - less[name], 0.02 * found[name]) for name in ("time", "wall", "cpu")}
            found["busy"] |= less["busy"]
        if kind == "host":
            found["kernels"] = [[*name, count] for name, count in kernels_of_step(one, options.dtype).items()]
        yield {"label": one.label, "op": op, "shape": shape, "dtype": dtype, **found}


def _collectives(options: MeasureOptions, facts: MachineFacts, known: set[tuple[str, str]], end: float) -> Iterator[dict[str, Any]]:
    """Rows of collectives among 2, 4 and 8 ranks, as many as there are processors or GPUs."""
    import torch

    from crossflow.evidence.measurement.collectives import collective_rows

    most = torch.cuda.device_count() if options.device == "cuda" else facts.cores
    for ranks in (count for count in (2, 4, 8) if count <= most):
        seconds = end - time.monotonic()
        if seconds <= 0 or any(kind == "collectives" and label.startswith(f"{ranks} ranks") for kind, label in known):
            continue
        for row in collective_rows(options.device, ranks, seconds):
            yield {"label": f"{ranks} ranks {row['op']} {row['shape']}", **row}
