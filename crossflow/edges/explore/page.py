"""Pages and their parts: the assets in the package, the data that a page begins with, and a page as one file that needs no server."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from crossflow.base.drawing import palette
from crossflow.base.units import PREFIXES, SCALES
from crossflow.edges.explore.server import App, encoded

KINDS = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
    "LICENSE": "text/plain; charset=utf-8",
}  # fmt: skip
START = "<!-- start -->"  # where the data that a page begins with are put
TITLE = "<!-- title -->"
CHARSET = '<meta charset="utf-8">\n'  # behind which the policy of a page as a file stands
_SHEET = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPT = re.compile(r'<script src="([^"]+)"></script>')
_MODULE = re.compile(r'<script type="module" src="([^"]+)"></script>')
NOWHERE = ("base-uri", "form-action")
_INLINE = re.compile(r"<(script|style)(?: type=\"module\")?>(.*?)</\1>", re.DOTALL)
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


@functools.cache
def assets() -> Mapping[str, tuple[str, bytes]]:
    """Kind and content of every asset by name, such as ``vendor/uPlot.min.css``."""
    return dict(_assets(resources.files("crossflow.edges.explore") / "assets", ""))


def _assets(folder: Any, prefix: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: str(entry.name)):
        ending = entry.name.rpartition(".")[2]
        if entry.is_dir():
            yield from _assets(entry, f"{prefix}{entry.name}/")
        elif ending in KINDS:
            yield f"{prefix}{entry.name}", (KINDS[ending], entry.read_bytes())


def common(app: App) -> dict[str, Any]:
    """What every page begins with: the title, the version, colours of resources and of series, and how numbers are written."""
    from crossflow import __version__

    looks = {name: look.colour for name, look in palette.RESOURCES.items()}
    return {
        "title": app.title, "version": __version__, "colours": looks, "same": dict(palette.SAME), "series": list(palette.COLOURS),
        "units": SCALES, "prefixes": PREFIXES, "offline": False,
    }  # fmt: skip


def with_start(app: App, text: str, start: Mapping[str, Any]) -> str:
    """A page with its title, and with the data that it begins with as a block of JSON, which no browser runs."""
    data = encoded(start).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    block = f'<script type="application/json" id="start">{data}</script>'
    return text.replace(TITLE, html.escape(app.title)).replace(START, block)


def exported(app: App, answers: Mapping[str, Any] | None = None) -> str:
    """The page of an app as one file that works from a disk: styles, scripts and data are in it.

    The page finds ``offline: true`` in what it begins with, and as ``answers`` what `App.offline` gives, where they are not given here.
    """
    held = {name: content.decode() for name, (_, content) in assets().items()}
    start = {**common(app), **app.start(), "offline": True, "answers": dict(app.offline() if answers is None else answers)}
    text = _SHEET.sub(lambda found: f"<style>\n{held[found[1]]}</style>", held[app.page])
    text = _SCRIPT.sub(lambda found: f"<script>{_inside(held[found[1]])}</script>", text)
    text = _MODULE.sub(lambda found: f'<script type="module">\n{_inside(bundle(held, found[1]))}</script>', text)
    return with_start(app, with_policy(text), start)


def with_policy(text: str, attributes: str = "'none'") -> str:
    """A page as a file that may run the scripts and use the styles that it holds now, by their digests, and load nothing from anywhere.

    What stands in it later, as the data that it begins with, can add neither. [1]_

    attributes : where styles of single elements may come from.

    References
    ----------
    .. [1] W3C: Content Security Policy Level 3, Sec. 2.3.1 (hash-source) and Sec. 3.3 (the meta element).
    """
    found: dict[str, list[str]] = {"script": [], "style": []}
    for inline in _INLINE.finditer(text):
        found[inline[1]].append(f"'sha256-{base64.b64encode(hashlib.sha256(inline[2].encode()).digest()).decode()}'")
    parts = {f"{kind}-src": " ".join(dict.fromkeys(digests)) or "'none'" for kind, digests in found.items()}
    parts = {"default-src": "'none'", **parts, "style-src-attr": attributes, "img-src": "data:"} | dict.fromkeys(NOWHERE, "'none'")
    policy = "; ".join(f"{name} {value}" for name, value in parts.items())
    return text.replace(CHARSET, f'{CHARSET}<meta http-equiv="Content-Security-Policy" content="{policy}">\n', 1)


def _inside(script: str) -> str:
    """A script that does not end the element that it stands in."""
    return script.replace("</script", "<\\/script")


def bundle(held: Mapping[str, str], entry: str) -> str:
    """An ES module and all that it imports as one script.

    Modules name what they import one line each, ``import { a, b } from "./kit.js";``, and export functions, constants and classes where
    they stand. Each becomes a function that returns what it exports.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        for found in _IMPORT.finditer(held[name]):
            visit(found[2])
        if name not in order:
            order.append(name)

    visit(entry)
    places = {name: f"module{i}" for i, name in enumerate(order)}
    return "\n".join(_function(held[name], places[name], places) for name in order)


def _function(text: str, place: str, places: Mapping[str, str]) -> str:
    exported = ", ".join(name for _, name in _EXPORT.findall(text))
    body = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {places[found[2]]};\n", text)
    body = _EXPORT.sub(lambda found: found[1], body)
    return f"const {place} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"
