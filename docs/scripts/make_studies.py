"""Run the shipped studies and write docs/studies.md: of each its pictures, its table and a paragraph.

``python docs/scripts/make_studies.py --out DIR [--jobs N] [NAME ...]`` runs the studies named (all where none is), each into
its folder of DIR, going on from points that an earlier call left there, and rewrites their sections of the page; those of the
others stay as they are. The whole takes some thirty minutes on one core.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from make_docs import DOCS, FIGURES, GENERATED, ROOT, markdown

from crossflow import files
from crossflow.study.run import StudyResult, run_study

PROSE = Path(__file__).parent / "studies.yaml"
PAGE = DOCS / "studies.md"


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the studies' results")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes to use")
    parser.add_argument("names", nargs="*", metavar="NAME", help="studies whose sections to write; all where absent")
    arguments = parser.parse_args()
    prose: dict[str, Any] = yaml.safe_load(PROSE.read_text(encoding="utf-8"))
    present, sections = written(PAGE.read_text(encoding="utf-8")), []
    for name, words in prose["studies"].items():
        if arguments.names and name not in arguments.names:
            sections.append(present[words["heading"]])
            continue
        sys.stderr.write(f"{name}\n")
        result = run_study(files.find("studies", name), out=arguments.out / name, jobs=arguments.jobs, resume=True)
        sections.append("".join(section(result, words)))
    PAGE.write_text(f"{GENERATED}\n# Studies\n\n{prose['intro']}\n\n" + "\n".join(sections), encoding="utf-8")
    return 0


def written(page: str) -> dict[str, str]:
    """Sections of a page by their headings."""
    parts = page.split("\n## ")[1:]
    return {part.split("\n", 1)[0]: f"## {part.rstrip()}\n" for part in parts}


def section(result: StudyResult, words: dict[str, Any]) -> Iterator[str]:
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
    yield f"\n{words['findings'].strip()}\n"


def _numeric(rows: list[list[str]], column: int) -> bool:
    return all(row[column][:1].isdigit() or row[column] in ("", "-") for row in rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
