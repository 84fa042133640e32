"""A service in steady state: laws of its flows, an event simulation with the same steps, and what a scenario may say of it."""

import heapq
import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.events import events as listed_events
from crossflow.answers.evaluation.fleets import coupled
from crossflow.answers.scenario import from_document
from crossflow.answers.steps.machines import machine
from crossflow.answers.steps.services import service_of
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.base.files import Document
from crossflow.engine.runs.memory import memory
from crossflow.engine.runs.service import guessed
from crossflow.engine.runs.transformer import transformer_step
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.parallel.strategy.transformers import plan_of
from crossflow.workload.job import Chunk

WORKLOAD = {"model": "llama3-8b", "task": "serving", "prompt": 1000, "output": 200, "global_batch": 32}


def scenario(strategy="tp2", devices=2, software=None, system=None, **workload):
    data = {
        "system": {**(system or {"template": "dgx-h100"}), "devices": devices}, "workload": {**WORKLOAD, **workload}, "strategy": strategy,
        **({} if software is None else {"software": software}),
    }  # fmt: skip
    return from_document(Document(file="here.yaml", data=data), None, "here")


def figures(*args, **workload):
    score = evaluate(scenario(*args, **workload))
    assert score.feasible[0], score.why(0)
    return {name: float(value[0]) for name, value in score.serving.items()} | {"step": float(score.step_time[0])}


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "more", [{}, {"serving": {"chunk": 512}}, {"global_batch": 900}, {"serving": {"prefix_hits": 0.5}}, {"prompt": 30000}]
)
def test_requests_in_flight_are_those_of_littles_law(more):
    found = figures(**more)
    flight = more.get("global_batch", 32)
    assert found["request_throughput_per_s"] * found["e2el_s"] == pytest.approx(flight, rel=2e-3)
    assert found["output_throughput_tokens_per_s"] == pytest.approx(200 * found["request_throughput_per_s"])
    assert found["e2el_s"] == pytest.approx(found["ttft_s"] + 199 * found["tpot_s"])


def test_the_same_rate_arrives_or_is_in_flight():
    """Requests that arrive as often as a fixed number in flight ends decode in about as many places, and wait no less; their number varies,
    so that one of them sees more than the mean, and their prompts come in bursts."""
    closed = figures(global_batch=64)
    opened = figures(global_batch=64, serving={"arrival_rate": f"{closed['request_throughput_per_s']} 1/s"})
    assert opened["requests_decoding"] == pytest.approx(closed["requests_decoding"], rel=0.04)
    assert opened["tpot_s"] == pytest.approx(closed["tpot_s"], rel=0.04)
    assert opened["ttft_s"] >= closed["ttft_s"] * (1 - 5e-3)


def test_more_requests_are_never_answered_sooner_and_never_fewer_a_second():
    found = evaluate(scenario(), {"workload.global_batch": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]}).serving
    for name in ("ttft_s", "tpot_s", "e2el_s", "output_throughput_tokens_per_s"):
        assert (np.diff(found[name]) >= -1e-3 * found[name][1:]).all(), name


def test_points_together_are_points_alone():
    points = {
        "workload.global_batch": [1, 7, 64, 300],
        "workload.serving.chunk": [512, 1024, 2048, 8192],
        "workload.prompt": [10, 5000, 700, 64],
    }
    whole = evaluate(scenario(), points)
    for i in range(4):
        alone = evaluate(scenario(), {path: [values[i]] for path, values in points.items()})
        assert {name: values[0] for name, values in alone.serving.items()} == pytest.approx(
            {name: values[i] for name, values in whole.serving.items()}, rel=1e-3
        )


def test_with_one_request_a_step_writes_and_the_prompt_is_a_step_of_its_own():
    """Nothing decodes beside the prompt of the only request, and no prompt is read beside its tokens."""
    found, alone = figures(global_batch=1), evaluate(scenario(task="decode", global_batch=1)).step_time[0]
    assert found["tpot_s"] == pytest.approx(alone, rel=0.02)
    assert found["requests_waiting"] == 0.0


def test_speculation_gives_the_tokens_of_leviathan():
    assert guessed([0.8] * 4) == pytest.approx(sum(0.8**i for i in range(5)))
    plain, guessing = (figures(serving={"speculation": {"tokens": 3, "acceptance": a}}) for a in (0.0, 0.9))
    assert guessing["tpot_s"] < plain["tpot_s"] / 2
    assert figures()["tpot_s"] < plain["tpot_s"]  # guesses that are never right only cost


def test_workers_for_prompts_leave_replicas_alone():
    """No step that writes reads a prompt, and devices, energy and the queue count the workers."""
    apart = {"serving": {"prefill": {"strategy": "tp2", "workers": 3}}}
    found, score = figures(**apart), evaluate(scenario(**apart))
    assert score.devices[0] == 2 + 3 * 2
    assert found["itl_p99_s"] == pytest.approx(found["tpot_s"])
    fewer = figures(serving={"prefill": {"strategy": "tp2", "workers": 1}})
    assert fewer["ttft_s"] > found["ttft_s"]
    assert found["tpot_s"] < figures()["tpot_s"]


def test_a_service_that_is_asked_too_much_says_so():
    late = crossflow.predict(scenario(serving={"arrival_rate": "1000 1/s"}))
    assert (late.feasible, late.reason) == (
        False, "requests arrive faster than the service can answer them; lower serving.arrival_rate, or add replicas",
    )  # fmt: skip
    full = crossflow.predict(scenario("tp1", 1, model="llama3-70b"))
    assert not full.feasible


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dp4", "tp2-pp2", "tp4-sp"])
def test_requests_that_arrive_have_no_number_that_replicas_divide(strategy):
    """The number in flight is neither needed nor divided; where it is given, a note says so."""
    data = scenario(strategy, 4, serving={"arrival_rate": "2 1/s"}).document.data
    without = {key: value for key, value in data["workload"].items() if key != "global_batch"}
    told = [crossflow.predict(crossflow.from_dict({**data, "workload": one})) for one in (without, {**without, "global_batch": 7})]
    one, other = (found.score.columns() for found in told)
    assert {key: str(value) for key, value in one.items()} == {key: str(value) for key, value in other.items()}
    assert [any("global_batch changes nothing here" in note for note in one.notes) for one in told] == [False, True]


def test_strategies_of_requests_that_arrive_are_read_as_they_are_listed():
    made = scenario("dp4", 4, serving={"arrival_rate": "2 1/s"})
    listed = every_strategy(made.workload, made.nodes)
    assert {"dp4", "tp2-dp2", "tp4-sp", "pp4"} <= set(listed)
    assert [scenario(text, 4, serving={"arrival_rate": "2 1/s"}).strategy_text for text in listed] == list(listed)


def test_a_sweep_over_tasks_says_where_keys_of_services_have_no_meaning(tmp_path):
    """A refusal, and no columns that are the same for every value."""
    data = {**scenario().document.data, "workload": {**WORKLOAD, "task": "decode"}}
    (tmp_path / "s.json").write_text(json.dumps({"name": "s", "scenario": data, "sweep": {"workload.serving.chunk": [128, 256]}}))
    with pytest.raises(SpecError, match=r"serving\.chunk: only task: serving has it, and task is decode; leave it out"):
        crossflow.run_study(tmp_path / "s.json", out=tmp_path / "out")


def test_the_cache_keeps_requests_outside_that_it_has_no_room_for():
    few, many = (figures("tp1", 1, prompt=30000, global_batch=n) for n in (4, 400))
    assert many["requests_decoding"] < 60
    assert many["requests_waiting"] > 300
    assert many["ttft_s"] > 20 * few["ttft_s"]


def test_an_engine_that_never_evicts_starts_a_request_when_all_its_output_has_room():
    """Requests that decode hold their mean length, of which those of 100 and 900 tokens have a share of 550 / 1000."""
    many = {"prompt": 100, "output": 900, "global_batch": 4000}
    found = {
        (admits, cache): figures("tp1", 1, {"like": "vllm", "engine": {"requests": 4000, "admits": admits, "cache": cache}}, **many)
        for admits, cache in (("written", 1.0), ("whole", 1.0), ("whole", 0.5))
    }
    written, whole, half = (one["requests_decoding"] for one in found.values())
    assert whole == pytest.approx(written * 550 / 1000, abs=1.0)
    assert half == pytest.approx(whole / 2, abs=1.0)
    assert found["whole", 1.0]["output_throughput_tokens_per_s"] < found["written", 1.0]["output_throughput_tokens_per_s"]


MIXTURE = {"model": "mixtral-8x7b", "prompt": 4000, "output": 100, "strategy": "tp4", "devices": 4}


def read_by(plan, users, workers=1, **workload):
    serving = {"prefill": {"strategy": plan, "workers": workers}}
    return figures(**{**MIXTURE, "serving": serving, "global_batch": users, **workload})


def test_ranks_of_a_worker_read_prompts_of_their_own():
    """A prompt alone waits for one rank of four, and for experts that no other rank uses; full ranks read four together, and as many
    prompts in a second as there is time for.
    """
    one, full, divided = read_by("dp4-ep4", 1), read_by("dp4-ep4", 4000, output=2), read_by("tp4", 1)
    alone, each = 4 * one["prompt_time_s"], 4 * full["prompt_time_s"]
    assert 1.2 * divided["prompt_time_s"] < alone < each < 4 * alone
    assert full["request_throughput_per_s"] == pytest.approx(1.0 / full["prompt_time_s"], rel=1e-3)
    assert full["prefill_share"] == pytest.approx(1.0, abs=1e-3)
    some = read_by("dp4-ep4", 16, workers=2)
    assert alone < 8 * some["prompt_time_s"] < each


@pytest.mark.parametrize(("plan", "meet"), [("dp2-ep2", True), ("dp2-etp2", True), ("tp2-ep2-etp1-dp2", False), ("tp2-dp2", False)])
def test_replicas_meet_where_experts_lie_over_several(plan, meet):
    parsed = plan_of(plan)
    assert parsed.replicas_meet == meet
    assert Layout.of([parsed], np.ones(1), 8).replicas_meet.tolist() == [meet]
    assert coupled(parsed) == meet


def test_replicas_that_hold_all_experts_are_services_of_their_own():
    """Each with half of the requests, which are dealt to them in turn; steps of one are not as long as those of the other."""
    both, one = (
        figures(**{**MIXTURE, "strategy": plan, "devices": devices, "serving": {"arrival_rate": rate}, "global_batch": 1})
        for plan, devices, rate in (("tp4-ep4-etp1-dp2", 8, "6 1/s"), ("tp4-ep4-etp1", 4, "3 1/s"))
    )
    assert both["tpot_s"] == pytest.approx(one["tpot_s"], rel=0.05)
    assert 0.8 * one["ttft_s"] < both["ttft_s"] < one["ttft_s"]


def test_ranks_that_each_have_a_part_of_every_expert_read_prompts_of_their_own():
    """All ranks use experts alike, whatever their loads, where each would wait for the fullest of those that share experts out."""
    uneven = {"experts": {"count": 8, "active": 2, "skew": 1.2}}
    cut, shared = (read_by(plan, 4000, output=2, **uneven)["prompt_time_s"] for plan in ("dp4-etp4", "dp4-ep4"))
    even = [read_by(plan, 4000, output=2)["prompt_time_s"] for plan in ("dp4-etp4", "dp4-ep4")]
    assert cut == pytest.approx(even[0], rel=1e-6)
    assert shared > 1.1 * even[1]
    one = read_by("dp4-etp4", 1)["prompt_time_s"]
    assert 0.25 * even[0] < one < 0.6 * even[0]


def test_ranks_with_room_for_several_prompts_read_them_together():
    """Four prompts of a quarter of the length in a step take as long as one, but for what they attend to."""
    engine = {"like": "vllm", "engine": {"chunk": 4000}}
    short, whole = (read_by("dp4-ep4", 4000, prompt=prompt, output=2, software=engine) for prompt in (1000, 4000))
    assert 3.9 < short["request_throughput_per_s"] / whole["request_throughput_per_s"] < 4.5


def test_a_replay_has_an_engine_for_each_rank_that_reads():
    data = {
        "system": {"template": "dgx-h100", "devices": 4}, "strategy": "tp4",
        "workload": {"model": "mixtral-8x7b", "task": "serving", "serving": {"prefill": {"strategy": "dp4-ep4", "workers": 2}}},
        "requests": {"count": 40, "arrivals": {"law": "poisson", "rate": "20 1/s"}, "prompt": 4000, "output": 20},
    }  # fmt: skip
    served = crossflow.serve(from_document(Document(file="here.yaml", data=data), None, "here"))
    found = served.run
    assert (found.readers.count, found.readers.group) == (8, 4)
    assert found.readers.count * float(found.readers.fleet.devices[0]) == served.scenario.readers == 8
    steps = sorted({step for jumps in found.found.jumps[:4] for step in zip(jumps.begun.tolist(), jumps.ended.tolist(), strict=True)})
    # Ranks of a worker make steps together: those of two ranks are one, or one ends before the other begins.
    assert len(steps) < sum(len(jumps.ended) for jumps in found.found.jumps[:4])
    assert all(after[0] >= before[1] for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize("plan", ["dp4-ep4", "dp4-etp4", "tp4", "tp2-pp2"])
def test_prompts_that_come_alone_take_what_steady_state_says(plan):
    """Hardly any arrive while another is read: the first token of a replay is that of the closed form."""
    data = {
        "system": {"template": "dgx-h100", "devices": 4}, "strategy": "tp4",
        "workload": {"model": "mixtral-8x7b", "task": "serving", "serving": {"prefill": {"strategy": plan, "workers": 2}}},
    }  # fmt: skip
    requests = {"count": 50, "arrivals": {"law": "poisson", "rate": "0.02 1/s"}, "prompt": 4000, "output": 20}
    served = crossflow.serve(from_document(Document(file="here.yaml", data={**data, "requests": requests}), None, "here"))
    rare = {**data["workload"], "prompt": 4000, "output": 20}
    rare["serving"] = rare["serving"] | {"arrival_rate": "0.02 1/s"}
    steady = crossflow.evaluate(from_document(Document(file="here.yaml", data={**data, "workload": rare}), None, "here"))
    assert served.latency["ttft_s"]["p50"] == pytest.approx(float(steady.serving["ttft_s"][0]), rel=0.02)
    assert served.latency["tpot_s"]["p50"] == pytest.approx(float(steady.serving["tpot_s"][0]), rel=0.02)
    readers, one = served.run.readers, np.ones(1)
    energies = [readers.energy(0.0 * one, 0.0 * one, 4000.0 * one, 2000.0 * one, time * one)[0] for time in (0.1, 0.3)]
    rests = readers.group > 1 or readers.limits.microbatches > 1
    assert energies[1] - energies[0] == pytest.approx(0.2 * readers.resting if rests else 0.0, rel=1e-9)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ({"output": 1}, "output: a service in steady state writes at least 2 tokens for a request; give output, or task: prefill"),
        ({"serving": {"arrival_rate": 3}}, "expected a quantity in 1/s, such as '2.5 1/s', got 3"),
        ({"serving": {"prefill": {"strategy": "dp2", "workers": 1}}}, "a worker has no replicas"),
        ({"serving": {"prefill": {"strategy": "tp3", "workers": 1}}}, "serving.prefill.strategy: "),
        (
            {**MIXTURE, "serving": {"prefill": {"strategy": "dp8-ep2", "workers": 1}}},
            "experts of ep2-dp8 lie over 2 of its 8 ranks, so that it is 4 workers; give ep2-dp2 and so many times as many",
        ),
        ({"serving": {"prefix_hits": 1.0}}, "prefix_hits"),
        ({"serving": {"together": True, "arrival_rate": "3 1/s"}}, "requests that arrive one by one .* do not begin together"),
        (
            {"serving": {"together": True, "prefill": {"strategy": "tp2", "workers": 1}}},
            "read prompts one by one; leave one of the two out",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(workload, sentence):
    with pytest.raises((SpecError, crossflow.CrossflowError), match=sentence):
        crossflow.predict(scenario(**workload))


# -------------------------------------------------------------------------------------------- an event simulation


def simulated(found, requests=3000, *, flight=None, rate=None, seed=1):
    """Mean times to the first token and a token of a simulated engine: one prompt piece a request, first come first served.

    Arrivals of a rate are read in the step after the next, which is scheduled when they come.
    """
    plain, mixed, prompt, chunk, output = found
    draw, now, waiting, running, ended, arrivals = random.Random(seed), 0.0, [], [], [], []
    if flight:
        arrivals = [draw.uniform(0, 200 * plain(flight)) for _ in range(flight)]
    else:
        at = 0.0
        for _ in range(requests):
            at += draw.expovariate(rate)
            arrivals.append(at)
    heapq.heapify(arrivals)
    begun = 0.0
    while len(ended) < requests:
        known = begun if rate and (running or waiting) else now
        while arrivals and arrivals[0] <= known:
            waiting.append([heapq.heappop(arrivals), prompt])
        if not waiting and not running:
            now = arrivals[0]
            continue
        budget, took, firsts = chunk - len(running), 0.0, []
        while waiting and budget > 0:
            piece = min(waiting[0][1], budget)
            waiting[0][1] -= piece
            budget, took = budget - piece, took + piece
            if waiting[0][1] == 0:
                firsts.append(waiting.pop(0)[0])
        begun = now
        now += mixed(len(running), took) if took else plain(len(running))
        for one in running:
            one[2] += 1
        for one in [one for one in running if one[2] == output]:
            running.remove(one)
            ended.append((one[1] - one[0], (now - one[1]) / (output - 1)))
            if flight:
                heapq.heappush(arrivals, now)
        running += [[arrived, now, 1] for arrived in firsts]
    late = ended[len(ended) // 3 :]  # the first third warms up
    return np.mean(late, axis=0)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize(("flight", "rate"), [(8, None), (64, None), (None, 4.0), (None, 12.0)])
def test_the_closed_form_is_what_a_simulation_of_the_engine_has(flight, rate):
    """With the same steps: a plane through the model's own for steps with and without pieces of prompts."""
    more = {"global_batch": flight} if flight else {"serving": {"arrival_rate": f"{rate} 1/s"}}
    case = scenario("tp1", 1, **more)
    job, runs_on = case.job(), machine(case, case.architecture)
    layout = Layout.of([case.strategy], np.array([float(flight or 1)]), runs_on.node)
    held = memory(job, layout, runs_on)

    def step(decoding, tokens):
        piece = Chunk(pieces=np.array([tokens / 1000.0]), length=np.array([1000.0]), before=np.zeros(1)) if tokens else None
        here = replace(layout, micro_batch=np.array([float(max(decoding, 1e-3))]))
        return float(transformer_step(replace(job, chunk=piece), here, runs_on, held).total[0])

    grid = [0, 8, 32, 96, 160]
    writes = [step(n, 0) for n in grid]
    pieces = [0.0, 1000.0, 4000.0, 8000.0]
    both = [[step(n, tokens) for tokens in pieces] for n in grid]

    def reads(n, tokens):
        return np.interp(n, grid, [np.interp(tokens, pieces, row) for row in both])

    ttft, tpot = simulated((lambda n: np.interp(n, grid, writes), reads, 1000, 8192, 200), flight=flight, rate=rate, requests=1200)
    score = evaluate(case)
    assert score.serving["tpot_s"][0] == pytest.approx(tpot, rel=0.06)
    assert score.serving["ttft_s"][0] == pytest.approx(ttft, rel=0.25)
    assert service_of(case.job(), (case.workload,), np.zeros(1, dtype=int), runs_on, runs_on).prompt[0] == 1000


def test_a_service_in_steady_state_has_no_single_step():
    for asked in (crossflow.simulate, listed_events):
        with pytest.raises(crossflow.CrossflowError, match="a service in steady state has steps of two kinds; give task: decode"):
            asked(scenario())


@pytest.mark.slow
def test_services_with_and_without_workers_are_compared_together():
    """And each is what it is alone."""
    apart = {"prefill": {"strategy": "tp2", "workers": 2}}
    found = evaluate(scenario(), {"workload.serving": [apart, {}, apart]}).serving["ttft_s"]
    assert found.tolist() == pytest.approx([figures(serving=given)["ttft_s"] for given in (apart, {}, apart)], rel=1e-3)


def test_tails_are_no_longer_than_what_others_take():
    """With N in flight nobody waits for more than the N - 1 others; no time between tokens is longer than the longest step."""
    found = figures(output=2, global_batch=4)
    assert found["ttft_p99_s"] <= found["itl_p99_s"] * 2 + 3 * found["prompt_time_s"]
    assert found["tpot_p99_s"] <= found["itl_p99_s"] * (1 + 1e-9)
    alone = figures("dp8", 8, global_batch=8)
    assert alone["requests_waiting"] == 0.0


def test_stages_read_prompts_in_every_microbatch():
    """A pipeline reads as many prompts in a step as it has microbatches: its queue is no longer than that of its tensor group alone."""
    piped, flat = (figures(strategy, 4, global_batch=256) for strategy in ("tp2-pp2", "tp4"))
    assert piped["ttft_s"] < 4 * flat["ttft_s"]


def test_stages_need_not_divide_the_requests_in_flight():
    """One request less in flight does not leave all stages but one idle."""
    even, odd, few = (figures("pp4", 4, global_batch=n)["output_throughput_tokens_per_s"] for n in (256, 255, 3))
    assert odd == pytest.approx(even, rel=0.01)
    assert few == pytest.approx(3 * figures("pp4", 4, global_batch=1)["output_throughput_tokens_per_s"], rel=0.1)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("replicas", "users"), [(2, 1), (4, 3)])
@pytest.mark.parametrize("stages", [1, 2])
def test_of_fewer_requests_than_replicas_each_is_alone_and_the_other_replicas_rest(replicas, users, stages):
    """A mean of half a request was in as many microbatches as there are stages, and slower than one."""
    more, one = (figures(f"dp{n}-pp{stages}", n * stages, global_batch=few) for n, few in ((replicas, users), (1, 1)))
    for name in ("ttft_s", "tpot_s", "ttft_p99_s", "itl_p99_s"):
        assert more[name] == pytest.approx(one[name], rel=1e-9), name
    assert more["request_throughput_per_s"] == pytest.approx(users * one["request_throughput_per_s"], rel=1e-9)
    score = evaluate(scenario(f"dp{replicas}-pp{stages}", replicas * stages, global_batch=users))
    assert score.devices[0] == replicas * stages


def test_replicas_that_share_experts_wait_for_each_other_s_prompts_unless_they_gather_them():
    """Eight replicas of Mixtral on one node: a replay of 64 users with prompts of 1,800 to 2,200 and answers of 150 to 250 takes 2.9 times
    the time per token of steps in which all read together.
    """
    workload = {"model": "mixtral-8x7b", "task": "serving", "prompt": 2000, "output": 200, "global_batch": 64}
    made = {"system": {"template": "dgx-h100", "nodes": 1}, "workload": workload, "strategy": "dp8-ep8"}
    apart, gathered, alone = (
        crossflow.evaluate(crossflow.from_dict({**made, "strategy": plan, "software": {"like": "vllm", "engine": {"gathers": one}}}))
        for plan, one in (("dp8-ep8", False), ("dp8-ep8", True), ("tp8", True))
    )
    assert apart.serving["tpot_s"] / gathered.serving["tpot_s"] == pytest.approx(2.9, rel=0.06)
    assert apart.serving["itl_p99_s"] == pytest.approx(gathered.serving["itl_p99_s"], rel=0.02)
    plain = crossflow.evaluate(crossflow.from_dict({**made, "strategy": "tp8", "software": "vllm"}))
    assert plain.serving["tpot_s"] == alone.serving["tpot_s"]


def test_a_token_of_a_single_request_passes_the_stages_once():
    """As a step of a single microbatch takes, whether the request is in flight at all times or comes now and then; a step in 200 reads."""
    step = evaluate(scenario("pp4", 4, task="decode", global_batch=1)).step_time[0]
    assert figures("pp4", 4, global_batch=1)["tpot_s"] == pytest.approx(step, rel=0.02)
    assert figures("pp4", 4, serving={"arrival_rate": "0.05 1/s"})["tpot_s"] == pytest.approx(step, rel=0.02)


def test_a_service_that_never_ends_or_has_no_room_has_no_figures():
    score = evaluate(scenario("tp1", 1, model="llama3-70b"))
    assert (score.serving["output_throughput_tokens_per_s"][0], score.serving["ttft_s"][0]) == (0.0, np.inf)
    endless = evaluate(scenario("tp8", 8, system={"template": "mi300x"}))
    assert not endless.feasible[0]
    assert np.isinf(endless.step_time[0])
    assert endless.serving["requests_decoding"][0] == 0.0


def test_engines_differ_by_who_launches_and_who_adds_up():
    """Kernels that the host launches take longer to begin than those of a graph, and the collective library longer than peers that read."""
    of_year = [figures("tp8", 8, f"tensorrt-llm{year}", global_batch=1)["tpot_s"] for year in ("", "-2024", "-2023")]
    graphs, library = (
        {"like": "tensorrt-llm-2024", "kernels": {"launch": "graph"}}, {"like": "tensorrt-llm-2024", "peer_all_reduce": None},
    )  # fmt: skip
    assert of_year[0] < figures("tp8", 8, graphs, global_batch=1)["tpot_s"] < of_year[1] < of_year[2]
    assert figures("tp8", 8, library, global_batch=1)["tpot_s"] == of_year[2]


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_service_executes_what_its_model_needs(seed):
    """MFU <= HFU, also where the head is most of the work: the last token of every piece of a prompt passes it too."""
    rng = np.random.default_rng(seed)
    workload = {
        "model": "transformer", "layers": int(rng.integers(1, 4)), "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 151936,
        "sequence": 4096,
        "task": "serving", "prompt": int(rng.choice([16, 32, 300])), "output": int(rng.choice([2, 8, 100])), "global_batch": 64,
    }  # fmt: skip
    made = {"system": "dgx-h100", "workload": workload, "strategy": "dp8", "software": str(rng.choice(["vllm", "sglang"]))}
    score = crossflow.predict(crossflow.from_dict(made)).score
    assert 0.0 < score.mfu[0] <= score.hfu[0] <= 1.0


@pytest.mark.thorough
def test_a_service_is_judged_by_the_whole_request_and_not_by_its_mean_step():
    """The step of a service is shorter where its prompts are read slowly, for fewer requests write then."""
    data = {
        "system": {"template": "dgx-h100", "devices": 8},
        "workload": {
            "model": "llama3-70b", "task": "serving", "prompt": 4096, "output": 256, "global_batch": 64,
            "serving": {"prefill": {"workers": 4, "strategy": "tp4"}},
        },
        "strategy": "tp8",
    }  # fmt: skip
    many, few = (crossflow.predict(data, {"workload.serving.prefill.workers": workers}) for workers in (4, 1))
    assert few.step_time < many.step_time  # which is no reason to want fewer
    assert few.serving["output_throughput_tokens_per_s"] < 0.7 * many.serving["output_throughput_tokens_per_s"]
    best = crossflow.optimise(data, {"workload.serving.prefill.workers": [1, 2, 4]})
    assert best.row["workload.serving.prefill.workers"] == 4
    plans = crossflow.plan(data)
    assert [plans.objective, plans.as_usual] == ["e2el_s", True]
    times = [plan.value for plan in plans if plan.feasible]
    assert times == sorted(times)
    assert crossflow.load({**data, "strategy": "auto"}).strategy_text == plans[0].strategy


def test_links_inside_nodes_that_workers_do_not_send_over_are_noted():
    apart, network = {"serving": {"prefill": {"strategy": "tp2", "workers": 2}}}, {"intra": {"bandwidth": "100 GB/s"}}
    said = "system.network.intra does not carry keys and values of prompts"
    for given, told in ((network, True), ({"inter": {"bandwidth": "10 GB/s"}}, False)):
        found = crossflow.predict(scenario(system={"template": "dgx-h100", "network": given}, **apart))
        assert any(said in note for note in found.notes) == told
    assert not any(said in note for note in crossflow.predict(scenario(system={"template": "dgx-h100", "network": network})).notes)


def guesses(**more):
    return {"serving": {"speculation": {"tokens": 3, "acceptance": 0.8, **more}}}


def test_acceptance_by_position_is_that_of_all_where_they_are_equal():
    assert figures(**guesses(acceptance=[0.8, 0.8, 0.8])) == figures(**guesses())
    falling, rising = (figures(**guesses(acceptance=list(each))) for each in ((0.9, 0.6, 0.3), (0.3, 0.6, 0.9)))
    assert guessed((0.9, 0.6, 0.3)) == pytest.approx(1 + 0.9 + 0.54 + 0.162)
    assert falling["tpot_s"] < 0.8 * rising["tpot_s"]  # the first guess decides about all behind it
    with pytest.raises(SpecError, match="2 probabilities for 3 tokens"):
        scenario(**guesses(acceptance=[0.5, 0.5]))


def test_a_draft_model_takes_its_own_steps_and_room():
    """A step is that of the model and as many of the draft model as it guesses tokens, by the price of each as a decode step alone."""
    lengths = {"prompt": 64, "output": 1000}  # so that few steps read
    ahead = {"software": {"like": "vllm", "engine": {"synchronous_with": []}}}  # vLLM prepares such steps one after the other
    plain, drafted = figures(**lengths, **guesses()), figures(**lengths, **ahead, **guesses(draft={"model": "mpt-1b"}))
    small = evaluate(scenario(task="decode", model="mpt-1b", **lengths)).step_time[0]
    assert drafted["tpot_s"] > plain["tpot_s"]
    assert (drafted["tpot_s"] - plain["tpot_s"]) * guessed([0.8] * 3) == pytest.approx(3 * small, rel=0.05)
    one, both = (evaluate(scenario(**guesses(**more))) for more in ({}, {"draft": {"model": "mpt-1b"}}))
    halved = figures(**lengths, **ahead, **guesses(draft={"model": "mpt-1b", "tp": 1}))
    assert halved["tpot_s"] > drafted["tpot_s"]  # the other device waits
    weights = evaluate(scenario(task="decode", model="mpt-1b")).memory["weights"][0]
    assert both.memory["weights"][0] - one.memory["weights"][0] == pytest.approx(weights, rel=1e-6)
    assert both.memory["kv_cache"][0] > one.memory["kv_cache"][0]


@pytest.mark.parametrize(
    ("draft", "strategy", "message"),
    [
        ({"model": "mpt-2b"}, None, "unknown model 'mpt-2b'; did you mean"),
        ({"model": "resnet"}, None, "unknown model 'resnet'"), ({"model": "bert-large"}, None, "serving needs one that does"),
        ({"model": "mpt-1b", "tp": 64}, None, "64 devices, and a replica of"),
        ({"model": "mpt-1b"}, "pp2", "without pipeline stages"),
    ],
)  # fmt: skip
def test_a_draft_model_that_cannot_guess_is_refused(draft, strategy, message):
    with pytest.raises(CrossflowError, match=message):
        evaluate(scenario(*([] if strategy is None else [strategy]), **guesses(draft=draft)))


def hosts(asynchronous=True, falls_back=(), strategy="tp2", **more):
    """Figures of a service of 8 requests whose host takes 5 ms for a step and 1 ms for each request of it."""
    engine = {"asynchronous": asynchronous, "synchronous_with": list(falls_back)}
    stack = {"like": "vllm", "host": {"schedule": "5 ms", "request": "1 ms"}, "engine": engine}
    return figures(strategy, 2, stack, prompt=64, output=1000, global_batch=8, **more)


def test_a_step_takes_the_longer_of_device_and_host_or_both():
    """By hand, of some eight requests that write: 13 ms beside the kernels or before them."""
    free = {"like": "vllm", "host": {"schedule": "0 s", "request": "0 s"}}
    plain = figures("tp2", 2, free, prompt=64, output=1000, global_batch=8)["tpot_s"]
    beside, before = hosts(), hosts(asynchronous=False)
    assert before["tpot_s"] - plain == pytest.approx(5e-3 + 1e-3 * before["requests_decoding"], rel=0.01)
    assert beside["tpot_s"] == pytest.approx(max(plain, 5e-3 + 1e-3 * beside["requests_decoding"]), rel=0.01)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("what", "strategy", "more"),
    [
        ("stages", "tp1-pp2", {}),
        ("guided", "tp2", {"serving": {"guided": {"token": "1 us"}}}),
        ("speculation", "tp2", guesses()),
        ("draft", "tp2", guesses(draft={"model": "mpt-125m"})),
    ],
)
def test_an_engine_prepares_steps_one_after_the_other_with_what_its_stack_says(what, strategy, more):
    others = [each for each in ("stages", "guided", "draft") if each != what]
    one, other = (hosts(asynchronous, strategy=strategy, **more)["tpot_s"] for asynchronous in (True, False))
    assert one < 0.9 * other
    assert hosts(falls_back=[what], strategy=strategy, **more)["tpot_s"] == other
    assert hosts(falls_back=others, strategy=strategy, **more)["tpot_s"] == one


def test_the_likeliest_tokens_are_found_among_all_logits_of_each_request_that_writes():
    """By hand: 1 ns for each of 32,000 words, of a request or of each of its four tokens that are checked, however the engine schedules."""
    lengths = {"prompt": 64, "output": 1000, "vocabulary": 32000}

    def step(asked, asynchronous=True, **more):
        stack = {"like": "vllm", "engine": {"selecting": "1 ns", "asynchronous": asynchronous}}
        return figures(software=stack, **lengths, serving={"likeliest": asked, **more})

    plain, asked = step(False), step(True)
    assert asked["tpot_s"] - plain["tpot_s"] == pytest.approx(asked["requests_decoding"] * 32e-6, rel=0.01)
    assert step(True, False)["step"] - step(False, False)["step"] == pytest.approx(asked["step"] - plain["step"], rel=1e-3)
    guessing = guesses()["serving"]
    more = step(True, **guessing)["step"] - step(False, **guessing)["step"]
    assert more == pytest.approx(4 * (asked["step"] - plain["step"]), rel=0.05)


def test_workers_for_prompts_draw_the_first_token_on_the_device():
    """It takes that long more, and half of what steps that draw for four requests take longer: it is sent with the next of them."""

    def served(asked):
        serving = {"likeliest": asked, "prefill": {"workers": 1, "strategy": "tp8"}}
        stack = {"like": "vllm", "engine": {"selecting": "100 ns"}}
        workload = {"model": "llama3-8b", "task": "serving", "prompt": 512, "output": 64, "global_batch": 4, "serving": serving}
        return crossflow.evaluate(crossflow.from_dict({"system": "dgx-h100", "workload": workload, "strategy": "tp8", "software": stack}))

    plain, asked = served(False), served(True)
    assert asked.serving["ttft_s"][0] - plain.serving["ttft_s"][0] == pytest.approx((1 + 0.5 * 4) * 128256 * 100e-9, rel=0.1)
    assert asked.bound["host"] < plain.bound["host"]  # shares of a step that takes longer on the device
    assert asked.bound["compute"] > plain.bound["compute"] + 0.01


@pytest.mark.thorough  # what it runs quicker tests run too
def test_masks_of_guided_requests_take_the_host_one_after_the_other():
    """A step of n requests waits for n masks, or hides them; half of the guided requests with twice the time are as many."""
    lengths = {"prompt": 64, "output": 1000}

    def step(**guided):
        return figures(**lengths, serving={"guided": guided} if guided else {})

    plain, before = step(), step(token="50 us", overlapped=False)
    assert before["tpot_s"] - plain["tpot_s"] == pytest.approx(before["requests_decoding"] * 50e-6, rel=0.01)
    assert step(token="50 us")["tpot_s"] == plain["tpot_s"]  # a step is longer than that
    slow = step(token="5 ms")
    assert slow["tpot_s"] == pytest.approx(slow["requests_decoding"] * 5e-3, rel=0.01)  # and shorter than that
    assert step(token="100 us", share=0.5, overlapped=False)["tpot_s"] == pytest.approx(before["tpot_s"], rel=1e-9)
    twice = {"guided": {"token": "50 us", "overlapped": False}, **guesses()["serving"]}
    more = figures(**lengths, serving=twice)["step"] - figures(**lengths, **guesses())["step"]
    assert more == pytest.approx(4 * 32 * 50e-6, rel=0.05)  # a mask for each token that is checked
    with pytest.raises(SpecError, match=r"guided.token: .*40 us"):
        scenario(serving={"guided": {"token": 3}})
