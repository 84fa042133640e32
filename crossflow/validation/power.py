"""Measured watts: of kernels on the B200 (rows of the kernel tables that have them), and of whole nodes (``power.csv``).

Board power was read every 100 ms while a kernel ran again and again; below 30 us a kernel ran for less than half a second, and its
reading is not steady. A row is predicted by what `predict` counts: idle units with clocks up, units at work, operations and bytes, as far
as the power limit lets a kernel draw them (`crossflow.cost.roofline.powered`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.architecture.run_cost import node_power
from crossflow.arrays import Array, Index
from crossflow.cost.roofline import KernelCosts, powered
from crossflow.errors import CrossflowError
from crossflow.evaluation import evaluate
from crossflow.scenario import from_dict
from crossflow.validation import kernels_attention, kernels_experts, kernels_products, published
from crossflow.validation.report import Table
from crossflow.validation.tables import (
    TableRow,
    TableRows,
    device_architecture,
    measurements,
    numbers,
    positive,
    predicted_by,
    read_rows,
    shipped,
)

STEADY = 30e-6  # time of a kernel from which its watts are steady [s]
Watts = tuple[TableRows, Array, Sequence[str]]  # rows, what is predicted of each [W], and why others are not


def kernel_power_table(folder: Path) -> Table:
    """Watts of kernels of 30 us and more; any of the three tables may be absent."""
    readers: dict[str, Callable[[Path], Watts]] = {"gemm_graph": _products, "attention": _attention, "moe": _experts}
    found = [(name, *read(folder / f"{name}.csv")) for name, read in readers.items() if (folder / f"{name}.csv").is_file()]
    kept = [(name, row, watts) for name, rows, predicted, _ in found for row, watts in zip(rows, predicted, strict=True) if watts == watts]
    kinds = [row["phase"] if name == "attention" else name for name, row, _ in kept]
    measured = np.array([float(row["power_w"]) for _, row, _ in kept])
    return Table(
        name="kernel_power",
        measured=measured,
        predicted=np.array([watts for *_, watts in kept], dtype=float),
        groups={
            "what": kinds,
            "source": [f"{kind}, {row['framework']}" for kind, (_, row, _) in zip(kinds, kept, strict=True)],
            "device": [row["device"] for _, row, _ in kept],
            "dtype": [f"{kind}, {row['dtype']}" for kind, (_, row, _) in zip(kinds, kept, strict=True)],
            "limit": [
                "at the power limit" if watts > NEAR * _limit(row) else "below it"
                for (_, row, _), watts in zip(kept, measured, strict=True)
            ],
        },
        skipped=Counter(reason for *_, reasons in found for reason in reasons),
        items=[shape_of(row) for _, row, _ in kept],
        notes=["watts of the board while one kernel runs again and again, in place of times"],
    )


def shape_of(row: TableRow) -> str:
    """What a row computes, whoever measured it."""
    return ", ".join(value for name, value in row.items() if name not in MEASURED)


MEASURED = ("source", "framework", "version", "kernel_source", "time_us", "power_w")  # columns that do not say what is computed
NEAR = 0.95  # share of the limit from which a kernel is taken to run at it


def _limit(row: TableRow) -> float:
    device = device_architecture(row["device"])
    return np.inf if device is None else float(device.maximum_power[0])


def watts_of(parts: Sequence[KernelCosts], device: Architecture) -> Array:
    """Power of a device that runs some kernels over and over, shape as the sum of their times. [W]"""
    energy, time = (sum((getattr(part, name) for part in parts), np.zeros(1)) for name in ("energy", "time"))
    return np.asarray(device.static_power + energy / time)


def _read(file: Path, columns: Sequence[str]) -> TableRows:
    """Rows with a steady reading of power."""
    rows = [row for row in read_rows(file, columns) if row["power_w"]]
    positive(file, rows, "power_w")
    return [row for row, time in zip(rows, positive(file, rows, "time_us"), strict=True) if time * 1e-6 >= STEADY]


def _products(file: Path) -> Watts:
    rows = _read(file, kernels_products.COLUMNS)
    sizes = np.stack([positive(file, rows, name) for name in ("m", "n", "k")])
    keys = [(row["source"], row["device"], row["framework"], row["dtype"], kernels_products.other_kernel(row)) for row in rows]

    def watts(key: tuple[str, str, str, str, str], mine: Index) -> Array | str:
        source, device, framework, dtype, other = key
        found, stack = device_architecture(device), kernels_products.stack_of(framework)
        if other or found is None or stack is None:
            return other or f"no template or no stack for '{device}', '{framework}'"
        run = kernels_products.benched(found, source, framework, dtype, sizes[:, mine], sustained=True)
        parts = kernels_products.graph_costs(switching(run, source, framework, dtype), stack, dtype, sizes[:, mine])
        return watts_of([_summed(part) for part in parts], run)

    return rows, *predicted_by(keys, watts)


def switching(device: Architecture, source: str, framework: str, dtype: str) -> Architecture:
    """A device that multiplies the operands of a benchmark, which may switch less than others'."""
    given: dict[str, Any] = measurements().get(source, {}).get("frameworks", {}).get(framework, {}).get("activity", {})
    return replace(device, energy_per_flop={**device.energy_per_flop, dtype: device.energy_per_flop[dtype] * given.get(dtype, 1.0)})


def _summed(costs: KernelCosts) -> KernelCosts:
    """The same with one row of time and energy."""
    return replace(costs, time=costs.time.sum(axis=0), energy=costs.energy.sum(axis=0))


def _attention(file: Path) -> Watts:
    rows = _read(file, kernels_attention.COLUMNS)
    sizes = np.stack([numbers(file, rows, column) for column in kernels_attention.SIZES])
    keys = [(row["source"], row["device"], row["framework"], row["kernel_source"], row["phase"]) for row in rows]
    return rows, *predicted_by(
        keys, lambda key, mine: _drawn(key[1], kernels_attention.attention_costs(key, [rows[i] for i in mine], sizes[:, mine]))
    )


def _experts(file: Path) -> Watts:
    layers = kernels_experts.read_layers(file.parent)
    mine = np.flatnonzero(layers.sustained & (layers.time >= STEADY))
    rows, sizes = [layers.rows[int(i)] for i in mine], layers.sizes[:, mine]
    keys = [(row["device"], kernels_experts.libraries_of(row), row["dtype"], row["source"]) for row in rows]
    return rows, *predicted_by(
        keys, lambda key, some: _drawn(key[0], kernels_experts.layer_costs_of(rows[int(some[0])], sizes[:, some], sustained=True))
    )


def _drawn(device: str, costs: KernelCosts | str) -> Array | str:
    """Power of kernels on a device, or why it is not known. [W]"""
    found = device_architecture(device)
    if isinstance(costs, str) or found is None:
        return costs if isinstance(costs, str) else f"no template for device '{device}'"
    return watts_of([powered(costs, found)], found)[:, 0]


# -------------------------------------------------------------------------------------------- nodes

SETTLED = 2.0  # length of a run from which its mean watts are those of its steps: shorter ones hold the start and the end [min]
NODES = ("round", "submitter", "accelerator", "gpus_per_node", "nodes", "benchmark", "node_w", "measured", "run_minutes")


def power_table(folder: Path) -> Table:
    """Watts of whole nodes during MLPerf Training, at the wall (ac) or behind the power supplies (dc).

    A row names no layout; it is predicted as the run of ``mlperf_training.csv`` of the same benchmark on as many GPUs of the nearest
    round, of the same folder or else of the package.
    """
    file = folder / "power.csv"
    rows, runs = read_rows(file, NODES), _training_runs(folder)
    kept, reasons = [], []
    for row, minutes in zip(rows, positive(file, rows, "run_minutes"), strict=True):
        try:
            kept.append((row, _node_watts(row, minutes, runs)))
        except CrossflowError as error:
            reasons.append(str(error))
    return Table(
        name="power",
        measured=positive(file, [row for row, _ in kept], "node_w"),
        predicted=np.array([watts for _, watts in kept], dtype=float),
        groups={
            "source": [f"{row['submitter']} {row['round']}" for row, _ in kept],
            "device": [row["accelerator"] for row, _ in kept],
            "model": [row["benchmark"] for row, _ in kept],
            "measured": [row["measured"] for row, _ in kept],
        },
        skipped=Counter(reasons),
        notes=["watts a node; runs that were read at the wall and behind the supplies count twice"],
    )


def _training_runs(folder: Path) -> tuple[Path, TableRows]:
    """Runs with layouts."""
    file = next(one / "mlperf_training.csv" for one in (folder, shipped()) if (one / "mlperf_training.csv").is_file())
    return file, read_rows(file, published.MLPERF)


def _node_watts(row: TableRow, minutes: float, runs: tuple[Path, TableRows]) -> float:
    """Power of a node, where a run like it is known. [W]"""
    if minutes < SETTLED:
        raise CrossflowError("the run is over before power settles")
    gpus = int(row["gpus_per_node"]) * int(row["nodes"])
    alike = [
        one for one in runs[1] if (one["accelerator"], one["benchmark"], one["gpus"]) == (row["accelerator"], row["benchmark"], str(gpus))
    ]
    if not alike:
        raise CrossflowError(f"no layout is known of {row['benchmark']} on {gpus} GPUs")
    nearest = min(alike, key=lambda one: abs(float(one["round"]) - float(row["round"])))
    scenario = from_dict(published.mlperf_run(runs[0], nearest).data)
    load, score = scenario.system.node_load, evaluate(scenario)
    if load is None:
        raise CrossflowError(f"what nodes of '{row['accelerator']}' draw beside their devices is not known")
    watts = float(node_power(load, score.power / score.devices, int(row["gpus_per_node"]))[0])
    return watts * float(load.supply[0]) if row["measured"] == "dc" else watts
