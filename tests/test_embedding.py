"""Reuse factors of look-ups, generators that have them, and caches that follow from them, against a simulated LRU cache."""

from collections import OrderedDict

import numpy as np
import pytest

from crossflow.program.embedding.caches import CachedLookups, beyond
from crossflow.program.embedding.generators import indices
from crossflow.program.embedding.reuse import (
    BINS,
    Reuse,
    _classes,
    distinct_share,
    index_factors,
    normalised,
    row_factors,
    rows_of,
    subsampled,
)

META = normalised([0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.05, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019])
STEEP = normalised([0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0, 0, 0, 0, 0])
EVEN = np.eye(BINS)[4]


def lru(looked, rows):
    """Share of look-ups that a cache of so many rows, the last that were used, does not hold."""
    cache, missed = OrderedDict(), 0
    for row in looked.tolist():
        if row in cache:
            cache.move_to_end(row)
            continue
        missed, cache[row] = missed + 1, None
        if len(cache) > rows:
            cache.popitem(last=False)
    return missed / len(looked)


def drawn(factors, lookups=100_000, seed=1):
    return indices(factors, lookups=lookups, rows=lookups, rng=np.random.default_rng(seed))


def stream(factors, lookups, share=1.0):
    return CachedLookups.of(factors[:, None], np.array([float(lookups)]), np.ones(1), np.array([share]))


def test_classes_of_rows_that_stand_for_a_bin_by_hand():
    """Every number of hits up to 16, look-ups of a bin to each in the ratio of 1 / hits; beyond five of each bin, in equal parts of its
    logarithm: 16 times 2^0.1 to 2^0.9.
    """
    hits, bins, share = _classes()
    assert hits[:21].tolist() == [*range(1, 17), 17, 20, 23, 26, 30]
    assert bins[:21].tolist() == [0, 1, 2, 2, 3, 3, 3, 3, *[4] * 8, *[5] * 5]
    assert share[:4].tolist() == pytest.approx([1.0, 1.0, 4 / 7, 3 / 7])
    assert share[16:].tolist() == [0.2] * len(share[16:])
    assert np.bincount(bins, share).tolist() == pytest.approx([1.0] * BINS)
    assert (bins.max() + 1, len(hits)) == (BINS, 16 + 5 * (BINS - 5))


@pytest.mark.cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("factors", [META, STEEP, EVEN], ids=["meta", "steep", "even"])
def test_generated_indices_have_the_reuse_factors_that_were_asked_for(factors):
    found = index_factors(drawn(factors, 2_000_000))
    assert np.abs(found - factors).max() < 0.005


def test_reuse_factors_of_rows_follow_from_those_of_indices():
    looked = drawn(STEEP)
    assert np.abs(row_factors(looked) - rows_of(index_factors(looked))).max() < 0.002


def test_factors_of_a_part_are_those_of_a_binomial_choice():
    looked = drawn(STEEP)
    for share in (0.5, 0.125, 0.01):
        part = looked[: int(share * len(looked))]
        assert np.abs(index_factors(part) - subsampled(STEEP, share)).max() < 0.03
        assert len(np.unique(part)) / len(part) == pytest.approx(distinct_share(STEEP[:, None], share)[0], rel=0.05)


def test_rows_hit_twice_are_missing_in_a_half_with_a_chance_of_a_quarter():
    """L look-ups of L / 2 rows; of the half's L / 2 look-ups three quarters of the rows are others. Rows hit once are all others."""
    factors = np.zeros((17, 2))
    factors[1, 0] = factors[0, 1] = 1.0
    assert distinct_share(factors, 0.5) == pytest.approx([0.75, 1.0])
    assert distinct_share(factors) == pytest.approx([0.5, 1.0])


def test_a_part_of_a_part_is_a_part_and_the_whole_is_itself():
    assert subsampled(META, 1.0) == pytest.approx(META, abs=1e-12)
    assert subsampled(subsampled(META, 0.5), 0.25) == pytest.approx(subsampled(META, 0.125), abs=0.02)
    assert subsampled(META, 0.125).sum() == pytest.approx(1.0)


def test_less_of_a_batch_has_less_reuse():
    shares = np.array([1.0, 0.5, 0.1, 0.01, 1e-4])
    found = distinct_share(np.repeat(META[:, None], 5, axis=1), shares)
    assert (np.diff(found) > 0).all()
    assert found[-1] > 0.5


def test_the_published_average_of_different_rows_follows_from_the_factors():
    """dlrm_datasets of 2021: 128,435,723 different of 887,017,990 looked-up rows."""
    assert distinct_share(META[:, None])[0] == pytest.approx(128_435_723 / 887_017_990, rel=0.01)


@pytest.mark.cases(3)
@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("factors", [META, STEEP, EVEN], ids=["meta", "steep", "even"])
def test_misses_are_those_of_a_simulated_cache(factors, share):
    looked = drawn(factors)
    counted = index_factors(looked)  # too few look-ups for rows that are hit 40,000 times
    for rows in (10, 100, 1000, 3000, 10_000):
        simulated = lru(looked[: int(share * len(looked))], rows)
        assert stream(counted, len(looked), share).missed(np.array([float(rows)]))[0] == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_misses_are_densest_at_the_beginning_and_their_mean_is_that_of_all(share):
    one, nodes = stream(META, 100_000, share), (np.arange(4000) + 0.5) / 4000
    first, *found = one.missed_at(np.array([5000.0]), np.append(0.0, nodes))[:, 0]
    assert first == pytest.approx(1.0)
    assert (np.diff(found) <= 0).all()
    assert np.mean(found) == pytest.approx(one.missed(np.array([5000.0]))[0], rel=1e-3)


def test_tables_that_share_a_cache_are_those_of_a_simulated_one():
    first, second = drawn(META, 60_000), 10**6 + drawn(EVEN, 40_000, seed=2)
    mixed = np.random.default_rng(3).permutation(np.concatenate([first, second]))
    shared = CachedLookups.together([stream(index_factors(one), len(one)) for one in (first, second)])
    for rows in (100, 2000, 8000):
        assert shared.missed(np.array([float(rows)]))[0] == pytest.approx(lru(mixed, rows), rel=0.02)


def test_a_cache_of_all_rows_misses_each_once_and_one_of_nothing_misses_always():
    for share in (1.0, 0.3):
        found = stream(META, 1e6, share)
        different = distinct_share(META[:, None], np.array([share]))
        assert found.missed(np.array([1e12])) == pytest.approx(different, rel=1e-9)
        assert found.missed(np.zeros(1))[0] == 1.0
        assert found.missed(np.ones(1))[0] > 0.9


def test_rows_that_are_all_hit_alike_miss_as_the_closed_form_says():
    """1,000 rows, each 8 times; the window t has the bytes of the cache: 1,000 (1 - (1 - t)^8) = rows."""
    rows, hits = np.array([1.0, 100.0, 500.0, 900.0]), 8.0
    t = 1.0 - (1.0 - rows / 1000.0) ** (1.0 / hits)
    wanted = (1.0 - (1.0 - t) ** hits) / hits + (1.0 - t) ** hits
    found = CachedLookups.alike(np.full((1, 1), hits), np.full((1, 1), 8000.0), np.ones((1, 1)))
    assert np.concatenate([found.missed(np.array([one])) for one in rows]) == pytest.approx(wanted, rel=1e-9)


def test_a_larger_cache_never_misses_more_and_rows_of_several_lines_need_more_of_it():
    sizes = 2.0 ** np.arange(4, 24)
    found = CachedLookups.of(np.repeat(META[:, None], 20, axis=1), np.full(20, 1e6), np.full(20, 4.0), np.ones(20)).missed(sizes)
    assert (np.diff(found) <= 1e-12).all()
    assert found[-1] < 0.2 < 0.9 < found[0]
    narrow = CachedLookups.of(np.repeat(META[:, None], 20, axis=1), np.full(20, 1e6), np.full(20, 1.0), np.ones(20)).missed(sizes / 4.0)
    assert found == pytest.approx(narrow, rel=1e-9)


def test_what_passes_a_cache_never_grows_on_the_way_to_memory():
    one, all_ = np.array([64.0]), np.array([5000.0])
    found = beyond(stream(META, 1e6), [one, all_, one], [np.full(1, 100.0), np.ones(1), np.ones(1)])
    assert (np.diff(found[:, 0]) <= 0).all()


def test_points_together_are_points_one_by_one():
    room = np.array([10.0, 1e3, 1e5])
    table = np.stack([META, STEEP, EVEN], axis=1)
    together = CachedLookups.of(table, np.array([1e5, 1e6, 1e4]), np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.5, 0.25])).missed(room)
    for i, (lookups, size, share) in enumerate([(1e5, 1.0, 1.0), (1e6, 2.0, 0.5), (1e4, 3.0, 0.25)]):
        alone = CachedLookups.of(table[:, [i]], np.array([lookups]), np.array([size]), np.array([share])).missed(room[[i]])
        assert together[i] == pytest.approx(alone[0], rel=1e-12)


def test_a_table_that_is_too_small_for_its_reuse_is_refused():
    with pytest.raises(ValueError, match="1000 look-ups of these reuse factors hit 1000 different rows, the table has 10"):
        indices(np.eye(BINS)[0], lookups=1000, rows=10, rng=np.random.default_rng(0))


def test_reuse_of_a_batch_is_counted_and_divided():
    looked = drawn(STEEP)
    reuse = Reuse.of(looked, samples=1000)
    assert reuse.distinct(1000.0)[0] == pytest.approx(len(np.unique(looked)) / len(looked), rel=0.01)
    assert reuse.part(100).distinct(100.0)[0] == pytest.approx(reuse.distinct(100.0)[0], rel=0.05)


def test_the_window_fills_the_cache_for_any_factors():
    rng = np.random.default_rng(5)
    for spread in (0.05, 0.3, 1.0, 5.0):
        factors = rng.dirichlet(np.full(BINS, spread), size=200).T
        share = 10 ** rng.uniform(-5, 0, 200)
        found = CachedLookups.of(factors, 10 ** rng.uniform(2, 9, 200), 10 ** rng.uniform(0, 3, 200), share)
        capacity = found.distinct(share) * 10 ** rng.uniform(-7, -0.001, 200)
        assert found.distinct(found.window(capacity)) == pytest.approx(capacity, rel=1e-9)
