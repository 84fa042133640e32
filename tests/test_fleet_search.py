"""Fleets for requests: the search finds what replays of all numbers find, its bounds hold, and launch files say the fleet."""

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.evaluation.likeness import trust
from crossflow.answers.evaluation.replay_figures import ReplayFigures, replayed_figures
from crossflow.answers.evaluation.replaying import engines_of, replayed_on
from crossflow.answers.fleets.demand import (
    RequestWork,
    _first_due,
    _last_due,
    engines_needed,
    reading_work,
    together,
    unread,
    writing_work,
)
from crossflow.answers.fleets.front import loads
from crossflow.answers.fleets.growing import least
from crossflow.answers.fleets.kinds import FleetKind, fills, kinds_of, site_of
from crossflow.answers.fleets.ranking import Fleets, plan_fleets
from crossflow.answers.fleets.searching import FleetQuestion, searched
from crossflow.answers.fleets.sizing import FleetTask, guessed, sized
from crossflow.answers.points import variant
from crossflow.answers.scenario import requests_of
from crossflow.base.errors import CrossflowError
from crossflow.engine.service.steps import StepTable
from crossflow.engine.service.ticket import Limits
from crossflow.workload.requests.record import RequestTrace

ROUTER = "workload.serving.router"
LAYOUTS = {"strategy": ["tp1", "tp2"]}


@functools.lru_cache
def scenario(seed=1):
    asked = {
        "arrivals": {"law": "poisson", "rate": "40 1/s"}, "count": 400, "seed": seed, "targets": {"ttft": "300 ms", "tpot": "12 ms"},
        "prompt": {"law": "lognormal", "median": 900, "p95": 4000}, "output": {"law": "lognormal", "median": 120, "p95": 400},
    }  # fmt: skip
    system = {"template": "dgx-h100", "devices": 8, "operation": {"price": "2 USD/hour"}}
    workload = {"model": "llama3-8b", "task": "serving", "dtype": "fp8"}
    data = {"name": "chat", "system": system, "workload": workload, "strategy": "tp1-dp8", "software": "vllm", "requests": asked}
    return crossflow.from_dict(data, "chat")


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_search_finds_the_cheapest_of_all_replays(seed):
    one = scenario(seed)
    trace = requests_of(one)
    kinds = kinds_of(one, {**LAYOUTS, ROUTER: ["round_robin", "least_loaded"]}, trace, 8)
    every = {}
    for kind in kinds:
        site = site_of(one, kind, trace, 8)
        for n in site.counts:
            made = site.scenario_of(n)
            if replayed_figures(made, trace).attained >= 0.99:
                every[kind.name, n] = made.devices
    best = searched(one, kinds, FleetQuestion(top=1, most=8, share=0.99, jobs=1))
    found = [done for done in best.done.values() if done.found]
    assert min(done.devices for done in found) == min(every.values())
    listed = plan_fleets(one, space={**LAYOUTS, ROUTER: ["round_robin", "least_loaded"]}, jobs=1)
    assert [fleet.devices for fleet in listed] == sorted(
        min(devices for (name, _), devices in every.items() if name == kind.name) for kind in kinds if kind.name in {k for k, _ in every}
    )


@pytest.mark.thorough
def test_a_fleet_is_what_serve_says_of_it():
    fleet = plan_fleets(scenario(), space=LAYOUTS, top=2, jobs=1)[0]
    served = crossflow.serve(fleet.scenario)
    assert fleet.figures["attained"] == served.attained
    assert fleet.figures["ttft_p99_s"] == served.latency["ttft_s"]["p99"]
    assert fleet.usd_per_million_tokens == pytest.approx(served.cost["usd_per_million_output_tokens"], rel=1e-12)
    assert fleet.devices == fleet.scenario.devices


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("router", ["round_robin", "two_choices", "prefix"])
@pytest.mark.parametrize("strategy", ["tp1-dp4", "tp2-dp2"])
def test_engines_share_their_tables_whatever_their_number_and_router(router, strategy):
    one = variant(scenario(), {"strategy": strategy, "system.devices": 4, ROUTER: router})
    trace = requests_of(one)
    single = variant(one, {"strategy": strategy.rpartition("-")[0], "system.devices": 4 // int(strategy[-1]), ROUTER: "round_robin"})
    whole = ReplayFigures(scenario=one, trace=trace, run=replayed_on(one, engines_of(one, trace), trace))
    shared = ReplayFigures(scenario=one, trace=trace, run=replayed_on(one, engines_of(single, trace).counted(int(strategy[-1])), trace))
    assert np.array_equal(whole.found.last, shared.found.last)
    assert whole.energy == shared.energy


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "two_choices"])
def test_more_engines_serve_no_fewer_on_target_but_for_noise(router):
    one = scenario()
    made = [variant(one, {"strategy": f"tp1-dp{n}", "system.devices": n, ROUTER: router}) for n in range(1, 9)]
    attained = [replayed_figures(each, requests_of(one)).attained for each in made]
    assert attained[0] < 0.5 < 0.99 < attained[-1]
    assert np.diff(attained).min() >= -0.01


@pytest.mark.thorough
def test_no_fleet_below_the_bound_is_enough():
    for seed in (1, 2, 3):
        one = variant(scenario(seed), {"requests.rate_scale": 3}) if seed == 1 else scenario(seed)
        found = sized(FleetTask(scenario=one, kind=FleetKind(strategy="tp1"), most=8, share=0.99, priced=True))
        assert 1 <= found.bound[0] <= found.writers


def test_the_first_requests_go_as_among_all():
    one = variant(scenario(), {"strategy": "tp1-dp3", "system.devices": 3, ROUTER: "two_choices"})
    trace = requests_of(one)
    engines = engines_of(one, trace)
    whole, part = (replayed_on(one, engines, trace, first=n).found for n in (None, 100))
    assert np.array_equal(whole.where[:50], part.where[:50])
    assert len(part.index) == 100


@pytest.mark.thorough
def test_prompts_apart_have_the_cheapest_pair_of_pools():
    one = scenario()
    apart = {"workload.serving.prefill": [{"strategy": "tp1", "workers": 1}], "strategy": ["tp1"], ROUTER: ["least_loaded"]}
    kind = kinds_of(one, apart, requests_of(one), 8)[0]
    task = FleetTask(scenario=one, kind=kind, most=8, share=0.97, priced=True)
    found, site = sized(task), site_of(one, kind, requests_of(one), 8)
    enough = [
        n + m for n in range(1, 8) for m in range(1, 9 - n)
        if replayed_figures(site.scenario_of(n, m), requests_of(one)).attained >= 0.97
    ]  # fmt: skip
    assert found.found == bool(enough)
    assert not enough or found.devices == min(enough)


def few(**more):
    """So few requests that every fleet can be replayed."""
    return variant(scenario(), {"requests.count": 80, "requests.arrivals.rate": "60 1/s", **more})


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_of_few_requests_the_cheapest_pair_of_pools_is_that_of_all_pairs(share):
    """And about what it costs is guessed before."""
    apart = {"workload.serving.prefill": [{"strategy": "tp1", "workers": 1}], "strategy": ["tp1"], ROUTER: ["least_loaded"]}
    kind = kinds_of(few(), apart, requests_of(few()), 5)[0]
    task = FleetTask(scenario=few(), kind=kind, most=5, share=share, priced=True)
    found, site = sized(task), site_of(few(), kind, requests_of(few()), 5)
    pairs = [(n, m) for n in range(1, 5) for m in range(1, 6 - n)]
    enough = [n + m for n, m in pairs if replayed_figures(site.scenario_of(n, m), requests_of(few())).attained >= share]
    assert found.found
    assert found.writers + found.readers == found.devices == min(enough)
    assert guessed(task).cost == pytest.approx(found.rent, rel=0.5)


def test_workers_whose_ranks_share_experts_are_counted_as_workers():
    """Of two devices each: the cheapest fleet is that of all replays of pairs, each of which has its workers' devices."""
    data = {
        "system": {"template": "dgx-h100", "devices": 8, "operation": {"price": "2 USD/hour"}}, "software": "vllm", "strategy": "tp2-dp4",
        "workload": {"model": "qwen3-30b-a3b", "task": "serving", "serving": {"prefill": {"strategy": "dp2-ep2", "workers": 1}}},
        "requests": {"count": 60, "arrivals": {"law": "poisson", "rate": "60 1/s"}, "prompt": 4000, "output": 50,
                     "targets": {"ttft": "600 ms", "tpot": "30 ms"}},
    }  # fmt: skip
    one = crossflow.from_dict(data)
    trace = requests_of(one)
    kind = kinds_of(one, {"strategy": ["tp1"], ROUTER: ["least_loaded"]}, trace, 8)[0]
    found, site = sized(FleetTask(scenario=one, kind=kind, most=8, share=0.9, priced=True)), site_of(one, kind, trace, 8)
    assert (site.each, site.readers) == ((1.0, 2.0), (1, 2, 3))
    pairs = {(n, m): replayed_figures(site.scenario_of(n, m), trace).attained for n, m in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (6, 1)]}
    enough = {pair: pair[0] + 2 * pair[1] for pair, attained in pairs.items() if attained >= 0.9}
    assert 0 < len(enough) < len(pairs)
    assert (found.writers, found.readers) in enough
    assert found.devices == found.rent * 1800.0 == min(enough.values())
    assert found.bound[1] <= found.readers


@functools.lru_cache
def few_fleets(price="2 USD/hour"):
    space = {**LAYOUTS, ROUTER: ["round_robin", "least_loaded"]}
    return plan_fleets(few(**{"system.operation.price": price}), share=0.9, space=space, jobs=1, top=2)


def test_fleets_are_listed_in_order_and_every_kind_is_accounted_for():
    fleets = few_fleets()
    assert [one.rank for one in fleets] == [1, 2]
    assert fleets[0].usd_per_hour <= fleets[1].usd_per_hour == pytest.approx(2.0 * fleets[1].devices)
    assert all(one.figures["attained"] >= 0.9 for one in fleets)
    assert len(fleets) + len(fleets.refused) == fleets.run.kinds == 4
    told = [float(reason.split()[2]) for _, reason in fleets.refused if reason.startswith("it takes")]
    assert told
    assert min(told) >= fleets[1].usd_per_hour
    assert (fleets.to_dict()["ordered_by"], fleets.to_dict()["searched"]) == ("usd_per_hour", 4)
    assert f"{fleets[0].usd_per_hour:.4g} USD/hour" in repr(fleets)


def test_dearer_devices_make_dearer_fleets_and_no_others():
    one, other = few_fleets(), few_fleets("6 USD/hour")
    assert [fleet.name for fleet in one] == [fleet.name for fleet in other]
    assert [3.0 * fleet.rent for fleet in one] == pytest.approx([fleet.rent for fleet in other], rel=1e-12)


def test_more_and_fewer_engines_work_on_as_many_requests_as_littles_law_says():
    """Requests in engines are those that arrive in a second times how long each takes; the fleet itself is among them."""
    fleets = few_fleets()
    site = site_of(fleets.scenario, fleets[0].kind, requests_of(fleets.scenario), 4 * fleets[0].devices)
    found = loads(fleets.scenario, fleets[0])
    assert [one.engines for one in found] == sorted({one.engines for one in found})
    for one in found:
        figures = replayed_figures(site.scenario_of(one.engines), site.trace)
        rate = one.device_rate * site.devices(one.engines) / site.trace.output.mean()  # of requests
        assert one.concurrency * one.engines == pytest.approx(rate * figures.latency["e2e_s"]["mean"], rel=1e-6)
        assert one.user_rate == pytest.approx(1.0 / figures.latency["tpot_s"]["p50"], rel=1e-9)
    (own,) = [one for one in found if one.engines == fleets[0].writers]
    assert (own.user_rate, own.device_rate) == pytest.approx((fleets[0].user_rate, fleets[0].device_rate), rel=1e-9)


def test_the_picture_of_fleets_has_their_points_and_says_what_its_axes_are():
    fleets = few_fleets()
    (axis,) = fleets.plot().figure.axes
    points = [(one.user_rate, one.device_rate) for one in loads(fleets.scenario, fleets[0])]
    assert np.array(axis.lines[0].get_xydata()) == pytest.approx(np.array(points), rel=1e-12)
    assert "user" in axis.get_xlabel()
    assert "device" in axis.get_ylabel()
    assert axis.get_ylim()[0] == 0.0


def test_bounds_of_work_are_the_load_of_the_busiest_interval():
    arrival = np.arange(10.0)
    asked = RequestWork(arrival=arrival, due=arrival + 1.0, work=np.full(10, 2.0))
    assert engines_needed(asked, 0) == pytest.approx(2.0, rel=1e-5)
    assert engines_needed(asked, 10) == 0.0
    assert engines_needed(RequestWork(arrival=arrival, due=np.full(10, np.inf), work=arrival), 0) == 0.0


def table(writing, reading):
    """Steps of engines by hand: of 0, 1 and 4 requests, and of 100 and 400 tokens, which see no keys or 1,000. [s]"""
    energy = {"writing_energy": np.zeros((3, 2)), "reading_energy": np.zeros((3, 2, 2))}
    axes = {"requests": np.array([0.0, 1.0, 4.0]), "context": np.array([0.0, 1000.0])}
    axes |= {"tokens": np.array([100.0, 400.0]), "keys": np.array([0.0, 1000.0])}
    return StepTable(writing=np.array(writing), reading=np.array(reading), **axes, **energy)


def requests_by_hand(targets):
    """A prompt of 1,000 tokens at 0 s and one of 600 at 5 s, with answers of 101 and 11 tokens, and their targets."""
    trace = RequestTrace.of(np.array([0.0, 5.0]), np.array([1000, 600]), np.array([101, 11]))
    return replace(trace, classes=(replace(trace.classes[0], **targets),))


def test_work_of_requests_is_that_of_their_tokens_at_the_best_step_by_hand():
    """400 tokens in a step cost 0.1 ms each that sees nothing, 0.2 ms that sees 1,000 keys; of four requests each token costs 2 ms."""
    each = np.array([[[0.02, 0.04], [0.04, 0.08]]] * 3)
    steps = table([[0.0, 0.0], [0.004, 0.006], [0.008, 0.008]], each)
    asked = requests_by_hand({"ttft": 2.0, "tpot": 0.01})
    reading = reading_work(asked, steps, np.array([1000.0, 200.0]))
    assert reading.due.tolist() == [2.0, 7.0]
    assert reading.work == pytest.approx([1000 * 0.15e-3, 200 * 0.15e-3])  # keys in the mean: half of the own, and all of the known
    limits = Limits(chunk=400, requests=4, pages=1000, page=16)
    writing = writing_work(asked, steps, limits)
    assert writing.due == pytest.approx([3.0, 7.1])
    assert writing.work == pytest.approx([100 * 0.002, 10 * 0.002])
    assert writing_work(asked, steps, replace(limits, pace=2.0)).work == pytest.approx(writing.work / 2)
    alone = writing_work(asked, steps, replace(limits, requests=1))
    assert alone.work == pytest.approx([100 * 0.006, 10 * (0.004 + 0.002 * 0.605)])  # context of 1,050 and 605; the table ends at 1,000
    both = together(reading, writing)
    assert both.due == pytest.approx([3.0, 7.1])
    assert both.work == pytest.approx(reading.work + writing.work)


def test_work_may_be_left_out_of_as_many_requests_as_may_miss_their_targets():
    """1, 2 and 6 s of work within 2 s: the largest ones are left out, and only what comes and is due inside an interval counts."""
    asked = RequestWork(arrival=np.zeros(3), due=np.full(3, 2.0), work=np.array([1.0, 6.0, 2.0]))
    assert [engines_needed(asked, missed) for missed in range(4)] == pytest.approx([4.5, 1.5, 0.5, 0.0], rel=1e-5)
    later = replace(asked, due=np.array([2.0, np.inf, 2.0]))
    assert engines_needed(later, 0) == pytest.approx(1.5, rel=1e-5)
    apart = replace(asked, arrival=np.array([0.0, 1.0, 0.0]), due=np.array([2.0, 2.0, 4.0]))
    assert engines_needed(apart, 0) == pytest.approx(6.0, rel=1e-5)  # 6 s of work within the second second


@pytest.mark.parametrize("whole", [None, "500 ms"])
def test_a_request_is_due_when_its_targets_say_by_hand(whole):
    """300 ms to the first token, 12 ms to each further one, and no more than the whole request may take."""
    targets = {"ttft": "300 ms", "tpot": "12 ms", **({"e2e": whole} if whole else {})}
    trace = requests_of(few(**{"requests.targets": targets}))
    most = 0.5 if whole else np.inf
    assert _first_due(trace).tolist() == pytest.approx([0.3] * len(trace))
    assert _last_due(trace) == pytest.approx(np.minimum(0.3 + 0.012 * (trace.output - 1), most))


def test_blocks_that_came_before_need_not_be_read():
    from crossflow.base.arrays import NumberLists

    blocks = NumberLists.of([0, 0, 1, 1], [5, 6, 5, 7], 2)
    trace = RequestTrace.of(np.zeros(2), np.array([40, 40]), np.array([2, 2]), blocks=blocks, block=16)
    assert unread(trace).tolist() == [40.0, 24.0]


def test_the_least_number_is_found_from_any_guess():
    for size in (1, 2, 7, 30):
        for first in range(size + 1):
            for guess in (0, 1, first, size, size + 5):
                found = least(range(size), lambda n, first=first: n >= first, guess)
                assert found == (first if first < size else None)


def test_only_whole_nodes_are_rented():
    site = site_of(
        variant(scenario(), {"system.devices": 32, "strategy": "tp1-dp32"}), FleetKind(strategy="tp4"), requests_of(scenario()), 32
    )
    assert site.counts == (1, 2, 4, 6, 8)
    assert all(fills(n * 4, 8) for n in site.counts)


def test_where_nothing_is_enough_the_largest_fleets_are_shown():
    found = plan_fleets(scenario(), share=1.0, space={"strategy": ["tp1"]}, jobs=1, top=1)
    one = plan_fleets(_strict(), space={"strategy": ["tp1"]}, jobs=1)
    assert found.best is None or found.best.figures["attained"] == 1.0
    assert one.best is None
    assert one[0].writers == 8
    assert one[0].rank is None
    assert "no fleet has 99 %" in one.notes[-1]


@pytest.mark.parametrize(("layout", "each"), [("tp1", 1), ("tp2", 2)])
def test_where_nothing_is_enough_prompts_have_half_of_the_devices(layout, each):
    """And engines that write all the others: half is the division that leaves neither pool without room."""
    one = variant(_strict(), {"requests.count": 40})
    apart = {"workload.serving.prefill": [{"strategy": layout, "workers": 1}], "strategy": ["tp1"], ROUTER: ["least_loaded"]}
    found = sized(FleetTask(scenario=one, kind=kinds_of(one, apart, requests_of(one), 8)[0], most=8, share=0.97, priced=True))
    assert found.nearest
    assert found.readers * each == found.writers == 4
    assert found.devices == 8


def _strict():
    return variant(scenario(), {"requests.targets": {"ttft": "1 ms", "tpot": "1 ms"}})


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ({"requests.targets": None}, {}, "no class of its requests has targets"),
        ({}, {"space": {"strategy": ["tp3"]}}, "not divisible by tp = 3"),
        ({}, {"space": {"foo": [1]}}, "unknown key 'foo'"),
        ({}, {"objective": "mfu"}, "fleets are in order of what they cost"),
        ({}, {"margin": 0.2}, "leave margin out"),
    ],
)
def test_what_cannot_be_planned_is_refused(change, given, said):
    with pytest.raises(CrossflowError, match=said):
        crossflow.plan(variant(scenario(), change), **given)


def test_space_and_share_are_of_requests():
    with pytest.raises(CrossflowError, match="give the scenario the key requests"):
        crossflow.plan(model="llama3-8b", on="dgx-h100", share=0.9)


def test_an_interrupted_search_keeps_what_it_has(monkeypatch):
    from crossflow.answers.fleets import searching

    kinds = kinds_of(scenario(), LAYOUTS, requests_of(scenario()), 8)
    made = []

    def interrupted(task):
        if made:
            raise KeyboardInterrupt
        made.append(task)
        return sized(task)

    monkeypatch.setattr(searching, "sized", interrupted)
    run = searched(scenario(), kinds, FleetQuestion(top=1, most=8, share=0.99, jobs=1))
    assert run.interrupted
    assert len(run.done) == 1
    assert next(iter(run.done.values())).found


@pytest.mark.thorough
def test_the_command_lists_fleets_and_writes_their_script(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps(scenario().document.data), encoding="utf-8")
    words = f"plan {path} --vary strategy=tp1,tp2 --vary {ROUTER}=prefix --jobs 1"
    fleets = json.loads(_command(f"{words} --json").stdout)["fleets"]
    assert fleets[0]["rank"] == 1
    assert fleets[0]["attained"] >= 0.99
    script = tmp_path / "fleet.sh"
    assert "sized with" not in _command(f"{words} --export vllm -o {script}").stderr
    other = _command(f"{words} --export sglang -o {tmp_path / 'other.sh'}").stderr
    assert "sized with the order of work of vllm, and the file starts sglang; size it with --set software=sglang" in other
    started = _started(script, tmp_path)
    assert len([line for line in started if line.startswith("vllm ")]) == fleets[0]["engines"]
    assert sum("--policy cache_aware" in line for line in started) == 1


def _command(words, *, check=True):
    """What a command that runs as a process of its own says."""
    return subprocess.run([sys.executable, "-m", "crossflow", *words.split()], capture_output=True, text=True, check=check)


def _started(script, folder, **environment):
    """Lines that servers and routers of a script would be started with."""
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    for name in ("vllm", "vllm-router"):
        (stubs / name).write_text(f'#!/bin/sh\necho {name} "gpus=$CUDA_VISIBLE_DEVICES" "$@"\n', encoding="utf-8")
        (stubs / name).chmod(0o755)
    path = f"{stubs}{os.pathsep}{os.environ['PATH']}"
    made = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True, env={"PATH": path, **environment})
    return made.stdout.splitlines()


def test_a_script_places_engines_on_nodes(tmp_path):
    one = variant(scenario(), {"strategy": "tp4-dp4", "system.devices": 16, ROUTER: "prefix"})
    script = tmp_path / "fleet.sh"
    script.write_text(crossflow.export(one, "vllm"), encoding="utf-8")
    first, second = (_started(script, tmp_path, HOSTS="a b", NODE_RANK=rank) for rank in ("0", "1"))
    assert sorted(line.split()[1] for line in first if line.startswith("vllm ")) == ["gpus=0,1,2,3", "gpus=4,5,6,7"]
    router = next(line for line in first if line.startswith("vllm-router"))
    assert "http://a:8001 http://a:8002 http://b:8001 http://b:8002" in router
    assert len(second) == 2
    assert not any("router" in line for line in second)
    longest = int((requests_of(one).prompt + requests_of(one).output).max())
    assert f"--max-model-len {longest}" in first[0] + first[1] + first[2]


def test_dynamo_has_the_router_and_both_pools():
    apart = {"strategy": "tp1", "workers": 2}
    one = variant(scenario(), {"strategy": "tp1-dp3", "system.devices": 3, ROUTER: "prefix", "workload.serving.prefill": apart})
    text = crossflow.export(one, "dynamo")
    assert "- --router-mode\n          - kv\n          - --no-router-kv-events" in text
    assert "replicas: 3" in text
    assert "replicas: 2" in text
    with pytest.raises(CrossflowError, match="export to dynamo"):
        crossflow.export(one, "vllm")


@pytest.mark.thorough
def test_requests_go_with_a_model_and_a_system(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps(scenario().document.data), encoding="utf-8")
    words = f"serve --model llama3-8b --on dgx-h100 --strategy tp1-dp8 --requests {path} --json"
    found = json.loads(_command(words).stdout)
    assert found["requests"] == 400
    assert found["attained"] is not None
    both = _command(f"serve {path} --requests {path}", check=False)
    assert both.returncode == 2
    assert "--requests goes with --model and --on, or with --from" in both.stderr


def test_the_scenarios_own_number_of_engines_is_no_plan_to_compare(tmp_path, capsys):
    path = tmp_path / "chat.yaml"
    path.write_text(json.dumps({**scenario().document.data, "strategy": "tp1-dp2"}))
    assert main(["plan", str(path), "--vary", "strategy=tp1", "--jobs", "1", "--export", "vllm"]) == 0
    told = capsys.readouterr()
    assert "not compared" not in told.err + told.out
    assert "the checkpoint must take as many (max_position_embeddings)" in " ".join(f"{told.out}{told.err}".split())


def test_what_cannot_be_told_apart_depends_on_whose_fleets_they_are():
    """Two systems must differ by more than two layouts of one, and by more still where nothing of one was measured; its trust is told."""
    prices = {"dgx-h100": "2 USD/hour", "mi325x-node": "2.9 USD/hour"}  # three engines of the first, and two of the second
    chips = {name: {"system.template": name, "system.operation.price": price} for name, price in prices.items()}
    found = plan_fleets(scenario(), space={"on": chips, **LAYOUTS}, jobs=1)
    assert len({one.kind.hardware for one in found}) == 2
    assert "two systems of which one was not measured" in found.tied
    assert "layouts of one system" not in found.tied  # none of which is near
    other = next(one for one in found if one.trust != found[0].trust)
    assert f"{other.trust}, unlike the first: {other.name}" in " ".join(found.notes)


def test_a_list_is_trusted_as_its_first_fleet_and_without_one_as_what_was_planned():
    planned = scenario()
    first = variant(planned, {"system.template": "mi325x-node"})
    one, other = (SimpleNamespace(scenario=of, rank=None, to_dict=dict) for of in (first, planned))
    run = SimpleNamespace(kinds=2, done={}, interrupted=False, replayed=0.0)
    found = Fleets(scenario=planned, fleets=(one, other), share=0.99, most=8, priced=True, refused=(), run=run)
    for fleets, judged in ((found, first), (replace(found, fleets=(one,)), first), (replace(found, fleets=()), planned)):
        assert fleets.trust == trust(judged)
        assert fleets.to_dict()["trust_text"] == trust(judged).text
    assert trust(first) != trust(planned)
