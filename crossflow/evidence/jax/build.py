"""Writes the program of what a text runs: operations on streams, loops as blocks that repeat, and what a device holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.evidence.jax.phases import BACKWARD, FORWARD, UPDATE, WEIGHTS, HloParameters
from crossflow.evidence.jax.steps import HloLoop, HloStep, Items, TracedText, steps_in, weighted
from crossflow.evidence.jax.text import ELEMENTS
from crossflow.program.blocks import MOST
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Product
from crossflow.program.mesh import RankMesh
from crossflow.program.program import Program

LARGE = 1024.0  # constants that a device is told to hold [B]


def dtype_of(text: TracedText) -> tuple[str, float]:
    """Type in which most is multiplied, and the share of the operations that is not."""
    found = Counter[str]()
    for step, times in weighted(text.items):
        found[step.dtype] += times * sum(float(one.flops) for one in step.kernels if isinstance(one, Product))  # type: ignore[assignment]
    del found[""]
    if not found or not found.total():
        weights = Counter(ELEMENTS[one.dtype][1] for _, one in text.arguments if one.floats)
        return next((name for name, _ in weights.most_common() if name), "fp32"), 0.0
    name, most = found.most_common(1)[0]
    return name, 1.0 - most / found.total()


def program_of_text(text: TracedText, given: HloParameters, mesh: RankMesh, *, name: str, dtype: str, samples: int, tokens: int) -> Program:
    """The program of a traced text."""
    builder = ProgramBuilder(name=name, dtype=dtype, axes=mesh.axes, groups=mesh.groups)
    writer = _TextWriter(builder=builder, mesh=mesh)
    if written(text.items) > MOST:
        raise CrossflowError(f"the loops of the text, one inside another, are {written(text.items):,} operations, and {MOST:,} at most")
    writer.write(text.items)
    if not writer.places:
        raise CrossflowError("the text runs nothing on a device")
    _hold(builder, text, given, writer)
    weights = (one for (_, one), kind in zip(text.arguments, given.kinds, strict=True) if kind == WEIGHTS)
    total = 0.0
    for one in weights:
        count = 1
        for size in one.whole:
            count *= size
        total += count
    return builder.build(samples=samples, tokens=tokens, parameters=total, training=given.trains)


def laid_out(items: Items) -> int:
    """Operations where every loop is written trip by trip. [1]"""
    return sum(item.trips * laid_out(item.items) if isinstance(item, HloLoop) else 1 for item in items)


def written(items: Items) -> int:
    """Operations where loops are blocks that repeat; of loops inside others, one is a block, whichever leaves least to write. [1]"""
    return sum(min(laid_out(one.items), one.trips * written(one.items)) if isinstance(one, HloLoop) else 1 for one in items)


@dataclass(kw_only=True)
class _TextWriter:
    """Writes operations; `life` has the first and last place at which each buffer is used, `block` where the loop around a place ends."""

    builder: ProgramBuilder
    mesh: RankMesh
    places: list[HloStep] = field(default_factory=list)
    maker: dict[int, int] = field(default_factory=dict)  # last operation that wrote each buffer
    reading: dict[int, int] = field(default_factory=dict)  # last message that reads it
    life: dict[int, list[int]] = field(default_factory=dict)
    made: dict[int, int] = field(default_factory=dict)  # operation that makes it first

    def write(self, items: Items) -> None:
        """Steps, and loops as blocks or trip by trip."""
        for item in items:
            if isinstance(item, HloStep):
                self._step(item)
            elif item.trips == 1 or laid_out(item.items) > item.trips * written(item.items):
                for _ in range(item.trips):
                    self._trip(item.items)
            else:
                with self.builder.repeat(item.trips):
                    first = len(self.places)
                    self._trip(_flat(item.items))
                self._hand_on(first)

    def _trip(self, items: Items) -> None:
        self.write(items)
        for step in steps_in(items):
            for new, old in step.carries.items():
                if new in self.maker:
                    self.maker[old] = self.maker[new]

    def _hand_on(self, first: int) -> None:
        """What the next trip waits for: buffers that this one fills, and messages for which nothing in the body waits."""
        last, ends = len(self.places) - 1, dict[int, int]()
        for place in range(first, last + 1):
            ends |= dict.fromkeys((*self.places[place].writes, *self.places[place].carries.values()), place)
        waited = set[int]()
        seen = set[int]()
        for place in range(first, last + 1):
            step = self.places[place]
            waited |= {self.maker[key] for key in step.reads if key in self.maker}
            for key in step.reads:
                if key in ends and key not in seen and ends[key] >= place:
                    self.builder.carry(ends[key], place)
            seen |= step.writes.keys()
        for place in range(first, last + 1):
            if self.places[place].collective is not None and place not in waited:
                self.builder.carry(place, first)

    def _step(self, step: HloStep) -> None:
        place = len(self.places)
        after = {self.maker[key] for key in (*step.reads, *step.writes) if key in self.maker}
        after |= {self.reading[key] for key in step.writes if key in self.reading}
        where: dict[str, Any] = {"layer": step.layer, "phase": step.phase, "name": step.name, "after": after}
        if step.collective is not None:
            self.builder.send(step.collective, step.size, self.mesh.of[step.ranks], **where)
            self.reading |= dict.fromkeys(step.reads, place)
        else:
            self.builder.compute(where.pop("name"), *step.kernels, **where)
        self.maker |= dict.fromkeys(step.writes, place)
        self.places.append(step)
        for key in step.writes:
            self.made.setdefault(key, place)
        for key in (*step.reads, *step.writes):
            self.life.setdefault(key, [place, place])[1] = place


def _flat(items: Items) -> Items:
    """Items of a block, in which every loop is written trip by trip."""
    found = Items()
    for item in items:
        found += [one for _ in range(item.trips) for one in _flat(item.items)] if isinstance(item, HloLoop) else [item]
    return found


def _hold(builder: ProgramBuilder, text: TracedText, given: HloParameters, writer: _TextWriter) -> None:
    """Memory: parameters all the time, results to the end, all else from what makes it to what needs it last."""
    kinds: Counter[str] = Counter()
    lasting = {key for key, _ in text.arguments}
    for (key, one), kind in zip(text.arguments, given.kinds, strict=True):
        del key
        kinds[kind] += one.nbytes  # type: ignore[assignment]
    updated = {text.outputs[out][0] for out in given.updated}
    results = {key for key, _ in text.outputs}
    for key in writer.life.keys() - writer.made.keys() - lasting:
        if text.sizes[key] >= LARGE:
            kinds["buffers"] += text.sizes[key]  # type: ignore[assignment]  # constants
    for kind, size in kinds.items():
        builder.hold(kind, float(size))
    for key, made in writer.made.items():
        if key in lasting or key in updated:
            continue
        last = writer.life[key][1]
        end = None if key in results else last
        builder.hold(_kind(writer, made, last), text.sizes[key], made=made, last=end)


def _kind(writer: _TextWriter, made: int, last: int) -> str:
    first, end = writer.places[made], writer.places[last]
    phases = first.phase, end.phase
    if phases == (FORWARD, BACKWARD):
        return "activations"
    if phases == (BACKWARD, UPDATE):
        return "gradients"
    passing = first.collective is not None or end.collective is not None
    return "buffers" if passing or UPDATE in phases else "activations"


def groups_in(text: TracedText) -> Mapping[tuple[int, ...], str]:
    """Ranks of all groups that communicate, from 0."""
    return dict.fromkeys((step.ranks for step in steps_in(text.items) if step.collective is not None), "")
