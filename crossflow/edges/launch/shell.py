"""Shell scripts as words: quotes, continued lines, comments, variables and arrays are read, and nothing is ever run.

A variable stands for what the script assigned to it before. One that the script does not set stays as ``${NAME}``, a command's output
as ``$(...)``. Conditions and loops are not evaluated: their lines are read in order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from crossflow.base import limits
from crossflow.base.errors import Problem, SpecError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_ARITHMETIC = re.compile(r"[\d\s+*/%()-]{1,200}", re.ASCII)
_ENDS = ("\n", ";", "&", "|")  # of a command
_DECLARING = ("export", "declare", "local", "readonly", "typeset", "env", "set", "then", "else", "do")
_CONDITIONS = ("if", "elif", "case", "for", "while", "until")
LONGEST = 100_000  # characters of a script, and of all of its words once variables are written out

Char = tuple[str, int, bool]  # a character, its line, and whether a word ends at it where it is a space
Chars = tuple[Char, ...]


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a command, and the line on which it is written; of a variable's words that of the assignment."""

    text: str
    line: int

    @property
    def unknown(self) -> bool:
        """Whether a part of it is known only where the script runs."""
        return "${" in self.text or "$(" in self.text


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script says, without running it.

    Attributes
    ----------
    commands : words of every command, in order.
    variables : values of variables at the end of the script.
    comments : text of comments with their lines.
    documents : files that the script writes (``cat > FILE <<'EOF'``), by name: text and the line on which it begins.
    conditions : lines with conditions or loops, which are not evaluated.
    """

    commands: tuple[tuple[Word, ...], ...]
    variables: Mapping[str, Word]
    comments: tuple[Word, ...]
    documents: Mapping[str, Word]
    conditions: tuple[int, ...]


def read_script(text: str, file: str) -> Script:
    """Words of a script; SpecError for quotes and brackets that do not end, and for texts that are too long."""
    if len(text) > LONGEST:
        raise SpecError([Problem(file=file, message=f"has {len(text):,} characters, and {LONGEST:,} at most are read")])
    return _Scanner(text, file).script()


class _Scanner:
    """One pass over a script."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._at, self._line = 0, 1
        self._spent = 0
        self._values: dict[str, Chars] = {}
        self._comments: list[Word] = []
        self._documents: dict[str, Word] = {}
        self._commands: list[tuple[Word, ...]] = []
        self._conditions: list[int] = []
        self._pending: list[tuple[str, bool]] = []  # marks of documents that begin on the next line

    def script(self) -> Script:
        while self._at < len(self._text):
            self._command()
        variables = {name: _word(value) for name, value in self._values.items()}
        return Script(
            commands=tuple(self._commands), variables=variables, comments=tuple(self._comments), documents=self._documents,
            conditions=tuple(self._conditions),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ characters

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _next(self) -> str:
        char = self._text[self._at]
        self._at += 1
        self._line += char == "\n"
        return char

    def _failed(self, message: str, line: int) -> SpecError:
        return SpecError([Problem(file=self._file, line=line, message=message)])

    def _spend(self, chars: Chars) -> Chars:
        """The same, where all that variables stand for is not too long."""
        self._spent += len(chars)
        if self._spent > LONGEST:
            raise self._failed(f"variables stand for more than {LONGEST:,} characters, the most that are read", self._line)
        return chars

    # ------------------------------------------------------------------------------------------ commands

    def _command(self) -> None:
        """One command: its assignments are kept, its words listed."""
        words: list[Word] = []
        while self._at < len(self._text):
            char = self._peek()
            if char in _ENDS:
                self._next()
                if char == "\n" and self._pending:
                    self._read_documents(words)
                break
            if char in " \t":
                self._next()
            elif char == "\\" and self._peek(1) == "\n":
                self._next(), self._next()
            elif char == "#":
                self._comment()
            elif char in "<>" or (char.isdigit() and self._peek(1) in ("<", ">") and self._peek(1)):
                self._redirection(words)
            elif char in "(){}" and self._peek(1) in (" ", "\n", "\t", ""):
                self._next()
            elif not self._assignment(words):
                words += _split(self._word())
        if words:
            self._conditions += [words[0].line] if words[0].text in _CONDITIONS else []
            self._commands.append(tuple(words))

    def _comment(self) -> None:
        line, begin = self._line, self._at
        while self._at < len(self._text) and self._peek() != "\n":
            self._next()
        self._comments.append(Word(text=self._text[begin : self._at], line=line))

    def _redirection(self, words: list[Word]) -> None:
        """Where output goes, which is no word of the command; the mark of a document that follows."""
        line, marks = self._line, ""
        while self._peek() and self._peek() in "0123456789<>&-":
            marks += self._next()
        while self._peek() in (" ", "\t") and self._peek():
            self._next()
        named = "".join(word.text for word in _split(self._word()))
        if "<<" in marks and "<<<" not in marks:
            self._pending.append((named, marks.endswith("-")))
        elif ">" in marks and named:
            words.append(Word(text=f">{named}", line=line))

    def _read_documents(self, words: list[Word]) -> None:
        """Documents that begin here, under the names of the files that the command writes."""
        for mark, indented in self._pending:
            begin, lines = self._line, []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                line = self._text[self._at : end if end >= 0 else len(self._text)]
                self._at = end + 1 if end >= 0 else len(self._text)
                self._line += 1
                if (line.lstrip("\t") if indented else line) == mark:
                    break
                lines.append(line)
            else:
                raise self._failed(f"the document that ends with '{mark}' does not end", begin)
            name = next((word.text[1:] for word in words if word.text.startswith(">")), mark)
            self._documents[name] = Word(text="\n".join(lines), line=begin)
        self._pending = []

    def _assignment(self, words: list[Word]) -> bool:
        """Whether an assignment stands here, which is then kept."""
        if any(word.text not in _DECLARING and not word.text.startswith("-") for word in words):
            return False
        found = _ASSIGNED.match(self._text, self._at)
        if found is None:
            return False
        name, more = found.groups()
        for _ in found[0]:
            self._next()
        if self._peek() == "(":
            value = self._array()
            self._values[name] = (*self._values.get(name, ()), (" ", self._line, True), *value) if more else value
        else:
            value = self._word()
            self._values[name] = (*self._values.get(name, ()), *value) if more else value
        return True

    def _array(self) -> Chars:
        """Words between brackets, with spaces at which they part."""
        begin = self._line
        self._next()
        found: list[Char] = []
        while self._at < len(self._text):
            char = self._peek()
            if char == ")":
                self._next()
                return tuple(found)
            if char in " \t\n":
                self._next()
            elif char == "\\" and self._peek(1) == "\n":
                self._next(), self._next()
            elif char == "#":
                self._comment()
            else:
                found += [*self._word(")"), (" ", self._line, True)]
        raise self._failed("the bracket of an array does not end", begin)

    # ------------------------------------------------------------------------------------------ words

    def _word(self, also: str = "") -> Chars:
        """Characters up to the end of a word, with what variables stand for."""
        found: list[Char] = []
        while self._at < len(self._text):
            char, line = self._peek(), self._line
            if char in " \t" or char in _ENDS or char in "<>" or (also and char in also):
                break
            if char == "'":
                found += self._literal()
            elif char == '"':
                found += self._quoted()
            elif char == "\\":
                self._next()
                if self._at < len(self._text) and (escaped := self._next()) != "\n":
                    found.append((escaped, line, False))
            elif char == "$":
                found += self._expanded(quoted=False)
            elif char == "`":
                found += self._output()
            else:
                found.append((self._next(), line, False))
        return tuple(found)

    def _literal(self) -> list[Char]:
        begin = self._line
        found: list[Char] = []
        self._next()
        while self._at < len(self._text):
            line, char = self._line, self._next()
            if char == "'":
                return found or [("", begin, False)]
            found.append((char, line, False))
        raise self._failed("the quote does not end", begin)

    def _quoted(self) -> list[Char]:
        begin = self._line
        found: list[Char] = []
        self._next()
        while self._at < len(self._text):
            char, line = self._peek(), self._line
            if char == '"':
                self._next()
                return found or [("", begin, False)]
            if char == "\\" and self._peek(1) in ('"', "\\", "$", "`", "\n"):
                self._next()
                escaped = self._next()
                found += [(escaped, line, False)] if escaped != "\n" else []
            elif char == "$":
                found += self._expanded(quoted=True)
            elif char == "`":
                found += self._output()
            else:
                found.append((self._next(), line, False))
        raise self._failed("the quote does not end", begin)

    def _expanded(self, *, quoted: bool) -> Chars:
        """What stands behind a dollar sign."""
        line, rest = self._line, self._text[self._at + 1 :]
        if rest.startswith("(("):
            return self._arithmetic()
        if rest.startswith("("):
            return self._output()
        if rest.startswith("{"):
            inside = self._balanced("{", "}")[2:-1]
            return self._variable(inside, line, quoted=quoted)
        if found := _NAME.match(rest):
            self._at += 1 + len(found[0])
            return self._variable(found[0], line, quoted=quoted)
        if rest[:1] and rest[0] in "0123456789@*#?":
            self._at += 2
            return _chars(f"${{{rest[0]}}}", line)
        self._at += 1
        return _chars("$", line)

    def _variable(self, inside: str, line: int, *, quoted: bool) -> Chars:
        """What a variable stands for, by its name or with a default (``NAME:-8``)."""
        name, default = inside, None
        if found := re.fullmatch(r"(\w+):?[-=](.*)", inside, re.DOTALL | re.ASCII):
            name, default = found.groups()
        name = re.sub(r"\[[@*]\]$", "", name)
        whole = name != inside  # of an array all words, also between quotes
        if name in self._values:
            value = self._values[name]
        elif default is not None:
            value = _Scanner(default, self._file)._default(self._values, line)
        else:
            return _chars(f"${{{name}}}", line)
        if quoted and not whole:
            return self._spend(tuple((char, at, False) for char, at, _ in value))
        if quoted and any(parts for _, _, parts in value):
            return self._spend(value)  # elements with spaces stay whole
        return self._spend(tuple((char, at, parts or char.isspace()) for char, at, parts in value))

    def _default(self, values: Mapping[str, Chars], line: int) -> Chars:
        """The text of this scanner as the default of a variable."""
        self._values, self._line = dict(values), line
        found: list[Char] = []
        while self._at < len(self._text):
            found += self._word()
            if self._at < len(self._text):
                found.append((self._next(), line, True))
        return tuple(found)

    def _arithmetic(self) -> Chars:
        """A whole number that the script computes of others; as it stands where that cannot be told."""
        line, text = self._line, self._balanced("(", ")")

        def value(found: re.Match[str]) -> str:
            return _word(self._values[found[1]]).text if found[1] in self._values else found[0]

        written = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, text[3:-2])
        number = _computed(written)
        return _chars(text if number is None else str(number), line)

    def _output(self) -> Chars:
        """A command's output, as it stands."""
        line = self._line
        if self._peek() == "`":
            begin = self._at
            self._next()
            while self._at < len(self._text) and self._peek() != "`":
                self._next()
            if self._at >= len(self._text):
                raise self._failed("the quote does not end", line)
            self._next()
            return _chars(_command_text(self._text[begin + 1 : self._at - 1]), line)
        return _chars(_command_text(self._balanced("(", ")")[2:-1]), line)

    def _balanced(self, opening: str, closing: str) -> str:
        """Text from a dollar sign to the bracket that closes the one behind it."""
        begin, line, depth = self._at, self._line, 0
        self._next()
        while self._at < len(self._text):
            char = self._next()
            depth += (char == opening) - (char == closing)
            if depth == 0:
                return self._text[begin : self._at]
        raise self._failed("the bracket does not end", line)


def _command_text(command: str) -> str:
    """A command whose output is not known, as one word.

    >>> _command_text("hostname -i")
    '$(hostname...)'
    """
    first, *more = command.split() or [""]
    return f"$({first}{'...' if more else ''})"


def _chars(text: str, line: int) -> Chars:
    return tuple((char, line, False) for char in text)


def _word(chars: Chars) -> Word:
    """All characters as one word."""
    return Word(text="".join(char for char, _, _ in chars).strip(), line=chars[0][1] if chars else 0)


def _split(chars: Chars) -> list[Word]:
    """Words between the spaces at which they part."""
    words: list[list[Char]] = [[]]
    for char in chars:
        if char[2] and char[0].isspace():
            words.append([])
        else:
            words[-1].append(char)
    return [Word(text="".join(char for char, _, _ in word), line=word[0][1]) for word in words if word]


def _computed(text: str) -> int | None:
    """Value of sums and products of whole numbers, None for anything else.

    >>> _computed("8 * (2 + 2)"), _computed("__import__('os')"), _computed("2 ** 99"), _computed("1 / 0")
    (32, None, None, None)
    """
    if not _ARITHMETIC.fullmatch(text) or "**" in text:
        return None
    try:
        tree = ast.parse(text.strip().replace("/", "//").replace("////", "//"), mode="eval").body
        number = _number(tree)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return number if abs(number) <= limits.COUNT else None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv):
            return left // right
        if isinstance(node.op, ast.Mod):
            return left % right
    raise ValueError("not a sum or product of whole numbers")
