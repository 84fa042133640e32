"""Every launch file that the frameworks take is read back as the plan and the workload that it was written from."""

import os

import pytest
from launch_exports import PLANS, THOROUGH, exports, transformers

from crossflow.edges.launch.launch import read, write
from crossflow.edges.launch.settings import plan_settings, workload_settings

# Of each framework the models that get all plans, and every sixth one of the others; all with ALL_PLANS=1 in the environment.
CASES = [
    (kind, preset)
    for turn, kind in enumerate(PLANS)
    for i, preset in enumerate(transformers())
    if preset in THOROUGH[kind] or i % 6 == turn % 6 or os.environ.get("ALL_PLANS")
]


def settings(scenario):
    """All of a plan and a workload in one form."""
    return {**plan_settings(scenario.strategy, scenario.workload.transformer().depth), **workload_settings(scenario.workload)}


def lines(text):
    """A file without the comments that name its scenario and say of a stack what no flag says."""
    return [line for line in text.splitlines() if not any(words in line for words in ("Written by", "names no software", "software's own"))]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "preset"), CASES)
def test_what_is_written_is_read_back(kind, preset):
    for export in exports(kind, preset):
        launch = read(export.text)
        assert (launch.kind, launch.devices, launch.notes) == (kind, export.scenario.devices, ()), export.text
        again = launch.scenario()
        assert settings(again) == settings(export.scenario), export.text
        assert lines(write(again, kind)) == lines(export.text)
