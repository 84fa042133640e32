"""Chunked scans of state-space layers, each as one operation of torch, as their kernels of a GPU run them.

Without the packages that have these kernels, models of transformers run a reference of many small operations in their place, in fp32,
with the products of all pairs of tokens in memory. No step on a GPU does that.

The scan of state-space duality reads data, time steps, decays, B and C, and what is added to them (the skip and the steps' offset). That
of the gated delta rule reads queries, keys, values, gates and the strengths of updates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from crossflow.program.kernels import Kernel, Scan


def _nothing(*_: Any) -> Any:
    raise NotImplementedError("recorded, never computed")


forward = torch.library.custom_op("crossflow::scan", _nothing, mutates_args=(), schema="(Tensor[] inputs, int chunk, bool delta) -> Tensor")
backward = torch.library.custom_op(
    "crossflow::scan_backward", _nothing, mutates_args=(), schema="(Tensor gradient, Tensor[] inputs, int chunk, bool delta) -> Tensor[]"
)


def _data(inputs: Sequence[Any], delta: bool) -> Any:
    """What the result is like: data, or values."""
    return inputs[2] if delta else inputs[0]


@forward.register_fake
def _made(inputs: Any, _chunk: int, delta: bool) -> Any:
    return _data(inputs, delta).new_empty(_data(inputs, delta).shape)


@backward.register_fake
def _gradients(_gradient: Any, inputs: Any, _chunk: int, _delta: bool) -> Any:
    return [one.new_empty(one.shape) for one in inputs]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch calls it with these names
    tensors, *ctx.how = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: Any) -> Any:
    return backward(gradient, list(ctx.saved_tensors), *ctx.how), None, None


forward.register_autograd(_differentiate, setup_context=_keep)


def kernels_forward(args: Any, _kwargs: Any, _out: Any) -> tuple[Kernel, ...]:
    """Kernel of a scan."""
    return (_scan(*args, backward=False),)


def kernels_backward(args: Any, _kwargs: Any, _out: Any) -> tuple[Kernel, ...]:
    """Kernel of its gradients."""
    return (_scan(*args[1:], backward=True),)


def _scan(inputs: Sequence[Any], chunk: int, delta: bool, *, backward: bool) -> Scan:
    samples, length, heads, width = map(float, _data(inputs, delta).shape)
    groups, state = map(float, inputs[1 if delta else 3].shape[2:])
    return Scan(
        samples=samples, heads=heads, length=length, width=width, state=state, groups=groups, chunk=float(chunk), delta=delta,
        backward=backward,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------- in models of transformers


def _duality(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None, dt_bias: Any = None,
    initial_states: Any = None, return_final_states: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """The scan of Mamba-2 as models call it [1]_; None where it hands states on, as a service does.

    References
    ----------
    .. [1] `mamba_chunk_scan_combined` of mamba_ssm 2.3, ops/triton/ssd_combined.py.
    """
    if initial_states is not None or return_final_states:
        return None
    return forward([hidden_states, dt, A, B, C, *(one for one in (D, dt_bias) if one is not None)], chunk_size, False)


def _delta_rule(
    query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 64, initial_state: Any = None,
    output_final_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """The scan of the gated delta rule as models call it [1]_; None where it hands states on.

    References
    ----------
    .. [1] `chunk_gated_delta_rule` of flash-linear-attention 0.4, fla/ops/gated_delta_rule/chunk.py.
    """
    if initial_state is not None or output_final_state:
        return None
    return forward([query, key, value, g, beta], chunk_size, True), None


def _all_in_one(*_: Any, **__: Any) -> None:
    """What does the work of a whole layer, where it is installed; its parts are recorded instead."""


_OURS: dict[str, Callable[..., Any]] = {
    "mamba2_chunk_scan": _duality, "torch_chunk_gated_delta_rule": _delta_rule, "mamba2_split_conv1d_scan_combined": _all_in_one,
}  # fmt: skip


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Functions of models of transformers that are loaded which scan: module, name, and what runs the scan as one operation."""
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models."):
            for one, ours in _OURS.items():
                if one in vars(module):
                    yield module, one, _instead(vars(module)[one], ours)


def _instead(own: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        found = ours(*args, **kwargs)
        return own(*args, **kwargs) if found is None and ours is not _all_in_one else found

    return run
