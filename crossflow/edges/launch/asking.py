"""What the Python interface offers of launch files by name."""

from __future__ import annotations

from typing import Any

from crossflow.answers.planning.asking import asked
from crossflow.answers.planning.opening import Overrides, ScenarioSource, load
from crossflow.edges.launch.fleet import write_fleet
from crossflow.edges.launch.launch import write


def export(scenario: ScenarioSource | None = None, kind: str = "megatron", settings: Overrides = (), **named: Any) -> str:
    """The launch file of a scenario's strategy as text: of ``megatron``, ``torchtitan``, ``deepspeed``, ``maxtext``, ``vllm``, ``sglang``,
    ``tensorrt-llm`` or ``dynamo``.

    Raises
    ------
    CrossflowError
        Where the framework cannot express the strategy; with what it lacks.

    Examples
    --------
    >>> import crossflow
    >>> "--tensor-model-parallel-size" in crossflow.export(crossflow.example("llama"), "megatron")
    True
    """
    found = load(*asked("export", scenario, settings, named)[:2])
    return write(found, kind) if found.requests is None else write_fleet(found, kind)
