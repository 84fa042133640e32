"""What a program costs on an architecture: times, what binds them, energy, for all design points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array
from crossflow.cost.network import MessageCosts, message_costs
from crossflow.cost.roofline import KernelCosts, attention_costs, joined, pass_costs, product_costs, resources, wide_type
from crossflow.mapping import Placement
from crossflow.program import Attention, Kernel, Pass, Product, Program
from crossflow.program.kernels import attention_sizes
from crossflow.software import SoftwareStack


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a program; arrays end in the design-point axis.

    Attributes
    ----------
    resources : compute and the memory levels, names of the resources that can bind a kernel.
    kernels : costs of the distinct kernels.
    lower_bound : time below which no kernel can be: its operations at peak, or its least traffic at memory bandwidth,
        shape (kernels, n). [s]
    messages : costs of the distinct messages.
    message_energy : energy of every message on one device, shape (messages, n). [J]
    call : time of the host for one call, shape (1,). [s]
    """

    resources: tuple[str, ...]
    kernels: KernelCosts
    lower_bound: Array
    messages: MessageCosts
    message_energy: Array
    call: Array

    @property
    def times(self) -> Array:
        """Time of every row: kernels, messages, a call of the host, shape (rows, n). [s]"""
        return stacked(self.kernels.time, self.messages.time, self.call[None])

    def without(self, silent: Array) -> Array:
        """The same where some messages take no time, a mask of shape (messages,)."""
        sent = np.where(silent[:, None], 0.0, self.messages.time)
        return stacked(self.kernels.time, sent, self.call[None])


def stacked(*parts: Array) -> Array:
    """Rows of several tables, each of as many points or of one."""
    n = max(part.shape[1] for part in parts)
    return np.concatenate([np.broadcast_to(part, (len(part), n)) for part in parts])


def price(
    program: Program,
    placement: Placement,
    network: NetworkSpec,
    architecture: Architecture,
    devices_per_node: int,
    *,
    stack: SoftwareStack | None = None,
    least: bool = False,
) -> Prices:
    """Price every distinct kernel and message of a program once.

    Parameters
    ----------
    stack : software whose attention kernels and host times count; those of ideal software where absent.
    least : take the lower bound of every kernel.
    """
    floor = kernel_prices(program, architecture, stack, least=True)
    messages = message_costs(program.messages, placement, network, architecture, devices_per_node)
    per_byte = [np.zeros(1) if port is None else port.energy for port in (architecture.intra, architecture.inter)]
    return Prices(
        resources=resources(architecture),
        kernels=floor if least else kernel_prices(program, architecture, stack),
        lower_bound=floor.resource_times.max(axis=0),
        messages=messages,
        message_energy=messages.intra_bytes * per_byte[0] + messages.inter_bytes * per_byte[1],
        call=np.zeros(1) if stack is None else stack.host.kernel,
    )


def kernel_prices(program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool = False) -> KernelCosts:
    """Costs of the distinct kernels of a program, in their order."""
    dtype, other = program.dtype, wide_type(architecture, program.dtype)
    groups: dict[tuple[type, str], list[int]] = {}
    for i, kernel in enumerate(program.kernels):
        type_ = other if isinstance(kernel, Product) and kernel.wide else dtype
        groups.setdefault((type(kernel), type_), []).append(i)
    parts = []
    for (kind, type_), places in groups.items():
        rows = [program.kernels[i] for i in places]
        if kind is Product:
            element = program.element
            result = np.array([[element * (2.0 if row.adds else 1.0)] for row in rows if isinstance(row, Product)])
            costs = product_costs(_table(rows, "m", "n", "k", "batch"), result, architecture, type_, least=least)
            if stack is not None and program.trains and not least:
                costs = costs.slowed(stack.product_slowdown * architecture.execution.training_sensitivity)
            parts.append(costs)
        elif kind is Pass:
            moved, flops, launches = _table(rows, "moved", "flops", "launches")
            parts.append(pass_costs(moved, flops, launches, architecture, type_, least=least))
        else:
            parts.append(_attention(rows, program, architecture, stack, least=least))
    order = np.argsort([i for places in groups.values() for i in places])
    return joined(parts)[order] if parts else _nothing(architecture)


def _nothing(architecture: Architecture) -> KernelCosts:
    """Costs of no kernels."""
    none, levels = np.zeros((0, 1)), len(architecture.levels)
    times, traffic = np.zeros((levels + 1, 0, 1)), np.zeros((levels, 0, 1))
    return KernelCosts(time=none, launch=none, launches=none, resource_times=times, flops=none, traffic=traffic, energy=none)


def _table(rows: Sequence[Kernel], *names: str) -> Array:
    """Sizes of kernels, shape (names, kernels, n) or (names, kernels, 1)."""
    values = [[np.atleast_1d(getattr(row, name)) for row in rows] for name in names]
    n = max(value.size for row in values for value in row)
    return np.array([[np.broadcast_to(value, (n,)) for value in row] for row in values], dtype=float)


def _attention(
    rows: Sequence[Kernel], program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool
) -> KernelCosts:
    found = [row if row.kv_heads is not None else replace(row, kv_heads=row.heads) for row in rows if isinstance(row, Attention)]
    backward = np.array([[row.backward] for row in found])
    sizes = attention_sizes(_table(found, "samples", "heads", "kv_heads", "length", "seen", "width"), program.element, found)
    share = np.ones((len(found), 1))
    if stack is not None:
        kernel = stack.attention
        share = np.where(backward, kernel.backward_utilisation, kernel.forward_utilisation)
        share = share if kernel.native else share * architecture.execution.earlier_instructions
    samples, heads, _, length, seen, width = _table(found, "samples", "heads", "kv_heads", "length", "seen", "width")
    shapes = np.stack([samples * heads, length, seen, width])
    return attention_costs(sizes, shapes, share, architecture, program.dtype, program.element, least=least)
