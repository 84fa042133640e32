"""Routers asked about engines with given loads and caches: which engine a request goes to, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.engine.service.routers import router
from crossflow.workload.requests.record import RequestClass, RequestTrace


def trace_of(prompts, kinds=None, names="a"):
    zeros = np.zeros(len(prompts))
    kind = zeros.astype(int) if kinds is None else np.array(kinds)
    return RequestTrace.of(zeros, np.array(prompts), zeros + 1, kind=kind, classes=tuple(RequestClass(name=name) for name in names))


class Held:
    """A cache that has so many pages of the prompt asked for, and pages in all."""

    def __init__(self, hits, pages):
        self.hits, self.pages = hits, pages

    def begins(self, chain):
        return self.hits > 0

    def found(self, chain):
        return self.hits, 0

    def __len__(self):
        return self.pages


def engines(loads, hits=None, pages=None):
    count = len(loads)
    counts = SimpleNamespace(counts=loads, fewest=lambda: loads.index(min(loads)))
    caches = [Held(*held) for held in zip(hits or [0] * count, pages or [0] * count, strict=True)]
    return [SimpleNamespace(loads=counts, cache=cache) for cache in caches]


def routed(name, loads, *, rates=None, up=None, trace=None, index=0, rng=None, owners=None, **caches):
    trace = trace or trace_of([1])
    route = router(name, trace, rates or [1.0] * len(loads), rng or np.random.default_rng(0), owners)
    ticket = SimpleNamespace(index=index, prompt=int(trace.prompt[index]), chain=(1,))
    return route(engines(loads, **caches), ticket, up or range(len(loads)))


LEAST = [
    # requests, rates, engines that are up; where the next one goes
    ([2, 1, 1], None, None, 1),
    ([2, 1, 1], None, [0, 2], 2),
    ([0, 1, 1], None, [1, 2], 1),
    ([3, 1], [2.0, 1.0], None, 0),  # both are through with one more at once: the first
    ([4, 1], [2.0, 1.0], None, 1),
    ([4, 0, 2], [4.0, 1.0, 2.0], None, 1),
    ([1, 0, 0], [4.0, 1.0, 1.0], None, 0),  # two at four times the rate
]


@pytest.mark.parametrize(("loads", "rates", "up", "where"), LEAST)
def test_the_engine_that_would_be_through_first(loads, rates, up, where):
    assert routed("least_loaded", loads, rates=rates, up=up) == where


@pytest.mark.parametrize(
    ("drawn", "up", "where"),
    [((0.0, 0.99), None, 0), ((0.99, 0.26), None, 1), ((0.6, 0.9), None, 2), ((0.0, 0.5), [1, 3], 1), ((0.5, 0.9), [1, 3], 3)],
)
def test_the_better_of_two_drawn_engines(drawn, up, where):
    """Of four with 3, 2, 6 and 8 requests, each of which is a quarter of the draws, or half where two are up."""
    rng = SimpleNamespace(random=lambda shape: np.broadcast_to(drawn, shape))
    assert routed("two_choices", [3, 2, 6, 8], up=up, rng=rng) == where


PREFIX = [
    # requests, pages of the prompt, pages in all, rates, engines that are up; where it goes
    ([1, 0], [5, 0], [9, 0], None, None, 0),  # 1 of at most 1.5 x (0 + 1)
    ([2, 0], [5, 0], [9, 0], None, None, 1),  # too full
    ([3, 1], [5, 0], [9, 0], None, None, 0),  # 3 of 1.5 x (1 + 1)
    ([4, 1], [5, 0], [9, 0], None, None, 1),
    ([1, 1, 1], [5, 6, 6], [1, 8, 7], None, None, 2),  # as much, in the smaller cache
    ([2, 1, 2], [6, 6, 6], [1, 8, 1], None, None, 1),  # as much, with fewer requests
    ([1, 1], [0, 0], [3, 2], None, None, 1),
    ([1, 1], [0, 0], [2, 2], None, None, 0),
    ([1, 0], [5, 0], [0, 0], [1.0, 2.0], None, 1),  # one at half the rate is two
    ([1, 1], [5, 0], [0, 0], [1.0, 2.0], None, 0),  # two of 1.5 x (1 + 1)
    ([3, 0, 4], [9, 0, 4], [0, 0, 0], None, [0, 2], 0),  # the emptiest of those that are up has three
    ([3, 0, 6], [0, 9, 4], [0, 0, 0], None, [0, 2], 2),
    ([3, 0, 7], [0, 9, 4], [0, 0, 0], None, [0, 2], 0),
]


@pytest.mark.parametrize(("loads", "hits", "pages", "rates", "up", "where"), PREFIX)
def test_the_engine_that_has_most_of_a_prompt_and_is_not_much_fuller(loads, hits, pages, rates, up, where):
    assert routed("prefix", loads, hits=hits, pages=pages, rates=rates, up=up) == where


def test_engines_take_turns_among_those_that_are_up():
    route = router("round_robin", trace_of([1]), [1.0] * 3, np.random.default_rng(0))
    assert [route((), None, up) for up in ([0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2], [0, 2])] == [0, 1, 2, 2, 0]


@pytest.mark.parametrize(
    ("rates", "up", "where"),
    [
        ([1.0, 1.0], None, [0, 0, 0, 0, 1]),  # the prompts up to 4 are half of 16 tokens
        ([3.0, 1.0], None, [0, 0, 0, 0, 0]),  # three fourths end within the longest
        ([1.0, 3.0], None, [0, 0, 0, 1, 1]),  # a fourth: those up to 2
        ([1.0, 1.0, 2.0], [0, 2], [0, 0, 0, 0, 2]),  # of the middle one the nearest, the first of two
    ],
)
def test_engines_by_the_length_of_prompts_read_as_many_tokens_for_their_rate(rates, up, where):
    trace = trace_of([1, 1, 2, 4, 8])
    assert [routed("length", [0] * len(rates), rates=rates, up=up, trace=trace, index=i) for i in range(5)] == where


@pytest.mark.parametrize(
    ("rates", "loads", "up", "where"),
    [
        ([1.0, 1.0], [0, 0], None, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        ([4.0, 1.0], [0, 0], None, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]),
        ([1.0, 1.0, 3.0], [5, 4, 9], [0, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),  # those of the last to the emptier
    ],
)
def test_engines_take_slices_of_a_batch_for_their_rate(rates, loads, up, where):
    trace = trace_of([1] * 10)
    assert [routed("slices", loads, rates=rates, up=up, trace=trace, index=i) for i in range(10)] == where


OWN = [
    # engines, owners, engines that are up; where requests of the classes a, b, c go
    (3, None, None, [0, 1, 2]),
    (5, None, None, [0, 1, 2]),  # 0 and 3, 1 and 4, 2: the emptier or the first
    (2, None, None, [0, 1, 0]),  # fewer than classes: they share
    (3, {"b": [0]}, None, [1, 0, 2]),  # the others have what is left
    (2, {"b": [0, 1]}, None, [0, 0, 1]),  # nothing is left: all
    (3, {"b": [0]}, [1, 2], [1, 1, 2]),  # of its own none is up: any
]


@pytest.mark.parametrize(("count", "owners", "up", "where"), OWN)
def test_classes_have_engines_of_their_own(count, owners, up, where):
    trace = trace_of([1, 1, 1], kinds=[0, 1, 2], names="abc")
    assert [routed("class", [0] * count, trace=trace, index=i, owners=owners, up=up) for i in range(3)] == where


def test_of_its_own_engines_a_class_takes_the_emptier():
    trace = trace_of([1, 1], kinds=[0, 1], names="ab")
    assert [routed("class", [3, 2, 2, 3], trace=trace, index=i) for i in range(2)] == [2, 1]
