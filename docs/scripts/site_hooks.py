"""What MkDocs does beside its own work: pages from outside ``docs``, the Python reference, notebooks as pages."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import pages

sys.path.insert(0, str(pages.ROOT))
import crossflow

# Pages of the repository that the site has too, and their places in it.
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
RAW = "repository"  # folder of the site for other files of the repository that pages lead to
REFERENCE = "<!-- public names -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages lead to outside of ``docs``, and a page for each notebook."""
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=_spaced((pages.ROOT / name).read_text(encoding="utf-8"))))
    for notebook in sorted((pages.DOCS / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=_page_of(notebook)))
    for path in sorted({path for page in pages.all_pages() for path in _outside(page)}):
        files.append(File.generated(config, f"{RAW}/{path}", abs_src_path=str(pages.ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links that leave ``docs`` to their places in the site, and write the Python reference."""
    place = page.file.src_uri
    source = next((name for name, to in OUTSIDE.items() if to == place), f"docs/{place}")

    def moved(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z][a-z+.-]*:|#", target):
            return found[0]
        path, mark, anchor = target.partition("#")
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (pages.ROOT / aim).is_dir():  # which the site has no page for
            return found["text"]
        return found[0].replace(f"({target}", f"({posixpath.relpath(_in_site(aim), posixpath.dirname(place) or '.')}{mark}{anchor}")

    text = pages._LINK.sub(moved, markdown)
    return text.replace(REFERENCE, _reference())


def _in_site(path: str) -> str:
    """The place in the site of a file, both from the root of the repository."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return path.removeprefix("docs/").removesuffix(".ipynb") + ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{RAW}/{path}"


def _outside(page: Path) -> set[str]:
    """Files of the repository that a page leads to and that are no pages of the site."""
    found = set()
    for _, target in pages.links(page.read_text(encoding="utf-8")):
        path = (page.parent / target.partition("#")[0]).resolve()
        if path.is_file() and path.is_relative_to(pages.ROOT) and not path.is_relative_to(pages.DOCS):
            found.add(path.relative_to(pages.ROOT).as_posix())
    return found - {*OUTSIDE, "README.md"} if page.is_relative_to(pages.DOCS) or page.name in OUTSIDE else set()


def _spaced(text: str) -> str:
    """A page with an empty line between a paragraph and a list: GitHub needs none, MkDocs does."""
    return re.sub(r"(?m)^(?![-\s#|])(.+)\n(?=- )", r"\1\n\n", text)


def _page_of(notebook: Path) -> str:
    """A notebook as a page: its words, its code, and the file to take along."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = ["".join(cell["source"]) if cell["cell_type"] == "markdown" else f"```python\n{''.join(cell['source'])}\n```" for cell in cells]
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f'{title}\n\n<p><a href="{notebook.name}" download>Download this notebook</a></p>\n{rest}\n'


def _reference() -> str:
    """Directives of mkdocstrings for every public name, from the table that the package itself imports them by."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name, module in crossflow._PUBLIC.items():
        if ":" in module:  # another name of a function that stands here by its own
            continue
        kind = "Functions" if name[0].islower() else "Errors" if name.endswith("Error") else "Classes"
        options = f"    options: {{heading: crossflow.{name}, toc_label: {name}, heading_level: 3}}\n"
        kinds[kind].append(f"::: crossflow.{module}.{name}\n{options}")
    return "\n".join(f"## {kind}\n\n" + "\n".join(blocks) for kind, blocks in kinds.items())
