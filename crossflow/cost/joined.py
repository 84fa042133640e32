"""Prices of steps whose stages lie on devices of several kinds: a part of the model is another unit on each kind of device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.passes import OF_WEIGHTS, Passes, State, Steps
from crossflow.cost.price import LayerCosts
from crossflow.cost.roofline import KernelCosts
from crossflow.parallel.shapes import Between
from crossflow.parallel.tables import StepTables


def joined(parts: Sequence[Steps], between: Between) -> Steps:
    """Steps of all kinds of devices as one, the units of the first kind before those of the others; `between` is of their stages."""
    resources = resources_of(parts)
    times = [part.times for part in parts]
    return Steps(
        tables=_tables([part.tables for part in parts]),
        times=_times(times, resources),
        passes=_passes([part.passes for part in parts], times, resources),
        state=_state([part.state for part in parts]),
        between=between,
        transfer_use=parts[0].transfer_use,
    )


def resources_of(parts: Sequence[Steps]) -> tuple[str, ...]:
    """What can bind kernels on any of the devices: computing, caches, the main memory last."""
    names = dict.fromkeys(name for part in parts for name in part.times.resources[:-1])
    return (*names, parts[0].times.resources[-1])


def _side_by_side(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays one after the other along the axis of units, each with all of its points."""
    n = max(array.shape[-1] for array in arrays)
    return np.concatenate([np.broadcast_to(array, (*array.shape[:-1], n)) for array in arrays], axis=axis)


def _by_resource(values: Array, own: Sequence[str], all_: Sequence[str]) -> Array:
    """Values of each resource of a device, the last rows those of no resource, among the resources of all devices."""
    found = np.zeros((len(all_) + len(values) - len(own), *values.shape[1:]))
    found[[all_.index(name) for name in own]] = values[: len(own)]
    found[len(all_) :] = values[len(own) :]
    return found


def _tables(tables: Sequence[StepTables]) -> StepTables:
    """What the stages on all kinds do; bytes that a device sends are those of the first kind."""
    first = tables[0]
    return dataclasses.replace(
        first, units=sum((table.units for table in tables), ()), occurs=_side_by_side([table.occurs for table in tables], -2),
        phases=_side_by_side([table.phases for table in tables], -3),
        model_flops=np.asarray(sum(table.model_flops for table in tables)),
    )  # fmt: skip


def _times(times: Sequence[LayerCosts], resources: tuple[str, ...]) -> LayerCosts:
    names = ("compute", "launch", "kernels", "flops", "energy", "traffic", "measured", "spare")
    added: dict[str, Any] = {name: _side_by_side([getattr(one, name) for one in times], -3) for name in names}
    bound = [_by_resource(one.bound, one.resources, resources) for one in times]
    return dataclasses.replace(
        times[0], layers=sum((one.layers for one in times), ()), resources=resources, bound=_side_by_side(bound, -3), **added,
    )  # fmt: skip


def _passes(passes: Sequence[Passes], times: Sequence[LayerCosts], resources: tuple[str, ...]) -> Passes:
    names = [field.name for field in dataclasses.fields(Passes) if field.name not in ("device", "weight")]
    of_kernels = {
        name: _side_by_side([_by_resource(getattr(one, name), of.resources, resources) for one, of in zip(passes, times, strict=True)], -2)
        for name in ("device", "weight")
    }
    return Passes(**of_kernels, **{name: _side_by_side([getattr(one, name) for one in passes], -2) for name in names})


def _state(states: Sequence[State]) -> State:
    arrays = {name: _side_by_side([getattr(one, name) for one in states], -2) for name in OF_WEIGHTS}
    return State(**arrays, optimizer=_optimizer([one.optimizer for one in states]), copies=None)


def _optimizer(costs: Sequence[KernelCosts]) -> KernelCosts:
    """What updates cost; of the resources of devices the main memory alone, which they have in common."""

    def whole(name: str) -> Array:
        return _side_by_side([np.broadcast_to(getattr(one, name), one.time.shape) for one in costs], -2)

    def of_memory(name: str) -> Array:
        return _side_by_side([np.broadcast_to(getattr(one, name)[-1:], (1, *one.time.shape)) for one in costs], -2)

    names = ("time", "launch", "launches", "flops", "energy", "working")
    return KernelCosts(**{name: whole(name) for name in names}, resource_times=of_memory("resource_times"), traffic=of_memory("traffic"))
