"""What a fleet of engines is made of, beside the replicas of a service: pools of further engines, failures, autoscaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from crossflow.base.files import FileModel
from crossflow.base.limits import Flag, PositiveInt, Seed
from crossflow.base.units import parse

PoolOfEngines = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]


def quantity_in(unit: str, example: str) -> Callable[[Any], Any]:
    """What reads a quantity in a unit, which files write as text."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"expected a quantity in {unit}, such as '{example}', got {value!r}")  # noqa: TRY004  (pydantic tells of values)
        return parse(value, unit)

    return read


FleetTime = Annotated[float, Strict(), BeforeValidator(quantity_in("s", "90 s")), Field(gt=0.0, allow_inf_nan=False)]
StartTime = Annotated[float, Strict(), BeforeValidator(quantity_in("s", "90 s")), Field(ge=0.0, allow_inf_nan=False)]
Bound = Annotated[float, Strict(), Field(ge=0.0, allow_inf_nan=False)]


class EnginePoolSpec(FileModel):
    """Further engines of a service, which read and write as its replicas do, on devices of the same name below `system.pools`, or on
    further devices of `system` where there is no such pool.
    """

    strategy: str = Field(description="plan of one engine, such as tp4")
    workers: PositiveInt = Field(description="how many engines there are")
    classes: tuple[str, ...] = Field(
        (), description="classes of requests that only these engines serve, with `router: class`; all other classes have the other engines"
    )


class FailuresSpec(FileModel):
    """Failures of engines in a replay: each fails by itself, at random."""

    mean_time: FleetTime = Field(description="mean time between two failures of an engine, exponential, such as 500 hours")
    repair: FleetTime = Field(description="time until it serves again, with an empty cache, such as 5 min")
    keeps_output: Flag = Field(
        True, description="whether tokens that were written are kept, so that only their keys and values are computed anew"
    )
    seed: Seed = Field(0, description="of the times of failures")


class AutoscaleSpec(FileModel):
    """Replicas that are started and stopped with the load, in a replay; the strategy says how many there are at most."""

    least: PositiveInt = Field(description="replicas that always run; the replay begins with them")
    start: StartTime = Field(description="time from the start of a replica to its first request, for which it is paid, such as 90 s")
    signal: Literal["waiting", "load"] = Field(
        "load", description="requests per running or starting replica that decide: those that wait, or all"
    )
    up: Bound = Field(description="more of them start a replica")
    down: Bound = Field(description="fewer of them stop one, which takes no new request and ends when its last one has")
    interval: FleetTime = Field(10.0, description="how often the signal is looked at, such as 10 s")
    cooldown: StartTime = Field(0.0, description="time after a change in which no other is made, such as 60 s")
