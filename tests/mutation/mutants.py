"""Mistakes that a person could make in a module, planted one at a time in its syntax tree.

Places are in the bodies and the default arguments of functions, and in the constants of modules. What cannot change a
result is left alone: docstrings, annotations, texts, messages of errors, keywords such as `strict`, and another number below zero.
"""

import ast
import copy
import dataclasses
import difflib
from collections.abc import Iterator
from pathlib import Path

BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
CALLED = {
    "sum": "max",
    "max": "min",
    "min": "max",
    "any": "all",
    "all": "any",
    "maximum": "minimum",
    "minimum": "maximum",
    "ceil": "floor",
    "floor": "ceil",
    "argmax": "argmin",
    "argmin": "argmax",
    "mean": "sum",
    "prod": "sum",
    "cumprod": "cumsum",
}
COMMUTE = {
    "max",
    "min",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "gcd",
    "lcm",
    "multiply",
    "add",
    "logical_and",
    "logical_or",
    "zip",
    "cast",
    "hypot",
    "together",
}
WORDS = {"Problem", "warn"}  # calls that only say something, as those whose name ends in Error
EQUIVALENT = {"strict", "stacklevel", "copy", "maxsize", "encoding"}  # keywords
UNTOUCHED = {"annotation", "returns", "decorator_list"}

Slot = tuple[dict[str, ast.AST] | list[ast.AST], str | int]  # where a node hangs: the fields of its parent, or a list in them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a mistake can be planted: the holder (function or constant), the node in it, and which change."""

    path: Path
    line: int
    holder: int
    node: int
    change: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one mistake."""

    place: Place
    tree: ast.Module
    holder: ast.FunctionDef | ast.Assign  # of that tree
    diff: str

    @property
    def key(self) -> tuple[str, int]:
        """File and first line of the function that is changed, as its code has them."""
        return str(self.place.path), _first_line(self.holder)

    @property
    def in_function(self) -> bool:
        """Whether it changes a function, not a constant of the module."""
        return isinstance(self.holder, ast.FunctionDef)


def places_of(path: Path) -> list[Place]:
    """All places of a module, from the top."""
    return [
        Place(path=path, line=getattr(container[key], "lineno", holder.lineno), holder=at, node=node, change=change)
        for at, holder in enumerate(_holders(_parsed(path).body))
        for node, (container, key) in enumerate(_slots(holder))
        for change in range(len(_alternatives(container[key])))
    ]


def planted(place: Place) -> Mutant:
    """The mutant of a place."""
    tree = _parsed(place.path)
    holder = list(_holders(tree.body))[place.holder]
    before = ast.unparse(holder).splitlines()
    container, key = list(_slots(holder))[place.node]
    old = container[key]
    container[key] = ast.copy_location(_alternatives(old)[place.change], old)
    after = ast.unparse(holder).splitlines()
    changes = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    return Mutant(place=place, tree=ast.fix_missing_locations(tree), holder=holder, diff="\n".join(changes))


def marked(path: Path) -> ast.Module:
    """A module whose functions call `__called__` with their file and first line."""
    tree = _parsed(path)
    for holder in _holders(tree.body):
        if isinstance(holder, ast.FunctionDef):
            call = ast.Call(ast.Name("__called__", ast.Load()), [ast.Constant((str(path), _first_line(holder)))], [])
            holder.body.insert(0, ast.copy_location(ast.Expr(call), holder.body[0]))
    return ast.fix_missing_locations(tree)


def _first_line(holder: ast.stmt) -> int:
    return min(node.lineno for node in [holder, *getattr(holder, "decorator_list", [])])


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _holders(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.Assign]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (item for item in _holders(node.body) if isinstance(item, ast.FunctionDef))
        elif isinstance(node, ast.FunctionDef | ast.Assign):
            yield node


def _slots(node: ast.AST) -> Iterator[Slot]:
    """Where every node below `node` hangs, without those that only say something."""
    for name, value in list(ast.iter_fields(node)):
        if name in UNTOUCHED:
            continue
        for container, key in [(value, at) for at in range(len(value))] if isinstance(value, list) else [(vars(node), name)]:
            if isinstance(container[key], ast.AST) and not _only_says(container[key]):
                yield container, key
                if not _is_negative(container[key]):
                    yield from _slots(container[key])


def _is_negative(node: ast.AST) -> bool:
    """Whether it is a number such as -1, the last place or none at all."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)


def _only_says(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in EQUIVALENT
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    called = _name(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or called in WORDS or called.endswith("Error")


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _alternatives(node: ast.AST) -> list[ast.AST]:
    """What may stand in the place of a node by mistake."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            swapped = [_with(node, op=BINARY[type(op)]())] if type(op) in BINARY else []
            return [*swapped, left, *([right] if isinstance(op, ast.Add | ast.Mult) else [])]
        case ast.AugAssign(op=op) if type(op) in BINARY:
            return [_with(node, op=BINARY[type(op)]()), ast.Pass()]
        case ast.Compare(ops=[op]):
            return [_with(node, ops=[COMPARED[type(op)]()])]
        case ast.BoolOp(op=op, values=values):
            fewer = _with(node, values=values[:-1]) if len(values) > 2 else values[0]
            return [_with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And()), fewer]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return [operand]
        case ast.If() | ast.IfExp():
            return [_with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))]
        case ast.comprehension(ifs=[_, *_]):
            return [_with(node, ifs=node.ifs[:-1])]
        case ast.Expr(value=ast.Call()):
            return [ast.Pass()]
        case ast.Call():
            return _other_calls(node)
        case ast.Constant(value=bool(value)):
            return [ast.Constant(not value)]
        case ast.Constant(value=int(value)):
            return [ast.Constant(value + 1)]
        case ast.Constant(value=float(value)):
            return [ast.Constant(1.3 * value or 1.0)]
    return []


def _other_calls(node: ast.Call) -> list[ast.AST]:
    """A call of another reduction, and one with its first two arguments in the wrong order."""
    name = _name(node.func)
    others = []
    if name in CALLED:
        func = node.func
        others.append(_with(node, func=_with(func, **{"id" if isinstance(func, ast.Name) else "attr": CALLED[name]})))
    match node.args:
        case [first, second, *rest] if name not in COMMUTE and not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            if ast.dump(first) != ast.dump(second):
                others.append(_with(node, args=[second, first, *rest]))
    return others
