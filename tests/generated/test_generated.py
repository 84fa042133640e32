"""Laws over scenarios that are drawn: what is accepted is predicted without a warning, and whoever asks in another way is told the same."""

import copy
import json
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from sampled import ALL, fewer

import crossflow
from crossflow.base.errors import CrossflowError
from tests.generated.drawn_laws import LAWS, accepted, strictly
from tests.generated.further import FURTHER
from tests.generated.inputs import SCENARIOS
from tests.generated.studies import studies

EXAMPLES = fewer(300, 4)  # of each kind
LINKS = ("system.network.intra.bandwidth", "system.network.inter.bandwidth")


def _predicted(document):
    """Scenario and prediction of a document; what is refused, in a sentence, is drawn again."""
    try:
        scenario = crossflow.from_dict(copy.deepcopy(document))
        return scenario, crossflow.predict(scenario)
    except CrossflowError:
        hypothesis.reject()


def _asked_for_links(scenario):
    """Points with the bandwidth of each link as it is, and twice as high."""
    for path in LINKS:
        link = getattr(scenario.system.network, path.split(".")[2])
        if link is not None and link.bandwidth is not None and np.size(link.bandwidth) == 1:
            own = float(np.ravel(link.bandwidth)[0])
            yield path, [own, 2.0 * own]


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", SCENARIOS)
@hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
@given(data=hypothesis.strategies.data())
def test_what_is_accepted_is_told_alike_in_every_way(kind, data):
    """Of a prediction: JSON without gaps, parts that add up, a batch of one. Faster links make no step longer."""
    scenario, found = _predicted(data.draw(SCENARIOS[kind]))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["feasible"] is found.feasible
    assert str(found)
    if not found.feasible or kind == "replay":  # whose requests come one by one
        return
    assert np.isfinite(found.step_time)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_time, rel=1e-9)
    for path, values in _asked_for_links(scenario):
        own, faster = crossflow.evaluate(scenario, {path: values}).step_time
        assert own == pytest.approx(found.step_time, rel=1e-12)
        assert faster <= own * (1.0 + 1e-9), path


QUICK = ("adds_up", "as_settings", "in_a_batch", "more_failures")  # laws that take a tenth of a second


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FURTHER, *(SCENARIOS if ALL else ())])
@hypothesis.settings(max_examples=fewer(100, 1), suppress_health_check=list(hypothesis.HealthCheck))
@given(data=hypothesis.strategies.data())
def test_what_is_accepted_obeys_all_laws(kind, data, tmp_path_factory):
    case = accepted(kind, data.draw({**SCENARIOS, **FURTHER}[kind]), tmp_path_factory.mktemp("case"))
    if case is None:
        hypothesis.reject()
    for name, law in LAWS.items():
        if ALL or name in QUICK:
            with strictly():
                law(case)


@pytest.mark.slow
@hypothesis.settings(max_examples=fewer(100, 1), suppress_health_check=list(hypothesis.HealthCheck))
@given(study=studies())
def test_studies_are_resumed_from_any_part_and_their_points_are_predictions(study, tmp_path_factory):
    """Of every searcher, with every plot: half of its rows lost, a study ends with the bytes of a whole one."""
    folder = tmp_path_factory.mktemp("study")
    path = folder / "s.json"
    path.write_text(json.dumps(study))
    try:
        made = crossflow.run_study(path, out=folder / "whole")
    except CrossflowError:
        hypothesis.reject()
    json.loads("".join(made.to_json()))
    points = "points.jsonl", "points.csv"
    whole = [(made.out / name).read_bytes() for name in points]
    shutil.copytree(made.out, folder / "cut")
    lines = whole[0].splitlines(keepends=True)
    (folder / "cut" / points[0]).write_bytes(b"".join(lines[: len(lines) // 2]))
    again = crossflow.run_study(path, out=folder / "cut", resume=True)
    assert [(again.out / name).read_bytes() for name in points] == whole
    if "searches" in study or "uncertainty" in study or "redivide" in study:
        return
    for row in made.rows[:: max(len(made) // 2, 1)]:
        found = crossflow.predict(study["scenario"], {name: row[name] for name in study["sweep"]})
        assert (found.feasible, found.step_time) == (row["feasible"], pytest.approx(row["step_time_s"], rel=1e-9))
