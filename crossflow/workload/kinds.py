"""The kinds of workloads, each by the word that `workload.model` has for it."""

from __future__ import annotations

from typing import Any

from crossflow.workload.dlrm_spec import DlrmSpec
from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec, TransformerSpec

Workload = LstmSpec | GemmSpec | TransformerSpec | DlrmSpec | ProgramSpec
MODELS: dict[str, Any] = {
    "lstm": LstmSpec, "gemm": GemmSpec, "transformer": TransformerSpec, "dlrm": DlrmSpec, "program": ProgramSpec,
}  # fmt: skip
