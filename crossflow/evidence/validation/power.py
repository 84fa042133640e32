"""Measured watts: of kernels on the B200 (rows of the kernel tables that have them), and of whole nodes (``power.csv``).

Board power was read every 100 ms while a kernel ran again and again; below 30 us runs are so short that readings say little. A row is
predicted by what `predict` counts: idle units with clocks up, units at work, operations and bytes, as far as the power limit lets a
kernel draw them (`crossflow.cost.roofline.powered`); and by how much of it the sensor can have shown, which gives the mean of the last
second [1]_ of runs that last a second and less [2]_ (`shown`).

References
----------
.. [1] NVIDIA, NVML API Reference, nvmlDeviceGetPowerUsage: averaged over one second from Ampere on, except on GA100; Yang et al.,
       "Part-time Power Measurements: nvidia-smi's Lack of Attention", SC24, arXiv:2312.02741.
.. [2] ai-dynamo/aiconfigurator, collector/helper.py, `benchmark_with_power`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation import evaluate
from crossflow.answers.scenario import from_dict
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.base.units import parse
from crossflow.cost.roofline import KernelCosts, powered
from crossflow.evidence.validation import kernels_attention, kernels_experts, kernels_products, published
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import (
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
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.run_cost import node_power

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
        notes=[
            "watts of the board while one kernel runs again and again, as a sensor that averages a second shows them, in place of times"
        ],
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
        parts = [_summed(part) for part in kernels_products.graph_costs(run, stack, dtype, sizes[:, mine])]
        time = sum((part.time for part in parts), np.zeros(1))
        copies = np.ones(1) if run.repeats is None else np.minimum(run.repeats.copies, COPIES)
        return shown(watts_of(parts, run), run, time, copies, "gemm_graph", [rows[i] for i in mine])

    return rows, *predicted_by(keys, watts)


def _summed(costs: KernelCosts) -> KernelCosts:
    """The same with one row of time and energy."""
    return replace(costs, time=costs.time.sum(axis=0), energy=costs.energy.sum(axis=0))


def _attention(file: Path) -> Watts:
    rows = _read(file, kernels_attention.COLUMNS)
    sizes = np.stack([numbers(file, rows, column) for column in kernels_attention.SIZES])
    keys = [(row["source"], row["device"], row["framework"], row["kernel_source"], row["phase"]) for row in rows]

    def watts(key: tuple[str, str, str, str, str], mine: Index) -> Array | str:
        some = [rows[i] for i in mine]
        return _drawn(key[1], kernels_attention.attention_costs(key, some, sizes[:, mine]), np.ones(1), key[-1], some)

    return rows, *predicted_by(keys, watts)


def _experts(file: Path) -> Watts:
    layers = kernels_experts.read_layers(file.parent)
    mine = np.flatnonzero(layers.sustained & (layers.time >= STEADY))
    rows, sizes = [layers.rows[int(i)] for i in mine], layers.sizes[:, mine]
    keys = [(row["device"], kernels_experts.libraries_of(row), row["dtype"], row["source"]) for row in rows]

    def watts(key: tuple[str, tuple[str, ...], str, str], places: Index) -> Array | str:
        some = [rows[int(i)] for i in places]
        draws = np.array([1.0 if row["distribution"] == "balanced" else DRAWS for row in some])
        return _drawn(key[0], kernels_experts.layer_costs_of(some[0], sizes[:, places], sustained=True), draws, "moe", some)

    return rows, *predicted_by(keys, watts)


def _drawn(device: str, costs: KernelCosts | str, calls: Array, kind: str, rows: TableRows) -> Array | str:
    """Readings of kernels on a device, or why they are not known. [W]"""
    found = device_architecture(device)
    if isinstance(costs, str) or found is None:
        return costs if isinstance(costs, str) else f"no template for device '{device}'"
    return shown(watts_of([powered(costs, found)], found)[:, 0], found, costs.time[:, 0], calls, kind, rows)


# -------------------------------------------------------------------------------------------- readings

# The rule of `benchmark_with_power` [2]_ (module docstring): how long a run shall last, and that of kernels whose replay takes less than
# `BRIEF` outside a graph [s]; replays of a run, least and most; time between readings [s].
LONG, SHORT, BRIEF, REPLAYS, EVERY = 1.0, 0.3, 100e-6, (6.0, 3000.0), 0.1
COPIES = 6.0  # weights that a replay of products goes through at most
DRAWS = 5.0  # distributions of tokens that a replay of a layer of experts goes through, where they are random


def shown(watts: Array, device: Architecture, time: Array, calls: Array, kind: str, rows: TableRows) -> Array:
    """What a sensor showed of kernels that draw some watts, as the source of the rows read it; shape (rows,). [W]

    Parameters
    ----------
    time : of one kernel, shape (rows,). [s]
    calls : kernels of one replay, shape (rows,). [1]
    kind : table or phase of the rows.
    """
    source = measurements().get(rows[0]["source"], {})
    meter: Mapping[str, Any] = source.get("watts", {})
    given: Mapping[str, Any] = source.get("frameworks", {}).get(rows[0]["framework"], {})
    window, host = (parse(meter.get(name, "0 s"), "s") for name in ("window", "call"))
    pause = parse(given.get("pauses", {}).get(kind, "0 s"), "s")
    share = shown_share(run_length(time, calls, host), pause, 0.0 if device.name in meter.get("instantaneous", ()) else window)
    return np.asarray(device.static_power + (watts - device.static_power) * share)


def run_length(time: Array, calls: Array, host: float) -> Array:
    """Time for which a benchmark replays kernels. [s]

    It counts replays by the time of calls outside the graph, where the host may be slower than the device, and so runs short kernels for
    less than it means to.

    Parameters
    ----------
    time, calls : of one kernel [s], and kernels of one replay [1], shape (rows,).
    host : time of the host for one call. [s]
    """
    single = calls * np.maximum(time, host)
    wanted = np.where(single < BRIEF, SHORT, LONG)
    return np.asarray(np.clip(np.floor(wanted / single) + 1.0, *REPLAYS) * calls * time)


def shown_share(run: Array, pause: float, window: float) -> Array:
    """Share of the power of runs, beside that of an awake device, in the mean of readings taken during one of them. [1]

    A reading is the mean of the last `window`, so the first ones hold what was before the run: a pause of the benchmark, and earlier runs,
    which are taken to be like this one. A sensor that does not average shows all.

    Parameters
    ----------
    run : length of a run, shape (rows,). [s]
    pause : time between two runs. [s]
    window : time over which the sensor averages. [s]
    """
    if not window:
        return np.ones_like(run)
    moments = EVERY * np.arange(1.0 + np.floor(run.max() / EVERY))[:, None]

    def busy(until: Array) -> Array:
        """Time of runs from the start of this one to a moment, negative before it. [s]"""
        cycles = np.floor(until / (run + pause))
        return np.asarray(cycles * run + np.minimum(until - cycles * (run + pause), run))

    share = (moments - busy(moments - window)) / window
    return np.asarray(np.average(share, axis=0, weights=(moments <= run) * np.ones_like(share)))


# -------------------------------------------------------------------------------------------- nodes

SETTLED = 2.0  # length of a run from which its mean watts are those of its steps: shorter ones hold the start and the end [min]
LANGUAGE, RECOMMENDS = "language models", "recommendation models"
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
            "trained": [RECOMMENDS if row["benchmark"] in published.words()["recommendation"] else LANGUAGE for row, _ in kept],
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
