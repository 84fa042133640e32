# ruff: noqa: E501  (exact sentences and tables of cases)
"""Strategies by layer type: notation, groups of ranks, what divides a model, and what is told of wrong ones."""

import numpy as np
import pytest

from crossflow.base import files
from crossflow.base.errors import StrategyError
from crossflow.parallel.strategy.hierarchy import (
    KINDS,
    Hierarchy,
    hierarchy_of,
    hierarchy_problem,
    kinds_of,
    legal_hierarchies,
)
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.parallel.strategy.notation import is_by_types
from crossflow.workload.dlrm_spec import DlrmSpec


def model(name="dlrm-a"):
    return files.validate(DlrmSpec, files.read_yaml(files.catalogue("templates")[name])).dlrm()


def arrays(*written, node=8, nodes=16, batch=65536):
    return Hierarchies.of([hierarchy_of(one) for one in written], batch, node, nodes)


# ------------------------------------------------------------------------------------------ notation


def test_one_role_stands_for_all_devices_and_two_for_inside_and_between_nodes():
    found = hierarchy_of({"dense": ["tp", "ddp"], "embedding": ["mp"], "transformer": "fsdp"})
    assert found == Hierarchy(dense=("columns", "batch"), transformer=("shard", "shard"), experts=("columns", "batch"))
    assert str(found) == "dense (tp, ddp), embedding mp, transformer fsdp"


def test_what_is_not_named_is_replicated_and_tables_are_shared_out():
    assert hierarchy_of({}) == Hierarchy() == hierarchy_of({"dense": ["ddp", "ddp"]})


WRONG = [
    ({"dense": ["dpp"]}, "strategy: dense: unknown role 'dpp'; did you mean 'ddp'?; it can be ddp, fsdp, tp"),
    ({"dense": ["mp"]}, "strategy: dense: mp shares out embedding tables, of which dense layers have none; it can be ddp, fsdp, tp"),
    ({"embedding": ["tp"]}, "strategy: embedding: tp gathers or cuts what every sample needs whole, but a sample looks up a few rows of a table; it can be mp, mp-rows, mp-columns, ddp"),
    ({"transformer": ["ep", "ddp"]}, "strategy: transformer: ep shares out experts, of which transformer layers have none; it can be ddp, fsdp, tp"),
    ({"dense": ["tp", "ddp", "ddp"]}, "strategy: dense: expected one role for all devices, or two [inside a node, between nodes], got ['tp', 'ddp', 'ddp']"),
    ({"dense": []}, "strategy: dense: expected one role for all devices, or two [inside a node, between nodes], got []"),
    ({"dense": [8]}, "strategy: dense: unknown role 8; it can be ddp, fsdp, tp"),
    ({"mlp": ["tp"]}, "strategy: unknown layer type 'mlp'; known: dense, embedding, transformer, experts"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sentence"), WRONG)
def test_wrong_strategies_are_told_exactly(given, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(sentence)):
        hierarchy_of(given)


def test_all_problems_are_told_at_once(exactly):
    with pytest.raises(StrategyError) as caught:
        hierarchy_of({"dens": ["tp"], "dense": ["tpp", "mp"], "experts": 3})
    assert str(caught.value).count(";") >= 3
    assert all(word in str(caught.value) for word in ("'dens'; did you mean 'dense'?", "'tpp'", "dense: mp", "experts: unknown role 3"))


def test_a_mapping_of_layer_types_is_a_hierarchy_and_one_of_degrees_is_not():
    assert is_by_types({"dense": ["tp"]})
    assert not any(is_by_types(other) for other in ({"tp": 8}, {}, "d8", None))


# ------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("levels", "tensor", "shards", "copies"),
    [
        (["ddp"], (1, 1), (1, 1), (128, 8)),
        (["fsdp"], (1, 1), (128, 8), (1, 1)),
        (["tp", "ddp"], (8, 8), (1, 1), (16, 1)),
        (["ddp", "tp"], (16, 1), (1, 1), (8, 8)),
        (["fsdp", "ddp"], (1, 1), (8, 8), (16, 1)),
        (["ddp", "fsdp"], (1, 1), (16, 1), (8, 8)),
    ],
)
def test_groups_of_a_layer_type(levels, tensor, shards, copies):
    mesh = arrays({"dense": levels}).dense
    for group, expected in ((mesh.tensor, tensor), (mesh.shards, shards), (mesh.copies, copies)):
        assert (group.size[0], group.per_node[0]) == expected


def test_the_groups_of_every_legal_strategy_use_every_device_once():
    found = legal_hierarchies(model("dlrm-a-moe"), 65536, 8, 16)
    plans = Hierarchies.of(found, 65536, 8, 16)
    for mesh in (plans.dense, plans.experts):
        assert (mesh.tensor.size * mesh.shards.size * mesh.copies.size * mesh.expert.size == 128).all()
    assert (plans.embedding.group("tables", "table_rows", "table_columns").size * plans.embedding.copies.size == 128).all()


def test_arrays_hold_the_strategies_one_by_one():
    chosen = ({"dense": ["tp", "ddp"]}, {"dense": ["fsdp"], "embedding": ["mp-rows", "mp"]}, {"embedding": ["ddp"]})
    together = arrays(*chosen)
    for i, one in enumerate(chosen):
        for kind in KINDS:
            alone = arrays(one).groups(kind)
            assert together.groups(kind).tensor.size[i] == alone.tensor.size[0]
            assert together.groups(kind).copies.per_node[i] == alone.copies.per_node[0]
    assert np.array_equal(together.devices, [128, 128, 128])


# ------------------------------------------------------------------------------------------ what fits


def test_legal_strategies_are_all_pairs_of_roles_that_fit():
    """9 of the dense layers by 16 of the tables, less the one that cuts rows of 92 elements into 128 columns."""
    found = legal_hierarchies(model(), 65536, 8, 16)
    assert len(found) == len(set(found)) == 9 * 15
    assert found[0] == Hierarchy()
    assert kinds_of(model()) == ("dense", "embedding")


def test_on_one_node_a_second_level_says_nothing():
    assert len(legal_hierarchies(model(), 4096, 8, 1)) == 3 * 4


def test_experts_are_shared_out_only_where_they_divide():
    moe = {h.experts for h in legal_hierarchies(model("dlrm-a-moe"), 65536, 8, 16)}
    assert {("experts", "batch"), ("batch", "experts"), ("shard", "experts")} <= moe
    assert ("experts", "experts") not in moe


PROBLEMS = [
    ("dlrm-a", {}, 1000, "global_batch = 1000 is not divisible by 128 devices"),
    (
        "dlrm-a-transformer",
        {"transformer": ["tp", "ddp"]},
        65536,
        "4 attention heads are not divisible by the 8 ranks of transformer (tp, ddp)",
    ),
    ("dlrm-a-moe", {"experts": ["ep"]}, 65536, "16 experts are not divisible by the 128 ranks of experts ep"),
    ("dlrm-a", {"embedding": ["mp-columns"]}, 65536, "rows of 92 elements cannot be cut into 128 columns"),
    ("dlrm-a", {"dense": ["tp", "ddp"]}, 65536, None),
]


@pytest.mark.parametrize(("name", "given", "batch", "sentence"), PROBLEMS)
def test_what_does_not_fit_is_told_in_a_sentence(name, given, batch, sentence):
    assert hierarchy_problem(hierarchy_of(given), model(name), batch, 8, 16) == sentence


@pytest.mark.parametrize(("node", "nodes"), [(1, 8), (8, 1), (1, 1)])
def test_two_roles_are_one_where_a_level_has_one_device(node, nodes):
    """With tables given to ranks, unlike roles at two levels are refused only where both levels divide."""
    written = hierarchy_of({"dense": ["fsdp", "ddp"], "embedding": ["mp"]})
    assert hierarchy_problem(written, model(), 65536, node, nodes, sharded=True) is None
    told = hierarchy_problem(written, model(), 65536, 8, 2, sharded=True)
    assert told == "with sharding a layer type has one role at both levels, such as dense ddp, got dense (fsdp, ddp)"
