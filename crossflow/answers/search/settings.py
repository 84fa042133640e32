"""The `searches` of a study file: which searcher, how far, from which seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from crossflow.base.files import FileModel
from crossflow.base.limits import Finite, Flag, PositiveInt, Seed

Mean = Literal["geometric", "arithmetic", "worst"]  # of the members of a portfolio
Measure = Literal["mean", "quantile", "worst", "regret"]  # over draws of uncertain numbers
TAIL = 0.9  # quantile of the draws where none is given
MANY = 100_000  # starts, steps or designs of a generation at most


BEST, FRONT = 20_000, 100_000  # designs that evolution evaluates where nobody says how many, of one objective and of several


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What is spent on a case whose designs cannot be listed."""

    evaluations: int  # designs
    seed: int


class Common(FileModel):
    """What every searcher is told."""

    over: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None, description="paths of the space that this search may change; all where absent"
    )
    start: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None, description="scenario files to start from beside the scenario, such as `best.yaml` of another study"
    )
    seed: Seed = Field(default=0, description="of everything that is drawn")
    evaluations: PositiveInt | None = Field(default=None, description="designs to evaluate at most")
    seconds: Annotated[Finite, Field(gt=0)] | None = Field(default=None, description="time to take at most, in seconds")

    def designs(self, objectives: int) -> int | None:
        """Designs to evaluate at most with so many objectives, None for no limit."""
        del objectives
        return self.evaluations


class Local(Common):
    """Searchers of continuous spaces; where there are options too, one search for each of their combinations."""

    starts: PositiveInt = Field(default=10, le=MANY, description="designs to start from (S of the paper)")
    steps: PositiveInt = Field(default=100, le=MANY, description="steps from each start at most (T of the paper)")
    finalists: PositiveInt = Field(default=3, le=MANY, description="combinations of options searched in full, after a brief search of all")


class GradientSettings(Local):
    """Projected gradient descent with exponential averaging of the parameters (Eq. 6), its ends polished by evolution."""

    searcher: Literal["gradient"] = "gradient"
    averaging: Annotated[Finite, Field(ge=0, lt=1)] = Field(default=0.8, description="weight of the past in the average (beta of Eq. 6)")


class ScipySettings(Local):
    """Constrained minimisers of SciPy, on the same gradients."""

    searcher: Literal["slsqp", "trust-constr"]


class OptunaSettings(Common):
    """Samplers of Optuna."""

    searcher: Literal["tpe", "cma-es", "nsga2"]
    evaluations: PositiveInt = Field(default=1000, description="designs to evaluate at most")
    population: PositiveInt = Field(ge=2, le=MANY, default=50, description="designs of one generation (cma-es, nsga2)")
    storage: str | None = Field(default=None, description="Optuna storage to share the study through, such as sqlite:///study.db")


class EvolutionSettings(Common):
    """Differential evolution of populations that adapt their steps (L-SHADE); of several objectives, a front from its ends on."""

    searcher: Literal["evolution"]
    evaluations: PositiveInt | None = Field(
        default=None, description=f"designs to evaluate at most; where absent {BEST:,}, and {FRONT:,} for a front of several objectives"
    )
    population: PositiveInt = Field(
        ge=4, le=MANY, default=200, description="designs that a front of several objectives spreads from at its end"
    )

    def designs(self, objectives: int) -> int:
        """Designs to evaluate at most with so many objectives."""
        return self.evaluations or (FRONT if objectives > 1 else BEST)


class RandomSettings(Common):
    """Designs drawn at random."""

    searcher: Literal["random"]
    evaluations: PositiveInt = Field(default=10_000, description="designs to evaluate")


class GivenSettings(Common):
    """No search: the scenario's own design, to compare with."""

    searcher: Literal["given"]


class ExhaustiveSettings(Common):
    """Every combination of options, and of the counted values of ranges."""

    searcher: Literal["exhaustive"]
    prune: Flag = Field(default=True, description="leave out designs that do not fit, or whose lower bound is no better than the best")


SearchSettings = Annotated[
    GradientSettings | EvolutionSettings | ScipySettings | OptunaSettings | RandomSettings | ExhaustiveSettings | GivenSettings,
    Field(discriminator="searcher"),
]
