"""Checkpoints that are written beside steps over the same links, and what both take longer.

A device writes at the rate w, as a part of what its link carries, and its steps send in a part d of their time, as fast as the link lets
them. While both do, rates are max-min fair [1]_: the writer has min(w, 1/2) and the step the rest. The step then goes on 1 - d + d f times
as slowly, f = 1 / (1 - min(w, 1/2)), as where none of its messages hide; it sends for the part d f / (1 - d + d f) of the time, in which
the writer may have less than w. Of a writer that fills the link (w = 1) writing takes 1 + d times as long, and what steps lose is
d times what it takes alone: the link carries the bytes of both, and is never idle.

Where checkpoint traffic is put into gaps that steps leave, as GEMINI does [2]_, nothing is lost: that is `links: own`.

References
----------
.. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., 1992, Sec. 6.5.2.
.. [2] Z. Wang et al., "GEMINI: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", SOSP 2023, Sec. 5.
"""

from __future__ import annotations

import numpy as np

from crossflow.base.arrays import Array


def written_beside(time: Array, rate: Array, sends: Array) -> tuple[Array, Array]:
    """Time in which a checkpoint is written beside steps, and what these lose meanwhile. [s]

    Parameters
    ----------
    time : in which it is written alone. [s]
    rate : at which it is written, over that of the link, at most 1. [1]
    sends : part of the time in which steps send over the link. [1]

    >>> [round(float(one[0]), 9) for one in written_beside(np.array([10.0]), np.array([1.0]), np.array([0.2]))]
    [12.0, 2.0]
    """
    has = np.minimum(rate, 0.5)  # while steps send
    longer = 1.0 - sends + sends / (1.0 - has)
    lacks = sends / (1.0 - has) / longer * np.maximum(1.0 - 0.5 / np.maximum(rate, 0.5), 0.0)
    whole = time / (1.0 - lacks)
    return whole, whole * (1.0 - 1.0 / longer)
