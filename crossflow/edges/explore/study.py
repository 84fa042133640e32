"""The page of a study's folder: its points as columns, what is known of them, and each of them as a design on demand."""

from __future__ import annotations

import csv
import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.answers.evaluation.post_training import whole_trust
from crossflow.answers.score import larger_is_better, unit_of
from crossflow.answers.study.findings import reach_of_ties
from crossflow.answers.study.records import held_in
from crossflow.base.arrays import Array
from crossflow.base.drawing.words import label
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.edges.explore import study_source
from crossflow.edges.explore.origin import Origin
from crossflow.edges.explore.server import App, ExploreServer
from crossflow.edges.explore.study_rows import PointColumn, PointRows, read_from, read_points, read_record, row_of, sent, size_of
from crossflow.edges.explore.study_shown import ShownRows, shown
from crossflow.edges.explore.study_source import StudySource, is_setting

INLINE = 2**24  # characters of columns that stand in the page itself; the others come when they are asked for
TABLES = ("intervals", "importance", "comparisons")  # what studies of uncertain numbers write beside their points
TABLE_BYTES = 2**21  # of such a file, the most that is shown
SLIDERS = 16  # designs that are open as sliders at once
_UNIT = re.compile(r" ?\[[^\]]*\]$")  # of a header, which the page writes itself
ABOUT = (
    "id",
    "run",
    "search",
    "evaluations",
    "feasible",
    "violation",
    "bound_by",
    "trust",
    "reason",
)  # columns that are neither setting nor figure


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyPage:
    """A study's folder as a page sees it."""

    folder: Path
    source: StudySource | None

    @property
    def points(self) -> Path:
        """The file of its points."""
        return self.folder / held_in(read_record(self.folder))

    def start(self) -> dict[str, Any]:
        """What the page begins with."""
        record = read_record(self.folder)
        found = self.found(record)
        part = self.part(found, record)
        columns, late = _shared(self.described(found, record), part.rows)
        return {
            "study": record["name"],
            "folder": str(self.folder),
            "caption": record.get("division") or "",
            "age": _age(record),
            "finished": record["finished"],
            "expected": record.get("points"),
            "rows": part.rows.rows,
            "all": found.rows,
            "weights": None if part.weights is None else sent(PointColumn(values=part.weights), len(part.weights)),
            "offset": found.end,
            "file": _identity(self.points),
            "columns": columns,
            "late": late,
            "objectives": self.objectives(found),
            "swept": self.swept(found, record),
            "searches": [_search(number, search) for number, search in enumerate(record.get("searches", ()))],
            "tables": {name: rows for name in TABLES if (rows := _table(self.folder / f"{name}.csv"))},
            "source": None if self.source is None else str(self.source.place),
            "tie": self.tie(found),
            "draws": self.draws(),
            "trust": self.trust(found),
        }

    def part(self, found: PointRows, record: Mapping[str, Any]) -> ShownRows:
        """What a page is sent of the rows: all while the study runs, for a page is then told of each new one."""
        if not record["finished"]:
            return ShownRows(rows=found)
        return shown(found, tuple((goal["name"], goal["larger"]) for goal in self.objectives(found)), tuple(self.swept(found, record)))

    def draws(self) -> int:
        """How many times uncertain numbers were drawn for each point, the same draws for all; 0 where none were."""
        spec = None if self.source is None else self.source.spec
        return 0 if spec is None or spec.uncertainty is None or spec.searches else spec.uncertainty.samples

    def tie(self, found: PointRows) -> float | None:
        """By how much more time a point must take than the best one to be told from it; None where nothing tells. [1]"""
        level = found.columns.get("trust")
        if self.source is None or level is None or level.levels is None:
            return None
        settings = [name for name, column in found.columns.items() if is_setting(name) and _varies(column.values)]
        return reach_of_ties(self.source.scenario, settings, level.levels)

    def trust(self, found: PointRows) -> str:
        """How far points without a band can be trusted, in a sentence."""
        if self.source is None:
            return ""
        own, column = whole_trust(self.source.scenario), found.columns.get("trust")
        levels = set() if column is None or column.levels is None else {str(column.levels[int(code)]) for code in np.unique(column.values)}
        return whole_trust(self.source.scenario, farther=True).text if levels == {"unknown"} else own.text

    def found(self, record: Mapping[str, Any]) -> PointRows:
        """All rows, read again only where the file has changed."""
        points = self.folder / held_in(record)
        stat = points.stat()
        return _kept(points, bool(record["finished"]), stat.st_ino, stat.st_mtime_ns, stat.st_size)

    def described(self, found: PointRows, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Every column's name, words, unit and role, those that matter most first."""
        spec = None if self.source is None else self.source.spec
        headers = {} if spec is None else spec.headers
        asked = ("step_time_s",) if spec is None else (*spec.objectives, *spec.shown, "step_time_s")
        swept = self.swept(found, record)

        def rank(name: str) -> int:
            places = (name in ABOUT, name in swept, name in asked, not is_setting(name) and "." not in name, is_setting(name))
            return next((i for i, there in enumerate(places) if there), len(places))

        coupled = {name for name in swept if not is_setting(name)}  # names of settings that change together
        return [
            self._described(name, found.columns[name], headers, shown=name in asked, coupled=name in coupled)
            for name in sorted(found.columns, key=rank)
        ]

    def _described(self, name: str, column: PointColumn, headers: Mapping[str, str], *, shown: bool, coupled: bool) -> dict[str, Any]:
        if coupled:
            words = headers.get(name, "") or study_source.in_words(name)
            return {"name": name, "words": words, "unit": "1", "role": "setting", "shown": shown, "larger": False}
        setting = is_setting(name)
        role = "about" if name in ABOUT else "setting" if setting else "figure"
        texts = tuple(level for level in column.levels if level is not None) if setting and column.levels is not None else None
        amounts = study_source.amounts(self.source, name, texts) if texts else None
        unit = study_source.unit_of_setting(self.source, name) if setting else unit_of(name)
        words = _UNIT.sub("", headers.get(name, "")) or study_source.in_words(name)
        told: dict[str, Any] = {"name": name, "words": words, "unit": unit, "role": role, "shown": shown}
        told["larger"] = not setting and larger_is_better(name)
        if amounts is not None and texts is not None:
            return {**told, "amounts": dict(zip(map(str, texts), amounts, strict=True))}
        spec = None if self.source is None else self.source.spec
        values = None if spec is None or texts is None else spec.sweep.get(name, spec.space.get(name))
        return {**told, "order": [words for words in map(label, values) if words in texts]} if isinstance(values, list) and texts else told

    def objectives(self, found: PointRows) -> list[dict[str, Any]]:
        """Columns that the study makes small or large; the step time where its file is not at hand."""
        spec = None if self.source is None else self.source.spec
        if spec is not None and isinstance(spec.objectives, Mapping):
            return [{"name": name, "larger": way == "maximise"} for name, way in spec.objectives.items() if name in found.columns]
        names: Sequence[str] = ("step_time_s",) if spec is None else tuple(spec.objectives)
        if spec is not None and spec.redivide is not None:
            names = (spec.redivide.goal,)
        first = next((name for name in found.columns if name not in ABOUT and not is_setting(name)), None)
        known = [name for name in names if name in found.columns] or ([first] if first is not None else [])
        return [{"name": name, "larger": larger_is_better(name)} for name in known]

    def swept(self, found: PointRows, record: Mapping[str, Any]) -> list[str]:
        """Paths whose values the study's file lists; where it is not at hand, those that searches record, or settings that are names."""
        spec = None if self.source is None else self.source.spec
        if spec is not None:
            return [path for path in spec.sweep if path in found.columns]
        if (searches := record.get("searches")) is not None:
            return [path for path in (searches[0].get("point", {}) if searches else {}) if path in found.columns]
        return [name for name, column in found.columns.items() if is_setting(name) and column.levels is not None]

    # -------------------------------------------------------------------------------------- what the page asks

    def late(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Columns that the page does not begin with: ``names``, and for how many ``rows``."""
        names, rows = asked.get("names"), asked.get("rows")
        record = read_record(self.folder)
        found = self.part(self.found(record), record).rows
        if not (isinstance(names, list) and isinstance(rows, int) and 0 < rows <= found.rows):
            raise CrossflowError("names and rows: expected a list of columns, and how many rows the page has")
        return {"columns": {name: sent(column, rows) for name, column in found.columns.items() if name in names}}

    def tail(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Rows that were written since ``offset`` to the ``file`` that the page knows, in the columns ``names``."""
        offset, names = asked.get("offset"), asked.get("names")
        if not (isinstance(offset, int) and offset >= 0 and isinstance(names, list)):
            raise CrossflowError("offset and names: expected where the page's rows end, and its columns")
        finished = bool(read_record(self.folder)["finished"])
        if _identity(self.points) != asked.get("file") or self.points.stat().st_size < offset:
            return {"again": True}
        if self.points.stat().st_size == offset:
            return {"rows": 0, "offset": offset, "finished": finished, "columns": {}}
        try:
            found = read_from(self.points, offset)
        except SpecError:  # rows were cut off and others written: a study was resumed
            return {"again": True}
        columns = {name: sent(column, found.rows) for name, column in found.columns.items() if name in names}
        return {"rows": found.rows, "offset": found.end, "finished": finished, "columns": columns}

    def design(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of the point ``id``: its row, and as far as the study's scenario is at hand its files and its step."""
        row = row_of(self.points, _number(asked))
        return {"row": row, **({} if self.source is None else study_source.told(self.source, row))}

    def sliders(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A call that gives the address at which the point ``id`` is open as sliders; each has a server of its own."""
        lock = threading.Lock()
        servers: dict[int, ExploreServer] = {}

        def opened(asked: Mapping[str, Any]) -> dict[str, Any]:
            from crossflow.edges.explore.scenario import scenario_app

            if self.source is None:
                raise CrossflowError(NO_SOURCE)
            number = _number(asked)
            with lock:
                if number not in servers:
                    scenario = study_source.design(self.source, row_of(self.points, number))
                    saved = f"{scenario.name}.yaml"  # which the page's button YAML gives
                    servers[number] = ExploreServer(scenario_app(scenario, Origin(words=(saved,), file=saved)))
                    threading.Thread(target=servers[number].serve_forever, daemon=True).start()
                while len(servers) > SLIDERS:
                    oldest = servers.pop(next(iter(servers)))
                    oldest.shutdown()
                    oldest.server_close()
                return {"url": servers[number].url}

        return opened


NO_SOURCE = "the study's file was not found; put it into the folder of its results, and load the page again"


def study_app(folder: Path) -> App:
    """The page of the folder that a study wrote, also of one that still runs or was interrupted.

    Raises
    ------
    CrossflowError
        Where the folder is no study, of another version, without points, or has a line that is none.
    """
    record = read_record(folder)
    page = StudyPage(folder=folder, source=study_source.find_source(folder, record))
    page.found(record)
    calls = {"columns": page.late, "tail": page.tail, "design": page.design, "sliders": page.sliders()}
    return App(title=str(record["name"]), page="study.html", start=page.start, calls=calls, offline=functools.partial(_offline, page))


def _offline(page: StudyPage) -> dict[str, Any]:
    """Columns that the page does not begin with, for a page that can ask nobody."""
    record = read_record(page.folder)
    whole = page.found(record)
    found = page.part(whole, record).rows
    _, late = _shared(page.described(whole, record), found)
    return {"columns": {told["name"]: sent(found.columns[told["name"]], found.rows) for told in late}}


def _age(record: Mapping[str, Any]) -> str:
    """That another version ran the study; nothing where this one did."""
    from crossflow import __version__

    by = record.get("version")
    return "" if by == __version__ else f"run by crossflow {by}, whose predictions may differ from those of {__version__} on this page"


@functools.lru_cache(maxsize=2)
def _kept(points: Path, finished: bool, inode: int, time: int, size: int) -> PointRows:
    """Rows of a file as it stood; what names the state of the file is only compared."""
    del inode, time, size
    return read_points(points, finished=finished)


def _identity(path: Path) -> str:
    """What stays the same of a file that is only appended to."""
    stat = path.stat()
    return f"{stat.st_dev}-{stat.st_ino}"


def _varies(values: Array) -> bool:
    """Whether not all values are the same, or missing."""
    return not bool(np.isnan(values).all()) and not bool((values == values[0]).all())


def _number(asked: Mapping[str, Any]) -> int:
    number = asked.get("id")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise CrossflowError("id: expected the number of a point")
    return number


def _shared(described: Sequence[Mapping[str, Any]], found: PointRows) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Columns with their data as far as a page begins with them, and those that come later; options, which take little, come first."""
    sending: dict[str, dict[str, Any]] = {}
    room = INLINE
    for told in sorted(described, key=lambda told: not (told["role"] == "setting" and found.columns[told["name"]].levels is not None)):
        data = sent(found.columns[told["name"]], found.rows)
        room -= size_of(data)
        if room >= 0 or not sending:
            sending[told["name"]] = data
        if room < 0:  # nothing after it finds room, and need not be put into words
            break
    columns = [{**told, **sending[told["name"]]} for told in described if told["name"] in sending]
    return columns, [dict(told) for told in described if told["name"] not in sending]


def _search(number: int, search: Mapping[str, Any]) -> dict[str, Any]:
    """A search of the record, with its name as a person reads it."""
    kept = {name: search[name] for name in ("searcher", "seed", "evaluations") if name in search}
    return {"run": number, "words": ", ".join([search["search"], *map(label, search.get("point", {}).values())]), **kept}


def _table(path: Path) -> list[dict[str, Any]]:
    """Rows of a small table beside the points; none where there is none."""
    if not path.is_file() or path.stat().st_size > TABLE_BYTES:
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(stream)]


def _value(text: str) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text or None
