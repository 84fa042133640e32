"""Reading tables of kernels (``gemm.csv``, and ``collectives.csv`` with its ``systems.csv``) and predicting their rows.

Devices are found among the templates by name; one that has no template is skipped and said so.
"""

from __future__ import annotations

import csv
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from crossflow.answers.bands import NO_STACK, type_of
from crossflow.base import files
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError, Problem, SpecError, did_you_mean
from crossflow.base.files import Document
from crossflow.base.formats import kept_bytes
from crossflow.base.units import parse
from crossflow.cost.fabrics import Fabric, path, path_time
from crossflow.cost.roofline import product_costs
from crossflow.evidence.validation.report import Table
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import FabricKind, FabricParameters
from crossflow.hardware.architecture.software import PeerAllReduce, load_stack, maker
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.hardware.architecture.template import DatasheetSystem, SystemSpec
from crossflow.hardware.technology.library import TechLibrary
from crossflow.program.collectives import COLLECTIVES

TableRow = Mapping[str, str]
ENDLESS = "no finite time can be predicted: a rate that the row needs is missing in systems.csv"
FABRICS = get_args(FabricKind)
GENERATED = {"a100-80gb": "chip-a100", "h100-80gb": "chip-h100"}  # measured devices, and templates that generate such chips
TableRows = Sequence[TableRow]


def shipped() -> Path:
    """Folder of the excerpt of measured data in the package."""
    return Path(__file__).parent / "data"


def read_rows(file: Path, columns: Sequence[str]) -> TableRows:
    """Rows of a CSV file with comment lines; SpecError when it cannot be read or a column is missing."""
    reader = csv.DictReader(line for line in files.read_text(file).splitlines() if line and not line.startswith("#"))
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise SpecError(
            [Problem(file=str(file), message=f"column {name} is missing{did_you_mean(name, reader.fieldnames or ())}") for name in missing]
        )
    return list(reader)


def positive(file: Path, rows: TableRows, column: str) -> Array:
    """One column of finite numbers above zero; SpecError with the first row that holds something else."""
    values = numbers(file, rows, column)
    for bad in np.flatnonzero(~(np.isfinite(values) & (values > 0))):
        raise SpecError([wrong(file, rows[int(bad)], column, "a number above zero")])
    return values


def above_zero(file: Path, row: TableRow, column: str) -> float:
    """A cell as a finite number above zero; SpecError where it holds something else."""
    return float(positive(file, [row], column)[0])


def numbers(file: Path, rows: TableRows, column: str, missing: float | None = None) -> Array:
    """One column as floats, empty cells as `missing` where that is given; SpecError with the first row that holds something else."""
    return np.array([missing if missing is not None and not row[column] else number(file, row, column) for row in rows], dtype=float)


def number(file: Path, row: TableRow, column: str) -> float:
    """A cell as a float; SpecError where it holds something else."""
    try:
        return float(row[column])
    except (TypeError, ValueError):
        raise SpecError([wrong(file, row, column, "a number")]) from None


def wrong(file: Path, row: TableRow, column: str, expected: str) -> Problem:
    """What is wrong with a cell of a table."""
    where = ",".join(map(str, row.values()))
    return Problem(file=str(file), path=column, message=f"expected {expected}, got '{row.get(column) or ''}' in the row {where}")


def predicted_by(keys: Sequence[tuple[Any, ...]], times_of: Callable[[Any, Index], Array | str]) -> tuple[Array, list[str]]:
    """Predicted time of every row, NaN where there is none, and why; rows of one key are predicted together. [s]"""
    predicted, reasons = np.full(len(keys), np.nan), []
    for key in dict.fromkeys(keys):
        mine = np.array([i for i, other in enumerate(keys) if other == key])
        times = times_of(key, mine)
        if isinstance(times, str):
            reasons += [times] * len(mine)
        else:
            predicted[mine] = times
            reasons += [ENDLESS] * int((~np.isfinite(times)).sum())
    return predicted, reasons


# -------------------------------------------------------------------------------------------- matrix products


def gemm_table(folder: Path) -> Table:
    """Measured matrix products: columns source, device, dtype, m, n, k, time_us."""
    file = folder / "gemm.csv"
    rows = read_rows(file, ("source", "device", "dtype", "m", "n", "k", "time_us"))
    m, n, k, time = (positive(file, rows, column) for column in ("m", "n", "k", "time_us"))
    keys = [(row["source"], row["device"], row["dtype"]) for row in rows]
    own = _own_template(folder)
    predicted, reasons = predicted_by(keys, lambda key, mine: _gemm_times(key, np.stack([m, n, k, np.ones_like(m)])[:, mine], own))
    known = np.isfinite(predicted)
    kept = [row for row, keep in zip(rows, known, strict=True) if keep]
    seconds = time[known] * 1e-6
    regimes = [">= 100 us" if value >= 100e-6 else "< 100 us" for value in seconds]
    return Table(
        name="gemm",
        measured=seconds,
        predicted=predicted[known],
        groups={
            "source": [row["source"] for row in kept],
            "device": [row["device"] for row in kept],
            "regime": regimes,
            "device and regime": [f"{row['device']}, {regime}" for row, regime in zip(kept, regimes, strict=True)],
            "type": [type_of(row["dtype"]) for row in kept],
        },
        items=[f"{row['n']} x {row['k']}" for row in kept],
        alike={"stack": [NO_STACK] * len(kept)},
        skipped=Counter(reasons),
        notes=notes_of(row["source"] for row in kept),
    )


def notes_of(sources: Iterable[str]) -> list[str]:
    """What is known of how the sources of some rows measured."""
    used = set(sources) & set(measurements())
    return [f"{source}: {', '.join(f'{key} {value}' for key, value in measurements()[source].items())}" for source in sorted(used)]


def _own_template(folder: Path) -> Architecture | None:
    """The machine whose template lies beside the tables, as `crossflow measure` writes it; None without."""
    file = folder / "machine.yaml"
    return architecture(resolve(Document(file=str(file), data={"template": str(file)}))[0]) if file.is_file() else None


def _gemm_times(key: tuple[str, str, str], sizes: Array, own: Architecture | None) -> Array | str:
    """Times of products on one device as `predict` has them, with what the source's figures include, or why there are none. [s]

    sizes : m, n, k and batch, shape (4, products). [1]
    own : the machine of the tables, which no template of the package is.
    """
    source, device, dtype = key
    if own is not None and device == own.name and dtype in own.throughput:
        return product_times(own, dtype, sizes)
    host, activity = conditions(source)
    found = device_architecture(device, activity)
    if found is None:
        return f"no template for device '{device}'"
    if dtype not in found.throughput or found.execution.tiles is None:
        return f"template '{found.name}' has no {dtype} matrix products that were ever measured"
    return product_times(found, dtype, sizes) + host


def generated_gemm_table(folder: Path) -> Table:
    """The measured 16-bit products of 100 us and more of chips that are generated from their budgets as well (`GENERATED`)."""
    file = folder / "gemm.csv"
    rows = read_rows(file, ("source", "device", "dtype", "m", "n", "k", "time_us"))
    known = [
        row for row in rows if row["device"] in GENERATED and row["dtype"] in ("fp16", "bf16") and conditions(row["source"]) == (0.0, 1.0)
    ]
    mine = [row for row, time in zip(known, positive(file, known, "time_us"), strict=True) if time >= 100]
    m, n, k, time = (positive(file, mine, column) for column in ("m", "n", "k", "time_us"))
    sizes, predicted = np.stack([m, n, k, np.ones_like(m)]), np.empty_like(m)
    for device, dtype in sorted({(row["device"], row["dtype"]) for row in mine}):
        here = np.array([(row["device"], row["dtype"]) == (device, dtype) for row in mine])
        spec, _ = resolve(Document(file=device, data={"template": GENERATED[device]}))
        predicted[here] = product_times(architecture(spec), dtype, sizes[:, here])
    return Table(
        name="generated_gemm",
        measured=time * 1e-6,
        predicted=predicted,
        groups={"regime": [">= 100 us"] * len(mine), "source": [row["source"] for row in mine], "device": [row["device"] for row in mine]},
        skipped=Counter(),
        items=[f"{row['n']} x {row['k']}" for row in mine],
        alike={"type": [type_of(row["dtype"]) for row in mine]},
        notes=["chips generated from area, node, power, memory devices and units (docs/validation.md), products in waves of tiles"],
    )


def product_times(device: Architecture, dtype: str, sizes: Array) -> Array:
    """Times of products on a device as `predict` has them. [s]

    sizes : m, n, k and batch, shape (4, products). [1]
    """
    return np.asarray(product_costs(sizes[..., None], np.full((sizes.shape[1], 1), kept_bytes(dtype)), device, dtype).time[:, 0])


@functools.cache
def measurements() -> Mapping[str, Mapping[str, Any]]:
    """What is known of how sources measured, beside what their rows say."""
    return dict(files.read_yaml(shipped() / "measurements.yaml").data)


def conditions(source: str) -> tuple[float, float]:
    """Host time that a source's figures include [s], and how much its operands switch [1]."""
    given = measurements().get(source, {})
    return parse(given.get("host_time", "0 us"), "s"), float(given.get("operand_activity", 1))


@functools.cache
def device_architecture(device: str, activity: float = 1.0) -> Architecture | None:
    """Architecture of a device known by its template's name, an alias, or by maker's name and memory size.

    `activity` is how much operands switch, over random data: operations on constant data (0) do not meet the power limit. [1]
    """
    name = template_of(device)
    if name is None:
        return None
    return architecture_at(device_spec(name), activity)


@functools.cache
def device_spec(template: str) -> SystemSpec:
    """Specification of a device by the name of its template."""
    return resolve(Document(file=template, data={"template": template}))[0]


def architecture_at(spec: SystemSpec, activity: float, library: TechLibrary | None = None) -> Architecture:
    """Architecture of a system whose operands switch so much [1]; `library` as in `architecture`."""
    if spec.execution.chip_power is not None:
        execution = spec.execution.model_copy(update={"chip_power": spec.execution.chip_power * activity})
        spec = spec.model_copy(update={"execution": execution})
    return architecture(spec, library)


def template_of(device: str) -> str | None:
    """Template of a device as tables of measurements call it, such as ``h100-80gb``; None where there is none.

    Memory size and form factor may be left out on either side; every other word must agree, so that an H100 on a PCIe
    card is not taken for the SXM module.
    """
    devices = files.catalogue("templates", "devices")
    device = device.strip().lower()
    if device in devices:
        return device
    alike = [name for name in devices if device_words(name) == device_words(device)]
    size = re.search(r"\d+gb$", device)
    sized = [name for name in alike if size and name.endswith(size.group())]
    return next(iter(sized or alike), None)


def by_maker(table: Table) -> Table:
    """A table whose rows are grouped by the maker of their device as well."""
    specs = [device_spec(template_of(device) or device) for device in table.groups["device"]]
    return replace(table, groups={**table.groups, "maker": [maker(getattr(spec, "vendor", "")) for spec in specs]})


def device_words(device: str) -> frozenset[str]:
    """Words of a device's name that tell it from others.

    >>> sorted(device_words("H100 80GB HBM3")), sorted(device_words("h100-pcie-80gb"))
    (['h100'], ['h100', 'pcie'])
    """
    return frozenset(word for word in re.split(r"[-_ ]+", device.lower()) if not re.fullmatch(r"|\d+gb|sxm\d?|hbm\d\w?|datasheet", word))


# -------------------------------------------------------------------------------------------- collectives


def collectives_table(folder: Path) -> Table:
    """Measured collectives: columns source, system, collective, ranks, ranks_per_node, size_bytes, time_us."""
    file = folder / "collectives.csv"
    rows = read_rows(file, ("source", "system", "collective", "ranks", "ranks_per_node", "size_bytes", "time_us"))
    size, time = positive(file, rows, "size_bytes"), positive(file, rows, "time_us")
    systems, devices = fabrics(folder / "systems.csv")
    ranks, per_node = positive(file, rows, "ranks").astype(int), positive(file, rows, "ranks_per_node").astype(int)
    keys = [(row["source"], row["system"], row["collective"], int(p), int(r)) for row, p, r in zip(rows, ranks, per_node, strict=True)]
    predicted, reasons = predicted_by(keys, lambda key, mine: _collective_times(systems, devices, key, size[mine, None]))
    known = np.isfinite(predicted)
    kept = [(row, bytes_) for row, bytes_, keep in zip(rows, size, known, strict=True) if keep]
    large = [">= 1 MiB" if bytes_ >= 2**20 else "< 1 MiB" for _, bytes_ in kept]
    regimes = [_regime(row, systems[row["system"]]) for row, _ in kept]
    return Table(
        name="collectives",
        measured=time[known] * 1e-6,
        predicted=predicted[known],
        groups={
            "source": [row["source"] for row, _ in kept],
            "system": [row["system"] for row, _ in kept],
            "size": large,
            "regime": [f"{regime}, {what}" for regime, what in zip(regimes, large, strict=True)],
        },
        items=[f"{row['system']}, {row['collective']}, {row['ranks']}" for row, _ in kept],
        skipped=Counter(reasons),
    )


def _collective_times(
    systems: Mapping[str, Fabric], devices: Mapping[str, str], key: tuple[str, str, str, int, int], size: Array
) -> Array | str:
    """Predicted times of one kind of collective as its source measured them, or why there are none. [s]"""
    source, system, collective, ranks, per_node = key
    if system not in systems:
        return f"system '{system}' is not in systems.csv"
    fabric = systems[system]
    for kind in (fabric.intra, fabric.network):
        if kind not in FABRICS:
            return f"unknown fabric '{kind}' of system '{system}'{did_you_mean(kind, FABRICS)}"
    known = collective_conditions(source)
    times = collective_times(replace(fabric, all_reduce=known.all_reduce), collective, ranks, per_node, size)
    if isinstance(times, str):
        return times
    if collective == "send_recv":  # a transfer's kernel is timed where it sends
        return times[:, 0]
    return known.told(times[:, 0], fabric, devices[system], ranks, size[:, 0])


@dataclass(frozen=True, kw_only=True)
class CallConditions:
    """How a source called its collectives, beside the time that they take on the device."""

    all_reduce: PeerAllReduce | None = None  # kernels that its software has of its own
    wait: tuple[float, float] = (0.0, 0.0)  # time that ranks wait for one another, hosts before PCIe 5 and from it on [s]
    floor: tuple[float, float] = (0.0, 0.0)  # least time of a call: that of the host to issue it, the same hosts [s]
    floor_per_rank: float = 0.0  # further, where one process issues the calls of all ranks [s]
    copied: bool = False  # whether each call copies the buffer

    def told(self, times: Array, fabric: Fabric, device: str, ranks: int, size: Array) -> Array:
        """What the source's figures are where collectives take so long on the device, shape (rows,). [s]"""
        recent = int(fabric.recent.item())
        memory = device_architecture(device) if self.copied else None
        copy = 2.0 * size / memory.levels[-1].bandwidth.item() if memory is not None else 0.0
        return np.asarray(np.maximum(times + self.wait[recent] + copy, self.floor[recent] + ranks * self.floor_per_rank))


@functools.cache
def collective_conditions(source: str) -> CallConditions:
    """What is known of how a source called its collectives."""
    known = measurements().get(source, {}).get("collectives", {})
    older, recent = ([parse(known.get(name, ("0 us", "0 us"))[i], "s") for name in ("wait", "floor")] for i in range(2))
    return CallConditions(
        all_reduce=load_stack(known["software"])[0].peer_all_reduce if "software" in known else None,
        floor_per_rank=parse(known.get("floor_per_rank", "0 us"), "s"),
        copied=bool(known.get("copied", False)),
        wait=(older[0], recent[0]),
        floor=(older[1], recent[1]),
    )


def collective_times(fabric: Fabric, collective: str, ranks: int, per_node: int, size: Array) -> Array | str:
    """Times of a collective among ranks that run alone, shape (rows, n), or why there are none; sizes of shape (rows, 1). [s]"""
    if collective not in COLLECTIVES:
        return f"unknown collective '{collective}'{did_you_mean(collective, COLLECTIVES)}"
    if ranks < 1 or per_node < 1 or (per_node >= ranks and ranks > fabric.devices_per_node):
        return f"{ranks} ranks, {per_node} a node, do not fit nodes of {fabric.devices_per_node} devices"
    return path_time(size, path(fabric, collective, ranks, per_node))


def _regime(row: TableRow, fabric: Fabric) -> str:
    """Where a collective runs: inside switched nodes, where the wiring matters, or across nodes."""
    if int(row["ranks_per_node"]) < int(row["ranks"]) and not (fabric.intra == "nvl72" and int(row["ranks"]) <= fabric.devices_per_node):
        return "across nodes"
    return "inside NVSwitch nodes" if fabric.intra in ("nvswitch", "nvswitch-sharp", "nvl72") else "where the wiring matters"


def fabrics(file: Path) -> tuple[dict[str, Fabric], dict[str, str]]:
    """Fabrics of the systems that a table names, and their devices."""
    if not file.is_file():
        raise CrossflowError(f"{file} is missing: collectives.csv names systems that it describes")
    rates = ("intra_gb_s_per_direction", "pcie_gb_s_per_direction", "inter_gbit_s_per_gpu")
    rows = read_rows(file, ("system", "gpus_per_node", "intra_fabric", "inter_network", *rates))
    per_node = positive(file, rows, "gpus_per_node")
    link, host, nic = (numbers(file, rows, column, missing=np.nan) for column in rates)
    found = {
        row["system"]: Fabric(
            intra=row["intra_fabric"].lower(),
            network=row["inter_network"].lower() or "none",
            devices_per_node=int(per_node[i]),
            link=link[i : i + 1] * 1e9,
            host=host[i : i + 1] * 1e9,
            nic=nic[i : i + 1] * 1e9 / 8,
            parameters=fabric_parameters(row.get("device") or ""),
        )
        for i, row in enumerate(rows)
    }
    return found, {row["system"]: row.get("device") or "" for row in rows}


@functools.cache
def fabric_parameters(device: str = "") -> FabricParameters:
    """Parameters of the fabrics of a device's family; those that every system has where there is no template of it."""
    spec, _ = resolve(Document(file="validate", data={"template": template_of(device) or "dgx-a100"}))
    assert isinstance(spec, DatasheetSystem)
    return spec.network.parameters
