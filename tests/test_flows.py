"""Max-min fair rates of flows on shared links: laws, a second way, speed; and when flows end."""

import time

import numpy as np
import pytest

from crossflow.edges import bench
from crossflow.engine.service import transfers
from crossflow.hardware.mapping.flows import NO_LINK, FlowPaths, finish_times, max_min


def paths_of(routes, links):
    flow = [i for i, route in enumerate(routes) for _ in route]
    link, amount = zip(*[entry for route in routes for entry in route], strict=True)
    return FlowPaths.of(np.array(flow), np.array(link), np.array(amount), flows=len(routes), links=links)


def drawn(seed, flows=40, links=15):
    """Flows over some links each, with parts and multiples of their rates on them."""
    rng = np.random.default_rng(seed)
    routes = [
        [(int(link), float(rng.choice([0.25, 0.5, 1.0, 1.0, 3.0]))) for link in rng.choice(links, rng.integers(1, 5), replace=False)]
        for _ in range(flows)
    ]
    return routes, rng.uniform(1, 10, links), rng.uniform(0.5, 2, flows), rng.uniform(0.05, 3, flows)


def filled_slowly(routes, capacity, weight, limit, active=None):
    """Progressive filling, one link or limit at a time."""
    growing = set(range(len(routes)) if active is None else active)
    rate, left = [0.0] * len(routes), list(capacity)
    while growing:
        steps = [(limit[f] - rate[f]) / weight[f] for f in growing]
        load = [sum(amount * weight[f] for f in growing for at, amount in routes[f] if at == link) for link in range(len(capacity))]
        steps += [left[link] / load[link] for link in range(len(capacity)) if load[link] > 0]
        step = min(steps)
        for f in growing:
            rate[f] += step * weight[f]
        left = [have - step * load[link] for link, have in enumerate(left)]
        full = {link for link in range(len(capacity)) if load[link] > 0 and left[link] <= 1e-12 * capacity[link]}
        growing = {f for f in growing if rate[f] < limit[f] * (1 - 1e-12) and not full & {link for link, _ in routes[f]}}
    return rate


@pytest.mark.parametrize("seed", range(6))
def test_rates_are_those_of_progressive_filling(seed):
    routes, capacity, weight, limit = drawn(seed)
    found = max_min(paths_of(routes, 15), capacity[:, None], weight=weight[:, None], limit=limit[:, None])
    assert found.rate[:, 0] == pytest.approx(filled_slowly(routes, capacity, weight, limit), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_no_link_is_overfull_and_each_flow_has_a_bottleneck(seed):
    routes, capacity, weight, limit = drawn(seed)
    paths = paths_of(routes, 15)
    found = max_min(paths, capacity[:, None], weight=weight[:, None], limit=limit[:, None])
    loads, level = paths.loads(found.rate)[:, 0], found.rate[:, 0] / weight
    assert (loads <= capacity * (1 + 1e-12)).all()
    for flow, link in enumerate(found.bottleneck[:, 0]):
        if link == NO_LINK:
            assert found.rate[flow, 0] == pytest.approx(limit[flow])
        else:  # full, and nobody on it has more for its weight
            assert loads[link] == pytest.approx(capacity[link])
            assert level[flow] >= max(level[other] for other in paths.flow[paths.link == link]) * (1 - 1e-12)


def test_sharing_is_never_faster_than_alone_and_a_batch_is_its_points():
    routes, capacity, weight, limit = drawn(7)
    paths, capacities = paths_of(routes, 15), np.stack([capacity, 2 * capacity, capacity[::-1]], axis=1)
    together = max_min(paths, capacities, weight=weight[:, None], limit=limit[:, None])
    for flow in range(len(routes)):
        only = np.where(np.arange(len(routes)) == flow, weight, 0.0)
        alone = max_min(paths, capacities, weight=only[:, None], limit=limit[:, None]).rate
        assert (together.rate[flow] <= alone[flow] * (1 + 1e-12)).all()
        assert (np.delete(alone, flow, axis=0) == 0).all()
    for point in range(3):
        one = max_min(paths, capacities[:, [point]], weight=weight[:, None], limit=limit[:, None])
        assert (one.rate[:, 0] == together.rate[:, point]).all()
        assert (one.bottleneck[:, 0] == together.bottleneck[:, point]).all()


def test_the_order_of_flows_and_links_does_not_matter():
    routes, capacity, weight, _ = drawn(8)
    rng = np.random.default_rng(0)
    flows, links = rng.permutation(len(routes)), rng.permutation(15)
    place = np.argsort(links)
    moved = [[(int(place[link]), amount) for link, amount in routes[flow]] for flow in flows]
    plain = max_min(paths_of(routes, 15), capacity[:, None], weight=weight[:, None]).rate
    other = max_min(paths_of(moved, 15), capacity[links][:, None], weight=weight[flows][:, None]).rate
    assert other == pytest.approx(plain[flows], rel=1e-12)


def test_a_class_takes_what_those_before_it_leave():
    routes, capacity, weight, limit = drawn(9)
    paths, classes = paths_of(routes, 15), np.arange(len(routes)) % 3
    found = max_min(paths, capacity[:, None], weight=weight[:, None], limit=limit[:, None], priority=classes).rate
    left = capacity
    for one in range(3):
        members = [flow for flow in range(len(routes)) if classes[flow] == one]
        expected = filled_slowly(routes, left, weight, limit, members)
        assert found[members, 0] == pytest.approx(np.array(expected)[members], rel=1e-9, abs=1e-12)
        left = np.maximum(left - paths.loads(np.array(expected)[:, None])[:, 0], 0.0)


def test_rates_by_hand():
    # Bertsekas and Gallager, Sec. 6.5.2: one flow over two links, of which the second is the wider, and two on the links alone.
    ways = paths_of([[(0, 1.0), (1, 1.0)], [(0, 1.0)], [(1, 1.0)]], 2)
    found = max_min(ways, np.array([[1.0], [2.0]]))
    assert found.rate.ravel().tolist() == [0.5, 0.5, 1.5]
    assert found.bottleneck.ravel().tolist() == [0, 0, 1]
    # A reduction tree holds a link for its one stream; a ring whose four edges meet on an uplink keeps pace, at a fifth beside one flow.
    assert max_min(paths_of([[(0, 4.0)], [(0, 1.0)]], 1), np.array([[1.0]])).rate.ravel() == pytest.approx([0.2, 0.2])
    # Spread over two paths, a flow has both.
    assert max_min(paths_of([[(0, 0.5), (1, 0.5)]], 2), np.array([[1.0], [1.0]])).rate.item() == 2.0
    assert max_min(paths_of([[(0, 1.0)]], 1), np.array([[np.inf]])).rate.item() == np.inf


@pytest.mark.parametrize(("flows", "engines"), [(1, 2), (4, 2), (40, 6)])
def test_transfers_of_services_have_the_same_rates(flows, engines):
    rng = np.random.default_rng(flows)
    ends, capacity = rng.integers(0, engines, (flows, 2)), rng.uniform(1, 3, (2, engines))
    ways = {flow: ((0, int(out)), (1, int(there))) for flow, (out, there) in enumerate(ends)}
    few = transfers.max_min(ways, {(side, i): float(capacity[side, i]) for side in (0, 1) for i in range(engines)})
    many = paths_of([[(int(out), 1.0), (engines + int(there), 1.0)] for out, there in ends], 2 * engines)
    assert max_min(many, capacity.reshape(-1, 1)).rate[:, 0] == pytest.approx([few[flow] for flow in range(flows)], rel=1e-12)


@pytest.mark.parametrize("spines", [32, 8])
def test_ten_thousand_flows_on_16384_endpoints_take_less_than_a_second(spines):
    paths = bench.hashed_flows(spines)
    assert (paths.flows, paths.links) == (10_000, 2 * (16_384 + 512 * spines))
    max_min(paths_of([[(0, 1.0)]], 1), np.ones((1, 1)))  # imports
    start = time.process_time()
    found = max_min(paths, np.ones((paths.links, 1)))
    assert time.process_time() - start < 1.0
    assert (paths.loads(found.rate) <= 1 + 1e-12).all()
    assert (found.bottleneck != NO_LINK).all()


# -------------------------------------------------------------------------------------------- in time


def ended_slowly(routes, capacity, size, start, step):
    """Ends of flows in small steps of time, in each of which the flows that are there share by filling."""
    left, ends, now = list(size), [None] * len(size), 0.0
    while any(end is None for end in ends):
        there = [f for f in range(len(size)) if ends[f] is None and start[f] <= now + 1e-12]
        rate = filled_slowly(routes, capacity, [1.0] * len(size), [1e9] * len(size), there)
        now += step
        for f in there:
            left[f] -= rate[f] * step
            if left[f] <= 0:
                ends[f] = now
    return ends


def test_ends_agree_with_small_steps_of_time():
    routes, capacity = [[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)], [(2, 2.0), (1, 0.5)]], [2.0, 3.0, 1.0]
    size, start = np.array([4.0, 3.0, 5.0, 1.0]), np.array([0.0, 0.5, 1.0, 4.0])
    found = finish_times(paths_of(routes, 3), np.array(capacity), size, start)
    assert found == pytest.approx(ended_slowly(routes, capacity, size, start, 0.01), abs=0.03)


def test_ends_by_hand():
    # Two flows on a link of 1 B/s: 2 B from 0 s, 1 B from 1 s. They share from 1 s to 3 s, when both have sent theirs.
    ways = paths_of([[(0, 1.0)], [(0, 1.0)]], 1)
    assert finish_times(ways, np.ones(1), np.array([2.0, 1.0]), np.array([0.0, 1.0])).tolist() == [3.0, 3.0]
    # Nobody meets: each as alone. A flow over a link of nothing never ends, one of nothing at once.
    assert finish_times(ways, np.ones(1), np.array([2.0, 1.0]), np.array([0.0, 5.0])).tolist() == [2.0, 6.0]
    assert finish_times(ways, np.zeros(1), np.array([2.0, 0.0]), np.array([0.0, 5.0])).tolist() == [np.inf, 5.0]


@pytest.mark.parametrize("seed", range(3))
def test_flows_are_conserved_and_never_end_sooner_than_alone(seed):
    routes, capacity, _, _ = drawn(seed, flows=8, links=5)
    rng, paths = np.random.default_rng(seed), paths_of(routes, 5)
    size, start = rng.uniform(1, 5, 8), rng.uniform(0, 2, 8)
    ends = finish_times(paths, capacity, size, start)
    alone = [start[f] + size[f] * max(amount / capacity[link] for link, amount in routes[f]) for f in range(8)]
    assert (ends >= np.array(alone) * (1 - 1e-12)).all()
    for link in range(5):  # what passed a link fits into the time in which it was used
        users = [f for f in range(8) if link in dict(routes[f])]
        if users:
            passed = sum(size[f] * dict(routes[f])[link] for f in users)
            assert passed <= capacity[link] * (max(ends[users]) - min(start[users])) * (1 + 1e-9)
