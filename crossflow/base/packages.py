"""Packages that not every installation has: what each is for, and how it is added."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from crossflow.base.errors import CrossflowError

# What needs a package, and what to install. A light install has none of them (docs/how-to/install.md); pandas is an extra of all.
NEEDS: Mapping[str, tuple[str, str]] = {
    "pandas": ("to_frame needs", "crossflow[frames]"),
    "matplotlib": ("pictures need", "matplotlib"),
    "optuna": ("the searchers tpe, cma-es and nsga2 need", "optuna"),
    "cmaes": ("the searcher cma-es needs", "cmaes"),
    "scipy": ("this needs", "scipy"),
    "networkx": ("drawn graphs need", "networkx"),
    "pyarrow": ("points as Parquet need", "crossflow[parquet]"),
}


def needed(name: str) -> Any:
    """The module of a package; CrossflowError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (why := lacking(error)) is None:
            raise
        raise CrossflowError(why) from None


def check(name: str) -> None:
    """CrossflowError where a package is not installed; it is not imported."""
    if not there(name):
        raise CrossflowError(_sentence(name))


def there(name: str) -> bool:
    """Whether a package is installed; it is not imported."""
    return importlib.util.find_spec(name) is not None


def lacking(error: ModuleNotFoundError) -> str | None:
    """What to install, in a sentence; None where something else is missing."""
    name = (error.name or "").partition(".")[0]
    return _sentence(name) if name in NEEDS else None


def pandas() -> Any:
    """The module, for tables; CrossflowError where it is not installed."""
    return needed("pandas")


def _sentence(name: str) -> str:
    """Why and how to install a package.

    >>> _sentence("matplotlib")
    "pictures need matplotlib, which is not installed; run: pip install 'matplotlib'"
    """
    uses, install = NEEDS[name]
    return f"{uses} {name}, which is not installed; run: pip install '{install}'"
