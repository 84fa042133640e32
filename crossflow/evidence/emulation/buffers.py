"""Buffers of collectives: what their shapes and types must be, as in gloo, and how outputs are written.

Counts of elements are checked, not shapes: NCCL takes each shape that holds as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

BITWISE = {"BAND", "BOR", "BXOR"}


# -------------------------------------------------------------------------------------------- checks


def check_whole(op: str, whole: torch.Tensor, part: torch.Tensor, ranks: int) -> None:
    """RuntimeError where one buffer does not hold as many parts as there are ranks, or has another type."""
    _check_type(op, whole, part)
    if whole.numel() != ranks * part.numel():
        wrong = f"{_shape(part)} on each of {ranks} ranks and {_shape(whole)} on all of them"
        raise RuntimeError(f"{op}: invalid tensor sizes ({wrong}: {ranks * part.numel()} elements vs. {whole.numel()})")


def check_parts(op: str, word: str, parts: Sequence[torch.Tensor], ranks: int) -> None:
    """RuntimeError where a list has not one buffer for each rank."""
    if len(parts) != ranks:
        raise RuntimeError(f"{op}: invalid {word} tensor list (expected length {ranks}, got {len(parts)})")


def check_like(op: str, parts: Sequence[torch.Tensor], mine: torch.Tensor, place: int) -> None:
    """RuntimeError where a buffer of a list differs from the own one; NCCL takes others of any size."""
    for i, part in enumerate(parts):
        _check_type(op, part, mine)
        if part.numel() != mine.numel() and (i == place or not mine.is_cuda):
            raise RuntimeError(f"{op}: invalid tensor size at index {i} (expected {_shape(mine)}, got {_shape(part)})")


def check_sums(op: str, tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> None:
    """RuntimeError where split sizes do not make up a buffer; without them it must divide equally."""
    rows = tensor.size(0) if tensor.dim() else 0
    if splits and len(splits) != ranks:
        raise RuntimeError(f"{op}: Number of tensor splits not equal to group size ({len(splits)} vs. {ranks})")
    if splits and sum(splits) != rows:
        raise RuntimeError(f"{op}: Split sizes doesn't match total dim 0 size ({sum(splits)} vs. {rows})")
    if not splits and rows % ranks:
        raise RuntimeError(f"{op}: Tensor's dim 0 does not divide equally across group size ({rows} vs. {ranks})")


def check_own_part(op: str, sent: int, received: int) -> None:
    """RuntimeError where a rank does not expect from itself what it sends to itself. [B]"""
    if sent != received:
        raise RuntimeError(f"{op}: input and output tensors must have the same size for the rank itself ({sent} B vs. {received} B)")


def check_reduction(reduction: Any, tensors: Iterable[torch.Tensor]) -> None:
    """RuntimeError for a reduction of bits among numbers that are no integers."""
    if reduction is not None and reduction.op.name in BITWISE and any(one.is_floating_point() or one.is_complex() for one in tensors):
        raise RuntimeError(f"Cannot use ReduceOp.{reduction.op.name} with non-integral dtype")


def check_contiguous(tensors: Iterable[torch.Tensor]) -> None:
    """RuntimeError for a transfer of a buffer with gaps."""
    if not all(one.is_contiguous() for one in tensors):
        raise RuntimeError("input tensor has to be contiguous")


def _check_type(op: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.dtype != other.dtype:
        raise RuntimeError(f"{op}: invalid tensor type (expected {other.dtype}, got {one.dtype})")


def _shape(tensor: torch.Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


# -------------------------------------------------------------------------------------------- sizes and data


def flat(given: Any) -> list[torch.Tensor]:
    """Tensors of nested lists, in order."""
    if given is None:
        return []
    return [given] if isinstance(given, torch.Tensor) else [one for part in given for one in flat(part)]


def described(given: Any) -> tuple[int, str, torch.device | None]:
    """Size of nested lists of tensors, type of their elements and their device; None where there are no tensors. [B]"""
    tensors = flat(given)
    if not tensors:
        return 0, "", None
    size = sum(one.numel() * one.element_size() for one in tensors)
    return size, str(tensors[0].dtype).removeprefix("torch."), tensors[0].device


def parts_of(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Bytes of a buffer that belong to each rank, by the rows that its splits give them. [B]"""
    size = tensor.numel() * tensor.element_size()
    return tuple(size // ranks for _ in range(ranks)) if not splits else tuple(size // max(sum(splits), 1) * rows for rows in splits)


def data_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """Bytes of some buffers, one after the other."""
    return b"".join(one.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors)


def put_data(target: torch.Tensor, data: bytes) -> None:
    """Write bytes into a buffer of their size."""
    if data:
        put(target, torch.frombuffer(bytearray(data), dtype=target.dtype))


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def put(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write one buffer into another of any size; what is left over becomes zero."""
    target = target.detach()
    if target.numel() == source.numel():
        target.copy_(source.reshape(target.shape))
        return
    target.zero_()
    count = min(target.numel(), source.numel())
    if target.is_contiguous():
        target.view(-1)[:count].copy_(source.reshape(-1)[:count])


def repeat(target: torch.Tensor, source: torch.Tensor, times: int) -> None:
    """Write a buffer as often as it fits."""
    put(target, source.detach().reshape(1, -1).expand(times, -1))


def tile(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write a buffer again and again until another is full; zeros where it is empty."""
    times = -(-target.numel() // max(source.numel(), 1))
    put(target, source.detach().reshape(-1).repeat(times)[: target.numel()] if source.numel() not in (0, target.numel()) else source)


def pairs(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Writes sources into targets, one by one."""
    both = list(zip(targets, sources, strict=False))

    def fill() -> None:
        for target, source in both:
            put(target, source.detach())

    return fill
