"""Hierarchical strategies: for each layer type what happens inside a node and between nodes [1]_.

``{dense: [tp, ddp], embedding: [mp]}`` reads: dense layers are cut among the devices of a node and replicated between nodes;
tables are shared out over all devices. One role stands for both levels. Each layer type may have a strategy of its own; the
mesh, devices of a node by nodes, is the same for all.

References
----------
.. [1] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. II-B and V.
.. [2] Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
   ISCA 2022: tables whole, by rows or by columns.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from crossflow.arrays import Array, Mask
from crossflow.errors import StrategyError, did_you_mean
from crossflow.program.groups import Group
from crossflow.strategy.mesh import Axis
from crossflow.workload.dlrm import Dlrm

# ddp: replicas, each with samples of its own; fsdp: the same, but weights are shared out and gathered layer by layer; tp: each
# layer is cut; ep: experts are shared out, samples travel to them; mp: tables are shared out whole, by rows or by columns; pp: layers
# are stages of a pipeline.
Level = Literal["ddp", "fsdp", "tp", "ep", "mp", "mp-rows", "mp-columns", "pp"]
Kind = Literal["dense", "embedding", "transformer", "experts"]
Levels = tuple[Level, Level]

KINDS: tuple[Kind, ...] = ("dense", "embedding", "transformer", "experts")
ADDRESSED = (*KINDS, "attention", "mlp")  # layer types that strategies of any model address
ROLES: Mapping[str, tuple[Level, ...]] = {
    "dense": ("ddp", "fsdp", "tp"),
    "embedding": ("mp", "mp-rows", "mp-columns", "ddp"),
    "transformer": ("ddp", "fsdp", "tp"),
    "experts": ("ddp", "fsdp", "tp", "ep"),
}
AXES = ("node", "nodes")  # of the mesh, nearest neighbours first; how many there are the system says


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """Roles of both levels for every layer type, inside a node first; two equal roles are one group over all devices.

    Attributes
    ----------
    dense : MLPs and, where they have no roles of their own, what follows.
    embedding : tables.
    transformer, experts : layers of attention and their MLPs, and experts.
    """

    dense: Levels = ("ddp", "ddp")
    embedding: Levels = ("mp", "mp")
    transformer: Levels = ("ddp", "ddp")
    experts: Levels = ("ddp", "ddp")

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh's axes."""
        return AXES

    def mesh(self, node: int, nodes: int) -> tuple[Axis, ...]:
        """The mesh of a system: devices of a node, nodes."""
        return (Axis(name="node", size=node, role="batch"), Axis(name="nodes", size=nodes, role="batch"))

    def __str__(self) -> str:
        others = [kind for kind in ("transformer", "experts") if getattr(self, kind) != self.dense]
        return ", ".join(f"{kind} {written(getattr(self, kind))}" for kind in ("dense", "embedding", *others))


def written(levels: Levels) -> str:
    """Roles of both levels as text.

    >>> written(("tp", "ddp"))
    '(tp, ddp)'
    """
    return levels[0] if levels[0] == levels[1] else f"({levels[0]}, {levels[1]})"


def is_hierarchy(given: object) -> bool:
    """Whether a strategy is written by layer types rather than by degrees, as a mapping or as text."""
    if isinstance(given, str):
        return re.match(rf"\s*({'|'.join(ADDRESSED)})\b", given) is not None
    return isinstance(given, Mapping) and bool(given) and any(key in ADDRESSED for key in given)


def roles_of(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Roles by layer type, from text too."""
    return _from_text(given) if isinstance(given, str) else given


def parse_hierarchy(given: str | Mapping[str, Any]) -> Hierarchy:
    """Read a strategy by layer types: ``{dense: [tp, ddp], embedding: [mp]}``, or as text, ``dense (tp, ddp), embedding mp``.

    Transformer and experts follow dense where absent.

    Raises
    ------
    StrategyError
        With every layer type that is unknown, and every role that its type cannot have.

    >>> str(parse_hierarchy({"dense": ["tp", "ddp"], "embedding": ["mp"]}))
    'dense (tp, ddp), embedding mp'
    """
    levels = read_roles(roles_of(given), ROLES)
    dense = levels.get("dense", ("ddp", "ddp"))
    return Hierarchy(**{"transformer": dense, "experts": dense, **levels})


def read_roles(given: Mapping[str, Any], known: Mapping[str, Sequence[Level]]) -> dict[str, Levels]:
    """Roles of both levels by layer type, of those `known` with the roles that each can have.

    Raises
    ------
    StrategyError
        With every layer type that is unknown, and every role that its type cannot have.
    """
    problems = [f"unknown layer type '{key}'{did_you_mean(key, known)}; known: {', '.join(known)}" for key in given if key not in known]
    found: dict[str, Levels] = {}
    for kind, roles in known.items():
        if kind in given:
            levels = _levels(kind, given[kind], roles, problems)
            found |= {kind: levels} if levels else {}
    if problems:
        raise StrategyError("strategy: " + "; ".join(problems))
    return found


def _from_text(text: str) -> dict[str, list[str]]:
    """Roles by layer type of a strategy as text."""
    form = r"([a-z]+)\s+(?:\(([^()]*)\)|([a-z-]+))"
    if not re.fullmatch(rf"\s*{form}(?:\s*,\s*{form})*\s*", text):
        raise StrategyError(
            f"strategy '{text}' is not of the form 'dense (tp, ddp), embedding mp', or {{dense: [tp, ddp], embedding: [mp]}}"
        )
    found: dict[str, list[str]] = {}
    for kind, pair, one in re.findall(form, text):
        if kind in found:
            raise StrategyError(f"strategy '{text}': {kind} is there twice")
        found[kind] = _roles(pair or one)
    return found


def _roles(text: str) -> list[str]:
    """Roles of one layer type as text, ``(tp, ddp)`` or ``ddp``."""
    return [role.strip() for role in text.strip().removeprefix("(").removesuffix(")").split(",")]


def _levels(kind: str, given: Any, known: Sequence[Level], problems: list[str]) -> Levels | None:
    """Roles of one layer type, of those `known`; what is wrong with them is added to `problems`."""
    roles: Sequence[Any] = _roles(given) if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
    if not 1 <= len(roles) <= 2:
        problems.append(f"{kind}: expected one role for all devices, or two [inside a node, between nodes], got {given!r}")
        return None
    wrong = [role for role in roles if role not in known]
    for role in wrong:
        problems.append(f"{kind}: {_why_not(kind, role, known)}; it can be {', '.join(known)}")
    return None if wrong else (roles[0], roles[-1])


def _why_not(kind: str, role: Any, known: Sequence[Level]) -> str:
    if role not in ALL_ROLES:
        return f"unknown role {role!r}{did_you_mean(str(role), known)}"
    if role == "mp-columns" and "mp" in known:
        return "mp-columns would cut every word's vector, which a product with the vocabulary needs whole"
    if str(role).startswith("mp"):
        return f"{role} shares out embedding tables, of which {kind} layers have none"
    if kind == "embedding":
        return f"{role} gathers or cuts what every sample needs whole, but a sample looks up a few rows of a table"
    return f"{role} shares out experts, of which {kind} layers have none"


# -------------------------------------------------------------------------------------------- what fits


def kinds_of(model: Dlrm) -> tuple[Kind, ...]:
    """Layer types that a model has."""
    present: Mapping[Kind, bool] = {
        "dense": True, "embedding": True, "transformer": model.encoder is not None, "experts": model.routing is not None
    }  # fmt: skip
    return tuple(kind for kind in KINDS if present[kind])


def hierarchy_problem(hierarchy: Hierarchy, model: Dlrm, batch: int, node: int, nodes: int) -> str | None:
    """Why a strategy cannot divide a model with a global batch over nodes of devices, in a sentence; None where it can."""
    sizes, devices = (node, nodes), node * nodes
    if batch % devices:
        return f"global_batch = {batch} does not divide by {devices} devices"
    absent = [kind for kind in KINDS if kind not in kinds_of(model) and getattr(hierarchy, kind) != hierarchy.dense]
    if absent:
        return f"{absent[0]} {written(getattr(hierarchy, absent[0]))}, but the model has no layers of type {absent[0]}; leave it out"
    if model.encoder is not None:
        heads = model.encoder.attention.attention
        cut = _degree(hierarchy.transformer, "tp", sizes)
        if heads is not None and heads.heads % cut:
            return f"{heads.heads} attention heads do not divide by the {cut} ranks of transformer {written(hierarchy.transformer)}"
    if model.routing is not None:
        groups = _degree(hierarchy.experts, "ep", sizes)
        if model.routing.experts % groups:
            return f"{model.routing.experts} experts do not divide by the {groups} ranks of experts {written(hierarchy.experts)}"
    columns = _degree(hierarchy.embedding, "mp-columns", sizes)
    narrow = min(group.width for group in model.tables)
    if columns > narrow:
        return f"rows of {narrow} elements cannot be cut into {columns} columns"
    return None


def _degree(levels: Levels, role: str, sizes: tuple[int, int]) -> int:
    degree = 1
    for level, size in zip(levels, sizes, strict=True):
        degree *= size if level == role else 1
    return degree


def legal_hierarchies(model: Dlrm, batch: int, node: int, nodes: int) -> tuple[Hierarchy, ...]:
    """Every strategy of the layer types that a model has, those first that share out tables whole and replicate the rest."""
    kinds = kinds_of(model)
    return tuple(
        found
        for found in (_of(dict(zip(kinds, levels, strict=True))) for levels in itertools.product(*(_pairs(kind, nodes) for kind in kinds)))
        if hierarchy_problem(found, model, batch, node, nodes) is None
    )


def _pairs(kind: Kind, nodes: int) -> Iterator[Levels]:
    """Roles of both levels; with one node the second says nothing and is the first."""
    for inside in ROLES[kind]:
        for between in ROLES[kind] if nodes > 1 else (inside,):
            yield inside, between


def _of(levels: Mapping[Kind, Levels]) -> Hierarchy:
    dense = levels["dense"]
    return Hierarchy(
        dense=dense, embedding=levels["embedding"], transformer=levels.get("transformer", dense), experts=levels.get("experts", dense)
    )


# -------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """What one layer type's roles make of the mesh, as groups of ranks; arrays of shape (n,).

    Attributes
    ----------
    inside, between : role of each level, shape (n,).
    node, nodes : devices of a node, and nodes. [1]
    """

    inside: Array
    between: Array
    node: Array
    nodes: Array

    def has(self, role: Level) -> tuple[Mask, Mask]:
        """At which points a role stands inside nodes, and between them."""
        code = ALL_ROLES.index(role)
        return self.inside == code, self.between == code

    def group(self, *roles: Level) -> Group:
        """Ranks of one group of these roles together: the node's, one of each node, or all."""
        inside = np.logical_or.reduce([self.has(role)[0] for role in roles])
        between = np.logical_or.reduce([self.has(role)[1] for role in roles])
        per_node = np.where(inside, self.node, 1.0)
        size = per_node * np.where(between, self.nodes, 1.0)
        stride = np.where(inside, 1.0, np.where(between, self.node, 1.0))
        return Group(size=size, per_node=per_node, stride=stride, devices=self.node * self.nodes, extent=size)

    @property
    def tensor(self) -> Group:
        """Ranks that share each layer."""
        return self.group("tp")

    @property
    def shards(self) -> Group:
        """Ranks over which weights are shared out and gathered (FSDP)."""
        return self.group("fsdp")

    @property
    def copies(self) -> Group:
        """Ranks that hold the same weights or the same shard of them; only that shard's gradient is reduced among them."""
        return self.group("ddp")

    @property
    def expert(self) -> Group:
        """Ranks that share out the experts."""
        return self.group("ep")

    @property
    def holders(self) -> Group:
        """Ranks that share out the tables, in whatever way."""
        return self.group("mp", "mp-rows", "mp-columns")

    @property
    def data(self) -> Array:
        """Ranks that have samples of their own. [1]"""
        return np.asarray(self.node * self.nodes / self.tensor.size)

    def same(self, other: Mesh) -> Mask:
        """Where two layer types have the same tensor groups, so that activations stay where they are."""
        ours, theirs = self.has("tp"), other.has("tp")
        return np.asarray((ours[0] == theirs[0]) & (ours[1] == theirs[1]))


ALL_ROLES: tuple[Level, ...] = ("ddp", "fsdp", "tp", "ep", "mp", "mp-rows", "mp-columns")


@dataclass(frozen=True, kw_only=True, eq=False)
class Hierarchies:
    """Hierarchical strategies as arrays over design points, with the batch and the mesh of each; shape (n,)."""

    dense: Mesh
    embedding: Mesh
    transformer: Mesh
    experts: Mesh
    batch: Array
    node: int
    nodes: Array

    @classmethod
    def of(cls, chosen: Sequence[Hierarchy], batch: Array | float, node: int, nodes: Array | float) -> Hierarchies:
        """Arrays of strategies; `batch` is the global batch of each [samples], `nodes` how many nodes each has."""
        n = len(chosen)
        count = np.broadcast_to(np.asarray(nodes, dtype=float), (n,))

        def mesh(kind: Kind) -> Mesh:
            codes = np.array([[ALL_ROLES.index(role) for role in getattr(one, kind)] for one in chosen], dtype=float).T
            return Mesh(inside=codes[0], between=codes[1], node=np.full(n, float(node)), nodes=count)

        return cls(
            **{kind: mesh(kind) for kind in KINDS}, batch=np.broadcast_to(np.asarray(batch, dtype=float), (n,)), node=node, nodes=count
        )

    def __len__(self) -> int:
        return int(self.batch.size)

    @property
    def devices(self) -> Array:
        """Devices of each point. [1]"""
        return np.asarray(self.node * self.nodes)

    def mesh(self, kind: Kind) -> Mesh:
        """Groups of one layer type."""
        found: Mesh = getattr(self, kind)
        return found
