"""Flex attention and attention over packed sequences as one kernel each, as a GPU runs them: torch's own code for the CPU has no backward
pass, or writes all scores out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.constants import value_of
from crossflow.evidence.torch.ops import attention
from crossflow.program.kernels import Attention
from crossflow.program.operations import attention_of

MaskRule = Callable[[Any, Any, Any, Any], Any]  # of a sample, a head, a query and a key: whether the query sees the key


def flexible(query: Any, key: Any, value: Any, _score_mod: Any, block_mask: tuple[Any, ...], *_: Any) -> tuple[Any, Any, Any]:
    """What stands for the operation behind `torch.nn.attention.flex_attention.flex_attention` [1]_, which has checked what it is given.

    Parameters
    ----------
    query, key, value : shape (samples, heads, tokens, width).
    block_mask : a block mask as a tuple, whose last member is the rule that says which keys a query sees. Where that depends on values
        that are not known, all keys count as seen.

    Returns
    -------
    The result, shape (samples, heads, tokens, width of values); the logarithms of the sums of scores, and the largest scores, both of shape
    (samples, heads, tokens).

    References
    ----------
    .. [1] Dong et al., "Flex Attention: A Programming Model for Generating Optimized Attention Kernels", MLSys 2025, arXiv:2412.05496.
    """
    causal, window = _mask(block_mask[-1], query.shape[2], key.shape[2])
    sums, largest = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2))
    return attention(query, key, value, causal, window), sums, largest


def _mask(rule: MaskRule, queries: int, keys: int) -> tuple[bool, int]:
    """Whether a mask hides the keys behind each query, and how many keys it then shows at most, 0 where it shows all before. [1]

    The rule is asked about few pairs: three queries with themselves and with the next key, and the last one with keys ever farther away.
    """
    if queries != keys or queries < 2:
        return False, 0
    last = queries - 1
    places = sorted({0, last // 2, last - 1})
    if not all(_seen(rule, one, one) is True and _seen(rule, one, one + 1) is False for one in places):
        return False, 0
    if _seen(rule, last, 0) is not False:
        return True, 0
    near, far = 0, last  # distances of a key that is seen and of one that is not
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if _seen(rule, last, last - middle) else (near, middle)
    return True, near + 1


def _seen(rule: MaskRule, query: int, key: int) -> Any:
    """Whether a query sees a key by a rule; None where that depends on values that are not known."""
    return value_of(rule(*(torch.full((), place, dtype=torch.long) for place in (0, 0, query, key))))


def kernels_packed(args: Any, _kwargs: Any, _out: Any) -> tuple[Attention]:
    """Attention over sequences that lie one behind the other, with tensors of shape (tokens of all, heads, width).

    Raises
    ------
    CrossflowError
        For keys in pages, which lie anywhere.
    """
    if len(args) > 12 and args[12] is not None:
        raise CrossflowError(
            "attention over keys in pages, as engines of services run it, is not recorded; give varlen_attn no block_table"
        )
    return (_packed(args[:3], args[3], causal=bool(args[7]), window=args[9] if len(args) > 9 else None, backward=False),)


def kernels_packed_backward(args: Any, _kwargs: Any, _out: Any) -> tuple[Attention]:
    """The backward pass of `kernels_packed`."""
    return (_packed(args[1:4], args[6], causal=bool(args[10]), window=args[13] if len(args) > 13 else None, backward=True),)


def _packed(tensors: Any, ends: Any, *, causal: bool, window: Any, backward: bool) -> Attention:
    """Attention of as many sequences as `ends` tells of, each of the mean length: how long each is follows from data."""
    count = max(int(ends.shape[0]) - 1, 1)
    samples = (one[: one.shape[0] // count * count].unflatten(0, (count, -1)).transpose(1, 2) for one in tensors)
    left, right = window or (-1, -1)
    causal = causal or right == 0
    return attention_of(*samples, causal=causal, window=left + 1.0 if causal and left >= 0 else 0.0, backward=backward)
