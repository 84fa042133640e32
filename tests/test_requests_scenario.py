"""The key `requests` of a scenario: read at its place, checked against the workload, and the mean of its steady state."""

import pickle

import pytest

import crossflow
from crossflow.answers.scenario import requests_of, steady
from crossflow.base.errors import CrossflowError, SpecError

SCENARIO = {
    "system": {"template": "dgx-h100", "devices": 8},
    "workload": {"model": "llama3-70b", "task": "serving", "dtype": "fp8"},
    "strategy": "tp4-dp2",
}
DRAWN = {"arrivals": {"law": "poisson", "rate": "2 1/s"}, "duration": "10 min", "prompt": 1000, "output": 200}
TRACE = "arrival_s,prompt,output\n0,100,20\n1,300,40\n2,200,30\n"


def scenario(requests=DRAWN, **workload):
    return crossflow.from_dict(SCENARIO | {"requests": requests, "workload": SCENARIO["workload"] | workload})


def trace_in(folder, text=TRACE, settings=()):
    (folder / "day.csv").write_text(text)
    path = folder / "service.yaml"
    path.write_text(
        "system: {template: dgx-h100, devices: 8}\nworkload: {model: llama3-70b, task: serving}\nstrategy: tp4-dp2\nrequests: day.csv\n"
    )
    return crossflow.load(path, settings)


def test_a_trace_is_found_beside_the_scenario_and_fills_in_its_mean(tmp_path):
    found = trace_in(tmp_path)
    assert (found.workload.prompt, found.workload.output, found.workload.serving.arrival_rate) == (200, 30, 1.0)
    assert requests_of(found).prompt.tolist() == [100, 300, 200]


def test_settings_reach_below_the_short_form(tmp_path):
    found = trace_in(tmp_path, settings=["requests.rate_scale=2"])
    assert requests_of(found).arrival.tolist() == [0.0, 0.5, 1.0]
    assert requests_of(found.replace({"requests.rate_scale": 4})).arrival.tolist() == [0.0, 0.25, 0.5]


def test_an_error_in_the_trace_names_the_file_and_the_line(tmp_path):
    with pytest.raises(SpecError, match=r"day.csv:3: prompt: expected a whole number of tokens, got 'many'$"):
        trace_in(tmp_path, "arrival_s,prompt,output\n0,100,20\n1,many,40\n")


def test_a_scenario_with_requests_survives_pickling_and_saving(tmp_path):
    found = trace_in(tmp_path)
    assert requests_of(pickle.loads(pickle.dumps(found))).digest == requests_of(found).digest
    saved = found.save(tmp_path / "elsewhere" / "copy.yaml")
    assert "../day.csv" in saved.read_text()
    assert requests_of(crossflow.load(saved)).digest == requests_of(found).digest


@pytest.mark.parametrize(
    ("requests", "workload", "message"),
    [
        (DRAWN, {"task": "decode"}, "workload.task: requests are those of a service; give workload.task: serving, or leave out requests"),
        (DRAWN, {"prompt": 5}, "workload.prompt: the requests say it; leave it out, or leave out requests"),
        (DRAWN, {"serving": {"arrival_rate": "5 1/s"}}, "workload.serving.arrival_rate: the requests say it; leave it out, or leave out requests"),
        (DRAWN, {"serving": {"prefix_hits": 0.5}}, "workload.serving.prefix_hits: the requests say it; leave it out, or leave out requests"),
        ("no.csv", {}, "requests.trace: there is no file no.csv"),
        (DRAWN | {"duration": "1 year", "arrivals": {"law": "poisson", "rate": "1000 1/s"}}, {},
            "requests.arrivals: about 31,536,000,000 requests would come, more than the 20,000,000 that are drawn; shorten duration"),
    ],
)  # fmt: skip
def test_what_cannot_stand_beside_requests_is_refused(requests, workload, message):
    with pytest.raises(SpecError) as caught:
        scenario(requests, **workload)
    assert str(caught.value) == f"scenario: {message}"


def test_without_a_task_it_says_which_one():
    with pytest.raises(SpecError, match=r"workload: requests are those of a service; give workload.task: serving"):
        crossflow.from_dict(SCENARIO | {"requests": DRAWN, "workload": "llama3-8b"})


@pytest.mark.parametrize("answer", ["explain", "timeline"])
def test_answers_of_a_steady_state_name_the_command_that_replays(answer):
    with pytest.raises(CrossflowError, match=r"its requests come one by one, and crossflow serve replays them"):
        getattr(scenario(), answer)()


def test_the_steady_state_of_requests_is_that_of_their_means():
    found = steady(scenario())
    plain = crossflow.from_dict(
        SCENARIO
        | {
            "workload": SCENARIO["workload"]
            | {"prompt": 1000, "output": 200, "serving": {"arrival_rate": f"{found.workload.serving.arrival_rate!r} 1/s"}}
        }
    )
    assert found.predict().step_time == plain.predict().step_time
    assert found.requests is None


def test_what_a_scenario_is_made_of_includes_its_requests():
    one, two = scenario().provenance()["inputs"], scenario(DRAWN | {"seed": 1}).provenance()["inputs"]
    assert one["requests"] == requests_of(scenario()).digest != two["requests"]


@pytest.mark.parametrize(("times", "at_once"), [({"users": 12, "count": 100}, 12), ({"batch": 100}, 100)])
def test_closed_loops_and_batches_are_requests_in_flight(times, at_once):
    found = scenario({"prompt": 1000, "output": 200, **times})
    assert (found.workload.global_batch, found.workload.serving.arrival_rate) == (at_once, None)


@pytest.mark.thorough
def test_a_strategy_is_chosen_by_the_steady_state():
    chosen = crossflow.load(SCENARIO | {"strategy": "auto", "requests": DRAWN})
    assert chosen.auto is not None
    assert chosen.requests is not None


def test_a_generated_device_with_changed_components_serves():
    """Steps of a replay are told from others by their data, which a device with changes of its library's components has too."""
    asked = {"count": 3, "prompt": 100, "output": 5, "arrivals": {"law": "poisson", "rate": "2 1/s"}}
    workload = {"model": "mpt-1b", "task": "serving"}
    found = crossflow.predict(
        {"system": {"template": "chip-tpu-v4", "devices": 1}, "workload": workload, "strategy": "tp1", "requests": asked}
    )
    assert found.feasible


def test_a_service_whose_steps_never_end_says_why_without_a_warning():
    """The link between its devices has no bandwidth; warnings are errors here."""
    system = {"template": "pathfinder", "devices": 2, "devices_per_node": 2, "network": {"intra": {"topology": "switch"}}}
    asked = {"count": 1, "prompt": 1, "output": 1, "arrivals": {"law": "poisson", "rate": "1 1/s"}}
    found = crossflow.predict(
        {"system": system, "workload": {"model": "llama2-7b", "task": "serving"}, "strategy": "tp2", "requests": asked}
    )
    assert (found.feasible, found.reason) == (False, "no network or memory bandwidth where the strategy needs it")
