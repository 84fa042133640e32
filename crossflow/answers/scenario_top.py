"""The top of a scenario file: its sections that are read by the packages that they belong to, and what else stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from crossflow.base.files import FileModel
from crossflow.base.limits import PositiveInt, shown

OF_FAILURES = ("checkpoint", "restart", "spares", "elastic", "maintenance")  # fields of a run that is interrupted


def _notation(value: Any) -> Any:
    """A strategy as a file may write it; ValueError names the notations."""
    if value is None or isinstance(value, str | Mapping):
        return value
    raise ValueError(f"expected text such as tp8-dp4 or d32, a mapping such as {{tp: 8, dp: 4}}, or auto; got {shown(value)}")


class ScenarioTop(FileModel):
    """Top level of a scenario file without the sections of `APART`, which most files do not have and whose models take long to import."""

    name: str = ""
    title: str = ""
    notes: str = ""
    system: Any
    workload: Any
    techlib: Mapping[str, Any] = {}
    strategy: Annotated[str | Mapping[str, Any] | None, BeforeValidator(_notation)] = None
    software: str | Mapping[str, Any] | None = None
    profile: str | None = Field(default=None, description="file of measured event times, which replace the model's")
    run: Any = None
    job: Any = None
    placement: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["auto"] = "auto"
    kernels_per_device: PositiveInt = 1
    requests: Any = None


APART = ("run", "job", "requests")  # sections whose models `ScenarioFile` has


def model_of(data: Any) -> type[ScenarioTop]:
    """The model that reads a scenario's data: the top alone where they have no other keys, so that nothing else need be imported."""
    if isinstance(data, Mapping) and set(data) <= set(ScenarioTop.model_fields) - set(APART):
        return ScenarioTop
    from crossflow.answers.scenario_file import ScenarioFile

    return ScenarioFile
