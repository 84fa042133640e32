"""Measured times of events, which replace the model's for these events [1]_, Sec. 4.2, and for collectives of sizes between them.

A table (CSV, or JSONL with the same keys) has a row an event: what runs, on which shape, in which type, on which device, and of a
collective among how many ranks, inside a node or between nodes.

References
----------
.. [1] Lu et al., "DistSim: A performance model of large-scale hybrid distributed DNN training", CF 2023.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import contents, files
from crossflow.base.arrays import Array, Mask, divide
from crossflow.base.errors import Problem, SpecError, did_you_mean
from crossflow.base.files import Document
from crossflow.base.names import cell
from crossflow.base.units import parse
from crossflow.hardware.architecture.template import SystemSpec
from crossflow.program.collectives import COLLECTIVES
from crossflow.program.groups import Group
from crossflow.program.kernels import Attention, Experts, Kernel, Lookup, LookupPart, Pass, Product, Scan

COLUMNS = ("op", "shape", "dtype", "device", "ranks", "scope", "time", "spread", "count")
NEEDED = ("op", "shape", "time")
PROFILED = 8  # ranks up to which an all-reduce is measured itself; beyond, that of as many is scaled [1]_
SCOPES = ("intra", "inter")
TABLES = (".csv", ".jsonl", ".json")  # endings of profiles
LOOKUPS: Mapping[LookupPart, str] = {"forward": "lookup", "sort": "lookup_sort", "update": "lookup_update", "gradient": "lookup_gradient"}
UNTYPED = ("pass", "optimizer", *LOOKUPS.values())  # what moves bytes has no type
KERNELS = ("gemm", "gemm_accumulate", "attention_forward", "attention_backward", "scan_forward", "scan_backward", "experts", *UNTYPED)
ENDS = ("send", "recv")  # both sides of a transfer, of which the shorter is the transfer itself
LONGEST = 86400.0  # that an event may take, beyond which its time has another unit [s]
_NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")
CLOSE = 1e-9  # relative difference below which two sizes are one: shapes keep ten digits
Key = tuple[str, str, str, int, str]  # op, shape, dtype, ranks, scope
Curve = tuple[Array, Array]  # sizes of a collective in order, and their times [B], [s]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Time of an event and its standard deviation. [s]"""

    time: float
    spread: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Measured events of one device."""

    events: Mapping[Key, Measured]  # by op, shape, dtype, ranks and scope; of kernels ranks are 1 and the scope is empty
    source: str  # the file
    rows: Sequence[tuple[int, Key]] = ()  # the event of each row of the file, with the row's line
    others: Mapping[str, int] = field(default_factory=dict)  # devices whose rows were left out, and how many each
    nearby: bool = False  # whether kernels among measured ones take their time from these (`crossflow.cost.nearby`)

    def event(self, key: Key) -> Measured | None:
        """An event's measured time, None where it was not measured.

        A pass of some operation is any of as many bytes, where the operation itself was not measured, and look-ups that want rows again
        are those that do not, where these were not measured. An all-reduce beyond 8 ranks is that of 8 times the ratio of what a rank
        sends, 2 (N - 1) / N over 2 x 7 / 8.
        """
        op, shape, _, ranks, scope = key
        found = self.events.get(key)
        if found is None and op == "pass":
            found = self.events.get((op, unnamed(shape), *key[2:]))
        if found is None and op in LOOKUPS.values():
            found = self.events.get((op, shape.partition(" reuse ")[0], *key[2:]))
        if found is None and op == "all_reduce" and ranks > PROFILED:
            eight, ratio = self.events.get((op, shape, "", PROFILED, scope)), _beyond(ranks)
            return None if eight is None else Measured(time=eight.time * ratio, spread=eight.spread * ratio)
        return found

    def kernels(self, op: str, dtype: str, shapes: Sequence[Sequence[str]]) -> Array:
        """Times of kernels by row and design point, NaN where they were not measured. [s]"""
        return np.array([[_time(self.event((op, shape, dtype, 1, ""))) for shape in row] for row in shapes])

    @functools.cached_property
    def curves(self) -> Mapping[tuple[str, int, str], Curve]:
        """Measured collectives by op, ranks and scope."""
        found: dict[tuple[str, int, str], dict[float, float]] = {}
        for (op, shape, _, ranks, scope), one in self.events.items():
            if scope:
                found.setdefault((op, ranks, scope), {})[message_size(shape)] = one.time
        return {key: (np.array(sorted(times)), np.array([times[size] for size in sorted(times)])) for key, times in found.items()}

    def measures(self, key: Key) -> tuple[str, int, str] | None:
        """Which of the measured collectives an event takes its time from: those of its ranks, or an all-reduce of 8; None for none."""
        op, _, _, ranks, scope = key
        return next((one for one in ((op, ranks, scope), _fewer(op, ranks, scope)) if one in self.curves), None)

    def messages(self, op: str, sizes: Array, group: Group, model: Callable[[Array], Array]) -> tuple[Array, Mask]:
        """Times of collectives of `sizes` bytes, shape (..., n), and which of them lie among measured sizes. [s]

        Between two measured sizes the logarithm of the time is linear in that of the size. Beyond them it is the model's time by as much
        as that is off at the end. A collective of which one size was measured is known at this size.

        Parameters
        ----------
        model : times of the model for other sizes of the same shape. [s]
        """
        times = np.broadcast_to(model(sizes), sizes.shape).copy()
        known = np.zeros(sizes.shape, dtype=bool)
        for ranks, per_node, members in group.kinds:
            scope = SCOPES[int(per_node < ranks)]
            found = self.measures((op, "", "", parties(op, ranks), scope)) if ranks > 1 else None
            if found is None:
                continue
            mine, (low, high) = sizes[..., members], self.curves[found][0][[0, -1]]
            inside = (mine >= low * (1 - CLOSE)) & (mine <= high * (1 + CLOSE))
            measured = _along(self.curves[found], mine) * (_beyond(ranks) if found[1] < parties(op, ranks) else 1.0)
            beyond = (mine > 0) & ~inside
            if low < high and beyond.any():
                nearest = sizes.copy()
                nearest[..., members] = np.clip(mine, low, high)
                off = divide(times[..., members], np.broadcast_to(model(nearest), sizes.shape)[..., members])
                times[..., members] = np.where(beyond, off * measured, times[..., members])
            times[..., members] = np.where(inside, measured, times[..., members])
            known[..., members] = inside
        return times, known

    def over(self, below: Profile) -> Profile:
        """Add the events of another profile that are not in this one: kernels one by one, collectives by op, ranks and scope."""
        kept = {key: one for key, one in below.events.items() if not key[4] or (key[0], key[3], key[4]) not in self.curves}
        return replace(self, events={**kept, **self.events}, nearby=self.nearby or below.nearby)

    def unmatched(self, events: Collection[Key]) -> list[tuple[int, Key]]:
        """Rows of the file that give none of some events their time, each with its line."""
        kernels = {key for key in events if not key[4]}
        among = {(self.measures(key), message_size(key[1])) for key in events if key[4]}
        groups = {one for one, _ in among}

        def used(key: Key) -> bool:
            op, shape, _, ranks, scope = key
            if not scope:
                return key in kernels
            own = op, ranks, scope
            size = message_size(shape)
            several = len(self.curves[own][0]) > 1
            return own in groups if several else any(one == own and abs(other - size) <= CLOSE * size for one, other in among)

        return [(line, key) for line, key in self.rows if not used(key)]


def _along(curve: Curve, sizes: Array) -> Array:
    """Times along a measured curve, those of its ends beyond them. [s]"""
    at, times = map(np.log, curve)
    return np.asarray(np.exp(np.interp(np.log(np.maximum(sizes, np.exp(at[0]))), at, times)))


def _fewer(op: str, ranks: int, scope: str) -> tuple[str, int, str]:
    """The ranks whose all-reduce stands for one of more ranks than are measured."""
    return op, min(ranks, PROFILED) if op == "all_reduce" else ranks, scope


def _beyond(ranks: int) -> float:
    """What a rank sends in an all-reduce over what it sends among the most ranks that are measured. [1]"""
    return (ranks - 1) / ranks / ((PROFILED - 1) / PROFILED)


def parties(op: str, ranks: int) -> int:
    """Ranks that an event among a group has: a transfer is from one to another, in a pipeline or around a ring of any size. [1]"""
    return 2 if op == "send_recv" else ranks


def _time(found: Measured | None) -> float:
    return np.nan if found is None else found.time


def where_measured(times: Array, measured: Array) -> tuple[Array, Mask]:
    """Times with the measured ones in place, and which these are."""
    known = ~np.isnan(measured)
    return np.where(known, measured, times), known


def gemm_shape(m: float, n: float, k: float, batch: float) -> str:
    """Shape of equal matrix products.

    >>> gemm_shape(2048, 512, 1024, 1), gemm_shape(128, 128, 64, 16)
    ('2048x512x1024', '16 x 128x128x64')
    """
    each = f"{m:.10g}x{n:.10g}x{k:.10g}"
    return each if batch == 1 else f"{batch:.10g} x {each}"


def attention_shape(heads: float, length: float, keys: float, width: float, window: float = 0.0, *, chunked: bool = False) -> str:
    """Shape of fused attention: heads of all samples, queries, keys, elements of a head, and the window of the keys if there is one.

    >>> attention_shape(32, 2048, 2048, 128), attention_shape(32, 2048, 2048, 128, 512)
    ('32 x 2048x2048x128', '32 x 2048x2048x128 window 512')
    """
    mask = f" {'chunks of' if chunked else 'window'} {window:.10g}" if window else ""
    return f"{heads:.10g} x {length:.10g}x{keys:.10g}x{width:.10g}{mask}"


def scan_shape(samples: float, heads: float, groups: float, length: float, width: float, state: float, chunk: float, *, delta: bool) -> str:
    """Shape of a chunked scan: samples, heads and groups, tokens, elements of a head and of a state, tokens of a chunk.

    >>> scan_shape(1, 80, 1, 2048, 64, 128, 256, delta=False)
    '1 x 80/1 x 2048x64x128 by 256'
    """
    return f"{samples:.10g} x {heads:.10g}/{groups:.10g} x {length:.10g}x{width:.10g}x{state:.10g} by {chunk:.10g}{' delta' * delta}"


def experts_shape(
    tokens: float, hidden: float, inner: float, branches: float, active: float, experts: float, ranks: float, load: float = 1.0,
    skew: float = 0.0, variation: float = 0.0, reached: float = np.inf, slots: float | None = None, given: float | None = None,
) -> str:  # fmt: skip
    """Shape of a fused layer of experts: tokens of all ranks, elements of a token and of an expert between its products, products before
    the activation, experts of a token, of the layer, ranks that share them out, and, if so, how unevenly they are used, places for
    copies, and the rows that come after an exchange.

    >>> experts_shape(4096, 2048, 768, 2, 8, 128, 16), experts_shape(4096, 2048, 768, 2, 8, 128, 16, skew=1.2)
    ('4096 x 2048x768 by 2 to 8 of 128 on 16', '4096 x 2048x768 by 2 to 8 of 128 on 16 skew 1.2')
    """
    others = (
        (" load", load, 1.0), (" skew", skew, 0.0), (" variation", variation, 0.0), (" reached", reached, np.inf),
        (" places", slots or 0.0, 0.0),
        (" given", given or tokens * active, tokens * active),
    )  # fmt: skip
    uneven = "".join(f"{name} {value:.10g}" for name, value, even in others if value != even)
    return f"{tokens:.10g} x {hidden:.10g}x{inner:.10g} by {branches:.10g} to {active:.10g} of {experts:.10g} on {ranks:.10g}{uneven}"


def pass_shape(moved: float, launches: float, what: str = "") -> str:
    """Shape of pointwise kernels: bytes that they move, how many they are, and which operation they are where that is known.

    >>> pass_shape(1048576, 2), pass_shape(1048576, 1, "gelu")
    ('2 kernels of 1048576 B', '1 gelu of 1048576 B')
    """
    return f"{launches:.10g} {what or ('kernels' if launches != 1 else 'kernel')} of {moved:.10g} B"


def unnamed(shape: str) -> str:
    """Shape of a pass of any operation.

    >>> unnamed("1 gelu of 1048576 B")
    '1 kernel of 1048576 B'
    """
    launches, moved = shape.partition(" ")[0], shape.rpartition(" of ")[2]
    return f"{launches} {'kernel' if launches == '1' else 'kernels'} of {moved}"


def lookup_shape(samples: float, tables: float, rows: float, width: float, pooling: float, *, reuse: float = 1.0) -> str:
    """Shape of lookups: samples, rows of one table that each looks up, tables, their sizes, and how often a row is looked up if not once.

    >>> lookup_shape(4096, 16, 1000, 32, 4), lookup_shape(4096, 16, 1000, 32, 4, reuse=32)
    ('4096 x 4 of 16 tables 1000x32', '4096 x 4 of 16 tables 1000x32 reuse 32')
    """
    again = f" reuse {reuse:.10g}" if reuse > 1.0 else ""
    return f"{samples:.10g} x {pooling:.10g} of {tables:.10g} tables {rows:.10g}x{width:.10g}{again}"


def optimizer_shape(parameters: float) -> str:
    """Shape of an optimizer's step: parameters that it updates.

    >>> optimizer_shape(1048576)
    '1048576 parameters'
    """
    return f"{parameters:.10g} parameters"


def message_shape(size: float) -> str:
    """Shape of a collective: bytes of the whole buffer of a rank, of the full result of an all-gather.

    >>> message_shape(2**20)
    '1048576 B'
    """
    return f"{size:.10g} B"


def message_size(shape: str) -> float:
    """Bytes of the shape of a collective; ValueError where it has none.

    >>> message_size("1048576 B")
    1048576.0
    """
    number, _, unit = shape.partition(" ")
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if unit.strip() != "B" or not 0 < size < np.inf:
        raise ValueError(f"expected the bytes of a buffer, such as 1048576 B, got '{shape}'")
    return size


def kernel_words(key: Key) -> str:
    """An event in words.

    >>> kernel_words(("all_reduce", "1048576 B", "", 8, "inter")), kernel_words(("gemm", "8x8x8", "bf16", 1, ""))
    ('all_reduce 1048576 B, 8 ranks, inter', 'gemm 8x8x8, bf16')
    """
    op, shape, dtype, ranks, scope = key
    return ", ".join([f"{op} {shape}", *([dtype] if dtype else []), *([f"{ranks} ranks", scope] if scope else [])])


def nearest(key: Key, events: Collection[Key]) -> Key | None:
    """The event most like another: of the same op, then of as many equal words, then of the nearest sizes; None without any of its op."""

    def distance(other: Key) -> tuple[int, float]:
        ours, theirs = (np.array([float(part) for part in _NUMBER.findall(one[1])]) for one in (key, other))
        unlike = sum(ours != theirs for ours, theirs in zip(key[2:], other[2:], strict=True))
        alike = len(ours) == len(theirs) and bool((ours > 0).all() and (theirs > 0).all())
        return unlike, float(np.abs(np.log(ours / theirs)).sum()) if alike else np.inf

    return min((one for one in events if one[0] == key[0]), key=distance, default=None)


_SHAPES: Mapping[str, str] = {
    "gemm": r"(?:(?P<batch>N) x )?(?P<m>N)x(?P<n>N)x(?P<k>N)",
    "attention": r"(?P<heads>N) x (?P<length>N)x(?P<seen>N)x(?P<width>N)(?: (?P<kind>window|chunks of) (?P<window>N))?(?P<full> full)?",
    "scan": r"(?P<samples>N) x (?P<heads>N)/(?P<groups>N) x (?P<length>N)x(?P<width>N)x(?P<state>N) by (?P<chunk>N)(?P<delta> delta)?",
    "experts": r"(?P<tokens>N) x (?P<hidden>N)x(?P<inner>N) by (?P<branches>N) to (?P<active>N) of (?P<experts>N) on (?P<ranks>N)"
    r"(?: load (?P<load>N))?(?: skew (?P<skew>N))?(?: variation (?P<variation>N))?(?: reached (?P<reached>N))?",
    "pass": r"(?P<launches>N) (?:kernels?|(?P<what>[A-Za-z_]\w*)) of (?P<moved>N) B",
    "lookup": r"(?P<samples>N) x (?P<pooling>N) of (?P<tables>N) tables (?P<rows>N)x(?P<width>N)(?: reuse (?P<reuse>N))?",
}


def kernel_of(op: str, shape: str, dtype: str) -> Kernel | None:
    """The kernel that an event names, None where its shape does not say all of it.

    Attention has as many heads of keys as of queries. It is causal but for the word `full`, as in `48 x 128x128x64 full`.

    >>> kernel_of("gemm", "16 x 128x128x64", "bf16").flops == 2 * 16 * 128 * 128 * 64
    True
    """
    family = op.partition("_")[0]
    found = re.fullmatch(_SHAPES.get(family, "-").replace("N", _NUMBER.pattern), shape)
    if found is None:
        return None
    sizes: dict[str, Any] = {name: float(text) for name, text in found.groupdict().items() if text and _NUMBER.fullmatch(text)}
    stored = dtype.partition(" x ")[2]
    if family == "gemm":
        return Product(**sizes, adds=op == "gemm_accumulate", stored=stored)
    if family == "attention":
        chunked = found["kind"] == "chunks of"
        return Attention(
            samples=1.0, **sizes, causal=not found["full"], chunked=chunked, backward=op == "attention_backward", stored=stored
        )
    if family == "scan":
        return Scan(**sizes, delta=bool(found["delta"]), backward=op == "scan_backward")
    if family == "experts":
        return Experts(**sizes)
    if family == "pass":
        return Pass(**sizes, what=found["what"] or "")
    distinct = 1.0 / sizes.pop("reuse", 1.0)
    return Lookup(**sizes, distinct=distinct, part=next(part for part, name in LOOKUPS.items() if name == op))


# -------------------------------------------------------------------------------------------- files


def read_profile(path: Path, device: str) -> Profile:
    """Measured events of a device from a CSV or JSONL file.

    Rows of other devices are left out; a row without a device is of any. `time` and `spread` are quantities, or seconds as bare
    numbers. Of several rows of one event the mean counts; of the `send` and the `recv` of one transfer the shorter is its time: the
    longer one waited for the other side.

    Raises
    ------
    SpecError
        With every row that is not understood.
    """
    problems: list[Problem] = []
    found: dict[Key, dict[str, list[Measured]]] = {}
    kept: list[tuple[int, Key]] = []
    others: Counter[str] = Counter()
    rows = list(files.table_rows(path))
    if rows and not set(rows[0][1]) & set(NEEDED):
        raise SpecError([Problem(file=str(path), line=rows[0][0], message=f"is no profile: its columns are {', '.join(COLUMNS)}")])
    for line, row in rows:
        where = f"row {line}"
        sentence = _unreadable(row)
        if sentence is not None:
            problems.append(Problem(file=str(path), line=line, path=where, message=f"{sentence}; columns are {', '.join(COLUMNS)}"))
            continue
        if row.get("device") and row["device"] not in (device, cell(device)):
            others[row["device"]] += 1
            continue
        try:
            key, measured = profile_event(row)
        except ValueError as error:
            problems.append(Problem(file=str(path), line=line, path=where, message=str(error)))
            continue
        kept.append((line, key))
        found.setdefault(key, {}).setdefault(row["op"], []).append(measured)
    if not rows:
        problems.append(Problem(file=str(path), message=f"holds no event; it has a row for each, with the columns {', '.join(COLUMNS)}"))
    if problems:
        raise SpecError(problems)
    events = {key: min(map(_mean, by_op.values()), key=lambda one: one.time) for key, by_op in found.items()}
    return Profile(events=events, source=str(path), rows=kept, others=others)


def system_profile(system: SystemSpec, document: Document, base: Path | None = None) -> Profile | None:
    """Measured events that a system names in its file, by a path from there; `base` is the folder of a system that no file holds."""
    if system.profile is None:
        return None
    file, line = document.lines.get(("profile",), ("", None))
    found = read_profile(profile_at(system.profile, base if line is None else Path(file).parent, document), system.name)
    return replace(found, nearby=system.nearby)


def profile_at(named: str, base: Path | None, document: Document) -> Path:
    """The profile that a document names; SpecError at its line where there is none."""
    path = beside(named, base)
    if not named.endswith(TABLES) or not contents.is_file(path):
        why = "there is no file" if named.endswith(TABLES) else f"expected a table that ends in {' or '.join(TABLES)}, got"
        raise document.error(("profile",), f"{why} {named}")
    return path


def beside(named: str, base: Path | None) -> Path:
    """A file by its path from a folder, or from the current one."""
    return Path(named) if base is None or contents.is_file(Path(named)) else base / named


def _mean(several: Sequence[Measured]) -> Measured:
    """Mean of measurements of one event, with the standard deviation of all of them."""
    times, spreads = (np.array([getattr(one, name) for one in several]) for name in ("time", "spread"))
    return Measured(time=float(times.mean()), spread=float(np.sqrt((spreads**2).mean() + times.var())))


def _unreadable(row: Mapping[str, str]) -> str | None:
    """Why a row cannot be an event, in words; None where it can."""
    unknown = [key for key in row if key not in COLUMNS]
    if unknown:
        return f"unknown column '{unknown[0]}'{did_you_mean(unknown[0], COLUMNS)}"
    missing = [key for key in NEEDED if not row.get(key)]
    return f"{missing[0]} is missing" if missing else None


def profile_event(row: Mapping[str, str]) -> tuple[Key, Measured]:
    """One row; ValueError with what is wrong."""
    op, scope, ranks = row["op"], row.get("scope") or "", row.get("ranks") or "1"
    known = (*KERNELS, *COLLECTIVES, *ENDS)
    if op not in known:
        raise ValueError(f"op must be one of {', '.join(known)}, got '{op}'{did_you_mean(op, known)}")
    if not ranks.isdecimal() or int(ranks) < 1:
        raise ValueError(f"ranks must be a positive whole number, got '{ranks}'")
    time, spread = _seconds(row["time"], "time"), _seconds(row.get("spread") or "0", "spread")
    if not 0 < time <= LONGEST:
        raise ValueError(f"time must be above zero and at most a day, got '{row['time']}'")
    if not 0 <= spread <= LONGEST:
        raise ValueError(f"spread must be zero or more and at most a day, got '{row['spread']}'")
    dtype = "" if op in UNTYPED else row.get("dtype") or ""
    if op in KERNELS and op not in UNTYPED and not dtype:
        raise ValueError(f"dtype of {op} is missing")
    if op in KERNELS:
        return (op, row["shape"], dtype, 1, ""), Measured(time=time, spread=spread)
    if scope not in SCOPES:
        raise ValueError(f"scope of {op} must be intra or inter, got '{scope}'")
    if int(ranks) < 2:
        raise ValueError(f"{op} needs at least 2 ranks, got {ranks}")
    try:
        message_size(row["shape"])
    except ValueError as error:
        raise ValueError(f"shape: {error}") from None
    return ("send_recv" if op in ENDS else op, row["shape"], "", int(ranks), scope), Measured(time=time, spread=spread)


def _seconds(text: str, column: str) -> float:
    """A quantity of time, or a bare number of seconds."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(parse(text, "s"))
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None
