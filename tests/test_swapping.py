"""Requests that lose their room in the cache: keys and values go to the host and come back, in the place of being computed anew."""

import copy

import numpy as np
import pytest

import crossflow
from crossflow.base.errors import SpecError
from crossflow.engine.service.ticket import Ticket
from crossflow.workload.requests.record import RequestTrace
from tests import naive_service
from tests.test_service_events import poisson, replica, table, through


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["vllm", "tensorrt-llm"])
@pytest.mark.parametrize(("pages", "swap", "tokens"), [(110, 1e-6, np.inf), (150, 1e-4, np.inf), (110, 1e-5, 400)])
def test_jumps_with_swap_are_what_single_steps_are(kind, pages, swap, tokens):
    trace, steps = poisson(30.0, 150), table()
    limits = {"chunk": 2048, "requests": 64, "pages": pages, "page": 16, "swap": swap, "swap_tokens": tokens}
    found = through(trace, replica(steps, kind, **limits))
    naive = naive_service.Naive(steps, kind, **limits)
    items, single = naive_service.run(trace, naive)
    assert naive.swaps > 3
    assert found.evicted.tolist() == [each.evicted for each in items]
    assert found.last == pytest.approx([each.last for each in items], rel=1e-9)
    assert found.jumps[0].steps.sum() == single


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm"])
def test_times_between_tokens_are_kept_where_requests_come_back(kind):
    """They add up to the time in which requests write, of every token one."""
    trace = poisson(30.0, 150)
    found = through(trace, replica(table(), kind, pages=120, swap=1e-5))
    assert found.evicted.any()
    assert found.gaps.sum() == trace.output.sum() - len(trace)
    assert (found.gap * found.gaps).sum() == pytest.approx((found.last - found.first).sum(), rel=1e-9)


def test_a_fast_link_saves_the_computing_and_no_room_is_computing_anew():
    trace = poisson(30.0, 150)
    anew, fast, slow, none = (
        through(trace, replica(table(), pages=110, **more))
        for more in ({}, {"swap": 0.0}, {"swap": 1e-3}, {"swap": 1e-3, "swap_tokens": 0})
    )
    times = [one.times["e2e"].mean() for one in (anew, fast, slow)]
    assert times[1] < times[0] < times[2]
    assert none.last.tobytes() == anew.last.tobytes()


def test_what_the_host_keeps_for_an_engine_that_fails_is_lost():
    engine, trace = replica(table(), pages=110, swap=1e-6), poisson(30.0, 150)
    for i, (prompt, output) in enumerate(zip(trace.prompt.tolist(), trace.output.tolist(), strict=True)):
        engine.submit(Ticket(i, 0.0, prompt, output), 0.0)
    while not engine.swapped:
        engine.commit()
    away, bare = sum(ticket.away for ticket in engine.waiting), copy.deepcopy(engine)
    assert engine.swapped == away > 0
    for ticket in bare.waiting:  # the same engine, had it kept nothing on the host
        ticket.away = 0
    bare.fail(engine.since, keeps=True)
    _, left = engine.fail(engine.since, keeps=True)
    assert engine.swapped == 0
    assert not any(ticket.away for ticket in left)
    assert engine.lost == bare.lost + away


BASE = {
    "name": "s", "system": {"template": "dgx-h100", "devices": 1}, "strategy": "tp1", "software": "vllm",
    "workload": {"model": "llama3-8b", "task": "serving", "dtype": "bf16"},
}  # fmt: skip


def scenario(serving):
    work = {**BASE["workload"], "prompt": 500, "output": 300, "global_batch": 60, "serving": serving}
    return crossflow.from_dict({**BASE, "workload": work})


def test_a_scenario_swaps_over_the_bus_of_its_host():
    trace = RequestTrace.of(np.zeros(60), np.full(60, 500), np.full(60, 300))
    found = {}
    for mode, space in (("recompute", None), ("swap", None), ("swap", "1 MB")):
        serving = {"cache_tokens": 20_000, "preemption_mode": mode} | ({"swap_space": space} if space else {})
        found[mode, space] = crossflow.serve(
            crossflow.from_dict(
                {**BASE, "workload": {**BASE["workload"], "prompt": 500, "output": 300, "global_batch": 60, "serving": serving}}
            ),
            trace,
        )
    limits = found["swap", None].run.writers.limits
    assert limits.swap == pytest.approx(2 * 2 * 8 * 128 * 32 / 50e9, rel=0.3)  # 128 KiB of a token over PCIe 5
    swapped, anew = (found[key].found for key in (("swap", None), ("recompute", None)))
    assert swapped.evicted.any()
    assert sum(jumps.tokens.sum() for jumps in swapped.jumps) == trace.prompt.sum() < sum(jumps.tokens.sum() for jumps in anew.jumps)
    assert found["swap", "1 MB"].found.last.tobytes() == anew.last.tobytes()  # room for eight tokens


def test_room_on_the_host_without_swapping_is_refused():
    serving = {"swap_space": "4 GiB"}
    with pytest.raises(SpecError, match="swap_space: only preemption_mode: swap uses it; give that, or leave it out"):
        crossflow.from_dict(
            {**BASE, "workload": {**BASE["workload"], "prompt": 500, "output": 300, "global_batch": 60, "serving": serving}}
        )


@pytest.mark.parametrize("kind", ["vllm", "tensorrt-llm"])
def test_requests_that_come_back_together_have_room_for_what_they_write(kind):
    """Each of them writes in the step with which it comes back, into a page that the next one must not be given."""
    engine, trace = replica(table(), kind, pages=800, page=1, swap=1e-6), poisson(30.0, 100)
    for i, (prompt, output) in enumerate(zip(trace.prompt.tolist(), trace.output.tolist(), strict=True)):
        engine.submit(Ticket(i, 0.0, prompt, output), 0.0)
    together = 0
    while engine.to_do:
        now = engine.ends
        engine.finish(now)
        assert engine.pages <= 800
        engine.plan(now)
        together = max(together, len(engine.returned))
    assert together > 1
