"""How many rings the direct links of a node carry: the bandwidth that a collective finds where there is no switch.

A collective library lays as many link-disjoint rings over its ranks as the wiring allows; each link carries each
direction once, so a cycle and its reverse are two rings.
"""

from __future__ import annotations

import functools

from crossflow.hardware.mapping.topology import Topology

LinkCounts = tuple[tuple[int, ...], ...]
SEARCH_NODES = 200_000  # of the packing search; the wirings here need a few thousand


@functools.lru_cache(maxsize=64)
def rings(topology: Topology) -> int:
    """Most arc-disjoint directed Hamiltonian cycles over all nodes of a topology; 0 where there is none.

    Fully connected nodes have a closed form: p - 1, but p - 2 for 4 and 6 (Bermond and Faber 1976; Tillson 1980). Other
    wirings are searched depth-first over their cycles, down from the bound that each ring takes one link out of every node.
    """
    if topology.nodes < 2:
        return 0
    if topology.kind == "fully-connected":
        return topology.nodes - (2 if topology.nodes in (4, 6) else 1)
    return packed_rings(multiplicities(topology))


@functools.lru_cache(maxsize=256)
def packed_rings(width: LinkCounts) -> int:
    """The same over any few nodes, from the links between them."""
    return width[0][1] if len(width) == 2 else _packed(width, _cycles(width))


def multiplicities(topology: Topology) -> LinkCounts:
    """Parallel links from every node to every other."""
    nodes = range(topology.nodes)
    return tuple(tuple(topology.links.get((a, b), 0) for b in nodes) for a in nodes)


@functools.lru_cache(maxsize=64)
def has_chain(topology: Topology) -> bool:
    """Whether some order of all nodes follows direct links from the first to the last."""
    width = multiplicities(topology)
    everything = (1 << topology.nodes) - 1

    def grow(node: int, visited: int) -> bool:
        following = (other for other in range(topology.nodes) if width[node][other] and not visited >> other & 1)
        return visited == everything or any(grow(other, visited | 1 << other) for other in following)

    return any(grow(node, 1 << node) for node in range(topology.nodes))


def _cycles(width: LinkCounts) -> list[tuple[int, ...]]:
    """All directed Hamiltonian cycles through node 0."""
    total = len(width)
    found: list[tuple[int, ...]] = []

    def grow(path: tuple[int, ...], visited: int) -> None:
        if len(path) == total:
            if width[path[-1]][0]:
                found.append(path)
            return
        for node in range(total):
            if not visited >> node & 1 and width[path[-1]][node]:
                grow((*path, node), visited | 1 << node)

    grow((0,), 1)
    return found


def _packed(width: LinkCounts, cycles: list[tuple[int, ...]]) -> int:
    """Most of the cycles that can be laid at once, each using one link of every arc on it."""
    bound = min(sum(row) for row in width)
    left = [list(row) for row in width]
    arcs = [tuple(zip(cycle, (*cycle[1:], cycle[0]), strict=True)) for cycle in cycles]
    best = visited = 0

    def lay(first: int, laid: int) -> bool:
        """Try to lay more cycles from the list; True when nothing better can be found."""
        nonlocal best, visited
        best, visited = max(best, laid), visited + 1
        if best >= bound or visited > SEARCH_NODES:
            return True
        for i in range(first, len(arcs)):
            if all(left[a][b] for a, b in arcs[i]):
                _take(left, arcs[i], 1)
                if lay(i, laid + 1):
                    return True
                _take(left, arcs[i], -1)
        return False

    lay(0, 0)
    return best


def _take(left: list[list[int]], arcs: tuple[tuple[int, int], ...], links: int) -> None:
    for a, b in arcs:
        left[a][b] -= links
