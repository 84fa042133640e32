"""Search: spaces, objectives and constraints, and searchers that all question one oracle [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 7.
"""

from crossflow.search.driver import search
from crossflow.search.oracle import Best, Oracle
from crossflow.search.pareto import non_dominated
from crossflow.search.problem import Constraint, Objective, Outcome, Problem
from crossflow.search.settings import (
    ExhaustiveSettings,
    GivenSettings,
    GradientSettings,
    OptunaSettings,
    RandomSettings,
    ScipySettings,
    SearchSettings,
)
from crossflow.search.space import Designs, Options, Range, Shares, Space

__all__ = [
    "Best",
    "Constraint",
    "Designs",
    "ExhaustiveSettings",
    "GivenSettings",
    "GradientSettings",
    "Objective",
    "Options",
    "OptunaSettings",
    "Oracle",
    "Outcome",
    "Problem",
    "RandomSettings",
    "Range",
    "ScipySettings",
    "SearchSettings",
    "Shares",
    "Space",
    "non_dominated",
    "search",
]
