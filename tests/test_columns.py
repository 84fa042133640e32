"""Rows and stages of pipelines that are alike are worked out once, for all shapes together."""

import numpy as np
import pytest
from sampled import fewer

from crossflow.answers.evaluation import evaluate
from crossflow.answers.scenario import from_dict
from crossflow.engine.runs import transformer
from crossflow.engine.runs.busiest import Busiest
from crossflow.engine.runs.slots import RowColumns, ShapeSlots
from crossflow.parallel.strategy.reading import every_strategy

WORDS = ("", "-z3", "-z2-full", "-sp-selective", "-zbh1", "-pipedream", "-gpipe", "-offload:optimizer", "-z1-placed:pp+tp+dp")


def each_row(job, layout, machine, steps, sums, shapes):
    """Busiest stages, from every row and every stage of each shape."""
    found = []
    for shape in shapes:
        handed = transformer.handed_of(layout, machine, steps, shape, training=job.training)
        slots = ShapeSlots.of(job, machine, sums.at(shape.at), shape, handed)
        found.append(transformer.timed(job, layout, machine.stack, transformer.Pipelines.of_shape(slots), steps.between.tied))
    at = np.sort(np.concatenate([mine for mine, _ in found]))
    return at, Busiest.together([(np.searchsorted(at, mine), busiest) for mine, busiest in found], len(at))


@pytest.mark.cases(1)
@pytest.mark.parametrize("model", ["gpt3-20b", "mixtral-8x7b"])
def test_plans_take_what_they_take_row_by_row(model, monkeypatch):
    system = {"template": "a100-ib-cluster", "nodes": 4}
    scenario = from_dict({"system": system, "workload": {"model": model, "global_batch": 64}, "strategy": "tp8-dp4"})
    rng, plans = np.random.default_rng(0), every_strategy(scenario.workload, scenario.nodes)
    drawn = [str(rng.choice(plans)) + str(rng.choice(WORDS)) for _ in range(fewer(400, 60))]
    together = evaluate(scenario, {"strategy": drawn})
    with monkeypatch.context() as patch:
        patch.setattr(transformer, "_pipelines", each_row)
        apart = evaluate(scenario, {"strategy": drawn})
    assert np.isfinite(together.step_time).mean() > 0.5  # others make no scenario
    assert together.reasons == apart.reasons
    np.testing.assert_allclose(together.step_time, apart.step_time, rtol=1e-12)
    for name, values in together.breakdown.items():
        np.testing.assert_allclose(values, apart.breakdown[name], rtol=1e-9, atol=1e-12 * float(np.nanmin(apart.step_time)), err_msg=name)


def test_a_long_pipeline_has_few_kinds_of_rows(monkeypatch):
    system = {"template": "a100-ib-cluster", "nodes": 64}
    strategy = "tp8-pp32-dp2-v3"
    scenario = from_dict({"system": system, "workload": {"model": "gpt3-175b", "global_batch": 64}, "strategy": strategy})
    found, of = [], RowColumns.of
    monkeypatch.setattr(RowColumns, "of", lambda *given: found.append(of(*given)) or found[-1])
    assert evaluate(scenario, {"strategy": [strategy, f"{strategy}-z1"]}).feasible.all()
    columns = found[0].columns
    assert [len(first) for first in columns.first] == [3]  # with the embedding, with neither, with the head
    assert [len(first) for first in columns.stages().first] == [3]
    rows = np.repeat(np.arange(3.0), 2)  # at both points
    np.testing.assert_array_equal(columns.spread(0, rows)[:, 0], [0.0, *[1.0] * 94, 2.0])
