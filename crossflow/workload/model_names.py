"""Names that makers and frameworks give models, and the shipped presets with the same dimensions."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from crossflow.base import files
from crossflow.base.files import FileModel
from crossflow.base.limits import Flag, PositiveInt

_WORDS = re.compile(r"[^\W\d_]+|\d[\w.]*")  # letters, or what begins with a digit


class ModelNames(FileModel):
    """Names of one preset."""

    huggingface: tuple[str, ...] = ()
    torchtitan: tuple[str, ...] = ()  # name and flavour
    maxtext: tuple[str, ...] = ()  # values of model_name, that which is written first
    own_code: Flag = False  # whether the checkpoint brings code of its own, which servers run only when they are told to


class ModelNamesFile(FileModel):
    """Names of all presets."""

    kind: Literal["model-names"]
    sources: Mapping[str, str]
    presets: Mapping[str, ModelNames]
    makers: tuple[str, ...]
    endings: tuple[str, ...]
    vocabularies: Mapping[str, PositiveInt]


@functools.cache
def model_names() -> ModelNamesFile:
    """The shipped table of names."""
    return files.validate(ModelNamesFile, files.read_yaml(Path(__file__).with_name("model_names.yaml")))


def published_as(name: str, presets: Collection[str]) -> str | None:
    """The preset of the model that a maker publishes under a name, or the last folder of a path to it; None where there is none.

    >>> published_as("meta-llama/Llama-3.1-405B-Instruct", ["llama3.1-405b"]), published_as("Llama-3.3-70B", ["llama3-70b"])
    ('llama3.1-405b', 'llama3-70b')
    >>> published_as("gpt-3.5b", ["gpt3-5b"]), published_as("Qwen3-32B-AWQ", ["qwen3-32b"])
    (None, None)
    """
    asked = _words(_last(name))
    exact, bare = _called(frozenset(presets))
    return exact.get(asked) or bare.get(_bare(asked))


NameWords = tuple[str, ...]


@functools.lru_cache(maxsize=8)
def _called(presets: frozenset[str]) -> tuple[Mapping[NameWords, str], Mapping[NameWords, str]]:
    """Presets by the words of their names, and by those that count."""
    exact: dict[NameWords, str] = {}
    for preset, names in model_names().presets.items():
        exact |= {_words(_last(name)): preset for name in names.huggingface if preset in presets}
    exact |= {_words(preset): preset for preset in presets}
    return exact, {_bare(words): preset for words, preset in exact.items()}


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _words(name: str) -> NameWords:
    return tuple(_WORDS.findall(name.lower()))


def _bare(words: NameWords) -> NameWords:
    """The words without the maker's at the start and those of a release at the end."""
    table = model_names()
    while len(words) > 1 and words[0] in table.makers:
        words = words[1:]
    while len(words) > 1 and any(re.fullmatch(ending, words[-1]) for ending in table.endings):
        words = words[:-1]
    return words
