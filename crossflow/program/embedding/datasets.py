"""Reuse factors that are shipped: those of published look-ups, by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from crossflow.base import files
from crossflow.base.errors import did_you_mean, known_name
from crossflow.program.embedding.reuse import Reuse, normalised


@functools.cache
def datasets() -> Mapping[str, Reuse]:
    """Reuse factors of every data set and file of it in ``reuse.yaml``, by name."""
    data = files.read_yaml(Path(__file__).with_name("reuse.yaml")).data
    return {
        name: Reuse(factors=tuple(normalised(row["factors"]).tolist()), samples=row["samples"]) for name, row in data["datasets"].items()
    }


def named(name: str) -> Reuse:
    """Reuse factors by name; a ValueError names those that are there."""
    known = datasets()
    if (found := known_name(name, known)) is None:
        there = f"known: {', '.join(one for one in known if '-' not in one)}, and their files, such as 2021-0"
        raise ValueError(f"there are no reuse factors '{name}'{did_you_mean(name, known)}; {there}")
    return known[found]
