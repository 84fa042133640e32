"""Times beside a second memory worked out by hand, and units of several kinds of devices set side by side."""

from dataclasses import dataclass, fields
from types import SimpleNamespace

import numpy as np
import pytest

from crossflow.cost.joined import _by_resource, _optimizer, _side_by_side, resources_of
from crossflow.cost.roofline import KernelCosts
from crossflow.cost.tiers import over_products, updated_far, with_second_memory
from crossflow.hardware.architecture.model import SecondMemory
from crossflow.parallel.tiers import FarTraffic

NEAR = SimpleNamespace(bandwidth=np.array([10.0]), energy=np.array([0.5]))


@dataclass(frozen=True)
class Times:
    """What `with_second_memory` reads and changes of the costs of layers."""

    bound: np.ndarray
    compute: np.ndarray
    energy: np.ndarray
    traffic: np.ndarray
    spare: np.ndarray
    resources: tuple[str, ...] = ("compute", "l2", "memory")


def second(staged=0.0, bandwidth=4.0, latency=0.0):
    given = {"capacity": 1e9, "bandwidth": bandwidth, "write_bandwidth": 8.0, "latency": latency, "energy": 2.0, "write_energy": 3.0}
    held = {name: np.array([value]) for name, value in {**given, "page": 1.0, "endurance": np.inf, "staged": staged}.items()}
    return SecondMemory(**held)


def beside(memory, *, read=20.0, written=0.0, sought=0.0, spare=4.0, traffic=50.0):
    """A layer of 8 s, 3 of them bound by computing and a cache and 5 by main memory: times of what binds, compute, energy, traffic."""
    one = np.ones((1, 1, 1))
    far = FarTraffic(read=read * one, written=written * one, sought=sought * one)
    times = Times(
        bound=np.array([2.0, 1.0, 5.0])[:, None, None, None] * one,
        compute=8 * one,
        energy=100 * one,
        traffic=traffic * one,
        spare=spare * one,
    )
    found = with_second_memory(times, far, NEAR, memory)
    assert found.resources == ("compute", "l2", "second_memory", "staging", "memory")
    assert found.bound.sum() == pytest.approx(found.compute.sum())
    bound = [found.bound[:2].sum(), *found.bound[2:].ravel()]
    return [pytest.approx(value) for value in bound], *(float(value.sum()) for value in (found.compute, found.energy, found.traffic))


def test_what_is_read_directly_spares_main_memory_and_streams_beside():
    """20 bytes are 2 s of main memory, and 5 s of the second one, beside the 6 s that are left; a slower one ends 4 s later."""
    assert beside(second()) == ([3, 0, 0, 3], 6, 100 + 20 * (2 - 0.5), 30)
    assert beside(second(bandwidth=2.0)) == ([3, 4, 0, 3], 10, 130, 30)
    assert beside(second(), spare=1.0) == ([3, 0, 0, 4], 7, 130, 30)  # main memory was beside computing but for 1 s
    assert beside(second(), traffic=10.0)[3] == 0.0


def test_experts_wait_for_the_latency_and_writes_follow_reads():
    assert beside(second(latency=1.5)) == ([3, 0, 0, 3], 6, 130, 30)  # known beforehand
    assert beside(second(latency=1.5), sought=1.0) == ([3, 0.5, 0, 3], 6.5, 130, 30)
    assert beside(second(latency=9.0), read=0.0, sought=1.0) == ([3, 0, 0, 5], 8, 100, 50)
    found = beside(second(), written=16.0)  # 3.6 s of main memory, 5 s of reads and 2 s of writes
    assert found == ([3, pytest.approx(7 - 4.4), 0, pytest.approx(1.4)], pytest.approx(7), 130 + 16 * (3 - 0.5), 14)


def test_what_is_staged_passes_main_memory_twice():
    """70 bytes are 7 s of main memory, less than the layer takes; 120 bytes are 12 s. Of what it binds staging has 40 in 70 or 120."""
    assert beside(second(1.0)) == ([3, 0, 5 * 40 / 70, 5 * 30 / 70], 8, 100 + 20 * (2 + 0.5), 70)
    assert beside(second(1.0), traffic=100.0) == ([3, 0, 3, 6], 12, 150, 120)
    assert beside(second(1.0), traffic=0.0)[0] == [3, 0, 5, 0]
    assert beside(second(1.0, bandwidth=2.0)) == ([3, 2, 5 * 40 / 70, 5 * 30 / 70], 10, 150, 70)
    assert beside(second(1.0), read=0.0, traffic=100.0) == ([3, 0, 0, 5], 8, 100, 100)


def test_passes_forward_are_shared_out_over_their_products():
    """Those that only the next layer needs move a quarter of what main memory would."""
    ones = np.array([[[8.0], [0.0], [4.0]]])
    times = SimpleNamespace(phases=("forward", "end", "input"), traffic=np.array([[[30.0], [10.0], [7.0]]]))
    found = over_products(FarTraffic(read=ones, written=ones / 2, sought=ones > 0), times)
    assert found.read.ravel().tolist() == [6.0, 2.0, 4.0]
    assert found.written.ravel().tolist() == [3.0, 1.0, 2.0]
    assert ones.ravel().tolist() == [8.0, 0.0, 4.0]


@dataclass(frozen=True)
class Update:
    time: np.ndarray
    launch: np.ndarray
    spare: np.ndarray
    energy: np.ndarray
    traffic: np.ndarray


@pytest.mark.parametrize(
    ("staged", "bandwidth", "spare", "time", "energy", "traffic"),
    [
        (0.0, 40.0, 4.0, 8 - 3.6, 20 * 1.5 + 16 * 2.5, 14.0),  # 36 bytes fewer
        (0.0, 40.0, 1.0, 7.0, 70.0, 14.0),
        (0.0, 2.0, 4.0, 20 / 2 + 16 / 8 + 1, 70.0, 14.0),  # reads and writes one after the other, and the launch
        (1.0, 40.0, 4.0, 8 + 3.6, 20 * 2.5 + 16 * 3.5, 86.0),  # as many more
    ],
)
def test_an_update_beside_a_second_memory(staged, bandwidth, spare, time, energy, traffic):
    one = np.ones((1, 1))
    costs = Update(time=8 * one, launch=one, spare=spare * one, energy=one, traffic=np.stack([5 * one, 6 * one, 50 * one]))
    found = updated_far(costs, np.stack([20 * one, 16 * one]), NEAR, second(staged, bandwidth))
    assert (found.time.item(), found.energy.item()) == (pytest.approx(time), pytest.approx(1 + energy))
    assert found.traffic.ravel().tolist() == [5.0, 6.0, pytest.approx(traffic)]
    assert costs.traffic.ravel().tolist() == [5.0, 6.0, 50.0]


# -------------------------------------------------------------------------------------------- several kinds of devices


def test_resources_of_all_kinds_the_main_memory_last():
    parts = [
        SimpleNamespace(times=SimpleNamespace(resources=names)) for names in (("compute", "l2", "memory"), ("compute", "l1", "memory"))
    ]
    assert resources_of(parts) == ("compute", "l2", "l1", "memory")


def test_values_of_a_kind_among_the_resources_of_all():
    """Those that it has not are nothing; rows of no resource stay last."""
    found = _by_resource(np.array([[1.0], [2.0], [3.0], [9.0]]), ("compute", "l1", "memory"), ("compute", "l2", "l1", "memory"))
    assert found.ravel().tolist() == [1.0, 0.0, 2.0, 3.0, 9.0]


def test_units_side_by_side_have_all_points():
    found = _side_by_side([np.array([[1.0], [2.0]]), np.array([[3.0, 4.0]])], -2)
    assert found.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 4.0]]


def test_updates_of_all_kinds_have_the_main_memory_in_common():
    def costs(levels, value):
        one = np.full((1, 1), value)
        whole = {field.name: one for field in fields(KernelCosts) if field.name not in ("resource_times", "traffic")}
        return KernelCosts(
            **whole, resource_times=np.arange(levels + 1.0)[:, None, None] * one, traffic=np.arange(10.0, 10 + levels)[:, None, None] * one
        )

    found = _optimizer([costs(3, 1.0), costs(2, 2.0)])
    assert found.time.tolist() == [[1.0], [2.0]]
    assert found.resource_times.tolist() == [[[3.0], [4.0]]]
    assert found.traffic.tolist() == [[[12.0], [22.0]]]
