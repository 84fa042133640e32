"""Names of earlier versions: modules by those that they had up to 0.18, before the package had wings, and keys of files."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOMS = {
    "base": "arrays contents drawing errors files formats limits locks names packages paths provenance results rules signals units",
    "hardware": "architecture mapping technology",
    "program": "embedding",
    "parallel": "sharding strategy",
    "engine": "timeline",
    "answers": "bands catalogue evaluation explanation idle interactive planning points prediction scenario score search settings study "
    "uses",
    "evidence": "calibration emulation measurement replay torch validation",
    "edges": "bench cli explore launch trace",
}
WING = {room: wing for wing, rooms in ROOMS.items() for room in rooms.split()}
STEP = {  # of the package `crossflow.step`, whose modules are where what they do is done
    "parallel": "activations batches offload weights",
    "cost": "halves handovers passes",
    "engine.runs": "dlrm dlrm_point memory outcome service sharded slot_events slots timeline transformer uneven",
    "answers.evaluation": "larger remedies",
}
APART = {
    "crossflow.sharding.costs": "crossflow.cost.sharding",
    "crossflow.step.stages": "crossflow.parallel.shapes",
    "crossflow.step.task": "crossflow.parallel.tables",
    "crossflow.step.units": "crossflow.parallel.dlrm_units",
    "crossflow.step": "crossflow.engine.runs",
    **{f"crossflow.step.{module}": f"crossflow.{room}.{module}" for room, modules in STEP.items() for module in modules.split()},
}


# Keys of files that people write which are there no more, and what to write instead.
RENAMED = {
    "softmax": "since 0.19 the device says this as exponentials, next to its units; leave it out here",
    "fill": "since 0.19 layers of experts have none; leave it out",
    "cache_bytes_per_clock": "since 0.19 it is cache_bytes_per_flop: divide it by the operations of the units of one product in a clock",
}


def moved(name: str) -> str | None:
    """The name that a module has now; None where it is not one that has moved.

    >>> moved("crossflow.scenario"), moved("crossflow.cost.price")
    ('crossflow.answers.scenario', None)
    """
    package, _, rest = name.partition(".")
    wing = WING.get(rest.partition(".")[0])
    return APART.get(name, f"{package}.{wing}.{rest}" if package == "crossflow" and wing else None)


class _Moved:
    """Finds modules by their old names, as the import system asks: what is imported is the module of the new name."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG004
        return ModuleSpec(name, _Moved) if moved(name) else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:  # noqa: ARG004
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        name = moved(module.__name__)
        assert name is not None  # or there were no such specification
        found = importlib.import_module(name)
        warnings.warn(f"{module.__name__} is {name} now", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = found


def install() -> None:
    """Let modules be found by their old names; first, for beside a moved package they would be found and loaded once more."""
    if _Moved not in sys.meta_path:
        sys.meta_path.insert(0, _Moved)
