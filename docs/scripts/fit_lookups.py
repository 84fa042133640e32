"""Check look-ups against embedding bags that were measured on a CPU, forward and backward.

    python docs/scripts/fit_lookups.py [tests/data/embedding_bags.csv]

What passes every level of the CPU's memory is the price's own (`crossflow.cost.lookups`): its caches have the sizes that lscpu gives,
but for the share of the last one that this virtual machine gets, which is fitted. The time is a sum: the bytes of each level over a
bandwidth, waiting for rows, the translation of addresses, and work for a look-up and a bag. These are fitted to every second point, all of
them 0 or more, by least squares of the relative error with the robust loss of `crossflow calibrate`, by reweighting; the table is of the
other points.

A core works on as many look-ups at once as their instructions fit its window, and all misses among them are waited for together [1]_: of R
look-ups of which each misses with probability m, it waits once with probability 1 - (1 - m)^R. Misses are dense at the beginning of a
batch, where no cache holds a row, and rare later, so that m follows the place in the batch. Translations that are new wait in the same way:
lines of the page tables, and in a virtual machine a line of the host's for each page.

References
----------
.. [1] Eyerman, Eeckhout, Karkhanis, Smith, "A mechanistic performance model for superscalar out-of-order processors", ACM TOCS 27(2), 2009:
   long-latency loads that fall into one reorder buffer overlap.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from crossflow.base.arrays import Array
from crossflow.base.files import Document
from crossflow.cost.lookups import lookup_costs
from crossflow.evidence.calibration.fit import SCALE
from crossflow.hardware.architecture.model import Architecture, Level
from crossflow.hardware.architecture.system import architecture, resolve
from crossflow.program.embedding.caches import CachedLookups
from crossflow.program.embedding.reuse import BINS
from crossflow.program.kernels import SIZES, Lookup, filled

Row = dict[str, float]  # one point by column
DATA = Path(__file__).parents[2] / "tests" / "data" / "embedding_bags.csv"
FP32, INDEX, LINE = 4.0, 8.0, 64.0
CACHES = (48 * 2.0**10, 2 * 2.0**20)  # one core's first and second cache: lscpu, data of two instances
PAGE, TRANSLATIONS = 4096.0, 2048.0  # bytes of a page, and entries of the second buffer of translations: Intel's optimisation manual
WINDOW = 512.0  # instructions that a core has in flight: the reorder buffer of Golden Cove, Intel's optimisation manual
LOOKUP, PER_LINE = 10.0, 3.0  # of a look-up: index, bounds and address; and of each line: load, addition, prefetch
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
PLACES = ((NODES + 1.0) / 2.0) ** 4  # in the batch, most of them at its beginning
SHARES = WEIGHTS / 2.0 * 4.0 * PLACES**0.75  # of the batch that each place stands for
REWEIGHTED = 20  # times, after which no figure moves
LAST = 2.0 ** np.arange(22, 30)  # candidates for what this machine gets of the last cache [B]


def cpu(last: float) -> Architecture:
    """One core and its caches."""
    spec, _ = resolve(Document(file="cpu", data={"template": "a100-40gb"}))
    one = np.ones(1)
    names = ("registers", "L1", "L2", "L3", "DRAM")
    levels = [
        Level(name=name, scope="global", capacity=size * one, instances=one, bandwidth=one, latency=one, energy=one)
        for name, size in zip(names, (0.0, *CACHES, last, 2.0**40), strict=True)
    ]
    return replace(architecture(spec), levels=tuple(levels))


def kernels(rows: Sequence[Row], part: str) -> list[Lookup]:
    """Look-ups of every point; rows narrower than a line of the cache take one."""
    return [
        Lookup(
            samples=row["samples"], tables=1.0, rows=row["rows"], width=max(row["width"], LINE / FP32), pooling=row["pooling"], part=part,  # type: ignore[arg-type]
            reuse=tuple(row[f"reuse_{i}"] for i in range(BINS)), element=FP32, output=FP32, gradient=FP32, index=INDEX,
        )
        for row in rows
    ]  # fmt: skip


def traffic(rows: Sequence[Row], part: str, device: Architecture) -> Array:
    """Bytes of every level of memory, shape (levels, points). [B]"""
    found = kernels(rows, part)
    sizes = filled([[getattr(one, name) or one.samples for one in found] for name in SIZES[Lookup]])
    return np.asarray(lookup_costs(found, sizes, device).traffic[1:, :, 0])


def columns(rows: Sequence[Row]) -> dict[str, Array]:
    """The table by column."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def looked_up(own: Mapping[str, Array], size: Array) -> CachedLookups:
    """The look-ups of every point, whose rows have so many bytes."""
    return CachedLookups.of(np.stack([own[f"reuse_{i}"] for i in range(BINS)]), own["lookups"], size, np.ones(1))


def paged(own: Mapping[str, Array], extent: float) -> CachedLookups:
    """The same of blocks of so many bytes: pages, and lines that say where eight of them are, are kept in caches like any other."""
    return looked_up(own, np.ones(1)).in_blocks(extent / (own["width"] * FP32), own["lookups"] / own["rows"])


def waits(own: Mapping[str, Array], stream: CachedLookups, capacity: float) -> Array:
    """How often a core waits for what a cache does not hold, shape (points,). [1]"""
    missed = np.minimum(stream.missed_at(np.full(len(own["rows"]), capacity), PLACES), 1.0 - 1e-9)
    together = WINDOW / (LOOKUP + PER_LINE * np.maximum(own["width"] * FP32 / LINE, 1.0))
    return np.asarray(own["lookups"] / together * (SHARES @ -np.expm1(together * np.log1p(-missed))))


def forward(rows: Sequence[Row], device: Architecture) -> Array:
    """What a pass forward takes time for, shape (causes, points)."""
    own, moved = columns(rows), traffic(rows, "forward", device)
    row = np.maximum(own["width"] * FP32, LINE)
    lines, pooled = looked_up(own, row), own["samples"] * own["width"] * FP32
    moved[-1] -= own["samples"] * row + own["lookups"] * INDEX
    return np.stack(
        [
            *moved,
            *(waits(own, lines, float(level.capacity[0])) for level in device.levels[2:4]),
            own["lookups"] * paged(own, PAGE).missed(np.full(len(rows), TRANSLATIONS)),
            *(waits(own, paged(own, extent), np.inf) for extent in (PAGE, 8 * PAGE)),
            pooled,
            own["lookups"],
            own["samples"],
            np.ones(len(rows)),
        ]
    )


def backward(rows: Sequence[Row], device: Architecture) -> Array:
    """The same of a pass backward, which clears the table's gradient first, and a count for each of its rows."""
    own, sort, update = columns(rows), traffic(rows, "sort", device), traffic(rows, "update", device)
    row = np.maximum(own["width"] * FP32, LINE)
    cleared, distinct = own["rows"] * own["width"] * FP32, own["distinct"]
    big = cleared > device.levels[3].capacity
    update[-1] -= 2.0 * distinct * row
    translated = (paged(own, extent).missed(np.full(len(rows), entries)) for extent, entries in ((PAGE, TRANSLATIONS), (8 * PAGE, np.inf)))
    return np.stack(
        [
            *update,
            *(update[1:] / row),
            *(own["lookups"] * one for one in translated),
            distinct * row,
            distinct,
            cleared * big,
            cleared * ~big,
            own["rows"],
            sort[0],
            own["lookups"],
            own["samples"],
            np.ones(len(rows)),
        ]
    )


def fitted(causes: Array, time: Array) -> Array:
    """Time of each cause, 0 or more."""
    scaled, weight = causes / time, np.ones(len(time))
    size = scaled.max(axis=1, keepdims=True)
    for _ in range(REWEIGHTED):
        found = nnls((scaled / size * weight).T, weight)[0] / size[:, 0]
        weight = (1.0 + ((found @ scaled - 1.0) / SCALE) ** 2) ** -0.25
    return np.asarray(found)


class Fit(NamedTuple):
    """What one kind of pass comes to."""

    last: float  # bytes of the last cache [B]
    times: Array  # of each cause
    fitted: Array  # relative errors of the points that were fitted
    held_out: Array  # and of the others


def fit(causes: Callable[[Sequence[Row], Architecture], Array], name: str, rows: Sequence[Row]) -> Fit:
    """The last cache that fits best, and the errors."""
    known, others, found = rows[::2], rows[1::2], list[tuple[float, Fit]]()
    for last in LAST.tolist():
        device = cpu(last)
        times = fitted(causes(known, device), columns(known)[name])
        errors = [times @ causes(some, device) / columns(some)[name] - 1.0 for some in (known, others)]
        found.append((float(np.sqrt(1.0 + (errors[0] / SCALE) ** 2).mean()), Fit(last, times, *errors)))
    return min(found, key=lambda pair: pair[0])[1]


def checked(path: Path) -> dict[str, Fit]:
    """Both passes."""
    with path.open() as file:
        read = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows = [{name: float(value) for name, value in row.items() if name != "reuse"} for row in read]
    return {"forward": fit(forward, "forward_s", rows), "backward": fit(backward, "backward_s", rows)}


def errors(found: Array) -> str:
    """Geometric mean of the absolute errors, their mean, their spread, and the bias."""
    error = np.abs(found)
    return f"{np.exp(np.log(np.maximum(error, 1e-4)).mean()):7.2%} {error.mean():7.2%} {error.std():7.2%} {found.mean():+7.2%}"


def main() -> None:
    """Print the table."""
    print(f"{'':20} {'GMAE':>7} {'MAPE':>7} {'std':>7} {'bias':>7}")
    for name, found in checked(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA).items():
        print(f"{name:10} {'fitted':>9} {errors(found.fitted)}\n{'':10} {'held out':>9} {errors(found.held_out)}")
        print(f"  last cache {found.last / 2**20:.0f} MiB; {' '.join(f'{value:.3g}' for value in found.times)}")


if __name__ == "__main__":
    main()
