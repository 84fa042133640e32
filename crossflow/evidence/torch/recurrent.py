"""Recurrent layers as the kernels of a GPU run them: LSTM, GRU and plain ones, all layers and steps as one operation of torch.

The inputs of all steps of a layer are multiplied at once, then each step multiplies the state and runs one pass over its gates; the
backward pass does the same in reverse, and multiplies for the gradients of the weights of all steps at once [1]_. Kept for the backward
pass is what these need: the activations of all gates, the cells of an LSTM or the part of the state in a GRU's new gate, and what one
layer hands to the next. It stands for the reserve space of cuDNN, whose size is not documented.

References
----------
.. [1] Appleyard, Kocisky, Blunsom, "Optimizing Performance of Recurrent Neural Networks on GPUs", arXiv:1604.01946, 2016.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from crossflow.program.kernels import Kernel, Pass, Product

_FORWARD = (
    "(Tensor data, Tensor[] states, Tensor[] weights, int gates, int layers, bool bidirectional, bool batch_first, bool keeps) "
    "-> (Tensor, Tensor[], Tensor)"
)
_BACKWARD = (
    "(Tensor gradient, Tensor[] ends, Tensor data, Tensor result, Tensor reserve, Tensor[] states, Tensor[] weights, int gates, "
    "int layers, bool bidirectional, bool batch_first) -> (Tensor, Tensor[], Tensor[], Tensor)"
)
LSTM = 4  # gates of a layer
GATES: Mapping[Any, int] = {torch._VF.lstm: LSTM, torch._VF.gru: 3, torch._VF.rnn_tanh: 1, torch._VF.rnn_relu: 1}


def _nothing(*_: Any) -> Any:
    raise NotImplementedError("recorded, never computed")


forward = torch.library.custom_op("crossflow::recurrent", _nothing, mutates_args=(), schema=_FORWARD)
backward = torch.library.custom_op("crossflow::recurrent_backward", _nothing, mutates_args=(), schema=_BACKWARD)


def recurrent(func: Any, args: Sequence[Any]) -> Any:
    """What `torch.lstm` and its like return; None for sequences of unequal length, which torch takes apart."""
    data, states, weights, biased = args[:4]
    if not isinstance(biased, bool):
        return None
    layers, _, _, bidirectional, batch_first = args[4:9]
    tensors = [data, *(states if isinstance(states, tuple) else (states,)), *weights]
    if torch.is_autocast_enabled("cpu"):
        tensors = [one.to(torch.get_autocast_dtype("cpu")) for one in tensors]
    count = 1 + (GATES[func] == LSTM)
    keeps = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    result, ends, _ = forward(
        tensors[0], tensors[1 : 1 + count], tensors[1 + count :], GATES[func], layers, bidirectional, batch_first, keeps
    )
    return (result, *ends)


@dataclass(frozen=True, kw_only=True)
class _Shapes:
    """Sizes of what runs. [1]"""

    samples: int
    steps: int
    hidden: int
    outputs: int  # of a step of one direction, fewer than `hidden` of an LSTM with projections
    gates: int
    ways: int
    inputs: tuple[int, ...]  # widths of what each layer reads

    @classmethod
    def of(cls, data: Any, weights: Sequence[Any], gates: int, layers: int, bidirectional: bool, batch_first: bool) -> _Shapes:
        samples, steps = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
        ways, outputs = 2 if bidirectional else 1, weights[1].shape[1]
        return cls(
            samples=samples, steps=steps, hidden=weights[0].shape[0] // gates, outputs=outputs, gates=gates, ways=ways,
            inputs=(data.shape[2], *[ways * outputs] * (layers - 1)),
        )  # fmt: skip

    @property
    def cells(self) -> int:
        """Cells of a step of an LSTM; of a GRU, what its new gate takes from the state."""
        return self.hidden if self.gates > 1 else 0

    @property
    def reserve(self) -> int:
        """Numbers that the backward pass needs beside data and result."""
        step = self.gates * self.hidden + self.cells + (self.hidden if self.outputs != self.hidden else 0)
        handed = self.outputs * (len(self.inputs) - 1)
        return self.samples * self.steps * self.ways * (step * len(self.inputs) + handed)


@forward.register_fake
def _made(data: Any, states: Any, weights: Any, gates: int, layers: int, bidirectional: bool, batch_first: bool, keeps: bool) -> Any:
    shapes = _Shapes.of(data, weights, gates, layers, bidirectional, batch_first)
    result = data.new_empty((*data.shape[:2], shapes.ways * shapes.outputs))
    return result, [torch.empty_like(one) for one in states], data.new_empty((shapes.reserve if keeps else 0,))


@backward.register_fake
def _gradients(
    _gradient: Any, _ends: Any, data: Any, _result: Any, _reserve: Any, states: Any, weights: Any, gates: int, layers: int,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """Gradients of data, states and weights, and those of the gates of one layer, with which its weights' are multiplied."""
    shapes = _Shapes.of(data, weights, gates, layers, bidirectional, batch_first)
    workspace = data.new_empty((shapes.samples * shapes.steps * shapes.ways * gates * shapes.hidden,))
    return torch.empty_like(data), [torch.empty_like(one) for one in states], [torch.empty_like(one) for one in weights], workspace


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    data, states, weights, *ctx.shape = inputs
    result, ctx.count = output[0], len(states)
    ctx.save_for_backward(data, result, output[2], *states, *weights)


def _differentiate(ctx: Any, gradient: Any, ends: Any, _reserve: Any) -> Any:
    data, result, reserve, *others = ctx.saved_tensors
    *shape, _ = ctx.shape
    of_data, of_states, of_weights, _ = backward(gradient, ends, data, result, reserve, others[: ctx.count], others[ctx.count :], *shape)
    return of_data, of_states, of_weights, *[None] * len(ctx.shape)


forward.register_autograd(_differentiate, setup_context=_keep)


def kernels_forward(args: Any, _kwargs: Any, _out: Any) -> tuple[Kernel, ...]:
    """Kernels of the forward pass."""
    data, _, *shape, keeps = args
    shapes, element = _Shapes.of(data, *shape), data.element_size()
    return tuple(itertools.chain.from_iterable(_layer(shapes, width, element, keeps) for width in shapes.inputs))


def _layer(shapes: _Shapes, width: int, element: int, keeps: bool) -> Iterator[Kernel]:
    """Kernels of a layer; a step reads both parts of its gates and the cell before, and writes gates for later, cell and state."""
    rows, wide, one = shapes.samples, shapes.gates * shapes.hidden, shapes.samples * shapes.hidden
    moved = 2 * wide * rows + 2 * shapes.cells * rows + one + (wide * rows if keeps else 0)
    for _ in range(shapes.ways):
        yield Product(m=float(rows * shapes.steps), n=float(wide), k=float(width))
        for _ in range(shapes.steps):
            yield Product(m=float(rows), n=float(wide), k=float(shapes.outputs))
            yield Pass(moved=float(moved * element), flops=float(3 * wide * rows))
            if shapes.outputs != shapes.hidden:
                yield Product(m=float(rows), n=float(shapes.outputs), k=float(shapes.hidden))


def kernels_backward(args: Any, _kwargs: Any, _out: Any) -> tuple[Kernel, ...]:
    """Kernels of the backward pass."""
    shapes, element = _Shapes.of(args[2], *args[6:]), args[2].element_size()
    return tuple(itertools.chain.from_iterable(_layer_back(shapes, width, element) for width in reversed(shapes.inputs)))


def _layer_back(shapes: _Shapes, width: int, element: int) -> Iterator[Kernel]:
    """Kernels of a layer, of each step first; it reads gates, cells and gradients, and writes those of gates and cell."""
    rows, wide = shapes.samples, shapes.gates * shapes.hidden
    moved, every = rows * (2 * wide + 4 * shapes.cells + 2 * shapes.hidden), float(shapes.samples * shapes.steps)
    for _ in range(shapes.ways):
        for _ in range(shapes.steps):
            if shapes.outputs != shapes.hidden:
                yield Product(m=float(rows), n=float(shapes.hidden), k=float(shapes.outputs))
            yield Pass(moved=float(moved * element), flops=float(4 * wide * rows))
            yield Product(m=float(rows), n=float(shapes.outputs), k=float(wide))
        yield Product(m=every, n=float(width), k=float(wide))
        for inner in (width, shapes.outputs):
            yield Product(m=float(wide), n=float(inner), k=every)
        if shapes.outputs != shapes.hidden:
            yield Product(m=float(shapes.outputs), n=float(shapes.hidden), k=every)
        yield Pass(moved=float(math.prod((every, wide, element))), flops=every * wide)  # gradients of biases
