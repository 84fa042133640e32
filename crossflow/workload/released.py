"""Types in which makers release the weights of models, and in which services then multiply.

A preset says under `served`, and a ``config.json`` in its quantisation, in which type weights are kept. Engines multiply in that type where
checkpoints have scales of activations or make them as they go (fp8, nvfp4) and the device has a rate for it; elsewhere kernels widen the
weights as they read them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from crossflow.base.formats import FORMATS
from crossflow.workload.spec import TransformerSpec

CONFIG = "config.json"  # what describes a model in a folder of Hugging Face
SERVED = "served"  # key of a preset
MTP_NOTE = "layers of multi-token prediction run in training only; a service that guesses with them has serving.speculation"
TYPES = ("dtype", "weight_dtype", "weight_dtypes", "wide_layers")  # keys of a workload that say types of weights and products
# Types of weights whose activations engines quantise too; beside other types of 4 bits they stay in 16 (vLLM, docs/features/quantization).
MULTIPLIED = ("fp8", "fp8_block", "nvfp4")
# Words for types of weights in the names of checkpoints, and the types that they mean.
_NAMED: Mapping[str, str] = {
    "nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp4": "nvfp4", "fp8": "fp8", "w8a8": "int8", "int8": "int8", "w4a16": "int4", "int4": "int4",
    "awq": "int4", "gptq": "int4",
}  # fmt: skip


def as_released(preset: Mapping[str, Any], given: Mapping[str, Any], rates: Collection[str]) -> dict[str, Any]:
    """The types that a service takes from a preset or a ``config.json``, and those of the states that it keeps.

    Parameters
    ----------
    preset : the model's keys.
    given : the keys that a workload gives beside it. What it says of types counts alone, but for a file's weights where it gives `dtype`.
    rates : types that the devices multiply in.

    >>> as_released({"served": {"weight_dtype": "fp8_block"}}, {"task": "decode"}, {"bf16", "fp8_block"})
    {'dtype': 'fp8_block'}
    >>> as_released({"served": {"weight_dtype": "fp8_block"}}, {"task": "decode"}, {"bf16"})
    {'weight_dtype': 'fp8_block'}
    >>> as_released({"served": {"weight_dtype": "mxfp4"}}, {"task": "decode", "dtype": "bf16"}, {"bf16"})
    {}
    """
    if given.get("task", "training") in ("training", "forward"):
        return {}
    told = dict(preset.get(SERVED, {key: preset[key] for key in TYPES if key in preset and preset.get("weight_dtype")}))
    states = {"ssm": {"state_dtype": state}} if (state := told.pop("state_dtype", None)) else {}
    return _of_weights(told, SERVED in preset, given, rates) | states


def _of_weights(told: dict[str, Any], in_preset: bool, given: Mapping[str, Any], rates: Collection[str]) -> dict[str, Any]:
    weight, dtype = told.get("weight_dtype"), given.get("dtype")
    if weight is None or given.get("weight_dtype"):
        return {}
    if dtype is not None:
        narrower = dtype in FORMATS and FORMATS[weight].bits < FORMATS[dtype].bits
        return told if not in_preset and narrower else {}
    wider = any(FORMATS[own].bits > FORMATS[weight].bits for own in told.get("weight_dtypes", {}).values())
    if weight in MULTIPLIED and weight in rates and not wider:
        return {**{key: value for key, value in told.items() if key != "weight_dtype"}, "dtype": weight}
    return told


def release_notes(spec: TransformerSpec, given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on the types that a service takes from the checkpoint of its model, where a workload gives none itself."""
    kept = spec.weight_dtype or (spec.dtype if spec.dtype in MULTIPLIED else None)
    if spec.serves and kept and not {"dtype", "weight_dtype"} & given.keys():
        how = "" if spec.weight_dtype is None else f", products in {spec.dtype}"
        own = "".join(f", those of {kind} in {stored}" for kind, stored in spec.weight_dtypes.items())
        yield f"weights are in {kept}{own}, as released{how}; give workload.dtype to change it"


def unsaid_types(spec: TransformerSpec, given: Mapping[str, Any], rates: Collection[str]) -> Iterator[str]:
    """A sentence on weights that are counted in 16 bits, where the name of the model's file, or of its folder, says another type.

    rates : types that the devices multiply in.
    """
    path = Path(str(given["model"]))
    told = spec.weight_dtype or spec.dtype in MULTIPLIED or {"dtype", "weight_dtype"} & given.keys()
    if told or not spec.serves or path.suffix != ".json":
        return
    words = [word.lower() for part in path.parts[-2:] for word in re.split(r"[^A-Za-z0-9]+", part)]
    if word := next((word for word in reversed(words) if word in _NAMED), None):
        (key, kind), *_ = as_released({SERVED: {"weight_dtype": _NAMED[word]}}, given, rates).items()
        yield (
            f"{path.name} is of a checkpoint in {word.upper()} by its name, but neither it nor a hf_quant_config.json beside it says so: "
            f"weights are counted in {spec.dtype}; --set workload.{key}={kind} changes that"
        )


def file_notes(spec: TransformerSpec, given: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on what a workload takes from a ``config.json`` where it gives nothing itself.

    Parameters
    ----------
    spec : the workload as it was read.
    given : its own keys, ``model`` among them; other models than a ``config.json`` have no notes.
    """
    name = Path(str(given["model"])).name
    if not name.endswith(".json"):
        return
    prompted = spec.serves and spec.prompt  # which counts in the place of the sequence
    if "sequence" not in given and spec.image is None and not prompted:
        yield f"sequence = {spec.sequence} is the longest that {name} allows; give workload.sequence to change it"
    if "global_batch" not in given and not spec.arrives:  # then as many are in flight as come and go
        yield f"global_batch = {spec.global_batch} because {name} gives none; give workload.global_batch to change it"
    if spec.diffusion and spec.diffusion.text_tokens and "text_tokens" not in (given.get("diffusion") or {}):
        tokens = spec.diffusion.text_tokens
        yield f"diffusion.text_tokens = {tokens}, as pipelines pad them; give workload.diffusion.text_tokens to change it"
    if spec.cross_tokens and "cross_tokens" not in given:
        yield f"cross_tokens = {spec.cross_tokens}, an image of as many tiles as there can be; give workload.cross_tokens to change it"
    if spec.notes and "notes" not in given:
        yield spec.notes
