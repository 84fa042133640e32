"""Time and bytes of messages, along the axes of a placed mesh [1]_ and among groups of ranks that differ by design point.

Each axis of the mesh lies somewhere on the two levels of network; its bandwidth there is the device's, over its links
and over the logical edges that share one of them. A group that spans packages reduces inside each first.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 5.2 and 6.4.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, Index, divide
from crossflow.base.results import later
from crossflow.cost import collectives
from crossflow.cost.collectives import ROOTED
from crossflow.cost.exchange import group_time, held_time
from crossflow.cost.fabrics import BONDED, Fabric, Path, delayed, direct_time, fabric_of, fabric_time, neuron_start, path, path_time
from crossflow.cost.profile import Profile
from crossflow.cost.shared_links import BESIDE_BUSY, INSIDE, INSIDE_BUSY, OUTSIDE, OUTSIDE_BUSY, USES, LinkUse
from crossflow.hardware.architecture.model import Architecture, Port
from crossflow.hardware.architecture.network import CLOS, Congestion, NetworkSpec
from crossflow.hardware.architecture.software import PeerAllReduce, SoftwareStack
from crossflow.hardware.mapping.placement import GROUP, AxisRoute, Placement, level_bandwidths, pair_route, place_group
from crossflow.hardware.mapping.spread import LinkSpread
from crossflow.hardware.mapping.topology import GROUPED, Network
from crossflow.hardware.mapping.wiring import ANY_WIRING, WhichLevel, switched, wired
from crossflow.program.collectives import FLOWS, ring_volume, sent_bytes
from crossflow.program.groups import ExpertGroup, Group, HandoverGroup, Pair
from crossflow.program.program import Message, MessageTable

if TYPE_CHECKING:
    from crossflow.hardware.mapping.congestion import DevicePart, Pattern, Slowdown
else:
    DevicePart, Pattern, Slowdown = later("crossflow.hardware.mapping.congestion", "DevicePart", "Pattern", "Slowdown")

TRANSFERS = ("send_recv", "sendrecv")
# Fabrics whose links reach their rate, so that placement and sharing say all; and those whose groups of a node each have the direct links
# among their own ranks.
PLACED = ANY_WIRING
DIRECT = ("hybrid-cube-mesh", "infinity-fabric", "ethernet-mesh")
# Fabrics where nothing but how many ranks share a node decides what a collective takes.
SWITCHED = ("nvswitch", "nvswitch-sharp", "nvl72", "pcie", "pcie-host")
# Steps inside nodes of collectives that go between nodes on the shard of each rank.
PHASES = {"all_reduce": ("reduce_scatter", "all_gather"), "reduce_scatter": ("reduce_scatter",), "all_gather": ("all_gather",)}
CostRows = dict[tuple[object, ...], tuple[Array, Array, Array, Array]]  # of a message by the routes that it takes
MessageModel = Callable[[Array], Array]  # times of collectives of so many bytes [B] -> [s]
INFINITE = np.full(1, np.inf)
UNSHARED = Congestion(routing="adaptive")  # a network on which nobody else sends anything
INTO_ONE = LinkSpread(gather=1.0, reduce=1.0, exchange=1.0, broadcast=1.0, transfer=1.0)  # ports into one switch
NO_PORT = Port(bandwidth=np.zeros(1), latency=np.zeros(1), energy=np.zeros(1))


def counted(network: NetworkSpec) -> bool:
    """Whether the ranks of a group that share a node say all; otherwise it matters where they lie."""
    return network.intra.fabric in SWITCHED and switched(network)


@dataclass(frozen=True, kw_only=True)
class MessageCosts:
    """Times and bytes of messages, shape (messages, n)."""

    time: Array  # [s]
    measured: Array  # of it, what was measured. [s]
    intra_bytes: Array  # bytes that one device sends inside nodes. [B]
    inter_bytes: Array  # between nodes. [B]


def message_costs(
    messages: tuple[Message, ...],
    placement: Placement,
    network: NetworkSpec,
    architecture: Architecture,
    devices_per_node: int,
    profile: Profile | None = None,
    rows: CostRows | None = None,
    *,
    stack: SoftwareStack | None = None,
) -> MessageCosts:
    """Cost of every message of a program.

    A message over several axes (the gradients of kernel rows and data replicas) is reduced along one after the other:
    along each further axis only the shard that is left moves. `rows` keeps what messages cost on the routes that they take, for other
    placements of the same program. `stack` is the software, which may have kernels of its own for an all-reduce.
    """
    own = None if stack is None else stack.peer_all_reduce
    wires = Wires(network=network, architecture=architecture, node=devices_per_node, profile=profile, all_reduce=own)
    kept, strides = {} if rows is None else rows, placement.strides
    costs: list[tuple[Array, ...]] = [()] * len(messages)
    for alike in _alike(messages, together=profile is None):
        message = messages[alike[0]]
        routes = tuple((placement.route(axis), strides.get(axis) == 1) for axis in message.axes) if rows is not None else ()
        laid = message.between is not None or network.inter.congestion is not None  # whether it matters where ranks lie
        key = (alike[0], routes, placement.order if laid else None)
        if key not in kept:
            size = np.stack(np.broadcast_arrays(*(np.atleast_1d(np.asarray(messages[i].size, dtype=float)) for i in alike)))
            kept[key] = wires.cost(message, message.group) if message.group is not None else _several(message, size, placement, wires)
        found = kept[key]
        for place, i in enumerate(alike):
            costs[i] = found if found[0].ndim == 1 else tuple(column[place] for column in found)
    columns = [np.stack(np.broadcast_arrays(*column)) for column in zip(*costs, strict=True)] or [np.zeros((0, 1))] * 4
    return MessageCosts(time=columns[0], measured=columns[1], intra_bytes=columns[2], inter_bytes=columns[3])


def _alike(messages: tuple[Message, ...], *, together: bool) -> list[list[int]]:
    """Messages that differ in their sizes only, by number; each alone where measured times may replace the model's."""
    found: dict[object, list[int]] = {}
    for i, one in enumerate(messages):
        alone = one.group is not None or one.time is not None or not together
        found.setdefault(i if alone else (one.collective, one.axes, one.between), []).append(i)
    return list(found.values())


def _several(message: Message, sizes: Array, placement: Placement, wires: Wires) -> tuple[Array, Array, Array, Array]:
    """Time of messages like one, what of it was measured, bytes inside a package and out of it, each of shape (messages, n). [s], [B]"""
    size = sizes if len(sizes) > 1 else sizes[0]
    time, known, sent = np.zeros(1), np.zeros(1), np.zeros((2, 1, 1) if size.ndim > 1 else (2, 1))
    if message.time is not None:
        time = known = np.atleast_1d(np.asarray(message.time, dtype=float))
    for part, route, model in message_steps(message, placement, wires, size):
        sent = sent + sent_bytes(message.collective, part, route.size, route.package_size)
        if message.time is None:
            step, measured = route_time(message.collective, part, route, model, wires.profile)
            time, known = time + step, known + measured
    if message.time is None:
        time, known = np.where(size > 0, time, 0.0), np.where(size > 0, known, 0.0)
    time, known, inside, outside = np.broadcast_arrays(time, known, *sent)
    return time, known, inside, outside


def message_steps(
    message: Message, placement: Placement, wires: Wires, size: Array | None = None
) -> Iterator[tuple[Array, AxisRoute, MessageModel]]:
    """Size and route of a message along each of its axes, one after the other, with the model of its time there; `size` for others. [B]"""
    size = np.atleast_1d(np.asarray(message.size, dtype=float)) if size is None else size
    for axis in message.axes:
        route, distance = placement.route(axis), placement.strides.get(axis, 1)
        laid = LaidGroups.of(distance, route.size, chain=axis in placement.chains, between=message.between)
        if message.between is not None:
            route, distance = _pair(placement, axis, message.between), distance * (message.between[1] - message.between[0])
        along = functools.partial(
            wires.along, message.collective, route=route, wires=placement.network, node=wires.node, adjacent=distance == 1, laid=laid,
            pair=bool(message.between),
        )  # fmt: skip
        yield size, route, along
        size = size / route.size


def _pair(placement: Placement, axis: str, places: tuple[int, int]) -> AxisRoute:
    """Route between two places of an axis, which lie in one package or not."""
    inside = len({place // placement.route(axis).package_size for place in places}) == 1
    return dataclasses.replace(pair_route(placement, axis, places, inside=inside), size=2, package_size=2 if inside else 1)


def route_time(collective: str, size: Array, route: AxisRoute, model: MessageModel, profile: Profile | None) -> tuple[Array, Array]:
    """Time of a message along one axis, and what of it was measured, shape (n,). [s]"""
    if profile is None:
        return model(size), np.zeros(1)
    time, measured = profile.messages(collective, size, Group.alike(route.size, route.package_size, size.size), model)
    return time, np.where(measured, time, 0.0)


def _pattern(collective: str, laid: LaidGroups, *, summed: bool) -> Pattern:
    """Who sends to whom in a collective; `summed` says whether the network reduces."""
    if collective in ROOTED:
        return "gather" if collective == "gather" else "scatter"
    if laid.chain or collective in ("broadcast", "reduce"):
        return "chain"
    if collective == "all_to_all":
        return "all-to-all"
    return "tree" if summed and collective == "all_reduce" else "ring"


def _spread_outside(collective: str, spread: LinkSpread, per_node: int, wires: Network) -> float:
    """How many times as long a collective takes between nodes as over ports of its ranks into one switch. [1]

    Of the ranks of a group in a node one at most is a root, whose port alone is full: it has what the others leave of their leaf's links.
    """
    found = spread.of(FLOWS[collective])
    return max(found / per_node, 1.0) if collective in ROOTED and wires.cluster.kind in GROUPED else found


def _ideal_time(collective: str, size: Array, route: AxisRoute, wires: Network, architecture: Architecture, post: Array) -> Array:
    """Alpha-beta time on links that reach their rate: flat over all ranks, or package by package, whichever is faster."""
    intra, inter = architecture.intra or NO_PORT, architecture.inter or NO_PORT
    if not route.crosses:
        return _level_time(collective, size, route.size, route.package_spread, intra, route.hops, post)
    if route.package_size == 1 and route.package_spread is None and collective not in TRANSFERS:
        return _level_time(collective, size, route.size, route.cluster_spread, inter, route.hops, post)
    inside, outside = level_bandwidths(route, intra.bandwidth, inter.bandwidth)
    if wires.cluster.is_switched and route.cluster_spread is not None:
        outside = inter.bandwidth / _spread_outside(collective, route.cluster_spread, route.package_size, wires)
    latency = route.hops * np.maximum(inter.latency, intra.latency if route.package_size > 1 else 0.0)
    flat = collectives.best(collective, size, route.size, np.minimum(inside, outside), latency, wires.cluster.is_switched, post)
    if route.package_size == 1 or collective in TRANSFERS:
        return flat
    # Inside each package first, then between packages on the shard of each rank, then back inside.
    p, packages, phases = route.package_size, route.size // route.package_size, PHASES.get(collective, (collective,))
    near = sum((_level_time(phase, size, p, route.package_spread, intra, 1, post) for phase in phases), np.zeros(1))
    between = size / p if collective in PHASES else size
    packed = near + _level_time(collective, between, packages, route.cluster_spread, inter, 1, post)
    if wires.cluster.kind == "rail-only" and collective == "all_to_all":  # no rail reaches the devices of another
        return np.asarray(packed)
    return np.asarray(np.minimum(flat, packed))


def _level_time(collective: str, size: Array, ranks: int, spread: LinkSpread | None, port: Port, hops: int, post: Array) -> Array:
    """Time of a collective on one level: the fastest algorithm behind switches, that of `LinkSpread` over direct links. [s]"""
    if spread is None:
        return np.zeros(np.shape(size))
    rate = port.bandwidth / spread.of(FLOWS[collective])
    if not spread.steps:
        time = collectives.best(collective, size, ranks, rate, hops * port.latency, any_to_any=True, post=post)
        return np.minimum(time, _in_switches(collective, size, ranks, rate, port))
    if collective in TRANSFERS:
        return collectives.ring(collective, size, ranks, rate, hops * port.latency)
    steps = spread.steps * (2 if collective == "all_reduce" else 1)
    return np.asarray(steps * port.latency + divide(ring_volume(collective, ranks) * size, rate))


def _in_switches(collective: str, size: Array, ranks: int, rate: Array, port: Port) -> Array:
    """Time of an all-reduce in switches that are named and reduce, endless where there is none; two ranks have nothing to gain. [s]"""
    if port.reduction is None or collective != "all_reduce" or ranks < 3 or not port.reduction.any():
        return INFINITE
    found = collectives.in_network_all_reduce(size, ranks, rate * port.reduction, port.latency)
    return np.where(port.reduction > 0, found, np.inf)


# -------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, kw_only=True)
class LaidGroups:
    """How the groups of a collective lie on a mesh."""

    stride: int  # devices between neighbours. [1]
    ranks: int  # of a group. [1]
    chain: bool = False  # whether the last sends nothing to the first
    only: tuple[int, int] | None = None  # the two places of a chain that alone take part; neighbours send at the same time as all others
    part: DevicePart | None = None  # the engines of a service that send, among its devices; the mesh is the whole job where absent
    hands_over: bool = False  # whether these send to engines of another kind: one of `stride` devices at a time

    @classmethod
    def of(
        cls, stride: int, ranks: int, *, chain: bool, between: tuple[int, int] | None = None, part: DevicePart | None = None
    ) -> LaidGroups:
        """That of groups, or of transfers between two places of a chain."""
        far = between is not None and abs(between[1] - between[0]) != 1
        return cls(stride=stride, ranks=ranks, chain=chain or between is not None, only=between if far else None, part=part)


@dataclass(frozen=True, kw_only=True)
class Wires:
    """Collectives among groups of ranks on a network; equal groups are costed once for all their points."""

    network: NetworkSpec
    architecture: Architecture
    node: int
    profile: Profile | None = None
    all_reduce: PeerAllReduce | None = None  # kernels that software has of its own for it

    @functools.cached_property
    def fabric(self) -> Fabric:
        """The fabric of the system."""
        return fabric_of(self.network, self.architecture, self.node, self.all_reduce)

    @functools.cached_property
    def _paths(self) -> dict[tuple[str, int, int, bool], Path]:
        return {}

    @functools.cached_property
    def slowed(self) -> dict[tuple[str, LaidGroups], Slowdown]:
        """What collectives have lost to sharing between nodes, as far as any was priced."""
        return {}

    def path(self, collective: str, ranks: int, per_node: int, *, racks: bool = False) -> Path:
        """Path of a collective among the ranks of nodes in which every device is busy, worked out once."""
        key = (collective, ranks, per_node, racks)
        if key not in self._paths:
            self._paths[key] = path(self.fabric, collective, ranks, per_node, whole_nodes=True, racks=racks)
        return self._paths[key]

    def time(self, collective: str, size: Array, group: Group) -> Array:
        """Time of collectives of `size` bytes, shape (..., n), among each point's group. [s]"""
        return self.priced(collective, size, group)[0]

    def measured(self, collective: str, size: Array, group: Group) -> Array:
        """What of it was measured, shape (..., n). [s]"""
        return self.priced(collective, size, group)[1]

    def priced(self, collective: str, size: Array, group: Group) -> tuple[Array, Array]:
        """Time of collectives, and what of it was measured, shape (..., n). [s]"""
        if self.profile is None or not group.several:
            modelled = self._modelled(collective, size, group)
            return modelled, np.zeros(modelled.shape)
        sizes = np.broadcast_to(np.asarray(size, dtype=float), np.broadcast_shapes(np.shape(size), group.size.shape))
        time, known = self.profile.messages(collective, sizes, group, lambda other: self._modelled(collective, other, group))
        return time, np.where(known, time, 0.0)

    def times(self, table: MessageTable) -> tuple[Array, Array]:
        """Time of every message, and what of it was measured, shape (messages, n). [s]"""
        time, measured = np.zeros((2, *table.sizes.shape))
        for collective, group, rows in table.kinds:
            time[rows], measured[rows] = self.priced(collective, table.sizes[rows], group)
        return time, measured

    def held(self, table: MessageTable) -> Array:
        """For how long every message keeps all units of a device while it is sent with low latency, shape (messages, n). [s]"""
        found = np.zeros(table.sizes.shape)
        for _, group, rows in table.kinds:
            if isinstance(group, ExpertGroup):
                found[rows] = held_time(table.sizes[rows], group, self.architecture)
        return found

    def used(self, collective: str, size: Array, group: Group, time: Array) -> LinkUse:
        """How collectives that take a time [s] use the links of both tiers, shape (USES, ..., n); `crossflow.cost.shared_links`. [s]

        Tiers of direct links are left out: groups along different axes of a mesh have different links there.
        """
        found = np.zeros((USES, *time.shape))
        if not group.several or not time.any():
            return found
        near = np.minimum(group.size, self.node) if self.network.intra.fabric == "nvl72" else group.per_node
        out, beside = np.broadcast_to(group.size > near, time.shape), np.zeros(1)
        inside, outside = (self._meeting(level) for level in ("intra", "inter"))
        within, between = ~out & inside, out & outside
        leaves = between.any()
        if not (leaves or within.any()):
            return found
        twice = self.time(collective, 2.0 * size, group)
        with np.errstate(invalid="ignore"):
            busy = np.where(np.isfinite(time), np.clip(twice - time, 0.0, time), 0.0)
        if leaves and inside and self.network.intra.fabric in BONDED:
            sent = sent_bytes(collective, np.asarray(size, dtype=float), group.size, near)[0]
            beside = np.minimum(divide(sent, self.fabric.switched), busy)
        for row, kept, values in (
            (INSIDE, within, time), (OUTSIDE, between, time), (INSIDE_BUSY, within, busy), (OUTSIDE_BUSY, between, busy),
            (BESIDE_BUSY, between, beside),
        ):  # fmt: skip
            found[row] = np.where(kept, values, 0.0)
        return found

    def _meeting(self, which: WhichLevel) -> bool:
        """Whether all messages of a device on a tier pass the same links, whatever groups they are among."""
        level = getattr(self.network, which)
        if which == "intra" and level.fabric not in (*SWITCHED, *PLACED):
            return False
        return level.wiring in (*CLOS, "dragonfly")

    def table_used(self, table: MessageTable, times: Array) -> LinkUse:
        """The same of every message that takes a time, shape (USES, messages, n). [s]"""
        found = np.zeros((USES, *table.sizes.shape))
        for collective, group, rows in table.kinds:
            found[:, rows] = self.used(collective, table.sizes[rows], group, times[rows])
        return found

    def cost(self, message: Message, group: Group) -> tuple[Array, Array, Array, Array]:
        """Time of a message among a group, what of it was measured, bytes inside a node and out of it, each of shape (n,). [s], [B]"""
        size = np.asarray(message.size, dtype=float)
        return *self.priced(message.collective, size, group), *sent_bytes(message.collective, size, group.size, group.per_node)

    def _modelled(self, collective: str, size: Array, group: Group) -> Array:
        """The same by the model of the network. [s]"""
        sizes = size if np.shape(size)[-1:] == group.size.shape else np.broadcast_to(np.asarray(size, dtype=float), group.size.shape)
        if not group.several or not sizes.any():
            return np.zeros(sizes.shape)
        if isinstance(group, ExpertGroup):
            exchanged = group_time(sizes, group, self._behind(self._of_groups(collective, group)), self.network.intra.fabric, self.node)
            if exchanged is not None:
                return exchanged
        if not counted(self.network):
            return self._placed(collective, sizes, group)
        racks = isinstance(group, Pair)  # whose ranks are looked up one by one
        paths, which = list[Path](), np.zeros(group.size.shape, dtype=np.intp)
        for i, (ranks, per_node, members) in enumerate(group.kinds):
            which[members] = i
            paths.append(self.path(collective, ranks, per_node, racks=racks))
        time = path_time(sizes, paths[0] if len(paths) == 1 else Path.each(paths, which))
        return np.asarray(np.where((sizes > 0) & (group.size > 1), time, 0.0))

    def along(
        self,
        collective: str,
        size: Array,
        route: AxisRoute,
        wires: Network,
        node: int,
        *,
        adjacent: bool,
        laid: LaidGroups,
        pair: bool = False,
    ) -> Array:
        """Time of a collective of `size` bytes, shape (n,) or (1,), along a route over the `wires` of nodes of `node` devices. [s]

        `adjacent` says whether the ranks of the route are neighbouring devices, `laid` how its groups lie among all devices, `pair`
        whether it leads from one place to another.
        """
        intra, inter = self.network.intra.fabric, self.network.inter.fabric
        slower = self._shared(collective, route, wires, laid)
        if intra in PLACED and (inter in PLACED or not route.crosses):
            time = _ideal_time(collective, size, route, wires, self._behind(slower), self.network.parameters.post)
            return np.where(np.asarray(size) > 0, time + self._start(collective), 0.0) if intra == "neuronlink" else time
        fabric = dataclasses.replace(self.fabric, devices_per_node=node)
        if intra in DIRECT and not route.crosses and route.size < node:
            if collective in TRANSFERS or not (route.package_spread and route.package_spread.rings):
                return direct_time(collective, size, route, self.network, self.architecture, node)
            fabric = dataclasses.replace(fabric, rings=route.package_spread.rings)
        if route.cluster_spread is not None and wires.cluster.kind != "switch":
            rails = wires.cluster.kind == "rail-only"
            spread = _spread_outside(collective, route.cluster_spread, route.package_size, wires)
            fabric = dataclasses.replace(fabric, spread=spread * slower, rails=rails)
        return fabric_time(collective, size, route, fabric, adjacent=adjacent, racks=pair)

    def _shared(self, collective: str, route: AxisRoute, wires: Network, laid: LaidGroups) -> float:
        """Time of a collective between nodes, over that on a network that is its own. [1]"""
        congestion = self.network.inter.congestion
        if not route.crosses or wires.cluster.nodes < 2 or wires.cluster.kind not in GROUPED:
            return 1.0
        if laid.hands_over:
            found = self._way(laid, UNSHARED if congestion is None else congestion)
            self.slowed.update({} if congestion is None else {(collective, laid): found})
            return found.over_ports
        if congestion is None:
            return 1.0
        from crossflow.hardware.mapping.congestion import slowdown

        reduction = None if self.architecture.inter is None else self.architecture.inter.reduction
        summed = self.network.inter.fabric.endswith("-sharp") or (reduction is not None and bool(reduction.any()))
        pattern = _pattern(collective, laid, summed=summed)
        inside = 1 if collective in (*TRANSFERS, *ROOTED) else route.package_size
        whole = wires if laid.part is None else wired(self.network, self.node, laid.part.whole // self.node)
        found = slowdown(congestion, whole, laid.stride * inside, laid.ranks // inside, pattern, laid.only, part=laid.part)
        self.slowed[collective, laid] = found
        return found.priced

    def _way(self, laid: LaidGroups, congestion: Congestion) -> Slowdown:
        """How much longer engines of a service take to hand over to others."""
        assert laid.part is not None  # as of all that hand over
        from crossflow.hardware.mapping.congestion import slowdown

        nodes, group = laid.part.whole // self.node, self.network.inter.group or 1
        if not congestion.jobs and self.network.inter.wiring == "dragonfly" and nodes > group:
            nodes = -(-nodes // group) * group  # the last group is there wholly, whoever uses the rest of it
        whole = wired(self.network, self.node, nodes)
        return slowdown(congestion, whole, laid.stride, laid.ranks, "handover", part=laid.part)

    def _start(self, collective: str) -> Array:
        """Time of a collective over NeuronLink beside that of its bytes. [s]"""
        return neuron_start(collective, delayed(self.network.parameters, self.architecture))

    @functools.cached_property
    def _device(self) -> Architecture:
        """The device with links that reach what is known of them; the steps of NeuronLink are told by `_start`."""
        near = self.architecture.intra
        if near is None or self.network.intra.fabric != "neuronlink":
            return self.architecture
        reached = near.bandwidth * self.network.parameters.neuron_efficiency
        return dataclasses.replace(self.architecture, intra=dataclasses.replace(near, bandwidth=reached, latency=np.zeros(1)))

    def _behind(self, slower: Array | float) -> Architecture:
        """The device where the network between nodes is so much slower."""
        port = self.architecture.inter
        if port is None or np.all(np.equal(slower, 1.0)):
            return self._device
        return dataclasses.replace(self._device, inter=dataclasses.replace(port, bandwidth=port.bandwidth / slower))

    def _of_groups(self, collective: str, group: Group) -> Array | float:
        """What sharing makes collectives of groups take over what they take alone, shape (n,). [1]"""
        if self.network.inter.congestion is None:
            return 1.0
        found = np.ones(group.size.shape)
        for (stride, extent, devices, *_), members in group.places:
            node = min(self.node, devices)
            network = wired(self.network, node, devices // node)
            route = place_group(extent, stride, network).route(GROUP)
            for part, mine in _parted(group, members):
                found[mine] = self._shared(collective, route, network, LaidGroups.of(stride, extent, chain=False, part=part))
        return found

    def _placed(self, collective: str, sizes: Array, group: Group) -> Array:
        """The same where the wiring matters: each kind of group as an axis of a mesh that is laid out on the network. [s]"""
        result = np.zeros(sizes.shape)
        for (stride, extent, devices, *pair), members in group.places:
            if extent < 2:
                continue
            node = min(self.node, devices)
            network = wired(self.network, node, devices // node)
            if pair:
                per_node, first, last = pair
                inside = per_node > 1 or network.cluster.nodes == 1
                route = pair_route(place_group(extent, stride, network, chain=True), GROUP, (first, last), inside=inside)
                adjacent, chain, between = stride * (last - first) == 1, True, (first, last)
            else:
                # Transfers of a ring go round; those of two ranks go there and back.
                chain = collective == "send_recv" and extent == 2
                route, adjacent, between = place_group(extent, stride, network, chain=chain).route(GROUP), stride == 1, None
            for part, mine in _parted(group, members):
                laid = LaidGroups.of(stride, extent, chain=chain, between=between, part=part)
                if isinstance(group, HandoverGroup):  # whose way is that from its engines to the others
                    laid, route = dataclasses.replace(laid, hands_over=True), dataclasses.replace(route, cluster_spread=INTO_ONE)
                time = self.along(collective, sizes, route, network, node, adjacent=adjacent, laid=laid)
                result[..., mine] = np.where(sizes > 0, time, 0.0)[..., mine]
        return result


def _parted(group: Group, members: Index) -> Iterator[tuple[DevicePart | None, Index]]:
    """Some points of groups by the engines that these are among; all together where the groups are those of a whole job."""
    if not group.parts:
        yield None, members
    from crossflow.hardware.mapping.congestion import DevicePart

    for (before, devices, whole), some in group.parts:
        mine = np.intersect1d(members, some)
        if mine.size:
            yield DevicePart(before=before, devices=devices, whole=whole), mine
