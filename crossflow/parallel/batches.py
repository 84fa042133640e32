"""Plans of a step as a layout: of a service that overlaps two batches, with its microbatches in halves.

Where the stack of a service has `overlap.experts`, a step is done in two halves, and the tokens of the one travel to their experts and back
while the other computes: two-batch overlap of SGLang [1]_, dual-batch overlap of vLLM, the two micro-batches of DeepSeek's own system [2]_.
Each half runs kernels of its own, on half the rows.

References
----------
.. [1] SGLang, "Deploying DeepSeek with PD Disaggregation and Large-scale Expert Parallelism on 96 H100 GPUs", 2025, "Two-batch Overlap".
.. [2] DeepSeek, profile-data, 2025 (github.com/deepseek-ai/profile-data): prefilling and decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.blocks import gathers
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Job


def laid_out(job: Job, plans: Sequence[Plan], batch: Array, node: int, stack: SoftwareStack) -> Layout:
    """`Layout.of` plans, with the microbatches of a step as the stack runs them."""
    layout = Layout.of(plans, batch, node)
    halves = overlaps(job, layout, stack)
    if not halves.any():
        return layout
    parts = np.where(halves, 2.0, 1.0)
    return replace(layout, micro_batch=layout.micro_batch / parts, microbatches=layout.microbatches * parts)


def overlaps(job: Job, layout: Layout, stack: SoftwareStack) -> Mask:
    """Points of a service whose step is done in two halves: those that exchange tokens, and have several requests or prompts to part."""
    served = job.task in ("prefill", "decode") and stack.overlap.experts and bool(job.model.experts)
    several = (layout.micro_batch >= 2.0) | (job.task == "prefill")  # a prompt is cut in two
    return np.asarray(served & (layout.ep > 1) & ~gathers(layout, stack) & several)
