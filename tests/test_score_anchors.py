"""Figures of a score that are made of others, by hand: three points, the second without enough memory, the third without an end."""

import dataclasses

import numpy as np
import pytest

from crossflow.answers.score import OVERFULL, OVERFULL_HOST, OVERFULL_SECOND, money, refused, scatter, taken

GIB = 2.0**30
BASE = {
    "step_time": [4.0, 2.0, np.inf], "feasible": [True, False, False], "reason": [-1, 0, 1], "reasons": (OVERFULL, "it never ends"),
    "breakdown": {"compute": [2.5, 1.5, np.inf], "exposed_communication": [1.0, 0.5, np.inf], "bubble": [0.5, 0.0, 0.0]},
    "communication": {"all_reduce": [3.0, 0.5, np.inf], "sendrecv": [1.0, 0.5, 1.0]},
    "exposed_communication": {"all_reduce": [1.0, 0.5, np.inf], "sendrecv": [0.0, 0.0, 0.0]},
    "bound": {"compute": [0.625, 0.4, 0.0], "network": [0.25, 0.6, 0.0], "bubble": [0.125, 0.0, 0.0]},
    "memory": {"weights": [50 * GIB, 70 * GIB, 30 * GIB], "activations": [22 * GIB, 30 * GIB, 10 * GIB]}, "memory_capacity": [80 * GIB] * 3,
    "host_memory": [0.0, 10 * GIB, 0.0], "host_capacity": [20 * GIB, 20 * GIB, np.inf],
    "power": [800.0, 900.0, 0.0], "rent": [0.01, 0.02, 0.01], "cost": [1e5, 2e5, np.nan], "devices": [8.0, 16.0, 8.0],
    "normalised_devices": [24.0, 48.0, 24.0],
    "flops": [8e15, 6e15, 0.0], "memory_traffic": [4e13, 1e13, 0.0], "samples_per_second": [2.0, 4.0, 0.0],
    "tokens_per_second": [2000.0, 4000.0, 0.0], "operation": {"water_l": [6.0, 4.0, np.inf]},
}  # fmt: skip


def array(value):
    return {key: np.array(one) for key, one in value.items()} if isinstance(value, dict) else np.array(value)


def score(**changes):
    given = {**BASE, **changes}
    texts = {key: given.pop(key) for key in ("reasons", "notes") if key in given}
    return refused(["a", "b", "c"]).having(**{key: array(value) for key, value in given.items()}, **texts)


def test_memory_by_hand():
    found = score()
    assert found.memory_needed.tolist() == [72 * GIB, 100 * GIB, 40 * GIB]
    assert found.memory_left.tolist() == pytest.approx([0.1, -0.25, 0.5])
    assert found.fits.tolist() == [True, False, True]
    assert [found.tight(margin).tolist() for margin in (0.09, 0.11)] == [[False] * 3, [True, False, False]]
    assert found.buildable.tolist() == [True, True, False]  # the last lacks more than memory
    assert found.why(0) is None
    assert found.why(1) == "needs 100 GiB of memory per device, 20 GiB more than its 80 GiB"
    assert found._reasons() == [None, found.why(1), "it never ends"]


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"memory_capacity": [72 * GIB, 100 * GIB, 39 * GIB]}, [True, True, False]),
        ({"host_memory": [20 * GIB, 20 * GIB, 21 * GIB], "host_capacity": [20 * GIB] * 3}, [True, False, False]),
        ({"second": {"second_memory_bytes": [5.0, 5.0, 5.0], "second_memory_capacity_bytes": [5.0, 9.0, 4.0]}}, [True, False, False]),
        ({"memory_capacity": [np.nan] * 3}, [False] * 3),  # nothing is known
        ({"serving": {"experts_memory_bytes": [8.0, 8.0, 9.0], "experts_memory_capacity_bytes": [8.0, 8.0, 8.0]}}, [True, False, False]),
    ],
)
def test_a_point_fits_where_every_memory_holds_what_it_needs(changes, fits):
    assert score(**changes).fits.tolist() == fits


def test_of_two_pools_the_fuller_one_has_least_left():
    found = score(serving={"experts_memory_bytes": [95.0, 10.0, 30.0], "experts_memory_capacity_bytes": [100.0, 100.0, 100.0]})
    assert found.experts_left.tolist() == pytest.approx([0.05, 0.9, 0.7])
    assert found.memory_left.tolist() == pytest.approx([0.05, -0.25, 0.5])


def test_what_the_host_and_the_second_memory_lack_is_told():
    second = {"second_memory_bytes": [0.0, 3 * GIB, 0.0], "second_memory_capacity_bytes": [GIB] * 3}
    found = score(reasons=(OVERFULL_HOST, OVERFULL_SECOND), reason=[0, 1, -1], host_memory=[32 * GIB, 0.0, 0.0], second=second)
    assert found.why(0) == "needs 32 GiB of the host's memory per device, 12 GiB more than its share of 20 GiB"
    assert found.why(1) == "needs 3 GiB of second memory per device, 2 GiB more than its 1 GiB"
    assert found.far_lacking.tolist() == [-GIB, 2 * GIB, -GIB]
    assert found.buildable.tolist() == [True, True, False]


def test_communication_by_hand():
    found = score()
    assert found.hidden_communication.tolist() == [3.0, 0.5, 1.0]
    assert found.serialized.tolist() == [7.0, 2.5, np.inf]
    assert found.exposed_share.tolist() == [0.25, 0.5, 1.0]  # 1 of 4 s, 0.5 of 1 s, without end
    assert score(communication={}, exposed_communication={}).exposed_share.tolist() == [0.0] * 3


def test_pools_hide_what_one_does_beside_the_other_and_does_not_wait_for():
    """Of 4 s attention works 3, experts 2.8 at most: 2.8 - 0.5 s of waiting; of 2 s both 1 and 0.5."""
    busy = {"attention_busy": [0.75, 0.5, 0.5], "experts_busy": [0.7, 0.25, 0.5]}
    found = score(serving=busy)
    assert found.hidden_side.tolist() == pytest.approx([2.3, 0.5, 0.0])
    assert found.serialized.tolist()[:2] == pytest.approx([7.0 + 2.3, 2.5 + 0.5])
    waiting = score(serving=busy, breakdown={"bubble": [3.0, 0.5, 0.0]})
    assert waiting.hidden_side.tolist() == [0.0, 0.0, 0.0]


def test_rates_by_hand():
    found, table = score(), score().per_million()
    assert found.intensity.tolist()[:2] == [200.0, 600.0]
    by_hand = {  # a million samples take 500,000 and 250,000 s, as many tokens a thousandth of it
        "device_hours": (8 * 5e5 / 3600, 16 * 2.5e5 / 3600), "normalised_device_hours": (24 * 5e5 / 3600, 48 * 2.5e5 / 3600),
        "usd": (5e3, 5e3), "energy_j": (4e8, 2.25e8), "water_l": (7.5e5, 5e5),
    }  # fmt: skip
    assert set(table) == {f"{name}_per_million_{what}" for name in by_hand for what in ("samples", "tokens")}
    for name, values in by_hand.items():
        for what, share in (("samples", 1.0), ("tokens", 1e-3)):
            assert table[f"{name}_per_million_{what}"].tolist() == pytest.approx([*(share * value for value in values), np.inf])
    assert not any("tokens" in name for name in score(tokens_per_second=[0.0] * 3).per_million())
    assert not any(name.startswith("usd") for name in score(rent=[np.nan] * 3).per_million())
    assert money(found, 1) == {"cost_usd": 2e5, "usd_per_million_samples": 5e3, "usd_per_million_tokens": pytest.approx(5.0)}
    assert money(found, 2) == {}


def test_what_bounds_each_point():
    assert score().bound_by == ["compute", "network", "-"]
    assert [score().bound_at(point) for point in range(3)] == ["compute", "network", "-"]


RANKED = [
    # figures of a score and the paths of its points; the column that ranks them, the fastest that fits
    ({}, "step_time_s", 0),
    ({"feasible": [True] * 3}, "step_time_s", 1),
    ({"feasible": [False] * 3}, "step_time_s", 1),
    ({"feasible": [True] * 3, "job": {"iteration_time_s": [9.0, 8.0, 7.0]}}, "job.iteration_time_s", 2),
    ({"feasible": [True] * 3, "run": {"time_s": [3.0, 4.0, 5.0]}}, "step_time_s", 1),
    ({"feasible": [True] * 3, "run": {"time_s": [3.0, 4.0, np.nan]}, "points": {"run.spares": [1, 2, 3]}}, "run.time_s", 0),
    ({"feasible": [True] * 3, "run": {"time_s": [3.0, 4.0, 5.0], "goodput": [0.9] * 3}}, "run.time_s", 0),
    ({"feasible": [True] * 3, "run": {"goodput": [0.9] * 3}, "job": {"iteration_time_s": [9.0, 8.0, 7.0]}}, "job.iteration_time_s", 2),
    ({"feasible": [True] * 3, "serving": {"e2el_s": [9.0, 8.0, 7.0], "prefill_share": [0.1] * 3}}, "e2el_s", 2),
    ({"feasible": [True] * 3, "serving": {"e2el_s": [9.0, 8.0, 7.0]}}, "step_time_s", 1),
]


@pytest.mark.parametrize(("changes", "column", "best"), RANKED)
def test_points_are_ranked_by_what_they_are_asked_for(changes, column, best):
    found = score(**changes)
    assert found.ranked == column
    assert found._fastest == best
    assert found.best.devices.tolist() == [found.devices[best]]


@pytest.mark.parametrize(
    ("cost", "tight", "place"),
    [
        ([1.0, 5.0, 2.0], [True, False, False], 1),  # five times as long is not too long
        ([1.0, 5.1, 2.0], [True, False, False], 0),
        ([1.0, 2.0], [False, True], 0),
        ([1.0, 2.0], [True, True], 0),
        ([-10.0, -2.0], [True, False], 1),  # a fifth of a rate
        ([-10.0, -1.9], [True, False], 0),
    ],
)
def test_a_plan_that_leaves_a_margin_is_taken_unless_it_is_much_worse(cost, tight, place):
    assert taken(np.array(cost), np.array(tight)) == place


def test_some_points_and_parts_joined_are_the_points():
    found = score(notes=("a note",))
    picked = scatter([(np.array([2, 0]), found.take([2, 0])), (np.array([1]), found[1])], 3)
    assert picked.reasons == found.reasons
    assert picked.notes == found.notes
    for entry in dataclasses.fields(found):
        one, other = getattr(found, entry.name), getattr(picked, entry.name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        elif isinstance(one, dict) and entry.name != "points":
            assert one.keys() == other.keys()
            for name, values in one.items():
                np.testing.assert_array_equal(values, other[name])


def test_parts_that_lack_a_figure_have_no_share_of_a_whole_and_no_other_value():
    first, second = score().take([0]), score(communication={"all_gather": [1.0, 1.0, 1.0]}, operation={}).take([1])
    joined = scatter([(np.array([1]), first), (np.array([0]), second)], 2)
    assert {name: values.tolist() for name, values in joined.communication.items()} == {
        "all_reduce": [0.0, 3.0], "sendrecv": [0.0, 1.0], "all_gather": [1.0, 0.0],
    }  # fmt: skip
    np.testing.assert_array_equal(joined.operation["water_l"], [np.nan, 6.0])
    assert joined.step_time.tolist() == [2.0, 4.0]
