"""What exchanges of tokens block in a service that works on two halves of a step at once (`crossflow.parallel.batches`).

Where prompts are read, a half attends, sends tokens to their experts, multiplies, sends results back, and so does the other one stage after
it, so that each way is beside the experts of the other half for one of them, and beside the rest of its layer for the other [1]_. The
exchange takes units of the device from the kernels meanwhile.

Where tokens are written, attention is cut in two before its core. The way to the experts is beside what comes before the core, and beside
the shared expert; the way back is beside the core and what follows; nothing travels while experts multiply [1]_ [2]_. Low-latency kernels
leave the units free while tokens travel [3]_, but sending and receiving keep all of them (`HeldUnits`): no kernel of the other half runs
then.

References
----------
.. [1] SGLang, python/sglang/srt/operations_strategy.py: `_compute_moe_deepseek_blog_prefill`, `_compute_moe_deepseek_blog_decode`.
.. [2] DeepSeek, "DeepSeek-V3 / R1 Inference System Overview", 2025: five stages of a layer in decoding.
.. [3] DeepSeek, profile-data, 2025 (github.com/deepseek-ai/profile-data): decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, divide, share_of
from crossflow.cost.shared_links import LinkStream, LinkUse, longer
from crossflow.hardware.architecture.execution import preferred
from crossflow.parallel.blocks import unit_starts
from crossflow.parallel.strategy.layout import Layout
from crossflow.program.kernels import ONCE, Attention
from crossflow.program.program import Program
from crossflow.workload.job import Job

if TYPE_CHECKING:  # what its arguments are; the chain of imports stays short
    from crossflow.cost.machine import Machine
    from crossflow.cost.price import LayerCosts
    from crossflow.parallel.tables import Sends, StepTables


def beside_half(
    job: Job,
    layout: Layout,
    machine: Machine,
    tables: StepTables,
    times: LayerCosts,
    blocking: Array,
    took: Array,
    busy: Array,
    each: LinkUse,
) -> Array:
    """What collectives block where tokens travel beside the kernels of the other half of a step, shape as `Passes.blocking`. [s]

    Parameters
    ----------
    took : time of every message of the program, all equal ones of it, shape (messages, n). [s]
    busy : time of the kernels of every unit, shape (units, n). [s]
    each : how every message uses the links, all equal ones of it, shape (USES, messages, n). [s]
    """
    sends, starts = tables.sends, unit_starts(job.model)
    exchange, held = np.zeros((2, *blocking.shape)), np.zeros((2, *busy.shape))
    kept = sends.counts * machine.wires.held(sends.table)
    for way, both in enumerate((sends.experts, sends.results)):
        mine = both[sends.backward[both] == 0]
        np.add.at(exchange[way], (sends.collective[mine], 0, sends.unit[mine]), took[mine])
        np.add.at(held[way], sends.unit[mine], kept[mine])
    ways, others = exchange[:, :, 0].sum(axis=1), (blocking - exchange.sum(axis=0))[:, 0].sum(axis=0)
    own, core = _own_and_core(sends, tables.program, tables.units, times)
    rest = _of_layers(busy + others, starts) - own
    writes = job.task == "decode" and job.chunk is None
    taken = _taken(machine, fast=writes)
    if writes:
        whole = _of_layers(core, starts)
        after = np.where(whole > 0, whole, rest / 2.0)  # a layer without fused attention is cut in the middle
        parts = np.stack([rest - after, after])
        met = _met(sends, starts, each, ways, parts)
        left = np.maximum(np.minimum(exposed(ways, parts, taken) + met, ways), np.minimum(held, ways))
    else:
        met = _met(sends, starts, each, ways, rest[None])
        left = (exposed(ways, own, taken) + np.minimum(exposed(ways, rest, taken) + met, ways)) / 2.0
    share = np.where(layout.microbatches > 1.0, divide(left, ways), 1.0)
    return np.asarray(blocking - (exchange * (1.0 - share[:, None, None])).sum(axis=0))


def _met(sends: Sends, starts: Index, each: LinkUse, ways: Array, parts: Array) -> Array:
    """What ways take longer that meet the other collectives of a layer on the same links, each beside its part of what is not experts,
    shape (ways, units, n). [s]
    """
    use, others = np.zeros((len(each), *ways.shape)), np.zeros((len(each), *ways.shape[1:]))
    ahead = sends.backward == 0
    mine = [both[ahead[both]] for both in (sends.experts, sends.results)]
    rest = np.setdiff1d(np.flatnonzero(ahead), np.concatenate(mine))
    for row, whole, values in zip(use, others, each, strict=True):
        np.add.at(whole, sends.unit[rest], values[rest])
        for way, members in zip(row, mine, strict=True):
            np.add.at(way, sends.unit[members], values[members])
    layers = np.stack([_of_layers(one, starts) for one in others])[:, None] * share_of(parts, parts.sum(axis=0))
    return longer(LinkStream(time=parts, use=layers), LinkStream(time=ways, use=use), np.maximum(ways, parts))


def exposed(way: Array, beside: Array, taken: Array) -> Array:
    """What a way blocks that is beside some kernels: what it takes beyond them, or as much as it slows them down by units taken. [s]

    taken : share of a device's units that it takes from them. [1]
    """
    return np.asarray(np.minimum(np.maximum(way - beside, taken * np.minimum(way, beside / (1.0 - taken))), way))


def _own_and_core(sends: Sends, program: Program, units: tuple[str, ...], times: LayerCosts) -> tuple[Array, Array]:
    """Time of the kernels of routed experts, and of those of attention from its core on, of every unit, shape (units, n). [s]"""
    each, place = times.each.copy(), {name: i for i, name in enumerate(units)}
    own, core = np.zeros((2, len(units), each.shape[-1]))
    for op in program.ops:
        if op.kernels and op.count is not ONCE:
            each[list(op.kernels)] *= op.count
    for i in sends.experts:
        own[sends.unit[i]] = each[list(sends.ops[i].beside)].sum(axis=0)
    begun = set[str]()
    for op in program.ops:
        if op.kernels and op.phase in ("forward", "end"):
            begun |= {op.layer} if any(isinstance(program.kernels[row], Attention) for row in op.kernels) else set()
            core[place[op.layer]] += each[list(op.kernels)].sum(axis=0) * (op.layer in begun)
    return own, core


def _of_layers(values: Array, starts: Index) -> Array:
    """Sums over the units of a layer, for each of its units, shape (units, n)."""
    found = np.zeros_like(values)
    np.add.at(found, starts, values)
    return np.asarray(found[starts])


def _taken(machine: Machine, *, fast: bool) -> Array:
    """Share of a device's units that an exchange takes from the kernels beside it: as the stack says, or of a library. [1]

    fast : the exchange is of low latency, whose kernels send and go where a library has them.
    """
    given, architecture = machine.stack.overlap.exchange_units, machine.architecture
    library = preferred(machine.stack.kernels.exchange, architecture.execution.libraries.exchange)
    if library is not None and fast:
        return np.zeros(1)
    return given if given.any() or library is None else np.asarray(np.minimum(library.units / architecture.units, 0.9))
