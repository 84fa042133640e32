"""What pages are made of: one console, headings, tables and bars, plain text wherever stdout is no terminal."""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from crossflow.answers.bands import Trust
from crossflow.answers.scenario import Scenario
from crossflow.answers.score import Score
from crossflow.base.errors import CrossflowError
from crossflow.base.files import json_text
from crossflow.base.names import visible
from crossflow.edges.cli.log import quiet

UNPRICED = "no price is known; give one: --set 'system.operation.price=2 USD/hour' (per device)"
WIDTH = 100  # columns of a page that goes to no terminal, where COLUMNS does not say
UNBROKEN = 10_000  # columns of a table whose rows are lines, however long
GAP, MARGIN, NARROW = 2, 4, 24  # between columns of a table, beside it, and of the column that wraps in a table that is too wide
SHOWN = 200  # rows of a table on a terminal
LEFT_OUT = "left out, because the page is narrow: {}"
_TIED = "\ue000"  # a space at which no line breaks, while lines are laid out
_UNITS = r"%|USD|days|[KMGT]iB|[numkMGTP]?(?:s|B|B/s|flop/s|Hz|W|J|V|m|m2)|[GMk]?/s|[pf]J/\w+|[km]?g CO2e"
_NUMBERED = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?!\w))")
_APART = 3  # columns between pieces that flow
_BLOCK = 4096  # rows of a table that are laid out at once
_SPOOL = 1 << 25  # characters of a table that are held while its widths are found; more wait in a temporary file
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_FULL, _EMPTY = "█", "·"
_SHADES = ("█", "▓", "▒", "░", "▚", "▞", "◼", "◻")
_PLAIN_SHADES = ("#", "=", "+", "-", "%", "*", "o", "x")
_COLOURS = ("cyan", "blue", "magenta", "yellow", "green", "red", "white", "bright_black")


def emit_json(data: Any) -> None:
    """Write plain data as JSON."""
    sys.stdout.write(json_text(data))


def emit(*parts: RenderableType, unbroken: bool = False) -> None:
    """Write the parts of a page, below each other; `unbroken` rows may be longer than the page."""
    console = _console()
    if unbroken:
        console.width = UNBROKEN
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # Written here, not by rich, which would end the process itself when a pipe breaks.
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().lstrip("\n").split("\n")))


class PlainConsole(Console):
    """A console that writes out what names and values would do to the terminal, and breaks no line between a number and its unit."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Pieces of what is shown, each of them plain text in a style."""
        words = self.render_str(renderable) if isinstance(renderable, str) else renderable
        for piece in super().render(_kept_together(words) if isinstance(words, Text) else words, options):
            yield piece if piece.control or piece.text == "\n" else piece._replace(text=visible(piece.text, "\n").replace(_TIED, " "))


def _kept_together(words: Text) -> Text:
    """Words whose units stay on the line of their numbers."""
    tied = _NUMBERED.sub(_TIED, words.plain)
    if tied == words.plain:
        return words
    kept = words.copy()
    kept.plain = tied
    return kept


def _console() -> Console:
    terminal = sys.stdout.isatty()
    console = PlainConsole(force_terminal=terminal, force_jupyter=False, highlight=False, markup=False, emoji=False)
    asked = os.environ.get("COLUMNS", "")
    if not console.width or not (terminal or asked.isdecimal()):
        console.width = WIDTH
    return console


def columns() -> int:
    """Width of the page."""
    return _console().width


def fancy() -> bool:
    """Whether stdout takes block characters."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def check_apart(output: Path, sources: Iterable[Path]) -> None:
    """CrossflowError where a file would be written over one that is read."""
    if any(output.exists() and source.exists() and output.samefile(source) for source in sources):
        raise CrossflowError(f"{output} is read; write to another file")


def log(line: str, *, error: bool = False) -> None:
    """Write a line to the log; with `--quiet` only an error."""
    if error or not quiet():
        sys.stderr.write(visible(line) + "\n")


# ------------------------------------------------------------------------------------------ pieces


_TRUSTED = {"measured": "green", "interpolated": "green", "extrapolated": "yellow", "unknown": "yellow"}


def trusted(found: Trust) -> Text:
    """How far a number can be trusted, in a sentence, with what its band is drawn from."""
    level, _, rest = found.text.partition(":")
    basis = f" ({found.basis})" if found.basis else ""
    return Text.assemble((level, _TRUSTED[level]), (f":{rest}{basis}", "dim"))


def first_line(name: str, *words: str) -> Text:
    """What a page is about: its name, and what that is."""
    return Text.assemble((visible(name), "bold"), *map(visible, words))


def heading(title: str, *, aside: str = "") -> Text:
    """Title of a section, an empty line before it."""
    return Text.assemble("\n", (title, "bold"), ("  " + aside if aside else "", "dim"))


def indented(part: RenderableType, by: int = 2) -> RenderableType:
    """A part moved to the right."""
    return Padding(part, (0, 0, 0, by))


def grid(
    rows: Iterable[Sequence[RenderableType]],
    right: Sequence[int] = (),
    *,
    header: Sequence[str] = (),
    wraps: int | None = None,
) -> RenderableType:
    """Columns without rules: those in `right` flush right, the one in `wraps` broken where it is too long, names at their dots.

    Where a page is too narrow for a table with a header and a column that wraps, the last columns are left out, and named below.
    """
    rows = [[visible(part) if isinstance(part, str) else part for part in row] for row in rows]
    breadth = max((len(row) for row in rows), default=len(header))
    kept = breadth
    if wraps is not None:
        widths = [
            max([cell_len(header[i]) if i < len(header) else 0, *(_width(row[i]) for row in rows if i < len(row))]) for i in range(breadth)
        ]
        kept = _kept(widths, wraps, columns() - MARGIN) if header else breadth
        room = max(columns() - MARGIN - sum(width + GAP for i, width in enumerate(widths[:kept]) if i != wraps), NARROW)
        rows = [[_broken(part, room) if i == wraps else part for i, part in enumerate(row[:kept])] for row in rows]
    table = Table(box=None, show_header=bool(header), header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    for i in range(kept):
        justify = "right" if i in right or i - breadth in right else "left"
        title = header[i] if i < len(header) else ""
        table.add_column(title, justify=justify, no_wrap=i != wraps, overflow="fold" if i == wraps else "ellipsis")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return Group(table, *left_out(header[kept:], ""))


def _width(part: RenderableType) -> int:
    """Columns that a cell takes where nothing is broken."""
    text = part.plain if isinstance(part, Text) else part if isinstance(part, str) else ""
    return max(map(cell_len, text.split("\n")))


def _kept(widths: Sequence[int], wraps: int | None, room: int) -> int:
    """How many columns of a table fit, the first two at least; the one that wraps needs no more than `NARROW` of them."""
    needed = [min(width, NARROW) if i == wraps else width for i, width in enumerate(widths)]
    ends = itertools.accumulate(width + GAP for width in needed)
    return max(sum(end - GAP <= room for end in ends), min(len(widths), 2))


def _broken(part: RenderableType, room: int) -> RenderableType:
    """Names that are too long, alone or in a sentence, on several lines: they break before their dots, strategies between their words."""
    if isinstance(part, Text) and not part.spans:
        return Text(_broken_words(part.plain, room), part.style)
    return _broken_words(part, room) if isinstance(part, str) else part


def _broken_words(text: str, room: int) -> str:
    return re.sub(r"\S+", lambda word: _at_dots(word[0], room) if len(word[0]) > room else word[0], text)


def _at_dots(name: str, room: int) -> str:
    r"""Lines of a dotted name, or of one without dots that has hyphens.

    >>> print(_at_dots("system.budgets.area.on_chip.l1", 20))
    system.budgets.area
    .on_chip.l1
    >>> print(_at_dots("tp2-ep8-dp16-pp8-z1-sp-sel:norm+up+act", 34))
    tp2-ep8-dp16-pp8-z1-sp-sel:norm+up
    +act
    """
    pieces = r"\.?[^.]+|\." if "." in name else r"[-+]?[^-+]+|[-+]"
    lines = []
    for whole in name.split("\n"):
        line = ""
        for part in re.findall(pieces, whole):
            if line and len(line) + len(part) > room:
                lines.append(line)
                line = ""
            line += part
        lines.append(line)
    return "\n".join(lines)


@dataclass(frozen=True)
class Flow:
    """Pieces beside each other, as many on a line as it holds; a line ends between two of them."""

    parts: Sequence[Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines."""
        line = Text()
        for part in self.parts:
            if line.cell_len and line.cell_len + _APART + part.cell_len > options.max_width:
                yield line
                line = Text()
            line.append_text(Text(" " * _APART if line.cell_len else "")).append_text(part)
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest piece to all of them on one line."""
        sizes = [part.cell_len for part in self.parts]
        return Measurement(max(sizes, default=0), sum(sizes) + _APART * max(len(sizes) - 1, 0)).clamp(None, options.max_width)


def breadth(rows: Iterable[Sequence[RenderableType]], header: Sequence[str]) -> int:
    """Columns of the page that a table of such rows takes where nothing of it is cut."""
    widths = [max(map(_width, column)) for column in zip(header, *rows, strict=True)]
    return sum(widths) + GAP * (len(widths) - 1)


def section(title: str, rows: Iterable[Sequence[RenderableType]], right: Sequence[int] = (), *, aside: str = "", **given: Any) -> Group:
    """A heading with a grid below it; nothing where there are no rows."""
    listed = list(rows)
    return Group(heading(title, aside=aside), indented(grid(listed, right, **given))) if listed else Group()


def columns_of(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[RenderableType]:
    """A table as such, numbers flush right; on a terminal that is too narrow the last columns are left out, and named below."""
    numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(headers))]
    right = [i for i, is_numeric in enumerate(numeric) if is_numeric and rows]
    widths = [max(cell_len(visible(cell)) for cell in (title, *(row[i] for row in rows))) for i, title in enumerate(headers)]
    kept = _kept(widths, None, columns())
    shown = [[Text(visible(cell)) for cell in row[:kept]] for row in rows]
    table = grid(shown, right, header=[visible(name) for name in headers[:kept]])
    return [table, *left_out(headers[kept:], "\n")]


def left_out(titles: Sequence[str], before: str) -> list[Text]:
    """The line that names columns for which a page has no room; nothing where there are none, or none that has a title."""
    named = [title.strip() for title in titles if title.strip()]
    return [Text(before + LEFT_OUT.format(", ".join(named)), "dim")] if named else []


def write_rows(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table as `columns_of` has it, as plain lines of any length; the text of many rows waits on disk, column by column."""
    with tempfile.SpooledTemporaryFile(_SPOOL, "w+", encoding="utf-8", errors="surrogatepass", newline="\n") as blocks:
        _write_rows(list(map(visible, headers)), iter(rows), blocks)


def _write_rows(headers: list[str], rows: Iterator[Sequence[str]], blocks: IO[str]) -> None:
    """Write a table, whose widths are known when all rows have gone by: `blocks` keeps them, a line for a column of some rows."""
    widths, right = [cell_len(title) for title in headers], [True] * len(headers)
    while block := list(itertools.islice(rows, _BLOCK)):
        columns = list(map(_visible, zip(*block, strict=True)))
        widths = [max(width, *map(len if _simple(column) else cell_len, column)) for width, column in zip(widths, columns, strict=True)]
        right = [numeric and all(map(_is_number, column)) for numeric, column in zip(right, columns, strict=True)]
        blocks.writelines("\0".join(column) + "\n" for column in columns)
    sides = [numeric and blocks.tell() > 0 for numeric in right]
    blocks.seek(0)
    kept = iter(lambda: [line.removesuffix("\n").split("\0") for line in itertools.islice(blocks, len(headers))], [])
    for cells in itertools.chain([[[title] for title in headers]], kept):
        lines = zip(*map(_padded, cells, widths, sides), strict=True)
        sys.stdout.write("".join(["  ".join(line).rstrip() + "\n" for line in lines]))


def _simple(cells: Sequence[str]) -> bool:
    """Whether each letter takes one column, and is what it shows."""
    text = "".join(cells)
    return text.isascii() and text.isprintable()


def _visible(cells: Sequence[str]) -> Sequence[str]:
    return cells if _simple(cells) else list(map(visible, cells))


def _padded(cells: Sequence[str], width: int, right: bool) -> list[str]:
    if _simple(cells):
        return [cell.rjust(width) if right else cell.ljust(width) for cell in cells]
    spaces = [" " * (width - cell_len(cell)) for cell in cells]
    return [space + cell if right else cell + space for cell, space in zip(cells, spaces, strict=True)]


def _is_number(text: str) -> bool:
    return text.lstrip("~")[:1].isdigit() or text in ("", "-")


def pairs(rows: Mapping[str, RenderableType], style: str = "dim") -> RenderableType:
    """Names, dim, before what they name; long ones break before their dots, so that the page has room for the rest."""
    room = max(columns() - MARGIN - GAP - NARROW, NARROW)
    return grid([[Text(_broken_words(visible(name), room), style=style), value] for name, value in rows.items()], wraps=1)


def assumptions(sentences: Sequence[str]) -> RenderableType:
    """What was assumed where nobody said it, a line each; nothing where nothing was."""
    return indented(Group(*(Text(f"assumed: {sentence}", "dim") for sentence in sentences))) if sentences else Group()


def log_choices(scenario: Scenario, sentences: Sequence[str]) -> None:
    """Write to the log which strategy was chosen, and what else was assumed, where nobody said it."""
    if scenario.auto is not None:
        log(f"strategy {scenario.strategy_text}, {scenario.auto}")
    for sentence in sentences:
        log(f"assumed: {sentence}")


# ------------------------------------------------------------------------------------------ bars


def bar(share: float, width: int, style: str = "cyan", *, track: bool = False) -> Text:
    """A bar that fills `share` of its width, to an eighth of a column; on a dotted track where the rest has a meaning.

    >>> bar(0.5, 4, track=True).plain in ("██··", "##..")
    True
    """
    share = min(max(share, 0.0), 1.0)
    if fancy():
        eighths = max(round(share * width * 8), 1 if share > 0 else 0)
        filled = _FULL * (eighths // 8) + _EIGHTHS[eighths % 8]
    else:
        filled = "#" * max(round(share * width), 1 if share > 0 else 0)
    return Text.assemble((filled, style), _rest(width - len(filled), track))


def stacked(parts: Sequence[tuple[float, tuple[str, str]]], width: int, *, track: bool = False) -> Text:
    """A bar of parts, each a share of the width with its character and colour; what exceeds the width is cut."""
    text, start, total = Text(), 0, 0.0
    for part, (shade, style) in parts:
        total += max(part, 0.0)
        end = min(round(min(total, 1.0) * width), width)
        end = min(end + 1, width) if part > 1e-3 and end == start else end
        text.append(shade * (end - start), style)
        start = end
    return text.append(*_rest(width - start, track))


def shade_of(index: int) -> tuple[str, str]:
    """Character and colour of a part of a stacked bar."""
    shades = _SHADES if fancy() else _PLAIN_SHADES
    return shades[index % len(shades)], _COLOURS[index % len(_COLOURS)]


def _rest(width: int, track: bool) -> tuple[str, str]:
    dot = _EMPTY if fancy() else "."
    return (dot if track else " ") * max(width, 0), "bright_black"


# ------------------------------------------------------------------------------------------ numbers


def number(value: Any) -> float:
    """The figure at the first design point of an array."""
    import numpy as np

    return float(np.ravel(value)[0])


def count(value: float) -> str:
    """A plain number with thousands set apart.

    >>> count(337283.69), count(12.3456), count(776.0)
    ('337,284', '12.35', '776')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def money(score: Score, place: str = "system") -> RenderableType:
    """What a million tokens, or samples, cost at the price of the devices, and what those cost; how to give a price where none is known.

    place : of the devices of which none is known.
    """
    known = {name: number(value) for name, value in score.per_million().items() if name.startswith("usd_")}
    figures = [
        f"{dollars(known[name])} per million {what}" for what in ("tokens", "samples") if (name := f"usd_per_million_{what}") in known
    ]
    bought = number(score.cost)
    figures = figures[:1] + ([f"{dollars(bought)} to make all devices"] if bought == bought else [])
    return ", ".join(figures) if figures else Text(UNPRICED.replace("system", place), "dim")


def dollars(value: float) -> str:
    """An amount of money.

    >>> dollars(1234567.8), dollars(0.4567)
    ('1,234,568 USD', '0.457 USD')
    """
    return f"{value:,.0f} USD" if value >= 100 else f"{value:.3g} USD"


def percent_beside(share: float, target: float) -> str:
    """A share in percent, with as many digits as tell it from a target that it meets or misses.

    >>> percent_beside(0.9904, 0.99), percent_beside(0.98996, 0.99), percent_beside(0.99, 0.99)
    ('99.04 %', '98.996 %', '99.0 %')
    """
    if share == target:
        return percent(share)
    found = (f"{100 * share:.{digits}f}" for digits in range(1, 7))
    return next((text for text in found if float(text) != round(100 * target, 6)), f"{100 * share:.6f}") + " %"


def percent(share: float) -> str:
    """A share in percent.

    >>> percent(0.4053), percent(0.0)
    ('40.5 %', '0 %')
    """
    return "0 %" if share == 0 else f"{100 * share:.1f} %"
