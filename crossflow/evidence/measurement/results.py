"""Rows that were measured, as a file of JSON lines which grows by a line a row, and what is derived of them: a profile and a template."""

from __future__ import annotations

import csv
import functools
import io
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from crossflow.base.errors import CrossflowError
from crossflow.base.files import FileModel, write_text
from crossflow.base.limits import Finite, Flag, Whole
from crossflow.base.names import cell
from crossflow.base.units import show
from crossflow.cost.profile import COLUMNS, kernel_of, message_size
from crossflow.evidence.measurement.machine import MachineFacts
from crossflow.evidence.measurement.overheads import EagerHost, host_times
from crossflow.program.kernels import Product

ROWS, PROFILE, TEMPLATE = "rows.jsonl", "profile.csv", "machine.yaml"
PRODUCTS, COLLECTIVES, SYSTEMS = "gemm.csv", "collectives.csv", "systems.csv"  # as `crossflow validate` reads them
DERIVED = (PROFILE, PRODUCTS, COLLECTIVES, SYSTEMS, TEMPLATE)  # what follows from the rows
SOURCE, FABRIC = "crossflow-measure", "pcie-host"
LEAST_BUSY = 0.02  # share of a measured time that is left at least where the overhead of a call is taken off
INSIDE = 0.8  # share of a cache that a copy may fill to show its rate


class MeasuredRow(FileModel):
    """One row of a file of measurements."""

    kind: str = Field(description="kind of benchmark, as `--only` names it")
    label: str = Field(description="what was measured, by which a run that goes on knows its rows")
    op: str = Field(description="operation as profiles name it; empty for what no profile has, such as copies")
    shape: str = Field(description="shape as profiles write it")
    dtype: str = Field(default="", description="type of what is computed; empty for what moves bytes")
    ranks: Whole = Field(default=1, description="ranks of a collective")
    scope: str = Field(default="", description="`intra` for a collective inside a node")
    time: Finite = Field(
        gt=0, description="20 % quantile of the samples, the call included: processor time of one thread, wall time of several"
    )
    spread: Finite = Field(ge=0, description="standard deviation of the samples, from their median absolute deviation")
    count: Whole = Field(gt=0, description="samples")
    wall: Finite | None = Field(default=None, description="the same by the clock on the wall")
    cpu: Finite | None = Field(default=None, description="the same of the time of the process on all processors")
    busy: Flag = Field(description="whether the samples show that other processes disturbed them")
    kernels: Sequence[tuple[str, str, str, Whole]] = Field(
        default=(), description="of a step (kind `host`), its kernels: op, shape and type as profiles name them, and how many of each"
    )


class MeasuredHeader(FileModel):
    """First line of a file of measurements, under the key `header`: where its rows come from."""

    device: str = Field(description="name of the device in profiles and templates")
    on: Literal["cpu", "cuda"] = Field(description="what was measured")
    dtype: str = Field(description="type of the numbers")
    threads: Whole = Field(gt=0, description="threads of torch")
    torch: str = Field(description="version of torch")
    date: str = Field(description="day on which the file was begun")
    command: str = Field(description="words of the command line")
    rates: Mapping[str, Finite] = Field(description="peak operations of one core a second by type, from its instructions and its clock")
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

    @functools.cached_property
    def host(self) -> EagerHost:
        """What the host takes for a kernel of an eager step beside the kernel itself."""
        return host_times(self.rows, self.floor, self.header.machine.private)


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
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
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
    """Write what follows from the rows: the profile, tables for `validate` and `calibrate`, and of a processor its template."""
    found = read_rows(folder)
    events = list(profile_rows(found))
    if not events:
        return []
    texts = {PROFILE: _table(found, COLUMNS, events, f"times are in seconds; {_host_words(found)}")}
    products, collectives = list(_product_rows(found)), list(_collective_rows(found))
    if products:
        texts[PRODUCTS] = _table(found, (*GEMM_COLUMNS, "time_us"), products, "times are of a call")
    if collectives:
        texts[COLLECTIVES] = _table(found, (*COLLECTIVE_COLUMNS, "time_us"), collectives, "times are of the slowest rank")
        texts[SYSTEMS] = _table(found, SYSTEM_COLUMNS, [_fabric_row(found)], "the rate of the host is half that of the memory")
    if found.header.on == "cpu":
        texts[TEMPLATE] = template_text(found)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def _table(found: MeasuredMachine, columns: Sequence[str], rows: Sequence[Sequence[Any]], what: str) -> str:
    """A CSV table with where its numbers come from as comments."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(value) if isinstance(value, str) else value for value in row] for row in rows)
    return _comment(found, what) + text.getvalue()


GEMM_COLUMNS = ("source", "device", "dtype", "m", "n", "k")
COLLECTIVE_COLUMNS = ("source", "system", "collective", "ranks", "ranks_per_node", "size_bytes")
SYSTEM_COLUMNS = (
    "system", "device", "gpus_per_node", "intra_fabric", "intra_gb_s_per_direction", "pcie_gb_s_per_direction", "inter_network",
    "inter_gbit_s_per_gpu",
)  # fmt: skip


def _product_rows(found: MeasuredMachine) -> Iterator[Sequence[Any]]:
    """Single products with their calls, as `gemm.csv` has them."""
    for row in found.rows:
        kernel = kernel_of(row.op, row.shape, row.dtype) if row.op == "gemm" else None
        if isinstance(kernel, Product) and kernel.batch == 1:
            sizes = (f"{size:.0f}" for size in (kernel.m, kernel.n, kernel.k))
            yield SOURCE, found.device, row.dtype, *sizes, f"{1e6 * row.time:.6g}"


def _collective_rows(found: MeasuredMachine) -> Iterator[Sequence[Any]]:
    for row in found.rows:
        if row.scope:
            yield SOURCE, found.device, row.op, row.ranks, row.ranks, f"{message_size(row.shape):.0f}", f"{1e6 * row.time:.6g}"


def _fabric_row(found: MeasuredMachine) -> Sequence[Any]:
    """What joins the processes of this machine."""
    ranks, copied = max(row.ranks for row in found.rows), dict(_copies(found))
    return found.device, found.device, ranks, FABRIC, "", f"{_memory_rate(copied) / 2e9:.4g}", "", ""


def _host_words(found: MeasuredMachine) -> str:
    """What the times of a profile hold of the host, in words."""
    call = f"without the {show(found.floor, 's')} that the cheapest call takes"
    if found.header.on != "cpu":
        return call
    host = found.host
    times = ", ".join(f"{show(getattr(host, name), 's')} {name}" for name in ("forward", "backward", "update", "cold"))
    return f"{call}, with the host's time of a step ({times}) less the {show(host.least, 's')} that every kernel has"


def _comment(found: MeasuredMachine, what: str) -> str:
    """Where the numbers come from, as comments."""
    data = found.header.model_dump()
    lines = [f"{name}: {value}" for name, value in {**data, **data.pop("machine")}.items() if name != "machine"]
    return "".join(f"# {line}\n" for line in ("written by crossflow measure", *lines, what))


def profile_rows(found: MeasuredMachine) -> Iterator[Sequence[Any]]:
    """Events as a profile has them, of any device, so that systems over the template keep them; kernels without the call itself."""
    for row in found.rows:
        if not row.op:
            continue
        time = row.time if row.scope else _of_a_step(row, found)
        yield (
            row.op, row.shape, row.dtype, "", row.ranks, row.scope, f"{time:.6g}", f"{row.spread:.3g}",
            row.count,
        )  # fmt: skip


def _of_a_step(row: MeasuredRow, found: MeasuredMachine) -> float:
    """What a kernel and its host take in a step, less what the template has as the launch of every kernel. [s]"""
    kernel, host = kernel_of(row.op, row.shape, row.dtype), found.host
    if found.header.on != "cpu" or kernel is None:
        return max(row.time - found.floor, LEAST_BUSY * row.time)
    beside = host.of(row.op, kernel, found.header.machine.private) - host.least
    return max(row.time - found.floor + beside, LEAST_BUSY * row.time)


# -------------------------------------------------------------------------------------------- template of a processor


def template_text(found: MeasuredMachine) -> str:
    """A system of this machine's processor: what the operating system tells of it, and what was measured."""
    header, facts = found.header, found.header.machine
    threads = header.threads
    share = _matrix_share(found)
    faster = max(1.0, share)  # products above the peak at the clock that the system tells run at a higher one
    rates = {dtype: faster * rate * threads for dtype, rate in header.rates.items()}
    copied = dict(_copies(found))
    memory = _memory_rate(copied)
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
        "execution:", f"  kernel_launch: {_quantity(max(found.host.least, 1e-9), 's', 'measured')}",
        f"  matrix_utilisation: {{value: {min(share, 1.0):.4g}, source: measured}}",
        "levels:", *_levels(found, copied, memory),
        "network:",
        f"  intra: {{fabric: {FABRIC}, bandwidth: {_quantity(memory / 2.0, 'B/s', 'measured')}}}",
        f"  host: {{bandwidth: {_quantity(memory / 2.0, 'B/s', 'measured')}}}",
        f"power: {{tdp: {{value: {10 * threads} W, source: assumed, projected: true}}}}",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _quantity(value: float, unit: str, source: str) -> str:
    return f"{{value: {show(value, unit, 4)}, source: {source}}}"


def _memory_rate(copied: Mapping[float, float]) -> float:
    """Rate of the largest copy; that of one channel of memory where none was measured. [B/s]"""
    return copied[max(copied)] if copied else 10e9


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
        "host_s": vars(found.host),
        "kinds": [
            {
                "kind": kind, "rows": len(mine), "busy": sum(row.busy for row in mine),
                "spread": statistics.median(row.spread / row.time for row in mine),
            }
            for kind in kinds
            for mine in [[row for row in found.rows if row.kind == kind]]
        ],
    }  # fmt: skip
