"""Pieces of HTML that notebooks show: headings, tables, stacked bars. They take their colours from the page, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from crossflow.base.drawing.palette import colours_of
from crossflow.base.names import visible

WIDTH, HEIGHT = 640, 22  # of a stacked bar [px]
LEAST = 0.002  # share of a bar, below which a part is left out. [1]
MOST = 12  # rows of a table


def text(value: Any) -> str:
    """Text that a page shows as it is.

    >>> text("a < b")
    'a &lt; b'
    """
    return escape(visible(str(value), "\n"))


def short(value: Any, most: int = 80) -> str:
    """A value as text, cut where it is long."""
    written = str(value)
    return written if len(written) <= most else f"{written[: most - 4]} ..."


def heading(title: str, words: str = "") -> str:
    """A title, and words after it."""
    return f"<div><strong>{text(title)}</strong> {text(words)}</div>"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], most: int = 1000) -> str:
    """A table, numbers flush right, of `most` rows; nothing where there are none."""
    listed = [list(row) for row in rows]
    if not listed:
        return ""
    head = "".join(f"<th>{text(name)}</th>" for name in headers) if any(headers) else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed[:most])
    left = len(listed) - most
    more = f"<div>{left:,} more row{'s' if left > 1 else ''}</div>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    side = "left" if isinstance(value, str) else "right"
    return f'<td style="text-align: {side}">{text(value)}</td>'


def stacked_bar(parts: Mapping[str, float], written: Mapping[str, str], whole: float | None = None) -> str:
    """A bar of parts one after the other as SVG, with a legend; `written` is what the legend says of each.

    whole : what the full width stands for, the sum of the parts where absent.
    """
    total = max(sum(parts.values()), whole or 0.0)
    kept = {name: part / total for name, part in parts.items() if total > 0 and part / total >= LEAST}
    colours = dict(zip(kept, colours_of(list(kept)), strict=True))
    x, shapes = 0.0, ""
    for name, share in kept.items():
        label = text(f"{name.replace('_', ' ')}: {written[name]}")
        place = f'x="{x:.1f}" y="1" width="{share * WIDTH:.1f}" height="{HEIGHT - 2}"'
        shapes += f'<rect {place} fill="{colours[name]}"><title>{label}</title></rect>'
        x += share * WIDTH
    frame = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    bar = f'<svg {size} role="img" xmlns="http://www.w3.org/2000/svg">{shapes}{frame}</svg>'
    legend = " &nbsp; ".join(
        f'<span style="white-space: nowrap"><span style="color: {colours[name]}">&#9632;</span> '
        f"{text(name.replace('_', ' '))} {text(written[name])}</span>"
        for name in kept
    )
    return f'<div>{bar}<div style="max-width: {WIDTH}px">{legend}</div></div>'
