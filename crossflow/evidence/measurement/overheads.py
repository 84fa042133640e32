"""What the host takes for a kernel of an eager step: what reference steps take beyond their kernels, by kind of operation.

A step is the sum of its kernels, each as it was measured by itself, and of the host's work for each: the words of Python that call it,
its dispatch and its node of autograd. The latter takes longer once a kernel has moved so much that the code and data of the host are
no longer in the caches of a core. Times of four kinds are fitted to all reference steps (least squares of the relative error, none
below zero).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array
from crossflow.cost.nearby import near_times
from crossflow.cost.profile import Measured, Profile, kernel_of
from crossflow.program.kernels import Attention, Kernel, Lookup, Pass, Product, kernel_tables

if TYPE_CHECKING:
    from crossflow.evidence.measurement.results import MeasuredRow

# Operations of optimizers, which a loop over parameters calls.
UPDATES = frozenset({"add_", "mul_", "div", "sqrt", "lerp_", "addcmul_", "addcdiv_"})
ELEMENT = 4.0  # [B]
FORWARD, BACKWARD, UPDATE, COLD = range(4)
EMPTIES = 1.0 / 8.0  # of a core's largest own cache, which a kernel moves to leave the host nothing in the nearer ones
StepKernel = tuple[str, str, str, int]  # op, shape, type, and how many


@dataclass(frozen=True, kw_only=True)
class EagerHost:
    """What the host takes for a kernel. [s]"""

    forward: float
    backward: float
    update: float
    cold: float  # further, behind a kernel that moved an eighth of a core's largest own cache, or more
    error: float | None  # mean relative error of the reference steps. [1]

    @property
    def least(self) -> float:
        """The shortest of the kinds that are there. [s]"""
        return min((one for one in (self.forward, self.backward, self.update) if one > 0), default=0.0)

    def of(self, op: str, kernel: Kernel, cache: float) -> float:
        """Of one kernel. [s]"""
        return float(_features(op, kernel, cache) @ [self.forward, self.backward, self.update, self.cold])


def host_times(rows: Sequence[MeasuredRow], floor: float, cache: float) -> EagerHost:
    """Fit the host's times to measured steps.

    Parameters
    ----------
    floor : what the cheapest call takes that does next to nothing. [s]
    cache : bytes of the largest cache of one core. [B]
    """
    from scipy.optimize import nnls

    steps = [row for row in rows if row.kernels]
    if not steps:
        return EagerHost(forward=floor, backward=floor, update=floor, cold=0.0, error=None)
    times = _kernel_times(rows, floor, [one for row in steps for one in row.kernels])
    features = np.array([sum((_counted(one, cache) for one in row.kernels), np.zeros(4)) for row in steps])
    known = np.array([sum(times[one[:3]] * one[3] for one in row.kernels) for row in steps])
    whole = np.array([row.time for row in steps])
    found, _ = nnls(features / whole[:, None], np.maximum(whole - known, 0.0) / whole)
    error = float(np.abs((known + features @ found) / whole - 1.0).mean())
    return EagerHost(forward=found[FORWARD], backward=found[BACKWARD], update=found[UPDATE], cold=found[COLD], error=error)


def _counted(one: StepKernel, cache: float) -> Array:
    kernel = kernel_of(*one[:3])
    return np.zeros(4) if kernel is None else one[3] * _features(one[0], kernel, cache)


def _features(op: str, kernel: Kernel, cache: float) -> Array:
    """Shares of a kernel's call in the four times, shape (4,). [1]"""
    found = np.zeros(4)
    name = kernel.what if isinstance(kernel, Pass) else op
    if isinstance(kernel, Product):  # a linear layer has one forward and two backward
        found[[FORWARD, BACKWARD]] = 1.0 / 3.0, 2.0 / 3.0
    elif name in UPDATES:
        found[UPDATE] = 1.0
    else:
        back = "backward" in name or (isinstance(kernel, Lookup) and kernel.part != "forward")
        found[BACKWARD if back else FORWARD] = 1.0
    found[COLD] = min(1.0, _moved(kernel) / (EMPTIES * cache))
    return found


def _moved(kernel: Kernel) -> float:
    """Bytes that a kernel reads and writes. [B]"""
    if isinstance(kernel, Product):
        m, n, k, batch = (float(size) for size in (kernel.m, kernel.n, kernel.k, kernel.batch))
        return ELEMENT * batch * (m * k + k * n + m * n)
    if isinstance(kernel, Attention):
        return 4.0 * ELEMENT * float(kernel.samples * kernel.heads * kernel.length * kernel.width)
    if isinstance(kernel, Lookup):
        return ELEMENT * float(kernel.samples * kernel.pooling * kernel.width)
    return float(kernel.moved) if isinstance(kernel, Pass) else 0.0


def _kernel_times(rows: Sequence[MeasuredRow], floor: float, wanted: Sequence[StepKernel]) -> Mapping[tuple[str, str, str], float]:
    """Times of kernels by name from the rows of kernels, without the call; 0 of those that none is near. [s]"""
    events = {
        (row.op, row.shape, row.dtype, 1, ""): Measured(time=max(row.time - floor, 1e-9), spread=0.0)
        for row in rows if row.op and not row.scope
    }  # fmt: skip
    profile = Profile(events=events, source="")
    return dict(_priced(profile, sorted({one[:3] for one in wanted})))


def _priced(profile: Profile, names: Sequence[tuple[str, str, str]]) -> Iterator[tuple[tuple[str, str, str], float]]:
    kernels = [kernel_of(*name) for name in names]
    known = [(name, kernel) for name, kernel in zip(names, kernels, strict=True) if kernel is not None]
    yield from ((name, 0.0) for name, kernel in zip(names, kernels, strict=True) if kernel is None)
    for table in kernel_tables([kernel for _, kernel in known], ELEMENT, narrow=False):
        mine = [known[place][0] for place in table.places]
        near = near_times(table, [name[2] for name in mine], profile)[:, 0]
        for name, time in zip(mine, near, strict=True):
            exact = profile.event((*name, 1, ""))
            yield name, exact.time if exact is not None else float(np.nan_to_num(time))
