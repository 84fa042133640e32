"""What narrow types and 2:4 sparsity do not bring: layers of experts that are slower, as measured; units that leave nothing out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crossflow.answers.scenario import Scenario
from crossflow.answers.steps.transformers import own_laid
from crossflow.base.formats import DTYPE_BYTES, HALF, with_like
from crossflow.cost.machine import Machine
from crossflow.hardware.architecture.execution import ExpertLibrary
from crossflow.hardware.architecture.template import GeneratedSystem
from crossflow.parallel.blocks import block_program
from crossflow.parallel.strategy.plan import Plan
from crossflow.program.kernels import Experts, KernelTable
from crossflow.workload.spec import TransformerSpec

WIDE = "bf16"
WORTH = 1.1  # times as long as in 16 bits, from which it is told


def slower_experts(scenario: Scenario) -> Iterator[str]:
    """What is to be known of a service whose layers of experts are slower in its type than in 16 bits, as a sentence."""
    workload, plan, stack = scenario.workload, scenario.strategy, scenario.stack
    if not isinstance(workload, TransformerSpec) or not isinstance(plan, Plan) or stack is None:
        return
    if not workload.serves or workload.experts is None or DTYPE_BYTES[workload.dtype] >= HALF:
        return
    laid = own_laid(scenario)
    tables = [table for table in block_program(laid.job, laid.layout, stack).kernel_tables if table.kind is Experts]
    known = {dtype: times for dtype in stack.kernels.experts if (times := _times(tables, laid.machine, dtype)) is not None}
    own = known.get(workload.dtype)
    if own is None or WIDE not in known or own[0] < WORTH * known[WIDE][0]:
        return
    best = min(known, key=lambda dtype: known[dtype][0])
    told = f" ({own[1].measured_as})" if own[1].measured_as else ""
    cure = f"; the fastest here is {best}, {known[best][0] / own[0]:.2g} of the time" if best != workload.dtype else ""
    yield (
        f"workload.dtype: layers of experts take {own[0] / known[WIDE][0]:.2g} times as long in {workload.dtype} as in {WIDE} here, as the"
        f" kernels that {stack.name} calls were measured{told}{cure}"
    )


def unused_sparsity(scenario: Scenario) -> Iterator[str]:
    """What is to be known of a workload whose weights have 2:4 sparsity on devices that gain only bytes by it, as a sentence."""
    workload = scenario.workload
    if not isinstance(workload, TransformerSpec) or workload.weight_sparsity is None:
        return
    for place, system in scenario.system.places.items():
        if workload.dtype not in with_like(system.sparse_rates):
            field = "sparse_rates" if isinstance(system, GeneratedSystem) else "sparse_speedup"
            yield (
                f"workload.weight_sparsity: {system.name} multiplies as many {workload.dtype} numbers as without it; weights take fewer"
                f" bytes, which kernels unpack. Where units leave half of the numbers out, give {place}.{field}.{workload.dtype}"
            )


def _times(tables: Sequence[KernelTable], runs_on: Machine, dtype: str) -> tuple[float, ExpertLibrary] | None:
    """Time of one layer of each kind in a step, were its experts in a type, and the library of them; None where none was measured. [s]"""
    architecture, stack, total, found = runs_on.architecture, runs_on.stack, 0.0, None
    from crossflow.cost.experts import expert_library, grouped_costs

    for table in tables:
        found = expert_library(architecture, stack.kernels.experts_of(dtype, exchanged=table.exchanged), dtype)
        if found is None or dtype not in architecture.throughput:
            return None
        total += float(grouped_costs(table.sizes, found, architecture, dtype).time.sum())
    return None if found is None else (total, found)
