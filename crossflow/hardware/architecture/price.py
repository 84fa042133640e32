"""Dies on a wafer and how many of them work; what a good one costs, in money and in carbon.

A die is sold whole, or with some of its bundles switched off where a design has spare ones (`Spares`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.technology.components import LogicNode

WAFER_DIAMETER, EDGE, SCRIBE_LINE = 0.3, 0.005, 0.0002  # the wafer, its unused rim, the saw's way between dies [m]
CLUSTERING = 3.0  # alpha of the negative binomial: defects come in clusters
NODES = 48  # of the quadrature over densities of defects: more change no digit that is shown


@dataclass(frozen=True, kw_only=True)
class Spares:
    """Bundles of a die that may be broken; arrays of shape (n,) or (1,)."""

    area: Array  # share of the die that its bundles take; the rest has to work. [1]
    bundles: Array  # bundles of a die. [1]
    broken: Array  # of them that may be broken; between whole numbers the sum of `die_yield` is continued. [1]


def die_cost(area: Array, node: LogicNode, spares: Spares | None = None) -> Array | None:
    """Price of one good die; None where the node's figures are not known. [USD]

    Parameters
    ----------
    area : shape (n,). Die area. [m2]
    node : its logic node.
    spares : bundles that may be broken; none where absent.
    """
    if node.wafer_cost is None or node.defect_density is None:
        return None
    return np.asarray(node.wafer_cost * wafer_area(area, node.defect_density, spares))


def die_carbon(area: Array, node: LogicNode, spares: Spares | None = None) -> Array | None:
    """Carbon of a die's own area and of the wafer area behind one good die, shape (2, n); None where it is not known. [kg]"""
    if node.carbon_per_area is None or node.defect_density is None:
        return None
    return np.asarray(node.carbon_per_area * np.stack(np.broadcast_arrays(area, wafer_area(area, node.defect_density, spares))))


def wafer_area(area: Array, defect_density: Array, spares: Spares | None = None) -> Array:
    """Wafer area that one good die takes: the wafer's over the dies on it that work, its rim and broken dies shared by them. [m2]

    Dies on a wafer: pi R^2 / A - 2 pi R / sqrt(2 A), for the usable radius R and the area A with its scribe lines [1]_.

    References
    ----------
    .. [1] D. K. de Vries, "Investigation of gross die per wafer formulas", IEEE Trans. Semiconductor Manufacturing 18(1), 2005.
    """
    radius, cut = WAFER_DIAMETER / 2.0 - EDGE, (np.sqrt(area) + SCRIBE_LINE) ** 2
    dies = np.maximum(np.pi * radius**2 / cut - 2.0 * np.pi * radius / np.sqrt(2.0 * cut), 1.0)
    return np.asarray(np.pi * WAFER_DIAMETER**2 / 4.0 / (dies * die_yield(area, defect_density, spares)))


def die_yield(area: Array, defect_density: Array, spares: Spares | None = None) -> Array:
    """Share of dies that can be sold; without spares those without a killing defect, (1 + A D / alpha)^-alpha [1]_. [1]

    The density of defects of a die is D x with x of a gamma distribution of mean 1 and shape alpha, so that defects come in clusters.
    At a density a bundle works with probability q = exp(-x D A_bundle), and a die sells where the rest works and no more bundles are
    broken than may be: exp(-x D A_rest) P(broken bundles <= spares), a binomial sum [2]_, here the regularised incomplete beta
    function I_q(bundles - spares, spares + 1). Its mean over x is a Gauss-Laguerre sum.

    References
    ----------
    .. [1] C. H. Stapper, F. M. Armstrong, K. Saji, "Integrated circuit yield statistics", Proc. IEEE 71(4), 1983.
    .. [2] I. Koren, Z. Koren, "Defect tolerance in VLSI circuits: techniques and yield analysis", Proc. IEEE 86(9), 1998.
    """
    defects = np.asarray(area * defect_density)
    whole = np.asarray((1.0 + defects / CLUSTERING) ** -CLUSTERING)
    return whole if spares is None else np.where(spares.broken > 0, _harvested(defects, spares), whole)


def _harvested(defects: Array, spares: Spares) -> Array:
    """Share of dies of which no more bundles than the spares are broken, and nothing else; see `die_yield`. [1]

    defects : mean number of defects on a die, shape (n,). [1]
    """
    from scipy.special import betainc, roots_genlaguerre

    x, weight = roots_genlaguerre(NODES, CLUSTERING - 1.0)
    density = np.asarray(defects) * x[:, None] / CLUSTERING  # (nodes, n)
    works = np.exp(-density * spares.area / spares.bundles)
    sold = np.exp(-density * (1.0 - spares.area)) * betainc(spares.bundles - spares.broken, spares.broken + 1.0, works)
    return np.asarray(weight @ sold / weight.sum())
