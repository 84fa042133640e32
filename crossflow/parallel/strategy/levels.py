"""Strategies of recommendation models as arrays over design points, and the groups of ranks that they make."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from crossflow.base.arrays import Array, Mask
from crossflow.parallel.strategy.hierarchy import KINDS, Hierarchy, Kind
from crossflow.parallel.strategy.mesh import Role
from crossflow.program.groups import Group

_CODES = {role: code for code, role in enumerate(get_args(Role))}


@dataclass(frozen=True, kw_only=True, eq=False)
class RoleGroups:
    """Groups of ranks that one layer type's roles make; arrays of shape (n,)."""

    levels: Array  # codes of the roles inside nodes and between them, shape (2, n)
    node: float  # devices of a node. [1]
    nodes: Array  # nodes. [1]

    def group(self, *roles: Role) -> Group:
        """Ranks of one group of these roles together: the node's, one of each node, or all."""
        inside, between = np.isin(self.levels, [_CODES[role] for role in roles])
        per_node = np.where(inside, self.node, 1.0)
        size = per_node * np.where(between, self.nodes, 1.0)
        stride = np.where(~inside & between, self.node, 1.0)
        return Group(size=size, per_node=per_node, stride=stride, devices=self.node * self.nodes, extent=size)

    @functools.cached_property
    def tensor(self) -> Group:
        """Ranks that share each layer."""
        return self.group("columns")

    @functools.cached_property
    def shards(self) -> Group:
        """Ranks over which weights are shared out and gathered (FSDP)."""
        return self.group("shard")

    @functools.cached_property
    def copies(self) -> Group:
        """Ranks that hold the same weights or the same shard of them; only that shard's gradient is reduced among them."""
        return self.group("batch")

    @functools.cached_property
    def expert(self) -> Group:
        """Ranks that share out the experts."""
        return self.group("experts")

    @property
    def data(self) -> Array:
        """Ranks that have samples of their own. [1]"""
        return np.asarray(self.node * self.nodes / self.tensor.size)

    def same(self, other: RoleGroups) -> Mask:
        """Where two layer types have the same tensor groups, so that activations stay where they are."""
        ours, theirs = self.levels == _CODES["columns"], other.levels == _CODES["columns"]
        return np.asarray((ours == theirs).all(axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Hierarchies:
    """Groups of every layer type, with the batch [samples] and the nodes of each point; shape (n,)."""

    dense: RoleGroups
    embedding: RoleGroups
    transformer: RoleGroups
    experts: RoleGroups
    batch: Array
    devices: Array

    @classmethod
    def of(cls, chosen: Sequence[Hierarchy], batch: Array | float, node: int, nodes: Array | float) -> Hierarchies:
        """Arrays of strategies; `batch` is the global batch of each [samples], `nodes` how many nodes each has."""
        count, samples = (np.broadcast_to(np.asarray(values, dtype=float), (len(chosen),)) for values in (nodes, batch))
        found = {
            kind: RoleGroups(
                levels=np.array([[_CODES[role] for role in getattr(one, kind)] for one in chosen]).T, node=float(node), nodes=count
            )
            for kind in KINDS
        }
        return cls(**found, batch=samples, devices=node * count)

    def __len__(self) -> int:
        return int(self.batch.size)

    def groups(self, kind: Kind) -> RoleGroups:
        """Groups of one layer type."""
        found: RoleGroups = getattr(self, kind)
        return found
