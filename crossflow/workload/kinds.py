"""The kinds of workloads, each by the word that `workload.model` has for it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from crossflow.base.results import later

if TYPE_CHECKING:
    from crossflow.workload.dlrm_spec import DlrmSpec
    from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec, TransformerSpec
else:
    GemmSpec, LstmSpec, ProgramSpec, TransformerSpec = later(
        "crossflow.workload.spec", "GemmSpec", "LstmSpec", "ProgramSpec", "TransformerSpec"
    )
    DlrmSpec = later("crossflow.workload.dlrm_spec", "DlrmSpec")

Workload: TypeAlias = LstmSpec | GemmSpec | TransformerSpec | DlrmSpec | ProgramSpec


class _Models(Mapping[str, Any]):
    """File models by their words, each imported when it is asked for: a scenario has a workload of one kind."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, kind: str) -> Any:
        module, _, name = self._places[kind].partition(":")
        return getattr(importlib.import_module(f"crossflow.workload.{module}"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


MODELS: Mapping[str, Any] = _Models(
    {
        "lstm": "spec:LstmSpec",
        "gemm": "spec:GemmSpec",
        "transformer": "spec:TransformerSpec",
        "dlrm": "dlrm_spec:DlrmSpec",
        "program": "spec:ProgramSpec",
    }
)
