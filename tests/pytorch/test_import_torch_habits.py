"""What users bring beside plain models: attention of torch's own layers, copies, autocast, options that change nothing."""

import copy

import pytest
import torch
from torch import nn

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import record
from crossflow.program.kernels import Attention, Product


def layer():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0), torch.randn(2, 16, 64)


def perceptron():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def held(program, kind):
    return program.memory[0].get(kind, 0.0)


@pytest.mark.parametrize("task", ["training", "inference"])
def test_attention_of_torchs_own_layers_is_a_kernel(task):
    before = nn.functional.scaled_dot_product_attention
    kernels = record(layer, task=task).kernels
    assert [one.backward for one in kernels if isinstance(one, Attention)] == ([False, True] if task == "training" else [False])
    assert nn.functional.scaled_dot_product_attention is before


def test_copies_of_a_model_hold_their_weights_once():
    plain, copied = (
        record(make) for make in (lambda: (perceptron(), torch.randn(4, 64)), lambda: (copy.deepcopy(perceptron()), torch.randn(4, 64)))
    )
    for kind in ("weights", "buffers"):
        assert held(copied, kind) == held(plain, kind)


def test_autocast_of_a_gpu_is_that_of_the_import():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.inner(x)

    assert record(lambda: (Mixed(), torch.randn(4, 64))).dtype == "bf16"
    assert any(isinstance(one, Product) for one in record(lambda: (Mixed(), torch.randn(4, 64))).kernels)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # nothing of it is left
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16


def test_options_that_change_nothing_are_refused():
    def own():
        return perceptron(), torch.randn(4, 64)

    with pytest.raises(
        CrossflowError, match=r"has inputs of its own, so --batch changes nothing; leave it out, or let the function take 'batch'"
    ):
        record(own, batch=8)
    with pytest.raises(CrossflowError, match="a word is given twice"):
        record(own, world_size=8, parallel="tp=2,tp=4")
