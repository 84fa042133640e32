"""Stages of a pipeline: one microbatch of the whole model is recorded, cut by its layers, and laid out as stages run it, in 1F1B order.

The blocks of the longest list of a model are divided as evenly as whole blocks allow. What runs before them belongs to the first stage,
what runs after them to the last. The first, one middle and the last microbatch are recorded: the first writes gradients, later ones add
to them, and after the last they are reduced and the weights updated, in every stage once.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_leaves_with_path, tree_map

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch.fusion import fused
from crossflow.evidence.torch.program import Recorded, gathered_ahead, reduced_behind
from crossflow.evidence.torch.recorder import BACKWARD, FORWARD, UPDATE, Record, gathers
from crossflow.evidence.torch.stages import Stages
from crossflow.parallel.strategy import schedules
from crossflow.parallel.strategy.schedules import PipelineOrder, pipeline_order
from crossflow.program.kernels import Product

PHASES = {schedules.FORWARD: FORWARD, schedules.BACKWARD: BACKWARD}


@dataclass(frozen=True, kw_only=True)
class _CutRecords:
    """A recorded microbatch in parts.

    Attributes
    ----------
    slots : operations of every stage and phase.
    sent : what every stage hands to the next one, by phase: storages and their bytes. [B]
    """

    slots: Mapping[tuple[int, str], Sequence[Record]]
    sent: Mapping[tuple[int, str], Mapping[int, float]]


def pipelined(step: Recorded, marks: Sequence[int], stages: Stages, ranks: int, *, join: bool, training: bool) -> Recorded:
    """A recorded step as its stages run it, with transfers between ranks that lie `ranks` apart.

    Parameters
    ----------
    marks : where the second and later microbatches begin among the records.
    join : whether pointwise operations are joined.
    """
    parts = [list(step.records[a:b]) for a, b in itertools.pairwise((0, *marks, len(step.records)))]
    updates = [one for one in parts[-1] if one.phase == UPDATE]
    parts = [[one for one in part if one.phase != UPDATE] for part in parts]
    shared = _shared([*parts, updates])
    lasting = step.held.keys() | shared
    cuts = [_cut(part, stages, step, lasting, join=join) for part in parts]
    made = {phase: {key for part in parts for one in part if one.phase == phase for key in one.writes} for phase in (FORWARD, BACKWARD)}
    summed = (made[BACKWARD] - made[FORWARD]) & shared
    names = _Names(step=dataclasses.replace(step, held={**dict.fromkeys(summed, "gradients"), **step.held}), lasting=lasting)
    order = pipeline_order("1f1b", stages.count, 1, stages.microbatches)
    whole: list[set[int]] = [set() for _ in range(stages.count)]  # shards that are gathered already
    last = BACKWARD if training else FORWARD
    again = {key for (_, phase), own in cuts[0].slots.items() if phase == last for _, key in _gathering(own) if key is not None}
    found = list[Record]()
    for stage, kind, microbatch in _in_turn(order if training else order.forward_only):
        cut, phase = cuts[stages.variant(microbatch) if training else 0], PHASES[kind]
        own = _without_gathered(cut.slots.get((stage, phase), ()), whole[stage], again if phase == FORWARD else set())
        own = [names.renamed(one, stage, microbatch) for one in own]
        found += own
        ended = next((one for one in reversed(own) if one.collective is None), None)
        if phase == BACKWARD and ended is not None:
            found.append(dataclasses.replace(
                ended, name="host of a microbatch", layer="", kernels=(), reads=dict.fromkeys(ended.writes, 0.0), writes={},
                host="microbatch",
            ))  # fmt: skip
        if (stage, phase) in cut.sent:
            there = stage + (1 if phase == FORWARD else -1)
            found.append(_transfer(cut.sent[stage, phase], names, (stage, there), microbatch, phase, ranks))
    for stage, mine in _updates(updates, cuts, stages, step.held, join=join, lasting=lasting):
        found += [names.renamed(one, stage, 0) for one in mine]
    return Recorded(
        records=found,
        sizes=names.sizes,
        held=names.held,
        parameters=step.parameters - stages.copied,
        stage_of=names.stages,
        stages=stages.count,
    )


def _gathering(records: Sequence[Record]) -> Iterator[tuple[Record, int | None]]:
    """Operations, those that gather shards with the first of these."""
    of: dict[int, int] = {}
    for record in records:
        gathered = next((of.get(key, key) for key in record.reads), None) if gathers(record) else None
        if gathered is not None:
            of |= dict.fromkeys(record.writes, gathered)
        yield record, gathered


def _without_gathered(records: Sequence[Record], whole: set[int], again: set[int]) -> list[Record]:
    """Operations without the gathers of shards that are `whole` already, to which others are added.

    Stages keep gathered weights from a backward pass to the next pass [1]_. Those that are gathered `again` after a forward pass are not.

    References
    ----------
    .. [1] `torch.distributed.pipelining.stage.backward_maybe_with_nosync`.
    """
    before = frozenset(whole)
    own = list(_gathering(records))
    whole |= {gathered for _, gathered in own if gathered is not None}
    whole -= again
    return [record for record, gathered in own if gathered not in before]


def _shared(parts: Sequence[Sequence[Record]]) -> set[int]:
    """Storages that more than one part of a step touches."""
    seen, found = set[int](), set[int]()
    for part in parts:
        keys = {key for one in part for key in (*one.reads, *one.writes)}
        found |= seen & keys
        seen |= keys
    return found


def _cut(records: Sequence[Record], stages: Stages, step: Recorded, lasting: set[int], *, join: bool) -> _CutRecords:
    """A microbatch in parts. What depends on no weights, such as masks and positions, every stage computes for itself."""
    places = stages.places(records)
    free = _without_weights(records, step.held)
    members = [_members(records, places, free, stage) for stage in range(stages.count)]
    crossing = _crossing(records, places, free, lasting)
    slots: dict[tuple[int, str], list[Record]] = {}
    for stage, mine in enumerate(members):
        own = [records[i] for i in mine]
        if join:
            own = _added_up(own, lasting)
            sent = {key for (place, _), keys in crossing.items() if place == stage for key in keys}
            own = fused(own, lasting | sent)
        for phase in PHASES.values():
            slots[stage, phase] = reduced_behind(gathered_ahead([one for one in own if one.phase == phase]))
    return _CutRecords(slots=slots, sent=crossing)


def _added_up(records: Sequence[Record], lasting: set[int]) -> list[Record]:
    """Gradients of weights that their product adds to those of earlier microbatches, or writes in their type, in one kernel.

    As Megatron's `gradient_accumulation_fusion` does. A storage of gradients outlives a microbatch.
    """
    readers, maker = Counter(key for one in records for key in one.reads), dict[int, int]()
    found: list[Record | None] = list(records)
    for i, record in enumerate(records):
        made = next((key for key in record.reads if key in maker and readers[key] == 1), None)
        summed = next(iter(record.writes), -1)
        if record.name in ("add_", "_to_copy") and made is not None and summed in lasting and record.reads.keys() <= {made, summed}:
            before = records[maker[made]]
            (product,) = before.kernels
            assert isinstance(product, Product)
            moved = (record.reads.get(summed, 0.0) + record.writes[summed]) / float(product.m * product.n * product.batch)
            reads = before.reads | {key: size for key, size in record.reads.items() if key == summed}
            kernel = dataclasses.replace(product, adds=summed in record.reads, result=moved)
            found[i], found[maker[made]] = dataclasses.replace(before, kernels=(kernel,), reads=reads, writes=record.writes), None
        if record.phase == BACKWARD and len(record.kernels) == 1 and isinstance(record.kernels[0], Product) and len(record.writes) == 1:
            maker |= dict.fromkeys(record.writes, i)
    return [one for one in found if one is not None]


def _without_weights(records: Sequence[Record], held: Mapping[int, str]) -> set[int]:
    """Places of the operations of a forward pass that depend on no weights."""
    made, found = set[int](), set[int]()
    for i, record in enumerate(records):
        weighed = any(held.get(key) == "weights" or key in made for key in record.reads)
        if record.phase != FORWARD or record.host or record.collective or weighed:
            made |= record.writes.keys()
        else:
            found.add(i)
    return found


def _members(records: Sequence[Record], places: Sequence[int], free: set[int], stage: int) -> list[int]:
    """Operations of a stage, with those of other stages that depend on no weights and whose results it reads."""
    found, needed = list[int](), set[int]()
    for i in reversed(range(len(records))):
        record = records[i]
        if places[i] == stage or (i in free and not needed.isdisjoint(record.writes)):
            found.append(i)
            needed |= record.reads.keys()
    return found[::-1]


def _crossing(
    records: Sequence[Record], places: Sequence[int], free: set[int], lasting: set[int]
) -> dict[tuple[int, str], dict[int, float]]:
    """What every stage hands to the one after it in each pass, its own results and those of others that it passes on. [B]"""
    writer: dict[int, int] = {}
    found: dict[tuple[int, str], dict[int, float]] = {}
    for i, (record, stage) in enumerate(zip(records, places, strict=True)):
        for key, size in record.reads.items():
            made = writer.get(key, stage)
            if key in lasting or made == stage:
                continue
            phase, way = (FORWARD, 1) if made < stage else (BACKWARD, -1)
            for place in range(made, stage, way):
                passed = found.setdefault((place, phase), {})
                passed[key] = max(passed.get(key, 0.0), size)
        if i not in free:
            writer |= dict.fromkeys(record.writes, stage)
    return found


def _in_turn(order: PipelineOrder) -> Iterator[tuple[int, int, int]]:
    """Stage, kind and microbatch of all slots, each after what it needs."""
    sources, done, count = order.sources.tolist(), set[int](), 3 * order.rows * order.microbatches
    todo = [list(zip(ids.tolist(), slots.tolist(), strict=True))[::-1] for ids, slots in zip(order.ids, order.slots, strict=True)]
    while any(todo):
        for stage, mine in enumerate(todo):
            while mine and (sources[mine[-1][0]] == count or sources[mine[-1][0]] in done):
                number, (kind, _, microbatch) = mine.pop()
                done.add(number)
                yield stage, kind, microbatch


def _transfer(sent: Mapping[int, float], names: _Names, way: tuple[int, int], microbatch: int, phase: str, ranks: int) -> Record:
    """What one stage hands to another."""
    there, here = ({names.of(key, stage, microbatch): size for key, size in sent.items()} for stage in reversed(way))
    return Record(
        name="send_recv", layer="", phase=phase, reads=here, writes=there, collective="send_recv", size=sum(sent.values()),
        ranks=(0, ranks), axis="pp", stage=way[0],
    )  # fmt: skip


def _updates(
    records: Sequence[Record], cuts: Sequence[_CutRecords], stages: Stages, held: Mapping[int, str], *, join: bool, lasting: set[int]
) -> Iterator[tuple[int, Sequence[Record]]]:
    """Updates of every stage: of the weights that it reads, and the gradients that it makes."""
    place = {
        key: stage
        for cut in cuts
        for (stage, phase), own in cut.slots.items()
        for one in own
        for key in (*(key for key in one.reads if held.get(key) == "weights"), *(one.writes if phase == BACKWARD else ()))
    }
    parts: list[list[Record]] = [[] for _ in range(stages.count)]
    now = 0
    for record in records:
        now = next((place[key] for key in (*record.writes, *record.reads) if key in place), now)
        place |= dict.fromkeys(record.writes, now)
        parts[now].append(record)
    for stage, mine in enumerate(parts):
        yield stage, fused(mine, lasting) if join else mine


@dataclass(kw_only=True)
class _Names:
    """Storages of every stage and microbatch, as numbers of their own."""

    step: Recorded
    lasting: set[int]

    def __post_init__(self) -> None:
        self.sizes: dict[int, float] = {}
        self.held: dict[int, str] = {}
        self.stages: dict[int, int] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}

    def of(self, key: int, stage: int, microbatch: int) -> int:
        """Number of a storage; one that outlives a microbatch is the same in all."""
        full = (key, stage, -1 if key in self.lasting else microbatch)
        if full not in self._numbers:
            number = self._numbers[full] = len(self._numbers)
            self.sizes[number], self.stages[number] = self.step.sizes[key], stage
            if key in self.step.held:
                self.held[number] = self.step.held[key]
        return self._numbers[full]

    def renamed(self, record: Record, stage: int, microbatch: int) -> Record:
        """An operation of a stage on the storages of a microbatch."""
        reads, writes = ({self.of(key, stage, microbatch): size for key, size in keys.items()} for keys in (record.reads, record.writes))
        return dataclasses.replace(record, reads=reads, writes=writes, stage=stage)


def microbatch_of(given: Any, samples: int, microbatches: int) -> Any:
    """The share of a microbatch in inputs whose first dimension is that of the samples. A warning names what stays whole.

    Raises
    ------
    CrossflowError
        Where the samples do not divide.
    """
    if samples % microbatches:
        raise CrossflowError(
            f"a batch of {samples} does not divide into {microbatches} microbatches; give --batch or --microbatches so that it does"
        )

    whole = {
        keystr(path): tuple(one.shape)
        for path, one in tree_leaves_with_path(given)
        if isinstance(one, torch.Tensor) and one.dim() > 0 and one.shape[0] not in (1, samples) and microbatches > 1
    }
    if whole:
        named = ", ".join(f"{name.removeprefix('[0]').removeprefix('[1]')} of {shape}" for name, shape in whole.items())
        warnings.warn(
            f"--parallel pp: every microbatch gets all of these inputs, because their first dimension is not the {samples} samples: "
            f"{named}; if they are data of samples, give them that dimension first",
            stacklevel=2,
        )

    def share(one: Any) -> Any:
        sampled = isinstance(one, torch.Tensor) and one.dim() > 0 and one.shape[0] == samples
        return one[: samples // microbatches].clone() if sampled else one

    return tree_map(share, given)
