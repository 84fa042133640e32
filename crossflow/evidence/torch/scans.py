"""Scans of state-space layers, each as one operation of torch, as their kernels of a GPU run them.

Without the packages that have these kernels, models of transformers run a reference of many small operations in their place, in fp32,
with the products of all pairs of tokens in memory. No step on a GPU does that.

The scan of state-space duality reads data, time steps, decays, B and C, and what is added to them (the skip and the steps' offset). The
selective scan of Mamba-1, which goes on token by token and has no chunks, reads the same and a gate. That of the gated delta rule reads
queries, keys, values, gates and the strengths of updates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from crossflow.program.kernels import Kernel, Pass, Scan
from crossflow.program.operations import nbytes
from crossflow.workload.statespace import SELECTIVE


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
    inputs, chunk, delta = args
    if chunk:
        return (_scan(inputs, chunk, delta, backward=False),)
    element, work, selected = _selective(inputs)  # x, dt and the gate, the result before the gate and behind it; B and C
    return (Pass(moved=5.0 * element + 2.0 * selected, flops=SELECTIVE["forward"] * work),)


def kernels_backward(args: Any, _kwargs: Any, _out: Any) -> tuple[Kernel, ...]:
    """Kernel of its gradients."""
    _, inputs, chunk, delta = args
    if chunk:
        return (_scan(inputs, chunk, delta, backward=True),)
    element, work, selected = _selective(inputs)  # the same, and the gradients of the result, x, dt, the gate, B and C
    return (Pass(moved=9.0 * element + 4.0 * selected, flops=SELECTIVE["input"] * work),)


def _selective(inputs: Sequence[Any]) -> tuple[float, float, float]:
    """Bytes of the data of a selective scan, elements of its states of all tokens, and bytes of B. [B], [1]"""
    data, keys = inputs[0], inputs[3]
    return nbytes(data), float(data.numel() * keys.shape[1]), nbytes(keys)


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


def _token_by_token(
    hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None, delta_bias: Any = None,
    return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """The selective scan of Mamba-1 as models call it [1]_; None where it hands states on.

    References
    ----------
    .. [1] `selective_scan_fn` of mamba_ssm 2.3, ops/selective_scan_interface.py.
    """
    if return_last_state:
        return None
    return forward([hidden_states, dt, A, B, C, *(one for one in (D, z, delta_bias) if one is not None)], 0, False)


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
    "mamba2_chunk_scan": _duality, "mamba_selective_scan": _token_by_token, "torch_chunk_gated_delta_rule": _delta_rule,
    "mamba2_split_conv1d_scan_combined": _all_in_one, "mamba_inner_fn": _all_in_one,
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
