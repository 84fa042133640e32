"""Small programs, blocks, groups and scans worked out by hand."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.base.errors import CrossflowError
from crossflow.program.blocks import Block, CopyPlaces
from crossflow.program.builder import ProgramBuilder
from crossflow.program.collectives import ring_volume, sent_bytes
from crossflow.program.file import _stream
from crossflow.program.groups import DeviceGroup, Group, Pair
from crossflow.program.kernels import Attention, Lookup, Pass, Product, Scan, attention_sizes, kernel_tables, masked_pairs
from crossflow.program.order import in_order
from crossflow.program.program import COMPUTE, HOST, NETWORK, MessageTable, fullest
from crossflow.program.scans import scan_sizes

near = functools.partial(pytest.approx, rel=1e-12, abs=0.0)
ONE = Pass(moved=1.0)

# ------------------------------------------------------------------------------------------ blocks

# Seven operations: 0, a block of 1 and 2 in three copies, 3, a block of 4 alone in three copies, 5, 6.
PLACES = CopyPlaces.of(7, [Block(first=1, last=2, count=3), Block(first=4, last=4, count=3)])


def test_copies_of_blocks_stand_one_after_the_other():
    assert PLACES.first.tolist() == [0, 1, 2, 7, 8, 11, 12]
    assert list(PLACES) == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0), (4, 0), (4, 1), (4, 2), (5, 0), (6, 0)]
    assert [PLACES.at(2, copy) for copy in range(5)] == [2, 4, 6, 6, 6]
    assert [PLACES.end(op) for op in range(7)] == [0, 5, 6, 7, 10, 11, 12]
    assert [PLACES.together(1, other) for other in range(7)] == [False, True, True, False, False, False, False]
    assert not PLACES.together(0, 3)
    assert [PLACES.pairs(one, other) for one, other in ((1, 4), (4, 1), (1, 2), (0, 4))] == [True, False, False, False]


def test_blocks_of_other_counts_do_not_pair():
    assert not CopyPlaces.of(2, [Block(first=0, last=0, count=2), Block(first=1, last=1, count=3)]).pairs(0, 1)


def test_a_limit_cuts_the_copies_of_every_block():
    limited = CopyPlaces.of(2, [Block(first=0, last=0, count=np.array([5, 9]))], most=4)
    assert limited.count.tolist() == [4, 1]
    assert limited.first.tolist() == [0, 4]


def spans(made, last):
    return [ends.tolist() for ends in PLACES.spans(made, last)]


def test_tensors_live_in_each_copy_or_from_copy_to_copy():
    """Thirteen places; -1 is the beginning, 13 the end."""
    assert spans(None, None) == [[-1], [13]]
    assert spans(None, 3) == [[-1], [7]]
    assert spans(0, 2) == [[0], [6]]
    assert spans(1, 2) == [[1, 3, 5], [2, 4, 6]]
    assert spans(2, 4) == [[2, 4, 6], [8, 9, 10]]
    assert spans(1, 5) == [[1, 3, 5], [11, 11, 11]]
    assert spans(4, None) == [[8, 9, 10], [13, 13, 13]]
    assert [ends.tolist() for ends in CopyPlaces.of(0, []).spans(None, None)] == [[-1], [0]]


def test_as_many_operations_as_can_be_laid_out_and_one_more(exactly):
    CopyPlaces.of(1, [Block(first=0, last=0, count=100_000)]).check("it")
    CopyPlaces.of(100_001, []).check("it")  # nothing repeats
    with pytest.raises(CrossflowError, match=exactly("it, here 100,001 operations, and 100,000 at most; give blocks fewer copies")):
        CopyPlaces.of(1, [Block(first=0, last=0, count=100_001)]).check("it")


# ------------------------------------------------------------------------------------------ programs


def repeated():
    """1 B of weights throughout; a block whose two copies keep 10 B each until the end of a second block; 3 B within each copy of it."""
    program = ProgramBuilder(name="one", dtype="fp16")
    program.hold("weights", 1.0)
    with program.repeat(2):
        made = program.compute("forward", ONE, phase="forward", layer="a")
    with program.repeat(2):
        begun = program.compute("backward", ONE, Pass(moved=2.0), phase="backward", layer="a", after=[made])
        freed = program.compute("update", Pass(moved=4.0), phase="backward", layer="b", after=[begun])
    program.hold("activations", 10.0, made=made, last=freed)
    program.hold("buffers", 3.0, made=begun, last=freed)
    return program.build(samples=4)


def test_memory_is_that_of_the_fullest_moment():
    """Both activations are there while the first copy of the second block has its buffer."""
    assert dict(repeated().memory[0]) == {"weights": 1.0, "activations": 20.0, "buffers": 3.0}


def test_what_is_held_changes_with_the_operations():
    """Places doubled: 1 B; 11 after operation 0; 21; 24 with the buffer; 11 when both go after the update; 14; 1."""
    places, held = repeated().held(0)
    assert places.tolist() == [-2, 0, 2, 4, 7, 8, 11, 13]
    assert held[:, 0].tolist() == [1.0, 11.0, 21.0, 24.0, 11.0, 14.0, 1.0, 0.0]


def test_nothing_is_held_before_the_first_operation_that_makes_something():
    """The second of three makes 5 B, which the third is the last to need: places doubled, and one more after it."""
    program = ProgramBuilder(name="one", dtype="fp16")
    program.compute("first", ONE, layer="a")
    made = program.compute("second", ONE, layer="a")
    last = program.compute("third", ONE, layer="a", after=[made])
    program.hold("activations", 5.0, made=made, last=last)
    places, held = program.build().held(0)
    assert (places.tolist(), held[:, 0].tolist()) == ([-2, 2, 5], [0.0, 5.0, 0.0])
    places, held = program.build().held(1)  # of a class of ranks that holds nothing
    assert (places.tolist(), held[:, 0].tolist()) == ([-2], [0.0])


def test_memory_without_operations_is_a_sum():
    program = ProgramBuilder(name="one", dtype="fp16")
    for kind, size in (("weights", 1.0), ("weights", 2.0), ("gradients", 4.0)):
        program.hold(kind, size)
    assert dict(program.build().memory[0]) == {"weights": 3.0, "gradients": 4.0}


def test_the_fullest_of_several_is_chosen_for_every_point():
    first, second = {"a": np.array([1.0, 5.0]), "b": 1.0}, {"a": 3.0, "c": np.array([0.0, 1.0])}
    assert {kind: size.tolist() for kind, size in fullest([first, second]).items()} == {"a": [3.0, 5.0], "b": [0.0, 1.0], "c": [0.0, 0.0]}
    assert fullest([{"a": 1.0, "b": 1.0}, {"a": 3.0}]) == {"a": 3.0, "b": 0.0}


def test_values_by_operation_layer_and_phase():
    """Kernels 0 and 1 of a, 2 of b: an operation has the sum of its own; often counts copies of blocks."""
    program = repeated()
    values = np.array([[1.0], [10.0], [100.0]])
    assert len(program.kernels) == 3
    assert program.by_op(values, np.zeros((0, 1)))[:, 0].tolist() == [1.0, 11.0, 100.0]
    assert list(program.often) == [2, 2, 2]
    assert program.trains
    assert program.kernel_streams == 1
    assert not program.overlaps


def test_kernels_of_two_streams_overlap_and_those_of_the_host_do_not():
    program = ProgramBuilder(name="one", dtype="fp16")
    program.compute("a", ONE)
    program.compute("b", Pass(moved=2.0), stream="host")
    assert (program.build().kernel_streams, program.build().overlaps, program.build().host_kernels.tolist()) == (2, False, [1])
    program.compute("c", Pass(moved=2.0), stream="side")
    assert (program.build().kernel_streams, program.build().overlaps, program.build().host_kernels.tolist()) == (3, True, [])


def test_everything_comes_after_what_it_waits_for_the_earliest_first():
    assert list(in_order([[3], [], [1, 0], []])) == [1, 3, 0, 2]
    assert list(in_order([[1], [0], []])) == [2]


# ------------------------------------------------------------------------------------------ groups and bytes


def test_ranks_at_even_distances_that_fill_the_devices_are_a_group():
    assert DeviceGroup.of([0, 2, 4, 6], 8) == DeviceGroup(ranks=4, stride=2)
    assert DeviceGroup.of([0, 2, 4, 6], 12) is None
    assert DeviceGroup.of([0, 2, 5], 6) is None
    assert DeviceGroup.of([3], 8) == DeviceGroup(ranks=1, stride=1)


def test_groups_of_points_by_kind_and_by_place():
    sizes = [np.array(values) for values in ([4.0, 2.0, 4.0], [2.0, 2.0, 2.0], [1.0, 3.0, 1.0], [8.0, 8.0, 8.0], [4.0, 2.0, 4.0])]
    given = dict(zip(("size", "per_node", "stride", "devices", "extent"), sizes, strict=True))
    group = Group(**given)
    assert sorted((ranks, node, points.tolist()) for ranks, node, points in group.kinds) == [(2, 2, [1]), (4, 2, [0, 2])]
    assert sorted((place, points.tolist()) for place, points in group.places) == [((1, 4, 8), [0, 2]), ((3, 2, 8), [1])]
    pair = Pair(**given, first=np.zeros(3), last=np.array([1.0, 1.0, 2.0]))
    assert sorted(place for place, _ in pair.places) == [(1, 4, 8, 2, 0, 1), (1, 4, 8, 2, 0, 2), (3, 2, 8, 2, 0, 1)]
    alone = Group.alike(1, 1, 2)
    assert (group.several, alone.several, alone.size.tolist(), alone.per_node.tolist()) == (True, False, [1.0, 1.0], [1.0, 1.0])


def test_a_ring_leaves_a_node_on_one_edge():
    """800 B over 8 ranks: 1400 for an all-reduce, of which a node of 4 sends a quarter out; all of it stays in a node of 8."""
    assert ring_volume("all_reduce", 8) == 1.75
    assert [ring_volume(name, 8) for name in ("all_gather", "reduce_scatter", "all_to_all")] == [0.875] * 3
    assert [ring_volume(name, 8) for name in ("broadcast", "send_recv", "sendrecv")] == [1.0] * 3, "a message goes once"
    assert sent_bytes("all_reduce", np.array([800.0]), 8, 4)[:, 0].tolist() == [1050.0, 350.0]
    assert sent_bytes("all_reduce", np.array([800.0]), 8, 8)[:, 0].tolist() == [1400.0, 0.0]
    assert sent_bytes("all_to_all", np.array([800.0]), 8, 4)[:, 0].tolist() == [300.0, 400.0]
    assert sent_bytes("broadcast", np.array([800.0]), 1, 1)[:, 0].tolist() == [0.0, 0.0]


def test_bytes_of_messages_of_two_groups():
    program, groups = ProgramBuilder(name="one", dtype="fp16"), [Group.alike(2, 2, 1), Group.alike(4, 2, 1)]
    program.send("all_gather", 100.0, groups[0])
    program.send("all_reduce", 100.0, groups[1])
    table = MessageTable.of(program.build().messages, 1)
    assert table.moved[:, :, 0].tolist() == [[50.0, 75.0], [0.0, 75.0]]


# ------------------------------------------------------------------------------------------ kernels


def test_pairs_that_a_mask_and_windows_leave():
    """10 tokens: half the square; a window of 4 over 10 tokens: 4 x (10 - 2); blocks of 4: two whole and one of two, half of each."""
    pairs = [float(masked_pairs(10.0, window, chunked)) for window, chunked in ((0.0, False), (20.0, False), (4.0, False), (4.0, True))]
    assert pairs == [50.0, 50.0, 32.0, (2 * 16 + 4) / 2]


ROWS = [
    # changes, operations, bytes, blocks: 2 samples, 4 heads of 16, 2 of keys and values, 256 queries that see 256 keys, in two bytes
    ({}, 4 * 8 * 256 * 256 / 2 * 16, 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"causal": False}, 4 * 8 * 256 * 256 * 16, 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"backward": True}, 4 * 8 * 256 * 256 / 2 * 16 * 2.5, 2 * 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"window": 64.0}, 4 * 8 * 64 * (256 - 32) * 16, 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"window": 1.0}, 4 * 8 * (256 - 0.5) * 16, 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"window": 64.0, "chunked": True}, 4 * 8 * 4 * 64 * 64 / 2 * 16, 2 * 2 * 16 * 256 * 2 * (4 + 2), 2 * 4 * 2),
    ({"length": 1.0}, 4 * 8 * 256 * 16, 2 * 2 * 16 * (4 * 2 + 2 * 256 * 2), 2 * 2),
    ({"length": 1.0, "stored": "fp8"}, 4 * 8 * 256 * 16, 2 * 2 * 16 * (4 * 2 + 2 * 256 * 1), 2 * 2),
    ({"length": 64.0}, 4 * 8 * (256 * 256 / 2 - 192 * 192 / 2) * 16, 2 * 2 * 16 * 2 * (4 * 64 + 2 * 256), 2 * 4 * 1),
]


@pytest.mark.parametrize(("changes", "flops", "moved", "blocks"), ROWS)
def test_attention_by_hand(changes, flops, moved, blocks):
    given = {"samples": 2.0, "heads": 4.0, "kv_heads": 2.0, "length": 256.0, "seen": 256.0, "width": 16.0, **changes}
    shapes = np.array([given.get(name, 0.0) for name in ("samples", "heads", "kv_heads", "length", "seen", "width", "window")])
    found = attention_sizes(shapes[:, None, None], 2.0, [Attention(**given)])
    assert found[:, 0, 0].tolist() == [near(flops), near(moved), blocks]


def test_work_that_a_kernel_states_stands_beside_work_that_follows_from_sizes():
    stated = Attention(samples=1.0, heads=1.0, length=8.0, seen=8.0, width=16.0, work=(7.0, 8.0, 9.0))
    plain = Attention(samples=1.0, heads=1.0, length=8.0, seen=8.0, width=16.0, causal=False)
    shapes = np.array([[[1.0]] * 2, [[1.0]] * 2, [[1.0]] * 2, [[8.0]] * 2, [[8.0]] * 2, [[16.0]] * 2, [[0.0]] * 2])
    found = attention_sizes(shapes, 2.0, [plain, stated])
    assert found[..., 0].T.tolist() == [[4 * 64 * 16, 2 * 16 * (8 + 8) * 2, 1.0], [7.0, 8.0, 9.0]]


def scanned(**flags):
    """2 samples of 512 tokens, 8 heads of 32 elements, 4 groups, a state of 16, chunks of 64, in two bytes."""
    given = {"samples": 2.0, "heads": 8.0, "groups": 4.0, "length": 512.0, "width": 32.0, "state": 16.0, "chunk": 64.0}
    return scan_sizes(np.array(list(given.values()))[:, None, None], 2.0, [Scan(**given, **flags)])[:, 0, 0].tolist()


def test_a_scan_of_state_space_duality_by_hand():
    """Half of two products of pairs: C B^T of 4 groups over 16, (L o C B^T) X of 8 heads over 32; two products of the states of 16 x 32."""
    flops = 1024 * (64 * (16 * 4 + 32 * 8) + 2 * 2 * 16 * 32 * 8)
    elements = 3 * 8 * 32 + 4 * 4 * 16 + 8
    states = 8 * 32 * 16 / 64 * (4 * 2 + 2 * 2)
    moved = 1024 * (2 * elements + 64 * 4 * 2 * 4 + states + 24 * 8)
    assert scanned() == [near(flops), near(moved), near(1024 * 2 * (2 * 8 * 32 + 2 * 4 * 16 + 8)), 2 * 8 * 8, 5]


def test_a_scan_of_the_delta_rule_by_hand():
    """Three products of pairs over the state of each head, two over its width, three with the state, a third of a cube of the chunk."""
    flops = 1024 * (64 * (16 * 3 * 8 + 32 * 8 * 2) + 2 * 3 * 16 * 32 * 8 + 8 * 64**2 / 3)
    elements = 6 * 8 * 32 + 5 * 4 * 16 + 2 * 8 * 16 + 8
    states = 8 * 32 * 16 / 64 * (2 * 2)
    moved = 1024 * (2 * elements + 64 * (4 * 2 * 8 + 2 * 2 * 8) + states + 24 * 8)
    assert scanned(delta=True) == [near(flops), near(moved), near(1024 * 2 * (2 * 8 * 32 + 2 * 4 * 16 + 2 * 8)), 2 * 8 * 8, 6]


def test_rows_of_programs_are_shared_where_they_are_equal():
    program = ProgramBuilder(name="one", dtype="fp16", shared=True, axes={"dp": 2})
    for size in (8.0, 8.0, 4.0):
        program.compute("product", Product(m=size, n=8.0, k=8.0))
        program.send("all_reduce", size, ["dp"])
    built = program.build()
    assert ([one.m for one in built.kernels], [one.size for one in built.messages]) == ([8.0, 4.0], [8.0, 4.0])
    assert built.rows == ((0,), (2,), (0,), (2,), (1,), (3,))
    assert (built.devices, built.classes, built.ranks) == (2, 1, {"dp": 2})


@pytest.mark.parametrize("narrow", [True, False])
def test_products_alone_keep_to_16_bits_in_programs_that_multiply_in_fewer(narrow):
    kernels = (Product(m=8.0, n=8.0, k=8.0, wide=True), ONE, Product(m=8.0, n=8.0, k=8.0), Attention(samples=1.0, heads=1.0, length=8.0,
        seen=8.0, width=8.0, causal=True, stored=""))  # fmt: skip
    found = {place: table.wide for table in kernel_tables(kernels, 2.0, narrow=narrow) for place in table.places.tolist()}
    assert found == {0: narrow, 1: False, 2: False, 3: False}


def test_sizes_that_are_alike_at_all_points_are_priced_once():
    same, other = np.full(3, 64.0), np.array([32.0, 64.0, 96.0])
    program = ProgramBuilder(name="one", dtype="fp16", shared=True, axes={"dp": 2})
    program.compute("product", Product(m=same, n=8.0, k=8.0))
    program.compute("pass", Pass(moved=other))
    program.compute("look-up", Lookup(samples=same, tables=1.0, rows=1000.0, width=32.0, pooling=4.0, distinct=np.array([0.5, 1.0, 0.5])))
    points = {table.kind: table.sizes.shape[-1] for table in program.build().kernel_tables}
    assert points == {Product: 1, Pass: 3, Lookup: 3}


@pytest.mark.parametrize(
    ("message", "calls", "kernels", "stream"),
    [(0, 1, (), NETWORK), (None, 1, (), HOST), (None, 1, (0,), COMPUTE), (None, 0, (0,), COMPUTE), (None, 0, (), COMPUTE)],
)
def test_an_operation_without_a_stream_runs_where_its_work_does(message, calls, kernels, stream):
    assert _stream(SimpleNamespace(message=message, calls=calls, kernels=kernels)) == stream
