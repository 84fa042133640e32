"""What a study says of designs for several members and draws: how far the best for all, and each own best, are from own bests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from crossflow.answers.search.goals import Losses
from crossflow.base.arrays import Array

if TYPE_CHECKING:
    from crossflow.answers.study.searches import SearchResult

OFF_MEMBERS, OFF_DRAWS = "off members", "off draws"  # columns of a study's table: the largest loss against own bests
LEAST = 1e-4  # loss below which no digits are told. [1]
SAME = 1e-9  # loss that is rounding. [1]


def furthest(result: SearchResult) -> dict[str, float]:
    """The largest loss of a search's best design against own bests of members, and of draws. [1]"""
    found = result.losses
    if found is None:
        return {}
    kinds = {OFF_MEMBERS: _numbers(found, draws=False), OFF_DRAWS: _numbers(found, draws=True)}
    return {name: float(found.loss[0, cases].max()) for name, cases in kinds.items() if cases}


def told_of(result: SearchResult, *, several: bool) -> Iterator[str]:
    """Sentences on the losses of a search; `several` says whether there are others, so that it is named."""
    found, row = result.losses, result.best.row
    if found is None or row is None:
        return
    start = f"{result.run.title}: " if several else ""
    if row["violation"] > 0:
        yield f"{start}No design was found that suits all members and draws; of the one that misses least: {row['reason']}."
        return
    members, draws = _numbers(found, draws=False), _numbers(found, draws=True)
    if members:
        yield f"{start}{_of_members(found, members)}"
    if draws:
        yield f"{start}{_of_draws(found, draws)}"


def percent(loss: float) -> str:
    """A loss in words.

    >>> percent(0.0613), percent(float("inf")), percent(1e-12), percent(1e-5)
    ('6.1 %', 'cannot run', '0 %', 'less than 0.01 %')
    """
    if not np.isfinite(loss):
        return "cannot run"
    if SAME < abs(loss) < LEAST:
        return f"less than {100 * LEAST:g} %"
    return f"{100 * loss if abs(loss) > SAME else 0.0:.{2 if abs(loss) < 0.995 else 3}g} %"


def _numbers(found: Losses, *, draws: bool) -> list[int]:
    return [i for i, case in enumerate(found.cases) if case.draw == draws]


def _of_members(found: Losses, members: Sequence[int]) -> str:
    """The best for all, and what each member's own best loses elsewhere."""
    own = found.loss[0, members]
    worst = found.cases[members[int(own.argmax())]].name
    best = [found.cases[i].name for i in members if found.loss[0, i] <= SAME]
    state = f"the best design for {' and '.join(best)}" if best else "the best for no member alone"
    text = f"With the library's values the best for all is {state}, and at most {percent(own.max())} off a member's own best ({worst})"
    others = found.loss[1:][np.ix_(members, members)]
    return f"{text}; {_elsewhere([found.cases[i].name for i in members], others)}."


def _elsewhere(names: Sequence[str], loss: Array) -> str:
    """What own bests lose in other cases, shape (cases, cases)."""
    ends = np.where(np.isfinite(loss), loss, -1.0)
    row, column = (int(place) for place in np.unravel_index(int(ends.argmax()), ends.shape))
    stuck = [f"that for {names[i]} cannot run {names[j]}" for i, j in zip(*np.nonzero(np.isinf(loss)), strict=True)]
    lost = f"the members' own bests lose up to {percent(ends[row, column])} (that for {names[row]} at {names[column]})"
    return "; ".join([lost, *stuck[:2], *([f"and {len(stuck) - 2} more such pairs"] if len(stuck) > 2 else [])])


def _of_draws(found: Losses, draws: Sequence[int]) -> str:
    """The best for all over the draws, and what the own bests of draws lose in others."""
    own, count = found.loss[0, draws], len(draws)
    best = int((own <= SAME).sum())
    others = found.loss[1:][np.ix_(draws, draws)]
    ends = others[np.isfinite(others)]
    state = f"the best design in {best:,} of {count:,} draws" if best else f"the best design in none of {count:,} draws"
    stuck = " or cannot run there" if np.isinf(others).any() else ""
    far = f"at most {percent(own.max())} off a draw's own best ({percent(float(np.median(own)))} in the median)"
    return f"It is {state}, and {far}; designs that are best in one draw lose up to {percent(ends.max())} in another{stuck}."
