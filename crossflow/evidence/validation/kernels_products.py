"""Measured matrix products: of serving engines, in CUDA graphs (``gemm_graph.csv``), and of training (``simumax_kernels.csv``)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.bands import type_of
from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES, kept_bytes
from crossflow.base.units import parse
from crossflow.cost.price import kernel_parts
from crossflow.cost.roofline import KernelCosts, product_costs
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import TableRow, TableRows, device_architecture, measurements, positive, predicted_by, read_rows
from crossflow.evidence.validation.training import known_stacks
from crossflow.hardware.architecture.execution import preferred
from crossflow.hardware.architecture.model import Architecture, Repeats
from crossflow.hardware.architecture.software import SoftwareStack, load_stack
from crossflow.program.kernels import Attention, Kernel, Pass, Product
from crossflow.program.program import Program

COLUMNS = ("source", "device", "framework", "version", "dtype", "m", "n", "k", "time_us", "power_w")
SHORT = 10e-6  # below it most of a row is what a kernel takes however little it does [s]


def products_table(folder: Path) -> Table:
    """Measured matrix products in graphs: columns source, device, framework, version, dtype, m, n, k, time_us and power_w."""
    file = folder / "gemm_graph.csv"
    rows = read_rows(file, COLUMNS)
    sizes, time = np.stack([positive(file, rows, name) for name in ("m", "n", "k")]), positive(file, rows, "time_us") * 1e-6
    keys = [(row["source"], row["device"], row["framework"], row["dtype"], bool(row["power_w"]), other_kernel(row)) for row in rows]
    predicted, reasons = predicted_by(keys, lambda key, mine: _times(key, sizes[:, mine]))
    known = np.isfinite(predicted)
    kept = [(row, short) for row, short, keep in zip(rows, time < SHORT, known, strict=True) if keep]
    regimes = ["< 10 us" if short else ">= 10 us" for _, short in kept]
    seen = [{True: "seen", False: "not seen"}[is_seen(row["device"], row["framework"], row["dtype"])] for row, _ in kept]
    return Table(
        name="gemm_graph",
        measured=time[known],
        predicted=predicted[known],
        groups={
            "regime": regimes,
            "device and regime": [f"{row['device']}, {regime}" for (row, _), regime in zip(kept, regimes, strict=True)],
            "dtype and regime": [f"{row['dtype']}, {regime}" for (row, _), regime in zip(kept, regimes, strict=True)],
            "framework and regime": [f"{row['framework']}, {regime}" for (row, _), regime in zip(kept, regimes, strict=True)],
            "clock": ["sustained" if row["power_w"] else "boost" for row, _ in kept],
            "seen": [f"{what}, {regime}" for what, regime in zip(seen, regimes, strict=True)],
        },
        skipped=Counter(reasons),
        items=[f"{row['n']} x {row['k']}" for row, _ in kept],
        alike={
            "device": [row["device"] for row, _ in kept],
            "stack": [known_stacks().get(row["framework"].lower(), "") for row, _ in kept],
            "type": [type_of(row["dtype"]) for row, _ in kept],
        },
    )


@functools.cache
def is_seen(device: str, framework: str, dtype: str) -> bool:
    """Whether a library was fitted to rows of a device: each family's is fitted to those of one."""
    found = device_architecture(device)
    return found is not None and found.name in FITTED and library_of(found, framework, dtype) is not None


FITTED = ("a100-80gb", "h100-sxm", "l40s", "b200")  # devices that docs/scripts/fit_products.py fits


@functools.cache
def stack_of(framework: str) -> SoftwareStack | None:
    """The software stack that tables call so; None where there is none."""
    name = known_stacks().get(framework.lower())
    return None if name is None else load_stack(name)[0]


def library_of(device: Architecture, framework: str, dtype: str) -> str | None:
    """Name of the library in which a framework multiplies on a device; None where its family has none."""
    stack = stack_of(framework)
    known = device.execution.libraries.products
    return None if stack is None else preferred(stack.kernels.products.get(dtype, ()), {name: name for name in known})


def _times(key: tuple[str, str, str, str, bool, str], sizes: Array) -> Array | str:
    """Times of products of one device, framework and type, or why there are none. [s]"""
    source, device, framework, dtype, sustained, other = key
    if other:
        return other
    found, stack = device_architecture(device), stack_of(framework)
    if found is None:
        return f"no template for device '{device}'"
    if stack is None:
        return f"no software stack is known as '{framework}'"
    if dtype not in found.throughput:
        return f"template '{found.name}' has no {dtype} matrix products"
    return graph_times(benched(found, source, framework, dtype, sizes, sustained=sustained), stack, dtype, sizes)


def other_kernel(row: TableRow) -> str:
    """Why a row is not of the library that the stack of its framework names: another one of its version; empty where it is."""
    other = _benchmark(row["source"], row["framework"]).get("other_kernels", {}).get(row["version"], ())
    return f"{row['framework']} {row['version']} multiplies {row['dtype']} in another kernel" if row["dtype"] in other else ""


def _benchmark(source: str, framework: str) -> Mapping[str, Any]:
    """What is known of the benchmark of a framework, beside what its rows say."""
    found: Mapping[str, Any] = measurements().get(source, {}).get("frameworks", {}).get(framework, {})
    return found


def _own_clock(source: str, device: str) -> float:
    """Clock of long products on a source's own device, over what others of its kind sustain. [1]"""
    return float(measurements().get(source, {}).get("devices", {}).get(device, {}).get("clock", 1.0))


def benched(device: Architecture, source: str, framework: str, dtype: str, sizes: Array, *, sustained: bool) -> Architecture:
    """A device as the benchmark of a framework met it: its clock and what it found in the cache (``measurements.yaml``).

    sizes : m, n, k, shape (3, rows). [1]
    """
    given = _benchmark(source, framework)
    copies = np.full(sizes.shape[1], float(given.get("copies_by_type", {}).get(dtype, given.get("copies", np.inf))))
    if given.get("copies_fill_cache"):
        cache = device.levels[-2]
        copies = np.clip(np.ceil(cache.capacity * cache.instances / (sizes[1] * sizes[2] * DTYPE_BYTES[dtype])) + 1.0, 1.0, copies)
    if sustained:
        return replace(device, repeats=Repeats(copies=copies))
    clock = device.power_clock * float(given.get("clock", 1.0)) * _own_clock(source, device.name)
    return replace(device, power_clock=clock, repeats=Repeats(copies=copies, settling=parse(given.get("settling", "0 us"), "s")))


def graph_times(device: Architecture, stack: SoftwareStack, dtype: str, sizes: Array) -> Array:
    """Times of products, scaling A to a narrower type included, as `predict` has them. [s]

    sizes : m, n, k, shape (3, rows), the design points of one product. [1]
    """
    parts = [costs.time.sum(axis=0) for costs in graph_costs(device, stack, dtype, sizes)]
    return np.asarray(np.broadcast_to(sum(parts), sizes[0].shape))


def graph_costs(device: Architecture, stack: SoftwareStack, dtype: str, sizes: Array) -> list[KernelCosts]:
    """Costs of the kernels of the same products."""
    m, n, k = sizes
    kernels: tuple[Kernel, ...] = (Product(m=m, n=n, k=k),)
    if DTYPE_BYTES[dtype] < kept_bytes(dtype):
        kernels = (*kernels, Pass(moved=m * k * (kept_bytes(dtype) + DTYPE_BYTES[dtype]), narrows=True))
    program = Program(name="product", dtype=dtype, axes=(), kernels=kernels, messages=(), ops=(), tensors=(), training=False)
    return [costs for _, costs, _ in kernel_parts(program, device, stack)]


def rows_of(folder: Path, device: str, library: str) -> Mapping[tuple[str, str, str, bool], tuple[Array, Array]]:
    """Measured rows of a device that go through a library: sizes and times by source, framework, dtype and whether watts were read."""
    file = folder / "gemm_graph.csv"
    found: dict[tuple[str, str, str, bool], list[int]] = {}
    rows = [row for row in read_rows(file, COLUMNS) if row["device"] == device]
    architecture = device_architecture(device)
    assert architecture is not None, device
    for i, row in enumerate(rows):
        if library_of(architecture, row["framework"], row["dtype"]) == library and not other_kernel(row):
            key = row["source"], row["framework"], row["dtype"], bool(row["power_w"])
            found.setdefault(key, []).append(i)
    numbers = np.stack([positive(file, rows, name) for name in ("m", "n", "k", "time_us")])
    return {key: (numbers[:3, mine], numbers[3, mine] * 1e-6) for key, mine in found.items()}


# -------------------------------------------------------------------------------------------- operators of training


OPERATORS = (
    "device", "op", "groups", "m", "n", "k", "layout", "batch", "seq", "heads", "kv_heads", "qk_head_dim", "v_head_dim", "out_dtype",
    "accumulate", "time_us",
)  # fmt: skip
ATTENTION = ("sdp_fwd", "sdp_bwd")
TRAINED_BY = "megatron-core"  # whose kernel it is: Transformer Engine's


def training_kernels_table(folder: Path) -> Table:
    """Products and fused attention that PyTorch launched one by one, each with the columns of its kind."""
    file = folder / "simumax_kernels.csv"
    rows = read_rows(file, OPERATORS)
    keys = [(row["device"], row["op"]) for row in rows]
    predicted, reasons = predicted_by(keys, lambda key, mine: _training_times(key, file, [rows[i] for i in mine]))
    known = np.isfinite(predicted)
    kept = [row for row, keep in zip(rows, known, strict=True) if keep]
    return Table(
        name="simumax_kernels",
        measured=positive(file, kept, "time_us") * 1e-6,
        predicted=predicted[known],
        groups={"device": [row["device"] for row in kept], "operator": [f"{row['op']} {row['layout']}".strip() for row in kept]},
        skipped=Counter(reasons),
    )


def _attention_times(device: Architecture, file: Path, rows: TableRows, *, backward: bool) -> Array:
    """Times of causal attention, as Megatron-Core's steps have them. [s]"""
    names = ("batch", "heads", "kv_heads", "seq", "qk_head_dim", "v_head_dim")
    samples, heads, kv_heads, length, query, value = (positive(file, rows, name) for name in names)
    kernel = Attention(
        samples=samples, heads=heads, kv_heads=kv_heads, length=length, seen=length, width=(query + value) / 2.0, backward=backward
    )
    program = Program(name="attention", dtype="bf16", axes=(), kernels=(kernel,), messages=(), ops=(), tensors=(), training=True)
    (part,) = kernel_parts(program, device, load_stack(TRAINED_BY)[0])
    return np.asarray(part[1].time[0])


def _training_times(key: tuple[str, str], file: Path, rows: TableRows) -> Array | str:
    """Times of one kind of operator on one device, or why there are none. [s]"""
    device, op = key
    found = device_architecture(device)
    if op not in ("matmul", "group_matmul", *ATTENTION):
        return f"operator {op} is neither a matrix product nor attention"
    if found is None:
        return f"no template for device '{device}'"
    if device in measurements().get("simumax-2026", {}).get("boost_clock", ()):
        found = replace(found, power_clock=np.full(1, np.inf))
    if op in ATTENTION:
        return _attention_times(found, file, rows, backward=op == "sdp_bwd")
    sizes = np.stack([positive(file, rows, name) for name in ("m", "n", "k", "groups")])[..., None]
    moved = [[DTYPE_BYTES[row["out_dtype"]] * (2.0 if row["accumulate"] == "1" else 1.0)] for row in rows]
    return np.asarray(product_costs(sizes, np.array(moved), found, "bf16").time[:, 0])
