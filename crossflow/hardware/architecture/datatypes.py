"""What data types take of a matrix unit: area, power and energy of a multiply-accumulate by significand, exponent and block scale.

A multiply-accumulate of a dot product is counted in cells of one full adder, part by part [1]_, [2]_: the partial products of the
significands, the exponents' adder and comparator, the shifter that aligns the product, its place in the tree of adders, the registers
of its operands, its share of an accumulator that normalises, and the block's scale over the elements of the block. Types share the
parts of a datapath: of each part a unit has what its most demanding type needs, and some of what the others need (`Datapath.apart`).

A unit of the library has the types that it was published with at its published area and power. What a template asks for beyond them
makes it larger by the cells that its datapath then has more, and hotter where a type at its rate switches more than those of the unit.

With 2:4 sparsity of weights [3]_, Sec. 2, a multiplier takes a weight that is kept and one of the four elements beside which it may
stand. The two weights of four are in order, so that each chooses among three: two multiplexers of 2:1 for every bit. Twice as many
elements lie in registers, and with each weight the two bits of its place.

References
----------
.. [1] Rouhani et al., "With Shared Microexponents, A Little Shifting Goes a Long Way", ISCA 2023: area of dot products by their parts.
.. [2] van Baalen et al., "FP8 versus INT8 for efficient deep learning inference", arXiv:2303.17951, 2023, Sec. 3.
.. [3] Mishra et al., "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378, 2021.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, divide, points
from crossflow.base.formats import FORMATS, PLACE, Format, with_like
from crossflow.hardware.technology.components import Compute, Datapath
from crossflow.hardware.technology.library import TechLibrary, gather, taken

SIZES = ("shift", "flip_flop", "window", "accumulator", "lanes", "split")  # of a datapath, from which cells follow
PARTS = ("multiplier", "exponent", "aligner", "adder", "operands", "accumulator", "scale")  # rows of `cells`
LEFT = 2.0  # products with weights of 2:4 sparsity over those of them that are computed. [1]
HALF, NOTHING, ONE = 16, np.zeros(1), np.ones(1)  # bits of the types that units are published for
ROUNDING = 1.0 + 1e-9
EMPTY: Mapping[str, Array] = {}
Rates = Mapping[str, Array]  # of products by data type, over the nominal rate of a unit, each of shape (1,) or (n,). [1]


@dataclass(frozen=True, kw_only=True)
class TypedUnits:
    """Units with the types that templates ask for, at each design point."""

    unit: Compute
    operations: Rates  # operations that take the energy of one at the nominal rate, over the time of one. [1]
    sparse: Rates  # the same of products whose weights have 2:4 sparsity, those that are left out counted. [1]
    larger: Array  # area of the unit over that without the types that it was not published with. [1]
    refused: tuple[tuple[Mask, str], ...]  # points whose rates cannot be had, with the sentence that says why


# ------------------------------------------------------------------------------------------ one multiply-accumulate


def cells(form: Format, path: Datapath, *, sparse: bool = False) -> Array:
    """Cells of a multiply-accumulate in a dot product by part, shape (len(PARTS), n); with what 2:4 sparsity of weights takes. [1]

    Products of a short exponent lie within few bits, exactly; those of a long one are cut to the window. Integers need neither
    exponents nor shifters, and an accumulator of theirs does not normalise. Sums of twice as many elements of half the bits reach an
    accumulator together.
    """
    sizes = [getattr(path, name) for name in SIZES]
    if all(size.size == 1 for size in sizes):
        return _cells_of_one(form, sparse, *(float(size[0]) for size in sizes))
    return _counted(form, path, sparse=sparse)


@functools.lru_cache(maxsize=1024)
def _cells_of_one(form: Format, sparse: bool, *sizes: float) -> Array:
    """Cells in a datapath that is the same at all points: searches ask for the same ones at every call."""
    given: dict[str, Any] = dict(zip(SIZES, map(points, sizes), strict=True))
    found = _counted(form, Datapath.model_construct(**given), sparse=sparse)
    found.setflags(write=False)
    return found


def _counted(form: Format, path: Datapath, *, sparse: bool) -> Array:
    """See `cells`."""
    bits, floating = 2.0 * form.significand, form.exponent > 0
    window = np.minimum(np.maximum(path.window, bits), bits + 2.0 * (2.0**form.exponent - 2.0)) if floating else bits * ONE
    lanes = path.lanes * HALF / form.bits
    kept = np.maximum(path.accumulator, form.bits)
    summed = window + np.log2(np.maximum(lanes, 1.0))
    parts = {
        "multiplier": form.significand**2 * (1.0 + path.split * (form.bits < HALF)),
        "exponent": 2.0 * (form.exponent + 1.0) * floating * ONE,
        "aligner": _shifter(window, path) * floating,
        "adder": summed,
        "operands": path.flip_flop * form.bits + sparse * _chosen(form, path),  # those of two, each of which two multipliers take
        "accumulator": (kept * (1.0 + path.flip_flop) + _shifter(kept, path) * floating) / lanes,
        "scale": _scale(form, summed) / max(form.block, 1),
    }
    return np.stack(np.broadcast_arrays(*(parts[name] for name in PARTS)))


def _chosen(form: Format, path: Datapath) -> Array:
    """Cells that choose the elements beside which weights of 2:4 sparsity stand: of one operand as many again, places, multiplexers."""
    return np.asarray(path.flip_flop * (form.bits + PLACE) / 2.0 + 2.0 * path.shift * form.bits)


def _shifter(width: Array, path: Datapath) -> Array:
    """Cells of a shifter by any number of bits, a stage for each power of two."""
    return np.asarray(path.shift * width * np.log2(np.maximum(width, 1.0)))


def _scale(form: Format, summed: Array) -> Array:
    """Cells that multiply a block's sum by the scales of both operands: exponents are added, significands multiplied."""
    exponents = 2.0 * (form.scale_exponent + 1.0) if form.scale_exponent else 0.0
    return np.asarray(exponents + form.scale_significand**2 + 2.0 * form.scale_significand * summed)


# ------------------------------------------------------------------------------------------ a unit


def datapath_cells(rates: Rates, path: Datapath, sparse: Rates = EMPTY) -> Array:
    """Cells of the datapath of a unit that multiplies in several types, per multiply-accumulate at the nominal rate; shape (n,). [1]

    Types of equal width share all (formats of floating point among themselves, integers among themselves). Of those of different
    widths each part is as large as the most demanding one needs, and larger by the share of the others' that lies apart.
    """
    widths: dict[tuple[int, bool], Array] = {}
    for dtype, rate in rates.items():
        form = FORMATS[dtype]
        key = form.bits, form.exponent > 0
        widths[key] = np.maximum(widths.get(key, NOTHING), rate * cells(form, path))
    for dtype, rate in sparse.items():
        form = FORMATS[dtype]
        key = form.bits, form.exponent > 0
        widths[key] = np.maximum(widths.get(key, NOTHING), rate / LEFT * cells(form, path, sparse=True))
    if not widths:
        return NOTHING
    needs = np.stack(np.broadcast_arrays(*widths.values()))
    return np.asarray(((1.0 - path.apart) * needs.max(axis=0) + path.apart * needs.sum(axis=0)).sum(axis=0))


def draws(rates: Rates, unit: Compute, path: Datapath) -> Rates:
    """Switched power of a unit that multiplies in each type at its rate, over its nominal one. [1]

    What is not datapath (control, operands' way) switches at every cycle. Types of 16 bits and more take all of the published power,
    or more where their rate needs more of the datapath than the published ones; narrower ones take what their cells do. None that
    the unit was published with takes more than the published power.
    """
    own = {dtype: rate for dtype, rate in unit.types.items() if FORMATS[dtype].bits >= HALF} or unit.types
    base = np.maximum.reduce(np.broadcast_arrays(*(rate * cells(FORMATS[dtype], path).sum(axis=0) for dtype, rate in own.items())))
    held, found = with_like(unit.types), {}
    for dtype, rate in rates.items():
        form = FORMATS[dtype]
        more = rate * cells(form, path).sum(axis=0) / base - 1.0
        more = np.where(rate > held.get(dtype, NOTHING) * ROUNDING, more, np.minimum(more, 0.0))
        found[dtype] = 1.0 + unit.datapath_power * (np.maximum(more, 0.0) if form.bits >= HALF else more)
    return found


def with_types(unit: Compute, rates: Rates, library: TechLibrary, sparse: Rates = EMPTY) -> TypedUnits:
    """A unit that multiplies in the types of a template at their rates: larger and hotter by what it was not published with.

    `sparse` are the rates of products whose weights have 2:4 sparsity.
    """
    held = with_like(unit.types)
    beyond = {dtype: rate for dtype, rate in rates.items() if np.any(rate > held.get(dtype, NOTHING) * ROUNDING)}
    if not unit.types or unit.datapath is None:
        silent = {dtype: rate for dtype, rate in beyond.items() if unit.types or FORMATS[dtype].bits < HALF}
        refused = (*(_unknown(dtype, rate, unit) for dtype, rate in silent.items()), *map(_not_left_out, sparse.items()))
        return TypedUnits(unit=unit, operations=rates, sparse=sparse, larger=ONE, refused=refused)
    if not beyond and not sparse and all(FORMATS[dtype].bits >= HALF for dtype in rates):
        return TypedUnits(unit=unit, operations=rates, sparse=sparse, larger=ONE, refused=())
    path: Datapath = library.component("datapath", unit.datapath)
    widest = max(FORMATS[dtype].significand for dtype in unit.types)
    parted = {dtype: rate for dtype, rate in beyond.items() if FORMATS[dtype].significand > widest}
    added = {dtype: rate for dtype, rate in beyond.items() if dtype not in parted}
    drawn = draws({dtype: rate for dtype, rate in rates.items() if dtype not in parted}, unit, path)
    selecting = {dtype: _sparse_draw(dtype, rate, rates, drawn, unit, path) for dtype, rate in sparse.items()}
    chosen = {dtype: rate for dtype, rate in sparse.items() if dtype not in unit.sparse_types and dtype not in parted}
    most = np.maximum.reduce(np.broadcast_arrays(ONE, *drawn.values(), *selecting.values()))
    larger = _growth(unit, added, path, chosen)
    return TypedUnits(
        unit=_grown(unit, larger, most) if added or chosen else unit,
        larger=larger,
        operations={dtype: divide(rate * most, drawn.get(dtype, ONE)) for dtype, rate in rates.items()},
        sparse={dtype: divide(rate * most, selecting[dtype]) for dtype, rate in sparse.items()},
        refused=tuple(_too_wide(dtype, rate, unit) for dtype, rate in parted.items()),
    )


def gathered(units: Sequence[TypedUnits], index: Index) -> TypedUnits:
    """Units of shape (n,): point i takes `units[index[i]]`."""
    if len(units) == 1:
        return units[0]
    return TypedUnits(
        unit=gather([one.unit for one in units], index),
        operations={dtype: taken([one.operations[dtype] for one in units], index) for dtype in units[0].operations},
        sparse={dtype: taken([one.sparse[dtype] for one in units], index) for dtype in units[0].sparse},
        larger=taken([one.larger for one in units], index),
        refused=tuple((mask & (index == i), sentence) for i, one in enumerate(units) for mask, sentence in one.refused),
    )


def _sparse_draw(dtype: str, rate: Array, rates: Rates, drawn: Rates, unit: Compute, path: Datapath) -> Array:
    """Switched power of a unit whose products in a type leave out what 2:4 sparsity saves, over its nominal one. [1]

    It is that of other products of the type at as many multiplications, and more by the cells that choose, in the datapath's share. A unit
    that was published with it takes no more than without.
    """
    form, usual = FORMATS[dtype], drawn.get(dtype, ONE)
    base = cells(form, path).sum(axis=0)
    more = ONE if dtype in unit.sparse_types else 1.0 + unit.datapath_power * (cells(form, path, sparse=True).sum(axis=0) / base - 1.0)
    return np.asarray(usual * divide(rate / LEFT, rates[dtype]) * more)


def _growth(unit: Compute, added: Rates, path: Datapath, chosen: Rates) -> Array:
    """Area of a unit with the cells of further types, and of further `chosen` ones with 2:4 sparsity, over its published one. [1]"""
    every = {**unit.types, **{dtype: np.maximum(rate, unit.types.get(dtype, NOTHING)) for dtype, rate in added.items()}}
    return np.asarray(1.0 + unit.datapath_area * (datapath_cells(every, path, chosen) / datapath_cells(unit.types, path) - 1.0))


def _grown(unit: Compute, larger: Array, drawn: Array) -> Compute:
    """A unit with further types: its area and its leakage grow with their cells, its switched power with what the hottest draws."""
    hotter = 1.0 + (1.0 - unit.leakage) * (drawn - 1.0) + unit.leakage * (larger - 1.0)
    return unit.model_copy(
        update={
            "nominal_area": unit.nominal_area * larger,
            "nominal_power": unit.nominal_power * hotter,
            "leakage": unit.leakage * larger / hotter,
        }
    )


def priced(unit: Compute, rates: Rates) -> bool:
    """Whether the cost of types counts for a unit: a template asks for narrow ones, or for more than it was published with."""
    held, narrow = with_like(unit.types), any(FORMATS[dtype].bits < HALF for dtype in rates)
    return unit.datapath is not None and (narrow or any(np.any(rate > held.get(dtype, NOTHING)) for dtype, rate in rates.items()))


def _not_left_out(asked: tuple[str, Array]) -> tuple[Mask, str]:
    """Where 2:4 sparsity is asked for of a unit whose datapath is not known."""
    dtype, rate = asked
    sentence = (
        f"sparse_rates.{dtype}: what choosing the elements of 2:4 sparsity takes is not known of this unit; leave it out, or say its"
        " `types` and `datapath` in the library"
    )
    return np.asarray(rate > 0), sentence


def _too_wide(dtype: str, rate: Array, unit: Compute) -> tuple[Mask, str]:
    """Where a type that is wider than all of a unit is asked for at more than the rate at which its multipliers take it in parts."""
    own = FORMATS[dtype].significand
    parts = np.maximum.reduce(np.broadcast_arrays(*(held * (FORMATS[name].significand / own) ** 2 for name, held in unit.types.items())))
    sentence = (
        f"rates.{dtype}: significands of {own} bits are wider than the unit's multipliers, which take them in parts at a rate of at most"
        f" {float(np.max(parts)):.3g}; ask for no more, or take a unit that is published with {dtype}"
    )
    return np.asarray(rate > parts * ROUNDING), sentence


def _unknown(dtype: str, rate: Array, unit: Compute) -> tuple[Mask, str]:
    """Where a type is asked for beyond those of a unit whose datapath is not known."""
    known = ", ".join(f"{name} at {float(np.max(held)):.3g}" for name, held in unit.types.items()) or "those of 16 bits and more"
    sentence = (
        f"rates.{dtype}: what more of it takes is not known of this unit, which has {known}; leave it out,"
        " or say its `types` and `datapath` in the library"
    )
    return np.asarray(rate > unit.types.get(dtype, NOTHING) * ROUNDING), sentence
