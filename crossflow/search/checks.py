"""Which searcher can search which space."""

from __future__ import annotations

from crossflow.errors import CrossflowError
from crossflow.search.settings import ExhaustiveSettings, Local, OptunaSettings, SearchSettings
from crossflow.search.space import Space

LARGEST = 5_000_000  # designs that are enumerated


def check(space: Space, settings: SearchSettings) -> None:
    """Raise CrossflowError when a searcher cannot search such a space."""
    if not space.paths:
        raise CrossflowError("the space is empty: there is nothing to search")
    if isinstance(settings, ExhaustiveSettings):
        _check_enumerable(space)
    if isinstance(settings, Local) and not space.dimensions:
        searcher = getattr(settings, "searcher", "")
        raise CrossflowError(f"searcher {searcher}: the space has options alone; use exhaustive, random, tpe or nsga2")
    if isinstance(settings, OptunaSettings) and settings.searcher == "cma-es" and any(len(option.values) > 1 for option in space.options):
        raise CrossflowError("searcher cma-es: it moves quantities alone, and the space has options; use tpe, nsga2 or gradient, or `over`")


def _check_enumerable(space: Space) -> None:
    if space.shares or any(r.count is None for r in space.ranges):
        raise CrossflowError(
            "searcher exhaustive: the space holds quantities without an end; give ranges a count, and search shares with gradient"
        )
    if space.size > LARGEST:
        raise CrossflowError(f"searcher exhaustive: the space holds {space.size:,} designs, more than {LARGEST:,}; draw some with random")
