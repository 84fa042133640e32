"""Parallelism of a model by torch's own means: DistributedDataParallel, FSDP2, and tensor parallelism by DTensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.torch import shards, tensor
from crossflow.evidence.torch.replicas import Replicated
from crossflow.evidence.torch.shards import ShardUnits
from crossflow.evidence.torch.tensor import TensorCuts

WORDS = ("ddp", "fsdp", "fsdp2", "hsdp", "tp", "pp")


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How many ranks share what.

    Attributes
    ----------
    data : "", ddp or fsdp.
    shards, replicas : ranks among which weights are sharded, and groups of these; of ddp all are replicas. [1]
    tensor : ranks that share every layer. [1]
    stages : of a pipeline; the others are of one stage. [1]
    """

    data: str
    shards: int
    replicas: int
    tensor: int
    stages: int = 1

    @property
    def axes(self) -> Mapping[str, int]:
        """Ranks along each axis, nearest neighbours first; the stages of a pipeline lie outside of them."""
        return {"tp": self.tensor, "fsdp": self.shards, "dp": self.replicas}

    @property
    def whole(self) -> str:
        """Name of the axis of all ranks."""
        return "tp" if self.tensor > 1 else "dp" if self.data == "ddp" else "fsdp"


def read(text: str, ranks: int) -> Parallelism | None:
    """Parallelism of a text such as ``tp=8,fsdp``, on so many ranks; None where it is empty.

    Raises
    ------
    CrossflowError
        Where a word is unknown, or its numbers do not divide the ranks.
    """
    if not text.strip():
        return None
    given = [_word(one) for one in text.split(",")]
    words = dict(given)
    if len(words) < len(given):
        raise CrossflowError(f"--parallel {text}: a word is given twice")
    tensor, stages = words.get("tp") or 1, words.get("pp") or 1
    data = [word for word in words if word not in ("tp", "pp")]
    if len(data) > 1:
        raise CrossflowError(f"--parallel {text}: {' and '.join(data)} exclude each other; give one of them")
    for word, size in (("tp", tensor), ("pp", stages), ("tp x pp", tensor * stages)):
        if ranks % size:
            raise CrossflowError(f"--parallel {text}: {word} = {size} does not divide the world of {ranks} ranks")
    left, shards = ranks // (tensor * stages), 1
    if data and data[0] != "ddp":
        shards = words[data[0]] or (math.gcd(left, 8) if data[0] == "hsdp" else left)
        if left % shards or (data[0] == "fsdp" and shards != left):
            raise CrossflowError(
                f"--parallel {text}: {shards} shards do not fill the {left} ranks beside tp; `hsdp=K` shards over K of them"
            )
    if not data and left > 1:
        raise CrossflowError(
            f"--parallel {text}: it leaves {left} of {ranks} ranks without work; add ddp or fsdp, or take a world of {tensor * stages}"
        )
    return Parallelism(
        data="" if not data else "ddp" if data[0] == "ddp" else "fsdp", shards=shards, replicas=left // shards,
        tensor=tensor, stages=stages,
    )  # fmt: skip


def _word(text: str) -> tuple[str, int | None]:
    name, mark, number = text.strip().partition("=")
    if name not in WORDS:
        raise CrossflowError(f"--parallel: expected words among {', '.join(WORDS)}, got '{name}'{did_you_mean(name, WORDS)}")
    if (mark and (not number.isdecimal() or int(number) < 1)) or (name in ("tp", "pp")) > bool(mark) or (mark and name == "ddp"):
        expected = f"{name}=8" if name in ("tp", "pp") else "ddp" if name == "ddp" else f"{name} or {name}=8"
        raise CrossflowError(f"--parallel: expected {expected}, got '{text.strip()}'")
    return name.replace("fsdp2", "fsdp"), int(number) if mark else None


@dataclass(frozen=True, kw_only=True)
class TorchDivision:
    """How the code of a model wants to be divided where the plain way fails.

    Attributes
    ----------
    cuts : which matrices tensor ranks divide; None for all that a plan or names say.
    units : what is gathered by itself beside the layers.
    note : what a user should know of it.
    """

    cuts: TensorCuts | None = None
    units: ShardUnits = field(default_factory=ShardUnits)
    note: str = ""


def parallelized(model: Any, plan: Parallelism, reduce: torch.dtype | None, outer: Mapping[str, int], division: TorchDivision) -> Any:
    """The model as a plan divides it, on the ranks of this world; gradients are reduced in a type of their own where one is given.

    `outer` has the stages of modules outside the blocks of a pipeline. Those of a stage are one group of shards, which stays gathered after
    a forward pass as the outermost one of every stage does.
    """
    if plan.tensor > 1:
        tensor.divide(model, mesh(plan)["tp"], division.cuts)
    if plan.data == "ddp" and plan.replicas > 1:
        # Replicas of a stage send no buffers: torch.distributed.pipelining runs their forward passes without synchronising.
        ranks = _mesh((plan.replicas, plan.tensor), ("dp", "tp"))["dp"]
        return Replicated(model, device_mesh=ranks, broadcast_buffers=plan.stages == 1, gradient_as_bucket_view=True, reduce_dtype=reduce)
    if plan.data == "fsdp" and plan.replicas * plan.shards > 1:
        ranks = _mesh((plan.replicas, plan.shards, plan.tensor), ("dp", "fsdp", "tp"))
        ranks = ranks["dp", "fsdp"] if plan.replicas > 1 else ranks["fsdp"]
        return shards.sharded(model, ranks, plan.shards, reduce, outer, division.units)
    return model


def mesh(plan: Parallelism) -> Any:
    """Ranks of a stage, of which those that share layers are neighbours."""
    return _mesh((plan.replicas * plan.shards, plan.tensor), ("data", "tp"))


def _mesh(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return torch.distributed.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=names)
