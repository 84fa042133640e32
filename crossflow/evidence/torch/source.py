"""The user's own model, from a function of a script or module, or from the ``config.json`` of Hugging Face."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
from torch import nn
from torch.utils._pytree import tree_leaves

from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.torch import own_stages

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is not in the source.

    Attributes
    ----------
    batch, sequence : samples of one rank, and tokens of a sample. [1]
    dtype : type of the weights; that of the source where empty.
    training : whether a step trains.
    wide : whether gradients are reduced in fp32 where weights have fewer bits.
    """

    batch: int
    sequence: int | None
    dtype: str
    training: bool
    wide: bool = True


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model with what it is called on, or a whole training step.

    Attributes
    ----------
    module : the model, None where `step` is all that is known.
    args, kwargs : what it is called on.
    loss : loss of what it returns.
    optimizer : the source's own, or what makes one of weights, such as a class.
    step : one whole step; none where the importer has to write it.
    """

    module: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any]
    loss: Callable[..., Any] | None = None
    optimizer: Any = None
    step: Callable[[], Any] | None = None

    def shape(self, options: SourceOptions) -> tuple[int, int]:
        """Samples of a rank, and tokens of a sample, 0 where the word has no meaning: those of the inputs where there are any. [1]"""
        inputs = [one for one in tree_leaves((self.args, self.kwargs)) if isinstance(one, torch.Tensor) and one.dim() > 0]
        if not inputs:
            return options.batch, options.sequence or 0
        words = next((one for one in inputs if one.dim() == 2 and not one.dtype.is_floating_point), None)
        return int(inputs[0].shape[0]), int(words.shape[1]) if words is not None else 0


def load(source: str | Callable[..., Any], options: SourceOptions, world: contextlib.ExitStack) -> SourceModel:
    """The model of a source; its function runs here. What is changed for it lasts as long as the world."""
    from crossflow.evidence.torch import huggingface

    if isinstance(source, str) and (Path(source).is_dir() or source.endswith(".json")):
        return huggingface.load(Path(source), options, world)
    made = source if callable(source) else function(source)
    world.enter_context(own_stages.answered())  # also the whole step may be what runs now
    found = given(made, options, where_of(source))
    world.enter_context(own_stages.answered())
    if "transformers" in sys.modules:
        world.enter_context(huggingface.fused_attention())
        world.enter_context(huggingface.fused_scans())
    return found


def where_of(source: str | Callable[..., Any]) -> str:
    """What a source is called in messages."""
    return source if isinstance(source, str) else getattr(source, "__name__", "the function")


def function(source: str) -> Callable[..., Any]:
    """The function that ``script.py:name`` or ``module:name`` names."""
    place, mark, name = source.rpartition(":")
    if not mark or not place or not name:
        raise CrossflowError(f"expected script.py:function, module:function or a config.json of Hugging Face, got '{source}'")
    try:
        module = _script(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except CrossflowError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(error, place) from error
    found = getattr(module, name, None)
    if found is None:
        names = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        raise CrossflowError(f"{place} has no function '{name}'{did_you_mean(name, names)}")
    if not callable(found):
        raise CrossflowError(f"{source} is {type(found).__name__}; name a function that returns the model, or that runs one step")
    return found  # type: ignore[no-any-return]


def _script(path: Path) -> Any:
    if not path.is_file():
        raise CrossflowError(f"{path}: no such file")
    sys.path.insert(0, str(path.parent.absolute()))
    return files.python_module(path)


def raised(error: BaseException, where: str) -> CrossflowError:
    """An error of the user's code as one sentence, with the line where it arose and, where one is known, the cure."""
    what = " ".join(line.strip() for line in str(error).strip().splitlines())
    what = what if len(what) <= LONGEST else f"{what[:LONGEST]} ..."
    kind, place = type(error).__name__, _line_of(error)
    for mark, cure in _CURES.items():
        if mark in f"{kind}: {error}":
            return CrossflowError(f"{where}: {cure}{place}")
    return CrossflowError(f"{where}{RAISED}{kind}{place}: {what}" if what else f"{where}{RAISED}{kind}{place}")


def guessed(error: BaseException, where: str) -> CrossflowError:
    """An error of code that has read whole numbers out of data, which were not known."""
    found = raised(error, where)
    if RAISED not in str(found):
        return found
    return CrossflowError(
        f"{where}: its code reads whole numbers out of data, such as how many tokens each expert gets, which the import does not have, and "
        f"fails with others{_line_of(error)}; take a form whose shapes are fixed, such as grouped products, or give such inputs as numbers "
        "(torch.tensor of a list)"
    )


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's own code in the trace of an error, of a package other than torch where there is none, else ""."""
    place, library, trace = "", "", error.__traceback__
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        _, installed, inside = file.rpartition("site-packages/")
        if installed and not inside.startswith("torch/"):
            library = f" (line {line} of {inside})"
        elif not installed and "/crossflow/evidence/torch/" not in file and "importlib" not in file:
            place = f" (line {line} of {Path(file).name})"
        trace = trace.tb_next
    return place or library


RAISED = " raised "  # of an error for which no cure is known
LONGEST = 300  # characters of a message of other people's code
_NO_GPU = "the import runs on fake tensors of the CPU; choose the device by torch.cuda.is_available()"
_CURES = {
    "in-place operations that require placement changes": "torch does not do one of its in-place operations on divided weights, such as "
    "those of Adafactor or Rprop; take ddp, or another optimizer",
    "missing 1 required positional argument: 'closure'": "the optimizer runs the model itself, by a closure, as often as it needs; return "
    "a step to run that does so a fixed number of times, or another optimizer",
    "has no attribute 'decoder_start_token_id'": "the configuration does not say with which token the decoder starts; give it "
    "decoder_start_token_id, or the model decoder_input_ids",
    "You must specify exactly one of": "the model lacks an input, such as that of a decoder; return (model, inputs by their names) with "
    "labels or decoder_input_ids",
    "Expected inputs of BF16 type": "torch multiplies matrices of experts in BF16 only; give --dtype bf16",
    "does not have a sharding strategy registered": "torch cannot divide one of its operations over tensor ranks; write attention with "
    "scaled_dot_product_attention, or leave tp out",
    "of _ToTorchTensor is a view and is being modified inplace": "a part of the model changes in place what a divided matrix gives, which "
    "torch does not do; write it out of place, or leave tp out",
    "got mixed torch.Tensor and DTensor": "a part of the model uses divided weights without calling the module that has them, or beside "
    "weights that are not divided, which torch does not do; take ddp, or divide the model in the function",
    "local_tensor argument only accepts torch.Tensor": "a part of the model takes the local part of a divided matrix itself, as code "
    "with a plan of its own does; take ddp, or divide the model in the function as that code does",
    "SparseTensorImpl": "gradients with sparse=True are not recorded; build embeddings with sparse=False, whose gradients have every row "
    "of the table",
    "DynamicOutputShapeException": "what runs depends on the values of data, which the import does not have; take a routing whose shapes "
    "are fixed, such as grouped products, or return of a detector its backbone and heads, with a loss of what they give",
    "DataDependentOutputException": "what runs depends on the values of data, which the import does not have; leave it out of the step",
    "GuardOnDataDependent": "what runs depends on the values of data, which the import does not have; leave it out of the step",
    "Expected more than 1 value per channel when training": "a norm over the samples of a batch needs more than one of them; give a larger "
    "--batch, or fewer --microbatches",
    "Torch not compiled with CUDA": _NO_GPU,
    "not linked with support for cuda": _NO_GPU,
    "two devices, cpu and cuda": _NO_GPU,
    "needs a non-CPU accelerator": "the first form of FSDP needs an accelerator; use fully_shard, or --parallel fsdp2",
    "Found no NVIDIA driver": _NO_GPU,
}


def given(made: Callable[..., Any], options: SourceOptions, where: str) -> SourceModel:
    """The model that a function returns, or the function itself where it is the step."""
    known = {"batch": options.batch, "sequence": options.sequence, "dtype": DTYPES.get(options.dtype)}
    try:
        named = inspect.signature(made).parameters
    except (TypeError, ValueError):
        named = inspect.Signature().parameters
    needed = [name for name, one in named.items() if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = [name for name in needed if known.get(name) is None]
    if unknown:
        raise CrossflowError(
            f"{where} needs {', '.join(unknown)}, which the import does not know; it gives batch, sequence and dtype where these are given"
        )
    given_ = {name: value for name, value in known.items() if name in named and value is not None}
    try:
        found = made(**given_)
    except CrossflowError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(error, where) from error
    idle = [name for name, default in (("batch", 1), ("sequence", None)) if getattr(options, name) != default and name not in named]
    if idle and not _lacks_inputs(found):
        raise CrossflowError(
            f"{where} has inputs of its own, so --{idle[0]} changes nothing; leave it out, or let the function take '{idle[0]}'"
        )
    return _model(found, options, where, lambda: made(**given_))


def _lacks_inputs(found: Any) -> bool:
    """Whether what a function returned leaves the inputs to the import."""
    if isinstance(found, Mapping):
        return found.get("inputs") is None
    parts = found if isinstance(found, tuple | list) else (found,)
    return all(isinstance(one, nn.Module | torch.optim.Optimizer) for one in parts)


def _model(found: Any, options: SourceOptions, where: str, again: Callable[[], Any]) -> SourceModel:
    """What a function returned, in the one form."""
    if isinstance(found, nn.Module):
        return SourceModel(module=found, args=_inputs(found, options, where), kwargs={})
    if isinstance(found, Mapping) and isinstance(found.get("module", found.get("model")), nn.Module):
        module, inputs = found.get("module", found.get("model")), found.get("inputs")
        unknown = [key for key in found if key not in ("module", "model", "inputs", "loss", "optimizer")]
        if unknown:
            raise CrossflowError(f"{where} returns a mapping with '{unknown[0]}'; its keys are model, inputs, loss and optimizer")
        args, kwargs = _called(inputs) if inputs is not None else (_inputs(module, options, where), {})
        return SourceModel(module=module, args=args, kwargs=kwargs, loss=found.get("loss"), optimizer=found.get("optimizer"))
    if isinstance(found, tuple | list) and found and isinstance(found[0], nn.Module):
        module, *rest = found
        optimizer = next((one for one in rest if isinstance(one, torch.optim.Optimizer)), None)
        rest = [one for one in rest if one is not None and not isinstance(one, torch.optim.Optimizer)]
        if len(rest) > 2 or (len(rest) == 2 and not callable(rest[1])):
            raise CrossflowError(
                f"{where} returns {len(found)} things; expected (model, inputs, loss function), the last or last two left out"
            )
        args, kwargs = _called(rest[0]) if rest else (_inputs(module, options, where), {})
        return SourceModel(module=module, args=args, kwargs=kwargs, loss=rest[1] if len(rest) == 2 else None, optimizer=optimizer)
    if callable(found):
        return SourceModel(step=found, kwargs={})
    if found is None or isinstance(found, torch.Tensor | float | int):
        return SourceModel(step=again, kwargs={})
    raise CrossflowError(
        f"{where} returns {type(found).__name__}; expected a model, (model, inputs), (model, inputs, loss), or a step to run"
    )


def _called(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments of a call, by place or by name."""
    if isinstance(inputs, Mapping):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _inputs(module: Any, options: SourceOptions, where: str) -> tuple[Any, ...]:
    """Inputs of a model that came without: tokens for a table of embeddings, a vector for a matrix."""
    first = next((one for one in module.modules() if next(one.parameters(recurse=False), None) is not None), None)
    if isinstance(first, nn.Embedding):
        if options.sequence is None:
            raise CrossflowError(f"{where} returns a model of tokens without inputs; give --sequence, or return (model, inputs)")
        return (torch.randint(0, first.num_embeddings, (options.batch, options.sequence)),)
    if isinstance(first, nn.Linear):
        lead = (options.batch,) if options.sequence is None else (options.batch, options.sequence)
        return (torch.randn(*lead, first.in_features, dtype=first.weight.dtype),)
    raise CrossflowError(f"{where} returns {type(module).__name__} without inputs, and they do not follow from it; return (model, inputs)")


def loss_of(model: SourceModel, output: Any) -> Any:
    """Loss of what a model returned: that of its function, its own, that of the next token, or the mean."""
    if model.loss is not None:
        return model.loss(output)
    own = getattr(output, "loss", None)
    if own is None and isinstance(output, Mapping):
        own = output.get("loss")
    if own is not None:
        return own
    made = [one for one in tree_leaves(output) if isinstance(one, torch.Tensor) and one.requires_grad]
    if not made:
        raise CrossflowError("nothing that the model returns depends on its weights; return (model, inputs, loss function)")
    first = getattr(output, "logits", None)
    first = made[0] if first is None else first
    tokens = next((one for one in (*model.args, *model.kwargs.values()) if isinstance(one, torch.Tensor)), None)
    if first.dim() == 0:
        return first
    if tokens is not None and not tokens.dtype.is_floating_point and first.shape[:-1] == tokens.shape:
        return torch.nn.functional.cross_entropy(first.flatten(0, -2).float(), tokens.flatten())
    return first.float().mean()
