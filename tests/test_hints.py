"""Hints of types are read as they are written, by `typing.get_type_hints` too: tools that check or document calls use it."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing

import pytest

import crossflow
from crossflow.answers.scenario import Scenario
from crossflow.base.results import later

NEEDED = ("torch", "transformers", "jax")  # what modules of extras import at their top


def classes():
    """All classes of crossflow that others may name, but those of modules whose extra is not installed."""
    for found in pkgutil.walk_packages(crossflow.__path__, "crossflow."):
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name.split(".")[0] in NEEDED:
                continue
            raise
        yield from (one for name, one in vars(module).items() if inspect.isclass(one) and one.__module__ == found.name and name[0] != "_")


def methods(one):
    """Functions that a class of crossflow defines, or what it is derived from in crossflow, with those behind properties."""
    for name, value in inspect.getmembers_static(one):
        value = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        if inspect.isfunction(value) and name[0] != "_" and value.__module__.startswith("crossflow."):
            yield value


def unread(things):
    """Those whose hints cannot be read, with the reason."""
    found = []
    for thing in things:
        try:
            typing.get_type_hints(thing)
        except NameError as error:
            found.append(f"{thing.__module__}.{thing.__qualname__}: {error}")
    return found


def test_hints_of_every_class_are_read():
    found = list(classes())
    assert len(found) > 700
    assert unread(found) == []


def test_hints_of_every_method_and_function_of_the_interface_are_read():
    public = [getattr(crossflow, name) for name in crossflow.__all__]
    found = [method for one in public if inspect.isclass(one) for method in methods(one)]
    assert len(found) > 250
    assert unread([*found, *(one for one in public if inspect.isfunction(one))]) == []


def test_hints_name_the_classes_that_are_meant():
    from crossflow.workload.dlrm_spec import DlrmSpec
    from crossflow.workload.requests.spec import RequestsSpec

    hints = typing.get_type_hints(Scenario)
    assert DlrmSpec in typing.get_args(hints["workload"])
    assert set(typing.get_args(hints["requests"])) == {RequestsSpec, type(None)}
    assert typing.get_type_hints(Scenario.plan)["return"] is crossflow.Plans


def test_what_hints_name_is_imported_when_they_are_read():
    code = "import sys, typing; from crossflow.answers.scenario import Scenario; name = 'crossflow.workload.dlrm_spec'; "
    code += "print(name in sys.modules); typing.get_type_hints(Scenario); print(name in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["False", "True"]


def test_a_name_that_is_not_there_is_told():
    def spent(share: later("fractions", "Faction")): ...

    with pytest.raises(AttributeError, match="Faction"):
        typing.get_type_hints(spent)
