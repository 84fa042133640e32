"""Rows that were measured, as a file of JSON lines which grows by a line a row, and what is derived of them: a profile and a template."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from crossflow.cost.profile import COLUMNS, kernel_of
from crossflow.errors import CrossflowError
from crossflow.files import FileModel, write_text
from crossflow.measurement.machine import MachineFacts
from crossflow.program.kernels import Product
from crossflow.units import show

ROWS, PROFILE, TEMPLATE = "rows.jsonl", "profile.csv", "machine.yaml"
LEAST_BUSY = 0.02  # share of a measured time that is left at least where the overhead of a call is taken off
INSIDE = 0.8  # share of a cache that a copy may fill to show its rate


class MeasuredRow(FileModel):
    """One row of a file of measurements."""

    kind: str = Field(description="kind of benchmark, as `--only` names it")
    label: str = Field(description="what was measured, by which a run that goes on knows its rows")
    op: str = Field(description="operation as profiles name it; empty for what no profile has, such as copies")
    shape: str = Field(description="shape as profiles write it")
    dtype: str = Field(default="", description="type of what is computed; empty for what moves bytes")
    ranks: int = Field(default=1, description="ranks of a collective")
    scope: str = Field(default="", description="`intra` for a collective inside a node")
    time: float = Field(gt=0, description="median of the samples, the call included: processor time of one thread, wall time of several")
    spread: float = Field(ge=0, description="standard deviation of the samples, from their median absolute deviation")
    count: int = Field(gt=0, description="samples")
    wall: float | None = Field(default=None, description="median by the clock on the wall")
    cpu: float | None = Field(default=None, description="median of the time of the process on all processors")
    busy: bool = Field(description="whether the samples show that other processes disturbed them")
    kernels: int | None = Field(default=None, description="kernels of the step of a row of kind `host`, whose times are a kernel's")


class MeasuredHeader(FileModel):
    """First line of a file of measurements, under the key `header`: where its rows come from."""

    device: str = Field(description="name of the device in profiles and templates")
    on: Literal["cpu", "cuda"] = Field(description="what was measured")
    dtype: str = Field(description="type of the numbers")
    threads: int = Field(gt=0, description="threads of torch")
    torch: str = Field(description="version of torch")
    date: str = Field(description="day on which the file was begun")
    command: str = Field(description="words of the command line")
    rates: Mapping[str, float] = Field(description="peak operations of one core a second by type, from its instructions and its clock")
    machine: MachineFacts = Field(description="processor, caches, instructions, memory and load, as the operating system tells them")


@dataclass(frozen=True, kw_only=True)
class MeasuredMachine:
    """A file of measured rows."""

    header: MeasuredHeader
    rows: Sequence[MeasuredRow]

    @property
    def device(self) -> str:
        """What the rows were measured on, as profiles name it."""
        return self.header.device

    @property
    def floor(self) -> float:
        """What the cheapest call takes that does next to nothing; 0 where no pass was measured. [s]"""
        return min((row.time for row in self.rows if row.op == "pass"), default=0.0)

    @property
    def launch(self) -> float:
        """What the host takes for a kernel of an eager step. [s]"""
        steps = [row.time for row in self.rows if row.kind == "host"]
        return statistics.mean(steps) if steps else max(self.floor, 1e-7)


def read_rows(folder: Path) -> MeasuredMachine:
    """What a folder holds; a last line that was not finished is left out.

    Raises
    ------
    CrossflowError
        Where there is no such file, or a line is none of its rows.
    """
    path = folder / ROWS
    if not path.is_file():
        raise CrossflowError(f"{path} is missing: {folder} is no folder of crossflow measure")
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last end of a line was cut off
    try:
        header = MeasuredHeader.model_validate(json.loads(lines[0])["header"])
        data = [json.loads(line) for line in lines[1:]]
        rows = [MeasuredRow.model_validate(one) for one in data if "resumed" not in one]
    except (ValueError, KeyError, TypeError, IndexError):
        raise CrossflowError(f"{path} is no file of crossflow measure, or damaged; measure into another folder with -o") from None
    return MeasuredMachine(header=header, rows=rows)


def append(folder: Path, data: Mapping[str, Any]) -> None:
    """Add a line at once; an unfinished line before it is dropped."""
    path = folder / ROWS
    with path.open("r+b" if path.exists() else "w+b") as file:
        text = file.read()
        file.seek(text.rfind(b"\n") + 1)
        file.truncate()
        file.write(json.dumps(data).encode() + b"\n")


def write_derived(folder: Path) -> list[Path]:
    """Write the profile and, of a processor, its template; none where there is nothing to write."""
    found = read_rows(folder)
    events = list(profile_rows(found))
    written = []
    if events:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(events)
        write_text(folder / PROFILE, _comment(found) + text.getvalue())
        written.append(folder / PROFILE)
        if found.header.on == "cpu":
            write_text(folder / TEMPLATE, template_text(found))
            written.append(folder / TEMPLATE)
    return written


def _comment(found: MeasuredMachine) -> str:
    """Where the numbers come from, as comments."""
    data = found.header.model_dump()
    lines = [f"{name}: {value}" for name, value in {**data, **data.pop("machine")}.items() if name != "machine"]
    what = f"times are in seconds, without the {show(found.floor, 's')} that the cheapest call takes"
    return "".join(f"# {line}\n" for line in ("written by crossflow measure", *lines, what))


def profile_rows(found: MeasuredMachine) -> Iterator[Sequence[Any]]:
    """Events as a profile has them, of any device, so that systems over the template keep them; kernels without the call itself."""
    for row in found.rows:
        if not row.op:
            continue
        time = row.time if row.scope else max(row.time - found.floor, LEAST_BUSY * row.time)
        yield (
            row.op, row.shape, row.dtype, "", row.ranks, row.scope, f"{time:.6g}", f"{row.spread:.3g}",
            row.count,
        )  # fmt: skip


# -------------------------------------------------------------------------------------------- template of a processor


def template_text(found: MeasuredMachine) -> str:
    """A system of this machine's processor: what the operating system tells of it, and what was measured."""
    header, facts = found.header, found.header.machine
    threads = header.threads
    share = _matrix_share(found)
    faster = max(1.0, share)  # products above the peak at the clock that the system tells run at a higher one
    rates = {dtype: faster * rate * threads for dtype, rate in header.rates.items()}
    copied = dict(_copies(found))
    memory = copied[max(copied)] if copied else 10e9
    ranks = max((row.ranks for row in found.rows), default=1)
    value = {
        "how": f'"crossflow measure, {header.date}: {len(found.rows)} rows with torch {header.torch}"',
        "facts": f'"/proc and /sys of {facts.host}: {facts.cpu}, {", ".join(facts.flags)}"',
    }
    lines = [
        f"# Written by crossflow measure on {header.date} for {threads} thread{'s' * (threads > 1)}; rows.jsonl has every row.",
        "kind: datasheet", f"name: {found.device}", f'title: "{facts.cpu}, {threads} of {facts.cores} cores"', "family: cpu",
        "sources:", f"  measured: {value['how']}", f"  machine: {value['facts']}",
        '  assumed: "no measurement of power here; 10 W a core in use is assumed"',
        "technology: {logic: N7, memory: DDR5, link: PCIe5}",
        f"units: {{value: {threads}, source: machine, note: \"threads that torch runs\"}}",
        f"clock: {_quantity(faster * facts.frequency, 'Hz', 'machine' if faster == 1.0 else 'measured')}",
        f"profile: {PROFILE}", "nearby: true", f"devices_per_node: {max(ranks, 1)}", "devices: 1",
        "throughput:", *(f"  {dtype}: {_quantity(rate, 'flop/s', 'machine')}" for dtype, rate in rates.items()),
        "vector_throughput:", f"  fp32: {_quantity(rates['fp32'] / 2.0, 'flop/s', 'machine')}",
        "execution:", f"  kernel_launch: {_quantity(found.launch, 's', 'measured')}",
        f"  matrix_utilisation: {{value: {min(share, 1.0):.4g}, source: measured}}",
        "levels:", *_levels(found, copied, memory),
        "network:",
        f"  intra: {{fabric: pcie-host, bandwidth: {_quantity(memory / 2.0, 'B/s', 'measured')}}}",
        f"  host: {{bandwidth: {_quantity(memory / 2.0, 'B/s', 'measured')}}}",
        f"power: {{tdp: {{value: {10 * threads} W, source: assumed, projected: true}}}}",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _quantity(value: float, unit: str, source: str) -> str:
    return f"{{value: {show(value, unit, 4)}, source: {source}}}"


def _copies(found: MeasuredMachine) -> Iterator[tuple[float, float]]:
    """Bytes that a copy touches, and its rate. [B], [B/s]"""
    for row in found.rows:
        if row.kind == "copies":
            size = float(row.shape.split()[-2])
            yield size, size / max(row.time - found.floor, LEAST_BUSY * row.time)


def _matrix_share(found: MeasuredMachine) -> float:
    """Highest rate of a measured product over the peak that the system tells; half where none was measured. [1]"""
    rates, shares = found.header.rates, []
    for row in found.rows:
        kernel = kernel_of(row.op, row.shape, row.dtype) if row.op == "gemm" and row.dtype in rates else None
        if isinstance(kernel, Product):
            shares.append(float(kernel.flops) / row.time / rates[row.dtype] / found.header.threads)
    return max(shares, default=0.5)


def _levels(found: MeasuredMachine, copied: Mapping[float, float], memory: float) -> Iterator[str]:
    """Levels of memory, each with the rate of the copies that it holds and the level inside it does not."""
    inner, threads = 0.0, found.header.threads
    for cache in found.header.machine.caches:
        size = cache.size * (1 if cache.shared else threads)
        rates = [rate for touched, rate in copied.items() if inner < touched <= INSIDE * size]
        bandwidth = f", bandwidth: {_quantity(statistics.median(rates), 'B/s', 'measured')}" if rates else ""
        scope = "device" if cache.shared else "unit"
        yield f"  {cache.name}: {{scope: {scope}, capacity: {_quantity(cache.size, 'B', 'machine')}{bandwidth}}}"
        inner = size
    capacity = _quantity(found.header.machine.memory, "B", "machine")
    yield f"  memory: {{scope: device, capacity: {capacity}, bandwidth: {_quantity(memory, 'B/s', 'measured')}}}"


def summary(found: MeasuredMachine) -> dict[str, Any]:
    """Plain data of what was measured, by kind."""
    kinds = dict.fromkeys(row.kind for row in found.rows)
    return {
        **found.header.model_dump(),
        "rows": len(found.rows),
        "busy_rows": sum(row.busy for row in found.rows),
        "call_s": found.floor,
        "kernel_launch_s": found.launch,
        "kinds": [
            {
                "kind": kind, "rows": len(mine), "busy": sum(row.busy for row in mine),
                "spread": statistics.median(row.spread / row.time for row in mine),
            }
            for kind in kinds
            for mine in [[row for row in found.rows if row.kind == kind]]
        ],
    }  # fmt: skip
