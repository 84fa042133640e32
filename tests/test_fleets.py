"""Engines of several speeds, that fail, start and stop, and whose keys and values share links."""

import copy
import functools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_service_events import conversations, poisson, reading, replica, table, through

from crossflow.base.arrays import NumberLists
from crossflow.engine.service import tally as tally_module
from crossflow.engine.service.fleet import EnginePool, Readers, replay, replay_tallied
from crossflow.engine.service.policies import POLICIES, policy_of
from crossflow.engine.service.replayed import covered
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import ROUTERS, router
from crossflow.engine.service.sketch import ERROR, Batches
from crossflow.engine.service.standing import Failures, Scaling, Standing
from crossflow.engine.service.tally import KindTally
from crossflow.engine.service.transfers import Transfers, max_min
from crossflow.workload.requests.record import RequestClass, RequestTrace
from tests import naive_service

SLOW = table(write=lambda n, c: 4 * (0.01 + 1e-4 * n**0.9 + 2e-9 * n * c**1.1), read=lambda n, t, k: 4 * (1e-3 + 1e-5 * t + 1e-10 * t * k))


def pool(trace, engines, route, rates=None, **more):
    rng = np.random.default_rng(0)
    owners = more.pop("owners", None)
    return EnginePool(replicas=tuple(engines), route=router(route, trace, rates or [1.0] * len(engines), rng, owners), **more)


def mixed(route, rates=(4.0, 1.0), trace=None):
    trace = poisson(12.0, 1500) if trace is None else trace
    return replay(trace, pool(trace, [replica(table()), replica(SLOW)], route, rates))


@pytest.mark.cases(1)
@pytest.mark.parametrize("route", ["least_loaded", "two_choices", "prefix", "length"])
def test_engines_get_as_much_as_they_can_do(route):
    blind, seeing = mixed(route, (1.0, 1.0)), mixed(route)
    fast = [float((found.where == 0).mean()) for found in (blind, seeing)]
    assert fast[1] > fast[0]
    assert np.nanmean(seeing.times["e2e"]) < np.nanmean(blind.times["e2e"])
    if route == "length":  # tokens in proportion to rates
        tokens = [seeing.prompt[seeing.where == i].sum() for i in (0, 1)]
        assert tokens[0] / sum(tokens) == pytest.approx(0.8, abs=0.02)


@pytest.mark.cases(1)
@pytest.mark.parametrize("route", ROUTERS)
def test_rates_that_are_alike_change_nothing(route):
    one, two = (mixed(route, rates) for rates in ((1.0, 1.0), (0.37, 0.37)))
    assert one.where.tolist() == two.where.tolist()
    assert one.last.tobytes() == two.last.tobytes()


def test_a_class_that_owns_engines_has_them_for_itself():
    rng, count = np.random.default_rng(0), 300
    classes = tuple(RequestClass(name=name) for name in "abc")
    trace = RequestTrace.of(
        np.arange(count) * 0.1, np.full(count, 100), np.full(count, 20), kind=rng.integers(0, 3, count), classes=classes
    )
    found = replay(trace, pool(trace, [replica(table()) for _ in range(4)], "class", owners={"b": [2, 3]}))
    assert set(found.where[found.kind == 1]) <= {2, 3}
    assert set(found.where[found.kind != 1]) == {0, 1}


def test_a_request_goes_where_it_has_room():
    trace = RequestTrace.of(np.arange(4.0), np.array([100, 3000, 100, 3000]), np.full(4, 5))
    found = replay(trace, pool(trace, [replica(table(), pages=50), replica(table())], "round_robin"))
    assert not found.dropped.any()
    assert found.where[[1, 3]].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------ keys and values


def naive_transfers(flows, senders, receivers, step=1e-4):
    """Ends of flows (begin, sender, receiver, tokens), in small steps of time, each with rates filled up link by link."""
    left, ends, now = [float(tokens) for *_, tokens in flows], [None] * len(flows), 0.0
    while any(end is None for end in ends):
        there = [i for i, (begin, *_) in enumerate(flows) if begin <= now and ends[i] is None]
        rates, grow = dict.fromkeys(there, 0.0), set(there)
        room = {("s", i): 1 / t for i, t in enumerate(senders)} | {("r", i): 1 / t for i, t in enumerate(receivers)}
        while grow:
            users = {link: [i for i in grow if link in (("s", flows[i][1]), ("r", flows[i][2]))] for link in room}
            more = min(room[link] / len(mine) for link, mine in users.items() if mine)
            full = {link for link, mine in users.items() if mine and room[link] / len(mine) <= more * (1 + 1e-9)}
            for i in grow:
                rates[i] += more
            room = {link: left_ - more * len(users[link]) for link, left_ in room.items()}
            grow = {i for i in grow if not any(i in users[link] for link in full)}
        for i in there:
            left[i] -= rates[i] * step
            if left[i] <= 0:
                ends[i] = now + step
        now += step
    return ends


def all_ends(flows, senders, receivers):
    wires, ends = Transfers(senders, receivers), [None] * len(flows)
    order = sorted(range(len(flows)), key=lambda i: flows[i][0])
    while order or wires.paths:
        if order and flows[order[0]][0] <= wires.ends:
            i = order.pop(0)
            wires.begin(i, *flows[i][1:], flows[i][0])
        else:
            now = wires.ends
            ends[wires.end()] = now
    return ends


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_flows_share_links_as_in_small_steps(seed):
    rng = np.random.default_rng(seed)
    flows = [(float(rng.uniform(0, 1)), int(rng.integers(2)), int(rng.integers(3)), int(rng.integers(50, 400))) for _ in range(9)]
    senders, receivers = [1e-3, 2e-3], [1e-3, 3e-3, 5e-4]
    assert all_ends(flows, senders, receivers) == pytest.approx(naive_transfers(flows, senders, receivers), abs=3e-3)


def test_no_link_carries_more_than_it_can_and_none_that_is_asked_idles():
    rng = np.random.default_rng(1)
    for _ in range(50):
        paths = {i: ((0, int(rng.integers(4))), (1, int(rng.integers(4)))) for i in range(int(rng.integers(1, 12)))}
        capacity = {(side, i): float(rng.uniform(0.5, 3)) for side in (0, 1) for i in range(4)}
        rates = max_min(paths, capacity)
        used = {link: sum(rate for i, rate in rates.items() if link in paths[i]) for link in capacity}
        assert all(used[link] <= capacity[link] * (1 + 1e-9) for link in capacity)
        # Every flow has a full link on which no other flow is faster: the definition of max-min.
        for i, path in paths.items():
            assert any(
                used[link] >= capacity[link] * (1 - 1e-9) and all(rates[j] <= rates[i] * (1 + 1e-9) for j in paths if link in paths[j])
                for link in path
            )


def test_a_transfer_by_itself_takes_the_time_of_its_bytes():
    trace = RequestTrace.of(np.arange(40) * 5.0, np.arange(1, 41) * 20, np.full(40, 5))
    slow, fast = (through(trace, replica(table(), reads=False), readers=reading(each)) for each in (1e-4, 0.0))
    assert slow.times["ttft"] - fast.times["ttft"] == pytest.approx(1e-4 * trace.prompt)


def test_steps_of_an_engine_take_their_share_of_a_link_from_then_on():
    """1,000 tokens at a millisecond each: 400 pass before steps take half of the link; 300 of the rest in 0.6 s, the others as before."""
    wires = Transfers([1e-3], [0.0])
    wires.begin(0, 0, 0, 1000, 0.0)
    assert wires.ends == pytest.approx(1.0)
    wires.take({(0, 0): 0.5}, 0.4)
    assert wires.ends == pytest.approx(0.4 + 600 * 2e-3)
    wires.take({(0, 0): 0.5}, 0.7)
    assert wires.ends == pytest.approx(0.4 + 600 * 2e-3)
    wires.take({}, 1.0)
    assert wires.ends == pytest.approx(1.0 + 300 * 1e-3)


class Holding(list):
    """A cache that has so many tokens of every prompt."""

    def __init__(self, hits):
        super().__init__()
        self.hits = hits

    def begins(self, chain):
        return self.hits > 0

    def found(self, chain):
        return self.hits, chain


@pytest.mark.parametrize(("load", "taken"), [(2, 0), (3, 0), (4, 1)])
def test_a_prefix_decides_up_to_half_more_work_than_the_emptiest_engine_has_with_one_more(load, taken):
    """The emptiest has 1: an engine that has the prefix is taken up to 1.5 (1 + 1) = 3."""
    counts = [load, 1]
    engines = [SimpleNamespace(loads=SimpleNamespace(counts=counts), cache=Holding(hits)) for hits in (5, 0)]
    route = router("prefix", poisson(1.0, 2), [1.0, 1.0], np.random.default_rng(0), None)
    assert route(engines, SimpleNamespace(chain=(1, 2)), [0, 1]) == taken


def test_the_slower_of_both_links_decides():
    trace = RequestTrace.of(np.arange(40) * 5.0, np.full(40, 200), np.full(40, 5))

    def ttft(each, received):
        readers = Readers(pool=pool(trace, [replica(table(), writes=False)], "round_robin"), fixed=0.01, each=each)
        return replay(trace, pool(trace, [replica(table(), reads=False)], "round_robin", received=(received,)), readers).times["ttft"]

    assert ttft(1e-4, 5e-4) == pytest.approx(ttft(5e-4, 1e-4))
    assert ttft(1e-4, 5e-4)[0] - ttft(1e-4, 0.0)[0] == pytest.approx(200 * 4e-4)


def test_prompts_that_end_together_wait_for_the_link():
    """Two prompts from two readers to one writer take twice as long, to two writers no longer."""
    trace = RequestTrace.of(np.zeros(2), np.full(2, 200), np.full(2, 5))

    def last(writers):
        readers = Readers(pool=pool(trace, [replica(table(), writes=False) for _ in range(2)], "round_robin"), each=1e-4)
        found = replay(
            trace, pool(trace, [replica(table(), reads=False) for _ in range(writers)], "round_robin", received=(1e-3,) * writers), readers
        )
        return found.first[0]

    assert last(1) - last(2) == pytest.approx(0.2)


def test_keys_and_values_are_conserved_under_contention():
    trace = poisson(60.0, 400)
    readers = Readers(pool=pool(trace, [replica(table(), writes=False) for _ in range(4)], "least_loaded"), fixed=0.001, each=1e-4)
    found = replay(trace, pool(trace, [replica(table(), reads=False) for _ in range(2)], "least_loaded", received=(1e-4, 1e-4)), readers)
    assert np.isfinite(found.last).all()
    assert sum(jumps.tokens.sum() for jumps in found.jumps[:4]) == trace.prompt.sum()
    written = sum(float((jumps.steps * jumps.writers).sum()) for jumps in found.jumps)
    assert written + len(trace) == trace.output.sum()


# ------------------------------------------------------------------------------------------ failures


@dataclass(frozen=True, kw_only=True)
class Planned(Failures):
    """A failure of the first engine, so long after the first arrival."""

    at: float

    def draws(self, engine):
        times = iter([self.at if engine == 0 else 1e12])
        return lambda: next(times, 1e12)


def failing(trace, engines=1, keeps=True, at=5.0, repair=3.0, kind="vllm", route="least_loaded", **limits):
    made = [replica(table(), kind, **limits) for _ in range(engines)]
    return replay(trace, pool(trace, made, route), failures=Planned(mean_time=1.0, repair=repair, keeps_output=keeps, at=at)), made


def naive_failure(trace, engine, at, repair, keeps):
    """A failure in the simulator of single steps: the step that runs is lost, with the cache."""
    items = [naive_service.Item(i, *each) for i, each in enumerate(zip(trace.arrival, trace.prompt, trace.output, strict=True))]
    turn, now, failed = 0, 0.0, False
    while turn < len(items) or engine.waiting or engine.running:
        while turn < len(items) and items[turn].arrival <= now:
            engine.waiting.append(items[turn])
            turn += 1
        before = copy.deepcopy((items, engine)) if not failed else None
        end = engine.step(now)
        upcoming = items[turn].arrival if end is None else end
        if not failed and upcoming > at:
            items, engine = before
            failed, now = True, at + repair
            there = sorted([*engine.running, *engine.waiting], key=lambda item: item.index)
            there += [item for item in items[turn:] if item.arrival <= at]
            for item in there:
                item.cached = 0
                item.wrote = item.wrote if keeps else 0
                item.first = item.first if keeps else None
                item.need = item.prompt + item.wrote
            turn = turn + sum(item.arrival <= at for item in items[turn:])
            engine.waiting, engine.running, engine.full = there, [], False
            continue
        now = upcoming
    return items


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("keeps", [True, False])
def test_a_failure_is_that_of_single_steps(keeps):
    trace = poisson(6.0, 120)
    limits = {"chunk": 512, "requests": 64, "pages": 10**5, "page": 16}
    found, _ = failing(trace, keeps=keeps, at=5.003, **limits)
    items = naive_failure(trace, naive_service.Naive(table(), "vllm", **limits), trace.arrival[0] + 5.003, 3.0, keeps)
    assert found.first == pytest.approx([item.first for item in items], rel=1e-9)
    assert found.last == pytest.approx([item.last for item in items], rel=1e-9)
    assert found.moved.sum() > 3


@pytest.mark.parametrize("keeps", [True, False])
def test_failures_lose_no_request(keeps):
    trace = poisson(10.0, 800)
    made = [replica(table()) for _ in range(3)]
    found = replay(trace, pool(trace, made, "least_loaded"), failures=Failures(mean_time=20.0, repair=4.0, keeps_output=keeps, seed=3))
    assert np.isfinite(found.last).all()
    assert found.moved.sum() > 10
    assert found.lost > 0
    assert found.area == pytest.approx(np.nansum(found.times["e2e"]), rel=1e-9)  # Little's law: always one of them was up here
    written = sum(float((jumps.steps * jumps.writers).sum()) for jumps in found.jumps)
    if keeps:
        again = found.evicted.sum()  # each of which has a token from being read again, where it had come to writing
        assert trace.output.sum() - len(trace) - again <= written <= trace.output.sum() - len(trace)
        assert found.gaps.sum() == trace.output.sum() - len(trace)
        assert found.gap @ found.gaps == pytest.approx((found.last - found.first).sum(), rel=1e-9)
    for each in made:
        assert (each.pages, each.load, each.context, each.left, each.writers, sum(each.phases)) == (0,) * 6


@pytest.mark.parametrize("kind", POLICIES)
def test_failures_lose_no_request_that_waits_aside_or_by_priority(kind, monkeypatch):
    """Engines that fail while requests wait in a heap, or for blocks of further tiers."""
    waited, clear = [], Replica._clear
    monkeypatch.setattr(Replica, "_clear", lambda each: (waited.extend(each.fetching), clear(each)))
    trace, steps = conversations(150, 3, think=10.0, rate=2.0), table(read=lambda n, t, k: 1e-3 * t + 0.0 * n * k)
    trace = replace(trace, kind=np.arange(len(trace)) % 2, classes=(RequestClass(name="a"), RequestClass(name="b", priority=1)))
    policy = policy_of(kind, "written", "priority")
    made = [replica(steps, policy, block=4, pages=200, beyond=(4000,), fetch=(0.012,)) for _ in range(2)]
    found = replay(trace, pool(trace, made, "least_loaded"), failures=Failures(mean_time=25.0, repair=1.0, keeps_output=True, seed=3))
    assert np.isfinite(found.last).all()
    assert found.moved.sum() > 5
    for each in made:
        assert (each.pages, each.load, each.context, each.left, each.writers, len(each.fetching), len(each.waiting)) == (0,) * 7
    assert bool(waited) == (kind == "vllm")


def test_failures_that_do_not_come_change_nothing():
    trace = poisson(10.0, 300)
    plain = through(trace, replica(table()), replica(table()))
    made = [replica(table()) for _ in range(2)]
    rare = replay(trace, pool(trace, made, "round_robin"), failures=Failures(mean_time=1e15, repair=1.0))
    assert plain.last.tobytes() == rare.last.tobytes()


def test_engines_are_up_for_their_share_of_time():
    """A renewal process: mean time between failures over that and the repair (Barlow and Proschan, 1975, Sec. 7.2)."""
    trace = RequestTrace.of(np.arange(2000) * 5.0, np.full(2000, 10), np.full(2000, 2))
    found = replay(trace, pool(trace, [replica(table()) for _ in range(4)], "round_robin"), failures=Failures(mean_time=30.0, repair=10.0))
    assert 1.0 - found.broken_shares.mean() == pytest.approx(0.75, abs=0.02)


def test_an_empty_cache_follows_a_failure():
    trace = RequestTrace.of(
        np.array([0.0, 2.0, 20.0, 22.0]), np.full(4, 193), np.full(4, 2), block=64,
        blocks=NumberLists.of(np.repeat(np.arange(4), 3), [1, 2, 3] * 4, 4),
    )  # fmt: skip
    made = [replica(table(), block=4)]
    found = replay(trace, pool(trace, made, "round_robin"), failures=Planned(mean_time=1.0, repair=1.0, at=10.0))
    assert found.hits.tolist() == [0, 192, 0, 192]


@pytest.mark.parametrize("place", [0, 1])
def test_readers_and_writers_may_fail(place):
    trace = poisson(30.0, 600)

    class OfOne(Planned):
        def draws(self, engine):
            return Planned.draws(self, 0 if engine == place else 9)

    readers = Readers(pool=pool(trace, [replica(table(), writes=False)], "round_robin"), fixed=0.001, each=1e-5)
    writers = pool(trace, [replica(table(), reads=False), replica(table(), reads=False)], "least_loaded")
    found = replay(trace, writers, readers, OfOne(mean_time=1.0, repair=5.0, at=9.999))
    assert np.isfinite(found.last).all()
    assert (found.jumps[1].tokens.sum() + found.jumps[2].tokens.sum() > 0) == (place == 1)  # a writer that failed has them read again


@dataclass(frozen=True, kw_only=True)
class Never(Failures):
    """No failure; whose failures are drawn is kept."""

    asked: list = field(default_factory=list)

    def draws(self, engine):
        self.asked.append(engine)
        return lambda: 1e12


@pytest.mark.parametrize("writers", [1, 3])
def test_failures_of_each_engine_are_its_own(writers):
    """Readers and writers are counted through, so that no two engines draw the same times."""
    trace, failures = poisson(10.0, 20), Never(mean_time=1.0, repair=1.0)
    readers = Readers(pool=pool(trace, [replica(table(), writes=False) for _ in range(2)], "round_robin"), each=1e-5)
    replay(trace, pool(trace, [replica(table(), reads=False) for _ in range(writers)], "round_robin"), readers, failures)
    assert sorted(failures.asked) == list(range(2 + writers))
    drawn = [Failures(mean_time=1.0, repair=1.0).draws(engine)() for engine in range(4)]
    assert len(set(drawn)) == 4


# ------------------------------------------------------------------------------------------ engines that start and stop


def scaled(trace, engines=4, **more):
    scaling = {
        "most": engines,
        "least": 1,
        "start": 2.0,
        "signal": "load",
        "up": 6.0,
        "down": 2.0,
        "interval": 0.5,
        "cooldown": 1.0,
        **more,
    }
    return replay(trace, pool(trace, [replica(table()) for _ in range(engines)], "least_loaded", scaling=Scaling(**scaling)))


def test_as_many_at_least_as_at_most_is_a_fixed_fleet():
    trace = poisson(20.0, 500)
    fixed = through(trace, *(replica(table()) for _ in range(4)), route="least_loaded")
    found = scaled(trace, least=4)
    assert found.last.tobytes() == fixed.last.tobytes()
    assert found.paid_shares.tolist() == fixed.paid_shares.tolist() == [1.0] * 4


def wave():
    """Few requests, then many, then few."""
    gaps = np.concatenate([np.full(20, 1.0), np.full(900, 0.02), np.full(40, 1.0)])
    return RequestTrace.of(np.cumsum(gaps), np.full(len(gaps), 200), np.full(len(gaps), 60))


@pytest.mark.parametrize("signal", ["load", "waiting"])
def test_engines_come_with_the_load_and_go_with_it(signal):
    trace = wave()
    found = scaled(trace, signal=signal, interval=0.47, **({"up": 0.5, "down": 0.1} if signal == "waiting" else {}))
    shares, window = found.paid_shares, found.window
    assert np.isfinite(found.last).all()
    assert shares[0] == 1.0
    assert 0.0 < shares[1:].sum() < 3.0
    spans = np.concatenate(found.paid[1:])
    assert (spans[:, 0] > trace.arrival[19]).all()  # nothing starts before the wave
    for i, mine in enumerate(found.paid):  # an engine works only while it is paid for, and not while it starts
        for begun, ended in zip(found.jumps[i].begun, found.jumps[i].ended, strict=True):
            assert any(start + (2.0 if np.isfinite(start) else 0.0) <= begun and ended <= stop for start, stop in mine)
    assert covered(np.concatenate(found.paid), window) == pytest.approx(shares.sum())


def test_engines_that_write_come_and_go_behind_one_that_reads():
    """Each is paid for while it works, and the first for the whole time."""
    trace = wave()
    scaling = Scaling(most=2, least=1, start=2.0, signal="load", up=6.0, down=2.0, interval=0.5)
    readers = Readers(pool=pool(trace, [replica(table(), writes=False)], "round_robin"), each=1e-5)
    found = replay(trace, pool(trace, [replica(table(), reads=False) for _ in range(2)], "least_loaded", scaling=scaling), readers)
    assert np.isfinite(found.last).all()
    assert found.paid_shares[:2].tolist() == [1.0, 1.0]
    assert 0.0 < found.paid_shares[2] < 1.0
    for begun, ended in zip(found.jumps[2].begun, found.jumps[2].ended, strict=True):
        assert any(start + 2.0 <= begun and ended <= stop for start, stop in found.paid[2])


@pytest.mark.parametrize("others", [0, 1])
def test_the_only_engine_that_has_started_goes_where_others_take_requests(others):
    """The load falls while a second engine starts: the first goes if an engine that always runs is left to take requests."""
    scaling = Scaling(most=2, least=1, start=2.0, signal="load", up=6.0, down=2.0, interval=0.5)
    standing = Standing([replica(table()) for _ in range(2 + others)], scaling)
    before = list(standing.up)
    assert before == [0, 2][: 1 + others]
    assert standing.look(1.0, held=7) == 1
    assert standing.look(2.0, held=0) is None
    assert list(standing.up) == before[others:]


def test_a_start_that_takes_longer_makes_requests_wait():
    trace = wave()
    slow, fast = (np.nanmean(scaled(trace, start=start).times["e2e"]) for start in (15.0, 0.0))
    assert slow > fast


def test_a_cooldown_makes_changes_rarer():
    trace = poisson(16.0, 1500)
    often, rare = (sum(len(spans) for spans in scaled(trace, cooldown=cooldown).paid) for cooldown in (0.0, 30.0))
    assert rare < often


def test_an_engine_that_fails_is_replaced():
    trace = RequestTrace.of(np.arange(400) * 0.1, np.full(400, 100), np.full(400, 20))
    scaling = Scaling(most=2, least=1, start=1.0, signal="load", up=1e9, down=0.0, interval=0.5)
    made = [replica(table()) for _ in range(2)]
    found = replay(trace, pool(trace, made, "round_robin", scaling=scaling), failures=Planned(mean_time=1.0, repair=1e6, at=10.0))
    assert np.isfinite(found.last).all()
    assert 11.0 <= found.jumps[1].begun[0] <= 11.6


# ------------------------------------------------------------------------------------------ running statistics


def tallied(trace, made, route="round_robin", **more):
    kinds = [KindTally(engines=len(made), energy_of=lambda *rows: table().energy(*rows[:4]))]
    return replay_tallied(trace, pool(trace, made, route), None, more.get("failures"), kinds).tally


@pytest.mark.cases(4)
@pytest.mark.parametrize("route", ROUTERS)
def test_running_statistics_are_those_of_all_requests(route, monkeypatch):
    monkeypatch.setattr(tally_module, "EACH", 70)
    trace = poisson(20.0, 900)
    whole = through(trace, *(replica(table()) for _ in range(3)), route=route)
    found = tallied(trace, [replica(table()) for _ in range(3)], route)
    (kind,) = found.kinds
    assert (found.count, found.answered, found.outputs) == (900, 900, trace.output.sum())
    assert kind.busy.tolist() == pytest.approx([jumps.busy for jumps in whole.jumps])
    assert kind.steps == sum(jumps.steps.sum() for jumps in whole.jumps)
    assert kind.read == trace.prompt.sum()
    for name, values in whole.times.items():
        exact = np.sort(values[np.isfinite(values)])
        assert found.times[name].all.mean == pytest.approx(exact.mean())
        for share in (0.5, 0.9, 0.99):
            assert found.times[name].all.quantile(share) == pytest.approx(exact[int(np.ceil(share * len(exact))) - 1], rel=1.001 * ERROR)
    assert found.gaps.total == whole.gaps.sum()


def test_running_statistics_count_what_gave_way_and_what_was_dropped():
    trace, made = poisson(30.0, 300), functools.partial(replica, table(), pages=110)
    found, whole = tallied(trace, [made()]), through(trace, made())
    assert whole.evicted.sum() > 0
    assert (found.evicted, found.moved, found.answered) == (whole.evicted.sum(), 0, np.isfinite(whole.last).sum())
    assert found.hits == whole.hits.sum()
    assert found.waits == pytest.approx((whole.begun - whole.arrival).sum() + whole.waited.sum())


def _most_at_once(found):
    """Requests between arrival and admission at once, at most, of those that are not admitted as they arrive."""
    late = found.begun > found.arrival
    times = np.concatenate([found.arrival[late], found.begun[late]])
    change = np.repeat([1, -1], late.sum())
    return np.cumsum(change[np.lexsort((-change, times))]).max()


@pytest.mark.parametrize("engines", [1, 3])
def test_the_longest_queue_is_of_all_engines_together(engines):
    """As times of requests say, and of one engine as its jumps do; no shorter than the mean one."""
    trace, made = poisson(60.0, 300), functools.partial(replica, table(), requests=4)
    found = through(trace, *(made() for _ in range(engines)), route="round_robin")
    begin, end = found.window
    each = [jumps.queue.max() for jumps in found.jumps]
    assert found.peak_queue == _most_at_once(found) > 20
    assert found.peak_queue == each[0] if engines == 1 else max(each) < found.peak_queue <= sum(each)
    assert found.waits.sum() / (end - begin) <= found.peak_queue
    kinds = [KindTally(engines=engines, energy_of=lambda *rows: table().energy(*rows[:4]))]
    stream = replay_tallied(trace, pool(trace, [made() for _ in range(engines)], "round_robin"), None, None, kinds)
    assert stream.peak_queue == found.peak_queue
    alone = through(poisson(1.0, 1), made(), route="round_robin")
    assert alone.peak_queue == alone.jumps[0].queue.max() == 0


def test_running_statistics_keep_no_requests():
    trace, made = poisson(50.0, 5000), [replica(table()) for _ in range(2)]
    tallied(trace, made)
    assert all(len(one.running) < 400 and not one.trail.rows and not one.finishing for one in made)


def test_batches_stay_few_and_lose_nothing():
    batches, values = Batches(5, 10), np.random.default_rng(0).exponential(1.0, 12_345)
    for some in np.split(values, [7, 100, 5000]):
        batches.add(some)
    assert 5 <= len(batches.whole) < 10
    assert batches.all.total == len(values)
    assert batches.all.mean == pytest.approx(values.mean())
    sizes = {one.total for one in batches.whole}
    assert sizes == {batches.size}
