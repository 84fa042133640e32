"""The pages of the documentation as text: their links, anchors and sentences. No network, and no other package, is needed.

``python docs/scripts/pages.py`` checks that every relative link and anchor leads somewhere, and that no sentence is too long.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
MOST_WORDS = 40  # of a sentence, on pages that are read from the first line to the last
READ_THROUGH = (
    "README.md",
    *(f"docs/{name}.md" for name in ("index", "tutorial", "guide")),
    *sorted(f"docs/how-to/{page.name}" for page in (DOCS / "how-to").glob("*.md")),
)

_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+(?:\([^()\s]*\)[^()\s]*)*)(?: \"[^\"]*\")?\)")
_TAG = re.compile(r"<(?:a|img)\b[^>]*\b(?:href|src)=\"([^\"]+)\"")
_HEADING = re.compile(r"^(#{1,6}) +(.*?) *#*$", re.MULTILINE)
_NAMED = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
# A path of the documentation, as messages, comments and inline code write it.
_PATH = re.compile(r"(?<![\w/.-])(docs/[\w./-]+\.(?:md|py|yaml|ipynb|csv|png|svg))(?:#([\w-]+))?")
_ENDS = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bSec\.)(?<!\bFig\.)(?<!\bEq\.)(?<!\bal\.)[\")\]*_]*\s+(?=[\"(\[]*(?:[A-Z0-9`*_\x00]|crossflow))"
)


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = [*broken_links(), *broken_paths()]
    for name in READ_THROUGH:
        page = ROOT / name
        found += [f"{name}:{line}: a sentence of {words(text)} words: {text}" for line, text in long_sentences(page.read_text("utf-8"))]
    sys.stderr.write("".join(f"{complaint}\n" for complaint in found))
    return 1 if found else 0


def all_pages() -> list[Path]:
    """Every page of the repository that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "scripts")]


# -------------------------------------------------------------------------------------------- links


def links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of each link and picture of a page; code and comments have none."""
    bare = _blank(_blank(_blank(text, _FENCE), _COMMENT), _CODE)
    for pattern, group in ((_LINK, "target"), (_TAG, 1)):
        for found in pattern.finditer(bare):
            yield bare.count("\n", 0, found.start()) + 1, html.unescape(found[group])
            if pattern is _LINK:  # a picture may be the text of a link
                first = bare.count("\n", 0, found.start()) + 1
                yield from ((first, inner) for _, inner in links(found["text"]))


def anchors(text: str) -> frozenset[str]:
    """Names that a link to the page may end in: of headings, as GitHub makes them, and of tags.

    >>> sorted(anchors('## What fits? `a_b`, and why' + chr(10) + '<a id="x"></a>' + chr(10) + '## Again' + chr(10) + '## Again'))
    ['again', 'again-1', 'what-fits-a_b-and-why', 'x']
    """
    bare = _blank(text, _FENCE)
    found: dict[str, int] = {}
    for _, heading in _HEADING.findall(bare):
        name = slug(heading)
        found[name] = found.get(name, -1) + 1
    repeated = {f"{name}-{i}" for name, last in found.items() for i in range(1, last + 1)}
    return frozenset({*found, *repeated, *_NAMED.findall(bare)})


def slug(heading: str) -> str:
    """The anchor of a heading."""
    plain = _LINK.sub(lambda found: found["text"], heading)
    return re.sub(r"[^\w\- ]", "", html.unescape(plain).strip().lower()).replace(" ", "-")


def broken_links(pages: Sequence[Path] | None = None) -> Iterator[str]:
    """Relative links of pages that lead to no file of the repository, or to no anchor of a page."""
    for page in all_pages() if pages is None else pages:
        for line, target in links(page.read_text(encoding="utf-8")):
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue
            path, _, anchor = target.partition("#")
            aim = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}"
            if not aim.exists():
                yield f"{where}: no such file: {target}"
            elif anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text(encoding="utf-8")):
                yield f"{where}: no such anchor: {target}"


def broken_paths() -> Iterator[str]:
    """Paths of the documentation that messages, comments and inline code name, where there is no such file or anchor."""
    code = [path for folder in ("crossflow", "studies", "templates", "techlibs") for path in sorted((ROOT / folder).rglob("*"))]
    for file in (*(path for path in code if path.suffix in (".py", ".yaml")), ROOT / "pyproject.toml", ROOT / ".ci" / "run", *all_pages()):
        if file.name == "CHANGELOG.md":  # which names files of older versions
            continue
        text = file.read_text(encoding="utf-8")
        for found in _PATH.finditer(text):
            aim = ROOT / found[1]
            where = f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            if not aim.exists():
                yield f"{where}: no such file: {found[1]}"
            elif found[2] and found[2] not in anchors(aim.read_text(encoding="utf-8")):
                yield f"{where}: no such anchor: {found[0]}"


def _blank(text: str, pattern: re.Pattern[str]) -> str:
    """The text with what a pattern finds replaced by as many lines."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n"), text)


# -------------------------------------------------------------------------------------------- sentences


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """First line and words of each sentence: of paragraphs, and of items of lists. Headings, tables and code are left out.

    Code within a line and the text of a link stay; a code span counts as one word.

    >>> [sentence for _, sentence in sentences("One `a b c` here. See [two words](x.md), etc." + chr(10) + "- Third")]
    ['One `a b c` here.', 'See two words, etc.', 'Third']
    """
    bare = _blank(_blank(text, _FENCE), _COMMENT)
    spans: list[str] = []

    def held(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\x00{len(spans) - 1}\x00" + "\n" * found[0].count("\n")

    bare = _CODE.sub(held, bare)  # so that no sentence ends within code
    bare = _LINK.sub(lambda found: "" if found[0][0] == "!" else found["text"], bare)
    bare = re.sub(r"<[^>\n]+>", "", bare)
    for first, paragraph in _paragraphs(bare):
        line = first
        for sentence in _ENDS.split(paragraph):
            whole = re.sub("\x00(\\d+)\x00", lambda found: spans[int(found[1])], sentence)
            yield line, " ".join(whole.split())
            line += sentence.count("\n")


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each block between empty lines, items of lists, headings and rows of tables."""
    block: list[str] = []
    start = 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        item = re.match(r"(?:[-*+]|\d+\.) +", bare)
        apart = not bare or bare.startswith(("#", "|", ">", "---", ":::", "=== ", "!!! "))
        if (apart or item) and block:
            yield start, "\n".join(block)
            block = []
        if not apart:
            start = start if block else number
            block.append(bare[item.end() :] if item else bare)


def words(sentence: str) -> int:
    """How many words a sentence has; a span of code is one, marks alone are none.

    >>> words("It takes `a b c` twice - no more.")
    6
    """
    return sum(any(letter.isalnum() for letter in word) for word in _CODE.sub("code", sentence).split())


def long_sentences(text: str, most: int = MOST_WORDS) -> Iterator[tuple[int, str]]:
    """Sentences of more words than people read with ease."""
    yield from ((line, sentence) for line, sentence in sentences(text) if words(sentence) > most)


if __name__ == "__main__":
    sys.exit(main())
