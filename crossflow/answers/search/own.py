"""Own bests: for each member of a portfolio, and for each draw, the best design for it alone; and how far another design is from them.

A case is a member with the library's values, or all members in one draw. Spaces whose designs can be listed are looked at as a whole;
of others the cases are searched side by side by differential evolution, each with a budget of its own. What is found for one case is
then tried in all others, and each takes the best of all, so that no case has a better design than its own among those known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.search import evolution, exhaustive
from crossflow.answers.search.goals import ENDLESS, PENALTY, Losses, OwnCase
from crossflow.answers.search.portfolio import DrawnFigures, ListedDesigns, PortfolioProblem, ratio, together
from crossflow.answers.search.settings import BEST, Effort
from crossflow.answers.search.space import Designs, Space
from crossflow.base.arrays import Array, Index, Mask

# Runs tasks that do not depend on one another, perhaps in other processes, and gives what they make in order.
Reached = tuple[Array, Array]  # violation and value of designs in cases
Shared = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
TOGETHER = 32  # cases that are searched side by side in one task, wherever it runs
STARTS = 4  # of the designs for single cases, those that are best for all, for the search to start from
STRANGERS = 2  # cases whose best designs a case tries


@dataclass(frozen=True, kw_only=True)
class OwnBests:
    """The best design for each case."""

    cases: tuple[OwnCase, ...]
    designs: Designs  # one for each case
    values: Array  # of each of them (rows) in each case (columns), infinite, or 0 where more is better, where it cannot run
    larger: Mask  # in which cases larger values are better
    starts: Designs  # where the search for all of them starts

    @property
    def own(self) -> Array:
        """What each case's own best reaches, shape (cases,)."""
        return np.diagonal(self.values)


def own_bests(problem: PortfolioProblem, efforts: tuple[Effort, Effort], shared: Shared) -> tuple[PortfolioProblem, OwnBests | None]:
    """The best design for each case, and the problem with what these reach; None where there is one case, which is the problem itself.

    efforts : for the cases that are members, and for those that are draws.
    """
    members = [OwnCase(name=member.name, number=i, draw=False) for i, member in enumerate(problem.members)]
    draws = [OwnCase(name=f"draw {i + 1}", number=i, draw=True) for i in range(problem.count)] if problem.draws else []
    if len(members) + len(draws) < 2:
        return problem, None
    named = members if len(members) > 1 or problem.mean == "worst" else []
    start = problem.space.coordinates(problem.known()) if len(problem.known()) else np.empty((len(problem.space.paths), 0))
    found = _searched(problem, named, start, efforts[0], shared)
    if named:
        reached = _leading(problem, named, found, shared)[1]
        problem = problem.with_own(np.diagonal(reached), None)
    list_, in_draws = _in_all_draws(problem, shared) if draws and listed(problem.space) else (None, None)
    if in_draws is None:
        in_draws = _searched(problem, draws, np.concatenate([start, found], axis=1), efforts[1], shared)
    found = np.concatenate([found, in_draws], axis=1)
    cases = (*named, *draws)
    designs, values = _leading(problem, cases, found, shared)
    problem = replace(problem.with_own(problem.own_members, np.diagonal(values)[len(named) :] if draws else None), listed=list_)
    bests = problem.space.unrelaxed(designs)
    starts = bests.take(_best_for_all(problem, bests, len(named)))
    return problem, OwnBests(cases=cases, designs=bests, values=values, larger=_larger(problem, cases), starts=starts)


def losses(problem: PortfolioProblem, bests: OwnBests, design: Designs) -> Losses:
    """How far a design, and the own best of each case, are from these; where the design is better than an own best, it takes its place."""
    reached = _table(problem, bests.cases, [_in_cases((problem, bests.cases, design))])
    values = np.concatenate([reached, bests.values])
    takes = np.where(bests.larger, reached[0] > bests.own, reached[0] < bests.own)
    values[1:][takes] = reached[0]
    own = np.diagonal(values[1:])
    ratios = np.where(bests.larger, ratio(values, own, larger=True), ratio(values, own, larger=False))
    return Losses(cases=bests.cases, own=own, loss=np.nan_to_num(ratios - 1.0, nan=np.inf, posinf=np.inf))


def _larger(problem: PortfolioProblem, cases: Sequence[OwnCase]) -> Mask:
    """In which cases larger values are better, shape (cases,)."""
    goal = problem.goals[0]
    return np.array([not problem.rises(goal) if case.draw else goal.maximise for case in cases])


def _best_for_all(problem: PortfolioProblem, bests: Designs, members: int) -> Index:
    """The members' own bests, and the few of all that are best for the whole problem."""
    outcome = problem.evaluate(bests)
    order = np.lexsort((problem.losses(outcome)[0], outcome.violation))[:STARTS]
    return np.array(list(dict.fromkeys([*order.tolist(), *range(min(members, STARTS))])), dtype=np.intp)


# ------------------------------------------------------------------------------------------ searching


def _searched(problem: PortfolioProblem, cases: Sequence[OwnCase], start: Array, effort: Effort, shared: Shared) -> Array:
    """A design for each case, coordinates of the relaxed space, shape (dimensions, cases)."""
    space = problem.space.relaxed()
    if not cases:
        return np.empty((len(problem.space.paths), 0))
    if listed(problem.space):
        return _looked_at(problem, cases, shared)
    starts = start if start.shape[1] else space.sample(np.random.default_rng(effort.seed), 1).continuous
    parts = [tuple(cases[at : at + TOGETHER]) for at in range(0, len(cases), TOGETHER)]
    tasks = [(problem, part, starts, effort.evaluations, (effort.seed, i)) for i, part in enumerate(parts)]
    return np.concatenate(list(shared(_evolved, tasks)), axis=1)


def _in_all_draws(problem: PortfolioProblem, shared: Shared) -> tuple[ListedDesigns, Array]:
    """All designs of a space in all draws, and the best for each draw, coordinates of the relaxed space."""
    designs = exhaustive.every(problem.space)
    list_ = ListedDesigns.of_all(designs, list(shared(_judged, [(problem, part) for part in problem.parts(designs)])))
    rises = np.full(problem.count, problem.rises(problem.goals[0]))
    violation = np.array([together(list_.found.violation[:, :, k : k + 1]) for k in range(problem.count)])
    merits = _merit((violation, list_.found.figures[0].T), ~rises[:, None])
    return list_, problem.space.coordinates(designs.take(np.argmin(merits, axis=1)))


def _judged(task: tuple[PortfolioProblem, Designs]) -> DrawnFigures:
    problem, designs = task
    return problem.in_draws(designs)


def listed(space: Space) -> bool:
    """Whether the designs of a space are few enough to look at all of them."""
    return not space.shares and all(r.count is not None for r in space.ranges) and space.size <= BEST


def _looked_at(problem: PortfolioProblem, cases: Sequence[OwnCase], shared: Shared) -> Array:
    """The best of all designs for each case."""
    designs = exhaustive.every(problem.space)
    tasks = [(problem, cases, part) for part in problem.parts(designs)]
    larger = _larger(problem, cases)[:, None]
    merits = np.concatenate([_merit(found, larger) for found in shared(_in_cases, tasks)], axis=1)
    return problem.space.coordinates(designs.take(np.argmin(merits, axis=1)))


def _evolved(task: tuple[PortfolioProblem, tuple[OwnCase, ...], Array, int, tuple[int, ...]]) -> Array:
    """A design for each of some cases, searched side by side from the same starts."""
    problem, cases, starts, evaluations, seed = task
    rng, larger = np.random.default_rng(seed), _larger(problem, cases)

    def merits(designs: Array) -> Array:
        d, _, size = designs.shape
        which = np.repeat(np.arange(len(cases)), size)
        found = _paired(problem, cases, problem.space.unrelaxed(designs.reshape(d, -1)), which)
        return _merit(found, larger[which]).reshape(len(cases), size)

    known = np.repeat(starts[:, None], len(cases), axis=1)
    strangers = rng.integers(0, len(cases), (len(cases), STRANGERS))
    return evolution.evolve(problem.space.relaxed(), merits, known, evaluations, rng, strangers).designs


# ------------------------------------------------------------------------------------------ evaluating


def _paired(problem: PortfolioProblem, cases: Sequence[OwnCase], designs: Designs, which: Index) -> Reached:
    """Violation and value of designs, each in its case, shape (n,); the cases are all members, or all draws."""
    violation, values = np.full(len(designs), np.inf), np.full(len(designs), np.nan)
    numbers = np.array([case.number for case in cases])[which]
    if cases[0].draw:
        return _in_draws(problem, designs, numbers)
    for number in np.unique(numbers):
        mine = np.flatnonzero(numbers == number)
        outcome = problem.of_member(problem.members[number]).evaluate(designs.take(mine))
        violation[mine], values[mine] = outcome.violation, outcome.objectives[0]
    return violation, values


def _in_draws(problem: PortfolioProblem, designs: Designs, draw: Index) -> Reached:
    """Violation and J of designs, each in the draw with its number, shape (n,)."""
    found = problem.outcomes(designs, draw)
    violation = together(np.array([outcome.violation for outcome in found])[:, :, None])
    return violation, problem.combined(np.array([outcome.objectives[0] for outcome in found]), problem.goals[0])


def _in_cases(task: tuple[PortfolioProblem, Sequence[OwnCase], Designs]) -> Reached:
    """Violation and value of every design in every case, shape (cases, n)."""
    problem, cases, designs = task
    found = []
    for some in ([case for case in cases if not case.draw], [case for case in cases if case.draw]):
        if some:
            pairs = designs.take(np.tile(np.arange(len(designs)), len(some)))
            which = np.repeat(np.arange(len(some)), len(designs))
            found.append([one.reshape(len(some), -1) for one in _paired(problem, some, pairs, which)])
    violation, values = (np.concatenate([one[i] for one in found]) for i in (0, 1))
    return violation, values


def _merit(found: Reached, larger: Mask) -> Array:
    """Merits of designs in a case, smaller is better, as `SearchProblem.merit` has them."""
    violation, values = found
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.where(larger, -1.0, 1.0) * np.log(values)
    return np.asarray(np.minimum(np.clip(np.nan_to_num(logarithm, nan=ENDLESS), -ENDLESS, ENDLESS) + PENALTY * violation, ENDLESS))


def _table(problem: PortfolioProblem, cases: Sequence[OwnCase], found: Sequence[Reached]) -> Array:
    """Values of designs (rows) in cases (columns), of those that cannot run the worst there is."""
    violation, values = (np.concatenate([one[i] for one in found], axis=1) for i in (0, 1))
    worst = np.where(_larger(problem, cases), 0.0, np.inf)[:, None]
    return np.where((violation > 0) | np.isnan(values), worst, values).T


def _leading(problem: PortfolioProblem, cases: Sequence[OwnCase], designs: Array, shared: Shared) -> tuple[Array, Array]:
    """Of designs for single cases, shape (dimensions, designs), the best for each; with the values of these in every case."""
    pool = np.unique(designs, axis=1)
    tasks = [(problem, cases, part) for part in problem.parts(problem.space.unrelaxed(pool))]
    found = list(shared(_in_cases, tasks))
    larger = _larger(problem, cases)[:, None]
    best = np.argmin(np.concatenate([_merit(one, larger) for one in found], axis=1), axis=1)
    return pool[:, best], _table(problem, cases, found)[best]
