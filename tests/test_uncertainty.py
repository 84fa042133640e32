"""Draws and what is said of them, against closed forms."""

import numpy as np
import pytest

import crossflow
from crossflow.__main__ import main
from crossflow.answers.explanation.parameters import uncertain
from crossflow.answers.explanation.uncertainty import (
    drawn_together,
    draws,
    entry_of,
    family_of,
    importance,
    interval,
    larger_is_better,
    probability_better,
    quantiles,
)
from crossflow.base.errors import CrossflowError


@pytest.fixture(scope="module")
def numbers(lstm):
    return uncertain(lstm("d8"))


def test_every_draw_lies_between_low_and_high(numbers):
    for distribution in ("triangular", "uniform"):
        for number in numbers:
            drawn = draws([number], 200, distribution, (0,))[number.path]
            assert number.low <= drawn.min() < drawn.max() <= number.high


def test_means_are_those_of_the_distributions(numbers):
    number = next(n for n in numbers if n.path.endswith("dynamic_energy_per_bit"))
    triangular, uniform = (draws([number], 200_000, name, (1,))[number.path].mean() for name in ("triangular", "uniform"))
    assert triangular == pytest.approx((number.low + number.value + number.high) / 3, rel=2e-3)
    assert uniform == pytest.approx((number.low + number.high) / 2, rel=2e-3)


def test_one_seed_gives_the_same_draws_and_numbers_are_independent(numbers):
    one, same, other = (draws(numbers, 500, "uniform", (seed,)) for seed in (3, 3, 4))
    assert all((one[path] == same[path]).all() for path in one)
    assert not any((one[path] == other[path]).all() for path in one)
    a, b = list(one.values())[:2]
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


def test_only_wanted_numbers_are_drawn(lstm):
    found = uncertain(lstm("d8"), wanted=["techlib.memory"])
    assert {number.path.split(".")[1] for number in found} == {"memory"}


def test_what_carries_no_spread_is_told(lstm, exactly):
    with pytest.raises(CrossflowError, match=exactly("system.budgets.power: no number with low and high stands there")):
        uncertain(lstm("d8"), wanted=["system.budgets.power"])


def test_swept_technologies_bring_their_own_numbers(lstm):
    found = {number.path for number in uncertain(lstm("d8"), {"system.technology.memory": ["HBM2", "HBM4"]})}
    assert "techlib.memory.HBM4.dynamic_energy_per_bit" in found


def test_an_interval_of_uniform_values_is_its_part_of_them():
    found = interval(np.random.default_rng(0).permutation(np.arange(1001.0)), 0.9)
    assert (found.low, found.median, found.mean, found.high) == (50.0, 500.0, 500.0, 950.0)


def test_values_without_end_widen_the_interval_only_where_they_are():
    values = np.array([1.0] * 97 + [np.inf, np.nan, np.inf])
    assert interval(values, 0.9).high == 1.0
    assert interval(values, 0.99).high == np.inf


def test_probability_of_paired_values():
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0, np.inf])
    assert probability_better(a, b) == (1 + 0.5 + 0 + 1) / 4
    assert probability_better(a, b) + probability_better(b, a) == 1.0


def test_importance_is_the_rank_correlation():
    from scipy.stats import spearmanr

    rng = np.random.default_rng(5)
    drawn = {"a": rng.random(400), "b": rng.random(400), "c": rng.integers(0, 3, 400).astype(float)}
    figure = np.exp(3 * drawn["a"]) - drawn["c"] + 0.1 * rng.random(400)
    found = importance(drawn, figure)
    for path, values in drawn.items():
        assert found[path] == pytest.approx(spearmanr(values, figure).statistic, abs=1e-12)
    assert importance(drawn, np.ones(400)) == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_a_number_that_decides_all_is_found(lstm):
    """The price of a system is almost all network, which the price of a lane decides."""
    scenario = lstm("d8")
    found = uncertain(scenario)
    drawn = draws(found, 300, "uniform", (0,))
    ranks = importance(drawn, crossflow.evaluate(scenario, drawn).cost)
    first, second = sorted(ranks, key=lambda path: -abs(ranks[path]))[:2]
    assert first == "techlib.link.NDR-x8.link_cost"
    assert ranks[first] > 0.95
    assert abs(ranks[second]) < 0.3


# ------------------------------------------------------------------------------------------ technologies that turn out well or badly

ENTRIES = ("techlib.logic.N7", "techlib.logic.N5", "techlib.logic.N3", "techlib.memory.HBM4")


@pytest.fixture(scope="module")
def nodes(lstm):
    chosen = uncertain(lstm("d8"), {"system.technology.logic": ["N7", "N5", "N3"], "system.technology.memory": ["HBM4"]})
    return [number for number in chosen if entry_of(number.path) in ENTRIES]


def test_numbers_of_one_entry_move_together_and_keep_their_range(nodes):
    drawn = drawn_together(nodes, "triangular", quantiles(ENTRIES, 500, 0.8, (1,)))
    energy, frequency = (drawn[f"techlib.memory.HBM4.{name}"] for name in ("dynamic_energy_per_bit", "nominal_frequency"))
    assert np.array_equal(energy.argsort(), frequency.argsort()[::-1])  # more energy and a lower rate are both worse
    for number in nodes:
        assert number.low <= drawn[number.path].min() < drawn[number.path].max() <= number.high


def test_no_world_has_a_later_node_worse_where_its_range_allows(nodes):
    drawn = drawn_together(nodes, "uniform", quantiles(ENTRIES, 2000, 0.3, (2,)))
    number = {n.path: n for n in nodes}
    for newer, older in (("N5", "N7"), ("N3", "N5")):
        a, b = (f"techlib.logic.{node}.sram_energy" for node in (newer, older))
        assert (drawn[a] <= np.maximum(drawn[b], number[a].low)).all()


def test_generations_are_correlated_and_families_are_not():
    found = quantiles(ENTRIES, 20_000, 0.8, (3,))
    n7, n5, n3, memory = found.values()
    assert np.corrcoef(n7, n5)[0, 1] == pytest.approx(0.79, abs=0.02)  # 6 / pi asin(0.8 / 2): of uniform ranks
    assert np.corrcoef(n7, n3)[0, 1] < np.corrcoef(n5, n3)[0, 1]
    assert abs(np.corrcoef(n3, memory)[0, 1]) < 0.03
    assert n5.mean() == pytest.approx(0.5, abs=0.01)


def test_nodes_are_one_family_and_stacked_memories_another():
    assert {family_of(f"techlib.logic.{name}") for name in ("N2", "A16", "A14", "N1")} == {"techlib.logic"}
    beside, stacked = (family_of(f"techlib.memory.{name}") for name in ("HBM4", "HBM4-3D"))
    assert beside == family_of("techlib.memory.HBM2e") != stacked
    assert family_of("techlib.memory.HBM4.cost") != beside


def test_prices_and_carbon_of_a_technology_are_drawn_apart_from_its_performance():
    names = ("power", "wafer_cost", "defect_density", "carbon_per_area")
    entries = [entry_of(f"techlib.logic.N5.{name}") for name in names]
    assert entries == ["techlib.logic.N5", "techlib.logic.N5.cost", "techlib.logic.N5.cost", "techlib.logic.N5.carbon"]
    power, cost, carbon = quantiles(list(dict.fromkeys(entries)), 20_000, 0.8, (4,)).values()
    assert np.abs(np.corrcoef([power, cost, carbon]) - np.eye(3)).max() < 0.03


def test_what_is_better_when_larger_is_known_for_packages_and_stacks(lstm):
    numbers = {n.path.rsplit(".", 1)[1]: n for n in uncertain(lstm("d8"))}
    assert larger_is_better(numbers["bonding_yield"])
    assert not larger_is_better(numbers["assembly_cost"])


def test_a_study_of_draws_says_that_its_intervals_are_not_those_of_predictions(tmp_path, capsys):
    study = tmp_path / "u.yaml"
    study.write_text(
        "name: u\nscenario:\n  system: {template: dgx-h100, nodes: 1}\n  workload: {model: llama3-8b, global_batch: 16}\n"
        "  strategy: dp8-z3\nsweep: {workload.global_batch: [16, 32]}\nuncertainty: {samples: 4, seed: 1}\n"
    )
    assert main(["study", str(study), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "trust: " in told
    assert "similar measured runs were within" in " ".join(told.split())
    assert "Intervals hold what the drawn numbers change, and not the errors of predictions, which the trust has." in told
