"""How long collectives take: by a system's network, by a measured table, or by a function of the user's.

Sizes follow the convention of `crossflow.cost.fabrics`: the buffer of one rank, of all_gather and gather the whole output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document, FileModel
from crossflow.base.limits import Finite, PositiveInt
from crossflow.base.units import parse
from crossflow.cost.ranks import RankGroup, SystemDelays, Times
from crossflow.evidence.emulation.what_if import Changes, Delay, read_what_if

INTRA, INTER = "intra", "inter"  # wires: inside nodes, between them
LinkKind = Literal["wire", "group"]


def _point(given: Any) -> Any:
    """A row of a table: a size and one or two times, as quantities."""
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) not in (2, 3):
        raise ValueError(f"expected a size, a time and, if known, the host's time, such as [1 MB, 9.6 ms, 2 ms], got {given!r}")
    return tuple(parse(value, unit) for value, unit in zip((*given, "0 s")[:3], ("B", "s", "s"), strict=True))


class DelayTable(FileModel):
    """Measured times of one collective among so many ranks."""

    op: Literal[
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send", "recv", "barrier"
    ] = Field(description="what is called")
    ranks: PositiveInt = Field(description="ranks of the group; 2 for send and recv")
    points: tuple[Annotated[tuple[Finite, Finite, Finite], BeforeValidator(_point)], ...] = Field(
        min_length=1,
        description="rows of size, time and, if known, processor time of the host in it: `[1 MB, 9.6 ms, 2 ms]`, sizes increasing; times "
        "are interpolated, constant below the first size, and go on beyond the last as between the last two",
    )


class DelaysFile(FileModel):
    """How long collectives take in an emulation."""

    kind: Literal["delays"] = Field(description="what the file is")
    title: str = Field("", description="a line for reports, such as where the times were measured")
    tables: tuple[DelayTable, ...] = Field((), description="measured times, which come first")
    delay: str = Field(
        "",
        description="function of a Python file, `my_model.py:function`, for what no table has: it takes op, size in bytes and the global "
        "ranks of the group, and returns seconds, or seconds and processor seconds of the host",
    )
    system: str = Field("", description="system whose network gives the times of all else; `--system` replaces it")
    link: LinkKind | None = Field(None, description="what collectives queue for, as `--link`")
    what_if: str = Field("", description="changes, as `--what-if`; those of the command line come after them")


Function = Callable[[str, int, RankGroup], float | Times]


@dataclass(frozen=True, kw_only=True, eq=False)
class Delays:
    """Delays of an emulation: measured ones first, then those of a function, then those of a system; all with the what-ifs.

    Attributes
    ----------
    tables : rows of size, time and host time by call and number of ranks. [B], [s]
    function, system : None where there are none.
    what_if : changes, and slower ranks.
    link : what collectives queue for: each level of the network, or each process group.
    source : where the delays come from, for reports.
    """

    tables: Mapping[tuple[str, int], tuple[tuple[float, float, float], ...]]
    function: Function | None
    system: SystemDelays | None
    what_if: Changes
    link: LinkKind
    source: str

    @functools.cached_property
    def _found(self) -> dict[tuple[str, int, RankGroup], Delay]:
        return {}

    def base(self, op: str, size: int, ranks: RankGroup) -> Delay:
        """Delay of a call without what-ifs; looked up once for each size and group."""
        key = op, size, ranks
        if key not in self._found:
            time, host = self._time(op, size, ranks)
            latency = min(self._time(op, 1, ranks)[0], time) if size > 1 else time
            self._found[key] = Delay(time=time, latency=latency, host=host)
        return self._found[key]

    def wire(self, op: str, name: str, ranks: RankGroup) -> str:
        """What a call of a process group queues for; the two directions of transfers are links of their own."""
        level = INTER if self.system is not None and self.system.crosses(ranks) else INTRA
        return ".".join((name if self.link == "group" else level, *((op,) if op in ("send", "recv") else ())))

    def _time(self, op: str, size: int, ranks: RankGroup) -> Times:
        """Time of a call; nothing moves in a group of one. [s]"""
        if len(ranks) < 2:
            return 0.0, 0.0
        if (op, len(ranks)) in self.tables:
            sizes, times, hosts = zip(*self.tables[op, len(ranks)], strict=True)
            return _interpolated(size, sizes, times), _interpolated(size, sizes, hosts)
        if self.function is not None:
            return _checked(self.function(op, size, ranks), op, size)
        if self.system is not None:
            return self.system.time(op, size, ranks)
        known = ", ".join(f"{name} of {count}" for name, count in self.tables)
        raise CrossflowError(f"no delay is known of {op} among {len(ranks)} ranks; the delays have {known}; give --system for the rest")


def _interpolated(size: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """Piecewise linear, constant below the first size, with the last slope beyond the last."""
    if size <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(size, sizes, values))
    slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
    return max(values[-1] + slope * (size - sizes[-1]), 0.0)


def _checked(given: object, op: str, size: int) -> Times:
    """What a function returned, as two times."""
    values = given if isinstance(given, tuple) else (given, 0.0)
    if len(values) != 2 or not all(isinstance(one, int | float) and 0 <= one < np.inf for one in values):
        raise CrossflowError(f"the delay function returned {given!r} for {op} of {size} B; expected seconds, or seconds and host seconds")
    return float(values[0]), float(values[1])


def delays_of(
    world_size: int, system: str | None = None, file: str | None = None, what_if: str = "", link: LinkKind | None = None
) -> Delays:
    """Delays of a world from the name of a system, a file of delays, or both.

    Raises
    ------
    CrossflowError
        Where there is neither, and for everything that is wrong with them.
    """
    given, document, changes = DelaysFile(kind="delays"), None, read_what_if(what_if)
    if file is not None:
        document = files.read_yaml(file)
        given = files.validate(DelaysFile, document)
        changes = _with_place(document, ("what_if",), lambda: read_what_if(given.what_if)) + changes
        _check_tables(given.tables, document)
    named = system or given.system
    if not (named or given.tables or given.delay):
        if document is not None:
            raise document.error((), "nothing says how long collectives take; give it tables, delay or system, or give --system NAME")
        raise CrossflowError("nothing says how long collectives take; give --system NAME, or --delays FILE with tables, delay or system")
    base = Path(file).parent if file is not None else Path()
    network = SystemDelays.of(_at(base, named) if named != system else named, world_size) if named else None
    function = None if document is None or not given.delay else _with_place(document, ("delay",), lambda: _function(given.delay, base))
    parts = [f"tables of {file}" if given.tables else "", given.delay, "" if network is None else network.name]
    return Delays(
        tables={(row.op, row.ranks): row.points for row in given.tables},
        function=function,
        system=network,
        what_if=changes,
        link=link or given.link or "wire",
        source=", ".join(part for part in parts if part),
    )


def _at(base: Path, name: str) -> str:
    """A name, or the path of a file that stands beside the one that names it."""
    return str(base / name) if (base / name).is_file() else name


def _with_place(document: Document, path: tuple[str, ...], read: Callable[[], Any]) -> Any:
    """What `read` returns; its complaints with the place in a file."""
    try:
        return read()
    except SpecError:
        raise
    except CrossflowError as error:
        raise SpecError([document.problem(path, str(error))]) from None


def _check_tables(rows: Iterable[DelayTable], document: Document) -> None:
    """SpecError for two tables of one call, and for sizes that do not increase."""
    seen: dict[tuple[str, int], int] = {}
    problems = []
    for i, row in enumerate(rows):
        if (row.op, row.ranks) in seen:
            message = f"a second table of {row.op} among {row.ranks} ranks; the first is tables[{seen[row.op, row.ranks]}]"
            problems.append(document.problem(("tables", i), message))
        if any(larger[0] <= smaller[0] for smaller, larger in pairwise(row.points)):
            problems.append(document.problem(("tables", i, "points"), "expected sizes that increase"))
        if min(value for point in row.points for value in point) < 0:
            problems.append(document.problem(("tables", i, "points"), "expected sizes and times that are not negative"))
        seen.setdefault((row.op, row.ranks), i)
    if problems:
        raise SpecError(problems)


def _function(named: str, base: Path) -> Function:
    """A function of a Python file, ``my_model.py:function``."""
    path, colon, name = named.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CrossflowError(f"expected a function of a Python file, such as my_model.py:delay, got '{named}'")
    file = base / path
    if not file.is_file():
        raise CrossflowError(f"there is no file {file}")
    try:
        module = files.python_module(file)
    except Exception as error:
        raise CrossflowError(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise CrossflowError(f"{file} has no function '{name}'")

    def call(op: str, size: int, ranks: RankGroup) -> float | Times:
        try:
            found: float | Times = function(op, size, ranks)
        except Exception as error:
            raise CrossflowError(f"{file}: {name} failed for {op} of {size} B: {type(error).__name__}: {error}") from None
        return found

    return call
