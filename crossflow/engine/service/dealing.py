"""Room of a step for tokens, microbatch by microbatch.

An engine with pipeline stages has as many batches in flight as stages, each with a budget of its own, and all tokens of a batch go through
the stages together (vLLM, vllm/v1/engine/core.py, `step_with_batch_queue`: `batch_queue_size` is the number of stages). A step here is one
round of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence


class StepRoom:
    """Tokens that each microbatch of a step has room for, beside those `written` for each of its `writers`.

    >>> room = StepRoom(512, 2, 3, 1)
    >>> list(room.left), room.take(500), room.most, room.take(100), room.left
    ([511, 510], 0, 510, 1, [11, 410])
    """

    __slots__ = ("left", "most")

    def __init__(self, chunk: int, microbatches: int, writers: int, written: int) -> None:
        if microbatches == 1:  # as nearly always, without a list
            self.left, self.most = [], chunk - writers * written
            return
        self.left = [chunk - (writers + i) // microbatches * written for i in range(microbatches)]
        self.most = max(self.left)  # tokens of the microbatch with most room. [1]

    def take(self, tokens: int) -> int:
        """Put a piece of a prompt into the microbatch with most room; its number."""
        if not self.left:
            self.most -= tokens
            return 0
        i = self.left.index(self.most)
        self.left[i] -= tokens
        self.most = max(self.left)
        return i


def dealt(pieces: Sequence[tuple[int, int]], room: StepRoom) -> list[tuple[int, float]]:
    """Tokens that each microbatch reads, and the keys that one of them sees in the mean; of microbatches that read. [1], [1]

    Parameters
    ----------
    pieces : tokens of each piece in order, and those of its prompt that were read before it. [1]
    """
    tokens, seen = [0] * len(room.left), [0.0] * len(room.left)
    for piece, before in pieces:
        i = room.take(piece)
        tokens[i] += piece
        seen[i] += piece * (before + 0.5 * piece)
    return [(many, keys / many) for many, keys in zip(tokens, seen, strict=True) if many]
