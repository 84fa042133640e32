"""How a model is cut into stages of a pipeline, and what the stages share.

The blocks of the longest list of a model are divided as evenly as whole blocks allow. What runs before them belongs to the first stage,
what runs after them to the last. Weights that modules of two stages share, such as a table that is the head's matrix too, each of the two
holds, and their gradients are summed over both before the update, as Megatron does [1]_.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, and
   `finalize_model_grads` of Megatron-Core.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist
from torch import nn

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.lists import lists
from crossflow.evidence.torch.ops import gradient
from crossflow.evidence.torch.recorder import BACKWARD, FORWARD, UPDATE, Record, StepRecorder, gathers
from crossflow.parallel.strategy.stages import stage_layers


@dataclass(frozen=True, kw_only=True)
class Stages:
    """How a model is cut into stages.

    Attributes
    ----------
    count, microbatches : stages, and microbatches of a step. [1]
    of : stage of every block by the path of its module.
    outer : stage of every other module that has weights of its own.
    tied : names of weights that two stages each hold, with these stages.
    copied : parameters that are held twice for that. [1]
    """

    count: int
    microbatches: int
    of: Mapping[str, int]
    outer: Mapping[str, int] = field(default_factory=dict)
    tied: tuple[Mapping[str, int], ...] = ()
    copied: int = 0

    @classmethod
    def divided(cls, model: Any, count: int, microbatches: int) -> Stages:
        """Stages of as many blocks each as whole blocks allow.

        Raises
        ------
        CrossflowError
            Where the model has fewer blocks than stages.
        """
        layers = max(lists(model), key=len, default=[])
        if len(layers) < count:
            raise CrossflowError(
                f"--parallel pp={count}: the longest list of equal layers of {type(model).__name__} has {len(layers)}; take at most as "
                "many stages"
            )
        names = {id(one): name for name, one in model.named_modules()}
        stage = itertools.chain.from_iterable([i] * size for i, size in enumerate(stage_layers(len(layers), count)))
        return cls(count=count, microbatches=microbatches, of={names[id(one)]: i for one, i in zip(layers, stage, strict=True)})

    @property
    def recorded(self) -> int:
        """Microbatches that differ: the first, one of those between, and the last. [1]"""
        return min(self.microbatches, 3)

    def variant(self, microbatch: int) -> int:
        """Which of those that are recorded a microbatch is like."""
        return 0 if microbatch == 0 else self.recorded - 1 if microbatch == self.microbatches - 1 else 1

    def places(self, records: Sequence[Record]) -> list[int]:
        """Stage of every operation of a microbatch: that of its block, elsewhere that of the block before it in the pass.

        Shards are gathered ahead of the block that needs them, by the stage that has them. A forward pass begins at the first stage, also
        where the backward pass before it ended later, as that of a model whose first layers are not trained.
        """
        found, now, phase = list[int](), 0, FORWARD
        owner: dict[int, int] = {}  # of what is gathered
        for record in records:
            gathering = gathers(record)
            stage = next((owner[key] for key in record.reads if key in owner), None) if gathering else None
            if stage is None:
                if record.phase != phase:
                    now, phase = {FORWARD: 0, BACKWARD: self.count - 1}.get(record.phase, now), record.phase
                own = self.block(record.layer)
                if own is not None:
                    now = max(now, own) if phase == FORWARD else min(now, own)
                stage = now
            if gathering:
                owner |= dict.fromkeys((*record.reads, *record.writes), stage)
            found.append(stage)
        return found

    def block(self, layer: str) -> int | None:
        """Stage of the block that a module belongs to."""
        while layer:
            if layer in self.of:
                return self.of[layer]
            layer = layer.rpartition(".")[0]
        return None

    def of_weights(self, records: Sequence[Record], held: Mapping[int, str], names: Mapping[int, str]) -> dict[int, int]:
        """Stage of all weights that a forward pass reads, by storage.

        Raises
        ------
        CrossflowError
            Where two stages read the same.
        """
        found: dict[int, int] = {}
        for record, stage in zip(records, self.places(records), strict=True):
            for key in record.reads:
                if record.phase == FORWARD and held.get(key) == "weights" and found.setdefault(key, stage) != stage:
                    raise CrossflowError(
                        f"--parallel pp={self.count}: stages {found[key]} and {stage} share the weights {names.get(key, 'of a layer')}, "
                        f"which no module of stage {stage} holds; give it a module with these weights, or, where layers run "
                        "several times, leave pp out"
                    )
        return found


def settled(stages: Stages, module: Any, recorder: StepRecorder) -> Stages:
    """Stages with what their modules outside of the blocks are, from a recorded forward pass; shared weights become one copy a stage.

    Raises
    ------
    CrossflowError
        Where more than two stages share weights.
    """
    read: dict[tuple[int, str], int] = {}
    for record, stage in zip(recorder.records, stages.places(recorder.records), strict=True):
        for key in record.reads:
            read.setdefault((key, record.layer), stage)
    names = Counter(id(one) for _, one in module.named_parameters(remove_duplicate=False))
    sharing: dict[int, dict[str, int | None]] = {}  # stage of every name of some weights, none of one that nothing reads
    for name, one in module.named_parameters(remove_duplicate=False):
        place = _reading(read, recorder.key(one), name.rpartition(".")[0], around=names[id(one)] > 1)
        sharing.setdefault(id(one), {})[name] = place
    placed = [_placed(names) for names in sharing.values()]
    owners = {name.rpartition(".")[0]: stage for names in placed for name, stage in names.items()}
    outer = {owner: stage for owner, stage in owners.items() if owner and stages.block(owner) is None}
    tied = tuple(_untied(module, names) for names in placed if len({*names.values()}) > 1)
    return replace(stages, outer=outer, tied=tied, copied=sum(module.get_parameter(next(iter(names))).numel() for names in tied))


def _reading(read: Mapping[tuple[int, str], int], key: int, module: str, *, around: bool) -> int | None:
    """Stage in which a module reads its weights, none where it is not called; or then the closest module `around` it that reads them, which
    tells the names of tied weights apart.
    """
    while around and (key, module) not in read and module:
        module = module.rpartition(".")[0]
    return read.get((key, module))


def _placed(names: Mapping[str, int | None]) -> dict[str, int]:
    """Stages of the names of some weights; those that nothing reads are of the first stage that does, and there are none without one."""
    known = [stage for stage in names.values() if stage is not None]
    return {name: known[0] if stage is None else stage for name, stage in names.items()} if known else {}


def _untied(module: Any, names: Mapping[str, int]) -> Mapping[str, int]:
    """Give each stage weights of its own; the first name of each stage."""
    first = {stage: name for name, stage in reversed([*names.items()])}
    if len(first) > 2:
        shared = ", ".join(map(str, sorted(first)))
        raise CrossflowError(f"--parallel pp: stages {shared} share the weights {next(iter(names))}; two stages at most may share weights")
    own = module.get_parameter(next(iter(names)))
    copy = nn.Parameter(own.detach().clone(), own.requires_grad)
    for name, stage in names.items():
        if stage != next(iter(names.values())):
            place, _, last = name.rpartition(".")
            setattr(module.get_submodule(place), last, copy)
    return {first[stage]: stage for stage in sorted(first)}


def tied_sums(stages: Stages, module: Any, recorder: StepRecorder) -> Iterator[Record]:
    """Sums of the gradients of weights that two stages hold, between the ranks in the same place of both."""
    module, ranks = getattr(module, "module", module), dist.get_world_size()
    for pair in stages.tied:
        first, last = pair.values()
        for name, stage in pair.items():
            own = gradient(module.get_parameter(name))
            if own is not None:
                size = float(own.numel() * own.element_size())
                moved = {recorder.key(own): size}
                yield Record(
                    name="all_reduce", layer=name.rpartition(".")[0], phase=UPDATE, reads=moved, writes=moved, collective="all_reduce",
                    size=size, ranks=(0, ranks), axis="pp", between=(first, last), meets=f"sum of {' and '.join(pair)}", stage=stage,
                )  # fmt: skip
