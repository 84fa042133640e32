"""Run the shipped studies and write docs/studies.md: of each its pictures, its table and a paragraph.

``python docs/scripts/make_studies.py --out DIR [--jobs N] [NAME ...]`` runs the studies named (all where none is), each into
its folder of DIR, going on from points that an earlier call left there, and rewrites their sections of the page; those of the
others stay as they are. The whole takes some two hours on one core, most of them co-optimisation and packages. With ``--words`` nothing is run: the words of studies.yaml replace
those of the page, around tables and pictures as they are.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from make_docs import DOCS, FIGURES, GENERATED, ROOT, markdown
from pages import slug

from crossflow.answers.study.hinges import why_not
from crossflow.answers.study.run import StudyResult, run_study
from crossflow.base import files

PROSE = Path(__file__).parent / "studies.yaml"
PAGE = DOCS / "studies.md"


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the studies' results")
    parser.add_argument("--words", action="store_true", help="run nothing, and write the words anew")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to use")
    parser.add_argument("names", nargs="*", metavar="NAME", help="studies whose sections to write; all where absent")
    arguments = parser.parse_args()
    if not arguments.words and not arguments.out:
        parser.error("--out DIR or --words is needed")
    present, sections = written(PAGE.read_text(encoding="utf-8")), {}
    for name, words in studies().items():
        if arguments.words or (arguments.names and name not in arguments.names):
            sections[name] = reworded(present[name], words)
            continue
        sys.stderr.write(f"{name}\n")
        result = run_study(files.find("studies", name), out=arguments.out / name, jobs=arguments.jobs, resume=True)
        sections[name] = "".join(section(result, words))
    PAGE.write_text(page(sections), encoding="utf-8")
    return 0


@functools.cache
def prose() -> Mapping[str, Any]:
    """The words of the page."""
    return dict(yaml.safe_load(PROSE.read_text(encoding="utf-8")))


def studies() -> Mapping[str, Any]:
    """Heading, question and findings of each study, in the order of the page."""
    return dict(prose()["studies"])


def page(sections: Mapping[str, str]) -> str:
    """The page: what it is, a gallery of the first picture of each study, the sections."""
    return f"{GENERATED}\n# Studies\n\n{prose()['intro']}\n\n{gallery(sections)}\n" + "\n".join(sections.values())


def gallery(sections: Mapping[str, str]) -> str:
    """Rows of three pictures, each with the question that it answers and a link to its section."""
    cells = []
    for name, text in sections.items():
        heading, picture = studies()[name]["heading"], re.search(r"\(figures/([^)]+)\)", text)
        shown = f'<img src="figures/{picture[1]}" alt="" width="250"><br>' if picture else ""
        cells.append(f"{shown}[{heading}](#{slug(heading)})")
    cells += [""] * (-len(cells) % 3)
    return markdown(("", "", ""), [cells[i : i + 3] for i in range(0, len(cells), 3)])


def reworded(text: str, words: Mapping[str, Any]) -> str:
    """A section with the words of studies.yaml, around the command, pictures and table that it has."""
    first, last = text.index("`crossflow study "), text.rindex("\n|")
    end = text.index("\n", last + 1)
    return f"## {words['heading']}\n\n{words['question'].strip()}\n\n{text[first:end]}\n\n{words['findings'].strip()}\n"


def written(text: str) -> dict[str, str]:
    """Sections of a page by the study that each is about."""
    parts = (f"## {part.rstrip()}\n" for part in text.split("\n## ")[1:])
    return {found[1]: part for part in parts if (found := re.search(r"^`crossflow study ([\w-]+)`", part, re.MULTILINE))}


def section(result: StudyResult, words: Mapping[str, Any]) -> Iterator[str]:
    """One study: what it asks, its pictures, its table, what it says."""
    spec = result.study.spec
    yield f"## {words['heading']}\n\n{words['question'].strip()}\n\n"
    yield f"`crossflow study {spec.name}` ({result.summary}; [the file](../studies/{spec.name}.yaml))\n\n"
    for plot in spec.plots:
        picture = result.out / f"{plot.name}.png"
        shutil.copy(picture, FIGURES / picture.name)
        yield f"![{plot.title}](figures/{picture.name})\n\n"
    headers, rows = result.table()
    only = {headers.index(header): values for header, values in words.get("only", {}).items()}
    rows = [row for row in rows if all(row[i] in values for i, values in only.items())]
    keep = [i for i, header in enumerate(headers) if header not in words.get("without", ())]
    kept = [[row[i] for i in keep] for row in rows]
    yield markdown([headers[i] for i in keep], kept, right=[i for i in range(len(keep)) if _numeric(kept, i)])
    yield from hanging(result)
    yield f"\n{words['findings'].strip()}\n"


def hanging(result: StudyResult) -> Iterator[str]:
    """What the answer of a study of generated devices hangs on; nothing of studies without a winner."""
    if not why_not(result.study):
        found = result.hinges()
        yield f"\n{found.title}. {found.note}".rstrip(" .") + ":\n\n"
        yield markdown(*found.table())


def _numeric(rows: list[list[str]], column: int) -> bool:
    return all(row[column][:1].isdigit() or row[column] in ("", "-") for row in rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
