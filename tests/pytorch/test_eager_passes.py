"""Kernels that eager PyTorch runs between the products of an MLP, counted as it dispatches them, against those of an unfused stack."""

import numpy as np
import pytest
from blocks import block_kernels

from crossflow.base.files import Document
from crossflow.hardware.architecture.software import load_stack
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.job import Job
from crossflow.workload.spec import TransformerSpec

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

TOKENS, INNER = 64, 32
VIEWS = ("aten.detach", "aten.split", "aten.view", "aten.expand")
JOINED = "aten.cat"  # gradients of both branches, where one product makes them


class Counted(TorchDispatchMode):
    """Numbers that kernels read and write, but for what is read once for all tokens, and how many kernels there are."""

    def __init__(self):
        super().__init__()
        self.moved, self.kernels, self.joined = 0, 0, 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = str(operator)
        if name.startswith(JOINED):
            self.joined += 1
        elif not name.startswith(VIEWS):
            tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
            self.moved += sum(value.numel() for value in tensors if value.dim() == 2 and len(value) == TOKENS)
            self.kernels += 1
        return result


def gelu(first):
    return functional.gelu(first)


def biased_gelu(first, bias):
    return functional.gelu(first + bias)


def swiglu(gate, up):
    return functional.silu(gate) * up


def biased_swiglu(both, bias):
    gate, up = torch.chunk(both + bias, 2, dim=-1)
    return functional.silu(gate) * up


CASES = [
    # what runs, its inputs, whether the part is gated, and kernels that join gradients
    (gelu, [(TOKENS, INNER)], False, 0),
    (biased_gelu, [(TOKENS, INNER), (INNER,)], False, 0),
    (swiglu, [(TOKENS, INNER), (TOKENS, INNER)], True, 0),
    (biased_swiglu, [(TOKENS, 2 * INNER), (2 * INNER,)], True, 1),
]


@pytest.mark.parametrize(("function", "shapes", "gated", "joined"), CASES)
def test_an_unfused_activation_launches_what_eager_code_does(function, shapes, gated, joined):
    inputs = [torch.ones(shape, requires_grad=True) for shape in shapes]
    with Counted() as forward:
        result = function(*inputs)
    gradient = torch.ones_like(result)
    with Counted() as backward:
        result.backward(gradient)
    assert backward.joined == joined  # the model leaves it out: most code has a product for each branch
    found = [(counted.moved / (TOKENS * INNER), counted.kernels) for counted in (forward, backward)]
    assert found == passes_of(gated=gated, biases=len(shapes[-1]) == 1)


def passes_of(*, gated, biases):
    """Numbers of each element, and launches, of the activation's passes forward and backward on a stack that fuses nothing."""
    spec = TransformerSpec.model_validate({
        "model": "transformer", "layers": 2, "hidden": 16, "heads": 2, "ffn": INNER, "gated": gated, "vocabulary": 64, "sequence": TOKENS,
        "positions": "learned", "norm": "layernorm", "biases": biases, "global_batch": 1, "dtype": "bf16",
    })  # fmt: skip
    stack = load_stack(Document(file="s", data={"like": "pytorch", "fused": []}))[0]
    layout = Layout.of([Plan()], np.ones(1), 8)
    passes = block_kernels(Job(model=spec.transformer(), dtype="bf16", task="training"), layout, stack).passes
    forward, backward = [one for one in passes if one.unit == "0.1.mlp"][:2]
    assert (forward.phase, backward.phase) == ("forward", "input")
    return [(float(np.sum(one.moved)) / (2 * TOKENS * INNER), float(np.sum(one.launches))) for one in (forward, backward)]
