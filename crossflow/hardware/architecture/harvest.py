"""Bundles that are on the dies of a device and switched off, so that dies with broken ones can be sold.

The dark ones take their part of the area of the units and of what belongs to a bundle, such as registers and first-level memories, and
neither power nor work. What they bring is yield (`price.die_yield`).
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.architecture.price import Spares
from crossflow.hardware.architecture.template import GeneratedSystem


def lit(system: GeneratedSystem, component: str) -> Array:
    """Share of a component's area that works: that of the bundles which do, where it stands in bundles. [1]"""
    return np.asarray(1.0 / (1.0 + system.harvest)) if component in in_bundles(system) else np.ones(1)


def in_bundles(system: GeneratedSystem) -> tuple[str, ...]:
    """Components that every bundle has its part of."""
    return ("compute", *(name for name, level in system.levels.items() if level.scope == "bundle"))


def spares_of(system: GeneratedSystem) -> Spares | None:
    """What of a die is bundles, and how many of them may be broken; None where none may."""
    if not np.any(system.harvest > 0):
        return None
    bundles = system.bundles / system.budgets.chiplets
    return Spares(
        area=sum((system.budgets.area.of(name) for name in in_bundles(system)), np.zeros(1)),
        bundles=(1.0 + system.harvest) * bundles,
        broken=system.harvest * bundles,
    )
