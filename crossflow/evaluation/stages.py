"""What devices of every pipeline stage hold, which a score tells of the fullest one only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from crossflow.architecture.model import Architecture
from crossflow.evaluation.layered import machine
from crossflow.scenario import Scenario
from crossflow.step.memory import KINDS, memory
from crossflow.strategy.layout import Layout
from crossflow.strategy.mesh import Mesh
from crossflow.strategy.plan import Plan
from crossflow.workload.spec import TransformerSpec


def stage_memory(scenario: Scenario, device: Architecture) -> tuple[Mapping[str, float], ...]:
    """Bytes of a device of every stage by kind, each stage at its own fullest moment; none where all devices are alike. [B]"""
    strategy = scenario.strategy
    if isinstance(scenario.workload, TransformerSpec) and isinstance(strategy, Plan):
        runs_on = machine(scenario, device)
        held = memory(scenario.job(), Layout.of([strategy], np.array([float(scenario.workload_batch)]), runs_on.node), runs_on)
        return tuple(dict(zip(KINDS, stage.tolist(), strict=True)) for stage in held.stages[:, :, 0].T)
    if isinstance(strategy, Mesh):
        return tuple({kind: float(size) for kind, size in kinds.items()} for kinds in scenario.program().memory)
    return ()
