"""A scenario file with all of its sections, and what the run that it asks for is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from crossflow.answers.scenario_top import ScenarioTop
from crossflow.base.files import FileModel
from crossflow.base.limits import ColumnName, Flag, NonNegativeInt, PositiveFloat
from crossflow.engine.lasting.spec import CheckpointSpec, JitterSpec, MaintenanceSpec, RestartSpec
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.requests.spec import RequestsSpec

LENGTHS = ("samples", "tokens", "steps")  # what says how long a run is
OF_ALL_PHASES = ("name", "run", "run.phases", *(f"run.{key}" for key in LENGTHS))  # what a phase cannot have otherwise


class RunPhase(FileModel):
    """A phase of a run: how much it processes, one of samples, tokens and steps, and what differs from the scenario meanwhile."""

    name: ColumnName = Field(description="what the phase is called, in its column `run.phase.NAME_s` too: letters, digits and _")
    samples: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    steps: PositiveFloat | None = None
    settings: Mapping[str, Any] = Field(
        default={}, description="what differs from the scenario, by path as after `--set`, such as `workload.sequence: 32768`"
    )

    @model_validator(mode="after")
    def _one(self) -> RunPhase:
        if _given(self.samples, self.tokens, self.steps) != 1:
            raise ValueError("give one of samples, tokens and steps")
        if wrong := next((path for path in self.settings if path in OF_ALL_PHASES), None):
            raise ValueError(f"settings: {wrong} is of the whole run; how long the phase is stands beside its name")
        return self

    @property
    def length(self) -> dict[str, float]:
        """How much it processes, by the key that says so."""
        return {key: value for key in LENGTHS if (value := getattr(self, key)) is not None}


class RunLength(FileModel):
    """How much a whole run processes, one of samples, tokens, steps and phases; what interrupts and slows it, and how it comes back."""

    samples: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    steps: PositiveFloat | None = None
    phases: tuple[RunPhase, ...] = Field(
        default=(), description="phases that follow one another, each with settings of its own, such as pretraining and post-training"
    )
    failures: str | Mapping[str, Any] | None = Field(
        default=None, description="what interrupts it: the name or path of a reliability file, or causes by name; see below"
    )
    checkpoint: CheckpointSpec | None = None
    restart: RestartSpec | None = None
    spares: NonNegativeInt | Literal["auto"] | None = Field(
        default=None, description="nodes that stand in for broken ones; auto, as where absent: the number at which work costs least"
    )
    elastic: Flag | Literal["reroute"] | None = Field(
        default=None,
        description="whether it goes on with fewer data-parallel replicas, and the same batch, where no spare is left; reroute: peers of"
        " broken stages do their work, in the bubbles of their pipelines first",
    )
    maintenance: MaintenanceSpec | None = None
    jitter: JitterSpec | None = Field(default=None, description="how steps vary, of which each waits for its slowest device")

    @model_validator(mode="after")
    def _one(self) -> RunLength:
        if _given(self.samples, self.tokens, self.steps, self.phases or None) != 1:
            raise ValueError("give one of samples, tokens, steps and phases")
        names = [phase.name for phase in self.phases]
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise ValueError(f"phases: two phases have the name {twice}")
        return self


def _given(*values: object) -> int:
    return sum(value is not None for value in values)


class ScenarioFile(ScenarioTop):
    """Top level of a scenario file; its sections are read by the packages that they belong to."""

    run: RunLength | None = None
    job: PostTrainingSpec | None = Field(default=None, description="post-training job whose training step this is; see below")
    requests: RequestsSpec | None = Field(
        default=None,
        description="requests of a service, which `serve`, `predict` and `study` replay: the path of a trace, or a mapping; see below",
    )
