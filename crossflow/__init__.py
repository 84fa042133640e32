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

from crossflow.base import moved as _moved

if TYPE_CHECKING:  # what type checkers and editors know of the names below
    from crossflow.answers.catalogue.examples import example as example
    from crossflow.answers.catalogue.examples import examples as examples
    from crossflow.answers.catalogue.listing import models as models
    from crossflow.answers.catalogue.listing import studies as studies
    from crossflow.answers.catalogue.listing import systems as systems
    from crossflow.answers.catalogue.listing import techlibs as techlibs
    from crossflow.answers.catalogue.listing import templates as templates
    from crossflow.answers.catalogue.sheets import show as show
    from crossflow.answers.cluster.schedule import ScheduledJobs as ScheduledJobs
    from crossflow.answers.cluster.schedule import schedule as schedule
    from crossflow.answers.evaluation import evaluate as evaluate
    from crossflow.answers.evaluation.timelines import simulate as simulate
    from crossflow.answers.explanation.answers import Explanation as Explanation
    from crossflow.answers.explanation.phased import RunExplanation as RunExplanation
    from crossflow.answers.fleets.ranking import Fleets as Fleets
    from crossflow.answers.interactive.draws import Draws as Draws
    from crossflow.answers.interactive.draws import uncertainty as uncertainty
    from crossflow.answers.interactive.optimum import Optimum as Optimum
    from crossflow.answers.interactive.optimum import optimise as optimise
    from crossflow.answers.interactive.sweeps import front as front
    from crossflow.answers.interactive.sweeps import sweep as sweep
    from crossflow.answers.planning.asking import explain as explain
    from crossflow.answers.planning.asking import legal as legal
    from crossflow.answers.planning.asking import load as load
    from crossflow.answers.planning.asking import predict as predict
    from crossflow.answers.planning.asking import serve as serve
    from crossflow.answers.planning.asking import timeline as timeline
    from crossflow.answers.planning.asking_plans import plan as plan
    from crossflow.answers.planning.comparing import ComparedSystems as ComparedSystems
    from crossflow.answers.planning.comparing import compare as compare
    from crossflow.answers.planning.opening import from_dict as from_dict
    from crossflow.answers.planning.phased import RunPlans as RunPlans
    from crossflow.answers.planning.plans import Plans as Plans
    from crossflow.answers.planning.requesting import requests as requests
    from crossflow.answers.prediction import Prediction as Prediction
    from crossflow.answers.scenario import Scenario as Scenario
    from crossflow.answers.score import Score as Score
    from crossflow.answers.service.served import ServedRequests as ServedRequests
    from crossflow.answers.steps.recommendation import recommendation_program as recommendation_program
    from crossflow.answers.study.run import run_study as run_study
    from crossflow.base.errors import CrossflowError as CrossflowError
    from crossflow.base.errors import SpecError as SpecError
    from crossflow.base.errors import StrategyError as StrategyError
    from crossflow.edges.launch.asking import export as export
    from crossflow.edges.trace.cluster import draw_cluster as draw_cluster
    from crossflow.edges.trace.cluster import write_cluster as write_cluster
    from crossflow.edges.trace.files import draw_timeline as draw_timeline
    from crossflow.edges.trace.files import write_timeline as write_timeline
    from crossflow.engine.runs.uneven import Uneven as Uneven
    from crossflow.engine.runs.uneven import load_uneven as load_uneven
    from crossflow.engine.timeline.record import Timeline as Timeline
    from crossflow.evidence.calibration.calibrate import calibrate as calibrate
    from crossflow.evidence.replay.report import trace as trace
    from crossflow.evidence.validation.comparison import validate as validate
    from crossflow.evidence.validation.left_out import leave_out as leave_out
    from crossflow.workload.requests.describe import DescribedRequests as DescribedRequests

    optimize, search, study = optimise, optimise, run_study

__version__ = "0.18.0"

# Names of the public interface and the modules that hold them, imported when first used: `import crossflow` costs nothing. A name after
# a colon is that of the same function there: commands are functions of their own names too.
_PUBLIC = {
    "CrossflowError": "base.errors",
    "SpecError": "base.errors",
    "StrategyError": "base.errors",
    "Scenario": "answers.scenario",
    "load": "answers.planning.asking",
    "from_dict": "answers.planning.opening",
    "Score": "answers.score",
    "evaluate": "answers.evaluation",
    "Prediction": "answers.prediction",
    "predict": "answers.planning.asking",
    "Plans": "answers.planning.plans",
    "RunPlans": "answers.planning.phased",
    "Fleets": "answers.fleets.ranking",
    "plan": "answers.planning.asking_plans",
    "ComparedSystems": "answers.planning.comparing",
    "compare": "answers.planning.comparing",
    "legal": "answers.planning.asking",
    "DescribedRequests": "workload.requests.describe",
    "requests": "answers.planning.requesting",
    "ServedRequests": "answers.service.served",
    "serve": "answers.planning.asking",
    "ScheduledJobs": "answers.cluster.schedule",
    "schedule": "answers.cluster.schedule",
    "draw_cluster": "edges.trace.cluster",
    "write_cluster": "edges.trace.cluster",
    "Timeline": "engine.timeline.record",
    "timeline": "answers.planning.asking",
    "simulate": "answers.evaluation.timelines",
    "write_timeline": "edges.trace.files",
    "draw_timeline": "edges.trace.files",
    "recommendation_program": "answers.steps.recommendation",
    "Uneven": "engine.runs.uneven",
    "load_uneven": "engine.runs.uneven",
    "Explanation": "answers.explanation.answers",
    "RunExplanation": "answers.explanation.phased",
    "explain": "answers.planning.asking",
    "export": "edges.launch.asking",
    "run_study": "answers.study.run",
    "study": "answers.study.run:run_study",
    "sweep": "answers.interactive.sweeps",
    "front": "answers.interactive.sweeps",
    "Optimum": "answers.interactive.optimum",
    "optimise": "answers.interactive.optimum",
    "search": "answers.interactive.optimum:optimise",
    "optimize": "answers.interactive.optimum:optimise",
    "Draws": "answers.interactive.draws",
    "uncertainty": "answers.interactive.draws",
    "techlibs": "answers.catalogue.listing",
    "templates": "answers.catalogue.listing",
    "models": "answers.catalogue.listing",
    "systems": "answers.catalogue.listing",
    "studies": "answers.catalogue.listing",
    "show": "answers.catalogue.sheets",
    "examples": "answers.catalogue.examples",
    "example": "answers.catalogue.examples",
    "trace": "evidence.replay.report",
    "validate": "evidence.validation.comparison",
    "leave_out": "evidence.validation.left_out",
    "calibrate": "evidence.calibration.calibrate",
}

# What people call some of them: the same functions.
_SAME = {
    "load_scenario": "load",
    "from_yaml": "load",
    "list_models": "models",
    "list_systems": "systems",
    "minimize": "optimise",
    "estimate": "predict",
    "pareto": "front",
    "pareto_front": "front",
    "monte_carlo": "uncertainty",
}

# What people call some of them, for errors alone.
_CALLED = {
    "load_model": "show", "model": "show", "system": "show", "read": "load", "open": "load",
    "list": "models", "presets": "models", "hardware": "systems", "gpus": "systems", "devices": "systems",
    "optimization": "optimise", "tune": "optimise", "Study": "study", "run": "study",
    "simulate_step": "predict", "evaluate_point": "predict",
    "memory": "predict", "memory_usage": "predict", "cost": "predict", "goodput": "predict", "Model": "models", "System": "systems",
    "strategies": "legal", "best_plan": "plan", "gantt": "draw_timeline", "sensitivity": "explain",
    "Strategy": "Scenario", "compare_systems": "compare", "roofline": "predict",
    "replay": "serve", "serving": "serve", "train": "predict", "training": "predict",
}  # fmt: skip

__all__ = ["__version__", *_PUBLIC]


class _Package(types.ModuleType):
    """The package, in which a public name stays a function when the sub-package of that name (`study`, `search`) is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
_moved.install()


def __getattr__(name: str) -> Any:
    name = _SAME.get(name, name)
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
    from crossflow.base.errors import did_you_mean

    return said + (f"; did you mean '{_CALLED[name]}'?" if name in _CALLED else did_you_mean(name, _PUBLIC))


def __dir__() -> list[str]:
    return sorted(__all__)
