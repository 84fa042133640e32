"""Fleets of scenarios: pools of engines on further devices, failures, replicas that start and stop; what they cost, what is refused."""

import itertools

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError

DATA = {
    "system": {"template": "dgx-h100", "devices": 2, "operation": {"price": "3 USD/hour"}},
    "workload": {"model": "llama3-8b", "task": "serving", "serving": {"router": "least_loaded"}},
    "strategy": "tp1-dp2",
    "software": "vllm",
    "requests": {
        "arrivals": {"law": "poisson", "rate": "25 1/s"},
        "count": 250,
        "prompt": {"law": "lognormal", "median": 600, "p95": 3000},
        "output": {"law": "lognormal", "median": 60, "p95": 200},
        "classes": [{"name": "paid"}, {"name": "free"}],
        "seed": 1,
    },
}
OLDER = {
    "system.pools.older": {"template": "dgx-a100", "operation": {"price": "1 USD/hour"}},
    "workload.serving.pools.older": {"strategy": "tp2", "workers": 3},
}
FAILING = {"workload.serving.failures": {"mean_time": "10 s", "repair": "2 s"}}
SCALING = {"workload.serving.autoscale": {"least": 1, "start": "1 s", "up": 12, "down": 4, "interval": "0.5 s"}, "strategy": "tp1-dp4",
           "system.devices": 4}  # fmt: skip
READ_APART = {"workload.serving.prefill": {"strategy": "tp1", "workers": 2}}


def data(*changes):
    made = DATA
    for path, value in itertools.chain.from_iterable(change.items() for change in changes):
        made = files.replace(made, files.parts_of(path), value, path)
    return made


def serve(*changes):
    return crossflow.serve(data(*changes))


@pytest.mark.thorough
def test_pools_of_other_devices_are_engines_beside_the_replicas():
    found = serve(OLDER)
    own, older = found.run.kinds
    assert (own.count, older.count, older.pool) == (2, 3, "older")
    assert (own.fleet.devices[0], older.fleet.devices[0]) == (1, 2)
    assert own.rate > 0.6 * older.rate
    assert set(found.found.where) == set(range(5))
    assert found.rent * 3600 == pytest.approx(2 * 3 + 3 * 2 * 1)
    assert found.scenario.fleet == "2 devices of dgx-h100 and 6 devices of dgx-a100"
    alone = crossflow.serve(data({"strategy": "tp2-dp3", "system.devices": 6, "system.template": "dgx-a100"}))
    assert older.rate == alone.run.writers.rate
    assert older.limits == alone.run.writers.limits


@pytest.mark.thorough
def test_engines_of_the_same_devices_are_further_replicas():
    """A pool without devices of its own is on those of the system: two replicas and a pool of two are four."""
    pool = {"workload.serving.pools.more": {"strategy": "tp1", "workers": 2}}
    four = serve({"strategy": "tp1-dp4", "system.devices": 4})
    both = serve(pool)
    assert both.found.last.tobytes() == four.found.last.tobytes()
    assert both.energy == pytest.approx(four.energy, rel=1e-12)
    assert both.rent == pytest.approx(four.rent, rel=1e-12)


@pytest.mark.cases(1)
@pytest.mark.parametrize("changes", [(OLDER,), (OLDER, READ_APART), (SCALING, FAILING), (OLDER, FAILING)])
def test_every_point_is_what_serve_says_of_it(changes):
    base = crossflow.from_dict(data(*changes))
    points = {"workload.serving.router": ["round_robin", "least_loaded"], "requests.rate_scale": [1, 2]}
    if OLDER in changes:
        points["workload.serving.pools.older.workers"] = [3, 1]
    score = crossflow.evaluate(base, points)
    for i in range(2):
        found = crossflow.serve(base, settings={path: values[i] for path, values in points.items()})
        assert score["ttft_p99_s"][i] == found.latency["ttft_s"]["p99"]
        assert score["power_w"][i] == found.power
        assert score["usd_per_million_tokens"][i] == pytest.approx(found.cost["usd_per_million_output_tokens"], rel=1e-12)
        assert score.devices[i] == sum(kind.count * kind.fleet.devices[0] for kind in found.run.kinds)


def test_classes_have_pools_of_their_own():
    own = {"workload.serving.router": "class", "workload.serving.pools.older.classes": ["free"]}
    found = serve(OLDER, own)
    free = [one.name for one in found.trace.classes].index("free")
    assert set(found.found.where[found.found.kind == free]) == {2, 3, 4}
    assert set(found.found.where[found.found.kind != free]) == {0, 1}


@pytest.mark.thorough  # what it runs quicker tests run too
def test_writers_of_pools_get_keys_and_values_too():
    found = serve(OLDER, READ_APART)
    readers, own, older = found.run.kinds
    assert (readers.count, own.count, older.count) == (2, 2, 3)
    assert sum(jumps.tokens.sum() for _, jumps in found.run.engines[:2]) == found.trace.prompt.sum()
    assert set(found.found.where) == set(range(5))
    assert older.received > own.received > 0  # the links of an A100 are slower


def test_failures_are_told():
    found = serve(FAILING)
    told = found.to_dict()["failures"]
    assert told == dict(found.availability)
    assert told["failures"] > 0
    assert 0.5 < told["available"] < 1.0
    assert 0.0 < told["lost_work"] < 0.5
    assert serve().availability is None


def test_only_engines_that_run_cost_rent_and_power():
    few, all_ = serve(SCALING), serve(SCALING, {"workload.serving.autoscale": None})
    assert few.rent / all_.rent == pytest.approx(few.running["mean"] / 4)
    assert few.power < all_.power
    assert 1.0 <= few.running["mean"] < few.running["most"] <= 4
    series = few.series
    width = few.span / len(series["time_s"])
    assert (series["power_w"] * width).sum() == pytest.approx(few.energy, rel=1e-6)
    assert series["engines"].mean() == pytest.approx(few.running["mean"])


def test_as_many_at_least_as_at_most_is_the_fixed_fleet():
    whole, fixed = serve(SCALING, {"workload.serving.autoscale.least": 4}), serve(SCALING, {"workload.serving.autoscale": None})
    assert whole.found.last.tobytes() == fixed.found.last.tobytes()
    assert (whole.energy, whole.rent, whole.latency) == (fixed.energy, fixed.rent, fixed.latency)


MATTER = {
    "failures.mean_time": (FAILING, "3 s"), "failures.repair": (FAILING, "4 s"), "failures.keeps_output": (FAILING, False),
    "failures.seed": (FAILING, 1), "autoscale.least": (SCALING, 2), "autoscale.start": (SCALING, "4 s"),
    "autoscale.signal": ({**SCALING, "workload.serving.autoscale.up": 2, "workload.serving.autoscale.down": 0.5}, "waiting"),
    "autoscale.up": (SCALING, 20), "autoscale.down": (SCALING, 1), "autoscale.interval": (SCALING, "2 s"),
    "autoscale.cooldown": (SCALING, "6 s"), "pools.older.strategy": (OLDER, "tp4"), "pools.older.workers": (OLDER, 1),
    "pools.older.classes": ({**OLDER, "workload.serving.router": "class"}, ["free"]),
}  # fmt: skip


@pytest.mark.cases(1)
@pytest.mark.parametrize("path", MATTER)
def test_every_key_of_a_fleet_matters(path):
    context, value = MATTER[path]
    before, after = serve(context), serve(context, {f"workload.serving.{path}": value})
    assert before.found.last.tobytes() != after.found.last.tobytes() or before.energy != after.energy


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"system.pools.older": "dgx-a100"}, "no engines run on it; give workload.serving.pools.older"),
        ({**OLDER, "system.pools.older.devices": 8}, "the workers of serving.pools.older say how many it has"),
        ({**OLDER, "workload.serving.pools.older.strategy": "tp2-dp2"}, "serving.pools.older.strategy: an engine has no replicas"),
        ({**OLDER, "workload.serving.pools.older.strategy": "tp3"}, "serving.pools.older.strategy: "),
        ({**OLDER, "workload.serving.pools.older.workers": 0}, "workload.serving.pools.older.workers"),
        ({**OLDER, "workload.dtype": "fp8"}, "dgx-a100 has no throughput for fp8"),
        ({"workload.serving.pools": {"a b": {"strategy": "tp1", "workers": 1}}}, "workload.serving.pools"),
        ({"workload.serving.pools": {"prefill": {"strategy": "tp1", "workers": 1}}}, "prefill is the pool of workers for prompts"),
        ({**FAILING, "workload.serving.failures.mean_time": 10}, "expected a quantity in s, such as '90 s', got 10"),
        ({**FAILING, "workload.serving.failures.repair": "10 GB"}, "workload.serving.failures.repair"),
        ({**SCALING, "workload.serving.autoscale.least": 5}, "5 replicas always run, but dp4 has 4"),
        ({"workload.serving.prefill": {"strategy": "tp2", "workers": 1e9}}, "serving.prefill.workers: a replay has at most 100,000"),
        ({**OLDER, "workload.serving.pools.older.workers": 1e9}, "serving.pools.older.workers: a replay has at most 100,000"),
        ({"system.devices": 400_000, "strategy": "tp2-dp200000"}, "strategy: a replay has at most 100,000 engines of a pool"),
        ({**SCALING, "workload.serving.autoscale.up": 3}, "down: 4 is more than up (3)"),
        ({**OLDER, "workload.serving.pools.older.classes": ["free"]}, "only router: class looks at classes, and router is least_loaded"),
        ({**OLDER, "workload.serving.router": "class", "workload.serving.pools.older.classes": ["fre"]}, "requests have no class 'fre'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(changes, told):
    with pytest.raises((SpecError, CrossflowError)) as error:
        serve(changes)
    assert told in str(error.value)


def test_engines_that_make_every_step_together_do_not_fail_by_themselves():
    tied = {"workload.model": "qwen3-30b-a3b", "strategy": "tp1-dp2-ep2", "requests.count": 5}
    for changes in (FAILING, {"workload.serving.autoscale": SCALING["workload.serving.autoscale"]}):
        with pytest.raises(CrossflowError, match="replicas that share out experts make every step together"):
            serve(tied, changes)


def test_ranks_that_read_together_do_not_fail_by_themselves():
    prefill = {"strategy": "tp1-dp2-ep2", "workers": 2}
    tied = {"workload.model": "qwen3-30b-a3b", "strategy": "tp2", "requests.count": 5, "workload.serving.prefill": prefill}
    with pytest.raises(CrossflowError, match=r"share out experts .* leave it out, or dp out of serving.prefill.strategy"):
        serve(tied, FAILING)
    many = {**tied, "workload.serving.prefill.workers": 60_000}
    with pytest.raises(CrossflowError, match=r"prefill.workers: a replay has at most 100,000 engines .* got 120,000"):
        serve(many)


def test_replays_refuse_workers_that_divide_prompts_over_context_ranks():
    """Their steps would be priced as those of one context rank; a steady state reads whole prompts, and takes them."""
    with pytest.raises(CrossflowError, match=r"prefill.strategy: steps of a replay .* not divided over context ranks, and cp2 has cp = 2"):
        serve({"workload.serving.prefill": {"strategy": "cp2", "workers": 1}})


def test_a_steady_state_refuses_pools_and_notes_the_rest():
    steady = {"requests": None, "workload.prompt": 600, "workload.output": 60, "workload.global_batch": 8}
    with pytest.raises(CrossflowError, match="a steady state knows engines of one kind; give requests"):
        crossflow.predict(data(steady, OLDER))
    found = crossflow.predict(data(steady, FAILING))
    assert any("workload.serving.failures changes nothing here: only a replay" in note for note in found.notes)


@pytest.mark.thorough
def test_the_page_tells_engines_by_pool(tmp_path, capsys):
    path = tmp_path / "mix.json"
    path.write_text(files.json_text(data(OLDER, FAILING)))
    assert main(["serve", str(path)]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "read and write (older)" in page
    assert "of engines, which served" in page
    main(["serve", str(path), "-o", str(tmp_path / "one.png"), "-o", str(tmp_path / "all.csv"), "-o", str(tmp_path / "t.json.gz")])
    assert (tmp_path / "one.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_trust_says_that_no_such_fleet_was_measured():
    found = crossflow.predict(data(OLDER)).trust
    assert found.level == "extrapolated"
    assert "engines of several kinds" in found.reason
    assert np.isfinite(serve(OLDER).latency["ttft_s"]["p99"])


@pytest.mark.cases(1)
@pytest.mark.parametrize("changes", [(), (OLDER, READ_APART), (SCALING, FAILING)])
def test_running_statistics_say_what_a_whole_replay_says(changes):
    whole, found = serve(*changes), crossflow.serve(data(*changes), stream=True)
    exact, near = whole.to_dict(), found.to_dict()
    for key in ("requests", "dropped", "attained", "preemptions", "jumps", "steps", "failures", "replicas"):
        assert near[key] == exact[key]
    for key in ("requests_per_s", "output_tokens_per_s", "span_s", "energy_j", "cool_down_s"):
        assert near[key] == pytest.approx(exact[key])
    assert near["cost"] == pytest.approx(exact["cost"])
    assert near["utilisation"] == pytest.approx(exact["utilisation"])
    assert near["queue"] == pytest.approx(exact["queue"])
    assert near["cache"] == pytest.approx(exact["cache"])
    for key in ("ttft_s", "tpot_s", "e2e_s", "itl_s"):
        assert near[key]["mean"] == pytest.approx(exact[key]["mean"])
        assert near[key]["p50"] == pytest.approx(exact[key]["p50"], rel=0.02)  # of few requests, between two of them
    assert any("running statistics are kept" in note for note in found.notes)
    assert [one["name"] for one in found.classes] == [one["name"] for one in whole.classes]


def test_what_running_statistics_do_not_keep_is_refused(tmp_path, capsys):
    path = tmp_path / "one.json"
    path.write_text(files.json_text(data()))
    assert main(["serve", str(path), "--stream"]) == 0
    assert "running statistics are kept" in capsys.readouterr().out
    for name in ("all.csv", "one.png", "t.json.gz"):
        assert main(["serve", str(path), "--stream", "-o", str(tmp_path / name)]) == 2
        assert "keeps nothing of each request" in capsys.readouterr().err


@pytest.mark.cases(1)
@pytest.mark.parametrize("watts", [700, 400, 250])
def test_a_power_limit_of_the_device_holds_in_a_service(watts):
    """`system.power.tdp` caps what a device draws in a step: steps take longer, and no device draws more."""
    found = serve({"system.power": {"tdp": f"{watts} W"}, "requests.rate_scale": 4})
    assert found.power <= 2 * watts
    assert all((energy / (jumps.ended - jumps.begun) <= watts * (1 + 1e-6)).all()
               for energy, (_, jumps) in zip(found.run.energies, found.run.engines, strict=True))  # fmt: skip
    assert watts == 700 or found.span > serve({"requests.rate_scale": 4}).span


@pytest.mark.cases(1)
@pytest.mark.parametrize("number", [1, 3, 5, 7])
def test_users_and_batches_are_dealt_out_to_replicas(number):
    base = {"requests.arrivals": None, "requests.count": 60, "requests.users": {"number": number, "think": "1 s"}, "strategy": "tp1-dp4",
            "system.devices": 4}  # fmt: skip
    found = serve(base)
    assert np.isfinite(found.found.last).all()
    inside = np.sum((found.found.arrival[:, None] <= found.found.arrival) & (found.found.last[:, None] > found.found.arrival), axis=0)
    assert inside.max() <= number
    batch = serve({**base, "requests.users": None, "requests.count": None, "requests.batch": number})
    assert len(batch.trace) == number


def test_a_steady_state_of_requests_that_replicas_do_not_divide_lies_between_its_neighbours():
    def rate(number):
        steady = {"requests": None, "workload.prompt": 600, "workload.output": 60, "workload.global_batch": number}
        return crossflow.predict(data(steady, {"strategy": "tp1-dp4", "system.devices": 4})).serving["request_throughput_per_s"]

    rates = [rate(number) for number in (4, 5, 6, 7, 8)]
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(np.mean([rates[0], rates[4]]), rel=0.02)
