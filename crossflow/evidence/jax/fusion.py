"""Joins passes as XLA does: what makes a tensor runs inside those that read it, and passes over the same elements run as one.

Three rules, as far as bytes decide [1]_ (`priority_fusion.cc`, `multi_output_fusion.cc` of XLA):

1. A pointwise operation, a broadcast, a slice or a copy runs inside all passes that read its result, and the result is never written,
   if this moves no more bytes than to write it once. It stays a pass of its own where a product, a message, a loop or the caller reads it.
2. A reduction, a scatter and the update of a slice end a pass: their results are there only once all of it was read. What they read may
   be made inside.
3. Two passes over as many elements become one with several results, where the second reads a result of the first or a tensor that the
   first reads too, and waits for nothing between them.

Beside these, a conversion to fewer bits that alone reads a product or a message's result runs inside the product.

References
----------
.. [1] OpenXLA, "XLA:GPU architecture overview", openxla.org/xla/gpu_architecture: fusion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from crossflow.evidence.jax.steps import HloLoop, HloStep, Items, TracedText, segments, steps_in
from crossflow.program.kernels import Pass, Product

SMALL = 1024.0  # bytes that a tensor must have to bring two passes together that both read it [B]


def fuse(text: TracedText) -> None:
    """Join the steps of a text, in place."""
    for items in segments(text.items):
        _narrowed(items, text)
        _inside(items, text)
        _side_by_side(items)


def whole(text: TracedText) -> None:
    """Leave each step to itself."""
    for step in steps_in(text.items):
        _as_pass(step)


def _as_pass(step: HloStep) -> None:
    """The kernel of a pass."""
    if not step.kernels and step.collective is None:
        step.kernels = (Pass(moved=sum(step.reads.values()) + sum(step.writes.values()), flops=step.flops),)


def _readers(items: Items) -> dict[int, list[HloStep]]:
    """Steps of all items that read each buffer, those inside loops too."""
    found: dict[int, list[HloStep]] = {}
    for step in steps_in(items):
        for key in step.reads:
            found.setdefault(key, []).append(step)
    return found


def _narrowed(items: Items, text: TracedText) -> None:
    """Products write what a conversion alone makes of their result."""
    readers, makers = _readers(text.items), {key: item for item in items if isinstance(item, HloStep) for key in item.writes}
    gone = set[int]()
    for item in items:
        if not isinstance(item, HloStep) or not item.narrows:
            continue
        (read,), (made,) = item.reads, item.writes
        maker = makers.get(read)
        single = maker is not None and maker.dtype and len(maker.kernels) == 1 and isinstance(maker.kernels[0], Product)
        if maker is None or not single or len(readers[read]) > 1 or read in text.kept:
            continue
        maker.writes = {made: item.writes[made]}
        maker.kernels = (_narrow(maker.kernels[0], item, read),)  # type: ignore[arg-type]
        maker.carries |= item.carries
        makers[made] = maker
        gone.add(id(item))
    items[:] = [item for item in items if id(item) not in gone]


def _narrow(product: Product, item: HloStep, read: int) -> Product:
    """A product whose elements are written as the conversion leaves them, 16 bits being what products write where nothing is said."""
    written = next(iter(item.writes.values())) / max(product_elements(product), 1.0)
    return dataclasses.replace(product, result=None if written == 2.0 else written) if read in item.reads else product


def product_elements(product: Product) -> float:
    """Elements of the result. [1]"""
    return float(product.batch * product.m * product.n)


def _inside(items: Items, text: TracedText) -> None:
    """Rule 1 and 2: what makes a tensor runs inside those that read it."""
    own = [item for item in items if isinstance(item, HloStep)]
    here, users = {id(step) for step in own}, dict[int, dict[int, HloStep]]()
    for key, found in _readers(text.items).items():
        users[key] = {id(step): step for step in found}
    gone = set[int]()
    for step in reversed(own):
        if step.joining != "loop" or len(step.writes) != 1:
            continue
        ((key, size),) = step.writes.items()
        reading = list(users.get(key, {}).values())
        if key in text.kept or not reading or not all(id(one) in here and one.joining != "alone" for one in reading):
            continue
        if _more(step, key, size, reading) > size + sum(step.reads.values()) + sum(one.reads[key] for one in reading):
            continue
        for one in reading:
            share = min(1.0, one.reads.pop(key) / size) if size else 1.0
            for source, read in step.reads.items():
                one.reads[source] = max(one.reads.get(source, 0.0), read * share)
                users[source][id(one)] = one
            one.flops += step.flops * share
        for source in step.reads:
            users[source].pop(id(step), None)
        gone.add(id(step))
    items[:] = [item for item in items if id(item) not in gone]


def _more(step: HloStep, key: int, size: float, reading: list[HloStep]) -> float:
    """Bytes that passes read more if they make a tensor themselves. [B]"""
    return sum(
        max(0.0, read * (min(1.0, one.reads[key] / size) if size else 1.0) - one.reads.get(source, 0.0))
        for one in reading for source, read in step.reads.items()
    )  # fmt: skip


def _side_by_side(items: Items) -> None:
    """Rule 3, and the kernels of what is left."""
    found, place, writer = Items(), dict[int, list[int]](), dict[int, int]()
    for item in items:
        if isinstance(item, HloLoop):
            writer |= {key: len(found) for step in steps_in([item]) for key in (*step.writes, *step.carries.values())}
            found.append(item)
            continue
        at = _partner(item, found, place, writer) if item.joining != "alone" else None
        if at is None:
            at = len(found)
            found.append(item)
        else:
            _merge(found[at], item)  # type: ignore[arg-type]
        writer |= dict.fromkeys((*item.writes, *item.carries.values()), at)
        if item.joining != "alone":
            for key in (*item.reads, *item.writes):
                place.setdefault(key, []).append(at)
    items[:] = found
    for item in items:
        if isinstance(item, HloStep):
            _as_pass(item)


def _partner(item: HloStep, found: Items, place: Mapping[int, list[int]], writer: Mapping[int, int]) -> int | None:
    """Place of the last pass with which a pass can run: of as many elements, with all that the pass reads there before it or made in it."""
    near = {at for key, size in item.reads.items() if size >= SMALL for at in place.get(key, ())}
    for at in sorted(near, reverse=True):
        other = found[at]
        if not isinstance(other, HloStep) or other.span != item.span or other.phase != item.phase:
            continue
        ready = all(writer.get(key, -1) < at or (key in other.writes and key not in other.reduced) for key in item.reads)
        if ready and all(writer.get(key, -1) < at for key in item.writes):
            return at
    return None


def _merge(one: HloStep, other: HloStep) -> None:
    """One pass that does what two do."""
    made = set(one.writes)
    for key, size in other.reads.items():
        if key not in made:
            one.reads[key] = max(one.reads.get(key, 0.0), size)
    one.writes |= other.writes
    one.flops += other.flops
    one.reduced |= other.reduced
    one.carries |= other.carries
    one.matrix |= other.matrix
    one.joining = "root" if "root" in (one.joining, other.joining) else "loop"
    one.name = one.name if other.name in one.name.split(", ") else f"{one.name}, {other.name}"
