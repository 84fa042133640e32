"""Components of a library in another shape than theirs: arrays of multipliers, slices of caches; area, power and energy follow."""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.errors import CrossflowError
from crossflow.base.paths import value_at
from crossflow.hardware.architecture.template import GeneratedSystem, MatrixUnit, OnChipLevel
from crossflow.hardware.technology.alpha_power import relative_frequency, voltage_at
from crossflow.hardware.technology.components import Compute, OnChip
from crossflow.hardware.technology.library import TechLibrary

SWITCHED = ("dynamic_energy_per_bit", "control_energy_per_bit", "wire_energy")  # energies of an access, which go with the voltage's square


def own_value(system: GeneratedSystem, library: TechLibrary, path: str) -> Array | None:
    """What a generated device has at a path below `system`: its own value, or that of the library's component that stands in for it."""
    found = value_at(system, path.split("."))
    return library_value(system, library, path) if found is None else found


def library_value(system: GeneratedSystem, library: TechLibrary, path: str) -> Array | None:
    """What the library's component has that stands in for a value which a device does not give itself; None where none does."""
    match path.split("."):
        case ["matrix_unit", "height" | "width" as side]:
            return np.asarray(getattr(library.component("compute", system.technology.compute), f"array_{side}"))
        case ["levels", level, "slice_width" | "frequency" as field] if level in system.levels:
            held: Array | None = getattr(library.component("on_chip", system.levels[level].component), field)
            return held
    return None


def shaped_unit(unit: Compute, shape: MatrixUnit | None) -> Compute:
    """A unit with another array of multipliers; itself where no shape is given.

    What lies along the edges of the array (registers and feeds of operands, accumulators, control) grows with rows plus columns, the
    multipliers with rows times columns: one large array is denser and more frugal than many small ones, and fits small products worse.

    Raises
    ------
    CrossflowError
        Where the library does not know how much of the unit lies along its edges.
    """
    if shape is None or (shape.height is None and shape.width is None):
        return unit
    height, width = (own if given is None else given for given, own in ((shape.height, unit.array_height), (shape.width, unit.array_width)))
    if np.all(height == unit.array_height) and np.all(width == unit.array_width):
        return unit
    known = [share for share in (unit.edge_area, unit.edge_power) if share is not None and np.isfinite(share).all()]
    if len(known) < 2:
        raise CrossflowError(
            f"matrix_unit: the library does not say which part of the unit '{unit.title}' lies along the edges of its array (edge_area,"
            " edge_power), so that another shape has no area; choose another technology.compute, or the shape of this one,"
            f" {unit.array_height[0]:g} x {unit.array_width[0]:g}"
        )
    inside = height * width / (unit.array_height * unit.array_width)
    along = (height + width) / (unit.array_height + unit.array_width)
    area, power = ((1.0 - share) * inside + share * along for share in known)
    return unit.model_copy(
        update={
            "nominal_flop_rate": unit.nominal_flop_rate * inside,
            "nominal_area": unit.nominal_area * area,
            "nominal_power": unit.nominal_power * power,
            "datapath_area": np.minimum(unit.datapath_area * inside / area, 1.0),
            "datapath_power": np.minimum(unit.datapath_power * inside / power, 1.0),
            "array_height": height,
            "array_width": width,
        }
    )


def edges(unit: Compute, shaped: Compute) -> Array:
    """Edges of arrays for each multiplier, over those of the unit that they were made of, shape (n,). [1]

    Vector units lie along the edges: for each operation of a larger array there are fewer of them.
    """

    def each(one: Compute) -> Array:
        return np.asarray((one.array_height + one.array_width) / (one.array_height * one.array_width))

    return each(shaped) / each(unit)


def shaped_cache(cache: OnChip, level: OnChipLevel, unit: Compute) -> OnChip:
    """A cache with slices of another width or clock; itself where its level gives neither.

    The port of a slice, its part of routers and wires, is as wide as the slice. A faster clock takes a higher voltage, by the law of the
    units' logic up to their largest voltage, where the clock stops; accesses take the square of it. A slower clock saves down to their
    least voltage. Where the library gives the slices of a component no width or clock of their own, what a level gives is their limit, and
    nothing follows from it.
    """
    changes: dict[str, Array] = {}
    if level.slice_width is not None:
        changes["slice_width"] = level.slice_width
        if cache.slice_width is not None:
            changes["port_area"] = cache.port_area * level.slice_width / cache.slice_width
    if level.frequency is not None and cache.frequency is None:
        changes["frequency"] = level.frequency
    own = own_clock(cache, level, unit)
    if own is not None:
        changes["frequency"], voltage = own
        changes |= {name: getattr(cache, name) * (voltage / unit.nominal_voltage) ** 2 for name in SWITCHED}
    return cache.model_copy(update=changes)


def own_clock(cache: OnChip, level: OnChipLevel, unit: Compute) -> tuple[Array, Array] | None:
    """Clock [Hz] that a level gives the slices of its cache, and their voltage [V]; None where they keep the clock of the library."""
    if level.frequency is None or cache.frequency is None:
        return None
    nominal, threshold = unit.nominal_voltage, unit.threshold_voltage
    clock = np.minimum(level.frequency, cache.frequency * relative_frequency(unit.maximum_voltage, nominal, threshold))
    return clock, np.maximum(voltage_at(clock / cache.frequency, nominal, threshold), unit.minimum_voltage)
