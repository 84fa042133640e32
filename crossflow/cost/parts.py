"""Time of the kernels and collectives of a transformer's parts on an architecture, for all design points at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.architecture import Architecture, NetworkSpec
from crossflow.arrays import Array, Index, Mask
from crossflow.cost.fabrics import Fabric, Path, fabric_of, path, path_time
from crossflow.cost.network import SWITCHED, route_time
from crossflow.cost.price import attention_share, scan_prices
from crossflow.cost.profile import SCAN, Profile, attention_shape, gemm_shape, pass_shape, scan_shape, where_measured
from crossflow.cost.roofline import KernelCosts, attention_costs, joined, pass_costs, product_costs, resources, wide_type
from crossflow.formats import DTYPE_BYTES
from crossflow.mapping import pair_route, place, wired
from crossflow.parallel.kernels import PHASES, Kernels
from crossflow.parallel.layout import Group, Layout, Pair
from crossflow.software import SoftwareStack
from crossflow.workload.dlrm import DlrmJob
from crossflow.workload.job import Job

FIGURES = ("compute", "launch", "kernels", "flops", "energy", "traffic", "measured")  # of kernels and their sums
PATH = tuple(field.name for field in dataclasses.fields(Path))


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """What every unit (part of a layer, embedding, head) takes in every phase; arrays of shape (units, phases, n).

    Attributes
    ----------
    units : names in the order of the first axis; phases as in `PHASES`.
    resources : compute and the memory levels, which can bind a kernel.
    compute : time of the device's kernels, launches included. [s]
    bound : of it, in kernels that each of `resources` binds, shape (resources, units, phases, n). [s]
    launch : of it, between kernels. [s]
    kernels : kernels launched. [1]
    flops, energy, traffic : operations, dynamic energy, and bytes of main memory. [flop], [J], [B]
    measured : of the time of kernels, what was measured. [s]
    products : time of every matrix product, in the order of `Kernels.products`, shape (products, n). [s]
    scores : time of one kernel of every fused attention, in the order of `Kernels.scores`, shape (scores, n). [s]
    """

    units: tuple[str, ...]
    resources: tuple[str, ...]
    compute: Array
    bound: Array
    launch: Array
    kernels: Array
    flops: Array
    energy: Array
    traffic: Array
    measured: Array
    products: Array
    scores: Array


def part_times(
    kernels: Kernels,
    job: Job | DlrmJob,
    architecture: Architecture,
    stack: SoftwareStack,
    profile: Profile | None = None,
    *,
    least: bool = False,
) -> PartTimes:
    """Cost of all kernels, added up by unit and phase; those that a profile has take the time that was measured."""
    names, n = resources(architecture), kernels.n
    table, first = np.empty((len(FIGURES) + len(names), kernels.members.shape[1], n)), 0
    for costs, known in kernel_costs(kernels, job, architecture, stack, profile, least=least):
        here = table[:, first : first + len(costs.time)]
        for i, values in enumerate((costs.time, costs.launch, costs.launches, costs.flops, costs.energy, costs.traffic[-1], known)):
            here[i] = values
        here[len(FIGURES) :] = costs.bound_times
        first += len(costs.time)
    products, fused = len(kernels.products), slice(first - len(kernels.scans) - len(kernels.scores), first - len(kernels.scans))
    scores = table[0, fused].copy()
    table[:, fused] *= kernels.score_counts
    totals = (kernels.members @ table).reshape(len(table), len(kernels.units), len(PHASES), n)
    parts = dict(zip(FIGURES, totals, strict=False))
    return PartTimes(
        units=kernels.units, resources=names, products=table[0, :products], scores=scores, bound=totals[len(FIGURES) :], **parts
    )


def kernel_costs(
    kernels: Kernels,
    job: Job | DlrmJob,
    architecture: Architecture,
    stack: SoftwareStack,
    profile: Profile | None = None,
    *,
    least: bool = False,
) -> Iterator[tuple[KernelCosts, Array | float]]:
    """Costs of products, then of passes, then of fused attention (one kernel of each), then of scans, and what of their time was
    measured, shape (kernels, n). [s]
    """
    dtype, element = job.dtype, job.element
    parts = []
    if kernels.products:
        products = _products(kernels, architecture, dtype, element, least=least)
        slowed = job.training and not least
        parts.append(products.slowed(stack.product_slowdown * architecture.execution.training_sensitivity) if slowed else products)
    if kernels.passes:
        moved, flops, launches = kernels.pass_sizes
        parts.append(pass_costs(moved, flops, launches, architecture, dtype, least=least))
    if kernels.scores:
        parts.append(_attention(kernels, architecture, stack, dtype, element, least=least))
    if kernels.scans:
        parts.append(scan_prices([scan for _, _, scan in kernels.scans], architecture, stack, dtype, element, least=least))
    if profile is None:
        yield from ((part, 0.0) for part in parts)
        return
    shapes = [group for group in kernel_shapes(kernels, dtype, wide_type(architecture, dtype)) if group]
    for part, names in zip(parts, shapes, strict=True):
        found = np.concatenate([profile.kernels(op, type_, [shape]) for op, type_, shape in names])
        busy, known = where_measured(np.broadcast_to(part.time - part.launch, found.shape), found)
        yield dataclasses.replace(part, time=busy + part.launch), np.where(known, busy, 0.0)


Identity = tuple[str, str, Sequence[str]]  # op, data type, and shape at every design point


def kernel_shapes(kernels: Kernels, dtype: str, unscaled: str) -> tuple[list[Identity], ...]:
    """What identifies every product, pass, fused attention and scan, as profiles name them; `unscaled` as of `wide_type`."""
    products, passes, scores, scans = list[Identity](), list[Identity](), list[Identity](), list[Identity]()
    points = range(kernels.n)
    for one, sizes in zip(kernels.products, kernels.product_sizes.swapaxes(0, 1), strict=True):
        op = "gemm_accumulate" if one.sums else "gemm"  # the result is added to one in fp32
        products.append((op, _mixed(unscaled if one.wide else dtype, one.stored), [gemm_shape(*sizes[:, i]) for i in points]))
    for moved, _, launches in kernels.pass_sizes.swapaxes(0, 1):
        passes.append(("pass", "", [pass_shape(moved[i], launches[i]) for i in points]))
    for one_, sizes in zip(kernels.scores, kernels.score_shapes.swapaxes(0, 1), strict=True):
        op = "attention_forward" if one_.phase == "forward" else "attention_backward"
        scores.append((op, _mixed(unscaled, one_.stored), [attention_shape(h, q, k, w, one_.mask) for h, q, k, w in sizes.T]))
    for _, _, scan in kernels.scans:
        sizes = np.array([np.broadcast_to(getattr(scan, name), (kernels.n,)) for name in SCAN])
        op = "scan_backward" if scan.backward else "scan_forward"
        scans.append((op, unscaled, [scan_shape(*sizes[:, i], delta=scan.delta) for i in points]))
    return products, passes, scores, scans


def _mixed(dtype: str, stored: str) -> str:
    """Type of a kernel that computes in one type on what is stored in another, as profiles name it.

    >>> _mixed("bf16", "int4"), _mixed("bf16", "")
    ('bf16 x int4', 'bf16')
    """
    return f"{dtype} x {stored}" if stored else dtype


def _products(kernels: Kernels, architecture: Architecture, dtype: str, element: float, *, least: bool) -> KernelCosts:
    """Products with their own type, and those that stay in bf16 where that is narrower.

    A sum in fp32 is read and written, 4 + 4 bytes an element; a plain result writes `element`.
    """
    keeps, sums, stored = kernels.product_types
    sizes, other = kernels.product_sizes, wide_type(architecture, dtype)
    result = np.where(sums, 8.0, element)[:, None]

    def costs(of: Mask, type_: str) -> KernelCosts:
        second = np.where(np.isnan(stored), 1.0, stored / DTYPE_BYTES[type_])
        return product_costs(sizes[:, of], result[of], architecture, type_, second=second[of], least=least)

    if other == dtype or not keeps.any():
        return costs(np.ones_like(keeps), dtype)
    parts = [costs(of, type_) for of, type_ in ((~keeps, dtype), (keeps, other)) if of.any()]
    return joined(parts)[np.argsort(keeps, kind="stable").argsort()]


def _attention(
    kernels: Kernels, architecture: Architecture, stack: SoftwareStack, dtype: str, element: float, *, least: bool
) -> KernelCosts:
    """Fused attention, as the stack's kernels use a device."""
    share = attention_share([one.phase != "forward" for one in kernels.scores], architecture, stack)
    return attention_costs(kernels.score_sizes, kernels.score_shapes, share, architecture, dtype, element, least=least)


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
    def _paths(self) -> dict[tuple[str, int, int, bool], Path]:
        return {}

    def path(self, collective: str, ranks: int, per_node: int, *, racks: bool = False) -> Path:
        """Path of a collective among the ranks of nodes in which every device is busy, worked out once."""
        key = (collective, ranks, per_node, racks)
        if key not in self._paths:
            self._paths[key] = path(self.fabric, collective, ranks, per_node, whole_nodes=True, racks=racks)
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
        racks = isinstance(group, Pair)  # whose ranks are looked up one by one
        if len(group.kinds) == 1:
            ranks, per_node, _ = group.kinds[0]
            time = path_time(sizes, self.path(collective, ranks, per_node, racks=racks))
            return np.asarray(np.where(sizes > 0, time, 0.0))
        result = np.zeros(sizes.shape)
        for ranks, per_node, members in group.kinds:
            if ranks > 1:
                found = self.path(collective, ranks, per_node, racks=racks)
                chosen = Path(**{name: _at(getattr(found, name), members) for name in PATH})
                mine = sizes[..., members]
                result[..., members] = np.where(mine > 0, path_time(mine, chosen), 0.0)
        return result

    def _placed(self, collective: str, sizes: Array, group: Group) -> Array:
        """The same where the wiring matters: each kind of group as an axis of a mesh that is laid out on the network. [s]"""
        result = np.zeros(sizes.shape)
        for (stride, extent, devices, *pair), members in group.places:
            if extent < 2:
                continue
            axes = (("inner", stride), ("group", extent), ("outer", devices // (stride * extent)))
            node = min(self.node, devices)
            network = wired(self.network, node, devices // node)
            if pair:
                per_node, first, last = pair
                route = pair_route(place(axes, network, chains=("group",)), "group", (first, last), inside=per_node > 1)
                adjacent = stride * (last - first) == 1
            else:
                # Transfers of a ring go round; those of two ranks go there and back.
                placement = place(axes, network, chains=("group",) if collective == "send_recv" and extent == 2 else ())
                route, adjacent = placement.route("group"), placement.strides["group"] == 1
            time = route_time(collective, sizes, route, network, self.network, self.architecture, node, adjacent=adjacent)
            result[..., members] = np.where(sizes > 0, time, 0.0)[..., members]
        return result

    def times(self, kernels: Kernels, layout: Layout) -> tuple[Array, Array]:
        """Time of every message, all of its `number`, and what of it was measured, shape (messages, n). [s]"""
        time, measured = np.zeros((2, len(kernels.messages), kernels.n))
        for (collective, name), rows in kernels.kinds.items():
            sizes, group = kernels.message_sizes[rows], getattr(layout, name)
            time[rows] = self.time(collective, sizes, group)
            if self.profile is not None and group.several:
                measured[rows] = np.nan_to_num(self.measured(collective, sizes, group))
        return time * kernels.message_counts, measured * kernels.message_counts


def message_bytes(kernels: Kernels, layout: Layout) -> Array:
    """Bytes that a rank sends in every message, all of its `number`, inside its node and out of it, shape (2, messages, n). [B]"""
    moved = np.zeros((2, len(kernels.messages), kernels.n))
    for (collective, name), rows in kernels.kinds.items():
        moved[:, rows] = sent_bytes(collective, kernels.message_sizes[rows], getattr(layout, name))
    return moved * kernels.message_counts


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
