"""Models as tables of services call them -> the preset or the published ``config.json`` that has their dimensions."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.formats import FORMATS
from crossflow.evidence.validation.tables import shipped
from crossflow.workload.huggingface import huggingface_document

# Last words of a checkpoint's name that say its type, its tuning or its release, and nothing of its dimensions.
TYPES = ("fp4", "fp8", "nvfp4", "mxfp4", "mxfp8", "bf16", "fp16", "int4", "int8", "w4a16", "w8a8", "awq", "gptq", "dynamic", "static")
ENDINGS = frozenset((*TYPES, "block", "pertensor", "v2", "instruct", "chat", "it", "hf", "thinking"))
DAY = 4  # digits of a day of release, as 0528
CONFIGS = ("models", "../models")  # folders of published files that may lie beside a table, OWNER--NAME.json


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What a scenario names as its model, and what is told of it there."""

    named: str  # a preset, or the path of a published file
    keys: Mapping[str, Any]  # of a transformer's file

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return "experts" in self.keys

    @property
    def guesses(self) -> bool:
        """Whether it comes with layers that guess further tokens."""
        return bool(self.keys.get("mtp_layers"))

    @property
    def narrow(self) -> str:
        """Type of 4 bits in which its maker released its weights; empty where that is wider or not known."""
        kept = self.keys.get("weight_dtype") or (self.keys.get("served") or {}).get("weight_dtype") or ""
        return kept if kept in FORMATS and FORMATS[kept].bits == 4 else ""

    @property
    def blocks(self) -> bool:
        """Whether its maker's weights of 8 bits have scales of blocks of 128, say its file or the notes of its preset."""
        return "fp8_block" in (self.keys.get("weight_dtype"), (self.keys.get("served") or {}).get("weight_dtype"))


def names_of(model: str) -> Iterator[str]:
    """Names under which a model may be known: without its maker, then without words of its type, tuning and day, one after the other.

    >>> list(names_of("nvidia/DeepSeek-R1-0528-NVFP4"))
    ['deepseek-r1-0528-nvfp4', 'deepseek-r1-0528', 'deepseek-r1']
    """
    words = model.rsplit("/", 1)[-1].lower().split("-")
    yield "-".join(words)
    while len(words) > 1 and (words[-1] in ENDINGS or (words[-1].isdigit() and len(words[-1]) == DAY)):
        words = words[:-1]
        yield "-".join(words)


@functools.cache
def known_models() -> Mapping[str, str]:
    """Presets by the names under which tables know them."""
    return dict(files.read_yaml(shipped() / "models.yaml").data)


def preset_of(model: str) -> str | None:
    """Preset of a model as tables call it; None where there is none."""
    presets = files.catalogue("templates", "models")
    return next((found for name in names_of(model) if (found := known_models().get(name, name)) in presets), None)


def served_model(model: str, folder: Path | None = None) -> ServedModel | None:
    """A model as tables in a folder call it: a preset, or else a published file beside them; None where there is neither."""
    if preset := preset_of(model):
        return ServedModel(named=preset, keys=files.read_yaml(files.catalogue("templates", "models")[preset]).data)
    return None if folder is None else _published(model, folder)


@functools.lru_cache(maxsize=64)
def _published(model: str, folder: Path) -> ServedModel | None:
    """The same from a published file; of several of one name the first by maker."""
    beside = [path for place in CONFIGS for path in sorted((folder / place).glob("*.json"))]
    by_name = {path.stem.rsplit("--", 1)[-1].lower(): path for path in reversed(beside)}
    path = next((by_name[name] for name in names_of(model) if name in by_name), None)
    if path is None:
        return None
    document, _ = huggingface_document(path, service=True)
    return ServedModel(named=str(path.resolve()), keys=document.data)
