"""Fit the kernels of fused attention that templates/families/nvidia-*.yaml hold (`execution.libraries.attention`).

    python docs/scripts/fit_attention.py --data DIR [--only NAME]

DIR holds ``attention.csv``. For each family and library the script prints the numbers that fit all rows beside those in the file, and the
median error of all rows, of a third of the shapes that numbers fitted to the others predict, and of the numbers in the file. What is no
number (rows of a block, whether heads are packed, what a library serves) stays as in the file. It writes nothing.

The model is the package's own (`crossflow.cost.attention`), the rows are those that `crossflow validate` predicts by the library. The loss
is that of the logarithm of the time, with the robust loss of Cauchy at 5 %, searched from fixed starts; nothing is random: the shapes
left out are told by a checksum. Kernels of one maker that several engines ship are fitted together but for what each engine adds.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from crossflow.base.arrays import Array, Mask
from crossflow.base.files import Document
from crossflow.cost.attention import Calls, library_attention_costs
from crossflow.cost.roofline import KernelCosts
from crossflow.evidence.validation import kernels_attention as reader
from crossflow.evidence.validation.kernels_products import stack_of
from crossflow.evidence.validation.tables import TableRow, device_architecture, numbers, read_rows, template_of
from crossflow.hardware.architecture.execution import AttentionLibrary, DecodeKernel, PrefillKernel
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import DatasheetSystem

Kernel = PrefillKernel | DecodeKernel
DEVICES = ("a100-80gb", "l40s", "h100-80gb", "b200")
TOGETHER: Mapping[tuple[str, str], Sequence[str]] = {("decode", "trtllm-gen"): ("trtllm-gen", "trtllm-gen-sglang", "trtllm-gen-native")}
BY_WIDTH = ("by_width", "narrow_by_width")
OWN = ("start", "quantise")  # what each engine adds to kernels that are fitted together
SCALE, EVALUATIONS, RIDGE = 0.05, 60, 0.003
# lowest, highest and first value of each number, in SI units
BOUNDS = {
    "start": (3e-7, 6e-5, 6e-6), "quantise": (1e-8, 2e-5, 1e-6), "block": (1e-8, 3e-5, 1.5e-6), "row": (1e-12, 2e-6, 3e-8),
    "matrix": (0.005, 1.3, 0.5), "narrow": (0.03, 1.3, 0.5), "lone": (1.0, 12.0, 1.4),
    "memory": (0.2, 1.4, 1.0), "writing": (0.1, 3.0, 0.8), "cache_bytes_per_clock": (2.0, 256.0, 40.0), "split": (1e-8, 4e-5, 4e-6),
    "regroup": (1e-7, 3e-5, 5e-6), "by_width": (0.05, 3.0, 1.0), "narrow_by_width": (0.05, 3.0, 1.0),
}  # fmt: skip
STARTS: Sequence[Mapping[str, float]] = (
    {}, {"lone": 2.5, "block": 4e-7, "matrix": 0.1, "cache_bytes_per_clock": 80.0},
    {"matrix": 0.9, "narrow": 0.9, "block": 3e-6, "cache_bytes_per_clock": 20.0},
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Rows of one library, and the numbers of its kernel."""

    name: str
    kernel: Kernel
    calls: Calls
    otherwise: KernelCosts
    time: Array
    aside: Mask  # shapes that are left out
    free: tuple[str, ...]  # numbers, and ``by_width.64`` and so on


def left_out(row: TableRow) -> bool:
    """Whether a row is of the third of the shapes that is kept aside."""
    return zlib.crc32(",".join(row[name] for name in reader.SIZES).encode()) % 3 == 0


def numbers_of(kernel: Kernel) -> tuple[str, ...]:
    """Numbers of a kernel that its rows decide; those that the file leaves out stay away."""
    given = [name for name in BOUNDS if name in type(kernel).model_fields and name not in BY_WIDTH]
    away = {name for name in ("quantise", "row", "regroup", "narrow") if name in given and not _stated(kernel, name)}
    away |= {"split"} if isinstance(kernel, DecodeKernel) and kernel.groups_heads == "never" else set()
    return (*(name for name in given if name not in away), *(f"{kind}.{width}" for kind in BY_WIDTH for width in getattr(kernel, kind, ())))


def _stated(kernel: Kernel, name: str) -> bool:
    value = getattr(kernel, name)
    return value is not None and float(value.item()) > 0.0


def value_of(kernel: Kernel, name: str) -> float:
    """A number of a kernel, in SI units."""
    kind, _, width = name.partition(".")
    found = getattr(kernel, kind)
    return float((found[int(width)] if width else found).item())


def with_values(kernel: Kernel, values: Mapping[str, float]) -> Kernel:
    """A kernel with other numbers."""
    new: dict[str, object] = {name: np.array([value]) for name, value in values.items() if "." not in name}
    for kind in BY_WIDTH:
        widths = {int(name.partition(".")[2]): np.array([value]) for name, value in values.items() if name.startswith(f"{kind}.")}
        new |= {kind: widths} if widths else {}
    return kernel.model_copy(update=new)


def some(calls: Calls, rows: Mask) -> Calls:
    """Some of the calls."""
    found = {field.name: getattr(calls, field.name) for field in fields(Calls)}
    return replace(
        calls, **{name: value[rows] for name, value in found.items() if isinstance(value, np.ndarray) and len(value) == len(rows)}
    )


def predict(part: Fitted, kernel: Kernel, device: str) -> Array:
    """Times of the rows of a library. [s]"""
    found = device_architecture(device)
    assert found is not None
    return library_attention_costs(part.calls, (kernel,), part.otherwise, found).time[:, 0]


def fitted(parts: Sequence[Fitted], device: str, *, all_rows: bool) -> list[dict[str, float]]:
    """Numbers of least loss for kernels that share all but what each engine adds."""
    names = list(dict.fromkeys((name, part.name if len(parts) > 1 and name in OWN else "") for part in parts for name in part.free))
    bounds = [BOUNDS[name.split(".")[0]] for name, _ in names]
    bounds = [
        (low, printed_rate(device), first) if name == "memory" else (low, high, first)
        for (name, _), (low, high, first) in zip(names, bounds, strict=True)
    ]
    low, high = (np.log([bound[i] for bound in bounds]) for i in (0, 1))
    usual, pull = np.log([bound[2] for bound in bounds]), RIDGE * np.sqrt(sum(len(part.time) for part in parts))
    rows = [part.time > 0 if all_rows else ~part.aside for part in parts]
    mine = [replace_rows(part, keep) for part, keep in zip(parts, rows, strict=True)]

    def values(x: Array, part: Fitted) -> dict[str, float]:
        return {
            name: float(np.exp(value))
            for (name, owner), value in zip(names, x, strict=True)
            if owner in ("", part.name) and name in part.free
        }

    def residuals(x: Array) -> Array:
        errors = [np.log(predict(part, with_values(part.kernel, values(x, part)), device) / part.time) for part in mine]
        return np.concatenate([*errors, pull * (x - usual)])

    best = None
    for start in STARTS:
        first = np.log([start.get(name, bound[2]) for (name, _), bound in zip(names, bounds, strict=True)])
        found = least_squares(
            residuals, np.clip(first, low + 1e-3, high - 1e-3), bounds=(low, high), loss="cauchy", f_scale=SCALE, diff_step=1e-3,
            max_nfev=EVALUATIONS,
        )  # fmt: skip
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    return [values(best.x, part) for part in parts]


def printed_rate(device: str) -> float:
    """The printed rate of a device's memory over that which matrix products reach: nothing streams faster. [1]"""
    spec, _ = resolve(Document(file="fit_attention", data={"template": template_of(device)}))
    assert isinstance(spec, DatasheetSystem)
    return float(1.0 / spec.memory_utilisation.item())


def replace_rows(part: Fitted, keep: Mask) -> Fitted:
    """The same with some of the rows."""
    otherwise = part.otherwise[np.flatnonzero(keep)]
    return replace(part, calls=some(part.calls, keep), otherwise=otherwise, time=part.time[keep], aside=part.aside[keep])


def parts_of(device: str, phase: str, rows: Sequence[TableRow], file: Path) -> list[Fitted]:
    """Rows of a device and phase by the library that serves them."""
    architecture = device_architecture(device)
    assert architecture is not None
    known, found = architecture.execution.libraries.attention, []
    for framework, source in dict.fromkeys((row["framework"], row["kernel_source"]) for row in rows):
        stack = stack_of(framework)
        if stack is None:
            continue
        mine = [row for row in rows if (row["framework"], row["kernel_source"]) == (framework, source)]
        sizes = np.stack([numbers(file, mine, column) for column in reader.SIZES])
        calls, otherwise = reader.measured_calls(mine[0]["source"], mine, sizes, architecture, stack)
        open_, time = np.ones(len(mine), dtype=bool), numbers(file, mine, "time_us") * 1e-6
        for name in reader.called(getattr(stack.kernels.attention, phase), source, architecture):
            kernel = getattr(known.get(name, AttentionLibrary()), phase)
            keep = open_ & (calls.served(kernel)[:, 0] if kernel is not None else False)
            open_ = open_ & ~keep
            if keep.any():
                part = Fitted(
                    name=name, kernel=kernel, calls=some(calls, keep), otherwise=otherwise[np.flatnonzero(keep)], time=time[keep],
                    aside=np.array([left_out(row) for row, kept in zip(mine, keep, strict=True) if kept]), free=numbers_of(kernel),
                )  # fmt: skip
                found.append(part)
    return merged(found)


def merged(parts: Sequence[Fitted]) -> list[Fitted]:
    """Rows of each library as one set, though tables call it by several names."""
    found = {}
    for part in parts:
        if part.name in found:
            part = joined_parts(found[part.name], part)
        found[part.name] = part
    return list(found.values())


def joined_parts(first: Fitted, second: Fitted) -> Fitted:
    """Rows of two sets of one library."""
    both = {field.name: (getattr(first.calls, field.name), getattr(second.calls, field.name)) for field in fields(Calls)}
    calls = {name: np.concatenate(pair) if isinstance(pair[0], np.ndarray) else pair[0] for name, pair in both.items()}
    costs = {field.name: (getattr(first.otherwise, field.name), getattr(second.otherwise, field.name)) for field in fields(KernelCosts)}
    otherwise = KernelCosts(**{name: np.concatenate(pair, axis=-2) for name, pair in costs.items()})
    time, aside = np.concatenate([first.time, second.time]), np.concatenate([first.aside, second.aside])
    return replace(first, calls=Calls(**calls), otherwise=otherwise, time=time, aside=aside)


def median(predicted: Array, time: Array) -> str:
    """Median error, as a percentage."""
    return f"{100 * float(np.median(np.abs(predicted / time - 1.0))):5.1f} %" if time.size else "    -  "


def report(device: str, phase: str, parts: Sequence[Fitted]) -> None:
    """Fit kernels of one device and print what was found."""
    found = fitted(parts, device, all_rows=True)
    others = fitted(parts, device, all_rows=False)
    for part, values, crossed in zip(parts, found, others, strict=True):
        now, aside = predict(part, with_values(part.kernel, values), device), predict(part, with_values(part.kernel, crossed), device)
        in_file = predict(part, part.kernel, device)
        print(f"{device} {phase} {part.name}: {len(part.time)} rows, median {median(now, part.time)}, shapes left out"
              f" {median(aside[part.aside], part.time[part.aside])}, numbers in the file {median(in_file, part.time)}")  # fmt: skip
        print("   " + ", ".join(f"{name} {value:.4g} ({value_of(part.kernel, name):.4g})" for name, value in values.items()), flush=True)


def main() -> None:
    """Fit the libraries of every family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with attention.csv")
    parser.add_argument("--only", default="", help="libraries whose name has this in it")
    given = parser.parse_args()
    file = given.data / "attention.csv"
    rows = read_rows(file, reader.COLUMNS)
    for device in DEVICES:
        for phase in ("prefill", "decode"):
            parts = parts_of(device, phase, [row for row in rows if (row["device"], row["phase"]) == (device, phase)], file)
            sets: dict[str, list[Fitted]] = {}
            for part in parts:
                first = next((key for (when, key), names in TOGETHER.items() if when == phase and part.name in names), part.name)
                sets.setdefault(first, []).append(part)
            for name, together in sets.items():
                if given.only in name:
                    report(device, phase, together)


if __name__ == "__main__":
    main()
