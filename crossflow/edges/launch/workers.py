"""Workers of Dynamo in a script or in a DynamoGraphDeployment: what each starts, how many of it there are, and on how many devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.errors import Problem, SpecError
from crossflow.base.files import Document
from crossflow.base.limits import shown
from crossflow.edges.launch.shell import Word, read_script

BACKENDS: Mapping[str, str] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}  # modules of Dynamo, by the engine's kind
KIND = re.compile(r"^kind:\s*DynamoGraphDeployment\s*$", re.MULTILINE)
SHELLS = ("sh", "bash")


@dataclass(frozen=True, kw_only=True)
class WorkerLine:
    """What starts a worker: its engine, the words after the module, and what the deployment says of it."""

    backend: str
    words: tuple[Word, ...]
    reads: bool = False  # whether the deployment says that it reads prompts alone
    replicas: int = 1
    devices: int | None = None  # of one of them, None where it is not said


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Workers of a deployment, and the files that its maps of configuration hold, by name."""

    workers: tuple[WorkerLine, ...]
    documents: Mapping[str, Word]


def backend_of(words: Sequence[Word]) -> tuple[str, int] | None:
    """The engine of a worker that words start, and the place of its module; None where they start none."""
    for i, word in enumerate(words):
        parts = word.text.split(".")
        if len(parts) > 1 and parts[0] == "dynamo" and parts[1] in BACKENDS:
            return BACKENDS[parts[1]], i
    return None


def started(words: Sequence[Word]) -> WorkerLine | None:
    """The worker that a command starts; None for other commands."""
    found = backend_of(words)
    return None if found is None else WorkerLine(backend=found[0], words=tuple(words[found[1] + 1 :]))


def is_deployment(text: str) -> bool:
    """Whether a text is a DynamoGraphDeployment, alone or with other documents."""
    return KIND.search(text) is not None


def deployment(text: str, file: str) -> Deployment:
    """Workers of a DynamoGraphDeployment, v1alpha1 or v1beta1; SpecError with the line for what is none."""
    workers: list[WorkerLine] = []
    documents: dict[str, Word] = {}
    for part in _parts(text, file):
        data = part.data
        if not isinstance(data, Mapping):
            continue
        if data.get("kind") == "ConfigMap":
            documents |= {
                str(name): Word(text=str(held), line=_line(part, ("data", name))) for name, held in _below(part, (), data, "data").items()
            }
        elif data.get("kind") == "DynamoGraphDeployment":
            workers += _workers(part)
    return Deployment(workers=tuple(workers), documents=documents)


def _parts(text: str, file: str) -> Iterator[Document]:
    """Documents of a file, with lines of the whole."""
    begin = 0
    for part in re.split(r"^---.*$", text, flags=re.MULTILINE):
        if re.search(r"^[^#\s]", part, re.MULTILINE):
            yield files.parse_yaml("\n" * begin + part, file)
        begin += part.count("\n")


def _below(document: Document, path: tuple[Any, ...], held: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping below keys of another one, empty where it is not there; SpecError where it is no mapping."""
    for key in keys:
        path = (*path, key)
        inner = held.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            raise document.error(path, f"expected a mapping, got {shown(inner)}")
        held = inner or {}
    return held


def _line(document: Document, path: tuple[Any, ...]) -> int:
    found = document.lines.get(path)
    return found[1] or 1 if found else 1


def _workers(document: Document) -> Iterator[WorkerLine]:
    """Workers among the components (v1beta1) or services (v1alpha1) of a deployment."""
    spec = _below(document, (), document.data, "spec")
    held = spec.get("components", spec.get("services"))
    if isinstance(held, list):
        places: list[tuple[tuple[Any, ...], Any]] = [(("spec", "components", i), one) for i, one in enumerate(held)]
    elif isinstance(held, Mapping):
        places = [(("spec", "services", name), one) for name, one in held.items()]
    else:
        raise document.error(("spec",), "expected components, or services of v1alpha1")
    for path, one in places:
        if not isinstance(one, Mapping):
            raise document.error(path, f"expected a mapping, got {shown(one)}")
        if (found := _worker(document, path, one)) is not None:
            yield found


def _worker(document: Document, path: tuple[Any, ...], one: Mapping[str, Any]) -> WorkerLine | None:
    inner, container = _container(document, path, one)
    words = _words(document, (*path, *inner), container)
    begun = started(words)
    if begun is None:
        return None
    limits = _below(document, (*path, *inner), container, "resources", "limits") or _below(document, path, one, "resources", "limits")
    each = limits.get("nvidia.com/gpu", limits.get("gpu"))
    nodes = _below(document, path, one, "multinode").get("nodeCount", 1)
    replicas = one.get("replicas", 1)
    for name, value in (("replicas", replicas), ("nodeCount", nodes), ("gpu", each)):
        if value is not None and not (str(value).isdecimal() and int(value) < 10**6):
            raise document.error(path, f"{name}: expected a whole number, got {shown(value)}")
    reads = "prefill" in (one.get("type"), one.get("subComponentType"))
    devices = None if each is None else int(each) * int(nodes)
    return WorkerLine(backend=begun.backend, words=begun.words, reads=reads, replicas=int(replicas), devices=devices)


def _container(document: Document, path: tuple[Any, ...], one: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Where the main container of a component is, and the container."""
    if main := _below(document, path, one, "extraPodSpec", "mainContainer"):
        return ("extraPodSpec", "mainContainer"), main
    held = _below(document, path, one, "podTemplate", "spec").get("containers") or [{}]
    inner = ("podTemplate", "spec", "containers")
    if not isinstance(held, list) or not all(isinstance(container, Mapping) for container in held):
        raise document.error((*path, *inner), f"expected a list of mappings, got {shown(held)}")
    at = next((i for i, container in enumerate(held) if container.get("name") == "main"), 0)
    return (*inner, at), held[at]


def _words(document: Document, path: tuple[Any, ...], container: Mapping[str, Any]) -> list[Word]:
    """Words of a container's command and arguments; a shell's own words where it runs one."""
    words = []
    for key in ("command", "args"):
        held = container.get(key) or []
        if not isinstance(held, list):
            raise document.error((*path, key), f"expected a list of words, got {shown(held)}")
        words += [Word(text=_plain(text), line=_line(document, (*path, key, i))) for i, text in enumerate(held)]
    at = next((i for i, word in enumerate(words) if word.text == "-c" and i and Path(words[i - 1].text).name in SHELLS), None)
    if at is None or at + 1 >= len(words):
        return words
    try:
        script = read_script(words[at + 1].text, document.file)
    except SpecError as error:
        raise SpecError(Problem(file=one.file, line=words[at + 1].line, message=one.message) for one in error.problems) from None
    command = next((command for command in script.commands if backend_of(command) is not None), ())
    return [Word(text=word.text, line=word.line + words[at + 1].line) for word in command]


def _plain(text: Any) -> str:
    return str(text).lower() if isinstance(text, bool) else str(text)
