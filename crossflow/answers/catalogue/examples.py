"""The shipped examples: scenarios, studies and clusters with the files that they name, to be copied and changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from crossflow.answers.catalogue.listing import Names, title
from crossflow.base import files
from crossflow.base.errors import CrossflowError, among, did_you_mean, known_name

TUTORIAL = "tutorial"  # an example of several files, in a folder of its own
MAIN = {TUTORIAL: "run.yaml"}  # the file of a folder that a command takes


def example(name: str) -> Path:
    """Path of a shipped example, which `load`, `predict`, `run_study` and `schedule` take.

    Examples
    --------
    >>> import crossflow
    >>> crossflow.predict(crossflow.example("llama")).feasible
    True
    """
    known = _paths()
    if (found := known_name(name, known)) is None:
        raise CrossflowError(f"unknown example '{name}'{did_you_mean(name, known)}; known: {among(known)}")
    return known[found]


def examples() -> Names:
    """Shipped examples: what each shows, by name; `crossflow init example NAME` copies one.

    Examples
    --------
    >>> import crossflow
    >>> crossflow.examples()["serving"]
    'Tokens of Llama 3 70B, written on one node of eight H100.'
    """
    return Names((name, about(path)) for name, path in _paths().items())


def needed(path: Path) -> list[Path]:
    """An example's file, and those beside it that it names, and those that they name."""
    found, ahead = list[Path](), [path]
    while ahead:
        found.append(one := ahead.pop())
        if one.suffix == ".yaml":
            named = (one.parent / value for _, value in files.leaves(files.read_yaml(one).data) if isinstance(value, str))
            ahead += [other for other in named if other.is_file() and other not in [*found, *ahead]]
    return found


def command_of(path: Path) -> str:
    """The command that takes an example: `study`, `schedule` where it is a cluster with its jobs, or `predict`."""
    data = files.read_yaml(path).data
    given = data if isinstance(data, Mapping) else {}
    return next((command for key, command in (("scenario", "study"), ("jobs", "schedule")) if key in given), "predict")


def about(path: Path) -> str:
    """What an example shows: its first comment, or its title."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else title(path)


def _paths() -> dict[str, Path]:
    """Scenarios, studies and clusters among the examples, by name; files that are parts of others are none."""
    folder = files.data_folder("examples")
    found = {path.stem: path for path in sorted(folder.glob("*.yaml")) if _is_whole(path)}
    return dict(sorted({**found, **{name: folder / name / main for name, main in MAIN.items()}}.items()))


def _is_whole(path: Path) -> bool:
    return any(line.startswith(("workload:", "scenario:", "jobs:")) for line in path.read_text(encoding="utf-8").splitlines())
