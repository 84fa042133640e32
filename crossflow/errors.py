"""The errors that a user can cause, each told with its place and its cure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

WORD, LONGEST = 200, 3000  # characters of a word and of a message, the most that are shown
_LONG_WORD = re.compile(rf"(\S{{{WORD}}})\S+")


class CrossflowError(Exception):
    """Base of every error that is the user's to mend; the command line turns it into exit status 2."""

    @property
    def said(self) -> str:
        """What is wrong, without its place in a file."""
        return str(self)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a file: where it stands and what was expected there."""

    file: str
    message: str
    line: int | None = None
    path: str = ""

    def below(self, section: str) -> Problem:
        """The same of a file that holds what was read as its section."""
        return Problem(file=self.file, line=self.line, path=f"{section}.{self.path}" if self.path else section, message=self.message)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shortened(self.message))
        object.__setattr__(self, "path", shortened(self.path))

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class SpecError(CrossflowError):
    """A file or an override that does not say what it must; carries all problems found, not the first alone."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @property
    def said(self) -> str:
        """What is wrong, each with its path, without its place in a file."""
        return "; ".join(": ".join(part for part in (problem.path, problem.message) if part) for problem in self.problems)


class StrategyError(CrossflowError, ValueError):
    """A strategy that the workload or the system cannot carry; the sentence holds the numbers that clash."""


def shortened(message: str) -> str:
    """A message whose words and lists are cut to what a person reads.

    >>> len(shortened("a" * 10_000)), shortened("a word")
    (203, 'a word')
    """
    words = _LONG_WORD.sub(r"\1...", message)
    return words if len(words) <= LONGEST else f"{words[: LONGEST * 2 // 3]} ... {words[-LONGEST // 4 :]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word, or an empty string.

    >>> did_you_mean("memroy", ["memory", "logic"])
    "; did you mean 'memory'?"
    """
    close = difflib.get_close_matches(str(word)[:WORD], [str(name) for name in known], n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def with_article(word: str) -> str:
    """A word after its indefinite article; one without vowels is spelled out, letter by letter.

    >>> with_article("gemm"), with_article("encoder"), with_article("lstm"), with_article("dlrm")
    ('a gemm', 'an encoder', 'an lstm', 'a dlrm')
    """
    spelled = not set("aeiou") & set(word.lower())
    return f"{'an' if word[:1].lower() in ('aefhilmnorsx' if spelled else 'aeiou') else 'a'} {word}"
