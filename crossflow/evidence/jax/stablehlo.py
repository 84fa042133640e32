"""Reads the text of StableHLO, as `lowered.as_text()` writes it, with its regions, functions, names and meshes.

An operation stands on a line of its own; what stands between its braces follows on the next lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossflow.evidence.jax.groups import DeviceGroups
from crossflow.evidence.jax.hlo import RAGGED, HloWindow
from crossflow.evidence.jax.text import HloComputation, HloModule, HloOp, HloTensor, HloType, TextError, check_devices, readable, tensor

_LEFT = re.compile(r"%([\w]+)(?::(\d+))?((?:, %[\w]+)*) = ")
_NAME = re.compile(r'"?([a-z_]+\.)?([\w.]+)"?')
_OPERAND = re.compile(r"%([\w]+(?:#\d+)?)")
_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)(complex<\w+>|[A-Za-z]\w*)(?:, [^>]*)?>|!stablehlo\.token|!mhlo\.token")
_SIGNATURE = re.compile(r" : (?=\(|tensor<|!)")
_FUNCTION = re.compile(r"func\.func (?:public |private )?@\"?([\w.\-$]+)\"?\((.*)")
_ARGUMENT = re.compile(r"%(\w+): ")
_LOC = re.compile(r"\s*loc\((#loc\d*|unknown|\".*\"(?:\(.*\))?|callsite\(.*\)|fused.*)\)\s*$")
_LOC_LINE = re.compile(r'^#(loc\d*) = loc\("((?:[^"\\]|\\.)*)"[()]')
_MESH = re.compile(r"sdy\.mesh @\w+ = <\[(.*?)\](?:, device_ids=\[([\d, ]*)\])?>")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_DENSE = re.compile(r"dense<(.*?)>\s*:\s*tensor<([\dx]*)[a-z]")
RETURNS = ("return ", "stablehlo.return", "func.return", "sdy.return", "mhlo.return")
BITS_OF_ROW = 64  # of a number in a list of devices
NAMES = {
    "dot_general": "dot", "broadcast_in_dim": "broadcast", "case": "conditional", "if": "conditional", "top_k": "topk",
    "sharding_constraint": "bitcast", "reshard": "bitcast", "propagation_barrier": "bitcast", "partition_id": "partition_id",
    "cholesky": "cholesky", "exponential": "exponential",
}  # fmt: skip
MANUAL = "manual_computation"


def read_stablehlo(text: str) -> HloModule:
    """A module; TextError with the line where the text is none, or is cut off."""
    reader = _TextReader(text.split("\n"))
    reader.read()
    main = reader.found.get("main")
    if main is None:
        raise TextError(len(reader.lines), "there is no function @main; the text is cut off, or is no module that JAX wrote")
    head = next((line for line in reader.lines if line.lstrip().startswith("module")), "")
    partitions, replicas = (_number(head, name) for name in ("mhlo.num_partitions", "mhlo.num_replicas"))
    check_devices(partitions * replicas, 1)
    module = HloModule(
        name=re.sub(r"^module\s*@?|[\s{].*", "", head.strip()), computations=reader.found, entry="main", devices=partitions * replicas,
        partitions=partitions, donated=reader.donated, donors=frozenset(reader.donors), names=tuple(reader.names),
        axes=dict(reversed(reader.axes.items())),
    )  # fmt: skip
    return replace(module, undivided=_undivided(module))


def _number(head: str, name: str) -> int:
    found = re.search(rf"{name} = (\d+)", head)
    return int(found[1]) if found else 1


def _undivided(module: HloModule) -> int | None:
    """The line of an operation that has the size of all devices together, not what one of them computes; None without one."""
    if module.partitions < 2:
        return None
    divided = ("parameter", "manual", "get_tuple_element", "constant", "bitcast")
    return next((op.line for op in module.computations["main"].ops if op.op not in divided), None)


@dataclass
class _TextReader:
    """Lines of a text, and what they hold."""

    lines: list[str]
    at: int = 0
    found: dict[str, HloComputation] = field(default_factory=dict)
    locs: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of the parameters of main
    donated: dict[int, int] = field(default_factory=dict)
    donors: set[int] = field(default_factory=set)
    axes: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        """All functions."""
        for line in self.lines:
            if line.startswith("#loc") and (said := _LOC_LINE.match(line)):
                self.locs[said[1]] = said[2]
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if meshed := _MESH.match(line):
                self.axes = {name: int(size) for name, size in re.findall(r'"([^"]+)"=(\d+)', meshed[1])}
            if opened := _FUNCTION.match(line):
                self._function(opened[1], opened[2])
            else:
                self.at += 1

    def _function(self, name: str, rest: str) -> None:
        begin = self.at
        if not self.lines[begin].rstrip().endswith("{"):
            raise TextError(begin + 1, f"the head of the function @{name} does not end with '{{'; the text is cut off")
        inside = rest[: _end_of(rest, ")")]
        parameters = self._parameters(inside, begin + 1, main=name == "main")
        self.at += 1
        self.found[name] = self._block(name, parameters, begin + 1)
        self.at += 1

    def _parameters(self, inside: str, line: int, *, main: bool) -> list[HloOp]:
        found = []
        begins = [*_ARGUMENT.finditer(inside)]
        for i, one in enumerate(begins):
            said = inside[one.end() : begins[i + 1].start() if i + 1 < len(begins) else len(inside)]
            kinds = _types(said, line)
            if not kinds:
                raise TextError(line, f"the parameter %{one[1]} has no type; the text is damaged or cut off")
            found.append(HloOp(name=one[1], op="parameter", type=kinds[0], attributes={"index": i}, line=line))
            if main:
                self.names.append(self._scope(said.rstrip().rstrip(",")))
                if aliased := re.search(r"tf\.aliasing_output = (\d+)", said):
                    self.donated[int(aliased[1])] = i
                if "jax.buffer_donor = true" in said:
                    self.donors.add(i)
        return found

    def _scope(self, line: str) -> str:
        """The name that stands at the end of a line."""
        found = _LOC.search(line)
        if found is None or found[1] == "unknown":
            return ""
        if found[1].startswith("#"):
            return self.locs.get(found[1][1:], "")
        quoted = re.match(r'"((?:[^"\\]|\\.)*)"(?!:\d)', found[1])
        return quoted[1] if quoted else ""

    def _block(self, name: str, parameters: Sequence[HloOp], begin: int) -> HloComputation:
        """Operations up to the line that closes them, at which the reader stays."""
        ops, results = list(parameters), tuple[str, ...]()
        while True:
            if self.at >= len(self.lines):
                raise TextError(len(self.lines), f"the text ends inside '{name}', which begins on line {begin}; it is cut off")
            line = self.lines[self.at].strip()
            if line.startswith("}"):
                break
            if line.startswith("^bb"):
                ops += self._parameters(line[line.index("(") + 1 :], self.at + 1, main=False)
            elif line.startswith(RETURNS):
                results = tuple(_OPERAND.findall(_signed(line)[0]))
            elif line and not line.startswith("//"):
                number = self.at + 1
                with readable(number, f"'{line[:40]}'"):
                    ops += self._op(line)
            self.at += 1
        given = tuple(op.name for op in ops if op.op == "parameter")
        return HloComputation(name=name, ops=tuple(ops), parameters=given, results=results, line=begin)

    def _region(self, label: str, parameters: Sequence[HloOp] = ()) -> str:
        """A region from the next line on; its name. The reader stays at its end."""
        begin = self.at + 1
        self.at += 1
        name = f"{label}@{begin}"
        self.found[name] = self._block(name, parameters, begin)
        return name

    # ---------------------------------------------------------------------------------- operations

    def _op(self, line: str) -> list[HloOp]:
        """An operation, with its regions; of several named results, also each of them."""
        number = self.at + 1
        left = _LEFT.match(line)
        names = [] if left is None else [left[1], *re.findall(r"%(\w+)", left[3])]
        right = line[left.end() :] if left is not None else line
        called = _NAME.match(right)
        if called is None:
            raise TextError(number, f"expected an operation, got '{line[:60]}'")
        op = NAMES.get(called[2], called[2])
        scope, right = self._scope(right), _LOC.sub("", right)
        regions, right = self._regions(op, right, number)
        before, signature = _signed(right)
        kinds = _results(signature, number, several=op == "while")
        if not kinds and op not in ("composite",) and left is not None:
            raise TextError(number, f"the type of '{op}' is missing; the text is cut off")
        kind: HloType = kinds[0] if len(kinds) == 1 and (left is None or not left[2]) and len(names) < 2 else tuple(kinds)
        bare = _QUOTED.sub('""', before)
        made = HloOp(
            name=names[0] if len(names) == 1 else f"line{number}", op="manual" if op == MANUAL else op, type=kind,
            operands=_operands(op, bare), attributes=_attributes(op, before, regions, _types(signature, number), number), scope=scope,
            line=number,
        )  # fmt: skip
        parts = [] if len(names) < 2 else [
            HloOp(name=one, op="get_tuple_element", type=kinds[i], operands=(made.name,), attributes={"index": i}, line=number)
            for i, one in enumerate(names)
        ]  # fmt: skip
        return [made, *parts]

    def _regions(self, op: str, right: str, number: int) -> tuple[list[str], str]:
        """Regions of an operation that follow on the next lines, and its own text with what stands behind them."""
        found = list[str]()
        if op == "while":
            for word in ("cond", "do"):
                if word == "cond":
                    self.at += 1
                if self.at >= len(self.lines) or not self.lines[self.at].strip().endswith(word + " {"):
                    raise TextError(number, "the loop has no condition or no body; the text is cut off")
                parameters = [
                    HloOp(name=name, op="parameter", type=kind, attributes={"index": i}, line=number)
                    for i, (name, kind) in enumerate(zip(re.findall(r"%(\w+) = ", right), _types(_signed(right)[1], number), strict=False))
                ]
                found.append(self._region(f"while.{word}", parameters))
            return found, right
        if right.endswith("({"):
            while True:
                found.append(self._region(op))
                closed = self.lines[self.at].strip()
                if not closed.endswith(", {") and closed != "}, {":
                    return found, right[:-2] + " " + _LOC.sub("", closed).removeprefix("})")
        if right.endswith("{") and op == MANUAL:
            inside = right[right.rindex("(%") + 1 :]
            found.append(self._region(op, self._parameters(inside, number, main=False)))
            return found, right[: right.rindex("(%")] + " " + _LOC.sub("", self.lines[self.at].strip()).removeprefix("}")
        if op in ("reduce", "reduce_window", "scan") and self._next().startswith("reducer("):
            self.at += 1
            head = self.lines[self.at].strip()
            found.append(self._region(op, self._parameters(head[len("reducer(") :], self.at + 1, main=False)))
        return found, right

    def _next(self) -> str:
        return self.lines[self.at + 1].strip() if self.at + 1 < len(self.lines) else ""


def _end_of(text: str, mark: str) -> int:
    """Place of the bracket that closes what is open at the beginning of a text."""
    depth = 1
    for i, one in enumerate(_QUOTED.sub(lambda found: "_" * len(found[0]), text)):
        depth += (one == "(") - (one == mark)
        if not depth:
            return i
    return len(text)


def _signed(text: str) -> tuple[str, str]:
    """What stands before the types of an operation, and the types."""
    places = [found.start() for found in _SIGNATURE.finditer(text)]
    return (text[: places[-1]], text[places[-1] + 3 :]) if places else (text, "")


def _types(text: str, line: int) -> list[HloTensor]:
    """Tensors that a text names, in order."""
    found = []
    for one in _TENSOR.finditer(text):
        if one[0].startswith("!"):
            found.append(HloTensor((), "token"))
            continue
        sizes = one[1].split("x")[:-1]
        if "?" in one[1]:
            raise TextError(line, f"the shape of {one[0]} is dynamic; give all sizes as numbers: lower the function for one shape")
        found.append(tensor([int(size) for size in sizes], _element(one[2]), line))
    return found


def _element(name: str) -> str:
    """A type of elements as HLO calls it."""
    if name.startswith("complex"):
        return "c64" if "f32" in name else "c128"
    if name == "i1":
        return "pred"
    return re.sub(r"^i(?=\d)", "s", re.sub(r"^ui(?=\d)", "u", name)).lower()


def _results(signature: str, line: int, *, several: bool) -> list[HloTensor]:
    """Types of the results: behind the arrow, or else all of a list, of which operations with one result have the last."""
    if "->" in signature:
        return _types(signature[signature.rindex("->") :], line)
    found = _types(signature, line)
    return found if several else found[-1:]


def _operands(op: str, text: str) -> tuple[str, ...]:
    """Names of what an operation is given."""
    if op == "while":
        return tuple(re.findall(r"= %([\w]+(?:#\d+)?)", text))
    return tuple(_OPERAND.findall(text))


def _attributes(op: str, text: str, regions: Sequence[str], given: Sequence[HloTensor], line: int) -> dict[str, Any]:
    """Attributes as the rest of this package knows them."""
    found: dict[str, Any] = {}
    if op == "constant":
        value = re.search(r"dense<(-?\d+|true|false)>", text)
        found["value"] = None if value is None or not value[1].lstrip("-").isdecimal() else int(value[1])
    elif op == "compare":
        direction = re.search(r"\b(EQ|NE|GE|GT|LE|LT)\b", text)
        found["direction"] = direction[1] if direction else ""
    elif op == "dot":
        found |= {"contract": _crossed(text, "contracting_dims"), "batch": _crossed(text, "batching_dims")}
    elif op == "while":
        found |= {"cond": regions[0], "body": regions[1], "trips": None}
    elif op in ("call", "composite"):
        callee = re.search(r"decomposition = @\"?([\w.\-$]+)" if op == "composite" else r"@\"?([\w.\-$]+)", text)
        found["callee"] = callee[1] if callee else ""
    elif op == "conditional":
        found["branches"] = tuple(regions)
    elif op == MANUAL:
        found["callee"] = regions[0]
    elif op == "custom_call":
        target = re.search(r"@\"?([\w.$\-]+)", text)
        config = re.search(r'backend_config = "((?:[^"\\]|\\.)+)"', text) or re.search(r"\bbackend_config = (\{.*\})", text)
        kernel = re.search(r'\b(?:kernel_)?name = "(\w+)"', text)
        found |= {"target": target[1] if target else "", "config": config[1].replace("\\22", '"') if config else ""}
        found["kernel"] = kernel[1] if kernel else ""
    elif op == "ragged_dot":
        found["dims"] = {name: _listed(text, f"{name}(?:ing)?_dimensions") for name in RAGGED}
    elif op == "convolution":
        found |= _convolved(text, given)
    elif op in ("reduce_window", "select_and_scatter"):
        sizes = re.search(r"window_dimensions = array<i64: ([\d, ]+)>", text)
        found["window"] = tuple((int(size), 1, 0, 0, 1, 1) for size in sizes[1].split(",")) if sizes else ()
    elif op == "collective_permute":
        found |= {"pairs": _rows(text, "source_target_pairs", line), "global": "channel_handle" in text}
    elif "replica_groups" in text:
        found |= {"groups": _rows(text, "replica_groups", line), "global": "use_global_device_ids" in text or "channel_handle" in text}
    return found


def _crossed(text: str, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions of both operands: ``name = [0, 2] x [0, 2]``."""
    found = re.search(rf"{name} = \[([\d, ]*)\] x \[([\d, ]*)\]", text)
    return (_ints(found[1]), _ints(found[2])) if found else ((), ())


def _listed(text: str, name: str) -> tuple[int, ...]:
    """Numbers of an attribute: ``name = [0, 2]``."""
    found = re.search(rf"\b{name} = \[([\d, ]*)\]", text)
    return _ints(found[1]) if found else ()


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"-?\d+", text)))


def _convolved(text: str, given: Sequence[HloTensor]) -> Mapping[str, Any]:
    """Dimensions and window of a convolution, as HLO writes them."""
    numbers = re.search(r"dim_numbers = \[(.*?)\]x\[(.*?)\]->\[(.*?)\]", text)
    labels = "" if numbers is None else "{}_{}->{}".format(*(part.replace(", ", "") for part in numbers.groups()))

    def of(name: str) -> tuple[int, ...]:
        found = re.search(rf"\b{name} = \[([\d, ]*)\]", text)
        return _ints(found[1]) if found else ()

    pads = re.search(r"pad = \[\[(.*?)\]\]", text)
    low = [_ints(one) for one in pads[1].split("], [")] if pads else []
    places = labels[labels.find("_") + 1 : labels.find("->")]
    spatial = sum(one.isdecimal() for one in places)
    stride, spread, apart = of("stride") or (1,) * spatial, of("lhs_dilate") or (1,) * spatial, of("rhs_dilate") or (1,) * spatial
    window: HloWindow = tuple(
        (int(given[1].shape[places.index(str(i))]), stride[i], low[i][0] if low else 0, low[i][1] if low else 0, spread[i], apart[i])
        for i in range(spatial)
    )
    groups, batches = (re.search(rf"{name} = (\d+)", text) for name in ("feature_group_count", "batch_group_count"))
    return {
        "labels": labels, "window": window, "groups": int(groups[1]) if groups else 1, "batch_groups": int(batches[1]) if batches else 1,
    }  # fmt: skip


def _rows(text: str, name: str, line: int) -> DeviceGroups:
    """Rows of a table of devices: written out, one number for all, or as the bytes of its numbers."""
    found = re.search(rf"{name} = dense<(.*?)>\s*:\s*tensor<(\d+)x(\d+)xi64>", text)
    if found is None:
        raise TextError(line, f"the {name.replace('_', ' ')} of this operation cannot be read: expected {name} = dense<[[0, 1], ...]>")
    rows, columns = int(found[2]), int(found[3])
    if found[1].startswith('"0x'):
        content = bytes.fromhex(found[1][3:-1])
        numbers = [int.from_bytes(content[i : i + 8], "little", signed=True) for i in range(0, len(content), BITS_OF_ROW // 8)]
    else:
        numbers = list(_ints(found[1])) * (rows * columns if "[" not in found[1] else 1)
    rest = -1  # fills the rows of smaller groups
    return tuple(tuple(one for one in numbers[i * columns : (i + 1) * columns] if one != rest) for i in range(rows))
