"""Tiling: traffic between its bounds, tiles that fit, near a dense search, and never slower on a better hierarchy."""

import dataclasses
import itertools

import numpy as np
import pytest
from dense import search
from products import gemm_costs, half_costs
from sampled import fewer

from crossflow.cost import tiling
from crossflow.cost.tiling import EVEN_RODS, RODS, register_accesses, room, steps, tile, traffic_by_level
from crossflow.cost.waves import padded
from crossflow.hardware.architecture.model import Level
from crossflow.program.kernels import Product

SHAPES = [
    (512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096), (16384, 16384, 16384), (64, 8192, 16384), (16384, 64, 8192), (8192, 16384, 64),
    (4096, 32768, 4096), (2048, 4096, 8192), (32, 32768, 65536), (32, 16384, 800000), (1000, 3000, 777), (1, 16384, 16384),
]  # fmt: skip
ELEMENT = 2.0
COARSE = ((40, 1.1), (24, 1.15), (16, 1.2))  # cuts that the dense search tries here; its own change no figure below


def column(*values):
    return [np.array([[float(value)]]) for value in values]


def delivered(m, n, k, levels):
    """Bytes that l1, l2 and memory deliver."""
    return traffic_by_level(*column(m, n, k), ELEMENT, levels)[:, 0, 0]


def with_bandwidth(device, **factors):
    """The device with some levels faster by a factor."""
    levels = tuple(dataclasses.replace(level, bandwidth=level.bandwidth * factors.get(level.name, 1.0)) for level in device.levels)
    return dataclasses.replace(device, levels=levels)


def seconds(shape, device):
    return gemm_costs([Product(m=shape[0], n=shape[1], k=shape[2])], device, "fp16", 2).time[0, 0]


def every_product():
    rng = np.random.default_rng(0)
    return [*SHAPES, *(tuple(float(size) for size in np.round(2 ** rng.uniform(0, 15, 3))) for _ in range(200))]


def test_traffic_is_never_below_compulsory(v100):
    """Each operand is read, and C written, at least once at every level."""
    for m, n, k in every_product():
        least = ELEMENT * (m * k + k * n + m * n)
        assert (delivered(m, n, k, v100.levels) >= least * (1 - 1e-9)).all()


def test_traffic_is_never_above_no_reuse(v100):
    """Two reads a multiplication, and C read and written each time."""
    for m, n, k in every_product():
        assert (delivered(m, n, k, v100.levels) <= ELEMENT * 4 * m * n * k).all()


def test_main_memory_traffic_of_what_fits_the_cache_is_compulsory(v100):
    """512^3 in fp16 is 1.5 MiB, the L2 holds 6."""
    assert delivered(512, 512, 512, v100.levels)[-1] == pytest.approx(ELEMENT * 3 * 512**2, rel=1e-9)


def test_traffic_falls_with_the_square_root_of_the_cache(v100):
    """Hong and Kung 1981: at best 2 m n k / sqrt(S); ours stays within a factor of two, for caches over four decades."""
    for capacity in 10.0 ** np.arange(4, 8):
        levels = (dataclasses.replace(v100.levels[2], capacity=np.array([capacity * ELEMENT])), v100.levels[3])
        moved = delivered(2**14, 2**14, 2**14, levels)[0] / ELEMENT
        bound = 2 * (2**14) ** 3 / np.sqrt(capacity)
        assert bound <= moved <= 2 * bound


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_every_tile_fits_its_capacity_and_its_block(levels):
    """Sides are no longer than those of the block outside; a tile of less than one element a side stands for the smallest."""
    rng = np.random.default_rng(0)
    outer = np.exp(rng.uniform(0, 10, (3, 1, 500))).astype(np.float32)
    for step in steps(levels):
        block, room = outer[:, step.outer], np.float32(3e5)
        ones, how = np.ones(500, np.float32), {"fill": levels > 1, "last": levels == 1}
        (m, n, k), _ = tile(outer, room * ones, step, ones, 0.0 * ones, **how)
        assert (m * n + n * k + m * k <= room * (1 + 1e-5)).all()
        for side, whole in zip((m, n, k), block, strict=True):
            assert (side <= whole * (1 + 1e-6)).all()
        outer = np.stack((m, n, k))[:, 0]


def test_a_rod_in_an_endless_block_is_square_across_and_as_long_as_the_rest_of_its_room():
    """Room for 1e6 elements: across t = thin 1000, along (1e6 - t^2) / 2 t, for two faces of t by that and one of t by t."""
    (step,), ones = (tried for tried in steps(3) if tried.rods), np.ones(1, np.float32)
    endless = np.full((3, 1, 1), 1e9, np.float32)
    tiles, _ = tile(endless, 1e6 * ones, step, ones, 0.0 * ones, fill=False, last=False)
    assert step.rods == len(RODS) + len(EVEN_RODS)
    for (along, *across), (thin,), at in [(*rod[:2], at) for at, rod in enumerate((*RODS, *EVEN_RODS), -step.rods)]:
        assert tiles[across, 0, at, 0] == pytest.approx(1e3 * thin, rel=1e-5)
        assert tiles[along, 0, at, 0] == pytest.approx((1e6 - (1e3 * thin) ** 2) / (2e3 * thin), rel=1e-5)


# ------------------------------------------------------------------------------------------ against a dense search


def hierarchy(sizes, units, bandwidths):
    """Registers, L1, L2 [B] and memory; bandwidths of L1, L2 and memory [B/s]."""
    levels, instances = (*sizes, 1e12), (8 * units, units, 1.0, 1.0)
    scopes, rates = ("mcu", "bundle", "global", "global"), (1e18, *bandwidths)
    of = zip(("registers", "l1", "l2", "memory"), scopes, levels, instances, rates, strict=True)
    one = {"latency": np.zeros(1), "energy": np.ones(1)}
    return tuple(
        Level(name=n, scope=s, capacity=np.array([c]), instances=np.array([i]), bandwidth=np.array([b]), **one) for n, s, c, i, b in of
    )


def drawn(count, seed):
    """Products, every third with thin sides, on hierarchies with few to many units, small to large L1 and L2."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        shape = np.round(2.0 ** rng.uniform([0 if i % 3 == 0 else 4, 4, 4], 16))
        low, high = np.log([[2**14, 2**16, 2**19, 4, 16e12, 0.55e12, 0.8e12], [2**17, 2**21, 2**27, 5000, 158e12, 6e12, 3.3e12]])
        registers, l1, l2, units, *bandwidths = np.exp(rng.uniform(low, high))
        yield rng.permutation(shape), hierarchy((registers, l1, l2), np.round(units), bandwidths)


def error(shape, levels):
    """Time of the slowest level over that by a dense search over nested tiles of even cuts, less 1."""
    costs = [ELEMENT / level.bandwidth[0] for level in levels[1:]]
    rooms = [float(np.ravel(room(level, np.prod(shape), ELEMENT))[0]) for level in levels[:-1]]
    dense = np.prod(shape) * search(tuple(shape), shape[2], rooms[::-1], costs[::-1], sizes=COARSE)
    return max(delivered(*shape, levels) / ELEMENT * costs) / dense - 1


@pytest.mark.thorough
@pytest.mark.slow
def test_traffic_is_that_of_a_dense_search():
    """On 1,000 draws of five kinds: mean +0.3 %, mean size 1.3 %, 95 % within 6.8 %, worst -19 and +20 %."""
    errors = np.array([error(shape, levels) for shape, levels in drawn(fewer(40, 20), seed=5)])
    assert abs(errors.mean()) < 0.01
    assert abs(errors).mean() < 0.02
    assert np.quantile(abs(errors), 0.95) < 0.08
    assert abs(errors).max() < 0.25


def test_an_operand_a_little_over_a_cache_is_cut_into_whole_tiles(v100):
    """C of 1024 x 1024 stays in a cache of 0.7 of that in two parts, so A crosses twice; a cache of four times that holds it."""
    levels = (dataclasses.replace(v100.levels[2], capacity=np.array([0.7, 4.0]) * 1024**2 * ELEMENT), v100.levels[3])
    crossing = traffic_by_level(*column(1024, 1024, 2**20), ELEMENT, levels)[0, 0] / (ELEMENT * (2 * 1024 * 2**20 + 1024**2))
    assert crossing == pytest.approx([1.5, 1.0], rel=0.01)


@pytest.mark.parametrize("shape", [(88, 80, 47), (1033, 1604, 584), (2048, 512, 65536)])
def test_traffic_falls_smoothly_while_a_cache_grows_to_hold_an_operand(v100, shape):
    """2,000 capacities from a fortieth to five times the smallest operand: no step upwards, none of more than 0.9 %."""
    m, n, k = shape
    capacity = np.geomspace(1 / 40, 5.0, 2000) * min(m * n, n * k, m * k) * ELEMENT
    levels = (dataclasses.replace(v100.levels[2], capacity=capacity), v100.levels[3])
    steps = np.diff(np.log(traffic_by_level(*column(*shape), ELEMENT, levels)[0, 0]))
    assert steps.max() < 1e-5
    assert steps.min() > -0.009


# ------------------------------------------------------------------------------------------ laws


def changed(levels, name, field, factor):
    return tuple(dataclasses.replace(one, **{field: getattr(one, field) * factor}) if one.name == name else one for one in levels)


def random_device(device, count, names):
    """Hierarchies of some of the levels, drawn over more than any design reaches, `count` points."""
    rng = np.random.default_rng(len(names))
    ranges = {
        "registers": (2**13, 2**18, 2e13, 4e14),
        "l1": (2**15, 2**20, 8e12, 1e14),
        "l2": (2**19, 2**28, 5e11, 1e13),
        "memory": (1, 2, 5e11, 1e13),
    }
    drawn = {
        name: np.exp(rng.uniform(*np.log(np.reshape(of, (2, 2)).T)[:, :, None], (2, count))) for name, of in ranges.items() if name in names
    }
    levels = (
        dataclasses.replace(one, capacity=drawn[one.name][0], bandwidth=drawn[one.name][1]) for one in device.levels if one.name in names
    )
    return dataclasses.replace(device, levels=tuple(levels), throughput={"fp16": np.exp(rng.uniform(*np.log([5e13, 2e15]), count))})


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("names", [("l1", "memory"), ("registers", "l2", "memory"), ("registers", "l1", "l2", "memory")], ids=len)
def test_no_product_is_slower_with_more_capacity_or_bandwidth(v100, names):
    """At any level, on 500 hierarchies; within 1e-4, as a tile that grows outside may leave less room for a side inside."""
    device, shapes = random_device(v100, 500, names), np.round(2 ** np.random.default_rng(1).uniform(0, 16, (3, 8, 500)))
    before = half_costs(*shapes, device).time
    for one, field, factor in itertools.product(device.levels, ("capacity", "bandwidth"), (1.01, 3.0)):
        after = half_costs(*shapes, dataclasses.replace(device, levels=changed(device.levels, one.name, field, factor))).time
        assert (after <= before * (1 + 1e-4)).all(), (one.name, field)


def test_energy_rises_with_a_bandwidth_only_where_time_falls(v100):
    """Of tilings that are as fast, the one whose traffic takes the least energy is taken; a faster tiling may take more."""
    device = random_device(v100, 500, ("registers", "l1", "l2", "memory"))
    shapes = np.round(2 ** np.random.default_rng(1).uniform(4, 16, (3, 8, 500)))
    before = half_costs(*shapes, device)
    for one in device.levels:
        after = half_costs(*shapes, dataclasses.replace(device, levels=changed(device.levels, one.name, "bandwidth", 1.4)))
        as_fast = after.time - after.launch > (before.time - before.launch) * (1 - 1e-4)
        assert (after.energy <= before.energy * 1.01)[as_fast].all(), one.name


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["registers", "l1", "l2"])
def test_time_does_not_jump_in_a_sweep_of_a_capacity(v100, name):
    """400 values from a quarter to four times: no step of more than 2 %, and none upwards."""
    for shape in every_product()[::5]:
        swept = dataclasses.replace(v100, levels=changed(v100.levels, name, "capacity", np.geomspace(0.25, 4.0, 400)))
        time = gemm_costs([Product(m=shape[0], n=shape[1], k=shape[2])], swept, "fp16", 2).time
        jumps = np.diff(np.log(np.broadcast_to(time, (1, 400))[0]))
        assert jumps.min() > -0.02
        assert jumps.max() < 1e-4


@pytest.mark.slow
def test_operands_may_be_exchanged(v100):
    """C^T = B^T A^T takes as long."""
    for m, n, k in every_product():
        assert seconds((m, n, k), v100) == pytest.approx(seconds((n, m, k), v100), rel=1e-5)


def test_tilings_that_are_as_one_before_change_no_choice_under_a_power_limit():
    rng, asked = np.random.default_rng(3), []
    tilings = rng.uniform(1.0, 1.000004, (4, 2, 5, 30))  # so near that the least energy decides among many
    tilings[2, ..., ::2], tilings[3, ..., ::3] = tilings[0, ..., ::2], tilings[1, ..., ::3]

    def price(traffic, within):
        asked.append(within)
        time, energy = traffic.max(axis=0), traffic.sum(axis=0)
        left = False if within is None else time > within
        return np.where(left, np.inf, time), np.where(left, np.inf, energy)

    nothing = np.zeros(1)
    limit = tiling.PowerLimit(power=nothing, switched=nothing, nearest=nothing, compute=nothing, least=nothing, price=price)
    time, energy = tilings.max(axis=1), tilings.sum(axis=1)
    best = np.where(time <= time.min(axis=0) * (1.0 + tiling.TIE), energy, np.inf).argmin(axis=0)
    assert (tiling._within(limit, tilings) == np.choose(best[None], tilings)).all()
    assert [within.astype(bool).mean() for within in asked[1:]] == [1.0, 0.5, pytest.approx(2 / 3)]


def test_spared_energy_never_costs_time(v100):
    """A product that computing binds takes the tiles of the least energy: with a level much dearer, no more of it."""
    big = [Product(m=8192, n=8192, k=8192)]
    fast = with_bandwidth(v100, registers=100.0, l1=100.0, l2=100.0, memory=100.0)
    dear = dataclasses.replace(fast, levels=changed(fast.levels, "memory", "energy", 100.0))
    plain, spared = (gemm_costs(big, device, "fp16", 2) for device in (fast, dear))
    assert spared.time[0, 0] == pytest.approx(plain.time[0, 0], rel=1e-3)
    assert spared.traffic[-1, 0, 0] <= plain.traffic[-1, 0, 0]


@pytest.mark.slow
def test_a_narrower_b_is_no_slower(v100):
    """Int4 weights under fp16; every operand crosses every level at least once."""
    for m, n, k in every_product():
        full, less = (half_costs(*column(m, n, k), v100, second=np.array([[second]])) for second in (1.0, 0.25))
        assert less.time[0, 0] <= full.time[0, 0] * (1 + 1e-3)
        assert (less.traffic[1:, 0, 0] >= ELEMENT * (m * k + 0.25 * k * n + m * n) * (1 - 1e-9)).all()


# ------------------------------------------------------------------------------------------ limits


def test_endless_bandwidth_leaves_compute_alone(v100):
    fast = with_bandwidth(v100, registers=1e9, l1=1e9, l2=1e9, memory=1e9)
    for m, n, k in SHAPES:
        costs = gemm_costs([Product(m=m, n=n, k=k)], fast, "fp16", 2)
        if 2 * m * n * k > 1e8:
            assert costs.resource_times[:, 0, 0].argmax() == 0
            fills = padded(*np.array([[m], [n], [k]], dtype=float), fast)[0]  # small products do not fill the arrays of the units
            assert costs.time[0, 0] == pytest.approx(9e-6 + fills * 2 * m * n * k / (0.85 * v100.throughput["fp16"][0]), rel=1e-9)


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("level", ["registers", "l1", "l2", "memory"])
def test_a_faster_level_never_slows(v100, level):
    """Tiles are chosen anew for the faster level; the choice is a heuristic, but must not lose by it, to single precision."""
    for shape in every_product():
        assert seconds(shape, with_bandwidth(v100, **{level: 2.0})) <= seconds(shape, v100) * (1 + 1e-7), shape


def test_products_in_a_batch_are_those_one_by_one(v100):
    gemms = [Product(m=m, n=n, k=k, adds=bool(i % 2)) for i, (m, n, k) in enumerate(SHAPES)]
    batch = gemm_costs(gemms, v100, "fp16", 2)
    for i, gemm in enumerate(gemms):
        one = gemm_costs([gemm], v100, "fp16", 2)
        assert (one.time[0, 0], one.traffic[:, 0, 0].tolist()) == (batch.time[i, 0], batch.traffic[:, i, 0].tolist())


def test_accumulation_reads_c_once_more_at_every_level(v100):
    """Tiles may differ, since the choice is by the time of all that crosses; it is no slower than the same tiles with C read once more."""
    for m, n, k in SHAPES:
        plain, added = (gemm_costs([Product(m=m, n=n, k=k, adds=add)], v100, "fp16", 2) for add in (False, True))
        again = max(ELEMENT * m * n / level.bandwidth[0] for level in v100.levels)
        assert plain.time[0, 0] * (1 - 1e-3) <= added.time[0, 0] <= plain.time[0, 0] * (1 + 1e-3) + again
        assert (added.traffic[:, 0, 0] >= ELEMENT * (m * k + k * n + 2 * m * n) * (1 - 1e-9))[1:].all()
        assert added.traffic[0, 0, 0] - plain.traffic[0, 0, 0] == pytest.approx(ELEMENT * m * n, rel=1e-6)


# ------------------------------------------------------------------------------------------ Eq. 5


def accesses(extent, height, width, dataflow="weight", others=1.0, held=1e18):
    sides = {"weight": (extent, others, others), "activation": (others, extent, others), "output": (others, others, extent)}[dataflow]
    registers = hierarchy((held / tiling.LAST_SHARE * ELEMENT, 1.0, 1.0), 1.0, (1.0,) * 3)[0]
    array = np.array([height]), np.array([width])
    return float(register_accesses(np.array([[1.0]]), column(*sides), registers, ELEMENT, *array, dataflow)[0, 0])


@pytest.mark.parametrize(("height", "width"), [(1.0, 1.0), (4.0, 4.0), (8.0, 4.0), (128.0, 128.0)])
@pytest.mark.parametrize("dataflow", ["weight", "activation", "output"])
def test_register_accesses_are_eq_5(height, width, dataflow):
    """(Nx Ny + K Nx + K Ny) / (2 K Nx Ny) accesses a flop, with K the extent of the reuse over the array."""
    for reuse in (1, 2.5, 5):
        expected = (height * width + reuse * height + reuse * width) / (2 * reuse * height * width)
        assert accesses(reuse * height, height, width, dataflow) == pytest.approx(expected, rel=1e-12)


def test_endless_reuse_leaves_the_edges_of_the_array():
    """K to infinity: (1/Nx + 1/Ny) / 2; a single multiplier with no reuse makes three accesses for two operations."""
    assert accesses(1e8, 4.0, 8.0) == pytest.approx((1 / 4 + 1 / 8) / 2, rel=1e-6)
    assert accesses(1.0, 1.0, 1.0) == 1.5


def test_the_extent_of_eq_5_is_that_of_what_the_registers_hold():
    """The side of the largest square in 4096 elements is 64, however large the product."""
    assert accesses(1e6, 8.0, 8.0, held=4096.0) == pytest.approx(accesses(64.0, 8.0, 8.0), rel=1e-12)


def test_the_best_dataflow_is_the_best_of_the_three():
    counts = {flow: accesses(100.0, 4.0, 4.0, flow, others=7.0) for flow in ("weight", "activation", "output")}
    assert len(set(counts.values())) == 1
    registers = hierarchy((1e9, 1.0, 1.0), 1.0, (1.0,) * 3)[0]
    found = {
        flow: float(
            register_accesses(np.ones((1, 1)), column(100, 30, 7), registers, ELEMENT, np.array([4.0]), np.array([4.0]), flow)[0, 0]
        )
        for flow in ("weight", "activation", "output", "best")
    }
    assert found["best"] == min(found["weight"], found["activation"], found["output"]) == found["weight"]


@pytest.mark.parametrize(
    ("sides", "capacity", "second", "least"),
    [
        # 12 tiles of A, each side cut into sqrt(12): what the cut side streams as often, and k once, read and written
        ((1200, 1200, 1200), 120_000, 1.0, (2 * 12**0.5 + 2) / 1200),
        # of B in a quarter as many bytes, m streams a quarter: cut into sqrt(12 x 4), and n into a fourth of that
        ((1200, 1200, 1200), 120_000, 0.25, (0.25 * 48**0.5 + 12 / 48**0.5 + 2) / 1200),
        # m of 10 is not cut, and n into all 12
        ((10, 1200, 1e6), 1000, 1.0, 1 / 10 + 12 / 1200 + 2e-6),
    ],
)
def test_operands_of_many_tiles_are_cut_into_fractions(sides, capacity, second, least):
    """Elements a multiply-add that cross into a level by itself; whole numbers of cuts would make more of them cross."""
    given = (np.array(sides, np.float32)[:, None], np.array([capacity], np.float32), np.array([second], np.float32))
    assert tiling._by_even_cuts(*given)[0] == pytest.approx(least, rel=1e-5)
