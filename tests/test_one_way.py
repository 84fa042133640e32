"""One way from a scenario to its score, whatever it computes: the same stages, and the same doors of its step."""

from pathlib import Path

import pytest

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.scenario import from_dict
from crossflow.answers.steps import own_step
from crossflow.answers.steps.step import ScenarioStep
from crossflow.base.stages import StageWatch

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TABLES = {"count": 4, "rows": 100000, "width": 64, "pooling": 5}
DLRM = {"model": "dlrm", "tables": [TABLES], "bottom": [64], "top": [64, 1], "dense_features": 13, "global_batch": 4096}
LLAMA = {"model": "llama3-8b", "layers": 2}
SERVED = {**LLAMA, "task": "serving", "sequence": 512, "output": 64, "global_batch": 32}
LSTM = {"model": "lstm", "hidden": 512, "vocabulary": 1000, "sequence": 16, "global_batch": 128}
TWO = {"template": "dgx-h100", "nodes": 1, "pools": {"older": {"template": "dgx-a100", "nodes": 1}}}
EACH = {
    "transformer": {"system": "dgx-h100", "workload": LLAMA, "strategy": "tp8"},
    "unlike devices": {"system": TWO, "workload": LLAMA, "strategy": "tp8-pp2"},
    "lstm": {"system": "dgx-h100", "workload": LSTM, "strategy": "d8"},
    "recommendation": {"system": "dgx-h100", "workload": DLRM, "strategy": {"dense": ["ddp"], "embedding": ["mp"]}},
    "sharded tables": {
        "system": "dgx-h100", "workload": {**DLRM, "sharding": "cost"}, "strategy": {"dense": ["ddp"], "embedding": ["mp"]},
    },
    "service": {"system": "dgx-h100", "workload": SERVED, "strategy": "tp8"},
    "program": {"system": {"template": "dgx-h100", "nodes": 1}, "workload": str(EXAMPLES / "mlp.program.json")},
}  # fmt: skip
IN_ORDER = ("program", "price", "run", "score")


def of(name):
    return from_dict({"name": name, **EACH[name]})


@pytest.mark.parametrize("name", EACH)
def test_every_scenario_goes_through_the_same_stages(name):
    with StageWatch() as watch:
        scenario = of(name)
        assert crossflow.evaluate(scenario).feasible[0]
    first = {span.name: span.end for span in sorted(watch.spans, key=lambda span: -span.end)}
    assert first.keys() - {"read"} == {"scenario", "device", "memory", "trust", *IN_ORDER}
    assert [first[stage] for stage in IN_ORDER] == sorted(first[stage] for stage in IN_ORDER)


@pytest.mark.parametrize("name", EACH)
def test_a_step_has_the_same_doors_whatever_it_computes(name):
    """What congestion, lists of events and timelines ask of it is what its score says."""
    scenario = of(name)
    step, score = own_step(scenario), crossflow.evaluate(scenario)
    assert isinstance(step, ScenarioStep)
    ran = step.run()
    assert ran.outcome.total[0] == pytest.approx(score.step_time[0], rel=1e-12)
    assert float(ran.devices.sum()) == score.devices[0] == scenario.devices
    for stage in step.memory_by_stage:
        assert sum(stage.values()) <= score.memory_needed[0] * (1.0 + 1e-12)
    if name != "service":  # whose steps are of two kinds
        assert simulate(scenario).total == pytest.approx(score.step_time[0], rel=1e-6)
    if name not in ("service", "unlike devices"):  # of which no list is made
        assert events(scenario).step == pytest.approx(score.step_time[0] * scenario.devices, rel=1e-9)


def test_only_steps_ask_which_kind_of_step_a_scenario_has():
    """A new kind of workload is a module of `answers/steps`, and nothing above it."""
    above = Path(crossflow.__file__).parent / "answers" / "evaluation"
    for path in (above / "__init__.py", above / "timelines.py", above / "events.py", above / "congestion.py", above / "scoring.py"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in ("DlrmSpec", "LstmSpec", "ProgramSpec", "Hierarchy", "isinstance(scenario.strategy") if word in text]
