"""Costs by which tables are shared out, worked out by hand: look-ups, exchanges and bytes of pieces, loads of ranks, cuts."""

import itertools

import numpy as np
import pytest
from test_dlrm_anchors import machine, near, plans_of, spec_of
from test_sharding import TABLES as TABLES_OF
from test_sharding import model as scenario_of
from test_sharding import tables_of

from crossflow.answers.steps import own_step
from crossflow.cost.sharding import PieceCosts, piece_bytes
from crossflow.engine.runs.dlrm_sharded import candidates, chosen, pricing, rank_rows
from crossflow.parallel.sharding import sharders
from crossflow.parallel.sharding.exact import LeastLoaded, _bounds, _exchanged, fullest, held
from crossflow.parallel.sharding.pieces import Piece, Sharding, checked, singles
from crossflow.parallel.sharding.sharders import cut, greedy, parts_needed, share_out
from crossflow.parallel.strategy.hierarchy import hierarchy_of
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.workload.dlrm import ShardingRule
from crossflow.workload.jobs import dlrm_job

MP = {"dense": ["ddp"], "embedding": ["mp"]}
# Rows of 64 B in fp16, 4 of them a sample; pooled elements in two bytes, their gradients in four; 1024 samples on 4 ranks.
TABLES = [{"count": 1, "rows": 1000, "width": 32, "pooling": 4}, {"count": 2, "rows": 100_000, "width": 64, "pooling": 2}]


def priced(tables=TABLES, ranks=4, **changes):
    spec, on = spec_of(tables=tables, sharding="cost", **changes), machine(1, ranks)
    job = dlrm_job(spec)
    found = pricing(job, plans_of(spec, MP, 1, ranks), on)
    return job, found, on, [Piece.whole(i, table) for i, table in enumerate(found.tables)]


def step_parts(scenario):
    step = own_step(scenario)
    return step.job, step.plans, step.machine


def memory_time(on, *moved):
    return sum(moved) / on.architecture.memory.bandwidth[0]


# ------------------------------------------------------------------------------------------ costs of pieces


def test_lookups_of_whole_tables_by_hand():
    """Every row from memory, with its index, and a pooled row written; as the anchors of look-ups say."""
    _, pricing_of, on, pieces = priced()
    costs = pricing_of(pieces)
    looked = 1024 * 4
    assert costs.forward[0, 0] == near(memory_time(on, looked * (64 + 8), 1024 * 32 * 2))
    sort = looked * (2 * 2 * (8 + 4) + 8)  # keys of 10 bits in two passes
    update = 1024 * 32 * 4 + 1000 * (2 * 64 + 2 * 32)  # gradients once, rows and their state read and written
    assert costs.backward[0, 0] == near(memory_time(on, sort, update))
    looked = 1024 * 2
    assert costs.forward[1, 0] == costs.forward[2, 0] == near(memory_time(on, looked * (128 + 8), 1024 * 64 * 2))
    sort, update = looked * (2 * 3 * (8 + 4) + 8), 1024 * 64 * 4 + looked * (2 * 128 + 2 * 32)
    assert costs.backward[1, 0] == near(memory_time(on, sort, update))


def test_costs_of_pieces_of_several_batches_are_those_of_each():
    job, _, on, pieces = priced()
    batches = np.array([512.0, 1024.0, 8192.0])
    plans = [Hierarchies.of([hierarchy_of(MP)] * len(some), some, 4, 1) for some in (batches, *batches[:, None])]
    both, *alone = (pricing(job, one, on)(pieces).phases for one in plans)
    np.testing.assert_allclose(both, np.concatenate(alone, axis=2), rtol=1e-12)


def test_tables_that_do_not_train_are_looked_up_and_sent_one_way():
    _, pricing_of, on, pieces = priced(frozen=["embedding"])
    costs = pricing_of(pieces)
    assert costs.backward.tolist() == [[0.0]] * 3
    way = on.wires.time("all_to_all", np.array([1024 * 160 / 4 * 2.0]), pricing_of.group)
    assert costs.exchange.sum() == near(4 * way[0])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exchanges_of_all_pieces_are_those_of_all_ranks(ranks):
    """A rank with the mean of 160 elements a sample sends two bytes of each, and receives gradients of four, by width."""
    _, pricing_of, on, pieces = priced(ranks=ranks)
    found = pricing_of(pieces).exchange[:, 0]
    ways = [on.wires.time("all_to_all", np.array([1024 * 160 / ranks * size]), pricing_of.group)[0] for size in (2.0, 4.0)]
    assert found.sum() == near(ranks * sum(ways))
    assert (found / found.sum()).tolist() == [near(32 / 160), near(64 / 160), near(64 / 160)]


def test_one_rank_exchanges_nothing():
    _, pricing_of, _, pieces = priced(ranks=1)
    assert pricing_of(pieces).exchange.tolist() == [[0.0]] * 3


@pytest.mark.parametrize("by_rows", [True, False])
def test_parts_of_a_table_cost_and_exchange_what_it_does(by_rows):
    """Columns repeat each index and its sort; rows split them, and each part sends whole pooled rows."""
    _, pricing_of, on, pieces = priced()
    whole, parts = pricing_of(pieces), pricing_of([*pieces[0].cut(2, by_rows=by_rows), *pieces[1:]])
    looked, rows = 1024 * 4, 64 if by_rows else 32
    each = looked / 2 if by_rows else looked
    assert parts.forward[0, 0] == near(memory_time(on, each * (rows + 8), 1024 * (32 if by_rows else 16) * 2))
    assert parts.forward[2:].tolist() == whole.forward[1:].tolist()
    shares = parts.exchange[:2, 0] / parts.exchange[2, 0]
    assert shares.tolist() == [near(32 / 64)] * 2 if by_rows else [near(16 / 64)] * 2


def test_phases_are_those_between_which_ranks_meet():
    costs = PieceCosts(forward=np.array([[1.0]]), exchange=np.array([[2.0]]), backward=np.array([[4.0]]))
    assert costs.phases[:, 0, 0].tolist() == [1.0, 2.0, 4.0]


BYTES = [
    # optimizer, bytes of an element and of a row beside the table's own two an element
    ("sgd", 0, 0), ("rowwise_adagrad", 0, 4), ("adagrad", 4, 0),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "element", "row"), BYTES)
@pytest.mark.parametrize("trains", [True, False])
def test_bytes_of_pieces_by_hand(optimizer, element, row, trains):
    job, _, _, pieces = priced(table_optimizer=optimizer, **({} if trains else {"frozen": ["embedding"]}))
    tables, with_states = singles(job.model.tables), trains * 1
    whole = [rows * (width * (2 + with_states * element) + with_states * row) for rows, width in ((1000, 32), (100_000, 64), (100_000, 64))]
    assert piece_bytes(job, tables, pieces).tolist() == whole
    assert piece_bytes(job, tables, list(pieces[1].cut(7, by_rows=True))).sum() == whole[1]
    columns = piece_bytes(job, tables, list(pieces[1].cut(7, by_rows=False)))
    assert columns.sum() == whole[1] + 6 * 100_000 * row * with_states  # each part has a state for its part of a row


# ------------------------------------------------------------------------------------------ loads of ranks


def test_greedy_fills_a_rank_to_its_last_byte_and_then_takes_the_emptiest():
    """The fourth piece fits nowhere: rank 1 has most room left, though most load."""
    assert greedy(np.array([9.0, 5.0, 3.0]), np.array([2.0, 4.0, 2.0]), 2, 4.0).tolist() == [0, 1, 0]
    assert greedy(np.array([9.0, 8.0, 7.0]), np.array([3.0, 1.0, 9.0]), 2, 4.0).tolist() == [0, 1, 1]


@pytest.mark.parametrize("size", ["equal", "any"])
def test_greedy_is_within_a_piece_of_the_mean(size):
    """List scheduling (Graham 1966): where memory is no matter, no rank has more than the mean and the most costly piece."""
    rng = np.random.default_rng(1)
    costs = np.ones(30) if size == "equal" else rng.lognormal(0.0, 1.5, 30)
    where = greedy(costs, np.ones(30), 4, np.inf)
    assert np.bincount(where, costs, minlength=4).max() <= costs.sum() / 4 + 0.75 * costs.max()


def shared(costs, sizes, *, by="cost", capacity=99.0, ranks=2, rule=None):
    tables = tables_of(*[(10, 8, 1.0)] * len(sizes))
    pieces = [Piece.whole(i, table) for i, table in enumerate(tables)]
    rule = rule or ShardingRule(by=by)
    return share_out(by, tables, pieces, np.array(costs), np.array(sizes), ranks=ranks, capacity=capacity, rule=rule, name=by)


def test_costs_are_those_of_all_phases():
    """4 + 4, 7 + 0 and 0 + 6: in this order to the rank with less. By a single phase, or the longest, they would lie otherwise."""
    assert shared([[4.0, 7.0, 0.0], [4.0, 0.0, 6.0]], [1.0] * 3).where == (0, 1, 1)
    assert shared([[1.0, 5.0, 4.0, 3.0], [9.0, 0.0, 0.0, 0.0]], [1.0] * 4).where == (0, 1, 1, 1)


@pytest.mark.parametrize(("capacity", "fits"), [(3.0, True), (2.99, False)])
def test_what_the_fullest_rank_holds_decides(capacity, fits):
    found = shared([[3.0, 1.0, 1.0]], [1.0, 1.0, 2.0], capacity=capacity)
    assert found.where == ((0, 1, 1) if fits else (0, 1, 0))
    assert found.held == 3.0
    assert bool(found.problem) != fits
    assert fits or found.problem.startswith("sharding cost: rank 0 would hold 3 B of tables")


def test_the_fullest_rank_is_the_one_that_is_told():
    found = Sharding(name="own", ranks=3, pieces=(), where=(2, 2, 1))
    told = checked(found, [2.0, 3.0, 4.0], 4.5, ShardingRule(split="none"))
    assert told.held == 5.0
    assert "rank 2 would hold 5 B" in told.problem
    assert told.problem.endswith("; take more devices")
    assert checked(found, [2.0, 5.0, 4.0], 4.5, ShardingRule(split="none")).problem.endswith("which split: rows or columns cuts")


def test_loads_and_their_bounds_by_hand():
    """Two phases on two ranks: 5 and 3 of the first, 1 and 6 of the second. No rank has less than the mean, or the dearest piece."""
    costs, where = np.array([[5.0, 1.0, 2.0], [1.0, 2.0, 4.0]]), np.array([0, 1, 1])
    assert fullest(costs, where, 2) == 5.0 + 6.0
    assert held(np.array([3.0, 1.0, 1.5]), where, 2) == 3.0
    assert _bounds(costs, 2).tolist() == [5.0, 4.0]
    assert _bounds(costs, 1).tolist() == [8.0, 7.0]
    assert LeastLoaded(where, 10.0).gap(costs, 2) == near(0.1)
    assert LeastLoaded(where, 0.0).gap(costs, 2) == 0.0


@pytest.mark.parametrize(("gap", "told"), [(0.009, ""), (0.011, ", at most 1.1% above the least load")])
def test_a_gap_is_told_where_it_is_more_than_the_search_leaves(gap, told, monkeypatch):
    """Twice half a per cent, at which the search and what follows it end."""
    where = np.array([0, 1])
    monkeypatch.setattr(sharders, "least_loaded", lambda *_: LeastLoaded(where, 3.0 / (1.0 + gap)))
    assert shared([[3.0, 1.0]], [1.0] * 2, by="exact").name == "exact" + told
    assert shared([[3.0, 1.0]], [1.0] * 2, by="exact", rule=ShardingRule(by="auto")).name == "exact"


def test_choices_are_pieces_times_ranks(monkeypatch):
    """Where other sharders are there as well, the exact one leaves the choice to them."""
    monkeypatch.setattr(sharders, "MOST", 9)
    told = [shared([[1.0] * pieces], [1.0] * pieces, by="exact", rule=ShardingRule(by="auto")).problem for pieces in (4, 5)]
    assert told == ["", "sharding exact: 5 pieces on 2 ranks are more than 9 choices"]


# ------------------------------------------------------------------------------------------ cuts


def parts_of(split, tables, costs, sizes, **more):
    given = {"ranks": 4, "capacity": 1e9, "element": 2.0, **more}
    found = cut(split, tables, parts_needed(np.array(costs), given["ranks"]), np.array(sizes), **given)
    return [sum(piece.table == i for piece in found) for i in range(len(tables))]


CUTS = [
    # how, rows and width of the first of two tables, costs, bytes, capacity, parts of each
    ("rows", (1000, 64), (4.0, 4.0), (1.0, 1.0), 9.0, [2, 2]),  # each costs twice the mean of four ranks
    ("rows", (1000, 64), (4.1, 3.9), (1.0, 1.0), 9.0, [3, 2]),  # 2.05 means are three parts
    ("rows", (1000, 64), (0.0, 0.0), (9.0, 1.0), 3.0, [3, 1]),  # bytes alone
    ("rows", (1000, 64), (0.0, 0.0), (30.0, 1.0), 3.0, [4, 3]),  # at most one a rank; the other then of an eighth of the capacity
    ("rows", (3, 64), (0.0, 0.0), (30.0, 1.0), 3.0, [3, 3]),  # no fewer rows than one
    ("columns", (1000, 64), (8.0, 0.0), (1.0, 1.0), 9.0, [4, 1]),  # 128 B are four sectors
    ("columns", (1000, 40), (8.0, 0.0), (1.0, 1.0), 9.0, [2, 1]),  # 80 B are two and a half
    ("columns", (1000, 8), (8.0, 0.0), (1.0, 1.0), 9.0, [1, 1]),  # 16 B are less than one
    ("none", (1000, 64), (8.0, 0.0), (30.0, 1.0), 3.0, [1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("case", CUTS)
def test_cuts_by_hand(case):
    split, (rows, width), costs, sizes, capacity, expected = case
    assert parts_of(split, tables_of((rows, width, 8.0), (1000, 64, 8.0)), costs, sizes, capacity=capacity) == expected


def test_parts_are_halved_until_ranks_hold_them_together():
    """Three tables of 2 B on two ranks of 3 B: whole, one has 4; parts of 1 B are three on each."""
    tables = tables_of(*[(1000, 64, 8.0)] * 3)
    assert parts_of("rows", tables, [0.0] * 3, [2.0] * 3, ranks=2, capacity=3.0) == [2, 2, 2]
    assert parts_of("rows", tables, [0.0] * 3, [2.0] * 3, ranks=2, capacity=4.0) == [1, 1, 1]


def test_parts_are_as_equal_as_can_be():
    (table,) = tables_of((10, 64, 8.0))
    quarters = list(Piece.whole(0, table).cut(4, by_rows=True))
    assert [piece.rows for piece in quarters] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert [piece.rows for piece in quarters[3].cut(3, by_rows=True)] == [(7, 8), (8, 9), (9, 10)]
    assert [piece.columns for piece in quarters[3].cut(2, by_rows=False)] == [(0, 32), (32, 64)]


# ------------------------------------------------------------------------------------------ the choice


def test_ranks_hold_their_share_of_memory_and_no_more():
    """A tenth of 40 GiB."""
    job, plans, on = step_parts(scenario_of({"by": "naive", "split": "none", "memory": 0.1}))
    ((found,),) = candidates(job, plans, on)
    assert found.held > 0.1 * 40 * 2**30
    assert "more than 10% of its memory, 4 GiB" in found.problem
    job, plans, on = step_parts(scenario_of({"by": "naive", "split": "none", "memory": 0.5}))
    assert not candidates(job, plans, on)[0][0].problem


def test_where_nothing_fits_the_fullest_rank_holds_least():
    job, plans, on = step_parts(scenario_of({"by": "auto", "split": "none", "memory": 0.001}, TABLES_OF[:2]))
    (offered,) = candidates(job, plans, on)
    assert all(one.problem for one in offered)
    ((found, _, _),) = chosen(job, plans, on)
    assert found.held == min(one.held for one in offered) < max(one.held for one in offered)


@pytest.mark.parametrize("devices", [1, 4])
def test_rows_of_ranks_add_up_to_the_model(devices):
    """Look-ups, bytes and what is exchanged of 14 tables; a device alone exchanges nothing."""
    system = {"template": "dgx-a100", "devices": devices}
    job, plans, on = step_parts(scenario_of("size", system=system))
    _, rows = rank_rows(job, plans, on)
    assert sum(row["tables"] for row in rows) == 14
    assert sum(row["lookups"] for row in rows) == near(8192 * (2 * 30 + 3 * 12 + 9 * 1))
    table = 4 * (2 * 4e6 * 128 + 3 * 9e6 * 64 + 9 * 2e5 * 64) + 4 * (2 * 4e6 + 3 * 9e6 + 9 * 2e5)
    assert sum(row["table_bytes"] for row in rows) == near(table)
    pooled = 8192 * (2 * 128 + 12 * 64) * job.forward
    assert sum(row["exchanged_bytes"] for row in rows) == near(pooled * (devices > 1))


@pytest.mark.parametrize("seed", range(16))
def test_no_move_and_no_exchange_of_two_pieces_is_left_that_lowers_the_load(seed):
    """Of a rank that is the fullest in a phase, where all ranks still hold their pieces; every move and exchange is tried."""
    rng = np.random.default_rng(seed)
    phases, ranks, pieces = rng.integers(1, 4), int(rng.integers(2, 5)), int(rng.integers(4, 10))
    costs, sizes = rng.integers(1, 20, (phases, pieces)).astype(float), rng.integers(1, 9, pieces).astype(float)
    start = rng.integers(0, ranks, pieces)
    capacity = held(sizes, start, ranks) + rng.integers(0, 4)
    found = _exchanged(costs, sizes, ranks, capacity, start)
    least = fullest(costs, found, ranks)
    assert least <= fullest(costs, start, ranks)
    assert held(sizes, found, ranks) <= capacity
    full = {int(np.bincount(found, phase, minlength=ranks).argmax()) for phase in costs}
    tried = []
    for piece, other in itertools.product(range(pieces), range(pieces + ranks)):  # another piece, or a rank
        after = found.copy()
        after[piece] = found[other] if other < pieces else other - pieces
        if other < pieces:
            after[other] = found[piece]
        if found[piece] in full and held(sizes, after, ranks) <= capacity:
            tried.append(fullest(costs, after, ranks))
    assert min(tried) >= least * (1.0 - 1e-9)
