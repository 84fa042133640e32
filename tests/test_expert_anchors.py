"""Fused layers of experts worked out by hand on a device of round numbers, where one thing after the other takes the time."""

import dataclasses

import numpy as np
import pytest

from crossflow.cost.experts import (
    _between,
    _Device,
    _layer_times,
    _Layers,
    _product,
    expert_library,
    general_costs,
    grouped_costs,
    layer_loads,
)
from crossflow.cost.roofline import pass_costs, product_costs
from crossflow.evidence.validation.tables import device_architecture
from crossflow.program.kernels import Experts, kernel_tables
from crossflow.program.loads import TILE_ROWS, RowLoads

FAST = 1e30  # of a rate: takes no time


def near(value):
    return pytest.approx(value, rel=1e-9)


def one(value):
    return np.array([float(value)])


NOTHING = {
    "start": 0.0, "token": 0.0, "expert": 0.0, "matrix": 1.0, "cache_bytes_per_clock": FAST, "memory": 1.0, "group": 1.0, "passes": 0.0,
    "carried": 0.0, "multiplied": 0.0,
}  # fmt: skip
LIBRARY = expert_library(device_architecture("h100-80gb"), ("triton-vllm",), "bf16")


def device(units=1.0, throughput=FAST, power_clock=1.0, capacity=1e-9, cache=FAST, bus=FAST, clock=1.0, **library):
    held = {name: one(value) for name, value in (NOTHING | library).items()}
    own = {"units": units, "throughput": throughput, "power_clock": power_clock, "capacity": capacity, "cache": cache, "memory": bus}
    return _Device(frequency=one(clock), library=LIBRARY.model_copy(update=held), **{name: one(value) for name, value in own.items()})


def layers(rows, experts=1.0, hidden=0.0, inner=0.0, others=0.0):
    """As many rows for each expert."""
    tiles = experts * np.ceil(rows / experts / np.array(TILE_ROWS))[:, None]
    sizes = {"hidden": hidden, "inner": inner, "branches": 2.0, "rows": rows, "others": others}
    held = RowLoads(experts=one(experts), rows=one(rows), tiles=tiles)
    return _Layers(loads=held, **{name: one(value) for name, value in sizes.items()})


def product(n, k, own, on, *, weights=1.0, missing=1.0, boosted=True):
    """Whole, compute, panels, memory [s], bytes [B], units at work [s]."""
    return _product(one(n), one(k), own, one(weights), one(missing), on, "bf16", boosted)[:, 0].tolist()


def test_tiles_are_multiplied_whole():
    """Of 100 rows seven tiles of 16 are the least; a depth of 100 is handled as 128, 200 columns in sevens of 32."""
    whole, compute, *_ = product(200, 100, layers(100.0), device(throughput=8.0, matrix=0.5))
    assert (whole, compute) == (near(2 * 7 * 16 * 7 * 32 * 128 / 4.0),) * 2


def test_the_last_wave_takes_as_long_as_a_full_one():
    """Three experts of 16 rows, 32 columns each: three tiles on two units are two waves, each at the rate of a unit."""
    whole, *_, working = product(32, 64, layers(48.0, 3.0), device(units=2.0, throughput=2.0))
    assert (whole, working) == (near(2 * 2 * 16 * 32 * 64), near(whole))
    few, *_, working = product(32, 64, layers(16.0), device(units=4.0, throughput=4.0))
    assert (few, working) == (near(2 * 16 * 32 * 64), near(few / 4))


def test_panels_pass_the_cache_and_results_leave_in_two_bytes():
    """128 rows and 256 columns are least in one tile: both panels of 64 deep in two bytes, then its results; 10 bytes a clock of 3."""
    on = device(cache_bytes_per_clock=10.0, clock=3.0)
    whole, _, panels, *_ = product(256, 64, layers(128.0), on)
    assert panels == near((128 + 256) * 64 * 2 / 30.0)
    assert whole == near(panels + 2 * 128 * 256 / 30.0)
    assert product(512, 64, layers(128.0), on)[:3] == near([2 * whole, 0.0, 2 * panels])


def test_multiplying_and_panels_join_by_their_fourth_powers():
    """A rate at which one tile is multiplied in the time of its panels; smaller tiles have more of these."""
    panels = (128 + 256) * 64 * 2 / 10.0
    rate = 2 * 128 * 256 * 64 / panels
    whole, compute, *_ = product(256, 64, layers(128.0), device(throughput=rate, cache_bytes_per_clock=10.0))
    assert compute == near(panels)
    assert whole == near(2**0.25 * panels + 2 * 128 * 256 / 10.0)


def test_weights_cross_the_bus_once_for_tiles_below_one_another():
    """Two experts of 384 rows: of three tiles of 128, as many as `group` share what one has read; then they read once more."""
    own, weights, rows = layers(768.0, 2.0), 256 * 64 * 2, 768 * (64 * 2 + 256 * 2)
    for group, times in ((1.0, 3), (2.0, 2), (3.0, 1)):
        whole, _, _, memory, moved, _ = product(256, 64, own, device(bus=100.0, memory=0.5, group=group))
        assert moved == near(2 * weights * times + rows)
        assert (whole, memory) == (near(moved / 50.0),) * 2
    assert product(256, 64, own, device(bus=50.0), weights=0.5, missing=0.25)[4] == near(2 * weights * (0.5 + 2.0) + 0.25 * rows)
    half_kept = device(bus=50.0, capacity=weights)  # a cache as large as the weights of one expert keeps half of what is read again
    assert product(256, 64, own, half_kept)[4] == near(2 * weights * (1.0 + 0.5 * 2.0) + rows)
    larger = device(bus=50.0, capacity=2 * weights)  # of twice the size, all but 1 / (1 + 2^3)
    assert product(256, 64, own, larger)[4] == near(2 * weights * (1.0 + 2.0 / 9.0) + rows)


def test_memory_joins_by_the_fourth_power_and_the_power_limit_by_the_sixth():
    """A tile that is multiplied in the time of all bytes; a power limit under which the rows alone take the root of that."""
    moved = 256 * 64 * 2 + 128 * (64 * 2 + 256 * 2)
    flops = 2 * 128 * 256 * 64
    on = device(throughput=flops, bus=moved)
    assert product(256, 64, layers(128.0), on)[0] == near(2**0.25)
    limited = dataclasses.replace(on, power_clock=one(0.5))  # takes two seconds
    assert product(256, 64, layers(128.0), limited, boosted=False)[0] == near((2**1.5 + 2.0**6) ** (1 / 6))
    assert product(256, 64, layers(128.0), limited)[0] == near(2**0.25)


def test_bytes_between_the_products():
    """Ten rows; their hidden values three times in 16 bits and twice in 8, those of the inner layer four times and twice.

    Of a row of another rank the results of both products twice: hidden values, and of the gated inner layer two there and one back.
    """
    own = layers(10.0, hidden=100.0, inner=30.0, others=7.0)
    once, carried = (_between(own, 1.0, device(**given).library)[0] for given in ({"passes": 1.0}, {"carried": 1.0}))
    assert once == near(10 * (100 * (3 * 2 + 2 * 1) + 30 * (4 * 2 + 2 * 1)))
    assert carried == near(7 * (100 + 3 * 30) * 2)
    assert _between(own, 2.0, device(passes=0.5, carried=2.0).library)[0] == near(0.5 * 10 * (100 * 10 + 30 * 12) + 2 * carried)


def padded(on, rows=128):
    return dataclasses.replace(on, library=on.library.model_copy(update={"padded": rows}))


def test_blocks_without_rows_are_read_and_written_but_not_multiplied():
    """Two experts with four rows each, and six without any: (8 + 8 x 127) / 128 is eight blocks of 128 rows; two are multiplied."""
    flops = 2 * 128 * 32 * 64
    own = dataclasses.replace(layers(8.0, 2.0, inner=10.0), blank=one(6.0))
    assert product(32, 64, own, padded(device(throughput=8.0)))[0] == near(2 * flops / 8.0)
    panels = (128 + 32) * 64 * 2.0
    assert product(32, 64, own, padded(device(cache_bytes_per_clock=5.0)))[0] == near(8 * (panels + 2 * 128 * 32) / 5.0)
    *_, moved, _ = product(32, 64, own, padded(device()))
    assert moved == near(2 * 32 * 64 * 2 + (8 + 6 * 128) * (64 + 32) * 2)
    own = dataclasses.replace(own, hidden=one(100.0))
    assert _between(own, 1.0, padded(device()).library)[0] == near(6 * 128 * 10 * (4 * 2 + 2 * 1))


def test_every_expert_of_a_rank_begins_a_block_whether_it_has_rows_or_not():
    """One token with two of sixteen experts, of which a rank has eight: ceil((2 + 8 x 127) / 128) = 8 blocks, as for four tokens. All rows
    of 2,048 tokens come to the rank, which has half of them: ceil((4096 + 8 x 127) / 128) = 40.
    """
    bound = padded(device(cache_bytes_per_clock=1.0, units=1.0))
    few, some, many = (layer_times(bound, tokens=tokens, experts=16.0, ranks=2.0)[2] for tokens in (1.0, 4.0, 2048.0))
    each = 2 * (128 + 64) * 64 * 2.0
    assert few == near(8 * each)
    assert some == near(few)
    assert many == near(40 * each)
    assert layer_times(device(cache_bytes_per_clock=1.0), tokens=1.0, experts=16.0, ranks=2.0)[2] < few / 8


def layer_times(on, given=0.0, warm=False, **sizes):
    """Two experts, each with the four tokens that have both: eight rows."""
    layer = {"tokens": 4.0, "hidden": 64.0, "inner": 32.0, "active": 2.0, "experts": 2.0, **sizes}
    (table,) = kernel_tables((Experts(**layer, **({"given": given} if given else {})),), 2.0, narrow=False)
    sizes = table.sizes[:, 0]
    return _layer_times(sizes, layer_loads(sizes), on, "bf16", warm, True)[:, 0].tolist()


def test_tokens_and_experts_take_their_time_and_passes_theirs():
    assert layer_times(device(token=3.0, expert=5.0))[0] == near(4 * 3.0 + 2 * 5.0)
    assert layer_times(device(token=3.0), given=20.0)[0] == near(20 / 2 * 3.0)
    between = 8 * (64 * 10 + 32 * 12)
    whole, _, _, memory, moved, _ = layer_times(device(passes=1.0, bus=100.0, memory=0.5, group=1e9))
    products = 2 * 3 * 64 * 32 * 2 + 8 * 2 * (64 + 64 + 32 + 64)
    assert (whole, memory, moved) == (near((products + between) / 50.0), near((products + between) / 50.0), near(products + between))
    half = device(passes=1.0, bus=50.0, cache=1000.0, capacity=between, group=1e9)  # the cache keeps half of them
    bare = layer_times(dataclasses.replace(half, library=device(group=1e9).library))
    whole, _, _, _, moved, _ = layer_times(half)
    assert (whole - bare[0], moved - bare[4]) == (near(between * (0.5 / 50.0 + 0.5 / 1000.0)), near(0.5 * between))


def test_weights_that_the_cache_has_are_not_read():
    """What a layer holds is its weights, and rows of both sizes in two bytes; of a cache as large half of all bytes is missing."""
    weights, rows = 2 * 3 * 64 * 32 * 2, 8 * 2 * (64 + 64 + 32 + 64)
    on = device(bus=1.0, capacity=weights + 2 * 8 * (64 + 32), group=1e9)
    assert layer_times(on, warm=True)[4] == near(0.5 * (weights + rows))
    assert layer_times(on)[4] == near(weights + 0.5 * rows)


def costs(function, tokens=512.0, **options):
    """Layers of eight experts on one rank, of which a token has two: a row for each of 1024 copies."""
    layer = Experts(tokens=tokens, hidden=256.0, inner=128.0, active=2.0, experts=8.0)
    (table,) = kernel_tables((layer,), 2.0, narrow=False)
    architecture = device_architecture("h100-80gb")
    given = (LIBRARY,) if function is grouped_costs else ()
    return architecture, function(table.sizes, *given, architecture, "bf16", **options)


def test_what_a_layer_of_experts_costs():
    """Two operations of each element of three matrices and row; energy of these and of the bytes; eight launches, of which a host that
    issues each by itself takes all.
    """
    architecture, found = costs(grouped_costs)
    launch = float(architecture.execution.kernel_launch[0])
    flops = 2 * 1024 * 3 * 256 * 128
    assert (found.flops[0, 0], found.launches[0, 0]) == (flops, 8.0)
    assert found.energy[0, 0] == near(
        flops * architecture.energy_per_flop["bf16"][0] + found.traffic[-1, 0, 0] * architecture.memory.energy[0]
    )
    assert found.launch[0, 0] == near(float(np.ravel(LIBRARY.start)[0]))
    _, eager = costs(grouped_costs, eager=True)
    assert eager.launch[0, 0] == near(max(float(np.ravel(LIBRARY.start)[0]), 8 * launch))
    assert eager.time[0, 0] - eager.launch[0, 0] == near(found.time[0, 0] - found.launch[0, 0])
    assert (found.resource_times[-1] > 0).all()
    assert not found.traffic[:-1].any()


def test_the_least_that_a_layer_of_experts_can_take():
    """All weights once, of three matrices of each expert that has a row; rows in and out; operations at the peak."""
    _, found = costs(general_costs, least=True)
    assert found.flops[0, 0] == 2 * 1024 * 3 * 256 * 128
    assert found.traffic[-1, 0, 0] == near(8 * 3 * 256 * 128 * 2 + 2 * 1024 * 256 * 2)
    _, one_token = costs(general_costs, tokens=1.0, least=True)
    assert one_token.traffic[-1, 0, 0] == near(2 * 3 * 256 * 128 * 2 + 2 * 2 * 256 * 2)


def test_layers_without_a_library_are_products_and_passes():
    """128 rows of each expert: up with its gate and down; silu and its product r2 w1 of the inner layer; permutation there and back."""
    architecture, found = costs(general_costs)
    once = np.ones((1, 1))
    sides = ((256.0, 256.0), (256.0, 128.0))  # columns, depth
    parts = [product_costs(np.array([128.0, *side, 8.0])[:, None, None], np.full((1, 1), 2.0), architecture, "bf16") for side in sides]
    parts += [
        pass_costs(3 * 2.0 * 1024 * 128 * once, 8.0 * 1024 * 128 * once, once, architecture, "bf16"),
        pass_costs(4 * 2.0 * 1024 * 256 * once, 0 * once, 8 * once, architecture, "bf16"),
    ]
    assert found.time[0, 0] == near(sum(part.time[0, 0] for part in parts))
    assert found.energy[0, 0] == near(sum(part.energy[0, 0] for part in parts))
    assert found.launches[0, 0] == sum(part.launches[0, 0] for part in parts)
