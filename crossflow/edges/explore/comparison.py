"""A comparison of systems as one page: a file that needs no server and no script."""

from __future__ import annotations

from collections.abc import Iterator

from crossflow.answers.planning.comparing import ComparedSystem, ComparedSystems
from crossflow.base.drawing.html import text
from crossflow.base.units import show
from crossflow.edges.explore.page import assets, with_policy

STYLE = """
main { max-width: 1100px; margin: 0 auto; padding: 16px; display: grid; gap: var(--gap); }
.big { font-size: 1.4rem; font-weight: 650; }
.scroll { overflow-x: auto; }
td.right, th.right { text-align: right; white-space: nowrap; }
tr.unfit td { color: var(--soft); }
.meter { height: 8px; background: var(--well); border-radius: 4px; overflow: hidden; min-width: 120px; }
.meter span { display: block; height: 100%; background: var(--accent); }
"""
LEFT = ("", "system", "trust")  # columns that stand flush left


def written(found: ComparedSystems) -> str:
    """The page as HTML."""
    from crossflow import __version__

    title = f"{found.model}, {found.task}: {', '.join(row.system for row in found)}"
    sheet = assets()["page.css"][1].decode()
    body = "".join((_head(found), _table(found), _plans(found), _notes(found)))
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{text(title)}</title>\n<style>\n{sheet}{STYLE}</style>\n</head>\n<body>\n"
        f'<header class="top"><h1>{text(title)}</h1><span class="soft">crossflow {text(__version__)}</span></header>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    )
    return with_policy(page, attributes="'unsafe-inline'")  # how wide a bar is


def _head(found: ComparedSystems) -> str:
    big, soft = text(found.verdict), f"ordered by {text(found.order)}"
    return f'<section class="card"><div class="big">{big}</div><div class="soft">{soft}</div></section>\n'


def _table(found: ComparedSystems) -> str:
    headers, lines = found.table()
    kept = [i for i in range(len(headers)) if i < len(LEFT) or any(line[i] != "-" for line in lines)]
    head = "".join(f'<th class="{_side(headers[i])}">{text(headers[i])}</th>' for i in kept)
    values = [row.figure(found.ordered_by) for row in found if row.feasible]
    rows = ""
    for row, line in zip(found, lines, strict=True):
        cells = "".join(f'<td class="{_side(headers[i])}">{text(line[i])}</td>' for i in kept)
        share = row.figure(found.ordered_by) / max(values) if row.feasible else 0.0
        meter = f'<td><div class="meter"><span style="width: {100 * share:.1f}%"></span></div></td>'
        rows += f'<tr class="{"" if row.feasible else "unfit"}">{cells}{meter}</tr>\n'
    aside = " <small>= cannot be told from the first</small>" if any(line[0].startswith("=") for line in lines) else ""
    table = f"<table><thead><tr>{head}<th>{text(found.order)}</th></tr></thead><tbody>\n{rows}</tbody></table>"
    return f'<section class="card"><h2>Systems{aside}</h2><div class="scroll">{table}</div></section>\n'


def _side(header: str) -> str:
    return "" if header in LEFT else "right"


def _plans(found: ComparedSystems) -> str:
    return "".join(_plan(row) for row in found)


def _plan(row: ComparedSystem) -> str:
    if row.prediction is None or not row.feasible:
        return f'<section class="card"><h2>{text(row.system)}</h2><div class="bad">cannot run: {text(row.reason)}</div></section>\n'
    memory = f"{show(row.figure('memory_bytes'), 'B')} of {show(row.figure('memory_capacity_bytes'), 'B')} per device"
    told = f"{memory}, MFU {100 * row.figure('mfu'):.1f} %, bound by {row.prediction.score.bound_by[0]}"
    trust = f"{row.prediction.trust.text}{f' ({row.prediction.trust.basis})' if row.prediction.trust.basis else ''}"
    return (
        f'<section class="card"><h2>{text(row.system)}</h2><div><code>{text(row.strategy)}</code></div>'
        f'<div>{text(told)}</div><div class="soft">{text(trust)}</div></section>\n'
    )


def _notes(found: ComparedSystems) -> str:
    def lines() -> Iterator[str]:
        yield from (f"<li>assumed: {text(sentence)}</li>" for sentence in found.assumptions)
        yield from (f"<li>{text(sentence)}</li>" for sentence in found.notes)

    told = "".join(lines())
    return f'<section class="card"><h2>How to read this</h2><ul class="soft">{told}</ul></section>\n' if told else ""
