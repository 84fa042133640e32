"""Small tensors whose values follow from the code alone, such as numbers of places, widths and masks: fake tensors keep their values."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

LARGEST = 4096  # elements of a tensor with values. [1]
# What makes a tensor out of numbers. Fake tensors hand values on from there (`FakeTensorMode`), until something else is written into them.
_MAKERS = frozenset({
    f"aten::{name}" for name in (
        "arange", "linspace", "logspace", "zeros", "ones", "full", "eye", "scalar_tensor", "tril_indices", "triu_indices",
    )
})  # fmt: skip

# What makes a tensor out of lists of numbers, some of which may be tensors of one: torch looks for these in memory, which fake ones lack.
_OF_LISTS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor})


def numbered(func: Any, given: Any) -> Any:
    """Arguments of a function of torch; if it makes a tensor out of lists, with the numbers of the tensors in them."""
    if func not in _OF_LISTS:
        return given
    return tuple(tree_map_only(torch.Tensor, torch.Tensor.item, one) if isinstance(one, list | tuple) else one for one in given)


def known(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """The result of an operation, with values where these are the same in every run."""
    if func._schema.name not in _MAKERS or not isinstance(out, FakeTensor) or out.numel() > LARGEST or out.fake_device.type != "cpu":
        return out
    with _disable_current_modes():
        real = func(*args, **kwargs)
    return out.fake_mode.fake_tensor_converter.from_real_tensor(out.fake_mode, real, make_constant=True)


def value_of(tensor: Any) -> Any:
    """The one value of a tensor, None where it is not known."""
    real = getattr(tensor, "constant", None)
    if not isinstance(tensor, FakeTensor) or real is None or real.numel() != 1:
        return None
    with _disable_current_modes():
        return torch.Tensor.item(real)
