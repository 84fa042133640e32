"""How far a prediction can be trusted: whether runs like it were measured, and how far predictions of them were off.

The bands are read from a table of the package (``errors.csv``, beside this module), which ``docs/scripts/make_bands.py`` writes from a
comparison of the full data; nothing is validated when something is predicted. A line holds errors of rows that share what its cells
say; an empty cell stands for any. The line of a prediction is the one that shares most with it.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from crossflow.base.formats import FORMATS

FILE = Path(__file__).with_name("errors.csv")
PAIRS = FILE.with_name("pairs.csv")
# What two designs have in common whose errors are compared: the system, or the kind of run, where one device may never have been measured.
LAYOUTS, CHIPS, UNMEASURED_CHIP = "layouts of one system", "two systems", "two systems of which one was not measured"
BANDS = "the bands of both"  # where no pairs of two systems were measured
SCALES = ((1, "1 device"), (8, "2 to 8 devices"), (128, "9 to 128 devices"), (1024, "129 to 1,024 devices"))
LARGEST = "more than 1,024 devices"
FACTOR = 1.0  # error from which a band is told as a factor
FIGURES_OF_A_BAND = ("median", "p90", "bias", "n")
# What parameters of the device were fitted to: rows of it, of others of its family, of none (rows of those have the family before theirs).
SEEN = ("device", "family", "none")
# Of devices that are generated from budgets, and of datasheet devices that someone changed. Rows of other devices say nothing of either,
# but chips that were predicted from what was public before they were announced do.
GENERATED, CHANGED = "generated", "changed"
BLIND = "hindcasts"  # the table of these chips
LOADS = ((8, "up to 8 requests at once"), (64, "9 to 64 requests at once"))
HIGHEST = "more than 64 requests at once"  # of one replica of a service
NO_STACK = "no engine"  # of rows and scenarios that name no software
EXPERTS = ("experts shared out in a node", "experts shared out across nodes")
# What a line shares with a prediction, beside its kind and its device, from what matters most to what matters least.
TRAITS = ("stack", "type", "experts", "load", "scale")
SHARED = (
    *(
        (*root, *(trait for place, trait in enumerate(reversed(TRAITS)) if chosen >> place & 1))
        for root in (("device",), ("seen", "memory"), ("seen",))
        for chosen in range(2 ** len(TRAITS) - 1, -1, -1)
    ),
    (),
)
# Values of the traits that have an order: beyond the last one that was measured a prediction is extrapolated.
ORDERED: Mapping[str, tuple[str, ...]] = {
    "scale": (*(name for _, name in SCALES), LARGEST),
    "load": (*(name for _, name in LOADS), HIGHEST),
    "experts": EXPERTS,
}
# How far a prediction can be trusted, the least first.
LEVELS = ("unknown", "extrapolated", "interpolated", "measured")
SEEN_AS = {
    "device": "devices that were fitted to",
    "family": "devices left out of all fits",
    "none": "a generation predicted with the parameters of the one before",
    GENERATED: "chips that were predicted before they were announced",
}
# Of the measured training runs (31 of nanotron, llm-foundry and vTrain) of which more than this share of the memory was predicted, how many
# there are, how many took more than 1.3 times as long as predicted, and how many times as long one in ten took at least: the allocator
# frees and asks again. Those of nanotron alone were slow, the others were not.
NEARLY_FULL, FULL_RUNS, FULL_SLOW, FULL_SLOWDOWN = 0.9, 31, 8, 6.9
# Of a device that has no generation in the rows, and of one that is changed or generated, where no chip was predicted for such a workload.
NEVER_HINDCAST = "no chip was ever predicted blind for such a workload, so its error is not known"
UNSEEN = "for unmeasured devices we quote the error made when predicting one GPU generation from the one before"
SAME_MAKER = "of the same maker, to which nothing was fitted"
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
        f"memory: {100 * needed / capacity:.0f} % of it is needed. Runs that use over {100 * NEARLY_FULL:.0f} % of memory can be up to "
        f"{FULL_SLOWDOWN:.0f} times slower than predicted: of {FULL_RUNS} measured ones {FULL_SLOW} took more than 1.3 times as long, "
        f"one in ten {FULL_SLOWDOWN:g} times or more"
    )


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """What runs are like; an empty string stands for any, or for what is not known."""

    kind: str  # of workload
    device: str = ""  # template of the device
    stack: str = ""  # software
    type: str = ""  # bits of the elements of products
    experts: str = ""  # how far apart the experts of a mixture lie; nothing where no ranks share them out
    load: str = ""  # requests that one replica of a service works on at once
    scale: str = ""  # number of devices
    seen: str = ""  # what is known of the device, one of `SEEN`, `GENERATED` or `CHANGED`
    memory: str = ""  # kind of the main memory of a device that nobody fitted, by which chips are of one kind or of different ones

    @property
    def text(self) -> str:
        """In words, what its rows have in common.

        >>> Likeness(kind="training of dense language models", device="h100-sxm", stack="nemo", scale="9 to 128 devices").text
        'training of dense language models on h100-sxm with nemo, 9 to 128 devices'
        """
        where = f" on {self.device}" if self.device else f" on {SEEN_AS[self.seen]}" if self.seen else ""
        where += f" (chips with {self.memory})" if self.memory else ""
        engine = " without an engine" if self.stack == NO_STACK else f" with {self.stack}" if self.stack else ""
        return ", ".join(filter(None, (f"{self.kind}{where}{engine}", self.type, self.experts, self.load, self.scale)))

    def lies_apart(self, shared: Likeness) -> bool:
        """Whether a band says nothing of it: its experts lie across nodes, whose exchange and kernels are others than the band's."""
        return self.experts == EXPERTS[-1] != shared.experts

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

        >>> Band(median=0.062, p90=0.21, bias=0.0, n=629, tables="training_runs").text
        'typical error 6 %; 9 of 10 of 629 similar measured runs were within 21 %'
        >>> Band(median=0.124, p90=9.997, bias=0.96, n=21, tables="serving").text
        'typical error 12 %; but 1 in 10 of 21 similar measured runs was off by a factor of 11 or more'
        """
        if self.tables == BLIND:
            rows = f"all {self.n} figures of chips that were predicted blind"
            return f"typical error {rounded(self.median)} %; {rows} were within {rounded(self.p90)} %"
        if self.p90 >= FACTOR:  # as a share it would be read past
            rare = f"1 in 10 of {self.n:,} similar measured runs was off by a factor of {1.0 + self.p90:.2g} or more"
            return f"typical error {rounded(self.median)} %; but {rare}"
        return f"typical error {rounded(self.median)} %; 9 of 10 of {self.n:,} similar measured runs were within {rounded(self.p90)} %"


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How far a prediction, or one of its figures, can be trusted."""

    level: str  # one of `LEVELS`
    band: Band | None  # errors of the measured runs that are most like it; None where there are none
    basis: str = ""  # what these runs have in common with it
    reason: str = ""  # what keeps it from being measured, in a sentence without its capital; empty where it is

    @property
    def text(self) -> str:
        """In a sentence.

        >>> Trust(level="unknown", band=None, reason="queues were never compared with a measurement").text
        'unknown: queues were never compared with a measurement'
        """
        told = [] if self.band is None else [self.band.text]
        return f"{self.level}: {'. '.join([*told, *filter(None, [_capital(self.reason) if told else self.reason])])}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data of a figure that has its own."""
        return {"trust": self.level, "text": self.text, "reason": self.reason or None, "error_band": self.figures}

    @property
    def figures(self) -> Mapping[str, float] | None:
        """Numbers of the band by name; None without one."""
        return None if self.band is None else self.band.figures


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def rounded(share: float) -> str:
    """A share in per cent, with the digits that an error of errors bears.

    >>> rounded(0.0623), rounded(0.004), rounded(1.093)
    ('6', '0.4', '109')
    """
    return f"{100 * share:.0f}" if share >= 0.0095 else f"{100 * share:.1g}"


def scale_of(devices: float) -> str:
    """Scale of a number of devices.

    >>> scale_of(8), scale_of(9), scale_of(4096)
    ('2 to 8 devices', '9 to 128 devices', 'more than 1,024 devices')
    """
    return next((name for most, name in SCALES if devices <= most), LARGEST)


def type_of(dtype: str) -> str:
    """Bits of a type, in words; rows that name none are of 16 bits.

    >>> type_of("fp8_block"), type_of("")
    ('8 bits', '16 bits')
    """
    return f"{FORMATS[dtype].bits if dtype in FORMATS else 16} bits"


def load_of(requests: float) -> str:
    """Load of a replica that works on so many requests at once.

    >>> load_of(8), load_of(9), load_of(100)
    ('up to 8 requests at once', '9 to 64 requests at once', 'more than 64 requests at once')
    """
    return next((name for most, name in LOADS if requests <= most), HIGHEST)


def experts_of(ep: float, node: float) -> str:
    """How far apart experts lie that so many ranks share out, in nodes of so many devices; nothing where each rank has all.

    >>> experts_of(1, 8), experts_of(8, 8), experts_of(32, 8)
    ('', 'experts shared out in a node', 'experts shared out across nodes')
    """
    return "" if ep <= 1 else EXPERTS[int(ep > node)]


@dataclass(frozen=True, kw_only=True)
class PairSpread:
    """How much more one of two measured runs was overestimated than the other, as a ratio less one."""

    n: int  # pairs
    even: float  # that half of them stay below
    order: float  # by which two predictions must differ, so that nine of ten pairs were measured in the predicted order


def spread_of(one: Likeness, other: Likeness, *, same: bool = False) -> tuple[PairSpread, str] | None:
    """PairSpread of pairs like two runs, and what they are pairs of; `same` says that both run on one system. None where there are none."""
    if one.kind != other.kind or GENERATED in (one.seen, other.seen):
        return None
    between = LAYOUTS if same else UNMEASURED_CHIP if {"none", CHANGED} & {one.seen, other.seen} else CHIPS
    found = _pairs().get((one.kind, between))
    if found is not None:
        return found, between
    both = [trust_of(run).band for run in (one, other)]
    if same or any(band is None for band in both):
        return None
    even, order = (math.hypot(*(getattr(band, name) for band in both)) for name in ("median", "p90"))
    return PairSpread(n=0, even=even, order=order), BANDS


def order_of_pairs(spread: PairSpread, between: str) -> str:
    """What ties are drawn from, in words.

    >>> order_of_pairs(PairSpread(n=0, even=0.1, order=0.4), BANDS)
    'no pair of systems was measured for such runs, so their errors are taken as independent'
    >>> order_of_pairs(PairSpread(n=1587, even=0.1, order=0.26), "layouts of one system")
    'further apart, nine of ten measured pairs came out in the predicted order (1,587 pairs of layouts of one system)'
    """
    if between == BANDS:
        return "no pair of systems was measured for such runs, so their errors are taken as independent"
    return f"further apart, nine of ten measured pairs came out in the predicted order ({spread.n:,} pairs of {between})"


def ties(values: Sequence[float], runs: Sequence[Likeness], systems: Sequence[Hashable]) -> list[tuple[int, ...] | None]:
    """Of every design those whose figure is too near to tell which one is better; None where no pairs tell how near that is.

    systems : what each design runs on; of equal ones, designs are layouts of one system.
    """
    found: list[tuple[int, ...] | None] = []
    for i, mine in enumerate(values):
        spreads = [spread_of(runs[i], run, same=systems[i] == system) for run, system in zip(runs, systems, strict=True)]
        near = [
            j for j, (value, spread) in enumerate(zip(values, spreads, strict=True))
            if j != i and spread is not None and 0 < mine < math.inf and 0 < value < math.inf
            and max(value / mine, mine / value) - 1.0 <= spread[0].order
        ]  # fmt: skip
        known = mine > 0 and all(spread is not None for j, spread in enumerate(spreads) if j != i)
        found.append(tuple(near) if known else None)
    return found


@functools.cache
def _pairs() -> Mapping[tuple[str, str], PairSpread]:
    rows = csv.DictReader(PAIRS.read_text(encoding="utf-8").splitlines())
    return {(row["kind"], row["between"]): PairSpread(n=int(row["n"]), even=float(row["even"]), order=float(row["order"])) for row in rows}


def band_of(run: Likeness) -> tuple[Band, Likeness] | None:
    """The band of runs that are most like one, and what they share; None where no measured row is of its kind."""
    return next(candidates(run, _lines()), None)


@functools.cache
def compared(kind: str) -> frozenset[str]:
    """Devices of which enough runs of a kind were compared with predictions to say how far these are off."""
    return frozenset(line.device for line in _lines() if line.kind == kind and line.device)


def trust_of(run: Likeness, problem: str = "", *, bare: bool = False, kin: tuple[str, ...] = ()) -> Trust:
    """How far a run like this can be trusted.

    problem : why it is not what was measured though all else agrees, in a sentence.
    bare : whether it is so far from what was measured that errors of measured runs say nothing about it.
    kin : devices of its device's maker that were compared though nothing was fitted to any of them; a device that was not compared
        is not surer than these.
    """
    found = _trust(run, problem, kin)
    return Trust(level="unknown", band=None, reason=found.reason) if bare and found.level != "unknown" else found


@functools.lru_cache(maxsize=4096)
def _trust(run: Likeness, problem: str, kin: tuple[str, ...]) -> Trust:
    stated = _stated(run.kind)
    if stated is None:
        told = f"no run of this kind was ever compared with a measurement ({run.kind})"
        return Trust(level="unknown", band=None, reason=told if run.kind else "no such workload was ever compared with a measurement")
    found = band_of(run)
    if found is None:
        return Trust(level="extrapolated", band=None, reason=NEVER_HINDCAST if run.seen in (GENERATED, CHANGED) else problem)
    band, shared = found
    if run.lies_apart(shared) and not _beyond(run, stated):
        few = "too few runs with experts shared out across nodes were measured on such devices to say"
        return Trust(level="extrapolated", band=None, reason="; ".join(filter(None, (problem, few))))
    if run.seen == "none" and not shared.device and (of_kin := _of_kin(run, band, kin)) is not None:
        band, shared = of_kin
        reason = f"too few such runs were measured on {run.device}; these ran on {shared.device}, {SAME_MAKER}"
        return Trust(level="extrapolated", band=band, basis=shared.text, reason="; ".join(filter(None, (problem, reason))))
    if reason := problem or (UNSEEN if run.seen == "none" and not shared.device else ""):
        return Trust(level="extrapolated", band=band, basis=shared.text, reason=reason)
    if trait := _beyond(run, stated):
        reason = f"too few runs of this kind were measured {_lack(run, trait)} to say"
        widest, of = max(candidates(run, _lines()), key=lambda one: one[0].p90)  # of those that are not so far
        bare = trait == "experts"  # whose exchange and kernels are others
        return Trust(level="extrapolated", band=None if bare else widest, basis="" if bare else of.text, reason=reason)
    lacking = [trait for trait in TRAITS if stated[trait] and not getattr(shared, trait) and (run.experts or trait != "experts")]
    if shared.device and not lacking:
        return Trust(level="measured", band=band, basis=shared.text)
    return Trust(level="interpolated", band=band, basis=shared.text, reason=_between(run, shared, lacking))


def _of_kin(run: Likeness, band: Band, kin: Sequence[str]) -> tuple[Band, Likeness] | None:
    """The widest band of devices of the same maker, where it is wider than one of other makers' devices."""
    found = [next(candidates(replace(run, device=name), _lines()), None) for name in kin]
    wider = [one for one in found if one is not None and one[1].device and one[0].p90 > band.p90]
    return max(wider, key=lambda one: one[0].p90, default=None)


def _beyond(run: Likeness, stated: Mapping[str, frozenset[str]]) -> str:
    """The trait in which a run lies beyond all that was measured of its kind; nothing where it does in none."""
    if run.type and stated["type"] and run.type not in stated["type"]:
        return "type"
    for trait, order in ORDERED.items():
        own, most = getattr(run, trait), max((order.index(one) for one in stated[trait]), default=-1)
        if own and order.index(own) > most and (stated[trait] or trait == "experts"):
            return trait
    return ""


def _between(run: Likeness, shared: Likeness, lacking: Sequence[str]) -> str:
    """Why a run is not one that was measured, though it lies between such, in a sentence."""
    if not shared.device:
        return f"too few such runs were measured on {run.device} itself; these ran on others of generations that were fitted to"
    if lacking == ["load"] and not run.load:
        return "requests arrive at random times, and these runs kept a fixed number of them in flight"
    if lacking == ["stack"] and run.stack in ("", NO_STACK):
        return f"the software {'is changed' if not run.stack else 'is not named'}, and differs between these runs"
    named = " ".join(filter(None, (_lack(run, trait) for trait in lacking)))
    return f"too few runs {named or 'of this very kind'} were measured on this device"


def _lack(run: Likeness, trait: str) -> str:
    own = getattr(run, trait)
    word = {"type": "in", "scale": "on"}.get(trait, "with")
    return f"{word} {own}" if own not in ("", NO_STACK) else ""


@functools.cache
def _stated(kind: str) -> Mapping[str, frozenset[str]] | None:
    """Values of every trait that lines of a kind have; None where there are no such lines."""
    mine = [line for line in _lines() if line.kind == kind and line.seen not in ("none", GENERATED)]
    if not kind or not mine:
        return None
    return {trait: frozenset(filter(None, (getattr(line, trait) for line in mine))) for trait in TRAITS}


def candidates(run: Likeness, lines: Mapping[Likeness, Band]) -> Iterator[tuple[Band, Likeness]]:
    """Lines that a run may be told by, the likest first; where its device has no rows, those of devices of which no more is known.

    Of experts that lie across nodes, whose exchange and kernels are others, those of such runs are first.
    """
    found = list(_candidates(run, lines))
    yield from sorted(found, key=lambda one: run.experts == EXPERTS[-1] != one[1].experts)


def _candidates(run: Likeness, lines: Mapping[Likeness, Band]) -> Iterator[tuple[Band, Likeness]]:
    for names in SHARED:
        shared = {name: getattr(run, name) for name in names}
        if not all(shared.values()) or (run.seen in (GENERATED, CHANGED) and "seen" not in names):
            continue
        for seen in _seen(run.seen, names) if "seen" in names else ("",):
            own = Likeness(kind=run.kind, **{**shared, "seen": seen})
            if own in lines:
                yield lines[own], own


def _seen(seen: str, names: Sequence[str]) -> tuple[str, ...]:
    """What is known of devices that may speak for one, the likest first; chips that nobody fitted do for others when all else fails."""
    known = SEEN[SEEN.index(seen) :] if seen in SEEN else (GENERATED,)
    return known if len(names) == 1 or len(known) == 1 else known[:-1]


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
