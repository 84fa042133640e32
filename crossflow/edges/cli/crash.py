"""What a command leaves when it fails by a mistake of crossflow's own: one file, without names of people, machines and private folders."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import re
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from crossflow.base.platforms import SYSTEM

ISSUES = "the issues of crossflow"
LIBRARIES = ("numpy", "pydantic", "scipy", "matplotlib", "pandas", "optuna", "torch", "jax", "dask")
PATH = re.compile(r"""(?<=['"])[^'"\n]*[/\\][^'"\n]*(?=['"])|[\w@%+=:,.~-]*(?:[/\\][\w@%+=:,.~-]+)+""")  # quoted, or without spaces
ENDINGS = r"\.(ya?ml|jsonl?|csv|gz|sh|npz|parquet|png|svg|html|toml)"
FILE = re.compile(rf"[/\\]|({ENDINGS}|\.py)$")  # by its look
UNIT = re.compile(  # such as 3.35 TB/s
    r"(?:[\d.]+(?:e[+-]?\d+)? ?)?\b[A-Za-z%]{1,9}/"
    r"(?:s|h|hour|day|year|min|bit|B|mm2?|cm2?|m2?|K|W|J|kWh|flop|device|token|sample)\b(?![/\\.\w])"
)
NAMING = {"name", "title", "notes"}  # keys whose values are words of people
# Options whose value names a file, a folder, a machine or people, whatever it looks like.
PRIVATE = {"-o", "--output", "--out", "--data", "--page", "--plot", "--from", "--requests", "--profile", "--record", "--replay", "--name",
    "--host", "--dask", "--events", "--write-overheads", "--overheads", "--uneven", "--compare", "--against", "--write"}  # fmt: skip
NAME = re.compile(rf"[\w@%+=,~-][\w@%+=,.~-]*{ENDINGS}\b")


def report(error: BaseException, words: Sequence[str]) -> Path | None:
    """Write what a report of a mistake needs, and return its file; None where no folder takes one."""
    text = "\n".join(_lines(error, words)) + "\n"
    for folder in (tempfile.gettempdir(), os.curdir):
        try:
            handle, name = tempfile.mkstemp(prefix="crossflow-crash-", suffix=".txt", dir=folder, text=True)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
                stream.write(text)
        except OSError:
            continue
        return Path(name)
    return None


def _lines(error: BaseException, words: Sequence[str]) -> Iterator[str]:
    from crossflow import __version__

    yield f"crossflow {__version__}, Python {sys.version.partition(' ')[0]} on {SYSTEM}"
    yield ", ".join(f"{name} {version}" for name in LIBRARIES if (version := _version(name)))
    yield f"command: crossflow {' '.join(_command(words))}"
    yield ""
    own = sorted(_own_words(words), key=len, reverse=True)
    yield from (_private(line.rstrip("\n"), own) for line in traceback.format_exception(error))


def _command(words: Sequence[str]) -> Iterator[str]:
    """The words of a command, those masked that may name files, machines or people."""
    before = ""
    for i, word in enumerate(words):
        own = before in PRIVATE and not word.startswith("-")
        option, equals, _ = word.partition("=")
        yield word if i == 0 else _mark(word) if own else f"{option}={_mark(word)}" if equals and option in PRIVATE else masked(word)
        before = word


def _own_words(words: Sequence[str]) -> Iterator[str]:
    """Parts of a command that are names of people's own: files by their look, values of options and of keys that are names."""
    for before, word in zip(("", *words), words, strict=False):
        key, _, value = word.partition("=")
        named = len(word) > 2 and before in PRIVATE and not word.startswith("-")
        if named or (FILE.search(word) and not UNIT.search(word)):
            yield word
        elif len(value) > 2 and (key.rpartition(".")[2] in NAMING or key in PRIVATE):
            yield value


def _mark(word: str) -> str:
    """What stands for the name of a file, with its ending."""
    found = re.search(rf"{ENDINGS}$|\.py$", word)
    return f"FILE{found.group() if found else ''}"


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def masked(word: str) -> str:
    """A word of a command without the names of its files and folders.

    >>> masked("predict"), masked("tp8-dp2"), masked("/home/ada/secret/chip.yaml"), masked("workload=../ours/model.json")
    ('predict', 'tp8-dp2', 'FILE.yaml', 'workload=FILE.json')
    >>> masked("system.memory.bandwidth=3.35 TB/s"), masked("system.name=Ada's chip")
    ('system.memory.bandwidth=3.35 TB/s', 'system.name=NAME')
    """
    key, equals, value = word.partition("=")
    if equals and not re.search(r"[/\\]", key):
        return f"{key}={'NAME' if key.rpartition('.')[2] in NAMING else masked(value)}"
    return _mark(word) if _names_file(word) else word


def _names_file(word: str) -> bool:
    """Whether a word of a command names a file or a folder, by its look or because there is one."""
    return bool(FILE.search(word) and not UNIT.fullmatch(word)) or (len(word) > 1 and not word.startswith("-") and os.path.lexists(word))


def _private(text: str, own: Sequence[str]) -> str:
    """A text without private folders and names: files of packages by their place in these, all others by their ending.

    own : parts of the command that are names, the longest first.
    """

    def shown(found: re.Match[str]) -> str:
        if not re.search(r"[/\\]", UNIT.sub("", found.group())):
            return found.group()
        path = found.group().replace("\\", "/")
        for root, mark in (("/site-packages/", "site-packages/"), ("/crossflow/crossflow/", "crossflow/"), (_own(), "crossflow/")):
            if root in path:
                return mark + path.rpartition(root)[2]
        inside = re.search(r"/lib/python[\d.]+/(.*)", path)
        return f"python/{inside.group(1)}" if inside else f"FILE{Path(path).suffix}"

    for word in own:
        text = text.replace(word, _mark(word)) if FILE.search(word) else re.sub(rf"\b{re.escape(word)}\b", "NAME", text)
    text = PATH.sub(shown, text)
    text = NAME.sub(lambda found: found.group() if found.group().startswith("FILE.") else f"FILE.{found.group(1)}", text)
    for name, mark in ((_user(), "USER"), (socket.gethostname(), "HOST")):
        if len(name) > 1:
            text = re.sub(rf"\b{re.escape(name)}\b", mark, text)
    return text


def _own() -> str:
    """The folder of the package, with a slash behind it."""
    return Path(sys.modules["crossflow"].__file__ or "").parent.as_posix() + "/"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # where the system knows no name for whoever runs this
        return ""
