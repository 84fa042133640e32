"""A dense search over nested tiles of even cuts, to judge the closed form of `crossflow.cost.tiling` by."""

import numpy as np

SIDES = {"c": (0, 1, 2), "b": (2, 1, 0), "a": (2, 0, 1)}  # by the operand that stays: its two sides in (m, n, k), and the streamed one
WEIGHTS = {"c": (1.0, 1.0, 2.0), "b": (2.0, 1.0, 1.0), "a": (2.0, 1.0, 1.0)}  # elements that each of them costs a multiply-add
ENOUGH = 1.002  # the search stops this near to its bound


def parts(size, dense, ratio):
    """Numbers of even cuts of a side: all of the first `dense`, then in steps."""
    found = [1.0]
    while found[-1] < size:
        found.append(min(found[-1] + 1 if found[-1] < dense else np.floor(found[-1] * ratio), np.ceil(size)))
    return np.array(found)


def tiles(block, room, dense, ratio):
    """Tiles of a block that fit, two sides of every cut and the third filled, shape (3, tiles)."""
    found, sides = [], [size / parts(size, dense, ratio) for size in block]
    for i, j, last in SIDES.values():
        a, b = (side.ravel() for side in np.meshgrid(sides[i], sides[j]))
        third = (room - a * b) / (a + b)
        fits = third >= min(1.0, block[last])
        tile = np.empty((3, fits.sum()))
        tile[i], tile[j], tile[last] = a[fits], b[fits], block[last] / np.ceil(block[last] / third[fits] * (1 - 1e-9))
        found.append(tile)
    return np.concatenate(found, axis=1) if any(f.size for f in found) else np.minimum(np.array(block), 1.0)[:, None]


def crossing(tile, block, k):
    """Least elements a multiply-add that cross into a level, over the operands that may stay; k is that of the product."""
    orders = (u / tile[i] + v / tile[j] + w / block[past] for (i, j, past), (u, v, w) in zip(SIDES.values(), WEIGHTS.values(), strict=True))
    return np.minimum.reduce(list(orders)) - 1.0 / k


def bound(block, room, k):
    """Crossing of the best tile of any sides whose streams take no room."""
    found = []
    for (i, j, past), (u, v, w) in zip(SIDES.values(), WEIGHTS.values(), strict=True):
        a = np.clip(np.sqrt(room * u / v), np.minimum(block[i], room / block[j]), block[i])
        b = np.minimum(block[j], room / a)
        found.append(u / a + v / b + w / block[past])
    return np.minimum.reduce(found) - 1.0 / k


def search(block, k, rooms, costs, best=np.inf, sizes=((60, 1.05), (40, 1.07), (24, 1.1))):
    """Least over tilings of the slowest level's traffic times cost; `rooms` and `costs` from the outermost level inwards."""
    limits = bound(np.array(block)[:, None], rooms[0], k)[0] * costs[0]
    found = tiles(block, rooms[0], *sizes[-len(rooms)])
    here = crossing(found, block, k) * costs[0]
    if len(rooms) == 1:
        return min(best, here.min())
    inner = np.maximum.reduce([bound(found, room, k) * cost for room, cost in zip(rooms[1:], costs[1:], strict=True)])
    whole = max(limits, *(bound(np.array(block)[:, None], room, k)[0] * cost for room, cost in zip(rooms[1:], costs[1:], strict=True)))
    least = np.maximum(here, inner)
    for i in np.lexsort((inner, least)):
        if least[i] >= best * (1 - 1e-3) or best <= whole * ENOUGH:
            break
        best = min(best, max(here[i], search(tuple(found[:, i]), k, rooms[1:], costs[1:], best, sizes)))
    return best
