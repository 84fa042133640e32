"""Layers and phases from the paths that JAX writes beside operations, such as ``jit(step)/transpose(jvp(Model))/layers/dot_general``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

# Transformations of JAX that wrap a name, and words of its own primitives that are no part of a model.
_WRAPS = re.compile(r"^(?:transpose|jvp|vmap|remat|checkpoint|custom_jvp|custom_vjp|rematted_computation|shard_map)\((.*)\)$")
_CALLS = re.compile(r"^(?:p?jit|xmap|pmap)(?:\(.*\))?$")
_OWN = frozenset({
    "while", "body", "cond", "closed_call", "core_call", "checkpoint", "remat", "remat2", "rematted_computation", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "scan", "shard_map", "branch_0_fun", "branch_1_fun",
})  # fmt: skip


def parts(path: str) -> Iterator[str]:
    """Parts of a path between slashes that stand in no brackets."""
    depth, begin = 0, 0
    for i, mark in enumerate(path):
        depth += (mark == "(") - (mark == ")")
        if mark == "/" and depth <= 0:
            yield path[begin:i]
            begin = i + 1
    yield path[begin:]


@functools.lru_cache(maxsize=4096)
def layer_of(path: str) -> str:
    """The part of a model that an operation belongs to, without transformations and the operation itself.

    >>> layer_of("jit(step)/transpose(jvp(Model))/layers/while/body/attention/dot_general")
    'Model/layers/attention'
    """
    found = list[str]()
    for part in list(parts(path))[:-1]:
        name = part
        while wrapped := _WRAPS.match(name):
            name = wrapped[1]
        if name and name not in _OWN and not _CALLS.match(name) and "->" not in name:  # einsum names itself so
            found.append(name)
    return "/".join(found)


def is_differentiated(path: str) -> bool:
    """Whether an operation belongs to a forward pass that is differentiated, or to its backward pass."""
    return "jvp(" in path


def is_backward(path: str) -> bool:
    """Whether an operation belongs to a backward pass, what is computed again there included."""
    return "transpose(jvp(" in path or "rematted_computation" in path
