"""The layers of a model: its lists of modules of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn


def blocks(model: Any) -> list[Any]:
    """Layers of a model that are sharded each by itself: those of its lists."""
    return [one for layers in lists(model) for one in layers]


def lists(model: Any) -> list[list[Any]]:
    """Lists of layers of a model: its outermost lists with several modules of one kind with weights, and these modules.

    Lists inside a list, which nobody calls, are one list; a dictionary by numbers is one, too.
    """
    found, seen = list[list[Any]](), set[Any]()
    for module in model.modules():
        if module not in seen and _is_list(module):
            layers = list(_layers(module, seen))
            weighty = (one for one in layers if next(one.parameters(), None) is not None and next(one.children(), None) is not None)
            kinds = Counter(type(one) for one in weighty)
            found.append([one for one in layers if kinds[type(one)] > 1])
            seen.update(inner for one in found[-1] for inner in one.modules())
    return found


def _is_list(module: Any) -> bool:
    numbered = isinstance(module, nn.ModuleDict) and all(name.isdecimal() for name in module)
    return isinstance(module, nn.ModuleList | nn.Sequential) or numbered


def _layers(module: Any, seen: set[Any]) -> Iterator[Any]:
    """Members of a list, in the place of inner lists theirs; the inner lists are then `seen`."""
    for one in module.children():
        if _is_list(one) and not isinstance(one, nn.Sequential):
            seen.add(one)
            yield from _layers(one, seen)
        else:
            yield one
