"""Recommendation models as programs of one design point: files, timelines, uneven worlds, kernels that share a device."""

import numpy as np
import pytest
from sampled import every
from test_engine import brute
from test_program import broken, scenario_of

from crossflow import Uneven, evaluate, from_dict, predict, recommendation_program, simulate
from crossflow.answers.evaluation.events import events
from crossflow.answers.steps import own_step
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.engine.runs.dlrm import dlrm_prices, dlrm_step
from crossflow.engine.runs.dlrm_point import point_program
from crossflow.engine.runs.programs import _simulated, launches, table
from crossflow.program import DeviceGroup, Product, ProgramBuilder
from crossflow.program.file import program_of

STRATEGIES = [
    {"dense": ["ddp"], "embedding": ["mp"]},
    {"dense": ["tp", "ddp"], "embedding": ["mp-rows", "mp"]},
    {"dense": ["fsdp", "ddp"], "embedding": ["mp-columns", "ddp"]},
]
SYSTEM = {"template": "madmax-h100", "nodes": 2}
UNEVEN = [{"ranks": {5: 0.5}}, {"ranks": {1: 0.6, 14: 2.0}}, {"ports": {9: 0.1}, "ranks": {9: 0.9}}]
SLOW = {"like": "torchrec", "host": {"kernel": "40 us", "layer": "150 us"}}


def recommendation(strategy=STRATEGIES[1], model="dlrm-b", **more):
    task = {"task": more.pop("task", "training"), "global_batch": more.pop("global_batch", 16384)}
    return from_dict({"system": SYSTEM, "workload": {"model": model, **task}, "strategy": strategy, **more})


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("software", ["torchrec", "ideal", SLOW], ids=["torchrec", "ideal", "slow host"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("task", ["training", "forward"])
def test_the_file_of_a_step_is_predicted_as_the_step(tmp_path, strategy, software, task):
    given = recommendation({**strategy, "transformer": ["fsdp", "ddp"]}, "dlrm-a-transformer", software=software, task=task)
    one, file = predict(given).score, scenario_of(recommendation_program(given), tmp_path, SYSTEM, software=software)
    other = predict(file).score
    for what in ("step_time", "energy", "flops", "memory_traffic", "memory_needed", "samples_per_second"):
        assert getattr(other, what)[0] == pytest.approx(getattr(one, what)[0], rel=1e-12), what
    assert {kind: size[0] for kind, size in other.memory.items()} == pytest.approx({kind: size[0] for kind, size in one.memory.items()})
    assert simulate(given).total == pytest.approx(one.step_time[0], rel=1e-14)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "uneven"), [(one, what) for turn, one in enumerate(STRATEGIES) for what in every(3, UNEVEN, turn)], ids=str
)
def test_an_uneven_world_is_that_of_every_device_by_itself(strategy, uneven):
    given = recommendation(strategy, software="ideal")
    found = simulate(given, Uneven(**uneven))
    assert found.total == pytest.approx(brute(given, Uneven(**uneven), recommendation_program(given)), rel=1e-12)
    assert sorted(rank for one in found.devices for rank in one.ranks) == list(range(16))
    np.testing.assert_allclose(sum(found.activity().values()), found.total, rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_slow_device_delays_all_that_meet_it():
    given = recommendation()
    times = [simulate(given, Uneven(ranks={3: speed})).total for speed in (1.0, 0.8, 0.5, 0.2)]
    assert times[0] == simulate(given).total == predict(given).step_time
    assert times == sorted(times)
    assert len(set(times)) == 4
    waiting = simulate(given, Uneven(ranks={3: 0.2})).activity()["waiting"]
    assert (waiting > 0).sum() == len(waiting) - 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_slow_port_slows_what_its_device_takes_part_in():
    given = recommendation()
    even, slow, slower = (simulate(given, Uneven(ports=ports)).total for ports in ({}, {3: 0.5}, {3: 0.25}))
    assert even == simulate(given).total < slow < slower
    assert simulate(given, Uneven(ports=dict.fromkeys(range(16), 0.5))).total == pytest.approx(slow, rel=1e-12)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_replicas_are_those_of_the_dense_layers(exactly):
    """Cut over the devices of a node and replicated between nodes: the second replica is the second node."""
    given = recommendation()
    alike = [simulate(given, Uneven(**world)).total for world in ({"replicas": {1: 0.5}}, {"ranks": dict.fromkeys(range(8, 16), 0.5)})]
    assert alike[0] == alike[1] > simulate(given).total
    with pytest.raises(CrossflowError, match=exactly("uneven: replicas: this mesh has no axis of replicas (dp or cp); name ranks instead")):
        simulate(recommendation({"dense": ["tp"], "embedding": ["mp"]}), Uneven(replicas={0: 0.5}))
    with pytest.raises(CrossflowError, match=exactly("uneven: links: 0 is not there, the plan has none")):
        simulate(given, Uneven(links={0: 0.5}))


@pytest.mark.thorough
@pytest.mark.slow
def test_jitter_is_seeded_and_slows():
    given = recommendation()
    one, same, another = (simulate(given, Uneven(jitter=0.2, seed=seed)) for seed in (1, 1, 2))
    assert one.total == same.total != another.total
    assert len(one.devices) == 16
    assert min(one.total, another.total) > simulate(given).total


@pytest.mark.slow
def test_groups_beside_the_mesh_have_uneven_worlds_too(tmp_path):
    built = ProgramBuilder(dtype="bf16", axes={"all": 16}, groups={"pairs": DeviceGroup(ranks=2, stride=4)})
    one = built.compute("one", Product(m=4096, n=4096, k=4096))
    two = built.compute("two", Product(m=4096, n=4096, k=4096), after=[built.send("all_reduce", 1e8, ["pairs"], after=[one])])
    built.send("all_reduce", 1e8, ["all"], after=[two])
    given = scenario_of(built.build(), tmp_path, {"template": "dgx-h100", "nodes": 2})
    found = simulate(given, Uneven(ranks={9: 0.5}))
    assert found.total == pytest.approx(brute(given, Uneven(ranks={9: 0.5})), rel=1e-12)
    assert [device.ranks for device in found.devices if len(device.ranks) == 1] == [[9], [13]]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_one_kernel_at_a_time_on_the_event_engine_is_the_step(strategy):
    given = recommendation(strategy, software=SLOW)
    job, plans, runs_on = (step := own_step(given)).job, step.plans, step.machine
    step = dlrm_step(job, plans, runs_on)
    prices = dlrm_prices(step.program, 1, runs_on)
    program, messages = point_program(step, prices, [{}])
    prices = prices.at(np.array([0]), messages)
    times = table(prices, prices.times, launched=launches(prices))
    assert _simulated(program, 1, prices, launches(prices), times)[0] == pytest.approx(predict(given).step_time, rel=1e-9)


@pytest.mark.slow
def test_kernels_that_share_a_device_hide_waits_and_do_no_more_work():
    one, two, many = (predict(recommendation(kernels_per_device=slots)).score for slots in (1, 2, 64))
    assert one.step_time[0] > two.step_time[0] >= many.step_time[0] * (1 - 1e-9)
    for score in (two, many):
        assert sum(score.breakdown.values())[0] == pytest.approx(score.step_time[0], rel=1e-9)
        assert (score.flops, score.memory_needed) == (one.flops, one.memory_needed)
        assert score.step_time[0] > one.step_time[0] - sum(one.exposed_communication.values())[0]


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_points_that_share_devices_are_the_same_one_by_one():
    batch, texts = [8192, 16384, 16384], ["dense ddp, embedding mp", "dense (tp, ddp), embedding mp", "dense fsdp, embedding mp-rows"]
    several = evaluate(recommendation(kernels_per_device=2), {"workload.global_batch": batch, "strategy": texts})
    given = [recommendation(text, global_batch=samples, kernels_per_device=2) for samples, text in zip(batch, texts, strict=True)]
    alone = [predict(one).score for one in given]
    assert several.step_time.tolist() == [score.step_time[0] for score in alone]
    assert several.exposed_communication["all_to_all"].tolist() == [score.exposed_communication["all_to_all"][0] for score in alone]


GEMM = {"model": "gemm", "m": 4096, "n": 4096, "k": 4096}
MEASURED = [
    {"system": SYSTEM, "workload": {"model": "dlrm-b", "global_batch": 16384}, "strategy": STRATEGIES[1]},
    {"system": {"template": "dgx-a100", "nodes": 1}, "workload": GEMM, "strategy": "RC-1-4-d2"},
]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("given", MEASURED, ids=["dlrm", "gemm"])
def test_timelines_show_what_was_measured(tmp_path, given):
    scenario = from_dict(given)
    head, *rows = events(scenario).to_csv().splitlines()
    place = head.split(",").index("time")
    cells = [row.split(",") for row in rows]
    slower = [",".join([*row[:place], str(3 * float(row[place])), *row[place + 1 :]]) for row in cells]
    (tmp_path / "slow.csv").write_text("\n".join([head, *slower, ""]))
    measured = from_dict({**given, "profile": str(tmp_path / "slow.csv")})
    assert simulate(measured).total == pytest.approx(predict(measured).step_time, rel=1e-12)
    assert simulate(measured).total > 2 * simulate(scenario).total


def test_kernels_that_are_launched_together_wait_for_all_their_calls(tmp_path):
    """A graph of kernels is one call, and kernels that the host launches one by one wait for each."""
    slow = {"like": "ideal", "host": {"kernel": "50 us", "step": "1 ms"}}

    def step(steps=0, **fields):
        built = ProgramBuilder(dtype="bf16")
        one = built.compute("all", *[Product(m=256.0 + i, n=256, k=256) for i in range(100)], **fields)
        if steps:
            built.compute("between steps", after=[one], calls=steps, host="step")
        return predict(scenario_of(built.build(), tmp_path, {"template": "h100-sxm"}, software=slow)).step_time

    assert step() > 100 * 50e-6 > step(calls=1)
    assert step(calls=100) > 100 * 50e-6
    assert step(calls=3) - step(calls=1) == pytest.approx(2 * 50e-6, rel=1e-9)
    assert step(3, calls=1) - step(calls=1) == pytest.approx(3e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ({"message": 0, "calls": 2}, "calls: a message is one call of the host; leave it out"),
        ({"kernels": [0], "calls": 2, "host": "layer"}, "host: it is the time of calls of an operation that runs no kernels; leave it out"),
        ({"kernels": [0], "host": "step"}, "host: it is the time of calls of an operation that runs no kernels; leave it out"),
    ],
)
def test_calls_without_meaning_are_refused(op, said):
    with pytest.raises(SpecError, match=said):
        program_of(broken(lambda data: data["ops"].append({"name": "more", **op})))


def test_a_program_of_another_model_is_refused(exactly):
    given = from_dict({"system": {"template": "pathfinder", "devices": 8}, "workload": "lstm-16k", "strategy": "d8"})
    sentence = "expected a recommendation model, this is an lstm; `scenario.program()` is that of an lstm, a gemm or a program"
    with pytest.raises(CrossflowError, match=exactly(f"scenario: {sentence}")):
        recommendation_program(given)
