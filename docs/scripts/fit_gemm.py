"""Fit the execution parameters of matrix products that templates/families/nvidia-*.yaml and amd-gpu.yaml hold.

    python docs/scripts/fit_gemm.py --data DIR

DIR holds ``gemm.csv`` (columns source, device, dtype, m, n, k, time_us) and ``gemm_graph.csv`` (the same and power_w), of which
the products of the B200 at its power limit decide its `chip_power`. The script prints for each family the fitted
parameters beside those in the file, and the errors in sample, out of sample (shapes (n, k) left out; single rows where
there are few) and on the other device of the same maker (only the datasheet changes). It writes nothing.

`chip_power` is fitted with the other parameters as they stand in the file, then these with it. The model is the package's
own (`crossflow.cost.waves`, `crossflow.cost.roofline.product_costs`). The loss is the mean absolute relative error of the time,
searched by Nelder-Mead over the logarithms of the parameters, from one start that is the same for all families, with two
restarts; nothing is random but the folds, whose seed is fixed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Index, Mask
from crossflow.base.files import Document
from crossflow.base.formats import kept_bytes
from crossflow.cost.roofline import product_costs
from crossflow.evidence.validation import tables
from crossflow.evidence.validation.report import errors
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.system import architecture, resolve

Values = Mapping[str, float]

LAUNCH, MATRIX, MEMORY, POWER = "kernel_launch", "matrix_utilisation", "memory_utilisation", "chip_power"
START: Values = {MATRIX: 0.93, "cache_bytes_per_flop": 0.0205, "fill": 1e-6, LAUNCH: 4e-6, MEMORY: 0.86, "split": 8e-6}
UNITS = {"fill": ("us", 1e-6), LAUNCH: ("us", 1e-6), "split": ("us", 1e-6), "cache_bytes_per_flop": ("B/flop", 1.0)}
PARTIAL_RATE = 2.0  # partial sums move at this many times the memory's peak: adopted; the files divide by utilisation
EVALUATIONS, SIMPLEX, RIDGE = 260, (0.15, -0.10, 0.05), 1e-4
FOLDS = 4
LARGE = 100e-6  # from here on a product is long enough that its launch does not matter [s]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family's parameters are fitted to; parameters that are not `free` stay as in the file."""

    name: str
    device: str
    source: str
    free: tuple[str, ...]
    sibling: str = ""  # device of the same maker in another family


FAMILIES = (
    Family(name="nvidia-ampere", device="a100-80gb", source="vidur-2024", free=(POWER,)),
    Family(name="nvidia-hopper", device="h100-80gb", source="vidur-2024", free=(POWER,)),
    Family(name="nvidia-blackwell", device="b200", source="aiconfigurator-2026", free=(POWER,)),
    Family(name="nvidia-ampere, rest", device="a100-80gb", source="vidur-2024", free=tuple(START), sibling="h100-80gb"),
    Family(name="nvidia-hopper, rest", device="h100-80gb", source="vidur-2024", free=tuple(START), sibling="a100-80gb"),
    Family(name="amd-gpu", device="mi210", source="llmcompass-2024", free=(MATRIX, "fill")),
)
GRAPH = "aiconfigurator-2026"  # source of gemm_graph.csv: of its rows those at the power limit, in bf16, long enough for it to hold


@dataclass(frozen=True, kw_only=True)
class Products:
    """Measured products of one device and source; `shape` is (rows, 3): m, n, k; `time` in s."""

    device: str
    source: str
    dtype: str
    shape: Array
    time: Array

    def some(self, rows: Mask | Index) -> Products:
        """The same with some of the rows."""
        return replace(self, shape=self.shape[rows], time=self.time[rows])


def read(folder: Path, device: str, source: str) -> Products | None:
    """Rows of one device and source, all of one data type; None where there are none."""
    file = folder / ("gemm_graph.csv" if source == GRAPH else "gemm.csv")
    rows = tables.read_rows(file, ("source", "device", "dtype", "m", "n", "k", "time_us"))
    mine = [row for row in rows if (row["device"], row["source"]) == (device, source)]
    if source == GRAPH:
        mine = [row for row in mine if row["power_w"] and row["dtype"] == "bf16" and float(row["time_us"]) * 1e-6 >= LARGE]
    mine = [row for row in mine if row["dtype"] == mine[0]["dtype"]]
    if not mine:
        return None
    shape = np.stack([tables.numbers(file, mine, column) for column in ("m", "n", "k")], axis=1)
    time = tables.numbers(file, mine, "time_us") * 1e-6
    return Products(device=device, source=source, dtype=mine[0]["dtype"], shape=shape, time=time)


@functools.cache
def in_file(device: str) -> tuple[Architecture, Values]:
    """A device as its files describe it, and the parameters of its family."""
    spec, _ = resolve(Document(file="fit_gemm", data={"template": tables.template_of(device)}))
    found = architecture(spec)
    tiles = found.execution.tiles
    assert tiles is not None, f"{device} has no tiles"
    holders = {MEMORY: spec, LAUNCH: found.execution, MATRIX: found.execution, POWER: found.execution}
    names = START if found.execution.chip_power is None else (*START, POWER)
    return found, {name: float(getattr(holders.get(name, tiles), name).item()) for name in names}


def with_values(device: str, values: Values, tiles_of: str = "") -> Architecture:
    """A device with other parameters of its family, and with the tiles of another device where that is named."""
    found, old = in_file(device)
    new = {name: np.array([value]) for name, value in values.items()}
    memory = replace(found.memory, bandwidth=found.memory.bandwidth * (new[MEMORY] / old[MEMORY]))
    in_tiles = {name: new[name] for name in ("fill", "split", "cache_bytes_per_flop")}
    library = in_file(tiles_of or device)[0].execution.tiles
    tiles = library.model_copy(update=in_tiles | {"partial_rate": PARTIAL_RATE / new[MEMORY]})
    execution = found.execution.model_copy(update={LAUNCH: new[LAUNCH], MATRIX: new[MATRIX], "tiles": tiles})
    clock = powered(device, values[POWER]) if POWER in values else found.power_clock
    return replace(found, execution=execution, power_clock=clock, levels=(*found.levels[:-1], memory))


def powered(device: str, chip_power: float) -> Array:
    """Clock of long products at the power limit for a value of `chip_power`, over the boost clock. [1]"""
    spec, _ = resolve(Document(file="fit_gemm", data={"template": tables.template_of(device), "execution": {POWER: chip_power}}))
    return architecture(spec).power_clock


def predict(products: Products, device: Architecture) -> Array:
    """Times as the source would have measured them, on random data. [s]"""
    host, _ = tables.conditions(products.source)
    sizes = np.concatenate([products.shape[:, :3].T, np.ones((1, len(products.shape)))])[:, :, None]
    result = np.full((len(products.shape), 1), kept_bytes(products.dtype))
    return np.asarray(product_costs(sizes, result, device, products.dtype).time[:, 0] + host)


def fit(products: Products, free: tuple[str, ...], fixed: Values) -> Values:
    """Parameters of least mean absolute relative error; those that are not free are `fixed`."""
    from scipy.optimize import minimize

    start = {**fixed, **{name: START.get(name, fixed[name]) for name in free}}

    def values(x: Array) -> Values:
        moved = {name: start[name] * float(np.exp(step)) for name, step in zip(free, x, strict=True)}
        return start | {name: min(value, 1.0) if name in (MATRIX, MEMORY) else value for name, value in moved.items()}

    def loss(x: Array) -> float:
        relative = predict(products, with_values(products.device, values(x))) / products.time - 1.0
        return float(np.abs(relative).mean() + RIDGE * (x * x).mean())

    x = np.zeros(len(free))
    for restart, size in enumerate(SIMPLEX):
        simplex = np.vstack([x, x + size * np.eye(len(free))])
        options = {"maxfev": EVALUATIONS // (restart + 1), "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-5}
        x = minimize(loss, x, method="Nelder-Mead", options=options).x
    return values(x)


def folds(products: Products) -> Index:
    """Fold of each row: shapes (n, k) in four; each row its own where there are few rows."""
    if len(products.time) < 50:
        return np.arange(len(products.time))
    _, shape = np.unique(products.shape[:, 1:], axis=0, return_inverse=True)
    return np.random.default_rng(0).permutation(int(shape.max()) + 1)[shape.ravel()] % FOLDS


def left_out(products: Products, refit: Callable[[Products], Values]) -> tuple[Array, list[Values]]:
    """Prediction of every row by parameters that were fitted without its fold, and those parameters."""
    fold, predicted, found = folds(products), np.zeros_like(products.time), []
    for i in range(int(fold.max()) + 1):
        found.append(refit(products.some(fold != i)))
        predicted[fold == i] = predict(products.some(fold == i), with_values(products.device, found[-1]))
    return predicted, found


def line(title: str, products: Products, predicted: Array) -> str:
    """Errors of all rows, of the long and of the short ones."""
    parts = [f"  {title:38s} n {len(products.time):5d}"]
    large = products.time >= LARGE
    for name, rows in (("all", products.time > 0), (">= 100 us", large), ("< 100 us", ~large)):
        found = errors(products.time[rows], predicted[rows])
        if found["n"]:
            parts.append(f"{name} {100 * found['mean_abs_error']:5.2f} (bias {100 * found['bias']:+5.2f})")
    return " | ".join(parts) + " %"


def report(family: Family, products: Products, folder: Path) -> None:
    """Fit one family and print what was found."""
    given, current = in_file(family.device)
    fitted = fit(products, family.free, current)
    crossed, of_folds = left_out(products, lambda rows: fit(rows, family.free, current))
    print(f"\n{family.name}: {len(products.time)} rows of {family.device}, {family.source}")
    for name in family.free:
        unit, scale = UNITS.get(name, ("1", 1.0))
        span = [min(found[name] for found in of_folds) / scale, max(found[name] for found in of_folds) / scale]
        print(f"  {name:24s} fitted {fitted[name] / scale:8.4g}   in file {current[name] / scale:8.4g} {unit:8s}"
              f" folds {span[0]:.4g} to {span[1]:.4g}")  # fmt: skip
    print("  mean absolute relative error of the time:")
    print(line("values in the file", products, predict(products, given)))
    print(line("fitted, in sample", products, predict(products, with_values(family.device, fitted))))
    print(line("fitted, shapes or rows left out", products, crossed))
    other = read(folder, family.sibling, family.source) if family.sibling else None
    if other is not None:
        carried = with_values(family.sibling, fitted, tiles_of=family.device)
        print(line(f"fitted here, on {family.sibling}", other, predict(other, carried)))


def main() -> None:
    """Fit every family that the folder has rows of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with gemm.csv")
    folder = parser.parse_args().data
    for family in FAMILIES:
        products = read(folder, family.device, family.source)
        if products is None:
            print(f"\n{family.name}: no rows of {family.device} from {family.source}")
        else:
            report(family, products, folder)


if __name__ == "__main__":
    main()
