"""Measured layers of experts (``moe.csv``), predicted by the libraries that ran them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossflow.arrays import Array, Index, Mask
from crossflow.cost.experts import expert_library, grouped_costs
from crossflow.validation.report import Table
from crossflow.validation.tables import TableRow, TableRows, device_architecture, measurements, numbers, positive, predicted_by, read_rows

COLUMNS = (
    "source", "device", "framework", "version", "kernel_source", "dtype", "tokens", "hidden", "inter", "topk", "experts", "tp", "ep",
    "distribution", "time_us", "power_w",
)  # fmt: skip
# Libraries whose code a kernel's name in the table tells of, the nearest first.
CODES: Mapping[str, tuple[str, ...]] = {
    "sglang_fused_moe_triton": ("triton-sglang",),
    "flashinfer_trtllm": ("trtllm-flashinfer",),
    "flashinfer_cutlass": ("cutlass-flashinfer", "cutlass-trtllm"),
    "triton": ("triton-vllm",),
    "vllm_fused_moe": ("triton-vllm",),
    "deepgemm": ("deepgemm-trtllm", "cutlass-trtllm"),
    "moe_torch_flow": ("cutlass-trtllm",),
}
EARLY = "rc15"  # release candidate of TensorRT-LLM 1.3.0 whose grouped products are slower than those of later ones
SEEN = ("a100-80gb", "h100-80gb", "l40s", "b200")  # devices whose rows the parameters were fitted to


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Measured layers: rows of the table, their sizes as `crossflow.program.kernels.SIZES` names them, shape (sizes, layers), and times."""

    rows: TableRows
    sizes: Array
    time: Array  # [s]
    sustained: Mask  # which ran until the clock had settled


def read_layers(folder: Path) -> Layers:
    """Layers of a folder's ``moe.csv``."""
    file = folder / "moe.csv"
    rows = read_rows(file, COLUMNS)
    tokens, hidden, inner, active, experts, tp, ep, time = (
        positive(file, rows, column) for column in ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "time_us")
    )
    skew = np.array([float(row["distribution"].removeprefix("power_law_")) if row["distribution"] != "balanced" else 0.0 for row in rows])
    one = np.ones_like(tokens)
    sizes = np.stack([tokens, hidden, inner / tp, 2.0 * one, active, experts, ep, one, skew, np.inf * one])
    sustained = np.isfinite(numbers(file, rows, "power_w", missing=np.nan))
    return Layers(rows=rows, sizes=sizes, time=time * 1e-6, sustained=sustained)


def libraries_of(row: TableRow) -> tuple[str, ...]:
    """Libraries whose code ran a row, the nearest first.

    >>> libraries_of({"kernel_source": "moe_torch_flow_cutlass", "version": "1.3.0rc15"})
    ('cutlass-trtllm-rc15', 'cutlass-trtllm')
    """
    names = next((names for code, names in CODES.items() if code in row["kernel_source"]), ())
    return (*(f"{name}-{EARLY}" for name in names if row["version"].endswith(EARLY)), *names)


def moe_table(folder: Path) -> Table:
    """Measured layers of experts against predictions."""
    layers = read_layers(folder)
    keys = [
        (row["device"], libraries_of(row), row["dtype"], row["source"], bool(settled))
        for row, settled in zip(layers.rows, layers.sustained, strict=True)
    ]
    predicted, reasons = predicted_by(keys, lambda key, mine: _times(layers.rows[int(mine[0])], layers.sizes[:, mine], sustained=key[-1]))
    known = np.isfinite(predicted)
    kept, time = [layers.rows[int(i)] for i in np.flatnonzero(known)], layers.time[known]
    dealt = ["balanced" if row["distribution"] == "balanced" else "power law" for row in kept]
    return Table(
        name="moe",
        measured=time,
        predicted=predicted[known],
        groups={
            "source": [row["framework"] for row in kept],
            "device": [row["device"] for row in kept],
            "distribution": dealt,
            "dtype": [row["dtype"] for row in kept],
            "regime": [">= 100 us" if value >= 100e-6 else "< 100 us" for value in time],
            "seen": ["seen" if row["device"] in SEEN else "unseen" for row in kept],
            "device and distribution": [f"{row['device']}, {what}" for row, what in zip(kept, dealt, strict=True)],
        },
        skipped=Counter(reasons),
        notes=["layers of experts in captured graphs; weights that fit the last cache are found there from replay to replay"],
    )


def _times(row: TableRow, sizes: Array, *, sustained: bool) -> Array | str:
    """Times of layers like a row as `predict` has them, under the conditions of the source, or why there are none. [s]"""
    device = device_architecture(row["device"])
    if device is None:
        return f"no template for device '{row['device']}'"
    library = expert_library(device, libraries_of(row), row["dtype"])
    if library is None or row["dtype"] not in device.throughput:
        return f"no library of template '{device.name}' runs {row['kernel_source']} in {row['dtype']}"
    warm = bool(measurements().get(row["source"], {}).get("warm_weights", False))
    costs = grouped_costs(sizes[..., None], library, device, row["dtype"], warm=warm, boosted=not sustained)
    return np.asarray(costs.time[:, 0])


def held_out(layers: Layers) -> Index:
    """Places of a third of the layers, kept out of fits: all rows of a shape or none."""
    shapes = [tuple(row[name] for name in ("hidden", "inter", "topk", "experts", "tp", "ep")) for row in layers.rows]
    return np.flatnonzero([_hash(shape) % 3 == 0 for shape in shapes])


def _hash(shape: tuple[str, ...]) -> int:
    """The same number for a shape in every process."""
    return sum(ord(letter) * (31 * i + 7) for i, letter in enumerate("-".join(shape)))
