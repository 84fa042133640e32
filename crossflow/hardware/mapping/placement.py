"""Device mapping: which device works for which shard, and how many logical edges share a physical link.

The greedy layout of the paper [1]_: walk the parallel axes in some order, put the shards of each on neighbouring
devices, fill a package before the next one. Every axis is then a set of rings (a pipeline axis: chains), whose edges
are routed over the physical links; the bandwidth of a link is divided by the edges that share it (Sec. 6.4).

Departures from the paper and its code: layouts are told apart by (name, size), where `deviceMapping.py` keeps one
permutation for each tuple of sizes and so loses layouts that differ in traffic.

References
----------
.. [1] Ardalani et al., "DeepFlow: A Cross-Stack Pathfinding Framework for Distributed AI Systems", ACM TODAES 2024,
   Sec. 5.2, 6.4 and Fig. 5.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossflow.hardware.mapping.spread import LinkSpread, around, behind_switches, over_links
from crossflow.hardware.mapping.topology import Edges, Ints, Network, Topology, count_edges, walk

Axes: TypeAlias = Mapping[str, int] | Iterable[tuple[str, int]]

# Axes whose shards pass data on and never back to the first: a chain, not a ring.
PIPELINE_AXES = frozenset({"lp", "pp"})
GROUP = "group"  # the axis of `place_group`


@dataclass(frozen=True, kw_only=True)
class AxisRoute:
    """How the edges of one parallel axis lie on the network."""

    name: str  # name of the axis
    size: int  # shards along it. [1]
    # consecutive ranks of a ring that share a package: the largest divisor of `size` for which every group [k g, (k + 1) g) stays inside
    # one package. 1: all of it crosses packages. [1]
    package_size: int
    crosses: bool  # whether some edge leaves a package
    package_hops: int  # largest number of hops of one edge inside a package, 0 where there is none. [1]
    cluster_hops: int  # of one that leaves it. [1]
    # package_sharing, cluster_sharing: largest number of this axis's edges on one directed physical link inside packages, and between them;
    # 0 where unused. Below 1 where an edge has several parallel links to itself (NVLink pairs of a DGX-1). [1]
    package_sharing: float
    cluster_sharing: float
    # package_spread, cluster_spread: what collectives among the `package_size` ranks of a package, and among the size / package_size
    # that remain between packages, take there over what they would on a port into a switch; None where unused.
    package_spread: LinkSpread | None = None
    cluster_spread: LinkSpread | None = None

    @property
    def hops(self) -> int:
        """Largest number of hops of one edge. [1]"""
        return max(self.package_hops, self.cluster_hops)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Shards laid out on devices.

    The logical rank of a device is the sum over axes of digit times `strides`; `devices` maps it to a device.
    """

    axes: tuple[tuple[str, int], ...]  # parallel axes and sizes, as given
    network: Network  # what they are laid out on
    order: tuple[str, ...]  # axes longer than 1 in the order walked, the first on the closest neighbours
    chains: frozenset[str]  # axes without a wrap-around edge
    routes: tuple[AxisRoute, ...]  # one for each axis, in the order of `axes`
    total_sharing: float  # largest number of edges of all axes together on one directed physical link. [1]
    # routes of groups of devices that are no axes, each with the distance between two of its devices. [1]
    groups: tuple[tuple[AxisRoute, int], ...] = ()

    @property
    def strides(self) -> dict[str, int]:
        """Distance in logical rank between consecutive shards of each axis longer than 1, and of each group."""
        spans = {span.name: span.stride for span in _spans(self.axes, self.order, self.chains)}
        return {**spans, **{route.name: stride for route, stride in self.groups}}

    def with_group(self, name: str, ranks: int, stride: int) -> "Placement":
        """The same with groups of devices `stride` apart, wherever the axes lie: the middle axis of a mesh of their own."""
        own = place_group(ranks, stride, self.network)
        return replace(self, groups=(*self.groups, (replace(own.route(GROUP), name=name), stride)))

    def route(self, name: str) -> AxisRoute:
        """The route of one axis."""
        for route in (*self.routes, *(group for group, _ in self.groups)):
            if route.name == name:
                return route
        raise ValueError(f"no axis {name!r}, the axes are {_names(self.axes)}")


@dataclass(frozen=True, kw_only=True)
class _Span:
    """An axis in its place of the walk: its ring is base, base + stride, ..., below base + stride * size.

    `only` is set where shards do not pass data on in turn, but one shard sends to one other.
    """

    name: str
    size: int
    stride: int
    chain: bool
    only: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.stride * self.size


@dataclass(frozen=True, kw_only=True)
class _Usage:
    """What the axes do to one level of the network; tuples have one entry for each axis, in order."""

    sharing: tuple[float, ...]
    hops: tuple[int, ...]
    total: float

    def of(self, axis: int) -> tuple[int, float]:
        """Hops and sharing of one axis."""
        return self.hops[axis], self.sharing[axis]


# --- placing ---------------------------------------------------------------------------------------------------------


def place(
    axes: Axes,
    network: Network,
    order: Iterable[str] | None = None,
    *,
    chains: Iterable[str] = PIPELINE_AXES,
) -> Placement:
    """Lay parallel axes out on a network, greedily in the given order [1]_, and count edges on links.

    Parameters
    ----------
    axes : names and sizes of the parallel axes; their product is the number of devices.
    network : where to place them.
    order : the axes, first the one to put on the closest neighbours; axes of size 1 may be left out. Default: as given.
    chains : axes that are chains rather than rings. Interleaved pipelines, which go back to the first stage, pass `()`.

    Raises
    ------
    ValueError
        The sizes do not multiply to the number of devices, or `order` does not name the axes.
    """
    listed = _listed(axes)
    return _place(listed, network, _ordered(listed, order), frozenset(chains))


def place_group(ranks: int, stride: int, network: Network, *, chain: bool = False) -> Placement:
    """Groups of `ranks` devices, `stride` apart, all over a network: the axis `GROUP` of a mesh of their own."""
    axes = (("inner", stride), (GROUP, ranks), ("outer", network.devices // (ranks * stride)))
    return place(axes, network, chains=(GROUP,) if chain else ())


def orders(axes: Axes) -> tuple[tuple[str, ...], ...]:
    """Every order to walk the axes longer than 1, the given one first: 4! = 24 for four axes (Sec. 5.2).

    Axes of equal size stay apart by name: which of two equal axes is nearer matters, since their traffic differs.
    """
    return tuple(itertools.permutations(name for name, size in _listed(axes) if size > 1))


@lru_cache(maxsize=1024)
def layouts(axes: tuple[tuple[str, int], ...], network: Network, *, bridged: bool = False) -> tuple[Placement, ...]:
    """Placements of all `orders` of which no two send the same messages over the same links.

    `bridged` says that it matters which ranks are neighbouring devices, as where pairs of devices have a bridge.
    """
    found: dict[tuple[object, ...], Placement] = {}
    for one in orders(axes):
        placement = place(axes, network, one)
        adjacent = one[:1] if bridged else ()
        jumps = any(size > 2 and name in PIPELINE_AXES for name, size in axes)  # between stages that are no neighbours
        found.setdefault((placement.routes, adjacent, one if jumps else ()), placement)
    return tuple(found.values())


def level_bandwidths(
    route: AxisRoute,
    package_bandwidth: ArrayLike,
    cluster_bandwidth: ArrayLike,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bandwidth of an edge of the axis inside packages and between them, inf where the axis does not go (Sec. 6.4).

    Parameters
    ----------
    route : the axis.
    package_bandwidth, cluster_bandwidth : bandwidth of a device per direction, all its links at that level together, shape
        (..., n). [B/s]

    Returns
    -------
    tuple of ndarray, shape (..., n)
        bandwidth / (links of a device * sharing) for each level. [B/s]
    """
    return _shared(package_bandwidth, route.package_spread), _shared(cluster_bandwidth, route.cluster_spread)


def pair_route(placement: Placement, name: str, shards: tuple[int, int], *, inside: bool) -> AxisRoute:
    """Route from one shard of a chain to another, between ranks of one package or between packages.

    Neighbours share links with all other neighbours of the chain, which send at the same time; other shards are alone.

    Parameters
    ----------
    shards : the one that sends, and the one that receives.
    inside : whether the two lie in one package. One route may have edges of both kinds.
    """
    chain, first, other = placement.route(name), *shards
    size = max(chain.package_size, 2) if inside else 2
    pair = replace(chain, size=size) if other - first == 1 else _lone_route(placement, name, shards)
    if inside:
        return replace(pair, package_size=pair.size, crosses=False, cluster_hops=0, cluster_sharing=0.0, cluster_spread=None)
    return replace(pair, package_size=1, crosses=True, package_hops=0, package_sharing=0.0, package_spread=None)


@lru_cache(maxsize=1024)
def _lone_route(placement: Placement, name: str, shards: tuple[int, int]) -> AxisRoute:
    """Route from one shard to another that are the only ones to send, its edges counted at both levels."""
    spans, network = _spans(placement.axes, placement.order, placement.chains), placement.network
    (span,) = lone = [replace(span, only=shards) for span in spans if span.name == name]
    inside = _counted(_inside(lone, spans, network, network.cluster.nodes))
    outside = _counted(_between(lone, spans, network))
    leaf = network.cluster.group * network.package.nodes
    return replace(
        placement.route(name),
        size=2,
        package_hops=inside.hops[0],
        cluster_hops=outside.hops[0],
        package_sharing=inside.sharing[0],
        cluster_sharing=outside.sharing[0],
        package_spread=_routed(network.package, 2, _package_size(span, network.package.group or 1) // span.size + 1, inside.of(0)),
        cluster_spread=_routed(network.cluster, 2, _package_size(span, leaf or 1) // span.size + 1, outside.of(0)),
    )


def _shared(bandwidth: ArrayLike, spread: LinkSpread | None) -> NDArray[np.float64]:
    device = np.asarray(bandwidth, np.float64)
    return np.full_like(device, np.inf) if spread is None else device / spread.transfer


def _listed(axes: Axes) -> tuple[tuple[str, int], ...]:
    listed = tuple(axes.items() if isinstance(axes, Mapping) else axes)
    for name, count in Counter(name for name, _ in listed).items():
        if count > 1:
            raise ValueError(f"axis {name} is given {count} times")
    for name, size in listed:
        if size < 1:
            raise ValueError(f"axis {name} has size {size}, expected at least 1")
    return listed


def _ordered(axes: tuple[tuple[str, int], ...], order: Iterable[str] | None) -> tuple[str, ...]:
    sizes = dict(axes)
    named = tuple(sizes) if order is None else tuple(order)
    walked = tuple(name for name in named if sizes.get(name, 0) != 1)
    if sorted(walked) != sorted(name for name, size in axes if size > 1):
        raise ValueError(f"order {', '.join(named)} is not an order of the axes {_names(axes)}")
    return walked


def _names(axes: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(name for name, _ in axes)


def _spans(axes: tuple[tuple[str, int], ...], order: tuple[str, ...], chains: frozenset[str]) -> tuple[_Span, ...]:
    sizes, stride, spans = dict(axes), 1, []
    for name in order:
        spans.append(_Span(name=name, size=sizes[name], stride=stride, chain=name in chains))
        stride *= sizes[name]
    return tuple(spans)


def _check_devices(axes: tuple[tuple[str, int], ...], network: Network) -> None:
    product = math.prod(size for _, size in axes)
    if product > network.devices:
        raise ValueError(f"{network} cannot hold {product} devices")
    if product < network.devices:
        raise ValueError(f"{'*'.join(name for name, _ in axes)} = {product} but the system has {network.devices} devices")


@lru_cache(maxsize=4096)
def _place(axes: tuple[tuple[str, int], ...], network: Network, order: tuple[str, ...], chains: frozenset[str]) -> Placement:
    _check_devices(axes, network)
    spans = _spans(axes, order, chains)
    network = _turned(network, spans)
    package, cluster = _package_usage(spans, network), _cluster_usage(spans, network)
    alone = _Usage(sharing=(0.0,), hops=(0,), total=0.0)
    routes = {name: _route(_Span(name=name, size=1, stride=1, chain=False), network, alone.of(0), alone.of(0)) for name, _ in axes}
    for i, span in enumerate(spans):
        inside, outside = _package_spread(i, spans, network, package), _cluster_spread(i, spans, network, cluster)
        routes[span.name] = replace(_route(span, network, package.of(i), cluster.of(i)), package_spread=inside, cluster_spread=outside)
    return Placement(
        axes=axes,
        network=network,
        order=order,
        chains=chains,
        routes=tuple(routes.values()),
        total_sharing=max(package.total, cluster.total),
    )


def _turned(network: Network, spans: tuple[_Span, ...]) -> Network:
    """The network with the sides of its tori in the order that suits the axes best; the given order if none is better.

    Which side of a torus comes first is a name, not wiring: 12 tensor ranks fill the rows of a torus of 16 x 16 x 12 along its last
    side, and each row is a ring. A mesh has no such rows, it stays as it is given. JAX lays its meshes on TPUs in the same way
    (`jax.experimental.mesh_utils.create_device_mesh`).
    """
    package, cluster = network.package, network.cluster
    inside, between = _package_spans(spans, package.nodes), _cluster_spans(spans, package.nodes)
    return replace(network, package=_turned_grid(package, inside), cluster=_turned_grid(cluster, between))


def _turned_grid(topology: Topology, spans: tuple[tuple[int, int], ...]) -> Topology:
    sides = tuple(zip(topology.shape, topology.wrapped, strict=True))
    if not topology.is_torus or len(set(sides)) == 1:
        return topology

    def suits(sides: tuple[tuple[int, bool], ...]) -> tuple[int, int]:
        """Axes that cut rows, or planes, evenly, and those of them that end where a row or a plane does."""
        borders = tuple(itertools.accumulate((size for size, _ in sides), operator.mul, initial=1))
        even = [any(stop % below == 0 and above % stop == 0 for below, above in itertools.pairwise(borders)) for _, stop in spans]
        return sum(even), sum(stop in borders for _, stop in spans)

    best = max(itertools.permutations(sides), key=suits)
    return replace(topology, shape=tuple(size for size, _ in best), wrapped=tuple(wraps for _, wraps in best))


def _route(span: _Span, network: Network, package: tuple[int, float], cluster: tuple[int, float]) -> AxisRoute:
    """The route of an axis from its hops and its sharing inside packages and between them."""
    return AxisRoute(
        name=span.name,
        size=span.size,
        package_size=_package_size(span, network.package.nodes),
        crosses=_crosses(span, network.package.nodes),
        package_hops=package[0],
        cluster_hops=cluster[0],
        package_sharing=package[1],
        cluster_sharing=cluster[1],
    )


# --- collectives on links --------------------------------------------------------------------------------------------


def _package_spread(i: int, spans: tuple[_Span, ...], network: Network, usage: _Usage) -> LinkSpread | None:
    """Spread of collectives among the ranks of an axis that share a package."""
    span, topology = spans[i], network.package
    ranks, (hops, sharing) = _package_size(span, topology.nodes), usage.of(i)
    if not sharing or topology.is_switched or ranks == 1 or not _aligned(spans, topology.nodes):
        return _routed(topology, max(ranks, 2), _package_size(span, topology.group or 1), (hops, sharing))
    found = over_links(topology, _package_spans(spans, topology.nodes), span.stride, ranks, topology.degree * sharing)
    if found is None:
        both = _both_ways(_inside((span,), spans, network, 1))
        return around(ranks, topology.degree, sharing, both, hops)
    return found


def _cluster_spread(i: int, spans: tuple[_Span, ...], network: Network, usage: _Usage) -> LinkSpread | None:
    """Spread of collectives between packages: among the ranks of an axis in the same place of each, which all places run at once."""
    span, topology, package = spans[i], network.cluster, network.package.nodes
    inside, (hops, sharing) = _package_size(span, package), usage.of(i)
    ranks, aligned = span.size // inside, _aligned(spans, package)
    stride = max(span.stride // package, 1)
    if not sharing or topology.is_switched or ranks == 1 or not aligned:
        leaf = _package_size(replace(span, stride=stride, size=ranks), topology.group or 1) if aligned else 1
        return _routed(topology, max(ranks, 2), leaf, (hops, sharing))
    found = over_links(topology, _cluster_spans(spans, package), stride, ranks, topology.degree * sharing)
    if found is None:
        return around(ranks, topology.degree, sharing, _both_ways(_between((span,), spans, network)), hops)
    return found


def _routed(topology: Topology, ranks: int, per_group: int, used: tuple[int, float]) -> LinkSpread | None:
    """Spread behind switches, or of a ring of which no more is known than the hops and the sharing of its edges."""
    hops, sharing = used
    if not sharing:
        return None
    if topology.is_switched:
        return behind_switches(topology, ranks, per_group, sharing)
    return around(ranks, topology.degree, sharing, sharing, hops)


# --- counting edges on links -----------------------------------------------------------------------------------------


def _package_size(span: _Span, package: int) -> int:
    """Largest divisor g of the size with stride * g dividing the package: otherwise some group straddles a border."""
    fits = (g for g in range(span.size, 0, -1) if span.size % g == 0 and package % (span.stride * g) == 0)
    return next(fits, 1)


def _crosses(span: _Span, package: int) -> bool:
    # A ring or chain without a crossing edge lies in one package altogether.
    return _package_size(span, package) < span.size


def _aligned(spans: tuple[_Span, ...], package: int) -> bool:
    """Whether all packages look alike: each axis ends at a package border, starts at one, or is cut evenly by it."""
    return all(
        package % span.end == 0 or span.stride % package == 0 or (package % span.stride == 0 and span.end % package == 0) for span in spans
    )


def _package_usage(spans: tuple[_Span, ...], network: Network) -> _Usage:
    package = network.package.nodes
    inside = [_package_size(span, package) > 1 for span in spans]
    aligned = _aligned(spans, package)
    if package == 1 or (aligned and (network.package.is_switched or network.package.kind == "fully-connected")):
        return _closed_form(network.package, inside)
    # Packages that look alike are counted once.
    return _counted(_inside(spans, spans, network, 1 if aligned else network.cluster.nodes))


def _cluster_usage(spans: tuple[_Span, ...], network: Network) -> _Usage:
    package, cluster = network.package.nodes, network.cluster
    crosses = [_crosses(span, package) for span in spans]
    own_links = cluster.is_switched or (cluster.kind == "fully-connected" and package == 1)
    if not any(crosses) or (own_links and _aligned(spans, package)):
        return _closed_form(cluster, crosses)
    return _counted(_between(spans, spans, network))


@dataclass(frozen=True, kw_only=True)
class _LaidEdges:
    """Edges of some axes on (copies of) a topology, where each of a node's `senders` brings links of its own."""

    topology: Topology
    edges: list[Edges]
    copies: int = 1
    senders: int = 1


def _inside(some: Iterable[_Span], spans: tuple[_Span, ...], network: Network, packages: int) -> _LaidEdges:
    """Edges of some axes of a layout inside the first `packages`."""
    nodes = walk(network.package, _package_spans(spans, network.package.nodes))
    return _LaidEdges(topology=network.package, edges=[_inside_edges(span, nodes, packages) for span in some], copies=packages)


def _between(some: Iterable[_Span], spans: tuple[_Span, ...], network: Network) -> _LaidEdges:
    """Edges of some axes of a layout between packages."""
    package, cluster = network.package.nodes, network.cluster
    if cluster.is_switched:
        # Ports belong to devices, not to packages: a switch of as many nodes as there are devices.
        ports = Topology(kind="switch", nodes=network.devices)
        return _LaidEdges(topology=ports, edges=[_crossing_edges(span, np.arange(network.devices), package) for span in some])
    nodes = np.repeat(walk(cluster, _cluster_spans(spans, package)), package)
    return _LaidEdges(topology=cluster, edges=[_crossing_edges(span, nodes, package) for span in some], senders=package)


def _inside_edges(span: _Span, nodes: Ints, packages: int) -> Edges:
    """Edges of an axis that stay in a package; `nodes` is the node at each place in one."""
    source, target = _edges(span, packages * nodes.size)
    copy = source // nodes.size
    inside = copy == target // nodes.size
    source, target, copy = source[inside], target[inside], copy[inside]
    return Edges(source=nodes[source % nodes.size], target=nodes[target % nodes.size], copy=copy)


def _crossing_edges(span: _Span, nodes: Ints, package: int) -> Edges:
    """Edges of an axis that leave a package; `nodes` is the cluster node of each logical rank."""
    source, target = _edges(span, nodes.size)
    if package > 1:
        crossing = source // package != target // package
        source, target = source[crossing], target[crossing]
    return Edges(source=nodes[source], target=nodes[target], copy=np.zeros_like(source))


def _edges(span: _Span, ranks: int) -> tuple[Ints, Ints]:
    """Logical ranks at both ends of the axis's edges that start below `ranks`."""
    source = np.arange(ranks)
    if span.only is not None:
        first, other = span.only
        source = source[source // span.stride % span.size == first]
        return source, source + (other - first) * span.stride
    last = source // span.stride % span.size == span.size - 1
    if span.chain:
        source, last = source[~last], last[~last]
    return source, source + span.stride - last * span.end


def _closed_form(topology: Topology, used: list[bool]) -> _Usage:
    """Usage where every device has links of its own and packages look alike.

    A device sends at most one edge of each axis and receives one, so an axis never shares a port with itself; some
    device (digit 0, or the last before a border, along every axis) sends along all axes that use the level. Two axes
    never join the same two devices, so direct links are never shared at all.
    """
    together = sum(used) if topology.is_switched else any(used)
    return _Usage(sharing=tuple(map(float, used)), hops=tuple(map(int, used)), total=float(together))


def _counted(laid: _LaidEdges) -> _Usage:
    count = count_edges(laid.topology, laid.edges, copies=laid.copies)
    return _Usage(
        sharing=tuple(_largest_sharing(busiest, count.width, laid.senders) for busiest in count.busiest),
        hops=count.hops,
        total=_largest_sharing(count.together, count.width, laid.senders),
    )


def _both_ways(laid: _LaidEdges) -> float:
    """Mean sharing of the edges of an axis and of their reverses, which carry half of the bytes each."""
    (edges,) = laid.edges
    ends = np.concatenate([edges.source, edges.target]), np.concatenate([edges.target, edges.source])
    return _counted(replace(laid, edges=[Edges(source=ends[0], target=ends[1], copy=np.tile(edges.copy, 2))])).sharing[0] / 2


def _largest_sharing(edges: Ints, width: Ints, senders: int) -> float:
    """Largest number of edges for each physical link, where each of a package's `senders` brings its own links.

    One edge cannot use more than its own device's links, so a bundle of many ports is never shared by less than one.
    """
    return float(np.max(np.maximum(edges / senders, edges > 0) / width, initial=0.0))


def _package_spans(spans: tuple[_Span, ...], package: int) -> tuple[tuple[int, int], ...]:
    """Stride and end of the axes within a package."""
    return tuple((span.stride, min(span.end, package)) for span in spans if span.stride < package)


def _cluster_spans(spans: tuple[_Span, ...], package: int) -> tuple[tuple[int, int], ...]:
    """Stride and end, in packages, of the axes that go beyond one; those a border does not cut evenly are left out."""
    beyond = [(max(span.stride, package), span.end) for span in spans if span.end > package]
    return tuple((s // package, e // package) for s, e in beyond if s % package == 0 and e % package == 0)
