# ruff: noqa: E501  (exact sentences and tables of cases)
"""Which rank holds which table: published rules, the predicted cost, the exact program, and the step on all ranks."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from sampled import every
from test_program import scenario_of

from crossflow import evaluate, from_dict, predict, recommendation_program, simulate
from crossflow.answers.steps import own_step
from crossflow.base.errors import CrossflowError
from crossflow.engine.runs.dlrm_sharded import candidates, chosen, step_time
from crossflow.parallel.sharding import exact
from crossflow.parallel.sharding.exact import fullest, held, least_loaded
from crossflow.parallel.sharding.pieces import Piece, singles
from crossflow.parallel.sharding.sharders import RULES, cut, greedy, parts_needed, share_out
from crossflow.workload.dlrm import SHARDERS, ShardingRule, Tables
from crossflow.workload.dlrm_spec import DlrmSpec

TABLES = [
    {"count": 2, "rows": 4_000_000, "width": 128, "pooling": 30, "reuse": 2022},
    {"count": 3, "rows": 9_000_000, "width": 64, "pooling": 12, "reuse": 2021},
    {"count": 9, "rows": 200_000, "width": 64, "pooling": 1, "reuse": "2021-4"},
]
SYSTEM = {"template": "dgx-a100", "devices": 4, "levels": {"memory": {"capacity": "40 GiB"}}}


def model(by="cost", tables=TABLES, system=SYSTEM, **more):
    workload = {
        "model": "dlrm", "tables": tables, "dense_features": 13, "bottom": [512, 64], "top": [512, 1], "global_batch": 8192,
        "table_dtype": "fp32", "sharding": by, **more,
    }  # fmt: skip
    return from_dict({"system": system, "workload": workload, "strategy": {"dense": ["ddp"], "embedding": ["mp"]}})


def tables_of(*shapes):
    return tuple(Tables(count=1, rows=rows, width=width, pooling=pooling) for rows, width, pooling in shapes)


def shared(by, tables, ranks=3):
    pieces = [Piece.whole(i, table) for i, table in enumerate(tables)]
    given = np.ones((3, len(tables))), np.ones(len(tables))
    return share_out(by, tables, pieces, *given, ranks=ranks, capacity=1e12, rule=ShardingRule(), name=by)


# ------------------------------------------------------------------------------------------ rules


def test_the_rules_are_those_of_table_3():
    table = Tables(count=1, rows=10_000, width=64, pooling=5.0)
    assert [RULES[name](table) for name in ("size", "lookup", "norm-lookup", "size-lookup")] == [10_000, 320.0, 5e-4, 1280.0]
    assert shared("naive", tables_of(*[(10, 8, 1.0)] * 7)).where == (0, 1, 2, 0, 1, 2, 0)


def test_the_random_one_is_seeded():
    first, again = shared("random", tables_of(*[(10, 8, 1.0)] * 40)), shared("random", tables_of(*[(10, 8, 1.0)] * 40))
    assert first == again
    assert len(set(first.where)) == 3


def test_greedy_gives_the_most_costly_piece_to_the_least_loaded_rank_that_has_memory():
    costs, sizes = np.array([5.0, 4.0, 3.0, 2.0, 1.0]), np.ones(5)
    assert greedy(costs, sizes, 2, 10.0).tolist() == [0, 1, 1, 0, 0]
    assert greedy(costs, sizes, 2, 3.0).tolist() == [0, 1, 1, 0, 0]
    assert greedy(costs, np.array([3.0, 1.0, 1.0, 1.0, 1.0]), 2, 4.0).tolist() == [0, 1, 1, 0, 1]  # the first has no room for a third


@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_a_plain_search_of_all_ranks(seed):
    rng = np.random.default_rng(seed)
    costs, sizes, ranks = np.round(rng.lognormal(0, 1, 40), 1), rng.lognormal(0, 1.5, 40), 5
    for capacity in (0.0, sizes.sum() / ranks, 2.0 * sizes.sum()):
        load, room, expected = np.zeros(ranks), np.full(ranks, capacity), {}
        for i in np.argsort(-costs, kind="stable"):
            fits = room >= sizes[i]
            expected[i] = np.where(fits, load, np.inf).argmin() if fits.any() else room.argmax()
            load[expected[i]] += costs[i]
            room[expected[i]] -= sizes[i]
        assert greedy(costs, sizes, ranks, capacity).tolist() == [expected[i] for i in range(40)]


def test_look_ups_that_never_end_ask_for_no_parts():
    """As of a point of `explain` whose memory is lost."""
    assert parts_needed(np.array([[np.inf, 1.0], [1.0, 3.0]]), 4).tolist() == [[1.0, 1.0], [1.0, 3.0]]


@pytest.mark.cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("phases", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_exact_one_is_never_worse_than_greedy_and_holds_memory(seed, phases):
    rng = np.random.default_rng(seed)
    costs, sizes = rng.lognormal(0, 1, (phases, 24)), rng.lognormal(0, 1.5, 24)
    capacity = max(2.0 * sizes.sum() / 4, 1.2 * sizes.max())
    start = greedy(costs.sum(axis=0), sizes, 4, capacity)
    found, bound = least_loaded(costs, sizes, 4, capacity, start)
    assert bound <= fullest(costs, found, 4) * (1 + 1e-9)
    assert held(sizes, start, 4) <= capacity
    assert held(sizes, found, 4) <= capacity * (1 + 1e-9)
    assert fullest(costs, found, 4) <= fullest(costs, start, 4)


def test_the_exact_one_is_the_best_of_all_where_all_can_be_tried():
    costs, sizes = np.array([[7.0, 6.0, 5.0, 5.0, 4.0, 3.0, 3.0, 3.0], [1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0]]), np.ones(8)
    every = np.stack(np.meshgrid(*[np.arange(3)] * 8, indexing="ij")).reshape(8, -1)
    for some in (costs[:1], costs):
        best = min(fullest(some, one, 3) for one in every.T)
        found, bound = least_loaded(some, sizes, 3, 99.0, greedy(some.sum(axis=0), sizes, 3, 99.0))
        assert fullest(some, found, 3) == best >= bound


def test_the_exact_one_finds_room_where_greedy_has_none():
    costs, sizes = np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([1.0, 1.0, 2.0, 2.0])
    start = greedy(costs[0], sizes, 2, 3.0)
    assert held(sizes, least_loaded(costs, sizes, 2, 3.0, start).where, 2) <= 3.0


@pytest.mark.cases(1)
@pytest.mark.parametrize("batch", [2048, 8192, 32768])
def test_the_step_of_the_exact_one_is_never_longer_than_that_of_greedy(batch):
    times = {by: predict(model(by, global_batch=batch)).step_time for by in ("cost", "exact")}
    assert times["exact"] <= times["cost"]


# ------------------------------------------------------------------------------------------ conservation


@pytest.mark.cases(4)
@pytest.mark.slow
@pytest.mark.parametrize("split", ["none", "rows", "columns"])
@pytest.mark.parametrize("by", SHARDERS)
def test_every_row_of_every_table_is_somewhere_exactly_once(by, split):
    scenario = model({"by": by, "split": split, "memory": 0.02})
    job, plans, machine = (step := own_step(scenario)).job, step.plans, step.machine
    ((found, *_),) = candidates(job, plans, machine)
    tables = singles(job.model.tables)
    held = [np.zeros((64, 64), dtype=int) for _ in tables]  # a coarse picture of each table
    for piece in found.pieces:
        table = tables[piece.table]
        rows, columns = (
            slice(*(round(64 * end / whole) for end in ends)) for ends, whole in ((piece.rows, table.rows), (piece.columns, table.width))
        )
        held[piece.table][rows, columns] += 1
    assert all((one == 1).all() for one in held)
    assert sum(piece.of(tables).parameters for piece in found.pieces) == job.model.table_parameters
    assert len(found.where) == len(found.pieces)
    assert sum(len(found.of_rank(rank)) for rank in range(4)) == len(found.pieces)


def test_parts_of_a_table_share_its_lookups_by_rows_and_repeat_them_by_columns():
    (table,) = tables_of((1000, 64, 8.0))
    rows = [one.of([table]) for one in Piece.whole(0, table).cut(3, by_rows=True)]
    columns = [one.of([table]) for one in Piece.whole(0, table).cut(3, by_rows=False)]
    assert sum(one.pooling for one in rows) == pytest.approx(8.0)
    assert sum(one.rows for one in rows) == 1000
    assert [one.width for one in columns] == [21, 21, 22]
    assert {one.pooling for one in columns} == {8.0}


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_more_choices_than_are_searched_are_shared_out_greedily_and_the_gap_is_told(monkeypatch):
    monkeypatch.setattr(exact, "MOST", 2000)
    many = [{"count": 599, "rows": 100, "width": 8, "pooling": 1}, {"count": 9, "rows": 2_000_000, "width": 128, "pooling": 90}]
    found, greedily = (predict(model({"by": by, "split": "none"}, many)) for by in ("exact", "cost"))
    assert found.feasible
    assert found.sharding[0].startswith("exact, at most ")
    assert found.sharding[0].endswith("% above the least load")
    assert found.step_time == greedily.step_time
    assert predict(model({"by": "auto", "split": "none"}, many)).step_time <= found.step_time


def test_only_tables_that_are_too_large_or_too_costly_are_cut():
    tables, costs, sizes = tables_of(*[(1000, 64, 8.0)] * 4), np.array([1.0, 1.0, 1.0, 9.0]), np.array([1.0, 5.0, 1.0, 1.0])
    found = cut("rows", tables, parts_needed(costs, 4), sizes, ranks=4, capacity=2.0, element=4.0)
    assert [piece.table for piece in found] == [0, 1, 1, 1, 2, 3, 3, 3]


@pytest.mark.slow
def test_memory_is_never_exceeded_and_what_does_not_fit_is_told():
    scenario = model({"by": "naive", "memory": 0.05})
    found = predict(scenario)
    assert not found.feasible
    assert found.reason == "sharding naive: rank 0 would hold 4.198 GiB of tables, more than 5% of its memory, 2 GiB" + (
        "; its largest piece has 2.179 GiB, which split: rows or columns cuts"
    )
    tight = predict(model({"by": "naive", "memory": 0.0001, "split": "rows"})).reason
    assert "more than 0.01% of its memory, 4.096 MiB; its largest piece has " in tight
    assert tight.endswith(", the least that it is cut to; take more devices")
    assert np.isfinite(found.step_time)
    fitting = predict(model({"by": "auto", "memory": 0.08}))
    assert fitting.feasible
    assert all(row["table_bytes"] <= 0.08 * 40 * 2**30 for row in fitting.sharding[1])


# ------------------------------------------------------------------------------------------ the step


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_step_on_all_ranks_is_that_of_its_file_and_of_every_device_by_itself(tmp_path, ranks):
    system = {**SYSTEM, "devices": ranks}
    scenario = model("naive", system=system)
    predicted = predict(scenario)
    program = recommendation_program(scenario)
    assert program.classes == ranks
    assert predict(scenario_of(program, tmp_path, system, software="torchrec")).step_time == pytest.approx(predicted.step_time, rel=1e-12)
    assert simulate(scenario).total == pytest.approx(predicted.step_time, rel=1e-12)


def test_equal_tables_on_all_ranks_take_what_the_mean_takes():
    """Four tables on four ranks; the step without a sharding has one on each."""
    four = [{"count": 4, "rows": 1_000_000, "width": 64, "pooling": 10, "reuse": 2021}]
    given, mean = (predict(model(by, four)) for by in ("naive", None))
    assert given.step_time == pytest.approx(mean.step_time, rel=1e-9)
    for what in ("flops", "memory_traffic", "memory_needed", "energy"):
        assert getattr(given.score, what)[0] == pytest.approx(getattr(mean.score, what)[0], rel=1e-9), what


@pytest.mark.slow
def test_on_one_device_a_sharding_changes_nothing():
    one = {**SYSTEM, "devices": 1}
    for by in SHARDERS:
        given = predict(model(by, TABLES[2:], one))
        assert given.step_time == pytest.approx(predict(model(None, TABLES[2:], one)).step_time, rel=1e-9)


@pytest.mark.thorough  # what it runs quicker tests run too
@pytest.mark.slow
def test_one_rank_with_all_tables_is_the_slowest_and_auto_the_fastest():
    times = {by: predict(model({"by": by, "split": "auto" if by == "auto" else "none"})).step_time for by in (*SHARDERS, "auto")}
    assert times["auto"] <= min(times.values())
    assert times["cost"] < times["naive"]
    job, plans, machine = (step := own_step(model("naive"))).job, step.plans, step.machine
    ((found,),) = candidates(job, plans, machine)
    ((_, _, steps),) = chosen(job, plans, machine)
    assert step_time(*steps.at(0)) == pytest.approx(times["naive"], rel=1e-12)
    assert found.name == "naive"


def test_the_fullest_rank_sets_the_exchange():
    """All wide tables on the first rank: it sends nearly all that is exchanged."""
    wide = [{"count": 1, "rows": 100_000, "width": 512, "pooling": 1}, {"count": 3, "rows": 100_000, "width": 8, "pooling": 1}]
    even = [{"count": 4, "rows": 100_000, "width": 134, "pooling": 1}]
    sent = [predict(model("naive", tables)).score.communication["all_to_all"][0] for tables in (wide, even)]
    assert sent[0] > 1.5 * sent[1]


@pytest.mark.thorough
@pytest.mark.slow
def test_points_together_are_points_one_by_one():
    points = {
        "workload.sharding": ["naive", "cost", "auto", "cost"], "workload.global_batch": [8192, 8192, 4096, 16384],
        "system.levels.l2.capacity": ["40 MB", "1 MB", "40 MB", "400 MB"],
    }  # fmt: skip
    together = evaluate(model(), points)
    for i in range(4):
        alone = evaluate(model(), {path: values[i : i + 1] for path, values in points.items()})
        assert together.step_time[i] == pytest.approx(alone.step_time[0], rel=1e-12)


def test_the_size_of_a_cache_matters_with_reuse_and_its_bandwidth_too():
    found = evaluate(model(), {"system.levels.l2.capacity": ["64 kB", "4 MB", "40 MB", "4 GB"]})
    assert (np.diff(found.memory_traffic) < 0).all()
    assert found.step_time[0] > found.step_time[1] >= found.step_time[3]  # of the second on, the second cache's bandwidth binds
    slow = evaluate(model(), {"system.levels.l2.bandwidth": ["0.5 TB/s", "7 TB/s"]})
    assert slow.step_time[0] > slow.step_time[1]


def test_more_nodes_work_and_strategies_that_cannot_are_refused():
    two = {"template": "dgx-a100", "nodes": 2}
    assert len(predict(model("cost", system=two)).sharding[1]) == 16
    scenario = {**model("cost", system=two).to_dict(), "strategy": {"dense": ["tp", "ddp"], "embedding": ["mp"]}}
    with pytest.raises(
        CrossflowError, match=r"with sharding a layer type has one role at both levels, such as dense ddp, got dense \(tp, ddp\)"
    ):
        predict(from_dict(scenario))
    scenario["strategy"] = {"dense": ["ddp"], "embedding": ["mp-rows"]}
    with pytest.raises(CrossflowError, match="sharding gives tables to all devices, which is embedding mp, got embedding mp-rows"):
        predict(from_dict(scenario))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uneven": 1.5}, "uneven: sharding says what each device looks up; leave one of them out"),
        ({"sharding": {"by": "cost", "seed": 1}}, "seed is of the random sharder, which cost does not use; leave it out"),
        ({"sharding": "fastest"}, "expected one of auto, naive, random, size, lookup, norm-lookup, size-lookup, cost, exact, got 'fastest'"),
        ({"tables": {**TABLES[0], "distinct": 0.2}}, "distinct follows from reuse; leave one of them out"),
        ({"tables": {**TABLES[0], "rows": 9000}}, "reuse: 3,932,160 lookups of 131,072 samples hit 312,602"),
        ({"tables": {**TABLES[1]}, "global_batch": 131072}, "tables.reuse: counted in a batch of 65,536 samples, which says nothing of 131,072"),
        ({"tables": {**TABLES[1], "reuse": "2023"}}, "there are no reuse factors '2023'"),
        ({"tables": {**TABLES[1], "reuse": {"factors": [0.5, 0.5], "samples": 10}}}, "expected 17 factors that add up to 1, got 2 that add up to 1"),
    ],
)  # fmt: skip
def test_wrong_settings_are_told_exactly(changes, message):
    with pytest.raises(CrossflowError) as raised:
        model(**changes) if "sharding" not in changes else model(changes["sharding"])
    assert message in str(raised.value)


def test_a_prediction_says_what_each_rank_holds():
    found = json.loads(json.dumps(predict(model("size")).to_dict()))["sharding"]
    assert found["sharder"] == "size"
    assert sum(rank["tables"] for rank in found["ranks"]) == 14
    assert sum(rank["lookups"] for rank in found["ranks"]) == pytest.approx(8192 * (2 * 30 + 3 * 12 + 9))
    assert all(rank["lookup_forward_s"] > 0 for rank in found["ranks"])
    assert "sharding" not in predict(model(None)).to_dict()
    assert isinstance(model().workload, DlrmSpec)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("number", every(2, [0, 7, 12, 19]))
def test_the_chosen_sharder_is_the_fastest_or_close_in_a_simulation_with_noise(number, monkeypatch):
    """Tasks of the study of Table IV of Lin et al. (docs/sharding.md)."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs" / "scripts"))
    study = importlib.import_module("sharding_study")
    task, _ = study.run("4 x A100", number, 4)
    assert len(task.predicted) == 8
    assert task.behind <= 0.02
    assert task.simulated[task.chosen] < max(task.simulated.values())
