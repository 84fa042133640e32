"""Build the site strictly, and check it: ``python docs/scripts/build_site.py [--out DIR]`` (extra ``docs``; no network).

It fails where MkDocs warns, where a link or an anchor leads nowhere, where a sentence is too long on a page that is read
through, and where a built page would ask another machine for a script, a style, a font or a picture.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pages

# Attributes whose addresses a browser asks for by itself; those of <a href> wait for a click.
ASKED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "link": ("href",),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "form": ("action",),
}


def main() -> int:
    """Build and check; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "build" / "site", metavar="DIR", help="folder of the site")
    out = parser.parse_args().out.resolve()
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(out)]  # --quiet would hide warnings
    built = subprocess.run(words, cwd=pages.ROOT, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, stderr=subprocess.PIPE)
    if built.returncode:
        sys.stderr.write(built.stderr.decode())
        return 1
    write_schemas(out / "schemas")
    broken = [*foreign_requests(out), *missing_files(out)]
    sys.stderr.write("".join(f"{complaint}\n" for complaint in broken))
    return 1 if pages.main() or broken else 0


def write_schemas(folder: Path) -> None:
    """Write the JSON schemas of files, for editors that take them by their address."""
    from crossflow.answers.study.schema import schema

    folder.mkdir(exist_ok=True)
    for kind in ("scenario", "study", "cluster"):
        (folder / f"{kind}.json").write_text(json.dumps(schema(kind)) + "\n", encoding="utf-8")


def foreign_requests(site: Path) -> Iterator[str]:
    """What files of a site would ask other machines for."""
    for page in sorted(site.rglob("*.html")):
        asked = _Asked()
        asked.feed(page.read_text(encoding="utf-8"))
        yield from (f"{page.relative_to(site)}: asks for {address}" for address in asked.addresses)
    for style in sorted(site.rglob("*.css")):
        for address in re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)}: asks for {address}"


def missing_files(site: Path) -> Iterator[str]:
    """Links and pictures of built pages that lead to no file of the site; MkDocs does not look at those in HTML tags."""
    for page in sorted(site.rglob("*.html")):
        asked = _Asked()
        asked.feed(page.read_text(encoding="utf-8"))
        for target in sorted(asked.local):
            if page.name != "404.html" and not (page.parent / unquote(target)).exists():
                yield f"{page.relative_to(site)}: no such file: {target}"


class _Asked(HTMLParser):
    """Collects the foreign addresses that a page asks for when it is opened, and the files of the site that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.local: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of one tag."""
        given = dict(attrs)
        named = (re.split("[?#]", given.get(name) or "")[0] for name in ("href", "src"))
        self.local |= {target for target in named if target and not re.match(r"[a-z][a-z+.-]*:|//", target)}
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):  # for search engines and the keyboard
            return
        for name in ASKED.get(tag, ()):
            self.addresses += [address for address in (given.get(name) or "").split() if re.match(r"(?:https?:)?//", address)]


if __name__ == "__main__":
    sys.exit(main())
