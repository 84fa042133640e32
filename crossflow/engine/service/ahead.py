"""Steps that are scheduled while the one before runs.

The host of such an engine chooses the requests of a step when the one before begins, so that a request that comes meanwhile is in the step
after that one. That a request has ended it sees one step late too: the request is computed once more, in vain, and keeps its room until
then. Where nothing else is to do, an engine begins at once, and computes nothing in vain: vLLM and newer releases of TensorRT-LLM foresee
an end by the number of tokens, which is how engines run dry in benchmarks.

References
----------
.. [1] vLLM, vllm/v1/engine/core.py, `step_with_batch_queue`: two batches are in flight with ``--async-scheduling``.
.. [2] TensorRT-LLM, docs/source/features/overlap-scheduler: "the optimization introduces one extra decoding step".
.. [3] SGLang, "Zero-Overhead Batch Scheduler", lmsys.org, 2024-12-04; python/sglang/srt/managers/scheduler.py, `event_loop_overlap`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from crossflow.engine.service.ticket import Ticket


class Ahead:
    """What the schedule of an engine does not know yet: requests that have come, and those that have ended."""

    __slots__ = ("coming", "context", "ended")

    def __init__(self) -> None:
        self.coming: deque[tuple[float, Ticket]] = deque()  # with the times when they came. [s]
        self.ended: list[Ticket] = []  # that keep their room
        self.context = 0  # tokens that those of them that wrote have in the cache. [1]

    def __len__(self) -> int:
        """Requests that are computed in vain, or at least keep a place. [1]"""
        return len(self.ended)

    def seen(self, known: float) -> Iterator[Ticket]:
        """Take those that had come by a time."""
        while self.coming and self.coming[0][0] <= known:
            yield self.coming.popleft()[1]

    def leave(self, ticket: Ticket, tokens: int) -> None:
        """A request has ended with so many tokens in the cache, 0 of one that has written nothing."""
        self.ended.append(ticket)
        self.context += tokens

    def gone(self) -> list[Ticket]:
        """Take those that the schedule now knows to have ended."""
        ended, self.ended, self.context = self.ended, [], 0
        return ended

    def clear(self) -> list[Ticket]:
        """Forget all; those that had come."""
        coming = [ticket for _, ticket in self.coming]
        self.coming.clear()
        self.gone()
        return coming
