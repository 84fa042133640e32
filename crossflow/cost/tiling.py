"""Tiles of the hierarchical roofline in closed form: how often each level of memory is read for a matrix product [1]_.

A tile (t_m, t_n, t_k) in a block (M, N, K) of the product (m, n, k) makes so many elements cross into its level for each
multiply-add, by the operand that stays there:

    C: 1/t_m + 1/t_n + 2/K - 1/k      B: 2/t_k + 1/t_n + 1/M - 1/k      A: 2/t_k + 1/t_m + 1/N - 1/k

So the two sides that stay cost by their own length, and the third streams past: it may be thin, but limits the tiles
inside. Where the paper draws N random tiles at each of L levels and costs all N^L combinations, some twenty nested
tilings are written down. They differ in the operand that stays at each level, and in how thin the streamed side is at the
level before the nearest: thin spares that level, thick the nearest. A part of the product may take a thinner one and the
rest the next thicker one, so that both levels take as long. The fastest is taken. Sides are not rounded to even cuts, so
that times are smooth in the capacities. In each tiling every side grows with the capacities, and none depends on a
bandwidth, so more of either makes no kernel slower.

Arrays have shape (tilings, points), or (thicknesses, tilings, points); a point is a product on a device.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1-6.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossflow.architecture.model import Level
from crossflow.arrays import Array, Index, divide

Single = NDArray[np.float32]

C, B, A = range(3)  # the operand that stays
SIDES = np.array([(0, 1, 2), (2, 1, 0), (2, 0, 1)])  # by the operand that stays: its two sides among (m, n, k), and the streamed one
WEIGHTS = np.array([(1.0, 1.0, 2.0), (2.0, 1.0, 1.0), (2.0, 1.0, 1.0)])  # elements that each of them makes cross, see above
OF_B = np.array([(True, False, False), (False, False, True), (False, True, False)])  # those of B among them
AROUND = {C: (C, B, A), B: (B, C), A: (A, C)}  # by the operand that stays: those that may stay at the level outside
# Tiles tried: streamed side over the root of the capacity, by the operand that stays at an outer level; and at the level before the
# nearest, in several thicknesses for each operand, by the number of levels on the chip, the last for more of them.
FAR = ((C, (0.35,)), (B, (0.2,)), (B, (0.5,)), (A, (0.2,)), (A, (0.5,)))
NEAR = ((0.02, 0.2), (0.05, 0.2, 0.6), (0.05, 0.25))
LAST_SHARE = 0.96  # share of the nearest level that C takes, beside streams of an element or two
SMALLEST = 256.0  # elements below which a memory is not tiled
APART = 1e-5  # by this the outer of two levels that would take as long takes less, so that rounding does not decide which of them binds
ROOMY = 0.01  # share of the time of the slowest resource that the others leave free where they take longer to spare energy
SPARE = 1e-3  # weight of the energy of the traffic in the choice: among tilings that are as fast, that of the least energy
CHUNK = 4096  # points a batch: its arrays stay in cache
ROOT = np.float32(np.sqrt(2.0))
LEAST, MOST = 1e-15, 1e18  # limits of times in single precision: of an endless bandwidth, and of none [s]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The tiles tried at one level."""

    stays: Index  # operand that stays, shape (tilings,)
    outer: Index  # the tiling outside each
    thin: Single  # streamed side over the root of the capacity, shape (thicknesses, tilings, 1)
    long: Single  # first side that stays over the root of the capacity, as the weights want it, shape (thicknesses, tilings, 1)


def traffic_by_level(
    m: Array, n: Array, k: Array, element: float, levels: Sequence[Level],
    *, second: Array | float = 1.0, added: Array | float = 0.0, often: Array | float = 1.0, busy: Array | float = 0.0,
    spent: Array | float = 0.0, limit: Array | None = None,
) -> Array:  # fmt: skip
    """Bytes that every level but the nearest delivers to the level inside it for one product, each summed over the device.

    Parameters
    ----------
    m, n, k : shape (gemms, n) or (gemms, 1). Dimensions. [1]
    element : size of an element. [B]
    levels : memory levels from the nearest to main memory.
    second : size of an element of B over `element`; tiles are made as if B were not smaller. [1]
    added : elements that cross every level for one of C beyond its one write. [1]
    often : how many such products are worked on at once; the choice is by the time of all. [1]
    busy : time that the kernel takes whatever its tiles. [s]
    spent : energy that it takes whatever its tiles. [J]
    limit : power that it may draw, where a device slows down that would draw more. [W]

    Returns
    -------
    traffic : shape (levels - 1, gemms, n); row i is what level i + 1 (counted from the nearest) delivers. [B]
    """
    work = m * n * k
    size = often * work * element
    full = [np.where(np.isfinite(level.bandwidth), level.bandwidth, 0.0) * level.energy for level in levels[1:]]  # power at full speed
    power = sum(full, np.zeros(1))
    given = [m, n, k, second, added, busy]
    given += [room(level, work, element) for level in levels[:-1]]
    for level, drawn in zip(levels[1:], full, strict=True):
        share = drawn / np.where(power > 0, power, np.inf)
        given += [np.clip(divide(size, level.bandwidth), LEAST, MOST), level.latency, SPARE * share]
    if limit is not None:
        given += [np.clip(divide(np.asarray(spent), limit), 0.0, MOST), np.minimum(divide(power, SPARE * limit), MOST)]
    shape = np.broadcast_shapes(*(np.shape(array) for array in given))
    flat = np.empty((len(given), *shape), np.float32)
    for row, array in zip(flat, given, strict=True):
        row[...] = array
    flat = flat.reshape(len(given), -1)
    found = np.empty((len(levels) - 1, flat.shape[1]))
    for start in range(0, flat.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        found[:, part] = _fastest(flat[:, part], len(levels) - 1)
    least = second / m + 1.0 / n + 1.0 / k  # every operand once
    return np.asarray((np.maximum(found.reshape(-1, *shape), least) + added / k) * (work * element))


def room(level: Level, work: Array, element: float) -> Array:
    """Elements that one instance of a level holds of a product, shape (gemms, n) or (n,).

    A level with many instances is filled only as far as the work spreads over all of them.
    """
    capacity = level.capacity / element
    if level.scope != "global":
        capacity = np.minimum(capacity, 3.0 * np.cbrt(work / np.maximum(level.instances, 1.0)) ** 2)
    return np.maximum(capacity, SMALLEST)


@functools.cache
def steps(levels: int) -> tuple[Tried, ...]:
    """The tiles tried at so many levels, from the outermost on the chip to the one before the nearest."""
    found: list[Tried] = []
    for inner in range(max(levels - 2, 0), -1, -1):
        tiles = FAR if inner else [(stays, NEAR[min(levels, len(NEAR)) - 1]) for stays in AROUND]
        outside = found[-1].stays.tolist() if found else [None]
        rows = [(stays, i, thin) for stays, thin in tiles for i, s in enumerate(outside) if s is None or s in AROUND[stays]]
        stay, outer, thins = zip(*rows, strict=True)
        stays, thin = np.array(stay), np.transpose(thins)
        p = np.sqrt(WEIGHTS[stays, 0] / WEIGHTS[stays, 1])
        bent = thin * (p + 1.0 / p) / 2.0
        long = p * (np.sqrt(bent**2 + 1.0) - bent)
        thin, long = (np.asarray(values[..., None], np.float32) for values in (thin, long))
        found.append(Tried(stays=stays, outer=np.array(outer), thin=thin, long=long))
    return tuple(found)


def _fastest(given: Single, levels: int) -> Single:
    """Elements a multiply-add that cross into each level, the nearest first, in the fastest tiling of every point."""
    (_, _, k, second, added, busy), rooms = given[:6], given[6 : 6 + levels]
    costs, back = given[6 + levels : 6 + 4 * levels].reshape(levels, 3, -1), (1.0 - added) / k
    block, time, energy = given[:3, None], busy[None], np.zeros_like(busy)[None]
    *far, near = steps(levels)
    crossed: list[Single] = []
    for level, step in zip(reversed(range(2, levels)), far, strict=True):
        tiles, moved = tile(block[:, step.outer], rooms[level], step, second, back, fill=not crossed)
        block, spent = tiles[:, 0], moved[0] * costs[level, 0] + costs[level, 1]
        time, energy = np.maximum(spent, time[step.outer]), spent * costs[level, 2] + energy[step.outer]
        crossed.append(moved[0])
    level = min(levels - 1, 1)
    tiles, moved = tile(block[:, near.outer], rooms[level], near, second, back, fill=False)
    inside = _nearest(tiles, rooms[0], second) - back if levels > 1 else np.zeros_like(moved)
    best, chosen = _chosen((moved, inside), (costs[level], costs[0]), time[near.outer], energy[near.outer], given[6 + 4 * levels :])
    for moved, step in zip(reversed(crossed), (near, *reversed(far)), strict=False):
        best = step.outer[best]
        chosen.append(moved[best, np.arange(best.size)])
    return np.asarray(np.stack(chosen[levels == 1 :]) - added / k)


def _chosen(
    moved: tuple[Single, Single], costs: tuple[Single, Single], rest: Single, energy: Single, limit: Single
) -> tuple[Index, list[Single]]:
    """Tiling chosen for every point, and elements a multiply-add that cross into the nearest level and into the one before it.

    Of the product, one share takes the thinner of two neighbouring tiles at the level before the nearest, the other the
    thicker, so that both levels take as long, or, where something else takes longer, so that traffic takes less energy.

    Parameters
    ----------
    moved : elements into the level before the nearest, and into the nearest, shape (thicknesses, tilings, points).
    rest, energy : time of all else, and weighted energy of the traffic further out, shape (tilings, points).
    limit : nothing, or the energy of all else and of weighted traffic over the power that may be drawn, shape (2, points).
    """
    (here, weight), (inner, light) = ((part * cost + late, of) for part, (cost, late, of) in zip(moved, costs, strict=True))
    there, nearest = np.minimum(here[:-1], here[1:]), np.minimum(inner[:-1], inner[1:])
    slower, faster = here[1:] - there, inner[:-1] - nearest
    share = inner[:-1] - there
    share /= np.maximum(slower + faster, LEAST)
    np.clip(share, 0.0, 1.0, out=share)
    there += share * slower
    nearest = inner[:-1] - share * faster
    time = np.maximum(there, nearest)
    np.maximum(time, rest, out=time)
    there *= weight
    nearest *= light
    there += nearest
    there += energy
    there += _slowed(time, there, limit) if len(limit) else time
    best = there.reshape(-1, there.shape[-1]).argmin(axis=0)
    (thickness, tiling), points = np.divmod(best, there.shape[1]), np.arange(best.size)
    thin, thick = ((thickness + i, tiling, points) for i in (0, 1))
    share, time = share[thin] * (1.0 - APART), time[thin] * (1.0 - ROOMY)
    slower, faster = here[thick] - here[thin], inner[thin] - inner[thick]
    least = np.where(faster > 0, (inner[thin] - time) / np.maximum(faster, LEAST), 0.0)
    most = np.where(slower > 0, (time - here[thin]) / np.maximum(slower, LEAST), 1.0)
    thinner = slower * weight > faster * light  # whether the thinner tiles take less energy
    frugal = np.where(thinner, np.clip(least, 0.0, share), np.clip(most, share, 1.0))

    def at(share: Single) -> tuple[Single, Single]:
        """Time, and weighted energy of the traffic."""
        far, close = here[thin] + share * slower, inner[thin] - share * faster
        return np.maximum(np.maximum(far, close), rest[tiling, points]), far * weight + close * light + energy[tiling, points]

    share = _cooler(frugal, np.where(thinner, np.float32(0.0), np.float32(1.0)), at, limit) if len(limit) else frugal
    return tiling, [part[thin] + share * (part[thick] - part[thin]) for part in reversed(moved)]


def _slowed(time: Single, energy: Single, limit: Single) -> Single:
    """Time under a power limit: where clock and voltage fall together, power falls with the cube of the clock."""
    over = limit[0] + limit[1] * energy
    over /= time
    return np.asarray(np.cbrt(np.maximum(over, 1.0, out=over), out=over) * time)


def _cooler(share: Single, least: Single, at: Callable[[Single], tuple[Single, Single]], limit: Single) -> Single:
    """A share between one and that of least energy, where the power limit makes it faster.

    Above the limit the time is a geometric mean of two linear functions and so concave: it is least at an end, or where the
    limit stops binding.
    """
    over, under = (limit[0] + limit[1] * energy - time for time, energy in (at(share), at(least)))
    binds = (over > 0) & (under < 0)
    there = np.where(binds, share + (least - share) * over / np.where(binds, over - under, 1.0), least)
    better = (over > 0) & (_slowed(*at(there), limit) < _slowed(*at(share), limit))
    return np.asarray(np.where(better, there, share), np.float32)


def tile(block: Single, capacity: Single, step: Tried, second: Single, back: Single, *, fill: bool) -> tuple[Single, Single]:
    """Largest tiles of blocks that fit a capacity, and the elements a multiply-add that each makes cross into its level.

    The sides that stay are in the proportion that makes the least cross, as far as the block allows, and all grow with
    the capacity. With `fill` the streamed side takes the room that is left.

    Parameters
    ----------
    block : m, n and k of the block outside, shape (3, tilings, points).
    back : elements a multiply-add that are not read, since C starts from nothing.

    Returns
    -------
    tiles, moved : shape (3, thicknesses, tilings, points) and the same without the sides.
    """
    rows = np.arange(len(step.stays))
    x, y, z = block[SIDES[step.stays].T, rows]
    root = np.sqrt(capacity)
    found = np.empty((3, len(step.thin), *x.shape), np.float32)
    a, b, c = found
    np.minimum(z, step.thin * root, out=c)
    np.minimum(x, step.long * root, out=a)
    _beside(a, c, capacity, y, b)
    _beside(b, c, capacity, x, a)
    if fill:
        np.maximum(c, np.minimum(z, (capacity - a * b) / (a + b)), out=c)
    u, v, w = _weights(step.stays, second)
    moved = u / a
    moved += v / b
    moved += w / z - back
    return found[np.argsort(SIDES)[step.stays].T[:, None], np.arange(len(step.thin))[:, None], rows], moved


def _beside(side: Single, streamed: Single, capacity: Single, most: Single, out: Single) -> None:
    """Longest other side that fits beside one that stays and the streamed one."""
    np.multiply(side, streamed, out=out)
    np.subtract(capacity, out, out=out)
    out /= side + streamed
    np.minimum(out, most, out=out)


def _weights(stays: Index, second: Single) -> Single:
    """Elements that the sides of tiles make cross, where those of B may be smaller, shape (3, tilings, points) or (3, tilings, 1)."""
    weights = np.asarray(WEIGHTS[stays].T[..., None], np.float32)
    return weights if (second == 1.0).all() else np.where(OF_B[stays].T[..., None], second, weights)


def _nearest(block: Single, capacity: Single, second: Single) -> Single:
    """Elements a multiply-add that cross into the nearest level, beside streams of an element or two.

    C stays there, as square as the block (m, n, k) allows, or the part of A or of B that spans all of k.
    """
    room = LAST_SHARE * capacity
    root = np.sqrt(room)
    short, long = np.minimum(block[0], block[1]), 1.0 / np.maximum(block[0], block[1])
    over, streamed = 1.0 / short, 2.0 / block[2]
    np.minimum(short, root, out=short)
    moved = short / room
    np.maximum(moved, long, out=moved)
    moved += np.maximum(over, 1.0 / root)
    moved += streamed
    along = np.minimum(block[2], ROOT * root, out=short)
    along /= room
    again = np.maximum(along, over)
    again += long
    again += np.maximum(streamed, ROOT / root, out=streamed)
    if (second != 1.0).any():  # B crosses once for every part of m that the operand which stays spans
        m, saved = 1.0 / block[0], 1.0 - second
        moved -= saved * np.maximum(m, np.minimum(1.0 / root, block[1] / room))
        again -= saved * np.where(block[0] < block[1], np.maximum(m, along), m)
    return np.asarray(np.minimum(moved, again, out=again))


def register_accesses(
    flops: Array, sides: Sequence[Array], level: Level, element: float, height: Array, width: Array, dataflow: str
) -> Array:
    """Reads and writes of the register file: flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny) (Eq. 5).

    The reuse K is the extent of the dimension along which the stationary operand is reused, over the array: m for
    weights, n for activations, k for outputs. The extent is the side of the largest square that the registers hold beside
    thin streams, or that of the work where it is less. It is not rounded, and the tiles of other levels do not change it.

    Parameters
    ----------
    sides : m, n and k of the work.
    level : the nearest level, the registers.
    height, width : Nx and Ny of the multiplier array.
    """
    extents = dict(zip(("weight", "activation", "output"), sides, strict=True))
    extent = np.maximum(np.maximum(*sides[:2]), sides[2]) if dataflow == "best" else extents[dataflow]
    held = np.sqrt(LAST_SHARE * np.maximum(level.capacity / element, SMALLEST))
    K = np.maximum(np.minimum(extent, held) / height, 1.0)
    return np.asarray(flops * (height * width + K * height + K * width) / (2.0 * K * height * width))
