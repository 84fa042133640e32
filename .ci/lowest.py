"""The lowest versions that pyproject.toml allows, as constraints for pip: `name==version`, a line each."""

import re
import sys
import tomllib
from pathlib import Path

FLOOR = re.compile(r"([\w.-]+)>=([\w.]+)")

read = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
listed = [read["build-system"]["requires"], read["project"]["dependencies"], *read["project"]["optional-dependencies"].values()]
found = {match.groups() for requirements in listed for one in requirements if (match := FLOOR.fullmatch(one))}
sys.stdout.writelines(f"{name}=={version}\n" for name, version in sorted(found))
