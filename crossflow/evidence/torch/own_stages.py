"""Stages of `torch.distributed.pipelining` that a function makes itself: one of them runs, and no other one answers it.

Before its first step a stage asks its neighbours whether all know the shapes of what they exchange, and if not, for these shapes [1]_. The
others are taken to know as much as this one. What a stage gives is as large as what comes back for it, so the gradients of its results are
known. What it is given is not, where the function does not say it.

References
----------
.. [1] `_warmup_forward_vote` and `_recv_meta` in torch/distributed/pipelining/stage.py, torch 2.13.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.recorder import Record

MODULE = "torch.distributed.pipelining.stage"
UNKNOWN = (
    "a stage of a pipeline asks the stage before it for shapes, which the import does not have; give PipelineStage input_args and "
    "output_args, tensors of a microbatch"
)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Stages whose neighbours answer, where the code of a model has loaded them."""
    stage = getattr(sys.modules.get(MODULE), "PipelineStage", None)
    if stage is None:
        yield
        return
    before = {name: stage.__dict__.get(name) for name in _METHODS}
    for name, method in _METHODS.items():
        setattr(stage, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            if method is None:
                delattr(stage, name)
            else:
                setattr(stage, name, method)


def _vote(stage: Any, has_backward: bool, received_acc: Any = None) -> Any:
    """Whether this stage and those of this rank before it know their shapes: 1, or 0."""
    from torch.distributed.pipelining import stage as own

    asks = own.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
    return torch.tensor([0 if asks else 1], dtype=torch.int32) if asks or received_acc is None else received_acc


def _result(_stage: Any, received_result: Any = None) -> Any:
    """What the stages of this rank agreed on, which is what all agreed on."""
    return received_result


def _received(stage: Any, source: int) -> Any:
    """Shapes of the gradients that the stage behind sends."""
    from torch.distributed.pipelining import _utils

    made = stage._stage_meta.outputs
    if made is None or source <= stage.stage_index:
        raise CrossflowError(UNKNOWN)
    return _utils._StageBackwardMeta(backward_metas=_utils._derive_grad_metas(made))


def _sent(*_: Any) -> None:
    """Shapes go to nobody."""


_METHODS = {"_warmup_forward_vote": _vote, "_warmup_backward_result": _result, "_recv_meta": _received, "_send_meta": _sent}


def phased(records: Sequence[Record]) -> list[Record]:
    """Records with transfers between stages in the phase of the pass that made what they carry, or else of the one that reads it."""
    made, found = dict[int, str](), list[Record]()
    for record in records:
        if record.collective != "send_recv":
            made |= dict.fromkeys(record.writes, record.phase)
    read = dict[int, str]()
    for record in reversed(records):
        if record.collective == "send_recv":
            key = next(iter(record.reads), -1)
            record = replace(record, phase=made.get(key, read.get(key, record.phase)))
        else:
            read |= dict.fromkeys(record.reads, record.phase)
        found.append(record)
    return found[::-1]
