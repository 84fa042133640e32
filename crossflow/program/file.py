"""Program files: JSON, plain or compressed, of version 1; the form that importers write, and that people may write by hand.

Sizes are bytes and times seconds, as numbers or as text with a unit (``8.4 MB``, ``12 us``); all else is counts. docs/files.md lists
the fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, Field, create_model

from crossflow.base import files, versions
from crossflow.base.errors import Problem, SpecError, did_you_mean
from crossflow.base.files import Document, FileModel
from crossflow.base.formats import DTYPE_BYTES, STORED_BYTES
from crossflow.base.limits import NonNegativeInt, PositiveInt
from crossflow.program.blocks import Block, CopyPlaces
from crossflow.program.forms import NonNegative
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Attention, Experts, Kernel, Lookup, Pass, Product, Scan, Timed
from crossflow.program.order import in_order
from crossflow.program.program import COMPUTE, HOST, NETWORK, Message, Op, Program, Tensor

ROUNDED = 0.02  # by which reuse factors may miss 1: published ones are rounded to three digits


def _row_of(kind: type, /, **others: Any) -> Any:
    """File model of a dataclass: its fields with a form and a description, ``Annotated[type, form, description]``.

    `others` are further fields, as form and default, or those whose form or default in a file is another.
    """
    hints, rows = get_type_hints(kind, include_extras=True), dict[str, Any]()
    for one in dataclasses.fields(kind):
        if metadata := getattr(hints[one.name], "__metadata__", ()):
            form, default = others.pop(one.name, (metadata[0], ... if one.default is dataclasses.MISSING else one.default))
            rows[one.name] = (form, Field(default, description=metadata[1]))
    return create_model(f"{kind.__name__}Row", __base__=FileModel, __doc__=kind.__doc__, **others, **rows)


def _kernel_row(kind: str) -> Any:
    return _row_of(KERNELS[kind], kind=(Annotated[Literal[kind], Field(description="what the row is")], ...))


KERNELS: Mapping[str, type[Kernel]] = {
    "product": Product, "pass": Pass, "attention": Attention, "lookup": Lookup, "scan": Scan, "experts": Experts, "timed": Timed,
}  # fmt: skip
ProductRow, PassRow, AttentionRow, LookupRow, ScanRow, ExpertsRow, TimedRow = map(_kernel_row, KERNELS)
KernelRow: Any = Annotated[ProductRow | PassRow | AttentionRow | LookupRow | ScanRow | ExpertsRow | TimedRow, Field(discriminator="kind")]
MessageRow: Any = _row_of(Message, axes=(Annotated[tuple[str, ...], Field(min_length=1)], ...))
OpRow: Any = _row_of(Op, stream=(str, ""))
TensorRow: Any = _row_of(Tensor)


class GroupRow(FileModel):
    """Devices that communicate although they are no axis of the mesh."""

    ranks: PositiveInt = Field(description="devices of each group")
    stride: PositiveInt = Field(1, description="distance between two of them, in devices as they stand in the system, node by node")


class BlockRow(FileModel):
    """Operations that stand together and repeat."""

    first: NonNegativeInt = Field(description="its first operation")
    last: NonNegativeInt = Field(description="its last operation")
    count: PositiveInt = Field(description="copies that run, one after the other; operations behind the block wait for its last copy")


class ProgramFile(FileModel):
    """A program of version 1."""

    kind: Literal["program"] = Field(description="what the file is")
    version: Annotated[Literal[1], BeforeValidator(versions.check("program"))] = Field(description="of the format")
    name: str = Field("program", description="for reports")
    dtype: str = Field(description="data type of the products")
    mesh: Mapping[str, PositiveInt] = Field({}, description="sizes of the axes of the device mesh by name, nearest neighbours first")
    groups: Mapping[str, GroupRow] = Field(
        {}, description="groups of devices beside the mesh by name, which messages name as they name axes; not together with `stages`"
    )
    stages: str = Field("", description="axis along which ranks run different programs; none where all run the same")
    samples: PositiveInt = Field(1, description="samples of a step over all devices")
    tokens: NonNegativeInt = Field(0, description="tokens of a sample; 0 where the word has no meaning")
    parameters: NonNegative = Field(0.0, description="parameters of the whole model")
    kernels: tuple[KernelRow, ...] = Field((), description="distinct kernels, which operations name by their place")
    messages: tuple[MessageRow, ...] = Field((), description="distinct collectives and transfers, which operations name by their place")
    ops: tuple[OpRow, ...] = Field(
        min_length=1, description="operations in an order that respects what each waits for and the order of each stream"
    )
    blocks: tuple[BlockRow, ...] = Field((), description="operations that repeat, in their order; none inside another")
    tensors: tuple[TensorRow, ...] = Field((), description="what devices hold, between the operations that need it")


def write_program(program: Program, path: str | Path) -> Path:
    """Write a program to a file whose name ends in ``.json``, or in ``.json.gz`` to be compressed.

    Raises
    ------
    SpecError
        With every problem that `read_program` would find in the file. Nothing is written then.
    """
    target = _named(Path(path))
    plain = document_of(program)
    _checked(Document(file=str(target), data=plain))
    files.write_json(target, plain, indented=True)
    return target


def document_of(program: Program) -> dict[str, Any]:
    """A program as plain data."""
    names = {kind: name for name, kind in KERNELS.items()}
    own = {"kind": "program", **versions.number("program"), "mesh": {name: _one(size) for name, size in program.axes}}
    own |= {"groups": {name: _plain(group) for name, group in program.groups}} if program.groups else {}
    own |= {name: _one(getattr(program, name)) for name in ("name", "dtype", "stages", "samples", "tokens", "parameters")}
    blocks = {"blocks": [_plain(block) for block in program.blocks]} if program.blocks else {}
    return {
        **own,
        "kernels": [{"kind": names[type(kernel)], **_plain(kernel)} for kernel in program.kernels],
        "messages": [_plain(message) for message in program.messages],
        "ops": [_plain(op) for op in program.ops],
        **blocks,
        "tensors": [_plain(tensor) for tensor in program.tensors],
    }


def _plain(one: Any) -> dict[str, Any]:
    """Fields of an object that differ from their defaults; an array stays one, which no file takes."""
    known = one.__dataclass_fields__
    return {
        name: value
        for name, given in vars(one).items()
        if given is not (default := known[name].default) and (hasattr(value := _one(given), "dtype") or value != default)
    }


def _one(value: Any) -> Any:
    """A number of NumPy as Python's own, also in a tuple; all else, and an array of several numbers, as it is."""
    if isinstance(value, tuple):
        return tuple(map(_one, value))
    return value.item() if hasattr(value, "dtype") and value.size == 1 else value


def read_program(path: str | Path) -> Program:
    """Read a program from its file.

    Raises
    ------
    SpecError
        With every problem of the file, each with its place.
    """
    source = _named(Path(path))
    return program_of(files.read_json(source, "a program"), str(source))


def is_program(path: str | Path) -> bool:
    """Whether a file is meant for a program, by its name or by what it holds; a compressed one can be nothing else."""
    source = Path(path)
    if source.suffix == ".gz" or source.name.endswith(".program.json"):
        return True
    try:
        data = files.json_data(source)
    except (OSError, ValueError):
        return False
    return isinstance(data, Mapping) and (data.get("kind") == "program" or "ops" in data)


def is_named_program(path: str | Path) -> bool:
    """Whether the name of a file says that it is a program."""
    return Path(path).name.endswith((".program.json", ".program.json.gz"))


def check_name(path: str | Path) -> None:
    """Raise SpecError for a name that tells nobody that a file which is to be written is a program."""
    if not is_named_program(path):
        message = "a program is JSON; give its file a name that ends in .program.json.gz or .program.json"
        raise SpecError([Problem(file=str(path), message=message)])


def _named(path: Path) -> Path:
    """The path of a program's file, if that is what its name says."""
    if not path.name.endswith((".json", ".json.gz")):
        raise SpecError([Problem(file=str(path), message="a program is JSON; give its file a name that ends in .json or .json.gz")])
    return path


def _checked(document: Document) -> ProgramFile:
    """A document as a program's file; SpecError with every problem of it."""
    found = files.validate(ProgramFile, document)
    problems = [document.problem(path, message) for path, message in _misplaced(found)]
    if problems:
        raise SpecError(problems)
    return found


def program_of(data: Any, file: str = "program") -> Program:
    """A program from plain data; SpecError with every problem of it, but of what is none only that."""
    if not isinstance(data, Mapping) or (data.get("kind") != "program" and "ops" not in data):
        raise SpecError([Problem(file=file, message="is no program: expected a mapping with `kind: program`")])
    found = _checked(Document(file=file, data=data))
    return Program(
        **found.model_dump(include={"name", "dtype", "stages", "samples", "tokens", "parameters"}),
        axes=tuple(found.mesh.items()),
        groups=tuple((name, DeviceGroup(**vars(row))) for name, row in found.groups.items()),
        kernels=tuple(KERNELS[row.kind](**row.model_dump(exclude={"kind"})) for row in found.kernels),
        messages=tuple(Message(**vars(row)) for row in found.messages),
        ops=tuple(Op(**{**vars(row), "stream": row.stream or _stream(row)}) for row in found.ops),
        tensors=tuple(Tensor(**vars(row)) for row in found.tensors),
        blocks=tuple(Block(**vars(row)) for row in found.blocks),
    )


def _stream(row: Any) -> str:
    """Stream of an operation that names none."""
    return NETWORK if row.message is not None else HOST if row.calls and not row.kernels else COMPUTE


Wrong = Iterator[tuple[tuple[str | int, ...], str]]  # where it stands, and a sentence


def _misplaced(found: ProgramFile) -> Wrong:
    """Names and numbers that lead nowhere, with where they stand."""
    if found.dtype not in DTYPE_BYTES:
        yield ("dtype",), f"expected one of {', '.join(DTYPE_BYTES)}, got {found.dtype!r}{did_you_mean(found.dtype, DTYPE_BYTES)}"
    for i, kernel in enumerate(found.kernels):
        stored = getattr(kernel, "stored", "")
        held = STORED_BYTES if isinstance(kernel, ProductRow) else DTYPE_BYTES
        if stored and stored not in held:
            yield ("kernels", i, "stored"), f"expected one of {', '.join(held)}, got {stored!r}{did_you_mean(stored, held)}"
        if isinstance(kernel, AttentionRow) and kernel.kv_heads is not None and kernel.kv_heads > kernel.heads:
            yield ("kernels", i, "kv_heads"), f"expected at most the {kernel.heads:g} heads of queries, got {kernel.kv_heads:g}"
        if isinstance(kernel, AttentionRow) and kernel.work is None:
            yield from ((("kernels", i, field), message) for field, message in _wrong_window(kernel))
        if isinstance(kernel, LookupRow):
            yield from ((("kernels", i, field), message) for field, message in _wrong_reuse(kernel))
    yield from _wrong_axes(found)
    yield from _wrong_pairs(found)
    ranks, ops = found.mesh.get(found.stages, 1), len(found.ops)
    idle = sorted(set(range(ranks)) - {op.rank for op in found.ops})
    if idle:
        yield ("ops",), f"expected operations of every class of ranks along '{found.stages}', got none of rank {', '.join(map(str, idle))}"
    blocks = list(_wrong_blocks(found.blocks, ops))
    yield from blocks
    if not blocks:
        yield from _wrong_in_blocks(found, CopyPlaces.of(ops, tuple(Block(**vars(row)) for row in found.blocks)))
    yield from _wrong_meetings(found)
    counts = {"rank": ranks, "kernels": len(found.kernels), "message": len(found.messages), "carried": ops, "paired": ops}
    for i, op in enumerate(found.ops):
        if op.kernels and op.message is not None:
            yield ("ops", i), "an operation runs kernels or sends a message, not both"
        if op.calls and op.message is not None:
            yield ("ops", i, "calls"), "a message is one call of the host; leave it out"
        if op.host != "kernel" and (op.kernels or not op.calls):
            yield ("ops", i, "host"), "it is the time of calls of an operation that runs no kernels; leave it out"
        if not (op.kernels or op.calls or op.after or op.carried or op.paired) and op.message is None:
            yield ("ops", i), "it does nothing: give it kernels, a message or calls; one that only joins others names them in 'after'"
        yield from _beyond(("ops", i), op, counts)
        for place in op.after:
            if place >= i:
                yield ("ops", i, "after"), f"operation {place} does not stand before it"
    for i, tensor in enumerate(found.tensors):
        yield from _beyond(("tensors", i), tensor, {"rank": ranks, "made": ops, "last": ops})
        if tensor.made is not None and tensor.last is not None and tensor.made > tensor.last:
            yield ("tensors", i, "last"), f"operation {tensor.last} stands before {tensor.made}, which makes it"


def _wrong_window(kernel: Any) -> Iterator[tuple[str, str]]:
    """Windows of attention that leave nothing out."""
    if kernel.window and not kernel.causal:
        yield "window", "a window is supported under a causal mask only; leave it out, or give work"
    elif kernel.window and kernel.length <= 1:
        yield "window", "a single query sees what 'seen' says; leave the window out"
    elif kernel.window and kernel.seen < kernel.length:
        yield "seen", f"expected all keys that are read, {kernel.length:g} or more, for the window says how many a query sees"
    elif kernel.chunked and not kernel.window:
        yield "chunked", "chunks need a window, the tokens of a chunk"


def _wrong_reuse(kernel: Any) -> Iterator[tuple[str, str]]:
    """Reuse factors that are no shares, and what says nothing with them or without."""
    if kernel.reuse is None and kernel.counted is not None:
        yield "counted", "it is the batch of the reuse factors, and there are none; leave it out"
    if kernel.reuse is None:
        return
    if abs(sum(kernel.reuse) - 1.0) > ROUNDED:
        yield "reuse", f"expected shares that add up to 1, got {sum(kernel.reuse):.4g}"
    if kernel.distinct < 1.0:
        yield "distinct", "it follows from reuse; leave it out"
    if kernel.counted is not None and kernel.counted < kernel.samples:
        yield "counted", f"expected the {kernel.samples:g} samples of the kernel or more, got {kernel.counted:g}"


def _wrong_axes(found: ProgramFile) -> Wrong:
    """Axes that are not there, and groups that do not divide the devices."""
    devices = math.prod(found.mesh.values())
    for name, group in found.groups.items():
        if name in found.mesh:
            yield ("groups", name), "expected a name that no axis of the mesh has"
        elif devices % (group.ranks * group.stride):
            given = f"{group.ranks} x {group.stride}" if group.stride > 1 else f"{group.ranks}"
            yield ("groups", name), f"expected ranks x stride to divide the {devices} devices of the mesh, got {given}"
    if found.groups and found.stages:
        yield ("groups",), f"expected none in a program whose ranks along '{found.stages}' differ"
    stages = [(("stages",), (found.stages,), found.mesh)] if found.stages else []
    named = {**found.mesh, **found.groups}
    for path, axes, known in [*stages, *((("messages", i, "axes"), row.axes, named) for i, row in enumerate(found.messages))]:
        for axis in axes:
            if axis not in known:
                yield path, f"'{axis}' is not an axis of the mesh{did_you_mean(axis, known)}; axes: {', '.join(known) or 'none'}"
        if len(axes) > 1 and any(axis in found.groups for axis in axes):
            yield path, f"expected axes of the mesh, or a single group, got {', '.join(axes)}"
        if len(set(axes)) < len(axes):
            yield path, f"expected each axis once, got {', '.join(axes)}"


def _wrong_pairs(found: ProgramFile) -> Wrong:
    """Messages between two places that lie along no single axis, or that other places send."""
    for i, row in enumerate(found.messages):
        if row.between is None:
            continue
        first, last = row.between
        size = found.mesh.get(row.axes[0], 0) if len(row.axes) == 1 else 0
        if not first < last < size:
            yield ("messages", i, "between"), f"expected two places in order along one axis of the mesh, got {first} and {last}"
        elif row.axes[0] == found.stages and any(op.message == i and op.rank not in row.between for op in found.ops):
            yield ("messages", i, "between"), f"expected the classes that send it, got {first} and {last}"


def _wrong_blocks(blocks: Sequence[BlockRow], ops: int) -> Wrong:
    """Blocks beyond the operations, backwards or one in another."""
    before = -1
    for i, block in enumerate(blocks):
        if block.last >= ops or block.last < block.first:
            yield ("blocks", i, "last"), f"expected a number from {block.first} to {ops - 1}, got {block.last}"
        elif block.first <= before:
            yield ("blocks", i, "first"), f"operation {block.first} belongs to the block before it, or stands before that"
        before = max(before, block.last)


def _wrong_in_blocks(found: ProgramFile, places: CopyPlaces) -> Wrong:
    """What reaches out of a block where it cannot."""
    ops = len(found.ops)
    for i, op in enumerate(found.ops):
        if op.carried and any(j < ops and not places.together(i, j) for j in op.carried):
            yield ("ops", i, "carried"), "expected operations of the block that it belongs to"
        if any(j < ops and not places.pairs(j, i) for j in op.paired):
            yield ("ops", i, "paired"), "expected operations of earlier blocks of as many copies as the block that it belongs to"
    for i, one in enumerate(found.tensors):
        if one.made is None or one.last is None or max(one.made, one.last) >= ops:
            continue
        made, last = int(places.count[one.made]), int(places.count[one.last])
        if min(made, last) > 1 and made != last:
            yield ("tensors", i, "last"), f"operation {one.made} makes {made} copies of it, and operation {one.last} frees {last}"


def _wrong_meetings(found: ProgramFile) -> Wrong:
    """Meetings of a single class, of different messages, of ranks that the message does not reach, or of different blocks."""
    meetings: dict[str, list[int]] = {}
    for i, op in enumerate(found.ops):
        if op.meets:
            meetings.setdefault(op.meets, []).append(i)
    block = {place: i for i, one in enumerate(found.blocks) for place in range(one.first, min(one.last, len(found.ops) - 1) + 1)}
    through = _through(found) if meetings else set()
    for name, members in meetings.items():
        first, ops = ("ops", members[0], "meets"), [found.ops[i] for i in members]
        rows = {op.message for op in ops}
        if None in rows or len(rows) > 1:
            yield first, f"expected every operation that meets in '{name}' to send the same message"
        elif len({op.rank for op in ops}) < len(ops):
            yield first, f"expected one operation of each class in '{name}'; a meeting that repeats is one of a block, or has other names"
        elif len(ops) == 1:
            yield first, f"no operation of another class meets in '{name}'"
        elif len({block.get(i) for i in members}) > 1:
            yield first, f"expected all operations that meet in '{name}' in one block, or all outside"
        elif not through.issuperset(members[:1]):
            yield first, f"the classes in '{name}' wait for each other: one of them first has to get through another meeting"
        elif any(row is not None and row < len(found.messages) and found.stages not in found.messages[row].axes for row in rows):
            yield first, f"the classes in '{name}' lie along '{found.stages}', which is no axis of their message"


def _through(found: ProgramFile) -> set[int]:
    """Operations that can run, those of a meeting as the first of them: that wait for nothing that waits for them."""
    node: dict[str, int] = {}
    of = [node.setdefault(op.meets, i) if op.meets else i for i, op in enumerate(found.ops)]
    edges: list[set[int]] = [set() for _ in found.ops]
    last: dict[tuple[int, str], int] = {}
    for i, op in enumerate(found.ops):
        stream = (op.rank, op.stream or _stream(op))
        edges[of[i]] |= {of[j] for j in (*op.after, *op.paired) if j < i} | ({of[last[stream]]} if stream in last else set())
        last[stream] = i
    return set(in_order(edges))


def _beyond(path: tuple[str | int, ...], row: FileModel, counts: Mapping[str, int]) -> Wrong:
    """Places in lists that are shorter."""
    for key, count in counts.items():
        given = getattr(row, key)
        for place in given if isinstance(given, tuple) else () if given is None else (given,):
            if place >= count:
                yield (*path, key), f"expected a number from 0 to {count - 1}, got {place}" if count else f"there is none, got {place}"
