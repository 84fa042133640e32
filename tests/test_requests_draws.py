"""Laws of requests that are drawn: means, spreads, correlations, arrivals over time, sessions, tools, closed loops, classes."""

import numpy as np
import pytest

from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document, validate_at
from crossflow.workload.requests.asking import requests_in
from crossflow.workload.requests.dice import Dice
from crossflow.workload.requests.laws import ArrivalLaw, CountLaw, LengthLaw, TimeLaw
from crossflow.workload.requests.numbers import counts, coupled, lengths, times
from crossflow.workload.requests.spec import RequestsSpec

PLAIN = {"prompt": 1000, "output": 100}
N = 40_000


def spec(**data):
    return validate_at(RequestsSpec, Document(file="f.yaml", data={"requests": data}), "requests")


def drawn(**data):
    return requests_in(spec(**{**PLAIN, **data})).trace


def arriving(law, **data):
    return drawn(**{"arrivals": law, "duration": "20000 s", **data})


def root(found, i):
    """The first turn of a request's session."""
    return i if found.follows[i] < 0 else root(found, found.follows[i])


def lognormal(**numbers):
    return LengthLaw.model_validate({"law": "lognormal", **numbers})


# ------------------------------------------------------------------------------------------ lengths and times


def test_a_lognormal_has_its_median_and_its_p95():
    found = lengths(lognormal(median=800, p95=4000), N, np.random.default_rng(0), None)
    assert np.quantile(found, [0.5, 0.95]) == pytest.approx([800, 4000], rel=0.03)


def test_a_lognormal_has_its_mean_and_its_cv():
    found = lengths(lognormal(mean=800, cv=0.7), N, np.random.default_rng(0), None)
    assert (found.mean(), found.std() / found.mean()) == (pytest.approx(800, rel=0.02), pytest.approx(0.7, rel=0.03))


def test_lengths_are_cut_at_the_most_and_at_least_one():
    found = lengths(lognormal(median=3, p95=300, most=50), N, np.random.default_rng(0), None)
    assert (found.min(), found.max()) == (1, 50)


def test_an_empirical_law_draws_its_values_as_often_as_they_stand_there():
    found = lengths(LengthLaw.model_validate([5, 5, 5, 9]), N, np.random.default_rng(0), None)
    assert (found == 5).mean() == pytest.approx(0.75, abs=0.01)
    assert set(found) == {5, 9}


def test_uniform_lengths_reach_both_ends():
    found = lengths(LengthLaw(law="uniform", low=3, high=6), N, np.random.default_rng(0), None)
    assert np.bincount(found)[3:] / N == pytest.approx([0.25] * 4, abs=0.01)


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        ("10 s", 10.0),
        ({"law": "exponential", "mean": "3 s"}, 3.0),
        ({"law": "uniform", "low": "1 s", "high": "5 s"}, 3.0),
        ({"law": "lognormal", "mean": "2 s", "cv": 1.0}, 2.0),
    ],
)
def test_times_have_their_mean(law, mean):
    assert times(TimeLaw.model_validate(law), N, np.random.default_rng(0)).mean() == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize("least", [0, 1])
def test_geometric_numbers_have_their_mean_and_begin_at_the_least(least):
    found = counts(CountLaw(law="geometric", mean=4.0), N, np.random.default_rng(0), least)
    assert found.mean() == pytest.approx(4.0, rel=0.03)
    assert found.min() == least


@pytest.mark.cases(3)
@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 0.95])
def test_a_gaussian_copula_has_the_rank_correlation_of_its_formula(correlation):
    """Spearman's coefficient of a Gaussian copula is 6/pi asin(r/2) (Kruskal, JASA 53, 1958)."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    first, second = (lengths(lognormal(median=800, p95=8000), N, rng, None) for _ in range(2))
    both = coupled(first, second, correlation, np.random.default_rng(1))
    assert stats.spearmanr(first, both)[0] == pytest.approx(6 / np.pi * np.arcsin(correlation / 2), abs=0.02)
    assert np.array_equal(np.sort(both), np.sort(second))


# ------------------------------------------------------------------------------------------ arrivals


@pytest.mark.parametrize(
    ("law", "cv"),
    [
        ({"law": "poisson", "rate": "2 1/s"}, 1.0),
        ({"law": "gamma", "rate": "2 1/s", "cv": 3.0}, 3.0),
        ({"law": "gamma", "rate": "2 1/s", "cv": 0.3}, 0.3),
        ({"law": "deterministic", "rate": "2 1/s"}, 0.0),
        ({"law": "uniform", "rate": "2 1/s"}, 1 / np.sqrt(3)),
    ],
)
def test_gaps_have_the_mean_and_the_cv_of_their_law(law, cv):
    gaps = np.diff(arriving(law).arrival)
    assert gaps.mean() == pytest.approx(0.5, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-9)


def test_poisson_counts_have_a_variance_like_their_mean():
    found = np.bincount(arriving({"law": "poisson", "rate": "2 1/s"}).arrival.astype(int) // 10)[:-1]
    assert found.var() / found.mean() == pytest.approx(1.0, abs=0.1)


def test_a_curve_has_the_arrivals_of_its_integral():
    found = arriving({"law": "diurnal", "rates": ["1 1/s", "4 1/s", "0 1/s"]}, duration="5 h").arrival
    hours = np.bincount((found / 3600).astype(int), minlength=5)
    assert hours == pytest.approx([3600, 14400, 0, 3600, 14400], rel=0.06)


def test_bursts_have_the_mean_rate_of_their_shares_of_time_and_come_in_clumps():
    found = arriving({"law": "bursts", "rate": "20 1/s", "on": "5 s", "off": "20 s", "idle_rate": "1 1/s"}).arrival
    assert len(found) / 20000 == pytest.approx((20 * 5 + 1 * 20) / 25, rel=0.1)
    counts_ = np.bincount(found.astype(int))[:-1]
    assert counts_.var() / counts_.mean() > 5


@pytest.mark.parametrize("law", [{"law": "poisson", "rate": "2 1/s"}, {"law": "diurnal", "rates": ["1 1/s", "3 1/s"]},
    {"law": "bursts", "rate": "10 1/s", "on": "10 s", "off": "40 s"}])  # fmt: skip
def test_a_count_gives_so_many_at_the_same_rate(law):
    found = drawn(arrivals=law, count=40_000)
    assert len(found) == 40_000
    assert found.arrival[-1] == pytest.approx(20_000, rel=0.1)


def test_arrivals_end_with_their_duration_and_do_not_fall():
    found = arriving({"law": "gamma", "rate": "2 1/s", "cv": 4.0}, duration="100 s")
    assert 0 <= found.arrival[0] <= found.arrival[-1] < 100
    assert (np.diff(found.arrival) >= 0).all()


def test_another_rate_leaves_the_lengths_as_they_are():
    law, long = {"law": "poisson", "rate": "2 1/s"}, {"law": "lognormal", "median": 500, "p95": 3000}
    one, two = (drawn(arrivals=law, count=500, prompt=long, output=long, rate_scale=scale) for scale in (1, 4))
    assert np.array_equal(one.prompt, two.prompt)
    assert np.array_equal(one.output, two.output)
    assert two.arrival == pytest.approx(one.arrival / 4)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others():
    data = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "duration": "1000 s", "prompt": [10, 20, 30]}
    assert drawn(**data).digest == drawn(**data).digest
    assert drawn(**data, seed=1).digest != drawn(**data).digest


# ------------------------------------------------------------------------------------------ sessions


def sessions(**more):
    return drawn(arrivals={"law": "poisson", "rate": "1 1/s"}, duration="600 s", sessions={"turns": {"law": "geometric", "mean": 4}, "think": {"law": "exponential", "mean": "10 s"}, **more},
                 prompt={"law": "uniform", "low": 10, "high": 90}, output={"law": "uniform", "low": 5, "high": 50})  # fmt: skip


def test_a_turn_follows_the_one_before_and_begins_with_all_that_was_said():
    found = sessions()
    later = np.flatnonzero(~found.first)
    before = found.follows[later]
    assert (before < later).all()
    assert (found.prompt[later] - found.prompt[before] - found.output[before] >= 10).all()
    assert found.arrival[later] == pytest.approx(found.arrival[before] + found.pause[later])
    assert len(found) / found.first.sum() == pytest.approx(4, rel=0.1)


def test_the_blocks_of_a_turn_begin_with_those_of_the_turn_before():
    found = sessions()
    for i in np.flatnonzero(~found.first)[:200]:
        before = found.blocks[found.follows[i]]
        assert found.blocks[i][: len(before)] == before
    assert (found.blocks.counts == found.prompt // found.block).all()


def test_sessions_share_no_blocks_unless_they_have_a_prefix_in_common():
    found = sessions()
    opened = np.flatnonzero(found.first)
    owners = [set(found.blocks[i]) for i in opened]
    assert len(set().union(*owners)) == sum(map(len, owners))
    common = drawn(batch=50, shared_prefix={"tokens": 100, "number": 1})
    assert {tuple(common.blocks[i][:6]) for i in range(50)} == {tuple(common.blocks[0][:6])}
    assert len({common.blocks[i][6] for i in range(50)}) == 50
    assert (common.prompt == 1100).all()


def test_each_session_has_one_of_the_prefixes():
    found = drawn(batch=300, shared_prefix={"tokens": 64, "number": 3})
    assert len({tuple(found.blocks[i][:4]) for i in range(300)}) == 3


def test_answers_of_a_prompt_stand_beside_each_other_and_share_its_blocks():
    found = drawn(batch=50, answers=4, prompt={"law": "uniform", "low": 1, "high": 900}, output={"law": "uniform", "low": 1, "high": 90})
    alone = drawn(batch=50, prompt={"law": "uniform", "low": 1, "high": 900})
    assert found.prompt.reshape(50, 4).tolist() == np.repeat(alone.prompt[:, None], 4, axis=1).tolist()
    assert {tuple(found.blocks[i]) for i in range(8)} == {tuple(found.blocks[0]), tuple(found.blocks[4])}
    owners = [set(found.blocks[i]) for i in range(0, 200, 4)]
    assert len(set().union(*owners)) == sum(map(len, owners))
    assert len(set(found.output[:4].tolist())) > 1
    together = drawn(batch=20, answers=4, shared_prefix={"tokens": 32, "number": 1}, prompt={"law": "uniform", "low": 20, "high": 900})
    assert len({tuple(together.blocks[i][:2]) for i in range(80)}) == 1
    assert len({tuple(together.blocks[i]) for i in range(80)}) == 20


def test_blocks_are_those_of_the_class_whose_prompts_have_tokens_in_common():
    """A turn begins with the one before; no other two prompts have a block in common."""
    classes = [{"name": "chat", "sessions": {"turns": 3, "think": "5 s"}, **PLAIN}, {"name": "batch", **PLAIN}]
    found = requests_in(spec(arrivals={"law": "poisson", "rate": "1 1/s"}, duration="60 s", classes=classes, block=64)).trace
    assert found.block == 64
    assert (found.blocks.counts == found.prompt // 64).all()
    first = found.follows < 0
    assert set(found.kind[~first]) == {0}
    assert len(np.unique(found.blocks.held)) == (found.prompt[found.kind == 1] // 64).sum() + sum(
        max(found.prompt[i] // 64 for i in range(len(found)) if root(found, i) == opening)
        for opening in np.flatnonzero(first & (found.kind == 0))
    )


def test_without_history_turns_share_nothing():
    found = sessions(history=False)
    assert found.prompt.max() <= 90
    assert len(np.unique(found.blocks.held)) == len(found.blocks.held)


def test_a_call_of_a_tool_is_a_request_that_goes_on_with_its_answer():
    found = drawn(batch=20, tools={"calls": 2, "time": "5 s", "tokens": 30})
    assert len(found) == 60
    later = ~found.first
    assert (found.pause[later] == 5).all()
    assert found.prompt.reshape(3, 20)[:, 0].tolist() == [1000, 1130, 1260]


def test_users_send_the_next_request_after_their_last_one_and_a_thought():
    found = drawn(users={"number": 3, "think": "2 s"}, count=8)
    assert found.follows.tolist() == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert found.pause.tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
    assert found.arrival.tolist() == [0, 0, 0, 2, 2, 2, 4, 4]


def test_users_begin_over_their_ramp():
    assert drawn(users={"number": 4, "ramp": "8 s"}, count=4).arrival.tolist() == [0, 2, 4, 6]


def test_users_hold_sessions_one_after_another():
    found = drawn(users=2, count=4, sessions={"turns": 2, "think": "3 s"})
    assert found.first.sum() == 2
    last_of_first = np.flatnonzero(found.follows == 0)[0]
    assert found.prompt[last_of_first] == 2100
    assert found.prompt[np.flatnonzero(found.follows == last_of_first)[0]] == 1000  # another session of the same user


def test_all_times_grow_with_their_scale():
    plain, slow = (drawn(users={"number": 2, "think": "2 s"}, count=6, time_scale=scale) for scale in (1, 3))
    assert np.array_equal(slow.arrival, 3 * plain.arrival)
    assert np.array_equal(slow.pause, 3 * plain.pause)


# ------------------------------------------------------------------------------------------ classes


def test_classes_share_arrivals_by_their_weights_and_keep_what_they_say():
    found = arriving(
        {"law": "poisson", "rate": "2 1/s"},
        targets={"e2e": "9 s"},
        classes=[{"name": "a", "weight": 3, "targets": {"ttft": "1 s"}, "priority": 2}, {"name": "b", "prompt": 7}],
    )
    assert (found.kind == 0).mean() == pytest.approx(0.75, abs=0.02)
    assert set(found.prompt[found.kind == 1]) == {7}
    assert [(one.name, one.priority, one.ttft, one.e2e) for one in found.classes] == [("a", 2, 1.0, 9.0), ("b", 0, None, 9.0)]


def test_classes_may_have_times_of_their_own():
    found = arriving(
        {"law": "poisson", "rate": "1 1/s"},
        classes=[{"name": "live"}, {"name": "night", "batch": 500}, {"name": "loop", "users": 4, "count": 40}],
    )
    assert (found.arrival[found.kind == 1] == 0).all()
    assert np.bincount(found.kind)[1:].tolist() == [500, 40]
    assert (found.follows[found.kind == 2] >= 0).sum() == 36


def test_a_class_with_an_end_of_its_own_does_not_move_the_others():
    one = arriving({"law": "poisson", "rate": "1 1/s"}, classes=[{"name": "live"}])
    two = arriving({"law": "poisson", "rate": "1 1/s"}, classes=[{"name": "live"}, {"name": "night", "batch": 5}])
    assert np.array_equal(one.prompt, two.prompt[two.kind == 0])


# ------------------------------------------------------------------------------------------ what is refused


POISSON = {"law": "poisson", "rate": "2 1/s"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "expected trace, or one of arrivals, users and batch: when requests come"),
        ({"arrivals": POISSON}, "the key 'duration', or 'count', is missing: how long requests come"),
        ({"arrivals": POISSON, "duration": "1 h", "count": 5}, "count: duration stands beside it and says how many requests there are; give one of them"),
        ({"arrivals": POISSON, "batch": 5}, "batch: arrivals stands beside it and says when requests come; give one of them"),
        ({"users": 5}, "the key 'count' is missing: how many requests the users send in all"),
        ({"users": 5, "duration": "1 h"}, "duration: users go on until all are answered; give count"),
        ({"batch": 5, "limit": 3}, "limit: only a trace has it; give count"),
        ({"batch": 5, "from": "3 s"}, "from: only a trace has it; leave it out"),
        ({"batch": 5, "rate_scale": 2}, "rate_scale: nothing arrives at a rate; leave it out"),
        ({"batch": 5, "block": 64}, "block: no prompts have tokens in common (sessions, tools, shared_prefix, answers); leave it out"),
        ({"batch": 5, "answers": 2, "sessions": {"turns": 2, "think": "1 s"}}, "answers: with sessions a prompt has one answer; leave it out"),
        ({"batch": 5, "answers": 2, "classes": [{"name": "a", "tools": {"calls": 1, "time": "1 s", "tokens": 9}}]}, "classes: 'a': answers: with tools a prompt has one answer; leave it out"),
        ({"batch": 5, "prompt": None}, "the key 'prompt' is missing: tokens of a request's prompt"),
        ({"batch": 5, "prompt": 0}, "prompt: a request has at least one token of it"),
        ({"batch": 5, "output": [3, 0]}, "output: a request has at least one token of it"),
        ({"batch": 5, "prompt": {"law": "lognormal", "median": 5}}, "prompt: law lognormal takes median and p95 or mean and cv; got median"),
        ({"batch": 5, "prompt": {"law": "lognormal", "median": 5, "p95": 2}}, "prompt: expected a p95 of no less than the median, got median 5 and p95 2"),
        ({"batch": 5, "prompt": {"law": "uniform", "low": 5, "high": 2}}, "prompt.high: expected no less than low, got low 5 and high 2"),
        ({"batch": 5, "prompt": {"law": "uniform", "low": 5, "high": 9, "cv": 1}}, "prompt.cv: law uniform has none, only lognormal; leave it out"),
        ({"batch": 5, "prompt": {"law": "zipf"}}, "prompt.law: expected one of fixed, lognormal, uniform, empirical, got 'zipf'"),
        ({"batch": 5, "prompt": 1e9}, "prompt: expected at most 10000000, got 1000000000.0"),
        ({"batch": 5, "correlation": 0.5}, "correlation: prompt is the same for all; leave it out"),
        ({"duration": "1 h", "classes": [{"name": "a", "batch": 5}]}, "duration: every class says how long its requests come; leave it out"),
        ({"batch": 5, "correlation": 2}, "correlation: expected at most 1, got 2"),
        ({"arrivals": {"law": "poisson", "rate": 2}, "count": 5}, "arrivals.rate: expected a quantity in 1/s, such as '2.5 1/s', got 2"),
        ({"arrivals": {"law": "poisson", "rate": "-2 1/s"}, "count": 5}, "arrivals.rate: expected more than 0 1/s, got '-2 1/s'"),
        ({"arrivals": {"law": "poisson", "rate": "2 s"}, "count": 5}, "arrivals.rate: expected a quantity in 1/s, got '2 s': 's' is not a unit of 1/s"),
        ({"arrivals": {"law": "diurnal", "rates": ["0 1/s"]}, "count": 5}, "arrivals.rates: expected one above 0 1/s, all are 0; nothing arrives"),
        ({"batch": 5, "sessions": {"turns": 0, "think": "1 s"}}, "sessions.turns: a session has at least one"),
        ({"batch": 5, "classes": [{"name": "a"}, {"name": "a"}]}, "classes: 'a' is there twice"),
        ({"batch": 5, "classes": [{"name": "a", "batch": 3}]}, "batch: every class has its own; leave it out"),
        ({"batch": 5, "classes": [{"name": "a"}, {"name": "b", "batch": 3, "weight": 2}]}, "classes: 'b': weight: its requests come by its own batch; leave it out"),
        ({"batch": 5, "promt": 3}, "promt: unknown key 'promt'; did you mean 'prompt'?"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_at_its_place(data, message):
    with pytest.raises(SpecError) as caught:
        spec(**{**PLAIN, **data})
    assert str(caught.value) in (f"f.yaml: requests.{message}", f"f.yaml: requests: {message}")


def test_too_many_requests_are_refused_before_they_are_drawn():
    with pytest.raises(
        CrossflowError, match=r"^arrivals: about 7,200,000,000 requests would come, more than the 20,000,000 that are drawn"
    ):
        drawn(arrivals=POISSON, duration="1000000 h")


def test_a_time_in_which_nothing_comes_is_told():
    with pytest.raises(CrossflowError, match=r"^duration: no request comes in this time; give a longer one, or a larger rate$"):
        drawn(arrivals={"law": "poisson", "rate": "1e-6 1/s"}, duration="1 s")


def test_bursts_without_end_are_refused():
    law = {"law": "bursts", "rate": "1 1/s", "on": "1 us", "off": "1 us"}
    with pytest.raises(CrossflowError, match=r"^arrivals: about 500,000,000 bursts would come, more than the 20,000,000 that are drawn"):
        drawn(arrivals=law, duration="1000 s")


def test_a_class_that_no_session_falls_to_is_empty():
    found = drawn(batch=1, classes=[{"name": "a", "weight": 1e-9, "sessions": {"turns": 2, "think": "1 s"}}, {"name": "b"}])
    assert found.kind.tolist() == [1]


def test_prompts_that_grow_without_end_are_refused():
    with pytest.raises(CrossflowError, match=r"^sessions: a prompt would have 10,999,000 tokens, more than 10,000,000"):
        drawn(batch=1, prompt=10_000, output=1000, sessions={"turns": 1000, "think": "1 s"})


def test_generators_of_one_quantity_differ_by_class_and_by_seed():
    assert len({Dice(seed=seed, kind=kind).of(0).random() for seed in range(3) for kind in range(3)}) == 9


def test_a_curve_ends_inside_an_hour():
    found = arriving({"law": "diurnal", "rates": ["1 1/s", "4 1/s"]}, duration="90 min").arrival
    assert np.bincount((found / 1800).astype(int), minlength=3) == pytest.approx([1800, 1800, 7200], rel=0.08)
    assert found[-1] == pytest.approx(5400, rel=0.01)


@pytest.mark.parametrize(
    ("law", "rate"),
    [
        ({"law": "poisson", "rate": "2 1/s"}, 2.0),
        ({"law": "bursts", "rate": "20 1/s", "on": "5 s", "off": "20 s", "idle_rate": "1 1/s"}, 4.8),
        ({"law": "diurnal", "rates": ["1 1/s", "4 1/s"]}, 2.5),
    ],
)
def test_a_law_knows_its_mean_rate(law, rate):
    assert ArrivalLaw.model_validate(law).mean_rate == pytest.approx(rate)


def test_a_curve_may_have_a_period_of_its_own():
    found = arriving({"law": "diurnal", "rates": ["1 1/s", "9 1/s"], "period": "20 s"}, duration="2000 s").arrival
    assert ((found % 20) >= 10).mean() == pytest.approx(0.9, abs=0.02)
