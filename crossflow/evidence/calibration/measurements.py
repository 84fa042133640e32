"""What was measured on a system: tables as `crossflow validate` reads them, profiles, logs of nccl-tests, by what their columns say."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base import files
from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError, Problem, SpecError, did_you_mean
from crossflow.base.formats import DTYPE_BYTES
from crossflow.cost.profile import COLUMNS, KERNELS, LONGEST, LOOKUPS, kernel_of, lookup_shape, message_size, profile_event
from crossflow.evidence.calibration.logs import LogOptions, LogRun, is_log, read_log
from crossflow.evidence.validation.tables import device_words, template_of
from crossflow.program.collectives import COLLECTIVES
from crossflow.program.embedding.reuse import BINS, distinct_share, normalised
from crossflow.program.kernels import Kernel, Lookup

PRODUCTS, COLLECTIVE, LOOKED_UP, PROFILE = "products", "collectives", "look-ups", "profile"
PROFILE_FILE = "profile.csv"  # of a folder of `crossflow measure`
FOLDER_SUFFIXES = (".csv", ".log", ".txt", ".out")  # of files of a folder that are read
# Tables by the columns that they need, and the column that says what they were measured on.
TABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    PRODUCTS: (("dtype", "m", "n", "k", "time_us"), "device"),
    COLLECTIVE: (("collective", "ranks", "ranks_per_node", "size_bytes", "time_us"), "system"),
    LOOKED_UP: (("part", "rows", "width", "samples", "pooling", "time_us"), "device"),
    PROFILE: (("op", "shape", "time"), "device"),
}
REUSE = tuple(f"reuse_{i}" for i in range(BINS))  # columns of reuse factors of indices
WHICH = ("system", "device", "source")  # columns by whose values rows are chosen
READ = {
    PRODUCTS: (*WHICH, "batch"),
    COLLECTIVE: WHICH,
    LOOKED_UP: (*WHICH, "tables", "dtype", "distinct", *REUSE),
    PROFILE: (*WHICH, *COLUMNS),
}  # columns that are read beside those needed
MAKERS = frozenset(("nvidia", "amd", "intel", "tesla", "geforce", "instinct"))  # words that drivers put before a device's name
RowKey = tuple[str, ...]  # kind of a table, and what of its rows is alike
RowValues = tuple[Any, ...]  # sizes and time of a row
Collected = dict[RowKey, list[RowValues]]
NumberedRow = tuple[int, Mapping[str, str]]  # its line, and its cells by column


@dataclass(frozen=True, kw_only=True)
class MeasuredCollective:
    """Times of one collective among the same ranks by size, shape (rows,)."""

    collective: str
    ranks: int
    ranks_per_node: int
    size: Array  # [B]
    time: Array  # [s]

    @property
    def name(self) -> str:
        """What it is, in words."""
        nodes = -(-self.ranks // self.ranks_per_node)
        return f"{self.collective}, {self.ranks} ranks" + (f" on {nodes} nodes" if nodes > 1 else "")

    @property
    def order(self) -> Array:
        """By what rows are held out."""
        return self.size


@dataclass(frozen=True, kw_only=True)
class MeasuredProducts:
    """Times of matrix products of one type from one source, launches included, shape (rows,)."""

    dtype: str
    source: str  # as the table says, "" where it says none
    sizes: Array  # m, n, k and batch, shape (4, rows). [1]
    time: Array  # [s]

    @property
    def name(self) -> str:
        """What they are, in words."""
        return f"gemm, {self.dtype}" + (f", {self.source}" if self.source else "")

    @property
    def order(self) -> Array:
        """By what rows are held out: operations, then the shape."""
        return np.unique(np.stack([self.sizes.prod(axis=0), *self.sizes]), axis=1, return_inverse=True)[1].ravel().astype(float)


@dataclass(frozen=True, kw_only=True)
class MeasuredKernels:
    """Times of kernels of one op and type as profiles name them, launches left out, shape (rows,)."""

    op: str
    dtype: str
    shapes: tuple[str, ...]
    time: Array  # [s]
    order: Array  # by what rows are held out: places of the shapes in the order of their times, which no shape is without
    given: tuple[Kernel, ...] = ()  # the kernels, where the rows say more than their shapes

    @property
    def name(self) -> str:
        """What they are, in words."""
        return f"{self.op}, {self.dtype}" if self.dtype else self.op

    @functools.cached_property
    def kernels(self) -> tuple[Kernel | None, ...]:
        """What was measured, None where a shape does not say all of it."""
        return self.given or tuple(kernel_of(self.op, shape, self.dtype) for shape in self.shapes)


MeasuredRows = MeasuredCollective | MeasuredProducts | MeasuredKernels


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All that was measured, in sets of rows that are priced together."""

    sets: tuple[MeasuredRows, ...]
    skipped: Mapping[str, int]  # why rows were left out, and how many each
    files: tuple[str, ...]
    notes: tuple[str, ...]  # what is to be known of them: spread, several sources

    @property
    def rows(self) -> int:
        """Rows in all. [1]"""
        return sum(one.time.size for one in self.sets)


def read_measurements(
    paths: Sequence[Path], system: Sequence[str], node: int, options: LogOptions, wanted: Sequence[str] = ()
) -> Measurements:
    """Read files.

    Parameters
    ----------
    system : names of the system, of its device and of what both build on.
    node : devices of a node. [1]
    options : what logs do not say.
    wanted : values of the columns system, device or source, all of which a row has.

    Raises
    ------
    SpecError, CrossflowError
        For what cannot be read, with all problems of a file, and for tables of several systems none of which is the one asked for.
    """
    collected: Collected = {}
    skipped: Counter[str] = Counter()
    notes: list[str] = []
    given = list(_files(paths))
    if twice := [path for path, count in Counter(path.resolve() for path in given).items() if count > 1]:
        raise CrossflowError(f"{twice[0]} is given twice")
    texts = {path: files.read_text(path) for path in given}
    _check_unused(options, wanted, [is_log(text) for text in texts.values()])
    for path, text in texts.items():
        if is_log(text):
            runs, left = read_log(path, text, options)
            skipped.update(left)
            notes += _measured_on(path, runs, system)
            notes += _spread(runs)
            _collect_runs(runs, collected)
        else:
            notes += _read_table(path, system, node, wanted, collected, skipped)
    notes += _repeats(collected)
    return Measurements(
        sets=tuple(_rows_of(key, rows) for key, rows in collected.items()),
        skipped=dict(skipped), files=tuple(map(str, texts)), notes=tuple(notes),
    )  # fmt: skip


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are given, and of a folder its profile, or else its tables and logs, in the order of their names."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        own = path / PROFILE_FILE
        inside = (
            [own]
            if own.is_file()
            else [one for one in sorted(path.iterdir()) if one.suffix in FOLDER_SUFFIXES and one.name != "systems.csv"]
        )
        if not inside:
            raise CrossflowError(f"{path} holds no table of measurements and no log; give the files themselves")
        yield from inside


def _check_unused(options: LogOptions, wanted: Sequence[str], logs: Sequence[bool]) -> None:
    for name, given in (("--op", options.collective), ("--ranks", options.ranks), ("--nodes", options.nodes)):
        if given is not None and not any(logs):
            raise CrossflowError(f"{name} is for logs of nccl-tests, and no file is one; tables say it themselves")
    if wanted and all(logs):
        raise CrossflowError("--rows chooses rows of tables, and all files are logs of nccl-tests; name the logs that are to count")


def _measured_on(path: Path, runs: Sequence[LogRun], system: Sequence[str]) -> Iterator[str]:
    """What to know of the devices of a log and of its options, as sentences; CrossflowError for devices that the system has none of."""
    own = [name for name in system if name in files.catalogue("templates", "devices")]
    for printed in dict.fromkeys(name for run in runs for name in run.devices):
        words = device_words(printed) - MAKERS
        if not own or any(device_words(name) == words for name in own):
            continue
        if template_of(" ".join(words)) is not None:
            raise CrossflowError(f"{path}: measured on {printed}, and {system[0]} has {own[0]}; name another --system")
        yield f"{path.name}: measured on {printed}, which crossflow does not know; taken for {own[0]}"
    for told in dict.fromkeys(told for run in runs for told in run.told):
        yield f"{path.name}: measured {told}"


def _collect_runs(runs: Iterable[LogRun], collected: Collected) -> None:
    for run in runs:
        key = (COLLECTIVE, run.collective, str(run.ranks), str(run.ranks_per_node))
        collected.setdefault(key, []).extend(zip(run.size.tolist(), run.time.tolist(), strict=True))


def _rows_of(key: RowKey, rows: Sequence[RowValues]) -> MeasuredRows:
    """Rows of one key as one object, in order of their sizes."""
    kind, first, second, *rest = key
    if kind == COLLECTIVE:
        size, time = np.array(sorted(rows)).T
        return MeasuredCollective(collective=first, ranks=int(second), ranks_per_node=int(rest[0]), size=size, time=time)
    if kind == PRODUCTS:
        *sizes, time = np.array(sorted(rows)).T
        return MeasuredProducts(dtype=first, source=second, sizes=np.stack(sizes), time=time)
    shapes, time = [str(shape) for _, shape, *_ in rows], np.array([time for time, *_ in rows])
    given = tuple(kernel for _, _, *kernels in rows for kernel in kernels)
    shortest: dict[str, float] = {}
    for shape, one in zip(shapes, time.tolist(), strict=True):
        shortest[shape] = min(one, shortest.get(shape, one))
    places = {shape: place for place, shape in enumerate(sorted(shortest, key=lambda shape: (shortest[shape], shape)))}
    order = np.array([places[shape] for shape in shapes], dtype=float)
    return MeasuredKernels(op=first, dtype=second, shapes=tuple(shapes), time=time, order=order, given=given)


def _spread(runs: Iterable[LogRun]) -> Iterator[str]:
    """How far in-place times are from those that are used, as a sentence a run."""
    for run in runs:
        off = np.abs(run.in_place / run.time - 1.0)
        if np.isfinite(off).any():
            what = f"{Path(run.file).name}: {run.collective}, {run.ranks} ranks"
            yield f"{what}: in-place times differ by {100 * np.nanmedian(off):.1f} % (median); those out of place are used"


def _repeats(collected: Mapping[RowKey, Sequence[RowValues]]) -> Iterator[str]:
    """How much the times of one size scatter where it was measured several times."""
    for key, rows in collected.items():
        by_size: dict[tuple[Any, ...], list[float]] = {}
        for *size, time in rows if key[0] in (PRODUCTS, COLLECTIVE) else [(shape, time) for time, shape, *_ in rows]:
            by_size.setdefault(tuple(size), []).append(time)
        several = [np.std(np.log(times)) for times in by_size.values() if len(times) > 1]
        if several:
            scatter = f"their times scatter by {100 * np.median(several):.1f} % (median)"
            yield f"{_rows_of(key, rows).name}: {len(several)} sizes were measured several times; {scatter}"


# -------------------------------------------------------------------------------------------- tables


def _read_table(
    path: Path,
    system: Sequence[str],
    node: int,
    wanted: Sequence[str],
    collected: Collected,
    skipped: Counter[str],
) -> Iterator[str]:
    """Read a table, and say what is to be known of it."""
    rows = list(files.table_rows(path))
    columns = list(dict.fromkeys(column for _, row in rows for column in row))
    kind = next((kind for kind, (needed, _) in TABLES.items() if set(needed) <= set(columns)), None)
    if kind is None:
        known = "; ".join(f"{kind}: {', '.join(needed)}" for kind, (needed, _) in TABLES.items())
        ours = [column for column in columns if any(column in needed for needed, _ in TABLES.values())]  # others may be another's secrets
        found = f"has the columns {', '.join(ours)}" if ours else "has none of these columns" if columns else "holds no row"
        raise SpecError(
            [Problem(file=str(path), message=f"is no table of measurements, for it {found}; known: {known}; or a log of nccl-tests")]
        )
    if unread := [column for column in columns if column not in (*TABLES[kind][0], *READ[kind])]:
        yield f"{path.name}: columns that are not read: {', '.join(unread)}"
    kept = [(line, row) for line, row in rows if all(name in (row.get(column) for column in WHICH) for name in wanted)]
    if len(kept) < len(rows):
        skipped[f"not of {', '.join(wanted)} (--rows)"] += len(rows) - len(kept)
    kept = _of_system(path, kept, TABLES[kind][1], system, skipped, wanted)
    if others := [name for name in dict.fromkeys(row.get(TABLES[kind][1], "") for _, row in kept) if not _is_own(name, system)]:
        yield f"{path.name}: rows of the {TABLES[kind][1]} {', '.join(others)} are taken for {system[0]}"
    problems: list[Problem] = []
    for line, row in kept:
        try:
            key, values = _READERS[kind](row, node)
        except _LeftOutError as reason:
            skipped[str(reason)] += 1
        except ValueError as error:
            problems.append(Problem(file=str(path), line=line, message=str(error)))
        else:
            collected.setdefault(key, []).append(values)
    if problems:
        raise SpecError(problems)
    sources = list(dict.fromkeys(row["source"] for _, row in kept if row.get("source")))
    if len(sources) > 1:
        yield f"{path.name}: rows of {len(sources)} sources ({', '.join(sources)}), which may measure differently; choose with --rows"


def _of_system(
    path: Path, rows: list[NumberedRow], column: str, system: Sequence[str], skipped: Counter[str], wanted: Sequence[str]
) -> list[NumberedRow]:
    """Rows of the system: those that name it, or all where they name one that crossflow does not know or that is asked for."""
    labels = list(dict.fromkeys(row.get(column, "") for _, row in rows))
    own = [label for label in labels if _is_own(label, system)]
    known = files.catalogue("templates", "systems")
    unknown = [label for label in labels if label not in own and (label in wanted or (template_of(label) is None and label not in known))]
    if not own and len(unknown) == 1:
        own = unknown
    if rows and not own:
        listed = ", ".join(labels[:12]) + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
        cure = f"say which are yours with --rows, such as --rows {unknown[0]!r}" if unknown else "name another --system"
        raise CrossflowError(f"{path}: its {column} is {listed}, none of which is {system[0]}; {cure}")
    for label in labels:
        if label not in own:
            skipped[f"of the {column} {label}, not of {system[0]}"] += sum(row.get(column, "") == label for _, row in rows)
    return [(line, row) for line, row in rows if row.get(column, "") in own]


def _is_own(label: str, system: Sequence[str]) -> bool:
    """Whether rows with a label, or with none, are of a system by its names."""
    return not label or label in system or template_of(label) in system


class _LeftOutError(Exception):
    """A row that is left out, and why."""


def _positive(row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = np.nan
    if not 0 < value < np.inf:
        raise ValueError(f"{column}: expected a number above zero, got '{row[column]}'")
    if column == "time_us" and value > LONGEST * 1e6:
        raise ValueError(f"time_us: expected at most a day, got '{row[column]}'")
    return value


def _product(row: Mapping[str, str], _: int) -> tuple[RowKey, RowValues]:
    if row["dtype"] not in DTYPE_BYTES:
        raise _LeftOutError(f"products in {row['dtype']}, a type that crossflow does not know")
    sizes = [_positive(row, column) for column in ("m", "n", "k")]
    batch = _positive(row, "batch") if row.get("batch") else 1.0
    return (PRODUCTS, row["dtype"], row.get("source", "")), (*sizes, batch, _positive(row, "time_us") * 1e-6)


def _lookup(row: Mapping[str, str], _: int) -> tuple[RowKey, RowValues]:
    part = next((part for part in LOOKUPS if part == row["part"]), None)
    if part is None:
        raise ValueError(f"part: expected one of {', '.join(LOOKUPS)}, got '{row['part']}'{did_you_mean(row['part'], LOOKUPS)}")
    dtype = row.get("dtype") or "fp32"
    if dtype not in DTYPE_BYTES:
        raise _LeftOutError(f"look-ups in {dtype}, a type that crossflow does not know")
    sizes: dict[str, Any] = {name: _positive(row, name) for name in ("samples", "rows", "width", "pooling")}
    sizes["tables"] = _positive(row, "tables") if row.get("tables") else 1.0
    reuse = _factors(row)
    distinct = float(distinct_share(np.array(reuse))) if reuse else _positive(row, "distinct") if row.get("distinct") else None
    if distinct is not None and distinct > 1.0:
        raise ValueError(f"distinct: expected different rows over look-ups, at most 1, got '{row['distinct']}'")
    kernel = Lookup(**sizes, part=part, reuse=reuse, distinct=distinct or 1.0, element=DTYPE_BYTES[dtype])
    shape = f"{lookup_shape(**sizes)}, {dtype}" + ("" if distinct is None else f", {distinct:.6g} different")
    return (LOOKED_UP, LOOKUPS[part], ""), (_positive(row, "time_us") * 1e-6, shape, kernel)


def _factors(row: Mapping[str, str]) -> tuple[float, ...] | None:
    """Reuse factors of a row, None where it has none."""
    cells = [row.get(name) or "" for name in REUSE]
    if not any(cells):
        return None
    try:
        found = np.array([float(cell) for cell in cells])
    except ValueError:
        found = np.zeros(BINS)
    if not (np.isfinite(found) & (found >= 0)).all() or found.sum() <= 0:
        raise ValueError(f"reuse_0 to reuse_{BINS - 1}: expected {BINS} shares of the look-ups, got {', '.join(cells)}")
    return tuple(normalised(found).tolist())


def _collective(row: Mapping[str, str], _: int) -> tuple[RowKey, RowValues]:
    name = row["collective"]
    if name not in COLLECTIVES:
        raise ValueError(f"collective: expected one of {', '.join(COLLECTIVES)}, got '{name}'{did_you_mean(name, COLLECTIVES)}")
    ranks, per_node = (_positive(row, column) for column in ("ranks", "ranks_per_node"))
    if ranks != round(ranks) or per_node != round(per_node) or ranks < 2:
        raise ValueError(f"ranks, ranks_per_node: expected whole numbers, two ranks or more, got {row['ranks']}, {row['ranks_per_node']}")
    if per_node < ranks and ranks % per_node:
        raise ValueError(f"ranks, ranks_per_node: {row['ranks']} ranks do not fill nodes of {row['ranks_per_node']}")
    values = _positive(row, "size_bytes"), _positive(row, "time_us") * 1e-6
    return (COLLECTIVE, name, str(int(ranks)), str(int(per_node))), values


def _event(row: Mapping[str, str], node: int) -> tuple[RowKey, RowValues]:
    (op, shape, dtype, ranks, scope), measured = profile_event(row)
    if op in KERNELS:
        return (PROFILE, op, dtype), (measured.time, shape)
    if scope == "inter" and ranks <= node:
        raise _LeftOutError("a collective between nodes of no more ranks than a node has: a profile does not say how many share one")
    key = COLLECTIVE, op, str(ranks), str(ranks if scope == "intra" else node)
    return key, (message_size(shape), measured.time)


_READERS = {PRODUCTS: _product, COLLECTIVE: _collective, LOOKED_UP: _lookup, PROFILE: _event}
