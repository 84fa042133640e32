"""What there is to predict and to build on, by name: technology libraries, templates, models and studies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.answers.sections import presets
from crossflow.base import files
from crossflow.base.errors import did_you_mean
from crossflow.workload.kinds import MODELS

# Groups of templates by the folder that they are shipped in.
GROUPS = {
    "generated": "generated", "devices": "datasheet device", "systems": "system", "families": "family", "software": "software stack",
    "reliability": "reliability of clusters", "hindcasts": "chip before its announcement",
}  # fmt: skip
_HEAD = re.compile(r"^title:[ ].*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One name, what group of its kind it belongs to, and the title that its file gives it."""

    name: str
    group: str
    title: str
    file: str | None


def entries(kind: str) -> list[Listing]:
    """Names of a kind, those of one group together."""
    if kind == "models":
        return _models()
    if kind == "families":
        return _families()
    paths = files.catalogue(kind)
    if kind == "templates":
        return _templates(paths)
    return [Listing(name=name, group=kind.removesuffix("s"), title=title(path), file=str(path)) for name, path in paths.items()]


def _models() -> list[Listing]:
    kinds = [Listing(name=name, group="kind", title=_summary(model), file=None) for name, model in MODELS.items()]
    return kinds + [Listing(name=name, group="preset", title=title(path), file=str(path)) for name, path in presets().items()]


def _families() -> list[Listing]:
    from crossflow.workload.huggingface import families_of_files

    found = families_of_files()
    groups = list(dict.fromkeys(group for group, _ in found.values()))
    order = sorted(found, key=lambda name: (groups.index(found[name][0]), name.lower()))
    return [Listing(name=name, group=found[name][0], title=found[name][1], file=None) for name in order]


def _templates(paths: Mapping[str, Path]) -> list[Listing]:
    groups = list(GROUPS.values())
    found = [
        Listing(name=name, group=GROUPS[path.parent.name], title=title(path), file=str(path))
        for name, path in paths.items()
        if path.parent.name in GROUPS
    ]
    return sorted(found, key=lambda entry: (groups.index(entry.group), entry.name))


def _summary(model: Any) -> str:
    """The first clause of what a model is."""
    return re.split(r"[.;](?:\s|$)", " ".join(str(model.__doc__ or "").split()), maxsplit=1)[0]


def title(path: Path) -> str:
    """Title of a file, read without the rest of it, so that a list of many long files comes at once."""
    found = _HEAD.search(path.read_text(encoding="utf-8"))
    return "" if found is None else str(files.parse_yaml(found.group(), str(path)).data["title"])


# ------------------------------------------------------------------------------------------ from Python


class Names(dict[str, str]):
    """Titles by name; a notebook shows them as a table."""

    def __getitem__(self, name: str) -> str:
        if isinstance(name, int | slice):
            raise TypeError("titles are by name here, and not in order; the names are a list with [*crossflow.models()]")
        if name not in self:
            raise KeyError(f"there is no '{name}'{did_you_mean(name, self)}")
        return super().__getitem__(name)

    def holding(self, word: str) -> Names:
        """Those whose name or title holds a word, in any letter case; all where it is empty."""
        if not isinstance(word, str):
            raise TypeError(f"expected a word that names hold, such as 'llama', got {word!r}")
        asked = word.lower()
        return Names((name, told) for name, told in self.items() if asked in f"{name} {told}".lower())

    def _repr_html_(self) -> str:
        from crossflow.base.drawing.html import table

        return table(["name", ""], self.items())


def techlibs(word: str = "") -> Names:
    """Technology libraries at hand: titles by name.

    word : only those whose name or title holds it, in any letter case.

    Examples
    --------
    >>> import crossflow
    >>> "standard" in crossflow.techlibs()
    True
    """
    return _names("techlibs").holding(word)


def templates(word: str = "") -> Names:
    """Templates of devices and systems at hand: titles by name.

    word : only those whose name or title holds it, in any letter case.

    Examples
    --------
    >>> import crossflow
    >>> [name for name in crossflow.templates() if "h100" in name and "dgx" in name]
    ['dgx-h100']
    """
    return _names("templates").holding(word)


def systems(word: str = "") -> Names:
    """What a scenario can run on: systems of devices, devices by their data sheets, generated devices; titles by name.

    word : only those whose name or title holds it, in any letter case.

    Examples
    --------
    >>> import crossflow
    >>> {"dgx-h100", "h100-sxm", "pathfinder"} <= {*crossflow.systems()}
    True
    """
    groups = (GROUPS["systems"], GROUPS["devices"], GROUPS["generated"])
    return Names((entry.name, entry.title) for group in groups for entry in entries("templates") if entry.group == group).holding(word)


def models(word: str = "") -> Names:
    """Models at hand: kinds of models with dimensions of their own, then presets; titles by name.

    word : only those whose name or title holds it, in any letter case.

    Examples
    --------
    >>> import crossflow
    >>> crossflow.models()["llama3-70b"], [*crossflow.models("mixtral")]
    ('Llama 3 70B', ['mixtral-8x22b', 'mixtral-8x7b'])
    """
    return _names("models").holding(word)


def studies(word: str = "") -> Names:
    """Studies at hand, which `run_study` takes: titles by name.

    word : only those whose name or title holds it, in any letter case.

    Examples
    --------
    >>> import crossflow
    >>> len(crossflow.studies()) > 10
    True
    """
    return _names("studies").holding(word)


def _names(kind: str) -> Names:
    return Names((entry.name, entry.title) for entry in entries(kind))
