"""A scenario file with all of its sections, and what the run that it asks for is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from crossflow.answers.scenario_top import ScenarioTop
from crossflow.base.files import FileModel
from crossflow.base.limits import Flag, NonNegativeInt, PositiveFloat
from crossflow.engine.lasting.spec import CheckpointSpec, JitterSpec, MaintenanceSpec, RestartSpec
from crossflow.workload.requests.post_training import PostTrainingSpec
from crossflow.workload.requests.spec import RequestsSpec


class RunLength(FileModel):
    """How much a whole run processes, one of samples, tokens and steps; what interrupts and slows it, and how it comes back."""

    samples: PositiveFloat | None = None
    tokens: PositiveFloat | None = None
    steps: PositiveFloat | None = None
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
        if sum(value is not None for value in (self.samples, self.tokens, self.steps)) != 1:
            raise ValueError("give one of samples, tokens and steps")
        return self


class ScenarioFile(ScenarioTop):
    """Top level of a scenario file; its sections are read by the packages that they belong to."""

    run: RunLength | None = None
    job: PostTrainingSpec | None = Field(default=None, description="post-training job whose training step this is; see below")
    requests: RequestsSpec | None = Field(
        default=None,
        description="requests of a service, which `serve`, `predict` and `study` replay: the path of a trace, or a mapping; see below",
    )
