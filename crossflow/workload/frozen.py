"""Layers that a list names by their types and numbers: those that do not train, and those that stay wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crossflow.workload.transformer import LayerType, Transformer

RANGE = re.compile(r"layers:(\d+)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """What fine-tuning does not train: all parts of some `types`, and all parts of some `layers` (counted from 0)."""

    types: frozenset[str]
    layers: frozenset[int]

    def covers(self, kind: LayerType, layer: int | None = None) -> bool:
        """Whether the part of a type keeps its weights; `layer` is None for embedding and head."""
        return kind in self.types or layer in self.layers


def listed_layers(entries: Sequence[str]) -> Frozen:
    """What a list of layer types and ranges of layers covers."""
    numbers = {i for first, last in _ranges(entries) for i in range(first, last + 1)}
    return Frozen(types=frozenset(entry for entry in entries if not RANGE.fullmatch(entry)), layers=frozenset(numbers))


def check_entries(entries: Sequence[str], model: Transformer) -> None:
    """Raise ValueError where a list names layers that a model has not."""
    known = {model.embedding.type, model.head.type, *(part.type for layer in model.layers for part in layer.parts)}
    for kind in sorted(listed_layers(entries).types - known):
        raise ValueError(f"the model has no layers of type '{kind}'; it has {', '.join(sorted(known))}")
    for first, last in _ranges(entries):
        if not first <= last < model.depth:
            raise ValueError(f"layers:{first}-{last} is not a range of the model's layers 0-{model.depth - 1}")


def _ranges(entries: Sequence[str]) -> list[tuple[int, int]]:
    """First and last layer of every range in a list."""
    return [(int(found[1]), int(found[2] or found[1])) for found in map(RANGE.fullmatch, entries) if found]


def frozen_layers(entries: Sequence[str], model: Transformer) -> Frozen:
    """What a list of frozen layers means for a model.

    Parameters
    ----------
    entries : layer types, layers such as ``layers:3``, and ranges ``layers:first-last`` with both ends; an encoder's layers come
        before the decoder's.
    model : the model that is fine-tuned.

    Raises
    ------
    ValueError
        If the model has no such layers, or if nothing would be left to train.
    """
    check_entries(entries, model)
    frozen = listed_layers(entries)
    if trainable_parameters(model, frozen) == 0:
        raise ValueError(f"{', '.join(entries)} is the whole model; nothing is left to train")
    return frozen


def trainable_parameters(model: Transformer, frozen: Frozen) -> int:
    """Parameters that fine-tuning changes; the table of a tied head is the embedding's. [1]"""
    layers = [layer for layer in model.layers for _ in range(layer.count)]
    head = model.parameters + model.mtp_parameters - model.embedding.parameters - sum(layer.parameters for layer in layers)
    ends = (0 if frozen.covers("embedding") else model.embedding.parameters) + (0 if frozen.covers("head") else head)
    return ends + sum(part.parameters for i, layer in enumerate(layers) for part in layer.parts if not frozen.covers(part.type, i))
