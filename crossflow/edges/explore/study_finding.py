"""From the file of a study to the folder of its results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossflow.answers.study.reading import locate
from crossflow.answers.study.records import RUN
from crossflow.answers.study.spec import StudyFile
from crossflow.base import files, provenance
from crossflow.base.errors import CrossflowError
from crossflow.base.names import file_name
from crossflow.edges.explore.study_source import study_at

CHANGED = "{study} differs from the study whose results {folder} holds; run it again to see it as it is now"


def results_of_study(study: Path) -> tuple[Path, str]:
    """The folder of a study's results, and a sentence where they are of the study as it was before; CrossflowError where it was not run."""
    document = files.read_yaml(locate(study))
    name = str(document.data.get("name") or Path(document.file).stem)
    for folder in _folders(Path(document.file), name):
        record = _record(folder)
        if record.get("name") == name:
            return folder, "" if _same(Path(document.file), record) else CHANGED.format(study=study, folder=folder)
    run = f"crossflow study {shlex.quote(str(study))}"
    again = f"crossflow explore {shlex.quote(str(Path('results') / file_name(name)))}"
    raise CrossflowError(f"{study} is a study that has no results yet; run it: {run}, then {again} (or the folder that --out named)")


def _folders(study: Path, name: str) -> Iterator[Path]:
    """Where a study's results may be: where `crossflow study` writes them from here, or from the study's own folder, and beside it."""
    own = Path(file_name(name))
    yield from dict.fromkeys((Path("results") / own, study.parent / "results" / own, study.parent / own))


def _record(folder: Path) -> dict[str, Any]:
    """The record of a run; empty where there is none."""
    try:
        found = json.loads((folder / RUN).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _same(study: Path, record: Mapping[str, Any]) -> bool:
    """Whether a study's file says what the record of a run says; as well where nobody knows."""
    if not isinstance(record.get("document"), dict):
        return True
    try:
        now = study_at(study)
        before = files.validate(StudyFile, files.Document(file=RUN, data=record["document"]))
    except CrossflowError:  # the file is broken by now, and the results are as they were
        return False
    same = _asked(now.spec) == _asked(before)
    return same and provenance.digest(now.scenario.document.data) == record.get("inputs", {}).get("scenario")


def _asked(spec: StudyFile | None) -> dict[str, Any]:
    """What a study asks of its scenario; pictures do not count."""
    return {} if spec is None else spec.model_dump(exclude={"scenario", "name", "title", "notes", "plots"})
