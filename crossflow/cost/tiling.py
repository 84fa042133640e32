"""Tiles of the hierarchical roofline in closed form: how often each level of memory is read for a matrix product [1]_.

A tile (t_m, t_n, t_k) in a block (M, N, K) of the product (m, n, k) makes so many elements cross into its level for each
multiply-add, by the operand that stays there:

    C: 1/t_m + 1/t_n + 2/K - 1/k      B: 2/t_k + 1/t_n + 1/M - 1/k      A: 2/t_k + 1/t_m + 1/N - 1/k

So the two sides that stay cost by their own length, and the third streams past: it may be thin, but limits the tiles
inside. Where the paper draws N random tiles at each of L levels and costs all N^L combinations, some twenty nested
tilings are written down. Outermost are plates and rods: a rod is thin along two sides and long along the third, which the
tile inside streams. Further in, tilings differ in the operand that stays, and in how thin the streamed side is at the
level before the nearest: thin spares that level, thick the nearest. A part of the product may take a thinner one and the
rest the next thicker one, so that both levels take as long. The fastest is taken, and of those that are as fast the one
whose traffic takes the least energy.

Sides are not rounded to even cuts, so that times are smooth in the capacities. Where a few tiles make up the product,
whole numbers of them count: no level moves less than the best even cuts for that level alone, with the step from one
number to the next spread over capacities a little above and below. No tile depends on a bandwidth, and what crosses a
level falls as the capacities grow, so more of either makes no kernel slower.

Arrays have shape (tilings, points), or (thicknesses, tilings, points); a point is a product on a device.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 6.1-6.3.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossflow.base.arrays import Array, Index, divide
from crossflow.hardware.architecture.model import Level

Single = NDArray[np.float32]
Tile = tuple[tuple[int, int, int], tuple[float, ...], tuple[int, ...]]

M, N, K = range(3)
WEIGHTS = (1.0, 1.0, 2.0)  # elements that a side along m, n or k makes cross, see above: of B, of A, and of C, which is read and written
# Tiles tried at the outermost level: the two sides that stay and the streamed one, thicknesses over the root of the capacity, and the sides
# that may be streamed inside. A plate is thin along the side that it streams. A rod is thin along two sides, and as long as fits along the
# first. Where the product is shorter than that, the second side grows, and both thin ones of even rods.
PLATES: tuple[Tile, ...] = (((M, N, K), (0.35,), (M, N)),)
RODS: tuple[Tile, ...] = (((K, N, M), (0.22,), (K,)), ((K, M, N), (0.22,), (K,)), ((M, K, N), (0.47,), (M,)), ((N, K, M), (0.47,), (N,)))
EVEN_RODS: tuple[Tile, ...] = (((K, N, M), (0.33,), (K,)), ((K, N, M), (0.47,), (K,)))
# Plates at the levels between that and the one before the nearest, and at this one, in several thicknesses, by the number of levels on the
# chip, the last for more of them.
MIDDLE: tuple[Tile, ...] = (
    ((M, N, K), (0.35,), (K, M, N)),
    ((K, N, M), (0.2,), (K, M)), ((K, N, M), (0.5,), (K, M)), ((K, M, N), (0.2,), (K, N)), ((K, M, N), (0.5,), (K, N)),
)  # fmt: skip
NEAR = ((M, N, K), (K, N, M), (K, M, N))
THIN = ((0.02, 0.2), (0.05, 0.2, 0.6), (0.05, 0.25))
LAST_SHARE = 0.96  # share of the nearest level that C takes, beside streams of an element or two
SMALLEST = 256.0  # elements below which a memory is not tiled
FEW, MANY = 3, 12.0  # even cuts of a side that are tried one by one; tiles of an operand from which on fractions of one are as good
FINEST = 0.01  # least streamed side beside them over the root of the capacity
APART = 1e-5  # by this the outer of two levels that would take as long takes less, so that rounding does not decide which of them binds
ROOMY = 0.001  # share of the time of the slowest resource that the others leave free where they take longer to spare energy
JUDGED = 4  # tilings of least time under a power limit by a rule near its law, of which the law itself takes one
TIE = 5e-6  # share of time by which tilings are as fast
CHUNK = 3072  # points a batch: its arrays stay in cache
ROOT, TURN = np.float32(np.sqrt(2.0)), np.float32(2.0 * np.pi)
LEAST, MOST = 1e-15, 1e18  # limits of times in single precision: of an endless bandwidth, and of none [s]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The tiles tried at one level."""

    sides: Index  # the two that stay and the streamed one, among (m, n, k), shape (3, tilings)
    places: Index  # of m, n and k among them, shape (3, 1, tilings)
    outer: Index  # the tiling outside each, shape (tilings,)
    thin: Single  # thickness over the root of the capacity, shape (thicknesses, tilings, 1)
    lean: Single  # first side over the second, as the weights want it where nothing is streamed, shape (tilings, 1)
    rods: int  # tilings that are rods, at the end
    even: int  # the last of them, whose second side and streamed side are to be as long


@dataclass(frozen=True, kw_only=True)
class PowerLimit:
    """A limit of power that a device meets with a lower clock, and what a kernel takes whatever its tiles."""

    power: Array  # that may be drawn. [W]
    switched: Array  # energy of the operations. [J]
    nearest: Array  # energy of the accesses to the nearest level. [J]
    compute: Array  # time of the operations alone. [s]
    least: Array  # least energy of an operation over that at full voltage: at the minimum voltage. [1]
    # time [s] and energy [J] within the limit, of what `traffic_by_level` returns; with a time, endless ones where the work takes longer
    price: Callable[[Array, Array | None], tuple[Array, Array]]


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What tiles of the nearest two levels do not change, by the tiling outside, shape (tilings, points)."""

    time: Single  # of all else
    energy: Single  # of the traffic further out
    memory: Single  # of that, the part of main memory, where it is further out


def traffic_by_level(
    m: Array, n: Array, k: Array, element: float, levels: Sequence[Level],
    *, second: Array | float = 1.0, added: Array | float = 0.0, often: Array | float = 1.0, busy: Array | float = 0.0,
    limit: PowerLimit | None = None,
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
    limit : power that it may draw, where a device slows down that would draw more.

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
        given += [np.clip(divide(size, level.bandwidth), LEAST, MOST), level.latency, share]
    if limit is not None:
        given += [np.clip(divide(energy, limit.power), 0.0, MOST) for energy in (limit.switched, limit.nearest)]
        given += [np.minimum(divide(power, limit.power), MOST), limit.compute, limit.least]
    shape = np.broadcast_shapes(*(np.shape(array) for array in given))
    flat = np.empty((len(given), *shape), np.float32)
    for row, array in zip(flat, given, strict=True):
        row[...] = array
    flat = flat.reshape(len(given), -1)
    chunks = [_fastest(flat[:, start : start + CHUNK], len(levels) - 1) for start in range(0, flat.shape[1], CHUNK)]
    found = np.concatenate(chunks, axis=-1, dtype=float)
    tilings = found.reshape(len(found), -1, *shape)
    np.maximum(tilings, second / m + 1.0 / n + 1.0 / k, out=tilings)  # every operand once
    tilings += added / k
    tilings *= work * element
    return tilings[0] if limit is None else _within(limit, tilings)


def _within(limit: PowerLimit, tilings: Array) -> Array:
    """Of several tilings the fastest within a limit of power, at every point; of those that are as fast the one of least energy."""
    first = limit.price(tilings[0], None)
    within = first[0] * (1.0 + TIE)
    again = ((tilings[:i] == tilings[i]).all(axis=1).any(axis=0) for i in range(1, len(tilings)))  # as one before: no clock is sought
    others = (limit.price(traffic, np.where(known, 0.0, within)) for traffic, known in zip(tilings[1:], again, strict=True))
    times, spent = (np.stack(found) for found in zip(first, *others, strict=True))
    tied = times <= times.min(axis=0) * (1.0 + TIE)
    best, found = np.where(tied, spent, np.inf).argmin(axis=0), tilings[0].copy()
    for i, traffic in enumerate(tilings[1:], start=1):  # each is best at few points
        np.copyto(found, traffic, where=best == i)
    return np.asarray(found)


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
    streams: list[tuple[int, ...]] = [(M, N, K)]  # sides that may be streamed inside each tiling of the level outside
    for level in range(max(levels - 2, 0), -1, -1):
        outermost = level > 0 and not found
        tiles = (*PLATES, *RODS, *EVEN_RODS) if outermost else MIDDLE
        if level == 0:
            tiles = tuple((sides, THIN[min(levels, len(THIN)) - 1], ()) for sides in NEAR)
        rows = [(*tile, outer) for tile in tiles for outer, may in enumerate(streams) if tile[0][2] in may]
        order, thins, streams, outer = (list(column) for column in zip(*rows, strict=True))
        sides, thin = np.transpose(order), np.asarray(np.transpose(thins)[..., None], np.float32)
        lean = np.sqrt(np.asarray(WEIGHTS, np.float32)[sides[:2]])
        even, rods = len(EVEN_RODS) * outermost, len((*RODS, *EVEN_RODS)) * outermost
        places = np.argsort(sides, axis=0)[:, None]
        lean = (lean[0] / lean[1])[:, None]
        found.append(Tried(sides=sides, places=places, outer=np.array(outer), thin=thin, lean=lean, rods=rods, even=even))
    return tuple(found)


def _fastest(given: Single, levels: int) -> Single:
    """Elements a multiply-add that cross into each level, the nearest first, in the fastest tilings, shape (tilings, levels, points)."""
    (_, _, k, second, added, busy), rooms = given[:6], given[6 : 6 + levels]
    costs, back = given[6 + levels : 6 + 4 * levels].reshape(levels, 3, -1), (1.0 - added) / k
    alone = least_alone(given[:3], rooms, second) - back
    alone[: levels > 1] = 0.0
    block, time, memory, energy = given[:3, None], busy[None], *np.zeros((2, 1, busy.size), np.float32)
    *far, near = steps(levels)
    crossed: list[Single] = []
    for level, step in zip(reversed(range(2, levels)), far, strict=True):
        tiles, moved = tile(block, rooms[level], step, second, back, fill=not crossed, last=False)
        crossed.append(np.maximum(moved[0], alone[level]))
        block, spent = tiles[:, 0], crossed[-1] * costs[level, 0] + costs[level, 1]
        time, energy = np.maximum(spent, time[step.outer]), spent * costs[level, 2] + energy[step.outer]
        memory = energy if level == levels - 1 else memory[step.outer]
    level = min(levels - 1, 1)
    tiles, moved = tile(block, rooms[level], near, second, back, fill=False, last=True)
    np.maximum(moved, alone[level], out=moved)
    inside = np.maximum(_nearest(tiles, rooms[0], second) - back, alone[0]) if levels > 1 else np.zeros_like(moved)
    rest = Rest(time=time[near.outer], energy=energy[near.outer], memory=memory[near.outer])
    best, chosen = _chosen((moved, inside), (costs[level], costs[0]), rest, given[6 + 4 * levels :])
    for moved, step in zip(reversed(crossed), (near, *reversed(far)), strict=False):
        best = step.outer[best]
        chosen.append(moved[best, np.arange(best.shape[1])])
    return np.asarray(np.stack(chosen[levels == 1 :], axis=1) - added / k)


def _chosen(moved: tuple[Single, Single], costs: tuple[Single, Single], rest: Rest, limit: Single) -> tuple[Index, list[Single]]:
    """Tilings that may be chosen for every point, and elements a multiply-add that cross into the nearest level and into the next.

    Of the product, one share takes the thinner of two neighbouring tiles at the level before the nearest, the other the
    thicker, so that both levels take as long, or, where something else takes longer, so that traffic takes less energy. Of
    tilings that are as fast, the one is chosen whose traffic takes the least energy. Under a power limit, of which `_slowed`
    is not quite the law, the fastest few are returned.

    Parameters
    ----------
    moved : elements into the level before the nearest, and into the nearest, shape (thicknesses, tilings, points).
    limit : nothing, or the energies of `PowerLimit` and of traffic over its power, and its last two fields, shape (5, points).
    """
    (here, weight), (inner, light) = ((part * cost + late, of) for part, (cost, late, of) in zip(moved, costs, strict=True))
    here, slower, inner, faster = here[:-1], here[1:] - here[:-1], inner[:-1], inner[:-1] - inner[1:]
    dearer = slower * weight - faster * light  # energy of the thicker tiles beyond that of the thinner
    share, time = _level(here, slower, inner, faster, rest.time)
    share = _frugal(share, time, here, slower, inner, faster, dearer)
    spent = here * weight + inner * light
    spent += share * dearer
    spent += rest.energy
    if not len(limit):
        spent += np.float32(MOST) * (time > time.min(axis=(0, 1)) * (1.0 + TIE))  # several times faster than `where`
        bests = spent.reshape(-1, spent.shape[-1]).argmin(axis=0)[None]
    else:
        taken = _slowed(time, spent, rest.memory, limit)
        taken *= 1.0 + TIE * spent / spent.max(axis=(0, 1))
        taken = taken.reshape(-1, spent.shape[-1])
        bests = np.argpartition(taken, min(JUDGED, len(taken)) - 1, axis=0)[:JUDGED]
    tilings, points = spent.shape[1:]
    tiling, each = bests % tilings, np.arange(points)
    at, there = bests * points + each, tiling * points + each  # places of what has all thicknesses, and of what has none
    part = share.take(at)
    if len(limit):
        ends = (
            (here.take(at), slower.take(at), weight), (inner.take(at), -faster.take(at), light),
            rest.time.take(there), rest.energy.take(there),
        )  # fmt: skip
        least = np.asarray(dearer.take(at) <= 0.0, np.float32)
        part = _cooler(part, least, functools.partial(_costing, *ends), rest.memory.take(there), limit)
    thinner = [one.take(at) for one in moved]
    thicker = [one.take(at + tilings * points) for one in moved]
    return tiling, [one + part * (other - one) for one, other in zip(reversed(thinner), reversed(thicker), strict=True)]


def _costing(far: Sequence[Single], close: Sequence[Single], rest: Single, energy: Single, share: Single) -> tuple[Single, Single]:
    """Time, and energy of the traffic, with a share of the product in thicker tiles; see `_chosen`."""
    here, inner = (np.asarray(start + share * slope, np.float32) for start, slope, _ in (far, close))
    return np.maximum(np.maximum(here, inner), rest), here * far[2] + inner * close[2] + energy


def _level(here: Single, slower: Single, inner: Single, faster: Single, rest: Single) -> tuple[Single, Single]:
    """Share of the product in thicker tiles with which both levels take as long, and the time; see `_chosen`."""
    np.maximum(slower, 0.0, out=slower)
    np.maximum(faster, 0.0, out=faster)
    share = inner - here
    share /= np.maximum(slower + faster, LEAST)
    np.minimum(np.maximum(share, 0.0, out=share), 1.0, out=share)
    time = here + share * slower
    np.maximum(time, inner - share * faster, out=time)
    np.maximum(time, rest, out=time)
    share *= 1.0 - APART
    return share, time


def _frugal(share: Single, time: Single, here: Single, slower: Single, inner: Single, faster: Single, dearer: Single) -> Single:
    """The share with which traffic takes the least energy where neither level takes longer than all, or else than with `share`."""
    most = time * (1.0 - ROOMY)
    least = np.where(faster > 0.0, (inner - most) / np.maximum(faster, LEAST), 0.0)
    most = np.where(slower > 0.0, (most - here) / np.maximum(slower, LEAST), 1.0)
    np.minimum(np.maximum(least, 0.0, out=least), share, out=least)
    np.minimum(np.maximum(most, share, out=most), 1.0, out=most)
    return np.where(dearer > 0.0, least, most)


def _slowed(time: Single, energy: Single, memory: Single, limit: Single) -> Single:
    """Time under a power limit, where the energy of all but main memory falls with the clock.

    Energy falls with the square of a voltage, which falls by half of what the clock does (f ~ (V - Vt)^2 / V near the nominal
    voltage). So with chip and memory, the energies over the limit of power, work of a time t at the full clock takes t/c with
    (c chip + memory) c = t.
    """
    root, fixed = _drawn(time, energy, memory, limit)
    root *= 4.0 * time
    root += fixed * fixed
    np.sqrt(root, out=root)
    root += fixed
    root *= 0.5
    return np.asarray(np.maximum(root, time, out=root))


def _drawn(time: Single, energy: Single, memory: Single, limit: Single) -> tuple[Single, Single]:
    """Energy at the full clock of all but main memory, and of main memory, over the limit of power. [s]

    Units that wait run at a lower clock at once, as far as the minimum voltage lets them.
    """
    switched, nearest, power, compute, least = limit
    chip = np.maximum(compute / time, least)
    np.minimum(chip, 1.0, out=chip)
    chip *= switched
    chip += power * (energy - memory)
    chip += nearest
    return chip, power * memory


def _cooler(share: Single, least: Single, at: Callable[[Single], tuple[Single, Single]], memory: Single, limit: Single) -> Single:
    """A share between one and that of least energy, where the power limit makes it faster.

    Above the limit the time is a root of a product of two linear functions, and so concave: it is least at an end, or where the
    limit stops binding.
    """
    over, under = (sum(_drawn(time, energy, memory, limit)) - time for time, energy in (at(share), at(least)))
    binds = (over > 0) & (under < 0)
    there = np.where(binds, share + (least - share) * over / np.where(binds, over - under, 1.0), least)
    slowed, saved = (_slowed(*at(part), memory, limit) for part in (share, there))
    return np.asarray(np.where((over > 0) & (saved < slowed), there, share), np.float32)


def tile(block: Single, capacity: Single, step: Tried, second: Single, back: Single, *, fill: bool, last: bool) -> tuple[Single, Single]:
    """Largest tiles of blocks that fit a capacity, and the elements a multiply-add that each makes cross into its level.

    The sides that stay are in the proportion that makes the least cross, or make a rod, as far as the block allows, and
    all grow with the capacity. With `fill` the streamed side takes the room that is left. At the `last` level the operand
    stays that is given, at others the one that makes the least cross.

    Parameters
    ----------
    block : m, n and k of the blocks of the level outside, shape (3, tilings there, points).
    back : elements a multiply-add that are not read, since C starts from nothing.

    Returns
    -------
    tiles, moved : shape (3, thicknesses, tilings, points) and the same without the sides.
    """
    rows = np.arange(step.sides.shape[1])
    x, y, z = block[step.sides, step.outer]
    root = np.sqrt(capacity)
    found = np.empty((3, len(step.thin), *x.shape), np.float32)
    a, b, c = found
    np.minimum(z, step.thin * root, out=c)
    np.multiply(c, (step.lean + 1.0 / step.lean) / 2.0, out=b)
    np.sqrt(b * b + capacity, out=a)
    a -= b
    a *= step.lean
    if step.rods:
        rod, even = slice(-step.rods, None), (slice(None), slice(-step.even, None))
        thin = step.thin[:, rod]
        a[:, rod] = (1.0 / thin - thin) * (root / 2.0)
        np.minimum(x, a, out=a)
        c[even] = np.minimum(z[even[1]], np.sqrt(a[even] * a[even] + capacity) - a[even])
        _beside(a, c, capacity, y, b)
        c[even] = np.minimum(z[even[1]], (capacity - a[even] * b[even]) / (a[even] + b[even]))
    else:
        np.minimum(x, a, out=a)
        _beside(a, c, capacity, y, b)
    _beside(b, c, capacity, x, a)
    if fill:
        np.maximum(c, np.minimum(z, (capacity - a * b) / (a + b)), out=c)
    tiles = found[step.places, np.arange(len(step.thin))[:, None], rows]
    u, v, w = _weights(step.sides, second)
    moved, along, past = u / a, v / b, w / z
    if last:
        moved += along
        moved += past - back
    else:
        streamed = w / c
        saved = np.maximum(np.maximum(moved - u / x, along - v / y), streamed - past)
        moved += along + streamed - saved - back
    return tiles, moved


def _beside(side: Single, streamed: Single, capacity: Single, most: Single, out: Single) -> None:
    """Longest other side that fits beside one that stays and the streamed one."""
    np.multiply(side, streamed, out=out)
    np.subtract(capacity, out, out=out)
    out /= side + streamed
    np.minimum(out, most, out=out)


def _weights(sides: Index, second: Single) -> Single:
    """Elements that sides of tiles make cross, where those of B may be smaller, shape (3, tilings, points) or (3, tilings, 1)."""
    weights = np.asarray(WEIGHTS, np.float32)[sides][..., None]
    return weights if (second == 1.0).all() else np.where(sides[..., None] == M, second, weights)


def least_alone(sides: Single, rooms: Single, second: Single) -> Single:
    """Least elements a multiply-add that cross into each level by the best even cuts for it alone, shape (levels, points).

    Of the two sides that stay, one is cut into a whole number of parts, and the other as the room beside it requires; or
    both into fractions that make many tiles. It is nothing where that is less than reading every operand once, as with
    operands that fit by far, or hardly more than what nested tiles make cross, as with many tiles, or with one side so short
    that nothing else counts.

    Parameters
    ----------
    sides : m, n and k, shape (3, points).
    rooms : elements that each level holds, shape (levels, points).
    """
    m, n, k = sides
    held, once = np.minimum(np.minimum(m, n) * k, m * n), (1.0 / m, 1.0 / n, 2.0 / k)
    matters = sum(once) > 1.01 * np.maximum(np.maximum(*once[:2]), once[2])
    few = (held < MANY * rooms) & (held > 0.25 * rooms) & matters
    least = np.zeros_like(rooms)
    if few.any():
        points = few.nonzero()[1]
        least[few] = (1.0 - TIE) * _by_even_cuts(sides[:, points], rooms[few], second[points])  # not above once by rounding
    return least


def _by_even_cuts(sides: Single, capacity: Single, second: Single) -> Single:
    """See `least_alone`; shape (points,)."""
    moved = 1.0 / sides
    moved[M] *= second
    moved[K] *= 2.0
    one, other, past = np.transpose(NEAR)
    tiles = np.maximum(sides[one] * sides[other] / capacity, MANY)
    cuts = np.minimum(np.maximum(np.sqrt(tiles * moved[other] / moved[one]), 1.0), tiles)
    many = (moved[one] * cuts + moved[other] * tiles / cuts + moved[past]).min(axis=0)
    one, other, past = np.transpose(tuple(itertools.permutations((M, N, K))))
    parts = np.arange(1, FEW + 1, dtype=np.float32)[:, None]
    side, streamed = sides[one, None] / parts, np.minimum(sides, np.minimum(FINEST * np.sqrt(capacity), 1.0))[past, None]
    cuts = capacity - side * streamed
    side += streamed
    side *= sides[other, None]
    cuts = side / np.maximum(cuts, LEAST, out=cuts)
    least = moved[other, None] * whole(np.asarray(cuts, np.float32))
    least += moved[one, None] * parts
    least += moved[past, None]
    return np.asarray(np.minimum(least.reshape(-1, len(capacity)).min(axis=0), many), np.float32)


def whole(cuts: Single) -> Single:
    """The next whole number of cuts, where a step from one to the next is spread evenly about it; many are not rounded."""
    found = np.minimum(np.maximum(cuts, 0.5), FEW + 0.5)
    found += np.sin(TURN * found) / TURN
    return np.asarray(np.maximum(found + 0.5, cuts), np.float32)


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
