"""Laws over scenarios that are drawn: what is accepted is predicted without a warning, and whoever asks in another way is told the same."""

import copy
import json

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from sampled import fewer

import crossflow
from crossflow.base.errors import CrossflowError
from tests.generated.inputs import SCENARIOS

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
