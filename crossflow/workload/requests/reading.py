"""Traces of requests in files -> `RequestTrace`: columns by role, numbers and dates checked row by row, sessions as chains."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, NumberLists
from crossflow.base.errors import Problem, SpecError, among, did_you_mean
from crossflow.base.limits import shown
from crossflow.workload.requests.cells import WANTED, TraceTable, is_date, listed, moments_of, numbers_of, refuse
from crossflow.workload.requests.formats import ROLES, UNITS, TraceFormat, plain, recognised, unit_in
from crossflow.workload.requests.laws import TOKENS
from crossflow.workload.requests.record import RequestClass, RequestTrace
from crossflow.workload.requests.shared import MOST_BLOCKS
from crossflow.workload.requests.spec import BLOCK, MOST, RequestsSpec
from crossflow.workload.requests.tables import ABSENT, TraceRows, and_more, chunks, text_of

EPOCH = 1e8  # times beyond are those of a clock of the day, which begin with the first request. [s]
KINDS = 1000  # classes of a trace, the most
KEYS = {"kind": "class", "begin": "from"}  # keys of files by what they are called inside


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a file is read."""

    columns: tuple[tuple[str, str], ...] = ()  # names of columns by role, as the user gave them
    unit: str | None = None
    block: int | None = None
    drop_empty: bool = False
    sort: bool = False

    @classmethod
    def of(cls, spec: RequestsSpec) -> Reading:
        """How a section says that its trace is read."""
        given = () if spec.columns is None else tuple(spec.columns.given.items())
        return cls(columns=given, unit=spec.time_unit, block=spec.block, drop_empty=spec.empty == "drop", sort=spec.unsorted == "sort")


@dataclass(kw_only=True)
class _ReadRows:
    """What was read so far, a list of arrays for each role; of one reading alone."""

    numbers: dict[str, list[Array]] = field(default_factory=lambda: {role: [] for role in ROLES})
    lines: list[Index] = field(default_factory=list)
    names: dict[str, dict[Any, int]] = field(default_factory=lambda: {"kind": {}, "session": {}, "blocks": {}})
    counts: list[Index] = field(default_factory=list)
    held: int = 0
    begin: np.datetime64 | None = None  # first date
    rows: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceFile:
    """The requests of a file, whether it says when they arrive (else all are at 0), and sentences on what was done to it."""

    trace: RequestTrace
    timed: bool
    notes: tuple[str, ...]


def read_trace(path: Path, reading: Reading) -> TraceFile:
    """The requests of a file; SpecError with the line of the first row that is wrong."""
    table: TraceTable | None = None
    found = _ReadRows()
    for chunk in chunks(path):
        table = table or table_of(path, list(chunk.columns), reading)
        _add(found, table, chunk)
    if table is None or not found.rows:
        raise SpecError([Problem(file=str(path), message="it holds no requests")])
    trace, notes = _trace(found, table, reading)
    return TraceFile(trace=trace, timed="arrival" in table.roles, notes=notes)


def table_of(path: Path, names: Sequence[str], reading: Reading) -> TraceTable:
    """What the columns of a file mean; SpecError where the user names one that is not there, or one is missing."""
    known = recognised(names)
    own = dict(reading.columns)
    for role, name in own.items():
        if name not in names:
            message = (
                f"columns.{KEYS.get(role, role)}: there is no column {shown(name)}{did_you_mean(name, names)}; there are: {among(names)}"
            )
            raise SpecError([Problem(file=str(path), message=message)])
    roles = {**_of_format(known, names), **own}
    for role in ("prompt", "output"):
        if role not in roles:
            raise SpecError([Problem(file=str(path), message=_lacking(role, names))])
    for key, needed, given in (("columns.elapsed", "session", "elapsed" in own), ("block", "blocks", reading.block is not None)):
        if given and needed not in roles:
            what = "sessions" if needed == "session" else "hashes of blocks"
            message = f"requests.{key} has no meaning without a column of {what} (columns.{needed}); leave it out"
            raise SpecError([Problem(file=str(path), message=message)])
    unit = reading.unit or (unit_in(own["arrival"]) if "arrival" in own else None if known is None else known.unit)
    block = reading.block or (known.block if known is not None and known.block and "blocks" not in own else BLOCK)
    return TraceTable(
        path=path, name="" if known is None else known.name, roles=roles, unit=unit, told_unit=reading.unit is not None, block=block,
        ordered=known is None or known.ordered,
    )  # fmt: skip


def _of_format(known: TraceFormat | None, names: Sequence[str]) -> dict[str, str]:
    """Columns of a known format by role."""
    if known is None:
        return {}
    there = {plain(name): name for name in reversed(names)}
    return {role: there[name] for role, name in {**known.needs, **known.may}.items() if name in there}


def _lacking(role: str, names: Sequence[str]) -> str:
    if role in map(plain, names):
        return (
            f"'{role}' is the name of a column of a known format, but those beside it are not; there are: {among(map(shown, names))}; call "
            "the column of times arrival_s (in seconds), or name them all: requests.columns.arrival, .prompt and .output"
        )
    what = {"prompt": "tokens of prompts", "output": "tokens that are written"}[role]
    return (
        f"no column is known to hold the {what}; there are: {among(map(shown, names))}; name it in requests.columns.{role}"
        ", or call the columns arrival_s, prompt and output (further formats: `crossflow requests` in the documentation)"
    )


# ------------------------------------------------------------------------------------------ cells


def _add(found: _ReadRows, table: TraceTable, chunk: TraceRows) -> None:
    """Read a chunk of rows."""
    n = len(chunk.lines)
    if n == 0:
        return
    if (found.rows + n) > MOST:
        raise SpecError([Problem(file=str(table.path), message=f"it has more than the {MOST:,} requests that are read; split it")])
    for role, name in table.roles.items():
        cells = chunk.columns.get(name, [ABSENT] * n)
        if role == "blocks":
            _add_blocks(found, table, cells, chunk.lines)
        elif role in ("kind", "session"):
            found.numbers[role].append(_named(found.names[role], cells, role, table))
        elif role == "arrival":
            found.numbers[role].append(_arrivals(found, table, cells, chunk.lines))
        else:
            found.numbers[role].append(numbers_of(table, role, cells, chunk.lines))
    found.lines.append(np.array(chunk.lines, dtype=np.intp))
    found.rows += n


def _arrivals(found: _ReadRows, table: TraceTable, cells: Sequence[Any], lines: Sequence[int]) -> Array:
    """Times of arrival, dates from the first one on. [s]"""
    numbers = bool(found.rows) and found.begin is None  # as the first rows were
    if numbers and is_date(cells[0]):
        numbers_of(table, "arrival", cells, lines)  # refuses it
    values, found.begin = moments_of(table, "arrival", cells, lines, found.begin, "requests.time_unit")
    return values


def _named(names: dict[Any, int], cells: Sequence[Any], role: str, table: TraceTable) -> Array:
    """Numbers of names, in the order in which they first come; -1 for a cell without one."""
    texts = ["" if cell is ABSENT or cell is None else str(cell).strip() for cell in cells]
    for text in dict.fromkeys(texts):
        if text or role == "kind":
            names.setdefault(text, len(names))
    if role == "kind" and len(names) > KINDS:
        raise table.error(role, None, f"it has more than {KINDS:,} names, the most that are read as classes; name another column")
    return np.fromiter((names.get(text, -1) for text in texts), float, len(texts))


def _add_blocks(found: _ReadRows, table: TraceTable, cells: Sequence[Any], lines: Sequence[int]) -> None:
    """Lists of hashes, whatever numbers or texts they are."""
    held: list[Sequence[Any]] = []
    for cell, line in zip(cells, lines, strict=True):
        found_list = listed(cell)
        if found_list is None:
            raise table.error("blocks", line, f"expected a list of hashes, got {text_of(cell)}")
        held.append(found_list)
    found.counts.append(np.fromiter(map(len, held), np.intp, len(held)))
    found.held += int(found.counts[-1].sum())
    if found.held > MOST_BLOCKS:
        raise table.error("blocks", None, f"it has more than the {MOST_BLOCKS:,} hashes of blocks that are read; split the file")
    flat = list(itertools.chain.from_iterable(held))
    names = found.names["blocks"]
    new = [one for one in dict.fromkeys(flat) if one not in names]
    names.update(zip(new, range(len(names), len(names) + len(new)), strict=True))
    found.numbers["blocks"].append(np.fromiter(map(names.__getitem__, flat), np.intp, len(flat)))


# ------------------------------------------------------------------------------------------ requests


def _trace(found: _ReadRows, table: TraceTable, reading: Reading) -> tuple[RequestTrace, tuple[str, ...]]:
    """The columns of all rows as requests in order, and what was done to them."""
    column = {role: np.concatenate(parts) for role, parts in found.numbers.items() if parts}
    lines = np.concatenate(found.lines)
    table = _with_block(table, reading, column.get("block"), lines)
    arrival = column.get("arrival", np.zeros(found.rows))
    if len(arrival) and arrival[0] > EPOCH:
        arrival = arrival - arrival.min()
    prompt, output = column["prompt"].astype(np.intp), column["output"].astype(np.intp)
    empty = _empty(table, reading, prompt, output, lines)
    _check_tokens(table, prompt, output, lines)
    trace = RequestTrace.of(
        arrival, prompt, output, file=str(table.path), lines=lines, block=table.block if "blocks" in column else 0,
        blocks=_blocks(found, table, prompt, column["blocks"], lines) if "blocks" in column else None, **_kinds(found, column),
        **_following(table, column, arrival, lines),
    )  # fmt: skip
    notes = []
    if empty.any():
        trace = trace.at(np.flatnonzero(~empty))
        notes.append(f"{int(empty.sum()):,} requests without a token of prompt or output are left out (empty: drop)")
    _check_order(table, reading, trace)
    if (trace.arrival[1:] < trace.arrival[:-1]).any():
        notes.append("its requests are sorted by their arrival")
    if not len(trace):
        raise SpecError([Problem(file=str(table.path), message="it holds no requests but empty ones")])
    return trace.in_order(), tuple(notes)


def _with_block(table: TraceTable, reading: Reading, block: Array | None, lines: Index) -> TraceTable:
    """The table with the block that its own column says, the same in all rows."""
    if block is None or reading.block is not None:
        return table
    wrong = (block != block[0]) | (block < 1)
    refuse(table, "block", wrong, block.tolist(), lines.tolist(), f"expected the same number of tokens in all rows, {block[0]:.0f}")
    return replace(table, block=int(block[0]))


def _empty(table: TraceTable, reading: Reading, prompt: Index, output: Index, lines: Index) -> Mask:
    """Requests without a token; SpecError for one below 0, and unless they are dropped."""
    for role, tokens in (("prompt", prompt), ("output", output)):
        wrong = tokens < (0 if reading.drop_empty else 1)
        cure = "" if reading.drop_empty or (tokens < 0).any() else "; requests.empty: drop leaves such requests out"
        if wrong.any():
            i = int(np.argmax(wrong))
            message = f"expected a whole number of tokens, at least {int(not reading.drop_empty)}, got {tokens[i]}"
            raise table.error(role, int(lines[i]), f"{message}{and_more(int(wrong.sum()) - 1)}{cure}")
    return np.asarray((prompt < 1) | (output < 1))


def _check_tokens(table: TraceTable, prompt: Index, output: Index, lines: Index) -> None:
    for role, tokens in (("prompt", prompt), ("output", output)):
        wrong = tokens > TOKENS
        if wrong.any():
            i = int(np.argmax(wrong))
            raise table.error(
                role, int(lines[i]), f"expected at most {TOKENS:,} tokens of a request, got {tokens[i]:,}{and_more(int(wrong.sum()) - 1)}"
            )


def _check_order(table: TraceTable, reading: Reading, trace: RequestTrace) -> None:
    """SpecError where times fall, in a file whose requests should stand in order."""
    falls = trace.arrival[1:] < trace.arrival[:-1]
    if falls.any() and table.ordered and not reading.sort:
        i = int(np.argmax(falls)) + 1
        assert trace.lines is not None  # it was read
        message = f"it arrives {trace.arrival[i - 1] - trace.arrival[i]:.6g} s before the request above it{and_more(int(falls.sum()) - 1)}"
        raise table.error("arrival", int(trace.lines[i]), f"{message}; sort the file, or give requests.unsorted: sort")


def _kinds(found: _ReadRows, column: Mapping[str, Array]) -> dict[str, Any]:
    if "kind" not in column:
        return {}
    return {"kind": column["kind"].astype(np.intp), "classes": tuple(RequestClass(name=name or "none") for name in found.names["kind"])}


def _following(table: TraceTable, column: Mapping[str, Array], arrival: Array, lines: Index) -> dict[str, Any]:
    """Which requests follow others, by the column that says so or by sessions, and with what pause."""
    n = len(arrival)
    if "follows" in column:
        follows, pause = column["follows"].astype(np.intp), column.get("pause", np.zeros(n))
        outside = (follows < -1) | (follows >= np.arange(n))
        late = (follows >= 0) & (arrival < arrival[np.where(outside, 0, follows)])  # than the one that it follows
        refuse(table, "follows", outside | late, follows.tolist(), lines.tolist(), f"expected {WANTED['follows']}")
        refuse(table, "pause", pause < 0, pause.tolist(), lines.tolist(), f"expected {WANTED['pause']} of at least 0")
        return {"follows": follows, "pause": np.where(follows < 0, 0.0, pause), **_history(table, column, follows, lines)}
    if "session" not in column:
        return {}
    session = column["session"].astype(np.intp)
    order = np.lexsort((np.arange(n), arrival, session))
    same = np.concatenate([np.zeros(1, dtype=bool), (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)])
    follows = np.full(n, -1, dtype=np.intp)
    follows[order[same]] = order[np.flatnonzero(same) - 1]
    elapsed = column.get("elapsed")
    if elapsed is None:
        return {"follows": follows}
    end = arrival + elapsed * UNITS[table.unit or "s"]
    return {"follows": follows, "pause": np.where(follows < 0, 0.0, np.maximum(arrival - end[follows], 0.0))}


def _history(table: TraceTable, column: Mapping[str, Array], follows: Index, lines: Index) -> dict[str, Any]:
    """Whether prompts begin with what was said before, where a column says so."""
    if "history" not in column:
        return {}
    wrong = (column["history"] != 0) & ((column["history"] != 1) | (follows < 0))
    refuse(table, "history", wrong, column["history"].tolist(), lines.tolist(), f"expected {WANTED['history']}, 0 where it follows none")
    return {"history": column["history"] == 1}


def _blocks(found: _ReadRows, table: TraceTable, prompt: Index, held: Array, lines: Index) -> NumberLists:
    """Hashes of the full blocks of prompts; formats may give one more, of the block that is begun."""
    counts, full = np.concatenate(found.counts), prompt // table.block
    wrong = counts < full
    if wrong.any():
        i = int(np.argmax(wrong))
        more = and_more(int(wrong.sum()) - 1)
        message = f"expected {full[i]} hashes for {prompt[i]:,} tokens in blocks of {table.block}, got {counts[i]}{more}"
        raise table.error("blocks", int(lines[i]), f"{message}; requests.block says how long blocks are" if not table.name else message)
    start = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(counts)])
    place = np.arange(start[-1]) - np.repeat(start[:-1], counts)
    first = np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(full)])
    return NumberLists(first=first, held=held[place < np.repeat(full, counts)].astype(np.intp))


# ------------------------------------------------------------------------------------------ lengths alone


def read_lengths(path: Path, column: str | None, least: int) -> Index:
    """The lengths in a table, none below the least, of a column that is named where there are several. [1]"""
    parts: list[Array] = []
    for chunk in chunks(path):
        names = list(chunk.columns)
        if column is None and len(names) > 1:
            raise SpecError([Problem(file=str(path), message=f"it has several columns, {among(names)}; say which with column")])
        name = names[0] if column is None else column
        if name not in names:
            raise SpecError(
                [Problem(file=str(path), message=f"there is no column {shown(name)}{did_you_mean(name, names)}; there are: {among(names)}")]
            )
        table = TraceTable(path=path, name="", roles={"prompt": name}, unit=None, told_unit=False, block=BLOCK, ordered=True)
        values = numbers_of(table, "prompt", chunk.columns[name], chunk.lines)
        refuse(
            table,
            "prompt",
            (values < least) | (values > TOKENS),
            chunk.columns[name],
            chunk.lines,
            f"expected {least} to {TOKENS:,} tokens",
        )
        parts.append(values)
    if not sum(map(len, parts)):
        raise SpecError([Problem(file=str(path), message="it holds no lengths")])
    return np.concatenate(parts).astype(np.intp)
