"""Time of the kernels and collectives of a transformer's parts on an architecture, for all design points at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array, Index, Mask, divide, wide
from crossflow.cost.fabrics import Fabric, Path, fabric_of, path, path_time
from crossflow.cost.network import SWITCHED, axis_time
from crossflow.cost.profile import Profile, attention_shape, gemm_shape, pass_shape, where_measured
from crossflow.cost.roofline import KernelCosts, searched_costs, tiled_costs, vector_rate
from crossflow.errors import CrossflowError
from crossflow.mapping import place, wired
from crossflow.parallel.kernels import PHASES, Kernels, filled
from crossflow.parallel.layout import Group, Layout
from crossflow.software import SoftwareStack
from crossflow.workload.dlrm import DlrmJob
from crossflow.workload.graph import DTYPE_BYTES
from crossflow.workload.job import Job

WIDE = ("bf16", "fp16", "tf32", "fp32")  # types of what stays out of 8-bit products (attention, the head): the first that a device has
FIGURES = ("compute", "memory_bound", "launch", "kernels", "flops", "energy", "traffic", "measured")  # of kernels and their sums
PATH = tuple(field.name for field in dataclasses.fields(Path))


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """What every unit (part of a layer, embedding, head) takes in every phase; arrays of shape (units, phases, n).

    Attributes
    ----------
    units : names in the order of the first axis; phases as in `PHASES`.
    compute : time of the device's kernels, launches included. [s]
    memory_bound, launch : of it, in kernels that memory binds, and between kernels. [s]
    kernels : kernels launched. [1]
    flops, energy, traffic : operations, their energy, and bytes of main memory. [flop], [J], [B]
    measured : of the time of kernels, what was measured. [s]
    products : time of every matrix product, in the order of `Kernels.products`, shape (products, n). [s]
    """

    units: tuple[str, ...]
    compute: Array
    memory_bound: Array
    launch: Array
    kernels: Array
    flops: Array
    energy: Array
    traffic: Array
    measured: Array
    products: Array


def part_times(
    kernels: Kernels, job: Job | DlrmJob, architecture: Architecture, stack: SoftwareStack, profile: Profile | None = None
) -> PartTimes:
    """Cost of all kernels, added up by unit and phase; those that a profile has take the time that was measured."""
    parts = kernel_times(kernels, job, architecture, stack, profile)
    table = np.array([np.concatenate([part[name] for part in parts]) for name in FIGURES])
    totals = (kernels.members @ table).reshape(len(FIGURES), len(kernels.units), len(PHASES), kernels.n)
    return PartTimes(units=kernels.units, products=parts[0]["compute"], **dict(zip(FIGURES, totals, strict=True)))


def kernel_times(
    kernels: Kernels, job: Job | DlrmJob, architecture: Architecture, stack: SoftwareStack, profile: Profile | None = None
) -> list[dict[str, Array]]:
    """Costs of products, passes and, where there is any, fused attention, each by `FIGURES`, shape (kernels, n)."""
    dtype, products = job.dtype, _products(kernels, architecture, job.dtype, job.element)
    if job.training:
        products = _slowed(products, stack.product_slowdown * architecture.execution.training_sensitivity)
    parts = [products, _passes(kernels, architecture, dtype)]
    if kernels.scores:
        parts.append(_scores(kernels, architecture, stack, dtype))
    if profile is None:
        parts = [{**part, "measured": np.zeros(part["compute"].shape)} for part in parts]
    else:
        shapes = kernel_shapes(kernels, dtype, wide_type(architecture, dtype))
        parts = [_measured(part, names, profile) for part, names in zip(parts, shapes, strict=False)]
    return parts


Identity = tuple[str, str, Sequence[str]]  # op, data type, and shape at every design point


def kernel_shapes(kernels: Kernels, dtype: str, unscaled: str) -> tuple[list[Identity], list[Identity], list[Identity]]:
    """What identifies every product, pass and fused attention, as profiles name them; `unscaled` as of `wide_type`."""
    products, passes, scores = list[Identity](), list[Identity](), list[Identity]()
    points = range(kernels.n)
    for one, sizes in zip(kernels.products, kernels.product_sizes.swapaxes(0, 1), strict=True):
        op = "gemm_accumulate" if one.sums else "gemm"  # the result is added to one in fp32
        products.append((op, unscaled if one.wide else dtype, [gemm_shape(*sizes[:, i]) for i in points]))
    for (*_, launches), moved in zip(kernels.passes, kernels.pass_sizes[0], strict=True):
        passes.append(("pass", "", [pass_shape(size, launches) for size in moved]))
    for one_, sizes in zip(kernels.scores, filled([one[5:] for one in kernels.scores], kernels.n), strict=True):
        op = "attention_forward" if one_.phase == "forward" else "attention_backward"
        scores.append((op, unscaled, [attention_shape(*sizes[:, i]) for i in points]))
    return products, passes, scores


def _measured(part: dict[str, Array], names: Sequence[Identity], profile: Profile) -> dict[str, Array]:
    """Costs with measured times in place; launches stay the model's."""
    found = np.concatenate([profile.kernels(op, dtype, [shapes]) for op, dtype, shapes in names]) if names else np.zeros((0, 1))
    busy, known = where_measured(part["compute"] - part["launch"], found)
    bound = np.where(known & (part["memory_bound"] > 0), busy, part["memory_bound"])
    return {**part, "compute": busy + part["launch"], "memory_bound": bound, "measured": np.where(known, busy, 0.0)}


def _slowed(products: dict[str, Array], slowdown: Array) -> dict[str, Array]:
    """Products that take longer by a share, without their launches."""
    busy, bound = products["compute"] - products["launch"], products["memory_bound"]
    return {**products, "compute": products["compute"] + slowdown * busy, "memory_bound": bound * (1.0 + slowdown)}


def _products(kernels: Kernels, architecture: Architecture, dtype: str, element: int) -> dict[str, Array]:
    """Products with their own type, and those that stay in bf16 where that is narrower."""
    keeps, sums = (np.array([getattr(product, flag) for product in kernels.products]) for flag in ("wide", "sums"))
    sizes, other = kernels.product_sizes, wide_type(architecture, dtype)
    if other == dtype or not keeps.any():
        return _costed(sizes, sums, architecture, dtype, element)
    places = np.argsort(keeps, kind="stable").argsort()
    some, others = (_costed(sizes[:, of], sums[of], architecture, type_, element) for of, type_ in ((~keeps, dtype), (keeps, other)))
    return {name: np.concatenate([some[name], others[name]])[places] for name in some}


def wide_type(architecture: Architecture, dtype: str) -> str:
    """Type of what keeps out of 8-bit products on a device; the type itself where it is wider, or where the device has no other."""
    if DTYPE_BYTES[dtype] > 1:
        return dtype
    return next((name for name in WIDE if name in architecture.throughput), dtype)


def _costed(sizes: Array, sums: Mask, architecture: Architecture, dtype: str, element: int) -> dict[str, Array]:
    (m, width, k, batch), operand, shape = sizes, DTYPE_BYTES[dtype], sizes.shape[1:]
    # Sums go to fp32 in memory, which is read and written, (4 + 4) bytes; a plain result writes `element`. In operands:
    accumulate = np.where(sums, 8.0, element)[:, None] / operand - 1.0
    if architecture.execution.tiles is not None:
        costs = tiled_costs(m, width, k, accumulate, architecture, dtype, operand, batch=batch)
    else:
        costs = _searched(m, width, k, accumulate, batch, architecture, dtype, operand)
    memory = costs.resource_times[1:].max(axis=0) > costs.resource_times[0]
    found = {
        "compute": costs.time, "memory_bound": np.where(memory, costs.time - costs.launch, 0.0), "launch": costs.launch,
        "flops": costs.flops, "energy": costs.flops * architecture.energy_per_flop[dtype], "traffic": costs.traffic[-1],
    }  # fmt: skip
    return {name: wide(values, shape[1]) for name, values in found.items()} | {"kernels": np.ones(shape)}


def _searched(
    m: Array, width: Array, k: Array, accumulate: Array, batch: Array, architecture: Architecture, dtype: str, element: int
) -> KernelCosts:
    """Products on a device whose tiles are searched for: equal products of a batch one after the other, without their launches.

    The search takes sizes of one point and devices of many, or sizes of many and one device; where both vary, point by point.
    """
    n = m.shape[1]
    same = all((values == values[:, :1]).all() for values in (m, width, k, batch))
    if same:
        one = searched_costs(m[:, :1], width[:, :1], k[:, :1], accumulate, architecture, dtype, element)
        return _times(one, batch[:, :1])
    if device_points(architecture) == 1:
        rows, columns, depth = (values.reshape(-1, 1) for values in (m, width, k))
        one = searched_costs(rows, columns, depth, np.repeat(accumulate, n, axis=0), architecture, dtype, element)
        shaped = {f.name: getattr(one, f.name).reshape(*getattr(one, f.name).shape[:-2], *m.shape) for f in dataclasses.fields(one)}
        return _times(KernelCosts(**shaped), batch)
    raise CrossflowError("a generated device and a transformer's plan cannot vary in one batch; vary them one after the other")


def device_points(architecture: Architecture) -> int:
    """Design points over which a device's rates vary."""
    return max(architecture.throughput[next(iter(architecture.throughput))].size, *(level.bandwidth.size for level in architecture.levels))


def _times(one: KernelCosts, batch: Array) -> KernelCosts:
    """Costs of `batch` equal products, launched once."""
    return KernelCosts(
        time=(one.time - one.launch) * batch + one.launch,
        launch=one.launch,
        resource_times=one.resource_times * batch,
        flops=one.flops * batch,
        traffic=one.traffic * batch,
    )


def _passes(kernels: Kernels, architecture: Architecture, dtype: str) -> dict[str, Array]:
    traffic, operations, count = kernels.pass_sizes
    memory = divide(traffic, architecture.memory.bandwidth)
    compute = divide(operations, vector_rate(architecture, dtype) * architecture.execution.vector_utilisation)
    launch = count * architecture.execution.kernel_launch
    work = np.maximum(memory, compute)
    return {
        "compute": work + launch, "memory_bound": np.where(memory >= compute, work, 0.0), "launch": launch, "kernels": count,
        "flops": operations, "energy": operations * architecture.energy_per_flop[wide_type(architecture, dtype)], "traffic": traffic,
    }  # fmt: skip


def _scores(kernels: Kernels, architecture: Architecture, stack: SoftwareStack, dtype: str) -> dict[str, Array]:
    """Fused attention: blocks of 128 queries a head, in waves over the units; a share of the sustained matrix rate."""
    operations, traffic, count = kernels.score_sizes
    kernel, execution = stack.attention, architecture.execution
    forward = np.array([[one.phase == "forward"] for one in kernels.scores])
    share = np.where(forward, kernel.forward_utilisation, kernel.backward_utilisation)
    type_ = wide_type(architecture, dtype)
    rate = architecture.throughput[type_] * execution.matrix_utilisation * architecture.sustained_clock
    if not kernel.native:
        rate = rate * execution.earlier_instructions
    waves = np.ceil(count / architecture.units) * architecture.units / count
    compute = divide(operations, rate * share) * np.minimum(waves, 4.0)
    memory = divide(traffic, architecture.memory.bandwidth)
    launch = np.zeros(operations.shape) + execution.kernel_launch
    work = np.maximum(compute, memory)
    return {
        "compute": work + launch, "memory_bound": np.where(memory > compute, work, 0.0), "launch": launch,
        "kernels": np.ones(work.shape), "flops": operations, "energy": operations * architecture.energy_per_flop[type_], "traffic": traffic,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------- collectives


@dataclass(frozen=True, kw_only=True)
class Wires:
    """Collectives among groups of a layout on a network; equal groups are costed once for all their points."""

    network: NetworkSpec
    architecture: Architecture
    node: int
    profile: Profile | None = None

    @functools.cached_property
    def fabric(self) -> Fabric:
        """The fabric of the system."""
        return fabric_of(self.network, self.architecture, self.node)

    @functools.cached_property
    def _paths(self) -> dict[tuple[str, int, int], Path]:
        return {}

    def path(self, collective: str, ranks: int, per_node: int) -> Path:
        """Path of a collective among the ranks of nodes in which every device is busy, worked out once."""
        key = (collective, ranks, per_node)
        if key not in self._paths:
            self._paths[key] = path(self.fabric, collective, ranks, per_node, whole_nodes=True)
        return self._paths[key]

    def time(self, collective: str, size: Array, group: Group) -> Array:
        """Time of collectives of `size` bytes, shape (..., n), among each point's group. [s]"""
        modelled = self._modelled(collective, size, group)
        return modelled if self.profile is None else where_measured(modelled, self.measured(collective, size, group))[0]

    def measured(self, collective: str, size: Array, group: Group) -> Array:
        """Measured times of collectives, NaN where they were not measured, shape (..., n). [s]"""
        shape = np.broadcast_shapes(np.shape(size), group.size.shape)
        if self.profile is None:
            return np.full(shape, np.nan)
        return self.profile.messages(collective, np.broadcast_to(np.asarray(size, dtype=float), shape), group)

    def _modelled(self, collective: str, size: Array, group: Group) -> Array:
        """The same by the model of the network. [s]"""
        sizes = size if np.shape(size)[-1:] == group.size.shape else np.broadcast_to(np.asarray(size, dtype=float), group.size.shape)
        if not group.several or not sizes.any():
            return np.zeros(sizes.shape)
        if self.network.intra.fabric not in SWITCHED:
            return self._placed(collective, sizes, group)
        if len(group.kinds) == 1:
            ranks, per_node, _ = group.kinds[0]
            time = path_time(sizes, self.path(collective, ranks, per_node))
            return np.asarray(np.where(sizes > 0, time, 0.0))
        result = np.zeros(sizes.shape)
        for ranks, per_node, members in group.kinds:
            if ranks > 1:
                found = self.path(collective, ranks, per_node)
                chosen = Path(**{name: _at(getattr(found, name), members) for name in PATH})
                mine = sizes[..., members]
                result[..., members] = np.where(mine > 0, path_time(mine, chosen), 0.0)
        return result

    def _placed(self, collective: str, sizes: Array, group: Group) -> Array:
        """The same where the wiring matters: each kind of group as an axis of a mesh that is laid out on the network. [s]"""
        result = np.zeros(sizes.shape)
        for stride, extent, devices, members in group.places:
            if extent < 2:
                continue
            axes = (("inner", stride), ("group", extent), ("outer", devices // (stride * extent)))
            node = min(self.node, devices)
            placement = place(axes, wired(self.network, node, devices // node), chains=("group",) if collective == "send_recv" else ())
            time = axis_time(collective, sizes, "group", placement, self.network, self.architecture, node)
            result[..., members] = np.where(sizes > 0, time, 0.0)[..., members]
        return result

    def times(self, kernels: Kernels, layout: Layout) -> tuple[Array, Array]:
        """Time of every message and what of it was measured, shape (messages, n). [s]"""
        time, measured = np.zeros((2, len(kernels.messages), kernels.n))
        for (collective, name), rows in kernels.kinds.items():
            sizes, group = kernels.message_sizes[rows], getattr(layout, name)
            time[rows] = self.time(collective, sizes, group)
            if self.profile is not None and group.several:
                measured[rows] = np.nan_to_num(self.measured(collective, sizes, group))
        return time, measured


def message_bytes(kernels: Kernels, layout: Layout) -> Array:
    """Bytes that a rank sends in every message inside its node and out of it, shape (2, messages, n). [B]"""
    moved = np.zeros((2, len(kernels.messages), kernels.n))
    for (collective, name), rows in kernels.kinds.items():
        moved[:, rows] = sent_bytes(collective, kernels.message_sizes[rows], getattr(layout, name))
    return moved


def sent_bytes(collective: str, size: Array, group: Group) -> Array:
    """Bytes that a rank sends inside its node and out of it, shape (2, ..., n). [B]

    A ring's edges lie inside nodes but for one a node; of an all-to-all, each rank has a part for every other.
    """
    ranks, per_node = group.size, group.per_node
    if collective == "all_to_all":
        return np.stack([size * (per_node - 1.0) / ranks, size * (ranks - per_node) / ranks])
    share = 1.0 if collective in ("send_recv", "broadcast") else (ranks - 1.0) / ranks
    total = np.where(ranks > 1, (2.0 if collective == "all_reduce" else 1.0) * share * size, 0.0)
    outside = np.where(per_node < ranks, 1.0 / per_node, 0.0)
    return np.stack([total * (1.0 - outside), total * outside])


def _at(value: Array, members: Index) -> Array:
    return value if np.size(value) == 1 else value[members]
