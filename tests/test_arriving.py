"""Keys and values beside what steps of their engines send over the same ports: by hand, laws, and the closed form beside the replay."""

from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import replaying
from crossflow.answers.evaluation.replaying import engines_of
from crossflow.answers.scenario import requests_of
from crossflow.base.arrays import points
from crossflow.engine.runs import service, service_table
from crossflow.engine.runs.arriving import HandoverEnd, sent_outside, slowed_step
from crossflow.engine.runs.outcome import BREAKDOWN, Outcome

PORT = "system.network.inter.bandwidth"


def steady(strategy="tp16-dp2", workers="tp8", rate="2 1/s", **more):
    """A service on four nodes, with four workers behind ports of 5 GB/s."""
    serving = {"prefill": {"workers": 4, "strategy": workers}, "arrival_rate": rate}
    return {
        "system": {"template": "dgx-h100", "nodes": 4, "network": {"inter": {"bandwidth": "5 GB/s"}}},
        "workload": {"model": "llama3-70b", "task": "serving", "prompt": 8000, "output": 200, "serving": serving, **more},
        "strategy": strategy,
    }  # fmt: skip


def replayed(data, count=300):
    workload = {key: value for key, value in data["workload"].items() if key not in ("prompt", "output")}
    rate = workload["serving"]["arrival_rate"]
    workload["serving"] = {"prefill": workload["serving"]["prefill"]}
    asked = {"arrivals": {"law": "poisson", "rate": rate}, "prompt": 8000, "output": 200, "count": count}
    return {**data, "workload": workload, "requests": asked}


def times(data):
    found = crossflow.predict(data).serving
    return np.array([found["ttft_s"], found["tpot_s"]])


def apart(data, monkeypatch):
    """The same where nothing that steps send meets what prompts bring."""
    with monkeypatch.context() as patch:
        for one in (service, service_table):
            patch.setattr(one, "sent_outside", lambda step, machine: np.zeros(1))
        replaying._table.cache_clear()
        found = times(data)
    replaying._table.cache_clear()
    return found


def a_step(time):
    parts = {name: points(time if name == "compute" else 0.0) for name in BREAKDOWN}
    one = points(1.0)
    return Outcome(
        total=points(time), breakdown=parts, communication={}, exposed={}, memory={}, flops=one, model_flops=one, energy=one, traffic=one,
        sent=(points(0.0), points(0.0)), bound={"compute": points(time)},
    )  # fmt: skip


def test_a_prompt_beside_steps_by_hand():
    """Steps of 10 ms send for 4 ms. A prompt of 50 ms that fills the port takes 70 ms, and they lose 20 ms; one at a quarter of its rate
    takes what it does alone, and they lose 1/9 of what it is under way: the 4 ms are 5.33 ms beside it."""
    full, quarter = (HandoverEnd(share=points(share)).meets(points(0.05), points(0.01), points(0.004)) for share in (1.0, 0.25))
    assert [float(full.time[0]), float(full.lost[0])] == pytest.approx([0.07, 0.02])
    assert [float(quarter.time[0]), float(quarter.lost[0])] == pytest.approx([0.05, 0.05 * (1 - 10 / (6 + 4 / 0.75))])
    # One prompt in ten steps: 2 ms of each. Of two engines that wait for each other either may receive.
    one = slowed_step(a_step(0.01), full, points(0.1), points(1.0))
    assert one.total[0] == pytest.approx(0.012)
    receives = 0.1 * 0.07 / 0.012
    two = slowed_step(a_step(0.01), full, points(0.1), points(2.0))
    assert 0.012 < two.total[0] < 0.01 / (1 - 2 / 7 * (1 - (1 - receives) ** 2)) + 1e-9
    for step in (one, two):
        assert sum(part[0] for part in step.breakdown.values()) == pytest.approx(step.total[0])
        assert sum(part[0] for part in step.bound.values()) == pytest.approx(step.total[0])


def test_a_port_carries_what_both_send_and_nothing_is_sooner():
    rng = np.random.default_rng(1)
    for _ in range(50):
        time, sends, alone, prompts = rng.uniform(0.01, 0.1), rng.uniform(0, 1), rng.uniform(0.001, 0.2), rng.uniform(0, 1)
        prompts = min(prompts, time / alone)  # what the port carries at all
        met = HandoverEnd(share=points(1.0)).meets(points(alone), points(time), points(sends * time))
        longer = slowed_step(a_step(time), met, points(prompts), points(1.0)).total[0]
        assert met.time[0] >= alone
        assert longer >= max(time, sends * time + prompts * alone) * (1 - 1e-6)


def test_more_prompts_and_more_engines_in_step_are_never_faster():
    met = HandoverEnd(share=points(1.0)).meets(points(0.05), points(0.01), points(0.004))
    found = np.array([[slowed_step(a_step(0.01), met, points(n), points(e)).total[0] for n in (0.0, 0.05, 0.1)] for e in (1.0, 2.0, 8.0)])
    assert (np.diff(found, axis=0)[:, 1:] > 0).all()
    assert (np.diff(found, axis=1) > 0).all()
    assert found[:, 0] == pytest.approx([0.01] * 3)
    nothing = HandoverEnd(share=points(1.0)).meets(points(0.05), points(0.01), points(0.0))
    assert slowed_step(step := a_step(0.01), nothing, points(0.1), points(2.0)) is step


@pytest.mark.parametrize(("strategy", "workers"), [("tp8-dp4", "tp8"), ("tp16-dp2", "tp8"), ("tp8-dp4", "tp16")])
def test_engines_inside_nodes_have_their_ports_for_themselves(strategy, workers, monkeypatch):
    data = replayed(steady(strategy, workers))
    engines = engines_of(one := crossflow.from_dict(data), requests_of(one))
    assert engines.writers.table.sends == (strategy != "tp8-dp4")
    assert engines.readers.table.sends == (workers != "tp8")
    for asked in (steady(strategy, workers), replayed(steady(strategy, workers), 40)):
        alone, found = apart(asked, monkeypatch), times(asked)
        assert (found == alone).all() == (workers == "tp8" and strategy == "tp8-dp4")
        assert found[0] >= alone[0]


@pytest.mark.parametrize(("strategy", "workers", "rate"), [("tp16-dp2", "tp8", "2 1/s"), ("tp32", "tp16", "1 1/s")])
def test_the_closed_form_and_the_replay_lose_alike(strategy, workers, rate, monkeypatch):
    """Of a first token and a token what sharing adds, and the times themselves."""
    data = steady(strategy, workers, rate)
    closed, events = times(data), times(replayed(data))
    more = [found - apart(asked, monkeypatch) for found, asked in ((closed, data), (events, replayed(data)))]
    assert closed == pytest.approx(events, rel=0.04)
    assert (more[0] > 0).all()
    assert more[0] == pytest.approx(more[1], rel=0.7)


def test_a_wider_port_is_never_slower():
    found = np.array([times({**(data := steady()), "system": {**data["system"], "network": {"inter": {"bandwidth": f"{rate} GB/s"}}}})
        for rate in (3, 5, 20, 50)])  # fmt: skip
    assert (np.diff(found, axis=0) < 0).all()


def test_what_a_device_sends_keeps_its_port_busy():
    step = replace(a_step(1.0), sent=(points(7.0), points(5e9)))

    class Machine:
        class architecture:  # noqa: N801
            class inter:  # noqa: N801
                bandwidth = points(50e9)

    assert sent_outside(step, Machine)[0] == pytest.approx(0.1)


def test_where_no_network_joins_the_nodes_a_prompt_never_arrives_and_memory_is_known():
    given = {
        "system": {"template": "v100", "nodes": 2, "devices_per_node": 4, "network": {"intra": {"topology": "switch"}}},
        "workload": {"model": "llama2-7b", "task": "serving", "prompt": 100, "output": 32, "global_batch": 8, "dtype": "fp16",
            "serving": {"prefill": {"strategy": "tp2", "workers": 2}}},
        "strategy": "tp4-dp2",
        "software": "sglang",
    }  # fmt: skip
    found = crossflow.predict(crossflow.from_dict(given))
    assert np.isinf(found.score.serving["ttft_s"]).all()
    assert np.isfinite(found.score.memory_needed).all()
    never = HandoverEnd(share=points(1.0)).meets(points(np.inf), points(1.0), points(0.5))
    assert (never.time, never.late, never.lost) == (np.inf, 0.0, 0.0)
