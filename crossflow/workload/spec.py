"""The `workload` section of a scenario."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from crossflow.files import FileModel
from crossflow.workload.gemm import gemm
from crossflow.workload.graph import Graph
from crossflow.workload.lstm import lstm

DType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2}


class LstmSpec(FileModel):
    """LSTM language model: embedding, `layers` cells over `sequence` steps, softmax over the vocabulary."""

    model: Literal["lstm"]
    title: str = ""
    hidden: PositiveInt
    vocabulary: PositiveInt
    sequence: PositiveInt
    layers: PositiveInt = 2
    projection: PositiveInt | None = None
    global_batch: PositiveInt
    dtype: DType = "fp16"
    optimizer: Optimizer = "sgd"
    task: Literal["training", "forward"] = "training"

    def graph(self) -> Graph:
        """Compute graph of one step."""
        return lstm(
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            sequence=self.sequence,
            layers=self.layers,
            batch=self.global_batch,
            projection=self.projection,
            dtype=self.dtype,
            optimizer_states=OPTIMIZER_STATES[self.optimizer],
            training=self.task == "training",
        )


class GemmSpec(FileModel):
    """A matrix product C[m, n] = A[m, k] B[k, n]."""

    model: Literal["gemm"]
    title: str = ""
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    dtype: DType = "fp16"
    task: Literal["training", "forward"] = "forward"

    def graph(self) -> Graph:
        """Compute graph of one step."""
        return gemm(m=self.m, n=self.n, k=self.k, dtype=self.dtype, training=self.task == "training")


MODELS: dict[str, Any] = {"lstm": LstmSpec, "gemm": GemmSpec}
