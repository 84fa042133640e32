"""crossflow: a cross-stack analytical pathfinder and design-space explorer for distributed AI systems.

>>> import crossflow
>>> scenario = crossflow.from_dict({"system": {"template": "pathfinder"}, "workload": "lstm-16k", "strategy": "CR-8-d64"})
>>> crossflow.predict(scenario).feasible
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors know of the names below
    from crossflow.calibration.calibrate import calibrate as calibrate
    from crossflow.catalogue.examples import example as example
    from crossflow.catalogue.examples import examples as examples
    from crossflow.catalogue.listing import models as models
    from crossflow.catalogue.listing import studies as studies
    from crossflow.catalogue.listing import techlibs as techlibs
    from crossflow.catalogue.listing import templates as templates
    from crossflow.catalogue.sheets import show as show
    from crossflow.errors import CrossflowError as CrossflowError
    from crossflow.errors import SpecError as SpecError
    from crossflow.errors import StrategyError as StrategyError
    from crossflow.evaluation import evaluate as evaluate
    from crossflow.evaluation.recommendation import recommendation_program as recommendation_program
    from crossflow.evaluation.timelines import simulate as simulate
    from crossflow.explanation.answers import Explanation as Explanation
    from crossflow.interactive.draws import Draws as Draws
    from crossflow.interactive.draws import uncertainty as uncertainty
    from crossflow.interactive.optimum import Optimum as Optimum
    from crossflow.interactive.optimum import optimise as optimise
    from crossflow.interactive.sweeps import front as front
    from crossflow.interactive.sweeps import sweep as sweep
    from crossflow.planning.asking import explain as explain
    from crossflow.planning.asking import legal as legal
    from crossflow.planning.asking import plan as plan
    from crossflow.planning.asking import predict as predict
    from crossflow.planning.comparing import ComparedSystems as ComparedSystems
    from crossflow.planning.comparing import compare as compare
    from crossflow.planning.opening import from_dict as from_dict
    from crossflow.planning.opening import load as load
    from crossflow.planning.plans import Plans as Plans
    from crossflow.prediction import Prediction as Prediction
    from crossflow.scenario import Scenario as Scenario
    from crossflow.score import Score as Score
    from crossflow.step.uneven import Uneven as Uneven
    from crossflow.step.uneven import load_uneven as load_uneven
    from crossflow.study.run import run_study as run_study
    from crossflow.timeline.record import Timeline as Timeline
    from crossflow.validation.comparison import validate as validate

__version__ = "0.17.0"

# Names of the public interface and the modules that hold them, imported when first used: `import crossflow` costs nothing.
_PUBLIC = {
    "CrossflowError": "errors",
    "SpecError": "errors",
    "StrategyError": "errors",
    "Scenario": "scenario",
    "load": "planning.opening",
    "from_dict": "planning.opening",
    "Score": "score",
    "evaluate": "evaluation",
    "Prediction": "prediction",
    "predict": "planning.asking",
    "Plans": "planning.plans",
    "plan": "planning.asking",
    "ComparedSystems": "planning.comparing",
    "compare": "planning.comparing",
    "legal": "planning.asking",
    "Timeline": "timeline.record",
    "simulate": "evaluation.timelines",
    "recommendation_program": "evaluation.recommendation",
    "Uneven": "step.uneven",
    "load_uneven": "step.uneven",
    "Explanation": "explanation.answers",
    "explain": "planning.asking",
    "run_study": "study.run",
    "sweep": "interactive.sweeps",
    "front": "interactive.sweeps",
    "Optimum": "interactive.optimum",
    "optimise": "interactive.optimum",
    "Draws": "interactive.draws",
    "uncertainty": "interactive.draws",
    "techlibs": "catalogue.listing",
    "templates": "catalogue.listing",
    "models": "catalogue.listing",
    "studies": "catalogue.listing",
    "show": "catalogue.sheets",
    "examples": "catalogue.examples",
    "example": "catalogue.examples",
    "validate": "validation.comparison",
    "calibrate": "calibration.calibrate",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'crossflow' has no attribute '{name}'")
    return getattr(importlib.import_module(f"crossflow.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
