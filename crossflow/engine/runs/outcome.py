"""What comes out of a step, whatever its workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Mask

# Parts of a step's time, in the order in which they are told and drawn.
BREAKDOWN = ("compute", "memory_bound_compute", "exposed_communication", "bubble", "other")
TAILS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}  # quantiles of times of a service


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One step of every design point, shape (n,)."""

    total: Array  # time of the step. [s]
    # its parts on the device that decides it: compute, memory_bound_compute, exposed_communication, bubble, other; they add up to `total`.
    # [s]
    breakdown: Mapping[str, Array]
    communication: Mapping[str, Array]  # time of collectives by name on that device. [s]
    exposed: Mapping[str, Array]  # of it, what lengthens the step. [s]
    memory: Mapping[str, Array]  # bytes of the fullest device by kind: weights, gradients, optimizer, activations, buffers, ... [B]
    flops: Array  # operations done on all devices. [flop]
    model_flops: Array  # those that the model needs: nothing computed again. [flop]
    energy: Array  # dynamic energy of operations and memory on all devices. [J]
    traffic: Array  # bytes of main memory on all devices. [B]
    sent: tuple[Array, Array]  # bytes that one device sends inside its node, and out of it. [B]
    # time of the step that each resource binds: compute, memory levels, launch, host, network, bubble; they add up too. [s]
    bound: Mapping[str, Array]
    # time of kernels, of communication and of what is exposed of that, by layer type on that device; keys such as ``attention.compute``,
    # ``mlp.communication``, ``mlp.exposed``, and ``pipeline.exposed`` of what stages hand over. [s]
    by_layer: Mapping[str, Array] = field(default_factory=dict)
    problems: tuple[tuple[Mask, str], ...] = ()  # design points that cannot run, each with the sentence that says why
    # share of the time of kernels and of collectives in the passes that was measured. [1]
    measured: Array = field(default_factory=lambda: np.zeros(1))
    host_memory: Array = field(default_factory=lambda: np.zeros(1))  # bytes that the fullest device keeps on its host. [B]
    host_capacity: Array = field(default_factory=lambda: np.full(1, np.inf))  # its share of the host's memory. [B]
    second_memory: Array = field(default_factory=lambda: np.zeros(1))  # bytes that the fullest device keeps on its second memory. [B]
    second_capacity: Array = field(default_factory=lambda: np.full(1, np.inf))  # [B]
    capacity: tuple[Array, ...] = ()  # main memory of the fullest device, where devices are of several kinds. [B]
    second_moved: tuple[Array, Array] = (np.zeros(1), np.zeros(1))  # bytes read and written there in a step, all devices. [B]
    least: Array = field(default_factory=lambda: np.zeros(1))  # time below which no step can be, 0 where it is not worked out. [s]


def merged(one: Outcome, other: Outcome, of: Callable[[Array, Array], Array], kept: tuple[str, ...]) -> Outcome:
    """Two steps as one: every figure `of` both, what one of them alone has beside nothing; the `kept` fields are those of the first."""

    def both(first: Any, second: Any) -> Any:
        if isinstance(first, Mapping):
            nothing = np.zeros(1)
            return {name: both(first.get(name, nothing), second.get(name, nothing)) for name in dict.fromkeys([*first, *second])}
        if isinstance(first, tuple):
            return tuple(map(both, first, second))
        return of(first, second)

    names = (field.name for field in fields(Outcome) if field.name not in kept)
    return replace(one, **{name: both(getattr(one, name), getattr(other, name)) for name in names})
