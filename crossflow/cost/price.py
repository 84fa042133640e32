"""What a program costs on an architecture: times, what binds them, energy, for all design points."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, divide, largest
from crossflow.base.formats import DTYPE_BYTES, without_structure
from crossflow.base.stages import stage
from crossflow.cost.attention import calls_of, latent_costs, library_attention_costs, shared_decode_costs
from crossflow.cost.network import CostRows, MessageCosts, message_costs
from crossflow.cost.profile import (
    LOOKUPS,
    Profile,
    attention_shape,
    experts_shape,
    gemm_shape,
    lookup_shape,
    pass_shape,
    scan_shape,
    where_measured,
)
from crossflow.cost.roofline import (
    KernelCosts,
    fused_costs,
    joined,
    pass_costs,
    powered,
    product_costs,
    quantised_costs,
    resources,
    timed_costs,
    wide_type,
)
from crossflow.hardware.architecture.execution import DecodeKernel, PrefillKernel, ProductLibrary, WideningLibrary, preferred
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.network import NetworkSpec
from crossflow.hardware.architecture.software import AttentionChoice, SoftwareStack
from crossflow.hardware.mapping.placement import Placement
from crossflow.program.kernels import Attention, Experts, KernelTable, Lookup, Pass, Product, Scan, Timed
from crossflow.program.program import HOST_TIMES, Program


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a program; arrays end in the design-point axis."""

    resources: tuple[str, ...]  # compute and the memory levels, names of the resources that can bind a kernel
    kernels: KernelCosts  # costs of the distinct kernels
    # time below which no kernel can be: its operations at peak, or its least traffic at memory bandwidth, shape (kernels, n). [s]
    lower_bound: Array
    messages: MessageCosts  # costs of the distinct messages
    call: Array  # time of the host for one call of each kind (`HOST_TIMES`), shape (calls, 1). [s]
    measured: Array  # of the time of every kernel and message, what was measured, shape (rows, n). [s]

    @functools.cached_property
    def times(self) -> Array:
        """Time of every row: kernels, messages, calls of the host, shape (rows, n). [s]"""
        return stacked(self.kernels.time, self.messages.time, self.call)

    def at(self, points: Index, messages: Index) -> Prices:
        """Prices at some design points, with some of the messages."""
        sent = {field.name: at_points(getattr(self.messages, field.name), points)[messages] for field in fields(MessageCosts)}
        return replace(
            self, kernels=self.kernels.at(points), lower_bound=at_points(self.lower_bound, points), messages=MessageCosts(**sent),
            measured=at_points(self.measured, points)[[*range(len(self.kernels.time)), *(len(self.kernels.time) + messages)]],
        )  # fmt: skip

    def without(self, silent: Array) -> Array:
        """The same where some messages take no time, a mask of shape (messages,)."""
        found = self.times.copy()
        first = len(self.kernels.time)
        found[first : first + len(silent)][silent] = 0.0
        return found


def host_calls(stack: SoftwareStack | None) -> Array:
    """Time of the host for one call of each kind (`HOST_TIMES`), shape (calls, 1). [s]"""
    return np.array([np.zeros(1) if stack is None else getattr(stack.host, time) for time in HOST_TIMES])


def stacked(*parts: Array) -> Array:
    """Rows of several tables, each of as many points or of one."""
    n = max(part.shape[1] for part in parts)
    return np.concatenate([np.broadcast_to(part, (len(part), n)) for part in parts])


@stage("price")
def price(
    program: Program,
    placement: Placement,
    network: NetworkSpec,
    architecture: Architecture,
    devices_per_node: int,
    *,
    stack: SoftwareStack | None = None,
    profile: Profile | None = None,
    least: bool = False,
    rows: CostRows | None = None,
) -> Prices:
    """Price every distinct kernel and message of a program once.

    Parameters
    ----------
    stack : software whose attention kernels and host times count; those of ideal software where absent.
    profile : measured times, which replace the model's.
    least : take the lower bound of every kernel.
    rows : keeps what messages cost, see `message_costs`.
    """
    kernels, known = kernel_prices(program, architecture, stack, None if least else profile, least=least)
    floor = kernels.resource_times.max(axis=0) if least else _lower_bounds(program, architecture, stack)
    messages = message_costs(program.messages, placement, network, architecture, devices_per_node, profile, rows, stack=stack)
    return Prices(
        resources=resources(architecture),
        kernels=kernels,
        lower_bound=floor,
        messages=messages,
        call=host_calls(stack),
        measured=stacked(np.broadcast_to(known, (len(program.kernels), known.shape[-1])), messages.measured),
    )


def kernel_prices(
    program: Program, architecture: Architecture, stack: SoftwareStack | None, profile: Profile | None = None, *, least: bool = False
) -> tuple[KernelCosts, Array]:
    """Costs of the distinct kernels of a program, in their order, and what of their time was measured, shape (kernels, n). [s]"""
    if not program.kernels:
        return _nothing(architecture), np.zeros((0, 1))
    _, costs, known = zip(*kernel_parts(program, architecture, stack, profile, least=least), strict=True)
    return (costs[0], known[0]) if len(costs) == 1 else (joined(costs, program.in_tables), stacked(*known)[program.in_tables])


def _lower_bounds(program: Program, architecture: Architecture, stack: SoftwareStack | None) -> Array:
    """Time below which no kernel can be, shape (kernels, n). [s]"""
    if not program.kernels:
        return np.zeros((0, 1))
    return stacked(*(costs.resource_times.max(axis=0) for _, costs, _ in kernel_parts(program, architecture, stack, least=True)))[
        program.in_tables
    ]


def kernel_parts(
    program: Program, architecture: Architecture, stack: SoftwareStack | None, profile: Profile | None = None, *, least: bool = False
) -> Iterator[tuple[KernelTable, KernelCosts, Array]]:
    """Costs of the kernels of each kind and type, and what of their time was measured, shape (kernels, n). [s]"""
    if stack is not None and stack.kernels.launch == "graph":
        architecture = architecture.in_graphs
    for table in program.kernel_tables:
        costs = _priced(table, program, architecture, stack, least=least)
        if profile is None or table.kind is Timed:
            yield table, powered(costs, architecture), costs.time if table.kind is Timed else np.zeros((len(table.rows), 1))
            continue
        names = kernel_names(table, program.dtype, architecture)
        found = np.concatenate([profile.kernels(op, type_, [shapes]) for op, type_, shapes in names])
        if profile.nearby:
            from crossflow.cost.nearby import near_times

            found = np.where(np.isnan(found), near_times(table, [type_ for _, type_, _ in names], profile), found)
        n = np.broadcast_shapes(costs.time.shape, found.shape)[1]
        busy, measured = where_measured(
            np.broadcast_to(costs.time - costs.launch, (len(found), n)), np.broadcast_to(found, (len(found), n))
        )
        working = costs.working * divide(busy, costs.time - costs.launch)
        yield table, powered(replace(costs, time=busy + costs.launch, working=working), architecture), np.where(measured, busy, 0.0)


def _priced(table: KernelTable, program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    dtype = wide_type(architecture, program.dtype) if table.wide else program.dtype
    if table.kind is Pass:
        return _passes(table, program, architecture, stack, least=least)
    if table.kind is Attention:
        return _attention(table, program.dtype, architecture, stack, least=least)
    if table.kind is Scan:
        return _scans(table, program.dtype, architecture, stack, least=least)
    if table.kind is Timed:
        time, flops, moved = table.sizes
        return timed_costs(time, flops, moved, architecture, dtype, least=least)
    if table.kind is Lookup:
        from crossflow.cost.lookups import lookup_costs

        return lookup_costs([row for row in table.rows if isinstance(row, Lookup)], table.sizes, architecture)
    if table.kind is Experts:
        return _experts(table, program.dtype, architecture, stack, least=least)
    second = np.where(np.isnan(table.stored), 1.0, table.stored / DTYPE_BYTES[dtype])
    library, leaves_out = _library(dtype, architecture, stack), table.structured and dtype in architecture.sparse_throughput
    costs = product_costs(
        table.sizes, table.result, architecture.leaving_out if leaves_out else architecture, dtype,
        second=second, least=least, library=library, leaves_out=leaves_out, as_is=_read_as_they_are(table, dtype) & leaves_out,
        widening=_widening(table, architecture, stack),
    )  # fmt: skip
    if stack is not None and program.trains and not least:
        costs = costs.slowed(stack.product_slowdown * architecture.execution.training_sensitivity)
    return costs


def _widening(table: KernelTable, architecture: Architecture, stack: SoftwareStack | None) -> WideningLibrary | None:
    """Kernels of a stack that widen the weights of products, those for the first type that it names any for; None without."""
    known, names = architecture.execution.libraries.widening, {} if stack is None else stack.kernels.widening
    stored = dict.fromkeys(without_structure(row.stored) for row in table.rows if isinstance(row, Product))
    return next(filter(None, (preferred(names.get(one, ()), known) for one in stored)), None)


def _read_as_they_are(table: KernelTable, dtype: str) -> Mask:
    """Products whose weights units read in the type in which they lie in memory, shape (kernels, 1)."""
    return np.array([[isinstance(row, Product) and without_structure(row.stored or dtype) == dtype] for row in table.rows])


def _library(dtype: str, architecture: Architecture, stack: SoftwareStack | None) -> ProductLibrary | None:
    """Library in which a stack multiplies matrices of a type; None where it names none that the device's family has.

    Where none of them was measured on such a device, that of fp8 stands in for its blocks and for types of 4 bits: where DeepGEMM does not
    run, an engine has block-scaled kernels of its own [1]_, and none of them is that of another engine.

    References
    ----------
    .. [1] SGLang, `_dispatch_auto_backend` of layers/quantization/fp8_utils.py: DeepGEMM, FlashInfer, CUTLASS, Triton; vLLM,
       `_POSSIBLE_FP8_BLOCK_KERNELS` of model_executor/kernels/linear: DeepGEMM, CUTLASS, MARLIN, Triton.
    """
    if stack is None:
        return None
    every, names = architecture.execution.libraries.products, stack.kernels.products
    known = {name: library for name, library in every.items() if architecture.generation not in library.not_on}
    own = preferred(names.get(dtype, ()), known)
    near = dtype == "fp8_block" or DTYPE_BYTES[dtype] < DTYPE_BYTES["fp8"]
    return preferred(names.get("fp8", ()), known) if own is None and near else own


def _passes(table: KernelTable, program: Program, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    """Passes over memory; those that scale operands of narrow products as the library of these products does."""
    moved, flops, launches = table.sizes
    costs = pass_costs(moved, flops, launches, architecture, program.dtype, least=least)
    library = _library(program.dtype, architecture, stack)
    if least or library is None or library.quantise is None:
        return costs
    narrow = np.array([[isinstance(row, Pass) and row.narrows] for row in table.rows])
    return quantised_costs(costs, narrow, library.quantise, architecture, program.dtype)


def _nothing(architecture: Architecture) -> KernelCosts:
    """Costs of no kernels."""
    none, levels = np.zeros((0, 1)), len(architecture.levels)
    times, traffic = np.zeros((levels + 1, 0, 1)), np.zeros((levels, 0, 1))
    return KernelCosts(time=none, launch=none, launches=none, resource_times=times, flops=none, traffic=traffic, energy=none, working=none)


def _attention(table: KernelTable, dtype: str, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    """Fused attention, by the measured kernels that the stack names, or by what it reaches of a device's rates."""
    costs = fused_attention(table, dtype, architecture, stack, least=least)
    if stack is None or least or not architecture.execution.libraries.attention:
        return costs
    kernels = attention_kernels(stack.kernels.attention, architecture)
    gap = 0.0 if architecture.graphs else architecture.execution.kernel_launch
    others = measured_kernels(stack.kernels.attention, architecture)
    calls, known = calls_of(table, dtype), architecture.execution.libraries.attention
    latent = preferred(stack.kernels.attention.latent, known)
    if latent is not None and calls.latent.any():
        if latent.latent is not None:
            costs = latent_costs(calls, latent.latent, costs, architecture)
        elif latent.decode is not None and latent.decode.latent_heads is not None:
            costs = shared_decode_costs(calls, latent.decode, costs, architecture, gap)
    return library_attention_costs(calls, kernels, costs, architecture, gap, others)


def fused_attention(table: KernelTable, dtype: str, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    """Fused attention of kernels that nobody measured, as the stack's use a device."""
    (flops, moved, blocks), (_, *shapes), backward = table.attention
    sizes, share = (flops, moved, moved, blocks, np.ones((len(flops), 1))), _share(backward, architecture, stack)
    return fused_costs(sizes, shapes, share, architecture, dtype, table.element, alone=shapes[0] <= 1, least=least)


def attention_kernels(choice: AttentionChoice, architecture: Architecture) -> tuple[PrefillKernel | DecodeKernel, ...]:
    """Kernels of the libraries that a stack names and a device's family has, in the order of preference."""
    known = architecture.execution.libraries.attention
    prefill = (known[name].prefill for name in choice.prefill if name in known)
    decode = (known[name].decode for name in choice.decode if name in known)
    return tuple(kernel for kernel in (*prefill, *decode) if kernel is not None)


def measured_kernels(choice: AttentionChoice, architecture: Architecture) -> tuple[PrefillKernel | DecodeKernel, ...]:
    """All measured kernels of a device's family that do what a stack has libraries for."""
    known = architecture.execution.libraries.attention.values()
    prefill = (library.prefill for library in known if choice.prefill)
    decode = (library.decode for library in known if choice.decode)
    return tuple(kernel for kernel in (*prefill, *decode) if kernel is not None)


def _experts(table: KernelTable, dtype: str, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    """Fused layers of experts, by the library that the stack uses on the device: on the rows of all tokens, or after an exchange."""
    from crossflow.cost.experts import expert_library, general_costs, grouped_costs

    library = None if stack is None else expert_library(architecture, stack.kernels.experts_of(dtype, exchanged=table.exchanged), dtype)
    if stack is None or library is None or least:
        return general_costs(table.sizes, architecture, dtype, least=least)
    found = grouped_costs(table.sizes, library, architecture, dtype, eager=stack.kernels.launch == "eager")
    return found if stack.host.experts == "kernels" else replace(found, launches=np.ones_like(found.launches))


def _scans(table: KernelTable, dtype: str, architecture: Architecture, stack: SoftwareStack | None, *, least: bool) -> KernelCosts:
    """Chunked scans of state-space layers; their products reach what was measured of them, or else what fused attention reaches."""
    rows = [row for row in table.rows if isinstance(row, Scan)]
    _, _, _, length, width, state, chunk = table.sizes
    share, measured = _share(np.array([[row.backward] for row in rows]), architecture, stack), architecture.execution.scan_utilisation
    if measured is not None and stack is not None:
        share = np.where(np.array([[row.delta] for row in rows]) | (share >= 1.0), share, measured)  # ideal software reaches all of it
    from crossflow.program.scans import scan_sizes

    sizes = scan_sizes(table.sizes, table.element, rows)
    return fused_costs(sizes, (np.minimum(chunk, length), state, width), share, architecture, dtype, table.element, least=least)


def _share(backward: Mask, architecture: Architecture, stack: SoftwareStack | None) -> Array:
    """Share of the sustained matrix rate that fused kernels of a stack reach, all of it without a stack, shape (kernels, 1). [1]"""
    if stack is None:
        return np.ones((len(backward), 1))
    kernel = stack.attention
    share = np.where(backward, kernel.backward_utilisation, kernel.forward_utilisation)
    return share if kernel.native else np.asarray(share * architecture.execution.earlier_instructions)


# -------------------------------------------------------------------------------------------- names of kernels in profiles

Name = tuple[str, str, Sequence[str]]  # what a kernel does, data type, and shape at every design point


def kernel_names(table: KernelTable, dtype: str, architecture: Architecture) -> list[Name]:
    """What identifies every kernel of a table, as profiles name it; a table of kernels whose time is not stated."""
    wide, sizes = wide_type(architecture, dtype), table.sizes.swapaxes(0, 1)
    found: list[Name] = []
    for row, own in zip(table.rows, sizes, strict=True):
        points = own.T
        if isinstance(row, Product):
            op = "gemm_accumulate" if row.adds else "gemm"
            found.append((op, _mixed(wide if row.wide else dtype, row.stored), [gemm_shape(*point) for point in points]))
        elif isinstance(row, Attention):
            op = "attention_backward" if row.backward else "attention_forward"
            shapes = [attention_shape(point[0] * point[1], *point[3:], chunked=row.chunked) for point in points]
            found.append((op, _mixed(wide, row.stored), shapes))
        elif isinstance(row, Scan):
            op = "scan_backward" if row.backward else "scan_forward"
            found.append((op, wide, [scan_shape(*point, delta=row.delta) for point in points]))
        elif isinstance(row, Experts):
            found.append(("experts", dtype, [experts_shape(*point) for point in points]))
        elif isinstance(row, Lookup):
            again = row.part == "forward" and row.reuse is None
            found.append((LOOKUPS[row.part], "", [lookup_shape(*point[:5], reuse=1.0 / point[5] if again else 1.0) for point in points]))
        else:
            what = row.what if isinstance(row, Pass) else ""
            found.append(("pass", "", [pass_shape(moved, launches, what) for moved, _, launches in points]))
    return found


def _mixed(dtype: str, stored: str) -> str:
    """Type of a kernel that computes in one type on what is stored in another, as profiles name it.

    >>> _mixed("bf16", "int4"), _mixed("bf16", "")
    ('bf16 x int4', 'bf16')
    """
    return f"{dtype} x {stored}" if stored else dtype


# -------------------------------------------------------------------------------------------- sums by layer and phase

FIGURES = ("compute", "launch", "kernels", "flops", "energy", "traffic", "measured", "spare")  # of kernels and their sums


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """What every layer of a program takes in every phase; arrays of shape (layers, phases, n)."""

    layers: tuple[str, ...]  # names in the order of the first axis
    phases: tuple[str, ...]  # of the second axis
    resources: tuple[str, ...]  # compute and the memory levels, which can bind a kernel
    compute: Array  # time of the device's kernels, launches included. [s]
    bound: Array  # of it, in kernels that each of `resources` binds, shape (resources, layers, phases, n). [s]
    launch: Array  # of it, between kernels. [s]
    kernels: Array  # kernels launched. [1]
    flops: Array  # operations. [flop]
    energy: Array  # dynamic energy. [J]
    traffic: Array  # bytes of main memory. [B]
    measured: Array  # of the time of kernels, what was measured. [s]
    spare: Array  # of it, what kernels that main memory binds would take less if it took no time. [s]
    each: Array  # time of every kernel of the program alone, shape (kernels, n). [s]


def layer_costs(
    program: Program,
    layers: tuple[str, ...],
    phases: tuple[str, ...],
    n: int,
    architecture: Architecture,
    stack: SoftwareStack,
    profile: Profile | None = None,
    *,
    least: bool = False,
) -> LayerCosts:
    """Cost of all kernels of n design points, added up by layer and phase; those that a profile has take the time that was measured."""
    names, count = resources(architecture), len(program.kernels)
    table, first = np.empty((len(FIGURES) + len(names), count, n)), 0
    for _, costs, known in kernel_parts(program, architecture, stack, profile, least=least):
        here = table[:, first : first + len(costs.time)]
        figures = costs.time, costs.launch, costs.launches, costs.flops, costs.energy, costs.traffic[-1], known, costs.spare
        for i, values in enumerate(figures):
            here[i] = values
        here[len(FIGURES) :] = costs.resource_times
        first += len(costs.time)
    by_resource = table[len(FIGURES) :]
    by_resource[:] = np.where(largest(by_resource), table[0] - table[1], 0.0)  # as `KernelCosts.bound_times`
    each = table[0, program.in_tables]
    members = program.members(layers, phases)
    for kernel, often in members.counts:
        table[:, kernel] *= often
    totals = members.totals(table, len(layers) * len(phases)).reshape(len(table), len(layers), len(phases), n)
    parts = dict(zip(FIGURES, totals, strict=False))
    return LayerCosts(layers=layers, phases=phases, resources=names, each=each, bound=totals[len(FIGURES) :], **parts)
