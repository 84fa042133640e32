"""crossflow: a cross-stack analytical pathfinder and design-space explorer for distributed AI systems.

>>> import crossflow
>>> scenario = crossflow.from_dict({"system": {"template": "pathfinder"}, "workload": "lstm-16k", "strategy": "CR-8-d64"})
>>> crossflow.predict(scenario).feasible
True
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.14.0"

# Names of the public interface and the modules that hold them, imported when first used: `import crossflow` costs nothing.
_PUBLIC = {
    "CrossflowError": "errors",
    "SpecError": "errors",
    "StrategyError": "errors",
    "Scenario": "scenario",
    "load": "scenario",
    "from_dict": "scenario",
    "Score": "score",
    "evaluate": "evaluation",
    "Prediction": "prediction",
    "predict": "prediction",
    "Timeline": "timeline.record",
    "simulate": "evaluation.timelines",
    "recommendation_program": "evaluation.recommendation",
    "Uneven": "step.uneven",
    "load_uneven": "step.uneven",
    "Explanation": "explanation.answers",
    "explain": "explanation.sensitivity",
    "run_study": "study.run",
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
