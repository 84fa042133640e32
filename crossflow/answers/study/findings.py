"""What a finished study found: what plots see of it, its tables, its sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossflow.answers.bands import CHANGED, GENERATED, LEVELS, rounded, spread_of
from crossflow.answers.evaluation.likeness import likeness, trust, trusts
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.explanation.uncertainty import entry_of, importance, interval, probability_better
from crossflow.answers.points import division_notes, split, variant, varied
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import RANKED, larger_is_better, unit_of
from crossflow.answers.search.division import SPREAD
from crossflow.answers.search.goals import LOSS, REGRET
from crossflow.answers.search.portfolio import PortfolioProblem
from crossflow.answers.search.problem import ILLEGAL, SearchProblem
from crossflow.answers.study import records, searches, tables
from crossflow.answers.study.losses import OFF_DRAWS, OFF_MEMBERS, furthest, percent, told_of
from crossflow.answers.study.parquet import ParquetPoints
from crossflow.answers.study.planning import PlannedSearch
from crossflow.answers.study.plots.view import Convergence, Drawn, LossTable, View
from crossflow.answers.study.reading import Study
from crossflow.answers.study.redivision import LOOSE, LOOSELY, keeps_division, missed, sentence, unmoved
from crossflow.answers.study.spec import MONEY, StudyFile, money
from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.drawing.words import label
from crossflow.base.names import file_name
from crossflow.base.units import show, show_all
from crossflow.hardware.architecture.datasheet import OF_DATASHEETS, of_a_datasheet
from crossflow.hardware.architecture.template import DatasheetSystem

RATIOS = (REGRET, LOSS, OFF_MEMBERS, OFF_DRAWS)  # columns that are written in per cent
WORDS = ("search", "bound_by", "trust", "reason")  # columns of words
Blocks = tuple[list[str], Iterable[Mapping[str, Sequence[Any]]]]  # names of the columns that are shown, and columns of some rows each
BEST = "best"  # folder of the best designs of several searches
_LONG = re.compile(r"[+-]?\d{1,5}\.\d+")
TIED = 5  # points that are named which cannot be told from the fastest
SPOKEN = 3  # searches whose losses are told in sentences; those of all are in the table
TOLD = 3  # pairs of a node and a memory without a division that are named
TECHNOLOGY = "system.technology."
SYSTEMS = frozenset(("system", "system.template"))  # of which each has its own technology
DRAWN = "Intervals hold what the drawn numbers change, and not the errors of predictions, which the trust has."
COMPARED = 64  # swept points up to which every pair is compared


class StudyTable(NamedTuple):
    """The table of a study, row by row."""

    headers: list[str]
    total: int  # rows. [1]
    rows: Iterator[Sequence[str]]  # cells as text
    file: str  # where the same rows are in full


def view(study: Study, columns: Mapping[str, Any], results: Sequence[searches.SearchResult]) -> View:
    """What plots see of the study."""
    natural = {name: True for name in columns if larger_is_better(name)}
    convergence = tuple(
        Convergence(
            search=result.run.name,
            point=", ".join(label(value) for value in result.run.point.values()),
            evaluations=tuple(evaluations for evaluations, _, _ in result.convergence),
            best=tuple(best for _, best, _ in result.convergence),
            seconds=tuple(at for _, _, at in result.convergence if at is not None),
            total=result.best.evaluations,
        )
        for result in results
    )
    return View(
        columns=columns,
        values=study.values,
        searches=tuple(study.spec.searches),
        space=tuple(dict.fromkeys(path for run in study.runs for path in run.problem.space.paths)),
        # As is better, unless the objectives say otherwise.
        objectives={**natural, **{o.name: o.maximise for run in study.runs for o in run.problem.objectives}},
        units=_units(study),
        best=tuple({**result.run.point, "search": result.run.name, **result.best.row} for result in results if result.best.row is not None),
        convergence=convergence,
        drawn=tuple(_drawn(study, columns)) if study.sampling is not None else (),
        draws=0 if study.sampling is None else study.sampling.settings.samples,
        interval=0.0 if study.sampling is None else study.sampling.settings.interval,
        losses=tuple(
            LossTable(
                search=result.run.title,
                cases=tuple(case.name for case in result.losses.cases),
                draw=tuple(case.draw for case in result.losses.cases),
                loss=result.losses.loss,
            )
            for result in results
            if result.losses is not None
        ),
        caption=study.caption,
    )


def _units(study: Study) -> dict[str, str]:
    """SI unit of every searched path that has one."""
    paths = dict.fromkeys(path for run in study.runs for path in run.problem.space.paths)
    found = {path: varied(study.scenario, path) for path in paths}
    return {path: quantity.unit for path, quantity in found.items() if quantity is not None and quantity.unit != "1"}


def _drawn(study: Study, columns: Mapping[str, Any]) -> Iterator[Drawn]:
    """Intervals of every column at every swept point, and which number matters most."""
    layout, settings = study.grid, study.sampling.settings  # type: ignore[union-attr]
    numbers: dict[str, list[Any]] = {}
    for first, end in layout.parts():
        if end <= layout.draws:  # the first point's tasks, whose draws are those of every point
            for path, values in study.sampling.variables(first, end - first).items():  # type: ignore[union-attr]
                numbers.setdefault(path, []).append(values)
    drawn = {path: np.concatenate(parts) for path, parts in numbers.items()}
    for point in range(layout.points):
        used = _in_use(study, layout.point(point))
        here = {path: values for path, values in drawn.items() if path in used}
        rows = slice(point * layout.draws, (point + 1) * layout.draws)
        for name in study.sampling_columns:
            values = np.asarray(columns[name][rows], dtype=float)
            yield Drawn(
                point=layout.point(point),
                column=name,
                interval=interval(values, settings.interval),
                importance=importance(here, values),
                feasible=float(np.mean(columns["feasible"][rows].astype(bool))),
            )


def _in_use(study: Study, point: Mapping[str, Any]) -> set[str]:
    """What is drawn and counts at a swept point: numbers behind its technologies, and these technologies."""
    numbers = study.sampling.numbers  # type: ignore[union-attr]
    chosen = split(study.scenario, {path: [value] for path, value in study.grid.settings(point).items()}).choices
    settings = {path: choice.names[0] for path, choice in chosen.items()}
    there = {number.path for number in parameters(variant(study.scenario, settings))}
    return {name for number in numbers if number.path in there for name in (number.path, entry_of(number.path))}


def comparisons(study: Study, seen: View) -> list[dict[str, Any]]:
    """Probability that each swept point is better than each other in the columns shown, over the same draws.

    A design that is infeasible in a draw loses it; of two infeasible ones each wins half.
    """
    layout = study.grid
    if study.sampling is None or not 1 < layout.points <= COMPARED:
        return []
    infeasible = ~np.asarray(seen.columns["feasible"], dtype=bool)
    found = []
    for name in study.told:
        values = np.asarray(seen.columns[name], dtype=float) * (-1.0 if larger_is_better(name) else 1.0)
        values = np.where(infeasible | np.isnan(values), np.inf, values).reshape(layout.points, layout.draws)
        for a, b in ((a, b) for a in range(layout.points) for b in range(layout.points) if a != b):
            sides = {f"{side}.{path}": value for side, i in (("a", a), ("b", b)) for path, value in layout.point(i).items()}
            found.append({**sides, "column": name, "probability_a_better": probability_better(values[a], values[b])})
    return found


def contents(view: View, results: Sequence[searches.SearchResult], compared: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Files of a folder beside the points, by name: best designs, convergence, intervals, comparisons, importance."""
    texts: dict[str, str] = {}
    if results:
        texts["best.json"] = files.json_text([result.to_dict() for result in results])
        texts["convergence.csv"] = records.csv_text(searches.convergence_rows(results))
        names = _best_names([result.run for result in results])
        for name, result in zip(names, results, strict=True):
            texts[name] = searches.best_scenario(result.run.problem, result, (folder / name).parent)
            for own, problem in _of_members(result.run, name).items():
                texts[own] = searches.best_scenario(problem, result, (folder / own).parent)
        rows = [{"search": result.run.title, **row} for result in results if result.losses for row in searches.loss_rows(result.losses)]
        drawn = getattr(results[0].run.problem, "draws", {})
        texts |= {"losses.csv": records.csv_text(rows)} if rows else {}
        texts |= {"draws.csv": records.csv_text(_draw_rows(drawn))} if drawn else {}
    if view.drawn:
        texts["intervals.csv"] = records.csv_text(interval_rows(view))
        texts["importance.csv"] = records.csv_text(importance_rows(view))
    if compared:
        texts["comparisons.csv"] = records.csv_text(compared)
    return texts


def units(study: Study, columns: Iterable[str]) -> dict[str, str]:
    """Unit of every column of the points: SI, ``1`` for a number without one, ``text`` for words and for values as they are written."""
    options = {option.path: option.values for run in study.runs for option in run.problem.space.options}
    swept = {path for path, values in {**study.values, **options}.items() if any(not isinstance(value, int | float) for value in values)}
    found = {}
    for name in columns:
        _, bracket, unit = name.removesuffix("]").partition(" [")
        searched = _units(study).get(name) if bracket == "" and name not in swept else None
        found[name] = unit if bracket else "text" if name in (*swept, *WORDS) else searched or unit_of(name)
    return found


def names(study: Study) -> list[str]:
    """Names of all files beside the points that the study may write."""
    found = [tables.COLUMNS, *(f"{plot.name}.{ending}" for plot in study.spec.plots for ending in ("png", "svg"))]
    if study.sampling is not None:
        found += ["intervals.csv", "importance.csv", "comparisons.csv"]
    if not study.runs:
        return found
    best = _best_names(study.runs)
    found += ["best.json", "convergence.csv", "losses.csv", "draws.csv", *best]
    return found + [own for run, name in zip(study.runs, best, strict=True) for own in _of_members(run, name)]


def _draw_rows(draws: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of draws.csv: every number in every draw of a study with searches, in SI units."""
    count = len(next(iter(draws.values())))
    yield from ({"draw": f"draw {i + 1}", **{path: plain(values[i]) for path, values in draws.items()}} for i in range(count))


def _of_members(run: PlannedSearch, name: str) -> dict[str, SearchProblem]:
    """The file of a search's best design for each member of a portfolio, beside that of the scenario; the problem of each."""
    if not isinstance(run.problem, PortfolioProblem):
        return {}
    start = f"{BEST}/" if name == "best.yaml" else f"{name.removesuffix('.yaml')}-"
    members = [member for member in run.problem.members if member.name]
    names = _apart([f"{start}{file_name(member.name)}" for member in members], range(1, len(members) + 1))
    return {f"{name}.yaml": run.problem.of_member(member) for name, member in zip(names, members, strict=True)}


def _best_names(runs: Sequence[PlannedSearch]) -> list[str]:
    """The file of each search's best design."""
    if len(runs) == 1:
        return ["best.yaml"]
    names = _apart([f"{BEST}/{file_name(run.title)}" for run in runs], [run.number for run in runs])
    return [f"{name}.yaml" for name in names]


def _apart(names: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Names of files of which no two are one where letter case does not count: a number stands behind one that is taken."""
    found: dict[str, str] = {}
    for name, number in zip(names, numbers, strict=True):
        own = name if name.casefold() not in found else f"{name}-{number}"
        found[own.casefold()] = own
    return list(found.values())


def interval_rows(view: View) -> Iterator[dict[str, Any]]:
    """One row a swept point and column: median, mean and interval."""
    for drawn in view.drawn:
        told = {name: plain(value) for name, value in vars(drawn.interval).items()}
        yield {**drawn.point, "column": drawn.column, **told, "feasible": drawn.feasible}


def importance_rows(view: View) -> Iterator[dict[str, Any]]:
    """One row a swept point, column and uncertain number: its rank correlation, the strongest first."""
    for drawn in view.drawn:
        for path, value in sorted(drawn.importance.items(), key=lambda pair: -abs(pair[1])):
            yield {**drawn.point, "column": drawn.column, "parameter": path, "rank_correlation": value}


def listing(study: Study, view: View, results: Sequence[searches.SearchResult]) -> StudyTable:
    """Column headers and rows of text, as the study's `columns` ask."""
    names, blocks = _blocks(study, view, results)
    headers = study.spec.headers
    told = [name for name in names if name not in headers]
    table = records.PARQUET if isinstance(view.columns, ParquetPoints) else records.TABLE
    file = "best.json" if study.runs else table if study.sampling is None else "intervals.csv"
    return StudyTable(
        headers=[headers.get(name, header(name, told)) for name in names],
        total=len(study.grid) if file == table else sum(len(block[names[0]]) for block in _blocks(study, view, results)[1]),
        rows=(row for block in blocks for row in zip(*(_texts(study, name, block) for name in names), strict=True)),
        file=file,
    )


def notes(study: Study, view: View, results: Sequence[searches.SearchResult]) -> list[str]:
    """What the table's reader must know."""
    found = [sentence(study.scenario, searched=bool(study.runs))] if study.keeps_division else []
    searched = dict.fromkeys(option.path for run in study.runs for option in run.problem.space.options)
    found += _of_datasheets(study.scenario, (*study.paths, *searched))
    found += _undivided(study)
    drawn = study.sampling is not None and not results
    found += [f"trust: {trust(study.scenario).text}", DRAWN] if drawn else [_trusted_best(results) if results else _trusted(study, view)]
    found += [told for result in results[:SPOKEN] for told in told_of(result, several=len(results) > 1)]
    found += [missed(study.redivision.problem.constraints, view.columns)] if study.bounded and study.redivision is not None else []
    found += [unmoved(tables.numbers(view.columns[SPREAD]), study.spec.redivide.evaluations)] if study.spec.redivide is not None else []
    found = [text for text in found if text]
    return found + ([LOOSELY] if any(any(_loose(study, block)) for block in _blocks(study, view, results)[1]) else [])


def technology_notes(scenario: Scenario, values: Mapping[str, Any], study: str) -> list[str]:
    """What readers of points on other technologies must know, which a study of them says; `study` is where they can be divided anew."""
    if SYSTEMS & set(values):
        return []
    kept = [sentence(scenario, study=study)] if keeps_division(scenario, values, False) else []
    return [*kept, *_of_datasheets(scenario, tuple(values)), *_told(list(division_notes(scenario, values)))]


def _of_datasheets(scenario: Scenario, paths: Collection[str]) -> list[str]:
    """What another technology of a published device does not change."""
    if not isinstance(scenario.system, DatasheetSystem) or "system" in paths:
        return []
    return [of_a_datasheet(path, OF_DATASHEETS) for path in paths if path.startswith(TECHNOLOGY)]


def _undivided(study: Study) -> list[str]:
    """Nodes and memories of the study for which the template's table has no division, where nothing divides the budgets anew."""
    searched = {option.path: option.values for run in study.runs for option in run.problem.space.options}
    if study.redivision is not None or any(run.problem.space.shares for run in study.runs):
        return []
    return _told(list(division_notes(study.scenario, {**study.every, **searched})))


def _told(told: Sequence[str]) -> list[str]:
    """The first of some notes on divisions, and how many more there are."""
    left = len(told) - TOLD
    more = "One further pair of a node and a memory has" if left == 1 else f"{left:,} further pairs of a node and a memory have"
    return [*(f"{note[0].upper()}{note[1:]}." for note in told[:TOLD]), *([f"{more} none either."] if left > 0 else [])]


def _trusted_best(results: Sequence[searches.SearchResult]) -> str:
    """How far the best designs of searches can be trusted, and a service's tails beside them; nothing where none fits."""
    bests = [
        searches.designed(problem, result.best.row)
        for result in results
        if result.best.row is not None and result.best.row["violation"] == 0
        for problem in (*_of_members(result.run, BEST).values(),) or (result.run.problem,)
    ]
    from crossflow.answers.evaluation.post_training import whole_trust  # with iterations, which few studies need

    told = list(dict.fromkeys(whole_trust(best).text for best in bests))
    tails = list(dict.fromkeys(f"; tails {beside['tails'].text}" for best in bests if "tails" in (beside := trusts(best))))
    return f"trust of the best: {'; or '.join(told)}{''.join(tails)}" if told else ""


def _trusted(study: Study, view: View) -> str:
    """How far the points can be trusted, and which of them cannot be told from the fastest; nothing where their rows do not say."""
    found, least, most = Counter[Any](), np.inf, -np.inf
    for block in tables.in_blocks(view.columns, ("trust", "error_band.p90")):
        found.update(level for level in block.get("trust", ()) if level)
        edges = tables.numbers(block.get("error_band.p90", ()))
        edges = edges[np.isfinite(edges)]
        if edges.size:
            least, most = min(least, float(edges.min())), max(most, float(edges.max()))
    if not found:
        return ""
    if set(found) == {"unknown"}:
        return f"trust: {trust(study.scenario, farther=True).text}"
    counts = {level: found[level] for level in reversed(LEVELS) if level in found}
    told = (
        next(iter(counts))
        if len(counts) == 1
        else ", ".join(f"{count:,} {'point' if count == 1 else 'points'} {level}" for level, count in counts.items())
    )
    if np.isfinite(most):
        low, high = rounded(least), rounded(most)
        blind = likeness(study.scenario).seen in (GENERATED, CHANGED)
        runs = "figures of chips that were predicted blind" if blind else "9 of 10 similar measured runs"
        told += f"; {runs} were within {low if low == high else f'{low} to {high}'} %"
    return f"trust: {told}{'' if _goal(study) else _ties(study, view, found)}"


def _goal(study: Study) -> str:
    """The figure that a study is about where it names columns and no time among them: the first, if more of it is better; else ""."""
    names = study.spec.columns
    return names[0] if names and not set(names) & set(RANKED) and larger_is_better(names[0]) else ""


def ranked_in(study: Study, columns: Collection[str]) -> str:
    """The column that ranks a study's points; the step where it was not recorded."""
    return study.ranked if study.ranked in columns else "step_time_s"


class Fastest(NamedTuple):
    """The fastest point of a sweep: of those that fit, of all where none does."""

    rows: int  # points
    feasible: int  # those that fit
    place: int  # of the fastest; -1 where none has a time
    time: float  # [s]
    fits: bool


def fastest(study: Study, columns: Mapping[str, Any]) -> Fastest:
    """The fastest point, the first of those that are as fast, gone through a block at a time."""
    timing = ranked_in(study, columns)
    rows = feasible = 0
    best: dict[bool, tuple[float, int]] = {True: (np.inf, -1), False: (np.inf, -1)}
    for block in tables.in_blocks(columns, ("feasible", timing)):
        fits, times = np.asarray(block["feasible"], dtype=bool), tables.numbers(block[timing])
        for state in (True, False):
            timed = np.where((fits == state) & np.isfinite(times), times, np.inf)
            place = int(timed.argmin())
            if timed[place] < best[state][0]:
                best[state] = float(timed[place]), rows + place
        rows, feasible = rows + times.size, feasible + int(fits.sum())
    (time, place) = best[best[True][1] >= 0]
    return Fastest(rows, feasible, place, time, best[True][1] >= 0)


def _at(columns: Mapping[str, Any], names: Iterable[str], places: Sequence[int]) -> list[str]:
    """The values of some rows, each in words."""
    found, first, left, listed = [], 0, list(places), list(names)
    for block in tables.in_blocks(columns, (*listed, "feasible")):
        count = len(block["feasible"])
        while left and left[0] < first + count:
            row = left.pop(0) - first
            found.append(", ".join(_rounded(label(block[name][row])) for name in listed))
        if not left:
            break
        first += count
    return found


def _ties(study: Study, view: View, levels: Collection[str]) -> str:
    """The points that cannot be told from the fastest one of those that fit, where all do the same."""
    best = fastest(study, view.columns)
    if best.rows < 2 or not best.feasible or not best.fits:
        return ""
    reach = reach_of_ties(study.scenario, study.paths, levels)
    if reach is None:
        return ""
    named: list[int] = []
    count = first = 0
    timing = ranked_in(study, view.columns)
    for block in tables.in_blocks(view.columns, ("feasible", timing)):
        times, fits = tables.numbers(block[timing]), np.asarray(block["feasible"], dtype=bool)
        near = first + np.flatnonzero(fits & (times <= best.time * (1.0 + reach)))
        near = near[near != best.place]
        named += near[: TIED - len(named)].tolist()
        count, first = count + near.size, first + times.size
    if not count:
        return ""
    told = "; ".join(_at(view.columns, study.values, named))
    more = f" and {count - TIED:,} more" if count > TIED else ""
    return f"; less than {100 * reach:.0f} % slower than the fastest, and not to be told from it: {told}{more}"


def reach_of_ties(scenario: Scenario, paths: Collection[str], levels: Collection[Any]) -> float | None:
    """By how much more time a point must take than another one so that measured runs tell them apart; None where no runs tell. [1]

    Parameters
    ----------
    paths : in which the points differ; points that do not do the same are not compared.
    levels : how far the points can be trusted.
    """
    sections = {path.split(".")[0] for path in paths}
    if sections & {"workload", "software", "run"}:  # of one step its error is the same for all runs
        return None
    run = likeness(scenario)
    if "extrapolated" in levels and run.seen != GENERATED:
        run = replace(run, seen="none")
    found = spread_of(run, run, same=set(paths) <= {"strategy"})
    return None if found is None else found[0].order


def _loose(study: Study, block: Mapping[str, Sequence[Any]]) -> list[bool]:
    """Of which rows the ends of the search differ; nothing where nothing is divided."""
    return [bool((spread or 0.0) > LOOSE) for spread in block.get("spread" if study.runs else SPREAD, ())]


def _texts(study: Study, name: str, block: Mapping[str, Sequence[Any]]) -> Sequence[str]:
    """The cells of a column as text; the goal is marked where ends of the search for it differ."""
    goal = study.redivision.goal if study.redivision is not None else study.runs[0].problem.objectives[0].name if study.runs else ""
    texts = cells(name, block[name])
    return [f"{'~' * loose}{text}" for loose, text in zip(_loose(study, block), texts, strict=True)] if name == goal else texts


def cells(name: str, values: Sequence[Any]) -> list[str]:
    """Each value as `_cell` has it: numbers together, what recurs once."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        finite = np.isfinite(values)
        texts = show_all(np.where(finite, values, 0.0), unit_of(name))
        return texts if finite.all() else [text if known else _cell(name, None) for text, known in zip(texts, finite, strict=True)]
    known: dict[Any, str] = {}
    found = []
    for value in map(plain, values):
        key = (type(value), value if isinstance(value, Hashable) else repr(value))
        if key not in known:
            known[key] = _cell(name, value)
        found.append(known[key])
    return found


def header(name: str, names: Sequence[str]) -> str:
    """A path by its last part, or by as many as no other path ends with; figures of the whole run, which others are named like, as they
    are.
    """
    if name.startswith("run."):
        return name
    parts, names = name.split("."), [other for other in names if "." in other and not other.startswith("run.")]
    tails = (".".join(parts[i:]) for i in range(len(parts) - 1, 0, -1))
    return next((tail for tail in tails if not any(other != name and f".{other}".endswith(f".{tail}") for other in names)), name)


def _blocks(study: Study, view: View, results: Sequence[searches.SearchResult]) -> Blocks:
    if study.runs:
        return _search_rows(study, results)
    if study.sampling is not None:
        return _interval_rows(study, view)
    names = [*study.values, *_with_money(study.spec, study.shown, view.columns)]
    held = (*names, *(name for name in (SPREAD,) if study.redivision is not None))
    return names, tables.in_blocks(view.columns, held)


def _with_money(spec: StudyFile, shown: Sequence[str], columns: Mapping[str, Any]) -> list[str]:
    """Columns of a table, with the money of a token or sample behind the step time where the study has a price and names no columns."""
    there = [name for name in MONEY if name in columns]
    finite = {name for block in tables.in_blocks(columns, there) for name in there if np.isfinite(tables.numbers(block[name])).any()}
    known = [name for name in there if name in finite]
    priced = money(spec, known)
    place = shown.index("step_time_s") + 1 if "step_time_s" in shown else len(shown)
    return [*shown[:place], *priced, *shown[place:]]


def _search_rows(study: Study, results: Sequence[searches.SearchResult]) -> Blocks:
    """One row a search: its best design."""
    first = study.runs[0].problem
    options = tuple(dict.fromkeys(option.path for run in study.runs for option in run.problem.space.options))
    figures = (*(o.name for o in first.objectives), *study.spec.shown, "feasible", "bound_by", "evaluations")
    rows = []
    for result in results:
        told = {"search": result.run.name, "evaluations": result.best.evaluations, "spread": result.best.spread, **furthest(result)}
        row = {**result.run.point, **(result.best.row or {}), **told}
        rows.append(row)
    priced = {name: [row.get(name) for row in rows] for name in MONEY if any(name in row for row in rows)}
    off = [name for name in (OFF_MEMBERS, OFF_DRAWS) if any(name in row for row in rows)]
    names = list(dict.fromkeys((*study.values, "search", *options, *_with_money(study.spec, figures, priced), *off)))
    return names, [{name: [row.get(name) for row in rows] for name in (*names, "spread")}]


def _interval_rows(study: Study, view: View) -> Blocks:
    """One row a swept point and column: the interval, and the number that matters most."""
    names = [*study.values, "figure", "low", "median", "mean", "high", "feasible draws", "most important"]
    rows: list[Mapping[str, Any]] = []
    for drawn in view.drawn:
        if drawn.column in study.told:
            column = drawn.column
            written = {name: _cell(column, plain(value)) for name, value in vars(drawn.interval).items()}
            first = max(drawn.importance.items(), key=lambda pair: abs(pair[1]), default=("-", 0.0))
            most, whole = f"{first[0]} ({first[1]:+.2f})", f"{100 * drawn.feasible:.3g} %"
            rows.append({**drawn.point, "figure": column, **written, "feasible draws": whole, "most important": most})
    return names, [{name: [row.get(name) for row in rows] for name in names}]


def summary(study: Study, view: View, results: Sequence[searches.SearchResult]) -> str:
    """One sentence: how many points, how many fit, the best."""
    if results:
        return _search_summary(results)
    best = fastest(study, view.columns)
    text = f"{best.rows:,} {'point' if best.rows == 1 else 'points'}, {best.feasible:,} feasible"
    if goal := _goal(study):
        return f"{text}{_highest(study, view, goal)}"
    if best.place < 0:
        return text
    where = "".join(_at(view.columns, study.values, [best.place]))
    return f"{text}; fastest{'' if best.fits else ' (none fits)'}: {show(best.time, 's')}{f' at {where}' if where else ''}"


def _highest(study: Study, view: View, goal: str) -> str:
    """The point with the most of a figure, of those that fit; nothing where none of them has it."""
    values = [np.where(np.asarray(block["feasible"], dtype=bool), tables.numbers(block[goal]), -np.inf)
              for block in tables.in_blocks(view.columns, ("feasible", goal))]  # fmt: skip
    all_values = np.concatenate(values) if values else np.empty(0)
    if not np.isfinite(all_values).any():
        return ""
    place = int(np.nanargmax(np.where(np.isfinite(all_values), all_values, -np.inf)))
    where = "".join(_at(view.columns, study.values, [place]))
    return f"; highest {study.spec.headers.get(goal, goal)}: {_cell(goal, float(all_values[place]))}{f' at {where}' if where else ''}"


def _search_summary(results: Sequence[searches.SearchResult]) -> str:
    evaluations = sum(result.best.evaluations for result in results)
    text = f"{len(results):,} {'search' if len(results) == 1 else 'searches'}, {evaluations:,} designs"
    found = [result for result in results if result.best.row is not None]
    if not found:
        return text
    sign = found[0].run.problem.objectives[0].sign
    best = min(found, key=lambda result: (result.best.row["violation"], sign * result.best.improvements[-1][1]))  # type: ignore[index]
    name = best.run.problem.objectives[0].name
    row = best.best.row or {}
    if row["violation"] >= ILLEGAL:
        return f"{text}; none is possible: {row['reason']}"
    state = "" if row["violation"] == 0 else " (misses its constraints)"
    return f"{text}; best {name}{state}: {_cell(name, row[name])} by {best.run.title}"


def _cell(name: str, value: Any) -> str:
    if name in RATIOS and value is not None:
        return percent(value)
    unit = unit_of(name)
    if value is None:
        return "" if name == "reason" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit != "1" and isinstance(value, int | float):
        return show(float(value), unit)
    return _rounded(label(value))


def _rounded(text: str) -> str:
    """A quantity in words with its number to five digits; all other texts as they stand.

    >>> _rounded("97.9549248748 GB/s"), _rounded("12345678 B"), _rounded("N7")
    ('97.955 GB/s', '12345678 B', 'N7')
    """
    number, space, unit = text.partition(" ")
    return f"{float(number):.5g}{space}{unit}" if _LONG.fullmatch(number) and unit and " " not in unit else text
