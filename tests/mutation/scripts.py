"""Mistakes planted in the scripts of pages, asked by the tests of `tests/javascript` in Node.

Functions and classes that compute are asked where a module exports them, with the functions and constants that they name. Those that
make, read or draw elements (they name one of `PAGE`) need a page: the tests of `tests/browser` ask them in Chromium.
"""

import dataclasses
import functools
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.javascript.node import NODE, asked, copied
from tests.mutation.runner import Verdict

SECONDS = 10  # of processor time for all tests, which take about one
ENTRIES = {"scenario.js", "study.js", "trace.js"}  # which make a page when they are loaded
PAGE = {
    "el", "svg", "replace", "document", "hinted", "unhint", "addEventListener", "getComputedStyle", "getContext", "context", "fetch",
    "requestAnimationFrame", "setTimeout", "location", "navigator", "history", "matchMedia", "innerWidth", "innerHeight",
    "devicePixelRatio", "call", "getBoundingClientRect", "clientWidth", "canvas", "createElement", "button", "cloneNode", "URL",
    "replaceChildren",
}  # fmt: skip
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "===": "!==", "!==": "===", "+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "**": "*",
    "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "++": "--", "--": "++", "&&": "||", "||": "&&", "??": "&&", "|": "&", "&": "|",
    "<<": ">>", ">>": "<<", ">>>": "<<", "true": "false", "false": "true", "max": "min", "min": "max", "floor": "ceil", "ceil": "floor",
    "round": "floor", "some": "every", "every": "some", "Infinity": "0", "filter": "map",
}  # fmt: skip
TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<text>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')"
    r"|(?P<number>0x[0-9a-fA-F]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>#?[A-Za-z_$][\w$]*)"
    r"|(?P<mark>>>>=|===|!==|\*\*=|\.\.\.|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.|\+\+|--|\+=|-=|\*=|/=|%=|\*\*|<<|>>|[^\s])",
    re.S,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/[a-z]*")
BEFORE_VALUE = {"return", "typeof", "of", "in", "case", "=>"}  # after which a value begins, as after every mark that does not end one


@dataclasses.dataclass(frozen=True)
class Token:
    """A word of a script: its kind, its text and where it begins."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptPlace:
    """Where a mistake can be planted in a script: what stands there, from a character on, and what is written instead."""

    path: Path
    line: int
    start: int
    old: str
    new: str

    @property
    def diff(self) -> str:
        """The line before and after."""
        text = _read(self.path)
        first, last = text.rfind("\n", 0, self.start) + 1, text.find("\n", self.start + len(self.old))
        changed = text[first : self.start] + self.new + text[self.start + len(self.old) : last]
        return f"-{text[first:last]}\n+{changed}"


def script_places(path: Path) -> list[ScriptPlace]:
    """All places of a script, from the top."""
    if path.name in ENTRIES:
        return []
    text = _read(path)
    tokens = tokens_of(text)
    return [
        ScriptPlace(path=path, line=text.count("\n", 0, start) + 1, start=start, old=text[start:end], new=new)
        for first, last in _asked(tokens)
        for start, end, new in _changes(tokens, first, last, text)
    ]


def caught_by(place: ScriptPlace, folder: Path) -> str:
    """The first test of scripts that fails on a mistake in a copy of the scripts; "import" or "time"; empty where it survives."""
    text = _read(place.path)
    copy = folder / place.path.name
    copy.write_text(text[: place.start] + place.new + text[place.start + len(place.old) :], encoding="utf-8")
    try:
        failed = asked(folder, _limited)
        return next(iter(failed), "")
    except subprocess.CalledProcessError as error:
        return "import" if error.returncode > 0 else "time"
    finally:
        shutil.copy(place.path, copy)


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def judged_scripts(places: Sequence[ScriptPlace], told: Callable[[Verdict], None]) -> list[Verdict]:
    """Verdicts of the tests of scripts; each is `told` as it is found."""
    if NODE is None:
        raise FileNotFoundError("mistakes in scripts need node on the path")
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = copied(Path(name))
        if failed := asked(folder):
            raise RuntimeError(f"the tests of scripts fail as they are: {failed}")
        for place in places:
            found.append(Verdict(place=place, diff=place.diff, caught=caught_by(place, folder), tests=1))
            told(found[-1])
    return found


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tokens_of(text: str) -> list[Token]:
    """Words of a script, without spaces and comments; of a template only what is computed in it."""
    found: list[Token] = []
    _scan(text, 0, found, inner=False)
    return found


def _scan(text: str, at: int, found: list[Token], *, inner: bool) -> int:
    """Read words from a character on, `inner` up to the brace that ends a value in a template; where it ended."""
    depth = 0
    while at < len(text):
        if text[at] == "`":
            at = _template(text, at + 1, found)
            continue
        match = REGEX.match(text, at) if _begins_regex(text, at, found) else None
        kind = "text" if match else ""
        match = match or TOKEN.match(text, at)
        kind = kind or match.lastgroup
        if kind != "space":
            depth += {"{": 1, "}": -1}.get(match[0], 0) if kind == "mark" else 0
            if inner and depth < 0:
                return at
            found.append(Token(kind, match[0], at))
        at = match.end()
    return at


def _template(text: str, at: int, found: list[Token]) -> int:
    found.append(Token("text", "`", at - 1))
    while text[at] != "`":
        if text[at] == "\\":
            at += 2
        elif text.startswith("${", at):
            found.append(Token("open", "${", at))
            at = _scan(text, at + 2, found, inner=True)
            found.append(Token("close", "}", at))
            at += 1
        else:
            at += 1
    found.append(Token("text", "`", at))
    return at + 1


def _begins_regex(text: str, at: int, found: Sequence[Token]) -> bool:
    return text[at] == "/" and not text.startswith(("//", "/*"), at) and (not found or _before_value(found[-1]))


def _before_value(token: Token) -> bool:
    """Whether a value begins after a token, so that a minus there is a sign and a slash begins a pattern."""
    return token.kind == "open" or token.text in BEFORE_VALUE or (token.kind == "mark" and token.text not in {")", "]", "}", "++", "--"})


def _asked(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """First and last token of each function or class that computes and that an exported one reaches, and of each constant that it names."""
    parts = {}
    for first, last in _statements(tokens, 0, len(tokens)):
        words = [token.text for token in tokens[first : last + 1]]
        head = [word for word in words[:4] if word not in {"export", "async", "default"}]
        named = {
            t.text for k, t in enumerate(tokens[first:last], first) if t.kind == "name" and (t.text, tokens[k - 1].text) != ("replace", ".")
        }
        if head[0] in {"class", "function", "const"} and not PAGE & named:
            parts[head[1]] = (first, last, named, words[0] == "export")
    reached, left = set(), [name for name, (*_, exported) in parts.items() if exported]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += sorted(parts[name][2] & set(parts))
    yield from sorted(parts[name][:2] for name in reached)


def _statements(tokens: Sequence[Token], at: int, end: int) -> Iterator[tuple[int, int]]:
    """First and last token of each statement that stands outside functions."""
    first, depth = at, 0
    for k in range(at, end):
        depth += {"(": 1, "[": 1, "{": 1, "${": 1, ")": -1, "]": -1, "}": -1}.get(tokens[k].text, 0) if tokens[k].kind != "text" else 0
        is_block = tokens[first].text in {"export", "function", "class", "async"} and not {"const", "let"} & {tokens[first + 1].text}
        if depth == 0 and (
            tokens[k].text == ";" or (is_block and tokens[k].text == "}" and tokens[k].kind == "mark" and _is_body(tokens, first, k))
        ):
            yield first, k
            first = k + 1


def _is_body(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether a brace that closes is that of the body of a function or class, not of its arguments or of names that are imported."""
    return tokens[first].text != "import" and (last + 1 == len(tokens) or tokens[last + 1].text not in {")", ",", "from", "="})


def _changes(tokens: Sequence[Token], first: int, last: int, text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and new text of every change between two tokens; what only says something is left alone."""
    throws = False
    for k in range(first, last + 1):
        token = tokens[k]
        throws = token.text == "throw" or (throws and token.text != ";")
        if throws or token.kind == "text":
            continue
        for end, new in _alternatives(tokens, k, last, text):
            yield token.start, end, new


def _alternatives(tokens: Sequence[Token], k: int, last: int, text: str) -> Iterator[tuple[int, str]]:
    token, before, after = tokens[k], tokens[k - 1], tokens[min(k + 1, last)]
    sign = token.text in {"-", "+"} and _before_value(before)
    if token.kind == "number" and not (before.text == "-" and _before_value(tokens[k - 2])):
        yield token.end, _other_number(token.text)
    elif sign and after.kind != "number":
        yield token.end, ""
    elif not sign and token.text in SWAPPED and _is_operation(token, before, after):
        yield token.end, SWAPPED[token.text]
    elif token.text == "!" and token.kind == "mark":
        yield token.end, ""
    elif token.text in {"if", "while"} and after.text == "(":
        closed = _closing(tokens, k + 1, last)
        yield tokens[closed].end, f"{token.text} (!{text[after.start : tokens[closed].end]})"
    elif token.text == "." and k + 3 <= last and (tokens[k + 2].text, tokens[k + 3].text) == ("(", ")"):
        yield tokens[k + 3].end, ""  # as .reverse() and .trim()
    if k + 5 <= last and token.kind == "name" and [tokens[k + i].text for i in (1, 3, 5)] == ["(", ",", ")"] and before.text != "function":
        one, other = tokens[k + 2], tokens[k + 4]
        if one.kind == other.kind == "name" and token.text not in {"max", "min"} and tokens[min(k + 6, last)].text not in {"{", "=>"}:
            yield tokens[k + 5].end, f"{token.text}({other.text}, {one.text})"
    if before.text in {";", "{", "}"} and token.kind == "name" and token.text not in KEYWORDS and before.kind == "mark":
        ended = _statement_end(tokens, k, last)
        if ended is not None:
            yield tokens[ended].end, ";"


KEYWORDS = {
    "return",
    "const",
    "let",
    "if",
    "for",
    "while",
    "else",
    "break",
    "continue",
    "function",
    "throw",
    "try",
    "case",
    "get",
    "export",
}


def _is_operation(token: Token, before: Token, after: Token) -> bool:
    if token.kind == "name":
        return after.text == "(" if token.text not in {"true", "false", "Infinity"} else True
    return not (token.text in {"&", "|"} and before.kind == "text")


def _statement_end(tokens: Sequence[Token], k: int, last: int) -> int | None:
    """The semicolon of a statement that only does something: a call, or a value given to a name or to a part of a thing."""
    depth = 0
    for j in range(k, last + 1):
        depth += {"(": 1, "[": 1, "{": 1, "${": 1, ")": -1, "]": -1, "}": -1}.get(tokens[j].text, 0) if tokens[j].kind != "text" else 0
        if depth < 0 or (depth == 0 and tokens[j].text == ":"):
            return None
        if depth == 0 and tokens[j].text == ";":
            return j
    return None


def _closing(tokens: Sequence[Token], k: int, last: int) -> int:
    depth = 0
    for j in range(k, last + 1):
        depth += {"(": 1, ")": -1}.get(tokens[j].text, 0) if tokens[j].kind != "text" else 0
        if depth == 0:
            return j
    return last


def _other_number(text: str) -> str:
    """Another number, as a mistake in Python's modules has it: the next whole one, or three tenths more."""
    if text.startswith("0x"):
        return hex(int(text, 16) >> 1)
    value = float(text.replace("_", ""))
    return str(int(value) + 1) if value == int(value) and "e" not in text.lower() else repr(value * 1.3)
