"""Which level of memory pays for which bytes, by hand: registers, caches and main memory of products, attention, look-ups and passes."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from test_cost_anchors import LOOKED, device, near

from crossflow.cost.attention import CallTimes, _costs
from crossflow.cost.lookups import LookupWork, lookup_costs
from crossflow.cost.price import kernel_prices
from crossflow.cost.roofline import KernelCosts, pass_costs, powered, product_costs, quantised_costs
from crossflow.cost.tiling import LAST_SHARE, register_accesses
from crossflow.evidence.validation.tables import device_architecture
from crossflow.hardware.architecture.model import Throttle
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Attention, Lookup, kernel_tables

LEVELS = np.array([1e-12, 2e-12, 3e-12, 4e-12])  # of `device`, from registers to memory [J/B]


def one(value):
    return np.array([[float(value)]])


def priced(kernel, architecture, dtype="fp16"):
    program = ProgramBuilder(name="one", dtype=dtype)
    program.compute("one", kernel)
    return kernel_prices(program.build(training=True), architecture, None)[0]


def paid(costs):
    """Energy of the bytes of each level at its own price, and of operations. [J]"""
    return (costs.traffic[:, 0, 0] * LEVELS).sum() + costs.flops[0, 0] * 1e-12


# ------------------------------------------------------------------------------------------ registers, Eq. 5

REUSED = [
    # dataflow, what is reused along, m = 64, n = 128, k = 32 on an array of 16 x 8
    ("weight", 64), ("activation", 128), ("output", 32), ("best", 128),
]  # fmt: skip


@pytest.mark.parametrize(("dataflow", "extent"), REUSED)
def test_registers_are_read_as_often_as_an_array_reuses_them(dataflow, extent):
    """Flops (Nx Ny + K Nx + K Ny) / (2 K Nx Ny), K = extent / Nx."""
    level = SimpleNamespace(capacity=np.array([1e9]))
    reuse = extent / 16
    found = register_accesses(1e6, (64.0, 128.0, 32.0), level, 2.0, 16.0, 8.0, dataflow)
    assert found[0] == near(1e6 * (128 + reuse * 16 + reuse * 8) / (2 * reuse * 128))


def test_registers_hold_no_more_than_their_room():
    """A square of 0.96 of 512 elements, 22 a side; an array that is larger reuses nothing twice."""
    level = SimpleNamespace(capacity=np.array([1024.0]))
    reuse = np.sqrt(LAST_SHARE * 512) / 16
    assert register_accesses(1e6, (1e4, 1e4, 1e4), level, 2.0, 16.0, 8.0, "best")[0] == near(1e6 * (128 + reuse * 24) / (2 * reuse * 128))
    assert register_accesses(1e6, (1e4, 1e4, 1e4), level, 2.0, 64.0, 8.0, "best")[0] == near(1e6 * (512 + 72) / (2 * 512))


# ------------------------------------------------------------------------------------------ products

SIZES = [(512, 256, 128, 1), (512, 256, 128, 3), (4096, 4096, 4096, 1), (8192, 64, 2048, 2), (7, 8192, 8192, 1)]


@pytest.mark.parametrize("sizes", SIZES)
def test_every_level_pays_for_its_own_bytes_of_a_product(v100, sizes):
    """Memory and caches for each operand at least once, registers for what the array reads; nothing is free."""
    chip, (m, n, k, batch) = device(v100), sizes
    costs = product_costs(np.array(sizes, dtype=float)[:, None, None], one(2.0), chip, "fp16")
    assert costs.energy[0, 0] == near(paid(costs))
    once = batch * 2 * (m * k + k * n + m * n)
    assert (costs.traffic[1:, 0, 0] >= once * (1 - 1e-6)).all()
    work = 2.0 * batch * m * n * k
    array = chip.array_height, chip.array_width, chip.dataflow
    assert costs.traffic[0, 0, 0] == near(2 * register_accesses(work, (m, n, k), chip.levels[0], 2.0, *array)[0])


def test_what_is_added_to_crosses_every_level_once_more(v100):
    """Three products of 512 x 256, whose result is read too: two bytes an element."""
    sizes = np.array([512.0, 256.0, 128.0, 3.0])[:, None, None]
    plain, added = (product_costs(sizes, one(result), device(v100), "fp16") for result in (2.0, 4.0))
    assert (added.traffic - plain.traffic)[:, 0, 0].tolist() == pytest.approx([3 * 2 * 512 * 256] * 4, rel=1e-6)
    assert added.energy[0, 0] - plain.energy[0, 0] == pytest.approx(3 * 2 * 512 * 256 * LEVELS.sum(), rel=1e-6)


def test_equal_products_at_once_take_as_often_the_energy(v100):
    found = [product_costs(np.array([512.0, 256.0, 128.0, many])[:, None, None], one(2.0), device(v100), "fp16") for many in (1.0, 5.0)]
    assert found[1].energy[0, 0] == pytest.approx(5 * found[0].energy[0, 0], rel=1e-6)


def test_a_known_device_pays_for_operations_and_main_memory_alone():
    """The energy of its operations has that of its caches."""
    chip = device_architecture("a100-80gb")
    for sizes in ((4096.0, 4096.0, 4096.0, 1.0), (16.0, 8192.0, 8192.0, 2.0)):
        costs = product_costs(np.array(sizes)[:, None, None], one(2.0), chip, "bf16")
        m, n, k, batch = sizes
        assert not costs.traffic[:-1].any()
        assert costs.traffic[-1, 0, 0] == near(batch * 2 * (m * k + k * n + m * n))
        spent = 2 * m * n * k * batch * chip.energy_per_flop["bf16"][0] + costs.traffic[-1, 0, 0] * chip.memory.energy[0]
        assert costs.energy[0, 0] == near(spent)


# ------------------------------------------------------------------------------------------ attention

CALLS = [
    # queries, keys, bytes of a sample and head that cross memory, and the caches: every block of 128 queries reads the keys that it sees
    (1024, 1024, 2 * 64 * 2 * (1024 + 1024), 4 * 1024 * 1024 * 64 * 2 / (2 * 128)),
    (64, 2048, 2 * 64 * 2 * (64 + 2048), None),  # one block reads what it needs once
    (1, 2048, 2 * 64 * 2 * (1 + 2048), None),  # a single query reads each key once
    (2048, 16, 2 * 64 * 2 * (2048 + 16), None),  # what a few keys take again is less than queries and results
]  # fmt: skip


@pytest.mark.parametrize(("length", "seen", "memory", "cached"), CALLS)
def test_attention_reads_keys_through_caches_for_every_block_of_queries(v100, length, seen, memory, cached):
    """And its registers as a product of the block: the squares of heads, queries and keys within them."""
    chip, calls = device(v100), 3 * 4
    kernel = Attention(samples=3.0, heads=4.0, kv_heads=4.0, length=float(length), seen=float(seen), width=64.0, causal=False)
    costs = priced(kernel, chip)
    flops = calls * 4 * length * seen * 64
    assert costs.traffic[-1, 0, 0] == near(calls * memory)
    assert costs.traffic[1:3, 0, 0].tolist() == [near(calls * (memory if cached is None else cached))] * 2
    block = min(length, 128), min(seen, 128), 64.0
    array = chip.array_height, chip.array_width, chip.dataflow
    assert costs.traffic[0, 0, 0] == near(2 * register_accesses(flops, block, chip.levels[0], 2.0, *array)[0])
    assert costs.energy[0, 0] == near(paid(costs))
    assert costs.flops[0, 0] == flops


def costs_of(**changes):
    """A kernel of 100 flop and 10 B that takes 2 s and a launch of 1 s on a device of three levels."""
    given = {
        "time": 3.0, "launch": 1.0, "launches": 1.0, "flops": 100.0, "energy": 7.0, "working": 2.0,
    }  # fmt: skip
    arrays = {name: one(value) for name, value in (given | changes).items()}
    return KernelCosts(**arrays, resource_times=np.zeros((4, 1, 1)), traffic=np.array([5.0, 6.0, 10.0])[:, None, None])


@pytest.mark.parametrize(("flops", "beside"), [(100.0, 0.0), (60.0, 0.0), (160.0, 60 * 0.5)])
def test_a_library_of_attention_pays_for_masked_and_padded_operands_too(flops, beside):
    """Half a joule an operation, of which the 100 that the mask leaves are counted before; bytes are those of main memory."""
    chip = SimpleNamespace(throughput={"bf16": np.ones(1)}, energy_per_flop={"bf16": np.array([0.5])})
    parts = CallTimes(blocks=one(8.0), memory=one(8.0), around=one(1.0), start=one(0.5), share=one(0.25), flops=one(flops))
    found = _costs(parts, costs_of(), chip, 0.25)
    busy = 8.0 * 2 ** (1 / 3) + 1.0
    assert found.energy[0, 0] == near(7.0 + beside)
    assert found.traffic[:, 0, 0].tolist() == [0.0, 0.0, 10.0]
    assert (found.time[0, 0], found.launch[0, 0], found.working[0, 0]) == (near(busy + 0.75), 0.75, near(busy / 4))
    assert found.resource_times[:, 0, 0].tolist() == [8.0, 0.0, 0.0, 9.0]


# ------------------------------------------------------------------------------------------ passes and units at work


def test_a_pass_in_a_narrow_type_computes_in_a_wide_one(v100):
    """Operations of 2 pJ rather than 1; bytes at every level."""
    chip = dataclasses.replace(
        device(v100),
        throughput={**v100.throughput, "fp8": v100.throughput["fp16"]},
        energy_per_flop={"fp8": np.array([1e-12]), "fp16": np.array([2e-12])},
    )
    costs = pass_costs(one(1e6), one(3e6), one(1.0), chip, "fp8")
    assert costs.energy[0, 0] == near(1e6 * LEVELS.sum() + 3e6 * 2e-12)
    lower = pass_costs(one(1e6), one(3e6), one(1.0), chip, "fp8", least=True)
    assert lower.energy[0, 0] == near(1e6 * LEVELS[-1] + 3e6 * 2e-12)


@pytest.mark.parametrize("twice", [True, False])
def test_operands_that_are_scaled_may_be_read_twice(v100, twice):
    """Of a pass from two bytes to one two thirds are read; main memory pays for them once more."""
    quantising = SimpleNamespace(rate=0.5, start=3e-6, reads_twice=twice, kernels=1)
    plain = pass_costs(one(3e6), one(0.0), one(1.0), device(v100), "fp16")
    found = quantised_costs(plain, np.array([[True]]), quantising, device(v100), "fp8")
    again = 2e6 if twice else 0.0
    assert found.traffic[:, 0, 0].tolist() == [3e6, 3e6, 3e6, near(3e6 + again)]
    assert found.energy[0, 0] - plain.energy[0, 0] == pytest.approx(again * LEVELS[-1], rel=1e-9)
    others = quantised_costs(plain, np.array([[False]]), quantising, device(v100), "fp8")
    assert (others.energy[0, 0], others.traffic[-1, 0, 0]) == (plain.energy[0, 0], 3e6)


@pytest.mark.parametrize("graphs", [True, False])
def test_each_kernel_that_scales_operands_is_launched(v100, graphs):
    """In a captured graph after the library's own gap, outside of one after the launch of any kernel; what they move is as much."""
    chip = dataclasses.replace(device(v100), graphs=graphs)
    plain = pass_costs(one(3e6), one(0.0), one(1.0), chip, "fp16")
    alone, three = (
        quantised_costs(plain, np.array([[True]]), SimpleNamespace(rate=0.5, start=3e-6, reads_twice=False, kernels=number), chip, "fp8")
        for number in (1, 3)
    )
    gap = 3e-6 if graphs else plain.launch[0, 0]
    assert (three.launch[0, 0], alone.launch[0, 0]) == (near(3 * gap), near(gap))
    assert (three.time - alone.time)[0, 0] == near(2 * gap)
    assert (three.launches[0, 0], three.traffic[-1, 0, 0]) == (3.0, alone.traffic[-1, 0, 0])
    others = quantised_costs(plain, np.array([[False]]), SimpleNamespace(rate=0.5, start=3e-6, reads_twice=False, kernels=3), chip, "fp8")
    assert (others.time[0, 0], others.launches[0, 0]) == (plain.time[0, 0], 1.0)


POWERED = [
    # energy of operations and bytes, time in which units work, energy with that of the units: 10 W of them, of 100 W 40 are static
    (7.0, 2.0, 27.0), (7.0, 0.5, 12.0), (110.0, 2.0, 120.0), (7.0, 0.0, 7.0),
]  # fmt: skip


@pytest.mark.parametrize(("energy", "working", "expected"), POWERED)
def test_units_at_work_take_power_as_far_as_the_limit_lets_them(energy, working, expected):
    """Within the 2 s that the kernel is busy, not in its launch."""
    chip = SimpleNamespace(working_power=np.array([10.0]), maximum_power=np.array([100.0]), static_power=np.array([40.0]))
    assert powered(costs_of(energy=energy, working=working), chip).energy[0, 0] == near(expected)
    assert powered(costs_of(energy=energy), SimpleNamespace(working_power=None)).energy[0, 0] == energy


def test_caches_follow_the_clock_under_a_limit_and_memory_does_not(v100):
    """Half the clock and, without a threshold, half the voltage: a quarter of 1 + 2 + 3 pJ a byte, all of 4, over twice the time."""
    free = pass_costs(one(1e9), one(0.0), one(1.0), device(v100), "fp16")
    busy = (free.time - free.launch)[0, 0]
    values = {
        "power": 0.5 * 1e9 * (6e-12 / 4 + 4e-12) / busy,
        "leakage": 0.0,
        "voltage": 1.0,
        "threshold": 0.0,
        "minimum": 0.1,
        "nominal": 1.0,
    }
    chip = dataclasses.replace(device(v100), throttle=Throttle(**{name: np.array([value]) for name, value in values.items()}))
    slow = pass_costs(one(1e9), one(0.0), one(1.0), chip, "fp16")
    assert slow.time[0, 0] - slow.launch[0, 0] == pytest.approx(2 * busy, rel=1e-5)
    assert slow.energy[0, 0] == pytest.approx(1e9 * (6e-12 / 4 + 4e-12), rel=1e-5)


def test_attention_of_a_narrow_model_multiplies_in_a_wide_type(v100):
    chip = dataclasses.replace(
        device(v100),
        throughput={**v100.throughput, "fp8": v100.throughput["fp16"]},
        energy_per_flop={"fp8": np.array([1e-12]), "fp16": np.array([2e-12])},
    )
    costs = priced(Attention(samples=1.0, heads=4.0, length=256.0, seen=256.0, width=64.0, causal=False), chip, "fp8")
    assert costs.energy[0, 0] == near(paid(costs) + costs.flops[0, 0] * 1e-12)


# ------------------------------------------------------------------------------------------ look-ups


def with_cache(v100, size, instances=1.0):
    """The device whose last cache has so many bytes in all."""
    *rest, cache, memory = device(v100).levels
    cache = dataclasses.replace(cache, capacity=np.array([size / instances]), instances=np.array([instances]))
    return dataclasses.replace(device(v100), levels=(*rest, cache, memory))


# 8000 rows of 128 B are looked up for 2000 pooled ones, a quarter of them different: 1,024 kB in 128 kB a table.
ROWS, POOLED, INDICES = 8000 * 128, 1000 * 2 * 32 * 2, 8000 * 8
LEFT = [(1e12, 1, 0.25), (64e3, 1, 0.25 + 0.75 / 2), (64e3, 4, 0.25 + 0.75 / 2), (96e3, 3, 0.25 + 0.75 / 4), (1e-3, 1, 1.0)]


@pytest.mark.parametrize(("size", "instances", "left"), LEFT)
def test_rows_cross_caches_and_what_these_do_not_hold_comes_from_memory(v100, size, instances, left):
    """Of the repeated rows of a table, the share that its cache has no room for; indices and pooled rows pass once."""
    costs = priced(Lookup(**LOOKED | {"distinct": 0.25}), with_cache(v100, size, instances), "fp32")
    assert costs.traffic[:, 0, 0].tolist() == [ROWS] * 3 + [pytest.approx(ROWS * left + POOLED + INDICES, rel=1e-6)]
    assert costs.energy[0, 0] == near(paid(costs))


def test_a_sort_passes_all_levels_and_an_update_takes_rows_from_memory(v100):
    """Gradients of 64 B for every look-up pass the caches; rows are read and written in memory, where gradients come from once."""
    sort, update = (priced(Lookup(**LOOKED, part=part), with_cache(v100, 1e12), "fp32") for part in ("sort", "update"))
    assert sort.traffic[:, 0, 0].tolist() == [8000 * (2 * 2 * (8 + 4) + 8)] * 4
    assert update.traffic[:, 0, 0].tolist() == [8000 * 64] * 3 + [1000 * 2 * 32 * 2 + 2000 * 2 * 128]
    for costs in (sort, update):
        assert costs.energy[0, 0] == near(paid(costs))


def asked(chip, **changes):
    """Shares of the look-ups of a table, each row hit four times, that every level serves or passes on."""
    factors = tuple(float(i == 2) for i in range(17))
    lookup = Lookup(**{**LOOKED, "tables": 1.0} | changes, reuse=factors, counted=LOOKED["samples"])
    (table,) = kernel_tables([lookup], 4.0, narrow=False)
    costs = lookup_costs([lookup], table.sizes, chip)
    work = LookupWork.of([lookup], table.sizes, chip)
    return costs.traffic[:, 0, 0] / (4000 * 128), work.distinct.ravel()[0]


def test_caches_pass_on_fewer_look_ups_one_after_the_other(v100):
    """Registers and the first cache see all; endless caches leave the different rows, and caches without room all."""
    beside = (1000 * 32 * 2 + 4000 * 8) / (4000 * 128)
    base = device(v100).levels
    tiny = [dataclasses.replace(level, capacity=np.array([1e-3]), instances=np.ones(1)) for level in base[1:-1]]
    huge = [dataclasses.replace(level, capacity=np.array([1e12]), instances=np.ones(1)) for level in base[1:-1]]
    for caches, shares in ((tiny, lambda distinct: [1, 1, 1, 1]), (huge, lambda distinct: [1, 1, distinct, distinct]),
                           ([tiny[0], huge[1]], lambda distinct: [1, 1, 1, distinct])):  # fmt: skip
        found, distinct = asked(dataclasses.replace(device(v100), levels=(base[0], *caches, base[-1])))
        assert found[:3].tolist() == pytest.approx(shares(distinct)[:3], rel=1e-2)
        assert found[3] - beside == pytest.approx(shares(distinct)[3], rel=1e-2)
        assert 0.1 < distinct < 0.5
