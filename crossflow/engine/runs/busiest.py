"""The stage that decides a step, for which the others wait: what it computes, sends and waits for.

What follows from the order of slots is worked out shape by shape (`Busiest`). All else is how often the stage passes every unit times what
the unit takes, for all design points at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from crossflow.base.arrays import Array, Index, share_of
from crossflow.cost.machine import Machine
from crossflow.cost.passes import Steps
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.tables import OF


@dataclass(frozen=True, kw_only=True)
class Busiest:
    """What of the busiest stage's step depends on how its slots follow each other, arrays of shape (n,). [s]"""

    total: Array  # time of the step
    # how often a step passes every unit: forward, backward, with gradients of its weights, backward without these, shape (4, units, n). [1]
    often: Array
    weights: Array  # of how many weights of every unit the stage keeps gradients, shape (units, n). [1]
    waits: Array  # what the host takes longer than the device in passes
    beside: Array  # what gathers and reductions of sharded weights, and copies, take longer than that
    met: Array  # what passes take longer where their collectives meet others than those of weights on the same links
    grown: Array  # what reductions of gradients after each pass lengthen it (PipeDream)
    transfer: Array  # of what passes hand over the way itself
    whole: Array  # and the time to put its parts together
    late: Array  # reductions of gradients, and their copies, that come after the last pass
    renewed: Array  # copies of updated weights that the next step waits for
    regather: Array  # gathers of them that it waits for
    handed: Array  # transfers between all stages inside nodes and between nodes [1], and the time of all of them, shape (3, n)

    @classmethod
    def together(cls, parts: Sequence[tuple[Index, Busiest]], n: int) -> Busiest:
        """Of all n points, from those of some of them each."""
        if len(parts) == 1 and (np.diff(parts[0][0]) == 1).all():
            return parts[0][1]
        names = [field.name for field in fields(Busiest)]
        found = {name: np.empty((*getattr(parts[0][1], name).shape[:-1], n)) for name in names}
        for at, part in parts:
            for name, whole in found.items():
                whole[..., at] = getattr(part, name)
        return cls(**found)


@dataclass(frozen=True, kw_only=True)
class StageCollectives:
    """What the collectives of the busiest stage take in a step, shape (collectives, n). [s]"""

    net: Array  # those that block in passes
    sent: Array  # all of passes
    behind: Array  # those behind passes of sharded weights
    final: Array  # reductions of gradients after the last pass, copies to the host among them

    @classmethod
    def of(cls, steps: Steps, sums: UnitSums, found: Busiest, updates: Array) -> StageCollectives:
        """Of all points, whose weights are updated so often."""
        passes, state, copies = steps.passes, steps.state, steps.state.copies
        forward, backward, weight, frozen = found.often
        behind, final = _taken(weight, state.scatter), _taken(found.weights * updates, state.reduce)
        behind[OF["all_gather"]] += _taken(forward + backward, state.gather)
        if copies is not None:
            through = _taken(forward + backward, copies.activations + copies.fetched)
            behind[OF["host_copy"]] = through + _taken(weight, copies.stored)
            final[OF["host_copy"]] = _taken(found.weights * updates, copies.gradients)
        net = _taken(forward, passes.blocking[:, 0]) + _taken(backward, passes.blocking[:, 1])
        if passes.hides.any():
            net += _taken(backward * sums.shown + frozen * (1.0 - sums.shown), passes.hides)
        sent = _taken(forward, passes.sent[:, 0]) + _taken(backward, passes.sent[:, 1])
        return cls(net=net, sent=sent, behind=behind, final=final)


def _taken(often: Array, amounts: Array) -> Array:
    """What all units take, shape (..., n), from how often each is passed, shape (units, n), and what it takes, shape (..., units, n)."""
    return np.asarray((often * amounts).sum(axis=-2))


def parts_of(layout: Layout, machine: Machine, steps: Steps, sums: UnitSums, found: Busiest) -> dict[str, Array]:
    """Time of every point's step and its parts on the busiest stage. [s]"""
    stack, state, tied, updates = machine.stack, steps.state, steps.between.tied, layout.updates
    sent = StageCollectives.of(steps, sums, found, updates)
    forward, backward, weight, _ = found.often
    trained = found.weights * updates
    on_host = copied = np.zeros_like(found.total)
    if state.copies is not None:
        on_host, copied = _taken(trained, state.copies.update), _taken(trained, state.copies.renewed)
    passes = steps.passes
    device = _taken(forward, passes.device[:, 0]) + _taken(backward, passes.device[:, 1]) + _taken(weight, passes.weight)
    device[-2] += _taken(trained, sums.update)  # which main memory binds
    step = float(stack.host.step[0])
    host = found.waits + layout.microbatches * float(stack.host.microbatch[0]) + step + on_host
    handing = found.transfer + found.whole
    sending = np.zeros_like(handing) if stack.overlap.pipeline else handing
    compute, memory_bound, other = device[0], device[1:-1].sum(axis=0), device[-1] + host
    outside = sent.net.sum(axis=0) + found.beside + found.late + found.grown + found.met + sending + tied + found.renewed + found.regather
    bubble = found.total - compute - memory_bound - other - outside
    bubble[bubble < 1e-12 * found.total] = 0.0
    units = unit_times(steps, sums, found, trained)
    units[1:, 0] += tied  # the first unit's is the table that the ends of a pipeline share
    return {
        "total": found.total, "compute": compute, "memory_bound_compute": memory_bound, "exposed_communication": outside, "bubble": bubble,
        "other": other, "device": device, "waits": host, "units": units, "between": np.array([handing, sending + found.met]),
        "sent": _all_sent(sent, found, tied, copied, _taken(trained, state.regather)),
        "exposed": _exposed(sent, found, tied, blocks=not stack.overlap.pipeline),
        "handed": found.handed,
    }  # fmt: skip


def _all_sent(sent: StageCollectives, found: Busiest, tied: Array, copied: Array, regathered: Array) -> Array:
    """Time of all collectives, with the sum of a tied table and what follows an update, hidden or not. [s]"""
    whole = sent.sent + sent.behind + sent.final
    more = {"send_recv": found.transfer, "all_gather": found.whole + regathered, "all_reduce": tied, "host_copy": copied}
    for name, time in more.items():
        whole[OF[name]] += time
    return whole


def _exposed(sent: StageCollectives, found: Busiest, tied: Array, *, blocks: bool) -> Array:
    """Of them, what lengthens the step; transfers between stages where each `blocks` its stage. [s]"""
    whole = (
        sent.net
        + found.beside * share_of(sent.behind, sent.behind.sum(axis=0))
        + (found.late + found.grown) * share_of(sent.final, sent.final.sum(axis=0))
    )
    hidden = np.maximum(sent.sent - sent.net, 0.0)
    hidden[OF["send_recv"]] += found.transfer * float(not blocks)
    whole += found.met * share_of(hidden, hidden.sum(axis=0))
    more = [("all_gather", found.regather), ("host_copy", found.renewed), ("all_reduce", tied)]
    for name, time in [*more, *([("send_recv", found.transfer), ("all_gather", found.whole)] if blocks else [])]:
        whole[OF[name]] += time
    return whole


def unit_times(steps: Steps, sums: UnitSums, found: Busiest, trained: Array) -> Array:
    """Kernels, communication and what is exposed of it of every unit, shape (figures, units, n); what is exposed of a kind is shared out by
    the time of that kind. [s]

    Sums over units are the step's times of kernels, of collectives and of what is exposed of them, but for what stages hand over.
    `trained` is how often a step updates every unit, shape (units, n).
    """
    forward, backward, weight, frozen = found.often
    sent, copies = steps.passes.sent.sum(axis=0), sums.copies
    gather, scatter, reduced, renewed = sums.gather, sums.scatter, sums.reduce, np.zeros((1, 1))
    if copies is not None:
        gather, scatter = gather + copies.activations + copies.fetched, scatter + copies.stored
        reduced, renewed = reduced + copies.gradients, copies.renewed
    exposed = forward * sums.blocks[0] + backward * sums.blocks[1] + frozen * sums.blocks[2]
    communication = forward * sent[0] + backward * sent[1]
    for amount, shown in (
        ((forward + backward) * gather + weight * scatter, found.beside),
        (trained * reduced, found.late + found.grown),
        (trained * sums.regather, found.regather),
        (trained * renewed, found.renewed),
    ):
        if amount.any():
            communication = communication + amount
            exposed = exposed + shown * share_of(amount, amount.sum(axis=0))
    device = sums.device
    kernels = forward * device[0] + backward * device[1] + weight * device[2]
    return np.array([kernels + trained * sums.update, communication, exposed])
