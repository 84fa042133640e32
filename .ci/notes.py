"""The notes of a release: its section of the changelog. ``python .ci/notes.py 0.17.0``; without a version, that of pyproject.toml."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(version: str) -> str:
    """Text of the section of a version; KeyError where there is none, or where it is still called unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = {
        head.split(" ")[0]: body.strip() for head, _, body in (section.partition("\n") for section in sections) if "unreleased" not in head
    }
    return found[version] + "\n"


if __name__ == "__main__":
    current = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    asked = sys.argv[1] if len(sys.argv) > 1 else current
    if asked != current:
        sys.exit(f"pyproject.toml says {current}, not {asked}")
    try:
        sys.stdout.write(notes(asked))
    except KeyError:
        sys.exit(f"CHANGELOG.md has no dated section of {asked}")
