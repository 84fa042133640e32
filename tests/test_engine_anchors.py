"""Kinds of ranks, shared devices and blocks as matrices worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.engine.events import run_shared, run_tasks
from crossflow.engine.kinds import _groups, _sets, kinds_of
from crossflow.engine.maxplus import NO_PATH, applied, chained, repeated
from crossflow.engine.runs.unit_sums import UnitSums
from crossflow.engine.tasks import BODY, FIRST, FURTHER, TAIL, PriceRows
from crossflow.parallel.tables import OF
from crossflow.program.builder import ProgramBuilder
from crossflow.program.groups import DeviceGroup
from crossflow.program.program import HOST_TIMES

RANKS = np.arange(8).reshape(1, 2, 4)  # one class of two times four devices


def program(*among):
    built = ProgramBuilder(name="one", dtype="fp16", axes={"a": 2, "b": 4}, groups={"g": DeviceGroup(ranks=2, stride=2)})
    for axes in among:
        built.send("all_reduce", 8.0, axes)
    return built.build()


def test_groups_of_devices_by_hand():
    """Along an axis those that differ in it alone; of a group of two devices two apart 0 and 2, 1 and 3, 4 and 6, 5 and 7."""
    assert _groups(program(), RANKS, ("a",)).tolist() == [[[0, 1, 2, 3], [0, 1, 2, 3]]]
    assert _groups(program(), RANKS, ("b",)).tolist() == [[[0, 0, 0, 0], [1, 1, 1, 1]]]
    assert _groups(program(), RANKS, ("a", "b")).tolist() == [[[0] * 4, [0] * 4]]
    assert _groups(program(), RANKS, ("g",)).tolist() == [[[0, 1, 0, 1], [2, 3, 2, 3]]]


def test_a_slow_device_tells_apart_those_that_meet_it():
    """Device 5 is slow; along b it meets 4, 6 and 7, in its group 7 alone, along both axes all."""
    speed = np.where(RANKS == 5, 0.5, 1.0)
    assert kinds_of(program(["b"]), [speed], RANKS).of.tolist() == [[[0] * 4, [1, 2, 1, 1]]]
    assert kinds_of(program(["g"]), [speed], RANKS).of.tolist() == [[[0] * 4, [0, 1, 0, 2]]]
    assert kinds_of(program(["a", "b"]), [speed], RANKS).of.tolist() == [[[0] * 4, [0, 1, 0, 0]]]
    assert kinds_of(program(["b"]), [np.ones(RANKS.shape)], RANKS).of.max() == 0
    assert kinds_of(program(["b"]), [speed], RANKS, apart=True).of.tolist() == RANKS.tolist()


def test_what_kinds_meet():
    found = kinds_of(program(["b"], ["a"]), [np.where(RANKS == 5, 0.5, 1.0)], RANKS)
    assert found.of.tolist() == [[[0, 1, 0, 0], [2, 3, 2, 2]]]
    assert [sorted(found.group(kind, frozenset({0}), ("b",))) for kind in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [sorted(found.group(kind, frozenset({0}), ("a",))) for kind in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert found.members(2).tolist() == [4, 6, 7]
    assert found.value(RANKS * 10).tolist() == [0, 10, 40, 50]
    assert found.classes == (0, 0, 0, 0)


def test_sets_of_kinds_in_groups_count_each_kind_once():
    """Two groups of kinds 0, 0, 1 and 0, 1, 1 hold the same; a third of 0 alone does not."""
    found, groups = np.array([[0, 0, 1, 0, 1, 1, 0, 0, 0]]), np.array([[0, 0, 0, 1, 1, 1, 2, 2, 2]])
    sets = _sets(found, groups)[0]
    assert (sets[0] == sets[5], sets[0] == sets[8], len(set(sets[:6].tolist()))) == (True, False, 1)


def test_groups_of_other_classes_are_apart():
    """Both classes call their group 0; kinds 0 and 1 are in that of the first, kind 0 alone is in that of the second."""
    sets = _sets(np.array([[0, 1], [0, 0]]), np.array([[0, 0], [0, 0]]))
    assert (sets[0, 0] == sets[0, 1], sets[1, 0] == sets[1, 1], sets[0, 0] == sets[1, 0]) == (True, True, False)


def test_rows_of_prices_by_hand():
    """Three kernels, two messages, then calls of the host, then four parts of every kernel: launches first, then their time."""
    rows = PriceRows(kernels=3, messages=2)
    first = 3 + 2 + len(HOST_TIMES)
    assert [rows.part(which, 0) for which in (FIRST, FURTHER, BODY, TAIL)] == [first, first + 3, first + 6, first + 9]
    assert [rows.call(name) for name in HOST_TIMES] == list(range(5, first))
    assert [row for row in range(first + 12) if rows.computes([row])] == [0, 1, 2, *range(first + 6, first + 12)]
    assert [row for row in range(first + 12) if rows.issues([row])] == list(range(first, first + 6))


def test_kernels_that_share_a_device_by_hand():
    """Launches of 1 s; then kernels of 1 and 3 s halve the device until 3 s, and the rest of the second has it alone."""
    ends = run_shared([1.0, 1.0, 0.0], [1.0, 3.0, 2.0], [(), (), (0, 1)], ["d", "d", "d"], {"d": 2})
    assert ends.tolist() == [3.0, 5.0, 7.0]
    assert run_shared([1.0, 1.0], [1.0, 3.0], [(), ()], ["d", "d"], {"d": 1}).tolist() == [2.0, 6.0]
    assert run_shared([0.0, 2.0], [4.0, 1.0], [(), ()], ["d", "d"], {"d": 2}).tolist() == [5.0, 4.0]


def test_tasks_that_take_several_resources_start_on_all_at_once():
    start, end = run_tasks([2.0, 3.0, 1.0], [(), (), ()], ["x", "y", "x"], also={2: ["y"]})
    assert (start.tolist(), end.tolist()) == ([0, 0, 3], [2, 3, 4])
    start, _ = run_tasks([2.0, 1.0, 1.0], [(), (0,), ()], ["x", "x", "x"], in_order=False)
    assert start.tolist() == [0, 2, 3]
    start, _ = run_tasks([2.0, 1.0, 1.0], [(), (), ()], ["x", "x", "x"], slots=2)
    assert start.tolist() == [0, 0, 1]


def matrix(rows):
    return np.array(rows, dtype=float)[..., None]


def test_blocks_as_matrices_by_hand():
    """The first stream takes 1; the second waits for it and takes 2, or for itself and takes 5."""
    block = matrix([[1, NO_PATH], [2, 5]])
    assert applied(block, np.array([[0.0], [0.0]]))[:, 0].tolist() == [1, 5]
    assert chained(block, block)[..., 0].tolist() == [[2, NO_PATH], [7, 10]]
    assert repeated(block, 3, np.array([[10.0], [0.0]]))[:, 0].tolist() == [13, 22]  # 10 + 2 + 5 + 5, or 15 in all
    assert repeated(block, np.array([3]), np.array([[10.0], [0.0]]))[:, 0].tolist() == [13, 22]
    assert repeated(matrix([[4]]), 5, np.array([[1.0]]))[0, 0] == 21
    assert repeated(block, 0, np.array([[10.0], [0.0]]))[:, 0].tolist() == [10, 0]


def sums(*, weight=(2.0, 1.0), split=False):
    """Of one unit: kernels of two resources, an all-gather and an all-reduce that block, and 4 s and 1 s of them beside its gradients."""
    blocking, hides = np.zeros((len(OF), 2, 1, 1)), np.zeros((len(OF), 1, 1))
    blocking[OF["all_gather"]], blocking[OF["all_reduce"]] = np.array([[[1.0]], [[2.0]]]), np.array([[[10.0]], [[20.0]]])
    hides[OF["all_gather"]], hides[OF["all_reduce"]] = 4.0, 1.0
    passes = SimpleNamespace(
        device=np.array([[3.0, 6.0], [4.0, 8.0]])[..., None, None], weight=np.array(weight)[:, None, None], blocking=blocking, hides=hides,
        hides_use=np.array([1.0, 3.0, 9.0, 9.0, 9.0])[:, None, None], host=np.array([0.1, 0.2])[:, None, None],
        host_weight=np.array([[0.3]]), use=None, spare=np.full((2, 2, 1, 1), 0.5),
    )  # fmt: skip
    one = np.ones((1, 1))
    state = SimpleNamespace(
        gather=one, scatter=np.array([one, 2 * one]), reduce=np.array([one, 4 * one]), regather=7 * one, update=8 * one, copies=None,
        gather_use=None, scatter_use=None, reduce_use=None, regather_use=None,
    )  # fmt: skip
    return UnitSums.of(SimpleNamespace(passes=passes, state=state), np.array([split]))


def test_collectives_beside_gradients_show_what_these_do_not_hide():
    """5 s beside 3 s of gradients: two fifths show. Where gradients are slots of their own all do; beside 8 s none does."""
    found = sums()
    assert found.device[:, 0, 0].tolist() == [7, 14, 3]
    assert found.host[:, 0, 0].tolist() == [0.1, 0.2, 0.3]
    assert found.shown[0, 0] == 0.4
    assert found.blocks[:, 0, 0].tolist() == pytest.approx([11, 22 + 2, 3])
    assert found.gathers[:, 0, 0].tolist() == pytest.approx([1, 2 + 0.4 * 4])
    assert [value.item() for value in (found.gather, found.scatter, found.reduce, found.regather, found.update)] == [1, 3, 5, 7, 8]
    assert found.spare.ravel().tolist() == [0.5] * 4
    split, beside = sums(split=True), sums(weight=(2.0, 6.0))
    assert (split.blocks[:, 0, 0].tolist(), split.gathers[:, 0, 0].tolist()) == ([11, 27, 0], [1, 6])
    assert (beside.blocks[:, 0, 0].tolist(), beside.gathers[:, 0, 0].tolist()) == ([11, 22, 5], [1, 2])


def test_what_hides_could_be_longer_by_what_is_left_beside_it():
    """8 s of gradients leave 3 s beside 5 s, of which messages inside a node have a quarter; 20 s leave as much as the messages take."""
    assert sums(weight=(2.0, 6.0)).spare[..., 0, 0].tolist() == [[0.5, 0.5 + 0.75], [0.5, 0.5 + 2.25]]
    assert sums(weight=(2.0, 18.0)).spare[..., 0, 0].tolist() == [[0.5, 0.5 + 1.25], [0.5, 0.5 + 3.75]]
    assert sums(weight=(2.0, 6.0), split=True).spare.ravel().tolist() == [0.5] * 4
