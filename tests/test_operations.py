"""Kernels of PyTorch's operations from the sizes of their tensors, by hand."""

import dataclasses
import math

import pytest

from crossflow.program.kernels import Attention, Lookup, Pass
from crossflow.program.operations import attention_of, depthwise_flops, implicit, kernels_of, nbytes, pooled_back, scattered, touched


@dataclasses.dataclass(frozen=True)
class Sizes:
    """All that is known of a tensor."""

    shape: tuple[int, ...]
    element: int = 2

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.element


def sizes(*shape, element=2):
    return Sizes(shape, element)


BIAS = sizes(7)
PRODUCTS = [
    # operation, arguments, result, products as (m, n, k, how many)
    ("mm", [sizes(3, 5), sizes(5, 7)], None, [(3, 7, 5, 1)]),
    ("addmm", [BIAS, sizes(3, 5), sizes(5, 7)], None, [(3, 7, 5, 1)]),
    ("linear", [sizes(2, 4, 5), sizes(7, 5)], None, [(8, 7, 5, 1)]),
    ("bmm", [sizes(2, 3, 5), sizes(2, 5, 7)], None, [(3, 7, 5, 2)]),
    ("baddbmm", [BIAS, sizes(2, 3, 5), sizes(2, 5, 7)], None, [(3, 7, 5, 2)]),
    ("_grouped_mm", [sizes(12, 5), sizes(4, 5, 7)], None, [(3, 7, 5, 4)]),
    ("_grouped_mm", [sizes(4, 5, 7), sizes(7, 12)], None, [(5, 3, 7, 4)]),
    ("_grouped_mm", [sizes(2, 3, 5), sizes(2, 5, 7)], None, [(3, 7, 5, 2)]),
    ("_grouped_mm", [sizes(5, 12), sizes(12, 7)], sizes(4, 5, 7), [(5, 7, 3, 4)]),
]


@pytest.mark.parametrize(("name", "args", "out", "found"), PRODUCTS)
def test_products_by_hand(name, args, out, found):
    assert [(one.m, one.n, one.k, one.batch) for one in kernels_of(name, args, out)] == found


def convolution(name, first, groups, *, transposed=False, wanted=(True, True, False)):
    """Forward: data, weight, ..., transposed at 6, groups at 8; backward: gradient, data, weight, ..., transposed at 7, groups, wanted."""
    data, weight = sizes(2, 6, 10, 10), sizes(8, 6 // groups, 3, 3)
    args = [data, weight, *[None] * 4, transposed, None, groups]
    if name == "convolution_backward":
        args = [first, data, weight, *[None] * 4, transposed, None, groups, wanted]
    return [(one.m, one.n, one.k, one.batch) for one in kernels_of(name, args, first) or ()]


def test_convolutions_are_implicit_products():
    """2 x 6 x 10 x 10 through 8 kernels of 3 x 3 to 2 x 8 x 5 x 5: 50 rows, of the data itself where it is transposed."""
    out = sizes(2, 8, 5, 5)
    assert convolution("convolution", out, 1) == [(50, 8, 54, 1)]
    assert convolution("convolution", out, 2) == [(50, 4, 27, 2)]
    assert convolution("convolution", out, 1, transposed=True) == [(200, 8, 54, 1)]
    assert convolution("convolution_backward", out, 1) == [(50, 54, 8, 1), (54, 8, 50, 1)]
    assert convolution("convolution_backward", out, 1, transposed=True, wanted=(False, True)) == [(54, 8, 200, 1)]


def test_a_convolution_of_one_channel_is_a_product():
    """8 kernels of 3 x 3 over 50 pixels; with two channels, each with kernels of its own, no matrices are multiplied."""
    (found,) = implicit(sizes(8, 1, 3, 3), 1, 50.0, ["forward"])
    assert (found.m, found.n, found.k, found.batch) == (50, 8, 9, 1)
    assert implicit(sizes(8, 1, 3, 3), 2, 50.0, ["forward"]) is None


def test_a_depthwise_convolution_multiplies_no_matrices():
    assert convolution("convolution", sizes(2, 8, 5, 5), 6) == []
    assert kernels_of("relu", [BIAS], BIAS) is None


@pytest.mark.parametrize("ways", [("forward",), ("input",), ("input", "weight")])
def test_a_depthwise_convolution_has_the_operations_of_a_grouped_one(ways):
    """Eight channels of 50 pixels, 3 x 3 taps each: the limit of a grouped convolution with as many groups as channels."""
    weight = sizes(8, 1, 3, 3)
    assert depthwise_flops(weight, 50.0, ways) == 2 * 8 * 9 * 50 * len(ways)
    grouped = implicit(sizes(8, 2, 3, 3), 4, 50.0, ways)
    assert depthwise_flops(weight, 50.0, ways) == sum(2 * one.m * one.n * one.k * one.batch for one in grouped) / 2


def test_attention_of_tensors_by_hand():
    """A window counts where it is narrower than what is there, under a mask, where all keys are there."""
    q, kv = sizes(2, 8, 16, 64), sizes(2, 4, 16, 64)
    plain = attention_of(q, kv, kv, causal=True, window=5, backward=False)
    expected = Attention(samples=2.0, heads=8.0, kv_heads=4.0, length=16.0, seen=16.0, width=64.0, causal=True, window=5.0)
    assert plain == expected
    for window in (0, 16, 17):
        assert attention_of(q, kv, kv, causal=True, window=window, backward=False).window == 0.0
    assert attention_of(q, kv, kv, causal=False, window=5, backward=False).window == 0.0
    assert attention_of(sizes(2, 8, 32, 64), kv, kv, causal=True, window=5, backward=True).window == 0.0
    single = attention_of(sizes(2, 8, 1, 64), kv, kv, causal=True, window=0, backward=False)
    assert (single.causal, single.length, single.seen) == (False, 1.0, 16.0)


def test_values_of_a_width_of_their_own_count_with_the_mean():
    """Keys of 96, values of 32: as 64 throughout, two products of 2 x 8 heads of 16 x 16 pairs; Q, K, V and O in two bytes."""
    q, k, v = sizes(2, 8, 16, 96), sizes(2, 4, 16, 96), sizes(2, 4, 16, 32)
    found = attention_of(q, k, v, causal=False, backward=False)
    assert found.width == 96
    assert found.work == (4 * 2 * 8 * 16 * 16 * 64, 2 * 2 * 64 * 2 * (8 * 16 + 4 * 16), 2 * 8)


def test_rows_of_tables_by_hand():
    """20 indices of 8 bytes for 5 samples, in a table of 100 x 32 in fp16."""
    table, indices = sizes(100, 32), sizes(20, element=8)
    (found,) = kernels_of("_embedding_bag", [table, indices], [sizes(5, 32)])
    rows = {"samples": 5.0, "tables": 1.0, "rows": 100.0, "width": 32.0, "pooling": 4.0}
    assert found == Lookup(**rows, element=2.0, output=2.0, gradient=2.0, index=8.0)
    zeros, back = pooled_back(sizes(5, 32), indices, table)
    assert zeros == Pass(moved=6400.0, what="zeros")
    assert back == dataclasses.replace(found, part="gradient")
    zeros, added = scattered(sizes(20, 32), indices, 6400.0)
    assert zeros.moved == 6400.0
    assert added == Pass(moved=3 * 20 * 32 * 2 + 160.0, flops=640.0, what="embedding_dense_backward")


def test_what_picks_or_adds_touches_as_much_as_it_gives_or_is_given():
    assert nbytes(sizes(3, 5, element=4)) == 60.0
    assert touched("embedding", 0, 1000.0, 40.0, [8.0]) == 40.0
    assert touched("embedding", 0, 10.0, 40.0, [8.0]) == 10.0
    assert touched("embedding", 1, 1000.0, 40.0, [8.0]) == 1000.0
    assert touched("index_add_", 0, 1000.0, 40.0, [8.0, 30.0]) == 60.0
    assert touched("index_add_", 0, 1000.0, 40.0, []) == 0.0
    assert touched("index_add_", 1, 1000.0, 40.0, [8.0]) == 1000.0
    assert touched("add", 0, 1000.0, 40.0, [8.0]) == 1000.0
