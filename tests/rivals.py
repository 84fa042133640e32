# ruff: noqa: E501  (tables of cases)
"""A rival for fronts, written for the comparison alone: MOEA/D with differential evolution (Li, Zhang, IEEE TEVC 13(2), 2009).

Long form: `python tests/rivals.py [EVALUATIONS] [SEEDS]` compares the fronts of three workloads with the rival's at the same effort.
"""

import sys
import time

import numpy as np

import crossflow
from crossflow.answers.search.driver import search
from crossflow.answers.search.goals import Constraint, Objective
from crossflow.answers.search.pareto import non_dominated
from crossflow.answers.search.problem import SearchProblem
from crossflow.answers.search.settings import EvolutionSettings
from crossflow.answers.study.spaces import read_space
from crossflow.base.files import Document

WEIGHTS, NEIGHBOURS = 100, 20
PATHFINDER = {"template": "pathfinder", "devices": 512}
LLAMA = {"model": "llama2-70b", "global_batch": 1024, "sequence": 4096}
DLRM = {"model": "dlrm-a", "dtype": "bf16"}
CASES = {  # scenario, strategies to choose from, longest step [s]
    "lstm": ({"system": PATHFINDER, "workload": "lstm-16k", "strategy": "CR-8-d64"}, ["CR-8-d64", "RC-1-32-d16", "RC-4-16-d8", "RC-8-32-d2"], 1.0),
    "llama": ({"system": PATHFINDER, "workload": LLAMA, "strategy": "dp64-tp8-z2"}, ["dp64-tp8-z2", "dp32-tp16-z2", "dp16-tp8-pp4"], 60.0),
    "dlrm": ({"system": {**PATHFINDER, "devices": 128}, "workload": DLRM, "strategy": {"dense": "ddp", "embedding": "mp"}}, [], 0.5),
}  # fmt: skip
SPACE = {
    "system.technology.logic": ["N7", "N5", "N3"],
    "system.technology.memory": ["HBM2e", "HBM3", "HBM4"],
    "system.technology.inter_link": ["NDR-x8", "XDR-x8", "GDR-x8"],
    "system.budgets.power": {"from": "100 W", "to": "500 W"},
    **{f"system.budgets.{name}": "shares" for name in ("area", "power_shares", "perimeter")},
}


def problem_of(case, names=("step_time_s", "power_w", "cost_usd")):
    """The problem of a case, with several objectives."""
    data, strategies, longest = CASES[case]
    scenario = crossflow.from_dict(data)
    entries = {**SPACE, **({"strategy": strategies} if strategies else {})}
    space = read_space(entries, scenario, Document(file=case, data={"space": entries}, lines={}))
    limit = Constraint(name="step_time_s", bound=longest)
    return SearchProblem(scenario=scenario, space=space, objectives=tuple(Objective(name=name) for name in names), constraints=(limit,))


def rival(problem, evaluations, seed=0):
    """Logarithms of the objectives of the front that the rival finds, shape (objectives, n)."""
    rng, space = np.random.default_rng(seed), problem.space.relaxed()
    options = slice(len(problem.space.ranges), len(space.ranges))
    weights = rng.dirichlet(np.ones(len(problem.objectives)), WEIGHTS).T
    beside = ((weights[:, :, None] - weights[:, None, :]) ** 2).sum(axis=0).argsort(axis=1)[:, :NEIGHBOURS]
    designs, every = space.sample(rng, WEIGHTS).continuous, []

    def judged(tried):
        outcome = problem.evaluate(problem.space.unrelaxed(tried))
        losses = problem.logarithms(outcome)
        every.append(losses[:, outcome.violation == 0])
        return losses, outcome.violation

    losses, violation = judged(designs)
    while len(every) * WEIGHTS < evaluations:
        best = losses.min(axis=1, keepdims=True)
        scale = np.maximum(np.ptp(losses, axis=1, keepdims=True), 0.05)
        one, other, base = (beside[np.arange(WEIGHTS), rng.integers(0, NEIGHBOURS, WEIGHTS)] for _ in range(3))
        step = 0.5 * space.between(designs[:, one], designs[:, other]) * (rng.random(designs.shape) < 0.7)
        noise = 0.3 * rng.standard_normal(designs.shape) * (rng.random(designs.shape) < 1.5 / len(designs))
        swapped = rng.random(designs[options].shape) < 0.3
        step[options] = np.where(swapped, designs[options][:, one] - designs[options][:, base], 0.0)
        tried = space.moved(designs[:, base], step + noise)
        found, missed = judged(tried)
        for place in range(WEIGHTS):  # a trial may take the places of its neighbours
            near = beside[place]
            old = (weights[:, near] * (losses[:, near] - best) / scale).max(axis=0) + 10 * violation[near]
            new = (weights[:, near] * (found[:, [place]] - best) / scale).max(axis=0) + 10 * missed[place]
            taken = near[new < old][:2]
            designs[:, taken], losses[:, taken], violation[taken] = tried[:, [place]], found[:, [place]], missed[place]
    front = np.concatenate(every, axis=1)
    return front[:, non_dominated(front)]


def shipped(problem, evaluations, seed=0):
    """The same of the shipped search."""
    rows = search(problem, EvolutionSettings(searcher="evolution", evaluations=evaluations, seed=seed)).front
    return np.log([[row[objective.name] for row in rows] for objective in problem.objectives])


def behind(front, others):
    """By how much each design of another front beats every design of this one, in the objective in which it does least; 0 if not. [1]"""
    return np.expm1(np.maximum((front[:, :, None] - others[:, None, :]).max(axis=0).min(axis=0), 0.0))


def compare(evaluations, seeds):
    """Print how far each front is behind the other."""
    for case in CASES:
        problem = problem_of(case)
        for seed in range(seeds):
            begun = time.process_time()
            own = shipped(problem, evaluations, seed)
            taken, begun = time.process_time() - begun, time.process_time()
            other = rival(problem, evaluations, seed)
            ratio = taken / (time.process_time() - begun)
            for words, gap in (("behind", behind(own, other)), ("ahead", behind(other, own))):
                told = f"largest {gap.max():.1%}, 99th percentile {np.quantile(gap, 0.99):.1%}, mean {gap.mean():.2%}"
                print(f"{case} seed {seed}: {words} {told}; {ratio:.1f} times the rival's CPU time")


if __name__ == "__main__":
    compare(*(int(given) for given in (*sys.argv[1:], "20000", "2")[:2]))
