"""How a model can be divided where the plain way fails: its code is tried, part by part, on what the import has of it anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from crossflow.evidence.torch import parallelize, shards, source, tensor
from crossflow.evidence.torch.parallelize import Parallelism, TorchDivision
from crossflow.evidence.torch.recorder import StepRecorder
from crossflow.evidence.torch.shards import ShardUnits
from crossflow.evidence.torch.tensor import TensorCuts
from crossflow.program.kernels import Attention

Traits = tuple[list[tuple[int, ...]], set[tuple[Any, Any]]]  # shapes of what a model returns; queries and keys of its attention


def otherwise(load: Callable[[], source.SourceModel], plan: Parallelism, recorder: StepRecorder, *, training: bool) -> TorchDivision:
    """Another division of a model, which `load` builds anew each time; the plain one where there is none.

    Each kind of group of matrices is divided alone, and kept where the step runs and neither what the model returns nor the tokens of its
    attention change. A group whose code does not allow it is divided matrix by matrix, with whole tensors between. Weights that are used
    while their layer is not called are gathered by themselves or with the whole model.
    """
    plain = _traits(load(), 1, recorder, training=training)
    if plain is None:
        return TorchDivision()
    cuts, units, note = None, ShardUnits(), ""
    if plan.tensor > 1:
        cuts, note = _cuts(load, plan, recorder, plain, training=training)
        if not cuts.groups:
            return TorchDivision()
    if plan.data == "fsdp":
        model = load()
        units = shards.units_of(model.module, model.args, model.kwargs)
    return TorchDivision(cuts=cuts, units=units, note=note)


def _cuts(
    load: Callable[[], source.SourceModel], plan: Parallelism, recorder: StepRecorder, plain: Traits, *, training: bool
) -> tuple[TensorCuts, str]:
    """Groups of matrices that the code of a model lets tensor ranks divide, and a note of those that stay whole."""
    ranks = parallelize.mesh(plan)["tp"]
    wide, gathered, whole, kept = set[str](), set[str](), list[str](), set[str]()
    for kind in tensor.groups(load().module, plan.tensor):
        one = frozenset({kind})
        tries = (TensorCuts(groups=one), TensorCuts(groups=one, widths=one), TensorCuts(groups=one, gathered=one))
        works = next(
            (cuts for cuts in tries if _same(_traits(load(), plan.tensor, recorder, (ranks, cuts), training=training), plain)), None
        )
        if works is None:
            whole.append(kind)
        else:
            kept |= one
            wide |= works.widths
            gathered |= works.gathered
    if len(whole) > len(kept):  # a model that is hardly divided is none of tensor ranks
        return TensorCuts(groups=frozenset()), ""
    notes = [] if not gathered else [
        "the code around these matrices does not allow their division, so each gives and takes whole tensors, which are gathered, and what "
        f"stands between them runs whole on all ranks: {', '.join(sorted(gathered))}"
    ]  # fmt: skip
    notes += [] if not whole else [
        f"these matrices stay whole on all ranks, because the code around them does not allow their division: {', '.join(whole)}"
    ]  # fmt: skip
    cuts = TensorCuts(groups=frozenset(kept), widths=frozenset(wide), gathered=frozenset(gathered))
    return cuts, "; ".join(f"--parallel tp: {one}" if not i else one for i, one in enumerate(notes))


def _same(found: Traits | None, plain: Traits) -> bool:
    return found is not None and found[0] == plain[0] and found[1] <= plain[1]


def _traits(
    model: source.SourceModel, ranks: int, recorder: StepRecorder, division: tuple[Any, TensorCuts] | None = None, *, training: bool
) -> Traits | None:
    """What a step of a model shows, divided over a mesh where one is given with what is cut; None where it fails."""
    try:
        if division is not None:
            tensor.divide(model.module, *division)
        with tensor.divided_loss(ranks), torch.set_grad_enabled(training):
            output = model.module(*model.args, **model.kwargs)
            if training:
                source.loss_of(model, output).backward()
    except (Exception, SystemExit):
        return None
    shapes = [tuple(one.shape) for one in tree_leaves(output) if isinstance(one, torch.Tensor)]
    kernels = (kernel for one in recorder.records for kernel in one.kernels)
    return shapes, {(one.length, one.seen) for one in kernels if isinstance(one, Attention)}
