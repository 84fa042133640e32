"""The layers of a model: its lists of modules of one kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn


def blocks(model: Any) -> list[Any]:
    """Layers of a model that are sharded each by itself: those of its lists."""
    return [one for layers in lists(model) for one in layers]


def lists(model: Any) -> list[list[Any]]:
    """Lists of layers of a model: its outermost lists with several modules of one kind with weights, and these modules."""
    found = list[list[Any]]()
    for module in model.modules():
        inner = isinstance(module, nn.ModuleList | nn.Sequential)
        if inner and not any(module in set(one.modules()) for layers in found for one in layers):
            kinds = Counter(
                type(one) for one in module if next(one.parameters(), None) is not None and next(one.children(), None) is not None
            )
            found.append([one for one in module if kinds[type(one)] > 1])
    return found
