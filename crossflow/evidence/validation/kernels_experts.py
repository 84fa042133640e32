"""Measured layers of experts (``moe.csv``) and exchanges of their tokens (``expert_exchange.csv``), by the libraries that ran them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.cost.exchange import Exchange, exchange_time
from crossflow.cost.experts import expert_library, grouped_costs
from crossflow.cost.roofline import KernelCosts
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
)
from crossflow.hardware.architecture.execution import ExchangeLibraryName

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
    sizes = np.stack(
        [tokens, hidden, inner / tp, 2.0 * one, active, experts, ep, one, skew, 0.0 * one, np.inf * one, 0.0 * one, tokens * active]
    )
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
    costs = layer_costs_of(row, sizes, sustained=sustained)
    return costs if isinstance(costs, str) else np.asarray(costs.time[:, 0])


def layer_costs_of(row: TableRow, sizes: Array, *, sustained: bool) -> KernelCosts | str:
    """Costs of layers like a row in the same way, shape (layers, 1), or why there are none."""
    device = device_architecture(row["device"])
    if device is None:
        return f"no template for device '{row['device']}'"
    library = expert_library(device, libraries_of(row), row["dtype"])
    if library is None or row["dtype"] not in device.throughput:
        return f"no library of template '{device.name}' runs {row['kernel_source']} in {row['dtype']}"
    warm = bool(measurements().get(row["source"], {}).get("warm_weights", False))
    return grouped_costs(sizes[..., None], library, device, row["dtype"], warm=warm, boosted=not sustained)


def held_out(layers: Layers) -> Index:
    """Places of a third of the layers, kept out of fits: all rows of a shape or none."""
    shapes = [tuple(row[name] for name in ("hidden", "inter", "topk", "experts", "tp", "ep")) for row in layers.rows]
    return np.flatnonzero([_hash(shape) % 3 == 0 for shape in shapes])


def _hash(shape: tuple[str, ...]) -> int:
    """The same number for a shape in every process."""
    return sum(ord(letter) * (31 * i + 7) for i, letter in enumerate("-".join(shape)))


# -------------------------------------------------------------------------------------------- exchanges

EXCHANGED = (
    "source", "device", "nodes", "ranks", "method", "hidden", "tokens", "topk", "experts", "dtype", "sms", "op", "time_us", "dispatch_us",
    "combine_us",
)  # fmt: skip
NETWORK = 50e9  # rate of a GPU's share of the network, which no row states: 400 Gb/s [B/s]


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """Measured dispatches and combines: one a row of the table, or two; `place` is that of the row."""

    rows: TableRows
    place: Index
    op: Sequence[str]
    time: Array  # [s]

    def some(self, mine: Index) -> tuple[Exchange, TableRow, str]:
        """Exchanges of some rows of one device, source, method and op, with the first row and the op."""
        rows, op = [self.rows[int(i)] for i in self.place[mine]], self.op[int(mine[0])]

        def column(name: str) -> Array:
            return np.array([float(row[name] or 0.0) for row in rows])

        device = device_architecture(rows[0]["device"])
        assert device is not None
        assert device.intra is not None  # the caller has looked
        size = column("hidden") * np.array([token_bytes(row["dtype"], op) for row in rows])
        one = np.ones(len(rows))
        nodes = np.maximum(column("nodes"), 1.0) if _deepep(rows[0]) else one
        return Exchange(
            tokens=column("tokens"), size=size, active=column("topk"), experts=column("experts"), ranks=column("ranks"),
            nodes=nodes, units=np.maximum(column("sms"), 1.0), link=device.intra.bandwidth * one,
            network=NETWORK * one,
        ), rows[0], op  # fmt: skip


def _deepep(row: TableRow) -> bool:
    """Whether DeepEP exchanges; TensorRT-LLM's own kernels go over NVLink alone, in a rack that is one node to them."""
    return "trtllm" not in row["source"]


def token_bytes(dtype: str, op: str) -> float:
    """Bytes of an element of a token on its way: with its scales to the experts, in 16 bits back, or in fp8 where that is asked for."""
    if op == "combine":
        return 2.0
    narrow = "fp8" if op == "combine_low_precision" else dtype
    return {"fp8": 1.0 + 4.0 / 128.0, "fp8_block": 1.0 + 4.0 / 128.0, "nvfp4": 0.5 + 1.0 / 16.0}.get(narrow, 2.0)


def read_exchanges(folder: Path) -> Exchanges:
    """Exchanges of a folder's ``expert_exchange.csv``."""
    file = folder / "expert_exchange.csv"
    rows = read_rows(file, EXCHANGED)
    found = [
        (i, op, float(row[column]) * 1e-6)
        for i, row in enumerate(rows)
        for op, column in ((row["op"], "time_us"), ("dispatch", "dispatch_us"), ("combine", "combine_us"))
        if row[column]
    ]
    place, ops, time = zip(*found, strict=True) if found else ((), (), ())
    return Exchanges(rows=rows, place=np.array(place, dtype=np.intp), op=ops, time=np.array(time, dtype=float))


def exchange_table(folder: Path) -> Table:
    """Measured exchanges of tokens against predictions."""
    found = read_exchanges(folder)
    rows = [found.rows[int(i)] for i in found.place]
    keys = [(row["device"], row["source"], row["method"], op) for row, op in zip(rows, found.op, strict=True)]
    predicted, reasons = predicted_by(keys, lambda key, mine: _exchange_times(*found.some(mine)) if _reaches(key[0]) else _unknown(key[0]))
    known = np.flatnonzero(np.isfinite(predicted))
    kept = [rows[int(i)] for i in known]
    return Table(
        name="expert_exchange",
        measured=found.time[known],
        predicted=predicted[known],
        groups={
            "source": [row["source"] for row in kept],
            "device": [row["device"] for row in kept],
            "method": [row["method"] for row in kept],
            "op": [found.op[int(i)] for i in known],
            "regime": ["across nodes" if int(row["nodes"] or 1) > 1 else "inside a node" for row in kept],
            "seen": ["seen" if row["device"] in SEEN else "unseen" for row in kept],
        },
        skipped=Counter(reasons),
        notes=["networks are not stated: 400 Gb/s a GPU"],
    )


def _reaches(device: str) -> bool:
    """Whether a device has a template with links and a library of exchanges."""
    found = device_architecture(device)
    return found is not None and found.intra is not None and bool(found.execution.libraries.exchange)


def _unknown(device: str) -> str:
    return f"no library of exchanges for device '{device}'"


def _exchange_times(exchange: Exchange, row: TableRow, op: str) -> Array | str:
    """Times of exchanges like a row, or why there are none. [s]"""
    device = device_architecture(row["device"])
    assert device is not None  # the caller has looked
    name: ExchangeLibraryName = "deepep" if _deepep(row) else "nvlink-trtllm"
    library = device.execution.libraries.exchange.get(name)
    if library is None:
        return f"no library of template '{device.name}' exchanges as {row['source']} does"
    if op == "prepare":
        return np.broadcast_to(library.notify, exchange.tokens.shape)
    notified = bool(measurements().get(row["source"], {}).get("notified", False))
    fast = row["method"] == "low_latency"
    exchange = exchange if row["sms"] else replace(exchange, units=library.units * np.ones_like(exchange.units))
    kernel = {
        ("dispatch", False): library.dispatch, ("dispatch", True): library.fast_dispatch, ("combine", True): library.fast_combine
    }.get((op, fast), library.combine)  # fmt: skip
    told = float(notified and op == "dispatch" and not fast)
    return np.asarray(exchange_time(exchange, kernel) + library.notify * told)
