"""Tensors that the host keeps: copies between a device and its host, and the optimizer's step there [1]_, [2]_.

The optimizer's states lie on the host, which updates them: gradients go down, updated weights come up. Gradients that ranks
share out (ZeRO 2 and 3) go down with each microbatch and are summed there; others stay on the device until the step's end. With
shards of the weights there too, each pass fetches them. Activations go down in the forward pass and come back in the backward
pass. Each direction of the host's bus is a stream of its own.

References
----------
.. [1] Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, Sec. 4.
.. [2] Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021, Sec. 5.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from crossflow.arrays import Array, Index, divide
from crossflow.step.outcome import Machine
from crossflow.strategy.layout import Layout
from crossflow.strategy.mesh import Offload
from crossflow.workload.job import Job

MASTER, STATE = 4.0, 4.0  # weights that an optimizer updates, and its states, are fp32 [B]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Time of what offloading adds to every unit, shape (units, n), zero where nothing is kept on the host. [s]

    Attributes
    ----------
    activations : of one microbatch and layer, to the host in the forward pass and back in the backward pass.
    fetched : a shard of the weights to the device, once a pass.
    stored : its gradients to the host, once a microbatch.
    gradients : gradients of what a rank updates to the host, once a step.
    update : the optimizer's step on the host.
    renewed : updated weights to the device.
    """

    activations: Array
    fetched: Array
    stored: Array
    gradients: Array
    update: Array
    renewed: Array

    def at(self, points: Index) -> Copies:
        """Copies of some of the points."""
        return Copies(**{field.name: getattr(self, field.name)[:, points] for field in fields(Copies)})


def kept_on_host(layout: Layout, what: Offload) -> Array:
    """1 where plans keep something on the host, shape (n,) or (1,). [1]"""
    return np.asarray(layout.offload[what], dtype=float) if what in layout.offload else np.zeros(1)


def host_copies(job: Job, layout: Layout, machine: Machine, kept: Array, owned: Array, weights: Array) -> Copies | None:
    """Copies of a step; None where no plan keeps anything on the host.

    Parameters
    ----------
    kept : activations that a microbatch leaves in each unit, shape (units, n). [B]
    owned : parameters of which a rank updates the optimizer's states, shape (units, n). [1]
    weights : size of a weight of each unit, shape (units, 1). [B]
    """
    if not layout.offload:
        return None
    host, stack = machine.host, machine.stack
    assert host is not None  # the caller has looked
    share = host.bandwidth / np.minimum(machine.node, layout.devices)
    bus = np.minimum(machine.network.host.bandwidth * machine.network.parameters.pcie_efficiency, share)
    gradient, working = stack.gradient_size(job.element), share * host.utilisation
    optimizer, fetched, activations = (kept_on_host(layout, what) for what in ("optimizer", "weights", "activations"))
    summed = np.maximum(optimizer * (layout.zero >= 2), fetched) * float(job.training)  # gradients summed on the host
    kept_weight = stack.weight_size(job.element)
    # Gradients r1, master weights and states r1 w1 each, and the weights of the device w1 where they are not the master's.
    updated = gradient + 2.0 * (MASTER + STATE * job.optimizer_states) + (kept_weight if kept_weight < MASTER else 0.0)
    return Copies(
        activations=divide(activations * kept, bus),
        fetched=divide(fetched * owned * weights, bus),
        stored=summed * owned * gradient * np.maximum(1.0 / bus, 3.0 / working),  # r2 w1 to add to the sum
        gradients=divide((optimizer - summed) * owned * gradient, bus),
        update=divide(optimizer * owned * updated, working),
        renewed=divide((optimizer - fetched) * owned * weights, bus),
    )


def flow(times: Sequence[Array], pieces: Array) -> Array:
    """Time of several stages through which equal pieces pass one after the other, each stage one piece at a time. [s]

    `times` are those of all pieces in each stage: one piece through all stages, then the slowest stage for the others.

    >>> float(flow([np.array(4.0), np.array(8.0)], np.array(4.0)))
    9.0
    """
    return np.asarray(sum(times) / pieces + functools.reduce(np.maximum, times) * (1.0 - 1.0 / pieces))
