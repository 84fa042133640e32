"""Dies on a wafer and how many of them work; what a good one costs, in money and in carbon.

No die is repaired, which makes large dies dearer than those that are sold with some units switched off.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.technology.components import LogicNode

WAFER_DIAMETER, EDGE, SCRIBE_LINE = 0.3, 0.005, 0.0002  # the wafer, its unused rim, the saw's way between dies [m]
CLUSTERING = 3.0  # alpha of the negative binomial: defects come in clusters


def die_cost(area: Array, node: LogicNode) -> Array | None:
    """Price of one good die; None where the node's figures are not known. [USD]

    Parameters
    ----------
    area : shape (n,). Die area. [m2]
    node : its logic node.
    """
    if node.wafer_cost is None or node.defect_density is None:
        return None
    return np.asarray(node.wafer_cost * wafer_area(area, node.defect_density))


def die_carbon(area: Array, node: LogicNode) -> Array | None:
    """Carbon of a die's own area and of the wafer area behind one good die, shape (2, n); None where it is not known. [kg]"""
    if node.carbon_per_area is None or node.defect_density is None:
        return None
    return np.asarray(node.carbon_per_area * np.stack(np.broadcast_arrays(area, wafer_area(area, node.defect_density))))


def wafer_area(area: Array, defect_density: Array) -> Array:
    """Wafer area that one good die takes: the wafer's over the dies on it that work, its rim and broken dies shared by them. [m2]

    Dies on a wafer: pi R^2 / A - 2 pi R / sqrt(2 A), for the usable radius R and the area A with its scribe lines [1]_.

    References
    ----------
    .. [1] D. K. de Vries, "Investigation of gross die per wafer formulas", IEEE Trans. Semiconductor Manufacturing 18(1), 2005.
    """
    radius, cut = WAFER_DIAMETER / 2.0 - EDGE, (np.sqrt(area) + SCRIBE_LINE) ** 2
    dies = np.maximum(np.pi * radius**2 / cut - 2.0 * np.pi * radius / np.sqrt(2.0 * cut), 1.0)
    return np.asarray(np.pi * WAFER_DIAMETER**2 / 4.0 / (dies * die_yield(area, defect_density)))


def die_yield(area: Array, defect_density: Array) -> Array:
    """Share of dies without a killing defect, negative binomial: (1 + A D / alpha)^-alpha [1]_. [1]

    References
    ----------
    .. [1] C. H. Stapper, F. M. Armstrong, K. Saji, "Integrated circuit yield statistics", Proc. IEEE 71(4), 1983.
    """
    return np.asarray((1.0 + area * defect_density / CLUSTERING) ** -CLUSTERING)
