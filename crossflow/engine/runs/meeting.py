"""What slots and ends of steps take longer because streams of one device meet on the same links (`crossflow.cost.shared_links`).

Passes have collectives for which the device waits. Beside them run gathers and reductions of sharded weights, what stages hand over,
reductions of gradients after the last microbatch, and gathers of updated weights. Collectives that hide beside kernels give way: they make
a slot longer only where a tier has no time left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crossflow.base.arrays import Array, summed
from crossflow.cost.shared_links import ROUNDING, LinkStream, beside, longer, longest_busy

if TYPE_CHECKING:  # what its arguments are; the chain of imports stays short
    from crossflow.cost.handovers import HandedRows
    from crossflow.engine.runs.unit_sums import UnitSums


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """What slots take longer, forward and backward, shape (2, rows, n). [s]"""

    weights: Array  # where gathers and reductions of sharded weights meet the collectives of passes
    handing: Array  # where these meet what the stage hands over beside them: for so long that holds the stage up, and then no longer
    hidden: Array  # where a tier then has no time left for collectives that hide beside kernels


def meetings_of(
    sums: UnitSums, often: Sequence[Array], plain: Sequence[Array], waits: Array, passes: Sequence[Array], handed: HandedRows | None
) -> Meetings:
    """What meets in the slots of every row.

    Parameters
    ----------
    often : how often every unit occurs in a row: forward, and with a gradient of its input and of its weights, each of shape (rows, units)
        or (rows, units, n). [1]
    plain : time of each row without gathers and reductions of weights, forward and backward, shape (rows, n). [s]
    waits : of it, what the device waits for its host, shape (2, rows, n). [s]
    passes : the same with gathers and reductions, on links of their own. [s]
    handed : what stages hand over beside their slots, None where slots wait for it.
    """
    weights, handing, rest = np.zeros((3, 2, *passes[0].shape))
    uses = [sums.use, sums.gather_use, sums.scatter_use, *([] if handed is None else [handed.use])]
    if not any(use.any() for use in uses):
        return Meetings(weights=weights, handing=handing, hidden=rest)
    forward_of, input_of, weight_of = often
    sharded = (
        LinkStream(time=summed(forward_of, sums.gather), use=summed(forward_of, sums.gather_use)),
        LinkStream(
            time=summed(input_of, sums.gather) + summed(weight_of, sums.scatter),
            use=summed(input_of, sums.gather_use) + summed(weight_of, sums.scatter_use),
        ),
    )
    for i, (times, weight) in enumerate(zip((forward_of, input_of), sharded, strict=True)):
        slot = LinkStream(time=plain[i], use=summed(times, sums.use[:, i]), spare=summed(times, sums.spare[:, i]), idle=waits[i])
        weights[i], both = beside(slot, weight, passes[i])
        uses = [slot.use, weight.use]
        if handed is not None:
            ways = LinkStream(time=handed.onwards[i], use=handed.use[:, i])
            handing[i] = longer(both, ways, np.maximum(both.time, ways.time))
            uses.append(ways.use)
        time, least = both.time + handing[i], longest_busy(*uses)
        full = np.isfinite(least) & (passes[i] > 0) & (least > time * (1.0 + ROUNDING))
        rest[i] = np.where(full, least - time, 0.0)
    return Meetings(weights=weights, handing=handing, hidden=rest)
