"""How much longer collectives take over the links of a topology than over ports of their own into one switch that holds all devices.

All groups of an axis communicate at once, each with the links that it has, or with its part of those that it shares. What a switch
would need is fixed: the bytes of a ring over the bandwidth of a port. `LinkSpread` gives the ratio to that, in closed form:

- **Rows.** A group on a grid is a box, or every s-th node of one: in each dimension a row of e nodes which is a ring (it wraps, and the
  group has all of its every s-th nodes) or a line. A link of the row is shared by s groups. Fully connected nodes are one row.
- **All-gather and reduce-scatter** go dimension by dimension, parts of the buffer in different orders, so that all links work at once
  (the bucket algorithm [1]_). A node receives over r links of a row: 2 of a ring, 1 of a line (its end has no more), e - 1 of a full
  one. The loads that orders can bring about are the bases of a polymatroid, so the best time is, over sets A of dimensions,
  max (prod_A e - 1) / (p sum_A r / s) buffers over the bandwidth of a link: with A all dimensions, the bound by the links of a node.
- **All-reduce** reduces up and broadcasts down edge-disjoint spanning trees [2]_, [3]_. Their number is the least of crossing edges
  over parts - 1 among the partitions of the nodes (Nash-Williams 1961, Tutte 1961), of a product of rows the least over sets of
  dimensions: max (prod_A e - 1) / (p sum_A c / s), c edges of a row for each of its nodes. On tori it is twice the all-gather.
- **All-to-all** takes X-Y routes. A link carries what crosses the middle of its row: (e^2 - (e mod 2)) / (8 e) buffers in a ring,
  floor(e^2 / 4) / e in a line, 1 / e where all are linked. The bisection admits no less.
- **Broadcast** goes down edge-disjoint trees, as many as the worst connected node has links (Edmonds 1973).
- On a **hybrid cube mesh** the same bounds are taken over all partitions and all sets of its few nodes.
- Other groups take a ring, both ways at once, along the routes counted for it.

References
----------
.. [1] Jain, Sabharwal: Optimal Bucket Algorithms for Large MPI Collectives on Torus Interconnects. ICS 2010; Sack, Gropp: Collective
   Algorithms for Multiported Torus Networks. ACM TOPC 1(2), 2015.
.. [2] Huang et al.: Communication Algorithm-Architecture Co-Design for Distributed Deep Learning (MultiTree). ISCA 2021.
.. [3] Zhao et al.: ForestColl: Efficient Collective Communications on Heterogeneous Network Fabrics. arXiv:2402.06787, 2024.
.. [4] Kim et al.: Technology-Driven, Highly-Scalable Dragonfly Topology. ISCA 2008.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from crossflow.hardware.mapping.rings import LinkCounts, multiplicities, packed_rings, rings
from crossflow.hardware.mapping.topology import GROUPED, Ints, Topology, coordinate_table, walk

VALIANT = 0.5  # share of a dragonfly's links between groups that traffic to one other group can use: through any third group, twice [4]_


@dataclass(frozen=True, kw_only=True)
class LinkSpread:
    """Time of long messages over what they would take on a port of full bandwidth into a switch, by kind of collective. [1]"""

    gather: float  # all-gather, reduce-scatter
    reduce: float  # all-reduce
    exchange: float  # all-to-all
    broadcast: float
    transfer: float  # from each rank to the next, over routed paths
    steps: int = 0  # hops that follow one another in a gather; 0 behind switches, where any algorithm can be chosen. [1]
    rings: int = 0  # arc-disjoint rings that every group finds among direct links of its own; 0 where there are none, or not counted

    def of(self, flow: str) -> float:
        """That of one kind of collectives, by the field's name. [1]"""
        return float(getattr(self, flow))


@dataclass(frozen=True, kw_only=True)
class LinkRow:
    """The nodes of a group along one dimension, per link and direction of the row that the group has to itself."""

    extent: int  # nodes in the row
    receives: float  # links into its worst connected node. [1]
    edges: float  # pairs of linked nodes, for each node. [1]
    exchange: float  # buffers on the busiest link in an all-to-all. [1]
    steps: int  # hops from any node to any other, all at once


def ring_row(extent: int, apart: int = 1) -> LinkRow:
    """A row that wraps, of nodes so many hops apart; as many groups share its links."""
    exchange = (extent**2 - extent % 2) / (8 * extent)
    return LinkRow(extent=extent, receives=2 / apart, edges=1 / apart, exchange=exchange * apart, steps=extent // 2 * apart)


def line_row(extent: int, apart: int = 1) -> LinkRow:
    """A row that does not wrap."""
    exchange, edges = (extent**2 // 4) / extent, (extent - 1) / extent
    return LinkRow(extent=extent, receives=1 / apart, edges=edges / apart, exchange=exchange * apart, steps=(extent - 1) * apart)


def full_row(extent: int) -> LinkRow:
    """Nodes each of which is linked to every other."""
    return LinkRow(extent=extent, receives=extent - 1.0, edges=(extent - 1) / 2, exchange=1 / extent, steps=1)


def over_rows(rows: Sequence[LinkRow], links: int, transfer: float, laid: int = 0) -> LinkSpread:
    """Spread of groups that are products of rows, over devices that divide their bandwidth among so many links."""
    ranks = math.prod(row.extent for row in rows)
    share = (ranks - 1) / ranks

    def most(capacity: Callable[[LinkRow], float]) -> float:
        sets = itertools.chain.from_iterable(itertools.combinations(rows, k) for k in range(1, len(rows) + 1))
        return max((math.prod(row.extent for row in some) - 1) / (ranks * sum(map(capacity, some))) for some in sets)

    return LinkSpread(
        gather=links * most(lambda row: row.receives) / share,
        reduce=links * most(lambda row: row.edges) / (2 * share),
        exchange=links * max(row.exchange for row in rows) / share,
        broadcast=links / sum(row.receives for row in rows),
        transfer=transfer,
        steps=sum(row.steps for row in rows),
        rings=laid,
    )


def around(ranks: int, links: int, sharing: float, both: float, hops: int) -> LinkSpread:
    """Spread of groups that take a ring: its edges' `sharing` of links one way, and the mean of `both` ways at once."""
    used = links * min(sharing, both)
    exchange = used * (ranks**2 // 4) / (ranks - 1)
    steps = ranks // 2 * max(hops, 1)
    return LinkSpread(gather=used, reduce=used, exchange=exchange, broadcast=used, transfer=links * sharing, steps=steps)


def behind_switches(topology: Topology, ranks: int, per_group: int, sharing: float) -> LinkSpread:
    """Spread of groups of ranks of which so many share a leaf switch of a fat tree, or a group of a dragonfly.

    What leaves a leaf passes its uplinks, 1 / oversubscription of the ports below. Of a ring over g ranks of a leaf one edge leaves it,
    and the leaf's other groups have as many; in an all-to-all, p - g of p - 1 parts do. A last leaf with fewer nodes has uplinks as
    they have ports: ranks that divide the nodes fill it with whole runs of g, and what leaves it takes longest. Two groups of a dragonfly
    share a small part of its links; traffic between them goes through third groups too, and then uses twice the links [4]_.
    """
    if topology.kind not in GROUPED or per_group >= ranks:
        return LinkSpread(gather=sharing, reduce=sharing, exchange=sharing, broadcast=sharing, transfer=sharing)
    apart, all_groups = ranks // per_group, topology.nodes // topology.group
    near = topology.oversubscription / _direct_share(topology.kind, 2, all_groups)
    wide = topology.oversubscription / _direct_share(topology.kind, apart, all_groups)
    gather = max(sharing, wide / per_group)
    return LinkSpread(
        gather=gather,
        reduce=gather,
        exchange=max(sharing, wide * (ranks - per_group) / (ranks - 1)),
        broadcast=gather,
        transfer=max(sharing, near / per_group),
    )


def _direct_share(kind: str, some: int, groups: int) -> float:
    """Share of a group's links to others that traffic among some of the groups can use."""
    return max((some - 1) / (groups - 1), VALIANT) if kind == "dragonfly" else 1.0


def over_links(topology: Topology, spans: tuple[tuple[int, int], ...], stride: int, ranks: int, transfer: float) -> LinkSpread | None:
    """Spread of groups of `ranks` places of a walk over direct links, `stride` apart; None where no closed form holds.

    Parameters
    ----------
    spans : stride and end of the axes that are laid out, as `walk` takes them.
    transfer : spread of a transfer, as counted on its routes. [1]
    """
    if topology.kind == "fully-connected":
        laid = rings(Topology(kind="fully-connected", nodes=ranks))
        return over_rows((full_row(ranks),), topology.degree, transfer, laid)
    groups = np.moveaxis(walk(topology, spans).reshape(-1, ranks, stride), 1, 2).reshape(-1, ranks)
    if topology.is_grid:
        rows = _rows(topology, groups)
        return None if rows is None else over_rows(rows, topology.degree, transfer)
    found = [_over_cube_mesh(topology, tuple(sorted(group))) for group in groups.tolist()]
    return None if None in found else _slowest([one for one in found if one is not None], transfer)


def _slowest(found: Sequence[LinkSpread], transfer: float) -> LinkSpread:
    """The slowest of each collective; the fewest rings."""
    worst = {field.name: max(getattr(one, field.name) for one in found) for field in fields(LinkSpread)}
    return LinkSpread(**{**worst, "transfer": transfer, "rings": min(one.rings for one in found)})


def _rows(topology: Topology, groups: Ints) -> tuple[LinkRow, ...] | None:
    """Rows of groups that all are boxes of one shape, or every s-th node of one; None for others."""
    rows = []
    for coordinate, size, wraps in zip(coordinate_table(topology), topology.shape, topology.wrapped, strict=True):
        places = np.sort(coordinate[groups], axis=1)
        steps = np.diff(places, axis=1)
        extents, apart = (steps > 0).sum(axis=1) + 1, int(steps.max(initial=0))
        if (extents != extents[0]).any() or ((steps > 0) & (steps != apart)).any():
            return None
        if extents[0] > 1:
            whole = wraps and apart * extents[0] == size
            rows.append((ring_row if whole else line_row)(int(extents[0]), apart))
    return tuple(rows) if math.prod(row.extent for row in rows) == groups.shape[1] else None


# --- few nodes: all partitions and sets ------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _over_cube_mesh(topology: Topology, group: tuple[int, ...]) -> LinkSpread | None:
    """Spread of some nodes over the links among themselves; None where these do not join all."""
    width = multiplicities(topology)
    return among(tuple(tuple(width[a][b] for b in group) for a in group), topology.degree)


def among(width: LinkCounts, links: int) -> LinkSpread | None:
    """Spread over few nodes and the given links between them, of devices that divide their bandwidth among so many."""
    ranks, between = len(width), np.array(width)
    cuts = [(chosen.sum(), between[~chosen][:, chosen].sum()) for chosen in _subsets(ranks)]
    if not all(crossing for _, crossing in cuts):
        return None
    share = (ranks - 1) / ranks
    gather = max((ranks - size) / (ranks * crossing) for size, crossing in cuts)
    parts = np.array(list(_partitions(ranks)))  # the part of each node, shape (partitions, ranks)
    crossing = ((parts[:, :, np.newaxis] != parts[:, np.newaxis, :]) * between).sum(axis=(1, 2)) / 2
    count = parts.max(axis=1)
    trees = (crossing[count > 0] / count[count > 0]).min()
    exchange = max(max(size * (ranks - size) / (ranks * crossing) for size, crossing in cuts), _least_hops(between))
    return LinkSpread(
        gather=links * gather / share,
        reduce=links / trees / (2 * share),
        exchange=links * exchange / share,
        broadcast=links / min(crossing for _, crossing in cuts),
        transfer=math.nan,  # follows from the routes
        steps=max(ranks // 2, 1),
        rings=packed_rings(width),
    )


def _subsets(ranks: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    for bits in range(1, 2**ranks - 1):
        yield np.array([bool(bits >> i & 1) for i in range(ranks)])


def _partitions(ranks: int) -> Iterator[tuple[int, ...]]:
    """Every partition of so many nodes, as the number of each node's part (restricted growth strings)."""

    def grow(parts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(parts) == ranks:
            yield parts
            return
        for part in range(max(parts) + 2):
            yield from grow((*parts, part))

    yield from grow((0,))


def _least_hops(between: Ints) -> float:
    """Buffers on a link in an all-to-all along shortest routes, if all links were equally busy. [1]"""
    ranks = len(between)
    hops = np.where(between > 0, 1.0, np.inf)
    np.fill_diagonal(hops, 0.0)
    for middle in range(ranks):
        hops = np.minimum(hops, hops[:, [middle]] + hops[[middle], :])
    return float(hops.sum() / ranks / between.sum())
