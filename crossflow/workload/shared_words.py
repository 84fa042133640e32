"""Words of the `workload` section that models of several kinds share."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from crossflow.base.files import FileModel

DType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
ProductType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "int8", "fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8_block"]
# Of every four weights two are kept (Mishra et al., arXiv:2104.08378). YAML 1.1 reads 2:4 as a number of base 60.
Sparsity = Annotated[Literal["2:4"], BeforeValidator(lambda value: "2:4" if type(value) is int and value == 2 * 60 + 4 else value)]
WeightType = Literal["fp16", "bf16", "int8", "fp8", "mxfp8", "mxfp6", "int4", "int4_64", "int4_32", "mxfp4", "nvfp4", "fp8_block"]
CacheType = Literal["fp16", "bf16", "int8", "fp8", "nvfp4"]
StateType = Literal["fp32", "fp16", "bf16"]
Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adam": 2}


def listed(given: Any) -> Any:
    """Text as the list that its commas part."""
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else given


class SourcedSpec(FileModel):
    """A model file with sources, which is looked up by what it says."""

    @functools.cached_property
    def _hash(self) -> int:
        held = vars(self)
        return hash(tuple(held[name] for name in type(self).model_fields if name not in ("sources", "served", "weight_dtypes")))

    def __hash__(self) -> int:
        """A hash without what holds mappings: the sources, which change nothing, and types of weights, in which few models differ."""
        return self._hash
