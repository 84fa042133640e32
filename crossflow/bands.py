"""How far predictions of a kind were off: the band of error of a prediction, drawn from the validation rows that are most like it.

The bands are read from a table of the package (``data/validation/errors.csv``), which ``docs/scripts/make_bands.py`` writes from a
comparison of the full data; nothing is validated when something is predicted. A line holds errors of rows that share what its cells
say; an empty cell stands for any. The line of a prediction is the one that shares most with it.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

FILE = Path(__file__).parent / "data" / "validation" / "errors.csv"
SCALES = ((1, "1 device"), (8, "2 to 8 devices"), (128, "9 to 128 devices"), (1024, "129 to 1,024 devices"))
LARGEST = "more than 1,024 devices"
FIGURES_OF_A_BAND = ("median", "p90", "bias", "n")
TYPES = {
    "fp64": "64 bits", "fp32": "32 bits", "tf32": "32 bits", "fp8": "8 bits", "mxfp8": "8 bits", "int8": "8 bits", "mxfp4": "4 bits",
    "nvfp4": "4 bits",
}  # fmt: skip
# What parameters of the device were fitted to: rows of it, of others of its family, of none (rows of those have the family before theirs).
SEEN = ("device", "family", "none")
# What a line shares with a prediction, beside its kind, from the most to the least.
SHARED = (
    ("device", "stack", "type", "scale"), ("device", "stack", "type"), ("device", "stack", "scale"), ("device", "stack"),
    ("device", "type", "scale"), ("device", "type"), ("device",), ("seen", "stack", "type"), ("seen", "stack"), ("seen", "type"),
    ("seen",), (),
)  # fmt: skip
SEEN_AS = {
    "device": "devices that were fitted to",
    "family": "devices of which no row was fitted to",
    "none": "a generation that was left out, predicted with the parameters of the one before",
}
# Of the measured training runs (31 of nanotron, llm-foundry and vTrain) of which more than this share of the memory was predicted, how many
# there are, how many took more than 1.3 times as long as predicted, and how many times as long one in ten took at least: the allocator
# frees and asks again. Those of nanotron alone were slow, the others were not.
NEARLY_FULL, FULL_RUNS, FULL_SLOW, FULL_SLOWDOWN = 0.9, 31, 8, 6.9
FEWEST = 12  # rows of a line: of fewer the 90th percentile is hardly known


def slowdown(needed: float, capacity: float) -> float | None:
    """How many times as long as predicted a training step may take whose devices' memory is nearly full; None where it is not. [1]

    >>> slowdown(70.0, 80.0), slowdown(74.0, 80.0)
    (None, 6.9)
    """
    return FULL_SLOWDOWN if NEARLY_FULL * capacity < needed <= capacity else None


def full_text(needed: float, capacity: float) -> str:
    """What measured runs did whose devices' memory was as full, in words; empty where it is not nearly full."""
    if slowdown(needed, capacity) is None:
        return ""
    return (
        f"memory: {100 * needed / capacity:.0f} % of it is needed. Of {FULL_RUNS} measured runs that needed more than "
        f"{100 * NEARLY_FULL:.0f} %, {FULL_SLOW} took more than 1.3 times as long as predicted, and one in ten took "
        f"{FULL_SLOWDOWN:g} times as long or more"
    )


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """What runs are like; an empty string stands for any, or for what is not known."""

    kind: str  # of workload
    device: str = ""  # template of the device
    stack: str = ""  # software
    type: str = ""  # bits of the elements of products
    scale: str = ""  # number of devices
    seen: str = ""  # what is known of the device, one of `SEEN`

    @property
    def text(self) -> str:
        """In words, what its rows have in common.

        >>> Likeness(kind="training of dense language models", device="h100-sxm", stack="nemo", scale="9 to 128 devices").text
        'training of dense language models on h100-sxm with nemo, 9 to 128 devices'
        """
        where = f" on {self.device}" if self.device else f" on {SEEN_AS[self.seen]}" if self.seen else ""
        return ", ".join(filter(None, (f"{self.kind}{where}{f' with {self.stack}' if self.stack else ''}", self.type, self.scale)))

    def only(self, *names: str) -> Self:
        """The kind and what is named of the rest."""
        return type(self)(kind=self.kind, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Band:
    """Errors of the rows of a line, relative to what was measured."""

    median: float  # of the errors' sizes
    p90: float  # within which nine of ten lie, of rows beyond these too
    bias: float  # mean with sign
    n: int
    tables: str  # of measured rows

    @property
    def figures(self) -> Mapping[str, float]:
        """Its numbers by name."""
        return {name: getattr(self, name) for name in FIGURES_OF_A_BAND}

    @property
    def text(self) -> str:
        """In words.

        >>> Band(median=0.05, p90=0.16, bias=0.0, n=659, tables="training_runs").text
        'median error 5 %, 90 % within 16 %, n = 659'
        """
        return f"median error {100 * self.median:.2g} %, 90 % within {100 * self.p90:.2g} %, n = {self.n:,}"


def scale_of(devices: float) -> str:
    """Scale of a number of devices.

    >>> scale_of(8), scale_of(9), scale_of(4096)
    ('2 to 8 devices', '9 to 128 devices', 'more than 1,024 devices')
    """
    return next((name for most, name in SCALES if devices <= most), LARGEST)


def type_of(dtype: str) -> str:
    """Bits of a type, in words."""
    return TYPES.get(dtype, "16 bits")


def band_of(run: Likeness) -> tuple[Band, Likeness] | None:
    """The band of runs that are most like one, and what they share; None where no measured row is of its kind."""
    return next(candidates(run, _lines()), None)


def measured_on_device(run: Likeness) -> bool:
    """Whether enough rows of a run's kind were measured on its device, in its type."""
    return any(own.device and own.type for _, own in candidates(run, _lines()))


def candidates(run: Likeness, lines: Mapping[Likeness, Band]) -> Iterator[tuple[Band, Likeness]]:
    """Lines that a run may be told by, the likest first; where its device has no rows, those of devices of which no more is known."""
    for names in SHARED:
        for seen in SEEN[SEEN.index(run.seen) :] if run.seen and "seen" in names else ("",):
            own = run.only(*names)
            own = replace(own, seen=seen) if seen else own
            if own in lines and all(getattr(own, name) for name in names):
                yield lines[own], own


@functools.cache
def _lines() -> Mapping[Likeness, Band]:
    """The lines of the file."""
    rows = csv.DictReader(line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    keys, numbers = [field.name for field in fields(Likeness)], ("median", "p90", "bias")
    return {
        Likeness(**{key: row[key] for key in keys}): Band(
            **{name: float(row[name]) for name in numbers}, n=int(row["n"]), tables=row["tables"]
        )
        for row in rows
    }
