"""Reads the text of HLO, as `lowered.compile().as_text()` and the dumps of XLA write it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from crossflow.evidence.jax.groups import groups_of, pairs_of
from crossflow.evidence.jax.text import HloComputation, HloModule, HloOp, HloTensor, HloType, TextError, check_devices, readable, tensor

_HEAD = re.compile(r"^\s*(ENTRY )?%?([\w.\-]+)\s*(?:\((.*)\))?\s*(?:-> .*)?\{\s*$")
_LEFT = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_EDGE = re.compile(r'["(){}\[\]]')
_COMMENT = re.compile(r"/\*.*?\*/")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_OPERAND = re.compile(r"%?([\w.\-]+)$")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TILES = re.compile(r"devices=\[([\d,]+)\]")
KERNEL_NAME = re.compile(r'\bname = "(\w+)"|kernel_name\W+(\w+)')
# Of a product of groups of rows, what names its dimensions.
RAGGED = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch", "lhs_ragged", "rhs_group")
MOST_LINES = 200  # of one operation, whose constant may stand on several
GROUPED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_broadcast", "ragged_all_to_all"})


def read_hlo(text: str) -> HloModule:
    """A module; TextError with the line where the text is none, or is cut off."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith("HloModule")), None)
    if first is None:
        raise TextError(1, "expected 'HloModule', the first word of HLO text")
    head, found, entry = lines[first], dict[str, HloComputation](), ""
    partitions = _number(head, "num_partitions")
    devices = check_devices(_number(head, "replica_count") * partitions, first + 1)
    at = first + 1
    while at < len(lines):
        opened = _HEAD.match(lines[at]) if lines[at].endswith("{") else None
        if opened is None:
            at += 1
            continue
        end = next((i for i in range(at + 1, len(lines)) if lines[i].strip() == "}"), None)
        if end is None:
            raise TextError(len(lines), f"the text ends inside the computation '{opened[2]}'; it is cut off")
        computation = _computation(opened[2], lines, at, end, devices)
        found[computation.name] = computation
        entry = computation.name if opened[1] else entry
        at = end + 1
    if not entry:
        raise TextError(len(lines), "there is no ENTRY computation; the text is cut off, or is no module of HLO")
    entered = found[entry]
    by_name = {op.name: op for op in entered.ops}
    names = tuple(by_name[name].scope for name in entered.parameters)
    with readable(first + 1, "HloModule"):
        donated = _donated(head)
    return HloModule(
        name=re.sub(r"[,\s].*", "", head.removeprefix("HloModule").strip()), computations=found, entry=entry, devices=devices,
        partitions=partitions, donated=donated, names=names, ordered="is_scheduled=true" in head,
    )  # fmt: skip


def _number(head: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", head)
    return int(found[1]) if found else 1


def _donated(head: str) -> dict[int, int]:
    """Outputs that share the memory of parameters."""
    begin = head.find("input_output_alias={")
    if begin < 0:
        return {}
    inside = head[begin : _closed(head, begin + len("input_output_alias="))]
    return {int(out or 0): int(given) for out, given in re.findall(r"\{(\d*)\}: \((\d+), \{\}(?:, (?:may|must)-alias)?\)", inside)}


def _computation(name: str, lines: list[str], begin: int, end: int, devices: int) -> HloComputation:
    ops, root, at = list[HloOp](), "", begin + 1
    while at < end:
        left = _LEFT.match(lines[at])
        if left is None:
            if lines[at].strip():
                raise TextError(at + 1, f"expected an operation '%name = type operation(...)', got '{lines[at].strip()[:60]}'")
            at += 1
            continue
        whole, last = lines[at], at
        while last + 1 < end and last - at < MOST_LINES and _LEFT.match(lines[last + 1]) is None and _is_open(whole):
            last += 1
            whole += " " + lines[last].strip()
        with readable(at + 1, f"'{left[2]}'"):
            ops.append(_op(left[2], whole[left.end() :], at + 1, devices))
        root = left[2] if left[1] else root
        at = last + 1
    if not ops:
        raise TextError(begin + 1, f"the computation '{name}' has no operations")
    given = sorted((op.attributes["index"], op.name) for op in ops if op.op == "parameter")
    results = root or ops[-1].name
    return HloComputation(name=name, ops=tuple(ops), parameters=tuple(one for _, one in given), results=(results,), line=begin + 1)


def _op(name: str, right: str, line: int, devices: int) -> HloOp:
    """An operation from what stands right of its name."""
    right = _COMMENT.sub("", right)
    kind, at = _type(right, 0, line)
    opened = _OPCODE.match(right, at)
    if opened is None:
        raise TextError(
            line, f"expected an operation after the type of '{name}', got '{right[at : at + 40].strip()}'; is the text cut off?"
        )
    try:
        end = _closed(right, opened.end() - 1)
    except ValueError:
        raise TextError(line, f"the operands of '{name}' do not end; the text is cut off") from None
    op, inside, said = opened[1].replace("-", "_"), right[opened.end() : end - 1], dict(_attributes(right[end:]))
    scope = _SCOPE.search(said.pop("metadata", ""))
    plain = op in ("constant", "parameter", "iota")
    operands = () if plain else tuple(_operand(one, name, line) for one in _split(inside))
    found = _meaning(op, inside, said, line, devices)
    if isinstance(kind, HloTensor) and op == "parameter" and "sharding" in said:
        kind = HloTensor(kind.shape, kind.dtype, _shards(said["sharding"], len(kind.shape)))
    return HloOp(
        name=name, op=op, type=kind, operands=operands, attributes=found, scope=scope[1].replace("\\'", "'") if scope else "", line=line
    )


def _operand(text: str, name: str, line: int) -> str:
    found = _OPERAND.search(text.strip())
    if found is None:
        raise TextError(line, f"expected the name of an operand of '{name}', got '{text.strip()[:40]}'")
    return found[1]


def _type(text: str, at: int, line: int) -> tuple[HloType, int]:
    """A type, and where it ends."""
    while text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] == "(":
        parts, at = list[HloType](), at + 1
        while text[at : at + 1] != ")":
            part, at = _type(text, at, line)
            parts.append(part)
            while text[at : at + 1] in (",", " "):
                at += 1
            if at >= len(text):
                raise TextError(line, "the type does not end; the text is cut off")
        return tuple(parts), at + 1
    found = _SHAPE.match(text, at)
    if found is None:
        raise TextError(line, f"expected a type such as f32[8,128], got '{text[at : at + 40].strip()}'")
    dimensions = [one for one in found[2].split(",") if one]
    if any(not one.isdecimal() for one in dimensions):
        raise TextError(line, f"the shape [{found[2]}] is dynamic; give all sizes as numbers: lower the function for one shape")
    return tensor(tuple(map(int, dimensions)), found[1], line), found.end()


def _is_open(text: str) -> bool:
    """Whether brackets are open at the end of a text, as those of a constant on several lines."""
    bare = _QUOTED.sub("", text)
    return sum(bare.count(mark) for mark in "({") > sum(bare.count(mark) for mark in ")}")


def _closed(text: str, at: int) -> int:
    """Place behind the bracket that closes the one at `at`; what stands between quotes does not count."""
    depth, i = list[str](), at
    while found := _EDGE.search(text, i):
        mark, i = found[0], found.end()
        if mark == '"':
            closing = re.compile(r'(?:[^"\\]|\\.)*"').match(text, i)
            if closing is None:
                break
            i = closing.end()
        elif mark in _CLOSING:
            depth.append(_CLOSING[mark])
        else:
            if not depth or depth.pop() != mark:
                break
            if not depth:
                return i
    raise ValueError(text[at : at + 20])


def _split(text: str) -> Iterator[str]:
    """Parts between commas that stand in no brackets."""
    begin = at = 0
    while at < len(text):
        if text[at] in '({["':
            at = _closed(text, at) if text[at] != '"' else at + 1 + _quoted(text, at)
        elif text[at] == ",":
            yield text[begin:at]
            begin = at = at + 1
        else:
            at += 1
    if text[begin:].strip():
        yield text[begin:]


def _quoted(text: str, at: int) -> int:
    found = re.compile(r'(?:[^"\\]|\\.)*"').match(text, at + 1)
    return len(found[0]) if found else len(text) - at


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    name, value = "", ""
    try:
        for part in _split(text.strip().removeprefix(",")):
            word, _, said = part.strip().partition("=")
            if word == "device_ids":  # of the mesh before it
                value += f", device_ids={said}"
                continue
            yield name, value
            name, value = word, said
    except ValueError:
        pass
    yield name, value


def _shards(text: str, dimensions: int) -> tuple[int, ...]:
    """Parts into which each dimension is cut."""
    found = _TILES.search(text)
    return tuple(map(int, found[1].split(",")))[:dimensions] if found else (1,) * dimensions


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"-?\d+", text)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(one.strip().lstrip("%") for one in text.strip("{} ").split(",") if one.strip())


def _meaning(op: str, inside: str, said: Mapping[str, str], line: int, devices: int) -> dict[str, Any]:
    """Attributes as the rest of this package knows them."""
    found: dict[str, Any] = {}
    plain = op.removesuffix("_start").removesuffix("_done")
    if op == "parameter":
        found["index"] = int(inside)
    elif op == "constant":
        found["value"] = int(inside) if re.fullmatch(r"-?\d+", inside.strip()) else None
    elif op == "get_tuple_element":
        found["index"] = int(said["index"])
    elif op == "compare":
        found["direction"] = said.get("direction", "")
    elif op == "dot":
        found |= {"contract": (_ints(said.get("lhs_contracting_dims", "")), _ints(said.get("rhs_contracting_dims", "")))}
        found |= {"batch": (_ints(said.get("lhs_batch_dims", "")), _ints(said.get("rhs_batch_dims", "")))}
    elif op == "ragged_dot":
        found["dims"] = {name: _ints(said.get(f"{name}_dims", "")) for name in RAGGED}
    elif op == "while":
        trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', said.get("backend_config", ""))
        found |= {"body": said["body"].lstrip("%"), "cond": said["condition"].lstrip("%"), "trips": int(trips[1]) if trips else None}
    elif op in ("call", "fusion", "map", "async_start"):
        found["callee"] = (said.get("to_apply") or said.get("calls") or "").lstrip("%")
    elif op == "conditional":
        both = [said[name].lstrip("%") for name in ("true_computation", "false_computation") if name in said]
        found["branches"] = _names(said["branch_computations"]) if "branch_computations" in said else tuple(both)
    elif op == "custom_call":
        found |= {"target": said.get("custom_call_target", "").strip('"'), "config": said.get("backend_config", "")}
        found["kernel"] = _kernel_name(said)
        found |= {"labels": said["dim_labels"], "window": said.get("window", ""), "said": dict(said)} if "dim_labels" in said else {}
    elif op == "convolution":
        found |= {"labels": said["dim_labels"], "window": window_of(said.get("window", ""))}
        found |= {"groups": int(said.get("feature_group_count", 1)), "batch_groups": int(said.get("batch_group_count", 1))}
    elif op == "reduce_window":
        found["window"] = window_of(said.get("window", ""))
    elif plain in GROUPED:
        groups = groups_of(said.get("replica_groups", ""), devices)
        if groups is None:
            raise TextError(line, f"the replica groups {said['replica_groups'][:80]} cannot be read")
        found |= {"groups": groups, "global": "use_global_device_ids" in said or "channel_id" in said}
        found["promoted"] = "promoted" in said.get("to_apply", "")
    elif plain == "collective_permute":
        found |= {"pairs": pairs_of(said.get("source_target_pairs", "{}")), "global": "channel_id" in said}
    return found


def _kernel_name(said: Mapping[str, str]) -> str:
    """The name that the author of a kernel gave it, in the settings of its call; "" where there is none."""
    if "kernel_name" in said:
        return said["kernel_name"].strip('"')
    found = KERNEL_NAME.search(said.get("backend_config", ""))
    return (found[1] or found[2]) if found else ""


HloWindow = tuple[tuple[int, int, int, int, int, int], ...]  # of each dimension: size, stride, padding before and after, dilations


def window_of(text: str) -> HloWindow:
    """A window as HLO writes it: ``{size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=... rhs_dilate=...}``.

    >>> window_of("{size=3x1 pad=1_0x0_0}")
    ((3, 1, 1, 0, 1, 1), (1, 1, 0, 0, 1, 1))
    """
    said = dict(part.split("=") for part in text.strip("{} ").split() if "=" in part)
    sizes = [int(one) for one in said.get("size", "").split("x") if one]

    def of(name: str, default: str) -> list[str]:
        return said[name].split("x") if name in said else [default] * len(sizes)

    pads = [tuple(map(int, one.split("_"))) for one in of("pad", "0_0")]
    rest = [list(map(int, of(name, "1"))) for name in ("stride", "lhs_dilate", "rhs_dilate")]
    return tuple((size, rest[0][i], pads[i][0], pads[i][1], rest[1][i], rest[2][i]) for i, size in enumerate(sizes))
