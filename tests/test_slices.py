"""Slices of a torus: which there are, their rings, their links, and what collectives take in them."""

import itertools
import math

import numpy as np
import pytest

import crossflow
from crossflow.hardware.mapping.placement import place
from crossflow.hardware.mapping.slices import SliceGround, slice_ground
from crossflow.hardware.mapping.topology import Network, Topology
from crossflow.program.collectives import FLOWS

POD = SliceGround(box=(4, 4, 4), wrapped=(True,) * 3, cubes=64, optical=True, kind="torus3d", level="intra", ports=6)
FLAT = SliceGround(box=(16, 8), wrapped=(True, True), cubes=1, optical=False, kind="torus2d", level="inter", ports=4)


def slice_of(ground, shape):
    """The topology of a slice."""
    kind = {1: "ring", 2: "torus2d", 3: "torus3d"}[len(shape)]
    return Topology(kind=kind, nodes=math.prod(shape), shape=shape, wrapped=ground.rings(shape), ports=ground.ports)


def test_slices_of_cubes_are_tori_and_smaller_ones_meshes():
    # Cloud documentation of TPU v4 and v5p: a cube of 4x4x4 and more has all links of a torus, a smaller slice is a mesh.
    assert [POD.rings(shape) for shape in ((4, 4, 4), (4, 8, 12))] == [(True,) * 3] * 2
    assert [POD.rings(shape) for shape in ((2, 4, 4), (1, 1, 1))] == [(False,) * 3] * 2
    assert all(POD.refusal(shape) is None for shape in ((4, 4, 4), (16, 16, 16), (2, 2, 1), (4, 4, 256)))


def test_a_slice_without_optical_switches_has_rings_along_the_sides_that_it_spans():
    assert [FLAT.rings(shape) for shape in ((16, 8), (16, 4), (8, 8), (4, 4))] == [(True,) * 2, (True, False), (False, True), (False,) * 2]


@pytest.mark.parametrize(
    ("ground", "shape", "sentence"),
    [
        (POD, (4, 4), "a slice of 4x4x4 has 3 sizes, 4x4 has 2"),
        (POD, (4, 4, 6), "a slice of 4x4x6 does not fit into 4x4x4; a slice is part of a cube of 4x4x4, or of whole cubes"),
        (POD, (16, 16, 20), "a slice of 16x16x20 needs 80 cubes, and there are 64"),
        (FLAT, (8, 16), "a slice of 8x16 does not fit into 16x8"),
    ],
)
def test_a_slice_that_cannot_be_says_why(ground, shape, sentence):
    assert ground.refusal(shape) == sentence


def test_devices_have_the_slice_most_like_a_cube():
    # As the table of slices in the documentation of TPU v5p lists them.
    table = {4: (1, 2, 2), 8: (2, 2, 2), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 2048: (8, 16, 16)}
    assert {devices: POD.shape_of(devices) for devices in table} == table
    assert [POD.shape_of(devices) for devices in (5, 65, 8192)] == [None] * 3
    assert (FLAT.shape_of(128), FLAT.shape_of(64), FLAT.shape_of(17)) == ((16, 8), (8, 8), None)


def test_a_slice_is_turned_only_where_it_stays_the_same():
    assert set(POD.turns((1, 2, 4))) == set(itertools.permutations((1, 2, 4)))
    assert FLAT.turns((4, 2)) == ((4, 2), (2, 4))
    assert FLAT.turns((4, 8)) == ((4, 8),)  # 8x4 would have no ring
    assert FLAT.turns((16, 2)) == ((16, 2),)


def test_a_system_says_what_is_cut():
    pod = crossflow.from_dict(
        {"system": {"template": "tpu-v4-pod", "nodes": 64}, "workload": {"model": "lstm-16k", "dtype": "bf16"}, "strategy": "d4096"}
    ).system
    assert slice_ground(pod.network, *pod.mesh) == POD
    box = crossflow.from_dict({"system": {"template": "dgx-h100", "nodes": 2}, "workload": "lstm-16k", "strategy": "d16"}).system
    assert slice_ground(box.network, *box.mesh) is None


# ------------------------------------------------------------------------------------------ laws


COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast")


def spreads(topology, ranks):
    """What each collective takes of the links of a slice, along each of two axes."""
    placed = place({"tp": ranks, "dp": topology.nodes // ranks}, Network(package=topology))
    found = {axis: placed.route(axis).package_spread for axis in ("tp", "dp")}
    return {(axis, what): one.of(FLOWS[what]) for axis, one in found.items() if one is not None for what in COLLECTIVES}


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 4, 8), (8, 4), (2, 2), (3, 5), (8,)])
def test_rings_never_make_a_collective_slower(shape):
    kind, nodes = {1: "ring", 2: "torus2d", 3: "torus3d"}[len(shape)], math.prod(shape)
    for ranks in (one for one in (2, 4, nodes // 2) if nodes % one == 0 and one < nodes):
        cases = {
            wrapped: spreads(Topology(kind=kind, nodes=nodes, shape=shape, wrapped=wrapped, ports=6), ranks)
            for wrapped in itertools.product((False, True), repeat=len(shape))
        }
        for less, more in itertools.product(cases, repeat=2):
            if all(b or not a for a, b in zip(less, more, strict=True)):
                assert all(cases[more][key] <= cases[less][key] * (1 + 1e-12) for key in cases[less])
        lines, rings = cases[(False,) * len(shape)], cases[(True,) * len(shape)]
        assert any(rings[key] < lines[key] for key in lines)


TRAINING = {"workload": {"model": "llama3-8b", "global_batch": 64}}


@pytest.mark.cases(1)
@pytest.mark.parametrize("strategy", ["tp4-dp16-z3-full", "tp8-dp8-z3-full", "tp16-dp4-z3-full", "tp4-pp4-dp4-full"])
def test_a_cube_whose_rows_are_rings_is_never_slower(strategy):
    cube = {"template": "tpu-v4-pod", "devices": 64}
    systems = ({**cube, "network": {"intra": {"wraps": [wraps] * 3}}} for wraps in (True, False))
    rings, lines = (crossflow.evaluate(crossflow.from_dict({**TRAINING, "strategy": strategy, "system": one})) for one in systems)
    assert float(rings.step_time[0]) < float(lines.step_time[0])


@pytest.mark.parametrize(("ground", "shape"), [(FLAT, (4, 4)), (FLAT, (16, 4)), (FLAT, (8, 8)), (FLAT, (16, 8)), (FLAT, (1, 8))])
def test_links_of_a_slice_are_links_of_the_torus_between_its_devices(ground, shape):
    whole, own = Topology(kind=ground.kind, nodes=math.prod(ground.box), shape=ground.box), slice_of(ground, shape)
    number = np.array([[1, ground.box[0]] @ np.array(own.coordinates(node)) for node in range(own.nodes)])
    inside = {pair: width for pair, width in whole.links.items() if set(pair) <= set(number.tolist())}
    assert {(int(number[a]), int(number[b])): width for (a, b), width in own.links.items()} == inside
