"""Passes beside which sharded weights travel: against a plain loop over events, and closed forms where layers are alike."""

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation.timelines import simulate
from crossflow.engine.maxplus import NO_PATH, applied, chained, repeated
from crossflow.engine.runs.sharded import UnitTimes, backward_pass, forward_pass

LAYER = ((0,), (1, 2), (3,))  # embedding, attention and MLP, head


def gathered(compute, gathers, first, layers):
    """Of L layers of c and g: the first gather then all layers, or all gathers then the last layer."""
    return np.maximum(first + compute, gathers + compute / layers)


def reduced(compute, gathers, reduces, first, last, layers):
    """Of L > 1 layers of c, g and r in the order g1 g2 r1 g3 ...: computing all the way, communicating, or the latter in between."""
    one, both = compute / layers, gathers + reduces
    beside = both + np.maximum(compute - np.minimum(gathers, reduces), 0.0) / layers
    return np.maximum(np.maximum(first + compute + last, beside), 2.0 * one + both * (layers - 1.0) / layers)


def alike(n, seed=0):
    rng = np.random.default_rng(seed)
    compute, gather, reduce = rng.random((3, 1, n))
    none = np.zeros((1, n))
    return UnitTimes(before=none, compute=compute, arrive=gather, leave=reduce, host=none), rng


@pytest.mark.parametrize("layers", [2, 3, 17, 96])
def test_layers_alike_take_what_the_closed_forms_say(layers):
    times, _ = alike(256)
    c, g, r = times.compute[0], times.arrive[0], times.leave[0]
    count, whole = np.array([float(layers)]), times.times(np.array([[float(layers)]]))
    none = np.zeros((1, 256))
    np.testing.assert_allclose(forward_pass(((0,),), count, whole, none), gathered(layers * c, layers * g, g, layers), rtol=1e-12)
    found = backward_pass(((0,),), count, whole, none)
    np.testing.assert_allclose(found, reduced(layers * c, layers * g, layers * r, g, r, layers), rtol=1e-12)


def loop(order, times, i, *, back):
    """One point, event by event: when kernels, gathers and reductions of units in `order` end."""
    units = data = host = 0.0
    there = [None] * (len(order) + 1)

    def gather(at):
        nonlocal data
        if at < len(order):
            data += times.arrive[order[at], i]
            there[at] = data

    gather(0)
    for at, unit in enumerate(order):
        if not back:
            gather(at + 1)  # gathers wait for nothing
        units = max(units + times.before[unit, i], there[at]) + times.compute[unit, i]
        if back:
            gather(at + 1)
            host += times.host[unit, i]
            data = max(data, units, host) + times.leave[unit, i]
    return max(units, data, host)


@pytest.mark.parametrize("layers", [1, 2, 32])
def test_unlike_parts_take_what_a_loop_over_events_says(layers):
    rng, n = np.random.default_rng(layers), 64
    one = UnitTimes(**{name: rng.random((4, n)) for name in ("before", "compute", "arrive", "leave", "host")})
    counts = np.array([1.0, layers, layers, 1.0])
    order = [0, *[1, 2] * layers, 3]
    whole, none = one.times(counts[:, None]), np.zeros((4, n))
    ahead, back = forward_pass(LAYER, counts, whole, none), backward_pass(LAYER, counts, whole, none)
    np.testing.assert_allclose(ahead, [loop(order, one, i, back=False) for i in range(n)], rtol=1e-12)
    np.testing.assert_allclose(back, [loop(order[::-1], one, i, back=True) for i in range(n)], rtol=1e-12)


def test_a_power_is_as_many_blocks_one_after_the_other():
    rng = np.random.default_rng(1)
    block, state = rng.random((3, 3, 8)), rng.random((3, 8))
    block[0, 1] = NO_PATH
    slow = state
    for _ in range(13):
        slow = applied(block, slow)
    np.testing.assert_allclose(repeated(block, 13, state), slow, rtol=1e-12)
    np.testing.assert_allclose(applied(chained(block, block), state), applied(block, applied(block, state)), rtol=1e-12)


@pytest.mark.parametrize(("plan", "software"), [("tp4-dp16-z3", "pytorch-fsdp"), ("dp64-z3", "ideal"), ("dp64-z3", "pytorch")])
def test_passes_near_balance_take_what_their_events_take(plan, software):
    """Attention computes as long as its weights travel, the MLP does not: an even share of both would hide the waits."""
    system, workload = {"template": "h100-ib-cluster", "nodes": 8}, {"model": "llama2-7b", "global_batch": 512}
    timeline = simulate(crossflow.from_dict({"system": system, "workload": workload, "strategy": plan, "software": software}))
    passes = np.array([one.label in ("F", "B") for one in timeline.passes])[timeline.slots.passed]
    np.testing.assert_allclose(timeline.stretch[passes], 1.0, rtol=1e-9)


@pytest.mark.parametrize("software", ["torchtitan", "nanotron"])
def test_plans_that_share_out_other_things_take_in_a_batch_what_they_take_alone(software):
    """Nothing, states, gradients and weights; nanotron reduces beside passes, but gathers before them."""
    plans = [f"tp4-pp{stages}-dp{32 // stages}{words}" for stages in (2, 4) for words in ("", "-z1", "-z2", "-z3")]
    system, workload = {"template": "a100-ib-cluster", "nodes": 16}, {"model": "llama2-7b", "global_batch": 256}
    scenario = crossflow.from_dict({"system": system, "workload": workload, "software": software, "strategy": plans[0]})
    together = crossflow.evaluate(scenario, {"strategy": plans})
    alone = [crossflow.evaluate(scenario, {"strategy": [plan]}) for plan in plans]
    np.testing.assert_allclose(together.step_time, [float(one.step_time[0]) for one in alone], rtol=1e-12)
    assert len(set(together.step_time.tolist())) == len(plans)
