"""crossflow: a cross-stack analytical pathfinder and design-space explorer for distributed AI systems.

>>> import crossflow
>>> scenario = crossflow.from_dict({"system": {"template": "pathfinder"}, "workload": "lstm-16k", "strategy": "CR-8-d64"})
>>> crossflow.predict(scenario).feasible
True
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors know of the names below
    from crossflow.calibration.calibrate import calibrate as calibrate
    from crossflow.catalogue.examples import example as example
    from crossflow.catalogue.examples import examples as examples
    from crossflow.catalogue.listing import models as models
    from crossflow.catalogue.listing import studies as studies
    from crossflow.catalogue.listing import systems as systems
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
    from crossflow.planning.asking import export as export
    from crossflow.planning.asking import legal as legal
    from crossflow.planning.asking import load as load
    from crossflow.planning.asking import plan as plan
    from crossflow.planning.asking import predict as predict
    from crossflow.planning.asking import timeline as timeline
    from crossflow.planning.comparing import ComparedSystems as ComparedSystems
    from crossflow.planning.comparing import compare as compare
    from crossflow.planning.opening import from_dict as from_dict
    from crossflow.planning.plans import Plans as Plans
    from crossflow.prediction import Prediction as Prediction
    from crossflow.scenario import Scenario as Scenario
    from crossflow.score import Score as Score
    from crossflow.step.uneven import Uneven as Uneven
    from crossflow.step.uneven import load_uneven as load_uneven
    from crossflow.study.run import run_study as run_study
    from crossflow.timeline.record import Timeline as Timeline
    from crossflow.trace.files import draw_timeline as draw_timeline
    from crossflow.trace.files import write_timeline as write_timeline
    from crossflow.validation.comparison import validate as validate

    optimize, search, study = optimise, optimise, run_study

__version__ = "0.18.0"

# Names of the public interface and the modules that hold them, imported when first used: `import crossflow` costs nothing. A name after
# a colon is that of the same function there: commands are functions of their own names too.
_PUBLIC = {
    "CrossflowError": "errors",
    "SpecError": "errors",
    "StrategyError": "errors",
    "Scenario": "scenario",
    "load": "planning.asking",
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
    "timeline": "planning.asking",
    "simulate": "evaluation.timelines",
    "write_timeline": "trace.files",
    "draw_timeline": "trace.files",
    "recommendation_program": "evaluation.recommendation",
    "Uneven": "step.uneven",
    "load_uneven": "step.uneven",
    "Explanation": "explanation.answers",
    "explain": "planning.asking",
    "export": "planning.asking",
    "run_study": "study.run",
    "study": "study.run:run_study",
    "sweep": "interactive.sweeps",
    "front": "interactive.sweeps",
    "Optimum": "interactive.optimum",
    "optimise": "interactive.optimum",
    "search": "interactive.optimum:optimise",
    "optimize": "interactive.optimum:optimise",
    "Draws": "interactive.draws",
    "uncertainty": "interactive.draws",
    "techlibs": "catalogue.listing",
    "templates": "catalogue.listing",
    "models": "catalogue.listing",
    "systems": "catalogue.listing",
    "studies": "catalogue.listing",
    "show": "catalogue.sheets",
    "examples": "catalogue.examples",
    "example": "catalogue.examples",
    "validate": "validation.comparison",
    "calibrate": "calibration.calibrate",
}

# What people call some of them, for errors alone.
_CALLED = {
    "load_model": "show", "model": "show", "system": "show", "load_scenario": "load", "read": "load", "open": "load", "from_yaml": "load",
    "list": "models", "list_models": "models", "presets": "models", "hardware": "systems", "gpus": "systems", "devices": "systems",
    "minimize": "optimise", "optimization": "optimise", "tune": "optimise", "Study": "study", "run": "study",
    "estimate": "predict", "simulate_step": "predict", "evaluate_point": "predict", "pareto": "front", "pareto_front": "front",
    "strategies": "legal", "best_plan": "plan", "gantt": "draw_timeline", "monte_carlo": "uncertainty", "sensitivity": "explain",
    "serve": "predict", "serving": "predict", "train": "predict", "training": "predict",
}  # fmt: skip

__all__ = ["__version__", *_PUBLIC]


class _Package(types.ModuleType):
    """The package, in which a public name stays a function when the sub-package of that name (`study`, `search`) is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(_missing(name))
    module, _, other = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(f"crossflow.{module}"), other or name)


def _missing(name: str) -> str:
    """Sentence on a name that is not there, with the one that may be meant; the import system asks for modules here before it looks."""
    said = f"module 'crossflow' has no attribute '{name}'"
    place = os.path.join(os.path.dirname(__file__), name)
    if name.startswith("_") or os.path.isdir(place) or os.path.isfile(f"{place}.py"):
        return said
    from crossflow.errors import did_you_mean

    return said + (f"; did you mean '{_CALLED[name]}'?" if name in _CALLED else did_you_mean(name, _PUBLIC))


def __dir__() -> list[str]:
    return sorted(__all__)
