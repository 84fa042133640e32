"""Tensors that the host keeps: copies between a device and its host, and the optimizer's step there [1]_, [2]_.

The optimizer's states lie on the host, which updates them: gradients come down once a step, updated weights go up. With the
shards of the weights there too, each pass fetches them, and gradients come down with each microbatch. Activations go down in
the forward pass and come back in the backward pass. Each direction of the host's bus is a stream of its own.

References
----------
.. [1] Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, Sec. 4.
.. [2] Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021, Sec. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from crossflow.arrays import Array, Index, divide
from crossflow.parallel.plan import Layout, Offload
from crossflow.step.outcome import Job, Machine

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


def host_copies(job: Job, layout: Layout, machine: Machine, kept: Array, owned: Array) -> Copies | None:
    """Copies of a step; None where no plan keeps anything on the host.

    Parameters
    ----------
    kept : activations that a microbatch leaves in each unit, shape (units, n). [B]
    owned : parameters of which a rank updates the optimizer's states, shape (units, n). [1]
    """
    if not layout.offload:
        return None
    host, stack = machine.host, machine.stack
    assert host is not None  # the caller has looked
    share = host.bandwidth / machine.node
    bus = np.minimum(machine.network.host.bandwidth * machine.network.parameters.pcie_efficiency, share)
    weight, gradient = stack.weight_size(job.weight), stack.gradient_size(job.element)
    optimizer, weights, activations = (kept_on_host(layout, what) for what in ("optimizer", "weights", "activations"))
    # Gradients and updated weights pass the host's memory too: r1 and w1; states and master weights r1 w1 each.
    updated = gradient + 2.0 * (MASTER + STATE * job.optimizer_states) + weight
    return Copies(
        activations=divide(activations * kept, bus),
        fetched=divide(weights * owned * weight, bus),
        stored=divide(weights * owned * gradient, bus),
        gradients=divide((optimizer - weights) * owned * gradient, bus),
        update=divide(optimizer * owned * updated, share * host.utilisation),
        renewed=divide((optimizer - weights) * owned * weight, bus),
    )


def flow(times: Sequence[Array], pieces: Array) -> Array:
    """Time of several stages through which equal pieces pass one after the other, each stage one piece at a time. [s]

    `times` are those of all pieces in each stage: one piece through all stages, then the slowest stage for the others.

    >>> float(flow([np.array(4.0), np.array(8.0)], np.array(4.0)))
    9.0
    """
    return np.asarray(sum(times) / pieces + np.max(np.broadcast_arrays(*times), axis=0) * (1.0 - 1.0 / pieces))
