"""Time that results travel between the stages of a pipeline, and when they end, for tests of pipelines alone."""

import itertools

import numpy as np

from crossflow.engine.timeline import pipeline


def travelling(order, times):
    """Time until each row has what it needs, forward and backward, shape (2, rows, n).

    `times`, of shape (rows, n) or (n,), is that of the boundary between each row and the one before it in its chain.
    """
    times = np.broadcast_to(times, (order.rows, np.shape(times)[-1]))
    found = np.zeros((2, *times.shape))
    for one, later in itertools.chain.from_iterable(map(itertools.pairwise, order.chains)):
        if (later - one) % order.stages:
            found[0, later] = found[1, one] = times[later]
    return found


def by_slot(order, times, durations):
    """The same by kind and row, of the kinds that there are durations of, shape (kinds x rows, n)."""
    found = travelling(order, times)
    return np.concatenate([*found, np.zeros_like(found[0])])[: len(durations)]


def pipeline_ends(forward, backward, late, weight=None, **shape):
    """Ends of all stages of the pipelines of one shape."""
    return pipeline.pipeline_ends([pipeline.SlotPipeline(forward=forward, backward=backward, late=late, weight=weight, **shape)])[0]
