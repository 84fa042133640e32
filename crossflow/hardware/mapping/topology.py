"""Physical networks: their nodes, links, routes, and how many logical edges each link carries.

Routes are dimension-ordered (X-Y) on grids [1]_, the shorter way round where rows wrap (both equally long: upwards), port to
port through a switch, and the widest way with at most one node between on a hybrid cube mesh. `count_edges` routes a whole
array of edges at once with difference arrays and never loops over devices; tests route one edge after the other.

References
----------
.. [1] Ardalani et al., "DeepFlow: A Cross-Stack Pathfinding Framework for Distributed AI Systems", ACM TODAES 2024,
   Sec. 5.2 (X-Y routing, link sharing) and 6.4 (effective bandwidth).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossflow.base.arrays import most_square

NodePair: TypeAlias = tuple[int, int]
Ints: TypeAlias = NDArray[np.int64]

# Number of sizes in the shape of each kind; also the list of the kinds there are.
_DIMENSIONS = {
    "single": 1,
    "ring": 1,
    "mesh2d": 2,
    "mesh3d": 3,
    "torus2d": 2,
    "torus3d": 3,
    "switch": 1,
    "fat-tree": 1,
    "dragonfly": 1,
    "rail-only": 1,
    "fully-connected": 1,
    "hybrid-cube-mesh": 1,
}
_ALIASES = {"crossbar": "switch"}
_GRIDS = frozenset({"ring", "mesh2d", "mesh3d", "torus2d", "torus3d"})
_WRAPPED = frozenset({"ring", "torus2d", "torus3d"})
SWITCHED = frozenset({"switch", "fat-tree", "dragonfly", "rail-only"})  # every device has a port into switches, which reach all others
GROUPED = frozenset({"fat-tree", "dragonfly"})  # of them, those whose nodes are in groups with less bandwidth between them
_CUBE_MESH_DEGREE = 6  # NVLinks of a V100
_LARGEST = {"single": 1, "hybrid-cube-mesh": 8}

# NVLinks between the GPUs of an NVIDIA DGX-1 with V100: the NV1/NV2 entries that `nvidia-smi topo -m` prints there,
# the same in every public log compared (the OneFlow DLPerf benchmark reports and PyTorch's benchmark suite among them)
# and in the NCCL topology dump of github.com/NVIDIA/nccl/issues/671. Every row adds up to the six links of a V100.
_CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
# The ring through all eight GPUs that only uses double links; and the order in which halves, quarters and pairs of neighbours, and those at
# distances 2 and 4, are linked directly: the second half is the first one mirrored.
_CUBE_MESH_RING = (0, 3, 2, 1, 5, 6, 7, 4)
_CUBE_MESH_QUADS = (0, 3, 2, 1, 4, 7, 6, 5)


def _check_kind(kind: str, nodes: int) -> None:
    if kind not in _DIMENSIONS:
        raise ValueError(f"unknown topology {kind!r}, expected one of {', '.join(_DIMENSIONS)}")
    if nodes < 1:
        raise ValueError(f"{kind} needs at least 1 node, got {nodes}")
    largest = _LARGEST.get(kind, nodes)
    if nodes > largest:
        raise ValueError(f"{kind} holds {largest} node{'s' if largest != 1 else ''}, the system has {nodes}")


def _check_shape(kind: str, nodes: int, shape: tuple[int, ...]) -> None:
    text = "x".join(str(size) for size in shape)
    if len(shape) != _DIMENSIONS[kind]:
        raise ValueError(f"{kind} has {_DIMENSIONS[kind]} dimension(s), shape {text} has {len(shape)}")
    if min(shape) < 1:
        raise ValueError(f"{kind} shape {text} has a size below 1")
    if math.prod(shape) != nodes:
        raise ValueError(f"{kind} shape {text} holds {math.prod(shape)} nodes, the system has {nodes}")


def _check_groups(kind: str, nodes: int, group: int, oversubscription: float) -> None:
    if kind not in GROUPED:
        if group or oversubscription != 1.0:
            whose = f"group and oversubscription are those of a {' or a '.join(sorted(GROUPED))}, the topology is {kind}"
            raise ValueError(f"{whose}; give topology: fat-tree and the group too")
    elif group < 1:
        raise ValueError(f"{kind} needs a group, the number of nodes {_GROUP_WORDS[kind]}")
    elif kind != "fat-tree" and nodes > group and nodes % group:
        below, above = nodes - nodes % group, nodes - nodes % group + group
        sizes = ", ".join(str(size) for size in range(group, 0, -1) if nodes % size == 0)
        raise ValueError(
            f"{kind} has groups of {group} nodes, which {nodes} nodes do not fill; take {below} or {above} nodes, or groups of {sizes}"
        )
    elif not oversubscription >= 1.0:
        raise ValueError(f"{kind} has an oversubscription of {oversubscription:g}, expected at least 1")


def _wrapped(kind: str, shape: tuple[int, ...], given: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which rows are rings; one node alone counts as what its kind has."""
    own = kind in _WRAPPED
    if given and not own and any(given):
        raise ValueError(f"rows that wrap are those of a ring or a torus, the topology is {kind}")
    if given and len(given) != len(shape):
        raise ValueError(f"{kind} has {len(shape)} dimension(s), wraps says {len(given)}")
    return tuple(own and (wraps or size == 1) for wraps, size in zip(given or (own,) * len(shape), shape, strict=True))


_GROUP_WORDS = {"fat-tree": "on one leaf switch", "dragonfly": "in one group of routers"}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How the nodes of one level (a package, or a cluster of packages) are joined.

    Raises
    ------
    ValueError
        An unknown kind, or a kind, shape, groups and links that do not make a network of exactly `nodes` nodes.
    """

    # "single", "ring", "mesh2d", "mesh3d", "torus2d", "torus3d", "switch" (or "crossbar"), "fat-tree", "dragonfly", "rail-only",
    # "fully-connected" or "hybrid-cube-mesh" (DGX-1; with fewer than 8 nodes, the GPUs 0 .. nodes-1 of one).
    kind: str
    nodes: int  # number of nodes
    shape: tuple[int, ...] = ()  # sizes along x, y, z. Left out, the most square one, longest first.
    group: int = 0  # nodes on one leaf switch of a fat tree, the last of which may have fewer; in one group of a dragonfly
    oversubscription: float = 1.0  # bandwidth of the ports of a group over that out of it. [1]
    ports: int = 0  # link ports of a node, among which its bandwidth is divided; 0: as many as its best connected node uses
    wrapped: tuple[bool, ...] = ()  # of a torus, whether the rows along x, y, z are rings, as all are where left out; a slice may cut them

    def __post_init__(self) -> None:
        # Normalised here so that equal networks compare and hash equal, however they were written.
        object.__setattr__(self, "kind", _ALIASES.get(self.kind, self.kind))
        _check_kind(self.kind, self.nodes)
        object.__setattr__(self, "shape", tuple(self.shape) or most_square(self.nodes, _DIMENSIONS[self.kind]))
        _check_shape(self.kind, self.nodes, self.shape)
        _check_groups(self.kind, self.nodes, self.group, self.oversubscription)
        object.__setattr__(self, "wrapped", _wrapped(self.kind, self.shape, tuple(self.wrapped)))
        if self.ports and (self.is_switched or self.kind == "single"):
            raise ValueError(f"ports are those of direct topologies, the topology is {self.kind}")
        if self.ports and self.ports < self.used_links:
            raise ValueError(f"{self} uses {self.used_links} ports of a node, which has {self.ports}")

    def __str__(self) -> str:
        return f"{self.kind} of {self.nodes} node{'s' if self.nodes != 1 else ''}"

    @property
    def is_grid(self) -> bool:
        """Whether nodes have coordinates and routes are dimension-ordered (ring, mesh and tori)."""
        return self.kind in _GRIDS

    @property
    def is_torus(self) -> bool:
        """Whether its rows are rings, or parts of rings that a slice cuts."""
        return self.kind in _WRAPPED

    @property
    def degree(self) -> int:
        """Physical links of a node, over which its bandwidth is divided; a border node leaves some of them unused."""
        return self.ports or self.used_links

    @property
    def used_links(self) -> int:
        """Links of the best connected node. The lanes of a port are divided over them."""
        if self.is_grid:
            return sum(min(2, size - 1 + (wraps and size == 2)) for size, wraps in zip(self.shape, self.wrapped, strict=True))
        if self.kind == "hybrid-cube-mesh":
            return _CUBE_MESH_DEGREE
        return self.nodes - 1 if self.kind == "fully-connected" else int(self.kind != "single")

    @property
    def is_switched(self) -> bool:
        """Whether a port leads each node into switches, which reach all others."""
        return self.kind in SWITCHED

    @property
    def links(self) -> dict[NodePair, int]:
        """Directed physical links (from, to) and how many run in parallel; `switch_node` is the end of a switch port.

        A wrapped row of two nodes has two parallel links, the direct one and the one round the back.
        """
        return dict(_links(self))

    @property
    def switch_node(self) -> int:
        """The number that stands for the switch in links and routes; it is no node."""
        return self.nodes

    def coordinates(self, node: int) -> tuple[int, ...]:
        """Position (x, y, z) of a node; node = x + X (y + Y z)."""
        return tuple(int(c) for c in coordinate_table(self)[:, node])


SINGLE = Topology(kind="single", nodes=1)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Two levels: devices inside a package (or server), packages inside a cluster; either may be `SINGLE`.

    Every device has its own port into the cluster, as in a server with one NIC for each GPU.
    """

    package: Topology = SINGLE
    cluster: Topology = SINGLE

    def __str__(self) -> str:
        if self.package.nodes == 1:
            return str(self.cluster)
        if self.cluster.nodes == 1:
            return str(self.package)
        return f"{self.cluster.kind} of {self.cluster.nodes} packages, each a {self.package},"

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.package.nodes * self.cluster.nodes


# --- links -----------------------------------------------------------------------------------------------------------


def _node(shape: tuple[int, ...], position: list[int]) -> int:
    node = 0
    for size, coordinate in zip(reversed(shape), reversed(position), strict=True):
        node = node * size + coordinate
    return node


@lru_cache(maxsize=256)
def _cube_mesh_route(nodes: int, source: int, target: int) -> tuple[NodePair, ...]:
    if _CUBE_MESH[source][target]:
        return ((source, target),)

    def width(middle: int) -> int:
        return min(_CUBE_MESH[source][middle], _CUBE_MESH[middle][target])

    middle = max(range(nodes), key=width)  # the lowest number among the widest
    return ((source, middle), (middle, target))


def _links(topology: Topology) -> Iterator[tuple[NodePair, int]]:
    if topology.is_grid:
        yield from _grid_links(topology)
    elif topology.is_switched:
        for node in range(topology.nodes):
            yield (node, topology.switch_node), 1
            yield (topology.switch_node, node), 1
    else:
        for pair in itertools.permutations(range(topology.nodes), 2):
            width = _CUBE_MESH[pair[0]][pair[1]] if topology.kind == "hybrid-cube-mesh" else 1
            if width:
                yield pair, width


def _grid_links(topology: Topology) -> Iterator[tuple[NodePair, int]]:
    for node in range(topology.nodes):
        position = topology.coordinates(node)
        for dimension, (size, wraps) in enumerate(zip(topology.shape, topology.wrapped, strict=True)):
            ends = {position[dimension] + 1, position[dimension] - 1}
            reached = {end % size for end in ends if wraps or 0 <= end < size} - {position[dimension]}
            for end in sorted(reached):
                there = [*position[:dimension], end, *position[dimension + 1 :]]
                yield (node, _node(topology.shape, there)), _row_width(size, wraps=wraps)


def _row_width(size: int, *, wraps: bool) -> int:
    """Parallel links between neighbours of a row: two where a wrapped row has only two nodes."""
    return 2 if wraps and size == 2 else 1


# --- all edges at once -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Edges:
    """Logical edges on a topology, or on several copies of it."""

    source: Ints  # node at which each edge begins, shape (e,)
    target: Ints  # another one, at which it ends, shape (e,)
    copy: Ints  # which copy of the topology (which package) the edge runs in, shape (e,)


@dataclass(frozen=True, kw_only=True)
class LinkCount:
    """How many logical edges run over the busiest physical links of (copies of) a topology.

    Links of one class have the same number of parallel physical links.
    """

    busiest: Ints  # edges of each group on the bundle of parallel links that has most of them, shape (groups, classes). [1]
    together: Ints  # edges of all groups on the bundle that has most of them, shape (classes,). [1]
    width: Ints  # parallel physical links in a bundle, shape (classes,). [1]
    hops: tuple[int, ...]  # largest number of hops of one edge, shape (groups,). [1]


def count_edges(topology: Topology, groups: Sequence[Edges], *, copies: int) -> LinkCount:
    """Route many edges at once and count them on the links.

    Parameters
    ----------
    topology : one copy of the network.
    groups : edges to count group by group (axis by axis).
    copies : number of copies of the topology.
    """
    if topology.is_grid:
        return _count_on_grid(topology, groups, copies)
    if topology.is_switched:
        return _count_on_ports(topology, groups, copies)
    if topology.kind == "hybrid-cube-mesh":
        return _count_on_cube_mesh(topology, groups, copies)
    return _count_on_pairs(topology, groups)


def _busiest(edges: Ints, width: Ints, hops: Sequence[int]) -> LinkCount:
    """Reduce the edges of each group on each bundle, shape (groups, classes, bundles)."""
    together = edges.sum(axis=0).max(axis=1, initial=0)
    return LinkCount(busiest=edges.max(axis=2, initial=0), together=together, width=width, hops=tuple(hops))


def _count_on_ports(topology: Topology, groups: Sequence[Edges], copies: int) -> LinkCount:
    ports = copies * topology.nodes
    edges = np.zeros((len(groups), 2, ports), np.int64)
    for used, group in zip(edges, groups, strict=True):
        for direction, end in enumerate((group.source, group.target)):
            used[direction] = np.bincount(group.copy * topology.nodes + end, minlength=ports)
    return _busiest(edges, np.ones(2, np.int64), _one_hop(groups))


def _count_on_pairs(topology: Topology, groups: Sequence[Edges]) -> LinkCount:
    # Sparse, over the pairs that occur: a fully connected network of many nodes has far more links than edges.
    pairs = [(group.copy * topology.nodes + group.source) * topology.nodes + group.target for group in groups]
    used, column = np.unique(np.concatenate([*pairs, np.zeros(0, np.int64)]), return_inverse=True)
    row = np.repeat(np.arange(len(groups)), [pair.size for pair in pairs])
    edges = np.bincount(row * used.size + column, minlength=len(groups) * used.size)
    return _busiest(edges.reshape(len(groups), 1, used.size), np.ones(1, np.int64), _one_hop(groups))


def _one_hop(groups: Sequence[Edges]) -> list[int]:
    return [int(group.source.size > 0) for group in groups]


def _count_on_grid(topology: Topology, groups: Sequence[Edges], copies: int) -> LinkCount:
    edges = np.zeros((len(groups), len(topology.shape), 2 * copies * topology.nodes), np.int64)
    hops = [_add_grid_edges(used, topology, group, copies) for used, group in zip(edges, groups, strict=True)]
    width = [_row_width(size, wraps=wraps) for size, wraps in zip(topology.shape, topology.wrapped, strict=True)]
    return _busiest(edges, np.array(width), hops)


def _add_grid_edges(used: Ints, topology: Topology, group: Edges, copies: int) -> int:
    """Write the edges on the links of each dimension into `used`, shape (dimensions, links); the largest hops."""
    node, below = group.source, 1
    hops = np.zeros_like(node)
    for dimension, size in enumerate(topology.shape):
        coordinate = coordinate_table(topology)[dimension]
        start, stop = coordinate[group.source], coordinate[group.target]
        ahead = _signed_steps(start, stop, size, wraps=topology.wrapped[dimension])
        if ahead.any():
            # X-Y routing: earlier dimensions are at the target by now, later ones still at the source.
            line = _line_table(topology)[dimension][node] + group.copy * (topology.nodes // size)
            used[dimension] = _count_on_lines(line, start, ahead, size=size, lines=copies * topology.nodes // size)
            node = node + (stop - start) * below
            hops += np.abs(ahead)
        below *= size
    return int(hops.max(initial=0))


def _signed_steps(start: Ints, stop: Ints, size: int, *, wraps: bool) -> Ints:
    ahead = stop - start
    if not wraps:
        return ahead
    ahead = np.where(ahead < 0, ahead + size, ahead)
    return np.where(2 * ahead > size, ahead - size, ahead)


def _count_on_lines(line: Ints, start: Ints, ahead: Ints, *, size: int, lines: int) -> Ints:
    """Edges on the links of all lines of nodes along one dimension, both directions, by difference arrays.

    An edge adds 1 where its segment begins and -1 where it ends; the running sum along a line is the load. Segments
    that wrap run on into a second half, folded back afterwards. Downward segments are counted on mirrored lines.
    """
    down = ahead < 0
    begin = np.where(down, size - 1 - start, start) + (line + down * lines) * (2 * size)
    cells = 2 * lines * 2 * size
    change = np.bincount(begin, minlength=cells) - np.bincount(begin + np.abs(ahead), minlength=cells)
    load = np.cumsum(change.reshape(2 * lines, 2 * size), axis=1)
    return np.asarray((load[:, :size] + load[:, size:]).ravel(), np.int64)


def _count_on_cube_mesh(topology: Topology, groups: Sequence[Edges], copies: int) -> LinkCount:
    crossed, width = _cube_mesh_incidence(topology.nodes)
    pairs = topology.nodes**2
    edges = np.zeros((len(groups), pairs, copies), np.int64)
    hops = []
    for used, group in zip(edges, groups, strict=True):
        pair = group.source * topology.nodes + group.target
        sent = np.bincount(group.copy * pairs + pair, minlength=copies * pairs).reshape(copies, pairs)
        used[:] = (sent @ crossed).T
        hops.append(int(crossed.sum(axis=1)[pair].max(initial=0)))
    return _busiest(edges, width, hops)


@lru_cache(maxsize=16)
def _cube_mesh_incidence(nodes: int) -> tuple[Ints, Ints]:
    """Which link (column) each ordered pair of nodes (row) crosses, and the width of the links; shape (n^2, n^2)."""
    crossed = np.zeros((nodes**2, nodes**2), np.int64)
    for source, target in itertools.permutations(range(nodes), 2):
        for start, stop in _cube_mesh_route(nodes, source, target):
            crossed[source * nodes + target, start * nodes + stop] = 1
    # Pairs without a link are never crossed; width 1 only keeps the division by it harmless.
    width = np.maximum(np.array(_CUBE_MESH, np.int64)[:nodes, :nodes].ravel(), 1)
    return _read_only(crossed), _read_only(width)


@lru_cache(maxsize=64)
def coordinate_table(topology: Topology) -> Ints:
    """Coordinates of every node, shape (dimensions, nodes)."""
    index, rows = np.arange(topology.nodes), []
    for size in topology.shape:
        index, coordinate = np.divmod(index, size)
        rows.append(coordinate)
    return _read_only(np.stack(rows))


@lru_cache(maxsize=64)
def _line_table(topology: Topology) -> Ints:
    """For each dimension, the number of the line along it that a node lies on, shape (dimensions, nodes)."""
    node, below, rows = np.arange(topology.nodes), 1, []
    for size in topology.shape:
        rows.append(node // (below * size) * below + node % below)
        below *= size
    return _read_only(np.stack(rows))


def _read_only(array: Ints) -> Ints:
    array.flags.writeable = False
    return array


# --- layout ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def walk(topology: Topology, spans: tuple[tuple[int, int], ...]) -> Ints:
    """The order in which a greedy layout fills the nodes [1]_: neighbours first, then on to the next dimension.

    A parallel axis that is longer than a row turns round at its end and comes back on the next row (boustrophedon), so
    its consecutive shards stay neighbours. Where an axis ends at the end of a row, the next axis starts along the next
    dimension and nothing turns. Where axes and rows do not fit each other, the whole walk is one boustrophedon.

    Parameters
    ----------
    topology : the network to fill.
    spans : for each axis its stride, and its stride times its size, in places of the walk.

    Returns
    -------
    ndarray of int, shape (nodes,)
        Node at each place of the walk.
    """
    if topology.kind == "hybrid-cube-mesh":
        around = spans == ((1, topology.nodes),)
        order = _CUBE_MESH_RING if around else _CUBE_MESH_QUADS
        return _read_only(np.array([node for node in order if node < topology.nodes], np.int64))
    place, below = np.arange(topology.nodes), 1
    if not topology.is_grid:
        return _read_only(place)
    node = np.zeros_like(place)
    for size in topology.shape:
        node += _coordinate_on_walk(place, below, size, spans) * below
        below *= size
    return _read_only(node)


def _coordinate_on_walk(place: Ints, below: int, size: int, spans: tuple[tuple[int, int], ...]) -> Ints:
    above = below * size
    straight = place // below % size
    stride, stop = _turning_span(below, above, spans, place.size)
    if stop == above:
        return straight
    # Only the axis that turns runs backwards; axes inside its stride keep their direction.
    block = max(stride // below, 1)
    backwards = size - block - straight // block * block + straight % block
    return np.where(place // above % (stop // above) % 2 == 1, backwards, straight)


def _turning_span(below: int, above: int, spans: tuple[tuple[int, int], ...], nodes: int) -> tuple[int, int]:
    """Stride and end of the axis that runs past the end of a row; (above, above) when none does."""
    for stride, stop in spans:
        fits_row = below % stride == 0 or stride % below == 0
        if stride < above < stop and above % stride == 0 and stop % above == 0 and fits_row:
            return stride, stop
    if above == nodes or any(above in span for span in spans):
        return above, above
    return 1, nodes
