"""Worlds whose devices, links and passes are not alike: slow ranks, slow links, jitter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from crossflow.base import files
from crossflow.base.arrays import Array, Index
from crossflow.base.errors import CrossflowError
from crossflow.base.files import FileModel
from crossflow.base.limits import Finite, Seed
from crossflow.engine.timeline.pipeline import Walk
from crossflow.parallel.strategy.layout import Layout

Speed = Annotated[Finite, Field(ge=1e-3, le=1e3)]
Position = Annotated[int, Field(ge=0)]


class Uneven(FileModel):
    """What makes a world uneven, as a file; speeds are over those of the others, 0.8 is a fifth slower."""

    kind: Literal["uneven"] = "uneven"
    ranks: Mapping[Position, Speed] = Field(default={}, description="speed of single devices")
    stages: Mapping[Position, Speed] = Field(default={}, description="speed of all devices of pipeline stages")
    replicas: Mapping[Position, Speed] = Field(default={}, description="speed of all devices of replicas (data and context ranks)")
    links: Mapping[Position, Speed] = Field(
        default={}, description="rate of the links from stages to the ones after them, from the last to the first"
    )
    ports: Mapping[Position, Speed] = Field(
        default={},
        description="rate of all links of single devices: collectives and transfers take as long as on the slowest that takes part; "
        "not of transformers",
    )
    jitter: Finite = Field(
        default=0.0,
        ge=0,
        le=1,
        description="standard deviation of a pass's computing over its mean, log-normal; replicas in step share the slowest; "
        "of all workloads but transformers, that of each operation on each device",
    )
    seed: Seed = Field(default=0, ge=0, description="of the jitter's random numbers")

    @property
    def even(self) -> bool:
        """Whether nothing differs."""
        return not (self.ranks or self.stages or self.replicas or self.links or self.ports or self.jitter)

    def drawn(self, *shape: int) -> Array:
        """Computing times over their mean, seeded. [1]"""
        if not self.jitter:
            return np.ones(shape)
        spread = np.sqrt(np.log1p(self.jitter**2))
        rng = np.random.default_rng(self.seed)
        return rng.lognormal(-0.5 * spread**2, spread, shape)


EVEN = Uneven()


def load_uneven(path: Path) -> Uneven:
    """What a file says of an uneven world; SpecError with all of its problems."""
    document = files.read_yaml(path)
    found = files.validate(Uneven, document)
    if found.even:
        raise document.error(("kind",), "nothing differs; give ranks, stages, replicas, links, ports or jitter")
    if "seed" in found.model_fields_set and not found.jitter:
        raise document.error(("seed",), "it is of jitter, and there is none; give jitter, or leave it out")
    return found


@dataclass(frozen=True, kw_only=True)
class World:
    """Speeds of the devices of a plan, replicas that are alike taken together."""

    members: tuple[Index, ...]  # replicas (data and context ranks) of each kind, of which the first stands for all
    speed: Array  # of every rank of a tensor group, shape (stages, kinds, tp). [1]
    slowest: Array  # of the slowest rank that passes wait for, shape (stages, kinds). [1]
    jitter: Array  # computing of every slot over its mean, shape (slots, kinds). [1]
    link: Array  # rate of the links out of every stage, shape (stages,). [1]
    places: Index  # rank of every device, shape (stages, replicas, tp). [1]

    def ranks(self, stage: int, replicas: Index, within: Index) -> list[int]:
        """Ranks of some replicas' tensor groups, of which those `within`, in a stage."""
        return [int(rank) for rank in self.places[stage][np.ix_(replicas, within)].ravel()]

    @classmethod
    def of(cls, uneven: Uneven, layout: Layout, walk: Walk, stages: int, *, in_step: int, wraps: bool) -> World:
        """World of a single plan.

        Parameters
        ----------
        in_step : replicas side by side that run in step. [1]
        wraps : whether the last stage sends to the first.

        Raises
        ------
        CrossflowError
            Where a rank, stage or replica is meant that the plan does not have, and where ports are.
        """
        if uneven.ports:
            message = "ports of single devices are supported for lstm, gemm, dlrm and programs only"
            raise CrossflowError(f"uneven: ports: {message}; give links, those between stages")
        tp, replicas = int(layout.tp[0]), int(layout.dp[0] * layout.cp[0])
        links = stages if wraps else stages - 1
        check_places(uneven, {"ranks": stages * replicas * tp, "stages": stages, "replicas": replicas, "links": links})
        speed = np.ones((stages, replicas, tp))
        for stage, factor in uneven.stages.items():
            speed[stage] *= factor
        for replica, factor in uneven.replicas.items():
            speed[:, replica] *= factor
        step = {block: int(stride[0]) for block, stride in layout.strides.items()}
        apart = np.ix_(np.arange(stages) * step["pp"], np.arange(replicas) * step["dp"], np.arange(tp) * step["tp"])
        places: Index = apart[0] + apart[1] + apart[2]
        for rank, factor in uneven.ranks.items():
            speed[places == rank] *= factor
        slowest = _together(speed.min(axis=2), in_step, np.min)
        seen = np.concatenate([speed.transpose(1, 0, 2).reshape(replicas, -1), slowest.T], axis=1)
        kinds = np.arange(replicas) if uneven.jitter else np.unique(seen, axis=0, return_inverse=True)[1].ravel()
        members = tuple(np.flatnonzero(kinds == kind) for kind in range(kinds.max() + 1))
        first = [int(mine[0]) for mine in members]
        jitter = uneven.drawn(len(walk.before), len(members))
        jitter = _together(jitter, in_step, np.max) if uneven.jitter else jitter
        link = np.array([uneven.links.get(stage, 1.0) for stage in range(stages)])
        return cls(members=members, speed=speed[:, first], slowest=slowest[:, first], jitter=jitter, link=link, places=places)

    def rate(self, sender: Index, receiver: Index) -> Array:
        """Rate of the links between stages: those between neighbours, or the one from the last to the first. [1]"""
        near = np.abs(np.subtract(sender, receiver)) == 1
        return np.asarray(self.link[np.where(near, np.minimum(sender, receiver), len(self.link) - 1)])


def in_step(layout: Layout, *, flush: bool) -> int:
    """Replicas that run in step, side by side: those that share samples or experts, all where weights are gathered or gradients reduced
    in each pass.
    """
    replicas = int(layout.dp[0] * layout.cp[0])
    group, tp = int(layout.ep[0] * layout.tensor_of("experts")[0]), int(layout.tp[0])
    experts = group // math.gcd(group, tp)  # replicas over which a group of experts lies, beside tensor ranks
    everywhere = layout.zero[0] >= 2 or not flush or any(far[0] for far in layout.distant.values())
    return replicas if everywhere else math.lcm(int(layout.cp[0]), experts)


def _together(values: Array, size: int, chosen: Callable[..., Array]) -> Array:
    """The least or the largest value of every group of `size` replicas side by side, for each of them."""
    rows, replicas = values.shape
    return np.repeat(chosen(values.reshape(rows, replicas // size, size), axis=2), size, axis=1)


def check_places(uneven: Uneven, sizes: Mapping[str, int]) -> None:
    """CrossflowError for places that are not there."""
    for what, size in sizes.items():
        for place in getattr(uneven, what):
            if place >= size:
                there = f"the plan has {size} (0 to {size - 1})" if size else "the plan has none"
                raise CrossflowError(f"uneven: {what}: {place} is not there, {there}")
