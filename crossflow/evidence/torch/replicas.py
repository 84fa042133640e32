"""Data parallelism as DistributedDataParallel does it, on fake tensors: its own reducer touches memory that is not there.

Gradients are gathered in buckets in the order in which they are ready, the first bucket of 1 MiB, others of `bucket_cap_mb`; a bucket is
copied and reduced as soon as it is full, beside the rest of the backward pass [1]_.

References
----------
.. [1] Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv:2006.15704, Sec. 3.2 and 4.2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.ops import gradient, local

FIRST = 2**20  # bytes of the first bucket, and of a mebibyte [B]
_BROADCAST = 250 * FIRST  # bytes of buffers that are sent at once [B]
# Hooks of torch, and the type of what they send.
_HOOKS: dict[Any, torch.dtype | None] = {
    default_hooks.allreduce_hook: None, default_hooks.fp16_compress_hook: torch.float16, default_hooks.bf16_compress_hook: torch.bfloat16,
}  # fmt: skip
STAGE = "_crossflow_stage"  # attribute of weights: stage of a pipeline that has them


class Replicated(nn.Module):
    """Stands for DistributedDataParallel; with a `reduce_dtype`, buckets are of that type, as Megatron's are of fp32."""

    def __init__(
        self, module: Any, *_: Any, bucket_cap_mb: float | None = None, process_group: Any = None, device_mesh: Any = None,
        broadcast_buffers: bool = True, gradient_as_bucket_view: bool = False, reduce_dtype: Any = None, **_options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.module = module
        self.cap = int((bucket_cap_mb or 25) * FIRST)
        self.group = device_mesh.get_group() if device_mesh is not None else process_group or dist.group.WORLD
        self.views, self.dtype, self.syncs = gradient_as_bucket_view, reduce_dtype, True
        self.sent: Any = None  # type in which buckets travel, that of their own where it is None
        self.buckets: list[list[Any]] = []
        self._ready: list[Any] = []
        self._left: list[int] = []
        self._works: list[tuple[Any, Any, Any, Any]] = []
        self._shares, self._shares_next = broadcast_buffers, True
        for one in module.parameters():
            if one.requires_grad:
                one.register_post_accumulate_grad_hook(self._add)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module; buckets are those of the order in which gradients were ready before."""
        if self._ready and not self.buckets:
            self.buckets = [bucket for part in self._by_stage() for bucket in self._divided(part)]
            self._bucket = {one: i for i, bucket in enumerate(self.buckets) for one in bucket}
        self._ready, self._left = [], [len(bucket) for bucket in self.buckets]
        buffers = [local(one) for one in self.module.buffers()]
        if self._shares and self._shares_next and buffers:
            self._share(buffers)
        self._shares_next = torch.is_grad_enabled() and self.syncs
        return self.module(*args, **kwargs)

    @torch.no_grad()
    def _share(self, buffers: list[Any]) -> None:
        """Send the buffers of the first rank to all before a forward pass, those of one type together, and wait [1]_, Sec. 4.1.

        A pass without gradients sends them once only, and so does one after a pass that does not synchronise.
        """
        for bucket in dist._compute_bucket_assignment_by_size(buffers, [_BROADCAST], [])[0]:
            mine = [buffers[i] for i in bucket]
            flat = torch.cat([one.flatten() for one in mine])
            dist.broadcast(flat, group_src=0, group=self.group)
            parts = flat.split([one.numel() for one in mine])
            torch._foreach_copy_(mine, [part.view_as(one) for one, part in zip(mine, parts, strict=True)])

    def _by_stage(self) -> list[list[Any]]:
        """Weights of each stage of a pipeline, whose replicas reduce them by themselves, in the order in which they were ready."""
        found: dict[int, list[Any]] = {}
        for one in self._ready:
            found.setdefault(getattr(one, STAGE, 0), []).append(one)
        return list(found.values())

    def _divided(self, weights: list[Any]) -> list[list[Any]]:
        reduced = [torch.empty_like(local(one), dtype=self.dtype) for one in weights]
        found = dist._compute_bucket_assignment_by_size(reduced, [FIRST, self.cap], [False] * len(weights))[0]
        return [[weights[i] for i in bucket] for bucket in found]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are added up here, and not reduced."""
        self.syncs = False
        try:
            yield
        finally:
            self.syncs = True

    def register_comm_hook(self, _state: Any, hook: Any) -> None:
        """Hooks of torch that say in which type buckets travel.

        Raises
        ------
        CrossflowError
            For other hooks, which may send anything.
        """
        if not isinstance(hook, Hashable) or hook not in _HOOKS:
            name, known = getattr(hook, "__name__", type(hook).__name__), ", ".join(known.__name__ for known in _HOOKS)
            raise CrossflowError(
                f"register_comm_hook: the import knows {known} of torch, not your {name}; leave it out, or reduce the gradients in a step "
                "of your own"
            )
        self.sent = _HOOKS[hook]

    def _add(self, parameter: Any) -> None:
        if not self.syncs:
            return
        self._ready.append(parameter)
        if not self.buckets:
            return
        if not self._works and sum(self._left) == sum(map(len, self.buckets)):
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        bucket = self._bucket[parameter]
        self._left[bucket] -= 1
        if self._left[bucket] == 0:
            self._reduce(self.buckets[bucket])

    @torch.no_grad()
    def _reduce(self, parameters: list[Any]) -> None:
        """Copy the gradients of a bucket, divided by the ranks, and begin to sum them."""
        flat = torch.cat([gradient(one).flatten() for one in parameters])
        flat = flat if self.dtype is None else flat.to(self.dtype)
        sent = flat if self.sent is None else flat.to(self.sent)
        self._works.append((parameters, flat, sent, dist.all_reduce(sent, group=self.group, async_op=True)))

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait for all buckets at the end of the backward pass; gradients are views of them, or copies."""
        for parameters, flat, sent, work in self._works:
            work.wait()
            if sent is not flat:
                flat.copy_(sent)
            own = [local(one) for one in parameters]
            parts = [part.view_as(one) for one, part in zip(own, flat.split([one.numel() for one in own]), strict=True)]
            if not self.views:
                torch._foreach_copy_([local(one.grad) for one in parameters], parts)
                continue
            for one, part in zip(parameters, parts, strict=True):
                if one is local(one) and part.dtype == one.dtype:
                    one.grad = part
                else:  # which no gradient can be; `MixedAdamW` looks here
                    one.grad, one.main_grad = None, part
        self._works = []


def add_up(module: Any, dtype: Any) -> None:
    """Have gradients of several microbatches added up in another type, as Megatron does in fp32."""

    @torch.no_grad()
    def add(parameter: Any) -> None:
        own, parameter.main_grad = getattr(parameter, "main_grad", None), None
        new = gradient(parameter)
        parameter.grad, parameter.main_grad = None, new.to(dtype) if own is None else own.add_(new)

    for one in module.parameters():
        if one.requires_grad:
            one.register_post_accumulate_grad_hook(add)
