"""Clocks of ranks: what is planted is found to a microsecond, what waits of ranks were is found again, and good clocks stay as they are."""

import json
import statistics

import numpy as np
import pytest

import crossflow
from crossflow.evidence.replay.clocks import RankClock, clocks_of, medians
from crossflow.evidence.replay.kineto import read_traces
from crossflow.evidence.replay.matching import RankCollectives
from tests.test_advice import DLRM, ranks

SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL"


def job(clocks, noise=1e-6, far=0.0, groups=None, seed=1, count=400, name=SUM):
    """Collectives of ranks whose clocks show ``offset + (1 + drift) * time``, with ends apart by some noise, and some far off."""
    rng = np.random.default_rng(seed)
    moments = np.sort(rng.uniform(0.0, 2.0, count))
    kind = np.arange(count) % 3 // 2  # two of three in the first group of a rank, the others in its second
    found = []
    for rank, (offset, drift) in enumerate(clocks):
        named = tuple((groups or (lambda _: ("all", "others")))(rank))
        at = moments + 1e-5 * np.where(kind, hash_of(named[1]), hash_of(named[0]))
        ends = at + noise * rng.standard_normal(count) + (rng.random(count) < far) * rng.exponential(2e-3, count)
        own = offset + (1.0 + drift) * ends
        found.append(
            RankCollectives(
                work=np.arange(count), start=own - 1e-4, end=own, name=np.zeros(count, dtype=int), group=kind, names=(name,), groups=named
            )
        )
    return found


def hash_of(text):
    return sum(map(ord, text)) % 7


def errors(fit, clocks, zero=(0.0, 0.0)):
    """How far each clock is off over two seconds, against the first rank's. [s]"""
    at = np.array([0.0, 1.0, 2.0])
    first = zero[0] + (1.0 + zero[1]) * at
    return np.array([
        np.abs(clock.at(offset + (1.0 + drift) * at) - first).max() for clock, (offset, drift) in zip(fit.clocks, clocks, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("far", [0.0, 0.2], ids=["all ends together", "a fifth of the ends far off"])
def test_planted_offsets_and_drifts_are_found_to_a_microsecond(far):
    rng = np.random.default_rng(5)
    clocks = [(0.0, 0.0), *zip(rng.uniform(-5e-3, 5e-3, 11), rng.uniform(-5e-5, 5e-5, 11), strict=True)]
    fit = clocks_of(job(clocks, far=far), range(12))
    assert errors(fit, clocks).max() < 1e-6
    assert "of 11 of 12 ranks" in fit.notes[0]


def test_the_first_ranks_clock_counts_whatever_it_is():
    clocks = [(3e-3, 2e-5), (-1e-3, 0.0), (0.0, 0.0)]
    fit = clocks_of(job(clocks), range(3))
    assert fit.clocks[0] == RankClock()
    assert errors(fit, clocks, zero=clocks[0]).max() < 1e-6


def test_clocks_are_handed_on_from_group_to_group():
    """Rank 7 shares no collective with rank 0: pairs of neighbours, and every other rank, lead to it."""
    clocks = [(1e-3 * rank, 1e-6 * rank) for rank in range(8)]
    fit = clocks_of(job(clocks, groups=lambda rank: (f"pair{rank // 2}", f"column{rank % 2}")), range(8))
    assert errors(fit, clocks).max() < 2e-6


def test_ranks_that_meet_nobody_keep_their_clocks():
    clocks = [(0.0, 0.0), (2e-3, 0.0), (5e-3, 0.0), (6e-3, 0.0)]
    fit = clocks_of(job(clocks, groups=lambda rank: (f"pair{rank // 2}", f"own{rank // 2}")), (0, 1, 2, 3))
    assert fit.clocks[2] == fit.clocks[3] == RankClock()
    assert fit.clocks[1].offset == pytest.approx(-2e-3, abs=1e-6)
    assert "2 ranks, such as 2, share no collective that ends together with rank 0" in fit.notes[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (job([(0.0, 0.0), (9e-6, 0.0)]), ""),  # as devices of one host
        (job([(0.0, 0.0), (4e-3, 0.0)], name=BROADCAST), ""),  # whose root may be done long before the others
        (job([(0.0, 0.0), (4e-3, 0.0)], noise=1e-3), "however their clocks are set"),  # these do not end together
        ([], ""),
    ],
)
def test_clocks_that_agree_or_that_nothing_tells_stay(given, said):
    fit = clocks_of(given, range(len(given)))
    assert not fit.moved
    assert said in "".join(fit.notes)
    assert bool(said) == bool(fit.notes)


def test_real_ranks_of_one_host_keep_their_clocks():
    report = crossflow.trace(DLRM)
    for one, other in zip(report.graph.traces, read_traces([DLRM]), strict=True):
        np.testing.assert_array_equal(one.works.start, other.works.start)


def test_waits_are_those_of_one_clock(tmp_path):
    """The same step, by clocks that are up to 3 ms apart: who waits for whom does not change."""
    offsets, drifts = (0.0, 3e3, -2e3, 700.0), (0.0, 4e-5, 0.0, -3e-5)
    right, wrong = (tmp_path / name for name in ("right", "wrong"))
    for folder in (right, wrong):
        folder.mkdir()
    paths = ranks(right, late=1500.0)
    for rank, path in enumerate(paths):
        written = json.loads(path.read_text())
        for event in written["traceEvents"]:
            event["ts"] = 1e7 + offsets[rank] + (1.0 + drifts[rank]) * event["ts"]
        (wrong / path.name).write_text(json.dumps(written))
    one, two = crossflow.trace(right), crossflow.trace(wrong)
    assert two.late[0].rank == one.late[0].rank == 2
    assert two.late[0].time == pytest.approx(one.late[0].time, rel=0.01) == pytest.approx(3 * 1500e-6, rel=0.01)
    for first, second in zip(one.ranks, two.ranks, strict=True):
        for part, time in first.parts.items():
            assert second.parts[part] == pytest.approx(time, abs=2e-6), part
    assert two.advice.findings[0].kind == one.advice.findings[0].kind == "late_rank"
    assert two.advice.findings[0].gain == pytest.approx(one.advice.findings[0].gain, rel=0.01)
    assert any(note.startswith("clocks of 3 of 4 ranks differ") for note in two.notes)


def test_medians_are_those_of_the_standard_library():
    rng = np.random.default_rng(8)
    group, values = rng.integers(0, 30, 200), rng.normal(size=200)
    for place, found in enumerate(medians(group, values, 31)):
        mine = values[group == place]
        assert np.isnan(found) if not len(mine) else found == pytest.approx(statistics.median(mine.tolist()))
