"""The requests of a trace, of a scenario or of a section alone, by name: `crossflow.requests`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossflow.answers.planning.opening import Overrides, as_settings
from crossflow.answers.requested import asked_of
from crossflow.answers.scenario import Scenario, spelled_out
from crossflow.base import contents, files, limits
from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.files import Document
from crossflow.base.limits import shown
from crossflow.workload.requests.asking import files_of, found_file
from crossflow.workload.requests.describe import DescribedRequests
from crossflow.workload.requests.spec import TIMES, RequestsSpec, draws
from crossflow.workload.requests.tables import ENDINGS, ending

RequestedSource = str | Path | Mapping[str, Any] | Scenario
SECTION = "requests"


def requests(source: RequestedSource, settings: Overrides = ()) -> DescribedRequests:
    """What a trace of requests holds, or requests that are drawn.

    Parameters
    ----------
    source : the path of a trace, of a scenario with the key `requests`, or of a file with that section alone; its data; or a scenario.
    settings : what overrides its fields: one ``requests.rate_scale=2``, several of them, or values by path.

    Raises
    ------
    SpecError
        With the line of a trace that is wrong.

    Examples
    --------
    >>> import crossflow
    >>> asked = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "duration": "10 min", "prompt": 1000, "output": 200}
    >>> crossflow.requests(asked)
    DescribedRequests('drawn': 1,190 in 9.98 min, 1.99 a second, 1,000 tokens in and 200 out on average)
    >>> crossflow.requests(asked, "requests.rate_scale=2").trace.arrival.size
    2398
    """
    document, base, name = _opened(source)
    texts = as_settings(settings)
    return files.with_settings(lambda some: _described(document, base, name, some), texts)


def _described(document: Document, base: Path | None, name: str, settings: Sequence[str]) -> DescribedRequests:
    for setting in settings:
        if setting.partition("=")[0].split(".")[0] != SECTION:
            raise SpecError(
                [
                    Problem(
                        file=f"--set {setting}",
                        message=f"it changes no requests; settings begin with {SECTION}, such as requests.limit=100",
                    )
                ]
            )
    document = files.override(document, settings)
    spec = files.validate_at(RequestsSpec, document, SECTION)
    found = asked_of(spec, document, base)
    return DescribedRequests(name=name, trace=found.trace, notes=found.notes, seed=spec.seed if draws(spec) else None)


def _opened(source: RequestedSource) -> tuple[Document, Path | None, str]:
    """The section below its key, the folder of its files, and a name."""
    if isinstance(source, Scenario):
        return _section(source.document, source.name), source.base, source.name
    if isinstance(source, Mapping):
        return _section(Document(file="requests", data=dict(source)), "the mapping"), None, "drawn"
    if not isinstance(source, str | Path):
        raise CrossflowError(f"requests: expected the path of a trace or of a scenario, its data, or a scenario; got {shown(source)}")
    path = Path(source)
    if not contents.is_file(path):
        raise CrossflowError(f"{path}: there is no such file")
    if ending(path) is not None and not _is_document(path):
        return Document(file=str(path), data={SECTION: {"trace": path.name}}), path.parent, path.name
    if path.suffix not in files.YAML:
        raise CrossflowError(
            f"{path}: expected a trace, which ends in {', '.join(ENDINGS)}, perhaps with .gz, or a scenario, which ends in .yaml"
        )
    return _section(files.read_yaml(path), path.name), path.parent, path.name


def section_of(source: RequestedSource) -> dict[str, Any]:
    """The section of a trace, of a scenario or of a file with that section alone, with the paths of its files from the current folder."""
    document, base, name = _opened(source)
    held = document.data[SECTION]
    held = {"trace": held} if isinstance(held, str) else held
    spec = files.validate_at(RequestsSpec, document, SECTION)
    asked_of(spec, document, base)  # what is wrong with it is told with its file
    data = dict(held)
    if isinstance(data.get("trace"), str) and base is not None:
        data["trace"] = str(found_file(data["trace"], "trace", base))
    if named := [key for key, _ in files_of(spec) if key != "trace"]:
        raise document.error((SECTION, *files.parts_of(named[0])), f"files of lengths are found from a scenario only: {name} is none")
    return data


def _is_document(path: Path) -> bool:
    """Whether a JSON file is a scenario or a section, not a trace."""
    if path.suffix != ".json" or path.stat().st_size > limits.YAML_BYTES:
        return False
    try:
        data = files.json_data(path)
    except ValueError:
        return False
    return isinstance(data, Mapping) and bool(data.keys() & {SECTION, "system", "workload", "trace", *TIMES})


def _section(document: Document, name: str) -> Document:
    """A document with the section below its key: that of a scenario, or the document itself."""
    data = spelled_out(document).data
    if SECTION in data:
        return spelled_out(document)
    if "system" in data or "workload" in data:
        raise document.error((), f"{name} has no requests; give the key {SECTION}: a trace, or how they are drawn")
    return document.at(SECTION)
