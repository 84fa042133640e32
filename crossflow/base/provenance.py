"""Where a result came from: the version of the code and hashes of everything that went in."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from crossflow.base import versions


def digest(data: Any) -> str:
    """Short hash of plain data, whatever the order of its keys.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record(seed: int | None = None, **inputs: Any) -> dict[str, Any]:
    """Provenance entry: version, hashes of the named inputs, seed of whatever was drawn (None for nothing)."""
    from crossflow import __version__

    return {
        "version": __version__,
        **versions.number("output"),
        "inputs": {name: digest(data) for name, data in inputs.items()},
        "seed": seed,
    }
