"""Thousands of plans, layouts and pipelines, drawn by seed, whose results together are a few figures."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from crossflow.base.errors import CrossflowError
from crossflow.cost.ranks import SystemDelays
from crossflow.engine.timeline.pipeline import SlotPipeline, pipeline_ends
from crossflow.hardware.mapping.placement import layouts, level_bandwidths, pair_route, place_group
from crossflow.hardware.mapping.topology import Network, Topology
from crossflow.parallel.strategy.legality import neighbouring_plans, plan_problem
from crossflow.parallel.strategy.mesh import BIDIRECTIONAL, FOLDED, SCHEDULES
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import read_strategy
from crossflow.parallel.strategy.schedules import schedule_problem
from crossflow.workload.spec import TransformerSpec

TYPES = ("attention", "mlp", "experts", "embedding")
DEGREES = [1, 1, 1, 2, 2, 3, 4]
OPTIONS: Mapping[str, list[Any]] = {  # what is drawn most often is there several times
    "ep": [1, 1, 2, 4, 3], "etp": [0, 0, 1, 2, 4], "attention_tp": [0, 0, 0, 1, 2], "mlp_tp": [0, 0, 0, 1, 2],
    "embedding_tp": [0, 0, 0, 1], "zero": [0, 1, 2, 3, 3, 3], "shard_group": [0, 0, 0, 2, 3], "attention_shard_group": [0, 0, 0, 0, 2],
    "mlp_shard_group": [0, 0, 0, 0, 2, 4], "embedding_shard_group": [0, 0, 0, 0, 2], "experts_shard_group": [0, 0, 0, 0, 2],
    "sequence_parallel": [False, True], "virtual_stages": [1, 1, 2, 3], "micro_batch": [1, 2, 3, 4],
    "recompute": ["none", "selective", "full"], "first_stage": [0, 0, 0, 0, 1, 3], "last_stage": [0, 0, 0, 0, 1, 3],
    "schedule": ["1f1b", "1f1b", *SCHEDULES[:5]], "offload": [(), (), (), ("optimizer",), ("weights",), ("activations",)],
    "stage_layers": [(), (), (), (), (3, 5), (2, 2, 2, 2), (0, 4, 4), (1, 3, 3, 1)],
}  # fmt: skip
NAMED = ("apart", "unsharded", "distant")


def plans(count: int, seed: int, workload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What stands against plans, how they are written and read, and which others are near those that nothing stands against."""
    rng, spec = random.Random(seed), TransformerSpec.model_validate(workload)
    model = spec.transformer()
    problems, texts, near = list[str](), list[str](), list[str]()
    for _ in range(count):
        few = rng.sample(sorted(OPTIONS), 4)
        named = {name: tuple(rng.sample(TYPES, rng.choice([1, 1, 2]))) for name in NAMED if rng.random() < 0.08}
        order = rng.choice(list(itertools.permutations(("tp", "dp", "pp"))))
        degrees = {name: rng.choice(DEGREES) for name in ("tp", "cp", "dp", "pp")}
        options = {name: rng.choice(OPTIONS[name]) for name in few}
        plan = Plan(**degrees, **options, **named, placement=order if rng.random() < 0.4 else ("tp", "dp", "pp"))
        batch, task, balanced = rng.choice([24, 48, 96]), rng.choice(["training"] * 4 + ["prefill", "decode"]), rng.random() < 0.2
        problem = plan_problem(plan, model, batch, balanced=balanced, task=task)
        problems.append(problem or "")
        texts += [str(plan), _again(plan, spec)]
        if problem is None and rng.random() < 0.3:
            near += map(str, neighbouring_plans(plan, model, batch, node=4, task=task, balanced=balanced))
    yield "counts", [sum(not problem for problem in problems), len(set(problems)), len(near)]
    yield "problems", problems
    yield "texts", texts
    yield "near", near


def _again(plan: Plan, spec: TransformerSpec) -> str:
    try:
        return str(read_strategy(str(plan), spec, None))
    except CrossflowError as error:
        return str(error)


SHAPES: list[tuple[str, int, dict[str, Any]]] = [
    ("single", 1, {}), ("ring", 5, {}), ("ring", 6, {"ports": 4}), ("mesh2d", 6, {}), ("mesh2d", 12, {"shape": (3, 4)}),
    ("torus2d", 8, {}), ("torus2d", 12, {}), ("mesh3d", 12, {}), ("torus3d", 16, {}), ("torus3d", 24, {"ports": 12}),
    ("fully-connected", 6, {}), ("hybrid-cube-mesh", 8, {}), ("hybrid-cube-mesh", 4, {}), ("switch", 8, {}), ("rail-only", 12, {}),
    ("fat-tree", 8, {"group": 4, "oversubscription": 2.0}), ("fat-tree", 12, {"group": 3, "oversubscription": 1.5}),
    ("dragonfly", 12, {"group": 4}), ("dragonfly", 8, {"group": 2, "oversubscription": 2.0}),
]  # fmt: skip


def routes(count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """How axes and groups lie on networks of every kind inside packages and between them."""
    rng = random.Random(seed)
    kinds = [Topology(kind=kind, nodes=nodes, **more) for kind, nodes, more in SHAPES]
    for topology in kinds:
        yield str(topology), [topology]
    found: dict[str, list[Any]] = {}
    for _ in range(count):
        network = Network(package=rng.choice(kinds), cluster=rng.choice(kinds))
        left, axes = network.devices, list[tuple[str, int]]()
        for name in ("tp", "dp"):
            size = rng.choice([one for one in range(1, left + 1) if left % one == 0])
            axes, left = [*axes, (name, size)], left // size
        laid = layouts((*axes, ("pp", left)), network, bridged=rng.random() < 0.3)
        ranks, inner = axes[1][1], axes[0][1]
        grouped = place_group(ranks, inner, network, chain=rng.random() < 0.3)
        pairs = [pair_route(one, "pp", pair, inside=inside) for one in laid[:2] for pair in _pairs(left) for inside in (True, False)]
        rates = [level_bandwidths(one, 1e9, 1e8) for one in pairs]
        mine = [pairs, rates, *((one.routes, one.order, one.total_sharing) for one in (*laid, grouped))]
        found.setdefault(f"in a {network.package.kind}", []).extend(mine)
    yield from found.items()


def _pairs(size: int) -> list[tuple[int, int]]:
    """Some shards of a chain that send to others."""
    return [(0, 1), (1, 0), (0, size - 1), (size - 1, 0)] if size > 2 else [(0, 1), (1, 0)] if size > 1 else []


def pipelines(seed: int) -> Iterator[tuple[str, Any]]:
    """When the stages of pipelines end whose passes and transfers take random times."""
    rng = np.random.default_rng(seed)
    for schedule in SCHEDULES:
        drawn = list[SlotPipeline]()
        for stages, chunks, many in itertools.product((1, 2, 3, 4, 6), (1, 2, 3), (1, 2, 3, 4, 6, 7, 12, 24, 60)):
            uneven = chunks > 1 and many % stages and schedule not in FOLDED
            if uneven or schedule_problem(schedule, stages, chunks, many) is not None:
                continue
            rows = stages * chunks * (2 if schedule in BIDIRECTIONAL else 1)
            forward, backward, weight = rng.random((3, rows, 3))
            late = rng.random((2, rows, 3)) * rng.choice([0.0, 0.3])
            apart = weight if schedule in ("zb-h1", "dualpipe", *FOLDED) else None
            one = SlotPipeline(
                forward=forward, backward=backward, late=late, weight=apart, stages=stages, microbatches=many, chunks=chunks,
                schedule=schedule,
            )  # fmt: skip
            drawn += [one, replace(one, backward=None)] if apart is None and schedule != "chimera" else [one]
        yield schedule, pipeline_ends(drawn)


ROLES = ("ddp", "fsdp", "tp", "ep", "pp", "mp", "mp-rows", "mp-columns")
KINDS = ("dense", "embedding", "transformer", "attention", "mlp", "experts")


def strategies(count: int, seed: int) -> Iterator[Any]:
    """Strategies as people write them, right and wrong: roles by layer type, graphs' degrees, plans, as mappings and as text."""
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.7:
            roles = {kind: rng.sample(ROLES, rng.choice([1, 1, 2, 2, 3])) for kind in rng.sample(KINDS, rng.choice([1, 2, 2, 3]))}
            options = {"micro_batch": 2} if rng.random() < 0.15 else {"zero": 3} if rng.random() < 0.1 else {}
            as_text = ", ".join(f"{kind} {held[0] if len(held) == 1 else '(' + ', '.join(held) + ')'}" for kind, held in roles.items())
            yield as_text if rng.random() < 0.4 and not options else {**roles, **options}
        else:
            names = rng.sample(("tp", "dp", "pp", "cp", "ep", "kp1", "lp"), rng.choice([1, 2, 3]))
            sizes = {name: rng.choice([1, 2, 4, 8]) for name in names}
            kernel, kp1, kp2, dp, stages = (rng.choice(some) for some in (("RC", "CR"), (1, 2, 4), (2, 4), (1, 2, 4), (1, 2)))
            text = "-".join(f"{name}{size}" for name, size in sizes.items())
            yield rng.choice([text, sizes, f"{kernel}-{kp1}-{kp2}-d{dp}-p{stages}"])


OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier")
GROUPS = [range(2), range(4), range(8), range(16), range(0, 16, 4), (0, 8), (0, 1, 2, 9), (1, 3, 5, 7)]
SIZES = (1e3, 1e7)  # [B]


def collectives(systems: list[str]) -> Iterator[tuple[str, Any]]:
    """Times of collectives and transfers among groups of ranks of systems, each of 16 devices."""
    for name in systems:
        system = SystemDelays.of(name, 16)
        calls = [(op, size, tuple(ranks)) for op in OPS for size in SIZES for ranks in GROUPS]
        calls += [("send", size, ranks) for size in SIZES for ranks in ((0, 1), (3, 5), (2, 10))]
        yield name, [_time(system, *call) for call in calls]


def _time(system: SystemDelays, *call: Any) -> Any:
    try:
        return system.time(*call)
    except CrossflowError as error:
        return str(error)


DRAWN = {"plans": plans, "routes": routes, "pipelines": pipelines, "collectives": collectives}
