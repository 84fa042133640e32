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

from dataclasses import dataclass, fields

import numpy as np

from crossflow.base.arrays import Array, Index, at_points
from crossflow.base.formats import DTYPE_BYTES
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.mesh import Offload
from crossflow.workload.job import Job

MASTER = 4.0  # weights that an optimizer updates are fp32 [B]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Time of what offloading adds to every unit, shape (units, n), zero where nothing is kept on the host. [s]"""

    activations: Array  # of one microbatch and layer, to the host in the forward pass and back in the backward pass
    fetched: Array  # a shard of the weights to the device, once a pass
    stored: Array  # its gradients to the host, once a microbatch
    gradients: Array  # gradients of what a rank updates to the host, once a step
    update: Array  # the optimizer's step on the host
    renewed: Array  # updated weights to the device

    def at(self, points: Index) -> Copies:
        """Copies of some of the points."""
        return Copies(**{field.name: at_points(getattr(self, field.name), points) for field in fields(Copies)})


def states_size(job: Job, stack: SoftwareStack) -> float:
    """Size of the optimizer's states of a parameter, all of them together. [B]"""
    return DTYPE_BYTES[stack.memory.moments] * job.optimizer_states


def master_size(job: Job, stack: SoftwareStack) -> float:
    """Size of what the optimizer keeps of a weight that it updates, beside the weight itself. [B]

    None where that is in fp32, or is updated as it is.
    """
    weight = stack.weight_size(job.element)
    if weight >= MASTER or not stack.memory.master:
        return 0.0
    return MASTER - weight if stack.memory.remainders and job.operand >= job.element else MASTER


def kept_on_host(layout: Layout, what: Offload) -> Array:
    """1 where plans keep something on the host, shape (n,) or (1,). [1]"""
    return np.asarray(layout.offload[what], dtype=float) if what in layout.offload else np.zeros(1)


def activations_on_host(layout: Layout, depth: Array | float) -> Array:
    """Share of a stage's activations that the host keeps, of a model of so many layers, shape (n,) or (1,). [1]"""
    share = np.minimum(layout.offload_layers * layout.pp / np.maximum(depth, 1.0), 1.0)
    return kept_on_host(layout, "activations") * np.where(layout.offload_layers > 0, share, 1.0)
