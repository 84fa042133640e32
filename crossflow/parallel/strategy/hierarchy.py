"""Strategies of recommendation models: for each layer type what happens inside a node and between nodes [1]_.

``{dense: [tp, ddp], embedding: [mp]}`` reads: dense layers are cut among the devices of a node and replicated between nodes;
tables are shared out over all devices. One role stands for both levels. Named degrees say the same of all layers, where they fill
levels: ``tp8-dp2`` in nodes of 8; tables are then shared out whole over all devices.

References
----------
.. [1] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. II-B and V.
.. [2] Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
   ISCA 2022: tables whole, by rows or by columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crossflow.base.errors import StrategyError
from crossflow.base.results import later
from crossflow.parallel.strategy.kinds import LayeredStrategies, Nodes, StrategyFilter, StrategyLimits
from crossflow.parallel.strategy.mesh import BLOCKS, WORD_ROLES, Levels, Mesh, Role, levels_text, needs
from crossflow.parallel.strategy.notation import RECOMMENDATION, Written, parse

if TYPE_CHECKING:
    from crossflow.workload.dlrm import Dlrm
    from crossflow.workload.dlrm_spec import DlrmSpec
else:
    Dlrm = later("crossflow.workload.dlrm", "Dlrm")
    DlrmSpec = later("crossflow.workload.dlrm_spec", "DlrmSpec")

Kind = Literal["dense", "embedding", "transformer", "experts"]
KINDS: tuple[Kind, ...] = ("dense", "embedding", "transformer", "experts")


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """Roles of both levels for every layer type, inside a node first; two equal roles are one group over all devices."""

    dense: Levels = ("batch", "batch")  # MLPs and, where they have no roles of their own, what follows
    embedding: Levels = ("tables", "tables")  # tables
    transformer: Levels = ("batch", "batch")  # layers of attention and their MLPs
    experts: Levels = ("batch", "batch")  # experts

    def __str__(self) -> str:
        others = [kind for kind in ("transformer", "experts") if getattr(self, kind) != self.dense]
        return ", ".join(f"{kind} {levels_text(getattr(self, kind))}" for kind in ("dense", "embedding", *others))


def hierarchy_of(given: Written, nodes: tuple[int, int] | None = None) -> Hierarchy:
    """Roles by layer type from any notation; degrees are those of so many devices of a node, and nodes.

    Transformer and experts follow dense where absent.

    >>> str(hierarchy_of({"dense": ["tp", "ddp"], "embedding": ["mp"]}))
    'dense (tp, ddp), embedding mp'
    >>> str(hierarchy_of("tp8-dp2", (8, 2)))
    'dense (tp, ddp), embedding mp'
    """
    mesh = parse(given, RECOMMENDATION)
    if mesh.by_types:
        return _of(dict(mesh.own))
    return _of_degrees(mesh, nodes) if nodes else Hierarchy()


def _of(levels: Mapping[str, Levels]) -> Hierarchy:
    dense = levels.get("dense", ("batch", "batch"))
    return Hierarchy(**{"transformer": dense, "experts": dense, **levels})


def _of_degrees(mesh: Mesh, nodes: tuple[int, int]) -> Hierarchy:
    """Roles of levels that degrees fill: layers cut over tp, replicas over dp (sharded with zero 3), experts shared out over ep of them.

    Raises
    ------
    StrategyError
        Where a degree fills no level, or another number of devices.
    """
    options, tp, dp = dict(mesh.options), mesh.degree("columns"), mesh.degree("batch")
    node, count = nodes
    if mesh.degree("rows") > 1:
        raise StrategyError(
            f"strategy: kp1 = {mesh.degree('rows')} cuts the rows of every product, which are samples here; give dp all of them"
        )
    if options.get("zero", 0) in (1, 2):
        raise StrategyError(
            f"strategy: zero: {options['zero']} is supported for transformers only; write 0, or 3, which shards the weights too"
        )
    if tp * dp != node * count:
        raise needs(mesh, mesh.axes, tp * dp, node * count)
    data: Role = "shard" if options.get("zero") == 3 else "batch"
    order = [block for block in options.get("placement", BLOCKS) if block != "pp"]
    dense = _filled(("tp", "columns", tp), data, nodes, far=order[0] == "dp")
    ep = options.get("ep", 1)
    if ep == 1:
        return _of({"dense": dense})
    if tp == 1:
        return _of({"dense": dense, "experts": _filled(("ep", "experts", ep), data, nodes, far=False)})
    free = [level for level in (0, 1) if dense[level] == data and nodes[level] > 1]
    if math.prod(nodes[level] for level in free) != ep:
        raise StrategyError(
            f"strategy: ep = {ep} does not fill the {dp} replicas of experts; write ep {dp}, or roles such as experts: [tp, ep]"
        )
    experts = tuple[Role, ...]("experts" if level in free else role for level, role in enumerate(dense))
    return _of({"dense": dense, "experts": (experts[0], experts[1])})


def _filled(degree: tuple[str, Role, int], rest: Role, nodes: tuple[int, int], *, far: bool) -> Levels:
    """Roles of both levels where a degree fills one of them, the one between nodes where it is `far`, all devices or none."""
    name, role, size = degree
    if size == 1:
        return rest, rest
    if size == nodes[0] * nodes[1]:
        return role, role
    if size == nodes[1 if far else 0]:
        return (rest, role) if far else (role, rest)
    between = f" {nodes[1]} between them with placement: [dp, tp, pp]," if name == "tp" else ""
    raise StrategyError(
        f"strategy: {name} = {size} in nodes of {nodes[0]}: a recommendation model has one role inside nodes and one between them;"
        f" write {name} 1, {nodes[0]} inside nodes,{between} or {nodes[0] * nodes[1]}"
    )


# -------------------------------------------------------------------------------------------- what fits


def kinds_of(model: Dlrm) -> tuple[Kind, ...]:
    """Layer types that a model has."""
    present: Mapping[Kind, bool] = {
        "dense": True, "embedding": True, "transformer": model.encoder is not None, "experts": model.routing is not None
    }  # fmt: skip
    return tuple(kind for kind in KINDS if present[kind])


def hierarchy_problem(hierarchy: Hierarchy, model: Dlrm, batch: int, node: int, nodes: int, *, sharded: bool = False) -> str | None:
    """Why a strategy cannot divide a model with a global batch over nodes of devices, in a sentence; None where it can.

    `sharded` says whether each table is given to a rank, which exchanges with all others.
    """
    sizes, devices = (node, nodes), node * nodes
    if sharded and _degree(hierarchy.embedding, "tables", sizes) < devices:
        return f"sharding gives tables to all devices, which is embedding mp, got embedding {levels_text(hierarchy.embedding)}"
    parted = [kind for kind in kinds_of(model) if len(set(getattr(hierarchy, kind))) > 1]
    if sharded and parted and min(sizes) > 1:
        levels = levels_text(getattr(hierarchy, parted[0]))
        return f"with sharding a layer type has one role at both levels, such as {parted[0]} ddp, got {parted[0]} {levels}"
    if batch % devices:
        return f"global_batch = {batch} is not divisible by {devices} devices"
    absent = [kind for kind in KINDS if kind not in kinds_of(model) and getattr(hierarchy, kind) != hierarchy.dense]
    if absent:
        return f"{absent[0]} {levels_text(getattr(hierarchy, absent[0]))}, but the model has no layers of type {absent[0]}; leave it out"
    if model.encoder is not None:
        heads = model.encoder.attention.attention
        cut = _degree(hierarchy.transformer, "columns", sizes)
        if heads is not None and heads.heads % cut:
            return f"{heads.heads} attention heads are not divisible by the {cut} ranks of transformer {levels_text(hierarchy.transformer)}"
    if model.routing is not None:
        groups = _degree(hierarchy.experts, "experts", sizes)
        if model.routing.experts % groups:
            return f"{model.routing.experts} experts are not divisible by the {groups} ranks of experts {levels_text(hierarchy.experts)}"
    columns = _degree(hierarchy.embedding, "table_columns", sizes)
    narrow = min(group.width for group in model.tables)
    if columns > narrow:
        return f"rows of {narrow} elements cannot be cut into {columns} columns"
    return None


def _degree(levels: Levels, role: Role, sizes: tuple[int, int]) -> int:
    return math.prod(size for level, size in zip(levels, sizes, strict=True) if level == role)


def legal_hierarchies(model: Dlrm, batch: int, node: int, nodes: int, *, sharded: bool = False) -> tuple[Hierarchy, ...]:
    """Every strategy of the layer types that a model has, those first that share out tables whole and replicate the rest."""
    kinds = kinds_of(model)
    return tuple(
        found
        for found in (_of(dict(zip(kinds, levels, strict=True))) for levels in itertools.product(*(_pairs(kind, nodes) for kind in kinds)))
        if hierarchy_problem(found, model, batch, node, nodes, sharded=sharded) is None
    )


def _pairs(kind: Kind, nodes: int) -> Iterator[Levels]:
    """Roles of both levels; with one node the second says nothing and is the first."""
    roles = [WORD_ROLES[word] for word in RECOMMENDATION.types[kind]]
    for inside in roles:
        for between in roles if nodes > 1 else (inside,):
            yield inside, between


class RecommendationStrategies(LayeredStrategies):
    """Roles by layer type of a recommendation model."""

    workload: DlrmSpec

    def read(self, written: Written, nodes: Nodes | None) -> Hierarchy:
        """Roles on both levels."""
        return hierarchy_of(written, nodes)

    @property
    def alone(self) -> Hierarchy:
        """Roles that divide nothing on one device."""
        return Hierarchy()

    def legal(self, nodes: Nodes, _: StrategyFilter) -> Iterator[Hierarchy]:
        """Every pair of roles of every layer type."""
        spec = self.workload
        return iter(legal_hierarchies(spec.dlrm(), spec.global_batch, *nodes, sharded=spec.sharding is not None))

    def problem(self, strategy: Hierarchy, limits: StrategyLimits, model: Dlrm | None) -> str | None:
        """Why roles cannot divide the model."""
        spec = self.workload
        return hierarchy_problem(strategy, model or spec.dlrm(), spec.global_batch, *limits.nodes, sharded=spec.sharding is not None)

    def near(self, strategy: Hierarchy, limits: StrategyLimits, wanted: StrategyFilter) -> Mapping[str, str]:
        """All others that divide it."""
        return {text: text for text in map(str, self.legal(limits.nodes, wanted)) if text != str(strategy)}

    def over_all(self, _: int) -> str:
        """Its roles on any number of devices."""
        return str(self.alone)
