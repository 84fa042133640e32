"""Weights of fewer bits with which a service fits that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossflow.answers.evaluation import evaluate
from crossflow.answers.points import variant
from crossflow.answers.scenario import Scenario
from crossflow.base.errors import CrossflowError
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.answers.evaluation.remedies import Remedy

WIDE, NARROW = ("bf16", "fp16"), ("fp8", "int8", "int4")  # types of weights, the widest first


def fewer_bits(scenario: Scenario) -> tuple[Remedy, ...]:
    """Weights of fewer bits with which a service fits that keeps them in 16: the widest such type."""
    spec = scenario.workload
    if not isinstance(spec, TransformerSpec) or spec.trains_transformer or spec.weight_dtype is not None or spec.dtype not in WIDE:
        return ()
    from crossflow.answers.evaluation.remedies import Remedy

    for kind in NARROW:
        try:
            made = variant(scenario, {"workload.weight_dtype": kind})
        except CrossflowError:
            continue
        score = evaluate(made)
        if score.fits[0]:
            saved = float(evaluate(scenario).memory_needed[0] - score.memory_needed[0])
            told = f"workload.weight_dtype: {kind} frees {saved / 2**30:.1f} GiB and fits"
            return (
                Remedy(
                    f"{told} with {(score.memory_capacity[0] - score.memory_needed[0]) / 2**30:.1f} GiB to spare",
                    {"workload.weight_dtype": kind},
                ),
            )
    return ()
