"""Routes of single edges, link by link in plain Python: the definition that the counts of placements must agree with."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np

from crossflow.hardware.mapping.placement import _cluster_spans, _edges, _package_spans, _spans, level_bandwidths
from crossflow.hardware.mapping.topology import _cube_mesh_route, _node, walk


def route(topology, source, target):
    """Directed physical links from one node to another."""
    if source == target:
        return ()
    if topology.is_grid:
        return _grid_route(topology, source, target)
    if topology.kind == "switch":
        return ((source, topology.switch_node), (topology.switch_node, target))
    if topology.kind == "hybrid-cube-mesh":
        return _cube_mesh_route(topology.nodes, source, target)
    return ((source, target),)


def hops(topology, source, target):
    """Link latencies paid from one node to another; a switch, whose latency is quoted port to port, counts once."""
    path = route(topology, source, target)
    return 1 if path and topology.kind == "switch" else len(path)


def _grid_route(topology, source, target):
    position, goal = list(topology.coordinates(source)), topology.coordinates(target)
    path = [source]
    for dimension, size in enumerate(topology.shape):
        for passed in _walk(position[dimension], goal[dimension], size, wraps=topology.wrapped[dimension]):
            position[dimension] = passed
            path.append(_node(topology.shape, position))
    return tuple(itertools.pairwise(path))


def _walk(start, stop, size, *, wraps):
    """Coordinates passed after `start`, up to and with `stop`."""
    ahead = (stop - start) % size if wraps else stop - start
    if wraps and 2 * ahead > size:
        ahead -= size
    step = 1 if ahead > 0 else -1
    return [(start + step * i) % size for i in range(1, abs(ahead) + 1)]


def effective_bandwidth(axis, package_bandwidth, cluster_bandwidth):
    """Bandwidth of the slowest edge of an axis, which sets the pace of its ring. [B/s]"""
    return np.minimum(*level_bandwidths(axis, package_bandwidth, cluster_bandwidth))


def devices(placement):
    """Device of each logical rank, shape (devices,); device = local node + package nodes * package."""
    spans = _spans(placement.axes, placement.order, placement.chains)
    network, package = placement.network, placement.network.package.nodes
    inside = walk(network.package, _package_spans(spans, package))
    between = walk(network.cluster, _cluster_spans(spans, package))
    return (between[:, np.newaxis] * package + inside).ravel()


def routed_edges(placement, name):
    """Every logical edge of an axis, one by one: its source and target device and the links on its path.

    Links are named by their ends: "device 3", "switch of package 0", "package 2", "cluster switch". Meant for small
    systems; it is the definition that the counts of `place` must agree with.
    """
    where = devices(placement)
    for span in _spans(placement.axes, placement.order, placement.chains):
        if span.name == name:
            for source, target in zip(*_edges(span, where.size), strict=True):
                ends = int(where[source]), int(where[target])
                yield *ends, _system_route(placement.network, *ends)


def to_networkx(placement):
    """The system graph as a networkx DiGraph; links have `level`, `width` (in parallel) and `load` (logical edges)."""
    load = Counter(link for name in placement.order for _, _, links in routed_edges(placement, name) for link in links)
    graph = nx.DiGraph()
    for device in range(placement.network.devices):
        graph.add_node(f"device {device}", package=device // placement.network.package.nodes)
    for level, link, width in _system_links(placement.network):
        graph.add_edge(*link, level=level, width=width, load=load[link])
    return graph


def _system_route(network, source, target):
    size = network.package.nodes
    if source // size == target // size:
        links = route(network.package, source % size, target % size)
        return tuple(_package_link(network, source // size, link) for link in links)
    if network.cluster.kind == "switch":
        return ((f"device {source}", "cluster switch"), ("cluster switch", f"device {target}"))
    return tuple((f"package {a}", f"package {b}") for a, b in route(network.cluster, source // size, target // size))


def _package_link(network, package, link):
    topology = network.package
    switch = f"switch of package {package}"
    first, second = (switch if node == topology.switch_node else f"device {package * topology.nodes + node}" for node in link)
    return first, second


def _system_links(network):
    """Level, ends and number of parallel links of every directed link of the system."""
    for package in range(network.cluster.nodes):
        for link, width in network.package.links.items():
            yield "package", _package_link(network, package, link), width
    if network.cluster.kind == "switch":
        for device in range(network.devices):
            yield "cluster", (f"device {device}", "cluster switch"), 1
            yield "cluster", ("cluster switch", f"device {device}"), 1
    else:
        for (a, b), width in network.cluster.links.items():
            yield "cluster", (f"package {a}", f"package {b}"), width * network.package.nodes
