"""Modules by their names before the package had wings."""

import importlib
import subprocess
import sys

import pytest

from crossflow.base.moved import WING, moved


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    ["scenario", "score", "study.run", "cost.price", "sharding.costs", "strategy.notation", "cli.parser", "step.memory", "step.task"],
)
def test_a_module_is_the_same_by_its_old_name(name):
    old = importlib.import_module(f"crossflow.{name}")
    assert old is importlib.import_module(moved(f"crossflow.{name}") or f"crossflow.{name}")
    assert old.__spec__.name == old.__name__  # the module's own


def test_old_names_are_told_and_public_names_stay():
    code = (
        "import warnings, crossflow; warnings.simplefilter('error'); from crossflow.base.errors import SpecError\n"
        "try: from crossflow.errors import SpecError as Old\n"
        "except DeprecationWarning as told: print(told)\n"
        "warnings.simplefilter('ignore'); import crossflow.study.run\n"
        "print(crossflow.study is crossflow.run_study, callable(crossflow.timeline))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["crossflow.errors is crossflow.base.errors now", "True True"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_never_was_is_not_found():
    assert moved("crossflow.nothing") is moved("elsewhere.scenario") is moved("crossflow") is None
    with pytest.raises(ModuleNotFoundError, match=r"crossflow\.nothing"):
        importlib.import_module("crossflow.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"'crossflow\.scenario\.nothing'"):
        importlib.import_module("crossflow.scenario.nothing")


def test_every_room_is_where_the_table_says():
    for room in WING:
        assert importlib.util.find_spec(f"crossflow.{WING[room]}.{room}") is not None, room
