"""What collectives give where every rank has this rank's data: sums are multiples of it, and a neighbour sends what this rank sends."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from crossflow.evidence.emulation.buffers import put

RING = 16  # most ranks that are added one by one
MANY = 6  # fewest equal numbers whose sum one by one may differ from one that is rounded once
PART = 1 << 14  # elements that stay in the caches of a processor while they are added
KEPT = 8  # messages of one way that nobody has received yet; of a pipeline nobody ever does


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def reduce_equal(tensor: torch.Tensor, reduction: Any, ranks: int) -> None:
    """Write the reduction over so many equal buffers into one of them.

    Up to `RING` ranks are added one by one, as a ring does, so that each addition rounds; the sum of more is rounded once, as that of
    trees and of switches that add in more bits nearly is. A sum of truth values is their disjunction, as in NCCL.

    Parameters
    ----------
    reduction : of torch, with its factor where it multiplies before it adds; None for a sum.
    """
    name = "SUM" if reduction is None else reduction.op.name
    if name in KEEPING or (name == "BXOR" and ranks % 2) or (tensor.dtype == torch.bool and name != "BXOR"):
        return
    tensor = tensor.detach()
    if name == "BXOR":
        tensor.zero_()
    elif tensor.is_floating_point() and tensor.element_size() == 1:  # types of 8 bits have no arithmetic of their own
        tensor.copy_(_changed(tensor.float(), name, reduction, ranks))
    else:
        _changed(tensor, name, reduction, ranks)


KEEPING = frozenset({"AVG", "MIN", "MAX", "BAND", "BOR"})  # reductions that leave equal buffers as they are


def _changed(tensor: torch.Tensor, name: str, reduction: Any, ranks: int) -> torch.Tensor:
    """A buffer, after a sum or a product."""
    if name == "PRODUCT":
        return tensor.pow_(ranks)
    if name == "PREMUL_SUM":
        tensor.mul_(reduction.__getstate__()[1])
    if ranks > RING or ranks < MANY or not tensor.is_floating_point():
        return tensor.mul_(ranks)
    for part in tensor.view(-1).split(PART) if tensor.is_contiguous() else (tensor,):
        one = part.clone()
        for _ in range(ranks - 1):
            part.add_(one)
    return tensor


def reducing(tensors: Iterable[torch.Tensor], reduction: Any, ranks: int, first: Callable[[], None] | None = None) -> Callable[[], None]:
    """Reduces buffers in place, after something else."""
    listed = list(tensors)

    def fill() -> None:
        if first is not None:
            first()
        for one in listed:
            reduce_equal(one, reduction, ranks)

    return fill


# -------------------------------------------------------------------------------------------- transfers


class MessageWay(NamedTuple):
    """How messages go: in a group, so many places on, with a tag."""

    group: str
    places: int
    tag: int


@dataclass(kw_only=True)
class MessageSent:
    """A message; its buffer belongs to the script until the message is sent, so it is copied then."""

    data: torch.Tensor
    taken: bool = False

    def over(self) -> None:
        """The script may write into the buffer from now on."""
        if not self.taken:
            self.data = self.data.detach().clone()


@dataclass(kw_only=True)
class MessageAwaited:
    """A buffer for a message.

    Attributes
    ----------
    message : what arrives, None as long as this rank has sent nothing of the kind.
    written : whether the buffer has been written without it.
    open : whether the script has not waited for it yet, so that it may still be written.
    """

    target: torch.Tensor
    message: MessageSent | None = None
    written: bool = False
    open: bool = True


@dataclass(kw_only=True)
class Neighbours:
    """Transfers where every rank calls what this one calls: from `k` places before comes what this one sends `k` places on.

    Messages of one way arrive in their order. A message that this rank does not send along is zero.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: dict[MessageWay, deque[MessageSent]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=KEPT)))
    awaited: dict[MessageWay, deque[MessageAwaited]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=KEPT)))

    def send(self, way: MessageWay, tensor: torch.Tensor) -> MessageSent:
        """Let a buffer go, to who waits for it or will."""
        message = MessageSent(data=tensor)
        with self.lock:
            for asked in list(self.awaited[way]):
                self.awaited[way].popleft()
                if asked.open:
                    asked.message = message
                    if asked.written:
                        self._write(asked)
                    return message
            self.sent[way].append(message)
        return message

    def receive(self, way: MessageWay, target: torch.Tensor) -> MessageAwaited:
        """Expect a message."""
        asked = MessageAwaited(target=target)
        with self.lock:
            if self.sent[way]:
                asked.message = self.sent[way].popleft()
            else:
                self.awaited[way].append(asked)
        return asked

    def write(self, asked: MessageAwaited) -> None:
        """Write a message into its buffer, zeros where there is none yet."""
        with self.lock:
            self._write(asked)

    def _write(self, asked: MessageAwaited) -> None:
        asked.written, target = True, asked.target.detach()
        if asked.message is None or asked.message.data.dtype != target.dtype:
            target.zero_()
            return
        put(target, asked.message.data.detach())
        asked.message.taken = True
