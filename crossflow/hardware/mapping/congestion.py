"""What congestion leaves of a network to the collectives of a step: other jobs, and flows whose hashes choose the same link.

The cluster is a graph of links: the port of each device, and those between leaf switches and spines of a fat tree, or between groups of
a dragonfly. All transfers of a job keep pace (a ring is as fast as its slowest edge), so that a job is one flow, which passes a link as
often as it has transfers there; rates are max-min fair (`flows`).

- **Fat tree.** A leaf has ``paths`` links to as many spines, which divide its bandwidth. With ECMP every connection takes one of them by
  its hash, uniformly [1]_, [2]_; with adaptive routing all carry the same. With rails, a leaf holds the devices of one place in the
  nodes of its group, and what goes to other places is handed over inside the node first.
- **Dragonfly.** Links between two groups are one; ``ecmp`` takes it, ``adaptive`` it or ways through all third groups, whichever is
  faster for a job [3]_.
- **Handovers.** What workers of a service that read prompts send goes from some nodes of a job to each of the others, as fast as the ports
  of the fewer of both let it.
- **Services.** The engines of a service are one job on one network. Equal ones send what they send among themselves at once, other kinds of
  them (workers that read prompts) at other times. Keys and values of one prompt travel at a time, from any worker to any node that writes.
- **Gathers and scatters.** Ranks of other nodes send a part each to the first of their group, as fast as its port takes all of them, or get
  one from it. A broadcast and a reduce pass along a chain.
- **Trees.** Where switches reduce, one stream of each group climbs from every leaf to one spine, and comes down again [4]_.

A slowdown is the time over that of the job alone, packed, with adaptive routing: what other prices take for granted. These take nothing for
granted of where keys and values come from, so that of a handover it is the time over that alone in the same place, and what this takes over
ports into one switch (`Slowdown.ways`) is known beside it.

References
----------
.. [1] Al-Fares et al.: Hedera: Dynamic Flow Scheduling for Data Center Networks. NSDI 2010 (collisions of hashed flows).
.. [2] Gangidi et al.: RDMA over Ethernet for Distributed AI Training at Meta Scale. ACM SIGCOMM 2024, Sec. 4 and 5.
.. [3] Kim et al.: Technology-Driven, Highly-Scalable Dragonfly Topology. ISCA 2008.
.. [4] Graham et al.: Scalable Hierarchical Aggregation Protocol (SHArP). COM-HPC 2016.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from crossflow.base.arrays import Array, Index, divide
from crossflow.base.errors import StrategyError
from crossflow.hardware.architecture.network import TAIL, Congestion, NeighbourJob
from crossflow.hardware.mapping.flows import FlowPaths, max_min
from crossflow.hardware.mapping.topology import GROUPED, Network, Topology

Pattern: TypeAlias = Literal["ring", "chain", "all-to-all", "tree", "handover", "gather", "scatter"]
MOST_HASHED = 1 << 22  # hashes of all draws; what sends more flows has as many on every path
UP, DOWN, ACROSS = "link of a leaf switch to a spine", "link of a spine to a leaf switch", "link between two groups"


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """How much longer a collective takes between nodes than alone, in each of the moments that are drawn."""

    factors: tuple[float, ...]
    bottleneck: str  # the kind of link that slows it most often
    quantile: float | None = None  # by which messages are priced; the mean where None
    ways: tuple[float, ...] = ()  # of a handover, in each moment: how much longer it takes alone than over ports into one switch

    @property
    def priced(self) -> float:
        """The factor by which messages are priced. [1]"""
        return self._of_moments(np.array(self.factors))

    @property
    def over_ports(self) -> float:
        """Of a handover, the same over ports into one switch. [1]"""
        return self._of_moments(np.multiply(self.factors, self.ways))

    def _of_moments(self, factors: Array) -> float:
        return float(factors.mean() if self.quantile is None else np.quantile(factors, self.quantile, method="inverted_cdf"))

    @property
    def mean(self) -> float:
        """The mean over all moments. [1]"""
        return float(np.mean(self.factors))

    @property
    def tail(self) -> float:
        """What a twentieth of all moments exceeds. [1]"""
        return float(np.quantile(self.factors, TAIL, method="inverted_cdf"))


@dataclass(frozen=True, kw_only=True)
class DevicePart:
    """Devices of a job that send: so many of them, after others, of all; each part of a job begins in a node of its own. [1]"""

    before: int
    devices: int
    whole: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Traffic:
    """Transfers of a job between switches: leaves, or groups of a dragonfly."""

    pairs: Index  # source, target and count, shape (3, pairs)
    share: float  # rate of a transfer over that of a device. [1]
    trees: tuple[Index, ...] = ()  # instead, the leaves that the tree of each group climbs from
    moments: tuple[_Traffic, ...] = ()  # instead, what is sent in each draw


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cluster:
    """The whole network, with the places of a job's devices in it."""

    topology: Topology  # of all nodes
    width: int  # devices of a node that have a port
    congestion: Congestion

    @property
    def rails(self) -> bool:
        return self.congestion.rails

    @property
    def switches(self) -> int:
        """Leaf switches, or groups of a dragonfly."""
        return self.groups * (self.width if self.rails else 1)

    @property
    def groups(self) -> int:
        return -(-self.topology.nodes // self.topology.group)

    def switch(self, node: Index, rail: Index) -> Index:
        """The switch that devices have a port to."""
        group = node // self.topology.group
        return group * self.width + rail if self.rails else group

    @property
    def outward(self) -> Array:
        """Bandwidth of every switch to others, over that of a device. [1]"""
        nodes = np.minimum(self.topology.group, self.topology.nodes - self.topology.group * np.arange(self.groups))
        ports = np.repeat(nodes, self.width) if self.rails else nodes * self.width
        return np.asarray(ports / self.topology.oversubscription)

    @property
    def dragonfly(self) -> bool:
        return self.topology.kind == "dragonfly"

    @property
    def out_of_each(self) -> Array:
        """Bandwidth of every link out of a switch, or into it, over that of a device. [1]"""
        return self.outward / (max(self.switches - 1, 1) if self.dragonfly else self.paths)

    @property
    def paths(self) -> int:
        """Equal paths out of a leaf."""
        ports = self.topology.group * (1 if self.rails else self.width)
        return self.congestion.paths or max(int(ports / self.topology.oversubscription), 1)


def refusal(congestion: Congestion, network: Network) -> str | None:
    """Why jobs cannot share a network as they say; None where they can."""
    cluster, own, width = network.cluster, network.cluster.nodes, network.package.nodes
    if cluster.nodes < 2:
        return "there is one node only, and nothing goes over the network; leave it out"
    if cluster.kind not in GROUPED:
        why = "every device has links of its own" if cluster.is_switched else "every job has a slice with links of its own"
        return f"on a {cluster.kind} nothing is shared, {why}; take topology fat-tree or dragonfly, or leave it out"
    given = [key for key in ("rails", "paths", "connections") if key in congestion.model_fields_set]
    if cluster.kind == "dragonfly" and given:
        return f"{given[0]} is of leaf switches and their links to spines, which a dragonfly does not have; leave it out"
    if congestion.routing == "adaptive" and (given := [key for key in given if key != "rails"]):
        return f"{given[0]} is of flows that keep one path, and with routing: adaptive none does; leave it out"
    by_rail, part = congestion.placement == "by-rail", own if congestion.placement == "by-rail" else width
    for i, job in enumerate(congestion.jobs):
        if job.devices % part:
            each = f"{own} devices, one in each of the step's nodes" if by_rail else f"{width} devices, as many as the step has in a node"
            return f"jobs[{i}] has {job.devices} devices; give a multiple of {each}"
        many = own if by_rail else job.devices // part
        if job.senders is not None and abs(job.senders * many - round(job.senders * many)) > 1e-6 * many:
            return f"jobs[{i}].senders: {job.senders:g} of {many} nodes are no whole nodes; give a multiple of 1/{many}"
    nodes = _nodes(congestion, network)
    if cluster.kind == "dragonfly" and nodes > cluster.group and nodes % cluster.group:
        return f"the nodes of all jobs are {nodes}, which do not fill groups of {cluster.group}; give jobs other devices"
    return None


def in_order(jobs: Sequence[NeighbourJob]) -> tuple[NeighbourJob, ...]:
    """Jobs by their devices and by what they send, so that it does not matter who was named first."""
    return tuple(sorted(jobs, key=lambda job: (job.devices, job.traffic, job.senders or 0.0, job.duty, job.weight, job.priority)))


def _nodes(congestion: Congestion, network: Network) -> int:
    """Nodes of all jobs."""
    if congestion.placement == "by-rail":
        return network.cluster.nodes
    return network.cluster.nodes + sum(job.devices // network.package.nodes for job in congestion.jobs)


@functools.lru_cache(maxsize=4096)
def slowdown(
    congestion: Congestion,
    network: Network,
    stride: int,
    ranks: int,
    pattern: Pattern,
    only: tuple[int, int] | None = None,
    *,
    part: DevicePart | None = None,
) -> Slowdown:
    """How much longer groups of `ranks` devices, `stride` apart, take for collectives of a pattern between nodes; all groups send at once.

    Parameters
    ----------
    network : that of the step's own nodes.
    only : of a chain, the place that sends and the one that receives; every place to the next where absent.
    part : devices of the job among which the groups are, all where absent. A handover goes from `stride` of them to those before.
    """
    if why := refusal(congestion, network):
        raise StrategyError(f"network.inter.congestion: {why}")
    own, width = network.cluster.nodes, network.package.nodes
    if congestion.placement != "packed":  # where jobs lie one after the other, their order says where
        congestion = congestion.model_copy(update={"jobs": in_order(congestion.jobs)})

    def sent(cluster: _Cluster, places: JobPlaces) -> _Traffic:
        if part is None:
            return _traffic(cluster, places, stride, ranks, pattern, only)
        if pattern == "handover":
            return _handed_over(cluster, places, part, stride, congestion)
        mine = slice(part.before, part.before + part.devices)
        return _traffic(cluster, (places[0][mine], places[1][mine]), stride, ranks, pattern, only)

    plain = Congestion(routing="adaptive", rails=congestion.rails)
    cluster, places = _placed(congestion, network)
    if pattern == "handover":
        alone, place = replace(cluster, congestion=plain), places[0]
    else:
        device = np.arange(own * width)
        alone, place = _Cluster(topology=network.cluster, width=width, congestion=plain), (device // width, device % width)
    nearest, _ = _rates(alone, [sent(alone, place)], np.ones((1, congestion.draws)))

    sends = np.ones((1 + len(congestion.jobs), congestion.draws))
    for i, job in enumerate(congestion.jobs):
        rng = np.random.default_rng((congestion.seed, i))
        sends[1 + i] = rng.random(congestion.draws) < job.duty
    traffics = [sent(cluster, places[0])]
    for place, job in zip(places[1:], congestion.jobs, strict=True):
        nodes = np.unique(place[0]).size
        senders = None if job.senders is None else round(job.senders * nodes)
        traffics.append(_traffic(cluster, place, place[0].size // nodes, nodes, job.traffic, senders=senders))
    rate, bottleneck = _rates(cluster, traffics, sends)
    names, counts = np.unique(bottleneck, return_counts=True)
    return Slowdown(
        factors=tuple(divide(nearest, rate).tolist()), bottleneck=str(names[counts.argmax()]), quantile=congestion.quantile,
        ways=tuple((1.0 / nearest).tolist()) if pattern == "handover" else (),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------- places and transfers

JobPlaces: TypeAlias = tuple[Index, Index]  # of the devices of a job in turn: their nodes, and their rails


def _placed(congestion: Congestion, network: Network) -> tuple[_Cluster, list[JobPlaces]]:
    """The network of all jobs, and where the devices of each are, the step's own first."""
    own, width = network.cluster.nodes, network.package.nodes
    cluster = replace(network.cluster, nodes=_nodes(congestion, network), shape=())
    if congestion.placement == "by-rail":
        counts = [width, *(job.devices // own for job in congestion.jobs)]
        firsts = itertools.accumulate(counts, initial=0)
        places = [
            (np.repeat(np.arange(own), count), np.tile(np.arange(first, first + count), own))
            for count, first in zip(counts, firsts, strict=False)
        ]
        return _Cluster(topology=cluster, width=sum(counts), congestion=congestion), places
    counts = [own, *(job.devices // width for job in congestion.jobs)]
    job = np.repeat(np.arange(len(counts)), counts)
    if congestion.placement == "spread":  # each job's nodes evenly over all, as cards are dealt to hands of several sizes
        turn = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        job = job[np.lexsort((job, turn))]
    nodes = [np.flatnonzero(job == i) for i in range(len(counts))]
    places = [(np.repeat(one, width), np.tile(np.arange(width), one.size)) for one in nodes]
    return _Cluster(topology=cluster, width=width, congestion=congestion), places


def _traffic(
    cluster: _Cluster,
    places: JobPlaces,
    stride: int,
    ranks: int,
    pattern: Pattern,
    only: tuple[int, int] | None = None,
    *,
    senders: int | None = None,
) -> _Traffic:
    """Transfers of groups of `ranks` devices of a job, `stride` apart.

    senders : of a handover, how many of each group send to the others, each as fast as the ports of the fewer of both let it.
    """
    node, rail = places
    members = np.arange(node.size).reshape(-1, ranks, stride).swapaxes(1, 2).reshape(-1, ranks)  # shape (groups, ranks)
    if pattern == "tree":
        leaves = cluster.switch(node[members], rail[members])
        return _Traffic(pairs=np.zeros((3, 0), dtype=int), share=1.0, trees=tuple(np.unique(row) for row in leaves))
    if pattern == "all-to-all":
        return _Traffic(pairs=_exchanged(cluster, (node[members], rail[members]), (node[members], rail[members])), share=1.0 / (ranks - 1))
    if senders is not None:
        send, receive = members[:, :senders], members[:, senders:]
        pairs = _exchanged(cluster, (node[send], rail[send]), (node[receive], rail[receive]))
        return _Traffic(pairs=pairs, share=1.0 / max(senders, ranks - senders))
    if pattern in ("gather", "scatter"):
        return _rooted(cluster, places, members, pattern)
    if only is not None:
        ahead, there = members[:, only[0]], members[:, only[1]]
    else:
        ahead = members if pattern == "ring" else members[:, :-1]
        there = np.roll(members, -1, axis=1)[:, : ahead.shape[1]]
    # With rails, what goes to another place is handed over inside the node of the sender.
    source, target = (cluster.switch(node[one], rail[there]).ravel() for one in (ahead, there))
    return _Traffic(pairs=_counted(cluster, source, target, np.ones(source.size, dtype=int)), share=1.0)


def _rooted(cluster: _Cluster, places: JobPlaces, members: Index, pattern: Pattern) -> _Traffic:
    """Transfers between the first member of each group and those in other nodes, whose parts share its port."""
    node, rail = places
    root, others = np.broadcast_arrays(members[:, :1], members[:, 1:])
    apart = node[others] != node[root]
    ahead, there = (others[apart], root[apart]) if pattern == "gather" else (root[apart], others[apart])
    source, target = (cluster.switch(node[one], rail[there]) for one in (ahead, there))
    most = max(int(apart.sum(axis=1).max()), 1)
    return _Traffic(pairs=_counted(cluster, source, target, np.ones(source.size, dtype=int)), share=1.0 / most)


def _handed_over(cluster: _Cluster, places: JobPlaces, part: DevicePart, stride: int, congestion: Congestion) -> _Traffic:
    """Transfers of one engine of `stride` devices in each moment, to as many devices of those before its part, from a node on."""
    node, rail = places
    rng = np.random.default_rng((congestion.seed, 0, 2))
    width = int(np.count_nonzero(node == node[0]))
    engines, nodes = part.devices // stride, part.before // width
    # Ways from each engine to each node in turn, as many of each as moments allow.
    way = ((np.arange(congestion.draws) + rng.random(congestion.draws)) * (engines * nodes / congestion.draws)).astype(int)
    sends, receives = part.before + stride * (way // nodes), width * (way % nodes)
    moments, ranks = dict[tuple[int, int], _Traffic](), np.arange(stride)
    for ends in set(zip(sends.tolist(), receives.tolist(), strict=True)):
        ahead, there = ends[0] + ranks, (ends[1] + ranks) % part.before
        source, target = (cluster.switch(node[one], rail[there]) for one in (ahead, there))
        moments[ends] = _Traffic(pairs=_counted(cluster, source, target, np.ones(stride, dtype=int)), share=1.0)
    each = tuple(moments[ends] for ends in zip(sends.tolist(), receives.tolist(), strict=True))
    return _Traffic(pairs=np.zeros((3, 0), dtype=int), share=1.0, moments=each)


def _exchanged(cluster: _Cluster, send: JobPlaces, receive: JobPlaces) -> Index:
    """Transfers of groups from each of some members to each of some, whose places have the shape (groups, members)."""
    from scipy.sparse import coo_matrix

    group, switch, rows = send[0] // cluster.topology.group, cluster.switch(*receive), len(send[0])
    sent, received = (np.repeat(np.arange(rows), ends.shape[1]) for ends in (group, switch))
    from_groups = coo_matrix((np.ones(sent.size, dtype=int), (group.ravel(), sent)), shape=(cluster.groups, rows)).tocsr()
    to_switches = coo_matrix((np.ones(received.size, dtype=int), (received, switch.ravel())), shape=(rows, cluster.switches)).tocsr()
    found = (from_groups @ to_switches).tocoo()
    source = found.row * cluster.width + found.col % cluster.width if cluster.rails else found.row
    return _counted(cluster, source, found.col, found.data)


def _counted(cluster: _Cluster, source: Index, target: Index, count: Index) -> Index:
    """Different pairs of switches with the transfers between them, shape (3, pairs)."""
    apart = source != target
    key, place = np.unique(source[apart] * cluster.switches + target[apart], return_inverse=True)
    return np.stack([key // cluster.switches, key % cluster.switches, np.bincount(place, count[apart], key.size).astype(int)])


# -------------------------------------------------------------------------------------------- links and rates

LinkLoads: TypeAlias = Array  # transfers of a job on every link of a kind, shape (links, draws) or (links, 1). [1]


def _rates(cluster: _Cluster, traffics: Sequence[_Traffic], sends: Array) -> tuple[Array, list[str]]:
    """Rate of the first job over that of a device's port in every draw, and the kind of link that it is bound by.

    sends : whether each job sends, shape (jobs, draws).
    """
    of_jobs = [_loads(cluster, traffic, sends.shape[1], i) for i, traffic in enumerate(traffics)]
    kinds = {name: len(load) for name, load in of_jobs[0].items()}
    names = ["port of a device"] * len(traffics) + [name for name, links in kinds.items() for _ in range(links)]
    capacity = [np.ones(len(traffics)), *(np.repeat(cluster.out_of_each, links // cluster.switches) for links in kinds.values())]
    entries, ports = [], np.eye(len(traffics))  # a job's devices have ports of their own
    for i, loads in enumerate(of_jobs):
        stacked = np.concatenate(
            [np.broadcast_to(load, (len(load), sends.shape[1])) for load in (ports[i][:, np.newaxis], *loads.values())]
        )
        (used,) = np.nonzero(stacked.max(axis=1) > 0)
        entries.append((np.full(used.size, i), used, stacked[used]))
    flow, link, amount = (np.concatenate(column) for column in zip(*entries, strict=True))
    paths = FlowPaths.of(flow, link, amount, flows=len(traffics), links=len(names))
    others = cluster.congestion.jobs[: len(traffics) - 1]
    weight = np.array([1.0, *(job.weight for job in others)])[:, np.newaxis]
    classes = np.array([0, *(job.priority for job in others)])
    found = max_min(paths, np.concatenate(capacity)[:, np.newaxis], weight=weight * sends, priority=classes)
    return found.rate[0], [names[link] for link in found.bottleneck[0]]


def _loads(cluster: _Cluster, traffic: _Traffic, draws: int, *job: int) -> dict[str, LinkLoads]:
    """Transfers of a job, of this number, on all links between switches, by their kind."""
    if traffic.moments:
        each = [_loads(cluster, one, 1, *job, moment) for moment, one in enumerate(traffic.moments)]
        return {name: np.concatenate([found[name] for found in each], axis=1) for name in each[0]}
    if cluster.dragonfly:
        return {ACROSS: _between_groups(cluster, traffic)}
    return _over_spines(cluster, traffic, draws, np.random.default_rng((cluster.congestion.seed, *job, 1)))


def _over_spines(cluster: _Cluster, traffic: _Traffic, draws: int, rng: np.random.Generator) -> dict[str, LinkLoads]:
    """Transfers on the links of a fat tree from every leaf to every spine, and back down."""
    paths, leaves = cluster.paths, cluster.switches
    if traffic.trees:
        up = _climbed(cluster, traffic.trees, draws, rng)
        return {UP: up, DOWN: up}
    source, target, count = traffic.pairs
    if cluster.congestion.routing == "adaptive" or not count.size:
        loads = (np.bincount(ends, count, leaves) * traffic.share / paths for ends in (source, target))
        return {name: np.repeat(load, paths)[:, np.newaxis] for name, load in zip((UP, DOWN), loads, strict=True)}
    # Where all hashes are too many, those of fewer moments come again.
    distinct = min(max(MOST_HASHED // (count.size * paths), 1), draws)
    connections = cluster.congestion.connections
    hashed = rng.multinomial(count * connections, np.full(paths, 1.0 / paths), size=(distinct, count.size))
    again = np.resize(np.arange(distinct), draws)
    found = {}
    for name, ends in ((UP, source), (DOWN, target)):
        summed = _sums(ends, hashed.swapaxes(0, 1).reshape(count.size, -1), leaves)  # shape (leaves, distinct * paths)
        load = summed.reshape(leaves, distinct, paths).swapaxes(1, 2).reshape(leaves * paths, distinct)
        found[name] = (load * (traffic.share / connections))[:, again]
    return found


def _climbed(cluster: _Cluster, trees: Sequence[Index], draws: int, rng: np.random.Generator) -> LinkLoads:
    """Streams of reduction trees on the links of every leaf, each to the spine of its tree; those of one leaf climb none."""
    paths, wide = cluster.paths, [leaves for leaves in trees if leaves.size > 1]
    leaf, tree = (np.concatenate([*parts, np.zeros(0, dtype=int)]) for parts in (wide, [np.full(w.size, i) for i, w in enumerate(wide)]))
    if cluster.congestion.routing == "adaptive":
        return np.repeat(np.bincount(leaf, minlength=cluster.switches) / paths, paths)[:, np.newaxis]
    spine = rng.integers(0, paths, (draws, len(wide)))
    links = cluster.switches * paths
    place = np.arange(draws)[:, np.newaxis] * links + leaf * paths + spine[:, tree]
    return np.asarray(np.bincount(place.ravel(), minlength=draws * links).reshape(draws, links).T.astype(float))


def _between_groups(cluster: _Cluster, traffic: _Traffic) -> LinkLoads:
    """Transfers on the links of a dragonfly from every group to every other: direct, or through all third groups where that is faster."""
    groups = cluster.switches
    direct = np.zeros((groups, groups))
    source, target, count = traffic.pairs
    direct[source, target] = count * traffic.share
    for leaves in traffic.trees:  # from the first group to all others, and back
        direct[leaves[0], leaves[1:]] += 1.0
        direct[leaves[1:], leaves[0]] += 1.0
    if cluster.congestion.routing == "adaptive" and groups > 2:
        sent, arrives = direct.sum(axis=1, keepdims=True), direct.sum(axis=0, keepdims=True)
        around = (sent + arrives - 2.0 * direct) / (groups - 2)
        np.fill_diagonal(around, 0.0)
        wide = cluster.outward[:, np.newaxis]
        direct = around if (around / wide).max() < (direct / wide).max() else direct
    return direct.reshape(-1, 1)


def _sums(owner: Index, values: Index, count: int) -> Array:
    """Rows of values summed by owner, shape (count, columns)."""
    from scipy.sparse import csr_matrix

    return np.asarray(csr_matrix((np.ones(owner.size), (owner, np.arange(owner.size))), shape=(count, owner.size)) @ values)
