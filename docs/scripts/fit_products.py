"""Fit the libraries of matrix products that templates/families/nvidia-*.yaml hold, `execution.libraries.products`.

    python docs/scripts/fit_products.py --data DIR [--device NAME] [--library NAME]

DIR holds ``gemm_graph.csv``. Two thirds of the rows, by a hash of m, n and k, are fitted; the errors of the other third are printed beside
theirs. Tiles, splits and rules stay as the files have them, and so does what measurements.yaml says of each framework's benchmark. The
model is the package's own (`crossflow.evidence.validation.kernels_products.graph_times`). The loss is that of Cauchy over the logarithm of
predicted over measured time, by least squares from what the files hold (``--anew``: from one start for all). It prints values as a family
file has them, and writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.evidence.validation.kernels_products import SHORT, benched, graph_times, rows_of, stack_of
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.execution import KernelLibraries, ProductLibrary
from crossflow.hardware.architecture.model import Architecture

DEVICES = ("a100-80gb", "h100-80gb", "l40s", "b200")
# Bounds between which a parameter is searched: on a logarithmic scale, but for those that may be nothing.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "start": (0.2e-6, 2e-5), "matrix_utilisation": (0.3, 1.0), "clock": (0.2, 4.0), "memory_rate": (0.5, 1.25), "fill": (1e-9, 5e-6),
    "split": (3e-7, 4e-5), "cache_bytes_per_flop": (1e-3, 0.1), "rounding": (0.0, 1.0), "stored": (0.0, 16.0), "kept": (0.1, 0.8), "reread": (0.0, 1.0),
    "quantise.start": (0.2e-6, 2e-5), "quantise.rate": (0.05, 4.0),
}  # fmt: skip
START: Mapping[str, float] = {
    "start": 2e-6, "matrix_utilisation": 0.9, "clock": 1.0, "memory_rate": 0.95, "fill": 1e-7, "split": 4e-6, "cache_bytes_per_flop": 0.0164,
    "rounding": 0.5, "stored": 8.0, "kept": 0.3, "reread": 0.3, "quantise.start": 2e-6, "quantise.rate": 0.6,
}  # fmt: skip
LINEAR = ("rounding", "stored", "kept", "reread")
TIMES = ("start", "fill", "split", "quantise.start")
SCALES = (0.5, 0.05)  # of the loss, one after the other: errors well above it count as outliers
ROWS = 500  # of one framework, type and clock that are fitted at most


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measured rows of one framework, type and clock on one device."""

    title: str
    framework: str
    dtype: str
    device: Architecture  # as the benchmark met it
    sizes: Array  # m, n, k, shape (3, rows). [1]
    time: Array  # [s]

    def some(self, which: Mask) -> Rows:
        """Some of the rows."""
        repeats = self.device.repeats
        assert repeats is not None
        device = replace(self.device, repeats=replace(repeats, copies=repeats.copies[which]))
        return replace(self, device=device, sizes=self.sizes[:, which], time=self.time[which])

    @property
    def held(self) -> Mask:
        """Which rows are kept from the fit: a third, by a hash of their sizes."""
        hashes = (hashlib.md5(",".join(f"{int(size)}" for size in shape).encode()).hexdigest() for shape in self.sizes.T)
        return np.array([int(digest, 16) % 3 == 0 for digest in hashes])


def read(folder: Path, device: str, library: str) -> list[Rows]:
    """Rows that go through a library of a device, by framework, type and clock."""
    found, architecture = [], device_architecture(device)
    assert architecture is not None
    for (source, framework, dtype, sustained), (sizes, time) in rows_of(folder, device, library).items():
        met = benched(architecture, source, framework, dtype, sizes, sustained=sustained)
        title = f"{framework}, {dtype}{', sustained' if sustained else ''}"
        found.append(Rows(title=title, framework=framework, dtype=dtype, device=met, sizes=sizes, time=time))
    return found


def predicted(rows: Rows, name: str, library: ProductLibrary) -> Array:
    """Times of rows by a library. [s]"""
    execution = rows.device.execution.model_copy(update={"libraries": KernelLibraries(products={name: library})})
    stack = stack_of(rows.framework)
    assert stack is not None
    return graph_times(replace(rows.device, execution=execution), stack, rows.dtype, rows.sizes)


def with_values(library: ProductLibrary, values: Mapping[str, float]) -> ProductLibrary:
    """A library with other parameters."""
    own = {name: np.array([value]) for name, value in values.items() if "." not in name}
    inner = {name.split(".")[1]: np.array([value]) for name, value in values.items() if "." in name}
    if library.quantise is not None and inner:
        own["quantise"] = library.quantise.model_copy(update=inner)  # type: ignore[assignment]
    return library.model_copy(update=own)


def values_of(library: ProductLibrary) -> dict[str, float]:
    """Parameters of a library that are fitted: how long splits take only where it splits, its cache where small products were measured."""
    names = [name for name in BOUNDS if "." not in name and (name != "split" or library.splits != (1,))]
    found = {name: float(getattr(library, name).item()) for name in names}
    if library.quantise is None:
        return found
    # Of a family's other libraries both are those of bf16 products: few of their rows are short enough to decide the one, and all types
    # draw the same power at full rate.
    del found["kept"], found["clock"]
    return found | {"quantise.start": float(library.quantise.start.item()), "quantise.rate": float(library.quantise.rate.item())}


def fit(rows: list[Rows], name: str, library: ProductLibrary, start: Mapping[str, float]) -> dict[str, float]:
    """Parameters of the least loss over the rows that are not held out."""
    from scipy.optimize import least_squares

    learnt = []
    for each in rows:
        which = np.flatnonzero(~each.held)
        learnt.append(each.some(np.random.default_rng(0).permutation(which)[:ROWS]))

    def residuals(x: Array) -> Array:
        moved = with_values(library, dict(zip(start, (value(n, u) for n, u in zip(start, x, strict=True)), strict=True)))
        return np.concatenate([np.log(predicted(each, name, moved) / each.time) for each in learnt])

    found = np.array([place(n, v) for n, v in start.items()])
    for scale in SCALES:
        x = np.clip(found, 1e-3, 1 - 1e-3)
        found = least_squares(residuals, x, bounds=(0.0, 1.0), loss="cauchy", f_scale=scale, diff_step=1e-3, max_nfev=40).x
    return {n: value(n, u) for n, u in zip(start, found, strict=True)}


def value(name: str, place: float) -> float:
    """A parameter by its place between its bounds."""
    low, high = BOUNDS[name]
    return low + (high - low) * place if name in LINEAR else float(low * (high / low) ** place)


def place(name: str, value: float) -> float:
    """The other way round."""
    low, high = BOUNDS[name]
    return (value - low) / (high - low) if name in LINEAR else float(np.log(max(value, low) / low) / np.log(high / low))


def line(title: str, measured: Array, found: Array) -> str:
    """Median and 90th percentile of the error of long and of short rows."""
    parts = []
    for what, which in ((">= 10 us", measured >= SHORT), ("< 10 us", measured < SHORT)):
        error = np.abs(found[which] / measured[which] - 1.0)
        if error.size:
            parts.append(f"{what} n {error.size:5d} median {100 * np.median(error):5.2f} p90 {100 * np.quantile(error, 0.9):5.1f}")
    return f"  {title:28s} {' | '.join(parts)}"


def report(rows: list[Rows], name: str, library: ProductLibrary, start: Mapping[str, float]) -> None:
    """Fit one library and print what was found."""
    values = fit(rows, name, library, start)
    in_file = values_of(library)
    for parameter, found in values.items():
        scale, unit = (1e6, " us") if parameter in TIMES else (1.0, "")
        print(
            f"      {parameter}: {{value: {float(f'{found * scale:.3g}') if found * scale > 1e-4 else 0}{unit}, source: products}}  # in file {in_file[parameter] * scale:.3g}"
        )
    for told, used in (("in file", library), ("fitted", with_values(library, values))):
        times = [predicted(each, name, used) for each in rows]
        for what, which in (("fitted rows", [~each.held for each in rows]), ("held-out rows", [each.held for each in rows])):
            measured = np.concatenate([each.time[mine] for each, mine in zip(rows, which, strict=True)])
            print(line(f"{told}, {what}", measured, np.concatenate([t[mine] for t, mine in zip(times, which, strict=True)])))
    for each, time in zip(rows, times, strict=True):
        print(line(each.title, each.time, time))


def main() -> None:
    """Fit every library of the families that has rows in the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with gemm_graph.csv")
    parser.add_argument("--device", choices=DEVICES, help="fit the libraries of one device only")
    parser.add_argument("--library", help="fit one library only")
    parser.add_argument("--anew", action="store_true", help="start from the same values for all, not from those in the files")
    given = parser.parse_args()
    for device in [given.device] if given.device else DEVICES:
        architecture = device_architecture(device)
        assert architecture is not None
        for name, library in architecture.execution.libraries.products.items():
            rows = read(given.data, device, name) if given.library in (None, name) else []
            if rows:
                print(f"\n{device}, {name}", flush=True)
                own = values_of(library)
                report(rows, name, library, {n: START[n] for n in own} if given.anew else own)


if __name__ == "__main__":
    main()
