"""Device mapping and routing: parallel axes laid out on a physical network (DeepFlow, ACM TODAES 2024, Sec. 5.2)."""

from crossflow.mapping.placement import (
    PIPELINE_AXES,
    AxisRoute,
    Placement,
    best_placement,
    best_placements,
    devices,
    effective_bandwidth,
    level_bandwidths,
    orders,
    pair_route,
    place,
    routed_edges,
    to_networkx,
)
from crossflow.mapping.rings import has_chain, rings
from crossflow.mapping.topology import SINGLE, Network, Topology, most_square
from crossflow.mapping.wiring import topology_of, wired

__all__ = [
    "PIPELINE_AXES",
    "SINGLE",
    "AxisRoute",
    "Network",
    "Placement",
    "Topology",
    "best_placement",
    "best_placements",
    "devices",
    "effective_bandwidth",
    "has_chain",
    "level_bandwidths",
    "most_square",
    "orders",
    "pair_route",
    "place",
    "rings",
    "routed_edges",
    "to_networkx",
    "topology_of",
    "wired",
]
