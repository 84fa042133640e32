"""Keys and values on their way between engines, beside what the steps of these send over the same ports between nodes.

A prompt is handed over at a share w of the rate of an end's ports, 1 at the end that is the slower one. Steps of that end send between
nodes for a part d of their time. While both send, rates are max-min fair, as of checkpoints beside steps (`lasting.saving`): both take
longer, the ports carry the bytes of both, and what hides beside kernels is taken as if it did not.

In a steady state r prompts come in a step, each of which would be under way for t beside it and let steps lose l meanwhile. Of N engines
that make every step together each step waits for the slowest: it loses the share l / t of its time where any of them receives, which is
1 - (1 - r t / T)^N of its time T where they receive by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from crossflow.base.arrays import Array, divide, share_of
from crossflow.cost.machine import Machine
from crossflow.engine.lasting.saving import written_beside
from crossflow.engine.runs.outcome import Outcome

_ROUNDS = 12  # to the length of a step that depends on how long it is itself


@dataclass(frozen=True, kw_only=True, eq=False)
class HandedPrompt:
    """A prompt that is handed over beside steps of an end, shape (n,)."""

    time: Array  # in which it is. [s]
    late: Array  # of that what it takes longer than alone. [s]
    lost: Array  # that steps lose meanwhile. [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class HandoverEnd:
    """An end of hand-overs, shape (n,)."""

    share: Array  # of the rate of its ports that a prompt takes alone. [1]

    def meets(self, time: Array, step: Array, sends: Array) -> HandedPrompt:
        """A prompt that would take some time alone, beside steps of so long that send between nodes for a part of it. [s]"""
        with np.errstate(invalid="ignore"):  # of steps that never end
            part = np.where(np.isfinite(step), np.minimum(divide(sends, step), 1.0), 0.0)
        arrives = np.isfinite(time)  # as nothing does where no network joins the nodes
        whole, lost = written_beside(np.where(arrives, time, 0.0), self.share, np.where(arrives, part, 0.0))
        late, lost = (np.where(arrives, more, 0.0) for more in (whole - np.where(arrives, time, 0.0), lost))
        return HandedPrompt(time=time + late, late=late, lost=lost)


def sent_outside(step: Outcome, machine: Machine) -> Array:
    """Time in which the bytes that a device sends in a step keep its port between nodes busy. [s]"""
    port = machine.architecture.inter
    return np.zeros(1) if port is None else np.asarray(divide(step.sent[1], port.bandwidth))


def slowed_step(step: Outcome, prompt: HandedPrompt, prompts: Array, engines: Array) -> Outcome:
    """A step in which so many prompts are handed over to each of the engines that make it together. [1]"""
    if not np.any(prompt.lost > 0):
        return step
    slower = share_of(prompt.lost, prompt.time)
    total = np.where(np.isfinite(step.total), step.total, 1.0)
    longer = total
    for _ in range(_ROUNDS):
        receives = np.minimum(divide(prompts * prompt.time, longer), 1.0)
        longer = total / (1.0 - slower * (1.0 - (1.0 - receives) ** engines))
    more = np.where(np.isfinite(step.total), longer - total, 0.0)
    return replace(
        step, total=step.total + more,
        breakdown={**step.breakdown, "exposed_communication": step.breakdown["exposed_communication"] + more},
        bound={**step.bound, "network": step.bound.get("network", np.zeros(1)) + more},
    )  # fmt: skip
