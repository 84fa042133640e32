"""Logs of nccl-tests as the programs print them [1]_, whole or broken off, with what mpirun, srun and NCCL print between the rows.

A test prints its options (``# nThread 1 nGpus 8 ...``), the device of every rank with its host, a header of columns, and a row a size:
buffer in bytes, elements, type, operation and root, then time in microseconds, two bandwidths and wrong results, out of place and in
place. Older versions have no groups, no root, or a column `error`; newer ones name the test (``# Collective test starting: ...``).

A log says some things twice, and what it says must agree: algbw is size over time, busbw over algbw follows from the collective and its
ranks, and rows that reduce name an operation.

References
----------
.. [1] NVIDIA, nccl-tests, src/common.cu and doc/PERFORMANCE.md (github.com/NVIDIA/nccl-tests); sizes follow its conventions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.errors import Problem, SpecError
from crossflow.program.collectives import COLLECTIVES, PRICED, ring_volume

# Names of tests, without what separates words; those that have no collective of that kind here.
TESTS: Mapping[str, str] = {name.replace("_", ""): name for name in COLLECTIVES if name != "send_recv"}
REDUCING = tuple(name for name in COLLECTIVES if "reduce" in name)
OTHERS = (*PRICED, "hypercube", "alltoallv")
_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]\s?<std(?:out|err)>:\s?|\d+:(?=\s))")  # of mpirun --tag-output, of srun --label
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+(?:\s+\[[^\]]*\]\s*(.*\S))?")
_OPTIONS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
_STARTS = re.compile(r"Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"\b(\w+)_perf(?=\s+-|\s*$)")
_FAILED = re.compile(r"Out of bounds values\s*:\s*([1-9]\d*)")
_CHANGES = (
    (re.compile(r"\bgraph: ([1-9]\d*)"), "in CUDA graphs (graph: {}), without launches by the host"),
    (re.compile(r"\bagg iters: (?!1\b)(\d+)"), "{} calls at once (agg iters)"),
)  # options that change what a time means
UNITS = ("(B)", "(elements)", "(us)", "(GB/s)")
CLOSE, DIGITS = 0.05, 0.0101  # by which the bandwidths of a row may differ: of their value, and of rounding [GB/s]
TOLD = 1.0  # bandwidth from which its digits tell one collective from another [GB/s]
_TEXT_COLUMNS = (("redop",), ("redop", "root"))  # left empty by tests that have none of it


@dataclass(frozen=True, kw_only=True)
class LogRun:
    """One test: times of a collective by size, as far as its results were right."""

    collective: str  # one of ours
    ranks: int
    ranks_per_node: int
    size: Array  # buffer of a rank by the convention of nccl-tests. [B]
    time: Array  # out of place. [s]
    in_place: Array  # NaN where it was not measured. [s]
    file: str
    devices: tuple[str, ...] = ()  # of its ranks, as the driver calls them
    told: tuple[str, ...] = ()  # what its options change


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """What the user says of logs that do not say it themselves."""

    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None


def is_log(text: str) -> bool:
    """Whether a text is a log of nccl-tests."""
    return re.search(r"\balgbw\b|\bnThreads?\b", text) is not None


def read_log(path: Path, text: str, options: LogOptions) -> tuple[list[LogRun], Counter[str]]:
    """Tests of a log, and why rows were left out.

    Raises
    ------
    SpecError
        With every line that is not understood, or where a test does not say what it is.
    """
    reader = _LogReader(path=path, options=options)
    lines = text.splitlines()
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    for i, line in enumerate(lines):
        reader.read(i + 1, _PREFIX.sub("", line, count=1).strip(), is_last=i == last)
    reader.close()
    if not reader.found and not reader.problems and not reader.skipped:
        reader.wrong(None, "holds no row of nccl-tests: a header (# size count type ... time algbw busbw), then a row a size")
    if reader.problems:
        raise SpecError(reader.problems)
    return reader.found, reader.skipped


@dataclass(kw_only=True)
class _LogReader:
    """What is known of a test while its lines pass by."""

    path: Path
    options: LogOptions
    found: list[LogRun] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    test: str = ""
    begins: int = 1
    hosts: dict[int, str] = field(default_factory=dict)  # of the ranks of the first group
    names: dict[str, None] = field(default_factory=dict)  # of the devices of all ranks
    told: tuple[str, ...] = ()  # what the options change
    reduces: dict[bool, None] = field(default_factory=dict)  # whether rows name an operation that reduces
    ratios: list[float] = field(default_factory=list)  # busbw over algbw of rows that are fast enough to tell
    bad: int = 0  # rows whose results were wrong
    devices: int = 0  # of one process, as its options say
    columns: Sequence[str] = ()
    layout: Sequence[str] = ()  # the columns that its rows have: those of the header, or fewer
    broken: bool = False  # whether the rows are not understood, which is told once
    rows: list[tuple[float, float, float]] = field(default_factory=list)

    def wrong(self, line: int | None, message: str) -> None:
        self.problems.append(Problem(file=str(self.path), line=line, message=message))

    def read(self, number: int, line: str, *, is_last: bool) -> None:
        """Take one line."""
        options, starts, rank = _OPTIONS.search(line), _STARTS.search(line), _RANK.search(line)
        if starts or (options and line.startswith("#")):
            self.close()
            self.begins = number if starts or not self.test else self.begins
        if starts:
            self.test = starts[1]
        elif options:
            self.devices = int(options[1]) * int(options[2])
            self.told = tuple(words.format(found[1]) for pattern, words in _CHANGES if (found := pattern.search(line)))
        elif rank:
            if int(rank[2] or 0) == 0:
                self.hosts[int(rank[1])] = rank[3]
            if rank[4]:
                self.names[rank[4]] = None
        elif line.startswith("#"):
            self._comment(number, line)
        elif len(cells := line.split()) > 1 and cells[0].isdecimal() and cells[1].isdecimal():
            self._row(number, cells, is_last=is_last)
        elif (program := _PROGRAM.search(line)) and "NCCL" not in line:  # the command, as a shell or a script echoes it
            self.close()
            self.test, self.begins = program[1], number
        elif len(cells) > 1 and self._like_a_row(cells) and not (is_last or self.broken):
            self.broken = True
            self.wrong(number, f"expected the bytes and the elements of a buffer, whole numbers, got {cells[0]} {cells[1]}")

    def _comment(self, number: int, line: str) -> None:
        """Take a header, the line of units below it, or the verdict at the end."""
        words, failed = line.lstrip("#").split(), _FAILED.search(line)
        if words[:2] == ["size", "count"]:
            if self.rows:  # another test, which says nothing of its ranks
                self.close()
                self.begins = number
            self._header(number, words)
        elif words and all(re.fullmatch(r"\(.*\)", word) for word in words):
            if other := [word for word in words if word not in UNITS]:
                self.wrong(number, f"the units are {' '.join(words)}; nccl-tests has {', '.join(UNITS)}, not {', '.join(other)}")
        elif failed and self.rows and not self.bad:
            self.wrong(number, f"{failed[1]} results were wrong (FAILED), and no row says which; measure again")

    def _like_a_row(self, cells: Sequence[str]) -> bool:
        """Whether a line that does not begin with two whole numbers has the times and bandwidths of a row."""
        columns = next((kept for kept in self._layouts() if len(kept) == len(cells)), None)
        return columns is not None and all(
            re.fullmatch(r"[\d.]+", cell) for name, cell in zip(columns, cells, strict=True) if name in ("time", "algbw", "busbw")
        )

    def _header(self, number: int, words: Sequence[str]) -> None:
        self.columns, self.broken = (words, False) if "time" in words else ((), True)
        if not self.broken:
            return
        self.wrong(number, f"the header names no column time, only {', '.join(words)}")

    def _row(self, number: int, cells: Sequence[str], *, is_last: bool) -> None:
        if self.broken:
            return
        columns = next((kept for kept in self._layouts() if len(kept) == len(cells)), None)
        if self.rows and columns is not None and columns != self.layout:
            columns = None
        if not self.columns:
            self.broken = True
            self.wrong(number, "a row without a header of columns above it (# size count type ... time algbw busbw)")
            return
        if columns is None:
            if is_last and len(cells) < len(self.columns):
                self.skipped["the log breaks off in the row"] += 1
            else:
                self.broken = True
                self.wrong(number, f"expected {len(self.columns)} columns as the header names ({' '.join(self.columns)}), got {len(cells)}")
            return
        times = [i for i, name in enumerate(columns) if name == "time"]
        try:
            size, *measured = (float(cells[i]) for i in (0, *times))
        except ValueError:
            self.wrong(number, f"expected times in us in the columns time, got {', '.join(cells[i] for i in times)}")
            return
        if size == 0:
            self.skipped["a buffer of 0 bytes"] += 1
        elif any(cell not in ("0", "N/A") for name, cell in zip(columns, cells, strict=True) if name == "#wrong"):
            self.skipped["its results were wrong (#wrong)"] += 1
            self.bad += 1
        elif not all(0 < time < np.inf for time in measured[:1]):
            self.wrong(number, f"expected a time above zero, got {cells[times[0]]}")
        else:
            self.layout = columns
            self._agrees(number, size, measured[0], dict(zip(columns[::-1], cells[::-1], strict=True)))
            self.rows.append((size, measured[0] * 1e-6, measured[1] * 1e-6 if len(measured) > 1 and measured[1] > 0 else np.nan))

    def _agrees(self, number: int, size: float, time: float, cells: Mapping[str, str]) -> None:
        """Note what a row says of its collective, and that its time is none where its bandwidth is another. [B], [us]"""
        if "redop" in cells:
            self.reduces[cells["redop"] != "none"] = None
        try:
            rate, bus = float(cells["algbw"]), float(cells["busbw"])
        except (KeyError, ValueError):
            return
        real = size / time / 1e3
        if abs(real - rate) > CLOSE * rate + DIGITS:
            self.wrong(
                number, f"{size:.0f} B in {time:.10g} us are {real:.3g} GB/s, its algbw says {rate:g}: time or size has another unit"
            )
        if rate >= TOLD:
            self.ratios.append(bus / rate)

    def _layouts(self) -> list[list[str]]:
        """The columns, and what is left of them where a test has no operation or no root."""
        return [list(self.columns), *([name for name in self.columns if name not in empty] for empty in _TEXT_COLUMNS)]

    def close(self) -> None:
        """End a test, if one has begun."""
        if self.rows:
            collective, ranks = self._collective(), self._ranks()
            if collective is not None and ranks is not None and self._is(collective, ranks[0]):
                size, time, in_place = np.array(self.rows).T
                among: dict[str, Any] = {"ranks": ranks[0], "ranks_per_node": ranks[1], "file": str(self.path)}
                among |= {"devices": tuple(self.names), "told": self.told}
                self.found.append(LogRun(collective=collective, size=size, time=time, in_place=in_place, **among))
            self.test = ""
        self.hosts, self.names, self.columns, self.rows, self.broken = {}, {}, (), [], False
        self.reduces, self.ratios, self.bad, self.devices, self.told = {}, [], 0, 0, ()

    def _is(self, collective: str, ranks: int) -> bool:
        """Whether the rows can be of a collective among so many ranks; told where they cannot."""
        expected = float(ring_volume(collective, ranks))
        ratio = float(np.median(self.ratios)) if self.ratios else expected
        if collective != "sendrecv" and (collective in REDUCING) is not next(iter(self.reduces), collective in REDUCING):  # prints sum
            named = "no operation (redop)" if collective in REDUCING else "an operation (redop)"
            self.wrong(self.begins, f"its rows name {named}, so that it is no {collective}; correct --op or the file's name")
        elif abs(ratio / expected - 1.0) > CLOSE:
            self.wrong(
                self.begins,
                f"its busbw is {ratio:.3g} times its algbw, and that of {collective} among {ranks} ranks {expected:.3g} times; "
                "correct --op, --ranks or the file's name",
            )
        else:
            return True
        return False

    def _collective(self) -> str | None:
        """The collective of a test: as the log says, as the user says, or by the name of the file."""
        said = _plain(self.test).removesuffix("perf")
        if said in OTHERS:
            self.skipped[f"crossflow has no collective '{said}'"] += len(self.rows)
            return None
        found, given = TESTS.get(said), self.options.collective
        if found and given and found != given:
            self.wrong(self.begins, f"the log is of {found}, not of {given}; leave out --op")
        named = next((one for word, one in TESTS.items() if word in _plain(self.path.name)), None)
        if given and named and not found and given != named:
            self.wrong(self.begins, f"the file's name says {named}, --op says {given}; leave out --op or rename the file")
        if not (found or given or named):
            self.wrong(
                self.begins,
                "which collective it is stands neither in the log nor in the file's name (all_reduce_perf.log); "
                f"say so with --op, one of {', '.join(TESTS.values())}",
            )
        return found or given or named

    def _ranks(self) -> tuple[int, int] | None:
        """Ranks of a test, and ranks of one node: by the hosts of its ranks, else as the user says, else those of one process."""
        given = self.options
        if self.hosts:
            counts = Counter(self.hosts.values())
            ranks = len(self.hosts), max(counts.values())
            if missing := [rank for rank in range(max(self.hosts)) if rank not in self.hosts]:
                self.wrong(self.begins, f"its list of ranks leaves out {', '.join(map(str, missing[:4]))}{' ...' * (len(missing) > 4)}")
            elif len(set(counts.values())) > 1:
                spread = ", ".join(f"{count} on {host}" for host, count in counts.items())
                self.wrong(self.begins, f"its ranks are spread unevenly over the hosts: {spread}; every node needs as many")
            elif given.ranks is not None and (given.ranks, given.nodes or 1) != (ranks[0], len(counts)):
                self.wrong(
                    self.begins,
                    f"the log lists {ranks[0]} ranks on {len(counts)} hosts, not {given.ranks} on {given.nodes or 1}; leave out --ranks",
                )
        elif given.ranks is not None:
            ranks = given.ranks, given.ranks // (given.nodes or 1)
        else:
            ranks = self.devices, self.devices
        if ranks[0] < 2:
            self.wrong(
                self.begins,
                "how many ranks took part does not stand in the log (# Rank  0 ... on host device ...); say so with --ranks and --nodes",
            )
            return None
        return ranks


def _plain(name: str) -> str:
    """A name without what separates its words.

    >>> _plain("All-Reduce_perf")
    'allreduceperf'
    """
    return re.sub(r"[-_ ]", "", name.lower())
