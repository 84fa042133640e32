"""Goes through a text of XLA from its entry and writes down what the device runs, calls and fusions laid open, loops with their trips.

What only describes a tensor anew costs nothing: reshapes, transposes, slices of whole leading parts, elements of tuples. A tensor that
was widened from fewer bits is read by a product as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.jax import calls, kernels
from crossflow.evidence.jax.groups import contradiction, crossing, moving
from crossflow.evidence.jax.names import layer_of
from crossflow.evidence.jax.steps import HloLoop, HloStep, Items, TracedText, weighted
from crossflow.evidence.jax.text import HloComputation, HloModule, HloOp, HloTensor, HloType, TextError, readable
from crossflow.program.collectives import Collective
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Kernel, Pass, Product

FREE = frozenset({
    "bitcast", "reshape", "transpose", "optimization_barrier", "after_all", "domain", "add_dependency", "bitcast_convert", "async_update",
    "async_done", "copy_start", "copy_done", "get_dimension_size", "opt_barrier",
})  # fmt: skip
LOOPS = frozenset({
    "abs", "add", "and", "atan2", "broadcast", "cbrt", "ceil", "clamp", "clz", "compare", "complex", "concatenate", "convert", "copy",
    "cosine", "count_leading_zeros", "divide", "erf", "exponential", "exponential_minus_one", "floor", "gather", "imag", "iota",
    "is_finite",
    "log", "log_plus_one", "logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "pad", "popcnt", "power", "real",
    "reduce_precision", "remainder", "reverse", "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "slice", "dynamic_slice", "sqrt", "stochastic_convert", "subtract",
    "tan", "tanh", "xor", "square", "erfc", "erf_inv", "lgamma", "digamma", "bessel_i1e", "sinh", "cosh", "asin", "acos", "atan", "asinh",
    "acosh", "atanh", "polygamma", "zeta", "next_after", "conj", "is_inf", "is_pos_inf", "is_neg_inf",
})  # fmt: skip
MOVES = frozenset(
    {"broadcast", "concatenate", "copy", "gather", "iota", "pad", "reverse", "slice", "dynamic_slice", "convert"}
)  # no operations
SENDS: Mapping[str, Collective] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all",
    "ragged_all_to_all": "all_to_all", "collective_permute": "sendrecv", "collective_broadcast": "broadcast",
}  # fmt: skip
EQUAL = ("all_gather", "reduce_scatter", "all_to_all")  # one type of result says how many parts each device gives or takes
CALLS = ("call", "fusion", "async_start", "composite")
CountedNumber = tuple[object | None, int]  # what a whole number is counted from, nothing of a constant, and how far from it it is
Tree = Any  # of values, as the type of what gives them


@dataclass(frozen=True)
class HloValue:
    """A tensor in a buffer, or in a part of it.

    `number` is that of a whole number that is known, `test` of a flag how it compares two of them; `narrow` is what it was widened from.
    """

    key: int
    tensor: HloTensor
    size: float
    number: CountedNumber | None = None
    narrow: HloValue | None = None
    test: tuple[str, CountedNumber | None, CountedNumber | None] | None = None
    promoted: bool = False


def flat(tree: Tree) -> list[HloValue]:
    """Values of a tree, in order."""
    return [tree] if isinstance(tree, HloValue) else [one for part in tree for one in flat(part)]


@dataclass(kw_only=True)
class _TextScope:
    """Values by name; regions of a computation see those around it."""

    outer: _TextScope | None = None
    values: dict[str, Tree] = field(default_factory=dict)

    def find(self, name: str) -> Tree:
        """A value; None where there is none of the name."""
        if name in self.values:
            return self.values[name]
        return self.outer.find(name) if self.outer is not None else None


Costs = Mapping[str, tuple[float, float] | None]  # operations and bytes of calls by name; None of a plain pass. [flop], [B]


def trace(module: HloModule, costs: Costs, trips: int | None = None) -> TracedText:
    """What a module runs.

    Parameters
    ----------
    costs : of calls and operations that are not known here.
    trips : of loops whose trips the text does not say. [1]
    """
    return _Tracer(module, costs, trips).whole()


class _Tracer:
    """Walks through computations; `items` are those of the loop that it is in."""

    def __init__(self, module: HloModule, costs: Costs, trips: int | None) -> None:
        self.module, self.costs, self.trips = module, costs, trips
        self.sizes: dict[int, float] = {}
        self.kept: set[int] = set()
        self.items: Items = []
        self.notes: dict[str, None] = {}
        self.parts: dict[int, HloTensor] = {}  # of tensors that a region divides by itself
        self.calls: dict[str, None] = {}  # what a cost may be given for, as far as it was met
        self.priced: set[str] = set()
        self.guessed = False  # whether a loop took the trips that the user gave
        self.inside = ""  # name of the call that an operation stands in, where names go on from those of calls

    def whole(self) -> TracedText:
        """All of the entry."""
        entry = self.module.computations[self.module.entry]
        types = {op.name: op.type for op in entry.ops if op.op == "parameter"}
        given = [self._new(types[name]) for name in entry.parameters]
        outputs = flat(self._run(entry, given, None))
        arguments = [(one.key, self.parts.get(one.key, one.tensor)) for tree in given for one in flat(tree)]
        self.kept |= {one.key for one in outputs}
        self._expect_used()
        return TracedText(
            items=self.items, sizes=self.sizes, arguments=arguments, outputs=[(one.key, one.tensor) for one in outputs],
            kept=frozenset(self.kept), notes=tuple(self.notes),
        )  # fmt: skip

    def _expect_used(self) -> None:
        """CrossflowError for costs and trips that nothing in the text asks for."""
        there = f"; there are: {', '.join(self.calls)}" if self.calls else ", nor any other; leave it out"
        for name in self.costs:
            if name not in self.priced:
                meant = did_you_mean(name, self.calls)
                raise CrossflowError(f"--cost {name}: the text has no call or unknown operation of that name{there}{meant}")
        if self.trips is not None and not self.guessed:
            raise CrossflowError("--trips: all loops of the text say how often they run; leave it out")

    # ---------------------------------------------------------------------------------- values

    def _new(self, kind: HloType, number: CountedNumber | None = None) -> Tree:
        """A fresh buffer for each tensor of a type."""
        if not isinstance(kind, HloTensor):
            return [self._new(part) for part in kind]
        key = len(self.sizes)
        self.sizes[key] = kind.nbytes
        return HloValue(key, kind, kind.nbytes, number)

    def _run(self, computation: HloComputation, given: Sequence[Tree], outer: _TextScope | None) -> Tree:
        """The results of a computation."""
        scope = _TextScope(outer=outer)
        if len(given) != len(computation.parameters):
            raise TextError(computation.line, f"'{computation.name}' takes {len(computation.parameters)} values and is given {len(given)}")
        scope.values |= dict(zip(computation.parameters, given, strict=True))
        for op in computation.ops:
            if op.op != "parameter":
                with readable(op.line, op.op):
                    scope.values[op.name] = self._one(op, scope)
        found = [self._found(name, scope, computation.line) for name in computation.results]
        return found[0] if len(found) == 1 else found

    def _found(self, name: str, scope: _TextScope, line: int) -> Tree:
        plain, _, index = name.partition("#")  # one of several results
        found = scope.find(plain)
        if index and isinstance(found, list) and int(index) < len(found):
            return found[int(index)]
        if found is None:
            raise TextError(line, f"'{name}' is used before it is made, or is missing; the text is not whole")
        return found

    def _one(self, op: HloOp, scope: _TextScope) -> Tree:
        """The value of one operation."""
        given = [self._found(name, scope, op.line) for name in op.operands]
        if op.op == "tuple":
            return given
        if op.op == "get_tuple_element":
            return _element(given[0], op)
        if op.op == "constant":
            return self._new(op.type, None if op.attributes.get("value") is None else (None, op.attributes["value"]))
        if op.op.endswith("_done") and op.op not in FREE:
            return given[0]
        if op.op in FREE or (op.op == "copy" and not self.module.ordered):  # later passes of the compiler leave such copies out
            return self._free(op, given)
        if op.op in CALLS:
            return self._call(op, given)
        if op.op == "while":
            return self._while(op, given, scope)
        if op.op == "conditional":
            return self._conditional(op, given, scope)
        if op.op.removesuffix("_start") in SENDS:
            return self._send(op, flat(given))
        if op.op == "manual":
            return self._manual(op, flat(given), scope)
        return self._compute(op, flat(given))

    def _free(self, op: HloOp, given: list[Tree]) -> Tree:
        """The same buffer, seen another way."""
        if op.op in ("optimization_barrier", "opt_barrier", "domain"):
            return given[0] if len(given) == 1 else given
        if not given or not isinstance(given[0], HloValue) or not isinstance(op.type, HloTensor):
            return given[0] if given else self._new(op.type)
        same = op.type.dtype == given[0].tensor.dtype
        narrow = given[0].narrow
        if narrow is not None:
            narrow = replace(narrow, tensor=replace(op.type, dtype=narrow.tensor.dtype)) if same else None
        return replace(given[0], tensor=op.type, narrow=narrow, number=given[0].number if same and not op.type.shape else None)

    # ---------------------------------------------------------------------------------- calls, loops, branches

    def _callee(self, name: str, op: HloOp) -> HloComputation:
        if name not in self.module.computations:
            raise TextError(op.line, f"the computation '{name}' is not in the text; the text is cut off")
        return self.module.computations[name]

    def _call(self, op: HloOp, given: list[Tree]) -> Tree:
        before, self.inside = self.inside, self._path(op)
        found = self._run(self._callee(op.attributes["callee"], op), given, None)
        self.inside = before
        return found

    def _path(self, op: HloOp) -> str:
        """The path of an operation; inside functions of StableHLO, it goes on from that of the call."""
        if not self.inside or op.scope.startswith(self.inside.partition("/")[0] + "/"):  # a whole path
            return op.scope or self.inside
        return f"{self.inside.rstrip(':')}/{op.scope}" if op.scope else self.inside

    def _manual(self, op: HloOp, given: list[HloValue], scope: _TextScope) -> Tree:
        """What each device does by itself, on its parts of tensors."""
        region = self._callee(op.attributes["callee"], op)
        types = [one.type for one in region.ops if one.op == "parameter"]
        parts = list[Tree]()
        for one, kind in zip(given, types, strict=True):
            if not isinstance(kind, HloTensor) or len(kind.shape) != len(one.tensor.shape):
                raise TextError(region.line, "the parts of a tensor have another number of dimensions than the tensor")
            shards = tuple(whole // max(part, 1) for whole, part in zip(one.tensor.shape, kind.shape, strict=True))
            self.parts[one.key] = replace(kind, shards=shards)
            self.sizes[one.key] = kind.nbytes
            parts.append(replace(one, tensor=kind, size=kind.nbytes))
        return self._run(region, parts, scope)

    def _conditional(self, op: HloOp, given: list[Tree], scope: _TextScope) -> Tree:
        """The branch that takes most operations and bytes."""
        outer, found = self.items, list[tuple[float, Items, Tree]]()
        for i, name in enumerate(op.attributes["branches"]):
            self.items = []
            region = self._callee(name, op)
            value = self._run(region, given[1 + i : 2 + i] if region.parameters else [], scope)
            work = sum(
                times * (_flops(step) + sum(step.reads.values()) + sum(step.writes.values())) for step, times in weighted(self.items)
            )
            found.append((work, self.items, value))
        self.items = outer
        _, items, value = max(found, key=lambda one: one[0])
        self.notes["of a conditional, the branch with most work runs"] = None
        self.items += items
        return value

    def _while(self, op: HloOp, given: list[Tree], scope: _TextScope) -> Tree:
        """A loop: its state keeps its buffers, which the body fills anew each time."""
        body, condition = (self._callee(op.attributes[name], op) for name in ("body", "cond"))
        start = flat(given)
        marks = [object() for _ in start]
        inside = [replace(one, number=(mark, 0) if not one.tensor.shape else None) for one, mark in zip(start, marks, strict=True)]
        shaped = inside if len(body.parameters) == len(inside) > 1 or not isinstance(op.type, tuple) else [inside]
        outer, self.items = self.items, []
        ended = flat(self._run(body, shaped, scope))
        items, self.items = self.items, []
        told = flat(self._run(condition, shaped, scope))[0]
        self.items = outer
        trips = op.attributes.get("trips")
        trips = _trips(told, marks, start, ended) if trips is None else trips
        if trips is None:
            trips, self.guessed = self.trips, True
        if trips is None:
            raise TextError(op.line, "the text does not say how often this loop runs, for its condition depends on data; give --trips N")
        self._settle(items, inside, ended)
        if trips > 0 and items:
            self.items.append(HloLoop(trips=trips, items=items, line=op.line))
        found = [
            replace(one, number=None, narrow=one.narrow if same.key == one.key else None) for one, same in zip(start, ended, strict=True)
        ]
        return found if isinstance(op.type, tuple) else found[0]

    def _settle(self, items: Items, inside: Sequence[HloValue], ended: Sequence[HloValue]) -> None:
        """What the body hands on stays in memory; it is written to the place that the next trip reads."""
        self.kept |= {one.key for one in (*inside, *ended)}
        moved = {new.key: old.key for new, old in zip(ended, inside, strict=True) if new.key != old.key}
        if moved:
            for step, _ in weighted(items):
                step.carries = {key: moved[key] for key in step.writes if key in moved}

    # ---------------------------------------------------------------------------------- what runs

    def _step(self, op: HloOp, name: str = "", **fields: Any) -> HloStep:
        path = self._path(op)
        step = HloStep(name=name or op.op, layer=layer_of(path), scope=path, line=op.line, **fields)
        self.items.append(step)
        return step

    def _send(self, op: HloOp, given: list[HloValue]) -> Tree:
        """A message; of one that starts here and ends later, the results are those of its end."""
        kind = op.op.removesuffix("_start")
        made = self._new(op.type)
        outputs = flat(made)
        if op.op.endswith("_start") and kind != "all_reduce" and isinstance(op.type, tuple):
            made = made[1]
            outputs = flat(made)
        data = given[: len(outputs)] if kind == "ragged_all_to_all" else given
        size = sum(one.size for one in (outputs if kind == "all_gather" else data))
        ranks = self._ranks(op, kind)
        if len(ranks) < 2:
            return given[0] if len(given) == 1 and isinstance(made, HloValue) else list(given)
        self._step(
            op, SENDS[kind], collective=SENDS[kind], size=size, ranks=ranks, reads=_sum((one.key, one.size) for one in data),
            writes=_sum((one.key, one.size) for one in outputs),
            promoted=op.attributes.get("promoted", False) or any(one.promoted for one in data),
        )  # fmt: skip
        return made

    def _ranks(self, op: HloOp, kind: str) -> tuple[int, ...]:
        """The ranks of the largest group, from 0; numbers of replicas count all partitions of each."""
        each = 1 if op.attributes.get("global", True) else self.module.partitions
        world = self.module.devices // each
        if kind == "collective_permute":
            pairs = op.attributes["pairs"]
            wrong, found = crossing(pairs, world), moving(pairs)
            if found and DeviceGroup.of(found, world) is None:
                found = tuple(range(world))  # any rank may be as far from any other
        else:
            every = (tuple(range(self.module.devices)),)  # what a text means that names none
            groups = op.attributes["groups"] if op.attributes["groups"] != every else (tuple(range(world)),)
            wrong, largest = contradiction(groups, world, equal=kind in EQUAL), max(groups, key=len)
            found = tuple(sorted(rank - min(largest) for rank in largest))
        if wrong:
            raise TextError(op.line, f"the {kind.replace('_', '-')} contradicts itself: {wrong}")
        return tuple(rank * each for rank in found)

    def _compute(self, op: HloOp, given: list[HloValue]) -> Tree:
        """What runs on the device."""
        scalars = all(not one.shape and not one.floats for one in op.tensors)
        if scalars and all(not one.tensor.shape for one in given):
            made = self._new(op.type, _arithmetic(op.op, given))
            return replace(made, test=(op.attributes["direction"], given[0].number, given[1].number)) if op.op == "compare" else made
        if op.op in ("partition_id", "replica_id", "rng_get_and_update_state"):
            return self._new(op.type)
        if op.op in self.costs:
            return self._named(op, op.op, given)
        if op.op in ("slice", "dynamic_slice") and (view := _part(op, given[0])) is not None:
            return view
        if op.op == "broadcast" and given[0].tensor.numel() == op.tensors[0].numel():
            return self._free(op, given)
        if op.op in LOOPS:
            return self._loop(op, given)
        make: Callable[[HloOp, list[HloValue]], Tree] | None = getattr(self, f"_on_{op.op}", None)
        if make is None:
            raise TextError(op.line, f"the operation {op.op} has no known cost; give --cost {op.op}=FLOPS,BYTES or --cost {op.op}=pass")
        return make(op, given)

    def _loop(self, op: HloOp, given: list[HloValue]) -> Tree:
        """Work on each element of the result."""
        made = self._new(op.type)
        outputs = flat(made)
        elements = float(max(one.tensor.numel() for one in outputs))
        reads = _sum((one.key, one.size) for one in given)
        if op.op in ("gather", "dynamic_slice", "slice"):
            reads[given[0].key] = min(given[0].size, outputs[0].size)
        narrows = op.op == "convert" and outputs[0].tensor.element_size() < given[0].tensor.element_size()
        self._step(
            op, reads=reads, writes=_sum((one.key, one.size) for one in outputs), flops=0.0 if op.op in MOVES else elements,
            joining="loop", span=elements, narrows=narrows, matrix=op.op == "gather",
        )  # fmt: skip
        if op.op == "convert" and not narrows and outputs[0].tensor.floats and given[0].tensor.floats:
            origin = given[0].narrow or given[0]
            return replace(outputs[0], narrow=replace(origin, tensor=replace(outputs[0].tensor, dtype=origin.tensor.dtype)), promoted=True)
        if op.op == "copy" and given[0].narrow is not None:
            return replace(outputs[0], narrow=given[0].narrow)
        return made

    def _root(self, op: HloOp, given: list[HloValue], *, into: HloValue | None = None, **fields: Any) -> Tree:
        """Work to which passes that make what it reads can be joined; `into` is a buffer that it fills in place."""
        made = self._new(op.type) if into is None else replace(into, tensor=op.tensors[0], number=None, narrow=None)
        outputs = flat(made)
        fields.setdefault("reads", _sum((one.key, one.size) for one in given))
        fields.setdefault("writes", _sum((one.key, one.size) for one in outputs))
        self._step(op, joining="root", reduced=frozenset(fields["writes"]), **fields)
        return made

    def _on_reduce(self, op: HloOp, given: list[HloValue]) -> Tree:
        elements = float(given[0].tensor.numel())
        return self._root(op, given, flops=elements * len(op.tensors), span=elements)

    def _on_reduce_window(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._root(op, given, flops=kernels.window_flops(op, op.tensors[0]), span=float(given[0].tensor.numel()))

    def _on_dynamic_update_slice(self, op: HloOp, given: list[HloValue]) -> Tree:
        into, update = given[0], given[1]
        return self._root(
            op, given, into=into, reads={update.key: update.size}, writes={into.key: update.size}, span=float(update.tensor.numel())
        )

    def _on_scatter(self, op: HloOp, given: list[HloValue]) -> Tree:
        """Rows are read, added to and written in place."""
        count = len(op.tensors)
        into, indices, updates = given[:count], given[count], given[count + 1 :]
        reads = _sum((one.key, one.size) for one in (indices, *updates))
        writes = {}
        for one, update in zip(into, updates, strict=True):
            reads[one.key] = reads.get(one.key, 0.0) + update.size
            writes[one.key] = update.size
        elements = float(sum(one.tensor.numel() for one in updates))
        self._step(op, joining="root", reduced=frozenset(writes), reads=reads, writes=writes, flops=elements, span=elements)
        made = [replace(one, tensor=kind, number=None, narrow=None) for one, kind in zip(into, op.tensors, strict=True)]
        return made if isinstance(op.type, tuple) else made[0]

    def _on_select_and_scatter(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._root(op, given, flops=float(given[0].tensor.numel()), span=float(given[0].tensor.numel()))

    def _on_sort(self, op: HloOp, given: list[HloValue]) -> Tree:
        passes = kernels.sort_passes(given[0].tensor)
        return self._alone(op, given, passes=passes)

    def _on_topk(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._alone(op, given)

    def _on_rng_bit_generator(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._alone(op, given)

    def _on_rng(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._alone(op, given)

    def _on_fft(self, op: HloOp, given: list[HloValue]) -> Tree:
        return self._alone(op, given, flops=kernels.fft_flops(op.tensors[0], given[0].tensor))

    def _alone(self, op: HloOp, given: list[HloValue], *, passes: int = 1, flops: float | None = None, name: str = "") -> Tree:
        """A pass to which nothing is joined."""
        made = self._new(op.type)
        outputs = flat(made)
        reads, writes = (_sum((one.key, one.size) for one in side) for side in (given, outputs))
        work = float(max((one.tensor.numel() for one in outputs), default=0)) if flops is None else flops
        moved = passes * (sum(reads.values()) + sum(writes.values()))
        self._step(op, name, reads=reads, writes=writes, kernels=(Pass(moved=moved, flops=work, launches=float(passes), what=name),))
        return made

    def _on_dot(self, op: HloOp, given: list[HloValue]) -> Tree:
        lhs, rhs = _narrowest(given[:2])
        contract, batch = op.attributes["contract"], op.attributes["batch"]
        one = kernels.product(lhs.tensor, rhs.tensor, op.tensors[0], contract, batch, op.line)
        if one.k == one.m == 1.0 or one.k == one.n == 1.0:  # no element is multiplied with more than one other
            return self._loop(op, given)
        return self._products(op, [lhs, rhs], (one,))

    def _products(self, op: HloOp, given: list[HloValue], found: tuple[Kernel, ...], name: str = "") -> Tree:
        sides = [one.tensor for one in given if one.tensor.floats] or [one.tensor for one in given]  # not masks, nor sizes of groups
        dtype = kernels.multiplies_in(*sides[:2])
        if not dtype:
            return self._alone(op, given, flops=sum(float(one.flops) for one in found if isinstance(one, Product | Pass)))
        made = self._new(op.type)
        reads, writes = (_sum((one.key, one.size) for one in side) for side in (given, flat(made)))
        self._step(op, name or op.op, reads=reads, writes=writes, kernels=found, dtype=dtype, matrix=True)
        return made

    def _on_convolution(self, op: HloOp, given: list[HloValue]) -> Tree:
        sides = _narrowest(given[:2])
        found, flops = kernels.convolution(op, sides[0].tensor, sides[1].tensor, op.tensors[0])
        return self._products(op, sides, found) if found else self._alone(op, given, flops=flops)

    def _on_ragged_dot(self, op: HloOp, given: list[HloValue]) -> Tree:
        lhs, rhs = _narrowest(given[:2])
        groups = float(given[2].tensor.shape[-1])
        one = kernels.ragged_product(lhs.tensor, rhs.tensor, op.tensors[0], groups, op.attributes["dims"], op.line)
        return self._products(op, [lhs, rhs, *given[2:]], (one,))

    def _on_custom_call(self, op: HloOp, given: list[HloValue]) -> Tree:
        """What a library or a kernel runs, as far as the text says it; all else has a cost that the user gives."""
        target, own = op.attributes["target"], calls.name_of(op)
        self.calls |= {own: None, target: None}
        for name in (own, target):
            if name in self.costs:
                return self._named(op, name, given)
        if target.startswith(calls.FREE_CALLS):
            return self._free(op, list(given)) if len(given) == 1 else self._new(op.type)
        if target.startswith((*calls.PASS_CALLS, *calls.ENGINE_PASSES)):
            return self._alone(op, given, name=target)
        work = calls.work_of(op, [one.tensor for one in given])
        if work is None:
            which = f"'{own}'" if own == target else f"'{own}' ({target})"
            raise TextError(op.line, f"the call of {which} has no known cost; give --cost '{own}=FLOPS,BYTES' or --cost '{own}=pass'")
        if work.note:
            self.notes[work.note] = None
        return self._products(op, given, work.kernels, work.name) if work.matrices else self._called(op, given, work.kernels, work.name)

    def _called(self, op: HloOp, given: list[HloValue], found: tuple[Kernel, ...], name: str) -> Tree:
        """Kernels that multiply no matrices, on all tensors of a call."""
        made = self._new(op.type)
        reads, writes = (_sum((one.key, one.size) for one in side) for side in (given, flat(made)))
        self._step(op, name, reads=reads, writes=writes, kernels=found, matrix=True)
        return made

    def _named(self, op: HloOp, name: str, given: list[HloValue]) -> Tree:
        """A pass whose cost the user gave."""
        cost = self.costs[name]
        self.calls[name] = None
        self.priced.add(name)
        if cost is None:
            return self._alone(op, given, name=name)
        return self._called(op, given, (Pass(moved=cost[1], flops=cost[0], what=name),), name)


def _sum(moved: Any) -> dict[int, float]:
    """Bytes of each buffer; a buffer that is read twice at once is read once. [B]"""
    found: dict[int, float] = {}
    for key, size in moved:
        found[key] = max(found.get(key, 0.0), size)
    return found


def _flops(step: HloStep) -> float:
    return step.flops + sum(float(one.flops) for one in step.kernels if isinstance(one, Product | Pass))


def _element(given: Tree, op: HloOp) -> Tree:
    index = op.attributes["index"]
    if isinstance(given, HloValue) or index >= len(given):
        raise TextError(op.line, f"there is no element {index} of '{op.operands[0]}'")
    return given[index]


def _narrowest(given: Sequence[HloValue]) -> list[HloValue]:
    """Operands of a product as they were before they were widened, where all were."""
    return [one.narrow or one for one in given] if all(one.narrow for one in given) else list(given)


def _part(op: HloOp, given: HloValue) -> HloValue | None:
    """A slice that lies in one piece, as a layer of stacked weights does; None of any other, which is copied."""
    (kind,) = op.tensors
    first = next((i for i, (size, whole) in enumerate(zip(kind.shape, given.tensor.shape, strict=True)) if size != whole), 0)
    lead, rest = kind.shape[:first], zip(kind.shape[first + 1 :], given.tensor.shape[first + 1 :], strict=True)
    if math.prod(lead) != 1 or any(size != whole for size, whole in rest):
        return None
    size = min(given.size, kind.nbytes)
    narrow = given.narrow
    if narrow is not None:
        inner = replace(kind, dtype=narrow.tensor.dtype)
        narrow = replace(narrow, tensor=inner, size=min(narrow.size, inner.nbytes))
    return replace(given, tensor=kind, size=size, number=None, narrow=narrow)


def _arithmetic(op: str, given: Sequence[HloValue]) -> CountedNumber | None:
    """A whole number that is worked out from others, as far as counters of loops need it."""
    numbers = [one.number for one in given]
    if op in ("convert", "copy", "reshape") and numbers:
        return numbers[0]
    first, second = numbers if len(numbers) == 2 else (None, None)
    if first is None or second is None:
        return None
    (base, one), (other_base, other) = first, second
    if op == "add" and (base is None or other_base is None):
        return (base if base is not None else other_base), one + other
    if op == "subtract" and other_base is None:
        return base, one - other
    if op in ("multiply", "maximum", "minimum", "divide") and base is None and other_base is None:
        return None, {"multiply": one * other, "maximum": max(one, other), "minimum": min(one, other), "divide": one // (other or 1)}[op]
    return None


def _trips(told: HloValue, marks: list[object], start: Sequence[HloValue], ended: Sequence[HloValue]) -> int | None:
    """Trips of a loop that counts up or down from one constant to another; None where they depend on data."""
    if told.test is None:
        return None
    one, other = (_resolved(number, marks, start, ended) for number in told.test[1:])
    return None if one is None or other is None else _count(told.test[0], one, other)


def _resolved(
    number: CountedNumber | None, marks: list[object], start: Sequence[HloValue], ended: Sequence[HloValue]
) -> tuple[int, int] | None:
    """A number of a condition as where it starts and how far it goes each trip; None where it is not known."""
    if number is None:
        return None
    base, offset = number
    if base is None:
        return offset, 0
    at = next((i for i, mark in enumerate(marks) if mark is base), None)
    if at is None or start[at].number is None or start[at].number[0] is not None:  # type: ignore[index]
        return None
    after = ended[at].number
    if after is None or after[0] is not base:
        return None
    return start[at].number[1] + offset, after[1]  # type: ignore[index]


def _count(direction: str, one: tuple[int, int], other: tuple[int, int]) -> int | None:
    """Trips until a comparison of two numbers that grow evenly fails."""
    gap, pace = other[0] - one[0], one[1] - other[1]
    if direction in ("GT", "GE"):
        gap, pace = -gap, -pace
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "NE" and pace and gap % pace == 0 and gap // pace >= 0:
        return gap // pace
    if direction not in ("LT", "LE") or pace <= 0:
        return None
    return max(0, -(-(gap + (direction == "LE")) // pace))
