"""A scenario's requests, and the steady state that they are in the mean, as keys of its workload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document

if TYPE_CHECKING:
    from crossflow.workload.requests.asking import AskedRequests
    from crossflow.workload.requests.record import RequestTrace
    from crossflow.workload.requests.spec import RequestsSpec

LEAST_OUTPUT = 2  # tokens that a request of a service in steady state writes
# Keys of a workload that its requests say.
_ASKED = (("prompt",), ("output",), ("global_batch",), ("serving", "arrival_rate"), ("serving", "prefix_hits"), ("serving", "together"))


def filled(section: Document, asked: tuple[RequestsSpec, RequestTrace] | None) -> Document:
    """The workload section with what its requests say of a steady state: the mean request, and how many come or are there at once."""
    own = section.data
    if asked is None or not isinstance(own, Mapping):
        return section
    spec, trace = asked
    if own.get("task") != "serving":
        place = ("task",) if "task" in own else ()
        raise section.error(place, "requests are those of a service; give workload.task: serving, or leave out requests")
    if named := [path for path in _ASKED if files.held(own, path) is not None]:
        raise SpecError(section.problem(path, "the requests say it; leave it out, or leave out requests") for path in named)
    from crossflow.workload.requests.asking import mean_rate, means

    prompt, output = means(trace)
    rate = 0.0 if spec.users is not None or spec.batch is not None else mean_rate(trace)
    at_once = spec.users.number if spec.users is not None else len(trace)
    serving = {"arrival_rate": f"{rate!r} 1/s"} if rate else {}
    mean = {"prompt": prompt, "output": max(output, LEAST_OUTPUT), **({} if rate else {"global_batch": at_once})}
    data = {**own, **mean, **({"serving": {**(own.get("serving") or {}), **serving}} if serving else {})}
    return Document(file=section.file, data=data, lines=section.lines)


def read_requests(spec: RequestsSpec | None, document: Document, base: Path | None) -> tuple[RequestsSpec, RequestTrace] | None:
    """A section, if there is one, with its requests."""
    return None if spec is None else (spec, asked_of(spec, document, base).trace)


def asked_of(spec: RequestsSpec, document: Document, base: Path | None) -> AskedRequests:
    """The requests of a section; what is wrong with it is told there, with a trace in its file."""
    from crossflow.workload.requests.asking import requests_in

    try:
        return requests_in(spec, base)
    except SpecError:
        raise
    except CrossflowError as error:
        key, separator, said = str(error).partition(": ")
        path = tuple(files.parts_of(re.sub(r"\[(\d+)\]", r".\1", key))) if separator and re.fullmatch(r"[\w.\[\]]+", key) else ()
        raise document.error(("requests", *path), said if path else str(error)) from None
