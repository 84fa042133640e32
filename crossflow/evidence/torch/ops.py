"""Operations that frameworks run as one kernel and eager code as many, as operations of torch: the recorder sees them like any other.

Fused attention stands for every kernel of that kind, whatever kernel torch would choose on the machine that records. The optimizer
is AdamW as mixed-precision training runs it: weights of 16 bits have a copy in fp32, which is what is updated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional
from torch.distributed.tensor import Replicate
from torch.overrides import TorchFunctionMode

from crossflow.evidence.torch.constants import numbered
from crossflow.evidence.torch.recurrent import GATES, recurrent

_ATTENTION = "(Tensor query, Tensor key, Tensor value, bool causal, int window, Tensor? bias=None) -> Tensor"
_BACKWARD = (
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, bool causal, int window, Tensor? bias=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
_ADAMW = "(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] masters, Tensor(c!)[] states) -> ()"


def _nothing(*_: Any) -> Any:
    raise NotImplementedError("recorded, never computed")


attention = torch.library.custom_op("crossflow::attention", _nothing, mutates_args=(), schema=_ATTENTION)
attention_backward = torch.library.custom_op("crossflow::attention_backward", _nothing, mutates_args=(), schema=_BACKWARD)
adamw = torch.library.custom_op("crossflow::adamw", _nothing, mutates_args=("weights", "masters", "states"), schema=_ADAMW)
adamw.register_fake(lambda *_: None)


@attention.register_fake
def _attended(query: Any, _key: Any, value: Any, _causal: bool, _window: int, _bias: Any = None) -> Any:
    """The result, shape (batch, heads, length, width); it lies in memory token by token, as kernels write it."""
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


@attention_backward.register_fake
def _gradients(_gradient: Any, query: Any, key: Any, value: Any, _causal: bool, _window: int, bias: Any = None) -> Any:
    return (*(torch.empty_like(one) for one in (query, key, value)), query.new_empty(0) if bias is None else torch.empty_like(bias))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch calls it with these names
    ctx.mask, bias = inputs[3:5], inputs[5]
    ctx.save_for_backward(*inputs[:3], *([] if bias is None else [bias]))


def _differentiate(ctx: Any, gradient: Any) -> Any:
    bias = ctx.saved_tensors[3] if len(ctx.saved_tensors) > 3 else None
    *found, biased = attention_backward(gradient, *ctx.saved_tensors[:3], *ctx.mask, bias)
    return (*found, None, None, None if bias is None else biased)


def learned(mask: Any) -> Any:
    """What is added to the scores of attention if it is trained, as a bias for every distance; None of any other mask."""
    return mask if isinstance(mask, torch.Tensor) and mask.requires_grad else None


attention.register_autograd(_differentiate, setup_context=_keep)


_SCALED = torch.nn.functional.scaled_dot_product_attention


class FusedKernels(TorchFunctionMode):
    """Runs `scaled_dot_product_attention` as one kernel, in every form: with a mask, with dropout, with grouped heads; and recurrent
    layers as those of a GPU.

    Functions of torch that call it, as that of `MultiheadAttention`, look it up in its module, where this mode is off.
    """

    def __enter__(self) -> Any:
        torch.nn.functional.scaled_dot_product_attention = _scaled_dot_product
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        torch.nn.functional.scaled_dot_product_attention = _SCALED
        return super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch calls it."""
        found = recurrent(func, args) if func in GATES else None
        if found is not None:
            return found
        return (_scaled_dot_product if func is _SCALED else func)(*numbered(func, args), **(kwargs or {}))


def _scaled_dot_product(
    query: Any, key: Any, value: Any, attn_mask: Any = None, _dropout: float = 0.0, is_causal: bool = False, **_: Any
) -> Any:
    """Attention of tensors of three or more dimensions; what a mask that is given leaves out is not known, and counts as seen."""
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])
    whole = [one.expand(*lead, *one.shape[-3:]) for one in (query, key, value)]
    flat = [one.reshape(-1, *one.shape[-3:]) for one in whole] if query.dim() != 4 else whole
    found = attention(*flat, bool(is_causal), 0, learned(attn_mask))
    return found if query.dim() == 4 else found.reshape(*query.shape[:-1], value.shape[-1])


class MixedAdamW(torch.optim.Optimizer):
    """AdamW in one kernel for all parameters of a group, with master weights in fp32 for those of fewer bits."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> Any:
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            trained = [one for one in group["params"] if one.grad is not None or hasattr(one, "main_grad")]
            for one in trained:
                if one not in self.state:
                    own = local(one)
                    names = ("first", "second", *(("master",) if own.element_size() < 4 else ()))
                    self.state[one] = {name: torch.empty_like(own, dtype=torch.float32) for name in names}
            states = [self.state[one] for one in trained]
            masters = [state["master"] for state in states if "master" in state]
            moments = [state[name] for state in states for name in ("first", "second")]
            adamw([local(one) for one in trained], [gradient(one) for one in trained], masters, moments)


def gradient(parameter: Any) -> Any:
    """The gradient of a parameter, the part of this rank, that of more bits where it has one; None where it has none.

    That of a whole parameter beside divided ones, such as a bias of the vocabulary, is divided as their results are, and gathered.
    """
    own = getattr(parameter, "main_grad", None)
    found = parameter.grad if own is None else own
    lies = getattr(found, "placements", None)
    if lies is not None and lies != (wanted := getattr(parameter, "placements", (Replicate(),) * len(lies))) and own is None:
        found = found.redistribute(placements=wanted)
    return found if found is None else local(found)


def local(tensor: Any) -> Any:
    """The part of a distributed tensor that lies on this rank; any other tensor as it is."""
    while hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    return tensor
