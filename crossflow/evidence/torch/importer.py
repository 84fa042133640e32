"""A PyTorch model as a program: one step of rank 0 of a world that is not there, recorded on tensors without memory."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.torch import parallelize, shards, source
from crossflow.evidence.torch.divisions import otherwise
from crossflow.evidence.torch.fusion import fused
from crossflow.evidence.torch.ops import MixedAdamW, local
from crossflow.evidence.torch.own_stages import phased
from crossflow.evidence.torch.parallelize import Parallelism, TorchDivision
from crossflow.evidence.torch.pipeline import microbatch_of, pipelined
from crossflow.evidence.torch.program import STAGES, Recorded, program_of
from crossflow.evidence.torch.recorder import FORWARD, ModelCall, Record, StepRecorder
from crossflow.evidence.torch.replicas import STAGE, Replicated, add_up
from crossflow.evidence.torch.stages import Stages, settled, tied_sums
from crossflow.evidence.torch.tensor import IndivisibleError, divided_loss
from crossflow.evidence.torch.world import collected, fake_world
from crossflow.program.kernels import Product
from crossflow.program.mesh import RankMesh, mesh_of
from crossflow.program.program import Program

Kernels = Literal["fused", "eager"]
OPTIMIZERS: Mapping[str, Callable[[Any], Any] | None] = {
    "adamw": MixedAdamW, "sgd": lambda weights: torch.optim.SGD(weights, lr=1e-3), "none": None,
}  # fmt: skip

# What torch says of shapes that do not fit.
_UNDIVIDED = (
    "is invalid for input of size",
    "Sharding propagation failed",
    "split_with_sizes expects",
    "Given normalized_shape=",  # a norm over all heads
    "Attempting to broadcast a dimension",
    "must match the size of tensor",
    "The expanded size of the tensor",
    "shapes cannot be multiplied",
    "Expect input to have",  # copies of one that is divided
)
_BY_NAMES = "its matrices cannot be divided over tensor ranks by their names; leave tp out, or call parallelize_module in the function"
_COPIES = ("all_gather", "broadcast")  # of weights and of buffers


def record(
    model: str | Callable[..., Any],
    *,
    world_size: int = 1,
    parallel: str = "",
    batch: int = 1,
    microbatches: int | None = None,
    sequence: int | None = None,
    dtype: str = "",
    optimizer: str = "adamw",
    gradients: str = "fp32",
    task: str = "training",
    kernels: Kernels = "fused",
    samples: int | None = None,
    rank: int | None = None,
    name: str = "",
) -> Program:
    """Record one step of a model as a program of `world_size` ranks.

    Parameters
    ----------
    model : ``script.py:function``, ``module:function``, a function, or a ``config.json`` of Hugging Face. The function returns a model,
        (model, inputs), (model, inputs, loss function), a mapping with these, or runs a step itself.
    world_size : ranks. [1]
    parallel : what divides the model, such as ``ddp``, ``tp=8,fsdp`` or ``tp=8,pp=4,ddp``; the function itself may do so instead.
    microbatches : parts of the batch that go through the stages of a pipeline one after the other; as many as stages by default. [1]
    batch, sequence : samples of a rank and tokens of a sample, where the function gives no inputs. [1]
    dtype : type of the weights; that of the source where empty.
    optimizer, task : adamw, sgd or none, where the function gives none; training, or inference, which is the forward pass alone.
    gradients : type in which `parallel` reduces gradients: fp32, as frameworks do, or that of the weights.
    kernels : fused joins pointwise operations as compilers do; eager leaves each to itself.
    samples : samples of a step over all ranks; by default those of the inputs of a rank times the ranks that share no layers. [1]
    rank : as which the function runs, where it divides the model itself, such as into stages of a pipeline; 0 by default.
    name : of the program.

    Raises
    ------
    CrossflowError
        Where the model cannot be recorded; one sentence says why, and the cure.
    """
    _check(
        dtype=(dtype, ("", *source.DTYPES)), optimizer=(optimizer, OPTIMIZERS), task=(task, ("training", "inference")),
        kernels=(kernels, ("fused", "eager")), gradients=(gradients, ("fp32", "weights")),
    )  # fmt: skip
    number = _checked_rank(rank, world_size, batch, sequence, parallel)
    plan = parallelize.read(parallel, world_size)
    parts, ranks = _microbatches(plan, microbatches), world_size // (plan.stages if plan is not None else 1)
    options = source.SourceOptions(batch=batch, sequence=sequence, dtype=dtype, training=task == "training", wide=gradients == "fp32")
    with collected(), fake_world(ranks, number) as world, StepRecorder() as recorder:
        found, stages = _run(model, plan, parts, options, optimizer, recorder, world)
    recorder.records = phased(recorder.records)
    where = source.where_of(model)
    mesh, replicas = _meshed(recorder.records, plan, options, where, ranks)
    step = _laid_out(recorder, stages, ranks, join=kernels == "fused", training=options.training)
    every = samples or replicas * (found.shape(options)[0] if found.step is None else _samples(recorder.calls, where))
    return program_of(
        step, mesh, name=name or _name(where), dtype=_dtype(recorder.records), samples=every, tokens=found.shape(options)[1],
        training=options.training,
    )  # fmt: skip


def _checked_rank(rank: int | None, world_size: int, batch: int, sequence: int | None, parallel: str) -> int:
    """The rank as which a function runs; CrossflowError for numbers that mean nothing."""
    if world_size < 1 or batch < 1 or (sequence is not None and sequence < 1):
        raise CrossflowError("the world, the batch and the sequence are whole numbers of 1 or more")
    if not 0 <= (rank or 0) < world_size:
        said = f"the ranks of a world of {world_size} are 0 to {world_size - 1}"
        raise CrossflowError(f"rank {rank}: {said}; give another --rank or --world-size")
    if rank is not None and parallel:
        raise CrossflowError(
            "with --parallel crossflow chooses which ranks are run; leave --rank out, or --parallel and divide the model in the function"
        )
    return rank or 0


def _laid_out(recorder: StepRecorder, stages: Stages | None, ranks: int, *, join: bool, training: bool) -> Recorded:
    """What was recorded, with pointwise operations joined where asked for, and as the stages of `ranks` ranks each run it."""
    step = Recorded(records=recorder.records, sizes=recorder.sizes, held=recorder.held, parameters=recorder.parameters)
    if stages is not None:
        return pipelined(step, recorder.marks, stages, ranks, join=join, training=training)
    return replace(step, records=fused(step.records, step.held)) if join else step


def _microbatches(plan: Parallelism | None, given: int | None) -> int:
    """Microbatches of a step. [1]"""
    stages = plan.stages if plan is not None else 1
    if given is not None and stages == 1:
        raise CrossflowError("microbatches go through the stages of a pipeline; give --parallel pp=K, or leave --microbatches out")
    if given is not None and given < 1:
        raise CrossflowError("the microbatches are a whole number of 1 or more")
    return given or stages


def _meshed(
    records: Sequence[Record], plan: Parallelism | None, options: source.SourceOptions, where: str, world_size: int
) -> tuple[RankMesh, int]:
    """RankMesh of the ranks that communicate, and how many of the ranks of a stage share no layers. [1]"""
    sent = [one for one in records if one.collective is not None and len(one.ranks) > 1 and one.axis != STAGES]
    if world_size > 1 and not sent and options.training:
        raise CrossflowError(f"{where}: none of the {world_size} ranks sends anything to another; give --parallel, or a world of 1")
    axes = plan.axes if plan is not None else {}
    mesh = mesh_of({one.ranks: one.axis or (plan.whole if plan is not None else "") for one in sent}, world_size, axes)
    shared = plan.tensor if plan is not None else _sharing(sent, mesh)
    if plan is not None and plan.stages > 1:
        mesh = replace(mesh, axes={**mesh.axes, STAGES: plan.stages}, of={**mesh.of, (0, world_size): (STAGES,)})
    return mesh, world_size // shared


def _samples(calls: Sequence[ModelCall], where: str) -> int:
    """Samples of a step that runs its models itself: those of all calls of a model, where all inputs have as many and no model differs."""
    found = {model: [set(leads) for one, leads in calls if one == model] for model, _ in calls}
    if found and all(len(one) == 1 for mine in found.values() for one in mine):
        totals = {sum(one.pop() for one in mine) for mine in found.values()}
        if len(totals) == 1:
            return totals.pop()
    raise CrossflowError(f"{where} runs the step itself, and its inputs do not say how many samples a step has; give --samples")


def _check(**given: tuple[str, Iterable[str]]) -> None:
    """Refuse words that are not known."""
    for name, (word, known) in given.items():
        if word not in known:
            raise CrossflowError(f"{name}: expected one of {', '.join(filter(None, known))}, got '{word}'{did_you_mean(word, known)}")


def _run(
    given: str | Callable[..., Any],
    plan: Parallelism | None,
    parts: int,
    options: source.SourceOptions,
    optimizer: str,
    recorder: StepRecorder,
    world: ExitStack,
) -> tuple[source.SourceModel, Stages | None]:
    """Run two steps; the second one stays in the recorder, when buckets, prefetches and layouts are settled.

    Where the plain way to divide the model fails, it is built and divided anew as its code allows.
    """
    if options.dtype:
        torch.set_default_dtype(source.DTYPES[options.dtype])
    where = source.where_of(given)

    def load() -> source.SourceModel:
        found = source.load(given, options, world)
        recorder.forget()  # modules that were called while the model was built
        return _prepared(found, options)

    def run(division: TorchDivision) -> tuple[source.SourceModel, Stages | None]:
        return _two_steps(load(), plan, parts, options, optimizer, recorder, where, division)

    try:
        found = run(TorchDivision())
    except CrossflowError as error:
        if not isinstance(error, IndivisibleError):
            raise
        found = _run_otherwise(error, error, load, run, plan, options, recorder)
    except (Exception, SystemExit) as error:
        said = source.guessed(error, where) if recorder.guesses else _said(error, where, divided=plan is not None and plan.tensor > 1)
        found = _run_otherwise(error, said, load, run, plan, options, recorder)
    if not recorder.records:
        raise CrossflowError(f"{where}: the step runs no operation of torch")
    return found


def _run_otherwise(
    error: BaseException,
    said: CrossflowError,
    load: Callable[[], source.SourceModel],
    run: Callable[[TorchDivision], tuple[source.SourceModel, Stages | None]],
    plan: Parallelism | None,
    options: source.SourceOptions,
    recorder: StepRecorder,
) -> tuple[source.SourceModel, Stages | None]:
    """The steps as another division has them, with what was `said` of the error of the first where there is none."""
    found, division = None, TorchDivision()
    try:
        division = otherwise(load, plan, recorder, training=options.training) if plan is not None else division
        found = run(division) if division != TorchDivision() else None
    except (Exception, SystemExit):
        raise said from error
    if found is None:
        raise said from error
    if division.note:
        warnings.warn(division.note, stacklevel=2)
    return found


def _two_steps(
    found: source.SourceModel,
    plan: Parallelism | None,
    parts: int,
    options: source.SourceOptions,
    optimizer: str,
    recorder: StepRecorder,
    where: str,
    division: TorchDivision,
) -> tuple[source.SourceModel, Stages | None]:
    """Run two steps of a model, divided as `division` says; the records of the second one stay."""
    if found.step is not None and plan is not None:
        raise CrossflowError(f"{where} runs the step itself; leave --parallel out, or return the model")
    model, stages = found, None
    if plan is not None and plan.stages > 1:
        args, kwargs = microbatch_of((found.args, found.kwargs), found.shape(options)[0], parts)
        model, stages = replace(model, args=args, kwargs=kwargs), _divided(model.module, args, kwargs, plan.stages, parts, recorder)
    step = found.step or _step(model, plan, stages, options, optimizer, recorder, division)
    step()
    recorder.clear()
    step()
    return found, stages


def _said(error: BaseException, where: str, *, divided: bool) -> CrossflowError:
    """An error of a model. If its matrices are divided over tensor ranks, that is likely the reason where no other is known."""
    if not divided:
        return source.raised(error, where)
    if any(words in str(error) for words in _UNDIVIDED):
        return CrossflowError(f"{where}: {_BY_NAMES}")
    found = source.raised(error, where)
    return CrossflowError(f"{found}; leave tp out, or call parallelize_module in the function") if source.RAISED in str(found) else found


def _prepared(model: source.SourceModel, options: source.SourceOptions) -> source.SourceModel:
    """The model as it trains or infers, in the type that was asked for."""
    if model.module is None:
        return model
    module = model.module
    with contextlib.suppress(NotImplementedError):  # what torch.export gives is as it was exported
        module.train(options.training)
    return replace(model, module=module.to(source.DTYPES[options.dtype])) if options.dtype else model


def _divided(module: Any, args: Any, kwargs: Any, count: int, microbatches: int, recorder: StepRecorder) -> Stages:
    """Stages of a model; a forward pass tells what runs where."""
    stages = Stages.divided(module, count, microbatches)
    with torch.no_grad():
        module(*args, **kwargs)
    stages = settled(stages, module, recorder)
    recorder.forget()
    return stages


def _step(
    model: source.SourceModel,
    plan: Parallelism | None,
    stages: Stages | None,
    options: source.SourceOptions,
    optimizer: str,
    recorder: StepRecorder,
    division: TorchDivision,
) -> Callable[[], None]:
    """One step of a model: forward, backward, update."""
    module = model.module
    before = {id(one): name for name, one in module.named_parameters(remove_duplicate=False)}
    if plan is not None:
        if any(isinstance(one, Replicated) for one in module.modules()) or any(local(one) is not one for one in module.parameters()):
            raise CrossflowError("the function divides the model itself; leave --parallel out")
        wide = options.wide and model.optimizer is None and OPTIMIZERS[optimizer] is MixedAdamW and module_type(module).itemsize < 4
        if wide and stages is not None and stages.microbatches > 1 and plan.data != "fsdp":
            add_up(module, torch.float32)
        outer = stages.outer if stages is not None else {}
        module = parallelize.parallelized(module, plan, torch.float32 if wide else None, outer, division)
    if not options.training:

        def infer() -> None:
            with torch.no_grad():
                module(*model.args, **model.kwargs)

        return infer

    def back(synchronises: bool) -> None:
        idle = module.no_sync() if isinstance(module, Replicated) and not synchronises else nullcontext()
        with idle, shards.microbatch(module) if stages is not None else nullcontext(), divided_loss(plan.tensor if plan is not None else 1):
            source.loss_of(model, module(*model.args, **model.kwargs)).backward()

    after = dict(model.module.named_parameters(remove_duplicate=False))  # which FSDP2 and DTensor have put in their place
    renamed = {weight: after[name] for weight, name in before.items()}
    # As those whom scripts give an optimizer before the first step; hooks may put others into the modules later.
    weights = [one for one in module.parameters() if one.requires_grad]
    update = functools.cache(lambda: _update(model, module, weights, plan, stages, optimizer, recorder, renamed))

    def train() -> None:
        for _ in range(stages.recorded - 1 if stages is not None else 0):
            back(synchronises=False)
            recorder.mark()
        back(synchronises=True)
        if stages is not None:
            shards.reduce_shards(module)
        found = update()
        if stages is not None:
            recorder.records += tied_sums(stages, module, recorder)
        if found is not None:
            found.step()
        for one in weights:
            one.grad = None
            vars(one).pop("main_grad", None)

    return train


def _update(
    model: source.SourceModel,
    module: Any,
    weights: Sequence[Any],
    plan: Parallelism | None,
    stages: Stages | None,
    optimizer: str,
    recorder: StepRecorder,
    renamed: Mapping[int, Any],
) -> Any:
    """The optimizer, with groups of weights for every stage; they are known once a step was recorded."""
    if stages is not None:
        names = {recorder.key(one): name for name, one in module.named_parameters()}
        stage = stages.of_weights(recorder.records, recorder.held, names)
        for one in weights:
            setattr(one, STAGE, stage.get(recorder.key(one), 0))
    own, made = model.optimizer, OPTIMIZERS[optimizer]
    if isinstance(own, torch.optim.Optimizer):
        if plan is not None:
            own.param_groups = [part for group in own.param_groups for part in _of_each_stage({**group, "params": _now(group, renamed)})]
        return own
    make = own or made
    return None if make is None else make([*weights] if stages is None else _of_each_stage({"params": weights}))


def _now(group: Mapping[str, Any], renamed: Mapping[int, Any]) -> list[Any]:
    """The weights of an optimizer's group as they are after the model was divided."""
    unknown = next((one for one in group["params"] if id(one) not in renamed), None)
    if unknown is not None:
        raise CrossflowError(
            f"the optimizer has a weight of shape {tuple(unknown.shape)} that is not in the model; leave --parallel out, or give the "
            "optimizer weights of the model alone"
        )
    return [renamed[id(one)] for one in group["params"]]


def _of_each_stage(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A group of weights as one of each stage that has some of them."""
    stages = sorted({getattr(one, STAGE, 0) for one in group["params"]})
    return [{**group, "params": [one for one in group["params"] if getattr(one, STAGE, 0) == stage]} for stage in stages]


def module_type(module: Any) -> torch.dtype:
    """Type of the first weights of a model."""
    return next((one.dtype for one in module.parameters()), torch.get_default_dtype())


def _sharing(sent: Sequence[Record], mesh: RankMesh) -> int:
    """Ranks that share the work on one sample: those of axes along which results travel forward, not only weights and buffers. [1]"""
    axes = {axis for one in sent if one.phase == FORWARD and one.collective not in _COPIES for axis in mesh.of[one.ranks]}
    return math.prod(size for axis, size in mesh.axes.items() if axis in axes)


def _dtype(records: Sequence[Record]) -> str:
    """Type in which most operations of products are done, that of most passes where there are none."""
    weight = Counter[str]()
    for one in records:
        if one.dtype:
            weight[one.dtype] += int(sum(np.max(kernel.flops) for kernel in one.kernels if isinstance(kernel, Product)) or 1)
    return weight.most_common(1)[0][0] if weight else "fp32"


def _name(where: str) -> str:
    place = where.rpartition(":")[2] if ":" in where else Path(where).stem
    return Path(where).absolute().parent.name if place == "config" else place
