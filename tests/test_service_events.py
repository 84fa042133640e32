"""Services by events: jumps against single steps, limits of queueing theory, conservation."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from sampled import fewer

from crossflow.base.arrays import NumberLists
from crossflow.engine.service.cache import PrefixCache
from crossflow.engine.service.fleet import EnginePool, Readers, replay
from crossflow.engine.service.loads import PoolLoads
from crossflow.engine.service.policies import POLICIES, policy_of
from crossflow.engine.service.replica import Replica
from crossflow.engine.service.routers import ROUTERS, router
from crossflow.engine.service.runs import TraceRuns
from crossflow.engine.service.standing import Failures
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import Limits
from crossflow.engine.service.transfers import Transfers
from crossflow.workload.requests.record import RequestClass, RequestTrace
from tests import naive_service


def table(write=lambda n, c: 0.01 + 1e-4 * n**0.9 + 2e-9 * n * c**1.1, read=lambda n, t, k: 1e-3 + 1e-5 * t + 1e-10 * t * k, graphs=()):
    axes = (
        np.array([0.0, 1, 8, 64, 256, 1024]),
        np.array([1.0, 300, 1024, 8192, 65536]),
        np.array([1.0, 256, 2048, 8192]),
        np.array([1.0, 1024, 8192]),
    )
    n, c, t, k = axes
    writing = np.broadcast_to(write(n[:, None], c), (len(n), len(c))) + 0.0
    reading = np.broadcast_to(read(n[:, None, None], t[:, None], k), (len(n), len(t), len(k))) + 0.0
    return StepTable(
        requests=n, context=c, tokens=t, keys=k, writing=writing, reading=reading, writing_energy=100.0 * writing,
        reading_energy=100.0 * reading, graphs=graphs,
    )  # fmt: skip


def replica(steps, policy="vllm", *, pages=10**6, block=1, beyond=(), **limits):
    policy = policy if not isinstance(policy, str) else POLICIES[policy]
    own = {"chunk": 2048, "requests": 64, "page": 16, **limits}
    return Replica(steps, Limits(pages=pages, **own), policy, PrefixCache(block, beyond))


def through(trace, *replicas, route="round_robin", readers=None):
    return replay(
        trace, EnginePool(replicas=replicas, route=router(route, trace, [1.0] * len(replicas), np.random.default_rng(0))), readers
    )


def poisson(rate, count, prompt=200, output=50, seed=0):
    """Requests that arrive at random, with random lengths around the means."""
    rng = np.random.default_rng(seed)
    return RequestTrace.of(
        np.cumsum(rng.exponential(1.0 / rate, count)), rng.geometric(1 / prompt, count), rng.geometric(1 / output, count)
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(("rate", "pages", "requests"), [(2.0, 10**6, 64), (12.0, 150, 64), (40.0, 400, 16), (30.0, 110, 64)])
def test_jumps_are_what_single_steps_are(kind, whole, rate, pages, requests):
    trace, steps = poisson(rate, 400), table()
    limits = {"chunk": 512 if kind != "tensorrt-llm" else 2048, "requests": requests, "pages": pages, "page": 16}
    found = through(trace, replica(steps, policy_of(kind, "whole" if whole else "written"), **limits))
    items, single = naive_service.run(trace, naive_service.Naive(steps, kind, whole=whole, **limits))
    assert found.first == pytest.approx([each.first for each in items], rel=1e-9)
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.evicted.tolist() == [each.evicted for each in items]
    (jumps,) = found.jumps
    assert jumps.steps.sum() == single
    if pages > 10**5:
        assert len(jumps.steps) < 0.3 * single
    elif not whole and rate > 20 and pages < 200:
        assert found.evicted.sum() > 3  # the case is one of a cache that is too small


@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(("pace", "page", "pages"), [(2.533, 16, 10**6), (2.533, 16, 150), (3.0, 1, 2000), (1.3, 4, 500)])
def test_jumps_with_speculation_are_what_single_steps_are(kind, pace, page, pages):
    """Every step gives each request the mean number of tokens in whole ones; the last may give more than were asked for."""
    trace, steps = poisson(40.0, 200), table()
    limits = {"chunk": 512 if kind != "tensorrt-llm" else 2048, "requests": 64, "pages": pages, "page": page, "pace": pace}
    found = through(trace, replica(steps, kind, **limits))
    items, single = naive_service.run(trace, naive_service.Naive(steps, kind, **limits))
    assert not found.dropped.any()
    assert found.first == pytest.approx([each.first for each in items], rel=1e-9)
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.evicted.tolist() == [each.evicted for each in items]
    (jumps,) = found.jumps
    assert jumps.steps.sum() == single
    assert found.evicted.any() == (pages < 10**6) or kind == "sglang"
    # With a prompt comes a token, and with one that is read again, unless it was evicted before its end.
    assert trace.output.sum() - len(trace) - found.evicted.sum() <= jumps.wrote.sum() <= trace.output.sum() - len(trace)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("rate", [4.0, 20.0])
def test_the_mean_number_of_guesses_stands_for_guesses_that_are_right_at_random(rate):
    """First tokens, and times per token: a step that reads a prompt computes all guesses of those that write, and is as long as that."""
    rng, count, acceptance = np.random.default_rng(3), 500, (0.8, 0.7, 0.6)
    trace = RequestTrace.of(np.cumsum(rng.exponential(1 / rate, count)), np.full(count, 600), np.full(count, 101))
    limits = {"chunk": 2048, "requests": 64, "pages": 10**6, "page": 16}
    steps, pace = table(), 1.0 + float(np.cumprod(acceptance).sum())

    def accepted():
        return 1 + int(np.cumprod(rng.random(3) < acceptance).sum())

    found = through(trace, replica(steps, pace=pace, **limits))
    items, _ = naive_service.run(trace, naive_service.Naive(steps, "vllm", draw=accepted, **limits))
    first, last = (np.array([getattr(each, name) for each in items]) for name in ("first", "last"))
    assert found.times["ttft"].mean() == pytest.approx((first - trace.arrival).mean(), rel=0.02)
    assert found.times["tpot"].mean() == pytest.approx(((last - first) / 100.0).mean(), rel=0.02)


def ranked(rate, count, priorities=(0, 5), **more):
    """Requests that arrive at random, of classes with these priorities in turn."""
    trace = poisson(rate, count, **more)
    classes = tuple(RequestClass(name=str(each), priority=each) for each in priorities)
    return replace(trace, kind=np.random.default_rng(9).integers(0, len(classes), count), classes=classes)


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(("rate", "pages", "requests", "chunk"), [(12.0, 150, 64, 2048), (40.0, 400, 16, 2048), (30.0, 110, 64, 128)])
def test_jumps_with_priorities_are_what_single_steps_are(kind, rate, pages, requests, chunk):
    trace, steps = ranked(rate, 400, (0, 5, -1)), table()
    limits = {"chunk": chunk if kind != "tensorrt-llm" else 2048, "requests": requests, "pages": pages, "page": 16}
    found = through(trace, replica(steps, policy_of(kind, "written", "priority"), **limits))
    items, single = naive_service.run(trace, naive_service.Naive(steps, kind, ranked=True, **limits))
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.evicted.tolist() == [each.evicted for each in items]
    assert found.jumps[0].steps.sum() == single
    assert found.last.tolist() != through(trace, replica(steps, kind, **limits)).last.tolist()


@pytest.mark.parametrize("beside", [False, True])
def test_jumps_with_masks_are_what_single_steps_are(beside):
    steps = replace(table(), **{"beside" if beside else "before": (1e-3, 3e-3)})
    trace = poisson(12.0, 150)
    found = through(trace, replica(steps, "sglang"))
    before = through(trace, replica(table(), "sglang"))
    naive = naive_service.Naive(steps, "sglang", chunk=2048, requests=64, pages=10**6, page=16)
    items, _ = naive_service.run(trace, naive)
    # Kinks of times lie on the points of the table where masks pass beside.
    assert found.last == pytest.approx(np.array([item.last for item in items]), rel=1e-3 if beside else 1e-9)
    assert (found.last - found.arrival).mean() > 1.1 * (before.last - before.arrival).mean()


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(
    ("rate", "pages", "requests", "pace"), [(2.0, 10**6, 64, 1.0), (12.0, 150, 64, 1.0), (40.0, 400, 16, 1.0), (12.0, 150, 64, 2.533)]
)
def test_jumps_of_steps_that_are_scheduled_ahead_are_what_single_steps_are(kind, rate, pages, requests, pace):
    trace, steps = poisson(rate, 100), table()
    limits = {"chunk": 512 if kind != "tensorrt-llm" else 2048, "requests": requests, "pages": pages, "page": 16, "pace": pace}
    found = through(trace, replica(steps, kind, ahead=True, **limits))
    items, single = naive_service.run(trace, naive_service.Naive(steps, kind, ahead=True, **limits))
    assert found.first == pytest.approx([each.first for each in items], rel=1e-9)
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.evicted.tolist() == [each.evicted for each in items]
    assert found.jumps[0].steps.sum() == single
    if pages > 10**5:
        assert len(found.jumps[0].steps) < 0.4 * single


def test_a_request_that_comes_in_a_step_is_read_in_the_one_after_the_next():
    """Steps of 10 ms: one that comes 1 ms after the third begins is read in the fifth, or in the fourth."""
    steps = table(write=lambda n, c: 0.01 + 0.0 * n * c, read=lambda n, t, k: 0.0 * n * t * k)
    trace = RequestTrace.of(np.array([0.0, 0.021]), np.array([100, 100]), np.array([50, 3]))
    late, soon = (through(trace, replica(steps, ahead=ahead)) for ahead in (True, False))
    assert (soon.first[1], late.first[1]) == (pytest.approx(0.04), pytest.approx(0.05))
    assert late.last[0] == soon.last[0] == pytest.approx(0.5)


def test_an_end_is_known_one_step_late():
    """Of a place for one the next request begins when the step behind the last one is over, if another is there to run it."""
    steps = table(write=lambda n, c: 0.01 * n + 0.0 * c, read=lambda n, t, k: 0.01 + 0.0 * n * t * k)
    trace = RequestTrace.of(np.zeros(3), np.full(3, 10), np.array([3, 9, 2]))
    late, soon = (through(trace, replica(steps, ahead=ahead, requests=2)) for ahead in (True, False))
    assert soon.begun[2] == soon.last[0] == late.last[0]
    assert late.begun[2] == pytest.approx(late.last[0] + 0.02)  # a step of two, one of them in vain
    alone = through(trace.at(np.array([0, 2])), replica(steps, ahead=True, requests=1))
    assert alone.begun[1] == alone.last[0]  # nothing is computed in vain alone


@pytest.mark.parametrize("kind", POLICIES)
def test_engines_that_schedule_ahead_lose_nothing_where_they_fail(kind):
    trace, failures = poisson(20.0, 150), Failures(mean_time=1.0, repair=0.3, keeps_output=True, seed=2)
    engines = [replica(table(), kind, pages=160, requests=16, ahead=True) for _ in range(2)]
    found = replay(
        trace, EnginePool(replicas=tuple(engines), route=router("round_robin", trace, [1.0] * 2, np.random.default_rng(0))), None, failures
    )
    assert found.moved.sum() > 3
    assert np.isfinite(found.last[~found.dropped]).all()
    for each in engines:
        assert (each.pages, each.load, each.context, each.left, each.writers, sum(each.phases), each.queued) == (0,) * 7


def test_one_priority_is_the_order_of_arrival():
    for kind in ("vllm", "tensorrt-llm"):  # in SGLang one that was retracted waits behind all others else
        trace = poisson(30.0, 300)
        found = [through(trace, replica(table(), policy_of(kind, "written", order), pages=200)) for order in ("arrival", "priority")]
        assert found[0].last.tobytes() == found[1].last.tobytes()


@pytest.mark.thorough
def test_the_first_of_a_queue_waits_as_if_it_were_alone():
    """Cobham's waits of two classes without preemption, equal services (Kleinrock, vol. 2, Eq. 3.31)."""
    service, load, rng, count = 0.1, 0.8, np.random.default_rng(0), 100_000
    trace = replace(
        RequestTrace.of(np.cumsum(rng.exponential(service / load, count)), np.full(count, 1000), np.ones(count)),
        kind=rng.integers(0, 2, count), classes=(RequestClass(name="late"), RequestClass(name="soon", priority=1)),
    )  # fmt: skip
    steps = table(write=lambda n, c: 0.0 * n * c, read=lambda n, t, k: service * t / 1000.0 + 0.0 * n * k)
    found = through(trace, replica(steps, policy_of("vllm", "written", "priority"), requests=1, chunk=10**6))
    waited, rest = found.begun - found.arrival, load * service / 2.0
    assert waited[trace.kind == 1].mean() == pytest.approx(rest / (1.0 - load / 2.0), rel=0.03)
    assert waited[trace.kind == 0].mean() == pytest.approx(rest / (1.0 - load / 2.0) / (1.0 - load), rel=0.05)


def test_those_of_small_priority_give_way_first():
    trace = ranked(30.0, 400)
    plain, first = (through(trace, replica(table(), policy_of("vllm", "written", order), pages=160)) for order in ("arrival", "priority"))
    shares = [each.evicted[trace.kind == 1].sum() / each.evicted.sum() for each in (plain, first)]
    assert shares[1] < 0.6 * shares[0]


@pytest.mark.parametrize("kind", POLICIES)
def test_requests_that_come_together_begin_together(kind):
    rng = np.random.default_rng(4)
    trace = RequestTrace.of(np.repeat(np.arange(10) * 3.0, 20), rng.geometric(1 / 150, 200), rng.geometric(1 / 50, 200))
    limits = {"chunk": 2048, "requests": 64, "pages": 10**5, "page": 16}
    found = through(trace, replica(table(), kind, **limits))
    items, _ = naive_service.run(trace, naive_service.Naive(table(), kind, **limits))
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", POLICIES)
def test_tokens_and_time_are_conserved(kind):
    trace = poisson(20.0, 600)
    engines = [replica(table(), kind, pages=160, requests=32) for _ in range(2)]
    found = through(trace, *engines)
    (prompts, outputs), gone = (trace.prompt, trace.output), found.dropped
    written = sum(float((jumps.steps * jumps.writers).sum()) for jumps in found.jumps)
    again = found.evicted[~gone].sum()
    # Every answered request has its first token from reading, as after each eviction, and all others from writing.
    assert written + (~gone).sum() + again == outputs[~gone].sum()
    assert sum(jumps.tokens.sum() for jumps in found.jumps) >= prompts[~gone].sum()
    if not again:
        assert sum(jumps.tokens.sum() for jumps in found.jumps) == prompts[~gone].sum()
    assert found.gaps.sum() == outputs[~gone].sum() - (~gone).sum()
    # All times between tokens are those from first tokens to last ones.
    assert found.gap @ found.gaps == pytest.approx((found.last - found.first)[~gone].sum(), rel=1e-9)
    # Little's law over the run: the integral of those inside is the sum of the times that each was there.
    assert found.area == pytest.approx(found.times["e2e"][~gone].sum(), rel=1e-9)
    for each in engines:
        assert (each.pages, each.load, each.context, each.left, each.writers, sum(each.phases)) == (0,) * 6


def test_the_same_run_gives_the_same_bytes():
    trace = poisson(20.0, 300)
    one, two = (through(trace, *(replica(table()) for _ in range(4)), route="two_choices") for _ in range(2))
    assert one.last.tobytes() == two.last.tobytes()
    assert one.gap.tobytes() == two.gap.tobytes()


def alone(service, count, seed=0, *, rate, each=None):
    """Mean wait of requests that are read one at a time, each for a time of its own, by an engine that does nothing else.

    Each waits as by the recursion of Lindley (1952), on which the closed forms of the mean rest.
    """
    rng = np.random.default_rng(seed)
    prompt = np.full(count, 1000) if each is None else np.maximum(each(rng, count).round(), 1.0)
    trace = RequestTrace.of(np.cumsum(rng.exponential(1.0 / rate, count)), prompt, np.ones(count))
    steps = table(write=lambda n, c: 0.0 * n * c, read=lambda n, t, k: service * t / 1000.0 + 0.0 * n * k)
    found = through(trace, replica(steps, requests=1, chunk=10**6))
    waited, times = found.begun - found.arrival, service * prompt / 1000.0
    by_hand = np.zeros(count)
    for i, gap in enumerate(np.diff(trace.arrival)):
        by_hand[i + 1] = max(by_hand[i] + times[i] - gap, 0.0)
    assert waited == pytest.approx(by_hand, rel=1e-9, abs=1e-9)
    return float(np.mean(waited)), float(np.mean(times))


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_requests_of_one_length_wait_as_in_a_queue_of_equal_services(load):
    waited, served = alone(0.1, fewer(100_000, 20_000), rate=load / 0.1)
    assert waited == pytest.approx(load * served / (2.0 * (1.0 - load)), rel=fewer(3, 6) / 100)  # M/D/1


@pytest.mark.thorough
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_exponential_lengths_wait_as_in_a_queue_of_exponential_services(load):
    waited, served = alone(0.1, fewer(200_000, 20_000), rate=load / 0.1, each=lambda rng, count: rng.exponential(1000.0, count))
    assert waited == pytest.approx(load * served / (1.0 - load), rel=fewer(5, 12) / 100)  # M/M/1


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_steps_that_grow_with_requests_share_the_processor(load):
    """Where a step takes as many times as long as requests write, each has its share: the mean time is that of processor sharing."""
    rng, count, output, step = np.random.default_rng(1), fewer(40_000, 15_000), 200, 1e-3
    trace = RequestTrace.of(np.cumsum(rng.exponential(output * step / load, count)), np.ones(count), rng.geometric(1 / output, count) + 1)
    found = through(trace, replica(table(write=lambda n, c: step * n + 0.0 * c, read=lambda n, t, k: 0.0 * n * t * k), requests=10**6))
    assert float(np.mean(found.last - found.first)) == pytest.approx(output * step / (1.0 - load), rel=0.05)  # M/M/1-PS


def test_a_request_that_no_engine_can_hold_is_dropped_and_told():
    trace = RequestTrace.of(np.array([0.0, 0.1]), np.array([5000, 10]), np.array([10, 10]))
    found = through(trace, replica(table(), pages=100))
    assert found.dropped.tolist() == [True, False]
    assert math.isnan(found.last[0])
    assert np.isfinite(found.last[1])
    whole = through(trace, replica(table(), "tensorrt-llm", chunk=4096))
    assert whole.dropped.tolist() == [True, False]  # prompts are read whole there


def test_requests_follow_the_end_of_others():
    many = {"classes": (RequestClass(name="all"),), "kind": np.zeros(3, dtype=int)}
    trace = RequestTrace.of(
        np.array([0.0, 0.0, 9.0]), np.array([100, 100, 100]), np.array([20, 20, 20]), follows=np.array([-1, 0, 1]),
        pause=np.array([0.0, 2.0, 0.5]), **many,
    )  # fmt: skip
    found = through(trace, replica(table()), replica(table()))
    assert found.arrival[1] == found.last[0] + 2.0
    assert found.arrival[2] == 9.0  # no sooner than its own arrival


def number_lists(rows):
    return NumberLists.of(np.repeat(np.arange(len(rows)), [len(row) for row in rows]), [one for row in rows for one in row], len(rows))


def hashed(prompts, block=64):
    """Requests far apart whose prompts begin as these lists of block numbers say."""
    count = len(prompts)
    lengths = np.array([block * len(each) + 1 for each in prompts])
    return RequestTrace.of(
        np.arange(count) * 100.0, lengths, np.full(count, 2), blocks=number_lists(prompts), block=block
    )  # fmt: skip


def test_a_prefix_is_found_until_its_room_is_wanted():
    trace = hashed([(1, 2, 3), (1, 2, 4), (5, 6, 7), (1, 2, 3)])
    found = through(trace, replica(table(), block=4))
    assert found.hits.tolist() == [0, 128, 0, 192]
    small = through(trace, replica(table(), block=4, pages=14))  # three blocks and a bit more
    assert small.hits.tolist() == [0, 128, 0, 0]
    assert sum(jumps.tokens.sum() for jumps in found.jumps) == trace.prompt.sum() - found.hits.sum()


def test_blocks_that_are_given_up_come_back_from_the_second_tier():
    trace = hashed([(1, 2, 3), (5, 6, 7), (1, 2, 3)])
    slow = table(read=lambda n, t, k: 1e-2 * t + 0.0 * n * k)  # so that it is never better to read
    for kind, more in {"vllm": 0.01 * 12, "tensorrt-llm": 0.01 * 12, "sglang": 0.01 * 12 - 0.02}.items():
        near, far = (through(trace, replica(slow, kind, block=4, pages=14, beyond=(100,), fetch=(time,))) for time in (0.0, 0.01))
        assert near.hits.tolist() == far.hits.tolist() == [0, 0, 192]
        assert far.times["ttft"][2] - near.times["ttft"][2] == pytest.approx(more)  # of SGLang's step the rest of its load


def conversations(sessions, turns, *, rate=2.0, think=3.0, block=64, seed=0):
    """Turns of sessions, each of which begins with all that was said before; times of arrival do not wait for answers."""
    rng, own = np.random.default_rng(seed), []
    begin = np.cumsum(rng.exponential(1.0 / rate, sessions))
    for i in range(sessions):
        length = 0
        for j in range(turns):
            new, output = int(rng.geometric(1 / 150)), int(rng.geometric(1 / 60))
            own.append((begin[i] + j * think, length + new, output, i, j))
            length += new + output
    order = sorted(range(len(own)), key=lambda k: own[k])
    place = {own[k][3:]: n for n, k in enumerate(order)}
    rows = [own[k] for k in order]
    follows = np.array([place.get((row[3], row[4] - 1), -1) for row in rows])
    first = [np.arange(1 + row[1] // block) + 1000 * row[3] for row in rows]
    return RequestTrace.of(
        np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), np.array([row[2] for row in rows]), block=block,
        blocks=number_lists([each[: row[1] // block].tolist() for each, row in zip(first, rows, strict=True)]),
        follows=follows, history=follows >= 0,
    )  # fmt: skip


def asked(turns, *, block=64, gap=0.0):
    """Requests with the blocks of their prompts, and one token more, each with two tokens to write, one `gap` after the other."""
    count = len(turns)
    return RequestTrace.of(
        gap * np.arange(count), np.array([block * len(each) + 1 for each in turns]), np.full(count, 2),
        blocks=number_lists(turns), block=block,
    )  # fmt: skip


def order(trace, queue, **limits):
    found = through(trace, replica(table(), policy_of("sglang", "written", queue), block=4, requests=1, **limits))
    return found, np.argsort(found.begun, kind="stable").tolist()


def test_five_requests_in_the_order_of_their_prefixes():
    """Behind the first, which leaves (1, 2, 3): three blocks of the last are there, one of the fourth, none of the second.

    The third begins as the second does, and is put off until that is done. Then all of its prefix is there.
    """
    trace = asked([(1, 2, 3), (8, 9), (8, 9, 7), (1, 5), (1, 2, 3, 4)], gap=1e-6)
    found, turns = order(trace, "prefix")
    assert turns == [0, 4, 3, 1, 2]
    assert found.hits.tolist() == [0, 0, 128, 64, 192]
    assert order(trace, "arrival")[1] == [0, 1, 2, 3, 4]


def test_prefixes_shorter_than_33_tokens_are_none_and_32_are_waited_for():
    """Blocks of 16 tokens: one that is there is no reason to look beside, and two that another brings are one to wait."""
    trace = asked([(1, 2, 3), (4, 5, 6), (4, 5, 7), (4, 8)], block=16, gap=1e-6)
    limits = {"requests": 1, "page": 16}
    found = through(trace, replica(table(), policy_of("sglang", "written", "prefix"), **limits))
    assert np.argsort(found.begun).tolist() == [0, 1, 2, 3]  # (4, 5, 7) has 32 tokens there then, before 16 of the last
    late = asked([(1, 2, 3), (4, 5, 6), (4, 5, 7), (4, 8), (9,)], block=16, gap=1e-6)
    assert np.argsort(through(late, replica(table(), policy_of("sglang", "written", "prefix"), **limits)).begun).tolist() == [0, 1, 2, 3, 4]


def test_more_than_128_that_wait_are_not_sorted():
    """The one behind the first finds its prefix at once with 128 others, and in its place behind 129."""
    for others, place in ((127, 1), (128, 2)):
        trace = asked([(1, 2, 3), *((10 + i,) for i in range(others)), (1, 2, 3)], gap=1e-7)
        begun = order(trace, "prefix")[0].begun
        assert int((begun < begun[-1]).sum()) == place


def test_the_longest_answer_is_first():
    trace = RequestTrace.of(np.arange(5) * 1e-6, np.full(5, 100), np.array([3, 5, 9, 2, 9]))
    assert order(trace, "output")[1] == [0, 2, 4, 1, 3]


@pytest.mark.parametrize("kind", POLICIES)
def test_without_prefixes_their_order_is_that_of_arrival(kind):
    """Prompts of no block in common, a cache that retracts some, and as many as the sorting takes at most."""
    trace = poisson(30.0, 200)
    plain, sorted_ = (through(trace, replica(table(), policy_of(kind, "written", each), pages=110)) for each in ("arrival", "prefix"))
    assert plain.last.tobytes() == sorted_.last.tobytes()
    assert plain.evicted.sum() > 0 or kind == "sglang"


def test_two_conversations_find_more_in_a_cache_that_holds_one():
    """Turns of two long texts come in turn: each throws the other out, unless those of one go together."""
    turns = [(100 * (i % 2) + 1, 100 * (i % 2) + 2, 100 * (i % 2) + 3, 1000 + i) for i in range(40)]
    hits = {}
    for queue in ("arrival", "prefix"):
        found, _ = order(asked(turns, gap=1e-6), queue, pages=20)
        assert not found.dropped.any()
        assert (found.last > 0).all()  # none is forgotten
        hits[queue] = found.hits.sum()
    assert hits == {"arrival": 0, "prefix": 38 * 192}


@pytest.mark.cases(4)
@pytest.mark.parametrize("queue", ["prefix", "output"])
@pytest.mark.parametrize(("pages", "chunk", "ahead"), [(400, 512, False), (240, 2048, False), (10**5, 512, True)])
def test_jumps_of_sorted_queues_are_what_single_steps_are(queue, pages, chunk, ahead):
    trace, steps = loose(conversations(30, 3, think=0.5, rate=40.0)), table()
    limits = {"chunk": chunk, "requests": 8, "pages": pages, "page": 16, "ahead": ahead}
    found = through(trace, replica(steps, policy_of("sglang", "written", queue), block=4, **limits))
    items, _ = naive_service.run(trace, naive_service.Naive(steps, "sglang", block=4, order=queue, **limits))
    assert found.hits.tolist() == [each.hits for each in items]
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    plain = through(trace, replica(steps, "sglang", block=4, **limits))
    assert (plain.last != found.last).any()  # the order matters here
    (jumps,) = found.jumps  # tokens are conserved; one comes with each prompt that is read to its end
    assert trace.output.sum() - len(trace) - found.evicted.sum() <= jumps.wrote.sum() <= trace.output.sum() - len(trace)


def loose(trace):
    """The same requests at their times, whatever becomes of the ones before."""
    return replace(trace, follows=np.full(len(trace), -1), history=np.zeros(len(trace), dtype=bool))


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(("pages", "think"), [(10**5, 60.0), (400, 60.0), (240, 60.0), (150, 20.0)])
def test_jumps_with_answers_in_the_cache_are_what_single_steps_are(kind, pages, think):
    """Turns far apart, so that each has its answer before the next comes, by both simulators."""
    trace, steps = conversations(40, 3, think=think, rate=5.0), table()
    limits = {"chunk": 2048, "requests": 32, "pages": pages, "page": 16}
    found = through(trace, replica(steps, kind, block=4, **limits))
    items, _ = naive_service.run(trace, naive_service.Naive(steps, kind, block=4, **limits))
    assert found.hits.tolist() == [each.hits for each in items]
    assert found.evicted.tolist() == [each.evicted for each in items]
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert (found.arrival == trace.arrival).all()  # else the simulators would be asked for different things
    assert found.evicted.sum() > 0 or pages > 200 or kind == "sglang"


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("fetch", [(5e-5, 1e-4), (5e-5, 3e-4), (1e-3, 5e-5)])
def test_jumps_with_tiers_are_what_single_steps_are(kind, fetch):
    trace, steps = conversations(40, 3, think=20.0, rate=4.0), table()
    limits = {"chunk": 2048, "requests": 32, "pages": 300, "page": 16, "fetch": fetch}
    found = through(trace, replica(steps, kind, block=4, beyond=(40, 90), **limits))
    items, _ = naive_service.run(trace, naive_service.Naive(steps, kind, block=4, beyond=(40, 90), **limits))
    assert found.hits.tolist() == [each.hits for each in items]
    assert found.evicted.tolist() == [each.evicted for each in items]
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.hits.sum() > 1.1 * through(trace, replica(steps, kind, block=4, **limits)).hits.sum()


def test_a_tier_that_is_slower_than_reading_is_left_alone():
    trace = conversations(40, 3, think=20.0, rate=4.0)
    for kind in POLICIES:
        slow, none = (
            through(trace, replica(table(), kind, block=4, pages=300, beyond=beyond, fetch=(1.0,) * len(beyond)))
            for beyond in ((10**6,), ())
        )
        assert slow.last.tolist() == none.last.tolist()


def test_others_go_on_while_blocks_come_aside():
    """A long load holds up its own request in vLLM, and all that write in TensorRT-LLM."""
    prompts, outputs = [(1, 2, 3), (5, 6, 7, 8, 10, 11, 12), (9,), (1, 2, 3)], np.array([2, 2, 400, 2])
    longest = {}
    for kind in ("vllm", "tensorrt-llm"):
        trace = replace(hashed(prompts), arrival=np.array([0.0, 100, 200, 201]), output=outputs)
        steps = table(read=lambda n, t, k: 0.01 * t + 0.0 * n * k)
        found = through(trace, replica(steps, kind, block=4, pages=32, beyond=(100,), fetch=(0.1,)))
        assert found.hits[3] == 192
        longest[kind] = found.gap[found.gaps > 0].max()
    assert longest["vllm"] < 0.1 < 1.2 < longest["tensorrt-llm"] < 1.3


def test_the_next_turn_finds_the_last_answer():
    trace = conversations(30, 4, think=60.0)
    found = through(trace, replica(table(), block=4))
    whole = np.where(trace.follows >= 0, (trace.prompt + trace.output - 1)[trace.follows] // 64 * 64, 0)
    assert found.hits.tolist() == np.minimum(whole, trace.prompt - 1).tolist()
    without = through(loose(trace), replica(table(), block=4))
    assert without.hits.sum() < 0.9 * found.hits.sum()
    assert sum(jumps.tokens.sum() for jumps in found.jumps) == trace.prompt.sum() - found.hits.sum()


def test_the_last_token_of_an_answer_is_in_no_block():
    """Nobody reads the last token that was written: 128 of prompt and 64 of answer keep 191, which fill 2 blocks of 64."""
    for output, kept in ((64, 128), (65, 192), (66, 192)):
        turns = {"follows": np.array([-1, 0]), "pause": np.array([0.0, 1.0]), "block": 64}
        trace = RequestTrace.of(
            np.zeros(2), np.array([128, 320]), np.array([output, 2]), blocks=number_lists([(1, 2), (1, 2, 3, 4, 5)]), **turns
        )
        assert through(trace, replica(table(), block=4)).hits.tolist() == [0, kept]


def test_an_answer_that_nobody_asks_for_takes_room_too():
    """The second prompt is there again, unless the answer between has taken its place."""
    prompts, outputs = [(1, 2, 3), (5,), (1, 2, 3)], {"short": [2, 2, 2], "long": [2, 500, 2]}
    found = {}
    for name, output in outputs.items():
        trace = replace(hashed(prompts), output=np.array(output))
        found[name] = through(trace, replica(table(), block=4, pages=40)).hits.tolist()
    assert found == {"short": [0, 0, 192], "long": [0, 0, 64]}


class Blocks:
    """A prefix cache that counts every block by itself."""

    def __init__(self, beyond):
        self.beyond, self.used, self.idle, self.tiers = beyond, {}, [], [[] for _ in beyond]

    def found(self, prompt):
        many, far = 0, []
        for block in prompt:
            if block not in self.used and block not in self.idle:
                tier = next((i for i, held in enumerate(self.tiers) if block in held), None)
                if tier is None:
                    break
                far.append((many, tier))
            many += 1
        return many, far

    def back(self, block):
        for held in (self.idle, *self.tiers):
            if block in held:
                held.remove(block)

    def take(self, prompt):
        new = [block for block in prompt if block not in self.used]
        for block in prompt:
            self.back(block)
            self.used[block] = self.used.get(block, 0) + 1
        return len(new)

    def free(self, prompt):
        before = len(self.used)
        for block in reversed(prompt):
            self.used[block] -= 1
            if not self.used[block]:
                del self.used[block]
                self.idle.append(block)
        return before - len(self.used)

    def keep(self, blocks):
        for block in reversed(blocks):
            if block not in self.used:
                self.back(block)
                self.idle.append(block)

    def shrink(self, room):
        naive_service.give_up(self.idle, room, self.tiers, self.beyond)


def told(chain):
    return [block for begin, end in chain for block in range(begin, end)]


@pytest.mark.parametrize("beyond", [(), (6,), (40, 14)])
@pytest.mark.parametrize("seed", range(8))
def test_a_cache_of_runs_is_that_of_single_blocks(seed, beyond):
    """Texts that go on from each other at any place; answers that are kept in part, also while others have them or they lie somewhere."""
    rng, texts, free = np.random.default_rng(seed), [], 0
    for _ in range(30):
        begin = texts[rng.integers(len(texts))] if texts and rng.random() < 0.8 else []
        begin = begin[: int(rng.integers(0, len(begin) + 1))] if rng.random() < 0.6 else begin
        new = int(rng.integers(1, 15))
        texts.append([*begin, *range(free, free + new)])
        free += new
    own = np.array([int(rng.integers(1, len(text) + 1)) for text in texts])
    heirs = {i: i for i in range(len(texts))}  # the rest of each text as the answer
    runs = TraceRuns(number_lists(texts), own, np.array([len(text) for text in texts]), heirs)
    cache, plain, users = PrefixCache(2, beyond), Blocks(beyond), []
    for _ in range(400):
        i, what = int(rng.integers(len(texts))), rng.random()
        (prompt, many), answer = runs.prompt(i), runs.answer(i)
        assert told(prompt) + told(answer) == texts[i]
        assert len(told(prompt)) == many
        if what < 0.35:
            text = prompt + answer if rng.random() < 0.5 else prompt
            assert cache.take(text) == 2 * plain.take(told(text))
            users.append(text)
        elif what < 0.7 and users:
            text = users.pop(int(rng.integers(len(users))))
            assert cache.free(text) == 2 * plain.free(told(text))
        else:
            kept = cache.names(answer, int(rng.integers(0, 9)))
            cache.keep(kept)
            plain.keep(told(kept))
        room = int(rng.choice([10, 30, 100, 200]))
        cache.shrink(room)
        plain.shrink(room // 2)
        assert len(cache) == len(plain.used) + len(plain.idle)
        for text in (prompt, prompt + answer):
            assert cache.pages(text) == 2 * sum(block not in plain.used for block in told(text))
            assert cache.found(text) == plain.found(told(text))
    assert cache.cuts


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_use_engines(name):
    rng, count = np.random.default_rng(0), 300
    kind = rng.integers(0, 3, count)
    trace = RequestTrace.of(
        np.cumsum(rng.exponential(0.05, count)), rng.geometric(1 / 300, count), rng.geometric(1 / 50, count), kind=kind,
        classes=tuple(RequestClass(name=each) for each in "abc"),
    )  # fmt: skip
    found = through(trace, *(replica(table()) for _ in range(3)), route=name)
    assert np.isfinite(found.last).all()
    assert set(found.where) == {0, 1, 2}
    if name == "class":
        assert (found.where == kind).all()
    if name == "length":
        assert found.prompt[found.where == 0].max() <= found.prompt[found.where == 2].min()


@pytest.mark.parametrize("early", [True, False])
def test_the_engine_with_the_fewest_requests_is_the_first_of_the_least(early):
    """Asked from the begin on, or for the first time when some have requests already; heaps do not grow with the run."""
    rng, loads, asked = np.random.default_rng(5), PoolLoads(7), 0
    for turn in range(3000):
        engine = int(rng.integers(7)) if rng.random() < 0.6 else loads.counts.index(max(loads.counts))
        loads.change(engine, 1 if loads.counts[engine] == 0 or rng.random() < 0.55 else -1)
        if (early or turn > 200) and rng.random() < 0.7:
            assert loads.fewest() == loads.counts.index(min(loads.counts))
            asked += 1
    assert asked > 1500
    assert all(len(heap) <= 7 for heap in loads.levels)


def test_least_loaded_engines_of_other_rates_are_those_that_are_through_first():
    trace = poisson(10.0, 50)
    slow, fast = (replica(table()) for _ in range(2))
    pool = EnginePool(replicas=(slow, fast), route=router("least_loaded", trace, [0.25, 1.0], np.random.default_rng(0)))
    found = replay(trace, pool)
    assert (found.where == 1).sum() > 30


def test_blocks_with_any_numbers_are_the_same_blocks():
    """Hashes far apart, as they are for adapters that have keys of their own."""
    trace = conversations(12, 4)
    assert trace.blocks is not None
    far = replace(trace, blocks=replace(trace.blocks, held=(7919 * trace.blocks.held) % 1000003))
    assert len(np.unique(far.blocks.held)) == len(np.unique(trace.blocks.held))
    one, other = (through(each, replica(table(), block=4, pages=400)) for each in (trace, far))
    assert one.hits.sum() > 0
    assert one.last.tolist() == other.last.tolist()


def test_an_answer_is_found_whole_though_its_request_was_evicted_in_it():
    """The newer of two is evicted while it writes, and goes on later; its next turn finds all that it wrote but the last token."""
    turns = {"follows": np.array([-1, -1, 1]), "pause": np.array([0.0, 0.0, 5.0]), "block": 16}
    rows = [[100], [*range(4)], [*range(14)]]
    trace = RequestTrace.of(
        np.array([0.0, 0.001, 0.0]), np.array([16, 64, 224]), np.array([150, 150, 2]), blocks=number_lists(rows), **turns
    )
    found = through(trace, replica(table(), pages=20))
    assert found.evicted.tolist() == [0, 1, 0]
    assert found.hits.tolist() == [0, 0, 16 * ((64 + 149) // 16)]


def test_a_prefix_does_not_decide_where_its_engine_is_much_fuller():
    """All share the prefix of the first and come together: its engine has at most half as many again as the other and one, and one."""
    trace = replace(hashed([(1, 2, 3)] * 40), arrival=np.append(0.0, np.ones(39)), output=np.full(40, 300))
    found = through(trace, *(replica(table(), block=4) for _ in range(2)), route="prefix")
    few, many = sorted(np.bincount(found.where, minlength=2).tolist())
    assert few < many <= 1.5 * (few + 1) + 1


def test_a_prefix_is_read_where_it_lies():
    rng = np.random.default_rng(3)
    prompts = [(10 * int(user), 10 * int(user) + 1, 10 * int(user) + 2) for user in rng.integers(0, 12, 400)]
    trace = hashed(prompts)
    found = {name: through(trace, *(replica(table(), block=4, pages=60) for _ in range(3)), route=name).hits.sum() for name in ROUTERS}
    assert found["prefix"] > 1.5 * found["round_robin"]


def reading(each=0.0):
    """One engine that reads, with a time for each token that travels."""
    return Readers(pool=EnginePool(replicas=(replica(table(), writes=False),), route=lambda *_: 0), fixed=0.01, each=each)


def test_requests_whose_keys_are_on_their_way_count_as_load():
    """Ten prompts are read long before the first of them arrives: each of two engines is given half."""
    trace = RequestTrace.of(np.zeros(10), np.full(10, 20), np.full(10, 50))
    writers = [replica(table(), reads=False) for _ in range(2)]
    found = through(trace, *writers, route="least_loaded", readers=reading(1.0))
    assert [int((jumps.steps * jumps.writers).sum()) for jumps in found.jumps[1:]] == [5 * 49, 5 * 49]
    assert [each.to_do for each in writers] == [0, 0]


def test_readers_send_keys_and_values_to_writers():
    trace = poisson(5.0, 200)
    slow, fast = (through(trace, replica(table(), reads=False), readers=reading(each)) for each in (1e-4, 0.0))
    arrived = [found.times["ttft"] - found.waited for found in (slow, fast)]
    more = arrived[0] - arrived[1]
    assert (more[trace.output > 1] >= 1e-4 * trace.prompt[trace.output > 1] - 1e-9).all()  # more where prompts share the link
    assert np.isfinite(slow.last).all()
    assert sum(jumps.tokens.sum() for jumps in slow.jumps[1:]) == 0  # writers read nothing


def test_a_first_token_waits_for_a_place_at_the_engine_that_writes():
    """Two requests of an engine with one place: the second has its first token when the first is answered."""
    trace = RequestTrace.of(np.zeros(2), np.full(2, 20), np.full(2, 50))
    found = through(trace, replica(table(), reads=False, requests=1), readers=reading())
    assert found.first[1] == pytest.approx(found.last[0])
    assert found.waited[1] > 0 == found.waited[0]


def test_ranks_of_a_worker_read_in_the_same_steps():
    """Two ranks of each of two workers: the prompt of a rank is read in the time of the longest prompt of its worker."""
    trace = RequestTrace.of(np.zeros(4), np.array([10, 1000, 20, 30]), np.full(4, 1))
    ranks = tuple(replica(table(), writes=False) for _ in range(4))
    turns = itertools.count()
    pool = EnginePool(replicas=ranks, route=lambda *_: next(turns) % 4, coupled=4, each=2)
    found = through(trace, replica(table(), reads=False), readers=Readers(pool=pool, fixed=0.0, each=0.0))
    long, short = found.last[1], found.last[3]
    assert found.last[0] == pytest.approx(long)
    assert found.last[2] == pytest.approx(short)
    assert short < 0.6 * long


@pytest.mark.parametrize(("beside", "busy"), [(None, 0.0), (1000, 1.0), (500, 0.5), (2000, 1.0)])
def test_ranks_read_the_faster_the_less_others_read_beside_them(beside, busy):
    """A prompt of 1000 tokens takes half as long where the other rank reads nothing, whose experts then have half of the rows."""
    steps = table(read=lambda n, t, k: 1e-5 * t + 0.0 * k * n)
    steps = replace(steps, beside_none=0.5 * steps.reading)
    ranks, turns = tuple(replica(steps, writes=False) for _ in range(2)), itertools.count()
    pool = EnginePool(replicas=ranks, route=lambda *_: next(turns) % 2, coupled=2)
    prompts = np.array([1000] if beside is None else [1000, beside])
    trace = RequestTrace.of(np.zeros(len(prompts)), prompts, np.full(len(prompts), 1))
    found = through(trace, replica(steps, reads=False), readers=Readers(pool=pool, fixed=0.0, each=0.0))
    fixed = float(steps.line(0, 0.0, alone=False)[0])
    longest = float(prompts.max())
    assert found.last == pytest.approx(fixed + 1e-5 * longest * (0.5 + 0.5 * (busy if longest == 1000 else 0.5)))


def test_ranks_with_nothing_else_to_do_look_at_once_for_what_came():
    """Steps are scheduled ahead; a prompt that comes to a rank while the other makes the last step begins when that ends."""
    ranks = tuple(replica(table(), writes=False, ahead=True) for _ in range(2))
    turns = itertools.count()
    pool = EnginePool(replicas=ranks, route=lambda *_: next(turns) % 2, coupled=2)
    trace = RequestTrace.of(np.array([0.0, 1e-3, 100.0]), np.full(3, 1000), np.full(3, 1))
    found = through(trace, replica(table(), reads=False), readers=Readers(pool=pool, fixed=0.0, each=0.0))
    assert found.begun[1] == pytest.approx(found.last[0])
    assert found.begun[1] < 1.0


def sending(steps, written, read=0.0):
    """The same steps, which keep the port between nodes busy for a time, and for another one for each token that they read. [s]"""
    return replace(steps, sends_writing=np.full(len(steps.requests), written), sends_reading=read * steps.tokens)


def handed(trace, writers, each, read=None, coupled=0):
    """A trace whose prompts are read at once, and take a time for each token over the ports of the engines that write."""
    read = read or replica(table(write=lambda n, c: 0.0 * n * c, read=lambda n, t, k: 1e-9 * t + 0.0 * n * k), writes=False)
    readers = Readers(pool=EnginePool(replicas=(read,), route=lambda *_: 0), each=each)
    route = router("round_robin", trace, [1.0] * len(writers), np.random.default_rng(0))
    return replay(trace, EnginePool(replicas=tuple(writers), route=route, received=(each,) * len(writers), coupled=coupled), readers)


STEADY = table(write=lambda n, c: 1.0 + 0.0 * n * c, read=lambda n, t, k: 1e-9 * t + 0.0 * n * k)  # every step takes a second


def test_a_prompt_and_steps_share_a_port_by_hand():
    """Steps of a second send for 0.4 s of it. The second prompt takes 10 s alone, and begins to travel in the middle of a step. Beside it
    steps take 1.4 s, of which they send for 0.8 s at half of the rate, and it has 1 / 1.4 of the port: 14 s, in which steps lose 4 s."""
    trace = RequestTrace.of(np.array([0.0, 15.3]), np.array([100, 100]), np.array([60, 2]))
    found = handed(trace, [replica(sending(STEADY, 0.4), reads=False)], 0.1)
    assert found.first[0] == pytest.approx(10.0, abs=1e-5)  # alone
    assert (found.first - found.waited)[1] == pytest.approx(15.3 + 14.0, abs=1e-5)  # and a step begins 0.7 s later
    assert found.last[0] == pytest.approx(10.0 + 59 + 4.0, abs=1e-5)


def test_a_long_step_that_reads_is_late_only_while_a_prompt_leaves():
    """A prompt of 100 tokens takes 50 s to read, in which its messages take 30 s of the port; the one before leaves in the first of them,
    4 s alone: 4 x 1.6 s, of which reading loses 2.4 s."""
    steps = table(write=lambda n, c: 0.0 * n * c, read=lambda n, t, k: 0.5 * t + 0.0 * n * k)
    reads = replica(sending(steps, 0.0, 0.3), writes=False, requests=1)
    trace = RequestTrace.of(np.zeros(2), np.full(2, 100), np.full(2, 2))
    found = handed(trace, [replica(STEADY, reads=False)], 0.04, reads)
    assert found.first == pytest.approx([50.0 + 6.4, 100.0 + 2.4 + 4.0], rel=1e-4)


def test_a_slower_sender_leaves_steps_what_it_does_not_take_by_hand():
    """Three of four parts of the receiver's port are free: steps have them while they send, and the prompt takes what it does alone."""
    links = Transfers([0.4], [0.1])
    links.begin(7, 0, 0, 25.0, 0.0)
    assert links.left_for_steps((1, 0)) == pytest.approx(0.75)
    assert links.left_for_steps((0, 0)) == pytest.approx(0.5)
    links.take({(1, 0): 0.75}, 0.0)
    assert links.ends == pytest.approx(10.0)
    links.take({(0, 0): 0.2}, 5.0)  # the sender's steps take a fifth of its port
    assert links.ends == pytest.approx(5.0 + 5.0 / 0.8)
    links.begin(8, 0, 0, 25.0, 5.0)
    assert links.left_for_steps((0, 0)) == pytest.approx(1 / 3)


def crowded(steps, each, of=Replica):
    """A stream of prompts whose keys and values nearly fill the port of the engine that writes."""
    trace = RequestTrace.of(np.arange(60) * 1.1, np.full(60, 100), np.full(60, 12))
    writer = of(steps, Limits(pages=10**6, chunk=2048, requests=64, page=16, reads=False), POLICIES["vllm"], PrefixCache(1))
    return trace, handed(trace, [writer], each)


@pytest.mark.parametrize("each", [1e-3, 5e-3, 1e-2])
def test_a_port_carries_no_more_than_it_can(each):
    """What steps and prompts send takes no longer alone than the whole service; without sharing it would."""
    steps = table(write=lambda n, c: 0.1 + 0.0 * n * c, read=lambda n, t, k: 1e-9 * t + 0.0 * n * k)
    trace, found = crowded(sending(steps, 0.08), each)
    _, apart = crowded(steps, each)
    jumps = found.jumps[1]
    carried = 0.08 * jumps.steps.sum() + each * trace.prompt.sum()
    assert found.last.max() > carried
    assert found.last.mean() > apart.last.mean()
    assert (found.first >= apart.first - 1e-9).all()


@pytest.mark.parametrize("each", [1e-3, 1e-2])
def test_jumps_beside_hand_overs_are_what_single_steps_are(each):
    steps = sending(table(write=lambda n, c: 0.1 + 1e-3 * n + 0.0 * c, read=lambda n, t, k: 1e-9 * t + 0.0 * n * k), 0.05)
    (_, jumps), (_, single) = (crowded(steps, each, of) for of in (Replica, Stepwise))
    assert jumps.last == pytest.approx(single.last, rel=1e-9)
    assert len(jumps.jumps[1].steps) < len(single.jumps[1].steps)


def test_engines_in_lockstep_wait_for_the_one_that_receives():
    """Two engines make every step together: the second, which receives nothing, is as late as the first."""
    steps = sending(STEADY, 0.4)
    trace = RequestTrace.of(np.array([0.0, 0.0, 30.3]), np.array([10, 10, 100]), np.array([60, 60, 2]))
    members = tuple(Replica(steps, Limits(pages=10**6, chunk=2048, requests=64, page=16, reads=False), POLICIES["vllm"], PrefixCache(1))
        for _ in range(2))  # fmt: skip
    found = handed(trace, members, 0.1, coupled=2)
    assert found.last[0] == pytest.approx(found.last[1])
    assert found.last[0] > found.first[1] + 59 + 0.4 * 8


@pytest.mark.parametrize("arrival", [0.0, 0.5])
@pytest.mark.parametrize("policy", ["vllm", "tensorrt-llm"])
def test_a_request_that_loses_its_room_began_when_it_first_left_the_queue(policy, arrival):
    """Two requests of 16 + 150 tokens share 15 pages of 16: one is evicted, waits, and is read again, but never waited at its begin."""
    trace = RequestTrace.of(np.full(2, arrival), np.full(2, 16), np.full(2, 150))
    found = through(trace, replica(table(), replace(POLICIES[policy], room=POLICIES["vllm"].room), pages=15))
    assert found.evicted.sum() > 0
    assert found.begun.tolist() == [arrival, arrival]
    assert (found.first > arrival).all()


def test_writers_that_evict_read_again():
    trace = poisson(30.0, 200)
    found = through(trace, replica(table(), reads=False, pages=100), readers=reading())
    assert np.isfinite(found.last[~found.dropped]).all()
    assert found.evicted.sum() > 0
    assert found.jumps[1].tokens.sum() > 0


@pytest.mark.parametrize(("seed", "microbatches", "swap"), [(4, 1, None), (7, 2, None), (32, 1, 1e-6), (14, 2, 1e-6)])
def test_an_engine_whose_last_writer_lost_its_room_goes_on(seed, microbatches, swap):
    """Requests that have ended keep their pages until the schedule behind the step knows of it."""
    drawn = np.random.default_rng(seed)
    prompt, output = np.maximum(drawn.geometric(1 / 40, 30), 1), drawn.geometric(1 / 30, 30)
    trace = RequestTrace.of(np.cumsum(drawn.exponential(0.05, 30)), prompt, output)
    pages = int((prompt + output).max() * 1.05 / 4) + 2
    limits = {"page": 4, "pages": pages, "requests": 4, "chunk": 512, "microbatches": microbatches, "ahead": True, "swap": swap}
    found = through(trace, replica(table(), "sglang", **limits))
    assert found.evicted.any()
    assert not found.dropped.any()
    assert np.isfinite(found.last).all()
    assert found.gaps.sum() == output.sum() - len(trace)


class Stepwise(Replica):
    """An engine that makes one step at a time."""

    def _many_steps(self, steps):
        super()._many_steps(1)


def coupled(trace, engines, kind="vllm", of=Replica, steps=None, **limits):
    limits = {"chunk": 512, "requests": 32, "page": 16, "pages": 300, **limits}
    members = tuple(of(steps or table(), Limits(**limits), POLICIES[kind], PrefixCache(1)) for _ in range(engines))
    route = router("round_robin", trace, [1.0] * engines, np.random.default_rng(0))
    return replay(trace, EnginePool(replicas=members, route=route, coupled=engines))


@pytest.mark.cases(1)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("kind", POLICIES)
def test_engines_in_lockstep_make_the_same_steps_one_at_a_time(kind, ahead):
    trace = poisson(12.0, 400 if not ahead else 150)
    jumps, single = (coupled(trace, 3, kind, of, chunk=2048, ahead=ahead) for of in (Replica, Stepwise))
    assert jumps.last == pytest.approx(single.last, rel=1e-9)
    assert jumps.evicted.tolist() == single.evicted.tolist()
    assert sum(len(one.steps) for one in jumps.jumps) < 0.7 * sum(len(one.steps) for one in single.jumps)


def test_an_engine_in_lockstep_with_nobody_is_one_by_itself():
    trace = poisson(5.0, 300)
    alone = through(trace, replica(table(), chunk=512, requests=32, pages=300))
    assert coupled(trace, 1).last.tobytes() == alone.last.tobytes()


def test_twins_in_lockstep_are_as_fast_as_one():
    one = poisson(5.0, 200)
    two = RequestTrace.of(np.repeat(one.arrival, 2), np.repeat(one.prompt, 2), np.repeat(one.output, 2))
    assert coupled(two, 2).last[::2] == pytest.approx(coupled(one, 1).last, rel=1e-12)


def test_a_step_waits_for_the_rank_with_most_to_do():
    """Of two engines one has long contexts: with it the other's tokens take as long, and never less than alone."""
    trace = RequestTrace.of(np.zeros(2), np.array([6000, 100]), np.array([400, 400]))
    steps = table(write=lambda n, c: 0.01 + 1e-6 * n * c)
    tied, free = coupled(trace, 2, steps=steps, pages=2000), through(trace, *(replica(steps, chunk=512, pages=2000) for _ in range(2)))
    assert tied.times["e2e"][0] == pytest.approx(free.times["e2e"][0])
    assert tied.times["tpot"][1] > 1.1 * free.times["tpot"][1]


def test_a_captured_graph_takes_what_its_size_takes():
    steps = table(write=lambda n, c: 1e-3 * n + 1e-8 * n * c, graphs=(1, 2, 4, 8))
    assert steps.line(3, 1000.0)[0] == pytest.approx(1e-3 * 4 + 1e-8 * 3 * 1000.0, rel=0.02)
    assert steps.line(3, 1000.0, alone=False)[0] == pytest.approx(1e-3 * 3 + 1e-8 * 3 * 1000.0)  # beside prompts none is used
    assert steps.line(9, 1000.0)[0] == pytest.approx(1e-3 * 9 + 1e-8 * 9 * 1000.0, rel=0.02)


def test_energy_follows_the_table():
    steps, one = table(), np.ones(1)
    assert steps.energy(64 * one, 1024 * one, 0 * one, 0 * one) == pytest.approx(100.0 * steps.line(64, 1024.0)[0])
    more = steps.energy(64 * one, 1024 * one, 500 * one, 700 * one) - steps.energy(64 * one, 1024 * one, 0 * one, 0 * one)
    assert more == pytest.approx(100.0 * steps.more(64, 500.0, 700.0))


@pytest.mark.parametrize("chunk", [64, 512])
def test_a_round_takes_what_its_longest_microbatch_takes_in_all(chunk):
    """Two prompts in two microbatches take what the longer takes alone; a third goes beside the shorter, if there is room."""
    steps = table()
    trace = RequestTrace.of(np.zeros(3), np.array([60, 40, 24]), np.full(3, 1))
    found = through(trace, replica(steps, chunk=chunk, microbatches=2))
    once = steps.line(0, 0.0, alone=False)[0]
    keys = (40 * 20 + 24 * 12) / 64
    assert found.first == pytest.approx([once + max(steps.more(0, 2 * 60, 30.0), steps.more(0, 2 * 64, keys))] * 3)


def test_a_prompt_has_one_piece_in_a_round():
    """Of three pieces: three rounds, each as long as if all microbatches read as much."""
    steps, trace = table(), RequestTrace.of(np.zeros(1), np.array([150]), np.ones(1, dtype=int))
    found = through(trace, replica(steps, chunk=64, microbatches=4))
    once = steps.line(0, 0.0, alone=False)[0]
    assert found.first[0] == pytest.approx(3 * once + sum(steps.more(0, 4 * t, k) for t, k in ((64, 32.0), (64, 96.0), (22, 139.0))))


def test_equal_prompts_in_all_microbatches_are_a_step_of_all():
    steps = table()
    trace = RequestTrace.of(np.zeros(4), np.full(4, 200), np.full(4, 30))
    apart, whole = (through(trace, replica(steps, chunk=chunk, microbatches=p)) for chunk, p in ((512, 4), (2048, 1)))
    assert apart.last == pytest.approx(whole.last)


def test_microbatches_keep_tokens_and_jumps():
    """Jumps are single steps with pipeline stages too, and a cache that is short evicts as without."""
    trace, steps = poisson(30.0, 200), table()
    found = through(trace, replica(steps, chunk=128, microbatches=3, pages=120))
    (jumps,) = found.jumps
    assert found.answered.all()
    assert found.evicted.sum() > 3
    assert (jumps.writers * jumps.steps).sum() + len(trace) + found.evicted.sum() >= trace.output.sum()
    longer = through(trace, replica(steps, chunk=384, pages=120))
    assert np.median(found.first - found.arrival) > np.median(longer.first - longer.arrival)
