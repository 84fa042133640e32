"""Reading the table of measured fused attention (``attention.csv``) and predicting its rows by the libraries that serving stacks name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.formats import DTYPE_BYTES, HALF
from crossflow.base.units import parse
from crossflow.cost.attention import Calls, calls_of, library_attention_costs
from crossflow.cost.price import attention_kernels, fused_attention, measured_kernels
from crossflow.cost.roofline import KernelCosts
from crossflow.evidence.validation.kernels_products import stack_of
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
from crossflow.hardware.architecture.execution import AttentionLibraryName
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.software import AttentionChoice, SoftwareStack
from crossflow.program.kernels import QUERIES, Attention, KernelTable, kernel_tables, seen_pairs

SIZES = ("batch", "length", "context", "heads", "kv_heads", "head_dim", "window")
COLUMNS = (
    "source", "device", "framework", "version", "kernel_source", "phase", *SIZES, "dtype", "kv_dtype", "time_us", "power_w",
)  # fmt: skip
VALUES = {192: 128}  # elements of a value where a query has as many, as the table has it


def attention_table(folder: Path) -> Table:
    """Measured fused attention: columns as `COLUMNS`, of which power_w may be empty."""
    file = folder / "attention.csv"
    rows = read_rows(file, COLUMNS)
    time = positive(file, rows, "time_us") * 1e-6
    sizes = np.stack([numbers(file, rows, column) for column in SIZES])
    keys = [(row["source"], row["device"], row["framework"], row["kernel_source"], row["phase"]) for row in rows]

    def times_of(key: tuple[str, str, str, str, str], mine: Index) -> Array | str:
        return attention_times(key, [rows[i] for i in mine], sizes[:, mine])

    predicted, reasons = predicted_by(keys, times_of)
    known = np.isfinite(predicted)
    kept = [row for row, keep in zip(rows, known, strict=True) if keep]
    return Table(
        name="attention",
        measured=time[known],
        predicted=predicted[known],
        groups={
            "phase": [row["phase"] for row in kept],
            "device": [f"{row['device']}, {row['phase']}" for row in kept],
            "source": [f"{row['framework']}, {row['phase']}" for row in kept],
            "kernel": [f"{row['device']}, {row['framework']}, {row['kernel_source']}, {row['phase']}" for row in kept],
            "regime": [regime(row, seconds) for row, seconds in zip(kept, time[known], strict=True)],
        },
        skipped=Counter(reasons),
        notes=["times in captured graphs with the writing of keys and values, on devices that were idle but in rows with watts"],
    )


def regime(row: TableRow, seconds: float) -> str:
    """Phase of a row, and how long it takes."""
    return f"{row['phase']}, {'100 us and more' if seconds >= 100e-6 else 'below 100 us'}"


def attention_times(key: tuple[str, str, str, str, str], rows: TableRows, sizes: Array) -> Array | str:
    """Times of attention of one kernel as `predict` has them, with what the source's figures include, or why there are none. [s]"""
    costs = attention_costs(key, rows, sizes)
    return costs if isinstance(costs, str) else np.asarray(costs.time[:, 0])


def attention_costs(key: tuple[str, str, str, str, str], rows: TableRows, sizes: Array) -> KernelCosts | str:
    """Costs of attention of one kernel in the same way, shape (rows, 1), or why there are none.

    sizes : as `SIZES` names them, shape (7, rows). [1]
    """
    source, device, framework, kernel_source, _ = key
    found, stack = device_architecture(device), stack_of(framework)
    if found is None:
        return f"no template for device '{device}'"
    if stack is None:
        return f"no software stack for '{framework}'"
    choice = stack.kernels.attention
    meant = AttentionChoice(prefill=called(choice.prefill, kernel_source, found), decode=called(choice.decode, kernel_source, found))
    kernels = attention_kernels(meant, found)
    others = measured_kernels(choice, found)
    if not others:
        return f"no measured attention of '{framework}' for device '{device}'"
    calls, otherwise = measured_calls(source, rows, sizes, found.in_graphs, stack)
    return library_attention_costs(calls, kernels, otherwise, found, others=others)


def called(names: Sequence[AttentionLibraryName], kernel_source: str, device: Architecture) -> tuple[AttentionLibraryName, ...]:
    """The libraries of a stack that a table means; all of them where it does not tell."""
    known = device.execution.libraries.attention
    meant = tuple(name for name in names if name in known and kernel_source in known[name].known_as)
    return meant or tuple(names)


def measured_calls(source: str, rows: TableRows, sizes: Array, device: Architecture, stack: SoftwareStack) -> tuple[Calls, KernelCosts]:
    """Calls of one framework as a source made them, and costs of the same where no library serves them."""
    known = measurements().get(source, {}).get("frameworks", {}).get(rows[0]["framework"], {})
    settling = parse(known.get("settling", "0 us"), "s")
    table = rows_as_kernels(rows, sizes)
    flags = {name: np.array([[row[name] == "fp8"] for row in rows]) for name in ("dtype", "kv_dtype")}
    calls = replace(
        calls_of(table, "bf16"),
        decode=np.array([[row["phase"] == "decode"] for row in rows]),
        narrow_products=flags["dtype"] & flags["kv_dtype"],
        warm=True,
        settling=np.array([[0.0 if row["power_w"] else settling] for row in rows]),
        unwritten=unwritten(source, rows),
    )
    return calls, fused_attention(table, "bf16", device, stack, least=False)


def rows_as_kernels(rows: TableRows, sizes: Array) -> KernelTable:
    """Rows of the table as kernels of a program; sizes of shape (7, rows). [1]"""
    batch, length, context, heads, kv_heads, width, window = sizes
    decode, narrow = (np.array([row[name] == value for row in rows]) for name, value in (("phase", "decode"), ("kv_dtype", "fp8")))
    both = width + np.select([width == elements for elements in VALUES], list(VALUES.values()), width)
    seen = np.where(decode & (window > 0), np.minimum(context, window), context)
    cut = np.where(decode | (window < context), window, 0.0)
    pairs = seen_pairs(length, seen, cut, causal=~decode, chunked=np.zeros_like(decode))
    flops = 2.0 * batch * heads * pairs * both
    moved = batch * both * (heads * length * HALF + kv_heads * seen * np.where(narrow, DTYPE_BYTES["fp8"], HALF))
    blocks = batch * heads * np.ceil(length / QUERIES)
    columns = np.stack([batch, heads, kv_heads, length, seen, width, cut, flops, moved, blocks]).T.tolist()
    kernels = [
        Attention(
            samples=samples, heads=own, kv_heads=groups, length=queries, seen=keys, width=elements, window=limit, work=tuple(work),
            causal=not alone, stored="fp8" if eight else "",
        )
        for (samples, own, groups, queries, keys, elements, limit, *work), alone, eight in zip(columns, decode, narrow, strict=True)
    ]  # fmt: skip
    (table,) = kernel_tables(kernels, HALF, narrow=False)
    return table


def unwritten(source: str, rows: TableRows) -> Mask:
    """Which rows were taken without the kernel that writes keys and values, shape (rows, 1)."""
    first = measurements().get(source, {}).get("attention_writes_from", {})
    since = {framework: version_of(version) for framework, version in first.items()}
    return np.array([[version_of(row["version"]) < since.get(row["framework"], ())] for row in rows])


def version_of(text: str) -> tuple[int, ...]:
    """Numbers of a version, for comparing.

    >>> version_of("0.24.0") > version_of("0.9.1rc2")
    True
    """
    return tuple(int("".join(filter(str.isdigit, part.split("rc")[0])) or 0) for part in text.split("."))
