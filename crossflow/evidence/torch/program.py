"""Writes the program of what was recorded: operations on streams, messages along axes of the mesh, and what devices hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crossflow.evidence.torch.recorder import BACKWARD, COPY_IN, COPY_OUT, FORWARD, UPDATE, Record
from crossflow.program.builder import ProgramBuilder
from crossflow.program.mesh import RankMesh
from crossflow.program.program import COMPUTE, NETWORK, HostTime, Program

STAGES = "pp"  # axis of the stages of a pipeline


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A step that was recorded.

    Attributes
    ----------
    records : operations in the order in which the host issued them.
    sizes : bytes of every storage. [B]
    held : kinds of the storages that outlive the step.
    parameters : of the whole model. [1]
    stages : of the pipeline. [1]
    stage_of : stage that has a storage, where there are several.
    """

    records: Sequence[Record]
    sizes: Mapping[int, float]
    held: Mapping[int, str]
    parameters: int
    stages: int = 1
    stage_of: Mapping[int, int] = field(default_factory=dict)


def program_of(step: Recorded, mesh: RankMesh, *, name: str, dtype: str, samples: int, tokens: int, training: bool) -> Program:
    """The program of a recorded step, in which every rank of a stage does as the first one does."""
    records = [one for one in step.records if one.collective is None or len(one.ranks) > 1]
    records = reduced_behind(gathered_ahead(records)) if step.stages == 1 else records
    builder = ProgramBuilder(name=name, dtype=dtype, axes=mesh.axes, groups=mesh.groups, stages=STAGES if step.stages > 1 else "")
    waits = _dependencies(records)
    for record, after in zip(records, waits, strict=True):
        where: dict[str, Any] = {"layer": record.layer, "phase": record.phase if training else FORWARD, "rank": record.stage}
        if record.collective is not None:
            axes = mesh.of[record.ranks]
            pair: dict[str, Any] = {"between": record.between, "meets": record.meets}
            builder.send(record.collective, record.size, axes, after=after, stream=_stream(axes, mesh), **pair, **where)
        elif record.host:
            builder.compute(record.name, calls=1, host=record.host, after=after, **where)
        else:
            builder.compute(record.name, *record.kernels, after=after, stream=COMPUTE, **where)
    if training:
        ended = sorted(set(range(len(records))).difference(*waits))
        for stage in range(step.stages):
            times: tuple[HostTime, ...] = ("microbatch", "step") if step.stages == 1 else ("step",)
            _between_steps(builder, [i for i in ended if records[i].stage == stage], times, stage)
    _hold(builder, records, step)
    return builder.build(samples=samples, tokens=tokens, parameters=float(step.parameters), training=training)


def _between_steps(builder: ProgramBuilder, ended: list[int], times: Sequence[HostTime], stage: int) -> None:
    """What the host of some software takes for a microbatch and a step beside its kernels, once all of the step has ended."""
    for time in times:
        ended = [builder.compute(f"host of a {time}", calls=1, host=time, after=ended, phase=UPDATE, rank=stage)]


def _stream(axes: tuple[str, ...], mesh: RankMesh) -> str:
    """Stream of a group: each communicator has its own, as in NCCL."""
    return NETWORK if len(set(mesh.of.values())) < 2 else f"{NETWORK} {' '.join(axes)}"


def gathered_ahead(records: Sequence[Record]) -> list[Record]:
    """Gathers of sharded weights go ahead of the kernels after which the host issues them.

    The host runs ahead of the device. FSDP copies the next shards on a stream of their own, and issues their gather, as soon as those
    before have been copied out of their buffer; nothing else holds them back.
    """
    found, ahead = list[Record](), 0
    for i, record in enumerate(records):
        if record.name == COPY_IN or (record.collective == "all_gather" and i > 0 and records[i - 1].name == COPY_IN):
            made = [one for one in found[ahead:] if one.writes.keys() & record.reads.keys()]  # shards in another type
            found[ahead:] = [*made, record, *(one for one in found[ahead:] if one not in made)]
            ahead += len(made) + 1
            continue
        found.append(record)
        if record.name == COPY_OUT or record.phase != FORWARD:
            ahead = len(found)
    return found


def reduced_behind(records: Sequence[Record]) -> list[Record]:
    """What FSDP computes of reduced gradients goes behind the backward pass, which does not wait for it: it has a stream of its own."""
    found, later = list[Record](), list[Record]()
    reduced, made = set[int](), set[int]()  # what its collectives fill, and what is computed of that
    for record in records:
        if record.phase != BACKWARD:
            found, later = found + later, []
        sent = record.collective is not None
        if record.phase == BACKWARD and not (made if sent else made | reduced).isdisjoint(record.reads):
            made |= record.writes.keys()
            later.append(record)
            continue
        if record.aside and record.collective != "all_gather":
            reduced |= record.writes.keys()
        found.append(record)
    return found + later


def _dependencies(records: Sequence[Record]) -> list[list[int]]:
    """Operations whose end each waits for: those that wrote what it reads or writes, messages that read what it writes, and messages for
    which all later kernels wait.
    """
    writer: dict[int, int] = {}
    sending: dict[int, int] = {}
    found, blocking = list[list[int]](), dict[int, int]()  # by stage
    for i, record in enumerate(records):
        after = {writer[key] for key in (*record.reads, *record.writes) if key in writer}
        after |= {sending[key] for key in record.writes if key in sending}
        after |= {blocking[record.stage]} if record.stage in blocking else set()
        found.append(sorted(after))
        writer |= dict.fromkeys(record.writes, i)
        if record.collective is not None:
            sending |= dict.fromkeys(record.reads, i)
        if record.blocks or record.host:
            blocking[record.stage] = i
        elif record.collective is None:  # kernels behind it follow on their stream
            blocking.pop(record.stage, None)
    return found


def _hold(builder: ProgramBuilder, records: Sequence[Record], step: Recorded) -> None:
    """Memory by liveness: what outlives the step is there all the time, other storages from what fills them to what needs them last."""
    lasting: dict[tuple[str, int], float] = {}
    for key, kind in step.held.items():
        if kind != "gradients":
            place = kind, step.stage_of.get(key, 0)
            lasting[place] = lasting.get(place, 0.0) + step.sizes[key]
    for (kind, stage), size in lasting.items():
        builder.hold(kind, size, rank=stage)
    lives: dict[int, tuple[int, int]] = {}
    for i, record in enumerate(records):
        for key in (*record.reads, *record.writes):
            if step.held.get(key, "gradients") != "gradients":
                continue
            fills = key not in record.reads and record.writes.get(key, 0.0) >= 0.99 * step.sizes[key]
            if key in lives and fills:  # memory of what lived there before was given back
                _end(builder, records, step, key, lives.pop(key))
            first, _ = lives.get(key, (i if key in record.writes else -1, i))
            lives[key] = first, i
    for key, life in lives.items():
        _end(builder, records, step, key, life)


def _end(builder: ProgramBuilder, records: Sequence[Record], step: Recorded, key: int, life: tuple[int, int]) -> None:
    """A storage that lives from one operation to another, from the beginning where nothing fills it."""
    first, last = life
    made = None if first < 0 else first
    stage, size = step.stage_of.get(key, 0), step.sizes[key]
    builder.hold(_kind(records, step, key, life), size, rank=stage, made=made, last=last if made is not None else None)


def _kind(records: Sequence[Record], step: Recorded, key: int, life: tuple[int, int]) -> str:
    first, last = life
    if step.held.get(key) == "gradients":
        return "gradients"
    if first < 0 or records[first].name in (COPY_IN, COPY_OUT):
        return "buffers"
    phases = records[first].phase, records[last].phase
    passing = records[first].collective is not None or records[last].collective is not None
    return "activations" if phases == (FORWARD, BACKWARD) or (phases[0] != UPDATE and not passing) else "buffers"
