"""Presets by the names under which makers publish their models, as ``model_names.yaml`` lists them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from crossflow.base import contents, files

_WORDS = re.compile(r"[^\W\d_]+|\d[\w.]*")  # letters, or what begins with a digit


@functools.cache
def _listed() -> Mapping[str, Any]:
    return dict(files.read_yaml(Path(__file__).with_name("model_names.yaml")).data)


def published_as(name: str, presets: Collection[str]) -> str | None:
    """The preset of the model that a maker publishes under a name; None where there is none, or several.

    A name with a slash may be a folder of Hugging Face: where there is one, it is no preset's.

    >>> published_as("meta-llama/Llama-3.1-405B-Instruct", ["llama3.1-405b"]), published_as("Llama-3.3-70B", ["llama3-70b"])
    ('llama3.1-405b', 'llama3-70b')
    >>> published_as("gpt-3.5b", ["gpt3-5b"]), published_as("Qwen3-32B-AWQ", ["qwen3-32b"])
    (None, None)
    """
    if Path(name).suffix in (*files.YAML, ".gz") or contents.is_file(Path(name) / "config.json"):
        return None
    called = {tuple(_words(preset)): preset for preset in presets}
    for preset, others in _listed()["alike"].items():
        called |= {tuple(_words(other)): preset for other in others if preset in presets}
    asked = _words(name.rstrip("/").rsplit("/", 1)[-1])
    return called.get(tuple(asked)) or called.get(tuple(_bare(asked)))


def _words(name: str) -> list[str]:
    return _WORDS.findall(name.lower())


def _bare(words: list[str]) -> list[str]:
    """The words without the maker's at the start and those of a release at the end."""
    makers, endings = _listed()["makers"], [re.compile(ending) for ending in _listed()["endings"]]
    while len(words) > 1 and words[0] in makers:
        words = words[1:]
    while len(words) > 1 and any(ending.fullmatch(words[-1]) for ending in endings):
        words = words[:-1]
    return words
