"""What a program costs on an architecture: times, what binds them, energy, for all design points."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array, once
from crossflow.cost.network import MessageCosts, message_costs
from crossflow.cost.roofline import KernelCosts, attention_costs, joined, pass_costs, product_costs, resources, wide_type
from crossflow.formats import kept_bytes
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
    call : time of the host for one call, shape (1,). [s]
    """

    resources: tuple[str, ...]
    kernels: KernelCosts
    lower_bound: Array
    messages: MessageCosts
    call: Array

    @functools.cached_property
    def times(self) -> Array:
        """Time of every row: kernels, messages, a call of the host, shape (rows, n). [s]"""
        return stacked(self.kernels.time, self.messages.time, self.call[None])

    def without(self, silent: Array) -> Array:
        """The same where some messages take no time, a mask of shape (messages,)."""
        found = self.times.copy()
        first = len(self.kernels.time)
        found[first : first + len(silent)][silent] = 0.0
        return found


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
    return Prices(
        resources=resources(architecture),
        kernels=floor if least else kernel_prices(program, architecture, stack),
        lower_bound=floor.resource_times.max(axis=0),
        messages=messages,
        call=np.zeros(1) if stack is None else stack.host.kernel,
    )


def kernel_prices(program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool = False) -> KernelCosts:
    """Costs of the distinct kernels of a program, in their order."""
    groups = _groups(program)
    parts = [_priced(group, program, architecture, stack, least=least) for group in groups]
    if not parts:
        return _nothing(architecture)
    return parts[0] if len(parts) == 1 else joined(parts)[np.argsort([place for group in groups for place in group.places])]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Group:
    """Kernels of one kind and type, by their places among those of a program, with their sizes, shape (names, kernels, n)."""

    kind: type[Kernel]
    wide: bool
    rows: tuple[Kernel, ...]
    places: tuple[int, ...]
    sizes: Array


SIZES: Mapping[type[Kernel], tuple[str, ...]] = {
    Product: ("m", "n", "k", "batch"),
    Pass: ("moved", "flops", "launches"),
    Attention: ("samples", "heads", "kv_heads", "length", "seen", "width"),
}


@once
def _groups(program: Program) -> tuple[_Group, ...]:
    """Kernels that are priced together."""
    places: dict[tuple[type[Kernel], bool], list[int]] = {}
    for i, kernel in enumerate(program.kernels):
        places.setdefault((type(kernel), isinstance(kernel, Product) and kernel.wide), []).append(i)
    found = []
    for (kind, wide), mine in places.items():
        rows = tuple(_with_heads(program.kernels[i]) for i in mine)
        found.append(_Group(kind=kind, wide=wide, rows=rows, places=tuple(mine), sizes=_table(rows, SIZES[kind])))
    return tuple(found)


def _with_heads(kernel: Kernel) -> Kernel:
    """Attention with as many heads of keys and values as of queries, where it does not say."""
    return replace(kernel, kv_heads=kernel.heads) if isinstance(kernel, Attention) and kernel.kv_heads is None else kernel


def _table(rows: Sequence[Kernel], names: Sequence[str]) -> Array:
    """Sizes of kernels, shape (names, kernels, n) or (names, kernels, 1)."""
    values = [[np.atleast_1d(getattr(row, name)) for row in rows] for name in names]
    n = max(value.size for row in values for value in row)
    return np.array([[np.broadcast_to(value, (n,)) for value in row] for row in values], dtype=float)


def _priced(group: _Group, program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    dtype = wide_type(architecture, program.dtype) if group.wide else program.dtype
    if group.kind is Pass:
        moved, flops, launches = group.sizes
        return pass_costs(moved, flops, launches, architecture, dtype, least=least)
    if group.kind is Attention:
        return _attention(group, program, architecture, stack, least=least)
    result = _results([row for row in group.rows if isinstance(row, Product)], kept_bytes(program.dtype))
    costs = product_costs(group.sizes, result, architecture, dtype, least=least)
    if stack is not None and program.trains and not least:
        costs = costs.slowed(stack.product_slowdown * architecture.execution.training_sensitivity)
    return costs


def _results(rows: Sequence[Product], element: float) -> Array:
    """What an element of the result of every product moves, shape (kernels, 1) or (kernels, n). [B]"""
    stated = [replace(row, result=element * (1.0 + row.adds)) if row.result is None else row for row in rows]
    return np.asarray(_table(stated, ("result",))[0])


def _nothing(architecture: Architecture) -> KernelCosts:
    """Costs of no kernels."""
    none, levels = np.zeros((0, 1)), len(architecture.levels)
    times, traffic = np.zeros((levels + 1, 0, 1)), np.zeros((levels, 0, 1))
    return KernelCosts(time=none, launch=none, launches=none, resource_times=times, flops=none, traffic=traffic, energy=none)


def _attention(group: _Group, program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    rows = [row for row in group.rows if isinstance(row, Attention)]
    share = np.ones((len(rows), 1))
    if stack is not None:
        kernel = stack.attention
        share = np.where(np.array([[row.backward] for row in rows]), kernel.backward_utilisation, kernel.forward_utilisation)
        share = share if kernel.native else share * architecture.execution.earlier_instructions
    samples, heads, _, length, seen, width = group.sizes
    shapes, sizes = np.stack([samples * heads, length, seen, width]), attention_sizes(group.sizes, kept_bytes(program.dtype), rows)
    return attention_costs(sizes, shapes, share, architecture, program.dtype, kept_bytes(program.dtype), least=least)
