"""What a user most likely did not mean: figures that no device has, and weights in another type than the name of their file says."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from crossflow.answers.evaluation.distance import FAR, FARTHER
from crossflow.answers.evaluation.likeness import device_of, is_changed
from crossflow.answers.meaning import caches_in, multiplied_by_all
from crossflow.answers.scenario import Scenario
from crossflow.base import files
from crossflow.base.files import Document
from crossflow.base.paths import value_at
from crossflow.base.units import parse, show
from crossflow.hardware.architecture.system import resolve
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, SystemSpec
from crossflow.hardware.technology.library import load_library
from crossflow.workload.released import unsaid_types
from crossflow.workload.spec import TransformerSpec

# Figures that are held against those of shipped devices, with their units, and the factor beyond the least and the greatest at which
# one is told; judgement. Clocks hardly rise, all else did by ten times in ten years.
_FIGURES: Mapping[str, tuple[str, float]] = {
    "clock": ("Hz", FAR), "levels.memory.bandwidth": ("B/s", FARTHER), "levels.memory.capacity": ("B", FARTHER),
    "power.tdp": ("W", FARTHER),
}  # fmt: skip
_WIDE, _NARROW = ("bf16", "fp16"), ("fp8", "mxfp8", "mxfp4", "nvfp4")  # types of which the narrow are no slower on any device


def slips(scenario: Scenario, rates: Collection[str] | None = None) -> Iterator[str]:
    """Sentences on what a user most likely did not mean; cures are of types in `rates`, or those that its own devices multiply in."""
    yield from _of_device(scenario)
    yield from _of_library(scenario)
    if isinstance(scenario.workload, TransformerSpec):
        rates = multiplied_by_all(scenario.system) if rates is None else rates
        yield from unsaid_types(scenario.workload, scenario.document.data["workload"], rates)
        yield from _of_cache(scenario.workload.kv_dtype, scenario.system)


def _of_cache(dtype: str | None, system: SystemSpec) -> Iterator[str]:
    """A type of keys and values that no engine keeps on the devices."""
    if dtype is not None and not caches_in(system, dtype):
        yield f"workload.kv_dtype: engines keep {dtype} on devices that multiply in it, and {system.name} does not; give kv_dtype: fp8"


def _of_device(scenario: Scenario) -> Iterator[str]:
    """Figures of a device that is not shipped, or is changed, which lie far outside those of all that are: slips of a unit or a digit."""
    given, system = scenario.document.data["system"], scenario.system
    if not isinstance(system, DatasheetSystem) or (device_of(given, scenario.base) and not is_changed(scenario)):
        return
    for path, (unit, factor) in _FIGURES.items():
        value, (least, greatest) = value_at(system, path.split(".")), _spans()[path]
        if value is not None and not least / factor <= float(np.ravel(value)[0]) <= greatest * factor:
            known = f"{show(least, unit)} to {show(greatest, unit)}"
            held = show(float(np.ravel(value)[0]), unit)
            yield f"system.{path} is {held}, far outside the {known} of shipped devices: check its unit and digits"
    rates = {dtype: float(rate[0]) for dtype, rate in system.throughput.items()}
    wide = max((rates[dtype] for dtype in _WIDE if dtype in rates), default=0.0)
    for dtype in _NARROW:
        if rates.get(dtype, wide) < wide:
            yield f"system.throughput.{dtype} is {show(rates[dtype], 'flop/s')}, below the {show(wide, 'flop/s')} of wider types: check it"


def _of_library(scenario: Scenario) -> Iterator[str]:
    """An own library that extends another one than that of the template of a generated device: entries that it leaves out differ, too."""
    given, system = scenario.document.data["system"], scenario.system
    own = isinstance(given, Mapping) and files.shipped_name("techlibs", system.techlib) is None
    if not own or not isinstance(system, GeneratedSystem) or not isinstance(given.get("template"), str):
        return
    built_on = load_library(system.techlib, scenario.base).extends
    usual = resolve(Document(file=scenario.document.file, data={"template": given["template"]}), scenario.base)[0].techlib
    if built_on not in (None, usual) and files.shipped_name("techlibs", str(built_on)) is not None:
        made = f"system.techlib extends {built_on}, and {given['template']} is made with {usual}"
        yield f"{made}: entries that the library leaves out are those of {built_on}; write extends: {usual} in it to keep the template's"


@functools.cache
def _spans() -> Mapping[str, tuple[float, float]]:
    """Least and greatest value of each figure among shipped devices, in SI units."""
    held: dict[str, list[float]] = {path: [] for path in _FIGURES}
    for path in files.catalogue("templates", "devices").values():
        data = files.read_yaml(path).data
        for name, (unit, _) in _FIGURES.items():
            value = files.held(data, name.split("."))
            value = value.get("value") if isinstance(value, Mapping) else value
            held[name] += [] if value is None else [parse(value, unit)]
    return {name: (min(values), max(values)) for name, values in held.items()}
