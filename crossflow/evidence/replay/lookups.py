"""Look-ups of embedding tables in a trace: one table of PyTorch, or several of FBGEMM with the pass back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from crossflow.evidence.replay.tensors import TracedOperation, TracedTensor, tensors_of
from crossflow.program import operations
from crossflow.program.kernels import Lookup, TableOptimizer

NOTHING = "it looked nothing up"
UNSIZED = "the sizes of its tensors were not recorded"
LOOKUPS = ("split_embedding_codegen_lookup_", "dense_embedding_codegen_lookup_")
UPDATES = "SplitLookupFunction_"
_OPTIMIZERS: Mapping[str, TableOptimizer] = {"sgd": "sgd", "adagrad": "adagrad", "rowwise_adagrad": "rowwise_adagrad", "dense": "sgd"}
# Places of weights, offsets of widths, the sum of widths, indices, offsets and weights of indices among the arguments of FBGEMM.
_SPLIT, _DENSE = ((1, 2), 6, 7, 11, 12, 14), ((0,), 2, 3, 7, 8, 10)


def lookup_optimizer(name: str) -> str:
    """What updates the tables of a look-up of FBGEMM, or of its backward pass; "" for any other operation.

    >>> lookup_optimizer("split_embedding_codegen_lookup_adagrad_function"), lookup_optimizer("SplitLookupFunction_adagrad_Op")
    ('adagrad', 'adagrad')
    """
    if name.startswith(LOOKUPS[1]):
        return "dense"
    for begin in (LOOKUPS[0], UPDATES):
        if name.startswith(begin):
            return re.sub(r"_(function|Op)(_pt2)?$", "", name[len(begin) :]).lower()
    return ""


def index_places(optimizer: str) -> tuple[int, ...]:
    """Places of indices, their offsets and their weights among the arguments of a look-up of FBGEMM."""
    return (_DENSE if optimizer == "dense" else _SPLIT)[3:]


def looks_up(name: str) -> bool:
    """Whether an operation of FBGEMM looks up, rather than goes back."""
    return name.startswith(LOOKUPS)


def bag(operation: TracedOperation) -> Lookup | str:
    """Look-ups of one table; a sample has an offset where the result was not recorded."""
    table, indices, offsets = operation.args[:3]
    samples = next(tensors_of(operation.out), offsets) if operation.out else offsets
    if not indices.numel() or not samples.shape[0]:
        return NOTHING
    found, *_ = operations.kernels_of("_embedding_bag", operation.args, (samples,)) or ()
    assert isinstance(found, Lookup)
    return replace(found, distinct=_distinct(float(table.shape[0]), float(indices.numel())))


def tables(optimizer: str, args: Sequence[object], gradient: TracedTensor | None) -> Lookup | str:
    """The look-ups that a call of FBGEMM asks for. Indices are taken as drawn evenly from the rows of a table."""
    if optimizer not in _OPTIMIZERS:
        return f"the optimizer {optimizer} of tables is not modelled"
    weights, widths, sum_of_widths, *places = _DENSE if optimizer == "dense" else _SPLIT
    if len(args) <= max(places[:2]):
        return UNSIZED
    indices, offsets, bounds, total = args[places[0]], args[places[1]], args[widths], args[sum_of_widths]
    if not isinstance(indices, TracedTensor) or not isinstance(offsets, TracedTensor) or not isinstance(bounds, TracedTensor):
        return UNSIZED
    held = [one for one in (args[i] for i in weights) if isinstance(one, TracedTensor) and one.numel()]
    width_sum = total if isinstance(total, int) else gradient.shape[-1] if gradient is not None and gradient.shape else 0
    tables, looked = bounds.numel() - 1, indices.numel()
    samples = (offsets.numel() - 1) // max(tables, 1)
    if not looked or not samples or not held:
        return NOTHING
    if not width_sum:
        return "the width of its rows was not recorded"
    width = width_sum / tables
    rows = max(sum(one.numel() for one in held) / width_sum, 1.0)
    weighted = isinstance(args[places[2]], TracedTensor) if len(args) > places[2] else False
    return Lookup(
        samples=float(samples), tables=float(tables), rows=rows, width=width, pooling=looked / (samples * tables),
        element=float(held[0].element), index=float(indices.element + 4 * weighted), optimizer=_OPTIMIZERS[optimizer],
        distinct=_distinct(rows, looked / tables),
    )  # fmt: skip


def _distinct(rows: float, looked: float) -> float:
    """Distinct rows over look-ups where each takes any of the rows as likely: expected in drawing with replacement. [1]"""
    return min(rows * -math.expm1(-looked / rows) / looked, 1.0)
